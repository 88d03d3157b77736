/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3-64 (seed 0, default secret) of many blocks in GPU memory. What XXH3 allows and forbids:
 *
 * - a block is a row of groups of 1,024 bytes, a group 16 stripes of 64 bytes, a stripe 8 lanes of 8 bytes;
 * - within a group every stripe only adds to the eight accumulators, so the sums of a group are made by any
 *   number of threads, in any order, and before the group's turn has come;
 * - after each group the accumulators are scrambled: one chain from the block's first group to its last, 8
 *   threads wide. So a block has a top speed, however many threads there are.
 *
 * A warp makes a group's sums with two 16-byte loads a thread (thread t takes 16 bytes of stripes t/4 and
 * 8 + t/4), folds the 32 threads' 64 sums to 8 with three exchanges, and adds and scrambles. Each thread then
 * carries one accumulator, each accumulator four times over.
 *
 * Each thread loads its warp's next batch of groups into registers while it works on this one. With one warp
 * a block the warp runs the chain itself; with more, the warps only make sums, and one more runs the chain
 * behind them. A start that is not on 16 bytes reads whole 16-byte granules and shifts; no granule is read
 * that has no byte of the block.
 */
#ifndef HEFT_KERNELS_DIGEST_CUH
#define HEFT_KERNELS_DIGEST_CUH

#include <stdint.h>

#define STRIPE_BYTES 64u
#define GROUP_BYTES 1024u
#define SHORT_BYTES 240u
#define ALL_LANES 0xffffffffu

#define PRIME32_1 0x9e3779b1u
#define PRIME32_2 0x85ebca77u
#define PRIME32_3 0xc2b2ae3du
#define PRIME64_1 0x9e3779b185ebca87ull
#define PRIME64_2 0xc2b2ae3d27d4eb4full
#define PRIME64_3 0x165667b19e3779f9ull
#define PRIME64_4 0x85ebca77c2b2ae63ull
#define PRIME64_5 0x27d4eb2f165667c5ull
#define PRIME_MX1 0x165667919e3779f9ull
#define PRIME_MX2 0x9fb21c651e98df25ull

/* The default secret as little-endian words; an odd place is read from two of them. */
__device__ const uint64_t secret_words[24] = {
    0xbe4ba423396cfeb8ull, 0x1cad21f72c81017cull, 0xdb979083e96dd4deull, 0x1f67b3b7a4a44072ull,
    0x78e5c0cc4ee679cbull, 0x2172ffcc7dd05a82ull, 0x8e2443f7744608b8ull, 0x4c263a81e69035e0ull,
    0xcb00c391bb52283cull, 0xa32e531b8b65d088ull, 0x4ef90da297486471ull, 0xd8acdea946ef1938ull,
    0x3f349ce33f76faa8ull, 0x1d4f0bc7c7bbdcf9ull, 0x3159b4cd4be0518aull, 0x647378d9c97e9fc8ull,
    0xc3ebd33483acc5eaull, 0xeb6313faffa081c5ull, 0x49daf0b751dd0d17ull, 0x9e68d429265516d3ull,
    0xfca1477d58be162bull, 0xce31d07ad1b8f88full, 0x280416958f3acb45ull, 0x7e404bbbcafbd7afull,
};

__device__ const uint64_t first_state[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                            PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};

/* What to digest: blocks of one run of bytes, or a list of places. */
struct place {
    const uint8_t *data;
    uint64_t size_bytes;
};

struct work {
    const struct place *places; /* NULL: the run */
    const uint8_t *run;
    uint64_t run_bytes, block_bytes, count;
};

static __device__ __forceinline__ struct place work_at(const struct work &work, uint64_t index)
{
    uint64_t at, left;

    if (work.places)
        return work.places[index];
    at = index * work.block_bytes;
    left = work.run_bytes - at;
    return place{work.run + at, left < work.block_bytes ? left : work.block_bytes};
}

static __device__ __forceinline__ uint64_t secret_at(uint32_t at)
{
    uint32_t word = at / 8, shift = at % 8 * 8;

    return shift ? secret_words[word] >> shift | secret_words[word + 1] << (64 - shift) : secret_words[word];
}

static __device__ __forceinline__ uint64_t avalanche(uint64_t x)
{
    x ^= x >> 37;
    x *= PRIME_MX1;
    return x ^ x >> 32;
}

static __device__ __forceinline__ uint64_t multiply_fold(uint64_t left, uint64_t right)
{
    return left * right ^ __umul64hi(left, right);
}

/* ---- 0 to 240 bytes: one thread, byte by byte ---- */

static __device__ uint64_t bytes_at(const uint8_t *data, uint32_t count)
{
    uint64_t value = 0;

    for (uint32_t index = 0; index < count; index++)
        value |= (uint64_t)data[index] << 8 * index;
    return value;
}

static __device__ uint64_t mix_16(const uint8_t *data, uint32_t at)
{
    return multiply_fold(bytes_at(data, 8) ^ secret_at(at), bytes_at(data + 8, 8) ^ secret_at(at + 8));
}

static __device__ uint64_t reverse_bytes(uint64_t x)
{
    return (uint64_t)__byte_perm((uint32_t)x, 0, 0x0123) << 32 | __byte_perm((uint32_t)(x >> 32), 0, 0x0123);
}

static __device__ uint64_t rotate_left(uint64_t x, uint32_t bits)
{
    return x << bits | x >> (64 - bits);
}

static __device__ uint64_t digest_tiny(const uint8_t *data, uint32_t size)
{
    uint64_t x;

    if (size > 8) {
        uint64_t low = bytes_at(data, 8) ^ secret_words[3] ^ secret_words[4];
        uint64_t high = bytes_at(data + size - 8, 8) ^ secret_words[5] ^ secret_words[6];

        return avalanche(size + reverse_bytes(low) + high + multiply_fold(low, high));
    }
    if (size >= 4) {
        x = (bytes_at(data, 4) << 32 | bytes_at(data + size - 4, 4)) ^ secret_words[1] ^ secret_words[2];
        x ^= rotate_left(x, 49) ^ rotate_left(x, 24);
        x *= PRIME_MX2;
        x ^= (x >> 35) + size;
        x *= PRIME_MX2;
        return x ^ x >> 28;
    }
    if (size > 0)
        x = (uint32_t)(secret_words[0] ^ secret_words[0] >> 32) ^
            ((uint64_t)data[size - 1] | size << 8 | (uint64_t)data[0] << 16 | (uint64_t)data[size / 2] << 24);
    else
        x = secret_words[7] ^ secret_words[8];
    x ^= x >> 33;
    x *= PRIME64_2;
    x ^= x >> 29;
    x *= PRIME64_3;
    return x ^ x >> 32;
}

static __device__ __noinline__ uint64_t digest_short(const uint8_t *data, uint32_t size)
{
    uint64_t sum = size * PRIME64_1;
    uint32_t index;

    if (size <= 16)
        return digest_tiny(data, size);
    if (size <= 128) {
        for (index = 0; index <= (size - 1) / 32; index++)
            sum += mix_16(data + index * 16, index * 32) +
                   mix_16(data + size - 16 - index * 16, index * 32 + 16);
        return avalanche(sum);
    }
    for (index = 0; index < 8; index++)
        sum += mix_16(data + index * 16, index * 16);
    sum = avalanche(sum);
    for (; index < size / 16; index++)
        sum += mix_16(data + index * 16, (index - 8) * 16 + 3);
    return avalanche(sum + mix_16(data + size - 16, 119));
}

/* ---- more than 240 bytes: what a thread of a warp does ---- */

struct keys {
    uint64_t low[2], high[2]; /* of this thread's 16 bytes in stripes 0..7 and 8..15 */
    uint64_t last[2];         /* in the block's last stripe; for threads 0..3 */
    uint64_t scramble, merge, first;
};

static __device__ __forceinline__ struct keys keys_of(uint32_t lane)
{
    uint32_t pair = lane % 4, slot = lane / 4, mine = pair * 2 + slot % 2;
    struct keys keys;

    keys.low[0] = secret_words[slot + pair * 2];
    keys.low[1] = secret_words[slot + pair * 2 + 1];
    keys.high[0] = secret_words[slot + 8 + pair * 2];
    keys.high[1] = secret_words[slot + 8 + pair * 2 + 1];
    keys.last[0] = secret_at(121 + pair * 16);
    keys.last[1] = secret_at(121 + pair * 16 + 8);
    keys.scramble = secret_words[16 + mine];
    keys.merge = secret_at(11 + mine * 8);
    keys.first = first_state[mine];
    return keys;
}

struct sums {
    uint64_t even, odd;
};

static __device__ __forceinline__ void add_16(struct sums &sums, uint4 bytes, const uint64_t key[2])
{
    uint64_t left = (uint64_t)bytes.y << 32 | bytes.x, right = (uint64_t)bytes.w << 32 | bytes.z;
    uint64_t x = left ^ key[0], y = right ^ key[1];

    sums.even += right + (uint64_t)(uint32_t)x * (uint32_t)(x >> 32);
    sums.odd += left + (uint64_t)(uint32_t)y * (uint32_t)(y >> 32);
}

/* A warp's sums to one of the eight a thread: a thread keeps one of its two and gives the other away. */
static __device__ __forceinline__ uint64_t fold(struct sums sums, uint32_t lane)
{
    bool odd = lane & 4;
    uint64_t kept = odd ? sums.odd : sums.even;

    kept += __shfl_xor_sync(ALL_LANES, odd ? sums.even : sums.odd, 4);
    kept += __shfl_xor_sync(ALL_LANES, kept, 8);
    return kept + __shfl_xor_sync(ALL_LANES, kept, 16);
}

static __device__ __forceinline__ uint64_t scramble(uint64_t state, uint64_t key)
{
    return (state ^ state >> 47 ^ key) * PRIME32_1;
}

static __device__ __forceinline__ uint64_t finish(uint64_t state, const struct keys &keys, uint64_t size)
{
    uint64_t x = state ^ keys.merge, other = __shfl_xor_sync(ALL_LANES, x, 4);

    x = multiply_fold(x, other);
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    x += __shfl_xor_sync(ALL_LANES, x, 2);
    return avalanche(x + size * PRIME64_1);
}

/* 16 bytes that start `shift` bytes into two neighbouring granules; shift is the same in the whole warp. */
static __device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, uint32_t shift)
{
    uint32_t bits = shift % 4 * 8;
    uint32_t a = low.x, b = low.y, c = low.z, d = low.w, e = high.x, f = high.y, g = high.z;

    if (shift & 8) {
        a = c, b = d, c = e, d = f, e = g;
        f = high.w;
    }
    if (shift & 4) {
        a = b, b = c, c = d, d = e, e = f;
    }
    return make_uint4(__funnelshift_r(a, b, bits), __funnelshift_r(b, c, bits), __funnelshift_r(c, d, bits),
                      __funnelshift_r(d, e, bits));
}

static __device__ __forceinline__ const uint4 *granule_of(const uint8_t *data)
{
    return (const uint4 *)((uintptr_t)data & ~(uintptr_t)15);
}

/* The block's last 64 bytes, 16 for each of threads 0..3, wherever they start. */
static __device__ __forceinline__ uint4 last_16(const struct place &block, uint32_t lane)
{
    const uint8_t *at = block.data + block.size_bytes - STRIPE_BYTES + lane % 4 * 16;
    const uint4 *granule = granule_of(at);
    uint32_t shift = (uint32_t)((uintptr_t)at % 16);

    return shift ? shifted(granule[0], granule[1], shift) : granule[0];
}

/* ---- more than 240 bytes: a block ---- */

/* Groups that a warp loads ahead (32 registers); half as many at a shifted start, which takes two granules.
 */
#define HELD_GROUPS 4

template <bool ALIGNED> struct held {
    static const int groups = ALIGNED ? HELD_GROUPS : HELD_GROUPS / 2;
    uint4 low[groups * 2];
    uint4 high[ALIGNED ? 1 : groups * 2];
};

/* This thread's bytes of the groups from `group` on; what no stripe needs stays zero and unread. */
template <bool ALIGNED>
static __device__ __forceinline__ void load(struct held<ALIGNED> &held, const uint4 *granules, uint64_t group,
                                            uint64_t stripes, uint32_t lane)
{
#pragma unroll
    for (int half = 0; half < held.groups * 2; half++) {
        uint64_t stripe = group * 16 + (uint64_t)half * 8 + lane / 4;
        const uint4 *at = granules + stripe * 4 + lane % 4;

        held.low[half] = make_uint4(0, 0, 0, 0);
        if (!ALIGNED)
            held.high[half] = make_uint4(0, 0, 0, 0);
        if (stripe < stripes) {
            held.low[half] = ALIGNED ? __ldcs(at) : __ldg(at);
            if (!ALIGNED)
                held.high[half] = __ldg(at + 1);
        }
    }
}

template <bool ALIGNED>
static __device__ __forceinline__ uint4 bytes_of(const struct held<ALIGNED> &held, int half, uint32_t shift)
{
    return ALIGNED ? held.low[half] : shifted(held.low[half], held.high[ALIGNED ? 0 : half], shift);
}

/* WHOLE: every group of the batch is followed by another, so nothing is masked. */
template <bool ALIGNED, bool WHOLE>
static __device__ __forceinline__ void
make_sums(uint64_t *sum, const struct held<ALIGNED> &held, uint32_t shift, uint64_t group, uint64_t groups,
          uint64_t stripes, uint4 last, const struct keys &keys, uint32_t lane)
{
#pragma unroll
    for (int index = 0; index < held.groups; index++) {
        uint64_t stripe = (group + (uint64_t)index) * 16 + lane / 4;
        struct sums sums = {0, 0};

        if (WHOLE || stripe < stripes)
            add_16(sums, bytes_of<ALIGNED>(held, index * 2, shift), keys.low);
        if (WHOLE || stripe + 8 < stripes)
            add_16(sums, bytes_of<ALIGNED>(held, index * 2 + 1, shift), keys.high);
        if (!WHOLE && group + (uint64_t)index == groups && lane < 4)
            add_16(sums, last, keys.last);
        sum[index] = fold(sums, lane);
    }
}

/* COUNT groups' sums, `step` words apart, into the state. */
template <int COUNT>
static __device__ __forceinline__ uint64_t chain(uint64_t state, const uint64_t *sum, uint32_t step,
                                                 uint64_t group, uint64_t groups, uint64_t key)
{
    if (group + COUNT <= groups) {
#pragma unroll
        for (int index = 0; index < COUNT; index++)
            state = scramble(state + sum[index * (int)step], key);
        return state;
    }
#pragma unroll
    for (int index = 0; index < COUNT; index++) {
        if (group + (uint64_t)index <= groups)
            state += sum[index * (int)step];
        if (group + (uint64_t)index < groups)
            state = scramble(state, key);
    }
    return state;
}

/* The whole block by this thread block: WARPS warps make sums, each of its own batches; with more than one, a
 * further warp runs the chain. The digest is right in the warp that runs it. */
template <int WARPS, bool ALIGNED>
static __device__ __forceinline__ uint64_t digest_long(const struct place &block, const struct keys &keys,
                                                       uint32_t warp, uint32_t lane, uint32_t *turn,
                                                       uint64_t (*sums)[WARPS * HELD_GROUPS][8])
{
    const int batch = held<ALIGNED>::groups;
    const uint4 *granules = granule_of(block.data);
    uint32_t shift = (uint32_t)((uintptr_t)block.data % 16);
    uint64_t stripes = (block.size_bytes - 1) / STRIPE_BYTES, groups = (block.size_bytes - 1) / GROUP_BYTES;
    uint64_t state = keys.first;
    struct held<ALIGNED> now, next;
    uint4 last = last_16(block, lane);

    if (warp < WARPS)
        load<ALIGNED>(now, granules, (uint64_t)warp * batch, stripes, lane);
    for (uint64_t first = 0; first <= groups; first += WARPS * batch) {
        uint64_t sum[batch], group = first + (uint64_t)warp * batch;

        if (warp < WARPS) {
            load<ALIGNED>(next, granules, group + WARPS * batch, stripes, lane);
            if (group + batch <= groups)
                make_sums<ALIGNED, true>(sum, now, shift, group, groups, stripes, last, keys, lane);
            else
                make_sums<ALIGNED, false>(sum, now, shift, group, groups, stripes, last, keys, lane);
            now = next;
        }
        if (WARPS == 1) {
            state = chain<batch>(state, sum, 1, group, groups, keys.scramble);
            continue;
        }
        if (warp < WARPS && lane < 8)
#pragma unroll
            for (int index = 0; index < batch; index++)
                sums[*turn][warp * batch + index][lane] = sum[index];
        __syncthreads();
        if (warp == WARPS)
            for (int from = 0; from < WARPS; from++)
                state = chain<batch>(state, &sums[*turn][from * batch][lane % 8], 8,
                                     first + (uint64_t)(from * batch), groups, keys.scramble);
        *turn ^= 1;
    }
    return finish(state, keys, block.size_bytes);
}

#define THREADS_OF(warps) ((warps) > 1 ? ((warps) + 1) * 32 : 32)

/* By kernels launched with THREADS_OF(WARPS) threads a thread block, and any number of thread blocks. */
template <int WARPS> static __device__ __forceinline__ void digest_all(struct work work, uint64_t *digests)
{
    __shared__ uint64_t sums[WARPS > 1 ? 2 : 1][WARPS * HELD_GROUPS][8];
    uint32_t lane = threadIdx.x % 32, warp = WARPS > 1 ? threadIdx.x / 32 : 0, turn = 0;
    struct keys keys = keys_of(lane);

    for (uint64_t index = blockIdx.x; index < work.count; index += gridDim.x) {
        struct place block = work_at(work, index);
        uint64_t digest = 0;

        if (block.size_bytes > SHORT_BYTES)
            digest = (uintptr_t)block.data % 16
                         ? digest_long<WARPS, false>(block, keys, warp, lane, &turn, sums)
                         : digest_long<WARPS, true>(block, keys, warp, lane, &turn, sums);
        else if (lane == 0)
            digest = digest_short(block.data, (uint32_t)block.size_bytes);
        if (lane == 0 && warp == (WARPS > 1 ? WARPS : 0))
            digests[index] = digest;
    }
}

#endif
