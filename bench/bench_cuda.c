/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the cuda transport reaches, beside what the driver's own copies reach in the same run.
 *
 *   bench_cuda [SECTION...]      sections: bulk list batch budget single host file digest process
 *
 * Tab-separated: section, what, size, GB/s (or us), the driver's own beside, ratio. Medians. Bytes are random
 * (a pattern) and checked after each measurement by digests on the GPU.
 */
#include "base/clock.h"
#include "base/digest.h"
#include "space/cuda.h"
#include "space/cuda_memory.h"
#include <heft/agent.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define GIB ((uint64_t)1 << 30)
#define MIB ((uint64_t)1 << 20)
#define ROUNDS_MAX 64
#define TRY(call) try_((call), #call, __LINE__)

static const struct heft_cu *cu;
static struct heft_error error;
static uint64_t big = 4 * GIB;

static void try_(int rc, const char *what, int line)
{
    if (rc == 0)
        return;
    (void)printf("bench_cuda:%d: %s: %d %s\n", line, what, rc, error.text);
    exit(1);
}

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), by_value);
    return values[count / 2];
}

static double now(void)
{
    return (double)heft_now_ns() / 1e9;
}

static void row(const char *section, const char *what, double ours, double theirs, const char *unit)
{
    (void)printf("%s\t%s\t%.1f\t%.1f\t%s\t%.3f\n", section, what, ours, theirs, unit,
                 theirs > 0 ? (unit[0] == 'u' ? theirs / ours : ours / theirs) : 0.0);
    (void)fflush(stdout);
}

/* ---- device memory ---- */

struct memory {
    struct heft_device_memory *memory;
    uint64_t address, size;
    int device;
    struct heft_region *region;
};

static void memory_open(struct heft_agent *agent, struct memory *memory, int device, uint64_t size)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_device_memory_info info;
    int other;

    TRY(heft_device_memory_alloc(device, size, 0, &memory->memory, &error));
    heft_device_memory_get_info(memory->memory, &info);
    memory->address = info.address;
    memory->size = size;
    memory->device = device;
    TRY(heft_cuda_enter(device, &error));
    for (other = 0; other < heft_cuda_device_count(); other++) /* for the driver's copies beside ours */
        if (other != device && size > 0)
            TRY(heft_cuda_grant(cu, other, info.address,
                                (size + info.page_bytes - 1) / info.page_bytes * info.page_bytes));
    heft_cuda_leave();
    options.space = HEFT_SPACE_CUDA;
    options.address = (void *)(uintptr_t)info.address;
    options.length_bytes = size;
    options.flags = HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE;
    TRY(heft_region_register(agent, &options, &memory->region, &error));
}

static void memory_close(struct memory *memory)
{
    TRY(heft_region_deregister(memory->region, &error));
    heft_device_memory_free(memory->memory);
}

static void wait_event(heft_cu_event event)
{
    heft_cu_result rc;

    while ((rc = cu->event_query(event)) == HEFT_CU_NOT_READY)
        ;
    TRY(rc);
}

/* One driver copy, seen done by spinning on its event. */
static double driver_copy(int device, uint64_t to, uint64_t from, uint64_t bytes)
{
    static heft_cu_stream streams[HEFT_CUDA_MAX_DEVICES];
    static heft_cu_event events[HEFT_CUDA_MAX_DEVICES];
    double begin;

    TRY(heft_cuda_enter(device, &error));
    if (!streams[device]) {
        TRY(cu->stream_create(&streams[device], HEFT_CU_STREAM_NON_BLOCKING));
        TRY(cu->event_create(&events[device], HEFT_CU_EVENT_DISABLE_TIMING));
    }
    begin = now();
    TRY(cu->memcpy_async(to, from, bytes, streams[device]));
    TRY(cu->event_record(events[device], streams[device]));
    wait_event(events[device]);
    begin = now() - begin;
    heft_cuda_leave();
    return begin;
}

/* Fills with a pattern, 64 MiB of it again and again. */
static void fill(const struct memory *memory, uint64_t seed)
{
    uint64_t at, size = 64 * MIB < memory->size ? 64 * MIB : memory->size, x = seed * 2 + 1;
    uint64_t *words = malloc(size + 8);

    for (at = 0; at < size / 8 + 1; at++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        words[at] = x;
    }
    for (at = 0; at < memory->size; at += size)
        (void)driver_copy(memory->device, memory->address + at, (uintptr_t)words,
                          memory->size - at < size ? memory->size - at : size);
    free(words);
}

/* One number for all bytes, by the digest kernel. */
static uint64_t digest_of(int device, uint64_t address, uint64_t size)
{
    uint64_t count = heft_block_count(size), index, *digests = calloc(count + 1, 8), all;
    struct heft_cuda_place *places = calloc(count + 1, sizeof(*places));

    for (index = 0; index < count; index++)
        places[index] =
            (struct heft_cuda_place){address + index * HEFT_BLOCK_BYTES,
                                     index + 1 < count ? HEFT_BLOCK_BYTES : size - index * HEFT_BLOCK_BYTES};
    TRY(heft_cuda_digest(device, places, count, digests, &error));
    all = heft_hash64(digests, count * 8, 0);
    free(places);
    free(digests);
    return all;
}

static void same(const char *what, uint64_t left, uint64_t right)
{
    if (left == right)
        return;
    (void)printf("WRONG BYTES: %s\n", what);
    exit(1);
}

/* ---- transfers ---- */

static double post_and_wait(struct heft_xfer *xfer)
{
    struct heft_xfer_result result = {.size = sizeof(result)};
    double begin = now();
    int rc;

    TRY(heft_xfer_post(xfer, &error));
    while ((rc = heft_xfer_poll(xfer)) == HEFT_ERR_AGAIN && now() - begin < 0.01)
        ; /* seen done by looking, as the driver's copy is */
    if (rc == HEFT_ERR_AGAIN)
        rc = heft_xfer_wait(xfer, 60000);
    begin = now() - begin;
    if (rc) {
        heft_xfer_get_result(xfer, &result);
        error = result.error;
        try_(rc, "transfer", __LINE__);
    }
    return begin;
}

static uint32_t run_flags;

static double time_runs(struct heft_agent *agent, struct heft_peer *peer, enum heft_op op,
                        const struct heft_run *runs, size_t count, int rounds)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    double times[ROUNDS_MAX];
    struct heft_xfer *xfer;
    int round;

    options.flags = run_flags;
    TRY(heft_xfer_create(agent, op, peer, runs, count, &options, &xfer, &error));
    for (round = -2; round < rounds; round++) {
        double took = post_and_wait(xfer);

        if (round >= 0)
            times[round] = took;
    }
    TRY(heft_xfer_release(xfer));
    return median(times, rounds);
}

static double time_driver(int device, uint64_t to, uint64_t from, uint64_t bytes, int rounds)
{
    double times[ROUNDS_MAX];
    int round;

    for (round = -2; round < rounds; round++) {
        double took = driver_copy(device, to, from, bytes);

        if (round >= 0)
            times[round] = took;
    }
    return median(times, rounds);
}

static void bulk(struct heft_agent *agent, const char *what, struct heft_peer *peer, struct memory *local,
                 uint64_t remote_id, uint64_t size, double driver)
{
    struct heft_run run = {local->region, 0, remote_id, 0, size, 1, 0, 0};
    char text[64];

    (void)snprintf(text, sizeof(text), "%s, READ %llu MiB", what, (unsigned long long)(size / MIB));
    row("bulk", text, (double)size / time_runs(agent, peer, HEFT_OP_READ, &run, 1, 9) / 1e9, driver, "GB/s");
    (void)snprintf(text, sizeof(text), "%s, WRITE %llu MiB", what, (unsigned long long)(size / MIB));
    row("bulk", text, (double)size / time_runs(agent, peer, HEFT_OP_WRITE, &run, 1, 9) / 1e9, driver, "GB/s");
}

static void list(struct heft_agent *agent, const char *what, struct heft_peer *peer, struct memory *local,
                 uint64_t remote_id, uint64_t item)
{
    enum { ITEMS = 8192 };
    static struct heft_run runs[ITEMS];
    uint64_t index, space = local->size / ITEMS / 16 * 16;
    char text[64];
    double took;

    if (space < item)
        return;
    for (index = 0; index < ITEMS; index++) /* scattered: an odd multiplier goes through all places */
        runs[index] = (struct heft_run){local->region,
                                        index * 4057 % ITEMS * space,
                                        remote_id,
                                        index * 2731 % ITEMS * space,
                                        item,
                                        1,
                                        0,
                                        0};
    took = time_runs(agent, peer, HEFT_OP_READ, runs, ITEMS, 15);
    (void)snprintf(text, sizeof(text), "%s, 8192 x %llu B", what, (unsigned long long)item);
    row("list", text, (double)item * ITEMS / took / 1e9, 0, "GB/s");
}

/* Other items of prepared lists for each post: what a cache of pages does. */
static void indexed(struct heft_agent *agent, struct memory *local, struct memory *remote, uint64_t item)
{
    enum { ITEMS = 8192, ROUNDS = 15 };
    static uint32_t ours[ITEMS], theirs[ITEMS];
    uint64_t index, space = local->size / ITEMS / 16 * 16;
    struct heft_list_run here = {heft_region_id(local->region), 0, item, ITEMS, space};
    struct heft_list_run there = {heft_region_id(remote->region), 0, item, ITEMS, space};
    struct heft_xfer *xfer = NULL;
    struct heft_list *lists[2];
    double times[ROUNDS];
    char text[64];
    int round;

    if (space < item)
        return;
    TRY(heft_list_create(agent, NULL, &here, 1, &lists[0], &error));
    TRY(heft_list_create(agent, NULL, &there, 1, &lists[1], &error));
    for (round = -2; round < ROUNDS; round++) {
        double begin;

        for (index = 0; index < ITEMS; index++) {
            ours[index] = (uint32_t)((index * 4057 + (uint64_t)(round + 2)) % ITEMS);
            theirs[index] = (uint32_t)(index * 2731 % ITEMS);
        }
        begin = now();
        if (!xfer)
            TRY(heft_xfer_create_indexed(agent, HEFT_OP_READ, lists[0], ours, lists[1], theirs, ITEMS, NULL,
                                         &xfer, &error));
        else
            TRY(heft_xfer_set_indexed(xfer, lists[0], ours, lists[1], theirs, ITEMS, &error));
        (void)post_and_wait(xfer);
        if (round >= 0)
            times[round] = now() - begin;
    }
    TRY(heft_xfer_release(xfer));
    heft_list_destroy(lists[0]);
    heft_list_destroy(lists[1]);
    (void)snprintf(text, sizeof(text), "other items each time, 8192 x %llu B", (unsigned long long)item);
    row("list", text, (double)item * ITEMS / median(times, ROUNDS) / 1e9, 0, "GB/s");
}

/* ---- the driver's own lists ---- */

struct batch_attributes { /* CUmemcpyAttributes */
    int order;
    struct heft_cu_location from, to;
    unsigned flags;
};
typedef heft_cu_result (*batch_fn)(heft_cu_pointer *to, heft_cu_pointer *from, size_t *sizes, size_t count,
                                   struct batch_attributes *attributes, size_t *first, size_t kinds,
                                   heft_cu_stream stream);

/* NULL: the driver has none (before CUDA 13.0 it takes another argument). The library does not use it. */
static batch_fn find_batch(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *symbol;
    batch_fn function = NULL;

    symbol = library ? dlsym(library, "cuMemcpyBatchAsync_v2") : NULL;
    memcpy(&function, &symbol, sizeof(function));
    return function;
}

enum { BATCH_MOST = 8192 };

/* One list by the driver: in one call, or one by one; seconds, median. */
static double driver_list(batch_fn batch, heft_cu_pointer *to, heft_cu_pointer *from, size_t *sizes,
                          size_t count)
{
    enum { ROUNDS = 9 };
    struct batch_attributes attributes = {.order = 1}; /* as the stream has it */
    static heft_cu_stream stream;
    static heft_cu_event event;
    size_t first = 0, index;
    double times[ROUNDS];
    int round;

    TRY(heft_cuda_enter(0, &error));
    if (!stream) {
        TRY(cu->stream_create(&stream, HEFT_CU_STREAM_NON_BLOCKING));
        TRY(cu->event_create(&event, HEFT_CU_EVENT_DISABLE_TIMING));
    }
    for (round = -2; round < ROUNDS; round++) {
        double begin = now();

        if (batch)
            TRY(batch(to, from, sizes, count, &attributes, &first, 1, stream));
        else
            for (index = 0; index < count; index++)
                TRY(cu->memcpy_async(to[index], from[index], sizes[index], stream));
        TRY(cu->event_record(event, stream));
        wait_event(event);
        if (round >= 0)
            times[round] = now() - begin;
    }
    heft_cuda_leave();
    return median(times, ROUNDS);
}

/* Lists of medium items: ours beside the driver's list and its copies one by one. */
static void batch(struct heft_agent *agent, const char *what, struct memory *local,
                  struct heft_region *remote, uint64_t remote_address, uint64_t space, uint64_t item)
{
    static heft_cu_pointer to[BATCH_MOST], from[BATCH_MOST];
    static size_t sizes[BATCH_MOST];
    static struct heft_run runs[BATCH_MOST];
    batch_fn function = find_batch();
    uint64_t count = space / item / 2, index;
    double ours, single;
    char text[96];

    count = count > BATCH_MOST ? BATCH_MOST : count;
    for (index = 0; index < count; index++) { /* every second place, so that no two are neighbours */
        uint64_t at = index * 2 * item;

        runs[index] = (struct heft_run){local->region, at, heft_region_id(remote), at, item, 1, 0, 0};
        to[index] = local->address + at;
        from[index] = remote_address + at;
        sizes[index] = item;
    }
    ours = time_runs(agent, NULL, HEFT_OP_READ, runs, count, 9);
    single = driver_list(NULL, to, from, sizes, count);
    (void)snprintf(text, sizeof(text), "%s, %llu x %llu KiB, beside one by one", what,
                   (unsigned long long)count, (unsigned long long)item >> 10);
    row("batch", text, (double)(item * count) / ours / 1e9, (double)(item * count) / single / 1e9, "GB/s");
    if (!function)
        return;
    single = driver_list(function, to, from, sizes, count);
    (void)snprintf(text, sizeof(text), "%s, %llu x %llu KiB, beside cuMemcpyBatchAsync", what,
                   (unsigned long long)count, (unsigned long long)item >> 10);
    row("batch", text, (double)(item * count) / ours / 1e9, (double)(item * count) / single / 1e9, "GB/s");
}

static void batches(struct heft_agent *agent, struct memory *here, struct memory *there)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    uint64_t size = big < GIB ? big : GIB, item;
    struct heft_region *region;
    void *pinned = NULL;

    for (item = 64 << 10; item <= 16 * MIB && item <= size / 4; item *= 4)
        batch(agent, "GPU to GPU", here, there->region, there->address, size, item);
    TRY(heft_cuda_enter(0, &error));
    TRY(cu->host_alloc(&pinned, size, HEFT_CU_HOST_ALLOC_PORTABLE));
    memset(pinned, 3, size);
    options.address = pinned;
    options.length_bytes = size;
    TRY(heft_region_register(agent, &options, &region, &error));
    for (item = 16 << 10; item <= 4 * MIB && item <= size / 4; item *= 4)
        batch(agent, "pinned to GPU", here, region, (uintptr_t)pinned, size, item);
    TRY(heft_region_deregister(region, &error));
    TRY(cu->host_free(pinned));
    heft_cuda_leave();
}

/* How many processors it takes. */
static void budget(uint32_t processors)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct memory here, there;
    struct heft_agent *agent;
    char text[32];

    options.device_processors = processors;
    TRY(heft_agent_open(&options, &agent, &error));
    memory_open(agent, &here, 0, big / 4);
    memory_open(agent, &there, heft_cuda_device_count() > 1, big / 4);
    (void)snprintf(text, sizeof(text), "%u processors", processors);
    list(agent, text, NULL, &here, heft_region_id(there.region), 512);
    list(agent, text, NULL, &here, heft_region_id(there.region), 4096);
    list(agent, text, NULL, &here, heft_region_id(there.region), 16384);
    memory_close(&here);
    memory_close(&there);
    TRY(heft_agent_close(agent, &error));
}

static void single(struct heft_agent *agent, struct memory *local, struct memory *remote, uint64_t size)
{
    struct heft_run run = {local->region, 0, heft_region_id(remote->region), 0, size, 1, 0, 0};
    char text[64];

    (void)snprintf(text, sizeof(text), "one item of %llu B%s", (unsigned long long)size,
                   run_flags ? ", inline" : "");
    row("single", text, 1e6 * time_runs(agent, NULL, HEFT_OP_READ, &run, 1, 61),
        1e6 * time_driver(local->device, local->address, remote->address, size, 61), "us");
}

static void host(struct heft_agent *agent, struct memory *device, uint64_t size)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_memory_info info;
    struct heft_memory *memory;
    struct heft_region *region;
    void *pinned = NULL;
    struct heft_run run;
    double in, out;

    TRY(heft_cuda_enter(0, &error));
    TRY(cu->host_alloc(&pinned, size, HEFT_CU_HOST_ALLOC_PORTABLE));
    heft_cuda_leave();
    in = (double)size / time_driver(0, device->address, (uintptr_t)pinned, size, 5) / 1e9;
    out = (double)size / time_driver(0, (uintptr_t)pinned, device->address, size, 5) / 1e9;
    options.address = pinned;
    options.length_bytes = size;
    TRY(heft_region_register(agent, &options, &region, &error));
    run = (struct heft_run){device->region, 0, heft_region_id(region), 0, size, 1, 0, 0};
    row("host", "pinned to GPU", (double)size / time_runs(agent, NULL, HEFT_OP_READ, &run, 1, 5) / 1e9, in,
        "GB/s");
    row("host", "GPU to pinned", (double)size / time_runs(agent, NULL, HEFT_OP_WRITE, &run, 1, 5) / 1e9, out,
        "GB/s");
    TRY(heft_region_deregister(region, &error));
    TRY(heft_cuda_enter(0, &error));
    TRY(cu->host_free(pinned));
    heft_cuda_leave();
    TRY(heft_memory_alloc(size, HEFT_MEMORY_PREFAULT, &memory, &error));
    heft_memory_get_info(memory, &info);
    options.memory = memory;
    options.address = NULL;
    TRY(heft_region_register(agent, &options, &region, &error));
    run.remote_region = heft_region_id(region);
    row("host", "heft_memory to GPU", (double)size / time_runs(agent, NULL, HEFT_OP_READ, &run, 1, 5) / 1e9,
        in, "GB/s");
    row("host", "GPU to heft_memory", (double)size / time_runs(agent, NULL, HEFT_OP_WRITE, &run, 1, 5) / 1e9,
        out, "GB/s");
    TRY(heft_region_deregister(region, &error));
    heft_memory_free(memory);
}

static void file(struct heft_agent *agent, struct memory *device, uint64_t size)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_region *region;
    struct heft_run run;
    uint64_t before;

    options.space = HEFT_SPACE_FILE;
    options.fd = memfd_create("bench", MFD_CLOEXEC);
    TRY(options.fd < 0 || ftruncate(options.fd, (off_t)size));
    options.flags = 0;
    TRY(heft_region_register(agent, &options, &region, &error));
    run = (struct heft_run){device->region, 0, heft_region_id(region), 0, size, 1, 0, 0};
    before = digest_of(0, device->address, size);
    row("file", "GPU to tmpfs, first touch",
        (double)size / time_runs(agent, NULL, HEFT_OP_WRITE, &run, 1, 1) / 1e9, 0, "GB/s");
    fill(device, 4);
    row("file", "tmpfs to GPU", (double)size / time_runs(agent, NULL, HEFT_OP_READ, &run, 1, 5) / 1e9, 0,
        "GB/s");
    same("tmpfs and back", before, digest_of(0, device->address, size));
    TRY(heft_region_deregister(region, &error));
    (void)close(options.fd);
}

static void digest(struct memory *device, uint64_t size)
{
    double times[15];
    int round;

    for (round = -2; round < 15; round++) {
        double begin = now();

        (void)digest_of(0, device->address, size);
        if (round >= 0)
            times[round] = now() - begin;
    }
    row("digest", "256 KiB blocks, from call to answer", (double)size / median(times, 15) / 1e9, 0, "GB/s");
}

/* ---- another process ---- */

struct told {
    char addresses[1000];
    struct heft_token token;
    uint64_t region, digest;
};

static int hold(int device)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_agent *agent;
    struct memory memory;
    struct told told = {.region = 0};
    char byte;

    options.listen = "unix";
    TRY(heft_agent_open(&options, &agent, &error));
    memory_open(agent, &memory, device, big);
    fill(&memory, 77);
    told.region = heft_region_id(memory.region);
    told.token = heft_agent_token(agent);
    told.digest = digest_of(device, memory.address, big);
    TRY(heft_agent_addresses(agent, told.addresses, sizeof(told.addresses)));
    if (write(4, &told, sizeof(told)) != (ssize_t)sizeof(told))
        return 1;
    (void)!read(3, &byte, 1);
    _exit(0);
}

static void process(struct heft_agent *agent, struct memory *local, int device, double driver)
{
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    uint64_t item;
    struct heft_peer *peer;
    struct heft_run run;
    struct told told;
    int down[2], up[2];
    size_t have = 0;
    pid_t pid;
    double begin;

    TRY(pipe2(down, O_CLOEXEC) || pipe2(up, O_CLOEXEC));
    pid = fork();
    if (pid == 0) {
        int in = fcntl(down[0], F_DUPFD, 20), out = fcntl(up[1], F_DUPFD, 20);

        (void)dup2(in, 3);
        (void)dup2(out, 4);
        (void)execl("/proc/self/exe", "bench_cuda", device ? "--hold1" : "--hold0", (char *)NULL);
        _exit(9);
    }
    (void)close(up[1]);
    while (have < sizeof(told)) {
        ssize_t got = read(up[0], (char *)&told + have, sizeof(told) - have);

        TRY(got <= 0);
        have += (size_t)got;
    }
    options.addresses = told.addresses;
    options.token = told.token;
    TRY(heft_peer_connect(agent, &options, &peer, &error));
    run = (struct heft_run){local->region, 0, told.region, 0, 4096, 1, 0, 0};
    begin = now();
    (void)time_runs(agent, peer, HEFT_OP_READ, &run, 1, 1);
    row("process", "first transfer, with mapping 4 GiB (ms)", (now() - begin) * 1e3, 0, "ms");
    bulk(agent, "across processes", peer, local, told.region, big, driver);
    run.length_bytes = big;
    (void)time_runs(agent, peer, HEFT_OP_READ, &run, 1, 1);
    same("across processes", told.digest, digest_of(local->device, local->address, big));
    for (item = 512; item <= 65536; item *= 2)
        list(agent, "across processes", peer, local, told.region, item);
    TRY(heft_peer_close(peer, &error));
    (void)close(down[1]);
    (void)waitpid(pid, NULL, 0);
}

static int wanted(int argc, char **argv, const char *section)
{
    int index;

    for (index = 1; index < argc; index++)
        if (strcmp(argv[index], section) == 0)
            return 1;
    return argc == 1;
}

int main(int argc, char **argv)
{
    struct memory here, there;
    struct heft_agent *agent;
    uint64_t item, size;
    double driver = 0;
    int other;

    TRY(heft_cuda_load(&cu, &error));
    if (getenv("FAKE_CUDA"))
        big = 64 * MIB;
    if (argc == 2 && strncmp(argv[1], "--hold", 6) == 0)
        return hold(argv[1][6] - '0');
    other = heft_cuda_device_count() > 1;
    TRY(heft_agent_open(NULL, &agent, &error));
    memory_open(agent, &here, 0, big);
    memory_open(agent, &there, other, big);
    fill(&there, 5);
    (void)printf("section\twhat\tours\tdriver\tunit\tratio\n# GPU %d to GPU 0\n", other);
    driver = (double)big / time_driver(0, here.address, there.address, big, 9) / 1e9;
    if (wanted(argc, argv, "bulk"))
        for (size = big; size >= MIB; size /= 4)
            bulk(agent, "one agent", NULL, &here, heft_region_id(there.region), size,
                 (double)size / time_driver(0, here.address, there.address, size, 9) / 1e9);
    if (wanted(argc, argv, "list"))
        for (item = 512; item <= 65536; item *= 2)
            list(agent, "one agent", NULL, &here, heft_region_id(there.region), item);
    if (wanted(argc, argv, "list"))
        for (item = 512; item <= 65536; item *= 8)
            indexed(agent, &here, &there, item);
    if (wanted(argc, argv, "batch"))
        batches(agent, &here, &there);
    if (wanted(argc, argv, "budget"))
        for (item = 8; item <= 128; item *= 2)
            budget((uint32_t)item);
    if (wanted(argc, argv, "single"))
        for (size = 64; size <= 4 * MIB; size *= 8) {
            single(agent, &here, &there, size);
            run_flags = HEFT_XFER_INLINE;
            single(agent, &here, &there, size);
            run_flags = 0;
        }
    if (wanted(argc, argv, "host"))
        host(agent, &here, big / 2);
    if (wanted(argc, argv, "file"))
        file(agent, &here, big / 2);
    if (wanted(argc, argv, "digest"))
        digest(&here, big);
    if (wanted(argc, argv, "process"))
        process(agent, &here, other, driver);
    memory_close(&here);
    memory_close(&there);
    TRY(heft_agent_close(agent, &error));
    return 0;
}
