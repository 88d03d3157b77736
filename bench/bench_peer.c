/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peer to host, two processes on one machine, each path beside the bare limit it is judged by:
 *
 *   local mapped     memcpy between touched memory, as many threads
 *   local attached   process_vm_readv, as many threads
 *   tcp              iperf3 (run by bench_peer.py, in turn with this program's `tcp` lines)
 *
 *   bench_peer [--mib N] [--threads N] [--streams N]
 * reads parts from its input, one a line, and answers each with its GB/s: memcpy local attach attached tcp
 * unix, each also with "-hash" (XXH3-64 of every chunk right after it arrived).
 */
#include <heft/heft.h>

#include "base/clock.h"
#include "base/digest.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHUNK ((uint64_t)1 << 20)
#define MAX_THREADS 64
#define AHEAD 8 /* transfers in flight, as an executor keeps them */

static uint64_t size_bytes = (uint64_t)1 << 30;
static uint32_t threads = 2, streams;

/* What the serving process tells. */
struct offer {
    char addresses[512];
    struct heft_token token;
    uint64_t shared_region, private_region;
    void *private_address;
    pid_t pid;
};

static void die(const char *what, const struct heft_error *error)
{
    (void)fprintf(stderr, "bench_peer: %s: %s\n", what, error != NULL ? error->text : "");
    exit(1);
}

static void fill(uint8_t *data, uint64_t seed)
{
    for (uint64_t i = 0; i < size_bytes; i += 8) {
        uint64_t value = (i + seed) * UINT64_C(0x9e3779b97f4a7c15);

        memcpy(data + i, &value, sizeof(value));
    }
}

static void *private_memory(void)
{
    void *data = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (data == MAP_FAILED)
        die("no memory", NULL);
    (void)madvise(data, size_bytes, MADV_HUGEPAGE);
    return data;
}

static struct heft_memory *shared_memory(void **address_out)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_memory *memory;
    struct heft_memory_info info;

    if (heft_memory_alloc(size_bytes, HEFT_MEMORY_PREFAULT, &memory, &error) != 0)
        die("memory", &error);
    heft_memory_get_info(memory, &info);
    *address_out = info.address;
    return memory;
}

static void serve(int out)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_region_options shared = HEFT_REGION_OPTIONS_INIT, owned = HEFT_REGION_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_region *region;
    struct heft_agent *agent;
    struct offer offer = {.pid = getpid()};
    void *address;

    options.name = "bench-source";
    options.listen = "unix,127.0.0.1:0";
    options.workers = threads;
    if (heft_agent_open(&options, &agent, &error) != 0)
        die("agent", &error);
    shared.memory = shared_memory(&address);
    shared.flags = HEFT_REGION_REMOTE_READ;
    fill(address, 1);
    if (heft_region_register(agent, &shared, &region, &error) != 0)
        die("region", &error);
    offer.shared_region = heft_region_id(region);
    owned.address = offer.private_address = private_memory();
    owned.length_bytes = size_bytes;
    owned.flags = HEFT_REGION_REMOTE_READ;
    fill(owned.address, 2);
    if (heft_region_register(agent, &owned, &region, &error) != 0)
        die("region", &error);
    offer.private_region = heft_region_id(region);
    offer.token = heft_agent_token(agent);
    (void)heft_agent_addresses(agent, offer.addresses, sizeof(offer.addresses));
    if (write(out, &offer, sizeof(offer)) != (ssize_t)sizeof(offer))
        exit(1);
    for (;;)
        (void)pause();
}

/* ---- bare limits ---- */

struct crew {
    uint8_t *to;
    const uint8_t *from;
    pid_t pid; /* 0: memcpy */
    int hash;
    uint64_t next; /* atomic */
    uint64_t sum;  /* atomic: keeps the hashes alive */
};

static void *crew_main(void *argument)
{
    struct crew *crew = argument;
    uint64_t at, sum = 0;

    while ((at = __atomic_fetch_add(&crew->next, CHUNK, __ATOMIC_RELAXED)) < size_bytes) {
        if (crew->pid == 0) {
            memcpy(crew->to + at, crew->from + at, CHUNK);
        } else {
            struct iovec here = {crew->to + at, CHUNK}, there = {(void *)(uintptr_t)(crew->from + at), CHUNK};

            if (process_vm_readv(crew->pid, &here, 1, &there, 1, 0) != (ssize_t)CHUNK)
                die("process_vm_readv", NULL);
        }
        if (crew->hash)
            sum ^= heft_hash64(crew->to + at, CHUNK, 0);
    }
    (void)__atomic_add_fetch(&crew->sum, sum, __ATOMIC_RELAXED);
    return NULL;
}

static double run_crew(struct crew crew)
{
    pthread_t ids[MAX_THREADS];
    uint64_t start = heft_now_ns();

    for (uint32_t i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, crew_main, &crew) != 0)
            die("thread", NULL);
    for (uint32_t i = 0; i < threads; i++)
        (void)pthread_join(ids[i], NULL);
    return (double)size_bytes / (double)(heft_now_ns() - start);
}

/* ---- through heft ---- */

struct job {
    struct heft_xfer **xfers;
    uint64_t count;
    uint64_t next, ended; /* atomic */
    uint8_t *to;
    int hash;
    uint64_t sum; /* atomic */
    pthread_mutex_t lock;
    pthread_cond_t over;
};

static void post_next(struct job *job)
{
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t at = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);

    if (at < job->count && heft_xfer_post(job->xfers[at], &error) != 0)
        die("post", &error);
}

static void chunk_done(struct heft_xfer *xfer, const struct heft_xfer_result *result, void *context)
{
    struct job *job = context;

    if (result->status != 0)
        die("transfer", &result->error);
    if (job->hash) {
        uint64_t index = 0;

        while (job->xfers[index] != xfer)
            index++;
        (void)__atomic_xor_fetch(&job->sum, heft_hash64(job->to + index * CHUNK, CHUNK, 0), __ATOMIC_RELAXED);
    }
    post_next(job);
    if (__atomic_add_fetch(&job->ended, 1, __ATOMIC_ACQ_REL) < job->count)
        return;
    (void)pthread_mutex_lock(&job->lock);
    (void)pthread_cond_signal(&job->over);
    (void)pthread_mutex_unlock(&job->lock);
}

static void job_prepare(struct job *job, struct heft_agent *agent, struct heft_peer *peer,
                        struct heft_region *local, void *to, uint64_t remote, const char *require)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;

    memset(job, 0, sizeof(*job));
    job->count = size_bytes / CHUNK;
    job->xfers = calloc(job->count, sizeof(job->xfers[0]));
    job->to = to;
    options.require = require;
    options.on_done = chunk_done;
    options.context = job;
    (void)pthread_mutex_init(&job->lock, NULL);
    (void)pthread_cond_init(&job->over, NULL);
    for (uint64_t i = 0; i < job->count; i++) {
        struct heft_run run = {.local_region = local,
                               .local_offset_bytes = i * CHUNK,
                               .remote_region = remote,
                               .remote_offset_bytes = i * CHUNK,
                               .length_bytes = CHUNK,
                               .count = 1};

        if (heft_xfer_create(agent, HEFT_OP_READ, peer, &run, 1, &options, &job->xfers[i], &error) != 0)
            die("transfer", &error);
    }
}

static double job_run(struct job *job, int hash)
{
    uint64_t start = heft_now_ns();

    job->next = job->ended = 0;
    job->hash = hash;
    for (int i = 0; i < AHEAD; i++)
        post_next(job);
    (void)pthread_mutex_lock(&job->lock);
    while (__atomic_load_n(&job->ended, __ATOMIC_ACQUIRE) < job->count)
        (void)pthread_cond_wait(&job->over, &job->lock);
    (void)pthread_mutex_unlock(&job->lock);
    return (double)size_bytes / (double)(heft_now_ns() - start);
}

static struct heft_peer *peer_at(struct heft_agent *agent, const struct offer *offer, const char *scheme)
{
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_peer *peer;
    char address[512] = "";
    const char *at = strstr(offer->addresses, scheme);

    if (at == NULL)
        die("no such address", NULL);
    (void)snprintf(address, sizeof(address), "%.*s", (int)strcspn(at, ","), at);
    options.addresses = address;
    options.token = offer->token;
    options.streams = streams;
    if (heft_peer_connect(agent, &options, &peer, &error) != 0)
        die("connect", &error);
    return peer;
}

struct bench {
    struct offer offer;
    struct heft_agent *agent;
    struct heft_region *local;
    uint8_t *to;
    uint8_t *from; /* for memcpy: memory like the peer's */
    struct job mapped, attached, tcp, unix_socket;
};

static double run_part(struct bench *bench, const char *part)
{
    struct crew crew = {.to = bench->to, .from = bench->from};
    const char *dash = strstr(part, "-hash");
    size_t length = dash != NULL ? (size_t)(dash - part) : strlen(part);
    struct job *job = NULL;

    crew.hash = dash != NULL;
    if (strncmp(part, "memcpy", length) == 0)
        return run_crew(crew);
    crew.from = bench->offer.private_address;
    crew.pid = bench->offer.pid;
    if (length == strlen("attach") && strncmp(part, "attach", length) == 0)
        return run_crew(crew);
    if (strncmp(part, "local", length) == 0)
        job = &bench->mapped;
    else if (strncmp(part, "attached", length) == 0)
        job = &bench->attached;
    else if (strncmp(part, "tcp", length) == 0)
        job = &bench->tcp;
    else if (strncmp(part, "unix", length) == 0)
        job = &bench->unix_socket;
    else
        die("no such part", NULL);
    return job_run(job, dash != NULL);
}

static void bench_open(struct bench *bench, int in)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_region_options region = HEFT_REGION_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_peer *near, *far;
    void *address;

    if (read(in, &bench->offer, sizeof(bench->offer)) != (ssize_t)sizeof(bench->offer))
        die("the source did not start", NULL);
    options.name = "bench-reader";
    options.workers = threads;
    if (heft_agent_open(&options, &bench->agent, &error) != 0)
        die("agent", &error);
    region.memory = shared_memory(&address);
    bench->to = address;
    if (heft_region_register(bench->agent, &region, &bench->local, &error) != 0)
        die("region", &error);
    (void)shared_memory(&address);
    bench->from = address;
    fill(bench->from, 3);
    near = peer_at(bench->agent, &bench->offer, "unix:");
    far = peer_at(bench->agent, &bench->offer, "tcp:");
    job_prepare(&bench->mapped, bench->agent, near, bench->local, bench->to, bench->offer.shared_region,
                "local");
    job_prepare(&bench->attached, bench->agent, near, bench->local, bench->to, bench->offer.private_region,
                "local");
    job_prepare(&bench->unix_socket, bench->agent, near, bench->local, bench->to, bench->offer.shared_region,
                "tcp");
    job_prepare(&bench->tcp, bench->agent, far, bench->local, bench->to, bench->offer.shared_region, "tcp");
}

int main(int argc, char **argv)
{
    char part[64];
    int first = 1, ends[2];
    struct bench bench = {0};
    pid_t source;

    for (; first + 1 < argc && strncmp(argv[first], "--", 2) == 0; first += 2) {
        uint32_t value = (uint32_t)strtoul(argv[first + 1], NULL, 10);

        if (strcmp(argv[first], "--mib") == 0)
            size_bytes = (uint64_t)value << 20;
        else if (strcmp(argv[first], "--threads") == 0 && value <= MAX_THREADS)
            threads = value;
        else if (strcmp(argv[first], "--streams") == 0)
            streams = value;
        else
            die("unknown option", NULL);
    }
    if (pipe(ends) != 0)
        die("pipe", NULL);
    source = fork();
    if (source == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(ends[1]);
    }
    (void)close(ends[1]);
    bench_open(&bench, ends[0]);
    while (fgets(part, sizeof(part), stdin) != NULL) {
        part[strcspn(part, "\n")] = '\0';
        (void)printf("%.3f\n", run_part(&bench, part));
        (void)fflush(stdout);
    }
    (void)kill(source, SIGKILL);
    (void)waitpid(source, NULL, 0);
    return 0;
}
