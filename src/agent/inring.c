/* SPDX-License-Identifier: Apache-2.0 */
/* The rings of connected peers: taking what is in them, and being rung. See inbox.h. */
#include "agent/inbox.h"

#include "base/clock.h"

#define LOOKS_PER_PAUSE 16 /* a pause takes up to 140 cycles */
#define PAUSES_PER_LOCK 8

void heft_inbox_drain(struct heft_inbox *inbox)
{
    uint64_t left =
        inbox->ring.mask + 1; /* as many as it holds; who writes on rings, or is looked at again */
    struct heft_ring_record record;
    int rc;

    if (!inbox->ring.shared || inbox->broken)
        return;
    while (left-- > 0) {
        rc = heft_ring_peek(&inbox->ring, &record);
        if (rc == 0)
            return;
        if (rc == 1 && record.kind == HEFT_RING_NOTE && (int32_t)(record.value - inbox->note_frames) > 0)
            return; /* a frame comes first; it drains then */
        if (rc == 1)
            rc = heft_inbox_take_record(inbox, &record, &inbox->broken_why);
        else
            inbox->broken_why = "what it wrote into its ring makes no sense";
        if (rc) {
            inbox->broken = rc;
            heft_inbox_ask_control(inbox->agent);
            return;
        }
    }
}

void heft_inbox_arm(struct heft_inbox *inbox)
{
    if (!inbox->ring.shared || (!inbox->bells && !inbox->agent->bells))
        return;
    heft_ring_arm(&inbox->ring);
    heft_inbox_drain(inbox);
}

void heft_inboxes_drain(struct heft_agent *agent)
{
    struct heft_inbox *inbox;

    if (!agent->ring_count || agent->rings_are_many)
        return;
    for (inbox = agent->inbox_first; inbox; inbox = inbox->next)
        heft_inbox_drain(inbox);
}

void heft_inboxes_arm(struct heft_agent *agent)
{
    struct heft_inbox *inbox;

    if (!agent->ring_count || agent->rings_are_many)
        return;
    for (inbox = agent->inbox_first; inbox; inbox = inbox->next)
        heft_inbox_arm(inbox);
}

void heft_inbox_set_ring(struct heft_inbox *inbox, const struct heft_ring *ring)
{
    struct heft_agent *agent = inbox->agent;

    (void)pthread_mutex_lock(&agent->event_lock);
    inbox->ring = *ring;
    if (++agent->ring_count > HEFT_INBOX_RINGS_LOOKED_AT && !agent->rings_are_many) {
        agent->bells++;
        heft_inboxes_arm(agent);
        agent->rings_are_many = 1;
    }
    heft_inbox_arm(inbox);
    (void)pthread_mutex_unlock(&agent->event_lock);
}

void heft_inbox_rung(struct heft_inbox *inbox)
{
    (void)pthread_mutex_lock(&inbox->agent->event_lock);
    heft_ring_hear(&inbox->ring);
    inbox->ring.armed = 0;
    heft_inbox_drain(inbox);
    heft_inbox_arm(inbox);
    (void)pthread_mutex_unlock(&inbox->agent->event_lock);
}

int heft_inbox_take_wake(struct heft_inbox *inbox, int *fd_out, uint32_t *serial_out)
{
    (void)pthread_mutex_lock(&inbox->agent->event_lock);
    *fd_out = inbox->wake_unsent;
    *serial_out = inbox->wake_serial;
    inbox->wake_unsent = -1;
    (void)pthread_mutex_unlock(&inbox->agent->event_lock);
    return *fd_out >= 0;
}

int heft_inbox_broken(struct heft_inbox *inbox, const char **why_out)
{
    int rc;

    (void)pthread_mutex_lock(&inbox->agent->event_lock);
    rc = inbox->broken;
    *why_out = inbox->broken_why;
    (void)pthread_mutex_unlock(&inbox->agent->event_lock);
    return rc;
}

/* ---- looking ---- */

static void pause_a_little(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("" ::: "memory");
#endif
}

static int is_time_left(uint64_t *until_ns)
{
    uint64_t now_ns = heft_now_ns();

    if (!*until_ns)
        *until_ns = now_ns + HEFT_INBOX_SPIN_NS;
    return now_ns <= *until_ns;
}

/* 1: the record came; 0: not for a few hundred nanoseconds. */
static int look_at(struct heft_ring_sight sight)
{
    int pauses, looks;

    for (pauses = 0; pauses < PAUSES_PER_LOCK; pauses++) {
        for (looks = 0; looks < LOOKS_PER_PAUSE; looks++)
            if (heft_ring_is_there(sight))
                return 1;
        pause_a_little();
    }
    return 0;
}

int heft_inbox_spin(struct heft_inbox *inbox, uint64_t *until_ns)
{
    struct heft_ring_sight sight = heft_ring_next_sight(&inbox->ring);
    struct heft_agent *agent = inbox->agent;
    int found;

    inbox->refs++; /* whoever keeps it may let go of it meanwhile */
    inbox->lookers++;
    (void)pthread_mutex_unlock(&agent->event_lock);
    found = look_at(sight);
    (void)pthread_mutex_lock(&agent->event_lock);
    if (--inbox->lookers == 0)
        heft_ring_close(&inbox->left_ring);
    heft_inbox_unref(inbox);
    return found || is_time_left(until_ns);
}

/* The one ring that there is to look at, or NULL. */
static struct heft_inbox *only_ring(const struct heft_agent *agent)
{
    struct heft_inbox *inbox = agent->inbox_first;

    while (agent->ring_count == 1 && inbox && !inbox->ring.shared)
        inbox = inbox->next;
    return agent->ring_count == 1 ? inbox : NULL;
}

int heft_inboxes_spin(struct heft_agent *agent, uint64_t *until_ns)
{
    struct heft_inbox *inbox = only_ring(agent);

    if (inbox)
        return heft_inbox_spin(inbox, until_ns);
    (void)pthread_mutex_unlock(&agent->event_lock);
    pause_a_little();
    (void)pthread_mutex_lock(&agent->event_lock);
    return is_time_left(until_ns);
}

void heft_inbox_close_ring(struct heft_inbox *inbox)
{
    if (!inbox->ring.shared)
        return;
    inbox->agent->ring_count--;
    if (!inbox->lookers) {
        heft_ring_close(&inbox->ring);
        return;
    }
    inbox->left_ring = inbox->ring; /* who looks last closes it */
    inbox->ring.shared = NULL;
}
