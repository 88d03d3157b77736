/* SPDX-License-Identifier: Apache-2.0 */
/* The end of serving regions that others may still be reading. */
#ifndef HEFT_LOAD_WITHDRAW_H
#define HEFT_LOAD_WITHDRAW_H

#include <heft/agent.h>

/*
 * Deregisters them; those that are gone become NULL. Readers get a while to stop; who is frozen, or slow,
 * then loses its connection, and what is served to it ends. 0: the memory is the caller's again; BUSY when
 * even that did not help. `name` is for the log.
 */
int heft_withdraw_regions(struct heft_agent *agent, const char *name, struct heft_region **regions,
                          uint32_t count);

#endif
