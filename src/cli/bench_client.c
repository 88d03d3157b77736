/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The measuring side of heft bench: one process with some threads. Each thread has its own part of the memory
 * on both sides and one transfer for each server; it posts them all, waits for all, and begins again until
 * the time is over. Then the bytes are compared.
 */
#include "base/clock.h"
#include "base/error.h"
#include "cli/agents.h"
#include "cli/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define THREADS_MAX 64
#define XFER_WAIT_MS (BENCH_WAIT_S * 1000u / 2)

struct client {
    const struct bench_setup *setup;
    struct bench_board *board;
    uint32_t index;
    struct heft_agent *agent;
    struct heft_peer *peers[BENCH_SERVERS_MAX];
    struct heft_region *near;
    uint8_t *near_bytes;
    struct heft_memory *memory; /* of near; NULL: mapped */
    uint64_t near_size;
    /* FILE: */
    int fd;
    struct heft_region *file;
    pthread_barrier_t together; /* this process' threads */
    const struct bench_case *row;
    struct bench_result *result;
    pthread_mutex_t lock; /* of the result */
};

struct worker {
    struct client *client;
    uint32_t number; /* of all threads of all clients */
    uint64_t near_offset, far_offset;
    struct heft_list *near_list[BENCH_SERVERS_MAX], *far_list[BENCH_SERVERS_MAX];
    struct heft_xfer *xfers[BENCH_SERVERS_MAX];
    uint32_t *near_order, *far_order; /* SCATTERED */
    struct heft_run *runs;
    int rc;
    struct heft_error error;
    struct heft_stats_histogram times;
    uint64_t bytes, transfers;
};

/* ---- memory ---- */

static int open_near(struct client *client, enum bench_space space, uint64_t bytes, struct heft_error *error)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_memory_info info;
    int rc;

    if (space == BENCH_SHARED) {
        rc = heft_memory_alloc(bytes, HEFT_MEMORY_PREFAULT, &client->memory, error);
        if (rc)
            return rc;
        heft_memory_get_info(client->memory, &info);
        options.memory = client->memory;
        client->near_bytes = info.address;
    } else {
        void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (map == MAP_FAILED)
            return heft_error_set_errno(error, errno, "%s of private memory", cli_bytes(bytes));
        (void)madvise(map, bytes, MADV_HUGEPAGE);
        client->near_bytes = options.address = map;
        options.length_bytes = bytes;
    }
    client->near_size = bytes;
    memset(client->near_bytes, 0, bytes);
    return heft_region_register(client->agent, &options, &client->near, error);
}

static int write_file(int fd, const uint8_t *data, uint64_t size, uint64_t offset)
{
    while (size) {
        ssize_t wrote = pwrite(fd, data, size < 1 << 30 ? size : 1 << 30, (off_t)offset);

        if (wrote <= 0)
            return HEFT_ERR_IO;
        data += wrote;
        offset += (uint64_t)wrote;
        size -= (uint64_t)wrote;
    }
    return 0;
}

static int open_file(struct client *client, uint64_t bytes, struct heft_error *error)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;

    client->fd = open(client->setup->path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (client->fd < 0)
        return heft_error_set_errno(error, errno, "--path %s: a file without a name", client->setup->path);
    bench_fill(client->near_bytes, 0, bytes, BENCH_SOURCE_SALT);
    if (write_file(client->fd, client->near_bytes, bytes, 0))
        return heft_error_set_errno(error, errno, "--path %s: writing %s", client->setup->path,
                                    cli_bytes(bytes));
    options.space = HEFT_SPACE_FILE;
    options.fd = client->fd;
    options.path = client->setup->path;
    options.flags = HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE;
    return heft_region_register(client->agent, &options, &client->file, error);
}

static void close_memory(struct client *client)
{
    if (client->file)
        (void)heft_region_deregister(client->file, NULL);
    if (client->fd >= 0)
        (void)close(client->fd);
    if (client->near)
        (void)heft_region_deregister(client->near, NULL);
    if (client->memory)
        heft_memory_free(client->memory);
    else if (client->near_bytes)
        (void)munmap(client->near_bytes, client->near_size);
    client->file = client->near = NULL;
    client->memory = NULL;
    client->near_bytes = NULL;
    client->fd = -1;
}

/* ---- transfers ---- */

static uint64_t far_region(const struct client *client, uint32_t server)
{
    const struct bench_card *card = &client->board->cards[server];

    if (client->row->space == BENCH_FILE)
        return heft_region_id(client->file);
    return client->row->op == HEFT_OP_READ ? card->source_region : card->target_region;
}

static uint32_t server_count(const struct client *client)
{
    return client->row->space == BENCH_FILE ? 1 : client->setup->servers;
}

static uint32_t *shuffled(uint64_t count, uint64_t seed)
{
    uint32_t *order = malloc(count * sizeof(*order));
    uint64_t index;

    for (index = 0; order && index < count; index++)
        order[index] = (uint32_t)index;
    for (index = count; order && index > 1; index--) {
        uint32_t kept = order[index - 1];
        uint64_t other;

        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        other = (seed >> 33) % index;
        order[index - 1] = order[other];
        order[other] = kept;
    }
    return order;
}

/* The runs of a transfer to one server: one with a stride, or one for each scattered piece. */
static size_t fill_runs(struct worker *worker, uint32_t server)
{
    const struct bench_case *row = worker->client->row;
    struct heft_run run = {.local_region = worker->client->near,
                           .local_offset_bytes = worker->near_offset,
                           .remote_region = far_region(worker->client, server),
                           .remote_offset_bytes = worker->far_offset,
                           .length_bytes = row->size_bytes,
                           .count = row->batch,
                           .local_stride_bytes = bench_stride(row),
                           .remote_stride_bytes = bench_stride(row)};
    uint64_t index;

    worker->runs[0] = run;
    if (!worker->near_order)
        return 1;
    for (index = 0; index < row->batch; index++) {
        worker->runs[index] = run;
        worker->runs[index].count = 1;
        worker->runs[index].local_offset_bytes += worker->near_order[index] * bench_stride(row);
        worker->runs[index].remote_offset_bytes += worker->far_order[index] * bench_stride(row);
    }
    return row->batch;
}

static void fill_options(const struct worker *worker, struct heft_xfer_options *options)
{
    const struct bench_setup *setup = worker->client->setup;
    const struct bench_case *row = worker->client->row;

    options->require = setup->require;
    options->deadline_ms = XFER_WAIT_MS;
    options->flags |= HEFT_XFER_INLINE; /* transports know up to which size that is quicker */
    if (setup->tell == BENCH_NOTIFICATION && row->space != BENCH_FILE) {
        options->notification = "heft";
        options->notification_bytes = 4;
    }
    if (setup->tell == BENCH_COUNTER && row->space != BENCH_FILE && row->op == HEFT_OP_WRITE) {
        options->flags |= HEFT_XFER_COUNT;
        options->counter = worker->number % 512; /* nobody opens them: a connection keeps 1,024 */
    }
}

static int make_list(struct worker *worker, struct heft_peer *peer, uint64_t region, uint64_t offset,
                     struct heft_list **list_out)
{
    const struct bench_case *row = worker->client->row;
    struct heft_list_run run = {region, offset, row->size_bytes, row->batch, bench_stride(row)};

    return heft_list_create(worker->client->agent, peer, &run, 1, list_out, &worker->error);
}

static int make_xfer(struct worker *worker, uint32_t server)
{
    struct client *client = worker->client;
    struct heft_peer *peer = client->row->space == BENCH_FILE ? NULL : client->peers[server];
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    int rc = 0;

    fill_options(worker, &options);
    if (!worker->near_order || client->setup->unprepared)
        return heft_xfer_create(client->agent, client->row->op, peer, worker->runs, fill_runs(worker, server),
                                &options, &worker->xfers[server], &worker->error);
    if (!worker->near_list[server])
        rc = make_list(worker, NULL, heft_region_id(client->near), worker->near_offset,
                       &worker->near_list[server]);
    if (!rc && !worker->far_list[server])
        rc = make_list(worker, peer, far_region(client, server), worker->far_offset,
                       &worker->far_list[server]);
    if (rc)
        return rc;
    return heft_xfer_create_indexed(client->agent, client->row->op, worker->near_list[server],
                                    worker->near_order, worker->far_list[server], worker->far_order,
                                    client->row->batch, &options, &worker->xfers[server], &worker->error);
}

/* All servers once. Transfers that are not prepared are made here, in the time that counts. */
static int round_once(struct worker *worker)
{
    uint32_t server, count = server_count(worker->client);
    int rc = 0;

    for (server = 0; !rc && server < count; server++) {
        if (!worker->xfers[server])
            rc = make_xfer(worker, server);
        if (!rc)
            rc = heft_xfer_post(worker->xfers[server], &worker->error);
    }
    while (server > 0) {
        struct heft_xfer *xfer = worker->xfers[--server];
        int status = xfer ? heft_xfer_wait(xfer, XFER_WAIT_MS + 1000) : 0;

        if (status && !rc && status != HEFT_ERR_STATE) {
            struct heft_xfer_result result = {.size = sizeof(result)};

            heft_xfer_get_result(xfer, &result);
            worker->error = result.error;
            rc = status;
        }
        if (xfer && worker->client->setup->unprepared && !heft_xfer_release(xfer))
            worker->xfers[server] = NULL;
    }
    return rc;
}

/* ---- a row ---- */

static void note_transport(struct worker *worker)
{
    struct heft_xfer_result result = {.size = sizeof(result)};

    if (worker->number || !worker->xfers[0])
        return;
    heft_xfer_get_result(worker->xfers[0], &result);
    (void)snprintf(worker->client->result->transport, sizeof(worker->client->result->transport), "%s",
                   result.transport);
}

static int warm_up(struct worker *worker)
{
    uint64_t until_ns = heft_now_ns() + worker->client->setup->warm_ns;
    int rc = make_xfer(worker, 0);

    do {
        if (!rc)
            rc = round_once(worker);
    } while (!rc && heft_now_ns() < until_ns);
    if (!rc && !worker->xfers[0]) /* to be asked for its route */
        rc = make_xfer(worker, 0);
    if (!rc) {
        rc = heft_xfer_post(worker->xfers[0], &worker->error);
        if (!rc)
            rc = heft_xfer_wait(worker->xfers[0], XFER_WAIT_MS);
        note_transport(worker);
    }
    return rc;
}

static void measure(struct worker *worker)
{
    uint64_t until_ns = heft_now_ns() + worker->client->setup->time_ns, start_ns;
    uint64_t bytes = worker->client->row->size_bytes * worker->client->row->batch;

    worker->bytes = worker->transfers = 0;
    while (!worker->rc && (start_ns = heft_now_ns(), worker->transfers == 0 || start_ns < until_ns)) {
        worker->rc = round_once(worker);
        heft_stats_record_locked(&worker->times, heft_now_ns() - start_ns);
        worker->bytes += bytes * server_count(worker->client);
        worker->transfers += server_count(worker->client);
    }
}

static void add_result(struct worker *worker, uint32_t repeat)
{
    struct bench_result *result = worker->client->result;

    (void)pthread_mutex_lock(&worker->client->lock);
    result->bytes[repeat] += worker->bytes;
    result->transfers[repeat] += worker->transfers;
    if (worker->rc && !result->status) {
        result->status = worker->rc;
        result->error = worker->error;
    }
    (void)pthread_mutex_unlock(&worker->client->lock);
}

/* Waits for the others; 1 in one of them. The chosen one's mark is a negative number, which is no error. */
static int is_chosen(pthread_barrier_t *together)
{
    int rc = pthread_barrier_wait(together);

    return rc == PTHREAD_BARRIER_SERIAL_THREAD;
}

/* Every thread comes to every barrier, whatever failed: nobody waits for somebody who left. */
static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct client *client = worker->client;
    uint32_t repeat;

    worker->rc = warm_up(worker);
    for (repeat = 0; repeat < client->setup->repeats; repeat++) {
        uint64_t start_ns;

        if (is_chosen(&client->together))
            (void)pthread_barrier_wait(&client->board->start);
        (void)pthread_barrier_wait(&client->together);
        start_ns = heft_now_ns();
        measure(worker);
        add_result(worker, repeat);
        if (is_chosen(&client->together))
            client->result->ns[repeat] = heft_now_ns() - start_ns;
    }
    (void)pthread_mutex_lock(&client->lock);
    heft_stats_histogram_add(&client->result->times, &worker->times);
    (void)pthread_mutex_unlock(&client->lock);
    return NULL;
}

/* ---- comparing ---- */

static int wrong(struct worker *worker, uint32_t server, uint64_t piece, uint64_t byte)
{
    return heft_error_set(&worker->error, HEFT_ERR_DIGEST,
                          "wrong bytes: server %u, thread %u, piece %llu, byte %llu of a %s", server,
                          worker->number, (unsigned long long)piece, (unsigned long long)byte,
                          worker->client->row->op == HEFT_OP_READ ? "READ" : "WRITE");
}

/* What each piece of `near` must be: the far side's bytes (READ), or what was there before it was written. */
static int compare(struct worker *worker, uint32_t server)
{
    const struct bench_case *row = worker->client->row;
    const uint8_t *near = worker->client->near_bytes + worker->near_offset;
    uint64_t index, stride = bench_stride(row);

    for (index = 0; index < row->batch; index++) {
        uint64_t here = (worker->near_order ? worker->near_order[index] : index) * stride;
        uint64_t there = (worker->far_order ? worker->far_order[index] : index) * stride;
        uint64_t same =
            row->op == HEFT_OP_READ
                ? bench_differs(near + here, worker->far_offset + there, row->size_bytes, BENCH_SOURCE_SALT)
                : bench_differs(near + here, worker->near_offset + here, row->size_bytes, BENCH_CLIENT_SALT);

        if (same != row->size_bytes)
            return wrong(worker, server, index, same);
    }
    return 0;
}

/* One more transfer into (READ), or back into (WRITE), memory that was wiped: compared. */
static int check_server(struct worker *worker, uint32_t server)
{
    struct client *client = worker->client;
    struct bench_case back = *client->row;
    struct heft_xfer *xfer = NULL;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_peer *peer = back.space == BENCH_FILE ? NULL : client->peers[server];
    size_t count = fill_runs(worker, server); /* with the region that was written */
    int rc;

    memset(client->near_bytes + worker->near_offset, 0, bench_span(&back));
    options.deadline_ms = XFER_WAIT_MS;
    rc = heft_xfer_create(client->agent, HEFT_OP_READ, peer, worker->runs, count, &options, &xfer,
                          &worker->error);
    if (!rc)
        rc = heft_xfer_post(xfer, &worker->error);
    if (!rc) {
        rc = heft_xfer_wait(xfer, XFER_WAIT_MS + 1000);
        if (rc)
            (void)heft_error_set(&worker->error, rc, "reading back for the comparison: %s",
                                 heft_error_text(rc));
    }
    if (xfer)
        (void)heft_xfer_release(xfer);
    if (!rc)
        rc = compare(worker, server);
    if (!rc)
        client->result->checked_bytes += back.size_bytes * back.batch;
    return rc;
}

/* READ: what the measured transfers left there, first; WRITE: what is on the other side now. */
static int check(struct worker *worker)
{
    struct client *client = worker->client;
    uint32_t server, last = server_count(client) - 1;
    int rc = 0;

    if (client->row->op == HEFT_OP_READ) {
        rc = compare(worker, last);
        client->result->checked_bytes += client->row->size_bytes * client->row->batch;
        return rc;
    }
    for (server = 0; !rc && server <= last; server++)
        rc = check_server(worker, server);
    return rc;
}

/* ---- one row of this client ---- */

static void drop_worker(struct worker *worker)
{
    uint32_t server;

    for (server = 0; server < BENCH_SERVERS_MAX; server++) {
        (void)heft_xfer_release(worker->xfers[server]);
        heft_list_destroy(worker->near_list[server]);
        heft_list_destroy(worker->far_list[server]);
    }
    free(worker->near_order);
    free(worker->far_order);
    free(worker->runs);
}

static int open_worker(struct client *client, struct worker *worker, uint32_t thread)
{
    const struct bench_case *row = client->row;
    uint32_t threads = client->setup->threads;

    *worker = (struct worker){.client = client, .number = client->index * threads + thread};
    worker->near_offset = thread * bench_span(row);
    worker->far_offset = (row->space == BENCH_FILE ? thread : worker->number) * bench_span(row);
    worker->runs = calloc(row->pattern == BENCH_SCATTERED ? row->batch : 1, sizeof(*worker->runs));
    if (row->pattern == BENCH_SCATTERED) {
        worker->near_order = shuffled(row->batch, worker->number + 1);
        worker->far_order = shuffled(row->batch, worker->number + 77);
    }
    if (!worker->runs || (row->pattern == BENCH_SCATTERED && (!worker->near_order || !worker->far_order)))
        return heft_error_set(&client->result->error, HEFT_ERR_NO_MEMORY, "out of memory for %s pieces",
                              cli_count((double)row->batch));
    return 0;
}

/* The same pieces without heft; only one process does it, before the others begin. */
static void measure_bare(struct client *client, const struct worker *worker)
{
    const struct bench_case *row = client->row;
    const struct bench_card *card = &client->board->cards[0];
    uint64_t span = bench_span(row);
    uint8_t *far = NULL;

    if (client->index)
        return;
    if (row->space == BENCH_SHARED) {
        void *map =
            mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

        if (map == MAP_FAILED)
            return;
        far = map;
    } else if (row->space == BENCH_PRIVATE && client->setup->is_remote) {
        return;
    }
    client->result->bare = bench_bare(row, client->near_bytes, far, card->pid,
                                      row->op == HEFT_OP_READ ? card->source_address : card->target_address,
                                      row->space == BENCH_FILE ? client->fd : -1, worker->near_order,
                                      worker->far_order, client->setup->time_ns);
    if (far)
        (void)munmap(far, span);
}

static void run_threads(struct client *client, struct worker *workers)
{
    pthread_t threads[THREADS_MAX];
    uint32_t thread, count = client->setup->threads;

    measure_bare(client, &workers[0]);
    if (client->row->op == HEFT_OP_WRITE)
        bench_fill(client->near_bytes, 0, client->near_size, BENCH_CLIENT_SALT);
    else
        memset(client->near_bytes, 0, client->near_size);
    (void)pthread_barrier_init(&client->together, NULL, count);
    for (thread = 1; thread < count; thread++)
        if (pthread_create(&threads[thread], NULL, worker_main, &workers[thread]))
            _exit(EXIT_FAILED); /* the others wait for it; who started this process tells */
    (void)worker_main(&workers[0]);
    for (thread = 1; thread < count; thread++)
        (void)pthread_join(threads[thread], NULL);
    (void)pthread_barrier_destroy(&client->together);
    for (thread = 0; !client->setup->unchecked && !client->result->status && thread < count; thread++) {
        client->result->status = check(&workers[thread]);
        if (client->result->status)
            client->result->error = workers[thread].error;
    }
}

/* Whether this process could begin or not, all wait for each other as often. */
static void run_row(struct client *client)
{
    static struct worker workers[THREADS_MAX];
    struct bench_result *result = client->result;
    uint64_t bytes;
    uint32_t repeat, thread;
    int rc;

    client->row = &client->board->row;
    memset(result, 0, sizeof(*result));
    memset(workers, 0, sizeof(workers));
    bytes = bench_span(client->row) * client->setup->threads;
    rc = open_near(client, client->row->space, bytes, &result->error);
    if (!rc && client->row->space == BENCH_FILE)
        rc = open_file(client, bytes, &result->error);
    for (thread = 0; !rc && thread < client->setup->threads; thread++)
        rc = open_worker(client, &workers[thread], thread);
    if (rc) {
        result->status = rc;
        for (repeat = 0; repeat < client->setup->repeats; repeat++)
            (void)pthread_barrier_wait(&client->board->start);
    } else {
        run_threads(client, workers);
    }
    for (thread = 0; thread < client->setup->threads; thread++)
        if (workers[thread].client)
            drop_worker(&workers[thread]);
    close_memory(client);
}

static int connect_all(struct client *client, struct heft_error *error)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    uint32_t server;
    int rc;

    bench_agent_options(client->setup, &options);
    rc = heft_agent_open(&options, &client->agent, error);
    for (server = 0; !rc && server < client->setup->servers; server++) {
        struct heft_peer_options peer = HEFT_PEER_OPTIONS_INIT;

        peer.addresses = client->board->cards[server].addresses;
        peer.token = client->board->cards[server].token;
        rc = heft_peer_connect(client->agent, &peer, &client->peers[server], error);
    }
    return rc;
}

void bench_client(const struct bench_setup *setup, struct bench_board *board, uint32_t index)
{
    struct client client = {
        .setup = setup, .board = board, .index = index, .fd = -1, .result = &board->results[index]};

    (void)pthread_mutex_init(&client.lock, NULL);
    client.result->status = connect_all(&client, &client.result->error);
    (void)sem_post(&board->done);
    while (!client.result->status || client.agent) {
        while (sem_wait(&board->go[index]) && errno == EINTR)
            ;
        if (__atomic_load_n(&board->stop, __ATOMIC_ACQUIRE))
            break;
        run_row(&client);
        (void)sem_post(&board->done);
    }
    if (client.agent)
        (void)heft_agent_close(client.agent, NULL);
}
