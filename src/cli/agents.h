/* SPDX-License-Identifier: Apache-2.0 */
/* What top and stats show of agents: their statistics summed up, at one moment or between two. */
#ifndef HEFT_CLI_AGENTS_H
#define HEFT_CLI_AGENTS_H

#include "agent/telemetry.h"
#include "cli/cli.h"

struct cli_agent_sum {
    uint64_t bytes_read, bytes_written, done, failed, refused, in_flight, descriptors, retries;
    struct heft_stats_histogram read_ns, write_ns, all_ns;
};

/* All transports of an agent together. */
void cli_agent_sum(const struct heft_telemetry_entry *entry, struct cli_agent_sum *sum_out);
/* What came between; in_flight is now's. */
void cli_agent_since(const struct cli_agent_sum *now, const struct cli_agent_sum *earlier,
                     struct cli_agent_sum *since_out);
/* The agents that --telemetry and the argument (NULL: all; a pid, or a name) choose. Says on stderr how many
 * files were refused, once a command. */
int cli_agents_read(const struct cli *cli, const char *which, struct heft_telemetry_list *list_out,
                    struct heft_error *error);
/* "1.2 us", "34 ms"; "-" for 0. */
const char *cli_ns(uint64_t ns);
/* A count that fits six columns: 12345, 1.23 M. */
const char *cli_count(double count);
/* One object of heft stats --json. */
struct json_t;
struct json_t *cli_agent_json(const struct heft_telemetry_entry *entry);

/* scrape.c: serves what heft_telemetry_prometheus says at ADDR until SIGINT or SIGTERM. */
int cli_scrape_serve(const struct cli *cli, const char *address, struct heft_error *error);

#endif
