/* SPDX-License-Identifier: Apache-2.0 */
#include "load/machine_limits.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "load/cache.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <heft/space.h>
#include <jansson.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BUFFER_BYTES ((size_t)256 << 20) /* per thread: larger than the last-level cache's share */
#define FILE_BYTES ((size_t)512 << 20)
#define PIECE_BYTES ((size_t)1 << 20)
#define PASSES 3
#define DISK_THREADS 8u
#define MAX_THREADS 16u

/* ---- a crew of threads that do the same thing to their own part, timed from a common start ---- */

struct crew {
    void (*work)(struct crew *crew, unsigned index);
    unsigned threads;
    pthread_barrier_t start;
    uint8_t *from, *to;
    size_t part_bytes;
    int fd;
    int failed;
};

struct crew_member {
    struct crew *crew;
    unsigned index;
};

static void *crew_thread(void *argument)
{
    struct crew_member *member = argument;

    (void)pthread_barrier_wait(&member->crew->start);
    member->crew->work(member->crew, member->index);
    return NULL;
}

/* Bytes a second of all threads together; 0 when a thread could not be started. */
static double crew_rate(struct crew *crew)
{
    pthread_t threads[MAX_THREADS];
    struct crew_member members[MAX_THREADS];
    unsigned index, started = 0;
    uint64_t begin, end;

    (void)pthread_barrier_init(&crew->start, NULL, crew->threads + 1);
    for (index = 0; index < crew->threads; index++) {
        members[index] = (struct crew_member){crew, index};
        if (pthread_create(&threads[index], NULL, crew_thread, &members[index]))
            break;
        started++;
    }
    if (started < crew->threads) { /* those that wait at the barrier would wait for ever */
        for (index = 0; index < started; index++) {
            (void)pthread_cancel(threads[index]);
            (void)pthread_join(threads[index], NULL);
        }
        return 0;
    }
    begin = heft_now_ns();
    (void)pthread_barrier_wait(&crew->start);
    for (index = 0; index < started; index++)
        (void)pthread_join(threads[index], NULL);
    end = heft_now_ns();
    (void)pthread_barrier_destroy(&crew->start);
    return crew->failed ? 0
                        : (double)crew->part_bytes * crew->threads * HEFT_NS_PER_S / (double)(end - begin);
}

static double best_rate(struct crew *crew, int passes)
{
    double best = 0;

    while (passes-- > 0) {
        double rate = crew_rate(crew);

        best = rate > best ? rate : best;
    }
    return best;
}

static void copy_part(struct crew *crew, unsigned index)
{
    memcpy(crew->to + index * crew->part_bytes, crew->from + index * crew->part_bytes, crew->part_bytes);
}

static void read_part(struct crew *crew, unsigned index)
{
    uint8_t *to = crew->to + index * PIECE_BYTES;
    size_t at;

    for (at = 0; at < crew->part_bytes; at += PIECE_BYTES)
        if (pread(crew->fd, to, PIECE_BYTES, (off_t)(index * crew->part_bytes + at)) != (ssize_t)PIECE_BYTES)
            crew->failed = 1;
}

/* ---- memory ---- */

static void measure_memory(struct heft_limits *limits, struct heft_error *error)
{
    struct heft_memory *from, *to;
    struct heft_memory_info from_info, to_info;
    struct crew crew = {.work = copy_part, .threads = 1, .part_bytes = BUFFER_BYTES};
    uint64_t digests[BUFFER_BYTES / HEFT_BLOCK_BYTES], begin;
    size_t total = BUFFER_BYTES * limits->threads;

    if (total > ((size_t)2 << 30))
        total = (size_t)2 << 30;
    if (heft_memory_alloc(total, 0, &from, error))
        return;
    if (heft_memory_alloc(total, 0, &to, error)) {
        heft_memory_free(from);
        return;
    }
    heft_memory_get_info(from, &from_info);
    heft_memory_get_info(to, &to_info);
    begin = heft_now_ns();
    memset(from_info.address, 1, BUFFER_BYTES);
    limits->first_touch = (double)BUFFER_BYTES * HEFT_NS_PER_S / (double)(heft_now_ns() - begin);
    memset(from_info.address, 1, total);
    memset(to_info.address, 2, total);
    crew.from = from_info.address;
    crew.to = to_info.address;
    limits->memcpy_one = best_rate(&crew, PASSES);
    crew.threads = limits->threads;
    crew.part_bytes = total / limits->threads;
    limits->memcpy_all = best_rate(&crew, PASSES);
    begin = heft_now_ns();
    heft_block_digests(from_info.address, BUFFER_BYTES, digests);
    limits->hash = (double)BUFFER_BYTES * HEFT_NS_PER_S / (double)(heft_now_ns() - begin);
    heft_memory_free(to);
    heft_memory_free(from);
}

/* ---- disk ---- */

static int make_file(const char *path, int *fd_out, struct heft_error *error)
{
    char *piece = NULL;
    size_t at;
    int fd = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd < 0)
        return heft_error_set_errno(error, errno, "a test file in %s", path);
    if (posix_memalign((void **)&piece, 4096, PIECE_BYTES)) {
        (void)close(fd);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "a test buffer");
    }
    for (at = 0; at < PIECE_BYTES; at++)
        piece[at] = (char)(at * 2654435761u >> 7);
    for (at = 0; at < FILE_BYTES; at += PIECE_BYTES)
        if (pwrite(fd, piece, PIECE_BYTES, (off_t)at) != (ssize_t)PIECE_BYTES) {
            int rc = heft_error_set_errno(error, errno ? errno : ENOSPC,
                                          "writing a test file of %zu MiB in %s", FILE_BYTES >> 20, path);

            free(piece);
            (void)close(fd);
            return rc;
        }
    free(piece);
    *fd_out = fd;
    return HEFT_OK;
}

static void measure_disk(const char *path, struct heft_limits *limits, struct heft_error *error)
{
    struct crew crew = {.work = read_part, .threads = limits->threads};
    char name[64];
    uint8_t *buffer = NULL;
    int fd = -1, direct;

    if (make_file(path, &fd, error))
        return;
    if (posix_memalign((void **)&buffer, 4096, PIECE_BYTES * MAX_THREADS)) {
        (void)close(fd);
        return;
    }
    memset(buffer, 0, PIECE_BYTES * MAX_THREADS);
    crew.to = buffer;
    crew.fd = fd;
    crew.part_bytes = FILE_BYTES / limits->threads / PIECE_BYTES * PIECE_BYTES;
    limits->page_cache = best_rate(&crew, PASSES);
    (void)snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    direct = fsync(fd) ? -1 : open(name, O_RDONLY | O_DIRECT | O_CLOEXEC);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (direct >= 0) {
        crew.fd = direct;
        crew.threads = DISK_THREADS;
        crew.part_bytes = FILE_BYTES / DISK_THREADS / PIECE_BYTES * PIECE_BYTES;
        limits->disk = best_rate(&crew, 2);
        (void)close(direct);
    } else {
        heft_error_set(error, HEFT_ERR_UNSUPPORTED, "%s does not take O_DIRECT: its disk's rate is not known",
                       path);
    }
    free(buffer);
    (void)close(fd);
}

/* ---- loopback ---- */

#define TCP_BYTES ((size_t)1 << 30)

static void *tcp_sender(void *argument)
{
    int fd = *(int *)argument;
    size_t left = TCP_BYTES;
    char *piece = calloc(1, PIECE_BYTES);

    while (piece && left > 0) {
        ssize_t sent = send(fd, piece, left < PIECE_BYTES ? left : PIECE_BYTES, MSG_NOSIGNAL);

        if (sent <= 0)
            break;
        left -= (size_t)sent;
    }
    free(piece);
    (void)shutdown(fd, SHUT_WR);
    return NULL;
}

static void measure_tcp(struct heft_limits *limits, struct heft_error *error)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), client = -1, server = -1;
    char *piece = malloc(PIECE_BYTES);
    size_t got = 0;
    pthread_t thread;
    uint64_t begin;

    if (listener < 0 || !piece || bind(listener, (struct sockaddr *)&address, sizeof(address)) ||
        listen(listener, 1) || getsockname(listener, (struct sockaddr *)&address, &size) ||
        (client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0 ||
        connect(client, (struct sockaddr *)&address, sizeof(address)) ||
        (server = accept(listener, NULL, NULL)) < 0 || pthread_create(&thread, NULL, tcp_sender, &server)) {
        heft_error_set_errno(error, errno, "a loopback connection");
    } else {
        ssize_t size_got;

        begin = heft_now_ns();
        while ((size_got = recv(client, piece, PIECE_BYTES, 0)) > 0)
            got += (size_t)size_got;
        if (got == TCP_BYTES)
            limits->tcp = (double)got * HEFT_NS_PER_S / (double)(heft_now_ns() - begin);
        (void)pthread_join(thread, NULL);
    }
    if (client >= 0)
        (void)close(client);
    if (server >= 0)
        (void)close(server);
    if (listener >= 0)
        (void)close(listener);
    free(piece);
}

double heft_limits_measure_tcp(struct heft_error *error)
{
    struct heft_limits limits = {0};

    measure_tcp(&limits, error);
    return limits.tcp;
}

int heft_limits_measure(const char *path, struct heft_limits *limits_out, struct heft_error *error)
{
    struct heft_limits limits = {0};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    time_t now = time(NULL);
    struct tm parts;

    limits.threads = cores < 1 ? 1 : cores > (long)MAX_THREADS / 2 ? MAX_THREADS / 2 : (unsigned)cores;
    (void)snprintf(limits.path, sizeof(limits.path), "%s", path);
    (void)strftime(limits.when, sizeof(limits.when), "%Y-%m-%d", gmtime_r(&now, &parts));
    measure_memory(&limits, error);
    measure_disk(path, &limits, error);
    measure_tcp(&limits, error);
    heft_limits_measure_gpus(&limits, error);
    *limits_out = limits;
    return HEFT_OK;
}

/* ---- remembering ---- */

static int limits_path(char *text, size_t size, int make)
{
    int rc = heft_own_folder(NULL, make, text, size - sizeof("/limits.json"));

    if (!rc)
        memcpy(text + strlen(text), "/limits.json", sizeof("/limits.json"));
    return rc;
}

int heft_limits_write(const struct heft_limits *limits, struct heft_error *error)
{
    char path[4096], temporary[4112];
    json_t *object;
    int rc = limits_path(path, sizeof(path), 1);

    if (rc)
        return heft_error_set(error, rc, "no folder for the measured limits: set HOME or XDG_CACHE_HOME");
    object = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:s, s:s}", "memcpy_one",
                       limits->memcpy_one, "memcpy_all", limits->memcpy_all, "first_touch",
                       limits->first_touch, "page_cache", limits->page_cache, "disk", limits->disk, "tcp",
                       limits->tcp, "hash", limits->hash, "gpu_in", limits->gpu_in, "gpu_out",
                       limits->gpu_out, "gpu_gpu", limits->gpu_gpu, "threads", (int)limits->threads, "when",
                       limits->when, "path", limits->path);
    (void)snprintf(temporary, sizeof(temporary), "%s.%d", path, (int)getpid());
    errno = 0;
    rc = object && json_dump_file(object, temporary, JSON_INDENT(2)) == 0 && rename(temporary, path) == 0
             ? HEFT_OK
             : heft_error_set_errno(error, errno ? errno : EIO, "writing the measured limits to %s", path);
    json_decref(object);
    return rc;
}

int heft_limits_read(struct heft_limits *limits_out)
{
    struct heft_limits limits = {0};
    char path[4096];
    const char *when = "", *where = "";
    int threads = 0, rc = limits_path(path, sizeof(path), 0);
    json_t *object = rc ? NULL : json_load_file(path, 0, NULL);

    if (!object)
        return HEFT_ERR_NOT_FOUND;
    rc = json_unpack(object, "{s:F, s:F, s:F, s:F, s:F, s:F, s:F, s?F, s?F, s?F, s:i, s:s, s:s}",
                     "memcpy_one", &limits.memcpy_one, "memcpy_all", &limits.memcpy_all, "first_touch",
                     &limits.first_touch, "page_cache", &limits.page_cache, "disk", &limits.disk, "tcp",
                     &limits.tcp, "hash", &limits.hash, "gpu_in", &limits.gpu_in, "gpu_out", &limits.gpu_out,
                     "gpu_gpu", &limits.gpu_gpu, "threads", &threads, "when", &when, "path", &where)
             ? HEFT_ERR_NOT_FOUND
             : HEFT_OK;
    limits.threads = threads > 0 ? (unsigned)threads : 1;
    (void)snprintf(limits.when, sizeof(limits.when), "%s", when);
    (void)snprintf(limits.path, sizeof(limits.path), "%s", where);
    json_decref(object);
    if (!rc)
        *limits_out = limits;
    return rc;
}
