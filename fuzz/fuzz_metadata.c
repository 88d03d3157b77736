/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata of agents. The input is decoded as it is, and once more with the right frame around it (magic,
 * version, size, closing check), since no fuzzer guesses a check. What is accepted must keep its promises.
 */
#include "fuzz.h"

#include "base/digest.h"
#include "wire/metadata.h"

#include <string.h>

static void decode(const uint8_t *data, size_t size)
{
    struct heft_wire_metadata metadata;
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t last = 0;
    uint32_t index;
    int rc = heft_wire_get_metadata(data, size, &metadata, &error);

    FUZZ_CHECK(rc == HEFT_OK || (error.code == rc && error.text[0]));
    if (rc)
        return;
    FUZZ_CHECK(metadata.name.size >= 1 && metadata.name.size <= HEFT_WIRE_NAME_MAX_BYTES);
    FUZZ_CHECK(metadata.generation && metadata.base <= metadata.epoch);
    FUZZ_CHECK(metadata.region_count <= HEFT_METADATA_MAX_REGIONS);
    for (index = 0; index < metadata.region_count; index++) {
        struct heft_wire_region region;

        rc = heft_wire_get_metadata_region(&metadata, index, &region);
        FUZZ_CHECK(rc == HEFT_OK || rc == HEFT_ERR_UNSUPPORTED);
        FUZZ_CHECK(region.id > last);
        last = region.id;
    }
    for (last = 0, index = 0; index < metadata.gone_count; index++) {
        FUZZ_CHECK(heft_wire_get_metadata_gone(&metadata, index) > last);
        last = heft_wire_get_metadata_gone(&metadata, index);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *framed;

    decode(data, size);
    if (size < 32)
        return 0;
    framed = malloc(size);
    FUZZ_CHECK(framed);
    memcpy(framed, data, size);
    memcpy(framed, "HEFTMETA\1\0\1\0\0\0\0\0", 16);
    heft_put_u64(framed + 16, size);
    heft_put_u64(framed + size - 8, heft_hash64(framed, size - 8, 0));
    decode(framed, size);
    free(framed);
    return 0;
}
