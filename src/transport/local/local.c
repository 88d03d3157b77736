/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Endpoints and operations of the local transport. An endpoint has one runner a worker; posting wakes as many
 * as the operation can feed, and each takes slices of the oldest operation until none is left, so that one
 * large copy and many small ones spread alike.
 */
#include "transport/local/local.h"
#include "base/error.h"
#include "transport/nothing.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A runner gives other jobs and sockets of its worker a turn after this many bytes. */
#define TURN_BYTES ((uint64_t)4 << 20)

static struct local_transport *transport_of(struct heft_transport *transport)
{
    return (struct local_transport *)(void *)transport;
}

static struct local_endpoint *endpoint_of(struct heft_endpoint *endpoint)
{
    return (struct local_endpoint *)(void *)endpoint;
}

static int local_open(const struct heft_transport_host *host, struct heft_transport **transport_out,
                      struct heft_error *error)
{
    struct local_transport *transport = calloc(1, sizeof(*transport));

    if (transport == NULL)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for the local transport");
    transport->host = *host;
    transport->workers = heft_pool_workers(host->pool);
    pthread_mutex_init(&transport->lock, NULL);
    pthread_cond_init(&transport->gone, NULL);
    *transport_out = (struct heft_transport *)(void *)transport;
    return 0;
}

/* A runner that was woken before its endpoint was disconnected may still wait for its turn on a worker. */
static void local_close(struct heft_transport *opened)
{
    struct local_transport *transport = transport_of(opened);

    pthread_mutex_lock(&transport->lock);
    while (transport->endpoints > 0)
        heft_pool_wait(transport->host.pool, &transport->gone, &transport->lock);
    pthread_mutex_unlock(&transport->lock);
    pthread_cond_destroy(&transport->gone);
    pthread_mutex_destroy(&transport->lock);
    free(transport);
}

static int remote_add(struct heft_endpoint *endpoint, struct heft_transport_region *region,
                      struct heft_error *error)
{
    return local_remote_add(endpoint_of(endpoint), region, error);
}

static void remote_remove(struct heft_endpoint *endpoint, struct heft_transport_region *region)
{
    local_remote_remove(endpoint_of(endpoint), region);
}

static void score_region(const struct local_transport *transport, const struct heft_route_query *query,
                         struct heft_route_score *score)
{
    const struct heft_transport_region *region = query->remote_region;
    const struct local_remote *slot = region->slot[transport->host.index];
    uint32_t need = query->op == HEFT_OP_READ ? HEFT_REGION_REMOTE_READ : HEFT_REGION_REMOTE_WRITE;

    if (slot == NULL) {
        (void)snprintf(score->reason, sizeof(score->reason), "the peer's region was not announced yet");
    } else if (!(region->flags & need) || (query->op == HEFT_OP_WRITE && !slot->writable)) {
        (void)snprintf(score->reason, sizeof(score->reason), "the region may not be %s by peers",
                       query->op == HEFT_OP_READ ? "read" : "written");
    } else {
        score->score = slot->mode == LOCAL_MAPPED ? 900 : slot->mode == LOCAL_ATTACHED ? 700 : 0;
        memcpy(score->reason, slot->reason, sizeof(score->reason));
    }
}

static void local_score(struct heft_transport *transport, struct heft_endpoint *endpoint,
                        const struct heft_route_query *query, struct heft_route_score *score_out)
{
    _Static_assert(sizeof(score_out->reason) == sizeof(((struct local_remote *)0)->reason), "copied whole");
    (void)endpoint;
    score_out->score = 0;
    if (query->local != HEFT_SPACE_HOST || query->remote != HEFT_SPACE_HOST) {
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "host memory only");
    } else if (query->peer == NULL) {
        score_out->score = 1000;
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "both sides are memory of this agent");
    } else if (!query->peer->same_host) {
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "the peer is on another host");
    } else if (query->remote_region != NULL) {
        score_region(transport_of(transport), query, score_out);
    } else {
        score_out->score = 800;
        (void)snprintf(score_out->reason, sizeof(score_out->reason),
                       "same host: mapped memory, or cross-memory attach, as each region allows");
    }
}

static void drop_ref(struct local_endpoint *endpoint)
{
    struct local_transport *transport = endpoint->transport;

    if (__atomic_sub_fetch(&endpoint->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    if (endpoint->pidfd >= 0)
        (void)close(endpoint->pidfd);
    if (endpoint->memory >= 0)
        (void)close(endpoint->memory);
    heft_opqueue_free(&endpoint->queue);
    pthread_mutex_destroy(&endpoint->remotes_lock);
    free(endpoint);
    pthread_mutex_lock(&transport->lock);
    transport->endpoints--;
    pthread_cond_broadcast(&transport->gone);
    pthread_mutex_unlock(&transport->lock);
}

static void run_claim(struct local_endpoint *endpoint, const struct heft_claim *claim)
{
    struct heft_error error = HEFT_ERROR_INIT;
    int64_t failed_move = -1;
    int rc = local_copy(endpoint, claim, &failed_move, &error);

    heft_opqueue_end(&endpoint->queue, claim->op, 1, rc, &error, failed_move);
    heft_opqueue_drain(&endpoint->queue);
}

static void run(struct heft_job *job, struct heft_worker *worker)
{
    struct local_runner *runner = (struct local_runner *)(void *)job;
    struct local_endpoint *endpoint = runner->endpoint;
    struct heft_claim claim;
    uint64_t moved = 0;
    int more;

    (void)worker;
    while (moved < TURN_BYTES &&
           heft_opqueue_claim(&endpoint->queue, LOCAL_SLICE_BYTES, LOCAL_SLICE_CUTS, &claim)) {
        moved += claim.bytes;
        run_claim(endpoint, &claim);
    }
    heft_opqueue_drain(&endpoint->queue);
    pthread_mutex_lock(&endpoint->queue.lock);
    more = endpoint->queue.head != NULL;
    if (!more) {
        runner->next_idle = endpoint->idle;
        endpoint->idle = runner;
    }
    pthread_mutex_unlock(&endpoint->queue.lock);
    if (more)
        heft_pool_submit(endpoint->transport->host.pool, &runner->job);
    else
        drop_ref(endpoint);
}

/* Wakes up to `wanted` runners that sleep. */
static void wake_runners(struct local_endpoint *endpoint, uint64_t wanted)
{
    while (wanted-- > 0) {
        struct local_runner *runner;

        pthread_mutex_lock(&endpoint->queue.lock);
        runner = endpoint->queue.head != NULL ? endpoint->idle : NULL;
        if (runner != NULL) {
            endpoint->idle = runner->next_idle;
            (void)__atomic_add_fetch(&endpoint->refs, 1, __ATOMIC_RELAXED);
        }
        pthread_mutex_unlock(&endpoint->queue.lock);
        if (runner == NULL)
            return;
        heft_pool_submit(endpoint->transport->host.pool, &runner->job);
    }
}

static int local_connect(struct heft_transport *opened, const struct heft_transport_peer *peer,
                         struct heft_endpoint **endpoint_out, struct heft_error *error)
{
    struct local_transport *transport = transport_of(opened);
    struct local_endpoint *endpoint;

    endpoint = calloc(1, sizeof(*endpoint) + transport->workers * sizeof(endpoint->runners[0]));
    if (endpoint == NULL)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for a local endpoint");
    endpoint->transport = transport;
    endpoint->refs = 1;
    endpoint->pidfd = endpoint->memory = -1;
    heft_opqueue_init(&endpoint->queue);
    pthread_mutex_init(&endpoint->remotes_lock, NULL);
    for (uint32_t i = 0; i < transport->workers; i++) {
        endpoint->runners[i].job.run = run;
        endpoint->runners[i].endpoint = endpoint;
        endpoint->runners[i].next_idle = endpoint->idle;
        endpoint->idle = &endpoint->runners[i];
    }
    if (peer != NULL) {
        endpoint->has_peer = 1;
        endpoint->same_host = peer->same_host;
        (void)snprintf(endpoint->name, sizeof(endpoint->name), "%s", peer->name != NULL ? peer->name : "");
        endpoint->pid = peer->same_host ? peer->pid : 0;
        if (endpoint->pid > 0)
            endpoint->pidfd = (int)syscall(SYS_pidfd_open, endpoint->pid, 0);
        if (endpoint->pidfd < 0) /* attached memory could then be that of whoever gets the number next */
            endpoint->pid = 0;
    }
    pthread_mutex_lock(&transport->lock);
    transport->endpoints++;
    pthread_mutex_unlock(&transport->lock);
    *endpoint_out = (struct heft_endpoint *)(void *)endpoint;
    return 0;
}

static void local_fail(struct heft_endpoint *opened, int status, const struct heft_error *error)
{
    struct local_endpoint *endpoint = endpoint_of(opened);

    heft_opqueue_fail(&endpoint->queue, status, error);
    heft_opqueue_drain(&endpoint->queue);
}

static void local_disconnect(struct heft_endpoint *opened)
{
    struct local_endpoint *endpoint = endpoint_of(opened);

    local_fail(opened, HEFT_ERR_CANCELED, NULL);
    heft_opqueue_wait_idle(&endpoint->queue, endpoint->transport->host.pool);
    local_remotes_free(endpoint);
    drop_ref(endpoint);
}

static int local_accept(struct heft_transport *transport, int fd, uint64_t session, struct heft_error *error)
{
    (void)transport;
    (void)session;
    (void)close(fd);
    return heft_error_set(error, HEFT_ERR_PROTOCOL, "the local transport has no connections of its own");
}

static void local_drop_session(struct heft_transport *transport, uint64_t session)
{
    (void)transport;
    (void)session;
}

static int is_brief(const struct heft_transport_op *op)
{
    uint64_t pieces = 0;

    if (op->total_bytes <= LOCAL_INLINE_LIST_BYTES)
        return 1;
    for (size_t index = 0; index < op->move_count && pieces <= LOCAL_INLINE_PIECES; index++)
        pieces += op->moves[index].count;
    return op->total_bytes <= LOCAL_INLINE_BYTES && pieces <= LOCAL_INLINE_PIECES;
}

/* Without the queue: the agent holds the endpoint for this call, and nobody else knows the operation. */
static int local_move(struct heft_endpoint *opened, struct heft_transport_op *op, struct heft_error *error)
{
    struct local_endpoint *endpoint = endpoint_of(opened);
    struct heft_claim claim = {.op = op, .bytes = op->total_bytes};
    int rc = HEFT_ERR_AGAIN;

    if (!is_brief(op) || __atomic_load_n(&endpoint->queue.failed, __ATOMIC_ACQUIRE))
        return HEFT_ERR_AGAIN;
    if (op->move_count == 1 && op->moves->count == 1 && op->total_bytes <= LOCAL_SMALL_BYTES)
        rc = local_copy_piece(endpoint, op, error);
    return rc == HEFT_ERR_AGAIN ? local_copy(endpoint, &claim, &op->failed_move, error) : rc;
}

static int local_post(struct heft_endpoint *opened, struct heft_transport_op *op, struct heft_error *error)
{
    struct local_endpoint *endpoint = endpoint_of(opened);
    uint64_t slices = op->total_bytes / LOCAL_SLICE_BYTES + 1;
    int rc;

    /* once posted, the operation and even the endpoint may be over before we return: hold the latter */
    (void)__atomic_add_fetch(&endpoint->refs, 1, __ATOMIC_RELAXED);
    rc = heft_opqueue_post(&endpoint->queue, op, error);
    if (rc == 0) {
        wake_runners(endpoint, slices < endpoint->transport->workers ? slices : endpoint->transport->workers);
        heft_opqueue_drain(&endpoint->queue);
    }
    drop_ref(endpoint);
    return rc;
}

static void local_cancel(struct heft_endpoint *opened, struct heft_transport_op *op)
{
    struct local_endpoint *endpoint = endpoint_of(opened);

    if (heft_opqueue_cancel(&endpoint->queue, op))
        heft_opqueue_end(&endpoint->queue, op, 1, HEFT_ERR_CANCELED, NULL, -1);
    heft_opqueue_drain(&endpoint->queue);
}

const struct heft_transport_ops heft_transport_local = {
    .abi = HEFT_TRANSPORT_ABI,
    .size = sizeof(struct heft_transport_ops),
    .name = "local",
    .open = local_open,
    .close = local_close,
    .region_add = heft_nothing_region_add, /* plain memory needs no preparation */
    .region_remove = heft_nothing_region_remove,
    .remote_add = remote_add,
    .remote_remove = remote_remove,
    .score = local_score,
    .connect = local_connect,
    .disconnect = local_disconnect,
    .fail = local_fail,
    .accept = local_accept,
    .drop_session = local_drop_session,
    .post = local_post,
    .cancel = local_cancel,
    .move = local_move,
};
