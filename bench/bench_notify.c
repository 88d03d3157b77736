/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-way latency between two processes of this host: 8 bytes written with a counter or a notification, which
 * the other side waits for, looks for again and again, or is told of by a descriptor; beside the least that
 * the machine needs for each: a word of shared memory that both sides look at, an eventfd that is read or
 * polled for, a byte through a unix socket. All in turn in one run. Half of a round trip, of
 * BATCH in a row; median and 99th percentile of such batches.
 *
 *   bench_notify [BATCHES]
 */
#include "base/clock.h"

#include <heft/agent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BATCH \
    16 /* round trips between two looks at the clock, which takes as long as a word needs to travel */

struct card {
    char addresses[1024];
    struct heft_generation generation;
    struct heft_token token;
    uint64_t region;
};

/* One end: its agent, the other's agent as a peer, what it writes with and waits for. */
struct end {
    const char *name, *other;
    struct heft_agent *agent;
    struct heft_peer *peer;
    struct heft_memory *memory;
    struct heft_counter *counter;
    struct heft_xfer *counted, *notified;
    int pipe_in, pipe_out;
    int event_in, event_out, socket, counter_fd;
    uint64_t *word_in, *word_out; /* a line each */
    uint64_t word_seen;
};

enum way {
    BARE_WORD,
    COUNTER_WAIT,
    COUNTER_LOOK,
    NOTE_WAIT,
    NOTE_LOOK,
    BARE_EVENT,
    BARE_EVENT_POLLED,
    COUNTER_FD,
    BARE_SOCKET,
    WAY_COUNT
};
static const char *const ways[] = {
    "bare shared word",         "counter, waited for",      "counter, looked for",
    "notification, waited for", "notification, looked for", "bare eventfd, read",
    "bare eventfd, polled",     "counter, by descriptor",   "bare unix socket"};

static void must(int rc, const char *what)
{
    if (rc == 0)
        return;
    (void)fprintf(stderr, "bench_notify: %s: %s\n", what, heft_error_name(rc));
    exit(1);
}

static void exchange(struct end *end, struct card *mine, struct card *theirs)
{
    if (write(end->pipe_out, mine, sizeof(*mine)) != (ssize_t)sizeof(*mine) ||
        read(end->pipe_in, theirs, sizeof(*theirs)) != (ssize_t)sizeof(*theirs))
        must(HEFT_ERR_IO, "the pipe");
}

static void open_end(struct end *end, const char *listen)
{
    struct heft_agent_options agent_options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_region_options region_options = HEFT_REGION_OPTIONS_INIT;
    struct heft_peer_options peer_options = HEFT_PEER_OPTIONS_INIT;
    struct heft_counter_options counter_options = HEFT_COUNTER_OPTIONS_INIT;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_region *region;
    struct card mine = {.addresses = ""}, theirs;
    struct heft_run run = {.length_bytes = 8, .count = 1};

    agent_options.name = end->name;
    agent_options.listen = listen;
    agent_options.workers = 1;
    must(heft_agent_open(&agent_options, &end->agent, NULL), "an agent");
    must(heft_memory_alloc(4096, 0, &end->memory, NULL), "memory");
    region_options.memory = end->memory;
    region_options.flags = HEFT_REGION_REMOTE_WRITE;
    must(heft_region_register(end->agent, &region_options, &region, NULL), "a region");
    must(heft_agent_addresses(end->agent, mine.addresses, sizeof(mine.addresses)), "addresses");
    mine.generation = heft_agent_generation(end->agent);
    mine.token = heft_agent_token(end->agent);
    mine.region = heft_region_id(region);
    exchange(end, &mine, &theirs);
    peer_options.addresses = theirs.addresses;
    peer_options.generation = theirs.generation;
    peer_options.token = theirs.token;
    must(heft_peer_connect(end->agent, &peer_options, &end->peer, NULL), "connecting");
    counter_options.peer = end->other;
    must(heft_counter_open(end->agent, &counter_options, &end->counter, NULL), "a counter");
    end->counter_fd = -1;
    run.local_region = region;
    run.remote_region = theirs.region;
    options.flags = HEFT_XFER_INLINE | HEFT_XFER_COUNT;
    must(heft_xfer_create(end->agent, HEFT_OP_WRITE, end->peer, &run, 1, &options, &end->counted, NULL),
         "a transfer");
    options.flags = HEFT_XFER_INLINE;
    options.notification = "12345678";
    options.notification_bytes = 8;
    must(heft_xfer_create(end->agent, HEFT_OP_WRITE, end->peer, &run, 1, &options, &end->notified, NULL),
         "a transfer");
}

static void close_end(struct end *end)
{
    must(heft_xfer_release(end->counted), "releasing");
    must(heft_xfer_release(end->notified), "releasing");
    must(heft_counter_close(end->counter, NULL), "closing the counter");
    must(heft_agent_close(end->agent, NULL), "closing the agent");
    heft_memory_free(end->memory);
}

static void send_one(struct end *end, enum way way)
{
    struct heft_xfer *xfer = way == NOTE_WAIT || way == NOTE_LOOK ? end->notified : end->counted;
    uint64_t one = 1;

    switch (way) {
    case BARE_WORD:
        __atomic_store_n(end->word_out, *end->word_out + 1, __ATOMIC_RELEASE);
        break;
    case BARE_EVENT:
    case BARE_EVENT_POLLED:
        must(write(end->event_out, &one, sizeof(one)) == 8 ? 0 : HEFT_ERR_IO, "the eventfd");
        break;
    case BARE_SOCKET:
        must(write(end->socket, "x", 1) == 1 ? 0 : HEFT_ERR_IO, "the socket");
        break;
    default:
        while (heft_xfer_poll(xfer) == HEFT_ERR_AGAIN) /* the one before: long over */
            ;
        must(heft_xfer_post(xfer, NULL), "posting");
    }
}

static void await_fd(int fd)
{
    struct pollfd watched = {fd, POLLIN, 0};

    must(poll(&watched, 1, 10000) == 1 ? 0 : HEFT_ERR_DEADLINE, "polling");
}

static void receive_note(struct end *end, uint64_t timeout_ms)
{
    struct heft_notification note = {.size = sizeof(note)};
    int rc;

    do
        rc = heft_agent_next_notification(end->agent, &note, timeout_ms);
    while (rc == HEFT_ERR_AGAIN && !timeout_ms);
    must(rc, "waiting for a notification");
    heft_free(note.data);
}

static void receive_one(struct end *end, enum way way)
{
    uint64_t value;
    char byte;

    switch (way) {
    case BARE_WORD:
        end->word_seen++;
        while (__atomic_load_n(end->word_in, __ATOMIC_ACQUIRE) != end->word_seen)
            ;
        break;
    case COUNTER_WAIT:
        must(heft_counter_wait(end->counter, 1, 10000, NULL), "waiting for the counter");
        break;
    case COUNTER_LOOK:
        while (heft_counter_wait(end->counter, 1, 0, NULL) == HEFT_ERR_AGAIN)
            ;
        break;
    case COUNTER_FD:
        await_fd(end->counter_fd);
        must(heft_counter_wait(end->counter, 1, 0, NULL), "taking from the counter");
        break;
    case NOTE_WAIT:
        receive_note(end, 10000);
        break;
    case NOTE_LOOK:
        receive_note(end, 0);
        break;
    case BARE_EVENT_POLLED:
        await_fd(end->event_in);
        /* fall through */
    case BARE_EVENT:
        must(read(end->event_in, &value, sizeof(value)) == 8 ? 0 : HEFT_ERR_IO, "the eventfd");
        break;
    default:
        must(read(end->socket, &byte, 1) == 1 ? 0 : HEFT_ERR_IO, "the socket");
    }
}

/* Both sides make their descriptors before either writes: from then on there is one to be told by. */
static void begin_way(struct end *end, enum way way)
{
    char byte = 0;

    if (way == COUNTER_FD && end->counter_fd < 0)
        must(heft_counter_event_fd(end->counter, &end->counter_fd, NULL), "a descriptor");
    if (write(end->pipe_out, &byte, 1) != 1 || read(end->pipe_in, &byte, 1) != 1)
        must(HEFT_ERR_IO, "the pipe");
    (void)usleep(2000);
}

static int by_size(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return left < right ? -1 : left > right;
}

static void ping(struct end *end, double *took_ns, uint32_t rounds)
{
    uint32_t round, turns;
    enum way way;
    int turn;

    for (turn = 0; turn < 2; turn++)
        for (way = 0; way < WAY_COUNT; way++) {
            begin_way(end, way);
            for (round = 0; round < rounds; round++) {
                uint64_t start_ns = heft_now_ns();

                for (turns = 0; turns < BATCH; turns++) {
                    send_one(end, way);
                    receive_one(end, way);
                }
                took_ns[round] = (double)(heft_now_ns() - start_ns) / 2 / BATCH;
            }
            qsort(took_ns, rounds, sizeof(*took_ns), by_size);
            (void)printf("%-26s one way  median %8.3f us  p99 %8.3f us\n", ways[way],
                         took_ns[rounds / 2] / 1e3, took_ns[rounds * 99ull / 100] / 1e3);
            (void)fflush(stdout);
        }
}

static void pong(struct end *end, uint32_t rounds)
{
    uint32_t round;
    enum way way;
    int turn;

    for (turn = 0; turn < 2; turn++)
        for (way = 0; way < WAY_COUNT; way++) {
            begin_way(end, way);
            for (round = 0; round < rounds * BATCH; round++) {
                receive_one(end, way);
                send_one(end, way);
            }
        }
}

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? strtol(argv[1], NULL, 10) : 1000;
    struct end end = {.name = "ping", .other = "pong"};
    uint64_t *words;
    double *took_ns;
    int there[2], back[2], sockets[2], first, second, status = 0;
    pid_t child;

    if (rounds < 1 || rounds > 10000000 || pipe(there) || pipe(back) ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) || (first = eventfd(0, 0)) < 0 ||
        (second = eventfd(0, 0)) < 0)
        return 2;
    words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED)
        return 2;
    child = fork();
    if (child < 0)
        return 2;
    end.pipe_in = child ? back[0] : there[0];
    end.pipe_out = child ? there[1] : back[1];
    end.event_out = child ? first : second;
    end.event_in = child ? second : first;
    end.socket = sockets[child ? 0 : 1];
    end.word_in = words + (child ? 0 : 16);
    end.word_out = words + (child ? 16 : 0);
    if (!child) {
        end.name = "pong";
        end.other = "ping";
    }
    open_end(&end, "unix");
    if (!child) {
        pong(&end, (uint32_t)rounds);
        close_end(&end);
        return 0;
    }
    took_ns = malloc((size_t)rounds * sizeof(*took_ns));
    if (!took_ns)
        return 2;
    ping(&end, took_ns, (uint32_t)rounds);
    free(took_ns);
    close_end(&end);
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
