/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who reads what from storage. Chunks are divided into parts, one each load, in the order of names; a load
 * reads its own part, and says so in its log before. All of it is claimed only as far as storage works on it,
 * so that the rest of a slow load's part can be taken by those that are done with theirs. What others have is
 * taken from them. The part and the claims of a load that died, is silent, or makes no progress count no
 * more.
 *
 * One thread for each of the others reads its log; one decides.
 */
#include "agent/peer.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "load/fleet_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_NS (20 * HEFT_NS_PER_MS)     /* between two looks into a log */
#define SILENT_NS (3000 * HEFT_NS_PER_MS) /* no answer for so long: what it has can't be had now */
#define IDLE_NS (1000 * HEFT_NS_PER_MS)   /* without a claim for so long: it keeps no part */
#define TAKE_SHARE 8u                     /* one in so many chunks is taken over from others at a time */
#define LOG_BATCH 4096u                   /* entries read at a time */
#define WAIT_SLICE_MS 20u

/* ---- the own log: under the lock ---- */

static void append(struct heft_fleet *fleet, uint64_t block, uint64_t value)
{
    uint64_t count = fleet->log->count;

    HEFT_ASSERT(count < fleet->log_capacity);
    fleet->entries[count] = (struct fleet_entry){block, value};
    __atomic_store_n(&fleet->log->count, count + 1, __ATOMIC_RELEASE);
}

static void log_claim(struct heft_fleet *fleet, uint64_t chunk)
{
    uint64_t at;

    for (at = fleet->first_range[chunk]; at < fleet->first_range[chunk + 1]; at++) {
        HEFT_ASSERT(fleet->claims_left > 0);
        fleet->claims_left--;
        append(fleet, fleet->ranges[at].first | HEFT_FLEET_CLAIM, fleet->ranges[at].count);
    }
}

static void on_chunk(void *context, uint64_t chunk)
{
    struct heft_fleet *fleet = context;
    uint64_t at, index;

    for (at = fleet->first_range[chunk]; at < fleet->first_range[chunk + 1]; at++)
        for (index = 0; index < fleet->ranges[at].count; index++) {
            uint64_t block = fleet->ranges[at].first + index, digest = heft_fleet_block_digest(fleet, block);

            (void)pthread_mutex_lock(&fleet->lock);
            append(fleet, block, digest);
            (void)pthread_mutex_unlock(&fleet->lock);
        }
    (void)pthread_mutex_lock(&fleet->lock);
    fleet->is_done[chunk] = 1;
    fleet->asked -= fleet->is_asked[chunk];
    (void)pthread_cond_signal(&fleet->changed);
    (void)pthread_mutex_unlock(&fleet->lock);
}

/* A chunk of another load against the digests in its log, which stay as they were when it was offered. */
static int check_chunk(void *context, uint32_t source, uint64_t chunk, struct heft_error *error)
{
    const struct heft_fleet *fleet = context;
    const struct fleet_peer *peer = NULL;
    uint64_t at, index;

    for (index = 0; index < fleet->peer_count; index++)
        if (fleet->peers[index].index == source)
            peer = &fleet->peers[index];
    for (at = fleet->first_range[chunk]; peer && at < fleet->first_range[chunk + 1]; at++)
        for (index = 0; index < fleet->ranges[at].count; index++) {
            uint64_t block = fleet->ranges[at].first + index, digest = heft_fleet_block_digest(fleet, block);

            if (digest != peer->digests[block])
                return heft_error_set(error, HEFT_ERR_DIGEST,
                                      "block %" PRIu64 " of load %s: digest %016" PRIx64
                                      ", its log says %016" PRIx64,
                                      block, peer->name, digest, peer->digests[block]);
        }
    return HEFT_OK;
}

/* ---- the others' logs ---- */

static uint64_t own_block(const struct fleet_peer *peer, uint64_t block)
{
    uint64_t low = 0, high = peer->span_count;

    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;

        if (peer->spans[middle].theirs <= block)
            low = middle;
        else
            high = middle;
    }
    if (block < peer->spans[low].theirs || block - peer->spans[low].theirs >= peer->spans[low].count)
        return HEFT_FLEET_NONE;
    return peer->spans[low].mine + (block - peer->spans[low].theirs);
}

static int covers(const struct heft_fleet *fleet, const struct fleet_peer *peer, uint64_t chunk)
{
    return (int)(fleet->plan->chunks[chunk].sources >> peer->index & 1) &&
           fleet->first_range[chunk] < fleet->first_range[chunk + 1];
}

/* Under the lock. What the entry says is the peer's word: anything may stand there. */
static void take_entry(struct fleet_peer *peer, const struct fleet_entry *entry)
{
    struct heft_fleet *fleet = peer->fleet;
    uint64_t block = own_block(peer, entry->block & ~HEFT_FLEET_CLAIM), chunk;
    uint64_t last, count = entry->block & HEFT_FLEET_CLAIM ? entry->value : 1;

    if (block == HEFT_FLEET_NONE || count == 0)
        return;
    last =
        fleet->manifest->block_count - block < count ? fleet->manifest->block_count - 1 : block + count - 1;
    for (; block <= last; block++) {
        chunk = fleet->chunk_of[block];
        if (chunk == HEFT_FLEET_NONE || !covers(fleet, peer, chunk))
            continue;
        if (entry->block & HEFT_FLEET_CLAIM) {
            peer->open_claims += !peer->claimed[chunk] && peer->missing[chunk] > 0;
            peer->claimed[chunk] = 1;
        } else if (!peer->held[block]) {
            peer->held[block] = 1;
            peer->digests[block] = entry->value;
            if (--peer->missing[chunk] > 0)
                continue;
            peer->open_claims -= peer->claimed[chunk];
            if (!fleet->is_done[chunk])
                heft_executor_offer(fleet->executor, peer->index, chunk);
        }
    }
}

static int is_stopping(struct heft_fleet *fleet)
{
    return __atomic_load_n(&fleet->stop, __ATOMIC_ACQUIRE) != 0;
}

/* One READ of the log's region, into the buffer; CANCELED at the end of the load. */
static int read_log(struct fleet_peer *peer, uint64_t offset_bytes, uint64_t size_bytes,
                    struct heft_error *error)
{
    struct heft_fleet *fleet = peer->fleet;
    struct heft_run run = {.local_region = peer->buffer_region,
                           .remote_region = peer->log_region,
                           .remote_offset_bytes = offset_bytes,
                           .length_bytes = size_bytes,
                           .count = 1};
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    int rc;

    options.deadline_ms = UINT32_MAX;
    options.stall_ms = fleet->options.stall_ms;
    rc = peer->xfer ? heft_xfer_set_runs(peer->xfer, &run, 1, error)
                    : heft_xfer_create(fleet->options.agent, HEFT_OP_READ, peer->source->peer, &run, 1,
                                       &options, &peer->xfer, error);
    if (!rc)
        rc = heft_xfer_post(peer->xfer, error);
    if (rc)
        return rc;
    while ((rc = heft_xfer_wait(peer->xfer, WAIT_SLICE_MS)) == HEFT_ERR_AGAIN)
        if (is_stopping(fleet))
            (void)heft_xfer_cancel(peer->xfer);
    if (rc && rc != HEFT_ERR_CANCELED) {
        heft_xfer_get_result(peer->xfer, &result);
        *error = result.error;
    }
    return rc;
}

/* The head of the log. */
static int read_head(struct fleet_peer *peer, struct heft_error *error)
{
    struct heft_fleet *fleet = peer->fleet;
    uint64_t now;
    struct fleet_log log;
    int rc = read_log(peer, 0, sizeof(log), error);

    if (rc)
        return rc;
    memcpy(&log, peer->buffer, sizeof(log));
    if (log.magic != HEFT_FLEET_LOG_MAGIC || log.count > peer->log_capacity ||
        log.member_count > HEFT_FLEET_MAX_LOADS)
        return heft_error_set(error, HEFT_ERR_PROTOCOL, "the log of load %s is none", peer->name);
    now = heft_now_ns();
    (void)pthread_mutex_lock(&fleet->lock);
    if (peer->news_ns == 0 || log.count != peer->log.count || log.state != peer->log.state)
        peer->news_ns = now;
    peer->answered_ns = now;
    peer->planned_seen += log.state >= FLEET_MOVING;
    peer->log = log;
    (void)pthread_mutex_unlock(&fleet->lock);
    return HEFT_OK;
}

/* What was appended since. */
static int read_entries(struct fleet_peer *peer, struct heft_error *error)
{
    struct heft_fleet *fleet = peer->fleet;
    const struct fleet_entry *entries = peer->buffer;
    uint64_t count = peer->log.count, index; /* only this thread writes it */
    int rc = HEFT_OK;

    while (!rc && peer->seen < count) {
        uint64_t batch = count - peer->seen < LOG_BATCH ? count - peer->seen : LOG_BATCH;

        rc = read_log(peer, sizeof(struct fleet_log) + peer->seen * sizeof(*entries),
                      batch * sizeof(*entries), error);
        if (rc)
            break;
        (void)pthread_mutex_lock(&fleet->lock);
        peer->answered_ns = heft_now_ns();
        for (index = 0; index < batch; index++)
            take_entry(peer, &entries[index]);
        (void)pthread_mutex_unlock(&fleet->lock);
        peer->seen += batch;
        heft_executor_kick(fleet->executor);
    }
    return rc;
}

static void *reader_main(void *argument)
{
    struct fleet_peer *peer = argument;
    struct heft_fleet *fleet = peer->fleet;
    struct heft_error error = HEFT_ERROR_INIT;
    int rc = HEFT_OK, is_over = 0;

    while (!is_over) {
        uint64_t seen = peer->seen;

        rc = read_head(peer, &error);
        if (!rc)
            rc = read_entries(peer, &error);
        (void)pthread_mutex_lock(&fleet->lock);
        if (rc || peer->seen != seen || !fleet->is_ready)
            (void)pthread_cond_signal(&fleet->changed);
        peer->read_ns = heft_now_ns();
        is_over = rc || is_stopping(fleet) || peer->is_lost;
        peer->is_lost |= rc != HEFT_OK;
        (void)pthread_mutex_unlock(&fleet->lock);
        if (!is_over)
            (void)usleep(LOOK_NS / 1000);
    }
    if (rc && !is_stopping(fleet))
        heft_executor_lose(fleet->executor, peer->index, rc, error.text);
    return NULL;
}

/* ---- parts ---- */

/* Who reads it: of the loads that can exchange it, in the order of names. `order` has NULL for this load. */
static uint32_t owner_of(const struct heft_fleet *fleet, uint64_t chunk,
                         const struct fleet_peer *const *order, uint32_t count, uint32_t own)
{
    uint64_t at = chunk * count / fleet->plan->chunk_count;
    uint32_t step;

    for (step = 0; step < count && fleet->first_range[chunk] < fleet->first_range[chunk + 1]; step++) {
        uint32_t index = (uint32_t)((at + step) % count);

        if (!order[index] || covers(fleet, order[index], chunk))
            return index;
    }
    return own;
}

static int compare_names(const char *left_name, const struct heft_generation *left, const char *right_name,
                         const struct heft_generation *right)
{
    int order = strcmp(left_name, right_name);

    return order ? order : memcmp(left->bytes, right->bytes, sizeof(left->bytes));
}

/* The loads that divide the chunks, by name; returns their number. */
static uint32_t order_loads(struct heft_fleet *fleet, const struct fleet_peer **order, uint32_t *own_out)
{
    uint32_t count = 0, index, at;

    *own_out = HEFT_PLAN_MAX_SOURCES;
    for (index = 0; index < fleet->peer_count; index++) {
        const struct fleet_peer *peer = &fleet->peers[index];

        if (peer->is_lost || !peer->log.reads)
            continue;
        for (at = count++; at > 0 && compare_names(order[at - 1]->name, &order[at - 1]->generation,
                                                   peer->name, &peer->generation) > 0;
             at--)
            order[at] = order[at - 1];
        order[at] = peer;
    }
    if (!fleet->log->reads)
        return count;
    for (at = count++; at > 0 && compare_names(order[at - 1]->name, &order[at - 1]->generation,
                                               fleet->record.name, &fleet->generation) > 0;
         at--)
        order[at] = order[at - 1];
    order[at] = NULL;
    *own_out = at;
    return count;
}

/* Chunks that storage can give, by part: the own one first, the others in order from there on. */
static void divide(struct heft_fleet *fleet)
{
    const struct fleet_peer *order[HEFT_PLAN_MAX_SOURCES + 1];
    uint64_t chunks = fleet->plan->chunk_count, chunk, used = 0;
    uint32_t own, count = order_loads(fleet, order, &own), part, is_in = own < HEFT_PLAN_MAX_SOURCES;

    for (chunk = 0; chunk < chunks; chunk++)
        fleet->owners[chunk] = (uint8_t)owner_of(fleet, chunk, order, count, own);
    fleet->part_count = count + !is_in;
    for (part = 0; part < fleet->part_count; part++) {
        /* A load without a part of its own still reads what nobody else can. */
        uint32_t owner = is_in ? (own + part) % count : part == 0 ? own : part - 1;
        struct fleet_part *made = &fleet->parts[part];

        *made = (struct fleet_part){.first = used, .owner = part == 0 ? NULL : order[owner]};
        for (chunk = 0; chunk < chunks; chunk++)
            if (fleet->owners[chunk] == owner && fleet->plan->chunks[chunk].sources & fleet->storage)
                fleet->items[used++] = chunk;
        made->count = used - made->first;
        made->start = part ? made->count * part / fleet->part_count : 0;
    }
}

/* ---- deciding: under the lock ---- */

static int is_usable(const struct fleet_peer *peer)
{
    return !peer->is_lost && !peer->is_silent;
}

/* What it claims it will read, as far as one can tell. */
static int is_reading(const struct fleet_peer *peer)
{
    return is_usable(peer) && !peer->is_stuck && peer->log.reads && peer->log.state != FLEET_COMPLETE;
}

/* Its part is left to it. Who has claimed nothing for a while has not begun, or divides the chunks otherwise.
 */
static int keeps_part(const struct fleet_peer *peer)
{
    return is_reading(peer) && !peer->is_idle;
}

/* Nobody has it, and nobody is about to. */
static int is_free(const struct heft_fleet *fleet, uint64_t chunk)
{
    uint32_t index;

    if (fleet->is_done[chunk] || fleet->is_asked[chunk])
        return 0;
    for (index = 0; index < fleet->peer_count; index++) {
        const struct fleet_peer *peer = &fleet->peers[index];

        if (covers(fleet, peer, chunk) && is_usable(peer) &&
            (peer->missing[chunk] == 0 || (peer->claimed[chunk] && is_reading(peer))))
            return 0;
    }
    return 1;
}

static void ask_storage(struct heft_fleet *fleet, uint64_t chunk)
{
    uint64_t left = fleet->plan->chunks[chunk].sources & fleet->storage;

    log_claim(fleet, chunk);
    fleet->is_asked[chunk] = 1;
    fleet->asked++;
    for (; left; left &= left - 1)
        heft_executor_offer(fleet->executor, (uint32_t)__builtin_ctzll(left), chunk);
}

static int anybody_reads(const struct heft_fleet *fleet)
{
    uint32_t index;

    for (index = 0; index < fleet->peer_count; index++)
        if (keeps_part(&fleet->peers[index]))
            return 1;
    return 0;
}

/* How many chunks of another's part may be taken over now. */
static uint64_t spare_chunks(const struct heft_fleet *fleet, const struct fleet_part *part)
{
    uint64_t at, left = 0;

    if (fleet->summary.is_late && anybody_reads(fleet))
        return 0; /* they do not see what this load claims */
    for (at = 0; at < part->count; at++)
        left += (uint64_t)is_free(fleet, fleet->items[part->first + at]);
    if (!keeps_part(part->owner))
        return left;
    return left > fleet->window ? left - fleet->window : 0;
}

/* Every log was read since this load took over something: what the others claimed then is known. */
static int has_seen_claims(const struct heft_fleet *fleet)
{
    uint32_t index;

    for (index = 0; index < fleet->peer_count; index++)
        if (is_reading(&fleet->peers[index]) && fleet->peers[index].read_ns < fleet->took_ns + LOOK_NS)
            return 0;
    return 1;
}

/* A share of what is left at a time: what several loads take over from one they shall see in each other's
 * logs. */
static uint64_t take_others(struct heft_fleet *fleet)
{
    uint64_t taken = 0, now = heft_now_ns();
    uint32_t index;

    if (now - fleet->took_ns < LOOK_NS || !has_seen_claims(fleet))
        return 0;
    for (index = 1; index < fleet->part_count && fleet->asked < fleet->window; index++) {
        const struct fleet_part *part = &fleet->parts[index];
        uint64_t spare = spare_chunks(fleet, part), at;

        spare = (spare + TAKE_SHARE - 1) / TAKE_SHARE;
        for (at = 0; at < part->count && spare > 0 && fleet->asked < fleet->window; at++) {
            uint64_t chunk = fleet->items[part->first + (part->start + at) % part->count];

            if (!is_free(fleet, chunk))
                continue;
            ask_storage(fleet, chunk);
            spare--;
            taken++;
        }
    }
    if (taken)
        fleet->took_ns = now;
    return taken;
}

static uint64_t take_own(struct heft_fleet *fleet)
{
    const struct fleet_part *part = &fleet->parts[0];
    uint64_t taken = 0;

    for (; fleet->cursor < part->count && fleet->asked < fleet->window; fleet->cursor++)
        if (is_free(fleet, fleet->items[part->first + fleet->cursor])) {
            ask_storage(fleet, fleet->items[part->first + fleet->cursor]);
            taken++;
        }
    return taken;
}

/* This load's storage is gone: the others need not wait for its part. */
static void judge_storage(struct heft_fleet *fleet)
{
    struct heft_source source;
    uint64_t left;
    int has = 0;

    for (left = fleet->storage; left && fleet->has_storage; left &= left - 1) {
        heft_executor_read_source(fleet->executor, fleet->move.sources[__builtin_ctzll(left)], &source);
        has |= source.state != HEFT_SOURCE_LOST;
    }
    fleet->has_storage = has;
    if (!has)
        __atomic_store_n(&fleet->log->reads, 0, __ATOMIC_RELEASE);
}

/* How the others are. What changed may free chunks that were passed over. */
static void judge(struct heft_fleet *fleet)
{
    uint64_t now = heft_now_ns();
    uint32_t index;

    if (now - fleet->judged_ns < LOOK_NS)
        return;
    fleet->judged_ns = now;
    judge_storage(fleet);
    for (index = 0; index < fleet->peer_count; index++) {
        struct fleet_peer *peer = &fleet->peers[index];
        struct heft_source source;
        int judged;

        heft_executor_read_source(fleet->executor, peer->source, &source);
        peer->is_lost |= source.state == HEFT_SOURCE_LOST;
        peer->is_silent = now - peer->answered_ns > SILENT_NS;
        peer->is_idle = peer->open_claims == 0 && now - peer->news_ns > IDLE_NS;
        peer->is_stuck =
            peer->log.state != FLEET_COMPLETE && now - peer->news_ns > fleet->stuck_ms * HEFT_NS_PER_MS;
        judged = is_usable(peer) * 2 + is_reading(peer);
        if (judged != peer->judged) /* compared with the last look: its own thread may have changed it, too */
            fleet->cursor = 0;
        peer->judged = judged;
    }
}

/* 1 once every log was read; then it is known who divides the chunks. */
static int get_ready(struct heft_fleet *fleet)
{
    uint32_t index, member;

    for (index = 0; index < fleet->peer_count; index++) {
        const struct fleet_peer *peer = &fleet->peers[index];
        int knows = 0;

        if (!is_usable(peer) || (peer->log.magic && peer->log.state == FLEET_GATHERING))
            continue;
        if (peer->planned_seen < 2) /* the list may have been half written when it was read first */
            return 0;
        for (member = 0; member < peer->log.member_count; member++)
            knows |= memcmp(peer->log.members[member].bytes, fleet->generation.bytes,
                            sizeof(fleet->generation.bytes)) == 0;
        fleet->summary.is_late |= !knows;
    }
    if (fleet->summary.is_late)
        __atomic_store_n(&fleet->log->reads, 0, __ATOMIC_RELEASE);
    divide(fleet);
    fleet->is_ready = 1;
    return 1;
}

/* Bit i: source i is a load for which there is no use in waiting: nobody reads any more, this load can't, and
 * what is missing does not come. */
static uint64_t find_hopeless(const struct heft_fleet *fleet)
{
    uint64_t found = 0;
    uint32_t index;

    for (index = 0; index < fleet->peer_count && !fleet->has_storage && !anybody_reads(fleet); index++)
        if (!fleet->peers[index].is_lost && fleet->peers[index].is_stuck)
            found |= (uint64_t)1 << fleet->peers[index].index;
    return found;
}

static void *exchange_main(void *argument)
{
    struct heft_fleet *fleet = argument;

    while (!is_stopping(fleet)) {
        uint64_t taken = 0, until = heft_now_ns() + LOOK_NS;
        struct timespec when = {(time_t)(until / HEFT_NS_PER_S), (long)(until % HEFT_NS_PER_S)};
        uint64_t hopeless;

        (void)pthread_mutex_lock(&fleet->lock);
        judge(fleet);
        if ((fleet->is_ready || get_ready(fleet)) && fleet->has_storage)
            taken = take_own(fleet) + take_others(fleet);
        hopeless = find_hopeless(fleet);
        (void)pthread_mutex_unlock(&fleet->lock);
        if (taken)
            heft_executor_kick(fleet->executor);
        for (; hopeless; hopeless &= hopeless - 1)
            heft_executor_lose(fleet->executor, (uint32_t)__builtin_ctzll(hopeless), HEFT_ERR_STALLED,
                               "this load has made no progress for a long time");
        (void)pthread_mutex_lock(&fleet->lock);
        if (!fleet->stop)
            (void)pthread_cond_clockwait(&fleet->changed, &fleet->lock, CLOCK_MONOTONIC, &when);
        (void)pthread_mutex_unlock(&fleet->lock);
    }
    return NULL;
}

/* ---- the load's calls ---- */

static int prepare_peer(struct heft_fleet *fleet, struct fleet_peer *peer, struct heft_error *error)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    uint64_t chunks = fleet->plan->chunk_count, blocks = fleet->manifest->block_count, chunk, at;
    size_t size = LOG_BATCH * sizeof(struct fleet_entry);
    int rc;

    peer->index = 0;
    while (peer->index < fleet->plan->source_count && fleet->move.sources[peer->index] != peer->source)
        peer->index++;
    HEFT_ASSERT(peer->index < fleet->plan->source_count);
    peer->missing = calloc(chunks + 1, sizeof(*peer->missing));
    peer->claimed = calloc(chunks + 1, 1);
    peer->held = calloc(blocks + 1, 1);
    peer->digests = calloc(blocks + 1, sizeof(*peer->digests));
    peer->buffer = malloc(size);
    if (!peer->missing || !peer->claimed || !peer->held || !peer->digests || !peer->buffer)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "exchanging with another load");
    for (chunk = 0; chunk < chunks; chunk++) {
        for (at = fleet->first_range[chunk]; at < fleet->first_range[chunk + 1]; at++)
            peer->missing[chunk] += (uint32_t)fleet->ranges[at].count;
        if (!covers(fleet, peer, chunk))
            peer->missing[chunk] = UINT32_MAX;
    }
    options.address = peer->buffer;
    options.length_bytes = size;
    rc = heft_region_register(fleet->options.agent, &options, &peer->buffer_region, error);
    return rc ? heft_error_prefix(error, rc, "registering room for another load's log") : HEFT_OK;
}

int heft_fleet_prepare(struct heft_fleet *fleet, struct heft_executor_options *options,
                       struct heft_error *error)
{
    uint64_t chunks = options->plan->chunk_count, gated = 0;
    uint32_t index;
    int rc;

    fleet->plan = options->plan;
    fleet->move = *options;
    rc = heft_fleet_list_blocks(fleet, error);
    fleet->is_done = calloc(chunks + 1, 1);
    fleet->is_asked = calloc(chunks + 1, 1);
    fleet->owners = malloc(chunks + 1);
    fleet->items = malloc((chunks + 1) * sizeof(*fleet->items));
    fleet->parts = calloc(fleet->peer_count + 2u, sizeof(*fleet->parts));
    if (!rc && (!fleet->is_done || !fleet->is_asked || !fleet->owners || !fleet->items || !fleet->parts))
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "joining a fleet");
    for (index = 0; index < fleet->peer_count && !rc; index++) {
        rc = prepare_peer(fleet, &fleet->peers[index], error);
        gated |= (uint64_t)1 << fleet->peers[index].index;
    }
    fleet->stuck_ms = options->stall_ms;
    for (index = 0; index < options->plan->source_count; index++)
        if (options->sources[index]->kind == HEFT_SOURCE_OBJECTS)
            fleet->stuck_ms = options->stall_ms * HEFT_OBJECT_STALL_FACTOR;
    for (index = 0; index < options->plan->source_count; index++)
        if (options->sources[index]->kind == HEFT_SOURCE_FILES ||
            options->sources[index]->kind == HEFT_SOURCE_OBJECTS) {
            fleet->storage |= (uint64_t)1 << index;
            fleet->window += options->sources[index]->credits;
        }
    fleet->has_storage = fleet->storage != 0;
    options->on_chunk = on_chunk;
    options->on_chunk_context = fleet;
    if (fleet->peer_count > 0) {
        options->gated = gated | fleet->storage;
        options->keeps_gates = 1;
        options->check_chunk = check_chunk;
        options->check_chunk_context = fleet;
    }
    return rc;
}

int heft_fleet_start(struct heft_fleet *fleet, struct heft_executor *executor, struct heft_error *error)
{
    uint64_t now = heft_now_ns();
    uint32_t index;
    int rc = 0;

    fleet->executor = executor;
    for (index = 0; index < fleet->peer_count && !rc; index++) {
        struct fleet_peer *peer = &fleet->peers[index];

        peer->answered_ns = peer->news_ns = now;
        peer->log.reads = 1;
        rc = pthread_create(&peer->thread, NULL, reader_main, peer);
        peer->thread_started = !rc;
    }
    if (!rc && fleet->peer_count > 0) {
        rc = pthread_create(&fleet->thread, NULL, exchange_main, fleet);
        fleet->thread_started = !rc;
    }
    return rc ? heft_error_set_errno(error, rc, "starting the threads of a fleet") : HEFT_OK;
}

static void stop_peer(struct heft_fleet *fleet, struct fleet_peer *peer)
{
    uint32_t index;

    if (peer->thread_started) {
        heft_peer_end_dials(peer->source->peer);
        (void)pthread_join(peer->thread, NULL);
    }
    peer->thread_started = 0;
    while (peer->xfer && heft_xfer_release(peer->xfer) == HEFT_ERR_BUSY) /* it drains */
        (void)usleep(200);
    peer->xfer = NULL;
    while (peer->buffer_region && heft_region_deregister(peer->buffer_region, NULL) == HEFT_ERR_BUSY)
        (void)usleep(200);
    peer->buffer_region = NULL;
    free(peer->buffer);
    peer->buffer = NULL;
    for (index = 0; index < fleet->known_count; index++)
        if (memcmp(fleet->known[index].generation.bytes, peer->generation.bytes, HEFT_GENERATION_BYTES) == 0)
            fleet->known[index].was_lost = peer->is_lost;
}

void heft_fleet_stop(struct heft_fleet *fleet)
{
    uint32_t index;

    (void)pthread_mutex_lock(&fleet->lock);
    __atomic_store_n(&fleet->stop, 1, __ATOMIC_RELEASE);
    (void)pthread_cond_broadcast(&fleet->changed);
    (void)pthread_mutex_unlock(&fleet->lock);
    if (fleet->thread_started)
        (void)pthread_join(fleet->thread, NULL);
    fleet->thread_started = 0;
    for (index = 0; index < fleet->peer_count; index++)
        stop_peer(fleet, &fleet->peers[index]);
}

void heft_fleet_complete(struct heft_fleet *fleet)
{
    __atomic_store_n(&fleet->log->state, FLEET_COMPLETE, __ATOMIC_RELEASE);
    __atomic_store_n(&fleet->is_complete, 1, __ATOMIC_RELEASE);
    heft_keeper_touch(&fleet->keeper);
}
