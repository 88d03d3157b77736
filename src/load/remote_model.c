/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a URL to a checked manifest. A bucket or container is listed, the hub tells a revision's commit and
 * its files; a web server, which has no listing, is asked for the index and else for model.safetensors. Then
 * the heads of all files are read at once, 256 KiB of each, and the longer ones once more. Every rule about
 * what is a model is the same as for folders of this machine.
 *
 * The revision is made of what the store says of each file (its ETag) and its size: another upload is another
 * revision. All later reads ask for exactly these versions.
 */
#include "load/remote_model.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "format/header.h"
#include "format/manifest_text.h"
#include "format/modeldir_shards.h"
#include "load/open_list.h"
#include "plan/rules.h"
#include "transport/object/object.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX_BYTES ((uint64_t)256 << 10)
#define BATCH 64u
#define MAX_OBJECTS ((size_t)1000000)
#define REVISION_HASH_BYTES 16

static const char index_name[] = "model.safetensors.index.json";
/* What mostly lies beside weights: of a server that lists nothing, these are asked for. */
static const char *const usual_names[] = {"README.md",
                                          "added_tokens.json",
                                          "chat_template.jinja",
                                          "chat_template.json",
                                          "config.json",
                                          "generation_config.json",
                                          "merges.txt",
                                          "model.safetensors",
                                          "preprocessor_config.json",
                                          "special_tokens_map.json",
                                          "tokenizer.json",
                                          "tokenizer.model",
                                          "tokenizer_config.json",
                                          "vocab.json",
                                          "vocab.txt"};
#define USUAL_NAMES (sizeof(usual_names) / sizeof(usual_names[0]))

struct remote {
    struct heft_object_client client;
    char *base;                /* the folder's or file's URL */
    char *model;               /* without credentials; of the hub: org/name */
    struct heft_s3_page files; /* of the hub, by name */
    char commit[64];
    char *single;
    struct heft_listing listing;
    struct heft_st_limits limits;
    struct heft_opened *opened;
    struct heft_dir_shard *shards;
    uint64_t heads_bytes; /* kept so far */
    struct heft_buf revision_text;
    const char *revision; /* given by the caller, or NULL */
    int as_files;         /* every file, and no header is read */
};

static int no_memory(struct heft_error *error)
{
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while opening a model");
}

int heft_ref_is_remote(const struct heft_ref *ref)
{
    return ref->kind == HEFT_REF_S3 || ref->kind == HEFT_REF_GCS || ref->kind == HEFT_REF_AZURE ||
           ref->kind == HEFT_REF_HTTP || (ref->kind == HEFT_REF_HUB && ref->from_hub);
}

static const char *scheme_of(const struct heft_ref *ref)
{
    switch (ref->kind) {
    case HEFT_REF_S3:
        return "s3://";
    case HEFT_REF_GCS:
        return "gs://";
    case HEFT_REF_AZURE:
        return "az://";
    case HEFT_REF_HUB:
        return "hf://";
    default:
        return "";
    }
}

/* Without the slashes that close the path. */
static char *trimmed(const struct heft_ref *ref)
{
    size_t path, from;
    char *url;

    if (asprintf(&url, "%s%s", scheme_of(ref), ref->name) < 0)
        return NULL;
    path = from = ref->kind == HEFT_REF_HTTP ? strcspn(url, "?#") : strlen(url);
    while (path > 0 && url[path - 1] == '/')
        path--;
    memmove(url + path, url + from, strlen(url + from) + 1);
    return url;
}

char *heft_remote_name(const struct heft_ref *ref)
{
    char *url, *shown;

    if (ref->kind == HEFT_REF_HUB)
        return strdup(ref->name);
    url = trimmed(ref);
    shown = url ? heft_object_shown(url) : NULL;
    free(url);
    return shown;
}

/* The last part of a path that names one file, or NULL. */
static const char *file_of(const char *shown)
{
    const char *slash = strrchr(shown, '/');

    return slash && slash > shown && slash[-1] != '/' && heft_shard_ending(slash + 1) ? slash + 1 : NULL;
}

/* ---- which files ---- */

static int fetch_whole(struct remote *remote, const char *name, uint64_t limit_bytes,
                       struct heft_buf *data_out, struct heft_error *error)
{
    struct heft_object_fetch fetch = {.whole = 1, .limit_bytes = limit_bytes};
    char *url = heft_object_join(remote->base, name);
    int rc;

    if (!url)
        return no_memory(error);
    fetch.url = url;
    rc = heft_object_fetch_all(&remote->client, &fetch, 1, error);
    if (!rc && fetch.status) {
        rc = fetch.status;
        if (error)
            *error = fetch.error;
    }
    free(url);
    if (rc) {
        heft_buf_free(&fetch.data);
        return rc;
    }
    *data_out = fetch.data;
    return HEFT_OK;
}

static int read_index(struct remote *remote, const char *name, struct heft_error *error)
{
    struct heft_buf json = {0};
    int rc = fetch_whole(remote, name, HEFT_INDEX_MAX_BYTES, &json, error);

    if (rc)
        return rc;
    rc = heft_index_parse(json.data, json.size, &remote->listing.index, error);
    heft_buf_free(&json);
    return rc ? heft_error_prefix(error, rc, "%s/%s", remote->model, name) : HEFT_OK;
}

/* Shards that the index names and the listing can't show; reading their headers tells whether they exist. */
static int add_named_shards(struct remote *remote, int nested_only, struct heft_error *error)
{
    const struct heft_shard_index *index = remote->listing.index;
    uint32_t shard;
    int rc = HEFT_OK;

    for (shard = 0; !rc && shard < index->shard_count; shard++)
        if (!nested_only || strchr(index->shards[shard], '/'))
            rc = heft_listing_add(&remote->listing, index->shards[shard], HEFT_ENTRY_FILE, 0, error);
    return rc;
}

/* The index among the files that are there, and the shards in folders that it names. */
static int use_listed_index(struct remote *remote, int ignore_index, struct heft_error *error)
{
    struct heft_error why = HEFT_ERROR_INIT;
    const char *name = NULL;
    int rc = heft_listing_find_index(&remote->listing, &name, &why);

    if (!rc && name)
        rc = read_index(remote, name, &why);
    if (rc && ignore_index && (rc == HEFT_ERR_AMBIGUOUS || heft_error_is_model(rc))) {
        heft_log(HEFT_LOG_WARN, "%s: index ignored: %s", remote->model, why.text);
        return HEFT_OK;
    }
    if (rc && error)
        *error = why;
    return rc || !name ? rc : add_named_shards(remote, 1, error);
}

/* A bucket or a container: only the folder's own files, nothing deeper. */
static int list_bucket(struct remote *remote, int ignore_index, struct heft_error *error)
{
    struct heft_s3_page page = {0};
    const char *after = strstr(remote->base, "://") + 3;
    int is_whole = !strchr(after, '/') && !heft_object_is_web(remote->base);
    char *folder = is_whole ? strdup(remote->base) : heft_object_join(remote->base, "");
    size_t index;
    int rc;

    if (!folder)
        return no_memory(error);
    rc = heft_object_list(&remote->client, folder, remote->as_files, MAX_OBJECTS, &page, error);
    free(folder);
    for (index = 0; !rc && index < page.entry_count; index++)
        rc = heft_listing_add(&remote->listing, page.entries[index].key, HEFT_ENTRY_FILE,
                              page.entries[index].size_bytes, error);
    heft_s3_page_free(&page);
    if (!rc && remote->listing.count == 0)
        rc = heft_error_set(error, HEFT_ERR_NOT_FOUND, "%s: no objects lie there", remote->model);
    return rc || remote->as_files ? rc : use_listed_index(remote, ignore_index, error);
}

static int by_key(const void *left, const void *right)
{
    return strcmp(((const struct heft_s3_entry *)left)->key, ((const struct heft_s3_entry *)right)->key);
}

static int use_commit(struct remote *remote, const struct heft_ref *ref, const char *commit,
                      struct heft_error *error)
{
    free(remote->base);
    if (asprintf(&remote->base, "hf://%s@%s", ref->name, commit) >= 0)
        return HEFT_OK;
    remote->base = NULL;
    return no_memory(error);
}

/* The hub: a revision is pinned to its commit first, and everything is asked of that. */
static int list_hub(struct remote *remote, const struct heft_ref *ref, int ignore_index,
                    struct heft_error *error)
{
    const char *revision = remote->revision ? remote->revision : ref->revision[0] ? ref->revision : "main";
    struct heft_s3_page *files = &remote->files;
    size_t index;
    int rc = heft_object_hub_list(&remote->client, ref->name, revision, remote->commit, files, error);

    if (rc)
        return rc;
    remote->revision = remote->commit;
    rc = use_commit(remote, ref, remote->commit, error);
    if (rc)
        return rc;
    if (files->entry_count > 0)
        qsort(files->entries, files->entry_count, sizeof(*files->entries), by_key);
    for (index = 0; !rc && index < files->entry_count; index++)
        if (remote->as_files || !strchr(files->entries[index].key, '/'))
            rc = heft_listing_add(&remote->listing, files->entries[index].key, HEFT_ENTRY_FILE,
                                  files->entries[index].size_bytes, error);
    return rc || remote->as_files ? rc : use_listed_index(remote, ignore_index, error);
}

static int is_listed(const struct heft_listing *listing, const char *name)
{
    size_t index = 0;

    while (index < listing->count && strcmp(listing->entries[index].name, name) != 0)
        index++;
    return index < listing->count;
}

/* Those of the usual files that a server has. */
static int add_usual(struct remote *remote, struct heft_error *error)
{
    struct heft_object_fetch fetches[USUAL_NAMES] = {0};
    char *urls[USUAL_NAMES] = {0};
    size_t index;
    int rc = HEFT_OK;

    for (index = 0; !rc && index < USUAL_NAMES; index++) {
        urls[index] = heft_object_join(remote->base, usual_names[index]);
        rc = urls[index] ? HEFT_OK : no_memory(error);
        fetches[index] = (struct heft_object_fetch){.url = urls[index], .bytes = 1};
    }
    if (!rc)
        rc = heft_object_fetch_all(&remote->client, fetches, USUAL_NAMES, error);
    for (index = 0; index < USUAL_NAMES; index++) {
        if (!rc && fetches[index].status && fetches[index].status != HEFT_ERR_NOT_FOUND) {
            rc = fetches[index].status;
            *error = fetches[index].error;
        }
        if (!rc && !fetches[index].status && !is_listed(&remote->listing, usual_names[index]))
            rc = heft_listing_add(&remote->listing, usual_names[index], HEFT_ENTRY_FILE, 0, error);
        heft_buf_free(&fetches[index].data);
        free(urls[index]);
    }
    if (!rc && remote->listing.count == 0)
        rc = heft_error_set(error, HEFT_ERR_NOT_FOUND,
                            "%s: the server lists nothing, and has no file of the names that models have",
                            remote->model);
    return rc;
}

/* A web server lists nothing: the index is asked for, else the one name that a model without one has. */
static int probe_server(struct remote *remote, struct heft_error *error)
{
    int rc = read_index(remote, index_name, error);

    if (rc == HEFT_ERR_NOT_FOUND)
        return remote->as_files
                   ? add_usual(remote, error)
                   : heft_listing_add(&remote->listing, "model.safetensors", HEFT_ENTRY_FILE, 0, error);
    if (!rc)
        rc = heft_listing_add(&remote->listing, index_name, HEFT_ENTRY_FILE, 0, error);
    if (!rc)
        rc = add_named_shards(remote, 0, error);
    return rc || !remote->as_files ? rc : add_usual(remote, error);
}

static int choose_files(struct remote *remote, const struct heft_ref *ref, int ignore_index,
                        struct heft_error *error)
{
    struct heft_listing *listing = &remote->listing;
    int rc;

    listing->index_ignored = ignore_index;
    switch (heft_object_service_of(remote->base)) {
    case HEFT_OBJECT_HUB:
        rc = list_hub(remote, ref, ignore_index, error);
        break;
    case HEFT_OBJECT_WEB:
        rc = probe_server(remote, error);
        break;
    default:
        rc = list_bucket(remote, ignore_index, error);
        break;
    }
    if (!rc && remote->as_files)
        heft_listing_sort(listing);
    if (rc || remote->as_files)
        return rc;
    rc = ignore_index
             ? heft_dir_choose_present(listing->entries, listing->count, listing->index, &listing->choice,
                                       error)
             : heft_dir_choose(listing->entries, listing->count, listing->index, &listing->choice, error);
    if (rc)
        return heft_error_prefix(error, rc, "%s", remote->model);
    if (listing->choice->note[0])
        heft_log(HEFT_LOG_INFO, "%s: %s", remote->model, listing->choice->note);
    return HEFT_OK;
}

/* ---- headers ---- */

static void note_revision(struct remote *remote, const char *name, const struct heft_object_fetch *fetch)
{
    heft_buf_string(&remote->revision_text, name, strlen(name));
    heft_buf_string(&remote->revision_text, fetch->found_version, strlen(fetch->found_version));
    heft_buf_u64(&remote->revision_text, fetch->object_bytes);
    if (!fetch->found_version[0] && fetch->object_bytes > 0)
        heft_log(HEFT_LOG_WARN,
                 "%s/%s: the server gives neither ETag nor Last-Modified: a change while it is read may be "
                 "missed, and revisions of equal size are not told apart",
                 remote->model, name);
}

/* More of the long headers of a batch, all at once, at the versions that the first reads found. */
static int fetch_rest(struct remote *remote, struct heft_object_fetch *fetches, const uint64_t *ends,
                      size_t count, struct heft_error *error)
{
    struct heft_object_fetch rest[BATCH];
    size_t of[BATCH], index, more = 0;
    int rc;

    for (index = 0; index < count; index++) {
        if (ends[index] <= fetches[index].data.size)
            continue;
        of[more] = index;
        rest[more++] = (struct heft_object_fetch){.url = fetches[index].url,
                                                  .version = fetches[index].found_version,
                                                  .offset = fetches[index].data.size,
                                                  .bytes = ends[index] - fetches[index].data.size};
    }
    if (more == 0)
        return HEFT_OK;
    rc = heft_object_fetch_all(&remote->client, rest, more, error);
    for (index = 0; index < more; index++) {
        struct heft_object_fetch *fetch = &fetches[of[index]];

        if (!rc && rest[index].status) {
            rc = rest[index].status;
            if (error)
                *error = rest[index].error;
        }
        if (!rc && rest[index].data.size != rest[index].bytes)
            rc = heft_error_set(error, HEFT_ERR_CHANGED, "%s: became shorter while its header was read",
                                remote->opened->paths[remote->opened->file_count + of[index]]);
        fetch->data.limit = SIZE_MAX;
        if (!rc)
            heft_buf_bytes(&fetch->data, rest[index].data.data, rest[index].data.size);
        if (!rc && fetch->data.failed)
            rc = no_memory(error);
        heft_buf_free(&rest[index].data);
    }
    return rc;
}

/* A web server lists nothing: pickle checkpoints are asked for by name, to refuse them as in a folder. */
static int no_weights(struct remote *remote, const char *name, struct heft_error *error)
{
    static const char *const pickles[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    struct heft_object_fetch fetch = {.bytes = 1};
    struct heft_dir_entry entry = {.name = pickles[0], .kind = HEFT_ENTRY_FILE};
    struct heft_dir_choice *choice = NULL;
    size_t index;
    int found = 0, rc;

    for (index = 0; !found && index < sizeof(pickles) / sizeof(pickles[0]); index++) {
        char *url = heft_object_join(remote->base, pickles[index]);

        if (!url)
            return no_memory(error);
        fetch.url = url;
        found = !heft_object_fetch_all(&remote->client, &fetch, 1, NULL) && !fetch.status;
        heft_buf_free(&fetch.data);
        free(url);
    }
    if (!found)
        return heft_error_set(error, HEFT_ERR_NOT_FOUND,
                              "%s: neither %s nor %s is there; name the file itself if it has another name",
                              remote->model, index_name, name);
    rc = heft_dir_choose(&entry, 1, NULL, &choice, error);
    HEFT_ASSERT(rc != HEFT_OK);
    return heft_error_prefix(error, rc, "%s", remote->model);
}

static int missing(struct remote *remote, const char *name, const struct heft_object_fetch *fetch,
                   struct heft_error *error)
{
    if (fetch->status != HEFT_ERR_NOT_FOUND || remote->single) {
        if (error)
            *error = fetch->error;
        return fetch->status;
    }
    if (remote->listing.index)
        return heft_error_set(error, HEFT_ERR_SHARD_MISSING,
                              "%s: the index names %s, which is not there: %.200s", remote->model, name,
                              fetch->error.text);
    return no_weights(remote, name, error);
}

/* What a load compares the whole object with; its header is not read again for that. */
static int note_seen(struct remote *remote, uint32_t at, const struct heft_object_fetch *fetch,
                     struct heft_error *error)
{
    struct heft_object_seen *seen = &remote->opened->seen[at];
    enum heft_object_service service = heft_object_service_of(fetch->url);
    const struct heft_st_header *header = remote->shards[at].header;
    uint64_t bytes = header ? 8 + header->header_bytes : 0;

    seen->checksum = fetch->checksum;
    seen->may_tell = fetch->checksum.kind == HEFT_CHECKSUM_NONE && heft_object_may_tell_checksum(service);
    bytes = bytes < fetch->data.size ? bytes : fetch->data.size;
    if ((seen->checksum.kind == HEFT_CHECKSUM_NONE && !seen->may_tell) ||
        bytes > HEFT_HEADS_MAX_BYTES - remote->heads_bytes)
        return HEFT_OK;
    seen->head = malloc(bytes ? bytes : 1);
    if (!seen->head)
        return no_memory(error);
    if (bytes)
        memcpy(seen->head, fetch->data.data, bytes);
    seen->head_bytes = bytes;
    remote->heads_bytes += bytes;
    return HEFT_OK;
}

static int note_file(struct remote *remote, const char *name, uint32_t at,
                     const struct heft_object_fetch *fetch, struct heft_error *error)
{
    struct heft_opened *opened = remote->opened;

    remote->shards[at].name = name;
    remote->shards[at].size_bytes = fetch->object_bytes;
    opened->versions[at] = strdup(fetch->found_version);
    if (!opened->versions[at])
        return no_memory(error);
    note_revision(remote, name, fetch);
    if (remote->shards[at].header)
        heft_open_warn(opened->paths[at], remote->shards[at].header);
    return note_seen(remote, at, fetch, error);
}

/* Parses the headers of a batch that are not parsed yet. ends[i] past what was fetched: so far one more
 * reaches. */
static int parse_headers(struct remote *remote, uint32_t first, uint32_t count,
                         const struct heft_object_fetch *fetches, uint64_t *ends, int *more_out,
                         struct heft_error *error)
{
    uint32_t index;

    *more_out = 0;
    if (remote->as_files)
        return HEFT_OK;
    for (index = 0; index < count; index++) {
        const struct heft_object_fetch *fetch = &fetches[index];
        struct heft_st_header *header = NULL;
        int rc;

        if (remote->shards[first + index].header)
            continue;
        rc = heft_header_parse(fetch->data.data, fetch->data.size, fetch->object_bytes, &remote->limits,
                               &header, &ends[index], error);
        if (rc && rc != HEFT_ERR_AGAIN)
            return heft_error_prefix(error, rc, "%s", remote->opened->paths[first + index]);
        remote->shards[first + index].header = header;
        *more_out |= rc == HEFT_ERR_AGAIN;
    }
    return HEFT_OK;
}

/* What the hub's listing says that a file is. */
static void expect_of_hub(const struct remote *remote, const char *name, struct heft_object_fetch *fetch)
{
    const struct heft_s3_entry key = {.key = (char *)(uintptr_t)name};
    const struct heft_s3_entry *found =
        remote->files.entry_count
            ? bsearch(&key, remote->files.entries, remote->files.entry_count, sizeof(key), by_key)
            : NULL;

    if (!found)
        return;
    fetch->version = found->etag;
    fetch->object_bytes = found->size_bytes;
}

/* Names, URLs and fetches of a batch that begins at file `first`. */
static int prepare_batch(struct remote *remote, const char *const *names, uint32_t first, uint32_t count,
                         struct heft_object_fetch *fetches, struct heft_error *error)
{
    struct heft_opened *opened = remote->opened;
    uint32_t index;
    int rc;

    for (index = 0; index < count; index++) {
        const char *name = names[first + index];
        uint32_t at = first + index;

        rc = heft_path_check(name, strlen(name), error);
        if (rc)
            return heft_error_prefix(error, rc, "%s", remote->model);
        opened->urls[at] = remote->single ? strdup(remote->base) : heft_object_join(remote->base, name);
        opened->paths[at] = opened->urls[at] ? heft_object_shown(opened->urls[at]) : NULL;
        if (!opened->paths[at])
            return no_memory(error);
        fetches[index] =
            (struct heft_object_fetch){.url = opened->urls[at], .bytes = remote->as_files ? 1 : PREFIX_BYTES};
        expect_of_hub(remote, name, &fetches[index]);
    }
    return HEFT_OK;
}

static int read_batch(struct remote *remote, const char *const *names, uint32_t first, uint32_t count,
                      struct heft_error *error)
{
    struct heft_object_fetch fetches[BATCH] = {0};
    uint64_t ends[BATCH] = {0};
    uint32_t index;
    int more = 1, rc = prepare_batch(remote, names, first, count, fetches, error);

    if (rc)
        return rc;
    rc = heft_object_fetch_all(&remote->client, fetches, count, error);
    for (index = 0; !rc && index < count; index++)
        if (fetches[index].status)
            rc = missing(remote, names[first + index], &fetches[index], error);
    remote->opened->file_count = first;
    while (!rc && more) {
        rc = parse_headers(remote, first, count, fetches, ends, &more, error);
        if (!rc && more)
            rc = fetch_rest(remote, fetches, ends, count, error);
    }
    for (index = 0; !rc && index < count; index++)
        rc = note_file(remote, names[first + index], first + index, &fetches[index], error);
    for (index = 0; index < count; index++)
        heft_buf_free(&fetches[index].data);
    return rc;
}

/* ---- the manifest ---- */

static int build_manifest(struct remote *remote, struct heft_error *error)
{
    const struct heft_listing *listing = &remote->listing;
    const struct heft_shard_index *index = listing->index_ignored ? NULL : listing->index;
    struct heft_identity identity = {.model = remote->model, .revision = remote->revision, .stage = "raw"};
    char revision[5 + REVISION_HASH_BYTES * 2 + 1];
    uint8_t digest[HEFT_SHA256_BYTES];
    uint64_t ignored = 0;
    size_t at;
    int rc;

    if (remote->revision_text.failed)
        return no_memory(error);
    heft_sha256(remote->revision_text.data, remote->revision_text.size, digest);
    memcpy(revision, "etag-", 6);
    for (at = 0; at < REVISION_HASH_BYTES; at++)
        (void)snprintf(revision + 5 + at * 2, 3, "%02x", digest[at]);
    if (!identity.revision)
        identity.revision = revision;
    if (remote->as_files) {
        identity.stage = HEFT_FILES_STAGE;
        rc = heft_dir_files_manifest(remote->shards, remote->opened->file_count, &identity,
                                     &remote->opened->manifest, error);
        return rc ? heft_error_prefix(error, rc, "%s", remote->model) : HEFT_OK;
    }
    rc = heft_dir_manifest(remote->shards, remote->opened->file_count, index, &identity,
                           &remote->opened->manifest, &ignored, error);
    if (!rc && listing->index_ignored && listing->index)
        rc = heft_index_covered(listing->index, remote->opened->manifest, error);
    if (rc)
        return heft_error_prefix(error, rc, "%s", remote->model);
    if (ignored)
        heft_log(HEFT_LOG_INFO,
                 "%s: %" PRIu64 " tensors ignored: the index gives them to other shards, or to none",
                 remote->model, ignored);
    return HEFT_OK;
}

static int make_opened(struct remote *remote, uint32_t count, struct heft_error *error)
{
    struct heft_opened *opened = calloc(1, sizeof(*opened));

    if (!opened)
        return no_memory(error);
    remote->opened = opened;
    opened->capacity = count;
    opened->paths = calloc((size_t)count + 1, sizeof(*opened->paths));
    opened->urls = calloc((size_t)count + 1, sizeof(*opened->urls));
    opened->versions = calloc((size_t)count + 1, sizeof(*opened->versions));
    opened->seen = calloc((size_t)count + 1, sizeof(*opened->seen));
    remote->shards = calloc((size_t)count + 1, sizeof(*remote->shards));
    return opened->paths && opened->urls && opened->versions && opened->seen && remote->shards
               ? HEFT_OK
               : no_memory(error);
}

static int open_files(struct remote *remote, struct heft_error *error)
{
    const struct heft_dir_choice *choice = remote->listing.choice;
    const char *single = remote->single, **all = NULL;
    const char *const *names = single ? &single : choice ? choice->files : NULL;
    uint32_t first, count = single ? 1 : choice ? choice->file_count : 0;
    int rc = HEFT_OK;

    if (!names) { /* every file */
        rc = heft_listing_names(&remote->listing, &all, &count, error);
        names = all;
    }
    if (!rc)
        rc = make_opened(remote, count, error);
    for (first = 0; !rc && first < count; first += BATCH)
        rc = read_batch(remote, names, first, count - first < BATCH ? count - first : BATCH, error);
    if (!rc) {
        remote->opened->file_count = count;
        rc = build_manifest(remote, error);
    }
    for (first = 0; remote->shards && first < count; first++)
        heft_st_free((struct heft_st_header *)(uintptr_t)remote->shards[first].header);
    free(remote->shards);
    free(all);
    return rc;
}

static int find_base(struct remote *remote, const struct heft_ref *ref, struct heft_error *error)
{
    const char *single, *last;

    remote->base = trimmed(ref);
    remote->model = heft_remote_name(ref);
    if (!remote->base)
        return no_memory(error);
    if (!remote->model)
        return no_memory(error);
    last = strrchr(remote->model, '/');
    if (!remote->as_files && heft_pickle_name(last ? last + 1 : remote->model))
        return heft_error_set(
            error, HEFT_ERR_PICKLE,
            "%s: a pickle checkpoint, which executes code when loaded; convert it to safetensors",
            remote->model);
    single = ref->kind == HEFT_REF_HUB ? NULL : file_of(remote->model);
    if (single)
        remote->single = strdup(single);
    return single && !remote->single ? no_memory(error) : HEFT_OK;
}

/* Whatever it returns, remote_close follows. */
static int remote_open(struct remote *remote, const struct heft_ref *ref, uint64_t end_ns,
                       const uint32_t *cancel, struct heft_error *error)
{
    int rc = heft_object_client_init(&remote->client, error);

    remote->client.end_ns = end_ns;
    remote->client.cancel = cancel;
    heft_buf_init(&remote->revision_text, SIZE_MAX);
    return rc ? rc : find_base(remote, ref, error);
}

static void remote_close(struct remote *remote)
{
    heft_buf_free(&remote->revision_text);
    heft_listing_free(&remote->listing);
    heft_s3_page_free(&remote->files);
    heft_object_client_free(&remote->client);
    free(remote->base);
    free(remote->model);
    free(remote->single);
}

int heft_open_remote(const struct heft_ref *ref, const struct heft_model_options *options, uint64_t end_ns,
                     const uint32_t *cancel, struct heft_opened **opened_out, struct heft_error *error)
{
    struct heft_error local = HEFT_ERROR_INIT;
    struct remote remote = {0};
    int rc;

    if (!error)
        error = &local;
    remote.as_files = options && options->as_files;
    rc = remote_open(&remote, ref, end_ns, cancel, error);
    if (options) {
        remote.limits.header_limit_bytes = options->header_limit_bytes;
        remote.limits.flags = options->lenient ? HEFT_ST_UNKNOWN_DTYPES | HEFT_ST_TRAILING_DATA : 0;
        remote.revision = options->revision && options->revision[0] ? options->revision : NULL;
    }
    if (!rc && !remote.single)
        rc = choose_files(&remote, ref, options ? options->ignore_index : 0, error);
    if (!rc)
        rc = open_files(&remote, error);
    remote_close(&remote);
    if (rc) {
        heft_opened_free(remote.opened);
        return rc;
    }
    *opened_out = remote.opened;
    return HEFT_OK;
}

int heft_remote_config(const struct heft_ref *ref, const char *commit, uint64_t end_ns,
                       const uint32_t *cancel, char **text_out, size_t *size_out, struct heft_error *error)
{
    struct heft_error local = HEFT_ERROR_INIT;
    struct remote remote = {0};
    struct heft_buf data = {0};
    int rc;

    if (!error)
        error = &local;
    *text_out = NULL;
    *size_out = 0;
    rc = remote_open(&remote, ref, end_ns, cancel, error);
    if (!rc && ref->kind == HEFT_REF_HUB)
        rc = use_commit(&remote, ref, commit ? commit : "main", error);
    if (!rc && !remote.single) /* a single file is a model without a folder */
        rc = fetch_whole(&remote, "config.json", HEFT_RULES_MAX_BYTES, &data, error);
    if (rc == HEFT_ERR_NOT_FOUND)
        rc = HEFT_OK;
    if (!rc && data.size > 0) {
        *text_out = strndup((const char *)data.data, data.size);
        *size_out = *text_out ? strlen(*text_out) : 0;
    }
    heft_buf_free(&data);
    remote_close(&remote);
    return rc;
}
