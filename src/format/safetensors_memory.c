/* SPDX-License-Identifier: Apache-2.0 */
/* The small tables and tools of the safetensors reader: dtypes and memory. */
#include "format/safetensors_private.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- dtypes ---- */

#define DTYPE(name, bits)              \
    {                                  \
#name, sizeof(#name) - 1, bits \
    }
static const struct heft_st_dtype dtypes[] = {
    DTYPE(BF16, 16),       DTYPE(F32, 32),        DTYPE(F16, 16), DTYPE(F8_E4M3, 8), DTYPE(F8_E5M2, 8),
    DTYPE(F8_E8M0, 8),     DTYPE(U8, 8),          DTYPE(I8, 8),   DTYPE(F4, 4),      DTYPE(I32, 32),
    DTYPE(I64, 64),        DTYPE(F64, 64),        DTYPE(BOOL, 8), DTYPE(U16, 16),    DTYPE(I16, 16),
    DTYPE(U32, 32),        DTYPE(U64, 64),        DTYPE(C64, 64), DTYPE(F6_E2M3, 6), DTYPE(F6_E3M2, 6),
    DTYPE(F8_E4M3FNUZ, 8), DTYPE(F8_E5M2FNUZ, 8),
};

const struct heft_st_dtype *heft_st_dtype_find(const char *name, size_t name_bytes)
{
    size_t index;

    for (index = 0; index < sizeof(dtypes) / sizeof(dtypes[0]); index++)
        if (dtypes[index].name_bytes == name_bytes && memcmp(dtypes[index].name, name, name_bytes) == 0)
            return &dtypes[index];
    return NULL;
}

uint32_t heft_dtype_bits(const char *dtype, size_t dtype_bytes)
{
    const struct heft_st_dtype *found = heft_st_dtype_find(dtype, dtype_bytes);

    return found ? found->bits : 0;
}

/* ---- memory ---- */

#define HUGE_PAGE_BYTES ((uintptr_t)2 << 20)

void heft_st_expect_filled(void *block, size_t bytes)
{
    uintptr_t from = ((uintptr_t)block + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    uintptr_t to = ((uintptr_t)block + bytes) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;

    if (bytes >= 2 * HUGE_PAGE_BYTES)
        (void)madvise((void *)from, to - from, MADV_HUGEPAGE); /* only advice: nothing is lost without it */
}

struct heft_st_chunk {
    struct heft_st_chunk *older;
    size_t low;       /* free from here ... */
    size_t high;      /* ... to here; a multiple of 8 */
    uint64_t bytes[]; /* aligned for shapes */
};

struct heft_st_arena *heft_st_arena_create(uint64_t header_bytes)
{
    struct heft_st_arena *arena = calloc(1, sizeof(*arena));
    uint64_t chunk_bytes = header_bytes / 16;

    if (!arena)
        return NULL;
    chunk_bytes = chunk_bytes < 512 ? 512 : chunk_bytes > (1 << 20) ? 1 << 20 : chunk_bytes;
    arena->chunk_bytes = chunk_bytes / 8 * 8;
    return arena;
}

void heft_st_arena_destroy(struct heft_st_arena *arena)
{
    if (!arena)
        return;
    while (arena->newest) {
        struct heft_st_chunk *older = arena->newest->older;

        free(arena->newest);
        arena->newest = older;
    }
    free(arena);
}

/* A chunk with `size` free bytes. What is large beside a chunk gets one of its own, behind the newest, so
 * that the room left in the newest is not lost. */
static struct heft_st_chunk *chunk_for(struct heft_st_arena *arena, size_t size)
{
    struct heft_st_chunk *chunk = arena->newest;
    size_t capacity = arena->chunk_bytes;
    int own = size > arena->chunk_bytes / 8;

    if (chunk && chunk->high - chunk->low >= size)
        return chunk;
    if (own)
        capacity = (size + 7) / 8 * 8;
    chunk = malloc(sizeof(*chunk) + capacity);
    if (!chunk)
        return NULL;
    chunk->low = 0;
    chunk->high = capacity;
    if (own && arena->newest) {
        chunk->older = arena->newest->older;
        arena->newest->older = chunk;
    } else {
        chunk->older = arena->newest;
        arena->newest = chunk;
    }
    return chunk;
}

char *heft_st_arena_text(struct heft_st_arena *arena, size_t size)
{
    struct heft_st_chunk *chunk = chunk_for(arena, size);
    char *text;

    if (!chunk)
        return NULL;
    text = (char *)chunk->bytes + chunk->low;
    chunk->low += size;
    return text;
}

uint64_t *heft_st_arena_numbers(struct heft_st_arena *arena, size_t count)
{
    struct heft_st_chunk *chunk;

    if (count > SIZE_MAX / 16)
        return NULL;
    chunk = chunk_for(arena, count * sizeof(uint64_t));
    if (!chunk)
        return NULL;
    chunk->high -= count * sizeof(uint64_t);
    return chunk->bytes + chunk->high / sizeof(uint64_t);
}
