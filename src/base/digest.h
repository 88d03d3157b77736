/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests. Block digests (XXH3-64, seed 0) find accidents: wrong, missing, swapped or stale bytes. Against an
 * adversary SHA-256 counts, not these.
 *
 * A tensor is cut into blocks of HEFT_BLOCK_BYTES from its first byte; the last block is what is left. A
 * tensor's digest is XXH3-64 over its blocks' digests (little-endian, in order) followed by its length
 * (little-endian u64). An empty tensor has no blocks.
 */
#ifndef HEFT_BASE_DIGEST_H
#define HEFT_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define HEFT_BLOCK_BYTES ((uint64_t)256 << 10)

/* XXH3-64, by the widest vectors this processor has. */
uint64_t heft_hash64(const void *data, size_t size, uint64_t seed);

static inline uint64_t heft_block_count(uint64_t size_bytes)
{
    return size_bytes / HEFT_BLOCK_BYTES + (size_bytes % HEFT_BLOCK_BYTES != 0);
}

/* Digests of all blocks of a tensor that lies at `data`; digests_out has heft_block_count(size) places. */
void heft_block_digests(const void *data, uint64_t size_bytes, uint64_t *digests_out);
uint64_t heft_tensor_digest(const uint64_t *block_digests, uint64_t size_bytes);

#define HEFT_SHA256_BYTES 32
void heft_sha256(const void *data, size_t size, uint8_t digest_out[HEFT_SHA256_BYTES]);
/* HMAC-SHA-256 over the parts in order. */
struct heft_part {
    const void *data;
    size_t size;
};
void heft_hmac_sha256(const void *key, size_t key_bytes, const struct heft_part *parts, size_t part_count,
                      uint8_t digest_out[HEFT_SHA256_BYTES]);
/* 1 when equal; time does not depend on where they differ. */
int heft_equal_secret(const void *left, const void *right, size_t size);

#endif
