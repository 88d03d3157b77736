/* SPDX-License-Identifier: Apache-2.0 */
#include "load/device.h"

#include "base/digest.h"
#include "base/error.h"
#include "space/cuda.h"

#include <inttypes.h>
#include <stdlib.h>

/* One block of a chunk: where its digest is expected and kept. */
struct block {
    uint64_t tensor, index;
    uint64_t expected, computed; /* places in the tables; UINT64_MAX: none */
};

struct blocks {
    struct heft_cuda_place *places;
    struct block *blocks;
    uint64_t *digests;
    uint64_t count, capacity;
};

static void free_blocks(struct blocks *blocks)
{
    free(blocks->places);
    free(blocks->blocks);
    free(blocks->digests);
}

static int add_piece(const struct heft_executor_options *o, const struct heft_piece_blocks *piece,
                     struct blocks *blocks)
{
    uint64_t expected = o->expected ? o->expected_first[piece->layout_tensor] : UINT64_MAX;
    uint64_t computed = o->computed ? o->computed_first[piece->layout_tensor] : UINT64_MAX;
    uint64_t address = (uintptr_t)o->addresses[piece->dst_index] + piece->dst_offset_bytes,
             left = piece->size_bytes;
    uint64_t index;

    if (expected == UINT64_MAX && computed == UINT64_MAX)
        return HEFT_OK;
    if (blocks->count + piece->count > blocks->capacity) {
        uint64_t capacity = (blocks->count + piece->count) * 2;
        void *places = realloc(blocks->places, capacity * sizeof(*blocks->places));
        void *made = realloc(blocks->blocks, capacity * sizeof(*blocks->blocks));
        void *digests = realloc(blocks->digests, capacity * sizeof(*blocks->digests));

        blocks->places = places ? places : blocks->places;
        blocks->blocks = made ? made : blocks->blocks;
        blocks->digests = digests ? digests : blocks->digests;
        if (!places || !made || !digests)
            return HEFT_ERR_NO_MEMORY;
        blocks->capacity = capacity;
    }
    for (index = piece->first; index < piece->first + piece->count; index++) {
        uint64_t size = left < HEFT_BLOCK_BYTES ? left : HEFT_BLOCK_BYTES;

        blocks->places[blocks->count] = (struct heft_cuda_place){address, size};
        blocks->blocks[blocks->count++] =
            (struct block){.tensor = piece->layout_tensor,
                           .index = index,
                           .expected = expected == UINT64_MAX ? UINT64_MAX : expected + index,
                           .computed = computed == UINT64_MAX ? UINT64_MAX : computed + index};
        address += size;
        left -= size;
    }
    return HEFT_OK;
}

static int compare(const struct heft_executor_options *o, const struct blocks *blocks, uint64_t *verified_out,
                   struct heft_error *error)
{
    uint64_t at, verified = 0;

    for (at = 0; at < blocks->count; at++) {
        const struct block *block = &blocks->blocks[at];
        uint64_t digest = blocks->digests[at];

        if (block->expected != UINT64_MAX) {
            if (digest != o->expected[block->expected])
                return heft_block_mismatch(o, block->tensor, block->index, digest,
                                           o->expected[block->expected], error);
            verified++;
        }
        if (block->computed != UINT64_MAX)
            o->computed[block->computed] = digest;
    }
    *verified_out = verified;
    return HEFT_OK;
}

int heft_device_verify_chunk(const struct heft_executor_options *options, uint64_t chunk_index,
                             uint64_t *verified_out, struct heft_error *error)
{
    const struct heft_chunk *chunk = &options->plan->chunks[chunk_index];
    struct blocks blocks = {0};
    uint64_t piece;
    int rc = HEFT_OK;

    for (piece = chunk->first_piece; piece < chunk->first_piece + chunk->piece_count && !rc; piece++) {
        struct heft_piece_blocks found;

        heft_plan_piece_blocks(options->plan, piece, &found);
        if (found.count > 0)
            rc = add_piece(options, &found, &blocks);
    }
    if (rc)
        rc = heft_error_set(error, rc, "out of memory for the digests of a chunk");
    if (!rc && blocks.count > 0)
        rc = heft_cuda_digest(options->device, blocks.places, blocks.count, blocks.digests, error);
    if (!rc)
        rc = compare(options, &blocks, verified_out, error);
    free_blocks(&blocks);
    return rc;
}

int heft_device_digest_tensors(struct heft_manifest *manifest, const uint8_t *const *addresses, int device,
                               struct heft_error *error)
{
    struct heft_cuda_place *places;
    uint64_t tensor, at, count = 0;
    int rc = heft_manifest_want_digests(manifest, error);

    if (rc)
        return rc;
    places = calloc(manifest->block_count ? manifest->block_count : 1, sizeof(*places));
    if (!places)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making %" PRIu64 " digests", manifest->block_count);
    for (tensor = 0; tensor < manifest->tensor_count; tensor++)
        for (at = 0; at < manifest->tensors[tensor].size_bytes; at += HEFT_BLOCK_BYTES) {
            uint64_t left = manifest->tensors[tensor].size_bytes - at;

            HEFT_ASSERT(count == manifest->tensors[tensor].first_block + at / HEFT_BLOCK_BYTES);
            places[count++] = (struct heft_cuda_place){(uintptr_t)addresses[tensor] + at,
                                                       left < HEFT_BLOCK_BYTES ? left : HEFT_BLOCK_BYTES};
        }
    rc = heft_cuda_digest(device, places, count, manifest->digests, error);
    free(places);
    return rc;
}

static void *warm_main(void *argument)
{
    const struct heft_device_warmer *warmer = argument;

    heft_cuda_warm(warmer->device);
    return NULL;
}

void heft_device_warm(struct heft_device_warmer *warmer, int device)
{
    warmer->device = device;
    warmer->started = device >= 0 && pthread_create(&warmer->thread, NULL, warm_main, warmer) == 0;
}

void heft_device_warmed(struct heft_device_warmer *warmer)
{
    if (warmer->started)
        (void)pthread_join(warmer->thread, NULL);
    warmer->started = 0;
}
