/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers whose connection is cut, whose peer is frozen, whose agents are used by many threads at once, at
 * random moments: each is right or an error with its reason, nothing beside the destination changes, the next
 * one works, nothing grows.
 *
 * HEFT_TEST_SEED in the environment gives another sequence, HEFT_TEST_TRANSFERS another number of cut
 * transfers, HEFT_TEST_FREEZES of frozen ones.
 */
#include "pair.h"
#include "process.h"
#include "effort.h"
#include "transport/chaos/chaos.h"

#include <heft/heft.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAGE 4096u
#define BYTES ((uint64_t)1 << 20)
#define RUNS_MAX 24
#define CANARY 0xa5

/* ---- chance ---- */

struct chance {
    uint64_t state;
};

static uint64_t draw(struct chance *chance, uint64_t below)
{
    chance->state = chance->state * 6364136223846793005u + 1442695040888963407u;
    return (chance->state >> 33) % below;
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text ? strtoull(text, NULL, 10) : otherwise;
}

static struct chance chance_new(void)
{
    return (struct chance){number_of("HEFT_TEST_SEED", 1)};
}

/* ---- memory between pages that may not be touched ---- */

static uint8_t *guarded_alloc(uint64_t size)
{
    uint8_t *all = mmap(NULL, size + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    assert_true(all != MAP_FAILED);
    assert_int_equal(mprotect(all + PAGE, size, PROT_READ | PROT_WRITE), 0);
    return all + PAGE;
}

static void guarded_free(uint8_t *bytes, uint64_t size)
{
    (void)munmap(bytes - PAGE, size + 2 * PAGE);
}

/* ---- two agents and their memory ---- */

struct rig {
    struct heft_agent *server, *client;
    struct heft_peer *peer; /* NULL: not connected */
    uint8_t *near, *far, *model;
    uint64_t far_bytes, far_at; /* a window of BYTES in it is used */
    struct heft_region *near_region, *far_region;
    const char *require;
    struct chance chance;
};

static void rig_open(struct rig *rig, const char *transports, const char *require, uint64_t far_at)
{
    uint64_t index;

    memset(rig, 0, sizeof(*rig));
    rig->chance = chance_new();
    rig->require = require;
    rig->server = open_agent("server", strcmp(require, "tcp") == 0 ? "127.0.0.1:0" : "unix", transports);
    rig->client = open_agent("client", NULL, transports);
    rig->far_at = far_at;
    rig->far_bytes = far_at + BYTES;
    rig->near = guarded_alloc(BYTES);
    rig->far = guarded_alloc(rig->far_bytes);
    rig->model = malloc(BYTES);
    assert_non_null(rig->model);
    for (index = 0; index < BYTES; index++)
        rig->far[far_at + index] = (uint8_t)(index * 131 >> 3);
    rig->near_region = register_bytes(rig->client, rig->near, BYTES, 0);
    rig->far_region = register_bytes(rig->server, rig->far, rig->far_bytes,
                                     HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE);
}

static void rig_close(struct rig *rig)
{
    assert_int_equal(heft_agent_close(rig->client, NULL), 0);
    assert_int_equal(heft_agent_close(rig->server, NULL), 0);
    guarded_free(rig->near, BYTES);
    guarded_free(rig->far, rig->far_bytes);
    free(rig->model);
}

static uint64_t draw_length(struct chance *chance)
{
    static const uint64_t special[] = {0, 1, 2, 7, 8, 63, 65, 4095, 4096, 4097};
    uint64_t kind = draw(chance, 8);

    if (kind < 4)
        return special[draw(chance, sizeof(special) / sizeof(special[0]))];
    return draw(chance, kind == 7 ? 400000 : 3000);
}

/* Runs whose pieces do not meet where they are written. Draws nothing outside the windows. */
static size_t draw_runs(struct rig *rig, enum heft_op op, struct heft_run runs[RUNS_MAX], uint64_t *bytes_out)
{
    struct chance *chance = &rig->chance;
    size_t count = 0, limit = draw(chance, RUNS_MAX + 1);
    uint64_t at = draw(chance, 300), bytes = 0;

    while (count < limit) {
        uint64_t length = draw_length(chance), pieces = draw(chance, 3) ? 1 : draw(chance, 6);
        uint64_t stride = length + (draw(chance, 2) ? draw(chance, 100) : 0), span = pieces * stride;
        uint64_t from, from_stride = draw(chance, 2) ? length : draw(chance, length + 1);

        if (at + span > BYTES)
            break;
        from = draw(chance, BYTES - span);
        runs[count++] = (struct heft_run){
            .local_region = rig->near_region,
            .local_offset_bytes = op == HEFT_OP_READ ? at : from,
            .remote_region = heft_region_id(rig->far_region),
            .remote_offset_bytes = rig->far_at + (op == HEFT_OP_READ ? from : at),
            .length_bytes = length,
            .count = pieces,
            .local_stride_bytes = op == HEFT_OP_READ ? stride : from_stride,
            .remote_stride_bytes = op == HEFT_OP_READ ? from_stride : stride,
        };
        at += span + (draw(chance, 2) ? draw(chance, 700) : 0);
        bytes += length * pieces;
    }
    *bytes_out = bytes;
    return count;
}

/* What the written side holds afterwards, in rig->model. */
static void model_runs(struct rig *rig, enum heft_op op, const struct heft_run *runs, size_t count)
{
    uint8_t *far = rig->far + rig->far_at;
    const uint8_t *from = op == HEFT_OP_READ ? far : rig->near;
    size_t index;
    uint64_t piece;

    memcpy(rig->model, op == HEFT_OP_READ ? rig->near : far, BYTES);
    for (index = 0; index < count; index++)
        for (piece = 0; piece < runs[index].count; piece++) {
            const struct heft_run *run = &runs[index];
            uint64_t local = run->local_offset_bytes + piece * run->local_stride_bytes;
            uint64_t remote = run->remote_offset_bytes - rig->far_at + piece * run->remote_stride_bytes;

            memcpy(rig->model + (op == HEFT_OP_READ ? local : remote),
                   from + (op == HEFT_OP_READ ? remote : local), run->length_bytes);
        }
}

/* Of a read that failed any part may be there; what was no destination is as it was. */
static void mask_runs(struct rig *rig, const struct heft_run *runs, size_t count)
{
    size_t index;
    uint64_t piece;

    for (index = 0; index < count; index++)
        for (piece = 0; piece < runs[index].count; piece++) {
            uint64_t at = runs[index].local_offset_bytes + piece * runs[index].local_stride_bytes;

            memcpy(rig->model + at, rig->near + at, runs[index].length_bytes);
        }
}

static int is_unused(void *context)
{
    struct rig *rig = context;
    uint32_t pins;

    (void)pthread_mutex_lock(&rig->server->region_lock);
    pins = rig->far_region->pins;
    (void)pthread_mutex_unlock(&rig->server->region_lock);
    return pins == 0;
}

/* The serving side may see the end of a transfer a little later than who posted it. */
static void prepare(struct rig *rig, enum heft_op op)
{
    uint64_t salt = draw(&rig->chance, 251), index;

    eventually(is_unused, rig);
    if (op == HEFT_OP_READ) {
        memset(rig->near, CANARY, BYTES);
        return;
    }
    memset(rig->far + rig->far_at, CANARY, BYTES);
    for (index = 0; index < BYTES; index++)
        rig->near[index] = (uint8_t)((index + salt) * 77 >> 2);
}

static void refill(struct rig *rig, enum heft_op op)
{
    uint64_t index;

    eventually(is_unused, rig);
    for (index = 0; op == HEFT_OP_WRITE && index < BYTES; index++)
        rig->far[rig->far_at + index] = (uint8_t)(index * 131 >> 3);
}

/* ---- the pieces tile the whole ---- */

static void move_lists(const char *transports, const char *require, uint64_t far_at)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_run runs[RUNS_MAX];
    struct rig rig;
    int round;

    rig_open(&rig, transports, require, far_at);
    rig.peer = connect_to(rig.client, rig.server);
    options.require = require;
    for (round = 0; round < EFFORT(40, 10); round++) {
        enum heft_op op = draw(&rig.chance, 2) ? HEFT_OP_READ : HEFT_OP_WRITE;
        struct heft_error error = HEFT_ERROR_INIT;
        struct heft_xfer *xfer = NULL;
        uint64_t bytes;
        size_t count;

        prepare(&rig, op);
        count = draw_runs(&rig, op, runs, &bytes);
        model_runs(&rig, op, runs, count);
        if (heft_xfer_create(rig.client, op, rig.peer, runs, count, &options, &xfer, &error))
            fail_msg("%s, round %d: %s", require, round, error.text);
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(heft_xfer_wait(xfer, 60000), 0);
        heft_xfer_get_result(xfer, &result);
        assert_int_equal(result.bytes, bytes);
        assert_memory_equal(op == HEFT_OP_READ ? rig.near : rig.far + far_at, rig.model, BYTES);
        assert_int_equal(heft_xfer_release(xfer), 0);
        refill(&rig, op);
    }
    assert_int_equal(heft_peer_close(rig.peer, NULL), 0);
    rig_close(&rig);
}

static void random_lists_change_their_destination_exactly(void **state)
{
    static const uint64_t offsets[] = {0, ((uint64_t)4 << 30) - BYTES / 2};
    struct heft_chaos_options chaos = {.base = &heft_transport_local,
                                       .seed = number_of("HEFT_TEST_SEED", 1),
                                       .delay_max_us = 300,
                                       .pieces_max = 7};
    int index;

    (void)state;
    heft_chaos_configure(&chaos);
    assert_int_equal(heft_agent_register_transport(&heft_transport_chaos, NULL), 0);
    for (index = 0; index < 2; index++) {
        move_lists("local", "local", offsets[index]);
        move_lists("tcp", "tcp", offsets[index]);
        move_lists("chaos", "chaos", offsets[index]);
    }
    heft_agent_unregister_transport(&heft_transport_chaos);
}

/* ---- connections that are cut ---- */

struct cutter {
    pthread_t thread;
    uint64_t delay_ns; /* after it was told to go */
    uint64_t random;
    int go; /* atomic */
};

/* Any connected socket of this process, of either side: sessions and data streams. */
static void cut_one(uint64_t random)
{
    int index, found = 0, candidates[256];

    for (index = 3; index < 256; index++) {
        struct sockaddr_storage own;
        socklen_t size = sizeof(own);

        if (getpeername(index, (struct sockaddr *)&own, &size) == 0)
            candidates[found++] = index;
    }
    if (found)
        (void)shutdown(candidates[random % (uint64_t)found], SHUT_RDWR);
}

static void *cut(void *context)
{
    struct cutter *cutter = context;
    uint64_t until;

    while (!__atomic_load_n(&cutter->go, __ATOMIC_ACQUIRE))
        (void)sched_yield();
    until = heft_now_ns() + cutter->delay_ns;
    while (heft_now_ns() < until)
        (void)sched_yield();
    cut_one(cutter->random);
    return NULL;
}

struct tally {
    uint64_t right, failed, lost;
};

static void reconnect(struct rig *rig)
{
    struct heft_error error = HEFT_ERROR_INIT;
    char addresses[2048];
    struct heft_peer_options options = peer_options(rig->server, addresses);
    uint64_t until = heft_now_ns() + 20 * HEFT_NS_PER_S;

    if (rig->peer && heft_peer_status(rig->peer, NULL) == 0)
        return;
    if (rig->peer)
        assert_int_equal(heft_peer_close(rig->peer, NULL), 0);
    rig->peer = NULL;
    while (heft_peer_connect(rig->client, &options, &rig->peer, &error)) {
        assert_true(error.text[0] != 0);
        if (heft_now_ns() > until)
            fail_msg("connecting again: %s", error.text);
    }
}

static void settle(struct rig *rig)
{
    int turn;

    if (rig->peer)
        assert_int_equal(heft_peer_close(rig->peer, NULL), 0);
    rig->peer = NULL;
    for (turn = 0; turn < 20000 && STAT(rig->server, peers_accepted); turn++)
        (void)usleep(1000);
    assert_int_equal(STAT(rig->server, peers_accepted), 0);
}

/* After a write that failed the next one over the same transport is the last to arrive, be it through the
 * same connection or one made again at once. */
static void write_over(struct rig *rig, const char *transport)
{
    uint64_t salt = draw(&rig->chance, 251), until = heft_now_ns() + 20 * HEFT_NS_PER_S, index;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_xfer *xfer;
    int rc;

    options.require = transport;
    for (index = 0; index < BYTES; index++)
        rig->near[index] = (uint8_t)((index + salt) * 59 >> 1);
    do {
        struct heft_run run = {.local_region = rig->near_region,
                               .remote_region = heft_region_id(rig->far_region),
                               .remote_offset_bytes = rig->far_at,
                               .length_bytes = BYTES,
                               .count = 1};

        xfer = NULL;
        reconnect(rig);
        rc = heft_xfer_create(rig->client, HEFT_OP_WRITE, rig->peer, &run, 1, &options, &xfer, &error);
        if (rc == 0)
            rc = heft_xfer_post(xfer, &error);
        if (rc == 0)
            rc = heft_xfer_wait(xfer, 60000);
        assert_int_equal(heft_xfer_release(xfer), 0);
        if (heft_now_ns() > until)
            fail_msg("writing again: %s %s", heft_error_name(rc), error.text);
    } while (rc);
    assert_memory_equal(rig->far + rig->far_at, rig->near, BYTES);
    if (draw(&rig->chance, 4) == 0) { /* it stays so */
        (void)usleep((useconds_t)draw(&rig->chance, 2000));
        assert_memory_equal(rig->far + rig->far_at, rig->near, BYTES);
    }
}

/* The end of one transfer: right, or an error that says why. */
static void expect_right_or_reason(struct rig *rig, enum heft_op op, struct heft_xfer *xfer,
                                   const struct heft_run *runs, size_t count, struct tally *tally)
{
    struct heft_xfer_result result = {.size = sizeof(result)};
    int rc = heft_xfer_wait(xfer, 60000);

    assert_int_not_equal(rc, HEFT_ERR_AGAIN);
    heft_xfer_get_result(xfer, &result);
    assert_int_equal(result.status, rc);
    if (rc) {
        assert_true(result.error.text[0] != 0);
        assert_int_equal(result.error.code, rc);
        mask_runs(rig, runs, count);
        tally->failed++;
    } else {
        tally->right++;
    }
    if (rc && op == HEFT_OP_WRITE)
        write_over(rig, *result.transport ? result.transport : rig->require);
    else
        assert_memory_equal(op == HEFT_OP_READ ? rig->near : rig->far + rig->far_at, rig->model, BYTES);
}

static void move_once(struct rig *rig, int is_cut, struct tally *tally)
{
    enum heft_op op = draw(&rig->chance, 3) ? HEFT_OP_READ : HEFT_OP_WRITE;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_run runs[RUNS_MAX];
    struct cutter cutter = {.delay_ns = draw(&rig->chance, 400) * 1000, .random = draw(&rig->chance, 1000)};
    int early = draw(&rig->chance, 4) == 0, cancel = draw(&rig->chance, 6) == 0;
    struct heft_xfer *xfer = NULL;
    uint64_t bytes;
    size_t count;
    int rc;

    reconnect(rig);
    options.require = draw(&rig->chance, 2) ? rig->require : "tcp";
    prepare(rig, op);
    count = draw_runs(rig, op, runs, &bytes);
    model_runs(rig, op, runs, count);
    if (is_cut)
        assert_int_equal(pthread_create(&cutter.thread, NULL, cut, &cutter), 0);
    __atomic_store_n(&cutter.go, early, __ATOMIC_RELEASE);
    rc = heft_xfer_create(rig->client, op, rig->peer, runs, count, &options, &xfer, &error);
    if (rc == 0)
        rc = heft_xfer_post(xfer, &error);
    __atomic_store_n(&cutter.go, 1, __ATOMIC_RELEASE);
    if (rc == 0 && cancel) {
        (void)usleep((useconds_t)draw(&rig->chance, 200));
        (void)heft_xfer_cancel(xfer);
    }
    if (rc == 0)
        expect_right_or_reason(rig, op, xfer, runs, count, tally);
    if (rc) {
        assert_true(error.text[0] != 0);
        tally->lost++;
    }
    if (xfer)
        assert_int_equal(heft_xfer_release(xfer), 0);
    if (is_cut)
        (void)pthread_join(cutter.thread, NULL);
    refill(rig, op);
}

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

static void cut_connections_cost_their_transfer_and_nothing_else(void **state)
{
    uint64_t transfers = number_of("HEFT_TEST_TRANSFERS", EFFORT(300, 100)), index;
    size_t memory = 0, grown;
    struct tally tally = {0};
    struct rig rig;
    int fds = 0, threads = 0;

    (void)state;
    rig_open(&rig, "local,tcp", "local", 0);
    for (index = 0; index < transfers; index++) {
        if (index == transfers / 4) {
            settle(&rig);
            fds = steady_fds();
            threads = count_threads();
            memory = mallinfo2().uordblks;
        }
        move_once(&rig, draw(&rig.chance, 4) != 0, &tally);
        if (tally.failed + tally.lost && draw(&rig.chance, 4) == 0)
            move_once(&rig, 0, &tally);
    }
    settle(&rig);
    assert_int_equal(steady_fds(), fds);
    assert_int_equal(count_threads(), threads);
    grown = mallinfo2().uordblks;
    if (grown > memory + (256 << 10))
        fail_msg("%zu bytes in use, %zu before", grown, memory);
    print_message(
        "%llu right, %llu failed, %llu not begun; %d descriptors, %d threads, %zu bytes, %zu before\n",
        (unsigned long long)tally.right, (unsigned long long)tally.failed, (unsigned long long)tally.lost,
        fds, threads, grown, memory);
    assert_true(tally.right > 0);
    rig_close(&rig);
}

/* ---- peers that are frozen ---- */

#define FROZEN_BYTES ((uint64_t)8 << 20)
#define STALL_MS 300
#define PATTERN 0x3c

/* Serves its memory until its input ends. */
static int serve_main(const char *listen)
{
    struct served served = {.name = ""};
    struct heft_agent *agent = open_agent("server", listen, "local,tcp");
    uint8_t *bytes = malloc(FROZEN_BYTES);
    char byte;

    if (!bytes)
        return 4;
    memset(bytes, 1, FROZEN_BYTES);
    served.regions[0] = heft_region_id(register_bytes(agent, bytes, FROZEN_BYTES, HEFT_REGION_REMOTE_READ));
    served_fill(&served, agent);
    other_write(1, &served, sizeof(served));
    while (read(0, &byte, 1) > 0)
        ;
    if (heft_agent_close(agent, NULL))
        return 5;
    free(bytes);
    return 0;
}

/* Writes all of the first region that it is told of, again and again, until that fails. */
static int write_main(const char *transport)
{
    struct heft_run run = {.length_bytes = FROZEN_BYTES, .count = 1};
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_agent *agent;
    struct heft_peer *peer;
    struct heft_xfer *xfer;
    struct served served;
    void *bytes = calloc(1, FROZEN_BYTES);
    int told = 0;

    other_read(0, &served, sizeof(served));
    agent = open_agent("writer", NULL, "local,tcp");
    peer = served_connect(agent, &served);
    run.local_region = register_bytes(agent, bytes, FROZEN_BYTES, 0);
    run.remote_region = served.regions[0];
    options.require = transport;
    if (heft_xfer_create(agent, HEFT_OP_WRITE, peer, &run, 1, &options, &xfer, NULL))
        return 4;
    while (heft_xfer_post(xfer, NULL) == 0 && heft_xfer_wait(xfer, 60000) == 0)
        if (!told++)
            other_write(1, "w", 1);
    if (heft_xfer_release(xfer) || heft_agent_close(agent, NULL))
        return 5;
    free(bytes);
    return 0;
}

static int comes_free(void *context)
{
    return heft_region_deregister(context, NULL) == 0;
}

PLAIN_LOOP static void expect_pattern(const uint8_t *bytes)
{
    uint64_t index;

    for (index = 0; index < FROZEN_BYTES; index++)
        if (bytes[index] != PATTERN)
            fail_msg("byte %llu came after the memory was given back", (unsigned long long)index);
}

/* Reads from a process that is stopped on the way; then the memory is another one's when it goes on. */
static void read_from_frozen(struct heft_agent *agent, const struct other *other, struct heft_peer *peer,
                             uint64_t region, unsigned delay_us, const char *transport)
{
    struct heft_run run = {.remote_region = region, .length_bytes = FROZEN_BYTES, .count = 1};
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer_result result = {.size = sizeof(result)};
    uint8_t *bytes = guarded_alloc(FROZEN_BYTES);
    struct heft_xfer *xfer = NULL;
    int rc;

    run.local_region = register_bytes(agent, bytes, FROZEN_BYTES, 0);
    options.require = transport;
    options.stall_ms = STALL_MS;
    assert_int_equal(heft_xfer_create(agent, HEFT_OP_READ, peer, &run, 1, &options, &xfer, NULL), 0);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    (void)usleep(delay_us);
    assert_int_equal(kill(other->pid, SIGSTOP), 0);
    rc = heft_xfer_wait(xfer, 10000);
    heft_xfer_get_result(xfer, &result);
    if (rc != 0 && rc != HEFT_ERR_STALLED)
        fail_msg("%s: %s", heft_error_name(rc), result.error.text);
    assert_int_equal(heft_xfer_release(xfer), 0);
    eventually(comes_free, run.local_region);
    memset(bytes, PATTERN, FROZEN_BYTES);
    assert_int_equal(kill(other->pid, SIGCONT), 0);
    (void)usleep(30 * 1000);
    expect_pattern(bytes);
    guarded_free(bytes, FROZEN_BYTES);
}

static void late_bytes_of_a_frozen_server_find_no_memory(void **state)
{
    struct chance chance = chance_new();
    struct served served;
    struct other other;
    struct heft_agent *agent = open_agent("reader", NULL, "local,tcp");
    struct heft_peer *peer = NULL;
    int round;

    (void)state;
    other_start(&other, "serve", "unix");
    other_read(other.out, &served, sizeof(served));
    for (round = 0; round < (int)number_of("HEFT_TEST_FREEZES", EFFORT(6, 3)); round++) {
        if (peer && heft_peer_status(peer, NULL)) {
            assert_int_equal(heft_peer_close(peer, NULL), 0);
            peer = NULL;
        }
        if (!peer)
            peer = served_connect(agent, &served);
        read_from_frozen(agent, &other, peer, served.regions[0], (unsigned)draw(&chance, 3000),
                         round % 4 == 3 ? "local" : "tcp");
    }
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    other_end(&other, 0);
}

static void freeze_a_writer(const char *transport, unsigned delay_us)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct served served = {.name = ""};
    uint8_t *bytes = guarded_alloc(FROZEN_BYTES);
    struct heft_region *region;
    struct heft_agent *agent;
    struct other other;
    char said;

    /* Without a transport for one host, its peers have no way of their own into its memory. */
    options.name = "taker";
    options.transports = transport;
    options.listen = strcmp(transport, "tcp") == 0 ? "127.0.0.1:0" : "unix";
    options.heartbeat_ms = 50;
    options.peer_timeout_ms = 400;
    assert_int_equal(heft_agent_open(&options, &agent, NULL), 0);
    region = register_bytes(agent, bytes, FROZEN_BYTES, HEFT_REGION_REMOTE_WRITE);
    served_fill(&served, agent);
    served.regions[0] = heft_region_id(region);
    other_start(&other, "write", transport);
    other_write(other.in, &served, sizeof(served));
    other_read(other.out, &said, 1);
    (void)usleep(delay_us);
    assert_int_equal(kill(other.pid, SIGSTOP), 0);
    if (strcmp(transport, "tcp") != 0) { /* who writes by itself must be heard of first */
        assert_int_equal(heft_region_deregister(region, NULL), HEFT_ERR_BUSY);
        assert_int_equal(kill(other.pid, SIGCONT), 0);
    }
    eventually(comes_free, region);
    memset(bytes, PATTERN, FROZEN_BYTES);
    assert_int_equal(kill(other.pid, SIGCONT), 0);
    other_end(&other, 0); /* it found its peer lost, and left by itself */
    expect_pattern(bytes);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    guarded_free(bytes, FROZEN_BYTES);
}

static void late_bytes_of_a_frozen_writer_find_no_memory(void **state)
{
    struct chance chance = chance_new();
    int round;

    (void)state;
    for (round = 0; round < (int)number_of("HEFT_TEST_FREEZES", EFFORT(4, 2)); round++)
        freeze_a_writer(round % 2 ? "local" : "tcp", (unsigned)draw(&chance, 5000));
}

/* ---- many threads at once ---- */

#define THREADS 8

struct worker {
    struct rig *rig;
    pthread_t thread;
    struct chance chance;
    unsigned index;
    int failures;
    uint8_t bytes[PAGE];
};

/* One life: register, connect, move (and cancel, or lose the peer on the way), give all back. */
static int live_once(struct worker *worker)
{
    struct heft_run run = {
        .remote_region = heft_region_id(worker->rig->far_region), .length_bytes = PAGE, .count = 1};
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_peer *peer = NULL;
    struct heft_xfer *xfer = NULL;
    char addresses[2048];
    struct heft_peer_options wanted = peer_options(worker->rig->server, addresses);
    int rc, failures = 0, turn;

    options.address = worker->bytes;
    options.length_bytes = PAGE;
    if (heft_region_register(worker->rig->client, &options, &run.local_region, NULL))
        return 1;
    for (turn = 0; turn < 50 && heft_peer_connect(worker->rig->client, &wanted, &peer, NULL); turn++)
        ;
    failures += peer == NULL;
    if (peer && heft_xfer_create(worker->rig->client, HEFT_OP_READ, peer, &run, 1, NULL, &xfer, NULL) == 0) {
        for (turn = 0; turn < 5 && heft_xfer_post(xfer, NULL) == 0; turn++) {
            uint64_t fate = draw(&worker->chance, 6);

            if (fate == 0)
                (void)heft_xfer_cancel(xfer);
            else if (fate == 1)
                cut_one(draw(&worker->chance, 1000));
            while (fate == 2 && heft_xfer_poll(xfer) == HEFT_ERR_AGAIN)
                (void)sched_yield();
            rc = heft_xfer_wait(xfer, 60000);
            failures += rc == HEFT_ERR_AGAIN;
            failures += rc == 0 && memcmp(worker->bytes, worker->rig->far, PAGE) != 0;
        }
    }
    failures += heft_xfer_release(xfer) != 0;
    failures += peer && heft_peer_close(peer, NULL) != 0;
    do
        rc = heft_region_deregister(run.local_region, NULL);
    while (rc == HEFT_ERR_BUSY); /* another thread's peer is slow to let go */
    memset(worker->bytes, (int)worker->index, PAGE);
    return failures + (rc != 0);
}

static void *live(void *context)
{
    struct worker *worker = context;
    int round;

    for (round = 0; round < EFFORT(40, 12); round++)
        worker->failures += live_once(worker);
    return NULL;
}

static void threads_register_post_cancel_and_lose_peers_at_once(void **state)
{
    static struct worker workers[THREADS];
    struct tally tally = {0};
    struct rig rig;
    unsigned index;

    (void)state;
    rig_open(&rig, "local,tcp", "local", 0);
    for (index = 0; index < THREADS; index++) {
        workers[index] = (struct worker){.rig = &rig, .index = index, .chance = {rig.chance.state + index}};
        assert_int_equal(pthread_create(&workers[index].thread, NULL, live, &workers[index]), 0);
    }
    for (index = 0; index < THREADS; index++) {
        (void)pthread_join(workers[index].thread, NULL);
        assert_int_equal(workers[index].failures, 0);
    }
    move_once(&rig, 0, &tally);
    assert_int_equal(tally.right, 1);
    settle(&rig);
    rig_close(&rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lists_change_their_destination_exactly),
        cmocka_unit_test(cut_connections_cost_their_transfer_and_nothing_else),
        cmocka_unit_test(late_bytes_of_a_frozen_server_find_no_memory),
        cmocka_unit_test(late_bytes_of_a_frozen_writer_find_no_memory),
        cmocka_unit_test(threads_register_post_cancel_and_lose_peers_at_once),
    };

    (void)signal(SIGPIPE, SIG_IGN);
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        return serve_main(argv[2]);
    if (argc == 3 && strcmp(argv[1], "write") == 0)
        return write_main(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
