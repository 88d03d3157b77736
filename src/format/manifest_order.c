/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Name order, and the two digests that are taken in it. Names of one model share long beginnings, so
 * comparing them again and again costs more than sorting: they are sorted eight bytes at a time instead, each
 * step on numbers, in time linear in the names' bytes. Groups that still tie go on with the next eight bytes;
 * waiting groups stand in a list, not on the stack, so that names from outside can't choose the depth.
 */
#include "format/manifest_internal.h"
#include "base/digest.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

#define FEW_NAMES 12 /* compared directly */
#define FEW_KEYS 512 /* sorted by comparison: a radix pass costs its tables */

struct name_key {
    uint64_t key; /* the eight bytes at the group's depth, first byte highest, zeros behind the end */
    const char *name;
    uint32_t name_bytes;
    uint32_t index;
};

struct group {
    uint64_t first, count;
    uint32_t depth; /* bytes that are equal in all of them */
};

struct group_list {
    struct group *groups;
    uint64_t count, capacity;
};

static uint64_t key_at(const struct name_key *name, uint32_t depth)
{
    uint32_t left = name->name_bytes > depth ? name->name_bytes - depth : 0;
    const unsigned char *at = (const unsigned char *)name->name + depth;
    uint64_t key = 0;
    uint32_t index;

    for (index = 0; index < 8; index++)
        key = key << 8 | (index < left ? at[index] : 0u);
    return key;
}

/* Names that agree in their first `depth` bytes. */
static int compare_names(const struct name_key *left, const struct name_key *right, uint32_t depth)
{
    uint32_t shorter = left->name_bytes < right->name_bytes ? left->name_bytes : right->name_bytes;
    int order = shorter > depth ? memcmp(left->name + depth, right->name + depth, shorter - depth) : 0;

    if (order != 0)
        return order;
    return (left->name_bytes > right->name_bytes) - (left->name_bytes < right->name_bytes);
}

static void insert_names(struct name_key *names, uint64_t count, uint32_t depth)
{
    uint64_t index, place;

    for (index = 1; index < count; index++) {
        struct name_key moved = names[index];

        for (place = index; place > 0 && compare_names(&names[place - 1], &moved, depth) > 0; place--)
            names[place] = names[place - 1];
        names[place] = moved;
    }
}

static int compare_keys(const void *left, const void *right)
{
    uint64_t l = ((const struct name_key *)left)->key, r = ((const struct name_key *)right)->key;

    return (l > r) - (l < r);
}

/* Least significant byte first; bytes that all keys share are left out. `spare` has room for count. */
static void radix_keys(struct name_key *names, struct name_key *spare, uint64_t count)
{
    struct name_key *from = names, *to = spare, *swap;
    uint64_t places[8][256];
    uint64_t index, sum, here;
    unsigned byte, value;

    memset(places, 0, sizeof(places));
    for (index = 0; index < count; index++)
        for (byte = 0; byte < 8; byte++)
            places[byte][names[index].key >> (8 * byte) & 255]++;
    for (byte = 0; byte < 8; byte++) {
        if (places[byte][names[0].key >> (8 * byte) & 255] == count)
            continue;
        for (value = 0, sum = 0; value < 256; value++) {
            here = places[byte][value];
            places[byte][value] = sum;
            sum += here;
        }
        for (index = 0; index < count; index++)
            to[places[byte][from[index].key >> (8 * byte) & 255]++] = from[index];
        swap = from;
        from = to;
        to = swap;
    }
    if (from != names)
        memcpy(names, from, (size_t)count * sizeof(*names));
}

static int push_group(struct group_list *list, uint64_t first, uint64_t count, uint32_t depth)
{
    if (list->count == list->capacity) {
        uint64_t capacity = list->capacity ? list->capacity * 2 : 64;
        struct group *groups = realloc(list->groups, (size_t)capacity * sizeof(*groups));

        if (!groups)
            return HEFT_ERR_NO_MEMORY;
        list->groups = groups;
        list->capacity = capacity;
    }
    list->groups[list->count++] = (struct group){.first = first, .count = count, .depth = depth};
    return HEFT_OK;
}

/*
 * Names whose eight bytes from `depth` agree. Those that end within them come first, by length; there are
 * few, since names differ.
 */
static int split_tie(struct group_list *list, struct name_key *names, uint64_t first, uint64_t count,
                     uint32_t depth)
{
    uint64_t index, ended = first;

    if (count <= FEW_NAMES) {
        insert_names(names + first, count, depth);
        return HEFT_OK;
    }
    for (index = first; index < first + count; index++) {
        if (names[index].name_bytes - depth <= 8) {
            struct name_key moved = names[index];

            names[index] = names[ended];
            names[ended++] = moved;
        }
    }
    insert_names(names + first, ended - first, depth);
    return ended == first + count ? HEFT_OK : push_group(list, ended, first + count - ended, depth + 8);
}

static int sort_group(struct group_list *list, struct name_key *names, struct name_key *spare,
                      const struct group *group)
{
    struct name_key *at = names + group->first;
    uint64_t index, start;
    int equal = 1, rc;

    for (index = 0; index < group->count; index++) {
        at[index].key = key_at(&at[index], group->depth);
        equal &= at[index].key == at[0].key;
    }
    if (!equal) {
        if (group->count <= FEW_KEYS)
            qsort(at, (size_t)group->count, sizeof(*at), compare_keys);
        else
            radix_keys(at, spare, group->count);
    }
    for (start = 0; start < group->count; start = index) {
        for (index = start + 1; index < group->count && at[index].key == at[start].key; index++)
            ;
        rc = index - start > 1 ? split_tie(list, names, group->first + start, index - start, group->depth)
                               : HEFT_OK;
        if (rc)
            return rc;
    }
    return HEFT_OK;
}

static int sort_names(struct name_key *names, struct name_key *spare, uint64_t count)
{
    struct group_list list = {0};
    struct group group;
    int rc = count > 1 ? push_group(&list, 0, count, 0) : HEFT_OK;

    while (!rc && list.count > 0) {
        group = list.groups[--list.count];
        rc = sort_group(&list, names, spare, &group);
    }
    free(list.groups);
    return rc;
}

/* One tensor's line of the table: everything that says what it is, nothing that says where it lies. */
static uint64_t line_digest(struct heft_buf *line, const struct heft_manifest_tensor *tensor)
{
    uint32_t dim;

    line->size = 0;
    heft_buf_u64(line, tensor->name_bytes);
    heft_buf_bytes(line, tensor->name, tensor->name_bytes);
    heft_buf_u64(line, strlen(tensor->dtype));
    heft_buf_bytes(line, tensor->dtype, strlen(tensor->dtype));
    heft_buf_u64(line, tensor->rank);
    for (dim = 0; dim < tensor->rank; dim++)
        heft_buf_u64(line, tensor->shape[dim]);
    heft_buf_u8(line, tensor->box_start != NULL);
    for (dim = 0; tensor->box_start && dim < tensor->rank; dim++) {
        heft_buf_u64(line, tensor->box_start[dim]);
        heft_buf_u64(line, tensor->box_size[dim]);
    }
    heft_buf_u64(line, tensor->size_bytes);
    return heft_hash64(line->data, line->size, 0);
}

/* Indices of tensors in name order (free), in time linear in the names' bytes; NULL out of memory. Names
 * differ. */
static uint32_t *order_names(const struct heft_manifest *manifest)
{
    size_t count = (size_t)manifest->tensor_count, index;
    struct name_key *names = malloc((count + 1) * 2 * sizeof(*names));
    uint32_t *order = malloc((count + 1) * sizeof(*order));

    if (!names || !order)
        goto fail_memory;
    for (index = 0; index < count; index++) {
        names[index].name = manifest->tensors[index].name;
        names[index].name_bytes = manifest->tensors[index].name_bytes;
        names[index].index = (uint32_t)index;
    }
    if (sort_names(names, names + count, count))
        goto fail_memory;
    for (index = 0; index < count; index++)
        order[index] = names[index].index;
    free(names);
    return order;

fail_memory:
    free(names);
    free(order);
    return NULL;
}

uint64_t heft_manifest_table_digest(const struct heft_manifest *manifest)
{
    uint32_t *order = heft_manifest_state(manifest)->finished ? order_names(manifest) : NULL;
    struct heft_buf lines, line;
    uint64_t index, digest = 0;

    if (!order)
        return 0;
    heft_buf_init(&lines, SIZE_MAX);
    heft_buf_init(&line, SIZE_MAX);
    for (index = 0; index < manifest->tensor_count; index++)
        heft_buf_u64(&lines, line_digest(&line, &manifest->tensors[order[index]]));
    if (!lines.failed && !line.failed)
        digest = heft_hash64(lines.data, lines.size, 0);
    heft_buf_free(&line);
    heft_buf_free(&lines);
    free(order);
    return digest;
}

uint64_t heft_manifest_content_digest(const struct heft_manifest *manifest)
{
    uint32_t *order =
        manifest->digests && heft_manifest_state(manifest)->finished ? order_names(manifest) : NULL;
    uint64_t index, digest = 0;
    struct heft_buf digests;

    if (!order)
        return 0;
    heft_buf_init(&digests, SIZE_MAX);
    for (index = 0; index < manifest->tensor_count; index++) {
        const struct heft_manifest_tensor *tensor = &manifest->tensors[order[index]];

        heft_buf_u64(&digests,
                     heft_tensor_digest(manifest->digests + tensor->first_block, tensor->size_bytes));
    }
    if (!digests.failed)
        digest = heft_hash64(digests.data, digests.size, 0);
    heft_buf_free(&digests);
    free(order);
    return digest;
}
