/* SPDX-License-Identifier: Apache-2.0 */
/* heft stats: what the agents of this host counted, for people, programs and Prometheus. */
#include "cli/agents.h"
#include "base/clock.h"
#include "base/error.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

static void print_times(const char *what, const struct heft_stats_histogram *histogram)
{
    if (heft_stats_histogram_count(histogram))
        printf(
            "  %-9s p50 %s, p90 %s, p99 %s, most %s\n", what, cli_ns(heft_stats_histogram_at(histogram, 0.5)),
            cli_ns(heft_stats_histogram_at(histogram, 0.9)), cli_ns(heft_stats_histogram_at(histogram, 0.99)),
            cli_ns(heft_stats_histogram_at(histogram, 1)));
}

static void print_route(const struct heft_telemetry_entry *entry, const struct heft_stats_route *route)
{
    uint32_t index;

    if (!route->begun && !route->retries)
        return;
    printf("  %s: %s transfers of %s pieces, %s read, %s written", cli_safe(route->name),
           cli_count((double)heft_stats_done(route)), cli_count((double)route->descriptors),
           cli_bytes(route->bytes_read), cli_bytes(route->bytes_written));
    if (entry->state == HEFT_TELEMETRY_LIVE && heft_stats_in_flight(route))
        printf(", %" PRIu64 " in flight", heft_stats_in_flight(route));
    if (route->failed)
        printf(", %" PRIu64 " failed", route->failed);
    if (route->refused)
        printf(", %" PRIu64 " refused", route->refused);
    if (route->retries)
        printf(", %" PRIu64 " retries", route->retries);
    printf("\n");
    print_times("  READ", &route->read_ns);
    print_times("  WRITE", &route->write_ns);
    for (index = 0; index < entry->head->error_count; index++)
        if (route->errors[index])
            printf("    %s: %" PRIu64 "\n", heft_error_name(entry->head->error_codes[index]),
                   route->errors[index]);
}

static const char *since(uint64_t then_ms)
{
    uint64_t now_ms = heft_wall_ms();

    return cli_seconds(now_ms > then_ms ? (double)(now_ms - then_ms) / 1e3 : 0);
}

static void print_agent(const struct heft_telemetry_entry *entry)
{
    const struct heft_stats_head *head = entry->head;
    const struct heft_stats_route *routes = heft_stats_routes(entry->head);
    uint32_t index;

    printf("%s  pid %" PRIu64 " (%s), opened %s ago", cli_safe(head->name), head->pid,
           cli_safe(head->program), since(head->opened_wall_ms));
    if (entry->state == HEFT_TELEMETRY_ENDED)
        printf(", ENDED: its process crashed or left; missed for %s", since(head->ended_wall_ms));
    printf("\n  peers: %" PRIu64 " connected, %" PRIu64 " accepted, %" PRIu64 " lost, %" PRIu64 " refused\n",
           head->peers_connected, head->peers_accepted, head->peers_lost, head->handshakes_refused);
    printf("  regions: %" PRIu64 " of %s; %" PRIu64 " registered so far, %" PRIu64 " failed\n", head->regions,
           cli_bytes(head->region_bytes), head->registrations, head->registrations_failed);
    if (head->notifications_sent || head->notifications_received)
        printf("  notifications: %" PRIu64 " sent, %" PRIu64 " received\n", head->notifications_sent,
               head->notifications_received);
    if (head->bytes_served)
        printf("  served: %s\n", cli_bytes(head->bytes_served));
    print_times("connect", &head->connect_ns);
    print_times("register", &head->register_ns);
    for (index = 0; index < head->route_count; index++)
        print_route(entry, &routes[index]);
}

static int print_prometheus(const struct heft_telemetry_list *list, struct heft_error *error)
{
    struct heft_buf buf;
    int rc;

    heft_buf_init(&buf, (size_t)64 << 20);
    heft_telemetry_prometheus(list, &buf);
    rc =
        buf.failed ? heft_error_set(error, buf.failed, "the text of %zu agents is too long", list->count) : 0;
    if (!rc)
        (void)fwrite(buf.data, 1, buf.size, stdout);
    heft_buf_free(&buf);
    return rc;
}

int cli_stats(struct cli *cli)
{
    const char *address = heft_config_text(&cli->config, "serve");
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_telemetry_list list;
    json_t *array;
    size_t index;
    int rc;

    if (address) {
        rc = cli->argument_count
                 ? heft_error_set(&error, HEFT_ERR_INVALID, "--serve tells all agents: leave '%s' away",
                                  cli->arguments[0])
                 : cli_scrape_serve(cli, address, &error);
        return rc ? cli_fail(cli, rc, &error) : EXIT_DONE;
    }
    rc = cli_agents_read(cli, cli->argument_count ? cli->arguments[0] : NULL, &list, &error);
    if (rc)
        return cli_fail(cli, rc, &error);
    if (cli->json) {
        array = json_array();
        for (index = 0; index < list.count; index++)
            (void)json_array_append_new(array, cli_agent_json(&list.entries[index]));
        cli_print_json(array, 0);
        json_decref(array);
    } else if (heft_config_number(&cli->config, "prometheus")) {
        rc = print_prometheus(&list, &error);
    } else if (list.count == 0) {
        printf("no agents of this user run on this host, and none ended in the last ten minutes\n");
    }
    for (index = 0; !cli->json && !heft_config_number(&cli->config, "prometheus") && index < list.count;
         index++)
        print_agent(&list.entries[index]);
    heft_telemetry_list_free(&list);
    return rc ? cli_fail(cli, rc, &error) : EXIT_DONE;
}
