/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spaces: kinds of places for bytes, and memory that heft allocates so that processes of one host can share
 * it.
 */
#ifndef HEFT_SPACE_H
#define HEFT_SPACE_H

#include <heft/error.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A kind of place for bytes. The numbers are part of the wire format: never renumber. */
enum heft_space {
    HEFT_SPACE_NONE = 0,
    HEFT_SPACE_HOST = 1,   /* bytes at an address of a process */
    HEFT_SPACE_CUDA = 2,   /* bytes at a device pointer */
    HEFT_SPACE_FILE = 3,   /* bytes of an open file */
    HEFT_SPACE_OBJECT = 4, /* bytes of an object in a store */
    HEFT_SPACE_COUNT = 5
};

/* "host", "cuda", "file", "object"; "none" for anything else. */
const char *heft_space_name(enum heft_space space);

/*
 * Host memory that other processes of this host can map without a copy: a file without a name, in huge pages
 * where the system allows it. Zeroed. Freed by heft_memory_free, which must not happen before every region
 * registered on it is deregistered.
 */
struct heft_memory;

enum heft_memory_flags {
    HEFT_MEMORY_PREFAULT = 1 /* touch every page now, with as many threads as pay */
};

struct heft_memory_info {
    void *address;         /* aligned to page_bytes */
    uint64_t length_bytes; /* as asked for */
    uint64_t page_bytes;   /* 4096, or the huge page size the kernel was asked for */
    int fd;                /* descriptor that maps the same bytes at offset 0; owned by the memory */
    const char *kind;      /* "huge tmpfs", "memfd": static text */
};

/* length_bytes 0 is legal (address may be NULL). Errors: NO_MEMORY (with the limit named), NO_FDS, SYSTEM. */
int heft_memory_alloc(uint64_t length_bytes, uint32_t flags, struct heft_memory **memory_out,
                      struct heft_error *error);
void heft_memory_free(struct heft_memory *memory);
void heft_memory_get_info(const struct heft_memory *memory, struct heft_memory_info *info_out);
/* Touches the pages of [offset, offset+length) ahead of use; safe to call from several threads at once. */
int heft_memory_prefault(struct heft_memory *memory, uint64_t offset_bytes, uint64_t length_bytes,
                         struct heft_error *error);

/*
 * Device memory that other processes of this host can map without a copy: one range of addresses of one GPU,
 * made of the driver's virtual memory management and shared by descriptors. Its bytes are undefined at first.
 * Registered like any device pointer (HEFT_SPACE_CUDA, address and length); freed after every region on it is
 * deregistered.
 */
struct heft_device_memory;

struct heft_device_memory_info {
    uint64_t address;      /* a device pointer of this process; aligned to page_bytes */
    uint64_t length_bytes; /* as asked for */
    uint64_t page_bytes;   /* what the GPU rounds to (2 MiB) */
    int device;            /* its number in this process */
    const char *kind;      /* static text */
};

/* device: as CUDA numbers them in this process. flags 0. Errors: UNSUPPORTED ("no GPU: ..."), NO_MEMORY,
 * LIBRARY (with the driver's text). */
int heft_device_memory_alloc(int device, uint64_t length_bytes, uint32_t flags,
                             struct heft_device_memory **memory_out, struct heft_error *error);
void heft_device_memory_free(struct heft_device_memory *memory);
void heft_device_memory_get_info(const struct heft_device_memory *memory,
                                 struct heft_device_memory_info *info_out);

/*
 * A range of device addresses that is filled piece by piece: each allocation takes physical memory of its
 * own, rounded up to page_bytes, at the first gap where it fits, and freeing it gives the memory back. What
 * is in use from `address` on without a gap (whole_bytes) can be registered as one region, of up to 240
 * allocations; a peer of this host maps it as one range. Regions must be deregistered before anything in them
 * is freed. Any thread.
 */
struct heft_device_arena;

struct heft_device_arena_info {
    uint64_t address, reserved_bytes; /* of the whole range */
    uint64_t committed_bytes;         /* physical memory in use */
    uint64_t used_bytes;              /* from `address` to the end of the last allocation */
    uint64_t whole_bytes;             /* from `address` to the first gap */
    uint64_t page_bytes;
    int device;
};

/* reserve_bytes 0: as much as the GPU has. Errors as heft_device_memory_alloc's. */
int heft_device_arena_create(int device, uint64_t reserve_bytes, struct heft_device_arena **arena_out,
                             struct heft_error *error);
/* Frees what is left in it. NULL is allowed. */
void heft_device_arena_destroy(struct heft_device_arena *arena);
/* NO_MEMORY: of the GPU, or no gap of addresses is left. */
int heft_device_arena_alloc(struct heft_device_arena *arena, uint64_t length_bytes, uint64_t *address_out,
                            struct heft_error *error);
/* NOT_FOUND: no allocation begins there. */
int heft_device_arena_free(struct heft_device_arena *arena, uint64_t address, struct heft_error *error);
void heft_device_arena_get_info(struct heft_device_arena *arena, struct heft_device_arena_info *info_out);

/*
 * The two functions that PyTorch's pluggable allocator asks for (docs/gpu.md has the lines of Python), over
 * one arena a GPU: tensors lie in memory that peers of this host can map. size_bytes is rounded up to the
 * arena's page, so let PyTorch keep a pool on top. stream is a cudaStream_t. NULL: of the GPU or the arena
 * nothing is left, or there is no GPU; the log says which. Freed memory is unmapped once what is on the
 * stream then is over; other streams that use it the caller waits for, and regions on it are deregistered
 * before. Any thread.
 */
void *heft_torch_alloc(ssize_t size_bytes, int device, void *stream);
void heft_torch_free(void *pointer, ssize_t size_bytes, int device, void *stream);
/* That arena, to be registered (heft_device_arena_get_info); it lives as long as the process and is never
 * destroyed. NULL: no GPU, or none whose memory can be shared. */
struct heft_device_arena *heft_torch_arena(int device);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
