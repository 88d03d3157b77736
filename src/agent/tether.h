/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers of this host write into mapped memory by themselves. When one's session is ended from this side (it
 * was silent for too long, say) it may only be frozen, and in the middle of a write: its bytes would land
 * whenever it wakes. So its connection is kept, without a session, until it ends at the other side; that
 * happens when the process dies, or once it has heard the end and nothing of it writes any more. Until then
 * regions that it may write do not come free. All on the control worker.
 */
#ifndef HEFT_AGENT_TETHER_H
#define HEFT_AGENT_TETHER_H

#include "agent/agent_internal.h"

/* A region that a peer of this host was told to let go, or would have to. */
struct heft_gone {
    struct heft_gone *next;
    struct heft_region *region;
};

/* Counts a holder of the region: 0 or NO_MEMORY. */
int heft_gone_add(struct heft_agent *agent, struct heft_gone **list, struct heft_region *region);
/* Takes the first off and lets its region go. */
void heft_gone_drop(struct heft_agent *agent, struct heft_gone **at);

/* Takes over the descriptor, and what of `gone` may be written; last_sequence: the newest region it knows. */
void heft_tether_start(struct heft_agent *agent, int fd, uint64_t last_sequence, struct heft_gone **gone);
/* A region is withdrawn: those who may write it hold it. */
void heft_tethers_withdraw(struct heft_agent *agent, struct heft_region *region);
/* The agent closes. */
void heft_tethers_drop(void *agent);

#endif
