/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Order among entries, in linear time and without touching memory at random where that can be avoided: a
 * million names in one hash table cost a cache miss each, more than all their parsing.
 */
#include "base/digest.h"
#include "base/random.h"
#include "format/safetensors_private.h"

#include <stdlib.h>
#include <string.h>

/* ---- repeated names ---- */

/* Tensors and metadata pairs alike: items that begin with a pointer to their name. */
struct names {
    const void *items;
    uint64_t count;
    size_t item_bytes;
    size_t length_at; /* of the name's 32-bit length in an item */
    uint64_t seed;    /* so that nobody can choose names that collide */
};

_Static_assert(offsetof(struct heft_st_tensor, name) == 0, "the name stands first");
_Static_assert(offsetof(struct heft_st_pair, key) == 0, "the key stands first");

struct name {
    const char *bytes;
    uint32_t size;
};

static struct name name_of(const struct names *names, uint64_t index)
{
    const uint8_t *item = (const uint8_t *)names->items + index * names->item_bytes;
    struct name name;

    memcpy(&name.bytes, item, sizeof(name.bytes));
    memcpy(&name.size, item + names->length_at, sizeof(name.size));
    return name;
}

/* Never 0, which means an empty place. */
static uint64_t hash_of(const struct names *names, struct name name)
{
    return heft_hash64(name.bytes, name.size, names->seed) | 1;
}

static struct names names_of_tensors(const struct heft_st_tensor *tensors, uint64_t count)
{
    return (struct names){.items = tensors,
                          .count = count,
                          .item_bytes = sizeof(*tensors),
                          .length_at = offsetof(struct heft_st_tensor, name_bytes)};
}

static struct names names_of_pairs(const struct heft_st_pair *pairs, uint64_t count)
{
    return (struct names){.items = pairs,
                          .count = count,
                          .item_bytes = sizeof(*pairs),
                          .length_at = offsetof(struct heft_st_pair, key_bytes)};
}

/* The power of two from `count` x 4/3 on. */
static uint64_t table_places(uint64_t count)
{
    uint64_t places = 4;

    while (places / 4 * 3 < count)
        places *= 2;
    return places;
}

#define PART_BITS_MAX 11
#define PART_NAMES 1024 /* in one part: its table fits the first cache */

/* 1 when two hashes of a part are equal. */
static int part_repeats(const uint64_t *hashes, uint64_t count, uint64_t *table, uint64_t places)
{
    uint64_t index;

    memset(table, 0, places * sizeof(*table));
    for (index = 0; index < count; index++) {
        /* The top bits chose the part, the lowest is always 1. */
        uint64_t place = hashes[index] >> 8 & (places - 1);

        while (table[place]) {
            if (table[place] == hashes[index])
                return 1;
            place = (place + 1) & (places - 1);
        }
        table[place] = hashes[index];
    }
    return 0;
}

/* Moves the hashes into parts by their top bits; ends_out[part] is where it ends. */
static void scatter(const uint64_t *hashes, uint64_t count, unsigned bits, uint64_t *parted, uint64_t *ends)
{
    uint64_t index, sum = 0;

    for (index = 0; index < count; index++)
        ends[hashes[index] >> (64 - bits)]++;
    for (index = 0; index < UINT64_C(1) << bits; index++) {
        uint64_t size = ends[index];

        ends[index] = sum;
        sum += size;
    }
    for (index = 0; index < count; index++)
        parted[ends[hashes[index] >> (64 - bits)]++] = hashes[index];
}

static int parts_repeat(const uint64_t *parted, const uint64_t *ends, uint64_t parts)
{
    uint64_t largest = 0, from = 0, part, places;
    uint64_t *table;
    int found = 0;

    for (part = 0; part < parts; part++) {
        if (ends[part] - from > largest)
            largest = ends[part] - from;
        from = ends[part];
    }
    /* Different names spread evenly: a part eight times too large is full of equal ones. */
    if (largest > 8 * ((from >> PART_BITS_MAX) + PART_NAMES))
        return 1;
    places = table_places(largest);
    table = malloc(places * sizeof(*table));
    if (!table)
        return HEFT_ERR_NO_MEMORY;
    for (part = 0, from = 0; part < parts && !found; part++) {
        found = part_repeats(parted + from, ends[part] - from, table, places);
        from = ends[part];
    }
    free(table);
    return found;
}

/* 1 when two names may be equal: their 64-bit hashes are. */
static int may_repeat(const struct names *names)
{
    uint64_t ends[1 << PART_BITS_MAX] = {0};
    uint64_t *hashes, *parted;
    unsigned bits = 1;
    uint64_t index;
    int rc = HEFT_ERR_NO_MEMORY;

    while (bits < PART_BITS_MAX && names->count >> bits > PART_NAMES)
        bits++;
    hashes = malloc(names->count * sizeof(*hashes));
    parted = malloc(names->count * sizeof(*parted));
    if (hashes && parted) {
        heft_st_expect_filled(hashes, names->count * sizeof(*hashes));
        heft_st_expect_filled(parted, names->count * sizeof(*parted));
        for (index = 0; index < names->count; index++)
            hashes[index] = hash_of(names, name_of(names, index));
        scatter(hashes, names->count, bits, parted, ends);
        rc = parts_repeat(parted, ends, UINT64_C(1) << bits);
    }
    free(parted);
    free(hashes);
    return rc;
}

#define COUNTED (UINT32_C(1) << 31) /* on a place: its name was seen again */

/*
 * From the last name to the first: what is known already gets its bit in `repeats`. Names are compared
 * themselves here; hashes only choose places. Below 2^31 names: an entry takes 6 bytes or more of at most
 * 4 GiB. Returns how many names stand more than once, or NO_MEMORY.
 */
static int64_t mark_repeated(const struct names *names, uint8_t *repeats)
{
    uint64_t places = table_places(names->count);
    uint32_t *table = calloc(places, sizeof(*table));
    int64_t repeated = 0;
    uint64_t index;

    if (!table)
        return HEFT_ERR_NO_MEMORY;
    for (index = names->count; index-- > 0;) {
        struct name name = name_of(names, index);
        uint64_t place = hash_of(names, name) >> 8 & (places - 1);

        for (; table[place]; place = (place + 1) & (places - 1)) {
            struct name kept = name_of(names, (table[place] & ~COUNTED) - 1);

            if (kept.size == name.size && memcmp(kept.bytes, name.bytes, name.size) == 0)
                break;
        }
        if (!table[place]) {
            table[place] = (uint32_t)index + 1;
            continue;
        }
        repeated += !(table[place] & COUNTED);
        table[place] |= COUNTED;
        repeats[index / 8] |= (uint8_t)(1 << index % 8);
    }
    free(table);
    return repeated;
}

/* How many names stand more than once. When there are any, *repeats_out (to be freed) has a bit for each item
 * that a later one replaces. */
static int64_t find_repeated(struct names *names, uint8_t **repeats_out)
{
    uint8_t *repeats;
    int64_t repeated;

    if (names->count < 2)
        return 0;
    heft_random_bytes(&names->seed, sizeof(names->seed));
    repeated = may_repeat(names);
    if (repeated <= 0)
        return repeated;
    repeats = calloc(names->count / 8 + 1, 1);
    if (!repeats)
        return HEFT_ERR_NO_MEMORY;
    repeated = mark_repeated(names, repeats);
    if (repeated > 0)
        *repeats_out = repeats;
    else
        free(repeats);
    return repeated;
}

static int is_marked(const uint8_t *repeats, uint64_t index)
{
    return repeats[index / 8] >> index % 8 & 1;
}

static int drop_repeated_pairs(struct heft_st_header *header)
{
    struct names names = names_of_pairs(header->metadata, header->metadata_count);
    uint8_t *repeats = NULL;
    int64_t repeated = find_repeated(&names, &repeats);
    uint64_t kept = 0, index;

    if (repeated <= 0)
        return (int)repeated;
    for (index = 0; index < header->metadata_count; index++)
        if (!is_marked(repeats, index))
            header->metadata[kept++] = header->metadata[index];
    header->metadata_count = kept;
    free(repeats);
    return HEFT_OK;
}

int heft_st_drop_repeated(struct heft_st_header *header)
{
    struct names names = names_of_tensors(header->tensors, header->tensor_count);
    uint8_t *repeats = NULL;
    int64_t repeated = find_repeated(&names, &repeats);
    uint64_t kept = 0, index;

    if (repeated < 0)
        return HEFT_ERR_NO_MEMORY;
    if (repeated > 0) {
        for (index = 0; index < header->tensor_count; index++)
            if (!is_marked(repeats, index))
                header->tensors[kept++] = header->tensors[index];
        header->tensor_count = kept;
        header->repeated_names = (uint64_t)repeated;
        free(repeats);
    }
    return drop_repeated_pairs(header);
}

static int first_repeated(struct names *names, uint64_t *index_out)
{
    uint8_t *repeats = NULL;
    int64_t repeated = find_repeated(names, &repeats);
    uint64_t index = 0;

    if (repeated <= 0)
        return (int)repeated;
    while (!is_marked(repeats, index))
        index++;
    free(repeats);
    *index_out = index;
    return 1;
}

int heft_st_repeated_tensor(const struct heft_st_tensor *tensors, uint64_t count, uint64_t *index_out)
{
    struct names names = names_of_tensors(tensors, count);

    return first_repeated(&names, index_out);
}

int heft_st_repeated_pair(const struct heft_st_pair *pairs, uint64_t count, uint64_t *index_out)
{
    struct names names = names_of_pairs(pairs, count);

    return first_repeated(&names, index_out);
}

/* ---- by place ---- */

struct place {
    uint64_t begin;
    uint32_t index;
};

#define DIGIT_BITS 8
#define DIGITS (64 / DIGIT_BITS)
#define DIGIT_VALUES (1 << DIGIT_BITS)

/* Least digit first; digits that are the same everywhere are passed over. Returns the array that holds the
 * result. */
static struct place *radix_sort(struct place *from, struct place *to, uint64_t count)
{
    uint64_t all_or = 0, all_and = UINT64_MAX;
    unsigned digit;
    uint64_t index;

    for (index = 0; index < count; index++) {
        all_or |= from[index].begin;
        all_and &= from[index].begin;
    }
    for (digit = 0; digit < DIGITS; digit++) {
        unsigned shift = digit * DIGIT_BITS;
        uint64_t starts[DIGIT_VALUES] = {0};
        struct place *swap = from;
        uint64_t sum = 0;

        if (((all_or ^ all_and) >> shift & (DIGIT_VALUES - 1)) == 0)
            continue;
        for (index = 0; index < count; index++)
            starts[from[index].begin >> shift & (DIGIT_VALUES - 1)]++;
        for (index = 0; index < DIGIT_VALUES; index++) {
            uint64_t size = starts[index];

            starts[index] = sum;
            sum += size;
        }
        for (index = 0; index < count; index++)
            to[starts[from[index].begin >> shift & (DIGIT_VALUES - 1)]++] = from[index];
        from = to;
        to = swap;
    }
    return from;
}

/*
 * Orders places that begin at the same byte by their ends. A model that will be accepted has at most one
 * tensor there that is not empty, so three groups are enough: ends before, ends here, ends later. With more
 * than one of the first or last kind it is refused; the one with the least end goes first, so that the
 * reference's refusal is found, and the order of the rest is left as it is.
 */
static void group_by_end(const struct heft_st_tensor *tensors, struct place *places, struct place *spare,
                         uint64_t count)
{
    uint64_t used = 0, index;
    int group;

    for (group = -1; group <= 1; group++) {
        uint64_t first = used;
        uint64_t least = used;

        for (index = 0; index < count; index++) {
            uint64_t end = tensors[places[index].index].end;
            int own = end < places[index].begin ? -1 : end > places[index].begin;

            if (own != group)
                continue;
            if (used > first && end < tensors[spare[least].index].end)
                least = used;
            spare[used++] = places[index];
        }
        if (least != first) {
            struct place held = spare[first];

            spare[first] = spare[least];
            spare[least] = held;
        }
    }
    memcpy(places, spare, count * sizeof(*places));
}

static void group_equal_begins(const struct heft_st_tensor *tensors, struct place *places,
                               struct place *spare, uint64_t count)
{
    uint64_t from = 0;

    while (from < count) {
        uint64_t to = from + 1;

        while (to < count && places[to].begin == places[from].begin)
            to++;
        if (to - from > 1)
            group_by_end(tensors, places + from, spare, to - from);
        from = to;
    }
}

/* Puts tensor places[i].index at i, one cycle after the other, in place. */
static void permute(struct heft_st_tensor *tensors, struct place *places, uint64_t count)
{
    uint64_t first;

    for (first = 0; first < count; first++) {
        struct heft_st_tensor held = tensors[first];
        uint64_t hole = first;

        while (places[hole].index != first) {
            uint64_t next = places[hole].index;

            tensors[hole] = tensors[next];
            places[hole].index = (uint32_t)hole;
            hole = next;
        }
        tensors[hole] = held;
        places[hole].index = (uint32_t)hole;
    }
}

int heft_st_sort(struct heft_st_tensor *tensors, uint64_t tensor_count)
{
    struct place *places, *spare, *sorted;
    uint64_t index;
    int rc = HEFT_ERR_NO_MEMORY;

    for (index = 1; index < tensor_count; index++)
        if (tensors[index].begin < tensors[index - 1].begin ||
            (tensors[index].begin == tensors[index - 1].begin && tensors[index].end < tensors[index - 1].end))
            break;
    if (index >= tensor_count)
        return HEFT_OK; /* as every writer leaves it */
    places = malloc(tensor_count * sizeof(*places));
    spare = malloc(tensor_count * sizeof(*spare));
    if (places && spare) {
        for (index = 0; index < tensor_count; index++)
            places[index] = (struct place){tensors[index].begin, (uint32_t)index};
        sorted = radix_sort(places, spare, tensor_count);
        group_equal_begins(tensors, sorted, sorted == places ? spare : places, tensor_count);
        permute(tensors, sorted, tensor_count);
        rc = HEFT_OK;
    }
    free(spare);
    free(places);
    return rc;
}
