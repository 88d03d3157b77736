/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transfer library: agents, regions, peers and transfers.
 *
 * An agent is one end of transfers: it owns regions (memory and files registered for transfer), peers (other
 * agents, each a name and a generation), and the transports that move bytes between them. A transfer moves a
 * list of runs between regions of this agent and regions of one peer, or between two regions of this agent (a
 * file and memory, say).
 *
 * Threads: every call may come from any thread unless it says otherwise. Callbacks run on the agent's worker
 * threads, never under a lock. They may post, set the runs of, and release transfers, also the one they are
 * called for. They must not wait for another one; calls that connect, close a peer or close the agent answer
 * STATE there.
 *
 * Processes: an agent belongs to the process that opened it. In a child made by fork its threads do not exist
 * and its locks may be held for ever: there every call that gets the agent, or what belongs to it, answers
 * STATE and touches nothing, closing included. The child opens an agent of its own, or execs. Descriptors
 * are closed by exec; a child that lives on without one keeps the parent's connections open after its death.
 */
#ifndef HEFT_AGENT_H
#define HEFT_AGENT_H

#include <heft/error.h>
#include <heft/space.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define HEFT_GENERATION_BYTES 16
#define HEFT_TOKEN_BYTES 32
#define HEFT_NAME_MAX_BYTES 255

struct heft_agent;
struct heft_region;
struct heft_peer;
struct heft_xfer;
struct heft_counter;
struct heft_list;

/* One life of one agent: random, never reused. A restarted process has another one. All zero means "none". */
struct heft_generation {
    uint8_t bytes[HEFT_GENERATION_BYTES];
};

/* A shared secret that both ends of a connection prove to hold, without sending it. */
struct heft_token {
    uint8_t bytes[HEFT_TOKEN_BYTES];
};

/* ---- agents ---- */

enum heft_agent_flags {
    HEFT_AGENT_PEER_EVENTS = 1,    /* peers that come and go are told by heft_agent_next_event */
    HEFT_AGENT_CALLER_PROGRESS = 2 /* no worker threads: heft_agent_progress does all work */
};

struct heft_agent_options {
    size_t size;                       /* sizeof(struct heft_agent_options) */
    const char *name;                  /* 1..255 bytes; default "heft-<pid>" */
    struct heft_generation generation; /* default: random */
    struct heft_token token;           /* what peers must prove to connect; default: random */
    const char *listen;                /* comma-separated "host:port" (port 0: the system picks), "[::1]:0",
                                          "unix" (an abstract socket of this host); NULL: accepts no peers */
    const char *transports;            /* allow-list, "local,tcp,file"; NULL: all that this machine can do */
    uint32_t workers;                  /* threads that move bytes; 0: one per core up to 8, of more cores
                                          three in four, at most 16. With CALLER_PROGRESS: what so many callers may do at once;
                                          0: 1 */
    uint32_t heartbeat_ms;             /* liveness probe interval; 0: 250 */
    uint32_t peer_timeout_ms;          /* silence after which a peer counts as frozen; 0: 10000 */
    uint32_t max_peers;                /* accepted connections; 0: 4096 */
    uint32_t max_pending;              /* connections still in the handshake; 0: 256 */
    uint32_t handshake_timeout_ms;     /* 0: 5000 */
    uint64_t max_host_bytes; /* staging memory of all transports together; 0: 256 MiB; at least 16 MiB */
    uint64_t max_notification_bytes; /* notifications of all peers that nobody has taken yet, 64 bytes each on
                                        top; shared out evenly over max_peers, at most 1 MiB a peer; 0: 64
                                        MiB, or what max_peers needs (8,256 bytes each) */
    uint32_t flags;                  /* enum heft_agent_flags */
    const char
        *telemetry;             /* the folder for statistics that `heft top` reads; "off": none; NULL:
                                   $HEFT_TELEMETRY           (a folder, or off), else one of this user in memory. What
                                   keeps them from being           there is logged, and the agent works without */
    uint32_t device_processors; /* of a GPU, for the kernel that copies lists of small pieces: at most so
                                   many of its processors are taken from whoever computes; 0: 32 */
    /*
     * TLS 1.3 on every TCP connection of this agent, made or accepted: PEM files of the authorities that sign
     * peers, of this agent's certificate (with its chain) and of its key; all three or none. A peer without
     * TLS is refused, and refuses. New connections see files that were replaced. Unix sockets stay plain.
     */
    const char *tls_ca, *tls_cert, *tls_key;
    /* Shared libraries that bring transports, or folders of them, separated by ':' (transport.h). What can't
     * be loaded is an error. NULL: $HEFT_PLUGIN_PATH, where what can't be loaded is logged and left out. "":
     * none. */
    const char *plugin_path;
};
#define HEFT_AGENT_OPTIONS_INIT                                                                             \
    {                                                                                                       \
        sizeof(struct heft_agent_options), 0, {{0}}, {{0}}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
            0                                                                                               \
    }

int heft_agent_open(const struct heft_agent_options *options, struct heft_agent **agent_out,
                    struct heft_error *error);
/*
 * Refuses with BUSY while transfers are active, a callback runs or a peer is being connected. Closes peers,
 * ends served connections (peers that read this memory by themselves get a second to stop), deregisters
 * regions. Transfers that were not released may be released later; a post of them is refused.
 */
int heft_agent_close(struct heft_agent *agent, struct heft_error *error);
const char *heft_agent_name(const struct heft_agent *agent);
struct heft_generation heft_agent_generation(const struct heft_agent *agent);
struct heft_token heft_agent_token(const struct heft_agent *agent);
/*
 * The addresses under which peers reach this agent, comma-separated ("unix:@heft-…,tcp:127.0.0.1:41233"),
 * best first. Writes at most size_bytes with the NUL; TOO_LARGE when it does not fit.
 */
int heft_agent_addresses(const struct heft_agent *agent, char *text_out, size_t size_bytes);

/*
 * The work of an agent with HEFT_AGENT_CALLER_PROGRESS: bytes, answers to peers, heartbeats, deadlines and
 * callbacks happen inside this call, and inside every other call that waits (heft_xfer_wait,
 * heft_peer_connect, heft_agent_close ...), on the thread that makes it. Does what there is to do; when that
 * is nothing, waits for up to timeout_ms for something. 0: something was done. AGAIN: nothing came in time.
 * STATE: in a callback, or the agent has threads of its own. CANCELED: the agent was closed meanwhile.
 *
 * Several threads may call it and share the work. An agent for which nobody does is frozen to its peers,
 * which give it up after their peer_timeout_ms; its own deadlines pass unseen. Helper threads remain for what
 * may block in the system: looking up names, opening further streams, and the GPU's completions.
 */
int heft_agent_progress(struct heft_agent *agent, uint64_t timeout_ms);
/*
 * A descriptor for poll, readable while heft_agent_progress would find something to do: sleep on it, also
 * together with others. It stays the agent's: never read, write or close it. STATE: the agent has threads.
 */
int heft_agent_progress_fd(struct heft_agent *agent, int *fd_out, struct heft_error *error);

/*
 * Documents: named byte strings that every connected peer may read (a manifest, metadata). Setting one
 * replaces it at once for later readers and raises its epoch; bytes are copied. data NULL removes it.
 */
int heft_agent_set_document(struct heft_agent *agent, const char *name, const void *data, uint64_t size_bytes,
                            struct heft_error *error);

struct heft_agent_stats {
    size_t size;
    uint64_t bytes_read, bytes_served; /* bytes_served counts what this agent's own threads sent */
    uint64_t xfers_done, xfers_failed;
    uint64_t peers_connected, peers_accepted; /* now: by this agent, and to it */
    uint64_t peers_lost, handshakes_refused;  /* so far; a goodbye is no loss */
    uint64_t regions;                         /* now */
    uint64_t bytes_written;
    uint64_t notifications_sent; /* handed to connections */
    uint64_t notifications_received;
    uint64_t xfers_active;  /* now */
    uint64_t xfers_refused; /* posts that a transport refused; no xfers_failed */
    uint64_t descriptors;   /* pieces of xfers_done */
    uint64_t retries;       /* requests that transports sent again, connections they made again */
    uint64_t region_bytes;  /* now */
    uint64_t registrations, registrations_failed, deregistrations;
    uint64_t connects, connects_failed; /* of heft_peer_connect */
};
void heft_agent_get_stats(const struct heft_agent *agent, struct heft_agent_stats *stats_out);

/* What one transport did for an agent. Times are from post to end of the transfers that ended well, rounded
 * up by at most 1 part in 16. */
struct heft_transport_stats {
    size_t size;
    char name[32]; /* "none": transfers that took no transport (nothing to move, no route) */
    uint64_t xfers_done, xfers_failed, xfers_refused, xfers_active;
    uint64_t bytes_read, bytes_written, descriptors, retries;
    uint64_t read_p50_ns, read_p99_ns, read_max_ns;
    uint64_t write_p50_ns, write_p99_ns, write_max_ns;
    uint64_t errors_of_code; /* with `code` */
    int code; /* set before the call: whose failures and refusals errors_of_code counts; or 0 */
};
/* The transport of that index, counted from 0; NOT_FOUND behind the last one. Any thread, waits for nothing.
 */
int heft_agent_get_transport_stats(const struct heft_agent *agent, uint32_t index,
                                   struct heft_transport_stats *stats_out);

/* ---- regions ---- */

enum heft_region_flags {
    HEFT_REGION_REMOTE_READ = 1, /* peers may read it */
    HEFT_REGION_REMOTE_WRITE = 2 /* peers may write it */
};

/*
 * HOST: `memory` (shareable, the fast way), or `address` and `length_bytes` of any memory of the caller.
 * CUDA: `address` (a device pointer: cudaMalloc, virtual memory management, a tensor's data_ptr) and
 * `length_bytes`; register whole allocations, tensors are offsets in them. Peers of this host map it. Work of
 * streams that writes or reads it is the caller's to wait for before a transfer is posted, or to name
 * (after_event, after_stream).
 * FILE: `fd` (dup'ed; `path` then only names it in messages) or `path`; length_bytes 0 means the file's size
 * now. OBJECT: `path` is a URL (http, https, s3); with length_bytes and `version` nothing is asked; without,
 * the store is asked for them here, which may take seconds. The caller keeps the memory valid until
 * deregistration succeeded.
 */
struct heft_region_options {
    size_t size;
    enum heft_space space;
    uint32_t flags; /* enum heft_region_flags */
    struct heft_memory *memory;
    void *address;
    uint64_t length_bytes;
    int fd; /* -1: none */
    const char *path;
    const char *version; /* OBJECT: the ETag it must have, as the store writes it; NULL: the one it has now */
};
#define HEFT_REGION_OPTIONS_INIT                                                  \
    {                                                                             \
        sizeof(struct heft_region_options), HEFT_SPACE_HOST, 0, 0, 0, 0, -1, 0, 0 \
    }

int heft_region_register(struct heft_agent *agent, const struct heft_region_options *options,
                         struct heft_region **region_out, struct heft_error *error);
/*
 * BUSY while a transfer uses it or a peer's read of it is being served; after success the memory is the
 * caller's. A peer of this host may read it without this agent's help: it is told to let go and waited for,
 * a second at most; BUSY then leaves the region without new uses, until it is deregistered again. Not from a
 * callback that must not wait.
 */
int heft_region_deregister(struct heft_region *region, struct heft_error *error);
/*
 * The same for `count` at once: all of them, or none and the error begins with the index of the one that
 * failed. Peers are told of all together.
 */
int heft_region_register_array(struct heft_agent *agent, const struct heft_region_options *options,
                               size_t count, struct heft_region **regions_out, struct heft_error *error);
/*
 * Deregisters what it can: entries that are gone become NULL, NULL entries are passed over. Not 0: the first
 * error, of an entry that is still there; call again.
 */
int heft_region_deregister_array(struct heft_region **regions, size_t count, struct heft_error *error);
/*
 * Regions may overlap, and the same memory may be registered any number of times: each is a region of its
 * own, with its own rights, and is deregistered by itself. An address whose memory was given back and taken
 * again is registered anew after the old region was deregistered; until then the old one would move whatever
 * lies there.
 *
 * acquire is for callers who learn of memory piece by piece and do not want to register an allocation for
 * each: the region that covers the range with the same flags, if it was acquired before and lies in the same
 * allocation, else a new one over just this range. *offset_bytes_out is the range's first byte in it. Acquire
 * the whole allocation first, and everything inside is found, at the cost of a search.
 *
 * `generation` is the caller's word for which allocation lies at the address now: another number whenever
 * memory there was freed and allocated again, any constant when that never happens. Ranges of an older
 * generation are not found any more; their regions are deregistered when the last who acquired them has
 * released them. Of GPU memory the driver tells it as well, so the number can stay the same.
 *
 * Every acquire is released once. A region that nobody uses stays registered for the next, up to 256 of them.
 * Before memory is freed, forget deregisters what was acquired and released of the range, whatever
 * generation: BUSY while some of it is acquired (nothing has changed then) or still used by a transfer or a
 * peer (forget again). HOST and CUDA by `address` only (INVALID else). STATE from a callback, or a release
 * without an acquire. Other errors as heft_region_register. Any thread.
 */
int heft_region_acquire(struct heft_agent *agent, const struct heft_region_options *options,
                        uint64_t generation, struct heft_region **region_out, uint64_t *offset_bytes_out,
                        struct heft_error *error);
int heft_region_release(struct heft_region *region, struct heft_error *error);
int heft_region_forget(struct heft_agent *agent, const void *address, uint64_t length_bytes,
                       struct heft_error *error);
/*
 * Whether a file or an object is there, how large it is, and since when: without a region, without a byte
 * moved.
 */
struct heft_query {
    size_t size;           /* sizeof(struct heft_query), set before the call */
    enum heft_space space; /* FILE or OBJECT */
    const char *path;      /* a path, or the URL of an object */
    /* Answered: */
    int exists;
    uint64_t length_bytes;
    int64_t modified_ns; /* since 1970; 0: the store does not tell */
    char version[160];   /* OBJECT: its ETag as the store writes it, or "@" and its date; FILE: "" */
};
/*
 * Asks for one; blocks while a store is asked, so not in a callback (STATE). What is not there is no error:
 * exists 0. Errors: DENIED or PERMISSION (may not look), NOT_A_FILE, UNSUPPORTED (another space; or objects,
 * without their transport), UNAVAILABLE and others of the store.
 */
int heft_agent_query(struct heft_agent *agent, struct heft_query *query, struct heft_error *error);

/* Unique in the agent's life, never reused: an old id names nothing and is answered STALE. */
uint64_t heft_region_id(const struct heft_region *region);
uint64_t heft_region_length_bytes(const struct heft_region *region);

/* ---- peers ---- */

struct heft_peer_options {
    size_t size;
    const char *addresses;             /* as heft_agent_addresses gives them; tried in order */
    const char *name;                  /* expected; NULL: any */
    struct heft_generation generation; /* expected; zero: any. Another one is refused with STALE */
    struct heft_token token;
    uint32_t connect_timeout_ms; /* 0: 5000 */
    uint32_t streams;            /* data streams of the tcp transport; 0: chosen */
};
#define HEFT_PEER_OPTIONS_INIT                                     \
    {                                                              \
        sizeof(struct heft_peer_options), 0, 0, {{0}}, {{0}}, 0, 0 \
    }

/*
 * Connects and proves the token both ways. Errors: UNAVAILABLE (nobody listens; says where), STALE (another
 * generation lives there; both are named), DENIED (token), INCOMPATIBLE (versions, both printed), DEADLINE.
 */
int heft_peer_connect(struct heft_agent *agent, const struct heft_peer_options *options,
                      struct heft_peer **peer_out, struct heft_error *error);
/* BUSY while transfers to it are active. */
int heft_peer_close(struct heft_peer *peer, struct heft_error *error);
const char *heft_peer_name(const struct heft_peer *peer);
struct heft_generation heft_peer_generation(const struct heft_peer *peer);
/* 0 while connected; PEER_LOST, STALLED (frozen) or another code, with the reason, after that. */
int heft_peer_status(const struct heft_peer *peer, struct heft_error *error);
/* The whole document, or its first error: NOT_READY when the peer has none of that name; TOO_LARGE over
 * limit_bytes. The buffer is freed with heft_free. */
int heft_peer_read_document(struct heft_peer *peer, const char *name, uint64_t limit_bytes,
                            uint32_t timeout_ms, void **data_out, uint64_t *size_bytes_out,
                            struct heft_error *error);
void heft_free(void *data);

/* ---- transfers ---- */

enum heft_op {
    HEFT_OP_READ = 1, /* remote to local */
    HEFT_OP_WRITE = 2 /* local to remote */
};

/*
 * `count` pieces of `length_bytes`; piece i lies at offset + i * stride on each side. count 1 for a plain
 * range; lengths and counts of 0 are legal. `remote_region` is an id of the peer's region, or of this agent's
 * own region when the transfer has no peer.
 */
struct heft_run {
    struct heft_region *local_region;
    uint64_t local_offset_bytes;
    uint64_t remote_region;
    uint64_t remote_offset_bytes;
    uint64_t length_bytes;
    uint64_t count;
    uint64_t local_stride_bytes;
    uint64_t remote_stride_bytes;
};

/* One finished transfer, as its callback and heft_xfer_get_result see it. */
struct heft_xfer_result {
    size_t size;
    int status; /* 0, HEFT_ERR_*; AGAIN while active */
    uint64_t bytes;
    uint64_t start_ns, end_ns; /* monotonic clock */
    const char *transport;     /* "local": static text; "" before the route was chosen */
    int64_t failed_run;        /* index, or -1; neighbours that moved as one: the first of them */
    struct heft_error error;
    const char
        *reason; /* why that transport, in words; valid until its runs are replaced or it is released */
};

typedef void (*heft_xfer_done_fn)(struct heft_xfer *xfer, const struct heft_xfer_result *result,
                                  void *context);

enum heft_xfer_flags {
    HEFT_XFER_INLINE = 1, /* the posting thread may move the bytes itself before post returns */
    HEFT_XFER_COUNT = 2,  /* WRITE to a peer: counts one on its counter `counter` when all bytes are there */
    HEFT_XFER_EVENT = 4,  /* its ends are told by heft_agent_next_finished */
    HEFT_XFER_AFTER_STREAM = 8, /* each post waits for what is on `after_stream` by then */
    HEFT_XFER_RAISE_LOCAL = 16, /* a word of this agent's region is written when all bytes are there */
    HEFT_XFER_RAISE_REMOTE = 32 /* the same, of a region of the peer (of this agent, if there is none) */
};

struct heft_xfer_options {
    size_t size;
    uint64_t deadline_ms;      /* total; 0: 10 minutes */
    uint64_t stall_ms;         /* without a byte of progress; 0: 30 s */
    const char *require;       /* a transport's name; another route is an error (REQUIRED), not a fall-back */
    uint32_t flags;            /* enum heft_xfer_flags */
    heft_xfer_done_fn on_done; /* once for each post that was taken, after the terminal state is set */
    void *context;
    /* What the peer's heft_agent_next_notification gives once the bytes are there (WRITE) or were read
     * (READ); NULL: none. At most HEFT_NOTIFICATION_MAX_BYTES, 0 is legal; copied by create. The transfer is
     * done when it was handed to the connection; while the peer has no room for it, deadline and stall limit
     * run. */
    const void *notification;
    size_t notification_bytes;
    uint32_t counter; /* with HEFT_XFER_COUNT; any value */
    /*
     * Work on a GPU that each post waits for, before the first byte is read or written; CUDA's own handles.
     * after_event: a CUevent (cudaEvent_t), as it was recorded last; it must not be recorded again or
     * destroyed until the transfer is over. after_stream, with HEFT_XFER_AFTER_STREAM: a CUstream
     * (cudaStream_t; NULL is the default stream of the posting thread's device), not one that is being
     * captured. The post returns at once, and no stream of the caller waits. The deadlines run meanwhile;
     * what was handed to the GPU already ends after that work, also when it is canceled. Only where the
     * bytes are moved by the cuda transport (post: UNSUPPORTED).
     */
    void *after_event, *after_stream;
    /*
     * With HEFT_XFER_RAISE_LOCAL or _REMOTE, for kernels and streams that wait for the bytes: the GPU writes
     * 8 bytes at this offset (a multiple of 8) of the region of this id, behind the last byte. The first post
     * writes raise_value, each later one raise_step more: with 0 the same again, for graphs that put it back;
     * with 1 a count. The word lies in device memory, or in pinned host memory of this agent; a peer's region
     * allows REMOTE_WRITE. Only for transfers of at most 512 MiB and 8,192 runs between places that the GPU
     * reaches by itself: device memory, pinned host memory of this agent (post: UNSUPPORTED).
     */
    uint64_t raise_region, raise_offset_bytes, raise_value, raise_step;
};
#define HEFT_XFER_OPTIONS_INIT                                                        \
    {                                                                                 \
        sizeof(struct heft_xfer_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

#define HEFT_NOTIFICATION_MAX_BYTES 8192

/*
 * Prepares a transfer: checks every run against the regions, chooses the route, allocates. peer NULL: both
 * sides are this agent's regions. The runs are copied. The transfer is idle until posted. Errors: RANGE (with
 * the run), STALE, REQUIRED, UNSUPPORTED (no transport serves the pair; lists each with its reason),
 * PEER_LOST. With a notification or a counter also TOO_LARGE, and UNSUPPORTED when the peer's version takes
 * neither. A transfer without runs may tell as well: it is a notification, or a count, with a completion.
 */
int heft_xfer_create(struct heft_agent *agent, enum heft_op op, struct heft_peer *peer,
                     const struct heft_run *runs, size_t run_count, const struct heft_xfer_options *options,
                     struct heft_xfer **xfer_out, struct heft_error *error);
/*
 * Replaces the runs of a transfer that is not active, reusing its memory. The route is chosen again; in a
 * callback, among the transports that are connected. Runs that are wrong leave the old ones in place.
 */
int heft_xfer_set_runs(struct heft_xfer *xfer, const struct heft_run *runs, size_t run_count,
                       struct heft_error *error);
/*
 * Replaces the notification of a transfer that is not active (STATE otherwise), for the posts that follow;
 * data NULL: none from now on. The bytes are copied. Errors as create's.
 */
int heft_xfer_set_notification(struct heft_xfer *xfer, const void *data, size_t size_bytes,
                               struct heft_error *error);
/*
 * Starts it; again after each terminal state. STATE while active; PEER_LOST or STALLED when the peer is;
 * STALE when a region was withdrawn. After an error nothing was begun and no callback comes. Allocates
 * nothing, looks up no names.
 */
int heft_xfer_post(struct heft_xfer *xfer, struct heft_error *error);
/* 0 done, AGAIN in progress, STATE before the first post, else the transfer's error. */
int heft_xfer_poll(struct heft_xfer *xfer);
/* Blocks until it is terminal and its callback has returned, or timeout_ms passed (AGAIN). Returns as poll
 * does. */
int heft_xfer_wait(struct heft_xfer *xfer, uint64_t timeout_ms);
/*
 * Blocks until one of several transfers of one agent has ended as heft_xfer_wait says: 0, and index_out is
 * the lowest such index; its own status is heft_xfer_poll's. NULL entries and transfers that were never
 * posted are passed over. AGAIN: none in time; timeout_ms 0 only looks, the only legal value in a callback.
 * STATE: none of them was posted. INVALID: of several agents. One that has ended is found again until it is
 * posted or left out.
 */
int heft_xfer_wait_any(struct heft_xfer *const *xfers, size_t count, uint64_t timeout_ms, size_t *index_out);
/*
 * Asks for the end. The transfer ends CANCELED, or as it would have, once nothing touches its local memory
 * any more. What was on its way of a WRITE that was canceled or failed may still arrive at the peer: its
 * remote range is undefined. It never arrives after a later WRITE over the same transport to the same peer,
 * nor after one through a connection that was made once the peer was lost or closed. (Over ucx, and with a
 * peer that does not know how to end what came before, only once its agent has heard the end:
 * HEFT_AGENT_PEER_EVENTS there.)
 */
int heft_xfer_cancel(struct heft_xfer *xfer);
/* BUSY while active; also until its callback has begun. NULL is allowed. */
int heft_xfer_release(struct heft_xfer *xfer);
void heft_xfer_get_result(const struct heft_xfer *xfer, struct heft_xfer_result *result_out);

enum heft_estimate_basis {
    HEFT_ESTIMATE_NOTHING = 0, /* no bytes to move: no time */
    HEFT_ESTIMATE_ASSUMED = 1, /* nothing was moved this way yet: what such a transport usually does */
    HEFT_ESTIMATE_MEASURED = 2 /* from this agent's own transfers with this peer over this transport */
};

struct heft_xfer_cost {
    size_t size;          /* sizeof(struct heft_xfer_cost), set before the call */
    uint64_t bytes;       /* that a post would move */
    uint64_t pieces;      /* separate runs of bytes, after neighbours were merged */
    uint64_t expected_ns; /* from post to its end, if nothing else runs */
    enum heft_estimate_basis basis;
    const char *transport; /* as in the result */
    const char *reason;
};
/*
 * What posting a transfer would cost. Moves nothing, waits for nobody; at any time, also while it is active.
 * An expectation, no promise: deadlines are what limits. INVALID: size.
 */
int heft_xfer_estimate(const struct heft_xfer *xfer, struct heft_xfer_cost *cost_out);

/* ---- transfers that a GPU starts ---- */

/*
 * A word by which a stream or a kernel starts a prepared transfer: whoever writes anything but 0 there
 * (cuStreamWriteValue64, also as a node of a graph; a store of a kernel behind __threadfence_system) has it
 * posted, once. The word is put back to 0 just before the post. While the transfer is active one more start
 * is remembered and follows its end; of several, written before the word was put back, one counts. A thread
 * of the agent looks at these words as long as any is open.
 */
struct heft_trigger;

struct heft_trigger_info {
    size_t size;             /* sizeof(struct heft_trigger_info), set before the call */
    uint64_t *word;          /* 8 bytes of pinned host memory; this is its device pointer too, on every GPU */
    uint64_t started;        /* posts that were taken */
    uint64_t refused;        /* posts that were not */
    struct heft_error error; /* why the last of those was refused */
};

/* The transfer is kept until the trigger is closed; it may be posted otherwise too. Errors: UNSUPPORTED (no
 * GPU), NO_MEMORY, LIBRARY. */
int heft_trigger_open(struct heft_xfer *xfer, struct heft_trigger **trigger_out, struct heft_error *error);
void heft_trigger_get_info(struct heft_trigger *trigger, struct heft_trigger_info *info_out);
/* Nothing may write the word any more. A transfer that was started goes on. Before the agent is closed, and
 * not in a callback. NULL is allowed. */
void heft_trigger_close(struct heft_trigger *trigger);

/* ---- prepared lists ---- */

#define HEFT_LIST_ITEMS_MAX (UINT64_C(1) << 32)

/* `count` items of `length_bytes`, item i at offset + i * stride. */
struct heft_list_run {
    uint64_t region; /* an id */
    uint64_t offset_bytes, length_bytes, count, stride_bytes;
};

/*
 * Prepares one side of transfers: an array of runs becomes a list of items, numbered from 0 in the order of
 * the runs, for any number of transfers. peer NULL: regions of this agent. Ranges are checked here and never
 * again; items may overlap. Memory: regular items cost next to nothing, others 8 to 20 bytes each. Any
 * thread; many may use one list. Errors: RANGE (with the run), STALE, TOO_MANY (HEFT_LIST_ITEMS_MAX),
 * INVALID.
 */
int heft_list_create(struct heft_agent *agent, struct heft_peer *peer, const struct heft_list_run *runs,
                     size_t run_count, struct heft_list **list_out, struct heft_error *error);
uint64_t heft_list_count(const struct heft_list *list);
/* At any time: transfers keep what they need. A list keeps no region from being deregistered. NULL is
 * allowed. */
void heft_list_destroy(struct heft_list *list);
/*
 * Prepares a transfer of `count` pairs: item local_indexes[i] of the local list with item remote_indexes[i]
 * of the remote one, of the same length. Indexes NULL: 0, 1, 2, ... The peer is the remote list's. Neighbours
 * on both sides move as one piece. failed_run of the result is the number of a pair. Errors: RANGE (no such
 * item), INVALID (lengths differ), and heft_xfer_create's.
 */
int heft_xfer_create_indexed(struct heft_agent *agent, enum heft_op op, const struct heft_list *local,
                             const uint32_t *local_indexes, const struct heft_list *remote,
                             const uint32_t *remote_indexes, size_t count,
                             const struct heft_xfer_options *options, struct heft_xfer **xfer_out,
                             struct heft_error *error);
/*
 * Replaces the pairs of a transfer that is not active (STATE), as heft_xfer_set_runs does its runs: memory is
 * reused, the route chosen again, and what is wrong leaves the old ones in place. The remote list is of the
 * same peer (INVALID otherwise). For pages that are picked anew each time from lists that stay.
 */
int heft_xfer_set_indexed(struct heft_xfer *xfer, const struct heft_list *local,
                          const uint32_t *local_indexes, const struct heft_list *remote,
                          const uint32_t *remote_indexes, size_t count, struct heft_error *error);

/* ---- notifications ---- */

/*
 * Sends bytes to the peer's agent, which takes them with heft_agent_next_notification: in the order of these
 * calls and of the ends of transfers with a notification. Copies and returns; allowed in callbacks.
 * size_bytes 0 is legal. Errors: AGAIN (the peer has not taken what waits already, 1 MiB), TOO_LARGE (over
 * HEFT_NOTIFICATION_MAX_BYTES), UNSUPPORTED (the peer's version), PEER_LOST, STALLED. heft_peer_close drops
 * what the peer has no room for yet; a transfer without runs tells when its notification is on its way.
 */
int heft_peer_notify(struct heft_peer *peer, const void *data, size_t size_bytes, struct heft_error *error);

/* One notification that came. */
struct heft_notification {
    size_t size; /* sizeof(struct heft_notification), set before the call */
    void *data;  /* the caller's from now on: heft_free. Never NULL */
    size_t size_bytes;
    char peer[HEFT_NAME_MAX_BYTES + 1];
    struct heft_generation generation;
    uint64_t epoch; /* the connection it came by; see heft_counter_epoch */
};
/*
 * The oldest notification of any peer. Those of one connection come in the order in which they were sent;
 * each once; also after their peer died. timeout_ms 0 only looks, the only legal value in a callback (STATE).
 * Errors: AGAIN (none came in time), CANCELED (the agent was closed meanwhile), INVALID (size). Peers that
 * send more than max_notification_bytes allows wait for this call.
 */
int heft_agent_next_notification(struct heft_agent *agent, struct heft_notification *notification_out,
                                 uint64_t timeout_ms);

/* ---- waiting at one place ---- */

/*
 * A descriptor for poll, readable (POLLIN) while something waits to be taken: a notification, a finished
 * transfer with HEFT_XFER_EVENT, an event of a peer with HEFT_AGENT_PEER_EVENTS. It stays the agent's: never
 * read, write or close it; closing the agent closes it.
 */
int heft_agent_event_fd(struct heft_agent *agent, int *fd_out, struct heft_error *error);
/*
 * The transfer with HEFT_XFER_EVENT that ended first and was not taken yet: each end once. A transfer that is
 * posted again, or released, before that is not given any more. With a callback, it may still run. timeout_ms
 * and errors as heft_agent_next_notification.
 */
int heft_agent_next_finished(struct heft_agent *agent, struct heft_xfer **xfer_out, uint64_t timeout_ms);

enum heft_event_kind {
    HEFT_EVENT_PEER_JOINED = 1, /* connected to this agent */
    HEFT_EVENT_PEER_BACK = 2,   /* the same, and one of that name had ended before (of the last 1,024) */
    HEFT_EVENT_PEER_LEFT = 3,   /* its connection to this agent ended with a goodbye */
    HEFT_EVENT_PEER_LOST = 4 /* its connection broke; or, epoch 0, a peer that this agent connected is lost */
};

struct heft_event {
    size_t size; /* sizeof(struct heft_event), set before the call */
    enum heft_event_kind kind;
    int status; /* LOST: PEER_LOST, STALLED or another code, as `error` says; else 0 */
    char peer[HEFT_NAME_MAX_BYTES + 1];
    struct heft_generation generation;
    uint64_t epoch;  /* the connection, if the peer made it */
    uint64_t missed; /* events before this one that were lost: more than 1,024 waited */
    struct heft_error error;
};
/*
 * The oldest event of an agent with HEFT_AGENT_PEER_EVENTS (INVALID without). A peer that this agent closes
 * makes none. timeout_ms and errors as heft_agent_next_notification.
 */
int heft_agent_next_event(struct heft_agent *agent, struct heft_event *event_out, uint64_t timeout_ms);

/* ---- counters ---- */

/*
 * A counter counts transfers (WRITE with HEFT_XFER_COUNT) of one peer that arrived whole: one each, however
 * they were split and in whatever order they came. What arrives before the counter is opened is counted too:
 * of each connection, up to 1,024 counters that nobody has opened; the connection ends over that. Nothing
 * resets a counter: waiting for n takes n away and leaves the rest.
 *
 * An epoch is one connection of a peer to this agent: a number that grows with each, never reused. A counter
 * belongs to one. When that ends, for whatever reason, every waiter is told PEER_LOST and why; what had
 * arrived can still be taken. The next connection of the peer begins at 0, on another counter object.
 */
struct heft_counter_options {
    size_t size;
    const char *peer;                  /* the name of the peer that writes */
    struct heft_generation generation; /* zero: any */
    uint64_t after_epoch;              /* only a later connection than that; 0: any */
    uint32_t id;
    uint64_t threshold; /* transfers for which the descriptor becomes readable; 0: 1 */
};
#define HEFT_COUNTER_OPTIONS_INIT                              \
    {                                                          \
        sizeof(struct heft_counter_options), 0, {{0}}, 0, 0, 0 \
    }

/*
 * Opens it on the peer's newest connection; if it has none now, on its newest that ended with this counter's
 * transfers still to be taken (the last 64 connections that did are kept); else on the next one that comes.
 * Errors: EXISTS (it is open already), INVALID.
 */
int heft_counter_open(struct heft_agent *agent, const struct heft_counter_options *options,
                      struct heft_counter **counter_out, struct heft_error *error);
/* BUSY while somebody waits, or a function is expected to be called or runs (it may close its own counter).
 * What was not taken stays for the next one who opens it. May come after the agent was closed. NULL is
 * allowed. */
int heft_counter_close(struct heft_counter *counter, struct heft_error *error);
/* Transfers that arrived and were not taken. */
uint64_t heft_counter_count(struct heft_counter *counter);
/* The connection it counts; 0 until the peer connects. */
uint64_t heft_counter_epoch(struct heft_counter *counter);
/* 0 while its connection lives or is awaited; PEER_LOST with the reason; CANCELED: the agent was closed. */
int heft_counter_status(struct heft_counter *counter, struct heft_error *error);
/*
 * Takes `transfers`, as soon as that many are there. AGAIN: not within timeout_ms, nothing was taken (0 only
 * looks, the only legal value in a callback: STATE); or the counter's status, once it can't be reached any
 * more. Several may wait: each takes its own, in no order.
 */
int heft_counter_wait(struct heft_counter *counter, uint64_t transfers, uint64_t timeout_ms,
                      struct heft_error *error);
typedef void (*heft_counter_fn)(struct heft_counter *counter, int status, void *context);
/*
 * Calls the function once, on a worker: with 0 when `transfers` arrived, which it has taken then; with the
 * counter's status when that can't come any more. It may expect the next ones. STATE while another one is
 * expected.
 */
int heft_counter_expect(struct heft_counter *counter, uint64_t transfers, heft_counter_fn on_count,
                        void *context, struct heft_error *error);
/* A descriptor for poll, readable while at least `threshold` transfers are there or the status is not 0; also
 * for a moment after another thread took them, until heft_counter_wait finds nothing. It stays the counter's:
 * never read, write or close it. With a peer of this host, of those on its newest connection the first
 * counter that asks is told the fastest. */
int heft_counter_event_fd(struct heft_counter *counter, int *fd_out, struct heft_error *error);

/*
 * Which route a transfer between these spaces takes and why, one candidate a line with score and reason, best
 * first. peer NULL: inside this agent. Cuts at size_bytes.
 */
int heft_agent_explain(struct heft_agent *agent, struct heft_peer *peer, enum heft_space local,
                       enum heft_space remote, char *text_out, size_t size_bytes);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
