/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts: which boxes of which tensors a receiver wants and where each lands. A layout is one block of
 * memory: the table, then the numbers of its boxes; offsets are handed out in the manifest's order.
 */
#include "plan/plan.h"
#include "base/error.h"
#include "base/pages.h"
#include "plan/geometry.h"
#include "plan/layout_build.h"

#include <inttypes.h>
#include <stdlib.h>

uint64_t *heft_layout_numbers(struct heft_layout *layout)
{
    return (uint64_t *)(void *)(layout->tensors + layout->tensor_count);
}

int heft_layout_new(const struct heft_manifest *reference, uint64_t count, uint64_t number_count,
                    struct heft_layout **layout_out, struct heft_error *error)
{
    struct heft_layout *layout = calloc(1, sizeof(*layout));
    uint64_t table_bytes, numbers_bytes, bytes;

    if (!layout || __builtin_mul_overflow(count, sizeof(struct heft_layout_tensor), &table_bytes) ||
        __builtin_mul_overflow(number_count, sizeof(uint64_t), &numbers_bytes) ||
        __builtin_add_overflow(table_bytes, numbers_bytes, &bytes))
        goto fail_memory;
    layout->arena = calloc(1, bytes > 0 ? bytes : 1);
    if (!layout->arena)
        goto fail_memory;
    heft_pages_expect_filled(layout->arena, table_bytes);
    layout->reference = reference;
    layout->tensors = layout->arena;
    layout->tensor_count = count;
    *layout_out = layout;
    return HEFT_OK;

fail_memory:
    free(layout);
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for a layout of %" PRIu64 " tensors", count);
}

void heft_layout_free(struct heft_layout *layout)
{
    if (!layout)
        return;
    free(layout->arena);
    free(layout);
}

/* Counts one tensor into the layout's sums and refuses what 64 bits can't count. */
static int layout_add_up(struct heft_layout *layout, const struct heft_layout_tensor *entry,
                         struct heft_error *error)
{
    struct heft_quote name;
    uint64_t end;

    if (__builtin_add_overflow(entry->dst_offset_bytes, entry->size_bytes, &end) ||
        __builtin_add_overflow(layout->wanted_bytes, entry->size_bytes, &layout->wanted_bytes))
        return heft_error_set(
            error, HEFT_ERR_TOO_LARGE,
            "tensor %s: the layout ends past what 64 bits can count (at offset %" PRIu64 ")",
            heft_tensor_quote(&name, &layout->reference->tensors[entry->tensor]), entry->dst_offset_bytes);
    if (entry->dst_index == 0 && end > layout->arena_bytes)
        layout->arena_bytes = end;
    layout->split_count += entry->start != NULL;
    return HEFT_OK;
}

/* The next place in the arena for `entry`, whose size is known. */
int heft_layout_place(struct heft_layout *layout, struct heft_layout_tensor *entry, uint64_t align_bytes,
                      struct heft_error *error)
{
    struct heft_quote name;
    uint64_t offset;

    if (__builtin_add_overflow(layout->arena_bytes, align_bytes - 1, &offset))
        return heft_error_set(
            error, HEFT_ERR_TOO_LARGE,
            "tensor %s: the layout ends past what 64 bits can count (at offset %" PRIu64 ")",
            heft_tensor_quote(&name, &layout->reference->tensors[entry->tensor]), layout->arena_bytes);
    entry->dst_index = 0;
    entry->dst_offset_bytes = offset & ~(align_bytes - 1);
    return layout_add_up(layout, entry, error);
}

int heft_layout_check_align(uint64_t align_bytes, struct heft_error *error)
{
    if (align_bytes == 0 || (align_bytes & (align_bytes - 1)) != 0)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "a layout's alignment must be a power of two, not %" PRIu64 " bytes",
                              align_bytes);
    return HEFT_OK;
}

int heft_layout_check_rank(uint32_t rank, uint32_t ranks, struct heft_error *error)
{
    if (ranks == 0 || ranks > HEFT_LAYOUT_MAX_RANKS || rank >= ranks)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "rank %u of %u: the rank must be below the number of ranks, which is 1 to %u",
                              rank, ranks, HEFT_LAYOUT_MAX_RANKS);
    return HEFT_OK;
}

int heft_layout_whole(const struct heft_manifest *reference, uint64_t align_bytes,
                      struct heft_layout **layout_out, struct heft_error *error)
{
    return heft_layout_rank(reference, 0, 1, HEFT_SPLIT_ROW, align_bytes, layout_out, error);
}

/* ---- one rank of several ---- */

/*
 * True when every part along `dim`, of every rank, is whole bytes: all ranks must come to the same answer.
 * The product may wrap, see heft_box_is_bytes.
 */
static int parts_are_bytes(const struct heft_manifest_tensor *tensor, uint32_t dim, uint32_t ranks)
{
    uint64_t bits = tensor->dtype_bits;
    uint32_t inner, rank;

    if (bits == 0)
        return 0;
    for (inner = dim + 1; inner < tensor->rank; inner++)
        bits *= tensor->shape[inner];
    if (bits % 8 == 0)
        return 1;
    for (rank = 1; rank <= ranks; rank++)
        if (heft_part_start(tensor->shape[dim], rank, ranks) * bits % 8 != 0)
            return 0;
    return 1;
}

static int splits(const struct heft_manifest_tensor *tensor, uint32_t ranks, enum heft_split split)
{
    if (ranks == 1 || tensor->rank < 2)
        return 0;
    return parts_are_bytes(tensor, split == HEFT_SPLIT_ROW ? 0 : tensor->rank - 1, ranks);
}

/* Boxes made before, by the shape's address: a manifest keeps equal shapes once. */
#define KNOWN_BOXES 64u
struct known_box {
    const uint64_t *shape;
    const uint64_t *numbers;
    uint32_t rank;
};

/* Sets the entry's box, written at `numbers` when it is new; returns how many numbers it took. */
static uint64_t cut_part(const struct heft_manifest_tensor *tensor, struct heft_layout_tensor *entry,
                         uint32_t rank, uint32_t ranks, enum heft_split split, uint64_t *numbers,
                         struct known_box known[KNOWN_BOXES])
{
    uint32_t dim = split == HEFT_SPLIT_ROW ? 0 : tensor->rank - 1, index;
    uint64_t start = heft_part_start(tensor->shape[dim], rank, ranks);
    uint64_t end = heft_part_start(tensor->shape[dim], rank + 1, ranks);
    struct known_box *slot = &known[(uintptr_t)tensor->shape / sizeof(uint64_t) % KNOWN_BOXES];
    uint64_t *size = numbers + tensor->rank, taken = 0;

    if (end - start == tensor->shape[dim])
        return 0;
    if (slot->shape != tensor->shape || slot->rank != tensor->rank) {
        for (index = 0; index < tensor->rank; index++) {
            numbers[index] = 0;
            size[index] = tensor->shape[index];
        }
        numbers[dim] = start;
        size[dim] = end - start;
        *slot = (struct known_box){.shape = tensor->shape, .numbers = numbers, .rank = tensor->rank};
        taken = (uint64_t)tensor->rank * 2;
    }
    entry->start = slot->numbers;
    entry->size = slot->numbers + tensor->rank;
    return taken;
}

int heft_layout_rank(const struct heft_manifest *reference, uint32_t rank, uint32_t ranks,
                     enum heft_split split, uint64_t align_bytes, struct heft_layout **layout_out,
                     struct heft_error *error)
{
    struct known_box known[KNOWN_BOXES] = {0};
    struct heft_layout *layout = NULL;
    uint64_t index, number_count = 0, *numbers;
    int rc = heft_layout_check_align(align_bytes, error);

    if (rc)
        return rc;
    rc = heft_layout_check_rank(rank, ranks, error);
    if (rc)
        return rc;
    if (split != HEFT_SPLIT_ROW && split != HEFT_SPLIT_COLUMN)
        return heft_error_set(error, HEFT_ERR_INVALID, "unknown split %d: row or column", (int)split);
    for (index = 0; index < reference->tensor_count; index++)
        if (splits(&reference->tensors[index], ranks, split))
            number_count += (uint64_t)reference->tensors[index].rank * 2;
    rc = heft_layout_new(reference, reference->tensor_count, number_count, &layout, error);
    if (rc)
        return rc;
    numbers = heft_layout_numbers(layout);
    for (index = 0; index < reference->tensor_count; index++) {
        const struct heft_manifest_tensor *tensor = &reference->tensors[index];
        struct heft_layout_tensor *entry = &layout->tensors[index];

        entry->tensor = index;
        if (splits(tensor, ranks, split))
            numbers += cut_part(tensor, entry, rank, ranks, split, numbers, known);
        rc = entry->start ? heft_shape_bytes(tensor, &entry->size_bytes, error)
                          : heft_global_bytes(tensor, &entry->size_bytes, error);
        if (rc)
            goto fail_layout;
        if (entry->start)
            entry->size_bytes = heft_box_size_bytes(tensor, (struct heft_box){entry->start, entry->size});
        rc = heft_layout_place(layout, entry, align_bytes, error);
        if (rc)
            goto fail_layout;
    }
    *layout_out = layout;
    return HEFT_OK;

fail_layout:
    heft_layout_free(layout);
    return rc;
}

/* ---- explicit wishes ---- */

/* Checks one wish against the reference; whole_out tells that it wants the whole tensor. */
static int check_wish(const struct heft_manifest *reference, const struct heft_layout_tensor *wish,
                      uint64_t number, int *whole_out, struct heft_error *error)
{
    const struct heft_manifest_tensor *tensor;
    struct heft_box box = {wish->start, wish->size};
    struct heft_quote name, dtype;
    uint64_t bytes = 0;
    int rc;

    if (wish->tensor >= reference->tensor_count)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "wish %" PRIu64 ": there is no tensor %" PRIu64 ", the model has %" PRIu64,
                              number, wish->tensor, reference->tensor_count);
    tensor = &reference->tensors[wish->tensor];
    if ((wish->start == NULL) != (wish->size == NULL) || !heft_box_fits(tensor, box))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "tensor %s: the wanted box does not lie in the tensor's shape",
                              heft_tensor_quote(&name, tensor));
    *whole_out = heft_box_is_whole(tensor, box);
    rc = *whole_out ? heft_global_bytes(tensor, &bytes, error) : heft_shape_bytes(tensor, &bytes, error);
    if (rc)
        return rc;
    if (!heft_box_is_bytes(tensor, box))
        return heft_error_set(
            error, HEFT_ERR_UNSUPPORTED,
            "tensor %s: the wanted box cuts bytes of dtype %s apart; take whole bytes or the whole tensor",
            heft_tensor_quote(&name, tensor), heft_quote_text(&dtype, tensor->dtype));
    if (!*whole_out)
        bytes = heft_box_size_bytes(tensor, box);
    if (wish->size_bytes != bytes)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "tensor %s: the wanted box is %" PRIu64 " bytes, the memory for it %" PRIu64,
                              heft_tensor_quote(&name, tensor), bytes, wish->size_bytes);
    return HEFT_OK;
}

static int by_destination(const void *left_slot, const void *right_slot)
{
    const struct heft_layout_tensor *left = *(const struct heft_layout_tensor *const *)left_slot;
    const struct heft_layout_tensor *right = *(const struct heft_layout_tensor *const *)right_slot;

    if (left->dst_index != right->dst_index)
        return left->dst_index < right->dst_index ? -1 : 1;
    if (left->dst_offset_bytes != right->dst_offset_bytes)
        return left->dst_offset_bytes < right->dst_offset_bytes ? -1 : 1;
    return 0;
}

/* Two wishes for the same bytes of memory would leave the memory's content to chance. */
static int check_overlap(const struct heft_layout *layout, struct heft_error *error)
{
    const struct heft_layout_tensor **sorted =
        malloc(layout->tensor_count > 0 ? layout->tensor_count * sizeof(*sorted) : sizeof(*sorted));
    struct heft_quote left_name, right_name;
    uint64_t count = 0, index;
    int ordered = 1, rc = HEFT_OK;

    if (!sorted)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for a layout of %" PRIu64 " tensors",
                              layout->tensor_count);
    for (index = 0; index < layout->tensor_count; index++) {
        if (layout->tensors[index].size_bytes == 0)
            continue;
        sorted[count++] = &layout->tensors[index];
        ordered = ordered && (count < 2 || by_destination(&sorted[count - 2], &sorted[count - 1]) <= 0);
    }
    if (!ordered)
        qsort(sorted, count, sizeof(*sorted), by_destination);
    for (index = 1; index < count && rc == HEFT_OK; index++) {
        const struct heft_layout_tensor *left = sorted[index - 1], *right = sorted[index];

        if (left->dst_index == right->dst_index &&
            right->dst_offset_bytes - left->dst_offset_bytes < left->size_bytes)
            rc = heft_error_set(
                error, HEFT_ERR_INVALID,
                "the destinations of tensors %s and %s overlap in memory %u at offset %" PRIu64,
                heft_tensor_quote(&left_name, &layout->reference->tensors[left->tensor]),
                heft_tensor_quote(&right_name, &layout->reference->tensors[right->tensor]), left->dst_index,
                right->dst_offset_bytes);
    }
    free(sorted);
    return rc;
}

int heft_layout_custom(const struct heft_manifest *reference, const struct heft_layout_tensor *wishes,
                       uint64_t count, struct heft_layout **layout_out, struct heft_error *error)
{
    struct heft_layout *layout = NULL;
    uint64_t index, number_count = 0, *numbers;
    int rc;

    for (index = 0; index < count; index++) {
        uint64_t more = 0;

        if (wishes[index].start && wishes[index].tensor < reference->tensor_count)
            more = (uint64_t)reference->tensors[wishes[index].tensor].rank * 2;
        if (__builtin_add_overflow(number_count, more, &number_count))
            return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for %" PRIu64 " wishes", count);
    }
    rc = heft_layout_new(reference, count, number_count, &layout, error);
    if (rc)
        return rc;
    numbers = heft_layout_numbers(layout);
    for (index = 0; index < count; index++) {
        struct heft_layout_tensor *entry = &layout->tensors[index];
        uint32_t rank, dim;
        int whole = 1;

        rc = check_wish(reference, &wishes[index], index, &whole, error);
        if (rc)
            goto fail_layout;
        *entry = wishes[index];
        entry->start = entry->size = NULL;
        if (!whole) {
            rank = reference->tensors[entry->tensor].rank;
            for (dim = 0; dim < rank; dim++) {
                numbers[dim] = wishes[index].start[dim];
                numbers[rank + dim] = wishes[index].size[dim];
            }
            entry->start = numbers;
            entry->size = numbers + rank;
            numbers += (uint64_t)rank * 2;
        }
        rc = layout_add_up(layout, entry, error);
        if (rc)
            goto fail_layout;
    }
    rc = check_overlap(layout, error);
    if (rc)
        goto fail_layout;
    *layout_out = layout;
    return HEFT_OK;

fail_layout:
    heft_layout_free(layout);
    return rc;
}
