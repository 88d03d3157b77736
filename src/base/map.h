/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A map from byte strings to 64-bit numbers (open addressing, XXH3 with a random seed, so that names from
 * outside can't choose their collisions). Keys are not copied: they must outlive the map.
 */
#ifndef HEFT_BASE_MAP_H
#define HEFT_BASE_MAP_H

#include <stddef.h>
#include <stdint.h>

struct heft_map_slot {
    const char *key; /* NULL: empty */
    size_t key_bytes;
    uint64_t hash;
    uint64_t value;
};

struct heft_map {
    struct heft_map_slot *slots;
    size_t capacity; /* a power of two, or 0 */
    size_t count;
    uint64_t seed;
};

void heft_map_init(struct heft_map *map);
void heft_map_free(struct heft_map *map);
/* Room for `count` keys without growing again. 0 or NO_MEMORY. */
int heft_map_reserve(struct heft_map *map, size_t count);
/* Sets key to value. When the key was there: *existed_out = 1 and *old_out its value (both may be NULL). */
int heft_map_put(struct heft_map *map, const char *key, size_t key_bytes, uint64_t value, int *existed_out,
                 uint64_t *old_out);
/* 1 when found. */
int heft_map_get(const struct heft_map *map, const char *key, size_t key_bytes, uint64_t *value_out);

#endif
