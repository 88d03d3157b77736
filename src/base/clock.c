/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <time.h>

uint64_t heft_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * HEFT_NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t heft_wall_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint64_t monotonic_now(void *context)
{
    (void)context;
    return heft_now_ns();
}

const struct heft_clock heft_clock_monotonic = {monotonic_now, 0};
