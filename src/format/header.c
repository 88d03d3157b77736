/* SPDX-License-Identifier: Apache-2.0 */
#include "format/header.h"
#include "format/gguf.h"

#define PREFIX_BYTES ((uint64_t)512) /* enough to tell formats and LFS pointers apart */

int heft_header_parse(const void *data, uint64_t have_bytes, uint64_t file_bytes,
                      const struct heft_st_limits *limits, struct heft_st_header **header_out,
                      uint64_t *need_bytes_out, struct heft_error *error)
{
    uint64_t prefix = file_bytes < PREFIX_BYTES ? file_bytes : PREFIX_BYTES, header_bytes;
    int rc;

    if (have_bytes < prefix) {
        *need_bytes_out = prefix;
        return HEFT_ERR_AGAIN;
    }
    if (heft_gguf_is(data, (size_t)have_bytes))
        return heft_gguf_parse(data, have_bytes, file_bytes, limits, header_out, need_bytes_out, error);
    rc = heft_st_header_length(data, (size_t)have_bytes, file_bytes, limits, &header_bytes, error);
    if (rc)
        return rc;
    if (have_bytes < 8 + header_bytes) {
        *need_bytes_out = 8 + header_bytes;
        return HEFT_ERR_AGAIN;
    }
    return heft_st_parse((const uint8_t *)data + 8, header_bytes, file_bytes, limits, header_out, error);
}
