/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A way round for bytes that no transport brings to GPU memory in one step: from a peer of another host, from
 * an object store. They arrive in pinned memory of this process, packed, and go on from there by the GPU's
 * own engines, while the next chunk arrives in another such place.
 */
#ifndef HEFT_LOAD_BOUNCE_H
#define HEFT_LOAD_BOUNCE_H

#include <heft/agent.h>

/* Of one source: more would only keep memory from others. Two chunks are always possible. */
#define HEFT_BOUNCE_TOTAL_BYTES ((uint64_t)256 << 20)

struct heft_bounce {
    struct heft_memory *memory;
    struct heft_region *region;
    struct heft_xfer *in; /* from the source to here; the owner makes it, free releases it */
    void *pinned;
    uint64_t size_bytes;
    const char *transport; /* that brought the last chunk here; static text */
    uint64_t start_ns;     /* when it was asked for */
};

/* Memory for chunks of at most size_bytes, registered with the agent; pinned if the driver allows it. */
int heft_bounce_make(struct heft_agent *agent, uint64_t size_bytes, struct heft_bounce **bounce_out,
                     struct heft_error *error);
/* NULL is allowed. No transfer uses it any more. */
void heft_bounce_free(struct heft_bounce *bounce);

#endif
