/* SPDX-License-Identifier: Apache-2.0 */
/* The driver, its devices and contexts, and what an address is. */
#include "space/cuda.h"
#include "base/error.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REMEDY \
    "install NVIDIA's driver, or pass the GPU into the container (--gpus all); host memory works without"

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static struct heft_cu table;
static int found;  /* under load_lock: 1 the library and all functions, -1 not */
static int loaded; /* atomic: 1 started, -1 refused */
static struct heft_error load_error;
static int device_count;
static heft_cu_context contexts[HEFT_CUDA_MAX_DEVICES]; /* atomic; kept once retained */

/* ---- the driver ---- */

static int find_locked(void)
{
    void *library;
    const char *missing = NULL;

    if (found)
        return found;
    found = -1;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        (void)heft_error_set(&load_error, HEFT_ERR_UNSUPPORTED,
                             "no GPU: libcuda.so.1 was not found; " REMEDY);
        return found;
    }
#define FIND(field, symbol, parameters)               \
    *(void **)&table.field = dlsym(library, #symbol); \
    if (!table.field && !missing)                     \
        missing = #symbol;
    HEFT_CU_FUNCTIONS(FIND)
#undef FIND
#define FIND(field, symbol, parameters) *(void **)&table.field = dlsym(library, #symbol);
    HEFT_CU_NEWER_FUNCTIONS(FIND)
#undef FIND
    if (missing)
        (void)heft_error_set(&load_error, HEFT_ERR_UNSUPPORTED,
                             "no GPU: the driver is too old, it lacks %s (CUDA 11.4 or later is needed)",
                             missing);
    else
        found = 1;
    return found; /* the library stays: its code may be on other threads' stacks */
}

int heft_cuda_find(struct heft_error *error)
{
    int rc = HEFT_OK;

    (void)pthread_mutex_lock(&load_lock);
    if (find_locked() < 0) {
        rc = load_error.code;
        if (error)
            *error = load_error;
    }
    (void)pthread_mutex_unlock(&load_lock);
    return rc;
}

static int start_locked(void)
{
    heft_cu_result rc = table.init(0);
    const char *text = NULL;

    if (rc == HEFT_CU_SUCCESS)
        rc = table.device_count(&device_count);
    if (rc == HEFT_CU_SUCCESS && device_count == 0)
        rc = HEFT_CU_NO_DEVICE;
    if (rc == HEFT_CU_SUCCESS) {
        if (device_count > HEFT_CUDA_MAX_DEVICES)
            device_count = HEFT_CUDA_MAX_DEVICES;
        return 1;
    }
    device_count = 0;
    (void)table.error_string(rc, &text);
    (void)heft_error_set(&load_error, HEFT_ERR_UNSUPPORTED, "no GPU: the driver says: %s (%d); " REMEDY,
                         text ? text : "unknown error", rc);
    return -1;
}

int heft_cuda_load(const struct heft_cu **cu_out, struct heft_error *error)
{
    int state = __atomic_load_n(&loaded, __ATOMIC_ACQUIRE), rc = HEFT_OK;

    if (state <= 0) {
        (void)pthread_mutex_lock(&load_lock);
        state = loaded;
        if (state == 0)
            state = find_locked() < 0 ? -1 : start_locked();
        __atomic_store_n(&loaded, state, __ATOMIC_RELEASE);
        if (state < 0) {
            rc = load_error.code;
            if (error)
                *error = load_error;
        }
        (void)pthread_mutex_unlock(&load_lock);
    }
    if (!rc)
        *cu_out = &table;
    return rc;
}

const struct heft_cu *heft_cuda_loaded(void)
{
    return __atomic_load_n(&loaded, __ATOMIC_ACQUIRE) > 0 ? &table : NULL;
}

int heft_cuda_error(struct heft_error *error, heft_cu_result result, const char *format, ...)
{
    const struct heft_cu *cu = heft_cuda_loaded();
    const char *name = NULL, *text = NULL;
    char what[256];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    if (cu) {
        (void)cu->error_name(result, &name);
        (void)cu->error_string(result, &text);
    }
    return heft_error_set(error, result == HEFT_CU_OUT_OF_MEMORY ? HEFT_ERR_NO_MEMORY : HEFT_ERR_LIBRARY,
                          "%s: %s (%s, %d)", what, text ? text : "unknown error", name ? name : "?", result);
}

/* ---- devices ---- */

int heft_cuda_device_count(void)
{
    const struct heft_cu *cu;

    return heft_cuda_load(&cu, NULL) ? 0 : device_count;
}

int heft_cuda_driver_version(void)
{
    const struct heft_cu *cu;
    int version = 0;

    return heft_cuda_load(&cu, NULL) || cu->driver_version(&version) ? 0 : version;
}

static int get_device(int device, const struct heft_cu **cu_out, heft_cu_device *handle_out,
                      struct heft_error *error)
{
    int rc = heft_cuda_load(cu_out, error);
    heft_cu_result result;

    if (rc)
        return rc;
    if (device < 0 || device >= device_count)
        return heft_error_set(
            error, HEFT_ERR_UNSUPPORTED,
            "no GPU cuda:%d: this process sees %d (numbers count from 0; see CUDA_VISIBLE_DEVICES "
            "and heft probe)",
            device, device_count);
    result = (*cu_out)->device_get(handle_out, device);
    return result ? heft_cuda_error(error, result, "opening GPU %d", device) : HEFT_OK;
}

int heft_cuda_device_info(int device, struct heft_cuda_device *info_out, struct heft_error *error)
{
    struct heft_cuda_device info = {0};
    struct heft_cu_uuid uuid;
    const struct heft_cu *cu;
    heft_cu_device handle;
    int rc = get_device(device, &cu, &handle, error), vmm = 0, fds = 0;
    heft_cu_result result;
    size_t total = 0, index, used;

    if (rc)
        return rc;
    result = cu->device_name(info.name, (int)sizeof(info.name), handle);
    if (!result)
        result = cu->device_uuid(&uuid, handle);
    if (!result)
        result = cu->device_total(&total, handle);
    if (!result)
        result = cu->device_pci(info.pci, (int)sizeof(info.pci), handle);
    if (result)
        return heft_cuda_error(error, result, "asking what GPU %d is", device);
    (void)cu->device_attribute(&info.major, HEFT_CU_DEVICE_MAJOR, handle);
    (void)cu->device_attribute(&info.minor, HEFT_CU_DEVICE_MINOR, handle);
    (void)cu->device_attribute(&info.processors, HEFT_CU_DEVICE_PROCESSORS, handle);
    (void)cu->device_attribute(&vmm, HEFT_CU_DEVICE_VMM, handle);
    (void)cu->device_attribute(&fds, HEFT_CU_DEVICE_POSIX_HANDLES, handle);
    info.shares_fds = vmm && fds;
    info.total_bytes = total;
    memcpy(info.uuid, uuid.bytes, sizeof(info.uuid));
    used = (size_t)snprintf(info.uuid_text, sizeof(info.uuid_text), "GPU-");
    for (index = 0; index < sizeof(uuid.bytes); index++)
        used += (size_t)snprintf(info.uuid_text + used, sizeof(info.uuid_text) - used, "%s%02x",
                                 index == 4 || index == 6 || index == 8 || index == 10 ? "-" : "",
                                 uuid.bytes[index]);
    *info_out = info;
    return HEFT_OK;
}

int heft_cuda_device_by_uuid(const uint8_t uuid[16])
{
    struct heft_cuda_device info;
    int index, count = heft_cuda_device_count();

    for (index = 0; index < count; index++)
        if (!heft_cuda_device_info(index, &info, NULL) && memcmp(info.uuid, uuid, sizeof(info.uuid)) == 0)
            return index;
    return -1;
}

int heft_cuda_parse_device(const char *text, int *device_out, struct heft_error *error)
{
    struct heft_cuda_device info;
    const struct heft_cu *cu;
    char *end;
    long number;
    int rc, index;

    if (strncmp(text, "cuda:", 5) != 0)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "unknown device '%s': use host, cuda:N or cuda:GPU-<uuid>", text);
    if (strncmp(text + 5, "GPU-", 4) != 0) {
        number = strtol(text + 5, &end, 10);
        if (text[5] < '0' || text[5] > '9' || *end || number >= HEFT_CUDA_MAX_DEVICES)
            return heft_error_set(error, HEFT_ERR_INVALID,
                                  "unknown device '%s': use host, cuda:N or cuda:GPU-<uuid>", text);
        rc = heft_cuda_device_info((int)number, &info, error);
        if (!rc)
            *device_out = (int)number;
        return rc;
    }
    rc = heft_cuda_load(&cu, error);
    if (rc)
        return rc;
    for (index = 0; index < device_count; index++)
        if (!heft_cuda_device_info(index, &info, NULL) && strcmp(info.uuid_text, text + 5) == 0) {
            *device_out = index;
            return HEFT_OK;
        }
    return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "no GPU %s among the %d that this process sees",
                          text + 5, device_count);
}

/* ---- contexts ---- */

static int retain(int device, heft_cu_context *context_out, struct heft_error *error)
{
    heft_cu_context context = NULL;
    const struct heft_cu *cu;
    heft_cu_device handle;
    heft_cu_result result = HEFT_CU_SUCCESS;
    int rc;

    if (device >= 0 && device < HEFT_CUDA_MAX_DEVICES)
        context = __atomic_load_n(&contexts[device], __ATOMIC_ACQUIRE);
    if (!context) {
        rc = get_device(device, &cu, &handle, error);
        if (rc)
            return rc;
        (void)pthread_mutex_lock(&load_lock);
        context = contexts[device];
        if (!context)
            result = cu->primary_retain(&context, handle);
        if (!result)
            __atomic_store_n(&contexts[device], context, __ATOMIC_RELEASE);
        (void)pthread_mutex_unlock(&load_lock);
        if (result)
            return heft_cuda_error(error, result, "taking the primary context of GPU %d", device);
    }
    *context_out = context;
    return HEFT_OK;
}

int heft_cuda_enter(int device, struct heft_error *error)
{
    heft_cu_context context = NULL;
    heft_cu_result result;
    int rc = retain(device, &context, error);

    if (rc)
        return rc;
    result = table.context_push(context);
    return result ? heft_cuda_error(error, result, "making GPU %d current", device) : HEFT_OK;
}

int heft_cuda_used_device(void)
{
    int device;

    for (device = 0; device < HEFT_CUDA_MAX_DEVICES; device++)
        if (__atomic_load_n(&contexts[device], __ATOMIC_ACQUIRE))
            return device;
    return 0;
}

void heft_cuda_leave(void)
{
    heft_cu_context context = NULL;

    (void)table.context_pop(&context);
}

int heft_cuda_enable_peer(int device, int peer)
{
    heft_cu_context context = NULL;
    heft_cu_device here, there;
    heft_cu_result result;
    int can = 0;

    if (device == peer)
        return HEFT_OK;
    if (retain(peer, &context, NULL) || table.device_get(&here, device) || table.device_get(&there, peer) ||
        table.device_peer(&can, here, there) || !can)
        return HEFT_ERR_UNSUPPORTED;
    result = table.context_peer(context, 0);
    return result == HEFT_CU_SUCCESS || result == HEFT_CU_PEER_ACCESS_ENABLED ? HEFT_OK
                                                                              : HEFT_ERR_UNSUPPORTED;
}

int heft_cuda_free_bytes(int device, uint64_t *bytes_out, struct heft_error *error)
{
    size_t left = 0, total = 0;
    heft_cu_result result;
    int rc = heft_cuda_enter(device, error);

    if (rc)
        return rc;
    result = table.mem_info(&left, &total);
    heft_cuda_leave();
    if (result)
        return heft_cuda_error(error, result, "asking for the free memory of GPU %d", device);
    *bytes_out = left;
    return HEFT_OK;
}

int heft_cuda_pin(void *address, uint64_t size_bytes)
{
    heft_cu_result result;

    if (!heft_cuda_loaded() || heft_cuda_enter(heft_cuda_used_device(), NULL))
        return HEFT_ERR_UNSUPPORTED;
    result = table.host_register(address, size_bytes, HEFT_CU_HOST_REGISTER_PORTABLE);
    heft_cuda_leave();
    return result ? HEFT_ERR_LIBRARY : HEFT_OK;
}

void heft_cuda_unpin(void *address)
{
    if (!address || heft_cuda_enter(heft_cuda_used_device(), NULL))
        return;
    (void)table.host_unregister(address);
    heft_cuda_leave();
}

/* ---- pointers ---- */

static int ask(const struct heft_cu *cu, uint64_t address, int attribute, void *value_out)
{
    return cu->pointer_attribute(value_out, attribute, address) == HEFT_CU_SUCCESS;
}

void heft_cuda_query(uint64_t address, struct heft_cuda_pointer *pointer_out)
{
    const struct heft_cu *cu = heft_cuda_loaded();
    struct heft_cuda_pointer pointer = {.kind = HEFT_CUDA_PAGEABLE, .device = -1};
    unsigned type = 0, managed = 0, legacy = 0;
    heft_cu_pointer start = 0;
    unsigned long long types = 0, id = 0;
    void *pool = NULL;
    size_t size = 0;

    *pointer_out = pointer;
    if (!cu || !ask(cu, address, HEFT_CU_POINTER_MEMORY_TYPE, &type))
        return;
    if (type != HEFT_CU_MEMORY_HOST && type != HEFT_CU_MEMORY_DEVICE)
        return;
    if (ask(cu, address, HEFT_CU_POINTER_RANGE_START, &start) &&
        ask(cu, address, HEFT_CU_POINTER_RANGE_SIZE, &size)) {
        pointer.start = start;
        pointer.size_bytes = size;
    }
    (void)ask(cu, address, HEFT_CU_POINTER_DEVICE, &pointer.device);
    if (ask(cu, address, HEFT_CU_POINTER_BUFFER_ID, &id))
        pointer.buffer_id = id;
    if (ask(cu, address, HEFT_CU_POINTER_MANAGED, &managed) && managed) {
        pointer.kind = HEFT_CUDA_MANAGED;
    } else if (type == HEFT_CU_MEMORY_HOST) {
        pointer.kind = HEFT_CUDA_PINNED;
    } else {
        (void)ask(cu, address, HEFT_CU_POINTER_LEGACY_IPC, &legacy);
        (void)ask(cu, address, HEFT_CU_POINTER_HANDLE_TYPES, &types);
        (void)ask(cu, address, HEFT_CU_POINTER_MEMPOOL, &pool);
        pointer.exports_ipc = legacy != 0;
        pointer.exports_fd = (types & HEFT_CU_HANDLE_POSIX_FD) != 0;
        pointer.kind = pool ? HEFT_CUDA_POOL : legacy ? HEFT_CUDA_PLAIN : HEFT_CUDA_VMM;
        if (pointer.kind == HEFT_CUDA_VMM && ask(cu, address, HEFT_CU_POINTER_MAPPING_START, &start) &&
            ask(cu, address, HEFT_CU_POINTER_MAPPING_SIZE, &size) && size) {
            pointer.start = start;
            pointer.size_bytes = size;
        }
    }
    *pointer_out = pointer;
}
