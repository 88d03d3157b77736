/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport's table, endpoints and operations. An endpoint has two queues, one for each way of an
 * operation, and runners (worker jobs) that take claims as long as there are free flights. A flight that ends
 * wakes runners of whichever endpoint has work for it.
 *
 * Locks: transport->lock, then a queue's lock. done is called under neither.
 */
#include "transport/cuda/cuda.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOTS_MIN 2u
#define POSTED_MOVES 256u
#define FILLINGS 4
#define INLINE_BYTES ((uint64_t)1 << 20) /* some microseconds */
#define INLINE_WAIT_NS (30 * HEFT_NS_PER_S)

static struct cuda_transport *transport_of(struct heft_transport *transport)
{
    return (struct cuda_transport *)(void *)transport;
}

static struct cuda_endpoint *endpoint_of(struct heft_endpoint *endpoint)
{
    return (struct cuda_endpoint *)(void *)endpoint;
}

static void store_job(struct heft_job *job, struct heft_worker *worker);

/* ---- open and close ---- */

/* Only looks for the driver: starting it costs, and most agents of a machine with GPUs move host memory. */
static int cuda_open(const struct heft_transport_host *host, struct heft_transport **transport_out,
                     struct heft_error *error)
{
    struct cuda_transport *transport;
    uint64_t slots;
    uint32_t index;
    int rc = heft_cuda_find(error);

    if (rc)
        return rc;
    transport = calloc(1, sizeof(*transport));
    if (!transport)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for the cuda transport");
    transport->host = *host;
    transport->blocks = host->device_processors ? host->device_processors : HEFT_CUDA_COPY_BLOCKS;
    (void)pthread_mutex_init(&transport->lock, NULL);
    (void)pthread_cond_init(&transport->changed, NULL);
    slots = host->max_host_bytes / CUDA_SLOT_BYTES;
    slots = slots < SLOTS_MIN ? SLOTS_MIN : slots > CUDA_SLOTS_MAX ? CUDA_SLOTS_MAX : slots;
    transport->flight_count = CUDA_DIRECT_FLIGHTS + CUDA_ORDERED_FLIGHTS + (uint32_t)slots;
    for (index = 0; index < transport->flight_count; index++) {
        struct cuda_flight *flight = &transport->flights[index];

        flight->transport = transport;
        flight->sort = index < CUDA_DIRECT_FLIGHTS                          ? CUDA_DIRECT
                       : index < CUDA_DIRECT_FLIGHTS + CUDA_ORDERED_FLIGHTS ? CUDA_ORDERED
                                                                            : CUDA_STAGED;
        flight->job.run = store_job;
        flight->next = transport->free_flights[flight->sort];
        transport->free_flights[flight->sort] = flight;
    }
    *transport_out = (struct heft_transport *)(void *)transport;
    return HEFT_OK;
}

int cuda_start(struct cuda_transport *transport, struct heft_error *error)
{
    const struct heft_cu *cu;
    int rc = heft_cuda_load(&cu, error);

    if (rc)
        return rc;
    (void)pthread_mutex_lock(&transport->lock);
    if (!transport->watcher_started) {
        transport->cu = cu;
        rc = pthread_create(&transport->watcher, NULL, cuda_watch_main, transport);
        if (rc)
            rc = heft_error_set_errno(error, rc, "starting the thread that watches copies");
        else
            transport->watcher_started = 1;
    }
    (void)pthread_mutex_unlock(&transport->lock);
    return rc;
}

static void free_flight(const struct heft_cu *cu, struct cuda_flight *flight, int device)
{
    if (flight->events[device])
        (void)cu->event_destroy(flight->events[device]);
    if (flight->device_items[device])
        (void)cu->mem_free(flight->device_items[device]);
    if (flight->own[device])
        (void)cu->stream_destroy(flight->own[device]);
    cuda_flight_free_slot(cu, flight);
    if (flight->items)
        (void)cu->host_free(flight->items);
    flight->items = NULL;
    free(flight->runs);
    flight->runs = NULL;
}

static void cuda_close(struct heft_transport *opened)
{
    struct cuda_transport *transport = transport_of(opened);
    uint32_t index;
    int device, which;

    (void)pthread_mutex_lock(&transport->lock);
    while (transport->endpoint_count > 0)
        heft_pool_wait(transport->host.pool, &transport->changed, &transport->lock);
    transport->closing = 1;
    (void)pthread_cond_broadcast(&transport->changed);
    (void)pthread_mutex_unlock(&transport->lock);
    if (transport->watcher_started)
        (void)pthread_join(transport->watcher, NULL);
    cuda_tables_free(transport);
    for (device = 0; transport->cu && device < HEFT_CUDA_MAX_DEVICES; device++) {
        struct cuda_lane *lane = &transport->lanes[device];

        if (!lane->ready || heft_cuda_enter(device, NULL))
            continue;
        for (index = 0; index < transport->flight_count; index++)
            free_flight(transport->cu, &transport->flights[index], device);
        if (transport->words)
            (void)transport->cu->host_free(transport->words);
        transport->words = NULL;
        for (which = 0; which < 2; which++) {
            (void)transport->cu->stream_destroy(lane->in[which]);
            (void)transport->cu->stream_destroy(lane->out[which]);
            (void)transport->cu->stream_destroy(lane->across[which]);
        }
        heft_cuda_leave();
    }
    (void)pthread_cond_destroy(&transport->changed);
    (void)pthread_mutex_destroy(&transport->lock);
    free(transport);
}

/* ---- regions and routes ---- */

static int region_add(struct heft_transport *transport, struct heft_transport_region *region,
                      struct heft_error *error)
{
    return cuda_region_add(transport_of(transport), region, error);
}

static void region_remove(struct heft_transport *transport, struct heft_transport_region *region)
{
    (void)__atomic_add_fetch(&transport_of(transport)->epoch, 1, __ATOMIC_RELEASE);
    cuda_region_remove(transport_of(transport), region);
}

static int remote_add(struct heft_endpoint *endpoint, struct heft_transport_region *region,
                      struct heft_error *error)
{
    return cuda_remote_add(endpoint_of(endpoint), region, error);
}

static void remote_remove(struct heft_endpoint *endpoint, struct heft_transport_region *region)
{
    (void)__atomic_add_fetch(&endpoint_of(endpoint)->transport->epoch, 1, __ATOMIC_RELEASE);
    cuda_remote_remove(endpoint_of(endpoint), region);
}

static void score_remote(const struct cuda_transport *transport, const struct heft_route_query *query,
                         struct heft_route_score *score)
{
    const struct cuda_remote *remote = query->remote_region->slot[transport->host.index];
    uint32_t need = query->op == HEFT_OP_READ ? HEFT_REGION_REMOTE_READ : HEFT_REGION_REMOTE_WRITE;

    if (!remote)
        (void)snprintf(score->reason, sizeof(score->reason), "the peer's region was not announced yet");
    else if (!(query->remote_region->flags & need))
        (void)snprintf(score->reason, sizeof(score->reason), "the region may not be %s by peers",
                       query->op == HEFT_OP_READ ? "read" : "written");
    else {
        (void)snprintf(score->reason, sizeof(score->reason), "%s", remote->reason);
        score->score = remote->side.kind == CUDA_SIDE_NONE                                   ? 0
                       : query->local == HEFT_SPACE_CUDA && query->remote == HEFT_SPACE_CUDA ? 950
                                                                                             : 650;
    }
}

static const char *how(void)
{
    return heft_cuda_has_kernels() ? "copy engines, our kernel for many small pieces"
                                   : "copy engines only: this build has no GPU kernels (nvcc)";
}

static void cuda_score(struct heft_transport *opened, struct heft_endpoint *endpoint,
                       const struct heft_route_query *query, struct heft_route_score *score_out)
{
    int both = query->local == HEFT_SPACE_CUDA && query->remote == HEFT_SPACE_CUDA;
    int one = query->local == HEFT_SPACE_CUDA || query->remote == HEFT_SPACE_CUDA;
    enum heft_space other = query->local == HEFT_SPACE_CUDA ? query->remote : query->local;

    (void)endpoint;
    score_out->score = 0;
    if (!one)
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "neither side is GPU memory");
    else if (other != HEFT_SPACE_CUDA && other != HEFT_SPACE_HOST &&
             (other != HEFT_SPACE_FILE || query->peer))
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "not between GPU memory and %s%s",
                       heft_space_name(other), query->peer ? " of a peer" : "");
    else if (query->peer && !query->peer->same_host)
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "the peer is on another host");
    else if (query->peer && !query->peer->control_is_unix)
        (void)snprintf(score_out->reason, sizeof(score_out->reason),
                       "the peer is not reached by its unix socket: no handles can be passed");
    else if (query->peer && query->remote_region)
        score_remote(transport_of(opened), query, score_out);
    else {
        score_out->score = both ? 900 : 600;
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "%s%s", how(),
                       both ? "" : "; staged through pinned memory where the host side is not pinned");
    }
}

/* ---- endpoints ---- */

void cuda_endpoint_drop(struct cuda_endpoint *endpoint)
{
    struct cuda_transport *transport = endpoint->transport;

    if (__atomic_sub_fetch(&endpoint->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    heft_opqueue_free(&endpoint->direct.queue);
    heft_opqueue_free(&endpoint->staged.queue);
    (void)pthread_mutex_destroy(&endpoint->remotes_lock);
    free(endpoint);
    (void)pthread_mutex_lock(&transport->lock);
    transport->endpoint_count--;
    (void)pthread_cond_broadcast(&transport->changed);
    (void)pthread_mutex_unlock(&transport->lock);
}

void cuda_wake(struct cuda_endpoint *endpoint, struct cuda_way *way, uint64_t wanted)
{
    while (wanted-- > 0) {
        struct cuda_runner *runner;

        (void)pthread_mutex_lock(&way->queue.lock);
        runner = heft_opqueue_next_locked(&way->queue) ? way->idle : NULL;
        if (runner) {
            way->idle = runner->next_idle;
            (void)__atomic_add_fetch(&endpoint->refs, 1, __ATOMIC_RELAXED);
        }
        (void)pthread_mutex_unlock(&way->queue.lock);
        if (!runner)
            return;
        heft_pool_submit(endpoint->transport->host.pool, &runner->job);
    }
}

struct cuda_flight *cuda_flight_take(struct cuda_transport *transport, enum cuda_sort sort)
{
    struct cuda_flight *flight;

    (void)pthread_mutex_lock(&transport->lock);
    flight = transport->free_flights[sort];
    if (flight)
        transport->free_flights[sort] = flight->next;
    (void)pthread_mutex_unlock(&transport->lock);
    return flight;
}

void cuda_flight_drop(struct cuda_flight *flight)
{
    struct cuda_transport *transport = flight->transport;

    cuda_after_drop(transport->cu, &flight->after);
    (void)pthread_mutex_lock(&transport->lock);
    flight->next = transport->free_flights[flight->sort];
    transport->free_flights[flight->sort] = flight;
    (void)pthread_mutex_unlock(&transport->lock);
}

/* Whoever has work for a free flight gets a runner: flights are shared by all endpoints. */
static void give_flight(struct cuda_flight *flight)
{
    struct cuda_transport *transport = flight->transport;
    struct cuda_endpoint *endpoint;

    cuda_after_drop(transport->cu, &flight->after);
    (void)pthread_mutex_lock(&transport->lock);
    flight->endpoint = NULL;
    flight->next = transport->free_flights[flight->sort];
    transport->free_flights[flight->sort] = flight;
    for (endpoint = transport->endpoints; endpoint && flight->sort != CUDA_ORDERED; endpoint = endpoint->next)
        cuda_wake(endpoint, flight->sort == CUDA_STAGED ? &endpoint->staged : &endpoint->direct, 1);
    (void)pthread_mutex_unlock(&transport->lock);
}

void cuda_flight_end(struct cuda_flight *flight)
{
    struct cuda_endpoint *endpoint = flight->endpoint;
    struct cuda_way *way = flight->sort == CUDA_STAGED ? &endpoint->staged : &endpoint->direct;
    struct heft_transport_op *op = flight->claim.op;
    int failed = __atomic_load_n(&way->queue.failed, __ATOMIC_ACQUIRE);

    if (!flight->status && failed)
        flight->status = failed; /* the peer died: what was copied may be half of something */
    if (!flight->status)
        (void)__atomic_fetch_add(&op->done_bytes, flight->claim.bytes, __ATOMIC_RELEASE);
    heft_opqueue_end(&way->queue, op, 1, flight->status, flight->error.code ? &flight->error : NULL,
                     flight->failed_move);
    give_flight(flight);
    heft_opqueue_drain(&way->queue);
    cuda_endpoint_drop(endpoint);
}

static void store_job(struct heft_job *job, struct heft_worker *worker)
{
    struct cuda_flight *flight = (struct cuda_flight *)(void *)job;

    (void)worker;
    flight->status = cuda_flight_store(flight);
    cuda_flight_end(flight);
}

void cuda_flight_watch(struct cuda_flight *flight)
{
    struct cuda_transport *transport = flight->transport;

    flight->looks = 0;
    (void)pthread_mutex_lock(&transport->lock);
    flight->next = transport->started;
    __atomic_store_n(&transport->started, flight, __ATOMIC_RELEASE); /* the watcher looks without the lock */
    (void)pthread_cond_signal(&transport->changed);
    (void)pthread_mutex_unlock(&transport->lock);
}

void cuda_flight_fly(struct cuda_flight *flight)
{
    (void)__atomic_add_fetch(&flight->endpoint->refs, 1, __ATOMIC_RELAXED);
    if (cuda_flight_start(flight))
        cuda_flight_end(flight);
    else
        cuda_flight_watch(flight);
}

/* One claim started. 0: nothing to claim, or no flight is free. */
static int start_one(struct cuda_endpoint *endpoint, struct cuda_way *way)
{
    struct cuda_transport *transport = endpoint->transport;
    struct cuda_flight *flight = cuda_flight_take(transport, way->staged ? CUDA_STAGED : CUDA_DIRECT);

    if (!flight)
        return 0;
    flight->endpoint = endpoint;
    if (!heft_opqueue_claim(&way->queue, way->staged ? CUDA_SLOT_BYTES : CUDA_DIRECT_BYTES,
                            way->staged ? CUDA_STAGED_CUTS : CUDA_DIRECT_CUTS, &flight->claim)) {
        cuda_flight_drop(flight);
        return 0;
    }
    cuda_flight_fly(flight);
    return 1;
}

static void run(struct heft_job *job, struct heft_worker *worker)
{
    struct cuda_runner *runner = (struct cuda_runner *)(void *)job;
    struct cuda_endpoint *endpoint = runner->endpoint;
    struct cuda_transport *transport = endpoint->transport;
    struct cuda_way *way = runner->way;
    int has_flight, fillings = 0;

    (void)worker;
    /* Other jobs get a turn: any that waits after each filling of a slot, sockets after some. */
    while (start_one(endpoint, way) &&
           (!way->staged || (++fillings < FILLINGS && !heft_pool_has_jobs(transport->host.pool))))
        ;
    heft_opqueue_drain(&way->queue);
    (void)pthread_mutex_lock(&way->queue.lock);
    runner->next_idle = way->idle;
    way->idle = runner;
    (void)pthread_mutex_unlock(&way->queue.lock);
    /* A flight that came free just before that found no runner to wake. */
    (void)pthread_mutex_lock(&transport->lock);
    has_flight = transport->free_flights[way->staged ? CUDA_STAGED : CUDA_DIRECT] != NULL;
    (void)pthread_mutex_unlock(&transport->lock);
    if (has_flight)
        cuda_wake(endpoint, way, 1);
    cuda_endpoint_drop(endpoint);
}

static void init_way(struct cuda_endpoint *endpoint, struct cuda_way *way, int staged, uint32_t first,
                     uint32_t count)
{
    uint32_t index;

    heft_opqueue_init(&way->queue);
    way->staged = staged;
    for (index = first; index < first + count; index++) {
        struct cuda_runner *runner = &endpoint->runners[index];

        runner->job.run = run;
        runner->endpoint = endpoint;
        runner->way = way;
        runner->next_idle = way->idle;
        way->idle = runner;
    }
}

static int cuda_connect(struct heft_transport *opened, const struct heft_transport_peer *peer,
                        struct heft_endpoint **endpoint_out, struct heft_error *error)
{
    struct cuda_transport *transport = transport_of(opened);
    uint32_t workers = heft_pool_workers(transport->host.pool);
    struct cuda_endpoint *endpoint;
    int rc;

    if (peer && !peer->same_host)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "%s is on another host", peer->name);
    rc = cuda_start(transport, error);
    if (rc)
        return rc;
    endpoint = calloc(1, sizeof(*endpoint) + (workers + 1) * sizeof(endpoint->runners[0]));
    if (!endpoint)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory to connect by cuda");
    endpoint->transport = transport;
    endpoint->refs = 1;
    endpoint->has_peer = peer != NULL;
    endpoint->same_host = peer && peer->same_host;
    endpoint->runner_count = workers + 1;
    (void)snprintf(endpoint->name, sizeof(endpoint->name), "%s", peer ? peer->name : "this agent");
    (void)pthread_mutex_init(&endpoint->remotes_lock, NULL);
    init_way(endpoint, &endpoint->direct, 0, 0, 1);
    init_way(endpoint, &endpoint->staged, 1, 1, workers);
    (void)pthread_mutex_lock(&transport->lock);
    transport->endpoint_count++;
    endpoint->number = ++transport->endpoints_made;
    endpoint->next = transport->endpoints;
    transport->endpoints = endpoint;
    (void)pthread_mutex_unlock(&transport->lock);
    *endpoint_out = (struct heft_endpoint *)(void *)endpoint;
    return HEFT_OK;
}

static void cuda_fail(struct heft_endpoint *opened, int status, const struct heft_error *error)
{
    struct cuda_endpoint *endpoint = endpoint_of(opened);

    cuda_held_forget(endpoint, NULL);
    heft_opqueue_fail(&endpoint->direct.queue, status, error);
    heft_opqueue_fail(&endpoint->staged.queue, status, error);
    heft_opqueue_drain(&endpoint->direct.queue);
    heft_opqueue_drain(&endpoint->staged.queue);
}

static void cuda_disconnect(struct heft_endpoint *opened)
{
    struct cuda_endpoint *endpoint = endpoint_of(opened), **at;
    struct cuda_transport *transport = endpoint->transport;

    cuda_fail(opened, HEFT_ERR_CANCELED, NULL);
    heft_opqueue_wait_idle(&endpoint->direct.queue, endpoint->transport->host.pool);
    heft_opqueue_wait_idle(&endpoint->staged.queue, endpoint->transport->host.pool);
    (void)pthread_mutex_lock(&transport->lock);
    for (at = &transport->endpoints; *at != endpoint; at = &(*at)->next)
        ;
    *at = endpoint->next;
    (void)pthread_mutex_unlock(&transport->lock);
    cuda_remotes_free(endpoint);
    cuda_endpoint_drop(endpoint);
}

static int cuda_accept(struct heft_transport *transport, int fd, uint64_t session, struct heft_error *error)
{
    (void)transport;
    (void)session;
    (void)close(fd);
    return heft_error_set(error, HEFT_ERR_PROTOCOL, "the cuda transport has no connections of its own");
}

static int cuda_post(struct heft_endpoint *opened, struct heft_transport_op *op, struct heft_error *error)
{
    struct cuda_endpoint *endpoint = endpoint_of(opened);
    uint64_t slices = op->total_bytes / CUDA_SLOT_BYTES + 1;
    size_t op_moves = op->move_count; /* once posted, the operation may be over before we return */
    struct cuda_way *way;
    int rc;

    if (op->raise_region) {
        rc = cuda_op_way(endpoint, op, &way, error);
        if (!rc)
            rc = cuda_raise_check(endpoint, op, way, error);
        if (rc)
            return rc;
    }
    if (cuda_op_is_ordered(op) && op->total_bytes > 0)
        return cuda_order_post(endpoint, op, error);
    if (cuda_list_post(endpoint, op, &rc, error))
        return rc;
    rc = cuda_op_way(endpoint, op, &way, error);
    if (rc)
        return rc;
    (void)__atomic_add_fetch(&endpoint->refs, 1, __ATOMIC_RELAXED);
    rc = heft_opqueue_post(&way->queue, op, error);
    if (!rc) {
        /* What is quickly told to the GPU is told by this thread: a worker would only wake up late. */
        if (!way->staged && op_moves <= POSTED_MOVES)
            (void)start_one(endpoint, way);
        cuda_wake(endpoint, way, slices < endpoint->runner_count ? slices : endpoint->runner_count);
        heft_opqueue_drain(&way->queue);
    }
    cuda_endpoint_drop(endpoint);
    return rc;
}

/* Until the flight's mark has come; the driver is asked now and then. Not 0: how it failed. */
static int spin(struct cuda_flight *flight, struct heft_error *error)
{
    uint64_t end_ns = heft_now_ns() + INLINE_WAIT_NS;
    heft_cu_result result;

    flight->looks = 0;
    while ((result = cuda_flight_look(flight, 0)) == HEFT_CU_NOT_READY)
        if (flight->looks % 4096 == 4095 && heft_now_ns() > end_ns)
            return heft_error_set(error, HEFT_ERR_STALLED, "GPU %d did not copy %llu bytes within 30 s",
                                  flight->device, (unsigned long long)flight->claim.bytes);
    if (result && !flight->status)
        flight->status =
            heft_cuda_error(&flight->error, result, "GPU %d failed while it copied", flight->device);
    return HEFT_OK;
}

/* A piece or two: no other thread is told, and none has to be waited for. */
static int cuda_move(struct heft_endpoint *opened, struct heft_transport_op *op, struct heft_error *error)
{
    struct cuda_endpoint *endpoint = endpoint_of(opened);
    struct cuda_flight *flight;
    struct cuda_way *way;
    size_t index;
    int status;

    if (op->total_bytes == 0 || op->total_bytes > INLINE_BYTES || cuda_op_is_ordered(op) ||
        op->raise_region || op->move_count >= CUDA_KERNEL_FROM_PIECES ||
        __atomic_load_n(&endpoint->direct.queue.failed, __ATOMIC_ACQUIRE))
        return HEFT_ERR_AGAIN;
    for (index = 0; index < op->move_count; index++)
        if (op->moves[index].count > 1)
            return HEFT_ERR_AGAIN;
    if (cuda_op_way(endpoint, op, &way, NULL) || way->staged)
        return HEFT_ERR_AGAIN;
    flight = cuda_flight_take(endpoint->transport, CUDA_DIRECT);
    if (!flight)
        return HEFT_ERR_AGAIN;
    flight->endpoint = endpoint;
    flight->claim = (struct heft_claim){.op = op, .bytes = op->total_bytes, .cuts = (uint32_t)op->move_count};
    status = cuda_flight_start(flight);
    if (!status) {
        status = spin(flight, error);
        if (status) /* it may still write: the flight is better lost than used twice */
            return status;
        status = flight->status;
    }
    op->failed_move = flight->failed_move;
    if (status && error)
        *error = flight->error;
    if (!status)
        __atomic_store_n(&op->done_bytes, op->total_bytes, __ATOMIC_RELEASE);
    give_flight(flight);
    return status;
}

static void cuda_cancel(struct heft_endpoint *opened, struct heft_transport_op *op)
{
    struct cuda_endpoint *endpoint = endpoint_of(opened);
    struct cuda_way *ways[2] = {&endpoint->direct, &endpoint->staged};
    int index;

    cuda_held_forget(endpoint, op);
    /* In which queue it waits is not remembered: it is in one at most. */
    for (index = 0; index < 2; index++) {
        if (!heft_opqueue_cancel(&ways[index]->queue, op))
            continue;
        heft_opqueue_end(&ways[index]->queue, op, 1, HEFT_ERR_CANCELED, NULL, -1);
        heft_opqueue_drain(&ways[index]->queue);
        return;
    }
}

const struct heft_transport_ops heft_transport_cuda = {
    .abi = HEFT_TRANSPORT_ABI,
    .size = sizeof(struct heft_transport_ops),
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .region_add = region_add,
    .region_remove = region_remove,
    .remote_add = remote_add,
    .remote_remove = remote_remove,
    .score = cuda_score,
    .connect = cuda_connect,
    .disconnect = cuda_disconnect,
    .fail = cuda_fail,
    .accept = cuda_accept,
    .post = cuda_post,
    .cancel = cuda_cancel,
    .forget = cuda_forget,
    .move = cuda_move,
    .flags = HEFT_TRANSPORT_ORDERS,
};
