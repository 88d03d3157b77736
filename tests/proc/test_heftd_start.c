/* SPDX-License-Identifier: Apache-2.0 */
/* heftd that can't start, or starts in a poor place: the exit code and the sentence that says what to do. */
#include "heftd_process.h"
#include "load/directory.h"

#include <fcntl.h>
#include <heft/control.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

/* Runs with these arguments: the exit code is `code` and stderr holds `words`. */
static void ends(struct heftd_process *process, int code, const char *words, const char *const *arguments)
{
    char text[8192];
    int got = heftd_run(process, arguments, text, sizeof(text));

    if (got != code || !strstr(text, words))
        fail_msg("exit code %d instead of %d, or '%s' missing in: %s", got, code, words, text);
}

#define ENDS(process, code, words, ...) ends(process, code, words, (const char *const[]){__VA_ARGS__, NULL})

static void wrong_usage_is_exit_code_2_and_names_the_nearest(void **state)
{
    struct heftd_process *process = *state;

    ENDS(process, 2, "--listen?", "--lisen", "x");
    ENDS(process, 2, "options only", "stray");
    ENDS(process, 2, "sqlite:PATH or memory:", "--store", "redis://h");
    ENDS(process, 2, "expected HOST:PORT", "--store", "memory:", "--listen", "nowhere");
    ENDS(process, 2, "--http", "--store", "memory:", "--listen", "127.0.0.1:0", "--http", "1:2:3");
    ENDS(process, 2, "lease-max", "--lease-max", "1ms");
    ENDS(process, 2, "log-level", "--log-level", "loud");
    ENDS(process, 2, "--config", "--config", "/nonexistent");
    ENDS(process, 0, "--lease-max", "--help");
    ENDS(process, 0, "heftd 0.1.0", "--version");
}

static void a_port_in_use_is_named_with_the_remedy(void **state)
{
    struct heftd_process *process = *state;
    struct heftd_process other;
    char taken[32];

    heftd_prepare(&other);
    heftd_start(&other, NULL);
    (void)snprintf(taken, sizeof(taken), "127.0.0.1:%u", other.grpc_port);
    ENDS(process, 1, "in use by another process", "--store", "memory:", "--listen", taken, "--http",
         "127.0.0.1:0");
    ENDS(process, 1, taken, "--store", "memory:", "--listen", taken, "--http", "127.0.0.1:0");
    (void)snprintf(taken, sizeof(taken), "127.0.0.1:%u", other.http_port);
    ENDS(process, 1, taken, "--store", "memory:", "--listen", "127.0.0.1:0", "--http", taken);
    assert_int_equal(heftd_signal(&other, SIGTERM), 0);
    heftd_remove(&other);
}

static void write_bytes(const char *path, const void *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), size);
    (void)close(fd);
}

static void a_store_that_can_not_be_used_is_told_and_left_alone(void **state)
{
    struct heftd_process *process = *state;
    char store[200], path[160], copy[8192];
    uint8_t noise[4096];
    size_t index;
    FILE *file;

#define STORE_ENDS(words) \
    ENDS(process, 1, words, "--store", store, "--listen", "127.0.0.1:0", "--http", "off")
    (void)snprintf(path, sizeof(path), "%s/noise.db", process->folder);
    (void)snprintf(store, sizeof(store), "sqlite:%s", path);
    for (index = 0; index < sizeof(noise); index++)
        noise[index] = (uint8_t)(index * 37 + 11);
    write_bytes(path, noise, sizeof(noise));
    STORE_ENDS("damaged or no database");
    file = fopen(path, "re");
    assert_int_equal(fread(copy, 1, sizeof(copy), file), sizeof(noise));
    (void)fclose(file);
    assert_memory_equal(copy, noise, sizeof(noise));
    (void)snprintf(store, sizeof(store), "sqlite:/proc/heft/d.db"); /* no folder can be made there */
    STORE_ENDS("making folder /proc/heft");
    (void)snprintf(store, sizeof(store), "sqlite:%s", process->folder); /* a folder, not a file */
    STORE_ENDS("can't be written");
    (void)snprintf(store, sizeof(store), "sqlite:%s/noise.db/d.db", process->folder);
    STORE_ENDS("noise.db");
}

static void a_store_in_use_or_cut_short_is_told(void **state)
{
    struct heftd_process *process = *state;
    struct heftd_process other;
    char store[200], path[160];
    struct stat info;

    heftd_prepare(&other);
    heftd_start(&other, NULL);
    (void)snprintf(path, sizeof(path), "%s/state/d.db", other.folder);
    (void)snprintf(store, sizeof(store), "sqlite:%s", path);
    STORE_ENDS("in use by another process");
    assert_int_equal(heftd_signal(&other, SIGTERM), 0);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600); /* it holds tokens */
    assert_int_equal(truncate(path, info.st_size / 2), 0);
    STORE_ENDS("damaged or no database");
    heftd_remove(&other);
}

static void a_read_only_store_is_told(void **state)
{
    struct heftd_process *process = *state;
    struct heftd_process other;
    char store[200], text[8192], folder[128];
    const char *arguments[] = {"--store", store, "--listen", "127.0.0.1:0", "--http", "off", NULL};
    const char *program = heftd_program;
    int code;

    heftd_prepare(&other);
    heftd_start(&other, NULL);
    assert_int_equal(heftd_signal(&other, SIGTERM), 0);
    (void)snprintf(folder, sizeof(folder), "%s/state", other.folder);
    (void)snprintf(store, sizeof(store), "sqlite:%s/d.db", folder);
    assert_int_equal(chmod(store + strlen("sqlite:"), 0444), 0);
    assert_int_equal(chmod(folder, 0555), 0);
    assert_int_equal(chmod(other.folder, 0755), 0);
    assert_int_equal(chmod(process->folder, 0777), 0);
    if (geteuid() == 0) { /* rights do not bind root: run as somebody else */
        const char *as_nobody[] = {"--reuid=65534", "--clear-groups", heftd_program, "--store", store,
                                   "--listen",      "127.0.0.1:0",    "--http",      "off",     NULL};

        heftd_program = "/usr/bin/setpriv";
        code = heftd_run(process, as_nobody, text, sizeof(text));
        heftd_program = program;
    } else {
        code = heftd_run(process, arguments, text, sizeof(text));
    }
    assert_int_equal(chmod(folder, 0755), 0);
    if (code != 1 || !strstr(text, "can't be written"))
        fail_msg("exit code %d: %s", code, text);
    heftd_remove(&other);
}

static void a_flag_outweighs_the_environment_and_that_the_file(void **state)
{
    struct heftd_process *process = *state;
    char path[160];
    char text[4096];

    (void)snprintf(path, sizeof(path), "%s/heftd.conf", process->folder);
    write_bytes(path, "# a comment\nlog-level = error\nlease-max = 5s\n", 45);
    {
        const char *extra[] = {"--config", path, "--log-level", "info", NULL};

        heftd_start(process, extra);
    }
    heftd_log(process, text, sizeof(text));
    assert_non_null(strstr(text, "heftd 0.1.0 serves"));
    assert_int_equal(heftd_signal(process, SIGTERM), 0);
    assert_int_equal(setenv("HEFTD_LOG_LEVEL", "warn", 1), 0);
    heftd_start(process, (const char *const[]){"--config", path, NULL});
    heftd_log(process, text, sizeof(text));
    assert_string_equal(text, "");
    assert_int_equal(unsetenv("HEFTD_LOG_LEVEL"), 0);
    assert_int_equal(heftd_signal(process, SIGTERM), 0);
    write_bytes(path, "lease-mux = 5s\n                              ", 45);
    ENDS(process, 2, "lease-max?", "--config", path);
}

static void an_open_address_is_warned_of(void **state)
{
    struct heftd_process *process = *state;
    char text[4096], *first;

    heftd_start(process, (const char *const[]){"--listen", "0.0.0.0:0", NULL});
    heftd_log(process, text, sizeof(text));
    first = strstr(text, " warning: ");
    assert_non_null(first);
    assert_non_null(strstr(first, "0.0.0.0:0 is not loopback"));
    assert_null(strstr(first + 1, " warning: "));
    assert_int_equal(heftd_signal(process, SIGTERM), 0);
}

static void with_64_files_it_survives_more_connections_than_it_can_hold(void **state)
{
    struct heftd_process *process = *state;
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;
    struct heft_directory *directory;
    struct heft_record_list list;
    struct heft_error error = HEFT_ERROR_INIT;
    struct rlimit few = {64, 64};
    int fds[200], tries, result = -1;
    size_t index;

    heftd_start(process, (const char *const[]){"--store", "memory:", NULL});
    assert_int_equal(prlimit(process->pid, RLIMIT_NOFILE, &few, NULL), 0);
    for (index = 0; index < 200; index++)
        fds[index] = heftd_connect(index % 2 ? process->grpc_port : process->http_port);
    for (index = 0; index < 200; index++)
        (void)close(fds[index]);
    options.address = process->address;
    options.timeout_ms = 20000;
    assert_int_equal(heft_directory_open(&options, &directory, &error), 0);
    for (tries = 0; result && tries < 3; tries++)
        result = directory->ops->list(directory, NULL, &list, &error);
    if (result)
        fail_msg("%s", error.text);
    heft_record_list_free(&list);
    heft_directory_close(directory);
    assert_int_equal(heftd_signal(process, SIGTERM), 0);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, heftd_set_up, heftd_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(wrong_usage_is_exit_code_2_and_names_the_nearest),
        TEST(a_port_in_use_is_named_with_the_remedy),
        TEST(a_store_that_can_not_be_used_is_told_and_left_alone),
        TEST(a_store_in_use_or_cut_short_is_told),
        TEST(a_read_only_store_is_told),
        TEST(a_flag_outweighs_the_environment_and_that_the_file),
        TEST(an_open_address_is_warned_of),
        TEST(with_64_files_it_survives_more_connections_than_it_can_hold),
    };

    if (argc < 2)
        return 2;
    heftd_program = argv[1];
    heft_control_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
