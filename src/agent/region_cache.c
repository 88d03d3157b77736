/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registrations that are kept for the next who needs the same memory. A cached region is found by its range,
 * its flags and the generation of its allocation: memory at an address that was given back and taken again is
 * other memory, whatever the region of before says.
 */
#include "agent/region_cache.h"

#include "base/error.h"
#include "space/cuda.h"

#include <stdlib.h>
#include <string.h>

/* In the order of their begin; `reach`: the farthest end up to here. */
struct heft_cached {
    struct heft_region *region;
    uint64_t begin, end;
    uint64_t generation, buffer_id;
    enum heft_space space;
    uint32_t flags;
    uint32_t users;
    int stale;         /* not in the order any more; goes with its last user */
    uint64_t released; /* when it had none: a count */
    uint64_t reach;
    struct heft_cached *next; /* of those that leave */
};

struct heft_region_cache {
    pthread_mutex_t lock;
    struct heft_cached **order;
    size_t count, capacity, unused;
    uint64_t releases;
    struct heft_cached *leaving; /* a peer was slow to let go: deregistered again at the next call */
};

/* ---- the order ---- */

static void set_reaches(struct heft_region_cache *cache, size_t from)
{
    for (; from < cache->count; from++) {
        uint64_t before = from ? cache->order[from - 1]->reach : 0;

        cache->order[from]->reach = cache->order[from]->end > before ? cache->order[from]->end : before;
    }
}

/* How many begin before `at`. */
static size_t begun_before(const struct heft_region_cache *cache, uint64_t at)
{
    size_t low = 0, high = cache->count;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (cache->order[middle]->begin < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int insert(struct heft_region_cache *cache, struct heft_cached *entry)
{
    size_t at = begun_before(cache, entry->begin);

    if (cache->count == cache->capacity) {
        size_t capacity = cache->capacity ? 2 * cache->capacity : 16;
        struct heft_cached **grown = realloc(cache->order, capacity * sizeof(*grown));

        if (!grown)
            return HEFT_ERR_NO_MEMORY;
        cache->order = grown;
        cache->capacity = capacity;
    }
    memmove(cache->order + at + 1, cache->order + at, (cache->count - at) * sizeof(*cache->order));
    cache->order[at] = entry;
    cache->count++;
    set_reaches(cache, at);
    return 0;
}

static void take_out(struct heft_region_cache *cache, size_t at)
{
    struct heft_cached *entry = cache->order[at];

    cache->count--;
    memmove(cache->order + at, cache->order + at + 1, (cache->count - at) * sizeof(*cache->order));
    set_reaches(cache, at);
    entry->stale = 1;
    if (entry->users == 0) {
        cache->unused--;
        entry->next = cache->leaving;
        cache->leaving = entry;
    }
}

static int is_same_memory(const struct heft_cached *left, const struct heft_cached *right)
{
    return left->generation == right->generation && left->buffer_id == right->buffer_id;
}

/* Takes out what lay at the wanted addresses in another generation; then the region that covers them, or
 * NULL. */
static struct heft_cached *look(struct heft_region_cache *cache, const struct heft_cached *wanted)
{
    struct heft_cached *found = NULL;
    size_t at = begun_before(cache, wanted->end);

    while (at > 0 && cache->order[at - 1]->reach > wanted->begin) {
        struct heft_cached *entry = cache->order[--at];

        if (entry->end <= wanted->begin || entry->space != wanted->space)
            continue;
        if (!is_same_memory(entry, wanted))
            take_out(cache, at);
        else if (entry->begin <= wanted->begin && entry->end >= wanted->end && entry->flags == wanted->flags)
            found = entry;
    }
    return found;
}

/* ---- what leaves ---- */

static void trim(struct heft_region_cache *cache)
{
    while (cache->unused > HEFT_REGION_CACHE_UNUSED) {
        size_t at, oldest = cache->count;

        for (at = 0; at < cache->count; at++)
            if (cache->order[at]->users == 0 &&
                (oldest == cache->count || cache->order[at]->released < cache->order[oldest]->released))
                oldest = at;
        take_out(cache, oldest);
    }
}

/* Deregisters what nobody uses any more, without the lock: that may wait for peers. */
static void let_go(struct heft_region_cache *cache)
{
    struct heft_cached *entry, *next, *busy = NULL;

    (void)pthread_mutex_lock(&cache->lock);
    entry = cache->leaving;
    cache->leaving = NULL;
    (void)pthread_mutex_unlock(&cache->lock);
    for (; entry; entry = next) {
        next = entry->next;
        entry->region->cached = NULL;
        if (heft_region_deregister(entry->region, NULL)) {
            entry->region->cached = entry;
            entry->next = busy;
            busy = entry;
        } else {
            free(entry);
        }
    }
    (void)pthread_mutex_lock(&cache->lock);
    while ((entry = busy) != NULL) {
        busy = entry->next;
        entry->next = cache->leaving;
        cache->leaving = entry;
    }
    (void)pthread_mutex_unlock(&cache->lock);
}

/* ---- the calls ---- */

static int describe(const struct heft_agent *agent, const struct heft_region_options *options,
                    uint64_t generation, struct heft_cached *wanted_out, struct heft_error *error)
{
    uint64_t begin = (uintptr_t)options->address;
    struct heft_cuda_pointer pointer;

    if (heft_agent_on_worker(agent))
        return heft_error_set(error, HEFT_ERR_STATE,
                              "memory can't be registered from a callback: it may wait");
    if (options->memory || (options->space != HEFT_SPACE_HOST && options->space != HEFT_SPACE_CUDA))
        return heft_error_set(
            error, HEFT_ERR_INVALID,
            "only ranges of host memory and of GPU memory are cached, named by their address; "
            "register anything else as a whole");
    if (!options->address || !options->length_bytes)
        return heft_error_set(error, HEFT_ERR_INVALID, "a cached range needs an address and a length");
    if (begin + options->length_bytes < begin)
        return heft_error_set(error, HEFT_ERR_RANGE, "the range wraps around the address space");
    *wanted_out = (struct heft_cached){.begin = begin,
                                       .end = begin + options->length_bytes,
                                       .generation = generation,
                                       .space = options->space,
                                       .flags = options->flags};
    if (options->space == HEFT_SPACE_CUDA) {
        heft_cuda_query(begin, &pointer);
        wanted_out->buffer_id = pointer.buffer_id;
    }
    return 0;
}

static int register_locked(struct heft_agent *agent, const struct heft_region_options *options,
                           const struct heft_cached *wanted, struct heft_cached **entry_out,
                           struct heft_error *error)
{
    struct heft_cached *entry = malloc(sizeof(*entry));
    int rc;

    if (!entry)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a cached region");
    *entry = *wanted;
    rc = heft_region_register(agent, options, &entry->region, error);
    if (!rc && insert(agent->region_cache, entry)) {
        (void)heft_region_deregister(entry->region, NULL);
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a cached region");
    }
    if (rc) {
        free(entry);
        return rc;
    }
    entry->region->cached = entry;
    agent->region_cache->unused++; /* until its first user is counted */
    *entry_out = entry;
    return 0;
}

int heft_region_acquire(struct heft_agent *agent, const struct heft_region_options *given,
                        uint64_t generation, struct heft_region **region_out, uint64_t *offset_bytes_out,
                        struct heft_error *error)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_region_cache *cache = agent->region_cache;
    struct heft_cached wanted, *entry;
    int rc;

    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    rc = heft_options_copy(&options, sizeof(options), given, error);
    if (!rc)
        rc = describe(agent, &options, generation, &wanted, error);
    if (rc)
        return rc;
    (void)pthread_mutex_lock(&cache->lock);
    entry = look(cache, &wanted);
    if (!entry)
        rc = register_locked(agent, &options, &wanted, &entry, error);
    if (!rc) {
        cache->unused -= entry->users++ == 0;
        *region_out = entry->region;
        *offset_bytes_out = wanted.begin - entry->begin;
    }
    (void)pthread_mutex_unlock(&cache->lock);
    let_go(cache);
    return rc;
}

int heft_region_release(struct heft_region *region, struct heft_error *error)
{
    struct heft_agent *agent = region->agent;
    struct heft_region_cache *cache = agent->region_cache;
    struct heft_cached *entry;

    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    if (heft_agent_on_worker(agent))
        return heft_error_set(error, HEFT_ERR_STATE, "memory can't be released from a callback: it may wait");
    (void)pthread_mutex_lock(&cache->lock);
    entry = region->cached;
    if (!entry || !entry->users) {
        (void)pthread_mutex_unlock(&cache->lock);
        return heft_error_set(error, HEFT_ERR_STATE, "region %llu was not acquired (again)",
                              (unsigned long long)region->t.id);
    }
    if (--entry->users == 0) {
        entry->released = ++cache->releases;
        if (entry->stale) {
            entry->next = cache->leaving;
            cache->leaving = entry;
        } else {
            cache->unused++;
            trim(cache);
        }
    }
    (void)pthread_mutex_unlock(&cache->lock);
    let_go(cache);
    return 0;
}

static int overlaps(const struct heft_cached *entry, uint64_t begin, uint64_t end)
{
    return entry->begin < end && entry->end > begin;
}

int heft_region_forget(struct heft_agent *agent, const void *address, uint64_t length_bytes,
                       struct heft_error *error)
{
    uint64_t begin = (uintptr_t)address, end = begin + length_bytes, busy = 0;
    struct heft_region_cache *cache = agent->region_cache;
    const struct heft_cached *entry;
    size_t at;

    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    if (heft_agent_on_worker(agent))
        return heft_error_set(error, HEFT_ERR_STATE,
                              "memory can't be forgotten from a callback: it may wait");
    if (end < begin)
        return heft_error_set(error, HEFT_ERR_RANGE, "the range wraps around the address space");
    (void)pthread_mutex_lock(&cache->lock);
    for (at = 0; at < cache->count; at++)
        busy += cache->order[at]->users > 0 && overlaps(cache->order[at], begin, end);
    for (at = cache->count; at-- > 0 && !busy;)
        if (overlaps(cache->order[at], begin, end))
            take_out(cache, at);
    (void)pthread_mutex_unlock(&cache->lock);
    if (busy)
        return heft_error_set(error, HEFT_ERR_BUSY,
                              "%llu regions of this range are acquired: release them first",
                              (unsigned long long)busy);
    let_go(cache);
    (void)pthread_mutex_lock(&cache->lock);
    for (entry = cache->leaving; entry; entry = entry->next)
        busy += (uint64_t)overlaps(entry, begin, end);
    (void)pthread_mutex_unlock(&cache->lock);
    return busy ? heft_error_set(
                      error, HEFT_ERR_BUSY,
                      "%llu regions of this range are still in use by transfers or peers; try again",
                      (unsigned long long)busy)
                : 0;
}

/* ---- life ---- */

struct heft_region_cache *heft_region_cache_new(void)
{
    struct heft_region_cache *cache = calloc(1, sizeof(*cache));

    if (cache)
        (void)pthread_mutex_init(&cache->lock, NULL);
    return cache;
}

void heft_region_cache_free(struct heft_region_cache *cache)
{
    free(cache->order); /* what it held went with the regions */
    (void)pthread_mutex_destroy(&cache->lock);
    free(cache);
}
