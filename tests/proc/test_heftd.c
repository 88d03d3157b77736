/* SPDX-License-Identifier: Apache-2.0 */
/* The real heftd: what a fleet sees of it through kills, restarts, full stops and hostile neighbours. */
#include "base/clock.h"
#include "heftd_process.h"
#include "load/directory.h"

#include <heft/control.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#else
#define IS_SANITIZED 0
#endif

#define SECRET 0x5a

static struct heft_directory *connect_to(const struct heftd_process *process, uint32_t timeout_ms)
{
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;
    struct heft_directory *directory;
    struct heft_error error = HEFT_ERROR_INIT;

    options.address = process->address;
    options.timeout_ms = timeout_ms;
    if (heft_directory_open(&options, &directory, &error))
        fail_msg("%s", error.text);
    return directory;
}

static struct heft_record make_record(const char *name, uint8_t generation, uint64_t lease_ms)
{
    static const struct heft_identity identity = {"org/<b>model</b>", "abc", "raw", "", "tp=0/2", NULL, 0};
    struct heft_record record;

    memset(&record, 0, sizeof(record));
    record.name = strdup(name);
    record.addresses = strdup("unix:@heft-x,tcp:127.0.0.1:1");
    record.generation.bytes[0] = generation;
    memset(&record.token, SECRET, sizeof(record.token));
    record.total_bytes = (uint64_t)7 << 30;
    record.tensor_count = 291;
    record.block_count = 8;
    record.held_blocks = 8;
    record.lease_ms = lease_ms;
    assert_int_equal(heft_record_set_identity(&record, &identity), 0);
    return record;
}

static int publish(struct heft_directory *directory, const char *name, uint8_t generation, uint64_t lease_ms,
                   uint64_t *epoch_out)
{
    struct heft_record record = make_record(name, generation, lease_ms);
    struct heft_error error = HEFT_ERROR_INIT;
    int result = directory->ops->publish(directory, &record, epoch_out, &error);

    if (result)
        print_message("publishing %s: %s\n", name, error.text);
    heft_record_free(&record);
    return result;
}

static size_t count_of(struct heft_directory *directory)
{
    struct heft_record_list list;
    struct heft_error error = HEFT_ERROR_INIT;
    size_t count;

    if (directory->ops->list(directory, NULL, &list, &error))
        fail_msg("%s", error.text);
    count = list.count;
    heft_record_list_free(&list);
    return count;
}

static int renew(struct heft_directory *directory, const char *name, uint8_t number, uint64_t *epoch_out)
{
    struct heft_generation generation = {{number}};

    return directory->ops->renew(directory, name, &generation, 0, epoch_out, NULL);
}

static void pause_ms(long ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};

    (void)nanosleep(&pause, NULL);
}

static void get(const struct heftd_process *process, const char *path, char *text_out, size_t size)
{
    char request[256];

    (void)snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
    (void)heftd_http(process, request, strlen(request), text_out, size);
}

static void a_record_lives_as_long_as_it_is_renewed(void **state)
{
    struct heftd_process *process = *state;
    struct heft_directory *directory;
    char text[16384];
    uint64_t begin_ns;

    heftd_start(process, NULL);
    directory = connect_to(process, 30000);
    assert_int_equal(publish(directory, "a", 1, 2000, NULL), 0);
    for (begin_ns = heft_now_ns(); heft_now_ns() - begin_ns < 4 * HEFT_NS_PER_S;) {
        assert_int_equal(renew(directory, "a", 1, NULL), 0);
        assert_int_equal(count_of(directory), 1);
        pause_ms(100);
    }
    while (count_of(directory) == 1) /* the renewals have stopped */
        pause_ms(20);
    assert_int_equal(renew(directory, "a", 1, NULL), HEFT_ERR_NOT_FOUND);
    do { /* the reaper comes round */
        pause_ms(20);
        get(process, "/metrics", text, sizeof(text));
    } while (!strstr(text, "\nheftd_expirations_total 1\n"));
    heft_directory_close(directory);
    assert_int_equal(heftd_signal(process, SIGTERM), 0);
}

static void records_outlive_kill_9_and_their_leases_go_on(void **state)
{
    struct heftd_process *process = *state;
    struct heft_directory *directory;
    struct heft_record_list list;
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t first = 0, second = 0;

    heftd_start(process, NULL);
    directory = connect_to(process, 30000);
    assert_int_equal(publish(directory, "long", 1, 600000, &first), 0);
    assert_int_equal(publish(directory, "old", 1, 600000, NULL), 0);
    assert_int_equal(publish(directory, "old", 2, 600000, NULL), 0);
    assert_int_equal(publish(directory, "short", 1, 500, NULL), 0);
    assert_int_equal(heftd_signal(process, SIGKILL), 128 + SIGKILL);
    pause_ms(500);
    heftd_start(process, NULL);
    assert_int_equal(directory->ops->list(directory, NULL, &list, &error), 0);
    assert_int_equal(list.count, 2); /* the short lease ended while nobody watched */
    assert_string_equal(list.records[0].name, "long");
    assert_true(list.records[0].lease_left_ms > 300000 && list.records[0].lease_left_ms < 600000);
    assert_int_equal(list.records[0].token.bytes[5], SECRET);
    assert_string_equal(list.records[1].name, "old");
    assert_int_equal(list.records[1].generation.bytes[0], 2);
    second = list.epoch;
    assert_true(first != 0 && second != 0 && first != second);
    heft_record_list_free(&list);
    assert_int_equal(renew(directory, "long", 1, NULL), 0);
    assert_int_equal(renew(directory, "old", 1, NULL), HEFT_ERR_STALE);
    heft_directory_close(directory);
    assert_int_equal(heftd_signal(process, SIGTERM), 0);
}

/* What a replica does: renew, and publish when that is asked for. */
static void keep_alive(struct heft_directory *directory, const char *name, uint64_t *epoch)
{
    uint64_t now = *epoch;
    int result = renew(directory, name, 1, &now);

    if (result == HEFT_ERR_NOT_FOUND || (!result && now != *epoch))
        assert_int_equal(publish(directory, name, 1, 600000, epoch), 0);
    else
        assert_int_equal(result, 0);
}

static void a_restart_with_an_empty_store_has_every_replica_back_after_one_renewal(void **state)
{
    static const char *const memory[] = {"--store", "memory:", NULL};
    static const char *const names[] = {"a", "b", "c"};
    struct heftd_process *process = *state;
    struct heft_directory *directories[3];
    uint64_t epochs[3] = {0}, before;
    size_t index;

    heftd_start(process, memory);
    for (index = 0; index < 3; index++) {
        directories[index] = connect_to(process, 30000);
        assert_int_equal(publish(directories[index], names[index], 1, 600000, &epochs[index]), 0);
    }
    before = epochs[0];
    assert_int_equal(heftd_signal(process, SIGKILL), 128 + SIGKILL);
    assert_int_equal(renew(directories[0], "a", 1, NULL), HEFT_ERR_UNAVAILABLE);
    heftd_start(process, memory);
    for (index = 0; index < 3; index++)
        keep_alive(directories[index], names[index], &epochs[index]);
    assert_int_equal(count_of(directories[0]), 3);
    assert_true(epochs[0] != before && epochs[0] == epochs[2]);
    for (index = 0; index < 3; index++)
        heft_directory_close(directories[index]);
    assert_int_equal(heftd_signal(process, SIGINT), 0);
}

#ifdef __SANITIZE_THREAD__
#define CLIENTS 8 /* the sanitizer makes each of them slow */
#else
#define CLIENTS 64
#endif

struct worker {
    const struct heftd_process *process;
    pthread_t thread;
    uint32_t number;
    int failures;
};

static void *work(void *context)
{
    struct worker *worker = context;
    struct heft_directory *directory = connect_to(worker->process, 60000);
    struct heft_record_list list;
    char name[32];
    int index;

    (void)snprintf(name, sizeof(name), "w%02u", worker->number);
    for (index = 0; index < 5; index++) {
        worker->failures += publish(directory, name, 1, 600000, NULL) != 0;
        worker->failures += renew(directory, name, 1, NULL) != 0;
        if (directory->ops->list(directory, NULL, &list, NULL))
            worker->failures++;
        else
            heft_record_list_free(&list);
    }
    heft_directory_close(directory);
    return NULL;
}

static void sixty_four_clients_at_once(void **state)
{
    struct heftd_process *process = *state;
    struct heft_directory *directory;
    struct worker workers[CLIENTS];
    uint32_t index;
    int failures = 0;

    heftd_start(process, NULL);
    for (index = 0; index < CLIENTS; index++) {
        workers[index] = (struct worker){.process = process, .number = index};
        assert_int_equal(pthread_create(&workers[index].thread, NULL, work, &workers[index]), 0);
    }
    for (index = 0; index < CLIENTS; index++) {
        assert_int_equal(pthread_join(workers[index].thread, NULL), 0);
        failures += workers[index].failures;
    }
    assert_int_equal(failures, 0);
    directory = connect_to(process, 30000);
    assert_int_equal(count_of(directory), CLIENTS);
    heft_directory_close(directory);
    assert_int_equal(heftd_signal(process, SIGTERM), 0);
}

static void a_frozen_daemon_is_a_deadline_and_a_thawed_one_serves(void **state)
{
    struct heftd_process *process = *state;
    struct heft_directory *directory;
    struct heft_record_list list;

    heftd_start(process, NULL);
    directory = connect_to(process, 500);
    while (publish(directory, "a", 1, 600000, NULL)) /* the first may be slow on a busy machine */
        continue;
    (void)heftd_signal(process, SIGSTOP);
    assert_int_equal(directory->ops->list(directory, NULL, &list, NULL), HEFT_ERR_DEADLINE);
    (void)heftd_signal(process, SIGCONT);
    heft_directory_close(directory);
    directory = connect_to(process, 30000);
    assert_int_equal(count_of(directory), 1);
    heft_directory_close(directory);
    assert_int_equal(heftd_signal(process, SIGTERM), 0);
}

static void fill_random(uint8_t *bytes, size_t size, uint64_t *seed)
{
    size_t index;

    for (index = 0; index < size; index++) {
        *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bytes[index] = (uint8_t)(*seed >> 40);
    }
}

static void is_served(struct heftd_process *process)
{
    struct heft_directory *directory = connect_to(process, 60000);
    char text[4096];

    (void)count_of(directory);
    heft_directory_close(directory);
    get(process, "/healthz", text, sizeof(text));
    assert_non_null(strstr(text, "200 OK"));
}

static void garbage_at_both_ports_disturbs_nobody(void **state)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    static const char *const requests[] = {
        "\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "GET\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nx",
        "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        "GET /%00/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n"};
    struct heftd_process *process = *state;
    uint8_t bytes[20000];
    uint64_t seed = 7;
    size_t index;
    int fd;

    heftd_start(process, NULL);
    for (index = 0; index < 100; index++) {
        fill_random(bytes, sizeof(bytes), &seed);
        if (index % 4 == 1) /* valid to the preface, then noise; or a frame that claims 16 MiB */
            memcpy(bytes, preface, sizeof(preface) - 1);
        if (index % 4 == 2) {
            memcpy(bytes, preface, sizeof(preface) - 1);
            memcpy(bytes + sizeof(preface) - 1, "\xff\xff\xff\x00\x00\x00\x00\x00\x01", 9);
        }
        fd = heftd_connect(index % 2 ? process->grpc_port : process->http_port);
        (void)send(fd, bytes, 1 + index * 199, MSG_NOSIGNAL);
        (void)close(fd);
    }
    for (index = 0; index < sizeof(requests) / sizeof(requests[0]); index++) {
        fd = heftd_connect(process->http_port);
        (void)send(fd, requests[index], strlen(requests[index]), MSG_NOSIGNAL);
        (void)close(fd);
    }
    memset(bytes, 'a', sizeof(bytes)); /* a line longer than any request may be */
    memcpy(bytes, "GET /", 5);
    fd = heftd_connect(process->http_port);
    (void)send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL);
    (void)recv(fd, bytes, sizeof(bytes), 0);
    (void)close(fd);
    is_served(process);
    assert_int_equal(heftd_signal(process, SIGTERM), 0);
}

static void a_thousand_idle_connections_keep_nobody_out(void **state)
{
    enum { IDLE = 500 };
    struct heftd_process *process = *state;
    static int fds[2 * IDLE];
    struct rlimit files;
    size_t index;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur < 2 * IDLE + 100)
        skip();
    heftd_start(process, NULL);
    for (index = 0; index < 2 * IDLE; index++)
        fds[index] = heftd_connect(index % 2 ? process->grpc_port : process->http_port);
    is_served(process);
    for (index = 0; index < 2 * IDLE; index += 4) /* some speak, one byte at a time */
        (void)send(fds[index], "G", 1, MSG_NOSIGNAL);
    is_served(process);
    for (index = 0; index < 2 * IDLE; index++)
        (void)close(fds[index]);
    is_served(process);
    assert_int_equal(heftd_signal(process, SIGTERM), 0);
}

static void silent_connections_are_closed(void **state)
{
    struct heftd_process *process = *state;
    int grpc, http;
    char bytes[4096];

    heftd_start(process, NULL);
    grpc = heftd_connect(process->grpc_port);
    http = heftd_connect(process->http_port);
    while (recv(grpc, bytes, sizeof(bytes), 0) > 0) /* settings, then the end: within 5 s, not never */
        continue;
    assert_true(recv(http, bytes, sizeof(bytes), 0) <= 0);
    (void)close(grpc);
    (void)close(http);
    is_served(process);
    assert_int_equal(heftd_signal(process, SIGTERM), 0);
}

static void the_http_side_tells_all_but_tokens(void **state)
{
    struct heftd_process *process = *state;
    struct heft_directory *directory;
    static char text[65536];
    static const char post[] =
        "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nxx";
    static const char head[] = "HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

    heftd_start(process, NULL);
    directory = connect_to(process, 30000);
    get(process, "/", text, sizeof(text));
    assert_non_null(strstr(text, "Nothing is published"));
    assert_int_equal(publish(directory, "a<script>&\"'", 1, 600000, NULL), 0);
    get(process, "/", text, sizeof(text));
    assert_non_null(strstr(text, "200 OK"));
    assert_non_null(strstr(text, "a&lt;script&gt;&amp;&quot;&#39;"));
    assert_non_null(strstr(text, "org/&lt;b&gt;model"));
    assert_non_null(strstr(text, "7.5 GB"));
    assert_null(strstr(text, "<script"));
    assert_null(strstr(text, "5a5a5a"));
    assert_null(strstr(text, "ZZZZZZ")); /* the token's bytes as text */
    get(process, "/metrics", text, sizeof(text));
    assert_non_null(strstr(text, "\nheftd_records 1\n"));
    assert_non_null(strstr(text, "# TYPE heftd_publishes_total counter\nheftd_publishes_total 1\n"));
    get(process, "/healthz", text, sizeof(text));
    assert_non_null(strstr(text, "\r\n\r\nok\n"));
    get(process, "/readyz", text, sizeof(text));
    assert_non_null(strstr(text, "\r\n\r\nready\n"));
    get(process, "/nothing", text, sizeof(text));
    assert_non_null(strstr(text, "404"));
    (void)heftd_http(process, post, sizeof(post) - 1, text, sizeof(text));
    assert_non_null(strstr(text, "405"));
    (void)heftd_http(process, head, sizeof(head) - 1, text, sizeof(text));
    assert_non_null(strstr(text, "200 OK"));
    assert_null(strstr(text, "<html"));
    heft_directory_close(directory);
    assert_int_equal(heftd_signal(process, SIGTERM), 0);
}

static uint64_t status_kib(pid_t pid, const char *key)
{
    char path[64], line[256];
    unsigned long long value = 0;
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        if (strncmp(line, key, strlen(key)) == 0)
            (void)sscanf(line + strlen(key), "%llu", &value);
    (void)fclose(file);
    return value;
}

static void an_idle_daemon_takes_less_than_30_mib(void **state)
{
    struct heftd_process *process = *state;
    struct heft_directory *directory;
    uint64_t anonymous, files;

    if (IS_SANITIZED)
        skip(); /* a sanitizer's own memory would be measured */
    heftd_start(process, NULL);
    directory = connect_to(process, 30000);
    assert_int_equal(publish(directory, "a", 1, 600000, NULL), 0);
    assert_int_equal(count_of(directory), 1);
    anonymous = status_kib(process->pid, "RssAnon:");
    files = status_kib(process->pid, "RssFile:");
    print_message("heftd idle: %llu KiB anonymous, %llu KiB of files\n", (unsigned long long)anonymous,
                  (unsigned long long)files);
    assert_true(anonymous > 0 && anonymous + files < 30 * 1024);
    heft_directory_close(directory);
    assert_int_equal(heftd_signal(process, SIGTERM), 0);
}

/* A record with an address of that many bytes. */
static int publish_large(struct heft_directory *directory, const char *name, size_t bytes,
                         struct heft_error *error)
{
    struct heft_record record = make_record(name, 1, 60000);
    int result;

    free(record.addresses);
    record.addresses = malloc(bytes + 1);
    assert_non_null(record.addresses);
    memset(record.addresses, 'a', bytes);
    memcpy(record.addresses, "unix:", 5);
    record.addresses[bytes] = 0;
    result = directory->ops->publish(directory, &record, NULL, error);
    heft_record_free(&record);
    return result;
}

static void records_are_no_larger_than_the_options_say_one_by_one_and_together(void **state)
{
    static const char *const limits[] = {
        "--max-record-bytes", "1K", "--max-total-bytes", "1M", "--store", "memory:", NULL};
    struct heftd_process *process = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_directory *directory;
    char name[16];
    int index, rc = 0;

    heftd_start(process, limits);
    directory = connect_to(process, 10000);
    rc = publish_large(directory, "large", 1000, &error);
    if (rc != HEFT_ERR_TOO_LARGE)
        fail_msg("%s", error.text);
    rc = 0;
    assert_non_null(strstr(error.text, "max-record-bytes of 1024"));
    for (index = 0; index < 5000 && !rc; index++) {
        (void)snprintf(name, sizeof(name), "r%d", index);
        rc = publish_large(directory, name, 700, &error);
    }
    assert_int_equal(rc, HEFT_ERR_TOO_MANY);
    assert_non_null(strstr(error.text, "max-total-bytes is 1048576"));
    assert_in_range(index, 1024, 1500);
    assert_int_equal(count_of(directory), index - 1);
    heft_directory_close(directory);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, heftd_set_up, heftd_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_record_lives_as_long_as_it_is_renewed),
        TEST(records_outlive_kill_9_and_their_leases_go_on),
        TEST(a_restart_with_an_empty_store_has_every_replica_back_after_one_renewal),
        TEST(sixty_four_clients_at_once),
        TEST(a_frozen_daemon_is_a_deadline_and_a_thawed_one_serves),
        TEST(garbage_at_both_ports_disturbs_nobody),
        TEST(a_thousand_idle_connections_keep_nobody_out),
        TEST(silent_connections_are_closed),
        TEST(the_http_side_tells_all_but_tokens),
        TEST(records_are_no_larger_than_the_options_say_one_by_one_and_together),
        TEST(an_idle_daemon_takes_less_than_30_mib),
    };

    if (argc < 2)
        return 2;
    heftd_program = argv[1];
    heft_control_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
