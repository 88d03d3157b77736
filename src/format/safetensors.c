/* SPDX-License-Identifier: Apache-2.0 */
/* The checks around the header's JSON: the file's frame before it, the tiling of the data after it. */
#include "format/safetensors.h"
#include "format/manifest_text.h"
#include "format/safetensors_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Positions and name lengths have 32 bits; no sane header comes near. */
#define LENGTH_LIMIT ((uint64_t)UINT32_MAX)
#define LENGTH_FIELD_BYTES ((uint64_t)8)

/* ---- the frame ---- */

/* The value of "key " at the start of one of the pointer file's lines; NULL when it isn't there whole. */
static const char *pointer_field(const char *text, size_t size, const char *key, size_t *bytes_out)
{
    size_t key_bytes = strlen(key);
    size_t at = 0;

    while (at < size) {
        const char *line = text + at;
        const char *stop = memchr(line, '\n', size - at);
        size_t bytes;

        if (!stop)
            return NULL;
        bytes = (size_t)(stop - line);
        at += bytes + 1;
        if (bytes > 0 && line[bytes - 1] == '\r')
            bytes--;
        if (bytes > key_bytes && memcmp(line, key, key_bytes) == 0) {
            *bytes_out = bytes - key_bytes;
            return line + key_bytes;
        }
    }
    return NULL;
}

/* A Git LFS pointer is a small text whose first eight bytes would be a length of 2 x 10^18. */
static int refuse_pointer(const char *text, size_t size, struct heft_error *error)
{
    struct heft_quote oid, length;
    size_t oid_bytes = 0, length_bytes = 0;
    const char *oid_at = pointer_field(text, size, "oid ", &oid_bytes);
    const char *length_at = pointer_field(text, size, "size ", &length_bytes);

    if (oid_at && length_at)
        return heft_error_set(
            error, HEFT_ERR_LFS_POINTER,
            "a Git LFS pointer stands where the weights should be (oid %s, %s bytes): run git lfs pull, or "
            "download the file itself",
            heft_quote_name(&oid, oid_at, oid_bytes), heft_quote_name(&length, length_at, length_bytes));
    return heft_error_set(error, HEFT_ERR_LFS_POINTER,
                          "a Git LFS pointer stands where the weights should be: run git lfs pull, or "
                          "download the file itself");
}

static int check_length(uint64_t header_bytes, uint64_t file_bytes, const struct heft_st_limits *limits,
                        struct heft_error *error)
{
    uint64_t limit =
        limits && limits->header_limit_bytes ? limits->header_limit_bytes : HEFT_ST_HEADER_LIMIT_BYTES;

    if (limit > LENGTH_LIMIT)
        limit = LENGTH_LIMIT;
    if (header_bytes > limit)
        return heft_error_set(error, HEFT_ERR_HEADER_TOO_LARGE,
                              "the header's length field says %llu bytes, the limit (header_limit_bytes) is "
                              "%llu: not a safetensors file, or raise the limit",
                              (unsigned long long)header_bytes, (unsigned long long)limit);
    if (file_bytes < LENGTH_FIELD_BYTES || header_bytes > file_bytes - LENGTH_FIELD_BYTES)
        return heft_error_set(error, HEFT_ERR_HEADER_LENGTH,
                              "the header ends at byte %llu, the file at %llu: the file is cut off, fetch it "
                              "again",
                              (unsigned long long)(LENGTH_FIELD_BYTES + header_bytes),
                              (unsigned long long)file_bytes);
    return HEFT_OK;
}

int heft_st_header_length(const void *prefix, size_t prefix_bytes, uint64_t file_bytes,
                          const struct heft_st_limits *limits, uint64_t *header_bytes_out,
                          struct heft_error *error)
{
    uint64_t header_bytes;
    int rc;

    if (file_bytes < LENGTH_FIELD_BYTES)
        return heft_error_set(error, HEFT_ERR_HEADER_TOO_SMALL,
                              "the file has %llu bytes, a safetensors file at least 8: fetch it again",
                              (unsigned long long)file_bytes);
    if (!prefix || prefix_bytes < LENGTH_FIELD_BYTES)
        return heft_error_set(error, HEFT_ERR_INVALID, "the first 8 bytes of the file are needed, got %zu",
                              prefix_bytes);
    if (memcmp(prefix, "version ", LENGTH_FIELD_BYTES) == 0)
        return refuse_pointer(prefix, prefix_bytes, error);
    header_bytes = heft_get_u64(prefix);
    rc = check_length(header_bytes, file_bytes, limits, error);
    if (rc)
        return rc;
    *header_bytes_out = header_bytes;
    return HEFT_OK;
}

/* ---- the tiling ---- */

int heft_st_size(const uint64_t *shape, uint64_t rank, uint32_t bits, uint64_t *bytes_out)
{
    uint64_t total = 1;
    uint64_t index;

    for (index = 0; index < rank; index++)
        if (__builtin_mul_overflow(total, shape[index], &total))
            return HEFT_ERR_SHAPE_OVERFLOW;
    if (__builtin_mul_overflow(total, (uint64_t)bits, &total))
        return HEFT_ERR_SHAPE_OVERFLOW;
    if (total % 8 != 0)
        return HEFT_ERR_MISALIGNED;
    *bytes_out = total / 8;
    return HEFT_OK;
}

static int refuse_size(const struct heft_st_tensor *tensor, int code, uint64_t bytes,
                       struct heft_error *error)
{
    struct heft_quote name, dimensions;
    const char *shape = heft_quote_shape(&dimensions, tensor->shape, tensor->rank);
    const char *printed = heft_quote_name(&name, tensor->name, tensor->name_bytes);

    if (code == HEFT_ERR_SHAPE_OVERFLOW)
        return heft_error_set(error, code,
                              "tensor %s (byte %u of the header): shape %s of %s overflows 64 bits", printed,
                              tensor->header_at, shape, tensor->dtype);
    if (code == HEFT_ERR_MISALIGNED)
        return heft_error_set(error, code,
                              "tensor %s (byte %u of the header): shape %s of %s does not end on a byte",
                              printed, tensor->header_at, shape, tensor->dtype);
    return heft_error_set(error, code,
                          "tensor %s (byte %u of the header): shape %s of %s takes %llu bytes, its "
                          "data_offsets [%llu,%llu] hold %llu",
                          printed, tensor->header_at, shape, tensor->dtype, (unsigned long long)bytes,
                          (unsigned long long)tensor->begin, (unsigned long long)tensor->end,
                          (unsigned long long)(tensor->end - tensor->begin));
}

/* A tensor that does not begin where the one before it ended, or ends before it begins. */
static int refuse_place(const struct heft_st_tensor *before, const struct heft_st_tensor *tensor,
                        uint64_t expected, struct heft_error *error)
{
    struct heft_quote name, other;
    const char *printed = heft_quote_name(&name, tensor->name, tensor->name_bytes);
    const char *neighbour = before ? heft_quote_name(&other, before->name, before->name_bytes) : NULL;

    if (tensor->end < tensor->begin)
        return heft_error_set(error, HEFT_ERR_OFFSET_REVERSED,
                              "tensor %s (byte %u of the header): data_offsets [%llu,%llu] end before "
                              "they begin",
                              printed, tensor->header_at, (unsigned long long)tensor->begin,
                              (unsigned long long)tensor->end);
    if (tensor->begin < expected)
        return heft_error_set(error, HEFT_ERR_OFFSET_OVERLAP,
                              "tensor %s (byte %u of the header) begins at %llu, inside tensor %s "
                              "that ends at %llu",
                              printed, tensor->header_at, (unsigned long long)tensor->begin, neighbour,
                              (unsigned long long)expected);
    if (!before)
        return heft_error_set(error, HEFT_ERR_OFFSET_GAP,
                              "the first tensor %s (byte %u of the header) begins at %llu, not at 0", printed,
                              tensor->header_at, (unsigned long long)tensor->begin);
    return heft_error_set(error, HEFT_ERR_OFFSET_GAP,
                          "a hole of %llu bytes before tensor %s (byte %u of the header), which begins at "
                          "%llu: tensor %s ends at %llu",
                          (unsigned long long)(tensor->begin - expected), printed, tensor->header_at,
                          (unsigned long long)tensor->begin, neighbour, (unsigned long long)expected);
}

/* Tensor by tensor, in the reference's order of checks. An unknown dtype (bits 0) has no size to compare. */
static int check_tiling(const struct heft_st_header *header, uint64_t *data_end_out, struct heft_error *error)
{
    uint64_t expected = 0;
    uint64_t index;

    for (index = 0; index < header->tensor_count; index++) {
        const struct heft_st_tensor *tensor = &header->tensors[index];
        uint64_t bytes = 0;
        int rc;

        if (tensor->begin != expected || tensor->end < tensor->begin)
            return refuse_place(index ? tensor - 1 : NULL, tensor, expected, error);
        expected = tensor->end;
        if (tensor->dtype_bits == 0)
            continue;
        rc = heft_st_size(tensor->shape, tensor->rank, tensor->dtype_bits, &bytes);
        if (rc == 0 && bytes != tensor->end - tensor->begin)
            rc = HEFT_ERR_SIZE_MISMATCH;
        if (rc)
            return refuse_size(tensor, rc, bytes, error);
    }
    *data_end_out = expected;
    return HEFT_OK;
}

static int check_data(const struct heft_st_header *header, uint64_t data_end, uint32_t flags,
                      struct heft_error *error)
{
    struct heft_quote name;
    const struct heft_st_tensor *last =
        header->tensor_count ? &header->tensors[header->tensor_count - 1] : NULL;

    if (data_end > header->data_bytes)
        return heft_error_set(error, HEFT_ERR_DATA_TRUNCATED,
                              "the last tensor %s ends at %llu of the data, the file after %llu: the file "
                              "is cut off, fetch it again",
                              heft_quote_name(&name, last->name, last->name_bytes),
                              (unsigned long long)data_end, (unsigned long long)header->data_bytes);
    if (data_end < header->data_bytes && !(flags & HEFT_ST_TRAILING_DATA))
        return heft_error_set(error, HEFT_ERR_DATA_TRAILING,
                              "the tensors end at %llu of the data, the file holds %llu bytes more: fetch it "
                              "again, or accept trailing bytes",
                              (unsigned long long)data_end,
                              (unsigned long long)(header->data_bytes - data_end));
    return HEFT_OK;
}

/* ---- all of it ---- */

static int refuse_memory(uint64_t header_bytes, struct heft_error *error)
{
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for the entries of a header of %llu bytes",
                          (unsigned long long)header_bytes);
}

int heft_st_parse(const void *header, uint64_t header_bytes, uint64_t file_bytes,
                  const struct heft_st_limits *limits, struct heft_st_header **header_out,
                  struct heft_error *error)
{
    uint32_t flags = limits ? limits->flags : 0;
    struct heft_st_header *parsed;
    uint64_t data_end = 0;
    int rc;

    rc = check_length(header_bytes, file_bytes, limits, error);
    if (rc)
        return rc;
    parsed = calloc(1, sizeof(*parsed));
    if (!parsed)
        return refuse_memory(header_bytes, error);
    parsed->header_bytes = header_bytes;
    parsed->data_bytes = file_bytes - LENGTH_FIELD_BYTES - header_bytes;
    parsed->arena = heft_st_arena_create(header_bytes);
    if (!parsed->arena) {
        rc = refuse_memory(header_bytes, error);
        goto fail_parsed;
    }
    rc = heft_st_read_entries(header, header_bytes, flags, parsed, error);
    if (rc)
        goto fail_parsed;
    if (heft_st_drop_repeated(parsed) || heft_st_sort(parsed->tensors, parsed->tensor_count)) {
        rc = refuse_memory(header_bytes, error);
        goto fail_parsed;
    }
    rc = check_tiling(parsed, &data_end, error);
    if (rc == 0)
        rc = check_data(parsed, data_end, flags, error);
    if (rc)
        goto fail_parsed;
    *header_out = parsed;
    return HEFT_OK;

fail_parsed:
    heft_st_free(parsed);
    return rc;
}

void heft_st_free(struct heft_st_header *header)
{
    if (!header)
        return;
    heft_st_arena_destroy(header->arena);
    free(header->tensors);
    free(header->metadata);
    free(header);
}
