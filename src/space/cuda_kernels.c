/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels on each device, and digests of what lies there. A digester is a stream, an event and buffers;
 * digesters are kept in a list for each device, so that several threads digest at once and none waits for
 * another's work.
 */
#include "space/cuda.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DIGEST_PLACES 4096u /* of one launch: 1 GiB in blocks */
#define DIGEST_GRID 2048u
#define DIGEST_WARPS 4u /* as in src/kernels/kernels.cu */
#define DIGEST_THREADS ((DIGEST_WARPS + 1) * 32)
#define READ_BYTES ((uint64_t)1 << 20)
#define WAIT_NS (60 * HEFT_NS_PER_S)
#define SPIN_NS UINT64_C(120000) /* digests of a chunk take less */
#define WARM_DIGESTERS 4u

struct digester {
    struct digester *next;
    heft_cu_stream stream;
    heft_cu_event event;
    uint8_t *pinned; /* places, then digests; or bytes read */
    heft_cu_pointer device;
};

static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;
static struct heft_cuda_kernels kernels[HEFT_CUDA_MAX_DEVICES];
static int kernels_state[HEFT_CUDA_MAX_DEVICES]; /* 1 there, else the error's code */
static struct heft_error kernels_error[HEFT_CUDA_MAX_DEVICES];
static struct digester *digesters[HEFT_CUDA_MAX_DEVICES];

static int load_locked(const struct heft_cu *cu, int device, struct heft_error *error)
{
    struct heft_cuda_kernels *made = &kernels[device];
    heft_cu_module module;
    heft_cu_result result;

    if (heft_kernels_image_bytes == 0)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                              "this build has no GPU kernels: build it where nvcc is installed");
    result = cu->module_load(&module, heft_kernels_image);
    if (!result)
        result = cu->module_function(&made->copy, module, "heft_copy");
    if (!result)
        result = cu->module_function(&made->digest, module, "heft_digest");
    if (result) {
        (void)heft_cuda_error(error, result, "loading heft's kernels on GPU %d", device);
        if (error)
            error->code = HEFT_ERR_UNSUPPORTED;
        return HEFT_ERR_UNSUPPORTED;
    }
    made->digest_threads = DIGEST_THREADS;
    return HEFT_OK;
}

int heft_cuda_has_kernels(void)
{
    return heft_kernels_image_bytes > 0;
}

int heft_cuda_kernels(int device, struct heft_cuda_kernels *kernels_out, struct heft_error *error)
{
    const struct heft_cu *cu = heft_cuda_loaded();
    int rc = HEFT_OK;

    HEFT_ASSERT(cu && device >= 0 && device < HEFT_CUDA_MAX_DEVICES);
    (void)pthread_mutex_lock(&kernels_lock);
    if (kernels_state[device] == 0) {
        rc = load_locked(cu, device, &kernels_error[device]);
        kernels_state[device] = rc ? rc : 1;
    }
    if (kernels_state[device] == 1) {
        *kernels_out = kernels[device];
    } else {
        rc = kernels_state[device];
        if (error)
            *error = kernels_error[device];
    }
    (void)pthread_mutex_unlock(&kernels_lock);
    return rc;
}

/* ---- digesters ---- */

static void free_digester(const struct heft_cu *cu, struct digester *digester)
{
    if (digester->device)
        (void)cu->mem_free(digester->device);
    if (digester->pinned)
        (void)cu->host_free(digester->pinned);
    if (digester->event)
        (void)cu->event_destroy(digester->event);
    if (digester->stream)
        (void)cu->stream_destroy(digester->stream);
    free(digester);
}

static int take_digester(const struct heft_cu *cu, int device, struct digester **digester_out,
                         struct heft_error *error)
{
    struct digester *digester;
    heft_cu_result result;
    void *pinned = NULL;

    (void)pthread_mutex_lock(&kernels_lock);
    digester = digesters[device];
    if (digester)
        digesters[device] = digester->next;
    (void)pthread_mutex_unlock(&kernels_lock);
    if (!digester) {
        digester = calloc(1, sizeof(*digester));
        if (!digester)
            return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for digests");
        result = cu->stream_create(&digester->stream, HEFT_CU_STREAM_NON_BLOCKING);
        if (!result)
            result = cu->event_create(&digester->event, HEFT_CU_EVENT_DISABLE_TIMING);
        if (!result)
            result = cu->host_alloc(&pinned, READ_BYTES, HEFT_CU_HOST_ALLOC_PORTABLE);
        digester->pinned = pinned;
        if (!result)
            result = cu->mem_alloc(&digester->device,
                                   DIGEST_PLACES * (sizeof(struct heft_cuda_place) + sizeof(uint64_t)));
        if (result) {
            free_digester(cu, digester);
            return heft_cuda_error(error, result, "preparing digests on GPU %d", device);
        }
    }
    *digester_out = digester;
    return HEFT_OK;
}

static void give_digester(int device, struct digester *digester)
{
    (void)pthread_mutex_lock(&kernels_lock);
    digester->next = digesters[device];
    digesters[device] = digester;
    (void)pthread_mutex_unlock(&kernels_lock);
}

/* Until the event has come: a short spin, then short sleeps. */
static int await(const struct heft_cu *cu, int device, heft_cu_event event, struct heft_error *error)
{
    uint64_t begin = heft_now_ns(), now = begin;
    heft_cu_result result;

    while ((result = cu->event_query(event)) == HEFT_CU_NOT_READY) {
        struct timespec nap = {0, 20000};

        now = heft_now_ns();
        if (now - begin > WAIT_NS)
            return heft_error_set(error, HEFT_ERR_STALLED, "GPU %d did not finish within 60 s", device);
        if (now - begin > SPIN_NS)
            (void)nanosleep(&nap, NULL);
    }
    return result ? heft_cuda_error(error, result, "waiting for GPU %d", device) : HEFT_OK;
}

static int digest_some(const struct heft_cu *cu, int device, struct digester *digester,
                       const struct heft_cuda_place *places, uint64_t count, uint64_t *digests_out,
                       struct heft_error *error)
{
    uint64_t places_bytes = count * sizeof(*places), digests_bytes = count * sizeof(uint64_t);
    heft_cu_pointer device_places = digester->device,
                    device_digests = digester->device + DIGEST_PLACES * sizeof(*places);
    struct heft_cuda_kernels ours;
    void *parameters[3] = {&device_places, &count, &device_digests};
    heft_cu_result result;
    int rc = heft_cuda_kernels(device, &ours, error);

    if (rc)
        return rc;
    memcpy(digester->pinned, places, places_bytes);
    result = cu->memcpy_async(device_places, (uintptr_t)digester->pinned, places_bytes, digester->stream);
    if (!result)
        result = cu->launch(ours.digest, count < DIGEST_GRID ? (unsigned)count : DIGEST_GRID, 1, 1,
                            ours.digest_threads, 1, 1, 0, digester->stream, parameters, NULL);
    if (!result)
        result =
            cu->memcpy_async((uintptr_t)digester->pinned, device_digests, digests_bytes, digester->stream);
    if (!result)
        result = cu->event_record(digester->event, digester->stream);
    if (result)
        return heft_cuda_error(error, result, "starting %" PRIu64 " digests on GPU %d", count, device);
    rc = await(cu, device, digester->event, error);
    if (!rc)
        memcpy(digests_out, digester->pinned, digests_bytes);
    return rc;
}

int heft_cuda_read(int device, uint64_t address, void *to, uint64_t length_bytes, struct heft_error *error)
{
    const struct heft_cu *cu;
    struct digester *digester;
    uint64_t at, some;
    int rc = heft_cuda_load(&cu, error);

    if (!rc)
        rc = heft_cuda_enter(device, error);
    if (rc)
        return rc;
    rc = take_digester(cu, device, &digester, error);
    if (!rc) {
        for (at = 0; at < length_bytes && !rc; at += some) {
            heft_cu_result result;

            some = length_bytes - at < READ_BYTES ? length_bytes - at : READ_BYTES;
            result = cu->memcpy_async((uintptr_t)digester->pinned, address + at, some, digester->stream);
            if (!result)
                result = cu->event_record(digester->event, digester->stream);
            rc = result ? heft_cuda_error(error, result, "reading memory of GPU %d", device)
                        : await(cu, device, digester->event, error);
            if (!rc)
                memcpy((uint8_t *)to + at, digester->pinned, some);
        }
        if (!rc)
            give_digester(device, digester);
    }
    heft_cuda_leave();
    return rc;
}

int heft_cuda_get(uint64_t address, void *to, uint64_t length_bytes, struct heft_error *error)
{
    struct heft_cuda_pointer pointer;

    heft_cuda_query(address, &pointer);
    if (pointer.device < 0)
        return heft_error_set(error, HEFT_ERR_STALE, "the memory of a GPU is not there any more");
    return heft_cuda_read(pointer.device, address, to, length_bytes, error);
}

/* Without kernels: slow, and right. */
static int digest_by_cpu(int device, const struct heft_cuda_place *places, uint64_t count,
                         uint64_t *digests_out, struct heft_error *error)
{
    uint64_t index, capacity = 0;
    uint8_t *bytes = NULL;
    int rc = HEFT_OK;

    for (index = 0; index < count && !rc; index++) {
        uint64_t size = places[index].size_bytes;

        if (size > capacity || !bytes) {
            free(bytes);
            capacity = size + 1;
            bytes = malloc(capacity);
            if (!bytes)
                return heft_error_set(error, HEFT_ERR_NO_MEMORY, "reading a block back from GPU %d", device);
        }
        rc = heft_cuda_read(device, places[index].address, bytes, size, error);
        if (!rc)
            digests_out[index] = heft_hash64(bytes, (size_t)size, 0);
    }
    free(bytes);
    return rc;
}

int heft_cuda_digest(int device, const struct heft_cuda_place *places, uint64_t count, uint64_t *digests_out,
                     struct heft_error *error)
{
    const struct heft_cu *cu;
    struct heft_cuda_kernels ours;
    struct digester *digester;
    uint64_t at, some;
    int rc = heft_cuda_load(&cu, error);

    if (!rc)
        rc = heft_cuda_enter(device, error);
    if (rc)
        return rc;
    if (heft_cuda_kernels(device, &ours, NULL)) {
        heft_cuda_leave();
        return digest_by_cpu(device, places, count, digests_out, error);
    }
    rc = take_digester(cu, device, &digester, error);
    if (!rc) {
        for (at = 0; at < count && !rc; at += some) {
            some = count - at < DIGEST_PLACES ? count - at : DIGEST_PLACES;
            rc = digest_some(cu, device, digester, places + at, some, digests_out + at, error);
        }
        /* After an error the stream may still use the buffers: better lost than used twice. */
        if (!rc)
            give_digester(device, digester);
    }
    heft_cuda_leave();
    return rc;
}

void heft_cuda_warm(int device)
{
    struct digester *made[WARM_DIGESTERS];
    struct heft_cuda_kernels ours;
    const struct heft_cu *cu;
    uint32_t count = 0;

    if (heft_cuda_load(&cu, NULL) || heft_cuda_enter(device, NULL))
        return;
    if (!heft_cuda_kernels(device, &ours, NULL))
        while (count < WARM_DIGESTERS && !take_digester(cu, device, &made[count], NULL))
            count++;
    while (count > 0)
        give_digester(device, made[--count]);
    heft_cuda_leave();
}
