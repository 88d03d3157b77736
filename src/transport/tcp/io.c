/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/io.h"
#include "base/digest.h"
#include "base/error.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define IOV_PER_CALL 1024
#define LOOPBACK_SEND_BYTES (256 << 10)
/* After a frame this large the next one is expected to be large too: only its head goes through the buffer.
 */
#define LARGE_FRAME_BYTES (64u << 10)
/* Bulk smaller than this is received through the buffer, together with what follows. */
#define DIRECT_BYTES (8u << 10)

static char *cut_address(const struct heft_cut *cut)
{
    return (char *)cut->move->local->address + cut->local_offset_bytes;
}

uint64_t tcp_place_digest(const struct tcp_place *place, uint64_t bytes)
{
    struct heft_cursor cursor = place->cursor;
    struct heft_cut cut;
    uint64_t digest = 0, got;

    while (bytes > 0 &&
           (got = heft_cursor_cut(&cursor, place->moves, place->move_count, bytes, 0, &cut)) > 0) {
        digest = heft_hash64(cut_address(&cut), got, digest);
        bytes -= got;
    }
    return digest;
}

void tcp_place_put(struct tcp_place *place, const uint8_t *from, uint64_t bytes)
{
    struct heft_cut cut;
    uint64_t got;

    while (place->moves != NULL && bytes > 0 &&
           (got = heft_cursor_cut(&place->cursor, place->moves, place->move_count, bytes, 0, &cut)) > 0) {
        memcpy(cut_address(&cut), from, got);
        from += got;
        bytes -= got;
    }
}

void tcp_place_get(struct tcp_place *place, uint8_t *to, uint64_t bytes)
{
    struct heft_cut cut;
    uint64_t got;

    while (bytes > 0 &&
           (got = heft_cursor_cut(&place->cursor, place->moves, place->move_count, bytes, 0, &cut)) > 0) {
        memcpy(to, cut_address(&cut), got);
        to += got;
        bytes -= got;
    }
}

static void place_skip(struct tcp_place *place, uint64_t bytes)
{
    struct heft_cut cut;

    while (bytes > 0) {
        uint64_t got = heft_cursor_cut(&place->cursor, place->moves, place->move_count, bytes, 1, &cut);

        if (got == 0)
            return;
        bytes -= got;
    }
}

/* Up to `max` iovecs over the next `bytes`; returns the bytes they cover. */
static uint64_t place_iov(const struct tcp_place *place, uint64_t bytes, struct iovec *iov, int max,
                          int *count_out)
{
    struct heft_cursor cursor = place->cursor;
    struct heft_cut cut;
    uint64_t covered = 0, got;
    int count = 0;

    while (count < max && covered < bytes &&
           (got = heft_cursor_cut(&cursor, place->moves, place->move_count, bytes - covered, 0, &cut)) > 0) {
        iov[count].iov_base = cut_address(&cut);
        iov[count].iov_len = got;
        covered += got;
        count++;
    }
    *count_out = count;
    return covered;
}

int tcp_rx_init(struct tcp_rx *rx, uint32_t capacity)
{
    HEFT_ASSERT(capacity >= TCP_BUFFER_MIN_BYTES);
    memset(rx, 0, sizeof(*rx));
    rx->buffer = malloc(capacity);
    rx->capacity = capacity;
    return rx->buffer != NULL ? 0 : HEFT_ERR_NO_MEMORY;
}

void tcp_rx_free(struct tcp_rx *rx)
{
    free(rx->buffer);
    rx->buffer = NULL;
}

void tcp_rx_reset(struct tcp_rx *rx)
{
    rx->begin = rx->end = 0;
    rx->in_bulk = 0;
    rx->bulk_left = 0;
    rx->place.moves = NULL;
}

/* A head and its table out of the buffer: 0 done, 1 not all there yet, PAUSE, STOP or negative. */
static int take_head(struct tcp_rx *rx, const struct tcp_rx_handlers *handlers, void *context)
{
    const uint8_t *at = rx->buffer + rx->begin;
    uint32_t have = rx->end - rx->begin;
    int rc;

    if (have < HEFT_DATA_HEAD_BYTES)
        return 1;
    if (!handlers->ready(context))
        return TCP_IO_PAUSE;
    rc = heft_data_decode(at, &rx->head);
    if (rc != 0)
        return rc;
    if (have < HEFT_DATA_HEAD_BYTES + rx->head.table_bytes)
        return 1;
    rc = heft_data_check(&rx->head, at);
    if (rc != 0)
        return rc;
    rx->begin += HEFT_DATA_HEAD_BYTES + rx->head.table_bytes;
    rx->bulk_left = rx->head.bulk_bytes;
    rx->in_bulk = rx->bulk_left > 0;
    rx->place.moves = NULL;
    return handlers->head(context, &rx->head, at + HEFT_DATA_HEAD_BYTES);
}

static int bulk_arrived(struct tcp_rx *rx, uint64_t bytes, const struct tcp_rx_handlers *handlers,
                        void *context)
{
    rx->bulk_left -= bytes;
    handlers->moved(context, bytes);
    if (rx->bulk_left > 0)
        return 0;
    rx->in_bulk = 0;
    return handlers->end(context);
}

/* Uses up what the buffer holds: 0 when it needs more, else as tcp_rx_run. */
static int consume_buffer(struct tcp_rx *rx, const struct tcp_rx_handlers *handlers, void *context)
{
    for (;;) {
        uint64_t take = rx->end - rx->begin;
        int rc;

        if (!rx->in_bulk) {
            rc = take_head(rx, handlers, context);
            if (rc == 1)
                return 0;
            if (rc != 0)
                return rc;
            continue;
        }
        if (take == 0)
            return 0;
        if (take > rx->bulk_left)
            take = rx->bulk_left;
        tcp_place_put(&rx->place, rx->buffer + rx->begin, take);
        rx->begin += (uint32_t)take;
        rc = bulk_arrived(rx, take, handlers, context);
        if (rc != 0)
            return rc;
    }
}

static int receive_once(struct tcp_rx *rx, const struct tcp_wire *wire, uint64_t *budget,
                        const struct tcp_rx_handlers *handlers, void *context, int *errno_out)
{
    struct iovec iov[IOV_PER_CALL];
    uint64_t direct = 0, wanted, space;
    ssize_t got;
    int count = 0;

    if (rx->begin > 0) {
        memmove(rx->buffer, rx->buffer + rx->begin, rx->end - rx->begin);
        rx->end -= rx->begin;
        rx->begin = 0;
    }
    space = rx->capacity - rx->end;
    if (rx->in_bulk && rx->place.moves != NULL && rx->bulk_left >= DIRECT_BYTES) {
        direct = place_iov(&rx->place, rx->bulk_left, iov, IOV_PER_CALL - 1, &count);
        space = direct < rx->bulk_left                     ? 0
                : rx->head.bulk_bytes >= LARGE_FRAME_BYTES ? HEFT_DATA_HEAD_BYTES
                                                           : space;
    }
    if (space > 0) {
        iov[count].iov_base = rx->buffer + rx->end;
        iov[count].iov_len = space;
        count++;
    }
    wanted = direct + space;
    do
        got = heft_tls_or_fd_readv(wire->tls, wire->fd, iov, count);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return TCP_IO_WAIT;
    if (got <= 0) {
        *errno_out = got < 0 ? errno : 0;
        return HEFT_ERR_PEER_LOST;
    }
    *budget -= (uint64_t)got < *budget ? (uint64_t)got : *budget;
    if (direct > (uint64_t)got)
        direct = (uint64_t)got;
    rx->end += (uint32_t)((uint64_t)got - direct);
    if (direct > 0) {
        int rc;

        place_skip(&rx->place, direct);
        rc = bulk_arrived(rx, direct, handlers, context);
        if (rc != 0)
            return rc;
    }
    /* less than asked for: the socket is empty now */
    return (uint64_t)got<wanted && * budget> 0 ? TCP_IO_IDLE : 0;
}

int tcp_rx_run(struct tcp_rx *rx, const struct tcp_wire *wire, uint64_t *budget,
               const struct tcp_rx_handlers *handlers, void *context, int *errno_out)
{
    int drained = 0;

    *errno_out = 0;
    for (;;) {
        int rc = consume_buffer(rx, handlers, context);

        if (rc != 0)
            return rc;
        if (drained)
            return TCP_IO_WAIT;
        if (*budget == 0)
            return TCP_IO_MORE;
        rc = receive_once(rx, wire, budget, handlers, context, errno_out);
        drained = rc == TCP_IO_IDLE;
        if (rc != 0 && !drained)
            return rc;
    }
}

int tcp_tx_init(struct tcp_tx *tx, uint32_t capacity)
{
    HEFT_ASSERT(capacity >= TCP_BUFFER_MIN_BYTES);
    memset(tx, 0, sizeof(*tx));
    tx->buffer = malloc(capacity);
    tx->capacity = capacity;
    return tx->buffer != NULL ? 0 : HEFT_ERR_NO_MEMORY;
}

void tcp_tx_free(struct tcp_tx *tx)
{
    free(tx->buffer);
    tx->buffer = NULL;
}

void tcp_tx_reset(struct tcp_tx *tx)
{
    tx->begin = tx->end = 0;
    tx->bulk_left = 0;
    tx->flat = NULL;
}

uint32_t tcp_tx_room(struct tcp_tx *tx)
{
    if (tx->bulk_left > 0)
        return 0;
    if (tx->begin == tx->end)
        tx->begin = tx->end = 0;
    return tx->capacity - tx->end;
}

uint8_t *tcp_tx_at(struct tcp_tx *tx)
{
    return tx->buffer + tx->end;
}

void tcp_tx_take(struct tcp_tx *tx, uint32_t bytes)
{
    HEFT_ASSERT(tx->bulk_left == 0 && bytes <= tx->capacity - tx->end);
    tx->end += bytes;
}

void tcp_tx_bulk(struct tcp_tx *tx, struct tcp_place *place, uint64_t bytes)
{
    if (bytes <= TCP_SMALL_BYTES && bytes <= tx->capacity - tx->end) {
        tcp_place_get(place, tx->buffer + tx->end, bytes);
        tx->end += (uint32_t)bytes;
        return;
    }
    tx->place = *place;
    tx->flat = NULL;
    tx->bulk_left = bytes;
    place_skip(place, bytes);
}

void tcp_tx_bulk_flat(struct tcp_tx *tx, const uint8_t *from, uint64_t bytes)
{
    tx->flat = from;
    tx->bulk_left = bytes;
}

int tcp_tx_run(struct tcp_tx *tx, const struct tcp_wire *wire, uint64_t *budget, int *errno_out)
{
    while (tx->begin < tx->end || tx->bulk_left > 0) {
        struct iovec iov[IOV_PER_CALL];
        uint64_t head = tx->end - tx->begin, bulk = 0;
        ssize_t sent;
        int count = 0, more = 0;

        if (*budget == 0)
            return TCP_IO_MORE;
        if (head > 0) {
            iov[count].iov_base = tx->buffer + tx->begin;
            iov[count++].iov_len = head;
        }
        if (tx->bulk_left > 0 && tx->flat != NULL) {
            iov[count].iov_base = (void *)(uintptr_t)tx->flat;
            iov[count++].iov_len = bulk = tx->bulk_left;
        } else if (tx->bulk_left > 0) {
            bulk = place_iov(&tx->place, tx->bulk_left, iov + count, IOV_PER_CALL - count, &more);
            count += more;
        }
        do
            sent = heft_tls_or_fd_writev(wire->tls, wire->fd, iov, count);
        while (sent < 0 && errno == EINTR);
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return TCP_IO_WAIT;
        if (sent <= 0) { /* 0: nothing was offered although bulk is left, which must not become a loop */
            *errno_out = sent < 0 ? errno : EPIPE;
            return HEFT_ERR_PEER_LOST;
        }
        *budget -= (uint64_t)sent < *budget ? (uint64_t)sent : *budget;
        if ((uint64_t)sent < head) {
            tx->begin += (uint32_t)sent;
            continue;
        }
        tx->begin = tx->end = 0;
        bulk = (uint64_t)sent - head;
        tx->bulk_left -= bulk;
        if (tx->flat != NULL)
            tx->flat += bulk;
        else if (bulk > 0)
            place_skip(&tx->place, bulk);
    }
    return TCP_IO_IDLE;
}

/* 1 when both ends are this host's: the same address, or a loopback one. */
static int same_machine(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage room;
    } here, there;
    socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);

    if (getsockname(fd, &here.any, &here_bytes) != 0 || getpeername(fd, &there.any, &there_bytes) != 0)
        return 0;
    if (here.any.sa_family == AF_INET && there.any.sa_family == AF_INET)
        return here.v4.sin_addr.s_addr == there.v4.sin_addr.s_addr ||
               ntohl(there.v4.sin_addr.s_addr) >> 24 == 127;
    if (here.any.sa_family == AF_INET6 && there.any.sa_family == AF_INET6)
        return memcmp(&here.v6.sin6_addr, &there.v6.sin6_addr, sizeof(here.v6.sin6_addr)) == 0;
    return 0;
}

/*
 * The kernel sizes buffers by itself, and well, across a network. Inside one host it lets megabytes pile up
 * between the two copies, which then come from memory instead of the cache: with at most
 * LOOPBACK_SEND_BYTES under way the same bytes cost a fifth less processor time (0.37 instead of 0.46 s/GiB,
 * both sides together).
 */
static void prepare(int fd)
{
    int flags = fcntl(fd, F_GETFL), on = 1, bytes = LOOPBACK_SEND_BYTES;

    if (flags >= 0)
        (void)fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    /* refused by unix sockets, which never delay */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (same_machine(fd))
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

void tcp_wire_open(struct tcp_wire *wire, const struct heft_transport_host *host, int fd)
{
    prepare(fd);
    wire->fd = fd;
    wire->tls = host->take_tls != NULL ? host->take_tls(host->agent, fd) : NULL;
}

void tcp_wire_close(struct tcp_wire *wire)
{
    heft_tls_free(wire->tls);
    wire->tls = NULL;
    if (wire->fd >= 0)
        (void)close(wire->fd);
    wire->fd = -1;
}
