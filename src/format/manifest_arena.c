/* SPDX-License-Identifier: Apache-2.0 */
#include "format/manifest_arena.h"
#include "base/pages.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_BLOCK_BYTES ((size_t)4096)
#define LAST_BLOCK_BYTES ((size_t)8 << 20) /* large ones come in huge pages: few faults */
#define ZEROS_BYTES ((size_t)1 << 20)
#define ALIGN_BYTES ((size_t)16)

struct block {
    struct block *next;
    size_t unused; /* keeps the payload at a multiple of 16 */
};

void heft_format_arena_free(struct heft_format_arena *arena)
{
    struct block *block = arena->blocks;

    while (block) {
        struct block *next = block->next;

        free(block);
        block = next;
    }
    *arena = (struct heft_format_arena){0};
}

static uint8_t *new_block(struct heft_format_arena *arena, size_t size, int zeroed)
{
    struct block *block;

    if (size > SIZE_MAX - sizeof(*block))
        return NULL;
    block = zeroed ? calloc(1, sizeof(*block) + size) : malloc(sizeof(*block) + size);
    if (!block)
        return NULL;
    if (!zeroed)
        heft_pages_expect_filled(block, sizeof(*block) + size);
    block->next = arena->blocks;
    arena->blocks = block;
    return (uint8_t *)(block + 1);
}

static uint8_t *take(struct heft_format_arena *arena, size_t size, size_t align_bytes)
{
    size_t skip = arena->at ? (size_t)(-(uintptr_t)arena->at & (align_bytes - 1)) : 0;
    size_t block_bytes = arena->next_bytes ? arena->next_bytes : FIRST_BLOCK_BYTES;
    uint8_t *at;

    if (arena->at && arena->left >= skip && size <= arena->left - skip) {
        at = arena->at + skip;
        arena->at += skip + size;
        arena->left -= skip + size;
        return at;
    }
    if (size > block_bytes / 4) /* a block of its own; the current one stays in use */
        return new_block(arena, size, 0);
    at = new_block(arena, block_bytes, 0);
    if (!at)
        return NULL;
    arena->at = at + size;
    arena->left = block_bytes - size;
    arena->next_bytes = block_bytes < LAST_BLOCK_BYTES ? block_bytes * 2 : block_bytes;
    return at;
}

void *heft_format_arena_array(struct heft_format_arena *arena, uint64_t count, size_t each_bytes)
{
    size_t size;

    if (__builtin_mul_overflow(count, each_bytes, &size))
        return NULL;
    return take(arena, size, ALIGN_BYTES);
}

void *heft_format_arena_zeros(struct heft_format_arena *arena, uint64_t count, size_t each_bytes)
{
    size_t size;
    void *at;

    if (__builtin_mul_overflow(count, each_bytes, &size))
        return NULL;
    if (size > ZEROS_BYTES)
        return new_block(arena, size, 1); /* the system's zero pages cost nothing until they are used */
    at = take(arena, size, ALIGN_BYTES);
    if (at)
        memset(at, 0, size);
    return at;
}

char *heft_format_arena_text(struct heft_format_arena *arena, const char *text, size_t size)
{
    uint8_t *at;

    if (size == SIZE_MAX)
        return NULL;
    at = take(arena, size + 1, 1);
    if (!at)
        return NULL;
    if (size)
        memcpy(at, text, size);
    at[size] = 0;
    return (char *)at;
}
