/* SPDX-License-Identifier: Apache-2.0 */
#include "load/open_place.h"
#include "base/error.h"
#include "format/manifest_text.h"
#include "format/modeldir.h"
#include "space/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINK_LIMIT_BYTES 1024

static int no_memory(struct heft_error *error)
{
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while opening a model");
}

char *heft_place_join(const char *folder, const char *name)
{
    const char *slash = folder[0] && folder[strlen(folder) - 1] == '/' ? "" : "/";
    char *path;

    return asprintf(&path, "%s%s%s", folder, slash, name) < 0 ? NULL : path;
}

void heft_place_close(struct heft_place *place)
{
    if (place->root_fd >= 0)
        (void)close(place->root_fd);
    if (place->blobs_fd >= 0)
        (void)close(place->blobs_fd);
    free(place->shown);
    free(place->model);
    free(place->revision);
    free(place->single);
    *place = (struct heft_place){.root_fd = -1, .blobs_fd = -1};
}

/* ---- files of a place ---- */

/*
 * The blob that a snapshot's link leads to: exactly "../../blobs/<one name>", one ".." more for each folder
 * inside the snapshot. Such links are the cache's own; every other one that leaves is somebody's trick.
 */
static int blob_of_link(const struct heft_place *place, const char *name, char *blob_out, size_t size_bytes)
{
    char link[LINK_LIMIT_BYTES], folder[LINK_LIMIT_BYTES];
    const char *slash = strrchr(name, '/'), *at = link;
    int folder_fd = place->root_fd, ups = 2;
    ssize_t size;

    if (place->blobs_fd < 0)
        return 0;
    if (slash) {
        if ((size_t)(slash - name) >= sizeof(folder))
            return 0;
        (void)snprintf(folder, sizeof(folder), "%.*s", (int)(slash - name), name);
        folder_fd = heft_path_beneath(place->root_fd, folder, O_PATH | O_DIRECTORY);
        if (folder_fd < 0)
            return 0;
    }
    size = readlinkat(folder_fd, slash ? slash + 1 : name, link, sizeof(link) - 1);
    if (slash)
        (void)close(folder_fd);
    if (size <= 0 || (size_t)size >= sizeof(link) - 1)
        return 0;
    link[size] = 0;
    for (slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/'))
        ups++;
    for (; ups > 0 && strncmp(at, "../", 3) == 0; ups--)
        at += 3;
    if (ups != 0 || strncmp(at, "blobs/", 6) != 0 || strchr(at + 6, '/') || strlen(at + 6) >= size_bytes ||
        heft_path_check(at + 6, strlen(at + 6), NULL))
        return 0;
    memcpy(blob_out, at + 6, strlen(at + 6) + 1);
    return 1;
}

int heft_place_stat(const struct heft_place *place, const char *name, struct stat *stat_out)
{
    int rc = heft_path_stat(place->root_fd, name, stat_out);
    char blob[256];

    if (rc == -EXDEV && blob_of_link(place, name, blob, sizeof(blob)))
        return heft_path_stat(place->blobs_fd, blob, stat_out);
    return rc;
}

int heft_place_open(const struct heft_place *place, const char *name, int *fd_out, struct stat *stat_out,
                    struct heft_error *error)
{
    struct stat st;
    char blob[256];

    if (place->root_fd < 0)
        return heft_path_open_own(place->shown, fd_out, stat_out, error);
    if (heft_path_stat(place->root_fd, name, &st) == -EXDEV && blob_of_link(place, name, blob, sizeof(blob)))
        return heft_path_open(place->blobs_fd, blob, fd_out, stat_out, error);
    return heft_path_open(place->root_fd, name, fd_out, stat_out, error);
}

/* ---- references ---- */

static char *base_name(const char *real_path)
{
    const char *slash = strrchr(real_path, '/');

    return strdup(slash && slash[1] ? slash + 1 : real_path);
}

static int find_folder(const char *path, const char *real_path, struct heft_place *place,
                       struct heft_error *error)
{
    int rc = heft_path_open_folder(path, &place->root_fd, error);

    if (rc)
        return heft_error_prefix(error, rc, "%s", path);
    return heft_place_adopt_snapshot(real_path, place, error);
}

static int find_single(const char *path, struct heft_place *place, struct heft_error *error)
{
    place->single = base_name(path);
    if (!place->single)
        return no_memory(error);
    if (heft_pickle_name(place->single))
        return heft_error_set(
            error, HEFT_ERR_PICKLE,
            "%s: a pickle checkpoint, which executes code when loaded; convert it to safetensors", path);
    return HEFT_OK;
}

static int find_path(const char *path, struct heft_place *place, struct heft_error *error)
{
    char *real_path;
    struct stat st;
    int rc;

    place->shown = strdup(path);
    if (!place->shown)
        return no_memory(error);
    if (stat(path, &st) != 0) {
        rc = errno == ENOENT || errno == ENOTDIR
                 ? heft_error_set(error, HEFT_ERR_NOT_FOUND, "no such file or folder")
                 : heft_path_error(errno, error);
        return heft_error_prefix(error, rc, "%s", path);
    }
    real_path = realpath(path, NULL);
    if (!real_path) {
        rc = errno == ENOMEM ? no_memory(error) : heft_path_error(errno, error);
        return heft_error_prefix(error, rc, "%s", path);
    }
    place->model = base_name(real_path);
    if (!place->model)
        rc = no_memory(error);
    else if (S_ISDIR(st.st_mode))
        rc = find_folder(path, real_path, place, error);
    else
        rc = find_single(path, place, error);
    free(real_path);
    return rc;
}

int heft_place_parse(const char *model, struct heft_ref *ref_out, struct heft_error *error)
{
    int rc = heft_ref_parse(model, ref_out, error);
    struct stat st;

    if (!rc || !model || !model[0] || model[0] == '~' || stat(model, &st))
        return rc;
    return heft_error_set(error, rc,
                          "\"%.200s\" is not org/name; for the %s of that name here write ./%.200s", model,
                          S_ISDIR(st.st_mode) ? "folder" : "file", model);
}

int heft_place_find(const char *model, const struct heft_model_options *options, struct heft_place *place_out,
                    struct heft_error *error)
{
    struct heft_place place = {.root_fd = -1, .blobs_fd = -1};
    const char *revision = options ? options->revision : NULL;
    struct heft_ref ref;
    int rc = heft_place_parse(model, &ref, error);

    if (rc)
        return rc;
    if (revision && !revision[0])
        revision = NULL;
    switch (ref.kind) {
    case HEFT_REF_PATH:
        rc = find_path(ref.name, &place, error);
        if (!rc && revision) {
            free(place.revision);
            place.revision = strdup(revision);
            rc = place.revision ? HEFT_OK : no_memory(error);
        }
        break;
    case HEFT_REF_HUB:
        rc = heft_place_find_hub(ref.name, revision ? revision : ref.revision,
                                 options ? options->cache : NULL, &place, error);
        break;
    default:
        rc = heft_error_set(error, HEFT_ERR_UNSUPPORTED, "%s is no place on this machine", model);
        break;
    }
    if (rc) {
        heft_place_close(&place);
        return rc;
    }
    *place_out = place;
    return HEFT_OK;
}
