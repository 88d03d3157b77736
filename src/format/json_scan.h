/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A strict JSON scanner over bytes that are there in full. It allocates nothing, never recurses, and reads
 * every byte once. What it accepts is what serde_json accepts (the parser of the safetensors reference): RFC
 * 8259, no lone surrogates, nesting of at most 127, and no number whose magnitude passes a double's.
 *
 * The caller walks: peek, then the call that fits the byte. Whoever fails leaves `at` on the offending byte
 * and `reason` set; nothing else may be called after that.
 */
#ifndef HEFT_FORMAT_JSON_SCAN_H
#define HEFT_FORMAT_JSON_SCAN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Arrays and objects inside each other, the outermost counted. */
#define HEFT_JSON_DEPTH_LIMIT 127

struct heft_json_scan {
    const uint8_t *start;
    const uint8_t *at;
    const uint8_t *end;
    const char *reason; /* of the failure: "expected a comma or }" */
};

/* A string as it stands between its quotes. */
struct heft_json_text {
    const uint8_t *raw;
    uint32_t raw_bytes;
    uint32_t bytes; /* once decoded; equal to raw_bytes when nothing is escaped */
};

/* `size` must be below 4 GiB. */
void heft_json_init(struct heft_json_scan *scan, const void *data, size_t size);

/* Fails here: sets the reason, answers -1. */
int heft_json_fail(struct heft_json_scan *scan, const char *reason);

/* Skips white space; the byte that follows, or -1 at the end. */
static inline int heft_json_peek(struct heft_json_scan *scan)
{
    while (scan->at < scan->end) {
        uint8_t byte = *scan->at;

        if (byte != ' ' && byte != '\n' && byte != '\t' && byte != '\r')
            return byte;
        scan->at++;
    }
    return -1;
}

/* After an element of an object or array: 1 behind a comma (something must follow), 0 behind `close`, or -1.
 */
int heft_json_next(struct heft_json_scan *scan, char close);
/* A key and its colon; `at` then stands before the value. 0 or -1. */
int heft_json_key(struct heft_json_scan *scan, struct heft_json_text *key_out);
/* `at` stands on the opening quote. 0 or -1. */
int heft_json_string(struct heft_json_scan *scan, struct heft_json_text *text_out);
/* Writes text->bytes bytes of UTF-8. */
void heft_json_decode(const struct heft_json_text *text, char *bytes_out);
int heft_json_equals_escaped(const struct heft_json_text *text, const char *bytes, size_t size);
/* 1 when the decoded text is exactly these bytes, HEFT_JSON_WORD_BYTES at most. */
#define HEFT_JSON_WORD_BYTES 32
static inline int heft_json_equals(const struct heft_json_text *text, const char *bytes, size_t size)
{
    if (text->bytes != size)
        return 0;
    if (text->raw_bytes == size)
        return memcmp(text->raw, bytes, size) == 0;
    return heft_json_equals_escaped(text, bytes, size);
}
/* `at` stands on a digit or a minus. 0: an integer from 0 to 2^64-1. 1: another number. -1: no number. */
int heft_json_integer(struct heft_json_scan *scan, uint64_t *value_out);
/* "null", "true" or "false", from its first letter on. 0 or -1. */
int heft_json_word(struct heft_json_scan *scan, const char *word);
/* One value of any kind, which stands inside `depth` containers. 0 or -1. */
int heft_json_skip(struct heft_json_scan *scan, unsigned depth);

/* How many bytes from the start are whole, valid UTF-8 characters: `size` when all are. */
size_t heft_utf8_span(const void *data, size_t size);

#endif
