/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepared lists: items of one side, checked once, found by their number. What is regular is kept as strides
 * (segments), what is not as one offset an item, and a length and a region an item only where they differ.
 */
#ifndef HEFT_AGENT_LIST_H
#define HEFT_AGENT_LIST_H

#include "agent/agent_internal.h"

/* Equal items at equal distances. */
struct heft_segment {
    uint64_t first; /* number of its first item */
    uint64_t count;
    uint64_t offset_bytes, length_bytes, stride_bytes;
    uint32_t slot;
};

struct heft_list {
    struct heft_agent *agent;
    struct heft_peer *peer;       /* agent->self: this agent's own regions */
    struct heft_region **regions; /* distinct, each held by a reference; a slot is an index here */
    uint32_t region_count, region_capacity;
    uint64_t count; /* items */
    /* Either segments ... */
    struct heft_segment *segments;
    size_t segment_count, segment_capacity;
    /* ... or items. */
    uint64_t *offsets;
    uint64_t *lengths; /* NULL: all length_bytes */
    uint32_t *slots;   /* NULL: all in slot 0 */
    uint64_t capacity;
    uint64_t length_bytes;
};

struct heft_item {
    uint64_t offset_bytes, length_bytes;
    uint32_t slot;
};

/* The segment that holds the item; `near` is where to look first. */
static inline size_t heft_list_find(const struct heft_list *list, uint64_t index, size_t near)
{
    size_t low = 0, high = list->segment_count;

    if (index >= list->segments[near].first &&
        index - list->segments[near].first < list->segments[near].count)
        return near;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (list->segments[middle].first <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* `index` is below list->count. `near` is the caller's, 0 at first. */
static inline struct heft_item heft_list_item(const struct heft_list *list, uint64_t index, size_t *near)
{
    const struct heft_segment *segment;

    if (list->offsets)
        return (struct heft_item){.offset_bytes = list->offsets[index],
                                  .length_bytes = list->lengths ? list->lengths[index] : list->length_bytes,
                                  .slot = list->slots ? list->slots[index] : 0};
    *near = heft_list_find(list, index, *near);
    segment = &list->segments[*near];
    return (struct heft_item){.offset_bytes =
                                  segment->offset_bytes + (index - segment->first) * segment->stride_bytes,
                              .length_bytes = segment->length_bytes,
                              .slot = segment->slot};
}

static inline void heft_list_prefetch(const struct heft_list *list, uint64_t index)
{
    if (list->offsets && index < list->count) {
        __builtin_prefetch(&list->offsets[index]);
        if (list->lengths)
            __builtin_prefetch(&list->lengths[index]);
        if (list->slots)
            __builtin_prefetch(&list->slots[index]);
    }
}

#endif
