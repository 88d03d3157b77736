/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void heft_buf_init(struct heft_buf *buf, size_t limit)
{
    *buf = (struct heft_buf){.limit = limit};
}

void heft_buf_free(struct heft_buf *buf)
{
    free(buf->data);
    *buf = (struct heft_buf){.limit = buf->limit};
}

uint8_t *heft_buf_extend(struct heft_buf *buf, size_t size)
{
    size_t wanted, capacity;
    uint8_t *data;

    if (buf->failed)
        return NULL;
    if (size > buf->limit - buf->size) {
        buf->failed = HEFT_ERR_TOO_LARGE;
        return NULL;
    }
    wanted = buf->size + size;
    if (wanted > buf->capacity || !buf->data) {
        capacity = buf->capacity > SIZE_MAX / 2 ? SIZE_MAX : buf->capacity * 2;
        if (capacity < 256)
            capacity = 256;
        if (capacity > buf->limit)
            capacity = buf->limit;
        if (capacity < wanted)
            capacity = wanted;
        data = realloc(buf->data, capacity ? capacity : 1);
        if (!data) {
            buf->failed = HEFT_ERR_NO_MEMORY;
            return NULL;
        }
        buf->data = data;
        buf->capacity = capacity;
    }
    data = buf->data + buf->size;
    buf->size = wanted;
    return data;
}

void heft_buf_bytes(struct heft_buf *buf, const void *data, size_t size)
{
    uint8_t *at = heft_buf_extend(buf, size);

    if (at && size)
        memcpy(at, data, size);
}

void heft_buf_u8(struct heft_buf *buf, uint8_t value)
{
    heft_buf_bytes(buf, &value, 1);
}

void heft_buf_u16(struct heft_buf *buf, uint16_t value)
{
    uint8_t *at = heft_buf_extend(buf, 2);

    if (at)
        heft_put_u16(at, value);
}

void heft_buf_u32(struct heft_buf *buf, uint32_t value)
{
    uint8_t *at = heft_buf_extend(buf, 4);

    if (at)
        heft_put_u32(at, value);
}

void heft_buf_u64(struct heft_buf *buf, uint64_t value)
{
    uint8_t *at = heft_buf_extend(buf, 8);

    if (at)
        heft_put_u64(at, value);
}

void heft_buf_string(struct heft_buf *buf, const char *text, size_t size)
{
    if (size > UINT32_MAX) {
        if (!buf->failed)
            buf->failed = HEFT_ERR_TOO_LARGE;
        return;
    }
    heft_buf_u32(buf, (uint32_t)size);
    heft_buf_bytes(buf, text, size);
}

void heft_buf_printf(struct heft_buf *buf, const char *format, ...)
{
    va_list args;
    uint8_t *at;
    int size;

    va_start(args, format);
    size = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (size < 0)
        return;
    at = heft_buf_extend(buf, (size_t)size + 1); /* vsnprintf wants room for its NUL */
    if (!at)
        return;
    va_start(args, format);
    (void)vsnprintf((char *)at, (size_t)size + 1, format, args);
    va_end(args);
    buf->size--;
}

void heft_reader_init(struct heft_reader *reader, const void *data, size_t size)
{
    reader->at = data;
    reader->end = size ? (const uint8_t *)data + size : data;
    reader->failed = 0;
}

size_t heft_reader_left(const struct heft_reader *reader)
{
    return reader->failed ? 0 : (size_t)(reader->end - reader->at);
}

const uint8_t *heft_reader_bytes(struct heft_reader *reader, size_t size)
{
    const uint8_t *at = reader->at;

    if (reader->failed || size > (size_t)(reader->end - reader->at)) {
        reader->failed = 1;
        return NULL;
    }
    reader->at += size;
    return at;
}

uint8_t heft_reader_u8(struct heft_reader *reader)
{
    const uint8_t *at = heft_reader_bytes(reader, 1);

    return at ? at[0] : 0;
}

uint16_t heft_reader_u16(struct heft_reader *reader)
{
    const uint8_t *at = heft_reader_bytes(reader, 2);

    return at ? heft_get_u16(at) : 0;
}

uint32_t heft_reader_u32(struct heft_reader *reader)
{
    const uint8_t *at = heft_reader_bytes(reader, 4);

    return at ? heft_get_u32(at) : 0;
}

uint64_t heft_reader_u64(struct heft_reader *reader)
{
    const uint8_t *at = heft_reader_bytes(reader, 8);

    return at ? heft_get_u64(at) : 0;
}

const char *heft_reader_string(struct heft_reader *reader, size_t max_bytes, size_t *size_out)
{
    uint32_t size = heft_reader_u32(reader);
    const uint8_t *at;

    if (reader->failed || size > max_bytes) {
        reader->failed = 1;
        return NULL;
    }
    at = heft_reader_bytes(reader, size);
    if (at)
        *size_out = size;
    return (const char *)at;
}
