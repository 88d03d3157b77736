/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounded byte buffers. A writer grows up to its limit; a reader never leaves its bytes. Both are sticky:
 * after the first failure every call does nothing and the failure is asked for once, at the end. All integers
 * are little-endian on the wire.
 */
#ifndef HEFT_BASE_BUF_H
#define HEFT_BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

struct heft_buf {
    uint8_t *data; /* freed by heft_buf_free */
    size_t size;
    size_t capacity;
    size_t limit; /* size never passes it */
    int failed;   /* 0, HEFT_ERR_NO_MEMORY or HEFT_ERR_TOO_LARGE */
};

void heft_buf_init(struct heft_buf *buf, size_t limit);
void heft_buf_free(struct heft_buf *buf);
/* Room for `size` more bytes: a pointer to them, already counted, or NULL. */
uint8_t *heft_buf_extend(struct heft_buf *buf, size_t size);
void heft_buf_bytes(struct heft_buf *buf, const void *data, size_t size);
void heft_buf_u8(struct heft_buf *buf, uint8_t value);
void heft_buf_u16(struct heft_buf *buf, uint16_t value);
void heft_buf_u32(struct heft_buf *buf, uint32_t value);
void heft_buf_u64(struct heft_buf *buf, uint64_t value);
/* A u32 length, then the bytes. */
void heft_buf_string(struct heft_buf *buf, const char *text, size_t size);
/* Text without its NUL, printf style. */
void heft_buf_printf(struct heft_buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));

struct heft_reader {
    const uint8_t *at;
    const uint8_t *end;
    int failed; /* 1 after the first read past the end */
};

void heft_reader_init(struct heft_reader *reader, const void *data, size_t size);
size_t heft_reader_left(const struct heft_reader *reader);
uint8_t heft_reader_u8(struct heft_reader *reader);
uint16_t heft_reader_u16(struct heft_reader *reader);
uint32_t heft_reader_u32(struct heft_reader *reader);
uint64_t heft_reader_u64(struct heft_reader *reader);
/* The next `size` bytes in place, or NULL (failed). */
const uint8_t *heft_reader_bytes(struct heft_reader *reader, size_t size);
/* A u32 length of at most max_bytes, then the bytes in place. NULL on failure. */
const char *heft_reader_string(struct heft_reader *reader, size_t max_bytes, size_t *size_out);

static inline void heft_put_u16(uint8_t *at, uint16_t v)
{
    at[0] = (uint8_t)v;
    at[1] = (uint8_t)(v >> 8);
}
static inline void heft_put_u32(uint8_t *at, uint32_t v)
{
    heft_put_u16(at, (uint16_t)v);
    heft_put_u16(at + 2, (uint16_t)(v >> 16));
}
static inline void heft_put_u64(uint8_t *at, uint64_t v)
{
    heft_put_u32(at, (uint32_t)v);
    heft_put_u32(at + 4, (uint32_t)(v >> 32));
}
static inline uint16_t heft_get_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}
static inline uint32_t heft_get_u32(const uint8_t *at)
{
    return (uint32_t)heft_get_u16(at) | (uint32_t)heft_get_u16(at + 2) << 16;
}
static inline uint64_t heft_get_u64(const uint8_t *at)
{
    return (uint64_t)heft_get_u32(at) | (uint64_t)heft_get_u32(at + 4) << 32;
}

#endif
