/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrivals that GPUs see, and transfers that GPUs start: a stream waits for the word of a transfer, rings the
 * word of a trigger, both again and again in a graph, and no CPU takes part between.
 */
#include "gpu/gpu.h"

#include <dlfcn.h>
#include <string.h>
#include <time.h>

#define LAYER_BYTES ((uint64_t)256 << 10)
#define LAYERS 8
#define WAIT_MS 30000

/* Graphs, which the library does not use itself. */
typedef struct graph *cu_graph;
static struct {
    heft_cu_result (*begin)(heft_cu_stream stream, int mode);
    heft_cu_result (*end)(heft_cu_stream stream, cu_graph *graph_out);
    heft_cu_result (*instantiate)(cu_graph *exec_out, cu_graph graph, unsigned long long flags);
    heft_cu_result (*launch)(cu_graph exec, heft_cu_stream stream);
    heft_cu_result (*exec_destroy)(cu_graph exec);
    heft_cu_result (*destroy)(cu_graph graph);
} graphs;

static void find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);

    MUST(symbol);
    memcpy(function, &symbol, sizeof(symbol));
}

static void find_graphs(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);

    MUST(library);
    find(library, "cuStreamBeginCapture_v2", &graphs.begin);
    find(library, "cuStreamEndCapture", &graphs.end);
    find(library, "cuGraphInstantiateWithFlags", &graphs.instantiate);
    find(library, "cuGraphLaunch", &graphs.launch);
    find(library, "cuGraphExecDestroy", &graphs.exec_destroy);
    find(library, "cuGraphDestroy", &graphs.destroy);
    (void)dlclose(library);
}

/* source and target have LAYERS layers each and, behind them, a word a layer. */
struct rig {
    struct heft_agent *agent;
    uint64_t source, target, made; /* made: what a layer's computation gives */
    struct heft_region *source_region, *target_region;
    struct heft_xfer *xfers[LAYERS];
    heft_cu_stream stream;
};

static struct heft_region *region_of(struct heft_agent *agent, uint64_t address, uint64_t size)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_region *region;

    options.space = HEFT_SPACE_CUDA;
    options.address = (void *)(uintptr_t)address;
    options.length_bytes = size;
    MUST(!heft_region_register(agent, &options, &region, &gpu_error));
    return region;
}

static void rig_open(struct rig *rig, uint64_t step)
{
    uint64_t size = LAYERS * LAYER_BYTES + 4096, layer;
    uint8_t *bytes = calloc(1, size);

    memset(rig, 0, sizeof(*rig));
    MUST(bytes);
    rig->source = gpu_alloc(0, size);
    rig->target = gpu_alloc(0, size);
    rig->made = gpu_alloc(0, size);
    gpu_put(0, rig->source, bytes, size);
    gpu_put(0, rig->target, bytes, size);
    gpu_pattern(bytes, 21, 0, LAYERS * LAYER_BYTES);
    gpu_put(0, rig->made, bytes, size);
    free(bytes);
    MUST(!heft_agent_open(NULL, &rig->agent, &gpu_error));
    rig->source_region = region_of(rig->agent, rig->source, size);
    rig->target_region = region_of(rig->agent, rig->target, size);
    for (layer = 0; layer < LAYERS; layer++) {
        struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
        struct heft_run run = {.local_region = rig->source_region,
                               .local_offset_bytes = layer * LAYER_BYTES,
                               .remote_region = heft_region_id(rig->target_region),
                               .remote_offset_bytes = layer * LAYER_BYTES,
                               .length_bytes = layer % 2 ? LAYER_BYTES : 1024,
                               .count = layer % 2 ? 1 : LAYER_BYTES / 1024, /* by the kernel, with a gap */
                               .local_stride_bytes = 1024,
                               .remote_stride_bytes = 1024};

        if (layer == 2)
            run.length_bytes = 1000;
        options.flags = HEFT_XFER_RAISE_REMOTE;
        options.raise_region = heft_region_id(rig->target_region);
        options.raise_offset_bytes = LAYERS * LAYER_BYTES + layer * 8;
        options.raise_value = 1;
        options.raise_step = step;
        MUST(!heft_xfer_create(rig->agent, HEFT_OP_WRITE, NULL, &run, 1, &options, &rig->xfers[layer],
                               &gpu_error));
    }
    MUST(!heft_cuda_enter(0, &gpu_error));
    MUST(!gpu_cu->stream_create(&rig->stream, HEFT_CU_STREAM_NON_BLOCKING));
    heft_cuda_leave();
}

static uint64_t word_of(const struct rig *rig, uint64_t layer)
{
    return rig->target + LAYERS * LAYER_BYTES + layer * 8;
}

/* Until the caller's stream is done; 0: not within the time. */
static int drained(struct rig *rig)
{
    double end = gpu_seconds() + WAIT_MS / 1000.0;
    heft_cu_result result;

    MUST(!heft_cuda_enter(0, &gpu_error));
    while ((result = gpu_cu->stream_query(rig->stream)) == HEFT_CU_NOT_READY && gpu_seconds() < end)
        ;
    heft_cuda_leave();
    return result == HEFT_CU_SUCCESS;
}

static void rig_close(struct rig *rig)
{
    int layer;

    for (layer = 0; layer < LAYERS; layer++) {
        (void)heft_xfer_wait(rig->xfers[layer], WAIT_MS);
        MUST(!heft_xfer_release(rig->xfers[layer]));
    }
    MUST(!heft_cuda_enter(0, &gpu_error));
    MUST(!gpu_cu->stream_destroy(rig->stream));
    heft_cuda_leave();
    MUST(!heft_region_deregister(rig->source_region, &gpu_error));
    MUST(!heft_region_deregister(rig->target_region, &gpu_error));
    MUST(!heft_agent_close(rig->agent, &gpu_error));
    gpu_free(0, rig->source);
    gpu_free(0, rig->target);
    gpu_free(0, rig->made);
}

/* Layers as they should be at `at`: layer 2 is moved with gaps. */
static int layers_are_right(uint64_t at, uint64_t seed)
{
    uint64_t size = LAYERS * LAYER_BYTES, index;
    uint8_t *got = malloc(size), *wanted = malloc(size);
    int same;

    MUST(got && wanted);
    gpu_pattern(wanted, seed, 0, size);
    for (index = 0; index < LAYER_BYTES; index++)
        if (index % 1024 >= 1000)
            wanted[2 * LAYER_BYTES + index] = 0;
    gpu_get(0, got, at, size);
    same = memcmp(got, wanted, size) == 0;
    free(got);
    free(wanted);
    return same;
}

/* Posted from the CPU; a stream of the consumer waits for the word and uses the bytes at once. */
static void a_stream_waits_for_arrivals_that_are_counted(void)
{
    uint64_t result, round, layer, count;
    struct rig rig;
    int right, done;

    rig_open(&rig, 1);
    result = gpu_alloc(0, LAYERS * LAYER_BYTES);
    for (round = 1; round <= 3; round++) {
        MUST(!heft_cuda_enter(0, &gpu_error));
        for (layer = 0; layer < LAYERS; layer++) {
            MUST(!gpu_cu->stream_wait64(rig.stream, word_of(&rig, layer), round, HEFT_CU_STREAM_WAIT_GEQ));
            MUST(!gpu_cu->memcpy_async(result + layer * LAYER_BYTES, rig.target + layer * LAYER_BYTES,
                                       LAYER_BYTES, rig.stream));
        }
        MUST(gpu_cu->stream_query(rig.stream) == HEFT_CU_NOT_READY);
        heft_cuda_leave();
        if (round == 1) { /* the producer's layers, then the posts */
            uint8_t *bytes = malloc(LAYERS * LAYER_BYTES);

            MUST(bytes);
            gpu_pattern(bytes, 21, 0, LAYERS * LAYER_BYTES);
            gpu_put(0, rig.source, bytes, LAYERS * LAYER_BYTES);
            free(bytes);
        }
        for (layer = 0; layer < LAYERS; layer++)
            MUST(!heft_xfer_post(rig.xfers[layer], &gpu_error));
        done = drained(&rig);
        for (layer = 0; layer < LAYERS; layer++)
            MUST(!heft_xfer_wait(rig.xfers[layer], WAIT_MS));
        CHECK(done);
    }
    gpu_get(0, &count, word_of(&rig, LAYERS - 1), 8);
    right = layers_are_right(result, 21);
    gpu_free(0, result);
    rig_close(&rig);
    CHECK(right && count == 3);
}

/*
 * Each layer is computed on the stream, which then rings; behind all of them it waits for the words and puts
 * them back to 0. Recorded once, launched several times.
 */
static void put_step(struct rig *rig, struct heft_trigger_info *infos)
{
    uint64_t layer;

    for (layer = 0; layer < LAYERS; layer++) {
        MUST(!gpu_cu->memcpy_async(rig->source + layer * LAYER_BYTES, rig->made + layer * LAYER_BYTES,
                                   LAYER_BYTES, rig->stream));
        MUST(!gpu_cu->stream_write64(rig->stream, (uintptr_t)infos[layer].word, 1, 0));
    }
    for (layer = 0; layer < LAYERS; layer++) {
        MUST(!gpu_cu->stream_wait64(rig->stream, word_of(rig, layer), 1, HEFT_CU_STREAM_WAIT_GEQ));
        MUST(!gpu_cu->stream_write64(rig->stream, word_of(rig, layer), 0, 0));
    }
}

static void a_graph_starts_transfers_and_waits_for_them(void)
{
    enum { LAUNCHES = 5 };
    struct heft_trigger *triggers[LAYERS];
    struct heft_trigger_info infos[LAYERS];
    uint64_t layer, started = 0, refused = 0;
    cu_graph graph, exec;
    struct rig rig;
    int launch, done = 1, right, busy;

    find_graphs();
    rig_open(&rig, 0);
    for (layer = 0; layer < LAYERS; layer++) {
        MUST(!heft_trigger_open(rig.xfers[layer], &triggers[layer], &gpu_error));
        infos[layer].size = sizeof(infos[layer]);
        heft_trigger_get_info(triggers[layer], &infos[layer]);
    }
    busy = heft_agent_close(rig.agent, NULL);
    MUST(!heft_cuda_enter(0, &gpu_error));
    MUST(!graphs.begin(rig.stream, 2)); /* relaxed */
    put_step(&rig, infos);
    MUST(!graphs.end(rig.stream, &graph));
    MUST(!graphs.instantiate(&exec, graph, 0));
    for (launch = 0; launch < LAUNCHES && done; launch++) {
        MUST(!graphs.launch(exec, rig.stream));
        done = drained(&rig);
    }
    MUST(!graphs.exec_destroy(exec) && !graphs.destroy(graph));
    heft_cuda_leave();
    for (layer = 0; layer < LAYERS; layer++) {
        (void)heft_xfer_wait(rig.xfers[layer], WAIT_MS);
        heft_trigger_get_info(triggers[layer], &infos[layer]);
        started += infos[layer].started;
        refused += infos[layer].refused;
        heft_trigger_close(triggers[layer]);
    }
    right = layers_are_right(rig.target, 21);
    if (!done || started != LAYERS * LAUNCHES || refused)
        (void)printf("    done %d, started %llu, refused %llu: %s\n", done, (unsigned long long)started,
                     (unsigned long long)refused, infos[0].error.text);
    rig_close(&rig);
    CHECK(busy == HEFT_ERR_BUSY && done && right);
    CHECK(started == LAYERS * LAUNCHES && refused == 0);
}

static void words_that_no_gpu_reaches_are_refused(void)
{
    static uint64_t words[8];
    struct heft_region_options host = HEFT_REGION_OPTIONS_INIT;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_region *region;
    struct heft_xfer *xfer;
    struct heft_run run;
    struct rig rig;
    int odd, outside, gone, unreached, staged;

    rig_open(&rig, 0);
    host.address = words;
    host.length_bytes = sizeof(words);
    MUST(!heft_region_register(rig.agent, &host, &region, &gpu_error));
    run = (struct heft_run){.local_region = rig.source_region,
                            .remote_region = heft_region_id(rig.target_region),
                            .length_bytes = 64,
                            .count = 1};
    options.flags = HEFT_XFER_RAISE_LOCAL;
    options.raise_region = heft_region_id(region);
    options.raise_offset_bytes = 4;
    odd = heft_xfer_create(rig.agent, HEFT_OP_READ, NULL, &run, 1, &options, &xfer, NULL);
    options.raise_offset_bytes = sizeof(words);
    outside = heft_xfer_create(rig.agent, HEFT_OP_READ, NULL, &run, 1, &options, &xfer, NULL);
    options.raise_offset_bytes = 0;
    MUST(!heft_xfer_create(rig.agent, HEFT_OP_READ, NULL, &run, 1, &options, &xfer, &gpu_error));
    unreached = heft_xfer_post(xfer, &gpu_error);
    (void)heft_xfer_release(xfer);
    options.raise_region = heft_region_id(rig.source_region);
    run.local_region = region;
    MUST(!heft_xfer_create(rig.agent, HEFT_OP_READ, NULL, &run, 1, &options, &xfer, &gpu_error));
    staged = heft_xfer_post(xfer, NULL);
    (void)heft_xfer_release(xfer);
    options.raise_region = 1 << 30;
    gone = heft_xfer_create(rig.agent, HEFT_OP_READ, NULL, &run, 1, &options, &xfer, NULL);
    MUST(!heft_region_deregister(region, NULL));
    rig_close(&rig);
    CHECK(odd == HEFT_ERR_INVALID && outside == HEFT_ERR_RANGE && gone == HEFT_ERR_STALE);
    CHECK(unreached == HEFT_ERR_UNSUPPORTED && strstr(gpu_error.text, "not reached by a GPU"));
    CHECK(staged == HEFT_ERR_UNSUPPORTED);
}

const struct gpu_case gpu_raise_cases[] = {
    {"raise: a stream waits for counted arrivals", a_stream_waits_for_arrivals_that_are_counted, 1},
    {"raise: a graph starts transfers and waits", a_graph_starts_transfers_and_waits_for_them, 1},
    {"raise: words that no GPU reaches", words_that_no_gpu_reaches_are_refused, 1},
};
const size_t gpu_raise_count = sizeof(gpu_raise_cases) / sizeof(gpu_raise_cases[0]);
