/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes of tensors, and their geometry: the fewest dimensions in which a set of boxes can be told apart.
 *
 * Neighbouring dimensions that no box cuts are one dimension. The innermost one is counted in bytes, so that
 * what is left (1 to 3 dimensions in practice, 63 at most) is plain byte arithmetic. Every number here comes
 * from outside: products are checked once, where a tensor is first looked at, and stay below 2^64 after that.
 */
#ifndef HEFT_PLAN_GEOMETRY_H
#define HEFT_PLAN_GEOMETRY_H

#include "format/manifest.h"
#include "format/manifest_text.h"

/* Dimensions of length 1 vanish and the product is below 2^64, so that 63 others are the most there can be.
 */
#define HEFT_GEOMETRY_MAX_DIMS 64

/* A box of a tensor: rank numbers each. start NULL: the whole tensor. */
struct heft_box {
    const uint64_t *start;
    const uint64_t *size;
};

/* Bytes of the global tensor, from its shape. SHAPE_OVERFLOW, UNSUPPORTED (unknown dtype), MISALIGNED. */
int heft_shape_bytes(const struct heft_manifest_tensor *tensor, uint64_t *bytes_out,
                     struct heft_error *error);
/* Likewise; a tensor that is held whole has them in its size_bytes, whatever its dtype. */
int heft_global_bytes(const struct heft_manifest_tensor *tensor, uint64_t *bytes_out,
                      struct heft_error *error);

/* 1 when the box lies inside the tensor's shape. */
int heft_box_fits(const struct heft_manifest_tensor *tensor, struct heft_box box);
int heft_box_is_empty(const struct heft_manifest_tensor *tensor, struct heft_box box);
/* 1 when the box is the whole tensor. The box fits. */
int heft_box_is_whole(const struct heft_manifest_tensor *tensor, struct heft_box box);
/* 1 when the box is empty, or all rows of the tensor and of the box begin and end on a byte. The box fits. */
int heft_box_is_bytes(const struct heft_manifest_tensor *tensor, struct heft_box box);
/* 1 when the two have no element in common. Both fit, neither is empty. */
int heft_box_is_apart(const struct heft_manifest_tensor *tensor, struct heft_box left, struct heft_box right);
/* Bytes of a box that fits and is_bytes, of a tensor whose heft_shape_bytes succeeded. */
uint64_t heft_box_size_bytes(const struct heft_manifest_tensor *tensor, struct heft_box box);

/* The tensor's name, quoted for an error sentence. */
static inline const char *heft_tensor_quote(struct heft_quote *quote,
                                            const struct heft_manifest_tensor *tensor)
{
    return heft_quote_name(quote, tensor->name, tensor->name_bytes);
}

struct heft_geometry_box {
    uint64_t start[HEFT_GEOMETRY_MAX_DIMS];
    uint64_t size[HEFT_GEOMETRY_MAX_DIMS];
};

/*
 * Writes the dimensions of the whole tensor to full_out, and each box in them; returns how many dimensions
 * (at least 1). The tensor is not empty and has a shape of less than 2^64 bytes; boxes fit and are bytes.
 */
uint32_t heft_geometry_collapse(const struct heft_manifest_tensor *tensor, const struct heft_box *boxes,
                                uint32_t box_count, uint64_t full_out[HEFT_GEOMETRY_MAX_DIMS],
                                struct heft_geometry_box *boxes_out);

#endif
