/* SPDX-License-Identifier: Apache-2.0 */
#include "load/landing.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "format/manifest_text.h"
#include "format/modeldir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct heft_landing {
    char *folder, *parent, *last; /* "/a/b", "/a", "b" */
    char made[300];               /* its name in the parent until it is right */
    int parent_fd, root_fd;
    char **names; /* of the files, in the layout's order */
    uint64_t file_count;
    uint8_t *address;
    uint64_t size_bytes;
    int is_committed;
};

uint64_t heft_landing_align_bytes(void)
{
    long page = sysconf(_SC_PAGESIZE);

    return page > 0 ? (uint64_t)page : 4096;
}

uint8_t *heft_landing_address(const struct heft_landing *landing)
{
    return landing->address;
}

/* ---- removing ---- */

/* Each folder on the way to a file, the deepest first; those that hold something else stay. */
static void remove_folders(const struct heft_landing *landing, const char *name)
{
    char *path = strdup(name), *slash;

    while (path && (slash = strrchr(path, '/')) != NULL) {
        *slash = 0;
        if (unlinkat(landing->root_fd, path, AT_REMOVEDIR) != 0)
            break;
    }
    free(path);
}

static void remove_all(const struct heft_landing *landing)
{
    uint64_t index;

    for (index = landing->file_count; index-- > 0;) {
        (void)unlinkat(landing->root_fd, landing->names[index], 0);
        remove_folders(landing, landing->names[index]);
    }
    if (unlinkat(landing->parent_fd, landing->made, AT_REMOVEDIR) != 0)
        heft_log(HEFT_LOG_WARN, "%s/%s could not be removed: %s", landing->parent, landing->made,
                 strerror(errno));
}

void heft_landing_free(struct heft_landing *landing)
{
    uint64_t index;

    if (!landing)
        return;
    if (landing->address)
        (void)munmap(landing->address, landing->size_bytes);
    if (landing->root_fd >= 0 && !landing->is_committed)
        remove_all(landing);
    if (landing->root_fd >= 0)
        (void)close(landing->root_fd);
    if (landing->parent_fd >= 0)
        (void)close(landing->parent_fd);
    for (index = 0; index < landing->file_count; index++)
        free(landing->names[index]);
    free(landing->names);
    free(landing->folder);
    free(landing->parent);
    free(landing->last);
    free(landing);
}

/* ---- making ---- */

static int no_memory(struct heft_error *error)
{
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making the folder that the files land in");
}

static int split_path(struct heft_landing *landing, const char *folder, struct heft_error *error)
{
    size_t size = strlen(folder);
    const char *slash;

    while (size > 1 && folder[size - 1] == '/')
        size--;
    landing->folder = strndup(folder, size);
    if (!landing->folder)
        return no_memory(error);
    slash = strrchr(landing->folder, '/');
    landing->last = strdup(slash ? slash + 1 : landing->folder);
    landing->parent = !slash ? strdup(".")
                      : slash == landing->folder
                          ? strdup("/")
                          : strndup(landing->folder, (size_t)(slash - landing->folder));
    if (!landing->last || !landing->parent)
        return no_memory(error);
    if (!landing->last[0] || strcmp(landing->last, ".") == 0 || strcmp(landing->last, "..") == 0 ||
        strlen(landing->last) > 230)
        return heft_error_set(error, HEFT_ERR_INVALID, "%s: name a folder that is to be made", folder);
    return HEFT_OK;
}

/* A rename replaces an empty folder, and nothing else. */
static int check_free(const struct heft_landing *landing, struct heft_error *error)
{
    struct stat st;
    struct dirent *entry;
    DIR *opened;
    int fd, is_empty = 1;

    if (fstatat(landing->parent_fd, landing->last, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? HEFT_OK : heft_error_set_errno(error, errno, "%s", landing->folder);
    fd = S_ISDIR(st.st_mode)
             ? openat(landing->parent_fd, landing->last, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
             : -1;
    opened = fd < 0 ? NULL : fdopendir(fd);
    if (!opened && fd >= 0)
        (void)close(fd);
    /* cppcheck-suppress readdirCalled ; the stream is this call's own */
    while (opened && is_empty && (entry = readdir(opened)) != NULL)
        is_empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (opened && is_empty) {
        (void)closedir(opened);
        return HEFT_OK;
    }
    if (opened)
        (void)closedir(opened);
    return heft_error_set(error, HEFT_ERR_EXISTS,
                          "%s is there already and is no empty folder; move it away, or name another one",
                          landing->folder);
}

static int make_folder(struct heft_landing *landing, struct heft_error *error)
{
    uint64_t number = 0;
    int rc;

    landing->parent_fd = open(landing->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (landing->parent_fd < 0)
        return heft_error_set_errno(error, errno, "the folder %s, which %s is to lie in", landing->parent,
                                    landing->last);
    rc = check_free(landing, error);
    if (rc)
        return rc;
    heft_random_bytes(&number, sizeof(number));
    (void)snprintf(landing->made, sizeof(landing->made), ".%s.heft-%016" PRIx64, landing->last, number);
    if (mkdirat(landing->parent_fd, landing->made, 0777) != 0)
        return heft_error_set_errno(error, errno, "making a folder in %s", landing->parent);
    landing->root_fd =
        openat(landing->parent_fd, landing->made, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (landing->root_fd < 0) {
        rc = heft_error_set_errno(error, errno, "opening the folder just made in %s", landing->parent);
        (void)unlinkat(landing->parent_fd, landing->made, AT_REMOVEDIR);
    }
    return rc;
}

static int make_parts(const struct heft_landing *landing, char *name)
{
    char *slash;
    int failed = 0;

    for (slash = strchr(name, '/'); slash && !failed; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        failed = mkdirat(landing->root_fd, name, 0777) != 0 && errno != EEXIST ? errno : 0;
        *slash = '/';
    }
    return failed;
}

/* Its room is taken now: the map could only answer a full disk with a signal. */
static int make_file(struct heft_landing *landing, char *name, uint64_t size_bytes, uint8_t *address,
                     struct heft_error *error)
{
    struct heft_quote quote;
    int failed = make_parts(landing, name), fd = -1;

    if (!failed) {
        fd = openat(landing->root_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        failed = fd < 0 ? errno : 0;
    }
    if (!failed && size_bytes > 0)
        failed = posix_fallocate(fd, 0, (off_t)size_bytes);
    if (!failed && size_bytes > 0 &&
        mmap(address, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        failed = errno;
    if (fd >= 0)
        (void)close(fd);
    if (failed == ENOMEM)
        return heft_error_set(error, HEFT_ERR_TOO_MANY,
                              "%s: no further map of memory; so many files need a larger vm.max_map_count",
                              heft_quote_text(&quote, name));
    if (failed == ENOTDIR || failed == EEXIST)
        return heft_error_set(error, HEFT_ERR_PATH_UNSAFE,
                              "%s: two files of this name, or a file where its folder must be",
                              heft_quote_text(&quote, name));
    return failed ? heft_error_set_errno(error, failed, "writing %s to %s (%" PRIu64 " bytes)",
                                         heft_quote_text(&quote, name), landing->folder, size_bytes)
                  : HEFT_OK;
}

/* Names come from a store or a peer. */
static int check_file(const struct heft_manifest_tensor *tensor, const struct heft_layout_tensor *wanted,
                      struct heft_error *error)
{
    if (tensor->rank != 1 || strcmp(tensor->dtype, "U8") != 0 || tensor->box_start || wanted->start)
        return heft_error_set(error, HEFT_ERR_INVALID, "what was found is tensors, not files");
    return heft_path_check(tensor->name, tensor->name_bytes, error);
}

static int make_files(struct heft_landing *landing, const struct heft_layout *layout,
                      struct heft_error *error)
{
    uint64_t index;
    int rc = HEFT_OK;

    if (strcmp(layout->reference->identity.stage, HEFT_FILES_STAGE) != 0)
        return heft_error_set(error, HEFT_ERR_INVALID, "what was found is tensors, not files");
    landing->names = calloc((size_t)layout->tensor_count + 1, sizeof(*landing->names));
    if (!landing->names)
        return no_memory(error);
    landing->size_bytes = layout->arena_bytes;
    if (layout->arena_bytes > 0) {
        landing->address =
            mmap(NULL, layout->arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (landing->address == MAP_FAILED) {
            landing->address = NULL;
            return no_memory(error);
        }
    }
    for (index = 0; !rc && index < layout->tensor_count; index++) {
        const struct heft_layout_tensor *wanted = &layout->tensors[index];
        const struct heft_manifest_tensor *tensor = &layout->reference->tensors[wanted->tensor];

        rc = check_file(tensor, wanted, error);
        if (rc)
            break;
        landing->names[index] = strdup(tensor->name);
        if (!landing->names[index])
            return no_memory(error);
        landing->file_count = index + 1;
        rc = make_file(landing, landing->names[index], wanted->size_bytes,
                       landing->address + wanted->dst_offset_bytes, error);
    }
    return rc;
}

int heft_landing_create(const char *folder, const struct heft_layout *layout,
                        struct heft_landing **landing_out, struct heft_error *error)
{
    struct heft_landing *landing = calloc(1, sizeof(*landing));
    int rc;

    if (!landing)
        return no_memory(error);
    landing->parent_fd = landing->root_fd = -1;
    rc = split_path(landing, folder, error);
    if (!rc)
        rc = make_folder(landing, error);
    if (!rc)
        rc = make_files(landing, layout, error);
    if (rc) {
        heft_landing_free(landing);
        return rc;
    }
    *landing_out = landing;
    return HEFT_OK;
}

/* ---- the end ---- */

static int sync_beneath(const struct heft_landing *landing, const char *name, int flags)
{
    int fd = openat(landing->root_fd, name, flags | O_NOFOLLOW | O_CLOEXEC), failed;

    if (fd < 0)
        return errno;
    failed = fsync(fd) != 0 ? errno : 0;
    (void)close(fd);
    return failed;
}

/* The folders on the way to a file, as far as the file before does not lie in them too. */
static int sync_folders(const struct heft_landing *landing, uint64_t index)
{
    const char *before = index > 0 ? landing->names[index - 1] : "";
    char *path = strdup(landing->names[index]), *slash;
    int failed = path ? 0 : ENOMEM;

    while (!failed && (slash = strrchr(path, '/')) != NULL) {
        *slash = 0;
        if (strncmp(before, path, strlen(path)) == 0 && before[strlen(path)] == '/')
            break;
        failed = sync_beneath(landing, path, O_RDONLY | O_DIRECTORY);
    }
    free(path);
    return failed;
}

int heft_landing_commit(struct heft_landing *landing, struct heft_error *error)
{
    uint64_t index;
    int failed = 0, rc;

    for (index = 0; !failed && index < landing->file_count; index++) {
        failed = sync_beneath(landing, landing->names[index], O_RDONLY);
        if (!failed)
            failed = sync_folders(landing, index);
    }
    if (!failed && fsync(landing->root_fd) != 0)
        failed = errno;
    if (failed)
        return heft_error_set_errno(error, failed, "bringing the files of %s to disk", landing->folder);
    rc = check_free(landing, error); /* somebody may have been faster */
    if (rc)
        return rc;
    if (renameat(landing->parent_fd, landing->made, landing->parent_fd, landing->last) != 0)
        return heft_error_set_errno(error, errno, "giving the folder its name %s", landing->folder);
    landing->is_committed = 1;
    if (fsync(landing->parent_fd) != 0)
        return heft_error_set_errno(error, errno, "%s: its name may not be on disk yet", landing->folder);
    return HEFT_OK;
}
