/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers inside one agent: every pair of device, other device, host, pinned and file, random lists. */
#include "gpu/gpu.h"

#include "space/cuda_memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

enum place_kind { PLAIN, PIECES, OTHER_GPU, HOST, PINNED, FILE_PLACE, PLACES };
static const char *const place_names[] = {"cuMemAlloc", "pieces", "other GPU", "host", "pinned", "file"};

struct place {
    enum place_kind kind;
    uint64_t size, address;
    struct heft_device_memory *memory;
    struct heft_region *region;
    int fd;
};

static void place_open(struct heft_agent *agent, struct place *place, enum place_kind kind, uint64_t size)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_device_memory_info info;
    void *pinned = NULL;

    *place = (struct place){.kind = kind, .size = size, .fd = -1};
    options.space = kind == FILE_PLACE ? HEFT_SPACE_FILE : kind >= HOST ? HEFT_SPACE_HOST : HEFT_SPACE_CUDA;
    if (kind == PLAIN) {
        place->address = gpu_alloc(0, size);
    } else if (kind == PIECES || kind == OTHER_GPU) {
        int device = kind == OTHER_GPU ? 1 : 0;

        MUST(!heft_device_memory_alloc_pieces(device, size, size / 3, &place->memory, &gpu_error));
        heft_device_memory_get_info(place->memory, &info);
        place->address = info.address;
    } else if (kind == HOST) {
        place->address =
            (uintptr_t)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    } else if (kind == PINNED) {
        MUST(!heft_cuda_enter(0, &gpu_error));
        MUST(!gpu_cu->host_alloc(&pinned, size, HEFT_CU_HOST_ALLOC_PORTABLE));
        heft_cuda_leave();
        place->address = (uintptr_t)pinned;
    } else {
        place->fd = memfd_create("place", MFD_CLOEXEC);
        MUST(place->fd >= 0 && ftruncate(place->fd, (off_t)size) == 0);
    }
    options.fd = place->fd;
    options.address = (void *)(uintptr_t)place->address;
    options.length_bytes = size;
    MUST(!heft_region_register(agent, &options, &place->region, &gpu_error));
}

static int place_device(const struct place *place)
{
    return place->kind == OTHER_GPU ? 1 : 0;
}

static void place_put(const struct place *place, const uint8_t *bytes)
{
    if (place->kind == FILE_PLACE)
        MUST(pwrite(place->fd, bytes, place->size, 0) == (ssize_t)place->size);
    else if (place->kind >= HOST)
        memcpy((void *)(uintptr_t)place->address, bytes, place->size);
    else
        gpu_put(place_device(place), place->address, bytes, place->size);
}

static void place_get(const struct place *place, uint8_t *bytes)
{
    if (place->kind == FILE_PLACE)
        MUST(pread(place->fd, bytes, place->size, 0) == (ssize_t)place->size);
    else if (place->kind >= HOST)
        memcpy(bytes, (const void *)(uintptr_t)place->address, place->size);
    else
        gpu_get(place_device(place), bytes, place->address, place->size);
}

static void place_close(struct place *place)
{
    MUST(!heft_region_deregister(place->region, &gpu_error));
    if (place->kind == PLAIN)
        gpu_free(0, place->address);
    heft_device_memory_free(place->memory);
    if (place->kind == HOST)
        (void)munmap((void *)(uintptr_t)place->address, place->size);
    if (place->kind == PINNED) {
        MUST(!heft_cuda_enter(0, &gpu_error));
        MUST(!gpu_cu->host_free((void *)(uintptr_t)place->address));
        heft_cuda_leave();
    }
    if (place->fd >= 0)
        (void)close(place->fd);
}

/* Runs whose destinations do not overlap, among them empty, long, strided and touching ones. */
static size_t make_runs(struct heft_run *runs, size_t most, uint64_t size, uint64_t *state,
                        struct heft_region *local, uint64_t remote)
{
    uint64_t at = 0;
    size_t count = 0;

    while (count < most) {
        uint64_t kind = gpu_random(state) % 8;
        uint64_t length = kind == 0   ? 0
                          : kind == 1 ? gpu_random(state) % (size / 4)
                                      : gpu_random(state) % 5000;
        uint64_t pieces = kind >= 5 ? gpu_random(state) % 40 : 1,
                 gap = gpu_random(state) % 3 ? gpu_random(state) % 200 : 0;
        uint64_t span = pieces ? (pieces - 1) * (length + gap) + length : 0;

        if (span > size - at)
            break;
        runs[count++] = (struct heft_run){.local_region = local,
                                          .local_offset_bytes = at,
                                          .remote_region = remote,
                                          .remote_offset_bytes = gpu_random(state) % (size - span + 1),
                                          .length_bytes = length,
                                          .count = pieces,
                                          .local_stride_bytes = length + gap,
                                          .remote_stride_bytes = length + gap};
        at += span + gpu_random(state) % 100;
        if (at > size)
            break;
    }
    return count;
}

/* READ fills the local side; WRITE, with the roles of the offsets changed, the remote one. */
static void expect(const struct heft_run *runs, size_t count, enum heft_op op, uint8_t *to,
                   const uint8_t *from)
{
    size_t index;
    uint64_t piece;

    for (index = 0; index < count; index++)
        for (piece = 0; piece < runs[index].count; piece++) {
            uint64_t local = runs[index].local_offset_bytes + piece * runs[index].local_stride_bytes;
            uint64_t remote = runs[index].remote_offset_bytes + piece * runs[index].remote_stride_bytes;

            memcpy(to + (op == HEFT_OP_READ ? local : remote), from + (op == HEFT_OP_READ ? remote : local),
                   runs[index].length_bytes);
        }
}

static int try_pair(struct heft_agent *agent, struct place *local, struct place *remote, enum heft_op op,
                    uint64_t seed)
{
    enum { RUNS = 300 };
    struct heft_run runs[RUNS];
    uint64_t size = local->size, state = seed;
    uint8_t *source = malloc(size), *wanted = malloc(size), *got = malloc(size);
    struct place *to = op == HEFT_OP_READ ? local : remote, *from = op == HEFT_OP_READ ? remote : local;
    struct heft_xfer *xfer;
    size_t count = make_runs(runs, RUNS, size, &state, local->region, heft_region_id(remote->region)), index;
    int rc, wrong;

    MUST(source && wanted && got);
    if (op == HEFT_OP_WRITE)
        for (index = 0; index < count; index++) {
            uint64_t swap = runs[index].local_offset_bytes;

            runs[index].local_offset_bytes = runs[index].remote_offset_bytes;
            runs[index].remote_offset_bytes = swap;
        }
    gpu_pattern(source, seed, 0, size);
    memset(wanted, 0x77, size);
    place_put(from, source);
    place_put(to, wanted);
    expect(runs, count, op, wanted, source);
    rc = heft_xfer_create(agent, op, NULL, runs, count, NULL, &xfer, &gpu_error);
    if (!rc)
        rc = heft_xfer_post(xfer, &gpu_error);
    if (!rc)
        rc = heft_xfer_wait(xfer, 60000);
    if (rc) {
        struct heft_xfer_result result = {.size = sizeof(result)};

        heft_xfer_get_result(xfer, &result);
        (void)printf("    %s <-> %s: %d: %s %s\n", place_names[local->kind], place_names[remote->kind], rc,
                     gpu_error.text, result.error.text);
    }
    place_get(to, got);
    wrong = rc || memcmp(got, wanted, size) != 0;
    if (wrong && !rc) {
        for (index = 0; got[index] == wanted[index]; index++)
            ;
        (void)printf("    %s <-> %s, op %d: wrong byte at %zu of %llu\n", place_names[local->kind],
                     place_names[remote->kind], op, index, (unsigned long long)size);
    }
    MUST(!heft_xfer_release(xfer));
    free(source);
    free(wanted);
    free(got);
    return wrong;
}

static void random_lists_between_all_places_are_right(void)
{
    struct heft_agent *agent;
    struct place left[PLACES], right[PLACES];
    int kind, other, devices = heft_cuda_device_count(), wrong = 0, round;
    uint64_t size = gpu_is_fake ? 6 * MIB + 48 : 48 * MIB + 48;

    CHECK(!heft_agent_open(NULL, &agent, &gpu_error));
    for (kind = 0; kind < PLACES; kind++) {
        if (kind == OTHER_GPU && devices < 2)
            continue;
        place_open(agent, &left[kind], (enum place_kind)kind, size);
        place_open(agent, &right[kind], (enum place_kind)kind, size);
    }
    for (kind = 0; kind < PLACES; kind++)
        for (other = 0; other < PLACES; other++) {
            if ((kind >= HOST && other >= HOST) || (devices < 2 && (kind == OTHER_GPU || other == OTHER_GPU)))
                continue;
            for (round = 0; round < (gpu_is_fake ? 1 : 3); round++) {
                uint64_t seed = (uint64_t)(kind * 100 + other * 10 + round + 1);

                wrong += try_pair(agent, &left[kind], &right[other], HEFT_OP_READ, seed);
                wrong += try_pair(agent, &left[kind], &right[other], HEFT_OP_WRITE, seed + 1000);
            }
        }
    for (kind = 0; kind < PLACES; kind++) {
        if (kind == OTHER_GPU && devices < 2)
            continue;
        place_close(&left[kind]);
        place_close(&right[kind]);
    }
    CHECK(!heft_agent_close(agent, &gpu_error));
    CHECK(wrong == 0);
}

/* A list posted again and again by several transfers at once: slots and flights are used over and over. */
static void many_transfers_at_once_keep_their_bytes(void)
{
    enum { COUNT = 24, ROUNDS = 6 };
    struct heft_agent *agent;
    struct place device, host;
    struct heft_xfer *xfers[COUNT];
    uint64_t part = gpu_is_fake ? MIB / 2 + 7 : 9 * MIB + 7, size = part * COUNT;
    uint8_t *bytes = malloc(size), *got = malloc(size);
    int index, round;

    MUST(bytes && got);
    CHECK(!heft_agent_open(NULL, &agent, &gpu_error));
    place_open(agent, &device, PIECES, size);
    place_open(agent, &host, HOST, size);
    for (round = 0; round < ROUNDS; round++) {
        enum heft_op op = round % 2 ? HEFT_OP_WRITE : HEFT_OP_READ;
        struct place *from = op == HEFT_OP_READ ? &host : &device, *to = op == HEFT_OP_READ ? &device : &host;

        gpu_pattern(bytes, (uint64_t)round + 50, 0, size);
        place_put(from, bytes);
        for (index = 0; index < COUNT; index++) {
            struct heft_run run = {.local_region = device.region,
                                   .local_offset_bytes = (uint64_t)index * part,
                                   .remote_region = heft_region_id(host.region),
                                   .remote_offset_bytes = (uint64_t)index * part,
                                   .length_bytes = part,
                                   .count = 1};

            CHECK(!heft_xfer_create(agent, op, NULL, &run, 1, NULL, &xfers[index], &gpu_error));
        }
        for (index = 0; index < COUNT; index++)
            CHECK(!heft_xfer_post(xfers[index], &gpu_error));
        for (index = 0; index < COUNT; index++) {
            CHECK(heft_xfer_wait(xfers[index], 60000) == 0);
            CHECK(!heft_xfer_release(xfers[index]));
        }
        place_get(to, got);
        CHECK(memcmp(bytes, got, size) == 0);
    }
    place_close(&device);
    place_close(&host);
    CHECK(!heft_agent_close(agent, &gpu_error));
    free(bytes);
    free(got);
}

static void a_file_that_became_shorter_is_told(void)
{
    struct heft_agent *agent;
    struct place device, file;
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_xfer *xfer;
    struct heft_run run;

    CHECK(!heft_agent_open(NULL, &agent, &gpu_error));
    place_open(agent, &device, PLAIN, MIB);
    place_open(agent, &file, FILE_PLACE, MIB);
    run = (struct heft_run){device.region, 0, heft_region_id(file.region), 0, MIB, 1, 0, 0};
    CHECK(!heft_xfer_create(agent, HEFT_OP_READ, NULL, &run, 1, NULL, &xfer, &gpu_error));
    CHECK(ftruncate(file.fd, 1000) == 0);
    CHECK(!heft_xfer_post(xfer, &gpu_error));
    CHECK(heft_xfer_wait(xfer, 60000) == HEFT_ERR_TRUNCATED);
    heft_xfer_get_result(xfer, &result);
    CHECK(result.failed_run == 0 && strstr(result.error.text, "at byte 1000"));
    CHECK(!heft_xfer_release(xfer));
    place_close(&device);
    place_close(&file);
    CHECK(!heft_agent_close(agent, &gpu_error));
}

static void a_cancelled_transfer_ends_and_leaves_the_rest_alone(void)
{
    struct heft_agent *agent;
    struct place device, host;
    struct heft_xfer *xfer;
    struct heft_run run;
    uint64_t size = gpu_is_fake ? 32 * MIB : 1024 * MIB;
    int rc;

    CHECK(!heft_agent_open(NULL, &agent, &gpu_error));
    place_open(agent, &device, PIECES, size);
    place_open(agent, &host, HOST, size);
    run = (struct heft_run){device.region, 0, heft_region_id(host.region), 0, size, 1, 0, 0};
    CHECK(!heft_xfer_create(agent, HEFT_OP_READ, NULL, &run, 1, NULL, &xfer, &gpu_error));
    CHECK(!heft_xfer_post(xfer, &gpu_error));
    CHECK(!heft_xfer_cancel(xfer));
    rc = heft_xfer_wait(xfer, 20000);
    CHECK(rc == HEFT_ERR_CANCELED || rc == 0);
    CHECK(!heft_xfer_post(xfer, &gpu_error)); /* and it can be posted again */
    CHECK(heft_xfer_wait(xfer, 60000) == 0);
    CHECK(!heft_xfer_release(xfer));
    place_close(&device);
    place_close(&host);
    CHECK(!heft_agent_close(agent, &gpu_error));
}

static void what_is_no_device_memory_is_refused(void)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_agent *agent;
    struct heft_region *region = NULL;
    struct heft_agent_options without = HEFT_AGENT_OPTIONS_INIT;
    uint64_t address = gpu_alloc(0, 4096);
    char plain[64];

    CHECK(!heft_agent_open(NULL, &agent, &gpu_error));
    options.space = HEFT_SPACE_CUDA;
    options.address = plain;
    options.length_bytes = sizeof(plain);
    CHECK(heft_region_register(agent, &options, &region, &gpu_error) == HEFT_ERR_INVALID);
    options.address = (void *)(uintptr_t)address;
    options.length_bytes = (uint64_t)1 << 40;
    CHECK(heft_region_register(agent, &options, &region, &gpu_error) == HEFT_ERR_RANGE);
    CHECK(!region);
    CHECK(!heft_agent_close(agent, &gpu_error));
    without.transports = "local,file";
    CHECK(!heft_agent_open(&without, &agent, &gpu_error));
    options.length_bytes = 4096;
    CHECK(heft_region_register(agent, &options, &region, &gpu_error) == HEFT_ERR_UNSUPPORTED);
    CHECK(!heft_agent_close(agent, &gpu_error));
    gpu_free(0, address);
}

const struct gpu_case gpu_move_cases[] = {
    {"move: random lists between all places", random_lists_between_all_places_are_right, 1},
    {"move: many at once", many_transfers_at_once_keep_their_bytes, 1},
    {"move: a shorter file is told", a_file_that_became_shorter_is_told, 1},
    {"move: cancel", a_cancelled_transfer_ends_and_leaves_the_rest_alone, 1},
    {"move: no device memory", what_is_no_device_memory_is_refused, 1},
};
const size_t gpu_move_count = sizeof(gpu_move_cases) / sizeof(gpu_move_cases[0]);
