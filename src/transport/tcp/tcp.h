/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/tcp/: any stream socket between two agents. This header is private to the folder.
 *
 *   tcp.c      the table, and what a transport owns
 *   client.c   endpoints: operations in, streams found or dialed for them
 *   stream.c   one client stream: claims parts of operations, asks for them, receives them
 *   dialer.c   the thread that opens streams, since opening blocks
 *   server.c   one served connection      request.c   what it was asked for
 *   io.c       sockets as frames
 *
 * Locks: a stream's (or connection's) lock is held by its worker while it reads and writes the socket, so
 * whoever holds it knows that nothing touches the memory of that stream's parts. So cancel, fail, disconnect
 * and drop_session take effect before they return, from any thread. Order: stream, then endpoint, then the
 * queue's. done is called under none.
 *
 * Bytes of a WRITE that has ended here may still lie in the other side's socket, and must not arrive after a
 * later WRITE's. So a canceled WRITE holds the queue until it is answered. A stream that breaks with a WRITE
 * fences the endpoint: the queue is held, its other streams end too, and the first one that is opened then is
 * redialed, which the other side answers when it reads none of the old ones any more. The first stream of
 * every endpoint is redialed: an endpoint of the same session may have been before it.
 */
#ifndef HEFT_TRANSPORT_TCP_TCP_H
#define HEFT_TRANSPORT_TCP_TCP_H

#include "transport/handover.h"
#include "transport/opqueue.h"
#include "transport/tcp/io.h"
#include "transport/worker.h"

#define TCP_PART_BYTES ((uint64_t)1 << 20)   /* of an operation in one request */
#define TCP_WINDOW_BYTES ((uint64_t)8 << 20) /* asked for and not there yet, a stream */
#define TCP_PARTS 64u                        /* likewise, in requests; a power of two */
#define TCP_MAX_STREAMS 16u
#define TCP_DIAL_TIMEOUT_MS 5000u
#define TCP_DIAL_PAUSE_MS 100u /* between failed attempts to reach one peer */
/* Streams beyond the first are opened once an operation of this size, or this many operations, wait. */
#define TCP_SPREAD_BYTES ((uint64_t)4 << 20)
#define TCP_SPREAD_OPS 8u
#define TCP_CLIENT_BUFFER_BYTES (64u << 10)
#define TCP_SERVER_BUFFER_BYTES (16u << 10)
#define TCP_STAGING_BYTES (256u << 10) /* a connection's, while it serves files */
/* Bytes a stream moves before its worker looks at others. */
#define TCP_TURN_BYTES ((uint64_t)4 << 20)

struct tcp_transport {
    struct heft_transport_host host;
    uint32_t next_worker;  /* atomic */
    uint64_t staged_bytes; /* atomic: of all connections, within host.max_host_bytes */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t objects; /* endpoints and connections not freed yet */
    struct tcp_conn *conns;
    struct tcp_endpoint *dial_first; /* wants to be dialed */
    struct tcp_endpoint *dialing;    /* is being dialed */
    int dialer_started, stop;
    pthread_t dialer;
};

/* ---- client ---- */

/* One request and what has come back for it. */
struct tcp_part {
    struct heft_claim claim; /* op NULL: given up, its answer is dropped */
    enum heft_op kind;
    uint64_t id;
    uint64_t received_bytes;
    struct tcp_place place; /* behind what has been received */
};

enum tcp_stream_state { TCP_DOWN, TCP_FRESH, TCP_UP, TCP_CLOSING };

struct tcp_stream {
    struct heft_job job; /* first: the job's address is the stream's */
    struct heft_watch watch;
    struct tcp_endpoint *endpoint;
    struct heft_worker *worker;
    struct heft_handover lock; /* all below, but for the atomics */
    uint32_t scheduled;        /* atomic: the job is queued */
    uint64_t in_flight;        /* atomic reads allowed: bytes asked for and not there */
    enum tcp_stream_state state;
    struct tcp_wire wire;
    uint32_t events; /* watched for */
    struct tcp_rx rx;
    struct tcp_tx tx;
    struct tcp_part parts[TCP_PARTS]; /* ring [head, tail) */
    uint32_t head, tail;
    uint64_t next_id;
    struct tcp_place frame_start; /* of the DATA frame that arrives now */
    uint8_t *spill;               /* the rest of a canceled WRITE, copied away from its memory */
};

struct tcp_endpoint {
    struct tcp_transport *transport;
    struct heft_opqueue queue;
    uint32_t refs; /* atomic */
    char name[256];
    void *agent_peer;
    pthread_mutex_t lock;
    uint32_t up;     /* streams that are FRESH or UP */
    int fenced;      /* atomic reads allowed: those end, with a hold of the queue */
    int dial_wanted; /* in the dialer's list, or being dialed */
    int all_wanted;  /* every stream, not just the first */
    int closing;
    uint64_t dial_not_before_ns;
    struct heft_error dial_error;
    struct tcp_endpoint *dial_next;
    uint32_t stream_count;
    struct tcp_stream streams[];
};

void tcp_endpoint_ref(struct tcp_endpoint *endpoint);
void tcp_endpoint_unref(struct tcp_endpoint *endpoint);
/* A stream is about to end with a WRITE: nothing is begun until all have. */
void tcp_endpoint_fence(struct tcp_endpoint *endpoint);
/* One canceled WRITE was answered. */
void tcp_endpoint_unhold(struct tcp_endpoint *endpoint);
/* A stream ended: counted. With the last one the queued operations end too, or wait for what is dialed behind
 * a fence. */
void tcp_endpoint_stream_down(struct tcp_endpoint *endpoint, const struct heft_error *error);
int tcp_connect(struct heft_transport *transport, const struct heft_transport_peer *peer,
                struct heft_endpoint **endpoint_out, struct heft_error *error);
void tcp_disconnect(struct heft_endpoint *endpoint);
void tcp_fail(struct heft_endpoint *endpoint, int status, const struct heft_error *error);
int tcp_post(struct heft_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error);
void tcp_cancel(struct heft_endpoint *endpoint, struct heft_transport_op *op);

int tcp_stream_init(struct tcp_stream *stream, struct tcp_endpoint *endpoint);
void tcp_stream_free(struct tcp_stream *stream);
/* Takes over a connected descriptor. */
void tcp_stream_start(struct tcp_stream *stream, int fd);
/* Has its worker look for something to do. */
void tcp_stream_kick(struct tcp_stream *stream);
/* Gives up the parts of `op`: how many there were, each a claim of the caller's now. */
uint32_t tcp_stream_detach(struct tcp_stream *stream, struct heft_transport_op *op);
/* Ends its parts and its connection. */
void tcp_stream_close(struct tcp_stream *stream, int status, const struct heft_error *error);

/* Asks the dialer for the endpoint's missing streams; endpoint->lock held. */
void tcp_dialer_want(struct tcp_endpoint *endpoint);
/* Takes it back, and waits while a dial is under way. */
void tcp_dialer_forget(struct tcp_endpoint *endpoint);
/* One stream, on this thread. */
int tcp_dial_stream(struct tcp_endpoint *endpoint, struct tcp_stream *stream, struct heft_error *error);
int tcp_dialer_start(struct tcp_transport *transport, struct heft_error *error);
void tcp_dialer_stop(struct tcp_transport *transport);

/* ---- server ---- */

enum tcp_answer { TCP_ANSWER_DATA, TCP_ANSWER_RECEIVING, TCP_ANSWER_ACK, TCP_ANSWER_ERROR };

struct tcp_request {
    enum tcp_answer answer;
    uint64_t id;
    int digest, staged;
    int status; /* ERROR */
    uint32_t failed_run;
    uint64_t region_id; /* of that run */
    struct heft_move few[2], *moves;
    uint32_t move_count;
    uint64_t total_bytes, sent_bytes;
    struct tcp_place place; /* behind what was sent, or received */
};

/* Reads and pins what a READ or WRITE asks for. A refusal makes an ERROR answer; negative only when the frame
 * breaks the protocol. */
int tcp_request_parse(struct tcp_transport *transport, const struct heft_data_head *head,
                      const uint8_t *table, struct tcp_request *request);
void tcp_request_refuse(struct tcp_transport *transport, struct tcp_request *request, int status,
                        uint32_t run, uint64_t region_id);
/* Unpins. */
void tcp_request_release(struct tcp_transport *transport, struct tcp_request *request);
/* Up to `max` of the next bytes into `to`, from memory and files; the count, or negative. *digest_out as the
 * frame's. */
int64_t tcp_request_gather(struct tcp_request *request, uint8_t *to, uint64_t max, uint64_t *digest_out);

struct tcp_conn;
int tcp_accept(struct heft_transport *transport, int fd, uint64_t session, struct heft_error *error);
void tcp_drop_session(struct heft_transport *transport, uint64_t session);

#endif
