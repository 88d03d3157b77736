/* SPDX-License-Identifier: Apache-2.0 */
/* Advice to the system about memory that is about to be filled. */
#ifndef HEFT_BASE_PAGES_H
#define HEFT_BASE_PAGES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define HEFT_HUGE_PAGE_BYTES ((uintptr_t)2 << 20)

/*
 * Call before the first touch of a large block that will be filled from one end to the other: in huge pages
 * this costs a third. Only advice: nothing is lost where the system does not take it.
 */
static inline void heft_pages_expect_filled(void *block, size_t bytes)
{
    uintptr_t from = ((uintptr_t)block + HEFT_HUGE_PAGE_BYTES - 1) & ~(HEFT_HUGE_PAGE_BYTES - 1);
    uintptr_t to = ((uintptr_t)block + bytes) & ~(HEFT_HUGE_PAGE_BYTES - 1);

    if (bytes >= 2 * HEFT_HUGE_PAGE_BYTES)
        (void)madvise((void *)from, to - from, MADV_HUGEPAGE);
}

#endif
