/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clocks. State machines take a struct heft_clock, so that a test moves time by hand; hot paths read the real
 * monotonic clock directly.
 */
#ifndef HEFT_BASE_CLOCK_H
#define HEFT_BASE_CLOCK_H

#include <stdint.h>

struct heft_clock {
    uint64_t (*now_ns)(void *context);
    void *context;
};

/* Monotonic, ns. */
uint64_t heft_now_ns(void);
/* Wall clock, ms since 1970; for records that people read, never for deadlines. */
uint64_t heft_wall_ms(void);
extern const struct heft_clock heft_clock_monotonic;

static inline uint64_t heft_clock_now(const struct heft_clock *clock)
{
    return clock->now_ns(clock->context);
}

#define HEFT_NS_PER_MS UINT64_C(1000000)
#define HEFT_NS_PER_S UINT64_C(1000000000)

/* So many ms after then; capped at some decades, so that "for ever" neither wraps nor overflows a timespec.
 */
static inline uint64_t heft_after_ms(uint64_t then_ns, uint64_t ms)
{
    const uint64_t most_ms = UINT64_C(1) << 40;

    return then_ns + (ms < most_ms ? ms : most_ms) * HEFT_NS_PER_MS;
}

#endif
