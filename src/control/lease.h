/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory's state machine: names, generations and leases. Pure: time comes from the clocks given, and
 * what a record says beyond its keys is opaque bytes. Not thread-safe: its owner locks.
 *
 * A record is live from its publication until its lease ends, and every question compares with the clock at
 * that moment: an expired record is never live, whether or not it has been reaped yet. A name belongs to the
 * generation that published it last; generations that lost a name are remembered with it, so that a process
 * that was frozen and replaced can't take the name back.
 */
#ifndef HEFT_CONTROL_LEASE_H
#define HEFT_CONTROL_LEASE_H

#include "base/clock.h"
#include <heft/agent.h>

#define HEFT_LEASE_MIN_MS 10u
#define HEFT_LEASE_SUPERSEDED 8u /* generations remembered as replaced, for each name */

struct heft_lease_limits {
    uint64_t max_records;
    uint64_t max_record_bytes;
    uint64_t max_total_bytes; /* of all bodies */
    uint64_t max_lease_ms;
};
/* 100,000 records of at most 4 MiB, 256 MiB in all, leases of at most an hour. */
#define HEFT_LEASE_LIMITS_INIT                                            \
    {                                                                     \
        100000, UINT64_C(4) << 20, UINT64_C(256) << 20, UINT64_C(3600000) \
    }

/* What a holder publishes; copied. NULL strings count as "". */
struct heft_lease_publication {
    const char *name;
    struct heft_generation generation;
    const char *model;
    const char *revision;
    const char *stage;
    const void *body;
    uint64_t body_bytes;
    uint64_t lease_ms;
};

/* One record; read only outside lease.c. */
struct heft_lease {
    char *name;
    struct heft_generation generation;
    char *model;
    char *revision;
    char *stage;
    uint8_t *body;
    uint64_t body_bytes;
    uint64_t lease_ms;
    uint64_t end_ns;            /* by the table's clock */
    uint64_t published_wall_ms; /* first publication of this generation */
    uint64_t table_revision;    /* when this content came */
    struct heft_generation superseded[HEFT_LEASE_SUPERSEDED];
    uint32_t superseded_count; /* in all; the last HEFT_LEASE_SUPERSEDED are kept, in a ring */
};

struct heft_lease_counts {
    uint64_t publishes, renewals, withdrawals, expirations, takeovers, refusals;
};

struct heft_lease_table;

/* `wall` gives ns since 1970 and serves stored records and display only. NULL: out of memory. */
struct heft_lease_table *heft_lease_table_new(const struct heft_lease_limits *limits, struct heft_clock clock,
                                              struct heft_clock wall);
void heft_lease_table_free(struct heft_lease_table *table);

/*
 * Errors: INVALID (name, lease of 0), TOO_LARGE and TOO_MANY (each names the limit), STALE (this generation
 * lost the name to another), NO_MEMORY. On failure the record that was there stays as it was.
 */
int heft_lease_publish(struct heft_lease_table *table, const struct heft_lease_publication *publication,
                       const struct heft_lease **lease_out, struct heft_error *error);
/* lease_ms 0: as long as before. NOT_FOUND: unknown or expired. STALE: another generation has the name. */
int heft_lease_renew(struct heft_lease_table *table, const char *name,
                     const struct heft_generation *generation, uint64_t lease_ms,
                     const struct heft_lease **lease_out, struct heft_error *error);
int heft_lease_withdraw(struct heft_lease_table *table, const char *name,
                        const struct heft_generation *generation, struct heft_error *error);
/* Puts back a record that was stored before a restart. Its lease ends at end_wall_ms, but never later than a
 * whole lease from now (the wall clock may have been set back). NOT_FOUND when it has ended already. */
int heft_lease_restore(struct heft_lease_table *table, const struct heft_lease_publication *publication,
                       uint64_t published_wall_ms, uint64_t end_wall_ms, struct heft_error *error);

/* Removes expired records, telling of each before it goes (NULL: silently). Returns how many. */
typedef void (*heft_lease_reaped_fn)(void *context, const struct heft_lease *lease);
uint64_t heft_lease_reap(struct heft_lease_table *table, heft_lease_reaped_fn reaped, void *context);

struct heft_lease_query { /* NULL or "" matches everything */
    const char *model;
    const char *revision;
    const char *stage;
    const char *name;
    int all;                 /* also expired records that are not reaped yet */
    const char *prefix;      /* names must begin with it; an `after` must too */
    const char *except;      /* and not with this */
    uint64_t after_revision; /* only content that came later */
};
/* The first match with a name greater than `after` (NULL: the first of all), in name order; NULL: no more. */
const struct heft_lease *heft_lease_next(const struct heft_lease_table *table,
                                         const struct heft_lease_query *query, const char *after);
/* Live only. */
const struct heft_lease *heft_lease_find(const struct heft_lease_table *table, const char *name);
/* 0: expired. Rounded up, so that a live record never says 0. */
uint64_t heft_lease_left_ms(const struct heft_lease_table *table, const struct heft_lease *lease);
/* When the lease ends by the wall clock, for storing. */
uint64_t heft_lease_end_wall_ms(const struct heft_lease_table *table, const struct heft_lease *lease);

/*
 * Revisions: each publication and each end of a record has one. Names that ended after a revision, oldest
 * first: visit gets each with its own. 0; NOT_FOUND when the table no longer remembers that far back (the
 * last HEFT_LEASE_ENDED_MAX ends are).
 */
#define HEFT_LEASE_ENDED_MAX 4096u
uint64_t heft_lease_revision(const struct heft_lease_table *table);
typedef void (*heft_lease_ended_fn)(void *context, const char *name, uint64_t revision);
int heft_lease_ended(const struct heft_lease_table *table, uint64_t after_revision, heft_lease_ended_fn visit,
                     void *context);

uint64_t heft_lease_live(const struct heft_lease_table *table);
uint64_t heft_lease_total_bytes(const struct heft_lease_table *table);
void heft_lease_get_counts(const struct heft_lease_table *table, struct heft_lease_counts *counts_out);
const struct heft_lease_limits *heft_lease_get_limits(const struct heft_lease_table *table);

/* 32 lower-case hexadecimal digits and a NUL, for sentences. */
#define HEFT_GENERATION_TEXT_BYTES (2 * HEFT_GENERATION_BYTES + 1)
void heft_generation_print(const struct heft_generation *generation,
                           char text_out[HEFT_GENERATION_TEXT_BYTES]);

#endif
