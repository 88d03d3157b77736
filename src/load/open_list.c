/* SPDX-License-Identifier: Apache-2.0 */
#include "load/open_list.h"
#include "base/error.h"
#include "base/log.h"
#include "format/manifest_text.h"
#include "format/modeldir_shards.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_ENTRIES ((size_t)1000000)
#define READ_AT_ONCE ((uint64_t)1 << 30)

static const char index_ending[] = ".safetensors.index.json";

static int no_memory(struct heft_error *error)
{
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while listing a model's folder");
}

int64_t heft_read_at(int fd, void *data, uint64_t size, uint64_t offset_bytes)
{
    uint8_t *at = data;
    uint64_t done = 0;

    while (done < size) {
        uint64_t want = size - done < READ_AT_ONCE ? size - done : READ_AT_ONCE;
        ssize_t got = pread(fd, at + done, (size_t)want, (off_t)(offset_bytes + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        done += (uint64_t)got;
    }
    return (int64_t)done;
}

void heft_listing_free(struct heft_listing *listing)
{
    size_t index;

    heft_dir_choice_free(listing->choice);
    heft_index_free(listing->index);
    for (index = 0; index < listing->count; index++)
        free((void *)(uintptr_t)listing->entries[index].name);
    free(listing->entries);
    *listing = (struct heft_listing){0};
}

/* ---- entries ---- */

int heft_listing_add(struct heft_listing *listing, const char *name, enum heft_entry_kind kind,
                     uint64_t size_bytes, struct heft_error *error)
{
    struct heft_dir_entry *entries;
    char *copy;

    if (listing->count == MAX_ENTRIES)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "more than %zu files in one folder", MAX_ENTRIES);
    if (listing->count == listing->capacity) {
        size_t capacity = listing->capacity ? listing->capacity * 2 : 64;

        entries = realloc(listing->entries, capacity * sizeof(*entries));
        if (!entries)
            return no_memory(error);
        listing->entries = entries;
        listing->capacity = capacity;
    }
    copy = strdup(name);
    if (!copy)
        return no_memory(error);
    listing->entries[listing->count++] =
        (struct heft_dir_entry){.name = copy, .kind = kind, .size_bytes = size_bytes};
    return HEFT_OK;
}

/*
 * What a name is, links followed. One that can't be looked at for another reason than being absent counts as
 * a file: if it is chosen, opening it says why.
 */
static enum heft_entry_kind kind_of(const struct heft_place *place, const char *name, uint64_t *size_out)
{
    struct stat st;
    int rc = heft_place_stat(place, name, &st);

    *size_out = 0;
    if (rc == -ENOENT || rc == -ENOTDIR)
        return HEFT_ENTRY_BROKEN_LINK;
    if (rc)
        return HEFT_ENTRY_FILE;
    if (S_ISREG(st.st_mode)) {
        *size_out = (uint64_t)st.st_size;
        return HEFT_ENTRY_FILE;
    }
    return S_ISDIR(st.st_mode)    ? HEFT_ENTRY_DIRECTORY
           : S_ISFIFO(st.st_mode) ? HEFT_ENTRY_FIFO
                                  : HEFT_ENTRY_OTHER;
}

static int has_ending(const char *name, const char *ending)
{
    size_t size = strlen(name), ending_bytes = strlen(ending);

    return size >= ending_bytes && strcmp(name + size - ending_bytes, ending) == 0;
}

static int read_folder(const struct heft_place *place, struct heft_listing *listing, struct heft_error *error)
{
    int fd = openat(place->root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = HEFT_OK;
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;

    if (!folder) {
        rc = heft_error_set_errno(error, errno, "could not be listed");
        if (fd >= 0)
            (void)close(fd);
        return rc;
    }
    /* cppcheck-suppress readdirCalled ; the stream is this call's own */
    for (errno = 0; !rc && (entry = readdir(folder)) != NULL; errno = 0) {
        enum heft_entry_kind kind = HEFT_ENTRY_OTHER;
        uint64_t size_bytes = 0;

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        /* Only weights and indexes are looked at one by one; of the rest the names are enough. */
        if (heft_shard_ending(entry->d_name) || has_ending(entry->d_name, index_ending))
            kind = kind_of(place, entry->d_name, &size_bytes);
        rc = heft_listing_add(listing, entry->d_name, kind, size_bytes, error);
    }
    if (!rc && errno)
        rc = heft_error_set_errno(error, errno, "could not be listed");
    (void)closedir(folder);
    return rc;
}

/* ---- the index ---- */

static int read_index(const struct heft_place *place, const char *name, struct heft_shard_index **index_out,
                      struct heft_error *error)
{
    struct stat st;
    uint64_t size;
    int64_t got;
    void *json;
    int fd, rc;

    rc = heft_path_check(name, strlen(name), error);
    if (!rc)
        rc = heft_place_open(place, name, &fd, &st, error);
    if (rc)
        return rc;
    size = (uint64_t)st.st_size;
    if (size > HEFT_INDEX_MAX_BYTES) {
        (void)close(fd);
        return heft_error_set(error, HEFT_ERR_TOO_LARGE,
                              "the shard index has %" PRIu64 " bytes; the limit is %" PRIu64, size,
                              HEFT_INDEX_MAX_BYTES);
    }
    json = malloc((size_t)size + 1);
    got = json ? heft_read_at(fd, json, size, 0) : -ENOMEM;
    (void)close(fd);
    if (got < 0)
        rc = heft_error_set_errno(error, (int)-got, "could not be read");
    else if ((uint64_t)got != size)
        rc = heft_error_set(error, HEFT_ERR_CHANGED, "became shorter while it was read");
    else
        rc = heft_index_parse(json, (size_t)size, index_out, error);
    free(json);
    return rc;
}

int heft_listing_find_index(const struct heft_listing *listing, const char **name_out,
                            struct heft_error *error)
{
    const char *found = NULL;
    struct heft_quote first, second;
    size_t at;

    for (at = 0; at < listing->count; at++) {
        const char *name = listing->entries[at].name;

        if (!has_ending(name, index_ending) || name[0] == '.' || strncmp(name, "consolidated", 12) == 0 ||
            strncmp(name, "adapter", 7) == 0)
            continue;
        if (strcmp(name, "model.safetensors.index.json") == 0) {
            *name_out = name;
            return HEFT_OK;
        }
        if (found)
            return heft_error_set(error, HEFT_ERR_AMBIGUOUS,
                                  "two shard indexes in one folder: %s and %s; move one away",
                                  heft_quote_text(&first, found), heft_quote_text(&second, name));
        found = name;
    }
    *name_out = found;
    return HEFT_OK;
}

/* Shards in subfolders are not in the folder's own listing. */
static int add_nested_shards(const struct heft_place *place, struct heft_listing *listing,
                             struct heft_error *error)
{
    uint32_t shard;
    int rc = HEFT_OK;

    for (shard = 0; !rc && shard < listing->index->shard_count; shard++) {
        const char *name = listing->index->shards[shard];
        enum heft_entry_kind kind;
        uint64_t size_bytes;

        if (!strchr(name, '/'))
            continue;
        kind = kind_of(place, name, &size_bytes);
        if (kind != HEFT_ENTRY_BROKEN_LINK)
            rc = heft_listing_add(listing, name, kind, size_bytes, error);
    }
    return rc;
}

static int load_index(const struct heft_place *place, int ignore_index, struct heft_listing *listing,
                      struct heft_error *error)
{
    struct heft_error why = HEFT_ERROR_INIT;
    struct heft_quote quote;
    const char *name = NULL;
    int rc = heft_listing_find_index(listing, &name, error);

    if (rc || !name)
        return ignore_index && rc == HEFT_ERR_AMBIGUOUS ? HEFT_OK : rc;
    rc = read_index(place, name, &listing->index, &why);
    if (rc && ignore_index && rc != HEFT_ERR_NO_MEMORY) {
        heft_log(HEFT_LOG_WARN, "%s/%s ignored: %s", place->shown, name, why.text);
        return HEFT_OK;
    }
    if (rc)
        return heft_error_set(error, rc, "%s: %s", heft_quote_text(&quote, name), why.text);
    return add_nested_shards(place, listing, error);
}

static int choose_files(const struct heft_place *place, int ignore_index, struct heft_listing *listing,
                        struct heft_error *error)
{
    int rc = read_folder(place, listing, error);

    if (!rc)
        rc = load_index(place, ignore_index, listing, error);
    if (rc)
        return rc;
    if (ignore_index)
        return heft_dir_choose_present(listing->entries, listing->count, listing->index, &listing->choice,
                                       error);
    return heft_dir_choose(listing->entries, listing->count, listing->index, &listing->choice, error);
}

int heft_listing_make(const struct heft_place *place, const struct heft_model_options *options,
                      struct heft_listing *listing_out, struct heft_error *error)
{
    int ignore_index = options ? options->ignore_index : 0, rc;

    *listing_out = (struct heft_listing){.index_ignored = ignore_index};
    rc = choose_files(place, ignore_index, listing_out, error);
    if (rc)
        heft_listing_free(listing_out);
    else if (listing_out->choice->note[0])
        heft_log(HEFT_LOG_INFO, "%s: %s", place->shown, listing_out->choice->note);
    return rc;
}
