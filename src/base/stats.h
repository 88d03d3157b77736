/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an agent counts, as one block of memory that other processes may read: a head, then one route for each
 * transport and one for transfers that took none. Writers add with relaxed atomics and wait for nothing;
 * readers copy the block and check every word of it (heft_stats_check): it may come from anybody.
 *
 * Times are log-linear histograms of nanoseconds: exact up to 15, then 16 buckets for each power of two, so
 * that a value is known to 1 part in 16 up to 2^43 ns (2.4 hours), and what is longer counts in the last one.
 */
#ifndef HEFT_BASE_STATS_H
#define HEFT_BASE_STATS_H

#include <heft/error.h>

#define HEFT_STATS_MAGIC "HEFTSTAT"
#define HEFT_STATS_VERSION 1u
#define HEFT_STATS_SUB_BITS 4u
#define HEFT_STATS_BUCKETS 640u
#define HEFT_STATS_ERRORS_MAX 96u
#define HEFT_STATS_ROUTES_MAX 17u
#define HEFT_STATS_NO_ROUTE "none"

struct heft_stats_histogram {
    uint64_t buckets[HEFT_STATS_BUCKETS];
};

/* Transfers of one transport. Begun ones that have neither ended well nor failed nor were refused by the
 * transport are in flight. */
struct heft_stats_route {
    char name[32];
    uint64_t begun, failed, refused;
    uint64_t bytes_read, bytes_written;            /* that arrived, also of transfers that failed then */
    uint64_t descriptors;                          /* pieces of the transfers that ended well */
    uint64_t retries;                              /* requests sent again, connections made again */
    uint64_t errors[HEFT_STATS_ERRORS_MAX];        /* beside head.error_codes */
    struct heft_stats_histogram read_ns, write_ns; /* post to end, of those that ended well */
};

struct heft_stats_head {
    char magic[8]; /* last to be written: without it the block is not whole */
    uint32_t version, head_bytes, route_bytes, route_count;
    uint64_t total_bytes;
    uint64_t pid;           /* in its own namespace */
    uint64_t pid_namespace; /* inode; 0: not known */
    uint64_t start_ticks;   /* of the process, after boot: tells a pid's later owner apart */
    uint64_t opened_wall_ms;
    uint64_t ended_wall_ms; /* when somebody first saw that the process is gone; 0: nobody has */
    uint8_t generation[16];
    char name[256], program[64];
    uint32_t error_count, reserved;
    int32_t error_codes[HEFT_STATS_ERRORS_MAX];
    /* Counters, and (now) gauges. */
    uint64_t bytes_served;
    uint64_t peers_connected, peers_accepted; /* now */
    uint64_t connects, connects_failed, peers_lost, handshakes_refused;
    uint64_t regions, region_bytes; /* now */
    uint64_t registrations, registrations_failed, deregistrations;
    uint64_t notifications_sent, notifications_received;
    struct heft_stats_histogram connect_ns, register_ns;
};

static inline uint32_t heft_stats_bucket(uint64_t value_ns)
{
    uint32_t power, index;

    if (value_ns < (1u << HEFT_STATS_SUB_BITS))
        return (uint32_t)value_ns;
    power = 63u - (uint32_t)__builtin_clzll(value_ns);
    index = ((power - HEFT_STATS_SUB_BITS + 1) << HEFT_STATS_SUB_BITS) +
            ((uint32_t)(value_ns >> (power - HEFT_STATS_SUB_BITS)) & ((1u << HEFT_STATS_SUB_BITS) - 1));
    return index < HEFT_STATS_BUCKETS ? index : HEFT_STATS_BUCKETS - 1;
}

static inline void heft_stats_add(uint64_t *counter, uint64_t amount)
{
    (void)__atomic_fetch_add(counter, amount, __ATOMIC_RELAXED);
}

/* For counters of which all writers hold one lock: a fifth of the price. */
static inline void heft_stats_add_locked(uint64_t *counter, uint64_t amount)
{
    __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + amount, __ATOMIC_RELAXED);
}

static inline void heft_stats_set(uint64_t *gauge, uint64_t value)
{
    __atomic_store_n(gauge, value, __ATOMIC_RELAXED);
}

static inline uint64_t heft_stats_get(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

static inline void heft_stats_record(struct heft_stats_histogram *histogram, uint64_t value_ns)
{
    heft_stats_add(&histogram->buckets[heft_stats_bucket(value_ns)], 1);
}

static inline void heft_stats_record_locked(struct heft_stats_histogram *histogram, uint64_t value_ns)
{
    heft_stats_add_locked(&histogram->buckets[heft_stats_bucket(value_ns)], 1);
}

/* The largest value that a bucket counts. */
uint64_t heft_stats_bucket_most_ns(uint32_t bucket);
uint64_t heft_stats_histogram_count(const struct heft_stats_histogram *histogram);
/* The sum of all values, each taken as the middle of its bucket: right to 1 part in 32. */
double heft_stats_histogram_sum_ns(const struct heft_stats_histogram *histogram);
/* How many values are not over limit_ns, counting whole buckets. */
uint64_t heft_stats_histogram_below(const struct heft_stats_histogram *histogram, uint64_t limit_ns);
/* The value that `share` (0..1) of all do not pass, rounded up to its bucket's end; 0: there are none. */
uint64_t heft_stats_histogram_at(const struct heft_stats_histogram *histogram, double share);
void heft_stats_histogram_add(struct heft_stats_histogram *sum, const struct heft_stats_histogram *other);
/* What came since `earlier`; never below 0. */
void heft_stats_histogram_since(const struct heft_stats_histogram *now,
                                const struct heft_stats_histogram *earlier,
                                struct heft_stats_histogram *since_out);

/* Index of the code in heft_error's list, the place of its counts; the last one for unknown codes. */
uint32_t heft_stats_error_index(int code);
uint64_t heft_stats_total_bytes(uint32_t route_count); /* transports and the one for none */
/* Transfers that ended well, and those in flight. */
uint64_t heft_stats_done(const struct heft_stats_route *route);
uint64_t heft_stats_in_flight(const struct heft_stats_route *route);
/* The routes of a block. */
struct heft_stats_route *heft_stats_routes(struct heft_stats_head *head);
/* A zeroed block of heft_stats_total_bytes becomes one of these transports (and the route for none), all of
 * it but the magic. */
void heft_stats_init(struct heft_stats_head *head, const char *const *transports, uint32_t transport_count);
/* Whether these bytes (aligned to 8) are a whole block: TRUNCATED, INCOMPATIBLE (another version, both are
 * named), PROTOCOL (what is wrong). Every text in a block that passed ends. */
int heft_stats_check(const void *data, uint64_t size, struct heft_error *error);

#endif
