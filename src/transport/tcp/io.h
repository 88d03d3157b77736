/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One stream socket as frames: what both ends of the tcp transport share. Data goes from the socket straight
 * to where it belongs and from memory straight into the socket; only heads, and pieces too small to be worth
 * a system call, pass through the buffers here. Nothing blocks; the caller holds the stream's lock.
 */
#ifndef HEFT_TRANSPORT_TCP_IO_H
#define HEFT_TRANSPORT_TCP_IO_H

#include "transport/cursor.h"
#include "transport/tls.h"
#include "wire/data.h"

/* A table of runs must fit behind its head. */
#define TCP_BUFFER_MIN_BYTES (HEFT_DATA_HEAD_BYTES + HEFT_DATA_MAX_RUNS * HEFT_DATA_RUN_BYTES)
/* Data up to this size is copied through the buffer, so that many small answers share one call. */
#define TCP_SMALL_BYTES 4096u

/* A stream's descriptor, and its TLS session when it has one. */
struct tcp_wire {
    int fd; /* -1: closed */
    struct heft_tls *tls;
};
/* Takes over the descriptor, and the session that the agent holds for it. */
void tcp_wire_open(struct tcp_wire *wire, const struct heft_transport_host *host, int fd);
void tcp_wire_close(struct tcp_wire *wire);

/* The local sides of moves, from a cursor on. */
struct tcp_place {
    const struct heft_move *moves; /* NULL: nowhere (received bytes are dropped) */
    size_t move_count;
    struct heft_cursor cursor;
};

/* The chain of digests over the next `bytes` of the place. */
uint64_t tcp_place_digest(const struct tcp_place *place, uint64_t bytes);
/* Copies and advances. */
void tcp_place_put(struct tcp_place *place, const uint8_t *from, uint64_t bytes);
void tcp_place_get(struct tcp_place *place, uint8_t *to, uint64_t bytes);

enum tcp_io {
    TCP_IO_MORE = 1,  /* the budget is used up */
    TCP_IO_WAIT = 2,  /* the socket has nothing (takes nothing) at the moment */
    TCP_IO_STOP = 3,  /* a handler asked for a break */
    TCP_IO_PAUSE = 4, /* the next frame must wait: `ready` said no */
    TCP_IO_IDLE = 5   /* everything is sent */
};

struct tcp_rx {
    uint8_t *buffer;
    uint32_t capacity, begin, end;
    int in_bulk;
    struct heft_data_head head;
    uint64_t bulk_left;
    struct tcp_place place;
};

/* Called with `context`; negative returns end the stream. */
struct tcp_rx_handlers {
    /* 1: a frame's head may come; 0: pause. */
    int (*ready)(void *context);
    /* A frame's head and table; sets rx->place when bulk follows. 0, or TCP_IO_STOP. */
    int (*head)(void *context, const struct heft_data_head *head, const uint8_t *table);
    /* `bytes` of bulk have arrived. */
    void (*moved)(void *context, uint64_t bytes);
    /* The whole bulk has arrived. 0, or TCP_IO_STOP. */
    int (*end)(void *context);
};

int tcp_rx_init(struct tcp_rx *rx, uint32_t capacity);
void tcp_rx_free(struct tcp_rx *rx);
void tcp_rx_reset(struct tcp_rx *rx);
/* Receives up to about *budget bytes. MORE, WAIT, STOP, PAUSE; negative: a handler's code, PROTOCOL and its
 * kin, or PEER_LOST (*errno_out, 0 for an orderly end). */
int tcp_rx_run(struct tcp_rx *rx, const struct tcp_wire *wire, uint64_t *budget,
               const struct tcp_rx_handlers *handlers, void *context, int *errno_out);

struct tcp_tx {
    uint8_t *buffer;
    uint32_t capacity, begin, end;
    uint64_t bulk_left; /* behind the buffer's bytes */
    struct tcp_place place;
    const uint8_t *flat; /* the bulk, instead of the place */
};

int tcp_tx_init(struct tcp_tx *tx, uint32_t capacity);
void tcp_tx_free(struct tcp_tx *tx);
void tcp_tx_reset(struct tcp_tx *tx);
/* Bytes of head that can be appended now; 0 while bulk waits. */
uint32_t tcp_tx_room(struct tcp_tx *tx);
/* Where the next head goes; `taken` then counts it. */
uint8_t *tcp_tx_at(struct tcp_tx *tx);
void tcp_tx_take(struct tcp_tx *tx, uint32_t bytes);
/* The bulk of the head just appended; advances the place. */
void tcp_tx_bulk(struct tcp_tx *tx, struct tcp_place *place, uint64_t bytes);
void tcp_tx_bulk_flat(struct tcp_tx *tx, const uint8_t *from, uint64_t bytes);
/* IDLE, WAIT, MORE; negative: PEER_LOST with *errno_out. */
int tcp_tx_run(struct tcp_tx *tx, const struct tcp_wire *wire, uint64_t *budget, int *errno_out);

#endif
