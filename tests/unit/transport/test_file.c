/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file transport against reference bytes: every way to read, by random lists of moves into memory whose
 * other bytes must stay as they were.
 */
#include "../../effort.h"
#include "test_file_util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define FILE_BYTES (20 * MIB + 1234)
#define ARENA_BYTES (12 * MIB)
#define OPS 6

struct way {
    const char *name;
    uint32_t mode;
    int cold;
    uint64_t max_host_bytes;
    const char *folder;
};

static const struct way ways[] = {
    {"warm", HEFT_FILE_AUTO, 0, 64 * MIB, NULL},
    {"cold", HEFT_FILE_AUTO, 1, 64 * MIB, NULL},
    {"taken for cold", HEFT_FILE_ALL_COLD, 0, 64 * MIB, NULL},
    {"cold, small staging", HEFT_FILE_ALL_COLD, 1, 4 * MIB, NULL},
    {"cold, 16 MiB", HEFT_FILE_ALL_COLD, 1, 16 * MIB, NULL},
    {"cold, nothing registered", HEFT_FILE_ALL_COLD | HEFT_FILE_NO_REGISTER, 1, 64 * MIB, NULL},
    {"cold by preadv", HEFT_FILE_ALL_COLD | HEFT_FILE_NO_URING, 1, 64 * MIB, NULL},
    {"cold by preadv, small staging", HEFT_FILE_ALL_COLD | HEFT_FILE_NO_URING, 1, 4 * MIB, NULL},
    {"cold, buffered", HEFT_FILE_ALL_COLD | HEFT_FILE_NO_DIRECT, 1, 64 * MIB, NULL},
    {"cold, buffered, by preadv", HEFT_FILE_ALL_COLD | HEFT_FILE_NO_DIRECT | HEFT_FILE_NO_URING, 1, 64 * MIB,
     NULL},
    {"cold, around every gap", HEFT_FILE_ALL_COLD | HEFT_FILE_NO_GAPS, 1, 64 * MIB, NULL},
    {"cold, around every gap, small staging", HEFT_FILE_ALL_COLD | HEFT_FILE_NO_GAPS, 1, 4 * MIB, NULL},
    {"cold, around every gap, by preadv", HEFT_FILE_ALL_COLD | HEFT_FILE_NO_GAPS | HEFT_FILE_NO_URING, 1,
     64 * MIB, NULL},
    {"cold, around every gap, buffered", HEFT_FILE_ALL_COLD | HEFT_FILE_NO_GAPS | HEFT_FILE_NO_DIRECT, 1,
     64 * MIB, NULL},
    {"cold, around every gap, O_DIRECT answered EINVAL",
     HEFT_FILE_ALL_COLD | HEFT_FILE_NO_GAPS | HEFT_FILE_REFUSE_DIRECT, 1, 64 * MIB, NULL},
    {"cold, O_DIRECT answered EINVAL", HEFT_FILE_ALL_COLD | HEFT_FILE_REFUSE_DIRECT, 1, 64 * MIB, NULL},
    {"warm, the cache can't be asked", HEFT_FILE_NO_CACHE_QUERY, 0, 64 * MIB, NULL},
    {"cold, the cache can't be asked", HEFT_FILE_NO_CACHE_QUERY, 1, 64 * MIB, NULL},
    {"tmpfs", HEFT_FILE_AUTO, 0, 64 * MIB, "/dev/shm"},
    {"tmpfs, taken for cold", HEFT_FILE_ALL_COLD, 0, 64 * MIB, "/dev/shm"},
};

static uint64_t pick_length(uint64_t *random)
{
    static const uint64_t limits[] = {2, 100, 5000, 70000, 1200000, 3000000};
    uint64_t length = random_below(random, limits[random_below(random, 6)]);

    return random_below(random, 3) ? length : length & ~UINT64_C(511);
}

/* Destinations of all operations are disjoint; the model says what the arena must hold in the end. */
static void add_move(struct trial *trial, struct heft_transport_region *host,
                     struct heft_transport_region *file, uint8_t *model, uint64_t *random, uint64_t *used)
{
    struct heft_move move = {0};
    uint64_t span, element;

    move.length_bytes = pick_length(random);
    move.count = move.length_bytes > 20000 || random_below(random, 2) ? 1 : random_below(random, 400);
    move.local_stride_bytes = move.length_bytes + random_below(random, 2) * random_below(random, 99);
    move.remote_stride_bytes = move.length_bytes;
    switch (random_below(random, 5)) {
    case 0:
        move.remote_stride_bytes += random_below(random, 9000);
        break;
    case 1:
        move.remote_stride_bytes = random_below(random, move.length_bytes + 1);
        break;
    case 2:
        move.remote_stride_bytes += random_below(random, 90000);
        break;
    default:
        break;
    }
    *used += random_below(random, 600);
    if (random_below(random, 3) == 0)
        *used = (*used + 4095) & ~UINT64_C(4095);
    while (move.count > 1 && move.count * move.remote_stride_bytes > FILE_BYTES / 2)
        move.count /= 2;
    span = move.count ? (move.count - 1) * move.remote_stride_bytes + move.length_bytes : 0;
    if (span > FILE_BYTES || *used + move.count * move.local_stride_bytes + 1 > ARENA_BYTES)
        return;
    move.local_offset_bytes = *used;
    move.remote_offset_bytes = random_below(random, FILE_BYTES - span + 1);
    if (random_below(random, 3) == 0)
        move.remote_offset_bytes &= ~UINT64_C(511);
    if (random_below(random, 8) == 0)
        move.remote_offset_bytes = FILE_BYTES - span; /* to the last byte */
    *used += move.count * move.local_stride_bytes;
    for (element = 0; element < move.count; element++)
        file_fill(model + move.local_offset_bytes + element * move.local_stride_bytes,
                  move.remote_offset_bytes + element * move.remote_stride_bytes, move.length_bytes);
    trial_add(trial, host, file, move);
}

static PLAIN_LOOP void read_random_lists(const struct way *way, uint64_t seed)
{
    uint8_t *arena = aligned_alloc(4096, ARENA_BYTES), *model = malloc(ARENA_BYTES);
    int fd = file_make(way->folder, FILE_BYTES);
    struct heft_transport_region file, host;
    static struct trial trials[OPS];
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t used = 0, at;
    struct rig rig;
    int round, index;

    assert_non_null(arena);
    assert_non_null(model);
    rig_open(&rig, way->mode, way->max_host_bytes);
    assert_int_equal(rig_add_file(&rig, fd, FILE_BYTES, &file, &error), 0);
    rig_host_region(arena, ARENA_BYTES, &host);
    for (round = 0; round < EFFORT(3, 1); round++) {
        if (way->cold)
            file_make_cold(fd);
        for (at = 0; at < ARENA_BYTES; at++)
            arena[at] = model[at] = (uint8_t)(at * 7 + 3);
        used = 0;
        for (index = 0; index < OPS; index++) {
            uint64_t moves = random_below(&seed, 24);

            trial_init(&trials[index], HEFT_OP_READ);
            while (moves-- > 0)
                add_move(&trials[index], &host, &file, model, &seed, &used);
        }
        for (index = 0; index < OPS; index++)
            assert_int_equal(trial_post(&rig, &trials[index]), 0);
        for (index = 0; index < OPS; index++) {
            if (trial_wait(&trials[index]))
                fail_msg("%s: %s", way->name, trials[index].error.text);
            assert_int_equal(trials[index].op.done_bytes, trials[index].op.total_bytes);
        }
        for (at = 0; at < ARENA_BYTES; at++)
            if (arena[at] != model[at])
                fail_msg("%s: round %d, byte %llu is wrong", way->name, round, (unsigned long long)at);
    }
    rig_remove(&rig, &file);
    rig_close(&rig);
    (void)close(fd);
    free(arena);
    free(model);
}

static void random_lists_bring_exactly_their_bytes_every_way(void **state)
{
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(ways) / sizeof(ways[0]); index++)
        read_random_lists(&ways[index], 0x9E3779B97F4A7C15u + index * 977);
}

/* One large read, destination and file congruent or not, so that the in-place path and both edges are used.
 */
static void large_runs_land_at_every_alignment(void **state)
{
    static const uint64_t offsets[] = {0, 1, 511, 512, 4095, 4096, 77777};
    uint64_t bytes = 9 * MIB + 77, room = bytes + 3 * 4096;
    uint8_t *arena = aligned_alloc(4096, 10 * MIB), *model = malloc(room);
    int fd = file_make(NULL, FILE_BYTES), mode;
    struct heft_transport_region file, host;
    struct rig rig;
    size_t to, from;

    (void)state;
    for (mode = 0; mode < 2; mode++) {
        rig_open(&rig, HEFT_FILE_ALL_COLD | (mode ? HEFT_FILE_NO_URING : 0), 0);
        assert_int_equal(rig_add_file(&rig, fd, FILE_BYTES, &file, NULL), 0);
        rig_host_region(arena, room, &host);
        for (to = 0; to < 3; to++)
            for (from = 0; from < sizeof(offsets) / sizeof(offsets[0]); from++) {
                uint64_t place = 512 * to + (to == 2 ? offsets[from] % 512 : 0);
                struct heft_move move = {.local_offset_bytes = place,
                                         .remote_offset_bytes = offsets[from],
                                         .length_bytes = bytes,
                                         .count = 1};
                struct trial trial;

                memset(arena, 0x5a, room);
                memset(model, 0x5a, room);
                file_fill(model + place, offsets[from], bytes);
                trial_init(&trial, HEFT_OP_READ);
                trial_add(&trial, &host, &file, move);
                trial_must(&rig, &trial);
                assert_memory_equal(arena, model, room);
            }
        rig_remove(&rig, &file);
        rig_close(&rig);
    }
    (void)close(fd);
    free(arena);
    free(model);
}

static void offsets_past_4_gib_are_whole(void **state)
{
    uint64_t far = (UINT64_C(5) << 30) + 12345, length = far + 3 * MIB;
    int fd = file_make(NULL, 0), mode;
    uint8_t *bytes = malloc(3 * MIB), *out = malloc(3 * MIB);
    struct heft_transport_region file, host;
    struct rig rig;

    (void)state;
    file_fill(bytes, far, 3 * MIB);
    assert_int_equal(pwrite(fd, bytes, 3 * MIB, (off_t)far), 3 * MIB);
    for (mode = 0; mode < 3; mode++) {
        struct heft_move move = {.remote_offset_bytes = far,
                                 .length_bytes = 1,
                                 .count = 3 * MIB,
                                 .local_stride_bytes = 1,
                                 .remote_stride_bytes = 1};
        struct trial trial;

        memset(out, 0, 3 * MIB);
        rig_open(&rig, mode == 0 ? HEFT_FILE_AUTO : HEFT_FILE_ALL_COLD | (mode == 2 ? HEFT_FILE_NO_URING : 0),
                 0);
        assert_int_equal(rig_add_file(&rig, fd, length, &file, NULL), 0);
        rig_host_region(out, 3 * MIB, &host);
        trial_init(&trial, HEFT_OP_READ);
        trial_add(&trial, &host, &file, move);
        trial_must(&rig, &trial);
        assert_memory_equal(bytes, out, 3 * MIB);
        rig_remove(&rig, &file);
        rig_close(&rig);
    }
    (void)close(fd);
    free(bytes);
    free(out);
}

/* Moves in any order, one operation over two files, thousands of small elements. */
static void two_files_in_one_operation(void **state)
{
    int fds[2] = {file_make(NULL, 2 * MIB), file_make(NULL, 2 * MIB)}, index;
    struct heft_transport_region files[2], host;
    uint8_t *arena = calloc(1, MIB), *model = calloc(1, MIB);
    struct trial trial;
    struct rig rig;

    (void)state;
    rig_open(&rig, HEFT_FILE_ALL_COLD, 0);
    trial_init(&trial, HEFT_OP_READ);
    rig_host_region(arena, MIB, &host);
    for (index = 0; index < 2; index++)
        assert_int_equal(rig_add_file(&rig, fds[index], 2 * MIB, &files[index], NULL), 0);
    for (index = 0; index < 40; index++) {
        uint64_t from = (uint64_t)(39 - index) * 40001, to = (uint64_t)index * 20000;
        struct heft_move move = {.local_offset_bytes = to,
                                 .remote_offset_bytes = from,
                                 .length_bytes = 37,
                                 .count = 500,
                                 .local_stride_bytes = 39,
                                 .remote_stride_bytes = 61};
        uint64_t element;

        for (element = 0; element < 500; element++)
            file_fill(model + to + element * 39, from + element * 61, 37);
        trial_add(&trial, &host, &files[index % 2], move);
    }
    trial_must(&rig, &trial);
    assert_memory_equal(arena, model, MIB);
    for (index = 0; index < 2; index++) {
        rig_remove(&rig, &files[index]);
        (void)close(fds[index]);
    }
    rig_close(&rig);
    free(arena);
    free(model);
}

/* What the disk gives for a column of a matrix, where no gap is worth reading: the blocks that it lies in. */
static void a_column_costs_its_blocks(void **state)
{
    struct heft_move rows = {.remote_offset_bytes = 1000,
                             .length_bytes = 2048,
                             .count = 512,
                             .local_stride_bytes = 2048,
                             .remote_stride_bytes = 16384};
    uint8_t *arena = calloc(1, MIB), *model = malloc(MIB);
    int fd = file_make(NULL, 10 * MIB);
    struct heft_transport_region file, host;
    struct rusage before, after;
    struct trial trial;
    struct rig rig;
    uint64_t row, block, read;

    (void)state;
    for (row = 0; row < rows.count; row++)
        file_fill(model + row * 2048, 1000 + row * 16384, 2048);
    rig_open(&rig, HEFT_FILE_ALL_COLD | HEFT_FILE_NO_GAPS, 0);
    assert_int_equal(rig_add_file(&rig, fd, 10 * MIB, &file, NULL), 0);
    rig_host_region(arena, MIB, &host);
    file_make_cold(fd);
    assert_int_equal(getrusage(RUSAGE_SELF, &before), 0);
    trial_init(&trial, HEFT_OP_READ);
    trial_add(&trial, &host, &file, rows);
    trial_must(&rig, &trial);
    assert_int_equal(getrusage(RUSAGE_SELF, &after), 0);
    assert_memory_equal(arena, model, MIB);
    read = (uint64_t)(after.ru_inblock - before.ru_inblock) * 512;
    block = ((struct heft_file_source *)file.slot[HOST_INDEX])->offset_align;
    if (block == 0 || read == 0) /* no O_DIRECT here, or a file system without a disk */
        print_message("the disk's blocks are not counted here\n");
    else
        assert_in_range(read, MIB, rows.count * (2048 / block + 2) * block);
    rig_remove(&rig, &file);
    rig_close(&rig);
    (void)close(fd);
    free(arena);
    free(model);
}

static int move_now(struct rig *rig, struct trial *trial)
{
    trial->op.done_bytes = 0;
    return heft_transport_file.move(rig->endpoint, &trial->op, &trial->error);
}

/* Small reads in the posting thread: right, or not done at all; never a wait, never another byte. */
static void what_the_cache_holds_is_read_at_once(void **state)
{
    uint8_t *arena = aligned_alloc(4096, ARENA_BYTES), *model = malloc(ARENA_BYTES);
    int fd = file_make(NULL, FILE_BYTES), round, done = 0;
    struct heft_transport_region file, host;
    uint64_t seed = 4711, used, at;
    struct rig rig;

    (void)state;
    rig_open(&rig, HEFT_FILE_AUTO, 0);
    assert_int_equal(rig_add_file(&rig, fd, FILE_BYTES, &file, NULL), 0);
    rig_host_region(arena, ARENA_BYTES, &host);
    for (round = 0; round < EFFORT(200, 40); round++) {
        uint64_t moves = 1 + random_below(&seed, 24);
        struct trial trial;
        int rc;

        for (at = 0; at < ARENA_BYTES; at++)
            arena[at] = model[at] = (uint8_t)(at * 7 + 3);
        trial_init(&trial, HEFT_OP_READ);
        used = 0;
        while (moves-- > 0)
            add_move(&trial, &host, &file, model, &seed, &used);
        rc = move_now(&rig, &trial);
        if (rc) { /* too much for it, or the kernel had better use for the pages: as before */
            assert_int_equal(rc, HEFT_ERR_AGAIN);
            assert_int_equal(trial.op.done_bytes, 0);
            trial_must(&rig, &trial);
        } else {
            assert_true(trial.op.total_bytes <= HEFT_FILE_BRIEF_BYTES);
            assert_int_equal(trial.op.done_bytes, trial.op.total_bytes);
            done++;
        }
        assert_memory_equal(arena, model, ARENA_BYTES);
    }
    assert_true(done > round / 4);
    rig_remove(&rig, &file);
    rig_close(&rig);
    (void)close(fd);
    free(arena);
    free(model);
}

static void what_the_cache_does_not_hold_is_left_to_a_task(void **state)
{
    struct heft_move row = {.length_bytes = 8192, .count = 1, .remote_offset_bytes = FILE_BYTES - 8192};
    uint8_t *arena = aligned_alloc(4096, MIB);
    int fd = file_make(NULL, FILE_BYTES);
    struct heft_transport_region file, host;
    struct trial trial;
    struct rig rig;

    (void)state;
    rig_open(&rig, HEFT_FILE_AUTO, 0);
    assert_int_equal(rig_add_file(&rig, fd, FILE_BYTES, &file, NULL), 0);
    rig_host_region(arena, MIB, &host);
    trial_init(&trial, HEFT_OP_READ);
    trial_add(&trial, &host, &file, row);
    file_make_cold(fd);
    assert_int_equal(move_now(&rig, &trial), HEFT_ERR_AGAIN);
    trial_must(&rig, &trial);
    assert_int_equal(arena[8191], file_byte(FILE_BYTES - 1));
    assert_int_equal(ftruncate(fd, (off_t)(FILE_BYTES - 1)), 0); /* its end is not there any more */
    assert_int_equal(pread(fd, arena, 8191, (off_t)(FILE_BYTES - 8192)), 8191);
    assert_int_equal(move_now(&rig, &trial), HEFT_ERR_AGAIN);
    (heft_transport_file.fail)(rig.endpoint, HEFT_ERR_PEER_LOST, NULL);
    assert_int_equal(ftruncate(fd, (off_t)FILE_BYTES), 0);
    assert_int_equal(pread(fd, arena, 8192, (off_t)(FILE_BYTES - 8192)), 8192);
    assert_int_equal(move_now(&rig, &trial), HEFT_ERR_AGAIN); /* post says why */
    rig_remove(&rig, &file);
    rig_close(&rig);
    (void)close(fd);
    free(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lists_bring_exactly_their_bytes_every_way),
        cmocka_unit_test(large_runs_land_at_every_alignment),
        cmocka_unit_test(offsets_past_4_gib_are_whole),
        cmocka_unit_test(two_files_in_one_operation),
        cmocka_unit_test(a_column_costs_its_blocks),
        cmocka_unit_test(what_the_cache_holds_is_read_at_once),
        cmocka_unit_test(what_the_cache_does_not_hold_is_left_to_a_task),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
