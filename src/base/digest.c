/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3 is compiled three times from xxHash's header, for AVX-512, AVX2 and what the target guarantees (the
 * packaged library is built for SSE2 and reaches a third of the speed); the choice is made once, at the first
 * call.
 */
#include "base/digest.h"
#include "base/buf.h"
#include "base/error.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

uint64_t heft_xxh3_base(const void *data, size_t size, uint64_t seed);
#if defined(__x86_64__)
uint64_t heft_xxh3_avx2(const void *data, size_t size, uint64_t seed);
uint64_t heft_xxh3_avx512(const void *data, size_t size, uint64_t seed);
#endif

typedef uint64_t (*hash_fn)(const void *data, size_t size, uint64_t seed);

static hash_fn choose_hash(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return heft_xxh3_avx512;
    if (__builtin_cpu_supports("avx2"))
        return heft_xxh3_avx2;
#endif
    return heft_xxh3_base;
}

uint64_t heft_hash64(const void *data, size_t size, uint64_t seed)
{
    static hash_fn chosen;
    hash_fn hash = __atomic_load_n(&chosen, __ATOMIC_RELAXED);

    if (!hash) {
        hash = choose_hash();
        __atomic_store_n(&chosen, hash, __ATOMIC_RELAXED);
    }
    return hash(data, size, seed);
}

void heft_block_digests(const void *data, uint64_t size_bytes, uint64_t *digests_out)
{
    const uint8_t *at = data;
    uint64_t left = size_bytes;

    while (left > 0) {
        uint64_t size = left < HEFT_BLOCK_BYTES ? left : HEFT_BLOCK_BYTES;

        *digests_out++ = heft_hash64(at, (size_t)size, 0);
        at += size;
        left -= size;
    }
}

uint64_t heft_tensor_digest(const uint64_t *block_digests, uint64_t size_bytes)
{
    uint64_t count = heft_block_count(size_bytes);
    uint8_t fixed[8 * 33];
    uint8_t *bytes = fixed;
    uint64_t index, digest;

    if (count > 32) {
        bytes = malloc((size_t)count * 8 + 8);
        HEFT_ASSERT(bytes); /* 1/32768 of a tensor that is already in memory */
    }
    for (index = 0; index < count; index++)
        heft_put_u64(bytes + index * 8, block_digests[index]);
    heft_put_u64(bytes + count * 8, size_bytes);
    digest = heft_hash64(bytes, (size_t)count * 8 + 8, 0);
    if (bytes != fixed)
        free(bytes);
    return digest;
}

void heft_sha256(const void *data, size_t size, uint8_t digest_out[HEFT_SHA256_BYTES])
{
    unsigned int written = 0;
    int ok = EVP_Digest(data, size, digest_out, &written, EVP_sha256(), NULL);

    HEFT_ASSERT(ok == 1 && written == HEFT_SHA256_BYTES);
}

void heft_hmac_sha256(const void *key, size_t key_bytes, const struct heft_part *parts, size_t part_count,
                      uint8_t digest_out[HEFT_SHA256_BYTES])
{
    uint8_t message[1024];
    size_t used = 0, index;
    unsigned int written = 0;
    const uint8_t *done;

    for (index = 0; index < part_count; index++) {
        HEFT_ASSERT(parts[index].size <= sizeof(message) - used);
        memcpy(message + used, parts[index].data, parts[index].size);
        used += parts[index].size;
    }
    done = HMAC(EVP_sha256(), key, (int)key_bytes, message, used, digest_out, &written);
    HEFT_ASSERT(done && written == HEFT_SHA256_BYTES);
}

int heft_equal_secret(const void *left, const void *right, size_t size)
{
    return CRYPTO_memcmp(left, right, size) == 0;
}
