/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What prepared lists cost a descriptor: making the list, making a transfer of it by shuffled numbers, and
 * posting that to its end; beside the bare loop of copies over the same places. Two agents in one process,
 * regions in memory that heft allocated, so that the peer's is mapped. Items regular (one every STRIDE bytes)
 * or not (the same places in random order).
 *
 *   bench_list [BYTES [ROUNDS [ITEMS]]]: lists of that many items only
 */
#include "base/clock.h"

#include <heft/agent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ITEMS ((size_t)1 << 20)

struct bench {
    struct heft_agent *server, *client;
    struct heft_peer *peer;
    struct heft_memory *memory[2];
    struct heft_region *region[2];
    uint8_t *bytes[2];
    struct heft_list_run *runs[2];
    uint32_t *shuffled;
    uint64_t item_bytes, stride_bytes;
    uint64_t random;
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

static void add_memory(struct bench *bench, int side, struct heft_agent *agent)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_memory_info info;

    must(heft_memory_alloc(MOST_ITEMS * bench->stride_bytes, HEFT_MEMORY_PREFAULT, &bench->memory[side],
                           &error),
         &error);
    heft_memory_get_info(bench->memory[side], &info);
    bench->bytes[side] = info.address;
    options.memory = bench->memory[side];
    options.flags = side ? HEFT_REGION_REMOTE_WRITE : 0;
    must(heft_region_register(agent, &options, &bench->region[side], &error), &error);
}

static void open_bench(struct bench *bench)
{
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    char addresses[2048];

    bench->server = open_agent("server", "unix");
    bench->client = open_agent("client", NULL);
    add_memory(bench, 0, bench->client);
    add_memory(bench, 1, bench->server);
    must(heft_agent_addresses(bench->server, addresses, sizeof(addresses)), &error);
    options.addresses = addresses;
    options.token = heft_agent_token(bench->server);
    must(heft_peer_connect(bench->client, &options, &bench->peer, &error), &error);
    bench->runs[0] = calloc(MOST_ITEMS, sizeof(*bench->runs[0]));
    bench->runs[1] = calloc(MOST_ITEMS, sizeof(*bench->runs[1]));
    bench->shuffled = calloc(MOST_ITEMS, sizeof(*bench->shuffled));
    if (!bench->runs[0] || !bench->runs[1] || !bench->shuffled)
        exit(1);
}

static void shuffle(struct bench *bench, size_t count)
{
    size_t index;

    for (index = 0; index < count; index++)
        bench->shuffled[index] = (uint32_t)index;
    for (index = count; index > 1; index--) {
        uint32_t kept = bench->shuffled[index - 1];
        size_t other;

        bench->random = bench->random * 6364136223846793005u + 1442695040888963407u;
        other = (size_t)(bench->random >> 33) % index;
        bench->shuffled[index - 1] = bench->shuffled[other];
        bench->shuffled[other] = kept;
    }
}

static void fill_runs(struct bench *bench, size_t count, int regular)
{
    size_t index;
    int side;

    for (side = 0; side < 2; side++) {
        if (!regular)
            shuffle(bench, count);
        for (index = 0; index < count; index++)
            bench->runs[side][index] = (struct heft_list_run){
                .region = heft_region_id(bench->region[side]),
                .offset_bytes = (regular ? index : bench->shuffled[index]) * bench->stride_bytes,
                .length_bytes = bench->item_bytes,
                .count = 1};
    }
    shuffle(bench, count);
}

struct times {
    uint64_t here, there, make, post, bare;
};

static void keep_least(uint64_t *least, uint64_t since_ns)
{
    uint64_t took = heft_now_ns() - since_ns;

    if (took < *least)
        *least = took;
}

static void copy_bare(const struct bench *bench, size_t count)
{
    size_t index;

    for (index = 0; index < count; index++) {
        uint32_t item = bench->shuffled[index];

        memcpy(bench->bytes[1] + bench->runs[1][item].offset_bytes,
               bench->bytes[0] + bench->runs[0][item].offset_bytes, bench->item_bytes);
    }
}

static void one_round(struct bench *bench, size_t count, struct times *least)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_list *here = NULL, *there = NULL;
    struct heft_xfer *xfer = NULL;
    uint64_t since_ns = heft_now_ns();
    int turn;

    options.require = "local";
    options.flags = HEFT_XFER_INLINE;
    must(heft_list_create(bench->client, NULL, bench->runs[0], count, &here, &error), &error);
    keep_least(&least->here, since_ns);
    since_ns = heft_now_ns();
    must(heft_list_create(bench->client, bench->peer, bench->runs[1], count, &there, &error), &error);
    keep_least(&least->there, since_ns);
    since_ns = heft_now_ns();
    must(heft_xfer_create_indexed(bench->client, HEFT_OP_WRITE, here, bench->shuffled, there, bench->shuffled,
                                  count, &options, &xfer, &error),
         &error);
    keep_least(&least->make, since_ns);
    for (turn = 0; turn < (count < 4096 ? 64 : 3); turn++) {
        since_ns = heft_now_ns();
        must(heft_xfer_post(xfer, &error), &error);
        must(heft_xfer_wait(xfer, 60000), &error);
        keep_least(&least->post, since_ns);
        since_ns = heft_now_ns();
        copy_bare(bench, count);
        keep_least(&least->bare, since_ns);
    }
    must(heft_xfer_release(xfer), &error);
    heft_list_destroy(here);
    heft_list_destroy(there);
}

int main(int argc, char **argv)
{
    struct bench bench = {.random = 5};
    struct heft_error error = HEFT_ERROR_INIT;
    long rounds = argc > 2 ? strtol(argv[2], NULL, 10) : 7, round;
    size_t count, only = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    int regular;

    bench.item_bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 64;
    if (bench.item_bytes < 1 || bench.item_bytes > 4096 || rounds < 1)
        return 2;
    bench.stride_bytes = bench.item_bytes * 2;
    open_bench(&bench);
    (void)printf("%llu-byte items, ns each, least of %ld rounds\n", (unsigned long long)bench.item_bytes,
                 rounds);
    (void)printf("%-10s %8s %8s %8s %8s %8s %8s\n", "list", "items", "local", "remote", "make", "post",
                 "bare");
    for (regular = 1; regular >= 0; regular--)
        for (count = 256; count <= MOST_ITEMS; count *= 8) {
            if (only && count != only)
                continue;
            struct times least = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
            double each = (double)count;

            fill_runs(&bench, count, regular);
            for (round = 0; round < rounds; round++)
                one_round(&bench, count, &least);
            (void)printf("%-10s %8zu %8.2f %8.2f %8.2f %8.2f %8.2f\n", regular ? "regular" : "irregular",
                         count, (double)least.here / each, (double)least.there / each,
                         (double)least.make / each, (double)least.post / each, (double)least.bare / each);
        }
    must(heft_agent_close(bench.client, &error), &error);
    must(heft_agent_close(bench.server, &error), &error);
    heft_memory_free(bench.memory[0]);
    heft_memory_free(bench.memory[1]);
    free(bench.runs[0]);
    free(bench.runs[1]);
    free(bench.shuffled);
    return 0;
}
