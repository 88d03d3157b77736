/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers with another process: it is this program again, and holds memory of three kinds. */
#include "gpu/gpu.h"

#include "base/clock.h"
#include "base/digest.h"
#include "space/cuda_memory.h"
#include "transport/cuda/cuda.h"

#include <fcntl.h>
#include <heft/transport.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)
enum { PIECES, PLAIN, HOST, KINDS };
static const char *const kind_names[] = {"pieces", "cuMemAlloc", "host"};

static uint64_t held_bytes(void)
{
    return gpu_is_fake ? 5 * MIB + 16 : 512 * MIB + 16;
}

struct told {
    char addresses[1000];
    struct heft_token token;
    uint64_t regions[KINDS];
};

/* ---- the other process: speaks one byte at a time on descriptors 3 (from us) and 4 (to us) ---- */

int gpu_serve(int argc, char **argv)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    int device = argc > 2 ? argv[2][0] - '0' : 0, kind;
    struct heft_region *regions[KINDS];
    struct heft_device_memory *memory;
    struct heft_device_memory_info info;
    struct heft_memory *host;
    struct heft_memory_info host_info;
    struct heft_agent *agent;
    uint64_t size = held_bytes(), addresses[KINDS];
    struct told told = {.regions = {0}};
    uint8_t *bytes = malloc(size);
    char command;

    options.listen = "unix";
    options.name = "holder";
    MUST(bytes && !heft_agent_open(&options, &agent, &gpu_error));
    MUST(!heft_device_memory_alloc_pieces(device, size, size / 5, &memory, &gpu_error));
    heft_device_memory_get_info(memory, &info);
    MUST(!heft_memory_alloc(size, 0, &host, &gpu_error));
    heft_memory_get_info(host, &host_info);
    addresses[PIECES] = info.address;
    addresses[PLAIN] = gpu_alloc(device, size + 4096) + 512; /* not at the allocation's start */
    addresses[HOST] = (uintptr_t)host_info.address;
    for (kind = 0; kind < KINDS; kind++) {
        struct heft_region_options region = HEFT_REGION_OPTIONS_INIT;

        gpu_pattern(bytes, (uint64_t)kind + 1, 0, size);
        if (kind == HOST)
            memcpy(host_info.address, bytes, size);
        else
            gpu_put(device, addresses[kind], bytes, size);
        region.space = kind == HOST ? HEFT_SPACE_HOST : HEFT_SPACE_CUDA;
        region.memory = kind == HOST ? host : NULL;
        region.address = (void *)(uintptr_t)addresses[kind];
        region.length_bytes = size;
        region.flags = HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE;
        MUST(!heft_region_register(agent, &region, &regions[kind], &gpu_error));
        told.regions[kind] = heft_region_id(regions[kind]);
    }
    MUST(!heft_agent_addresses(agent, told.addresses, sizeof(told.addresses)));
    told.token = heft_agent_token(agent);
    MUST(write(4, &told, sizeof(told)) == (ssize_t)sizeof(told));
    while (read(3, &command, 1) == 1) {
        if (command >= 'A' && command < 'A' + KINDS) { /* the digest of what it holds */
            uint64_t digest;

            kind = command - 'A';
            if (kind == HOST)
                memcpy(bytes, host_info.address, size);
            else
                gpu_get(device, bytes, addresses[kind], size);
            digest = heft_hash64(bytes, size, 0);
            MUST(write(4, &digest, sizeof(digest)) == (ssize_t)sizeof(digest));
        } else if (command == 'd') { /* withdraws the pieces and frees them */
            int64_t rc = heft_region_deregister(regions[PIECES], &gpu_error);

            if (!rc)
                heft_device_memory_free(memory);
            MUST(write(4, &rc, sizeof(rc)) == (ssize_t)sizeof(rc));
        }
    }
    _exit(0); /* as abruptly as a process may */
}

/* ---- this process ---- */

struct holder {
    pid_t pid;
    int to, from;
    struct told told;
    struct heft_agent *agent;
    struct heft_peer *peer;
};

static void holder_open(struct holder *holder, int device)
{
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    int down[2], up[2];
    size_t have = 0;
    char number[12];

    MUST(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
    (void)snprintf(number, sizeof(number), "%d", device);
    holder->pid = fork();
    MUST(holder->pid >= 0);
    if (holder->pid == 0) {
        int in = fcntl(down[0], F_DUPFD, 20), out = fcntl(up[1], F_DUPFD, 20);

        if (in < 0 || out < 0 || dup2(in, 3) < 0 || dup2(out, 4) < 0)
            _exit(9);
        (void)close(in);
        (void)close(out);
        (void)execl(gpu_program, "gpu_test", "--serve", number, (char *)NULL);
        _exit(9);
    }
    (void)close(down[0]);
    (void)close(up[1]);
    holder->to = down[1];
    holder->from = up[0];
    while (have < sizeof(holder->told)) {
        ssize_t got = read(holder->from, (char *)&holder->told + have, sizeof(holder->told) - have);

        MUST(got > 0);
        have += (size_t)got;
    }
    MUST(!heft_agent_open(NULL, &holder->agent, &gpu_error));
    options.addresses = holder->told.addresses;
    options.token = holder->told.token;
    MUST(!heft_peer_connect(holder->agent, &options, &holder->peer, &gpu_error));
}

static uint64_t ask(struct holder *holder, char command)
{
    uint64_t answer = 0;

    MUST(write(holder->to, &command, 1) == 1);
    MUST(read(holder->from, &answer, sizeof(answer)) == (ssize_t)sizeof(answer));
    return answer;
}

static void holder_end_process(struct holder *holder, int hard)
{
    if (hard)
        (void)kill(holder->pid, SIGKILL);
    (void)close(holder->to);
    (void)close(holder->from);
    (void)waitpid(holder->pid, NULL, 0);
}

static void holder_close(struct holder *holder)
{
    MUST(!heft_peer_close(holder->peer, &gpu_error));
    MUST(!heft_agent_close(holder->agent, &gpu_error));
}

static struct heft_region *register_here(struct holder *holder, enum heft_space space, uint64_t address,
                                         uint64_t size)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_region *region;

    options.space = space;
    options.address = (void *)(uintptr_t)address;
    options.length_bytes = size;
    MUST(!heft_region_register(holder->agent, &options, &region, &gpu_error));
    return region;
}

static int move(struct holder *holder, enum heft_op op, struct heft_region *region, int kind,
                const char *require)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_run runs[64];
    uint64_t size = held_bytes(), at = 0, state = 4;
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_xfer *xfer;
    size_t count = 0;
    int rc;

    while (at < size) { /* in pieces of many sizes, all of it */
        uint64_t length = count == 63 ? size - at : gpu_random(&state) % (count % 5 ? 70000 : size / 6);

        if (length > size - at)
            length = size - at;
        runs[count++] = (struct heft_run){region, at, holder->told.regions[kind], at, length, 1, 0, 0};
        at += length;
    }
    options.require = require;
    rc = heft_xfer_create(holder->agent, op, holder->peer, runs, count, &options, &xfer, &gpu_error);
    if (rc)
        return rc;
    rc = heft_xfer_post(xfer, &gpu_error);
    if (!rc)
        rc = heft_xfer_wait(xfer, 60000);
    heft_xfer_get_result(xfer, &result);
    if (rc)
        gpu_error = result.error;
    else if (strcmp(result.transport, "cuda") != 0 || result.bytes != size)
        rc = HEFT_ERR_INTERNAL;
    MUST(!heft_xfer_release(xfer));
    return rc;
}

/* READ and WRITE of everything that the holder has, from a local device or host memory. */
static void all_kinds(int holder_device, int local_device)
{
    struct holder holder;
    uint64_t size = held_bytes(), address;
    uint8_t *bytes = malloc(size), *got = malloc(size);
    struct heft_region *region;
    int kind;

    MUST(bytes && got);
    holder_open(&holder, holder_device);
    address = local_device >= 0 ? gpu_alloc(local_device, size) : (uint64_t)(uintptr_t)got;
    region = register_here(&holder, local_device >= 0 ? HEFT_SPACE_CUDA : HEFT_SPACE_HOST, address, size);
    for (kind = 0; kind < KINDS; kind++) {
        if (local_device < 0 && kind == HOST)
            continue;
        memset(got, 0xee, size);
        if (local_device >= 0)
            gpu_put(local_device, address, got, size);
        if (move(&holder, HEFT_OP_READ, region, kind, NULL)) {
            (void)printf("    %s: %s\n", kind_names[kind], gpu_error.text);
            gpu_failed = 1;
            continue;
        }
        if (local_device >= 0)
            gpu_get(local_device, got, address, size);
        gpu_pattern(bytes, (uint64_t)kind + 1, 0, size);
        CHECK(memcmp(bytes, got, size) == 0);
        gpu_pattern(bytes, (uint64_t)kind + 100, 0, size);
        if (local_device >= 0)
            gpu_put(local_device, address, bytes, size);
        else
            memcpy(got, bytes, size);
        CHECK(move(&holder, HEFT_OP_WRITE, region, kind, NULL) == 0);
        CHECK(ask(&holder, (char)('A' + kind)) == heft_hash64(bytes, size, 0));
    }
    CHECK(!heft_region_deregister(region, &gpu_error));
    if (local_device >= 0)
        gpu_free(local_device, address);
    holder_end_process(&holder, 0);
    holder_close(&holder);
    free(bytes);
    free(got);
}

static void another_process_on_the_same_gpu(void)
{
    all_kinds(0, 0);
}

static void another_process_on_another_gpu(void)
{
    all_kinds(0, 1);
}

static void another_process_to_host_memory_here(void)
{
    all_kinds(0, -1);
}

static void a_holder_that_frees_goes_on_and_we_are_told(void)
{
    struct holder holder;
    uint64_t address, size = held_bytes(), begin;
    struct heft_region *region;
    int rc = 0;

    holder_open(&holder, 0);
    address = gpu_alloc(0, size);
    region = register_here(&holder, HEFT_SPACE_CUDA, address, size);
    CHECK(move(&holder, HEFT_OP_READ, region, PIECES, NULL) == 0);
    CHECK(ask(&holder, 'd') == 0); /* the agent lets go of its mapping, then the holder frees */
    begin = heft_now_ns();
    while ((rc = move(&holder, HEFT_OP_READ, region, PIECES, NULL)) == 0 &&
           heft_now_ns() - begin < 5 * HEFT_NS_PER_S)
        ;
    CHECK(rc == HEFT_ERR_STALE);
    CHECK(move(&holder, HEFT_OP_READ, region, PLAIN, NULL) == 0);
    CHECK(!heft_region_deregister(region, &gpu_error));
    gpu_free(0, address);
    holder_end_process(&holder, 0);
    holder_close(&holder);
}

static void a_killed_holder_ends_transfers_with_its_name(void)
{
    struct holder holder;
    uint64_t address, size = held_bytes(), begin;
    struct heft_region *region;
    int rc = 0;

    holder_open(&holder, 0);
    address = gpu_alloc(0, size);
    region = register_here(&holder, HEFT_SPACE_CUDA, address, size);
    CHECK(move(&holder, HEFT_OP_READ, region, PIECES, NULL) == 0);
    holder_end_process(&holder, 1);
    begin = heft_now_ns();
    while ((rc = move(&holder, HEFT_OP_READ, region, PIECES, NULL)) == 0 &&
           heft_now_ns() - begin < 5 * HEFT_NS_PER_S)
        ;
    CHECK(rc == HEFT_ERR_PEER_LOST);
    CHECK(strstr(gpu_error.text, "holder"));
    CHECK(!heft_region_deregister(region, &gpu_error));
    gpu_free(0, address);
    holder_close(&holder);
}

static void two_agents_of_one_process(void)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_peer_options to = HEFT_PEER_OPTIONS_INIT;
    struct heft_region_options region = HEFT_REGION_OPTIONS_INIT;
    struct holder holder = {.told = {.regions = {0}}};
    uint64_t size = held_bytes(), here = gpu_alloc(0, size), there = gpu_alloc(0, size);
    uint8_t *bytes = malloc(size), *got = malloc(size);
    struct heft_region *mine, *theirs;
    struct heft_agent *owner;

    MUST(bytes && got);
    options.listen = "unix";
    CHECK(!heft_agent_open(&options, &owner, &gpu_error));
    gpu_pattern(bytes, 9, 0, size);
    gpu_put(0, there, bytes, size);
    region.space = HEFT_SPACE_CUDA;
    region.address = (void *)(uintptr_t)there;
    region.length_bytes = size;
    region.flags = HEFT_REGION_REMOTE_READ;
    CHECK(!heft_region_register(owner, &region, &theirs, &gpu_error));
    holder.told.regions[PLAIN] = heft_region_id(theirs);
    CHECK(!heft_agent_open(NULL, &holder.agent, &gpu_error));
    CHECK(!heft_agent_addresses(owner, holder.told.addresses, sizeof(holder.told.addresses)));
    to.addresses = holder.told.addresses;
    to.token = heft_agent_token(owner);
    CHECK(!heft_peer_connect(holder.agent, &to, &holder.peer, &gpu_error));
    mine = register_here(&holder, HEFT_SPACE_CUDA, here, size);
    CHECK(move(&holder, HEFT_OP_READ, mine, PLAIN, NULL) == 0);
    gpu_get(0, got, here, size);
    CHECK(memcmp(bytes, got, size) == 0);
    CHECK(move(&holder, HEFT_OP_WRITE, mine, PLAIN, NULL) != 0); /* it may only be read */
    CHECK(!heft_region_deregister(mine, &gpu_error));
    holder_close(&holder);
    CHECK(!heft_region_deregister(theirs, &gpu_error));
    CHECK(!heft_agent_close(owner, &gpu_error));
    gpu_free(0, here);
    gpu_free(0, there);
    free(bytes);
    free(got);
}

/* ---- carriers that lie ---- */

static int hostile_score(const struct cuda_carrier *carrier, size_t bytes, int fd_count,
                         uint64_t region_bytes)
{
    struct heft_agent *agent;
    struct heft_transport_host host = {
        .abi = HEFT_TRANSPORT_ABI, .size = sizeof(host), .max_host_bytes = 16 * MIB};
    struct heft_transport_peer peer = {.name = "liar", .same_host = 1, .control_is_unix = 1};
    struct heft_transport_region region = {
        .id = 1, .space = HEFT_SPACE_CUDA, .flags = HEFT_REGION_REMOTE_READ, .length_bytes = region_bytes};
    struct heft_route_query query = {.local = HEFT_SPACE_CUDA,
                                     .remote = HEFT_SPACE_CUDA,
                                     .op = HEFT_OP_READ,
                                     .peer = &peer,
                                     .remote_region = &region};
    struct heft_route_score score = {0};
    struct heft_worker_pool *pool;
    struct heft_transport *transport;
    struct heft_endpoint *endpoint;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(4 * sizeof(int))];
    } control = {.space = {0}};
    struct cuda_carrier copy = *carrier;
    struct iovec iov = {&copy, bytes};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    int pair[2], index;

    (void)agent;
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    if (fd_count > 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE((size_t)fd_count * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN((size_t)fd_count * sizeof(int));
        for (index = 0; index < fd_count; index++)
            memcpy(CMSG_DATA(&control.header) + (size_t)index * sizeof(int), &pair[0], sizeof(int));
    }
    MUST(sendmsg(pair[0], &message, 0) == (ssize_t)bytes);
    MUST(!heft_pool_create(1, &pool, &gpu_error));
    host.pool = pool;
    MUST(!heft_transport_cuda.open(&host, &transport, &gpu_error));
    MUST(!heft_transport_cuda.connect(transport, &peer, &endpoint, &gpu_error));
    region.fd = pair[1];
    (void)heft_transport_cuda.remote_add(endpoint, &region, &gpu_error);
    heft_transport_cuda.score(transport, endpoint, &query, &score);
    heft_transport_cuda.remote_remove(endpoint, &region);
    heft_transport_cuda.disconnect(endpoint);
    heft_transport_cuda.close(transport);
    heft_pool_destroy(pool);
    (void)close(pair[0]);
    (void)close(pair[1]);
    return score.score;
}

static void carriers_that_lie_are_refused(void)
{
    struct cuda_carrier good = {.magic = CUDA_CARRIER_MAGIC,
                                .piece_count = 2,
                                .length_bytes = 2 * MIB,
                                .total_bytes = 4 * MIB,
                                .piece_bytes = {2 * MIB, 2 * MIB}};
    struct cuda_carrier bad;

    CHECK(hostile_score(&good, sizeof(good), 2, 2 * MIB) == 0); /* sockets are no handles of memory */
    CHECK(hostile_score(&good, 100, 2, 2 * MIB) == 0);          /* short */
    CHECK(hostile_score(&good, sizeof(good), 1, 2 * MIB) == 0); /* a handle is missing */
    CHECK(hostile_score(&good, sizeof(good), 2, 3 * MIB) == 0); /* another length than announced */
    bad = good;
    bad.magic++;
    CHECK(hostile_score(&bad, sizeof(bad), 2, 2 * MIB) == 0);
    bad = good;
    bad.piece_bytes[0] = UINT64_MAX;
    CHECK(hostile_score(&bad, sizeof(bad), 2, 2 * MIB) == 0);
    bad = good;
    bad.offset_bytes = 3 * MIB;
    CHECK(hostile_score(&bad, sizeof(bad), 2, 2 * MIB) == 0);
    bad = good;
    bad.piece_count = 100000;
    CHECK(hostile_score(&bad, sizeof(bad), 2, 2 * MIB) == 0);
    bad = good;
    bad.piece_count = 0; /* "legacy", with a handle of noise */
    bad.total_bytes = 2 * MIB;
    memset(&bad.ipc, 0x5a, sizeof(bad.ipc));
    CHECK(hostile_score(&bad, sizeof(bad), 0, 2 * MIB) == 0);
}

const struct gpu_case gpu_peer_cases[] = {
    {"peer: another process, same GPU", another_process_on_the_same_gpu, 1},
    {"peer: another process, another GPU", another_process_on_another_gpu, 2},
    {"peer: another process, to host memory", another_process_to_host_memory_here, 1},
    {"peer: two agents of one process", two_agents_of_one_process, 1},
    {"peer: a holder that frees", a_holder_that_frees_goes_on_and_we_are_told, 1},
    {"peer: a killed holder", a_killed_holder_ends_transfers_with_its_name, 1},
    {"peer: carriers that lie", carriers_that_lie_are_refused, 1},
};
const size_t gpu_peer_count = sizeof(gpu_peer_cases) / sizeof(gpu_peer_cases[0]);
