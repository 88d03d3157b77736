/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting moves into pieces: the pieces tile the moves exactly, within their bounds, whatever the strides. */
#include "../../effort.h"
#include "test_file_util.h"

#include <stdlib.h>
#include <string.h>

#define ARENA ((uint64_t)4 << 20)

struct world {
    struct heft_file_source sources[2];
    struct heft_transport_region files[2], host;
    uint8_t *hits;  /* how often each host byte is written */
    uint64_t *from; /* the file offset it came from */
};

static void check_piece(struct world *world, struct heft_file_piece *piece, uint64_t piece_bytes)
{
    uint64_t offset, bytes, sum = 0, end = piece->begin_bytes, count = 0;
    struct heft_file_walk walk;
    uint8_t *address, *flat_next = piece->flat;

    assert_true(piece->elements > 0 && piece->payload_bytes > 0);
    assert_true(piece->span_bytes <= piece_bytes + piece_bytes / 16);
    heft_file_walk_start(piece, &walk);
    while (heft_file_walk_next(&walk, &offset, &address, &bytes)) {
        uint64_t at = (uint64_t)(address - (uint8_t *)world->host.address), index;

        assert_true(bytes > 0);
        assert_true(offset >= piece->begin_bytes && offset + bytes <= piece->begin_bytes + piece->span_bytes);
        if (count > 0 && offset > end)
            assert_true(offset - end <= (piece->task->write ? 0 : HEFT_FILE_GAP_BYTES));
        if (piece->flat) {
            assert_ptr_equal(address, flat_next);
            assert_int_equal(address - piece->flat, offset - piece->begin_bytes);
            flat_next += bytes;
        }
        for (index = 0; index < bytes; index++) {
            world->hits[at + index]++;
            world->from[at + index] = offset + index;
        }
        end = offset + bytes > end ? offset + bytes : end;
        sum += bytes;
        count++;
    }
    assert_int_equal(sum, piece->payload_bytes);
    assert_int_equal(end, piece->begin_bytes + piece->span_bytes);
    if (piece->flat)
        assert_int_equal(piece->payload_bytes, piece->span_bytes);
}

static void add_random_move(struct world *world, struct trial *trial, uint64_t *state, uint64_t *used,
                            int write)
{
    static const uint64_t lengths[] = {1, 3, 64, 512, 4096, 5000, 70000, 1 << 20, 0};
    struct heft_move move = {0};
    uint64_t room = ARENA - *used, kind = random_below(state, 5);

    move.length_bytes = random_below(state, lengths[random_below(state, 9)] + 1);
    move.count = random_below(state, 3) ? 1 : random_below(state, 3000);
    move.local_stride_bytes = move.length_bytes + random_below(state, 2) * random_below(state, 300);
    move.remote_stride_bytes = move.length_bytes;
    if (kind == 1)
        move.remote_stride_bytes += random_below(state, 200000);
    if (kind == 2 && !write)
        move.remote_stride_bytes = random_below(state, move.length_bytes + 1);
    if (kind == 3 && !write)
        move.remote_stride_bytes = 0;
    while (move.count > 1 && move.count * move.local_stride_bytes > room / 2)
        move.count /= 2;
    if (move.count * move.local_stride_bytes > room)
        return;
    move.local_offset_bytes = *used;
    move.remote_offset_bytes = random_below(state, (uint64_t)1 << 33);
    if (random_below(state, 2) && trial->op.move_count > 0) { /* near the one before */
        const struct heft_move *last = &trial->moves[trial->op.move_count - 1];

        move.remote_offset_bytes = last->remote_offset_bytes + last->remote_stride_bytes * last->count +
                                   random_below(state, 2) * random_below(state, 100000);
    }
    *used += move.count * move.local_stride_bytes + random_below(state, 2) * random_below(state, 5000);
    if (*used > ARENA)
        *used = ARENA;
    trial_add(trial, &world->host, &world->files[random_below(state, 4) == 0], move);
}

/* A picked piece's reads: blocks in the file's order, too far apart to be one, with every wanted byte in
 * them. */
static void check_extents(struct heft_file_piece *piece, uint64_t gap_bytes)
{
    uint64_t offset, bytes, slot = 0, end = 0, runs = 0;
    struct heft_file_extents extents;
    struct heft_file_extent extent = {0};
    struct heft_file_walk walk;
    uint8_t *address;

    if (piece->backwards)
        return;
    piece->direct = 1;
    piece->gap_bytes = gap_bytes;
    heft_file_extents_start(piece, &extents);
    heft_file_walk_start(piece, &walk);
    while (heft_file_walk_next(&walk, &offset, &address, &bytes)) {
        if (offset >= extent.end_bytes) {
            end = extent.end_bytes;
            assert_int_equal(heft_file_extents_next(&extents, &extent), 1);
            assert_true(runs == 0 || extent.begin_bytes > end + gap_bytes);
            assert_int_equal(extent.begin_bytes, offset & ~UINT64_C(511));
            assert_int_equal(extent.end_bytes % 512, 0);
            assert_int_equal(extent.slot_bytes, slot);
            slot += extent.end_bytes - extent.begin_bytes;
            runs++;
        }
        assert_true(offset >= extent.begin_bytes && offset + bytes <= extent.end_bytes);
    }
    assert_int_equal(heft_file_extents_next(&extents, &extent), 0);
    assert_true(slot <= piece->span_bytes + 1024);
    assert_true(piece->widest_gap_bytes > gap_bytes || runs == 1);
}

static void check_cover(struct world *world, const struct trial *trial)
{
    uint8_t *expected = calloc(1, ARENA);
    size_t index;
    uint64_t at, element;

    assert_non_null(expected);
    for (index = 0; index < trial->op.move_count; index++) {
        const struct heft_move *move = &trial->moves[index];

        for (element = 0; element < move->count; element++)
            for (at = 0; at < move->length_bytes; at++) {
                uint64_t local = move->local_offset_bytes + element * move->local_stride_bytes + at;

                expected[local] = 1;
                if (world->from[local] !=
                    move->remote_offset_bytes + element * move->remote_stride_bytes + at)
                    fail_msg("move %zu, element %llu, byte %llu came from elsewhere", index,
                             (unsigned long long)element, (unsigned long long)at);
            }
    }
    assert_memory_equal(expected, world->hits, ARENA);
    free(expected);
}

static void pieces_tile_random_moves(void **state)
{
    uint64_t random = 88172645463325252u, round;
    struct world world = {0};
    size_t index;

    (void)state;
    world.hits = malloc(ARENA);
    world.from = malloc(ARENA * sizeof(*world.from));
    assert_non_null(world.hits);
    assert_non_null(world.from);
    rig_host_region(malloc(ARENA), ARENA, &world.host);
    for (index = 0; index < 2; index++) {
        world.files[index].space = HEFT_SPACE_FILE;
        world.files[index].slot[HOST_INDEX] = &world.sources[index];
        world.sources[index].access = 2; /* O_RDWR */
        world.sources[index].label = "f";
        world.sources[index].offset_align = 512;
    }
    for (round = 0; round < EFFORT(60, 8); round++) {
        uint64_t used = random_below(&random, 100), moves = random_below(&random, 64);
        uint64_t piece_bytes = (uint64_t)65536 << random_below(&random, 5);
        struct heft_file_task task = {0};
        struct heft_file_piece piece = {0};
        struct heft_error error = HEFT_ERROR_INIT;
        int write = random_below(&random, 4) == 0;
        struct trial trial;

        memset(world.hits, 0, ARENA);
        trial_init(&trial, write ? HEFT_OP_WRITE : HEFT_OP_READ);
        while (moves-- > 0)
            add_random_move(&world, &trial, &random, &used, write);
        assert_int_equal(heft_file_task_prepare(&task, &trial.op, HOST_INDEX, &error), 0);
        assert_int_equal(task.common.wanted_bytes, trial.op.total_bytes);
        while (!task.common.cut) {
            assert_int_equal(heft_file_task_cut(&task, piece_bytes, &piece), 1);
            check_piece(&world, &piece, piece_bytes);
            if (!write)
                check_extents(&piece, random_below(&random, 4) * 700);
        }
        assert_int_equal(heft_file_task_cut(&task, piece_bytes, &piece), 0);
        check_cover(&world, &trial);
        free(task.order);
    }
    free(world.host.address);
    free(world.hits);
    free(world.from);
}

static void a_billion_tiny_elements_cost_no_time_to_cut(void **state)
{
    struct heft_file_source source = {.access = 2, .label = "f"};
    struct heft_transport_region file = {.space = HEFT_SPACE_FILE}, host;
    struct heft_file_task task = {0};
    struct heft_file_piece piece = {0};
    struct heft_move move = {
        .length_bytes = 1, .count = 1000000000, .local_stride_bytes = 1, .remote_stride_bytes = 4};
    uint64_t begin = 0, pieces = 0;
    struct trial trial;

    (void)state;
    file.slot[HOST_INDEX] = &source;
    rig_host_region(&source, 1, &host); /* never touched */
    trial_init(&trial, HEFT_OP_READ);
    trial_add(&trial, &host, &file, move);
    assert_int_equal(heft_file_task_prepare(&task, &trial.op, HOST_INDEX, NULL), 0);
    while (!task.common.cut) {
        assert_int_equal(heft_file_task_cut(&task, MIB, &piece), 1);
        assert_int_equal(piece.begin_bytes, begin);
        assert_true(piece.elements <= HEFT_FILE_MAX_ELEMENTS);
        begin = piece.begin_bytes + piece.elements * 4;
        pieces++;
    }
    assert_int_equal(begin, UINT64_C(4000000000));
    assert_true(pieces < 20000);
}

/* A disk that takes read_ns for a read and so long for a byte; some of each millisecond's reads are short. */
static uint64_t gap_of_a_disk(double read_ns, double bytes_per_ns, uint64_t windows, int jitter)
{
    struct heft_file_gauge gauge = {0};
    uint64_t random = 12345, now = 1000000, window;

    heft_file_gauge_begin(&gauge, now);
    for (window = 0; window < windows; window++) {
        uint64_t small = random_below(&random, 100), large = random_below(&random, 4);
        uint64_t bytes = small * 7680 + large * MIB;
        double ns = (double)(small + large) * read_ns + (double)bytes / bytes_per_ns;

        if (jitter)
            ns *= 0.9 + (double)random_below(&random, 20) / 100;
        now += (uint64_t)ns;
        heft_file_gauge_note(&gauge, now, small + large, small, bytes);
    }
    return gauge.gap_bytes;
}

static void a_gauge_finds_the_gap_that_costs_as_much_as_a_read(void **state)
{
    static const struct {
        double read_ns, bytes_per_ns;
    } disks[] = {{1000, 7}, {10000, 2.4}, {10000, 0.5}, {60000, 1.0}};
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(disks) / sizeof(disks[0]); index++) {
        double gap = disks[index].read_ns * disks[index].bytes_per_ns;
        uint64_t found = gap_of_a_disk(disks[index].read_ns, disks[index].bytes_per_ns, 400, 0);

        assert_true((double)found > 0.95 * gap && (double)found < 1.05 * gap);
        found = gap_of_a_disk(disks[index].read_ns, disks[index].bytes_per_ns, 400, 1);
        assert_true((double)found > 0.5 * gap && (double)found < 2 * gap);
    }
    assert_int_equal(gap_of_a_disk(10000, 2.4, 3, 0), 0);
    assert_int_equal(gap_of_a_disk(8e6, 0.2, 400, 0), HEFT_FILE_GAP_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gauge_finds_the_gap_that_costs_as_much_as_a_read),
        cmocka_unit_test(pieces_tile_random_moves),
        cmocka_unit_test(a_billion_tiny_elements_cost_no_time_to_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
