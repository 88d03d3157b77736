/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <stdint.h>

/* Bytes and code point of the character; 0: no UTF-8 (overlong, a surrogate, cut, too large). */
static size_t decode(const unsigned char *at, uint32_t *code_out)
{
    static const uint32_t lowest[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t size = at[0] < 0x80       ? 1
                  : at[0] >> 5 == 6  ? 2
                  : at[0] >> 4 == 14 ? 3
                  : at[0] >> 3 == 30 ? 4
                                     : 0,
           index;
    uint32_t code = size == 1 ? at[0] : size == 0 ? 0 : at[0] & (0xffu >> (size + 1));

    for (index = 1; index < size; index++) {
        if (at[index] >> 6 != 2)
            return 0;
        code = code << 6 | (at[index] & 0x3f);
    }
    if (size == 0 || code < lowest[size] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        return 0;
    *code_out = code;
    return size;
}

size_t heft_text_plain(const char *text)
{
    uint32_t code = 0;
    size_t size = decode((const unsigned char *)text, &code);

    if (code < 0x20 || (code >= 0x7f && code <= 0x9f) || code == 0x200e || code == 0x200f ||
        (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || code == 0xfeff)
        return 0;
    return size;
}

void heft_text_clean(char *text)
{
    while (*text) {
        size_t size = heft_text_plain(text);

        if (size == 0)
            *text++ = '.';
        else
            text += size;
    }
}
