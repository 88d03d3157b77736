/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata that was read: an array of regions sorted by id, replaced as a whole when newer bytes come. */
#include "agent/metadata.h"

#include "base/error.h"
#include "wire/metadata.h"

#include <stdlib.h>
#include <string.h>

struct heft_metadata {
    char name[HEFT_NAME_MAX_BYTES + 1];
    struct heft_generation generation;
    struct heft_token token;
    int has_token;
    char *addresses;
    uint64_t epoch;
    struct heft_wire_region *regions;
    uint64_t region_count;
};

static void clear(struct heft_metadata *metadata)
{
    free(metadata->addresses);
    free(metadata->regions);
}

void heft_metadata_free(struct heft_metadata *metadata)
{
    if (!metadata)
        return;
    clear(metadata);
    free(metadata);
}

/* All that the bytes hold, without what they withdraw. */
static int fill(struct heft_metadata *metadata, const struct heft_wire_metadata *wire,
                struct heft_error *error)
{
    uint32_t index;

    memcpy(metadata->name, wire->name.data, wire->name.size);
    memcpy(metadata->generation.bytes, wire->generation, HEFT_GENERATION_BYTES);
    metadata->has_token = wire->token != NULL;
    if (wire->token)
        memcpy(metadata->token.bytes, wire->token, HEFT_TOKEN_BYTES);
    metadata->epoch = wire->epoch;
    metadata->addresses = strndup(wire->addresses.data ? wire->addresses.data : "", wire->addresses.size);
    metadata->regions = calloc((size_t)wire->region_count + 1, sizeof(*metadata->regions));
    if (!metadata->addresses || !metadata->regions) {
        clear(metadata);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for metadata");
    }
    for (index = 0; index < wire->region_count; index++)
        if (heft_wire_get_metadata_region(wire, index, &metadata->regions[metadata->region_count]) == 0)
            metadata->region_count++;
    return 0;
}

int heft_metadata_read(const void *data, uint64_t size_bytes, struct heft_metadata **metadata_out,
                       struct heft_error *error)
{
    struct heft_wire_metadata wire;
    struct heft_metadata *metadata;
    int rc = heft_wire_get_metadata(data, size_bytes, &wire, error);

    if (rc)
        return rc;
    if (wire.base)
        return heft_error_set(
            error, HEFT_ERR_STATE,
            "this metadata says only what changed after epoch %llu: update with it what was "
            "read before, or export all of it",
            (unsigned long long)wire.base);
    metadata = calloc(1, sizeof(*metadata));
    if (!metadata)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for metadata");
    rc = fill(metadata, &wire, error);
    if (rc) {
        free(metadata);
        return rc;
    }
    *metadata_out = metadata;
    return 0;
}

static int check_update(const struct heft_metadata *metadata, const struct heft_wire_metadata *wire,
                        struct heft_error *error)
{
    char held[HEFT_GENERATION_TEXT_BYTES], told[HEFT_GENERATION_TEXT_BYTES];

    if (strlen(metadata->name) != wire->name.size ||
        memcmp(metadata->name, wire->name.data, wire->name.size) != 0 ||
        memcmp(metadata->generation.bytes, wire->generation, HEFT_GENERATION_BYTES) != 0)
        return heft_error_set(error, HEFT_ERR_STALE,
                              "metadata of agent '%s' (generation %s) can't be updated with that of '%.*s' "
                              "(generation %s): read it anew",
                              metadata->name, heft_generation_text(metadata->generation.bytes, held),
                              (int)wire->name.size, wire->name.data,
                              heft_generation_text(wire->generation, told));
    if (wire->epoch < metadata->epoch)
        return heft_error_set(
            error, HEFT_ERR_STALE, "metadata of agent '%s': epoch %llu is older than %llu, which is held",
            metadata->name, (unsigned long long)wire->epoch, (unsigned long long)metadata->epoch);
    if (wire->base > metadata->epoch)
        return heft_error_set(
            error, HEFT_ERR_NOT_READY,
            "metadata of agent '%s': changes after epoch %llu do not follow epoch %llu, which "
            "is held: export since that one",
            metadata->name, (unsigned long long)wire->base, (unsigned long long)metadata->epoch);
    return 0;
}

static int is_gone(const struct heft_wire_metadata *wire, uint64_t id)
{
    uint32_t low = 0, high = wire->gone_count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint64_t at = heft_wire_get_metadata_gone(wire, middle);

        if (at == id)
            return 1;
        if (at < id)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

/* `fresh` has what came; adds what was held and has not gone. Both are sorted, so is what comes out. */
static int merge(const struct heft_metadata *held, const struct heft_wire_metadata *wire,
                 struct heft_metadata *fresh, struct heft_error *error)
{
    struct heft_wire_region *merged =
        calloc((size_t)(held->region_count + fresh->region_count) + 1, sizeof(*merged));
    uint64_t left = 0, right = 0, count = 0;

    if (!merged)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for metadata");
    while (left < held->region_count || right < fresh->region_count) {
        int takes_new = left == held->region_count ||
                        (right < fresh->region_count && fresh->regions[right].id <= held->regions[left].id);

        if (takes_new && left < held->region_count && fresh->regions[right].id == held->regions[left].id)
            left++;
        if (takes_new)
            merged[count++] = fresh->regions[right++];
        else if (is_gone(wire, held->regions[left].id))
            left++;
        else
            merged[count++] = held->regions[left++];
    }
    free(fresh->regions);
    fresh->regions = merged;
    fresh->region_count = count;
    if (count > HEFT_METADATA_MAX_REGIONS)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "metadata of agent '%s': more than %u regions",
                              held->name, HEFT_METADATA_MAX_REGIONS);
    return 0;
}

int heft_metadata_update(struct heft_metadata *metadata, const void *data, uint64_t size_bytes,
                         struct heft_error *error)
{
    struct heft_metadata fresh = {0};
    struct heft_wire_metadata wire;
    int rc = heft_wire_get_metadata(data, size_bytes, &wire, error);

    if (!rc)
        rc = check_update(metadata, &wire, error);
    if (!rc)
        rc = fill(&fresh, &wire, error);
    if (rc)
        return rc;
    if (wire.base && (rc = merge(metadata, &wire, &fresh, error)) != 0) {
        clear(&fresh);
        return rc;
    }
    if (!fresh.has_token && metadata->has_token) {
        fresh.token = metadata->token;
        fresh.has_token = 1;
    }
    clear(metadata);
    *metadata = fresh;
    return 0;
}

int heft_metadata_copy(const struct heft_metadata *metadata, struct heft_metadata **copy_out)
{
    struct heft_metadata *copy = malloc(sizeof(*copy));

    if (!copy)
        return HEFT_ERR_NO_MEMORY;
    *copy = *metadata;
    copy->addresses = strdup(metadata->addresses);
    copy->regions = calloc((size_t)metadata->region_count + 1, sizeof(*copy->regions));
    if (!copy->addresses || !copy->regions) {
        heft_metadata_free(copy);
        return HEFT_ERR_NO_MEMORY;
    }
    memcpy(copy->regions, metadata->regions, (size_t)metadata->region_count * sizeof(*copy->regions));
    *copy_out = copy;
    return 0;
}

const char *heft_metadata_name(const struct heft_metadata *metadata)
{
    return metadata->name;
}

struct heft_generation heft_metadata_generation(const struct heft_metadata *metadata)
{
    return metadata->generation;
}

const char *heft_metadata_addresses(const struct heft_metadata *metadata)
{
    return metadata->addresses;
}

uint64_t heft_metadata_epoch(const struct heft_metadata *metadata)
{
    return metadata->epoch;
}

uint64_t heft_metadata_region_count(const struct heft_metadata *metadata)
{
    return metadata->region_count;
}

int heft_metadata_get_region(const struct heft_metadata *metadata, uint64_t index,
                             struct heft_metadata_region *region_out)
{
    const struct heft_wire_region *region;
    struct heft_metadata_region told = {0};

    if (region_out->size < sizeof(region_out->size) || region_out->size > sizeof(told))
        return HEFT_ERR_INVALID;
    if (index >= metadata->region_count)
        return HEFT_ERR_RANGE;
    region = &metadata->regions[index];
    told = (struct heft_metadata_region){region_out->size, region->id, (enum heft_space)region->space,
                                         region->flags, region->length_bytes};
    memcpy(region_out, &told, region_out->size);
    return 0;
}

int heft_metadata_find_region(const struct heft_metadata *metadata, uint64_t id,
                              struct heft_metadata_region *region_out)
{
    uint64_t low = 0, high = metadata->region_count;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (metadata->regions[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == metadata->region_count || metadata->regions[low].id != id)
        return HEFT_ERR_NOT_FOUND;
    return heft_metadata_get_region(metadata, low, region_out);
}

/* ---- over the connection ---- */

int heft_metadata_connect(struct heft_agent *agent, const struct heft_metadata *metadata,
                          const struct heft_peer_options *given, struct heft_peer **peer_out,
                          struct heft_error *error)
{
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    int rc = heft_options_copy(&options, sizeof(options), given, error);

    if (rc)
        return rc;
    if (!metadata->addresses[0])
        return heft_error_set(
            error, HEFT_ERR_INVALID,
            "the metadata of agent '%s' holds no address: it does not listen, or was exported "
            "without",
            metadata->name);
    options.addresses = metadata->addresses;
    options.name = metadata->name;
    options.generation = metadata->generation;
    if (metadata->has_token)
        options.token = metadata->token;
    return heft_peer_connect(agent, &options, peer_out, error);
}

static int compare_regions(const void *left, const void *right)
{
    uint64_t a = ((const struct heft_wire_region *)left)->id,
             b = ((const struct heft_wire_region *)right)->id;

    return a < b ? -1 : a > b;
}

/* region_lock held. */
static void take_peer_regions(const struct heft_peer *peer, struct heft_metadata *metadata)
{
    size_t bucket;

    for (bucket = 0; bucket < peer->regions.capacity; bucket++) {
        const struct heft_table_node *node = peer->regions.buckets[bucket];

        for (; node; node = node->next) {
            const struct heft_region *region =
                (const struct heft_region *)(const void *)((const char *)node -
                                                           offsetof(struct heft_region, node));

            metadata->regions[metadata->region_count++] = (struct heft_wire_region){
                .id = region->t.id,
                .space = (uint8_t)region->t.space,
                .flags = region->t.flags,
                .length_bytes = region->t.length_bytes,
            };
        }
    }
    metadata->epoch = peer->region_epoch;
}

int heft_peer_get_metadata(struct heft_peer *peer, struct heft_metadata **metadata_out,
                           struct heft_error *error)
{
    struct heft_metadata *metadata;
    int rc = heft_peer_status(peer, error);

    if (rc)
        return rc;
    metadata = calloc(1, sizeof(*metadata));
    if (!metadata)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for metadata");
    memcpy(metadata->name, peer->name, sizeof(metadata->name));
    metadata->generation = peer->generation;
    metadata->addresses = strdup("");
    (void)pthread_mutex_lock(&peer->map_lock);
    (void)pthread_mutex_lock(&peer->agent->region_lock);
    metadata->regions = calloc(peer->regions.count + 1, sizeof(*metadata->regions));
    if (metadata->regions)
        take_peer_regions(peer, metadata);
    (void)pthread_mutex_unlock(&peer->agent->region_lock);
    (void)pthread_mutex_unlock(&peer->map_lock);
    if (!metadata->addresses || !metadata->regions) {
        heft_metadata_free(metadata);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for metadata");
    }
    qsort(metadata->regions, metadata->region_count, sizeof(*metadata->regions), compare_regions);
    *metadata_out = metadata;
    return 0;
}
