/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/chaos/: another transport, misbehaving within the contract. For tests; not part of libheft.so.
 * Operations are split into pieces of odd sizes, pieces start late and in another order, ends are held back,
 * chosen operations never end by themselves (until they are canceled) or fail half-way. One seed makes one
 * sequence of decisions.
 */
#ifndef HEFT_TRANSPORT_CHAOS_CHAOS_H
#define HEFT_TRANSPORT_CHAOS_CHAOS_H

#include <heft/transport.h>

struct heft_chaos_options {
    const struct heft_transport_ops *base;
    uint64_t seed;
    uint32_t delay_max_us; /* of each piece's start and of each operation's end; 0: none */
    uint32_t pieces_max;   /* an operation is split into about as many; 0 or 1: not split */
    uint32_t drop_every;   /* every n-th operation never ends by itself; 0: none does */
    uint32_t fail_at;      /* the n-th operation (from 1) fails after some of its bytes; 0: none */
    int fail_code;         /* with this; 0: IO */
};

/* For transports opened from now on. */
void heft_chaos_configure(const struct heft_chaos_options *options);
extern const struct heft_transport_ops heft_transport_chaos; /* named "chaos" */

#endif
