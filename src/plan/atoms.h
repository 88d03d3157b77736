/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of a plan. An atom is a box of one layout entry that every source covers wholly or not at all; it is
 * what copies are computed from. Whole tensors, the common case, are one atom without any numbers of their
 * own; other atoms point into one growing array of numbers:
 *
 *   geometry:  dims, mask of the boxed sources, full[dims], layout start[dims], layout size[dims],
 *              then start[dims], size[dims] of each boxed source, in the sources' order
 *   box:       start[dims], size[dims]
 *
 * The innermost dimension is in bytes. A source that is not boxed holds the whole tensor.
 */
#ifndef HEFT_PLAN_ATOMS_H
#define HEFT_PLAN_ATOMS_H

#include "base/digest.h"
#include "plan/geometry.h"
#include "plan/plan.h"

#define HEFT_PLAN_NONE UINT64_MAX
/* Bounds for boxes that are made to cut everything into dust: of one tensor, and of the whole plan. */
#define HEFT_PLAN_MAX_FRAGMENTS ((uint64_t)1 << 16)
#define HEFT_PLAN_MAX_ATOMS ((uint64_t)1 << 24)
#define HEFT_PLAN_MAX_PIECES ((uint64_t)1 << 26)

struct heft_atom {
    uint64_t entry;    /* index in the layout's tensors */
    uint64_t geometry; /* index in numbers; NONE: the whole tensor, from sources that hold it whole */
    uint64_t box;      /* index in numbers; meaningless for whole tensors */
    uint64_t size_bytes;
    uint64_t sources;   /* which cover it; a source that lacks blocks may not hold every piece */
    uint64_t global_at; /* offset in the global tensor when contiguous there, else NONE */
};

struct heft_plan_inner {
    const struct heft_manifest *sources[HEFT_PLAN_MAX_SOURCES];
    /* Layout entry -> tensor of the source, UINT32_MAX: absent. NULL: the same index as in the reference. */
    uint32_t *tensors[HEFT_PLAN_MAX_SOURCES];
    struct heft_atom *atoms;
    uint64_t atom_count, atom_capacity;
    uint64_t *numbers;
    uint64_t number_count, number_capacity;
};

/* What the packing of chunks needs to know of a piece. */
struct heft_cut {
    struct heft_piece piece;
    uint64_t sources;
    uint64_t place;       /* first source, then its file: one number that orders both */
    uint64_t offset, end; /* from the first byte to the last in that file */
};

/* Scratch for splitting one tensor. */
struct heft_fragment {
    uint64_t start[HEFT_GEOMETRY_MAX_DIMS];
    uint64_t size[HEFT_GEOMETRY_MAX_DIMS];
    uint64_t sources;
};

/* Numbers that were written before: their place and how many. */
#define HEFT_PLAN_KNOWN 64
struct heft_plan_known {
    uint64_t at, count;
};

struct heft_plan_builder {
    struct heft_plan *plan;
    struct heft_plan_inner *inner;
    uint64_t chunk_bytes;
    struct heft_cut *cuts;
    uint64_t cut_count, cut_capacity;
    struct heft_fragment *fragments;
    uint64_t fragment_count, fragment_capacity;
    /* The boxes of the tensor at hand: the layout's first, then one of each boxed source. */
    struct heft_box boxes[1 + HEFT_PLAN_MAX_SOURCES];
    struct heft_geometry_box collapsed[1 + HEFT_PLAN_MAX_SOURCES];
    uint64_t full[HEFT_GEOMETRY_MAX_DIMS];
    struct heft_plan_known known[HEFT_PLAN_KNOWN]; /* by hash */
    struct heft_error *error;
};

/* Makes room for `more` items in an array that has not enough; 0 or NO_MEMORY. */
int heft_plan_enlarge(void *array_slot, uint64_t *capacity, uint64_t count, uint64_t more, size_t item_bytes,
                      struct heft_error *error);
/* The same where there mostly is enough. */
static inline int heft_plan_grow(void *array_slot, uint64_t *capacity, uint64_t count, uint64_t more,
                                 size_t item_bytes, struct heft_error *error)
{
    if (count <= *capacity && more <= *capacity - count)
        return HEFT_OK;
    return heft_plan_enlarge(array_slot, capacity, count, more, item_bytes, error);
}

/* The tensor of a source that a layout entry is served from, or NULL. */
static inline const struct heft_manifest_tensor *heft_plan_tensor(const struct heft_plan *plan,
                                                                  const struct heft_plan_inner *inner,
                                                                  uint32_t source, uint64_t entry)
{
    const uint32_t *map = inner->tensors[source];

    if (!map)
        return &inner->sources[source]->tensors[plan->layout->tensors[entry].tensor];
    return map[entry] == UINT32_MAX ? NULL : &inner->sources[source]->tensors[map[entry]];
}

/* All atoms of one layout entry that wants bytes. */
int heft_plan_add_atoms(struct heft_plan_builder *builder, uint64_t entry);
/* Cuts an atom into pieces: builder->cuts grows. */
int heft_plan_cut_atom(struct heft_plan_builder *builder, uint64_t atom);
/* Orders the cuts and packs them into the plan's chunks and pieces. */
int heft_plan_pack(struct heft_plan_builder *builder);

/*
 * An atom as one source and the destination see it: nested steps of bytes, the innermost first, with
 * everything joined that is regular on both sides. Step 0 has stride 1: its count is a row.
 */
struct heft_copy {
    uint64_t source_at; /* offset in the source's file of the atom's first byte */
    uint64_t dst_at;
    uint32_t step_count;
    struct heft_copy_step {
        uint64_t count, source_stride, dst_stride;
    } steps[HEFT_GEOMETRY_MAX_DIMS];
};
void heft_plan_copy(const struct heft_plan *plan, const struct heft_atom *atom, uint32_t source,
                    struct heft_copy *copy_out);
/* Offsets on both sides of byte `at` of the atom. */
void heft_copy_find(const struct heft_copy *copy, uint64_t at, uint64_t *source_out, uint64_t *dst_out);

#endif
