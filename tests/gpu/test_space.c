/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda space: devices, contexts, what an address is, shareable device memory. */
#include "gpu/gpu.h"

#include "space/cuda_memory.h"

#include <string.h>

#define MIB ((uint64_t)1 << 20)

static void devices_are_found_by_number_and_uuid(void)
{
    struct heft_cuda_device info;
    char text[80];
    int device = -1, index;

    for (index = 0; index < heft_cuda_device_count(); index++) {
        CHECK(!heft_cuda_device_info(index, &info, &gpu_error));
        (void)snprintf(text, sizeof(text), "cuda:%s", info.uuid_text);
        CHECK(!heft_cuda_parse_device(text, &device, &gpu_error) && device == index);
        CHECK(heft_cuda_device_by_uuid(info.uuid) == index);
        CHECK(info.total_bytes > 0 && info.shares_fds);
    }
    CHECK(heft_cuda_parse_device("cuda:63", &device, &gpu_error) == HEFT_ERR_UNSUPPORTED);
    CHECK(heft_cuda_parse_device("cuda:", &device, &gpu_error) == HEFT_ERR_INVALID);
    CHECK(heft_cuda_parse_device("cuda:1x", &device, &gpu_error) == HEFT_ERR_INVALID);
    CHECK(heft_cuda_parse_device("gpu", &device, &gpu_error) == HEFT_ERR_INVALID);
    CHECK(heft_cuda_parse_device("cuda:GPU-1", &device, &gpu_error) == HEFT_ERR_UNSUPPORTED);
}

static void pointers_are_told_apart(void)
{
    struct heft_cuda_pointer pointer;
    struct heft_device_memory *memory;
    struct heft_device_memory_info info;
    void *pinned = NULL;
    char plain[64];
    uint64_t address = gpu_alloc(0, 3 * MIB + 5), buffer_id;

    heft_cuda_query(address + MIB, &pointer);
    CHECK(pointer.kind == HEFT_CUDA_PLAIN && pointer.device == 0 && pointer.start == address);
    CHECK(pointer.size_bytes >= 3 * MIB + 5 && pointer.exports_ipc);
    buffer_id = pointer.buffer_id;
    CHECK(buffer_id != 0);
    gpu_free(0, address);
    address = gpu_alloc(0, 3 * MIB + 5); /* maybe at the same place, and other memory all the same */
    heft_cuda_query(address, &pointer);
    CHECK(pointer.buffer_id != 0 && pointer.buffer_id != buffer_id);
    gpu_free(0, address);
    heft_cuda_query((uintptr_t)plain, &pointer);
    CHECK(pointer.kind == HEFT_CUDA_PAGEABLE);
    CHECK(!heft_cuda_enter(0, &gpu_error));
    CHECK(!gpu_cu->host_alloc(&pinned, MIB, HEFT_CU_HOST_ALLOC_PORTABLE));
    heft_cuda_leave();
    heft_cuda_query((uintptr_t)pinned + 4096, &pointer);
    CHECK(pointer.kind == HEFT_CUDA_PINNED && pointer.start == (uintptr_t)pinned &&
          pointer.size_bytes >= MIB);
    CHECK(!heft_cuda_enter(0, &gpu_error));
    CHECK(!gpu_cu->host_free(pinned));
    heft_cuda_leave();
    CHECK(!heft_device_memory_alloc_pieces(0, 9 * MIB, 4 * MIB, &memory, &gpu_error));
    heft_device_memory_get_info(memory, &info);
    heft_cuda_query(info.address + 5 * MIB, &pointer);
    CHECK(pointer.kind == HEFT_CUDA_VMM && pointer.exports_fd);
    CHECK(pointer.start == info.address + 4 * MIB && pointer.size_bytes == 4 * MIB);
    heft_device_memory_free(memory);
}

static void memory_comes_back_when_it_is_freed(void)
{
    uint64_t before = 0, after = 0;
    int index;

    for (index = 0; index < 22; index++) {
        struct heft_device_memory *memory;

        CHECK(!heft_device_memory_alloc_pieces(0, 64 * MIB + (uint64_t)index, 16 * MIB, &memory, &gpu_error));
        heft_device_memory_free(memory);
        CHECK(!heft_cuda_free_bytes(0, index == 1 ? &before : &after, &gpu_error));
    }
    CHECK(before == after);
}

static void more_memory_than_there_is_is_refused_and_nothing_is_lost(void)
{
    struct heft_device_memory *memory = NULL;
    struct heft_cuda_device device;
    uint64_t before = 0, after = 0;

    CHECK(!heft_cuda_device_info(0, &device, &gpu_error));
    CHECK(!heft_cuda_free_bytes(0, &before, &gpu_error));
    /* Within the GPU's total, so that pieces are taken until one is refused. */
    gpu_failed = 0;
    uint64_t held = gpu_alloc(0, before / 2);
    CHECK(heft_device_memory_alloc(0, device.total_bytes - device.total_bytes / 8, 0, &memory, &gpu_error) ==
          HEFT_ERR_NO_MEMORY);
    CHECK(strstr(gpu_error.text, "memory of GPU 0"));
    gpu_free(0, held);
    CHECK(!heft_cuda_free_bytes(0, &after, &gpu_error));
    CHECK(before == after && !memory);
    CHECK(heft_device_memory_alloc(0, UINT64_MAX / 2, 0, &memory, &gpu_error) == HEFT_ERR_NO_MEMORY);
    CHECK(heft_device_memory_alloc(63, 4096, 0, &memory, &gpu_error) == HEFT_ERR_UNSUPPORTED);
}

static void empty_memory_is_legal(void)
{
    struct heft_device_memory *memory;

    CHECK(!heft_device_memory_alloc(0, 0, 0, &memory, &gpu_error));
    heft_device_memory_free(memory);
    heft_device_memory_free(NULL);
}

/* Pieces come and go; what is left keeps its bytes, a gap is filled again, and the whole is one region. */
static void an_arena_gives_back_and_fills_its_gaps(void)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_device_arena_info info;
    struct heft_device_arena *arena;
    struct heft_region *region;
    struct heft_agent *agent;
    uint64_t addresses[5], again = 0, before, during, after, round;
    uint8_t bytes[3000], got[3000];

    CHECK(!heft_cuda_free_bytes(0, &before, &gpu_error));
    CHECK(!heft_device_arena_create(0, 64 * MIB, &arena, &gpu_error));
    for (round = 0; round < 5; round++) {
        CHECK(!heft_device_arena_alloc(arena, 2 * MIB + 1, &addresses[round], &gpu_error));
        gpu_pattern(bytes, round, 0, sizeof(bytes));
        gpu_put(0, addresses[round] + MIB, bytes, sizeof(bytes));
    }
    heft_device_arena_get_info(arena, &info);
    CHECK(info.whole_bytes == info.used_bytes && info.used_bytes == info.committed_bytes);
    CHECK(addresses[0] == info.address && info.committed_bytes >= 10 * MIB);
    CHECK(!heft_device_arena_free(arena, addresses[1], &gpu_error));
    CHECK(!heft_device_arena_free(arena, addresses[3], &gpu_error));
    CHECK(heft_device_arena_free(arena, addresses[3], &gpu_error) == HEFT_ERR_NOT_FOUND);
    CHECK(heft_device_arena_free(arena, addresses[2] + 1, &gpu_error) == HEFT_ERR_NOT_FOUND);
    CHECK(!heft_cuda_free_bytes(0, &during, &gpu_error));
    CHECK(before - during == info.committed_bytes / 5 * 3);
    heft_device_arena_get_info(arena, &info);
    CHECK(info.whole_bytes == addresses[1] - addresses[0] && info.used_bytes > info.committed_bytes);
    CHECK(!heft_device_arena_alloc(arena, 2 * MIB + 1, &again, &gpu_error) && again == addresses[1]);
    CHECK(!heft_device_arena_alloc(arena, 20 * MIB, &addresses[3], &gpu_error));
    CHECK(addresses[3] > addresses[4]); /* it did not fit into the gap */
    CHECK(heft_device_arena_alloc(arena, 60 * MIB, &again, &gpu_error) == HEFT_ERR_NO_MEMORY);
    CHECK(heft_device_arena_alloc(arena, 65 * MIB, &again, &gpu_error) == HEFT_ERR_RANGE);
    CHECK(heft_device_arena_alloc(arena, 0, &again, &gpu_error) == HEFT_ERR_RANGE);
    heft_device_arena_get_info(arena, &info);
    CHECK(!heft_agent_open(NULL, &agent, &gpu_error));
    options.space = HEFT_SPACE_CUDA;
    options.flags = HEFT_REGION_REMOTE_READ;
    options.address = (void *)(uintptr_t)info.address;
    CHECK(!heft_device_arena_alloc(arena, 2 * MIB + 1, &again, &gpu_error)); /* fills it */
    heft_device_arena_get_info(arena, &info);
    CHECK(info.whole_bytes == info.used_bytes);
    options.length_bytes = info.whole_bytes;
    CHECK(!heft_region_register(agent, &options, &region, &gpu_error));
    for (round = 0; round < 5; round += 2) {
        gpu_pattern(bytes, round, 0, sizeof(bytes));
        gpu_get(0, got, addresses[round] + MIB, sizeof(got));
        CHECK(memcmp(bytes, got, sizeof(got)) == 0);
    }
    CHECK(!heft_region_deregister(region, &gpu_error));
    CHECK(!heft_agent_close(agent, &gpu_error));
    heft_device_arena_destroy(arena);
    CHECK(!heft_cuda_free_bytes(0, &after, &gpu_error));
    CHECK(after == before);
}

/* What is freed while a stream of the caller works stays mapped until that is over, and is used again then.
 */
static void torchs_allocator_frees_behind_the_stream(void)
{
    struct heft_device_arena *arena = heft_torch_arena(0);
    struct heft_device_arena_info info;
    heft_cu_stream stream;
    uint8_t *got = malloc(4 * MIB);
    void *word = NULL, *first, *second, *again;
    uint64_t committed;

    CHECK(arena && got && !heft_torch_arena(-1) && !heft_torch_arena(9999));
    CHECK(!heft_torch_alloc(0, 0, NULL) && !heft_torch_alloc(-1, 0, NULL) && !heft_torch_alloc(1, -1, NULL));
    CHECK(!heft_torch_alloc(((ssize_t)1 << 46), 0, NULL));
    first = heft_torch_alloc(4 * MIB, 0, NULL);
    second = heft_torch_alloc(4 * MIB, 0, NULL);
    CHECK(first && second && first != second);
    gpu_pattern(got, 3, 0, 4 * MIB);
    gpu_put(0, (uintptr_t)first, got, 4 * MIB);
    heft_device_arena_get_info(arena, &info);
    committed = info.committed_bytes;
    CHECK(info.whole_bytes >= 8 * MIB && info.address == (uintptr_t)first);
    MUST(!heft_cuda_enter(0, &gpu_error));
    MUST(!gpu_cu->host_alloc(&word, 64, HEFT_CU_HOST_ALLOC_PORTABLE | HEFT_CU_HOST_ALLOC_MAPPED));
    *(uint32_t *)word = 0;
    MUST(!gpu_cu->stream_create(&stream, HEFT_CU_STREAM_NON_BLOCKING));
    MUST(!gpu_cu->stream_wait(stream, (uintptr_t)word, 1, HEFT_CU_STREAM_WAIT_GEQ));
    MUST(!gpu_cu->memcpy_async((uintptr_t)second, (uintptr_t)first, 4 * MIB, stream));
    heft_cuda_leave();
    heft_torch_free(first, 4 * MIB, 0, stream);
    again = heft_torch_alloc(4 * MIB, 0, stream);
    heft_device_arena_get_info(arena, &info);
    CHECK(again && again != first && info.committed_bytes == committed + 4 * MIB);
    __atomic_store_n((uint32_t *)word, 1, __ATOMIC_RELEASE);
    MUST(!heft_cuda_enter(0, &gpu_error));
    while (gpu_cu->stream_query(stream) == HEFT_CU_NOT_READY)
        ;
    memset(got, 0, 4 * MIB);
    gpu_get(0, got, (uintptr_t)second, 4 * MIB);
    CHECK(got[12345] == gpu_pattern_byte(3, 12345) && got[4 * MIB - 1] == gpu_pattern_byte(3, 4 * MIB - 1));
    heft_torch_free(again, 4 * MIB, 0, NULL);
    heft_torch_free(second, 4 * MIB, 0, stream);
    /* Each call looks at what was freed before; the last small one itself may remain. */
    for (int round = 0; round < 1000; round++) {
        heft_torch_free(heft_torch_alloc(1, 0, stream), 1, 0, stream);
        while (gpu_cu->stream_query(stream) == HEFT_CU_NOT_READY)
            ;
        heft_device_arena_get_info(arena, &info);
        if (info.committed_bytes <= info.page_bytes)
            break;
    }
    CHECK(info.committed_bytes <= info.page_bytes);
    MUST(!gpu_cu->stream_destroy(stream) && !gpu_cu->host_free(word));
    heft_cuda_leave();
    free(got);
}

const struct gpu_case gpu_space_cases[] = {
    {"space: devices by number and uuid", devices_are_found_by_number_and_uuid, 1},
    {"space: pointers are told apart", pointers_are_told_apart, 1},
    {"space: freed memory is back", memory_comes_back_when_it_is_freed, 1},
    {"space: too much memory is refused", more_memory_than_there_is_is_refused_and_nothing_is_lost, 1},
    {"space: empty memory", empty_memory_is_legal, 1},
    {"space: torch's allocator frees behind the stream", torchs_allocator_frees_behind_the_stream, 1},
    {"space: an arena gives back and fills its gaps", an_arena_gives_back_and_fills_its_gaps, 1},
};
const size_t gpu_space_count = sizeof(gpu_space_cases) / sizeof(gpu_space_cases[0]);
