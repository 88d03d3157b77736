/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations of one endpoint, from post to done. Movers (worker jobs, streams) claim slices of the oldest
 * operation that has bytes left and is not held, several movers at once, and report each slice's end; the
 * last report ends the operation. Nothing is allocated for an operation: its state lies in its own `priv`,
 * only a failure's sentence is copied aside.
 *
 * done is called without the lock, from heft_opqueue_drain. Whoever ends slices drains afterwards.
 */
#ifndef HEFT_TRANSPORT_OPQUEUE_H
#define HEFT_TRANSPORT_OPQUEUE_H

#include "transport/cursor.h"
#include "transport/worker.h"

#include <pthread.h>

struct heft_opqueue {
    pthread_mutex_t lock; /* a leaf, but for the movers' own locks, which are taken before it */
    pthread_cond_t changed;
    struct heft_transport_op *head, *tail;           /* with bytes that nobody claimed yet */
    struct heft_transport_op *done_head, *done_tail; /* ended, done not called yet */
    uint64_t active;                                 /* posted, done not returned yet */
    uint32_t holds;                                  /* reasons to hand out nothing */
    int failed;                                      /* atomic reads allowed: why every operation ends */
    struct heft_error failed_error;
};

/* A slice that a mover holds. */
struct heft_claim {
    struct heft_transport_op *op;
    struct heft_cursor start;
    uint64_t bytes;
    uint32_t cuts; /* how many cuts (`many`) tile it */
    int strided;   /* some cut has count > 1 */
};

void heft_opqueue_init(struct heft_opqueue *queue);
void heft_opqueue_free(struct heft_opqueue *queue);
/* Refuses once the queue has failed. An operation without bytes ends at once (drain calls its done). */
int heft_opqueue_post(struct heft_opqueue *queue, struct heft_transport_op *op, struct heft_error *error);
/* Takes the operation as one claim of everything, for a caller that moves it itself. Same refusals. */
int heft_opqueue_post_claimed(struct heft_opqueue *queue, struct heft_transport_op *op,
                              struct heft_claim *claim_out, struct heft_error *error);
/* 1 and the next slice of at most max_bytes and max_cuts, or 0 when no bytes are left to hand out. */
int heft_opqueue_claim(struct heft_opqueue *queue, uint64_t max_bytes, uint32_t max_cuts,
                       struct heft_claim *claim_out);
/* From the first hold on until the last release nothing is handed out: what was on its way before must be
 * over. release: 1 when it was the last one. */
void heft_opqueue_hold(struct heft_opqueue *queue);
int heft_opqueue_release(struct heft_opqueue *queue);
/* The oldest that may be begun (op->held is 0); NULL: none. With the queue's lock. */
struct heft_transport_op *heft_opqueue_next_locked(const struct heft_opqueue *queue);
/* Operations posted whose done has not returned. */
uint64_t heft_opqueue_active(struct heft_opqueue *queue);
/* `slices` claims of the operation ended, moved or not; the first status that isn't 0 stays. The operation
 * may be gone when it returns. */
void heft_opqueue_end(struct heft_opqueue *queue, struct heft_transport_op *op, uint32_t slices, int status,
                      const struct heft_error *error, int64_t failed_move);
/* Hands out no more of it. 1: the caller now holds one claim, to be ended with CANCELED. 0: every byte was
 * claimed already (or the operation is over): the movers see op->cancel_wanted. */
int heft_opqueue_cancel(struct heft_opqueue *queue, struct heft_transport_op *op);
/* Every queued operation ends with `status`, later posts are refused with it. Claimed slices end by their
 * movers, who watch queue->failed. */
void heft_opqueue_fail(struct heft_opqueue *queue, int status, const struct heft_error *error);
/* The same for what is queued now; later posts are welcome. */
void heft_opqueue_flush(struct heft_opqueue *queue, int status, const struct heft_error *error);
/* Calls done for what has ended. */
void heft_opqueue_drain(struct heft_opqueue *queue);
/* Drains, then waits until done has returned for everything but the operations whose done calls us. `pool`:
 * whose workers move them. */
void heft_opqueue_wait_idle(struct heft_opqueue *queue, struct heft_worker_pool *pool);

#endif
