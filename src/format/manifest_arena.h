/* SPDX-License-Identifier: Apache-2.0 */
/* A bump allocator: the strings and arrays of one manifest or index, freed together. One thread. */
#ifndef HEFT_FORMAT_MANIFEST_ARENA_H
#define HEFT_FORMAT_MANIFEST_ARENA_H

#include <stddef.h>
#include <stdint.h>

struct heft_format_arena {
    void *blocks; /* newest first */
    uint8_t *at;
    size_t left;
    size_t next_bytes; /* size of the next block: doubles up to 8 MiB, so that small tables stay small */
};

/* All-zero is an empty arena. */
void heft_format_arena_free(struct heft_format_arena *arena);
/* count * each_bytes bytes at a multiple of 16; NULL: out of memory (or a product past SIZE_MAX). */
void *heft_format_arena_array(struct heft_format_arena *arena, uint64_t count, size_t each_bytes);
/* The same, zeroed. */
void *heft_format_arena_zeros(struct heft_format_arena *arena, uint64_t count, size_t each_bytes);
/* A copy with a NUL behind it. */
char *heft_format_arena_text(struct heft_format_arena *arena, const char *text, size_t size);

#endif
