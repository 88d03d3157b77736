/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of a file: whether O_DIRECT works and with which alignment, and what the page cache holds.
 *
 * The descriptor for O_DIRECT is opened at the first cold read, not at registration: a model of a hundred
 * warm shards needs no second hundred. Nor may it take the last descriptors of a small `ulimit -n`: in the
 * table's last quarter files are read buffered instead.
 */
#include "transport/file/file.h"
#include "base/error.h"
#include "base/log.h"
#include "space/page_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Pieces read cold before the cache is probed by a read again, where it can't be asked. */
#define COLD_GUESS_PIECES 64u

static uint32_t forced_mode;

void heft_file_force_mode(uint32_t mode)
{
    __atomic_store_n(&forced_mode, mode, __ATOMIC_RELAXED);
}

uint32_t heft_file_forced_mode(void)
{
    return __atomic_load_n(&forced_mode, __ATOMIC_RELAXED);
}

int heft_file_source_create(const struct heft_transport_region *region, struct heft_file_source **source_out,
                            struct heft_error *error)
{
    const char *label = region->label && region->label[0] ? region->label : "the file";
    struct heft_file_source *source;
    struct stat status;
    struct statfs fs;
    int access;

    access = fcntl(region->fd, F_GETFL);
    if (access < 0 || fstat(region->fd, &status))
        return heft_error_set_errno(error, errno, "%s: looking at the open file", label);
    if (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode))
        return heft_error_set(error, HEFT_ERR_NOT_A_FILE, "%s is neither a regular file nor a block device",
                              label);
    source = calloc(1, sizeof(*source));
    if (!source)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "%s: out of memory for its record", label);
    source->fd = region->fd;
    source->label = label;
    source->access = access;
    source->mode = heft_file_forced_mode();
    source->direct_fd = -1;
    if (fstatfs(region->fd, &fs) == 0)
        source->in_memory = fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC;
    if (source->in_memory || (source->mode & HEFT_FILE_NO_DIRECT))
        source->direct = HEFT_FILE_DIRECT_NO;
    (void)pthread_mutex_init(&source->lock, NULL);
    *source_out = source;
    return HEFT_OK;
}

void heft_file_source_destroy(struct heft_file_source *source)
{
    if (!source)
        return;
    if (source->direct_fd >= 0)
        (void)close(source->direct_fd);
    (void)pthread_mutex_destroy(&source->lock);
    free(source);
}

/* Alignment for O_DIRECT; 0: the file system says that it can't. */
static int find_alignment(struct heft_file_source *source)
{
    uint32_t offset = (uint32_t)HEFT_FILE_BLOCK_BYTES, memory = (uint32_t)HEFT_FILE_BLOCK_BYTES;
#ifdef STATX_DIOALIGN
    struct statx status;

    if (statx(source->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
        (status.stx_mask & STATX_DIOALIGN)) {
        offset = status.stx_dio_offset_align;
        memory = status.stx_dio_mem_align;
    }
#endif
    if (offset == 0 || memory == 0 || offset > HEFT_FILE_BLOCK_BYTES || memory > HEFT_FILE_BLOCK_BYTES ||
        (offset & (offset - 1)) || (memory & (memory - 1)))
        return 0;
    source->offset_align = offset;
    source->memory_align = memory;
    return 1;
}

static int open_direct(struct heft_file_source *source)
{
    struct rlimit limit;
    char path[64];
    int fd;

    if (!find_alignment(source))
        return HEFT_FILE_DIRECT_NO;
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", source->fd);
    fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0)
        return HEFT_FILE_DIRECT_NO;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        (uint64_t)fd >= limit.rlim_cur / 4 * 3) {
        (void)close(fd);
        return HEFT_FILE_DIRECT_NO;
    }
    source->direct_fd = fd;
    return HEFT_FILE_DIRECT_YES;
}

int heft_file_source_direct(struct heft_file_source *source)
{
    int direct = __atomic_load_n(&source->direct, __ATOMIC_ACQUIRE), decided = 0;

    if (direct == HEFT_FILE_DIRECT_UNKNOWN) {
        (void)pthread_mutex_lock(&source->lock);
        direct = __atomic_load_n(&source->direct, __ATOMIC_RELAXED);
        if (direct == HEFT_FILE_DIRECT_UNKNOWN) {
            direct = open_direct(source);
            __atomic_store_n(&source->direct, direct, __ATOMIC_RELEASE);
            decided = 1;
        }
        (void)pthread_mutex_unlock(&source->lock);
        if (decided && direct == HEFT_FILE_DIRECT_NO)
            heft_log(HEFT_LOG_INFO,
                     "%s: no O_DIRECT here, or few descriptors left (ulimit -n): reading buffered",
                     source->label);
    }
    return direct == HEFT_FILE_DIRECT_YES;
}

/* The descriptor stays open: other reads by it may be in flight. */
void heft_file_source_refuse_direct(struct heft_file_source *source)
{
    if (__atomic_exchange_n(&source->direct, HEFT_FILE_DIRECT_NO, __ATOMIC_ACQ_REL) == HEFT_FILE_DIRECT_YES)
        heft_log(HEFT_LOG_INFO, "%s: O_DIRECT reads are refused, reading buffered", source->label);
}

/*
 * Seven eighths in memory are hot: the page cache copies at several times a disk's rate, and the missing
 * pages cost less than reading all of them again.
 */
enum heft_file_heat heft_file_source_heat(struct heft_file_source *source, uint64_t offset_bytes,
                                          uint64_t length_bytes)
{
    uint64_t cached = 0;
    uint32_t guess;

    if (source->mode & HEFT_FILE_ALL_COLD)
        return HEFT_FILE_COLD;
    if (source->in_memory)
        return HEFT_FILE_HOT;
    if (!(source->mode & HEFT_FILE_NO_CACHE_QUERY) &&
        heft_page_cache_query(source->fd, offset_bytes, length_bytes, &cached) == 0)
        return cached >= length_bytes - length_bytes / 8 ? HEFT_FILE_HOT : HEFT_FILE_COLD;
    guess = __atomic_load_n(&source->cold_guess, __ATOMIC_RELAXED);
    if (guess == 0)
        return HEFT_FILE_UNSURE;
    __atomic_store_n(&source->cold_guess, guess - 1, __ATOMIC_RELAXED);
    return HEFT_FILE_COLD;
}

void heft_file_source_was_cold(struct heft_file_source *source)
{
    __atomic_store_n(&source->cold_guess, COLD_GUESS_PIECES, __ATOMIC_RELAXED);
}
