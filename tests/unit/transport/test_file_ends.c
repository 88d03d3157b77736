/* SPDX-License-Identifier: Apache-2.0 */
/* The file transport when things end badly: short files, full disks, cancels, few descriptors, no privileges.
 */
#include "../../effort.h"
#include "test_file_util.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint32_t read_modes[] = {
    HEFT_FILE_AUTO, HEFT_FILE_ALL_COLD, HEFT_FILE_ALL_COLD | HEFT_FILE_NO_URING,
    HEFT_FILE_ALL_COLD | HEFT_FILE_NO_DIRECT, HEFT_FILE_ALL_COLD | HEFT_FILE_NO_GAPS};
#define READ_MODES (sizeof(read_modes) / sizeof(read_modes[0]))

static struct heft_move plain(uint64_t local, uint64_t remote, uint64_t bytes)
{
    struct heft_move move = {
        .local_offset_bytes = local, .remote_offset_bytes = remote, .length_bytes = bytes, .count = 1};

    return move;
}

static void a_file_that_shrank_is_truncated_and_named(void **state)
{
    static const uint64_t ends[] = {5 * MIB + 123, 8 * MIB - 1, 8 * MIB - 4096, 1, 0};
    uint8_t *arena = malloc(8 * MIB), *model = malloc(8 * MIB);
    struct heft_transport_region file, host;
    struct rig rig;
    size_t mode, end;

    (void)state;
    file_fill(model, 0, 8 * MIB);
    for (mode = 0; mode < READ_MODES; mode++)
        for (end = 0; end < sizeof(ends) / sizeof(ends[0]); end++) {
            int fd = file_make(NULL, 8 * MIB);
            struct trial whole, rest;

            rig_open(&rig, read_modes[mode], 0);
            assert_int_equal(rig_add_file(&rig, fd, 8 * MIB, &file, NULL), 0);
            rig_host_region(arena, 8 * MIB, &host);
            assert_int_equal(ftruncate(fd, (off_t)ends[end]), 0);
            trial_init(&whole, HEFT_OP_READ);
            trial_add(&whole, &host, &file, plain(0, 0, 8 * MIB));
            assert_int_equal(trial_post(&rig, &whole), 0);
            assert_int_equal(trial_wait(&whole), HEFT_ERR_TRUNCATED);
            assert_non_null(strstr(whole.error.text, "part-1.bin"));
            assert_true(whole.op.done_bytes <= ends[end]);
            assert_int_equal(whole.op.failed_move, 0);
            trial_init(&rest, HEFT_OP_READ);
            memset(arena, 0, 8 * MIB);
            if (ends[end])
                trial_add(&rest, &host, &file, plain(0, 0, ends[end]));
            trial_must(&rig, &rest);
            assert_memory_equal(arena, model, ends[end]);
            rig_remove(&rig, &file);
            rig_close(&rig);
            (void)close(fd);
        }
    free(arena);
    free(model);
}

/* The same of reads around gaps, which are asked for one by one and counted together. */
static void rows_past_the_end_are_truncated(void **state)
{
    static const uint64_t ends[] = {8 * MIB - 6 * 1024, 8 * MIB - 7 * 1024 - 1, 3 * MIB, 0};
    struct heft_move rows = {
        .length_bytes = 1024, .count = 1024, .local_stride_bytes = 1024, .remote_stride_bytes = 8192};
    uint8_t *arena = calloc(1, MIB), *model = malloc(MIB);
    struct heft_transport_region file, host;
    struct rig rig;
    size_t end, row;

    (void)state;
    for (row = 0; row < 1024; row++)
        file_fill(model + row * 1024, row * 8192, 1024);
    for (end = 0; end < sizeof(ends) / sizeof(ends[0]); end++) {
        int fd = file_make(NULL, 8 * MIB);
        struct trial trial;

        rig_open(&rig, HEFT_FILE_ALL_COLD | HEFT_FILE_NO_GAPS, 0);
        assert_int_equal(rig_add_file(&rig, fd, 8 * MIB, &file, NULL), 0);
        rig_host_region(arena, MIB, &host);
        assert_int_equal(ftruncate(fd, (off_t)ends[end]), 0);
        trial_init(&trial, HEFT_OP_READ);
        trial_add(&trial, &host, &file, rows);
        assert_int_equal(trial_post(&rig, &trial), 0);
        if (end == 0) {
            assert_int_equal(trial_wait(&trial), 0);
            assert_memory_equal(arena, model, MIB);
        } else {
            assert_int_equal(trial_wait(&trial), HEFT_ERR_TRUNCATED);
            assert_non_null(strstr(trial.error.text, "part-1.bin"));
        }
        rig_remove(&rig, &file);
        rig_close(&rig);
        (void)close(fd);
    }
    free(arena);
    free(model);
}

#define STORM EFFORT(200, 60)
#define STORM_BYTES ((uint64_t)300000)

/* 300 rows next to each other in memory, and in the file too but where gaps are gone around. */
static struct heft_move storm_rows(int index, uint64_t remote, uint32_t mode)
{
    struct heft_move move = {.local_offset_bytes = (uint64_t)index * STORM_BYTES,
                             .remote_offset_bytes = remote,
                             .length_bytes = STORM_BYTES / 300,
                             .count = 300,
                             .local_stride_bytes = STORM_BYTES / 300,
                             .remote_stride_bytes = STORM_BYTES / 300};

    if (mode & HEFT_FILE_NO_GAPS)
        move.remote_stride_bytes = 3000;
    return move;
}

/* After done the memory is the caller's, canceled or not: nothing may write to it any more. */
static PLAIN_LOOP void canceled_operations_end_once_and_leave_memory_alone(void **state)
{
    int fd = file_make(NULL, 24 * MIB);
    struct trial *trials = calloc(STORM, sizeof(*trials));
    uint8_t *arena = malloc(STORM * STORM_BYTES), *model = malloc(STORM_BYTES);
    uint64_t random = 4711, at;
    struct heft_transport_region file, host;
    struct rig rig;
    size_t mode;
    int index, canceled = 0;

    (void)state;
    for (mode = 0; mode < READ_MODES; mode++) {
        rig_open(&rig, read_modes[mode], 4 * MIB);
        assert_int_equal(rig_add_file(&rig, fd, 24 * MIB, &file, NULL), 0);
        rig_host_region(arena, STORM * STORM_BYTES, &host);
        file_make_cold(fd);
        for (index = 0; index < STORM; index++) {
            trial_init(&trials[index], HEFT_OP_READ);
            trial_add(&trials[index], &host, &file,
                      storm_rows(index, random_below(&random, 23 * MIB), read_modes[mode]));
            assert_int_equal(trial_post(&rig, &trials[index]), 0);
            if (random_below(&random, 2)) {
                struct trial *victim = &trials[random_below(&random, (uint64_t)index + 1)];

                __atomic_store_n(&victim->op.cancel_wanted, 1, __ATOMIC_RELAXED);
                heft_transport_file.cancel(rig.endpoint, &victim->op);
            }
        }
        for (index = 0; index < STORM; index++) {
            int status = trial_wait(&trials[index]);
            uint8_t *place = arena + (uint64_t)index * STORM_BYTES;

            assert_true(status == 0 || status == HEFT_ERR_CANCELED);
            canceled += status != 0;
            if (status == 0) {
                const struct heft_move *move = &trials[index].moves[0];
                uint64_t row;

                for (row = 0; row < move->count; row++)
                    file_fill(model + row * move->length_bytes,
                              move->remote_offset_bytes + row * move->remote_stride_bytes,
                              move->length_bytes);
                assert_memory_equal(place, model, STORM_BYTES);
            }
            memset(place, 0xEE, STORM_BYTES);
        }
        heft_transport_file.disconnect(rig.endpoint);
        rig.endpoint = NULL;
        for (at = 0; at < STORM * STORM_BYTES; at++)
            if (arena[at] != 0xEE)
                fail_msg("byte %llu was written after its operation ended", (unsigned long long)at);
        for (index = 0; index < STORM; index++)
            assert_int_equal(trials[index].ends, 1);
        rig_remove(&rig, &file);
        rig_close(&rig);
    }
    assert_true(canceled > 0);
    (void)close(fd);
    free(trials);
    free(arena);
    free(model);
}

static void disconnect_and_fail_end_everything_before_they_return(void **state)
{
    int fd = file_make(NULL, 16 * MIB), how, index;
    uint8_t *arena = malloc(16 * MIB);
    struct heft_transport_region file, host;
    struct heft_error why = {HEFT_ERR_STALLED, "the agent gave up"};
    static struct trial trials[16];
    struct rig rig;

    (void)state;
    for (how = 0; how < 2; how++) {
        struct trial late;

        rig_open(&rig, HEFT_FILE_ALL_COLD, 4 * MIB);
        assert_int_equal(rig_add_file(&rig, fd, 16 * MIB, &file, NULL), 0);
        rig_host_region(arena, 16 * MIB, &host);
        file_make_cold(fd);
        for (index = 0; index < 16; index++) {
            trial_init(&trials[index], HEFT_OP_READ);
            trial_add(&trials[index], &host, &file,
                      plain((uint64_t)index * MIB, (uint64_t)index * MIB + 1, MIB - 1));
            assert_int_equal(trial_post(&rig, &trials[index]), 0);
        }
        if (how) {
            (heft_transport_file.fail)(rig.endpoint, HEFT_ERR_STALLED, &why);
            trial_init(&late, HEFT_OP_READ);
            trial_add(&late, &host, &file, plain(0, 0, 1));
            assert_int_equal(trial_post(&rig, &late), HEFT_ERR_STALLED);
            assert_int_equal(late.ends, 0);
        }
        heft_transport_file.disconnect(rig.endpoint);
        rig.endpoint = NULL;
        for (index = 0; index < 16; index++) {
            assert_int_equal(trials[index].ends, 1);
            if (trials[index].status)
                assert_int_equal(trials[index].status, how ? HEFT_ERR_STALLED : HEFT_ERR_CANCELED);
            if (how && trials[index].status)
                assert_string_equal(trials[index].error.text, "the agent gave up");
        }
        rig_remove(&rig, &file);
        rig_close(&rig);
    }
    (void)close(fd);
    free(arena);
}

static void what_has_no_bytes_is_done_at_once(void **state)
{
    int fd = file_make(NULL, 100);
    struct heft_transport_region file, host;
    struct trial empty, zero;
    struct rig rig;
    uint8_t byte = 7;

    (void)state;
    rig_open(&rig, HEFT_FILE_AUTO, 0);
    assert_int_equal(rig_add_file(&rig, fd, 100, &file, NULL), 0);
    rig_host_region(&byte, 1, &host);
    trial_init(&empty, HEFT_OP_READ);
    trial_must(&rig, &empty);
    trial_init(&zero, HEFT_OP_READ);
    trial_add(&zero, &host, &file, plain(1, 100, 0));
    trial_add(&zero, &host, &file, (struct heft_move){.length_bytes = 5, .count = 0});
    trial_must(&rig, &zero);
    assert_int_equal(byte, 7);
    trial_init(&zero, HEFT_OP_READ);
    trial_add(&zero, &host, &file, plain(0, 100, 0));
    trial_add(&zero, &host, &file, plain(0, 99, 1));
    trial_must(&rig, &zero);
    assert_int_equal(byte, file_byte(99));
    rig_remove(&rig, &file);
    rig_close(&rig);
    (void)close(fd);
}

static void writes_put_every_byte_and_no_other(void **state)
{
    uint64_t bytes = 9 * MIB + 11, random = 99, at, to = 5;
    int fd = file_make(NULL, bytes);
    uint8_t *source = malloc(bytes), *model = malloc(bytes), *found = malloc(bytes);
    struct heft_transport_region file, host;
    static struct trial trials[8];
    struct rig rig;
    int index;

    (void)state;
    rig_open(&rig, HEFT_FILE_AUTO, 0);
    assert_int_equal(rig_add_file(&rig, fd, bytes, &file, NULL), 0);
    rig_host_region(source, bytes, &host);
    file_fill(model, 0, bytes);
    for (at = 0; at < bytes; at++)
        source[at] = (uint8_t)(at * 13 + 1);
    for (index = 0; index < 8; index++) {
        trial_init(&trials[index], HEFT_OP_WRITE);
        while (to < (uint64_t)(index + 1) * MIB) {
            struct heft_move move = {.local_offset_bytes = random_below(&random, MIB),
                                     .remote_offset_bytes = to,
                                     .length_bytes = 1 + random_below(&random, 60000),
                                     .count = 1 + random_below(&random, 5)};
            uint64_t element;

            move.local_stride_bytes = random_below(&random, 70000);
            move.remote_stride_bytes =
                move.length_bytes + random_below(&random, 2) * random_below(&random, 5000);
            for (element = 0; element < move.count; element++)
                memcpy(model + to + element * move.remote_stride_bytes,
                       source + move.local_offset_bytes + element * move.local_stride_bytes,
                       move.length_bytes);
            to += move.count * move.remote_stride_bytes + random_below(&random, 2) * 100;
            trial_add(&trials[index], &host, &file, move);
        }
        assert_int_equal(trial_post(&rig, &trials[index]), 0);
    }
    for (index = 0; index < 8; index++) {
        assert_int_equal(trial_wait(&trials[index]), 0);
        assert_int_equal(trials[index].op.done_bytes, trials[index].op.total_bytes);
    }
    assert_int_equal(pread(fd, found, bytes, 0), bytes);
    assert_memory_equal(found, model, bytes);
    rig_remove(&rig, &file);
    rig_close(&rig);
    (void)close(fd);
    free(source);
    free(model);
    free(found);
}

static void a_full_disk_is_no_space(void **state)
{
    int context = fsopen("tmpfs", FSOPEN_CLOEXEC), mount = -1, fd;
    struct heft_transport_region file, host;
    struct trial trial;
    uint8_t *source;
    struct rig rig;

    (void)state;
    if (context >= 0 && fsconfig(context, FSCONFIG_SET_STRING, "size", "1M", 0) == 0 &&
        fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        mount = fsmount(context, FSMOUNT_CLOEXEC, 0);
    if (context >= 0)
        (void)close(context);
    if (mount < 0) {
        print_message("skipped: this user may not make a tmpfs mount\n");
        skip();
    }
    fd = openat(mount, "full", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    source = calloc(1, 4 * MIB);
    rig_open(&rig, HEFT_FILE_AUTO, 0);
    assert_int_equal(rig_add_file(&rig, fd, 4 * MIB, &file, NULL), 0);
    rig_host_region(source, 4 * MIB, &host);
    trial_init(&trial, HEFT_OP_WRITE);
    trial_add(&trial, &host, &file, plain(0, 0, 4 * MIB));
    assert_int_equal(trial_post(&rig, &trial), 0);
    assert_int_equal(trial_wait(&trial), HEFT_ERR_NO_SPACE);
    assert_non_null(strstr(trial.error.text, "part-1.bin"));
    rig_remove(&rig, &file);
    rig_close(&rig);
    (void)close(fd);
    (void)close(mount);
    free(source);
}

static int open_again(int fd, int flags)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, flags | O_CLOEXEC);
}

static void descriptors_of_the_wrong_kind_are_refused(void **state)
{
    static const struct {
        int flags;
        enum heft_op kind;
        int expected;
    } cases[] = {{O_RDONLY, HEFT_OP_WRITE, HEFT_ERR_PERMISSION},
                 {O_WRONLY, HEFT_OP_READ, HEFT_ERR_PERMISSION},
                 {O_RDWR | O_APPEND, HEFT_OP_WRITE, HEFT_ERR_INVALID}};
    int fd = file_make(NULL, 100), pipes[2], folder = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct heft_transport_region file, host;
    struct heft_error error = HEFT_ERROR_INIT;
    uint8_t bytes[10] = {0};
    struct rig rig;
    size_t index;

    (void)state;
    rig_open(&rig, HEFT_FILE_AUTO, 0);
    rig_host_region(bytes, 10, &host);
    for (index = 0; index < 3; index++) {
        int other = open_again(fd, cases[index].flags);
        struct trial trial;

        assert_true(other >= 0);
        assert_int_equal(rig_add_file(&rig, other, 100, &file, NULL), 0);
        trial_init(&trial, cases[index].kind);
        trial_add(&trial, &host, &file, plain(0, 0, 10));
        assert_int_equal(trial_post(&rig, &trial), cases[index].expected);
        assert_non_null(strstr(trial.error.text, "part-1.bin"));
        assert_int_equal(trial.ends, 0);
        rig_remove(&rig, &file);
        (void)close(other);
    }
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(rig_add_file(&rig, pipes[0], 100, &file, &error), HEFT_ERR_NOT_A_FILE);
    assert_non_null(strstr(error.text, "part-1.bin"));
    assert_int_equal(rig_add_file(&rig, folder, 100, &file, &error), HEFT_ERR_NOT_A_FILE);
    rig_close(&rig);
    (void)close(pipes[0]);
    (void)close(pipes[1]);
    (void)close(folder);
    (void)close(fd);
}

/* ---- in a child, under limits ---- */

static int read_whole(struct rig *rig, struct heft_transport_region *file, uint8_t *arena, uint64_t bytes)
{
    struct heft_transport_region host;
    struct trial trial;
    uint64_t at;

    memset(arena, 0, bytes);
    rig_host_region(arena, bytes, &host);
    trial_init(&trial, HEFT_OP_READ);
    trial_add(&trial, &host, file, plain(0, 0, bytes));
    if (trial_post(rig, &trial) || trial_wait(&trial))
        return 1;
    for (at = 0; at < bytes; at++)
        if (arena[at] != file_byte(at))
            return 2;
    return 0;
}

static void expect_child(int (*body)(void))
{
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0)
        _exit(body());
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        fail_msg("the child ended with status 0x%x", status);
}

static int with_few_descriptors(void)
{
    static struct heft_transport_region files[40];
    struct rlimit limit = {64, 64};
    uint8_t *arena = malloc(3 * MIB);
    int fds[40], index, rc = 0;
    struct rig rig;

    if (setrlimit(RLIMIT_NOFILE, &limit))
        return 10;
    rig_open(&rig, HEFT_FILE_ALL_COLD, 0);
    for (index = 0; index < 40 && !rc; index++) {
        fds[index] = file_make(NULL, 2 * MIB + 5);
        rc = rig_add_file(&rig, fds[index], 2 * MIB + 5, &files[index], NULL) ? 11 : 0;
    }
    for (index = 0; index < 40 && !rc; index++)
        rc = read_whole(&rig, &files[index], arena, 2 * MIB + 5);
    return rc;
}

/* No privilege, no locked memory, files of another user: no registered buffers, no answer from the cache. */
static int without_privileges(void)
{
    struct rlimit limit = {0, 0};
    uint8_t *arena = malloc(12 * MIB);
    struct heft_transport_region file;
    struct rig rig;
    int fd = file_make(NULL, 12 * MIB), readable, round, rc = 0;

    if (setrlimit(RLIMIT_MEMLOCK, &limit) || fchmod(fd, 0644))
        return 20;
    readable = open_again(fd, O_RDONLY);
    if (getuid() == 0 && setresuid(65534, 65534, 65534))
        return 21;
    for (round = 0; round < 4 && !rc; round++) {
        if (round % 2)
            file_make_cold(fd);
        rig_open(&rig, round < 2 ? HEFT_FILE_AUTO : HEFT_FILE_ALL_COLD, 0);
        if (rig_add_file(&rig, readable, 12 * MIB, &file, NULL))
            return 22;
        rc = read_whole(&rig, &file, arena, 12 * MIB - 1);
        rig_remove(&rig, &file);
        rig_close(&rig);
    }
    return rc;
}

static void with_64_descriptors_40_files_are_read(void **state)
{
    (void)state;
    expect_child(with_few_descriptors);
}

static void without_privileges_the_bytes_are_the_same(void **state)
{
    (void)state;
    expect_child(without_privileges);
}

/* ---- routes ---- */

static void the_score_says_what_was_found(void **state)
{
    struct heft_route_query query = {.local = HEFT_SPACE_HOST, .remote = HEFT_SPACE_FILE, .op = HEFT_OP_READ};
    struct heft_transport_peer peer = {.name = "p"};
    struct heft_route_score score;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_endpoint *endpoint;
    struct rig rig;

    (void)state;
    rig_open(&rig, HEFT_FILE_NO_URING, 0);
    heft_transport_file.score(rig.transport, rig.endpoint, &query, &score);
    assert_true(score.score > 0);
    assert_non_null(strstr(score.reason, "preadv"));
    query.remote = HEFT_SPACE_HOST;
    heft_transport_file.score(rig.transport, rig.endpoint, &query, &score);
    assert_int_equal(score.score, 0);
    assert_true(score.reason[0] != 0);
    query.remote = HEFT_SPACE_FILE;
    query.peer = &peer;
    heft_transport_file.score(rig.transport, rig.endpoint, &query, &score);
    assert_int_equal(score.score, 0);
    assert_int_equal(heft_transport_file.connect(rig.transport, &peer, &endpoint, &error),
                     HEFT_ERR_UNSUPPORTED);
    rig_close(&rig);
    rig_open(&rig, HEFT_FILE_NO_DIRECT, 0);
    query.peer = NULL;
    heft_transport_file.score(rig.transport, rig.endpoint, &query, &score);
    assert_non_null(strstr(score.reason, "buffered"));
    rig_close(&rig);
}

static void too_little_staging_is_refused(void **state)
{
    struct heft_transport_host host = {.max_host_bytes = MIB};
    struct heft_transport *transport = NULL;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    assert_int_equal(heft_pool_create(1, &host.pool, &error), 0);
    assert_int_equal(heft_transport_file.open(&host, &transport, &error), HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "max_host_bytes"));
    heft_pool_destroy(host.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_that_shrank_is_truncated_and_named),
        cmocka_unit_test(rows_past_the_end_are_truncated),
        cmocka_unit_test(canceled_operations_end_once_and_leave_memory_alone),
        cmocka_unit_test(disconnect_and_fail_end_everything_before_they_return),
        cmocka_unit_test(what_has_no_bytes_is_done_at_once),
        cmocka_unit_test(writes_put_every_byte_and_no_other),
        cmocka_unit_test(a_full_disk_is_no_space),
        cmocka_unit_test(descriptors_of_the_wrong_kind_are_refused),
        cmocka_unit_test(with_64_descriptors_40_files_are_read),
        cmocka_unit_test(without_privileges_the_bytes_are_the_same),
        cmocka_unit_test(the_score_says_what_was_found),
        cmocka_unit_test(too_little_staging_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
