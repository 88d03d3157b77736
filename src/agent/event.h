/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a caller can wait for at one place: descriptors that can be polled, finished transfers, peers that
 * come and go, the first of many transfers. Under agent->event_lock, a leaf.
 */
#ifndef HEFT_AGENT_EVENT_H
#define HEFT_AGENT_EVENT_H

#include "agent/agent_internal.h"

#define HEFT_EVENTS_MAX 1024u      /* of peers, waiting to be taken */
#define HEFT_EVENT_NAMES_MAX 1024u /* of peers that ended, remembered to know them when they are back */

struct heft_peer_event {
    struct heft_peer_event *next;
    struct heft_event event;
};

/* Creates the descriptor when *fd is -1. */
int heft_event_fd_open(int *fd, struct heft_error *error);
/* Makes it readable or not; fd -1: nobody asked for it. */
void heft_event_fd_set(int fd, int *is_set, int ready);
/* The agent's, by what there is. event_lock held. */
void heft_events_update(struct heft_agent *agent);

/* A peer connected to this agent, or its connection ended (status 0: with a goodbye). */
void heft_events_peer_joined(struct heft_agent *agent, const char *name, const uint8_t *generation,
                             uint64_t epoch);
void heft_events_peer_ended(struct heft_agent *agent, const char *name, const uint8_t *generation,
                            uint64_t epoch, int status, const struct heft_error *error);
/* A finished transfer joins or leaves the list of those to be taken; xfer->lock held. */
void heft_events_finished(struct heft_xfer *xfer);
void heft_events_forget(struct heft_xfer *xfer);
/* Some transfer ended: whoever waits for the first of many looks again. No lock held. */
void heft_events_wake_any(struct heft_agent *agent);
/* The agent closes; event_lock held. */
void heft_events_shut(struct heft_agent *agent);

#endif
