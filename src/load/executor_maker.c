/* SPDX-License-Identifier: Apache-2.0 */
/* The maker: a thread for what may block, making the slots' transfers, at first and after a stream broke. */
#include "base/error.h"
#include "load/executor_internal.h"

/* The source's bytes by way of host memory, for a destination that it can't reach: two transfers a slot. */
static int make_bounced(struct slot *slot, uint64_t chunk, struct heft_xfer_options *options,
                        struct heft_error *error)
{
    struct heft_executor *executor = slot->executor;
    struct lane *lane = &executor->lanes[slot->source];
    struct heft_xfer_options inside = *options;
    uint64_t at, most = 0;
    size_t count = 0;
    int rc;

    for (at = 0; at < executor->options.plan->chunk_count; at++)
        if (executor->options.plan->chunks[at].size_bytes > most)
            most = executor->options.plan->chunks[at].size_bytes;
    rc = heft_bounce_make(executor->options.agent, most, &slot->bounce, error);
    if (rc)
        return rc;
    slot->chunk = chunk;
    options->on_done = heft_lane_slot_bounced;
    rc = heft_lane_slot_fill_runs(slot, LEG_TO_BOUNCE, &count);
    if (!rc)
        rc = heft_xfer_create(executor->options.agent, HEFT_OP_READ, lane->source->peer, slot->runs, count,
                              options, &slot->bounce->in, error);
    inside.require = NULL;
    if (!rc)
        rc = heft_lane_slot_fill_runs(slot, LEG_FROM_BOUNCE, &count);
    if (!rc)
        rc = heft_xfer_create(executor->options.agent, HEFT_OP_READ, NULL, slot->runs, count, &inside,
                              &slot->xfer, error);
    slot->chunk = NO_CHUNK;
    if (rc) {
        (void)heft_xfer_release(slot->bounce->in);
        heft_bounce_free(slot->bounce);
        slot->bounce = NULL;
    } else {
        lane->bounce_bytes += most;
    }
    return rc;
}

/* Makes the slot's transfer for a chunk that its source covers; may connect, so never on a worker. */
static int make_xfer(struct slot *slot, uint64_t chunk, struct heft_error *error)
{
    struct heft_executor *executor = slot->executor;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    size_t count = 0;
    int rc;

    options.deadline_ms = UINT32_MAX; /* the load's own deadline rules */
    options.stall_ms = executor->options.stall_ms;
    /* A store's pauses (back-off, Retry-After) are its own business for a while: the transport finds dead
     * connections by itself, and other sources take a slow one's chunks before. */
    if (executor->lanes[slot->source].source->kind == HEFT_SOURCE_OBJECTS)
        options.stall_ms *= HEFT_OBJECT_STALL_FACTOR;
    options.require = executor->options.require;
    options.on_done = heft_lane_slot_done;
    options.context = slot;
    slot->chunk = chunk;
    rc = heft_lane_slot_fill_runs(slot, LEG_WHOLE, &count);
    slot->chunk = NO_CHUNK;
    if (rc)
        return heft_error_set(error, rc, "preparing a chunk's runs");
    rc = heft_xfer_create(executor->options.agent, HEFT_OP_READ, executor->lanes[slot->source].source->peer,
                          slot->runs, count, &options, &slot->xfer, error);
    if (executor->options.on_device &&
        (rc == HEFT_ERR_UNSUPPORTED || (rc == HEFT_ERR_REQUIRED && options.require))) {
        struct heft_error other = HEFT_ERROR_INIT;
        int bounced = make_bounced(slot, chunk, &options, &other);

        if (!bounced)
            return HEFT_OK;
        if (bounced != HEFT_ERR_UNSUPPORTED && bounced != HEFT_ERR_REQUIRED) {
            rc = bounced;
            if (error)
                *error = other;
        }
    }
    return rc;
}

int heft_lane_slot_release(struct slot *slot)
{
    if (heft_xfer_release(slot->xfer))
        return HEFT_ERR_BUSY;
    slot->xfer = NULL;
    if (!slot->bounce)
        return HEFT_OK;
    if (heft_xfer_release(slot->bounce->in))
        return HEFT_ERR_BUSY;
    slot->executor->lanes[slot->source].bounce_bytes -= slot->bounce->size_bytes;
    heft_bounce_free(slot->bounce);
    slot->bounce = NULL;
    return HEFT_OK;
}

static void make_failed(struct slot *slot, int code, const char *text)
{
    struct heft_executor *executor = slot->executor;

    (void)pthread_mutex_lock(&executor->lock);
    slot->state = SLOT_UNMADE;
    heft_executor_lose_source(executor, slot->source, code, text);
    heft_executor_check_hopeless(executor);
    (void)pthread_cond_broadcast(&executor->changed);
    (void)pthread_mutex_unlock(&executor->lock);
}

static uint64_t first_covered(const struct heft_executor *executor, uint32_t source)
{
    uint64_t chunk;

    for (chunk = 0; chunk < executor->options.plan->chunk_count; chunk++)
        if (heft_executor_covers(executor, source, chunk))
            return chunk;
    return NO_CHUNK;
}

/* Nothing more is to be made: the load is over, or about to be. */
static int maker_done(struct heft_executor *executor)
{
    int done;

    (void)pthread_mutex_lock(&executor->lock);
    done = executor->maker_stop || executor->stopping || executor->left == 0;
    (void)pthread_mutex_unlock(&executor->lock);
    return done;
}

static void make_slot(struct heft_executor *executor, struct slot *slot, uint64_t chunk)
{
    struct heft_error error = HEFT_ERROR_INIT;
    int rc = make_xfer(slot, chunk, &error);

    if (rc) {
        make_failed(slot, rc, error.text);
        return;
    }
    (void)pthread_mutex_lock(&executor->lock);
    slot->state = SLOT_IDLE;
    (void)pthread_mutex_unlock(&executor->lock);
    heft_executor_kick(executor); /* the first transfers run while later ones are still made */
}

static void repair_slots(struct heft_executor *executor)
{
    uint32_t index, slot;

    for (index = 0; index < executor->lane_count; index++) {
        struct lane *lane = &executor->lanes[index];

        for (slot = 0; slot < lane->source->credits; slot++) {
            struct slot *broken = &lane->slots[slot];
            int rc;

            if (maker_done(executor))
                return;
            (void)pthread_mutex_lock(&executor->transfers_lock);
            (void)pthread_mutex_lock(&executor->lock);
            rc = broken->state == SLOT_BROKEN;
            (void)pthread_mutex_unlock(&executor->lock);
            rc = rc && heft_lane_slot_release(broken) == HEFT_OK;
            (void)pthread_mutex_unlock(&executor->transfers_lock);
            if (rc)
                make_slot(executor, broken, first_covered(executor, index));
        }
    }
}

void heft_executor_make_lanes(struct heft_executor *executor)
{
    uint32_t index, slot;

    for (index = 0; index < executor->lane_count; index++) {
        struct lane *lane = &executor->lanes[index];
        uint64_t chunk = first_covered(executor, index);

        (void)pthread_mutex_lock(&executor->lock);
        lane->source->first_ns = heft_now_ns();
        if (chunk == NO_CHUNK) /* it holds nothing that is wanted: nobody must wait for it */
            lane->cursor = executor->options.plan->chunk_count;
        (void)pthread_mutex_unlock(&executor->lock);
        for (slot = 0; slot < lane->source->credits && chunk != NO_CHUNK; slot++) {
            int live;

            if (maker_done(executor))
                return;
            (void)pthread_mutex_lock(&executor->lock);
            live = heft_lane_is_live(lane);
            (void)pthread_mutex_unlock(&executor->lock);
            if (!live || (slot >= 2 && lane->bounce_bytes >= HEFT_BOUNCE_TOTAL_BYTES))
                break;
            make_slot(executor, &lane->slots[slot], chunk);
        }
    }
}

/* A peer that froze may keep this thread for seconds; the others' transfers, and the deadline, go on. */
void *heft_executor_maker_main(void *argument)
{
    struct heft_executor *executor = argument;

    heft_executor_make_lanes(executor);
    while (!maker_done(executor)) {
        uint64_t tick = heft_now_ns() + HEFT_EXECUTOR_TICK_NS;
        struct timespec until = {(time_t)(tick / HEFT_NS_PER_S), (long)(tick % HEFT_NS_PER_S)};

        repair_slots(executor);
        (void)pthread_mutex_lock(&executor->lock);
        if (!executor->maker_stop)
            (void)pthread_cond_clockwait(&executor->changed, &executor->lock, CLOCK_MONOTONIC, &until);
        (void)pthread_mutex_unlock(&executor->lock);
    }
    return NULL;
}
