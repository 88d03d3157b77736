/* SPDX-License-Identifier: Apache-2.0 */
/* Lists that are posted again: what is kept between posts is what the transfer says, whatever happened. */
#include "gpu/gpu.h"

#include <string.h>

#define ITEMS 700u
#define ITEM_BYTES 528u
#define SPACE_BYTES 640u
#define SIZE_BYTES ((uint64_t)ITEMS * SPACE_BYTES)

static struct heft_region *open_region(struct heft_agent *agent, int device, uint64_t *address_out)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_region *region;

    *address_out = gpu_alloc(device, SIZE_BYTES);
    options.space = HEFT_SPACE_CUDA;
    options.address = (void *)(uintptr_t)*address_out;
    options.length_bytes = SIZE_BYTES;
    MUST(!heft_region_register(agent, &options, &region, &gpu_error));
    return region;
}

/* Item i goes to place (i * to_step) from (i * from_step): both go through all of them. */
static void make_runs(struct heft_run *runs, struct heft_region *to, struct heft_region *from,
                      uint64_t to_step, uint64_t from_step)
{
    uint64_t index;

    for (index = 0; index < ITEMS; index++)
        runs[index] = (struct heft_run){.local_region = to,
                                        .local_offset_bytes = index * to_step % ITEMS * SPACE_BYTES,
                                        .remote_region = heft_region_id(from),
                                        .remote_offset_bytes = index * from_step % ITEMS * SPACE_BYTES,
                                        .length_bytes = ITEM_BYTES,
                                        .count = 1};
}

/* Posts it over new bytes; how many items are not where they belong. */
static int post_and_compare(struct heft_xfer *xfer, uint64_t to, uint64_t from, uint64_t to_step,
                            uint64_t from_step, uint64_t seed)
{
    static uint8_t bytes[SIZE_BYTES], got[SIZE_BYTES];
    uint64_t index;
    int wrong = 0;

    gpu_pattern(bytes, seed, 0, SIZE_BYTES);
    gpu_put(0, from, bytes, SIZE_BYTES);
    memset(got, 0xee, SIZE_BYTES);
    gpu_put(0, to, got, SIZE_BYTES);
    MUST(!heft_xfer_post(xfer, &gpu_error));
    MUST(heft_xfer_wait(xfer, 60000) == 0);
    gpu_get(0, got, to, SIZE_BYTES);
    for (index = 0; index < ITEMS; index++) {
        const uint8_t *place = got + index * to_step % ITEMS * SPACE_BYTES;

        wrong += memcmp(place, bytes + index * from_step % ITEMS * SPACE_BYTES, ITEM_BYTES) != 0;
        wrong += place[ITEM_BYTES] != 0xee || place[SPACE_BYTES - 1] != 0xee;
    }
    return wrong;
}

static void a_list_that_is_kept_is_right_after_whatever_changed(void)
{
    static struct heft_run runs[ITEMS];
    uint64_t to, from, other, round;
    struct heft_region *to_region, *from_region, *other_region;
    struct heft_agent *agent;
    struct heft_xfer *xfer;

    CHECK(!heft_agent_open(NULL, &agent, &gpu_error));
    to_region = open_region(agent, 0, &to);
    from_region = open_region(agent, 0, &from);
    other_region = open_region(agent, 0, &other);
    make_runs(runs, to_region, from_region, 33, 51);
    CHECK(!heft_xfer_create(agent, HEFT_OP_READ, NULL, runs, ITEMS, NULL, &xfer, &gpu_error));
    for (round = 0; round < 4; round++)
        CHECK(post_and_compare(xfer, to, from, 33, 51, round + 1) == 0);
    /* other places, then fewer, then from another region */
    make_runs(runs, to_region, from_region, 9, 101);
    CHECK(!heft_xfer_set_runs(xfer, runs, ITEMS, &gpu_error));
    CHECK(post_and_compare(xfer, to, from, 9, 101, 11) == 0);
    CHECK(!heft_xfer_set_runs(xfer, runs, 2, &gpu_error));
    CHECK(!heft_xfer_post(xfer, &gpu_error) && heft_xfer_wait(xfer, 60000) == 0);
    make_runs(runs, to_region, other_region, 9, 101);
    CHECK(!heft_xfer_set_runs(xfer, runs, ITEMS, &gpu_error));
    CHECK(post_and_compare(xfer, to, other, 9, 101, 12) == 0);
    /* a region goes, and its memory comes back as another region: nothing of the old list may be used */
    CHECK(!heft_region_deregister(from_region, &gpu_error));
    gpu_free(0, from);
    from_region = open_region(agent, 0, &from);
    CHECK(post_and_compare(xfer, to, other, 9, 101, 13) == 0);
    make_runs(runs, to_region, from_region, 9, 101);
    CHECK(!heft_xfer_set_runs(xfer, runs, ITEMS, &gpu_error));
    CHECK(post_and_compare(xfer, to, from, 9, 101, 14) == 0);
    CHECK(!heft_xfer_release(xfer));
    CHECK(!heft_region_deregister(to_region, &gpu_error));
    CHECK(!heft_region_deregister(from_region, &gpu_error));
    CHECK(!heft_region_deregister(other_region, &gpu_error));
    gpu_free(0, to);
    gpu_free(0, from);
    gpu_free(0, other);
    CHECK(!heft_agent_close(agent, &gpu_error));
}

/* Transfers released after their agent was closed have nothing to give back to it. */
/* The driver tells one allocation from the next: the same number for both is enough. */
static void a_registration_that_is_kept_is_of_one_allocation(void)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    uint64_t address = gpu_alloc(0, 1 << 20), offset = 1;
    struct heft_region *whole, *part, *next;
    struct heft_agent *agent;

    CHECK(!heft_agent_open(NULL, &agent, &gpu_error));
    options.space = HEFT_SPACE_CUDA;
    options.address = (void *)(uintptr_t)address;
    options.length_bytes = 1 << 20;
    CHECK(!heft_region_acquire(agent, &options, 0, &whole, &offset, &gpu_error) && offset == 0);
    options.address = (void *)(uintptr_t)(address + 4096);
    options.length_bytes = 4096;
    CHECK(!heft_region_acquire(agent, &options, 0, &part, &offset, &gpu_error));
    CHECK(part == whole && offset == 4096);
    CHECK(!heft_region_release(part, &gpu_error) && !heft_region_release(whole, &gpu_error));
    gpu_free(0, address);
    address = gpu_alloc(0, 1 << 20);
    options.address = (void *)(uintptr_t)(address + 4096);
    CHECK(!heft_region_acquire(agent, &options, 0, &next, &offset, &gpu_error));
    CHECK(offset == 0 && heft_region_length_bytes(next) == 4096); /* nothing of before was found */
    CHECK(!heft_region_release(next, &gpu_error));
    CHECK(!heft_agent_close(agent, &gpu_error));
    gpu_free(0, address);
}

static void a_kept_list_outlives_its_agent(void)
{
    static struct heft_run runs[ITEMS];
    struct heft_region *to_region, *from_region;
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_agent *agent;
    struct heft_xfer *xfer;
    uint64_t to, from;

    options.device_processors = 3;
    CHECK(!heft_agent_open(&options, &agent, &gpu_error));
    to_region = open_region(agent, 0, &to);
    from_region = open_region(agent, 0, &from);
    make_runs(runs, to_region, from_region, 1, 3);
    CHECK(!heft_xfer_create(agent, HEFT_OP_READ, NULL, runs, ITEMS, NULL, &xfer, &gpu_error));
    CHECK(post_and_compare(xfer, to, from, 1, 3, 21) == 0);
    CHECK(!heft_agent_close(agent, &gpu_error));
    CHECK(!heft_xfer_release(xfer));
    gpu_free(0, to);
    gpu_free(0, from);
}

static void an_inline_piece_is_there_when_post_returns(void)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_region *to_region, *from_region;
    uint8_t bytes[5000], got[5000];
    struct heft_agent *agent;
    struct heft_xfer *xfer;
    struct heft_run run;
    uint64_t to, from, round;

    CHECK(!heft_agent_open(NULL, &agent, &gpu_error));
    to_region = open_region(agent, 0, &to);
    from_region = open_region(agent, 0, &from);
    run = (struct heft_run){to_region, 7, heft_region_id(from_region), 1, sizeof(bytes), 1, 0, 0};
    options.flags = HEFT_XFER_INLINE;
    CHECK(!heft_xfer_create(agent, HEFT_OP_READ, NULL, &run, 1, &options, &xfer, &gpu_error));
    for (round = 0; round < 40; round++) { /* more than there are flights */
        gpu_pattern(bytes, round + 31, 0, sizeof(bytes));
        gpu_put(0, from + 1, bytes, sizeof(bytes));
        CHECK(!heft_xfer_post(xfer, &gpu_error));
        CHECK(heft_xfer_poll(xfer) == 0); /* nobody waited */
        gpu_get(0, got, to + 7, sizeof(got));
        CHECK(memcmp(bytes, got, sizeof(got)) == 0);
    }
    CHECK(!heft_xfer_release(xfer));
    CHECK(!heft_agent_close(agent, &gpu_error));
    gpu_free(0, to);
    gpu_free(0, from);
}

/* Agents, memory, regions, lists and digests, again and again: the device has as much free memory as before.
 */
static void two_hundred_rounds_leave_the_memory_as_it_was(void)
{
    static struct heft_run runs[ITEMS];
    uint64_t before = 0, after = 0, to, from, digest;
    int round, rounds = gpu_is_fake ? 50 : 205;

    for (round = 0; round < rounds; round++) {
        struct heft_region *to_region, *from_region;
        struct heft_device_memory *memory;
        struct heft_cuda_place place;
        struct heft_agent *agent;
        struct heft_xfer *xfer;

        if (round == 5) /* what is made once in a process is there */
            CHECK(!heft_cuda_free_bytes(0, &before, &gpu_error));
        CHECK(!heft_agent_open(NULL, &agent, &gpu_error));
        CHECK(!heft_device_memory_alloc(0, (uint64_t)64 << 20, 0, &memory, &gpu_error));
        to_region = open_region(agent, 0, &to);
        from_region = open_region(agent, 0, &from);
        make_runs(runs, to_region, from_region, 1, 3);
        CHECK(!heft_xfer_create(agent, HEFT_OP_READ, NULL, runs, ITEMS, NULL, &xfer, &gpu_error));
        CHECK(!heft_xfer_post(xfer, &gpu_error) && heft_xfer_wait(xfer, 60000) == 0);
        place = (struct heft_cuda_place){to, SIZE_BYTES};
        CHECK(!heft_cuda_digest(0, &place, 1, &digest, &gpu_error));
        CHECK(!heft_xfer_release(xfer));
        CHECK(!heft_region_deregister(to_region, &gpu_error));
        CHECK(!heft_region_deregister(from_region, &gpu_error));
        gpu_free(0, to);
        gpu_free(0, from);
        heft_device_memory_free(memory);
        CHECK(!heft_agent_close(agent, &gpu_error));
    }
    CHECK(!heft_cuda_free_bytes(0, &after, &gpu_error));
    if (after != before)
        (void)snprintf(gpu_error.text, sizeof(gpu_error.text), "%llu free bytes before, %llu after",
                       (unsigned long long)before, (unsigned long long)after);
    CHECK(after == before);
}

const struct gpu_case gpu_list_cases[] = {
    {"list: kept, and right after whatever changed", a_list_that_is_kept_is_right_after_whatever_changed, 1},
    {"registration: a kept one is of one allocation", a_registration_that_is_kept_is_of_one_allocation, 1},
    {"list: a kept one outlives its agent", a_kept_list_outlives_its_agent, 1},
    {"list: two hundred rounds leave the memory as it was", two_hundred_rounds_leave_the_memory_as_it_was, 1},
    {"list: an inline piece is there when post returns", an_inline_piece_is_there_when_post_returns, 1},
};
const size_t gpu_list_count = sizeof(gpu_list_cases) / sizeof(gpu_list_cases[0]);
