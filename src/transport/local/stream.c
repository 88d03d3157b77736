/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying past the cache. A plain store first reads the line it overwrites; these don't, which is a third of
 * the memory traffic of a large copy. Bytes that are hashed right after then come from memory instead of the
 * cache. Measured on large copies, per core: 10.6 instead of 7.1 GB/s alone, and the same (5.4) for a copy of
 * 1 MiB whose destination is hashed next. So: only for operations that are larger than what a core's cache
 * keeps anyway.
 */
#include "transport/local/local.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define LINE_BYTES 64u
#define BLOCK_BYTES (4 * LINE_BYTES)
#define AHEAD_BYTES 1024u /* prefetched */

__attribute__((target("avx512f"))) static void blocks_avx512(char *to, const char *from, uint64_t blocks)
{
    for (; blocks > 0; blocks--, to += BLOCK_BYTES, from += BLOCK_BYTES) {
        _mm_prefetch(from + AHEAD_BYTES, _MM_HINT_T0);
        _mm_prefetch(from + AHEAD_BYTES + 2 * LINE_BYTES, _MM_HINT_T0);
        for (uint32_t i = 0; i < BLOCK_BYTES; i += 64)
            _mm512_stream_si512((void *)(to + i), _mm512_loadu_si512(from + i));
    }
}

__attribute__((target("avx2"))) static void blocks_avx2(char *to, const char *from, uint64_t blocks)
{
    for (; blocks > 0; blocks--, to += BLOCK_BYTES, from += BLOCK_BYTES) {
        _mm_prefetch(from + AHEAD_BYTES, _MM_HINT_T0);
        _mm_prefetch(from + AHEAD_BYTES + 2 * LINE_BYTES, _MM_HINT_T0);
        for (uint32_t i = 0; i < BLOCK_BYTES; i += 32)
            _mm256_stream_si256((__m256i *)(void *)(to + i),
                                _mm256_loadu_si256((const __m256i *)(const void *)(from + i)));
    }
}

void local_stream_copy(char *to, const char *from, uint64_t length)
{
    uint64_t head = (LINE_BYTES - (uintptr_t)to % LINE_BYTES) % LINE_BYTES, blocks;
    int wide = __builtin_cpu_supports("avx512f");

    if (length < LINE_BYTES + BLOCK_BYTES || (!wide && !__builtin_cpu_supports("avx2")) ||
        (to < from + length && from < to + length)) {
        memmove(to, from, length);
        return;
    }
    memcpy(to, from, head);
    blocks = (length - head) / BLOCK_BYTES;
    if (wide)
        blocks_avx512(to + head, from + head, blocks);
    else
        blocks_avx2(to + head, from + head, blocks);
    _mm_sfence(); /* before anyone is told that the bytes are there */
    head += blocks * BLOCK_BYTES;
    memcpy(to + head, from + head, length - head);
}

#else

void local_stream_copy(char *to, const char *from, uint64_t length)
{
    memmove(to, from, length);
}

#endif
