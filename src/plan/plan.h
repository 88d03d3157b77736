/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan/: which bytes go where. Pure arithmetic over manifests and layouts.
 *
 * A layout says which boxes of which tensors a receiver wants, and where each lands in its memory. A plan
 * cuts the layout into atoms (boxes that every source either covers wholly or not at all), orders them as
 * they lie in the first source, and packs them into chunks. A chunk can be asked of any source that covers
 * it; the runs (byte ranges on both sides) are computed for that source when it is asked.
 */
#ifndef HEFT_PLAN_PLAN_H
#define HEFT_PLAN_PLAN_H

#include "format/manifest.h"

#define HEFT_PLAN_MAX_SOURCES 64
#define HEFT_PLAN_DEFAULT_CHUNK_BYTES ((uint64_t)1 << 20)

/* How a tensor came to its box, or why it has none. */
enum heft_layout_why {
    HEFT_LAYOUT_ASKED,     /* as the caller asked */
    HEFT_LAYOUT_CUT,       /* this rank's part */
    HEFT_LAYOUT_OWNED,     /* an expert that is this rank's alone */
    HEFT_LAYOUT_COPIED,    /* every rank keeps it: so says its rule */
    HEFT_LAYOUT_NO_RULE,   /* whole, as all that follow: no rule names it */
    HEFT_LAYOUT_TOO_FEW,   /* fewer units than ranks */
    HEFT_LAYOUT_UNEVEN,    /* its shape is not what the rule expects */
    HEFT_LAYOUT_NO_CONFIG, /* config.json lacks a number that its rule needs */
    HEFT_LAYOUT_NO_BYTES,  /* its parts would not be whole bytes */
    HEFT_LAYOUT_WHYS
};

/* One wanted box, stored row-major and gapless at dst_offset of the receiver's memory `dst_space`. */
struct heft_layout_tensor {
    uint64_t tensor;       /* index in the reference manifest */
    const uint64_t *start; /* rank numbers, or NULL: the whole tensor */
    const uint64_t *size;
    uint64_t size_bytes;
    uint32_t dst_index; /* which destination memory: 0 is the arena; others are the caller's */
    uint64_t dst_offset_bytes;
    uint16_t why;          /* enum heft_layout_why */
    uint16_t joined;       /* 1: goes on where the entry before ends, as a part of the same fused tensor */
    uint32_t joined_along; /* of the first of them: the dimension along which they are one tensor */
};

struct heft_layout {
    const struct heft_manifest *reference;
    struct heft_layout_tensor *tensors;
    uint64_t tensor_count;
    uint64_t arena_bytes; /* destination 0 */
    uint64_t wanted_bytes;
    uint64_t split_count; /* entries of which only a part is wanted */
    int box_cuts;   /* wanted boxes are cut at blocks counted from their own start, as those who exchange them
                       count */
    int keep_order; /* chunks in the entries' order, whatever the sources' is; large entries share none */
    uint64_t left_out_count, left_out_bytes; /* tensors that are not wanted at all */
    void *arena;
};

enum heft_split { HEFT_SPLIT_ROW = 1 /* dimension 0 */, HEFT_SPLIT_COLUMN = 2 /* the last dimension */ };

/* Every tensor whole, in the manifest's order, each at a multiple of align_bytes (a power of two). */
int heft_layout_whole(const struct heft_manifest *reference, uint64_t align_bytes,
                      struct heft_layout **layout_out, struct heft_error *error);
/*
 * Rank `rank` of `ranks`: tensors of rank 2 and more are split along the dimension, part i being
 * [dim*i/ranks, dim*(i+1)/ranks); the others, and those whose parts would not be whole bytes, stay whole.
 */
int heft_layout_rank(const struct heft_manifest *reference, uint32_t rank, uint32_t ranks,
                     enum heft_split split, uint64_t align_bytes, struct heft_layout **layout_out,
                     struct heft_error *error);
enum heft_experts {
    HEFT_EXPERTS_CUT,   /* each expert is divided among the ranks like other tensors */
    HEFT_EXPERTS_SPREAD /* each rank owns whole experts: rank i those of [E*i/ranks, E*(i+1)/ranks) */
};

struct heft_rules;
struct heft_layout_wish {
    uint32_t rank, ranks; /* ranks 0: 1 */
    enum heft_experts experts;
    uint64_t experts_from, experts_to; /* only these experts; to 0: all */
    uint64_t layers_from, layers_to; /* only these layers, first and last stage as the rules say; to 0: all */
};
/*
 * The tensors that `wish` leaves, divided by the rules; what no rule names is whole. Tensors of other layers
 * and other ranks' experts are left out. The parts of a fused tensor follow each other without a gap.
 */
int heft_layout_rules(const struct heft_manifest *reference, const struct heft_rules *rules,
                      const struct heft_layout_wish *wish, uint64_t align_bytes,
                      struct heft_layout **layout_out, struct heft_error *error);
/* A few words for people; static text. */
const char *heft_layout_why_text(enum heft_layout_why why);
/* From explicit wishes (boxes and destinations are copied and checked against the reference). */
int heft_layout_custom(const struct heft_manifest *reference, const struct heft_layout_tensor *wishes,
                       uint64_t count, struct heft_layout **layout_out, struct heft_error *error);
void heft_layout_free(struct heft_layout *layout);

struct heft_piece { /* bytes [at, at+bytes) of an atom's row-major order */
    uint64_t atom;
    uint64_t at_bytes;
    uint64_t size_bytes;
};

struct heft_chunk {
    uint64_t first_piece;
    uint32_t piece_count;
    uint64_t size_bytes;
    uint64_t sources; /* bit s: source s covers and holds every piece */
};

struct heft_plan {
    const struct heft_layout *layout;
    uint32_t source_count;
    struct heft_piece *pieces;
    uint64_t piece_count;
    struct heft_chunk *chunks;
    uint64_t chunk_count;
    uint64_t total_bytes;
    void *arena; /* atoms and geometry */
};

/*
 * Sources are manifests already compared with the layout's reference (heft_manifest_compare). chunk_bytes 0:
 * the default; it is rounded up to whole digest blocks. Fails with SOURCE_LOST, naming the tensor, when no
 * source covers some bytes. Cuts of a tensor, and of a box that is contiguous in its tensor, fall on digest
 * blocks. The layout and the sources must outlive the plan. A source's `held` is read here once: what it
 * holds later takes another plan.
 */
int heft_plan_make(const struct heft_layout *layout, const struct heft_manifest *const *sources,
                   uint32_t source_count, uint64_t chunk_bytes, struct heft_plan **plan_out,
                   struct heft_error *error);
void heft_plan_free(struct heft_plan *plan);

/* One byte range on both sides, or `count` of them at strides. */
struct heft_plan_run {
    uint32_t source_file; /* index in the source manifest's files */
    uint32_t dst_index;
    uint64_t source_offset_bytes; /* in that file or region */
    uint64_t dst_offset_bytes;
    uint64_t length_bytes, count;
    uint64_t source_stride_bytes, dst_stride_bytes;
};
/*
 * The runs that bring a chunk from one of its sources (bit `source` of chunk.sources is set); neighbours on
 * both sides are merged. Writes up to max runs and returns how many the chunk needs (more than max: call
 * again with room).
 */
size_t heft_plan_runs(const struct heft_plan *plan, uint64_t chunk, uint32_t source,
                      struct heft_plan_run *runs_out, size_t max);

/* The layout entry that a piece is of. */
uint64_t heft_plan_piece_entry(const struct heft_plan *plan, uint64_t piece);

/*
 * The digest blocks that a piece covers completely: block `first_out` (counted in the global tensor from 0),
 * `count` of them, the first one lying at dst_offset_out of the destination. 0 blocks for strided pieces.
 * Digests come from a source manifest that holds the tensor whole: digests[tensor.first_block + first].
 */
struct heft_piece_blocks {
    uint64_t layout_tensor;
    uint64_t first, count;
    uint32_t dst_index;
    uint64_t dst_offset_bytes;
    uint64_t size_bytes; /* of these blocks: the tensor's last one may be short */
};
void heft_plan_piece_blocks(const struct heft_plan *plan, uint64_t piece,
                            struct heft_piece_blocks *blocks_out);

#endif
