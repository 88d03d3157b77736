/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/: regions, peers, transfers, route choice, documents. It knows bytes, not tensors; it moves none
 * itself, transports do.
 *
 * Threads of an agent:
 *  - the pool's workers: transports run on them, and callbacks of transfers;
 *  - the control worker: every connection with frames (listeners, handshakes of the serving side, heartbeats)
 *    and the deadlines of transfers. It never waits for anything but its epoll set;
 *  - the reaper: calls of transports that may wait (fail, drop_session), so that a slow transport delays
 *    neither a heartbeat nor a deadline.
 * The connecting side's handshake runs in the thread that asked for it.
 *
 * Locks, outer to inner: peer->connect_lock, peer->map_lock, xfer->lock, then one of peer->lock,
 * agent->region_lock, agent->active_lock, agent->event_lock. No callback and no call of a transport that may
 * wait runs under the last five. The briefest post (xfer_run.c) holds peer->lock and tries region_lock inside
 * it, without waiting.
 */
#ifndef HEFT_AGENT_INTERNAL_H
#define HEFT_AGENT_INTERNAL_H

#include "agent/conn.h"
#include "agent/ring.h"
#include "agent/table.h"
#include "agent/telemetry.h"
#include "transport/worker.h"

#include <heft/agent.h>
#include <heft/transport.h>
#include <pthread.h>

#define HEFT_AGENT_LISTENERS_MAX 16
#define HEFT_AGENT_ADDRESS_BYTES 2048
#define HEFT_AGENT_REMOTE_REGIONS_MAX (1u << 20) /* regions that one peer may announce */
#define HEFT_AGENT_DOC_GETS_MAX 16               /* documents that one session may be reading */
#define HEFT_AGENT_LET_GO_MS 1000                /* for peers of this host to stop reading a region */
#define HEFT_AGENT_REAP_MS 10000                 /* for transports to end what they serve to dropped peers */
#define HEFT_KEY_BYTES HEFT_TOKEN_BYTES

struct heft_session;
struct heft_inbox;
struct heft_innote;
struct heft_outnote;
struct heft_counter;
struct heft_peer_event;
struct heft_tether;
struct heft_listener;
struct heft_document;
struct heft_secure;
struct heft_departed;
struct heft_regions_hook;

/* ---- transports ---- */

/*
 * Adds a transport to those that agents opened later may use: for tests, and for transports that are loaded
 * at run time. The table must outlive them. EXISTS: the name is taken; INCOMPATIBLE: another ABI.
 */
int heft_agent_register_transport(const struct heft_transport_ops *ops, struct heft_error *error);
void heft_agent_unregister_transport(const struct heft_transport_ops *ops);

struct heft_agent_transport {
    struct heft_transport_ops ops; /* complete: stubs where the transport had NULL */
    struct heft_transport_host host;
    struct heft_transport *transport; /* NULL: not opened */
    struct heft_error failure;        /* why not */
};

/* Opens those that the list allows (NULL: all). INVALID: the list names an unknown one. */
int heft_agent_open_transports(struct heft_agent *agent, const char *list, const char *plugin_path,
                               struct heft_error *error);
void heft_agent_close_transports(struct heft_agent *agent);
/* A copy of `ops` without NULL. */
void heft_transport_fill(const struct heft_transport_ops *ops, struct heft_transport_ops *full_out);

/* ---- the agent ---- */

struct heft_ended {
    struct heft_generation generation; /* of the agent that served it */
    uint64_t session;
};

struct heft_agent {
    uint64_t process; /* heft_process_life at open: another one in a forked child */
    char name[HEFT_NAME_MAX_BYTES + 1];
    struct heft_generation generation;
    struct heft_token token;
    uint32_t heartbeat_ms, peer_timeout_ms, max_peers, max_pending, handshake_timeout_ms;
    uint64_t max_host_bytes;
    uint32_t device_processors;
    uint32_t flags;             /* enum heft_agent_flags */
    uint32_t refs;              /* atomic: the handle and every transfer */
    struct heft_secure *secure; /* NULL: no TLS */

    struct heft_worker_pool *pool;
    struct heft_worker_pool *control_pool; /* two workers */
    struct heft_worker *control, *reaper;

    struct heft_agent_transport transports[HEFT_TRANSPORT_MAX];
    uint32_t transport_count;

    /* Regions. region_lock also guards the pins and states of peers' regions. */
    pthread_mutex_t region_lock;
    pthread_cond_t region_cond; /* a session let go of a region */
    struct heft_table regions;
    struct heft_region *region_first, *region_last; /* in order of sequence */
    uint64_t next_region_id;
    uint64_t region_epoch;
    uint64_t region_mark;
    struct heft_job announce_job;
    int announce_queued; /* under region_lock */
    /* What went, for metadata since an epoch (metadata.h): a ring. departed_floor: no answer before it. */
    struct heft_departed *departed;
    uint64_t departed_count, departed_floor;
    struct heft_regions_hook *regions_hooks;
    struct heft_region_cache *region_cache;

    /* Transfers. */
    pthread_mutex_t proxy_lock; /* proxy, and opening and closing triggers; before the proxy's own lock */
    struct heft_proxy *proxy;   /* trigger.c; NULL: no trigger is open */
    pthread_mutex_t active_lock;
    struct heft_xfer *active_first;
    struct heft_timer monitor_timer;
    struct heft_job monitor_job;
    int monitor_running, monitor_queued; /* under active_lock */
    uint64_t monitor_next_ns, monitor_idle_since_ns;
    uint64_t busy;          /* atomic: active transfers, running callbacks, and peers being connected */
    uint64_t next_xfer_id;  /* atomic */
    struct heft_peer *self; /* the "peer" of transfers inside this agent */

    /* Peers that this agent connected. */
    pthread_mutex_t peers_lock;
    struct heft_peer *peers;
    uint32_t peer_count;
    struct heft_ended ended_sessions[HEFT_WIRE_ENDED_MAX]; /* oldest first (ended.h) */
    uint32_t ended_session_count;

    /* The serving side: control worker only. */
    struct heft_listener *listeners[HEFT_AGENT_LISTENERS_MAX];
    uint32_t listener_count;
    char addresses[HEFT_AGENT_ADDRESS_BYTES];
    struct heft_conn *conns;
    struct heft_timer conn_timer;
    uint64_t last_tick_ns;
    struct heft_table sessions;
    struct heft_tether *tethers; /* newest first */
    uint32_t tether_count;
    struct heft_session *pending_first, *pending_last;
    uint32_t pending_count;
    uint64_t next_session_id;
    int closing;

    /* What peers tell (inbox.h): under event_lock. */
    pthread_mutex_t event_lock;
    pthread_cond_t note_cond;
    struct heft_innote *note_first, *note_last;
    struct heft_inbox *inbox_first;
    uint32_t inbox_gone;
    struct heft_counter *counters;
    uint64_t event_callbacks; /* running, or submitted */
    uint32_t ring_count;      /* of live connections */
    uint32_t bells;           /* reasons to be rung by all of them */
    int rings_are_many;       /* one of the reasons */
    uint64_t notification_reserved, max_notification_bytes, notification_window_bytes;
    /* What can be waited for at one place (event.h): likewise. */
    pthread_cond_t event_cond, any_cond;
    struct heft_xfer *finished_first, *finished_last;
    struct heft_peer_event *peer_event_first, *peer_event_last;
    uint32_t peer_event_count;
    uint64_t peer_events_missed;
    uint64_t *ended_names; /* hashes; a ring */
    uint64_t ended_count;
    uint64_t any_news;
    uint32_t any_waiters;                    /* atomic */
    uint32_t progress_users, progress_ended; /* atomic: threads in there; no more may enter */
    int progress_fd; /* an epoll descriptor over all workers when callers drive them; else -1 */
    int event_fd, event_fd_is_set, events_closed, credit_queued;
    struct heft_job credit_job;

    pthread_mutex_t document_lock;
    struct heft_document *documents;
    uint64_t document_epoch;

    struct heft_telemetry telemetry; /* atomic access only */
    uint64_t sessions_now;           /* atomic; live sessions */
    uint64_t reaps; /* under region_lock: jobs of sessions that the reaper has not ended yet */
};

/* Counts forks on the way to this process (fork.c). */
extern uint64_t heft_process_life;
void heft_process_watch(void);
/* STATE, and the sentence: the agent is another process's. */
int heft_process_refuse(const struct heft_agent *agent, struct heft_error *error);
/* True in a child of the process that opened the agent: nothing of it may be touched. */
static inline int heft_agent_forked(const struct heft_agent *agent)
{
    return agent->process != heft_process_life;
}

/* For calls that take a const agent and lock inside. */
static inline struct heft_agent *heft_agent_self(const struct heft_agent *agent)
{
    return (struct heft_agent *)(uintptr_t)agent;
}

#define HEFT_COUNT(agent, field, amount) heft_stats_add(&(agent)->telemetry.head->field, (uint64_t)(amount))
#define HEFT_GAUGE(agent, field, value) heft_stats_set(&(agent)->telemetry.head->field, (uint64_t)(value))

/* Fields that the caller's (older, shorter) struct has; `given` begins with its size. NULL: all defaults. */
int heft_options_copy(void *options, size_t size_bytes, const void *given, struct heft_error *error);
void heft_agent_ref(struct heft_agent *agent);
void heft_agent_unref(struct heft_agent *agent);
/* Runs call(context) on that worker and waits for its end (at once when this is its thread). */
void heft_agent_run_on(struct heft_worker *worker, void (*call)(void *context), void *context);
/* heft_cond_wait_until, for what this agent's workers do: runs them meanwhile where callers drive them, and
 * then may return 0 early. until_ns UINT64_MAX: no limit. */
int heft_agent_wait(struct heft_agent *agent, pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns);
int heft_progress_open(struct heft_agent *agent, struct heft_error *error);
void heft_progress_close(struct heft_agent *agent);
/* True on a thread that must not wait for the agent's own threads. */
int heft_agent_on_worker(const struct heft_agent *agent);
/* A condition variable of the monotonic clock, and a wait on it: 0, or AGAIN once until_ns passed. */
void heft_cond_init(pthread_cond_t *cond);
int heft_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns);
#define HEFT_GENERATION_TEXT_BYTES 33
/* 32 hexadecimal digits. */
const char *heft_generation_text(const uint8_t *generation, char text_out[HEFT_GENERATION_TEXT_BYTES]);
int heft_generation_is_none(const uint8_t *generation);
uint64_t heft_deadline_after_ms(uint64_t timeout_ms);

/* ---- regions ---- */

enum heft_region_state {
    HEFT_REGION_LIVE = 1,
    HEFT_REGION_WITHDRAWN = 2, /* no new use; may still be read by peers that have not let go */
    HEFT_REGION_GONE = 3
};

struct heft_region {
    struct heft_transport_region t; /* first: transports see this part */
    struct heft_table_node node;
    struct heft_agent *agent;
    struct heft_peer *peer; /* whose; NULL: this agent's own */
    struct heft_memory *memory;
    struct heft_region *prev, *next; /* own regions in order of sequence; a peer's gone ones */
    uint64_t sequence;               /* of becoming known: what a session was told is a prefix */
    uint32_t refs;                   /* atomic: table or handle, and transfers */
    /* Under region_lock: */
    uint32_t pins;
    enum heft_region_state state;
    uint64_t mark;
    uint32_t holders;           /* sessions that were told to let go and have not answered */
    int owned_fd;               /* t.fd is closed with it */
    struct heft_cached *cached; /* region_cache.c, freed with it; NULL: the caller's own */
    char *url, *version;        /* of an object; owned */
    char label[128];
};

void heft_region_ref(struct heft_region *region);
void heft_region_unref(struct heft_region *region);
/* 0 when [offset + i * stride, + length) lies inside for every i < count; else RANGE. Never wraps. */
int heft_range_check(uint64_t region_bytes, uint64_t offset, uint64_t length, uint64_t count,
                     uint64_t stride);
/* Under region_lock. */
struct heft_region *heft_region_find(const struct heft_table *table, uint64_t id);
/* Drops one pin; does what waited for the last one. region_lock held. */
void heft_region_unpin_locked(struct heft_region *region);
int heft_host_pin_region(void *agent, uint64_t region_id, uint64_t offset_bytes, uint64_t length_bytes,
                         uint32_t need, struct heft_transport_region **region_out);
void heft_host_unpin_region(void *agent, struct heft_transport_region *region);
void heft_host_count_served(void *agent, uint64_t bytes);
void heft_host_count_retries(void *agent, uint32_t index, uint64_t count);
/* The regions changed: tells whoever hooked in. region_lock held. */
void heft_regions_changed(struct heft_agent *agent);
void heft_regions_hooks_clear(struct heft_agent *agent);
/* Deregisters everything; the agent has no transfers, sessions or peers any more. */
void heft_regions_clear(struct heft_agent *agent);

/* ---- peers ---- */

/* One transport's view of one peer. */
struct heft_slot {
    struct heft_peer *peer;
    uint32_t index;
    struct heft_transport_peer view;
    /* Under peer->lock: */
    struct heft_endpoint *endpoint; /* NULL: not connected */
    uint32_t users;                 /* operations and calls under way */
    int broken;                     /* an operation said that the endpoint no longer works */
    int logged;
    struct heft_error failure; /* of the last connect; code 0: none */
    uint64_t retry_ns;         /* not before */
    /* What transfers over it took (estimate.c); atomic access only. */
    uint64_t measured_small_ns, measured_ns_per_mib;
};

struct heft_doc_read;

/* What is to be told to a peer (outbox.h), in order. */
struct heft_outqueue {
    struct heft_outnote *first, *last;
};

struct heft_peer {
    struct heft_agent *agent;
    int is_self;
    struct heft_peer *prev, *next; /* agent->peers */
    uint32_t refs;                 /* atomic: the handle, and every transfer */
    char name[HEFT_NAME_MAX_BYTES + 1];
    struct heft_generation generation;
    char *addresses; /* as given; for data streams */
    uint64_t session;
    uint8_t secret[HEFT_KEY_BYTES];

    pthread_mutex_t connect_lock; /* one connect of a transport at a time */
    pthread_mutex_t map_lock;     /* remote_add, remote_remove, and the exchange of an endpoint */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct heft_slot slots[HEFT_TRANSPORT_MAX];
    int status; /* under lock, and atomic to read */
    struct heft_error error;
    int regions_known; /* the first list came */
    int closing;
    int dialed;      /* it has, or had, data streams, and ended.h does not know it */
    uint32_t over;   /* atomic: lost, or about to be closed; ends dials that are under way */
    uint32_t active; /* transfers */
    struct heft_doc_read *doc_reads;
    uint64_t next_request_id;
    struct heft_outqueue out_counts, out_notes;
    uint64_t out_bytes; /* of notifications by themselves, with their cost */
    int credit_known;   /* the peer takes notifications at all */
    uint64_t credit_bytes;
    uint32_t notification_largest_bytes;
    int outbox_queued;
    struct heft_job outbox_job;
    struct heft_ring ring; /* shared NULL: the peer gave none */
    uint32_t note_frames;  /* NOTIFY frames sent, or about to be */

    struct heft_table regions; /* under region_lock; changed under map_lock too */
    struct heft_region *gone;  /* under region_lock: removed by the peer, still pinned here */
    uint64_t region_epoch;

    /* Control worker only. */
    struct heft_conn conn;
    int conn_live;
    int conn_ending; /* said BYE, or was told it */
    int held_fd;     /* of the ended connection, until no transfer uses the peer's memory; -1 */
    struct heft_job lost_job, free_job;
    int free_queued; /* under region_lock */
};

int heft_peer_new(struct heft_agent *agent, const char *name, struct heft_peer **peer_out,
                  struct heft_error *error);
void heft_peer_ref(struct heft_peer *peer);
void heft_peer_unref(struct heft_peer *peer);
/* Ends every endpoint, then the connection. No transfer is active. */
void heft_peer_shut(struct heft_peer *peer);
/* "peer 'NAME' (generation G)", or "this agent". */
const char *heft_peer_text(const struct heft_peer *peer, char *text_out, size_t size_bytes);
#define HEFT_PEER_TEXT_BYTES 320
int heft_host_dial(void *slot, uint32_t timeout_ms, int *fd_out, struct heft_error *error);
int heft_host_redial(void *slot, uint32_t timeout_ms, int *fd_out, struct heft_error *error);
/* Frames about a peer's regions; on the control worker. */
void heft_remote_regions(struct heft_peer *peer, const struct heft_frame *frame, const uint8_t *payload);
void heft_remote_gone(struct heft_peer *peer, const struct heft_frame *frame, const uint8_t *payload);
void heft_remote_free_job(struct heft_job *job, struct heft_worker *worker);
void heft_remote_clear(struct heft_peer *peer);
void heft_doc_frame(struct heft_peer *peer, const struct heft_frame *frame, const uint8_t *payload);
void heft_doc_fail_all(struct heft_peer *peer); /* peer->lock held */

/* ---- endpoints and routes ---- */

/* Connects the slot's transport when it is not, or again when it broke. Blocks; not on a worker. 0 or the
 * reason, which the slot keeps. */
int heft_slot_connect(struct heft_slot *slot, struct heft_error *error);
/* A hold on the endpoint for one call, or NULL. */
struct heft_endpoint *heft_slot_hold(struct heft_slot *slot);
void heft_slot_release(struct heft_slot *slot);
void heft_slot_shut(struct heft_slot *slot);

#define HEFT_ROUTE_REASON_BYTES 160

struct heft_route_pair {
    enum heft_space local, remote;
    const struct heft_transport_region *region; /* NULL: not known */
};
/* Chooses among the transports for all `pairs` at once. may_connect 0: only those that are connected.
 * reason_out: why this one. */
int heft_route_choose(struct heft_peer *peer, enum heft_op op, const struct heft_route_pair *pairs,
                      size_t pair_count, const char *require, int may_connect, struct heft_slot **slot_out,
                      char reason_out[HEFT_ROUTE_REASON_BYTES], struct heft_error *error);

/* ---- transfers ---- */

void heft_monitor_fire(struct heft_timer *timer);
void heft_monitor_job_run(struct heft_job *job, struct heft_worker *worker);

/* ---- the serving side (control worker) ---- */

int heft_listeners_open(struct heft_agent *agent, const char *list, struct heft_error *error);
void heft_listeners_close(struct heft_agent *agent);
/* A connection that was just accepted; takes fd over in any case. */
void heft_session_accept(struct heft_agent *agent, int fd, int is_unix);
/* Tells live sessions what regions are new. */
void heft_sessions_announce(struct heft_agent *agent);
void heft_sessions_announce_job(struct heft_job *job, struct heft_worker *worker);
/* Tells them that a region is withdrawn; counts those that must let go into region->holders. */
void heft_sessions_withdraw(struct heft_agent *agent, struct heft_region *region);
/* Says BYE to all, drops those in the handshake. */
void heft_sessions_bye(struct heft_agent *agent);
void heft_sessions_drop_all(struct heft_agent *agent);
/* Gives peers the credit that has come free. */
void heft_sessions_credit_job(struct heft_job *job, struct heft_worker *worker);

/* ---- documents ---- */

struct heft_blob {
    uint32_t refs; /* atomic */
    uint64_t epoch;
    uint64_t size_bytes;
    uint8_t data[];
};
/* The document's bytes now, held, or NULL. */
struct heft_blob *heft_document_hold(struct heft_agent *agent, const char *name, size_t name_bytes);
void heft_blob_unref(struct heft_blob *blob);
void heft_documents_clear(struct heft_agent *agent);

#endif
