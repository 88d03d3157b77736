/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gRPC client: bytes out, bytes back, always with a deadline. Any thread may call. The connection is made
 * at the first call and again after it broke. A method that streams may be called as a unary one, too, when
 * one message is sent and one is wanted.
 */
#ifndef HEFT_CONTROL_GRPC_CLIENT_H
#define HEFT_CONTROL_GRPC_CLIENT_H

#include "base/buf.h"
#include "control/grpc_base.h"

#include <pthread.h>

struct heft_grpc_client;

struct heft_grpc_client_options {
    const char *address;             /* "HOST:PORT" */
    const char *service;             /* what should listen there, for sentences: "heftd" */
    uint32_t timeout_ms;             /* of a call that names none; 0: 5000 */
    uint32_t max_message_bytes;      /* 0: HEFT_GRPC_MAX_MESSAGE_BYTES */
    const char *start_hint;          /* what starts one, for sentences; NULL: "SERVICE --listen HOST:PORT" */
    const struct heft_grpc_tls *tls; /* NULL: plain */
    uint32_t keepalive_ms;           /* a connection with a call is probed after that silence; 0: never */
};

/* PEM texts; owned by the caller until open returned. */
struct heft_grpc_tls {
    const char *ca;          /* NULL: the system's */
    const char *certificate; /* with key: what the client shows; NULL: nothing */
    const char *key;
};

struct heft_grpc_unary {
    const char *method; /* "/package.Service/Method" */
    const void *data;
    size_t size_bytes;
    uint32_t timeout_ms; /* 0: the client's */
    const char *token;   /* sent as metadata "token"; NULL: none */
    int is_idempotent;   /* asked once more over a new connection when the old one broke */
    int was_repeated;    /* set by the call: the first attempt may have been carried out */
};

int heft_grpc_client_open(const struct heft_grpc_client_options *options,
                          struct heft_grpc_client **client_out, struct heft_error *error);
/* Ends nothing that runs: the caller has no call in progress. NULL is allowed. */
void heft_grpc_client_close(struct heft_grpc_client *client);
/*
 * Appends the answer to reply. Errors: the code that the other side gave; UNAVAILABLE (nobody answers there),
 * DEADLINE, TOO_LARGE, UNSUPPORTED (no such method: another version, or another program).
 */
int heft_grpc_client_call(struct heft_grpc_client *client, struct heft_grpc_unary *unary,
                          struct heft_buf *reply, struct heft_error *error);
/* Ends the calls that this thread is in: they return CANCELED. Calls that it begins later are not touched. */
void heft_grpc_client_interrupt(struct heft_grpc_client *client, pthread_t thread);

/*
 * A call that receives one message after another. One thread uses it, but for heft_grpc_client_interrupt.
 * The client must outlive it.
 */
struct heft_grpc_stream;
/* Sends the request; does not wait for an answer. The request may be followed by no other. */
int heft_grpc_stream_open(struct heft_grpc_client *client, const struct heft_grpc_unary *request,
                          struct heft_grpc_stream **stream_out, struct heft_error *error);
/*
 * Appends the next message. AGAIN: none came within wait_ms, ask again. Any other error has ended the stream,
 * UNAVAILABLE also when the other side did.
 */
int heft_grpc_stream_next(struct heft_grpc_stream *stream, uint32_t wait_ms, struct heft_buf *reply,
                          struct heft_error *error);
/* Cancels what is under way. NULL is allowed. */
void heft_grpc_stream_close(struct heft_grpc_stream *stream);

const struct heft_grpc_address *heft_grpc_client_address(const struct heft_grpc_client *client);

#endif
