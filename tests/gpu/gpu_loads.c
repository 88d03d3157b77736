/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads onto a GPU in a row, in one process: gpu_loads MODEL ROUNDS. Most go to their end, some are canceled
 * on the way, some find the GPU full. After all of them as much of its memory is free as after the first few.
 */
#include "base/clock.h"
#include "space/cuda.h"
#include <heft/heft.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WARM_ROUNDS 20 /* contexts, kernels, pinned slots and tables of items are made once */
#define MIB ((uint64_t)1 << 20)
#define WAIT_MS 60000
#define EATERS_MAX 256
/* What transports keep for later grows a little with what happens to run at once. */
#define KEPT_BYTES (16 * MIB)

static struct heft_error error;

static uint64_t free_bytes(void)
{
    uint64_t bytes = 0;

    if (heft_cuda_free_bytes(0, &bytes, &error)) {
        (void)printf("gpu_loads: %s\n", error.text);
        exit(1);
    }
    return bytes;
}

static struct heft_load_options options_for(const char *model, struct heft_agent *agent)
{
    struct heft_load_options options = HEFT_LOAD_OPTIONS_INIT;

    options.model = model;
    options.device = "cuda:0";
    options.source = "file";
    options.agent = agent;
    options.chunk_bytes = 1 * MIB;
    return options;
}

/* Canceled after `after_us`, or never. The load's end; the model is freed. */
static int load_once(const struct heft_load_options *options, long after_us)
{
    struct timespec nap = {0, after_us * 1000};
    struct heft_model *model;
    struct heft_load *load;
    int rc = heft_load_start(options, &load, &error);

    if (rc)
        return rc;
    if (after_us >= 0) {
        (void)nanosleep(&nap, NULL);
        heft_load_cancel(load);
    }
    rc = heft_load_wait(load, WAIT_MS, &error);
    model = rc ? NULL : heft_load_take_model(load);
    heft_load_free(load);
    if (model && heft_model_free(model, &error))
        rc = HEFT_ERR_INTERNAL;
    return rc;
}

/* With the GPU full: what is too large for one allocation is taken by smaller ones. */
static int load_on_a_full_gpu(const struct heft_load_options *options)
{
    struct heft_device_memory *eaters[EATERS_MAX];
    uint64_t size = free_bytes();
    int count = 0, rc;

    while (size >= MIB && count < EATERS_MAX)
        if (heft_device_memory_alloc(0, size, 0, &eaters[count], &error))
            size -= size / 8 + 1;
        else
            count++;
    rc = load_once(options, -1);
    while (count > 0)
        heft_device_memory_free(eaters[--count]);
    return rc;
}

int main(int argc, char **argv)
{
    int round, rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 200, canceled = 0, full = 0, whole = 0;
    struct heft_load_options options;
    struct heft_agent *agent;
    const struct heft_cu *cu;
    uint64_t warm = 0, last;
    double begin;

    if (argc < 2)
        return 2;
    if (heft_cuda_load(&cu, &error) || heft_agent_open(NULL, &agent, &error)) {
        (void)printf("skipped: %s\n", error.text);
        return 77;
    }
    options = options_for(argv[1], agent);
    begin = (double)heft_now_ns();
    for (round = 0; round < rounds; round++) {
        int rc, kind = round < WARM_ROUNDS ? 0 : round % 20;

        rc = kind % 7 == 3 ? load_once(&options, round % 7 * 1000)
             : kind == 7   ? load_on_a_full_gpu(&options)
                           : load_once(&options, -1);
        if ((kind % 7 == 3 && rc && rc != HEFT_ERR_CANCELED) || (kind == 7 && rc != HEFT_ERR_NO_MEMORY) ||
            (kind % 7 != 3 && kind != 7 && rc)) {
            (void)printf("gpu_loads: round %d: %d %s\n", round, rc, error.text);
            return 1;
        }
        canceled += rc == HEFT_ERR_CANCELED;
        full += kind == 7;
        whole += rc == 0;
        if (round == WARM_ROUNDS - 1)
            warm = free_bytes();
    }
    last = free_bytes();
    (void)printf(
        "%d loads in %.1f s: %d whole, %d canceled, %d on a full GPU; free memory %llu, at last %llu "
        "bytes\n",
        rounds, ((double)heft_now_ns() - begin) / 1e9, whole, canceled, full, (unsigned long long)warm,
        (unsigned long long)last);
    if (heft_agent_close(agent, &error)) {
        (void)printf("gpu_loads: %s\n", error.text);
        return 1;
    }
    return last + KEPT_BYTES >= warm && whole > 0 ? 0 : 1;
}
