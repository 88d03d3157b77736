/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection that speaks frames: buffers in and out, heartbeats, a death that is told once. It lives on the
 * agent's control worker and only that thread touches it. It never reads past the frame it is in, so that its
 * descriptor can be handed on between two frames.
 */
#ifndef HEFT_AGENT_CONN_H
#define HEFT_AGENT_CONN_H

#include "transport/tls.h"
#include "transport/worker.h"
#include "wire/frame.h"
#include "wire/message.h"

#include <heft/agent.h>

#define HEFT_CONN_OUT_MAX_BYTES ((size_t)64 << 20) /* queued for a peer that does not read */
#define HEFT_CONN_LINGER_MS 500                    /* for a refusal to reach the other side */
#define HEFT_CONN_FD_BATCHES 4                     /* frames' worth of descriptors that may wait */

enum heft_conn_state {
    HEFT_CONN_HANDSHAKE = 1, /* until deadline_ns */
    HEFT_CONN_LIVE = 2,      /* heartbeats run */
    HEFT_CONN_LINGER = 3     /* said its last word; discards what comes until deadline_ns */
};

struct heft_conn;
struct heft_conn_out;

struct heft_conn_ops {
    /* One whole frame, payload checked; PING, PONG and unknown types never come here. */
    void (*frame)(struct heft_conn *conn, const struct heft_frame *frame, const uint8_t *payload);
    /* Once; the descriptor is closed. The owner may free the connection. */
    void (*closed)(struct heft_conn *conn, int code, const char *text);
    /* Everything queued was written. */
    void (*drained)(struct heft_conn *conn);
};

struct heft_conn_fds {
    int fds[HEFT_WIRE_FDS_PER_FRAME];
    size_t count;
};

struct heft_conn {
    struct heft_agent *agent;
    const struct heft_conn_ops *ops;
    struct heft_conn *prev, *next; /* the agent's list */
    struct heft_watch watch;
    uint32_t events; /* watched now */
    enum heft_conn_state state;
    int is_unix;
    struct heft_tls *tls; /* owned; NULL: plain */
    int tls_done;         /* its handshake */
    int takes_fds;        /* a client of a unix socket: descriptors of regions may come */
    uint32_t payload_cap; /* below the type's cap while the other side is a stranger */
    uint64_t deadline_ns;
    uint64_t last_heard_ns, last_ping_ns;
    uint64_t heard_frames;

    uint8_t header[HEFT_FRAME_HEADER_BYTES];
    size_t header_have;
    struct heft_frame frame;
    uint8_t *payload;
    size_t payload_have, payload_capacity;

    struct heft_conn_out *out_first, *out_last;
    size_t out_bytes;

    struct heft_conn_fds *batches[HEFT_CONN_FD_BATCHES];
    size_t batch_count;

    int heard_end; /* the other side ended it: nothing of it uses this side's memory any more */
    int keeps_fd;  /* `closed` takes over watch.fd */
    int reaches;   /* a data stream of a transport that reaches into memory has joined it */
    int inside;    /* depth of enter: death is told at its end */
    int dead;
    int dead_code;
    char dead_text[200];
};

/* Takes over fd (non-blocking). On failure fd stays the caller's and nothing is told. */
int heft_conn_start(struct heft_conn *conn, struct heft_agent *agent, const struct heft_conn_ops *ops, int fd,
                    int is_unix, enum heft_conn_state state, struct heft_error *error);
/* From now on the connection speaks TLS; takes the session over. `done`: its handshake is over; else it is
 * this side's to answer, and a client that speaks plainly is told so. On the control worker. */
void heft_conn_secure(struct heft_conn *conn, struct heft_tls *tls, int done);
/* Calls its handlers soon although the descriptor may have nothing. On the control worker. */
void heft_conn_wake(struct heft_conn *conn);
/* Queues a frame and writes what the socket takes. A failure ends the connection. Descriptors are taken over.
 */
void heft_conn_send(struct heft_conn *conn, uint16_t type, uint64_t id, const struct heft_buf *payload);
void heft_conn_send_fds(struct heft_conn *conn, uint16_t type, uint64_t id, const struct heft_buf *payload,
                        const int *fds, size_t fd_count);
/* A frame that a side which does not know its type skips. */
void heft_conn_send_optional(struct heft_conn *conn, uint16_t type, uint64_t id,
                             const struct heft_buf *payload);
/* Its descriptors are lost there too. They are taken over here. */
void heft_conn_send_optional_fds(struct heft_conn *conn, uint16_t type, const struct heft_buf *payload,
                                 const int *fds, size_t fd_count);
/* REFUSE for one request (id != 0); the connection lives on. */
void heft_conn_refuse(struct heft_conn *conn, uint64_t id, int code, const char *text);
/* REFUSE or BYE as the last word: no frame is delivered any more, `closed` comes soon. */
void heft_conn_last_word(struct heft_conn *conn, uint16_t type, int code, const char *text);
/* Ends it: closed(code, text) is called, now or when the current callback returns. */
void heft_conn_fail(struct heft_conn *conn, int code, const char *text);
/* Between the two its death is only noted; leave tells it, and may free the connection. */
void heft_conn_enter(struct heft_conn *conn);
void heft_conn_leave(struct heft_conn *conn);
/* Takes the descriptor away; the connection ends silently when the current callback returns. -1: bytes are
 * still queued, nothing changed. */
int heft_conn_detach(struct heft_conn *conn);
/* The descriptors that came with the current frame: exactly `count`, or NULL when some were lost. The caller
 * frees and closes. */
struct heft_conn_fds *heft_conn_take_fds(struct heft_conn *conn, size_t count);
void heft_conn_fds_free(struct heft_conn_fds *batch);
/* Reads what is there, then closes. */
void heft_conn_close_fd(int fd);
/* Heartbeats, time-outs: for every connection of the agent, on its control worker. */
void heft_conn_tick(struct heft_agent *agent, uint64_t now_ns);
void heft_conn_timer_fire(struct heft_timer *timer);
void heft_conn_arm_tick(struct heft_agent *agent);

#endif
