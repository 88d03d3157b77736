/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors: 8 bytes of little-endian header length N, N bytes of JSON, then the data.
 * The verdict equals the reference implementation's (huggingface/safetensors 0.8) on every input; each
 * refusal has a code of its own and names the place and the tensor.
 */
#ifndef HEFT_FORMAT_SAFETENSORS_H
#define HEFT_FORMAT_SAFETENSORS_H

#include "base/buf.h"
#include <heft/error.h>

#define HEFT_ST_HEADER_LIMIT_BYTES ((uint64_t)100000000)
#define HEFT_ST_MAX_RANK 64u /* as in PyTorch; the reference takes any */

struct heft_st_tensor {
    const char *name; /* NUL-terminated; may hold NULs: name_bytes counts */
    uint32_t name_bytes;
    uint32_t rank;
    const char *dtype;
    uint32_t dtype_bits; /* 0: unknown (lenient only) */
    uint32_t header_at;  /* where the name stands in the header; the writer ignores it */
    const uint64_t
        *shape;          /* of more than HEFT_ST_MAX_RANK dimensions the reader keeps those that are not 1 */
    uint64_t begin, end; /* relative to the data's start */
};

struct heft_st_pair { /* of __metadata__ */
    const char *key, *value;
    uint32_t key_bytes, value_bytes;
};

struct heft_st_header {
    struct heft_st_tensor *tensors; /* sorted by (begin, end) */
    uint64_t tensor_count;
    struct heft_st_pair *metadata;
    uint64_t metadata_count;
    uint64_t header_bytes;   /* N */
    uint64_t data_bytes;     /* of the file after the header */
    uint64_t repeated_names; /* names that stood more than once; the last one counted, as in the reference */
    int sizes_known;         /* also where dtype_bits is 0: of a format that has blocks of several elements */
    void *arena;
};

enum heft_st_flags {
    HEFT_ST_UNKNOWN_DTYPES = 1, /* a mover of bytes: keep unknown dtypes (their size check is left out) */
    HEFT_ST_TRAILING_DATA = 2   /* accept bytes after the last tensor */
};

struct heft_st_limits {
    uint64_t header_limit_bytes; /* 0: HEFT_ST_HEADER_LIMIT_BYTES; at most 4 GiB - 1 counts */
    uint32_t flags;              /* enum heft_st_flags; 0 is the reference's verdict */
};

/*
 * First step: the header's length from the file's first bytes. `prefix` holds min(file_bytes, at least 8)
 * bytes (with more, an LFS pointer is recognised). Checks it against limit and file before anything is
 * allocated.
 */
int heft_st_header_length(const void *prefix, size_t prefix_bytes, uint64_t file_bytes,
                          const struct heft_st_limits *limits, uint64_t *header_bytes_out,
                          struct heft_error *error);
/*
 * Second step: parses the N header bytes, which the result does not refer to. Linear time. Memory at most 3 x
 * N, the header's own bytes counted, for headers as writers write them; forms that nobody writes but the
 * reference accepts (entries as arrays, thousands of empty metadata values) take up to 5.5 x N. Errors: 351
 * to 364, NO_MEMORY; the header is written only on success.
 */
int heft_st_parse(const void *header, uint64_t header_bytes, uint64_t file_bytes,
                  const struct heft_st_limits *limits, struct heft_st_header **header_out,
                  struct heft_error *error);
void heft_st_free(struct heft_st_header *header);

/* Bits of a dtype's element, 0 when unknown. */
uint32_t heft_dtype_bits(const char *dtype, size_t dtype_bytes);

/*
 * Writer: the header for these tensors (begin/end are ignored and computed in the order given), padded with
 * spaces to 8 bytes, length field included. Refuses what the reader would refuse.
 */
int heft_st_write_header(const struct heft_st_tensor *tensors, uint64_t tensor_count,
                         const struct heft_st_pair *metadata, uint64_t metadata_count, struct heft_buf *buf,
                         struct heft_error *error);

#endif
