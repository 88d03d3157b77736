/* SPDX-License-Identifier: Apache-2.0 */
/* One load: its options, its thread, what it found and where it stands. Private to load.c and report.c. */
#ifndef HEFT_LOAD_LOAD_H
#define HEFT_LOAD_LOAD_H

#include "load/checksums.h"
#include "load/fleet.h"
#include "load/loaded.h"
#include "load/ranges.h"
#include "load/sources.h"
#include "load/stream.h"

#include <pthread.h>

#define HEFT_LOAD_MIN_HOST_BYTES ((uint64_t)16 << 20)

enum heft_load_stage {
    HEFT_STAGE_INIT,    /* resolve, find and connect sources */
    HEFT_STAGE_PLAN,    /* layout, plan, memory */
    HEFT_STAGE_MOVE,    /* bytes move; blocks are verified as they arrive */
    HEFT_STAGE_VERIFY,  /* what can only be checked at the end */
    HEFT_STAGE_PUBLISH, /* heft_load_publish */
    HEFT_STAGE_DONE,
    HEFT_STAGE_COUNT
};

struct heft_load {
    struct heft_load_options options; /* strings and arrays copied */
    void *copies;
    struct heft_agent *agent;
    int own_agent;
    pthread_t thread;
    int thread_started;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    enum heft_load_stage stage;
    uint64_t started_ns, stage_ns[HEFT_STAGE_COUNT]; /* time spent in each */
    uint64_t stage_began_ns, ended_ns;
    int device; /* where the weights go: a GPU; -1: host memory */
    int finished, status;
    int freed;              /* heft_load_free was called */
    uint32_t cancel_wanted; /* atomic */
    struct heft_error error;
    struct heft_found *found;
    struct heft_layout *layout;
    char rules_name[72];        /* of the split rules that made the layout; "": none did */
    struct heft_error no_rules; /* why there are none */
    struct heft_plan *plan;
    struct heft_stream *stream; /* NULL: a model is made */
    struct heft_executor *executor;
    struct heft_checksums *checksums; /* NULL: nothing is compared with a store's */
    struct heft_model *model;
    struct heft_fleet *fleet;       /* with others of other hosts; lives until the load is freed */
    struct heft_model *fleet_model; /* what it serves then */
    struct heft_fleet_summary fleet_summary;
    struct heft_trace *trace;                  /* by HEFT_LOAD_TRACE, from the move on */
    uint64_t stage_start_ns[HEFT_STAGE_COUNT]; /* 0: not reached */
    struct json_t *final_report;               /* made at the end, before what it tells of is freed */

    uint64_t bytes_total, bytes_done, bytes_verified, blocks_verified, blocks_total;
    char verified_against[256];
    const char *memory_kind;
    uint64_t memory_page_bytes;
};

/* load_options.c. One block holds all copied strings and the list of named peers; targets stay the caller's
 * until the load ends. */
int heft_load_copy_options(struct heft_load *load, const struct heft_load_options *given,
                           struct heft_error *error);
/* wanted.c: what is wanted, and where it lands. ranges_out (free): of the caller's targets, else NULL. */
int heft_load_make_layout(struct heft_load *load, struct heft_range **ranges_out, uint32_t *part_count_out,
                          struct heft_error *error);
/* 1 when the options ask for what only rules can tell. */
int heft_load_wants_rules(const struct heft_load_options *options);
/* The tensor that entry `index` of the layout (and those joined to it) makes, into the loaded manifest. */
int heft_load_add_tensor(struct heft_manifest *manifest, const struct heft_layout *layout, uint64_t index,
                         struct heft_error *error);

/* The report as a JSON object (json_decref), NULL out of memory. Under the load's lock. */
struct json_t *heft_report_make(const struct heft_load *load);
/* The trace's text (malloc), NULL: there is none, or out of memory. Once the load has ended. */
char *heft_trace_text(const struct heft_load *load);
/* Its text (malloc). */
char *heft_report_text(struct json_t *report);
const char *heft_stage_name(enum heft_load_stage stage);

#endif
