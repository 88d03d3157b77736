/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transports: how bytes move between two kinds of space. A transport is one table of functions and knows
 * nothing of models. The agent owns regions, peers, connections, deadlines and route choice; a transport only
 * moves.
 *
 * What every transport keeps:
 *  - `post` either refuses (and never calls done) or takes the operation and calls done exactly once, from
 * any thread, possibly before post returns, and holding no lock: a callback of the user may run inside. After
 * done the transport touches neither the operation nor its
 * memory.
 *  - `done(0)` means that every byte arrived, counted, not inferred.
 *  - `cancel` makes done come soon (CANCELED, or the real end); it never makes done come twice.
 *  - op->done_bytes grows while bytes move: the agent finds stalls by it.
 *  - nothing aborts, prints, or waits without a limit.
 */
#ifndef HEFT_TRANSPORT_H
#define HEFT_TRANSPORT_H

#include <heft/agent.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define HEFT_TRANSPORT_ABI 1u
#define HEFT_TRANSPORT_MAX 16 /* transports in one agent */

struct heft_transport; /* one opened transport: its own state behind it */
struct heft_tls;       /* src/transport/tls.h */
struct heft_endpoint;  /* one transport's view of one peer, or of this agent itself */
struct heft_worker_pool;

/* A region as transports see it; the agent owns it and keeps it alive while an operation uses it. */
struct heft_transport_region {
    uint64_t id;
    enum heft_space space;
    uint32_t flags;        /* enum heft_region_flags */
    uint64_t length_bytes; /* OBJECT: 0 until the transport that takes it found out */
    void *address;     /* HOST of this process: first byte. A peer's HOST region: its address in the peer's
                          process,     to be used only through cross-memory attach */
    int fd;            /* FILE: an open descriptor. HOST: descriptor of the shareable memory, or -1. CUDA: the
                          carrier of its handles, which region_add of the cuda transport sets, or -1 */
    const char *label; /* for messages: a file's name, a URL without credentials, or "" */
    void *slot[HEFT_TRANSPORT_MAX]; /* each transport's own data, at its index */
    const char *url;                /* OBJECT: where it is, with whatever credentials the URL holds */
    const char *version;            /* OBJECT: what it must be; NULL: what it is now */
};

/* `count` pieces; already checked against both regions: no wrap, no overrun. */
struct heft_move {
    struct heft_transport_region *local;
    struct heft_transport_region *remote;
    uint64_t local_offset_bytes, remote_offset_bytes;
    uint64_t length_bytes, count;
    uint64_t local_stride_bytes, remote_stride_bytes;
};

struct heft_transport_op {
    enum heft_op kind;
    const struct heft_move *moves;
    size_t move_count;
    uint64_t total_bytes;
    uint32_t flags;         /* enum heft_xfer_flags */
    uint64_t id;            /* unique in the agent, for frames and logs */
    uint64_t done_bytes;    /* atomic access only (__atomic): bytes that have arrived */
    uint32_t cancel_wanted; /* atomic access only: set before `cancel` is called */
    int64_t failed_move;    /* the transport sets it when it knows; -1 */
    /* The agent's: call it exactly once. `error` may be NULL; its text is copied. */
    void (*done)(struct heft_transport_op *op, int status, const struct heft_error *error);
    struct heft_transport_op *next; /* the transport's, while it owns the operation */
    void *priv[4];                  /* likewise */
    /* The transport's own, kept from one post of a transfer to the next until it is given to `forget`; NULL:
     * nothing can be kept. moves_id names the moves: others have another one. */
    void **kept;
    uint64_t moves_id;
    /* Work on a GPU that must be over first, as heft_xfer_options has it (HEFT_XFER_AFTER_STREAM in `flags`);
     * only for a transport with HEFT_TRANSPORT_ORDERS. */
    void *after_event, *after_stream;
    /* With HEFT_XFER_RAISE_LOCAL or _REMOTE: the word that is written when all bytes are there. Checked
     * against the region, and the transport reaches it or refuses the post. */
    struct heft_transport_region *raise_region;
    uint64_t raise_offset_bytes, raise_value;
    uint32_t held; /* the transport's; atomic: not to be begun yet */
};

/* A connected peer as transports see it. */
struct heft_transport_peer {
    const char *name;
    int same_host;       /* the two processes run under one kernel boot */
    int control_is_unix; /* reached through a unix socket: descriptors can be passed */
    int pid;             /* of the peer, in this process' pid namespace; 0: not known */
    uint32_t streams;    /* wanted data streams; 0: the transport chooses */
    void *agent_peer;    /* for the host calls below */
};

/* What the agent does for its transports. */
struct heft_transport_host {
    uint32_t abi;
    uint32_t size;
    void *agent;
    struct heft_worker_pool *pool; /* in-tree transports run on it (src/transport/worker.h) */
    uint64_t max_host_bytes;       /* staging memory the transport may hold */
    uint32_t index;                /* its index in heft_transport_region.slot */
    /* Opens one more authenticated connection to the peer for this transport; the other side's transport of
     * the same name gets it through `accept`. Blocks up to timeout_ms; not on a worker. */
    int (*dial)(void *agent_peer, uint32_t timeout_ms, int *fd_out, struct heft_error *error);
    /* Finds and pins a region of this agent for a peer's access: STALE for an id that is gone, DENIED without
     * `need` (enum heft_region_flags), RANGE outside. The range is checked without wrapping. */
    int (*pin_region)(void *agent, uint64_t region_id, uint64_t offset_bytes, uint64_t length_bytes,
                      uint32_t need, struct heft_transport_region **region_out);
    void (*unpin_region)(void *agent, struct heft_transport_region *region);
    void (*count_served)(void *agent, uint64_t bytes);
    /* For statistics: requests sent again, connections made again. `index` is the one above. */
    void (*count_retries)(void *agent, uint32_t index, uint64_t count);
    uint32_t device_processors; /* of a GPU that a kernel of the transport may take; 0: its own choice */
    uint32_t flags;             /* enum heft_transport_host_flags */
    /* The TLS session of a descriptor that dial or accept gave, once; NULL: it is plain. Transports without
     * HEFT_TRANSPORT_TLS are given plain ones only. */
    struct heft_tls *(*take_tls)(void *agent, int fd);
    /* As `dial`, and the other side has ended the connections that it served to this transport before
     * (drop_session there): nothing that was on its way in one of them arrives any more. With a peer that
     * does not know this yet it only dials. May be NULL. */
    int (*redial)(void *agent_peer, uint32_t timeout_ms, int *fd_out, struct heft_error *error);
};

enum heft_transport_host_flags {
    HEFT_HOST_TLS = 1,  /* what leaves this host must be encrypted */
    HEFT_HOST_NAMED = 2 /* the agent's list of transports names this one */
};

enum heft_transport_flags {
    HEFT_TRANSPORT_TLS = 1,    /* asks take_tls for each of its descriptors */
    HEFT_TRANSPORT_ORDERS = 4, /* after_event, after_stream and raise_region of an operation count */
    HEFT_TRANSPORT_REACHES = 2 /* once dialed, its client moves bytes without this process: regions are given
                                  back when the client has let go of them */
};

struct heft_route_query {
    enum heft_space local, remote;
    enum heft_op op;
    const struct heft_transport_peer *peer;            /* NULL: inside one agent */
    const struct heft_transport_region *remote_region; /* NULL: asked for the pair of spaces only */
};

struct heft_route_score {
    int score;        /* 0: can't; else the larger the better (1..1000) */
    char reason[160]; /* always filled */
};

struct heft_transport_ops {
    uint32_t abi;  /* HEFT_TRANSPORT_ABI */
    uint32_t size; /* sizeof(struct heft_transport_ops) */
    const char *name;
    int (*open)(const struct heft_transport_host *host, struct heft_transport **transport_out,
                struct heft_error *error);
    void (*close)(struct heft_transport *transport);
    /* Local regions of this agent; may fail without making the region unusable for other transports. */
    int (*region_add)(struct heft_transport *transport, struct heft_transport_region *region,
                      struct heft_error *error);
    void (*region_remove)(struct heft_transport *transport, struct heft_transport_region *region);
    /* Regions of a peer, learned through the control connection; `fd` belongs to the region. */
    int (*remote_add)(struct heft_endpoint *endpoint, struct heft_transport_region *region,
                      struct heft_error *error);
    void (*remote_remove)(struct heft_endpoint *endpoint, struct heft_transport_region *region);
    /* endpoint NULL: not connected yet; then the query names no region. */
    void (*score)(struct heft_transport *transport, struct heft_endpoint *endpoint,
                  const struct heft_route_query *query, struct heft_route_score *score_out);
    /* peer NULL: the endpoint for transfers inside this agent. May be called lazily, at the first transfer.
     */
    int (*connect)(struct heft_transport *transport, const struct heft_transport_peer *peer,
                   struct heft_endpoint **endpoint_out, struct heft_error *error);
    /* Ends every operation in flight (done is called for each) before it returns. */
    void (*disconnect)(struct heft_endpoint *endpoint);
    /* The peer is known to be dead or frozen: end every operation now with `status`; the endpoint stays until
     * disconnect. */
    void (*fail)(struct heft_endpoint *endpoint, int status, const struct heft_error *error);
    /* The serving side of `dial`: takes over the descriptor, also when it fails. `session` identifies the
     * peer's control connection. On the agent's own thread: must not wait. */
    int (*accept)(struct heft_transport *transport, int fd, uint64_t session, struct heft_error *error);
    /* The control connection of that session is gone: end what is served to it, before returning. */
    void (*drop_session)(struct heft_transport *transport, uint64_t session);
    int (*post)(struct heft_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error);
    void (*cancel)(struct heft_endpoint *endpoint, struct heft_transport_op *op);
    /* heft_agent_query for an object, its arguments checked: fills in what is answered. NOT_FOUND: it is not
     * there; UNSUPPORTED: ask another transport. May wait, within its own limits. */
    int (*query)(struct heft_transport *transport, struct heft_query *query, struct heft_error *error);
    /* Moves all of an INLINE operation in this thread before it returns; `done` is not called. 0: every byte
     * is there and counted; else why not, as done would say it. AGAIN: nothing was begun, post it. */
    int (*move)(struct heft_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error);
    /* No post uses what was kept any more. Must not wait. */
    void (*forget)(struct heft_transport *transport, void *kept);
    uint32_t flags; /* enum heft_transport_flags */
};

/*
 * Plug-ins: a shared library that defines one such object, named heft_transport_plugin, brings a transport.
 * An agent loads those on its plugin_path. `abi` and `size` stay where they are in every version: a library
 * made for another ABI is refused before anything of it is called. It needs nothing but public headers.
 */
#define HEFT_TRANSPORT_PLUGIN_SYMBOL "heft_transport_plugin"
struct heft_transport_plugin {
    uint32_t abi;  /* HEFT_TRANSPORT_ABI */
    uint32_t size; /* sizeof(struct heft_transport_plugin) */
    const struct heft_transport_ops *ops;
    /* Once a process, before the first use; NULL: nothing to do. A failure's sentence reaches the user. */
    int (*init)(struct heft_error *error);
};

/* In-tree transports; the agent fills what one leaves NULL with stubs that refuse. */
extern const struct heft_transport_ops heft_transport_local;
extern const struct heft_transport_ops heft_transport_tcp;
extern const struct heft_transport_ops heft_transport_file;
extern const struct heft_transport_ops
    heft_transport_cuda; /* GPU memory; open says "no GPU: ..." without one */
extern const struct heft_transport_ops heft_transport_object;
extern const struct heft_transport_ops heft_transport_ucx; /* UCX, where libucp.so.0 is found */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
