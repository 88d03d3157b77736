/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which source gets the next chunk, so that all of them are done at about the same time. One number decides:
 * when a source would be done with what it holds and this chunk, at the rate seen of it lately. It takes the
 * chunk if that is not after the time at which all sources together could be done with everything, or if no
 * other source would be done with it sooner. Far from the end that lets everybody fill its slots; near the
 * end each holds its share. What was given out on a wrong expectation is moved: a source that found nothing
 * more to take gets the chunks that another one would be done with later.
 */
#include "load/executor_internal.h"

#define SAMPLE_NS (5 * HEFT_NS_PER_MS)    /* looks at transfers are no closer than this */
#define SILENT_NS (250 * HEFT_NS_PER_MS)  /* without a byte for so long: its rate is not unknown but 0 */
#define MEMORY_NS (500 * HEFT_NS_PER_MS)  /* what is older than this counts for less and less */
#define ARRIVAL_NS (100 * HEFT_NS_PER_MS) /* a source without a transfer yet is waited for so long */
#define SURE_NS (80 * HEFT_NS_PER_MS)     /* nothing is taken from a source that was seen for less */
#define MOVE_FACTOR 1.5                   /* chunks are moved for a gain of this, and of */
#define MOVE_NS ((double)HEFT_EXECUTOR_TICK_NS)
#define LEAST_RATE                                                                          \
    ((double)(1u << 20) / (double)HEFT_NS_PER_S) /* for taking: else a rate of 0 would stay \
                                                  */
#define NO_RATE (-1.0)
#define NEVER 1e30

/* Bytes a nanosecond; NO_RATE while it had no time to show one. */
static double seen_rate(const struct lane *lane)
{
    if (lane->rate_bytes <= 0 && lane->rate_ns < (double)SILENT_NS)
        return NO_RATE;
    return lane->rate_bytes / lane->rate_ns;
}

/* It has a slot that works, or may still get its first one. */
static int counts(const struct heft_executor *executor, const struct lane *lane)
{
    uint32_t slot;

    if (!heft_lane_is_live(lane))
        return 0;
    if (lane->held > 0 || heft_now_ns() < executor->started_ns + ARRIVAL_NS)
        return 1;
    for (slot = 0; slot < lane->source->credits; slot++)
        if (lane->slots[slot].state == SLOT_IDLE)
            return 1;
    return 0;
}

/* The rate of a source that has shown none: that of the others. */
static double common_rate(const struct heft_executor *executor)
{
    double sum = 0;
    uint32_t index, known = 0;

    for (index = 0; index < executor->lane_count; index++) {
        double rate = seen_rate(&executor->lanes[index]);

        if (!counts(executor, &executor->lanes[index]) || rate <= 0)
            continue;
        sum += rate;
        known++;
    }
    return known ? sum / known : 1.0;
}

/* When it would be done with what it holds and so many more bytes, in nanoseconds from now. */
static double end_with(const struct lane *lane, double bytes, double common, double least)
{
    double rate = seen_rate(lane);

    if (rate == NO_RATE)
        rate = common;
    if (rate < least)
        rate = least;
    bytes += (double)(lane->held_bytes - lane->seen_bytes);
    return rate > 0 ? bytes / rate : NEVER;
}

/* When all of them together could be done with everything. Half of that until it is known who is fast: what
 * is kept back goes to that one. */
static double common_end(const struct heft_executor *executor, double common, int *unknown_out)
{
    double left = (double)(executor->options.plan->total_bytes - heft_executor_bytes_done(executor)), sum = 0;
    uint32_t index;
    int unknown = 0;

    for (index = 0; index < executor->lane_count; index++) {
        const struct lane *lane = &executor->lanes[index];
        double rate = seen_rate(lane);

        left -= (double)lane->seen_bytes;
        if (!counts(executor, lane))
            continue;
        unknown |= rate == NO_RATE && (lane->held > 0 || heft_now_ns() < executor->started_ns + ARRIVAL_NS);
        sum += rate == NO_RATE ? common : rate;
    }
    if (unknown)
        left /= 2;
    *unknown_out = unknown;
    return sum > 0 ? left / sum : NEVER;
}

/* There is another source for the chunk, none that is `but`. */
static int other_counts(const struct heft_executor *executor, uint32_t source, uint64_t chunk, uint32_t but)
{
    uint32_t index;

    for (index = 0; index < executor->lane_count; index++)
        if (index != source && index != but && counts(executor, &executor->lanes[index]) &&
            heft_executor_may_take(executor, index, chunk))
            return 1;
    return 0;
}

int heft_executor_leaves(const struct heft_executor *executor, uint32_t source, uint64_t chunk, uint32_t but)
{
    const struct lane *lane = &executor->lanes[source];
    double size = (double)executor->options.plan->chunks[chunk].size_bytes, common, mine, all;
    uint32_t index;
    int unknown;

    if (executor->lane_count < 2)
        return 0;
    common = common_rate(executor);
    mine = end_with(lane, size, common, LEAST_RATE);
    all = common_end(executor, common, &unknown);
    if (mine <= all)
        return 0;
    if (unknown && lane->held > 0 && other_counts(executor, source, chunk, but))
        return 1;
    for (index = 0; index < executor->lane_count; index++) {
        const struct lane *other = &executor->lanes[index];

        if (index != source && index != but && counts(executor, other) &&
            heft_executor_may_take(executor, index, chunk) && end_with(other, size, common, 0) < mine)
            return 1;
    }
    return 0;
}

/* ---- on every tick ---- */

static void look_at(struct slot *slot, uint64_t size)
{
    struct heft_xfer_result result = {.size = sizeof(result)};

    if (slot->bounce)
        heft_xfer_get_result(slot->bounce->in, &result);
    else
        heft_xfer_get_result(slot->xfer, &result);
    if (result.status == HEFT_ERR_AGAIN)
        slot->seen_bytes = result.bytes < size ? result.bytes : size;
}

static void sample_lane(struct heft_executor *executor, struct lane *lane, uint64_t now)
{
    uint64_t was = lane->progress_bytes, passed = now - lane->sampled_ns;
    uint32_t slot;

    lane->seen_bytes = 0;
    for (slot = 0; slot < lane->source->credits && lane->held > 0; slot++) {
        struct slot *each = &lane->slots[slot];

        if (each->state != SLOT_FLYING)
            continue;
        look_at(each, executor->options.plan->chunks[each->chunk].size_bytes);
        lane->seen_bytes += each->seen_bytes;
    }
    lane->progress_bytes = lane->arrived_bytes + lane->seen_bytes;
    lane->sampled_ns = now;
    if (was == 0 && lane->progress_bytes > 0) {
        lane->rate_ns =
            0; /* its rate is what comes after the first bytes: until then it was asked and answered */
    } else if (lane->was_busy) {
        lane->rate_bytes += lane->progress_bytes > was ? (double)(lane->progress_bytes - was) : 0;
        lane->rate_ns += (double)passed;
    }
    lane->was_busy = lane->held > 0;
    while (lane->rate_ns > (double)MEMORY_NS) {
        lane->rate_ns /= 2;
        lane->rate_bytes /= 2;
    }
}

void heft_executor_sample(struct heft_executor *executor, uint64_t now)
{
    uint32_t index;

    if (executor->lane_count < 2 || now < executor->sampled_ns + SAMPLE_NS)
        return;
    executor->sampled_ns = now;
    for (index = 0; index < executor->lane_count; index++)
        sample_lane(executor, &executor->lanes[index], now);
}

/* The slot whose chunk has come least far and may go to `thief`; and how much of it and others is to go
 * already. */
static struct slot *least_done(struct heft_executor *executor, struct lane *lane, uint32_t thief,
                               uint64_t *leaving_bytes_out)
{
    struct slot *least = NULL;
    uint32_t slot;

    *leaving_bytes_out = 0;
    for (slot = 0; slot < lane->source->credits; slot++) {
        struct slot *each = &lane->slots[slot];

        if (each->state != SLOT_FLYING)
            continue;
        if (each->stealing)
            *leaving_bytes_out += executor->options.plan->chunks[each->chunk].size_bytes - each->seen_bytes;
        else if (heft_executor_may_take(executor, thief, each->chunk) &&
                 (!least || each->seen_bytes < least->seen_bytes ||
                  (each->seen_bytes == least->seen_bytes && each->posted_ns > least->posted_ns)))
            least = each;
    }
    return least;
}

/* A slot of the source that would be done last, if `thief`, which is to get so many bytes already, would be
 * done with its chunk clearly sooner. */
static struct slot *find_late(struct heft_executor *executor, uint32_t thief, uint64_t taken_bytes)
{
    const struct lane *taker = &executor->lanes[thief];
    double common = common_rate(executor), latest = 0;
    struct slot *found = NULL;
    uint32_t index;
    int tries = taker->held == 0 && taken_bytes == 0 && seen_rate(taker) == NO_RATE; /* it has to show one */

    for (index = 0; index < executor->lane_count; index++) {
        struct lane *lane = &executor->lanes[index];
        uint64_t leaving = 0, size;
        struct slot *least;
        double end, sooner;

        if (index == thief || !heft_lane_is_live(lane) || lane->held == 0 ||
            (seen_rate(lane) > 0 && lane->rate_ns < (double)SURE_NS))
            continue;
        least = least_done(executor, lane, thief, &leaving);
        if (!least)
            continue;
        size = executor->options.plan->chunks[least->chunk].size_bytes;
        end = end_with(lane, -(double)leaving, common, 0);
        sooner = tries ? 0 : end_with(taker, (double)(taken_bytes + size), common, 0);
        if (end > latest && sooner * MOVE_FACTOR + MOVE_NS < end) {
            latest = end;
            found = least;
        }
    }
    return found;
}

uint32_t heft_executor_pick_late(struct heft_executor *executor, struct slot **slots_out, uint32_t most)
{
    uint32_t count = 0, index, slot;

    for (index = 0; index < executor->lane_count && executor->lane_count > 1; index++) {
        struct lane *lane = &executor->lanes[index];
        uint64_t taken_bytes = 0;

        if (!heft_lane_is_live(lane))
            continue;
        for (slot = 0; slot < lane->source->credits && count < most; slot++) {
            struct slot *late;

            if (lane->slots[slot].state != SLOT_IDLE)
                continue;
            late = find_late(executor, index, taken_bytes);
            if (!late)
                break;
            late->stealing = 1;
            taken_bytes += executor->options.plan->chunks[late->chunk].size_bytes;
            slots_out[count++] = late;
        }
    }
    return count;
}
