/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/table.h"

#include <heft/error.h>
#include <stdlib.h>

void heft_table_init(struct heft_table *table)
{
    *table = (struct heft_table){0};
}

void heft_table_free(struct heft_table *table)
{
    free(table->buckets);
    *table = (struct heft_table){0};
}

/* Ids may come from a peer: the multiplication spreads them, and a chain made on purpose costs that peer's
 * own transfers only. */
static size_t bucket_of(const struct heft_table *table, uint64_t id)
{
    uint64_t mixed = id * UINT64_C(0x9e3779b97f4a7c15);

    return (size_t)(mixed ^ mixed >> 32) & (table->capacity - 1);
}

int heft_table_reserve(struct heft_table *table)
{
    struct heft_table grown = {0};
    size_t index;

    if (table->count < table->capacity)
        return 0;
    grown.capacity = table->capacity ? table->capacity * 2 : 16;
    grown.buckets = calloc(grown.capacity, sizeof(*grown.buckets));
    if (!grown.buckets)
        return HEFT_ERR_NO_MEMORY;
    for (index = 0; index < table->capacity; index++) {
        struct heft_table_node *node = table->buckets[index], *next;

        for (; node; node = next) {
            next = node->next;
            heft_table_insert(&grown, node);
        }
    }
    free(table->buckets);
    *table = grown;
    return 0;
}

void heft_table_insert(struct heft_table *table, struct heft_table_node *node)
{
    struct heft_table_node **bucket = &table->buckets[bucket_of(table, node->id)];

    node->next = *bucket;
    *bucket = node;
    table->count++;
}

struct heft_table_node *heft_table_find(const struct heft_table *table, uint64_t id)
{
    struct heft_table_node *node;

    if (!table->count)
        return NULL;
    node = table->buckets[bucket_of(table, id)];
    while (node && node->id != id)
        node = node->next;
    return node;
}

void heft_table_remove(struct heft_table *table, struct heft_table_node *node)
{
    struct heft_table_node **at = &table->buckets[bucket_of(table, node->id)];

    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    node->next = NULL;
    table->count--;
}

struct heft_table_node *heft_table_any(const struct heft_table *table)
{
    size_t index;

    if (!table->count)
        return NULL;
    for (index = 0; index < table->capacity; index++)
        if (table->buckets[index])
            return table->buckets[index];
    return NULL;
}
