/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A flight's runs to the GPU: by the copy engines or, all in one launch, by our kernel, and a mark behind
 * them by which the watcher sees that they are over: a word of pinned memory that the stream writes (looking
 * at it costs nothing and takes none of the driver's locks), or an event where the driver is too old for
 * that.
 */
#include "transport/cuda/cuda.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES ((uint64_t)2 << 20)

static heft_cu_result engine_copies(struct cuda_flight *flight, heft_cu_stream stream, int all,
                                    uint64_t *started)
{
    const struct heft_cu *cu = flight->transport->cu;
    heft_cu_result result = HEFT_CU_SUCCESS;
    uint64_t piece;
    size_t index;

    for (index = 0; index < flight->run_count && !result; index++) {
        const struct cuda_run *run = &flight->runs[index];

        if (!all && run->kernels)
            continue;
        for (piece = 0; piece < run->count && !result; piece++) {
            result = cu->memcpy_async(run->to + piece * run->to_stride_bytes,
                                      run->from + piece * run->from_stride_bytes, run->length_bytes, stream);
            *started += !result;
        }
    }
    return result;
}

/* A run as items: pieces longer than a warp should copy are cut. */
void cuda_items_add(struct heft_cuda_item *items, size_t *count, uint64_t *pieces, const struct cuda_run *run)
{
    uint64_t index;

    if (run->length_bytes <= CUDA_WARP_BYTES) {
        items[(*count)++] = (struct heft_cuda_item){.to = run->to,
                                                    .from = run->from,
                                                    .to_stride_bytes = run->to_stride_bytes,
                                                    .from_stride_bytes = run->from_stride_bytes,
                                                    .length_bytes = (uint32_t)run->length_bytes,
                                                    .last_bytes = (uint32_t)run->length_bytes,
                                                    .first = *pieces};
        *pieces += run->count;
        return;
    }
    for (index = 0; index < run->count; index++) {
        uint64_t cuts = (run->length_bytes + CUDA_WARP_BYTES - 1) / CUDA_WARP_BYTES;

        items[(*count)++] = (struct heft_cuda_item){
            .to = run->to + index * run->to_stride_bytes,
            .from = run->from + index * run->from_stride_bytes,
            .to_stride_bytes = CUDA_WARP_BYTES,
            .from_stride_bytes = CUDA_WARP_BYTES,
            .length_bytes = (uint32_t)CUDA_WARP_BYTES,
            .last_bytes = (uint32_t)(run->length_bytes - (cuts - 1) * CUDA_WARP_BYTES),
            .first = *pieces};
        *pieces += cuts;
    }
}

heft_cu_result cuda_items_make(struct cuda_flight *flight)
{
    void *pinned = flight->items;
    heft_cu_result result = HEFT_CU_SUCCESS;

    if (!flight->items)
        result = flight->transport->cu->host_alloc(&pinned, CUDA_ITEMS * sizeof(*flight->items),
                                                   HEFT_CU_HOST_ALLOC_PORTABLE);
    if (!result)
        flight->items = pinned;
    return result;
}

heft_cu_result cuda_items_upload(struct cuda_flight *flight, heft_cu_pointer to, uint64_t count,
                                 heft_cu_stream stream)
{
    return flight->transport->cu->memcpy_async(to, (uintptr_t)flight->items, count * sizeof(*flight->items),
                                               stream);
}

heft_cu_result cuda_items_launch(const struct cuda_flight *flight, heft_cu_pointer items, uint64_t count,
                                 uint64_t pieces, heft_cu_stream stream)
{
    const struct cuda_transport *transport = flight->transport;
    void *parameters[3] = {&items, &count, &pieces};
    uint64_t blocks = (pieces + HEFT_CUDA_COPY_THREADS / 32 - 1) / (HEFT_CUDA_COPY_THREADS / 32);

    if (blocks > transport->blocks)
        blocks = transport->blocks;
    return transport->cu->launch(transport->lanes[flight->device].kernels.copy, (unsigned)blocks, 1, 1,
                                 HEFT_CUDA_COPY_THREADS, 1, 1, 0, stream, parameters, NULL);
}

static heft_cu_result kernel_copies(struct cuda_flight *flight, heft_cu_stream stream, uint64_t *started)
{
    heft_cu_pointer *device_items = &flight->device_items[flight->device];
    heft_cu_result result = cuda_items_make(flight);
    uint64_t pieces = 0;
    size_t count = 0, index;

    if (!result && !*device_items)
        result = flight->transport->cu->mem_alloc(device_items, CUDA_ITEMS * sizeof(*flight->items));
    if (result)
        return result;
    for (index = 0; index < flight->run_count; index++)
        if (flight->runs[index].kernels)
            cuda_items_add(flight->items, &count, &pieces, &flight->runs[index]);
    HEFT_ASSERT(count <= CUDA_ITEMS);
    result = cuda_items_upload(flight, *device_items, count, stream);
    *started += !result;
    if (!result)
        result = cuda_items_launch(flight, *device_items, count, pieces, stream);
    return result;
}

/* Many small pieces: the kernel; few or large ones: the engines. */
static int wants_kernel(const struct cuda_flight *flight, const struct cuda_lane *lane)
{
    uint64_t pieces = 0, bytes = 0;
    size_t index;

    for (index = 0; index < flight->run_count; index++)
        if (flight->runs[index].kernels) {
            pieces += flight->runs[index].count;
            bytes += flight->runs[index].count * flight->runs[index].length_bytes;
        }
    return lane->has_kernels && pieces >= CUDA_KERNEL_FROM_PIECES && bytes / pieces < CUDA_KERNEL_BELOW_BYTES;
}

heft_cu_stream cuda_flight_stream(const struct cuda_flight *flight)
{
    const struct cuda_lane *lane = &flight->transport->lanes[flight->device];
    size_t which = (size_t)(flight - flight->transport->flights) % 2;

    if (flight->sort == CUDA_ORDERED)
        return flight->own[flight->device];
    return flight->outward ? lane->out[which] : flight->inward ? lane->in[which] : lane->across[which];
}

/* Words of pinned memory that streams write, one for each flight. lock held. */
static heft_cu_result make_words(struct cuda_transport *transport)
{
    void *words = NULL;
    const size_t bytes = sizeof(transport->flights) / sizeof(transport->flights[0]) * CUDA_WORD_BYTES;
    heft_cu_result result;

    if (transport->words)
        return HEFT_CU_SUCCESS;
    result =
        transport->cu->host_alloc(&words, bytes, HEFT_CU_HOST_ALLOC_PORTABLE | HEFT_CU_HOST_ALLOC_MAPPED);
    if (!result) {
        memset(words, 0, bytes);
        transport->words = words;
    }
    return result;
}

int cuda_lane_make(struct cuda_transport *transport, int device, struct heft_error *error)
{
    struct cuda_lane *lane = &transport->lanes[device];
    const struct heft_cu *cu = transport->cu;
    heft_cu_result result = HEFT_CU_SUCCESS;
    int which;

    if (__atomic_load_n(&lane->ready, __ATOMIC_ACQUIRE))
        return HEFT_OK;
    (void)pthread_mutex_lock(&transport->lock);
    if (!lane->ready) {
        result = make_words(transport);
        for (which = 0; which < 2 && !result; which++) {
            result = cu->stream_create(&lane->in[which], HEFT_CU_STREAM_NON_BLOCKING);
            if (!result)
                result = cu->stream_create(&lane->out[which], HEFT_CU_STREAM_NON_BLOCKING);
            if (!result)
                result = cu->stream_create(&lane->across[which], HEFT_CU_STREAM_NON_BLOCKING);
        }
        lane->has_kernels = heft_cuda_kernels(device, &lane->kernels, NULL) == HEFT_OK;
        lane->writes_words = transport->words && cu->stream_write;
        if (!result)
            __atomic_store_n(&lane->ready, 1, __ATOMIC_RELEASE);
    }
    (void)pthread_mutex_unlock(&transport->lock);
    return result ? heft_cuda_error(error, result, "making streams on GPU %d", device) : HEFT_OK;
}

/*
 * A slot of pinned memory. Pinning pages that are there already, huge ones where they can be had, costs a
 * fifth of what the driver takes to allocate pinned ones, and the workers do it side by side.
 */
static heft_cu_result make_slot(struct cuda_flight *flight)
{
    const struct heft_cu *cu = flight->transport->cu;
    uint8_t *mapped = mmap(NULL, CUDA_SLOT_BYTES + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    heft_cu_result result;
    void *pinned = NULL;
    uint8_t *slot;

    if (mapped != MAP_FAILED) {
        slot = mapped + (-(uintptr_t)mapped & (HUGE_PAGE_BYTES - 1));
        (void)madvise(slot, CUDA_SLOT_BYTES, MADV_HUGEPAGE);
        memset(slot, 0, CUDA_SLOT_BYTES);
        if (!cu->host_register(slot, CUDA_SLOT_BYTES, HEFT_CU_HOST_REGISTER_PORTABLE)) {
            flight->slot = slot;
            flight->slot_map = mapped;
            return HEFT_CU_SUCCESS;
        }
        (void)munmap(mapped, CUDA_SLOT_BYTES + HUGE_PAGE_BYTES);
    }
    result = cu->host_alloc(&pinned, CUDA_SLOT_BYTES, HEFT_CU_HOST_ALLOC_PORTABLE);
    if (!result)
        flight->slot = pinned;
    return result;
}

void cuda_flight_free_slot(const struct heft_cu *cu, struct cuda_flight *flight)
{
    if (flight->slot_map) {
        (void)cu->host_unregister(flight->slot);
        (void)munmap(flight->slot_map, CUDA_SLOT_BYTES + HUGE_PAGE_BYTES);
    } else if (flight->slot) {
        (void)cu->host_free(flight->slot);
    }
    flight->slot = flight->slot_map = NULL;
}

int cuda_flight_make(struct cuda_flight *flight, struct heft_error *error)
{
    heft_cu_result result = HEFT_CU_SUCCESS;

    if (!flight->runs)
        flight->runs = calloc(CUDA_DIRECT_CUTS, sizeof(*flight->runs));
    if (!flight->runs)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for copies");
    if (flight->sort == CUDA_STAGED && !flight->slot)
        result = make_slot(flight);
    return result ? heft_cuda_error(error, result, "taking %llu bytes of pinned memory (see ulimit -l)",
                                    (unsigned long long)CUDA_SLOT_BYTES)
                  : HEFT_OK;
}

int cuda_flight_mark(struct cuda_flight *flight, heft_cu_stream stream, struct heft_error *error)
{
    struct cuda_transport *transport = flight->transport;
    struct cuda_lane *lane = &transport->lanes[flight->device];
    heft_cu_event *event = &flight->events[flight->device];
    heft_cu_result result;

    flight->stream = stream;
    flight->word = NULL;
    if (__atomic_load_n(&lane->writes_words, __ATOMIC_RELAXED)) {
        uint32_t *word =
            (uint32_t *)(void *)(transport->words + (size_t)(flight - transport->flights) * CUDA_WORD_BYTES);

        result = transport->cu->stream_write(stream, (uintptr_t)word, ++flight->ticket, 0);
        if (!result) {
            flight->word = word;
            return HEFT_OK;
        }
        __atomic_store_n(&lane->writes_words, 0,
                         __ATOMIC_RELAXED); /* a driver that can't: events from now on */
    }
    result = *event ? HEFT_CU_SUCCESS : transport->cu->event_create(event, HEFT_CU_EVENT_DISABLE_TIMING);
    if (!result)
        result = transport->cu->event_record(*event, stream);
    return result ? heft_cuda_error(error, result, "watching copies on GPU %d", flight->device) : HEFT_OK;
}

int cuda_flight_launch(struct cuda_flight *flight, struct heft_error *error)
{
    const struct cuda_lane *lane = &flight->transport->lanes[flight->device];
    heft_cu_stream stream = cuda_flight_stream(flight);
    int kernel = wants_kernel(flight, lane);
    heft_cu_result result = cuda_order_wait(flight, stream);
    uint64_t started = 0;

    if (!result && kernel)
        result = kernel_copies(flight, stream, &started);
    if (!result)
        result = engine_copies(flight, stream, !kernel, &started);
    if (!result)
        result = cuda_raise(flight, stream);
    if (result) {
        flight->status = heft_cuda_error(&flight->error, result, "copying %llu bytes on GPU %d",
                                         (unsigned long long)flight->claim.bytes, flight->device);
        if (started == 0) {
            *error = flight->error;
            return flight->status;
        }
    }
    return cuda_flight_mark(flight, stream, error);
}
