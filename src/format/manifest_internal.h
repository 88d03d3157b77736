/* SPDX-License-Identifier: Apache-2.0 */
/* What the manifest's own files share: the builder's state and the checks. */
#ifndef HEFT_FORMAT_MANIFEST_INTERNAL_H
#define HEFT_FORMAT_MANIFEST_INTERNAL_H

#include "format/manifest.h"
#include "format/manifest_arena.h"

struct heft_manifest_dtype {
    const char *name;
    uint32_t bits;
};

#define HEFT_SHAPE_CACHE 64u /* a power of two */

/* heft_manifest.arena points to this. */
struct heft_manifest_state {
    struct heft_format_arena arena;
    uint64_t tensor_capacity;
    uint32_t file_capacity;
    int finished;
    int blame; /* the code for a wrong table: INVALID from a caller, MANIFEST from bytes that came in */
    struct heft_manifest_dtype *dtypes;
    uint32_t dtype_count, dtype_capacity;
    struct heft_map dtype_index; /* name -> index in dtypes */
    uint32_t last_dtype;
    /* Shapes repeat thousands of times in real models: equal ones share one array. */
    const uint64_t *shapes[HEFT_SHAPE_CACHE];
    uint32_t shape_ranks[HEFT_SHAPE_CACHE];
};

static inline struct heft_manifest_state *heft_manifest_state(const struct heft_manifest *manifest)
{
    return manifest->arena;
}

/* The interned dtype's index in state->dtypes. Refuses a second width for the same name. */
int heft_manifest_intern_dtype(struct heft_manifest_state *state, const char *dtype, uint32_t bits,
                               uint32_t *index_out, struct heft_error *error);
/* Shape, box, size and place of a tensor agree with each other and with its file. */
int heft_manifest_check_tensor(const struct heft_manifest *manifest,
                               const struct heft_manifest_tensor *tensor, struct heft_error *error);

#endif
