/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What prepared lists cost a descriptor, between two processes of this host: making the lists, making a
 * transfer of them by shuffled numbers, and posting that to its end; beside the bare loop over the same
 * places. `mapped`: memory that heft allocated, bare: copies into a shared mapping. `attached`: any memory,
 * bare: cross-memory calls of 1,024 pieces. Items regular (one every other place) or not (the same places in
 * random order). Everything in turn in one run; medians. The bytes are compared after each row.
 *
 *   bench_list BYTES ITEMS [mapped|attached [ROUNDS [write|read]]]     one line: kind, then ns an item
 *   bench_list register            ns to register 4 regions: median, first and last of 100 rounds; their
 * metadata's bytes
 */
#include "base/clock.h"

#include <heft/agent.h>
#include <heft/metadata.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SAMPLES_MAX 4096
#define IOV_MAX_CALL 1024

enum part { HERE, THERE, MAKE, POST, BARE, PART_COUNT };
static const char *const parts[] = {"local", "remote", "make", "post", "bare"};

struct card {
    char addresses[1024];
    struct heft_token token;
    uint64_t region;
};

struct bench {
    uint64_t item_bytes, stride_bytes;
    size_t count;
    int attached, is_read;
    struct heft_memory *memory[2];
    uint8_t *bytes[2];
    struct heft_agent *agent;
    struct heft_peer *peer;
    struct heft_region *region;
    uint64_t ids[2];
    pid_t server;
    struct heft_list_run *runs[2];
    uint32_t *shuffled;
    uint64_t random;
    uint64_t samples[PART_COUNT][SAMPLES_MAX];
    size_t sampled[PART_COUNT];
};

static void must(int rc, const struct heft_error *error)
{
    if (rc == 0)
        return;
    (void)fprintf(stderr, "bench_list: %s: %s\n", heft_error_name(rc), error->text);
    exit(1);
}

static struct heft_agent *open_agent(const char *name, const char *listen)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *agent = NULL;

    options.name = name;
    options.listen = listen;
    options.workers = 1;
    must(heft_agent_open(&options, &agent, &error), &error);
    return agent;
}

static struct heft_region *add_region(struct heft_agent *agent, const struct bench *bench, int side)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_region *region = NULL;
    struct heft_memory_info info;

    heft_memory_get_info(bench->memory[side], &info);
    options.memory = bench->attached ? NULL : bench->memory[side];
    options.address = info.address;
    options.length_bytes = info.length_bytes;
    options.flags = HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE;
    must(heft_region_register(agent, &options, &region, &error), &error);
    return region;
}

/* The other process: offers its memory until its input ends. Its agent is made there, after the fork. */
static void serve(const struct bench *bench, int in, int out)
{
    struct heft_agent *agent = open_agent("server", "unix");
    struct heft_region *region = add_region(agent, bench, 1);
    struct card card = {.region = heft_region_id(region), .token = heft_agent_token(agent)};
    char byte;

    if (heft_agent_addresses(agent, card.addresses, sizeof(card.addresses)) ||
        write(out, &card, sizeof(card)) != (ssize_t)sizeof(card))
        _exit(1);
    while (read(in, &byte, 1) > 0)
        ;
    _exit(heft_agent_close(agent, NULL) ? 1 : 0);
}

static void open_bench(struct bench *bench, int *in_out)
{
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_memory_info info;
    struct card card;
    int there[2], back[2], side;

    for (side = 0; side < 2; side++) { /* both mapped in both: the bare loops and the checks need them */
        must(heft_memory_alloc(bench->count * bench->stride_bytes, HEFT_MEMORY_PREFAULT, &bench->memory[side],
                               &error),
             &error);
        heft_memory_get_info(bench->memory[side], &info);
        bench->bytes[side] = info.address;
    }
    bench->runs[0] = calloc(bench->count, sizeof(*bench->runs[0]));
    bench->runs[1] = calloc(bench->count, sizeof(*bench->runs[1]));
    bench->shuffled = calloc(bench->count, sizeof(*bench->shuffled));
    if (!bench->runs[0] || !bench->runs[1] || !bench->shuffled || pipe(there) || pipe(back))
        exit(1);
    bench->server = fork();
    if (bench->server == 0) {
        (void)close(there[1]);
        serve(bench, there[0], back[1]);
    }
    (void)close(there[0]);
    (void)close(back[1]);
    *in_out = there[1];
    if (bench->server < 0 || read(back[0], &card, sizeof(card)) != (ssize_t)sizeof(card))
        exit(1);
    bench->agent = open_agent("client", NULL);
    bench->region = add_region(bench->agent, bench, 0);
    bench->ids[0] = heft_region_id(bench->region);
    bench->ids[1] = card.region;
    options.addresses = card.addresses;
    options.token = card.token;
    must(heft_peer_connect(bench->agent, &options, &bench->peer, &error), &error);
}

static void shuffle(struct bench *bench)
{
    size_t index;

    for (index = 0; index < bench->count; index++)
        bench->shuffled[index] = (uint32_t)index;
    for (index = bench->count; index > 1; index--) {
        uint32_t kept = bench->shuffled[index - 1];
        size_t other;

        bench->random = bench->random * 6364136223846793005u + 1442695040888963407u;
        other = (size_t)(bench->random >> 33) % index;
        bench->shuffled[index - 1] = bench->shuffled[other];
        bench->shuffled[other] = kept;
    }
}

static void fill_runs(struct bench *bench, int regular)
{
    size_t index;
    int side;

    for (side = 0; side < 2; side++) {
        if (!regular)
            shuffle(bench);
        for (index = 0; index < bench->count; index++)
            bench->runs[side][index] = (struct heft_list_run){
                .region = bench->ids[side],
                .offset_bytes = (regular ? index : bench->shuffled[index]) * bench->stride_bytes,
                .length_bytes = bench->item_bytes,
                .count = 1};
    }
    shuffle(bench);
}

static void sample(struct bench *bench, enum part part, uint64_t since_ns)
{
    if (bench->sampled[part] < SAMPLES_MAX)
        bench->samples[part][bench->sampled[part]++] = heft_now_ns() - since_ns;
}

static void copy_bare(const struct bench *bench)
{
    size_t index;

    for (index = 0; index < bench->count; index++) {
        uint32_t item = bench->shuffled[index];
        uint8_t *here = bench->bytes[0] + bench->runs[0][item].offset_bytes;
        uint8_t *there = bench->bytes[1] + bench->runs[1][item].offset_bytes;

        memcpy(bench->is_read ? here : there, bench->is_read ? there : here, bench->item_bytes);
    }
}

static void attach_bare(const struct bench *bench)
{
    static struct iovec here[IOV_MAX_CALL], there[IOV_MAX_CALL];
    size_t index, used = 0;

    for (index = 0; index < bench->count; index++) {
        uint32_t item = bench->shuffled[index];

        here[used] = (struct iovec){bench->bytes[0] + bench->runs[0][item].offset_bytes, bench->item_bytes};
        there[used] = (struct iovec){bench->bytes[1] + bench->runs[1][item].offset_bytes, bench->item_bytes};
        if (++used < IOV_MAX_CALL && index + 1 < bench->count)
            continue;
        if ((bench->is_read ? process_vm_readv(bench->server, here, used, there, used, 0)
                            : process_vm_writev(bench->server, here, used, there, used, 0)) !=
            (ssize_t)(used * bench->item_bytes))
            exit(1);
        used = 0;
    }
}

static void check_bytes(const struct bench *bench)
{
    size_t index;

    for (index = 0; index < bench->count; index++)
        if (memcmp(bench->bytes[0] + bench->runs[0][index].offset_bytes,
                   bench->bytes[1] + bench->runs[1][index].offset_bytes, bench->item_bytes) != 0) {
            (void)fprintf(stderr, "bench_list: item %zu is not what was moved\n", index);
            exit(1);
        }
}

static void one_round(struct bench *bench, int turns)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_list *here = NULL, *there = NULL;
    struct heft_xfer *xfer = NULL;
    uint64_t since_ns = heft_now_ns();

    options.require = "local";
    options.flags = HEFT_XFER_INLINE;
    must(heft_list_create(bench->agent, NULL, bench->runs[0], bench->count, &here, &error), &error);
    sample(bench, HERE, since_ns);
    since_ns = heft_now_ns();
    must(heft_list_create(bench->agent, bench->peer, bench->runs[1], bench->count, &there, &error), &error);
    sample(bench, THERE, since_ns);
    since_ns = heft_now_ns();
    must(heft_xfer_create_indexed(bench->agent, bench->is_read ? HEFT_OP_READ : HEFT_OP_WRITE, here,
                                  bench->shuffled, there, bench->shuffled, bench->count, &options, &xfer,
                                  &error),
         &error);
    sample(bench, MAKE, since_ns);
    while (turns-- > 0) {
        since_ns = heft_now_ns();
        must(heft_xfer_post(xfer, &error), &error);
        must(heft_xfer_wait(xfer, 60000), &error);
        sample(bench, POST, since_ns);
        since_ns = heft_now_ns();
        if (bench->attached)
            attach_bare(bench);
        else
            copy_bare(bench);
        sample(bench, BARE, since_ns);
    }
    must(heft_xfer_release(xfer), &error);
    heft_list_destroy(here);
    heft_list_destroy(there);
}

static int by_size(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return left < right ? -1 : left > right;
}

static void print_row(struct bench *bench, const char *kind)
{
    int part;

    (void)printf("%-10s", kind);
    for (part = 0; part < PART_COUNT; part++) {
        qsort(bench->samples[part], bench->sampled[part], sizeof(uint64_t), by_size);
        (void)printf(" %s %.3f", parts[part],
                     (double)bench->samples[part][bench->sampled[part] / 2] / (double)bench->count);
        bench->sampled[part] = 0;
    }
    (void)printf("\n");
    (void)fflush(stdout);
}

/* Four regions hold any number of tensors: those are offsets. */
static int time_registration(void)
{
    struct heft_agent *agent = open_agent("client", "unix");
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_region *regions[4];
    uint64_t took_ns[100], first_ns, last_ns, metadata_bytes = 0, bytes = (uint64_t)100 << 20;
    uint8_t *memory =
        mmap(NULL, 4 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *metadata;
    int round, index;

    if (memory == MAP_FAILED)
        exit(1);
    for (round = 0; round < 100; round++) {
        uint64_t since_ns = heft_now_ns();

        for (index = 0; index < 4; index++) {
            struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;

            options.address = memory + (uint64_t)index * bytes;
            options.length_bytes = bytes;
            options.flags = HEFT_REGION_REMOTE_READ;
            must(heft_region_register(agent, &options, &regions[index], &error), &error);
        }
        took_ns[round] = heft_now_ns() - since_ns;
        if (round == 0) {
            must(heft_agent_export_metadata(agent, NULL, &metadata, &metadata_bytes, &error), &error);
            heft_free(metadata);
        }
        for (index = 0; index < 4; index++)
            must(heft_region_deregister(regions[index], &error), &error);
    }
    first_ns = took_ns[0];
    last_ns = took_ns[99];
    qsort(took_ns, 100, sizeof(took_ns[0]), by_size);
    (void)printf("register %llu first %llu last %llu metadata %llu\n", (unsigned long long)took_ns[50],
                 (unsigned long long)first_ns, (unsigned long long)last_ns,
                 (unsigned long long)metadata_bytes);
    (void)munmap(memory, 4 * bytes);
    must(heft_agent_close(agent, &error), &error);
    return 0;
}

int main(int argc, char **argv)
{
    static struct bench bench = {.random = 5};
    struct heft_error error = HEFT_ERROR_INIT;
    long rounds = argc > 4 ? strtol(argv[4], NULL, 10) : 7, round;
    int regular, in, turns, status = 0;

    if (argc == 2 && strcmp(argv[1], "register") == 0)
        return time_registration();
    if (argc < 3)
        return 2;
    bench.item_bytes = strtoull(argv[1], NULL, 10);
    bench.count = strtoull(argv[2], NULL, 10);
    bench.attached = argc > 3 && strcmp(argv[3], "attached") == 0;
    bench.is_read = argc > 5 && strcmp(argv[5], "read") == 0;
    if (bench.item_bytes < 1 || bench.count < 1 || rounds < 1)
        return 2;
    bench.stride_bytes = bench.count > 1 ? 2 * bench.item_bytes : bench.item_bytes;
    turns = bench.count * bench.item_bytes <= 1 << 20 ? 32 : 3;
    (void)signal(SIGPIPE, SIG_IGN);
    open_bench(&bench, &in);
    for (regular = 1; regular >= 0; regular--) {
        fill_runs(&bench, regular);
        memset(bench.bytes[0], regular + 3, bench.count * bench.stride_bytes);
        memset(bench.bytes[1], regular + 7, bench.count * bench.stride_bytes);
        for (round = 0; round < rounds; round++)
            one_round(&bench, turns);
        check_bytes(&bench);
        print_row(&bench, regular ? "regular" : "irregular");
        if (bench.count == 1)
            break;
    }
    must(heft_agent_close(bench.agent, &error), &error);
    (void)close(in);
    heft_memory_free(bench.memory[0]);
    heft_memory_free(bench.memory[1]);
    free(bench.runs[0]);
    free(bench.runs[1]);
    free(bench.shuffled);
    return waitpid(bench.server, &status, 0) == bench.server && status == 0 ? 0 : 1;
}
