/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums that stores keep of whole objects, made while the bytes pass: CRC-32, CRC-32C, CRC-64/NVME, MD5,
 * SHA-1 and SHA-256. Bytes are given in order; CRCs of parts also compose, whatever the order they were made
 * in.
 */
#ifndef HEFT_BASE_CHECKSUM_H
#define HEFT_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

enum heft_checksum_kind {
    HEFT_CHECKSUM_NONE,
    HEFT_CHECKSUM_CRC32,
    HEFT_CHECKSUM_MD5,
    HEFT_CHECKSUM_CRC32C,
    HEFT_CHECKSUM_SHA1,
    HEFT_CHECKSUM_CRC64NVME,
    HEFT_CHECKSUM_SHA256,
    HEFT_CHECKSUM_KINDS
};

#define HEFT_CHECKSUM_MAX_BYTES 32u

/* What a whole object must be; a CRC's bytes are those of the number, the highest first. */
struct heft_checksum {
    enum heft_checksum_kind kind;
    uint8_t bytes[HEFT_CHECKSUM_MAX_BYTES];
};
/* "crc32c", ...; "none". */
const char *heft_checksum_name(enum heft_checksum_kind kind);
size_t heft_checksum_size(enum heft_checksum_kind kind);

struct heft_checksum_state;
/* NULL: out of memory, or the library refuses the algorithm (as MD5 where the system forbids it). */
struct heft_checksum_state *heft_checksum_begin(enum heft_checksum_kind kind);
void heft_checksum_add(struct heft_checksum_state *state, const void *data, size_t size);
/* Frees the state; checksum_out NULL: only that. */
void heft_checksum_end(struct heft_checksum_state *state, struct heft_checksum *checksum_out);

/* 1 for the CRCs: a whole's is made of those of its parts. */
int heft_checksum_composes(enum heft_checksum_kind kind);
/* The CRC of a part, as a number; 0 for no bytes. */
uint64_t heft_crc(enum heft_checksum_kind kind, const void *data, size_t size);
/* What `left` becomes by right_bytes more bytes whose CRC is `right`; linear in log2(right_bytes). */
uint64_t heft_crc_join(enum heft_checksum_kind kind, uint64_t left, uint64_t right, uint64_t right_bytes);
/* The number as the bytes of a checksum. */
void heft_crc_checksum(enum heft_checksum_kind kind, uint64_t crc, struct heft_checksum *checksum_out);

#endif
