/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads exchange whole digest blocks of tensors that they hold alike, so that all that is exchanged is
 * compared with a digest. A chunk that cuts a block, or brings a part of a fused tensor, is not exchanged.
 */
#include "base/digest.h"
#include "base/error.h"
#include "load/fleet_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- what two loads have in common ---- */

static int same_numbers(const uint64_t *left, const uint64_t *right, uint32_t count)
{
    return left == right || (left && right && memcmp(left, right, count * sizeof(*left)) == 0);
}

/* The same box of the same tensor. Fused tensors of a rank have a shape of their own, which is nobody's box.
 */
static int held_alike(const struct heft_manifest_tensor *left, const struct heft_manifest_tensor *right,
                      const struct heft_manifest *reference)
{
    uint64_t index = heft_manifest_find(reference, left->name, left->name_bytes);

    return index != UINT64_MAX && left->rank == right->rank && strcmp(left->dtype, right->dtype) == 0 &&
           left->size_bytes == right->size_bytes && same_numbers(left->shape, right->shape, left->rank) &&
           same_numbers(left->box_start, right->box_start, left->rank) &&
           same_numbers(left->box_size, right->box_size, left->rank) &&
           reference->tensors[index].rank == left->rank &&
           strcmp(reference->tensors[index].dtype, left->dtype) == 0 &&
           same_numbers(reference->tensors[index].shape, left->shape, left->rank);
}

static int add_common(const struct heft_fleet *fleet, const struct heft_manifest *theirs,
                      const struct heft_manifest *reference, struct fleet_peer *peer,
                      struct heft_manifest *view, struct heft_error *error)
{
    const struct heft_manifest *mine = fleet->manifest;
    uint64_t index;
    int rc = HEFT_OK;

    for (index = 0; index < theirs->tensor_count && !rc; index++) {
        const struct heft_manifest_tensor *tensor = &theirs->tensors[index], *own;
        uint64_t at = heft_manifest_find(mine, tensor->name, tensor->name_bytes);

        if (at == UINT64_MAX || tensor->size_bytes == 0)
            continue;
        own = &mine->tensors[at];
        /* A GPU's digests are of whole tensors. */
        if ((fleet->options.on_device && own->box_start) || !held_alike(own, tensor, reference))
            continue;
        rc = heft_manifest_add_tensor(view, tensor, error);
        peer->spans[peer->span_count++] =
            (struct fleet_span){tensor->first_block, own->first_block, heft_block_count(own->size_bytes)};
    }
    return rc;
}

int heft_fleet_match(const struct heft_fleet *fleet, const struct heft_manifest *theirs,
                     const struct heft_manifest *reference, struct fleet_peer *peer,
                     struct heft_manifest **view_out, struct heft_error *error)
{
    struct heft_manifest *view = heft_manifest_new();
    uint32_t file;
    int rc = HEFT_OK;

    peer->spans = calloc(theirs->tensor_count + 1, sizeof(*peer->spans));
    if (!view || !peer->spans)
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "comparing with another load");
    if (!rc)
        rc = heft_manifest_set_identity(view, &theirs->identity, error);
    for (file = 0; file < theirs->file_count && !rc; file++)
        rc = heft_manifest_add_file(view, "", theirs->files[file].size_bytes, theirs->files[file].region,
                                    NULL, error);
    if (!rc)
        rc = add_common(fleet, theirs, reference, peer, view, error);
    if (!rc && peer->span_count == 0)
        rc = heft_error_set(error, HEFT_ERR_NOT_FOUND, "it wants other parts of the model: none in common");
    if (!rc)
        rc = heft_manifest_finish(view, error);
    if (rc) {
        heft_manifest_free(view);
        free(peer->spans);
        peer->spans = NULL;
        peer->span_count = 0;
        return rc;
    }
    *view_out = view;
    return HEFT_OK;
}

/* ---- blocks of chunks ---- */

struct lister {
    struct heft_fleet *fleet;
    uint64_t count, capacity; /* of ranges */
    uint32_t part;            /* the bytes that were joined so far: */
    uint64_t from, to;
    int is_whole; /* every block of the chunk is in it as a whole */
};

static int add_range(struct lister *lister, uint64_t first, uint64_t count)
{
    struct fleet_blocks *grown;

    if (lister->count == lister->capacity) {
        lister->capacity = lister->capacity * 2 + 1024;
        grown = realloc(lister->fleet->ranges, lister->capacity * sizeof(*grown));
        if (!grown)
            return HEFT_ERR_NO_MEMORY;
        lister->fleet->ranges = grown;
    }
    lister->fleet->ranges[lister->count++] = (struct fleet_blocks){first, count};
    return HEFT_OK;
}

/* The first tensor that does not end before the byte. */
static uint64_t first_tensor(const struct heft_manifest *manifest, uint32_t file, uint64_t offset)
{
    uint64_t low = 0, high = manifest->tensor_count;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        const struct heft_manifest_tensor *tensor = &manifest->tensors[middle];

        if (tensor->file < file ||
            (tensor->file == file && tensor->offset_bytes + tensor->size_bytes <= offset))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The blocks of the joined bytes. */
static int end_bytes(struct lister *lister)
{
    const struct heft_manifest *manifest = lister->fleet->manifest;
    uint64_t index = first_tensor(manifest, lister->part, lister->from);
    int rc = HEFT_OK;

    for (; index < manifest->tensor_count && lister->from < lister->to && !rc; index++) {
        const struct heft_manifest_tensor *tensor = &manifest->tensors[index];
        uint64_t from, to;

        if (tensor->file != lister->part || tensor->offset_bytes >= lister->to)
            break;
        if (tensor->size_bytes == 0)
            continue;
        from = lister->from > tensor->offset_bytes ? lister->from - tensor->offset_bytes : 0;
        to = lister->to - tensor->offset_bytes;
        to = to < tensor->size_bytes ? to : tensor->size_bytes;
        if (from % HEFT_BLOCK_BYTES || (to % HEFT_BLOCK_BYTES && to != tensor->size_bytes) ||
            lister->fleet->entry_of[index] == HEFT_FLEET_NONE)
            lister->is_whole = 0;
        else
            rc = add_range(lister, tensor->first_block + from / HEFT_BLOCK_BYTES,
                           heft_block_count(to) - from / HEFT_BLOCK_BYTES);
    }
    lister->from = lister->to = 0;
    return rc;
}

static int add_bytes(struct lister *lister, const struct heft_plan_run *run)
{
    uint64_t size = run->length_bytes * run->count;
    int rc = HEFT_OK;

    if (run->count > 1 && run->dst_stride_bytes != run->length_bytes)
        lister->is_whole = 0;
    if (lister->to != lister->from && (run->dst_index != lister->part || run->dst_offset_bytes != lister->to))
        rc = end_bytes(lister);
    if (lister->to == lister->from) {
        lister->part = run->dst_index;
        lister->from = lister->to = run->dst_offset_bytes;
    }
    lister->to += size;
    return rc;
}

static int list_chunk(struct lister *lister, uint64_t chunk, struct heft_plan_run **runs, size_t *room)
{
    struct heft_fleet *fleet = lister->fleet;
    const struct heft_plan *plan = fleet->plan;
    uint32_t source = (uint32_t)__builtin_ctzll(plan->chunks[chunk].sources);
    uint64_t first = lister->count, at, block;
    size_t used, index;
    int rc = HEFT_OK;

    while ((used = heft_plan_runs(plan, chunk, source, *runs, *room)) > *room) {
        free(*runs);
        *runs = calloc(used, sizeof(**runs));
        *room = *runs ? used : 0;
        if (!*runs)
            return HEFT_ERR_NO_MEMORY;
    }
    lister->is_whole = 1;
    for (index = 0; index < used && !rc; index++)
        rc = add_bytes(lister, &(*runs)[index]);
    if (!rc)
        rc = end_bytes(lister);
    if (!lister->is_whole)
        lister->count = first;
    for (at = first; at < lister->count; at++)
        for (block = 0; block < fleet->ranges[at].count; block++)
            fleet->chunk_of[fleet->ranges[at].first + block] = chunk;
    return rc;
}

/* Which of the layout's entries each tensor is; none for those of several. */
static int list_entries(struct heft_fleet *fleet)
{
    const struct heft_layout *layout = fleet->plan->layout;
    const struct heft_manifest *manifest = fleet->manifest;
    uint64_t index;

    fleet->entry_of = malloc((manifest->tensor_count + 1) * sizeof(*fleet->entry_of));
    if (!fleet->entry_of)
        return HEFT_ERR_NO_MEMORY;
    for (index = 0; index < layout->tensor_count; index++) {
        const struct heft_manifest_tensor *tensor =
            &layout->reference->tensors[layout->tensors[index].tensor];
        uint64_t at = heft_manifest_find(manifest, tensor->name, tensor->name_bytes);
        int is_fused = layout->tensors[index].joined ||
                       (index + 1 < layout->tensor_count && layout->tensors[index + 1].joined);

        HEFT_ASSERT(at != UINT64_MAX);
        fleet->entry_of[at] = is_fused ? HEFT_FLEET_NONE : index;
    }
    return HEFT_OK;
}

int heft_fleet_list_blocks(struct heft_fleet *fleet, struct heft_error *error)
{
    struct lister lister = {.fleet = fleet};
    uint64_t chunks = fleet->plan->chunk_count, blocks = fleet->manifest->block_count, at;
    struct heft_plan_run *runs = NULL;
    size_t room = 0;
    int rc = list_entries(fleet);

    fleet->first_range = calloc(chunks + 1, sizeof(*fleet->first_range));
    fleet->chunk_of = malloc((blocks + 1) * sizeof(*fleet->chunk_of));
    if (!fleet->first_range || !fleet->chunk_of)
        rc = HEFT_ERR_NO_MEMORY;
    for (at = 0; at < blocks && !rc; at++)
        fleet->chunk_of[at] = HEFT_FLEET_NONE;
    for (at = 0; at < chunks && !rc; at++) {
        fleet->first_range[at] = lister.count;
        rc = list_chunk(&lister, at, &runs, &room);
    }
    if (!rc)
        fleet->first_range[chunks] = lister.count;
    free(runs);
    return rc ? heft_error_set(error, rc, "listing the blocks that loads exchange") : HEFT_OK;
}

uint64_t heft_fleet_block_digest(const struct heft_fleet *fleet, uint64_t block)
{
    uint64_t index = heft_manifest_tensor_of_block(fleet->manifest, block), at, size;
    const struct heft_manifest_tensor *tensor = &fleet->manifest->tensors[index];
    uint64_t computed = fleet->move.computed_first[fleet->entry_of[index]];

    block -= tensor->first_block;
    if (computed != UINT64_MAX)
        return fleet->move.computed[computed + block];
    at = block * HEFT_BLOCK_BYTES;
    size = tensor->size_bytes - at < HEFT_BLOCK_BYTES ? tensor->size_bytes - at : HEFT_BLOCK_BYTES;
    return heft_hash64(fleet->options.addresses[tensor->file] + tensor->offset_bytes + at, (size_t)size, 0);
}
