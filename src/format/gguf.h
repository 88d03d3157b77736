/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GGUF, versions 2 and 3, little-endian: metadata pairs, a tensor table, then the data at a multiple of the
 * file's alignment. Block-quantised tensors ("Q4_K") keep their name and have no element width: they move
 * whole. Format: ggml's docs/gguf.md.
 */
#ifndef HEFT_FORMAT_GGUF_H
#define HEFT_FORMAT_GGUF_H

#include "format/safetensors.h"

/* 1 when a file's first bytes are GGUF's. */
int heft_gguf_is(const void *prefix, size_t prefix_bytes);

/*
 * Parses the header from a file's first `have_bytes` bytes; the result does not refer to them. Where they end
 * inside the header it returns HEFT_ERR_AGAIN and says in *need_bytes_out how many to bring at least (never
 * more than the file has, or the limit allows). On success header_bytes is what lies before the data, less 8,
 * as for safetensors. Metadata: numbers as text, arrays by their length. Tensors are sorted by place; there
 * may be gaps between them. Errors: UNSUPPORTED (version, byte order), HEADER_TOO_LARGE, HEADER_LENGTH,
 * HEADER_FIELD, DTYPE, SHAPE_OVERFLOW, SIZE_MISMATCH, MISALIGNED, OFFSET_OVERLAP, DATA_TRUNCATED,
 * DUPLICATE_TENSOR, NO_MEMORY.
 */
int heft_gguf_parse(const void *data, uint64_t have_bytes, uint64_t file_bytes,
                    const struct heft_st_limits *limits, struct heft_st_header **header_out,
                    uint64_t *need_bytes_out, struct heft_error *error);

#endif
