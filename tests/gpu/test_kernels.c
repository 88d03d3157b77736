/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels alone: every start 0..31 of both sides and every length 0..4097, and nothing beside. */
#include "gpu/gpu.h"

#include "base/digest.h"

#include <string.h>

#define LENGTHS 4098u
#define STARTS 32u

/* Launches the copy kernel on a list and waits. */
static int copy_list(const struct heft_cuda_item *items, uint64_t count, uint64_t pieces)
{
    struct heft_cuda_kernels kernels;
    heft_cu_pointer device_items = gpu_alloc(0, count * sizeof(*items));
    void *parameters[3] = {&device_items, &count, &pieces};
    heft_cu_stream stream;
    heft_cu_event event;
    heft_cu_result result;

    gpu_put(0, device_items, items, count * sizeof(*items));
    MUST(!heft_cuda_enter(0, &gpu_error));
    MUST(!heft_cuda_kernels(0, &kernels, &gpu_error));
    MUST(!gpu_cu->stream_create(&stream, HEFT_CU_STREAM_NON_BLOCKING));
    MUST(!gpu_cu->event_create(&event, HEFT_CU_EVENT_DISABLE_TIMING));
    MUST(!gpu_cu->launch(kernels.copy, HEFT_CUDA_COPY_BLOCKS, 1, 1, HEFT_CUDA_COPY_THREADS, 1, 1, 0, stream,
                         parameters, NULL));
    MUST(!gpu_cu->event_record(event, stream));
    while ((result = gpu_cu->event_query(event)) == HEFT_CU_NOT_READY)
        ;
    MUST(!gpu_cu->event_destroy(event));
    MUST(!gpu_cu->stream_destroy(stream));
    heft_cuda_leave();
    gpu_free(0, device_items);
    return result;
}

/* One (to, from) pair of starts with all lengths: each length has its own row, poisoned. */
static int try_starts(uint64_t to, uint64_t from, uint64_t row, const uint8_t *source, uint8_t *got,
                      uint32_t to_start, uint32_t from_start, uint32_t step)
{
    static struct heft_cuda_item items[LENGTHS];
    uint32_t length, count = 0, wrong = 0;

    memset(got, 0xc3, row * LENGTHS);
    gpu_put(0, to, got, row * LENGTHS);
    for (length = 0; length < LENGTHS; length += step, count++)
        items[count] = (struct heft_cuda_item){.to = to + row * length + 32 + to_start,
                                               .from = from + 32 * (length % 64) + from_start,
                                               .length_bytes = length,
                                               .last_bytes = length,
                                               .first = count};
    if (copy_list(items, count, count))
        return 1;
    gpu_get(0, got, to, row * LENGTHS);
    for (length = 0; length < LENGTHS; length += step) {
        uint8_t *line = got + row * length;
        uint64_t at;

        for (at = 0; at < row; at++) {
            int inside = at >= 32 + to_start && at < 32 + to_start + (uint64_t)length;
            uint8_t expected = inside ? source[32 * (length % 64) + from_start + at - 32 - to_start] : 0xc3;

            wrong += line[at] != expected;
        }
    }
    if (wrong)
        (void)printf("    starts %u and %u: %u wrong bytes\n", to_start, from_start, wrong);
    return wrong != 0;
}

static void every_start_and_length_is_copied_exactly(void)
{
    const uint64_t row = 32 + 32 + LENGTHS + 62, source_bytes = 32 * 64 + LENGTHS + 64;
    uint64_t to = gpu_alloc(0, row * LENGTHS), from = gpu_alloc(0, source_bytes);
    uint8_t *source = malloc(source_bytes), *got = malloc(row * LENGTHS);
    uint32_t to_start, from_start, wrong = 0, step = gpu_is_fake ? 41 : 1;
    uint32_t starts = gpu_is_fake ? 3 : STARTS;

    MUST(source && got);
    gpu_pattern(source, 7, 0, source_bytes);
    gpu_put(0, from, source, source_bytes);
    /* A row of 4,192 bytes is a multiple of 16 and of 32: a start says the alignment of every row. */
    for (to_start = 0; to_start < starts; to_start++)
        for (from_start = 0; from_start < starts; from_start += to_start % 4 == 0 ? 1 : 3)
            wrong += (uint32_t)try_starts(to, from, row, source, got, to_start, from_start, step);
    gpu_free(0, to);
    gpu_free(0, from);
    free(source);
    free(got);
    CHECK(wrong == 0);
}

static void strided_items_and_short_last_pieces_are_found(void)
{
    enum { ITEMS = 500 };
    const uint64_t size = (uint64_t)8 << 20;
    uint64_t to = gpu_alloc(0, size), from = gpu_alloc(0, size), state = 99, pieces = 0, at = 0;
    uint8_t *source = malloc(size), *expected = malloc(size), *got = malloc(size);
    struct heft_cuda_item items[ITEMS];
    uint32_t index, piece;

    MUST(source && expected && got);
    gpu_pattern(source, 3, 0, size);
    memset(expected, 0x11, size);
    gpu_put(0, from, source, size);
    gpu_put(0, to, expected, size);
    for (index = 0; index < ITEMS; index++) {
        uint32_t length = (uint32_t)(gpu_random(&state) % 700 + 1),
                 count = (uint32_t)(gpu_random(&state) % 20 + 1);
        uint32_t last = (uint32_t)(gpu_random(&state) % length + 1),
                 gap = (uint32_t)(gpu_random(&state) % 50);
        uint64_t other = gpu_random(&state) % (size - 40000);

        items[index] = (struct heft_cuda_item){.to = to + at,
                                               .from = from + other,
                                               .to_stride_bytes = length + gap,
                                               .from_stride_bytes = 997,
                                               .length_bytes = length,
                                               .last_bytes = last,
                                               .first = pieces};
        for (piece = 0; piece < count; piece++)
            memcpy(expected + at + piece * (length + gap), source + other + piece * 997,
                   piece + 1 == count ? last : length);
        pieces += count;
        at += (uint64_t)count * (length + gap);
    }
    CHECK(copy_list(items, ITEMS, pieces) == 0);
    gpu_get(0, got, to, size);
    CHECK(memcmp(got, expected, size) == 0);
    gpu_free(0, to);
    gpu_free(0, from);
    free(source);
    free(expected);
    free(got);
}

static void digests_are_those_of_the_cpu(void)
{
    const uint64_t size = (uint64_t)4 << 20;
    uint32_t step = gpu_is_fake ? 37 : 1, length, start;
    uint64_t address = gpu_alloc(0, size), count = 0, index, wrong = 0, state = 5;
    struct heft_cuda_place *places = calloc(STARTS * LENGTHS + 2000, sizeof(*places));
    uint64_t *digests = calloc(STARTS * LENGTHS + 2000, sizeof(*digests));
    uint8_t *bytes = malloc(size);

    MUST(places && digests && bytes);
    gpu_pattern(bytes, 1, 0, size);
    gpu_put(0, address, bytes, size);
    for (start = 0; start < STARTS; start++)
        for (length = 0; length < LENGTHS; length += step)
            places[count++] =
                (struct heft_cuda_place){address + start + 32 * (gpu_random(&state) % 30000), length};
    for (index = 0; index < (gpu_is_fake ? 60u : 2000u); index++) {
        uint64_t around = (uint64_t)1024 << gpu_random(&state) % 9;
        uint64_t long_bytes = index % 2 ? HEFT_BLOCK_BYTES : around + gpu_random(&state) % 5 - 2;

        places[count++] =
            (struct heft_cuda_place){address + gpu_random(&state) % (size - long_bytes), long_bytes};
    }
    CHECK(!heft_cuda_digest(0, places, count, digests, &gpu_error));
    for (index = 0; index < count; index++)
        wrong += digests[index] !=
                 heft_hash64(bytes + (places[index].address - address), (size_t)places[index].size_bytes, 0);
    gpu_free(0, address);
    free(places);
    free(digests);
    free(bytes);
    CHECK(wrong == 0);
}

static void bytes_are_read_back_in_pieces(void)
{
    const uint64_t size = ((uint64_t)9 << 20) + 13;
    uint64_t address = gpu_alloc(0, size);
    uint8_t *bytes = malloc(size), *got = calloc(1, size);

    MUST(bytes && got);
    gpu_pattern(bytes, 12, 0, size);
    gpu_put(0, address, bytes, size);
    CHECK(!heft_cuda_read(0, address, got, size, &gpu_error));
    CHECK(memcmp(bytes, got, size) == 0);
    gpu_free(0, address);
    free(bytes);
    free(got);
}

const struct gpu_case gpu_kernel_cases[] = {
    {"kernel: every start and length copied", every_start_and_length_is_copied_exactly, 1},
    {"kernel: strided items", strided_items_and_short_last_pieces_are_found, 1},
    {"kernel: digests equal the CPU's", digests_are_those_of_the_cpu, 1},
    {"kernel: read back", bytes_are_read_back_in_pieces, 1},
};
const size_t gpu_kernel_count = sizeof(gpu_kernel_cases) / sizeof(gpu_kernel_cases[0]);
