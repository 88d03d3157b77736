/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of peers, as their control connections tell them. On the control worker. */
#include "agent/agent_internal.h"

#include "base/error.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* map_lock held. */
static void add_to_endpoints(struct heft_region *region)
{
    struct heft_peer *peer = region->peer;
    struct heft_agent *agent = peer->agent;
    uint32_t index;

    for (index = 0; index < agent->transport_count; index++) {
        struct heft_endpoint *endpoint = heft_slot_hold(&peer->slots[index]);
        struct heft_error error = HEFT_ERROR_INIT;

        if (!endpoint)
            continue;
        if (agent->transports[index].ops.remote_add(endpoint, &region->t, &error))
            heft_log(HEFT_LOG_INFO, "agent %s: transport %s can't use region %llu of peer '%s': %s",
                     agent->name, agent->transports[index].ops.name, (unsigned long long)region->t.id,
                     peer->name, error.text);
        heft_slot_release(&peer->slots[index]);
    }
}

/* map_lock held. */
static void remove_from_endpoints(struct heft_region *region)
{
    struct heft_peer *peer = region->peer;
    struct heft_agent *agent = peer->agent;
    uint32_t index;

    for (index = 0; index < agent->transport_count; index++) {
        struct heft_endpoint *endpoint = heft_slot_hold(&peer->slots[index]);

        if (!endpoint)
            continue;
        agent->transports[index].ops.remote_remove(endpoint, &region->t);
        heft_slot_release(&peer->slots[index]);
    }
}

static struct heft_region *region_new(struct heft_peer *peer, const struct heft_wire_region *told, int fd)
{
    struct heft_region *region = calloc(1, sizeof(*region));

    if (!region)
        return NULL;
    region->agent = peer->agent;
    region->peer = peer;
    region->refs = 1;
    region->state = HEFT_REGION_LIVE;
    region->owned_fd = fd;
    region->node.id = told->id;
    region->t.id = told->id;
    region->t.space = (enum heft_space)told->space;
    region->t.flags = told->flags;
    region->t.length_bytes = told->length_bytes;
    region->t.address = (void *)(uintptr_t)told->address;
    region->t.fd = fd;
    region->t.label = region->label;
    return region;
}

/* 0, EXISTS, TOO_MANY or NO_MEMORY; the descriptor is taken over in any case. map_lock held. */
static int add_region(struct heft_peer *peer, const struct heft_wire_region *told, int fd)
{
    struct heft_agent *agent = peer->agent;
    struct heft_region *region = region_new(peer, told, fd);
    int rc = 0;

    if (!region) {
        if (fd >= 0)
            (void)close(fd);
        return HEFT_ERR_NO_MEMORY;
    }
    if (heft_region_find(&peer->regions, told->id)) /* changed under map_lock only */
        rc = HEFT_ERR_EXISTS;
    else if (peer->regions.count >= HEFT_AGENT_REMOTE_REGIONS_MAX)
        rc = HEFT_ERR_TOO_MANY;
    if (!rc) {
        add_to_endpoints(region);
        (void)pthread_mutex_lock(&agent->region_lock);
        rc = heft_table_reserve(&peer->regions);
        if (!rc)
            heft_table_insert(&peer->regions, &region->node);
        (void)pthread_mutex_unlock(&agent->region_lock);
        if (rc)
            remove_from_endpoints(region);
    }
    if (rc)
        heft_region_unref(region);
    return rc;
}

static uint32_t count_fds(const struct heft_wire_regions *regions)
{
    struct heft_wire_region told;
    uint32_t index, count = 0;

    for (index = 0; index < regions->count; index++)
        if (heft_wire_get_region(regions, index, &told) != HEFT_ERR_PROTOCOL)
            count += regions->entries[(size_t)index * regions->entry_bytes + 9];
    return count;
}

void heft_remote_regions(struct heft_peer *peer, const struct heft_frame *frame, const uint8_t *payload)
{
    struct heft_wire_regions regions;
    struct heft_conn_fds *fds = NULL;
    size_t fd_next = 0;
    uint32_t index, fd_count;
    int rc = heft_wire_get_regions(payload, frame->payload_bytes, &regions);

    if (rc) {
        heft_conn_fail(&peer->conn, HEFT_ERR_PROTOCOL, "a malformed list of regions");
        return;
    }
    fd_count = count_fds(&regions);
    if (fd_count)
        fds = heft_conn_take_fds(&peer->conn, fd_count); /* NULL: some were lost, none is used */
    (void)pthread_mutex_lock(&peer->map_lock);
    for (index = 0; index < regions.count; index++) {
        struct heft_wire_region told;
        int fd = -1;

        rc = heft_wire_get_region(&regions, index, &told);
        if (rc == HEFT_ERR_PROTOCOL)
            break;
        if (fds && regions.entries[(size_t)index * regions.entry_bytes + 9]) {
            fd = fds->fds[fd_next];
            fds->fds[fd_next++] = -1;
        }
        if (rc == HEFT_ERR_UNSUPPORTED) { /* a space of a later version */
            if (fd >= 0)
                (void)close(fd);
            continue;
        }
        rc = add_region(peer, &told, fd);
        if (rc == HEFT_ERR_TOO_MANY || rc == HEFT_ERR_NO_MEMORY)
            break;
        rc = 0;
    }
    peer->region_epoch = regions.epoch;
    (void)pthread_mutex_unlock(&peer->map_lock);
    heft_conn_fds_free(fds);
    if (rc && rc != HEFT_ERR_UNSUPPORTED) {
        heft_conn_fail(&peer->conn, HEFT_ERR_PROTOCOL,
                       rc == HEFT_ERR_PROTOCOL ? "a malformed region" : "more regions than can be kept");
        return;
    }
    if (!regions.more) {
        (void)pthread_mutex_lock(&peer->lock);
        peer->regions_known = 1;
        (void)pthread_cond_broadcast(&peer->cond);
        (void)pthread_mutex_unlock(&peer->lock);
    }
}

/* Lets go of withdrawn regions that nothing uses any more, and tells the peer so. */
static void free_gone(struct heft_peer *peer)
{
    struct heft_agent *agent = peer->agent;

    for (;;) {
        struct heft_region **at, *region;
        struct heft_buf buf;

        (void)pthread_mutex_lock(&peer->map_lock);
        (void)pthread_mutex_lock(&agent->region_lock);
        at = &peer->gone;
        while (*at && (*at)->pins)
            at = &(*at)->next;
        region = *at;
        if (region)
            *at = region->next;
        (void)pthread_mutex_unlock(&agent->region_lock);
        if (region)
            remove_from_endpoints(region);
        (void)pthread_mutex_unlock(&peer->map_lock);
        if (!region)
            return;
        if (peer->conn_live && peer->conn.state == HEFT_CONN_LIVE) {
            heft_buf_init(&buf, HEFT_FRAME_CONTROL_MAX_BYTES);
            heft_wire_put_ids(&buf, peer->region_epoch, &region->t.id, 1);
            heft_conn_send(&peer->conn, HEFT_FRAME_REGION_FREE, 0, &buf);
            heft_buf_free(&buf);
        }
        heft_region_unref(region);
    }
}

void heft_remote_gone(struct heft_peer *peer, const struct heft_frame *frame, const uint8_t *payload)
{
    struct heft_agent *agent = peer->agent;
    struct heft_wire_ids ids;
    uint32_t index;

    if (heft_wire_get_ids(payload, frame->payload_bytes, &ids)) {
        heft_conn_fail(&peer->conn, HEFT_ERR_PROTOCOL, "a malformed list of withdrawn regions");
        return;
    }
    (void)pthread_mutex_lock(&peer->map_lock);
    (void)pthread_mutex_lock(&agent->region_lock);
    if (ids.epoch > peer->region_epoch)
        peer->region_epoch = ids.epoch;
    for (index = 0; index < ids.count; index++) {
        struct heft_region *region = heft_region_find(&peer->regions, heft_wire_get_id(&ids, index));

        if (!region)
            continue;
        heft_table_remove(&peer->regions, &region->node);
        region->state = HEFT_REGION_GONE;
        region->next = peer->gone;
        peer->gone = region;
    }
    (void)pthread_mutex_unlock(&agent->region_lock);
    (void)pthread_mutex_unlock(&peer->map_lock);
    free_gone(peer);
}

/* Something that the peer may wait for has ended: the last use of a withdrawn region, or, after its goodbye,
 * the last transfer. */
void heft_remote_free_job(struct heft_job *job, struct heft_worker *worker)
{
    struct heft_peer *peer = HEFT_CONTAINER_OF(job, struct heft_peer, free_job);
    uint32_t active;

    (void)worker;
    (void)pthread_mutex_lock(&peer->agent->region_lock);
    peer->free_queued = 0;
    (void)pthread_mutex_unlock(&peer->agent->region_lock);
    free_gone(peer);
    (void)pthread_mutex_lock(&peer->lock);
    active = peer->active;
    (void)pthread_mutex_unlock(&peer->lock);
    if (!active && peer->conn_live && peer->conn_ending)
        heft_conn_fail(&peer->conn, HEFT_ERR_PEER_LOST, "it said goodbye");
    if (!active && peer->held_fd >= 0) {
        heft_conn_close_fd(peer->held_fd);
        peer->held_fd = -1;
    }
    heft_peer_unref(peer);
}

/* The endpoints are gone. */
void heft_remote_clear(struct heft_peer *peer)
{
    struct heft_table_node *node;

    (void)pthread_mutex_lock(&peer->map_lock);
    (void)pthread_mutex_lock(&peer->agent->region_lock);
    while ((node = heft_table_any(&peer->regions)) != NULL) {
        struct heft_region *region = HEFT_CONTAINER_OF(node, struct heft_region, node);

        heft_table_remove(&peer->regions, node);
        region->state = HEFT_REGION_GONE;
        heft_region_unref(region);
    }
    while (peer->gone) {
        struct heft_region *region = peer->gone;

        peer->gone = region->next;
        heft_region_unref(region);
    }
    (void)pthread_mutex_unlock(&peer->agent->region_lock);
    (void)pthread_mutex_unlock(&peer->map_lock);
}
