/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A folder's files, whatever they are: all regular files in it and in its subfolders, in the order of their
 * names. What can't be copied as it is (a link that leaves the folder or leads to a folder, a FIFO, a name
 * that no other system would take) is refused by name: a copy that lacks something is no copy.
 */
#include "base/error.h"
#include "format/manifest_text.h"
#include "load/open_list.h"
#include "space/path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_DEPTH 64

static int refuse(const char *name, int code, struct heft_error *error, const char *why)
{
    struct heft_quote quote;

    return heft_error_set(error, code, "%s %s", heft_quote_text(&quote, name), why);
}

static int add_files(const struct heft_place *place, const char *folder, int depth,
                     struct heft_listing *listing, struct heft_error *error);

static int add_entry(const struct heft_place *place, int folder_fd, const char *name, const char *last,
                     int depth, struct heft_listing *listing, struct heft_error *error)
{
    struct stat st, own;
    int rc = heft_path_check(name, strlen(name), error);

    if (rc)
        return rc;
    rc = heft_place_stat(place, name, &st);
    if (rc == -ENOENT)
        return refuse(name, HEFT_ERR_NOT_FOUND, error, "is a link to nothing; remove it");
    if (rc) {
        struct heft_quote quote;

        rc = heft_path_error(-rc, error);
        return heft_error_prefix(error, rc, "%s", heft_quote_text(&quote, name));
    }
    if (S_ISREG(st.st_mode))
        return heft_listing_add(listing, name, HEFT_ENTRY_FILE, (uint64_t)st.st_size, error);
    if (!S_ISDIR(st.st_mode))
        return refuse(name, HEFT_ERR_NOT_A_FILE, error, "is neither a file nor a folder; move it away");
    if (fstatat(folder_fd, last, &own, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(own.st_mode))
        return refuse(name, HEFT_ERR_PATH_UNSAFE, error,
                      "is a link to a folder; put the folder itself there");
    if (depth == MAX_DEPTH)
        return refuse(name, HEFT_ERR_TOO_MANY, error, "lies more than 64 folders deep");
    return add_files(place, name, depth + 1, listing, error);
}

/* folder "": the place itself. */
static int add_files(const struct heft_place *place, const char *folder, int depth,
                     struct heft_listing *listing, struct heft_error *error)
{
    int fd = folder[0] ? heft_path_beneath(place->root_fd, folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW)
                       : openat(place->root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *opened = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;
    struct heft_quote quote;
    int rc = HEFT_OK;

    if (!opened) {
        rc = heft_path_error(fd < 0 && folder[0] ? -fd : errno, error);
        if (fd >= 0)
            (void)close(fd);
        return folder[0] ? heft_error_prefix(error, rc, "%s", heft_quote_text(&quote, folder)) : rc;
    }
    /* cppcheck-suppress readdirCalled ; the stream is this call's own */
    for (errno = 0; !rc && (entry = readdir(opened)) != NULL; errno = 0) {
        char *name;

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        name = folder[0] ? heft_place_join(folder, entry->d_name) : strdup(entry->d_name);
        rc = name ? add_entry(place, fd, name, entry->d_name, depth, listing, error)
                  : heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while listing files");
        free(name);
    }
    if (!rc && errno)
        rc = heft_error_set_errno(error, errno, "could not be listed");
    (void)closedir(opened);
    return rc;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(((const struct heft_dir_entry *)left)->name, ((const struct heft_dir_entry *)right)->name);
}

void heft_listing_sort(struct heft_listing *listing)
{
    if (listing->count > 0)
        qsort(listing->entries, listing->count, sizeof(*listing->entries), by_name);
}

int heft_listing_files(const struct heft_place *place, struct heft_listing *listing_out,
                       struct heft_error *error)
{
    int rc;

    *listing_out = (struct heft_listing){0};
    rc = add_files(place, "", 0, listing_out, error);
    if (!rc && listing_out->count == 0)
        rc = heft_error_set(error, HEFT_ERR_NOT_FOUND, "there are no files in it");
    heft_listing_sort(listing_out);
    if (rc)
        heft_listing_free(listing_out);
    return rc;
}

int heft_listing_names(const struct heft_listing *listing, const char ***names_out, uint32_t *count_out,
                       struct heft_error *error)
{
    const char **names = calloc(listing->count + 1, sizeof(*names));
    size_t index;

    if (!names)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while listing files");
    for (index = 0; index < listing->count; index++)
        names[index] = listing->entries[index].name;
    *names_out = names;
    *count_out = (uint32_t)listing->count; /* at most a million */
    return HEFT_OK;
}
