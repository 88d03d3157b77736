/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan.h"
#include "table.h"

#include <stdio.h>
#include <stdlib.h>

static struct heft_manifest *model(void)
{
    struct heft_manifest *manifest = table_new(1 << 20);

    table_add(manifest, "embed", 16, SHAPE(10, 8), NULL, 0); /* 160 bytes */
    table_add(manifest, "norm", 16, SHAPE(7), NULL, 160);    /* 14 */
    table_add(manifest, "scalar", 16, NULL, 0, NULL, 174);   /* 2 */
    table_add(manifest, "none", 16, SHAPE(0, 4), NULL, 176); /* 0 */
    table_add(manifest, "odd4", 4, SHAPE(6, 3), NULL, 176);  /* 9 */
    table_add(manifest, "even4", 4, SHAPE(6, 4), NULL, 185); /* 12 */
    table_add(manifest, "blob", 0, SHAPE(4, 4), NULL, 197);  /* 100 */
    return table_finish(manifest);
}

static const struct heft_layout_tensor *entry_of(const struct heft_layout *layout, const char *name)
{
    uint64_t index = heft_manifest_find(layout->reference, name, strlen(name)), at;

    for (at = 0; at < layout->tensor_count; at++)
        if (layout->tensors[at].tensor == index)
            return &layout->tensors[at];
    fail_msg("%s is not in the layout", name);
    return NULL;
}

static void the_whole_model_lies_aligned_and_in_order(void **state)
{
    struct heft_manifest *manifest = model();
    struct heft_layout *layout = NULL;
    uint64_t index, end = 0;

    (void)state;
    assert_int_equal(heft_layout_whole(manifest, 64, &layout, NULL), 0);
    assert_int_equal(layout->tensor_count, 7);
    assert_int_equal(layout->split_count, 0);
    assert_int_equal(layout->wanted_bytes, 297);
    for (index = 0; index < 7; index++) {
        const struct heft_layout_tensor *entry = &layout->tensors[index];

        assert_int_equal(entry->tensor, index);
        assert_null(entry->start);
        assert_int_equal(entry->dst_index, 0);
        assert_int_equal(entry->dst_offset_bytes % 64, 0);
        assert_true(entry->dst_offset_bytes >= end);
        assert_true(entry->dst_offset_bytes - end < 64);
        assert_int_equal(entry->size_bytes, manifest->tensors[index].size_bytes);
        end = entry->dst_offset_bytes + entry->size_bytes;
    }
    assert_int_equal(layout->arena_bytes, end);
    heft_layout_free(layout);
    heft_manifest_free(manifest);
}

static void uneven_rows_go_to_all_ranks_and_the_rest_stays_whole(void **state)
{
    static const uint64_t starts[] = {0, 3, 6, 10};
    struct heft_manifest *manifest = model();
    struct heft_layout *layout = NULL;
    uint32_t rank;

    (void)state;
    for (rank = 0; rank < 3; rank++) {
        const struct heft_layout_tensor *entry;

        assert_int_equal(heft_layout_rank(manifest, rank, 3, HEFT_SPLIT_ROW, 1, &layout, NULL), 0);
        entry = entry_of(layout, "embed");
        assert_int_equal(entry->start[0], starts[rank]);
        assert_int_equal(entry->start[1], 0);
        assert_int_equal(entry->size[0], starts[rank + 1] - starts[rank]);
        assert_int_equal(entry->size[1], 8);
        assert_int_equal(entry->size_bytes, entry->size[0] * 16);
        assert_null(entry_of(layout, "norm")->start);
        assert_null(entry_of(layout, "scalar")->start);
        assert_null(entry_of(layout, "blob")->start);
        /* Two rows of three 4-bit elements are 3 bytes, so that a third of six rows is whole bytes. */
        assert_int_equal(entry_of(layout, "odd4")->size_bytes, 3);
        assert_int_equal(entry_of(layout, "even4")->size_bytes, 4);
        assert_int_equal(entry_of(layout, "none")->size_bytes, 0);
        assert_int_equal(layout->split_count, 3);
        heft_layout_free(layout);
    }
    heft_manifest_free(manifest);
}

static void parts_that_are_not_whole_bytes_stay_whole_on_every_rank(void **state)
{
    struct heft_manifest *manifest = model();
    struct heft_layout *layout = NULL;
    uint32_t rank;

    (void)state;
    for (rank = 0; rank < 4; rank++) {
        /* 6 rows in 4 parts begin at 0, 1, 3, 4: half a byte. In columns, a row of 3 is 12 bits. */
        assert_int_equal(heft_layout_rank(manifest, rank, 4, HEFT_SPLIT_ROW, 1, &layout, NULL), 0);
        assert_int_equal(entry_of(layout, "odd4")->size_bytes, 9);
        assert_null(entry_of(layout, "odd4")->start);
        assert_non_null(entry_of(layout, "even4")->start);
        heft_layout_free(layout);
        assert_int_equal(heft_layout_rank(manifest, rank, 4, HEFT_SPLIT_COLUMN, 1, &layout, NULL), 0);
        assert_null(entry_of(layout, "odd4")->start);
        assert_null(entry_of(layout, "even4")->start);
        assert_int_equal(entry_of(layout, "embed")->size[1], 2);
        assert_int_equal(entry_of(layout, "embed")->start[1], 2 * rank);
        heft_layout_free(layout);
        assert_int_equal(heft_layout_rank(manifest, rank % 2, 2, HEFT_SPLIT_COLUMN, 1, &layout, NULL), 0);
        assert_int_equal(entry_of(layout, "even4")->size_bytes, 6);
        heft_layout_free(layout);
    }
    heft_manifest_free(manifest);
}

/* Bytes of the tensors that a split leaves whole: each rank has them. With more ranks than rows, one rank may
 * hold all of a tensor and the others nothing of it; that is still a split. */
static uint64_t replicated_bytes(const struct heft_manifest *manifest, uint32_t ranks, enum heft_split split)
{
    uint64_t bytes = 0, index;
    struct heft_layout *first = NULL, *last = NULL;

    assert_int_equal(heft_layout_rank(manifest, 0, ranks, split, 16, &first, NULL), 0);
    assert_int_equal(heft_layout_rank(manifest, ranks - 1, ranks, split, 16, &last, NULL), 0);
    for (index = 0; index < manifest->tensor_count; index++)
        if (!first->tensors[index].start && !last->tensors[index].start)
            bytes += manifest->tensors[index].size_bytes;
    heft_layout_free(first);
    heft_layout_free(last);
    return bytes;
}

static void the_parts_of_all_ranks_are_the_model_once(void **state)
{
    struct heft_manifest *manifest = model();
    uint32_t ranks, rank;
    int number;

    (void)state;
    for (number = HEFT_SPLIT_ROW; number <= HEFT_SPLIT_COLUMN; number++)
        for (ranks = 1; ranks < 30; ranks++) {
            enum heft_split split = (enum heft_split)number;
            uint64_t sum = 0;

            for (rank = 0; rank < ranks; rank++) {
                struct heft_layout *layout = NULL;

                assert_int_equal(heft_layout_rank(manifest, rank, ranks, split, 16, &layout, NULL), 0);
                sum += layout->wanted_bytes;
                heft_layout_free(layout);
            }
            assert_int_equal(sum,
                             manifest->total_bytes + replicated_bytes(manifest, ranks, split) * (ranks - 1));
        }
    heft_manifest_free(manifest);
}

static void senseless_ranks_are_refused(void **state)
{
    struct heft_manifest *manifest = model();
    struct heft_layout *layout = NULL;

    (void)state;
    ASSERT_REFUSED(heft_layout_rank(manifest, 3, 3, HEFT_SPLIT_ROW, 1, &layout, &error), HEFT_ERR_INVALID,
                   "rank 3 of 3");
    ASSERT_REFUSED(heft_layout_rank(manifest, 0, 0, HEFT_SPLIT_ROW, 1, &layout, &error), HEFT_ERR_INVALID,
                   "rank 0 of 0");
    ASSERT_REFUSED(heft_layout_rank(manifest, 0, 2, (enum heft_split)9, 1, &layout, &error), HEFT_ERR_INVALID,
                   "split 9");
    ASSERT_REFUSED(heft_layout_whole(manifest, 0, &layout, &error), HEFT_ERR_INVALID, "power of two");
    ASSERT_REFUSED(heft_layout_whole(manifest, 48, &layout, &error), HEFT_ERR_INVALID, "48 bytes");
    assert_null(layout);
    heft_manifest_free(manifest);
}

/* ---- explicit wishes ---- */

static void wishes_are_copied_and_full_boxes_are_whole(void **state)
{
    struct heft_manifest *manifest = model();
    struct heft_layout *layout = NULL;
    uint64_t start[2] = {2, 1}, size[2] = {3, 4}, zero[2] = {0, 0}, full[2] = {4, 4};
    struct heft_layout_tensor wishes[] = {
        {.start = start, .size = size, .size_bytes = 24, .dst_index = 2, .dst_offset_bytes = 7},
        {.start = start, .size = size, .size_bytes = 24, .dst_index = 0, .dst_offset_bytes = 1000},
        {.start = zero, .size = full, .size_bytes = 100, .dst_index = 0, .dst_offset_bytes = 900},
    };

    (void)state;
    wishes[0].tensor = wishes[1].tensor = heft_manifest_find(manifest, "embed", 5);
    wishes[2].tensor = heft_manifest_find(manifest, "blob", 4);
    assert_int_equal(heft_layout_custom(manifest, wishes, 3, &layout, NULL), 0);
    memset(start, 0xff, sizeof(start));
    memset(size, 0xff, sizeof(size));
    assert_int_equal(layout->tensors[0].start[0], 2);
    assert_int_equal(layout->tensors[0].size[1], 4);
    assert_int_equal(layout->tensors[1].start[1], 1);
    assert_null(layout->tensors[2].start);
    assert_int_equal(layout->arena_bytes, 1024);
    assert_int_equal(layout->wanted_bytes, 148);
    assert_int_equal(layout->split_count, 2);
    heft_layout_free(layout);
    layout = NULL;
    assert_int_equal(heft_layout_custom(manifest, NULL, 0, &layout, NULL), 0);
    assert_int_equal(layout->tensor_count, 0);
    heft_layout_free(layout);
    heft_manifest_free(manifest);
}

static void impossible_wishes_are_refused_by_name(void **state)
{
    struct heft_manifest *manifest = model();
    struct heft_layout *layout = NULL;
    uint64_t start[2] = {2, 1}, size[2] = {3, 4}, far[2] = {UINT64_MAX - 1, 0}, one[2] = {1, 1};
    struct heft_layout_tensor wish = {.start = start, .size = size, .size_bytes = 24};

    (void)state;
#define WISH(code, word) ASSERT_REFUSED(heft_layout_custom(manifest, &wish, 1, &layout, &error), code, word)
    wish.tensor = 7;
    WISH(HEFT_ERR_INVALID, "no tensor 7");
    wish.tensor = UINT64_MAX;
    WISH(HEFT_ERR_INVALID, "no tensor");
    wish.tensor = heft_manifest_find(manifest, "embed", 5);
    wish.size_bytes = 23;
    WISH(HEFT_ERR_INVALID, "\"embed\": the wanted box is 24 bytes, the memory for it 23");
    wish.size_bytes = 24;
    size[0] = 9;
    WISH(HEFT_ERR_INVALID, "\"embed\": the wanted box does not lie");
    wish.start = far;
    WISH(HEFT_ERR_INVALID, "\"embed\": the wanted box does not lie");
    size[0] = 3;
    wish.start = start;
    wish.size = NULL;
    WISH(HEFT_ERR_INVALID, "\"embed\"");
    wish.size = size;
    wish.dst_offset_bytes = UINT64_MAX - 10;
    WISH(HEFT_ERR_TOO_LARGE, "\"embed\"");
    wish.dst_offset_bytes = 0;
    wish.tensor = heft_manifest_find(manifest, "blob", 4);
    wish.start = one;
    wish.size = one;
    WISH(HEFT_ERR_UNSUPPORTED, "\"blob\": dtype \"Q8_0\" is unknown");
    wish.tensor = heft_manifest_find(manifest, "odd4", 4);
    wish.size_bytes = 0;
    WISH(HEFT_ERR_UNSUPPORTED, "\"odd4\"");
#undef WISH
    assert_null(layout);
    heft_manifest_free(manifest);
}

static void overlapping_destinations_are_refused_and_both_are_named(void **state)
{
    struct heft_manifest *manifest = model();
    struct heft_layout *layout = NULL;
    struct heft_layout_tensor wishes[] = {
        {.size_bytes = 160, .dst_index = 1, .dst_offset_bytes = 14},
        {.size_bytes = 0, .dst_index = 1, .dst_offset_bytes = 20},
        {.size_bytes = 14, .dst_index = 1, .dst_offset_bytes = 0},
        {.size_bytes = 160, .dst_index = 2, .dst_offset_bytes = 14},
    };

    (void)state;
    wishes[0].tensor = wishes[3].tensor = heft_manifest_find(manifest, "embed", 5);
    wishes[1].tensor = heft_manifest_find(manifest, "none", 4);
    wishes[2].tensor = heft_manifest_find(manifest, "norm", 4);
    assert_int_equal(heft_layout_custom(manifest, wishes, 4, &layout, NULL), 0);
    assert_int_equal(layout->arena_bytes, 0);
    heft_layout_free(layout);
    layout = NULL;
    wishes[2].dst_offset_bytes = 1;
    ASSERT_REFUSED(heft_layout_custom(manifest, wishes, 4, &layout, &error), HEFT_ERR_INVALID,
                   "\"norm\" and \"embed\" overlap in memory 1");
    wishes[2].dst_offset_bytes = 173;
    ASSERT_REFUSED(heft_layout_custom(manifest, wishes, 4, &layout, &error), HEFT_ERR_INVALID,
                   "\"embed\" and \"norm\" overlap in memory 1");
    wishes[2].dst_offset_bytes = 174;
    assert_int_equal(heft_layout_custom(manifest, wishes, 4, &layout, NULL), 0);
    heft_layout_free(layout);
    heft_manifest_free(manifest);
}

static void shapes_past_64_bits_are_refused_not_wrapped(void **state)
{
    const uint64_t half = (uint64_t)1 << 63;
    const uint64_t box[] = {half - 8, 0, 8, 1}, line[] = {half - 8, 8};
    struct heft_manifest *manifest = table_new(1 << 20);
    struct heft_layout *layout = NULL;
    struct heft_layout_tensor wish = {.start = box, .size = box + 2, .size_bytes = 8};

    (void)state;
    table_add(manifest, "product", 8, SHAPE(half, 2), box, 0);
    table_finish(manifest);
    ASSERT_REFUSED(heft_layout_whole(manifest, 1, &layout, &error), HEFT_ERR_SHAPE_OVERFLOW, "\"product\"");
    ASSERT_REFUSED(heft_layout_rank(manifest, 1, 2, HEFT_SPLIT_ROW, 1, &layout, &error),
                   HEFT_ERR_SHAPE_OVERFLOW, "\"product\"");
    ASSERT_REFUSED(heft_layout_custom(manifest, &wish, 1, &layout, &error), HEFT_ERR_SHAPE_OVERFLOW,
                   "\"product\"");
    heft_manifest_free(manifest);
    manifest = table_new(1 << 20);
    table_add(manifest, "first", 8, SHAPE(half), line, 0);
    table_add(manifest, "second", 8, SHAPE(half), line, 8);
    table_add(manifest, "third", 8, SHAPE(1), NULL, 16);
    table_finish(manifest);
    ASSERT_REFUSED(heft_layout_whole(manifest, 1, &layout, &error), HEFT_ERR_TOO_LARGE, "\"second\"");
    heft_manifest_free(manifest);
    manifest = table_new(1 << 20);
    table_add(manifest, "first", 8, SHAPE(UINT64_MAX), line, 0);
    table_add(manifest, "second", 8, SHAPE(1), NULL, 8);
    table_finish(manifest);
    ASSERT_REFUSED(heft_layout_whole(manifest, 4096, &layout, &error), HEFT_ERR_TOO_LARGE, "\"second\"");
    assert_null(layout);
    heft_manifest_free(manifest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_whole_model_lies_aligned_and_in_order),
        cmocka_unit_test(uneven_rows_go_to_all_ranks_and_the_rest_stays_whole),
        cmocka_unit_test(parts_that_are_not_whole_bytes_stay_whole_on_every_rank),
        cmocka_unit_test(the_parts_of_all_ranks_are_the_model_once),
        cmocka_unit_test(senseless_ranks_are_refused),
        cmocka_unit_test(wishes_are_copied_and_full_boxes_are_whole),
        cmocka_unit_test(impossible_wishes_are_refused_by_name),
        cmocka_unit_test(overlapping_destinations_are_refused_and_both_are_named),
        cmocka_unit_test(shapes_past_64_bits_are_refused_not_wrapped),
    };
    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
