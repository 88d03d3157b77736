/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel of gRPC reconnects by itself, but with a pause that grows: a daemon that has just been restarted
 * would look dead for seconds. So a call that found the connection broken makes a new channel, which connects
 * at once, and asks there once more.
 */
#include "control/grpc_client.h"
#include "base/clock.h"
#include "base/error.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct heft_grpc_client {
    struct heft_grpc_client_options options;
    struct heft_grpc_address address;
    char service[64];
    pthread_mutex_t lock; /* guards channel and serial */
    grpc_channel *channel;
    uint64_t serial; /* of the channel */
};

/* One attempt: what came back. */
struct attempt {
    grpc_status_code status;
    int code; /* by heft-code, 0: none */
    char sentence[HEFT_ERROR_TEXT_BYTES];
    grpc_byte_buffer *answer;
    uint64_t serial;
};

static grpc_arg int_arg(const char *key, int value)
{
    grpc_arg arg;

    memset(&arg, 0, sizeof(arg));
    arg.type = GRPC_ARG_INTEGER;
    memcpy(&arg.key, &key, sizeof(key)); /* gRPC only reads it, but its type is not const */
    arg.value.integer = value;
    return arg;
}

static grpc_channel *make_channel(const struct heft_grpc_client *client)
{
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    grpc_arg args[12];
    grpc_channel_args list = {0, args};
    grpc_channel *channel;

    args[list.num_args++] =
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)client->options.max_message_bytes);
    args[list.num_args++] = int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    args[list.num_args++] = int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    args[list.num_args++] = int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    args[list.num_args++] = int_arg(GRPC_ARG_ENABLE_RETRIES, 0);
    args[list.num_args++] = int_arg(GRPC_ARG_ENABLE_CHANNELZ, 0);
    args[list.num_args++] = int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    args[list.num_args++] = int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
    args[list.num_args++] = int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
    args[list.num_args++] = int_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1);
    channel = grpc_channel_create(client->address.target, credentials, &list);
    grpc_channel_credentials_release(credentials);
    return channel;
}

int heft_grpc_client_open(const struct heft_grpc_client_options *options,
                          struct heft_grpc_client **client_out, struct heft_error *error)
{
    struct heft_grpc_client *client = calloc(1, sizeof(*client));
    int result;

    if (!client)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "gRPC client: out of memory");
    result = heft_grpc_address_parse(options->address, &client->address, error);
    if (!result && client->address.port == 0)
        result = heft_error_set(error, HEFT_ERR_INVALID, "'%s': port 0 can't be called", options->address);
    if (result) {
        free(client);
        return result;
    }
    client->options = *options;
    (void)snprintf(client->service, sizeof(client->service), "%s",
                   options->service ? options->service : "server");
    client->options.address = NULL;
    client->options.service = client->service;
    if (!client->options.timeout_ms)
        client->options.timeout_ms = 5000;
    if (!client->options.max_message_bytes)
        client->options.max_message_bytes = HEFT_GRPC_MAX_MESSAGE_BYTES;
    (void)pthread_mutex_init(&client->lock, NULL);
    heft_grpc_acquire();
    client->channel = make_channel(client);
    *client_out = client;
    return 0;
}

void heft_grpc_client_close(struct heft_grpc_client *client)
{
    if (!client)
        return;
    grpc_channel_destroy(client->channel);
    heft_grpc_release();
    (void)pthread_mutex_destroy(&client->lock);
    free(client);
}

const struct heft_grpc_address *heft_grpc_client_address(const struct heft_grpc_client *client)
{
    return &client->address;
}

/* Puts a new channel in place of the one with this serial, unless another thread has done so. */
static void renew_channel(struct heft_grpc_client *client, uint64_t serial)
{
    (void)pthread_mutex_lock(&client->lock);
    if (client->serial == serial) {
        grpc_channel_destroy(client->channel); /* calls of other threads keep it until they end */
        client->channel = make_channel(client);
        client->serial++;
    }
    (void)pthread_mutex_unlock(&client->lock);
}

static void read_trailer(const grpc_metadata_array *trailer, struct attempt *attempt)
{
    size_t index;

    for (index = 0; index < trailer->count; index++)
        if (grpc_slice_str_cmp(trailer->metadata[index].key, HEFT_GRPC_CODE_KEY) == 0)
            attempt->code =
                heft_grpc_code_named((const char *)GRPC_SLICE_START_PTR(trailer->metadata[index].value),
                                     GRPC_SLICE_LENGTH(trailer->metadata[index].value));
}

static grpc_completion_queue *close_queue(grpc_completion_queue *queue)
{
    grpc_completion_queue_shutdown(queue);
    while (grpc_completion_queue_pluck(queue, NULL, gpr_inf_future(GPR_CLOCK_REALTIME), NULL).type !=
           GRPC_QUEUE_SHUTDOWN)
        continue;
    grpc_completion_queue_destroy(queue);
    return NULL;
}

/* gRPC ends the call by its deadline, so waiting for the batch without one of our own is bounded. */
static void attempt_call(struct heft_grpc_client *client, const struct heft_grpc_unary *unary,
                         gpr_timespec deadline, struct attempt *attempt)
{
    grpc_completion_queue *queue = grpc_completion_queue_create_for_pluck(NULL);
    grpc_byte_buffer *message = heft_grpc_buffer(unary->data, unary->size_bytes);
    grpc_slice method = grpc_slice_from_copied_string(unary->method), details = grpc_empty_slice();
    grpc_metadata_array header, trailer;
    size_t details_bytes;
    grpc_call *call;
    grpc_op ops[6];

    memset(attempt, 0, sizeof(*attempt));
    memset(ops, 0, sizeof(ops));
    grpc_metadata_array_init(&header);
    grpc_metadata_array_init(&trailer);
    (void)pthread_mutex_lock(&client->lock);
    call = grpc_channel_create_call(client->channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue, method, NULL,
                                    deadline, NULL);
    attempt->serial = client->serial;
    (void)pthread_mutex_unlock(&client->lock);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = message;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &header;
    ops[4].op = GRPC_OP_RECV_MESSAGE;
    ops[4].data.recv_message.recv_message = &attempt->answer;
    ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[5].data.recv_status_on_client.trailing_metadata = &trailer;
    ops[5].data.recv_status_on_client.status = &attempt->status;
    ops[5].data.recv_status_on_client.status_details = &details;
    if (grpc_call_start_batch(call, ops, 6, attempt, NULL) == GRPC_CALL_OK) {
        (void)grpc_completion_queue_pluck(queue, attempt, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
        read_trailer(&trailer, attempt);
        details_bytes = GRPC_SLICE_LENGTH(details);
        if (details_bytes >= sizeof(attempt->sentence))
            details_bytes = sizeof(attempt->sentence) - 1;
        memcpy(attempt->sentence, GRPC_SLICE_START_PTR(details), details_bytes);
    } else {
        attempt->status = GRPC_STATUS_INTERNAL;
        (void)snprintf(attempt->sentence, sizeof(attempt->sentence), "gRPC refused the call");
    }
    grpc_slice_unref(details);
    grpc_slice_unref(method);
    grpc_metadata_array_destroy(&header);
    grpc_metadata_array_destroy(&trailer);
    grpc_call_unref(call);
    grpc_byte_buffer_destroy(message);
    queue = close_queue(queue);
}

/* Text from the other side: control characters become dots, so that it stays one line. */
static void clean_sentence(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7F)
            *text = '.';
}

/* gRPC's chain of reasons ends with the one that helps. */
static int unavailable(const struct heft_grpc_client *client, const char *sentence, struct heft_error *error)
{
    static const char marker[] = "Failed to connect to remote host: ";
    const struct heft_grpc_address *address = &client->address;
    const char *at = sentence, *last = sentence;

    if (strstr(sentence, "http1"))
        return heft_error_set(
            error, HEFT_ERR_UNAVAILABLE,
            "no %s answers at %s:%u: what listens there speaks HTTP/1; is that the port of --http?",
            client->service, address->host, address->port);
    if (strstr(sentence, "DNS resolution failed"))
        return heft_error_set(error, HEFT_ERR_UNAVAILABLE,
                              "no %s answers at %s:%u: the name does not resolve", client->service,
                              address->host, address->port);
    while ((at = strstr(at, marker)) != NULL) {
        at += sizeof(marker) - 1;
        last = at;
    }
    return heft_error_set(error, HEFT_ERR_UNAVAILABLE,
                          "no %s answers at %s:%u (%.200s): is it running there? %s --listen %s:%u starts it",
                          client->service, address->host, address->port, last, client->service, address->host,
                          address->port);
}

static int report(const struct heft_grpc_client *client, const struct heft_grpc_unary *unary,
                  struct attempt *attempt, uint32_t timeout_ms, struct heft_error *error)
{
    const char *service = client->service;
    const struct heft_grpc_address *address = &client->address;

    clean_sentence(attempt->sentence);
    if (attempt->code)
        return heft_error_set(error, attempt->code, "%s", attempt->sentence);
    switch (attempt->status) {
    case GRPC_STATUS_UNAVAILABLE:
        return unavailable(client, attempt->sentence, error);
    case GRPC_STATUS_DEADLINE_EXCEEDED:
        return heft_error_set(error, HEFT_ERR_DEADLINE, "%s at %s:%u did not answer %s within %u ms", service,
                              address->host, address->port, unary->method, timeout_ms);
    case GRPC_STATUS_UNIMPLEMENTED:
        return heft_error_set(
            error, HEFT_ERR_UNSUPPORTED,
            "what answers at %s:%u does not know %s: another program, or another version of %s",
            address->host, address->port, unary->method, service);
    default:
        return heft_error_set(error, heft_grpc_code_of(attempt->status), "%s at %s:%u, %s: %.300s", service,
                              address->host, address->port, unary->method, attempt->sentence);
    }
}

int heft_grpc_client_call(struct heft_grpc_client *client, struct heft_grpc_unary *unary,
                          struct heft_buf *reply, struct heft_error *error)
{
    uint32_t timeout_ms = unary->timeout_ms ? unary->timeout_ms : client->options.timeout_ms;
    gpr_timespec deadline =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(timeout_ms, GPR_TIMESPAN));
    struct attempt attempt;
    int result = 0;

    unary->was_repeated = 0;
    if (unary->size_bytes > client->options.max_message_bytes)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE, "%s: a message of %zu bytes is over the limit of %u",
                              unary->method, unary->size_bytes, client->options.max_message_bytes);
    attempt_call(client, unary, deadline, &attempt);
    if (attempt.status == GRPC_STATUS_UNAVAILABLE && !attempt.code) {
        renew_channel(client, attempt.serial);
        if (unary->is_idempotent) {
            if (attempt.answer)
                grpc_byte_buffer_destroy(attempt.answer);
            unary->was_repeated = 1;
            attempt_call(client, unary, deadline, &attempt);
        }
    }
    if (attempt.status != GRPC_STATUS_OK)
        result = report(client, unary, &attempt, timeout_ms, error);
    else if (!attempt.answer)
        result = heft_error_set(error, HEFT_ERR_PROTOCOL, "%s at %s:%u answered %s without a message",
                                client->service, client->address.host, client->address.port, unary->method);
    else if ((result = heft_grpc_buffer_read(attempt.answer, reply)) != 0)
        (void)heft_error_set(error, result, "%s: the answer could not be read: %s", unary->method,
                             heft_error_text(result));
    if (attempt.answer)
        grpc_byte_buffer_destroy(attempt.answer);
    return result;
}
