/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/agents.h"
#include "base/clock.h"
#include "base/error.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void cli_agent_sum(const struct heft_telemetry_entry *entry, struct cli_agent_sum *sum_out)
{
    const struct heft_stats_route *routes = heft_stats_routes(entry->head);
    uint32_t index;

    memset(sum_out, 0, sizeof(*sum_out));
    for (index = 0; index < entry->head->route_count; index++) {
        const struct heft_stats_route *route = &routes[index];

        sum_out->bytes_read += route->bytes_read;
        sum_out->bytes_written += route->bytes_written;
        sum_out->done += heft_stats_done(route);
        sum_out->failed += route->failed;
        sum_out->refused += route->refused;
        sum_out->descriptors += route->descriptors;
        sum_out->retries += route->retries;
        if (entry->state == HEFT_TELEMETRY_LIVE)
            sum_out->in_flight += heft_stats_in_flight(route);
        heft_stats_histogram_add(&sum_out->read_ns, &route->read_ns);
        heft_stats_histogram_add(&sum_out->write_ns, &route->write_ns);
    }
    sum_out->all_ns = sum_out->read_ns;
    heft_stats_histogram_add(&sum_out->all_ns, &sum_out->write_ns);
}

void cli_agent_since(const struct cli_agent_sum *now, const struct cli_agent_sum *earlier,
                     struct cli_agent_sum *since_out)
{
#define SINCE(field) since_out->field = now->field > earlier->field ? now->field - earlier->field : 0
    SINCE(bytes_read);
    SINCE(bytes_written);
    SINCE(done);
    SINCE(failed);
    SINCE(refused);
    SINCE(descriptors);
    SINCE(retries);
#undef SINCE
    since_out->in_flight = now->in_flight;
    heft_stats_histogram_since(&now->read_ns, &earlier->read_ns, &since_out->read_ns);
    heft_stats_histogram_since(&now->write_ns, &earlier->write_ns, &since_out->write_ns);
    heft_stats_histogram_since(&now->all_ns, &earlier->all_ns, &since_out->all_ns);
}

static int is_wanted(const struct heft_telemetry_entry *entry, const char *which)
{
    char pid[24];

    (void)snprintf(pid, sizeof(pid), "%" PRIu64, entry->head->pid);
    return !which || strcmp(entry->head->name, which) == 0 || strcmp(pid, which) == 0;
}

int cli_agents_read(const struct cli *cli, const char *which, struct heft_telemetry_list *list_out,
                    struct heft_error *error)
{
    static int told;
    const char *folder = heft_config_text(&cli->config, "telemetry");
    struct heft_telemetry_list list;
    size_t index, kept = 0;
    int rc;

    rc = heft_telemetry_read(folder, &list, error);
    if (rc)
        return rc;
    if (list.refused && !told) {
        told = 1;
        fprintf(stderr, "heft: %s: %zu files of statistics can't be read; the last one: %s\n", cli->command,
                list.refused, cli_safe(list.last.text));
    }
    for (index = 0; index < list.count; index++)
        if (is_wanted(&list.entries[index], which))
            list.entries[kept++] = list.entries[index];
        else
            free(list.entries[index].head);
    list.count = kept;
    if (which && !kept) {
        heft_telemetry_list_free(&list);
        return heft_error_set(error, HEFT_ERR_NOT_FOUND,
                              "no agent has the name or the process id '%s'; heft stats lists all", which);
    }
    *list_out = list;
    return 0;
}

static char *text_buffer(size_t *size_out)
{
    static char buffers[32][32];
    static unsigned next;

    *size_out = sizeof(buffers[0]);
    return buffers[next++ % 32];
}

const char *cli_ns(uint64_t ns)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    double value = (double)ns;
    size_t unit = 0, size;
    char *text = text_buffer(&size);

    if (!ns)
        return "-";
    while (value >= 1000 && unit < 3) {
        value /= 1000;
        unit++;
    }
    (void)snprintf(text, size, "%.*f %s", unit && value < 10 ? 1 : 0, value, units[unit]);
    return text;
}

const char *cli_count(double count)
{
    static const char *const units[] = {"", " k", " M", " G", " T"};
    size_t unit = 0, size;
    char *text = text_buffer(&size);

    while (count >= 99999.5 && unit < 4) {
        count /= 1000;
        unit++;
    }
    (void)snprintf(text, size, "%.0f%s", count, units[unit]);
    return text;
}

/* ---- JSON ---- */

static json_t *number(uint64_t value)
{
    return json_integer(value < INT64_MAX ? (json_int_t)value : INT64_MAX);
}

static json_t *times_json(const struct heft_stats_histogram *histogram)
{
    uint64_t count = heft_stats_histogram_count(histogram);

    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "count", number(count), "p50_ns",
                     number(heft_stats_histogram_at(histogram, 0.5)), "p90_ns",
                     number(heft_stats_histogram_at(histogram, 0.9)), "p99_ns",
                     number(heft_stats_histogram_at(histogram, 0.99)), "max_ns",
                     number(heft_stats_histogram_at(histogram, 1)), "mean_ns",
                     number(count ? (uint64_t)(heft_stats_histogram_sum_ns(histogram) / (double)count) : 0));
}

static json_t *route_json(const struct heft_telemetry_entry *entry, const struct heft_stats_route *route)
{
    json_t *errors = json_object(), *object;
    uint32_t index;

    for (index = 0; index < entry->head->error_count; index++)
        if (route->errors[index])
            (void)json_object_set_new(errors, heft_error_name(entry->head->error_codes[index]),
                                      number(route->errors[index]));
    object = json_object();
    (void)json_object_set_new(object, "transport", json_string(cli_safe(route->name)));
    (void)json_object_set_new(object, "done", number(heft_stats_done(route)));
    (void)json_object_set_new(object, "failed", number(route->failed));
    (void)json_object_set_new(object, "refused", number(route->refused));
    (void)json_object_set_new(object, "in_flight",
                              number(entry->state == HEFT_TELEMETRY_LIVE ? heft_stats_in_flight(route) : 0));
    (void)json_object_set_new(object, "bytes_read", number(route->bytes_read));
    (void)json_object_set_new(object, "bytes_written", number(route->bytes_written));
    (void)json_object_set_new(object, "descriptors", number(route->descriptors));
    (void)json_object_set_new(object, "retries", number(route->retries));
    (void)json_object_set_new(object, "errors", errors);
    (void)json_object_set_new(object, "read", times_json(&route->read_ns));
    (void)json_object_set_new(object, "write", times_json(&route->write_ns));
    return object;
}

json_t *cli_agent_json(const struct heft_telemetry_entry *entry)
{
    const struct heft_stats_head *head = entry->head;
    const struct heft_stats_route *routes = heft_stats_routes(entry->head);
    json_t *object = json_object(), *transports = json_array();
    char generation[33];
    uint32_t index;

    cli_hex(head->generation, sizeof(head->generation), generation);
    (void)json_object_set_new(object, "agent", json_string(cli_safe(head->name)));
    (void)json_object_set_new(object, "generation", json_string(generation));
    (void)json_object_set_new(object, "pid", number(head->pid));
    (void)json_object_set_new(object, "program", json_string(cli_safe(head->program)));
    (void)json_object_set_new(object, "uid", number(entry->uid));
    (void)json_object_set_new(object, "state",
                              json_string(entry->state == HEFT_TELEMETRY_LIVE ? "running" : "ended"));
    (void)json_object_set_new(object, "opened_ms", number(head->opened_wall_ms));
    if (entry->state != HEFT_TELEMETRY_LIVE)
        (void)json_object_set_new(object, "missed_ms", number(head->ended_wall_ms));
#define NUMBER(field) (void)json_object_set_new(object, #field, number(head->field))
    NUMBER(bytes_served);
    NUMBER(peers_connected);
    NUMBER(peers_accepted);
    NUMBER(connects);
    NUMBER(connects_failed);
    NUMBER(peers_lost);
    NUMBER(handshakes_refused);
    NUMBER(regions);
    NUMBER(region_bytes);
    NUMBER(registrations);
    NUMBER(registrations_failed);
    NUMBER(deregistrations);
    NUMBER(notifications_sent);
    NUMBER(notifications_received);
#undef NUMBER
    (void)json_object_set_new(object, "connect", times_json(&head->connect_ns));
    (void)json_object_set_new(object, "register", times_json(&head->register_ns));
    for (index = 0; index < head->route_count; index++)
        (void)json_array_append_new(transports, route_json(entry, &routes[index]));
    (void)json_object_set_new(object, "transports", transports);
    return object;
}
