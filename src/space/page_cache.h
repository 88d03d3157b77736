/* SPDX-License-Identifier: Apache-2.0 */
/* What the page cache holds of a file. */
#ifndef HEFT_SPACE_PAGE_CACHE_H
#define HEFT_SPACE_PAGE_CACHE_H

#include <stdint.h>

/*
 * How many bytes of [offset, offset+length) are in memory now, without reading anything in: by cachestat,
 * else by mincore. Counted in whole pages, at most length. Returns 0, or UNSUPPORTED when the system does not
 * tell (both calls answer only to the file's owner, or who may write it). Any thread.
 */
int heft_page_cache_query(int fd, uint64_t offset_bytes, uint64_t length_bytes, uint64_t *cached_bytes_out);

/* The same by mincore alone; for tests. */
int heft_page_cache_query_mapped(int fd, uint64_t offset_bytes, uint64_t length_bytes,
                                 uint64_t *cached_bytes_out);

#endif
