/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory of the tests' own, and looking into regions wherever they lie. Over the driver without a GPU
 * (FAKE_CUDA=1) device addresses can't be touched by the CPU, over a real one neither: every byte goes by
 * copies on a stream.
 */
#include "conformance/harness.h"
#include "base/digest.h"
#include "space/cuda.h"
#include "space/cuda_memory.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE 0
#define BLOCK_BYTES ((uint64_t)256 << 10)

typedef heft_cu_result (*set_fn)(heft_cu_pointer to, unsigned char value, size_t bytes,
                                 heft_cu_stream stream);

struct heft_error device_error;

#define MUST(condition)                                        \
    do {                                                       \
        if (!(condition))                                      \
            fail_msg("%s: %s", #condition, device_error.text); \
    } while (0)

static const struct heft_cu *driver(void)
{
    const struct heft_cu *cu = NULL;

    MUST(heft_cuda_load(&cu, &device_error) == 0);
    return cu;
}

int device_is_real(void)
{
    return getenv("FAKE_CUDA") == NULL;
}

/* The library itself sets no memory, so its table has no such call. */
static set_fn find_set(void)
{
    union {
        void *object;
        set_fn function;
    } symbol;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);

    assert_non_null(library);
    symbol.object = dlsym(library, "cuMemsetD8Async");
    assert_non_null(symbol.object);
    (void)dlclose(library); /* the driver stays loaded */
    return symbol.function;
}

/* value < 0: a copy, else every byte becomes the value. */
static void work(uint64_t to, uint64_t from, uint64_t bytes, int value)
{
    const struct heft_cu *cu = driver();
    heft_cu_stream stream;
    heft_cu_event event;
    heft_cu_result result;

    if (bytes == 0)
        return;
    MUST(heft_cuda_enter(DEVICE, &device_error) == 0);
    MUST(cu->stream_create(&stream, HEFT_CU_STREAM_NON_BLOCKING) == 0);
    MUST(cu->event_create(&event, HEFT_CU_EVENT_DISABLE_TIMING) == 0);
    result = value < 0 ? cu->memcpy_async(to, from, bytes, stream)
                       : find_set()(to, (unsigned char)value, bytes, stream);
    assert_int_equal(result, 0);
    assert_int_equal(cu->event_record(event, stream), 0);
    while ((result = cu->event_query(event)) == HEFT_CU_NOT_READY)
        ;
    assert_int_equal(result, 0);
    (void)cu->event_destroy(event);
    (void)cu->stream_destroy(stream);
    heft_cuda_leave();
}

static int on_device(const struct heft_transport_region *region)
{
    return region->space == HEFT_SPACE_CUDA;
}

static uint64_t address_of(const struct heft_transport_region *region)
{
    return (uintptr_t)((const struct side_region *)(const void *)region)->mapping;
}

void region_get(const struct heft_transport_region *region, uint64_t offset, void *to, uint64_t length)
{
    if (on_device(region))
        work((uintptr_t)to, address_of(region) + offset, length, -1);
    else
        memcpy(to, (const char *)((const struct side_region *)(const void *)region)->mapping + offset,
               length);
}

void region_set(const struct heft_transport_region *region, uint64_t offset, int value, uint64_t length)
{
    if (on_device(region))
        work(address_of(region) + offset, 0, length, value);
    else
        memset((char *)((const struct side_region *)(const void *)region)->mapping + offset, value, length);
}

void region_expect(const struct heft_transport_region *region, uint64_t offset, const void *wanted,
                   uint64_t length)
{
    void *copy;

    if (!on_device(region)) {
        assert_memory_equal((const char *)((const struct side_region *)(const void *)region)->mapping +
                                offset,
                            wanted, length);
        return;
    }
    copy = malloc(length);
    assert_non_null(copy);
    region_get(region, offset, copy, length);
    assert_memory_equal(copy, wanted, length);
    free(copy);
}

/* By digests made where the bytes are: they may be gigabytes. */
void device_expect_all(const struct heft_transport_region *region, int value, uint64_t length)
{
    uint64_t count = length / BLOCK_BYTES, expected;
    struct heft_cuda_place *places = calloc(count, sizeof(*places));
    uint64_t *digests = calloc(count, sizeof(*digests));
    void *block = malloc(BLOCK_BYTES);

    assert_true(places && digests && block && length % BLOCK_BYTES == 0);
    memset(block, value, BLOCK_BYTES);
    expected = heft_hash64(block, BLOCK_BYTES, 0);
    for (uint64_t i = 0; i < count; i++)
        places[i] = (struct heft_cuda_place){address_of(region) + i * BLOCK_BYTES, BLOCK_BYTES};
    MUST(heft_cuda_digest(DEVICE, places, count, digests, &device_error) == 0);
    for (uint64_t i = 0; i < count; i++)
        if (digests[i] != expected)
            fail_msg("block %llu of re-used device memory was written after done", (unsigned long long)i);
    free(places);
    free(digests);
    free(block);
}

void device_memory_make(struct side_region *entry, enum memory_kind kind, uint64_t bytes)
{
    struct heft_device_memory_info info;
    heft_cu_pointer address;

    if (kind == MEMORY_DEVICE) {
        /* Some pieces: a region of one mapping is the easy case. */
        MUST(heft_device_memory_alloc_pieces(DEVICE, bytes, bytes / 3 + 1, &entry->device, &device_error) ==
             0);
        heft_device_memory_get_info(entry->device, &info);
        address = info.address;
    } else {
        MUST(heft_cuda_enter(DEVICE, &device_error) == 0);
        assert_int_equal(driver()->mem_alloc(&address, bytes), 0);
        heft_cuda_leave();
    }
    entry->mapping = (void *)(uintptr_t)address;
    work(address, 0, bytes, 0);
}

void device_memory_drop(struct side_region *entry, enum memory_kind kind)
{
    if (kind == MEMORY_DEVICE) {
        heft_device_memory_free(entry->device);
        return;
    }
    MUST(heft_cuda_enter(DEVICE, &device_error) == 0);
    assert_int_equal(driver()->mem_free((uintptr_t)entry->mapping), 0);
    heft_cuda_leave();
}

void device_memory_put(const struct side_region *entry, uint64_t offset, const void *from, uint64_t length)
{
    work((uintptr_t)entry->mapping + offset, (uintptr_t)from, length, -1);
}

void device_pin(struct side_region *entry)
{
    (void)driver();
    MUST(heft_cuda_enter(DEVICE, &device_error) == 0); /* pinning asks for a GPU in use */
    heft_cuda_leave();
    assert_int_equal(heft_cuda_pin(entry->mapping, entry->mapping_bytes), 0);
}

void device_unpin(struct side_region *entry)
{
    heft_cuda_unpin(entry->mapping);
}
