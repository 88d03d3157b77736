/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What planning costs: a model of many tensors, planned whole and for one rank of eight, against parsing the
 * safetensors headers of the same tensors. All of it is work of one thread that never waits, so the thread's
 * own time is what counts, whatever else the machine does. Usage: bench_plan [tensors] [passes].
 */
#include "format/safetensors.h"
#include "plan/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_PASSES 64
#define MAX_CHUNK_RUNS 65536
#define SHARD_TENSORS 500000u
#define TENSOR_BYTES 4096u

static _Noreturn void stop(const char *what, const struct heft_error *error)
{
    (void)fprintf(stderr, "bench_plan: %s: %s\n", what, error ? error->text : "");
    exit(1);
}

static uint64_t cpu_ns(void)
{
    struct timespec now;

    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now))
        stop("clock", NULL);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int compare(const void *left, const void *right)
{
    uint64_t l = *(const uint64_t *)left, r = *(const uint64_t *)right;

    return l < r ? -1 : l > r;
}

static void print_row(const char *what, uint64_t *times_ns, uint64_t passes, uint64_t tensors)
{
    qsort(times_ns, passes, sizeof(*times_ns), compare);
    (void)printf("%-44s %8.1f ms (%.1f to %.1f), %6.1f ns a tensor\n", what,
                 (double)times_ns[passes / 2] / 1e6, (double)times_ns[0] / 1e6,
                 (double)times_ns[passes - 1] / 1e6, (double)times_ns[passes / 2] / (double)tensors);
}

/* Names as long as those of real experts; shapes of 4 KiB in BF16; `turned`: even ones first. */
static struct heft_manifest *make_model(uint64_t tensors, int turned)
{
    struct heft_manifest *manifest = heft_manifest_new();
    struct heft_error error = HEFT_ERROR_INIT;
    const uint64_t shape[2] = {32, 64};
    char name[96];
    uint64_t index;

    if (!manifest || heft_manifest_add_file(manifest, "m", tensors * TENSOR_BYTES, 0, NULL, &error))
        stop("manifest", &error);
    for (index = 0; index < tensors; index++) {
        uint64_t place = turned ? index % 2 * ((tensors + 1) / 2) + index / 2 : index;
        struct heft_manifest_tensor tensor = {.name = name,
                                              .rank = 2,
                                              .dtype = "BF16",
                                              .dtype_bits = 16,
                                              .shape = shape,
                                              .offset_bytes = place * TENSOR_BYTES,
                                              .size_bytes = TENSOR_BYTES};

        tensor.name_bytes = (uint32_t)snprintf(
            name, sizeof(name), "model.layers.%" PRIu64 ".mlp.experts.%" PRIu64 ".down_proj.weight",
            index / 256, index % 256);
        if (heft_manifest_add_tensor(manifest, &tensor, &error))
            stop("tensor", &error);
    }
    if (heft_manifest_finish(manifest, &error))
        stop("finish", &error);
    return manifest;
}

static void *make_header(const struct heft_manifest_tensor *from, uint64_t count, size_t *size_out)
{
    struct heft_st_tensor *tensors = calloc(count, sizeof(*tensors));
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_buf buf;
    uint64_t index;

    if (!tensors)
        stop("header", NULL);
    for (index = 0; index < count; index++)
        tensors[index] = (struct heft_st_tensor){.name = from[index].name,
                                                 .name_bytes = from[index].name_bytes,
                                                 .rank = from[index].rank,
                                                 .dtype = from[index].dtype,
                                                 .dtype_bits = from[index].dtype_bits,
                                                 .shape = from[index].shape};
    heft_buf_init(&buf, HEFT_ST_HEADER_LIMIT_BYTES + 8);
    if (heft_st_write_header(tensors, count, NULL, 0, &buf, &error))
        stop("header", &error);
    free(tensors);
    *size_out = buf.size;
    return buf.data;
}

static uint64_t parse_once(const char *header, size_t size, uint64_t data_bytes)
{
    struct heft_st_limits limits = {0};
    struct heft_st_header *parsed = NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t begin = cpu_ns(), taken;

    if (heft_st_parse(header + 8, size - 8, size + data_bytes, &limits, &parsed, &error))
        stop("parse", &error);
    taken = cpu_ns() - begin;
    heft_st_free(parsed);
    return taken;
}

/* In shards, since a header of a million tensors would pass the limit of all readers. */
static void time_parse(const struct heft_manifest *manifest, uint64_t passes)
{
    uint64_t times[MAX_PASSES] = {0}, pass, first, count;

    for (first = 0; first < manifest->tensor_count; first += count) {
        size_t size = 0;
        char *header;

        count = manifest->tensor_count - first;
        count = count < SHARD_TENSORS ? count : SHARD_TENSORS;
        header = make_header(&manifest->tensors[first], count, &size);
        for (pass = 0; pass < passes; pass++)
            times[pass] += parse_once(header, size, count * TENSOR_BYTES);
        free(header);
    }
    print_row("parse the safetensors headers", times, passes, manifest->tensor_count);
}

static void time_plan(const char *what, const struct heft_layout *layout,
                      const struct heft_manifest *const *sources, uint32_t source_count, uint64_t passes)
{
    struct heft_plan_run *runs = malloc(MAX_CHUNK_RUNS * sizeof(*runs));
    uint64_t make_times[MAX_PASSES], run_times[MAX_PASSES], pass, chunk, run_count = 0, chunks = 0;
    struct heft_error error = HEFT_ERROR_INIT;
    char line[96];

    if (!runs)
        stop(what, NULL);
    for (pass = 0; pass < passes; pass++) {
        struct heft_plan *plan = NULL;
        uint64_t begin = cpu_ns();

        if (heft_plan_make(layout, sources, source_count, 0, &plan, &error))
            stop(what, &error);
        make_times[pass] = cpu_ns() - begin;
        begin = cpu_ns();
        for (run_count = 0, chunk = 0; chunk < plan->chunk_count; chunk++)
            run_count += heft_plan_runs(plan, chunk, source_count - 1, runs, MAX_CHUNK_RUNS);
        run_times[pass] = cpu_ns() - begin;
        chunks = plan->chunk_count;
        heft_plan_free(plan);
    }
    print_row(what, make_times, passes, layout->tensor_count);
    (void)snprintf(line, sizeof(line), "  its %" PRIu64 " chunks' %" PRIu64 " runs", chunks, run_count);
    print_row(line, run_times, passes, layout->tensor_count);
    free(runs);
}

int main(int argc, char **argv)
{
    uint64_t tensors = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
    uint64_t passes = argc > 2 ? strtoull(argv[2], NULL, 10) : 5;
    const struct heft_manifest *sources[4];
    struct heft_manifest *model, *same, *other;
    struct heft_layout *whole = NULL, *row = NULL, *column = NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t begin;

    if (tensors == 0 || passes == 0 || passes > MAX_PASSES)
        stop("usage: bench_plan [tensors] [passes, up to 64]", NULL);
    model = make_model(tensors, 0);
    same = make_model(tensors, 0);
    other = make_model(tensors, 1);
    time_parse(model, passes);
    begin = cpu_ns();
    if (heft_layout_whole(model, 64, &whole, &error) ||
        heft_layout_rank(model, 3, 8, HEFT_SPLIT_ROW, 64, &row, &error) ||
        heft_layout_rank(model, 3, 8, HEFT_SPLIT_COLUMN, 64, &column, &error))
        stop("layout", &error);
    (void)printf("%-44s %8.1f ms\n", "three layouts", (double)(cpu_ns() - begin) / 1e6);
    sources[0] = model;
    sources[1] = sources[2] = sources[3] = same;
    time_plan("whole, from its file", whole, sources, 1, passes);
    time_plan("whole, from the file and a replica", whole, sources, 2, passes);
    time_plan("whole, from the file and three replicas", whole, sources, 4, passes);
    sources[0] = other;
    time_plan("whole, from a replica of another order", whole, sources, 1, passes);
    sources[0] = model;
    time_plan("rows of rank 3 of 8, from file and replica", row, sources, 2, passes);
    time_plan("columns of rank 3 of 8, file and replica", column, sources, 2, passes);
    heft_layout_free(whole);
    heft_layout_free(row);
    heft_layout_free(column);
    heft_manifest_free(model);
    heft_manifest_free(same);
    heft_manifest_free(other);
    return 0;
}
