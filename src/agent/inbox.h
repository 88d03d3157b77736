/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What peers tell this agent: notifications, and transfers that arrived on counters. Frames come on the
 * control worker; callers take from any thread. Everything here lies under agent->event_lock, a leaf.
 *
 * A peer may queue only what it was given credit for, and all credit together stays within
 * max_notification_bytes: each connection reserves a window of that (what it may still send, what is queued,
 * and what was taken but not given back as credit). What a dead connection left in the queue stays reserved
 * until it is taken; a new connection that finds no room for its window waits for it, without credit.
 */
#ifndef HEFT_AGENT_INBOX_H
#define HEFT_AGENT_INBOX_H

#include "agent/event.h"

#define HEFT_INBOX_EARLY_MAX 1024u /* counters of one connection that count and that nobody has opened */
#define HEFT_INBOX_GONE_MAX 64u    /* ended connections whose counters may still be opened */
#define HEFT_INBOX_WINDOW_MAX_BYTES (UINT64_C(1) << 20)
#define HEFT_INBOX_WINDOW_MIN_BYTES (HEFT_WIRE_NOTIFICATION_MAX_BYTES + HEFT_WIRE_NOTIFICATION_COST_BYTES)

/* One connection of one peer, as the served side keeps it. */
struct heft_inbox {
    struct heft_agent *agent;
    struct heft_inbox *prev, *next; /* agent->inbox_first: newest first, then those that are gone too */
    uint32_t refs;                  /* under event_lock: the list, each queued notification, each counter */
    int listed;
    uint64_t epoch; /* the session's number */
    char name[HEFT_NAME_MAX_BYTES + 1];
    struct heft_generation generation;
    int live;
    struct heft_error end; /* why it is not live any more */
    /* Credit: window = open + queued + freed, once it is granted. */
    int granted;
    uint64_t window_bytes, open_bytes, queued_bytes, freed_bytes;
    struct heft_table counts; /* struct heft_count */
    uint32_t early;           /* of them, without a counter object */
};

struct heft_count {
    struct heft_table_node node; /* the counter's id */
    uint64_t early;              /* arrived and not taken by a counter object */
    struct heft_counter *counter;
};

struct heft_innote {
    struct heft_innote *next;
    struct heft_inbox *inbox;
    size_t size;
    void *data;
};

/* A connection begins: NULL when memory is short. On the control worker, as the next four. */
struct heft_inbox *heft_inbox_new(struct heft_agent *agent, uint64_t epoch, const char *name,
                                  const uint8_t *generation);
void heft_inbox_end(struct heft_inbox *inbox, int code, const char *why);
/* 0, or why the connection must end, with a text. */
int heft_inbox_notify(struct heft_inbox *inbox, const struct heft_frame *frame, const uint8_t *payload,
                      const char **why_out);
int heft_inbox_count(struct heft_inbox *inbox, const struct heft_frame *frame, const uint8_t *payload,
                     const char **why_out);
/* 1: the peer gets that much more credit now. */
int heft_inbox_take_credit(struct heft_inbox *inbox, struct heft_wire_credit *credit_out);
/* event_lock held. */
void heft_inbox_unref(struct heft_inbox *inbox);
void heft_inbox_unlist(struct heft_inbox *inbox);
/* The agent closes: what waits is told, what is queued is freed. No connection is left. */
void heft_inbox_shut(struct heft_agent *agent);
/* counter.c; event_lock held. */
void heft_counters_begin(struct heft_inbox *inbox);
void heft_counters_end(struct heft_inbox *inbox);
int heft_counters_add(struct heft_inbox *inbox, uint32_t id, uint64_t transfers);
void heft_counters_shut(struct heft_agent *agent);

#endif
