/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRCs are reflected and taken eight bytes at a time by tables ("slicing by 8", Kounavis and Berry); where
 * the processor can, CRC-32C by its instruction and the others by folding with carry-less products (Gopal et
 * al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction"). The digests are
 * OpenSSL's.
 */
#include "base/checksum.h"

#include <openssl/evp.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SLICES 8

/* Reflected polynomials of the CRCs, by kind; 0: none. */
static const uint64_t polynomials[HEFT_CHECKSUM_KINDS] = {
    [HEFT_CHECKSUM_CRC32] = 0xedb88320u,
    [HEFT_CHECKSUM_CRC32C] = 0x82f63b78u,
    [HEFT_CHECKSUM_CRC64NVME] = 0x9a6c9329ac4bc9b5u,
};
static uint64_t tables[HEFT_CHECKSUM_KINDS][SLICES][256];
/* x^(8 * 2^k) modulo the polynomial, the coefficient of x^0 in the highest bit: 2^k bytes further. */
static uint64_t powers[HEFT_CHECKSUM_KINDS][64];
/* Folding: x^(bits + 63) and x^(bits - 1) modulo the polynomial, for 512 and 128 bits further; the
 * coefficient of x^0 in the highest of 64 bits. */
static uint64_t folds[HEFT_CHECKSUM_KINDS][2][2];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static unsigned width_of(enum heft_checksum_kind kind)
{
    return (unsigned)heft_checksum_size(kind) * 8;
}

/* The product of two polynomials modulo the kind's, all reflected. */
static uint64_t multiply(enum heft_checksum_kind kind, uint64_t a, uint64_t b)
{
    uint64_t bit, product = 0;

    for (bit = (uint64_t)1 << (width_of(kind) - 1); bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? b >> 1 ^ polynomials[kind] : b >> 1;
    }
    return product;
}

static void make_powers(enum heft_checksum_kind kind)
{
    int power;

    powers[kind][0] = (uint64_t)1 << (width_of(kind) - 1 - 8);
    for (power = 1; power < 64; power++)
        powers[kind][power] = multiply(kind, powers[kind][power - 1], powers[kind][power - 1]);
}

/* x^exponent, from x^0 on by the bytes and bits of the exponent. */
static uint64_t power_of_x(enum heft_checksum_kind kind, unsigned exponent)
{
    uint64_t power = (uint64_t)1 << (width_of(kind) - 1);
    unsigned bit;

    for (bit = 0; bit < 32; bit++)
        if (exponent / 8 >> bit & 1)
            power = multiply(kind, power, powers[kind][bit]);
    for (bit = 0; bit < exponent % 8; bit++)
        power = power & 1 ? power >> 1 ^ polynomials[kind] : power >> 1;
    return power;
}

static void make_folds(enum heft_checksum_kind kind)
{
    static const unsigned bits[2] = {512, 128};
    unsigned step, shift = 64 - width_of(kind);

    for (step = 0; step < 2; step++) {
        folds[kind][step][0] = power_of_x(kind, bits[step] + 63) << shift;
        folds[kind][step][1] = power_of_x(kind, bits[step] - 1) << shift;
    }
}

static void make_tables(void)
{
    int kind, slice, byte, bit;

    for (kind = 0; kind < HEFT_CHECKSUM_KINDS; kind++) {
        for (byte = 0; polynomials[kind] && byte < 256; byte++) {
            uint64_t crc = (uint64_t)byte;

            for (bit = 0; bit < 8; bit++)
                crc = crc & 1 ? crc >> 1 ^ polynomials[kind] : crc >> 1;
            tables[kind][0][byte] = crc;
        }
        for (slice = 1; polynomials[kind] && slice < SLICES; slice++)
            for (byte = 0; byte < 256; byte++) {
                uint64_t crc = tables[kind][slice - 1][byte];

                tables[kind][slice][byte] = crc >> 8 ^ tables[kind][0][crc & 255];
            }
        if (polynomials[kind]) {
            make_powers((enum heft_checksum_kind)kind);
            make_folds((enum heft_checksum_kind)kind);
        }
    }
}

static uint64_t crc_by_tables(uint64_t (*table)[256], uint64_t crc, const uint8_t *at, size_t size)
{
    for (; size >= 8; size -= 8, at += 8) {
        uint64_t word;

        memcpy(&word, at, 8); /* little-endian machines only, as all of heft */
        crc ^= word;
        crc = table[7][crc & 255] ^ table[6][crc >> 8 & 255] ^ table[5][crc >> 16 & 255] ^
              table[4][crc >> 24 & 255] ^ table[3][crc >> 32 & 255] ^ table[2][crc >> 40 & 255] ^
              table[1][crc >> 48 & 255] ^ table[0][crc >> 56];
    }
    for (; size > 0; size--)
        crc = crc >> 8 ^ table[0][(crc ^ *at++) & 255];
    return crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint64_t crc32c_by_instruction(uint64_t crc, const uint8_t *at,
                                                                        size_t size)
{
    for (; size >= 8; size -= 8, at += 8) {
        unsigned long long word;

        memcpy(&word, at, 8);
        crc = __builtin_ia32_crc32di(crc, word);
    }
    for (; size > 0; size--)
        crc = __builtin_ia32_crc32qi((uint32_t)crc, *at++);
    return crc;
}

/* 16 bytes, so many bits further on, added to those that lie there. */
__attribute__((target("pclmul,sse2"))) static inline __m128i fold(__m128i bytes, __m128i by, __m128i there)
{
    __m128i first = _mm_clmulepi64_si128(bytes, by, 0x00), second = _mm_clmulepi64_si128(bytes, by, 0x11);

    return _mm_xor_si128(_mm_xor_si128(first, second), there);
}

/* At least 64 bytes: four lanes of 16 are folded over the data, then over each other; 16 bytes that have the
 * same CRC are left. */
__attribute__((target("pclmul,sse2"))) static uint64_t
crc_by_folds(enum heft_checksum_kind kind, uint64_t crc, const uint8_t *at, size_t size)
{
    const __m128i *from = (const void *)at;
    const __m128i far = _mm_loadu_si128((const void *)folds[kind][0]);
    const __m128i near = _mm_loadu_si128((const void *)folds[kind][1]);
    __m128i lanes[4], left;
    uint8_t last[16];
    int lane;

    for (lane = 0; lane < 4; lane++)
        lanes[lane] = _mm_loadu_si128(from++);
    lanes[0] = _mm_xor_si128(lanes[0], _mm_set_epi64x(0, (long long)crc));
    for (size -= 64; size >= 64; size -= 64)
        for (lane = 0; lane < 4; lane++)
            lanes[lane] = fold(lanes[lane], far, _mm_loadu_si128(from++));
    left = lanes[0];
    for (lane = 1; lane < 4; lane++)
        left = fold(left, near, lanes[lane]);
    for (; size >= 16; size -= 16)
        left = fold(left, near, _mm_loadu_si128(from++));
    _mm_storeu_si128((void *)last, left);
    crc = crc_by_tables(tables[kind], 0, last, sizeof(last));
    return crc_by_tables(tables[kind], crc, (const void *)from, size);
}
#endif

static uint64_t crc_add(enum heft_checksum_kind kind, uint64_t crc, const uint8_t *at, size_t size)
{
#ifdef __x86_64__
    if (kind == HEFT_CHECKSUM_CRC32C && __builtin_cpu_supports("sse4.2"))
        return crc32c_by_instruction(crc, at, size);
    if (size >= 64 && __builtin_cpu_supports("pclmul"))
        return crc_by_folds(kind, crc, at, size);
#endif
    return crc_by_tables(tables[kind], crc, at, size);
}

static uint64_t crc_mask(enum heft_checksum_kind kind)
{
    return kind == HEFT_CHECKSUM_CRC64NVME ? UINT64_MAX : UINT32_MAX;
}

struct heft_checksum_state {
    enum heft_checksum_kind kind;
    uint64_t crc;
    EVP_MD_CTX *digest; /* NULL: a CRC */
};

const char *heft_checksum_name(enum heft_checksum_kind kind)
{
    static const char *const names[HEFT_CHECKSUM_KINDS] = {
        [HEFT_CHECKSUM_NONE] = "none",     [HEFT_CHECKSUM_CRC32] = "crc32",
        [HEFT_CHECKSUM_MD5] = "md5",       [HEFT_CHECKSUM_CRC32C] = "crc32c",
        [HEFT_CHECKSUM_SHA1] = "sha1",     [HEFT_CHECKSUM_CRC64NVME] = "crc64nvme",
        [HEFT_CHECKSUM_SHA256] = "sha256",
    };

    return names[kind];
}

size_t heft_checksum_size(enum heft_checksum_kind kind)
{
    static const size_t sizes[HEFT_CHECKSUM_KINDS] = {
        [HEFT_CHECKSUM_CRC32] = 4, [HEFT_CHECKSUM_MD5] = 16,      [HEFT_CHECKSUM_CRC32C] = 4,
        [HEFT_CHECKSUM_SHA1] = 20, [HEFT_CHECKSUM_CRC64NVME] = 8, [HEFT_CHECKSUM_SHA256] = 32,
    };

    return sizes[kind];
}

struct heft_checksum_state *heft_checksum_begin(enum heft_checksum_kind kind)
{
    struct heft_checksum_state *state = calloc(1, sizeof(*state));
    const EVP_MD *type = kind == HEFT_CHECKSUM_MD5    ? EVP_md5()
                         : kind == HEFT_CHECKSUM_SHA1 ? EVP_sha1()
                                                      : EVP_sha256();

    if (!state)
        return NULL;
    state->kind = kind;
    if (polynomials[kind]) {
        (void)pthread_once(&tables_once, make_tables);
        state->crc = crc_mask(kind);
        return state;
    }
    state->digest = EVP_MD_CTX_new();
    if (!state->digest || EVP_DigestInit_ex(state->digest, type, NULL) != 1) {
        EVP_MD_CTX_free(state->digest);
        free(state);
        return NULL;
    }
    return state;
}

void heft_checksum_add(struct heft_checksum_state *state, const void *data, size_t size)
{
    if (state->digest) {
        (void)EVP_DigestUpdate(state->digest, data, size);
        return;
    }
    state->crc = crc_add(state->kind, state->crc, data, size);
}

void heft_checksum_end(struct heft_checksum_state *state, struct heft_checksum *checksum_out)
{
    if (checksum_out && state->digest) {
        *checksum_out = (struct heft_checksum){.kind = state->kind};
        (void)EVP_DigestFinal_ex(state->digest, checksum_out->bytes, NULL);
    } else if (checksum_out) {
        heft_crc_checksum(state->kind, state->crc ^ crc_mask(state->kind), checksum_out);
    }
    EVP_MD_CTX_free(state->digest);
    free(state);
}

/* ---- parts ---- */

int heft_checksum_composes(enum heft_checksum_kind kind)
{
    return polynomials[kind] != 0;
}

uint64_t heft_crc(enum heft_checksum_kind kind, const void *data, size_t size)
{
    (void)pthread_once(&tables_once, make_tables);
    return crc_add(kind, crc_mask(kind), data, size) ^ crc_mask(kind);
}

uint64_t heft_crc_join(enum heft_checksum_kind kind, uint64_t left, uint64_t right, uint64_t right_bytes)
{
    int power;

    (void)pthread_once(&tables_once, make_tables);
    for (power = 0; right_bytes >> power; power++)
        if (right_bytes >> power & 1)
            left = multiply(kind, left, powers[kind][power]);
    return left ^ right;
}

void heft_crc_checksum(enum heft_checksum_kind kind, uint64_t crc, struct heft_checksum *checksum_out)
{
    size_t size = heft_checksum_size(kind), at;

    *checksum_out = (struct heft_checksum){.kind = kind};
    for (at = 0; at < size; at++)
        checksum_out->bytes[at] = (uint8_t)(crc >> 8 * (size - 1 - at));
}
