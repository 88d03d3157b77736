/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a file of weights, whatever its format: safetensors or GGUF, told apart by the first bytes.
 */
#ifndef HEFT_FORMAT_HEADER_H
#define HEFT_FORMAT_HEADER_H

#include "format/safetensors.h"

/*
 * Parses the header from a file's first `have_bytes` bytes; the result does not refer to them.
 * HEFT_ERR_AGAIN: it reaches further, *need_bytes_out says how many of the file's bytes to bring at least.
 * Else as heft_st_parse and heft_gguf_parse.
 */
int heft_header_parse(const void *data, uint64_t have_bytes, uint64_t file_bytes,
                      const struct heft_st_limits *limits, struct heft_st_header **header_out,
                      uint64_t *need_bytes_out, struct heft_error *error);

#endif
