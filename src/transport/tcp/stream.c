/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One client stream. Its worker claims parts from the endpoint's queue while the window has room, sends the
 * requests, and receives the answers, which come in the same order, straight into the operations' memory.
 */
#include "transport/tcp/tcp.h"
#include "base/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define PART(stream, index) (&(stream)->parts[(index) % TCP_PARTS])

void tcp_stream_kick(struct tcp_stream *stream)
{
    if (__atomic_exchange_n(&stream->scheduled, 1, __ATOMIC_SEQ_CST))
        return;
    tcp_endpoint_ref(stream->endpoint);
    heft_worker_submit(stream->worker, &stream->job);
}

static void set_in_flight(struct tcp_stream *stream, uint64_t bytes)
{
    __atomic_store_n(&stream->in_flight, bytes, __ATOMIC_RELAXED);
}

static void set_state(struct tcp_stream *stream, enum tcp_stream_state state)
{
    __atomic_store_n(&stream->state, state, __ATOMIC_RELEASE);
}

/* ---- requests out ---- */

static void encode_request(struct tcp_stream *stream, struct tcp_part *part)
{
    const struct heft_transport_op *op = part->claim.op;
    struct heft_data_head head = {.id = part->id, .value = part->claim.cuts};
    struct heft_cursor cursor = part->claim.start;
    uint8_t *out = tcp_tx_at(&stream->tx);
    uint64_t left = part->claim.bytes;
    struct heft_cut cut;

    for (uint32_t i = 0; i < part->claim.cuts; i++) {
        left -= heft_cursor_cut(&cursor, op->moves, op->move_count, left, 1, &cut);
        struct heft_data_run run = {cut.move->remote->id, cut.remote_offset_bytes, cut.length_bytes,
                                    cut.count, cut.move->remote_stride_bytes};

        heft_data_run_encode(&run, out + HEFT_DATA_HEAD_BYTES + i * HEFT_DATA_RUN_BYTES);
    }
    head.type = part->kind == HEFT_OP_READ ? HEFT_DATA_READ : HEFT_DATA_WRITE;
    head.table_bytes = part->claim.cuts * HEFT_DATA_RUN_BYTES;
    if (part->claim.strided)
        head.flags = HEFT_DATA_DIGEST;
    if (part->kind == HEFT_OP_WRITE) {
        head.bulk_bytes = (uint32_t)part->claim.bytes;
        if (part->claim.strided)
            head.digest = tcp_place_digest(&part->place, part->claim.bytes);
    }
    heft_data_encode(&head, out);
    tcp_tx_take(&stream->tx, HEFT_DATA_HEAD_BYTES + head.table_bytes);
    if (part->kind == HEFT_OP_WRITE) {
        struct tcp_place place = part->place;

        tcp_tx_bulk(&stream->tx, &place, part->claim.bytes);
    }
}

/* Claims while the window and the buffer have room. 1 when something was appended. */
static int fill(struct tcp_stream *stream)
{
    struct heft_claim claim;
    int filled = 0;

    while (stream->tail - stream->head < TCP_PARTS && stream->in_flight < TCP_WINDOW_BYTES &&
           tcp_tx_room(&stream->tx) >= TCP_BUFFER_MIN_BYTES &&
           heft_opqueue_claim(&stream->endpoint->queue, TCP_PART_BYTES, HEFT_DATA_MAX_RUNS, &claim)) {
        struct tcp_part *part = PART(stream, stream->tail);

        part->claim = claim;
        part->kind = claim.op->kind;
        part->id = stream->next_id++;
        part->received_bytes = 0;
        part->place.moves = claim.op->moves;
        part->place.move_count = claim.op->move_count;
        part->place.cursor = claim.start;
        stream->tail++;
        set_in_flight(stream, stream->in_flight + claim.bytes);
        encode_request(stream, part);
        filled = 1;
    }
    return filled;
}

/* ---- answers in ---- */

static int64_t move_of_run(const struct heft_claim *claim, uint32_t run)
{
    struct heft_cursor cursor = claim->start;
    uint64_t left = claim->bytes;
    struct heft_cut cut;

    if (run >= claim->cuts)
        return -1;
    for (uint32_t i = 0; i <= run; i++)
        left -= heft_cursor_cut(&cursor, claim->op->moves, claim->op->move_count, left, 1, &cut);
    return (int64_t)cut.move_index;
}

/*
 * Part `index` gives up its memory. If it is a WRITE whose bytes are still being sent, the rest of them moves
 * into a copy: the frame was promised whole. 0, or NO_MEMORY (then only the end of the stream can keep the
 * promise).
 */
static int spill(struct tcp_stream *stream, uint32_t index)
{
    uint64_t left = stream->tx.bulk_left;

    if (index != stream->tail - 1 || left == 0 || stream->tx.flat != NULL)
        return 0;
    if (stream->spill == NULL)
        stream->spill = malloc(TCP_PART_BYTES);
    if (stream->spill == NULL)
        return HEFT_ERR_NO_MEMORY;
    tcp_place_get(&stream->tx.place, stream->spill, left);
    tcp_tx_bulk_flat(&stream->tx, stream->spill, left);
    return 0;
}

/* The oldest part is over. */
static int end_part(struct tcp_stream *stream, int status, const struct heft_error *error,
                    uint32_t failed_run)
{
    struct tcp_part *part = PART(stream, stream->head);
    struct heft_transport_op *op = part->claim.op;
    int64_t failed_move = op != NULL && status != 0 ? move_of_run(&part->claim, failed_run) : -1;

    /* A WRITE may be refused while its bytes are on their way. */
    if (op != NULL && spill(stream, stream->head) != 0)
        return HEFT_ERR_NO_MEMORY;
    stream->head++;
    set_in_flight(stream, stream->in_flight - part->claim.bytes);
    if (op == NULL && part->kind == HEFT_OP_WRITE)
        tcp_endpoint_unhold(stream->endpoint);
    if (op == NULL)
        return 0;
    heft_opqueue_end(&stream->endpoint->queue, op, 1, status, error, failed_move);
    return TCP_IO_STOP; /* so that done runs while the bytes are still in the cache */
}

static int rx_ready(void *context)
{
    (void)context;
    return 1;
}

static int answered_error(struct tcp_stream *stream, const struct heft_data_head *head, const uint8_t *table)
{
    struct heft_error error = HEFT_ERROR_INIT;
    int code = -(int)(head->value & 0xffff);

    if (heft_error_class(code) == HEFT_CLASS_NONE || strcmp(heft_error_name(code), "UNKNOWN") == 0)
        code = HEFT_ERR_PROTOCOL;
    heft_error_set(&error, code, "%s refuses: %.*s", stream->endpoint->name, (int)head->table_bytes,
                   (const char *)table);
    return end_part(stream, code, &error, head->extra);
}

static int rx_head(void *context, const struct heft_data_head *head, const uint8_t *table)
{
    struct tcp_stream *stream = context;
    struct tcp_part *part = PART(stream, stream->head);

    if (stream->head == stream->tail || part->id != head->id)
        return HEFT_ERR_PROTOCOL;
    switch (head->type) {
    case HEFT_DATA_DATA:
        if (part->kind != HEFT_OP_READ || head->value != part->received_bytes ||
            head->bulk_bytes > part->claim.bytes - part->received_bytes ||
            (part->claim.strided && !(head->flags & HEFT_DATA_DIGEST)))
            return HEFT_ERR_PROTOCOL;
        stream->rx.place = part->place;
        stream->frame_start = part->place;
        if (part->claim.op == NULL)
            stream->rx.place.moves = NULL;
        return 0;
    case HEFT_DATA_ACK:
        if (part->kind != HEFT_OP_WRITE || head->value != part->claim.bytes)
            return HEFT_ERR_PROTOCOL;
        if (part->claim.op != NULL)
            (void)__atomic_fetch_add(&part->claim.op->done_bytes, part->claim.bytes, __ATOMIC_RELEASE);
        return end_part(stream, 0, NULL, 0);
    case HEFT_DATA_ERROR:
        return answered_error(stream, head, table);
    default:
        return HEFT_ERR_PROTOCOL;
    }
}

static void rx_moved(void *context, uint64_t bytes)
{
    struct tcp_stream *stream = context;
    struct tcp_part *part = PART(stream, stream->head);

    part->received_bytes += bytes;
    if (part->claim.op != NULL)
        (void)__atomic_fetch_add(&part->claim.op->done_bytes, bytes, __ATOMIC_RELEASE);
}

static int rx_end(void *context)
{
    struct tcp_stream *stream = context;
    struct tcp_part *part = PART(stream, stream->head);
    const struct heft_data_head *head = &stream->rx.head;
    struct heft_error error = HEFT_ERROR_INIT;

    if (part->claim.op != NULL) {
        part->place = stream->rx.place;
        if ((head->flags & HEFT_DATA_DIGEST) &&
            tcp_place_digest(&stream->frame_start, head->bulk_bytes) != head->digest) {
            heft_error_set(&error, HEFT_ERR_DIGEST, "%u bytes from %s do not match the digest they came with",
                           head->bulk_bytes, stream->endpoint->name);
            /* the part's other frames, if any, still come: they are dropped */
            heft_opqueue_end(&stream->endpoint->queue, part->claim.op, 1, HEFT_ERR_DIGEST, &error, -1);
            part->claim.op = NULL;
            if (part->received_bytes < part->claim.bytes)
                return TCP_IO_STOP;
        }
    }
    if (part->received_bytes < part->claim.bytes)
        return 0;
    return end_part(stream, 0, NULL, 0) | (error.code != 0 ? TCP_IO_STOP : 0);
}

static const struct tcp_rx_handlers rx_handlers = {rx_ready, rx_head, rx_moved, rx_end};

/* ---- life ---- */

/* Before its parts are given up: bytes of its WRITEs may be on their way. */
static void fence_writes(struct tcp_stream *stream)
{
    struct tcp_endpoint *endpoint = stream->endpoint;
    int is_fenced = 0;

    for (uint32_t i = stream->head; i != stream->tail; i++) {
        const struct tcp_part *part = PART(stream, i);

        if (part->kind != HEFT_OP_WRITE)
            continue;
        if (!is_fenced)
            tcp_endpoint_fence(endpoint);
        is_fenced = 1;
        if (part->claim.op == NULL)
            (void)heft_opqueue_release(&endpoint->queue); /* its own hold; the fence keeps the queue held */
    }
}

/* Gives up all parts and shuts the socket; its worker closes it. Stream lock held. */
static void break_locked(struct tcp_stream *stream, int status, const struct heft_error *error)
{
    if (stream->state != TCP_UP && stream->state != TCP_FRESH)
        return;
    set_state(stream, TCP_CLOSING);
    (void)shutdown(stream->wire.fd, SHUT_RDWR);
    fence_writes(stream);
    for (; stream->head != stream->tail; stream->head++) {
        struct tcp_part *part = PART(stream, stream->head);

        if (part->claim.op != NULL)
            heft_opqueue_end(&stream->endpoint->queue, part->claim.op, 1, status, error, -1);
        part->claim.op = NULL;
    }
    set_in_flight(stream, 0);
    tcp_endpoint_stream_down(stream->endpoint, error);
}

static void lost(struct tcp_stream *stream, int code, int errno_value)
{
    struct heft_error error = HEFT_ERROR_INIT;

    if (code == HEFT_ERR_PEER_LOST)
        heft_error_set(&error, code, "the data stream to %s broke: %s", stream->endpoint->name,
                       errno_value != 0 ? strerror(errno_value) : "the peer closed it");
    else
        heft_error_set(&error, code, "the data stream to %s: %s", stream->endpoint->name,
                       heft_error_text(code));
    break_locked(stream, code, &error);
}

static void end_fenced(struct tcp_stream *stream)
{
    struct heft_error error = HEFT_ERROR_INIT;

    heft_error_set(&error, HEFT_ERR_PEER_LOST, "another data stream to %s broke while it was written to",
                   stream->endpoint->name);
    break_locked(stream, error.code, &error);
}

static void update_watch(struct tcp_stream *stream, int blocked)
{
    uint32_t events = EPOLLIN | (blocked ? (uint32_t)EPOLLOUT : 0);

    if (events == stream->events)
        return;
    stream->events = events;
    (void)heft_watch_modify(&stream->watch, events);
}

static void pump(struct tcp_stream *stream)
{
    uint64_t budget = TCP_TURN_BYTES;
    int rc, errno_value = 0, blocked = 0;

    do {
        heft_handover_worker(&stream->lock);
        if (stream->state == TCP_UP && __atomic_load_n(&stream->endpoint->fenced, __ATOMIC_ACQUIRE))
            end_fenced(stream);
        if (stream->state != TCP_UP) {
            rc = stream->state == TCP_CLOSING ? HEFT_ERR_PEER_LOST : 0;
            heft_handover_unlock(&stream->lock);
            break;
        }
        do {
            uint64_t unlimited = UINT64_MAX;

            (void)fill(stream);
            rc = tcp_tx_run(&stream->tx, &stream->wire, &unlimited, &errno_value);
        } while (rc == TCP_IO_IDLE && fill(stream));
        blocked = rc == TCP_IO_WAIT;
        /* also after a broken send: what the peer said before it went away still counts */
        rc = tcp_rx_run(&stream->rx, &stream->wire, &budget, &rx_handlers, stream, &errno_value);
        if (rc < 0)
            lost(stream, rc, errno_value);
        else
            update_watch(stream, blocked);
        heft_handover_unlock(&stream->lock);
        heft_opqueue_drain(&stream->endpoint->queue);
    } while (rc == TCP_IO_STOP);
    if (rc < 0 || rc == TCP_IO_MORE)
        tcp_stream_kick(stream);
}

static void watch_ready(struct heft_watch *watch, uint32_t epoll_events)
{
    struct tcp_stream *stream =
        (struct tcp_stream *)(void *)((char *)watch - offsetof(struct tcp_stream, watch));

    (void)epoll_events;
    tcp_endpoint_ref(stream->endpoint);
    pump(stream);
    tcp_endpoint_unref(stream->endpoint);
}

static void start_locked(struct tcp_stream *stream)
{
    struct heft_error error = HEFT_ERROR_INIT;

    stream->watch.fd = stream->wire.fd;
    stream->watch.ready = watch_ready;
    stream->events = EPOLLIN;
    set_state(stream, TCP_UP);
    if (heft_watch_add(stream->worker, &stream->watch, stream->events, &error) != 0) {
        stream->watch.fd = -1;
        break_locked(stream, error.code, &error);
    }
}

static void close_locked(struct tcp_stream *stream)
{
    if (stream->watch.fd >= 0)
        heft_watch_remove(&stream->watch);
    stream->watch.fd = -1;
    tcp_wire_close(&stream->wire);
    tcp_rx_reset(&stream->rx);
    tcp_tx_reset(&stream->tx);
    set_state(stream, TCP_DOWN);
}

static void run(struct heft_job *job, struct heft_worker *worker)
{
    struct tcp_stream *stream = (struct tcp_stream *)(void *)job;
    struct tcp_endpoint *endpoint = stream->endpoint;
    int closed = 0, up;

    (void)worker;
    __atomic_store_n(&stream->scheduled, 0, __ATOMIC_SEQ_CST);
    heft_handover_worker(&stream->lock);
    if (stream->state == TCP_FRESH)
        start_locked(stream);
    if (stream->state == TCP_CLOSING) {
        close_locked(stream);
        closed = 1;
    }
    up = stream->state == TCP_UP;
    heft_handover_unlock(&stream->lock);
    if (up)
        pump(stream);
    heft_opqueue_drain(&endpoint->queue);
    if (closed)
        tcp_endpoint_unref(endpoint); /* the descriptor's */
    tcp_endpoint_unref(endpoint);
}

int tcp_stream_init(struct tcp_stream *stream, struct tcp_endpoint *endpoint)
{
    struct tcp_transport *transport = endpoint->transport;
    uint32_t index = __atomic_fetch_add(&transport->next_worker, 1, __ATOMIC_RELAXED);

    stream->job.run = run;
    stream->endpoint = endpoint;
    stream->worker = heft_pool_worker(transport->host.pool, index % heft_pool_workers(transport->host.pool));
    stream->wire.fd = -1;
    stream->watch.fd = -1;
    stream->next_id = 1;
    heft_handover_init(&stream->lock);
    if (tcp_rx_init(&stream->rx, TCP_CLIENT_BUFFER_BYTES) != 0 ||
        tcp_tx_init(&stream->tx, TCP_CLIENT_BUFFER_BYTES) != 0)
        return HEFT_ERR_NO_MEMORY;
    return 0;
}

void tcp_stream_free(struct tcp_stream *stream)
{
    tcp_rx_free(&stream->rx);
    tcp_tx_free(&stream->tx);
    free(stream->spill);
    heft_handover_free(&stream->lock);
}

void tcp_stream_start(struct tcp_stream *stream, int fd)
{
    tcp_endpoint_ref(stream->endpoint); /* the descriptor's; dropped when its worker has closed it */
    heft_handover_other(&stream->lock);
    HEFT_ASSERT(stream->state == TCP_DOWN);
    tcp_wire_open(&stream->wire, &stream->endpoint->transport->host, fd);
    set_state(stream, TCP_FRESH);
    heft_handover_unlock(&stream->lock);
    tcp_stream_kick(stream);
}

uint32_t tcp_stream_detach(struct tcp_stream *stream, struct heft_transport_op *op)
{
    struct heft_error error = HEFT_ERROR_INIT;
    uint32_t count = 0, last = 0;

    heft_handover_other(&stream->lock);
    for (uint32_t i = stream->head; i != stream->tail; i++) {
        struct tcp_part *part = PART(stream, i);

        if (part->claim.op != op)
            continue;
        part->claim.op = NULL;
        if (part->kind == HEFT_OP_WRITE)
            heft_opqueue_hold(&stream->endpoint->queue); /* until it is answered */
        count++;
        last = i;
        if (i == stream->head && stream->rx.in_bulk)
            stream->rx.place.moves = NULL;
    }
    if (count > 0 && spill(stream, last) != 0) {
        heft_error_set(&error, HEFT_ERR_NO_MEMORY, "no memory to finish a canceled write to %s",
                       stream->endpoint->name);
        break_locked(stream, HEFT_ERR_NO_MEMORY, &error);
        tcp_stream_kick(stream);
    }
    heft_handover_unlock(&stream->lock);
    return count;
}

void tcp_stream_close(struct tcp_stream *stream, int status, const struct heft_error *error)
{
    heft_handover_other(&stream->lock);
    break_locked(stream, status, error);
    heft_handover_unlock(&stream->lock);
    tcp_stream_kick(stream);
}
