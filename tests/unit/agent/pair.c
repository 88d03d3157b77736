/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include <dirent.h>
#include <unistd.h>

#undef heft_agent_close

/* ---- agents without threads ---- */

#define DRIVEN_MAX 64

/* The thread that drives one agent. */
struct driver {
    struct heft_agent *agent;
    pthread_t thread;
    int stop;
};

static struct driver drivers[DRIVEN_MAX];
static pthread_mutex_t drivers_lock = PTHREAD_MUTEX_INITIALIZER;

int test_is_driven(void)
{
    return getenv("HEFT_TEST_CALLER_PROGRESS") != NULL;
}

static void *drive(void *context)
{
    struct driver *driver = context;

    while (!__atomic_load_n(&driver->stop, __ATOMIC_ACQUIRE))
        (void)heft_agent_progress(driver->agent, 5);
    return NULL;
}

static void start_driver(struct heft_agent *agent)
{
    size_t index;

    (void)pthread_mutex_lock(&drivers_lock);
    for (index = 0; index < DRIVEN_MAX && drivers[index].agent; index++)
        ;
    assert_true(index < DRIVEN_MAX);
    drivers[index].agent = agent;
    drivers[index].stop = 0;
    assert_int_equal(pthread_create(&drivers[index].thread, NULL, drive, &drivers[index]), 0);
    (void)pthread_mutex_unlock(&drivers_lock);
}

static int stop_driver(struct heft_agent *agent)
{
    struct driver *found = NULL;
    size_t index;

    (void)pthread_mutex_lock(&drivers_lock);
    for (index = 0; index < DRIVEN_MAX; index++)
        if (agent && drivers[index].agent == agent)
            found = &drivers[index];
    (void)pthread_mutex_unlock(&drivers_lock);
    if (!found || heft_agent_on_worker(agent))
        return 0;
    __atomic_store_n(&found->stop, 1, __ATOMIC_RELEASE);
    (void)pthread_join(found->thread, NULL);
    (void)pthread_mutex_lock(&drivers_lock);
    found->agent = NULL;
    (void)pthread_mutex_unlock(&drivers_lock);
    return 1;
}

int close_agent(struct heft_agent *agent, struct heft_error *error)
{
    int stopped = stop_driver(agent), rc = heft_agent_close(agent, error);

    if (rc && stopped)
        start_driver(agent);
    return rc;
}

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
    if (test_is_driven())
        options.flags |= HEFT_AGENT_CALLER_PROGRESS;
    if (heft_agent_open(&options, &agent, &error))
        fail_msg("opening %s: %s", name, error.text);
    if (test_is_driven())
        start_driver(agent);
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

    if (pair->client && close_agent(pair->client, &error))
        fail_msg("closing the client: %s", error.text);
    if (pair->server && close_agent(pair->server, &error))
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
