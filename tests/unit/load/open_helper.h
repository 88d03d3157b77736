/* SPDX-License-Identifier: Apache-2.0 */
/* Folders with models in them, made for one test and removed after it. */
#ifndef OPEN_HELPER_H
#define OPEN_HELPER_H

#include "../format/manifest_helper.h"
#include "load/open.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

/* "/tmp/heft-open-XXXXXX"; readable for everybody, so that a test may change its user. */
static inline int make_folder(void **state)
{
    const char *base = getenv("TMPDIR");
    char *folder = NULL;

    if (asprintf(&folder, "%s/heft-open-XXXXXX", base ? base : "/tmp") < 0 || !mkdtemp(folder) ||
        chmod(folder, 0755) != 0)
        return -1;
    *state = folder;
    return 0;
}

static inline int remove_one(const char *path, const struct stat *st, int kind, struct FTW *walk)
{
    (void)st;
    (void)kind;
    (void)walk;
    return remove(path);
}

static inline int remove_folder(void **state)
{
    char *folder = *state;

    (void)nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(folder);
    return 0;
}

/* "folder/name" in one of a few turning buffers. */
static inline const char *at(const char *folder, const char *name)
{
    static char paths[8][1024];
    static unsigned turn;
    char *path = paths[turn++ % 8];

    (void)snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static inline void make_parents(const char *path)
{
    char copy[1024];
    char *slash;

    (void)snprintf(copy, sizeof(copy), "%s", path);
    for (slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(copy, 0755);
        *slash = '/';
    }
}

static inline void write_bytes(const char *path, const void *data, size_t size)
{
    int fd;

    make_parents(path);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, size), (ssize_t)size);
    assert_int_equal(close(fd), 0);
}

static inline void write_text(const char *path, const char *text)
{
    write_bytes(path, text, strlen(text));
}

/* A safetensors file with this header and `data_bytes` bytes 0, 1, 2, ... */
static inline void write_shard(const char *path, const char *header, size_t data_bytes)
{
    size_t header_bytes = strlen(header), index;
    uint8_t *file = malloc(8 + header_bytes + data_bytes);

    assert_non_null(file);
    heft_put_u64(file, header_bytes);
    memcpy(file + 8, header, header_bytes);
    for (index = 0; index < data_bytes; index++)
        file[8 + header_bytes + index] = (uint8_t)index;
    write_bytes(path, file, 8 + header_bytes + data_bytes);
    free(file);
}

/* One U8 tensor of 4 bytes for each name. */
static inline void write_tensors(const char *path, const char *const *names)
{
    struct heft_buf header;
    size_t count;

    heft_buf_init(&header, SIZE_MAX);
    heft_buf_printf(&header, "{");
    for (count = 0; names[count]; count++)
        heft_buf_printf(&header, "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[%zu,%zu]}",
                        count ? "," : "", names[count], count * 4, count * 4 + 4);
    heft_buf_printf(&header, "}");
    heft_buf_u8(&header, 0);
    write_shard(path, (const char *)header.data, count * 4);
    heft_buf_free(&header);
}
#define TENSORS(...) ((const char *const[]){__VA_ARGS__, NULL})

static inline int open_with(const char *model, int lenient, int ignore_index, struct heft_error *error)
{
    struct heft_model_options options = HEFT_MODEL_OPTIONS_INIT;
    struct heft_manifest *manifest = NULL;
    int rc;

    options.lenient = lenient;
    options.ignore_index = ignore_index;
    rc = heft_manifest_open(model, &options, &manifest, error);
    heft_manifest_close(manifest);
    return rc;
}

static inline int open_strict(const char *model, struct heft_error *error)
{
    return open_with(model, 0, 0, error);
}

static inline int count_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    if (!folder)
        return -1;
    while (readdir(folder))
        count++;
    (void)closedir(folder);
    return count;
}

#endif
