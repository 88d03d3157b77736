/* SPDX-License-Identifier: Apache-2.0 */
#include "load/cache.h"
#include "base/error.h"
#include "load/open.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_DEPTH 8

/* Files and bytes below a folder, links followed to their blobs. */
static void sum_folder(int parent, const char *name, int depth, uint64_t *files, uint64_t *bytes)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;

    if (!folder) {
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    while ((entry = readdir(folder)) != NULL) {
        struct stat about;

        if (entry->d_name[0] == '.' && (entry->d_name[1] == 0 || strcmp(entry->d_name, "..") == 0))
            continue;
        if (fstatat(fd, entry->d_name, &about, 0))
            continue; /* a link to a blob that is not there (yet) */
        if (S_ISREG(about.st_mode)) {
            ++*files;
            *bytes += (uint64_t)about.st_size;
        } else if (S_ISDIR(about.st_mode) && depth < MAX_DEPTH) {
            sum_folder(fd, entry->d_name, depth + 1, files, bytes);
        }
    }
    (void)closedir(folder);
}

/* Names in refs/ whose text is this commit, "main, v1". */
static char *find_refs(int model, const char *commit)
{
    int fd = openat(model, "refs", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;
    char names[1024] = "";

    if (!folder) {
        if (fd >= 0)
            (void)close(fd);
        return strdup("");
    }
    while ((entry = readdir(folder)) != NULL) {
        char text[128];
        int ref = openat(fd, entry->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        ssize_t size = ref < 0 ? -1 : read(ref, text, sizeof(text) - 1);

        if (ref >= 0)
            (void)close(ref);
        if (size <= 0)
            continue;
        text[size] = 0;
        text[strcspn(text, "\r\n ")] = 0;
        if (strcmp(text, commit) == 0 && strlen(names) + strlen(entry->d_name) + 3 < sizeof(names))
            (void)snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", names[0] ? ", " : "",
                           entry->d_name);
    }
    (void)closedir(folder);
    return strdup(names);
}

/* "models--org--name" back to "org/name"; NULL for another folder. */
static char *model_name(const char *folder)
{
    char *name, *mark;

    if (strncmp(folder, "models--", 8) != 0)
        return NULL;
    name = strdup(folder + 8);
    mark = name ? strstr(name, "--") : NULL;
    if (mark) {
        *mark = '/';
        memmove(mark + 1, mark + 2, strlen(mark + 2) + 1);
    }
    return name;
}

static int add_snapshots(struct heft_cache_list *list, int cache, const char *folder,
                         struct heft_error *error)
{
    int model = openat(cache, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = HEFT_OK;
    int fd = model < 0 ? -1 : openat(model, "snapshots", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *snapshots = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;

    while (snapshots && !rc && (entry = readdir(snapshots)) != NULL) {
        struct heft_cache_entry *grown, *made;

        if (entry->d_name[0] == '.')
            continue;
        grown = realloc(list->entries, (list->count + 1) * sizeof(*grown));
        if (!grown) {
            rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "listing the cache");
            break;
        }
        list->entries = grown;
        made = &list->entries[list->count++];
        *made = (struct heft_cache_entry){model_name(folder), strdup(entry->d_name),
                                          find_refs(model, entry->d_name), 0, 0};
        if (!made->model || !made->revision || !made->refs)
            rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "listing the cache");
        else
            sum_folder(fd, entry->d_name, 0, &made->files, &made->bytes);
    }
    if (snapshots)
        (void)closedir(snapshots);
    else if (fd >= 0)
        (void)close(fd);
    if (model >= 0)
        (void)close(model);
    return rc;
}

static int by_name(const void *left, const void *right)
{
    const struct heft_cache_entry *a = left, *b = right;
    int order = strcmp(a->model, b->model);

    return order ? order : strcmp(a->revision, b->revision);
}

int heft_cache_scan(const char *cache, struct heft_cache_list *list_out, struct heft_error *error)
{
    struct heft_cache_list list = {{0}, NULL, 0};
    const struct dirent *entry;
    DIR *folder;
    int rc = heft_cache_folder(cache, list.folder, sizeof(list.folder), error);

    if (rc)
        return rc;
    folder = opendir(list.folder);
    if (!folder && errno != ENOENT)
        return heft_error_set_errno(error, errno, "reading the cache %s", list.folder);
    while (folder && !rc && (entry = readdir(folder)) != NULL)
        if (strncmp(entry->d_name, "models--", 8) == 0)
            rc = add_snapshots(&list, dirfd(folder), entry->d_name, error);
    if (folder)
        (void)closedir(folder);
    if (rc) {
        heft_cache_list_free(&list);
        return rc;
    }
    if (list.count)
        qsort(list.entries, list.count, sizeof(*list.entries), by_name);
    *list_out = list;
    return HEFT_OK;
}

void heft_cache_list_free(struct heft_cache_list *list)
{
    size_t index;

    for (index = 0; index < list->count; index++) {
        free(list->entries[index].model);
        free(list->entries[index].revision);
        free(list->entries[index].refs);
    }
    free(list->entries);
    list->entries = NULL;
    list->count = 0;
}

static int make_folder(const char *path)
{
    return mkdir(path, 0700) != 0 && errno != EEXIST ? heft_error_from_errno(errno) : HEFT_OK;
}

int heft_own_folder(const char *below, int make, char *text_out, size_t size_bytes)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int under_home = !cache || cache[0] != '/', written, rc = HEFT_OK;

    if (under_home && (!home || home[0] != '/'))
        return HEFT_ERR_NOT_FOUND;
    written = snprintf(text_out, size_bytes, "%s%s", under_home ? home : cache, under_home ? "/.cache" : "");
    if (written < 0 || (size_t)written + sizeof("/heft/") + (below ? strlen(below) : 0) > size_bytes)
        return HEFT_ERR_TOO_LARGE;
    if (make)
        rc = make_folder(text_out);
    memcpy(text_out + written, "/heft", sizeof("/heft"));
    if (make && !rc)
        rc = make_folder(text_out);
    if (below) {
        text_out[written + 5] = '/';
        memcpy(text_out + written + 6, below, strlen(below) + 1);
        if (make && !rc)
            rc = make_folder(text_out);
    }
    return rc;
}
