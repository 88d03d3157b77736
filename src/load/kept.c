/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file: a magic word, the key (SHA-256 of the version), the number of digests, the digests, an XXH3-64 of
 * all before; little-endian. Its name is the key. Its time of change is when it was last used.
 */
#include "load/kept.h"
#include "base/buf.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "load/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x3147494474666568) /* "heftDIG1" */
#define HEAD_BYTES (8 + HEFT_SHA256_BYTES + 8)
#define FOLDER "digests"
#define ENDING ".digests"
#define NAME_BYTES (2 * HEFT_SHA256_BYTES + sizeof(ENDING))

/* ---- which version ---- */

static int is_pinned(const char *version)
{
    return version[0] && version[0] != '@' && strncmp(version, "W/", 2) != 0;
}

/* Where each tensor lies: an index may choose among the same objects' tensors. */
static uint64_t places_hash(const struct heft_manifest *manifest)
{
    uint64_t hash = manifest->tensor_count, index;

    for (index = 0; index < manifest->tensor_count; index++) {
        const struct heft_manifest_tensor *tensor = &manifest->tensors[index];
        const uint64_t place[3] = {tensor->file, tensor->offset_bytes, tensor->size_bytes};

        hash = heft_hash64(place, sizeof(place), hash);
    }
    return hash;
}

/* 0: the version has no key. */
static int make_key(const struct heft_opened *opened, uint8_t key_out[HEFT_SHA256_BYTES])
{
    const struct heft_manifest *manifest = opened->manifest;
    struct heft_buf text;
    uint32_t index;
    int ok = opened->urls != NULL;

    heft_buf_init(&text, SIZE_MAX);
    heft_buf_u64(&text, MAGIC);
    heft_buf_u64(&text, HEFT_BLOCK_BYTES);
    heft_buf_string(&text, manifest->identity.model, strlen(manifest->identity.model));
    heft_buf_u64(&text, places_hash(manifest));
    for (index = 0; ok && index < manifest->file_count; index++) {
        const struct heft_manifest_file *file = &manifest->files[index];

        ok = is_pinned(opened->versions[index]);
        heft_buf_string(&text, file->name, strlen(file->name));
        heft_buf_u64(&text, file->size_bytes);
        heft_buf_string(&text, opened->versions[index], strlen(opened->versions[index]));
    }
    ok = ok && !text.failed;
    if (ok)
        heft_sha256(text.data, text.size, key_out);
    heft_buf_free(&text);
    return ok;
}

static int file_path(const uint8_t key[HEFT_SHA256_BYTES], int make, char *text, size_t size)
{
    int rc = heft_own_folder(FOLDER, make, text, size - NAME_BYTES - 1);
    size_t at = strlen(text), index;

    if (rc)
        return rc;
    text[at++] = '/';
    for (index = 0; index < HEFT_SHA256_BYTES; index++, at += 2)
        (void)snprintf(text + at, 3, "%02x", key[index]);
    memcpy(text + at, ENDING, sizeof(ENDING));
    return HEFT_OK;
}

static uint64_t number_at(const uint8_t *at)
{
    uint64_t number;

    memcpy(&number, at, 8); /* little-endian machines only, as all of heft */
    return number;
}

/* ---- reading ---- */

/* All of a file of exactly `size` bytes. */
static int read_exactly(int fd, uint8_t *data, size_t size)
{
    size_t at = 0;

    while (at < size) {
        ssize_t got = pread(fd, data + at, size - at, (off_t)at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        at += (size_t)got;
    }
    return 0;
}

/* What is wrong with it; NULL: nothing. */
static const char *check_file(const uint8_t *data, size_t size, const uint8_t key[HEFT_SHA256_BYTES],
                              uint64_t count)
{
    if (number_at(data + size - 8) != heft_hash64(data, size - 8, 0))
        return "it is damaged";
    if (number_at(data) != MAGIC || memcmp(data + 8, key, HEFT_SHA256_BYTES) != 0 ||
        number_at(data + 8 + HEFT_SHA256_BYTES) != count)
        return "it is another version's";
    return NULL;
}

int heft_kept_read(const struct heft_opened *opened, struct heft_kept *kept_out)
{
    uint64_t count = opened->manifest->block_count;
    size_t size = HEAD_BYTES + (size_t)count * 8 + 8;
    struct heft_kept kept = {0};
    uint8_t key[HEFT_SHA256_BYTES], *data = NULL;
    const char *wrong = NULL;
    struct stat st;
    int fd;

    if (!make_key(opened, key) || file_path(key, 0, kept.path, sizeof(kept.path)))
        return HEFT_ERR_NOT_FOUND;
    fd = open(kept.path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return HEFT_ERR_NOT_FOUND;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022) != 0)
        wrong = "others may write to it";
    else if ((uint64_t)st.st_size != size)
        wrong = "it is damaged";
    data = wrong ? NULL : malloc(size);
    if (data && read_exactly(fd, data, size) == 0)
        wrong = check_file(data, size, key, count);
    else if (!wrong)
        wrong = "it can't be read";
    if (!wrong)
        (void)futimens(fd, NULL);
    (void)close(fd);
    if (!wrong)
        kept.digests = malloc(count ? (size_t)count * 8 : 1);
    if (kept.digests)
        memcpy(kept.digests, data + HEAD_BYTES, (size_t)count * 8);
    free(data);
    if (wrong)
        heft_log(HEFT_LOG_WARN, "the digests kept in %s are not used: %s; they are made anew", kept.path,
                 wrong);
    if (!kept.digests)
        return HEFT_ERR_NOT_FOUND;
    *kept_out = kept;
    return HEFT_OK;
}

void heft_kept_free(struct heft_kept *kept)
{
    free(kept->digests);
    kept->digests = NULL;
}

/* ---- writing ---- */

/* The file that was not used for longest, when there are more than there may be. 1: one was removed. */
static int remove_oldest(const char *folder)
{
    DIR *listing = opendir(folder);
    const struct dirent *entry;
    char oldest[NAME_BYTES] = "";
    struct timespec when = {0};
    uint32_t count = 0;
    int removed = 0;

    while (listing && (entry = readdir(listing)) != NULL) {
        struct stat st;

        if (strlen(entry->d_name) != NAME_BYTES - 1 ||
            strcmp(entry->d_name + 2 * HEFT_SHA256_BYTES, ENDING) != 0 ||
            fstatat(dirfd(listing), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (count++ == 0 || st.st_mtim.tv_sec < when.tv_sec ||
            (st.st_mtim.tv_sec == when.tv_sec && st.st_mtim.tv_nsec < when.tv_nsec)) {
            when = st.st_mtim;
            memcpy(oldest, entry->d_name, sizeof(oldest));
        }
    }
    if (listing && count > HEFT_KEPT_MAX_FILES)
        removed = unlinkat(dirfd(listing), oldest, 0) == 0;
    if (listing)
        (void)closedir(listing);
    return removed;
}

static int write_all(int fd, const uint8_t *data, size_t size)
{
    size_t at = 0;

    while (at < size) {
        ssize_t put = write(fd, data + at, size - at);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return -1;
        at += (size_t)put;
    }
    return 0; /* what a crash leaves of it is found damaged */
}

int heft_kept_write(const struct heft_opened *opened, const uint64_t *digests, struct heft_error *error)
{
    uint64_t count = opened->manifest->block_count;
    char path[4096], temporary[4096 + 8];
    uint8_t key[HEFT_SHA256_BYTES];
    struct heft_buf data;
    int fd, saved, rc = HEFT_OK;

    if (!make_key(opened, key))
        return HEFT_OK;
    rc = file_path(key, 1, path, sizeof(path));
    if (rc)
        return heft_error_set(error, rc, "no folder for digests: set HOME or XDG_CACHE_HOME");
    heft_buf_init(&data, SIZE_MAX);
    heft_buf_u64(&data, MAGIC);
    heft_buf_bytes(&data, key, sizeof(key));
    heft_buf_u64(&data, count);
    heft_buf_bytes(&data, digests, (size_t)count * 8);
    heft_buf_u64(&data, data.failed ? 0 : heft_hash64(data.data, data.size, 0));
    (void)snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path);
    fd = data.failed ? -1 : mkostemp(temporary, O_CLOEXEC);
    saved = data.failed ? ENOMEM : errno;
    if (fd >= 0) {
        rc = write_all(fd, data.data, data.size) != 0 || rename(temporary, path) != 0;
        saved = errno;
        (void)close(fd);
        if (rc)
            (void)unlink(temporary);
    }
    heft_buf_free(&data);
    if (fd < 0 || rc)
        return heft_error_set_errno(error, saved, "keeping digests in %s", path);
    *strrchr(path, '/') = 0;
    while (remove_oldest(path))
        continue;
    return HEFT_OK;
}
