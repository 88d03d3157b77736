/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shareable host memory: a file without a name in memory, mapped shared.
 *
 * First touch of small pages costs five times a copy, so huge pages matter more than anything else here.
 * Memfds follow the system's shmem_enabled, which is "never" on most machines; a tmpfs mount of our own may
 * say huge=within_size whatever the system says. So the process makes one such mount (it is attached to no
 * path, and seen by nobody else), where it may, and keeps it; memory of at least one huge page is a nameless
 * file in it. Smaller memory, or everything where mounting is refused, is a memfd.
 *
 * within_size, not always: the last, incomplete huge page of a memory is then made of small pages, and no
 * memory takes more than it was asked for, rounded up to 4 KiB.
 *
 * Promises about limits are kept at allocation. A touch that the system can't serve is a signal, not an error
 * code; so a length is compared with what the machine, the control groups and the mount still have, less
 * what other memories of this process were promised and have not touched yet.
 */
#include "space/memory.h"
#include "base/error.h"
#include "space/memory_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PREFAULT_MAX_THREADS 16
#define PREFAULT_STEP_BYTES ((uint64_t)32 << 20)
#define DEFAULT_HUGE_BYTES ((uint64_t)2 << 20)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct heft_memory {
    struct heft_memory_info info;
    uint64_t mapped_bytes;
    struct heft_memory *prev, *next; /* all of this process, for what they were promised */
};

static pthread_mutex_t memories_lock = PTHREAD_MUTEX_INITIALIZER;
static struct heft_memory *memories;
static int mount_fd = HEFT_MEMORY_MOUNT_OWN; /* under the lock; OWN: not tried yet */
static int own_mount_fd = HEFT_MEMORY_MOUNT_OWN;

/* ---- the mount ---- */

static int make_mount(void)
{
    int context = fsopen("tmpfs", FSOPEN_CLOEXEC);
    int fd = -1;

    if (context < 0)
        return -1;
    if (fsconfig(context, FSCONFIG_SET_STRING, "huge", "within_size", 0) == 0 &&
        fsconfig(context, FSCONFIG_SET_STRING, "size", "100%", 0) == 0 &&
        fsconfig(context, FSCONFIG_SET_STRING, "mode", "0700", 0) == 0 &&
        fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        fd = fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    (void)close(context);
    return fd;
}

void heft_memory_use_mount(int fd)
{
    (void)pthread_mutex_lock(&memories_lock);
    mount_fd = fd == HEFT_MEMORY_MOUNT_OWN ? own_mount_fd : fd;
    (void)pthread_mutex_unlock(&memories_lock);
}

static int get_mount(void)
{
    if (mount_fd == HEFT_MEMORY_MOUNT_OWN)
        mount_fd = own_mount_fd = make_mount();
    return mount_fd;
}

/* ---- pages ---- */

static uint64_t huge_bytes(void)
{
    char text[32] = "";
    int fd = open("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    uint64_t size = got > 0 ? strtoull(text, NULL, 10) : 0;

    if (fd >= 0)
        (void)close(fd);
    if (size < 4096 || (size & (size - 1)) != 0 || size > (uint64_t)1 << 30)
        return DEFAULT_HUGE_BYTES;
    return size;
}

/* Whether a memfd gets huge pages when madvise asks for them. */
static int memfd_may_be_huge(void)
{
    char text[128] = "";
    int fd = open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    if (fd >= 0)
        (void)close(fd);
    return got > 0 && !strstr(text, "[never]") && !strstr(text, "[deny]");
}

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) & ~(unit - 1);
}

struct prefault_work {
    uint8_t *address;
    uint64_t length_bytes;
    int fd;
    uint64_t fd_offset_bytes;
    uint64_t next_bytes; /* atomic */
    int failed_errno;    /* atomic */
};

/*
 * Without MADV_POPULATE_WRITE: fallocate takes the memory and reports what it can't have, the touch only maps
 * it. Adding zero keeps what others write meanwhile.
 */
static int touch(const struct prefault_work *work, uint64_t at, uint64_t bytes)
{
    uint64_t offset;

    while (fallocate(work->fd, FALLOC_FL_KEEP_SIZE, (off_t)(work->fd_offset_bytes + at), (off_t)bytes))
        if (errno != EINTR)
            return errno;
    for (offset = at; offset < at + bytes; offset += 4096)
        (void)__atomic_fetch_add(work->address + offset, 0, __ATOMIC_RELAXED);
    return 0;
}

static int populate(const struct prefault_work *work, uint64_t at, uint64_t bytes)
{
    while (madvise(work->address + at, bytes, MADV_POPULATE_WRITE)) {
        if (errno == EINTR || errno == EAGAIN)
            continue;
        if (errno == EINVAL)
            return touch(work, at, bytes);
        /* EFAULT: the touch would have been a bus error; the file system has no more pages. */
        return errno == EFAULT ? ENOSPC : errno;
    }
    return 0;
}

static void *prefault_main(void *argument)
{
    struct prefault_work *work = argument;

    while (!__atomic_load_n(&work->failed_errno, __ATOMIC_RELAXED)) {
        uint64_t at = __atomic_fetch_add(&work->next_bytes, PREFAULT_STEP_BYTES, __ATOMIC_RELAXED);
        uint64_t left = at < work->length_bytes ? work->length_bytes - at : 0;
        int rc;

        if (left == 0)
            break;
        rc = populate(work, at, left < PREFAULT_STEP_BYTES ? left : PREFAULT_STEP_BYTES);
        if (rc)
            __atomic_store_n(&work->failed_errno, rc, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* A thread for each 32 MiB, as far as there are processors. */
static int prefault(struct prefault_work *work)
{
    pthread_t threads[PREFAULT_MAX_THREADS];
    uint64_t wanted = work->length_bytes / PREFAULT_STEP_BYTES;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t started = 0;

    if (processors > 0 && wanted > (uint64_t)processors)
        wanted = (uint64_t)processors;
    if (wanted > PREFAULT_MAX_THREADS)
        wanted = PREFAULT_MAX_THREADS;
    while (started + 1 < wanted && pthread_create(&threads[started], NULL, prefault_main, work) == 0)
        started++;
    (void)prefault_main(work);
    while (started > 0)
        (void)pthread_join(threads[--started], NULL);
    return work->failed_errno;
}

/* ---- allocation ---- */

/* Bytes that live memories of this process (on this device, if not 0) may still take. */
static uint64_t promised_bytes(dev_t device)
{
    const struct heft_memory *memory;
    uint64_t promised = 0;
    struct stat status;

    for (memory = memories; memory; memory = memory->next) {
        uint64_t touched = 0;

        if (fstat(memory->info.fd, &status) == 0) {
            if (device && status.st_dev != device)
                continue;
            touched = (uint64_t)status.st_blocks * 512;
        }
        if (touched < memory->mapped_bytes)
            promised += memory->mapped_bytes - touched;
    }
    return promised;
}

static int check_machine(uint64_t bytes, struct heft_error *error)
{
    struct heft_memory_limit limit;
    struct rlimit file_size;
    uint64_t promised = promised_bytes(0);

    if (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur != RLIM_INFINITY &&
        bytes > file_size.rlim_cur)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY,
                              "%" PRIu64
                              " bytes of shareable memory are more than the file size limit of %" PRIu64
                              " bytes (ulimit -f)",
                              bytes, (uint64_t)file_size.rlim_cur);
    heft_memory_limit_read("/proc", "/sys/fs/cgroup", &limit);
    if (limit.available_bytes != UINT64_MAX &&
        (bytes > limit.available_bytes || promised > limit.available_bytes - bytes))
        return heft_error_set(error, HEFT_ERR_NO_MEMORY,
                              "%" PRIu64 " bytes of memory are wanted, %" PRIu64
                              " are available (%s), of which %" PRIu64
                              " are promised to other memory of this process",
                              bytes, limit.available_bytes, limit.name, promised);
    return HEFT_OK;
}

static int check_mount(int fd, uint64_t bytes, struct heft_error *error)
{
    struct statfs fs;
    struct stat status;
    uint64_t left, promised;

    if (fstatfs(fd, &fs) || fstat(fd, &status) || fs.f_blocks == 0)
        return HEFT_OK; /* a tmpfs without a limit reports no blocks */
    left = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
    promised = promised_bytes(status.st_dev);
    if (bytes > left || promised > left - bytes)
        return heft_error_set(
            error, HEFT_ERR_NO_MEMORY,
            "%" PRIu64 " bytes of memory are wanted, the tmpfs that holds shareable memory has %" PRIu64
            " of %" PRIu64 " left, of which %" PRIu64 " are promised to other memory",
            bytes, left, (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize, promised);
    return HEFT_OK;
}

static int open_file(struct heft_memory *memory, uint64_t huge, struct heft_error *error)
{
    struct heft_memory_info *info = &memory->info;
    int mount;

    info->page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    if (memory->mapped_bytes >= huge && (mount = get_mount()) >= 0) {
        info->fd = openat(mount, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (info->fd >= 0) {
            int rc = check_mount(info->fd, memory->mapped_bytes, error);

            info->kind = "huge tmpfs";
            info->page_bytes = huge;
            if (rc) {
                (void)close(info->fd);
                return rc;
            }
            return HEFT_OK;
        }
        if (errno == EMFILE || errno == ENFILE)
            return heft_error_set_errno(error, errno, "making shareable memory (see ulimit -n)");
    }
    info->kind = "memfd";
    info->fd = memfd_create("heft", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (info->fd >= 0)
        (void)fchmod(info->fd, 0600); /* a peer of another user must not open it anew for writing, by /proc */
    if (info->fd < 0)
        return heft_error_set_errno(error, errno, "making shareable memory by memfd_create%s",
                                    errno == EMFILE || errno == ENFILE ? " (see ulimit -n)" : "");
    if (memory->mapped_bytes >= huge && memfd_may_be_huge())
        info->page_bytes = huge;
    return HEFT_OK;
}

/* Maps the file at a multiple of `align`: more address space is taken first, then the ends are given back. */
static int map_file(struct heft_memory *memory, uint64_t align, struct heft_error *error)
{
    uint64_t bytes = memory->mapped_bytes;
    uint8_t *start, *at;
    uint64_t head;

    start = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return heft_error_set_errno(error, errno, "taking %" PRIu64 " bytes of addresses", bytes + align);
    head = round_up((uint64_t)(uintptr_t)start, align) - (uint64_t)(uintptr_t)start;
    at = start + head;
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory->info.fd, 0) == MAP_FAILED) {
        int mapping_errno = errno;

        (void)munmap(start, bytes + align);
        return heft_error_set_errno(error, mapping_errno, "mapping %" PRIu64 " bytes of shareable memory",
                                    bytes);
    }
    if (head)
        (void)munmap(start, head);
    if (align > head)
        (void)munmap(at + bytes, align - head);
    if (memory->info.page_bytes == align)
        (void)madvise(at, bytes, MADV_HUGEPAGE);
    memory->info.address = at;
    return HEFT_OK;
}

static void list_add(struct heft_memory *memory)
{
    memory->next = memories;
    if (memories)
        memories->prev = memory;
    memories = memory;
}

static void list_remove(struct heft_memory *memory)
{
    if (memory->prev)
        memory->prev->next = memory->next;
    else
        memories = memory->next;
    if (memory->next)
        memory->next->prev = memory->prev;
}

/* Under the lock, so that two threads are not promised the same bytes. */
static int alloc_locked(struct heft_memory *memory, struct heft_error *error)
{
    uint64_t huge = huge_bytes();
    int rc = HEFT_OK;

    if (memory->info.length_bytes > 0)
        rc = check_machine(memory->mapped_bytes, error);
    if (rc)
        return rc;
    rc = open_file(memory, huge, error);
    if (rc)
        return rc;
    if (ftruncate(memory->info.fd, (off_t)memory->mapped_bytes)) {
        rc = heft_error_set_errno(error, errno, "setting the size of shareable memory to %" PRIu64 " bytes",
                                  memory->mapped_bytes);
        goto fail_file;
    }
    /* Whoever maps it must not be able to cut it under the others (a tmpfs file can't be sealed). */
    (void)fcntl(memory->info.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    if (memory->mapped_bytes > 0) {
        rc = map_file(memory, huge, error);
        if (rc)
            goto fail_file;
    }
    list_add(memory);
    return HEFT_OK;

fail_file:
    (void)close(memory->info.fd);
    return rc;
}

int heft_memory_alloc(uint64_t length_bytes, uint32_t flags, struct heft_memory **memory_out,
                      struct heft_error *error)
{
    struct heft_memory *memory;
    int rc;

    if (!memory_out || (flags & ~(uint32_t)HEFT_MEMORY_PREFAULT))
        return heft_error_set(error, HEFT_ERR_INVALID, "heft_memory_alloc: unknown flags 0x%x, or no output",
                              flags);
    if (length_bytes > (uint64_t)INT64_MAX / 2)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "%" PRIu64 " bytes are more than addresses can name",
                              length_bytes);
    memory = calloc(1, sizeof(*memory));
    if (!memory)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a memory's own record");
    memory->info.length_bytes = length_bytes;
    memory->mapped_bytes = round_up(length_bytes, (uint64_t)sysconf(_SC_PAGESIZE));
    (void)pthread_mutex_lock(&memories_lock);
    rc = alloc_locked(memory, error);
    (void)pthread_mutex_unlock(&memories_lock);
    if (rc) {
        free(memory);
        return rc;
    }
    if (flags & HEFT_MEMORY_PREFAULT) {
        rc = heft_memory_prefault(memory, 0, length_bytes, error);
        if (rc) {
            heft_memory_free(memory);
            return rc;
        }
    }
    *memory_out = memory;
    return HEFT_OK;
}

void heft_memory_free(struct heft_memory *memory)
{
    if (!memory)
        return;
    (void)pthread_mutex_lock(&memories_lock);
    list_remove(memory);
    (void)pthread_mutex_unlock(&memories_lock);
    if (memory->mapped_bytes > 0)
        (void)munmap(memory->info.address, memory->mapped_bytes);
    (void)close(memory->info.fd);
    free(memory);
}

void heft_memory_get_info(const struct heft_memory *memory, struct heft_memory_info *info_out)
{
    *info_out = memory->info;
}

int heft_memory_prefault(struct heft_memory *memory, uint64_t offset_bytes, uint64_t length_bytes,
                         struct heft_error *error)
{
    const struct heft_memory_info *info = &memory->info;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct prefault_work work = {0};
    uint64_t start, end;
    int rc;

    if (offset_bytes > info->length_bytes || length_bytes > info->length_bytes - offset_bytes)
        return heft_error_set(error, HEFT_ERR_RANGE,
                              "prefault of %" PRIu64 " bytes at %" PRIu64
                              " is outside of a memory of %" PRIu64,
                              length_bytes, offset_bytes, info->length_bytes);
    if (length_bytes == 0)
        return HEFT_OK;
    start = offset_bytes & ~(page - 1);
    end = round_up(offset_bytes + length_bytes, page);
    work.address = (uint8_t *)info->address + start;
    work.length_bytes = end - start;
    work.fd = info->fd;
    work.fd_offset_bytes = start;
    rc = prefault(&work);
    if (rc == ENOSPC || rc == ENOMEM)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY,
                              "the system has no memory for %" PRIu64 " bytes that were to be touched (%s)",
                              length_bytes, info->kind);
    if (rc)
        return heft_error_set_errno(error, rc, "touching %" PRIu64 " bytes of shareable memory",
                                    length_bytes);
    return HEFT_OK;
}
