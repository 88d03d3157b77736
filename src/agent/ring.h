/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring of records in memory that two processes of one host share: what one agent tells another without a
 * system call. The reading side makes it and sends it over the unix connection; the other side only writes.
 * Nothing here locks: one writer at a time and one reader at a time, by the callers' locks.
 *
 * Cells of 64 bytes; a record is one cell or more in a row, wrapping at the end. The first 8 bytes of a cell
 * are its word: for the first cell of a record the low half of its number in the order of writing, plus 1,
 * then kind and size; so the reader finds a record by looking at one line, and old contents never look like
 * a new record. A record's first cell is written last.
 *
 * The reader believes nothing it reads: it keeps its own position, copies before it looks, and a record that
 * makes no sense ends the connection. The memory is sealed against being shortened.
 */
#ifndef HEFT_AGENT_RING_H
#define HEFT_AGENT_RING_H

#include <heft/error.h>

#define HEFT_RING_LAYOUT 1u
#define HEFT_RING_CELLS 1024u      /* of a ring made here */
#define HEFT_RING_CELLS_MIN 256u   /* of one made elsewhere: the largest record fits */
#define HEFT_RING_CELLS_MAX 65536u /* powers of 2 */
#define HEFT_RING_DATA_MAX_BYTES 8192u
#define HEFT_RING_FDS 2 /* the memory, the bell */

enum heft_ring_kind { HEFT_RING_COUNT = 1, HEFT_RING_NOTE = 2 };

struct heft_ring_shared;

struct heft_ring {
    struct heft_ring_shared *shared;
    uint64_t mapped_bytes;
    uint64_t mask;
    uint64_t next; /* the cell to be written, or read */
    uint64_t tail; /* the writer's: how far the reader was when it was last looked at */
    int bell;      /* one end each of a socket pair: calls on it never wait, whatever the other side does */
    int wake;      /* the writer's: a descriptor of one counter to be rung instead; -1: none */
    uint32_t wake_serial;
    int armed; /* the reader's: asked to be rung and was not */
};

/* What a record says; `value`: the counter of a COUNT; the NOTIFY frames sent before a NOTE. */
struct heft_ring_record {
    enum heft_ring_kind kind;
    uint32_t value;
    uint32_t size; /* bytes that heft_ring_take copies */
};

/* The reading side; the descriptors in fds_out are the caller's, to be sent. */
int heft_ring_create(struct heft_ring *ring_out, int fds_out[HEFT_RING_FDS], struct heft_error *error);
/* The writing side. The descriptors are taken over in any case. PROTOCOL: no ring, or one of another layout
 * or that can be shortened. */
int heft_ring_open(uint32_t layout, uint32_t cells, const int fds[HEFT_RING_FDS], struct heft_ring *ring_out);
void heft_ring_close(struct heft_ring *ring);
/* 1: a record of `size` bytes and one without fit now, so the next two of that kind will be put. */
int heft_ring_has_room(struct heft_ring *ring, uint32_t size);
/* 1 when the record is there; 0: no room. Everything this thread wrote before is seen by who sees it. */
int heft_ring_put(struct heft_ring *ring, enum heft_ring_kind kind, uint32_t value, const void *data,
                  uint32_t size);
/* 1 with the next record, which stays; 0: none now; PROTOCOL. */
int heft_ring_peek(const struct heft_ring *ring, struct heft_ring_record *record_out);
/* What tells of the next record; it may be looked at without the callers' lock while the ring stays open. */
struct heft_ring_sight {
    const uint64_t *word;
    uint32_t number;
};
struct heft_ring_sight heft_ring_next_sight(const struct heft_ring *ring);
static inline int heft_ring_is_there(struct heft_ring_sight sight)
{
    return (uint32_t)(__atomic_load_n(sight.word, __ATOMIC_RELAXED) >> 32) == sight.number;
}
/* Copies the bytes of the record that was seen and goes on behind it; the room is the writer's again. */
void heft_ring_take(struct heft_ring *ring, const struct heft_ring_record *record, void *data_out);
/* The bell's socket is readable: empties it. */
void heft_ring_hear(const struct heft_ring *ring);
/* The writer rings with its next record. The reader looks once more before it relies on that. */
void heft_ring_arm(struct heft_ring *ring);

/* The reader wants the next COUNT of that counter told to the descriptor with that serial (not 0), or to the
 * bell while the writer does not have it. As with arm it looks once more. 0: no more. */
void heft_ring_want(struct heft_ring *ring, uint32_t serial, uint32_t counter);
/* A description of the pipe behind `fd` that nobody else has: writing to it never waits, whatever the other
 * side does to its own, and raises no signal. -1: it is no pipe, or there is no /proc. */
int heft_ring_own_pipe(int fd);
/* The writer's descriptor for that, made by heft_ring_own_pipe: taken over. */
void heft_ring_set_wake(struct heft_ring *ring, uint32_t serial, int wake);

#endif
