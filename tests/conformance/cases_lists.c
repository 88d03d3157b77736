/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptor lists: whatever the list, exactly the bytes it names arrive and none beside them change. */
#include "conformance/cases.h"
#include "effort.h"
#include "base/digest.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define FAR_BYTES ((uint64_t)6 << 20)
#define NEAR_BYTES ((uint64_t)8 << 20)
#define FAR_SEED 7u
#define MAX_MOVES 600

#define NEAR_SEED 3u

static struct region_spec near_spec(void)
{
    struct region_spec spec = {.kind = current_setup->near,
                               .length_bytes = NEAR_BYTES,
                               .filled_bytes = NEAR_BYTES,
                               .seed = NEAR_SEED};
    return spec;
}

static struct region_spec far_spec(void)
{
    struct region_spec spec = {.kind = current_setup->memory,
                               .flags = HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE,
                               .length_bytes = FAR_BYTES,
                               .filled_bytes = FAR_BYTES,
                               .seed = FAR_SEED};
    return spec;
}

/* Lengths that break things: none, one, around powers of two, anything. */
static uint64_t odd_length(uint64_t *state, uint64_t max)
{
    uint64_t shape = random_range(state, 0, 9), length;

    if (shape == 0)
        length = 0;
    else if (shape == 1)
        length = 1;
    else if (shape < 5)
        length = ((uint64_t)1 << random_range(state, 0, 20)) + random_range(state, 0, 2) - 1;
    else if (shape < 8)
        length = random_range(state, 2, 300);
    else
        length = random_range(state, 0, max);
    return length < max ? length : max;
}

/* Pieces never overlap on the side that is written (the target); on the other they may. */
static size_t make_moves(uint64_t *state, struct heft_move *moves, struct heft_transport_region *near,
                         struct heft_transport_region *far, enum heft_op kind)
{
    uint64_t target_size = kind == HEFT_OP_READ ? NEAR_BYTES : FAR_BYTES;
    uint64_t source_size = kind == HEFT_OP_READ ? FAR_BYTES : NEAR_BYTES;
    uint64_t at = random_range(state, 1, 4096);
    size_t count = 0, wanted = (size_t)random_range(state, 0, 3) == 0 ? 1 : random_range(state, 0, MAX_MOVES);

    while (count < wanted) {
        struct heft_move *move = &moves[count];
        uint64_t room = target_size - at, length = odd_length(state, room / 2), pieces = 1, stride, from;
        uint64_t source_stride = 0;

        if (random_range(state, 0, 2) == 0)
            pieces = random_range(state, 0, 40);
        stride = length + (random_range(state, 0, 1) ? random_range(state, 0, 200) : 0);
        if (pieces > 0 && stride > 0 && pieces > room / 2 / stride)
            pieces = room / 2 / stride;
        if (pieces > 1 && length < source_size)
            source_stride = random_range(state, 0, (source_size - length) / (pieces - 1));
        if (pieces > 1 && random_range(state, 0, 2) == 0 && (length * pieces) < source_size)
            source_stride = length;
        from = pieces > 0 && length > 0
                   ? random_range(state, 0, source_size - length - (pieces - 1) * source_stride)
                   : random_range(state, 0, source_size);
        memset(move, 0, sizeof(*move));
        move->local = near;
        move->remote = far;
        move->length_bytes = length;
        move->count = pieces;
        move->local_offset_bytes = kind == HEFT_OP_READ ? at : from;
        move->remote_offset_bytes = kind == HEFT_OP_READ ? from : at;
        move->local_stride_bytes = kind == HEFT_OP_READ ? stride : source_stride;
        move->remote_stride_bytes = kind == HEFT_OP_READ ? source_stride : stride;
        at += stride * pieces + random_range(state, 1, 64);
        count++;
        if (at + 4096 > target_size)
            break;
    }
    return count;
}

/* The same moves by plain copies. */
static void apply_moves(const struct heft_move *moves, size_t count, enum heft_op kind, char *near, char *far)
{
    for (size_t m = 0; m < count; m++)
        for (uint64_t i = 0; i < moves[m].count; i++) {
            char *here = near + moves[m].local_offset_bytes + i * moves[m].local_stride_bytes;
            char *there = far + moves[m].remote_offset_bytes + i * moves[m].remote_stride_bytes;

            if (kind == HEFT_OP_READ)
                memcpy(here, there, moves[m].length_bytes);
            else
                memcpy(there, here, moves[m].length_bytes);
        }
}

static void run_random_lists(enum heft_op kind, uint64_t seed, int rounds)
{
    struct region_spec spec = far_spec(), here = near_spec();
    struct heft_move *moves = calloc(MAX_MOVES, sizeof(*moves));
    char *near_model = malloc(NEAR_BYTES), *far_model = malloc(FAR_BYTES);
    struct pair pair;
    struct heft_transport_region *near, *far;

    pair_open(&pair, current_setup);
    near = side_region_add(&pair.near, &here);
    far = pair_far_region(&pair, &spec);
    pattern_fill(near_model, NEAR_SEED, 0, NEAR_BYTES);
    pattern_fill(far_model, FAR_SEED, 0, FAR_BYTES);
    for (int round = 0; round < rounds; round++) {
        uint64_t state = seed + (uint64_t)round;
        size_t count = make_moves(&state, moves, near, far, kind);
        struct test_op op;

        test_op_init(&op, kind, moves, count);
        op.op.flags = random_range(&state, 0, 3) == 0 ? HEFT_XFER_INLINE : 0;
        apply_moves(moves, count, kind, near_model, far_model);
        assert_int_equal(pair_post(&pair, &op), 0);
        if (test_op_wait(&op) != 0)
            fail_msg("list of seed %llu: %s", (unsigned long long)(seed + (uint64_t)round), op.error.text);
        assert_int_equal(op.op.done_bytes, op.op.total_bytes);
        test_op_free(&op);
        if (kind == HEFT_OP_READ)
            region_expect(near, 0, near_model, NEAR_BYTES);
        else if (current_setup->in_agent)
            region_expect(far, 0, far_model, FAR_BYTES);
        else
            assert_int_equal(remote_region_hash(&pair.remote, far, 0, FAR_BYTES),
                             heft_hash64(far_model, FAR_BYTES, 0));
    }
    region_expect(near, 0, near_model, NEAR_BYTES);
    pair_far_remove(&pair, far);
    side_region_remove(&pair.near, near);
    pair_close(&pair);
    free(moves);
    free(near_model);
    free(far_model);
}

static void reads_of_random_lists_bring_exactly_their_bytes(void **state)
{
    (void)state;
    run_random_lists(HEFT_OP_READ, 1000, EFFORT(40, 12));
}

static void writes_of_random_lists_bring_exactly_their_bytes(void **state)
{
    (void)state;
    if (current_setup->no_write)
        skip_case("it does not write");
    run_random_lists(HEFT_OP_WRITE, 2000, EFFORT(40, 12));
}

static void lists_without_bytes_are_done_at_once(void **state)
{
    struct region_spec spec = far_spec(), empty = far_spec(), here = near_spec();
    struct heft_move moves[3];
    struct pair pair;
    struct heft_transport_region *near, *far, *none;
    struct test_op op;

    (void)state;
    empty.length_bytes = empty.filled_bytes = 0;
    pair_open(&pair, current_setup);
    near = side_region_add(&pair.near, &here);
    far = pair_far_region(&pair, &spec);
    none = pair_far_region(&pair, &empty);
    memset(moves, 0, sizeof(moves));
    for (int i = 0; i < 3; i++) {
        moves[i].local = near;
        moves[i].remote = i == 2 ? none : far;
        moves[i].length_bytes = i == 0 ? 100 : 0;
        moves[i].count = i == 0 ? 0 : 5;
    }
    for (size_t count = 0; count <= 3; count++)
        for (uint32_t flags = 0; flags <= HEFT_XFER_INLINE; flags++) {
            test_op_init(&op, HEFT_OP_READ, moves, count);
            op.op.flags = flags;
            assert_int_equal(pair_post(&pair, &op), 0);
            assert_int_equal(test_op_wait(&op), 0);
            test_op_free(&op);
        }
    pair_far_remove(&pair, none);
    pair_far_remove(&pair, far);
    side_region_remove(&pair.near, near);
    pair_close(&pair);
}

static void offsets_past_4_gib_are_not_cut_to_32_bits(void **state)
{
    const uint64_t base = ((uint64_t)5 << 30) + 13, bytes = ((uint64_t)3 << 20) + 1;
    struct region_spec spec = far_spec();
    struct region_spec here = {.kind = current_setup->near, .length_bytes = base + bytes + 64};
    char zero = 0;
    struct heft_transport_region *near, *far;
    struct heft_move moves[2];
    struct pair pair;
    struct test_op op;
    char *expected = malloc(bytes);

    (void)state;
    spec.length_bytes = base + bytes;
    spec.filled_from = base;
    spec.filled_bytes = bytes;
    pair_open(&pair, current_setup);
    near = side_region_add(&pair.near, &here);
    far = pair_far_region(&pair, &spec);
    memset(moves, 0, sizeof(moves));
    moves[0] = (struct heft_move){.local = near,
                                  .remote = far,
                                  .local_offset_bytes = base + 5,
                                  .remote_offset_bytes = base,
                                  .length_bytes = bytes,
                                  .count = 1};
    /* two bytes, one at each end, 5 GiB apart on both sides */
    moves[1] = (struct heft_move){.local = near,
                                  .remote = far,
                                  .local_offset_bytes = 1,
                                  .remote_offset_bytes = 0,
                                  .length_bytes = 1,
                                  .count = 2,
                                  .local_stride_bytes = base,
                                  .remote_stride_bytes = base};
    test_op_init(&op, HEFT_OP_READ, moves, 2);
    assert_int_equal(pair_post(&pair, &op), 0);
    assert_int_equal(test_op_wait(&op), 0);
    test_op_free(&op);
    pattern_fill(expected, FAR_SEED, base, bytes);
    region_expect(near, base + 5, expected, bytes);
    region_expect(near, base + 1, expected, 1);
    region_expect(near, base + 2, &zero, 1);
    region_expect(near, base + 5 + bytes, &zero, 1);
    pair_far_remove(&pair, far);
    side_region_remove(&pair.near, near);
    pair_close(&pair);
    free(expected);
}

#define FLOOD_OPS 3000

static void thousands_of_operations_in_flight_all_end_right(void **state)
{
    struct region_spec spec = far_spec(), here = near_spec();
    struct heft_transport_region *near, *far;
    struct heft_move *moves = calloc(FLOOD_OPS, sizeof(*moves));
    struct test_op *ops = calloc(FLOOD_OPS, sizeof(*ops));
    char *model = malloc(NEAR_BYTES), *source = malloc(FAR_BYTES);
    uint64_t seed = 77, at = 0;
    struct pair pair;

    (void)state;
    pair_open(&pair, current_setup);
    near = side_region_add(&pair.near, &here);
    far = pair_far_region(&pair, &spec);
    pattern_fill(model, NEAR_SEED, 0, NEAR_BYTES);
    pattern_fill(source, FAR_SEED, 0, FAR_BYTES);
    for (int i = 0; i < FLOOD_OPS; i++) {
        uint64_t length =
            random_range(&seed, 0, 15) == 0 ? random_range(&seed, 0, 20000) : random_range(&seed, 1, 100);

        moves[i] = (struct heft_move){.local = near,
                                      .remote = far,
                                      .local_offset_bytes = at,
                                      .remote_offset_bytes = random_range(&seed, 0, FAR_BYTES - length),
                                      .length_bytes = length,
                                      .count = 1};
        at += length + 1;
        assert_true(at < NEAR_BYTES);
        apply_moves(&moves[i], 1, HEFT_OP_READ, model, source);
        test_op_init(&ops[i], HEFT_OP_READ, &moves[i], 1);
        ops[i].op.flags = i % 7 == 0 ? HEFT_XFER_INLINE : 0;
        assert_int_equal(pair_post(&pair, &ops[i]), 0);
    }
    for (int i = 0; i < FLOOD_OPS; i++) {
        assert_int_equal(test_op_wait(&ops[i]), 0);
        test_op_free(&ops[i]);
    }
    region_expect(near, 0, model, NEAR_BYTES);
    pair_far_remove(&pair, far);
    side_region_remove(&pair.near, near);
    pair_close(&pair);
    free(moves);
    free(ops);
    free(model);
    free(source);
}

int run_lists_cases(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_of_random_lists_bring_exactly_their_bytes),
        cmocka_unit_test(writes_of_random_lists_bring_exactly_their_bytes),
        cmocka_unit_test(lists_without_bytes_are_done_at_once),
        cmocka_unit_test(offsets_past_4_gib_are_not_cut_to_32_bits),
        cmocka_unit_test(thousands_of_operations_in_flight_all_end_right),
    };

    return cmocka_run_group_tests_name("lists", tests, NULL, NULL);
}
