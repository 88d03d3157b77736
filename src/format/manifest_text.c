/* SPDX-License-Identifier: Apache-2.0 */
#include "format/manifest_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the UTF-8 character at `at`, or 0 when it is broken, overlong, a surrogate, a control or one of
 * the marks that turn text around (U+200E..F, U+2028..E, U+2066..9). */
static size_t printable_bytes(const unsigned char *at, size_t left)
{
    size_t size, index;
    uint32_t point;

    if (at[0] < 0x80)
        return at[0] >= 0x20 && at[0] != 0x7F && at[0] != '"' && at[0] != '\\';
    size = at[0] >= 0xF0 && at[0] < 0xF8 ? 4 : at[0] >= 0xE0 ? 3 : at[0] >= 0xC0 ? 2 : 0;
    if (size == 0 || size > left || at[0] >= 0xF8)
        return 0;
    point = at[0] & (0xFFu >> (size + 1));
    for (index = 1; index < size; index++) {
        if ((at[index] & 0xC0) != 0x80)
            return 0;
        point = point << 6 | (at[index] & 0x3Fu);
    }
    if (point < 0xA0 || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000) ||
        (point >= 0x200E && point <= 0x200F) || (point >= 0x2028 && point <= 0x202E) ||
        (point >= 0x2066 && point <= 0x2069) || (size == 3 && point < 0x800) ||
        (size == 4 && point < 0x10000))
        return 0;
    return size;
}

const char *heft_quote_name(struct heft_quote *quote_out, const char *name, size_t name_bytes)
{
    static const char hex[] = "0123456789abcdef";
    const size_t room = HEFT_QUOTE_BYTES - 6; /* for the closing quote, "..." and the NUL */
    char *text = quote_out->text;
    size_t used = 0, at = 0;

    text[used++] = '"';
    while (at < name_bytes) {
        const unsigned char *byte = (const unsigned char *)name + at;
        size_t size = printable_bytes(byte, name_bytes - at);

        if (used + (size ? size : 4) > room)
            break;
        if (size) {
            memcpy(text + used, byte, size);
            used += size;
            at += size;
        } else {
            text[used++] = '\\';
            text[used++] = 'x';
            text[used++] = hex[*byte >> 4];
            text[used++] = hex[*byte & 15];
            at++;
        }
    }
    text[used++] = '"';
    if (at < name_bytes) {
        memcpy(text + used, "...", 3);
        used += 3;
    }
    text[used] = 0;
    return text;
}

const char *heft_quote_text(struct heft_quote *quote_out, const char *text)
{
    return heft_quote_name(quote_out, text, strlen(text));
}

const char *heft_quote_shape(struct heft_quote *quote_out, const uint64_t *shape, uint32_t rank)
{
    char *text = quote_out->text;
    const size_t room = HEFT_QUOTE_BYTES - 40; /* for one number, or the closing words */
    size_t used = 0;
    uint32_t index;

    text[used++] = '[';
    for (index = 0; index < rank && used < room; index++)
        used += (size_t)snprintf(text + used, HEFT_QUOTE_BYTES - used, index ? ", %" PRIu64 : "%" PRIu64,
                                 shape[index]);
    if (index < rank)
        (void)snprintf(text + used, HEFT_QUOTE_BYTES - used, ", ... rank %" PRIu32 "]", rank);
    else
        memcpy(text + used, "]", 2);
    return text;
}
