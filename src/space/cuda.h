/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `cuda` space: GPUs through the driver that is loaded at run time. One build runs with and without it;
 * without a driver or a GPU every call here says UNSUPPORTED, "no GPU: ..." and what to do.
 *
 * heft lives in other people's processes. It uses each device's primary context, the one that CUDA's runtime
 * and PyTorch use; it never makes another, never resets it, never sets its flags, and leaves the thread's
 * current context as it found it (enter and leave push and pop). A context once retained is kept for the
 * process' life.
 *
 * Threads: everything here may be called from any thread; enter and leave belong to one thread, in pairs.
 */
#ifndef HEFT_SPACE_CUDA_H
#define HEFT_SPACE_CUDA_H

#include "space/cuda_driver.h"
#include <heft/space.h>

#define HEFT_CUDA_MAX_DEVICES 64

/* Looks for the driver library and its functions, without starting it (which costs hundreds of ms). */
int heft_cuda_find(struct heft_error *error);
/* Starts the driver, once; the table is valid for the process' life. */
int heft_cuda_load(const struct heft_cu **cu_out, struct heft_error *error);
/* The table when heft_cuda_load has succeeded already, else NULL. */
const struct heft_cu *heft_cuda_loaded(void);

/* Error text from the driver's own words; returns the HEFT_ERR_* code (NO_MEMORY, else LIBRARY). */
int heft_cuda_error(struct heft_error *error, heft_cu_result result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

int heft_cuda_device_count(void); /* 0 without a driver */
struct heft_cuda_device {
    char name[96];
    char uuid_text[48]; /* "GPU-xxxxxxxx-..." as nvidia-smi prints it */
    char pci[20];
    uint8_t uuid[16];
    int major, minor, processors;
    int shares_fds; /* memory of heft_device_memory_alloc can be passed to other processes */
    uint64_t total_bytes;
};
int heft_cuda_device_info(int device, struct heft_cuda_device *info_out, struct heft_error *error);
/* A device whose memory other processes can map; UNSUPPORTED when it is none. */
int heft_cuda_sharing_device(int device, const struct heft_cu **cu_out, struct heft_cuda_device *info_out,
                             struct heft_error *error);
/* Free memory: needs the device's context, which the first such call makes. */
int heft_cuda_free_bytes(int device, uint64_t *bytes_out, struct heft_error *error);
/* -1: no visible device has it. */
int heft_cuda_device_by_uuid(const uint8_t uuid[16]);
int heft_cuda_driver_version(void); /* 13000: CUDA 13.0; 0: none */
/* "cuda:N" or "cuda:GPU-<uuid>"; INVALID, or UNSUPPORTED without that device. */
int heft_cuda_parse_device(const char *text, int *device_out, struct heft_error *error);

/* Makes the device's primary context current on this thread, until leave. */
int heft_cuda_enter(int device, struct heft_error *error);
void heft_cuda_leave(void);
/* A device whose context this process has already (another one costs hundreds of ms), else 0. */
int heft_cuda_used_device(void);
/* Lets kernels on `device` touch plain memory of `peer`. 0 also when it was so; else they can't. Inside
 * enter(device). */
int heft_cuda_enable_peer(int device, int peer);

/* What an address is, by the driver's pointer attributes. */
enum heft_cuda_kind {
    HEFT_CUDA_PAGEABLE = 0, /* memory that the driver does not know */
    HEFT_CUDA_PINNED = 1,   /* host memory that it pinned */
    HEFT_CUDA_PLAIN = 2,    /* cuMemAlloc, cudaMalloc */
    HEFT_CUDA_VMM = 3,      /* cuMemMap, expandable segments */
    HEFT_CUDA_POOL = 4,     /* cudaMallocAsync */
    HEFT_CUDA_MANAGED = 5
};
struct heft_cuda_pointer {
    enum heft_cuda_kind kind;
    int device;
    uint64_t start, size_bytes; /* of the allocation, or of the mapping (VMM) it lies in */
    int exports_fd, exports_ipc;
    uint64_t
        buffer_id; /* another one for each allocation the process ever made; 0: the driver does not say */
};
/* Needs a loaded driver; without one everything is PAGEABLE. */
void heft_cuda_query(uint64_t address, struct heft_cuda_pointer *pointer_out);

/* ---- kernels (src/kernels), built in when nvcc was there at build time ---- */

/* A run of `count` pieces of `length_bytes` (the last one `last_bytes`); piece 0 has the number `first`. */
struct heft_cuda_item {
    uint64_t to, from, to_stride_bytes, from_stride_bytes;
    uint32_t length_bytes, last_bytes;
    uint64_t first;
};
struct heft_cuda_place {
    uint64_t address, size_bytes;
};
struct heft_cuda_kernels {
    heft_cu_function copy;   /* (const item *items, uint64_t items, uint64_t pieces) */
    heft_cu_function digest; /* (const place *places, uint64_t count, uint64_t *digests) */
    uint32_t digest_threads;
};
#define HEFT_CUDA_COPY_THREADS 512u
/* Thread blocks of a copy, when the caller names no other number: one fills a processor, so this many of 100
 * and more are taken. */
#define HEFT_CUDA_COPY_BLOCKS 32u
/* Whether this build has any. */
int heft_cuda_has_kernels(void);
/* Inside enter(device). UNSUPPORTED: this build has none, or not for this GPU. */
int heft_cuda_kernels(int device, struct heft_cuda_kernels *kernels_out, struct heft_error *error);

/*
 * XXH3-64 of each place in the memory of `device`, equal to heft_hash64's. Blocks (in short sleeps) until
 * they are there; waits for its own stream alone.
 */
int heft_cuda_digest(int device, const struct heft_cuda_place *places, uint64_t count, uint64_t *digests_out,
                     struct heft_error *error);
/* Makes what the first digests on a GPU would have to wait for: its context, the kernels, buffers. Ahead of
 * time, on a thread of the caller; what fails here fails again where it matters. */
void heft_cuda_warm(int device);
/* Pins host memory of the caller, for any device; unpin takes NULL. UNSUPPORTED without a GPU in use. */
int heft_cuda_pin(void *address, uint64_t size_bytes);
void heft_cuda_unpin(void *address);
/* Copies bytes out of device memory, in pieces through a pinned buffer; for tools, not for speed. */
int heft_cuda_read(int device, uint64_t address, void *to, uint64_t length_bytes, struct heft_error *error);
/* The same for memory whose device is asked of the driver. */
int heft_cuda_get(uint64_t address, void *to, uint64_t length_bytes, struct heft_error *error);

#endif
