/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the executor: executor.c asks and takes what arrives; executor_pace.c chooses; executor_maker.c
 * makes and repairs transfers.
 */
#ifndef HEFT_LOAD_EXECUTOR_INTERNAL_H
#define HEFT_LOAD_EXECUTOR_INTERNAL_H

#include "base/clock.h"
#include "load/bounce.h"
#include "load/executor.h"

#include <pthread.h>

#define NO_CHUNK UINT64_MAX
#define FIRST_RUNS 64u
#define HEFT_EXECUTOR_TICK_NS (20 * HEFT_NS_PER_MS)

enum chunk_state { CHUNK_PENDING, CHUNK_FLYING, CHUNK_DONE };
enum slot_state { SLOT_UNMADE, SLOT_IDLE, SLOT_FLYING, SLOT_BROKEN };

struct slot {
    struct heft_executor *executor;
    uint32_t source;
    enum slot_state state;
    int stealing; /* cancelled so that another source gets its chunk */
    uint64_t chunk;
    uint64_t posted_ns;
    uint64_t seen_bytes; /* of its chunk, when it was last looked at */
    struct heft_xfer *xfer;
    struct heft_bounce
        *bounce; /* chunks come here first, `xfer` brings them on; NULL: it brings them itself */
    struct heft_run *runs;
    struct heft_plan_run *plan_runs;
    size_t run_capacity;
    struct slot *next_post; /* in the posting thread's queue */
};

struct lane { /* a source and its slots */
    struct heft_source *source;
    struct slot *slots;
    uint64_t cursor; /* chunks below it are not pending, or came back and are in `returned` */
    uint32_t repairs;
    uint32_t held;                          /* chunks in flight */
    uint64_t held_bytes, seen_bytes;        /* of these chunks; already here when last looked at */
    uint64_t arrived_bytes, progress_bytes; /* of whole chunks; with parts of others, at the last look */
    uint64_t sampled_ns;                    /* the last look */
    int was_busy;                           /* then, or began since */
    double rate_bytes, rate_ns;             /* bytes and the busy time that they took, lately */
    /* A gated lane takes only what it was offered. */
    int gated;
    uint8_t *offered; /* by chunk */
    uint64_t *queue;
    uint64_t queue_head, queue_tail, covered; /* covered: chunks that may be offered */
    uint64_t bounce_bytes;                    /* of its slots */
};

struct returned { /* a chunk that a source gave back */
    uint64_t chunk;
    uint32_t from;
};

struct heft_executor {
    struct heft_executor_options options;
    struct lane *lanes;
    uint32_t lane_count;
    uint8_t *states; /* enum chunk_state */
    struct returned *returned;
    uint64_t returned_count;
    uint64_t left; /* chunks not done */
    uint32_t active;
    int left_to_other; /* a source left a chunk to another one */
    uint64_t started_ns, sampled_ns;
    uint32_t callbacks;                   /* on_done calls that may still touch the executor */
    uint64_t bytes_done, blocks_verified; /* atomic */
    int stopping;
    int news; /* something was offered: the waiting thread hands it out */
    struct heft_error error;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* The maker: a thread for what may block, making slots' transfers, at first and after they broke. */
    pthread_t maker;
    int maker_started, maker_stop;  /* maker_stop: under the lock */
    pthread_mutex_t transfers_lock; /* outer to lock: no transfer is released while it is being cancelled */
};

/* By which of its transfers a slot's chunk goes. */
enum leg { LEG_WHOLE, LEG_TO_BOUNCE, LEG_FROM_BOUNCE };

static inline int heft_executor_covers(const struct heft_executor *executor, uint32_t source, uint64_t chunk)
{
    return (int)(executor->options.plan->chunks[chunk].sources >> source & 1);
}

static inline int heft_lane_is_live(const struct lane *lane)
{
    return lane->source->state == HEFT_SOURCE_READY || lane->source->state == HEFT_SOURCE_USED;
}

/* Whether a source may be asked for a chunk: a gated one only for what it was offered. Under the lock. */
static inline int heft_executor_may_take(const struct heft_executor *executor, uint32_t source,
                                         uint64_t chunk)
{
    const struct lane *lane = &executor->lanes[source];

    return heft_executor_covers(executor, source, chunk) && (!lane->gated || lane->offered[chunk]);
}

/* executor_pace.c; all under the lock. Another source, none that is `but`, should rather get the chunk. */
int heft_executor_leaves(const struct heft_executor *executor, uint32_t source, uint64_t chunk, uint32_t but);
/* Looks how far each transfer is. No transfer may be released meanwhile. */
void heft_executor_sample(struct heft_executor *executor, uint64_t now);
/* Marks slots as stealing whose chunks idle sources would be done with sooner; the caller cancels them. */
uint32_t heft_executor_pick_late(struct heft_executor *executor, struct slot **slots_out, uint32_t most);

/* executor.c, for the maker. The first two under the lock. */
void heft_executor_lose_source(struct heft_executor *executor, uint32_t index, int code, const char *text);
void heft_executor_check_hopeless(struct heft_executor *executor);
int heft_lane_slot_fill_runs(struct slot *slot, enum leg leg, size_t *count_out);
void heft_lane_slot_done(struct heft_xfer *xfer, const struct heft_xfer_result *result, void *context);
void heft_lane_slot_bounced(struct heft_xfer *xfer, const struct heft_xfer_result *result, void *context);

/* executor_maker.c: the maker's thread; or, without one, its first work. */
void *heft_executor_maker_main(void *executor);
void heft_executor_make_lanes(struct heft_executor *executor);
/* Nothing uses its transfers: gives them back. BUSY: a callback still returns. */
int heft_lane_slot_release(struct slot *slot);

#endif
