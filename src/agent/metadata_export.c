/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata of this agent, as bytes. Regions are announced by their sequence, which is the epoch at which they
 * came; of those that went the newest ones are remembered.
 */
#include "agent/address.h"
#include "agent/metadata.h"
#include "agent/table.h"

#include "base/error.h"
#include "wire/metadata.h"

#include <stdlib.h>
#include <string.h>

#define HOOKS_MAX 16
#define REMOTE_FLAGS (HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE)

struct heft_departed {
    uint64_t epoch, id;
};

struct heft_regions_hook {
    struct heft_regions_hook *next;
    void (*call)(void *context);
    void *context;
};

void heft_departed_add(struct heft_agent *agent, uint64_t epoch, uint64_t id)
{
    struct heft_departed *at;

    if (!agent->departed)
        agent->departed = calloc(HEFT_AGENT_DEPARTED_MAX, sizeof(*agent->departed));
    if (!agent->departed) { /* nothing before this epoch can be told as a change */
        agent->departed_floor = epoch;
        return;
    }
    at = &agent->departed[agent->departed_count % HEFT_AGENT_DEPARTED_MAX];
    if (agent->departed_count >= HEFT_AGENT_DEPARTED_MAX)
        agent->departed_floor = at->epoch;
    *at = (struct heft_departed){epoch, id};
    agent->departed_count++;
}

void heft_regions_changed(struct heft_agent *agent)
{
    struct heft_regions_hook *hook;

    for (hook = agent->regions_hooks; hook; hook = hook->next)
        hook->call(hook->context);
}

int heft_agent_set_regions_hook(struct heft_agent *agent, void (*call)(void *context), void *context)
{
    struct heft_regions_hook **at, *hook = call ? calloc(1, sizeof(*hook)) : NULL, *old = NULL;
    int count = 0, rc = call && !hook ? HEFT_ERR_NO_MEMORY : HEFT_OK;

    if (rc)
        return rc;
    (void)pthread_mutex_lock(&agent->region_lock);
    for (at = &agent->regions_hooks; *at && (*at)->context != context; at = &(*at)->next)
        count++;
    old = *at;
    if (hook && !old && count >= HOOKS_MAX) {
        rc = HEFT_ERR_TOO_MANY;
        old = hook;
    } else if (hook) {
        *hook = (struct heft_regions_hook){old ? old->next : NULL, call, context};
        *at = hook;
    } else if (old) {
        *at = old->next;
    }
    (void)pthread_mutex_unlock(&agent->region_lock);
    free(old);
    return rc;
}

void heft_regions_hooks_clear(struct heft_agent *agent)
{
    while (agent->regions_hooks) {
        struct heft_regions_hook *hook = agent->regions_hooks;

        agent->regions_hooks = hook->next;
        free(hook);
    }
    free(agent->departed);
}

uint64_t heft_agent_metadata_epoch(const struct heft_agent *agent)
{
    struct heft_agent *self = heft_agent_self(agent);
    uint64_t epoch;

    (void)pthread_mutex_lock(&self->region_lock);
    epoch = self->region_epoch;
    (void)pthread_mutex_unlock(&self->region_lock);
    return epoch;
}

/* ---- which addresses ---- */

static int kind_is_wanted(const char *kinds, const char *kind, size_t kind_bytes)
{
    const char *at = kinds;

    while (*at) {
        size_t size = strcspn(at, ",");

        if (size == kind_bytes && memcmp(at, kind, size) == 0)
            return 1;
        at += size + (at[size] == ',');
    }
    return 0;
}

static int check_kinds(const char *kinds, struct heft_error *error)
{
    const char *at = kinds;

    while (*at) {
        size_t size = strcspn(at, ",");

        if (!(size == 4 && (memcmp(at, "unix", 4) == 0 || memcmp(at, "none", 4) == 0)) &&
            !(size == 3 && memcmp(at, "tcp", 3) == 0))
            return heft_error_set(error, HEFT_ERR_INVALID,
                                  "metadata: '%.*s' is no kind of address; unix, tcp and none are known",
                                  (int)(size < 40 ? size : 40), at);
        at += size + (at[size] == ',');
    }
    return 0;
}

/* The agent's addresses of these kinds, comma-separated. */
static int choose_addresses(struct heft_agent *agent, const char *kinds, char text_out[4096],
                            struct heft_error *error)
{
    char all[HEFT_AGENT_ADDRESS_BYTES * 2];
    const char *at = all;
    size_t used = 0;
    int rc = heft_agent_addresses(agent, all, sizeof(all));

    if (rc)
        return heft_error_set(error, rc, "metadata: the agent's addresses: %s", heft_error_text(rc));
    if (kinds && (rc = check_kinds(kinds, error)) != 0)
        return rc;
    while (*at) {
        size_t size = strcspn(at, ","), kind_bytes = strcspn(at, ":");

        if (!kinds || kind_is_wanted(kinds, at, kind_bytes)) {
            if (used)
                text_out[used++] = ',';
            memcpy(text_out + used, at, size);
            used += size;
        }
        at += size + (at[size] == ',');
    }
    text_out[used] = 0;
    return 0;
}

/* ---- which regions ---- */

struct gathered {
    struct heft_wire_region *regions;
    uint64_t *gone;
    uint32_t region_count, gone_count;
    uint64_t epoch, base;
};

static int compare_regions(const void *left, const void *right)
{
    uint64_t a = ((const struct heft_wire_region *)left)->id,
             b = ((const struct heft_wire_region *)right)->id;

    return a < b ? -1 : a > b;
}

static int compare_ids(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return a < b ? -1 : a > b;
}

static void take_region(struct gathered *gathered, const struct heft_region *region)
{
    gathered->regions[gathered->region_count++] = (struct heft_wire_region){
        .id = region->t.id,
        .space = (uint8_t)region->t.space,
        .flags = region->t.flags,
        .length_bytes = region->t.length_bytes,
    };
}

int heft_metadata_choose(struct heft_agent *agent, const struct heft_metadata_options *options,
                         uint64_t **ids_out, struct heft_error *error)
{
    uint64_t *ids;
    size_t index;
    int rc = 0;

    *ids_out = NULL;
    if (!options->regions)
        return options->region_count
                   ? heft_error_set(error, HEFT_ERR_INVALID, "metadata: %zu regions, but none is named",
                                    options->region_count)
                   : 0;
    ids = calloc(options->region_count + 1, sizeof(*ids));
    if (!ids)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for metadata");
    (void)pthread_mutex_lock(&agent->region_lock);
    for (index = 0; !rc && index < options->region_count; index++) {
        const struct heft_region *region = options->regions[index];

        if (!region || region->agent != agent || region->peer || region->state != HEFT_REGION_LIVE ||
            !(region->t.flags & REMOTE_FLAGS))
            rc = heft_error_set(
                error, HEFT_ERR_INVALID,
                "metadata: region %zu of the choice is not one of this agent that peers may use", index);
        else
            ids[index] = region->t.id;
    }
    (void)pthread_mutex_unlock(&agent->region_lock);
    if (rc)
        free(ids);
    else
        *ids_out = ids;
    return rc;
}

/* region_lock held. */
static void take_regions(struct heft_agent *agent, const uint64_t *ids, size_t id_count,
                         struct gathered *gathered)
{
    const struct heft_region *region;
    size_t index;

    for (index = 0; ids && index < id_count; index++) {
        region = heft_region_find(&agent->regions, ids[index]);
        if (region && region->sequence > gathered->base)
            take_region(gathered, region);
    }
    for (region = ids ? NULL : agent->region_last; region && region->sequence > gathered->base;
         region = region->prev)
        if (region->state == HEFT_REGION_LIVE && (region->t.flags & REMOTE_FLAGS))
            take_region(gathered, region);
}

/* region_lock held. */
static void take_departed(const struct heft_agent *agent, struct gathered *gathered)
{
    uint64_t at = agent->departed_count, kept = at < HEFT_AGENT_DEPARTED_MAX ? at : HEFT_AGENT_DEPARTED_MAX;

    for (; kept > 0; kept--) {
        const struct heft_departed *departed = &agent->departed[--at % HEFT_AGENT_DEPARTED_MAX];

        if (departed->epoch <= gathered->base)
            break;
        gathered->gone[gathered->gone_count++] = departed->id;
    }
}

static size_t most_departed(const struct heft_agent *agent, uint64_t base)
{
    uint64_t since = agent->region_epoch - base;

    return (size_t)(since < HEFT_AGENT_DEPARTED_MAX ? since : HEFT_AGENT_DEPARTED_MAX);
}

static int gather(struct heft_agent *agent, uint64_t since_epoch, const uint64_t *ids, size_t id_count,
                  struct gathered *gathered, struct heft_error *error)
{
    uint32_t index, kept = 0;
    size_t most;
    int rc = 0;

    (void)pthread_mutex_lock(&agent->region_lock);
    gathered->epoch = agent->region_epoch;
    gathered->base = since_epoch;
    if (gathered->base > gathered->epoch || gathered->base < agent->departed_floor)
        gathered->base = 0; /* another life's epoch, or forgotten: everything */
    most = ids ? id_count : agent->regions.count;
    gathered->regions = calloc(most + 1, sizeof(*gathered->regions));
    if (gathered->base)
        gathered->gone = calloc(most_departed(agent, gathered->base) + 1, sizeof(*gathered->gone));
    if (!gathered->regions || (gathered->base && !gathered->gone))
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for metadata");
    else if (most > HEFT_METADATA_MAX_REGIONS)
        rc = heft_error_set(error, HEFT_ERR_TOO_MANY, "metadata of %zu regions, the limit is %u", most,
                            HEFT_METADATA_MAX_REGIONS);
    else
        take_regions(agent, ids, id_count, gathered);
    if (!rc && gathered->base)
        take_departed(agent, gathered);
    (void)pthread_mutex_unlock(&agent->region_lock);
    if (rc)
        return rc;
    qsort(gathered->regions, gathered->region_count, sizeof(*gathered->regions), compare_regions);
    for (index = 0; index < gathered->region_count; index++) /* one that was chosen twice is told once */
        if (kept == 0 || gathered->regions[kept - 1].id != gathered->regions[index].id)
            gathered->regions[kept++] = gathered->regions[index];
    gathered->region_count = kept;
    if (gathered->gone)
        qsort(gathered->gone, gathered->gone_count, sizeof(*gathered->gone), compare_ids);
    return 0;
}

int heft_metadata_export(struct heft_agent *agent, const struct heft_metadata_options *options,
                         const uint64_t *ids, size_t id_count, void **data_out, uint64_t *size_bytes_out,
                         struct heft_error *error)
{
    struct heft_wire_metadata metadata = {0};
    struct gathered gathered = {0};
    char addresses[HEFT_AGENT_ADDRESS_BYTES * 2];
    struct heft_buf buf;
    uint32_t index;
    int rc = 0;

    if (options->flags & ~(uint32_t)HEFT_METADATA_NO_TOKEN)
        rc = heft_error_set(error, HEFT_ERR_INVALID, "unknown metadata flags 0x%x", options->flags);
    if (!rc)
        rc = choose_addresses(agent, options->addresses, addresses, error);
    if (rc)
        return rc;
    heft_buf_init(&buf, HEFT_METADATA_MAX_BYTES);
    rc = gather(agent, options->since_epoch, ids, id_count, &gathered, error);
    if (!rc) {
        metadata.name = (struct heft_wire_text){agent->name, strlen(agent->name)};
        metadata.addresses = (struct heft_wire_text){addresses, strlen(addresses)};
        metadata.generation = agent->generation.bytes;
        metadata.token = options->flags & HEFT_METADATA_NO_TOKEN ? NULL : agent->token.bytes;
        metadata.epoch = gathered.epoch;
        metadata.base = gathered.base;
        metadata.region_count = gathered.region_count;
        heft_wire_put_metadata(&buf, &metadata);
        for (index = 0; index < gathered.region_count; index++)
            heft_wire_put_metadata_region(&buf, &gathered.regions[index]);
        rc = heft_wire_finish_metadata(&buf, gathered.gone, gathered.gone_count);
        if (rc)
            (void)heft_error_set(error, rc, "metadata of agent %s: %s", agent->name, heft_error_text(rc));
    }
    free(gathered.regions);
    free(gathered.gone);
    if (rc) {
        heft_buf_free(&buf);
        return rc;
    }
    *data_out = buf.data;
    *size_bytes_out = buf.size;
    return 0;
}

int heft_agent_export_metadata(struct heft_agent *agent, const struct heft_metadata_options *given,
                               void **data_out, uint64_t *size_bytes_out, struct heft_error *error)
{
    struct heft_metadata_options options = HEFT_METADATA_OPTIONS_INIT;
    uint64_t *ids;
    int rc = heft_options_copy(&options, sizeof(options), given, error);

    if (!rc)
        rc = heft_metadata_choose(agent, &options, &ids, error);
    if (rc)
        return rc;
    rc = heft_metadata_export(agent, &options, ids, options.region_count, data_out, size_bytes_out, error);
    free(ids);
    return rc;
}
