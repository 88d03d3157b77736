/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of a fleet: fleet.c publishes, finds the others and leaves; fleet_blocks.c says which blocks a chunk
 * is made of; fleet_exchange.c reads the others' logs and decides who reads what from storage.
 */
#ifndef HEFT_LOAD_FLEET_INTERNAL_H
#define HEFT_LOAD_FLEET_INTERNAL_H

#include "load/fleet.h"
#include "load/keeper.h"
#include "plan/plan.h"

#define HEFT_FLEET_DOCUMENT "loading" /* the manifest of what is being loaded */
#define HEFT_FLEET_LOG_FILE "log"     /* its last file: the log's region */
#define HEFT_FLEET_LOG_MAGIC \
    UINT64_C(0x31676f6c21746668) /* "hft!log1"; another byte order reads as another */
#define HEFT_FLEET_CLAIM ((uint64_t)1 << 63)
#define HEFT_FLEET_NONE UINT64_MAX

enum fleet_state { FLEET_GATHERING, FLEET_MOVING, FLEET_COMPLETE };

/*
 * The log's region: this, then entries. `count` of them are valid; a reader takes `count` first. Numbers are
 * in the machine's byte order.
 */
struct fleet_log {
    uint64_t magic;
    uint64_t count;        /* atomic */
    uint32_t state;        /* atomic: enum fleet_state */
    uint32_t reads;        /* atomic: it reads its part from storage */
    uint32_t member_count; /* with `members`: valid from FLEET_MOVING on */
    uint32_t unused;
    struct heft_generation members[HEFT_FLEET_MAX_LOADS]; /* whom it takes from, itself counted */
};

/* Block `block` is there and its digest is `value`; or, with HEFT_FLEET_CLAIM, `value` blocks from there on
 * are being read from storage. Blocks are numbered as in the manifest of the log's owner. */
struct fleet_entry {
    uint64_t block, value;
};

struct fleet_span { /* blocks of a tensor that both hold alike */
    uint64_t theirs, mine, count;
};

struct fleet_peer {
    struct heft_fleet *fleet;
    struct heft_source *source;
    uint32_t index; /* of the plan's sources */
    struct heft_generation generation;
    char name[HEFT_NAME_MAX_BYTES + 1];
    uint64_t log_region, log_capacity;
    struct fleet_span *spans; /* by `theirs` */
    uint64_t span_count;

    /* The exchange's. Under the fleet's lock: */
    uint32_t *missing;    /* by chunk: blocks that it does not have yet */
    uint8_t *claimed;     /* by chunk */
    uint8_t *held;        /* by this load's block */
    uint64_t *digests;    /* likewise */
    uint64_t open_claims; /* chunks that it claimed and does not have */
    int is_lost, is_silent, is_stuck, is_idle, judged;
    unsigned planned_seen;                  /* times its log was read since it has said whom it takes from */
    struct fleet_log log;                   /* as it was read last */
    uint64_t answered_ns, news_ns, read_ns; /* read: all of it */
    /* The reading thread's own: */
    pthread_t thread;
    int thread_started;
    uint64_t seen; /* entries */
    void *buffer;
    struct heft_region *buffer_region;
    struct heft_xfer *xfer;
};

struct fleet_part {                 /* of the chunks: whose turn it is to read them from storage */
    uint64_t first, count, start;   /* in `items`; start: where this load begins in another's part */
    const struct fleet_peer *owner; /* NULL: this load */
};

struct fleet_blocks { /* `count` blocks from `first` on */
    uint64_t first, count;
};

struct fleet_known { /* a load that the directory listed */
    struct heft_generation generation;
    int was_lost;
};

struct heft_fleet {
    struct heft_fleet_options options;
    struct heft_generation generation;
    struct heft_manifest *manifest; /* of what is being loaded */
    struct heft_memory *log_memory;
    struct heft_region *log_region;
    struct fleet_log *log;
    struct fleet_entry *entries;
    uint64_t log_capacity, claims_left;
    struct heft_record record;
    struct heft_keeper keeper;
    int is_kept, document_set;
    uint32_t is_complete; /* atomic: the record is to say so */
    struct fleet_known *known;
    uint32_t known_count;
    struct fleet_peer *peers;
    uint32_t peer_count;
    struct heft_fleet_summary summary;

    /* The exchange's. */
    const struct heft_plan *plan;
    struct heft_executor *executor;
    struct heft_executor_options move; /* what the executor was given */
    uint64_t *entry_of;                /* by tensor of the manifest: the layout's entry; NONE: fused */
    uint64_t *first_range;             /* by chunk, and one more: of its `ranges`; none: not exchanged */
    struct fleet_blocks *ranges;
    uint64_t *chunk_of; /* by block */
    uint64_t storage;   /* bit s: source s is read from storage */
    uint64_t stuck_ms;  /* a load without news for so long reads no more */
    uint32_t window;    /* chunks that may be asked of storage at a time */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint8_t *is_done, *is_asked; /* by chunk */
    uint64_t asked;              /* and not done */
    uint8_t *owners;             /* by chunk */
    uint64_t *items;             /* chunks that storage can give, by part */
    struct fleet_part *parts;    /* the first is this load's */
    uint32_t part_count;
    uint64_t cursor; /* in the own part */
    uint64_t judged_ns;
    uint64_t took_ns; /* when something was taken over from others */
    int is_ready, has_storage, stop;
    pthread_t thread;
    int thread_started;
};

/* fleet_blocks.c: of the plan's chunks, in `manifest`. */
int heft_fleet_list_blocks(struct heft_fleet *fleet, struct heft_error *error);
/* The digest of a block that is there. */
uint64_t heft_fleet_block_digest(const struct heft_fleet *fleet, uint64_t block);
/* What a peer's manifest and this load's have in common: the spans, and a manifest of it for the plan.
 * NOT_FOUND: nothing. */
int heft_fleet_match(const struct heft_fleet *fleet, const struct heft_manifest *theirs,
                     const struct heft_manifest *reference, struct fleet_peer *peer,
                     struct heft_manifest **view_out, struct heft_error *error);

#endif
