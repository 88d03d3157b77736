/* SPDX-License-Identifier: Apache-2.0 */
/* The gRPC client from inside: what unary calls (grpc_client.c) and streams (grpc_stream.c) share. */
#ifndef HEFT_CONTROL_GRPC_CALL_H
#define HEFT_CONTROL_GRPC_CALL_H

#include "control/grpc_client.h"

/* A call under way, for whoever interrupts its thread. */
struct heft_grpc_call_link {
    struct heft_grpc_call_link *next, *previous;
    grpc_call *call;
    pthread_t thread;
};

struct heft_grpc_client {
    struct heft_grpc_client_options options;
    struct heft_grpc_address address;
    char service[64], start_hint[256];
    int has_tls;
    char *ca, *certificate, *key;
    pthread_mutex_t lock; /* guards all below */
    grpc_channel *channel;
    uint64_t serial; /* of the channel */
    struct heft_grpc_call_link *calls;
};

/* The token as initial metadata; NULL: none. The caller unrefs token->value. */
void heft_grpc_put_token(grpc_op *op, grpc_metadata *token, const char *text);
void heft_grpc_slice_text(grpc_slice slice, char text_out[HEFT_ERROR_TEXT_BYTES]);
/* heft's own code, if the trailer has one. */
void heft_grpc_read_code(const grpc_metadata_array *trailer, int *code_out);
/* Drains and destroys it; NULL. */
grpc_completion_queue *heft_grpc_close_queue(grpc_completion_queue *queue);
/* The sentence for a status that is not OK; `sentence` is cleaned in place. */
int heft_grpc_report(const struct heft_grpc_client *client, const char *method, grpc_status_code status,
                     int code, char *sentence, uint32_t timeout_ms, struct heft_error *error);
void heft_grpc_link_call(struct heft_grpc_client *client, struct heft_grpc_call_link *link, grpc_call *call);
void heft_grpc_unlink_call(struct heft_grpc_client *client, struct heft_grpc_call_link *link);
/* Puts a new channel in place of the one with this serial, unless another thread has done so. */
void heft_grpc_renew_channel(struct heft_grpc_client *client, uint64_t serial);

#endif
