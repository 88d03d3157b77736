/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport's table, and tasks from post to done.
 *
 * Tasks wait in one queue; as long as fewer ranges fly than the limit allows, the first task's next part is
 * cut and given to the lane that has the least. The limit begins small and doubles while that brings more
 * bytes a second; a service that asks for less (429, 503) halves it.
 */
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/object/lane.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCORE 500
#define KEPT_ORDER 65536u
#define CALM_NS (5 * HEFT_NS_PER_S)         /* no growth for so long after a "slow down" */
#define SLOW_DOWN_NS (250 * HEFT_NS_PER_MS) /* what comes within is the same "slow down" */

/* ---- open and close ---- */

static void trim(struct heft_task *common)
{
    struct heft_object_task *task = (struct heft_object_task *)common;

    if (task->parts.order_capacity > KEPT_ORDER)
        heft_object_parts_free(&task->parts);
}

static void free_transport(struct heft_transport *transport)
{
    struct heft_object_flight *flight;
    struct heft_object_task *task;

    while ((flight = transport->free_flights) != NULL) {
        transport->free_flights = flight->next;
        if (flight->has_handle)
            heft_object_exchange_free(&flight->exchange);
        free(flight);
    }
    while ((task = (struct heft_object_task *)heft_tasks_reuse(&transport->tasks)) != NULL) {
        heft_object_parts_free(&task->parts);
        free(task);
    }
    heft_object_stores_free(&transport->stores);
    free(transport->lanes);
    heft_tasks_destroy(&transport->tasks);
    (void)pthread_mutex_destroy(&transport->stores_lock);
    free(transport);
}

static int object_open(const struct heft_transport_host *host, struct heft_transport **transport_out,
                       struct heft_error *error)
{
    struct heft_transport *transport = calloc(1, sizeof(*transport));
    uint32_t index;
    int rc;

    if (!transport)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for the object transport");
    transport->host = *host;
    heft_tasks_init(&transport->tasks, trim);
    (void)pthread_mutex_init(&transport->stores_lock, NULL);
    rc = heft_object_limits_read(&transport->limits, error);
    if (rc)
        goto fail;
    transport->limit = transport->limits.connections < HEFT_OBJECT_FIRST_CONNECTIONS
                           ? transport->limits.connections
                           : HEFT_OBJECT_FIRST_CONNECTIONS;
    transport->lane_count = heft_pool_workers(host->pool);
    if (transport->lane_count > HEFT_OBJECT_MAX_LANES)
        transport->lane_count = HEFT_OBJECT_MAX_LANES;
    transport->lanes = calloc(transport->lane_count, sizeof(*transport->lanes));
    rc = transport->lanes ? HEFT_OK
                          : heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for the object transport");
    for (index = 0; !rc && index < transport->limits.connections; index++) {
        struct heft_object_flight *flight = calloc(1, sizeof(*flight));

        if (!flight) {
            rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for the object transport");
            break;
        }
        flight->next = transport->free_flights;
        transport->free_flights = flight;
    }
    if (rc)
        goto fail;
    for (index = 0; index < transport->lane_count; index++)
        heft_object_lane_init(transport, index);
    *transport_out = transport;
    return HEFT_OK;

fail:
    free_transport(transport);
    return rc;
}

/* After every endpoint is disconnected; not on a worker. */
static void object_close(struct heft_transport *transport)
{
    uint32_t index;

    HEFT_ASSERT(!heft_worker_self());
    (void)pthread_mutex_lock(&transport->tasks.lock);
    transport->closing = 1;
    (void)pthread_mutex_unlock(&transport->tasks.lock);
    for (index = 0; index < transport->lane_count; index++)
        heft_object_lane_kick(&transport->lanes[index]);
    (void)pthread_mutex_lock(&transport->tasks.lock);
    while (transport->busy_jobs > 0)
        heft_pool_wait(transport->host.pool, &transport->tasks.quiet, &transport->tasks.lock);
    (void)pthread_mutex_unlock(&transport->tasks.lock);
    free_transport(transport);
}

/* ---- regions and routes ---- */

static int make_object(struct heft_transport *transport, const char *url, struct heft_object **object_out,
                       struct heft_error *error)
{
    int rc = heft_object_curl_init(error);

    if (rc)
        return rc;
    (void)pthread_mutex_lock(&transport->stores_lock);
    rc = heft_object_stores_use(&transport->stores, heft_object_service_of(url), error);
    if (!rc)
        rc = heft_object_make(url, &transport->stores, object_out, error);
    (void)pthread_mutex_unlock(&transport->stores_lock);
    return rc;
}

static int object_query(struct heft_transport *transport, struct heft_query *query, struct heft_error *error)
{
    struct heft_object *object;
    int rc = make_object(transport, query->path, &object, error);

    if (rc)
        return rc;
    rc = heft_object_head(&transport->limits, object, error);
    if (!rc) {
        query->exists = 1;
        query->length_bytes = object->size_bytes;
        query->modified_ns = object->modified_s * (int64_t)HEFT_NS_PER_S;
        (void)snprintf(query->version, sizeof(query->version), "%s", object->version);
    }
    heft_object_free(object);
    return rc;
}

/* The place of the URL's authority in the list of servers. */
static uint32_t server_of(struct heft_transport *transport, const char *url)
{
    const char *authority = strstr(url, "://");
    size_t length = authority ? (size_t)(authority + 3 - url) + strcspn(authority + 3, "/?#") : strlen(url);
    uint64_t digest = heft_hash64(url, length, 0);
    uint32_t index;

    (void)pthread_mutex_lock(&transport->tasks.lock);
    for (index = 0; index < transport->server_count; index++)
        if (transport->servers[index].digest == digest)
            break;
    if (index == transport->server_count && index < HEFT_OBJECT_SERVERS)
        transport->servers[transport->server_count++].digest = digest;
    (void)pthread_mutex_unlock(&transport->tasks.lock);
    return index < HEFT_OBJECT_SERVERS ? index : HEFT_OBJECT_SERVERS - 1;
}

static int object_region_add(struct heft_transport *transport, struct heft_transport_region *region,
                             struct heft_error *error)
{
    struct heft_object *object;
    int rc;

    region->slot[transport->host.index] = NULL;
    if (region->space != HEFT_SPACE_OBJECT)
        return HEFT_OK;
    rc = make_object(transport, region->url, &object, error);
    if (rc)
        return rc;
    if (region->length_bytes && region->version && strlen(region->version) < sizeof(object->version)) {
        object->size_bytes = region->length_bytes;
        memcpy(object->version, region->version, strlen(region->version) + 1);
    } else {
        rc = heft_object_head(&transport->limits, object, error);
        if (!rc && region->length_bytes > object->size_bytes)
            rc = heft_error_set(error, HEFT_ERR_TRUNCATED,
                                "%s has %" PRIu64 " bytes, %" PRIu64 " were to be registered", object->shown,
                                object->size_bytes, region->length_bytes);
        if (!rc && region->version && strcmp(region->version, object->version) != 0)
            rc = heft_error_set(error, HEFT_ERR_CHANGED, "%s is version %s, not %s", object->shown,
                                object->version[0] ? object->version : "(none)", region->version);
        if (rc) {
            heft_object_free(object);
            return rc;
        }
        if (!region->length_bytes)
            region->length_bytes = object->size_bytes;
    }
    object->server = server_of(transport, region->url);
    region->slot[transport->host.index] = object;
    return HEFT_OK;
}

static void object_region_remove(struct heft_transport *transport, struct heft_transport_region *region)
{
    if (region->space != HEFT_SPACE_OBJECT)
        return;
    heft_object_free(region->slot[transport->host.index]);
    region->slot[transport->host.index] = NULL;
}

static void object_score(struct heft_transport *transport, struct heft_endpoint *endpoint,
                         const struct heft_route_query *query, struct heft_route_score *score_out)
{
    (void)endpoint;
    score_out->score = 0;
    if (query->peer)
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "only objects and memory of one agent");
    else if (query->local != HEFT_SPACE_HOST || query->remote != HEFT_SPACE_OBJECT)
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "only from an object to host memory");
    else if (query->op != HEFT_OP_READ)
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "objects are read, not written");
    else if (query->remote_region && !query->remote_region->slot[transport->host.index])
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "this object could not be taken");
    else {
        score_out->score = SCORE;
        (void)snprintf(score_out->reason, sizeof(score_out->reason),
                       "HTTP ranges of %" PRIu64 " MiB, up to %u connections", HEFT_OBJECT_PART_BYTES >> 20,
                       transport->limits.connections);
    }
}

/* ---- handing out parts ---- */

static struct heft_object_lane *least_loaded(struct heft_transport *transport)
{
    struct heft_object_lane *best = &transport->lanes[0];
    uint32_t index;

    for (index = 1; index < transport->lane_count; index++)
        if (transport->lanes[index].load < best->load)
            best = &transport->lanes[index];
    return best;
}

/*
 * The task whose next part is to fly: the first of those whose server has the fewest, and not as many as it
 * may have. In the order of posts a slow server would come to hold all connections, and a fast one beside it
 * none.
 */
static struct heft_object_task *next_task(struct heft_transport *transport)
{
    struct heft_object_task *best = NULL;
    struct heft_task *queued;
    uint32_t fewest = transport->limit;

    for (queued = transport->tasks.queue; queued && fewest > 0; queued = queued->queue_next) {
        struct heft_object_task *task = (struct heft_object_task *)queued;

        if (transport->servers[task->server].active >= fewest)
            continue;
        fewest = transport->servers[task->server].active;
        best = task;
        if (transport->server_count == 1)
            break;
    }
    return best;
}

/* Gives lanes what may fly now; bit i of the result: lane i got something. Under the lock. */
static uint32_t dispatch(struct heft_transport *transport)
{
    struct heft_object_flight *flight;
    struct heft_object_task *task;
    uint32_t lanes = 0;

    while ((flight = transport->free_flights) != NULL && (task = next_task(transport)) != NULL) {
        struct heft_object_lane *lane = least_loaded(transport);

        if (transport->active == 0 || !transport->window_start_ns) {
            transport->window_start_ns = heft_now_ns(); /* idle time is nobody's rate */
            transport->window_bytes = transport->window_parts = 0;
        }
        HEFT_ASSERT(heft_object_parts_cut(&task->parts, task->part_bytes, &flight->part));
        transport->free_flights = flight->next;
        flight->task = task;
        flight->lane = lane;
        flight->next = lane->incoming;
        lane->incoming = flight;
        lane->load++;
        transport->active++;
        transport->servers[task->server].active++;
        task->common.outstanding++;
        task->common.cut = !heft_object_parts_left(&task->parts);
        if (task->common.cut)
            heft_task_leave_queue(&task->common);
        lanes |= 1u << (uint32_t)(lane - transport->lanes);
    }
    return lanes;
}

static void kick(struct heft_transport *transport, uint32_t lanes)
{
    uint32_t index;

    for (index = 0; index < transport->lane_count; index++)
        if (lanes >> index & 1)
            heft_object_lane_kick(&transport->lanes[index]);
}

/* One more part arrived: when a window is full, does the limit pay? Under the lock. */
static void adapt(struct heft_transport *transport, uint64_t bytes)
{
    uint64_t now = heft_now_ns(), took, rate;
    uint32_t most = transport->limits.connections;

    transport->window_bytes += bytes;
    transport->window_parts++;
    if (transport->window_parts < transport->limit || now <= transport->window_start_ns)
        return;
    took = now - transport->window_start_ns;
    rate = (uint64_t)((double)transport->window_bytes * (double)HEFT_NS_PER_S / (double)took);
    if (transport->tasks.queue && now >= transport->calm_until_ns && transport->limit < most &&
        rate > transport->last_rate + transport->last_rate / 20) {
        transport->limit = transport->limit > most / 2 ? most : transport->limit * 2;
        transport->last_rate = rate;
    } else if (rate < transport->last_rate / 10 * 7 && transport->limit > HEFT_OBJECT_FIRST_CONNECTIONS) {
        transport->limit -= transport->limit / 4; /* more was worse */
        transport->last_rate = rate;
    }
    transport->window_start_ns = now;
    transport->window_bytes = transport->window_parts = 0;
}

void heft_object_slow_down(struct heft_transport *transport)
{
    uint64_t now = heft_now_ns();

    (void)pthread_mutex_lock(&transport->tasks.lock);
    if (now + CALM_NS > transport->calm_until_ns + SLOW_DOWN_NS) {
        transport->limit = transport->limit > 1 ? transport->limit / 2 : 1;
        heft_log(HEFT_LOG_INFO, "the object store asks for less: %u ranges at once from now on",
                 transport->limit);
    }
    transport->calm_until_ns = now + CALM_NS;
    transport->last_rate = 0;
    (void)pthread_mutex_unlock(&transport->tasks.lock);
}

/* ---- flights ---- */

void heft_object_flight_end(struct heft_object_flight *flight, int status, const struct heft_error *error)
{
    struct heft_transport *transport = flight->lane->transport;
    struct heft_object_task *task = flight->task;
    uint32_t lanes;

    (void)pthread_mutex_lock(&transport->tasks.lock);
    task->common.landed_bytes += flight->part.landed_bytes;
    if (status) {
        if (task->common.status == 0)
            task->common.failed_move = (int64_t)heft_object_part_move(&flight->part);
        heft_task_give_up(&task->common, status, error);
    } else {
        adapt(transport, flight->part.end - flight->part.begin);
    }
    flight->lane->load--;
    transport->active--;
    transport->servers[task->server].active--;
    flight->next = transport->free_flights;
    transport->free_flights = flight;
    lanes = dispatch(transport);
    (void)pthread_mutex_unlock(&transport->tasks.lock);
    kick(transport, lanes); /* before the callback, which may take its time */
    (void)pthread_mutex_lock(&transport->tasks.lock);
    task->common.outstanding--;
    heft_task_unlock_and_report(&task->common);
}

/* ---- endpoints ---- */

static int object_connect(struct heft_transport *transport, const struct heft_transport_peer *peer,
                          struct heft_endpoint **endpoint_out, struct heft_error *error)
{
    struct heft_endpoint *endpoint;

    if (peer)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "the object transport reaches no peers");
    endpoint = calloc(1, sizeof(*endpoint));
    if (!endpoint)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an object endpoint");
    endpoint->transport = transport;
    endpoint->tasks.tasks = &transport->tasks;
    *endpoint_out = endpoint;
    return HEFT_OK;
}

static int check_moves(const struct heft_transport *transport, const struct heft_transport_op *op,
                       struct heft_error *error)
{
    size_t index;

    for (index = 0; index < op->move_count; index++) {
        const struct heft_move *move = &op->moves[index];

        if (op->kind != HEFT_OP_READ || move->local->space != HEFT_SPACE_HOST ||
            move->remote->space != HEFT_SPACE_OBJECT || !move->remote->slot[transport->host.index])
            return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                                  "move %zu: only reads from an object to host memory", index);
    }
    return HEFT_OK;
}

static int object_post(struct heft_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error)
{
    struct heft_transport *transport = endpoint->transport;
    struct heft_object_task *task;
    uint32_t lanes;
    int rc = check_moves(transport, op, error);

    if (rc)
        return rc;
    task = (struct heft_object_task *)heft_tasks_reuse(&transport->tasks);
    if (!task)
        task = calloc(1, sizeof(*task));
    if (!task)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an object operation");
    heft_task_reset(&task->common, op, &endpoint->tasks);
    task->part_bytes =
        op->total_bytes <= HEFT_OBJECT_WHOLE_BYTES ? HEFT_OBJECT_WHOLE_BYTES : HEFT_OBJECT_PART_BYTES;
    task->server =
        op->move_count > 0
            ? ((const struct heft_object *)op->moves[0].remote->slot[transport->host.index])->server
            : 0;
    if (heft_object_parts_prepare(&task->parts, op->moves, op->move_count))
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an object operation");
    task->common.cut = !rc && !heft_object_parts_left(&task->parts);
    rc = heft_task_begin(&task->common, rc, error);
    if (rc)
        return rc;
    (void)pthread_mutex_lock(&transport->tasks.lock);
    lanes = dispatch(transport);
    (void)pthread_mutex_unlock(&transport->tasks.lock);
    kick(transport, lanes);
    return HEFT_OK;
}

static void object_cancel(struct heft_endpoint *endpoint, struct heft_transport_op *op)
{
    if (heft_task_cancel(&endpoint->tasks, op))
        kick(endpoint->transport, UINT32_MAX);
}

static void object_fail(struct heft_endpoint *endpoint, int status, const struct heft_error *error)
{
    heft_task_owner_fail(&endpoint->tasks, status, error);
    kick(endpoint->transport, UINT32_MAX);
}

/* Not on a worker. What is waited for are lanes that let go of connections. */
static void object_disconnect(struct heft_endpoint *endpoint)
{
    HEFT_ASSERT(!heft_worker_self());
    object_fail(endpoint, HEFT_ERR_CANCELED, NULL);
    heft_task_owner_wait(&endpoint->tasks, endpoint->transport->host.pool);
    free(endpoint);
}

const struct heft_transport_ops heft_transport_object = {
    .abi = HEFT_TRANSPORT_ABI,
    .size = sizeof(struct heft_transport_ops),
    .name = "object",
    .open = object_open,
    .close = object_close,
    .region_add = object_region_add,
    .region_remove = object_region_remove,
    .score = object_score,
    .connect = object_connect,
    .disconnect = object_disconnect,
    .fail = object_fail,
    .post = object_post,
    .cancel = object_cancel,
    .query = object_query,
};
