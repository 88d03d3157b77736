/* SPDX-License-Identifier: Apache-2.0 */
#include "base/stats.h"
#include "base/error.h"

#include <string.h>

#define SUB (UINT64_C(1) << HEFT_STATS_SUB_BITS)

/* In the order of the list, which gives every code its index. */
static const int32_t codes[] = {
#define CODE(name, value, text) -(value),
    HEFT_ERROR_LIST(CODE)
#undef CODE
};
#define CODES ((uint32_t)(sizeof(codes) / sizeof(codes[0])))

_Static_assert(sizeof(codes) / sizeof(codes[0]) < HEFT_STATS_ERRORS_MAX,
               "one more place is for codes that are in no list");
_Static_assert(sizeof(struct heft_stats_route) % 8 == 0 && sizeof(struct heft_stats_head) % 8 == 0,
               "routes follow the head at once");

uint32_t heft_stats_error_index(int code)
{
    uint32_t index;

    for (index = 0; index < CODES && codes[index] != code; index++)
        ;
    return index;
}

/* ---- histograms ---- */

uint64_t heft_stats_bucket_most_ns(uint32_t bucket)
{
    uint32_t power = bucket >> HEFT_STATS_SUB_BITS;

    if (power == 0)
        return bucket;
    return ((SUB + (bucket & (SUB - 1)) + 1) << (power - 1)) - 1;
}

static uint64_t bucket_least_ns(uint32_t bucket)
{
    return bucket ? heft_stats_bucket_most_ns(bucket - 1) + 1 : 0;
}

uint64_t heft_stats_histogram_count(const struct heft_stats_histogram *histogram)
{
    uint64_t count = 0;
    uint32_t bucket;

    for (bucket = 0; bucket < HEFT_STATS_BUCKETS; bucket++)
        count += heft_stats_get(&histogram->buckets[bucket]);
    return count;
}

double heft_stats_histogram_sum_ns(const struct heft_stats_histogram *histogram)
{
    double sum = 0;
    uint32_t bucket;

    for (bucket = 0; bucket < HEFT_STATS_BUCKETS; bucket++)
        sum += (double)heft_stats_get(&histogram->buckets[bucket]) * 0.5 *
               ((double)bucket_least_ns(bucket) + (double)heft_stats_bucket_most_ns(bucket));
    return sum;
}

uint64_t heft_stats_histogram_below(const struct heft_stats_histogram *histogram, uint64_t limit_ns)
{
    uint64_t count = 0;
    uint32_t bucket;

    for (bucket = 0; bucket < HEFT_STATS_BUCKETS && heft_stats_bucket_most_ns(bucket) <= limit_ns; bucket++)
        count += heft_stats_get(&histogram->buckets[bucket]);
    return count;
}

uint64_t heft_stats_histogram_at(const struct heft_stats_histogram *histogram, double share)
{
    uint64_t count = heft_stats_histogram_count(histogram), seen = 0, rank;
    uint32_t bucket;

    if (count == 0)
        return 0;
    rank = (uint64_t)(share * (double)count);
    if (rank >= count)
        rank = count - 1;
    for (bucket = 0; bucket < HEFT_STATS_BUCKETS - 1; bucket++) {
        seen += heft_stats_get(&histogram->buckets[bucket]);
        if (seen > rank)
            break;
    }
    return heft_stats_bucket_most_ns(bucket);
}

void heft_stats_histogram_add(struct heft_stats_histogram *sum, const struct heft_stats_histogram *other)
{
    uint32_t bucket;

    for (bucket = 0; bucket < HEFT_STATS_BUCKETS; bucket++)
        sum->buckets[bucket] += heft_stats_get(&other->buckets[bucket]);
}

void heft_stats_histogram_since(const struct heft_stats_histogram *now,
                                const struct heft_stats_histogram *earlier,
                                struct heft_stats_histogram *since_out)
{
    uint32_t bucket;

    for (bucket = 0; bucket < HEFT_STATS_BUCKETS; bucket++)
        since_out->buckets[bucket] = now->buckets[bucket] > earlier->buckets[bucket]
                                         ? now->buckets[bucket] - earlier->buckets[bucket]
                                         : 0;
}

/* ---- blocks ---- */

uint64_t heft_stats_total_bytes(uint32_t route_count)
{
    return sizeof(struct heft_stats_head) + (uint64_t)route_count * sizeof(struct heft_stats_route);
}

struct heft_stats_route *heft_stats_routes(struct heft_stats_head *head)
{
    return (struct heft_stats_route *)(head + 1);
}

uint64_t heft_stats_done(const struct heft_stats_route *route)
{
    return heft_stats_histogram_count(&route->read_ns) + heft_stats_histogram_count(&route->write_ns);
}

uint64_t heft_stats_in_flight(const struct heft_stats_route *route)
{
    /* What ended is read first: a transfer that begins and ends meanwhile must not count below nothing. */
    uint64_t ended =
        heft_stats_done(route) + heft_stats_get(&route->failed) + heft_stats_get(&route->refused);
    uint64_t begun = heft_stats_get(&route->begun);

    return begun > ended ? begun - ended : 0;
}

void heft_stats_init(struct heft_stats_head *head, const char *const *transports, uint32_t transport_count)
{
    struct heft_stats_route *routes = heft_stats_routes(head);
    uint32_t index;

    head->version = HEFT_STATS_VERSION;
    head->head_bytes = (uint32_t)sizeof(*head);
    head->route_bytes = (uint32_t)sizeof(*routes);
    head->route_count = transport_count + 1;
    head->total_bytes = heft_stats_total_bytes(transport_count + 1);
    head->error_count = CODES + 1;
    memcpy(head->error_codes, codes, sizeof(codes));
    for (index = 0; index <= transport_count; index++) {
        const char *name = index < transport_count ? transports[index] : HEFT_STATS_NO_ROUTE;

        memcpy(routes[index].name, name, strnlen(name, sizeof(routes[index].name) - 1));
    }
}

static int text_ends(const char *text, size_t size)
{
    return strnlen(text, size) < size;
}

static int check_texts(const struct heft_stats_head *head)
{
    const struct heft_stats_route *routes = (const struct heft_stats_route *)(head + 1);
    uint32_t index;

    if (!text_ends(head->name, sizeof(head->name)) || !text_ends(head->program, sizeof(head->program)))
        return 0;
    for (index = 0; index < head->route_count; index++)
        if (!text_ends(routes[index].name, sizeof(routes[index].name)) || !routes[index].name[0])
            return 0;
    return 1;
}

int heft_stats_check(const void *data, uint64_t size, struct heft_error *error)
{
    const struct heft_stats_head *head = data;

    if (size < offsetof(struct heft_stats_head, head_bytes))
        return heft_error_set(error, HEFT_ERR_TRUNCATED, "statistics of %llu bytes: not even a head",
                              (unsigned long long)size);
    if (memcmp(head->magic, HEFT_STATS_MAGIC, sizeof(head->magic)) != 0)
        return heft_error_set(error, HEFT_ERR_PROTOCOL, "no statistics of an agent: the magic is missing");
    if (head->version != HEFT_STATS_VERSION)
        return heft_error_set(error, HEFT_ERR_INCOMPATIBLE,
                              "statistics of version %u; this program reads version %u: use the heft command "
                              "of the same release as the process",
                              head->version, HEFT_STATS_VERSION);
    if (size < sizeof(*head))
        return heft_error_set(error, HEFT_ERR_TRUNCATED, "statistics of %llu bytes: the head alone has %zu",
                              (unsigned long long)size, sizeof(*head));
    if (head->head_bytes != sizeof(*head) || head->route_bytes != sizeof(struct heft_stats_route) ||
        head->route_count == 0 || head->route_count > HEFT_STATS_ROUTES_MAX ||
        head->total_bytes != heft_stats_total_bytes(head->route_count) || head->error_count == 0 ||
        head->error_count > HEFT_STATS_ERRORS_MAX)
        return heft_error_set(error, HEFT_ERR_PROTOCOL, "statistics whose head contradicts itself");
    if (size < head->total_bytes)
        return heft_error_set(error, HEFT_ERR_TRUNCATED, "statistics of %llu bytes, of %llu",
                              (unsigned long long)size, (unsigned long long)head->total_bytes);
    if (!check_texts(head))
        return heft_error_set(error, HEFT_ERR_PROTOCOL, "statistics with a name that does not end");
    return 0;
}
