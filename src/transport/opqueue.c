/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/opqueue.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* In op->priv. All fields under the queue's lock. */
struct op_state {
    union {
        struct heft_cursor cursor; /* while queued */
        struct heft_error *error;  /* after the first failure; NULL when there was no memory for it */
    } u;
    uint32_t claims;
    int16_t status;
    uint8_t queued;
    uint8_t has_error;
};
_Static_assert(sizeof(struct op_state) <= sizeof(((struct heft_transport_op *)0)->priv), "fits in priv");

/* Which queues' done callbacks this thread is inside of: they must not be waited for. */
struct frame {
    const struct heft_opqueue *queue;
    struct frame *outer;
};
static _Thread_local struct frame *frames;

static struct op_state *state_of(struct heft_transport_op *op)
{
    return (struct op_state *)(void *)op->priv;
}

void heft_opqueue_init(struct heft_opqueue *queue)
{
    memset(queue, 0, sizeof(*queue));
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, NULL);
}

void heft_opqueue_free(struct heft_opqueue *queue)
{
    HEFT_ASSERT(queue->active == 0);
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
}

static void finish_locked(struct heft_opqueue *queue, struct heft_transport_op *op)
{
    op->next = NULL;
    if (queue->done_tail != NULL)
        queue->done_tail->next = op;
    else
        queue->done_head = op;
    queue->done_tail = op;
}

static void note_failure_locked(struct heft_transport_op *op, int status, const struct heft_error *error,
                                int64_t failed_move)
{
    struct op_state *state = state_of(op);

    if (status == 0 || state->status != 0)
        return;
    state->status = (int16_t)status;
    state->has_error = 1;
    state->u.error = NULL;
    if (failed_move >= 0)
        op->failed_move = failed_move;
    if (error != NULL && error->code != 0) {
        state->u.error = malloc(sizeof(*error));
        if (state->u.error != NULL)
            *state->u.error = *error;
    }
}

/* 1 when it was there. */
static int unlink_locked(struct heft_opqueue *queue, struct heft_transport_op *op)
{
    struct heft_transport_op *at = queue->head, *before = NULL;

    for (; at != NULL && at != op; at = at->next)
        before = at;
    if (at == NULL)
        return 0;
    if (before != NULL)
        before->next = op->next;
    else
        queue->head = op->next;
    if (queue->tail == op)
        queue->tail = before;
    op->next = NULL;
    state_of(op)->queued = 0;
    return 1;
}

static int begin_locked(struct heft_opqueue *queue, struct heft_transport_op *op, struct heft_error *error)
{
    if (queue->failed != 0) {
        if (error != NULL)
            *error = queue->failed_error;
        return queue->failed;
    }
    memset(op->priv, 0, sizeof(op->priv));
    op->next = NULL;
    op->failed_move = -1;
    __atomic_store_n(&op->done_bytes, 0, __ATOMIC_RELAXED);
    queue->active++;
    return 0;
}

int heft_opqueue_post(struct heft_opqueue *queue, struct heft_transport_op *op, struct heft_error *error)
{
    int rc;

    pthread_mutex_lock(&queue->lock);
    rc = begin_locked(queue, op, error);
    if (rc == 0 && op->total_bytes == 0) {
        finish_locked(queue, op);
    } else if (rc == 0) {
        state_of(op)->queued = 1;
        if (queue->tail != NULL)
            queue->tail->next = op;
        else
            queue->head = op;
        queue->tail = op;
    }
    pthread_mutex_unlock(&queue->lock);
    return rc;
}

struct heft_transport_op *heft_opqueue_next_locked(const struct heft_opqueue *queue)
{
    struct heft_transport_op *op = queue->holds == 0 ? queue->head : NULL;

    while (op != NULL && __atomic_load_n(&op->held, __ATOMIC_ACQUIRE))
        op = op->next;
    return op;
}

void heft_opqueue_hold(struct heft_opqueue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->holds++;
    pthread_mutex_unlock(&queue->lock);
}

int heft_opqueue_release(struct heft_opqueue *queue)
{
    int free_now;

    pthread_mutex_lock(&queue->lock);
    HEFT_ASSERT(queue->holds > 0);
    free_now = --queue->holds == 0;
    pthread_mutex_unlock(&queue->lock);
    return free_now;
}

int heft_opqueue_claim(struct heft_opqueue *queue, uint64_t max_bytes, uint32_t max_cuts,
                       struct heft_claim *claim_out)
{
    struct heft_claim claim = {0};
    struct op_state *state;
    struct heft_cursor ahead;
    struct heft_cut cut;

    pthread_mutex_lock(&queue->lock);
    while ((claim.op = heft_opqueue_next_locked(queue)) != NULL) {
        state = state_of(claim.op);
        claim.start = state->u.cursor;
        while (claim.bytes < max_bytes && claim.cuts < max_cuts) {
            uint64_t bytes = heft_cursor_cut(&state->u.cursor, claim.op->moves, claim.op->move_count,
                                             max_bytes - claim.bytes, 1, &cut);

            if (bytes == 0)
                break;
            claim.bytes += bytes;
            claim.cuts++;
            claim.strided |= cut.count > 1;
        }
        ahead = state->u.cursor;
        if (heft_cursor_cut(&ahead, claim.op->moves, claim.op->move_count, 1, 0, &cut) == 0)
            (void)unlink_locked(queue, claim.op);
        if (claim.bytes > 0) {
            state->claims++;
            break;
        }
        /* total_bytes promised more than the moves hold: the end sees the difference */
        if (state->claims == 0)
            finish_locked(queue, claim.op);
    }
    pthread_mutex_unlock(&queue->lock);
    if (claim.bytes == 0)
        return 0;
    *claim_out = claim;
    return 1;
}

int heft_opqueue_post_claimed(struct heft_opqueue *queue, struct heft_transport_op *op,
                              struct heft_claim *claim_out, struct heft_error *error)
{
    int rc;

    pthread_mutex_lock(&queue->lock);
    rc = begin_locked(queue, op, error);
    if (rc == 0) {
        state_of(op)->claims = 1;
        memset(claim_out, 0, sizeof(*claim_out));
        claim_out->op = op;
        claim_out->bytes = op->total_bytes;
    }
    pthread_mutex_unlock(&queue->lock);
    return rc;
}

uint64_t heft_opqueue_active(struct heft_opqueue *queue)
{
    uint64_t active;

    pthread_mutex_lock(&queue->lock);
    active = queue->active;
    pthread_mutex_unlock(&queue->lock);
    return active;
}

void heft_opqueue_end(struct heft_opqueue *queue, struct heft_transport_op *op, uint32_t slices, int status,
                      const struct heft_error *error, int64_t failed_move)
{
    struct op_state *state = state_of(op);

    pthread_mutex_lock(&queue->lock);
    HEFT_ASSERT(state->claims >= slices);
    if (status != 0 && state->queued)
        (void)unlink_locked(queue, op);
    if (status != 0 && status == queue->failed && (error == NULL || error->code == 0))
        error = &queue->failed_error;
    note_failure_locked(op, status, error, failed_move);
    state->claims -= slices;
    if (state->claims == 0 && !state->queued)
        finish_locked(queue, op);
    pthread_mutex_unlock(&queue->lock);
}

int heft_opqueue_cancel(struct heft_opqueue *queue, struct heft_transport_op *op)
{
    int found;

    pthread_mutex_lock(&queue->lock);
    found = unlink_locked(queue, op);
    if (found)
        state_of(op)->claims++;
    pthread_mutex_unlock(&queue->lock);
    return found;
}

static void flush_locked(struct heft_opqueue *queue, int status, const struct heft_error *error)
{
    struct heft_transport_op *op;

    while ((op = queue->head) != NULL) {
        (void)unlink_locked(queue, op);
        note_failure_locked(op, status, error, -1);
        if (state_of(op)->claims == 0)
            finish_locked(queue, op);
    }
}

void heft_opqueue_fail(struct heft_opqueue *queue, int status, const struct heft_error *error)
{
    pthread_mutex_lock(&queue->lock);
    if (queue->failed == 0) {
        if (error != NULL && error->code != 0)
            queue->failed_error = *error;
        else
            heft_error_set(&queue->failed_error, status, "%s", heft_error_text(status));
        __atomic_store_n(&queue->failed, status, __ATOMIC_RELEASE);
    }
    flush_locked(queue, queue->failed, &queue->failed_error);
    pthread_mutex_unlock(&queue->lock);
}

void heft_opqueue_flush(struct heft_opqueue *queue, int status, const struct heft_error *error)
{
    pthread_mutex_lock(&queue->lock);
    flush_locked(queue, status, error);
    pthread_mutex_unlock(&queue->lock);
}

static void call_done(struct heft_transport_op *op)
{
    struct op_state *state = state_of(op);
    struct heft_error *kept = state->has_error ? state->u.error : NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    int status = state->status;
    uint64_t moved = __atomic_load_n(&op->done_bytes, __ATOMIC_ACQUIRE);

    if (kept != NULL) {
        error = *kept;
        free(kept);
    } else if (status == 0 && moved != op->total_bytes) {
        status = heft_error_set(&error, HEFT_ERR_TRUNCATED,
                                "operation %llu moved %llu of %llu bytes: its list of moves does not add up",
                                (unsigned long long)op->id, (unsigned long long)moved,
                                (unsigned long long)op->total_bytes);
    } else if (status != 0) {
        heft_error_set(&error, status, "%s", heft_error_text(status));
    }
    op->done(op, status, status != 0 ? &error : NULL);
}

void heft_opqueue_drain(struct heft_opqueue *queue)
{
    struct heft_transport_op *op;
    struct frame frame = {queue, frames};

    pthread_mutex_lock(&queue->lock);
    while ((op = queue->done_head) != NULL) {
        queue->done_head = op->next;
        if (queue->done_head == NULL)
            queue->done_tail = NULL;
        op->next = NULL;
        pthread_mutex_unlock(&queue->lock);
        frames = &frame;
        call_done(op);
        frames = frame.outer;
        pthread_mutex_lock(&queue->lock);
        queue->active--;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
}

void heft_opqueue_wait_idle(struct heft_opqueue *queue, struct heft_worker_pool *pool)
{
    uint64_t own = 0;

    for (struct frame *at = frames; at != NULL; at = at->outer)
        own += at->queue == queue;
    heft_opqueue_drain(queue);
    pthread_mutex_lock(&queue->lock);
    while (queue->active > own)
        heft_pool_wait(pool, &queue->changed, &queue->lock);
    pthread_mutex_unlock(&queue->lock);
}
