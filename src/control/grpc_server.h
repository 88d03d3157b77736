/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gRPC server of unary methods. Methods are registered by full name ("/heft.v1.Directory/List"); a handler
 * takes the request's bytes and writes the reply's. A few threads serve everything, so a handler computes and
 * answers: it never waits for the network or a client. A call that waits for something to happen is put aside
 * without a thread (HEFT_GRPC_LATER).
 *
 * Every resource that a client can take has a bound: message size, calls in flight, the time a call may last,
 * the time a connection may stay silent.
 */
#ifndef HEFT_CONTROL_GRPC_SERVER_H
#define HEFT_CONTROL_GRPC_SERVER_H

#include "base/buf.h"
#include <heft/error.h>

struct heft_grpc_server;

struct heft_grpc_request {
    const char *method;
    const void *data;
    size_t size_bytes;
    uint64_t age_ms;   /* since the call arrived; UINT64_MAX: it can't be kept waiting, answer now */
    uint64_t *wake_ms; /* with LATER: the age at which to ask again at the latest */
};

/*
 * Returns 0 with the reply's bytes, or HEFT_ERR_* with a sentence; or LATER: there is no answer yet, it is
 * asked again after a poke, and at *wake_ms. Called from several threads at once.
 */
#define HEFT_GRPC_LATER 1
typedef int (*heft_grpc_handler)(void *context, const struct heft_grpc_request *request,
                                 struct heft_buf *reply, struct heft_error *error);

struct heft_grpc_server_options {
    const char *listen;          /* "HOST:PORT", numeric or a name; port 0: the system picks */
    uint32_t threads;            /* 0: 2 */
    uint32_t max_calls;          /* in flight; more are refused with TOO_MANY; 0: 1024 */
    uint32_t max_request_bytes;  /* 0: HEFT_GRPC_MAX_MESSAGE_BYTES */
    uint32_t max_call_ms;        /* from the call's arrival to its last byte; 0: 30000 */
    uint32_t handshake_ms;       /* until a new connection must have spoken HTTP/2; 0: 5000 */
    uint32_t idle_connection_ms; /* a connection without calls is closed after this; 0: 300000. One that does
                                    not answer HTTP/2 pings is closed within 20 s */
};

struct heft_grpc_server_counts {
    uint64_t calls, failures, refused;
    uint64_t active;
};

int heft_grpc_server_new(const struct heft_grpc_server_options *options, struct heft_grpc_server **server_out,
                         struct heft_error *error);
/* Before start. `method` is kept, not copied. */
int heft_grpc_server_add(struct heft_grpc_server *server, const char *method, heft_grpc_handler handler,
                         void *context, struct heft_error *error);
/* Binds and serves. UNAVAILABLE or PERMISSION when the address can't be had: says which and what to try. */
int heft_grpc_server_start(struct heft_grpc_server *server, struct heft_error *error);
/* Something happened: calls that wait are asked again, on another thread. NULL is allowed. */
void heft_grpc_server_poke(struct heft_grpc_server *server);
uint16_t heft_grpc_server_port(const struct heft_grpc_server *server);
void heft_grpc_server_get_counts(struct heft_grpc_server *server, struct heft_grpc_server_counts *counts_out);
/* Takes no more calls, lets running ones end for up to grace_ms, cancels the rest, frees. NULL is allowed. */
void heft_grpc_server_free(struct heft_grpc_server *server, uint32_t grace_ms);

/* "Can a listener be had at this address?": 0, or the error with its remedy. `what` names the service. */
int heft_listen_check(const char *listen, const char *what, struct heft_error *error);

#endif
