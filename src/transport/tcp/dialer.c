/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening streams blocks (a connection, a handshake), so it never happens on a worker: one thread a transport
 * does it, for the endpoints that ask, started when the first one asks.
 */
#include "transport/tcp/tcp.h"
#include "base/clock.h"
#include "base/error.h"

#include <signal.h>
#include <unistd.h>

int tcp_dial_stream(struct tcp_endpoint *endpoint, struct tcp_stream *stream, struct heft_error *error)
{
    const struct heft_transport_host *host = &endpoint->transport->host;
    int fd = -1, first, rc;

    pthread_mutex_lock(&endpoint->lock);
    first = endpoint->up == 0;
    pthread_mutex_unlock(&endpoint->lock);
    rc = (first && host->redial != NULL ? host->redial : host->dial)(endpoint->agent_peer,
                                                                     TCP_DIAL_TIMEOUT_MS, &fd, error);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&endpoint->lock);
    endpoint->up++;
    if (first && endpoint->fenced) {
        __atomic_store_n(&endpoint->fenced, 0, __ATOMIC_RELEASE);
        (void)heft_opqueue_release(&endpoint->queue);
    }
    pthread_mutex_unlock(&endpoint->lock);
    tcp_stream_start(stream, fd);
    return 0;
}

static struct tcp_stream *missing_stream(struct tcp_endpoint *endpoint)
{
    for (uint32_t i = 0; i < endpoint->stream_count; i++)
        if (__atomic_load_n(&endpoint->streams[i].state, __ATOMIC_ACQUIRE) == TCP_DOWN)
            return &endpoint->streams[i];
    return NULL;
}

/* The streams it lacks, one after the other, until one can't be had. */
static void dial_endpoint(struct tcp_endpoint *endpoint)
{
    struct heft_error error = HEFT_ERROR_INIT;
    uint32_t dials = 0;
    int rc = 0, ending;

    pthread_mutex_lock(&endpoint->lock);
    /* bounded: a peer that accepts streams and breaks them at once is not dialed for ever */
    while (!endpoint->closing && rc == 0 && dials < 2 * endpoint->stream_count) {
        struct tcp_stream *stream = missing_stream(endpoint);

        ending = endpoint->fenced && endpoint->up > 0;
        if (!ending && endpoint->up >= (endpoint->all_wanted ? endpoint->stream_count : 1))
            break;
        pthread_mutex_unlock(&endpoint->lock);
        if (stream == NULL || ending) {
            /* broken ones that their workers have not closed yet */
            (void)usleep(1000);
        } else {
            dials++;
            rc = tcp_dial_stream(endpoint, stream, &error);
        }
        pthread_mutex_lock(&endpoint->lock);
    }
    endpoint->dial_wanted = 0;
    endpoint->dial_not_before_ns = 0;
    if (rc == 0)
        (void)heft_error_set(&error, HEFT_ERR_PEER_LOST, "the data streams to %s broke", endpoint->name);
    if (rc != 0 || endpoint->up == 0) {
        endpoint->dial_not_before_ns = heft_now_ns() + TCP_DIAL_PAUSE_MS * HEFT_NS_PER_MS;
        endpoint->dial_error = error;
    }
    if (endpoint->up == 0)
        heft_opqueue_flush(&endpoint->queue, error.code, &error);
    pthread_mutex_unlock(&endpoint->lock);
    heft_opqueue_drain(&endpoint->queue);
}

static void *dialer_main(void *argument)
{
    struct tcp_transport *transport = argument;

    pthread_mutex_lock(&transport->lock);
    while (!transport->stop) {
        struct tcp_endpoint *endpoint = transport->dial_first;

        if (endpoint == NULL) {
            pthread_cond_wait(&transport->changed, &transport->lock);
            continue;
        }
        transport->dial_first = endpoint->dial_next;
        transport->dialing = endpoint;
        pthread_mutex_unlock(&transport->lock);
        dial_endpoint(endpoint);
        pthread_mutex_lock(&transport->lock);
        transport->dialing = NULL;
        pthread_cond_broadcast(&transport->changed);
        pthread_mutex_unlock(&transport->lock);
        tcp_endpoint_unref(endpoint);
        pthread_mutex_lock(&transport->lock);
    }
    pthread_mutex_unlock(&transport->lock);
    return NULL;
}

int tcp_dialer_start(struct tcp_transport *transport, struct heft_error *error)
{
    sigset_t all, before;
    int rc;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&transport->dialer, NULL, dialer_main, transport);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return heft_error_set_errno(error, rc, "starting the thread that opens streams");
    (void)pthread_setname_np(transport->dialer, "heft-dial");
    return 0;
}

void tcp_dialer_stop(struct tcp_transport *transport)
{
    pthread_mutex_lock(&transport->lock);
    transport->stop = 1;
    pthread_cond_broadcast(&transport->changed);
    pthread_mutex_unlock(&transport->lock);
    (void)pthread_join(transport->dialer, NULL);
}

void tcp_dialer_want(struct tcp_endpoint *endpoint)
{
    struct tcp_transport *transport = endpoint->transport;

    if (endpoint->dial_wanted || endpoint->closing)
        return;
    if (endpoint->dial_not_before_ns != 0 && heft_now_ns() < endpoint->dial_not_before_ns)
        return;
    endpoint->dial_wanted = 1;
    tcp_endpoint_ref(endpoint);
    pthread_mutex_lock(&transport->lock);
    endpoint->dial_next = transport->dial_first;
    transport->dial_first = endpoint;
    pthread_cond_broadcast(&transport->changed);
    pthread_mutex_unlock(&transport->lock);
}

void tcp_dialer_forget(struct tcp_endpoint *endpoint)
{
    struct tcp_transport *transport = endpoint->transport;
    struct tcp_endpoint **at;
    int found = 0;

    pthread_mutex_lock(&transport->lock);
    for (at = &transport->dial_first; *at != NULL && !found;) {
        if (*at == endpoint) {
            *at = endpoint->dial_next;
            found = 1;
        } else {
            at = &(*at)->dial_next;
        }
    }
    while (transport->dialing == endpoint && !pthread_equal(pthread_self(), transport->dialer))
        pthread_cond_wait(&transport->changed, &transport->lock);
    pthread_mutex_unlock(&transport->lock);
    if (found)
        tcp_endpoint_unref(endpoint);
}
