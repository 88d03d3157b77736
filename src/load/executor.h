/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor: moves a plan's chunks from several sources at once.
 *
 * Each source has a number of slots (its credit). A slot takes the next chunk its source can supply, asks for
 * it, and when the bytes are there checks their digest blocks on the thread that received them, while they
 * are still in its cache; then it takes the next. So a fast source takes more, and near the end each holds
 * its share by rate (executor_pace.c). A source that dies, stalls or sends wrong bytes gives its unfinished
 * chunks back, and the others go on. When nothing is left to take, a source that could do a slow one's last
 * chunks sooner gets them.
 */
#ifndef HEFT_LOAD_EXECUTOR_H
#define HEFT_LOAD_EXECUTOR_H

#include "load/trace.h"
#include "plan/plan.h"
#include <heft/agent.h>

#define HEFT_SOURCE_MAX_ROUTES 4
#define HEFT_OBJECT_STALL_FACTOR 6u /* stores pause: stall limits are so many times longer there */

enum heft_source_kind {
    HEFT_SOURCE_FILES = 1,
    HEFT_SOURCE_PEER = 2,
    HEFT_SOURCE_OBJECTS = 3,
    HEFT_SOURCE_SHARE = 4
};
enum heft_source_state {
    HEFT_SOURCE_READY = 1,  /* opened and compared */
    HEFT_SOURCE_USED = 2,   /* supplied bytes */
    HEFT_SOURCE_LOST = 3,   /* failed while moving */
    HEFT_SOURCE_REFUSED = 4 /* never asked: unreachable, stale, incompatible, ... */
};

struct heft_source_route {
    const char *transport; /* static text */
    uint64_t bytes;
};

/* A place that can supply bytes. The load fills the first part, the executor the rest. */
struct heft_source {
    enum heft_source_kind kind;
    enum heft_source_state state;
    char name[256];                 /* for people: a replica's name, or the folder */
    char addresses[512];            /* of a replica */
    char why[256];                  /* why it was taken as a source */
    struct heft_error reason;       /* why it is LOST or REFUSED */
    int excluded;                   /* it is there, but the caller asked for other kinds of sources */
    struct heft_manifest *manifest; /* owned by the load */
    struct heft_opened *opened;     /* of files and objects */
    struct heft_peer *peer;         /* NULL: this agent's own regions */
    const uint64_t *regions;        /* region id of each manifest file */
    uint32_t credits;               /* slots */

    uint64_t read_bytes; /* a share: what this load read into it */
    uint64_t chunks, bytes, retries, digest_errors;
    uint64_t first_ns, last_ns; /* first request, last arrival */
    struct heft_source_route routes[HEFT_SOURCE_MAX_ROUTES];
};

struct heft_executor_options {
    struct heft_agent *agent;
    const struct heft_plan *plan;
    struct heft_source *const *sources;      /* plan->source_count of them, in the plan's order */
    struct heft_region *const *destinations; /* by dst_index */
    uint8_t *const *addresses;               /* first byte of each destination */
    const char *require;
    uint64_t stall_ms;
    int verify;
    /* Checks the blocks that a chunk completes where they lie; NULL: by the CPU, in host memory. Counts
     * compared blocks. Called on the thread that received the chunk. */
    int (*verify_chunk)(const struct heft_executor_options *options, uint64_t chunk, uint64_t *verified_out,
                        struct heft_error *error);
    int on_device; /* the destinations lie on a GPU: what can't reach it goes by way of host memory */
    int device;    /* which one, for verify_chunk */
    /*
     * Bit i: source i is gated, it takes only chunks that heft_executor_offer gave it. When a gated source is
     * lost all gates open, unless whoever offers goes on without it.
     */
    uint64_t gated;
    int keeps_gates;
    void (*on_chunk)(void *context, uint64_t chunk); /* a chunk is there and verified; any thread */
    void *on_chunk_context;
    /* After verify_chunk, with the source that brought the chunk: 0, or what is wrong with it (DIGEST). NULL:
     * nothing more is known of it. */
    int (*check_chunk)(void *context, uint32_t source, uint64_t chunk, struct heft_error *error);
    void *check_chunk_context;
    /* Expected block digests and where each layout tensor's begin in them; expected NULL: none known. */
    const uint64_t *expected;
    const uint64_t *expected_first; /* by layout tensor; UINT64_MAX: none */
    /* Digests of what arrived, for tensors that are wanted whole: by layout tensor, UINT64_MAX: not kept. */
    uint64_t *computed;
    const uint64_t *computed_first;
    struct heft_trace *trace; /* NULL: none is kept */
};

/* verify_chunk by the CPU. */
int heft_host_verify_chunk(const struct heft_executor_options *options, uint64_t chunk,
                           uint64_t *verified_out, struct heft_error *error);

/* DIGEST: the sentence about a block of a layout's entry that is not what was expected. */
int heft_block_mismatch(const struct heft_executor_options *options, uint64_t layout_tensor, uint64_t block,
                        uint64_t digest, uint64_t expected, struct heft_error *error);

struct heft_executor;

int heft_executor_create(const struct heft_executor_options *options, struct heft_executor **executor_out,
                         struct heft_error *error);
/* Starts every source's slots. */
void heft_executor_start(struct heft_executor *executor);
/* Any thread; kick afterwards. */
void heft_executor_offer(struct heft_executor *executor, uint32_t source, uint64_t chunk);
void heft_executor_kick(struct heft_executor *executor);
/* The same, by the thread that waits: for callers who hold locks that a callback would want. */
void heft_executor_look(struct heft_executor *executor);
/* The source can't supply anything any more, for this reason. */
void heft_executor_lose(struct heft_executor *executor, uint32_t source, int code, const char *text);
/*
 * Waits up to timeout_ms, doing the work that needs a clock (giving a slow source's last chunks to others).
 * 0: every chunk arrived; AGAIN; else the error that ended it, after which nothing touches the destinations
 * any more.
 */
int heft_executor_wait(struct heft_executor *executor, uint64_t timeout_ms, struct heft_error *error);
/* Ends it with this error; wait then drains and returns it. */
void heft_executor_stop(struct heft_executor *executor, int code, const char *text);
uint64_t heft_executor_bytes_done(const struct heft_executor *executor);
uint64_t heft_executor_blocks_verified(const struct heft_executor *executor);
/* Sources not lost yet. */
uint32_t heft_executor_sources_left(struct heft_executor *executor);
/* A source as it stands at one moment, while the executor works on it. */
void heft_executor_read_source(struct heft_executor *executor, const struct heft_source *source,
                               struct heft_source *source_out);
/* Only after wait gave 0 or an error. */
void heft_executor_free(struct heft_executor *executor);

#endif
