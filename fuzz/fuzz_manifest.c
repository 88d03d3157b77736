/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Manifests from peers. The input is decoded as it is, and once more with the right frame around it (magic,
 * version, length, closing digest), since no fuzzer guesses a digest. What is accepted must keep every
 * promise that later code computes with, and must survive being written and read again.
 */
#include "fuzz.h"

#include "base/digest.h"
#include "format/manifest.h"

#include <string.h>

static void check_tensor(const struct heft_manifest *manifest, const struct heft_manifest_tensor *tensor,
                         uint64_t index)
{
    uint64_t file_bytes;
    uint32_t dim;

    FUZZ_CHECK(tensor->file < manifest->file_count);
    file_bytes = manifest->files[tensor->file].size_bytes;
    FUZZ_CHECK(tensor->offset_bytes <= file_bytes && tensor->size_bytes <= file_bytes - tensor->offset_bytes);
    FUZZ_CHECK(tensor->rank <= HEFT_TENSOR_MAX_RANK);
    FUZZ_CHECK(!tensor->box_start == !tensor->box_size);
    for (dim = 0; tensor->box_start && dim < tensor->rank; dim++)
        FUZZ_CHECK(tensor->box_start[dim] <= tensor->shape[dim] &&
                   tensor->box_size[dim] <= tensor->shape[dim] - tensor->box_start[dim]);
    FUZZ_CHECK(tensor->name[tensor->name_bytes] == 0);
    FUZZ_CHECK(heft_manifest_find(manifest, tensor->name, tensor->name_bytes) == index);
}

static void check_manifest(const struct heft_manifest *manifest)
{
    uint64_t index, bytes = 0, blocks = 0;

    FUZZ_CHECK(manifest->identity.model && manifest->identity.revision && manifest->identity.stage[0] &&
               manifest->identity.engine && manifest->identity.rank);
    for (index = 0; index < manifest->tensor_count; index++) {
        const struct heft_manifest_tensor *tensor = &manifest->tensors[index];

        check_tensor(manifest, tensor, index);
        FUZZ_CHECK(tensor->first_block == blocks);
        FUZZ_CHECK(!__builtin_add_overflow(bytes, tensor->size_bytes, &bytes));
        blocks += heft_block_count(tensor->size_bytes);
    }
    FUZZ_CHECK(bytes == manifest->total_bytes && blocks == manifest->block_count);
    (void)heft_manifest_holds(manifest, 0, blocks);
    (void)heft_manifest_content_digest(manifest);
}

static void check_round_trip(const struct heft_manifest *manifest)
{
    struct heft_manifest *again = NULL;
    struct heft_buf first, second;

    heft_buf_init(&first, HEFT_MANIFEST_MAX_BYTES);
    heft_buf_init(&second, HEFT_MANIFEST_MAX_BYTES);
    FUZZ_CHECK(heft_manifest_encode(manifest, &first) == HEFT_OK);
    FUZZ_CHECK(heft_manifest_decode(first.data, first.size, &again, NULL) == HEFT_OK);
    FUZZ_CHECK(heft_manifest_compare(manifest, again, NULL) == HEFT_OK);
    FUZZ_CHECK(heft_manifest_table_digest(manifest) == heft_manifest_table_digest(again));
    FUZZ_CHECK(heft_manifest_content_digest(manifest) == heft_manifest_content_digest(again));
    FUZZ_CHECK(heft_manifest_encode(again, &second) == HEFT_OK);
    FUZZ_CHECK(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
    heft_buf_free(&first);
    heft_buf_free(&second);
    heft_manifest_free(again);
}

static void decode(const uint8_t *data, size_t size)
{
    struct heft_manifest *manifest = NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    int rc = heft_manifest_decode(data, size, &manifest, &error);

    FUZZ_CHECK((rc == HEFT_OK) == (manifest != NULL));
    FUZZ_CHECK(rc == HEFT_OK || (error.code == rc && error.text[0]));
    if (!manifest)
        return;
    check_manifest(manifest);
    check_round_trip(manifest);
    heft_manifest_free(manifest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *framed;

    decode(data, size);
    if (size < 24)
        return 0;
    framed = malloc(size);
    FUZZ_CHECK(framed);
    memcpy(framed, data, size);
    memcpy(framed, "HMAN\1\0\0\0", 8);
    heft_put_u64(framed + 8, size);
    heft_put_u64(framed + size - 8, heft_hash64(framed, size - 8, 0));
    decode(framed, size);
    free(framed);
    return 0;
}
