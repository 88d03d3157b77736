/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Candidates are gathered first (files, records, named peers), then replicas are connected side by side: one
 * that does not answer costs a short grace, not its whole timeout, as soon as another source is ready. A
 * connection that comes too late is dropped: it is given up, and its thread joined, when the load is freed.
 */
#include "load/sources.h"
#include "agent/peer.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "format/modeldir.h"
#include "load/load.h"
#include "load/open_place.h"
#include "load/remote_model.h"
#include "plan/rules.h"
#include "transport/object/object.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_CREDITS 64u
#define PEER_CREDITS 8u
#define SHARE_CREDITS 8u
#define OBJECT_CREDITS 64u /* as many ranges as the object transport may have in flight */
#define CONNECT_TIMEOUT_MS 3000u
#define CONNECT_GRACE_MS 400u
#define MAX_CANDIDATES (HEFT_PLAN_MAX_SOURCES / 2)

struct candidate {
    struct hunt *hunt;
    struct heft_source *source;
    struct heft_load_peer where;
    uint64_t table_digest; /* from the record; 0: not known */
    pthread_t thread;
    int started, done; /* done: under the hunt's lock */
    int taken;         /* its outcome was used */
    /* The thread's outcome, moved to the source when taken. */
    struct heft_peer *peer;
    struct heft_manifest *manifest;
    struct heft_text_blob config;
    struct heft_error error;
};

struct hunt { /* one search; shared with the connecting threads */
    struct heft_agent *agent;
    uint32_t over; /* atomic: connections that are still being made are given up */
    /* What a replica must hold: constant while threads run. */
    const struct heft_manifest *reference; /* the files', NULL: none */
    const struct heft_identity *wanted;
    int exact;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct candidate *candidates;
    uint32_t count, left_out; /* left_out: found no place */
    uint64_t took_ns;         /* how long was waited for answers */
};

/* What heft_found owns beyond the public part. */
struct found_all {
    struct heft_found found;
    struct hunt hunt;
    struct heft_record_list records;
    struct heft_identity wanted; /* what is known of it: model "" when nothing is */
    int exact;                   /* every field of wanted was given by the caller */
    struct heft_identity_pair pairs[HEFT_IDENTITY_MAX_PAIRS];
    char name[512], revision[256];
};

int heft_sources_parse(const char *text, struct heft_source_kinds *kinds_out, struct heft_error *error)
{
    static const char known[] = "use auto, file, peer, object, or several joined by '+'";
    struct heft_source_kinds kinds = {0};
    const char *at = text ? text : "auto";

    while (*at) {
        size_t size = strcspn(at, "+");

        if (size == 4 && strncmp(at, "auto", 4) == 0)
            kinds = (struct heft_source_kinds){1, 1, 1};
        else if (size == 4 && strncmp(at, "file", 4) == 0)
            kinds.files = 1;
        else if (size == 4 && strncmp(at, "peer", 4) == 0)
            kinds.peers = 1;
        else if (size == 6 && strncmp(at, "object", 6) == 0)
            kinds.objects = 1;
        else if (size == 3 && strncmp(at, "gds", 3) == 0)
            return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                                  "source '%.*s' is not supported by this build; %s", (int)size, at, known);
        else
            return heft_error_set(error, HEFT_ERR_INVALID, "unknown source '%.*s': %s", (int)size, at, known);
        at += size;
        if (*at == '+' && *++at == 0)
            return heft_error_set(error, HEFT_ERR_INVALID, "source '%s' ends with '+'", text);
    }
    if (!kinds.files && !kinds.peers && !kinds.objects)
        return heft_error_set(error, HEFT_ERR_INVALID, "the source is empty: %s", known);
    *kinds_out = kinds;
    return HEFT_OK;
}

static struct heft_source *add_source(struct heft_found *found, enum heft_source_kind kind, const char *name)
{
    struct heft_source *source = calloc(1, sizeof(*source));
    struct heft_source **grown;

    if (!source)
        return NULL;
    grown = realloc(found->sources, (found->count + 1) * sizeof(struct heft_source *));
    if (!grown) {
        free(source);
        return NULL;
    }
    found->sources = grown;
    found->sources[found->count++] = source;
    source->kind = kind;
    source->state = HEFT_SOURCE_REFUSED;
    source->credits = kind == HEFT_SOURCE_FILES     ? FILE_CREDITS
                      : kind == HEFT_SOURCE_OBJECTS ? OBJECT_CREDITS
                      : kind == HEFT_SOURCE_SHARE   ? SHARE_CREDITS
                                                    : PEER_CREDITS;
    (void)snprintf(source->name, sizeof(source->name), "%s", name);
    return source;
}

static void refuse(struct heft_source *source, const struct heft_error *error)
{
    source->state = HEFT_SOURCE_REFUSED;
    source->reason = *error;
    heft_log(HEFT_LOG_INFO, "source %s refused: %s: %s", source->name, heft_error_name(error->code),
             error->text);
}

/* ---- files ---- */

static int register_files(struct heft_found *found, struct heft_agent *agent, struct heft_opened *opened,
                          struct heft_source *source, struct heft_error *error)
{
    uint32_t count = opened->manifest->file_count, index;
    uint64_t *regions = calloc(count ? count : 1, sizeof(*regions));

    struct heft_region **grown = realloc(found->file_regions, ((size_t)found->file_region_count + count + 1) *
                                                                  sizeof(struct heft_region *));

    if (grown)
        found->file_regions = grown;
    source->regions = regions;
    source->opened = opened;
    if (!regions || !grown)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "registering %u files", count);
    for (index = 0; index < count; index++) {
        struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
        int rc;

        if (opened->urls && opened->manifest->files[index].size_bytes == 0)
            continue; /* nothing will be read of it, and ranges of nothing tell no version */
        if (opened->urls) {
            options.space = HEFT_SPACE_OBJECT;
            options.path = opened->urls[index];
            options.version = opened->versions[index];
        } else {
            options.space = HEFT_SPACE_FILE;
            options.fd = opened->fds[index];
            options.path = opened->paths[index]; /* for messages: the descriptor decides */
        }
        options.length_bytes = opened->manifest->files[index].size_bytes;
        rc = heft_region_register(agent, &options, &found->file_regions[found->file_region_count], error);
        if (rc)
            return heft_error_prefix(error, rc, "%s", opened->paths[index]);
        regions[index] = heft_region_id(found->file_regions[found->file_region_count++]);
    }
    return HEFT_OK;
}

/* Of this machine, or behind the reference's URL. */
static int find_files(const struct heft_load_options *options, struct found_all *all, int remote,
                      uint64_t end_ns, const uint32_t *cancel, struct heft_error *error)
{
    struct heft_found *found = &all->found;
    struct heft_model_options of_config = options->model_options;
    struct heft_source *source;
    int rc = heft_open_model_within(options->model, &options->model_options, end_ns, cancel, &found->opened,
                                    error);

    if (rc == HEFT_ERR_CANCELED)
        return rc;
    source =
        add_source(found, remote ? HEFT_SOURCE_OBJECTS : HEFT_SOURCE_FILES, remote ? "objects" : "files");
    if (!source)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "opening the model's files");
    if (rc == 0) {
        (void)snprintf(source->why, sizeof(source->why), "%u %s%s %s", found->opened->manifest->file_count,
                       remote ? "object" : "file", found->opened->manifest->file_count == 1 ? "" : "s",
                       remote ? "behind the URL" : "on this machine");
        source->manifest = found->opened->manifest;
        rc = register_files(found, all->hunt.agent, found->opened, source, error);
    }
    if (rc == 0 && remote) /* beside the files that were opened, at their commit */
        of_config.revision = found->opened->manifest->identity.revision;
    /* A store is asked for it only when the layout depends on it. */
    if (rc == 0 && !of_config.as_files && (!remote || options->ranks > 1 || heft_load_wants_rules(options)))
        rc = heft_open_config(options->model, &of_config, end_ns, cancel, &found->config.data,
                              &found->config.size, error);
    if (rc) {
        refuse(source, error);
        return HEFT_OK;
    }
    source->state = HEFT_SOURCE_READY;
    return HEFT_OK;
}

/* ---- replicas ---- */

static int compare_with_hub_name(const struct heft_identity *wanted, const struct heft_manifest *manifest,
                                 struct heft_error *error)
{
    if (wanted->model[0] && strcmp(wanted->model, manifest->identity.model) != 0)
        return heft_error_set(error, HEFT_ERR_INCOMPATIBLE, "it holds model %s, not %s",
                              manifest->identity.model, wanted->model);
    if ((strcmp(wanted->stage, HEFT_FILES_STAGE) == 0) !=
        (strcmp(manifest->identity.stage, HEFT_FILES_STAGE) == 0))
        return heft_error_set(error, HEFT_ERR_INCOMPATIBLE, "it holds the stage %s of %s, not %s",
                              manifest->identity.stage, manifest->identity.model, wanted->stage);
    if (wanted->revision[0] && strcmp(wanted->revision, manifest->identity.revision) != 0)
        return heft_error_set(error, HEFT_ERR_INCOMPATIBLE, "it holds revision %s of %s, not %s",
                              manifest->identity.revision, wanted->model, wanted->revision);
    return HEFT_OK;
}

/* Whether the replica holds what is wanted, as far as that is known before any replica was taken. */
static int check_candidate(const struct hunt *hunt, const struct heft_manifest *manifest,
                           struct heft_error *error)
{
    if (hunt->reference)
        return heft_manifest_compare(hunt->reference, manifest, error);
    return hunt->exact ? heft_identity_compare(hunt->wanted, &manifest->identity, error)
                       : compare_with_hub_name(hunt->wanted, manifest, error);
}

static void *connect_thread(void *argument)
{
    struct candidate *candidate = argument;
    struct hunt *hunt = candidate->hunt;
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_peer *peer = NULL;
    struct heft_manifest *manifest = NULL;
    void *bytes = NULL, *config = NULL;
    uint64_t size = 0, config_size = 0;
    int rc;

    options.addresses = candidate->where.addresses;
    options.name = candidate->where.name;
    options.generation = candidate->where.generation;
    options.token = candidate->where.token;
    options.connect_timeout_ms = CONNECT_TIMEOUT_MS;
    rc = heft_peer_connect_or_cancel(hunt->agent, &options, &hunt->over, &peer, &error);
    if (!rc)
        rc = heft_peer_read_document_or_cancel(peer, "manifest", HEFT_MANIFEST_MAX_BYTES,
                                               CONNECT_TIMEOUT_MS * 4, &hunt->over, &bytes, &size, &error);
    if (!rc)
        rc = heft_manifest_decode(bytes, size, &manifest, &error);
    heft_free(bytes);
    if (!rc)
        rc = check_candidate(hunt, manifest, &error);
    /* Files bring their own; many replicas have none. */
    if (!rc && !hunt->reference)
        (void)heft_peer_read_document_or_cancel(peer, "config", HEFT_RULES_MAX_BYTES, CONNECT_TIMEOUT_MS,
                                                &hunt->over, &config, &config_size, NULL);

    (void)pthread_mutex_lock(&hunt->lock);
    candidate->peer = peer;
    candidate->manifest = manifest;
    candidate->config = (struct heft_text_blob){config, (size_t)config_size};
    candidate->error = error;
    candidate->error.code = rc;
    candidate->done = 1;
    (void)pthread_cond_broadcast(&hunt->changed);
    (void)pthread_mutex_unlock(&hunt->lock);
    return NULL;
}

static int same_generation(const struct heft_generation *left, const struct heft_generation *right)
{
    return memcmp(left->bytes, right->bytes, sizeof(left->bytes)) == 0;
}

static struct candidate *add_candidate(struct found_all *all, const char *name, const char *why,
                                       const struct heft_load_peer *where)
{
    struct candidate *candidate;
    struct heft_source *source;

    if (all->hunt.count == MAX_CANDIDATES) {
        all->hunt.left_out++;
        return NULL;
    }
    source = add_source(&all->found, HEFT_SOURCE_PEER, name);
    if (!source)
        return NULL;
    candidate = &all->hunt.candidates[all->hunt.count++];
    candidate->hunt = &all->hunt;
    candidate->source = source;
    candidate->where = *where;
    (void)snprintf(source->why, sizeof(source->why), "%s", why);
    (void)snprintf(source->addresses, sizeof(source->addresses), "%s",
                   where->addresses ? where->addresses : "");
    return candidate;
}

static int is_self(const struct heft_load_options *options, struct heft_agent *agent,
                   const struct heft_record *record)
{
    struct heft_generation own = heft_agent_generation(agent);

    return same_generation(&own, &record->generation) ||
           (options->self && record->name && strcmp(options->self, record->name) == 0);
}

/* The records that may hold the wanted model. More than one revision and none asked for is refused, not
 * guessed. */
static int ask_directory(const struct heft_load_options *options, struct found_all *all,
                         const struct heft_identity *wanted, struct heft_error *error)
{
    struct heft_record_query query = {
        .model = wanted->model, .revision = wanted->revision, .stage = wanted->stage};
    const char *revision = NULL;
    size_t index;
    int rc;

    if (!query.revision || query.revision[0] == 0)
        query.revision = NULL;
    rc = options->directory->ops->list(options->directory, &query, &all->records, error);
    if (rc) {
        const char *address = options->directory->address;

        if (strncmp(address, "file:", 5) == 0)
            address += 5;
        return strstr(error->text, address)
                   ? rc
                   : heft_error_prefix(error, rc, "asking the directory %s", options->directory->address);
    }
    for (index = 0; index < all->records.count; index++) {
        const struct heft_record *record = &all->records.records[index];
        struct heft_load_peer where = {record->addresses, record->name, record->generation, record->token};
        struct candidate *candidate;
        char why[256];

        if (is_self(options, all->hunt.agent, record) || heft_record_name_is_load(record->name))
            continue;
        if (all->exact && heft_identity_compare(wanted, &record->identity, error)) {
            struct heft_source *other = add_source(&all->found, HEFT_SOURCE_PEER, record->name);

            if (other)
                refuse(other, error);
            continue;
        }
        if (revision && strcmp(revision, record->identity.revision) != 0)
            return heft_error_set(
                error, HEFT_ERR_INCOMPATIBLE,
                "the directory lists several revisions of %s (%s, %s, ...): name one as %s@REVISION",
                wanted->model, revision, record->identity.revision, wanted->model);
        revision = record->identity.revision;
        (void)snprintf(why, sizeof(why),
                       "replica in %.120s, lease %" PRIu64 " ms left, %" PRIu64 " of %" PRIu64 " blocks",
                       options->directory->address, record->lease_left_ms, record->held_blocks,
                       record->block_count);
        candidate = add_candidate(all, record->name, why, &where);
        if (candidate)
            candidate->table_digest = record->table_digest;
    }
    return HEFT_OK;
}

/* Files that may supply bytes: with them a load needs nobody else. */
static int files_ready(const struct found_all *all)
{
    const struct heft_found *found = &all->found;

    return found->count > 0 && found->sources[0]->kind == HEFT_SOURCE_FILES &&
           found->sources[0]->state == HEFT_SOURCE_READY;
}

/* Every candidate at once, each on a thread. Ends when all have answered, or when the grace is over and there
 * is a source, or at end_ns; what has not answered by then is not taken. */
static void connect_all(struct found_all *all, uint64_t end_ns, const uint32_t *cancel)
{
    struct hunt *hunt = &all->hunt;
    uint64_t start = heft_now_ns(), end = heft_after_ms(start, 20 * (uint64_t)CONNECT_TIMEOUT_MS);
    uint64_t grace_end = heft_after_ms(start, CONNECT_GRACE_MS);
    uint32_t index;

    hunt->reference = all->found.reference;
    hunt->wanted = &all->wanted;
    hunt->exact = all->exact;
    end = end < end_ns ? end : end_ns;
    for (index = 0; index < hunt->count; index++) {
        struct candidate *candidate = &hunt->candidates[index];

        candidate->started = pthread_create(&candidate->thread, NULL, connect_thread, candidate) == 0;
        if (!candidate->started)
            (void)connect_thread(candidate);
    }
    (void)pthread_mutex_lock(&hunt->lock);
    for (;;) {
        uint32_t done = 0, good = (uint32_t)files_ready(all);
        uint64_t now = heft_now_ns(), until = heft_after_ms(now, HEFT_CANCEL_LOOK_MS);
        struct timespec when;

        for (index = 0; index < hunt->count; index++) {
            done += (uint32_t)hunt->candidates[index].done;
            good += (uint32_t)(hunt->candidates[index].done && !hunt->candidates[index].error.code);
        }
        if (done == hunt->count || (good && now >= grace_end) || now >= end ||
            __atomic_load_n(cancel, __ATOMIC_ACQUIRE))
            break;
        if (until > end)
            until = end;
        when = (struct timespec){(time_t)(until / HEFT_NS_PER_S), (long)(until % HEFT_NS_PER_S)};
        (void)pthread_cond_clockwait(&hunt->changed, &hunt->lock, CLOCK_MONOTONIC, &when);
    }
    hunt->took_ns = heft_now_ns() - start;
    for (index = 0; index < hunt->count; index++)
        hunt->candidates[index].taken = hunt->candidates[index].done;
    (void)pthread_mutex_unlock(&hunt->lock);
    __atomic_store_n(&hunt->over, 1, __ATOMIC_RELEASE);
}

/* Two holders of the same bytes have the same digests. */
static int compare_digests(const struct heft_manifest *left, const struct heft_manifest *right,
                           struct heft_error *error)
{
    uint64_t index;

    if (!left->digests || !right->digests)
        return HEFT_OK;
    for (index = 0; index < left->tensor_count; index++) {
        const struct heft_manifest_tensor *a = &left->tensors[index], *b;
        uint64_t other = heft_manifest_find_near(right, index, a->name, a->name_bytes), block;

        if (other == UINT64_MAX)
            continue;
        b = &right->tensors[other];
        if (a->box_start || b->box_start)
            continue; /* blocks of a part are counted from the part's own start */
        for (block = 0; block < heft_block_count(a->size_bytes); block++)
            if (left->digests[a->first_block + block] != right->digests[b->first_block + block] &&
                heft_manifest_holds(left, a->first_block + block, 1) &&
                heft_manifest_holds(right, b->first_block + block, 1))
                return heft_error_set(
                    error, HEFT_ERR_INCOMPATIBLE,
                    "it holds other bytes under the same identity: tensor %s, digest block %" PRIu64
                    " differs",
                    a->name, block);
    }
    return HEFT_OK;
}

/* Compares what connected, in order; the first that is right becomes the reference when there are no files.
 */
static void accept_peers(struct found_all *all)
{
    struct heft_found *found = &all->found;
    const struct heft_manifest *with_digests = NULL;
    uint32_t index;

    for (index = 0; index < all->hunt.count; index++) {
        struct candidate *candidate = &all->hunt.candidates[index];
        struct heft_source *source = candidate->source;
        struct heft_error error = HEFT_ERROR_INIT;
        uint64_t *regions;
        uint32_t file;
        int rc;

        if (!candidate->taken) {
            heft_error_set(&source->reason, HEFT_ERR_DEADLINE, "no answer from %s within %" PRIu64 " ms",
                           source->addresses, all->hunt.took_ns / HEFT_NS_PER_MS);
            continue;
        }
        source->peer = candidate->peer;
        source->manifest = candidate->manifest;
        candidate->peer = NULL;
        candidate->manifest = NULL;
        if (candidate->error.code) {
            refuse(source, &candidate->error);
            continue;
        }
        rc = HEFT_OK; /* compared with the files, or with what was asked for, when it connected */
        if (found->reference && found->reference != all->hunt.reference)
            rc = heft_manifest_compare(found->reference, source->manifest, &error);
        if (!rc && with_digests)
            rc = compare_digests(with_digests, source->manifest, &error);
        regions = rc ? NULL : calloc(source->manifest->file_count + 1, sizeof(*regions));
        if (!rc && !regions)
            rc = heft_error_set(&error, HEFT_ERR_NO_MEMORY, "listing the replica's regions");
        if (rc) {
            error.code = rc;
            refuse(source, &error);
            continue;
        }
        for (file = 0; file < source->manifest->file_count; file++)
            regions[file] = source->manifest->files[file].region;
        source->regions = regions;
        source->state = HEFT_SOURCE_READY;
        if (!found->reference)
            found->reference = source->manifest;
        if (!found->config.data)
            heft_blob_move(&found->config, &candidate->config);
        if (!with_digests && source->manifest->digests)
            with_digests = source->manifest;
    }
}

struct heft_source *heft_sources_add_peer(struct heft_found *found, const char *name, const char *addresses,
                                          const char *why, struct heft_peer *peer,
                                          struct heft_manifest *manifest, const struct heft_error *refusal)
{
    struct heft_source *source = add_source(found, HEFT_SOURCE_PEER, name);
    uint64_t *regions = manifest ? calloc(manifest->file_count + 1, sizeof(*regions)) : NULL;
    uint32_t file;

    if (!source || (!refusal && !regions)) {
        (void)heft_peer_close(peer, NULL);
        heft_manifest_free(manifest);
        free(regions);
        return NULL;
    }
    (void)snprintf(source->why, sizeof(source->why), "%s", why);
    (void)snprintf(source->addresses, sizeof(source->addresses), "%s", addresses);
    source->peer = peer;
    source->manifest = manifest;
    source->regions = regions;
    if (refusal) {
        refuse(source, refusal);
        return source;
    }
    for (file = 0; file < manifest->file_count; file++)
        regions[file] = manifest->files[file].region;
    source->state = HEFT_SOURCE_READY;
    memmove(&found->sources[found->ready + 1], &found->sources[found->ready],
            (found->count - 1 - found->ready) * sizeof(struct heft_source *));
    found->sources[found->ready++] = source;
    return source;
}

/* ---- together ---- */

static void sort_ready_first(struct heft_found *found)
{
    uint32_t index, ready = 0;

    for (index = 0; index < found->count; index++) {
        struct heft_source *source = found->sources[index];

        if (source->state != HEFT_SOURCE_READY)
            continue;
        memmove(&found->sources[ready + 1], &found->sources[ready],
                (index - ready) * sizeof(struct heft_source *));
        found->sources[ready++] = source;
    }
    found->ready = ready;
}

static int nothing_found(const struct heft_load_options *options, const struct heft_found *found,
                         struct heft_error *error)
{
    char text[HEFT_ERROR_TEXT_BYTES] = "";
    const struct heft_source *only = NULL;
    char *shown = options->model ? heft_object_shown(options->model) : NULL; /* a URL may hold a password */
    char what[HEFT_ERROR_TEXT_BYTES / 2];
    size_t used = 0;
    uint32_t index, tried = 0;
    int code = HEFT_ERR_NOT_FOUND;

    (void)snprintf(what, sizeof(what), "%s",
                   shown            ? shown
                   : options->model ? "the model"
                                    : options->identity->model);
    free(shown);
    for (index = 0; index < found->count && used < sizeof(text) - 1; index++) {
        const struct heft_source *source = found->sources[index];
        int size;

        if (source->excluded)
            continue;
        size = snprintf(text + used, sizeof(text) - used, "%s%s: %s", tried++ ? "; " : "", source->name,
                        source->reason.text);
        used += size > 0 ? (size_t)size : 0;
        only = source;
        /* The most telling code: what is wrong with something that is there, before what is not there. */
        if (source->reason.code != HEFT_ERR_NOT_FOUND)
            code = source->reason.code;
    }
    if (tried == 0)
        return heft_error_set(error, HEFT_ERR_NOT_FOUND,
                              "no replica of %s is known%s%s; serve one (heft serve), or allow "
                              "files as a source",
                              what,
                              options->directory ? " to " : ", since no directory is named (--directory)",
                              options->directory ? options->directory->address : "");
    if (tried == 1) {
        *error = only->reason;
        return error->code;
    }
    return heft_error_set(error, code, "no source for %s: %s", what, text);
}

/* The caller's words as an identity; the pairs lie in pairs_out. */
static int given_identity(const struct heft_model_identity *given, struct heft_identity *identity_out,
                          struct heft_identity_pair *pairs_out, struct heft_error *error)
{
    uint32_t index;

    if (!given->model || !given->model[0] || !given->revision || !given->revision[0])
        return heft_error_set(error, HEFT_ERR_INVALID, "the wanted identity needs a model and a revision");
    if (given->pair_count > HEFT_IDENTITY_MAX_PAIRS)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "an identity has at most %u pairs, not %u",
                              HEFT_IDENTITY_MAX_PAIRS, given->pair_count);
    for (index = 0; index < given->pair_count; index++)
        pairs_out[index] = (struct heft_identity_pair){given->keys[index], given->values[index]};
    *identity_out = (struct heft_identity){
        .model = given->model,
        .revision = given->revision,
        .stage = given->stage && given->stage[0] ? given->stage : "raw",
        .engine = given->engine ? given->engine : "",
        .rank = given->rank ? given->rank : "",
        .pairs = pairs_out,
        .pair_count = given->pair_count,
    };
    return HEFT_OK;
}

/* What the reference's text alone tells of the model, when its files can't be opened. */
static int name_wanted(const struct heft_load_options *options, const struct heft_ref *ref,
                       struct found_all *all, struct heft_error *error)
{
    const char *revision = options->model_options.revision ? options->model_options.revision : ref->revision;
    char *name = NULL;

    /* Cut short it would be another revision's name. */
    if (strlen(revision) >= sizeof(all->revision))
        return heft_error_set(error, HEFT_ERR_INVALID, "a revision has at most %zu bytes, not %zu",
                              sizeof(all->revision) - 1, strlen(revision));
    if (heft_ref_is_remote(ref)) {
        name = heft_remote_name(ref);
        if (!name)
            return heft_error_set(error, HEFT_ERR_NO_MEMORY, "looking for sources");
    }
    (void)snprintf(all->name, sizeof(all->name), "%s", name ? name : ref->name);
    (void)snprintf(all->revision, sizeof(all->revision), "%s", revision);
    free(name);
    all->wanted.model = all->name;
    all->wanted.revision = all->revision;
    return HEFT_OK;
}

/* The files' part: their identity, or what the reference's text alone tells, in all->wanted. */
static int find_wanted(const struct heft_load_options *options, struct found_all *all,
                       const struct heft_source_kinds *kinds, uint64_t end_ns, const uint32_t *cancel,
                       struct heft_error *error)
{
    struct heft_identity *wanted = &all->wanted;
    struct heft_found *found = &all->found;
    struct heft_ref ref;
    int rc;

    *wanted = (struct heft_identity){.model = "", .revision = "", .stage = "raw", .engine = "", .rank = ""};
    if (options->model_options.as_files)
        wanted->stage = HEFT_FILES_STAGE;
    if (options->identity) {
        rc = given_identity(options->identity, wanted, all->pairs, error);
        if (rc)
            return rc;
        all->exact = 1;
        if (!options->model || strcmp(wanted->stage, "raw") != 0)
            return HEFT_OK; /* files hold the raw stage only */
    }
    rc = heft_place_parse(options->model, &ref, error);
    /* Files are opened even when only peers may supply bytes: they tell which model is meant. */
    if (!rc)
        rc = find_files(options, all, heft_ref_is_remote(&ref), end_ns, cancel, error);
    if (rc)
        return rc;
    if (found->sources[0]->state == HEFT_SOURCE_READY && all->exact) {
        rc = heft_identity_compare(wanted, &found->opened->manifest->identity, error);
        if (rc)
            refuse(found->sources[0], error);
    }
    if (found->sources[0]->state == HEFT_SOURCE_READY) {
        found->reference = found->opened->manifest;
        *wanted = found->reference->identity;
        if (heft_ref_is_remote(&ref) ? !kinds->objects : !kinds->files) {
            found->sources[0]->state = HEFT_SOURCE_REFUSED;
            found->sources[0]->excluded = 1;
            heft_error_set(&found->sources[0]->reason, HEFT_ERR_DENIED, "not among the sources asked for");
        }
    } else if (!all->exact && (ref.kind == HEFT_REF_HUB || heft_ref_is_remote(&ref))) {
        return name_wanted(options, &ref, all, error);
    }
    return HEFT_OK;
}

/* ---- mirrors ---- */

/* The caller says that it holds the same model: its identity is its place's, so all the rest is compared. */
static int compare_mirror(struct found_all *all, struct heft_source *mirror, uint64_t end_ns,
                          struct heft_error *error)
{
    const struct heft_found *found = &all->found;
    struct heft_manifest same = *mirror->manifest;
    int rc;

    same.identity = found->reference->identity;
    rc = heft_manifest_compare(found->reference, &same, error);
    if (!rc && found->sources[0]->manifest == found->reference && found->sources[0]->regions)
        rc = heft_sources_sample(all->hunt.agent, found->sources[0], mirror, end_ns, error);
    return rc;
}

static int add_mirror(const struct heft_load_options *options, struct found_all *all,
                      const struct heft_source_kinds *kinds, const char *model, uint64_t end_ns,
                      const uint32_t *cancel, struct heft_error *error)
{
    struct heft_found *found = &all->found;
    char *shown = heft_object_shown(model); /* a URL may hold a password */
    struct heft_source *source = add_source(found, HEFT_SOURCE_FILES, shown ? shown : "mirror");
    struct heft_model_options model_options = options->model_options;
    struct heft_opened *opened = NULL, **grown;
    int rc;

    free(shown);
    grown = realloc(found->mirrors, ((size_t)found->mirror_count + 1) * sizeof(struct heft_opened *));
    if (grown)
        found->mirrors = grown;
    if (!source || !grown)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "opening a mirror");
    model_options.revision = NULL; /* the model's own, not its */
    rc = heft_open_model_within(model, &model_options, end_ns, cancel, &opened, error);
    if (!rc) {
        found->mirrors[found->mirror_count++] = opened;
        source->manifest = opened->manifest;
        if (opened->urls) {
            source->kind = HEFT_SOURCE_OBJECTS;
            source->credits = OBJECT_CREDITS;
        }
        (void)snprintf(source->why, sizeof(source->why), "a mirror that the caller named, %u file%s",
                       opened->manifest->file_count, opened->manifest->file_count == 1 ? "" : "s");
        rc = register_files(found, all->hunt.agent, opened, source, error);
    }
    if (!rc && found->reference)
        rc = compare_mirror(all, source, end_ns, error);
    if (rc == HEFT_ERR_CANCELED)
        return rc;
    if (rc) {
        error->code = rc;
        refuse(source, error);
        heft_log(HEFT_LOG_WARN, "loading without the mirror %s: %s", source->name, error->text);
        return HEFT_OK;
    }
    if (source->kind == HEFT_SOURCE_OBJECTS ? !kinds->objects : !kinds->files) {
        source->excluded = 1;
        heft_error_set(&source->reason, HEFT_ERR_DENIED, "not among the sources asked for");
        return HEFT_OK;
    }
    if (!found->reference) {
        found->reference = source->manifest;
        all->wanted = source->manifest->identity;
    }
    source->state = HEFT_SOURCE_READY;
    return HEFT_OK;
}

static int find_mirrors(const struct heft_load_options *options, struct found_all *all,
                        const struct heft_source_kinds *kinds, uint64_t end_ns, const uint32_t *cancel,
                        struct heft_error *error)
{
    char *words = options->mirrors ? strdup(options->mirrors) : NULL, *at = words, *word;
    int rc =
        options->mirrors && !words ? heft_error_set(error, HEFT_ERR_NO_MEMORY, "opening mirrors") : HEFT_OK;

    while (!rc && at && (word = strsep(&at, " \t\n")) != NULL)
        if (word[0])
            rc = all->found.count >= MAX_CANDIDATES / 2
                     ? heft_error_set(error, HEFT_ERR_TOO_MANY, "more than %u mirrors",
                                      (unsigned)MAX_CANDIDATES / 2 - 1)
                     : add_mirror(options, all, kinds, word, end_ns, cancel, error);
    free(words);
    return rc;
}

/* ---- a share ---- */

static int register_share(struct found_all *all, struct heft_source *source, struct heft_error *error)
{
    struct heft_found *found = &all->found;
    uint32_t count = source->manifest->file_count, index;
    uint64_t *regions = calloc(count ? count : 1, sizeof(*regions));

    source->regions = regions;
    found->share_regions = calloc(count ? count : 1, sizeof(*found->share_regions));
    if (!regions || !found->share_regions)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "registering a share");
    for (index = 0; index < count; index++) {
        struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
        int rc;

        options.address = heft_share_file(found->share, index);
        options.length_bytes = source->manifest->files[index].size_bytes;
        rc = heft_region_register(all->hunt.agent, &options, &found->share_regions[index], error);
        if (rc)
            return heft_error_prefix(error, rc, "registering a share");
        found->share_region_count = index + 1;
        regions[index] = heft_region_id(found->share_regions[index]);
    }
    return HEFT_OK;
}

/* Beside files or objects that are ready: without it the load reads them by itself. */
static void find_share(const struct heft_load_options *options, struct found_all *all)
{
    struct heft_found *found = &all->found;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_source *storage = found->count > 0 ? found->sources[0] : NULL, *source;
    int rc;

    if (options->host_loads < 2 || (options->flags & HEFT_LOAD_EXPLAIN) || !found->opened || !storage ||
        storage->state != HEFT_SOURCE_READY)
        return;
    source = add_source(found, HEFT_SOURCE_SHARE, "share");
    if (!source)
        return;
    source->manifest = storage->manifest;
    source->opened = storage->opened;
    rc =
        heft_share_open(options->share_folder, storage->manifest, options->host_loads, &found->share, &error);
    if (!rc)
        rc = register_share(all, source, &error);
    if (rc) {
        error.code = rc;
        refuse(source, &error);
        heft_log(HEFT_LOG_WARN, "loading without the other loads of this host: %s", error.text);
        return;
    }
    (void)snprintf(source->why, sizeof(source->why), "read once by %u loads of this host; this is number %u",
                   options->host_loads, heft_share_column(found->share));
    source->state = HEFT_SOURCE_READY;
    found->share_source = source;
    found->share_storage = storage;
}

static int find_peers(const struct heft_load_options *options, struct found_all *all, uint64_t end_ns,
                      const uint32_t *cancel, struct heft_error *error)
{
    int has_files = all->found.reference != NULL && !all->found.sources[0]->excluded;
    uint32_t index;
    int rc;

    for (index = 0; index < options->peer_count; index++)
        if (!add_candidate(all,
                           options->peers[index].name ? options->peers[index].name
                                                      : options->peers[index].addresses,
                           "named by the caller", &options->peers[index]) &&
            all->hunt.left_out == 0)
            return heft_error_set(error, HEFT_ERR_NO_MEMORY, "looking for sources");
    if (options->directory && all->wanted.model[0]) {
        rc = ask_directory(options, all, &all->wanted, error);
        if (rc && (!has_files || rc == HEFT_ERR_INCOMPATIBLE))
            return rc;
        if (rc) {
            struct heft_source *source = add_source(&all->found, HEFT_SOURCE_PEER, "directory");

            heft_log(HEFT_LOG_WARN, "%s (loading without replicas)", error->text);
            if (source)
                refuse(source, error);
        }
    }
    if (all->hunt.left_out > 0) {
        struct heft_source *source = add_source(&all->found, HEFT_SOURCE_PEER, "others");
        struct heft_error many = HEFT_ERROR_INIT;

        heft_error_set(&many, HEFT_ERR_TOO_MANY, "%u more replicas were not asked: a load asks %u at most",
                       all->hunt.left_out, (unsigned)MAX_CANDIDATES);
        if (source)
            refuse(source, &many);
    }
    if (all->hunt.count > 0) {
        connect_all(all, end_ns, cancel);
        accept_peers(all);
    }
    return HEFT_OK;
}

int heft_sources_find(const struct heft_load_options *options, struct heft_agent *agent, uint64_t end_ns,
                      const uint32_t *cancel, struct heft_found **found_out, struct heft_error *error)
{
    struct found_all *all = calloc(1, sizeof(*all));
    struct heft_error local = HEFT_ERROR_INIT;
    struct heft_source_kinds kinds = {0};
    int rc;

    if (!error)
        error = &local;
    if (!all)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "looking for sources");
    all->hunt.agent = agent;
    (void)pthread_mutex_init(&all->hunt.lock, NULL);
    (void)pthread_cond_init(&all->hunt.changed, NULL);
    all->hunt.candidates = calloc(MAX_CANDIDATES, sizeof(*all->hunt.candidates));
    rc = all->hunt.candidates ? heft_sources_parse(options->source, &kinds, error)
                              : heft_error_set(error, HEFT_ERR_NO_MEMORY, "looking for sources");
    if (!rc)
        rc = find_wanted(options, all, &kinds, end_ns, cancel, error);
    if (!rc)
        rc = find_mirrors(options, all, &kinds, end_ns, cancel, error);
    if (!rc && kinds.peers)
        rc = find_peers(options, all, end_ns, cancel, error);
    if (!rc)
        find_share(options, all);
    if (!rc && __atomic_load_n(cancel, __ATOMIC_ACQUIRE))
        rc = heft_error_set(error, HEFT_ERR_CANCELED, "the load was canceled");
    if (!rc) {
        sort_ready_first(&all->found);
        if (all->found.ready == 0)
            rc = nothing_found(options, &all->found, error);
    }
    if (rc) {
        heft_sources_free(&all->found);
        return rc;
    }
    *found_out = &all->found;
    return HEFT_OK;
}

void heft_sources_free(struct heft_found *found)
{
    struct found_all *all = (struct found_all *)(void *)found;
    uint32_t index;

    if (!found)
        return;
    __atomic_store_n(&all->hunt.over, 1, __ATOMIC_RELEASE);
    for (index = 0; index < all->hunt.count; index++) {
        struct candidate *candidate = &all->hunt.candidates[index];

        if (candidate->started)
            (void)pthread_join(candidate->thread, NULL);
        if (candidate->peer)
            (void)heft_peer_close(candidate->peer, NULL);
        heft_manifest_free(candidate->manifest);
        free(candidate->config.data);
    }
    for (index = 0; index < found->count; index++) {
        struct heft_source *source = found->sources[index];

        if (source->peer && heft_peer_close(source->peer, NULL))
            heft_log(HEFT_LOG_ERROR, "peer %s is still in use at the end of a load", source->name);
        if (source->kind == HEFT_SOURCE_PEER)
            heft_manifest_free(source->manifest);
        free((void *)(uintptr_t)source->regions);
        free(source);
    }
    for (index = 0; index < found->file_region_count; index++)
        if (heft_region_deregister(found->file_regions[index], NULL))
            heft_log(HEFT_LOG_ERROR, "a file is still in use at the end of a load");
    for (index = 0; index < found->share_region_count; index++)
        if (heft_region_deregister(found->share_regions[index], NULL))
            heft_log(HEFT_LOG_ERROR, "a share is still in use at the end of a load");
    free(found->share_regions);
    if (found->share)
        heft_share_close(found->share, found->share_finished);
    free(found->file_regions);
    free(found->config.data);
    heft_opened_free(found->opened);
    for (index = 0; index < found->mirror_count; index++)
        heft_opened_free(found->mirrors[index]);
    free(found->mirrors);
    free(found->sources);
    heft_record_list_free(&all->records);
    free(all->hunt.candidates);
    (void)pthread_mutex_destroy(&all->hunt.lock);
    (void)pthread_cond_destroy(&all->hunt.changed);
    free(all);
}
