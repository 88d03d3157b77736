/* SPDX-License-Identifier: Apache-2.0 */
/* Plans whose numbers are known beforehand: how chunks are cut and packed, and what is refused. */
#include "plan/plan.h"
#include "base/digest.h"
#include "table.h"

#include <stdio.h>
#include <stdlib.h>

#define MIB ((uint64_t)1 << 20)
#define KIB ((uint64_t)1 << 10)
#define MAX_RUNS 8192

static struct heft_plan *make(const struct heft_layout *layout, const struct heft_manifest *const *sources,
                              uint32_t count, uint64_t chunk_bytes)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_plan *plan = NULL;

    if (heft_plan_make(layout, sources, count, chunk_bytes, &plan, &error))
        fail_msg("%s", error.text);
    return plan;
}

static struct heft_layout *whole(const struct heft_manifest *manifest, uint64_t align)
{
    struct heft_layout *layout = NULL;

    assert_int_equal(heft_layout_whole(manifest, align, &layout, NULL), 0);
    return layout;
}

static struct heft_layout *part(const struct heft_manifest *manifest, uint32_t rank, uint32_t ranks,
                                enum heft_split split)
{
    struct heft_layout *layout = NULL;

    assert_int_equal(heft_layout_rank(manifest, rank, ranks, split, 64, &layout, NULL), 0);
    return layout;
}

/* ---- chunks ---- */

static void small_tensors_back_to_back_become_single_reads_of_chunks(void **state)
{
    struct heft_manifest *manifest = table_new(20000 * 4096);
    const struct heft_manifest *sources[1];
    struct heft_layout *layout;
    struct heft_plan *plan;
    struct heft_plan_run run[2];
    uint64_t index, at = 0;
    char name[16];

    (void)state;
    for (index = 0; index < 20000; index++) {
        (void)snprintf(name, sizeof(name), "t%05d", (int)index);
        table_add(manifest, name, 16, SHAPE(2048), NULL, index * 4096);
    }
    sources[0] = table_finish(manifest);
    layout = whole(manifest, 256);
    plan = make(layout, sources, 1, 0);
    assert_int_equal(plan->piece_count, 20000);
    assert_int_equal(plan->chunk_count, 79);
    for (index = 0; index < plan->chunk_count; index++) {
        assert_int_equal(heft_plan_runs(plan, index, 0, run, 2), 1);
        assert_int_equal(run[0].count, 1);
        assert_int_equal(run[0].source_offset_bytes, at);
        assert_int_equal(run[0].dst_offset_bytes, at);
        at += run[0].length_bytes;
    }
    assert_int_equal(at, 20000 * 4096);
    heft_plan_free(plan);
    heft_layout_free(layout);
    heft_manifest_free(manifest);
}

static void chunks_end_at_their_size_at_gaps_and_at_4096_pieces(void **state)
{
    struct heft_manifest *manifest = table_new(64 * MIB);
    const struct heft_manifest *sources[1];
    struct heft_layout *layout;
    struct heft_plan *plan;
    uint64_t index, offset = 0;
    char name[16];

    (void)state;
    for (index = 0; index < 10000; index++, offset++) {
        (void)snprintf(name, sizeof(name), "one%05d", (int)index);
        table_add(manifest, name, 8, SHAPE(1), NULL, offset);
    }
    table_add(manifest, "near", 8, SHAPE(100), NULL, offset + 64 * KIB);
    table_add(manifest, "far", 8, SHAPE(100), NULL, offset + 128 * KIB + 101);
    sources[0] = table_finish(manifest);
    layout = whole(manifest, 1);
    plan = make(layout, sources, 1, 0);
    assert_int_equal(plan->chunk_count, 4);
    assert_int_equal(plan->chunks[0].piece_count, 4096);
    assert_int_equal(plan->chunks[1].piece_count, 4096);
    assert_int_equal(plan->chunks[2].piece_count, 10000 - 8192 + 1);
    assert_int_equal(plan->chunks[3].piece_count, 1);
    heft_plan_free(plan);
    heft_layout_free(layout);
    heft_manifest_free(manifest);
}

static void large_tensors_are_cut_at_blocks_of_the_tensor(void **state)
{
    struct heft_manifest *manifest = table_new(64 * MIB);
    const struct heft_manifest *sources[1];
    struct heft_layout *layout;
    struct heft_plan *plan;
    struct heft_piece_blocks blocks;
    uint64_t index, begin = 3 * MIB - 100, done = 0, sum = 0;

    (void)state;
    table_add(manifest, "big", 8, SHAPE(6 * MIB - 200), NULL, 77);
    table_add(manifest, "rows", 8, SHAPE(6 * MIB - 200, 1), NULL, 7 * MIB);
    sources[0] = table_finish(manifest);
    layout = whole(manifest, 1);
    plan = make(layout, sources, 1, 0);
    assert_int_equal(plan->chunk_count, 12);
    for (index = 0; index < 6; index++) {
        assert_int_equal(plan->pieces[index].at_bytes, index * MIB);
        heft_plan_piece_blocks(plan, index, &blocks);
        assert_int_equal(blocks.first, index * 4);
        assert_int_equal(blocks.count, 4);
        assert_int_equal(blocks.size_bytes, plan->pieces[index].size_bytes);
        assert_int_equal(blocks.dst_offset_bytes, index * MIB);
        sum += blocks.size_bytes;
    }
    assert_int_equal(sum, 6 * MIB - 200);
    heft_plan_free(plan);
    heft_layout_free(layout);
    /* The second half begins 100 bytes before a block: its cuts are counted from the tensor's first byte. */
    layout = part(manifest, 1, 2, HEFT_SPLIT_ROW);
    plan = make(layout, sources, 1, 300 * KIB);
    for (index = 0, sum = 0; index < plan->piece_count; index++) {
        heft_plan_piece_blocks(plan, index, &blocks);
        if (layout->tensors[blocks.layout_tensor].start == NULL)
            continue;
        assert_int_equal(plan->pieces[index].at_bytes, done);
        assert_true(done == 0 || (begin + done) % HEFT_BLOCK_BYTES == 0);
        assert_true(plan->pieces[index].size_bytes <= 512 * KIB);
        done += plan->pieces[index].size_bytes;
        assert_int_equal(blocks.dst_offset_bytes,
                         layout->tensors[1].dst_offset_bytes + blocks.first * HEFT_BLOCK_BYTES - begin);
        sum += blocks.size_bytes;
    }
    assert_int_equal(done, 3 * MIB - 100);
    assert_int_equal(sum, 3 * MIB - 200);
    heft_plan_free(plan);
    heft_layout_free(layout);
    heft_manifest_free(manifest);
}

static void chunks_come_in_the_order_of_the_first_source(void **state)
{
    struct heft_manifest *reference = table_new(64 * MIB), *source = table_new(64 * MIB);
    const struct heft_manifest *sources[1];
    struct heft_layout *layout;
    struct heft_plan *plan;
    struct heft_plan_run run[4];
    uint64_t index, last = 0;
    char name[16];

    (void)state;
    for (index = 0; index < 50; index++) {
        (void)snprintf(name, sizeof(name), "t%d", (int)index);
        table_add(reference, name, 8, SHAPE(MIB), NULL, index * MIB);
        table_add(source, name, 8, SHAPE(MIB), NULL, (49 - index) * MIB);
    }
    table_finish(reference);
    sources[0] = table_finish(source);
    layout = whole(reference, 1);
    plan = make(layout, sources, 1, 0);
    assert_int_equal(plan->chunk_count, 50);
    for (index = 0; index < 50; index++) {
        assert_int_equal(heft_plan_runs(plan, index, 0, run, 4), 1);
        assert_true(index == 0 || run[0].source_offset_bytes > last);
        last = run[0].source_offset_bytes;
        assert_int_equal(run[0].dst_offset_bytes, 49 * MIB - last);
    }
    heft_plan_free(plan);
    heft_layout_free(layout);
    heft_manifest_free(reference);
    heft_manifest_free(source);
}

/* ---- runs ---- */

static void columns_of_a_whole_tensor_are_one_strided_run_a_chunk(void **state)
{
    struct heft_manifest *manifest = table_new(64 * MIB);
    const uint64_t column[] = {0, 1024, 4096, 1024};
    struct heft_manifest *shard = table_new(64 * MIB);
    const struct heft_manifest *sources[2];
    struct heft_layout *layout;
    struct heft_plan *plan;
    struct heft_plan_run run[4];
    uint64_t index, rows = 0;

    (void)state;
    table_add(manifest, "w", 16, SHAPE(4096, 4096), NULL, 16);
    table_add(shard, "w", 16, SHAPE(4096, 4096), column, 4);
    sources[0] = table_finish(manifest);
    sources[1] = table_finish(shard);
    layout = part(manifest, 1, 4, HEFT_SPLIT_COLUMN);
    plan = make(layout, sources, 2, 0);
    assert_int_equal(plan->chunk_count, 8);
    for (index = 0; index < plan->chunk_count; index++) {
        assert_int_equal(plan->chunks[index].sources, 3);
        assert_int_equal(heft_plan_runs(plan, index, 0, run, 4), 1);
        assert_int_equal(run[0].length_bytes, 2048);
        assert_int_equal(run[0].count, 512);
        assert_int_equal(run[0].source_stride_bytes, 8192);
        assert_int_equal(run[0].dst_stride_bytes, 2048);
        assert_int_equal(run[0].source_offset_bytes, 16 + 2048 + rows * 8192);
        assert_int_equal(run[0].dst_offset_bytes, rows * 2048);
        /* The shard has the same columns and nothing else: there they are one run of bytes. */
        assert_int_equal(heft_plan_runs(plan, index, 1, run, 4), 1);
        assert_int_equal(run[0].count, 1);
        assert_int_equal(run[0].length_bytes, MIB);
        assert_int_equal(run[0].source_offset_bytes, 4 + rows * 2048);
        rows += 512;
    }
    heft_plan_free(plan);
    heft_layout_free(layout);
    heft_manifest_free(manifest);
    heft_manifest_free(shard);
}

static void strided_boxes_are_cut_at_rows(void **state)
{
    struct heft_manifest *manifest = table_new(64 * MIB);
    const struct heft_manifest *sources[1];
    struct heft_layout *layout;
    struct heft_plan *plan;
    struct heft_plan_run run[4];
    uint64_t index;

    (void)state;
    table_add(manifest, "short", 8, SHAPE(1000, 6000), NULL, 0);
    table_add(manifest, "long", 8, SHAPE(3, 2000000), NULL, 32 * MIB);
    sources[0] = table_finish(manifest);
    layout = part(manifest, 0, 2, HEFT_SPLIT_COLUMN);
    plan = make(layout, sources, 1, 3 * HEFT_BLOCK_BYTES);
    assert_int_equal(plan->chunk_count, 4 + 6);
    for (index = 0; index < 3; index++)
        assert_int_equal(plan->chunks[index].size_bytes, 262 * 3000);
    assert_int_equal(plan->chunks[3].size_bytes, (1000 - 3 * 262) * 3000);
    for (index = 4; index < 10; index++)
        assert_int_equal(plan->chunks[index].size_bytes,
                         index % 2 == 0 ? 3 * HEFT_BLOCK_BYTES : 1000000 - 3 * HEFT_BLOCK_BYTES);
    for (index = 0; index < 10; index++)
        assert_int_equal(heft_plan_runs(plan, index, 0, run, 4), 1);
    heft_plan_free(plan);
    heft_layout_free(layout);
    heft_manifest_free(manifest);
}

/* For those who exchange blocks of boxes: every piece is whole blocks of its box, strided or not. */
static void boxes_are_cut_at_their_own_blocks_when_told_so(void **state)
{
    struct heft_manifest *manifest = table_new(64 * MIB);
    const struct heft_manifest *sources[1];
    struct heft_layout *layout;
    struct heft_plan *plan;
    enum heft_split split;
    uint64_t index;

    (void)state;
    table_add(manifest, "odd", 8, SHAPE(2001, 6000), NULL, 0);
    sources[0] = table_finish(manifest);
    for (split = HEFT_SPLIT_ROW; split <= HEFT_SPLIT_COLUMN; split++) {
        layout = part(manifest, 1, 2, split);
        layout->box_cuts = 1;
        plan = make(layout, sources, 1, 3 * HEFT_BLOCK_BYTES);
        for (index = 0; index + 1 < plan->chunk_count; index++)
            assert_int_equal(plan->chunks[index].size_bytes, 3 * HEFT_BLOCK_BYTES);
        assert_int_equal(plan->total_bytes, layout->wanted_bytes);
        heft_plan_free(plan);
        heft_layout_free(layout);
    }
    heft_manifest_free(manifest);
}

static void a_chunk_that_ends_inside_a_slab_goes_on_there(void **state)
{
    const uint64_t start[] = {0, 100, 0}, size[] = {3, 300, 500};
    struct heft_manifest *manifest = table_new(MIB);
    const struct heft_manifest *sources[1];
    struct heft_layout_tensor wish = {.start = start, .size = size, .size_bytes = 450000};
    struct heft_layout *layout = NULL;
    struct heft_plan *plan;
    struct heft_plan_run run[4];

    (void)state;
    table_add(manifest, "cube", 8, SHAPE(3, 400, 800), NULL, 0);
    sources[0] = table_finish(manifest);
    assert_int_equal(heft_layout_custom(manifest, &wish, 1, &layout, NULL), 0);
    plan = make(layout, sources, 1, HEFT_BLOCK_BYTES);
    assert_int_equal(plan->chunk_count, 2);
    assert_int_equal(heft_plan_runs(plan, 0, 0, run, 4), 2);
    assert_int_equal(run[0].count, 300);
    assert_int_equal(run[1].count, 224);
    assert_int_equal(run[1].source_offset_bytes, (400 + 100) * 800);
    assert_int_equal(heft_plan_runs(plan, 1, 0, run, 4), 2);
    assert_int_equal(run[0].count, 76);
    assert_int_equal(run[0].source_offset_bytes, (400 + 100 + 224) * 800);
    assert_int_equal(run[0].dst_offset_bytes, 524 * 500);
    assert_int_equal(run[1].count, 300);
    assert_int_equal(run[1].source_offset_bytes, (800 + 100) * 800);
    heft_plan_free(plan);
    heft_layout_free(layout);
    heft_manifest_free(manifest);
}

static void tensors_of_70000_dimensions_take_the_flat_path(void **state)
{
    static uint64_t shape[70000], box[140000];
    struct heft_manifest *manifest = table_new(64 * MIB);
    const struct heft_manifest *sources[1];
    struct heft_layout *layout = NULL;
    struct heft_plan *plan;
    struct heft_plan_run run[4];
    struct heft_layout_tensor wish = {.start = box, .size = box + 70000, .size_bytes = 6};
    uint64_t dim;

    (void)state;
    for (dim = 0; dim < 70000; dim++)
        shape[dim] = box[70000 + dim] = 1;
    shape[3] = 8;
    shape[40000] = 2;
    shape[69990] = 5;
    table_add(manifest, "deep", 8, shape, 70000, NULL, 0);
    sources[0] = table_finish(manifest);
    layout = whole(manifest, 1);
    plan = make(layout, sources, 1, 0);
    assert_int_equal(plan->piece_count, 1);
    assert_int_equal(heft_plan_runs(plan, 0, 0, run, 4), 1);
    assert_int_equal(run[0].length_bytes, 80);
    heft_plan_free(plan);
    heft_layout_free(layout);
    box[3] = 2;
    box[70000 + 3] = 3;
    box[40000] = 1;
    box[69990] = 2;
    box[70000 + 69990] = 2;
    assert_int_equal(heft_layout_custom(manifest, &wish, 1, &layout, NULL), 0);
    plan = make(layout, sources, 1, 0);
    assert_int_equal(heft_plan_runs(plan, 0, 0, run, 4), 1);
    assert_int_equal(run[0].source_offset_bytes, 2 * 10 + 5 + 2);
    assert_int_equal(run[0].length_bytes, 2);
    assert_int_equal(run[0].count, 3);
    assert_int_equal(run[0].source_stride_bytes, 10);
    assert_int_equal(run[0].dst_stride_bytes, 2);
    heft_plan_free(plan);
    heft_layout_free(layout);
    heft_manifest_free(manifest);
}

/* ---- sources ---- */

/* `ranks` shards of the same two tensors, split by rows or by columns. */
static void make_shards(struct heft_manifest **shards, uint32_t ranks, enum heft_split split)
{
    uint32_t rank;

    for (rank = 0; rank < ranks; rank++) {
        uint64_t start = 1000 * (uint64_t)rank / ranks, end = 1000 * ((uint64_t)rank + 1) / ranks;
        const uint64_t rows[] = {start, 0, end - start, 1000}, columns[] = {0, start, 1000, end - start};

        shards[rank] = table_new(64 * MIB);
        table_add(shards[rank], "w", 16, SHAPE(1000, 1000), split == HEFT_SPLIT_ROW ? rows : columns, 0);
        table_add(shards[rank], "norm", 16, SHAPE(1000), NULL, 32 * MIB);
        table_finish(shards[rank]);
    }
}

static void ranks_read_from_other_numbers_of_ranks(void **state)
{
    static const uint32_t numbers[][2] = {{3, 2}, {4, 2}, {2, 4}, {2, 3}, {1, 5}, {64, 7}};
    struct heft_manifest *shards[64];
    const struct heft_manifest *sources[64];
    uint32_t kind, rank;
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(numbers) / sizeof(numbers[0]); index++)
        for (kind = 0; kind < 4; kind++) {
            uint32_t holders = numbers[index][0], readers = numbers[index][1];
            uint64_t sum = 0;

            make_shards(shards, holders, kind & 1 ? HEFT_SPLIT_ROW : HEFT_SPLIT_COLUMN);
            for (rank = 0; rank < holders; rank++)
                sources[rank] = shards[rank];
            for (rank = 0; rank < readers; rank++) {
                struct heft_layout *layout =
                    part(shards[0], rank, readers, kind & 2 ? HEFT_SPLIT_ROW : HEFT_SPLIT_COLUMN);
                struct heft_plan *plan = make(layout, sources, holders, 0);

                sum += plan->total_bytes;
                heft_plan_free(plan);
                heft_layout_free(layout);
            }
            assert_int_equal(sum, 2000000 + 2000 * readers);
            for (rank = 0; rank < holders; rank++)
                heft_manifest_free(shards[rank]);
        }
}

static void a_missing_shard_is_a_lost_source_with_the_tensors_name(void **state)
{
    struct heft_manifest *shards[3];
    const struct heft_manifest *sources[3];
    struct heft_layout *layout;
    struct heft_plan *plan = NULL;
    int split;

    (void)state;
    for (split = HEFT_SPLIT_ROW; split <= HEFT_SPLIT_COLUMN; split++) {
        make_shards(shards, 3, (enum heft_split)split);
        sources[0] = shards[0];
        sources[1] = shards[2];
        layout = whole(shards[0], 64);
        ASSERT_REFUSED(heft_plan_make(layout, sources, 2, 0, &plan, &error), HEFT_ERR_SOURCE_LOST, "\"w\"");
        ASSERT_REFUSED(heft_plan_make(layout, sources, 0, 0, &plan, &error), HEFT_ERR_SOURCE_LOST,
                       "0 sources");
        assert_null(plan);
        heft_layout_free(layout);
        /* The middle third is not wanted by the first of three. */
        layout = part(shards[0], 0, 3, (enum heft_split)split);
        heft_plan_free(make(layout, sources, 2, 0));
        heft_layout_free(layout);
        heft_manifest_free(shards[0]);
        heft_manifest_free(shards[1]);
        heft_manifest_free(shards[2]);
    }
}

static void receivers_with_a_third_of_the_blocks_each_are_one_source_together(void **state)
{
    struct heft_manifest *holders[3];
    const struct heft_manifest *sources[3];
    struct heft_layout *layout;
    struct heft_plan *plan = NULL;
    uint64_t block, index, each[8] = {0};
    uint32_t holder;

    (void)state;
    for (holder = 0; holder < 3; holder++) {
        holders[holder] = table_new(64 * MIB);
        table_add(holders[holder], "a", 8, SHAPE(10 * MIB + 5), NULL, 3);
        table_add(holders[holder], "b", 8, SHAPE(1000, 1000), NULL, 20 * MIB);
        sources[holder] = table_finish(holders[holder]);
        assert_int_equal(heft_manifest_want_held(holders[holder], NULL), 0);
        for (block = holder; block < holders[holder]->block_count; block += 3)
            holders[holder]->held[block / 8] |= (uint8_t)(1u << block % 8);
    }
    layout = whole(holders[0], 64);
    plan = make(layout, sources, 3, 0);
    for (index = 0; index < plan->chunk_count; index++)
        each[plan->chunks[index].sources] += plan->chunks[index].size_bytes;
    assert_int_equal(each[1] + each[2] + each[4], plan->total_bytes);
    assert_int_equal(each[1], 14 * 256 * KIB + 256 * KIB);
    heft_plan_free(plan);
    plan = NULL;
    ASSERT_REFUSED(heft_plan_make(layout, sources, 2, 0, &plan, &error), HEFT_ERR_SOURCE_LOST,
                   "blocks at byte 524288");
    heft_layout_free(layout);
    /* A strided box needs a holder of all blocks. */
    layout = part(holders[0], 0, 2, HEFT_SPLIT_COLUMN);
    ASSERT_REFUSED(heft_plan_make(layout, sources, 3, 0, &plan, &error), HEFT_ERR_SOURCE_LOST, "\"b\"");
    for (block = 0; block < 4; block++)
        holders[1]->held[(41 + block) / 8] |= (uint8_t)(1u << (41 + block) % 8);
    plan = make(layout, sources, 3, 0);
    heft_plan_free(plan);
    heft_layout_free(layout);
    for (holder = 0; holder < 3; holder++)
        heft_manifest_free(holders[holder]);
}

/* Plans `name` whole from a holder of a box that can't be used, alone and beside a holder of everything. */
static void try_useless_box(const char *name, uint32_t bits, const uint64_t *shape, const uint64_t *box)
{
    struct heft_manifest *all = table_new(MIB), *shard = table_new(MIB);
    const struct heft_manifest *sources[2];
    struct heft_layout *layout;
    struct heft_plan *plan = NULL;

    table_add(all, name, bits, shape, 2, NULL, 0);
    table_add(shard, name, bits, shape, 2, box, 0);
    sources[0] = table_finish(shard);
    sources[1] = table_finish(all);
    layout = whole(all, 1);
    ASSERT_REFUSED(heft_plan_make(layout, sources, 1, 0, &plan, &error), HEFT_ERR_SOURCE_LOST, name);
    plan = make(layout, sources, 2, 0);
    assert_int_equal(plan->chunk_count, 1);
    assert_int_equal(plan->chunks[0].sources, 2);
    heft_plan_free(plan);
    heft_layout_free(layout);
    heft_manifest_free(all);
    heft_manifest_free(shard);
}

/* Blocks are counted from the first byte of what is held: a block of the tensor may lie in two of them. */
static void a_shard_that_lacks_a_block_gives_no_block_that_touches_it(void **state)
{
    const uint64_t rows[] = {100, 3 * HEFT_BLOCK_BYTES}, masks[] = {1, 3, 1, 3, 1};
    const uint64_t sizes[] = {100, HEFT_BLOCK_BYTES - 100, 2 * HEFT_BLOCK_BYTES, 100, 100};
    struct heft_manifest *shard = table_new(64 * MIB), *all = table_new(64 * MIB);
    const struct heft_manifest *sources[2];
    struct heft_layout *layout;
    struct heft_plan *plan;
    uint64_t index;

    (void)state;
    table_add(shard, "w", 8, SHAPE(3 * HEFT_BLOCK_BYTES + 200), rows, 0);
    table_add(all, "w", 8, SHAPE(3 * HEFT_BLOCK_BYTES + 200), NULL, 0);
    sources[0] = table_finish(all);
    sources[1] = table_finish(shard);
    assert_int_equal(heft_manifest_want_held(shard, NULL), 0);
    shard->held[0] = 1 | 4;
    layout = whole(all, 1);
    plan = make(layout, sources, 2, 0);
    /* The shard's second block is missing; it reaches from the tensor's second block into its third. */
    assert_int_equal(plan->chunk_count, 5);
    for (index = 0; index < 5; index++) {
        assert_int_equal(plan->chunks[index].size_bytes, sizes[index]);
        assert_int_equal(plan->chunks[index].sources, masks[index]);
    }
    heft_plan_free(plan);
    heft_layout_free(layout);
    heft_manifest_free(shard);
    heft_manifest_free(all);
}

static void boxes_of_unknown_dtypes_and_of_cut_bytes_are_not_used(void **state)
{
    const uint64_t square[] = {4, 4}, flat[] = {2, 6}, half[] = {0, 0, 2, 4}, inner[] = {0, 1, 1, 2};
    const uint64_t halves[] = {2, 5}, pair[] = {0, 0, 2, 2};

    (void)state;
    try_useless_box("blob", 0, square, half);
    try_useless_box("nibbles", 4, flat, inner);
    try_useless_box("halves", 4, halves, pair); /* the second row begins in the middle of a byte */
}

static void a_source_of_another_shape_is_refused(void **state)
{
    const uint64_t box[] = {0, 0, 1, 8};
    struct heft_manifest *reference = table_new(MIB), *source = table_new(MIB);
    const struct heft_manifest *sources[1];
    struct heft_layout *layout;
    struct heft_plan *plan = NULL;

    (void)state;
    table_add(reference, "w", 8, SHAPE(4, 4), NULL, 0);
    table_finish(reference);
    table_add(source, "w", 8, SHAPE(2, 8), box, 0);
    sources[0] = table_finish(source);
    layout = whole(reference, 1);
    ASSERT_REFUSED(heft_plan_make(layout, sources, 1, 0, &plan, &error), HEFT_ERR_INCOMPATIBLE, "\"w\"");
    heft_manifest_free(source);
    source = table_new(MIB);
    table_add(source, "w", 8, SHAPE(4, 5), NULL, 0);
    sources[0] = table_finish(source);
    ASSERT_REFUSED(heft_plan_make(layout, sources, 1, 0, &plan, &error), HEFT_ERR_INCOMPATIBLE,
                   "holds 20 bytes where the model has 16");
    heft_manifest_free(source);
    source = table_new(MIB);
    table_add(source, "w", 8, SHAPE(4, 4, 1), NULL, 0);
    sources[0] = table_finish(source);
    ASSERT_REFUSED(heft_plan_make(layout, sources, 1, 0, &plan, &error), HEFT_ERR_INCOMPATIBLE, "rank");
    heft_manifest_free(source);
    source = table_new(MIB);
    table_add(source, "v", 8, SHAPE(4, 4), NULL, 0);
    sources[0] = table_finish(source);
    ASSERT_REFUSED(heft_plan_make(layout, sources, 1, 0, &plan, &error), HEFT_ERR_SOURCE_LOST, "\"w\"");
    heft_layout_free(layout);
    heft_manifest_free(source);
    heft_manifest_free(reference);
}

static void nothing_wanted_is_a_plan_without_chunks(void **state)
{
    struct heft_manifest *manifest = table_new(0);
    struct heft_layout *layout;
    struct heft_plan *plan;

    (void)state;
    table_add(manifest, "none", 16, SHAPE(3, 0, 5), NULL, 0);
    table_finish(manifest);
    layout = whole(manifest, 64);
    assert_int_equal(layout->tensor_count, 1);
    plan = make(layout, NULL, 0, 0);
    assert_int_equal(plan->chunk_count, 0);
    assert_int_equal(plan->total_bytes, 0);
    heft_plan_free(plan);
    heft_layout_free(layout);
    heft_manifest_free(manifest);
}

/* ---- numbers from outside ---- */

static void places_near_2_to_63_and_64_never_wrap(void **state)
{
    const uint64_t half = (uint64_t)1 << 63, line[] = {half - 1000, 1000};
    struct heft_manifest *shard = table_new(UINT64_MAX), *huge = table_new(UINT64_MAX);
    struct heft_layout_tensor wish = {.start = line,
                                      .size = line + 1,
                                      .size_bytes = 1000,
                                      .dst_index = 1,
                                      .dst_offset_bytes = UINT64_MAX - 1000};
    const struct heft_manifest *sources[1];
    struct heft_layout *layout = NULL;
    struct heft_plan *plan = NULL;
    struct heft_plan_run run[2];

    (void)state;
    table_add(shard, "long", 8, SHAPE(half), line, UINT64_MAX - 1000);
    sources[0] = table_finish(shard);
    assert_int_equal(heft_layout_custom(shard, &wish, 1, &layout, NULL), 0);
    plan = make(layout, sources, 1, UINT64_MAX);
    assert_int_equal(heft_plan_runs(plan, 0, 0, run, 2), 1);
    assert_true(run[0].source_offset_bytes == UINT64_MAX - 1000);
    assert_true(run[0].dst_offset_bytes == UINT64_MAX - 1000);
    assert_int_equal(run[0].length_bytes, 1000);
    heft_plan_free(plan);
    plan = NULL;
    /* A table that was not checked where it came in. */
    shard->tensors[0].offset_bytes = UINT64_MAX - 999;
    ASSERT_REFUSED(heft_plan_make(layout, sources, 1, 0, &plan, &error), HEFT_ERR_MANIFEST, "\"long\"");
    shard->tensors[0].offset_bytes = 0;
    shard->tensors[0].size_bytes = 999;
    ASSERT_REFUSED(heft_plan_make(layout, sources, 1, 0, &plan, &error), HEFT_ERR_MANIFEST, "\"long\"");
    shard->tensors[0].size_bytes = 1000;
    shard->tensors[0].file = 1;
    ASSERT_REFUSED(heft_plan_make(layout, sources, 1, 0, &plan, &error), HEFT_ERR_MANIFEST, "\"long\"");
    heft_layout_free(layout);
    table_add(huge, "huge", 8, SHAPE(half >> 3), NULL, 0);
    sources[0] = table_finish(huge);
    layout = whole(huge, 64);
    ASSERT_REFUSED(heft_plan_make(layout, sources, 1, 0, &plan, &error), HEFT_ERR_TOO_MANY, "larger chunks");
    plan = make(layout, sources, 1, UINT64_MAX);
    assert_true(plan->total_bytes == half >> 3);
    assert_int_equal(plan->chunk_count, (uint64_t)1 << 20);
    heft_plan_free(plan);
    heft_layout_free(layout);
    heft_manifest_free(shard);
    heft_manifest_free(huge);
}

static void boxes_that_cut_everything_to_dust_are_refused(void **state)
{
    struct heft_manifest *shards[64], *reference = table_new(64 * MIB);
    const struct heft_manifest *sources[65];
    struct heft_layout *layout;
    struct heft_plan *plan = NULL;
    uint32_t index;

    (void)state;
    table_add(reference, "w", 8, SHAPE(200, 200, 200), NULL, 0);
    sources[64] = table_finish(reference);
    for (index = 0; index < 64; index++) {
        const uint64_t box[] = {index * 3 + 1, 0, 0, 2, 200, 200},
                       mid[] = {0, index * 5 % 190 + 1, 0, 200, 2, 200},
                       low[] = {0, 0, index * 7 % 190 + 1, 200, 200, 2};

        shards[index] = table_new(64 * MIB);
        table_add(shards[index], "w", 8, SHAPE(200, 200, 200),
                  index % 3 == 0   ? box
                  : index % 3 == 1 ? mid
                                   : low,
                  0);
        sources[index] = table_finish(shards[index]);
    }
    layout = whole(reference, 1);
    ASSERT_REFUSED(heft_plan_make(layout, sources, 65, 0, &plan, &error), HEFT_ERR_TOO_MANY, "64 sources");
    ASSERT_REFUSED(heft_plan_make(layout, sources, 64, 0, &plan, &error), HEFT_ERR_TOO_MANY, "\"w\"");
    sources[30] = reference;
    plan = make(layout, sources, 31, 0);
    assert_true(plan->total_bytes == 8000000);
    heft_plan_free(plan);
    heft_layout_free(layout);
    for (index = 0; index < 64; index++)
        heft_manifest_free(shards[index]);
    heft_manifest_free(reference);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_tensors_back_to_back_become_single_reads_of_chunks),
        cmocka_unit_test(chunks_end_at_their_size_at_gaps_and_at_4096_pieces),
        cmocka_unit_test(large_tensors_are_cut_at_blocks_of_the_tensor),
        cmocka_unit_test(chunks_come_in_the_order_of_the_first_source),
        cmocka_unit_test(columns_of_a_whole_tensor_are_one_strided_run_a_chunk),
        cmocka_unit_test(strided_boxes_are_cut_at_rows),
        cmocka_unit_test(boxes_are_cut_at_their_own_blocks_when_told_so),
        cmocka_unit_test(a_chunk_that_ends_inside_a_slab_goes_on_there),
        cmocka_unit_test(tensors_of_70000_dimensions_take_the_flat_path),
        cmocka_unit_test(ranks_read_from_other_numbers_of_ranks),
        cmocka_unit_test(a_missing_shard_is_a_lost_source_with_the_tensors_name),
        cmocka_unit_test(receivers_with_a_third_of_the_blocks_each_are_one_source_together),
        cmocka_unit_test(a_shard_that_lacks_a_block_gives_no_block_that_touches_it),
        cmocka_unit_test(boxes_of_unknown_dtypes_and_of_cut_bytes_are_not_used),
        cmocka_unit_test(a_source_of_another_shape_is_refused),
        cmocka_unit_test(nothing_wanted_is_a_plan_without_chunks),
        cmocka_unit_test(places_near_2_to_63_and_64_never_wrap),
        cmocka_unit_test(boxes_that_cut_everything_to_dust_are_refused),
    };
    return cmocka_run_group_tests_name("plan_cases", tests, NULL, NULL);
}
