/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this agent tells a peer it connected: that transfers are done (counters, notifications), and
 * notifications by themselves. To a peer of this host that gave a ring (ring.h) whoever tells writes it
 * there, at once. Else, or when the ring is full, or while others wait, it is queued, under peer->lock, and
 * the control worker sends frames. Notifications need credit, either way. A transfer stays active until its
 * own were handed to the connection.
 *
 * A notification in the ring says how many frames with notifications were sent before it, so that the other
 * side keeps them in order; nothing passes those that are queued.
 */
#ifndef HEFT_AGENT_OUTBOX_H
#define HEFT_AGENT_OUTBOX_H

#include "agent/agent_internal.h"

#define HEFT_OUTBOX_MAX_BYTES ((uint64_t)1 << 20) /* notifications by themselves, waiting for one peer */

struct heft_xfer;

struct heft_outnote {
    struct heft_outnote *next;
    struct heft_xfer *xfer; /* NULL: a notification by itself, owned by the queue */
    const uint8_t *data;
    size_t size;
    uint32_t counter;
};

/* Tells what the transfer tells: 1; queues it: 0; or the peer's status and its error: it is lost. */
int heft_outbox_add_xfer(struct heft_xfer *xfer, struct heft_error *error);
/* Both with peer->lock held. 1: the peer's ring takes what the transfer tells, until somebody else writes.
 * Then: tells it. */
int heft_outbox_has_room(const struct heft_xfer *xfer);
void heft_outbox_tell(struct heft_xfer *xfer);
/* 1: it was still waiting and is out of the queue now. xfer->lock held. */
int heft_outbox_remove(struct heft_xfer *xfer);
/* Whether the peer takes notifications and counts, and this one; on a peer that is connected. */
int heft_outbox_check(struct heft_peer *peer, size_t size_bytes, struct heft_error *error);
/* On the control worker. */
void heft_outbox_credit(struct heft_peer *peer, const struct heft_frame *frame, const uint8_t *payload);
void heft_outbox_ring(struct heft_peer *peer, const struct heft_frame *frame, const uint8_t *payload);
void heft_outbox_wake(struct heft_peer *peer, const struct heft_frame *frame, const uint8_t *payload);
void heft_outbox_job(struct heft_job *job, struct heft_worker *worker);
void heft_outbox_pump(struct heft_peer *peer);
/* The peer is lost: transfers that wait here end with its status. */
void heft_outbox_fail(struct heft_peer *peer);
/* Nothing waits any more that has an owner. */
void heft_outbox_clear(struct heft_peer *peer);

#endif
