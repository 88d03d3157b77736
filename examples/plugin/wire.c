/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport in a library of its own: "wire" moves bytes between two regions of host memory of one agent, by
 * a thread of its own, in pieces that can be canceled. It uses heft's public headers only:
 *
 *   make && HEFT_PLUGIN_PATH=$PWD/wire.so heft probe
 */
#include <heft/transport.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES ((uint64_t)1 << 20)

struct heft_transport {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    int stop;
    struct heft_transport_op *first, **last; /* waiting */
    struct heft_transport_op *moving;
};

struct heft_endpoint {
    struct heft_transport *transport;
};

/* 0, or CANCELED: asked between pieces. done_bytes grows as they land, so that the agent sees stalls. */
static int move_piecewise(struct heft_transport_op *op, uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    while (bytes) {
        uint64_t piece = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;

        if (__atomic_load_n(&op->cancel_wanted, __ATOMIC_ACQUIRE))
            return HEFT_ERR_CANCELED;
        memcpy(to, from, piece);
        (void)__atomic_fetch_add(&op->done_bytes, piece, __ATOMIC_RELAXED);
        to += piece;
        from += piece;
        bytes -= piece;
    }
    return 0;
}

static int move_all(struct heft_transport_op *op)
{
    int rc = 0;

    for (size_t index = 0; index < op->move_count && !rc; index++) {
        const struct heft_move *move = &op->moves[index];

        for (uint64_t item = 0; item < move->count && !rc; item++) {
            uint8_t *local = (uint8_t *)move->local->address + move->local_offset_bytes;
            uint8_t *remote = (uint8_t *)move->remote->address + move->remote_offset_bytes;

            local += item * move->local_stride_bytes;
            remote += item * move->remote_stride_bytes;
            rc = op->kind == HEFT_OP_READ ? move_piecewise(op, local, remote, move->length_bytes)
                                          : move_piecewise(op, remote, local, move->length_bytes);
        }
        if (rc)
            op->failed_move = (int64_t)index;
    }
    return rc;
}

static void *mover(void *argument)
{
    struct heft_transport *wire = argument;

    (void)pthread_mutex_lock(&wire->lock);
    for (;;) {
        struct heft_transport_op *op = wire->first;
        int rc;

        if (!op) {
            if (wire->stop)
                break;
            (void)pthread_cond_wait(&wire->changed, &wire->lock);
            continue;
        }
        wire->first = op->next;
        if (!wire->first)
            wire->last = &wire->first;
        wire->moving = op;
        (void)pthread_mutex_unlock(&wire->lock);
        rc = move_all(op);
        op->done(op, rc, NULL); /* holding no lock; from here on it is the agent's again */
        (void)pthread_mutex_lock(&wire->lock);
        wire->moving = NULL;
        (void)pthread_cond_broadcast(&wire->changed);
    }
    (void)pthread_mutex_unlock(&wire->lock);
    return NULL;
}

static int wire_open(const struct heft_transport_host *host, struct heft_transport **transport_out,
                     struct heft_error *error)
{
    struct heft_transport *wire = calloc(1, sizeof(*wire));

    (void)host;
    if (!wire)
        return HEFT_ERR_NO_MEMORY;
    wire->last = &wire->first;
    (void)pthread_mutex_init(&wire->lock, NULL);
    (void)pthread_cond_init(&wire->changed, NULL);
    if (pthread_create(&wire->thread, NULL, mover, wire)) {
        free(wire);
        error->code = HEFT_ERR_SYSTEM;
        (void)snprintf(error->text, sizeof(error->text), "wire could not start its thread");
        return error->code;
    }
    *transport_out = wire;
    return 0;
}

static void wire_close(struct heft_transport *wire)
{
    (void)pthread_mutex_lock(&wire->lock);
    wire->stop = 1;
    (void)pthread_cond_broadcast(&wire->changed);
    (void)pthread_mutex_unlock(&wire->lock);
    (void)pthread_join(wire->thread, NULL);
    (void)pthread_cond_destroy(&wire->changed);
    (void)pthread_mutex_destroy(&wire->lock);
    free(wire);
}

static void wire_score(struct heft_transport *wire, struct heft_endpoint *endpoint,
                       const struct heft_route_query *query, struct heft_route_score *score_out)
{
    int can = !query->peer && query->local == HEFT_SPACE_HOST && query->remote == HEFT_SPACE_HOST;

    (void)wire;
    (void)endpoint;
    score_out->score = can ? 50 : 0; /* below heft's own: taken when it is asked for by name */
    (void)snprintf(score_out->reason, sizeof(score_out->reason), "%s",
                   can ? "one thread copies" : "only host memory of one agent");
}

static int wire_connect(struct heft_transport *wire, const struct heft_transport_peer *peer,
                        struct heft_endpoint **endpoint_out, struct heft_error *error)
{
    (void)peer; /* NULL: score refuses peers */
    (void)error;
    *endpoint_out = calloc(1, sizeof(**endpoint_out));
    if (!*endpoint_out)
        return HEFT_ERR_NO_MEMORY;
    (*endpoint_out)->transport = wire;
    return 0;
}

/* Nothing is posted any more; what was has ended when this returns. */
static void wire_disconnect(struct heft_endpoint *endpoint)
{
    struct heft_transport *wire = endpoint->transport;

    (void)pthread_mutex_lock(&wire->lock);
    while (wire->first || wire->moving)
        (void)pthread_cond_wait(&wire->changed, &wire->lock);
    (void)pthread_mutex_unlock(&wire->lock);
    free(endpoint);
}

static int wire_post(struct heft_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error)
{
    struct heft_transport *wire = endpoint->transport;

    (void)error;
    op->next = NULL;
    (void)pthread_mutex_lock(&wire->lock);
    *wire->last = op;
    wire->last = &op->next;
    (void)pthread_cond_broadcast(&wire->changed);
    (void)pthread_mutex_unlock(&wire->lock);
    return 0;
}

/* cancel is left out: the mover looks at cancel_wanted before each piece, which is soon enough. */
static const struct heft_transport_ops wire_ops = {
    .abi = HEFT_TRANSPORT_ABI,
    .size = sizeof(wire_ops),
    .name = "wire",
    .open = wire_open,
    .close = wire_close,
    .score = wire_score,
    .connect = wire_connect,
    .disconnect = wire_disconnect,
    .post = wire_post,
};

#ifndef WIRE_ABI /* the tests build it as if for another version, and with an init that fails */
#define WIRE_ABI HEFT_TRANSPORT_ABI
#endif

static int begin(struct heft_error *error)
{
#ifdef WIRE_BROKEN
    (void)snprintf(error->text, sizeof(error->text), "there is no wire in this machine");
    return HEFT_ERR_UNAVAILABLE;
#else
    (void)error;
    return 0;
#endif
}

extern const struct heft_transport_plugin heft_transport_plugin; /* the one symbol of this library */
__attribute__((visibility("default"))) const struct heft_transport_plugin heft_transport_plugin = {
    .abi = WIRE_ABI,
    .size = sizeof(heft_transport_plugin),
    .ops = &wire_ops,
    .init = begin,
};
