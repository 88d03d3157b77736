/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/inbox.h"

#include "base/clock.h"
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char NO_CREDIT[] = "a notification without the credit for it";

/* ---- connections ---- */

void heft_inbox_unref(struct heft_inbox *inbox)
{
    struct heft_table_node *node;

    if (--inbox->refs)
        return;
    while ((node = heft_table_any(&inbox->counts)) != NULL) {
        heft_table_remove(&inbox->counts, node);
        free(HEFT_CONTAINER_OF(node, struct heft_count, node));
    }
    heft_table_free(&inbox->counts);
    free(inbox);
}

void heft_inbox_unlist(struct heft_inbox *inbox)
{
    struct heft_agent *agent = inbox->agent;

    if (!inbox->listed)
        return;
    inbox->listed = 0;
    if (inbox->prev)
        inbox->prev->next = inbox->next;
    else
        agent->inbox_first = inbox->next;
    if (inbox->next)
        inbox->next->prev = inbox->prev;
    if (!inbox->live)
        agent->inbox_gone--;
    heft_inbox_unref(inbox);
}

static void list_first(struct heft_inbox *inbox)
{
    struct heft_agent *agent = inbox->agent;

    inbox->listed = 1;
    inbox->refs++;
    inbox->prev = NULL;
    inbox->next = agent->inbox_first;
    if (inbox->next)
        inbox->next->prev = inbox;
    agent->inbox_first = inbox;
}

struct heft_inbox *heft_inbox_new(struct heft_agent *agent, uint64_t epoch, const char *name,
                                  const uint8_t *generation)
{
    struct heft_inbox *inbox = calloc(1, sizeof(*inbox));

    if (!inbox)
        return NULL;
    inbox->agent = agent;
    inbox->refs = 1;
    inbox->epoch = epoch;
    inbox->live = 1;
    inbox->wake_unsent = -1;
    inbox->window_bytes = agent->notification_window_bytes;
    (void)snprintf(inbox->name, sizeof(inbox->name), "%s", name);
    memcpy(inbox->generation.bytes, generation, sizeof(inbox->generation.bytes));
    heft_table_init(&inbox->counts);
    (void)pthread_mutex_lock(&agent->event_lock);
    list_first(inbox);
    heft_counters_begin(inbox);
    (void)pthread_mutex_unlock(&agent->event_lock);
    return inbox;
}

void heft_inbox_ask_control(struct heft_agent *agent)
{
    if (agent->credit_queued)
        return;
    agent->credit_queued = 1;
    heft_worker_submit(agent->control, &agent->credit_job);
}

/* An ended connection is kept while counters of it may still be opened; the oldest of too many is dropped. */
static void keep_or_drop(struct heft_inbox *inbox)
{
    struct heft_agent *agent = inbox->agent;
    struct heft_inbox *oldest;

    agent->inbox_gone++;
    if (!inbox->early) {
        heft_inbox_unlist(inbox);
        return;
    }
    if (agent->inbox_gone <= HEFT_INBOX_GONE_MAX)
        return;
    for (oldest = inbox; oldest->next; oldest = oldest->next)
        ;
    while (oldest->live)
        oldest = oldest->prev;
    heft_inbox_unlist(oldest);
}

void heft_inbox_end(struct heft_inbox *inbox, int code, const char *why)
{
    struct heft_agent *agent = inbox->agent;
    char generation[HEFT_GENERATION_TEXT_BYTES];

    (void)pthread_mutex_lock(&agent->event_lock);
    heft_inbox_drain(inbox);
    heft_inbox_close_ring(inbox);
    if (inbox->wake_unsent >= 0)
        (void)close(inbox->wake_unsent);
    inbox->wake_unsent = -1;
    inbox->live = 0;
    (void)heft_error_set(&inbox->end, code, "peer '%s' (generation %s): %s", inbox->name,
                         heft_generation_text(inbox->generation.bytes, generation), why);
    if (inbox->granted) { /* what is queued stays reserved */
        agent->notification_reserved -= inbox->window_bytes - inbox->queued_bytes;
        heft_inbox_ask_control(agent);
    }
    heft_counters_end(inbox);
    keep_or_drop(inbox);
    heft_inbox_unref(inbox);
    (void)pthread_mutex_unlock(&agent->event_lock);
}

/* ---- what comes ---- */

static struct heft_innote *note_new(struct heft_inbox *inbox, size_t size)
{
    size_t place = (size + sizeof(uint64_t) * 2 - 1) & ~(sizeof(uint64_t) * 2 - 1);
    uint8_t *data = malloc(place + sizeof(struct heft_innote));
    struct heft_innote *note;

    if (!data)
        return NULL;
    note = (struct heft_innote *)(void *)(data + place);
    *note = (struct heft_innote){.inbox = inbox, .size = size, .data = data};
    return note;
}

/* event_lock held. */
static void append(struct heft_innote *note)
{
    struct heft_inbox *inbox = note->inbox;
    struct heft_agent *agent = inbox->agent;
    uint64_t cost = note->size + HEFT_WIRE_NOTIFICATION_COST_BYTES;

    HEFT_COUNT(agent, notifications_received, 1);
    inbox->open_bytes -= cost;
    inbox->queued_bytes += cost;
    inbox->refs++;
    if (agent->note_last)
        agent->note_last->next = note;
    else
        agent->note_first = note;
    agent->note_last = note;
    (void)pthread_cond_signal(&agent->note_cond);
    heft_events_update(agent);
}

int heft_inbox_notify(struct heft_inbox *inbox, const struct heft_frame *frame, const uint8_t *payload,
                      const char **why_out)
{
    struct heft_agent *agent = inbox->agent;
    struct heft_wire_text text;
    struct heft_innote *note;

    *why_out = "a malformed NOTIFY";
    if (heft_wire_get_notify(payload, frame->payload_bytes, &text))
        return HEFT_ERR_PROTOCOL;
    *why_out = "out of memory for a notification";
    note = note_new(inbox, text.size);
    if (!note)
        return HEFT_ERR_NO_MEMORY;
    if (text.size)
        memcpy(note->data, text.data, text.size);
    (void)pthread_mutex_lock(&agent->event_lock);
    heft_inbox_drain(inbox); /* those are older */
    if (text.size + HEFT_WIRE_NOTIFICATION_COST_BYTES > inbox->open_bytes) {
        (void)pthread_mutex_unlock(&agent->event_lock);
        free(note->data);
        *why_out = NO_CREDIT;
        return HEFT_ERR_PROTOCOL;
    }
    append(note);
    inbox->note_frames++;
    heft_inbox_drain(inbox); /* what waited for it */
    (void)pthread_mutex_unlock(&agent->event_lock);
    return 0;
}

static const char *count_failure(int rc)
{
    return rc == HEFT_ERR_TOO_MANY ? "it counts on more counters than may wait for their owners"
           : rc == HEFT_ERR_RANGE  ? "more transfers than can be counted"
                                   : "out of memory for a counter";
}

int heft_inbox_count(struct heft_inbox *inbox, const struct heft_frame *frame, const uint8_t *payload,
                     const char **why_out)
{
    struct heft_wire_counts counts;
    uint32_t index;
    int rc = 0;

    *why_out = "a malformed COUNT";
    if (heft_wire_get_counts(payload, frame->payload_bytes, &counts))
        return HEFT_ERR_PROTOCOL;
    (void)pthread_mutex_lock(&inbox->agent->event_lock);
    for (index = 0; !rc && index < counts.count; index++) {
        struct heft_wire_count count = heft_wire_get_count(&counts, index);

        rc = heft_counters_add(inbox, count.counter, count.transfers);
    }
    heft_inbox_drain(inbox); /* descriptors may wait for other records now */
    (void)pthread_mutex_unlock(&inbox->agent->event_lock);
    *why_out = count_failure(rc);
    return rc;
}

int heft_inbox_take_record(struct heft_inbox *inbox, const struct heft_ring_record *record,
                           const char **why_out)
{
    struct heft_innote *note;
    int rc;

    if (record->kind == HEFT_RING_COUNT) {
        heft_ring_take(&inbox->ring, record, NULL);
        rc = heft_counters_add(inbox, record->value, 1);
        if (rc)
            *why_out = count_failure(rc);
        return rc;
    }
    *why_out = NO_CREDIT;
    if (record->size + HEFT_WIRE_NOTIFICATION_COST_BYTES > inbox->open_bytes)
        return HEFT_ERR_PROTOCOL;
    *why_out = "out of memory for a notification";
    note = note_new(inbox, record->size);
    if (!note)
        return HEFT_ERR_NO_MEMORY;
    heft_ring_take(&inbox->ring, record, note->data);
    append(note);
    return 0;
}

int heft_inbox_take_credit(struct heft_inbox *inbox, struct heft_wire_credit *credit_out)
{
    struct heft_agent *agent = inbox->agent;

    credit_out->bytes = 0;
    credit_out->largest_bytes = HEFT_WIRE_NOTIFICATION_MAX_BYTES;
    (void)pthread_mutex_lock(&agent->event_lock);
    if (!inbox->granted &&
        agent->notification_reserved + inbox->window_bytes <= agent->max_notification_bytes) {
        agent->notification_reserved += inbox->window_bytes;
        inbox->granted = 1;
        credit_out->bytes = inbox->window_bytes;
    } else if (inbox->granted) {
        credit_out->bytes = inbox->freed_bytes;
        inbox->freed_bytes = 0;
    }
    inbox->open_bytes += credit_out->bytes;
    (void)pthread_mutex_unlock(&agent->event_lock);
    return credit_out->bytes > 0;
}

/* ---- taking ---- */

/* The first note is out of the queue: its room goes back to the peer, or to others. event_lock held. */
static void give_room_back(struct heft_inbox *inbox, uint64_t cost)
{
    struct heft_agent *agent = inbox->agent;

    inbox->queued_bytes -= cost;
    if (!inbox->live) {
        agent->notification_reserved -= cost;
        heft_inbox_ask_control(agent);
        return;
    }
    inbox->freed_bytes += cost;
    if (inbox->freed_bytes >= inbox->window_bytes / 4 || inbox->open_bytes < HEFT_INBOX_WINDOW_MIN_BYTES)
        heft_inbox_ask_control(agent);
}

static struct heft_innote *pop(struct heft_agent *agent)
{
    struct heft_innote *note = agent->note_first;

    agent->note_first = note->next;
    if (!note->next)
        agent->note_last = NULL;
    return note;
}

/* 0, or AGAIN once it is too late. event_lock held, as for the next. */
static int sleep_for_note(struct heft_agent *agent, uint64_t timeout_ms)
{
    uint64_t until_ns = heft_deadline_after_ms(timeout_ms);
    int rc = 0;

    agent->bells++;
    heft_inboxes_arm(agent);
    while (!agent->note_first && !agent->events_closed && !rc)
        rc = heft_agent_wait(agent, &agent->note_cond, &agent->event_lock, until_ns);
    agent->bells--;
    return rc;
}

static int await_note(struct heft_agent *agent, uint64_t timeout_ms)
{
    uint64_t spin_until_ns = 0;

    while (!agent->note_first && !agent->events_closed && agent->ring_count && !agent->rings_are_many &&
           heft_inboxes_spin(agent, &spin_until_ns))
        heft_inboxes_drain(agent);
    return agent->note_first ? 0 : sleep_for_note(agent, timeout_ms);
}

int heft_agent_next_notification(struct heft_agent *agent, struct heft_notification *notification_out,
                                 uint64_t timeout_ms)
{
    size_t size = notification_out->size;
    struct heft_innote *note;
    int rc = 0;

    if (heft_agent_forked(agent))
        return HEFT_ERR_STATE;
    if (size < sizeof(*notification_out)) /* less could lose the bytes */
        return HEFT_ERR_INVALID;
    if (timeout_ms && heft_agent_on_worker(agent))
        return HEFT_ERR_STATE;
    heft_agent_ref(agent); /* it may be closed while this waits */
    (void)pthread_mutex_lock(&agent->event_lock);
    if (!agent->note_first)
        heft_inboxes_drain(agent);
    if (!agent->note_first && timeout_ms)
        rc = await_note(agent, timeout_ms);
    if (!agent->note_first) {
        rc = agent->events_closed ? HEFT_ERR_CANCELED : HEFT_ERR_AGAIN;
        (void)pthread_mutex_unlock(&agent->event_lock);
        heft_agent_unref(agent);
        return rc;
    }
    note = pop(agent);
    notification_out->size = sizeof(*notification_out);
    memcpy(notification_out->peer, note->inbox->name, strlen(note->inbox->name) + 1);
    notification_out->generation = note->inbox->generation;
    notification_out->epoch = note->inbox->epoch;
    notification_out->data = note->data;
    notification_out->size_bytes = note->size;
    give_room_back(note->inbox, note->size + HEFT_WIRE_NOTIFICATION_COST_BYTES);
    heft_inbox_unref(note->inbox);
    heft_events_update(agent);
    (void)pthread_mutex_unlock(&agent->event_lock);
    heft_agent_unref(agent);
    return 0;
}

void heft_inbox_shut(struct heft_agent *agent)
{
    (void)pthread_mutex_lock(&agent->event_lock);
    agent->events_closed = 1;
    (void)pthread_cond_broadcast(&agent->note_cond);
    heft_counters_shut(agent);
    while (agent->note_first) {
        struct heft_innote *note = pop(agent);

        heft_inbox_unref(note->inbox);
        free(note->data);
    }
    while (agent->inbox_first)
        heft_inbox_unlist(agent->inbox_first);
    heft_events_shut(agent);
    (void)pthread_mutex_unlock(&agent->event_lock);
}
