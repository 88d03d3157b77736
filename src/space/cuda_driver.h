/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's driver API as heft uses it, declared here so that the build needs no CUDA toolkit: numbers and
 * layouts are of the driver's stable ABI (tests/unit/space/test_cuda_abi.c compares them with cuda.h where it
 * is installed). The symbols carry the version suffixes that cuda.h hides behind macros.
 */
#ifndef HEFT_SPACE_CUDA_DRIVER_H
#define HEFT_SPACE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int heft_cu_result;
typedef int heft_cu_device;
typedef struct heft_cu_context_st *heft_cu_context;
typedef struct heft_cu_stream_st *heft_cu_stream;
typedef struct heft_cu_event_st *heft_cu_event;
typedef struct heft_cu_module_st *heft_cu_module;
typedef struct heft_cu_function_st *heft_cu_function;
typedef unsigned long long heft_cu_pointer;
typedef unsigned long long heft_cu_handle; /* of physical memory */

enum {
    HEFT_CU_SUCCESS = 0,
    HEFT_CU_INVALID_VALUE = 1,
    HEFT_CU_OUT_OF_MEMORY = 2,
    HEFT_CU_NO_DEVICE = 100,
    HEFT_CU_PEER_ACCESS_ENABLED = 704,
    HEFT_CU_NOT_READY = 600,

    HEFT_CU_STREAM_NON_BLOCKING = 1,
    HEFT_CU_EVENT_DISABLE_TIMING = 2,
    HEFT_CU_HOST_ALLOC_PORTABLE = 1,
    HEFT_CU_HOST_ALLOC_MAPPED = 2,
    HEFT_CU_HOST_REGISTER_PORTABLE = 1,
    HEFT_CU_STREAM_WAIT_GEQ = 0,
    HEFT_CU_IPC_LAZY_PEER_ACCESS = 1,

    HEFT_CU_DEVICE_PROCESSORS = 16,
    HEFT_CU_DEVICE_MAJOR = 75,
    HEFT_CU_DEVICE_MINOR = 76,
    HEFT_CU_DEVICE_VMM = 102,
    HEFT_CU_DEVICE_POSIX_HANDLES = 103,

    HEFT_CU_MEMORY_HOST = 1,
    HEFT_CU_MEMORY_DEVICE = 2,
    HEFT_CU_POINTER_MEMORY_TYPE = 2,
    HEFT_CU_POINTER_BUFFER_ID = 7,
    HEFT_CU_POINTER_MANAGED = 8,
    HEFT_CU_POINTER_DEVICE = 9,
    HEFT_CU_POINTER_LEGACY_IPC = 10,
    HEFT_CU_POINTER_RANGE_START = 11,
    HEFT_CU_POINTER_RANGE_SIZE = 12,
    HEFT_CU_POINTER_HANDLE_TYPES = 14,
    HEFT_CU_POINTER_MEMPOOL = 17,
    HEFT_CU_POINTER_MAPPING_SIZE = 18,
    HEFT_CU_POINTER_MAPPING_START = 19,

    HEFT_CU_ALLOCATION_PINNED = 1,
    HEFT_CU_HANDLE_POSIX_FD = 1,
    HEFT_CU_LOCATION_DEVICE = 1,
    HEFT_CU_ACCESS_READ_WRITE = 3,
    HEFT_CU_GRANULARITY_RECOMMENDED = 1
};

struct heft_cu_uuid {
    unsigned char bytes[16];
};

struct heft_cu_ipc_handle {
    unsigned char bytes[64];
};

struct heft_cu_location {
    int type, id;
};

struct heft_cu_allocation {
    int type, handle_types;
    struct heft_cu_location location;
    void *win32;
    struct {
        unsigned char compression, rdma_capable;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

struct heft_cu_access {
    struct heft_cu_location location;
    int flags;
};

/* X(field, symbol, parameters) */
#define HEFT_CU_FUNCTIONS(X)                                                                                \
    X(init, cuInit, (unsigned flags))                                                                       \
    X(driver_version, cuDriverGetVersion, (int *version_out))                                               \
    X(error_name, cuGetErrorName, (heft_cu_result code, const char **text_out))                             \
    X(error_string, cuGetErrorString, (heft_cu_result code, const char **text_out))                         \
    X(device_count, cuDeviceGetCount, (int *count_out))                                                     \
    X(device_get, cuDeviceGet, (heft_cu_device * device_out, int ordinal))                                  \
    X(device_name, cuDeviceGetName, (char *name_out, int size, heft_cu_device device))                      \
    X(device_uuid, cuDeviceGetUuid_v2, (struct heft_cu_uuid * uuid_out, heft_cu_device device))             \
    X(device_total, cuDeviceTotalMem_v2, (size_t * bytes_out, heft_cu_device device))                       \
    X(device_attribute, cuDeviceGetAttribute, (int *value_out, int attribute, heft_cu_device device))       \
    X(device_pci, cuDeviceGetPCIBusId, (char *text_out, int size, heft_cu_device device))                   \
    X(device_peer, cuDeviceCanAccessPeer, (int *can_out, heft_cu_device device, heft_cu_device peer))       \
    X(primary_retain, cuDevicePrimaryCtxRetain, (heft_cu_context * context_out, heft_cu_device device))     \
    X(primary_release, cuDevicePrimaryCtxRelease_v2, (heft_cu_device device))                               \
    X(context_push, cuCtxPushCurrent_v2, (heft_cu_context context))                                         \
    X(context_pop, cuCtxPopCurrent_v2, (heft_cu_context * context_out))                                     \
    X(context_current, cuCtxGetCurrent, (heft_cu_context * context_out))                                    \
    X(context_peer, cuCtxEnablePeerAccess, (heft_cu_context peer, unsigned flags))                          \
    X(mem_info, cuMemGetInfo_v2, (size_t * free_out, size_t * total_out))                                   \
    X(mem_alloc, cuMemAlloc_v2, (heft_cu_pointer * pointer_out, size_t bytes))                              \
    X(mem_free, cuMemFree_v2, (heft_cu_pointer pointer))                                                    \
    X(pointer_attribute, cuPointerGetAttribute, (void *data_out, int attribute, heft_cu_pointer pointer))   \
    X(memcpy_async, cuMemcpyAsync,                                                                          \
      (heft_cu_pointer to, heft_cu_pointer from, size_t bytes, heft_cu_stream stream))                      \
    X(host_alloc, cuMemHostAlloc, (void **pointer_out, size_t bytes, unsigned flags))                       \
    X(host_free, cuMemFreeHost, (void *pointer))                                                            \
    X(stream_create, cuStreamCreate, (heft_cu_stream * stream_out, unsigned flags))                         \
    X(stream_destroy, cuStreamDestroy_v2, (heft_cu_stream stream))                                          \
    X(event_create, cuEventCreate, (heft_cu_event * event_out, unsigned flags))                             \
    X(event_destroy, cuEventDestroy_v2, (heft_cu_event event))                                              \
    X(event_record, cuEventRecord, (heft_cu_event event, heft_cu_stream stream))                            \
    X(event_query, cuEventQuery, (heft_cu_event event))                                                     \
    X(address_reserve, cuMemAddressReserve,                                                                 \
      (heft_cu_pointer * pointer_out, size_t bytes, size_t align, heft_cu_pointer wish,                     \
       unsigned long long flags))                                                                           \
    X(address_free, cuMemAddressFree, (heft_cu_pointer pointer, size_t bytes))                              \
    X(mem_create, cuMemCreate,                                                                              \
      (heft_cu_handle * handle_out, size_t bytes, const struct heft_cu_allocation *allocation,              \
       unsigned long long flags))                                                                           \
    X(mem_release, cuMemRelease, (heft_cu_handle handle))                                                   \
    X(mem_map, cuMemMap,                                                                                    \
      (heft_cu_pointer pointer, size_t bytes, size_t offset, heft_cu_handle handle,                         \
       unsigned long long flags))                                                                           \
    X(mem_unmap, cuMemUnmap, (heft_cu_pointer pointer, size_t bytes))                                       \
    X(mem_access, cuMemSetAccess,                                                                           \
      (heft_cu_pointer pointer, size_t bytes, const struct heft_cu_access *access, size_t count))           \
    X(mem_get_access, cuMemGetAccess,                                                                       \
      (unsigned long long *flags_out, const struct heft_cu_location *location, heft_cu_pointer pointer))    \
    X(mem_export, cuMemExportToShareableHandle,                                                             \
      (void *shareable_out, heft_cu_handle handle, int type, unsigned long long flags))                     \
    X(mem_import, cuMemImportFromShareableHandle, (heft_cu_handle * handle_out, void *shareable, int type)) \
    X(mem_granularity, cuMemGetAllocationGranularity,                                                       \
      (size_t * bytes_out, const struct heft_cu_allocation *allocation, int option))                        \
    X(mem_retain, cuMemRetainAllocationHandle, (heft_cu_handle * handle_out, void *address))                \
    X(ipc_get, cuIpcGetMemHandle, (struct heft_cu_ipc_handle * handle_out, heft_cu_pointer pointer))        \
    X(ipc_open, cuIpcOpenMemHandle_v2,                                                                      \
      (heft_cu_pointer * pointer_out, struct heft_cu_ipc_handle handle, unsigned flags))                    \
    X(ipc_close, cuIpcCloseMemHandle, (heft_cu_pointer pointer))                                            \
    X(module_load, cuModuleLoadData, (heft_cu_module * module_out, const void *image))                      \
    X(module_function, cuModuleGetFunction,                                                                 \
      (heft_cu_function * function_out, heft_cu_module module, const char *name))                           \
    X(launch, cuLaunchKernel,                                                                               \
      (heft_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,      \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, heft_cu_stream stream, void **parameters, \
       void **extra))                                                                                       \
    X(stream_query, cuStreamQuery, (heft_cu_stream stream))                                                 \
    X(stream_context, cuStreamGetCtx, (heft_cu_stream stream, heft_cu_context * context_out))               \
    X(stream_wait_event, cuStreamWaitEvent, (heft_cu_stream stream, heft_cu_event event, unsigned flags))   \
    X(host_register, cuMemHostRegister_v2, (void *pointer, size_t bytes, unsigned flags))                   \
    X(host_unregister, cuMemHostUnregister, (void *pointer))

/* NULL where the driver is older than they are. */
#define HEFT_CU_NEWER_FUNCTIONS(X)                                                      \
    X(stream_write, cuStreamWriteValue32_v2,                                            \
      (heft_cu_stream stream, heft_cu_pointer address, uint32_t value, unsigned flags)) \
    X(stream_wait, cuStreamWaitValue32_v2,                                              \
      (heft_cu_stream stream, heft_cu_pointer address, uint32_t value, unsigned flags)) \
    X(stream_write64, cuStreamWriteValue64_v2,                                          \
      (heft_cu_stream stream, heft_cu_pointer address, uint64_t value, unsigned flags)) \
    X(stream_wait64, cuStreamWaitValue64_v2,                                            \
      (heft_cu_stream stream, heft_cu_pointer address, uint64_t value, unsigned flags))

struct heft_cu {
#define HEFT_CU_FIELD(field, symbol, parameters) heft_cu_result(*field) parameters;
    HEFT_CU_FUNCTIONS(HEFT_CU_FIELD)
    HEFT_CU_NEWER_FUNCTIONS(HEFT_CU_FIELD)
#undef HEFT_CU_FIELD
};

#endif
