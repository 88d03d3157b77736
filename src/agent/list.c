/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building prepared lists. The first items decide the form: if they make many segments, items are kept one by
 * one; but never when few runs stand for very many items, which then stay the segments that they are.
 */
#include "agent/list.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PROBE_SEGMENTS 16u /* from here on the form is judged */
#define ITEMS_PER_SEGMENT 16u
#define ITEMS_PER_RUN_MAX 16u /* kept one by one */
#define HUGE_BYTES ((size_t)4 << 20)

enum { RESTART = 1 }; /* in the other form */

struct building {
    struct heft_list *list;
    int is_flat, may_flatten;
    size_t run_count;
    /* The region of the run before. */
    uint64_t region_id, region_bytes;
    uint32_t slot;
    uint64_t next_distance; /* of the item that would continue the last segment, from its first */
    /* id -> slot + 1, open addressing */
    uint64_t *ids;
    uint32_t *slots;
    size_t buckets;
    struct heft_error *error;
};

static int out_of_memory(struct building *building)
{
    return heft_error_set(building->error, HEFT_ERR_NO_MEMORY, "out of memory for a list of %zu runs",
                          building->run_count);
}

/* ---- arrays ---- */

/* Large arrays are touched once from end to end: in huge pages that costs a quarter. */
static void *grow_array(void *array, size_t bytes)
{
    void *grown = realloc(array, bytes);

    if (grown && bytes >= HUGE_BYTES) {
        uintptr_t begin = ((uintptr_t)grown + 4095) & ~(uintptr_t)4095;
        uintptr_t end = ((uintptr_t)grown + bytes) & ~(uintptr_t)4095;

        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
    }
    return grown;
}

static int reserve_items(struct building *building, uint64_t more)
{
    struct heft_list *list = building->list;
    uint64_t want = list->count + more, capacity = list->capacity;
    void *grown;

    if (want <= capacity)
        return 0;
    if (!capacity)
        capacity = building->run_count;
    while (capacity < want)
        capacity *= 2;
    grown = grow_array(list->offsets, capacity * sizeof(*list->offsets));
    if (!grown)
        return out_of_memory(building);
    list->offsets = grown;
    if (list->lengths) {
        grown = grow_array(list->lengths, capacity * sizeof(*list->lengths));
        if (!grown)
            return out_of_memory(building);
        list->lengths = grown;
    }
    if (list->slots) {
        grown = grow_array(list->slots, capacity * sizeof(*list->slots));
        if (!grown)
            return out_of_memory(building);
        list->slots = grown;
    }
    list->capacity = capacity;
    return 0;
}

/* The first length that differs: from here on each item has its own. */
static int need_lengths(struct building *building)
{
    struct heft_list *list = building->list;
    uint64_t index;

    list->lengths = grow_array(NULL, list->capacity * sizeof(*list->lengths));
    if (!list->lengths)
        return out_of_memory(building);
    for (index = 0; index < list->count; index++)
        list->lengths[index] = list->length_bytes;
    return 0;
}

static int need_slots(struct building *building)
{
    struct heft_list *list = building->list;

    list->slots = grow_array(NULL, list->capacity * sizeof(*list->slots));
    if (!list->slots)
        return out_of_memory(building);
    memset(list->slots, 0, list->count * sizeof(*list->slots));
    return 0;
}

/* ---- regions ---- */

static size_t bucket_of(const struct building *building, uint64_t id)
{
    size_t at = (size_t)((id * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (building->buckets - 1);

    while (building->slots[at] && building->ids[at] != id)
        at = (at + 1) & (building->buckets - 1);
    return at;
}

static int grow_buckets(struct building *building)
{
    const struct heft_list *list = building->list;
    size_t buckets = building->buckets ? building->buckets * 4 : 64;
    uint64_t *ids = calloc(buckets, sizeof(*ids));
    uint32_t *slots = calloc(buckets, sizeof(*slots));
    uint32_t index;

    if (!ids || !slots) {
        free(ids);
        free(slots);
        return out_of_memory(building);
    }
    free(building->ids);
    free(building->slots);
    building->ids = ids;
    building->slots = slots;
    building->buckets = buckets;
    for (index = 0; index < list->region_count; index++) {
        size_t at = bucket_of(building, list->regions[index]->t.id);

        ids[at] = list->regions[index]->t.id;
        slots[at] = index + 1;
    }
    return 0;
}

static int add_region(struct building *building, uint64_t run, uint64_t id)
{
    struct heft_list *list = building->list;
    struct heft_peer *peer = list->peer;
    struct heft_region *region;
    char who[HEFT_PEER_TEXT_BYTES];

    if (list->region_count == list->region_capacity) {
        uint32_t capacity = list->region_capacity ? list->region_capacity * 2 : 8;
        struct heft_region **grown = realloc(list->regions, capacity * sizeof(*grown));

        if (!grown)
            return out_of_memory(building);
        list->regions = grown;
        list->region_capacity = capacity;
    }
    (void)pthread_mutex_lock(&list->agent->region_lock);
    region = heft_region_find(peer->is_self ? &list->agent->regions : &peer->regions, id);
    if (region)
        heft_region_ref(region);
    (void)pthread_mutex_unlock(&list->agent->region_lock);
    if (!region)
        return heft_error_set(building->error, HEFT_ERR_STALE,
                              "run %llu: %s has no region %llu (or has it no more)", (unsigned long long)run,
                              heft_peer_text(peer, who, sizeof(who)), (unsigned long long)id);
    list->regions[list->region_count++] = region;
    return 0;
}

/* Makes the run's region the current one. */
static int turn_to_region(struct building *building, uint64_t run, uint64_t id)
{
    struct heft_list *list = building->list;
    size_t at;
    int rc;

    if (building->buckets < 2 * ((size_t)list->region_count + 1)) {
        rc = grow_buckets(building);
        if (rc)
            return rc;
    }
    at = bucket_of(building, id);
    if (!building->slots[at]) {
        rc = add_region(building, run, id);
        if (rc)
            return rc;
        building->ids[at] = id;
        building->slots[at] = list->region_count;
    }
    building->slot = building->slots[at] - 1;
    building->region_id = id;
    building->region_bytes = list->regions[building->slot]->t.length_bytes;
    return 0;
}

/* ---- items ---- */

static int new_segment(struct building *building, const struct heft_list_run *run)
{
    struct heft_list *list = building->list;

    if (building->may_flatten && list->segment_count >= PROBE_SEGMENTS &&
        list->segment_count * ITEMS_PER_SEGMENT > list->count) {
        building->is_flat = 1;
        return RESTART;
    }
    if (list->segment_count == list->segment_capacity) {
        size_t capacity = list->segment_capacity ? list->segment_capacity * 2 : 16;
        struct heft_segment *grown = grow_array(list->segments, capacity * sizeof(*grown));

        if (!grown)
            return out_of_memory(building);
        list->segments = grown;
        list->segment_capacity = capacity;
    }
    list->segments[list->segment_count++] = (struct heft_segment){.first = list->count,
                                                                  .count = run->count,
                                                                  .offset_bytes = run->offset_bytes,
                                                                  .length_bytes = run->length_bytes,
                                                                  .stride_bytes = run->stride_bytes,
                                                                  .slot = building->slot};
    list->count += run->count;
    building->next_distance = run->count * run->stride_bytes;
    return 0;
}

/* Single items that go on as the segment before them become part of it. */
static int add_segment(struct building *building, const struct heft_list_run *run)
{
    struct heft_list *list = building->list;
    struct heft_segment *last = list->segment_count ? &list->segments[list->segment_count - 1] : NULL;

    if (!last || run->count != 1 || last->slot != building->slot || last->length_bytes != run->length_bytes ||
        run->offset_bytes < last->offset_bytes)
        return new_segment(building, run);
    if (last->count == 1)
        last->stride_bytes = run->offset_bytes - last->offset_bytes;
    else if (run->offset_bytes - last->offset_bytes != last->count * last->stride_bytes)
        return new_segment(building, run);
    last->count++;
    list->count++;
    building->next_distance = last->count * last->stride_bytes;
    return 0;
}

static int add_items(struct building *building, const struct heft_list_run *run)
{
    struct heft_list *list = building->list;
    uint64_t index;
    int rc;

    if (run->count > ITEMS_PER_RUN_MAX &&
        list->count + run->count > ITEMS_PER_RUN_MAX * building->run_count) {
        building->is_flat = building->may_flatten = 0;
        return RESTART;
    }
    rc = reserve_items(building, run->count);
    if (!rc && !list->count)
        list->length_bytes = run->length_bytes;
    if (!rc && !list->lengths && run->length_bytes != list->length_bytes)
        rc = need_lengths(building);
    if (!rc && !list->slots && building->slot)
        rc = need_slots(building);
    if (rc)
        return rc;
    for (index = 0; index < run->count; index++) {
        list->offsets[list->count] = run->offset_bytes + index * run->stride_bytes;
        if (list->lengths)
            list->lengths[list->count] = run->length_bytes;
        if (list->slots)
            list->slots[list->count] = building->slot;
        list->count++;
    }
    return 0;
}

static int out_of_range(const struct building *building, uint64_t index, const struct heft_list_run *run)
{
    return heft_error_set(
        building->error, HEFT_ERR_RANGE,
        "run %llu leaves its region %llu of %llu bytes: offset %llu, %llu items of %llu bytes, "
        "stride %llu",
        (unsigned long long)index, (unsigned long long)run->region,
        (unsigned long long)building->region_bytes, (unsigned long long)run->offset_bytes,
        (unsigned long long)run->count, (unsigned long long)run->length_bytes,
        (unsigned long long)run->stride_bytes);
}

static int add_run(struct building *building, uint64_t index, const struct heft_list_run *run)
{
    struct heft_list *list = building->list;
    int rc = 0;

    if (run->region != building->region_id || !list->region_count)
        rc = turn_to_region(building, index, run->region);
    if (rc)
        return rc;
    if (heft_range_check(building->region_bytes, run->offset_bytes, run->length_bytes, run->count,
                         run->stride_bytes))
        return out_of_range(building, index, run);
    if (run->count == 0)
        return 0;
    if (run->count > HEFT_LIST_ITEMS_MAX - list->count)
        return heft_error_set(building->error, HEFT_ERR_TOO_MANY, "a list has at most %llu items",
                              (unsigned long long)HEFT_LIST_ITEMS_MAX);
    return building->is_flat ? add_items(building, run) : add_segment(building, run);
}

static void drop_items(struct heft_list *list)
{
    free(list->segments);
    free(list->offsets);
    free(list->lengths);
    free(list->slots);
    list->segments = NULL;
    list->offsets = list->lengths = NULL;
    list->slots = NULL;
    list->segment_count = list->segment_capacity = 0;
    list->capacity = list->count = 0;
}

/* Most runs are single items of the region before, and go on as the items before them: 1 when it was one, and
 * is in the list now. */
static inline int add_common(struct building *building, const struct heft_list_run *run)
{
    struct heft_list *list = building->list;
    struct heft_segment *last;

    if (run->region != building->region_id || run->count != 1 || run->length_bytes > building->region_bytes ||
        run->offset_bytes > building->region_bytes - run->length_bytes)
        return 0;
    if (building->is_flat) {
        if (list->lengths || list->slots || building->slot || list->count >= list->capacity ||
            run->length_bytes != list->length_bytes)
            return 0;
        list->offsets[list->count++] = run->offset_bytes;
        return 1;
    }
    if (!list->segment_count || list->count >= HEFT_LIST_ITEMS_MAX)
        return 0;
    last = &list->segments[list->segment_count - 1];
    if (last->count < 2 || last->slot != building->slot || last->length_bytes != run->length_bytes ||
        run->offset_bytes - last->offset_bytes != building->next_distance)
        return 0;
    building->next_distance += last->stride_bytes;
    last->count++;
    list->count++;
    return 1;
}

static int build(struct building *building, const struct heft_list_run *runs)
{
    size_t index;
    int rc = RESTART;

    while (rc == RESTART) {
        drop_items(building->list);
        rc = 0;
        for (index = 0; !rc && index < building->run_count; index++)
            if (!add_common(building, &runs[index]))
                rc = add_run(building, index, &runs[index]);
    }
    return rc;
}

/* ---- life ---- */

void heft_list_destroy(struct heft_list *list)
{
    struct heft_agent *agent;
    uint32_t index;

    if (!list || heft_agent_forked(list->agent))
        return;
    agent = list->agent;
    for (index = 0; index < list->region_count; index++)
        heft_region_unref(list->regions[index]);
    free(list->regions);
    drop_items(list);
    heft_peer_unref(list->peer);
    free(list);
    heft_agent_unref(agent);
}

int heft_list_create(struct heft_agent *agent, struct heft_peer *peer, const struct heft_list_run *runs,
                     size_t run_count, struct heft_list **list_out, struct heft_error *error)
{
    struct building building = {.run_count = run_count, .may_flatten = 1, .error = error};
    struct heft_list *list;
    int rc;

    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    if (peer && peer->agent != agent)
        return heft_error_set(error, HEFT_ERR_INVALID, "the peer is another agent's");
    if (run_count && !runs)
        return heft_error_set(error, HEFT_ERR_INVALID, "%zu runs, but no array of them", run_count);
    list = calloc(1, sizeof(*list));
    if (!list)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a list");
    list->agent = agent;
    list->peer = peer ? peer : agent->self;
    heft_agent_ref(agent);
    heft_peer_ref(list->peer);
    building.list = list;
    rc = build(&building, runs);
    free(building.ids);
    free(building.slots);
    if (rc) {
        heft_list_destroy(list);
        return rc;
    }
    *list_out = list;
    return 0;
}

uint64_t heft_list_count(const struct heft_list *list)
{
    return list->count;
}
