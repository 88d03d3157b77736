/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting at one place: the first of many transfers, finished ones by a descriptor, peers that come and go.
 */
#include "pair.h"
#include "process.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#define XFERS 8

static int setup(void **state)
{
    static struct pair pair;

    fake_register();
    pair_open(&pair, "unix", "fake");
    *state = &pair;
    return 0;
}

static int teardown(void **state)
{
    pair_close(*state);
    fake_unregister();
    return 0;
}

static int readable_within(int fd, int timeout_ms)
{
    struct pollfd watched = {fd, POLLIN, 0};

    return poll(&watched, 1, timeout_ms) == 1;
}

/* ---- the first of many ---- */

static void the_first_that_ends_is_found_and_the_idle_are_passed_over(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer *xfers[4] = {NULL, create_read(pair, NULL), create_read(pair, NULL),
                                  create_read(pair, NULL)};
    struct heft_xfer *self = NULL;
    struct heft_run run = {.local_region = pair->source_region,
                           .remote_region = heft_region_id(pair->source_region)};
    size_t index = 99;

    assert_int_equal(heft_xfer_wait_any(xfers, 0, 10, &index), HEFT_ERR_STATE);
    assert_int_equal(heft_xfer_wait_any(xfers, 1, 10, &index), HEFT_ERR_STATE);
    assert_int_equal(heft_xfer_wait_any(xfers, 4, 10, &index), HEFT_ERR_STATE);
    fake_set_mode(FAKE_HOLD);
    assert_int_equal(heft_xfer_post(xfers[2], NULL), 0);
    assert_int_equal(heft_xfer_wait_any(xfers, 4, 0, &index), HEFT_ERR_AGAIN);
    assert_int_equal(heft_xfer_wait_any(xfers, 4, 20, &index), HEFT_ERR_AGAIN);
    assert_int_equal(index, 99);
    fake_set_mode(FAKE_COPY);
    assert_int_equal(heft_xfer_post(xfers[3], NULL), 0);
    assert_int_equal(heft_xfer_wait_any(xfers, 4, 20000, &index), 0);
    assert_int_equal(index, 3);
    assert_int_equal(heft_xfer_cancel(xfers[2]), 0);
    assert_int_equal(heft_xfer_wait_any(xfers, 3, 20000, &index), 0);
    assert_int_equal(index, 2);
    assert_int_equal(heft_xfer_poll(xfers[2]), HEFT_ERR_CANCELED);
    assert_int_equal(heft_xfer_create(pair->server, HEFT_OP_READ, NULL, &run, 1, NULL, &self, NULL), 0);
    xfers[0] = self; /* another agent's */
    assert_int_equal(heft_xfer_wait_any(xfers, 4, 10, &index), HEFT_ERR_INVALID);
    for (index = 0; index < 4; index++)
        assert_int_equal(heft_xfer_release(xfers[index]), 0);
}

static void *finish_slowly(void *context)
{
    unsigned *left = context;

    while (__atomic_load_n(left, __ATOMIC_ACQUIRE)) {
        fake_finish();
        (void)usleep(200);
    }
    return NULL;
}

static void posting_again_whatever_ends_loses_no_end(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer *xfers[XFERS];
    unsigned ends = 0, left = 400, busy = 1;
    pthread_t thread;
    size_t index;

    fake_set_mode(FAKE_HOLD);
    for (index = 0; index < XFERS; index++) {
        struct heft_run run = whole_run(pair);

        run.length_bytes = REGION_BYTES / XFERS;
        run.local_offset_bytes = index * run.length_bytes;
        assert_int_equal(
            heft_xfer_create(pair->client, HEFT_OP_READ, pair->peer, &run, 1, NULL, &xfers[index], NULL), 0);
        assert_int_equal(heft_xfer_post(xfers[index], NULL), 0);
    }
    assert_int_equal(pthread_create(&thread, NULL, finish_slowly, &busy), 0);
    for (; left; left--, ends++) {
        assert_int_equal(heft_xfer_wait_any(xfers, XFERS, 20000, &index), 0);
        assert_int_equal(heft_xfer_poll(xfers[index]), 0);
        assert_int_equal(heft_xfer_post(xfers[index], NULL), 0);
    }
    for (index = 0; index < XFERS; index++)
        assert_int_equal(heft_xfer_wait(xfers[index], 20000), 0);
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
    (void)pthread_join(thread, NULL);
    for (index = 0; index < XFERS; index++)
        assert_int_equal(heft_xfer_release(xfers[index]), 0);
    assert_int_equal(STAT(pair->client, xfers_done), ends + XFERS);
}

/* ---- finished ones ---- */

static void finished_transfers_are_given_once_in_order_and_show_on_the_descriptor(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer *quiet = create_read(pair, NULL), *first, *second, *found = NULL;
    int fd = -1;

    options.flags = HEFT_XFER_EVENT;
    first = create_read(pair, &options);
    second = create_read(pair, &options);
    assert_int_equal(heft_agent_event_fd(pair->client, &fd, NULL), 0);
    fake_set_mode(FAKE_COPY);
    assert_int_equal(heft_xfer_post(quiet, NULL), 0);
    assert_int_equal(heft_xfer_wait(quiet, 20000), 0);
    assert_int_equal(heft_agent_next_finished(pair->client, &found, 0), HEFT_ERR_AGAIN);
    assert_false(readable_within(fd, 0)); /* nobody asked to be told of that one */
    assert_int_equal(heft_xfer_post(first, NULL), 0);
    assert_int_equal(heft_xfer_wait(first, 20000), 0);
    assert_int_equal(heft_xfer_post(second, NULL), 0);
    assert_int_equal(heft_xfer_wait(second, 20000), 0);
    assert_true(readable_within(fd, 0));
    assert_int_equal(heft_agent_next_finished(pair->client, &found, 20000), 0);
    assert_ptr_equal(found, first);
    assert_true(readable_within(fd, 0));
    assert_int_equal(heft_agent_next_finished(pair->client, &found, 20000), 0);
    assert_ptr_equal(found, second);
    assert_false(readable_within(fd, 0));
    /* Posted again or released before it was taken, it is not given any more. */
    assert_int_equal(heft_xfer_post(first, NULL), 0);
    assert_int_equal(heft_xfer_wait(first, 20000), 0);
    assert_int_equal(heft_xfer_post(second, NULL), 0);
    assert_int_equal(heft_xfer_wait(second, 20000), 0);
    assert_int_equal(heft_xfer_release(first), 0);
    fake_set_mode(FAKE_HOLD);
    assert_int_equal(heft_xfer_post(second, NULL), 0);
    assert_int_equal(heft_agent_next_finished(pair->client, &found, 10), HEFT_ERR_AGAIN);
    assert_false(readable_within(fd, 0));
    assert_int_equal(heft_xfer_cancel(second), 0);
    assert_int_equal(heft_agent_next_finished(pair->client, &found, 20000), 0);
    assert_ptr_equal(found, second);
    assert_int_equal(heft_xfer_poll(second), HEFT_ERR_CANCELED);
    /* One that nobody takes is released after its agent is gone. */
    fake_set_mode(FAKE_COPY);
    assert_int_equal(heft_xfer_post(second, NULL), 0);
    assert_int_equal(heft_xfer_wait(second, 20000), 0);
    assert_int_equal(heft_agent_close(pair->client, NULL), 0);
    pair->client = NULL;
    assert_int_equal(heft_xfer_release(second), 0);
    assert_int_equal(heft_xfer_release(quiet), 0);
}

static void one_loop_over_the_descriptor_drives_many_transfers(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer *xfers[XFERS], *found = NULL;
    int fd = -1, ends = 0, index;

    options.flags = HEFT_XFER_EVENT;
    fake_set_mode(FAKE_COPY);
    assert_int_equal(heft_agent_event_fd(pair->client, &fd, NULL), 0);
    for (index = 0; index < XFERS; index++) {
        struct heft_run run = whole_run(pair);

        run.length_bytes = REGION_BYTES / XFERS;
        run.local_offset_bytes = (uint64_t)index * run.length_bytes;
        assert_int_equal(
            heft_xfer_create(pair->client, HEFT_OP_READ, pair->peer, &run, 1, &options, &xfers[index], NULL),
            0);
        assert_int_equal(heft_xfer_post(xfers[index], NULL), 0);
    }
    while (ends < 500) {
        assert_true(readable_within(fd, 20000));
        while (heft_agent_next_finished(pair->client, &found, 0) == 0) {
            assert_int_equal(heft_xfer_poll(found), 0);
            if (++ends <= 500 - XFERS)
                assert_int_equal(heft_xfer_post(found, NULL), 0);
        }
    }
    assert_int_equal(ends, 500);
    for (index = 0; index < XFERS; index++)
        assert_int_equal(heft_xfer_release(xfers[index]), 0);
}

/* ---- peers ---- */

static struct heft_agent *open_watching(const char *name, const char *listen)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_agent *agent = NULL;

    options.name = name;
    options.listen = listen;
    options.workers = 1;
    options.heartbeat_ms = 50;
    options.peer_timeout_ms = 2000;
    options.flags = HEFT_AGENT_PEER_EVENTS;
    assert_int_equal(heft_agent_open(&options, &agent, NULL), 0);
    return agent;
}

static struct heft_event next_event(struct heft_agent *agent)
{
    struct heft_event event = {.size = sizeof(event)};

    assert_int_equal(heft_agent_next_event(agent, &event, 20000), 0);
    return event;
}

static void expect_event(struct heft_agent *agent, enum heft_event_kind kind, const char *peer,
                         uint64_t epoch)
{
    struct heft_event event = next_event(agent);

    assert_int_equal(event.kind, kind);
    assert_string_equal(event.peer, peer);
    assert_int_equal(event.epoch, epoch);
    assert_int_equal(event.missed, 0);
}

static void peers_that_join_leave_and_are_back_are_told(void **state)
{
    struct heft_agent *server = open_watching("server", "unix"), *client = open_watching("client", NULL);
    struct heft_event event = {.size = sizeof(event)};
    struct heft_generation own = heft_agent_generation(client);
    struct heft_peer *peer;
    int fd = -1;

    (void)state;
    assert_int_equal(heft_agent_event_fd(server, &fd, NULL), 0);
    assert_int_equal(heft_agent_next_event(server, &event, 0), HEFT_ERR_AGAIN);
    assert_false(readable_within(fd, 0));
    peer = connect_to(client, server);
    assert_true(readable_within(fd, 20000));
    event = next_event(server);
    assert_int_equal(event.kind, HEFT_EVENT_PEER_JOINED);
    assert_memory_equal(&event.generation, &own, sizeof(own));
    assert_false(readable_within(fd, 0));
    assert_int_equal(heft_peer_close(peer, NULL), 0);
    expect_event(server, HEFT_EVENT_PEER_LEFT, "client", 1);
    peer = connect_to(client, server);
    expect_event(server, HEFT_EVENT_PEER_BACK, "client", 2);
    assert_int_equal(heft_agent_close(server, NULL), 0);
    event = next_event(client); /* its own closing was no event, the server's is */
    assert_int_equal(event.kind, HEFT_EVENT_PEER_LOST);
    assert_int_equal(event.status, HEFT_ERR_PEER_LOST);
    assert_int_equal(event.epoch, 0);
    assert_string_equal(event.peer, "server");
    assert_non_null(strstr(event.error.text, "goodbye"));
    (void)peer;
    assert_int_equal(heft_agent_close(client, NULL), 0);
}

static void without_the_flag_there_are_no_events(void **state)
{
    struct pair *pair = *state;
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_event event = {.size = sizeof(event)};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *agent = NULL;
    int fd = -1;

    assert_int_equal(heft_agent_next_event(pair->server, &event, 0), HEFT_ERR_INVALID);
    assert_int_equal(heft_agent_event_fd(pair->server, &fd, NULL), 0);
    assert_false(readable_within(fd, 0)); /* though a peer has joined */
    options.flags = 1u << 30;
    assert_int_equal(heft_agent_open(&options, &agent, &error), HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "flags"));
}

/* Connects to the agent on its standard input and stays until it is killed. */
static int stay_main(void)
{
    struct heft_agent *agent;
    struct served served;
    char byte;

    other_read(0, &served, sizeof(served));
    agent = open_agent("guest", NULL, NULL);
    (void)served_connect(agent, &served);
    other_write(1, "c", 1);
    return read(0, &byte, 1) == 0 ? 0 : 1;
}

static void a_killed_peer_is_lost_and_its_next_life_is_back(void **state)
{
    struct heft_agent *agent = open_watching("host", "unix");
    struct served served = {.name = ""};
    struct heft_generation first;
    struct heft_event event;
    int life;

    (void)state;
    served_fill(&served, agent);
    for (life = 0; life < 2; life++) {
        struct other other;
        char said;

        other_start(&other, "stay", "");
        other_write(other.in, &served, sizeof(served));
        other_read(other.out, &said, 1);
        event = next_event(agent);
        assert_int_equal(event.kind, life ? HEFT_EVENT_PEER_BACK : HEFT_EVENT_PEER_JOINED);
        assert_string_equal(event.peer, "guest");
        if (life)
            assert_memory_not_equal(&event.generation, &first, sizeof(first));
        first = event.generation;
        other_end(&other, SIGKILL);
        event = next_event(agent);
        assert_int_equal(event.kind, HEFT_EVENT_PEER_LOST);
        assert_int_equal(event.status, HEFT_ERR_PEER_LOST);
        assert_memory_equal(&event.generation, &first, sizeof(first));
    }
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

static void events_that_nobody_takes_are_bounded_and_counted(void **state)
{
    struct heft_agent *server = open_watching("server", "unix"), *client = open_agent("client", NULL, NULL);
    struct heft_event event;
    int round, seen = 0;
    uint64_t missed;

    (void)state;
    for (round = 0; round < 520; round++) {
        struct heft_peer *peer = connect_to(client, server);

        assert_int_equal(heft_peer_close(peer, NULL), 0);
    }
    assert_int_equal(heft_agent_close(client, NULL), 0);
    event = next_event(server);
    missed = event.missed;
    while (event.epoch != 520 || event.kind != HEFT_EVENT_PEER_LEFT) {
        event = next_event(server);
        missed += event.missed;
        seen++;
    }
    assert_int_equal(missed + (uint64_t)seen + 1, 1040);
    assert_true(missed > 0 && seen < 1024);
    assert_int_equal(heft_agent_close(server, NULL), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(the_first_that_ends_is_found_and_the_idle_are_passed_over),
        TEST(posting_again_whatever_ends_loses_no_end),
        TEST(finished_transfers_are_given_once_in_order_and_show_on_the_descriptor),
        TEST(one_loop_over_the_descriptor_drives_many_transfers),
        cmocka_unit_test(peers_that_join_leave_and_are_back_are_told),
        TEST(without_the_flag_there_are_no_events),
        cmocka_unit_test(a_killed_peer_is_lost_and_its_next_life_is_back),
        cmocka_unit_test(events_that_nobody_takes_are_bounded_and_counted),
    };

    (void)signal(SIGPIPE, SIG_IGN);
    if (argc == 3 && strcmp(argv[1], "stay") == 0)
        return stay_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
