/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers that wait for work of the caller. That work is a copy behind a word which the test raises: until
 * then the source holds old bytes, and a transfer that began too early brings those.
 */
#include "gpu/gpu.h"

#include "space/cuda_memory.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MIB ((uint64_t)1 << 20)
#define OLD 0x11
#define WAIT_MS 60000

/* Device memory that a stream of the caller fills once the word is 1. */
struct work {
    struct heft_agent *agent;
    uint64_t size, source, target, fresh;
    struct heft_region *source_region, *target_region;
    uint8_t *expected;
    uint32_t *word;
    heft_cu_stream stream;
    heft_cu_event event;
};

static struct heft_region *region_of(struct heft_agent *agent, enum heft_space space, uint64_t address,
                                     uint64_t size)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_region *region;

    options.space = space;
    options.address = (void *)(uintptr_t)address;
    options.length_bytes = size;
    MUST(!heft_region_register(agent, &options, &region, &gpu_error));
    return region;
}

static void work_open(struct work *work, uint64_t size)
{
    uint8_t *old = malloc(size);
    void *word = NULL;

    memset(work, 0, sizeof(*work));
    work->size = size;
    work->expected = malloc(size);
    MUST(old && work->expected);
    memset(old, OLD, size);
    gpu_pattern(work->expected, 9, 0, size);
    work->source = gpu_alloc(0, size);
    work->target = gpu_alloc(0, size);
    work->fresh = gpu_alloc(0, size);
    gpu_put(0, work->source, old, size);
    gpu_put(0, work->target, old, size);
    gpu_put(0, work->fresh, work->expected, size);
    free(old);
    MUST(!heft_cuda_enter(0, &gpu_error));
    MUST(!gpu_cu->host_alloc(&word, 64, HEFT_CU_HOST_ALLOC_PORTABLE | HEFT_CU_HOST_ALLOC_MAPPED));
    memset(word, 0, 64);
    work->word = word;
    MUST(!gpu_cu->stream_create(&work->stream, HEFT_CU_STREAM_NON_BLOCKING));
    MUST(!gpu_cu->event_create(&work->event, HEFT_CU_EVENT_DISABLE_TIMING));
    heft_cuda_leave();
    MUST(!heft_agent_open(NULL, &work->agent, &gpu_error));
    work->source_region = region_of(work->agent, HEFT_SPACE_CUDA, work->source, size);
    work->target_region = region_of(work->agent, HEFT_SPACE_CUDA, work->target, size);
}

/* The caller's work, on a stream of its own or (NULL) the default one. */
static void work_begin(struct work *work, heft_cu_stream stream)
{
    MUST(!heft_cuda_enter(0, &gpu_error));
    MUST(!gpu_cu->stream_wait(stream, (uintptr_t)work->word, 1, HEFT_CU_STREAM_WAIT_GEQ));
    MUST(!gpu_cu->memcpy_async(work->source, work->fresh, work->size, stream));
    MUST(!gpu_cu->event_record(work->event, stream));
    heft_cuda_leave();
}

static void work_allow(struct work *work)
{
    __atomic_store_n(work->word, 1, __ATOMIC_RELEASE);
}

static void work_close(struct work *work)
{
    work_allow(work);
    MUST(!heft_cuda_enter(0, &gpu_error));
    while (gpu_cu->stream_query(work->stream) == HEFT_CU_NOT_READY)
        ;
    MUST(!gpu_cu->event_destroy(work->event));
    MUST(!gpu_cu->stream_destroy(work->stream));
    MUST(!heft_region_deregister(work->source_region, &gpu_error));
    MUST(!heft_region_deregister(work->target_region, &gpu_error));
    MUST(!heft_agent_close(work->agent, &gpu_error));
    MUST(!gpu_cu->host_free(work->word));
    heft_cuda_leave();
    gpu_free(0, work->source);
    gpu_free(0, work->target);
    gpu_free(0, work->fresh);
    free(work->expected);
}

static struct heft_xfer *make(struct work *work, struct heft_region *to, const struct heft_run *runs,
                              size_t count, const struct heft_xfer_options *options)
{
    struct heft_run whole = {.local_region = to,
                             .remote_region = heft_region_id(work->source_region),
                             .length_bytes = work->size,
                             .count = 1};
    struct heft_xfer *xfer;

    MUST(!heft_xfer_create(work->agent, HEFT_OP_READ, NULL, runs ? runs : &whole, runs ? count : 1, options,
                           &xfer, &gpu_error));
    return xfer;
}

static void nap_ms(long ms)
{
    struct timespec nap = {0, ms * 1000000};

    (void)nanosleep(&nap, NULL);
}

/* 1: it did not begin before it was allowed to, and brought the new bytes. */
static int brings_new_bytes(struct work *work, const struct heft_xfer_options *options,
                            const struct heft_run *runs, size_t count)
{
    struct heft_xfer *xfer = make(work, work->target_region, runs, count, options);
    uint8_t *got = malloc(work->size);
    int rc, early, same;

    MUST(got && !heft_xfer_post(xfer, &gpu_error));
    nap_ms(20);
    early = heft_xfer_poll(xfer) != HEFT_ERR_AGAIN;
    work_allow(work);
    rc = heft_xfer_wait(xfer, WAIT_MS);
    gpu_get(0, got, work->target, work->size);
    same = memcmp(got, work->expected, work->size) == 0;
    (void)heft_xfer_release(xfer);
    free(got);
    if (early || rc || !same)
        (void)printf("    early %d, rc %d, same bytes %d\n", early, rc, same);
    return !early && !rc && same;
}

static uint64_t order_bytes(void)
{
    return gpu_is_fake ? 3 * MIB + 5 : 256 * MIB + 5;
}

static void a_transfer_waits_for_an_event(void)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct work work;
    int right;

    work_open(&work, order_bytes());
    work_begin(&work, work.stream);
    options.after_event = work.event;
    right = brings_new_bytes(&work, &options, NULL, 0);
    work_close(&work);
    CHECK(right);
}

static void a_transfer_waits_for_a_stream_also_the_default_one_and_inline(void)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct work work;
    int which, right = 0;

    for (which = 0; which < 2; which++) {
        work_open(&work, which ? 4096 : order_bytes());
        work_begin(&work, which ? NULL : work.stream);
        options.after_stream = which ? NULL : work.stream;
        options.flags = HEFT_XFER_AFTER_STREAM | HEFT_XFER_INLINE;
        right += brings_new_bytes(&work, &options, NULL, 0);
        work_close(&work);
    }
    CHECK(right == 2);
}

/* By the kernel: the table of items is uploaded, and used by the next post, behind the same wait. */
static void a_list_of_small_pieces_waits_too(void)
{
    enum { PIECES = 512 };
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_run runs[PIECES];
    struct work work;
    int index, right;

    work_open(&work, PIECES * 4096);
    for (index = 0; index < PIECES; index++)
        runs[index] = (struct heft_run){.local_region = work.target_region,
                                        .local_offset_bytes = (uint64_t)index * 4096,
                                        .remote_region = heft_region_id(work.source_region),
                                        .remote_offset_bytes = (uint64_t)index * 4096,
                                        .length_bytes = index % 2 ? 4095 : 4096,
                                        .count = 1};
    for (index = 1; index < PIECES; index += 2)
        work.expected[(uint64_t)index * 4096 + 4095] = OLD; /* nobody moves it */
    work_begin(&work, work.stream);
    options.after_event = work.event;
    right = brings_new_bytes(&work, &options, runs, PIECES);
    work_close(&work);
    CHECK(right);
}

static int is_all(const uint8_t *bytes, uint64_t size, const uint8_t *wanted)
{
    return memcmp(bytes, wanted, size) == 0;
}

/* To host memory that is not pinned: it is held until the event has come. Canceled before that, it ends. */
static void a_staged_transfer_is_held_and_can_be_canceled(void)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    uint64_t size = order_bytes();
    uint8_t *host = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct heft_xfer *xfer, *other;
    struct heft_region *region;
    struct work work;
    int early, canceled, rc, same;

    MUST(host != MAP_FAILED);
    work_open(&work, size);
    work_begin(&work, work.stream);
    region = region_of(work.agent, HEFT_SPACE_HOST, (uintptr_t)host, size);
    options.after_event = work.event;
    xfer = make(&work, region, NULL, 0, &options);
    other = make(&work, region, NULL, 0, &options);
    MUST(!heft_xfer_post(xfer, &gpu_error) && !heft_xfer_post(other, &gpu_error));
    MUST(!heft_xfer_cancel(other));
    canceled = heft_xfer_wait(other, WAIT_MS);
    early = heft_xfer_poll(xfer) != HEFT_ERR_AGAIN || host[0] != 0;
    work_allow(&work);
    rc = heft_xfer_wait(xfer, WAIT_MS);
    same = is_all(host, size, work.expected);
    (void)heft_xfer_release(xfer);
    (void)heft_xfer_release(other);
    MUST(!heft_region_deregister(region, &gpu_error));
    work_close(&work);
    (void)munmap(host, size);
    CHECK(canceled == HEFT_ERR_CANCELED && !early && !rc && same);
}

/* More than there are flights for it; and one that waits for nothing passes all of them. */
static void many_wait_and_others_pass(void)
{
    enum { MANY = 50 };
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer *xfers[MANY], *free_one;
    struct heft_region *other;
    struct work work;
    uint64_t address;
    int index, passed, early = 0, failed = 0;

    work_open(&work, 64 << 10);
    work_begin(&work, work.stream);
    address = gpu_alloc(0, work.size);
    other = region_of(work.agent, HEFT_SPACE_CUDA, address, work.size);
    options.after_stream = work.stream;
    options.flags = HEFT_XFER_AFTER_STREAM;
    for (index = 0; index < MANY; index++) {
        xfers[index] = make(&work, work.target_region, NULL, 0, &options);
        MUST(!heft_xfer_post(xfers[index], &gpu_error));
    }
    free_one = make(&work, other, NULL, 0, NULL);
    MUST(!heft_xfer_post(free_one, &gpu_error));
    passed = heft_xfer_wait(free_one, 5000);
    for (index = 0; index < MANY; index++)
        early += heft_xfer_poll(xfers[index]) != HEFT_ERR_AGAIN;
    work_allow(&work);
    for (index = 0; index < MANY; index++) {
        failed += heft_xfer_wait(xfers[index], WAIT_MS) != 0;
        (void)heft_xfer_release(xfers[index]);
    }
    (void)heft_xfer_wait(free_one, WAIT_MS);
    (void)heft_xfer_release(free_one);
    MUST(!heft_region_deregister(other, &gpu_error));
    work_close(&work);
    gpu_free(0, address);
    CHECK(!early && !failed);
    CHECK(passed == 0);
}

static void what_cannot_wait_says_so(void)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    static uint8_t bytes[8192];
    struct heft_region *left, *right;
    struct heft_xfer *xfer;
    struct heft_run run;
    struct work work;
    int rc, both;

    work_open(&work, 4096);
    left = region_of(work.agent, HEFT_SPACE_HOST, (uintptr_t)bytes, 4096);
    right = region_of(work.agent, HEFT_SPACE_HOST, (uintptr_t)bytes + 4096, 4096);
    run = (struct heft_run){
        .local_region = left, .remote_region = heft_region_id(right), .length_bytes = 4096, .count = 1};
    options.after_event = work.event;
    MUST(!heft_xfer_create(work.agent, HEFT_OP_READ, NULL, &run, 1, &options, &xfer, &gpu_error));
    rc = heft_xfer_post(xfer, &gpu_error);
    (void)heft_xfer_release(xfer);
    options.flags = HEFT_XFER_AFTER_STREAM;
    xfer = make(&work, work.target_region, NULL, 0, &options);
    both = heft_xfer_post(xfer, NULL);
    (void)heft_xfer_release(xfer);
    MUST(!heft_region_deregister(left, NULL) && !heft_region_deregister(right, NULL));
    work_close(&work);
    CHECK(rc == HEFT_ERR_UNSUPPORTED && strstr(gpu_error.text, "wait for it before"));
    CHECK(both == HEFT_ERR_INVALID);
}

const struct gpu_case gpu_order_cases[] = {
    {"order: a transfer waits for an event", a_transfer_waits_for_an_event, 1},
    {"order: a stream, the default one, inline",
     a_transfer_waits_for_a_stream_also_the_default_one_and_inline, 1},
    {"order: a list of small pieces", a_list_of_small_pieces_waits_too, 1},
    {"order: staged ones are held, cancel ends them", a_staged_transfer_is_held_and_can_be_canceled, 1},
    {"order: many wait and others pass", many_wait_and_others_pass, 1},
    {"order: what cannot wait says so", what_cannot_wait_says_so, 1},
};
const size_t gpu_order_count = sizeof(gpu_order_cases) / sizeof(gpu_order_cases[0]);
