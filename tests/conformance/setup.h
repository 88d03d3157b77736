/* SPDX-License-Identifier: Apache-2.0 */
/* One configuration of the suite: which transport, over what, to whom; and a connected pair made of it. */
#ifndef HEFT_TESTS_CONFORMANCE_SETUP_H
#define HEFT_TESTS_CONFORMANCE_SETUP_H

#include "conformance/harness.h"

struct setup {
    const char *name;
    const char *transport;
    const char *base; /* what the peer runs when it isn't `transport` (chaos wraps it) */
    enum link_kind link;
    int in_agent;            /* both sides are regions of one agent */
    int process;             /* the peer is a process of its own */
    enum memory_kind memory; /* of the peer's regions */
    enum memory_kind near;   /* of this side's */
    int served;              /* the peer's transport serves: it pins, and dies with its process */
    int no_write;
    int tls;             /* dialed connections speak it */
    const char *ucx_tls; /* what UCX may use, where the transport is ucx */
};

/* The GPU reaches both sides: operations of megabytes are begun whole as soon as they are posted. */
static inline int setup_is_direct(const struct setup *setup)
{
    return setup->near >= MEMORY_DEVICE && setup->memory >= MEMORY_DEVICE;
}

/* A setup at work. */
struct pair {
    const struct setup *setup;
    struct side near, far;
    struct remote remote;
    struct heft_endpoint *endpoint;
};

void pair_open(struct pair *pair, const struct setup *setup);
void pair_close(struct pair *pair);
/* Ends the endpoint only. */
void pair_disconnect(struct pair *pair);
/* A region of the other side, ready to be named in moves. */
struct heft_transport_region *pair_far_region(struct pair *pair, const struct region_spec *spec);
void pair_far_remove(struct pair *pair, struct heft_transport_region *region);
int pair_post(struct pair *pair, struct test_op *op);

#endif
