/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes of tensors and their collapsed geometry; see geometry.h. */
#include "plan/geometry.h"
#include "base/error.h"

__extension__ typedef unsigned __int128 wide;

int heft_shape_bytes(const struct heft_manifest_tensor *tensor, uint64_t *bytes_out, struct heft_error *error)
{
    struct heft_quote name, dtype;
    uint64_t elements = 1;
    wide bits;
    int overflow = 0;
    uint32_t dim;

    /* A zero anywhere makes the tensor empty, even when the other dimensions alone would overflow. */
    for (dim = 0; dim < tensor->rank; dim++) {
        if (tensor->shape[dim] == 0) {
            *bytes_out = 0;
            return HEFT_OK;
        }
        overflow |= __builtin_mul_overflow(elements, tensor->shape[dim], &elements);
    }
    if (tensor->dtype_bits == 0)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                              "tensor %s: dtype %s is unknown, so only the whole tensor "
                              "can be moved, not a part of it",
                              heft_tensor_quote(&name, tensor), heft_quote_text(&dtype, tensor->dtype));
    bits = (wide)elements * tensor->dtype_bits;
    if (overflow || bits >> 3 > UINT64_MAX)
        return heft_error_set(error, HEFT_ERR_SHAPE_OVERFLOW,
                              "tensor %s: its shape is larger than 64 bits can count",
                              heft_tensor_quote(&name, tensor));
    if (bits & 7)
        return heft_error_set(error, HEFT_ERR_MISALIGNED, "tensor %s: dtype %s does not end on a byte",
                              tensor->name, tensor->dtype ? tensor->dtype : "?");
    *bytes_out = (uint64_t)(bits >> 3);
    return HEFT_OK;
}

int heft_global_bytes(const struct heft_manifest_tensor *tensor, uint64_t *bytes_out,
                      struct heft_error *error)
{
    if (tensor->box_start)
        return heft_shape_bytes(tensor, bytes_out, error);
    *bytes_out = tensor->size_bytes;
    return HEFT_OK;
}

int heft_box_fits(const struct heft_manifest_tensor *tensor, struct heft_box box)
{
    uint32_t dim;

    if (!box.start)
        return 1;
    for (dim = 0; dim < tensor->rank; dim++)
        if (box.start[dim] > tensor->shape[dim] || box.size[dim] > tensor->shape[dim] - box.start[dim])
            return 0;
    return 1;
}

int heft_box_is_empty(const struct heft_manifest_tensor *tensor, struct heft_box box)
{
    const uint64_t *size = box.start ? box.size : tensor->shape;
    uint32_t dim;

    for (dim = 0; dim < tensor->rank; dim++)
        if (size[dim] == 0)
            return 1;
    return 0;
}

int heft_box_is_whole(const struct heft_manifest_tensor *tensor, struct heft_box box)
{
    uint32_t dim;

    if (!box.start)
        return 1;
    for (dim = 0; dim < tensor->rank; dim++)
        if (box.size[dim] != tensor->shape[dim])
            return 0;
    return 1;
}

/*
 * Only the innermost dimension that the box cuts matters: with its rows on bytes, all outer positions are.
 * The products may wrap: 8 divides 2^64, so that what is left after division by 8 is right all the same.
 */
int heft_box_is_bytes(const struct heft_manifest_tensor *tensor, struct heft_box box)
{
    uint64_t bits = tensor->dtype_bits;
    uint32_t dim = tensor->rank;

    if (bits == 0)
        return heft_box_is_whole(tensor, box);
    if (bits % 8 == 0 || !box.start)
        return 1;
    while (dim > 0 && box.size[dim - 1] == tensor->shape[dim - 1])
        bits *= tensor->shape[--dim];
    if (dim == 0 || heft_box_is_empty(tensor, box))
        return 1;
    return (box.start[dim - 1] * bits) % 8 == 0 && (box.size[dim - 1] * bits) % 8 == 0 &&
           (tensor->shape[dim - 1] * bits) % 8 == 0;
}

int heft_box_is_apart(const struct heft_manifest_tensor *tensor, struct heft_box left, struct heft_box right)
{
    uint32_t dim;

    if (!left.start || !right.start)
        return 0;
    for (dim = 0; dim < tensor->rank; dim++)
        if (left.start[dim] >= right.start[dim] + right.size[dim] ||
            right.start[dim] >= left.start[dim] + left.size[dim])
            return 1;
    return 0;
}

uint64_t heft_box_size_bytes(const struct heft_manifest_tensor *tensor, struct heft_box box)
{
    const uint64_t *size = box.start ? box.size : tensor->shape;
    uint64_t elements = 1;
    uint32_t dim;

    if (heft_box_is_empty(tensor, box))
        return 0;
    for (dim = 0; dim < tensor->rank; dim++)
        elements *= size[dim];
    return (uint64_t)((wide)elements * tensor->dtype_bits >> 3);
}

static uint64_t bytes_of(uint64_t elements, uint32_t dtype_bits)
{
    return (uint64_t)((wide)elements * dtype_bits >> 3);
}

/* Reverses the dimensions, which were found from the innermost outwards. */
static void turn(uint64_t *numbers, uint32_t count)
{
    uint32_t low, high;

    for (low = 0, high = count; low + 1 < high; low++) {
        uint64_t number = numbers[low];

        numbers[low] = numbers[--high];
        numbers[high] = number;
    }
}

uint32_t heft_geometry_collapse(const struct heft_manifest_tensor *tensor, const struct heft_box *boxes,
                                uint32_t box_count, uint64_t full_out[HEFT_GEOMETRY_MAX_DIMS],
                                struct heft_geometry_box *boxes_out)
{
    uint32_t dim = tensor->rank, last = 0, index;
    int cut = 0; /* some box cuts dimension `last` of the result: nothing further can join it */

    full_out[0] = 1;
    for (index = 0; index < box_count; index++) {
        boxes_out[index].start[0] = 0;
        boxes_out[index].size[0] = 1;
    }
    while (dim-- > 0) {
        uint64_t length = tensor->shape[dim], inner;

        if (length == 1)
            continue;
        if (cut) {
            last++;
            HEFT_ASSERT(last < HEFT_GEOMETRY_MAX_DIMS);
            full_out[last] = 1;
            cut = 0;
        }
        inner = full_out[last];
        full_out[last] = length * inner;
        for (index = 0; index < box_count; index++) {
            uint64_t start = boxes[index].start ? boxes[index].start[dim] : 0;
            uint64_t size = boxes[index].start ? boxes[index].size[dim] : length;

            boxes_out[index].start[last] = start * inner;
            boxes_out[index].size[last] = size * inner;
            cut |= size != length;
        }
    }
    full_out[0] = bytes_of(full_out[0], tensor->dtype_bits);
    turn(full_out, last + 1);
    for (index = 0; index < box_count; index++) {
        struct heft_geometry_box *box = &boxes_out[index];

        box->start[0] = bytes_of(box->start[0], tensor->dtype_bits);
        box->size[0] = bytes_of(box->size[0], tensor->dtype_bits);
        turn(box->start, last + 1);
        turn(box->size, last + 1);
    }
    return last + 1;
}
