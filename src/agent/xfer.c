/* SPDX-License-Identifier: Apache-2.0 */
/* Preparing transfers: runs checked and turned into moves, the route chosen. */
#include "agent/xfer.h"
#include "agent/event.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DEADLINE_MS_DEFAULT (UINT64_C(10) * 60 * 1000)
#define STALL_MS_DEFAULT UINT64_C(30000)
#define HUGE_BYTES ((size_t)4 << 20)
#define PAIRS_MAX 64 /* distinct combinations of spaces and remote regions whose scores are asked for */

void heft_xfer_forget(struct heft_xfer *xfer)
{
    struct heft_agent *agent = xfer->agent;

    if (!xfer->kept)
        return;
    (void)pthread_mutex_lock(&agent->active_lock);
    if (xfer->kept_by < agent->transport_count)
        agent->transports[xfer->kept_by].ops.forget(agent->transports[xfer->kept_by].transport, xfer->kept);
    (void)pthread_mutex_unlock(&agent->active_lock);
    xfer->kept = NULL;
}

void heft_xfer_unref(struct heft_xfer *xfer)
{
    struct heft_agent *agent = xfer->agent;
    size_t index;

    if (__atomic_sub_fetch(&xfer->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    heft_xfer_forget(xfer);
    for (index = 0; index < xfer->region_count; index++)
        heft_region_unref(xfer->regions[index]);
    free(xfer->regions);
    free(xfer->spare_regions);
    free(xfer->moves);
    free(xfer->run_of_move);
    free(xfer->require);
    free(xfer->note_data);
    if (xfer->raise_region)
        heft_region_unref(xfer->raise_region);
    if (xfer->draft)
        heft_xfer_unref(xfer->draft);
    heft_peer_unref(xfer->peer);
    (void)pthread_mutex_destroy(&xfer->lock);
    (void)pthread_cond_destroy(&xfer->cond);
    free(xfer);
    heft_agent_unref(agent);
}

/* ---- checking runs ---- */

/* The checked form of one run. region_lock held. */
struct checked_run {
    struct heft_region *local, *remote;
    uint64_t bytes;
};

static int check_side(uint64_t index, const char *side, const struct heft_region *region, uint64_t offset,
                      const struct heft_run *run, uint64_t stride, struct heft_error *error)
{
    if (heft_range_check(region->t.length_bytes, offset, run->length_bytes, run->count, stride) == 0)
        return 0;
    return heft_error_set(
        error, HEFT_ERR_RANGE,
        "run %llu leaves its %s region %llu of %llu bytes: offset %llu, %llu pieces of %llu "
        "bytes, stride %llu",
        (unsigned long long)index, side, (unsigned long long)region->t.id,
        (unsigned long long)region->t.length_bytes, (unsigned long long)offset,
        (unsigned long long)run->count, (unsigned long long)run->length_bytes, (unsigned long long)stride);
}

static int find_remote(const struct heft_xfer *xfer, uint64_t index, uint64_t id,
                       struct heft_region **region_out, struct heft_error *error)
{
    const struct heft_peer *peer = xfer->peer;
    struct heft_region *region = heft_region_find(peer->is_self ? &xfer->agent->regions : &peer->regions, id);
    uint32_t need = xfer->kind == HEFT_OP_READ ? HEFT_REGION_REMOTE_READ : HEFT_REGION_REMOTE_WRITE;
    char who[HEFT_PEER_TEXT_BYTES];

    if (!region)
        return heft_error_set(error, HEFT_ERR_STALE, "run %llu: %s has no region %llu (or has it no more)",
                              (unsigned long long)index, heft_peer_text(peer, who, sizeof(who)),
                              (unsigned long long)id);
    if (!peer->is_self && !(region->t.flags & need))
        return heft_error_set(error, HEFT_ERR_DENIED, "run %llu: region %llu of %s may not be %s",
                              (unsigned long long)index, (unsigned long long)id,
                              heft_peer_text(peer, who, sizeof(who)),
                              xfer->kind == HEFT_OP_READ ? "read" : "written");
    *region_out = region;
    return 0;
}

static int check_run(const struct heft_xfer *xfer, uint64_t index, const struct heft_run *run,
                     struct checked_run *checked_out, struct heft_error *error)
{
    struct checked_run checked = {.local = run->local_region};
    uint64_t stride = xfer->kind == HEFT_OP_READ ? run->local_stride_bytes : run->remote_stride_bytes;
    int rc;

    if (!checked.local || checked.local->agent != xfer->agent || checked.local->peer)
        return heft_error_set(error, HEFT_ERR_INVALID, "run %llu: the local region is not of this agent",
                              (unsigned long long)index);
    if (checked.local->state != HEFT_REGION_LIVE)
        return heft_error_set(error, HEFT_ERR_STALE, "run %llu: the local region was deregistered",
                              (unsigned long long)index);
    rc = find_remote(xfer, index, run->remote_region, &checked.remote, error);
    if (!rc)
        rc = check_side(index, "local", checked.local, run->local_offset_bytes, run, run->local_stride_bytes,
                        error);
    if (!rc)
        rc = check_side(index, "remote", checked.remote, run->remote_offset_bytes, run,
                        run->remote_stride_bytes, error);
    if (rc)
        return rc;
    /* Which of two overlapping pieces would win is not defined: that is no transfer, it is a mistake. */
    if (run->count > 1 && run->length_bytes && stride < run->length_bytes)
        return heft_error_set(
            error, HEFT_ERR_INVALID,
            "run %llu: its pieces of %llu bytes overlap where they are written (stride %llu)",
            (unsigned long long)index, (unsigned long long)run->length_bytes, (unsigned long long)stride);
    if (__builtin_mul_overflow(run->length_bytes, run->count, &checked.bytes))
        return heft_error_set(error, HEFT_ERR_RANGE, "run %llu: more bytes than can be counted",
                              (unsigned long long)index);
    *checked_out = checked;
    return 0;
}

/* ---- moves ---- */

static int grow(void **array, size_t *capacity, size_t want, size_t item_bytes)
{
    size_t grown = *capacity ? *capacity : 8;
    void *fresh;

    if (want <= *capacity)
        return 0;
    while (grown < want)
        grown *= 2;
    if (grown * item_bytes >= HUGE_BYTES && grown > want && want > *capacity + 1)
        grown = want; /* the caller knows how many there will be */
    fresh = realloc(*array, grown * item_bytes);
    if (!fresh)
        return HEFT_ERR_NO_MEMORY;
    if (grown * item_bytes >=
        HUGE_BYTES) { /* touched from end to end: huge pages cost a quarter of small ones */
        uintptr_t begin = ((uintptr_t)fresh + 4095) & ~(uintptr_t)4095;

        (void)madvise((void *)begin, ((uintptr_t)fresh + grown * item_bytes - begin) & ~(uintptr_t)4095,
                      MADV_HUGEPAGE);
    }
    *array = fresh;
    *capacity = grown;
    return 0;
}

int heft_xfer_reserve_moves(struct heft_xfer *xfer, size_t want)
{
    size_t capacity = xfer->move_capacity;
    int rc;

    if (want <= capacity)
        return 0;
    rc = grow((void **)&xfer->run_of_move, &capacity, want, sizeof(*xfer->run_of_move));
    if (!rc)
        rc = grow((void **)&xfer->moves, &xfer->move_capacity, want, sizeof(*xfer->moves));
    return rc;
}

/* The runs as they will be: kept aside until everything about them is known to be right. */
struct draft {
    size_t move_count;
    struct heft_region **regions;
    size_t region_count, region_capacity;
    struct heft_route_pair pairs[PAIRS_MAX];
    size_t pair_count;
    uint64_t total_bytes, descriptor_count;
};

static int note_region(struct heft_xfer *xfer, struct draft *draft, struct heft_region *region)
{
    if (region->mark == xfer->agent->region_mark)
        return 0;
    if (grow((void **)&draft->regions, &draft->region_capacity, draft->region_count + 1,
             sizeof(*draft->regions)))
        return HEFT_ERR_NO_MEMORY;
    region->mark = xfer->agent->region_mark;
    heft_region_ref(region);
    draft->regions[draft->region_count++] = region;
    return 0;
}

/* Beyond PAIRS_MAX the transport itself refuses what it can't reach, when posted. */
static void note_pair(struct draft *draft, const struct checked_run *run)
{
    size_t index;

    for (index = draft->pair_count; index > 0; index--) {
        const struct heft_route_pair *pair = &draft->pairs[index - 1];

        if (pair->local == run->local->t.space && pair->region == &run->remote->t)
            return;
    }
    if (draft->pair_count < PAIRS_MAX)
        draft->pairs[draft->pair_count++] = (struct heft_route_pair){
            .local = run->local->t.space, .remote = run->remote->t.space, .region = &run->remote->t};
}

/* Checks all runs and notes what they use. Nothing of the transfer changes. region_lock held. */
static int make_draft(struct heft_xfer *xfer, const struct heft_run *runs, size_t run_count,
                      struct draft *draft, struct heft_error *error)
{
    size_t index;
    int rc;

    xfer->agent->region_mark++;
    for (index = 0; index < run_count; index++) {
        struct checked_run checked = {0};

        rc = check_run(xfer, index, &runs[index], &checked, error);
        if (rc)
            return rc;
        if (__builtin_add_overflow(draft->total_bytes, checked.bytes, &draft->total_bytes))
            return heft_error_set(error, HEFT_ERR_RANGE, "the runs hold more bytes than can be counted");
        if (note_region(xfer, draft, checked.local) || note_region(xfer, draft, checked.remote))
            return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a transfer of %zu runs",
                                  run_count);
        note_pair(draft, &checked);
        draft->descriptor_count += runs[index].count;
        draft->move_count += checked.bytes > 0;
    }
    return 0;
}

/* A plain run that goes on where the last move ends, on both sides, is more of that move. */
static int is_more_of(const struct heft_move *last, const struct heft_run *run,
                      const struct heft_region *remote)
{
    return run->count == 1 && last->count == 1 && last->local == &run->local_region->t &&
           last->remote == &remote->t &&
           last->local_offset_bytes + last->length_bytes == run->local_offset_bytes &&
           last->remote_offset_bytes + last->length_bytes == run->remote_offset_bytes;
}

/* The draft was right: it becomes the transfer. region_lock is held since make_draft, so that every region
 * is found again. */
static void commit(struct heft_xfer *xfer, const struct heft_run *runs, size_t run_count, struct draft *draft)
{
    const struct heft_table *table = xfer->peer->is_self ? &xfer->agent->regions : &xfer->peer->regions;
    struct heft_region *remote = NULL, **old = xfer->regions;
    size_t index, count = 0, old_capacity = xfer->region_capacity;

    for (index = 0; index < run_count; index++) {
        const struct heft_run *run = &runs[index];

        if (!run->length_bytes || !run->count)
            continue;
        if (!remote || remote->t.id != run->remote_region)
            remote = heft_region_find(table, run->remote_region);
        if (count && is_more_of(&xfer->moves[count - 1], run, remote)) {
            xfer->moves[count - 1].length_bytes += run->length_bytes;
            continue;
        }
        xfer->run_of_move[count] = index;
        xfer->moves[count++] = (struct heft_move){.local = &run->local_region->t,
                                                  .remote = &remote->t,
                                                  .local_offset_bytes = run->local_offset_bytes,
                                                  .remote_offset_bytes = run->remote_offset_bytes,
                                                  .length_bytes = run->length_bytes,
                                                  .count = run->count,
                                                  .local_stride_bytes = run->local_stride_bytes,
                                                  .remote_stride_bytes = run->remote_stride_bytes};
    }
    xfer->move_count = count;
    for (index = 0; index < xfer->region_count; index++)
        heft_region_unref(old[index]);
    xfer->regions = draft->regions;
    xfer->region_count = draft->region_count;
    xfer->region_capacity = draft->region_capacity;
    xfer->spare_regions = old;
    xfer->spare_capacity = old_capacity;
    xfer->total_bytes = draft->total_bytes;
    xfer->descriptor_count = draft->descriptor_count;
    xfer->moves_id = __atomic_add_fetch(&xfer->agent->next_xfer_id, 1, __ATOMIC_RELAXED);
}

static void drop_draft(struct heft_xfer *xfer, struct draft *draft)
{
    size_t index;

    for (index = 0; index < draft->region_count; index++)
        heft_region_unref(draft->regions[index]);
    xfer->spare_regions = draft->regions;
    xfer->spare_capacity = draft->region_capacity;
}

static int take_runs(struct heft_xfer *xfer, const struct heft_run *runs, size_t run_count,
                     struct draft *draft, struct heft_error *error)
{
    int rc;

    draft->regions = xfer->spare_regions;
    draft->region_capacity = xfer->spare_capacity;
    xfer->spare_regions = NULL;
    xfer->spare_capacity = 0;
    (void)pthread_mutex_lock(&xfer->agent->region_lock);
    rc = make_draft(xfer, runs, run_count, draft, error);
    if (!rc && heft_xfer_reserve_moves(xfer, draft->move_count))
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a transfer of %zu runs", run_count);
    if (rc)
        drop_draft(xfer, draft);
    else
        commit(xfer, runs, run_count, draft);
    (void)pthread_mutex_unlock(&xfer->agent->region_lock);
    return rc;
}

int heft_xfer_choose_route(struct heft_xfer *xfer, const struct heft_route_pair *pairs, size_t pair_count,
                           struct heft_error *error)
{
    static const struct heft_route_pair guess = {HEFT_SPACE_HOST, HEFT_SPACE_HOST, NULL};
    int may_connect = xfer->peer->is_self || !heft_agent_on_worker(xfer->agent);
    struct heft_error failure = HEFT_ERROR_INIT;
    struct heft_slot *slot = NULL;
    char reason[HEFT_ROUTE_REASON_BYTES];
    int rc;

    xfer->slot = NULL;
    xfer->route_reason[0] = 0;
    if (pair_count) {
        rc = heft_route_choose(xfer->peer, xfer->kind, pairs, pair_count, xfer->require, may_connect, &slot,
                               xfer->route_reason, error);
        if (!rc)
            xfer->slot = slot;
        return rc;
    }
    /* Without runs nothing has to be chosen; but a peer is connected now, because set_runs may be called
     * where connecting is not allowed. */
    rc = xfer->peer->is_self ? 0
                             : heft_route_choose(xfer->peer, xfer->kind, &guess, 1, xfer->require,
                                                 may_connect, &slot, reason, &failure);
    if (rc == 0 || rc == HEFT_ERR_UNSUPPORTED)
        return 0;
    if (error)
        *error = failure;
    return rc;
}

static int set_runs(struct heft_xfer *xfer, const struct heft_run *runs, size_t run_count,
                    struct heft_error *error)
{
    struct draft draft;
    int rc;

    draft.move_count = draft.region_count = draft.pair_count = 0;
    draft.total_bytes = draft.descriptor_count = 0;
    if (run_count && !runs)
        return heft_error_set(error, HEFT_ERR_INVALID, "%zu runs, but no array of them", run_count);
    rc = take_runs(xfer, runs, run_count, &draft, error);
    if (!rc)
        rc = heft_xfer_choose_route(xfer, draft.pairs, draft.pair_count, error);
    return rc;
}

int heft_xfer_set_runs(struct heft_xfer *xfer, const struct heft_run *runs, size_t run_count,
                       struct heft_error *error)
{
    int active;

    if (heft_agent_forked(xfer->agent))
        return heft_process_refuse(xfer->agent, error);
    (void)pthread_mutex_lock(&xfer->lock);
    active = xfer->state == HEFT_XFER_ACTIVE;
    (void)pthread_mutex_unlock(&xfer->lock);
    if (active)
        return heft_error_set(error, HEFT_ERR_STATE, "the runs of an active transfer can't be replaced");
    return set_runs(xfer, runs, run_count, error);
}

/* ---- life ---- */

static int check_options(const struct heft_agent *agent, enum heft_op op, const struct heft_peer *peer,
                         const struct heft_xfer_options *options, struct heft_error *error)
{
    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    if (op != HEFT_OP_READ && op != HEFT_OP_WRITE)
        return heft_error_set(error, HEFT_ERR_INVALID, "unknown operation %d", (int)op);
    if (peer && peer->agent != agent)
        return heft_error_set(error, HEFT_ERR_INVALID, "the peer is another agent's");
    if (options->flags & ~(uint32_t)(HEFT_XFER_INLINE | HEFT_XFER_COUNT | HEFT_XFER_EVENT |
                                     HEFT_XFER_AFTER_STREAM | HEFT_XFER_RAISE_LOCAL | HEFT_XFER_RAISE_REMOTE))
        return heft_error_set(error, HEFT_ERR_INVALID, "unknown transfer flags 0x%x", options->flags);
    if (options->notification_bytes && !options->notification)
        return heft_error_set(error, HEFT_ERR_INVALID, "a notification of %zu bytes, but no bytes",
                              options->notification_bytes);
    if ((options->flags & HEFT_XFER_COUNT) && op != HEFT_OP_WRITE)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "counters count what arrives: WRITE has one, READ has none");
    if (!peer && ((options->flags & HEFT_XFER_COUNT) || options->notification))
        return heft_error_set(error, HEFT_ERR_INVALID, "a transfer inside one agent has no peer to tell");
    return 0;
}

static int take_notification(struct heft_xfer *xfer, const void *data, size_t size_bytes,
                             struct heft_error *error)
{
    uint8_t *copy = NULL;
    int rc;

    if (data) {
        rc = heft_outbox_check(xfer->peer, size_bytes, error);
        if (rc)
            return rc;
        copy = malloc(size_bytes ? size_bytes : 1);
        if (!copy)
            return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a notification");
        if (size_bytes)
            memcpy(copy, data, size_bytes);
    }
    free(xfer->note_data);
    xfer->note_data = copy;
    xfer->note.data = copy;
    xfer->note.size = data ? size_bytes : 0;
    xfer->tells = (xfer->tells & HEFT_TELL_COUNT) | (data ? HEFT_TELL_NOTE : 0);
    return 0;
}

/* What the peer is told at the end. */
static int set_tells(struct heft_xfer *xfer, struct heft_error *error)
{
    int rc = 0;

    xfer->note.xfer = xfer;
    xfer->note.counter = xfer->options.counter;
    if (xfer->options.flags & HEFT_XFER_COUNT) {
        rc = heft_outbox_check(xfer->peer, 0, error);
        xfer->tells = HEFT_TELL_COUNT;
    }
    if (!rc && xfer->options.notification)
        rc = take_notification(xfer, xfer->options.notification, xfer->options.notification_bytes, error);
    xfer->options.notification = NULL; /* the caller's: not to be looked at again */
    return rc;
}

/* The word that is raised, found and checked. */
static int set_raise(struct heft_xfer *xfer, struct heft_error *error)
{
    const struct heft_xfer_options *options = &xfer->options;
    uint32_t flags = options->flags & (HEFT_XFER_RAISE_LOCAL | HEFT_XFER_RAISE_REMOTE);
    int is_remote = flags == HEFT_XFER_RAISE_REMOTE && !xfer->peer->is_self;
    unsigned long long id = options->raise_region;
    struct heft_region *region;
    int rc = 0;

    if (!flags)
        return 0;
    if (flags == (HEFT_XFER_RAISE_LOCAL | HEFT_XFER_RAISE_REMOTE) || options->raise_offset_bytes % 8)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "a transfer raises one word, local or remote, at a multiple of 8 bytes");
    (void)pthread_mutex_lock(&xfer->agent->region_lock);
    region = heft_region_find(is_remote ? &xfer->peer->regions : &xfer->agent->regions, id);
    if (!region)
        rc = heft_error_set(error, HEFT_ERR_STALE, "there is no region %llu whose word could be raised", id);
    else if (is_remote && !(region->t.flags & HEFT_REGION_REMOTE_WRITE))
        rc = heft_error_set(error, HEFT_ERR_DENIED,
                            "region %llu, whose word is to be raised, may not be written", id);
    else if (heft_range_check(region->t.length_bytes, options->raise_offset_bytes, 8, 1, 0))
        rc = heft_error_set(error, HEFT_ERR_RANGE, "byte %llu, to be raised, is outside region %llu",
                            (unsigned long long)options->raise_offset_bytes, id);
    else
        heft_region_ref(region);
    (void)pthread_mutex_unlock(&xfer->agent->region_lock);
    if (!rc)
        xfer->raise_region = region;
    xfer->raise_value = options->raise_value;
    return rc;
}

int heft_xfer_set_notification(struct heft_xfer *xfer, const void *data, size_t size_bytes,
                               struct heft_error *error)
{
    int active;

    if (heft_agent_forked(xfer->agent))
        return heft_process_refuse(xfer->agent, error);
    (void)pthread_mutex_lock(&xfer->lock);
    active = xfer->state == HEFT_XFER_ACTIVE;
    (void)pthread_mutex_unlock(&xfer->lock);
    if (active)
        return heft_error_set(error, HEFT_ERR_STATE,
                              "the notification of an active transfer can't be replaced");
    if (size_bytes && !data)
        return heft_error_set(error, HEFT_ERR_INVALID, "a notification of %zu bytes, but no bytes",
                              size_bytes);
    if (data && xfer->peer->is_self)
        return heft_error_set(error, HEFT_ERR_INVALID, "a transfer inside one agent has no peer to tell");
    return take_notification(xfer, data, size_bytes, error);
}

int heft_xfer_new(struct heft_agent *agent, enum heft_op op, struct heft_peer *peer,
                  const struct heft_xfer_options *given, struct heft_xfer **xfer_out,
                  struct heft_error *error)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer *xfer;
    int rc = heft_options_copy(&options, sizeof(options), given, error);

    if (!rc)
        rc = check_options(agent, op, peer, &options, error);
    if (rc)
        return rc;
    xfer = calloc(1, sizeof(*xfer));
    if (!xfer)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a transfer");
    xfer->agent = agent;
    xfer->peer = peer ? peer : agent->self;
    xfer->kind = op;
    xfer->options = options;
    if (!options.deadline_ms)
        xfer->options.deadline_ms = DEADLINE_MS_DEFAULT;
    if (!options.stall_ms)
        xfer->options.stall_ms = STALL_MS_DEFAULT;
    xfer->refs = 1;
    xfer->result.transport = "";
    xfer->result.failed_run = -1;
    (void)pthread_mutex_init(&xfer->lock, NULL);
    heft_cond_init(&xfer->cond);
    heft_agent_ref(agent);
    heft_peer_ref(xfer->peer);
    if (options.require) {
        xfer->require = strdup(options.require);
        if (!xfer->require)
            rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a transfer");
    }
    if (!rc)
        rc = set_tells(xfer, error);
    if (!rc)
        rc = set_raise(xfer, error);
    if (rc) {
        heft_xfer_unref(xfer);
        return rc;
    }
    *xfer_out = xfer;
    return 0;
}

int heft_xfer_create(struct heft_agent *agent, enum heft_op op, struct heft_peer *peer,
                     const struct heft_run *runs, size_t run_count, const struct heft_xfer_options *options,
                     struct heft_xfer **xfer_out, struct heft_error *error)
{
    struct heft_xfer *xfer = NULL;
    int rc = heft_xfer_new(agent, op, peer, options, &xfer, error);

    if (rc)
        return rc;
    rc = set_runs(xfer, runs, run_count, error);
    if (rc) {
        heft_xfer_unref(xfer);
        return rc;
    }
    *xfer_out = xfer;
    return 0;
}

int heft_xfer_release(struct heft_xfer *xfer)
{
    int active;

    if (!xfer)
        return 0;
    if (heft_agent_forked(xfer->agent))
        return HEFT_ERR_STATE;
    (void)pthread_mutex_lock(&xfer->lock);
    active = xfer->state == HEFT_XFER_ACTIVE;
    if (!active)
        heft_events_forget(xfer);
    (void)pthread_mutex_unlock(&xfer->lock);
    if (active)
        return HEFT_ERR_BUSY;
    heft_xfer_unref(xfer);
    return 0;
}
