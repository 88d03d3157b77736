/* SPDX-License-Identifier: Apache-2.0 */
/* Names and shapes for error sentences: bounded, and without anything that a terminal or a log would obey. */
#ifndef HEFT_FORMAT_MANIFEST_TEXT_H
#define HEFT_FORMAT_MANIFEST_TEXT_H

#include <stddef.h>
#include <stdint.h>

#define HEFT_QUOTE_BYTES 168

struct heft_quote {
    char text[HEFT_QUOTE_BYTES];
};

/* The name in double quotes; control characters, quotes, backslashes and broken UTF-8 as \xNN; long names are
 * cut with "...". Returns quote_out->text. */
const char *heft_quote_name(struct heft_quote *quote_out, const char *name, size_t name_bytes);
const char *heft_quote_text(struct heft_quote *quote_out, const char *text);
/* "[2, 3]"; long shapes are cut and tell their rank. */
const char *heft_quote_shape(struct heft_quote *quote_out, const uint64_t *shape, uint32_t rank);

#endif
