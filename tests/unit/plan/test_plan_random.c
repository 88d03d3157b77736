/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans between random holders and random wishes, each run byte by byte in the world. A failure names its
 * seed; the number of seeds is set by HEFT_TEST_SEEDS.
 */
#include "world.h"
#include "base/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MAX_HOLDERS 6

static uint64_t seed_count(uint64_t usual)
{
    const char *text = getenv("HEFT_TEST_SEEDS");

    return text ? strtoull(text, NULL, 10) : usual;
}

/* ---- random tensors ---- */

static void small_tensor(struct world *world, struct world_random *random)
{
    static const uint64_t lengths[] = {0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 33};
    static const uint32_t widths[] = {8, 8, 16, 16, 32, 64, 4, 4, 6, 0};
    struct world_tensor tensor = {.bits = widths[world_below(random, 10)],
                                  .rank = (uint32_t)world_below(random, WORLD_MAX_RANK + 1)};
    const struct world_tensor *last =
        world->tensor_count > 0 ? &world->tensors[world->tensor_count - 1] : NULL;
    int again = last && world_below(random, 3) == 0; /* models repeat their shapes */
    uint64_t elements = 1;
    uint32_t dim;

    (void)snprintf(tensor.name, sizeof(tensor.name), "t%u", world->tensor_count);
    if (again)
        tensor.rank = last->rank;
    for (dim = 0; dim < tensor.rank; dim++) {
        tensor.shape[dim] = again ? last->shape[dim] : lengths[world_below(random, 13)];
        if (again) {
            elements *= tensor.shape[dim];
            continue;
        }
        if (tensor.shape[dim] == 0 && world_below(random, 4) != 0)
            tensor.shape[dim] = 1;
        if (elements * tensor.shape[dim] > 3000)
            tensor.shape[dim] = 1;
        elements *= tensor.shape[dim];
    }
    if (tensor.bits % 8 != 0 && elements * tensor.bits % 8 != 0)
        tensor.bits = 8;
    tensor.bytes = tensor.bits == 0 ? world_below(random, 2000) : 0;
    world_add(world, &tensor);
}

/* Past several blocks and chunks, with uneven tails; sometimes with rows longer than a chunk. */
static void large_tensor(struct world *world, struct world_random *random)
{
    static const uint64_t rows[] = {1, 2, 3, 5, 64, 1000};
    struct world_tensor tensor = {.bits = world_below(random, 2) == 0 ? 8 : 16, .rank = 2};
    uint64_t bytes = 100000 + world_below(random, 900000);

    (void)snprintf(tensor.name, sizeof(tensor.name), "t%u", world->tensor_count);
    tensor.shape[0] = rows[world_below(random, 6)];
    tensor.shape[1] = bytes / (tensor.shape[0] * (tensor.bits / 8)) + 1;
    if (world_below(random, 2) == 0) {
        tensor.rank = 3;
        tensor.shape[2] = 1 + world_below(random, world_below(random, 2) == 0 ? 40 : 900);
        tensor.shape[1] = tensor.shape[1] / tensor.shape[2] + 1;
    }
    world_add(world, &tensor);
}

/* ---- random boxes ---- */

static struct world_box whole_box(void)
{
    return (struct world_box){.whole = 1};
}

static struct world_box part_box(const struct world_tensor *tensor, uint32_t dim, uint64_t rank,
                                 uint64_t ranks)
{
    struct world_box box = {.whole = 0};

    memcpy(box.size, tensor->shape, sizeof(box.size));
    box.start[dim] = tensor->shape[dim] * rank / ranks;
    box.size[dim] = tensor->shape[dim] * (rank + 1) / ranks - box.start[dim];
    return box;
}

static struct world_box random_box(const struct world_tensor *tensor, struct world_random *random)
{
    struct world_box box = {.whole = 0};
    uint32_t dim;

    for (dim = 0; dim < tensor->rank; dim++) {
        uint64_t length = tensor->shape[dim];

        box.size[dim] = length;
        if (world_below(random, 2) == 0)
            continue;
        box.start[dim] = world_below(random, length + 1);
        box.size[dim] = world_below(random, length - box.start[dim] + 1);
    }
    return box;
}

/* Whole where the box of this tensor can't be stored as bytes. */
static struct world_box clean(const struct world_tensor *tensor, struct world_box box)
{
    return tensor->rank > 0 && world_box_clean(tensor, &box) ? box : whole_box();
}

static void hold_everything(struct world *world, struct world_random *random, struct world_holder *holder)
{
    struct world_box boxes[WORLD_MAX_TENSORS];
    uint32_t index;

    for (index = 0; index < world->tensor_count; index++)
        boxes[index] = whole_box();
    world_hold(world, random, boxes, 1, 0, holder);
}

/* The whole model, some ranks of a split, or anything. Returns how many holders were made. */
static uint32_t hold_somehow(struct world *world, struct world_random *random, struct world_holder *holders,
                             uint32_t room, int holes)
{
    struct world_box boxes[WORLD_MAX_TENSORS];
    uint64_t kind = world_below(random, 4), ranks = kind == 1 || kind == 2 ? 2 + world_below(random, 3) : 1;
    uint32_t index, rank;

    if (ranks > room)
        kind = ranks = 1;
    for (rank = 0; rank < ranks; rank++) {
        for (index = 0; index < world->tensor_count; index++) {
            const struct world_tensor *tensor = &world->tensors[index];

            boxes[index] = whole_box();
            if (tensor->rank == 0)
                continue;
            if (ranks > 1)
                boxes[index] = clean(tensor, part_box(tensor, kind == 1 ? 0 : tensor->rank - 1, rank, ranks));
            else if (kind == 3)
                boxes[index] = clean(tensor, random_box(tensor, random));
        }
        world_hold(world, random, boxes, 1 + (uint32_t)world_below(random, 3),
                   holes && world_below(random, 2) == 0, &holders[rank]);
    }
    return (uint32_t)ranks;
}

/* ---- random wishes ---- */

static struct heft_layout *wish_somehow(const struct world *world, struct world_random *random,
                                        const struct heft_manifest *reference)
{
    struct heft_layout_tensor wishes[2 * WORLD_MAX_TENSORS];
    static struct world_box boxes[2 * WORLD_MAX_TENSORS];
    uint64_t ends[WORLD_MAX_MEMORIES] = {0}, count = world_below(random, 2 * world->tensor_count + 1), index;
    struct heft_layout *layout = NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    uint32_t memory;

    for (index = 0; index < count; index++) {
        const struct world_tensor *tensor = &world->tensors[world_below(random, world->tensor_count)];

        boxes[index] = whole_box();
        if (world_below(random, 3) != 0)
            boxes[index] = clean(tensor, random_box(tensor, random));
        memory = (uint32_t)world_below(random, WORLD_MAX_MEMORIES);
        if (world_below(random, 3) == 0)
            ends[memory] += world_below(random, 100);
        wishes[index] = (struct heft_layout_tensor){
            .tensor = heft_manifest_find(reference, tensor->name, strlen(tensor->name)),
            .start = boxes[index].whole ? NULL : boxes[index].start,
            .size = boxes[index].whole ? NULL : boxes[index].size,
            .size_bytes = world_box_bytes(tensor, &boxes[index]),
            .dst_index = memory,
            .dst_offset_bytes = ends[memory]};
        ends[memory] += wishes[index].size_bytes;
    }
    for (index = count; index > 1; index--) {
        uint64_t other = world_below(random, index);
        struct heft_layout_tensor kept = wishes[index - 1];

        wishes[index - 1] = wishes[other];
        wishes[other] = kept;
    }
    if (heft_layout_custom(reference, wishes, count, &layout, &error))
        fail_msg("wishes refused: %s", error.text);
    return layout;
}

static struct heft_layout *lay_out(const struct world *world, struct world_random *random,
                                   const struct heft_manifest *reference)
{
    struct heft_layout *layout = NULL;
    uint64_t align = (uint64_t)1 << world_below(random, 9);
    uint32_t ranks = 1 + (uint32_t)world_below(random, 5);
    enum heft_split split = world_below(random, 2) == 0 ? HEFT_SPLIT_ROW : HEFT_SPLIT_COLUMN;

    switch (world_below(random, 3)) {
    case 0:
        assert_int_equal(heft_layout_whole(reference, align, &layout, NULL), 0);
        return layout;
    case 1:
        assert_int_equal(heft_layout_rank(reference, (uint32_t)world_below(random, ranks), ranks, split,
                                          align, &layout, NULL),
                         0);
        return layout;
    default:
        return wish_somehow(world, random, reference);
    }
}

/* ---- the test ---- */

struct tally {
    uint64_t planned, lost, strided, bytes;
};

static void try_world(uint64_t seed, uint32_t tensors, void (*tensor)(struct world *, struct world_random *),
                      int holes, int complete, struct tally *tally)
{
    static struct world world;
    struct world_random random = {seed};
    struct world_holder holders[MAX_HOLDERS];
    const struct heft_manifest *sources[MAX_HOLDERS];
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_layout *layout;
    struct heft_plan *plan = NULL;
    const char *name = "";
    uint64_t chunk_bytes = HEFT_BLOCK_BYTES * (1 + world_below(&random, 4));
    uint32_t count = 0, index, wanted = 1 + (uint32_t)world_below(&random, MAX_HOLDERS - 1);
    int rc;

    memset(&world, 0, sizeof(world));
    for (index = 0; index < tensors; index++)
        tensor(&world, &random);
    while (count < wanted)
        count += hold_somehow(&world, &random, &holders[count], wanted - count, holes);
    if (complete)
        hold_everything(&world, &random, &holders[count++]);
    for (index = 0; index < count; index++)
        sources[index] = holders[index].manifest;
    layout = lay_out(&world, &random, sources[world_below(&random, count)]);
    layout->box_cuts = (int)(seed % 2);
    rc = heft_plan_make(layout, sources, count, chunk_bytes - world_below(&random, 2), &plan, &error);
    if (rc == HEFT_OK) {
        world_check(&world, &random, seed, plan, holders, count, chunk_bytes);
        tally->planned++;
        tally->bytes += plan->total_bytes;
    } else {
        tally->lost++;
        if (rc != HEFT_ERR_SOURCE_LOST || plan)
            fail_msg("seed %llu: %s", (unsigned long long)seed, error.text);
        /* A source that lacks blocks is used with caution: only its full blocks, strided boxes not at all. */
        if (!holes && !world_lacks(&world, layout, holders, count, &name))
            fail_msg("seed %llu: every byte is there, but: %s", (unsigned long long)seed, error.text);
    }
    heft_plan_free(plan);
    heft_layout_free(layout);
    for (index = 0; index < count; index++)
        world_let_go(&holders[index]);
}

static void small_tensors_of_every_shape_arrive(void **state)
{
    struct tally tally = {0};
    uint64_t seed, seeds = seed_count(1500);

    (void)state;
    for (seed = 1; seed <= seeds; seed++)
        try_world(seed, 1 + (uint32_t)(seed % 12), small_tensor, 0, 0, &tally);
    print_message("%llu plans run, %llu lacked a source, %llu bytes\n", (unsigned long long)tally.planned,
                  (unsigned long long)tally.lost, (unsigned long long)tally.bytes);
    assert_true(tally.planned > tally.lost);
    assert_true(tally.lost > 0);
}

static void large_tensors_are_cut_and_arrive(void **state)
{
    struct tally tally = {0};
    uint64_t seed, seeds = seed_count(1500) / 20;

    (void)state;
    for (seed = 1; seed <= seeds; seed++)
        try_world(1000000 + seed, 1 + (uint32_t)(seed % 3), large_tensor, 0, seed % 4 != 0, &tally);
    assert_true(tally.planned > 0);
}

static void sources_that_lack_blocks_give_only_what_they_hold(void **state)
{
    struct tally tally = {0};
    uint64_t seed, seeds = seed_count(1500);

    (void)state;
    for (seed = 1; seed <= seeds; seed++)
        try_world(2000000 + seed, 1 + (uint32_t)(seed % 12), small_tensor, 1, seed % 2 == 0, &tally);
    for (seed = 1; seed <= seeds / 20; seed++)
        try_world(3000000 + seed, 1 + (uint32_t)(seed % 3), large_tensor, 1, seed % 4 != 0, &tally);
    assert_true(tally.planned > 0);
    assert_true(tally.lost > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_tensors_of_every_shape_arrive),
        cmocka_unit_test(large_tensors_are_cut_and_arrive),
        cmocka_unit_test(sources_that_lack_blocks_give_only_what_they_hold),
    };
    return cmocka_run_group_tests_name("plan_random", tests, NULL, NULL);
}
