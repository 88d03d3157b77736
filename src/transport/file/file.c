/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport's table, and tasks from post to done.
 *
 * The tasks' lock guards pieces, slots and jobs too. A task's pieces are read by lanes (lane.c, piece.c).
 */
#include "transport/file/file.h"
#include "base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MIN_STAGING_BYTES ((uint64_t)4 << 20)
#define MIN_SLOTS 3u
#define SCORE 600
#define HUGE_BYTES ((uint64_t)2 << 20)
/* A task's order of moves is kept for the next task up to this many. */
#define KEPT_ORDER 65536u

/* ---- open and close ---- */

/* Slots and edges in one mapping, touched only as far as it is used. */
static int make_staging(struct heft_transport *transport, struct heft_error *error)
{
    uint64_t budget =
        transport->host.max_host_bytes ? transport->host.max_host_bytes : HEFT_FILE_STAGING_BYTES;
    uint64_t edges = HEFT_FILE_PIECES * 2 * HEFT_FILE_BLOCK_BYTES;
    uint64_t piece = transport->uring ? HEFT_FILE_PIECE_BYTES : HEFT_FILE_SYNC_PIECE_BYTES;

    if (budget < MIN_STAGING_BYTES)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "the file transport needs %" PRIu64
                              " bytes of staging memory, max_host_bytes allows %" PRIu64,
                              MIN_STAGING_BYTES, budget);
    if (budget > HEFT_FILE_STAGING_BYTES)
        budget = HEFT_FILE_STAGING_BYTES;
    while (piece > ((uint64_t)64 << 10) && (budget - edges) / piece < 12)
        piece /= 2;
    transport->piece_bytes = piece;
    transport->slot_bytes = piece + piece / 16 + 2 * HEFT_FILE_BLOCK_BYTES;
    transport->slot_count = (uint32_t)((budget - edges) / transport->slot_bytes);
    HEFT_ASSERT(transport->slot_count >= MIN_SLOTS);
    transport->staging_bytes = transport->slot_count * transport->slot_bytes + edges;
    transport->staging = mmap(NULL, transport->staging_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (transport->staging == MAP_FAILED)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for %" PRIu64 " bytes of staging",
                              transport->staging_bytes);
    (void)madvise(transport->staging, transport->staging_bytes, MADV_HUGEPAGE);
    (void)madvise(transport->staging, transport->staging_bytes, MADV_DONTFORK);
    return HEFT_OK;
}

static void fill_lists(struct heft_transport *transport)
{
    uint8_t *edges = transport->staging + transport->slot_count * transport->slot_bytes;
    uint32_t index;

    for (index = 0; index < HEFT_FILE_PIECES; index++) {
        struct heft_file_piece *piece = &transport->pieces[index];

        piece->edges = edges + index * 2 * HEFT_FILE_BLOCK_BYTES;
        piece->next = transport->free_pieces;
        transport->free_pieces = piece;
    }
    for (index = transport->slot_count; index-- > 0;)
        transport->free_slots[transport->free_slot_count++] =
            transport->staging + index * transport->slot_bytes;
    for (index = 0; index < transport->lane_count; index++)
        heft_file_lane_init(transport, index);
}

static void trim(struct heft_task *common)
{
    struct heft_file_task *task = (struct heft_file_task *)common;

    if (task->order_capacity > KEPT_ORDER) {
        free(task->order);
        task->order = NULL;
        task->order_capacity = 0;
    }
}

static void free_transport(struct heft_transport *transport)
{
    struct heft_file_task *task;

    if (transport->staging && transport->staging != MAP_FAILED)
        (void)munmap(transport->staging, transport->staging_bytes);
    free(transport->pieces);
    free(transport->free_slots);
    free(transport->lanes);
    free(transport->tickets);
    while ((task = (struct heft_file_task *)heft_tasks_reuse(&transport->tasks)) != NULL) {
        free(task->order);
        free(task);
    }
    heft_tasks_destroy(&transport->tasks);
    free(transport);
}

static int file_open(const struct heft_transport_host *host, struct heft_transport **transport_out,
                     struct heft_error *error)
{
    struct heft_transport *transport = calloc(1, sizeof(*transport));
    int rc = HEFT_ERR_NO_MEMORY;

    if (!transport)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for the file transport");
    transport->host = *host;
    transport->mode = heft_file_forced_mode();
    heft_tasks_init(&transport->tasks, trim);
    heft_file_probe_uring(transport);
    rc = make_staging(transport, error);
    if (rc)
        goto fail;
    transport->lane_count = heft_pool_workers(host->pool);
    transport->lane_limit = HEFT_FILE_PIECES / 2 / transport->lane_count;
    if (transport->lane_limit < 8)
        transport->lane_limit = 8;
    transport->pieces = calloc(HEFT_FILE_PIECES, sizeof(*transport->pieces));
    transport->free_slots = calloc(transport->slot_count, sizeof(*transport->free_slots));
    transport->lanes = calloc(transport->lane_count, sizeof(*transport->lanes));
    transport->tickets = calloc(transport->lane_count, sizeof(*transport->tickets));
    if (!transport->pieces || !transport->free_slots || !transport->lanes || !transport->tickets) {
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for the file transport");
        goto fail;
    }
    fill_lists(transport);
    *transport_out = transport;
    return HEFT_OK;

fail:
    free_transport(transport);
    return rc;
}

static void wait_for_jobs(struct heft_transport *transport)
{
    (void)pthread_mutex_lock(&transport->tasks.lock);
    while (transport->busy_jobs > 0)
        heft_pool_wait(transport->host.pool, &transport->tasks.quiet, &transport->tasks.lock);
    (void)pthread_mutex_unlock(&transport->tasks.lock);
}

/* After every endpoint is disconnected; not on a worker. The jobs waited for are short. */
static void file_close(struct heft_transport *transport)
{
    uint32_t index;

    HEFT_ASSERT(!heft_worker_self());
    wait_for_jobs(transport);
    for (index = 0; index < transport->lane_count; index++)
        heft_file_lane_close(&transport->lanes[index]);
    wait_for_jobs(transport);
    free_transport(transport);
}

/* ---- regions and routes ---- */

static int file_region_add(struct heft_transport *transport, struct heft_transport_region *region,
                           struct heft_error *error)
{
    struct heft_file_source *source;
    int rc;

    region->slot[transport->host.index] = NULL;
    if (region->space != HEFT_SPACE_FILE)
        return HEFT_OK;
    rc = heft_file_source_create(region, &source, error);
    if (rc)
        return rc;
    region->slot[transport->host.index] = source;
    return HEFT_OK;
}

static void file_region_remove(struct heft_transport *transport, struct heft_transport_region *region)
{
    if (region->space != HEFT_SPACE_FILE)
        return;
    heft_file_source_destroy(region->slot[transport->host.index]);
    region->slot[transport->host.index] = NULL;
}

static void file_score(struct heft_transport *transport, struct heft_endpoint *endpoint,
                       const struct heft_route_query *query, struct heft_route_score *score_out)
{
    int pair = (query->local == HEFT_SPACE_HOST && query->remote == HEFT_SPACE_FILE) ||
               (query->local == HEFT_SPACE_FILE && query->remote == HEFT_SPACE_HOST);
    enum heft_space to = query->op == HEFT_OP_READ ? query->local : query->remote;

    (void)endpoint;
    score_out->score = 0;
    if (query->peer)
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "only files and memory of one agent");
    else if (!pair)
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "only between a file and host memory");
    else if (query->remote == HEFT_SPACE_FILE && query->remote_region &&
             !query->remote_region->slot[transport->host.index])
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "this file could not be taken");
    else {
        score_out->score = SCORE;
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "%s",
                       to == HEFT_SPACE_FILE ? "pwritev" : "");
        if (to != HEFT_SPACE_FILE)
            (void)snprintf(score_out->reason, sizeof(score_out->reason), "%s, %s", transport->uring_reason,
                           transport->mode & HEFT_FILE_NO_DIRECT ? "buffered" : "O_DIRECT where cold");
    }
}

/* ---- pieces ---- */

int heft_file_take_slot(struct heft_transport *transport, struct heft_file_piece *piece)
{
    int taken = 0;

    (void)pthread_mutex_lock(&transport->tasks.lock);
    if (transport->free_slot_count > 0) {
        piece->slot = transport->free_slots[--transport->free_slot_count];
        taken = 1;
    } else {
        piece->next = transport->stalled;
        transport->stalled = piece;
    }
    (void)pthread_mutex_unlock(&transport->tasks.lock);
    return taken;
}

struct heft_file_piece *heft_file_take_piece(struct heft_transport *transport)
{
    struct heft_file_piece *piece = NULL;
    struct heft_file_task *task;

    (void)pthread_mutex_lock(&transport->tasks.lock);
    task = (struct heft_file_task *)transport->tasks.queue;
    if (transport->stalled) {
        piece = transport->stalled;
        transport->stalled = piece->next;
    } else if (task && transport->free_pieces) {
        piece = transport->free_pieces;
        transport->free_pieces = piece->next;
        HEFT_ASSERT(heft_file_task_cut(task, transport->piece_bytes, piece));
        task->common.outstanding++;
        if (task->common.cut)
            heft_task_leave_queue(&task->common);
    }
    (void)pthread_mutex_unlock(&transport->tasks.lock);
    return piece;
}

void heft_file_piece_end(struct heft_transport *transport, struct heft_file_piece *piece, uint64_t landed,
                         int status, const struct heft_error *error)
{
    struct heft_file_task *task = piece->task;

    if (landed)
        (void)__atomic_fetch_add(&task->common.op->done_bytes, landed, __ATOMIC_RELAXED);
    (void)pthread_mutex_lock(&transport->tasks.lock);
    task->common.landed_bytes += landed;
    if (status) {
        if (task->common.status == 0)
            task->common.failed_move = (int64_t)heft_file_move_index(task, piece->first.order);
        heft_task_give_up(&task->common, status, error);
    }
    if (piece->slot) {
        transport->free_slots[transport->free_slot_count++] = piece->slot;
        piece->slot = NULL;
    }
    piece->next = transport->free_pieces;
    transport->free_pieces = piece;
    task->common.outstanding--;
    heft_task_unlock_and_report(&task->common);
}

/* ---- endpoints ---- */

static int file_connect(struct heft_transport *transport, const struct heft_transport_peer *peer,
                        struct heft_endpoint **endpoint_out, struct heft_error *error)
{
    struct heft_endpoint *endpoint;

    if (peer)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "the file transport reaches no peers");
    endpoint = calloc(1, sizeof(*endpoint));
    if (!endpoint)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a file endpoint");
    endpoint->transport = transport;
    endpoint->tasks.tasks = &transport->tasks;
    *endpoint_out = endpoint;
    return HEFT_OK;
}

/* The stalled pieces of ended tasks end now: who holds their slots may take long. */
static void end_stalled(struct heft_transport *transport)
{
    struct heft_file_piece **at, *piece;

    for (;;) {
        (void)pthread_mutex_lock(&transport->tasks.lock);
        for (at = &transport->stalled; *at; at = &(*at)->next)
            if ((*at)->task->common.status)
                break;
        piece = *at;
        if (piece)
            *at = piece->next;
        (void)pthread_mutex_unlock(&transport->tasks.lock);
        if (!piece)
            return;
        heft_file_piece_end(transport, piece, 0, HEFT_ERR_CANCELED, NULL);
    }
}

static int file_post(struct heft_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error)
{
    struct heft_transport *transport = endpoint->transport;
    struct heft_file_task *task = (struct heft_file_task *)heft_tasks_reuse(&transport->tasks);
    uint64_t pieces;
    int rc;

    if (!task)
        task = calloc(1, sizeof(*task));
    if (!task)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a file operation");
    heft_task_reset(&task->common, op, &endpoint->tasks);
    rc = heft_file_task_prepare(task, op, transport->host.index, error);
    pieces = task->common.wanted_bytes / transport->piece_bytes + 1;
    rc = heft_task_begin(&task->common, rc, error);
    if (!rc)
        heft_file_wake(transport, pieces);
    return rc;
}

/* What flies for tasks that ended comes down soon. */
static void end_parts(struct heft_transport *transport)
{
    end_stalled(transport);
    heft_file_cancel_flying(transport);
}

static void file_cancel(struct heft_endpoint *endpoint, struct heft_transport_op *op)
{
    if (heft_task_cancel(&endpoint->tasks, op))
        end_parts(endpoint->transport);
}

static void file_fail(struct heft_endpoint *endpoint, int status, const struct heft_error *error)
{
    heft_task_owner_fail(&endpoint->tasks, status, error);
    end_parts(endpoint->transport);
}

/* Not on a worker. What is waited for are reads that the kernel has and was asked to cancel. */
static void file_disconnect(struct heft_endpoint *endpoint)
{
    HEFT_ASSERT(!heft_worker_self());
    file_fail(endpoint, HEFT_ERR_CANCELED, NULL);
    heft_task_owner_wait(&endpoint->tasks, endpoint->transport->host.pool);
    free(endpoint);
}

const struct heft_transport_ops heft_transport_file = {
    .abi = HEFT_TRANSPORT_ABI,
    .size = sizeof(struct heft_transport_ops),
    .name = "file",
    .open = file_open,
    .close = file_close,
    .region_add = file_region_add,
    .region_remove = file_region_remove,
    .score = file_score,
    .connect = file_connect,
    .disconnect = file_disconnect,
    .fail = file_fail,
    .post = file_post,
    .cancel = file_cancel,
    .move = heft_file_move,
};
