/* SPDX-License-Identifier: Apache-2.0 */
/* All agents of a host as one Prometheus text: one place to scrape, however many processes there are. */
#include "agent/telemetry.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LABELS_BYTES 2048

/* Names are whatever their owners chose: what could end a label is escaped, what is no text is replaced. */
static size_t add_escaped(char *out, size_t used, const char *text)
{
    while (*text && used + 8 < LABELS_BYTES) {
        size_t size = heft_text_plain(text);

        if (size == 0) {
            out[used++] = '?';
            text++;
            continue;
        }
        if (*text == '\\' || *text == '"')
            out[used++] = '\\';
        while (size--)
            out[used++] = *text++;
    }
    out[used] = 0;
    return used;
}

static size_t add_label(char *out, size_t used, const char *name, const char *value)
{
    size_t size = strlen(name);

    if (used + size + 8 >= LABELS_BYTES)
        return used;
    if (used)
        out[used++] = ',';
    memcpy(out + used, name, size);
    used += size;
    out[used++] = '=';
    out[used++] = '"';
    used = add_escaped(out, used, value);
    out[used++] = '"';
    out[used] = 0;
    return used;
}

static void agent_labels(const struct heft_telemetry_entry *entry, char out[LABELS_BYTES])
{
    char pid[24];
    size_t used;

    (void)snprintf(pid, sizeof(pid), "%" PRIu64, entry->head->pid);
    out[0] = 0;
    used = add_label(out, 0, "agent", entry->head->name);
    used = add_label(out, used, "pid", pid);
    (void)add_label(out, used, "program", entry->head->program);
}

/* ---- families of the head ---- */

struct family {
    const char *name, *type, *help;
    size_t offset;
};

#define HEAD(field) offsetof(struct heft_stats_head, field)
static const struct family of_agents[] = {
    {"heft_agent_bytes_served_total", "counter", "Bytes that the agent's own threads sent to peers.",
     HEAD(bytes_served)},
    {"heft_agent_peers_connected", "gauge", "Peers that the agent is connected to.", HEAD(peers_connected)},
    {"heft_agent_peers_accepted", "gauge", "Peers that are connected to the agent.", HEAD(peers_accepted)},
    {"heft_agent_connects_total", "counter", "Peers connected so far.", HEAD(connects)},
    {"heft_agent_connects_failed_total", "counter", "Connecting that failed.", HEAD(connects_failed)},
    {"heft_agent_peers_lost_total", "counter", "Peers that died or whose connection broke.",
     HEAD(peers_lost)},
    {"heft_agent_handshakes_refused_total", "counter", "Connections that were refused.",
     HEAD(handshakes_refused)},
    {"heft_agent_regions", "gauge", "Registered regions.", HEAD(regions)},
    {"heft_agent_region_bytes", "gauge", "Bytes of registered regions.", HEAD(region_bytes)},
    {"heft_agent_registrations_total", "counter", "Regions registered so far.", HEAD(registrations)},
    {"heft_agent_registrations_failed_total", "counter", "Registrations that failed.",
     HEAD(registrations_failed)},
    {"heft_agent_deregistrations_total", "counter", "Regions deregistered so far.", HEAD(deregistrations)},
    {"heft_agent_notifications_sent_total", "counter", "Notifications handed to connections.",
     HEAD(notifications_sent)},
    {"heft_agent_notifications_received_total", "counter", "Notifications that came.",
     HEAD(notifications_received)},
};

#define ROUTE(field) offsetof(struct heft_stats_route, field)
static const struct family of_routes[] = {
    {"heft_transport_bytes_read_total", "counter", "Bytes that transfers read.", ROUTE(bytes_read)},
    {"heft_transport_bytes_written_total", "counter", "Bytes that transfers wrote.", ROUTE(bytes_written)},
    {"heft_transport_descriptors_total", "counter", "Pieces of the transfers that ended well.",
     ROUTE(descriptors)},
    {"heft_transport_transfers_failed_total", "counter", "Transfers that ended with an error.",
     ROUTE(failed)},
    {"heft_transport_transfers_refused_total", "counter", "Posts that the transport refused.",
     ROUTE(refused)},
    {"heft_transport_retries_total", "counter", "Requests sent again and connections made again.",
     ROUTE(retries)},
};

static void put_family(struct heft_buf *buf, const char *name, const char *type, const char *help)
{
    heft_buf_printf(buf, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static uint64_t field_at(const void *base, size_t offset)
{
    return heft_stats_get((const uint64_t *)(const void *)((const char *)base + offset));
}

static void put_agents(const struct heft_telemetry_list *list, struct heft_buf *buf)
{
    char labels[LABELS_BYTES];
    size_t family, index;

    put_family(buf, "heft_agent_up", "gauge",
               "1: its process runs; 0: it is gone without closing the agent.");
    for (index = 0; index < list->count; index++) {
        agent_labels(&list->entries[index], labels);
        heft_buf_printf(buf, "heft_agent_up{%s} %d\n", labels,
                        list->entries[index].state == HEFT_TELEMETRY_LIVE);
    }
    for (family = 0; family < sizeof(of_agents) / sizeof(of_agents[0]); family++) {
        const struct family *f = &of_agents[family];

        put_family(buf, f->name, f->type, f->help);
        for (index = 0; index < list->count; index++) {
            agent_labels(&list->entries[index], labels);
            heft_buf_printf(buf, "%s{%s} %" PRIu64 "\n", f->name, labels,
                            field_at(list->entries[index].head, f->offset));
        }
    }
}

/* ---- families of routes ---- */

typedef void (*put_route_fn)(struct heft_buf *buf, const char *labels,
                             const struct heft_telemetry_entry *entry, const struct heft_stats_route *route,
                             const struct family *family);

static int is_used(const struct heft_stats_route *route)
{
    return route->begun || route->retries;
}

static void each_route(const struct heft_telemetry_list *list, struct heft_buf *buf, put_route_fn put,
                       const struct family *family)
{
    char labels[LABELS_BYTES];
    size_t index;
    uint32_t route;

    for (index = 0; index < list->count; index++) {
        const struct heft_telemetry_entry *entry = &list->entries[index];
        const struct heft_stats_route *routes = heft_stats_routes(entry->head);

        for (route = 0; route < entry->head->route_count; route++) {
            if (!is_used(&routes[route]))
                continue;
            agent_labels(entry, labels);
            (void)add_label(labels, strlen(labels), "transport", routes[route].name);
            put(buf, labels, entry, &routes[route], family);
        }
    }
}

static void put_field(struct heft_buf *buf, const char *labels, const struct heft_telemetry_entry *entry,
                      const struct heft_stats_route *route, const struct family *family)
{
    (void)entry;
    heft_buf_printf(buf, "%s{%s} %" PRIu64 "\n", family->name, labels, field_at(route, family->offset));
}

static void put_in_flight(struct heft_buf *buf, const char *labels, const struct heft_telemetry_entry *entry,
                          const struct heft_stats_route *route, const struct family *family)
{
    (void)family;
    heft_buf_printf(buf, "heft_transport_transfers_in_flight{%s} %" PRIu64 "\n", labels,
                    entry->state == HEFT_TELEMETRY_LIVE ? heft_stats_in_flight(route) : 0);
}

static void put_errors(struct heft_buf *buf, const char *labels, const struct heft_telemetry_entry *entry,
                       const struct heft_stats_route *route, const struct family *family)
{
    uint32_t index;

    (void)family;
    for (index = 0; index < entry->head->error_count; index++)
        if (route->errors[index])
            heft_buf_printf(buf, "heft_transport_errors_total{%s,code=\"%s\"} %" PRIu64 "\n", labels,
                            heft_error_name(entry->head->error_codes[index]), route->errors[index]);
}

/* Whole powers of four from a microsecond on: one bucket is worth two bits. */
static void put_histogram(struct heft_buf *buf, const char *labels, const char *op,
                          const struct heft_stats_histogram *histogram)
{
    uint64_t count = heft_stats_histogram_count(histogram), limit_ns;

    if (!count)
        return;
    for (limit_ns = 1024; limit_ns <= UINT64_C(1) << 36; limit_ns *= 4)
        heft_buf_printf(buf, "heft_transport_transfer_seconds_bucket{%s,op=\"%s\",le=\"%.9g\"} %" PRIu64 "\n",
                        labels, op, (double)limit_ns / 1e9,
                        heft_stats_histogram_below(histogram, limit_ns - 1));
    heft_buf_printf(buf,
                    "heft_transport_transfer_seconds_bucket{%s,op=\"%s\",le=\"+Inf\"} %" PRIu64 "\n"
                    "heft_transport_transfer_seconds_sum{%s,op=\"%s\"} %.9g\n"
                    "heft_transport_transfer_seconds_count{%s,op=\"%s\"} %" PRIu64 "\n",
                    labels, op, count, labels, op, heft_stats_histogram_sum_ns(histogram) / 1e9, labels, op,
                    count);
}

static void put_times(struct heft_buf *buf, const char *labels, const struct heft_telemetry_entry *entry,
                      const struct heft_stats_route *route, const struct family *family)
{
    (void)entry;
    (void)family;
    put_histogram(buf, labels, "read", &route->read_ns);
    put_histogram(buf, labels, "write", &route->write_ns);
}

void heft_telemetry_prometheus(const struct heft_telemetry_list *list, struct heft_buf *buf)
{
    size_t family;

    put_agents(list, buf);
    for (family = 0; family < sizeof(of_routes) / sizeof(of_routes[0]); family++) {
        put_family(buf, of_routes[family].name, of_routes[family].type, of_routes[family].help);
        each_route(list, buf, put_field, &of_routes[family]);
    }
    put_family(buf, "heft_transport_transfers_in_flight", "gauge", "Transfers that have not ended.");
    each_route(list, buf, put_in_flight, NULL);
    put_family(buf, "heft_transport_errors_total", "counter", "Failed and refused transfers by error.");
    each_route(list, buf, put_errors, NULL);
    put_family(buf, "heft_transport_transfer_seconds", "histogram",
               "Time from post to end of the transfers that ended well.");
    each_route(list, buf, put_times, NULL);
    put_family(buf, "heft_stats_files_refused", "gauge", "Files of statistics that could not be read.");
    heft_buf_printf(buf, "heft_stats_files_refused %zu\n", list->refused);
}
