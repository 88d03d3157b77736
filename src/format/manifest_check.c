/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor's numbers must agree with each other: the same checks for tables that a program hands over and for
 * those that came over a wire, done once, before anything computes with them.
 */
#include "format/manifest_internal.h"
#include "base/error.h"
#include "format/manifest_text.h"

#include <inttypes.h>

static int check_box(int blame, const char *name, const struct heft_manifest_tensor *tensor,
                     struct heft_error *error)
{
    uint32_t dim;

    if (!tensor->box_start != !tensor->box_size)
        return heft_error_set(error, blame, "tensor %s: its box has a start or a size, but not both", name);
    if (!tensor->box_start)
        return HEFT_OK;
    for (dim = 0; dim < tensor->rank; dim++)
        if (tensor->box_start[dim] > tensor->shape[dim] ||
            tensor->box_size[dim] > tensor->shape[dim] - tensor->box_start[dim])
            return heft_error_set(error, blame,
                                  "tensor %s: the box [%" PRIu64 ", +%" PRIu64 ") leaves dimension %" PRIu32
                                  ", which is %" PRIu64 " long",
                                  name, tensor->box_start[dim], tensor->box_size[dim], dim,
                                  tensor->shape[dim]);
    return HEFT_OK;
}

/* Bits of a box of these sizes; 0 when it is empty, whatever the other dimensions say. -1: past 64 bits. */
static int box_bits(const uint64_t *sizes, uint32_t rank, uint32_t element_bits, uint64_t *bits_out)
{
    uint64_t bits = element_bits;
    uint32_t dim;
    int overflow = 0;

    for (dim = 0; dim < rank; dim++) {
        if (sizes[dim] == 0) {
            *bits_out = 0;
            return 0;
        }
        overflow |= __builtin_mul_overflow(bits, sizes[dim], &bits);
    }
    *bits_out = bits;
    return overflow ? -1 : 0;
}

static int check_size(int blame, const char *name, const struct heft_manifest_tensor *tensor,
                      struct heft_error *error)
{
    const uint64_t *sizes = tensor->box_size ? tensor->box_size : tensor->shape;
    struct heft_quote shape;
    uint64_t bits;

    if (tensor->dtype_bits == 0)
        return HEFT_OK;
    if (box_bits(sizes, tensor->rank, tensor->dtype_bits, &bits))
        return heft_error_set(error, blame, "tensor %s: the size of %s x %" PRIu32 " bits overflows 64 bits",
                              name, heft_quote_shape(&shape, sizes, tensor->rank), tensor->dtype_bits);
    if (bits % 8 != 0)
        return heft_error_set(error, blame, "tensor %s: %s x %" PRIu32 " bits does not end on a byte", name,
                              heft_quote_shape(&shape, sizes, tensor->rank), tensor->dtype_bits);
    if (tensor->size_bytes != bits / 8)
        return heft_error_set(
            error, blame, "tensor %s: has %" PRIu64 " bytes, but %s x %" PRIu32 " bits needs %" PRIu64, name,
            tensor->size_bytes, heft_quote_shape(&shape, sizes, tensor->rank), tensor->dtype_bits, bits / 8);
    return HEFT_OK;
}

static int check_place(int blame, const char *name, const struct heft_manifest *manifest,
                       const struct heft_manifest_tensor *tensor, struct heft_error *error)
{
    uint64_t file_bytes;

    if (tensor->file >= manifest->file_count)
        return heft_error_set(error, blame, "tensor %s: lies in file %" PRIu32 " of %" PRIu32, name,
                              tensor->file, manifest->file_count);
    file_bytes = manifest->files[tensor->file].size_bytes;
    if (tensor->offset_bytes > file_bytes || tensor->size_bytes > file_bytes - tensor->offset_bytes)
        return heft_error_set(error, blame,
                              "tensor %s: %" PRIu64 " bytes at %" PRIu64
                              " reach past the end of its file or region of %" PRIu64,
                              name, tensor->size_bytes, tensor->offset_bytes, file_bytes);
    return HEFT_OK;
}

static int check_all(int blame, const char *name, const struct heft_manifest *manifest,
                     const struct heft_manifest_tensor *tensor, struct heft_error *error)
{
    int rc = check_box(blame, name, tensor, error);

    if (!rc)
        rc = check_size(blame, name, tensor, error);
    if (!rc)
        rc = check_place(blame, name, manifest, tensor, error);
    return rc;
}

int heft_manifest_check_tensor(const struct heft_manifest *manifest,
                               const struct heft_manifest_tensor *tensor, struct heft_error *error)
{
    int blame = heft_manifest_state(manifest)->blame;
    struct heft_quote quote;

    if (!tensor->name || (!tensor->shape && tensor->rank))
        return heft_error_set(error, HEFT_ERR_INVALID, "a tensor without a name or a shape");
    if (tensor->rank > HEFT_TENSOR_MAX_RANK)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE, "tensor %s: rank %" PRIu32 "; the limit is %u",
                              heft_quote_name(&quote, tensor->name, tensor->name_bytes), tensor->rank,
                              HEFT_TENSOR_MAX_RANK);
    /* The name is quoted only when there is something to say: this runs for millions of tensors. */
    if (check_all(blame, "", manifest, tensor, NULL) == HEFT_OK)
        return HEFT_OK;
    return check_all(blame, heft_quote_name(&quote, tensor->name, tensor->name_bytes), manifest, tensor,
                     error);
}
