/* SPDX-License-Identifier: Apache-2.0 */
/* The driver without a GPU: what it says of itself and its devices. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int started;

#pragma GCC visibility push(hidden)
struct heft_cu_context_st contexts[DEVICES] = {{0}, {1}};
__thread heft_cu_context stack[STACK];
__thread int depth;
#pragma GCC visibility pop

size_t fake_total_bytes(void)
{
    const char *text = getenv("FAKE_CUDA_BYTES");

    return text ? (size_t)strtoull(text, NULL, 10) : (size_t)1 << 30;
}

API(cuInit)(unsigned flags)
{
    started = getenv("FAKE_CUDA_NONE") == NULL;
    return flags ? HEFT_CU_INVALID_VALUE : started ? 0 : HEFT_CU_NO_DEVICE;
}
API(cuDriverGetVersion)(int *version_out)
{
    *version_out = 13000;
    return 0;
}
API(cuGetErrorName)(heft_cu_result code, const char **text_out)
{
    *text_out = code == HEFT_CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return 0;
}
API(cuGetErrorString)(heft_cu_result code, const char **text_out)
{
    *text_out = code == HEFT_CU_OUT_OF_MEMORY ? "out of memory"
                : code == HEFT_CU_NO_DEVICE   ? "no CUDA-capable device is detected"
                                              : "a fake error";
    return 0;
}
API(cuDeviceGetCount)(int *count_out)
{
    *count_out = started ? DEVICES : 0;
    return 0;
}
API(cuDeviceGet)(heft_cu_device *device_out, int ordinal)
{
    *device_out = ordinal;
    return ordinal >= 0 && ordinal < DEVICES ? 0 : 101;
}
API(cuDeviceGetName)(char *name_out, int size, heft_cu_device device)
{
    (void)snprintf(name_out, (size_t)size, "Fake GPU %d", device);
    return 0;
}
API(cuDeviceGetUuid_v2)(struct heft_cu_uuid *uuid_out, heft_cu_device device)
{
    memset(uuid_out, 0xa0 + device, sizeof(*uuid_out));
    return 0;
}
API(cuDeviceTotalMem_v2)(size_t *bytes_out, heft_cu_device device)
{
    (void)device;
    *bytes_out = fake_total_bytes();
    return 0;
}
API(cuDeviceGetAttribute)(int *value_out, int attribute, heft_cu_device device)
{
    (void)device;
    *value_out = attribute == HEFT_CU_DEVICE_MAJOR ? 9 : attribute == HEFT_CU_DEVICE_MINOR ? 0 : 1;
    return 0;
}
API(cuDeviceGetPCIBusId)(char *text_out, int size, heft_cu_device device)
{
    (void)snprintf(text_out, (size_t)size, "0000:0%d:00.0", device);
    return 0;
}
API(cuDeviceCanAccessPeer)(int *can_out, heft_cu_device device, heft_cu_device peer)
{
    *can_out = device != peer;
    return 0;
}

int fake_cuda_depth(void)
{
    return depth;
}

API(cuDevicePrimaryCtxRetain)(heft_cu_context *context_out, heft_cu_device device)
{
    *context_out = &contexts[device];
    return 0;
}
API(cuDevicePrimaryCtxRelease_v2)(heft_cu_device device)
{
    (void)device;
    return 0;
}
API(cuCtxPushCurrent_v2)(heft_cu_context context)
{
    if (depth == STACK)
        abort();
    stack[depth++] = context;
    return 0;
}
API(cuCtxPopCurrent_v2)(heft_cu_context *context_out)
{
    if (depth == 0)
        abort();
    *context_out = stack[--depth];
    return 0;
}
API(cuCtxGetCurrent)(heft_cu_context *context_out)
{
    *context_out = depth ? stack[depth - 1] : NULL;
    return 0;
}
API(cuCtxSetCurrent)(heft_cu_context context)
{
    depth = depth ? depth : 1;
    stack[depth - 1] = context;
    return 0;
}
API(cuCtxEnablePeerAccess)(heft_cu_context peer, unsigned flags)
{
    (void)flags;
    return depth == 0 ? BAD_CONTEXT : peer == stack[depth - 1] ? 101 : 0;
}
