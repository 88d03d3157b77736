/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/local/: host memory to host memory under one kernel. Inside an agent it is a plain copy; to a
 * peer it is a plain copy too when the peer's memory can be mapped, else cross-memory attach. The peer's
 * threads take no part. This header is private to the folder.
 */
#ifndef HEFT_TRANSPORT_LOCAL_LOCAL_H
#define HEFT_TRANSPORT_LOCAL_LOCAL_H

#include "transport/opqueue.h"
#include "transport/worker.h"

/* A worker takes this much of a large operation at a time. */
#define LOCAL_SLICE_BYTES ((uint64_t)1 << 20)
#define LOCAL_SLICE_CUTS 4096u
/* Cancel is looked at this often, progress is counted four times as often. The most of one cross-memory call:
 * at a quarter of it the calls' own cost is 7 % of the time. */
#define LOCAL_STEP_BYTES ((uint64_t)1 << 20)
/* HEFT_XFER_INLINE up to this size: what a core's caches hold is copied quicker by one core than by two. */
#define LOCAL_INLINE_BYTES ((uint64_t)8 << 20)
/* Of more pieces only up to the second size: each costs a call's time, or a cache miss. */
#define LOCAL_INLINE_PIECES 128u
#define LOCAL_INLINE_LIST_BYTES ((uint64_t)2 << 20)
/* iovecs of one cross-memory call (the kernel's own limit). */
#define LOCAL_IOV_MAX 1024

/* Single pieces of at most this size are copied in a loop of their own, which looks ahead. */
#define LOCAL_SMALL_BYTES ((uint64_t)4 << 10)
/* Pieces of at least this size, in operations that no core's cache holds, are copied past the cache. */
#define LOCAL_STREAM_BYTES ((uint64_t)64 << 10)
#define LOCAL_STREAM_TOTAL_BYTES ((uint64_t)12 << 20)

enum local_mode {
    LOCAL_UNREACHABLE = 0,
    LOCAL_MAPPED = 1,
    LOCAL_ATTACHED = 2 /* cross-memory attach */
};

/* What region->slot holds for a peer's region. */
struct local_remote {
    enum local_mode mode;
    void *address; /* MAPPED: where the region's first byte is in this process */
    uint64_t mapped_bytes;
    int writable;
    char reason[160];                 /* why this mode */
    struct local_remote *prev, *next; /* the endpoint's list */
};

struct local_transport {
    struct heft_transport_host host;
    uint32_t workers;
    pthread_mutex_t lock;
    pthread_cond_t gone;
    uint32_t endpoints; /* under lock: not freed yet */
};

struct local_endpoint;

/* One worker's turn at the queue. */
struct local_runner {
    struct heft_job job;
    struct local_endpoint *endpoint;
    struct local_runner *next_idle;
};

struct local_endpoint {
    struct local_transport *transport;
    struct heft_opqueue queue;
    uint32_t refs;             /* atomic: the owner, and each submitted runner */
    struct local_runner *idle; /* under queue.lock */
    pthread_mutex_t remotes_lock;
    struct local_remote *remotes; /* under it: what disconnect still has to unmap */
    int has_peer, same_host;
    int pid, pidfd; /* pidfd -1: unknown; it tells that `pid` still names the process it named at connect */
    int memory;     /* atomic: /proc's file of that process's memory; -1: not opened, or it can't be */
    char name[256];
    struct local_runner runners[];
};

/* Makes region->slot for a peer's region; an unreachable one is kept too, with its reason. */
int local_remote_add(struct local_endpoint *endpoint, struct heft_transport_region *region,
                     struct heft_error *error);
void local_remote_remove(struct local_endpoint *endpoint, struct heft_transport_region *region);
/* For an endpoint without operations: lets go of what was not removed. */
void local_remotes_free(struct local_endpoint *endpoint);
/* One short single piece, as local_copy; AGAIN: it can't be done this way. */
int local_copy_piece(struct local_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error);
/* 1 while the process behind the endpoint's pid is the one that was connected to. */
int local_peer_alive(const struct local_endpoint *endpoint);

/* Moves a claim's bytes, counting them in op->done_bytes. 0 or why it stopped. */
int local_copy(struct local_endpoint *endpoint, const struct heft_claim *claim, int64_t *failed_move_out,
               struct heft_error *error);
/* As memmove; see stream.c. */
void local_stream_copy(char *to, const char *from, uint64_t length);

#endif
