/* SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/pages.h"
#include "base/random.h"

#include <stdlib.h>
#include <string.h>

#define KEYS_AHEAD 16u /* hashed before they are put */

void heft_map_init(struct heft_map *map)
{
    *map = (struct heft_map){0};
    heft_random_bytes(&map->seed, sizeof(map->seed));
}

void heft_map_free(struct heft_map *map)
{
    free(map->slots);
    free(map->entries);
    map->slots = NULL;
    map->entries = NULL;
    map->capacity = map->entry_capacity = map->count = 0;
}

/* The key's slot, or the empty one where it would go. The table is never full. */
static struct heft_map_slot *find(const struct heft_map *map, const char *key, size_t key_bytes,
                                  uint64_t hash)
{
    size_t mask = map->capacity - 1;
    size_t index = (size_t)hash & mask;
    uint32_t tag = (uint32_t)(hash >> 32);

    for (; map->slots[index].number; index = (index + 1) & mask) {
        const struct heft_map_entry *entry;

        if (map->slots[index].tag != tag)
            continue;
        entry = &map->entries[map->slots[index].number - 1];
        if (entry->key_bytes == key_bytes && (key_bytes == 0 || memcmp(entry->key, key, key_bytes) == 0))
            break;
    }
    return &map->slots[index];
}

static int grow_entries(struct heft_map *map, size_t count)
{
    struct heft_map_entry *entries;

    if (count <= map->entry_capacity)
        return HEFT_OK;
    if (count > SIZE_MAX / sizeof(*entries))
        return HEFT_ERR_NO_MEMORY;
    entries = realloc(map->entries, count * sizeof(*entries));
    if (!entries)
        return HEFT_ERR_NO_MEMORY;
    heft_pages_expect_filled(entries, count * sizeof(*entries));
    map->entries = entries;
    map->entry_capacity = count;
    return HEFT_OK;
}

/* The keys' hashes are made again: a map whose size is known beforehand grows once. */
static int grow_slots(struct heft_map *map, size_t capacity)
{
    struct heft_map_slot *slots;
    size_t index, at;

    if (capacity <= map->capacity)
        return HEFT_OK;
    slots = calloc(capacity, sizeof(*slots));
    if (!slots)
        return HEFT_ERR_NO_MEMORY;
    heft_pages_expect_filled(slots, capacity * sizeof(*slots));
    for (index = 0; index < map->count; index++) {
        uint64_t hash = heft_hash64(map->entries[index].key, map->entries[index].key_bytes, map->seed);

        for (at = (size_t)hash & (capacity - 1); slots[at].number; at = (at + 1) & (capacity - 1))
            ;
        slots[at] = (struct heft_map_slot){(uint32_t)(hash >> 32), (uint32_t)index + 1};
    }
    free(map->slots);
    map->slots = slots;
    map->capacity = capacity;
    return HEFT_OK;
}

int heft_map_reserve(struct heft_map *map, size_t count)
{
    size_t capacity = 16;
    int rc;

    if (count >= UINT32_MAX)
        return HEFT_ERR_NO_MEMORY;
    while (capacity / 8 * 7 < count) {
        if (capacity > SIZE_MAX / 4 / sizeof(struct heft_map_slot))
            return HEFT_ERR_NO_MEMORY;
        capacity *= 2;
    }
    rc = grow_entries(map, count);
    return rc ? rc : grow_slots(map, capacity);
}

/* There is room for one more entry. The entry's number, *existed_out tells whether it was there. */
static size_t put(struct heft_map *map, uint64_t hash, const char *key, size_t key_bytes, int *existed_out)
{
    struct heft_map_slot *slot = find(map, key, key_bytes, hash);

    *existed_out = slot->number != 0;
    if (!slot->number) {
        map->entries[map->count] = (struct heft_map_entry){key, 0, (uint32_t)key_bytes};
        *slot = (struct heft_map_slot){(uint32_t)(hash >> 32), (uint32_t)++map->count};
    }
    return slot->number - 1;
}

int heft_map_put(struct heft_map *map, const char *key, size_t key_bytes, uint64_t value, int *existed_out,
                 uint64_t *old_out)
{
    struct heft_map_entry *entry;
    int rc, existed;

    if (key_bytes > UINT32_MAX)
        return HEFT_ERR_NO_MEMORY;
    if (map->count == map->entry_capacity || map->count + 1 > map->capacity / 8 * 7) {
        rc = heft_map_reserve(map, map->count + map->count / 2 + 8);
        if (rc)
            return rc;
    }
    entry = &map->entries[put(map, heft_hash64(key, key_bytes, map->seed), key, key_bytes, &existed)];
    if (existed_out)
        *existed_out = existed;
    if (existed && old_out)
        *old_out = entry->value;
    entry->key = key;
    entry->value = value;
    return HEFT_OK;
}

int heft_map_put_all(struct heft_map *map, size_t count, heft_map_key *key_of, const void *context,
                     size_t *number_out, uint64_t *old_out)
{
    struct {
        uint64_t hash;
        const char *key;
        size_t key_bytes;
    } ahead[KEYS_AHEAD], *at;
    size_t number, entry;
    int existed,
        rc = count > SIZE_MAX - map->count ? HEFT_ERR_NO_MEMORY : heft_map_reserve(map, map->count + count);

    for (number = 0; !rc && number < count + KEYS_AHEAD; number++) {
        at = &ahead[number % KEYS_AHEAD];
        if (number >= KEYS_AHEAD && number - KEYS_AHEAD < count) {
            entry = put(map, at->hash, at->key, at->key_bytes, &existed);
            if (existed) {
                *number_out = number - KEYS_AHEAD;
                *old_out = map->entries[entry].value;
                return HEFT_ERR_EXISTS;
            }
            map->entries[entry].value = number - KEYS_AHEAD;
        }
        if (number < count) {
            at->key = key_of(context, number, &at->key_bytes);
            if (at->key_bytes > UINT32_MAX)
                return HEFT_ERR_NO_MEMORY;
            at->hash = heft_hash64(at->key, at->key_bytes, map->seed);
            __builtin_prefetch(&map->slots[(size_t)at->hash & (map->capacity - 1)], 1);
        }
    }
    return rc;
}

int heft_map_get(const struct heft_map *map, const char *key, size_t key_bytes, uint64_t *value_out)
{
    const struct heft_map_slot *slot;

    if (map->count == 0)
        return 0;
    slot = find(map, key, key_bytes, heft_hash64(key, key_bytes, map->seed));
    if (!slot->number)
        return 0;
    *value_out = map->entries[slot->number - 1].value;
    return 1;
}
