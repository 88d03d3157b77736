/* SPDX-License-Identifier: Apache-2.0 */
/* Two agents in one process, and a transport made for tests: what most tests of agents begin with. */
#ifndef HEFT_TEST_PAIR_H
#define HEFT_TEST_PAIR_H

#include "agent/agent_internal.h"
#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define REGION_BYTES 4096

/* A serving agent with one readable region, and a reading agent connected to it. */
struct pair {
    struct heft_agent *server, *client;
    struct heft_peer *peer;
    char addresses[2048];
    uint8_t source[REGION_BYTES], target[REGION_BYTES];
    struct heft_region *source_region, *target_region;
};

/*
 * With HEFT_TEST_CALLER_PROGRESS in the environment agents that open_agent opens have no threads: a thread of
 * the test drives them until close_agent, which stands for heft_agent_close in tests that include this.
 */
int test_is_driven(void);
int close_agent(struct heft_agent *agent, struct heft_error *error);
#define heft_agent_close close_agent
struct heft_agent *open_agent(const char *name, const char *listen, const char *transports);
void pair_open(struct pair *pair, const char *listen, const char *transports);
void pair_close(struct pair *pair);
struct heft_peer_options peer_options(struct heft_agent *server, char addresses[2048]);
struct heft_peer *connect_to(struct heft_agent *client, struct heft_agent *server);
struct heft_region *register_bytes(struct heft_agent *agent, void *address, uint64_t size, uint32_t flags);
/* A READ of the whole source into the target. */
struct heft_xfer *create_read(struct pair *pair, const struct heft_xfer_options *options);
struct heft_run whole_run(struct pair *pair);
/* Calls until it holds or 20 s passed; fails the test then. */
void eventually(int (*holds)(void *context), void *context);
uint64_t stat_of(struct heft_agent *agent, size_t offset);
#define STAT(agent, field) stat_of(agent, offsetof(struct heft_agent_stats, field))
int count_fds(void);
int count_threads(void);

/*
 * The transport "fake": host memory of one process, both agents in it. What an operation does is set by
 * fake_mode before it is posted.
 */
enum fake_mode {
    FAKE_COPY,     /* copies on a worker */
    FAKE_NOW,      /* copies before post returns */
    FAKE_HOLD,     /* does nothing until fake_finish, cancel or fail */
    FAKE_STUBBORN, /* as HOLD, and cancel only makes it end when fake_finish is called */
    FAKE_REFUSE,   /* post refuses */
    FAKE_SHORT,    /* says done without the last byte */
    FAKE_BREAK     /* ends with PEER_LOST though the peer lives */
};
extern const struct heft_transport_ops fake_ops;
void fake_register(void);
void fake_unregister(void);
void fake_set_mode(enum fake_mode mode);
/* Ends what is held: copies, done(0). */
void fake_finish(void);
void fake_set_connect_error(int code);
unsigned fake_held(void);
unsigned fake_connects(void);
unsigned fake_cancels(void);
unsigned fake_remote_regions(void);

#endif
