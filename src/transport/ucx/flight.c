/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx/ucx.h"
#include "base/error.h"

#include <string.h>

#define OUTSTANDING_MAX 256u /* requests of one flight */

int ucx_status(ucs_status_t status)
{
    switch (status) {
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
        return HEFT_ERR_NO_MEMORY;
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
        return HEFT_ERR_UNSUPPORTED;
    default:
        return HEFT_ERR_PEER_LOST;
    }
}

void ucx_flight_fail(struct ucx_flight *flight, int status, const struct heft_error *error)
{
    if (flight->status != 0)
        return;
    flight->status = status;
    if (error != NULL)
        flight->error = *error;
}

static void fail_ucx(struct ucx_flight *flight, ucs_status_t status)
{
    struct ucx_endpoint *endpoint = flight->endpoint;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)heft_error_set(&error, ucx_status(status), "UCX with %s: %s", endpoint->name,
                         endpoint->transport->ucx->ucs_status_string(status));
    ucx_flight_fail(flight, error.code, &error);
}

/* Called by UCX while it makes progress, with the lock held. */
static void request_done(void *request, ucs_status_t status, void *context)
{
    struct ucx_flight *flight = context;

    flight->outstanding--;
    flight->endpoint->transport->in_flight--;
    if (status != UCS_OK)
        fail_ucx(flight, status);
    flight->endpoint->transport->ucx->ucp_request_free(request);
}

/* What a call of UCX returned. */
static void started(struct ucx_flight *flight, ucs_status_ptr_t answer)
{
    if (answer == NULL)
        return;
    if (UCS_PTR_IS_ERR(answer)) {
        fail_ucx(flight, UCS_PTR_STATUS(answer));
        return;
    }
    flight->outstanding++;
    flight->endpoint->transport->in_flight++;
}

/* 1 and the key, 0 while it is on its way; the flight fails when there is none. */
static int find_key(struct ucx_flight *flight, const struct heft_cut *cut, struct ucx_remote **remote_out)
{
    struct ucx_endpoint *endpoint = flight->endpoint;
    struct ucx_remote *remote = cut->move->remote->slot[endpoint->transport->host.index];
    struct heft_error error = HEFT_ERROR_INIT;

    if (remote == NULL || remote->state == UCX_KEY_FAILED) {
        int code = remote == NULL ? HEFT_ERR_STALE : remote->status;

        (void)heft_error_set(&error, code, "%s gives no UCX key of region %llu: %s", endpoint->name,
                             (unsigned long long)cut->move->remote->id, heft_error_text(code));
        flight->failed_move = (int64_t)cut->move_index;
        ucx_flight_fail(flight, code, &error);
        return 0;
    }
    if (remote->state == UCX_KEY_NONE) {
        struct ucx_message want = {.type = UCX_WANT, .id = remote->id, .value = remote->need};

        remote->state = UCX_KEY_ASKED;
        if (ucx_channel_send(&endpoint->channel, &want) != 0)
            endpoint->failure = UCS_ERR_CONNECTION_RESET;
    }
    *remote_out = remote;
    return remote->state == UCX_KEY_READY;
}

static void give(struct ucx_flight *flight)
{
    struct ucx_endpoint *endpoint = flight->endpoint;
    const struct ucx_calls *ucx = endpoint->transport->ucx;
    const struct heft_transport_op *op = flight->claim.op;
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                       UCP_OP_ATTR_FIELD_USER_DATA |
                                                       UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                                       .cb.send = request_done,
                                       .user_data = flight,
                                       .memory_type = UCS_MEMORY_TYPE_HOST};

    while (flight->left > 0 && flight->status == 0 && flight->outstanding < OUTSTANDING_MAX) {
        struct heft_cursor ahead = flight->cursor;
        struct ucx_remote *remote;
        struct heft_cut cut;
        uint64_t far;
        char *near;

        if (heft_cursor_cut(&ahead, op->moves, op->move_count, flight->left, 0, &cut) == 0) {
            flight->left = 0;
            break;
        }
        if (!find_key(flight, &cut, &remote))
            return;
        near = (char *)cut.move->local->address + cut.local_offset_bytes;
        far = remote->address + cut.remote_offset_bytes;
        flight->cursor = ahead;
        flight->left -= cut.length_bytes;
        if (op->kind == HEFT_OP_READ)
            started(flight, ucx->ucp_get_nbx(endpoint->ep, near, cut.length_bytes, far, remote->key, &param));
        else
            started(flight, ucx->ucp_put_nbx(endpoint->ep, near, cut.length_bytes, far, remote->key, &param));
    }
}

/* Bytes of a put are at the peer only once the endpoint is flushed. */
static void flush(struct ucx_flight *flight)
{
    const ucp_request_param_t param = {.op_attr_mask =
                                           UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                       .cb.send = request_done,
                                       .user_data = flight};

    flight->flushed = 1;
    started(flight, flight->endpoint->transport->ucx->ucp_ep_flush_nbx(flight->endpoint->ep, &param));
}

void ucx_flight_go(struct ucx_flight *flight)
{
    struct heft_transport_op *op = flight->claim.op;
    struct ucx_endpoint *endpoint = flight->endpoint;

    if (op == NULL)
        return;
    if (__atomic_load_n(&op->cancel_wanted, __ATOMIC_ACQUIRE))
        ucx_flight_fail(flight, HEFT_ERR_CANCELED, NULL);
    if (endpoint->ep == NULL)
        fail_ucx(flight, UCS_ERR_CONNECTION_RESET);
    give(flight);
    if (flight->outstanding > 0 || (flight->left > 0 && flight->status == 0))
        return;
    if (op->kind == HEFT_OP_WRITE && flight->status == 0 && !flight->flushed) {
        flush(flight);
        if (flight->outstanding > 0)
            return;
    }
    if (flight->status == 0)
        (void)__atomic_fetch_add(&op->done_bytes, flight->claim.bytes, __ATOMIC_RELEASE);
    flight->claim.op = NULL;
    heft_opqueue_end(&endpoint->queue, op, 1, flight->status, flight->error.code != 0 ? &flight->error : NULL,
                     flight->failed_move);
}

void ucx_flights_fill(struct ucx_endpoint *endpoint)
{
    uint64_t moved = 0;

    for (uint32_t i = 0; i < UCX_FLIGHTS && moved < UCX_TURN_BYTES; i++) {
        struct ucx_flight *flight = &endpoint->flights[i];
        struct heft_claim claim;

        ucx_flight_go(flight);
        if (flight->claim.op != NULL || endpoint->ep == NULL)
            continue;
        if (!heft_opqueue_claim(&endpoint->queue, UCX_PART_BYTES, UCX_PART_CUTS, &claim))
            continue;
        memset(flight, 0, sizeof(*flight));
        flight->endpoint = endpoint;
        flight->claim = claim;
        flight->cursor = claim.start;
        flight->left = claim.bytes;
        flight->failed_move = -1;
        ucx_flight_go(flight);
        if (flight->claim.op == NULL) /* shared memory: the call itself moved it */
            moved += claim.bytes;
    }
}
