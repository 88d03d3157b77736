/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a reference to a checked manifest with its files open. Each shard costs one open, one look and, with a
 * header under 256 KiB, one read; headers are read into one buffer that all shards share.
 */
#include "load/open.h"
#include "base/buf.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "format/header.h"
#include "format/manifest_text.h"
#include "load/open_list.h"
#include "load/remote_model.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX_BYTES ((uint64_t)256 << 10)
#define REVISION_HASH_BYTES 16

/* What a file was when it was opened. */
struct seen {
    uint64_t size_bytes;
    uint64_t device, inode;
    int64_t mtime_s, mtime_ns;
};

struct header_buffer {
    uint8_t *data;
    uint64_t capacity;
};

struct opening {
    const struct heft_place *place;
    int as_files; /* no header is read */
    struct heft_st_limits limits;
    struct heft_opened *opened;
    struct heft_dir_shard *shards; /* one a file */
    struct header_buffer buffer;
    struct heft_buf revision_text; /* what a plain folder's revision is made from */
};

static int no_memory(struct heft_error *error)
{
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while opening a model");
}

void heft_opened_free(struct heft_opened *opened)
{
    uint32_t index;

    if (!opened)
        return;
    for (index = 0; opened->fds && index < opened->file_count; index++)
        if (opened->fds[index] >= 0)
            (void)close(opened->fds[index]);
    for (index = 0; index < opened->capacity; index++) {
        free(opened->paths ? opened->paths[index] : NULL);
        free(opened->urls ? opened->urls[index] : NULL);
        free(opened->versions ? opened->versions[index] : NULL);
        free(opened->seen ? opened->seen[index].head : NULL);
    }
    heft_manifest_free(opened->manifest);
    free(opened->fds);
    free(opened->paths);
    free(opened->urls);
    free(opened->versions);
    free(opened->seen);
    free(opened->priv);
    free(opened);
}

static struct heft_opened *new_opened(uint32_t count)
{
    struct heft_opened *opened = calloc(1, sizeof(*opened));

    if (!opened)
        return NULL;
    opened->capacity = count;
    opened->fds = malloc(((size_t)count + 1) * sizeof(*opened->fds));
    opened->paths = calloc((size_t)count + 1, sizeof(*opened->paths));
    opened->priv = calloc((size_t)count + 1, sizeof(struct seen));
    if (!opened->fds || !opened->paths || !opened->priv) {
        heft_opened_free(opened);
        return NULL;
    }
    return opened;
}

static struct seen seen_of(const struct stat *st)
{
    return (struct seen){.size_bytes = (uint64_t)st->st_size,
                         .device = (uint64_t)st->st_dev,
                         .inode = (uint64_t)st->st_ino,
                         .mtime_s = st->st_mtim.tv_sec,
                         .mtime_ns = st->st_mtim.tv_nsec};
}

int heft_opened_check_unchanged(const struct heft_opened *opened, struct heft_error *error)
{
    const struct seen *before = opened->priv;
    struct seen now;
    struct stat st;
    uint32_t index;

    for (index = 0; opened->fds && index < opened->file_count; index++) {
        if (fstat(opened->fds[index], &st) != 0)
            return heft_error_set_errno(error, errno, "%s: its attributes could not be read",
                                        opened->paths[index]);
        now = seen_of(&st);
        if (now.size_bytes != before[index].size_bytes)
            return heft_error_set(error, HEFT_ERR_CHANGED,
                                  "%s: had %" PRIu64 " bytes when it was opened and has %" PRIu64
                                  " now; load it again when "
                                  "nobody writes it",
                                  opened->paths[index], before[index].size_bytes, now.size_bytes);
        if (now.mtime_s != before[index].mtime_s || now.mtime_ns != before[index].mtime_ns ||
            now.device != before[index].device || now.inode != before[index].inode)
            return heft_error_set(error, HEFT_ERR_CHANGED,
                                  "%s: was written after it was opened; load it again when nobody writes it",
                                  opened->paths[index]);
    }
    return HEFT_OK;
}

/* ---- headers ---- */

static int need(struct header_buffer *buffer, uint64_t size, struct heft_error *error)
{
    uint8_t *data;

    if (size <= buffer->capacity)
        return HEFT_OK;
    data = realloc(buffer->data, (size_t)size);
    if (!data)
        return no_memory(error);
    buffer->data = data;
    buffer->capacity = size;
    return HEFT_OK;
}

/* [from, to) of the file into the same place of the buffer. */
static int fill(struct header_buffer *buffer, int fd, uint64_t from, uint64_t to, struct heft_error *error)
{
    int64_t got;
    int rc = need(buffer, to, error);

    if (rc)
        return rc;
    got = heft_read_at(fd, buffer->data + from, to - from, from);
    if (got < 0)
        return heft_error_set_errno(error, (int)-got, "its header could not be read");
    if ((uint64_t)got != to - from)
        return heft_error_set(error, HEFT_ERR_CHANGED, "became shorter while its header was read");
    return HEFT_OK;
}

/* The header of one file; *text_bytes_out: of what stands before the data, at the buffer's start. */
static int read_header(struct opening *opening, int fd, uint64_t file_bytes,
                       struct heft_st_header **header_out, uint64_t *text_bytes_out, struct heft_error *error)
{
    struct header_buffer *buffer = &opening->buffer;
    uint64_t have = file_bytes < PREFIX_BYTES ? file_bytes : PREFIX_BYTES, wanted = have;
    int rc = fill(buffer, fd, 0, have, error);

    while (!rc && (rc = heft_header_parse(buffer->data, have, file_bytes, &opening->limits, header_out,
                                          &wanted, error)) == HEFT_ERR_AGAIN) {
        rc = fill(buffer, fd, have, wanted, error);
        have = wanted;
    }
    if (!rc) /* the padding before the data may not have been read */
        *text_bytes_out = have < 8 + (*header_out)->header_bytes ? have : 8 + (*header_out)->header_bytes;
    return rc;
}

/* A plain folder has no commit: its revision is made of what tells one state of the files from another. */
static void note_revision(struct opening *opening, const char *name, const struct seen *seen,
                          uint64_t text_bytes)
{
    struct heft_buf *text = &opening->revision_text;
    uint8_t digest[HEFT_SHA256_BYTES];

    if (opening->place->revision)
        return;
    heft_sha256(text_bytes ? opening->buffer.data : digest, (size_t)text_bytes, digest);
    heft_buf_string(text, name, strlen(name));
    heft_buf_u64(text, seen->size_bytes);
    heft_buf_u64(text, (uint64_t)seen->mtime_s);
    heft_buf_u64(text, (uint64_t)seen->mtime_ns);
    heft_buf_u64(text, seen->device);
    heft_buf_u64(text, seen->inode);
    heft_buf_bytes(text, digest, sizeof(digest));
}

void heft_open_warn(const char *path, const struct heft_st_header *header)
{
    const struct heft_st_tensor *last =
        header->tensor_count ? &header->tensors[header->tensor_count - 1] : NULL;
    uint64_t index, unknown = 0, end = last ? last->end : 0;

    for (index = 0; index < header->tensor_count; index++)
        unknown += header->tensors[index].dtype_bits == 0;
    if (header->repeated_names)
        heft_log(HEFT_LOG_WARN, "%s: %" PRIu64 " tensor names stand more than once; the last of each counts",
                 path, header->repeated_names);
    if (unknown && !header->sizes_known)
        heft_log(HEFT_LOG_WARN,
                 "%s: %" PRIu64 " tensors have a dtype whose size is not known and was not checked", path,
                 unknown);
    if (header->data_bytes > end && !header->sizes_known) /* there it is padding */
        heft_log(HEFT_LOG_WARN, "%s: %" PRIu64 " bytes after the last tensor are ignored", path,
                 header->data_bytes - end);
}

static int open_shard(struct opening *opening, const char *name, struct heft_error *error)
{
    struct heft_opened *opened = opening->opened;
    uint32_t index = opened->file_count;
    struct seen *seen = (struct seen *)opened->priv + index;
    struct heft_st_header *header = NULL;
    uint64_t text_bytes = 0;
    struct stat st;
    int rc;

    rc = heft_path_check(name, strlen(name), error);
    if (!rc)
        rc = heft_place_open(opening->place, name, &opened->fds[index], &st, error);
    if (rc)
        return rc;
    opened->paths[index] =
        opening->place->single ? strdup(opening->place->shown) : heft_place_join(opening->place->shown, name);
    opened->file_count++; /* from here on the descriptor is closed with the rest */
    if (!opened->paths[index])
        return no_memory(error);
    /* What is wanted is asked for. Reading ahead of the header would bring the file's begin into the page
     * cache, where it counts as hot and is read on from there, past what a rank keeps. */
    (void)posix_fadvise(opened->fds[index], 0, 0, POSIX_FADV_RANDOM);
    *seen = seen_of(&st);
    if (opening->as_files) {
        opening->shards[index] = (struct heft_dir_shard){.name = name, .size_bytes = seen->size_bytes};
        note_revision(opening, name, seen, 0);
        return HEFT_OK;
    }
    rc = read_header(opening, opened->fds[index], seen->size_bytes, &header, &text_bytes, error);
    if (rc)
        return rc;
    opening->shards[index] =
        (struct heft_dir_shard){.name = name, .size_bytes = seen->size_bytes, .header = header};
    note_revision(opening, name, seen, text_bytes);
    heft_open_warn(opened->paths[index], header);
    return HEFT_OK;
}

static int open_shards(struct opening *opening, const char *const *names, uint32_t count,
                       struct heft_error *error)
{
    struct heft_quote quote;
    uint32_t index;
    int rc;

    for (index = 0; index < count; index++) {
        rc = open_shard(opening, names[index], error);
        if (rc == HEFT_ERR_NO_FDS && count > 1)
            (void)heft_error_prefix(error, rc, "file %" PRIu32 " of %" PRIu32, index + 1, count);
        if (rc && opening->place->single)
            return heft_error_prefix(error, rc, "%s", opening->place->shown);
        if (rc)
            return heft_error_prefix(error, rc, "%s/%s", opening->place->shown,
                                     heft_path_check(names[index], strlen(names[index]), NULL)
                                         ? heft_quote_text(&quote, names[index])
                                         : names[index]);
    }
    return HEFT_OK;
}

/* ---- the manifest ---- */

static void make_revision(struct opening *opening, char text_out[3 + REVISION_HASH_BYTES * 2 + 1])
{
    uint8_t digest[HEFT_SHA256_BYTES];
    size_t index;

    heft_sha256(opening->revision_text.data, opening->revision_text.size, digest);
    memcpy(text_out, "fs-", 4);
    for (index = 0; index < REVISION_HASH_BYTES; index++)
        (void)snprintf(text_out + 3 + index * 2, 3, "%02x", digest[index]);
}

static int build_manifest(struct opening *opening, const struct heft_listing *listing,
                          struct heft_error *error)
{
    const struct heft_place *place = opening->place;
    const struct heft_shard_index *index = listing->index_ignored ? NULL : listing->index;
    struct heft_identity identity = {.model = place->model, .revision = place->revision, .stage = "raw"};
    char revision[3 + REVISION_HASH_BYTES * 2 + 1];
    uint64_t ignored = 0;
    int rc;

    if (!place->revision) {
        if (opening->revision_text.failed)
            return no_memory(error);
        make_revision(opening, revision);
        identity.revision = revision;
    }
    if (opening->as_files) {
        identity.stage = HEFT_FILES_STAGE;
        rc = heft_dir_files_manifest(opening->shards, opening->opened->file_count, &identity,
                                     &opening->opened->manifest, error);
        return rc ? heft_error_prefix(error, rc, "%s", place->shown) : HEFT_OK;
    }
    rc = heft_dir_manifest(opening->shards, opening->opened->file_count, index, &identity,
                           &opening->opened->manifest, &ignored, error);
    if (!rc && listing->index_ignored && listing->index)
        rc = heft_index_covered(listing->index, opening->opened->manifest, error);
    if (rc)
        return heft_error_prefix(error, rc, "%s", place->shown);
    if (ignored)
        heft_log(HEFT_LOG_INFO,
                 "%s: %" PRIu64 " tensors ignored: the index gives them to other shards, or to none",
                 place->shown, ignored);
    return HEFT_OK;
}

static int open_files(struct opening *opening, const struct heft_listing *listing, struct heft_error *error)
{
    const char *single = opening->place->single, **all = NULL;
    const char *const *names = single ? &single : listing->choice ? listing->choice->files : NULL;
    uint32_t index, count = single ? 1 : listing->choice ? listing->choice->file_count : 0;
    int rc = HEFT_OK;

    if (!names) { /* every file */
        rc = heft_listing_names(listing, &all, &count, error);
        names = all;
    }
    if (rc)
        return rc;
    opening->opened = new_opened(count);
    opening->shards = calloc((size_t)count + 1, sizeof(*opening->shards));
    if (!opening->opened || !opening->shards) {
        rc = no_memory(error);
        goto done;
    }
    rc = open_shards(opening, names, count, error);
    free(opening->buffer.data);
    opening->buffer = (struct header_buffer){0};
    if (!rc)
        rc = build_manifest(opening, listing, error);
done:
    for (index = 0; opening->shards && index < count; index++)
        heft_st_free((struct heft_st_header *)(uintptr_t)opening->shards[index].header);
    free(opening->shards);
    free(all);
    heft_buf_free(&opening->revision_text);
    return rc;
}

int heft_open_model(const char *model, const struct heft_model_options *options,
                    struct heft_opened **opened_out, struct heft_error *error)
{
    return heft_open_model_within(model, options, 0, NULL, opened_out, error);
}

int heft_open_model_within(const char *model, const struct heft_model_options *options, uint64_t end_ns,
                           const uint32_t *cancel, struct heft_opened **opened_out, struct heft_error *error)
{
    struct heft_listing listing = {0};
    struct opening opening = {0};
    struct heft_place place;
    struct heft_ref ref;
    int rc;

    if (!model)
        return heft_error_set(error, HEFT_ERR_INVALID, "no model given");
    rc = heft_place_parse(model, &ref, error);
    if (rc)
        return rc;
    if (heft_ref_is_remote(&ref))
        return heft_open_remote(&ref, options, end_ns, cancel, opened_out, error);
    rc = heft_place_find(model, options, &place, error);
    if (rc)
        return rc;
    opening.place = &place;
    opening.as_files = options && options->as_files;
    if (!place.single) {
        rc = opening.as_files ? heft_listing_files(&place, &listing, error)
                              : heft_listing_make(&place, options, &listing, error);
        if (rc)
            (void)heft_error_prefix(error, rc, "%s", place.shown);
    }
    if (options) {
        opening.limits.header_limit_bytes = options->header_limit_bytes;
        opening.limits.flags = options->lenient ? HEFT_ST_UNKNOWN_DTYPES | HEFT_ST_TRAILING_DATA : 0;
    }
    heft_buf_init(&opening.revision_text, SIZE_MAX);
    if (!rc)
        rc = open_files(&opening, &listing, error);
    heft_listing_free(&listing);
    heft_place_close(&place);
    if (rc) {
        heft_opened_free(opening.opened);
        return rc;
    }
    *opened_out = opening.opened;
    return HEFT_OK;
}
