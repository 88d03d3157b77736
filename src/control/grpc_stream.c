/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream of messages from the other side. Two operations are outstanding: the next message, and the call's
 * status; each is a tag on a queue of the stream's own, so that a wait can end by time and go on later.
 */
#include "base/error.h"
#include "control/grpc_call.h"

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct heft_grpc_stream {
    struct heft_grpc_client *client;
    char method[128];
    grpc_call *call;
    grpc_completion_queue *queue;
    struct heft_grpc_call_link link;
    uint64_t serial;
    grpc_metadata_array header, trailer;
    grpc_byte_buffer *request, *message;
    grpc_slice details;
    grpc_metadata token;
    int has_token;
    grpc_status_code status;
    int begun, has_status, is_reading, is_over;
    int start_tag, status_tag, read_tag; /* their addresses */
};

/* One event: which of the tags; 0 when none came in time. */
static void *wait_event(struct heft_grpc_stream *stream, gpr_timespec until, int *success_out)
{
    grpc_event event = grpc_completion_queue_next(stream->queue, until, NULL);

    *success_out = event.success;
    return event.type == GRPC_OP_COMPLETE ? event.tag : NULL;
}

static int begin(struct heft_grpc_stream *stream, const char *token)
{
    grpc_op ops[4], status;

    memset(ops, 0, sizeof(ops));
    memset(&status, 0, sizeof(status));
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    heft_grpc_put_token(&ops[0], &stream->token, token);
    stream->has_token = token != NULL;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = stream->request;
    ops[2].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[2].data.recv_initial_metadata.recv_initial_metadata = &stream->header;
    status.op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    status.data.recv_status_on_client.trailing_metadata = &stream->trailer;
    status.data.recv_status_on_client.status = &stream->status;
    status.data.recv_status_on_client.status_details = &stream->details;
    if (grpc_call_start_batch(stream->call, &status, 1, &stream->status_tag, NULL) != GRPC_CALL_OK)
        return HEFT_ERR_INTERNAL;
    stream->begun = 1;
    if (grpc_call_start_batch(stream->call, ops, 3, &stream->start_tag, NULL) != GRPC_CALL_OK)
        return HEFT_ERR_INTERNAL;
    stream->begun = 2;
    return 0;
}

static int read_more(struct heft_grpc_stream *stream)
{
    grpc_op op;

    memset(&op, 0, sizeof(op));
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &stream->message;
    if (grpc_call_start_batch(stream->call, &op, 1, &stream->read_tag, NULL) != GRPC_CALL_OK)
        return HEFT_ERR_INTERNAL;
    stream->is_reading = 1;
    return 0;
}

int heft_grpc_stream_open(struct heft_grpc_client *client, const struct heft_grpc_unary *request,
                          struct heft_grpc_stream **stream_out, struct heft_error *error)
{
    struct heft_grpc_stream *stream = calloc(1, sizeof(*stream));
    grpc_slice method = grpc_slice_from_copied_string(request->method);
    int rc;

    if (!stream) {
        grpc_slice_unref(method);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "%s: out of memory", request->method);
    }
    stream->client = client;
    (void)snprintf(stream->method, sizeof(stream->method), "%s", request->method);
    stream->queue = grpc_completion_queue_create_for_next(NULL);
    stream->request = heft_grpc_buffer(request->data, request->size_bytes);
    stream->details = grpc_empty_slice();
    grpc_metadata_array_init(&stream->header);
    grpc_metadata_array_init(&stream->trailer);
    (void)pthread_mutex_lock(&client->lock);
    stream->call = grpc_channel_create_call(client->channel, NULL, GRPC_PROPAGATE_DEFAULTS, stream->queue,
                                            method, NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    stream->serial = client->serial;
    (void)pthread_mutex_unlock(&client->lock);
    grpc_slice_unref(method);
    heft_grpc_link_call(client, &stream->link, stream->call);
    rc = begin(stream, request->token);
    if (!rc)
        rc = read_more(stream);
    if (rc) {
        heft_grpc_stream_close(stream);
        return heft_error_set(error, rc, "%s: gRPC refused the call", request->method);
    }
    *stream_out = stream;
    return 0;
}

static int ended(struct heft_grpc_stream *stream, struct heft_error *error)
{
    char sentence[HEFT_ERROR_TEXT_BYTES];
    int code = 0;

    stream->is_over = 1;
    heft_grpc_slice_text(stream->details, sentence);
    heft_grpc_read_code(&stream->trailer, &code);
    if (stream->status == GRPC_STATUS_OK)
        return heft_error_set(error, HEFT_ERR_UNAVAILABLE, "%s at %s:%u ended %s", stream->client->service,
                              stream->client->address.host, stream->client->address.port, stream->method);
    if (stream->status == GRPC_STATUS_UNAVAILABLE && !code) /* the next attempt must not wait */
        heft_grpc_renew_channel(stream->client, stream->serial);
    return heft_grpc_report(stream->client, stream->method, stream->status, code, sentence, 0, error);
}

int heft_grpc_stream_next(struct heft_grpc_stream *stream, uint32_t wait_ms, struct heft_buf *reply,
                          struct heft_error *error)
{
    gpr_timespec until =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(wait_ms, GPR_TIMESPAN));
    int success, rc;
    void *tag;

    if (stream->is_over)
        return heft_error_set(error, HEFT_ERR_STATE, "%s has ended", stream->method);
    while ((tag = wait_event(stream, until, &success)) != NULL) {
        if (tag == &stream->status_tag) {
            stream->has_status = 1;
        } else if (tag == &stream->read_tag) {
            stream->is_reading = 0;
            if (stream->message) {
                rc = heft_grpc_buffer_read(stream->message, reply);
                grpc_byte_buffer_destroy(stream->message);
                stream->message = NULL;
                if (!rc)
                    rc = read_more(stream);
                if (rc)
                    stream->is_over = 1;
                return rc ? heft_error_set(error, rc, "%s: a message could not be read: %s", stream->method,
                                           heft_error_text(rc))
                          : 0;
            }
        }
        if (stream->has_status && !stream->is_reading)
            return ended(stream, error);
    }
    return HEFT_ERR_AGAIN;
}

void heft_grpc_stream_close(struct heft_grpc_stream *stream)
{
    if (!stream)
        return;
    (void)grpc_call_cancel(stream->call, NULL);
    heft_grpc_unlink_call(stream->client, &stream->link);
    grpc_completion_queue_shutdown(stream->queue); /* waits below for what is outstanding */
    while (grpc_completion_queue_next(stream->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL).type !=
           GRPC_QUEUE_SHUTDOWN)
        continue;
    grpc_completion_queue_destroy(stream->queue);
    grpc_call_unref(stream->call);
    if (stream->has_token)
        grpc_slice_unref(stream->token.value);
    grpc_slice_unref(stream->details);
    grpc_metadata_array_destroy(&stream->header);
    grpc_metadata_array_destroy(&stream->trailer);
    if (stream->message)
        grpc_byte_buffer_destroy(stream->message);
    grpc_byte_buffer_destroy(stream->request);
    free(stream);
}
