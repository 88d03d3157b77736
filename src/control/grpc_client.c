/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel of gRPC reconnects by itself, but with a pause that grows: a daemon that has just been restarted
 * would look dead for seconds. So a call that found the connection broken makes a new channel, which connects
 * at once, and asks there once more.
 */
#include "control/grpc_client.h"
#include "control/grpc_call.h"
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

/* One attempt: what came back. */
struct attempt {
    grpc_status_code status;
    int code; /* by heft-code, 0: none */
    char sentence[HEFT_ERROR_TEXT_BYTES];
    grpc_byte_buffer *answer;
    uint64_t serial;
};

void heft_grpc_link_call(struct heft_grpc_client *client, struct heft_grpc_call_link *link, grpc_call *call)
{
    link->call = call;
    link->thread = pthread_self();
    link->previous = NULL;
    (void)pthread_mutex_lock(&client->lock);
    link->next = client->calls;
    if (link->next)
        link->next->previous = link;
    client->calls = link;
    (void)pthread_mutex_unlock(&client->lock);
}

void heft_grpc_unlink_call(struct heft_grpc_client *client, struct heft_grpc_call_link *link)
{
    (void)pthread_mutex_lock(&client->lock);
    if (link->previous)
        link->previous->next = link->next;
    else
        client->calls = link->next;
    if (link->next)
        link->next->previous = link->previous;
    (void)pthread_mutex_unlock(&client->lock);
}

void heft_grpc_client_interrupt(struct heft_grpc_client *client, pthread_t thread)
{
    struct heft_grpc_call_link *link;

    (void)pthread_mutex_lock(&client->lock);
    for (link = client->calls; link; link = link->next)
        if (pthread_equal(link->thread, thread))
            (void)grpc_call_cancel(link->call, NULL);
    (void)pthread_mutex_unlock(&client->lock);
}

static grpc_arg int_arg(const char *key, int value)
{
    grpc_arg arg;

    memset(&arg, 0, sizeof(arg));
    arg.type = GRPC_ARG_INTEGER;
    memcpy(&arg.key, &key, sizeof(key)); /* gRPC only reads it, but its type is not const */
    arg.value.integer = value;
    return arg;
}

static grpc_channel_credentials *make_credentials(const struct heft_grpc_client *client)
{
    grpc_ssl_pem_key_cert_pair pair = {client->key, client->certificate};

    if (!client->has_tls)
        return grpc_insecure_credentials_create();
    return grpc_ssl_credentials_create(client->ca, client->key ? &pair : NULL, NULL, NULL);
}

static grpc_channel *make_channel(const struct heft_grpc_client *client)
{
    grpc_channel_credentials *credentials = make_credentials(client);
    grpc_arg args[16];
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
    if (client->options.keepalive_ms) {
        args[list.num_args++] = int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, (int)client->options.keepalive_ms);
        args[list.num_args++] = int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, (int)client->options.keepalive_ms / 2);
        args[list.num_args++] = int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    }
    channel = grpc_channel_create(client->address.target, credentials, &list);
    grpc_channel_credentials_release(credentials);
    return channel;
}

static char *copy_text(const char *text)
{
    return text ? strdup(text) : NULL;
}

static int take_tls(struct heft_grpc_client *client, const struct heft_grpc_tls *tls)
{
    client->has_tls = 1;
    client->ca = copy_text(tls->ca);
    client->certificate = copy_text(tls->certificate);
    client->key = copy_text(tls->key);
    return (tls->ca && !client->ca) || (tls->certificate && !client->certificate) ||
                   (tls->key && !client->key)
               ? HEFT_ERR_NO_MEMORY
               : 0;
}

static void free_client(struct heft_grpc_client *client)
{
    free(client->ca);
    free(client->certificate);
    free(client->key);
    free(client);
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
        free_client(client);
        return result;
    }
    client->options = *options;
    (void)snprintf(client->service, sizeof(client->service), "%s",
                   options->service ? options->service : "server");
    client->options.address = NULL;
    client->options.service = client->service;
    client->options.tls = NULL;
    if (options->start_hint)
        (void)snprintf(client->start_hint, sizeof(client->start_hint), "%s", options->start_hint);
    else
        (void)snprintf(client->start_hint, sizeof(client->start_hint), "%s --listen %s:%u", client->service,
                       client->address.host, client->address.port);
    client->options.start_hint = NULL;
    if (options->tls && take_tls(client, options->tls)) {
        free_client(client);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "gRPC client: out of memory");
    }
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
    free_client(client);
}

const struct heft_grpc_address *heft_grpc_client_address(const struct heft_grpc_client *client)
{
    return &client->address;
}

void heft_grpc_renew_channel(struct heft_grpc_client *client, uint64_t serial)
{
    (void)pthread_mutex_lock(&client->lock);
    if (client->serial == serial) {
        grpc_channel_destroy(client->channel); /* calls of other threads keep it until they end */
        client->channel = make_channel(client);
        client->serial++;
    }
    (void)pthread_mutex_unlock(&client->lock);
}

void heft_grpc_read_code(const grpc_metadata_array *trailer, int *code_out)
{
    size_t index;

    for (index = 0; index < trailer->count; index++)
        if (grpc_slice_str_cmp(trailer->metadata[index].key, HEFT_GRPC_CODE_KEY) == 0)
            *code_out =
                heft_grpc_code_named((const char *)GRPC_SLICE_START_PTR(trailer->metadata[index].value),
                                     GRPC_SLICE_LENGTH(trailer->metadata[index].value));
}

grpc_completion_queue *heft_grpc_close_queue(grpc_completion_queue *queue)
{
    grpc_completion_queue_shutdown(queue);
    while (grpc_completion_queue_pluck(queue, NULL, gpr_inf_future(GPR_CLOCK_REALTIME), NULL).type !=
           GRPC_QUEUE_SHUTDOWN)
        continue;
    grpc_completion_queue_destroy(queue);
    return NULL;
}

void heft_grpc_put_token(grpc_op *op, grpc_metadata *token, const char *text)
{
    if (!text)
        return;
    memset(token, 0, sizeof(*token));
    token->key = grpc_slice_from_static_string("token");
    token->value = grpc_slice_from_copied_string(text);
    op->data.send_initial_metadata.count = 1;
    op->data.send_initial_metadata.metadata = token;
}

void heft_grpc_slice_text(grpc_slice slice, char text_out[HEFT_ERROR_TEXT_BYTES])
{
    size_t bytes = GRPC_SLICE_LENGTH(slice);

    if (bytes >= HEFT_ERROR_TEXT_BYTES)
        bytes = HEFT_ERROR_TEXT_BYTES - 1;
    memcpy(text_out, GRPC_SLICE_START_PTR(slice), bytes);
    text_out[bytes] = 0;
}

/* gRPC ends the call by its deadline, so waiting for the batch without one of our own is bounded. */
static void attempt_call(struct heft_grpc_client *client, const struct heft_grpc_unary *unary,
                         gpr_timespec deadline, struct attempt *attempt)
{
    grpc_completion_queue *queue = grpc_completion_queue_create_for_pluck(NULL);
    grpc_byte_buffer *message = heft_grpc_buffer(unary->data, unary->size_bytes);
    grpc_slice method = grpc_slice_from_copied_string(unary->method), details = grpc_empty_slice();
    grpc_metadata_array header, trailer;
    struct heft_grpc_call_link link;
    grpc_metadata token;
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
    heft_grpc_put_token(&ops[0], &token, unary->token);
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
        heft_grpc_link_call(client, &link, call);
        (void)grpc_completion_queue_pluck(queue, attempt, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
        heft_grpc_unlink_call(client, &link);
        heft_grpc_read_code(&trailer, &attempt->code);
        heft_grpc_slice_text(details, attempt->sentence);
    } else {
        attempt->status = GRPC_STATUS_INTERNAL;
        (void)snprintf(attempt->sentence, sizeof(attempt->sentence), "gRPC refused the call");
    }
    if (unary->token)
        grpc_slice_unref(token.value);
    grpc_slice_unref(details);
    grpc_slice_unref(method);
    grpc_metadata_array_destroy(&header);
    grpc_metadata_array_destroy(&trailer);
    grpc_call_unref(call);
    grpc_byte_buffer_destroy(message);
    queue = heft_grpc_close_queue(queue);
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
    if (client->has_tls &&
        (strstr(sentence, "andshake") || strstr(sentence, "ssl") || strstr(sentence, "SSL")))
        return heft_error_set(
            error, HEFT_ERR_UNAVAILABLE,
            "%s at %s:%u: TLS failed (%.200s): does it speak TLS there, is its certificate for this "
            "name, and is the CA file the one that signed it?",
            client->service, address->host, address->port, last);
    if (!client->has_tls && (strstr(sentence, "ocket closed") || strstr(sentence, "onnection reset")))
        return heft_error_set(error, HEFT_ERR_UNAVAILABLE,
                              "%s at %s:%u ended the connection (%.200s): it may be stopping, or want TLS",
                              client->service, address->host, address->port, last);
    return heft_error_set(error, HEFT_ERR_UNAVAILABLE,
                          "no %s answers at %s:%u (%.200s): is it running there? %s starts it",
                          client->service, address->host, address->port, last, client->start_hint);
}

int heft_grpc_report(const struct heft_grpc_client *client, const char *method, grpc_status_code status,
                     int code, char *sentence, uint32_t timeout_ms, struct heft_error *error)
{
    const char *service = client->service;
    const struct heft_grpc_address *address = &client->address;

    clean_sentence(sentence);
    if (code)
        return heft_error_set(error, code, "%s", sentence);
    switch (status) {
    case GRPC_STATUS_UNAVAILABLE:
        return unavailable(client, sentence, error);
    case GRPC_STATUS_CANCELLED:
        return heft_error_set(error, HEFT_ERR_CANCELED, "%s at %s:%u: %s was canceled", service,
                              address->host, address->port, method);
    case GRPC_STATUS_DEADLINE_EXCEEDED:
        return heft_error_set(error, HEFT_ERR_DEADLINE, "%s at %s:%u did not answer %s within %u ms", service,
                              address->host, address->port, method, timeout_ms);
    case GRPC_STATUS_UNIMPLEMENTED:
        return heft_error_set(
            error, HEFT_ERR_UNSUPPORTED,
            "what answers at %s:%u does not know %s: another program, or another version of %s",
            address->host, address->port, method, service);
    default:
        return heft_error_set(error, heft_grpc_code_of(status), "%s at %s:%u, %s: %.300s", service,
                              address->host, address->port, method, sentence);
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
        heft_grpc_renew_channel(client, attempt.serial);
        if (unary->is_idempotent) {
            if (attempt.answer)
                grpc_byte_buffer_destroy(attempt.answer);
            unary->was_repeated = 1;
            attempt_call(client, unary, deadline, &attempt);
        }
    }
    if (attempt.status != GRPC_STATUS_OK)
        result = heft_grpc_report(client, unary->method, attempt.status, attempt.code, attempt.sentence,
                                  timeout_ms, error);
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
