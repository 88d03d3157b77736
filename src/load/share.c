/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file: a header, one byte a unit (present or not), one word a unit (who has used it), then the units.
 * All locks are of the open file description, on bytes far behind the end: one that users share, one a
 * column, one a unit. A load that is killed leaves nothing locked; what it had read stays of use.
 *
 * Whoever leaves last removes the file when all loads have finished. What stays behind because some never
 * came is removed by the next load that opens a share here, once it is old.
 */
#include "load/share.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x3165726168732168) /* "h!share1" */
#define LOCK_USERS ((off_t)1 << 61)
#define LOCK_SETUP (LOCK_USERS + 1)
#define LOCK_COLUMN (LOCK_USERS + 16)
#define LOCK_UNIT ((off_t)1 << 62)
#define STALE_S 120
#define OPEN_TRIES 100u
#define LOCK_TRIES 1000u /* of a millisecond */

enum column_state { COLUMN_NEW, COLUMN_TAKEN, COLUMN_FINISHED };

struct header {
    uint64_t magic, key, unit_count, data_at;
    uint32_t loads;
    uint32_t progress;                     /* atomic, a futex */
    uint8_t columns[HEFT_SHARE_MAX_LOADS]; /* atomic: enum column_state */
};

struct heft_share {
    int fd;
    char path[512];
    uint32_t column, file_count;
    uint64_t all;          /* a bit each load */
    uint64_t *first_units; /* of each file, and one more */
    uint64_t *sizes;
    struct header *header;
    uint8_t *present;
    uint64_t *used;
    uint8_t *data;
    size_t mapped_bytes;
    /* Between threads of one load, whom a lock of the file does not keep apart: held while a unit's lock is
     * taken and let go by who does not read it. */
    pthread_mutex_t moment;
};

/* ---- locks ---- */

static int lock(int fd, off_t at, short type)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};

    while (fcntl(fd, F_OFD_SETLK, &range) != 0)
        if (errno != EINTR)
            return -1;
    return 0;
}

static void unlock(int fd, off_t at)
{
    (void)lock(fd, at, F_UNLCK);
}

/* For locks that are held for a moment: whoever holds one for longer was stopped in it, and is not waited
 * for.
 */
static int lock_soon(int fd, off_t at, short type)
{
    unsigned tries;

    for (tries = 0; lock(fd, at, type) != 0; tries++) {
        if (tries == LOCK_TRIES)
            return -1;
        (void)usleep(1000);
    }
    return 0;
}

/* ---- the folder ---- */

/* Only its owner may put files there: what a share holds is taken for the model's bytes. */
static int open_folder(const char *given, char path_out[256], struct heft_error *error)
{
    struct stat st;
    int fd;

    if (given)
        (void)snprintf(path_out, 256, "%s", given);
    else
        (void)snprintf(path_out, 256, "/dev/shm/heft-%u", (unsigned)geteuid());
    if (strlen(path_out) > 200)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE, "share folder %s: its name is too long", path_out);
    if (mkdir(path_out, 0700) != 0 && errno != EEXIST)
        return heft_error_set_errno(error, errno, "making the share folder %s", path_out);
    fd = open(path_out, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        int saved = errno;

        if (fd >= 0)
            (void)close(fd);
        return heft_error_set_errno(error, saved, "opening the share folder %s", path_out);
    }
    (void)close(fd);
    if (st.st_uid != geteuid() || (st.st_mode & 022) != 0)
        return heft_error_set(error, HEFT_ERR_DENIED,
                              "the share folder %s: others may write to it; name one of your own, mode 0700",
                              path_out);
    return HEFT_OK;
}

/* What loads left behind that were all killed, or that waited for one that never came. */
static void remove_stale(const char *folder)
{
    DIR *listing = opendir(folder);
    const struct dirent *entry;

    while (listing && (entry = readdir(listing)) != NULL) {
        size_t size = strlen(entry->d_name);
        struct timespec now;
        struct stat st;
        int fd;

        if (size < 7 || strcmp(entry->d_name + size - 6, ".share") != 0)
            continue;
        fd = openat(dirfd(listing), entry->d_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            continue;
        (void)clock_gettime(CLOCK_REALTIME, &now);
        if (fstat(fd, &st) == 0 && now.tv_sec - st.st_mtim.tv_sec > STALE_S &&
            lock(fd, LOCK_USERS, F_WRLCK) == 0)
            (void)unlinkat(dirfd(listing), entry->d_name, 0);
        (void)close(fd);
    }
    if (listing)
        (void)closedir(listing);
}

/* ---- opening ---- */

/* Equal only for loads that would read the same bytes at the same places. */
static uint64_t make_key(const struct heft_manifest *manifest, uint32_t loads)
{
    const struct heft_identity *identity = &manifest->identity;
    uint64_t key = heft_hash64(identity->model, strlen(identity->model), loads);
    uint32_t file;

    key = heft_hash64(identity->revision, strlen(identity->revision),
                      key ^ heft_manifest_table_digest(manifest));
    for (file = 0; file < manifest->file_count; file++) {
        key = heft_hash64(manifest->files[file].name, strlen(manifest->files[file].name), key);
        key = heft_hash64(&manifest->files[file].size_bytes, sizeof(uint64_t), key);
    }
    return key;
}

static int count_units(struct heft_share *share, const struct heft_manifest *manifest,
                       struct heft_error *error)
{
    uint64_t units = 0;
    uint32_t file;

    share->file_count = manifest->file_count;
    share->first_units = calloc((size_t)share->file_count + 1, sizeof(uint64_t));
    share->sizes = calloc((size_t)share->file_count + 1, sizeof(uint64_t));
    if (!share->first_units || !share->sizes)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "opening a share");
    for (file = 0; file < share->file_count; file++) {
        share->first_units[file] = units;
        share->sizes[file] = manifest->files[file].size_bytes;
        units +=
            share->sizes[file] / HEFT_SHARE_UNIT_BYTES + (share->sizes[file] % HEFT_SHARE_UNIT_BYTES != 0);
        if (units > (uint64_t)1 << 34)
            return heft_error_set(error, HEFT_ERR_TOO_LARGE, "a share of more than 2^56 bytes");
    }
    share->first_units[file] = units;
    return HEFT_OK;
}

static uint64_t data_offset(uint64_t units)
{
    uint64_t bytes = sizeof(struct header) + units * 9 + 8;

    return (bytes + HEFT_SHARE_UNIT_BYTES - 1) / HEFT_SHARE_UNIT_BYTES * HEFT_SHARE_UNIT_BYTES;
}

/* The file of this name with the users' lock held, or a new one. Its last user may remove it just now. */
static int open_file(struct heft_share *share, struct heft_error *error)
{
    struct stat opened, there;
    unsigned tries;

    for (tries = 0; tries < OPEN_TRIES; tries++) {
        share->fd = open(share->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (share->fd < 0)
            return heft_error_set_errno(error, errno, "opening the share %s", share->path);
        if (lock_soon(share->fd, LOCK_USERS, F_RDLCK) != 0)
            break;
        if (fstat(share->fd, &opened) == 0 && stat(share->path, &there) == 0 &&
            opened.st_ino == there.st_ino && opened.st_dev == there.st_dev)
            return HEFT_OK;
        (void)close(share->fd);
        share->fd = -1;
    }
    return heft_error_set(error, HEFT_ERR_UNAVAILABLE, "the share %s can't be locked", share->path);
}

static int map_file(struct heft_share *share, uint64_t key, uint32_t loads, struct heft_error *error)
{
    uint64_t units = share->first_units[share->file_count], data_at = data_offset(units);
    uint64_t bytes = data_at + units * HEFT_SHARE_UNIT_BYTES;
    struct header *header;
    struct stat st;
    int rc = HEFT_OK;

    if (lock_soon(share->fd, LOCK_SETUP, F_WRLCK) != 0)
        return heft_error_set_errno(error, errno, "locking the share %s", share->path);
    if (fstat(share->fd, &st) != 0 || (st.st_size == 0 && ftruncate(share->fd, (off_t)bytes) != 0) ||
        fallocate(share->fd, 0, 0, (off_t)data_at) != 0) {
        rc = heft_error_set_errno(error, errno, "making the share %s", share->path);
        goto out;
    }
    if (st.st_size != 0 && (uint64_t)st.st_size != bytes) {
        rc = heft_error_set(error, HEFT_ERR_INCOMPATIBLE, "the share %s is another one's; remove it",
                            share->path);
        goto out;
    }
    header = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, share->fd, 0);
    if (header == MAP_FAILED) {
        rc = heft_error_set_errno(error, errno, "mapping the share %s", share->path);
        goto out;
    }
    share->mapped_bytes = bytes;
    share->header = header;
    share->used = (uint64_t *)(void *)(header + 1);
    share->present = (uint8_t *)(share->used + units);
    share->data = (uint8_t *)header + data_at;
    if (header->magic == 0) {
        header->key = key;
        header->unit_count = units;
        header->data_at = data_at;
        header->loads = loads;
        __atomic_store_n(&header->magic, MAGIC, __ATOMIC_RELEASE);
    }
    if (header->magic != MAGIC || header->key != key || header->unit_count != units ||
        header->data_at != data_at || header->loads != loads)
        rc = heft_error_set(error, HEFT_ERR_INCOMPATIBLE, "the share %s is another one's; remove it",
                            share->path);
out:
    unlock(share->fd, LOCK_SETUP);
    return rc;
}

/*
 * A column whose load died, or has finished and begins anew, may be marked as having used units. Under the
 * unit's lock nobody gives a unit back that this load has just begun to want.
 */
static int want_all(struct heft_share *share)
{
    uint64_t unit, bit = (uint64_t)1 << share->column;

    for (unit = 0; unit < share->header->unit_count; unit++) {
        if (!(__atomic_load_n(&share->used[unit], __ATOMIC_ACQUIRE) & bit))
            continue;
        if (lock_soon(share->fd, LOCK_UNIT + (off_t)unit, F_WRLCK) != 0)
            return -1;
        (void)__atomic_and_fetch(&share->used[unit], ~bit, __ATOMIC_ACQ_REL);
        unlock(share->fd, LOCK_UNIT + (off_t)unit);
    }
    return 0;
}

static int take_column(struct heft_share *share, struct heft_error *error)
{
    static const enum column_state order[] = {COLUMN_NEW, COLUMN_TAKEN, COLUMN_FINISHED};
    struct header *header = share->header;
    uint32_t column;
    unsigned round;

    for (round = 0; round < 3; round++)
        for (column = 0; column < header->loads; column++) {
            if (__atomic_load_n(&header->columns[column], __ATOMIC_ACQUIRE) != order[round] ||
                lock(share->fd, LOCK_COLUMN + (off_t)column, F_WRLCK) != 0)
                continue;
            share->column = column;
            __atomic_store_n(&header->columns[column], COLUMN_TAKEN, __ATOMIC_RELEASE);
            if (want_all(share) == 0)
                return HEFT_OK;
            return heft_error_set(error, HEFT_ERR_UNAVAILABLE,
                                  "the share %s: a load that was stopped holds a lock", share->path);
        }
    return heft_error_set(error, HEFT_ERR_EXISTS, "%u loads of this host share this model already",
                          header->loads);
}

int heft_share_open(const char *folder, const struct heft_manifest *manifest, uint32_t loads,
                    struct heft_share **share_out, struct heft_error *error)
{
    struct heft_share *share;
    char path[256];
    uint64_t key;
    int rc;

    if (loads == 0 || loads > HEFT_SHARE_MAX_LOADS)
        return heft_error_set(error, HEFT_ERR_INVALID, "%u loads share a model: 1 to %u can", loads,
                              HEFT_SHARE_MAX_LOADS);
    rc = open_folder(folder, path, error);
    if (rc)
        return rc;
    remove_stale(path);
    share = calloc(1, sizeof(*share));
    if (!share)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "opening a share");
    share->fd = -1;
    (void)pthread_mutex_init(&share->moment, NULL);
    key = make_key(manifest, loads);
    share->all = loads == 64 ? UINT64_MAX : ((uint64_t)1 << loads) - 1;
    (void)snprintf(share->path, sizeof(share->path), "%s/%016" PRIx64 ".share", path, key);
    rc = count_units(share, manifest, error);
    if (!rc)
        rc = open_file(share, error);
    if (!rc)
        rc = map_file(share, key, loads, error);
    if (!rc)
        rc = take_column(share, error);
    if (rc) {
        share->column = UINT32_MAX;
        heft_share_close(share, 0);
        return rc;
    }
    *share_out = share;
    return HEFT_OK;
}

static int all_finished(const struct header *header)
{
    uint32_t column;

    for (column = 0; column < header->loads; column++)
        if (__atomic_load_n(&header->columns[column], __ATOMIC_ACQUIRE) != COLUMN_FINISHED)
            return 0;
    return 1;
}

void heft_share_close(struct heft_share *share, int is_finished)
{
    struct header *header = share->header;

    if (header && share->column != UINT32_MAX) {
        if (is_finished)
            __atomic_store_n(&header->columns[share->column], COLUMN_FINISHED, __ATOMIC_RELEASE);
        unlock(share->fd, LOCK_COLUMN + (off_t)share->column);
        (void)futimens(share->fd, NULL);
        /* A later user waits for this lock, and then sees that the file is gone. */
        if (all_finished(header) && lock(share->fd, LOCK_USERS, F_WRLCK) == 0)
            (void)unlink(share->path);
    }
    if (header)
        (void)munmap(header, share->mapped_bytes);
    if (share->fd >= 0)
        (void)close(share->fd);
    (void)pthread_mutex_destroy(&share->moment);
    free(share->first_units);
    free(share->sizes);
    free(share);
}

/* ---- units ---- */

uint64_t heft_share_units(const struct heft_share *share)
{
    return share->first_units[share->file_count];
}

uint32_t heft_share_loads(const struct heft_share *share)
{
    return share->header->loads;
}

uint32_t heft_share_column(const struct heft_share *share)
{
    return share->column;
}

uint8_t *heft_share_file(const struct heft_share *share, uint32_t file)
{
    return share->data + share->first_units[file] * HEFT_SHARE_UNIT_BYTES;
}

uint64_t heft_share_unit(const struct heft_share *share, uint32_t file, uint64_t offset_bytes)
{
    return share->first_units[file] + offset_bytes / HEFT_SHARE_UNIT_BYTES;
}

void heft_share_place(const struct heft_share *share, uint64_t unit, uint32_t *file_out, uint64_t *offset_out,
                      uint64_t *size_out)
{
    uint32_t low = 0, high = share->file_count;
    uint64_t left;

    /* The last file that begins at or before the unit; empty files begin where the next one does. */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        if (share->first_units[middle] <= unit)
            low = middle;
        else
            high = middle;
    }
    *file_out = low;
    *offset_out = (unit - share->first_units[low]) * HEFT_SHARE_UNIT_BYTES;
    left = share->sizes[low] - *offset_out;
    *size_out = left < HEFT_SHARE_UNIT_BYTES ? left : HEFT_SHARE_UNIT_BYTES;
}

int heft_share_is_present(const struct heft_share *share, uint64_t unit)
{
    return __atomic_load_n(&share->present[unit], __ATOMIC_SEQ_CST) != 0;
}

int heft_share_claim(struct heft_share *share, uint64_t unit, struct heft_error *error)
{
    uint64_t at = share->header->data_at + unit * HEFT_SHARE_UNIT_BYTES, offset, size;
    int is_locked, is_present = 0;
    uint32_t file;

    (void)pthread_mutex_lock(&share->moment);
    is_locked = lock(share->fd, LOCK_UNIT + (off_t)unit, F_WRLCK) == 0;
    if (is_locked && (is_present = heft_share_is_present(share, unit)) != 0)
        unlock(share->fd, LOCK_UNIT + (off_t)unit);
    (void)pthread_mutex_unlock(&share->moment);
    if (!is_locked || is_present)
        return is_present ? HEFT_ERR_EXISTS : HEFT_ERR_BUSY;
    heft_share_place(share, unit, &file, &offset, &size);
    /* Memory that is promised now: a page that can't be had later would be a signal, not an error. */
    if (fallocate(share->fd, 0, (off_t)at, (off_t)size) != 0) {
        int saved = errno;

        unlock(share->fd, LOCK_UNIT + (off_t)unit);
        return heft_error_set_errno(error, saved, "no room for %" PRIu64 " bytes in the share %s", size,
                                    share->path);
    }
    return HEFT_OK;
}

/* Under the unit's lock. */
static void give_back(struct heft_share *share, uint64_t unit)
{
    __atomic_store_n(&share->present[unit], 0, __ATOMIC_RELEASE);
    (void)fallocate(share->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    (off_t)(share->header->data_at + unit * HEFT_SHARE_UNIT_BYTES),
                    (off_t)HEFT_SHARE_UNIT_BYTES);
}

void heft_share_settle(struct heft_share *share, uint64_t unit, int is_read)
{
    (void)pthread_mutex_lock(&share->moment);
    /* Nobody may want it any more: another source was faster. Present first, used second, and in
     * heft_share_use the other way round, all in one order: one of the two sees that it is to be given back.
     */
    if (is_read)
        __atomic_store_n(&share->present[unit], 1, __ATOMIC_SEQ_CST);
    if (is_read && __atomic_load_n(&share->used[unit], __ATOMIC_SEQ_CST) == share->all)
        give_back(share, unit);
    unlock(share->fd, LOCK_UNIT + (off_t)unit);
    (void)pthread_mutex_unlock(&share->moment);
    heft_share_wake(share);
}

/* A load that begins anew wants all again. */
static int is_left(const struct heft_share *share, uint64_t unit)
{
    return heft_share_is_present(share, unit) &&
           __atomic_load_n(&share->used[unit], __ATOMIC_SEQ_CST) == share->all;
}

void heft_share_use(struct heft_share *share, uint64_t unit)
{
    uint64_t bit = (uint64_t)1 << share->column;
    uint64_t used = __atomic_or_fetch(&share->used[unit], bit, __ATOMIC_SEQ_CST);
    unsigned tries;

    if (used != share->all || !heft_share_is_present(share, unit))
        return;
    (void)pthread_mutex_lock(&share->moment);
    /* Whoever holds the lock of a unit that is there lets it go in a moment, and may have looked before this
     * load had used it. */
    for (tries = 0; is_left(share, unit) && tries <= LOCK_TRIES; tries++) {
        if (lock(share->fd, LOCK_UNIT + (off_t)unit, F_WRLCK) != 0) {
            (void)usleep(1000);
            continue;
        }
        if (is_left(share, unit))
            give_back(share, unit);
        unlock(share->fd, LOCK_UNIT + (off_t)unit);
    }
    (void)pthread_mutex_unlock(&share->moment);
}

/* ---- waiting ---- */

uint32_t heft_share_progress(const struct heft_share *share)
{
    return __atomic_load_n(&share->header->progress, __ATOMIC_ACQUIRE);
}

void heft_share_wait(struct heft_share *share, uint32_t seen, uint64_t timeout_ns)
{
    struct timespec limit = {(time_t)(timeout_ns / 1000000000), (long)(timeout_ns % 1000000000)};

    (void)syscall(SYS_futex, &share->header->progress, FUTEX_WAIT, seen, &limit, NULL, 0);
}

void heft_share_wake(struct heft_share *share)
{
    (void)__atomic_add_fetch(&share->header->progress, 1, __ATOMIC_ACQ_REL);
    (void)syscall(SYS_futex, &share->header->progress, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
