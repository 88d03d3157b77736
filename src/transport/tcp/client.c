/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints: operations come in here, and streams are found, or dialed, for them. */
#include "transport/tcp/tcp.h"
#include "base/clock.h"
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct tcp_endpoint *endpoint_of(struct heft_endpoint *endpoint)
{
    return (struct tcp_endpoint *)(void *)endpoint;
}

void tcp_endpoint_ref(struct tcp_endpoint *endpoint)
{
    (void)__atomic_add_fetch(&endpoint->refs, 1, __ATOMIC_RELAXED);
}

static void endpoint_free(struct tcp_endpoint *endpoint)
{
    struct tcp_transport *transport = endpoint->transport;

    for (uint32_t i = 0; i < endpoint->stream_count; i++)
        tcp_stream_free(&endpoint->streams[i]);
    heft_opqueue_free(&endpoint->queue);
    pthread_mutex_destroy(&endpoint->lock);
    free(endpoint);
    pthread_mutex_lock(&transport->lock);
    transport->objects--;
    pthread_cond_broadcast(&transport->changed);
    pthread_mutex_unlock(&transport->lock);
}

void tcp_endpoint_unref(struct tcp_endpoint *endpoint)
{
    if (__atomic_sub_fetch(&endpoint->refs, 1, __ATOMIC_ACQ_REL) == 0)
        endpoint_free(endpoint);
}

static void kick_all(struct tcp_endpoint *endpoint)
{
    for (uint32_t i = 0; i < endpoint->stream_count; i++)
        if (__atomic_load_n(&endpoint->streams[i].state, __ATOMIC_ACQUIRE) == TCP_UP)
            tcp_stream_kick(&endpoint->streams[i]);
}

void tcp_endpoint_fence(struct tcp_endpoint *endpoint)
{
    pthread_mutex_lock(&endpoint->lock);
    if (!endpoint->fenced)
        heft_opqueue_hold(&endpoint->queue);
    __atomic_store_n(&endpoint->fenced, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&endpoint->lock);
}

void tcp_endpoint_unhold(struct tcp_endpoint *endpoint)
{
    if (heft_opqueue_release(&endpoint->queue))
        kick_all(endpoint);
}

void tcp_endpoint_stream_down(struct tcp_endpoint *endpoint, const struct heft_error *error)
{
    pthread_mutex_lock(&endpoint->lock);
    HEFT_ASSERT(endpoint->up > 0);
    endpoint->up--;
    if (endpoint->up == 0 && !endpoint->dial_wanted) {
        if (endpoint->fenced && heft_opqueue_active(&endpoint->queue) > 0)
            tcp_dialer_want(endpoint);
        if (!endpoint->dial_wanted)
            heft_opqueue_flush(&endpoint->queue, error != NULL ? error->code : HEFT_ERR_PEER_LOST, error);
    }
    pthread_mutex_unlock(&endpoint->lock);
    /* an operation may have been meant for the one that broke; behind a fence the others end */
    kick_all(endpoint);
}

static uint32_t choose_streams(const struct tcp_transport *transport, const struct heft_transport_peer *peer)
{
    uint32_t workers = heft_pool_workers(transport->host.pool);
    uint32_t count = peer->streams;

    if (count == 0 && peer->same_host)
        count = 2; /* both ends share the processors: more streams only take turns */
    else if (count == 0)
        count = 4;
    if (peer->streams == 0 && count > workers)
        count = workers;
    return count < TCP_MAX_STREAMS ? count : TCP_MAX_STREAMS;
}

int tcp_connect(struct heft_transport *opened, const struct heft_transport_peer *peer,
                struct heft_endpoint **endpoint_out, struct heft_error *error)
{
    struct tcp_transport *transport = (struct tcp_transport *)(void *)opened;
    struct tcp_endpoint *endpoint;
    uint32_t count;
    int rc = 0;

    if (peer == NULL)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "tcp moves bytes between two agents");
    count = choose_streams(transport, peer);
    endpoint = calloc(1, sizeof(*endpoint) + count * sizeof(endpoint->streams[0]));
    if (endpoint == NULL)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for %u streams", count);
    endpoint->transport = transport;
    endpoint->refs = 1;
    endpoint->agent_peer = peer->agent_peer;
    (void)snprintf(endpoint->name, sizeof(endpoint->name), "%s", peer->name != NULL ? peer->name : "a peer");
    heft_opqueue_init(&endpoint->queue);
    pthread_mutex_init(&endpoint->lock, NULL);
    pthread_mutex_lock(&transport->lock);
    transport->objects++;
    pthread_mutex_unlock(&transport->lock);
    for (; endpoint->stream_count < count && rc == 0; endpoint->stream_count++)
        rc = tcp_stream_init(&endpoint->streams[endpoint->stream_count], endpoint);
    if (rc != 0) {
        rc = heft_error_set(error, rc, "no memory for %u streams", count);
        goto fail;
    }
    /* The first stream at once, where that may block, so that an unreachable peer is known now. */
    if (heft_worker_self() == NULL) {
        rc = tcp_dial_stream(endpoint, &endpoint->streams[0], error);
        if (rc != 0)
            goto fail;
    }
    *endpoint_out = (struct heft_endpoint *)(void *)endpoint;
    return 0;

fail:
    tcp_endpoint_unref(endpoint);
    return rc;
}

/* Wakes the `count` least busy streams. */
static void kick_streams(struct tcp_endpoint *endpoint, uint64_t count)
{
    uint32_t kicked = 0; /* a bit each */

    _Static_assert(TCP_MAX_STREAMS <= 32, "a bit each");
    for (; count > 0; count--) {
        struct tcp_stream *best = NULL;
        uint64_t best_load = UINT64_MAX;
        uint32_t best_index = 0;

        for (uint32_t i = 0; i < endpoint->stream_count; i++) {
            struct tcp_stream *stream = &endpoint->streams[i];
            uint64_t load = __atomic_load_n(&stream->in_flight, __ATOMIC_RELAXED);

            if ((kicked >> i & 1u) != 0 || __atomic_load_n(&stream->state, __ATOMIC_RELAXED) == TCP_DOWN ||
                load >= best_load)
                continue;
            best = stream;
            best_load = load;
            best_index = i;
        }
        if (best == NULL)
            return;
        kicked |= 1u << best_index;
        tcp_stream_kick(best);
    }
}

int tcp_post(struct heft_endpoint *opened, struct heft_transport_op *op, struct heft_error *error)
{
    struct tcp_endpoint *endpoint = endpoint_of(opened);
    uint64_t parts = op->total_bytes / TCP_PART_BYTES + 1;
    int rc, spread = op->total_bytes >= TCP_SPREAD_BYTES;

    tcp_endpoint_ref(endpoint);
    pthread_mutex_lock(&endpoint->lock);
    if (!spread && endpoint->up < endpoint->stream_count)
        spread = heft_opqueue_active(&endpoint->queue) >= TCP_SPREAD_OPS;
    if (endpoint->up == 0 && !endpoint->dial_wanted && endpoint->dial_not_before_ns != 0 &&
        heft_now_ns() < endpoint->dial_not_before_ns) {
        if (error != NULL)
            *error = endpoint->dial_error;
        rc = endpoint->dial_error.code;
    } else {
        rc = heft_opqueue_post(&endpoint->queue, op, error);
    }
    if (rc == 0) {
        endpoint->all_wanted |= spread;
        if (endpoint->up == 0 || (endpoint->all_wanted && endpoint->up < endpoint->stream_count))
            tcp_dialer_want(endpoint);
    }
    pthread_mutex_unlock(&endpoint->lock);
    if (rc == 0) {
        kick_streams(endpoint, parts);
        heft_opqueue_drain(&endpoint->queue);
    }
    tcp_endpoint_unref(endpoint);
    return rc;
}

void tcp_cancel(struct heft_endpoint *opened, struct heft_transport_op *op)
{
    struct tcp_endpoint *endpoint = endpoint_of(opened);
    uint32_t claims = (uint32_t)heft_opqueue_cancel(&endpoint->queue, op);

    for (uint32_t i = 0; i < endpoint->stream_count; i++)
        claims += tcp_stream_detach(&endpoint->streams[i], op);
    if (claims > 0)
        heft_opqueue_end(&endpoint->queue, op, claims, HEFT_ERR_CANCELED, NULL, -1);
    heft_opqueue_drain(&endpoint->queue);
}

void tcp_fail(struct heft_endpoint *opened, int status, const struct heft_error *error)
{
    struct tcp_endpoint *endpoint = endpoint_of(opened);

    heft_opqueue_fail(&endpoint->queue, status, error);
    for (uint32_t i = 0; i < endpoint->stream_count; i++)
        tcp_stream_close(&endpoint->streams[i], status, error);
    heft_opqueue_drain(&endpoint->queue);
}

void tcp_disconnect(struct heft_endpoint *opened)
{
    struct tcp_endpoint *endpoint = endpoint_of(opened);

    pthread_mutex_lock(&endpoint->lock);
    endpoint->closing = 1;
    pthread_mutex_unlock(&endpoint->lock);
    /* from here on nobody starts a stream, and the agent's peer is not used any more */
    tcp_dialer_forget(endpoint);
    tcp_fail(opened, HEFT_ERR_CANCELED, NULL);
    heft_opqueue_wait_idle(&endpoint->queue, endpoint->transport->host.pool);
    tcp_endpoint_unref(endpoint);
}
