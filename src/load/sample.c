/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Do two places hold the same weights? Names and shapes say little: every fine-tuned model has those of its
 * base. So a few bytes of tensors all over the model are read from both and compared, before any are mixed.
 */
#include "base/clock.h"
#include "base/error.h"
#include "load/sources.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES 24u
#define SAMPLE_BYTES 4096u
#define LIMIT_MS 10000u

/* One read a tensor into neighbouring places of `room`. */
static int read_samples(struct heft_agent *agent, const struct heft_source *source,
                        const struct heft_manifest_tensor *const *tensors, uint32_t count,
                        struct heft_region *room, uint64_t end_ns, struct heft_error *error)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_run runs[SAMPLES];
    struct heft_xfer *xfer;
    uint64_t now = heft_now_ns(), left_ms = end_ns > now ? (end_ns - now) / HEFT_NS_PER_MS : 0;
    uint32_t index;
    int rc;

    for (index = 0; index < count; index++) {
        const struct heft_manifest_tensor *tensor = tensors[index];
        uint64_t size = tensor->size_bytes < SAMPLE_BYTES ? tensor->size_bytes : SAMPLE_BYTES;

        runs[index] = (struct heft_run){
            .local_region = room,
            .local_offset_bytes = (uint64_t)index * SAMPLE_BYTES,
            .remote_region = source->regions[tensor->file],
            .remote_offset_bytes = tensor->offset_bytes + (tensor->size_bytes - size) / 2,
            .length_bytes = size,
            .count = 1,
        };
    }
    options.deadline_ms = left_ms < LIMIT_MS ? left_ms + 1 : LIMIT_MS;
    rc = heft_xfer_create(agent, HEFT_OP_READ, NULL, runs, count, &options, &xfer, error);
    if (rc)
        return rc;
    rc = heft_xfer_post(xfer, error);
    if (!rc) {
        struct heft_xfer_result result = {.size = sizeof(result)};

        while ((rc = heft_xfer_wait(xfer, LIMIT_MS)) == HEFT_ERR_AGAIN)
            continue; /* its own deadline ends it */
        heft_xfer_get_result(xfer, &result);
        if (rc && error)
            *error = result.error;
    }
    (void)heft_xfer_release(xfer);
    return rc;
}

int heft_sources_sample(struct heft_agent *agent, const struct heft_source *left,
                        const struct heft_source *right, uint64_t end_ns, struct heft_error *error)
{
    const struct heft_manifest_tensor *tensors[2][SAMPLES];
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    const struct heft_manifest *manifest = left->manifest;
    uint64_t step = manifest->tensor_count / SAMPLES + 1, index;
    struct heft_region *room[2] = {NULL, NULL};
    uint8_t *bytes = calloc(2, (size_t)SAMPLES * SAMPLE_BYTES);
    uint32_t count = 0, side;
    int rc = HEFT_OK;

    if (!bytes)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "comparing two sources");
    for (index = 0; index < manifest->tensor_count && count < SAMPLES; index += step) {
        const struct heft_manifest_tensor *tensor = &manifest->tensors[index];
        uint64_t other = heft_manifest_find(right->manifest, tensor->name, tensor->name_bytes);

        if (tensor->size_bytes == 0 || other == UINT64_MAX)
            continue;
        tensors[0][count] = tensor;
        tensors[1][count++] = &right->manifest->tensors[other];
    }
    for (side = 0; side < 2 && !rc && count > 0; side++) {
        options.address = bytes + (size_t)side * SAMPLES * SAMPLE_BYTES;
        options.length_bytes = (uint64_t)SAMPLES * SAMPLE_BYTES;
        rc = heft_region_register(agent, &options, &room[side], error);
        if (!rc)
            rc = read_samples(agent, side ? right : left, tensors[side], count, room[side], end_ns, error);
    }
    for (index = 0; !rc && index < count; index++)
        if (memcmp(bytes + index * SAMPLE_BYTES, bytes + (SAMPLES + index) * SAMPLE_BYTES, SAMPLE_BYTES) != 0)
            rc = heft_error_set(error, HEFT_ERR_INCOMPATIBLE,
                                "it holds other bytes than %s: tensor %s differs", left->name,
                                tensors[0][index]->name);
    for (side = 0; side < 2; side++)
        if (room[side])
            (void)heft_region_deregister(room[side], NULL);
    free(bytes);
    return rc;
}
