/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges in flight. Each lane drives one libcurl multi handle by its worker's epoll loop: libcurl says which
 * sockets it waits for and when it wants to be called, the loop tells it what became ready. A range that
 * breaks goes on from the last byte it received, after a pause; only attempts that brought nothing count
 * against the limit of retries.
 */
#include "transport/object/lane.h"
#include "base/clock.h"
#include "base/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/epoll.h>

#define MAX_MOVES 3u
#define MAX_HEDGES 2u
#define LAGGING 4u /* times slower than the others */
/* An attempt that brought so much was worth it; less is what a server that trickles brings as well. */
#define PROGRESS_BYTES ((uint64_t)256 << 10)

/* A socket of libcurl that is watched. */
struct heft_object_socket {
    struct heft_watch watch;
    struct heft_object_lane *lane;
    struct heft_object_socket *prev, *next;
};

static void start(struct heft_object_flight *flight);
static void collect(struct heft_object_lane *lane);

/* ---- libcurl's view of the loop ---- */

static void on_ready(struct heft_watch *watch, uint32_t events)
{
    struct heft_object_socket *socket = (struct heft_object_socket *)(void *)watch;
    struct heft_object_lane *lane = socket->lane;
    int mask = 0, running;

    if (events & (EPOLLIN | EPOLLRDHUP))
        mask |= CURL_CSELECT_IN;
    if (events & EPOLLOUT)
        mask |= CURL_CSELECT_OUT;
    if (events & (EPOLLERR | EPOLLHUP))
        mask |= CURL_CSELECT_ERR;
    /* the socket may be gone afterwards */
    (void)curl_multi_socket_action(lane->multi, watch->fd, mask, &running);
    collect(lane);
}

static void on_timer(struct heft_timer *timer)
{
    struct heft_object_lane *lane =
        (struct heft_object_lane *)(void *)((char *)timer - offsetof(struct heft_object_lane, timer));
    int running;

    (void)curl_multi_socket_action(lane->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    collect(lane);
}

static void forget(struct heft_object_socket *socket)
{
    heft_watch_remove(&socket->watch);
    if (socket->prev)
        socket->prev->next = socket->next;
    else
        socket->lane->sockets = socket->next;
    if (socket->next)
        socket->next->prev = socket->prev;
    free(socket);
}

static int watch_socket(CURL *easy, curl_socket_t fd, int what, void *context, void *assigned)
{
    struct heft_object_lane *lane = context;
    struct heft_object_socket *socket = assigned;
    uint32_t events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (socket)
            forget(socket);
        (void)curl_multi_assign(lane->multi, fd, NULL);
        return 0;
    }
    if (socket)
        return heft_watch_modify(&socket->watch, events) ? -1 : 0;
    socket = calloc(1, sizeof(*socket));
    if (!socket)
        return -1;
    socket->watch.fd = fd;
    socket->watch.ready = on_ready;
    socket->lane = lane;
    if (heft_watch_add(lane->worker, &socket->watch, events, NULL)) {
        free(socket);
        return -1;
    }
    socket->next = lane->sockets;
    if (socket->next)
        socket->next->prev = socket;
    lane->sockets = socket;
    (void)curl_multi_assign(lane->multi, fd, socket);
    return 0;
}

static int set_timer(CURLM *multi, long timeout_ms, void *context)
{
    struct heft_object_lane *lane = context;

    (void)multi;
    /* 0 ms: not from inside, but from the loop, at once */
    heft_timer_set(lane->worker, &lane->timer,
                   timeout_ms < 0 ? 0 : heft_now_ns() + (uint64_t)timeout_ms * HEFT_NS_PER_MS + 1);
    return 0;
}

static int make_multi(struct heft_object_lane *lane)
{
    lane->multi = curl_multi_init();
    if (!lane->multi)
        return HEFT_ERR_NO_MEMORY;
    (void)curl_multi_setopt(lane->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
    (void)curl_multi_setopt(lane->multi, CURLMOPT_SOCKETDATA, lane);
    (void)curl_multi_setopt(lane->multi, CURLMOPT_TIMERFUNCTION, set_timer);
    (void)curl_multi_setopt(lane->multi, CURLMOPT_TIMERDATA, lane);
    (void)curl_multi_setopt(lane->multi, CURLMOPT_MAXCONNECTS, (long)lane->transport->limits.connections);
    (void)curl_multi_setopt(lane->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    return HEFT_OK;
}

/* ---- flights ---- */

static int take(void *context, const uint8_t *data, size_t size)
{
    struct heft_object_flight *flight = context;
    uint64_t wanted;

    if (__atomic_load_n(&flight->task->common.status, __ATOMIC_RELAXED))
        return HEFT_ERR_CANCELED;
    wanted = heft_object_part_take(&flight->part, data, size);
    (void)__atomic_add_fetch(&flight->task->common.op->done_bytes, wanted, __ATOMIC_RELAXED);
    return HEFT_OK;
}

static void leave_multi(struct heft_object_flight *flight)
{
    if (flight->in_multi)
        (void)curl_multi_remove_handle(flight->lane->multi, flight->exchange.easy);
    flight->in_multi = 0;
}

static void end(struct heft_object_flight *flight, int status, const struct heft_error *error)
{
    struct heft_object_lane *lane = flight->lane;

    leave_multi(flight);
    heft_timer_set(lane->worker, &flight->pause, 0);
    if (flight->prev)
        flight->prev->next = flight->next;
    else
        lane->flying = flight->next;
    if (flight->next)
        flight->next->prev = flight->prev;
    flight->prev = flight->next = NULL;
    heft_object_flight_end(flight, status, error);
}

static uint64_t rate_of(const struct heft_object_flight *flight)
{
    uint64_t took = heft_now_ns() - flight->begun_ns;

    return took ? (uint64_t)((double)(flight->part.position - flight->begun_at) * (double)HEFT_NS_PER_S /
                             (double)took)
                : 0;
}

/* 1: its connection is much slower than those of other ranges, and it would go on so for a while. */
static int lags(const struct heft_object_flight *flight)
{
    struct heft_transport *transport = flight->lane->transport;
    uint64_t typical = __atomic_load_n(&transport->typical_rate, __ATOMIC_RELAXED), rate = rate_of(flight);
    uint64_t left = flight->part.end - flight->part.position;

    return left > 0 && flight->hedges < MAX_HEDGES && rate < typical / LAGGING &&
           left > rate * transport->limits.hedge_ms / 1000;
}

/* A pause is over, or a range in flight has been there for a while: one that lags goes on from its last byte
 * by another connection. */
static void on_pause_over(struct heft_timer *timer)
{
    struct heft_object_flight *flight =
        (struct heft_object_flight *)(void *)((char *)timer - offsetof(struct heft_object_flight, pause));
    uint64_t next_ns = heft_now_ns() + flight->lane->transport->limits.hedge_ms * HEFT_NS_PER_MS;

    if (flight->in_multi && !lags(flight)) {
        heft_timer_set(flight->lane->worker, &flight->pause, next_ns);
        return;
    }
    if (flight->in_multi) {
        flight->hedges++;
        leave_multi(flight);
    }
    start(flight);
}

static void start(struct heft_object_flight *flight)
{
    struct heft_object_exchange *exchange = &flight->exchange;
    struct heft_transport *transport = flight->lane->transport;
    struct heft_error error = HEFT_ERROR_INIT;
    int rc = HEFT_OK;

    if (__atomic_load_n(&flight->task->common.status, __ATOMIC_RELAXED)) {
        end(flight, HEFT_ERR_CANCELED, NULL);
        return;
    }
    if (!flight->has_handle) {
        rc = heft_object_exchange_init(exchange, &error);
        flight->has_handle = rc == HEFT_OK;
    }
    if (!rc) {
        exchange->object = flight->part.region->slot[transport->host.index];
        exchange->kind = HEFT_OBJECT_RANGE;
        exchange->begin = flight->begun_at = flight->part.position;
        exchange->length = flight->part.end - flight->part.position;
        exchange->open_end = 0;
        exchange->query = NULL;
        exchange->take = take;
        exchange->context = flight;
        rc = heft_object_exchange_begin(exchange, &transport->limits, &error);
    }
    if (!rc) {
        (void)curl_easy_setopt(exchange->easy, CURLOPT_PRIVATE, flight);
        if (curl_multi_add_handle(flight->lane->multi, exchange->easy))
            rc = heft_error_set(&error, HEFT_ERR_NO_MEMORY, "%s: the request could not be started",
                                exchange->object->shown);
        else
            flight->in_multi = 1;
    }
    flight->begun_ns = heft_now_ns();
    if (rc)
        end(flight, rc, &error);
    else if (transport->limits.hedge_ms)
        heft_timer_set(flight->lane->worker, &flight->pause,
                       flight->begun_ns + transport->limits.hedge_ms * HEFT_NS_PER_MS);
}

/* What other ranges are compared with: the mean, younger ones counting more. */
static void note_rate(const struct heft_object_flight *flight)
{
    struct heft_transport *transport = flight->lane->transport;
    uint64_t was = __atomic_load_n(&transport->typical_rate, __ATOMIC_RELAXED), rate = rate_of(flight);

    if (flight->part.position - flight->begun_at >= PROGRESS_BYTES)
        __atomic_store_n(&transport->typical_rate, was ? was / 4 * 3 + rate / 4 : rate, __ATOMIC_RELAXED);
}

static void finish(struct heft_object_flight *flight, CURLcode code)
{
    struct heft_transport *transport = flight->lane->transport;
    const struct heft_object_limits *limits = &transport->limits;
    const struct heft_transport_host *host = &transport->host;
    struct heft_error error = HEFT_ERROR_INIT;
    enum heft_object_verdict verdict;
    int moved = 0;

    verdict = heft_object_exchange_end(&flight->exchange, code, &moved, &error);
    leave_multi(flight);
    if (__atomic_load_n(&flight->task->common.status, __ATOMIC_RELAXED)) {
        end(flight, HEFT_ERR_CANCELED, NULL);
        return;
    }
    if (verdict == HEFT_OBJECT_GOOD) {
        HEFT_ASSERT(flight->part.position == flight->part.end);
        note_rate(flight);
        end(flight, HEFT_OK, NULL);
        return;
    }
    if (verdict == HEFT_OBJECT_BUSY)
        heft_object_slow_down(transport);
    if (flight->part.position - flight->begun_at >= PROGRESS_BYTES)
        flight->attempt = 0;
    if (verdict == HEFT_OBJECT_BAD || (moved && flight->moves++ == MAX_MOVES)) {
        end(flight, error.code, &error);
        return;
    }
    if (moved) {
        start(flight);
        return;
    }
    if (flight->attempt++ == limits->retries) {
        (void)heft_error_prefix(&error, error.code,
                                "bytes %" PRIu64 " to %" PRIu64 ", tried %u times without progress "
                                "(HEFT_OBJECT_RETRIES)",
                                flight->part.begin, flight->part.end - 1, flight->attempt);
        end(flight, error.code, &error);
        return;
    }
    if (host->count_retries)
        host->count_retries(host->agent, host->index, 1);
    heft_timer_set(flight->lane->worker, &flight->pause,
                   heft_now_ns() +
                       heft_object_pause_ns(limits, flight->attempt, flight->exchange.reply.retry_after_s));
}

/* Answers that are complete, or broken. Never from inside libcurl. */
static void collect(struct heft_object_lane *lane)
{
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(lane->multi, &left)) != NULL) {
        char *private = NULL;
        CURLcode code = message->data.result;

        if (message->msg != CURLMSG_DONE)
            continue;
        (void)curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &private);
        finish((struct heft_object_flight *)(void *)private, code);
    }
}

/* ---- the lane's job ---- */

static void end_canceled(struct heft_object_lane *lane)
{
    struct heft_object_flight *flight = lane->flying;

    while (flight) {
        struct heft_object_flight *next = flight->next;

        if (__atomic_load_n(&flight->task->common.status, __ATOMIC_RELAXED)) {
            end(flight, HEFT_ERR_CANCELED, NULL);
            next = lane->flying; /* a callback may have changed the list */
        }
        flight = next;
    }
}

static void close_lane(struct heft_object_lane *lane)
{
    HEFT_ASSERT(!lane->flying);
    heft_timer_set(lane->worker, &lane->timer, 0);
    if (lane->multi)
        (void)curl_multi_cleanup(lane->multi);
    while (lane->sockets)
        forget(lane->sockets);
    lane->multi = NULL;
    heft_timer_set(lane->worker, &lane->timer, 0);
}

static void begin(struct heft_object_lane *lane, struct heft_object_flight *flight)
{
    struct heft_error error = HEFT_ERROR_INIT;
    int rc = lane->multi ? HEFT_OK : make_multi(lane);

    flight->prev = NULL;
    flight->next = lane->flying;
    if (flight->next)
        flight->next->prev = flight;
    lane->flying = flight;
    flight->pause.fire = on_pause_over;
    flight->attempt = flight->moves = flight->hedges = 0;
    if (rc)
        end(flight, rc, (heft_error_set(&error, rc, "no memory for HTTP connections"), &error));
    else
        start(flight);
}

static void run(struct heft_job *job, struct heft_worker *worker)
{
    struct heft_object_lane *lane =
        (struct heft_object_lane *)(void *)((char *)job - offsetof(struct heft_object_lane, job));
    struct heft_transport *transport = lane->transport;
    struct heft_object_flight *flight, *incoming;
    int closing;

    (void)worker;
    (void)pthread_mutex_lock(&transport->tasks.lock);
    lane->job_queued = 0; /* who kicks from here on queues it again */
    incoming = lane->incoming;
    lane->incoming = NULL;
    closing = transport->closing;
    (void)pthread_mutex_unlock(&transport->tasks.lock);
    while ((flight = incoming) != NULL) {
        incoming = flight->next;
        begin(lane, flight);
    }
    end_canceled(lane);
    if (closing)
        close_lane(lane);
    (void)pthread_mutex_lock(&transport->tasks.lock);
    transport->busy_jobs--;
    (void)pthread_cond_broadcast(&transport->tasks.quiet);
    (void)pthread_mutex_unlock(&transport->tasks.lock);
}

void heft_object_lane_kick(struct heft_object_lane *lane)
{
    struct heft_transport *transport = lane->transport;
    int queue;

    (void)pthread_mutex_lock(&transport->tasks.lock);
    queue = !lane->job_queued;
    if (queue) {
        lane->job_queued = 1;
        transport->busy_jobs++;
    }
    (void)pthread_mutex_unlock(&transport->tasks.lock);
    if (queue)
        heft_worker_submit(lane->worker, &lane->job);
}

void heft_object_lane_init(struct heft_transport *transport, uint32_t index)
{
    struct heft_object_lane *lane = &transport->lanes[index];

    lane->transport = transport;
    lane->worker = heft_pool_worker(transport->host.pool, index);
    lane->job.run = run;
    lane->timer.fire = on_timer;
}
