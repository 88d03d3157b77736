/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file transport's side of bench_file.py, and the pread it is compared with: one process, one prefaulted
 * destination, one pass over the file a command. Commands on stdin, one line of seconds each on stdout:
 *
 *   cold            drops the file's pages from the page cache
 *   warm            reads the file into the page cache
 *   heft            reads the file by the transport, in operations of op_bytes, `window` of them in flight
 *   pread THREADS CHUNK_BYTES
 */
#include "base/clock.h"
#include "transport/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_WINDOW 1024u
#define MAX_THREADS 64u
#define ELEMENT_GAP_BYTES 64u

struct flight {
    struct heft_transport_op op;
    struct heft_move move;
    struct bench *bench;
};

struct bench {
    struct heft_transport_host host;
    struct heft_transport *transport;
    struct heft_endpoint *endpoint;
    struct heft_transport_region file, memory;
    uint64_t bytes, shift_bytes, op_bytes;
    uint64_t element_bytes; /* 0: contiguous; else elements of so many, 64 bytes apart in memory */
    uint32_t window;
    struct flight flights[MAX_WINDOW];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t next_bytes, pending;
    int failed;
};

static void stop(const char *what)
{
    (void)fprintf(stderr, "bench_file: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int post_next(struct flight *flight)
{
    struct bench *bench = flight->bench;
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t at, bytes;

    (void)pthread_mutex_lock(&bench->lock);
    at = bench->next_bytes;
    bytes = bench->bytes - at < bench->op_bytes ? bench->bytes - at : bench->op_bytes;
    bench->next_bytes += bytes;
    if (bytes > 0)
        bench->pending++;
    (void)pthread_mutex_unlock(&bench->lock);
    if (bytes == 0)
        return 0;
    flight->move.remote_offset_bytes = at;
    flight->move.local_offset_bytes = at + bench->shift_bytes;
    flight->move.length_bytes = flight->op.total_bytes = bytes;
    if (bench->element_bytes && bytes % bench->element_bytes == 0) {
        flight->move.local_offset_bytes += at / bench->element_bytes * ELEMENT_GAP_BYTES;
        flight->move.length_bytes = flight->move.remote_stride_bytes = bench->element_bytes;
        flight->move.local_stride_bytes = bench->element_bytes + ELEMENT_GAP_BYTES;
        flight->move.count = bytes / bench->element_bytes;
    }
    flight->op.done_bytes = 0;
    if (heft_transport_file.post(bench->endpoint, &flight->op, &error)) {
        (void)fprintf(stderr, "bench_file: %s\n", error.text);
        exit(1);
    }
    return 1;
}

static void flight_done(struct heft_transport_op *op, int status, const struct heft_error *error)
{
    struct flight *flight = (struct flight *)(void *)op;
    struct bench *bench = flight->bench;

    if (status || op->done_bytes != op->total_bytes) {
        (void)fprintf(stderr, "bench_file: %s\n", error ? error->text : "bytes are missing");
        exit(1);
    }
    (void)post_next(flight);
    (void)pthread_mutex_lock(&bench->lock);
    if (--bench->pending == 0)
        (void)pthread_cond_signal(&bench->changed);
    (void)pthread_mutex_unlock(&bench->lock);
}

static void run_heft(struct bench *bench)
{
    uint32_t index;

    bench->next_bytes = 0;
    for (index = 0; index < bench->window; index++) {
        struct flight *flight = &bench->flights[index];

        flight->bench = bench;
        flight->move.local = &bench->memory;
        flight->move.remote = &bench->file;
        flight->move.count = 1;
        flight->op.kind = HEFT_OP_READ;
        flight->op.moves = &flight->move;
        flight->op.move_count = 1;
        flight->op.done = flight_done;
        if (!post_next(flight))
            break;
    }
    (void)pthread_mutex_lock(&bench->lock);
    while (bench->pending > 0)
        (void)pthread_cond_wait(&bench->changed, &bench->lock);
    (void)pthread_mutex_unlock(&bench->lock);
}

struct reader {
    struct bench *bench;
    uint64_t chunk_bytes;
    uint64_t *next;
};

static void *reader_main(void *argument)
{
    struct reader *reader = argument;
    struct bench *bench = reader->bench;

    for (;;) {
        uint64_t at = __atomic_fetch_add(reader->next, reader->chunk_bytes, __ATOMIC_RELAXED), done = 0;
        uint64_t bytes = at < bench->bytes ? bench->bytes - at : 0;

        if (bytes == 0)
            return NULL;
        bytes = bytes < reader->chunk_bytes ? bytes : reader->chunk_bytes;
        while (done < bytes) {
            ssize_t got =
                pread(bench->file.fd, (uint8_t *)bench->memory.address + bench->shift_bytes + at + done,
                      bytes - done, (off_t)(at + done));

            if (got <= 0)
                stop("pread");
            done += (uint64_t)got;
        }
    }
}

static void run_pread(struct bench *bench, uint32_t threads, uint64_t chunk_bytes)
{
    pthread_t handles[MAX_THREADS];
    uint64_t next = 0;
    struct reader reader = {bench, chunk_bytes, &next};
    uint32_t index;

    for (index = 0; index < threads; index++)
        if (pthread_create(&handles[index], NULL, reader_main, &reader))
            stop("pthread_create");
    for (index = 0; index < threads; index++)
        (void)pthread_join(handles[index], NULL);
}

static void run_command(struct bench *bench, const char *line)
{
    unsigned threads = 0;
    unsigned long long chunk = 0;
    uint64_t start = heft_now_ns();

    if (strncmp(line, "cold", 4) == 0) {
        if (fdatasync(bench->file.fd) || posix_fadvise(bench->file.fd, 0, 0, POSIX_FADV_DONTNEED))
            stop("dropping the file's pages");
    } else if (strncmp(line, "heft", 4) == 0) {
        run_heft(bench);
    } else if (strncmp(line, "warm", 4) == 0) {
        run_pread(bench, 2, (uint64_t)1 << 20);
    } else if (sscanf(line, "pread %u %llu", &threads, &chunk) == 2 && threads > 0 &&
               threads <= MAX_THREADS && chunk > 0) {
        run_pread(bench, threads, chunk);
    } else {
        errno = EINVAL;
        stop(line);
    }
    (void)printf("%.6f\n", (double)(heft_now_ns() - start) / 1e9);
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    static struct bench bench;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_memory_info info;
    struct heft_memory *memory;
    struct stat status;
    uint64_t gaps = 0;
    char line[128];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);

    if (argc != 7) {
        (void)fprintf(stderr,
                      "usage: bench_file FILE OP_BYTES WINDOW SHIFT_BYTES MODE ELEMENT_BYTES < commands\n");
        return 2;
    }
    bench.op_bytes = strtoull(argv[2], NULL, 10);
    bench.window = (uint32_t)strtoul(argv[3], NULL, 10);
    bench.shift_bytes = strtoull(argv[4], NULL, 10);
    heft_file_force_mode((uint32_t)strtoul(argv[5], NULL, 10));
    bench.element_bytes = strtoull(argv[6], NULL, 10);
    if (bench.op_bytes == 0 || bench.window == 0 || bench.window > MAX_WINDOW)
        return 2;
    bench.file.space = HEFT_SPACE_FILE;
    bench.file.label = argv[1];
    bench.file.fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (bench.file.fd < 0 || fstat(bench.file.fd, &status))
        stop(argv[1]);
    bench.bytes = (uint64_t)status.st_size;
    (void)pthread_mutex_init(&bench.lock, NULL);
    (void)pthread_cond_init(&bench.changed, NULL);
    if (bench.element_bytes)
        gaps = bench.bytes / bench.element_bytes * ELEMENT_GAP_BYTES;
    if (heft_memory_alloc(bench.bytes + bench.shift_bytes + gaps, HEFT_MEMORY_PREFAULT, &memory, &error) ||
        heft_pool_create(processors > 8   ? 8
                         : processors < 1 ? 1
                                          : (uint32_t)processors,
                         &bench.host.pool, &error) ||
        heft_transport_file.open(&bench.host, &bench.transport, &error) ||
        heft_transport_file.connect(bench.transport, NULL, &bench.endpoint, &error) ||
        heft_transport_file.region_add(bench.transport, &bench.file, &error)) {
        (void)fprintf(stderr, "bench_file: %s\n", error.text);
        return 1;
    }
    heft_memory_get_info(memory, &info);
    bench.memory.space = HEFT_SPACE_HOST;
    bench.memory.address = info.address;
    while (fgets(line, sizeof(line), stdin))
        run_command(&bench, line);
    heft_transport_file.disconnect(bench.endpoint);
    heft_transport_file.region_remove(bench.transport, &bench.file);
    heft_transport_file.close(bench.transport);
    heft_pool_destroy(bench.host.pool);
    heft_memory_free(memory);
    return 0;
}
