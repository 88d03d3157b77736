/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_pull: a decode process pulls the pages of a sequence out of a prefill process's KV cache.
 *
 *     kv_pull prefill CARD            holds a cache and serves it until its standard input ends
 *     kv_pull decode CARD [ROUNDS]    pulls 64 pages of every layer into pages of its own, ROUNDS times (100)
 *
 * CARD is a file by which the first tells the second how to reach it; it holds the token, so it is its
 * owner's alone. Both caches have the same shape: page p of layer l is item l * PAGES + p of a list that is
 * prepared once. Each round picks other pages, and only says which: nothing is registered, looked up or
 * checked again.
 */
#include <heft/heft.h>
#include <heft/metadata.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LAYERS 32u
#define PAGES 256u
#define PAGE_BYTES 16384u /* 16 tokens x 8 heads x 64 values x 2 bytes, for instance */
#define PULLED 64u

static struct heft_error error = HEFT_ERROR_INIT;

static int failed(const char *what)
{
    fprintf(stderr, "kv_pull: %s: %s: %s\n", what, heft_error_name(error.code), error.text);
    return 1;
}

/* A cache in memory that peers on this host can map; who may read it is the region's flags. */
static int make_cache(struct heft_agent *agent, uint32_t flags, uint64_t **cache_out,
                      struct heft_region **region_out)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_memory_info info;
    struct heft_memory *memory;

    if (heft_memory_alloc((uint64_t)LAYERS * PAGES * PAGE_BYTES, HEFT_MEMORY_PREFAULT, &memory, &error))
        return failed("the cache's memory");
    heft_memory_get_info(memory, &info);
    options.memory = memory;
    options.flags = flags;
    if (heft_region_register(agent, &options, region_out, &error))
        return failed("registering the cache");
    *cache_out = info.address;
    return 0;
}

static uint64_t word_of(uint32_t layer, uint32_t page, uint32_t at)
{
    return ((uint64_t)layer << 48 | (uint64_t)page << 32 | at) * UINT64_C(0x9E3779B97F4A7C15);
}

static uint64_t *page_at(uint64_t *cache, uint32_t layer, uint32_t page)
{
    return cache + ((uint64_t)layer * PAGES + page) * PAGE_BYTES / 8;
}

static int write_card(const char *path, const void *data, uint64_t size)
{
    char draft[4096];
    FILE *file;
    int ok;

    (void)snprintf(draft, sizeof(draft), "%s.new", path);
    (void)umask(0077);
    file = fopen(draft, "wb");
    ok = file && fwrite(data, 1, size, file) == size;
    ok = file && fclose(file) == 0 && ok && rename(draft, path) == 0; /* readers see all of it or nothing */
    if (!ok)
        perror(path);
    return !ok;
}

static int prefill(const char *card)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_agent *agent;
    struct heft_region *region;
    uint64_t *cache, size;
    uint32_t layer, page, at;
    void *data;

    options.name = "prefill";
    options.listen = "unix,127.0.0.1:0"; /* who is on this host maps the memory */
    if (heft_agent_open(&options, &agent, &error))
        return failed("opening the agent");
    if (make_cache(agent, HEFT_REGION_REMOTE_READ, &cache, &region))
        return 1;
    for (layer = 0; layer < LAYERS; layer++)
        for (page = 0; page < PAGES; page++)
            for (at = 0; at < PAGE_BYTES / 8; at++)
                page_at(cache, layer, page)[at] = word_of(layer, page, at);
    if (heft_agent_export_metadata(agent, NULL, &data, &size, &error))
        return failed("telling how to be reached");
    if (write_card(card, data, size))
        return 1;
    heft_free(data);
    printf("serving %u layers of %u pages\n", LAYERS, PAGES);
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    return heft_agent_close(agent, &error) ? failed("closing") : 0;
}

static int read_card(const char *path, struct heft_metadata **metadata_out)
{
    static char data[65536];
    FILE *file = fopen(path, "rb");
    size_t size = file ? fread(data, 1, sizeof(data), file) : 0;

    if (!file) {
        perror(path);
        return 1;
    }
    (void)fclose(file);
    return heft_metadata_read(data, size, metadata_out, &error) ? failed(path) : 0;
}

/* All pages of a cache as one list. */
static struct heft_list *list_of(struct heft_agent *agent, struct heft_peer *peer, uint64_t region)
{
    struct heft_list_run run = {region, 0, PAGE_BYTES, (uint64_t)LAYERS * PAGES, PAGE_BYTES};
    struct heft_list *list = NULL;

    return heft_list_create(agent, peer, &run, 1, &list, &error) ? NULL : list;
}

/* Which pages the sequence has there, and which are free here: the same ones in every layer. */
static void pick(uint32_t there[PULLED], uint32_t here[PULLED], uint32_t round)
{
    uint32_t index;

    for (index = 0; index < PULLED; index++) {
        there[index] = (index * 37 + round * 101) % PAGES; /* 37 is odd: no page twice */
        here[index] = (index * 91 + round * 13) % PAGES;
    }
}

static int check(uint64_t *cache, const uint32_t there[PULLED], const uint32_t here[PULLED])
{
    uint32_t layer, index, at;

    for (layer = 0; layer < LAYERS; layer++)
        for (index = 0; index < PULLED; index++)
            for (at = 0; at < PAGE_BYTES / 8; at++)
                if (page_at(cache, layer, here[index])[at] != word_of(layer, there[index], at)) {
                    fprintf(stderr, "kv_pull: layer %u, page %u is wrong\n", layer, there[index]);
                    return 1;
                }
    return 0;
}

static int decode(const char *card, uint32_t rounds)
{
    static uint32_t theirs[LAYERS * PULLED], ours[LAYERS * PULLED];
    uint32_t there[PULLED], here[PULLED], round, layer, index;
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_metadata_region shown = {.size = sizeof(shown)};
    struct heft_list *from, *to;
    struct heft_metadata *metadata;
    struct heft_xfer *pull = NULL;
    struct heft_region *region;
    struct heft_agent *agent;
    struct heft_peer *peer;
    uint64_t *cache, took_ns = 0, bytes = 0;

    if (heft_agent_open(NULL, &agent, &error))
        return failed("opening the agent");
    if (make_cache(agent, 0, &cache, &region) || read_card(card, &metadata))
        return 1;
    if (heft_metadata_connect(agent, metadata, NULL, &peer, &error))
        return failed("connecting");
    if (heft_metadata_get_region(metadata, 0, &shown))
        return failed("looking for the cache");
    from = list_of(agent, peer, shown.id);
    to = list_of(agent, NULL, heft_region_id(region));
    if (!from || !to)
        return failed("preparing the lists");
    for (round = 0; round < rounds; round++) {
        int rc;

        pick(there, here, round);
        for (layer = 0; layer < LAYERS; layer++)
            for (index = 0; index < PULLED; index++) {
                theirs[layer * PULLED + index] = layer * PAGES + there[index];
                ours[layer * PULLED + index] = layer * PAGES + here[index];
            }
        rc = pull ? heft_xfer_set_indexed(pull, to, ours, from, theirs, LAYERS * PULLED, &error)
                  : heft_xfer_create_indexed(agent, HEFT_OP_READ, to, ours, from, theirs, LAYERS * PULLED,
                                             NULL, &pull, &error);
        if (rc || heft_xfer_post(pull, &error))
            return failed("asking for the pages");
        (void)heft_xfer_wait(pull,
                             UINT64_MAX); /* ends by itself: the transfer has a deadline and a stall limit */
        heft_xfer_get_result(pull, &result);
        if (result.status) {
            error = result.error;
            return failed("pulling");
        }
        took_ns += result.end_ns - result.start_ns;
        bytes += result.bytes;
        if (check(cache, there, here))
            return 1;
    }
    printf("%u rounds of %u pages by %s: %.1f GB/s\n", rounds, LAYERS * PULLED, result.transport,
           took_ns ? (double)bytes / (double)took_ns : 0);
    (void)heft_xfer_release(pull);
    heft_list_destroy(from);
    heft_list_destroy(to);
    heft_metadata_free(metadata);
    (void)heft_peer_close(peer, NULL);
    return heft_agent_close(agent, &error) ? failed("closing") : 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "prefill") == 0)
        return prefill(argv[2]);
    if ((argc == 3 || argc == 4) && strcmp(argv[1], "decode") == 0)
        return decode(argv[2], argc == 4 ? (uint32_t)strtoul(argv[3], NULL, 10) : 100);
    fprintf(stderr, "usage: kv_pull prefill CARD\n       kv_pull decode CARD [ROUNDS]\n");
    return 2;
}
