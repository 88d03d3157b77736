/* SPDX-License-Identifier: Apache-2.0 */
/* For the layers above: calls on peers that may be given up (a load must end when it is told to, whoever is
 * frozen). */
#ifndef HEFT_AGENT_PEER_H
#define HEFT_AGENT_PEER_H

#include <heft/agent.h>

#define HEFT_CANCEL_LOOK_MS 20

/*
 * As heft_peer_connect and heft_peer_read_document; they end with CANCELED within HEFT_CANCEL_LOOK_MS once
 * *cancel (atomic) is not 0. Only the look-up of a host's name goes on to its own end.
 */
int heft_peer_connect_or_cancel(struct heft_agent *agent, const struct heft_peer_options *options,
                                const uint32_t *cancel, struct heft_peer **peer_out,
                                struct heft_error *error);
int heft_peer_read_document_or_cancel(struct heft_peer *peer, const char *name, uint64_t limit_bytes,
                                      uint32_t timeout_ms, const uint32_t *cancel, void **data_out,
                                      uint64_t *size_bytes_out, struct heft_error *error);
/* No more data streams are wanted: those that are being opened are given up, later ones are refused. For
 * peers that are about to be closed. */
void heft_peer_end_dials(struct heft_peer *peer);
/* Ends the connections of all peers that this agent accepted, and with them what is served to them; those
 * that live may connect again. For regions that somebody frozen, or slow, would not let go. Waits, up to some
 * seconds. */
void heft_agent_drop_readers(struct heft_agent *agent);
/* Whether this agent publishes a document of that name. */
int heft_document_exists(struct heft_agent *agent, const char *name);

#endif
