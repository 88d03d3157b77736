/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas of device memory: a large range of addresses is taken at once and costs nothing; each allocation
 * maps physical memory of its own into the first gap that is large enough, and freeing it gives that memory
 * back. So the used part stays one range, which is one region however many allocations lie in it.
 */
#include "space/cuda_memory.h"

#include "base/error.h"
#include "space/cuda.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

struct piece {
    struct piece *next; /* by address */
    uint64_t offset_bytes, size_bytes;
};

struct heft_device_arena {
    const struct heft_cu *cu;
    int device;
    uint64_t page_bytes, address, reserved_bytes;
    pthread_mutex_t lock; /* the rest */
    struct piece *pieces;
    uint64_t committed_bytes;
};

static struct heft_cu_allocation allocation_of(int device)
{
    return (struct heft_cu_allocation){.type = HEFT_CU_ALLOCATION_PINNED,
                                       .handle_types = HEFT_CU_HANDLE_POSIX_FD,
                                       .location = {HEFT_CU_LOCATION_DEVICE, device}};
}

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Inside enter(device). */
static int reserve(struct heft_device_arena *arena, uint64_t reserve_bytes, struct heft_error *error)
{
    struct heft_cu_allocation allocation = allocation_of(arena->device);
    heft_cu_pointer address = 0;
    size_t granularity = 0;
    heft_cu_result result =
        arena->cu->mem_granularity(&granularity, &allocation, HEFT_CU_GRANULARITY_RECOMMENDED);

    if (result || granularity == 0)
        return heft_cuda_error(error, result, "asking for the page size of GPU %d", arena->device);
    arena->page_bytes = granularity;
    if (reserve_bytes > UINT64_MAX - granularity)
        return heft_error_set(error, HEFT_ERR_RANGE, "%" PRIu64 " bytes of device addresses", reserve_bytes);
    arena->reserved_bytes = round_up(reserve_bytes, granularity);
    result = arena->cu->address_reserve(&address, arena->reserved_bytes, 0, 0, 0);
    if (result)
        return heft_cuda_error(error, result, "taking %" PRIu64 " bytes of device addresses", reserve_bytes);
    arena->address = address;
    return HEFT_OK;
}

int heft_device_arena_create(int device, uint64_t reserve_bytes, struct heft_device_arena **arena_out,
                             struct heft_error *error)
{
    struct heft_device_arena *arena;
    struct heft_cuda_device info;
    const struct heft_cu *cu;
    int rc = heft_cuda_sharing_device(device, &cu, &info, error);

    if (rc)
        return rc;
    if (!arena_out)
        return heft_error_set(error, HEFT_ERR_INVALID, "heft_device_arena_create: no output");
    arena = calloc(1, sizeof(*arena));
    if (!arena)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an arena's own record");
    arena->cu = cu;
    arena->device = device;
    rc = heft_cuda_enter(device, error);
    if (!rc) {
        rc = reserve(arena, reserve_bytes ? reserve_bytes : info.total_bytes, error);
        heft_cuda_leave();
    }
    if (rc) {
        free(arena);
        return rc;
    }
    (void)pthread_mutex_init(&arena->lock, NULL);
    *arena_out = arena;
    return HEFT_OK;
}

/* Physical memory at the piece's place. Inside enter(device). */
static int map_piece(struct heft_device_arena *arena, const struct piece *piece, struct heft_error *error)
{
    struct heft_cu_allocation allocation = allocation_of(arena->device);
    uint64_t at = arena->address + piece->offset_bytes;
    heft_cu_handle handle;
    heft_cu_result result = arena->cu->mem_create(&handle, piece->size_bytes, &allocation, 0);

    if (result)
        return heft_cuda_error(error, result, "taking %" PRIu64 " bytes of the memory of GPU %d",
                               piece->size_bytes, arena->device);
    result = arena->cu->mem_map(at, piece->size_bytes, 0, handle, 0);
    (void)arena->cu->mem_release(handle); /* the mapping keeps it */
    if (result)
        return heft_cuda_error(error, result, "mapping %" PRIu64 " bytes of GPU %d", piece->size_bytes,
                               arena->device);
    result = heft_cuda_grant(arena->cu, arena->device, at, piece->size_bytes);
    if (result) {
        (void)arena->cu->mem_unmap(at, piece->size_bytes);
        return heft_cuda_error(error, result, "opening %" PRIu64 " bytes of GPU %d to use", piece->size_bytes,
                               arena->device);
    }
    return HEFT_OK;
}

int heft_device_arena_alloc(struct heft_device_arena *arena, uint64_t length_bytes, uint64_t *address_out,
                            struct heft_error *error)
{
    struct piece *piece, **at;
    uint64_t offset = 0;
    int rc;

    if (!length_bytes || length_bytes > arena->reserved_bytes)
        return heft_error_set(error, HEFT_ERR_RANGE,
                              "%" PRIu64 " bytes were wanted of an arena of %" PRIu64 " bytes", length_bytes,
                              arena->reserved_bytes);
    piece = calloc(1, sizeof(*piece));
    if (!piece)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an allocation's own record");
    piece->size_bytes = round_up(length_bytes, arena->page_bytes);
    rc = heft_cuda_enter(arena->device, error);
    if (rc) {
        free(piece);
        return rc;
    }
    (void)pthread_mutex_lock(&arena->lock);
    for (at = &arena->pieces; *at && (*at)->offset_bytes - offset < piece->size_bytes; at = &(*at)->next)
        offset = (*at)->offset_bytes + (*at)->size_bytes;
    piece->offset_bytes = offset;
    if (piece->size_bytes > arena->reserved_bytes - offset)
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY,
                            "the arena's addresses have no gap of %" PRIu64 " bytes left: reserve more",
                            piece->size_bytes);
    else
        rc = map_piece(arena, piece, error);
    if (!rc) {
        piece->next = *at;
        *at = piece;
        arena->committed_bytes += piece->size_bytes;
        *address_out = arena->address + offset;
    }
    (void)pthread_mutex_unlock(&arena->lock);
    heft_cuda_leave();
    if (rc)
        free(piece);
    return rc;
}

/* Inside enter(device). */
static void drop(struct heft_device_arena *arena, struct piece *piece)
{
    (void)arena->cu->mem_unmap(arena->address + piece->offset_bytes, piece->size_bytes);
    arena->committed_bytes -= piece->size_bytes;
    free(piece);
}

int heft_device_arena_free(struct heft_device_arena *arena, uint64_t address, struct heft_error *error)
{
    struct piece **at, *piece;
    int rc = heft_cuda_enter(arena->device, error);

    if (rc)
        return rc;
    (void)pthread_mutex_lock(&arena->lock);
    for (at = &arena->pieces; *at && arena->address + (*at)->offset_bytes != address; at = &(*at)->next)
        ;
    piece = *at;
    if (piece) {
        *at = piece->next;
        drop(arena, piece);
    } else {
        rc = heft_error_set(error, HEFT_ERR_NOT_FOUND, "no allocation of this arena begins at 0x%" PRIx64,
                            address);
    }
    (void)pthread_mutex_unlock(&arena->lock);
    heft_cuda_leave();
    return rc;
}

void heft_device_arena_destroy(struct heft_device_arena *arena)
{
    struct piece *piece;

    if (!arena)
        return;
    if (!heft_cuda_enter(arena->device, NULL)) {
        while ((piece = arena->pieces) != NULL) {
            arena->pieces = piece->next;
            drop(arena, piece);
        }
        (void)arena->cu->address_free(arena->address, arena->reserved_bytes);
        heft_cuda_leave();
    }
    (void)pthread_mutex_destroy(&arena->lock);
    free(arena);
}

void heft_device_arena_get_info(struct heft_device_arena *arena, struct heft_device_arena_info *info_out)
{
    struct heft_device_arena_info info = {.address = arena->address,
                                          .reserved_bytes = arena->reserved_bytes,
                                          .page_bytes = arena->page_bytes,
                                          .device = arena->device};
    const struct piece *piece;

    (void)pthread_mutex_lock(&arena->lock);
    info.committed_bytes = arena->committed_bytes;
    for (piece = arena->pieces; piece && piece->offset_bytes == info.whole_bytes; piece = piece->next)
        info.whole_bytes += piece->size_bytes;
    for (piece = arena->pieces; piece; piece = piece->next)
        info.used_bytes = piece->offset_bytes + piece->size_bytes;
    (void)pthread_mutex_unlock(&arena->lock);
    *info_out = info;
}
