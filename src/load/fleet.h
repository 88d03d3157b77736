/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several loads of one model on any hosts, which read it from storage once between them. Each publishes
 * itself as a load under a lease, and lets the others read the blocks that it has and a log that says which
 * those are, with their digests.
 *
 * Nobody is in charge, and nothing is waited for without a bound: what one load knows of the others it has
 * read from the directory and from their logs. One that dies costs the others what it had begun.
 */
#ifndef HEFT_LOAD_FLEET_H
#define HEFT_LOAD_FLEET_H

#include "load/sources.h"

#define HEFT_FLEET_MAX_LOADS 64u

struct heft_fleet;
struct heft_layout;

struct heft_fleet_options {
    struct heft_agent *agent; /* listens */
    struct heft_directory *directory;
    uint32_t loads; /* this one counted */
    uint64_t stall_ms;
    int on_device;          /* the destinations lie on a GPU */
    const uint32_t *cancel; /* atomic: gather ends */
    /* The destinations, by dst_index: readable by peers, deregistered by close. Both arrays are taken over.
     */
    struct heft_region **regions;
    uint8_t **addresses;
    uint32_t region_count;
};

/* What a load did in its fleet, for its report. */
struct heft_fleet_summary {
    uint32_t loads, found;
    int is_late; /* the others had begun without it: it read what they could not give */
    uint64_t waited_ns;
};

/*
 * Serves what will be loaded, and publishes that it is being loaded. Takes over regions and addresses, also
 * on failure: then they are gone when this returns, unless somebody can't be made to let go of them (BUSY in
 * *busy_out: the memory must stay).
 */
int heft_fleet_join(const struct heft_fleet_options *options, const struct heft_layout *layout,
                    struct heft_fleet **fleet_out, int *busy_out, struct heft_error *error);
/*
 * Waits until the others are found, wait_ms at most, and makes each a source; whoever comes later takes from
 * this load, which takes nothing from it. `lock` is held while sources are added.
 */
void heft_fleet_gather(struct heft_fleet *fleet, struct heft_found *found, pthread_mutex_t *lock,
                       uint64_t wait_ms);
/* Between the plan and the executor: gates, and what is to be called. The plan, the sources and the digests
 * of options must live until stop. */
int heft_fleet_prepare(struct heft_fleet *fleet, struct heft_executor_options *options,
                       struct heft_error *error);
int heft_fleet_start(struct heft_fleet *fleet, struct heft_executor *executor, struct heft_error *error);
/* Before the executor is freed. */
void heft_fleet_stop(struct heft_fleet *fleet);
/* The load ended right: the others may have everything from here. */
void heft_fleet_complete(struct heft_fleet *fleet);
void heft_fleet_get_summary(const struct heft_fleet *fleet, struct heft_fleet_summary *summary_out);
/* Waits until no other load needs this one any more: 0; AGAIN. */
int heft_fleet_leave(struct heft_fleet *fleet, uint64_t timeout_ms);
/* Withdraws. BUSY: a region is still read; its memory must not be given back. */
int heft_fleet_close(struct heft_fleet *fleet);

#endif
