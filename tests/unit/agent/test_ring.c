/* SPDX-License-Identifier: Apache-2.0 */
/* The ring between agents of one host: by itself, beside frames, full, scribbled in, left behind. */
#include "agent/inbox.h"
#include "agent/ring.h"
#include "pair.h"
#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEAD_BYTES 4096 /* of the shared memory, before the cells */
#define COUNTER 7u

static uint64_t random_state = 11;

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % limit;
}

/* ---- by itself ---- */

static void make_ends(struct heft_ring *reader, struct heft_ring *writer)
{
    int fds[HEFT_RING_FDS];

    assert_int_equal(heft_ring_create(reader, fds, NULL), 0);
    assert_int_equal(heft_ring_open(HEFT_RING_LAYOUT, HEFT_RING_CELLS, fds, writer), 0);
}

static int bell_rings(const struct heft_ring *ring)
{
    struct pollfd watched = {ring->bell, POLLIN, 0};

    return poll(&watched, 1, 0) == 1;
}

static void records_come_as_they_were_written_through_many_rounds(void **state)
{
    static uint8_t sent[64][HEFT_RING_DATA_MAX_BYTES], got[HEFT_RING_DATA_MAX_BYTES];
    struct heft_ring_record record;
    struct heft_ring reader, writer;
    uint32_t sizes[64], written = 0, read = 0, index;

    (void)state;
    make_ends(&reader, &writer);
    while (read < 20000) {
        uint32_t size = random_below(3) ? random_below(130) : random_below(HEFT_RING_DATA_MAX_BYTES + 1);
        int is_count = random_below(2) == 0;

        if (written - read < 64 && random_below(3)) {
            sizes[written % 64] = is_count ? 0 : size;
            for (index = 0; !is_count && index < size; index++)
                sent[written % 64][index] = (uint8_t)(written + index * 3);
            if (heft_ring_put(&writer, is_count ? HEFT_RING_COUNT : HEFT_RING_NOTE, written,
                              sent[written % 64], sizes[written % 64]))
                written++;
        }
        if (random_below(3) == 0 && heft_ring_peek(&reader, &record)) {
            assert_int_equal(record.value, read);
            assert_int_equal(record.size, sizes[read % 64]);
            heft_ring_take(&reader, &record, got);
            assert_memory_equal(got, sent[read % 64], record.size);
            read++;
        }
    }
    heft_ring_close(&reader);
    heft_ring_close(&writer);
}

static void a_full_ring_takes_no_more_until_it_was_read(void **state)
{
    struct heft_ring_record record;
    struct heft_ring reader, writer;
    uint32_t count = 0, index;

    (void)state;
    make_ends(&reader, &writer);
    while (heft_ring_put(&writer, HEFT_RING_COUNT, count, NULL, 0))
        count++;
    assert_int_equal(count, HEFT_RING_CELLS);
    assert_int_equal(heft_ring_peek(&reader, &record), 1);
    heft_ring_take(&reader, &record, NULL);
    assert_int_equal(heft_ring_put(&writer, HEFT_RING_COUNT, count, NULL, 0), 1);
    assert_int_equal(heft_ring_put(&writer, HEFT_RING_COUNT, count, NULL, 0), 0);
    for (index = 1; index <= count; index++) {
        assert_int_equal(heft_ring_peek(&reader, &record), 1);
        assert_int_equal(record.value, index);
        heft_ring_take(&reader, &record, NULL);
    }
    assert_int_equal(heft_ring_peek(&reader, &record), 0);
    heft_ring_close(&reader);
    heft_ring_close(&writer);
}

static void the_bell_rings_once_for_each_time_that_it_was_armed(void **state)
{
    struct heft_ring reader, writer;
    char byte;

    (void)state;
    make_ends(&reader, &writer);
    assert_int_equal(heft_ring_put(&writer, HEFT_RING_COUNT, 1, NULL, 0), 1);
    assert_false(bell_rings(&reader));
    heft_ring_arm(&reader);
    assert_int_equal(heft_ring_put(&writer, HEFT_RING_COUNT, 1, NULL, 0), 1);
    assert_int_equal(heft_ring_put(&writer, HEFT_RING_COUNT, 1, NULL, 0), 1);
    assert_true(bell_rings(&reader));
    assert_int_equal(recv(reader.bell, &byte, 1, MSG_DONTWAIT), 1);
    assert_int_equal(recv(reader.bell, &byte, 1, MSG_DONTWAIT), -1);
    heft_ring_close(&reader);
    heft_ring_close(&writer);
}

static void what_is_no_ring_is_refused_and_its_descriptors_closed(void **state)
{
    int fds[HEFT_RING_FDS], before = count_fds();
    struct heft_ring reader, writer = {.bell = -1};
    static const uint32_t wrong[][2] = {{2, 1024}, {1, 1000}, {1, 128}, {1, 1u << 20}, {1, 2048}, {1, 0}};
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(wrong) / sizeof(wrong[0]); index++) {
        assert_int_equal(heft_ring_create(&reader, fds, NULL), 0);
        assert_int_equal(heft_ring_open(wrong[index][0], wrong[index][1], fds, &writer), HEFT_ERR_PROTOCOL);
        heft_ring_close(&reader);
    }
    /* It could be shortened under the writer's feet. */
    fds[0] = memfd_create("unsealed", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fds[0], HEAD_BYTES + HEFT_RING_CELLS * 64), 0);
    fds[1] = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_int_equal(heft_ring_open(HEFT_RING_LAYOUT, HEFT_RING_CELLS, fds, &writer), HEFT_ERR_PROTOCOL);
    assert_int_equal(count_fds(), before);
}

static void a_scribbled_ring_never_makes_either_side_leave_it(void **state)
{
    static uint8_t got[HEFT_RING_DATA_MAX_BYTES];
    struct heft_ring_record record;
    struct heft_ring reader, writer;
    uint32_t round, at;
    int rc;

    (void)state;
    for (round = 0; round < 300; round++) {
        uint8_t *bytes;

        make_ends(&reader, &writer);
        bytes = (uint8_t *)writer.shared;
        for (at = 0; at < HEAD_BYTES + HEFT_RING_CELLS * 64; at += 4) {
            uint32_t word = random_below(4) ? random_below(0xffffffff) : 0;

            memcpy(bytes + at, &word, 4);
        }
        /* Words that pass for records, of any kind and size. */
        for (at = 0; at < HEFT_RING_CELLS; at++) {
            uint64_t word = (uint64_t)(at + 1) << 32 | random_below(4) << 16 | random_below(9000);

            memcpy(bytes + HEAD_BYTES + at * 64, &word, sizeof(word));
        }
        for (at = 0; at < 3000 && (rc = heft_ring_peek(&reader, &record)) == 1; at++)
            heft_ring_take(&reader, &record, got);
        assert_true(at < 3000); /* it ends: nothing, or PROTOCOL */
        (void)heft_ring_put(&writer, HEFT_RING_NOTE, 0, got, random_below(HEFT_RING_DATA_MAX_BYTES + 1));
        heft_ring_close(&reader);
        heft_ring_close(&writer);
    }
}

/* ---- between agents ---- */

static int setup(void **state)
{
    static struct pair pair;

    pair_open(&pair, "unix", "local");
    assert_non_null(pair.peer->ring.shared);
    *state = &pair;
    return 0;
}

static int teardown(void **state)
{
    pair_close(*state);
    return 0;
}

static struct heft_counter *open_counter(struct heft_agent *agent)
{
    struct heft_counter_options options = HEFT_COUNTER_OPTIONS_INIT;
    struct heft_counter *counter = NULL;

    options.peer = "client";
    options.id = COUNTER;
    assert_int_equal(heft_counter_open(agent, &options, &counter, NULL), 0);
    return counter;
}

static struct heft_xfer *counting_write(struct heft_agent *client, struct heft_peer *peer)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer *xfer = NULL;

    options.flags = HEFT_XFER_INLINE | HEFT_XFER_COUNT;
    options.counter = COUNTER;
    assert_int_equal(heft_xfer_create(client, HEFT_OP_WRITE, peer, NULL, 0, &options, &xfer, NULL), 0);
    return xfer;
}

static void without_a_sleeper_nobody_is_rung(void **state)
{
    struct pair *pair = *state;
    struct heft_counter *counter = open_counter(pair->server);
    struct heft_xfer *xfer = counting_write(pair->client, pair->peer);

    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_poll(xfer), 0); /* told before post returned */
    assert_int_equal(heft_counter_count(counter), 1);
    assert_int_equal(heft_counter_wait(counter, 1, 0, NULL), 0);
    /* A descriptor is a reason: it becomes readable though nobody looks. */
    {
        struct pollfd watched = {-1, POLLIN, 0};

        assert_int_equal(heft_counter_event_fd(counter, &watched.fd, NULL), 0);
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(poll(&watched, 1, 20000), 1);
        assert_int_equal(heft_counter_wait(counter, 1, 0, NULL), 0);
        assert_int_equal(poll(&watched, 1, 0), 0);
    }
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static int has_wake(void *peer)
{
    struct heft_peer *other = peer;
    int has;

    (void)pthread_mutex_lock(&other->lock);
    has = other->ring.wake >= 0;
    (void)pthread_mutex_unlock(&other->lock);
    return has;
}

static void a_descriptor_is_rung_by_the_writer_itself(void **state)
{
    struct heft_counter_options options = HEFT_COUNTER_OPTIONS_INIT;
    struct pair *pair = *state;
    struct heft_counter *counter = NULL;
    struct heft_xfer *xfer = counting_write(pair->client, pair->peer);
    struct pollfd watched = {-1, POLLIN, 0};
    int turn;

    options.peer = "client";
    options.id = COUNTER;
    options.threshold = 2;
    assert_int_equal(heft_counter_open(pair->server, &options, &counter, NULL), 0);
    assert_int_equal(heft_counter_event_fd(counter, &watched.fd, NULL), 0);
    eventually(has_wake, pair->peer);
    for (turn = 0; turn < 50; turn++) {
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(poll(&watched, 1, turn < 3 ? 20 : 0), 0); /* below its threshold */
        assert_int_equal(heft_counter_count(counter), 1);
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(poll(&watched, 1, 0), 1); /* nobody had to wake for that */
        assert_int_equal(heft_counter_wait(counter, 2, 0, NULL), 0);
        assert_int_equal(poll(&watched, 1, 0), 0);
    }
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    counter = open_counter(pair->server); /* another one takes its place, at once */
    assert_int_equal(heft_counter_event_fd(counter, &watched.fd, NULL), 0);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(poll(&watched, 1, 20000), 1);
    assert_int_equal(heft_counter_wait(counter, 1, 0, NULL), 0);
    assert_int_equal(heft_peer_close(pair->peer, NULL), 0);
    assert_int_equal(poll(&watched, 1, 20000), 1); /* its connection is gone */
    assert_int_equal(heft_counter_wait(counter, 1, 0, NULL), HEFT_ERR_PEER_LOST);
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

struct poller {
    struct heft_counter *counter;
    int fd;
    uint32_t want, lost;
};

static void *poll_for_it(void *context)
{
    struct poller *poller = context;
    uint32_t got = 0;

    while (got < poller->want) {
        struct pollfd watched = {poller->fd, POLLIN, 0};

        poller->lost += poll(&watched, 1, 10000) != 1;
        while (heft_counter_wait(poller->counter, 1, 0, NULL) == 0)
            got++;
        if (poller->lost)
            break;
    }
    return NULL;
}

static void no_ring_for_a_descriptor_is_lost(void **state)
{
    struct pair *pair = *state;
    struct heft_counter *counter = open_counter(pair->server);
    struct heft_xfer *xfer = counting_write(pair->client, pair->peer);
    struct poller poller = {.counter = counter, .want = 3000};
    pthread_t thread;
    uint32_t index;

    assert_int_equal(heft_counter_event_fd(counter, &poller.fd, NULL), 0);
    assert_int_equal(pthread_create(&thread, NULL, poll_for_it, &poller), 0);
    for (index = 0; index < poller.want; index++) {
        if (random_below(8) == 0)
            (void)usleep(random_below(60));
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(poller.lost, 0);
    assert_int_equal(heft_counter_count(counter), 0);
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void more_counts_than_the_ring_holds_all_arrive(void **state)
{
    struct pair *pair = *state;
    struct heft_counter *counter;
    struct heft_xfer *xfer = counting_write(pair->client, pair->peer);
    uint32_t index;

    for (index = 0; index < 3 * HEFT_RING_CELLS; index++) {
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    }
    counter = open_counter(pair->server);
    assert_int_equal(heft_counter_wait(counter, 3 * HEFT_RING_CELLS, 20000, NULL), 0);
    assert_int_equal(heft_counter_count(counter), 0);
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void notifications_keep_their_order_by_ring_and_by_frame(void **state)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    static uint8_t data[HEFT_NOTIFICATION_MAX_BYTES];
    struct heft_agent *server = NULL, *client = open_agent("client", NULL, "local");
    struct heft_peer *peer;
    uint32_t sent = 0, got = 0;

    (void)state;
    options.name = "server";
    options.listen = "unix";
    options.max_peers = 4;
    assert_int_equal(heft_agent_open(&options, &server, NULL), 0);
    peer = connect_to(client, server);
    while (got < 3000) {
        struct heft_notification note = {.size = sizeof(note)};
        size_t size = sizeof(sent) + (random_below(2) ? random_below(100) : random_below(8000));

        memcpy(data, &sent, sizeof(sent));
        if (sent < 3000 && sent - got < 400 && random_below(5) &&
            heft_peer_notify(peer, data, size, NULL) == 0)
            sent++;
        if ((random_below(5) == 0 || sent == 3000 || sent - got == 400) &&
            heft_agent_next_notification(server, &note, sent > got ? 20000 : 0) == 0) {
            uint32_t number;

            memcpy(&number, note.data, sizeof(number));
            assert_int_equal(number, got);
            got++;
            heft_free(note.data);
        }
    }
    assert_true(peer->note_frames > 100 && peer->note_frames < 2900); /* both ways were taken */
    assert_int_equal(heft_agent_close(client, NULL), 0);
    assert_int_equal(heft_agent_close(server, NULL), 0);
}

static void a_peer_that_gave_no_ring_is_told_by_frames(void **state)
{
    struct pair *pair = *state;
    struct heft_counter *counter = open_counter(pair->server);
    struct heft_xfer *xfer = counting_write(pair->client, pair->peer);
    struct heft_notification note = {.size = sizeof(note)};

    (void)pthread_mutex_lock(&pair->peer->lock);
    heft_ring_close(&pair->peer->ring);
    (void)pthread_mutex_unlock(&pair->peer->lock);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_peer_notify(pair->peer, "x", 1, NULL), 0);
    assert_int_equal(heft_counter_wait(counter, 1, 20000, NULL), 0);
    assert_int_equal(heft_agent_next_notification(pair->server, &note, 20000), 0);
    heft_free(note.data);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static int is_lost(void *peer)
{
    return heft_peer_status(peer, NULL) != 0;
}

/* Writes a word into the cell that the reader looks at next. */
static void scribble(struct heft_ring *ring, uint32_t kind, uint32_t size)
{
    uint64_t word = (ring->next + 1) << 32 | kind << 16 | size;

    __atomic_store_n(
        (uint64_t *)(void *)((uint8_t *)ring->shared + HEAD_BYTES + (ring->next & ring->mask) * 64), word,
        __ATOMIC_RELEASE);
}

static void a_record_that_makes_no_sense_ends_the_connection(void **state)
{
    static const uint32_t wrong[][2] = {{0, 0}, {3, 0}, {1, 1}, {2, 8193}, {0xffff, 0xffff}};
    struct heft_agent *server = open_agent("server", "unix", "local");
    struct heft_agent *client = open_agent("client", NULL, "local");
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(wrong) / sizeof(wrong[0]); index++) {
        struct heft_peer *peer = connect_to(client, server);
        struct heft_counter *counter = open_counter(server);

        scribble(&peer->ring, wrong[index][0], wrong[index][1]);
        assert_int_equal(heft_counter_wait(counter, 1, 20000, NULL), HEFT_ERR_PEER_LOST);
        eventually(is_lost, peer);
        assert_int_equal(heft_counter_close(counter, NULL), 0);
        assert_int_equal(heft_peer_close(peer, NULL), 0);
    }
    assert_int_equal(heft_agent_close(client, NULL), 0);
    assert_int_equal(heft_agent_close(server, NULL), 0);
}

static void a_notification_beyond_its_credit_ends_the_connection(void **state)
{
    struct pair *pair = *state;
    struct heft_notification note = {.size = sizeof(note)};
    int index;

    for (index = 0; index < 4; index++) /* more than the window of 16 KiB */
        (void)heft_ring_put(&pair->peer->ring, HEFT_RING_NOTE, 0, pair->source, sizeof(pair->source));
    for (index = 0; heft_agent_next_notification(pair->server, &note, 0) == 0; index++)
        heft_free(note.data);
    assert_in_range(index, 1, 3);
    eventually(is_lost, pair->peer);
}

static void a_notification_that_waits_for_no_frame_stops_only_its_peer(void **state)
{
    struct pair *pair = *state;
    struct heft_agent *second = open_agent("second", NULL, "local");
    struct heft_peer *peer = connect_to(second, pair->server);
    struct heft_notification note = {.size = sizeof(note)};

    assert_int_equal(heft_ring_put(&pair->peer->ring, HEFT_RING_NOTE, 5, "held", 4), 1);
    assert_int_equal(heft_agent_next_notification(pair->server, &note, 50), HEFT_ERR_AGAIN);
    assert_int_equal(heft_peer_notify(peer, "passes", 6, NULL), 0);
    assert_int_equal(heft_agent_next_notification(pair->server, &note, 20000), 0);
    assert_int_equal(note.size_bytes, 6);
    heft_free(note.data);
    assert_int_equal(heft_agent_close(second, NULL), 0);
}

static void more_rings_than_are_looked_at_ring(void **state)
{
    struct pair *pair = *state;
    struct heft_agent *clients[HEFT_INBOX_RINGS_LOOKED_AT + 4];
    struct heft_peer *peers[HEFT_INBOX_RINGS_LOOKED_AT + 4];
    uint32_t count = HEFT_INBOX_RINGS_LOOKED_AT + 4, index, seen = 0;
    char name[32];

    for (index = 0; index < count; index++) {
        (void)snprintf(name, sizeof(name), "client %u", index);
        clients[index] = open_agent(name, NULL, "local");
        peers[index] = connect_to(clients[index], pair->server);
        assert_int_equal(heft_peer_notify(peers[index], &index, sizeof(index), NULL), 0);
    }
    for (index = 0; index < count; index++)
        assert_int_equal(heft_peer_notify(peers[index], &index, sizeof(index), NULL), 0);
    for (index = 0; index < 2 * count; index++) {
        struct heft_notification note = {.size = sizeof(note)};
        uint32_t number;

        assert_int_equal(heft_agent_next_notification(pair->server, &note, 20000), 0);
        memcpy(&number, note.data, sizeof(number));
        seen += number;
        heft_free(note.data);
    }
    assert_int_equal(seen, count * (count - 1));
    for (index = 0; index < count; index++)
        assert_int_equal(heft_agent_close(clients[index], NULL), 0);
}

struct sleeper {
    struct heft_counter *counter;
    uint64_t transfers;
    int rc;
};

static void *sleep_for_it(void *context)
{
    struct sleeper *sleeper = context;

    sleeper->rc = heft_counter_wait(sleeper->counter, sleeper->transfers, 60000, NULL);
    return NULL;
}

/* No wake-up is lost, whoever sleeps or spins when it comes. */
static void many_threads_write_and_many_wait(void **state)
{
    struct pair *pair = *state;
    struct heft_counter *counter = open_counter(pair->server);
    struct heft_xfer *xfer = counting_write(pair->client, pair->peer);
    struct sleeper sleepers[4];
    pthread_t threads[4];
    int index, round;

    for (round = 0; round < 50; round++) {
        for (index = 0; index < 4; index++) {
            sleepers[index] = (struct sleeper){.counter = counter, .transfers = 1};
            assert_int_equal(pthread_create(&threads[index], NULL, sleep_for_it, &sleepers[index]), 0);
        }
        for (index = 0; index < 4; index++) {
            if (random_below(2))
                (void)usleep(random_below(200));
            assert_int_equal(heft_xfer_post(xfer, NULL), 0);
            assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
        }
        for (index = 0; index < 4; index++) {
            assert_int_equal(pthread_join(threads[index], NULL), 0);
            assert_int_equal(sleepers[index].rc, 0);
        }
    }
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

/* ---- the other side as a process ---- */

/* Connects to the server of the test, counts and notifies, says so, and stays. */
static int client_main(void)
{
    struct heft_agent *client = open_agent("client", NULL, "local");
    struct served served;
    struct heft_peer *peer;
    struct heft_xfer *xfer;
    int index;

    other_read(0, &served, sizeof(served));
    peer = served_connect(client, &served);
    xfer = counting_write(client, peer);
    for (index = 0; index < 5; index++)
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_peer_notify(peer, "last words", 10, NULL), 0);
    other_write(1, "t", 1);
    (void)pause();
    return 0;
}

static void what_a_killed_writer_left_in_the_ring_is_taken(void **state)
{
    struct heft_agent *server = open_agent("server", "unix", "local");
    struct heft_notification note = {.size = sizeof(note)};
    struct heft_counter *counter = open_counter(server);
    struct served served;
    struct other other;
    char told;

    (void)state;
    served_fill(&served, server);
    other_start(&other, "client", "");
    other_write(other.in, &served, sizeof(served));
    other_read(other.out, &told, 1);
    other_end(&other, SIGKILL);
    assert_int_equal(heft_counter_wait(counter, 6, 20000, NULL), HEFT_ERR_PEER_LOST);
    assert_int_equal(heft_counter_count(counter), 5);
    assert_int_equal(heft_counter_wait(counter, 5, 0, NULL), 0);
    assert_int_equal(heft_agent_next_notification(server, &note, 0), 0);
    assert_memory_equal(note.data, "last words", 10);
    heft_free(note.data);
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    assert_int_equal(heft_agent_close(server, NULL), 0);
}

/* Serves until its input ends; then tells how many transfers came. */
static int server_main(void)
{
    struct heft_agent *server = open_agent("server", "unix", "local");
    struct heft_counter *counter = open_counter(server);
    struct served served;
    uint64_t want, rc;

    served_fill(&served, server);
    other_write(1, &served, sizeof(served));
    other_read(0, &want, sizeof(want));
    rc = (uint64_t)-heft_counter_wait(counter, want, 20000, NULL);
    other_write(1, &rc, sizeof(rc));
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    assert_int_equal(heft_agent_close(server, NULL), 0);
    return 0;
}

static void a_frozen_reader_holds_nobody_up_and_misses_nothing(void **state)
{
    struct heft_agent *client = open_agent("client", NULL, "local");
    struct heft_peer *peer;
    struct heft_xfer *xfer;
    struct served served;
    struct other other;
    uint64_t want = 2 * HEFT_RING_CELLS, rc, index;

    (void)state;
    other_start(&other, "server", "");
    other_read(other.out, &served, sizeof(served));
    peer = served_connect(client, &served);
    xfer = counting_write(client, peer);
    assert_int_equal(kill(other.pid, SIGSTOP), 0);
    for (index = 0; index < want; index++) {
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    }
    assert_int_equal(kill(other.pid, SIGCONT), 0);
    other_write(other.in, &want, sizeof(want));
    other_read(other.out, &rc, sizeof(rc));
    assert_int_equal(rc, 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_agent_close(client, NULL), 0);
    other_end(&other, 0);
}

/* Who looks at the ring without a lock has its memory until it looks away. */
static void a_connection_ends_while_its_ring_is_looked_at(void **state)
{
    struct pair *pair = *state;
    int round;

    for (round = 0; round < 40; round++) {
        struct heft_counter *counter = open_counter(pair->server);
        struct sleeper sleeper = {.counter = counter, .transfers = 1};
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL, sleep_for_it, &sleeper), 0);
        (void)usleep(random_below(120));
        assert_int_equal(heft_peer_close(pair->peer, NULL), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(sleeper.rc, HEFT_ERR_PEER_LOST);
        assert_int_equal(heft_counter_close(counter, NULL), 0);
        pair->peer = connect_to(pair->client, pair->server);
    }
}

/* A full ring: what is told waits, and the transfer is active until it was. */
static void what_the_ring_has_no_room_for_is_told_later(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer *xfer = counting_write(pair->client, pair->peer);
    struct heft_counter *counter;
    uint32_t posts;

    (void)pthread_mutex_lock(&pair->server->event_lock); /* nobody there takes anything */
    for (posts = 0; posts < HEFT_RING_CELLS - 1; posts++) {
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(heft_xfer_poll(xfer), 0);
    }
    assert_int_equal(heft_ring_has_room(&pair->peer->ring, 0), 0); /* for one, but not for two */
    (void)pthread_mutex_unlock(&pair->server->event_lock);
    for (; posts < HEFT_RING_CELLS + 20; posts++) {
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    }
    counter = open_counter(pair->server);
    assert_int_equal(heft_counter_wait(counter, posts, 20000, NULL), 0);
    assert_int_equal(heft_counter_count(counter), 0);
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

#define PAIR(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_come_as_they_were_written_through_many_rounds),
        cmocka_unit_test(a_full_ring_takes_no_more_until_it_was_read),
        cmocka_unit_test(the_bell_rings_once_for_each_time_that_it_was_armed),
        cmocka_unit_test(what_is_no_ring_is_refused_and_its_descriptors_closed),
        cmocka_unit_test(a_scribbled_ring_never_makes_either_side_leave_it),
        PAIR(without_a_sleeper_nobody_is_rung),
        PAIR(a_descriptor_is_rung_by_the_writer_itself),
        PAIR(no_ring_for_a_descriptor_is_lost),
        PAIR(more_counts_than_the_ring_holds_all_arrive),
        cmocka_unit_test(notifications_keep_their_order_by_ring_and_by_frame),
        PAIR(a_peer_that_gave_no_ring_is_told_by_frames),
        cmocka_unit_test(a_record_that_makes_no_sense_ends_the_connection),
        PAIR(a_notification_beyond_its_credit_ends_the_connection),
        PAIR(a_notification_that_waits_for_no_frame_stops_only_its_peer),
        PAIR(more_rings_than_are_looked_at_ring),
        PAIR(many_threads_write_and_many_wait),
        PAIR(a_connection_ends_while_its_ring_is_looked_at),
        PAIR(what_the_ring_has_no_room_for_is_told_later),
        cmocka_unit_test(what_a_killed_writer_left_in_the_ring_is_taken),
        cmocka_unit_test(a_frozen_reader_holds_nobody_up_and_misses_nothing),
    };

    (void)signal(SIGPIPE, SIG_IGN);
    if (argc == 3 && strcmp(argv[1], "client") == 0)
        return client_main();
    if (argc == 3 && strcmp(argv[1], "server") == 0)
        return server_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
