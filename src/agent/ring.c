/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/ring.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_BYTES 64
#define BELL_QUEUE 64   /* more than an honest peer rings before it is heard */
#define HEAD_BYTES 4096 /* before the cells; the rest of it is room for later layouts */
#define CELL_DATA_BYTES (LINE_BYTES - 8)
#define FIRST_DATA_BYTES (CELL_DATA_BYTES - 4) /* after `value` */

struct cell {
    uint64_t word; /* atomic */
    uint8_t data[CELL_DATA_BYTES];
};
_Static_assert(sizeof(struct cell) == LINE_BYTES, "a cell is a line");

/* Each word has one writer but for `armed`, and a line of its own. */
struct heft_ring_shared {
    uint64_t tail; /* atomic: cells that were read */
    uint8_t pad0[LINE_BYTES - 8];
    uint32_t armed; /* atomic: the reader sets it, the writer that takes it away rings */
    uint8_t pad1[4];
    uint64_t wanted; /* atomic: likewise, for one counter: serial and counter; 0: none */
    uint8_t pad2[HEAD_BYTES - LINE_BYTES - 16];
    struct cell cells[];
};
_Static_assert(sizeof(struct heft_ring_shared) == HEAD_BYTES, "cells begin on the second page");

static uint64_t bytes_of(uint32_t cells)
{
    return HEAD_BYTES + (uint64_t)cells * LINE_BYTES;
}

static uint32_t cells_of(uint32_t size)
{
    return size <= FIRST_DATA_BYTES ? 1 : 2 + (size - FIRST_DATA_BYTES - 1) / CELL_DATA_BYTES;
}

static uint64_t word_of(uint64_t number, uint32_t kind, uint32_t size)
{
    return (uint64_t)(uint32_t)(number + 1) << 32 | (uint64_t)kind << 16 | size;
}

/* ---- life ---- */

static int map_ring(struct heft_ring *ring, int memory, uint32_t cells)
{
    void *mapped = mmap(NULL, bytes_of(cells), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);

    if (mapped == MAP_FAILED)
        return -1;
    ring->shared = mapped;
    ring->mapped_bytes = bytes_of(cells);
    ring->mask = cells - 1;
    return 0;
}

int heft_ring_create(struct heft_ring *ring_out, int fds_out[HEFT_RING_FDS], struct heft_error *error)
{
    struct heft_ring ring = {.wake = -1};
    int memory = memfd_create("heft-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING), bells[2] = {-1, -1}, saved;

    if (memory < 0)
        return heft_error_set_errno(error, errno, "making a ring");
    if (ftruncate(memory, (off_t)bytes_of(HEFT_RING_CELLS)) ||
        fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        goto fail;
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, bells) ||
        map_ring(&ring, memory, HEFT_RING_CELLS))
        goto fail;
    ring.bell = bells[0];
    fds_out[0] = memory;
    fds_out[1] = bells[1];
    *ring_out = ring;
    return 0;

fail:
    saved = errno;
    if (bells[0] >= 0) {
        (void)close(bells[0]);
        (void)close(bells[1]);
    }
    (void)close(memory);
    return heft_error_set_errno(error, saved, "making a ring");
}

static int is_ring(int memory, uint32_t cells)
{
    struct stat info;
    int seals = fcntl(memory, F_GET_SEALS);

    return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(memory, &info) == 0 && S_ISREG(info.st_mode) &&
           info.st_size > 0 && (uint64_t)info.st_size >= bytes_of(cells);
}

int heft_ring_open(uint32_t layout, uint32_t cells, const int fds[HEFT_RING_FDS], struct heft_ring *ring_out)
{
    struct heft_ring ring = {.bell = fds[1], .wake = -1};

    if (layout != HEFT_RING_LAYOUT || cells < HEFT_RING_CELLS_MIN || cells > HEFT_RING_CELLS_MAX ||
        (cells & (cells - 1)) || !is_ring(fds[0], cells) || map_ring(&ring, fds[0], cells)) {
        (void)close(fds[0]);
        (void)close(fds[1]);
        return HEFT_ERR_PROTOCOL;
    }
    (void)close(fds[0]);
    *ring_out = ring;
    return 0;
}

void heft_ring_close(struct heft_ring *ring)
{
    if (!ring->shared)
        return;
    (void)munmap(ring->shared, ring->mapped_bytes);
    (void)close(ring->bell);
    if (ring->wake >= 0)
        (void)close(ring->wake);
    ring->shared = NULL;
}

/* ---- writing ---- */

static int has_room(struct heft_ring *ring, uint32_t want)
{
    uint64_t cells = ring->mask + 1;

    if (ring->next + want - ring->tail <= cells)
        return 1;
    ring->tail = __atomic_load_n(&ring->shared->tail, __ATOMIC_ACQUIRE);
    /* A tail that can't be is no room: never more is written than there are cells. */
    return ring->next - ring->tail <= cells && ring->next + want - ring->tail <= cells;
}

int heft_ring_has_room(struct heft_ring *ring, uint32_t size)
{
    return has_room(ring, cells_of(size) + 1);
}

/* The first cell's bytes were taken; the rest go to those behind it. */
static void put_more(const struct heft_ring *ring, const uint8_t *from, uint32_t left)
{
    uint64_t number;

    for (number = ring->next + 1; left; number++) {
        struct cell *cell = &ring->shared->cells[number & ring->mask];
        uint32_t size = left < CELL_DATA_BYTES ? left : CELL_DATA_BYTES;

        __atomic_store_n(&cell->word, word_of(number - 1, 0, 0), __ATOMIC_RELAXED);
        memcpy(cell->data, from, size);
        from += size;
        left -= size;
    }
}

static void ring_once(int bell)
{
    (void)send(bell, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL); /* full: it rings already */
}

static void tell_wanted(struct heft_ring *ring, uint32_t counter)
{
    uint64_t wanted = __atomic_load_n(&ring->shared->wanted, __ATOMIC_SEQ_CST);
    ssize_t done = 0;

    if (!wanted || (uint32_t)wanted != counter ||
        !__atomic_compare_exchange_n(&ring->shared->wanted, &wanted, 0, 0, __ATOMIC_SEQ_CST,
                                     __ATOMIC_RELAXED))
        return;
    if (ring->wake >= 0 && ring->wake_serial == (uint32_t)(wanted >> 32))
        done = write(ring->wake, "", 1);
    else
        ring_once(ring->bell);
    (void)done; /* full: it is readable */
}

int heft_ring_put(struct heft_ring *ring, enum heft_ring_kind kind, uint32_t value, const void *data,
                  uint32_t size)
{
    struct heft_ring_shared *shared = ring->shared;
    struct cell *first = &shared->cells[ring->next & ring->mask];
    uint32_t count = cells_of(size), here = size < FIRST_DATA_BYTES ? size : FIRST_DATA_BYTES;

    if (!has_room(ring, count))
        return 0;
    memcpy(first->data, &value, sizeof(value));
    if (here)
        memcpy(first->data + sizeof(value), data, here);
    if (size > here)
        put_more(ring, (const uint8_t *)data + here, size - here);
    /* In one order with arming: either the reader finds the record when it looks once more, or this finds
     * that it wants to be rung. */
    __atomic_store_n(&first->word, word_of(ring->next, kind, size), __ATOMIC_SEQ_CST);
    ring->next += count;
    if (kind == HEFT_RING_COUNT)
        tell_wanted(ring, value);
    if (__atomic_load_n(&shared->armed, __ATOMIC_SEQ_CST) &&
        __atomic_exchange_n(&shared->armed, 0, __ATOMIC_SEQ_CST))
        ring_once(ring->bell);
    return 1;
}

/* ---- reading ---- */

int heft_ring_peek(const struct heft_ring *ring, struct heft_ring_record *record_out)
{
    const struct cell *first = &ring->shared->cells[ring->next & ring->mask];
    uint64_t word = __atomic_load_n(&first->word, __ATOMIC_SEQ_CST);
    uint32_t kind = (uint32_t)(word >> 16) & 0xffff, size = (uint32_t)word & 0xffff;

    if ((uint32_t)(word >> 32) != (uint32_t)(ring->next + 1))
        return 0;
    if ((kind != HEFT_RING_COUNT || size) && (kind != HEFT_RING_NOTE || size > HEFT_RING_DATA_MAX_BYTES))
        return HEFT_ERR_PROTOCOL;
    record_out->kind = (enum heft_ring_kind)kind;
    record_out->size = size;
    memcpy(&record_out->value, first->data, sizeof(record_out->value));
    return 1;
}

struct heft_ring_sight heft_ring_next_sight(const struct heft_ring *ring)
{
    struct heft_ring_sight sight = {&ring->shared->cells[ring->next & ring->mask].word,
                                    (uint32_t)(ring->next + 1)};

    return sight;
}

void heft_ring_take(struct heft_ring *ring, const struct heft_ring_record *record, void *data_out)
{
    uint32_t left = record->size, here = left < FIRST_DATA_BYTES ? left : FIRST_DATA_BYTES;
    uint64_t number = ring->next;
    uint8_t *to = data_out;

    if (here)
        memcpy(to, ring->shared->cells[number & ring->mask].data + 4, here);
    for (to += here, left -= here; left; left -= here, to += here) {
        here = left < CELL_DATA_BYTES ? left : CELL_DATA_BYTES;
        memcpy(to, ring->shared->cells[++number & ring->mask].data, here);
    }
    ring->next = number + 1;
    __atomic_store_n(&ring->shared->tail, ring->next, __ATOMIC_RELEASE);
}

void heft_ring_hear(const struct heft_ring *ring)
{
    char waste;
    int left;

    for (left = BELL_QUEUE; left > 0; left--)
        if (recv(ring->bell, &waste, 1, MSG_DONTWAIT) < 0)
            return;
}

void heft_ring_arm(struct heft_ring *ring)
{
    if (ring->armed)
        return;
    ring->armed = 1;
    __atomic_store_n(&ring->shared->armed, 1, __ATOMIC_SEQ_CST);
}

void heft_ring_want(struct heft_ring *ring, uint32_t serial, uint32_t counter)
{
    __atomic_store_n(&ring->shared->wanted, serial ? (uint64_t)serial << 32 | counter : 0, __ATOMIC_SEQ_CST);
}

int heft_ring_own_pipe(int fd)
{
    char path[64];
    struct stat info;

    if (fstat(fd, &info) || !S_ISFIFO(info.st_mode))
        return -1;
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC); /* a reader itself: no SIGPIPE */
}

void heft_ring_set_wake(struct heft_ring *ring, uint32_t serial, int wake)
{
    if (ring->wake >= 0)
        (void)close(ring->wake);
    ring->wake = wake;
    ring->wake_serial = serial;
}
