/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/file/: bytes between files and host memory of this agent.
 *
 * An operation becomes a task. Its moves, in the order of the file, are cut into pieces of about 1 MiB: a
 * range of one file, with small gaps in it, and the list of places its bytes go to. Lanes, one a worker of
 * the pool, take pieces from one queue, so that a single large operation and many small ones keep all workers
 * busy alike. How a piece is read is decided when it is taken:
 *
 *   hot      in the page cache: preadv by the worker, straight to the places
 *   in place cold, one destination that O_DIRECT accepts: the middle straight there, the edges through 4 KiB
 *   staged   cold, anything else: O_DIRECT into a slot of the staging memory, then copied to the places
 *   picked   cold, with gaps that cost more to read over than to ask around: one read a run of blocks
 *   plain    cold, where O_DIRECT is refused: like in place or staged, but buffered
 *
 * Cold pieces go through the lane's io_uring, or, where that is refused, through preadv of the worker. Files:
 *   file.c    the transport's table, tasks from post to done, cancel, close
 *   task.c    cutting and walking: arithmetic without I/O
 *   source.c  what is known of a file: O_DIRECT, its alignment, the page cache
 *   piece.c   one piece from taken to landed
 *   brief.c   small operations that the page cache answers, in the posting thread
 *   pick.c    which gaps to read over: what a read costs beside its bytes, as measured
 *   lane.c    workers: taking pieces, the ring
 */
#ifndef HEFT_TRANSPORT_FILE_FILE_H
#define HEFT_TRANSPORT_FILE_FILE_H

#include <heft/transport.h>

#include "transport/tasks.h"
#include "transport/worker.h"

#include <liburing.h>
#include <pthread.h>
#include <sys/uio.h>

#define HEFT_FILE_GAP_BYTES ((uint64_t)256 << 10)      /* wider ones end a piece */
#define HEFT_FILE_BLOCK_BYTES ((uint64_t)4096)         /* cuts, and the largest block O_DIRECT may ask for */
#define HEFT_FILE_PIECE_BYTES ((uint64_t)1 << 20)      /* with io_uring */
#define HEFT_FILE_SYNC_PIECE_BYTES ((uint64_t)4 << 20) /* without: one read a worker is in flight */
#define HEFT_FILE_STAGING_BYTES ((uint64_t)64 << 20)   /* at most, and within the host's budget */
#define HEFT_FILE_PIECES 128u
#define HEFT_FILE_MAX_ELEMENTS 65536u
#define HEFT_FILE_MAX_IOV 256u
#define HEFT_FILE_BRIEF_BYTES ((uint64_t)4 << 20) /* HEFT_XFER_INLINE up to this size */

/* ---- test switches ---- */

enum heft_file_mode {
    HEFT_FILE_AUTO = 0,
    HEFT_FILE_NO_URING = 1,       /* as if io_uring were refused */
    HEFT_FILE_NO_DIRECT = 2,      /* as if O_DIRECT were refused */
    HEFT_FILE_NO_CACHE_QUERY = 4, /* as if the page cache did not answer */
    HEFT_FILE_ALL_COLD = 8,       /* as if nothing were in the page cache */
    HEFT_FILE_REFUSE_DIRECT = 16, /* O_DIRECT opens, but reads are answered EINVAL */
    HEFT_FILE_NO_REGISTER = 32,   /* as if RLIMIT_MEMLOCK were small */
    HEFT_FILE_NO_GAPS = 64        /* as if a read cost nothing beside its bytes */
};
/* For transports opened and regions added later. */
void heft_file_force_mode(uint32_t mode);
uint32_t heft_file_forced_mode(void);

/* ---- sources ---- */

enum heft_file_direct { HEFT_FILE_DIRECT_UNKNOWN = 0, HEFT_FILE_DIRECT_YES = 1, HEFT_FILE_DIRECT_NO = 2 };

/* What the transport knows of one FILE region; in the region's slot. */
struct heft_file_source {
    int fd; /* the region's */
    const char *label;
    int access; /* open flags */
    int in_memory;
    uint32_t mode;
    pthread_mutex_t lock;
    int direct;    /* enum heft_file_direct; atomic, YES and NO are final but for a later refusal */
    int direct_fd; /* valid while direct is or was YES */
    uint32_t offset_align, memory_align;
    uint32_t cold_guess; /* atomic: pieces still taken for cold when the cache does not answer */
};

enum heft_file_heat { HEFT_FILE_COLD, HEFT_FILE_HOT, HEFT_FILE_UNSURE };

int heft_file_source_create(const struct heft_transport_region *region, struct heft_file_source **source_out,
                            struct heft_error *error);
void heft_file_source_destroy(struct heft_file_source *source);
/* Whether O_DIRECT works, opened at the first call. */
int heft_file_source_direct(struct heft_file_source *source);
void heft_file_source_refuse_direct(struct heft_file_source *source);
enum heft_file_heat heft_file_source_heat(struct heft_file_source *source, uint64_t offset_bytes,
                                          uint64_t length_bytes);
/* After UNSURE: a probe found that the cache does not hold it; the next pieces are taken for cold. */
void heft_file_source_was_cold(struct heft_file_source *source);

/* ---- tasks ---- */

/* A place in the elements of a task: move number `order` in file order, its element `index`, `byte` in it. */
struct heft_file_cursor {
    size_t order;
    uint64_t index;
    uint64_t byte;
};

/*
 * What reads cost a lane: the time from one answer to the next is a cost of each read and a cost of each
 * byte, both by least squares over all answers. A gap that takes longer to read than another read does is not
 * read.
 */
struct heft_file_gauge {
    uint64_t since_ns; /* the window's begin */
    uint64_t window_reads, window_picked, window_bytes;
    uint64_t picked; /* reads that went around gaps: they tell what a read costs */
    double reads_reads, reads_bytes, bytes_bytes, reads_ns, bytes_ns; /* sums of products */
    uint64_t gap_bytes;                                               /* 0: not known yet */
};
/* Until the gauge knows: of what an SSD does. */
#define HEFT_FILE_GAUGE_GAP_BYTES ((uint64_t)8 << 10)

/* A read begins while none is in flight. */
void heft_file_gauge_begin(struct heft_file_gauge *gauge, uint64_t now_ns);
/* So many answers came since the last call, `picked` of them to reads of picked pieces. */
void heft_file_gauge_note(struct heft_file_gauge *gauge, uint64_t now_ns, uint64_t reads, uint64_t picked,
                          uint64_t bytes);

struct heft_file_task {
    struct heft_task common;
    size_t *order; /* moves in file order; NULL: as given */
    size_t order_capacity;
    int sorted;
    int write;      /* host to file */
    int file_local; /* the file is the local side of the moves */
    uint32_t host_index;
    struct heft_file_cursor cursor; /* the next byte to cut */
};

enum heft_file_path {
    HEFT_FILE_UNDECIDED,
    HEFT_FILE_READ_HOT,
    HEFT_FILE_IN_PLACE,
    HEFT_FILE_STAGED,
    HEFT_FILE_PICKED,
    HEFT_FILE_PLAIN
};

struct heft_file_piece {
    struct heft_file_task *task;
    struct heft_file_source *source;
    struct heft_file_cursor first;
    uint64_t begin_bytes, span_bytes; /* of the file */
    uint64_t payload_bytes;           /* what lands: the span less gaps, more where elements overlap */
    uint64_t elements;
    uint8_t *flat; /* where everything goes, in one run; NULL: several places */
    uint64_t widest_gap_bytes;
    int backwards; /* an element begins before the end of another: no runs in the file's order */
    enum heft_file_path path;
    int direct;         /* by O_DIRECT */
    uint64_t gap_bytes; /* of a picked piece: wider ones are not read */
    uint64_t got_bytes;
    uint32_t unanswered; /* reads of a picked piece, and one while they are being asked for */
    int status;          /* of a picked piece: the first read's that failed, -errno */
    uint32_t in_ring;    /* reads that the lane's ring has */
    uint8_t *slot;       /* staging, or NULL */
    uint8_t *edges;      /* two blocks, the piece's for life */
    uint64_t read_begin_bytes, read_bytes;
    struct iovec iov[3];
    int iov_count;
    int canceling;
    struct heft_file_piece *prev, *next; /* in flight in a lane, free, or stalled */
};

/* After heft_task_reset: fills write, file_local, wanted_bytes and the order. `host_index` is the transport's
 * slot in regions. */
int heft_file_task_prepare(struct heft_file_task *task, struct heft_transport_op *op, uint32_t host_index,
                           struct heft_error *error);
/* Cuts the next piece (of up to piece_bytes and a sixteenth) and moves the cursor; 0: there is none. */
int heft_file_task_cut(struct heft_file_task *task, uint64_t piece_bytes, struct heft_file_piece *piece);

struct heft_file_walk {
    const struct heft_file_task *task;
    struct heft_file_cursor at;
    uint64_t left_bytes;
};
void heft_file_walk_start(const struct heft_file_piece *piece, struct heft_file_walk *walk);
/* The next run of a piece; 0 at its end. */
int heft_file_walk_next(struct heft_file_walk *walk, uint64_t *file_offset_out, uint8_t **address_out,
                        uint64_t *bytes_out);
/*
 * A picked piece's reads: whole blocks of the file in its order, which lie in the slot one after the other.
 * Runs whose blocks are no more than the piece's gap_bytes apart are one.
 */
struct heft_file_extent {
    uint64_t begin_bytes, end_bytes; /* of the file */
    uint64_t slot_bytes;             /* where in the slot */
};
struct heft_file_extents {
    struct heft_file_walk walk;
    uint64_t block_bytes, gap_bytes;
    uint64_t begin_bytes, end_bytes; /* blocks of the run that was walked last */
    uint64_t slot_bytes;
    int more;
};
void heft_file_extents_start(const struct heft_file_piece *piece, struct heft_file_extents *extents);
int heft_file_extents_next(struct heft_file_extents *extents, struct heft_file_extent *extent_out);
/* The caller's index of the move at a cursor. */
size_t heft_file_move_index(const struct heft_file_task *task, size_t order);

/* ---- the transport ---- */

struct heft_file_lane {
    struct heft_transport *transport;
    struct heft_worker *worker;
    struct heft_job cancel_job, close_job;
    int cancel_queued; /* under the transport's lock */
    struct heft_watch watch;
    struct io_uring ring;
    int ring_state; /* 0: not tried, 1: made, -1: refused */
    int registered; /* likewise: staging is registered with the ring */
    uint32_t staged_reads;
    uint32_t in_flight; /* reads; atomic for readers; the worker's */
    struct heft_file_piece *flying;
    struct heft_file_gauge gauge;
};

/* Work that any worker may take. */
struct heft_file_ticket {
    struct heft_job job;
    struct heft_transport *transport;
    int queued; /* under the transport's lock */
};

struct heft_transport {
    struct heft_transport_host host;
    uint32_t mode;
    int uring; /* 1: the probe could set one up and read by it */
    char uring_reason[96];
    uint64_t piece_bytes, slot_bytes;
    uint32_t slot_count;
    uint8_t *staging; /* slots, then edges */
    uint64_t staging_bytes;

    struct heft_tasks tasks; /* its lock guards what follows too; quiet: also when a job went idle */
    struct heft_file_piece *pieces, *free_pieces, *stalled;
    uint8_t **free_slots;
    uint32_t free_slot_count;
    uint32_t lane_count, lane_limit; /* a lane with so many reads in flight takes no piece */
    struct heft_file_lane *lanes;
    struct heft_file_ticket *tickets; /* one a lane */
    uint32_t busy_jobs;               /* tickets, cancels and closes that are queued or run */
};

struct heft_endpoint {
    struct heft_transport *transport;
    struct heft_task_owner tasks;
};

/* brief.c: heft_transport_ops.move */
int heft_file_move(struct heft_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error);

/* piece.c: on a worker, without the lock. */
/* Starts or does a piece; 0: it is stalled, waiting for a slot. */
int heft_file_piece_start(struct heft_file_lane *lane, struct heft_file_piece *piece);
/* A ring's answer, or preadv's (a negative errno). */
void heft_file_piece_complete(struct heft_file_lane *lane, struct heft_file_piece *piece, int64_t result);

/* lane.c */
/* Sets uring and the reason. */
void heft_file_probe_uring(struct heft_transport *transport);
void heft_file_lane_init(struct heft_transport *transport, uint32_t index);
void heft_file_lane_close(struct heft_file_lane *lane);
/* Submits up to `count` idle tickets. Without the lock. */
void heft_file_wake(struct heft_transport *transport, uint64_t count);
/* Asks every lane to cancel what flies for tasks that ended. Without the lock. */
void heft_file_cancel_flying(struct heft_transport *transport);
/* Queues a read of the piece's into the ring; 0: there is no ring. More than one part: they stay the piece's.
 */
int heft_file_lane_read(struct heft_file_lane *lane, struct heft_file_piece *piece, int fd,
                        const struct iovec *parts, int part_count, uint64_t offset_bytes);

/* file.c */
/* A slot for the piece; 0: there is none, and the piece now waits among the stalled. */
int heft_file_take_slot(struct heft_transport *transport, struct heft_file_piece *piece);
/* The next piece for a lane, or NULL. */
struct heft_file_piece *heft_file_take_piece(struct heft_transport *transport);
/* The piece ends: its slot is free, its task counts `landed` bytes, or fails (first failure wins). */
void heft_file_piece_end(struct heft_transport *transport, struct heft_file_piece *piece, uint64_t landed,
                         int status, const struct heft_error *error);

#endif
