/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What opening a sharded model costs, step by step: parsing its headers, then what comes after it until bytes
 * can move. bench_open.py makes the model and runs this beside the reference.
 *
 *   bench_open FOLDER PASSES    nanoseconds of the thread's time, a line a pass: headers and index (parsing
 *                               what lies in memory already), manifest (from both), plan (layout and plan of
 *                               the whole model), rank (those of rank 3 of 8), open (all of heft_open_model:
 *                               reading, the first three, the revision)
 */
#include "base/error.h"
#include "format/modeldir.h"
#include "load/open.h"
#include "load/open_list.h"
#include "plan/plan.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ALIGN_BYTES 256u /* as a load lays out */

struct text {
    uint8_t *data;
    uint64_t size, file_bytes;
};

static _Noreturn void stop(const char *what, const struct heft_error *error)
{
    (void)fprintf(stderr, "bench_open: %s: %s\n", what, error ? error->text : "can't be read");
    exit(1);
}

/* One thread's work that never waits: other programs on the machine do not count. */
static uint64_t cpu_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* The whole file, or only its header. */
static struct text read_text(const char *folder, const char *name, int header_only)
{
    struct text text = {0};
    char path[4096];
    struct stat st;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0)
        stop(path, NULL);
    text.size = text.file_bytes = (uint64_t)st.st_size;
    if (header_only) {
        if (heft_read_at(fd, &text.size, 8, 0) != 8)
            stop(path, NULL);
        text.size += 8;
    }
    text.data = malloc(text.size);
    if (!text.data || heft_read_at(fd, text.data, text.size, 0) != (int64_t)text.size)
        stop(path, NULL);
    (void)close(fd);
    return text;
}

/* What stands between files that are read and bytes that move. */
struct steps {
    uint64_t parse_ns, index_ns, manifest_ns, plan_ns, rank_ns, open_ns;
};

static uint64_t parse_headers(const struct text *texts, struct heft_dir_shard *shards, uint32_t count)
{
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t begin = cpu_ns();
    uint32_t index;

    for (index = 0; index < count; index++) {
        struct heft_st_header *header;

        if (heft_st_parse(texts[index].data + 8, texts[index].size - 8, texts[index].file_bytes, NULL,
                          &header, &error))
            stop("headers", &error);
        shards[index].header = header;
    }
    return cpu_ns() - begin;
}

static uint64_t time_plan(const struct heft_manifest *manifest, uint32_t rank, uint32_t ranks)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_layout *layout;
    struct heft_plan *plan;
    uint64_t begin = cpu_ns(), taken;

    if (heft_layout_rank(manifest, rank, ranks, HEFT_SPLIT_ROW, ALIGN_BYTES, &layout, &error) ||
        heft_plan_make(layout, &manifest, 1, 0, &plan, &error))
        stop("plan", &error);
    taken = cpu_ns() - begin;
    heft_plan_free(plan);
    heft_layout_free(layout);
    return taken;
}

static void run_pass(const char *folder, const struct text *json, const struct text *texts,
                     struct heft_dir_shard *shards, uint32_t count, struct steps *steps)
{
    struct heft_identity identity = {.model = "m", .revision = "1"};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_shard_index *index;
    struct heft_manifest *manifest;
    struct heft_opened *opened;
    uint64_t begin;
    uint32_t at;

    steps->parse_ns = parse_headers(texts, shards, count);
    begin = cpu_ns();
    if (heft_index_parse(json->data, json->size, &index, &error))
        stop("index", &error);
    steps->index_ns = cpu_ns() - begin;
    begin = cpu_ns();
    if (heft_dir_manifest(shards, count, index, &identity, &manifest, NULL, &error))
        stop("manifest", &error);
    steps->manifest_ns = cpu_ns() - begin;
    heft_index_free(index);
    for (at = 0; at < count; at++)
        heft_st_free((struct heft_st_header *)(uintptr_t)shards[at].header);
    steps->plan_ns = time_plan(manifest, 0, 1);
    steps->rank_ns = time_plan(manifest, 3, 8);
    heft_manifest_free(manifest);
    begin = cpu_ns();
    if (heft_open_model(folder, NULL, &opened, &error))
        stop("open", &error);
    steps->open_ns = cpu_ns() - begin;
    heft_opened_free(opened);
}

int main(int argc, char **argv)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_dir_shard *shards;
    struct heft_opened *opened;
    struct text json, *texts;
    struct steps steps;
    uint32_t count, index;
    long passes;

    if (argc != 3)
        return 2;
    if (heft_open_model(argv[1], NULL, &opened, &error))
        stop("open", &error);
    count = opened->file_count;
    texts = calloc(count, sizeof(*texts));
    shards = calloc(count, sizeof(*shards));
    if (!texts || !shards)
        stop("headers", NULL);
    for (index = 0; index < count; index++) {
        texts[index] = read_text(argv[1], opened->manifest->files[index].name, 1);
        shards[index].name = opened->manifest->files[index].name;
        shards[index].size_bytes = texts[index].file_bytes;
    }
    json = read_text(argv[1], "model.safetensors.index.json", 0);
    for (passes = strtol(argv[2], NULL, 10); passes > 0; passes--) {
        run_pass(argv[1], &json, texts, shards, count, &steps);
        (void)printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
                     steps.parse_ns, steps.index_ns, steps.manifest_ns, steps.plan_ns, steps.rank_ns,
                     steps.open_ns);
    }
    for (index = 0; index < count; index++)
        free(texts[index].data);
    free(texts);
    free(shards);
    free(json.data);
    heft_opened_free(opened);
    return 0;
}
