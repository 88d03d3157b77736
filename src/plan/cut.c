/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From atoms to pieces to chunks. An atom that is one run of its tensor is cut at digest blocks of the
 * tensor, and also where a source that lacks some blocks begins or ends to hold it; a strided atom is cut at
 * whole rows, or at blocks of its own. The pieces are then ordered as they lie in their first source and
 * packed.
 */
#include "plan/atoms.h"
#include "base/error.h"
#include "base/pages.h"

#include <inttypes.h>
#include <stdlib.h>

/* Pieces of one chunk may leave this much unread between them: cheaper than another request. */
#define MAX_GAP_BYTES ((uint64_t)64 << 10)
#define MAX_CHUNK_PIECES 4096u

static int lost(struct heft_plan_builder *builder, const struct heft_atom *atom, uint64_t at)
{
    const struct heft_layout *layout = builder->plan->layout;
    struct heft_quote name;

    return heft_error_set(
        builder->error, HEFT_ERR_SOURCE_LOST,
        "tensor %s: none of the %u sources holds the blocks at byte %" PRIu64 " of it yet; add one that does",
        heft_tensor_quote(&name, &layout->reference->tensors[layout->tensors[atom->entry].tensor]),
        builder->plan->source_count, at);
}

/* `copy` is the atom in the first of `sources`. */
static int add_cut(struct heft_plan_builder *builder, uint64_t atom, uint64_t at, uint64_t size,
                   uint64_t sources, const struct heft_copy *copy)
{
    const struct heft_plan_inner *inner = builder->inner;
    uint32_t first = (uint32_t)__builtin_ctzll(sources);
    struct heft_cut *cut;
    uint64_t dst;
    int rc;

    if (builder->cut_count >= HEFT_PLAN_MAX_PIECES)
        return heft_error_set(builder->error, HEFT_ERR_TOO_MANY,
                              "the plan has more than %" PRIu64 " pieces; use larger chunks",
                              HEFT_PLAN_MAX_PIECES);
    rc = heft_plan_grow(&builder->cuts, &builder->cut_capacity, builder->cut_count, 1, sizeof(*cut),
                        builder->error);
    if (rc)
        return rc;
    cut = &builder->cuts[builder->cut_count++];
    cut->piece = (struct heft_piece){.atom = atom, .at_bytes = at, .size_bytes = size};
    cut->sources = sources;
    cut->place =
        (uint64_t)first << 32 | heft_plan_tensor(builder->plan, inner, first, inner->atoms[atom].entry)->file;
    heft_copy_find(copy, at, &cut->offset, &dst);
    heft_copy_find(copy, at + size - 1, &cut->end, &dst);
    cut->end++;
    return HEFT_OK;
}

/* The last place for a cut of a run: as far from `at` as a chunk allows, on a block counted from `origin`. */
static uint64_t cut_limit(uint64_t at, uint64_t end, uint64_t chunk_bytes, uint64_t origin)
{
    uint64_t limit;

    if (end - at <= chunk_bytes)
        return end;
    limit = at + chunk_bytes;
    return limit - (limit - origin) % HEFT_BLOCK_BYTES;
}

/* ---- runs whose sources all have every block ---- */

static int cut_run(struct heft_plan_builder *builder, uint64_t index)
{
    const struct heft_atom *atom = &builder->inner->atoms[index];
    uint64_t at = atom->global_at, end = at + atom->size_bytes;
    uint64_t origin = builder->plan->layout->box_cuts ? at : 0; /* the box's start or the tensor's */
    struct heft_copy copy;
    int rc = HEFT_OK;

    heft_plan_copy(builder->plan, atom, (uint32_t)__builtin_ctzll(atom->sources), &copy);
    while (at < end && rc == HEFT_OK) {
        uint64_t next = cut_limit(at, end, builder->chunk_bytes, origin);

        rc = add_cut(builder, index, at - atom->global_at, next - at, atom->sources, &copy);
        at = next;
    }
    return rc;
}

/* ---- runs of which some source has only some blocks ---- */

/* A source that lacks blocks, and where the atom lies in what it holds. */
struct holder {
    const struct heft_manifest *manifest;
    uint64_t first_block;
    uint64_t held_at;
    uint64_t bit;
};

static uint32_t find_partial(const struct heft_plan_builder *builder, const struct heft_atom *atom,
                             struct holder holders[HEFT_PLAN_MAX_SOURCES])
{
    uint64_t left = atom->sources;
    uint32_t count = 0;

    for (; left != 0; left &= left - 1) {
        uint32_t source = (uint32_t)__builtin_ctzll(left);
        const struct heft_manifest *manifest = builder->inner->sources[source];
        const struct heft_manifest_tensor *tensor;
        struct heft_copy copy;

        if (!manifest->held)
            continue;
        tensor = heft_plan_tensor(builder->plan, builder->inner, source, atom->entry);
        if (heft_manifest_holds(manifest, tensor->first_block, heft_block_count(tensor->size_bytes)))
            continue;
        heft_plan_copy(builder->plan, atom, source, &copy);
        holders[count++] = (struct holder){.manifest = manifest,
                                           .first_block = tensor->first_block,
                                           .held_at = copy.source_at - tensor->offset_bytes,
                                           .bit = (uint64_t)1 << source};
    }
    return count;
}

/* Which sources hold bytes [at, end) of the atom. */
static uint64_t holders_of(const struct heft_atom *atom, const struct holder *holders, uint32_t count,
                           uint64_t at, uint64_t end)
{
    uint64_t sources = atom->sources;
    uint32_t index;

    for (index = 0; index < count; index++) {
        const struct holder *holder = &holders[index];
        uint64_t first = (holder->held_at + at) / HEFT_BLOCK_BYTES;
        uint64_t last = (holder->held_at + end - 1) / HEFT_BLOCK_BYTES;

        if (!heft_manifest_holds(holder->manifest, holder->first_block + first, last - first + 1))
            sources &= ~holder->bit;
    }
    return sources;
}

static uint64_t block_end(uint64_t at, uint64_t end)
{
    uint64_t left = HEFT_BLOCK_BYTES - at % HEFT_BLOCK_BYTES;

    return end - at <= left ? end : at + left;
}

static int cut_held_run(struct heft_plan_builder *builder, uint64_t index, const struct holder *holders,
                        uint32_t holder_count)
{
    const struct heft_atom *atom = &builder->inner->atoms[index];
    uint64_t base = atom->global_at, at = base, end = base + atom->size_bytes;
    struct heft_copy copy;
    int rc = HEFT_OK;

    while (at < end && rc == HEFT_OK) {
        uint64_t limit = cut_limit(at, end, builder->chunk_bytes, 0);
        uint64_t next = block_end(at, end);
        uint64_t sources = holders_of(atom, holders, holder_count, at - base, next - base);

        if (sources == 0)
            return lost(builder, atom, at);
        while (next < limit) {
            uint64_t after = block_end(next, end);

            if (holders_of(atom, holders, holder_count, next - base, after - base) != sources)
                break;
            next = after;
        }
        heft_plan_copy(builder->plan, atom, (uint32_t)__builtin_ctzll(sources), &copy);
        rc = add_cut(builder, index, at - base, next - at, sources, &copy);
        at = next;
    }
    return rc;
}

/* ---- strided atoms ---- */

static int cut_rows(struct heft_plan_builder *builder, uint64_t index)
{
    const struct heft_atom *atom = &builder->inner->atoms[index];
    const uint64_t *box = builder->inner->numbers + atom->box;
    uint64_t dims = builder->inner->numbers[atom->geometry];
    uint64_t row = box[dims * 2 - 1], chunk = builder->chunk_bytes, at = 0;
    struct heft_copy copy;
    int rc = HEFT_OK;

    heft_plan_copy(builder->plan, atom, (uint32_t)__builtin_ctzll(atom->sources), &copy);
    while (at < atom->size_bytes && rc == HEFT_OK) {
        uint64_t size = row <= chunk ? chunk - chunk % row : row - at % row;

        if (builder->plan->layout->box_cuts)
            size = chunk; /* whole blocks, though the first and the last row are then cut */
        if (size > chunk)
            size = chunk;
        if (size > atom->size_bytes - at)
            size = atom->size_bytes - at;
        rc = add_cut(builder, index, at, size, atom->sources, &copy);
        at += size;
    }
    return rc;
}

int heft_plan_cut_atom(struct heft_plan_builder *builder, uint64_t index)
{
    const struct heft_atom *atom = &builder->inner->atoms[index];
    struct holder holders[HEFT_PLAN_MAX_SOURCES];
    uint32_t count;

    if (atom->global_at == HEFT_PLAN_NONE)
        return cut_rows(builder, index);
    count = find_partial(builder, atom, holders);
    return count > 0 ? cut_held_run(builder, index, holders, count) : cut_run(builder, index);
}

/* ---- order and chunks ---- */

struct sort_key {
    uint64_t place, offset;
    uint64_t cut;
};

static int by_place(const void *left_key, const void *right_key)
{
    const struct sort_key *left = left_key, *right = right_key;

    if (left->place != right->place)
        return left->place < right->place ? -1 : 1;
    if (left->offset != right->offset)
        return left->offset < right->offset ? -1 : 1;
    return left->cut < right->cut ? -1 : left->cut > right->cut;
}

static int comes_after(const struct heft_cut *left, const struct heft_cut *right)
{
    return left->place > right->place || (left->place == right->place && left->offset > right->offset);
}

/* Sorts small keys rather than the cuts; layouts mostly come in order, and then nothing is done. */
static int sort_cuts(struct heft_plan_builder *builder)
{
    uint64_t index, count = builder->cut_count;
    struct heft_cut *sorted;
    struct sort_key *keys;

    for (index = 1; index < count; index++)
        if (comes_after(&builder->cuts[index - 1], &builder->cuts[index]))
            break;
    if (index >= count)
        return HEFT_OK;
    keys = malloc(count * sizeof(*keys));
    sorted = malloc(count * sizeof(*sorted));
    if (!keys || !sorted) {
        free(keys);
        free(sorted);
        return heft_error_set(builder->error, HEFT_ERR_NO_MEMORY, "no memory to order %" PRIu64 " pieces",
                              count);
    }
    heft_pages_expect_filled(keys, count * sizeof(*keys));
    heft_pages_expect_filled(sorted, count * sizeof(*sorted));
    for (index = 0; index < count; index++)
        keys[index] = (struct sort_key){builder->cuts[index].place, builder->cuts[index].offset, index};
    qsort(keys, count, sizeof(*keys), by_place);
    for (index = 0; index < count; index++)
        sorted[index] = builder->cuts[keys[index].cut];
    free(keys);
    free(builder->cuts);
    builder->cuts = sorted;
    builder->cut_capacity = count;
    return HEFT_OK;
}

/*
 * In a layout whose memory is used again and again, a chunk must not need room for one large entry to finish
 * another.
 */
static int may_share(const struct heft_plan_builder *builder, const struct heft_cut *last,
                     const struct heft_cut *cut)
{
    const struct heft_layout *layout = builder->plan->layout;
    uint64_t left = builder->inner->atoms[last->piece.atom].entry;
    uint64_t right = builder->inner->atoms[cut->piece.atom].entry;

    return !layout->keep_order || left == right ||
           (layout->tensors[left].size_bytes < builder->chunk_bytes &&
            layout->tensors[right].size_bytes < builder->chunk_bytes);
}

/* True when `cut` may follow `last` in a chunk that has `chunk` so far. */
static int joins(const struct heft_plan_builder *builder, const struct heft_chunk *chunk, uint64_t reach,
                 const struct heft_cut *last, const struct heft_cut *cut)
{
    return chunk->piece_count < MAX_CHUNK_PIECES && cut->sources == last->sources &&
           cut->place == last->place && cut->piece.size_bytes <= builder->chunk_bytes - chunk->size_bytes &&
           (cut->offset <= reach || cut->offset - reach <= MAX_GAP_BYTES) && may_share(builder, last, cut);
}

int heft_plan_pack(struct heft_plan_builder *builder)
{
    struct heft_plan *plan = builder->plan;
    struct heft_chunk *chunk = NULL;
    uint64_t index, reach = 0, capacity = 0;
    int rc = plan->layout->keep_order ? HEFT_OK : sort_cuts(builder);

    if (rc || builder->cut_count == 0)
        return rc;
    plan->pieces = malloc(builder->cut_count * sizeof(*plan->pieces));
    if (!plan->pieces)
        return heft_error_set(builder->error, HEFT_ERR_NO_MEMORY, "no memory for %" PRIu64 " pieces",
                              builder->cut_count);
    heft_pages_expect_filled(plan->pieces, builder->cut_count * sizeof(*plan->pieces));
    for (index = 0; index < builder->cut_count; index++) {
        const struct heft_cut *cut = &builder->cuts[index];

        if (!chunk || !joins(builder, chunk, reach, cut - 1, cut)) {
            rc = heft_plan_grow(&plan->chunks, &capacity, plan->chunk_count, 1, sizeof(*chunk),
                                builder->error);
            if (rc)
                return rc;
            chunk = &plan->chunks[plan->chunk_count++];
            *chunk = (struct heft_chunk){.first_piece = index, .sources = cut->sources};
            reach = 0;
        }
        plan->pieces[index] = cut->piece;
        chunk->piece_count++;
        chunk->size_bytes += cut->piece.size_bytes;
        plan->total_bytes += cut->piece.size_bytes;
        if (cut->end > reach)
            reach = cut->end;
    }
    plan->piece_count = builder->cut_count;
    return HEFT_OK;
}
