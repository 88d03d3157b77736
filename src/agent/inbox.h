/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What peers tell this agent: notifications, and transfers that arrived on counters. Frames come on the
 * control worker; callers take from any thread. Everything here lies under agent->event_lock, a leaf.
 *
 * A peer of this host writes into a ring instead (ring.h), which nobody is told of: who wants to know looks.
 * Who sleeps has the rings armed first (`bells`); then the control worker is rung, and takes what is there.
 * An agent with many rings has them armed for ever, because looking at all of them costs more.
 *
 * A peer may queue only what it was given credit for, and all credit together stays within
 * max_notification_bytes: each connection reserves a window of that (what it may still send, what is queued,
 * and what was taken but not given back as credit). What a dead connection left in the queue stays reserved
 * until it is taken; a new connection that finds no room for its window waits for it, without credit.
 */
#ifndef HEFT_AGENT_INBOX_H
#define HEFT_AGENT_INBOX_H

#include "agent/event.h"
#include "agent/ring.h"

#define HEFT_INBOX_EARLY_MAX 1024u     /* counters of one connection that count and that nobody has opened */
#define HEFT_INBOX_GONE_MAX 64u        /* ended connections whose counters may still be opened */
#define HEFT_INBOX_RINGS_LOOKED_AT 16u /* more of them ring */
#define HEFT_INBOX_SPIN_NS \
    60000u /* whoever waits looks that long before it sleeps: longer than a wake-up takes */
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
    struct heft_table counts;    /* struct heft_count */
    uint32_t early;              /* of them, without a counter object */
    struct heft_ring ring;       /* shared NULL: none */
    struct heft_ring left_ring;  /* of an ended connection, while somebody looks at it */
    uint32_t lookers;            /* who look at the ring without the lock */
    uint32_t note_frames;        /* NOTIFY frames that came */
    uint32_t bells;              /* reasons to be rung: of its counters */
    struct heft_counter *wanted; /* whose descriptor the peer rings by itself */
    uint32_t wake_serial;
    int wake_unsent; /* its other end, to be sent to the peer; -1: none */
    int broken;      /* what stood in the ring ends the connection */
    const char *broken_why;
};

struct heft_count {
    struct heft_table_node node; /* the counter's id */
    uint64_t early;              /* arrived and not taken by a counter object */
    struct heft_counter *counter;
};

/* Lies behind its data, which is the caller's once it is taken. */
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
/* The ring is the inbox's now. On the control worker. */
void heft_inbox_set_ring(struct heft_inbox *inbox, const struct heft_ring *ring);
/* It was rung for. Likewise. */
void heft_inbox_rung(struct heft_inbox *inbox);
/* 1: a descriptor to be sent to the peer, the caller's, and its serial. Likewise. */
int heft_inbox_take_wake(struct heft_inbox *inbox, int *fd_out, uint32_t *serial_out);
/* Why the connection must end, with a text; 0: it need not. Likewise. */
int heft_inbox_broken(struct heft_inbox *inbox, const char **why_out);
/* The following with event_lock held. Takes what is in the ring. */
void heft_inbox_drain(struct heft_inbox *inbox);
/* There are reasons to be rung, perhaps new ones: arms the ring, then takes what is in it. */
void heft_inbox_arm(struct heft_inbox *inbox);
/* The same for all, if they are few enough to be looked at: else they are armed. */
void heft_inboxes_drain(struct heft_agent *agent);
void heft_inboxes_arm(struct heft_agent *agent);
/* Looks for a while for who waits, the lock given back meanwhile: 1; 0: it is time to sleep. until_ns: 0 at
 * first. The second looks at the rings of all connections. */
int heft_inbox_spin(struct heft_inbox *inbox, uint64_t *until_ns);
int heft_inboxes_spin(struct heft_agent *agent, uint64_t *until_ns);
/* inring.c: the ring is not used any more. */
void heft_inbox_close_ring(struct heft_inbox *inbox);
/* inbox.c: what one record says. 0, or why the connection must end. */
int heft_inbox_take_record(struct heft_inbox *inbox, const struct heft_ring_record *record,
                           const char **why_out);
/* inbox.c: sessions look for credit to give, and for what is broken. */
void heft_inbox_ask_control(struct heft_agent *agent);
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
