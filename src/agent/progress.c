/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent without threads: its workers run on the threads of its callers, in heft_agent_progress and
 * wherever a call waits.
 */
#include "agent/agent_internal.h"

#include "base/clock.h"
#include "base/error.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

/* A wait sleeps at most so long in one piece: another thread may do the work that it waits for. */
#define SLICE_NS (2 * HEFT_NS_PER_MS)
/* The descriptor is readable, but the worker that has something to do is being run by another thread. */
#define BUSY_US 100

int heft_progress_open(struct heft_agent *agent, struct heft_error *error)
{
    int rc;

    agent->progress_fd = epoll_create1(EPOLL_CLOEXEC);
    if (agent->progress_fd < 0)
        return heft_error_set_errno(error, errno, "making an agent's epoll descriptor (see ulimit -n)");
    rc = heft_pool_add_to_epoll(agent->control_pool, agent->progress_fd, error);
    if (!rc)
        rc = heft_pool_add_to_epoll(agent->pool, agent->progress_fd, error);
    if (rc)
        heft_progress_close(agent);
    return rc;
}

/* Counted in before it looks whether it may: who ends it sees the one or the other. */
static int enter(struct heft_agent *agent)
{
    (void)__atomic_add_fetch(&agent->progress_users, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&agent->progress_ended, __ATOMIC_SEQ_CST))
        return 1;
    (void)__atomic_sub_fetch(&agent->progress_users, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static void leave(struct heft_agent *agent)
{
    (void)__atomic_sub_fetch(&agent->progress_users, 1, __ATOMIC_SEQ_CST);
}

void heft_progress_close(struct heft_agent *agent)
{
    __atomic_store_n(&agent->progress_ended, 1, __ATOMIC_SEQ_CST);
    while (agent->progress_fd >= 0 && __atomic_load_n(&agent->progress_users, __ATOMIC_SEQ_CST)) {
        heft_pool_nudge(agent->control_pool); /* who sleeps looks up and leaves */
        (void)sched_yield();
    }
    if (agent->progress_fd >= 0)
        (void)close(agent->progress_fd);
    agent->progress_fd = -1;
}

static unsigned run_workers(struct heft_agent *agent)
{
    unsigned done = heft_pool_progress(agent->control_pool);

    return done + heft_pool_progress(agent->pool);
}

/* Until there may be something to do, then does it: how much it was. */
static unsigned sleep_until(struct heft_agent *agent, uint64_t until_ns)
{
    uint64_t now_ns = heft_now_ns(), ms;
    struct epoll_event event;
    unsigned done;

    if (until_ns <= now_ns)
        return 0;
    ms = (until_ns - now_ns + HEFT_NS_PER_MS - 1) / HEFT_NS_PER_MS;
    if (epoll_wait(agent->progress_fd, &event, 1, ms > 60000 ? 60000 : (int)ms) <= 0)
        return 0;
    done = run_workers(agent);
    if (!done)
        (void)usleep(BUSY_US);
    return done;
}

int heft_agent_wait(struct heft_agent *agent, pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns)
{
    uint64_t now_ns;

    if (!(agent->flags & HEFT_AGENT_CALLER_PROGRESS) || !enter(agent)) {
        if (until_ns < UINT64_MAX)
            return heft_cond_wait_until(cond, lock, until_ns);
        (void)pthread_cond_wait(cond, lock);
        return 0;
    }
    (void)pthread_mutex_unlock(lock);
    if (!run_workers(agent)) {
        now_ns = heft_now_ns();
        (void)sleep_until(agent, until_ns < now_ns + SLICE_NS ? until_ns : now_ns + SLICE_NS);
    }
    leave(agent);
    (void)pthread_mutex_lock(lock);
    return heft_now_ns() >= until_ns ? HEFT_ERR_AGAIN : 0;
}

int heft_agent_progress(struct heft_agent *agent, uint64_t timeout_ms)
{
    uint64_t until_ns = heft_deadline_after_ms(timeout_ms);
    int rc = HEFT_ERR_AGAIN;

    if (heft_agent_forked(agent) || !(agent->flags & HEFT_AGENT_CALLER_PROGRESS) ||
        heft_agent_on_worker(agent))
        return HEFT_ERR_STATE;
    heft_agent_ref(agent); /* it may be closed meanwhile */
    if (!enter(agent)) {
        heft_agent_unref(agent);
        return HEFT_ERR_CANCELED;
    }
    do {
        if (run_workers(agent))
            rc = 0;
        else if (__atomic_load_n(&agent->progress_ended, __ATOMIC_SEQ_CST))
            rc = HEFT_ERR_CANCELED;
        else if (sleep_until(agent, until_ns))
            rc = 0;
    } while (rc == HEFT_ERR_AGAIN && heft_now_ns() < until_ns);
    leave(agent);
    heft_agent_unref(agent);
    return rc;
}

int heft_agent_progress_fd(struct heft_agent *agent, int *fd_out, struct heft_error *error)
{
    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    if (agent->progress_fd < 0)
        return heft_error_set(error, HEFT_ERR_STATE,
                              "agent '%s' has threads of its own: open it with HEFT_AGENT_CALLER_PROGRESS",
                              agent->name);
    *fd_out = agent->progress_fd;
    return 0;
}
