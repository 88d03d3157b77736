/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver without a GPU: libcuda.so.1 as far as heft calls it, over files in memory. It is made to find
 * mistakes that a real one forgives or hides:
 *  - a device address can't be touched by the CPU: the range is PROT_NONE, the bytes lie elsewhere;
 *  - nothing on a stream runs before an event behind it is asked for, and then a few steps a query: a buffer
 *    that is used again too early gives wrong bytes;
 *  - calls without a current context, unbalanced pops and memory without access are errors.
 * Descriptors of physical memory are real ones, so that processes share it as they would. The kernels are C.
 */
#include "fake.h"

#include "base/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MEMORIES 4096
#define HANDLES 4096
#define PAGE_BYTES ((size_t)64 << 10)
#define BAD_ADDRESS 700
#define STEPS 2

enum kind { UNUSED, PLAIN, MAPPED, OPENED, PINNED, REGISTERED };

struct memory {
    enum kind kind;
    uint8_t *address, *bytes;
    size_t size, id;
    int fd, device, handle, access;
};

struct step {
    struct step *next;
    int kind; /* 0 copy, 1 event, 2 copy kernel, 3 digests, 4 word set, 5 word awaited, 6 bytes, 7 awaited */
    uint8_t *to;
    const uint8_t *from;
    size_t size;
    heft_cu_event event;
    uint64_t arguments[3];
};

/* What was put on a stream while it was captured, to be put on one again and again. */
struct graph {
    struct step *first, *last;
    int owners; /* the graph, and what was made of it to be launched */
};
struct heft_cu_stream_st {
    int device;
    struct step *first, *last;
    int failed;
    struct graph *graph; /* it is being captured */
};
struct heft_cu_event_st {
    heft_cu_stream stream;
    uint64_t pending;
    uint64_t recorded, reached; /* counts: a wait is for the record before it */
    uint64_t waiters;
    int dropped; /* destroyed, freed when nothing needs it any more */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory memories[MEMORIES];
static struct {
    int fd;
    size_t size;
    int device, refs;
} handles[HANDLES];
static struct heft_cu_stream_st default_streams[DEVICES] = {{.device = 0}, {.device = 1}};
static int module_dummy;
static size_t used[DEVICES], ids;

/* For tests: what is alive (memory, handles). */
int fake_cuda_live(void);
/* Spoils every copy's first byte from now on. */
void fake_cuda_corrupt(int on);
static int corrupt;

int fake_cuda_live(void)
{
    int count = 0, index;

    for (index = 0; index < MEMORIES; index++)
        count += memories[index].kind != UNUSED;
    for (index = 0; index < HANDLES; index++)
        count += handles[index].refs > 0;
    return count;
}

void fake_cuda_corrupt(int on)
{
    corrupt = on;
}

static int running_device; /* under lock: of the stream whose step runs */

static struct memory *find(uint64_t address, size_t size)
{
    int index;

    for (index = 0; index < MEMORIES; index++) {
        struct memory *m = &memories[index];
        uint64_t start = (uintptr_t)m->address;

        if (m->kind != UNUSED && address >= start && address - start < m->size &&
            size <= m->size - (address - start))
            return m;
    }
    return NULL;
}

static struct memory *new_memory(void)
{
    int index;

    for (index = 0; index < MEMORIES; index++)
        if (memories[index].kind == UNUSED)
            return &memories[index];
    abort();
}

/* The bytes behind an address, or NULL. A copy may span several mapped pieces: the caller goes by `*left`. */
static uint8_t *bytes_at(uint64_t address, size_t *left)
{
    int device = running_device;
    struct memory *m = find(address, 1);
    size_t there;

    if (!m)
        return (uint8_t *)(uintptr_t)address; /* pageable */
    if (m->kind == MAPPED && !(m->access >> device & 1))
        return NULL;
    there = m->size - (size_t)(address - (uintptr_t)m->address);
    if (*left > there)
        *left = there;
    return m->bytes + (address - (uintptr_t)m->address);
}

static int copy_bytes(uint64_t to, uint64_t from, size_t size)
{
    while (size > 0) {
        size_t some = size;
        uint8_t *there = bytes_at(to, &some), *here = bytes_at(from, &some);

        if (!there || !here)
            return BAD_ADDRESS;
        memmove(there, here, some);
        if (corrupt)
            there[0] ^= 1;
        to += some;
        from += some;
        size -= some;
    }
    return 0;
}

/* Whole memories that become zero give their pages back: tests have some of gigabytes. */
static int set_bytes(uint64_t to, int value, size_t size)
{
    while (size > 0) {
        size_t some = size, pages;
        uint8_t *there = bytes_at(to, &some);

        if (!there)
            return BAD_ADDRESS;
        pages = some & ~(size_t)4095;
        if (value || (uintptr_t)there % 4096 || !pages || madvise(there, pages, MADV_REMOVE))
            pages = 0;
        memset(there + pages, value, some - pages);
        to += some;
        size -= some;
    }
    return 0;
}

static int run_copy_kernel(const uint64_t *arguments)
{
    uint64_t index, piece, pieces = 0;
    size_t size = arguments[1] * sizeof(struct heft_cuda_item);
    const struct heft_cuda_item *items = (const void *)bytes_at(arguments[0], &size);

    if (!items || size < arguments[1] * sizeof(struct heft_cuda_item))
        return BAD_ADDRESS;
    for (index = 0; index < arguments[1]; index++) {
        const struct heft_cuda_item *item = &items[index];
        uint64_t next = index + 1 < arguments[1] ? items[index + 1].first : arguments[2];

        if (item->first != pieces || next <= item->first)
            return BAD_ADDRESS;
        for (piece = 0; piece < next - item->first; piece++, pieces++)
            if (copy_bytes(item->to + piece * item->to_stride_bytes,
                           item->from + piece * item->from_stride_bytes,
                           item->first + piece + 1 == next ? item->last_bytes : item->length_bytes))
                return BAD_ADDRESS;
    }
    return pieces == arguments[2] ? 0 : BAD_ADDRESS;
}

static int run_digest_kernel(const uint64_t *arguments)
{
    size_t size = arguments[1] * sizeof(struct heft_cuda_place), out = arguments[1] * 8;
    const struct heft_cuda_place *places = (const void *)bytes_at(arguments[0], &size);
    uint64_t *digests = (uint64_t *)(void *)bytes_at(arguments[2], &out), index;

    for (index = 0; index < arguments[1]; index++) {
        uint8_t *block = malloc(places[index].size_bytes + 1);

        if (!block)
            abort();
        for (size_t at = 0; at < places[index].size_bytes;) {
            size_t some = places[index].size_bytes - at;
            const uint8_t *from = bytes_at(places[index].address + at, &some);

            if (!from) {
                free(block);
                return BAD_ADDRESS;
            }
            memcpy(block + at, from, some);
            at += some;
        }
        digests[index] = heft_hash64(block, places[index].size_bytes, 0);
        free(block);
    }
    return 0;
}

static int run_step(heft_cu_stream stream);

/* Nothing runs by itself here: who waits for an event moves the stream that it is on. */
static int has_come(const struct step *step)
{
    heft_cu_event event = step->event;
    int steps;

    for (steps = 0; steps < STEPS && event->reached < step->arguments[0]; steps++)
        if (!run_step(event->stream))
            break;
    return event->reached >= step->arguments[0];
}

static void free_event(heft_cu_event event)
{
    if (event->dropped && !event->pending && !event->waiters)
        free(event);
}

/* Whether what the step waits for has come. */
static int may_run(const struct step *step)
{
    size_t size = step->arguments[1];
    const void *word;
    int64_t ahead;

    if (step->kind == 7)
        return has_come(step);
    if (step->kind != 5)
        return 1;
    word = bytes_at((uintptr_t)step->from, &size);
    if (!word || size < step->arguments[1])
        return 0;
    ahead = step->arguments[1] == 8
                ? (int64_t)(__atomic_load_n((const uint64_t *)word, __ATOMIC_ACQUIRE) - step->arguments[0])
                : (int32_t)(__atomic_load_n((const uint32_t *)word, __ATOMIC_ACQUIRE) -
                            (uint32_t)step->arguments[0]);
    return ahead >= 0;
}

static int write_word(const struct step *step)
{
    size_t size = step->arguments[1];
    void *word = bytes_at((uintptr_t)step->to, &size);

    if (!word || size < step->arguments[1])
        return BAD_ADDRESS;
    if (step->arguments[1] == 8)
        __atomic_store_n((uint64_t *)word, step->arguments[0], __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)word, (uint32_t)step->arguments[0], __ATOMIC_RELEASE);
    return 0;
}

/* 0: the first step still waits. */
static int run_step(heft_cu_stream stream)
{
    struct step *step = stream->first;

    if (!step)
        return 0;
    running_device = stream->device;
    if (!may_run(step))
        return 0;
    running_device = stream->device;
    stream->first = step->next;
    if (!stream->first)
        stream->last = NULL;
    if (step->kind == 0 && !stream->failed)
        stream->failed = copy_bytes((uintptr_t)step->to, (uintptr_t)step->from, step->size);
    else if (step->kind == 1) {
        step->event->pending--;
        step->event->reached++;
        free_event(step->event);
    } else if (step->kind == 7) {
        step->event->waiters--;
        free_event(step->event);
    }
    if (step->kind == 2 && !stream->failed)
        stream->failed = run_copy_kernel(step->arguments);
    else if (step->kind == 3 && !stream->failed)
        stream->failed = run_digest_kernel(step->arguments);
    else if (step->kind == 4 && !stream->failed)
        stream->failed = write_word(step);
    else if (step->kind == 6 && !stream->failed)
        stream->failed = set_bytes((uintptr_t)step->to, (int)step->arguments[0], step->size);
    free(step);
    return 1;
}

static void append(struct step **first, struct step **last, struct step *step)
{
    if (*last)
        (*last)->next = step;
    else
        *first = step;
    *last = step;
}

static heft_cu_result add_step(heft_cu_stream stream, struct step step)
{
    struct step *made = malloc(sizeof(*made));

    stream = stream ? stream : &default_streams[stack[depth - 1]->device];

    if (!made)
        return HEFT_CU_OUT_OF_MEMORY;
    *made = step;
    made->next = NULL;
    if (stream->graph)
        append(&stream->graph->first, &stream->graph->last, made);
    else
        append(&stream->first, &stream->last, made);
    return 0;
}

#define LOCKED(...)                    \
    heft_cu_result rc_;                \
    if (depth == 0)                    \
        return BAD_CONTEXT;            \
    (void)pthread_mutex_lock(&lock);   \
    rc_ = (__VA_ARGS__);               \
    (void)pthread_mutex_unlock(&lock); \
    return rc_

API(cuMemGetInfo_v2)(size_t *free_out, size_t *total_out)
{
    if (depth == 0)
        return BAD_CONTEXT;
    *total_out = fake_total_bytes();
    *free_out = *total_out - used[stack[depth - 1]->device];
    return 0;
}

static heft_cu_result alloc_locked(heft_cu_pointer *pointer_out, size_t bytes)
{
    int device = stack[depth - 1]->device;
    struct memory *m = new_memory();
    size_t size = (bytes + 4095) & ~(size_t)4095;

    if (bytes == 0 || used[device] + size > fake_total_bytes())
        return bytes ? HEFT_CU_OUT_OF_MEMORY : HEFT_CU_INVALID_VALUE;
    *m = (struct memory){
        .kind = PLAIN, .id = ++ids, .size = size, .device = device, .fd = memfd_create("fake", MFD_CLOEXEC)};
    if (m->fd < 0 || ftruncate(m->fd, (off_t)size))
        abort();
    m->address = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    m->bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    used[device] += size;
    *pointer_out = (uintptr_t)m->address;
    return 0;
}
API(cuMemAlloc_v2)(heft_cu_pointer *pointer_out, size_t bytes)
{
    LOCKED(alloc_locked(pointer_out, bytes));
}

static heft_cu_result free_locked(heft_cu_pointer pointer, enum kind kind)
{
    struct memory *m = find(pointer, 1);

    if (!m || m->kind != kind || (uintptr_t)m->address != pointer)
        return HEFT_CU_INVALID_VALUE;
    if (kind == REGISTERED) {
        m->kind = UNUSED;
        return 0;
    }
    if (kind != PINNED) {
        (void)munmap(m->address, m->size);
        (void)close(m->fd);
        if (kind == PLAIN)
            used[m->device] -= m->size;
    }
    (void)munmap(m->bytes, m->size);
    m->kind = UNUSED;
    return 0;
}
API(cuMemFree_v2)(heft_cu_pointer pointer)
{
    LOCKED(free_locked(pointer, PLAIN));
}

static heft_cu_result attribute_locked(void *data_out, int attribute, heft_cu_pointer pointer)
{
    struct memory *m = find(pointer, 1);

    if (!m)
        return HEFT_CU_INVALID_VALUE;
    switch (attribute) {
    case HEFT_CU_POINTER_MEMORY_TYPE:
        *(unsigned *)data_out = m->kind >= PINNED ? HEFT_CU_MEMORY_HOST : HEFT_CU_MEMORY_DEVICE;
        return 0;
    case HEFT_CU_POINTER_MANAGED:
        *(unsigned *)data_out = 0;
        return 0;
    case HEFT_CU_POINTER_DEVICE:
        *(int *)data_out = m->device;
        return 0;
    case HEFT_CU_POINTER_LEGACY_IPC:
        *(unsigned *)data_out = m->kind == PLAIN;
        return 0;
    case HEFT_CU_POINTER_RANGE_START:
    case HEFT_CU_POINTER_MAPPING_START:
        *(heft_cu_pointer *)data_out = (uintptr_t)m->address;
        return 0;
    case HEFT_CU_POINTER_RANGE_SIZE:
    case HEFT_CU_POINTER_MAPPING_SIZE:
        *(size_t *)data_out = m->size;
        return 0;
    case HEFT_CU_POINTER_BUFFER_ID:
    case HEFT_CU_POINTER_HANDLE_TYPES:
        *(size_t *)data_out = attribute == HEFT_CU_POINTER_BUFFER_ID ? m->id : m->kind == MAPPED;
        return 0;
    default:
        return HEFT_CU_INVALID_VALUE;
    }
}
API(cuPointerGetAttribute)(void *data_out, int attribute, heft_cu_pointer pointer)
{
    heft_cu_result rc;

    (void)pthread_mutex_lock(&lock);
    rc = attribute_locked(data_out, attribute, pointer);
    (void)pthread_mutex_unlock(&lock);
    return rc;
}
API(cuMemcpyAsync)(heft_cu_pointer to, heft_cu_pointer from, size_t bytes, heft_cu_stream stream)
{
    LOCKED(add_step(stream, (struct step){.kind = 0,
                                          .to = (uint8_t *)(uintptr_t)to,
                                          .from = (const uint8_t *)(uintptr_t)from,
                                          .size = bytes}));
}
API(cuMemsetD8Async)(heft_cu_pointer to, unsigned char value, size_t bytes, heft_cu_stream stream)
{
    LOCKED(add_step(
        stream,
        (struct step){.kind = 6, .to = (uint8_t *)(uintptr_t)to, .size = bytes, .arguments = {value}}));
}

API(cuMemcpyDtoH_v2)(void *to, heft_cu_pointer from, size_t bytes)
{
    LOCKED(copy_bytes((uintptr_t)to, from, bytes));
}

struct attributes {
    int order;
    struct heft_cu_location from, to;
    unsigned flags;
};
API(cuMemcpyBatchAsync_v2)
(heft_cu_pointer *to, heft_cu_pointer *from, size_t *sizes, size_t count, struct attributes *attributes,
 size_t *first, size_t kinds, heft_cu_stream stream)
{
    heft_cu_result rc = count && kinds == 1 && first[0] == 0 && attributes[0].order == 1 ? 0 : 1;
    size_t index;

    for (index = 0; index < count && !rc; index++)
        rc = cuMemcpyAsync(to[index], from[index], sizes[index], stream);
    return rc;
}

static heft_cu_result host_locked(void **pointer_out, size_t bytes)
{
    struct memory *m = new_memory();
    size_t size = (bytes + 4095) & ~(size_t)4095;

    *m = (struct memory){.kind = PINNED, .size = size, .device = 0, .fd = -1, .access = 1};
    m->bytes = m->address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *pointer_out = m->address;
    return 0;
}
API(cuMemHostAlloc)(void **pointer_out, size_t bytes, unsigned flags)
{
    (void)flags;
    LOCKED(host_locked(pointer_out, bytes));
}
API(cuMemFreeHost)(void *pointer)
{
    LOCKED(free_locked((uintptr_t)pointer, PINNED));
}
API(cuStreamCreate)(heft_cu_stream *stream_out, unsigned flags)
{
    if (depth == 0 || flags != HEFT_CU_STREAM_NON_BLOCKING)
        return BAD_CONTEXT;
    *stream_out = calloc(1, sizeof(**stream_out));
    if (*stream_out)
        (*stream_out)->device = stack[depth - 1]->device;
    return *stream_out ? 0 : HEFT_CU_OUT_OF_MEMORY;
}
API(cuStreamDestroy_v2)(heft_cu_stream stream)
{
    if (stream->first)
        abort(); /* something still runs on it */
    free(stream);
    return 0;
}
API(cuEventCreate)(heft_cu_event *event_out, unsigned flags)
{
    (void)flags;
    *event_out = calloc(1, sizeof(**event_out));
    return depth == 0 ? BAD_CONTEXT : *event_out ? 0 : HEFT_CU_OUT_OF_MEMORY;
}
API(cuEventDestroy_v2)(heft_cu_event event)
{
    (void)pthread_mutex_lock(&lock);
    event->dropped = 1;
    free_event(event);
    (void)pthread_mutex_unlock(&lock);
    return 0;
}

static heft_cu_result record_locked(heft_cu_event event, heft_cu_stream stream)
{
    stream = stream ? stream : &default_streams[stack[depth - 1]->device];
    if (stream->graph)
        return 900; /* not while it is captured */
    event->stream = stream;
    event->pending++;
    event->recorded++;
    return add_step(stream, (struct step){.kind = 1, .event = event});
}
API(cuEventRecord)(heft_cu_event event, heft_cu_stream stream)
{
    LOCKED(record_locked(event, stream));
}

static heft_cu_result query_locked(heft_cu_event event)
{
    int steps;

    if (!event->stream)
        return 0;
    for (steps = 0; steps < STEPS && event->pending; steps++)
        if (!run_step(event->stream))
            break;
    if (event->pending)
        return HEFT_CU_NOT_READY;
    return event->stream->failed;
}
API(cuEventQuery)(heft_cu_event event)
{
    LOCKED(query_locked(event));
}

static heft_cu_result stream_query_locked(heft_cu_stream stream)
{
    int steps;

    for (steps = 0; steps < STEPS && stream->first; steps++)
        if (!run_step(stream))
            break;
    return stream->first ? HEFT_CU_NOT_READY : stream->failed;
}
API(cuStreamQuery)(heft_cu_stream stream)
{
    LOCKED(stream_query_locked(stream));
}
static heft_cu_result wait_locked(heft_cu_stream stream, heft_cu_event event)
{
    if (event->dropped)
        abort();
    if (event->reached == event->recorded)
        return 0;
    event->waiters++;
    return add_step(stream, (struct step){.kind = 7, .event = event, .arguments = {event->recorded}});
}
API(cuStreamWaitEvent)(heft_cu_stream stream, heft_cu_event event, unsigned flags)
{
    if (flags)
        return HEFT_CU_INVALID_VALUE;
    LOCKED(wait_locked(stream, event));
}
API(cuStreamGetCtx)(heft_cu_stream stream, heft_cu_context *context_out)
{
    if (!stream && depth == 0)
        return BAD_CONTEXT;
    *context_out = stream ? &contexts[stream->device] : stack[depth - 1];
    return 0;
}
API(cuStreamSynchronize)(heft_cu_stream stream)
{
    heft_cu_result result;

    while ((result = cuStreamQuery(stream)) == HEFT_CU_NOT_READY)
        (void)sched_yield();
    return result;
}

static heft_cu_result add_word(heft_cu_stream stream, int kind, heft_cu_pointer address, uint64_t value,
                               uint64_t width, unsigned flags)
{
    if (flags || address % width)
        return HEFT_CU_INVALID_VALUE;
    if (kind == 4 && getenv("FAKE_CUDA_NO_WORDS"))
        return 801;
    LOCKED(add_step(stream, (struct step){.kind = kind,
                                          .to = (uint8_t *)(uintptr_t)address,
                                          .from = (uint8_t *)(uintptr_t)address,
                                          .arguments = {value, width}}));
}
API(cuStreamWriteValue32_v2)
(heft_cu_stream stream, heft_cu_pointer address, uint32_t value, unsigned flags)
{
    return add_word(stream, 4, address, value, 4, flags);
}
API(cuStreamWaitValue32_v2)
(heft_cu_stream stream, heft_cu_pointer address, uint32_t value, unsigned flags)
{
    return add_word(stream, 5, address, value, 4, flags);
}
API(cuStreamWriteValue64_v2)
(heft_cu_stream stream, heft_cu_pointer address, uint64_t value, unsigned flags)
{
    return add_word(stream, 4, address, value, 8, flags);
}
API(cuStreamWaitValue64_v2)
(heft_cu_stream stream, heft_cu_pointer address, uint64_t value, unsigned flags)
{
    return add_word(stream, 5, address, value, 8, flags);
}

API(cuStreamBeginCapture_v2)(heft_cu_stream stream, int mode)
{
    (void)mode;
    if (!stream || stream->graph)
        return HEFT_CU_INVALID_VALUE;
    stream->graph = calloc(1, sizeof(*stream->graph));
    return stream->graph ? 0 : HEFT_CU_OUT_OF_MEMORY;
}
API(cuStreamEndCapture)(heft_cu_stream stream, struct graph **graph_out)
{
    *graph_out = stream->graph;
    stream->graph = NULL;
    return *graph_out ? 0 : HEFT_CU_INVALID_VALUE;
}
API(cuGraphInstantiateWithFlags)(struct graph **exec_out, struct graph *graph, unsigned long long flags)
{
    (void)flags;
    graph->owners++;
    *exec_out = graph;
    return 0;
}

static heft_cu_result replay_locked(const struct graph *graph, heft_cu_stream stream)
{
    const struct step *step;
    heft_cu_result rc = 0;

    for (step = graph->first; step && !rc; step = step->next)
        rc = add_step(stream, *step);
    return rc;
}
API(cuGraphLaunch)(struct graph *exec, heft_cu_stream stream)
{
    LOCKED(replay_locked(exec, stream));
}
API(cuGraphDestroy)(struct graph *graph)
{
    if (graph->owners-- > 0)
        return 0;
    while (graph->first) {
        struct step *step = graph->first;

        graph->first = step->next;
        free(step);
    }
    free(graph);
    return 0;
}
API(cuGraphExecDestroy)(struct graph *exec)
{
    return cuGraphDestroy(exec);
}

static heft_cu_result register_locked(void *pointer, size_t bytes)
{
    struct memory *m = new_memory();

    if (!pointer || !bytes || find((uintptr_t)pointer, 1))
        return HEFT_CU_INVALID_VALUE;
    *m = (struct memory){.kind = REGISTERED, .size = bytes, .fd = -1, .access = 1};
    m->bytes = m->address = pointer;
    return 0;
}
API(cuMemHostRegister_v2)(void *pointer, size_t bytes, unsigned flags)
{
    (void)flags;
    LOCKED(register_locked(pointer, bytes));
}
API(cuMemHostUnregister)(void *pointer)
{
    LOCKED(free_locked((uintptr_t)pointer, REGISTERED));
}
API(cuMemAddressReserve)
(heft_cu_pointer *pointer_out, size_t bytes, size_t align, heft_cu_pointer wish, unsigned long long flags)
{
    void *address = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    (void)align;
    (void)wish;
    (void)flags;
    *pointer_out = (uintptr_t)address;
    return address == MAP_FAILED || bytes % PAGE_BYTES ? HEFT_CU_INVALID_VALUE : 0;
}
API(cuMemAddressFree)(heft_cu_pointer pointer, size_t bytes)
{
    return munmap((void *)(uintptr_t)pointer, bytes) ? HEFT_CU_INVALID_VALUE : 0;
}

static heft_cu_result new_handle(heft_cu_handle *handle_out, int fd, size_t size, int device)
{
    heft_cu_handle index;

    for (index = 1; index < HANDLES; index++)
        if (handles[index].refs == 0) {
            handles[index].fd = fd;
            handles[index].size = size;
            handles[index].device = device;
            handles[index].refs = 1;
            *handle_out = index;
            return 0;
        }
    abort();
}

static heft_cu_result create_locked(heft_cu_handle *handle_out, size_t bytes, int device)
{
    int fd;

    if (bytes % PAGE_BYTES || used[device] + bytes > fake_total_bytes())
        return bytes % PAGE_BYTES ? HEFT_CU_INVALID_VALUE : HEFT_CU_OUT_OF_MEMORY;
    fd = memfd_create("fake", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes))
        abort();
    used[device] += bytes;
    return new_handle(handle_out, fd, bytes, device);
}
API(cuMemCreate)
(heft_cu_handle *handle_out, size_t bytes, const struct heft_cu_allocation *allocation,
 unsigned long long flags)
{
    (void)flags;
    LOCKED(create_locked(handle_out, bytes, allocation->location.id));
}

static heft_cu_result release_locked(heft_cu_handle handle)
{
    if (--handles[handle].refs == 0) {
        (void)close(handles[handle].fd);
        if (handles[handle].device >= 0)
            used[handles[handle].device] -= handles[handle].size;
    }
    return 0;
}
API(cuMemRelease)(heft_cu_handle handle)
{
    LOCKED(release_locked(handle));
}

static heft_cu_result map_locked(heft_cu_pointer pointer, size_t bytes, heft_cu_handle handle)
{
    struct memory *m = new_memory();

    if (bytes != handles[handle].size || find(pointer, 1))
        return HEFT_CU_INVALID_VALUE;
    *m = (struct memory){.kind = MAPPED,
                         .size = bytes,
                         .id = ++ids,
                         .device = handles[handle].device < 0 ? 0 : handles[handle].device,
                         .handle = (int)handle,
                         .fd = -1};
    m->address = (uint8_t *)(uintptr_t)pointer;
    m->bytes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, handles[handle].fd, 0);
    handles[handle].refs++;
    return m->bytes == MAP_FAILED ? HEFT_CU_INVALID_VALUE : 0;
}
API(cuMemMap)
(heft_cu_pointer pointer, size_t bytes, size_t offset, heft_cu_handle handle, unsigned long long flags)
{
    (void)offset;
    (void)flags;
    LOCKED(map_locked(pointer, bytes, handle));
}

static heft_cu_result unmap_locked(heft_cu_pointer pointer, size_t bytes)
{
    while (bytes > 0) {
        struct memory *m = find(pointer, 1);

        if (!m || m->kind != MAPPED || (uintptr_t)m->address != pointer || m->size > bytes)
            return HEFT_CU_INVALID_VALUE;
        (void)munmap(m->bytes, m->size);
        (void)release_locked((heft_cu_handle)m->handle);
        m->kind = UNUSED;
        pointer += m->size;
        bytes -= m->size;
    }
    return 0;
}
API(cuMemUnmap)(heft_cu_pointer pointer, size_t bytes)
{
    LOCKED(unmap_locked(pointer, bytes));
}

/* `access` is a bit a device. */
static heft_cu_result access_locked(heft_cu_pointer pointer, size_t bytes,
                                    const struct heft_cu_access *access, size_t count)
{
    size_t index;

    while (bytes > 0) {
        struct memory *m = find(pointer, 1);

        if (!m || m->kind != MAPPED || m->size > bytes)
            return HEFT_CU_INVALID_VALUE;
        for (index = 0; index < count; index++)
            m->access |= 1 << access[index].location.id;
        pointer += m->size;
        bytes -= m->size;
    }
    return 0;
}
API(cuMemSetAccess)
(heft_cu_pointer pointer, size_t bytes, const struct heft_cu_access *access, size_t count)
{
    if (count == 0 || access[0].flags != HEFT_CU_ACCESS_READ_WRITE)
        return HEFT_CU_INVALID_VALUE;
    LOCKED(access_locked(pointer, bytes, access, count));
}

static heft_cu_result get_access_locked(unsigned long long *flags_out, int device, heft_cu_pointer pointer)
{
    const struct memory *m = find(pointer, 1);

    if (!m || m->kind != MAPPED)
        return HEFT_CU_INVALID_VALUE;
    *flags_out = m->access >> device & 1 ? HEFT_CU_ACCESS_READ_WRITE : 0;
    return 0;
}
API(cuMemGetAccess)
(unsigned long long *flags_out, const struct heft_cu_location *location, heft_cu_pointer pointer)
{
    LOCKED(get_access_locked(flags_out, location->id, pointer));
}
API(cuMemExportToShareableHandle)
(void *shareable_out, heft_cu_handle handle, int type, unsigned long long flags)
{
    (void)flags;
    *(int *)shareable_out = fcntl(handles[handle].fd, F_DUPFD_CLOEXEC, 0);
    return type == HEFT_CU_HANDLE_POSIX_FD && *(int *)shareable_out >= 0 ? 0 : HEFT_CU_INVALID_VALUE;
}
API(cuMemImportFromShareableHandle)(heft_cu_handle *handle_out, void *shareable, int type)
{
    int fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0);
    struct stat status;

    (void)type;
    if (fd < 0 || fstat(fd, &status) || !S_ISREG(status.st_mode))
        return HEFT_CU_INVALID_VALUE;
    LOCKED(new_handle(handle_out, fd, (size_t)status.st_size, -1));
}
API(cuMemGetAllocationGranularity)
(size_t *bytes_out, const struct heft_cu_allocation *allocation, int option)
{
    (void)allocation;
    (void)option;
    *bytes_out = PAGE_BYTES;
    return 0;
}

static heft_cu_result retain_locked(heft_cu_handle *handle_out, void *address)
{
    struct memory *m = find((uintptr_t)address, 1);

    if (!m || m->kind != MAPPED)
        return HEFT_CU_INVALID_VALUE;
    handles[m->handle].refs++;
    *handle_out = (heft_cu_handle)m->handle;
    return 0;
}
API(cuMemRetainAllocationHandle)(heft_cu_handle *handle_out, void *address)
{
    LOCKED(retain_locked(handle_out, address));
}

struct ipc {
    int pid, fd;
    size_t size;
};
static heft_cu_result ipc_get_locked(struct heft_cu_ipc_handle *handle_out, heft_cu_pointer pointer)
{
    struct memory *m = find(pointer, 1);
    struct ipc ipc = {getpid(), 0, 0};

    if (!m || m->kind != PLAIN)
        return HEFT_CU_INVALID_VALUE;
    ipc.fd = m->fd;
    ipc.size = m->size;
    memset(handle_out, 0, sizeof(*handle_out));
    memcpy(handle_out, &ipc, sizeof(ipc));
    return 0;
}
API(cuIpcGetMemHandle)(struct heft_cu_ipc_handle *handle_out, heft_cu_pointer pointer)
{
    LOCKED(ipc_get_locked(handle_out, pointer));
}

static heft_cu_result ipc_open_locked(heft_cu_pointer *pointer_out, const struct ipc *ipc)
{
    struct memory *m = new_memory();
    char path[64];
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", ipc->pid, ipc->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || ipc->pid == getpid())
        return HEFT_CU_INVALID_VALUE;
    *m = (struct memory){.kind = OPENED, .size = ipc->size, .device = 0, .fd = fd};
    m->address = mmap(NULL, m->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    m->bytes = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    *pointer_out = (uintptr_t)m->address;
    return 0;
}
API(cuIpcOpenMemHandle_v2)(heft_cu_pointer *pointer_out, struct heft_cu_ipc_handle handle, unsigned flags)
{
    struct ipc ipc;

    (void)flags;
    memcpy(&ipc, &handle, sizeof(ipc));
    LOCKED(ipc_open_locked(pointer_out, &ipc));
}
API(cuIpcCloseMemHandle)(heft_cu_pointer pointer)
{
    LOCKED(free_locked(pointer, OPENED));
}
API(cuModuleLoadData)(heft_cu_module *module_out, const void *image)
{
    (void)image;
    *module_out = (heft_cu_module)(void *)&module_dummy;
    return depth == 0 ? BAD_CONTEXT : 0;
}
API(cuModuleGetFunction)(heft_cu_function *function_out, heft_cu_module module, const char *name)
{
    (void)module;
    *function_out = (heft_cu_function)(uintptr_t)(strcmp(name, "heft_copy") == 0 ? 2 : 3);
    return 0;
}
API(cuLaunchKernel)
(heft_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
 unsigned block_y, unsigned block_z, unsigned shared_bytes, heft_cu_stream stream, void **parameters,
 void **extra)
{
    struct step step = {.kind = (int)(uintptr_t)function};
    int index;

    (void)extra;
    (void)shared_bytes;
    for (index = 0; index < 3; index++)
        memcpy(&step.arguments[index], parameters[index], sizeof(uint64_t));
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 || block_x > 1024 || block_y != 1 ||
        block_z != 1)
        return HEFT_CU_INVALID_VALUE;
    LOCKED(add_step(stream, step));
}
