/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx/ucx.h"
#include "base/clock.h"
#include "base/error.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

static struct ucx_transport *transport_of(struct heft_transport *transport)
{
    return (struct ucx_transport *)(void *)transport;
}

void ucx_kick(struct ucx_transport *transport)
{
    if (!__atomic_exchange_n(&transport->scheduled, 1, __ATOMIC_SEQ_CST))
        heft_worker_submit(transport->worker, &transport->job);
}

void ucx_object_freed(struct ucx_transport *transport)
{
    (void)pthread_mutex_lock(&transport->end_lock);
    transport->objects--;
    (void)pthread_cond_broadcast(&transport->ended);
    (void)pthread_mutex_unlock(&transport->end_lock);
}

/* ---- the worker's turn ---- */

static void look_again(struct heft_timer *timer)
{
    ucx_kick((struct ucx_transport *)(void *)((char *)timer - offsetof(struct ucx_transport, timer)));
}

static void ucx_ready(struct heft_watch *watch, uint32_t events)
{
    (void)events;
    ucx_kick((struct ucx_transport *)(void *)((char *)watch - offsetof(struct ucx_transport, watch)));
}

/* Every endpoint's turn. Those that the agent is done with leave the list and come back in a list of their
 * own; `held` gets the others with a reference each, for what follows without the lock. */
static struct ucx_endpoint *endpoints_turn(struct ucx_transport *transport, uint64_t now_ns)
{
    struct ucx_endpoint **at = &transport->endpoints, *endpoint, *over = NULL;

    while ((endpoint = *at) != NULL) {
        ucx_endpoint_turn(endpoint, now_ns);
        if (endpoint->closed && endpoint->closing == NULL) {
            *at = endpoint->next;
            ucx_channel_close(&endpoint->channel);
            endpoint->next = over;
            over = endpoint;
        } else {
            at = &endpoint->next;
        }
    }
    return over;
}

/* done is called here, without the lock; the list may change in between, so it is walked by index. */
static void drain_all(struct ucx_transport *transport)
{
    for (uint32_t index = 0;; index++) {
        struct ucx_endpoint *endpoint;

        heft_handover_worker(&transport->lock);
        endpoint = transport->endpoints;
        for (uint32_t i = 0; i < index && endpoint != NULL; i++)
            endpoint = endpoint->next;
        if (endpoint != NULL)
            ucx_endpoint_ref(endpoint);
        heft_handover_unlock(&transport->lock);
        if (endpoint == NULL)
            return;
        heft_opqueue_drain(&endpoint->queue);
        ucx_endpoint_unref(endpoint);
    }
}

/* 1 when there is something to do for this thread, or to wait for in it. Lock held. */
static int is_busy(struct ucx_transport *transport)
{
    for (struct ucx_endpoint *endpoint = transport->endpoints; endpoint != NULL; endpoint = endpoint->next) {
        int room = 0;

        if (endpoint->closing != NULL || endpoint->closed)
            return 1;
        for (uint32_t i = 0; i < UCX_FLIGHTS; i++)
            room |= endpoint->flights[i].claim.op == NULL;
        if (room && endpoint->ep != NULL && __atomic_load_n(&endpoint->queue.head, __ATOMIC_ACQUIRE) != NULL)
            return 1;
    }
    return transport->in_flight > 0;
}

static void stop_locked(struct ucx_transport *transport)
{
    if (transport->watched)
        heft_watch_remove(&transport->watch);
    heft_timer_set(transport->worker, &transport->timer, 0);
    (void)pthread_mutex_lock(&transport->end_lock);
    transport->stopped = 1;
    (void)pthread_cond_broadcast(&transport->ended);
    (void)pthread_mutex_unlock(&transport->end_lock);
}

static void run(struct heft_job *job, struct heft_worker *worker)
{
    struct ucx_transport *transport = (struct ucx_transport *)(void *)job;
    struct ucx_endpoint *over;
    uint64_t now_ns = heft_now_ns();
    unsigned moved = 0;
    int again, busy;

    __atomic_store_n(&transport->scheduled, 0, __ATOMIC_SEQ_CST);
    heft_handover_worker(&transport->lock);
    if (transport->stopping) {
        stop_locked(transport);
        heft_handover_unlock(&transport->lock);
        return; /* the transport may be gone now */
    }
    if (!transport->watched && transport->watch.fd >= 0)
        transport->watched = heft_watch_add(worker, &transport->watch, EPOLLIN, NULL) == 0;
    for (int i = 0; i < 64; i++) {
        unsigned events = transport->ucx->ucp_worker_progress(transport->ucp);

        moved += events;
        if (events == 0)
            break;
    }
    ucx_conns_turn(transport);
    over = endpoints_turn(transport, now_ns);
    busy = is_busy(transport);
    if (moved > 0 || transport->progress_ns == 0)
        transport->progress_ns = now_ns;
    /* awake for a moment after the last progress, then until UCX's descriptor or the next look */
    again = busy && (moved > 0 || transport->in_flight == 0 || now_ns - transport->progress_ns < UCX_SPIN_NS);
    if (!again)
        again = transport->ucx->ucp_worker_arm(transport->ucp) == UCS_ERR_BUSY;
    if (!again && busy)
        heft_timer_set(worker, &transport->timer, now_ns + UCX_LOOK_MS * HEFT_NS_PER_MS);
    heft_handover_unlock(&transport->lock);
    while (over != NULL) {
        struct ucx_endpoint *first = over;

        over = first->next;
        heft_opqueue_drain(&first->queue);
        ucx_endpoint_unref(first);
    }
    if (again)
        ucx_kick(transport);
    drain_all(transport);
}

/* ---- the table ---- */

static int has_devices(void)
{
    DIR *folder = opendir("/sys/class/infiniband");
    struct dirent *entry;
    int found = 0;

    if (folder == NULL)
        return 0;
    while ((entry = readdir(folder)) != NULL)
        found |= entry->d_name[0] != '.';
    (void)closedir(folder);
    return found;
}

static int start_ucx(struct ucx_transport *transport, struct heft_error *error)
{
    const struct ucx_calls *ucx = transport->ucx;
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
                                 .features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP,
                                 .mt_workers_shared = 1};
    const ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                               .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucp_config_t *config = NULL;
    const char *step = "reading its settings";
    ucs_status_t status = ucx->ucp_config_read(NULL, NULL, &config);

    if (status == UCS_OK) {
        step = "starting (see UCX_TLS and UCX_NET_DEVICES)";
        status = ucx->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &transport->context);
        ucx->ucp_config_release(config);
    }
    if (status != UCS_OK)
        goto fail;
    step = "making a worker (see UCX_TLS and UCX_NET_DEVICES)";
    status = ucx->ucp_worker_create(transport->context, &worker_params, &transport->ucp);
    if (status != UCS_OK)
        goto fail_context;
    step = "giving its address";
    status = ucx->ucp_worker_get_address(transport->ucp, &transport->address, &transport->address_bytes);
    if (status != UCS_OK)
        goto fail_worker;
    step = "giving a descriptor to wait on";
    status = ucx->ucp_worker_get_efd(transport->ucp, &transport->watch.fd);
    if (status == UCS_OK && transport->address_bytes <= UCX_PAYLOAD_MAX_BYTES)
        return 0;
    ucx->ucp_worker_release_address(transport->ucp, transport->address);
fail_worker:
    ucx->ucp_worker_destroy(transport->ucp);
fail_context:
    ucx->ucp_cleanup(transport->context);
fail:
    return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "UCX %s fails at %s: %s",
                          ucx->ucp_get_version_string(), step, ucx->ucs_status_string(status));
}

static int ucx_open(const struct heft_transport_host *host, struct heft_transport **transport_out,
                    struct heft_error *error)
{
    int devices = has_devices(), rc;
    const struct ucx_calls *ucx;
    struct ucx_transport *transport;

    /* It costs threads, descriptors and shared memory, and wins where there are devices of its own. */
    if (!devices && !(host->flags & HEFT_HOST_NAMED))
        return heft_error_set(
            error, HEFT_ERR_UNSUPPORTED,
            "no RDMA device here, so other transports are faster: name ucx in the list of transports "
            "to have it all the same");
    rc = ucx_library_load(&ucx, error);
    if (rc != 0)
        return rc;
    transport = calloc(1, sizeof(*transport));
    if (transport == NULL)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for the ucx transport");
    transport->host = *host;
    transport->ucx = ucx;
    transport->has_devices = devices;
    transport->job.run = run;
    transport->timer.fire = look_again;
    transport->watch.ready = ucx_ready;
    transport->watch.fd = -1;
    transport->worker = heft_pool_worker(host->pool, heft_pool_workers(host->pool) - 1);
    rc = start_ucx(transport, error);
    if (rc != 0) {
        free(transport);
        return rc;
    }
    heft_handover_init(&transport->lock);
    (void)pthread_mutex_init(&transport->end_lock, NULL);
    (void)pthread_cond_init(&transport->ended, NULL);
    ucx_kick(transport);
    *transport_out = (struct heft_transport *)(void *)transport;
    return 0;
}

static void ucx_close(struct heft_transport *opened)
{
    struct ucx_transport *transport = transport_of(opened);

    (void)pthread_mutex_lock(&transport->end_lock);
    while (transport->objects > 0)
        (void)pthread_cond_wait(&transport->ended, &transport->end_lock);
    (void)pthread_mutex_unlock(&transport->end_lock);
    heft_handover_other(&transport->lock);
    transport->stopping = 1;
    heft_handover_unlock(&transport->lock);
    ucx_kick(transport);
    (void)pthread_mutex_lock(&transport->end_lock);
    while (!transport->stopped)
        (void)pthread_cond_wait(&transport->ended, &transport->end_lock);
    (void)pthread_mutex_unlock(&transport->end_lock);
    heft_handover_other(&transport->lock); /* the worker's last turn has let go of it */
    heft_handover_unlock(&transport->lock);
    transport->ucx->ucp_worker_release_address(transport->ucp, transport->address);
    transport->ucx->ucp_worker_destroy(transport->ucp);
    transport->ucx->ucp_cleanup(transport->context);
    (void)pthread_cond_destroy(&transport->ended);
    (void)pthread_mutex_destroy(&transport->end_lock);
    heft_handover_free(&transport->lock);
    free(transport);
}

/* Registered once a region, for its remote uses and as the near side alike. */
static int region_add(struct heft_transport *opened, struct heft_transport_region *region,
                      struct heft_error *error)
{
    struct ucx_transport *transport = transport_of(opened);
    ucp_mem_map_params_t params = {.field_mask =
                                       UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                       UCP_MEM_MAP_PARAM_FIELD_FLAGS | UCP_MEM_MAP_PARAM_FIELD_PROT |
                                       UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
                                   .address = region->address,
                                   .length = region->length_bytes,
                                   .flags = UCP_MEM_MAP_NONBLOCK,
                                   .prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE,
                                   .memory_type = UCS_MEMORY_TYPE_HOST};
    ucs_status_t status;
    ucp_mem_h memory;

    if (region->space != HEFT_SPACE_HOST || region->length_bytes == 0)
        return 0;
    if (region->flags & HEFT_REGION_REMOTE_READ)
        params.prot |= UCP_MEM_MAP_PROT_REMOTE_READ;
    if (region->flags & HEFT_REGION_REMOTE_WRITE)
        params.prot |= UCP_MEM_MAP_PROT_REMOTE_WRITE;
    heft_handover_other(&transport->lock);
    status = transport->ucx->ucp_mem_map(transport->context, &params, &memory);
    heft_handover_unlock(&transport->lock);
    if (status != UCS_OK)
        return heft_error_set(
            error, ucx_status(status) == HEFT_ERR_NO_MEMORY ? HEFT_ERR_NO_MEMORY : HEFT_ERR_UNSUPPORTED,
            "UCX registers no memory there: %s (see ulimit -l)", transport->ucx->ucs_status_string(status));
    region->slot[transport->host.index] = memory;
    return 0;
}

static void region_remove(struct heft_transport *opened, struct heft_transport_region *region)
{
    struct ucx_transport *transport = transport_of(opened);
    ucp_mem_h memory = region->slot[transport->host.index];

    region->slot[transport->host.index] = NULL;
    if (memory == NULL)
        return;
    heft_handover_other(&transport->lock);
    (void)transport->ucx->ucp_mem_unmap(transport->context, memory);
    heft_handover_unlock(&transport->lock);
}

static void ucx_score(struct heft_transport *opened, struct heft_endpoint *endpoint,
                      const struct heft_route_query *query, struct heft_route_score *score_out)
{
    const struct ucx_transport *transport = transport_of(opened);
    uint32_t need = query->op == HEFT_OP_READ ? HEFT_REGION_REMOTE_READ : HEFT_REGION_REMOTE_WRITE;
    const char *reason;

    (void)endpoint;
    score_out->score = 0;
    if (query->peer == NULL) {
        reason = "both sides are in one agent";
    } else if (query->local != HEFT_SPACE_HOST || query->remote != HEFT_SPACE_HOST) {
        reason = "ucx moves host memory";
    } else if (query->remote_region != NULL && !(query->remote_region->flags & need)) {
        reason = query->op == HEFT_OP_READ ? "the region may not be read by peers"
                                           : "the region may not be written by peers";
    } else if ((transport->host.flags & HEFT_HOST_TLS) && !query->peer->same_host) {
        reason = "UCX does not encrypt, and this agent was given tls_ca";
    } else if (query->peer->same_host) {
        score_out->score = 200;
        reason = "UCX inside one host: local and tcp are faster";
    } else if (transport->has_devices) {
        score_out->score = 500;
        reason = "UCX, with RDMA devices";
    } else {
        score_out->score = 200;
        reason = "UCX without RDMA devices: its get and put are emulated over tcp, tcp is faster";
    }
    (void)snprintf(score_out->reason, sizeof(score_out->reason), "%s", reason);
}

const struct heft_transport_ops heft_transport_ucx = {
    .abi = HEFT_TRANSPORT_ABI,
    .size = sizeof(struct heft_transport_ops),
    .name = "ucx",
    .open = ucx_open,
    .close = ucx_close,
    .region_add = region_add,
    .region_remove = region_remove,
    .remote_add = ucx_remote_add,
    .remote_remove = ucx_remote_remove,
    .score = ucx_score,
    .connect = ucx_connect,
    .disconnect = ucx_disconnect,
    .fail = ucx_fail,
    .accept = ucx_accept,
    .drop_session = ucx_drop_session,
    .post = ucx_post,
    .cancel = ucx_cancel,
    .flags = HEFT_TRANSPORT_TLS | HEFT_TRANSPORT_REACHES,
};
