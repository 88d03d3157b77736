/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the page cache or tmpfs to one GPU: which way is fastest, beside a copy of pinned memory.
 *
 *   bench_pages FILE [SIZE_MIB [SECONDS]]     makes FILE if it is not there; reads it by every way
 *
 * Threads take pieces of the file. By `pread`, `copy` (mapped, memcpy), or `stream` (mapped, stores past the
 * cache) a piece goes into a slot of pinned memory and from there to the GPU; by `register` the piece itself
 * is pinned where it is mapped and copied by the GPU. Mixed ways register from the file's end while others
 * copy from its start. Every way maps the file anew, so that its page faults are inside.
 *
 * Tab-separated: way, threads, registering threads, piece, slots a thread, GB/s (median, lowest, highest), of
 * it spent in taking, launching and waiting (seconds, sum over threads, of the median pass), share of pinned.
 * Each way's bytes are compared by digests made on the GPU.
 */
#include "base/clock.h"
#include "base/digest.h"
#include "space/cuda.h"
#include "space/cuda_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define MIB ((uint64_t)1 << 20)
#define RING_BYTES (512 * MIB)
#define THREADS_MAX 32u
#define SLOTS_MAX 8u
#define PIECES_MAX 4096u
#define ROUNDS 3
#define REGISTER_READ_ONLY 8u /* CU_MEMHOSTREGISTER_READ_ONLY */
#define TRY(call) try_((call), #call, __LINE__)

enum way { WAY_PREAD, WAY_COPY, WAY_STREAM, WAY_REGISTER };
static const char *const way_names[] = {"pread", "copy", "stream", "register"};

struct setting {
    enum way way;
    uint32_t threads, registering;
    uint64_t piece, register_piece;
    uint32_t slots;
    int populate; /* the piece's page tables are filled by one call before it is copied */
};

static const struct heft_cu *cu;
static struct heft_error error;
static uint64_t file_bytes = 8192 * MIB, destination;
static uint8_t *ring;
static int fd;

static void try_(int rc, const char *what, int line)
{
    if (rc == 0)
        return;
    (void)printf("bench_pages:%d: %s: %d %s\n", line, what, rc, error.text);
    exit(1);
}

static double now(void)
{
    return (double)heft_now_ns() / 1e9;
}

/* ---- one pass ---- */

struct pass {
    const struct setting *setting;
    uint8_t *map;
    pthread_mutex_t lock;
    uint64_t low, high; /* under it: what is left */
    pthread_barrier_t begin;
    int register_failed; /* atomic */
};

struct thread {
    struct pass *pass;
    uint32_t index;
    int registers;
    pthread_t thread;
    heft_cu_stream stream;
    heft_cu_event events[SLOTS_MAX];
    double took, launched, waited, unregistered, ended;
    void *pieces[PIECES_MAX];
    uint32_t piece_count;
};

static int take(struct pass *pass, int from_end, uint64_t piece, uint64_t *at, uint64_t *length)
{
    int some;

    (void)pthread_mutex_lock(&pass->lock);
    some = pass->low < pass->high;
    if (some) {
        *length = pass->high - pass->low < piece ? pass->high - pass->low : piece;
        if (from_end) {
            pass->high = (pass->high - *length) / MIB * MIB;
            if (pass->high < pass->low)
                pass->high = pass->low;
            *at = pass->high;
        } else {
            *at = pass->low;
            pass->low += *length;
        }
    }
    (void)pthread_mutex_unlock(&pass->lock);
    return some;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void stream_512(uint8_t *to, const uint8_t *from, uint64_t length)
{
    for (; length >= 256; length -= 256, to += 256, from += 256) {
        __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 64),
                c = _mm512_loadu_si512(from + 128), d = _mm512_loadu_si512(from + 192);

        _mm512_stream_si512((void *)to, a);
        _mm512_stream_si512((void *)(to + 64), b);
        _mm512_stream_si512((void *)(to + 128), c);
        _mm512_stream_si512((void *)(to + 192), d);
    }
    _mm_sfence();
    memcpy(to, from, length);
}
#endif

static void stream_copy(uint8_t *to, const uint8_t *from, uint64_t length)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        stream_512(to, from, length);
        return;
    }
#endif
    memcpy(to, from, length);
}

static void fill_slot(const struct setting *setting, const struct pass *pass, uint8_t *slot, uint64_t at,
                      uint64_t length)
{
    if (setting->populate)
        (void)madvise(pass->map + at, length, MADV_POPULATE_READ);
    if (setting->way == WAY_COPY) {
        memcpy(slot, pass->map + at, length);
    } else if (setting->way == WAY_STREAM) {
        stream_copy(slot, pass->map + at, length);
    } else {
        while (length > 0) {
            ssize_t got = pread(fd, slot, length, (off_t)at);

            TRY(got <= 0 ? errno + 1 : 0);
            slot += got;
            at += (uint64_t)got;
            length -= (uint64_t)got;
        }
    }
}

static void wait_event(heft_cu_event event)
{
    heft_cu_result result;

    while ((result = cu->event_query(event)) == HEFT_CU_NOT_READY)
        (void)sched_yield();
    TRY(result);
}

static void copies(struct thread *self)
{
    const struct setting *setting = self->pass->setting;
    uint64_t at, length, count = 0;
    double begin;

    while (take(self->pass, 0, setting->piece, &at, &length)) {
        uint32_t slot = (uint32_t)(count % setting->slots);
        uint8_t *memory = ring + (self->index * setting->slots + slot) * setting->piece;

        begin = now();
        if (count++ >= setting->slots)
            wait_event(self->events[slot]);
        self->waited += now() - begin;
        begin = now();
        fill_slot(setting, self->pass, memory, at, length);
        self->took += now() - begin;
        begin = now();
        TRY(cu->memcpy_async(destination + at, (uintptr_t)memory, length, self->stream));
        TRY(cu->event_record(self->events[slot], self->stream));
        self->launched += now() - begin;
    }
}

static void registers(struct thread *self)
{
    struct pass *pass = self->pass;
    const struct setting *setting = pass->setting;
    uint64_t at, length;
    double begin;

    while (take(pass, setting->way != WAY_REGISTER, setting->register_piece, &at, &length)) {
        heft_cu_result result;

        begin = now();
        if (setting->populate)
            (void)madvise(pass->map + at, length, MADV_POPULATE_READ);
        result = cu->host_register(pass->map + at, length, REGISTER_READ_ONLY);
        if (result) {
            if (!__atomic_exchange_n(&pass->register_failed, result, __ATOMIC_RELAXED))
                (void)printf("# registering is refused: %d\n", result);
            return;
        }
        self->took += now() - begin;
        self->pieces[self->piece_count++] = pass->map + at;
        begin = now();
        TRY(cu->memcpy_async(destination + at, (uintptr_t)(pass->map + at), length, self->stream));
        self->launched += now() - begin;
    }
}

static void *thread_main(void *argument)
{
    struct thread *self = argument;
    uint32_t index;
    double begin;

    TRY(heft_cuda_enter(0, NULL));
    (void)pthread_barrier_wait(&self->pass->begin);
    (void)(self->registers ? registers(self) : copies(self));
    begin = now();
    TRY(cu->event_record(self->events[0], self->stream));
    wait_event(self->events[0]);
    self->waited += now() - begin;
    self->ended = begin = now();
    for (index = 0; index < self->piece_count; index++)
        TRY(cu->host_unregister(self->pieces[index]));
    self->unregistered = now() - begin;
    heft_cuda_leave();
    return NULL;
}

struct outcome {
    double seconds, took, launched, waited, unregistered;
};

static struct thread threads[THREADS_MAX];

static int one_pass(const struct setting *setting, struct outcome *out)
{
    struct pass pass = {.setting = setting, .high = file_bytes};
    uint32_t count = setting->threads + setting->registering, index;
    double begin, end = 0;

    memset(out, 0, sizeof(*out));
    pass.map = mmap(NULL, file_bytes, PROT_READ, MAP_SHARED, fd, 0);
    TRY(pass.map == MAP_FAILED);
    (void)pthread_mutex_init(&pass.lock, NULL);
    (void)pthread_barrier_init(&pass.begin, NULL, count + 1);
    for (index = 0; index < count; index++) {
        struct thread *thread = &threads[index];

        thread->pass = &pass;
        thread->index = index;
        thread->registers = index >= setting->threads;
        thread->took = thread->launched = thread->waited = thread->unregistered = 0;
        thread->piece_count = 0;
        TRY(pthread_create(&thread->thread, NULL, thread_main, thread));
    }
    (void)pthread_barrier_wait(&pass.begin);
    begin = now();
    for (index = 0; index < count; index++) {
        (void)pthread_join(threads[index].thread, NULL);
        end = threads[index].ended > end ? threads[index].ended : end;
        out->took += threads[index].took;
        out->launched += threads[index].launched;
        out->waited += threads[index].waited;
        out->unregistered =
            threads[index].unregistered > out->unregistered ? threads[index].unregistered : out->unregistered;
    }
    out->seconds = end - begin;
    (void)pthread_barrier_destroy(&pass.begin);
    (void)pthread_mutex_destroy(&pass.lock);
    (void)munmap(pass.map, file_bytes);
    return pass.register_failed;
}

/* ---- what is compared ---- */

static uint64_t digest_destination(void)
{
    uint64_t count = heft_block_count(file_bytes), index, *digests = calloc(count + 1, 8), all;
    struct heft_cuda_place *places = calloc(count + 1, sizeof(*places));

    for (index = 0; index < count; index++)
        places[index] = (struct heft_cuda_place){destination + index * HEFT_BLOCK_BYTES,
                                                 index + 1 < count ? HEFT_BLOCK_BYTES
                                                                   : file_bytes - index * HEFT_BLOCK_BYTES};
    TRY(heft_cuda_digest(0, places, count, digests, &error));
    all = heft_hash64(digests, count * 8, 0);
    free(places);
    free(digests);
    return all;
}

static void clear_destination(void)
{
    uint64_t at;

    for (at = 0; at < file_bytes; at += RING_BYTES)
        TRY(cu->memcpy_async(destination + at, (uintptr_t)ring,
                             file_bytes - at < RING_BYTES ? file_bytes - at : RING_BYTES, threads[0].stream));
    TRY(cu->event_record(threads[0].events[0], threads[0].stream));
    wait_event(threads[0].events[0]);
}

static double pinned_rate(void)
{
    double best = 0;
    int round;

    for (round = 0; round < ROUNDS; round++) {
        double begin = now();

        clear_destination();
        begin = now() - begin;
        best = (double)file_bytes / begin / 1e9 > best ? (double)file_bytes / begin / 1e9 : best;
    }
    return best;
}

static int by_seconds(const void *left, const void *right)
{
    double a = ((const struct outcome *)left)->seconds, b = ((const struct outcome *)right)->seconds;

    return (a > b) - (a < b);
}

static void measure(const struct setting *setting, uint64_t expected, double pinned)
{
    struct outcome outcomes[ROUNDS];
    double gigabytes = (double)file_bytes / 1e9;
    char name[48];
    int round;

    for (round = 0; round < ROUNDS; round++)
        if (one_pass(setting, &outcomes[round]))
            return;
    if (digest_destination() != expected) {
        (void)printf("WRONG BYTES\n");
        exit(1);
    }
    qsort(outcomes, ROUNDS, sizeof(*outcomes), by_seconds);
    (void)snprintf(name, sizeof(name), "%s%s%s", way_names[setting->way],
                   setting->registering && setting->threads ? "+register" : "",
                   setting->populate ? "+populate" : "");
    (void)printf("%s\t%u\t%u\t%.2f/%.0f\t%u\t%.1f\t%.1f\t%.1f\ttake %.2f launch %.2f wait %.2f unregister "
                 "%.3f\t%.3f\n",
                 name, setting->threads, setting->registering, (double)setting->piece / (double)MIB,
                 (double)setting->register_piece / (double)MIB, setting->slots,
                 gigabytes / outcomes[ROUNDS / 2].seconds, gigabytes / outcomes[ROUNDS - 1].seconds,
                 gigabytes / outcomes[0].seconds, outcomes[ROUNDS / 2].took, outcomes[ROUNDS / 2].launched,
                 outcomes[ROUNDS / 2].waited, outcomes[ROUNDS / 2].unregistered,
                 gigabytes / outcomes[ROUNDS / 2].seconds / pinned);
    (void)fflush(stdout);
}

/* ---- the file ---- */

static void *write_part(void *argument)
{
    uint64_t part = (uint64_t)(uintptr_t)argument, begin = file_bytes / 8 * part, at, x = part * 2 + 1, word;
    uint64_t end = part == 7 ? file_bytes : begin + file_bytes / 8;
    uint64_t *words = malloc(4 * MIB);

    for (at = begin; at < end;) {
        uint64_t length = end - at < 4 * MIB ? end - at : 4 * MIB;

        for (word = 0; word < 4 * MIB / 8; word++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            words[word] = x;
        }
        TRY(pwrite(fd, words, length, (off_t)at) != (ssize_t)length);
        at += length;
    }
    free(words);
    return NULL;
}

static void open_file(const char *path)
{
    pthread_t writers[8];
    struct stat status;
    uint64_t part;

    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    TRY(fd < 0 || fstat(fd, &status));
    if ((uint64_t)status.st_size == file_bytes)
        return;
    TRY(ftruncate(fd, (off_t)file_bytes));
    for (part = 0; part < 8; part++)
        TRY(pthread_create(&writers[part], NULL, write_part, (void *)(uintptr_t)part));
    for (part = 0; part < 8; part++)
        (void)pthread_join(writers[part], NULL);
    (void)fsync(fd);
}

/* On the CPU, from the file itself. */
static uint64_t digest_file(void)
{
    uint64_t count = heft_block_count(file_bytes), index, *digests = calloc(count + 1, 8), all;
    uint8_t *map = mmap(NULL, file_bytes, PROT_READ, MAP_SHARED, fd, 0);

    TRY(map == MAP_FAILED);
    for (index = 0; index < count; index++)
        digests[index] =
            heft_hash64(map + index * HEFT_BLOCK_BYTES,
                        index + 1 < count ? HEFT_BLOCK_BYTES : file_bytes - index * HEFT_BLOCK_BYTES, 0);
    all = heft_hash64(digests, count * 8, 0);
    free(digests);
    (void)munmap(map, file_bytes);
    return all;
}

static void open_gpu(void)
{
    struct heft_device_memory_info info;
    struct heft_device_memory *memory;
    uint32_t thread, slot;

    TRY(heft_cuda_load(&cu, &error));
    TRY(heft_device_memory_alloc(0, file_bytes, 0, &memory, &error));
    heft_device_memory_get_info(memory, &info);
    destination = info.address;
    ring = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TRY(ring == MAP_FAILED);
    (void)madvise(ring, RING_BYTES, MADV_HUGEPAGE);
    memset(ring, 7, RING_BYTES);
    TRY(heft_cuda_enter(0, &error));
    TRY(cu->host_register(ring, RING_BYTES, HEFT_CU_HOST_REGISTER_PORTABLE));
    for (thread = 0; thread < THREADS_MAX; thread++) {
        TRY(cu->stream_create(&threads[thread].stream, HEFT_CU_STREAM_NON_BLOCKING));
        for (slot = 0; slot < SLOTS_MAX; slot++)
            TRY(cu->event_create(&threads[thread].events[slot], HEFT_CU_EVENT_DISABLE_TIMING));
    }
}

/* Most telling first: the time may end before the list does. */
static const struct setting settings[] = {
    {WAY_PREAD, 12, 0, 4 << 20, 0, 2, 0},         {WAY_PREAD, 12, 0, 1 << 20, 0, 2, 0},
    {WAY_PREAD, 12, 0, 256 << 10, 0, 4, 0},       {WAY_PREAD, 12, 0, 512 << 10, 0, 3, 0},
    {WAY_PREAD, 16, 0, 1 << 20, 0, 2, 0},         {WAY_PREAD, 16, 0, 512 << 10, 0, 2, 0},
    {WAY_PREAD, 8, 0, 1 << 20, 0, 2, 0},          {WAY_COPY, 12, 0, 1 << 20, 0, 2, 0},
    {WAY_COPY, 12, 0, 4 << 20, 0, 2, 0},          {WAY_STREAM, 12, 0, 4 << 20, 0, 2, 0},
    {WAY_STREAM, 8, 0, 4 << 20, 0, 2, 0},         {WAY_STREAM, 12, 0, 1 << 20, 0, 2, 0},
    {WAY_COPY, 12, 0, 1 << 20, 0, 2, 1},          {WAY_STREAM, 12, 0, 4 << 20, 0, 2, 1},
    {WAY_REGISTER, 0, 1, 0, 256 << 20, 1, 0},     {WAY_REGISTER, 0, 2, 0, 64 << 20, 1, 0},
    {WAY_REGISTER, 0, 4, 0, 64 << 20, 1, 0},      {WAY_REGISTER, 0, 8, 0, 64 << 20, 1, 0},
    {WAY_REGISTER, 0, 4, 0, 64 << 20, 1, 1},      {WAY_REGISTER, 0, 4, 0, 16 << 20, 1, 0},
    {WAY_REGISTER, 0, 4, 0, 256 << 20, 1, 0},     {WAY_REGISTER, 0, 8, 0, 64 << 20, 1, 1},
    {WAY_PREAD, 12, 1, 1 << 20, 64 << 20, 2, 0},  {WAY_PREAD, 12, 2, 1 << 20, 64 << 20, 2, 0},
    {WAY_PREAD, 8, 2, 1 << 20, 64 << 20, 2, 0},   {WAY_PREAD, 8, 4, 1 << 20, 64 << 20, 2, 0},
    {WAY_PREAD, 10, 4, 1 << 20, 64 << 20, 2, 0},  {WAY_STREAM, 8, 2, 4 << 20, 64 << 20, 2, 0},
    {WAY_STREAM, 10, 4, 4 << 20, 64 << 20, 2, 0}, {WAY_PREAD, 14, 0, 1 << 20, 0, 2, 0},
    {WAY_PREAD, 12, 0, 2 << 20, 0, 2, 0},         {WAY_PREAD, 10, 0, 1 << 20, 0, 2, 0},
    {WAY_PREAD, 12, 0, 8 << 20, 0, 2, 0},         {WAY_STREAM, 16, 0, 4 << 20, 0, 2, 0},
    {WAY_STREAM, 12, 0, 16 << 20, 0, 2, 0},       {WAY_COPY, 16, 0, 512 << 10, 0, 2, 0},
    {WAY_PREAD, 24, 0, 1 << 20, 0, 2, 0},         {WAY_PREAD, 6, 0, 1 << 20, 0, 2, 0},
    {WAY_PREAD, 4, 0, 1 << 20, 0, 2, 0},          {WAY_PREAD, 4, 0, 4 << 20, 0, 2, 0},
};

int main(int argc, char **argv)
{
    double pinned, seconds = argc > 3 ? atof(argv[3]) : 120, begin;
    uint64_t expected;
    size_t index;

    if (argc < 2) {
        (void)fprintf(stderr, "usage: bench_pages FILE [SIZE_MIB [SECONDS]]\n");
        return 2;
    }
    if (argc > 2)
        file_bytes = strtoull(argv[2], NULL, 10) * MIB;
    begin = now();
    open_file(argv[1]);
    open_gpu();
    expected = digest_file();
    pinned = pinned_rate();
    (void)printf("# %s, %llu MiB, made in %.1f s; pinned to GPU %.1f GB/s\n", argv[1],
                 (unsigned long long)(file_bytes / MIB), now() - begin, pinned);
    (void)printf("way\tcopying\tregistering\tMiB\tslots\tGB/s\tlowest\thighest\tseconds\tof pinned\n");
    for (index = 0; index < sizeof(settings) / sizeof(settings[0]) && now() - begin < seconds; index++)
        measure(&settings[index], expected, pinned);
    (void)printf("# pinned to GPU again %.1f GB/s\n", pinned_rate());
    return 0;
}
