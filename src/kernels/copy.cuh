/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many copies in one launch: a warp a piece, eight 16-byte loads in flight a thread. Works at any start and
 * length: bytes up to the destination's next 16, then whole 16-byte stores whose source is shifted together
 * from two neighbouring granules when the two starts differ, then the last bytes. Nothing is written that is
 * not of the piece, and no granule is read that holds none of its bytes.
 */
#ifndef HEFT_KERNELS_COPY_CUH
#define HEFT_KERNELS_COPY_CUH

#include <stdint.h>

/* struct heft_cuda_item of src/space/cuda.h */
struct item {
    uint64_t to, from, to_stride_bytes, from_stride_bytes;
    uint32_t length_bytes, last_bytes;
    uint64_t first;
};

#define COPY_AT_ONCE 8

/* 16 bytes that start `shift` (1..15) bytes into two neighbouring granules; the same in the whole warp. */
static __device__ __forceinline__ uint4 two_granules(uint4 low, uint4 high, uint32_t shift)
{
    uint32_t bits = shift % 4 * 8;
    uint32_t a = low.x, b = low.y, c = low.z, d = low.w, e = high.x, f = high.y, g = high.z, h = high.w;

    if (shift & 8) {
        a = c, b = d, c = e, d = f, e = g, f = h;
    }
    if (shift & 4) {
        a = b, b = c, c = d, d = e, e = f;
    }
    return make_uint4(__funnelshift_r(a, b, bits), __funnelshift_r(b, c, bits), __funnelshift_r(c, d, bits),
                      __funnelshift_r(d, e, bits));
}

static __device__ __forceinline__ void copy_aligned(uint4 *to, const uint4 *from, uint32_t count,
                                                    uint32_t lane)
{
    uint32_t at = lane;

    for (; at + (COPY_AT_ONCE - 1) * 32 < count; at += COPY_AT_ONCE * 32) {
        uint4 held[COPY_AT_ONCE];
#pragma unroll
        for (int index = 0; index < COPY_AT_ONCE; index++)
            held[index] = __ldcs(from + at + index * 32);
#pragma unroll
        for (int index = 0; index < COPY_AT_ONCE; index++)
            __stcs(to + at + index * 32, held[index]);
    }
    if (at - lane < count) { /* the rest, likewise all loads before the first store */
        uint4 held[COPY_AT_ONCE];
#pragma unroll
        for (int index = 0; index < COPY_AT_ONCE; index++)
            if (at + index * 32 < count)
                held[index] = __ldcs(from + at + index * 32);
#pragma unroll
        for (int index = 0; index < COPY_AT_ONCE; index++)
            if (at + index * 32 < count)
                __stcs(to + at + index * 32, held[index]);
    }
}

static __device__ __forceinline__ void copy_shifted(uint4 *to, const uint4 *from, uint32_t shift,
                                                    uint32_t count, uint32_t lane)
{
    uint32_t at = lane;

    for (; at + (COPY_AT_ONCE / 2 - 1) * 32 < count; at += COPY_AT_ONCE / 2 * 32) {
        uint4 low[COPY_AT_ONCE / 2], high[COPY_AT_ONCE / 2];
#pragma unroll
        for (int index = 0; index < COPY_AT_ONCE / 2; index++) {
            low[index] = from[at + index * 32];
            high[index] = from[at + index * 32 + 1];
        }
#pragma unroll
        for (int index = 0; index < COPY_AT_ONCE / 2; index++)
            __stcs(to + at + index * 32, two_granules(low[index], high[index], shift));
    }
    for (; at < count; at += 32)
        __stcs(to + at, two_granules(from[at], from[at + 1], shift));
}

static __device__ __forceinline__ void copy_piece(uint8_t *to, const uint8_t *from, uint32_t length,
                                                  uint32_t lane)
{
    uint32_t head = (uint32_t)(0 - (uintptr_t)to) & 15, vectors, shift, rest;

    if (head > length)
        head = length;
    if (lane < head)
        to[lane] = from[lane];
    to += head;
    from += head;
    length -= head;
    vectors = length / 16;
    shift = (uint32_t)((uintptr_t)from & 15);
    if (shift == 0)
        copy_aligned((uint4 *)to, (const uint4 *)from, vectors, lane);
    else if (vectors)
        copy_shifted((uint4 *)to, (const uint4 *)(from - shift), shift, vectors, lane);
    rest = length & 15;
    if (lane < rest)
        to[vectors * 16 + lane] = from[vectors * 16 + lane];
}

/* The last item whose `first` is not above the piece. */
static __device__ __forceinline__ uint64_t item_of(const struct item *items, uint64_t count, uint64_t piece)
{
    uint64_t low = 0, high = count;

    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;

        if (items[middle].first <= piece)
            low = middle;
        else
            high = middle;
    }
    return low;
}

struct piece {
    uint64_t to, from;
    uint32_t length;
};

static __device__ __forceinline__ struct piece piece_at(const struct item *items, uint64_t item_count,
                                                        uint64_t piece_count, uint64_t at)
{
    uint64_t number = item_count == piece_count ? at : item_of(items, item_count, at);
    struct item item = items[number];
    uint64_t index = at - item.first;
    uint64_t next = item_count == piece_count  ? at + 1
                    : number + 1 < item_count ? items[number + 1].first
                                              : piece_count;

    return piece{item.to + index * item.to_stride_bytes, item.from + index * item.from_stride_bytes,
                 at + 1 == next ? item.last_bytes : item.length_bytes};
}

static __device__ __forceinline__ struct piece piece_of_lane(const struct piece &piece, int lane)
{
    struct piece there;

    there.to = __shfl_sync(0xffffffffu, piece.to, lane);
    there.from = __shfl_sync(0xffffffffu, piece.from, lane);
    there.length = __shfl_sync(0xffffffffu, piece.length, lane);
    return there;
}

/*
 * A warp looks up its next eight pieces at once, a lane each: one wait instead of eight. When all of them are
 * whole vectors of 512 bytes at most, their bytes are in flight at once too.
 */
extern "C" __global__ void __launch_bounds__(512)
    heft_copy(const struct item *items, uint64_t item_count, uint64_t piece_count)
{
    uint32_t lane = threadIdx.x % 32;
    uint64_t warps = (uint64_t)gridDim.x * (blockDim.x / 32);
    uint64_t first = (uint64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;

    for (; first < piece_count; first += COPY_AT_ONCE * warps) {
        uint64_t at = first + lane * warps;
        struct piece mine = {0, 0, 0};

        if (lane < COPY_AT_ONCE && at < piece_count)
            mine = piece_at(items, item_count, piece_count, at);
        if (__all_sync(0xffffffffu, ((mine.to | mine.from | mine.length) & 15) == 0 && mine.length <= 512)) {
            uint4 held[COPY_AT_ONCE];
#pragma unroll
            for (int index = 0; index < COPY_AT_ONCE; index++) {
                struct piece piece = piece_of_lane(mine, index);

                if (lane * 16 < piece.length)
                    held[index] = __ldcs((const uint4 *)piece.from + lane);
            }
#pragma unroll
            for (int index = 0; index < COPY_AT_ONCE; index++) {
                struct piece piece = piece_of_lane(mine, index);

                if (lane * 16 < piece.length)
                    __stcs((uint4 *)piece.to + lane, held[index]);
            }
        } else {
            for (int index = 0; index < COPY_AT_ONCE; index++) {
                struct piece piece = piece_of_lane(mine, index);

                if (piece.length)
                    copy_piece((uint8_t *)piece.to, (const uint8_t *)piece.from, piece.length, lane);
            }
        }
    }
}

#endif
