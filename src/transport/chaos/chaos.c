/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation of the caller's (the parent) becomes child operations on the wrapped transport. One thread a
 * transport starts children and ends parents when their time has come.
 */
#include "transport/chaos/chaos.h"
#include "transport/worker.h"
#include "base/clock.h"
#include "base/error.h"
#include "transport/cursor.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct child {
    struct heft_transport_op op; /* first */
    struct parent *parent;
    struct heft_move move;
    size_t move_index; /* in the parent's operation */
    uint64_t start_ns;
    int starting, posted, ended; /* starting: no longer to be started; posted: may be canceled */
};

struct parent {
    struct heft_transport_op *op;
    struct chaos_endpoint *endpoint;
    struct parent *next;
    uint32_t child_count, left; /* left: children that have not ended */
    uint64_t end_ns;            /* not before; set when the last child has ended */
    int dropped;                /* ends only by cancel or fail */
    int fail_code;              /* what it ends with though all went well */
    int status;
    struct heft_error error;
    struct child children[];
};

struct chaos_endpoint {
    struct chaos_transport *transport;
    struct heft_endpoint *base;
    struct chaos_endpoint *next;
    struct parent *parents; /* under transport->lock, like all below */
    uint32_t busy;          /* done callbacks and base calls under way */
    int failed;
    struct heft_error failed_error;
};

struct chaos_transport {
    struct heft_chaos_options options;
    struct heft_transport *base;
    struct heft_worker_pool *pool;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    int stop;
    uint64_t random;
    uint64_t posted;
    struct chaos_endpoint *endpoints;
};

static struct heft_chaos_options configured;

void heft_chaos_configure(const struct heft_chaos_options *options)
{
    configured = *options;
}

static uint64_t draw(struct chaos_transport *transport, uint64_t bound)
{
    uint64_t z = (transport->random += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return bound > 0 ? (z ^ (z >> 31)) % bound : 0;
}

static uint64_t some_time(struct chaos_transport *transport)
{
    return heft_now_ns() + draw(transport, (uint64_t)transport->options.delay_max_us * 1000 + 1);
}

/* ---- the thread ---- */

static void unlink_parent(struct parent *parent)
{
    struct parent **at = &parent->endpoint->parents;

    while (*at != parent)
        at = &(*at)->next;
    *at = parent->next;
}

/* Lock held; released while the callback runs. */
static void end_parent(struct parent *parent)
{
    struct chaos_endpoint *endpoint = parent->endpoint;
    struct chaos_transport *transport = endpoint->transport;
    int status = parent->status != 0 ? parent->status : parent->fail_code;

    unlink_parent(parent);
    if (status != 0 && parent->error.code == 0)
        heft_error_set(&parent->error, status, "chaos: %s", heft_error_text(status));
    endpoint->busy++;
    pthread_mutex_unlock(&transport->lock);
    parent->op->done(parent->op, status, status != 0 ? &parent->error : NULL);
    free(parent);
    pthread_mutex_lock(&transport->lock);
    endpoint->busy--;
    pthread_cond_broadcast(&transport->changed);
}

/* Lock held. */
static void let_go(struct parent *parent)
{
    if (--parent->left == 0)
        parent->end_ns = some_time(parent->endpoint->transport);
    pthread_cond_broadcast(&parent->endpoint->transport->changed);
}

static void child_done(struct heft_transport_op *op, int status, const struct heft_error *error)
{
    struct child *child = (struct child *)(void *)op;
    struct parent *parent = child->parent;
    struct chaos_transport *transport = parent->endpoint->transport;

    pthread_mutex_lock(&transport->lock);
    child->ended = 1;
    (void)__atomic_fetch_add(&parent->op->done_bytes, op->done_bytes, __ATOMIC_RELEASE);
    if (status != 0 && parent->status == 0) {
        parent->status = status;
        if (error != NULL)
            parent->error = *error;
        if (op->failed_move >= 0)
            parent->op->failed_move = (int64_t)child->move_index;
    }
    let_go(parent);
    pthread_mutex_unlock(&transport->lock);
}

/* Lock held; released while the base works. */
static void start_child(struct child *child)
{
    struct parent *parent = child->parent;
    struct chaos_endpoint *endpoint = parent->endpoint;
    struct chaos_transport *transport = endpoint->transport;
    struct heft_error error = HEFT_ERROR_INIT;
    int rc;

    child->starting = 1;
    parent->left++; /* it stays until we are through */
    pthread_mutex_unlock(&transport->lock);
    rc = transport->options.base->post(endpoint->base, &child->op, &error);
    if (rc != 0)
        child_done(&child->op, rc, &error);
    pthread_mutex_lock(&transport->lock);
    child->posted = 1;
    if (__atomic_load_n(&child->op.cancel_wanted, __ATOMIC_ACQUIRE) && !child->ended) {
        pthread_mutex_unlock(&transport->lock);
        transport->options.base->cancel(endpoint->base, &child->op);
        pthread_mutex_lock(&transport->lock);
    }
    let_go(parent);
}

static int is_over(const struct parent *parent)
{
    return parent->left == 0 && (!parent->dropped || parent->status != 0);
}

/* Does one thing that is due: 1. Else 0 and when the next one is (0: none is known). */
static int step(struct chaos_transport *transport, uint64_t now, uint64_t *next_out)
{
    *next_out = 0;
    for (struct chaos_endpoint *endpoint = transport->endpoints; endpoint != NULL; endpoint = endpoint->next)
        for (struct parent *parent = endpoint->parents; parent != NULL; parent = parent->next) {
            if (is_over(parent)) {
                if (parent->end_ns <= now || parent->status != 0) {
                    end_parent(parent);
                    return 1;
                }
                if (*next_out == 0 || parent->end_ns < *next_out)
                    *next_out = parent->end_ns;
                continue;
            }
            for (uint32_t i = 0; i < parent->child_count; i++) {
                struct child *child = &parent->children[i];

                if (child->starting)
                    continue;
                if (child->start_ns <= now) {
                    start_child(child);
                    return 1;
                }
                if (*next_out == 0 || child->start_ns < *next_out)
                    *next_out = child->start_ns;
            }
        }
    return 0;
}

static void *chaos_main(void *argument)
{
    struct chaos_transport *transport = argument;
    uint64_t next;

    pthread_mutex_lock(&transport->lock);
    while (!transport->stop) {
        if (step(transport, heft_now_ns(), &next))
            continue;
        if (next == 0) {
            pthread_cond_wait(&transport->changed, &transport->lock);
        } else {
            struct timespec until = {(time_t)(next / HEFT_NS_PER_S), (long)(next % HEFT_NS_PER_S)};

            (void)pthread_cond_clockwait(&transport->changed, &transport->lock, CLOCK_MONOTONIC, &until);
        }
    }
    pthread_mutex_unlock(&transport->lock);
    return NULL;
}

/* ---- the table ---- */

static int chaos_open(const struct heft_transport_host *host, struct heft_transport **transport_out,
                      struct heft_error *error)
{
    struct chaos_transport *transport = calloc(1, sizeof(*transport));
    int rc;

    if (transport == NULL)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for the chaos transport");
    transport->options = configured;
    transport->pool = host->pool;
    transport->random = configured.seed;
    pthread_mutex_init(&transport->lock, NULL);
    pthread_cond_init(&transport->changed, NULL);
    rc = configured.base->open(host, &transport->base, error);
    if (rc == 0 && pthread_create(&transport->thread, NULL, chaos_main, transport) != 0) {
        configured.base->close(transport->base);
        rc = heft_error_set(error, HEFT_ERR_SYSTEM, "no thread for the chaos transport");
    }
    if (rc != 0) {
        free(transport);
        return rc;
    }
    *transport_out = (struct heft_transport *)(void *)transport;
    return 0;
}

static struct chaos_transport *transport_of(struct heft_transport *transport)
{
    return (struct chaos_transport *)(void *)transport;
}

static struct chaos_endpoint *endpoint_of(struct heft_endpoint *endpoint)
{
    return (struct chaos_endpoint *)(void *)endpoint;
}

static void chaos_close(struct heft_transport *opened)
{
    struct chaos_transport *transport = transport_of(opened);

    pthread_mutex_lock(&transport->lock);
    transport->stop = 1;
    pthread_cond_broadcast(&transport->changed);
    pthread_mutex_unlock(&transport->lock);
    (void)pthread_join(transport->thread, NULL);
    transport->options.base->close(transport->base);
    pthread_cond_destroy(&transport->changed);
    pthread_mutex_destroy(&transport->lock);
    free(transport);
}

static int region_add(struct heft_transport *opened, struct heft_transport_region *region,
                      struct heft_error *error)
{
    struct chaos_transport *transport = transport_of(opened);

    return transport->options.base->region_add(transport->base, region, error);
}

static void region_remove(struct heft_transport *opened, struct heft_transport_region *region)
{
    struct chaos_transport *transport = transport_of(opened);

    transport->options.base->region_remove(transport->base, region);
}

static int remote_add(struct heft_endpoint *opened, struct heft_transport_region *region,
                      struct heft_error *error)
{
    struct chaos_endpoint *endpoint = endpoint_of(opened);

    return endpoint->transport->options.base->remote_add(endpoint->base, region, error);
}

static void remote_remove(struct heft_endpoint *opened, struct heft_transport_region *region)
{
    struct chaos_endpoint *endpoint = endpoint_of(opened);

    endpoint->transport->options.base->remote_remove(endpoint->base, region);
}

static void chaos_score(struct heft_transport *opened, struct heft_endpoint *endpoint,
                        const struct heft_route_query *query, struct heft_route_score *score_out)
{
    struct chaos_transport *transport = transport_of(opened);

    transport->options.base->score(transport->base, endpoint != NULL ? endpoint_of(endpoint)->base : NULL,
                                   query, score_out);
}

static int chaos_connect(struct heft_transport *opened, const struct heft_transport_peer *peer,
                         struct heft_endpoint **endpoint_out, struct heft_error *error)
{
    struct chaos_transport *transport = transport_of(opened);
    struct chaos_endpoint *endpoint = calloc(1, sizeof(*endpoint));
    int rc;

    if (endpoint == NULL)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for a chaos endpoint");
    endpoint->transport = transport;
    rc = transport->options.base->connect(transport->base, peer, &endpoint->base, error);
    if (rc != 0) {
        free(endpoint);
        return rc;
    }
    pthread_mutex_lock(&transport->lock);
    endpoint->next = transport->endpoints;
    transport->endpoints = endpoint;
    pthread_mutex_unlock(&transport->lock);
    *endpoint_out = (struct heft_endpoint *)(void *)endpoint;
    return 0;
}

/* Children that have not started never will. Lock held. */
static void give_up(struct parent *parent, int status, const struct heft_error *error)
{
    if (parent->status == 0) {
        parent->status = status;
        if (error != NULL)
            parent->error = *error;
    }
    for (uint32_t i = 0; i < parent->child_count; i++)
        if (!parent->children[i].starting) {
            parent->children[i].starting = parent->children[i].ended = 1;
            parent->left--;
        }
}

static void chaos_fail(struct heft_endpoint *opened, int status, const struct heft_error *error)
{
    struct chaos_endpoint *endpoint = endpoint_of(opened);
    struct chaos_transport *transport = endpoint->transport;

    pthread_mutex_lock(&transport->lock);
    if (endpoint->failed == 0) {
        endpoint->failed = status;
        heft_error_set(&endpoint->failed_error, status, "%s",
                       error != NULL ? error->text : heft_error_text(status));
    }
    for (struct parent *parent = endpoint->parents; parent != NULL; parent = parent->next)
        give_up(parent, status, &endpoint->failed_error);
    pthread_cond_broadcast(&transport->changed);
    pthread_mutex_unlock(&transport->lock);
    (transport->options.base->fail)(endpoint->base, status, error);
}

static void chaos_disconnect(struct heft_endpoint *opened)
{
    struct chaos_endpoint *endpoint = endpoint_of(opened);
    struct chaos_transport *transport = endpoint->transport;
    struct chaos_endpoint **at = &transport->endpoints;

    chaos_fail(opened, HEFT_ERR_CANCELED, NULL);
    pthread_mutex_lock(&transport->lock);
    while (endpoint->parents != NULL || endpoint->busy > 0)
        heft_pool_wait(transport->pool, &transport->changed, &transport->lock);
    while (*at != endpoint)
        at = &(*at)->next;
    *at = endpoint->next;
    pthread_mutex_unlock(&transport->lock);
    transport->options.base->disconnect(endpoint->base);
    free(endpoint);
}

static int chaos_accept(struct heft_transport *opened, int fd, uint64_t session, struct heft_error *error)
{
    struct chaos_transport *transport = transport_of(opened);

    return transport->options.base->accept(transport->base, fd, session, error);
}

static void chaos_drop_session(struct heft_transport *opened, uint64_t session)
{
    struct chaos_transport *transport = transport_of(opened);

    transport->options.base->drop_session(transport->base, session);
}

/* How much the next piece takes: everything, a byte, or about a pieces_max-th. */
static uint64_t piece_bytes(struct chaos_transport *transport, uint64_t total, uint32_t cut_already)
{
    uint32_t pieces = transport->options.pieces_max;

    if (pieces <= 1 || cut_already >= pieces)
        return UINT64_MAX;
    if (draw(transport, 5) == 0)
        return 1;
    return 1 + draw(transport, total / pieces * 2 + 1);
}

/* Lock held: the decisions come from one sequence. */
static struct parent *make_parent(struct chaos_endpoint *endpoint, struct heft_transport_op *op)
{
    struct chaos_transport *transport = endpoint->transport;
    size_t room = transport->options.pieces_max + op->move_count * 2 + 2;
    struct parent *parent = calloc(1, sizeof(*parent) + room * sizeof(parent->children[0]));
    struct heft_cursor cursor = {0};
    struct heft_cut cut;

    if (parent == NULL)
        return NULL;
    parent->op = op;
    parent->endpoint = endpoint;
    transport->posted++;
    parent->dropped =
        transport->options.drop_every > 0 && transport->posted % transport->options.drop_every == 0;
    if (transport->options.fail_at > 0 && transport->posted == transport->options.fail_at)
        parent->fail_code = transport->options.fail_code != 0 ? transport->options.fail_code : HEFT_ERR_IO;
    while (parent->child_count < room) {
        struct child *child = &parent->children[parent->child_count];
        uint64_t bytes = piece_bytes(transport, op->total_bytes, parent->child_count);

        if (heft_cursor_cut(&cursor, op->moves, op->move_count, bytes, bytes == UINT64_MAX, &cut) == 0)
            break;
        /* an operation that is to fail or hang gets some of its bytes only */
        if ((parent->dropped || parent->fail_code != 0) && draw(transport, 2) == 0)
            break;
        child->parent = parent;
        child->move = *cut.move;
        child->move_index = cut.move_index;
        child->move.local_offset_bytes = cut.local_offset_bytes;
        child->move.remote_offset_bytes = cut.remote_offset_bytes;
        child->move.length_bytes = cut.length_bytes;
        child->move.count = cut.count;
        child->op.kind = op->kind;
        child->op.moves = &child->move;
        child->op.move_count = 1;
        child->op.total_bytes = cut.length_bytes * cut.count;
        child->op.flags = op->flags;
        child->op.id = op->id;
        child->op.failed_move = -1;
        child->op.done = child_done;
        child->start_ns = some_time(transport);
        parent->child_count++;
    }
    parent->left = parent->child_count;
    parent->end_ns = some_time(transport);
    return parent;
}

static int chaos_post(struct heft_endpoint *opened, struct heft_transport_op *op, struct heft_error *error)
{
    struct chaos_endpoint *endpoint = endpoint_of(opened);
    struct chaos_transport *transport = endpoint->transport;
    struct parent *parent;
    int rc = 0;

    pthread_mutex_lock(&transport->lock);
    if (endpoint->failed != 0) {
        rc = heft_error_set(error, endpoint->failed, "%s", endpoint->failed_error.text);
    } else {
        __atomic_store_n(&op->done_bytes, 0, __ATOMIC_RELAXED);
        op->failed_move = -1;
        parent = make_parent(endpoint, op);
        if (parent == NULL) {
            rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory to split an operation");
        } else {
            parent->next = endpoint->parents;
            endpoint->parents = parent;
            pthread_cond_broadcast(&transport->changed);
        }
    }
    pthread_mutex_unlock(&transport->lock);
    return rc;
}

static void chaos_cancel(struct heft_endpoint *opened, struct heft_transport_op *op)
{
    struct chaos_endpoint *endpoint = endpoint_of(opened);
    struct chaos_transport *transport = endpoint->transport;
    struct parent *parent;

    pthread_mutex_lock(&transport->lock);
    for (parent = endpoint->parents; parent != NULL && parent->op != op; parent = parent->next)
        continue;
    if (parent != NULL) {
        give_up(parent, HEFT_ERR_CANCELED, NULL);
        parent->left++; /* so that it stays while its children are told */
        pthread_mutex_unlock(&transport->lock);
        for (uint32_t i = 0; i < parent->child_count; i++) {
            struct child *child = &parent->children[i];
            int going;

            pthread_mutex_lock(&transport->lock);
            __atomic_store_n(&child->op.cancel_wanted, 1, __ATOMIC_RELEASE);
            going = child->posted && !child->ended;
            pthread_mutex_unlock(&transport->lock);
            if (going)
                transport->options.base->cancel(endpoint->base, &child->op);
        }
        pthread_mutex_lock(&transport->lock);
        let_go(parent);
    }
    pthread_mutex_unlock(&transport->lock);
}

const struct heft_transport_ops heft_transport_chaos = {
    .abi = HEFT_TRANSPORT_ABI,
    .size = sizeof(struct heft_transport_ops),
    .name = "chaos",
    .open = chaos_open,
    .close = chaos_close,
    .region_add = region_add,
    .region_remove = region_remove,
    .remote_add = remote_add,
    .remote_remove = remote_remove,
    .score = chaos_score,
    .connect = chaos_connect,
    .disconnect = chaos_disconnect,
    .fail = chaos_fail,
    .accept = chaos_accept,
    .drop_session = chaos_drop_session,
    .post = chaos_post,
    .cancel = chaos_cancel,
};
