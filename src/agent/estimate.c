/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a transfer will cost, from what earlier ones over the same slot took. Two running means are kept a
 * slot: the time of small transfers (mostly the fixed cost), and the time a MiB of large ones (the rate).
 */
#include "agent/xfer.h"

#include <string.h>

#define SMALL_BYTES (UINT64_C(64) << 10)
#define MIB (UINT64_C(1) << 20)
#define WEIGHT 8 /* the newest of about so many counts as one */

struct usual {
    const char *transport;
    uint64_t fixed_ns, ns_per_mib;
};

/* Before anything was measured: the order of magnitude. */
static struct usual usual_of(const char *transport)
{
    static const struct usual table[] = {
        {"local", 3000, 200000},  {"cuda", 10000, 20000},        {"tcp", 50000, 400000},
        {"file", 100000, 800000}, {"object", 50000000, 5000000},
    };
    static const struct usual other = {"", 50000, 1000000};
    size_t index;

    for (index = 0; index < sizeof(table) / sizeof(table[0]); index++)
        if (strcmp(table[index].transport, transport) == 0)
            return table[index];
    return other;
}

static void learn(uint64_t *mean, uint64_t value)
{
    uint64_t before = __atomic_load_n(mean, __ATOMIC_RELAXED);

    if (!value)
        value = 1; /* 0: nothing learned */
    if (before)
        value = before - before / WEIGHT + value / WEIGHT;
    __atomic_store_n(mean, value ? value : 1, __ATOMIC_RELAXED); /* a lost update does no harm */
}

void heft_estimate_note(struct heft_xfer *xfer)
{
    uint64_t took_ns = xfer->result.end_ns - xfer->result.start_ns;

    if (!xfer->slot || !xfer->total_bytes)
        return;
    if (xfer->total_bytes <= SMALL_BYTES)
        learn(&xfer->slot->measured_small_ns, took_ns);
    else
        learn(&xfer->slot->measured_ns_per_mib,
              (uint64_t)((double)took_ns * (double)MIB / (double)xfer->total_bytes));
}

int heft_xfer_estimate(const struct heft_xfer *const_xfer, struct heft_xfer_cost *estimate_out)
{
    struct heft_xfer *xfer = (struct heft_xfer *)(uintptr_t)const_xfer; /* atomics inside are read */
    struct heft_xfer_cost estimate = {.transport = "", .reason = xfer->route_reason};
    size_t size = estimate_out->size, index;
    uint64_t small_ns, per_mib;
    struct usual usual;

    if (heft_agent_forked(xfer->agent))
        return HEFT_ERR_STATE;
    if (size < sizeof(size))
        return HEFT_ERR_INVALID;
    if (size > sizeof(estimate))
        size = sizeof(estimate);
    estimate.size = size;
    estimate.bytes = xfer->total_bytes;
    for (index = 0; index < xfer->move_count; index++)
        estimate.pieces += xfer->moves[index].count;
    if (xfer->slot && xfer->total_bytes) {
        estimate.transport = xfer->agent->transports[xfer->slot->index].ops.name;
        usual = usual_of(estimate.transport);
        small_ns = __atomic_load_n(&xfer->slot->measured_small_ns, __ATOMIC_RELAXED);
        per_mib = __atomic_load_n(&xfer->slot->measured_ns_per_mib, __ATOMIC_RELAXED);
        estimate.basis = (xfer->total_bytes <= SMALL_BYTES ? small_ns : per_mib) ? HEFT_ESTIMATE_MEASURED
                                                                                 : HEFT_ESTIMATE_ASSUMED;
        if (xfer->total_bytes <= SMALL_BYTES)
            estimate.expected_ns = small_ns ? small_ns : usual.fixed_ns;
        else /* what was measured of large ones has the fixed cost in it */
            estimate.expected_ns = (per_mib    ? 0
                                    : small_ns ? small_ns
                                               : usual.fixed_ns) +
                                   (uint64_t)((double)xfer->total_bytes / (double)MIB *
                                              (double)(per_mib ? per_mib : usual.ns_per_mib));
    }
    memcpy(estimate_out, &estimate, size);
    return 0;
}
