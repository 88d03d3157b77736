/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver's own copies reach on this machine's GPUs: the best of some, each long enough to be sure.
 */
#include "load/machine_limits.h"

#include "base/clock.h"
#include "base/error.h"
#include "space/cuda.h"
#include "space/cuda_memory.h"

#include <time.h>

#define COPY_BYTES ((uint64_t)512 << 20)
#define PASSES 5
#define WAIT_NS (20 * HEFT_NS_PER_S)

struct rig {
    const struct heft_cu *cu;
    heft_cu_stream stream;
    heft_cu_event event;
    struct heft_device_memory *memories[2];
    uint64_t addresses[2], bytes;
    void *pinned;
};

/* One copy; 0: it failed, or did not end. */
static double copy_once(struct rig *rig, uint64_t to, uint64_t from)
{
    uint64_t begin = heft_now_ns();
    heft_cu_result result = rig->cu->memcpy_async(to, from, rig->bytes, rig->stream);

    if (!result)
        result = rig->cu->event_record(rig->event, rig->stream);
    if (result)
        return 0;
    while ((result = rig->cu->event_query(rig->event)) == HEFT_CU_NOT_READY)
        if (heft_now_ns() - begin > WAIT_NS)
            return 0;
    return result ? 0 : (double)rig->bytes * HEFT_NS_PER_S / (double)(heft_now_ns() - begin);
}

static double best_copy(struct rig *rig, uint64_t to, uint64_t from)
{
    double best = 0, rate;
    int pass;

    for (pass = 0; pass < PASSES; pass++) {
        rate = copy_once(rig, to, from);
        if (rate <= 0)
            return 0;
        best = rate > best ? rate : best;
    }
    return best;
}

static int make_memory(struct rig *rig, int index, int device, struct heft_error *error)
{
    struct heft_device_memory_info info;
    int rc = heft_device_memory_alloc(device, rig->bytes, 0, &rig->memories[index], error);

    if (rc)
        return rc;
    heft_device_memory_get_info(rig->memories[index], &info);
    rig->addresses[index] = info.address;
    if (device != 0 && heft_cuda_grant(rig->cu, 0, info.address, rig->bytes))
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "GPU 0 can't use the memory of GPU %d", device);
    return HEFT_OK;
}

/* Inside enter(0). */
static int make_rig(struct rig *rig, struct heft_error *error)
{
    heft_cu_result result = rig->cu->host_alloc(&rig->pinned, rig->bytes, HEFT_CU_HOST_ALLOC_PORTABLE);
    int rc;

    if (!result)
        result = rig->cu->stream_create(&rig->stream, HEFT_CU_STREAM_NON_BLOCKING);
    if (!result)
        result = rig->cu->event_create(&rig->event, HEFT_CU_EVENT_DISABLE_TIMING);
    if (result)
        return heft_cuda_error(error, result, "preparing to measure GPU 0");
    rc = make_memory(rig, 0, 0, error);
    return rc ? rc : make_memory(rig, 1, heft_cuda_device_count() > 1, error);
}

void heft_limits_measure_gpus(struct heft_limits *limits, struct heft_error *error)
{
    struct heft_error why = HEFT_ERROR_INIT;
    struct rig rig = {.bytes = COPY_BYTES};
    struct heft_cuda_device info;

    if (heft_cuda_load(&rig.cu, NULL) || heft_cuda_device_info(0, &info, NULL) || heft_cuda_enter(0, NULL))
        return;                           /* no GPU */
    if (info.total_bytes / 8 < rig.bytes) /* both may lie on it */
        rig.bytes = info.total_bytes / 8 / ((uint64_t)2 << 20) * ((uint64_t)2 << 20);
    if (make_rig(&rig, &why)) {
        if (error && !error->code)
            *error = why;
    } else {
        limits->gpu_in = best_copy(&rig, rig.addresses[0], (uintptr_t)rig.pinned);
        limits->gpu_out = best_copy(&rig, (uintptr_t)rig.pinned, rig.addresses[0]);
        limits->gpu_gpu = best_copy(&rig, rig.addresses[0], rig.addresses[1]);
    }
    if (rig.event)
        (void)rig.cu->event_destroy(rig.event);
    if (rig.stream)
        (void)rig.cu->stream_destroy(rig.stream);
    if (rig.pinned)
        (void)rig.cu->host_free(rig.pinned);
    heft_device_memory_free(rig.memories[0]);
    heft_device_memory_free(rig.memories[1]);
    heft_cuda_leave();
}
