/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's pluggable allocator over one arena a GPU: what it hands out is memory that peers can map, in one
 * range of addresses. PyTorch frees memory while its stream may still use it, so what was freed is unmapped
 * only when an event behind it on that stream has come; nobody waits for that, until memory runs out.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "space/cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define WAIT_NS (10 * HEFT_NS_PER_S)
#define NAP_NS 100000

/* Freed, and perhaps still in use on the stream. */
struct freed {
    struct freed *next;
    uint64_t address;
    heft_cu_stream stream;
    heft_cu_event event; /* NULL: the stream was being captured, it takes none yet */
};

struct pool {
    struct heft_device_arena *arena;
    struct freed *freed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool pools[HEFT_CUDA_MAX_DEVICES];

/* The device's pool, with its arena. lock held. */
static struct pool *pool_of(int device, struct heft_error *error)
{
    struct heft_cuda_device info;
    struct pool *pool;

    if (heft_cuda_device_info(device, &info, error)) /* also refuses numbers out of range */
        return NULL;
    pool = &pools[device];
    /* Gaps between what is in use cost addresses, of which there are plenty. */
    if (!pool->arena && heft_device_arena_create(device, 4 * info.total_bytes, &pool->arena, error))
        return NULL;
    return pool;
}

static void record(const struct heft_cu *cu, struct freed *freed)
{
    if (cu->event_create(&freed->event, HEFT_CU_EVENT_DISABLE_TIMING)) {
        freed->event = NULL;
    } else if (cu->event_record(freed->event, freed->stream)) {
        (void)cu->event_destroy(freed->event);
        freed->event = NULL;
    }
}

/* Unmaps what nothing uses any more; how many remain. lock held. */
static uint32_t sweep(struct pool *pool, int device)
{
    const struct heft_cu *cu = heft_cuda_loaded();
    struct freed **at = &pool->freed, *freed;
    uint32_t left = 0;

    if (!*at || heft_cuda_enter(device, NULL))
        return 0;
    while ((freed = *at) != NULL) {
        if (!freed->event)
            record(cu, freed);
        if (!freed->event || cu->event_query(freed->event) == HEFT_CU_NOT_READY) {
            at = &freed->next;
            left++;
            continue;
        }
        *at = freed->next;
        (void)cu->event_destroy(freed->event);
        (void)heft_device_arena_free(pool->arena, freed->address, NULL);
        free(freed);
    }
    heft_cuda_leave();
    return left;
}

static int alloc_locked(struct pool *pool, int device, uint64_t size_bytes, uint64_t *address_out,
                        struct heft_error *error)
{
    uint64_t end_ns = heft_now_ns() + WAIT_NS;
    struct timespec nap = {0, NAP_NS};
    uint32_t left = sweep(pool, device), before;
    int rc;

    for (;;) {
        rc = heft_device_arena_alloc(pool->arena, size_bytes, address_out, error);
        if (rc != HEFT_ERR_NO_MEMORY || !left || heft_now_ns() > end_ns)
            return rc;
        before = left;
        do {
            (void)nanosleep(&nap, NULL);
            left = sweep(pool, device);
        } while (left == before && heft_now_ns() < end_ns);
    }
}

void *heft_torch_alloc(ssize_t size_bytes, int device, void *stream)
{
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t address = 0;
    struct pool *pool;

    (void)stream; /* memory is mapped before it is handed out: it is there for every stream */
    if (size_bytes <= 0)
        return NULL;
    (void)pthread_mutex_lock(&lock);
    pool = pool_of(device, &error);
    if (!pool || alloc_locked(pool, device, (uint64_t)size_bytes, &address, &error)) {
        address = 0;
        heft_log(HEFT_LOG_WARN, "no %lld bytes of GPU %d for PyTorch: %s", (long long)size_bytes, device,
                 error.text);
    }
    (void)pthread_mutex_unlock(&lock);
    return (void *)(uintptr_t)address;
}

void heft_torch_free(void *pointer, ssize_t size_bytes, int device, void *stream)
{
    struct freed *freed;
    struct pool *pool;

    (void)size_bytes;
    if (!pointer)
        return;
    (void)pthread_mutex_lock(&lock);
    pool = pool_of(device, NULL);
    freed = pool ? calloc(1, sizeof(*freed)) : NULL;
    if (freed) {
        *freed = (struct freed){.next = pool->freed, .address = (uintptr_t)pointer, .stream = stream};
        if (!heft_cuda_enter(device, NULL)) {
            record(heft_cuda_loaded(), freed);
            heft_cuda_leave();
        }
        pool->freed = freed;
        (void)sweep(pool, device);
    } else {
        heft_log(HEFT_LOG_WARN, "%p of GPU %d stays allocated: out of memory to note that it was freed",
                 pointer, device);
    }
    (void)pthread_mutex_unlock(&lock);
}

struct heft_device_arena *heft_torch_arena(int device)
{
    struct pool *pool;

    (void)pthread_mutex_lock(&lock);
    pool = pool_of(device, NULL);
    (void)pthread_mutex_unlock(&lock);
    return pool ? pool->arena : NULL;
}
