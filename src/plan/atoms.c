/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Atoms of one layout entry: the wanted box is split along the boxes of the sources that hold a part of it.
 * Outer dimensions are cut first, so that what is left over stays in long runs.
 */
#include "plan/atoms.h"
#include "base/error.h"

#include <inttypes.h>
#include <string.h>

static int too_many(struct heft_plan_builder *builder, const struct heft_manifest_tensor *tensor,
                    uint64_t limit)
{
    struct heft_quote name;

    return heft_error_set(builder->error, HEFT_ERR_TOO_MANY,
                          "tensor %s: the sources' boxes cut what is wanted into more than %" PRIu64
                          " parts; use fewer sources",
                          heft_tensor_quote(&name, tensor), limit);
}

static int add_atom(struct heft_plan_builder *builder, const struct heft_atom *atom,
                    const struct heft_manifest_tensor *tensor)
{
    struct heft_plan_inner *inner = builder->inner;
    struct heft_quote name;
    int rc;

    if (atom->sources == 0)
        return heft_error_set(
            builder->error, HEFT_ERR_SOURCE_LOST,
            "tensor %s: none of the %u sources holds all of the wanted bytes; add one that does",
            heft_tensor_quote(&name, tensor), builder->plan->source_count);
    if (inner->atom_count >= HEFT_PLAN_MAX_ATOMS)
        return too_many(builder, tensor, HEFT_PLAN_MAX_ATOMS);
    rc = heft_plan_grow(&inner->atoms, &inner->atom_capacity, inner->atom_count, 1, sizeof(*atom),
                        builder->error);
    if (rc)
        return rc;
    inner->atoms[inner->atom_count] = *atom;
    rc = heft_plan_cut_atom(builder, inner->atom_count);
    inner->atom_count++;
    return rc;
}

/* ---- which sources hold what ---- */

static int broken(struct heft_plan_builder *builder, const struct heft_manifest_tensor *tensor,
                  uint32_t source, int code, const char *what)
{
    struct heft_quote name;

    return heft_error_set(builder->error, code, "tensor %s: in source %u %s",
                          heft_tensor_quote(&name, tensor), source, what);
}

/* The bytes must lie in a file of the source: everything after this relies on offsets that can't wrap. */
static int check_place(struct heft_plan_builder *builder, const struct heft_manifest_tensor *tensor,
                       uint32_t source)
{
    const struct heft_manifest *manifest = builder->inner->sources[source];
    uint64_t end;

    if (tensor->file >= manifest->file_count ||
        __builtin_add_overflow(tensor->offset_bytes, tensor->size_bytes, &end) ||
        end > manifest->files[tensor->file].size_bytes)
        return broken(builder, tensor, source, HEFT_ERR_MANIFEST,
                      "it does not lie inside its file or region: the manifest is wrong");
    return HEFT_OK;
}

/*
 * Sources that hold the wanted tensor whole, and those that hold a box of it. Sources are compared with the
 * reference by the caller; what memory safety rests on is checked again.
 */
static int find_holders(struct heft_plan_builder *builder, uint64_t entry, uint64_t *whole_out,
                        uint64_t *boxed_out)
{
    const struct heft_plan *plan = builder->plan;
    const struct heft_layout *layout = plan->layout;
    const struct heft_manifest_tensor *reference = &layout->reference->tensors[layout->tensors[entry].tensor];
    uint64_t whole = 0, boxed = 0;
    uint32_t source;
    int rc;

    for (source = 0; source < plan->source_count; source++) {
        const struct heft_manifest_tensor *tensor = heft_plan_tensor(plan, builder->inner, source, entry);

        if (!tensor || tensor->size_bytes == 0)
            continue;
        rc = check_place(builder, tensor, source);
        if (rc)
            return rc;
        if (tensor->rank != reference->rank || tensor->dtype_bits != reference->dtype_bits)
            return broken(builder, tensor, source, HEFT_ERR_INCOMPATIBLE, "its rank or dtype is another");
        if (!tensor->box_start) {
            whole |= (uint64_t)1 << source;
            continue;
        }
        if (memcmp(tensor->shape, reference->shape, tensor->rank * sizeof(uint64_t)) != 0)
            return broken(builder, tensor, source, HEFT_ERR_INCOMPATIBLE, "its shape is another");
        if (!heft_box_fits(tensor, (struct heft_box){tensor->box_start, tensor->box_size}))
            return broken(builder, tensor, source, HEFT_ERR_MANIFEST, "its box leaves the tensor's shape");
        if (heft_box_is_whole(tensor, (struct heft_box){tensor->box_start, tensor->box_size}))
            whole |= (uint64_t)1 << source;
        else
            boxed |= (uint64_t)1 << source;
    }
    *whole_out = whole;
    *boxed_out = boxed;
    return HEFT_OK;
}

/* Every holder of the whole tensor must agree on how many bytes that is. */
static int check_whole_sizes(struct heft_plan_builder *builder, uint64_t entry, uint64_t whole,
                             uint64_t bytes)
{
    struct heft_quote name;

    for (; whole != 0; whole &= whole - 1) {
        uint32_t source = (uint32_t)__builtin_ctzll(whole);
        const struct heft_manifest_tensor *tensor =
            heft_plan_tensor(builder->plan, builder->inner, source, entry);

        if (tensor->size_bytes != bytes)
            return heft_error_set(builder->error, HEFT_ERR_INCOMPATIBLE,
                                  "tensor %s: source %u holds %" PRIu64 " bytes where the model has %" PRIu64,
                                  heft_tensor_quote(&name, tensor), source, tensor->size_bytes, bytes);
    }
    return HEFT_OK;
}

/*
 * Of the boxed holders, those whose box has wanted bytes and can be cut at bytes; their boxes are put behind
 * the layout's in builder->boxes.
 */
static int choose_boxes(struct heft_plan_builder *builder, uint64_t entry, uint64_t *boxed)
{
    const struct heft_manifest_tensor *tensor;
    uint64_t left = *boxed, kept = 0;
    uint32_t count = 1;

    for (; left != 0; left &= left - 1) {
        uint32_t source = (uint32_t)__builtin_ctzll(left);
        struct heft_box box;

        tensor = heft_plan_tensor(builder->plan, builder->inner, source, entry);
        box = (struct heft_box){tensor->box_start, tensor->box_size};
        if (heft_box_is_apart(tensor, builder->boxes[0], box) || !heft_box_is_bytes(tensor, box))
            continue;
        if (heft_box_size_bytes(tensor, box) != tensor->size_bytes)
            return broken(builder, tensor, source, HEFT_ERR_MANIFEST,
                          "its size is not that of its box: the manifest is wrong");
        builder->boxes[count++] = box;
        kept |= (uint64_t)1 << source;
    }
    *boxed = kept;
    return HEFT_OK;
}

/* ---- splitting ---- */

static int add_fragment(struct heft_plan_builder *builder, const struct heft_fragment *fragment,
                        uint32_t dims, const struct heft_manifest_tensor *tensor)
{
    struct heft_fragment *place;
    int rc;

    if (builder->fragment_count >= HEFT_PLAN_MAX_FRAGMENTS)
        return too_many(builder, tensor, HEFT_PLAN_MAX_FRAGMENTS);
    rc = heft_plan_grow(&builder->fragments, &builder->fragment_capacity, builder->fragment_count, 1,
                        sizeof(*fragment), builder->error);
    if (rc)
        return rc;
    place = &builder->fragments[builder->fragment_count++];
    memcpy(place->start, fragment->start, dims * sizeof(uint64_t));
    memcpy(place->size, fragment->size, dims * sizeof(uint64_t));
    place->sources = fragment->sources;
    return HEFT_OK;
}

/* Cuts everything off fragment `index` that lies outside of the box; what is cut off goes to the end. */
static int split_fragment(struct heft_plan_builder *builder, uint64_t index,
                          const struct heft_geometry_box *box, uint32_t dims, uint32_t source,
                          const struct heft_manifest_tensor *tensor)
{
    struct heft_fragment inside;
    uint32_t dim;
    int rc;

    inside.sources = builder->fragments[index].sources;
    memcpy(inside.start, builder->fragments[index].start, dims * sizeof(uint64_t));
    memcpy(inside.size, builder->fragments[index].size, dims * sizeof(uint64_t));
    for (dim = 0; dim < dims; dim++)
        if (inside.start[dim] >= box->start[dim] + box->size[dim] ||
            box->start[dim] >= inside.start[dim] + inside.size[dim])
            return HEFT_OK;
    for (dim = 0; dim < dims; dim++) {
        uint64_t start = inside.start[dim], end = start + inside.size[dim];
        uint64_t box_end = box->start[dim] + box->size[dim];

        if (start < box->start[dim]) {
            inside.size[dim] = box->start[dim] - start;
            rc = add_fragment(builder, &inside, dims, tensor);
            if (rc)
                return rc;
            start = box->start[dim];
        }
        if (end > box_end) {
            inside.start[dim] = box_end;
            inside.size[dim] = end - box_end;
            rc = add_fragment(builder, &inside, dims, tensor);
            if (rc)
                return rc;
            end = box_end;
        }
        inside.start[dim] = start;
        inside.size[dim] = end - start;
    }
    inside.sources |= (uint64_t)1 << source;
    builder->fragments[index].sources = inside.sources;
    memcpy(builder->fragments[index].start, inside.start, dims * sizeof(uint64_t));
    memcpy(builder->fragments[index].size, inside.size, dims * sizeof(uint64_t));
    return HEFT_OK;
}

/* Splits the wanted box by the box of each boxed source in turn. */
static int split_wanted(struct heft_plan_builder *builder, uint32_t dims, uint64_t whole, uint64_t boxed,
                        const struct heft_manifest_tensor *tensor)
{
    const struct heft_geometry_box *box = &builder->collapsed[1];
    struct heft_fragment wanted;
    int rc;

    memcpy(wanted.start, builder->collapsed[0].start, dims * sizeof(uint64_t));
    memcpy(wanted.size, builder->collapsed[0].size, dims * sizeof(uint64_t));
    wanted.sources = whole;
    builder->fragment_count = 0;
    rc = add_fragment(builder, &wanted, dims, tensor);
    for (; rc == HEFT_OK && boxed != 0; boxed &= boxed - 1, box++) {
        uint64_t index, count = builder->fragment_count;

        for (index = 0; index < count && rc == HEFT_OK; index++)
            rc = split_fragment(builder, index, box, dims, (uint32_t)__builtin_ctzll(boxed), tensor);
    }
    return rc;
}

/* Where the box begins in the global tensor when it is one run of bytes there, else NONE. */
static uint64_t contiguous_at(const uint64_t *full, const struct heft_fragment *box, uint32_t dims)
{
    uint64_t at = 0, stride = 1;
    uint32_t dim = dims, outer;

    while (dim > 1 && box->size[dim - 1] == full[dim - 1])
        dim--;
    for (outer = 0; outer + 1 < dim; outer++)
        if (box->size[outer] != 1)
            return HEFT_PLAN_NONE;
    for (dim = dims; dim-- > 0;) {
        at += box->start[dim] * stride;
        stride *= full[dim];
    }
    return at;
}

static void put(struct heft_plan_inner *inner, const uint64_t *numbers, uint32_t count)
{
    memcpy(inner->numbers + inner->number_count, numbers, count * sizeof(uint64_t));
    inner->number_count += count;
}

/*
 * Writes the geometry's numbers and, behind them, the boxes of all fragments. Most tensors of a model have
 * the shape of many others and are split alike: numbers that were written before are used again.
 */
static int add_geometry(struct heft_plan_builder *builder, uint32_t dims, uint64_t boxed, uint64_t *at_out)
{
    struct heft_plan_inner *inner = builder->inner;
    uint32_t box_count = 1 + (uint32_t)__builtin_popcountll(boxed);
    uint64_t head[2] = {dims, boxed}, at = inner->number_count, index, count, bytes;
    uint64_t need = 2 + (uint64_t)dims * (1 + 2 * (uint64_t)box_count) + builder->fragment_count * dims * 2;
    struct heft_plan_known *known;
    int rc =
        heft_plan_grow(&inner->numbers, &inner->number_capacity, at, need, sizeof(uint64_t), builder->error);

    if (rc)
        return rc;
    put(inner, head, 2);
    put(inner, builder->full, dims);
    for (index = 0; index < box_count; index++) {
        put(inner, builder->collapsed[index].start, dims);
        put(inner, builder->collapsed[index].size, dims);
    }
    for (index = 0; index < builder->fragment_count; index++) {
        put(inner, builder->fragments[index].start, dims);
        put(inner, builder->fragments[index].size, dims);
    }
    count = inner->number_count - at;
    bytes = count * sizeof(uint64_t);
    known = &builder->known[heft_hash64(inner->numbers + at, bytes, 0) % HEFT_PLAN_KNOWN];
    if (known->count == count && memcmp(inner->numbers + known->at, inner->numbers + at, bytes) == 0)
        inner->number_count = at;
    else
        *known = (struct heft_plan_known){.at = at, .count = count};
    *at_out = known->at;
    return HEFT_OK;
}

/* True when the source has every block of the tensor. */
static int holds_all(const struct heft_plan_builder *builder, uint32_t source, uint64_t entry)
{
    const struct heft_manifest *manifest = builder->inner->sources[source];
    const struct heft_manifest_tensor *tensor =
        heft_plan_tensor(builder->plan, builder->inner, source, entry);

    return !manifest->held ||
           heft_manifest_holds(manifest, tensor->first_block, heft_block_count(tensor->size_bytes));
}

/* One atom of each fragment, whose boxes follow the geometry's numbers. */
static int add_fragments(struct heft_plan_builder *builder, uint64_t entry, uint64_t geometry, uint32_t dims,
                         uint64_t complete)
{
    const struct heft_layout *layout = builder->plan->layout;
    uint64_t boxed = builder->inner->numbers[geometry + 1], index;
    uint64_t box = geometry + 2 + (uint64_t)dims * (3 + 2 * (uint64_t)__builtin_popcountll(boxed));
    uint32_t dim;
    int rc = HEFT_OK;

    for (index = 0; index < builder->fragment_count && rc == HEFT_OK; index++) {
        const struct heft_fragment *fragment = &builder->fragments[index];
        struct heft_atom atom = {.entry = entry,
                                 .geometry = geometry,
                                 .box = box + index * dims * 2,
                                 .size_bytes = 1,
                                 .sources = fragment->sources,
                                 .global_at = contiguous_at(builder->full, fragment, dims)};

        for (dim = 0; dim < dims; dim++)
            atom.size_bytes *= fragment->size[dim];
        /* Which blocks a strided box touches is not worked out: its source must have them all. */
        if (atom.global_at == HEFT_PLAN_NONE)
            atom.sources &= complete;
        rc = add_atom(builder, &atom, &layout->reference->tensors[layout->tensors[entry].tensor]);
    }
    return rc;
}

static int add_boxed_atoms(struct heft_plan_builder *builder, uint64_t entry, uint64_t whole, uint64_t boxed)
{
    const struct heft_layout_tensor *wanted = &builder->plan->layout->tensors[entry];
    const struct heft_manifest_tensor *reference = &builder->plan->layout->reference->tensors[wanted->tensor];
    uint64_t global_bytes = 0, geometry = 0, complete = 0, left;
    struct heft_quote name;
    uint32_t dims;
    int rc = heft_shape_bytes(reference, &global_bytes, builder->error);

    if (rc == HEFT_OK && !wanted->start && wanted->size_bytes != global_bytes)
        rc = heft_error_set(builder->error, HEFT_ERR_MANIFEST,
                            "tensor %s: its shape is %" PRIu64 " bytes, its size says %" PRIu64,
                            heft_tensor_quote(&name, reference), global_bytes, wanted->size_bytes);
    if (rc == HEFT_OK)
        rc = check_whole_sizes(builder, entry, whole, global_bytes);
    if (rc)
        return rc;
    dims = heft_geometry_collapse(reference, builder->boxes, 1 + (uint32_t)__builtin_popcountll(boxed),
                                  builder->full, builder->collapsed);
    rc = split_wanted(builder, dims, whole, boxed, reference);
    if (rc == HEFT_OK)
        rc = add_geometry(builder, dims, boxed, &geometry);
    if (rc)
        return rc;
    for (left = whole | boxed; left != 0; left &= left - 1)
        if (holds_all(builder, (uint32_t)__builtin_ctzll(left), entry))
            complete |= left & -left;
    return add_fragments(builder, entry, geometry, dims, complete);
}

int heft_plan_add_atoms(struct heft_plan_builder *builder, uint64_t entry)
{
    const struct heft_layout *layout = builder->plan->layout;
    const struct heft_layout_tensor *wanted = &layout->tensors[entry];
    struct heft_atom atom;
    uint64_t whole = 0, boxed = 0;
    int rc = find_holders(builder, entry, &whole, &boxed);

    if (rc)
        return rc;
    builder->boxes[0] = (struct heft_box){wanted->start, wanted->size};
    if (boxed != 0) {
        rc = choose_boxes(builder, entry, &boxed);
        if (rc)
            return rc;
    }
    if (wanted->start || boxed != 0)
        return add_boxed_atoms(builder, entry, whole, boxed);
    rc = check_whole_sizes(builder, entry, whole, wanted->size_bytes);
    if (rc)
        return rc;
    atom = (struct heft_atom){.entry = entry,
                              .geometry = HEFT_PLAN_NONE,
                              .size_bytes = wanted->size_bytes,
                              .sources = whole,
                              .global_at = 0};
    return add_atom(builder, &atom, &layout->reference->tensors[wanted->tensor]);
}
