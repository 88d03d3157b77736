/* SPDX-License-Identifier: Apache-2.0 */
/* Counters: what arrives, when it is counted, who is woken, and how it ends. */
#include "pair.h"
#include "process.h"
#include "transport/chaos/chaos.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#define COUNTER 0xfffffff7u

static int setup_over(void **state, const char *listen, const char *transport)
{
    static struct pair pair;

    pair_open(&pair, listen, transport);
    *state = &pair;
    return 0;
}

static int setup_local(void **state)
{
    return setup_over(state, "unix", "local");
}

static int setup_tcp(void **state)
{
    return setup_over(state, "127.0.0.1:0", "tcp");
}

static int setup_fake(void **state)
{
    fake_register();
    return setup_over(state, "unix", "fake");
}

static int setup_chaos(void **state)
{
    struct heft_chaos_options options = {
        .base = &heft_transport_local, .seed = 20, .delay_max_us = 2000, .pieces_max = 7};

    heft_chaos_configure(&options);
    assert_int_equal(heft_agent_register_transport(&heft_transport_chaos, NULL), 0);
    return setup_over(state, "unix", "chaos");
}

static int teardown(void **state)
{
    pair_close(*state);
    heft_agent_unregister_transport(&heft_transport_chaos);
    fake_unregister();
    return 0;
}

static struct heft_counter *open_counter(struct heft_agent *agent, const char *peer, uint32_t id)
{
    struct heft_counter_options options = HEFT_COUNTER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_counter *counter = NULL;

    options.peer = peer;
    options.id = id;
    options.threshold = 3;
    if (heft_counter_open(agent, &options, &counter, &error))
        fail_msg("opening a counter: %s", error.text);
    return counter;
}

/* A WRITE of `bytes` from the client's target into the server's source. */
static struct heft_xfer *create_count(struct heft_agent *agent, struct heft_peer *peer, struct heft_run run,
                                      uint32_t id)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_xfer *xfer = NULL;

    options.flags = HEFT_XFER_COUNT;
    options.counter = id;
    if (heft_xfer_create(agent, HEFT_OP_WRITE, peer, &run, run.count ? 1 : 0, &options, &xfer, &error))
        fail_msg("creating a transfer: %s", error.text);
    return xfer;
}

static void write_once(struct heft_xfer *xfer)
{
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
}

static int is_readable(int fd)
{
    struct pollfd watched = {fd, POLLIN, 0};

    return poll(&watched, 1, 0) == 1;
}

static struct heft_counter *polled;

static int has_three(void *context)
{
    (void)context;
    return heft_counter_count(polled) == 3;
}

static void the_bytes_are_there_when_the_count_is(void **state)
{
    struct pair *pair = *state;
    struct heft_counter *counter = open_counter(pair->server, "client", COUNTER);
    struct heft_xfer *xfer = create_count(pair->client, pair->peer, whole_run(pair), COUNTER);
    int round;

    for (round = 1; round <= 200; round++) {
        memset(pair->target, round, REGION_BYTES);
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(heft_counter_wait(counter, 1, 20000, NULL), 0);
        assert_memory_equal(pair->source, pair->target, REGION_BYTES);
        assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    }
    assert_int_equal(heft_counter_count(counter), 0);
    assert_int_equal(heft_counter_status(counter, NULL), 0);
    assert_int_equal(heft_counter_epoch(counter), 1);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_counter_close(counter, NULL), 0);
}

static void early_arrivals_count_and_what_is_over_stays(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer *xfer = create_count(pair->client, pair->peer, whole_run(pair), COUNTER);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_counter *counter;
    int round, fd = -1;

    for (round = 0; round < 5; round++)
        write_once(xfer);
    counter = open_counter(pair->server, "client", COUNTER);
    assert_int_equal(heft_counter_event_fd(counter, &fd, NULL), 0);
    assert_int_equal(heft_counter_wait(counter, 2, 20000, NULL), 0);
    polled = counter;
    eventually(has_three, NULL);
    assert_true(is_readable(fd)); /* the threshold is 3 */
    assert_int_equal(heft_counter_wait(counter, 4, 10, &error), HEFT_ERR_AGAIN);
    assert_non_null(strstr(error.text, "3 of 4"));
    assert_int_equal(heft_counter_wait(counter, 0, 0, NULL), 0);
    assert_int_equal(heft_counter_count(counter), 3); /* a wait in vain takes nothing */
    assert_int_equal(heft_counter_wait(counter, 1, 0, NULL), 0);
    assert_false(is_readable(fd));
    /* Closed and opened again, it goes on. */
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    write_once(xfer);
    polled = counter = open_counter(pair->server, "client", COUNTER);
    eventually(has_three, NULL);
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void counters_are_apart_by_id_and_one_object_owns_each(void **state)
{
    struct pair *pair = *state;
    struct heft_counter *zero = open_counter(pair->server, "client", 0);
    struct heft_counter *one = open_counter(pair->server, "client", 1), *again = NULL;
    struct heft_counter_options options = HEFT_COUNTER_OPTIONS_INIT;
    struct heft_xfer *xfer = create_count(pair->client, pair->peer, whole_run(pair), 0);
    struct heft_error error = HEFT_ERROR_INIT;

    write_once(xfer);
    assert_int_equal(heft_counter_wait(zero, 1, 20000, NULL), 0);
    assert_int_equal(heft_counter_count(one), 0);
    options.peer = "client";
    assert_int_equal(heft_counter_open(pair->server, &options, &again, &error), HEFT_ERR_EXISTS);
    assert_non_null(strstr(error.text, "client"));
    options.peer = NULL;
    assert_int_equal(heft_counter_open(pair->server, &options, &again, &error), HEFT_ERR_INVALID);
    assert_int_equal(heft_counter_close(zero, NULL), 0);
    assert_int_equal(heft_counter_close(one, NULL), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void what_does_not_arrive_whole_does_not_count(void **state)
{
    struct pair *pair = *state;
    struct heft_counter *counter = open_counter(pair->server, "client", COUNTER);
    struct heft_xfer *xfer = create_count(pair->client, pair->peer, whole_run(pair), COUNTER);

    fake_set_mode(FAKE_SHORT);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), HEFT_ERR_INTERNAL);
    fake_set_mode(FAKE_HOLD);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_cancel(xfer), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), HEFT_ERR_CANCELED);
    fake_set_mode(FAKE_COPY);
    write_once(xfer);
    assert_int_equal(heft_counter_wait(counter, 1, 20000, NULL), 0);
    assert_int_equal(heft_counter_count(counter), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_counter_close(counter, NULL), 0);
}

static void only_writes_to_a_peer_count(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_run run = whole_run(pair);
    struct heft_xfer *xfer = NULL;

    options.flags = HEFT_XFER_COUNT;
    assert_int_equal(heft_xfer_create(pair->client, HEFT_OP_READ, pair->peer, &run, 1, &options, &xfer, NULL),
                     HEFT_ERR_INVALID);
    run.remote_region = heft_region_id(pair->target_region);
    assert_int_equal(heft_xfer_create(pair->client, HEFT_OP_WRITE, NULL, &run, 1, &options, &xfer, NULL),
                     HEFT_ERR_INVALID);
}

/* Many at once, split and out of order: as many as transfers, each with its notification behind it. */
static void many_transfers_in_any_order_count_exactly(void **state)
{
    enum { XFERS = 32, ROUNDS = 12 };
    struct pair *pair = *state;
    struct heft_counter *counter = open_counter(pair->server, "client", COUNTER);
    struct heft_notification note = {.size = sizeof(note)};
    struct heft_xfer *xfers[XFERS];
    int index, round;

    for (index = 0; index < XFERS; index++) {
        struct heft_run run = whole_run(pair);

        run.length_bytes = REGION_BYTES / XFERS;
        run.local_offset_bytes = run.remote_offset_bytes = (uint64_t)index * run.length_bytes;
        xfers[index] = create_count(pair->client, pair->peer, run, COUNTER);
        assert_int_equal(heft_xfer_set_notification(xfers[index], "n", 1, NULL), 0);
    }
    for (round = 0; round < ROUNDS; round++) {
        for (index = 0; index < XFERS; index++)
            assert_int_equal(heft_xfer_post(xfers[index], NULL), 0);
        assert_int_equal(heft_counter_wait(counter, XFERS, 20000, NULL), 0);
        assert_int_equal(heft_counter_count(counter), 0);
        assert_memory_equal(pair->source, pair->target, REGION_BYTES);
        for (index = 0; index < XFERS; index++) {
            assert_int_equal(heft_agent_next_notification(pair->server, &note, 20000), 0);
            heft_free(note.data);
        }
        for (index = 0; index < XFERS; index++)
            assert_int_equal(heft_xfer_wait(xfers[index], 20000), 0);
        memset(pair->target, round, REGION_BYTES);
    }
    assert_int_equal(heft_agent_next_notification(pair->server, &note, 0), HEFT_ERR_AGAIN);
    for (index = 0; index < XFERS; index++)
        assert_int_equal(heft_xfer_release(xfers[index]), 0);
    assert_int_equal(heft_counter_close(counter, NULL), 0);
}

/* A counter never waits behind notifications that nobody reads. */
static void unread_notifications_do_not_hold_counters_back(void **state)
{
    struct pair *pair = *state;
    struct heft_counter *counter = open_counter(pair->server, "client", COUNTER);
    struct heft_xfer *xfer = create_count(pair->client, pair->peer, whole_run(pair), COUNTER);

    while (heft_peer_notify(pair->peer, "unread", 6, NULL) == 0)
        ;
    write_once(xfer);
    assert_int_equal(heft_counter_wait(counter, 1, 20000, NULL), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_counter_close(counter, NULL), 0);
}

/* ---- callbacks ---- */

struct calls {
    struct heft_counter *counter;
    uint32_t count; /* atomic */
    uint32_t more;
    int status;
    int close;
};

static void on_count(struct heft_counter *counter, int status, void *context)
{
    struct calls *calls = context;

    calls->status = status;
    if (calls->more && !status) {
        calls->more--;
        assert_int_equal(heft_counter_wait(counter, 1, 1, NULL), HEFT_ERR_STATE);
        assert_int_equal(heft_counter_expect(counter, 2, on_count, calls, NULL), 0);
    } else if (calls->close) {
        assert_int_equal(heft_counter_close(counter, NULL), 0);
    }
    (void)__atomic_add_fetch(&calls->count, 1, __ATOMIC_RELEASE);
}

static int called_three_times(void *context)
{
    const struct calls *calls = context;

    return __atomic_load_n(&calls->count, __ATOMIC_ACQUIRE) == 3;
}

static void a_function_is_called_for_each_n_that_it_expects(void **state)
{
    struct pair *pair = *state;
    struct heft_counter *counter = open_counter(pair->server, "client", COUNTER);
    struct heft_xfer *xfer = create_count(pair->client, pair->peer, whole_run(pair), COUNTER);
    struct calls calls = {.counter = counter, .more = 2, .status = -1, .close = 1};
    int round;

    assert_int_equal(heft_counter_expect(counter, 2, NULL, NULL, NULL), HEFT_ERR_INVALID);
    assert_int_equal(heft_counter_expect(counter, 2, on_count, &calls, NULL), 0);
    assert_int_equal(heft_counter_expect(counter, 2, on_count, &calls, NULL), HEFT_ERR_STATE);
    assert_int_equal(heft_counter_close(counter, NULL), HEFT_ERR_BUSY);
    for (round = 0; round < 6; round++)
        write_once(xfer);
    eventually(called_three_times, &calls);
    assert_int_equal(calls.status, 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

/* ---- lives ---- */

static void *wait_for_more(void *context)
{
    struct heft_error error = HEFT_ERROR_INIT;
    int rc = heft_counter_wait(context, 100, 60000, &error);

    if (rc == HEFT_ERR_PEER_LOST)
        assert_non_null(strstr(error.text, "client"));
    return (void *)(intptr_t)rc;
}

static void a_peers_end_wakes_every_waiter_and_leaves_what_had_come(void **state)
{
    struct pair *pair = *state;
    struct heft_counter *counter = open_counter(pair->server, "client", COUNTER);
    struct heft_counter *called = open_counter(pair->server, "client", 1);
    struct heft_xfer *xfer = create_count(pair->client, pair->peer, whole_run(pair), COUNTER);
    struct calls calls = {.count = 2};
    pthread_t threads[3];
    int index, fd = -1;

    assert_int_equal(heft_counter_event_fd(called, &fd, NULL), 0);
    assert_int_equal(heft_counter_expect(called, 1, on_count, &calls, NULL), 0);
    write_once(xfer);
    for (index = 0; index < 3; index++)
        assert_int_equal(pthread_create(&threads[index], NULL, wait_for_more, counter), 0);
    assert_int_equal(heft_peer_close(pair->peer, NULL), 0);
    for (index = 0; index < 3; index++) {
        void *rc = NULL;

        (void)pthread_join(threads[index], &rc);
        assert_int_equal((intptr_t)rc, HEFT_ERR_PEER_LOST);
    }
    eventually(called_three_times, &calls);
    assert_int_equal(calls.status, HEFT_ERR_PEER_LOST);
    assert_true(is_readable(fd));
    assert_int_equal(heft_counter_status(counter, NULL), HEFT_ERR_PEER_LOST);
    assert_int_equal(heft_counter_wait(counter, 1, 0, NULL), 0);
    assert_int_equal(heft_counter_wait(counter, 1, 60000, NULL), HEFT_ERR_PEER_LOST);
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    assert_int_equal(heft_counter_close(called, NULL), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static int nobody_is_connected(void *context)
{
    struct heft_agent *agent = context;

    return STAT(agent, peers_accepted) == 0;
}

static void each_connection_is_an_epoch_of_its_own(void **state)
{
    struct pair *pair = *state;
    struct heft_counter_options options = HEFT_COUNTER_OPTIONS_INIT;
    struct heft_run nothing = {0};
    struct heft_counter *counter, *next = NULL, *awaited = NULL;
    struct heft_xfer *xfer = create_count(pair->client, pair->peer, nothing, COUNTER);

    write_once(xfer);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_peer_close(pair->peer, NULL), 0);
    eventually(nobody_is_connected, pair->server);
    /* It left before anybody looked: what it counted is found all the same. */
    counter = open_counter(pair->server, "client", COUNTER);
    assert_int_equal(heft_counter_epoch(counter), 1);
    assert_int_equal(heft_counter_wait(counter, 1, 0, NULL), 0);
    assert_int_equal(heft_counter_wait(counter, 1, 0, NULL), HEFT_ERR_PEER_LOST);
    /* The next connection is waited for. */
    options.peer = "client";
    options.id = COUNTER;
    options.after_epoch = heft_counter_epoch(counter);
    options.generation = heft_agent_generation(pair->client);
    assert_int_equal(heft_counter_open(pair->server, &options, &next, NULL), 0);
    assert_int_equal(heft_counter_epoch(next), 0);
    assert_int_equal(heft_counter_open(pair->server, &options, &awaited, NULL), HEFT_ERR_EXISTS);
    options.generation.bytes[0] ^= 1; /* another life: never comes here */
    assert_int_equal(heft_counter_open(pair->server, &options, &awaited, NULL), 0);
    assert_int_equal(heft_counter_wait(next, 1, 10, NULL), HEFT_ERR_AGAIN);
    pair->peer = connect_to(pair->client, pair->server);
    xfer = create_count(pair->client, pair->peer, nothing, COUNTER);
    write_once(xfer);
    assert_int_equal(heft_counter_wait(next, 1, 20000, NULL), 0);
    assert_int_equal(heft_counter_epoch(next), 2);
    assert_int_equal(heft_counter_epoch(awaited), 0);
    assert_int_equal(heft_counter_count(counter), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    assert_int_equal(heft_counter_close(next, NULL), 0);
    assert_int_equal(heft_counter_close(awaited, NULL), 0);
}

static void closing_the_agent_cancels_who_waits(void **state)
{
    struct pair *pair = *state;
    struct heft_counter *counter = open_counter(pair->server, "nobody", COUNTER);
    pthread_t thread;
    void *rc = NULL;

    assert_int_equal(pthread_create(&thread, NULL, wait_for_more, counter), 0);
    assert_int_equal(heft_agent_close(pair->server, NULL), 0);
    pair->server = NULL;
    (void)pthread_join(thread, &rc);
    assert_int_equal((intptr_t)rc, HEFT_ERR_CANCELED);
    assert_int_equal(heft_counter_expect(counter, 1, on_count, NULL, NULL), HEFT_ERR_STATE);
    assert_int_equal(heft_counter_close(counter, NULL), 0);
}

/* Connects, writes until it is killed. */
static int write_main(void)
{
    static uint8_t bytes[64];
    struct heft_run run = {.length_bytes = sizeof(bytes), .count = 1};
    struct heft_agent *agent;
    struct heft_peer *peer;
    struct heft_xfer *xfer;
    struct served served;

    other_read(0, &served, sizeof(served));
    agent = open_agent("writer", NULL, NULL);
    peer = served_connect(agent, &served);
    run.local_region = register_bytes(agent, bytes, sizeof(bytes), 0);
    run.remote_region = served.regions[0];
    xfer = create_count(agent, peer, run, COUNTER);
    while (heft_xfer_post(xfer, NULL) == 0 && heft_xfer_wait(xfer, 20000) == 0)
        ;
    return 0;
}

static void a_killed_writers_counter_says_so_within_a_second(void **state)
{
    static uint8_t bytes[64];
    struct heft_agent *agent = open_agent("taker", "unix,127.0.0.1:0", NULL);
    struct heft_counter *counter = open_counter(agent, "writer", COUNTER);
    struct served served = {.name = ""};
    struct other other;
    uint64_t killed_ns;
    int rc;

    (void)state;
    served_fill(&served, agent);
    served.regions[0] = heft_region_id(register_bytes(agent, bytes, sizeof(bytes), HEFT_REGION_REMOTE_WRITE));
    other_start(&other, "write", "");
    other_write(other.in, &served, sizeof(served));
    assert_int_equal(heft_counter_wait(counter, 100, 20000, NULL), 0);
    killed_ns = heft_now_ns();
    other_end(&other, SIGKILL);
    do
        rc = heft_counter_wait(counter, 1, 20000, NULL);
    while (rc == 0);
    assert_int_equal(rc, HEFT_ERR_PEER_LOST);
    assert_true(heft_now_ns() - killed_ns < HEFT_NS_PER_S);
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

#define TEST(name, way)                                    \
    {                                                      \
#name ", " #way, name, setup_##way, teardown, NULL \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(the_bytes_are_there_when_the_count_is, local),
        TEST(the_bytes_are_there_when_the_count_is, tcp),
        TEST(the_bytes_are_there_when_the_count_is, chaos),
        TEST(early_arrivals_count_and_what_is_over_stays, local),
        TEST(counters_are_apart_by_id_and_one_object_owns_each, local),
        TEST(what_does_not_arrive_whole_does_not_count, fake),
        TEST(only_writes_to_a_peer_count, fake),
        TEST(many_transfers_in_any_order_count_exactly, local),
        TEST(many_transfers_in_any_order_count_exactly, tcp),
        TEST(many_transfers_in_any_order_count_exactly, chaos),
        TEST(unread_notifications_do_not_hold_counters_back, fake),
        TEST(a_function_is_called_for_each_n_that_it_expects, local),
        TEST(a_peers_end_wakes_every_waiter_and_leaves_what_had_come, local),
        TEST(each_connection_is_an_epoch_of_its_own, local),
        TEST(closing_the_agent_cancels_who_waits, local),
        cmocka_unit_test(a_killed_writers_counter_says_so_within_a_second),
    };

    (void)signal(SIGPIPE, SIG_IGN);
    if (argc == 3 && strcmp(argv[1], "write") == 0)
        return write_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
