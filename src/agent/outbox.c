/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/outbox.h"
#include "agent/xfer.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SOCKET_QUEUE_BYTES ((size_t)1 << 20) /* of the connection, above which notifications wait here */

static void append(struct heft_outqueue *queue, struct heft_outnote *note)
{
    note->next = NULL;
    if (queue->last)
        queue->last->next = note;
    else
        queue->first = note;
    queue->last = note;
}

static struct heft_outnote *pop(struct heft_outqueue *queue)
{
    struct heft_outnote *note = queue->first;

    if (note) {
        queue->first = note->next;
        if (!note->next)
            queue->last = NULL;
    }
    return note;
}

static int take_out(struct heft_outqueue *queue, const struct heft_outnote *note)
{
    struct heft_outnote *before = NULL, *at;

    for (at = queue->first; at && at != note; before = at, at = at->next)
        ;
    if (!at)
        return 0;
    if (before)
        before->next = at->next;
    else
        queue->first = at->next;
    if (queue->last == at)
        queue->last = before;
    return 1;
}

/* ---- queueing ---- */

/* peer->lock held; 1: the job has to be submitted, outside the lock. */
static int want_job(struct heft_peer *peer)
{
    if (peer->outbox_queued)
        return 0;
    peer->outbox_queued = 1;
    return 1;
}

static void submit(struct heft_peer *peer)
{
    heft_peer_ref(peer);
    heft_worker_submit(peer->agent->control, &peer->outbox_job);
}

int heft_outbox_check(struct heft_peer *peer, size_t size_bytes, struct heft_error *error)
{
    uint32_t largest = HEFT_WIRE_NOTIFICATION_MAX_BYTES;
    char who[HEFT_PEER_TEXT_BYTES];
    int known;

    (void)pthread_mutex_lock(&peer->lock);
    known = peer->credit_known;
    if (known && peer->notification_largest_bytes < largest)
        largest = peer->notification_largest_bytes;
    (void)pthread_mutex_unlock(&peer->lock);
    if (!known)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                              "%s takes no notifications and no counters: its version is too old",
                              heft_peer_text(peer, who, sizeof(who)));
    if (size_bytes > largest)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE,
                              "a notification of %zu bytes is over the limit of %u bytes", size_bytes,
                              largest);
    return 0;
}

/* Through the ring, unless others wait: 1 when it is there. peer->lock held, as for the next two. */
static int put_count(struct heft_peer *peer, uint32_t counter)
{
    return peer->ring.shared && !peer->out_counts.first &&
           heft_ring_put(&peer->ring, HEFT_RING_COUNT, counter, NULL, 0);
}

static int put_note(struct heft_peer *peer, const void *data, size_t size)
{
    uint64_t cost = size + HEFT_WIRE_NOTIFICATION_COST_BYTES;

    if (!peer->ring.shared || peer->out_notes.first || cost > peer->credit_bytes ||
        !heft_ring_put(&peer->ring, HEFT_RING_NOTE, peer->note_frames, data, (uint32_t)size))
        return 0;
    peer->credit_bytes -= cost;
    HEFT_COUNT(peer->agent, notifications_sent, 1);
    return 1;
}

/* 1: all is told. 0: the rest was queued. */
static int tell_or_queue(struct heft_peer *peer, struct heft_xfer *xfer)
{
    if ((xfer->tells & HEFT_TELL_COUNT) && !put_count(peer, xfer->note.counter)) {
        append(&peer->out_counts, &xfer->note);
        return 0;
    }
    if (!(xfer->tells & HEFT_TELL_NOTE) || put_note(peer, xfer->note.data, xfer->note.size))
        return 1;
    append(&peer->out_notes, &xfer->note);
    return 0;
}

int heft_outbox_has_room(const struct heft_xfer *xfer)
{
    struct heft_peer *peer = xfer->peer;
    size_t size = xfer->tells & HEFT_TELL_NOTE ? xfer->note.size : 0;

    if (!peer->ring.shared || peer->out_counts.first)
        return 0;
    if ((xfer->tells & HEFT_TELL_NOTE) &&
        (peer->out_notes.first || size + HEFT_WIRE_NOTIFICATION_COST_BYTES > peer->credit_bytes))
        return 0;
    return heft_ring_has_room(&peer->ring, (uint32_t)size);
}

void heft_outbox_tell(struct heft_xfer *xfer)
{
    int told = tell_or_queue(xfer->peer, xfer);

    HEFT_ASSERT(told);
}

int heft_outbox_add_xfer(struct heft_xfer *xfer, struct heft_error *error)
{
    struct heft_peer *peer = xfer->peer;
    int wanted = 0, told = 0, rc;

    (void)pthread_mutex_lock(&peer->lock);
    rc = peer->status;
    if (rc) {
        *error = peer->error;
    } else {
        told = tell_or_queue(peer, xfer);
        wanted = !told && want_job(peer);
    }
    (void)pthread_mutex_unlock(&peer->lock);
    if (wanted)
        submit(peer);
    return rc ? rc : told;
}

int heft_outbox_remove(struct heft_xfer *xfer)
{
    struct heft_peer *peer = xfer->peer;
    int found;

    (void)pthread_mutex_lock(&peer->lock);
    found = take_out(&peer->out_counts, &xfer->note) || take_out(&peer->out_notes, &xfer->note);
    (void)pthread_mutex_unlock(&peer->lock);
    return found;
}

/* 1: it is in the ring. 0: it has to be queued, or is refused. */
static int notify_now(struct heft_peer *peer, const void *data, size_t size)
{
    int told;

    (void)pthread_mutex_lock(&peer->lock);
    told = !peer->status && !peer->closing && put_note(peer, data, size);
    (void)pthread_mutex_unlock(&peer->lock);
    return told;
}

int heft_peer_notify(struct heft_peer *peer, const void *data, size_t size_bytes, struct heft_error *error)
{
    uint64_t cost = size_bytes + HEFT_WIRE_NOTIFICATION_COST_BYTES;
    struct heft_outnote *note;
    char who[HEFT_PEER_TEXT_BYTES];
    int rc, wanted = 0;

    if (heft_agent_forked(peer->agent))
        return heft_process_refuse(peer->agent, error);
    if (size_bytes && !data)
        return heft_error_set(error, HEFT_ERR_INVALID, "a notification of %zu bytes, but no bytes",
                              size_bytes);
    rc = heft_outbox_check(peer, size_bytes, error);
    if (rc || notify_now(peer, data, size_bytes))
        return rc;
    note = malloc(sizeof(*note) + size_bytes);
    if (!note)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a notification");
    *note = (struct heft_outnote){.data = (uint8_t *)(note + 1), .size = size_bytes};
    if (size_bytes)
        memcpy(note + 1, data, size_bytes);
    (void)pthread_mutex_lock(&peer->lock);
    if (peer->status) {
        rc = peer->status;
        if (error)
            *error = peer->error;
    } else if (peer->closing) {
        rc = heft_error_set(error, HEFT_ERR_PEER_LOST, "the peer '%s' was closed", peer->name);
    } else if (peer->out_bytes + cost > HEFT_OUTBOX_MAX_BYTES) {
        rc = heft_error_set(error, HEFT_ERR_AGAIN, "%s has not taken %llu bytes of notifications before it",
                            heft_peer_text(peer, who, sizeof(who)), (unsigned long long)peer->out_bytes);
    } else {
        peer->out_bytes += cost;
        append(&peer->out_notes, note);
        wanted = want_job(peer);
    }
    (void)pthread_mutex_unlock(&peer->lock);
    if (wanted)
        submit(peer);
    if (rc)
        free(note);
    return rc;
}

/* ---- sending: on the control worker ---- */

static int can_send(const struct heft_peer *peer)
{
    return peer->conn_live && peer->conn.state == HEFT_CONN_LIVE && !peer->conn.dead;
}

/* Its frame is on its way, unless the connection broke over it. */
static void tell(const struct heft_peer *peer, struct heft_xfer *xfer)
{
    struct heft_error error = HEFT_ERROR_INIT;

    if (!peer->conn.dead)
        heft_xfer_told(xfer, 0, NULL);
    else
        heft_xfer_told(xfer, heft_error_set(&error, HEFT_ERR_PEER_LOST, "%s", peer->conn.dead_text), &error);
}

/* One frame of counts; then what also notifies goes on to the other queue. */
static void send_counts(struct heft_peer *peer)
{
    while (can_send(peer)) {
        struct heft_outqueue taken = {0};
        struct heft_outnote *note;
        struct heft_buf buf;
        uint32_t count = 0;

        (void)pthread_mutex_lock(&peer->lock);
        while (count < HEFT_WIRE_COUNTS_PER_FRAME && (note = pop(&peer->out_counts)) != NULL) {
            append(&taken, note);
            count++;
        }
        (void)pthread_mutex_unlock(&peer->lock);
        if (!count)
            return;
        heft_buf_init(&buf, HEFT_FRAME_NOTIFY_MAX_BYTES);
        heft_wire_put_counts(&buf, count);
        for (note = taken.first; note; note = note->next) {
            struct heft_wire_count entry = {.counter = note->counter, .transfers = 1};

            heft_wire_put_count(&buf, &entry);
        }
        heft_conn_send(&peer->conn, HEFT_FRAME_COUNT, 0, &buf);
        heft_buf_free(&buf);
        while ((note = pop(&taken)) != NULL)
            if ((note->xfer->tells & HEFT_TELL_NOTE) && !peer->conn.dead) {
                (void)pthread_mutex_lock(&peer->lock);
                append(&peer->out_notes, note);
                (void)pthread_mutex_unlock(&peer->lock);
            } else {
                tell(peer, note->xfer);
            }
    }
}

/* The next notification that there is credit for, taken out of the queue. */
static struct heft_outnote *next_note(struct heft_peer *peer)
{
    struct heft_outnote *note;

    (void)pthread_mutex_lock(&peer->lock);
    note = peer->out_notes.first;
    if (note) {
        uint64_t cost = note->size + HEFT_WIRE_NOTIFICATION_COST_BYTES;

        if (cost > peer->credit_bytes) {
            note = NULL;
        } else {
            peer->credit_bytes -= cost;
            peer->note_frames++;
            if (!note->xfer)
                peer->out_bytes -= cost;
            (void)pop(&peer->out_notes);
        }
    }
    (void)pthread_mutex_unlock(&peer->lock);
    return note;
}

static void send_notes(struct heft_peer *peer)
{
    struct heft_outnote *note;

    while (can_send(peer) && peer->conn.out_bytes < SOCKET_QUEUE_BYTES && (note = next_note(peer)) != NULL) {
        struct heft_buf buf;

        heft_buf_init(&buf, HEFT_FRAME_NOTIFY_MAX_BYTES);
        heft_wire_put_notify(&buf, note->data, note->size);
        heft_conn_send(&peer->conn, HEFT_FRAME_NOTIFY, 0, &buf);
        heft_buf_free(&buf);
        HEFT_COUNT(peer->agent, notifications_sent, 1);
        if (note->xfer)
            tell(peer, note->xfer);
        else
            free(note);
    }
}

void heft_outbox_pump(struct heft_peer *peer)
{
    if (!peer->conn_live)
        return;
    heft_conn_enter(&peer->conn);
    send_counts(peer);
    send_notes(peer);
    heft_conn_leave(&peer->conn);
}

void heft_outbox_job(struct heft_job *job, struct heft_worker *worker)
{
    struct heft_peer *peer = HEFT_CONTAINER_OF(job, struct heft_peer, outbox_job);

    (void)worker;
    (void)pthread_mutex_lock(&peer->lock);
    peer->outbox_queued = 0;
    (void)pthread_mutex_unlock(&peer->lock);
    heft_outbox_pump(peer);
    heft_peer_unref(peer);
}

void heft_outbox_credit(struct heft_peer *peer, const struct heft_frame *frame, const uint8_t *payload)
{
    struct heft_wire_credit credit;
    int bad;

    bad = heft_wire_get_credit(payload, frame->payload_bytes, &credit) != 0;
    if (!bad) {
        (void)pthread_mutex_lock(&peer->lock);
        bad = __builtin_add_overflow(peer->credit_bytes, credit.bytes, &credit.bytes);
        if (!bad) {
            peer->credit_bytes = credit.bytes;
            peer->notification_largest_bytes = credit.largest_bytes;
            peer->credit_known = 1;
        }
        (void)pthread_mutex_unlock(&peer->lock);
    }
    if (bad)
        heft_conn_fail(&peer->conn, HEFT_ERR_PROTOCOL, "a malformed CREDIT");
    else
        heft_outbox_pump(peer);
}

void heft_outbox_ring(struct heft_peer *peer, const struct heft_frame *frame, const uint8_t *payload)
{
    struct heft_conn_fds *batch = heft_conn_take_fds(&peer->conn, HEFT_RING_FDS);
    struct heft_wire_ring told;
    struct heft_ring ring;

    /* Without it everything goes by frames: some descriptors were lost, say, or its layout is newer. */
    if (batch && !heft_wire_get_ring(payload, frame->payload_bytes, &told)) {
        batch->count = 0; /* taken over */
        if (!heft_ring_open(told.layout, told.cells, batch->fds, &ring)) {
            (void)pthread_mutex_lock(&peer->lock);
            if (peer->ring.shared || peer->closing)
                heft_ring_close(&ring);
            else
                peer->ring = ring;
            (void)pthread_mutex_unlock(&peer->lock);
        }
    }
    heft_conn_fds_free(batch);
}

void heft_outbox_wake(struct heft_peer *peer, const struct heft_frame *frame, const uint8_t *payload)
{
    struct heft_conn_fds *batch = heft_conn_take_fds(&peer->conn, 1);
    uint32_t serial;
    int own = -1;

    if (batch && !heft_wire_get_wake(payload, frame->payload_bytes, &serial))
        own = heft_ring_own_pipe(batch->fds[0]);
    if (own >= 0) {
        (void)pthread_mutex_lock(&peer->lock);
        if (peer->ring.shared)
            heft_ring_set_wake(&peer->ring, serial, own);
        else
            (void)close(own);
        (void)pthread_mutex_unlock(&peer->lock);
    }
    heft_conn_fds_free(batch);
}

/* ---- the end ---- */

static struct heft_outnote *pop_any(struct heft_peer *peer)
{
    struct heft_outnote *note;

    (void)pthread_mutex_lock(&peer->lock);
    note = pop(&peer->out_counts);
    if (!note)
        note = pop(&peer->out_notes);
    if (note && !note->xfer)
        peer->out_bytes -= note->size + HEFT_WIRE_NOTIFICATION_COST_BYTES;
    (void)pthread_mutex_unlock(&peer->lock);
    return note;
}

void heft_outbox_fail(struct heft_peer *peer)
{
    struct heft_outnote *note;

    while ((note = pop_any(peer)) != NULL)
        if (note->xfer)
            heft_xfer_told(note->xfer, peer->status, &peer->error);
        else
            free(note);
}

void heft_outbox_clear(struct heft_peer *peer)
{
    struct heft_outnote *note;

    while ((note = pop_any(peer)) != NULL) {
        HEFT_ASSERT(!note->xfer); /* a transfer that waits here is active, and its peer not closed */
        free(note);
    }
}
