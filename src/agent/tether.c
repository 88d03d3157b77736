/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/tether.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

struct heft_tether {
    struct heft_watch watch;
    struct heft_agent *agent;
    struct heft_tether *prev, *next;
    uint64_t last_sequence;
    struct heft_gone *gone;
};

int heft_gone_add(struct heft_agent *agent, struct heft_gone **list, struct heft_region *region)
{
    struct heft_gone *gone = malloc(sizeof(*gone));

    if (!gone)
        return HEFT_ERR_NO_MEMORY;
    gone->region = region;
    gone->next = *list;
    *list = gone;
    heft_region_ref(region);
    (void)pthread_mutex_lock(&agent->region_lock);
    region->holders++;
    (void)pthread_mutex_unlock(&agent->region_lock);
    return 0;
}

void heft_gone_drop(struct heft_agent *agent, struct heft_gone **at)
{
    struct heft_gone *gone = *at;

    *at = gone->next;
    (void)pthread_mutex_lock(&agent->region_lock);
    gone->region->holders--;
    (void)pthread_cond_broadcast(&agent->region_cond);
    (void)pthread_mutex_unlock(&agent->region_lock);
    heft_region_unref(gone->region);
    free(gone);
}

static void end_tether(struct heft_tether *tether)
{
    struct heft_agent *agent = tether->agent;

    if (tether->prev)
        tether->prev->next = tether->next;
    else
        agent->tethers = tether->next;
    if (tether->next)
        tether->next->prev = tether->prev;
    agent->tether_count--;
    heft_watch_remove(&tether->watch);
    (void)close(tether->watch.fd);
    while (tether->gone)
        heft_gone_drop(agent, &tether->gone);
    free(tether);
}

/* What it still says is of no interest; only that it ends. */
static void tether_ready(struct heft_watch *watch, uint32_t events)
{
    struct heft_tether *tether = HEFT_CONTAINER_OF(watch, struct heft_tether, watch);
    char waste[4096];
    ssize_t got;

    (void)events;
    do
        got = recv(watch->fd, waste, sizeof(waste), MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK))
        end_tether(tether);
}

void heft_tether_start(struct heft_agent *agent, int fd, uint64_t last_sequence, struct heft_gone **gone)
{
    struct heft_tether *tether = calloc(1, sizeof(*tether));
    struct heft_tether *oldest;

    if (tether) {
        tether->watch.fd = fd;
        tether->watch.ready = tether_ready;
    }
    if (!tether || heft_watch_add(agent->control, &tether->watch, EPOLLIN, NULL)) {
        heft_log(HEFT_LOG_WARN, "agent %s: out of memory: a frozen peer may still write what it was writing",
                 agent->name);
        (void)close(fd);
        free(tether);
        return;
    }
    (void)shutdown(fd, SHUT_WR); /* it hears the end when it wakes */
    tether->agent = agent;
    tether->last_sequence = last_sequence;
    while (*gone) {
        struct heft_gone *first = *gone;

        if (!(first->region->t.flags & HEFT_REGION_REMOTE_WRITE)) {
            heft_gone_drop(agent, gone);
            continue;
        }
        *gone = first->next;
        first->next = tether->gone;
        tether->gone = first;
    }
    tether->next = agent->tethers;
    if (tether->next)
        tether->next->prev = tether;
    agent->tethers = tether;
    if (++agent->tether_count <= agent->max_peers)
        return;
    for (oldest = tether; oldest->next; oldest = oldest->next)
        ;
    heft_log(HEFT_LOG_WARN, "agent %s: more than max_peers frozen peers: the oldest is not waited for",
             agent->name);
    end_tether(oldest);
}

void heft_tethers_withdraw(struct heft_agent *agent, struct heft_region *region)
{
    struct heft_tether *tether;

    if (!(region->t.flags & HEFT_REGION_REMOTE_WRITE))
        return;
    for (tether = agent->tethers; tether; tether = tether->next)
        if (tether->last_sequence >= region->sequence && heft_gone_add(agent, &tether->gone, region))
            heft_log(HEFT_LOG_WARN, "agent %s: out of memory: a frozen peer is not waited for", agent->name);
}

void heft_tethers_drop(void *context)
{
    struct heft_agent *agent = context;

    while (agent->tethers)
        end_tether(agent->tethers);
}
