/* SPDX-License-Identifier: Apache-2.0 */
/* Running transfers: post, completion, cancel, waiting. */
#include "agent/xfer.h"
#include "agent/event.h"

#include "base/clock.h"
#include "base/error.h"

#include <stdio.h>
#include <string.h>

/* The transfer whose callback runs on this thread: it may wait for that one without waiting for itself. */
static __thread struct heft_xfer *in_callback;

#define BRIEF_BYTES 4096u /* moved under the peer's lock */

/* ---- pins ---- */

/* All that a post uses: those of the runs, and where a word is raised. */
static size_t region_count(const struct heft_xfer *xfer)
{
    return xfer->region_count + (xfer->raise_region != NULL);
}

static struct heft_region *region_at(const struct heft_xfer *xfer, size_t index)
{
    return index < xfer->region_count ? xfer->regions[index] : xfer->raise_region;
}

/* All regions of the transfer, or none. */
static int pin_regions(struct heft_xfer *xfer, struct heft_error *error)
{
    struct heft_agent *agent = xfer->agent;
    uint64_t gone_id = 0;
    size_t index;
    int is_own = 0;

    (void)pthread_mutex_lock(&agent->region_lock);
    for (index = 0; index < region_count(xfer); index++) {
        struct heft_region *region = region_at(xfer, index);

        if (region->state != HEFT_REGION_LIVE) {
            gone_id = region->t.id;
            is_own = !region->peer;
            while (index > 0)
                heft_region_unpin_locked(region_at(xfer, --index));
            break;
        }
        region->pins++;
    }
    (void)pthread_mutex_unlock(&agent->region_lock);
    if (!gone_id)
        return 0;
    return heft_error_set(error, HEFT_ERR_STALE, "%s region %llu of this transfer was withdrawn",
                          is_own ? "the local" : "the peer's", (unsigned long long)gone_id);
}

static void unpin_regions(struct heft_xfer *xfer)
{
    size_t index;

    (void)pthread_mutex_lock(&xfer->agent->region_lock);
    for (index = 0; index < region_count(xfer); index++)
        heft_region_unpin_locked(region_at(xfer, index));
    (void)pthread_mutex_unlock(&xfer->agent->region_lock);
}

/* Whether the route can't wait for work on a GPU, and would have to. */
static int breaks_order(const struct heft_xfer *xfer)
{
    return (xfer->options.after_event || xfer->raise_region ||
            (xfer->options.flags & HEFT_XFER_AFTER_STREAM)) &&
           !(xfer->agent->transports[xfer->slot->index].ops.flags & HEFT_TRANSPORT_ORDERS);
}

/* A hold on the peer and on the endpoint. */
static int enter_peer(struct heft_xfer *xfer, struct heft_endpoint **endpoint_out, struct heft_error *error)
{
    struct heft_peer *peer = xfer->peer;
    struct heft_slot *slot = xfer->slot;
    int rc = 0;

    *endpoint_out = NULL;
    (void)pthread_mutex_lock(&peer->lock);
    if (peer->status) {
        rc = peer->status;
        if (error)
            *error = peer->error;
    } else if (peer->closing) {
        rc = heft_error_set(error, HEFT_ERR_PEER_LOST, "the peer '%s' was closed", peer->name);
    } else if (!xfer->move_count && xfer->raise_region) {
        rc = heft_error_set(error, HEFT_ERR_INVALID, "a transfer without bytes raises no word");
    } else if (xfer->move_count) {
        if (!slot)
            rc = heft_error_set(error, HEFT_ERR_UNSUPPORTED, "no route was found for these runs");
        else if (!slot->endpoint)
            rc = heft_error_set(error, HEFT_ERR_UNAVAILABLE,
                                "%s is not connected to '%s' any more: create a transfer to connect again",
                                xfer->agent->transports[slot->index].ops.name, peer->name);
        else if (breaks_order(xfer))
            rc = heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                                "%s moves these bytes and neither waits for work on a GPU nor raises words "
                                "there: wait for it before the post, and name no event, stream or word",
                                xfer->agent->transports[slot->index].ops.name);
        else
            slot->users++;
    }
    if (!rc) {
        peer->active++;
        *endpoint_out = xfer->move_count ? slot->endpoint : NULL;
    }
    (void)pthread_mutex_unlock(&peer->lock);
    return rc;
}

/* What hints that the endpoint no longer works, though the peer lives. Some transports mend themselves, so it
 * still gets operations; the next transfer that is created replaces it if nothing uses it. */
static int breaks_endpoint(int status)
{
    return status == HEFT_ERR_PEER_LOST || status == HEFT_ERR_UNAVAILABLE || status == HEFT_ERR_PROTOCOL;
}

static void leave_peer(struct heft_xfer *xfer, int status)
{
    struct heft_peer *peer = xfer->peer;
    struct heft_agent *agent = peer->agent;
    int wants_free;

    (void)pthread_mutex_lock(&peer->lock);
    if (xfer->move_count) {
        HEFT_ASSERT(xfer->slot->users > 0);
        xfer->slot->users--;
        if (breaks_endpoint(status) || status == 0)
            xfer->slot->broken = status != 0;
    }
    wants_free = --peer->active == 0 && peer->status && !peer->is_self;
    (void)pthread_mutex_unlock(&peer->lock);
    if (!wants_free)
        return;
    (void)pthread_mutex_lock(&agent->region_lock);
    wants_free = !peer->free_queued;
    peer->free_queued = 1;
    (void)pthread_mutex_unlock(&agent->region_lock);
    if (wants_free) {
        heft_peer_ref(peer);
        heft_worker_submit(agent->control, &peer->free_job);
    }
}

/* ---- the end ---- */

static void set_result(struct heft_xfer *xfer)
{
    struct heft_xfer_result *result = &xfer->result;
    struct heft_peer *peer = xfer->peer;
    uint64_t bytes = __atomic_load_n(&xfer->op.done_bytes, __ATOMIC_RELAXED);
    int status = xfer->done_status;
    struct heft_error *error = &result->error;
    char who[HEFT_PEER_TEXT_BYTES];

    error->code = 0;
    if (status)
        *error = xfer->done_error;
    else
        error->text[0] = 0;
    if (status == 0 && bytes != xfer->total_bytes)
        status =
            heft_error_set(error, HEFT_ERR_INTERNAL, "the transport says done, but counts %llu of %llu bytes",
                           (unsigned long long)bytes, (unsigned long long)xfer->total_bytes);
    else if (status && xfer->cancel_code && !__atomic_load_n(&peer->status, __ATOMIC_ACQUIRE))
        status =
            heft_error_set(error, xfer->cancel_code, "%s; %llu of %llu bytes had arrived", xfer->cancel_text,
                           (unsigned long long)bytes, (unsigned long long)xfer->total_bytes);
    error->code = status;
    if (status && !peer->is_self)
        (void)heft_error_prefix(error, status, "transfer with %s over %s",
                                heft_peer_text(peer, who, sizeof(who)), result->transport);
    result->status = status;
    result->bytes = bytes;
    result->end_ns = heft_now_ns();
    result->failed_run = -1;
    if (status && xfer->op.failed_move >= 0 && (uint64_t)xfer->op.failed_move < xfer->move_count)
        result->failed_run = (int64_t)xfer->run_of_move[xfer->op.failed_move];
}

/* active_lock held: no atomic addition is needed. */
static void count_end(struct heft_xfer *xfer)
{
    struct heft_stats_route *stats = heft_xfer_stats(xfer);
    const struct heft_xfer_result *result = &xfer->result;
    int is_read = xfer->kind == HEFT_OP_READ;

    heft_stats_add_locked(is_read ? &stats->bytes_read : &stats->bytes_written, result->bytes);
    if (result->status) {
        heft_stats_add_locked(&stats->failed, 1);
        heft_stats_add_locked(&stats->errors[heft_stats_error_index(result->status)], 1);
    } else {
        heft_estimate_note(xfer);
        heft_stats_add_locked(&stats->descriptors, xfer->descriptor_count);
        heft_stats_record_locked(is_read ? &stats->read_ns : &stats->write_ns,
                                 result->end_ns - result->start_ns);
    }
}

static void unlist(struct heft_xfer *xfer, int ended)
{
    struct heft_agent *agent = xfer->agent;

    (void)pthread_mutex_lock(&agent->active_lock);
    if (ended)
        count_end(xfer);
    if (xfer->prev)
        xfer->prev->next = xfer->next;
    else
        agent->active_first = xfer->next;
    if (xfer->next)
        xfer->next->prev = xfer->prev;
    xfer->prev = xfer->next = NULL;
    (void)pthread_mutex_unlock(&agent->active_lock);
}

static void not_busy(struct heft_xfer *xfer)
{
    (void)__atomic_sub_fetch(&xfer->agent->busy, 1, __ATOMIC_ACQ_REL);
}

/* xfer->lock held. */
static void become_terminal(struct heft_xfer *xfer)
{
    __atomic_store_n(&xfer->ended_status, xfer->result.status, __ATOMIC_RELAXED);
    __atomic_store_n(&xfer->state, HEFT_XFER_TERMINAL, __ATOMIC_RELEASE);
}

/* The transfer becomes terminal and its callback runs, outside locks. Afterwards only this completion's own
 * reference keeps the transfer: the callback, or anybody else, may have posted or released it. */
static void run_callback(struct heft_xfer *xfer)
{
    struct heft_xfer *outer = in_callback;
    struct heft_xfer_result result;

    (void)pthread_mutex_lock(&xfer->lock);
    become_terminal(xfer);
    xfer->callbacks++;
    result = xfer->result;
    heft_events_finished(xfer);
    (void)pthread_cond_broadcast(&xfer->cond);
    (void)pthread_mutex_unlock(&xfer->lock);
    in_callback = xfer;
    xfer->options.on_done(xfer, &result, xfer->options.context);
    in_callback = outer;
    not_busy(xfer);
    (void)pthread_mutex_lock(&xfer->lock);
    xfer->callbacks--;
    (void)pthread_cond_broadcast(&xfer->cond);
    (void)pthread_mutex_unlock(&xfer->lock);
    heft_events_wake_any(xfer->agent);
    heft_xfer_unref(xfer);
}

static void callback_job(struct heft_job *job, struct heft_worker *worker)
{
    (void)worker;
    run_callback(HEFT_CONTAINER_OF(job, struct heft_xfer, callback_job));
}

/* The result is there and nothing remains to be done or told. inline_ok: on a worker's stack with nothing of
 * this agent above it. */
static void finish(struct heft_xfer *xfer, int inline_ok)
{
    struct heft_worker *self = heft_worker_self();

    unlist(xfer, 1);
    unpin_regions(xfer);
    leave_peer(xfer, xfer->done_status);
    (void)__atomic_add_fetch(&xfer->refs, 1, __ATOMIC_RELAXED);
    if (xfer->options.on_done) {
        if (inline_ok && self && self != xfer->agent->control && self != xfer->agent->reaper) {
            run_callback(xfer);
        } else {
            xfer->callback_job.run = callback_job;
            heft_pool_submit(xfer->agent->pool, &xfer->callback_job);
        }
        return;
    }
    not_busy(xfer);
    (void)pthread_mutex_lock(&xfer->lock);
    become_terminal(xfer);
    heft_events_finished(xfer);
    (void)pthread_cond_broadcast(&xfer->cond);
    (void)pthread_mutex_unlock(&xfer->lock);
    heft_events_wake_any(xfer->agent);
    heft_xfer_unref(xfer);
}

static void count_whole(struct heft_xfer *xfer)
{
    (void)pthread_mutex_lock(&xfer->agent->active_lock);
    heft_stats_add_locked(&heft_xfer_stats(xfer)->begun, 1);
    count_end(xfer);
    (void)pthread_mutex_unlock(&xfer->agent->active_lock);
}

/* The last step of one without a callback that was never listed; with the lock, which is given back. */
static void end_quietly(struct heft_xfer *xfer)
{
    become_terminal(xfer);
    heft_events_finished(xfer);
    heft_events_wake_any(xfer->agent);
    (void)pthread_mutex_unlock(&xfer->lock); /* and whoever sees the end may release it */
}

/* As finish, for one that was never listed; with the lock, which is given back. */
static void end_now(struct heft_xfer *xfer)
{
    unpin_regions(xfer);
    leave_peer(xfer, xfer->done_status);
    count_whole(xfer);
    if (xfer->options.on_done) {
        (void)__atomic_add_fetch(&xfer->refs, 1, __ATOMIC_RELAXED);
        (void)pthread_mutex_unlock(&xfer->lock);
        xfer->callback_job.run = callback_job;
        heft_pool_submit(xfer->agent->pool, &xfer->callback_job);
        return;
    }
    not_busy(xfer);
    end_quietly(xfer);
}

/* All bytes arrived, but the peer could not be told. xfer->lock held. */
static void set_untold(struct heft_xfer *xfer, int status, const char *why)
{
    char who[HEFT_PEER_TEXT_BYTES];

    (void)heft_error_set(&xfer->result.error, status,
                         "%s: %s; all %llu bytes of the transfer had arrived, but this could not be told",
                         heft_peer_text(xfer->peer, who, sizeof(who)), why,
                         (unsigned long long)xfer->total_bytes);
    xfer->result.status = status;
}

void heft_xfer_told(struct heft_xfer *xfer, int status, const struct heft_error *error)
{
    (void)pthread_mutex_lock(&xfer->lock);
    HEFT_ASSERT(xfer->telling);
    xfer->telling = 0;
    if (status)
        set_untold(xfer, status, error->text);
    xfer->result.end_ns = heft_now_ns();
    (void)pthread_mutex_unlock(&xfer->lock);
    finish(xfer, 0);
}

/* Once for each post that was taken. */
static void complete(struct heft_xfer *xfer, int inline_ok)
{
    struct heft_error error = HEFT_ERROR_INIT;
    int rc;

    (void)pthread_mutex_lock(&xfer->lock);
    set_result(xfer);
    if (xfer->tells && !xfer->result.status) {
        xfer->telling = 1;
        rc = heft_outbox_add_xfer(xfer, &error);
        if (!rc) { /* from here on the control worker may end it at any moment */
            (void)pthread_mutex_unlock(&xfer->lock);
            return;
        }
        xfer->telling = 0;
        if (rc < 0)
            set_untold(xfer, rc, error.text);
    }
    (void)pthread_mutex_unlock(&xfer->lock);
    finish(xfer, inline_ok);
}

static void op_done(struct heft_transport_op *op, int status, const struct heft_error *error)
{
    struct heft_xfer *xfer = HEFT_CONTAINER_OF(op, struct heft_xfer, op);
    int last;

    (void)pthread_mutex_lock(&xfer->lock);
    HEFT_ASSERT(xfer->state == HEFT_XFER_ACTIVE && !xfer->done);
    xfer->done = 1;
    xfer->done_status = status;
    xfer->done_error.code = status;
    if (status && error && error->text[0])
        xfer->done_error = *error;
    else
        (void)snprintf(xfer->done_error.text, sizeof(xfer->done_error.text), "%s", heft_error_text(status));
    last = xfer->holds == 0;
    (void)pthread_mutex_unlock(&xfer->lock);
    if (last)
        complete(xfer, 1);
}

/* A call into the transport has returned. */
static void drop_hold(struct heft_xfer *xfer)
{
    int last;

    (void)pthread_mutex_lock(&xfer->lock);
    last = --xfer->holds == 0 && xfer->done;
    (void)pthread_mutex_unlock(&xfer->lock);
    if (last)
        complete(xfer, 0);
}

/* ---- post ---- */

/* The operation as a transport gets it, and the result as it is until the end. */
static void begin(struct heft_xfer *xfer)
{
    struct heft_agent *agent = xfer->agent;
    struct heft_xfer_result *result = &xfer->result;

    if (xfer->slot && xfer->slot->index != xfer->kept_by)
        heft_xfer_forget(xfer);
    xfer->kept_by = xfer->slot ? xfer->slot->index : 0;
    xfer->op = (struct heft_transport_op){.kind = xfer->kind,
                                          .moves = xfer->moves,
                                          .move_count = xfer->move_count,
                                          .total_bytes = xfer->total_bytes,
                                          .flags = xfer->options.flags,
                                          .failed_move = -1,
                                          .done = op_done,
                                          .kept = &xfer->kept,
                                          .moves_id = xfer->moves_id,
                                          .after_event = xfer->options.after_event,
                                          .after_stream = xfer->options.after_stream};
    if (xfer->raise_region) {
        xfer->op.raise_region = &xfer->raise_region->t;
        xfer->op.raise_offset_bytes = xfer->options.raise_offset_bytes;
        xfer->op.raise_value = xfer->raise_value;
        xfer->raise_value += xfer->options.raise_step;
    }
    result->size = sizeof(*result);
    result->status = HEFT_ERR_AGAIN;
    result->bytes = 0;
    result->start_ns = heft_now_ns();
    result->end_ns = 0;
    result->transport = xfer->slot ? agent->transports[xfer->slot->index].ops.name : "";
    result->failed_run = -1;
    result->error.code = 0;
    result->error.text[0] = 0;
    result->reason = xfer->route_reason;
    xfer->done = xfer->telling = xfer->cancel_code = 0;
}

/* From here on its deadlines run. */
static void enlist(struct heft_xfer *xfer)
{
    struct heft_agent *agent = xfer->agent;
    const uint64_t most_ms = UINT64_C(1) << 40;
    uint64_t deadline_ms = xfer->options.deadline_ms < most_ms ? xfer->options.deadline_ms : most_ms;
    uint64_t stall_ms = xfer->options.stall_ms < most_ms ? xfer->options.stall_ms : most_ms;

    (void)pthread_mutex_lock(&agent->active_lock);
    heft_stats_add_locked(&heft_xfer_stats(xfer)->begun, 1);
    xfer->start_ns = xfer->last_progress_ns = xfer->result.start_ns;
    xfer->deadline_ns = xfer->start_ns + deadline_ms * HEFT_NS_PER_MS;
    xfer->stall_ns = stall_ms * HEFT_NS_PER_MS;
    xfer->last_bytes = 0;
    xfer->expiring = 0;
    xfer->prev = NULL;
    xfer->next = agent->active_first;
    if (xfer->next)
        xfer->next->prev = xfer;
    agent->active_first = xfer;
    heft_monitor_watch(xfer);
    (void)pthread_mutex_unlock(&agent->active_lock);
}

/* The transport refused: as if it had never been posted, except that the result tells why. */
static void undo(struct heft_xfer *xfer, int status, const struct heft_error *error)
{
    struct heft_stats_route *stats = heft_xfer_stats(xfer);

    unlist(xfer, 0);
    (void)pthread_mutex_lock(&xfer->agent->active_lock);
    heft_stats_add_locked(&stats->refused, 1);
    heft_stats_add_locked(&stats->errors[heft_stats_error_index(status)], 1);
    (void)pthread_mutex_unlock(&xfer->agent->active_lock);
    unpin_regions(xfer);
    leave_peer(xfer, status);
    not_busy(xfer);
    (void)pthread_mutex_lock(&xfer->lock);
    xfer->posting = 0;
    xfer->holds--;
    xfer->result.status = status;
    xfer->result.error = *error;
    xfer->result.end_ns = heft_now_ns();
    become_terminal(xfer);
    (void)pthread_cond_broadcast(&xfer->cond);
    (void)pthread_mutex_unlock(&xfer->lock);
}

/* The transport has it; a cancel that came meanwhile is passed on now. */
static void after_post(struct heft_xfer *xfer, struct heft_endpoint *endpoint)
{
    int cancel;

    (void)pthread_mutex_lock(&xfer->lock);
    xfer->posting = 0;
    cancel = xfer->cancel_code && !xfer->done;
    (void)pthread_mutex_unlock(&xfer->lock);
    if (cancel)
        xfer->agent->transports[xfer->slot->index].ops.cancel(endpoint, &xfer->op);
    drop_hold(xfer);
}

/* The transport has moved all, or says why not. */
static void set_done(struct heft_xfer *xfer, int status)
{
    struct heft_error *error = &xfer->done_error;

    xfer->done = 1;
    xfer->done_status = status;
    if (status && !error->text[0])
        (void)snprintf(error->text, sizeof(error->text), "%s", heft_error_text(status));
}

static int is_brief(const struct heft_xfer *xfer)
{
    const struct heft_move *move = xfer->moves;

    if (xfer->options.on_done || xfer->move_count > 1)
        return 0;
    return !xfer->move_count ||
           ((xfer->options.flags & HEFT_XFER_INLINE) && xfer->total_bytes <= BRIEF_BYTES &&
            move->count == 1 && move->local->space == HEFT_SPACE_HOST &&
            move->remote->space == HEFT_SPACE_HOST);
}

/* AGAIN: a region is not to be had at once, or the transport would not. peer->lock held; in place of pins,
 * region_lock keeps the regions, but is not waited for inside the other lock. */
static int move_briefly(struct heft_xfer *xfer)
{
    struct heft_agent *agent = xfer->agent;
    int status = 0;
    size_t index;

    if (!xfer->move_count)
        return 0;
    if (pthread_mutex_trylock(&agent->region_lock))
        return HEFT_ERR_AGAIN;
    for (index = 0; index < xfer->region_count; index++)
        if (xfer->regions[index]->state != HEFT_REGION_LIVE)
            status = HEFT_ERR_AGAIN;
    if (!status)
        status =
            agent->transports[xfer->slot->index].ops.move(xfer->slot->endpoint, &xfer->op, &xfer->done_error);
    (void)pthread_mutex_unlock(&agent->region_lock);
    return status;
}

/*
 * The briefest way, for one small piece of host memory: everything from the first check until the peer was
 * told happens under the peer's lock, so nothing has to be held, counted as active, or let go of. 1: it was
 * posted, and xfer->lock given back. 0: not so; the other ways find out why.
 */
static int post_briefly(struct heft_xfer *xfer)
{
    struct heft_peer *peer = xfer->peer;
    struct heft_slot *slot = xfer->move_count ? xfer->slot : NULL;
    int status = HEFT_ERR_AGAIN;

    begin(xfer);
    xfer->done_error.code = 0;
    xfer->done_error.text[0] = 0;
    (void)pthread_mutex_lock(&peer->lock);
    if (!peer->status && !peer->closing && (!xfer->move_count || (slot && slot->endpoint)) &&
        (!xfer->tells || heft_outbox_has_room(xfer)))
        status = move_briefly(xfer);
    if (status == HEFT_ERR_AGAIN) {
        (void)pthread_mutex_unlock(&peer->lock);
        return 0;
    }
    set_done(xfer, status);
    if (xfer->tells && !status &&
        __atomic_load_n(&xfer->op.done_bytes, __ATOMIC_RELAXED) == xfer->total_bytes)
        heft_outbox_tell(xfer);
    if (slot && (breaks_endpoint(status) || status == 0))
        slot->broken = status != 0;
    (void)pthread_mutex_unlock(&peer->lock);
    set_result(xfer);
    count_whole(xfer);
    heft_events_forget(xfer);
    end_quietly(xfer);
    return 1;
}

/*
 * The short way: the transport moves the bytes in this thread, the peer is told through its ring, and the
 * transfer was never listed as active. Everybody else who wants it waits for its lock meanwhile, which is not
 * for long: transports take only small operations. 1: it was posted, and the lock given back. 0: the
 * transport would not.
 */
static int post_now(struct heft_xfer *xfer, struct heft_endpoint *endpoint)
{
    struct heft_error *error = &xfer->done_error;
    int status = 0;

    error->code = 0;
    error->text[0] = 0;
    if (xfer->move_count)
        status = xfer->agent->transports[xfer->slot->index].ops.move(endpoint, &xfer->op, error);
    if (status == HEFT_ERR_AGAIN)
        return 0;
    set_done(xfer, status);
    set_result(xfer);
    if (xfer->tells && !xfer->result.status) {
        struct heft_error untold;
        int told;

        xfer->telling = 1;
        told = heft_outbox_add_xfer(xfer, &untold);
        if (!told) { /* it waits for room; nobody ends it before the lock is given back */
            enlist(xfer);
            (void)pthread_mutex_unlock(&xfer->lock);
            return 1;
        }
        xfer->telling = 0;
        if (told < 0)
            set_untold(xfer, told, untold.text);
    }
    end_now(xfer);
    return 1;
}

int heft_xfer_post(struct heft_xfer *xfer, struct heft_error *error)
{
    struct heft_error failure;
    struct heft_endpoint *endpoint;
    char who[HEFT_PEER_TEXT_BYTES];
    int rc;

    if (heft_agent_forked(xfer->agent))
        return heft_process_refuse(xfer->agent, error);
    (void)pthread_mutex_lock(&xfer->lock);
    if (xfer->state == HEFT_XFER_ACTIVE) {
        (void)pthread_mutex_unlock(&xfer->lock);
        return heft_error_set(error, HEFT_ERR_STATE, "the transfer is active already");
    }
    if (is_brief(xfer) && post_briefly(xfer))
        return 0;
    rc = enter_peer(xfer, &endpoint, error);
    if (!rc) {
        rc = pin_regions(xfer, error);
        if (rc)
            leave_peer(xfer, rc);
    }
    if (rc) {
        (void)pthread_mutex_unlock(&xfer->lock);
        return rc;
    }
    heft_events_forget(xfer);
    __atomic_store_n(&xfer->state, HEFT_XFER_ACTIVE, __ATOMIC_RELEASE);
    begin(xfer);
    xfer->op.id = __atomic_add_fetch(&xfer->agent->next_xfer_id, 1, __ATOMIC_RELAXED);
    (void)__atomic_add_fetch(&xfer->agent->busy, 1, __ATOMIC_ACQ_REL);
    if (((xfer->options.flags & HEFT_XFER_INLINE) || !xfer->move_count) && post_now(xfer, endpoint))
        return 0;
    xfer->posting = 1;
    xfer->holds = 1;
    enlist(xfer);
    (void)pthread_mutex_unlock(&xfer->lock);

    failure.code = 0;
    failure.text[0] = 0;
    rc = xfer->agent->transports[xfer->slot->index].ops.post(endpoint, &xfer->op, &failure);
    if (!rc) {
        after_post(xfer, endpoint);
        return 0;
    }
    if (!failure.code)
        (void)heft_error_set(&failure, rc, "%s", heft_error_text(rc));
    if (!xfer->peer->is_self)
        (void)heft_error_prefix(&failure, rc, "transfer with %s over %s",
                                heft_peer_text(xfer->peer, who, sizeof(who)), xfer->result.transport);
    failure.code = rc;
    undo(xfer, rc, &failure);
    if (error)
        *error = failure;
    return rc;
}

/* ---- cancel ---- */

void heft_xfer_end_early(struct heft_xfer *xfer, uint64_t op_id, int code, const char *text)
{
    struct heft_slot *slot;
    struct heft_endpoint *endpoint;

    (void)pthread_mutex_lock(&xfer->lock);
    if (xfer->state == HEFT_XFER_ACTIVE && xfer->telling && (!op_id || op_id == xfer->op.id) &&
        heft_outbox_remove(xfer)) {
        xfer->telling = 0;
        set_untold(xfer, code, text);
        xfer->result.end_ns = heft_now_ns();
        (void)pthread_mutex_unlock(&xfer->lock);
        finish(xfer, 0);
        return;
    }
    if (xfer->state != HEFT_XFER_ACTIVE || xfer->done || xfer->cancel_code ||
        (op_id && op_id != xfer->op.id)) {
        (void)pthread_mutex_unlock(&xfer->lock);
        return;
    }
    xfer->cancel_code = code;
    (void)snprintf(xfer->cancel_text, sizeof(xfer->cancel_text), "%s", text);
    __atomic_store_n(&xfer->op.cancel_wanted, 1, __ATOMIC_RELEASE);
    if (xfer->posting) { /* after_post passes it on */
        (void)pthread_mutex_unlock(&xfer->lock);
        return;
    }
    xfer->holds++;
    slot = xfer->slot;
    (void)pthread_mutex_unlock(&xfer->lock);
    endpoint = heft_slot_hold(slot); /* there: the operation itself is a user */
    xfer->agent->transports[slot->index].ops.cancel(endpoint, &xfer->op);
    heft_slot_release(slot);
    drop_hold(xfer);
}

int heft_xfer_cancel(struct heft_xfer *xfer)
{
    if (heft_agent_forked(xfer->agent))
        return HEFT_ERR_STATE;
    heft_xfer_end_early(xfer, 0, HEFT_ERR_CANCELED, "canceled by the caller");
    return 0;
}

/* ---- waiting ---- */

/* lock held. */
static int status_of(const struct heft_xfer *xfer)
{
    if (xfer->state == HEFT_XFER_ACTIVE)
        return HEFT_ERR_AGAIN;
    return xfer->state == HEFT_XFER_IDLE ? HEFT_ERR_STATE : xfer->result.status;
}

int heft_xfer_poll(struct heft_xfer *xfer)
{
    enum heft_xfer_state state;

    if (heft_agent_forked(xfer->agent))
        return HEFT_ERR_STATE;
    /* Without the lock: who looks again and again must not hold up whoever ends it. */
    state = __atomic_load_n(&xfer->state, __ATOMIC_ACQUIRE);
    if (state == HEFT_XFER_TERMINAL)
        return __atomic_load_n(&xfer->ended_status, __ATOMIC_RELAXED);
    return state == HEFT_XFER_ACTIVE ? HEFT_ERR_AGAIN : HEFT_ERR_STATE;
}

int heft_xfer_look(struct heft_xfer *xfer)
{
    int status;

    (void)pthread_mutex_lock(&xfer->lock);
    status = xfer->callbacks && in_callback != xfer ? HEFT_ERR_AGAIN : status_of(xfer);
    (void)pthread_mutex_unlock(&xfer->lock);
    return status;
}

int heft_xfer_wait(struct heft_xfer *xfer, uint64_t timeout_ms)
{
    uint64_t until_ns = 0;
    int rc = 0, status;

    if (heft_agent_forked(xfer->agent))
        return HEFT_ERR_STATE;
    (void)pthread_mutex_lock(&xfer->lock);
    /* A running callback is waited for too, so that its context may be freed after a wait. */
    while ((xfer->state == HEFT_XFER_ACTIVE || (xfer->callbacks && in_callback != xfer)) && !rc) {
        if (!until_ns)
            until_ns = heft_deadline_after_ms(timeout_ms);
        rc = heft_agent_wait(xfer->agent, &xfer->cond, &xfer->lock, until_ns);
    }
    status = rc && xfer->callbacks && in_callback != xfer ? HEFT_ERR_AGAIN : status_of(xfer);
    (void)pthread_mutex_unlock(&xfer->lock);
    return status;
}

void heft_xfer_get_result(const struct heft_xfer *const_xfer, struct heft_xfer_result *result_out)
{
    struct heft_xfer *xfer = (struct heft_xfer *)(uintptr_t)const_xfer; /* its lock is taken */
    size_t size = result_out->size;
    struct heft_xfer_result result;

    (void)pthread_mutex_lock(&xfer->lock);
    result = xfer->result;
    result.status = status_of(xfer);
    if (xfer->state == HEFT_XFER_ACTIVE) {
        result.bytes = __atomic_load_n(&xfer->op.done_bytes, __ATOMIC_RELAXED);
        result.end_ns = 0;
        result.error = (struct heft_error)HEFT_ERROR_INIT; /* being written, perhaps */
        result.failed_run = -1;
    }
    (void)pthread_mutex_unlock(&xfer->lock);
    if (size < sizeof(size) || size > sizeof(result))
        size = sizeof(result);
    result.size = size;
    memcpy(result_out, &result, size);
}
