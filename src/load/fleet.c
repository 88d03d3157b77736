/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A load in its fleet: published with what it is going to hold, found by the others, served until they need
 * nothing more of it. The record's name is not the agent's alone, so that a replica of the same agent can be
 * published beside it, and loads without a fleet pass over it.
 */
#include "agent/peer.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "load/fleet_internal.h"
#include "load/load.h"
#include "load/withdraw.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECT_TIMEOUT_MS 1000u
#define LOOK_MS 50u
#define MAX_KNOWN 256u /* loads of one model, those that ended among them */

/* ---- publishing ---- */

static int make_log(struct heft_fleet *fleet, uint64_t blocks, struct heft_error *error)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_memory_info info;
    uint64_t bytes;
    int rc;

    /* Each block arrives once and is claimed once at most. */
    fleet->log_capacity = 2 * blocks;
    fleet->claims_left = blocks;
    bytes = sizeof(struct fleet_log) + (fleet->log_capacity + 1) * sizeof(struct fleet_entry);
    rc = heft_memory_alloc(bytes, 0, &fleet->log_memory, error);
    if (rc)
        return heft_error_prefix(error, rc, "allocating the log of a load");
    heft_memory_get_info(fleet->log_memory, &info);
    fleet->log = info.address;
    fleet->entries = (struct fleet_entry *)(void *)(fleet->log + 1);
    fleet->log->magic = HEFT_FLEET_LOG_MAGIC;
    fleet->log->reads = 1;
    options.flags = HEFT_REGION_REMOTE_READ;
    options.memory = fleet->log_memory;
    options.address = info.address;
    options.length_bytes = bytes;
    rc = heft_region_register(fleet->options.agent, &options, &fleet->log_region, error);
    return rc ? heft_error_prefix(error, rc, "registering the log of a load") : HEFT_OK;
}

/* What will be held, nothing of it yet. Its last file is the log. */
static int make_manifest(struct heft_fleet *fleet, const struct heft_layout *layout, struct heft_error *error)
{
    struct heft_manifest *manifest = fleet->manifest = heft_manifest_new();
    uint64_t index, blocks = 0;
    uint32_t part;
    int rc = manifest ? heft_manifest_set_identity(manifest, &layout->reference->identity, error)
                      : heft_error_set(error, HEFT_ERR_NO_MEMORY, "publishing a load");

    for (index = 0; index < layout->tensor_count; index++)
        blocks += heft_block_count(layout->tensors[index].size_bytes);
    if (!rc)
        rc = make_log(fleet, blocks, error);
    for (part = 0; part < fleet->options.region_count && !rc; part++)
        rc = heft_manifest_add_file(manifest, "", heft_region_length_bytes(fleet->options.regions[part]),
                                    heft_region_id(fleet->options.regions[part]), NULL, error);
    if (!rc)
        rc =
            heft_manifest_add_file(manifest, HEFT_FLEET_LOG_FILE, heft_region_length_bytes(fleet->log_region),
                                   heft_region_id(fleet->log_region), NULL, error);
    for (index = 0; index < layout->tensor_count && !rc; index++)
        if (!layout->tensors[index].joined)
            rc = heft_load_add_tensor(manifest, layout, index, error);
    if (!rc)
        rc = heft_manifest_finish(manifest, error);
    return rc ? rc : heft_manifest_want_held(manifest, error);
}

static int publish_document(struct heft_fleet *fleet, struct heft_error *error)
{
    struct heft_buf buf;
    int rc;

    if (heft_document_exists(fleet->options.agent, HEFT_FLEET_DOCUMENT))
        return heft_error_set(error, HEFT_ERR_EXISTS,
                              "agent %s is loading in a fleet already: give each load its own agent",
                              heft_agent_name(fleet->options.agent));
    heft_buf_init(&buf, HEFT_MANIFEST_MAX_BYTES);
    rc = heft_manifest_encode(fleet->manifest, &buf);
    if (!rc)
        rc = heft_agent_set_document(fleet->options.agent, HEFT_FLEET_DOCUMENT, buf.data, buf.size, error);
    else
        (void)heft_error_set(error, rc, "encoding the manifest of a load");
    fleet->document_set = !rc;
    heft_buf_free(&buf);
    return rc;
}

/* A load that has everything says so in its record, for those who wait to leave. */
static int refresh(void *context, struct heft_record *record, struct heft_error *error)
{
    struct heft_fleet *fleet = context;

    (void)error;
    if (__atomic_load_n(&fleet->is_complete, __ATOMIC_ACQUIRE)) {
        record->held_blocks = record->block_count;
        free(record->held);
        record->held = NULL;
    }
    return HEFT_OK;
}

static int make_record(struct heft_fleet *fleet, struct heft_error *error)
{
    struct heft_agent *agent = fleet->options.agent;
    struct heft_record *record = &fleet->record;
    const struct heft_manifest *manifest = fleet->manifest;
    char addresses[HEFT_RECORD_MAX_ADDRESSES_BYTES], name[sizeof(HEFT_RECORD_LOADS) + HEFT_NAME_MAX_BYTES];
    int rc = heft_agent_addresses(agent, addresses, sizeof(addresses));

    if (rc)
        return heft_error_set(error, rc, "the agent's addresses do not fit a record");
    if (!addresses[0])
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "agent %s does not listen: other loads could not reach it "
                              "(heft_agent_options.listen)",
                              heft_agent_name(agent));
    (void)snprintf(name, sizeof(name), HEFT_RECORD_LOADS "%s", heft_agent_name(agent));
    if (strlen(name) > HEFT_NAME_MAX_BYTES || !heft_text_is_clean(name, HEFT_NAME_MAX_BYTES))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "the name of a load in a directory is UTF-8 text of at most %zu bytes",
                              HEFT_NAME_MAX_BYTES - sizeof(HEFT_RECORD_LOADS) + 1);
    record->name = strdup(name);
    record->addresses = strdup(addresses);
    record->part = strdup("loading");
    record->held = calloc(manifest->block_count / 8 + 1, 1);
    if (!record->name || !record->addresses || !record->part || !record->held ||
        heft_record_set_identity(record, &manifest->identity))
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making a load's record");
    record->generation = fleet->generation;
    record->token = heft_agent_token(agent);
    record->table_digest = heft_manifest_table_digest(manifest);
    record->tensor_count = manifest->tensor_count;
    record->total_bytes = manifest->total_bytes;
    record->block_count = manifest->block_count;
    record->lease_ms = HEFT_KEEPER_LEASE_MS;
    if (manifest->block_count == 0)
        return refresh(fleet, record, error);
    return HEFT_OK;
}

static int publish(struct heft_fleet *fleet, struct heft_error *error)
{
    struct heft_keeper_options options = {.directory = fleet->options.directory,
                                          .record = &fleet->record,
                                          .what = "load",
                                          .refresh = refresh,
                                          .context = fleet};
    int rc = make_record(fleet, error);

    if (!rc)
        rc = publish_document(fleet, error);
    if (!rc)
        rc = heft_keeper_start(&fleet->keeper, &options, error);
    fleet->is_kept = !rc;
    return rc;
}

int heft_fleet_join(const struct heft_fleet_options *options, const struct heft_layout *layout,
                    struct heft_fleet **fleet_out, int *busy_out, struct heft_error *error)
{
    struct heft_fleet *fleet = calloc(1, sizeof(*fleet));
    int rc;

    *busy_out = 0;
    if (!fleet) {
        *busy_out = heft_withdraw_regions(options->agent, "a load", options->regions, options->region_count);
        free(options->regions);
        free(options->addresses);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "joining a fleet");
    }
    fleet->options = *options;
    fleet->generation = heft_agent_generation(options->agent);
    fleet->summary.loads = options->loads;
    (void)pthread_mutex_init(&fleet->lock, NULL);
    (void)pthread_cond_init(&fleet->changed, NULL);
    fleet->known = calloc(MAX_KNOWN, sizeof(*fleet->known));
    fleet->peers = calloc(HEFT_PLAN_MAX_SOURCES, sizeof(*fleet->peers));
    rc =
        fleet->known && fleet->peers ? HEFT_OK : heft_error_set(error, HEFT_ERR_NO_MEMORY, "joining a fleet");
    if (!rc)
        rc = make_manifest(fleet, layout, error);
    if (!rc)
        rc = publish(fleet, error);
    if (rc) {
        *busy_out = heft_fleet_close(fleet);
        return rc;
    }
    *fleet_out = fleet;
    return HEFT_OK;
}

/* ---- finding the others ---- */

static int same_generation(const struct heft_generation *left, const struct heft_generation *right)
{
    return memcmp(left->bytes, right->bytes, sizeof(left->bytes)) == 0;
}

/* The entry of a load that was listed; *is_new_out: for the first time. NULL: too many. */
static struct fleet_known *know(struct heft_fleet *fleet, const struct heft_generation *generation,
                                int *is_new_out)
{
    uint32_t index;

    *is_new_out = 0;
    for (index = 0; index < fleet->known_count; index++)
        if (same_generation(&fleet->known[index].generation, generation))
            return &fleet->known[index];
    if (fleet->known_count == MAX_KNOWN)
        return NULL;
    *is_new_out = 1;
    fleet->known[fleet->known_count].generation = *generation;
    return &fleet->known[fleet->known_count++];
}

static int list_loads(const struct heft_fleet *fleet, struct heft_record_list *list)
{
    const struct heft_identity *identity = &fleet->manifest->identity;
    const struct heft_record_query query = {
        .model = identity->model, .revision = identity->revision, .stage = identity->stage};
    struct heft_directory *directory = fleet->options.directory;
    struct heft_error error = HEFT_ERROR_INIT;
    size_t from, to = 0;
    int rc = directory->ops->list(directory, &query, list, &error);

    if (rc)
        return rc;
    for (from = 0; from < list->count; from++) {
        struct heft_record *record = &list->records[from];

        if (heft_record_name_is_load(record->name) && record->lease_left_ms > 0 &&
            !same_generation(&record->generation, &fleet->generation) &&
            heft_identity_compare(identity, &record->identity, NULL) == HEFT_OK) {
            struct heft_record kept = *record;

            *record = list->records[to];
            list->records[to++] = kept;
        }
    }
    for (from = to; from < list->count; from++)
        heft_record_free(&list->records[from]);
    list->count = to;
    return HEFT_OK;
}

static int find_log(const struct heft_manifest *theirs, struct fleet_peer *peer, struct heft_error *error)
{
    const struct heft_manifest_file *file =
        theirs->file_count ? &theirs->files[theirs->file_count - 1] : NULL;

    if (!file || strcmp(file->name, HEFT_FLEET_LOG_FILE) != 0 || file->size_bytes < sizeof(struct fleet_log))
        return heft_error_set(error, HEFT_ERR_PROTOCOL, "its manifest names no log");
    peer->log_region = file->region;
    peer->log_capacity = (file->size_bytes - sizeof(struct fleet_log)) / sizeof(struct fleet_entry);
    return HEFT_OK;
}

/* Connects and compares. Everything that was made goes to the source, on failure as well. */
static int meet(struct heft_fleet *fleet, const struct heft_found *found, const struct heft_record *record,
                struct fleet_peer *peer, struct heft_peer **peer_out, struct heft_manifest **view_out,
                struct heft_error *error)
{
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    struct heft_manifest *theirs = NULL;
    void *bytes = NULL;
    uint64_t size = 0;
    int rc;

    options.addresses = record->addresses;
    options.name = record->name + sizeof(HEFT_RECORD_LOADS) - 1;
    options.generation = record->generation;
    options.token = record->token;
    options.connect_timeout_ms = CONNECT_TIMEOUT_MS;
    rc = heft_peer_connect_or_cancel(fleet->options.agent, &options, fleet->options.cancel, peer_out, error);
    if (!rc)
        rc = heft_peer_read_document_or_cancel(*peer_out, HEFT_FLEET_DOCUMENT, HEFT_MANIFEST_MAX_BYTES,
                                               CONNECT_TIMEOUT_MS * 4, fleet->options.cancel, &bytes, &size,
                                               error);
    if (!rc)
        rc = heft_manifest_decode(bytes, size, &theirs, error);
    heft_free(bytes);
    if (!rc)
        rc = heft_identity_compare(&fleet->manifest->identity, &theirs->identity, error);
    if (!rc)
        rc = find_log(theirs, peer, error);
    if (!rc)
        rc = heft_fleet_match(fleet, theirs, found->reference, peer, view_out, error);
    heft_manifest_free(theirs);
    return rc;
}

/* 1: it is one of the sources now. */
static int add_load(struct heft_fleet *fleet, struct heft_found *found, pthread_mutex_t *lock,
                    const struct heft_record *record)
{
    struct fleet_peer *peer = &fleet->peers[fleet->peer_count];
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *view = NULL;
    struct heft_peer *connected = NULL;
    int rc;

    if (found->ready == HEFT_PLAN_MAX_SOURCES)
        return 0;
    *peer = (struct fleet_peer){.fleet = fleet, .generation = record->generation};
    (void)snprintf(peer->name, sizeof(peer->name), "%s", record->name);
    rc = meet(fleet, found, record, peer, &connected, &view, &error);
    error.code = rc;
    (void)pthread_mutex_lock(lock);
    peer->source = heft_sources_add_peer(found, record->name, record->addresses, "a load of the same fleet",
                                         connected, view, rc ? &error : NULL);
    (void)pthread_mutex_unlock(lock);
    if (!rc && peer->source) {
        fleet->peer_count++;
        return 1;
    }
    free(peer->spans);
    peer->spans = NULL;
    return 0;
}

void heft_fleet_gather(struct heft_fleet *fleet, struct heft_found *found, pthread_mutex_t *lock,
                       uint64_t wait_ms)
{
    uint64_t begin = heft_now_ns(), end = heft_after_ms(begin, wait_ms);
    uint32_t index;

    for (;;) {
        struct heft_record_list list = {0};
        size_t at;

        if (list_loads(fleet, &list) == HEFT_OK)
            for (at = 0; at < list.count; at++) {
                int is_new;
                struct fleet_known *known = know(fleet, &list.records[at].generation, &is_new);

                if (known && is_new)
                    known->was_lost = !add_load(fleet, found, lock, &list.records[at]);
            }
        heft_record_list_free(&list);
        if (fleet->peer_count + 1 >= fleet->options.loads || heft_now_ns() >= end ||
            __atomic_load_n(fleet->options.cancel, __ATOMIC_ACQUIRE))
            break;
        (void)usleep(LOOK_MS * 1000);
    }
    fleet->summary.waited_ns = heft_now_ns() - begin;
    fleet->summary.found = fleet->peer_count;
    fleet->log->members[0] = fleet->generation;
    for (index = 0; index < fleet->peer_count && index + 1 < HEFT_FLEET_MAX_LOADS; index++)
        fleet->log->members[index + 1] = fleet->peers[index].generation;
    fleet->log->member_count = index + 1;
    __atomic_store_n(&fleet->log->state, FLEET_MOVING, __ATOMIC_RELEASE);
    heft_log(HEFT_LOG_INFO, "load %s found %u of %u others within %" PRIu64 " ms", fleet->record.name,
             fleet->peer_count, fleet->options.loads - 1, fleet->summary.waited_ns / HEFT_NS_PER_MS);
}

void heft_fleet_get_summary(const struct heft_fleet *fleet, struct heft_fleet_summary *summary_out)
{
    *summary_out = fleet->summary;
}

/* ---- leaving ---- */

/* Whether one of the others is still loading, or has not come yet. A directory that does not answer can't
 * tell. */
static int is_needed(struct heft_fleet *fleet)
{
    struct heft_record_list list = {0};
    int needed = 0, rc = list_loads(fleet, &list);
    size_t at;

    for (at = 0; at < list.count; at++) {
        const struct heft_record *record = &list.records[at];
        int is_new;
        const struct fleet_known *known = know(fleet, &record->generation, &is_new);

        if (record->held_blocks < record->block_count && !(known && known->was_lost))
            needed = 1;
    }
    heft_record_list_free(&list);
    return rc || needed || fleet->known_count + 1 < fleet->options.loads;
}

int heft_fleet_leave(struct heft_fleet *fleet, uint64_t timeout_ms)
{
    uint64_t end = heft_after_ms(heft_now_ns(), timeout_ms);

    while (is_needed(fleet)) {
        if (heft_now_ns() >= end)
            return HEFT_ERR_AGAIN;
        (void)usleep(LOOK_MS * 1000);
    }
    return HEFT_OK;
}

static void free_exchange(struct heft_fleet *fleet)
{
    uint32_t index;

    for (index = 0; index < fleet->peer_count; index++) {
        struct fleet_peer *peer = &fleet->peers[index];

        free(peer->spans);
        free(peer->missing);
        free(peer->claimed);
        free(peer->held);
        free(peer->digests);
    }
    free(fleet->peers);
    free(fleet->known);
    free(fleet->entry_of);
    free(fleet->first_range);
    free(fleet->ranges);
    free(fleet->chunk_of);
    free(fleet->is_done);
    free(fleet->is_asked);
    free(fleet->owners);
    free(fleet->items);
    free(fleet->parts);
}

int heft_fleet_close(struct heft_fleet *fleet)
{
    int rc, log_rc = HEFT_OK;

    if (!fleet)
        return HEFT_OK;
    /* The others are to see that this load has come and has everything, also when they look a moment later.
     */
    if (fleet->is_kept && fleet->is_complete)
        heft_keeper_leave(&fleet->keeper);
    else if (fleet->is_kept)
        heft_keeper_stop(&fleet->keeper);
    if (fleet->document_set)
        (void)heft_agent_set_document(fleet->options.agent, HEFT_FLEET_DOCUMENT, NULL, 0, NULL);
    rc = heft_withdraw_regions(fleet->options.agent, "a load", fleet->options.regions,
                               fleet->options.region_count);
    if (fleet->log_region)
        log_rc = heft_withdraw_regions(fleet->options.agent, "a load", &fleet->log_region, 1);
    if (!log_rc)
        heft_memory_free(fleet->log_memory);
    heft_record_free(&fleet->record);
    heft_manifest_free(fleet->manifest);
    free_exchange(fleet);
    free(fleet->options.regions);
    free(fleet->options.addresses);
    (void)pthread_mutex_destroy(&fleet->lock);
    (void)pthread_cond_destroy(&fleet->changed);
    free(fleet);
    return rc;
}
