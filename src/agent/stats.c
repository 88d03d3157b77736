/* SPDX-License-Identifier: Apache-2.0 */
/* Asking an agent what it counted; what other processes see is the same memory (telemetry.h). */
#include "agent/agent_internal.h"
#include "agent/inbox.h"

#include <string.h>

static void add_route(struct heft_agent_stats *stats, const struct heft_stats_route *route)
{
    stats->bytes_read += heft_stats_get(&route->bytes_read);
    stats->bytes_written += heft_stats_get(&route->bytes_written);
    stats->xfers_done += heft_stats_done(route);
    stats->xfers_failed += heft_stats_get(&route->failed);
    stats->xfers_active += heft_stats_in_flight(route);
    stats->xfers_refused += heft_stats_get(&route->refused);
    stats->descriptors += heft_stats_get(&route->descriptors);
    stats->retries += heft_stats_get(&route->retries);
}

void heft_agent_get_stats(const struct heft_agent *const_agent, struct heft_agent_stats *stats_out)
{
    struct heft_agent *agent = heft_agent_self(const_agent); /* the lock is no part of what the caller sees */
    const struct heft_telemetry *telemetry = &agent->telemetry;
    struct heft_agent_stats stats = {.size = sizeof(stats)};
    size_t size = stats_out->size < sizeof(stats) ? stats_out->size : sizeof(stats);
    uint32_t index;

    (void)pthread_mutex_lock(&agent->event_lock);
    heft_inboxes_drain(agent);
    (void)pthread_mutex_unlock(&agent->event_lock);
    for (index = 0; index < telemetry->route_count; index++)
        add_route(&stats, &telemetry->routes[index]);
#define READ(field) stats.field = heft_stats_get(&telemetry->head->field)
    READ(bytes_served);
    READ(peers_lost);
    READ(handshakes_refused);
    READ(notifications_sent);
    READ(notifications_received);
    READ(peers_accepted);
    READ(peers_connected);
    READ(regions);
    READ(region_bytes);
    READ(registrations);
    READ(registrations_failed);
    READ(deregistrations);
    READ(connects);
    READ(connects_failed);
#undef READ
    stats.size = size;
    memcpy(stats_out, &stats, size);
}

int heft_agent_get_transport_stats(const struct heft_agent *agent, uint32_t index,
                                   struct heft_transport_stats *stats_out)
{
    struct heft_transport_stats stats = {.size = sizeof(stats)};
    size_t size = stats_out->size < sizeof(stats) ? stats_out->size : sizeof(stats);
    const struct heft_stats_route *route;

    if (index >= agent->telemetry.route_count)
        return HEFT_ERR_NOT_FOUND;
    route = &agent->telemetry.routes[index];
    memcpy(stats.name, route->name, sizeof(stats.name));
    stats.xfers_done = heft_stats_done(route);
    stats.xfers_failed = heft_stats_get(&route->failed);
    stats.xfers_refused = heft_stats_get(&route->refused);
    stats.xfers_active = heft_stats_in_flight(route);
    stats.bytes_read = heft_stats_get(&route->bytes_read);
    stats.bytes_written = heft_stats_get(&route->bytes_written);
    stats.descriptors = heft_stats_get(&route->descriptors);
    stats.retries = heft_stats_get(&route->retries);
    stats.read_p50_ns = heft_stats_histogram_at(&route->read_ns, 0.5);
    stats.read_p99_ns = heft_stats_histogram_at(&route->read_ns, 0.99);
    stats.read_max_ns = heft_stats_histogram_at(&route->read_ns, 1);
    stats.write_p50_ns = heft_stats_histogram_at(&route->write_ns, 0.5);
    stats.write_p99_ns = heft_stats_histogram_at(&route->write_ns, 0.99);
    stats.write_max_ns = heft_stats_histogram_at(&route->write_ns, 1);
    if (size >= offsetof(struct heft_transport_stats, code) + sizeof(stats.code)) {
        stats.code = stats_out->code;
        if (stats.code)
            stats.errors_of_code = heft_stats_get(&route->errors[heft_stats_error_index(stats.code)]);
    }
    stats.size = size;
    memcpy(stats_out, &stats, size);
    return 0;
}
