/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRCs are reflected and taken eight bytes at a time by tables ("slicing by 8", Kounavis and Berry); CRC-32C
 * by the processor's instruction where it has one. The digests are OpenSSL's.
 */
#include "base/checksum.h"

#include <openssl/evp.h>

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
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

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
#endif

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
        state->crc = kind == HEFT_CHECKSUM_CRC64NVME ? UINT64_MAX : UINT32_MAX;
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
#ifdef __x86_64__
    if (state->kind == HEFT_CHECKSUM_CRC32C && __builtin_cpu_supports("sse4.2")) {
        state->crc = crc32c_by_instruction(state->crc, data, size);
        return;
    }
#endif
    state->crc = crc_by_tables(tables[state->kind], state->crc, data, size);
}

void heft_checksum_end(struct heft_checksum_state *state, struct heft_checksum *checksum_out)
{
    size_t size = heft_checksum_size(state->kind), at;

    *checksum_out = (struct heft_checksum){.kind = state->kind};
    if (state->digest) {
        (void)EVP_DigestFinal_ex(state->digest, checksum_out->bytes, NULL);
    } else {
        uint64_t crc = ~state->crc;

        for (at = 0; at < size; at++)
            checksum_out->bytes[at] = (uint8_t)(crc >> 8 * (size - 1 - at));
    }
    EVP_MD_CTX_free(state->digest);
    free(state);
}
