/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A prefill process pushes its KV cache to a decode process layer by layer, while it computes the next layer:
 *
 *   cc kv_push.c -o kv_push -lheft -lcuda && ./kv_push [LAYERS [KILOBYTES [STEPS]]]
 *
 * Prefill runs on GPU 0, decode on GPU 1 if there is one, else on GPU 0 too. Each layer's computation (a fill
 * stands for it) is followed on the stream by a write of its trigger's word, which starts that layer's
 * transfer. The transfer raises a word in decode's memory behind the layer's bytes; decode's stream waits for
 * it and uses the layer. The step of prefill is a graph, launched again for each step; between a step's first
 * layer and its last no CPU waits for anything.
 */
#include <cuda.h>
#include <heft/agent.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 60000
#define LAYERS_MAX 256

static uint64_t layers = 32, layer_bytes = 1024 << 10, steps = 20;

static void check(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
    exit(1);
}
#define CU(call) check(call, #call)

static struct heft_error error;
static void must(int rc, const char *what)
{
    if (!rc)
        return;
    fprintf(stderr, "%s: %s\n", what, error.text);
    exit(1);
}
#define HEFT(call) must(call, #call)

static double seconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* The device's primary context, as PyTorch and CUDA's runtime use it. 0: there is no such GPU. */
static int use_device(int ordinal)
{
    CUcontext context;
    CUdevice device;

    CU(cuInit(0));
    if (cuDeviceGet(&device, ordinal) != CUDA_SUCCESS)
        return 0;
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    return 1;
}

static CUstream new_stream(void)
{
    CUstream stream;

    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* Memory that peers can map: the layers, and behind them a word a layer. */
static struct heft_device_memory *make_cache(struct heft_agent *agent, int device, uint32_t flags,
                                             struct heft_region **region, uint64_t *address)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_device_memory_info info;
    struct heft_device_memory *memory;

    HEFT(heft_device_memory_alloc(device, layers * layer_bytes + layers * 8, 0, &memory, &error));
    heft_device_memory_get_info(memory, &info);
    options.space = HEFT_SPACE_CUDA;
    options.address = (void *)(uintptr_t)info.address;
    options.length_bytes = info.length_bytes;
    options.flags = flags;
    HEFT(heft_region_register(agent, &options, region, &error));
    *address = info.address;
    return memory;
}

/* What decode tells prefill. */
struct told {
    char addresses[512];
    struct heft_token token;
    uint64_t region;
};

static unsigned char value_of(uint64_t step, uint64_t layer)
{
    return (unsigned char)(1 + (step * 7 + layer) % 255);
}

/* ---- decode ---- */

static int wrong_layers(CUdeviceptr used, uint64_t step)
{
    unsigned char *bytes = malloc(layer_bytes);
    uint64_t layer, index, wrong = 0;

    for (layer = 0; bytes && layer < layers; layer++) {
        CU(cuMemcpyDtoH(bytes, used + layer * layer_bytes, layer_bytes));
        for (index = 0; index < layer_bytes; index++)
            wrong += bytes[index] != value_of(step, layer);
    }
    free(bytes);
    return wrong > 0;
}

static int decode(int to, int from)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    int device = use_device(1) ? 1 : 0, wrong = 0;
    struct told told = {{0}, {{0}}, 0};
    struct heft_device_memory *memory;
    struct heft_region *region;
    struct heft_agent *agent;
    uint64_t cache, layer, step;
    CUdeviceptr used;
    CUstream stream;
    char go;

    if (device == 0)
        (void)use_device(0);
    options.listen = "unix";
    options.name = "decode";
    HEFT(heft_agent_open(&options, &agent, &error));
    memory = make_cache(agent, device, HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE, &region, &cache);
    CU(cuMemAlloc(&used, layers * layer_bytes));
    stream = new_stream();
    CU(cuMemsetD8Async(cache + layers * layer_bytes, 0, layers * 8, stream));
    CU(cuStreamSynchronize(stream));
    HEFT(heft_agent_addresses(agent, told.addresses, sizeof(told.addresses)));
    told.token = heft_agent_token(agent);
    told.region = heft_region_id(region);
    if (write(to, &told, sizeof(told)) != (ssize_t)sizeof(told))
        return 1;
    for (step = 1; step <= steps; step++) {
        for (layer = 0; layer < layers; layer++) {
            CU(cuStreamWaitValue64(stream, cache + layers * layer_bytes + layer * 8, step,
                                   CU_STREAM_WAIT_VALUE_GEQ));
            CU(cuMemcpyAsync(used + layer * layer_bytes, cache + layer * layer_bytes, layer_bytes, stream));
        }
        CU(cuStreamSynchronize(stream));
        wrong += wrong_layers(used, step);
        if (write(to, "d", 1) != 1) /* prefill may overwrite the layers */
            return 1;
    }
    (void)!read(from, &go, 1); /* until prefill is gone */
    HEFT(heft_region_deregister(region, &error));
    HEFT(heft_agent_close(agent, &error));
    heft_device_memory_free(memory);
    CU(cuMemFree(used));
    CU(cuStreamDestroy(stream));
    if (wrong)
        fprintf(stderr, "decode: wrong bytes in %d of %llu steps\n", wrong, (unsigned long long)steps);
    return wrong > 0;
}

/* ---- prefill ---- */

struct prefill {
    struct heft_agent *agent;
    struct heft_peer *peer;
    struct heft_region *region;
    struct heft_xfer *xfers[LAYERS_MAX];
    struct heft_trigger *triggers[LAYERS_MAX];
    uint64_t *words[LAYERS_MAX];
    struct heft_device_memory *memory;
    uint64_t cache;
    CUstream stream;
};

static void prepare(struct prefill *prefill, const struct told *told)
{
    struct heft_peer_options peer = HEFT_PEER_OPTIONS_INIT;
    struct heft_trigger_info info = {.size = sizeof(info)};
    uint64_t layer;

    HEFT(heft_agent_open(NULL, &prefill->agent, &error));
    peer.addresses = told->addresses;
    peer.token = told->token;
    HEFT(heft_peer_connect(prefill->agent, &peer, &prefill->peer, &error));
    prefill->memory = make_cache(prefill->agent, 0, 0, &prefill->region, &prefill->cache);
    prefill->stream = new_stream();
    for (layer = 0; layer < layers; layer++) {
        struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
        struct heft_run run = {.local_region = prefill->region,
                               .local_offset_bytes = layer * layer_bytes,
                               .remote_region = told->region,
                               .remote_offset_bytes = layer * layer_bytes,
                               .length_bytes = layer_bytes,
                               .count = 1};

        options.flags = HEFT_XFER_RAISE_REMOTE;
        options.raise_region = told->region;
        options.raise_offset_bytes = layers * layer_bytes + layer * 8;
        options.raise_value = options.raise_step = 1; /* a count of steps */
        HEFT(heft_xfer_create(prefill->agent, HEFT_OP_WRITE, prefill->peer, &run, 1, &options,
                              &prefill->xfers[layer], &error));
        HEFT(heft_trigger_open(prefill->xfers[layer], &prefill->triggers[layer], &error));
        heft_trigger_get_info(prefill->triggers[layer], &info);
        prefill->words[layer] = info.word;
    }
}

/* The step as a graph: each layer, and the ring behind it. */
static CUgraphExec record(const struct prefill *prefill, uint64_t step)
{
    CUgraphExec exec;
    CUgraph graph;
    uint64_t layer;

    CU(cuStreamBeginCapture(prefill->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (layer = 0; layer < layers; layer++) {
        CU(cuMemsetD8Async(prefill->cache + layer * layer_bytes, value_of(step, layer), layer_bytes,
                           prefill->stream));
        CU(cuStreamWriteValue64(prefill->stream, (CUdeviceptr)(uintptr_t)prefill->words[layer], 1,
                                CU_STREAM_WRITE_VALUE_DEFAULT));
    }
    CU(cuStreamEndCapture(prefill->stream, &graph));
    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(cuGraphDestroy(graph));
    return exec;
}

static int push(int to, int from)
{
    struct prefill prefill;
    struct told told;
    double begin, computed = 0, pushed = 0;
    uint64_t layer, step;
    char done;

    memset(&prefill, 0, sizeof(prefill));
    if (!use_device(0)) {
        fprintf(stderr, "no GPU\n");
        return 1;
    }
    if (read(from, &told, sizeof(told)) != (ssize_t)sizeof(told))
        return 1;
    prepare(&prefill, &told);
    for (step = 1; step <= steps; step++) {
        CUgraphExec exec = record(&prefill, step); /* a model's graph is the same each time: recorded once */

        begin = seconds();
        CU(cuGraphLaunch(exec, prefill.stream));
        CU(cuStreamSynchronize(prefill.stream));
        if (step > 1) /* the first one warms up */
            computed += seconds() - begin;
        if (read(from, &done, 1) != 1)
            return 1;
        if (step > 1)
            pushed += seconds() - begin;
        CU(cuGraphExecDestroy(exec));
    }
    for (layer = 0; layer < layers; layer++) {
        heft_trigger_close(prefill.triggers[layer]);
        HEFT(heft_xfer_wait(prefill.xfers[layer], WAIT_MS));
        HEFT(heft_xfer_release(prefill.xfers[layer]));
    }
    HEFT(heft_peer_close(prefill.peer, &error));
    HEFT(heft_region_deregister(prefill.region, &error));
    HEFT(heft_agent_close(prefill.agent, &error));
    heft_device_memory_free(prefill.memory);
    CU(cuStreamDestroy(prefill.stream));
    (void)close(to);
    if (steps > 1)
        printf("%llu layers of %llu KiB, a step: computed in %.0f us, used and checked by decode after %.0f "
               "us\n",
               (unsigned long long)layers, (unsigned long long)layer_bytes >> 10,
               computed / (double)(steps - 1) * 1e6, pushed / (double)(steps - 1) * 1e6);
    return 0;
}

int main(int argc, char **argv)
{
    int down[2], up[2], status = 1, rc;
    pid_t child;

    if (argc > 1)
        layers = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        layer_bytes = strtoull(argv[2], NULL, 10) << 10;
    if (argc > 3)
        steps = strtoull(argv[3], NULL, 10);
    if (layers == 0 || layers > LAYERS_MAX || layer_bytes == 0 || pipe(down) || pipe(up)) {
        fprintf(stderr, "kv_push [LAYERS up to %d [KILOBYTES [STEPS]]]\n", LAYERS_MAX);
        return 2;
    }
    child = fork(); /* before either process has started CUDA */
    if (child == 0) {
        (void)close(down[1]);
        (void)close(up[0]);
        exit(decode(up[1], down[0]));
    }
    (void)close(down[0]);
    (void)close(up[1]);
    rc = child < 0 ? 1 : push(down[1], up[0]);
    (void)close(down[1]);
    if (child > 0 && (waitpid(child, &status, 0) != child || status != 0))
        rc = 1;
    return rc;
}
