/* SPDX-License-Identifier: Apache-2.0 */
/* Making and freeing plans: finds each wanted tensor in every source, then atoms, cuts and chunks. */
#include "plan/plan.h"
#include "base/error.h"
#include "base/pages.h"
#include "plan/atoms.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Chunks beyond this are no longer chunks; keeps all sums with a chunk's size below 2^64. */
#define MAX_CHUNK_BYTES ((uint64_t)1 << 40)

int heft_plan_enlarge(void *array_slot, uint64_t *capacity, uint64_t count, uint64_t more, size_t item_bytes,
                      struct heft_error *error)
{
    uint64_t need = count + more, room = *capacity + *capacity / 2, bytes = 0;
    void *grown = NULL, *array;

    if (room < need)
        room = need + 16;
    memcpy(&array, array_slot, sizeof(array));
    if (need >= count && room >= need && !__builtin_mul_overflow(room, item_bytes, &bytes))
        grown = realloc(array, bytes);
    if (!grown)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for a plan of %" PRIu64 " parts", room);
    heft_pages_expect_filled(grown, bytes);
    memcpy(array_slot, &grown, sizeof(grown));
    *capacity = room;
    return HEFT_OK;
}

static int same_name(const struct heft_manifest_tensor *left, const struct heft_manifest_tensor *right)
{
    return left->name_bytes == right->name_bytes && memcmp(left->name, right->name, left->name_bytes) == 0;
}

/*
 * Where each wanted tensor is in one source. Manifests of one model mostly list their tensors in the same
 * order, so the tensor after the last one found is tried before the name is looked up; while every index is
 * the reference's own, no table is made.
 */
static int map_source(struct heft_plan *plan, struct heft_plan_inner *inner, uint32_t source,
                      struct heft_error *error)
{
    const struct heft_layout *layout = plan->layout;
    const struct heft_manifest *manifest = inner->sources[source];
    uint64_t entry, guess = 0, before;
    uint32_t *map = NULL;

    if (manifest == layout->reference)
        return HEFT_OK;
    for (entry = 0; entry < layout->tensor_count; entry++) {
        uint64_t index = layout->tensors[entry].tensor, found;
        const struct heft_manifest_tensor *wanted = &layout->reference->tensors[index];

        if (index < manifest->tensor_count && same_name(&manifest->tensors[index], wanted))
            found = index;
        else if (guess < manifest->tensor_count && same_name(&manifest->tensors[guess], wanted))
            found = guess;
        else
            found = heft_manifest_find(manifest, wanted->name, wanted->name_bytes);
        guess = found == UINT64_MAX ? guess : found + 1;
        if (!map && found != index) {
            map = malloc(layout->tensor_count * sizeof(*map));
            if (!map)
                return heft_error_set(error, HEFT_ERR_NO_MEMORY,
                                      "no memory for a plan of %" PRIu64 " tensors", layout->tensor_count);
            for (before = 0; before < entry; before++)
                map[before] = (uint32_t)layout->tensors[before].tensor;
            inner->tensors[source] = map;
        }
        if (map)
            map[entry] = found >= UINT32_MAX ? UINT32_MAX : (uint32_t)found;
    }
    return HEFT_OK;
}

static int build(struct heft_plan_builder *builder)
{
    const struct heft_layout *layout = builder->plan->layout;
    struct heft_plan_inner *inner = builder->inner;
    uint64_t entry, pieces;
    uint32_t source;
    int rc = HEFT_OK;

    for (source = 0; source < builder->plan->source_count && rc == HEFT_OK; source++)
        rc = map_source(builder->plan, inner, source, builder->error);
    if (rc)
        return rc;
    /* One atom a tensor, and the pieces that its bytes make, are the least there will be. */
    pieces = layout->tensor_count + layout->wanted_bytes / builder->chunk_bytes;
    if (pieces > HEFT_PLAN_MAX_PIECES)
        return heft_error_set(builder->error, HEFT_ERR_TOO_MANY,
                              "%" PRIu64 " bytes in chunks of %" PRIu64 " are more than %" PRIu64
                              " pieces; use larger chunks",
                              layout->wanted_bytes, builder->chunk_bytes, HEFT_PLAN_MAX_PIECES);
    rc = heft_plan_grow(&inner->atoms, &inner->atom_capacity, 0, layout->tensor_count,
                        sizeof(struct heft_atom), builder->error);
    if (rc == HEFT_OK)
        rc = heft_plan_grow(&builder->cuts, &builder->cut_capacity, 0, pieces, sizeof(struct heft_cut),
                            builder->error);
    for (entry = 0; entry < layout->tensor_count && rc == HEFT_OK; entry++)
        if (layout->tensors[entry].size_bytes > 0)
            rc = heft_plan_add_atoms(builder, entry);
    if (rc)
        return rc;
    rc = heft_plan_pack(builder);
    if (rc == HEFT_OK)
        HEFT_ASSERT(builder->plan->total_bytes == layout->wanted_bytes);
    return rc;
}

static struct heft_plan *plan_new(const struct heft_layout *layout, uint32_t source_count)
{
    struct heft_plan *plan = calloc(1, sizeof(*plan));

    if (!plan)
        return NULL;
    plan->arena = calloc(1, sizeof(struct heft_plan_inner));
    if (!plan->arena) {
        free(plan);
        return NULL;
    }
    plan->layout = layout;
    plan->source_count = source_count;
    return plan;
}

void heft_plan_free(struct heft_plan *plan)
{
    struct heft_plan_inner *inner;
    uint32_t source;

    if (!plan)
        return;
    inner = plan->arena;
    for (source = 0; source < HEFT_PLAN_MAX_SOURCES; source++)
        free(inner->tensors[source]);
    free(inner->numbers);
    free(inner->atoms);
    free(inner);
    free(plan->chunks);
    free(plan->pieces);
    free(plan);
}

int heft_plan_make(const struct heft_layout *layout, const struct heft_manifest *const *sources,
                   uint32_t source_count, uint64_t chunk_bytes, struct heft_plan **plan_out,
                   struct heft_error *error)
{
    struct heft_plan_builder *builder;
    struct heft_plan *plan;
    uint32_t source;
    int rc;

    if (source_count > HEFT_PLAN_MAX_SOURCES)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "a plan takes at most %d sources, not %u",
                              HEFT_PLAN_MAX_SOURCES, source_count);
    if (chunk_bytes == 0)
        chunk_bytes = HEFT_PLAN_DEFAULT_CHUNK_BYTES;
    if (chunk_bytes > MAX_CHUNK_BYTES)
        chunk_bytes = MAX_CHUNK_BYTES;
    plan = plan_new(layout, source_count);
    builder = calloc(1, sizeof(*builder));
    if (!plan || !builder) {
        heft_plan_free(plan);
        free(builder);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for a plan");
    }
    builder->plan = plan;
    builder->inner = plan->arena;
    builder->error = error;
    builder->chunk_bytes = heft_block_count(chunk_bytes) * HEFT_BLOCK_BYTES;
    for (source = 0; source < source_count; source++)
        builder->inner->sources[source] = sources[source];
    rc = build(builder);
    free(builder->cuts);
    free(builder->fragments);
    free(builder);
    if (rc) {
        heft_plan_free(plan);
        return rc;
    }
    *plan_out = plan;
    return HEFT_OK;
}

uint64_t heft_plan_piece_entry(const struct heft_plan *plan, uint64_t piece)
{
    const struct heft_plan_inner *inner = plan->arena;

    return inner->atoms[plan->pieces[piece].atom].entry;
}
