/* SPDX-License-Identifier: Apache-2.0 */
/* The connecting side: one authenticated connection, made in the calling thread before a deadline. */
#ifndef HEFT_AGENT_CONNECT_H
#define HEFT_AGENT_CONNECT_H

#include "agent/agent_internal.h"
#include "agent/handshake.h"
#include "agent/peer.h"
#include "agent/secure.h"

struct heft_connect_request {
    struct heft_agent *agent;
    const char *addresses; /* tried in order */
    const uint8_t *key;    /* HEFT_KEY_BYTES */
    uint8_t purpose;
    const char *name;                  /* expected; "": any */
    struct heft_generation generation; /* expected; zero: any */
    uint64_t session;                  /* DATA */
    const char *transport;             /* DATA; else "" */
    int tcp_first;                     /* addresses of unix sockets come last */
    uint64_t until_ns;
    struct heft_tls *tls; /* heft_connect's own */
    const uint32_t
        *cancel; /* atomic: ends it within HEFT_CANCEL_LOOK_MS once it is not 0; NULL: nobody does */
};

struct heft_connect_result {
    int fd;               /* non-blocking */
    struct heft_tls *tls; /* of fd; NULL: plain */
    int is_unix;
    int pid; /* of the other process; 0: not known */
    int same_host;
    struct heft_handshake handshake; /* who answered */
    uint64_t session;
};

/* Errors: as heft_peer_connect. The most telling one of all addresses is given. */
int heft_connect(const struct heft_connect_request *request, struct heft_connect_result *result_out,
                 struct heft_error *error);

#endif
