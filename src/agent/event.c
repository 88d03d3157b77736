/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/event.h"
#include "agent/inbox.h"
#include "agent/xfer.h"

#include "base/digest.h"
#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- descriptors that can be polled ---- */

int heft_event_fd_open(int *fd, struct heft_error *error)
{
    if (*fd < 0)
        *fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (*fd < 0)
        return heft_error_set_errno(error, errno, "creating an event descriptor");
    return 0;
}

void heft_event_fd_set(int fd, int *is_set, int ready)
{
    uint64_t one = 1;
    ssize_t done;

    if (fd < 0 || *is_set == ready)
        return;
    *is_set = ready;
    done = ready ? write(fd, &one, sizeof(one)) : read(fd, &one, sizeof(one));
    (void)done; /* it can't fail: the count is 0 or 1 */
}

void heft_events_update(struct heft_agent *agent)
{
    heft_event_fd_set(agent->event_fd, &agent->event_fd_is_set,
                      agent->note_first || agent->finished_first || agent->peer_event_first);
}

int heft_agent_event_fd(struct heft_agent *agent, int *fd_out, struct heft_error *error)
{
    int rc, is_new;

    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    (void)pthread_mutex_lock(&agent->event_lock);
    is_new = agent->event_fd < 0;
    rc = heft_event_fd_open(&agent->event_fd, error);
    if (!rc && is_new) {
        agent->bells++;
        heft_inboxes_arm(agent);
    }
    if (!rc) {
        heft_events_update(agent);
        *fd_out = agent->event_fd;
    }
    (void)pthread_mutex_unlock(&agent->event_lock);
    return rc;
}

/* ---- peers ---- */

static void add_event(struct heft_agent *agent, const struct heft_event *event)
{
    struct heft_peer_event *entry = malloc(sizeof(*entry));

    if (!entry) {
        agent->peer_events_missed++;
        return;
    }
    entry->next = NULL;
    entry->event = *event;
    if (agent->peer_event_count == HEFT_EVENTS_MAX) { /* the newest tell more about now */
        struct heft_peer_event *oldest = agent->peer_event_first;

        agent->peer_event_first = oldest->next;
        agent->peer_event_count--;
        agent->peer_events_missed++;
        free(oldest);
    }
    if (agent->peer_event_first)
        agent->peer_event_last->next = entry;
    else
        agent->peer_event_first = entry;
    agent->peer_event_last = entry;
    agent->peer_event_count++;
    (void)pthread_cond_broadcast(&agent->event_cond);
    heft_events_update(agent);
}

static struct heft_event make_event(enum heft_event_kind kind, const char *name, const uint8_t *generation,
                                    uint64_t epoch)
{
    struct heft_event event = {.size = sizeof(event), .kind = kind, .epoch = epoch};

    (void)snprintf(event.peer, sizeof(event.peer), "%s", name);
    memcpy(event.generation.bytes, generation, sizeof(event.generation.bytes));
    return event;
}

void heft_events_peer_joined(struct heft_agent *agent, const char *name, const uint8_t *generation,
                             uint64_t epoch)
{
    uint64_t hash = heft_hash64(name, strlen(name), 0);
    struct heft_event event;
    uint32_t index, known;

    if (!(agent->flags & HEFT_AGENT_PEER_EVENTS))
        return;
    event = make_event(HEFT_EVENT_PEER_JOINED, name, generation, epoch);
    (void)pthread_mutex_lock(&agent->event_lock);
    known = agent->ended_count < HEFT_EVENT_NAMES_MAX ? (uint32_t)agent->ended_count : HEFT_EVENT_NAMES_MAX;
    for (index = 0; index < known; index++)
        if (agent->ended_names[index] == hash)
            event.kind = HEFT_EVENT_PEER_BACK;
    add_event(agent, &event);
    (void)pthread_mutex_unlock(&agent->event_lock);
}

static void remember_name(struct heft_agent *agent, const char *name)
{
    uint64_t hash = heft_hash64(name, strlen(name), 0);

    if (!agent->ended_names)
        agent->ended_names = calloc(HEFT_EVENT_NAMES_MAX, sizeof(*agent->ended_names));
    if (agent->ended_names) /* else it only joins again, instead of being back */
        agent->ended_names[agent->ended_count++ % HEFT_EVENT_NAMES_MAX] = hash;
}

void heft_events_peer_ended(struct heft_agent *agent, const char *name, const uint8_t *generation,
                            uint64_t epoch, int status, const struct heft_error *error)
{
    struct heft_event event;

    if (!(agent->flags & HEFT_AGENT_PEER_EVENTS))
        return;
    event = make_event(status ? HEFT_EVENT_PEER_LOST : HEFT_EVENT_PEER_LEFT, name, generation, epoch);
    event.status = status;
    event.error = *error;
    (void)pthread_mutex_lock(&agent->event_lock);
    if (epoch)
        remember_name(agent, name);
    add_event(agent, &event);
    (void)pthread_mutex_unlock(&agent->event_lock);
}

/* ---- taking ---- */

/* Waits until `first` is not NULL: 0, with event_lock held and a reference of the agent; or the answer, with
 * neither. */
static int await_event(struct heft_agent *agent, const void *const *first, uint64_t timeout_ms)
{
    uint64_t until_ns = heft_deadline_after_ms(timeout_ms);
    int rc = 0;

    if (heft_agent_forked(agent) || (timeout_ms && heft_agent_on_worker(agent)))
        return HEFT_ERR_STATE;
    heft_agent_ref(agent); /* it may be closed while this waits */
    (void)pthread_mutex_lock(&agent->event_lock);
    while (!*first && !agent->events_closed && !rc && timeout_ms)
        rc = heft_agent_wait(agent, &agent->event_cond, &agent->event_lock, until_ns);
    if (*first)
        return 0;
    rc = agent->events_closed ? HEFT_ERR_CANCELED : HEFT_ERR_AGAIN;
    (void)pthread_mutex_unlock(&agent->event_lock);
    heft_agent_unref(agent);
    return rc;
}

static void took_event(struct heft_agent *agent)
{
    heft_events_update(agent);
    (void)pthread_mutex_unlock(&agent->event_lock);
    heft_agent_unref(agent);
}

int heft_agent_next_event(struct heft_agent *agent, struct heft_event *event_out, uint64_t timeout_ms)
{
    size_t size = event_out->size;
    struct heft_peer_event *entry;
    int rc;

    if (size < sizeof(size) || !(agent->flags & HEFT_AGENT_PEER_EVENTS))
        return HEFT_ERR_INVALID;
    rc = await_event(agent, (const void *const *)(const void *)&agent->peer_event_first, timeout_ms);
    if (rc)
        return rc;
    entry = agent->peer_event_first;
    agent->peer_event_first = entry->next;
    agent->peer_event_count--;
    entry->event.missed = agent->peer_events_missed;
    agent->peer_events_missed = 0;
    took_event(agent);
    if (size > sizeof(entry->event))
        size = sizeof(entry->event);
    entry->event.size = size;
    memcpy(event_out, &entry->event, size);
    free(entry);
    return 0;
}

static void unlink_finished(struct heft_xfer *xfer)
{
    struct heft_agent *agent = xfer->agent;

    if (xfer->finished_prev)
        xfer->finished_prev->finished_next = xfer->finished_next;
    else
        agent->finished_first = xfer->finished_next;
    if (xfer->finished_next)
        xfer->finished_next->finished_prev = xfer->finished_prev;
    else
        agent->finished_last = xfer->finished_prev;
    xfer->finished_prev = xfer->finished_next = NULL;
    xfer->finished_listed = 0;
}

void heft_events_finished(struct heft_xfer *xfer)
{
    struct heft_agent *agent = xfer->agent;

    if (!(xfer->options.flags & HEFT_XFER_EVENT))
        return;
    (void)pthread_mutex_lock(&agent->event_lock);
    if (!agent->events_closed) {
        xfer->finished_listed = 1;
        xfer->finished_next = NULL;
        xfer->finished_prev = agent->finished_last;
        if (xfer->finished_prev)
            xfer->finished_prev->finished_next = xfer;
        else
            agent->finished_first = xfer;
        agent->finished_last = xfer;
        (void)pthread_cond_broadcast(&agent->event_cond);
        heft_events_update(agent);
    }
    (void)pthread_mutex_unlock(&agent->event_lock);
}

void heft_events_forget(struct heft_xfer *xfer)
{
    struct heft_agent *agent = xfer->agent;

    if (!(xfer->options.flags & HEFT_XFER_EVENT))
        return;
    (void)pthread_mutex_lock(&agent->event_lock);
    if (xfer->finished_listed) {
        unlink_finished(xfer);
        heft_events_update(agent);
    }
    (void)pthread_mutex_unlock(&agent->event_lock);
}

int heft_agent_next_finished(struct heft_agent *agent, struct heft_xfer **xfer_out, uint64_t timeout_ms)
{
    int rc = await_event(agent, (const void *const *)(const void *)&agent->finished_first, timeout_ms);

    if (rc)
        return rc;
    *xfer_out = agent->finished_first;
    unlink_finished(*xfer_out);
    took_event(agent);
    return 0;
}

/* ---- the first of many ---- */

void heft_events_wake_any(struct heft_agent *agent)
{
    /* Whoever waits counted itself before it looked at the transfer, under the lock that has just been given
     * back with the news: so either this sees the count, or it has seen the news. */
    if (!__atomic_load_n(&agent->any_waiters, __ATOMIC_SEQ_CST))
        return;
    (void)pthread_mutex_lock(&agent->event_lock);
    agent->any_news++;
    (void)pthread_cond_broadcast(&agent->any_cond);
    (void)pthread_mutex_unlock(&agent->event_lock);
}

/* 0 with the first that has ended; AGAIN: some are active; STATE: none was posted; INVALID. */
static int look_any(struct heft_xfer *const *xfers, size_t count, const struct heft_agent *agent,
                    size_t *index_out)
{
    int active = 0;
    size_t index;

    for (index = 0; index < count; index++) {
        int status;

        if (!xfers[index])
            continue;
        if (xfers[index]->agent != agent)
            return HEFT_ERR_INVALID;
        status = heft_xfer_look(xfers[index]);
        if (status == HEFT_ERR_AGAIN)
            active = 1;
        else if (status != HEFT_ERR_STATE) {
            *index_out = index;
            return 0;
        }
    }
    return active ? HEFT_ERR_AGAIN : HEFT_ERR_STATE;
}

int heft_xfer_wait_any(struct heft_xfer *const *xfers, size_t count, uint64_t timeout_ms, size_t *index_out)
{
    uint64_t until_ns = heft_deadline_after_ms(timeout_ms);
    struct heft_agent *agent = NULL;
    int rc, late = 0;
    size_t index;

    for (index = 0; index < count && !agent; index++)
        if (xfers[index])
            agent = xfers[index]->agent;
    if (!agent)
        return HEFT_ERR_STATE;
    if (heft_agent_forked(agent) || (timeout_ms && heft_agent_on_worker(agent)))
        return HEFT_ERR_STATE;
    heft_agent_ref(agent); /* another thread may release the last transfer of a closed agent */
    (void)__atomic_add_fetch(&agent->any_waiters, 1, __ATOMIC_SEQ_CST);
    for (;;) {
        uint64_t news;

        (void)pthread_mutex_lock(&agent->event_lock);
        news = agent->any_news;
        (void)pthread_mutex_unlock(&agent->event_lock);
        rc = look_any(xfers, count, agent, index_out);
        if (rc != HEFT_ERR_AGAIN || late || !timeout_ms)
            break;
        (void)pthread_mutex_lock(&agent->event_lock);
        while (news == agent->any_news && !late)
            late = heft_agent_wait(agent, &agent->any_cond, &agent->event_lock, until_ns) != 0;
        (void)pthread_mutex_unlock(&agent->event_lock);
    }
    (void)__atomic_sub_fetch(&agent->any_waiters, 1, __ATOMIC_SEQ_CST);
    heft_agent_unref(agent);
    return rc;
}

void heft_events_shut(struct heft_agent *agent)
{
    struct heft_peer_event *entry;

    (void)pthread_cond_broadcast(&agent->event_cond);
    while (agent->finished_first)
        unlink_finished(agent->finished_first);
    while ((entry = agent->peer_event_first) != NULL) {
        agent->peer_event_first = entry->next;
        free(entry);
    }
    agent->peer_event_count = 0;
    free(agent->ended_names);
    agent->ended_names = NULL;
    agent->ended_count = 0;
    if (agent->event_fd >= 0)
        (void)close(agent->event_fd);
    agent->event_fd = -1;
}
