/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of a WRITE that was canceled, or whose connection broke, lie in the server's sockets while nobody
 * reads them. The next WRITE to the same place comes after them, whichever way it takes to the server.
 */
#include "pair.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BYTES ((uint64_t)6 << 20) /* every stream has its part, more than sockets hold */
#define FDS_MAX 256
#define BLOCKED_US 30000

struct rig {
    struct heft_agent *server, *client;
    struct heft_peer *peer;
    struct heft_region *near_region, *far_region;
    uint8_t *near, *far;
    int is_data[FDS_MAX]; /* the client's data streams */
};

/* ---- a worker of the server that does nothing for a while ---- */

struct block {
    struct heft_job job;
    int entered, released; /* atomic */
    unsigned release_us;
    pthread_t thread;
};

static void sit(struct heft_job *job, struct heft_worker *worker)
{
    struct block *block = HEFT_CONTAINER_OF(job, struct block, job);

    (void)worker;
    __atomic_store_n(&block->entered, 1, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&block->released, __ATOMIC_ACQUIRE))
        (void)usleep(200);
    __atomic_store_n(&block->entered, 0, __ATOMIC_RELEASE);
}

static void *release_later(void *context)
{
    struct block *block = context;

    (void)usleep(block->release_us);
    __atomic_store_n(&block->released, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void block_begin(struct block *block, struct heft_worker *worker)
{
    *block = (struct block){.job = {.run = sit}};
    heft_worker_submit(worker, &block->job);
    while (!__atomic_load_n(&block->entered, __ATOMIC_ACQUIRE))
        (void)usleep(100);
}

/* It goes on after that long: what is called meanwhile may need it. */
static void block_until(struct block *block, unsigned release_us)
{
    block->release_us = release_us;
    assert_int_equal(pthread_create(&block->thread, NULL, release_later, block), 0);
}

static void block_end(struct block *block)
{
    (void)pthread_join(block->thread, NULL);
    while (__atomic_load_n(&block->entered, __ATOMIC_ACQUIRE))
        (void)usleep(100);
}

static struct heft_worker *mover(const struct rig *rig, int round)
{
    return heft_pool_worker(rig->server->pool, (uint32_t)round % 2);
}

/* Marks the client's sockets: those whose other end is the server's port. */
static void client_sockets(struct rig *rig, int marks[FDS_MAX])
{
    char addresses[2048];
    int fd, port;

    assert_int_equal(heft_agent_addresses(rig->server, addresses, sizeof(addresses)), 0);
    port = (int)strtoul(strrchr(addresses, ':') + 1, NULL, 10);
    assert_true(port > 0);
    for (fd = 0; fd < FDS_MAX; fd++) {
        struct sockaddr_in other;
        socklen_t size = sizeof(other);

        marks[fd] = fd > 2 && getpeername(fd, (struct sockaddr *)&other, &size) == 0 &&
                    other.sin_family == AF_INET && ntohs(other.sin_port) == port;
    }
}

static void cut(const int marks[FDS_MAX])
{
    int fd, count = 0;

    for (fd = 0; fd < FDS_MAX; fd++)
        if (marks[fd])
            count += shutdown(fd, SHUT_RDWR) == 0;
    assert_true(count > 0);
}

static struct heft_xfer *post(struct rig *rig, enum heft_op op, uint8_t value)
{
    struct heft_run run = {.local_region = rig->near_region,
                           .remote_region = heft_region_id(rig->far_region),
                           .length_bytes = BYTES,
                           .count = 1};
    struct heft_xfer *xfer = NULL;
    struct heft_error error = HEFT_ERROR_INIT;

    if (op == HEFT_OP_WRITE)
        memset(rig->near, value, BYTES);
    if (heft_xfer_create(rig->client, op, rig->peer, &run, 1, NULL, &xfer, &error) ||
        heft_xfer_post(xfer, &error))
        fail_msg("posting: %s", error.text);
    return xfer;
}

static void expect_end(struct heft_xfer *xfer, int status)
{
    struct heft_xfer_result result = {.size = sizeof(result)};
    int rc = heft_xfer_wait(xfer, 20000);

    heft_xfer_get_result(xfer, &result);
    if (rc != status)
        fail_msg("%s: %s", heft_error_name(rc), result.error.text);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void expect_all(const struct rig *rig, uint8_t value)
{
    uint64_t index;
    int look;

    for (look = 0; look < 3; look++) {
        for (index = 0; index < BYTES; index++)
            if (rig->far[index] != value)
                fail_msg("byte %llu is %u, look %d", (unsigned long long)index, rig->far[index], look);
        (void)usleep(3000); /* what is late would come now */
    }
}

static void rig_open(struct rig *rig, uint32_t streams)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_peer_options wanted;
    int before[FDS_MAX], fd, found;
    char addresses[2048];

    memset(rig, 0, sizeof(*rig));
    options.name = "server";
    options.listen = "127.0.0.1:0";
    options.transports = "tcp";
    options.workers = 2;
    options.peer_timeout_ms = 20000;
    assert_int_equal(heft_agent_open(&options, &rig->server, NULL), 0);
    options.name = "client";
    options.listen = NULL;
    assert_int_equal(heft_agent_open(&options, &rig->client, NULL), 0);
    rig->near = malloc(BYTES);
    rig->far = malloc(BYTES);
    assert_true(rig->near && rig->far);
    memset(rig->far, 0, BYTES);
    rig->near_region = register_bytes(rig->client, rig->near, BYTES, 0);
    rig->far_region =
        register_bytes(rig->server, rig->far, BYTES, HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE);
    wanted = peer_options(rig->server, addresses);
    wanted.streams = streams;
    assert_int_equal(heft_peer_connect(rig->client, &wanted, &rig->peer, NULL), 0);
    client_sockets(rig, before);
    expect_end(post(rig, HEFT_OP_WRITE, 1), 0);
    do { /* the others are opened while the first one moves */
        client_sockets(rig, rig->is_data);
        for (fd = 0, found = 0; fd < FDS_MAX; fd++)
            found += rig->is_data[fd] &= !before[fd];
    } while (found < (int)streams && usleep(500) == 0);
    expect_all(rig, 1);
}

static void rig_close(struct rig *rig)
{
    assert_int_equal(heft_peer_close(rig->peer, NULL), 0);
    assert_int_equal(heft_agent_close(rig->client, NULL), 0);
    assert_int_equal(heft_agent_close(rig->server, NULL), 0);
    free(rig->near);
    free(rig->far);
}

/* Writes until it works: what was cut is known only once it is used. */
static void write_next(struct rig *rig)
{
    struct heft_xfer *next;
    int turn, rc = -1;

    for (turn = 0; turn < 4 && rc; turn++) {
        next = post(rig, HEFT_OP_WRITE, 3);
        rc = heft_xfer_wait(next, 20000);
        assert_int_equal(heft_xfer_release(next), 0);
    }
    assert_int_equal(rc, 0);
}

/* The next write, while a worker of the server still sits; all that was late has come when it has gone on. */
static void expect_next_is_last(struct rig *rig, struct block *block)
{
    write_next(rig);
    block_end(block);
    expect_all(rig, 3);
    expect_end(post(rig, HEFT_OP_READ, 0), 0);
    assert_memory_equal(rig->near, rig->far, BYTES);
}

/* ---- tests ---- */

static void a_write_whose_stream_broke_never_comes_after_the_next(void **state)
{
    uint32_t streams;
    int round;

    (void)state;
    for (streams = 1; streams <= 3; streams++)
        for (round = 0; round < 4; round++) {
            struct heft_xfer *broken;
            struct block block;
            struct rig rig;

            rig_open(&rig, streams);
            block_begin(&block, mover(&rig, round));
            broken = post(&rig, HEFT_OP_WRITE, 2);
            (void)usleep(5000);
            cut(rig.is_data);
            block_until(&block, BLOCKED_US);
            (void)heft_xfer_wait(broken, 20000);
            assert_int_equal(heft_xfer_release(broken), 0);
            expect_next_is_last(&rig, &block);
            rig_close(&rig);
        }
}

/* One stream of several breaks: the others are not used for what comes next. */
static void one_broken_stream_takes_the_others_with_it(void **state)
{
    int round, fd;

    (void)state;
    for (round = 0; round < 8; round++) {
        int marks[FDS_MAX] = {0}, left = round / 2 % 2;
        struct heft_xfer *broken;
        struct block block;
        struct rig rig;

        rig_open(&rig, 2);
        for (fd = 0; fd < FDS_MAX; fd++)
            if (rig.is_data[fd] && left-- == 0)
                marks[fd] = 1;
        block_begin(&block, mover(&rig, round));
        broken = post(&rig, HEFT_OP_WRITE, 2);
        (void)usleep(5000);
        cut(marks);
        block_until(&block, BLOCKED_US); /* what is left of the write goes over the other one */
        (void)heft_xfer_wait(broken, 20000);
        assert_int_equal(heft_xfer_release(broken), 0);
        write_next(&rig);
        block_end(&block);
        expect_all(&rig, 3);
        rig_close(&rig);
    }
}

static void a_canceled_write_never_comes_after_the_next(void **state)
{
    uint32_t streams;
    int round;

    (void)state;
    for (streams = 1; streams <= 3; streams++)
        for (round = 0; round < 4; round++) {
            struct heft_xfer *canceled;
            struct block block;
            struct rig rig;

            rig_open(&rig, streams);
            block_begin(&block, mover(&rig, round));
            canceled = post(&rig, HEFT_OP_WRITE, 2);
            (void)usleep(5000);
            assert_int_equal(heft_xfer_cancel(canceled), 0);
            block_until(&block, BLOCKED_US);
            (void)heft_xfer_wait(canceled, 20000); /* at once, although nobody reads over there */
            assert_int_equal(heft_xfer_release(canceled), 0);
            expect_next_is_last(&rig, &block);
            rig_close(&rig);
        }
}

/* The canceled write's streams break before it was answered. */
static void a_canceled_write_whose_stream_broke_never_comes_after_the_next(void **state)
{
    int round;

    (void)state;
    for (round = 0; round < 8; round++) {
        struct heft_xfer *canceled;
        struct block block;
        struct rig rig;

        rig_open(&rig, 1 + (uint32_t)round / 4);
        block_begin(&block, mover(&rig, round));
        canceled = post(&rig, HEFT_OP_WRITE, 2);
        (void)usleep(5000);
        assert_int_equal(heft_xfer_cancel(canceled), 0);
        (void)heft_xfer_wait(canceled, 20000);
        assert_int_equal(heft_xfer_release(canceled), 0);
        cut(rig.is_data);
        if (round % 2)
            (void)usleep(1000);
        block_until(&block, BLOCKED_US);
        write_next(&rig);
        block_end(&block);
        expect_all(&rig, 3);
        rig_close(&rig);
    }
}

/* ---- a way to the server that ends for the client alone ---- */

#define PAIRS_MAX 8

/* Passes bytes on until it is cut: then the client's ends are closed, and the server's left as they are. */
struct proxy {
    int listener, port, server_port, count;
    int near[PAIRS_MAX], far[PAIRS_MAX];
    int cut, stop; /* atomic */
    pthread_t thread;
};

static int socket_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static void pass_on(const struct proxy *proxy, int from, int to)
{
    char bytes[65536];
    ssize_t got = recv(from, bytes, sizeof(bytes), MSG_DONTWAIT), sent, at;

    for (at = 0; at < got; at += sent) {
        sent = send(to, bytes + at, (size_t)(got - at), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent <= 0 && (errno != EAGAIN || __atomic_load_n(&proxy->cut, __ATOMIC_ACQUIRE)))
            return;
        if (sent <= 0) { /* who should read it sits */
            (void)usleep(200);
            sent = 0;
        }
    }
}

static void *proxy_main(void *context)
{
    struct proxy *proxy = context;
    int index, was_cut = 0;

    while (!__atomic_load_n(&proxy->stop, __ATOMIC_ACQUIRE)) {
        struct pollfd polls[1 + 2 * PAIRS_MAX] = {{.fd = proxy->listener, .events = POLLIN}};

        for (index = 0; index < proxy->count; index++) {
            polls[1 + 2 * index] = (struct pollfd){.fd = was_cut ? -1 : proxy->near[index], .events = POLLIN};
            polls[2 + 2 * index] = (struct pollfd){.fd = was_cut ? -1 : proxy->far[index], .events = POLLIN};
        }
        if (__atomic_load_n(&proxy->cut, __ATOMIC_ACQUIRE) && !was_cut) {
            for (index = 0; index < proxy->count; index++)
                (void)shutdown(proxy->near[index], SHUT_RDWR);
            was_cut = 1;
        }
        if (was_cut || poll(polls, (nfds_t)(1 + 2 * proxy->count), 1) <= 0) {
            (void)usleep(was_cut ? 500 : 0);
            continue;
        }
        for (index = 0; index < proxy->count; index++) {
            if (polls[1 + 2 * index].revents)
                pass_on(proxy, proxy->near[index], proxy->far[index]);
            if (polls[2 + 2 * index].revents)
                pass_on(proxy, proxy->far[index], proxy->near[index]);
        }
        if (polls[0].revents && proxy->count < PAIRS_MAX) {
            proxy->near[proxy->count] = accept(proxy->listener, NULL, NULL);
            proxy->far[proxy->count] = socket_to(proxy->server_port);
            proxy->count++;
        }
    }
    for (index = 0; index < proxy->count; index++) {
        (void)close(proxy->near[index]);
        (void)close(proxy->far[index]);
    }
    return NULL;
}

static void proxy_open(struct proxy *proxy, int server_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof(address);

    memset(proxy, 0, sizeof(*proxy));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    proxy->server_port = server_port;
    proxy->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(proxy->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(proxy->listener, 16), 0);
    assert_int_equal(getsockname(proxy->listener, (struct sockaddr *)&address, &size), 0);
    proxy->port = ntohs(address.sin_port);
    assert_int_equal(pthread_create(&proxy->thread, NULL, proxy_main, proxy), 0);
}

static void proxy_close(struct proxy *proxy)
{
    __atomic_store_n(&proxy->stop, 1, __ATOMIC_RELEASE);
    (void)pthread_join(proxy->thread, NULL);
    (void)close(proxy->listener);
}

static int is_lost(void *context)
{
    return heft_peer_status(context, NULL) != 0;
}

/* The client's connection ends, the server still takes it for alive: one made again says so. */
static void a_write_of_a_lost_connection_never_comes_after_one_of_the_next(void **state)
{
    int round;

    (void)state;
    for (round = 0; round < 8; round++) {
        struct heft_peer *lost = NULL;
        struct heft_peer_options options;
        char addresses[2048], proxied[64];
        struct heft_xfer *broken;
        struct block block;
        struct proxy proxy;
        struct rig rig;

        rig_open(&rig, 1);
        assert_int_equal(heft_peer_close(rig.peer, NULL), 0);
        options = peer_options(rig.server, addresses);
        options.streams = 1;
        proxy_open(&proxy, (int)strtoul(strrchr(addresses, ':') + 1, NULL, 10));
        (void)snprintf(proxied, sizeof(proxied), "tcp:127.0.0.1:%d", proxy.port);
        options.addresses = proxied;
        assert_int_equal(heft_peer_connect(rig.client, &options, &lost, NULL), 0);
        rig.peer = lost;
        expect_end(post(&rig, HEFT_OP_WRITE, 1), 0);
        block_begin(&block, mover(&rig, round));
        broken = post(&rig, HEFT_OP_WRITE, 2);
        (void)usleep(10000);
        __atomic_store_n(&proxy.cut, 1, __ATOMIC_RELEASE);
        (void)heft_xfer_wait(broken, 20000);
        assert_int_equal(heft_xfer_release(broken), 0);
        eventually(is_lost, lost);
        if (round / 2 % 2)
            assert_int_equal(heft_peer_close(lost, NULL), 0);
        options.addresses = addresses;
        block_until(&block, BLOCKED_US);
        assert_int_equal(heft_peer_connect(rig.client, &options, &rig.peer, NULL), 0);
        assert_int_equal(STAT(rig.server, peers_accepted), 1);
        write_next(&rig);
        block_end(&block);
        expect_all(&rig, 3);
        if (round / 2 % 2 == 0)
            assert_int_equal(heft_peer_close(lost, NULL), 0);
        proxy_close(&proxy);
        rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_write_whose_stream_broke_never_comes_after_the_next),
        cmocka_unit_test(one_broken_stream_takes_the_others_with_it),
        cmocka_unit_test(a_canceled_write_never_comes_after_the_next),
        cmocka_unit_test(a_canceled_write_whose_stream_broke_never_comes_after_the_next),
        cmocka_unit_test(a_write_of_a_lost_connection_never_comes_after_one_of_the_next),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
