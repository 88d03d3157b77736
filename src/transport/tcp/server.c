/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The serving side: one connection is a ring of requests, answered in order. A reader that does not read
 * costs its ring and its pins, nothing else: sockets never block, and a full ring stops reading from it. What
 * the connection holds ends with its session (drop_session) or with the connection, whichever is first.
 */
#include "transport/tcp/tcp.h"
#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQUEST(conn, index) (&(conn)->requests[(index) % TCP_PARTS])
/* Room that any answer's head needs. */
#define ANSWER_BYTES (HEFT_DATA_HEAD_BYTES + HEFT_DATA_MAX_TEXT_BYTES)

struct tcp_conn {
    struct heft_job job; /* first */
    struct heft_watch watch;
    struct tcp_transport *transport;
    struct heft_worker *worker;
    uint64_t session;
    struct tcp_conn *prev, *next; /* the transport's list, under its lock */
    uint32_t refs;                /* atomic: the worker's, a queued job's, a dropper's */
    uint32_t scheduled;           /* atomic */
    struct heft_handover lock;    /* all below */
    struct tcp_wire wire;
    int watched, dead;
    uint32_t events;
    struct tcp_rx rx;
    struct tcp_tx tx;
    uint8_t *staging; /* for files; in use while bulk waits */
    struct tcp_request requests[TCP_PARTS];
    uint32_t head, tail;
};

static void conn_unref(struct tcp_conn *conn)
{
    struct tcp_transport *transport = conn->transport;

    if (__atomic_sub_fetch(&conn->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    tcp_rx_free(&conn->rx);
    tcp_tx_free(&conn->tx);
    if (conn->staging != NULL)
        (void)__atomic_sub_fetch(&transport->staged_bytes, TCP_STAGING_BYTES, __ATOMIC_RELAXED);
    free(conn->staging);
    heft_handover_free(&conn->lock);
    free(conn);
    pthread_mutex_lock(&transport->lock);
    transport->objects--;
    pthread_cond_broadcast(&transport->changed);
    pthread_mutex_unlock(&transport->lock);
}

static void conn_kick(struct tcp_conn *conn)
{
    if (__atomic_exchange_n(&conn->scheduled, 1, __ATOMIC_SEQ_CST))
        return;
    (void)__atomic_add_fetch(&conn->refs, 1, __ATOMIC_RELAXED);
    heft_worker_submit(conn->worker, &conn->job);
}

/* Lets go of every region and shuts the socket; the worker closes it. Lock held. */
static void kill_locked(struct tcp_conn *conn)
{
    if (conn->dead)
        return;
    conn->dead = 1;
    for (; conn->head != conn->tail; conn->head++)
        tcp_request_release(conn->transport, REQUEST(conn, conn->head));
    tcp_rx_reset(&conn->rx);
    tcp_tx_reset(&conn->tx);
    (void)shutdown(conn->wire.fd, SHUT_RDWR);
}

/* ---- requests in ---- */

static int rx_ready(void *context)
{
    const struct tcp_conn *conn = context;

    return conn->tail - conn->head < TCP_PARTS;
}

static int rx_head(void *context, const struct heft_data_head *head, const uint8_t *table)
{
    struct tcp_conn *conn = context;
    struct tcp_request *request = REQUEST(conn, conn->tail);
    int rc;

    if (head->type != HEFT_DATA_READ && head->type != HEFT_DATA_WRITE)
        return HEFT_ERR_PROTOCOL;
    rc = tcp_request_parse(conn->transport, head, table, request);
    if (rc != 0)
        return rc;
    /* a refused WRITE's data still comes: it goes nowhere */
    if (request->answer == TCP_ANSWER_RECEIVING)
        conn->rx.place = request->place;
    conn->tail++;
    return 0;
}

static void rx_moved(void *context, uint64_t bytes)
{
    (void)context;
    (void)bytes;
}

static int rx_end(void *context)
{
    struct tcp_conn *conn = context;
    struct tcp_request *request = REQUEST(conn, conn->tail - 1);

    /* may be answered already when it was refused */
    if (conn->head == conn->tail || request->answer != TCP_ANSWER_RECEIVING)
        return 0;
    if (request->digest && tcp_place_digest(&request->place, request->total_bytes) != conn->rx.head.digest) {
        tcp_request_refuse(conn->transport, request, HEFT_ERR_DIGEST, UINT32_MAX, 0);
        return 0;
    }
    tcp_request_release(conn->transport, request);
    request->answer = TCP_ANSWER_ACK;
    return 0;
}

static const struct tcp_rx_handlers rx_handlers = {rx_ready, rx_head, rx_moved, rx_end};

/* ---- answers out ---- */

static void answer_error(struct tcp_conn *conn, const struct tcp_request *request)
{
    struct heft_data_head head = {.type = HEFT_DATA_ERROR,
                                  .id = request->id,
                                  .value = (uint32_t)-request->status,
                                  .extra = request->failed_run};
    char *text = (char *)tcp_tx_at(&conn->tx) + HEFT_DATA_HEAD_BYTES;
    int size = snprintf(text, HEFT_DATA_MAX_TEXT_BYTES, "region %llu: %s",
                        (unsigned long long)request->region_id, heft_error_text(request->status));

    head.table_bytes = size > 0 ? (uint32_t)size : 0;
    if (head.table_bytes >= HEFT_DATA_MAX_TEXT_BYTES)
        head.table_bytes = HEFT_DATA_MAX_TEXT_BYTES - 1;
    heft_data_encode(&head, tcp_tx_at(&conn->tx));
    tcp_tx_take(&conn->tx, HEFT_DATA_HEAD_BYTES + head.table_bytes);
}

static void answer_ack(struct tcp_conn *conn, const struct tcp_request *request)
{
    struct heft_data_head head = {
        .type = HEFT_DATA_ACK, .id = request->id, .value = (uint32_t)request->total_bytes};

    heft_data_encode(&head, tcp_tx_at(&conn->tx));
    tcp_tx_take(&conn->tx, HEFT_DATA_HEAD_BYTES);
}

static void append_data(struct tcp_conn *conn, struct tcp_request *request, uint32_t bytes, uint64_t digest)
{
    struct heft_data_head head = {.type = HEFT_DATA_DATA,
                                  .flags = request->digest ? HEFT_DATA_DIGEST : 0,
                                  .id = request->id,
                                  .value = (uint32_t)request->sent_bytes,
                                  .digest = digest,
                                  .bulk_bytes = bytes};

    heft_data_encode(&head, tcp_tx_at(&conn->tx));
    tcp_tx_take(&conn->tx, HEFT_DATA_HEAD_BYTES);
    request->sent_bytes += bytes;
    conn->transport->host.count_served(conn->transport->host.agent, bytes);
}

static void answer_memory(struct tcp_conn *conn, struct tcp_request *request)
{
    uint64_t bytes = request->total_bytes - request->sent_bytes, digest = 0;

    if (bytes > HEFT_DATA_MAX_FRAME_BYTES)
        bytes = HEFT_DATA_MAX_FRAME_BYTES;
    if (request->digest)
        digest = tcp_place_digest(&request->place, bytes);
    append_data(conn, request, (uint32_t)bytes, digest);
    tcp_tx_bulk(&conn->tx, &request->place, bytes);
}

/* Some of it comes from files, by way of the staging buffer. */
static void answer_staged(struct tcp_conn *conn, struct tcp_request *request)
{
    struct tcp_transport *transport = conn->transport;
    uint64_t digest = 0;
    int64_t got = HEFT_ERR_NO_MEMORY;

    if (conn->staging == NULL) {
        uint64_t held = __atomic_add_fetch(&transport->staged_bytes, TCP_STAGING_BYTES, __ATOMIC_RELAXED);

        if (held <= transport->host.max_host_bytes)
            conn->staging = malloc(TCP_STAGING_BYTES);
        if (conn->staging == NULL)
            (void)__atomic_sub_fetch(&transport->staged_bytes, TCP_STAGING_BYTES, __ATOMIC_RELAXED);
    }
    if (conn->staging != NULL)
        got = tcp_request_gather(request, conn->staging, TCP_STAGING_BYTES, &digest);
    if (got <= 0) {
        tcp_request_refuse(transport, request, got < 0 ? (int)got : HEFT_ERR_INTERNAL, UINT32_MAX,
                           request->moves[0].local->id);
        return;
    }
    append_data(conn, request, (uint32_t)got, digest);
    tcp_tx_bulk_flat(&conn->tx, conn->staging, (uint64_t)got);
}

/* Appends answers while they fit. 1 when something was appended or finished. */
static int fill(struct tcp_conn *conn)
{
    int filled = 0;

    while (conn->head != conn->tail && tcp_tx_room(&conn->tx) >= ANSWER_BYTES) {
        struct tcp_request *request = REQUEST(conn, conn->head);

        if (request->answer == TCP_ANSWER_RECEIVING)
            break;
        filled = 1;
        if (request->answer == TCP_ANSWER_DATA && request->sent_bytes < request->total_bytes) {
            if (request->staged)
                answer_staged(conn, request);
            else
                answer_memory(conn, request);
            continue;
        }
        if (request->answer == TCP_ANSWER_ERROR)
            answer_error(conn, request);
        else if (request->answer == TCP_ANSWER_ACK)
            answer_ack(conn, request);
        tcp_request_release(conn->transport, request);
        conn->head++;
    }
    return filled;
}

/* ---- life ---- */

static void report(const struct tcp_conn *conn, int rc)
{
    if (rc != HEFT_ERR_PEER_LOST)
        heft_log(HEFT_LOG_WARN, "tcp: closed a stream of session %llu: %s", (unsigned long long)conn->session,
                 heft_error_text(rc));
}

static void pump_locked(struct tcp_conn *conn)
{
    uint64_t in_budget = TCP_TURN_BYTES, out_budget = TCP_TURN_BYTES;
    uint32_t events;
    int in, out, errno_value = 0;

    do {
        in = tcp_rx_run(&conn->rx, &conn->wire, &in_budget, &rx_handlers, conn, &errno_value);
        if (in < 0) {
            report(conn, in);
            kill_locked(conn);
            return;
        }
        do
            out = fill(conn) || conn->tx.bulk_left > 0 || conn->tx.begin < conn->tx.end
                      ? tcp_tx_run(&conn->tx, &conn->wire, &out_budget, &errno_value)
                      : TCP_IO_IDLE;
        while (out == TCP_IO_IDLE && fill(conn));
        if (out < 0) {
            kill_locked(conn);
            return;
        }
        /* frames that wait in the buffer for a place in the ring raise no event: look again */
    } while (in == TCP_IO_PAUSE && rx_ready(conn));
    events = (in == TCP_IO_PAUSE ? 0 : (uint32_t)EPOLLIN) | (out == TCP_IO_IDLE ? 0 : (uint32_t)EPOLLOUT);
    if (events != conn->events) {
        conn->events = events;
        (void)heft_watch_modify(&conn->watch, events);
    }
}

static void conn_close(struct tcp_conn *conn)
{
    struct tcp_transport *transport = conn->transport;

    pthread_mutex_lock(&transport->lock);
    if (conn->prev != NULL)
        conn->prev->next = conn->next;
    else
        transport->conns = conn->next;
    if (conn->next != NULL)
        conn->next->prev = conn->prev;
    pthread_mutex_unlock(&transport->lock);
    if (conn->watched)
        heft_watch_remove(&conn->watch);
    tcp_wire_close(&conn->wire);
    conn_unref(conn); /* the worker's */
}

/* On the worker. The caller holds a reference. */
static void conn_turn(struct tcp_conn *conn)
{
    struct heft_error error = HEFT_ERROR_INIT;
    int dead;

    heft_handover_worker(&conn->lock);
    if (!conn->dead && !conn->watched) {
        conn->watch.fd = conn->wire.fd;
        conn->events = EPOLLIN;
        if (heft_watch_add(conn->worker, &conn->watch, conn->events, &error) != 0)
            kill_locked(conn);
        else
            conn->watched = 1;
    }
    if (!conn->dead)
        pump_locked(conn);
    dead = conn->dead && conn->wire.fd >= 0;
    heft_handover_unlock(&conn->lock);
    if (dead)
        conn_close(conn);
}

static void watch_ready(struct heft_watch *watch, uint32_t epoll_events)
{
    struct tcp_conn *conn = (struct tcp_conn *)(void *)((char *)watch - offsetof(struct tcp_conn, watch));

    (void)__atomic_add_fetch(&conn->refs, 1, __ATOMIC_RELAXED);
    if (epoll_events & (EPOLLHUP | EPOLLERR)) { /* nobody is left to answer to */
        heft_handover_worker(&conn->lock);
        kill_locked(conn);
        heft_handover_unlock(&conn->lock);
    }
    conn_turn(conn);
    conn_unref(conn);
}

static void run(struct heft_job *job, struct heft_worker *worker)
{
    struct tcp_conn *conn = (struct tcp_conn *)(void *)job;

    (void)worker;
    __atomic_store_n(&conn->scheduled, 0, __ATOMIC_SEQ_CST);
    conn_turn(conn);
    conn_unref(conn);
}

int tcp_accept(struct heft_transport *opened, int fd, uint64_t session, struct heft_error *error)
{
    struct tcp_transport *transport = (struct tcp_transport *)(void *)opened;
    struct tcp_conn *conn = calloc(1, sizeof(*conn));
    uint32_t index = __atomic_fetch_add(&transport->next_worker, 1, __ATOMIC_RELAXED);
    struct tcp_wire wire;

    if (conn == NULL || tcp_rx_init(&conn->rx, TCP_SERVER_BUFFER_BYTES) != 0 ||
        tcp_tx_init(&conn->tx, TCP_SERVER_BUFFER_BYTES) != 0) {
        if (conn != NULL) {
            tcp_rx_free(&conn->rx);
            tcp_tx_free(&conn->tx);
        }
        free(conn);
        tcp_wire_open(&wire, &transport->host, fd);
        tcp_wire_close(&wire);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for a data stream");
    }
    conn->job.run = run;
    conn->watch.ready = watch_ready;
    conn->transport = transport;
    conn->session = session;
    tcp_wire_open(&conn->wire, &transport->host, fd);
    conn->refs = 1;
    conn->worker = heft_pool_worker(transport->host.pool, index % heft_pool_workers(transport->host.pool));
    heft_handover_init(&conn->lock);
    pthread_mutex_lock(&transport->lock);
    transport->objects++;
    conn->next = transport->conns;
    if (conn->next != NULL)
        conn->next->prev = conn;
    transport->conns = conn;
    (void)__atomic_add_fetch(&conn->refs, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&transport->lock);
    conn_kick(conn);
    conn_unref(conn);
    return 0;
}

void tcp_drop_session(struct heft_transport *opened, uint64_t session)
{
    struct tcp_transport *transport = (struct tcp_transport *)(void *)opened;
    struct tcp_conn *conn;

    pthread_mutex_lock(&transport->lock);
    for (;;) {
        for (conn = transport->conns; conn != NULL; conn = conn->next)
            if (conn->session == session)
                break;
        if (conn == NULL)
            break;
        conn->session = UINT64_MAX; /* found once */
        (void)__atomic_add_fetch(&conn->refs, 1, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&transport->lock);
        heft_handover_other(&conn->lock);
        kill_locked(conn);
        heft_handover_unlock(&conn->lock);
        conn_kick(conn);
        conn_unref(conn);
        pthread_mutex_lock(&transport->lock);
    }
    pthread_mutex_unlock(&transport->lock);
}
