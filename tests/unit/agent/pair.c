/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include <dirent.h>
#include <unistd.h>

struct heft_agent *open_agent(const char *name, const char *listen, const char *transports)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *agent = NULL;

    options.name = name;
    options.listen = listen;
    options.transports = transports;
    options.workers = 2;
    options.heartbeat_ms = 50;
    options.peer_timeout_ms = 2000;
    if (heft_agent_open(&options, &agent, &error))
        fail_msg("opening %s: %s", name, error.text);
    return agent;
}

struct heft_peer_options peer_options(struct heft_agent *server, char addresses[2048])
{
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;

    assert_int_equal(heft_agent_addresses(server, addresses, 2048), 0);
    options.addresses = addresses;
    options.name = heft_agent_name(server);
    options.generation = heft_agent_generation(server);
    options.token = heft_agent_token(server);
    options.connect_timeout_ms = 20000;
    return options;
}

struct heft_peer *connect_to(struct heft_agent *client, struct heft_agent *server)
{
    char addresses[2048];
    struct heft_peer_options options = peer_options(server, addresses);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_peer *peer = NULL;

    if (heft_peer_connect(client, &options, &peer, &error))
        fail_msg("connecting: %s", error.text);
    return peer;
}

struct heft_region *register_bytes(struct heft_agent *agent, void *address, uint64_t size, uint32_t flags)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_region *region = NULL;

    options.address = address;
    options.length_bytes = size;
    options.flags = flags;
    if (heft_region_register(agent, &options, &region, &error))
        fail_msg("registering: %s", error.text);
    return region;
}

void pair_open(struct pair *pair, const char *listen, const char *transports)
{
    size_t index;

    memset(pair, 0, sizeof(*pair));
    for (index = 0; index < REGION_BYTES; index++)
        pair->source[index] = (uint8_t)(index * 31 + 7);
    pair->server = open_agent("server", listen, transports);
    pair->client = open_agent("client", NULL, transports);
    pair->source_region = register_bytes(pair->server, pair->source, REGION_BYTES,
                                         HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE);
    pair->target_region = register_bytes(pair->client, pair->target, REGION_BYTES, 0);
    pair->peer = connect_to(pair->client, pair->server);
    assert_int_equal(heft_agent_addresses(pair->server, pair->addresses, sizeof(pair->addresses)), 0);
}

void pair_close(struct pair *pair)
{
    struct heft_error error = HEFT_ERROR_INIT;

    if (pair->client && heft_agent_close(pair->client, &error))
        fail_msg("closing the client: %s", error.text);
    if (pair->server && heft_agent_close(pair->server, &error))
        fail_msg("closing the server: %s", error.text);
}

struct heft_run whole_run(struct pair *pair)
{
    struct heft_run run = {.local_region = pair->target_region,
                           .remote_region = heft_region_id(pair->source_region),
                           .length_bytes = REGION_BYTES,
                           .count = 1};

    return run;
}

struct heft_xfer *create_read(struct pair *pair, const struct heft_xfer_options *options)
{
    struct heft_run run = whole_run(pair);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_xfer *xfer = NULL;

    if (heft_xfer_create(pair->client, HEFT_OP_READ, pair->peer, &run, 1, options, &xfer, &error))
        fail_msg("creating a transfer: %s", error.text);
    return xfer;
}

void eventually(int (*holds)(void *context), void *context)
{
    uint64_t until = heft_now_ns() + 20 * HEFT_NS_PER_S;

    while (!holds(context)) {
        if (heft_now_ns() > until)
            fail_msg("it never came true");
        (void)usleep(1000);
    }
}

uint64_t stat_of(struct heft_agent *agent, size_t offset)
{
    struct heft_agent_stats stats = {.size = sizeof(stats)};
    uint64_t value;

    heft_agent_get_stats(agent, &stats);
    memcpy(&value, (const char *)&stats + offset, sizeof(value));
    return value;
}

static int count_entries(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    int count = 0;

    assert_non_null(folder);
    while ((entry = readdir(folder)) != NULL)
        count += entry->d_name[0] != '.';
    (void)closedir(folder);
    return count;
}

int count_fds(void)
{
    return count_entries("/proc/self/fd") - 1; /* without the one that is counting */
}

int count_threads(void)
{
    return count_entries("/proc/self/task");
}
