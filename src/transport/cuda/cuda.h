/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/cuda/: bytes between device memory and device memory, pinned or plain host memory, and files: of
 * this agent, and of a peer on the same host, whose memory this process maps. The peer's threads take no
 * part.
 *
 * An operation goes one of two ways. Direct, when the GPU itself reaches both sides: its copies are put on a
 * stream of ours, by the copy engines or, for many small pieces, as one launch of our kernel. Staged, when
 * one side is a file or host memory that is not pinned: through slots of pinned memory, filled and emptied by
 * the pool's workers. One thread of the transport watches the events behind what was started; no worker
 * waits. No stream of others and no device is waited for as a whole: what must have been computed before the
 * bytes are moved the caller waits for before it posts, or names.
 *
 *   cuda.c     the table, endpoints, operations from post to done
 *   region.c   what an address is, and handing device memory to peers
 *   remote.c   a peer's memory, mapped here
 *   flight.c   pieces of an operation from claimed to started
 *   list.c     whole lists in one launch, their tables kept for the next post
 *   launch.c   copies put on streams
 *   watch.c    the thread that sees them arrive
 *   order.c    operations that wait for work of the caller
 *   raise.c    words that tell GPUs of arrivals
 */
#ifndef HEFT_TRANSPORT_CUDA_CUDA_H
#define HEFT_TRANSPORT_CUDA_CUDA_H

#include "space/cuda.h"
#include "transport/opqueue.h"
#include "transport/worker.h"

#define CUDA_SLOT_BYTES ((uint64_t)4 << 20)
#define CUDA_SLOTS_MAX 32u
#define CUDA_DIRECT_FLIGHTS 16u
#define CUDA_ORDERED_FLIGHTS 16u
/* One flight of a direct operation. */
#define CUDA_DIRECT_BYTES ((uint64_t)512 << 20)
#define CUDA_DIRECT_CUTS 8192u
#define CUDA_STAGED_CUTS 4096u
/* Items of one launch: a cut takes one, and more only where its pieces are longer than one warp should copy.
 */
#define CUDA_ITEMS 16384u
#define CUDA_WARP_BYTES ((uint64_t)64 << 10)
#define CUDA_WORD_BYTES 64u
/* A list that goes as one launch has at most these bytes: cancel waits for it. */
#define CUDA_LIST_BYTES ((uint64_t)1 << 30)
#define CUDA_TABLES_MAX 1024u
/* The kernel takes lists of pieces that are smaller than this on average; above it the engines are as fast
 * and take no processors from whoever computes. */
#define CUDA_KERNEL_BELOW_BYTES ((uint64_t)4 << 20)
#define CUDA_KERNEL_FROM_PIECES 3u

/* ---- sides ---- */

enum cuda_side_kind { CUDA_SIDE_NONE, CUDA_SIDE_DEVICE, CUDA_SIDE_PINNED, CUDA_SIDE_HOST, CUDA_SIDE_FILE };

/* What GPUs that are not the memory's own may do with it, a bit each; atomic. */
struct cuda_access {
    uint64_t asked, kernels;
};

/* One side of a move, as this process reaches it. */
struct cuda_side {
    enum cuda_side_kind kind;
    uint64_t address; /* not FILE */
    int fd;           /* FILE */
    int device;       /* DEVICE: where the memory is; a peer's: the GPU of this process that reaches it */
    /* DEVICE of mappings: all of them, to let other GPUs of this process use it too. 0: plain memory. */
    uint64_t mapped_at, mapped_bytes;
    int opened;                 /* DEVICE, by legacy IPC: kernels of `device` alone may touch it */
    struct cuda_access *access; /* DEVICE: the region's */
};

struct cuda_sides {
    struct cuda_side to, from;
};

/* An own region: region->slot. */
struct cuda_region {
    struct cuda_side side;
    struct cuda_access access;
    int carrier_fd; /* DEVICE: the socket that holds its handles, or -1 */
    int pinned;     /* HOST, atomic: 0 not known yet, 1, -1 */
    char reason[160];
};

/* A peer's region: region->slot of the endpoint's side. */
struct cuda_remote {
    struct cuda_side side;
    struct cuda_access access;
    int writable;
    uint64_t reserved_at, reserved_bytes, mapped_bytes; /* device memory mapped here */
    uint64_t *piece_bytes;
    uint32_t piece_count;
    uint64_t ipc_at;
    void *host_map;
    uint64_t host_bytes;
    int enter_device;
    char reason[160];
    struct cuda_remote *prev, *next;
};

struct cuda_transport;
struct cuda_endpoint;

/* ---- flights ---- */

/* Copies of one shape, by addresses that the GPU reaches: what a claim becomes. */
struct cuda_run {
    uint64_t to, from, length_bytes, count, to_stride_bytes, from_stride_bytes;
    int kernels; /* a kernel of the flight's device reaches both ends */
};

/* What a flight, or an operation that is held, waits for. */
struct cuda_after {
    heft_cu_event event;     /* NULL: nothing */
    heft_cu_context context; /* of an event that we made and destroy; NULL: the caller's */
};

/* An operation in its queue that may not begin yet. */
struct cuda_held {
    struct cuda_held *next;
    struct cuda_endpoint *endpoint;
    struct cuda_way *way;
    struct heft_transport_op *op;
    struct cuda_after after;
    int device;
};

/* Flights of a sort are taken and given back apart. ORDERED ones are direct too; each has streams of its own,
 * so that what waits on the GPU keeps nothing else from its turn. */
enum cuda_sort { CUDA_DIRECT, CUDA_STAGED, CUDA_ORDERED, CUDA_SORTS };

struct cuda_flight {
    struct heft_job job; /* storing what has come into the slot */
    struct cuda_flight *next;
    struct cuda_endpoint *endpoint;
    struct cuda_transport *transport;
    struct heft_claim claim;
    enum cuda_sort sort;
    struct cuda_after after;
    heft_cu_stream own[HEFT_CUDA_MAX_DEVICES]; /* ORDERED */
    int device;                                /* whose streams and events carry it */
    int inward, outward;                       /* from, to host memory: which stream carries it */
    int stores;                                /* the slot goes to its places when the event has come */
    int status; /* of a start that failed halfway: it ends so when what had begun is over */
    int64_t failed_move;
    struct heft_error error;
    heft_cu_stream stream;  /* what it flies on */
    uint32_t *word, ticket; /* over when *word is the ticket; NULL: by the event */
    uint32_t looks;
    heft_cu_event events[HEFT_CUDA_MAX_DEVICES];
    uint8_t *slot;     /* staged: pinned, made at the first use */
    uint8_t *slot_map; /* the mapping it lies in; NULL: the driver's memory */
    struct cuda_run *runs;
    size_t run_count;
    struct heft_cuda_item *items; /* pinned, likewise */
    heft_cu_pointer device_items[HEFT_CUDA_MAX_DEVICES];
};

/* A list's items in device memory, kept from post to post. */
struct cuda_table {
    struct cuda_table *next_free, *next; /* next: of all */
    int device;
    heft_cu_pointer items;
    uint64_t capacity;
    /* What it describes; moves_id 0: nothing yet. */
    uint64_t moves_id, endpoint, epoch;
    uint64_t count, pieces;
    int inward, outward;
};

/* Streams of one device. */
struct cuda_lane {
    int ready;        /* atomic */
    int writes_words; /* atomic: streams can write words of pinned memory */
    /* To the device, from it, within and between devices; two of each: a copy takes microseconds to begin,
     * and meanwhile the other stream's goes on. */
    heft_cu_stream in[2], out[2], across[2];
    int has_kernels;
    struct heft_cuda_kernels kernels;
};

struct cuda_transport {
    struct heft_transport_host host;
    const struct heft_cu *cu; /* NULL: not started yet */
    pthread_mutex_t lock;     /* everything below */
    pthread_cond_t changed;
    struct cuda_lane lanes[HEFT_CUDA_MAX_DEVICES];
    struct cuda_flight flights[CUDA_DIRECT_FLIGHTS + CUDA_ORDERED_FLIGHTS + CUDA_SLOTS_MAX];
    uint32_t flight_count;
    struct cuda_flight *free_flights[CUDA_SORTS];
    struct cuda_held *held;
    struct cuda_flight *started; /* for the watcher */
    struct cuda_endpoint *endpoints;
    uint32_t endpoint_count; /* not freed yet */
    uint64_t endpoints_made;
    uint8_t *words;  /* pinned, CUDA_WORD_BYTES a flight; NULL: events mark ends */
    uint32_t blocks; /* of one launch of the copy kernel, at most */
    struct cuda_table *free_tables[HEFT_CUDA_MAX_DEVICES], *tables;
    uint32_t table_count;
    uint64_t epoch; /* atomic: grows when a region goes, so that no table outlives what it points at */
    pthread_t watcher;
    int watcher_started, closing;
    struct heft_error broken; /* code != 0: the driver failed for good */
};

struct cuda_runner {
    struct heft_job job;
    struct cuda_endpoint *endpoint;
    struct cuda_way *way;
    struct cuda_runner *next_idle;
};

/* Runners are of two sorts, each with its queue: their flights are limited apart. */
struct cuda_way {
    struct heft_opqueue queue;
    struct cuda_runner *idle; /* under queue.lock */
    int staged;
};

struct cuda_endpoint {
    struct cuda_transport *transport;
    uint64_t number; /* unlike that of any endpoint before it */
    struct cuda_endpoint *next;
    struct cuda_way direct, staged;
    uint32_t refs; /* atomic: the owner, each submitted runner, each flight */
    pthread_mutex_t remotes_lock;
    struct cuda_remote *remotes;
    int has_peer, same_host;
    char name[256];
    uint32_t runner_count;
    struct cuda_runner runners[];
};

/* region.c */
int cuda_region_add(struct cuda_transport *transport, struct heft_transport_region *region,
                    struct heft_error *error);
void cuda_region_remove(struct cuda_transport *transport, struct heft_transport_region *region);
/* An own region as a side. */
void cuda_region_side(const struct cuda_transport *transport, const struct heft_transport_region *region,
                      struct cuda_side *side_out);

/* What travels in a carrier: a socket whose one message, read without taking it, holds this and, as
 * descriptors, the handles of the pieces. So one descriptor a region is enough for the control connection. */
#define CUDA_CARRIER_MAGIC UINT32_C(0x43554448)
#define CUDA_CARRIER_PIECES_MAX 240u
struct cuda_carrier {
    uint32_t magic;
    uint32_t piece_count; /* 0: ipc holds a legacy handle */
    uint8_t process[16];  /* random; another agent of the same process needs no mapping */
    uint8_t uuid[16];
    uint64_t address;      /* in the owner's process */
    uint64_t offset_bytes; /* of the region in what is mapped */
    uint64_t length_bytes;
    uint64_t total_bytes; /* of all pieces, or of the allocation */
    struct heft_cu_ipc_handle ipc;
    uint64_t piece_bytes[CUDA_CARRIER_PIECES_MAX];
};
const uint8_t *cuda_process_nonce(void);

/* remote.c */
int cuda_remote_add(struct cuda_endpoint *endpoint, struct heft_transport_region *region,
                    struct heft_error *error);
void cuda_remote_remove(struct cuda_endpoint *endpoint, struct heft_transport_region *region);
void cuda_remotes_free(struct cuda_endpoint *endpoint);

/* list.c: lists that go as one launch. */
/* 1: the operation was taken, *rc_out is what post gives. 0: it goes the usual way. */
int cuda_list_post(struct cuda_endpoint *endpoint, struct heft_transport_op *op, int *rc_out,
                   struct heft_error *error);
/* The same on a flight that was taken; 0 leaves it to the caller. */
int cuda_list_post_on(struct cuda_flight *flight, struct cuda_endpoint *endpoint,
                      struct heft_transport_op *op, int *rc_out, struct heft_error *error);
/* The GPU that moves the operation. 0: it has no bytes, or none moves it. */
int cuda_op_device(const struct cuda_endpoint *endpoint, const struct heft_transport_op *op, int *device_out);
void cuda_forget(struct heft_transport *transport, void *kept);
void cuda_tables_free(struct cuda_transport *transport);

/* launch.c: inside enter(flight->device). */
int cuda_lane_make(struct cuda_transport *transport, int device, struct heft_error *error);
/* What the flight keeps from one claim to the next. */
int cuda_flight_make(struct cuda_flight *flight, struct heft_error *error);
void cuda_flight_free_slot(const struct heft_cu *cu, struct cuda_flight *flight);
int cuda_flight_launch(struct cuda_flight *flight, struct heft_error *error);
/* Puts the mark of the flight's end on its stream. */
int cuda_flight_mark(struct cuda_flight *flight, heft_cu_stream stream, struct heft_error *error);
heft_cu_stream cuda_flight_stream(const struct cuda_flight *flight);
/* A run as items: pieces longer than a warp should copy are cut. */
void cuda_items_add(struct heft_cuda_item *items, size_t *count, uint64_t *pieces,
                    const struct cuda_run *run);
/* flight->items: CUDA_ITEMS of pinned memory. */
heft_cu_result cuda_items_make(struct cuda_flight *flight);
heft_cu_result cuda_items_upload(struct cuda_flight *flight, heft_cu_pointer to, uint64_t count,
                                 heft_cu_stream stream);
heft_cu_result cuda_items_launch(const struct cuda_flight *flight, heft_cu_pointer items, uint64_t count,
                                 uint64_t pieces, heft_cu_stream stream);

/* flight.c: on a worker. */
void cuda_flight_reset(struct cuda_flight *flight);
int cuda_side_is_reached(const struct cuda_side *side);
int cuda_sides_of(const struct cuda_endpoint *endpoint, const struct heft_transport_op *op,
                  const struct heft_move *move, struct cuda_sides *sides_out, struct heft_error *error);
/* The GPU that does the work: this process' own side before the peer's. */
int cuda_sides_device(const struct heft_transport_op *op, const struct cuda_sides *sides);
/*
 * Makes this side usable by the GPU: mappings are opened to it (an addition that takes nothing from others),
 * plain memory of another GPU by peer access. 1: kernels may touch it too; 0: the engines alone. Inside
 * enter(device).
 */
int cuda_open_to_device(const struct cuda_transport *transport, int device, const struct cuda_side *side);
int cuda_run_overlaps(const struct cuda_run *run);
/* Starts a claim. Not 0: nothing of it runs. 0: it flies; flight->status may hold a failure that ends it. */
int cuda_flight_start(struct cuda_flight *flight);
/* Copies the slot to its places. */
int cuda_flight_store(struct cuda_flight *flight);
/* Which way the operation goes; UNSUPPORTED with the reason. */
int cuda_op_way(struct cuda_endpoint *endpoint, const struct heft_transport_op *op, struct cuda_way **way_out,
                struct heft_error *error);

/* cuda.c */
int cuda_start(struct cuda_transport *transport, struct heft_error *error);
struct cuda_flight *cuda_flight_take(struct cuda_transport *transport, enum cuda_sort sort);
/* One that was taken and not used. */
void cuda_flight_drop(struct cuda_flight *flight);
void cuda_endpoint_drop(struct cuda_endpoint *endpoint);
/* Its claim begins. */
void cuda_flight_fly(struct cuda_flight *flight);
/* Wakes up to `wanted` runners that sleep, if their queue has work. */
void cuda_wake(struct cuda_endpoint *endpoint, struct cuda_way *way, uint64_t wanted);
/* It was started: the watcher's from now on. */
void cuda_flight_watch(struct cuda_flight *flight);
/* The flight is over: reports, and gives it back. */
void cuda_flight_end(struct cuda_flight *flight);

/* order.c */
static inline int cuda_op_is_ordered(const struct heft_transport_op *op)
{
    return op->after_event || (op->flags & HEFT_XFER_AFTER_STREAM);
}
/* Posts an operation that waits. */
int cuda_order_post(struct cuda_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error);
/* Puts the wait on the flight's stream, if it has one. Inside enter(flight->device). */
heft_cu_result cuda_order_wait(const struct cuda_flight *flight, heft_cu_stream stream);
void cuda_after_drop(const struct heft_cu *cu, struct cuda_after *after);
/* Lets what waits no more begin. */
void cuda_held_look(struct cuda_transport *transport);
/* Takes the operation, or (NULL) all of the endpoint, out of those that are looked at. */
void cuda_held_forget(struct cuda_endpoint *endpoint, const struct heft_transport_op *op);

/* raise.c */
/* UNSUPPORTED: the word, or the operation, is not one that can be raised by a GPU behind its bytes. */
int cuda_raise_check(const struct cuda_endpoint *endpoint, const struct heft_transport_op *op,
                     const struct cuda_way *way, struct heft_error *error);
/* Puts the word behind the flight's copies. Inside enter(flight->device). */
heft_cu_result cuda_raise(const struct cuda_flight *flight, heft_cu_stream stream);

/* watch.c */
/* NOT_READY, SUCCESS, or how it failed. `rarely`: the caller sleeps between looks. */
heft_cu_result cuda_flight_look(struct cuda_flight *flight, int rarely);
void *cuda_watch_main(void *transport);

#endif
