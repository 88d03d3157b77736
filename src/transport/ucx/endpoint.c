/* SPDX-License-Identifier: Apache-2.0 */
/* One peer: its UCX endpoint, the keys of its regions, and how operations to it begin and end. */
#include "transport/ucx/ucx.h"
#include "base/clock.h"
#include "base/error.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct ucx_endpoint *endpoint_of(struct heft_endpoint *endpoint)
{
    return (struct ucx_endpoint *)(void *)endpoint;
}

void ucx_endpoint_ref(struct ucx_endpoint *endpoint)
{
    (void)__atomic_add_fetch(&endpoint->refs, 1, __ATOMIC_RELAXED);
}

void ucx_endpoint_unref(struct ucx_endpoint *endpoint)
{
    struct ucx_transport *transport = endpoint->transport;

    if (__atomic_sub_fetch(&endpoint->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    heft_opqueue_free(&endpoint->queue);
    free(endpoint);
    ucx_object_freed(transport);
}

/* UCX tells that the endpoint can't be used any more; it may not be ended in here. */
static void on_ucx_error(void *context, ucp_ep_h ep, ucs_status_t status)
{
    struct ucx_endpoint *endpoint = context;

    (void)ep;
    endpoint->failure = status;
}

/* The peer's first words, on the caller's thread: its UCX address. */
static int await_address(struct ucx_endpoint *endpoint, struct ucx_message *message, struct heft_error *error)
{
    uint64_t until_ns = heft_now_ns() + UCX_CONNECT_MS * HEFT_NS_PER_MS, now_ns;
    int rc;

    while ((rc = ucx_channel_receive(&endpoint->channel, message)) == 0) {
        struct pollfd watched = {endpoint->channel.fd, POLLIN, 0};

        now_ns = heft_now_ns();
        if (now_ns >= until_ns)
            return heft_error_set(error, HEFT_ERR_DEADLINE, "%s did not tell its UCX address in time",
                                  endpoint->name);
        (void)poll(&watched, 1, (int)((until_ns - now_ns) / HEFT_NS_PER_MS) + 1);
    }
    if (rc == 1 && message->type == UCX_ADDRESS && message->payload_bytes > 0)
        return 0;
    return heft_error_set(error, rc < 0 ? rc : HEFT_ERR_PROTOCOL, "%s did not tell its UCX address",
                          endpoint->name);
}

static int make_ep(struct ucx_endpoint *endpoint, const struct ucx_message *message, struct heft_error *error)
{
    struct ucx_transport *transport = endpoint->transport;
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .address = (const ucp_address_t *)(const void *)message->payload,
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .err_handler = {on_ucx_error, endpoint}};
    ucs_status_t status;

    heft_handover_other(&transport->lock);
    status = transport->ucx->ucp_ep_create(transport->ucp, &params, &endpoint->ep);
    if (status == UCS_OK) {
        endpoint->next = transport->endpoints;
        transport->endpoints = endpoint;
        ucx_endpoint_ref(endpoint); /* the list's */
    }
    heft_handover_unlock(&transport->lock);
    if (status == UCS_OK)
        return 0;
    return heft_error_set(
        error, HEFT_ERR_UNAVAILABLE,
        "UCX does not reach %s: %s; both sides need a transport in common that reports the end of "
        "a peer (see UCX_TLS)",
        endpoint->name, transport->ucx->ucs_status_string(status));
}

int ucx_connect(struct heft_transport *opened, const struct heft_transport_peer *peer,
                struct heft_endpoint **endpoint_out, struct heft_error *error)
{
    struct ucx_transport *transport = (struct ucx_transport *)(void *)opened;
    struct ucx_endpoint *endpoint;
    struct ucx_message message;
    int fd = -1, rc;

    if (peer == NULL)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "ucx moves bytes between two agents");
    endpoint = calloc(1, sizeof(*endpoint));
    if (endpoint == NULL)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for a ucx endpoint");
    endpoint->transport = transport;
    endpoint->refs = 1;
    endpoint->channel.fd = -1;
    (void)snprintf(endpoint->name, sizeof(endpoint->name), "%s", peer->name != NULL ? peer->name : "a peer");
    heft_opqueue_init(&endpoint->queue);
    (void)pthread_mutex_lock(&transport->end_lock);
    transport->objects++;
    (void)pthread_mutex_unlock(&transport->end_lock);
    rc = transport->host.dial(peer->agent_peer, UCX_CONNECT_MS, &fd, error);
    if (rc == 0)
        rc = ucx_channel_open(&endpoint->channel, &transport->host, fd, error);
    if (rc == 0)
        rc = await_address(endpoint, &message, error);
    if (rc == 0)
        rc = make_ep(endpoint, &message, error);
    if (rc != 0) {
        ucx_channel_close(&endpoint->channel);
        ucx_endpoint_unref(endpoint);
        return rc;
    }
    ucx_kick(transport);
    *endpoint_out = (struct heft_endpoint *)(void *)endpoint;
    return 0;
}

/* ---- keys ---- */

int ucx_remote_add(struct heft_endpoint *opened, struct heft_transport_region *region,
                   struct heft_error *error)
{
    struct ucx_endpoint *endpoint = endpoint_of(opened);
    struct ucx_transport *transport = endpoint->transport;
    struct ucx_remote *remote;

    if (region->space != HEFT_SPACE_HOST)
        return 0; /* its score is 0 */
    remote = calloc(1, sizeof(*remote));
    if (remote == NULL)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for a region's UCX key");
    remote->id = region->id;
    remote->length = region->length_bytes;
    remote->need = region->flags & (HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE);
    heft_handover_other(&transport->lock);
    remote->next = endpoint->remotes;
    if (remote->next != NULL)
        remote->next->prev = remote;
    endpoint->remotes = remote;
    region->slot[transport->host.index] = remote;
    heft_handover_unlock(&transport->lock);
    return 0;
}

static void free_remote(struct ucx_endpoint *endpoint, struct ucx_remote *remote)
{
    if (remote->prev != NULL)
        remote->prev->next = remote->next;
    else
        endpoint->remotes = remote->next;
    if (remote->next != NULL)
        remote->next->prev = remote->prev;
    if (remote->key != NULL)
        endpoint->transport->ucx->ucp_rkey_destroy(remote->key);
    free(remote);
}

void ucx_remote_remove(struct heft_endpoint *opened, struct heft_transport_region *region)
{
    struct ucx_endpoint *endpoint = endpoint_of(opened);
    struct ucx_transport *transport = endpoint->transport;
    struct ucx_remote *remote;

    heft_handover_other(&transport->lock);
    remote = region->slot[transport->host.index];
    region->slot[transport->host.index] = NULL;
    if (remote != NULL)
        free_remote(endpoint, remote);
    heft_handover_unlock(&transport->lock);
}

static void on_answer(struct ucx_endpoint *endpoint, const struct ucx_message *message)
{
    struct ucx_transport *transport = endpoint->transport;
    struct ucx_remote *remote = endpoint->remotes;
    ucs_status_t status;

    while (remote != NULL && (remote->id != message->id || remote->state != UCX_KEY_ASKED))
        remote = remote->next;
    if (remote == NULL) /* let go meanwhile */
        return;
    remote->state = UCX_KEY_FAILED;
    remote->status = HEFT_ERR_PROTOCOL;
    if (message->type == UCX_REFUSED) {
        int code = -(int)(message->value & 0xffff);

        remote->status =
            strcmp(heft_error_name(code), "UNKNOWN") != 0 && code != 0 ? code : HEFT_ERR_PROTOCOL;
    } else if (message->type == UCX_KEY && message->length >= remote->length && message->payload_bytes > 0 &&
               message->address <= UINT64_MAX - message->length) {
        status = transport->ucx->ucp_ep_rkey_unpack(endpoint->ep, message->payload, &remote->key);
        remote->status = status == UCS_OK ? 0 : ucx_status(status);
        if (status != UCS_OK)
            remote->key = NULL;
        else
            remote->state = UCX_KEY_READY;
        remote->address = message->address;
    }
}

/* ---- the worker's part ---- */

static void channel_ready(struct heft_watch *watch, uint32_t events)
{
    struct ucx_endpoint *endpoint =
        (struct ucx_endpoint *)(void *)((char *)watch - offsetof(struct ucx_endpoint, channel.watch));

    (void)events;
    ucx_kick(endpoint->transport); /* its turn reads */
}

static void listen_to(struct ucx_endpoint *endpoint)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct ucx_message message;
    int rc = ucx_channel_flush(&endpoint->channel);

    while (rc == 0 && endpoint->ep != NULL && (rc = ucx_channel_receive(&endpoint->channel, &message)) == 1) {
        on_answer(endpoint, &message);
        rc = 0;
    }
    if (rc >= 0 || endpoint->ep == NULL)
        return;
    (void)heft_error_set(&error, rc,
                         rc == HEFT_ERR_PEER_LOST ? "%s closed its ucx connection" : "%s: broken ucx message",
                         endpoint->name);
    heft_opqueue_fail(&endpoint->queue, rc, &error);
    ucx_endpoint_break(endpoint, rc, &error);
}

void ucx_endpoint_break(struct ucx_endpoint *endpoint, int status, const struct heft_error *error)
{
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t closing;

    for (uint32_t i = 0; i < UCX_FLIGHTS; i++)
        if (endpoint->flights[i].claim.op != NULL)
            ucx_flight_fail(&endpoint->flights[i], status, error);
    if (endpoint->ep == NULL)
        return;
    closing = endpoint->transport->ucx->ucp_ep_close_nbx(endpoint->ep, &param);
    endpoint->ep = NULL;
    endpoint->closing = closing != NULL && !UCS_PTR_IS_ERR(closing) ? closing : NULL;
}

/* What was canceled is drained; when UCX does not get to its end the endpoint ends. */
static void end_canceled(struct ucx_endpoint *endpoint, uint64_t now_ns)
{
    struct heft_error error = HEFT_ERROR_INIT;
    int waits = 0;

    for (uint32_t i = 0; i < UCX_FLIGHTS; i++)
        waits |= endpoint->flights[i].claim.op != NULL && endpoint->flights[i].status == HEFT_ERR_CANCELED;
    if (!waits) {
        endpoint->cancel_by_ns = 0;
    } else if (now_ns > endpoint->cancel_by_ns &&
               now_ns > endpoint->transport->progress_ns + UCX_CANCEL_MS * HEFT_NS_PER_MS) {
        (void)heft_error_set(
            &error, HEFT_ERR_PEER_LOST,
            "the UCX endpoint of %s was closed: a canceled transfer made no progress for %u ms",
            endpoint->name, UCX_CANCEL_MS);
        heft_opqueue_fail(&endpoint->queue, HEFT_ERR_PEER_LOST, &error);
        ucx_endpoint_break(endpoint, HEFT_ERR_PEER_LOST, &error);
    }
}

void ucx_endpoint_turn(struct ucx_endpoint *endpoint, uint64_t now_ns)
{
    struct ucx_transport *transport = endpoint->transport;
    struct heft_error error = HEFT_ERROR_INIT;

    if (!endpoint->begun && !endpoint->closed) {
        endpoint->begun = 1;
        if (ucx_channel_watch(&endpoint->channel, transport->worker, channel_ready) != 0)
            endpoint->failure = UCS_ERR_NO_MEMORY;
    }
    if (endpoint->channel.fd >= 0 && !endpoint->closed)
        listen_to(endpoint);
    if (endpoint->failure != UCS_OK && endpoint->ep != NULL) {
        (void)heft_error_set(&error, ucx_status(endpoint->failure), "UCX with %s: %s", endpoint->name,
                             transport->ucx->ucs_status_string(endpoint->failure));
        heft_opqueue_fail(&endpoint->queue, error.code, &error);
        ucx_endpoint_break(endpoint, error.code, &error);
    }
    ucx_flights_fill(endpoint);
    if (endpoint->cancel_by_ns != 0)
        end_canceled(endpoint, now_ns);
    if (endpoint->closing != NULL &&
        transport->ucx->ucp_request_check_status(endpoint->closing) != UCS_INPROGRESS) {
        transport->ucx->ucp_request_free(endpoint->closing);
        endpoint->closing = NULL;
    }
}

/* ---- operations ---- */

int ucx_post(struct heft_endpoint *opened, struct heft_transport_op *op, struct heft_error *error)
{
    struct ucx_endpoint *endpoint = endpoint_of(opened);
    int rc;

    ucx_endpoint_ref(endpoint);
    rc = heft_opqueue_post(&endpoint->queue, op, error);
    if (rc == 0) {
        ucx_kick(endpoint->transport);
        heft_opqueue_drain(&endpoint->queue);
    }
    ucx_endpoint_unref(endpoint);
    return rc;
}

void ucx_cancel(struct heft_endpoint *opened, struct heft_transport_op *op)
{
    struct ucx_endpoint *endpoint = endpoint_of(opened);
    struct ucx_transport *transport = endpoint->transport;

    heft_handover_other(&transport->lock);
    if (heft_opqueue_cancel(&endpoint->queue, op))
        heft_opqueue_end(&endpoint->queue, op, 1, HEFT_ERR_CANCELED, NULL, -1);
    for (uint32_t i = 0; i < UCX_FLIGHTS; i++) {
        struct ucx_flight *flight = &endpoint->flights[i];

        if (flight->claim.op != op)
            continue;
        ucx_flight_fail(flight, HEFT_ERR_CANCELED, NULL);
        ucx_flight_go(flight);
        if (flight->claim.op == op && endpoint->cancel_by_ns == 0)
            endpoint->cancel_by_ns = heft_now_ns() + UCX_CANCEL_MS * HEFT_NS_PER_MS;
    }
    heft_handover_unlock(&transport->lock);
    heft_opqueue_drain(&endpoint->queue);
    ucx_kick(transport);
}

/* 1 while UCX may still touch memory of the endpoint's operations. */
static int still_flying(struct ucx_endpoint *endpoint)
{
    int flying = 0;

    for (uint32_t i = 0; i < UCX_FLIGHTS; i++) {
        ucx_flight_go(&endpoint->flights[i]);
        flying |= endpoint->flights[i].claim.op != NULL;
    }
    return flying;
}

void ucx_fail(struct heft_endpoint *opened, int status, const struct heft_error *error)
{
    struct ucx_endpoint *endpoint = endpoint_of(opened);
    struct ucx_transport *transport = endpoint->transport;
    uint64_t until_ns = heft_now_ns() + UCX_END_MS * HEFT_NS_PER_MS;
    const struct timespec pause = {0, 100000};
    int flying;

    heft_opqueue_fail(&endpoint->queue, status, error);
    heft_handover_other(&transport->lock);
    ucx_endpoint_break(endpoint, status, error);
    while ((flying = still_flying(endpoint)) && heft_now_ns() < until_ns) {
        if (transport->ucx->ucp_worker_progress(transport->ucp) > 0)
            continue;
        heft_handover_unlock(&transport->lock);
        (void)nanosleep(&pause, NULL);
        heft_handover_other(&transport->lock);
    }
    heft_handover_unlock(&transport->lock);
    /* memory that UCX does not let go of stays the operation's: its end comes when UCX's does */
    heft_opqueue_drain(&endpoint->queue);
    ucx_kick(transport);
}

void ucx_disconnect(struct heft_endpoint *opened)
{
    struct ucx_endpoint *endpoint = endpoint_of(opened);
    struct ucx_transport *transport = endpoint->transport;

    ucx_fail(opened, HEFT_ERR_CANCELED, NULL);
    heft_opqueue_wait_idle(&endpoint->queue, transport->host.pool);
    heft_handover_other(&transport->lock);
    while (endpoint->remotes != NULL)
        free_remote(endpoint, endpoint->remotes);
    endpoint->closed = 1;
    heft_handover_unlock(&transport->lock);
    ucx_kick(transport);
    ucx_endpoint_unref(endpoint);
}
