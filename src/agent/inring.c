/* SPDX-License-Identifier: Apache-2.0 */
/* The rings of connected peers: taking what is in them, and being rung. See inbox.h. */
#include "agent/inbox.h"

#include "base/clock.h"

#define PAUSES 1 /* of up to 140 cycles each */
#define LOOKS_PER_CLOCK 8

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

static void pause_a_little(void)
{
    int turn;

    for (turn = 0; turn < PAUSES; turn++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#else
        __asm__ volatile("" ::: "memory");
#endif
    }
}

int heft_inbox_spin(struct heft_agent *agent, struct heft_spin *spin)
{
    if (spin->looks++ % LOOKS_PER_CLOCK == 0) {
        uint64_t now_ns = heft_now_ns();

        if (!spin->until_ns)
            spin->until_ns = now_ns + HEFT_INBOX_SPIN_NS;
        if (now_ns > spin->until_ns)
            return 0;
    }
    (void)pthread_mutex_unlock(&agent->event_lock);
    pause_a_little();
    (void)pthread_mutex_lock(&agent->event_lock);
    return 1;
}
