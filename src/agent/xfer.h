/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers. One goes through IDLE -> ACTIVE -> TERMINAL -> ACTIVE ...; ACTIVE lasts until the transport
 * called done, every call into the transport that names the operation has returned (`holds`), everything is
 * unpinned, and, for one with a callback, until the callback is about to run. So whoever sees TERMINAL may
 * post it again, release it, or take its memory.
 */
#ifndef HEFT_AGENT_XFER_H
#define HEFT_AGENT_XFER_H

#include "agent/agent_internal.h"
#include "agent/outbox.h"

enum heft_xfer_state { HEFT_XFER_IDLE = 0, HEFT_XFER_ACTIVE = 1, HEFT_XFER_TERMINAL = 2 };

/* What the peer is told when the bytes have arrived. */
enum heft_xfer_tells { HEFT_TELL_NOTE = 1, HEFT_TELL_COUNT = 2 };

struct heft_xfer {
    struct heft_transport_op op;
    struct heft_agent *agent;
    struct heft_peer *peer; /* agent->self inside one agent */
    enum heft_op kind;
    struct heft_xfer_options options;
    char *require;
    struct heft_region *raise_region; /* held by a reference; NULL: no word is raised */
    uint64_t raise_value;             /* of the next post */
    uint32_t refs;                    /* atomic: the handle, and each completion under way */
    uint32_t tells;                   /* enum heft_xfer_tells */
    uint8_t *note_data;
    struct heft_outnote note;

    /* Changed by set_runs only. */
    struct heft_slot *slot; /* NULL: nothing to move, no route chosen */
    char route_reason[HEFT_ROUTE_REASON_BYTES];
    struct heft_move *moves;
    uint64_t *run_of_move;
    size_t move_count, move_capacity;
    struct heft_region **regions; /* distinct, own and the peer's, each held by a reference */
    size_t region_count, region_capacity;
    struct heft_region **spare_regions; /* the array before, for the next set_runs */
    size_t spare_capacity;
    uint64_t total_bytes, descriptor_count;
    struct heft_xfer *draft; /* where set_indexed makes the next moves; its memory is used in turn */
    uint64_t moves_id;       /* another one for other moves */
    /* What a transport keeps from one post to the next, and which one. */
    void *kept;
    uint32_t kept_by;

    pthread_mutex_t lock;
    pthread_cond_t cond;
    /* Under lock (state is looked at without it, too: it is written atomically): */
    enum heft_xfer_state state;
    int ended_status; /* atomic, written before TERMINAL: what a poll answers then */
    uint32_t holds;   /* calls into the transport about this operation */
    int posting;      /* the transport may not know it yet: cancel must wait */
    int done;         /* the transport said done */
    int telling;      /* and the peer is still to be told */
    int done_status;
    struct heft_error done_error;
    int cancel_code; /* why it was asked to end; 0: it was not */
    char cancel_text[160];
    uint32_t callbacks; /* running */
    struct heft_xfer_result result;

    /* Under agent->event_lock: */
    struct heft_xfer *finished_prev, *finished_next;
    int finished_listed;

    /* Under agent->active_lock: */
    struct heft_xfer *prev, *next;
    uint64_t start_ns, deadline_ns, stall_ns;
    uint64_t last_bytes, last_progress_ns;
    int expiring;

    struct heft_job callback_job;
};

/* Learns from a transfer that ended well how long such ones take. */
void heft_estimate_note(struct heft_xfer *xfer);
/* Where its transfers are counted. */
static inline struct heft_stats_route *heft_xfer_stats(const struct heft_xfer *xfer)
{
    const struct heft_telemetry *telemetry = &xfer->agent->telemetry;

    return &telemetry->routes[xfer->slot ? xfer->slot->index : telemetry->route_count - 1];
}

/* A transfer without runs, which only its caller knows. */
int heft_xfer_new(struct heft_agent *agent, enum heft_op op, struct heft_peer *peer,
                  const struct heft_xfer_options *given, struct heft_xfer **xfer_out,
                  struct heft_error *error);
/* Room for that many moves: 0 or NO_MEMORY. */
int heft_xfer_reserve_moves(struct heft_xfer *xfer, size_t want);
/* For moves between those spaces and regions; none: connects, at least. */
int heft_xfer_choose_route(struct heft_xfer *xfer, const struct heft_route_pair *pairs, size_t pair_count,
                           struct heft_error *error);
void heft_xfer_unref(struct heft_xfer *xfer);
/* Gives back what a transport keeps for its posts. */
void heft_xfer_forget(struct heft_xfer *xfer);
/* What it had to tell was handed to the connection, or could not be: it ends. Takes over `telling`. */
void heft_xfer_told(struct heft_xfer *xfer, int status, const struct heft_error *error);
/* As poll, but AGAIN also while its callback runs elsewhere: what waits look for. */
int heft_xfer_look(struct heft_xfer *xfer);
/* Asks the transport to end it, once; `code` and the sentence become the result unless it ends well. op_id:
 * only if that post is still the active one; 0: whichever is. */
void heft_xfer_end_early(struct heft_xfer *xfer, uint64_t op_id, int code, const char *text);
/* Tells the monitor that a transfer is active. active_lock held. */
void heft_monitor_watch(struct heft_xfer *xfer);

#endif
