/* SPDX-License-Identifier: Apache-2.0 */
/* A map from 64-bit ids to objects that carry their own node: no allocation for an entry. Not locked. */
#ifndef HEFT_AGENT_TABLE_H
#define HEFT_AGENT_TABLE_H

#include <stddef.h>
#include <stdint.h>

struct heft_table_node {
    uint64_t id;
    struct heft_table_node *next;
};

struct heft_table {
    struct heft_table_node **buckets;
    size_t capacity; /* a power of two, or 0 */
    size_t count;
};

#define HEFT_CONTAINER_OF(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

void heft_table_init(struct heft_table *table);
/* The objects stay their owners'. */
void heft_table_free(struct heft_table *table);
/* Room for one more; then one insert can't fail. 0 or NO_MEMORY. */
int heft_table_reserve(struct heft_table *table);
/* `node->id` must not be in the table. */
void heft_table_insert(struct heft_table *table, struct heft_table_node *node);
struct heft_table_node *heft_table_find(const struct heft_table *table, uint64_t id);
void heft_table_remove(struct heft_table *table, struct heft_table_node *node);
/* Any entry, or NULL: for taking a table apart. */
struct heft_table_node *heft_table_any(const struct heft_table *table);

#endif
