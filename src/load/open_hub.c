/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models in a Hugging Face cache: models--org--name holds refs/<branch> (a text with a commit),
 * snapshots/<commit>/<file> (links) and blobs/<hash> (what they lead to). Only read here.
 */
#include "base/error.h"
#include "format/manifest_text.h"
#include "format/modeldir.h"
#include "load/open.h"
#include "load/open_place.h"
#include "space/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CACHE_PATH_BYTES 4096
#define COMMIT_DIGITS 40u
#define COMMIT_MAX_BYTES 128u

static int no_memory(struct heft_error *error)
{
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while opening a model of the cache");
}

static const char *environment(const char *name)
{
    const char *value = getenv(name);

    return value && value[0] ? value : NULL;
}

int heft_cache_folder(const char *cache, char *text_out, size_t size_bytes, struct heft_error *error)
{
    const char *home, *rest = "";
    struct heft_quote quote;

    if (cache && cache[0])
        home = cache;
    else if ((home = environment("HF_HUB_CACHE")) || (home = environment("HUGGINGFACE_HUB_CACHE")))
        rest = "";
    else if ((home = environment("HF_HOME")))
        rest = "/hub";
    else if ((home = environment("XDG_CACHE_HOME")))
        rest = "/huggingface/hub";
    else if ((home = environment("HOME")))
        rest = "/.cache/huggingface/hub";
    else
        return heft_error_set(
            error, HEFT_ERR_NOT_FOUND,
            "no model cache: neither HF_HUB_CACHE, HF_HOME nor HOME is set; name the cache's folder");
    if (strlen(home) + strlen(rest) >= size_bytes)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE, "the cache's path %s is too long",
                              heft_quote_text(&quote, home));
    (void)snprintf(text_out, size_bytes, "%s%s", home, rest);
    return HEFT_OK;
}

static int is_commit(const char *text)
{
    return strlen(text) == COMMIT_DIGITS && strspn(text, "0123456789abcdef") == COMMIT_DIGITS;
}

/* A folder's name that may stand for a commit: one part, nothing odd. */
static int may_be_commit(const char *text)
{
    return text[0] && strlen(text) <= COMMIT_MAX_BYTES && !strchr(text, '/') &&
           heft_path_check(text, strlen(text), NULL) == HEFT_OK;
}

static int has_snapshot(int repo_fd, const char *commit)
{
    char path[COMMIT_MAX_BYTES + 16];
    struct stat st;

    if (!may_be_commit(commit))
        return 0;
    (void)snprintf(path, sizeof(path), "snapshots/%s", commit);
    return heft_path_stat(repo_fd, path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The commit that refs/<revision> holds. NOT_FOUND when there is no such ref. */
static int read_ref(int repo_fd, const char *revision, char commit_out[COMMIT_MAX_BYTES + 1],
                    struct heft_error *error)
{
    char path[300], text[COMMIT_MAX_BYTES + 2];
    struct heft_quote quote;
    struct stat st;
    ssize_t size;
    int fd, rc;

    (void)snprintf(path, sizeof(path), "refs/%s", revision);
    rc = heft_path_open(repo_fd, path, &fd, &st, error);
    if (rc)
        return rc;
    size = pread(fd, text, sizeof(text) - 1, 0);
    (void)close(fd);
    if (size < 0)
        return heft_error_set_errno(error, errno, "refs/%s", revision);
    while (size > 0 && strchr(" \t\r\n", text[size - 1]))
        size--;
    text[size] = 0;
    if (strlen(text) != (size_t)size || !may_be_commit(text))
        return heft_error_set(error, HEFT_ERR_CHANGED,
                              "refs/%s holds %s, not a commit; download the model again", revision,
                              heft_quote_name(&quote, text, (size_t)size));
    memcpy(commit_out, text, (size_t)size + 1);
    return HEFT_OK;
}

static int find_commit(int repo_fd, const char *revision, char commit_out[COMMIT_MAX_BYTES + 1],
                       struct heft_error *error)
{
    int rc;

    if (is_commit(revision) && has_snapshot(repo_fd, revision)) {
        memcpy(commit_out, revision, strlen(revision) + 1);
        return HEFT_OK;
    }
    rc = read_ref(repo_fd, revision, commit_out, error);
    if (rc == HEFT_ERR_NOT_FOUND && has_snapshot(repo_fd, revision)) {
        memcpy(commit_out, revision, strlen(revision) + 1);
        return HEFT_OK;
    }
    if (rc == HEFT_ERR_NOT_FOUND)
        return heft_error_set(
            error, rc, "revision %s is not in the cache; download it, or name one that is there", revision);
    if (!rc && !has_snapshot(repo_fd, commit_out))
        return heft_error_set(error, HEFT_ERR_NOT_FOUND,
                              "revision %s is commit %s, of which the cache holds no file; download it again",
                              revision, commit_out);
    return rc;
}

/* The snapshot's folder as the place's root, and the blobs beside it. */
static int open_snapshot(int repo_fd, const char *commit, struct heft_place *place, struct heft_error *error)
{
    char path[COMMIT_MAX_BYTES + 16];
    int fd;

    (void)snprintf(path, sizeof(path), "snapshots/%s", commit);
    fd = heft_path_beneath(repo_fd, path, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return heft_error_prefix(error, heft_path_error(-fd, error), "%s", path);
    place->root_fd = fd;
    fd = heft_path_beneath(repo_fd, "blobs", O_PATH | O_DIRECTORY);
    if (fd < 0 && fd != -ENOENT)
        return heft_error_prefix(error, heft_path_error(-fd, error), "blobs");
    place->blobs_fd = fd < 0 ? -1 : fd;
    return HEFT_OK;
}

static int find_in_repo(const char *name, const char *repo, const char *revision, struct heft_place *place,
                        struct heft_error *error)
{
    char commit[COMMIT_MAX_BYTES + 1];
    int repo_fd, rc;

    rc = heft_path_open_folder(repo, &repo_fd, error);
    if (rc == HEFT_ERR_NOT_FOUND)
        return heft_error_set(error, rc,
                              "%s is not in the cache: there is no folder %s; write hf://%s to read it from "
                              "the hub, download it there, or give a folder's path (./%s)",
                              name, repo, name, name);
    if (rc)
        return heft_error_prefix(error, rc, "%s", repo);
    rc = find_commit(repo_fd, revision, commit, error);
    if (!rc)
        rc = open_snapshot(repo_fd, commit, place, error);
    (void)close(repo_fd);
    if (rc)
        return heft_error_prefix(error, rc, "%s in %s", name, repo);
    place->model = strdup(name);
    place->revision = strdup(commit);
    if (!place->model || !place->revision || asprintf(&place->shown, "%s/snapshots/%s", repo, commit) < 0) {
        place->shown = NULL;
        return no_memory(error);
    }
    return HEFT_OK;
}

int heft_place_find_hub(const char *name, const char *revision, const char *cache, struct heft_place *place,
                        struct heft_error *error)
{
    char folder[256], root[CACHE_PATH_BYTES], *repo;
    struct heft_quote quote;
    int rc;

    if (!revision || !revision[0])
        revision = "main";
    if (strlen(revision) > 255 || heft_path_check(revision, strlen(revision), NULL))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "revision %s of %s is no name of a branch, tag or commit",
                              heft_quote_text(&quote, revision), name);
    rc = heft_hub_folder(name, folder, sizeof(folder));
    if (rc)
        return heft_error_set(error, rc, "%s is no hub name", heft_quote_text(&quote, name));
    rc = heft_cache_folder(cache, root, sizeof(root), error);
    if (rc)
        return rc;
    repo = heft_place_join(root, folder);
    if (!repo)
        return no_memory(error);
    rc = find_in_repo(name, repo, revision, place, error);
    free(repo);
    return rc;
}

/* "org/name" from "models--org--name"; NULL when it is none. */
static char *name_of_folder(const char *folder, size_t size)
{
    static const char prefix[] = "models--";
    char name[256], check[256], *dash;

    if (size <= sizeof(prefix) - 1 || size >= sizeof(name) ||
        strncmp(folder, prefix, sizeof(prefix) - 1) != 0)
        return NULL;
    (void)snprintf(name, sizeof(name), "%.*s", (int)(size - (sizeof(prefix) - 1)),
                   folder + sizeof(prefix) - 1);
    dash = strstr(name, "--");
    if (dash) {
        *dash = '/';
        memmove(dash + 1, dash + 2, strlen(dash + 2) + 1);
    }
    if (heft_hub_folder(name, check, sizeof(check)) || strlen(check) != size ||
        strncmp(check, folder, size) != 0)
        return NULL;
    return strdup(name);
}

int heft_place_adopt_snapshot(const char *real_path, struct heft_place *place, struct heft_error *error)
{
    const char *commit = strrchr(real_path, '/'), *snapshots, *folder;
    char *name, *repo;
    int fd;

    if (!commit || commit - real_path < 10 || !is_commit(commit + 1))
        return HEFT_OK;
    snapshots = commit - 10;
    if (strncmp(snapshots, "/snapshots", 10) != 0)
        return HEFT_OK;
    for (folder = snapshots; folder > real_path && folder[-1] != '/'; folder--)
        ;
    name = name_of_folder(folder, (size_t)(snapshots - folder));
    if (!name)
        return HEFT_OK;
    repo = strndup(real_path, (size_t)(snapshots - real_path));
    free(place->model);
    place->model = name;
    free(place->revision);
    place->revision = strdup(commit + 1);
    if (!repo || !place->revision) {
        free(repo);
        return no_memory(error);
    }
    fd = open(repo, O_PATH | O_DIRECTORY | O_CLOEXEC);
    free(repo);
    if (fd >= 0) {
        place->blobs_fd = heft_path_beneath(fd, "blobs", O_PATH | O_DIRECTORY);
        if (place->blobs_fd < 0)
            place->blobs_fd = -1;
        (void)close(fd);
    }
    return HEFT_OK;
}
