/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The feeder: reads into a share what this load wants and nobody else reads yet, and offers the executor each
 * chunk as soon as its units are there, whoever read them.
 */
#ifndef HEFT_LOAD_FEEDER_H
#define HEFT_LOAD_FEEDER_H

#include "load/executor.h"
#include "load/share.h"

struct heft_feeder_options {
    struct heft_agent *agent;
    const struct heft_plan *plan;
    struct heft_share *share;
    struct heft_source *storage;         /* what the share is filled from: the load's files or objects */
    uint32_t share_index, storage_index; /* of both among the plan's sources */
    struct heft_region *const *regions;  /* of the share, by file */
    uint64_t stall_ms;
};

struct heft_feeder;

/* Made before the executor, which is told heft_feeder_on_chunk with the feeder as context. */
int heft_feeder_create(const struct heft_feeder_options *options, struct heft_feeder **feeder_out,
                       struct heft_error *error);
void heft_feeder_on_chunk(void *feeder, uint64_t chunk);
int heft_feeder_start(struct heft_feeder *feeder, struct heft_executor *executor, struct heft_error *error);
/* Before the executor is freed. Returns the bytes that this load read into the share. */
uint64_t heft_feeder_stop(struct heft_feeder *feeder);
void heft_feeder_free(struct heft_feeder *feeder);

#endif
