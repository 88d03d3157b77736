/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3-64 (seed 0, default secret) of many blocks in GPU memory. What XXH3 allows and forbids:
 *
 * - a block is a row of groups of 1,024 bytes, a group 16 stripes of 64 bytes, a stripe 8 lanes of 8 bytes;
 * - within a group every stripe only adds to the eight accumulators, so the sums of a group are made by as
 * many threads as one likes, in any order, and before the group's turn has come;
 * - after each group the accumulators are scrambled, which is one chain from the block's first group to its
 *   last: about 35 clocks a group, 8 threads wide. So one block can't go faster than 1,024 bytes in that
 * time.
 *
 * A warp makes a group's sums with two 16-byte loads a thread (thread t takes 16 bytes of stripes t/4 and
 * 8 + t/4), folds the 32 threads' 64 sums to 8 with three exchanges, and adds and scrambles. Each thread then
 * carries one accumulator, each accumulator four times over.
 *
 * Three ways to feed it: registers (each thread loads the next batch of groups while it works on this one),
 * the bulk copy engine into a ring in shared memory, and the same with several warps a block, which only make
 * sums while one more warp runs the chain. A start that is not on 16 bytes reads whole 16-byte granules and
 * shifts; no granule is read that has no byte of the block.
 */
#ifndef BENCH_DIGEST_KERNEL_CUH
#define BENCH_DIGEST_KERNEL_CUH

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

/* ---- fed by registers: a warp a block ---- */

template <bool ALIGNED, int BATCH> struct held {
    uint4 low[BATCH * 2];
    uint4 high[ALIGNED ? 1 : BATCH * 2];
};

/* The batch's 16 bytes of this thread; what no stripe needs stays zero and unread. */
template <bool ALIGNED, int BATCH>
static __device__ __forceinline__ void load(struct held<ALIGNED, BATCH> &held, const uint4 *granules,
                                            uint64_t group, uint64_t stripes, uint32_t lane)
{
#pragma unroll
    for (int half = 0; half < BATCH * 2; half++) {
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

template <bool ALIGNED, int BATCH>
static __device__ __forceinline__ uint64_t digest_long(const struct place &block, const struct keys &keys,
                                                       uint32_t lane)
{
    const uint4 *granules = granule_of(block.data);
    uint32_t shift = (uint32_t)((uintptr_t)block.data % 16);
    uint64_t stripes = (block.size_bytes - 1) / STRIPE_BYTES, groups = (block.size_bytes - 1) / GROUP_BYTES;
    uint64_t state = keys.first;
    struct held<ALIGNED, BATCH> now, next;
    uint4 last = last_16(block, lane);

    load<ALIGNED, BATCH>(now, granules, 0, stripes, lane);
    for (uint64_t group = 0; group <= groups; group += BATCH) {
        uint64_t sum[BATCH];

        load<ALIGNED, BATCH>(next, granules, group + BATCH, stripes, lane);
#pragma unroll
        for (int index = 0; index < BATCH; index++) {
            uint64_t stripe = (group + (uint64_t)index) * 16 + lane / 4;
            struct sums sums = {0, 0};
            int at = index * 2;

            if (stripe < stripes)
                add_16(sums, ALIGNED ? now.low[at] : shifted(now.low[at], now.high[ALIGNED ? 0 : at], shift),
                       keys.low);
            at++;
            if (stripe + 8 < stripes)
                add_16(sums, ALIGNED ? now.low[at] : shifted(now.low[at], now.high[ALIGNED ? 0 : at], shift),
                       keys.high);
            if (group + (uint64_t)index == groups && lane < 4)
                add_16(sums, last, keys.last);
            sum[index] = fold(sums, lane);
        }
#pragma unroll
        for (int index = 0; index < BATCH; index++) {
            if (group + (uint64_t)index <= groups)
                state += sum[index];
            if (group + (uint64_t)index < groups)
                state = scramble(state, keys.scramble);
        }
        now = next;
    }
    return finish(state, keys, block.size_bytes);
}

template <int BATCH>
__global__ void __launch_bounds__(64) digest_registers(struct work work, uint64_t *digests)
{
    uint32_t lane = threadIdx.x % 32;
    uint64_t step = (uint64_t)gridDim.x * (blockDim.x / 32);
    struct keys keys = keys_of(lane);

    for (uint64_t index = (uint64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; index < work.count;
         index += step) {
        struct place block = work_at(work, index);
        uint64_t digest = 0;

        if (block.size_bytes > SHORT_BYTES)
            digest = (uintptr_t)block.data % 16 ? digest_long<false, BATCH / 2>(block, keys, lane)
                                                : digest_long<true, BATCH>(block, keys, lane);
        else if (lane == 0)
            digest = digest_short(block.data, (uint32_t)block.size_bytes);
        if (lane == 0)
            digests[index] = digest;
    }
}

/* ---- fed by the bulk copy engine through a ring in shared memory ---- */

static __device__ __forceinline__ uint32_t shared_address(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

static __device__ __forceinline__ void bulk_start(void *to, const void *from, uint32_t bytes,
                                                  uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

static __device__ __forceinline__ void bulk_wait(uint64_t *barrier, uint32_t parity)
{
    uint32_t done;

    do
        asm volatile("{ .reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    while (!done);
}

#define BULK_BATCH 4u
#define BULK_BYTES (BULK_BATCH * GROUP_BYTES)
#define BULK_STAGE_BYTES (BULK_BYTES + 16u) /* a shifted start needs one granule more */

/* One warp's ring: the order in which it copies batches is the order in which it will use them. */
template <int STAGES> struct ring {
    alignas(16) uint8_t bytes[STAGES][BULK_STAGE_BYTES];
    uint64_t full[STAGES];
};

struct cursor {
    uint64_t index, batch, batches;
    struct place block;
};

static __device__ __forceinline__ uint64_t batches_of(const struct place &block)
{
    return block.size_bytes > SHORT_BYTES ? (block.size_bytes + BULK_BYTES - 1) / BULK_BYTES : 0;
}

/* To this warp's next batch, in this block or a later one; stops at index >= count. */
static __device__ __forceinline__ void cursor_settle(struct cursor &cursor, const struct work &work,
                                                     uint32_t warp)
{
    while (cursor.batch >= cursor.batches) {
        cursor.index += gridDim.x;
        if (cursor.index >= work.count)
            return;
        cursor.block = work_at(work, cursor.index);
        cursor.batches = batches_of(cursor.block);
        cursor.batch = warp;
    }
}

static __device__ __forceinline__ void cursor_copy(struct cursor &cursor, const struct work &work,
                                                   uint32_t warp, uint32_t warps, uint8_t *stage,
                                                   uint64_t *barrier)
{
    if (cursor.index >= work.count)
        return;
    uint32_t shift = (uint32_t)((uintptr_t)cursor.block.data % 16);
    uint64_t at = cursor.batch * BULK_BYTES, left = cursor.block.size_bytes - at;
    uint32_t bytes = ((left < BULK_BYTES ? (uint32_t)left : BULK_BYTES) + shift + 15) / 16 * 16;

    bulk_start(stage, (const uint8_t *)granule_of(cursor.block.data) + at, bytes, barrier);
    cursor.batch += warps;
    cursor_settle(cursor, work, warp);
}

/* The sums of a batch's four groups out of shared memory. */
static __device__ __forceinline__ void batch_sums(uint64_t sum[BULK_BATCH], const uint8_t *stage,
                                                  const struct place &block, uint64_t batch, uint4 last,
                                                  const struct keys &keys, uint32_t lane)
{
    const uint4 *granules = (const uint4 *)stage + lane;
    uint32_t shift = (uint32_t)((uintptr_t)block.data % 16);
    uint64_t stripes = (block.size_bytes - 1) / STRIPE_BYTES, groups = (block.size_bytes - 1) / GROUP_BYTES;

#pragma unroll
    for (uint32_t index = 0; index < BULK_BATCH; index++) {
        uint64_t group = batch * BULK_BATCH + index, stripe = group * 16 + lane / 4;
        struct sums sums = {0, 0};

        for (uint32_t half = 0; half < 2; half++) {
            const uint4 *at = granules + (index * 2 + half) * 32;

            if (stripe + half * 8 < stripes)
                add_16(sums, shift ? shifted(at[0], at[1], shift) : at[0], half ? keys.high : keys.low);
        }
        if (group == groups && lane < 4)
            add_16(sums, last, keys.last);
        sum[index] = fold(sums, lane);
    }
}

static __device__ __forceinline__ uint64_t chain(uint64_t state, const uint64_t *sum, uint32_t step,
                                                 uint64_t group, uint64_t groups, uint64_t key)
{
#pragma unroll
    for (uint32_t index = 0; index < BULK_BATCH; index++) {
        if (group + index <= groups)
            state += sum[index * step];
        if (group + index < groups)
            state = scramble(state, key);
    }
    return state;
}

/* WARPS warps a block; with more than one, one further warp runs the chain, an iteration behind. */
template <int WARPS, int STAGES>
__global__ void __launch_bounds__((WARPS > 1 ? WARPS + 1 : 1) * 32)
    digest_bulk(struct work work, uint64_t *digests)
{
    extern __shared__ __align__(16) uint8_t shared[];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    struct ring<STAGES> *rings = (struct ring<STAGES> *)shared, *mine = &rings[warp < WARPS ? warp : 0];
    uint64_t(*parts)[WARPS][BULK_BATCH][8] = (uint64_t(*)[WARPS][BULK_BATCH][8])(rings + WARPS);
    struct keys keys = keys_of(lane);
    struct cursor ahead = {(uint64_t)blockIdx.x, warp, 0, {NULL, 0}};
    uint32_t stage = 0, parity = 0, turn = 0;

    if (lane == 0 && warp < WARPS) {
        for (int index = 0; index < STAGES; index++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&mine->full[index]))
                         : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        ahead.index -= gridDim.x; /* settling takes the first step; wraps around and back */
        cursor_settle(ahead, work, warp);
        for (int index = 0; index < STAGES; index++)
            cursor_copy(ahead, work, warp, WARPS, mine->bytes[index], &mine->full[index]);
    }
    __syncthreads();

    for (uint64_t index = blockIdx.x; index < work.count; index += gridDim.x) {
        struct place block = work_at(work, index);
        uint64_t batches = batches_of(block), groups = (block.size_bytes - 1) / GROUP_BYTES;
        uint64_t state = keys.first, first;
        uint4 last = make_uint4(0, 0, 0, 0);

        if (batches == 0) {
            if (threadIdx.x == 0)
                digests[index] = digest_short(block.data, (uint32_t)block.size_bytes);
            continue;
        }
        if (lane < 4)
            last = last_16(block, lane);
        for (first = 0; first < batches; first += WARPS, turn ^= 1) {
            uint64_t sum[BULK_BATCH], batch = first + warp;

            if (warp < WARPS && batch < batches) {
                bulk_wait(&mine->full[stage], parity);
                batch_sums(sum, mine->bytes[stage], block, batch, last, keys, lane);
                __syncwarp();
                if (lane == 0)
                    cursor_copy(ahead, work, warp, WARPS, mine->bytes[stage], &mine->full[stage]);
                if (++stage == STAGES)
                    stage = 0, parity ^= 1;
                if (WARPS == 1)
                    state = chain(state, sum, 1, batch * BULK_BATCH, groups, keys.scramble);
                else if (lane < 8)
                    for (uint32_t at = 0; at < BULK_BATCH; at++)
                        parts[turn][warp][at][lane] = sum[at];
            }
            if (WARPS > 1) {
                __syncthreads();
                for (uint32_t from = 0; warp == WARPS && from < WARPS && first + from < batches; from++)
                    state = chain(state, &parts[turn][from][0][lane % 8], 8, (first + from) * BULK_BATCH,
                                  groups, keys.scramble);
            }
        }
        if (warp == (WARPS > 1 ? WARPS : 0)) {
            uint64_t digest = finish(state, keys, block.size_bytes);

            if (lane == 0)
                digests[index] = digest;
        }
    }
}

template <int WARPS, int STAGES> static size_t bulk_shared_bytes()
{
    return WARPS * sizeof(struct ring<STAGES>) +
           (WARPS > 1 ? 2 * WARPS * BULK_BATCH * 8 * sizeof(uint64_t) : 0);
}

#endif
