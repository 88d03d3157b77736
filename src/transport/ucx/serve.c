/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The serving side: a client is told this worker's address, and given the keys of the regions that it may
 * use. After that it reaches the memory by itself; regions come free when the agent's own protocol says that
 * the client has let go (HEFT_TRANSPORT_REACHES).
 */
#include "transport/ucx/ucx.h"
#include "base/error.h"
#include "base/log.h"

#include <stdlib.h>

struct ucx_conn {
    struct ucx_transport *transport;
    struct ucx_conn *next;
    uint64_t session;
    int begun, dead;
    struct ucx_channel channel;
};

static void conn_ready(struct heft_watch *watch, uint32_t events)
{
    struct ucx_conn *conn =
        (struct ucx_conn *)(void *)((char *)watch - offsetof(struct ucx_conn, channel.watch));

    (void)events;
    ucx_kick(conn->transport);
}

static int answer_key(struct ucx_conn *conn, const struct ucx_message *want)
{
    struct ucx_transport *transport = conn->transport;
    const struct heft_transport_host *host = &transport->host;
    struct ucx_message answer = {.type = UCX_REFUSED, .id = want->id};
    struct heft_transport_region *region = NULL;
    void *key = NULL;
    size_t key_bytes = 0;
    ucs_status_t status = UCS_ERR_UNSUPPORTED;
    int rc = HEFT_ERR_DENIED;

    /* a key opens the region for all of its uses: it is for who may have them all */
    if (want->value != 0)
        rc = host->pin_region(host->agent, want->id, 0, 0, want->value, &region);
    if (rc == 0 && region->slot[host->index] != NULL)
        status =
            transport->ucx->ucp_rkey_pack(transport->context, region->slot[host->index], &key, &key_bytes);
    if (rc == 0 && (status != UCS_OK || key_bytes > UCX_PAYLOAD_MAX_BYTES))
        rc = HEFT_ERR_UNSUPPORTED;
    if (rc == 0) {
        answer.type = UCX_KEY;
        answer.address = (uint64_t)(uintptr_t)region->address;
        answer.length = region->length_bytes;
        answer.payload = key;
        answer.payload_bytes = (uint32_t)key_bytes;
    } else {
        answer.value = (uint32_t)-rc;
    }
    rc = ucx_channel_send(&conn->channel, &answer);
    if (key != NULL)
        transport->ucx->ucp_rkey_buffer_release(key);
    if (region != NULL)
        host->unpin_region(host->agent, region);
    return rc;
}

static int begin(struct ucx_conn *conn)
{
    struct ucx_transport *transport = conn->transport;
    struct ucx_message address = {.type = UCX_ADDRESS,
                                  .payload = (const uint8_t *)(const void *)transport->address,
                                  .payload_bytes = (uint32_t)transport->address_bytes};
    int rc = ucx_channel_watch(&conn->channel, transport->worker, conn_ready);

    conn->begun = 1;
    return rc != 0 ? rc : ucx_channel_send(&conn->channel, &address);
}

static void turn(struct ucx_conn *conn)
{
    struct ucx_message message;
    int rc = conn->begun ? ucx_channel_flush(&conn->channel) : begin(conn);

    while (rc == 0 && (rc = ucx_channel_receive(&conn->channel, &message)) == 1)
        rc = message.type == UCX_WANT ? answer_key(conn, &message) : HEFT_ERR_PROTOCOL;
    if (rc < 0 && rc != HEFT_ERR_PEER_LOST)
        heft_log(HEFT_LOG_WARN, "ucx: closed a connection of session %llu: %s",
                 (unsigned long long)conn->session, heft_error_text(rc));
    conn->dead |= rc < 0;
}

void ucx_conns_turn(struct ucx_transport *transport)
{
    struct ucx_conn **at = &transport->conns, *conn;

    while ((conn = *at) != NULL) {
        if (!conn->dead)
            turn(conn);
        if (!conn->dead) {
            at = &conn->next;
            continue;
        }
        *at = conn->next;
        ucx_channel_close(&conn->channel);
        free(conn);
        ucx_object_freed(transport);
    }
}

int ucx_accept(struct heft_transport *opened, int fd, uint64_t session, struct heft_error *error)
{
    struct ucx_transport *transport = (struct ucx_transport *)(void *)opened;
    struct ucx_conn *conn = calloc(1, sizeof(*conn));
    struct ucx_channel channel;
    int rc = ucx_channel_open(&channel, &transport->host, fd, error);

    if (rc != 0 || conn == NULL) {
        if (rc == 0) {
            ucx_channel_close(&channel);
            rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for a ucx connection");
        }
        free(conn);
        return rc;
    }
    conn->transport = transport;
    conn->session = session;
    conn->channel = channel;
    (void)pthread_mutex_lock(&transport->end_lock);
    transport->objects++;
    (void)pthread_mutex_unlock(&transport->end_lock);
    heft_handover_other(&transport->lock);
    conn->next = transport->conns;
    transport->conns = conn;
    heft_handover_unlock(&transport->lock);
    ucx_kick(transport);
    return 0;
}

void ucx_drop_session(struct heft_transport *opened, uint64_t session)
{
    struct ucx_transport *transport = (struct ucx_transport *)(void *)opened;

    heft_handover_other(&transport->lock);
    for (struct ucx_conn *conn = transport->conns; conn != NULL; conn = conn->next)
        conn->dead |= conn->session == session;
    heft_handover_unlock(&transport->lock);
    ucx_kick(transport);
}
