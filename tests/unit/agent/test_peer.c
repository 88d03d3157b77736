/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting: who is accepted, who is refused and how it is told; documents; regions as peers see them. */
#include "pair.h"

#include "base/random.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#define TRANSPORTS "fake"

static int setup(void **state)
{
    static struct pair pair;

    fake_register();
    pair_open(&pair, "unix,127.0.0.1:0,[::1]:0", TRANSPORTS);
    *state = &pair;
    return 0;
}

static int teardown(void **state)
{
    pair_close(*state);
    fake_unregister();
    return 0;
}

static int connect_error(struct heft_agent *client, const struct heft_peer_options *options,
                         struct heft_error *error)
{
    struct heft_peer *peer = NULL;
    int rc = heft_peer_connect(client, options, &peer, error);

    assert_int_equal(rc == 0, peer != NULL);
    if (peer)
        assert_int_equal(heft_peer_close(peer, NULL), 0);
    return rc;
}

/* The n-th address of the server alone. */
static void only_address(char addresses[2048], int index)
{
    char *at = addresses;

    while (index-- > 0)
        at = strchr(at, ',') + 1;
    memmove(addresses, at, strlen(at) + 1);
    addresses[strcspn(addresses, ",")] = 0;
}

static void every_address_of_the_list_works(void **state)
{
    struct pair *pair = *state;
    char addresses[2048];
    struct heft_peer_options options = peer_options(pair->server, addresses);
    struct heft_error error = HEFT_ERROR_INIT;

    assert_memory_equal(addresses, "unix:@heft-", 11);
    only_address(addresses, 0);
    assert_int_equal(connect_error(pair->client, &options, &error), 0);
    options = peer_options(pair->server, addresses);
    only_address(addresses, 1);
    assert_memory_equal(addresses, "tcp:127.0.0.1:", 14);
    assert_int_equal(connect_error(pair->client, &options, &error), 0);
    options = peer_options(pair->server, addresses);
    only_address(addresses, 2);
    assert_memory_equal(addresses, "tcp:[::1]:", 10);
    assert_int_equal(connect_error(pair->client, &options, &error), 0);
    options.addresses = "unix:@heft-of-nobody,tcp:127.0.0.1:1"; /* nobody there */
    assert_int_equal(connect_error(pair->client, &options, &error), HEFT_ERR_UNAVAILABLE);
    options.addresses = "tcp:127.0.0.1";
    assert_int_equal(connect_error(pair->client, &options, &error), HEFT_ERR_INVALID);
    options.addresses = ", ,";
    assert_int_equal(connect_error(pair->client, &options, &error), HEFT_ERR_INVALID);
}

static void a_dead_first_address_does_not_keep_from_the_second(void **state)
{
    struct pair *pair = *state;
    char addresses[2048], list[2200];
    struct heft_peer_options options = peer_options(pair->server, addresses);
    struct heft_error error = HEFT_ERROR_INIT;

    only_address(addresses, 1);
    (void)snprintf(list, sizeof(list), "unix:@heft-of-nobody,127.0.0.1:1,%s", addresses);
    options.addresses = list;
    assert_int_equal(connect_error(pair->client, &options, &error), 0);
}

static void the_peer_is_who_it_says_and_on_this_host(void **state)
{
    struct pair *pair = *state;
    struct heft_generation generation = heft_peer_generation(pair->peer),
                           own = heft_agent_generation(pair->server);
    const struct heft_transport_peer *view = &pair->peer->slots[0].view;

    assert_string_equal(heft_peer_name(pair->peer), "server");
    assert_memory_equal(&generation, &own, sizeof(own));
    assert_true(view->same_host && view->control_is_unix);
    assert_int_equal(view->pid, getpid());
    assert_int_equal(heft_peer_status(pair->peer, NULL), 0);
    assert_int_equal(STAT(pair->client, peers_connected), 1);
    assert_int_equal(STAT(pair->server, peers_accepted), 1);
}

static void over_tcp_the_same_host_is_known_and_no_address_is_told(void **state)
{
    struct pair *pair = *state;
    char addresses[2048];
    struct heft_peer_options options = peer_options(pair->server, addresses);
    struct heft_region *region;
    struct heft_peer *peer;

    only_address(addresses, 1);
    assert_int_equal(heft_peer_connect(pair->client, &options, &peer, NULL), 0);
    assert_true(peer->slots[0].view.same_host);
    assert_false(peer->slots[0].view.control_is_unix);
    assert_int_equal(peer->slots[0].view.pid, 0);
    region = heft_region_find(&peer->regions, heft_region_id(pair->source_region));
    assert_non_null(region);
    assert_null(region->t.address);
    assert_int_equal(heft_peer_close(peer, NULL), 0);
}

static void another_generation_is_refused_and_both_are_named(void **state)
{
    struct pair *pair = *state;
    char addresses[2048], text[HEFT_GENERATION_TEXT_BYTES];
    struct heft_peer_options options = peer_options(pair->server, addresses);
    struct heft_generation own = heft_agent_generation(pair->server);
    struct heft_error error = HEFT_ERROR_INIT;

    heft_random_bytes(options.generation.bytes, sizeof(options.generation.bytes));
    assert_int_equal(connect_error(pair->client, &options, &error), HEFT_ERR_STALE);
    assert_non_null(strstr(error.text, heft_generation_text(options.generation.bytes, text)));
    assert_non_null(strstr(error.text, heft_generation_text(own.bytes, text)));
    assert_true(STAT(pair->server, handshakes_refused) >= 1);
    assert_int_equal(STAT(pair->server, peers_accepted), 1);
    memset(&options.generation, 0, sizeof(options.generation));
    assert_int_equal(connect_error(pair->client, &options, &error), 0);
}

static void another_name_is_refused_and_both_are_named(void **state)
{
    struct pair *pair = *state;
    char addresses[2048];
    struct heft_peer_options options = peer_options(pair->server, addresses);
    struct heft_error error = HEFT_ERROR_INIT;

    options.name = "serve";
    assert_int_equal(connect_error(pair->client, &options, &error), HEFT_ERR_STALE);
    assert_non_null(strstr(error.text, "'serve'"));
    assert_non_null(strstr(error.text, "'server'"));
    options.name = NULL;
    assert_int_equal(connect_error(pair->client, &options, &error), 0);
}

static int refused_twice(void *context)
{
    return STAT((struct heft_agent *)context, handshakes_refused) == 2;
}

static void a_wrong_token_is_denied(void **state)
{
    struct pair *pair = *state;
    char addresses[2048];
    struct heft_peer_options options = peer_options(pair->server, addresses);
    struct heft_error error = HEFT_ERROR_INIT;

    options.token.bytes[31] ^= 1;
    assert_int_equal(connect_error(pair->client, &options, &error), HEFT_ERR_DENIED);
    assert_non_null(strstr(error.text, "token"));
    memset(&options.token, 0, sizeof(options.token));
    assert_int_equal(connect_error(pair->client, &options, &error), HEFT_ERR_DENIED);
    eventually(refused_twice, pair->server);
}

static void an_agent_does_not_connect_to_itself(void **state)
{
    struct pair *pair = *state;
    char addresses[2048];
    struct heft_peer_options options = peer_options(pair->server, addresses);
    struct heft_error error = HEFT_ERROR_INIT;

    assert_int_equal(connect_error(pair->server, &options, &error), HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "this agent itself"));
    memset(&options.generation, 0, sizeof(options.generation)); /* it finds out from the other end */
    error = (struct heft_error)HEFT_ERROR_INIT;
    assert_int_equal(connect_error(pair->server, &options, &error), HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "this agent itself"));
}

static void peers_over_the_limit_are_refused(void **state)
{
    struct pair *pair = *state;
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    char addresses[2048];
    struct heft_peer_options to;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *small;
    struct heft_peer *first;

    options.name = "small";
    options.listen = "unix";
    options.max_peers = 1;
    options.transports = TRANSPORTS;
    assert_int_equal(heft_agent_open(&options, &small, NULL), 0);
    first = connect_to(pair->client, small);
    to = peer_options(small, addresses);
    assert_int_equal(connect_error(pair->client, &to, &error), HEFT_ERR_TOO_MANY);
    assert_int_equal(heft_peer_close(first, NULL), 0);
    assert_int_equal(heft_agent_close(small, NULL), 0);
}

static void options_and_addresses_that_make_no_sense_are_refused(void **state)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_agent *agent = NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    char tiny[4];

    (void)state;
    options.name = "";
    assert_int_equal(heft_agent_open(&options, &agent, &error), HEFT_ERR_INVALID);
    options.name = "two\nlines";
    assert_int_equal(heft_agent_open(&options, &agent, &error), HEFT_ERR_INVALID);
    options.name = NULL;
    options.transports = "fake,carrier-pigeon";
    assert_int_equal(heft_agent_open(&options, &agent, &error), HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "carrier-pigeon"));
    options.transports = TRANSPORTS;
    options.listen = "127.0.0.1";
    assert_int_equal(heft_agent_open(&options, &agent, &error), HEFT_ERR_INVALID);
    options.listen = "unix,unix";
    assert_int_equal(heft_agent_open(&options, &agent, &error), HEFT_ERR_SYSTEM);
    options.listen = "unix:@chosen";
    assert_int_equal(heft_agent_open(&options, &agent, &error), HEFT_ERR_INVALID);
    options.listen = NULL;
    options.max_host_bytes = 1 << 20;
    assert_int_equal(heft_agent_open(&options, &agent, &error), HEFT_ERR_INVALID);
    options.max_host_bytes = 0;
    options.size = 0;
    assert_int_equal(heft_agent_open(&options, &agent, &error), HEFT_ERR_INVALID);
    assert_null(agent);
    assert_int_equal(heft_agent_open(NULL, &agent, &error), 0); /* all defaults */
    assert_int_equal(heft_agent_addresses(agent, tiny, sizeof(tiny)), 0);
    assert_string_equal(tiny, "");
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

static void a_taken_port_is_named(void **state)
{
    struct pair *pair = *state;
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *agent;
    char addresses[2048];

    (void)peer_options(pair->server, addresses);
    only_address(addresses, 1);
    options.listen = addresses;
    assert_int_equal(heft_agent_open(&options, &agent, &error), HEFT_ERR_SYSTEM);
    assert_non_null(strstr(error.text, addresses));
}

/* ---- documents ---- */

static void a_document_is_read_whole_and_replaced_at_once(void **state)
{
    struct pair *pair = *state;
    const uint64_t size = 3 * 1000 * 1000 + 17;
    uint8_t *bytes = malloc(size);
    uint64_t got, index;
    void *data;

    assert_non_null(bytes);
    for (index = 0; index < size; index++)
        bytes[index] = (uint8_t)(index * 2654435761u >> 24);
    assert_int_equal(heft_agent_set_document(pair->server, "manifest", bytes, size, NULL), 0);
    assert_int_equal(heft_peer_read_document(pair->peer, "manifest", size, 20000, &data, &got, NULL), 0);
    assert_int_equal(got, size);
    assert_memory_equal(data, bytes, size);
    heft_free(data);
    assert_int_equal(heft_agent_set_document(pair->server, "manifest", "", 0, NULL), 0);
    assert_int_equal(heft_peer_read_document(pair->peer, "manifest", 0, 20000, &data, &got, NULL), 0);
    assert_int_equal(got, 0);
    heft_free(data);
    free(bytes);
}

static void a_document_that_is_not_there_or_too_large_is_told_so(void **state)
{
    struct pair *pair = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t size;
    void *data;

    assert_int_equal(heft_peer_read_document(pair->peer, "manifest", 100, 20000, &data, &size, &error),
                     HEFT_ERR_NOT_READY);
    assert_non_null(strstr(error.text, "manifest"));
    assert_int_equal(heft_agent_set_document(pair->server, "manifest", "four", 4, NULL), 0);
    assert_int_equal(heft_peer_read_document(pair->peer, "manifest", 3, 20000, &data, &size, &error),
                     HEFT_ERR_TOO_LARGE);
    assert_int_equal(heft_peer_read_document(pair->peer, "manifest", 4, 20000, &data, &size, &error), 0);
    heft_free(data);
    assert_int_equal(heft_agent_set_document(pair->server, "manifest", NULL, 0, NULL), 0);
    assert_int_equal(heft_peer_read_document(pair->peer, "manifest", 4, 20000, &data, &size, &error),
                     HEFT_ERR_NOT_READY);
    assert_int_equal(heft_peer_read_document(pair->peer, "", 4, 20000, &data, &size, &error),
                     HEFT_ERR_INVALID);
    assert_int_equal(heft_agent_set_document(pair->server, "a\tb", "x", 1, &error), HEFT_ERR_INVALID);
}

struct reader {
    struct pair *pair;
    int failures;
};

/* Versions are one byte repeated: a mixture would be seen. */
static void *read_versions(void *context)
{
    struct reader *reader = context;
    int round;

    for (round = 0; round < 60; round++) {
        uint64_t size, index;
        uint8_t *bytes;
        void *data;

        if (heft_peer_read_document(reader->pair->peer, "v", 1 << 22, 20000, &data, &size, NULL)) {
            reader->failures++;
            continue;
        }
        bytes = data;
        for (index = 1; index < size; index++)
            if (bytes[index] != bytes[0])
                reader->failures++;
        heft_free(data);
    }
    return NULL;
}

static void a_reader_never_gets_a_mixture_of_two_versions(void **state)
{
    struct reader readers[2] = {{*state, 0}, {*state, 0}};
    const size_t size = 1 << 20;
    uint8_t *bytes = malloc(size);
    pthread_t threads[2];
    int round, index;

    assert_non_null(bytes);
    memset(bytes, 1, size);
    assert_int_equal(heft_agent_set_document(readers[0].pair->server, "v", bytes, size, NULL), 0);
    for (index = 0; index < 2; index++)
        assert_int_equal(pthread_create(&threads[index], NULL, read_versions, &readers[index]), 0);
    for (round = 0; round < 100; round++) {
        memset(bytes, round + 2, size);
        assert_int_equal(
            heft_agent_set_document(readers[0].pair->server, "v", bytes, size - (size_t)round, NULL), 0);
    }
    for (index = 0; index < 2; index++) {
        (void)pthread_join(threads[index], NULL);
        assert_int_equal(readers[index].failures, 0);
    }
    free(bytes);
}

/* ---- regions ---- */

static int create_on(struct pair *pair, uint64_t region_id, enum heft_op op, struct heft_error *error)
{
    struct heft_run run = whole_run(pair);
    struct heft_xfer *xfer;
    int rc;

    run.remote_region = region_id;
    run.length_bytes = 8;
    rc = heft_xfer_create(pair->client, op, pair->peer, &run, 1, NULL, &xfer, error);
    if (!rc) {
        rc = heft_xfer_post(xfer, error);
        if (!rc)
            rc = heft_xfer_wait(xfer, 20000);
        assert_int_equal(heft_xfer_release(xfer), 0);
    }
    return rc;
}

static void a_region_registered_later_is_there_when_a_document_names_it(void **state)
{
    struct pair *pair = *state;
    int round;

    for (round = 0; round < 50; round++) {
        uint8_t bytes[8];
        struct heft_region *region =
            register_bytes(pair->server, bytes, sizeof(bytes), HEFT_REGION_REMOTE_READ);
        uint64_t id = heft_region_id(region), told, size;
        void *data;

        memset(bytes, round + 1, sizeof(bytes));
        assert_int_equal(heft_agent_set_document(pair->server, "id", &id, sizeof(id), NULL), 0);
        assert_int_equal(heft_peer_read_document(pair->peer, "id", sizeof(id), 20000, &data, &size, NULL), 0);
        memcpy(&told, data, sizeof(told));
        heft_free(data);
        assert_int_equal(create_on(pair, told, HEFT_OP_READ, NULL), 0);
        assert_memory_equal(pair->target, bytes, sizeof(bytes));
        assert_int_equal(heft_region_deregister(region, NULL), 0);
        assert_int_equal(create_on(pair, told, HEFT_OP_READ, NULL), HEFT_ERR_STALE);
    }
}

static void regions_are_reached_only_as_their_flags_allow(void **state)
{
    struct pair *pair = *state;
    uint8_t bytes[3][8] = {{0}};
    struct heft_region *hidden = register_bytes(pair->server, bytes[0], 8, 0);
    struct heft_region *readable = register_bytes(pair->server, bytes[1], 8, HEFT_REGION_REMOTE_READ);
    struct heft_region *writable = register_bytes(pair->server, bytes[2], 8, HEFT_REGION_REMOTE_WRITE);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_peer *first = pair->peer;

    pair->peer = connect_to(pair->client, pair->server); /* knows all that is registered by now */
    assert_int_equal(create_on(pair, heft_region_id(hidden), HEFT_OP_READ, &error), HEFT_ERR_STALE);
    assert_int_equal(create_on(pair, heft_region_id(readable), HEFT_OP_READ, &error), 0);
    assert_int_equal(create_on(pair, heft_region_id(readable), HEFT_OP_WRITE, &error), HEFT_ERR_DENIED);
    assert_int_equal(create_on(pair, heft_region_id(writable), HEFT_OP_WRITE, &error), 0);
    assert_int_equal(create_on(pair, heft_region_id(writable), HEFT_OP_READ, &error), HEFT_ERR_DENIED);
    assert_int_equal(heft_peer_close(pair->peer, NULL), 0);
    pair->peer = first;
}

static void a_prepared_transfer_is_stale_once_its_region_was_withdrawn(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer *xfer = create_read(pair, NULL);
    struct heft_error error = HEFT_ERROR_INIT;
    unsigned regions = fake_remote_regions();

    assert_int_equal(heft_region_deregister(pair->source_region, NULL), 0);
    assert_int_equal(fake_remote_regions(), regions - 1); /* the reader had let go before that returned */
    assert_int_equal(heft_xfer_post(xfer, &error), HEFT_ERR_STALE);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(STAT(pair->server, regions), 0);
}

static void a_region_that_a_peer_still_reads_stays_busy_until_it_ends(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer *xfer = create_read(pair, NULL);
    struct heft_error error = HEFT_ERROR_INIT;

    fake_set_mode(FAKE_HOLD);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_region_deregister(pair->source_region, &error), HEFT_ERR_BUSY);
    assert_int_equal(heft_xfer_poll(xfer), HEFT_ERR_AGAIN); /* it is not disturbed */
    fake_finish();
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_memory_equal(pair->target, pair->source, REGION_BYTES);
    assert_int_equal(heft_xfer_post(xfer, NULL), HEFT_ERR_STALE); /* but not begun again */
    assert_int_equal(heft_region_deregister(pair->source_region, NULL), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void pins_of_served_reads_keep_a_region_and_check_its_bounds(void **state)
{
    struct pair *pair = *state;
    uint64_t id = heft_region_id(pair->source_region);
    struct heft_transport_region *pinned = NULL, *none;
    struct heft_region *own = register_bytes(pair->server, pair->target, 16, 0);

    assert_int_equal(
        heft_host_pin_region(pair->server, id, 0, REGION_BYTES, HEFT_REGION_REMOTE_READ, &pinned), 0);
    assert_int_equal(heft_region_deregister(pair->source_region, NULL), HEFT_ERR_BUSY);
    assert_int_equal(heft_host_pin_region(pair->server, id, 1, REGION_BYTES, HEFT_REGION_REMOTE_READ, &none),
                     HEFT_ERR_RANGE);
    assert_int_equal(heft_host_pin_region(pair->server, id, UINT64_MAX, 2, HEFT_REGION_REMOTE_READ, &none),
                     HEFT_ERR_RANGE);
    assert_int_equal(heft_host_pin_region(pair->server, id, 0, UINT64_MAX, HEFT_REGION_REMOTE_READ, &none),
                     HEFT_ERR_RANGE);
    assert_int_equal(
        heft_host_pin_region(pair->server, heft_region_id(own), 0, 1, HEFT_REGION_REMOTE_READ, &none),
        HEFT_ERR_DENIED);
    assert_int_equal(heft_host_pin_region(pair->server, 1000, 0, 1, HEFT_REGION_REMOTE_READ, &none),
                     HEFT_ERR_STALE);
    heft_host_unpin_region(pair->server, pinned);
    assert_int_equal(heft_region_deregister(pair->source_region, NULL), 0);
    assert_int_equal(heft_host_pin_region(pair->server, id, 0, 1, HEFT_REGION_REMOTE_READ, &none),
                     HEFT_ERR_STALE);
}

/* ---- goodbye ---- */

static int is_lost(void *context)
{
    return heft_peer_status(context, NULL) == HEFT_ERR_PEER_LOST;
}

static int nobody_connected(void *context)
{
    return STAT((struct heft_agent *)context, peers_accepted) == 0;
}

static void a_closed_agent_ends_its_readers_transfers_with_its_name(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_xfer *xfer = create_read(pair, NULL);
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t before = heft_now_ns();

    fake_set_mode(FAKE_HOLD);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_agent_close(pair->server, NULL), 0);
    pair->server = NULL;
    assert_int_equal(heft_xfer_wait(xfer, 20000), HEFT_ERR_PEER_LOST);
    assert_true(heft_now_ns() - before < 3 * HEFT_NS_PER_S);
    heft_xfer_get_result(xfer, &result);
    assert_non_null(strstr(result.error.text, "'server' (generation "));
    assert_int_equal(heft_xfer_post(xfer, &error), HEFT_ERR_PEER_LOST);
    assert_non_null(strstr(error.text, "goodbye"));
    assert_int_equal(heft_xfer_release(xfer), 0);
    eventually(is_lost, pair->peer);
    assert_int_equal(STAT(pair->client, peers_lost), 1);
}

static void a_peer_that_says_goodbye_is_not_counted_as_lost(void **state)
{
    struct pair *pair = *state;

    assert_int_equal(heft_peer_close(pair->peer, NULL), 0);
    eventually(nobody_connected, pair->server);
    assert_int_equal(STAT(pair->server, peers_lost), 0);
    assert_int_equal(STAT(pair->client, peers_connected), 0);
}

struct silent_connect {
    struct heft_agent *agent;
    char address[64];
    int rc;
};

static void *connect_silent(void *argument)
{
    struct silent_connect *call = argument;
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    struct heft_peer *peer;

    options.addresses = call->address;
    options.connect_timeout_ms = 2000;
    call->rc = heft_peer_connect(call->agent, &options, &peer, NULL);
    return NULL;
}

static int is_busy(void *context)
{
    struct silent_connect *call = context;

    return __atomic_load_n(&call->agent->busy, __ATOMIC_ACQUIRE) > 0;
}

/* Whoever answers the TCP handshake and nothing else keeps a connecting thread inside the agent. */
static void an_agent_is_busy_while_a_peer_is_being_connected(void **state)
{
    struct pair *pair = *state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct silent_connect call = {.agent = pair->client};
    socklen_t size = sizeof(address);
    struct heft_error error = HEFT_ERROR_INIT;
    pthread_t thread;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    (void)snprintf(call.address, sizeof(call.address), "tcp:127.0.0.1:%u", ntohs(address.sin_port));
    assert_int_equal(pthread_create(&thread, NULL, connect_silent, &call), 0);
    eventually(is_busy, &call);
    assert_int_equal(heft_agent_close(pair->client, &error), HEFT_ERR_BUSY);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(call.rc, HEFT_ERR_DEADLINE);
    (void)close(fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_address_of_the_list_works),
        TEST(an_agent_is_busy_while_a_peer_is_being_connected),
        TEST(a_dead_first_address_does_not_keep_from_the_second),
        TEST(the_peer_is_who_it_says_and_on_this_host),
        TEST(over_tcp_the_same_host_is_known_and_no_address_is_told),
        TEST(another_generation_is_refused_and_both_are_named),
        TEST(another_name_is_refused_and_both_are_named),
        TEST(a_wrong_token_is_denied),
        TEST(an_agent_does_not_connect_to_itself),
        TEST(peers_over_the_limit_are_refused),
        TEST(options_and_addresses_that_make_no_sense_are_refused),
        TEST(a_taken_port_is_named),
        TEST(a_document_is_read_whole_and_replaced_at_once),
        TEST(a_document_that_is_not_there_or_too_large_is_told_so),
        TEST(a_reader_never_gets_a_mixture_of_two_versions),
        TEST(a_region_registered_later_is_there_when_a_document_names_it),
        TEST(regions_are_reached_only_as_their_flags_allow),
        TEST(a_prepared_transfer_is_stale_once_its_region_was_withdrawn),
        TEST(a_region_that_a_peer_still_reads_stays_busy_until_it_ends),
        TEST(pins_of_served_reads_keep_a_region_and_check_its_bounds),
        TEST(a_closed_agent_ends_its_readers_transfers_with_its_name),
        TEST(a_peer_that_says_goodbye_is_not_counted_as_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
