/* SPDX-License-Identifier: Apache-2.0 */
/* Directories in a file: what is written, what is refused, and writers that race. */
#include "base/clock.h"
#include "load/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

struct fixture {
    char folder[64], path[80], address[96];
    struct heft_directory *directory;
};

static struct heft_directory *open_at(const char *address)
{
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;
    struct heft_directory *directory;

    options.address = address;
    return heft_directory_open(&options, &directory, NULL) ? NULL : directory;
}

static int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof(*fixture));

    assert_non_null(fixture);
    (void)snprintf(fixture->folder, sizeof(fixture->folder), "%s/heft-static-XXXXXX",
                   access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"); /* no waiting for a busy disk */
    assert_non_null(mkdtemp(fixture->folder));
    (void)snprintf(fixture->path, sizeof(fixture->path), "%s/dir.json", fixture->folder);
    (void)snprintf(fixture->address, sizeof(fixture->address), "file:%s", fixture->path);
    fixture->directory = open_at(fixture->address);
    assert_non_null(fixture->directory);
    *state = fixture;
    return 0;
}

static size_t files_in(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    size_t count = 0;

    while ((entry = readdir(dir)))
        count += entry->d_name[0] != '.';
    (void)closedir(dir);
    return count;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;
    DIR *dir = opendir(fixture->folder);
    struct dirent *entry;

    while ((entry = readdir(dir)))
        if (entry->d_name[0] != '.')
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    (void)closedir(dir);
    assert_int_equal(rmdir(fixture->folder), 0);
    heft_directory_close(fixture->directory);
    free(fixture);
    return 0;
}

static struct heft_record make_record(const char *name, uint8_t generation, uint64_t lease_ms)
{
    static const struct heft_identity identity = {"org/m", "abc", "raw", "", "", NULL, 0};
    struct heft_record record;

    memset(&record, 0, sizeof(record));
    record.name = strdup(name);
    record.addresses = strdup("unix:@x");
    record.generation.bytes[0] = generation;
    record.token.bytes[0] = 0x5a;
    record.total_bytes = 1000;
    record.lease_ms = lease_ms;
    assert_int_equal(heft_record_set_identity(&record, &identity), 0);
    return record;
}

static int publish(struct heft_directory *directory, const char *name, uint8_t generation, uint64_t lease_ms,
                   uint64_t *epoch_out, struct heft_error *error)
{
    struct heft_record record = make_record(name, generation, lease_ms);
    int result = directory->ops->publish(directory, &record, epoch_out, error);

    heft_record_free(&record);
    return result;
}

static size_t count_of(struct heft_directory *directory, const struct heft_record_query *query)
{
    struct heft_record_list list;
    size_t count;

    assert_int_equal(directory->ops->list(directory, query, &list, NULL), 0);
    count = list.count;
    heft_record_list_free(&list);
    return count;
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    (void)fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void publish_renew_list_and_withdraw(void **state)
{
    struct fixture *fixture = *state;
    struct heft_directory *directory = fixture->directory;
    struct heft_generation one = {{1}}, two = {{2}};
    struct heft_record_query query = {.model = "org/m", .name = "a"}, other = {.model = "org/other"};
    struct heft_record_list list;
    struct heft_error error = HEFT_ERROR_INIT;
    struct stat info;
    uint64_t epoch = 0, again = 0;

    assert_int_equal(count_of(directory, NULL), 0); /* no file yet */
    assert_int_equal(directory->ops->renew(directory, "a", &one, 0, NULL, &error), HEFT_ERR_NOT_FOUND);
    assert_int_equal(publish(directory, "a", 1, 60000, &epoch, &error), 0);
    assert_int_equal(publish(directory, "b", 1, 60000, &again, &error), 0);
    assert_true(epoch != 0 && epoch == again);
    assert_int_equal(stat(fixture->path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600); /* it holds tokens */
    assert_int_equal(directory->ops->list(directory, &query, &list, &error), 0);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.records[0].token.bytes[0], 0x5a);
    assert_true(list.records[0].lease_left_ms > 30000 && list.records[0].lease_left_ms <= 60000);
    assert_true(list.records[0].published_wall_ms > 0 && list.epoch == epoch);
    heft_record_list_free(&list);
    assert_int_equal(count_of(directory, NULL), 2);
    assert_int_equal(count_of(directory, &other), 0);
    assert_int_equal(directory->ops->renew(directory, "a", &one, 90000, &again, &error), 0);
    assert_int_equal(publish(directory, "a", 2, 60000, NULL, &error), 0);
    assert_int_equal(directory->ops->renew(directory, "a", &one, 0, NULL, &error), HEFT_ERR_STALE);
    assert_int_equal(directory->ops->withdraw(directory, "a", &one, &error), HEFT_ERR_STALE);
    assert_int_equal(directory->ops->withdraw(directory, "a", &two, &error), 0);
    assert_int_equal(directory->ops->withdraw(directory, "a", &two, &error), HEFT_ERR_NOT_FOUND);
    assert_int_equal(directory->ops->renew(directory, "a", &two, 0, NULL, &error), HEFT_ERR_NOT_FOUND);
    assert_int_equal(count_of(directory, NULL), 1);
    assert_int_equal(files_in(fixture->folder), 2); /* the file and its lock, no temporary file */
}

static void a_lease_that_ended_is_not_listed_and_leaves_the_file_at_the_next_change(void **state)
{
    struct fixture *fixture = *state;
    struct heft_directory *directory = fixture->directory;
    struct heft_generation one = {{1}};
    struct heft_record_query all = {.all = 1};
    struct heft_error error = HEFT_ERROR_INIT;

    write_text(fixture->path,
               "{\"format\":\"heft-directory\",\"version\":1,\"epoch\":\"7\",\"records\":["
               "{\"name\":\"dead\",\"addresses\":\"x\",\"lease_ms\":10,\"lease_end_wall_ms\":1000}]}");
    assert_int_equal(count_of(directory, NULL), 0);
    assert_int_equal(count_of(directory, &all), 1);
    assert_int_equal(directory->ops->renew(directory, "dead", &one, 0, NULL, &error), HEFT_ERR_NOT_FOUND);
    assert_int_equal(publish(directory, "a", 1, 60000, NULL, &error), 0);
    assert_int_equal(count_of(directory, &all), 1);
}

static void a_list_written_by_hand_never_expires_and_keeps_its_comments(void **state)
{
    struct fixture *fixture = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_record_list list;
    char text[4096] = {0};
    FILE *file;

    write_text(fixture->path,
               "{\"format\":\"heft-directory\",\"version\":1,\"comment\":\"rack 7\",\"records\":["
               "{\"name\":\"fixed\",\"addresses\":\"tcp:10.0.0.1:7\",\"location\":\"left\","
               "\"identity\":{\"model\":\"org/m\"}}]}");
    assert_int_equal(publish(fixture->directory, "a", 1, 60000, NULL, &error), 0);
    assert_int_equal(fixture->directory->ops->list(fixture->directory, NULL, &list, &error), 0);
    assert_int_equal(list.count, 2);
    assert_string_equal(list.records[1].name, "fixed");
    assert_true(list.records[1].lease_left_ms == UINT64_MAX);
    heft_record_list_free(&list);
    file = fopen(fixture->path, "r");
    assert_true(fread(text, 1, sizeof(text) - 1, file) > 0);
    (void)fclose(file);
    assert_non_null(strstr(text, "rack 7"));
    assert_non_null(strstr(text, "left"));
}

static void a_broken_file_is_reported_and_never_overwritten(void **state)
{
    static const char *const broken[] = {
        "{\"format\":\"heft-directory\",\"version\":1,\"records\":[",
        "not json at all",
        "[]",
        "{\"format\":\"other\",\"version\":1,\"records\":[]}",
        "{\"format\":\"heft-directory\",\"version\":1,\"records\":{}}",
        "{\"format\":\"heft-directory\",\"version\":1,\"version\":1,\"records\":[]}",
    };
    struct fixture *fixture = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_record_list list;
    size_t index;
    char text[200];
    FILE *file;

    for (index = 0; index < sizeof(broken) / sizeof(broken[0]); index++) {
        write_text(fixture->path, broken[index]);
        assert_int_equal(fixture->directory->ops->list(fixture->directory, NULL, &list, &error),
                         HEFT_ERR_MANIFEST);
        assert_int_equal(publish(fixture->directory, "a", 1, 60000, NULL, &error), HEFT_ERR_MANIFEST);
        assert_non_null(strstr(error.text, fixture->path));
        file = fopen(fixture->path, "r");
        memset(text, 0, sizeof(text));
        (void)fread(text, 1, sizeof(text) - 1, file);
        (void)fclose(file);
        assert_string_equal(text, broken[index]);
    }
    write_text(fixture->path, "{\"format\":\"heft-directory\",\"version\":2,\"records\":[]}");
    assert_int_equal(publish(fixture->directory, "a", 1, 60000, NULL, &error), HEFT_ERR_INCOMPATIBLE);
    write_text(fixture->path, ""); /* empty: nothing to lose */
    assert_int_equal(publish(fixture->directory, "a", 1, 60000, NULL, &error), 0);
}

static void places_that_can_not_hold_a_directory_are_refused(void **state)
{
    struct fixture *fixture = *state;
    struct heft_directory *directory;
    struct heft_record_list list;
    struct heft_error error = HEFT_ERROR_INIT;
    char address[128];

    assert_null(open_at("file:/nonexistent-folder/dir.json"));
    assert_null(open_at("file:"));
    (void)snprintf(address, sizeof(address), "file:%s",
                   fixture->folder); /* a folder where the file should be */
    directory = open_at(address);
    assert_non_null(directory);
    assert_int_equal(directory->ops->list(directory, NULL, &list, &error), HEFT_ERR_INVALID);
    assert_int_equal(publish(directory, "a", 1, 60000, NULL, &error), HEFT_ERR_INVALID);
    heft_directory_close(directory);
    (void)snprintf(address, sizeof(address), "%s/fifo", fixture->folder);
    assert_int_equal(mkfifo(address, 0600), 0);
    (void)snprintf(address, sizeof(address), "file:%s/fifo", fixture->folder);
    directory = open_at(address);
    assert_non_null(directory);
    assert_int_equal(directory->ops->list(directory, NULL, &list, &error), HEFT_ERR_INVALID);
    heft_directory_close(directory);
    assert_int_equal(publish(fixture->directory, "a\nb", 1, 60000, NULL, &error), HEFT_ERR_INVALID);
    assert_int_equal(publish(fixture->directory, "", 1, 60000, NULL, &error), HEFT_ERR_INVALID);
    assert_int_equal(publish(fixture->directory, "a", 1, 0, NULL, &error), HEFT_ERR_INVALID);
}

#define WRITERS 4
#define CHANGES 25

/*
 * One process: publishes names of its own one by one, then withdraws every second one. Without the lock (or
 * when waiting for it took too long) a record may be missing for a moment, while another writer puts it back.
 */
static int write_many(const char *address, int number)
{
    struct heft_directory *directory = open_at(address);
    struct heft_generation generation = {{(uint8_t)number}};
    struct heft_error error = HEFT_ERROR_INIT;
    struct timespec pause = {0, 1000000};
    uint64_t until_ns = heft_now_ns() + 60 * HEFT_NS_PER_S;
    char name[32];
    int index, result = directory ? 0 : HEFT_ERR_INTERNAL;

    for (index = 0; !result && index < CHANGES; index++) {
        (void)snprintf(name, sizeof(name), "w%d-%02d", number, index);
        result = publish(directory, name, (uint8_t)number, 600000, NULL, &error);
        if (!result)
            result = directory->ops->renew(directory, name, &generation, 0, NULL, &error);
        if (result == HEFT_ERR_NOT_FOUND)
            result = 0;
        if (result || index % 2 == 0)
            continue;
        while ((result = directory->ops->withdraw(directory, name, &generation, &error)) ==
                   HEFT_ERR_NOT_FOUND &&
               heft_now_ns() < until_ns)
            (void)nanosleep(&pause, NULL);
    }
    if (result)
        (void)fprintf(stderr, "%s: %s\n", name, error.text);
    heft_directory_close(directory);
    return result ? 1 : 0;
}

static void race(struct fixture *fixture, int break_lock)
{
    char lock[100];
    pid_t pids[WRITERS];
    int index, status, running = WRITERS, failures = 0;

    (void)snprintf(lock, sizeof(lock), "%s.lock", fixture->path);
    for (index = 0; index < WRITERS; index++) {
        pids[index] = fork();
        if (pids[index] == 0)
            _exit(write_many(fixture->address, index + 1));
    }
    while (running > 0) {
        pid_t ended = waitpid(-1, &status, break_lock ? WNOHANG : 0);

        if (ended > 0) {
            running--;
            failures += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
        }
        if (break_lock)
            (void)unlink(lock); /* each writer soon holds a lock file of its own, which locks nothing */
    }
    assert_int_equal(failures, 0);
    assert_int_equal(count_of(fixture->directory, NULL), WRITERS * ((CHANGES + 1) / 2));
    assert_true(files_in(fixture->folder) <= 2);
}

static void writers_that_race_lose_no_change(void **state)
{
    race(*state, 0);
}

static void writers_that_race_without_a_working_lock_lose_no_change(void **state)
{
    race(*state, 1);
}

struct reader {
    struct fixture *fixture;
    int stop, failures, lists;
};

static void *read_on(void *context)
{
    struct reader *reader = context;
    struct heft_record_list list;

    while (!__atomic_load_n(&reader->stop, __ATOMIC_SEQ_CST)) {
        if (reader->fixture->directory->ops->list(reader->fixture->directory, NULL, &list, NULL)) {
            reader->failures++;
        } else {
            (void)__atomic_fetch_add(&reader->lists, 1, __ATOMIC_SEQ_CST);
            heft_record_list_free(&list);
        }
    }
    return NULL;
}

static void readers_never_see_half_a_file(void **state)
{
    struct reader reader = {.fixture = *state};
    pthread_t thread;
    int index;

    assert_int_equal(pthread_create(&thread, NULL, read_on, &reader), 0);
    for (index = 0; index < 50 || __atomic_load_n(&reader.lists, __ATOMIC_SEQ_CST) < 20; index++)
        assert_int_equal(publish(reader.fixture->directory, "a", 1, 60000, NULL, NULL), 0);
    __atomic_store_n(&reader.stop, 1, __ATOMIC_SEQ_CST);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(reader.failures, 0);
}

static void an_address_of_a_daemon_needs_the_control_library(void **state)
{
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;
    struct heft_directory *directory;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    options.address = "127.0.0.1:8001";
    assert_int_equal(heft_directory_open(&options, &directory, &error), HEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "libheft-control"));
    options.address = NULL;
    assert_int_equal(heft_directory_open(&options, &directory, &error), HEFT_ERR_INVALID);
    heft_directory_close(NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(publish_renew_list_and_withdraw),
        TEST(a_lease_that_ended_is_not_listed_and_leaves_the_file_at_the_next_change),
        TEST(a_list_written_by_hand_never_expires_and_keeps_its_comments),
        TEST(a_broken_file_is_reported_and_never_overwritten),
        TEST(places_that_can_not_hold_a_directory_are_refused),
        TEST(writers_that_race_lose_no_change),
        TEST(writers_that_race_without_a_working_lock_lose_no_change),
        TEST(readers_never_see_half_a_file),
        cmocka_unit_test(an_address_of_a_daemon_needs_the_control_library),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
