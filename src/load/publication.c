/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent's metadata in a directory: its record is made anew from the agent whenever a region came or went,
 * and found again by its name. What is in a record was written by somebody else: the metadata must be of the
 * name and generation that the record says.
 */
#include "agent/metadata.h"
#include "base/error.h"
#include "load/keeper.h"

#include <heft/metadata.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct heft_publication {
    struct heft_agent *agent;
    struct heft_metadata_options options; /* its regions are in ids */
    char *address_kinds;
    uint64_t *ids;
    struct heft_record record;
    struct heft_keeper keeper;
    int is_kept;
    uint64_t epoch; /* atomic: of the agent, when the record was made */
};

static int refresh(void *context, struct heft_record *record, struct heft_error *error)
{
    struct heft_publication *publication = context;
    struct heft_metadata *made = NULL;
    void *data;
    uint64_t size_bytes;
    int rc = heft_metadata_export(publication->agent, &publication->options, publication->ids,
                                  publication->options.region_count, &data, &size_bytes, error);

    if (rc)
        return rc;
    if (size_bytes > HEFT_RECORD_MAX_METADATA_BYTES) {
        heft_free(data);
        return heft_error_set(
            error, HEFT_ERR_TOO_LARGE,
            "metadata of %llu bytes, a directory takes %zu: publish fewer regions, larger ones",
            (unsigned long long)size_bytes, HEFT_RECORD_MAX_METADATA_BYTES);
    }
    rc = heft_metadata_read(data, size_bytes, &made, error);
    if (rc) {
        heft_free(data);
        return rc;
    }
    __atomic_store_n(&publication->epoch, heft_metadata_epoch(made), __ATOMIC_RELAXED);
    heft_metadata_free(made);
    free(record->metadata);
    record->metadata = data;
    record->metadata_bytes = (size_t)size_bytes;
    return HEFT_OK;
}

static void regions_changed(void *context)
{
    heft_keeper_touch(&((struct heft_publication *)context)->keeper);
}

static int make_record(struct heft_publication *publication, uint32_t lease_ms, struct heft_error *error)
{
    static const struct heft_identity nobody = {"", "", "", "", "", NULL, 0};
    struct heft_agent *agent = publication->agent;
    struct heft_record *record = &publication->record;
    char addresses[HEFT_RECORD_MAX_ADDRESSES_BYTES], name[sizeof(HEFT_RECORD_AGENTS) + HEFT_NAME_MAX_BYTES];
    int rc = heft_agent_addresses(agent, addresses, sizeof(addresses));

    if (rc)
        return heft_error_set(error, rc, "the agent's addresses do not fit a record");
    if (!addresses[0])
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "agent %s does not listen: nobody could reach it (heft_agent_options.listen)",
                              heft_agent_name(agent));
    (void)snprintf(name, sizeof(name), HEFT_RECORD_AGENTS "%s", heft_agent_name(agent));
    if (strlen(name) > HEFT_NAME_MAX_BYTES || !heft_text_is_clean(name, HEFT_NAME_MAX_BYTES))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "the name of an agent in a directory is UTF-8 text of at most %zu bytes",
                              HEFT_NAME_MAX_BYTES - sizeof(HEFT_RECORD_AGENTS) + 1);
    record->name = strdup(name);
    record->addresses = strdup(addresses);
    if (!record->name || !record->addresses || heft_record_set_identity(record, &nobody))
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making an agent's record");
    record->generation = heft_agent_generation(agent);
    if (!(publication->options.flags & HEFT_METADATA_NO_TOKEN))
        record->token = heft_agent_token(agent);
    record->lease_ms = lease_ms;
    return HEFT_OK;
}

static int take_options(struct heft_publication *publication, const struct heft_publication_options *options,
                        struct heft_error *error)
{
    struct heft_metadata_options *mine = &publication->options;
    int rc;

    *mine = (struct heft_metadata_options)HEFT_METADATA_OPTIONS_INIT;
    rc = heft_options_copy(mine, sizeof(*mine), &options->metadata, error);
    if (!rc && mine->since_epoch)
        rc = heft_error_set(error, HEFT_ERR_INVALID, "a publication holds everything: since_epoch must be 0");
    if (!rc)
        rc = heft_metadata_choose(publication->agent, mine, &publication->ids, error);
    mine->regions = NULL;
    if (!rc && mine->addresses) {
        mine->addresses = publication->address_kinds = strdup(mine->addresses);
        if (!mine->addresses)
            rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "publishing an agent");
    }
    return rc;
}

int heft_agent_publish(struct heft_agent *agent, const struct heft_publication_options *given,
                       struct heft_publication **publication_out, struct heft_error *error)
{
    struct heft_publication_options options = HEFT_PUBLICATION_OPTIONS_INIT;
    struct heft_keeper_options keeper = {.what = "agent", .refresh = refresh};
    struct heft_publication *publication;
    int rc = heft_options_copy(&options, sizeof(options), given, error);

    if (rc)
        return rc;
    if (!options.directory)
        return heft_error_set(error, HEFT_ERR_INVALID, "a publication needs a directory");
    if (!options.lease_ms)
        options.lease_ms = HEFT_KEEPER_LEASE_MS;
    if (options.lease_ms < HEFT_KEEPER_LEASE_MIN_MS)
        return heft_error_set(error, HEFT_ERR_INVALID, "a lease of %u ms is too short: at least %u",
                              options.lease_ms, HEFT_KEEPER_LEASE_MIN_MS);
    publication = calloc(1, sizeof(*publication));
    if (!publication)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "publishing an agent");
    publication->agent = agent;
    rc = take_options(publication, &options, error);
    if (!rc)
        rc = make_record(publication, options.lease_ms, error);
    if (!rc) {
        keeper.directory = options.directory;
        keeper.record = &publication->record;
        keeper.context = publication;
        rc = heft_keeper_start(&publication->keeper, &keeper, error);
        publication->is_kept = !rc;
    }
    if (!rc) {
        rc = heft_agent_set_regions_hook(agent, regions_changed, publication);
        if (rc)
            (void)heft_error_set(error, rc, "agent %s has too many publications", heft_agent_name(agent));
    }
    if (rc) {
        heft_publication_close(publication);
        return rc;
    }
    /* What came between the first publication and the hook. */
    if (heft_agent_metadata_epoch(agent) != __atomic_load_n(&publication->epoch, __ATOMIC_RELAXED))
        heft_keeper_touch(&publication->keeper);
    *publication_out = publication;
    return HEFT_OK;
}

void heft_publication_close(struct heft_publication *publication)
{
    if (!publication)
        return;
    (void)heft_agent_set_regions_hook(publication->agent, NULL, publication);
    if (publication->is_kept)
        heft_keeper_stop(&publication->keeper);
    heft_record_free(&publication->record);
    free(publication->address_kinds);
    free(publication->ids);
    free(publication);
}

void heft_publication_get_status(struct heft_publication *publication,
                                 struct heft_publication_status *status_out)
{
    struct heft_publication_status status = {0};
    size_t size = status_out->size < sizeof(status) ? status_out->size : sizeof(status);
    struct heft_keeper_status kept;

    heft_keeper_get_status(&publication->keeper, &kept);
    status.size = size;
    status.published = kept.published;
    status.epoch = __atomic_load_n(&publication->epoch, __ATOMIC_RELAXED);
    status.publications = kept.publications;
    status.renewals = kept.renewals;
    status.republished = kept.republished;
    status.lease_left_ms = kept.lease_left_ms;
    status.last_error = kept.last_error;
    memcpy(status_out, &status, size);
}

/* ---- finding ---- */

int heft_metadata_of_record(const struct heft_record *record, struct heft_metadata **metadata_out,
                            struct heft_error *error)
{
    const char *name = record->name + sizeof(HEFT_RECORD_AGENTS) - 1;
    struct heft_metadata *metadata;
    struct heft_generation generation;
    int rc = heft_metadata_read(record->metadata, record->metadata_bytes, &metadata, error);

    if (rc)
        return heft_error_prefix(error, rc, "the record of agent '%s'", name);
    generation = heft_metadata_generation(metadata);
    if (strcmp(heft_metadata_name(metadata), name) != 0 ||
        memcmp(generation.bytes, record->generation.bytes, HEFT_GENERATION_BYTES) != 0) {
        rc = heft_error_set(error, HEFT_ERR_PROTOCOL,
                            "the record of agent '%s' holds the metadata of '%s'%s: refused", name,
                            heft_metadata_name(metadata),
                            strcmp(heft_metadata_name(metadata), name) ? "" : " in another generation");
        heft_metadata_free(metadata);
        return rc;
    }
    *metadata_out = metadata;
    return HEFT_OK;
}

int heft_metadata_find(struct heft_directory *directory, const char *name,
                       struct heft_metadata **metadata_out, struct heft_error *error)
{
    char full[sizeof(HEFT_RECORD_AGENTS) + HEFT_NAME_MAX_BYTES];
    struct heft_record_query query = {.name = full, .agents = 1};
    struct heft_record_list list = {0};
    int rc;

    if (!name || !name[0] || strlen(name) > HEFT_NAME_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_INVALID, "an agent's name has 1 to %d bytes",
                              HEFT_NAME_MAX_BYTES);
    (void)snprintf(full, sizeof(full), HEFT_RECORD_AGENTS "%s", name);
    rc = directory->ops->list(directory, &query, &list, error);
    if (rc)
        return rc;
    if (list.count == 0)
        rc = heft_error_set(error, HEFT_ERR_NOT_FOUND,
                            "no agent '%s' is in the directory %s: it has not published, or its lease ended",
                            name, directory->address);
    else
        rc = heft_metadata_of_record(&list.records[0], metadata_out, error);
    heft_record_list_free(&list);
    return rc;
}
