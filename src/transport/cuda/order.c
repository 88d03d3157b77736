/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that wait for work of the caller on a GPU: an event, or what a stream holds when they are
 * posted (an event of ours behind it stands for that). Two ways. Handed to the GPU at once, on a stream of
 * the flight's own which waits for the event there: a copy begins without anybody on the CPU. Or held in its
 * queue until the watcher has seen the event: what is staged through host memory, what needs several flights,
 * and what finds no ordered flight free. So however many operations wait, others get their turn, also one
 * that the awaited work itself waits for.
 */
#include "transport/cuda/cuda.h"

#include "base/error.h"

#include <stdlib.h>

void cuda_after_drop(const struct heft_cu *cu, struct cuda_after *after)
{
    heft_cu_context context = NULL;

    if (after->context && !cu->context_push(after->context)) {
        (void)cu->event_destroy(after->event);
        (void)cu->context_pop(&context);
    }
    *after = (struct cuda_after){0};
}

/* An event behind what is on the caller's stream now. Inside enter of some device, for the default stream of
 * a thread that has none. */
static int record_stream(const struct heft_cu *cu, void *stream, struct cuda_after *after_out,
                         struct heft_error *error)
{
    struct cuda_after after = {0};
    heft_cu_context popped = NULL;
    heft_cu_result result = cu->stream_context(stream, &after.context);

    if (!result)
        result = cu->context_push(after.context);
    if (result)
        return heft_cuda_error(error, result, "finding the device of the stream to wait for");
    result = cu->event_create(&after.event, HEFT_CU_EVENT_DISABLE_TIMING);
    if (!result) {
        result = cu->event_record(after.event, stream);
        if (result)
            (void)cu->event_destroy(after.event);
    }
    (void)cu->context_pop(&popped);
    if (result)
        return heft_cuda_error(error, result,
                               "putting an event on the stream to wait for (is it being captured?)");
    *after_out = after;
    return HEFT_OK;
}

static int take_after(const struct heft_cu *cu, const struct heft_transport_op *op, int device,
                      struct cuda_after *after_out, struct heft_error *error)
{
    heft_cu_context context = NULL;
    int rc;

    if (op->after_event && (op->flags & HEFT_XFER_AFTER_STREAM))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "a transfer waits for an event or for a stream, not for both");
    if (op->after_event) {
        *after_out = (struct cuda_after){.event = op->after_event};
        return HEFT_OK;
    }
    if (cu->context_current(&context) == HEFT_CU_SUCCESS && context)
        return record_stream(cu, op->after_stream, after_out, error);
    rc = heft_cuda_enter(device, error);
    if (rc)
        return rc;
    rc = record_stream(cu, op->after_stream, after_out, error);
    heft_cuda_leave();
    return rc;
}

heft_cu_result cuda_order_wait(const struct cuda_flight *flight, heft_cu_stream stream)
{
    return flight->after.event ? flight->transport->cu->stream_wait_event(stream, flight->after.event, 0)
                               : HEFT_CU_SUCCESS;
}

/* ---- handed to the GPU ---- */

static int make_stream(struct cuda_flight *flight, int device)
{
    heft_cu_result result = HEFT_CU_SUCCESS;

    if (flight->own[device])
        return 1;
    if (heft_cuda_enter(device, NULL))
        return 0;
    if (!cuda_lane_make(flight->transport, device, NULL))
        result = flight->transport->cu->stream_create(&flight->own[device], HEFT_CU_STREAM_NON_BLOCKING);
    heft_cuda_leave();
    return !result && flight->own[device];
}

/* 1: the operation was taken, or refused for good. 0: it has to be held. */
static int post_flight(struct cuda_endpoint *endpoint, struct heft_transport_op *op, int device,
                       struct cuda_after *after, int *rc_out, struct heft_error *error)
{
    struct cuda_flight *flight = cuda_flight_take(endpoint->transport, CUDA_ORDERED);

    if (!flight)
        return 0;
    flight->after = *after;
    if (make_stream(flight, device)) {
        if (cuda_list_post_on(flight, endpoint, op, rc_out, error))
            return 1;
        if (op->total_bytes <= CUDA_DIRECT_BYTES && op->move_count <= CUDA_DIRECT_CUTS) {
            flight->endpoint = endpoint;
            *rc_out = heft_opqueue_post_claimed(&endpoint->direct.queue, op, &flight->claim, error);
            flight->claim.cuts = (uint32_t)op->move_count;
            if (*rc_out)
                cuda_flight_drop(flight);
            else
                cuda_flight_fly(flight);
            return 1;
        }
    }
    flight->after = (struct cuda_after){0};
    cuda_flight_drop(flight);
    return 0;
}

/* ---- held ---- */

void cuda_held_forget(struct cuda_endpoint *endpoint, const struct heft_transport_op *op)
{
    struct cuda_transport *transport = endpoint->transport;
    struct cuda_held **at, *held, *gone = NULL;

    (void)pthread_mutex_lock(&transport->lock);
    for (at = &transport->held; (held = *at) != NULL;) {
        if (held->endpoint != endpoint || (op && held->op != op)) {
            at = &held->next;
            continue;
        }
        __atomic_store_n(at, held->next, __ATOMIC_RELEASE);
        held->next = gone;
        gone = held;
    }
    (void)pthread_mutex_unlock(&transport->lock);
    while ((held = gone) != NULL) {
        gone = held->next;
        cuda_after_drop(transport->cu, &held->after);
        free(held);
    }
}

static int is_over(const struct cuda_transport *transport, const struct cuda_held *held)
{
    heft_cu_result result;

    if (heft_cuda_enter(held->device, NULL))
        return 1; /* the copy will say what is wrong */
    result = transport->cu->event_query(held->after.event);
    heft_cuda_leave();
    return result != HEFT_CU_NOT_READY;
}

void cuda_held_look(struct cuda_transport *transport)
{
    struct cuda_held **at, *held;

    (void)pthread_mutex_lock(&transport->lock);
    for (at = &transport->held; (held = *at) != NULL;) {
        if (!is_over(transport, held)) {
            at = &held->next;
            continue;
        }
        __atomic_store_n(at, held->next, __ATOMIC_RELEASE);
        __atomic_store_n(&held->op->held, 0, __ATOMIC_RELEASE);
        cuda_wake(held->endpoint, held->way, held->endpoint->runner_count);
        cuda_after_drop(transport->cu, &held->after);
        free(held);
    }
    (void)pthread_mutex_unlock(&transport->lock);
}

/* Takes over `after`. Listed before it is posted: once posted, it may be over at any moment. */
static int hold(struct cuda_endpoint *endpoint, struct cuda_way *way, struct heft_transport_op *op,
                int device, struct cuda_after *after, struct heft_error *error)
{
    struct cuda_transport *transport = endpoint->transport;
    struct cuda_held *held = malloc(sizeof(*held));
    int rc;

    if (!held) {
        cuda_after_drop(transport->cu, after);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a transfer that waits");
    }
    (void)__atomic_add_fetch(&endpoint->refs, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&op->held, 1, __ATOMIC_RELEASE);
    (void)pthread_mutex_lock(&transport->lock);
    *held = (struct cuda_held){.next = transport->held,
                               .endpoint = endpoint,
                               .way = way,
                               .op = op,
                               .after = *after,
                               .device = device};
    __atomic_store_n(&transport->held, held, __ATOMIC_RELEASE);
    (void)pthread_cond_signal(&transport->changed);
    (void)pthread_mutex_unlock(&transport->lock);
    rc = heft_opqueue_post(&way->queue, op, error);
    if (rc)
        cuda_held_forget(endpoint, op);
    else
        cuda_wake(endpoint, way, endpoint->runner_count);
    cuda_endpoint_drop(endpoint);
    return rc;
}

int cuda_order_post(struct cuda_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error)
{
    const struct heft_cu *cu = endpoint->transport->cu;
    struct cuda_after after = {0};
    struct cuda_way *way;
    int rc = cuda_op_way(endpoint, op, &way, error), device = 0;

    if (!rc && !cuda_op_device(endpoint, op, &device))
        rc = heft_error_set(error, HEFT_ERR_UNSUPPORTED, "no GPU moves these bytes");
    if (!rc)
        rc = take_after(cu, op, device, &after, error);
    if (rc)
        return rc;
    if (!way->staged && post_flight(endpoint, op, device, &after, &rc, error))
        return rc;
    return hold(endpoint, way, op, device, &after, error);
}
