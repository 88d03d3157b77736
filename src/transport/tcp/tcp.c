/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/tcp.h"
#include "base/error.h"
#include "transport/nothing.h"

#include <stdio.h>
#include <stdlib.h>

static int tcp_open(const struct heft_transport_host *host, struct heft_transport **transport_out,
                    struct heft_error *error)
{
    struct tcp_transport *transport = calloc(1, sizeof(*transport));
    int rc;

    if (transport == NULL)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for the tcp transport");
    transport->host = *host;
    pthread_mutex_init(&transport->lock, NULL);
    pthread_cond_init(&transport->changed, NULL);
    rc = tcp_dialer_start(transport, error);
    if (rc != 0) {
        pthread_cond_destroy(&transport->changed);
        pthread_mutex_destroy(&transport->lock);
        free(transport);
        return rc;
    }
    *transport_out = (struct heft_transport *)(void *)transport;
    return 0;
}

/* Sessions are dropped and endpoints disconnected by now; their workers may still have to close sockets. */
static void tcp_close(struct heft_transport *opened)
{
    struct tcp_transport *transport = (struct tcp_transport *)(void *)opened;

    tcp_dialer_stop(transport);
    pthread_mutex_lock(&transport->lock);
    while (transport->objects > 0)
        heft_pool_wait(transport->host.pool, &transport->changed, &transport->lock);
    pthread_mutex_unlock(&transport->lock);
    pthread_cond_destroy(&transport->changed);
    pthread_mutex_destroy(&transport->lock);
    free(transport);
}

static void tcp_score(struct heft_transport *transport, struct heft_endpoint *endpoint,
                      const struct heft_route_query *query, struct heft_route_score *score_out)
{
    uint32_t need = query->op == HEFT_OP_READ ? HEFT_REGION_REMOTE_READ : HEFT_REGION_REMOTE_WRITE;
    int file = query->remote == HEFT_SPACE_FILE && query->op == HEFT_OP_READ;
    int gpu = query->remote == HEFT_SPACE_CUDA && query->op == HEFT_OP_READ;

    (void)transport;
    (void)endpoint;
    score_out->score = 0;
    if (query->peer == NULL) {
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "both sides are in one agent");
    } else if (query->local != HEFT_SPACE_HOST || (query->remote != HEFT_SPACE_HOST && !file && !gpu)) {
        (void)snprintf(score_out->reason, sizeof(score_out->reason),
                       "tcp moves host memory, and reads a peer's files and GPUs; not %s with a peer's %s",
                       heft_space_name(query->local), heft_space_name(query->remote));
    } else if (query->remote_region != NULL && !(query->remote_region->flags & need)) {
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "the region may not be %s by peers",
                       query->op == HEFT_OP_READ ? "read" : "written");
    } else {
        score_out->score = file || gpu ? 250 : 300;
        (void)snprintf(score_out->reason, sizeof(score_out->reason), "%s%s",
                       query->peer->control_is_unix ? "over unix sockets" : "over tcp sockets",
                       file  ? ", the peer reads its file"
                       : gpu ? ", the peer reads its GPU's memory"
                             : "");
    }
}

const struct heft_transport_ops heft_transport_tcp = {
    .abi = HEFT_TRANSPORT_ABI,
    .size = sizeof(struct heft_transport_ops),
    .name = "tcp",
    .open = tcp_open,
    .close = tcp_close,
    .region_add = heft_nothing_region_add, /* sockets take any memory */
    .region_remove = heft_nothing_region_remove,
    .remote_add = heft_nothing_remote_add, /* requests name regions by id */
    .remote_remove = heft_nothing_remote_remove,
    .score = tcp_score,
    .connect = tcp_connect,
    .disconnect = tcp_disconnect,
    .fail = tcp_fail,
    .accept = tcp_accept,
    .drop_session = tcp_drop_session,
    .post = tcp_post,
    .cancel = tcp_cancel,
    .flags = HEFT_TRANSPORT_TLS,
};
