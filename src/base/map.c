/* SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/random.h"

#include <stdlib.h>
#include <string.h>

void heft_map_init(struct heft_map *map)
{
    *map = (struct heft_map){0};
    heft_random_bytes(&map->seed, sizeof(map->seed));
}

void heft_map_free(struct heft_map *map)
{
    free(map->slots);
    map->slots = NULL;
    map->capacity = map->count = 0;
}

/* The key's slot, or the empty one where it would go. The map is never full. */
static struct heft_map_slot *find(const struct heft_map *map, const char *key, size_t key_bytes,
                                  uint64_t hash)
{
    size_t mask = map->capacity - 1;
    size_t index = (size_t)hash & mask;

    while (map->slots[index].key) {
        struct heft_map_slot *slot = &map->slots[index];

        if (slot->hash == hash && slot->key_bytes == key_bytes && memcmp(slot->key, key, key_bytes) == 0)
            return slot;
        index = (index + 1) & mask;
    }
    return &map->slots[index];
}

static int resize(struct heft_map *map, size_t capacity)
{
    struct heft_map_slot *old = map->slots;
    size_t old_capacity = map->capacity;
    struct heft_map_slot *slots = calloc(capacity, sizeof(*slots));
    size_t index;

    if (!slots)
        return HEFT_ERR_NO_MEMORY;
    map->slots = slots;
    map->capacity = capacity;
    for (index = 0; index < old_capacity; index++)
        if (old[index].key)
            *find(map, old[index].key, old[index].key_bytes, old[index].hash) = old[index];
    free(old);
    return HEFT_OK;
}

int heft_map_reserve(struct heft_map *map, size_t count)
{
    size_t capacity = 16;

    while (capacity / 4 * 3 < count) {
        if (capacity > SIZE_MAX / 4 / sizeof(struct heft_map_slot))
            return HEFT_ERR_NO_MEMORY;
        capacity *= 2;
    }
    return capacity > map->capacity ? resize(map, capacity) : HEFT_OK;
}

int heft_map_put(struct heft_map *map, const char *key, size_t key_bytes, uint64_t value, int *existed_out,
                 uint64_t *old_out)
{
    uint64_t hash = heft_hash64(key, key_bytes, map->seed);
    struct heft_map_slot *slot;
    int rc;

    if (map->count + 1 > map->capacity / 4 * 3) {
        rc = heft_map_reserve(map, map->count + 1 + map->count / 2);
        if (rc)
            return rc;
    }
    slot = find(map, key, key_bytes, hash);
    if (existed_out)
        *existed_out = slot->key != NULL;
    if (slot->key) {
        if (old_out)
            *old_out = slot->value;
    } else {
        map->count++;
    }
    *slot = (struct heft_map_slot){.key = key, .key_bytes = key_bytes, .hash = hash, .value = value};
    return HEFT_OK;
}

int heft_map_get(const struct heft_map *map, const char *key, size_t key_bytes, uint64_t *value_out)
{
    const struct heft_map_slot *slot;

    if (map->count == 0)
        return 0;
    slot = find(map, key, key_bytes, heft_hash64(key, key_bytes, map->seed));
    if (!slot->key)
        return 0;
    *value_out = slot->value;
    return 1;
}
