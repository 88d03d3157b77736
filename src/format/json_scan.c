/* SPDX-License-Identifier: Apache-2.0 */
#include "format/json_scan.h"
#include "base/error.h"

#include <math.h>
#include <string.h>

#define EACH_BYTE(value) (UINT64_MAX / 255 * (value))
#define HIGH_BITS EACH_BYTE(0x80)

void heft_json_init(struct heft_json_scan *scan, const void *data, size_t size)
{
    HEFT_ASSERT(size <= UINT32_MAX);
    scan->start = scan->at = data;
    scan->end = size ? scan->start + size : scan->start;
    scan->reason = NULL;
}

int heft_json_fail(struct heft_json_scan *scan, const char *reason)
{
    scan->reason = reason;
    return -1;
}

static uint64_t load8(const uint8_t *at)
{
    uint64_t word;

    memcpy(&word, at, sizeof(word));
    return word;
}

/* ---- UTF-8 ---- */

/* The length of the valid character at `at`, 0 when there is none. Overlong forms, surrogates and numbers
 * past U+10FFFF are not valid. */
static size_t character_bytes(const uint8_t *at, size_t left)
{
    uint8_t lead = at[0];
    uint8_t low = 0x80, high = 0xBF; /* of the second byte */
    size_t size, index;

    if (lead < 0x80)
        return 1;
    if (lead < 0xC2 || lead > 0xF4)
        return 0;
    size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (left < size)
        return 0;
    if (lead == 0xE0)
        low = 0xA0;
    else if (lead == 0xED)
        high = 0x9F;
    else if (lead == 0xF0)
        low = 0x90;
    else if (lead == 0xF4)
        high = 0x8F;
    if (at[1] < low || at[1] > high)
        return 0;
    for (index = 2; index < size; index++)
        if ((at[index] & 0xC0) != 0x80)
            return 0;
    return size;
}

size_t heft_utf8_span(const void *data, size_t size)
{
    const uint8_t *bytes = data;
    size_t at = 0;

    while (at < size) {
        size_t step;

        /* Headers are ASCII nearly everywhere: 32 bytes at a time. */
        while (size - at >= 32) {
            uint64_t any =
                load8(bytes + at) | load8(bytes + at + 8) | load8(bytes + at + 16) | load8(bytes + at + 24);

            if (any & HIGH_BITS)
                break;
            at += 32;
        }
        if (at == size)
            break;
        step = character_bytes(bytes + at, size - at);
        if (step == 0)
            return at;
        at += step;
    }
    return at;
}

/* ---- strings ---- */

/*
 * To the first quote, backslash or control character, eight bytes at a time. A byte b is below n exactly when
 * b - n borrows and b's own high bit is clear; the lowest such flag of a word is always right, and a borrow
 * can only raise false flags above it.
 */
static const uint8_t *plain_end(const uint8_t *at, const uint8_t *end)
{
    while (end - at >= 8) {
        uint64_t word = load8(at);
        uint64_t quote = word ^ EACH_BYTE('"');
        uint64_t slash = word ^ EACH_BYTE('\\');
        uint64_t found = (((word - EACH_BYTE(0x20)) & ~word) | ((quote - EACH_BYTE(1)) & ~quote) |
                          ((slash - EACH_BYTE(1)) & ~slash)) &
                         HIGH_BITS;

        if (found) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            return at + __builtin_ctzll(found) / 8;
#else
            break;
#endif
        }
        at += 8;
    }
    while (at < end && *at >= 0x20 && *at != '"' && *at != '\\')
        at++;
    return at;
}

/* Four hexadecimal digits, or -1. */
static int hex4(const uint8_t *at, const uint8_t *end)
{
    int value = 0, index;

    if (end - at < 4)
        return -1;
    for (index = 0; index < 4; index++) {
        uint8_t byte = at[index];
        int digit;

        if (byte >= '0' && byte <= '9')
            digit = byte - '0';
        else if (byte >= 'a' && byte <= 'f')
            digit = byte - 'a' + 10;
        else if (byte >= 'A' && byte <= 'F')
            digit = byte - 'A' + 10;
        else
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* `*at` stands behind the backslash of an escape that may still be malformed. Its character, or -1. */
static int escape(const uint8_t **at, const uint8_t *end, const char **reason)
{
    const uint8_t *from = *at;
    int first, second;

    if (from == end) {
        *reason = "the string does not end";
        return -1;
    }
    *at = from + 1;
    switch (*from) {
    case '"':
    case '\\':
    case '/':
        return *from;
    case 'b':
        return '\b';
    case 'f':
        return '\f';
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    case 'u':
        break;
    default:
        *reason = "no such escape";
        return -1;
    }
    first = hex4(from + 1, end);
    if (first < 0) {
        *reason = "\\u needs four hexadecimal digits";
        return -1;
    }
    *at = from + 5;
    if (first < 0xD800 || first > 0xDFFF)
        return first;
    *reason = "half of a surrogate pair stands alone";
    if (first >= 0xDC00 || end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u')
        return -1;
    second = hex4(*at + 2, end);
    if (second < 0xDC00 || second > 0xDFFF)
        return -1;
    *at += 6;
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
}

static uint32_t utf8_bytes(int character)
{
    return character < 0x80 ? 1 : character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
}

/* Names without an escape never come here. */
static __attribute__((noinline)) int escaped_string(struct heft_json_scan *scan, const uint8_t *at,
                                                    struct heft_json_text *text)
{
    uint32_t bytes = (uint32_t)(at - text->raw);

    while (at < scan->end && *at != '"') {
        const uint8_t *from = at;

        if (*at == '\\') {
            const char *reason = NULL;
            int character;

            at++;
            character = escape(&at, scan->end, &reason);
            if (character < 0) {
                scan->at = from;
                return heft_json_fail(scan, reason);
            }
            bytes += utf8_bytes(character);
        } else if (*at < 0x20) {
            scan->at = at;
            return heft_json_fail(scan, "a control character in a string must be escaped");
        } else {
            at = plain_end(at, scan->end);
            bytes += (uint32_t)(at - from);
        }
    }
    if (at == scan->end) {
        scan->at = at;
        return heft_json_fail(scan, "the string does not end");
    }
    text->raw_bytes = (uint32_t)(at - text->raw);
    text->bytes = bytes;
    scan->at = at + 1;
    return 0;
}

int heft_json_string(struct heft_json_scan *scan, struct heft_json_text *text_out)
{
    const uint8_t *at = plain_end(scan->at + 1, scan->end);

    text_out->raw = scan->at + 1;
    if (at == scan->end || *at != '"')
        return escaped_string(scan, at, text_out);
    text_out->raw_bytes = text_out->bytes = (uint32_t)(at - text_out->raw);
    scan->at = at + 1;
    return 0;
}

static char *put_character(char *out, int character)
{
    if (character < 0x80) {
        *out++ = (char)character;
    } else if (character < 0x800) {
        *out++ = (char)(0xC0 | character >> 6);
        *out++ = (char)(0x80 | (character & 0x3F));
    } else if (character < 0x10000) {
        *out++ = (char)(0xE0 | character >> 12);
        *out++ = (char)(0x80 | (character >> 6 & 0x3F));
        *out++ = (char)(0x80 | (character & 0x3F));
    } else {
        *out++ = (char)(0xF0 | character >> 18);
        *out++ = (char)(0x80 | (character >> 12 & 0x3F));
        *out++ = (char)(0x80 | (character >> 6 & 0x3F));
        *out++ = (char)(0x80 | (character & 0x3F));
    }
    return out;
}

void heft_json_decode(const struct heft_json_text *text, char *bytes_out)
{
    const uint8_t *at = text->raw;
    const uint8_t *end = at + text->raw_bytes;
    const char *reason;

    if (text->bytes == text->raw_bytes) { /* every escape is longer than what it stands for */
        if (text->bytes)
            memcpy(bytes_out, at, text->bytes);
        return;
    }
    while (at < end) {
        if (*at == '\\') {
            at++;
            bytes_out = put_character(bytes_out, escape(&at, end, &reason));
        } else {
            *bytes_out++ = (char)*at++;
        }
    }
}

int heft_json_equals_escaped(const struct heft_json_text *text, const char *bytes, size_t size)
{
    char decoded[HEFT_JSON_WORD_BYTES];

    if (size > sizeof(decoded))
        return 0;
    heft_json_decode(text, decoded);
    return memcmp(decoded, bytes, size) == 0;
}

/* ---- numbers ---- */

static int is_digit(const struct heft_json_scan *scan)
{
    return scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9';
}

static int is_one_of(const struct heft_json_scan *scan, char left, char right)
{
    return scan->at < scan->end && (*scan->at == (uint8_t)left || *scan->at == (uint8_t)right);
}

/*
 * Whether serde_json would hold significand x 10^exponent for infinite. It multiplies in double arithmetic by
 * a power of ten from a table, so the border lies where that product rounds to infinity, not exactly at the
 * largest double. Below 10^289 no 64-bit significand gets there.
 */
static int is_infinite(uint64_t significand, int64_t exponent)
{
    static const double powers[] = {1e289, 1e290, 1e291, 1e292, 1e293, 1e294, 1e295, 1e296, 1e297, 1e298,
                                    1e299, 1e300, 1e301, 1e302, 1e303, 1e304, 1e305, 1e306, 1e307, 1e308};

    if (significand == 0 || exponent < 289)
        return 0;
    if (exponent > 308)
        return 1;
    return isinf((double)significand * powers[exponent - 289]);
}

/* The part from 'e' on. */
static int exponent_part(struct heft_json_scan *scan, uint64_t significand, int64_t exponent)
{
    int64_t value = 0;
    int negative = 0;

    scan->at++;
    if (is_one_of(scan, '+', '-'))
        negative = *scan->at++ == '-';
    if (!is_digit(scan))
        return heft_json_fail(scan, "a digit must follow in the exponent");
    while (is_digit(scan)) {
        if (value < INT32_MAX)
            value = value * 10 + (*scan->at - '0');
        scan->at++;
    }
    if (is_infinite(significand, negative ? exponent - value : exponent + value))
        return heft_json_fail(scan, "number out of range");
    return 1;
}

/* Adds the digit if it still fits into 64 bits. */
static int add_digit(uint64_t *significand, uint8_t byte)
{
    uint64_t digit = (uint64_t)(byte - '0');

    if (*significand > (UINT64_MAX - digit) / 10)
        return 0;
    *significand = *significand * 10 + digit;
    return 1;
}

/* The part from '.' on. Digits past the 64 bits don't count, as in serde_json. */
static int fraction_part(struct heft_json_scan *scan, uint64_t significand, int64_t exponent)
{
    int full = 0;

    scan->at++;
    if (!is_digit(scan))
        return heft_json_fail(scan, "a digit must follow the decimal point");
    for (; is_digit(scan); scan->at++) {
        if (!full && add_digit(&significand, *scan->at))
            exponent--;
        else
            full = 1;
    }
    if (is_one_of(scan, 'e', 'E'))
        return exponent_part(scan, significand, exponent);
    if (is_infinite(significand, exponent))
        return heft_json_fail(scan, "number out of range");
    return 1;
}

/* Any number, sign and fraction included. */
static int long_number(struct heft_json_scan *scan, uint64_t *value_out)
{
    uint64_t value = 0;
    int64_t exponent = 0;
    int negative = *scan->at == '-';

    if (negative)
        scan->at++;
    if (!is_digit(scan))
        return heft_json_fail(scan, "a digit must follow");
    if (*scan->at == '0') {
        scan->at++;
        if (is_digit(scan))
            return heft_json_fail(scan, "a number may not begin with 0");
    }
    for (; is_digit(scan); scan->at++)
        if (exponent > 0 || !add_digit(&value, *scan->at))
            exponent++;
    if (is_one_of(scan, '.', '.'))
        return fraction_part(scan, value, exponent);
    if (is_one_of(scan, 'e', 'E'))
        return exponent_part(scan, value, exponent);
    if (is_infinite(value, exponent))
        return heft_json_fail(scan, "number out of range");
    *value_out = value;
    return negative || exponent > 0;
}

int heft_json_integer(struct heft_json_scan *scan, uint64_t *value_out)
{
    const uint8_t *at = scan->at;
    const uint8_t *end = scan->end - at > 19 ? at + 19 : scan->end; /* 19 digits fit into 64 bits */
    uint64_t value = 0;

    for (; at < end && *at >= '0' && *at <= '9'; at++)
        value = value * 10 + (uint64_t)(*at - '0');
    /* Most numbers are over here: no leading zero, and nothing follows that makes it another kind. */
    if (at < end && at > scan->at && *at != '.' && *at != 'e' && *at != 'E' &&
        (*scan->at != '0' || at == scan->at + 1)) {
        scan->at = at;
        *value_out = value;
        return 0;
    }
    return long_number(scan, value_out);
}

/* ---- values ---- */

int heft_json_word(struct heft_json_scan *scan, const char *word)
{
    size_t size = strlen(word);

    if ((size_t)(scan->end - scan->at) < size || memcmp(scan->at, word, size) != 0)
        return heft_json_fail(scan, "no such word in JSON");
    scan->at += size;
    return 0;
}

int heft_json_next(struct heft_json_scan *scan, char close)
{
    int byte = heft_json_peek(scan);

    if (byte == (uint8_t)close) {
        scan->at++;
        return 0;
    }
    if (byte != ',')
        return heft_json_fail(scan, close == '}' ? "expected a comma or }" : "expected a comma or ]");
    scan->at++;
    if (heft_json_peek(scan) == (uint8_t)close)
        return heft_json_fail(scan, "a comma before the end");
    return 1;
}

int heft_json_key(struct heft_json_scan *scan, struct heft_json_text *key_out)
{
    if (heft_json_peek(scan) != '"')
        return heft_json_fail(scan, "expected a name in double quotes");
    if (heft_json_string(scan, key_out))
        return -1;
    if (heft_json_peek(scan) != ':')
        return heft_json_fail(scan, "expected a colon");
    scan->at++;
    return 0;
}

/* A value that is no container. */
static int skip_scalar(struct heft_json_scan *scan, int byte)
{
    struct heft_json_text text;
    uint64_t value;

    switch (byte) {
    case '"':
        return heft_json_string(scan, &text);
    case 'n':
        return heft_json_word(scan, "null");
    case 't':
        return heft_json_word(scan, "true");
    case 'f':
        return heft_json_word(scan, "false");
    case -1:
        return heft_json_fail(scan, "the text ends where a value is expected");
    default:
        if (byte != '-' && (byte < '0' || byte > '9'))
            return heft_json_fail(scan, "expected a value");
        return heft_json_integer(scan, &value) < 0 ? -1 : 0;
    }
}

int heft_json_skip(struct heft_json_scan *scan, unsigned depth)
{
    uint8_t closers[HEFT_JSON_DEPTH_LIMIT + 1];
    struct heft_json_text key;
    unsigned base = depth;

    for (;;) {
        int byte = heft_json_peek(scan);
        int more;

        if (byte == '{' || byte == '[') {
            if (depth >= HEFT_JSON_DEPTH_LIMIT)
                return heft_json_fail(scan, "nested too deeply");
            closers[depth++] = byte == '{' ? '}' : ']';
            scan->at++;
            more = heft_json_peek(scan) != closers[depth - 1];
            if (!more)
                scan->at++;
        } else {
            if (skip_scalar(scan, byte))
                return -1;
            if (depth == base)
                return 0;
            more = heft_json_next(scan, (char)closers[depth - 1]);
        }
        while (!more) {
            if (--depth == base)
                return 0;
            more = heft_json_next(scan, (char)closers[depth - 1]);
        }
        if (more < 0 || (closers[depth - 1] == '}' && heft_json_key(scan, &key)))
            return -1;
    }
}
