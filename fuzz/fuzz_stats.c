/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input is a file of statistics that somebody left where heft top looks. What passes the check is shown:
 * its sums, its text for Prometheus, and nothing outside it is read. The first byte says how many zeros
 * follow the rest, so that whole blocks (mostly zeros) are within a fuzzer's reach.
 */
#include "agent/telemetry.h"
#include "fuzz.h"

#include <string.h>

#define HEAD_BYTES (sizeof(struct heft_stats_head) - 2 * sizeof(struct heft_stats_histogram))

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct heft_telemetry_entry entry = {.state = HEFT_TELEMETRY_LIVE};
    struct heft_telemetry_list list = {.entries = &entry, .count = 1};
    struct heft_stats_route *routes;
    struct heft_buf text;
    uint8_t *copy;
    size_t total, at;
    uint32_t index;

    if (size == 0)
        return 0;
    total = data[0] * (heft_stats_total_bytes(HEFT_STATS_ROUTES_MAX) / 255) + 255;
    copy = calloc(1, total);
    if (!copy)
        return 0;
    memcpy(copy, data + 1, least(size - 1, least(HEAD_BYTES, total)));
    for (at = sizeof(struct heft_stats_head); size - 1 > HEAD_BYTES && at < total;
         at += sizeof(struct heft_stats_route))
        memcpy(copy + at, data + 1 + HEAD_BYTES,
               least(least(size - 1 - HEAD_BYTES, sizeof(struct heft_stats_route)), total - at));
    if (heft_stats_check(copy, total, NULL) == 0) {
        entry.head = (struct heft_stats_head *)(void *)copy;
        routes = heft_stats_routes(entry.head);
        FUZZ_CHECK(entry.head->total_bytes <= total);
        for (index = 0; index < entry.head->route_count; index++) {
            FUZZ_CHECK(strlen(routes[index].name) < sizeof(routes[index].name));
            (void)heft_stats_in_flight(&routes[index]);
            (void)heft_stats_histogram_at(&routes[index].read_ns, 0.99);
        }
        heft_buf_init(&text, 64 << 20);
        heft_telemetry_prometheus(&list, &text);
        FUZZ_CHECK(text.failed == 0 && memchr(text.data, 0, text.size) == NULL);
        heft_buf_free(&text);
    }
    free(copy);
    return 0;
}
