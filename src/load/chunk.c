/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of a chunk's blocks by the CPU, in host memory. load/device.h has the same for GPUs. */
#include "load/executor.h"

#include "base/digest.h"
#include "base/error.h"

#include <inttypes.h>

int heft_block_mismatch(const struct heft_executor_options *options, uint64_t layout_tensor, uint64_t block,
                        uint64_t digest, uint64_t expected, struct heft_error *error)
{
    const struct heft_layout *layout = options->plan->layout;
    const struct heft_manifest *reference = layout->reference;
    const struct heft_manifest_tensor *tensor = &reference->tensors[layout->tensors[layout_tensor].tensor];
    const char *file = reference->file_count > 0 ? reference->files[tensor->file].name : "";

    return heft_error_set(error, HEFT_ERR_DIGEST,
                          "%s%stensor %s, block %" PRIu64 ": digest %016" PRIx64 ", expected %016" PRIx64,
                          file, file[0] ? ", " : "", tensor->name, block, digest, expected);
}

/* The blocks of one piece, from `at` on. */
static int verify_piece(const struct heft_executor_options *o, const struct heft_piece_blocks *blocks,
                        uint64_t *verified, struct heft_error *error)
{
    uint64_t expected_first = o->expected ? o->expected_first[blocks->layout_tensor] : UINT64_MAX;
    uint64_t computed_first = o->computed ? o->computed_first[blocks->layout_tensor] : UINT64_MAX;
    const uint8_t *at = o->addresses[blocks->dst_index] + blocks->dst_offset_bytes;
    uint64_t left = blocks->size_bytes, index;

    if (expected_first == UINT64_MAX && computed_first == UINT64_MAX)
        return HEFT_OK;
    for (index = blocks->first; index < blocks->first + blocks->count; index++) {
        uint64_t size = left < HEFT_BLOCK_BYTES ? left : HEFT_BLOCK_BYTES;
        uint64_t digest = heft_hash64(at, (size_t)size, 0);

        if (expected_first != UINT64_MAX) {
            if (digest != o->expected[expected_first + index])
                return heft_block_mismatch(o, blocks->layout_tensor, index, digest,
                                           o->expected[expected_first + index], error);
            (*verified)++;
        }
        if (computed_first != UINT64_MAX)
            o->computed[computed_first + index] = digest;
        at += size;
        left -= size;
    }
    return HEFT_OK;
}

int heft_host_verify_chunk(const struct heft_executor_options *options, uint64_t chunk_index,
                           uint64_t *verified_out, struct heft_error *error)
{
    const struct heft_chunk *chunk = &options->plan->chunks[chunk_index];
    uint64_t piece, verified = 0;
    int rc = HEFT_OK;

    for (piece = chunk->first_piece; piece < chunk->first_piece + chunk->piece_count && !rc; piece++) {
        struct heft_piece_blocks blocks;

        heft_plan_piece_blocks(options->plan, piece, &blocks);
        if (blocks.count > 0)
            rc = verify_piece(options, &blocks, &verified, error);
    }
    *verified_out = verified;
    return rc;
}
