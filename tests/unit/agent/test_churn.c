/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Again and again, over the transports of this machine: connecting, moving, closing leave nothing behind, and
 * many at once do not disturb each other.
 */
#include "pair.h"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#define BYTES ((uint64_t)64 << 10)

struct fixture {
    struct heft_agent *server, *client;
    struct heft_memory *source, *target;
    uint8_t *source_bytes, *target_bytes;
    struct heft_region *source_region, *target_region;
};

static struct heft_region *register_memory(struct heft_agent *agent, struct heft_memory *memory,
                                           uint32_t flags)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_region *region = NULL;

    options.memory = memory;
    options.flags = flags;
    if (heft_region_register(agent, &options, &region, &error))
        fail_msg("registering: %s", error.text);
    return region;
}

static uint8_t *address_of(struct heft_memory *memory)
{
    struct heft_memory_info info;

    heft_memory_get_info(memory, &info);
    return info.address;
}

static int setup(void **state)
{
    static struct fixture fixture;
    uint64_t index;

    memset(&fixture, 0, sizeof(fixture));
    fixture.server = open_agent("server", "unix,127.0.0.1:0", "local,tcp");
    fixture.client = open_agent("client", NULL, "local,tcp");
    assert_int_equal(heft_memory_alloc(BYTES, 0, &fixture.source, NULL), 0);
    assert_int_equal(heft_memory_alloc(BYTES, 0, &fixture.target, NULL), 0);
    fixture.source_bytes = address_of(fixture.source);
    fixture.target_bytes = address_of(fixture.target);
    for (index = 0; index < BYTES; index++)
        fixture.source_bytes[index] = (uint8_t)(index * 131 >> 3);
    fixture.source_region = register_memory(fixture.server, fixture.source, HEFT_REGION_REMOTE_READ);
    fixture.target_region = register_memory(fixture.client, fixture.target, 0);
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    assert_int_equal(heft_agent_close(fixture->client, NULL), 0);
    assert_int_equal(heft_agent_close(fixture->server, NULL), 0);
    heft_memory_free(fixture->source);
    heft_memory_free(fixture->target);
    return 0;
}

static void move_once(struct fixture *fixture, struct heft_peer *peer, const char *require)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_run run = {.local_region = fixture->target_region,
                           .remote_region = heft_region_id(fixture->source_region),
                           .length_bytes = BYTES,
                           .count = 1};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_xfer *xfer;

    options.require = require;
    if (heft_xfer_create(fixture->client, HEFT_OP_READ, peer, &run, 1, &options, &xfer, &error))
        fail_msg("creating: %s", error.text);
    memset(fixture->target_bytes, 0, BYTES);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    if (heft_xfer_wait(xfer, 20000)) {
        heft_xfer_get_result(xfer, &result);
        fail_msg("moving: %s", result.error.text);
    }
    assert_memory_equal(fixture->target_bytes, fixture->source_bytes, BYTES);
    heft_xfer_get_result(xfer, &result);
    assert_string_equal(result.transport, require);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void shareable_memory_is_mapped_and_only_as_its_flags_allow(void **state)
{
    struct fixture *fixture = *state;
    struct heft_region *writable =
        register_memory(fixture->server, fixture->source, HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE);
    struct heft_peer *peer = connect_to(fixture->client, fixture->server);
    struct heft_region *seen = heft_region_find(&peer->regions, heft_region_id(fixture->source_region));

    assert_non_null(seen);
    assert_true(seen->t.fd >= 0);
    assert_int_equal(fcntl(seen->t.fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    assert_true(fcntl(seen->t.fd, F_GETFD) & FD_CLOEXEC);
    seen = heft_region_find(&peer->regions, heft_region_id(writable));
    assert_non_null(seen);
    assert_int_equal(fcntl(seen->t.fd, F_GETFL) & O_ACCMODE, O_RDWR);
    move_once(fixture, peer, "local");
    move_once(fixture, peer, "tcp");
    assert_int_equal(STAT(fixture->server, bytes_served), BYTES); /* of tcp alone */
    assert_int_equal(heft_peer_close(peer, NULL), 0);
}

static void many_regions_with_descriptors_all_arrive(void **state)
{
    struct fixture *fixture = *state;
    struct heft_region *regions[300];
    struct heft_peer *peer;
    int index, fds = count_fds();

    for (index = 0; index < 300; index++)
        regions[index] = register_memory(fixture->server, fixture->source, HEFT_REGION_REMOTE_READ);
    peer = connect_to(fixture->client, fixture->server);
    for (index = 0; index < 300; index++) {
        struct heft_region *seen = heft_region_find(&peer->regions, heft_region_id(regions[index]));

        assert_non_null(seen);
        assert_true(seen->t.fd >= 0);
    }
    for (index = 0; index < 300; index++)
        assert_int_equal(heft_region_deregister(regions[index], NULL), 0);
    assert_int_equal(heft_peer_close(peer, NULL), 0);
    assert_true(count_fds() <= fds + 2); /* the two ends of the connection may linger */
}

static void settle(struct fixture *fixture)
{
    int turn;

    for (turn = 0; turn < 20000 && STAT(fixture->server, peers_accepted); turn++)
        (void)usleep(1000);
    assert_int_equal(STAT(fixture->server, peers_accepted), 0);
}

/* Data streams are closed a little after their session: the number once it has not changed for a while. */
static int steady_fds(void)
{
    int count = count_fds(), same = 0, turn;

    for (turn = 0; turn < 2000 && same < 30; turn++) {
        int now;

        (void)usleep(10 * 1000);
        now = count_fds();
        same = now == count ? same + 1 : 0;
        count = now;
    }
    return count;
}

static void connect_move_close(struct fixture *fixture, const char *require, int rounds)
{
    int round;

    for (round = 0; round < rounds; round++) {
        struct heft_peer *peer = connect_to(fixture->client, fixture->server);

        move_once(fixture, peer, require);
        assert_int_equal(heft_peer_close(peer, NULL), 0);
    }
    settle(fixture);
}

static void a_thousand_lives_of_a_connection_leave_nothing_behind(void **state)
{
    static const char *const ways[] = {"local", "tcp"};
    struct fixture *fixture = *state;
    int way;

    for (way = 0; way < 2; way++) {
        size_t memory, grown;
        int fds, threads;

        connect_move_close(fixture, ways[way], 100);
        fds = steady_fds();
        threads = count_threads();
        memory = mallinfo2().uordblks;
        connect_move_close(fixture, ways[way], 400);
        assert_int_equal(steady_fds(), fds);
        assert_int_equal(count_threads(), threads);
        grown = mallinfo2().uordblks;
        if (grown > memory + (64 << 10))
            fail_msg("%s: %zu bytes in use, %zu before", ways[way], grown, memory);
    }
}

/* ---- many at once ---- */

struct user {
    struct fixture *fixture;
    int failures;
};

static void *connect_often(void *context)
{
    struct user *user = context;
    int round;

    for (round = 0; round < 25; round++) {
        char addresses[2048];
        struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
        struct heft_peer *peer;

        (void)heft_agent_addresses(user->fixture->server, addresses, sizeof(addresses));
        options.addresses = addresses;
        options.token = heft_agent_token(user->fixture->server);
        options.connect_timeout_ms = 20000;
        if (heft_peer_connect(user->fixture->client, &options, &peer, NULL)) {
            user->failures++;
            continue;
        }
        user->failures += heft_peer_close(peer, NULL) != 0;
    }
    return NULL;
}

static void handshakes_at_once_while_regions_come_and_go(void **state)
{
    struct fixture *fixture = *state;
    struct user users[8];
    pthread_t threads[8];
    struct heft_peer *witness = connect_to(fixture->client, fixture->server);
    int index, round;

    for (index = 0; index < 8; index++) {
        users[index] = (struct user){fixture, 0};
        assert_int_equal(pthread_create(&threads[index], NULL, connect_often, &users[index]), 0);
    }
    for (round = 0; round < 100; round++) {
        struct heft_region *region =
            register_memory(fixture->server, fixture->source, HEFT_REGION_REMOTE_READ);
        int rc;

        do
            rc = heft_region_deregister(region, NULL);
        while (rc == HEFT_ERR_BUSY); /* a peer was slow to answer */
        assert_int_equal(rc, 0);
    }
    for (index = 0; index < 8; index++) {
        (void)pthread_join(threads[index], NULL);
        assert_int_equal(users[index].failures, 0);
    }
    move_once(fixture, witness, "local");
    assert_int_equal(heft_peer_close(witness, NULL), 0);
    settle(fixture);
}

static void registering_many_regions_does_not_slow_down(void **state)
{
    struct fixture *fixture = *state;
    static struct heft_region *regions[20000];
    uint64_t first = 0, last = 0, begin;
    int round, index;

    for (round = 0; round < 10; round++) {
        begin = heft_now_ns();
        for (index = round * 2000; index < (round + 1) * 2000; index++)
            regions[index] = register_bytes(fixture->client, fixture->target_bytes, 16, 0);
        last = heft_now_ns() - begin;
        if (round == 0)
            first = last;
    }
    assert_true(last < 10 * first + 100 * HEFT_NS_PER_MS); /* linear would be far more */
    for (index = 0; index < 20000; index++)
        assert_int_equal(heft_region_deregister(regions[index], NULL), 0);
    assert_int_equal(STAT(fixture->client, regions), 1);
}

static void a_hundred_thousand_runs_are_prepared_quickly(void **state)
{
    struct fixture *fixture = *state;
    const size_t count = 100000, piece = 16;
    struct heft_run *runs = calloc(count, sizeof(*runs));
    struct heft_memory *source, *target;
    struct heft_region *from, *to;
    struct heft_peer *peer;
    struct heft_xfer *xfer;
    uint64_t begin, took;
    size_t index;

    assert_non_null(runs);
    assert_int_equal(heft_memory_alloc(count * piece, 0, &source, NULL), 0);
    assert_int_equal(heft_memory_alloc(count * piece, 0, &target, NULL), 0);
    for (index = 0; index < count * piece; index++)
        address_of(source)[index] = (uint8_t)(index * 7 >> 2);
    from = register_memory(fixture->server, source, HEFT_REGION_REMOTE_READ);
    to = register_memory(fixture->client, target, 0);
    peer = connect_to(fixture->client, fixture->server);
    for (index = 0; index < count; index++)
        runs[index] = (struct heft_run){.local_region = to,
                                        .local_offset_bytes = (count - 1 - index) * piece,
                                        .remote_region = heft_region_id(from),
                                        .remote_offset_bytes = (count - 1 - index) * piece,
                                        .length_bytes = piece,
                                        .count = 1};
    begin = heft_now_ns();
    assert_int_equal(heft_xfer_create(fixture->client, HEFT_OP_READ, peer, runs, count, NULL, &xfer, NULL),
                     0);
    took = heft_now_ns() - begin;
    if (took > 2 * HEFT_NS_PER_S)
        fail_msg("preparing took %llu ms", (unsigned long long)(took / HEFT_NS_PER_MS));
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_memory_equal(address_of(target), address_of(source), count * piece);
    assert_int_equal(heft_xfer_release(xfer), 0);
    free(runs);
    assert_int_equal(heft_peer_close(peer, NULL), 0);
    assert_int_equal(heft_region_deregister(from, NULL), 0);
    assert_int_equal(heft_region_deregister(to, NULL), 0);
    heft_memory_free(source);
    heft_memory_free(target);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(shareable_memory_is_mapped_and_only_as_its_flags_allow),
        TEST(many_regions_with_descriptors_all_arrive),
        TEST(a_thousand_lives_of_a_connection_leave_nothing_behind),
        TEST(handshakes_at_once_while_regions_come_and_go),
        TEST(registering_many_regions_does_not_slow_down),
        TEST(a_hundred_thousand_runs_are_prepared_quickly),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
