/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole objects against the checksums that their store keeps, while a load moves them.
 *
 * Chunks arrive out of order and by several connections. A CRC composes: the thread that received a chunk
 * makes the CRCs of its blocks while they are in its cache, and they are joined later. Other digests are made
 * by threads of their own, from the destination's memory, as the bytes from the object's first one on are
 * there. What stands before the tensors was read when the object was opened.
 *
 * An object of which not all bytes are wanted is not checked, nor one whose every block is compared with a
 * digest that is known; each object's outcome, or the reason why there is none, is kept for the report.
 */
#ifndef HEFT_LOAD_CHECKSUMS_H
#define HEFT_LOAD_CHECKSUMS_H

#include "base/checksum.h"
#include "load/open.h"
#include "plan/plan.h"

struct heft_checked_object {
    const char *name; /* the manifest's */
    enum heft_checksum_kind kind;
    int checked;   /* 1: it is what the store says */
    char why[160]; /* it was not checked */
};

struct heft_checksums_options {
    const struct heft_opened *opened; /* of objects; its manifest is the layout's reference */
    const struct heft_plan *plan;
    uint8_t *const *addresses; /* of the destinations */
    int device;    /* the GPU on which they lie, and from which they are read back; -1: host memory */
    int is_window; /* a place is used again as soon as `next` was told of its chunk */
    const uint64_t *expected_first; /* as the executor's; NULL: no block's digest is known */
    /* Told of each chunk afterwards; NULL: nobody. */
    void (*next)(void *context, uint64_t chunk);
    void *next_context;
};

struct heft_checksums;

/* What is pointed to must live until stop. Starts threads when an object is to be checked. */
int heft_checksums_start(const struct heft_checksums_options *options, struct heft_checksums **checksums_out,
                         struct heft_error *error);
/* The executor's on_chunk; any thread. */
void heft_checksums_on_chunk(void *checksums, uint64_t chunk);
/* DIGEST, naming the object and both values, as soon as one is found to be another than its store's. */
int heft_checksums_verdict(struct heft_checksums *checksums, struct heft_error *error);
/* Every chunk has arrived: waits for the outcome. CANCELED or DEADLINE when that comes first. */
int heft_checksums_finish(struct heft_checksums *checksums, uint64_t end_ns, const uint32_t *cancel,
                          struct heft_error *error);
/* Nothing looks at the destinations any more. Once, or again. */
void heft_checksums_stop(struct heft_checksums *checksums);
/* An object as it stands; any time. */
uint32_t heft_checksums_count(const struct heft_checksums *checksums);
void heft_checksums_read(struct heft_checksums *checksums, uint32_t index,
                         struct heft_checked_object *object_out);
/* NULL is allowed, as it is in stop, verdict and finish. */
void heft_checksums_free(struct heft_checksums *checksums);

#endif
