/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs: the byte ranges that bring a chunk from a source, computed when they are asked for, without memory of
 * their own. A piece of a strided atom is a part of a row, then whole rows (as many as are regular at a time
 * are one run with strides), then a part of a row.
 */
#include "plan/plan.h"
#include "base/digest.h"
#include "base/error.h"
#include "plan/atoms.h"

/* Holds the last run back until it is known that the next does not continue it. */
struct run_list {
    struct heft_plan_run *runs;
    size_t max, count;
    struct heft_plan_run last; /* count 0: none */
};

static void put_last(struct run_list *list)
{
    if (list->last.count == 0)
        return;
    if (list->count < list->max)
        list->runs[list->count] = list->last;
    list->count++;
}

/* True when `run` goes on where the last one ends, on both sides; the last one then includes it. */
static int join_last(struct heft_plan_run *last, const struct heft_plan_run *run)
{
    if (last->count == 0 || last->source_file != run->source_file || last->dst_index != run->dst_index)
        return 0;
    if (last->count == 1 && run->count == 1) {
        if (last->source_offset_bytes + last->length_bytes != run->source_offset_bytes ||
            last->dst_offset_bytes + last->length_bytes != run->dst_offset_bytes)
            return 0;
        last->length_bytes += run->length_bytes;
        last->source_stride_bytes = last->dst_stride_bytes = last->length_bytes;
        return 1;
    }
    if (last->count == 1 || last->length_bytes != run->length_bytes ||
        last->source_offset_bytes + last->count * last->source_stride_bytes != run->source_offset_bytes ||
        last->dst_offset_bytes + last->count * last->dst_stride_bytes != run->dst_offset_bytes)
        return 0;
    if (run->count > 1 && (last->source_stride_bytes != run->source_stride_bytes ||
                           last->dst_stride_bytes != run->dst_stride_bytes))
        return 0;
    last->count += run->count;
    return 1;
}

static void add_run(struct run_list *list, const struct heft_plan_run *run)
{
    if (join_last(&list->last, run))
        return;
    put_last(list);
    list->last = *run;
}

static void add_piece(struct run_list *list, const struct heft_copy *copy, const struct heft_piece *piece,
                      struct heft_plan_run run)
{
    uint64_t row = copy->steps[0].count, at = piece->at_bytes, left = piece->size_bytes;

    while (left > 0) {
        uint64_t inside = copy->step_count > 1 ? at % row : at, bytes;

        heft_copy_find(copy, at, &run.source_offset_bytes, &run.dst_offset_bytes);
        run.count = 1;
        bytes = row - inside < left ? row - inside : left;
        run.length_bytes = bytes;
        run.source_stride_bytes = run.dst_stride_bytes = bytes;
        if (inside == 0 && bytes == row && copy->step_count > 1) {
            uint64_t lines = copy->steps[1].count - at / row % copy->steps[1].count;

            run.count = left / row < lines ? left / row : lines;
            bytes = run.count * row;
            if (run.count > 1) {
                run.source_stride_bytes = copy->steps[1].source_stride;
                run.dst_stride_bytes = copy->steps[1].dst_stride;
            }
        }
        add_run(list, &run);
        at += bytes;
        left -= bytes;
    }
}

size_t heft_plan_runs(const struct heft_plan *plan, uint64_t chunk, uint32_t source,
                      struct heft_plan_run *runs_out, size_t max)
{
    const struct heft_plan_inner *inner = plan->arena;
    struct run_list list = {.runs = runs_out, .max = max};
    const struct heft_piece *piece, *end;
    struct heft_copy copy;

    HEFT_ASSERT(chunk < plan->chunk_count && source < plan->source_count);
    HEFT_ASSERT(plan->chunks[chunk].sources >> source & 1);
    piece = &plan->pieces[plan->chunks[chunk].first_piece];
    end = piece + plan->chunks[chunk].piece_count;
    for (; piece < end; piece++) {
        const struct heft_atom *atom = &inner->atoms[piece->atom];
        struct heft_plan_run run = {
            .source_file = heft_plan_tensor(plan, inner, source, atom->entry)->file,
            .dst_index = plan->layout->tensors[atom->entry].dst_index,
        };

        heft_plan_copy(plan, atom, source, &copy);
        add_piece(&list, &copy, piece, run);
    }
    put_last(&list);
    return list.count;
}

static uint64_t global_bytes(const struct heft_plan *plan, const struct heft_atom *atom)
{
    const struct heft_plan_inner *inner = plan->arena;
    const uint64_t *numbers;
    uint64_t bytes = 1, dim;

    if (atom->geometry == HEFT_PLAN_NONE)
        return atom->size_bytes;
    numbers = inner->numbers + atom->geometry;
    for (dim = 0; dim < numbers[0]; dim++)
        bytes *= numbers[2 + dim];
    return bytes;
}

void heft_plan_piece_blocks(const struct heft_plan *plan, uint64_t piece_index,
                            struct heft_piece_blocks *blocks_out)
{
    const struct heft_plan_inner *inner = plan->arena;
    const struct heft_piece *piece;
    const struct heft_atom *atom;
    struct heft_copy copy;
    uint64_t begin, end, whole, first, after, source_at;

    HEFT_ASSERT(piece_index < plan->piece_count);
    piece = &plan->pieces[piece_index];
    atom = &inner->atoms[piece->atom];
    *blocks_out = (struct heft_piece_blocks){.layout_tensor = atom->entry,
                                             .dst_index = plan->layout->tensors[atom->entry].dst_index};
    if (atom->global_at == HEFT_PLAN_NONE)
        return;
    begin = atom->global_at + piece->at_bytes;
    end = begin + piece->size_bytes;
    whole = global_bytes(plan, atom);
    first = heft_block_count(begin);
    after = end == whole ? heft_block_count(end) : end / HEFT_BLOCK_BYTES;
    if (first >= after)
        return;
    heft_plan_copy(plan, atom, (uint32_t)__builtin_ctzll(atom->sources), &copy);
    heft_copy_find(&copy, first * HEFT_BLOCK_BYTES - atom->global_at, &source_at,
                   &blocks_out->dst_offset_bytes);
    blocks_out->first = first;
    blocks_out->count = after - first;
    blocks_out->size_bytes = (end == whole ? end : after * HEFT_BLOCK_BYTES) - first * HEFT_BLOCK_BYTES;
}
