/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verifying a model on disk or behind a URL: reads every byte once, as a load does; makes the SHA-256 of each
 * file and the block digests of each tensor. A file whose name in the cache is its SHA-256 is checked against
 * it, an object against the checksum that its store keeps of it.
 */
#ifndef HEFT_LOAD_VERIFY_H
#define HEFT_LOAD_VERIFY_H

#include "base/digest.h"
#include <heft/model.h>

struct heft_verified_file {
    const char *name;
    uint8_t sha256[HEFT_SHA256_BYTES];
    int checked;          /* 1: the cache's name or the store told what it must be, and it is */
    const char *checksum; /* what was told: "sha256", "crc32c", ...; "none" */
};

struct heft_verified {
    struct heft_manifest *manifest; /* with digests */
    struct heft_verified_file *files;
    uint32_t file_count;
    uint64_t bytes; /* read, headers included */
    uint64_t content_digest;
    double seconds;
};

/* As heft_manifest_open, and DIGEST naming the file whose bytes are wrong, TRUNCATED, CHANGED, IO. */
int heft_verify_model(const char *model, const struct heft_model_options *options,
                      struct heft_verified **verified_out, struct heft_error *error);
void heft_verified_free(struct heft_verified *verified);

#endif
