/* SPDX-License-Identifier: Apache-2.0 */
#include "load/bounce.h"

#include "base/error.h"
#include "base/log.h"
#include "space/cuda.h"

#include <stdlib.h>

int heft_bounce_make(struct heft_agent *agent, uint64_t size_bytes, struct heft_bounce **bounce_out,
                     struct heft_error *error)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_bounce *bounce = calloc(1, sizeof(*bounce));
    struct heft_memory_info info;
    int rc;

    if (!bounce)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a chunk on its way to a GPU");
    rc = heft_memory_alloc(size_bytes, HEFT_MEMORY_PREFAULT, &bounce->memory, error);
    if (rc)
        goto fail_bounce;
    heft_memory_get_info(bounce->memory, &info);
    if (heft_cuda_pin(info.address, size_bytes) == HEFT_OK)
        bounce->pinned = info.address;
    options.address = info.address;
    options.length_bytes = size_bytes;
    rc = heft_region_register(agent, &options, &bounce->region, error);
    if (rc)
        goto fail_memory;
    bounce->size_bytes = size_bytes;
    *bounce_out = bounce;
    return HEFT_OK;

fail_memory:
    heft_cuda_unpin(bounce->pinned);
    heft_memory_free(bounce->memory);
fail_bounce:
    free(bounce);
    return rc;
}

void heft_bounce_free(struct heft_bounce *bounce)
{
    if (!bounce)
        return;
    if (heft_region_deregister(bounce->region, NULL)) {
        heft_log(HEFT_LOG_ERROR, "a chunk's place on its way to a GPU is still in use; it is not freed");
        return;
    }
    heft_cuda_unpin(bounce->pinned);
    heft_memory_free(bounce->memory);
    free(bounce);
}
