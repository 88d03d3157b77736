/* SPDX-License-Identifier: Apache-2.0 */
/* Text that may come from anywhere (names in files, words of peers) before people see it. */
#ifndef HEFT_BASE_TEXT_H
#define HEFT_BASE_TEXT_H

#include <stddef.h>

#define HEFT_TEXT_PLAIN_MAX_BYTES 4

/*
 * Bytes of the UTF-8 character that `text` (ended by a NUL) begins with, 1 to 4, when it may be shown as it
 * is. 0 for what may not: a byte that is no UTF-8, control characters of both kinds (C0, and C1, which some
 * terminals obey too), line and paragraph separators, and marks that change the direction of what stands
 * around them.
 */
size_t heft_text_plain(const char *text);
/* Replaces each byte that may not be shown as it is by a dot. */
void heft_text_clean(char *text);

#endif
