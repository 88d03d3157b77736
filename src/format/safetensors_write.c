/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer. What it writes the reader accepts, and so does the reference: everything that would be refused
 * there is refused here, with the same codes.
 */
#include "format/json_scan.h"
#include "format/manifest_text.h"
#include "format/safetensors_private.h"

#include <stdio.h>
#include <string.h>

#define METADATA_KEY "__metadata__"

static int refuse_text(struct heft_error *error, int code, const char *kind, const char *text,
                       uint32_t text_bytes, const char *what)
{
    struct heft_quote name;

    return heft_error_set(error, code, "%s %s %s", kind, heft_quote_name(&name, text, text_bytes), what);
}

/* ---- checks ---- */

static int check_text(const char *kind, const char *text, uint32_t bytes, struct heft_error *error)
{
    if (!text)
        return heft_error_set(error, HEFT_ERR_INVALID, "a %s is NULL", kind);
    if (heft_utf8_span(text, bytes) != bytes)
        return refuse_text(error, HEFT_ERR_HEADER_UTF8, kind, text, bytes, "is not UTF-8");
    return HEFT_OK;
}

/* The tensor's name, dtype and size. */
static int check_tensor(const struct heft_st_tensor *tensor, uint64_t *bytes_out, struct heft_error *error)
{
    const struct heft_st_dtype *dtype;
    int rc = check_text("tensor", tensor->name, tensor->name_bytes, error);

    if (rc)
        return rc;
    if (tensor->name_bytes == sizeof(METADATA_KEY) - 1 &&
        memcmp(tensor->name, METADATA_KEY, sizeof(METADATA_KEY) - 1) == 0)
        return heft_error_set(error, HEFT_ERR_HEADER_FIELD, "no tensor can be named \"" METADATA_KEY "\"");
    dtype = tensor->dtype ? heft_st_dtype_find(tensor->dtype, strlen(tensor->dtype)) : NULL;
    if (!dtype)
        return refuse_text(error, HEFT_ERR_DTYPE, "tensor", tensor->name, tensor->name_bytes,
                           "has an unknown dtype");
    if (tensor->rank && !tensor->shape)
        return refuse_text(error, HEFT_ERR_INVALID, "tensor", tensor->name, tensor->name_bytes,
                           "has a rank and no shape");
    rc = heft_st_size(tensor->shape, tensor->rank, dtype->bits, bytes_out);
    if (rc == HEFT_ERR_SHAPE_OVERFLOW)
        return refuse_text(error, rc, "tensor", tensor->name, tensor->name_bytes, "overflows 64 bits");
    if (rc)
        return refuse_text(error, rc, "tensor", tensor->name, tensor->name_bytes, "does not end on a byte");
    return HEFT_OK;
}

static int check_repeated(const struct heft_st_tensor *tensors, uint64_t tensor_count,
                          const struct heft_st_pair *metadata, uint64_t metadata_count,
                          struct heft_error *error)
{
    uint64_t index = 0;
    int found = heft_st_repeated_tensor(tensors, tensor_count, &index);

    if (found > 0)
        return refuse_text(error, HEFT_ERR_HEADER_FIELD, "tensor", tensors[index].name,
                           tensors[index].name_bytes, "stands twice");
    if (found == 0)
        found = heft_st_repeated_pair(metadata, metadata_count, &index);
    if (found > 0)
        return refuse_text(error, HEFT_ERR_HEADER_FIELD, "metadata key", metadata[index].key,
                           metadata[index].key_bytes, "stands twice");
    return found < 0 ? heft_error_set(error, found, "no memory to compare the names") : HEFT_OK;
}

/* ---- text ---- */

static void put(struct heft_buf *buf, const char *text)
{
    heft_buf_bytes(buf, text, strlen(text));
}

static void put_number(struct heft_buf *buf, uint64_t value)
{
    char digits[20];
    size_t at = sizeof(digits);

    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    heft_buf_bytes(buf, digits + at, sizeof(digits) - at);
}

static void put_string(struct heft_buf *buf, const char *text, uint32_t bytes)
{
    char escaped[8];
    uint32_t from = 0, at;

    heft_buf_u8(buf, '"');
    for (at = 0; at < bytes; at++) {
        uint8_t byte = (uint8_t)text[at];

        if (byte >= 0x20 && byte != '"' && byte != '\\')
            continue;
        heft_buf_bytes(buf, text + from, at - from);
        from = at + 1;
        if (byte >= 0x20)
            (void)snprintf(escaped, sizeof(escaped), "\\%c", byte);
        else
            (void)snprintf(escaped, sizeof(escaped), "\\u%04x", byte);
        put(buf, escaped);
    }
    if (bytes > from)
        heft_buf_bytes(buf, text + from, bytes - from);
    heft_buf_u8(buf, '"');
}

static void put_tensor(struct heft_buf *buf, const struct heft_st_tensor *tensor, uint64_t begin,
                       uint64_t end)
{
    uint32_t index;

    put_string(buf, tensor->name, tensor->name_bytes);
    put(buf, ":{\"dtype\":\"");
    put(buf, tensor->dtype);
    put(buf, "\",\"shape\":[");
    for (index = 0; index < tensor->rank; index++) {
        if (index)
            heft_buf_u8(buf, ',');
        put_number(buf, tensor->shape[index]);
    }
    put(buf, "],\"data_offsets\":[");
    put_number(buf, begin);
    heft_buf_u8(buf, ',');
    put_number(buf, end);
    put(buf, "]}");
}

static int put_metadata(struct heft_buf *buf, const struct heft_st_pair *metadata, uint64_t metadata_count,
                        struct heft_error *error)
{
    uint64_t index;

    put(buf, "\"" METADATA_KEY "\":{");
    for (index = 0; index < metadata_count; index++) {
        const struct heft_st_pair *pair = &metadata[index];
        int rc = check_text("metadata key", pair->key, pair->key_bytes, error);

        if (rc == 0)
            rc = check_text("metadata value", pair->value, pair->value_bytes, error);
        if (rc)
            return rc;
        if (index)
            heft_buf_u8(buf, ',');
        put_string(buf, pair->key, pair->key_bytes);
        heft_buf_u8(buf, ':');
        put_string(buf, pair->value, pair->value_bytes);
    }
    heft_buf_u8(buf, '}');
    return HEFT_OK;
}

static int put_tensors(struct heft_buf *buf, const struct heft_st_tensor *tensors, uint64_t tensor_count,
                       int comma, struct heft_error *error)
{
    uint64_t begin = 0;
    uint64_t index;

    for (index = 0; index < tensor_count && !buf->failed; index++) {
        uint64_t bytes = 0, end;
        int rc = check_tensor(&tensors[index], &bytes, error);

        if (rc)
            return rc;
        if (__builtin_add_overflow(begin, bytes, &end))
            return refuse_text(error, HEFT_ERR_SHAPE_OVERFLOW, "tensor", tensors[index].name,
                               tensors[index].name_bytes, "ends past 2^64 bytes of data");
        if (comma || index)
            heft_buf_u8(buf, ',');
        put_tensor(buf, &tensors[index], begin, end);
        begin = end;
    }
    return HEFT_OK;
}

int heft_st_write_header(const struct heft_st_tensor *tensors, uint64_t tensor_count,
                         const struct heft_st_pair *metadata, uint64_t metadata_count, struct heft_buf *buf,
                         struct heft_error *error)
{
    size_t before = buf->size;
    uint64_t header_bytes;
    int rc = HEFT_OK;

    heft_buf_u64(buf, 0); /* the length, known at the end */
    heft_buf_u8(buf, '{');
    if (metadata_count)
        rc = put_metadata(buf, metadata, metadata_count, error);
    if (rc == 0)
        rc = put_tensors(buf, tensors, tensor_count, metadata_count > 0, error);
    if (rc)
        goto fail_text;
    heft_buf_u8(buf, '}');
    while ((buf->size - before) % 8 != 0 && !buf->failed)
        heft_buf_u8(buf, ' ');
    if (buf->failed) {
        rc = heft_error_set(error, buf->failed, "no room for the header: the buffer's limit is %zu bytes",
                            buf->limit);
        goto fail_text;
    }
    header_bytes = buf->size - before - 8;
    if (header_bytes > HEFT_ST_HEADER_LIMIT_BYTES) {
        rc = heft_error_set(error, HEFT_ERR_HEADER_TOO_LARGE,
                            "the header of %llu tensors takes %llu bytes, more than the %llu that readers "
                            "accept: split the model into shards",
                            (unsigned long long)tensor_count, (unsigned long long)header_bytes,
                            (unsigned long long)HEFT_ST_HEADER_LIMIT_BYTES);
        goto fail_text;
    }
    rc = check_repeated(tensors, tensor_count, metadata, metadata_count, error);
    if (rc)
        goto fail_text;
    heft_put_u64(buf->data + before, header_bytes);
    return HEFT_OK;

fail_text:
    buf->size = before;
    return rc;
}
