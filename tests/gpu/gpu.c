/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of GPU memory: `gpu_test [--list] [PREFIX]`. The same program runs over real GPUs and over the driver
 * of fake/ (FAKE_CUDA=1 says so; sizes are then small).
 */
#include "gpu/gpu.h"

#include "base/clock.h"

#include <string.h>
#include <time.h>

struct heft_error gpu_error;
int gpu_failed, gpu_is_fake;
const struct heft_cu *gpu_cu;
const char *gpu_program;

int gpu_run(const struct gpu_case *cases, size_t count, const char *filter)
{
    int failed = 0, devices = heft_cuda_device_count();
    size_t index;

    for (index = 0; index < count; index++) {
        double begin = gpu_seconds();

        if (filter && strncmp(cases[index].name, filter, strlen(filter)) != 0)
            continue;
        if (devices < cases[index].devices) {
            (void)printf("skip  %-50s needs %d GPUs\n", cases[index].name, cases[index].devices);
            continue;
        }
        gpu_failed = 0;
        memset(&gpu_error, 0, sizeof(gpu_error));
        cases[index].run();
        (void)printf("%s  %-50s %.2f s\n", gpu_failed ? "FAIL" : "ok  ", cases[index].name,
                     gpu_seconds() - begin);
        (void)fflush(stdout);
        failed += gpu_failed;
    }
    return failed;
}

double gpu_seconds(void)
{
    return (double)heft_now_ns() / 1e9;
}

uint64_t gpu_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static uint64_t word(uint64_t seed, uint64_t index)
{
    uint64_t x = (index + seed * UINT64_C(0x2545f4914f6cdd1d) + 1) * UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ x >> 31;
}

uint8_t gpu_pattern_byte(uint64_t seed, uint64_t at)
{
    return (uint8_t)(word(seed, at / 8) >> at % 8 * 8);
}

void gpu_pattern(void *to, uint64_t seed, uint64_t from_bytes, uint64_t length_bytes)
{
    uint8_t *bytes = to;
    uint64_t at = 0;

    for (; at < length_bytes && (from_bytes + at) % 8; at++)
        bytes[at] = gpu_pattern_byte(seed, from_bytes + at);
    for (; at + 8 <= length_bytes; at += 8) {
        uint64_t value = word(seed, (from_bytes + at) / 8);

        memcpy(bytes + at, &value, 8);
    }
    for (; at < length_bytes; at++)
        bytes[at] = gpu_pattern_byte(seed, from_bytes + at);
}

/* ---- device memory by plain calls ---- */

static void wait_stream(heft_cu_stream stream)
{
    heft_cu_event event;
    heft_cu_result result;

    MUST(!gpu_cu->event_create(&event, HEFT_CU_EVENT_DISABLE_TIMING));
    MUST(!gpu_cu->event_record(event, stream));
    while ((result = gpu_cu->event_query(event)) == HEFT_CU_NOT_READY)
        ;
    MUST(!result);
    MUST(!gpu_cu->event_destroy(event));
}

uint64_t gpu_alloc(int device, uint64_t bytes)
{
    heft_cu_pointer address = 0;

    MUST(!heft_cuda_enter(device, &gpu_error));
    MUST(!gpu_cu->mem_alloc(&address, bytes));
    heft_cuda_leave();
    return address;
}

void gpu_free(int device, uint64_t address)
{
    MUST(!heft_cuda_enter(device, &gpu_error));
    MUST(!gpu_cu->mem_free(address));
    heft_cuda_leave();
}

static void copy_now(int device, uint64_t to, uint64_t from, uint64_t bytes)
{
    heft_cu_stream stream;

    MUST(!heft_cuda_enter(device, &gpu_error));
    MUST(!gpu_cu->stream_create(&stream, HEFT_CU_STREAM_NON_BLOCKING));
    if (bytes)
        MUST(!gpu_cu->memcpy_async(to, from, bytes, stream));
    wait_stream(stream);
    MUST(!gpu_cu->stream_destroy(stream));
    heft_cuda_leave();
}

void gpu_put(int device, uint64_t to, const void *from, uint64_t bytes)
{
    copy_now(device, to, (uintptr_t)from, bytes);
}

void gpu_get(int device, void *to, uint64_t from, uint64_t bytes)
{
    copy_now(device, (uintptr_t)to, from, bytes);
}

int main(int argc, char **argv)
{
    const char *filter = argc > 1 ? argv[1] : NULL;
    int failed = 0;

    gpu_program = "/proc/self/exe";
    gpu_is_fake = getenv("FAKE_CUDA") != NULL || getenv("HEFT_TEST_QUICK") != NULL; /* small sizes */
    /* Streams that wait must not stand before others in the few queues that a process has by default. */
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    if (heft_cuda_load(&gpu_cu, &gpu_error)) {
        (void)printf("skip  all: %s\n", gpu_error.text);
        return 77;
    }
    if (argc > 1 && strcmp(argv[1], "--serve") == 0)
        return gpu_serve(argc, argv);
    failed += gpu_run(gpu_space_cases, gpu_space_count, filter);
    failed += gpu_run(gpu_kernel_cases, gpu_kernel_count, filter);
    failed += gpu_run(gpu_move_cases, gpu_move_count, filter);
    failed += gpu_run(gpu_list_cases, gpu_list_count, filter);
    failed += gpu_run(gpu_order_cases, gpu_order_count, filter);
    failed += gpu_run(gpu_raise_cases, gpu_raise_count, filter);
    failed += gpu_run(gpu_peer_cases, gpu_peer_count, filter);
    (void)printf("%d failed\n", failed);
    return failed > 0;
}
