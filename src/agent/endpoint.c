/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots: one transport's endpoint for one peer. Connected when the first transfer is prepared, never by a
 * post; replaced when the next one is prepared after it broke, unless something still uses it.
 */
#include "agent/agent_internal.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <string.h>

#define RETRY_MS 1000 /* after a failed connect the reason is repeated for this long */

struct heft_endpoint *heft_slot_hold(struct heft_slot *slot)
{
    struct heft_endpoint *endpoint;

    (void)pthread_mutex_lock(&slot->peer->lock);
    endpoint = slot->endpoint;
    if (endpoint)
        slot->users++;
    (void)pthread_mutex_unlock(&slot->peer->lock);
    return endpoint;
}

void heft_slot_release(struct heft_slot *slot)
{
    (void)pthread_mutex_lock(&slot->peer->lock);
    HEFT_ASSERT(slot->users > 0);
    slot->users--;
    (void)pthread_mutex_unlock(&slot->peer->lock);
}

/* The endpoint and all that was told about the peer's regions. Nothing uses it any more. map_lock held. */
static void end_endpoint(struct heft_slot *slot, struct heft_endpoint *endpoint)
{
    struct heft_peer *peer = slot->peer;
    struct heft_transport_ops *ops = &peer->agent->transports[slot->index].ops;
    struct heft_table *table = &peer->regions; /* changed under map_lock only */
    struct heft_table_node *node;
    struct heft_region *region;
    size_t index;

    for (index = 0; index < table->capacity; index++)
        for (node = table->buckets[index]; node; node = node->next)
            ops->remote_remove(endpoint, &HEFT_CONTAINER_OF(node, struct heft_region, node)->t);
    for (region = peer->gone; region; region = region->next)
        ops->remote_remove(endpoint, &region->t);
    ops->disconnect(endpoint);
}

/* map_lock held. */
static void add_regions(struct heft_slot *slot, struct heft_endpoint *endpoint)
{
    struct heft_peer *peer = slot->peer;
    struct heft_agent *agent = peer->agent;
    struct heft_table *table = &peer->regions;
    struct heft_table_node *node;
    size_t index;

    for (index = 0; index < table->capacity; index++)
        for (node = table->buckets[index]; node; node = node->next) {
            struct heft_region *region = HEFT_CONTAINER_OF(node, struct heft_region, node);
            struct heft_error error = HEFT_ERROR_INIT;

            if (agent->transports[slot->index].ops.remote_add(endpoint, &region->t, &error))
                heft_log(HEFT_LOG_INFO, "agent %s: transport %s can't use region %llu of peer '%s': %s",
                         agent->name, agent->transports[slot->index].ops.name,
                         (unsigned long long)region->t.id, peer->name, error.text);
        }
}

/* What stands in the slot: 1 connected, 0 to be connected (a broken one was taken out), or an error. */
static int look(struct heft_slot *slot, struct heft_endpoint **broken_out, struct heft_error *error)
{
    struct heft_peer *peer = slot->peer;
    int rc = 0;

    *broken_out = NULL;
    (void)pthread_mutex_lock(&peer->lock);
    if (peer->status) {
        rc = peer->status;
        if (error)
            *error = peer->error;
    } else if (peer->closing) {
        rc = heft_error_set(error, HEFT_ERR_PEER_LOST, "the peer was closed");
    } else if (slot->endpoint && (!slot->broken || slot->users)) {
        rc = 1;
    } else if (!slot->endpoint && slot->failure.code && heft_now_ns() < slot->retry_ns) {
        rc = slot->failure.code;
        if (error)
            *error = slot->failure;
    } else {
        *broken_out = slot->endpoint;
        slot->endpoint = NULL;
        slot->broken = 0;
    }
    (void)pthread_mutex_unlock(&peer->lock);
    return rc;
}

static int connect_locked(struct heft_slot *slot, struct heft_error *error)
{
    struct heft_peer *peer = slot->peer;
    struct heft_agent_transport *entry = &peer->agent->transports[slot->index];
    struct heft_error failure = HEFT_ERROR_INIT;
    struct heft_endpoint *endpoint = NULL, *broken;
    int rc = look(slot, &broken, error);

    if (rc)
        return rc > 0 ? 0 : rc;
    if (broken) {
        heft_host_count_retries(peer->agent, slot->index, 1);
        (void)pthread_mutex_lock(&peer->map_lock);
        end_endpoint(slot, broken);
        (void)pthread_mutex_unlock(&peer->map_lock);
    }
    rc = entry->ops.connect(entry->transport, peer->is_self ? NULL : &slot->view, &endpoint, &failure);
    if (rc) {
        if (!failure.code)
            (void)heft_error_set(&failure, rc, "%s", heft_error_text(rc));
        (void)pthread_mutex_lock(&peer->lock);
        slot->failure = failure;
        slot->retry_ns = heft_deadline_after_ms(RETRY_MS);
        (void)pthread_mutex_unlock(&peer->lock);
        if (error)
            *error = failure;
        return rc;
    }
    (void)pthread_mutex_lock(&peer->map_lock);
    add_regions(slot, endpoint);
    (void)pthread_mutex_lock(&peer->lock);
    if (peer->status) { /* it died meanwhile: nobody would tell this endpoint */
        rc = peer->status;
        if (error)
            *error = peer->error;
    } else {
        slot->endpoint = endpoint;
        slot->failure.code = 0;
    }
    (void)pthread_mutex_unlock(&peer->lock);
    if (rc)
        end_endpoint(slot, endpoint);
    (void)pthread_mutex_unlock(&peer->map_lock);
    return rc;
}

int heft_slot_connect(struct heft_slot *slot, struct heft_error *error)
{
    int rc;

    (void)pthread_mutex_lock(&slot->peer->connect_lock);
    rc = connect_locked(slot, error);
    (void)pthread_mutex_unlock(&slot->peer->connect_lock);
    return rc;
}

void heft_slot_shut(struct heft_slot *slot)
{
    struct heft_peer *peer = slot->peer;
    struct heft_endpoint *endpoint;

    (void)pthread_mutex_lock(&peer->map_lock);
    (void)pthread_mutex_lock(&peer->lock);
    HEFT_ASSERT(slot->users == 0);
    endpoint = slot->endpoint;
    slot->endpoint = NULL;
    (void)pthread_mutex_unlock(&peer->lock);
    if (endpoint)
        end_endpoint(slot, endpoint);
    (void)pthread_mutex_unlock(&peer->map_lock);
}
