/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deadlines and stall limits. One timer of the control worker looks at the active transfers; it runs while
 * there are any and for a second after, so that posting wakes nobody in the common case.
 */
#include "agent/xfer.h"

#include "base/clock.h"

#include <stdio.h>

#define LOOK_MS 25 /* between two looks, at most */
#define LOOK_MIN_NS (2 * HEFT_NS_PER_MS)
#define IDLE_NS HEFT_NS_PER_S
#define BATCH 64

/* When this transfer wants to be looked at. active_lock held. */
static uint64_t wanted_ns(const struct heft_xfer *xfer, uint64_t now_ns)
{
    uint64_t stall_at = xfer->last_progress_ns + xfer->stall_ns;
    uint64_t at = xfer->deadline_ns < stall_at ? xfer->deadline_ns : stall_at;
    uint64_t tenth = now_ns + xfer->stall_ns / 10; /* progress is seen to a tenth of the limit */

    if (at > tenth)
        at = tenth;
    if (at > now_ns + LOOK_MS * HEFT_NS_PER_MS)
        at = now_ns + LOOK_MS * HEFT_NS_PER_MS;
    return at < now_ns + LOOK_MIN_NS ? now_ns + LOOK_MIN_NS : at;
}

void heft_monitor_watch(struct heft_xfer *xfer)
{
    struct heft_agent *agent = xfer->agent;
    uint64_t at = wanted_ns(xfer, xfer->start_ns);

    if (agent->monitor_running && agent->monitor_next_ns <= at)
        return;
    agent->monitor_next_ns = at;
    agent->monitor_running = 1;
    if (agent->monitor_queued)
        return;
    agent->monitor_queued = 1;
    heft_worker_submit(agent->control, &agent->monitor_job);
}

/* 0, DEADLINE or STALLED. active_lock held. */
static int expired(struct heft_xfer *xfer, uint64_t now_ns, char *text_out, size_t size_bytes)
{
    uint64_t bytes = __atomic_load_n(&xfer->op.done_bytes, __ATOMIC_RELAXED);

    if (bytes != xfer->last_bytes) {
        xfer->last_bytes = bytes;
        xfer->last_progress_ns = now_ns;
    }
    if (now_ns >= xfer->deadline_ns) {
        (void)snprintf(text_out, size_bytes, "the deadline of %llu ms passed",
                       (unsigned long long)xfer->options.deadline_ms);
        return HEFT_ERR_DEADLINE;
    }
    /* One that was posted after this look began, from another thread, has its time before it. */
    if (now_ns > xfer->last_progress_ns && now_ns - xfer->last_progress_ns >= xfer->stall_ns) {
        (void)snprintf(text_out, size_bytes, "not a byte came for %llu ms (limit: stall_ms %llu)",
                       (unsigned long long)((now_ns - xfer->last_progress_ns) / HEFT_NS_PER_MS),
                       (unsigned long long)xfer->options.stall_ms);
        return HEFT_ERR_STALLED;
    }
    return 0;
}

struct late {
    struct heft_xfer *xfer;
    uint64_t op_id;
    int code;
    char text[128];
};

/* Those whose time is over, each held by a reference; *next_out: when to look again. */
static size_t collect(struct heft_agent *agent, uint64_t now_ns, struct late late[BATCH], uint64_t *next_out)
{
    uint64_t next = now_ns + LOOK_MS * HEFT_NS_PER_MS;
    struct heft_xfer *xfer;
    size_t count = 0;

    for (xfer = agent->active_first; xfer && count < BATCH; xfer = xfer->next) {
        uint64_t wanted;

        if (xfer->expiring)
            continue;
        late[count].code = expired(xfer, now_ns, late[count].text, sizeof(late[count].text));
        if (late[count].code) {
            xfer->expiring = 1;
            (void)__atomic_add_fetch(&xfer->refs, 1, __ATOMIC_RELAXED);
            late[count].op_id = xfer->op.id;
            late[count++].xfer = xfer;
            continue;
        }
        wanted = wanted_ns(xfer, now_ns);
        if (wanted < next)
            next = wanted;
    }
    *next_out = xfer ? now_ns : next;
    return count;
}

static void look(struct heft_agent *agent)
{
    struct late late[BATCH];
    size_t count, index;
    uint64_t now_ns, next;
    int stop;

    do {
        now_ns = heft_now_ns();
        (void)pthread_mutex_lock(&agent->active_lock);
        count = collect(agent, now_ns, late, &next);
        if (agent->active_first)
            agent->monitor_idle_since_ns = 0;
        else if (!agent->monitor_idle_since_ns)
            agent->monitor_idle_since_ns = now_ns;
        stop = agent->monitor_idle_since_ns && now_ns - agent->monitor_idle_since_ns > IDLE_NS;
        agent->monitor_running = !stop || agent->monitor_queued;
        agent->monitor_next_ns = next;
        (void)pthread_mutex_unlock(&agent->active_lock);
        for (index = 0; index < count; index++) {
            heft_xfer_end_early(late[index].xfer, late[index].op_id, late[index].code, late[index].text);
            heft_xfer_unref(late[index].xfer);
        }
    } while (count == BATCH);
    if (stop)
        agent->monitor_idle_since_ns = 0;
    heft_timer_set(agent->control, &agent->monitor_timer, stop ? 0 : next);
}

void heft_monitor_fire(struct heft_timer *timer)
{
    look(HEFT_CONTAINER_OF(timer, struct heft_agent, monitor_timer));
}

void heft_monitor_job_run(struct heft_job *job, struct heft_worker *worker)
{
    struct heft_agent *agent = HEFT_CONTAINER_OF(job, struct heft_agent, monitor_job);

    (void)worker;
    (void)pthread_mutex_lock(&agent->active_lock);
    agent->monitor_queued = 0;
    (void)pthread_mutex_unlock(&agent->active_lock);
    look(agent);
}
