/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications: of transfers and by themselves; order, room, misfortune. */
#include "pair.h"
#include "process.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

static int setup(void **state)
{
    static struct pair pair;

    fake_register();
    pair_open(&pair, "unix", "fake");
    *state = &pair;
    return 0;
}

static int setup_local(void **state)
{
    static struct pair pair;

    pair_open(&pair, "unix", "local");
    *state = &pair;
    return 0;
}

static int setup_tcp(void **state)
{
    static struct pair pair;

    pair_open(&pair, "127.0.0.1:0", "tcp");
    *state = &pair;
    return 0;
}

static int teardown(void **state)
{
    pair_close(*state);
    fake_unregister();
    return 0;
}

static int teardown_real(void **state)
{
    pair_close(*state);
    return 0;
}

static struct heft_notification take(struct heft_agent *agent)
{
    struct heft_notification note = {.size = sizeof(note)};

    assert_int_equal(heft_agent_next_notification(agent, &note, 20000), 0);
    return note;
}

static void expect_number(struct heft_agent *agent, uint32_t number)
{
    struct heft_notification note = take(agent);

    assert_int_equal(note.size_bytes, sizeof(number));
    assert_memory_equal(note.data, &number, sizeof(number));
    heft_free(note.data);
}

static void expect_none(struct heft_agent *agent)
{
    struct heft_notification note = {.size = sizeof(note)};

    assert_int_equal(heft_agent_next_notification(agent, &note, 0), HEFT_ERR_AGAIN);
}

static int is_readable(int fd)
{
    struct pollfd watched = {fd, POLLIN, 0};

    return poll(&watched, 1, 0) == 1;
}

static struct heft_xfer *create_with(struct pair *pair, enum heft_op op,
                                     const struct heft_xfer_options *options)
{
    struct heft_run run = whole_run(pair);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_xfer *xfer = NULL;

    if (heft_xfer_create(pair->client, op, pair->peer, &run, 1, options, &xfer, &error))
        fail_msg("creating a transfer: %s", error.text);
    return xfer;
}

/* ---- by themselves ---- */

static void they_come_whole_in_order_and_name_their_sender(void **state)
{
    struct pair *pair = *state;
    struct heft_generation own = heft_agent_generation(pair->client);
    struct heft_notification note;
    uint32_t number;
    int fd = -1;

    assert_int_equal(heft_agent_event_fd(pair->server, &fd, NULL), 0);
    assert_false(is_readable(fd));
    expect_none(pair->server);
    for (number = 0; number < 100; number++)
        assert_int_equal(heft_peer_notify(pair->peer, &number, sizeof(number), NULL), 0);
    note = take(pair->server);
    assert_string_equal(note.peer, "client");
    assert_memory_equal(&note.generation, &own, sizeof(own));
    assert_int_equal(note.epoch, 1);
    heft_free(note.data);
    for (number = 1; number < 100; number++) {
        struct pollfd watched = {fd, POLLIN, 0};

        assert_int_equal(poll(&watched, 1, 20000), 1);
        expect_number(pair->server, number);
    }
    assert_false(is_readable(fd));
    assert_int_equal(STAT(pair->client, notifications_sent), 100);
    assert_int_equal(STAT(pair->server, notifications_received), 100);
}

static void they_may_be_empty_and_are_bounded(void **state)
{
    static uint8_t large[HEFT_NOTIFICATION_MAX_BYTES + 1];
    struct pair *pair = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_notification note;

    memset(large, 0x77, sizeof(large));
    assert_int_equal(heft_peer_notify(pair->peer, NULL, 0, NULL), 0);
    note = take(pair->server);
    assert_int_equal(note.size_bytes, 0);
    assert_non_null(note.data);
    heft_free(note.data);
    assert_int_equal(heft_peer_notify(pair->peer, NULL, 1, NULL), HEFT_ERR_INVALID);
    assert_int_equal(heft_peer_notify(pair->peer, large, sizeof(large), &error), HEFT_ERR_TOO_LARGE);
    assert_non_null(strstr(error.text, "8192"));
    assert_int_equal(heft_peer_notify(pair->peer, large, sizeof(large) - 1, NULL), 0);
    note = take(pair->server);
    assert_int_equal(note.size_bytes, HEFT_NOTIFICATION_MAX_BYTES);
    assert_memory_equal(note.data, large, HEFT_NOTIFICATION_MAX_BYTES);
    heft_free(note.data);
    note.size = sizeof(note) - 1;
    assert_int_equal(heft_agent_next_notification(pair->server, &note, 0), HEFT_ERR_INVALID);
}

/* Sends until the sender's own queue is full too. */
static uint32_t fill_up(struct heft_peer *peer)
{
    static const uint8_t padding[1000];
    uint8_t bytes[sizeof(padding)] = {0};
    uint32_t number = 0;
    int rc;

    for (;;) {
        memcpy(bytes, &number, sizeof(number));
        rc = heft_peer_notify(peer, bytes, sizeof(bytes), NULL);
        if (rc)
            break;
        number++;
    }
    assert_int_equal(rc, HEFT_ERR_AGAIN);
    return number;
}

static int none_is_on_its_way(void *context)
{
    struct pair *pair = context;

    return STAT(pair->client, notifications_sent) == STAT(pair->server, notifications_received);
}

static void a_receiver_that_does_not_read_holds_the_sender_back_and_loses_nothing(void **state)
{
    struct pair *pair = *state;
    uint32_t sent = fill_up(pair->peer), more, number;

    eventually(none_is_on_its_way, pair);
    more = fill_up(pair->peer); /* what left the sender's queue made room in it */
    eventually(none_is_on_its_way, pair);
    assert_int_equal(fill_up(pair->peer), 0);
    /* 16 KiB is a peer's share of 64 MiB among 4,096. */
    assert_true(STAT(pair->server, notifications_received) * 1064 <= 16384);
    for (number = 0; number < sent + more; number++) {
        struct heft_notification note = take(pair->server);

        assert_int_equal(note.size_bytes, 1000);
        if (number < sent)
            assert_memory_equal(note.data, &number, sizeof(number));
        heft_free(note.data);
    }
    expect_none(pair->server);
}

static void the_limit_must_have_room_for_every_peer(void **state)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *agent = NULL;

    (void)state;
    options.max_peers = 10;
    options.max_notification_bytes = 10 * 8256 - 1;
    assert_int_equal(heft_agent_open(&options, &agent, &error), HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "max_notification_bytes"));
    options.max_notification_bytes = 10 * 8256;
    assert_int_equal(heft_agent_open(&options, &agent, &error), 0);
    assert_int_equal(agent->notification_window_bytes, 8256);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    options.max_notification_bytes = (uint64_t)1 << 40;
    assert_int_equal(heft_agent_open(&options, &agent, &error), 0);
    assert_int_equal(agent->notification_window_bytes, 1 << 20);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

static int nobody_is_connected(void *context)
{
    struct heft_agent *agent = context;

    return STAT(agent, peers_accepted) == 0;
}

static void what_a_gone_peer_left_is_read_and_its_room_is_not_another_ones_till_then(void **state)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_agent *server = NULL, *client;
    struct heft_peer *peer;
    uint32_t number, left[3];
    int life;

    (void)state;
    options.name = "server";
    options.listen = "unix";
    options.max_peers = 2;
    options.max_notification_bytes = 2 * 8256;
    assert_int_equal(heft_agent_open(&options, &server, NULL), 0);
    client = open_agent("client", NULL, NULL);
    for (life = 0; life < 3; life++) { /* the third finds no room: two windows are full of what was left */
        struct pair view = {.server = server, .client = client};

        peer = connect_to(client, server);
        left[life] = fill_up(peer);
        eventually(none_is_on_its_way, &view);
        assert_int_equal(heft_peer_close(peer, NULL), 0);
        eventually(nobody_is_connected, server);
    }
    number = (uint32_t)STAT(server, notifications_received);
    assert_true(number > 0 && number <= 2 * (8256 / 1064));
    peer = connect_to(client, server);
    assert_int_equal(heft_peer_notify(peer, "last", 4, NULL), 0);
    while (number--)
        heft_free(take(server).data);
    { /* now there is room */
        struct heft_notification note = take(server);

        assert_int_equal(note.size_bytes, 4);
        assert_memory_equal(note.data, "last", 4);
        assert_int_equal(note.epoch, 4);
        heft_free(note.data);
    }
    assert_int_equal(heft_agent_close(client, NULL), 0);
    assert_int_equal(server->notification_reserved, 0 + (STAT(server, peers_accepted) ? 8256 : 0));
    assert_int_equal(heft_agent_close(server, NULL), 0);
    (void)left;
}

/* ---- of transfers ---- */

static void a_writes_notification_comes_after_its_bytes(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer *xfer;
    uint32_t number;

    options.notification = "first";
    options.notification_bytes = 5;
    xfer = create_with(pair, HEFT_OP_WRITE, &options);
    for (number = 0; number < 300; number++) {
        memset(pair->target, (int)number, REGION_BYTES);
        assert_int_equal(heft_xfer_set_notification(xfer, &number, sizeof(number), NULL), 0);
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        expect_number(pair->server, number);
        assert_memory_equal(pair->source, pair->target, REGION_BYTES);
        assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    }
    assert_int_equal(heft_xfer_set_notification(xfer, NULL, 0, NULL), 0);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(heft_peer_notify(pair->peer, &number, sizeof(number), NULL), 0);
    expect_number(pair->server, number); /* and none was before it */
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void a_reads_notification_comes_when_the_bytes_were_read(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    uint32_t number = 77;
    struct heft_xfer *xfer;

    options.notification = &number;
    options.notification_bytes = sizeof(number);
    xfer = create_with(pair, HEFT_OP_READ, &options);
    number = 78; /* create copied it */
    fake_set_mode(FAKE_HOLD);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_set_notification(xfer, NULL, 0, NULL), HEFT_ERR_STATE);
    expect_none(pair->server);
    fake_finish();
    expect_number(pair->server, 77);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_memory_equal(pair->source, pair->target, REGION_BYTES);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void a_transfer_that_fails_tells_nothing(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer *xfer;
    uint32_t number = 5;

    options.notification = "never";
    options.notification_bytes = 5;
    xfer = create_with(pair, HEFT_OP_WRITE, &options);
    fake_set_mode(FAKE_SHORT);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), HEFT_ERR_INTERNAL);
    fake_set_mode(FAKE_HOLD);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_cancel(xfer), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), HEFT_ERR_CANCELED);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_peer_notify(pair->peer, &number, sizeof(number), NULL), 0);
    expect_number(pair->server, number);
}

static void a_transfer_without_runs_tells_too(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer *xfer = NULL;
    uint32_t number = 9;

    options.notification = &number;
    options.notification_bytes = sizeof(number);
    assert_int_equal(
        heft_xfer_create(pair->client, HEFT_OP_WRITE, pair->peer, NULL, 0, &options, &xfer, NULL), 0);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    expect_number(pair->server, number);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_xfer_create(pair->client, HEFT_OP_WRITE, NULL, NULL, 0, &options, &xfer, NULL),
                     HEFT_ERR_INVALID); /* inside one agent nobody is told */
}

/* The peer has no room: the transfer waits, and ends as it is asked to. */
static void a_transfer_that_can_not_tell_ends_by_its_deadline_or_by_cancel(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_xfer *xfer;
    uint32_t queued;

    queued = fill_up(pair->peer);
    options.notification = "late";
    options.notification_bytes = 4;
    options.deadline_ms = 100;
    xfer = create_with(pair, HEFT_OP_WRITE, &options);
    memset(pair->target, 0x21, REGION_BYTES);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), HEFT_ERR_DEADLINE);
    heft_xfer_get_result(xfer, &result);
    assert_int_equal(result.bytes, REGION_BYTES);
    assert_non_null(strstr(result.error.text, "had arrived"));
    assert_memory_equal(pair->source, pair->target, REGION_BYTES);
    assert_int_equal(heft_xfer_release(xfer), 0);
    options.deadline_ms = 0;
    xfer = create_with(pair, HEFT_OP_WRITE, &options);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20), HEFT_ERR_AGAIN);
    assert_int_equal(heft_peer_close(pair->peer, NULL), HEFT_ERR_BUSY);
    assert_int_equal(heft_xfer_cancel(xfer), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), HEFT_ERR_CANCELED);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    while (queued--)
        heft_free(take(pair->server).data);
    {
        struct heft_notification note = take(pair->server);

        assert_int_equal(note.size_bytes, 4); /* of the last post alone */
        heft_free(note.data);
    }
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    expect_none(pair->server);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

struct called {
    uint32_t count;
    struct heft_peer *peer;
};

static void notify_again(struct heft_xfer *xfer, const struct heft_xfer_result *result, void *context)
{
    struct called *called = context;

    (void)xfer;
    assert_int_equal(result->status, 0);
    assert_int_equal(heft_peer_notify(called->peer, &called->count, sizeof(called->count), NULL), 0);
    (void)__atomic_add_fetch(&called->count, 1, __ATOMIC_RELEASE);
}

static void a_callback_comes_after_its_transfers_notification_and_may_notify(void **state)
{
    struct pair *pair = *state;
    struct called called = {.count = 1000, .peer = pair->peer};
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    uint32_t number = 999;
    struct heft_xfer *xfer;

    options.notification = &number;
    options.notification_bytes = sizeof(number);
    options.on_done = notify_again;
    options.context = &called;
    xfer = create_with(pair, HEFT_OP_WRITE, &options);
    for (; number < 1009; number++) {
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
        expect_number(pair->server, 999);
        expect_number(pair->server, number + 1);
    }
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void a_peer_of_an_older_version_is_not_told_into_the_void(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_run run = whole_run(pair);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_xfer *xfer = NULL;

    (void)pthread_mutex_lock(&pair->peer->lock);
    pair->peer->credit_known = 0; /* as if no CREDIT had come */
    (void)pthread_mutex_unlock(&pair->peer->lock);
    assert_int_equal(heft_peer_notify(pair->peer, "x", 1, &error), HEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "version"));
    options.notification = "x";
    assert_int_equal(
        heft_xfer_create(pair->client, HEFT_OP_WRITE, pair->peer, &run, 1, &options, &xfer, NULL),
        HEFT_ERR_UNSUPPORTED);
    options.notification = NULL;
    options.flags = HEFT_XFER_COUNT;
    assert_int_equal(
        heft_xfer_create(pair->client, HEFT_OP_WRITE, pair->peer, &run, 1, &options, &xfer, NULL),
        HEFT_ERR_UNSUPPORTED);
}

/* ---- many threads ---- */

#define THREADS 4
#define EACH 400u

struct poster {
    struct pair *pair;
    pthread_t thread;
    uint32_t index;
};

static void *post_many(void *context)
{
    const struct poster *poster = context;
    struct pair *pair = poster->pair;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_run run = whole_run(pair);
    struct heft_xfer *xfer = NULL;
    uint32_t number;

    run.length_bytes = 8;
    run.local_offset_bytes = poster->index * 8;
    options.notification = "x";
    options.notification_bytes = 1;
    options.flags = HEFT_XFER_INLINE;
    assert_int_equal(heft_xfer_create(pair->client, HEFT_OP_READ, pair->peer, &run, 1, &options, &xfer, NULL),
                     0);
    for (number = 0; number < EACH; number++) {
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(heft_xfer_wait(xfer, 60000), 0);
    }
    assert_int_equal(heft_xfer_release(xfer), 0);
    return NULL;
}

static void many_threads_post_and_every_end_is_told_once(void **state)
{
    struct pair *pair = *state;
    struct poster posters[THREADS];
    uint32_t number;

    for (number = 0; number < THREADS; number++) {
        posters[number] = (struct poster){.pair = pair, .index = number};
        assert_int_equal(pthread_create(&posters[number].thread, NULL, post_many, &posters[number]), 0);
    }
    for (number = 0; number < THREADS * EACH; number++)
        heft_free(take(pair->server).data);
    for (number = 0; number < THREADS; number++)
        (void)pthread_join(posters[number].thread, NULL);
    expect_none(pair->server);
}

static void *wait_for_one(void *context)
{
    struct heft_notification note = {.size = sizeof(note)};
    int rc = heft_agent_next_notification(context, &note, 60000);

    return (void *)(intptr_t)rc;
}

static void closing_the_agent_wakes_who_waits(void **state)
{
    struct pair *pair = *state;
    pthread_t thread;
    void *rc = NULL;

    assert_int_equal(pthread_create(&thread, NULL, wait_for_one, pair->server), 0);
    (void)usleep(20000);          /* early or late, the answer is the same */
    heft_agent_ref(pair->server); /* late: it must still be there */
    {
        struct heft_agent *server = pair->server;

        assert_int_equal(heft_agent_close(server, NULL), 0);
        (void)pthread_join(thread, &rc);
        heft_agent_unref(server);
    }
    pair->server = NULL;
    assert_int_equal((intptr_t)rc, HEFT_ERR_CANCELED);
}

/* ---- death ---- */

/* Connects to the agent on its standard input, notifies as often as it is told, leaves by being killed. */
static int notify_main(void)
{
    struct heft_agent *agent;
    struct heft_peer *peer;
    struct served served;
    uint32_t number;

    other_read(0, &served, sizeof(served));
    agent = open_agent("notifier", NULL, NULL);
    peer = served_connect(agent, &served);
    for (number = 0; number < 10; number++)
        if (heft_peer_notify(peer, &number, sizeof(number), NULL))
            return 4;
    while (STAT(agent, notifications_sent) < 10)
        (void)usleep(1000);
    other_write(1, "s", 1);
    for (;;)
        (void)pause();
}

static int lost_one(void *context)
{
    struct heft_agent *agent = context;

    return STAT(agent, peers_lost) == 1;
}

static void what_a_killed_peer_sent_can_still_be_read(void **state)
{
    struct heft_agent *agent = open_agent("taker", "unix", NULL);
    struct served served = {.name = ""};
    struct other other;
    uint32_t number;
    char said;

    (void)state;
    served_fill(&served, agent);
    other_start(&other, "notify", "");
    other_write(other.in, &served, sizeof(served));
    other_read(other.out, &said, 1);
    other_end(&other, SIGKILL);
    eventually(lost_one, agent);
    for (number = 0; number < 10; number++)
        expect_number(agent, number);
    expect_none(agent);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

static void a_peers_death_ends_what_waits_to_tell_it(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_xfer *xfer;

    (void)fill_up(pair->peer);
    options.notification = "late";
    options.notification_bytes = 4;
    xfer = create_with(pair, HEFT_OP_WRITE, &options);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20), HEFT_ERR_AGAIN);
    assert_int_equal(heft_agent_close(pair->server, NULL), 0);
    pair->server = NULL;
    assert_int_equal(heft_xfer_wait(xfer, 20000), HEFT_ERR_PEER_LOST);
    assert_int_equal(heft_xfer_post(xfer, &error), HEFT_ERR_PEER_LOST);
    assert_int_equal(heft_peer_notify(pair->peer, "x", 1, &error), HEFT_ERR_PEER_LOST);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(they_come_whole_in_order_and_name_their_sender),
        TEST(they_may_be_empty_and_are_bounded),
        TEST(a_receiver_that_does_not_read_holds_the_sender_back_and_loses_nothing),
        cmocka_unit_test(the_limit_must_have_room_for_every_peer),
        cmocka_unit_test(what_a_gone_peer_left_is_read_and_its_room_is_not_another_ones_till_then),
        TEST(a_writes_notification_comes_after_its_bytes),
        {"a_writes_notification_comes_after_its_bytes, local", a_writes_notification_comes_after_its_bytes,
         setup_local, teardown_real, NULL},
        {"a_writes_notification_comes_after_its_bytes, tcp", a_writes_notification_comes_after_its_bytes,
         setup_tcp, teardown_real, NULL},
        TEST(a_reads_notification_comes_when_the_bytes_were_read),
        TEST(a_transfer_that_fails_tells_nothing),
        TEST(a_transfer_without_runs_tells_too),
        TEST(a_transfer_that_can_not_tell_ends_by_its_deadline_or_by_cancel),
        TEST(a_peer_of_an_older_version_is_not_told_into_the_void),
        TEST(a_callback_comes_after_its_transfers_notification_and_may_notify),
        {"many_threads_post_and_every_end_is_told_once, local", many_threads_post_and_every_end_is_told_once,
         setup_local, teardown_real, NULL},
        {"many_threads_post_and_every_end_is_told_once, tcp", many_threads_post_and_every_end_is_told_once,
         setup_tcp, teardown_real, NULL},
        TEST(closing_the_agent_wakes_who_waits),
        cmocka_unit_test(what_a_killed_peer_sent_can_still_be_read),
        TEST(a_peers_death_ends_what_waits_to_tell_it),
    };

    (void)signal(SIGPIPE, SIG_IGN);
    if (argc == 3 && strcmp(argv[1], "notify") == 0)
        return notify_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
