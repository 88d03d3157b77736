/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A map from byte strings to 64-bit numbers (open addressing, XXH3 with a random seed, so that names from
 * outside can't choose their collisions). Keys are not copied: they must outlive the map. At most 2^32 - 2 of
 * them, each below 4 GiB.
 *
 * Entries stand in the order in which they came. What is searched is a table of eight bytes a slot beside
 * them: of a model's hundred thousands of names it stays in the processor's cache, and a name is looked at
 * only when 32 bits of its hash agree.
 */
#ifndef HEFT_BASE_MAP_H
#define HEFT_BASE_MAP_H

#include <stddef.h>
#include <stdint.h>

struct heft_map_slot {
    uint32_t tag;    /* the hash's upper half */
    uint32_t number; /* of the entry, counted from 1; 0: empty */
};

struct heft_map_entry {
    const char *key;
    uint64_t value;
    uint32_t key_bytes;
};

struct heft_map {
    struct heft_map_slot *slots;
    size_t capacity; /* of slots: a power of two, or 0 */
    struct heft_map_entry *entries;
    size_t entry_capacity;
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
/*
 * Puts `count` keys with their numbers as values, which is faster than one by one: the next ones' slots come
 * into the cache meanwhile. EXISTS at the first key that is there already: its number, and the value before.
 */
typedef const char *heft_map_key(const void *context, size_t number, size_t *key_bytes_out);
int heft_map_put_all(struct heft_map *map, size_t count, heft_map_key *key_of, const void *context,
                     size_t *number_out, uint64_t *old_out);
/* 1 when found. */
int heft_map_get(const struct heft_map *map, const char *key, size_t key_bytes, uint64_t *value_out);

#endif
