/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/ucx/: host memory of a peer by UCX's one-sided calls (ucp_get_nbx, ucp_put_nbx). This header is
 * private to the folder.
 *
 *   library.c   the library, loaded at run time         channel.c   what is said beside UCX
 *   ucx.c       the table, regions, the worker's turn
 *   endpoint.c  one peer: operations, keys, its end     flight.c    parts of operations inside UCX
 *   serve.c     the other side: who asks for keys
 *
 * One UCX worker an agent, under one lock; one worker thread of the agent makes it progress, woken by UCX's
 * descriptor. Whoever holds the lock knows that UCX does nothing. done is called without it.
 *
 * Where UCX reaches memory by hardware or by shared memory it does so without the peer. Over plain tcp it
 * emulates both calls by messages that the peer's worker answers: that works, and is slower than the tcp
 * transport.
 */
#ifndef HEFT_TRANSPORT_UCX_UCX_H
#define HEFT_TRANSPORT_UCX_UCX_H

#include "transport/handover.h"
#include "transport/opqueue.h"
#include "transport/ucx/channel.h"
#include "transport/ucx/library.h"

#define UCX_PART_BYTES ((uint64_t)1 << 20) /* of an operation in one flight */
#define UCX_PART_CUTS 1024u
#define UCX_FLIGHTS 8u                     /* an endpoint */
#define UCX_TURN_BYTES ((uint64_t)8 << 20) /* moved with the lock held, before others have it */
#define UCX_CONNECT_MS 5000u               /* for the peer's first words */
#define UCX_CANCEL_MS 500u                 /* then a canceled operation ends the endpoint with it */
#define UCX_END_MS 10000u                  /* for UCX to let go of memory after an endpoint was closed */
#define UCX_SPIN_NS UINT64_C(50000)        /* after the last progress, before sleeping */
#define UCX_LOOK_MS 1u                     /* between looks while something is in flight */

struct ucx_endpoint;

struct ucx_transport {
    struct heft_job job; /* first */
    struct heft_transport_host host;
    const struct ucx_calls *ucx;
    struct heft_worker *worker;
    struct heft_timer timer;
    struct heft_watch watch; /* UCX's descriptor; worker only */
    uint32_t scheduled;      /* atomic */
    int watched, armed;      /* worker only */
    uint64_t progress_ns;
    int has_devices;
    struct heft_handover lock; /* all below, and every call of UCX */
    ucp_context_h context;
    ucp_worker_h ucp;
    ucp_address_t *address;
    size_t address_bytes;
    struct ucx_endpoint *endpoints;
    struct ucx_conn *conns;
    uint32_t in_flight; /* requests of all endpoints */
    int stopping, stopped;
    pthread_mutex_t end_lock; /* objects, stopped */
    pthread_cond_t ended;
    uint32_t objects; /* endpoints and conns not freed yet */
};

enum ucx_key_state { UCX_KEY_NONE, UCX_KEY_ASKED, UCX_KEY_READY, UCX_KEY_FAILED };

/* One region of a peer; in its slot. */
struct ucx_remote {
    struct ucx_remote *prev, *next; /* the endpoint's */
    uint64_t id, length;
    uint32_t need;
    enum ucx_key_state state;
    int status; /* FAILED */
    ucp_rkey_h key;
    uint64_t address;
};

struct ucx_flight {
    struct ucx_endpoint *endpoint;
    struct heft_claim claim; /* op NULL: free */
    struct heft_cursor cursor;
    uint64_t left; /* not given to UCX yet */
    uint32_t outstanding;
    int flushed;
    int status;
    struct heft_error error;
    int64_t failed_move;
};

struct ucx_endpoint {
    struct ucx_transport *transport;
    struct ucx_endpoint *next;
    struct heft_opqueue queue;
    uint32_t refs; /* atomic */
    char name[256];
    struct ucx_channel channel; /* worker only, once begun */
    ucp_ep_h ep;                /* NULL: broken */
    void *closing;              /* UCX's request of its end */
    ucs_status_t failure;       /* what UCX said of it */
    int begun, closed;          /* the channel is watched; the agent is done with it */
    uint64_t cancel_by_ns;      /* a canceled operation waits for UCX; 0: none */
    struct ucx_remote *remotes;
    struct ucx_flight flights[UCX_FLIGHTS];
};

/* Has the worker look for something to do. */
void ucx_kick(struct ucx_transport *transport);
void ucx_object_freed(struct ucx_transport *transport);

/* ---- endpoint.c ---- */

int ucx_connect(struct heft_transport *transport, const struct heft_transport_peer *peer,
                struct heft_endpoint **endpoint_out, struct heft_error *error);
void ucx_disconnect(struct heft_endpoint *endpoint);
void ucx_fail(struct heft_endpoint *endpoint, int status, const struct heft_error *error);
int ucx_post(struct heft_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error);
void ucx_cancel(struct heft_endpoint *endpoint, struct heft_transport_op *op);
int ucx_remote_add(struct heft_endpoint *endpoint, struct heft_transport_region *region,
                   struct heft_error *error);
void ucx_remote_remove(struct heft_endpoint *endpoint, struct heft_transport_region *region);
void ucx_endpoint_ref(struct ucx_endpoint *endpoint);
void ucx_endpoint_unref(struct ucx_endpoint *endpoint);
/* On the worker, lock held: begins, asks, claims, ends. */
void ucx_endpoint_turn(struct ucx_endpoint *endpoint, uint64_t now_ns);
/* Every flight ends with `status` once UCX has let go; UCX's endpoint ends. Lock held. */
void ucx_endpoint_break(struct ucx_endpoint *endpoint, int status, const struct heft_error *error);

/* ---- flight.c (lock held) ---- */

/* Claims and gives to UCX what there is room for. */
void ucx_flights_fill(struct ucx_endpoint *endpoint);
/* Sees a flight on: gives UCX more of it, flushes it, or ends it. */
void ucx_flight_go(struct ucx_flight *flight);
void ucx_flight_fail(struct ucx_flight *flight, int status, const struct heft_error *error);
/* An error code of ours for UCX's. */
int ucx_status(ucs_status_t status);

/* ---- serve.c ---- */

struct ucx_conn;
int ucx_accept(struct heft_transport *transport, int fd, uint64_t session, struct heft_error *error);
void ucx_drop_session(struct heft_transport *transport, uint64_t session);
/* On the worker, lock held; the list may change. */
void ucx_conns_turn(struct ucx_transport *transport);

#endif
