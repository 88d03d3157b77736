/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions that ended for this side while the other may not have heard of it. Bytes of their WRITEs may still
 * lie in the other side's sockets; a connection made again names them, so that they are gone before anything
 * is written through it.
 */
#ifndef HEFT_AGENT_ENDED_H
#define HEFT_AGENT_ENDED_H

#include "agent/agent_internal.h"

/* The peer's session ends. peer->lock held, and nobody knows of the end yet: who connects again names it. */
void heft_ended_add(struct heft_peer *peer);
/* Those at that generation into auth->ended. */
void heft_ended_name(struct heft_agent *agent, const uint8_t *generation, struct heft_wire_auth *auth);
/* That generation has let go of the ones that auth named. */
void heft_ended_forget(struct heft_agent *agent, const uint8_t *generation,
                       const struct heft_wire_auth *auth);

#endif
