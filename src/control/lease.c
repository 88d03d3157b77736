/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records lie in one array sorted by name: lookups and pages are a binary search, an insertion moves
 * pointers. With the largest table allowed that is 800 kB of pointers, far below the cost of a call.
 */
#include "control/lease.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

struct heft_lease_table {
    struct heft_lease_limits limits;
    struct heft_clock clock;
    struct heft_clock wall;
    struct heft_lease **leases;
    size_t count;
    size_t capacity;
    uint64_t total_bytes;
    struct heft_lease_counts counts;
    uint64_t revision;
    struct {
        char *name;
        uint64_t revision;
    } ended[HEFT_LEASE_ENDED_MAX]; /* a ring */
    uint64_t ended_count;
    uint64_t ended_floor; /* what ended up to here may be forgotten */
};

void heft_generation_print(const struct heft_generation *generation,
                           char text_out[HEFT_GENERATION_TEXT_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    size_t index;

    for (index = 0; index < HEFT_GENERATION_BYTES; index++) {
        text_out[2 * index] = digits[generation->bytes[index] >> 4];
        text_out[2 * index + 1] = digits[generation->bytes[index] & 15];
    }
    text_out[2 * HEFT_GENERATION_BYTES] = 0;
}

static int same_generation(const struct heft_generation *left, const struct heft_generation *right)
{
    return memcmp(left->bytes, right->bytes, HEFT_GENERATION_BYTES) == 0;
}

static void lease_free(struct heft_lease *lease)
{
    if (!lease)
        return;
    free(lease->name);
    free(lease->model);
    free(lease->revision);
    free(lease->stage);
    free(lease->body);
    free(lease);
}

struct heft_lease_table *heft_lease_table_new(const struct heft_lease_limits *limits, struct heft_clock clock,
                                              struct heft_clock wall)
{
    struct heft_lease_table *table = calloc(1, sizeof(*table));

    if (!table)
        return NULL;
    table->limits = *limits;
    table->clock = clock;
    table->wall = wall;
    return table;
}

void heft_lease_table_free(struct heft_lease_table *table)
{
    size_t index;

    if (!table)
        return;
    for (index = 0; index < table->count; index++)
        lease_free(table->leases[index]);
    for (index = 0; index < HEFT_LEASE_ENDED_MAX; index++)
        free(table->ended[index].name);
    free(table->leases);
    free(table);
}

static uint64_t wall_now_ms(const struct heft_lease_table *table)
{
    return heft_clock_now(&table->wall) / HEFT_NS_PER_MS;
}

static int is_live(const struct heft_lease_table *table, const struct heft_lease *lease)
{
    return heft_clock_now(&table->clock) < lease->end_ns;
}

/* The place of the first name that is not less than `name`; *found_out: it is equal. */
static size_t place_of(const struct heft_lease_table *table, const char *name, int *found_out)
{
    size_t low = 0, high = table->count;

    *found_out = 0;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(table->leases[middle]->name, name);

        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
            if (order == 0)
                *found_out = 1;
        }
    }
    return low;
}

static int check_publication(const struct heft_lease_table *table,
                             const struct heft_lease_publication *publication, struct heft_error *error)
{
    const char *name = publication->name;

    if (!name || !name[0] || strlen(name) > HEFT_NAME_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_INVALID, "a record's name must have 1 to %d bytes",
                              HEFT_NAME_MAX_BYTES);
    if (publication->lease_ms < HEFT_LEASE_MIN_MS)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "record '%s': a lease of %llu ms is below the least, %u ms", name,
                              (unsigned long long)publication->lease_ms, HEFT_LEASE_MIN_MS);
    if (publication->lease_ms > table->limits.max_lease_ms)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE,
                              "record '%s': a lease of %llu ms is over the limit lease-max of %llu ms", name,
                              (unsigned long long)publication->lease_ms,
                              (unsigned long long)table->limits.max_lease_ms);
    if (publication->body_bytes > table->limits.max_record_bytes)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE,
                              "record '%s': %llu bytes are over the limit max-record-bytes of %llu", name,
                              (unsigned long long)publication->body_bytes,
                              (unsigned long long)table->limits.max_record_bytes);
    return 0;
}

static char *copy_text(const char *text)
{
    return strdup(text ? text : "");
}

static struct heft_lease *lease_new(const struct heft_lease_publication *publication)
{
    struct heft_lease *lease = calloc(1, sizeof(*lease));

    if (!lease)
        return NULL;
    lease->name = copy_text(publication->name);
    lease->model = copy_text(publication->model);
    lease->revision = copy_text(publication->revision);
    lease->stage = copy_text(publication->stage);
    lease->body = malloc(publication->body_bytes ? publication->body_bytes : 1);
    if (!lease->name || !lease->model || !lease->revision || !lease->stage || !lease->body) {
        lease_free(lease);
        return NULL;
    }
    if (publication->body_bytes)
        memcpy(lease->body, publication->body, publication->body_bytes);
    lease->body_bytes = publication->body_bytes;
    lease->generation = publication->generation;
    lease->lease_ms = publication->lease_ms;
    return lease;
}

static int make_room(struct heft_lease_table *table)
{
    size_t capacity = table->capacity ? table->capacity * 2 : 64;
    struct heft_lease **leases;

    if (table->count < table->capacity)
        return 0;
    leases = realloc(table->leases, capacity * sizeof(struct heft_lease *));
    if (!leases)
        return HEFT_ERR_NO_MEMORY;
    table->leases = leases;
    table->capacity = capacity;
    return 0;
}

/* Takes the name over. */
static void remember_end(struct heft_lease_table *table, char *name)
{
    uint64_t at = table->ended_count++ % HEFT_LEASE_ENDED_MAX;

    if (table->ended[at].name)
        table->ended_floor = table->ended[at].revision;
    free(table->ended[at].name);
    table->ended[at].name = name;
    table->ended[at].revision = ++table->revision;
}

static void end_lease(struct heft_lease_table *table, struct heft_lease *lease)
{
    char *name = lease->name;

    lease->name = NULL;
    lease_free(lease);
    remember_end(table, name);
}

static void remove_at(struct heft_lease_table *table, size_t place)
{
    table->total_bytes -= table->leases[place]->body_bytes;
    end_lease(table, table->leases[place]);
    table->count--;
    memmove(table->leases + place, table->leases + place + 1,
            (table->count - place) * sizeof(struct heft_lease *));
}

static int was_superseded(const struct heft_lease *lease, const struct heft_generation *generation)
{
    uint32_t kept =
        lease->superseded_count < HEFT_LEASE_SUPERSEDED ? lease->superseded_count : HEFT_LEASE_SUPERSEDED;
    uint32_t index;

    for (index = 0; index < kept; index++)
        if (same_generation(&lease->superseded[index], generation))
            return 1;
    return 0;
}

static int stale(struct heft_error *error, const struct heft_lease *holder,
                 const struct heft_generation *generation)
{
    char theirs[HEFT_GENERATION_TEXT_BYTES], holders[HEFT_GENERATION_TEXT_BYTES];

    heft_generation_print(generation, theirs);
    heft_generation_print(&holder->generation, holders);
    return heft_error_set(error, HEFT_ERR_STALE,
                          "'%s' now belongs to generation %s; generation %s has lost it: give each process a "
                          "name of its own, or stop the older one",
                          holder->name, holders, theirs);
}

/* Takes over what the new publication of a name inherits from the one it replaces. */
static void inherit(struct heft_lease_table *table, struct heft_lease *lease, const struct heft_lease *old)
{
    memcpy(lease->superseded, old->superseded, sizeof(lease->superseded));
    lease->superseded_count = old->superseded_count;
    if (same_generation(&old->generation, &lease->generation)) {
        lease->published_wall_ms = old->published_wall_ms;
        return;
    }
    lease->superseded[lease->superseded_count++ % HEFT_LEASE_SUPERSEDED] = old->generation;
    if (is_live(table, old))
        table->counts.takeovers++;
}

static int put(struct heft_lease_table *table, const struct heft_lease_publication *publication,
               struct heft_lease **lease_out, struct heft_error *error)
{
    struct heft_lease *lease, *old = NULL;
    uint64_t total = table->total_bytes;
    size_t place;
    int found, result = check_publication(table, publication, error);

    if (result)
        return result;
    place = place_of(table, publication->name, &found);
    if (found) {
        old = table->leases[place];
        total -= old->body_bytes;
        if (was_superseded(old, &publication->generation) && is_live(table, old))
            return stale(error, old, &publication->generation);
    } else if (table->count >= table->limits.max_records) {
        return heft_error_set(error, HEFT_ERR_TOO_MANY,
                              "record '%s': the directory is full, the limit max-records is %llu",
                              publication->name, (unsigned long long)table->limits.max_records);
    }
    if (total + publication->body_bytes > table->limits.max_total_bytes)
        return heft_error_set(error, HEFT_ERR_TOO_MANY,
                              "record '%s': the directory is full, the limit max-total-bytes is %llu",
                              publication->name, (unsigned long long)table->limits.max_total_bytes);
    lease = lease_new(publication);
    if (!lease || (!found && make_room(table))) {
        lease_free(lease);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "record '%s': out of memory", publication->name);
    }
    lease->published_wall_ms = wall_now_ms(table);
    if (found) {
        inherit(table, lease, old);
        lease_free(old);
    } else {
        memmove(table->leases + place + 1, table->leases + place,
                (table->count - place) * sizeof(struct heft_lease *));
        table->count++;
    }
    lease->table_revision = ++table->revision;
    table->leases[place] = lease;
    table->total_bytes = total + lease->body_bytes;
    lease->end_ns = heft_clock_now(&table->clock) + lease->lease_ms * HEFT_NS_PER_MS;
    *lease_out = lease;
    return 0;
}

int heft_lease_publish(struct heft_lease_table *table, const struct heft_lease_publication *publication,
                       const struct heft_lease **lease_out, struct heft_error *error)
{
    struct heft_lease *lease;
    int result = put(table, publication, &lease, error);

    if (result) {
        table->counts.refusals++;
        return result;
    }
    table->counts.publishes++;
    if (lease_out)
        *lease_out = lease;
    return 0;
}

int heft_lease_restore(struct heft_lease_table *table, const struct heft_lease_publication *publication,
                       uint64_t published_wall_ms, uint64_t end_wall_ms, struct heft_error *error)
{
    uint64_t now_ms = wall_now_ms(table), left_ms;
    struct heft_lease *lease;
    int result;

    if (end_wall_ms <= now_ms)
        return heft_error_set(error, HEFT_ERR_NOT_FOUND, "record '%s': its lease has ended",
                              publication->name ? publication->name : "");
    result = put(table, publication, &lease, error);
    if (result)
        return result;
    left_ms = end_wall_ms - now_ms;
    if (left_ms < lease->lease_ms)
        lease->end_ns -= (lease->lease_ms - left_ms) * HEFT_NS_PER_MS;
    lease->published_wall_ms = published_wall_ms;
    return 0;
}

/* The live record of this name if this generation holds it. */
static int held_by(struct heft_lease_table *table, const char *name, const struct heft_generation *generation,
                   size_t *place_out, struct heft_error *error)
{
    int found;
    size_t place = place_of(table, name, &found);
    struct heft_lease *lease = found ? table->leases[place] : NULL;

    if (!lease || !is_live(table, lease))
        return heft_error_set(error, HEFT_ERR_NOT_FOUND,
                              "the directory has no live record '%s' (its lease ended, or the directory was "
                              "restarted): publish it again",
                              name);
    if (!same_generation(&lease->generation, generation))
        return stale(error, lease, generation);
    *place_out = place;
    return 0;
}

int heft_lease_renew(struct heft_lease_table *table, const char *name,
                     const struct heft_generation *generation, uint64_t lease_ms,
                     const struct heft_lease **lease_out, struct heft_error *error)
{
    struct heft_lease *lease;
    size_t place = 0;
    int result = held_by(table, name, generation, &place, error);

    if (!result && lease_ms && (lease_ms < HEFT_LEASE_MIN_MS || lease_ms > table->limits.max_lease_ms))
        result = heft_error_set(error, lease_ms < HEFT_LEASE_MIN_MS ? HEFT_ERR_INVALID : HEFT_ERR_TOO_LARGE,
                                "record '%s': a lease of %llu ms is outside %u ms .. lease-max %llu ms", name,
                                (unsigned long long)lease_ms, HEFT_LEASE_MIN_MS,
                                (unsigned long long)table->limits.max_lease_ms);
    if (result) {
        table->counts.refusals++;
        return result;
    }
    lease = table->leases[place];
    if (lease_ms)
        lease->lease_ms = lease_ms;
    lease->end_ns = heft_clock_now(&table->clock) + lease->lease_ms * HEFT_NS_PER_MS;
    table->counts.renewals++;
    if (lease_out)
        *lease_out = lease;
    return 0;
}

int heft_lease_withdraw(struct heft_lease_table *table, const char *name,
                        const struct heft_generation *generation, struct heft_error *error)
{
    size_t place = 0;
    int result = held_by(table, name, generation, &place, error);

    if (result) {
        table->counts.refusals++;
        return result;
    }
    remove_at(table, place);
    table->counts.withdrawals++;
    return 0;
}

uint64_t heft_lease_reap(struct heft_lease_table *table, heft_lease_reaped_fn reaped, void *context)
{
    size_t index, kept = 0;
    uint64_t removed;

    for (index = 0; index < table->count; index++) {
        struct heft_lease *lease = table->leases[index];

        if (is_live(table, lease)) {
            table->leases[kept++] = lease;
            continue;
        }
        if (reaped)
            reaped(context, lease);
        table->total_bytes -= lease->body_bytes;
        end_lease(table, lease);
    }
    removed = table->count - kept;
    table->count = kept;
    table->counts.expirations += removed;
    return removed;
}

static int matches(const char *wanted, const char *value)
{
    return !wanted || !wanted[0] || strcmp(wanted, value) == 0;
}

static int begins_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

const struct heft_lease *heft_lease_next(const struct heft_lease_table *table,
                                         const struct heft_lease_query *query, const char *after)
{
    int found = 0;
    int is_later = after && after[0];
    size_t index = is_later ? place_of(table, after, &found) : 0;

    if (!is_later && query->prefix) /* they lie together, as names are sorted */
        index = place_of(table, query->prefix, &found);
    for (index += is_later ? (size_t)found : 0; index < table->count; index++) {
        const struct heft_lease *lease = table->leases[index];

        if (query->prefix && !begins_with(lease->name, query->prefix))
            return NULL;
        if (matches(query->model, lease->model) && matches(query->revision, lease->revision) &&
            matches(query->stage, lease->stage) && matches(query->name, lease->name) &&
            !(query->except && begins_with(lease->name, query->except)) &&
            lease->table_revision > query->after_revision && (query->all || is_live(table, lease)))
            return lease;
    }
    return NULL;
}

const struct heft_lease *heft_lease_find(const struct heft_lease_table *table, const char *name)
{
    int found;
    size_t place = place_of(table, name, &found);

    return found && is_live(table, table->leases[place]) ? table->leases[place] : NULL;
}

uint64_t heft_lease_left_ms(const struct heft_lease_table *table, const struct heft_lease *lease)
{
    uint64_t now_ns = heft_clock_now(&table->clock);

    return now_ns < lease->end_ns ? (lease->end_ns - now_ns + HEFT_NS_PER_MS - 1) / HEFT_NS_PER_MS : 0;
}

uint64_t heft_lease_end_wall_ms(const struct heft_lease_table *table, const struct heft_lease *lease)
{
    return wall_now_ms(table) + heft_lease_left_ms(table, lease);
}

uint64_t heft_lease_revision(const struct heft_lease_table *table)
{
    return table->revision;
}

int heft_lease_ended(const struct heft_lease_table *table, uint64_t after_revision, heft_lease_ended_fn visit,
                     void *context)
{
    uint64_t kept = table->ended_count < HEFT_LEASE_ENDED_MAX ? table->ended_count : HEFT_LEASE_ENDED_MAX;
    uint64_t at = table->ended_count - kept;

    if (after_revision < table->ended_floor)
        return HEFT_ERR_NOT_FOUND;
    for (; at < table->ended_count; at++)
        if (table->ended[at % HEFT_LEASE_ENDED_MAX].revision > after_revision)
            visit(context, table->ended[at % HEFT_LEASE_ENDED_MAX].name,
                  table->ended[at % HEFT_LEASE_ENDED_MAX].revision);
    return 0;
}

uint64_t heft_lease_live(const struct heft_lease_table *table)
{
    uint64_t live = 0;
    size_t index;

    for (index = 0; index < table->count; index++)
        live += is_live(table, table->leases[index]) ? 1 : 0;
    return live;
}

uint64_t heft_lease_total_bytes(const struct heft_lease_table *table)
{
    return table->total_bytes;
}

void heft_lease_get_counts(const struct heft_lease_table *table, struct heft_lease_counts *counts_out)
{
    *counts_out = table->counts;
}

const struct heft_lease_limits *heft_lease_get_limits(const struct heft_lease_table *table)
{
    return &table->limits;
}
