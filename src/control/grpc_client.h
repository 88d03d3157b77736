/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gRPC client of unary methods: bytes out, bytes back, always with a deadline. Any thread may call. The
 * connection is made at the first call and again after it broke.
 */
#ifndef HEFT_CONTROL_GRPC_CLIENT_H
#define HEFT_CONTROL_GRPC_CLIENT_H

#include "base/buf.h"
#include "control/grpc_base.h"

struct heft_grpc_client;

struct heft_grpc_client_options {
    const char *address;        /* "HOST:PORT" */
    const char *service;        /* what should listen there, for sentences: "heftd" */
    uint32_t timeout_ms;        /* of a call that names none; 0: 5000 */
    uint32_t max_message_bytes; /* 0: HEFT_GRPC_MAX_MESSAGE_BYTES */
};

struct heft_grpc_unary {
    const char *method; /* "/package.Service/Method" */
    const void *data;
    size_t size_bytes;
    uint32_t timeout_ms; /* 0: the client's */
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
const struct heft_grpc_address *heft_grpc_client_address(const struct heft_grpc_client *client);

#endif
