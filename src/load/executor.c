/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One lock guards who has which chunk; bytes and digests are handled outside it. A chunk is asked of one
 * source at a time, so that no two writers ever meet in the destination: a slow transfer is cancelled, and
 * drained, before its chunk goes to another source.
 */
#include "load/executor_internal.h"
#include "agent/peer.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "load/bounce.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_REPAIRS 3u /* broken streams of a peer that lives, before it counts as lost */

/* ---- choosing: all under the lock ---- */

static int others_cover(const struct heft_executor *executor, uint32_t but, uint64_t chunk)
{
    uint32_t index;

    for (index = 0; index < executor->lane_count; index++)
        if (index != but && heft_lane_is_live(&executor->lanes[index]) &&
            heft_executor_may_take(executor, index, chunk))
            return 1;
    return 0;
}

/* The chunk is another source's, rather. */
static int leave(struct heft_executor *executor, uint32_t source, uint64_t chunk, uint32_t but)
{
    int leaves = heft_executor_leaves(executor, source, chunk, but);

    executor->left_to_other |= leaves;
    return leaves;
}

/* One that came back: to anybody but who gave it back, if there is anybody. */
static uint64_t find_returned(struct heft_executor *executor, uint32_t source)
{
    uint64_t chunk, index;

    for (index = 0; index < executor->returned_count; index++) {
        struct returned *entry = &executor->returned[index];

        chunk = entry->chunk;
        if (!heft_executor_may_take(executor, source, chunk) ||
            (entry->from == source && others_cover(executor, source, chunk)) ||
            leave(executor, source, chunk, entry->from))
            continue;
        *entry = executor->returned[--executor->returned_count];
        return chunk;
    }
    return NO_CHUNK;
}

static uint64_t find_offered(struct heft_executor *executor, uint32_t source)
{
    struct lane *lane = &executor->lanes[source];

    for (; lane->queue_head < lane->queue_tail; lane->queue_head++) {
        uint64_t chunk = lane->queue[lane->queue_head];

        if (executor->states[chunk] == CHUNK_PENDING)
            return leave(executor, source, chunk, source) ? NO_CHUNK : chunk;
    }
    return NO_CHUNK;
}

static uint64_t find_pending(struct heft_executor *executor, uint32_t source)
{
    struct lane *lane = &executor->lanes[source];

    for (; lane->cursor < executor->options.plan->chunk_count; lane->cursor++)
        if (executor->states[lane->cursor] == CHUNK_PENDING &&
            heft_executor_covers(executor, source, lane->cursor))
            return leave(executor, source, lane->cursor, source) ? NO_CHUNK : lane->cursor;
    return NO_CHUNK;
}

/* Gives an idle slot its next chunk. 0: there is none for it. */
static int take_chunk(struct heft_executor *executor, struct slot *slot, uint64_t now)
{
    struct lane *lane = &executor->lanes[slot->source];
    uint64_t chunk;

    if (executor->stopping || !heft_lane_is_live(lane))
        return 0;
    chunk = find_returned(executor, slot->source);
    if (chunk == NO_CHUNK)
        chunk = lane->gated ? find_offered(executor, slot->source) : find_pending(executor, slot->source);
    if (chunk == NO_CHUNK)
        return 0;
    executor->states[chunk] = CHUNK_FLYING;
    slot->chunk = chunk;
    slot->state = SLOT_FLYING;
    slot->posted_ns = now;
    slot->seen_bytes = 0;
    executor->active++;
    lane->held++;
    if (!lane->was_busy) { /* its time counts from here */
        lane->was_busy = 1;
        lane->sampled_ns = now;
    }
    lane->held_bytes += executor->options.plan->chunks[chunk].size_bytes;
    return 1;
}

/* The slot's transfer is over. */
static void land(struct heft_executor *executor, struct slot *slot)
{
    struct lane *lane = &executor->lanes[slot->source];

    executor->active--;
    lane->held--;
    lane->held_bytes -= executor->options.plan->chunks[slot->chunk].size_bytes;
    lane->seen_bytes -= slot->seen_bytes;
    slot->seen_bytes = 0;
    slot->stealing = 0;
}

static void give_back(struct heft_executor *executor, struct slot *slot)
{
    /* Not PENDING: cursors have passed it, and `returned` alone may hand it out. */
    executor->states[slot->chunk] = CHUNK_FLYING;
    executor->returned[executor->returned_count++] = (struct returned){slot->chunk, slot->source};
    slot->chunk = NO_CHUNK;
}

static int goes_on(const struct heft_executor *executor)
{
    uint32_t index;

    for (index = 0; index < executor->lane_count; index++)
        if (heft_lane_is_live(&executor->lanes[index]))
            return 1;
    return 0;
}

void heft_executor_lose_source(struct heft_executor *executor, uint32_t index, int code, const char *text)
{
    struct heft_source *source = executor->lanes[index].source;

    if (source->state == HEFT_SOURCE_LOST)
        return;
    source->state = HEFT_SOURCE_LOST;
    if (executor->lanes[index].gated && !executor->options.keeps_gates)
        for (index = 0; index < executor->lane_count;
             index++) /* its feeder is gone: stand-ins go on without */
            executor->lanes[index].gated = 0;
    heft_error_set(&source->reason, code, "%s", text && text[0] ? text : heft_error_text(code));
    /* The last one's loss ends the load, whose error says the same. */
    heft_log(goes_on(executor) ? HEFT_LOG_WARN : HEFT_LOG_INFO, "source %s lost: %s: %s", source->name,
             heft_error_name(code), source->reason.text);
}

/* Ends the load when nothing flies, nothing is being repaired, and no live source can take what is left. */
void heft_executor_check_hopeless(struct heft_executor *executor)
{
    char reasons[HEFT_ERROR_TEXT_BYTES] = "";
    size_t used = 0;
    uint32_t index, slot;
    int code = executor->lane_count > 0 ? executor->lanes[0].source->reason.code : 0;

    if (executor->stopping || executor->left == 0 || executor->active > 0)
        return;
    for (index = 0; index < executor->lane_count; index++) {
        struct lane *lane = &executor->lanes[index];

        if (!heft_lane_is_live(lane))
            continue;
        for (slot = 0; slot < lane->source->credits; slot++)
            if (lane->slots[slot].state == SLOT_BROKEN)
                return;
        if (lane->gated ? lane->queue_tail < lane->covered || lane->queue_head < lane->queue_tail
                        : lane->cursor < executor->options.plan->chunk_count)
            return; /* it has not looked at all chunks yet */
        for (slot = 0; slot < executor->returned_count; slot++)
            if (heft_executor_may_take(executor, index, executor->returned[slot].chunk))
                return;
    }
    for (index = 0; index < executor->lane_count && used < sizeof(reasons) - 1; index++) {
        const struct heft_source *source = executor->lanes[index].source;
        int size =
            snprintf(reasons + used, sizeof(reasons) - used, "%s%s: %s", index ? "; " : "", source->name,
                     source->reason.text[0] ? source->reason.text : "does not hold the rest");

        used += size > 0 ? (size_t)size : 0;
        if (source->reason.code != code || (code != HEFT_ERR_REQUIRED && code != HEFT_ERR_DIGEST))
            code = HEFT_ERR_SOURCE_LOST;
    }
    executor->stopping = 1;
    heft_error_set(&executor->error, code, "no source is left for %" PRIu64 " of %" PRIu64 " chunks: %s",
                   executor->left, executor->options.plan->chunk_count, reasons);
}

/* ---- asking ---- */

int heft_lane_slot_fill_runs(struct slot *slot, enum leg leg, size_t *count_out)
{
    struct heft_executor *executor = slot->executor;
    const struct heft_source *source = executor->lanes[slot->source].source;
    size_t count, index;
    uint64_t packed = 0;

    for (;;) {
        count = heft_plan_runs(executor->options.plan, slot->chunk, slot->source, slot->plan_runs,
                               slot->run_capacity);
        if (count <= slot->run_capacity)
            break;
        free(slot->runs);
        free(slot->plan_runs);
        slot->runs = calloc(count, sizeof(*slot->runs));
        slot->plan_runs = calloc(count, sizeof(*slot->plan_runs));
        slot->run_capacity = slot->runs && slot->plan_runs ? count : 0;
        if (slot->run_capacity == 0)
            return HEFT_ERR_NO_MEMORY;
    }
    for (index = 0; index < count; index++) {
        const struct heft_plan_run *run = &slot->plan_runs[index];

        slot->runs[index] = (struct heft_run){
            .local_region = executor->options.destinations[run->dst_index],
            .local_offset_bytes = run->dst_offset_bytes,
            .remote_region = source->regions[run->source_file],
            .remote_offset_bytes = run->source_offset_bytes,
            .length_bytes = run->length_bytes,
            .count = run->count,
            .local_stride_bytes = run->dst_stride_bytes,
            .remote_stride_bytes = run->source_stride_bytes,
        };
        if (leg == LEG_TO_BOUNCE) {
            slot->runs[index].local_region = slot->bounce->region;
            slot->runs[index].local_offset_bytes = packed;
            slot->runs[index].local_stride_bytes = run->length_bytes;
        } else if (leg == LEG_FROM_BOUNCE) {
            slot->runs[index].remote_region = heft_region_id(slot->bounce->region);
            slot->runs[index].remote_offset_bytes = packed;
            slot->runs[index].remote_stride_bytes = run->length_bytes;
        }
        packed += run->length_bytes * run->count;
    }
    HEFT_ASSERT(leg == LEG_WHOLE || packed <= slot->bounce->size_bytes);
    *count_out = count;
    return HEFT_OK;
}

/* What ends a connection of a peer that may live on. */
static int breaks_stream(int status)
{
    return status == HEFT_ERR_PEER_LOST || status == HEFT_ERR_UNAVAILABLE || status == HEFT_ERR_PROTOCOL;
}

/*
 * The slot's transfer waited for the whole stall limit while other chunks of its source arrived: it stood
 * behind them. What a transport itself calls stalled ends sooner, and is.
 */
static int waited_behind(const struct heft_executor *executor, const struct slot *slot)
{
    const struct heft_source *source = executor->lanes[slot->source].source;
    uint64_t limit_ms = executor->options.stall_ms, now = heft_now_ns();

    if (source->kind == HEFT_SOURCE_OBJECTS)
        limit_ms *= HEFT_OBJECT_STALL_FACTOR;
    return source->last_ns && now < heft_after_ms(source->last_ns, limit_ms) &&
           now >= heft_after_ms(slot->posted_ns, limit_ms);
}

/* A transfer failed: which source is to blame, and does it go on? Under the lock. */
static void blame(struct heft_executor *executor, struct slot *slot, int status, const char *text)
{
    struct lane *lane = &executor->lanes[slot->source];

    lane->source->retries++;
    /* Only we cancel: to give the chunk to another source (a cancel may even hit the slot's next transfer).
     */
    if (executor->stopping || status == HEFT_ERR_CANCELED) {
        slot->state = SLOT_IDLE;
        return;
    }
    if (lane->source->peer && breaks_stream(status) && executor->maker_started &&
        heft_peer_status(lane->source->peer, NULL) == HEFT_OK &&
        lane->repairs < MAX_REPAIRS * lane->source->credits) {
        lane->repairs++;
        slot->state = SLOT_BROKEN; /* the maker makes its transfer anew: that may block */
        return;
    }
    slot->state = SLOT_IDLE;
    if (status == HEFT_ERR_STALLED && waited_behind(executor, slot))
        return;
    heft_executor_lose_source(executor, slot->source, status, text);
}

/* A flying slot's transfer could not be posted: the same consequences as if it had failed. */
static void post_failed(struct slot *slot, int code, const char *text)
{
    struct heft_executor *executor = slot->executor;

    (void)pthread_mutex_lock(&executor->lock);
    land(executor, slot);
    give_back(executor, slot);
    blame(executor, slot, code, text);
    heft_executor_check_hopeless(executor);
    (void)pthread_cond_broadcast(&executor->changed);
    (void)pthread_mutex_unlock(&executor->lock);
}

static int post_leg(struct slot *slot, enum leg leg, struct heft_error *error)
{
    struct heft_xfer *xfer = leg == LEG_TO_BOUNCE ? slot->bounce->in : slot->xfer;
    size_t count = 0;
    int rc = heft_lane_slot_fill_runs(slot, leg, &count);

    if (rc)
        return heft_error_set(error, rc, "preparing a chunk's runs");
    rc = heft_xfer_set_runs(xfer, slot->runs, count, error);
    return rc ? rc : heft_xfer_post(xfer, error);
}

/*
 * Posts the slot's chunk. A transport may finish a transfer inside post, and its callback posts the next: the
 * queue of the outermost call keeps that from becoming recursion.
 */
static void slot_post(struct slot *slot)
{
    static __thread struct slot *queue, **queue_end;
    static __thread int running;
    struct heft_error error = HEFT_ERROR_INIT;

    if (!running) {
        queue = NULL;
        queue_end = &queue;
    }
    slot->next_post = NULL;
    *queue_end = slot;
    queue_end = &slot->next_post;
    if (running)
        return;
    running = 1;
    while ((slot = queue) != NULL) {
        int rc;

        /* Out of the queue first: once posted, another thread may finish it and queue it again. */
        queue = slot->next_post;
        if (!queue)
            queue_end = &queue;
        rc = post_leg(slot, slot->bounce ? LEG_TO_BOUNCE : LEG_WHOLE, &error);
        if (rc)
            post_failed(slot, rc, error.text);
    }
    running = 0;
}

/* Gives idle slots what came back. At most so many at a time: each callback kicks again. */
void heft_executor_kick(struct heft_executor *executor)
{
    struct slot *found[64];
    uint32_t count, index, slot;

    do {
        uint64_t now = heft_now_ns();

        count = 0;
        (void)pthread_mutex_lock(&executor->lock);
        for (index = 0; index < executor->lane_count; index++) {
            struct lane *lane = &executor->lanes[index];

            for (slot = 0; slot < lane->source->credits && count < 64; slot++) {
                struct slot *candidate = &lane->slots[slot];

                if (candidate->state != SLOT_IDLE)
                    continue;
                if (!take_chunk(executor, candidate, now))
                    break;
                found[count++] = candidate;
            }
        }
        heft_executor_check_hopeless(executor);
        (void)pthread_cond_broadcast(&executor->changed);
        (void)pthread_mutex_unlock(&executor->lock);
        for (index = 0; index < count; index++)
            slot_post(found[index]);
    } while (count == 64);
}

/* ---- arrival ---- */

/* Digests of the blocks that a chunk completes. 0, or DIGEST with the place. */
static int verify_chunk(struct heft_executor *executor, uint64_t chunk, struct heft_error *error)
{
    const struct heft_executor_options *o = &executor->options;
    uint64_t verified = 0;
    int rc = o->verify_chunk ? o->verify_chunk(o, chunk, &verified, error)
                             : heft_host_verify_chunk(o, chunk, &verified, error);

    (void)__atomic_add_fetch(&executor->blocks_verified, verified, __ATOMIC_RELAXED);
    return rc;
}

static void count_arrival(struct lane *lane, const struct heft_xfer_result *result, uint64_t now)
{
    struct heft_source *source = lane->source;
    int index;

    if (source->state == HEFT_SOURCE_READY)
        source->state =
            HEFT_SOURCE_USED; /* never from LOST: its last chunks may still arrive, it gets no more */
    source->chunks++;
    source->bytes += result->bytes;
    source->last_ns = now;
    for (index = 0; index < HEFT_SOURCE_MAX_ROUTES; index++) {
        struct heft_source_route *route = &source->routes[index];

        if (route->transport && strcmp(route->transport, result->transport) != 0)
            continue;
        route->transport = result->transport;
        route->bytes += result->bytes;
        break;
    }
}

void heft_lane_slot_done(struct heft_xfer *xfer, const struct heft_xfer_result *result, void *context)
{
    struct slot *slot = context;
    struct heft_executor *executor = slot->executor;
    struct lane *lane = &executor->lanes[slot->source];
    struct heft_error error = result->error;
    struct heft_xfer_result whole;
    int status = result->status, go_on = 0, returned = 0, others;
    uint64_t now, done = NO_CHUNK;

    if (xfer == slot->xfer && slot->bounce && status == HEFT_OK) { /* the first leg says where it came from */
        whole = *result;
        whole.transport = slot->bounce->transport;
        whole.start_ns = slot->bounce->start_ns;
        result = &whole;
    }
    (void)__atomic_add_fetch(&executor->callbacks, 1, __ATOMIC_SEQ_CST);
    if (status == HEFT_OK && executor->options.verify)
        status = verify_chunk(executor, slot->chunk, &error);
    if (status == HEFT_OK && executor->options.check_chunk)
        status = executor->options.check_chunk(executor->options.check_chunk_context, slot->source,
                                               slot->chunk, &error);
    now = heft_now_ns();
    heft_trace_transfer(executor->options.trace, slot->source, (uint32_t)(slot - lane->slots), slot->chunk,
                        slot->posted_ns, result, status, now);

    (void)pthread_mutex_lock(&executor->lock);
    land(executor, slot);
    if (status == HEFT_OK) {
        lane->arrived_bytes += executor->options.plan->chunks[slot->chunk].size_bytes;
        count_arrival(lane, result, now);
        executor->states[slot->chunk] = CHUNK_DONE;
        executor->left--;
        (void)__atomic_add_fetch(&executor->bytes_done,
                                 executor->options.plan->chunks[slot->chunk].size_bytes, __ATOMIC_RELAXED);
        done = slot->chunk;
        slot->chunk = NO_CHUNK;
        slot->state = SLOT_IDLE;
    } else {
        if (status == HEFT_ERR_DIGEST)
            lane->source->digest_errors++;
        give_back(executor, slot);
        blame(executor, slot, status, error.text);
        returned = 1;
    }
    if (slot->state == SLOT_IDLE)
        go_on = take_chunk(executor, slot, now);
    others = executor->left_to_other; /* chunks that it left, and others that its end lets go on */
    executor->left_to_other = 0;
    if (returned)
        heft_executor_check_hopeless(executor);
    if (executor->active == 0 || returned || executor->left == 0)
        (void)pthread_cond_broadcast(&executor->changed);
    (void)pthread_mutex_unlock(&executor->lock);

    if (done != NO_CHUNK && executor->options.on_chunk)
        executor->options.on_chunk(executor->options.on_chunk_context, done);
    if (go_on)
        slot_post(slot);
    if (returned || others)
        heft_executor_kick(executor);
    (void)pthread_mutex_lock(&executor->lock);
    if (__atomic_sub_fetch(&executor->callbacks, 1, __ATOMIC_SEQ_CST) == 0)
        (void)pthread_cond_broadcast(&executor->changed);
    (void)pthread_mutex_unlock(&executor->lock);
}

/* A chunk has come half the way. Once its second leg is posted, nothing here is touched any more. */
void heft_lane_slot_bounced(struct heft_xfer *xfer, const struct heft_xfer_result *result, void *context)
{
    struct slot *slot = context;
    struct heft_xfer_result failed;

    if (result->status == HEFT_OK) {
        slot->bounce->transport = result->transport;
        slot->bounce->start_ns = result->start_ns;
        failed = *result;
        failed.status = post_leg(slot, LEG_FROM_BOUNCE, &failed.error);
        if (failed.status == HEFT_OK)
            return;
        result = &failed;
    }
    heft_lane_slot_done(xfer, result, slot);
}

/* ---- the waiting thread's work ---- */

static void cancel_slot(struct slot *slot)
{
    (void)heft_xfer_cancel(slot->xfer);
    if (slot->bounce)
        (void)heft_xfer_cancel(slot->bounce->in);
}

/* Looks how far the transfers are, and takes from a source what another one would be done with sooner. */
static void keep_pace(struct heft_executor *executor)
{
    struct slot *late[64];
    uint32_t count, index;

    (void)pthread_mutex_lock(&executor->transfers_lock);
    (void)pthread_mutex_lock(&executor->lock);
    heft_executor_sample(executor, heft_now_ns());
    (void)pthread_mutex_unlock(&executor->lock);
    (void)pthread_mutex_unlock(&executor->transfers_lock);
    heft_executor_kick(executor);
    (void)pthread_mutex_lock(&executor->transfers_lock);
    (void)pthread_mutex_lock(&executor->lock);
    count = heft_executor_pick_late(executor, late, 64);
    (void)pthread_mutex_unlock(&executor->lock);
    for (index = 0; index < count; index++)
        cancel_slot(late[index]);
    (void)pthread_mutex_unlock(&executor->transfers_lock);
}

static void cancel_flying(struct heft_executor *executor)
{
    uint32_t index, slot;

    (void)pthread_mutex_lock(&executor->transfers_lock);
    for (index = 0; index < executor->lane_count; index++)
        for (slot = 0; slot < executor->lanes[index].source->credits; slot++) {
            struct slot *each = &executor->lanes[index].slots[slot];
            int flying;

            (void)pthread_mutex_lock(&executor->lock);
            flying = each->state == SLOT_FLYING;
            (void)pthread_mutex_unlock(&executor->lock);
            if (flying)
                cancel_slot(each);
        }
    (void)pthread_mutex_unlock(&executor->transfers_lock);
}

int heft_executor_wait(struct heft_executor *executor, uint64_t timeout_ms, struct heft_error *error)
{
    uint64_t end_ns = heft_after_ms(heft_now_ns(), timeout_ms);
    int rc = HEFT_ERR_AGAIN, cancelled = 0;

    for (;;) {
        uint64_t now = heft_now_ns(),
                 tick = now + HEFT_EXECUTOR_TICK_NS < end_ns ? now + HEFT_EXECUTOR_TICK_NS : end_ns;
        struct timespec until = {(time_t)(tick / HEFT_NS_PER_S), (long)(tick % HEFT_NS_PER_S)};
        int quiet, stopping;

        (void)pthread_mutex_lock(&executor->lock);
        if (executor->left > 0 && !executor->stopping && !executor->news)
            (void)pthread_cond_clockwait(&executor->changed, &executor->lock, CLOCK_MONOTONIC, &until);
        else if (executor->active > 0 || __atomic_load_n(&executor->callbacks, __ATOMIC_SEQ_CST) > 0)
            (void)pthread_cond_clockwait(&executor->changed, &executor->lock, CLOCK_MONOTONIC, &until);
        executor->news = 0;
        stopping = executor->stopping;
        quiet = executor->active == 0 && __atomic_load_n(&executor->callbacks, __ATOMIC_SEQ_CST) == 0;
        if (quiet && executor->left == 0)
            rc = HEFT_OK;
        else if (quiet && stopping)
            rc = executor->error.code;
        if (rc != HEFT_ERR_AGAIN && rc != HEFT_OK && error)
            *error = executor->error;
        (void)pthread_mutex_unlock(&executor->lock);
        if (rc != HEFT_ERR_AGAIN || heft_now_ns() >= end_ns)
            return rc;
        if (stopping) {
            if (!cancelled)
                cancel_flying(executor);
            cancelled = 1;
            continue;
        }
        keep_pace(executor);
    }
}

void heft_executor_stop(struct heft_executor *executor, int code, const char *text)
{
    (void)pthread_mutex_lock(&executor->lock);
    if (!executor->stopping && executor->left > 0) {
        executor->stopping = 1;
        heft_error_set(&executor->error, code, "%s", text);
    }
    (void)pthread_cond_broadcast(&executor->changed);
    (void)pthread_mutex_unlock(&executor->lock);
}

void heft_executor_offer(struct heft_executor *executor, uint32_t source, uint64_t chunk)
{
    struct lane *lane = &executor->lanes[source];

    (void)pthread_mutex_lock(&executor->lock);
    if (lane->gated && !lane->offered[chunk] && heft_executor_covers(executor, source, chunk)) {
        lane->offered[chunk] = 1;
        lane->queue[lane->queue_tail++] = chunk;
    }
    (void)pthread_mutex_unlock(&executor->lock);
}

void heft_executor_look(struct heft_executor *executor)
{
    (void)pthread_mutex_lock(&executor->lock);
    executor->news = 1;
    (void)pthread_cond_broadcast(&executor->changed);
    (void)pthread_mutex_unlock(&executor->lock);
}

void heft_executor_lose(struct heft_executor *executor, uint32_t source, int code, const char *text)
{
    (void)pthread_mutex_lock(&executor->lock);
    heft_executor_lose_source(executor, source, code, text);
    (void)pthread_mutex_unlock(&executor->lock);
    heft_executor_kick(executor);
}

void heft_executor_start(struct heft_executor *executor)
{
    int started;

    (void)pthread_mutex_lock(&executor->lock);
    executor->started_ns = heft_now_ns();
    started = pthread_create(&executor->maker, NULL, heft_executor_maker_main, executor) == 0;
    executor->maker_started = started;
    (void)pthread_mutex_unlock(&executor->lock);
    if (!started)
        heft_executor_make_lanes(
            executor); /* without a thread: no repairs, and a frozen peer is waited for */
}

uint64_t heft_executor_bytes_done(const struct heft_executor *executor)
{
    return __atomic_load_n(&executor->bytes_done, __ATOMIC_RELAXED);
}

uint64_t heft_executor_blocks_verified(const struct heft_executor *executor)
{
    return __atomic_load_n(&executor->blocks_verified, __ATOMIC_RELAXED);
}

uint32_t heft_executor_sources_left(struct heft_executor *executor)
{
    uint32_t index, count = 0;

    (void)pthread_mutex_lock(&executor->lock);
    for (index = 0; index < executor->lane_count; index++)
        count += (uint32_t)heft_lane_is_live(&executor->lanes[index]);
    (void)pthread_mutex_unlock(&executor->lock);
    return count;
}

void heft_executor_read_source(struct heft_executor *executor, const struct heft_source *source,
                               struct heft_source *source_out)
{
    (void)pthread_mutex_lock(&executor->lock);
    *source_out = *source;
    (void)pthread_mutex_unlock(&executor->lock);
}

/* Every transfer is terminal here; at most its callback is still returning on a worker. Counted in tries, not
 * in time: this process may have been stopped for as long as somebody liked. */
static void end_slot(struct slot *slot)
{
    unsigned tries;

    for (tries = 0; heft_lane_slot_release(slot) == HEFT_ERR_BUSY; tries++) {
        HEFT_ASSERT(tries < 10000);
        (void)usleep(1000);
    }
}

void heft_executor_free(struct heft_executor *executor)
{
    uint32_t index, slot;

    if (!executor)
        return;
    (void)pthread_mutex_lock(&executor->lock);
    executor->maker_stop = 1;
    (void)pthread_cond_broadcast(&executor->changed);
    (void)pthread_mutex_unlock(&executor->lock);
    for (index = 0; executor->maker_started && index < executor->lane_count; index++)
        if (executor->lanes[index].source->peer)
            heft_peer_end_dials(executor->lanes[index].source->peer);
    if (executor->maker_started)
        (void)pthread_join(executor->maker, NULL);
    for (index = 0; executor->lanes && index < executor->lane_count; index++) {
        struct lane *lane = &executor->lanes[index];

        for (slot = 0; lane->slots && slot < lane->source->credits; slot++) {
            end_slot(&lane->slots[slot]);
            free(lane->slots[slot].runs);
            free(lane->slots[slot].plan_runs);
        }
        free(lane->slots);
        free(lane->offered);
        free(lane->queue);
    }
    free(executor->lanes);
    free(executor->states);
    free(executor->returned);
    (void)pthread_mutex_destroy(&executor->transfers_lock);
    (void)pthread_mutex_destroy(&executor->lock);
    (void)pthread_cond_destroy(&executor->changed);
    free(executor);
}

static int make_lane(struct heft_executor *executor, uint32_t index)
{
    struct lane *lane = &executor->lanes[index];
    uint32_t slot;

    lane->source = executor->options.sources[index];
    lane->gated = (int)(executor->options.gated >> index & 1);
    if (lane->gated) {
        uint64_t chunks = executor->options.plan->chunk_count, chunk;

        lane->offered = calloc(chunks + 1, 1);
        lane->queue = calloc(chunks + 1, sizeof(*lane->queue));
        if (!lane->offered || !lane->queue)
            return HEFT_ERR_NO_MEMORY;
        for (chunk = 0; chunk < chunks; chunk++)
            lane->covered += (uint64_t)heft_executor_covers(executor, index, chunk);
    }
    lane->slots = calloc(lane->source->credits, sizeof(*lane->slots));
    if (!lane->slots)
        return HEFT_ERR_NO_MEMORY;
    for (slot = 0; slot < lane->source->credits; slot++) {
        struct slot *made = &lane->slots[slot];

        made->executor = executor;
        made->source = index;
        made->chunk = NO_CHUNK;
        made->runs = calloc(FIRST_RUNS, sizeof(*made->runs));
        made->plan_runs = calloc(FIRST_RUNS, sizeof(*made->plan_runs));
        made->run_capacity = FIRST_RUNS;
        if (!made->runs || !made->plan_runs)
            return HEFT_ERR_NO_MEMORY;
    }
    return HEFT_OK;
}

int heft_executor_create(const struct heft_executor_options *options, struct heft_executor **executor_out,
                         struct heft_error *error)
{
    struct heft_executor *executor = calloc(1, sizeof(*executor));
    uint64_t chunks = options->plan->chunk_count;
    uint32_t index;

    if (!executor)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making the executor");
    executor->options = *options;
    executor->left = chunks;
    (void)pthread_mutex_init(&executor->lock, NULL);
    (void)pthread_mutex_init(&executor->transfers_lock, NULL);
    (void)pthread_cond_init(&executor->changed, NULL);
    executor->states = calloc(chunks ? chunks : 1, 1);
    executor->returned = calloc(chunks ? chunks : 1, sizeof(*executor->returned));
    executor->lanes =
        calloc(options->plan->source_count ? options->plan->source_count : 1, sizeof(*executor->lanes));
    if (!executor->states || !executor->returned || !executor->lanes)
        goto fail_memory;
    for (index = 0; index < options->plan->source_count; index++) {
        executor->lane_count = index + 1;
        if (make_lane(executor, index))
            goto fail_memory;
    }
    *executor_out = executor;
    return HEFT_OK;

fail_memory:
    heft_executor_free(executor);
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making the executor for %" PRIu64 " chunks", chunks);
}
