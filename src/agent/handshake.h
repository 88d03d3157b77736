/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both sides of a handshake compute. docs/wire-protocol.md tells the exchange and what each step is for.
 */
#ifndef HEFT_AGENT_HANDSHAKE_H
#define HEFT_AGENT_HANDSHAKE_H

#include "wire/message.h"

#include <heft/agent.h>

/* Everything that one proof vouches for. */
struct heft_handshake {
    struct heft_wire_hello hello;         /* texts point into `texts` */
    struct heft_wire_challenge challenge; /* proof is not part of what is vouched for */
    char texts[3][HEFT_WIRE_NAME_MAX_BYTES + 1];
    char server_name[HEFT_WIRE_NAME_MAX_BYTES + 1];
};

/* Copies the texts too, so that the payloads may go. */
void heft_handshake_set_hello(struct heft_handshake *handshake, const struct heft_wire_hello *hello);
void heft_handshake_set_challenge(struct heft_handshake *handshake,
                                  const struct heft_wire_challenge *challenge);

enum heft_handshake_role { HEFT_PROOF_SERVER = 1, HEFT_PROOF_CLIENT = 2, HEFT_PROOF_SESSION = 3 };
/* HMAC-SHA-256 over the role and all facts. PROOF_SESSION makes the key of the session `session`'s data
 * streams. */
void heft_handshake_proof(const struct heft_handshake *handshake, const uint8_t key[HEFT_TOKEN_BYTES],
                          enum heft_handshake_role role, uint64_t session,
                          uint8_t out[HEFT_WIRE_PROOF_BYTES]);
/* The version to speak, or 0 when the ranges do not meet. */
uint16_t heft_handshake_version(uint16_t lowest, uint16_t highest);
/* A name for this kernel boot that tells nothing else. All zero when it can't be known. */
void heft_handshake_host(uint8_t out[HEFT_WIRE_HOST_BYTES]);
/* Whether READY comes from a process under this kernel boot; elapsed_ns: how old READY may be. */
int heft_handshake_same_host(const struct heft_wire_ready *ready, uint64_t elapsed_ns);

#endif
