/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shareable device memory: one range of addresses, physical memory mapped into it in pieces. A peer process
 * maps the same pieces into one range of its own, so that a model of any size is one region. The pieces are
 * few: each travels as a descriptor, and one message carries at most 253.
 */
#include "space/cuda_memory.h"

#include "base/error.h"
#include "space/cuda.h"

#include <inttypes.h>
#include <stdlib.h>

#define PIECE_BYTES ((uint64_t)1 << 30)

struct heft_device_memory {
    struct heft_device_memory_info info;
    uint64_t reserved_bytes;
    uint64_t mapped_bytes, piece_bytes;
};

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

int heft_cuda_grant(const struct heft_cu *cu, int device, uint64_t address, uint64_t bytes)
{
    struct heft_cu_access access = {.location = {HEFT_CU_LOCATION_DEVICE, device},
                                    .flags = HEFT_CU_ACCESS_READ_WRITE};

    return cu->mem_access(address, bytes, &access, 1);
}

static void unmap(const struct heft_cu *cu, struct heft_device_memory *memory)
{
    uint64_t at, bytes;

    for (at = 0; at < memory->mapped_bytes; at += bytes) {
        bytes =
            memory->mapped_bytes - at < memory->piece_bytes ? memory->mapped_bytes - at : memory->piece_bytes;
        (void)cu->mem_unmap(memory->info.address + at, bytes);
    }
    if (memory->reserved_bytes)
        (void)cu->address_free(memory->info.address, memory->reserved_bytes);
}

static int map_piece(const struct heft_cu *cu, struct heft_device_memory *memory,
                     const struct heft_cu_allocation *allocation, uint64_t bytes, struct heft_error *error)
{
    heft_cu_handle handle;
    heft_cu_result result = cu->mem_create(&handle, bytes, allocation, 0);

    if (result)
        return heft_cuda_error(error, result,
                               "taking %" PRIu64 " of %" PRIu64 " bytes of the memory of GPU %d", bytes,
                               memory->reserved_bytes, memory->info.device);
    result = cu->mem_map(memory->info.address + memory->mapped_bytes, bytes, 0, handle, 0);
    (void)cu->mem_release(handle); /* the mapping keeps it */
    if (result)
        return heft_cuda_error(error, result, "mapping %" PRIu64 " bytes of GPU %d", bytes,
                               memory->info.device);
    memory->mapped_bytes += bytes;
    return HEFT_OK;
}

/* Inside enter(device). */
static int map_all(const struct heft_cu *cu, struct heft_device_memory *memory, uint64_t piece_bytes,
                   struct heft_error *error)
{
    struct heft_cu_allocation allocation = {.type = HEFT_CU_ALLOCATION_PINNED,
                                            .handle_types = HEFT_CU_HANDLE_POSIX_FD,
                                            .location = {HEFT_CU_LOCATION_DEVICE, memory->info.device}};
    heft_cu_pointer address = 0;
    size_t granularity = 0;
    uint64_t total, piece;
    heft_cu_result result;
    int rc;

    result = cu->mem_granularity(&granularity, &allocation, HEFT_CU_GRANULARITY_RECOMMENDED);
    if (result || granularity == 0)
        return heft_cuda_error(error, result, "asking for the page size of GPU %d", memory->info.device);
    total = round_up(memory->info.length_bytes, granularity);
    piece = round_up(piece_bytes ? piece_bytes : PIECE_BYTES, granularity);
    if (total / piece >= HEFT_DEVICE_MEMORY_MAX_PIECES)
        piece = round_up(total / HEFT_DEVICE_MEMORY_MAX_PIECES + 1, granularity);
    memory->info.page_bytes = granularity;
    memory->piece_bytes = piece;
    result = cu->address_reserve(&address, total, 0, 0, 0);
    if (result)
        return heft_cuda_error(error, result, "taking %" PRIu64 " bytes of device addresses", total);
    memory->info.address = address;
    memory->reserved_bytes = total;
    while (memory->mapped_bytes < total) {
        uint64_t left = total - memory->mapped_bytes;

        rc = map_piece(cu, memory, &allocation, left < piece ? left : piece, error);
        if (rc)
            return rc;
    }
    result = heft_cuda_grant(cu, memory->info.device, address, total);
    return result ? heft_cuda_error(error, result, "opening %" PRIu64 " bytes of GPU %d to use", total,
                                    memory->info.device)
                  : HEFT_OK;
}

int heft_cuda_sharing_device(int device, const struct heft_cu **cu_out, struct heft_cuda_device *info_out,
                             struct heft_error *error)
{
    int rc = heft_cuda_load(cu_out, error);

    if (!rc)
        rc = heft_cuda_device_info(device, info_out, error);
    if (rc)
        return rc;
    if (!info_out->shares_fds)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                              "GPU %d (%s) has no virtual memory management that descriptors can share; "
                              "R450 or a newer driver and a GPU that has it are needed",
                              device, info_out->name);
    return HEFT_OK;
}

int heft_device_memory_alloc_pieces(int device, uint64_t length_bytes, uint64_t piece_bytes,
                                    struct heft_device_memory **memory_out, struct heft_error *error)
{
    struct heft_device_memory *memory;
    struct heft_cuda_device info;
    const struct heft_cu *cu;
    int rc = heft_cuda_sharing_device(device, &cu, &info, error);

    if (rc)
        return rc;
    if (length_bytes > info.total_bytes)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY,
                              "%" PRIu64 " bytes are wanted on GPU %d (%s), which has %" PRIu64, length_bytes,
                              device, info.name, info.total_bytes);
    memory = calloc(1, sizeof(*memory));
    if (!memory)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a memory's own record");
    memory->info.length_bytes = length_bytes;
    memory->info.device = device;
    memory->info.kind = "device, shareable";
    rc = heft_cuda_enter(device, error);
    if (!rc) {
        rc = length_bytes > 0 ? map_all(cu, memory, piece_bytes, error) : HEFT_OK;
        if (rc)
            unmap(cu, memory);
        heft_cuda_leave();
    }
    if (rc) {
        free(memory);
        return rc;
    }
    *memory_out = memory;
    return rc;
}

int heft_device_memory_alloc(int device, uint64_t length_bytes, uint32_t flags,
                             struct heft_device_memory **memory_out, struct heft_error *error)
{
    if (!memory_out || flags)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "heft_device_memory_alloc: unknown flags 0x%x, or no output", flags);
    return heft_device_memory_alloc_pieces(device, length_bytes, 0, memory_out, error);
}

void heft_device_memory_free(struct heft_device_memory *memory)
{
    const struct heft_cu *cu;

    if (!memory)
        return;
    if (memory->reserved_bytes && !heft_cuda_load(&cu, NULL) && !heft_cuda_enter(memory->info.device, NULL)) {
        unmap(cu, memory);
        heft_cuda_leave();
    }
    free(memory);
}

void heft_device_memory_get_info(const struct heft_device_memory *memory,
                                 struct heft_device_memory_info *info_out)
{
    *info_out = memory->info;
}
