/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copying itself, in steps, so that it can be stopped and its progress seen.
 *
 * Cross-memory attach goes by a pid, and pids are reused: bytes count only if the process that was connected
 * to is still there after they were read.
 */
#include "transport/local/local.h"
#include "base/error.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define LOOK_AHEAD 12 /* pieces whose cache lines are asked for before their turn */

struct batch {
    struct iovec here[LOCAL_IOV_MAX], there[LOCAL_IOV_MAX];
    int count;
    uint64_t bytes;
};

struct copy {
    struct local_endpoint *endpoint;
    struct heft_transport_op *op;
    uint64_t uncounted_bytes;
    struct heft_error *error;
};

static void count_bytes(struct copy *copy, uint64_t bytes, int now)
{
    copy->uncounted_bytes += bytes;
    if (copy->uncounted_bytes == 0 || (!now && copy->uncounted_bytes < LOCAL_STEP_BYTES / 4))
        return;
    (void)__atomic_fetch_add(&copy->op->done_bytes, copy->uncounted_bytes, __ATOMIC_RELEASE);
    copy->uncounted_bytes = 0;
}

static int stop_wanted(const struct copy *copy)
{
    int failed = __atomic_load_n(&copy->endpoint->queue.failed, __ATOMIC_ACQUIRE);

    if (failed != 0)
        return failed;
    return __atomic_load_n(&copy->op->cancel_wanted, __ATOMIC_ACQUIRE) ? HEFT_ERR_CANCELED : 0;
}

static void copy_plain(const struct copy *copy, char *to, uint64_t to_stride, const char *from,
                       uint64_t from_stride, const struct heft_cut *cut)
{
    uint64_t length = cut->length_bytes;
    int stream = length >= LOCAL_STREAM_BYTES && copy->op->total_bytes >= LOCAL_STREAM_TOTAL_BYTES;

    for (uint64_t i = 0; i < cut->count; i++) {
        if (stream)
            local_stream_copy(to + i * to_stride, from + i * from_stride, length);
        else
            memmove(to + i * to_stride, from + i * from_stride, length);
    }
}

static int attach_failed(const struct copy *copy, int errno_value)
{
    const struct local_endpoint *endpoint = copy->endpoint;

    if (errno_value == ESRCH || !local_peer_alive(endpoint))
        return heft_error_set(copy->error, HEFT_ERR_PEER_LOST, "peer %s (process %d) is gone", endpoint->name,
                              endpoint->pid);
    if (errno_value == EFAULT)
        return heft_error_set(copy->error, HEFT_ERR_STALE,
                              "peer %s (process %d) has unmapped memory of a region it offered",
                              endpoint->name, endpoint->pid);
    return heft_error_set_errno(copy->error, errno_value, "cross-memory attach to peer %s (process %d)",
                                endpoint->name, endpoint->pid);
}

/* Drops `bytes` from the front of both lists. */
static void skip_bytes(struct iovec *list, int count, uint64_t bytes, int *first)
{
    while (*first < count && bytes >= list[*first].iov_len) {
        bytes -= list[*first].iov_len;
        (*first)++;
    }
    if (bytes > 0) {
        list[*first].iov_base = (char *)list[*first].iov_base + bytes;
        list[*first].iov_len -= bytes;
    }
}

static int flush_batch(struct copy *copy, struct batch *batch)
{
    int here = 0, there = 0, pid = copy->endpoint->pid;

    while (batch->bytes > 0) {
        ssize_t moved;

        if (copy->op->kind == HEFT_OP_READ)
            moved = process_vm_readv(pid, batch->here + here, (unsigned long)(batch->count - here),
                                     batch->there + there, (unsigned long)(batch->count - there), 0);
        else
            moved = process_vm_writev(pid, batch->here + here, (unsigned long)(batch->count - here),
                                      batch->there + there, (unsigned long)(batch->count - there), 0);
        if (moved <= 0)
            return attach_failed(copy, moved < 0 ? errno : EFAULT);
        skip_bytes(batch->here, batch->count, (uint64_t)moved, &here);
        skip_bytes(batch->there, batch->count, (uint64_t)moved, &there);
        batch->bytes -= (uint64_t)moved;
        count_bytes(copy, (uint64_t)moved, 0);
    }
    batch->count = 0;
    return 0;
}

static int copy_attached(struct copy *copy, struct batch *batch, const struct heft_cut *cut)
{
    const struct heft_move *move = cut->move;
    char *here = (char *)move->local->address + cut->local_offset_bytes;
    char *there = (char *)move->remote->address + cut->remote_offset_bytes;

    for (uint64_t i = 0; i < cut->count; i++) {
        batch->here[batch->count].iov_base = here + i * move->local_stride_bytes;
        batch->here[batch->count].iov_len = cut->length_bytes;
        batch->there[batch->count].iov_base = there + i * move->remote_stride_bytes;
        batch->there[batch->count].iov_len = cut->length_bytes;
        batch->count++;
        batch->bytes += cut->length_bytes;
        if (batch->count == LOCAL_IOV_MAX || batch->bytes >= LOCAL_STEP_BYTES) {
            int rc = flush_batch(copy, batch);

            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

/* The remote side as memory of this process; NULL with `remote_out` when it has to be attached to. */
static int resolve(struct copy *copy, const struct heft_move *move, char **remote_out)
{
    const struct local_endpoint *endpoint = copy->endpoint;
    const struct local_remote *slot;

    if (!endpoint->has_peer) {
        *remote_out = move->remote->address;
        return 0;
    }
    slot = move->remote->slot[endpoint->transport->host.index];
    if (slot == NULL || slot->mode == LOCAL_UNREACHABLE)
        return heft_error_set(copy->error, HEFT_ERR_UNAVAILABLE, "region %llu of %s can't be reached: %s",
                              (unsigned long long)move->remote->id, endpoint->name,
                              slot != NULL ? slot->reason : "it was never announced");
    if (copy->op->kind == HEFT_OP_WRITE && !slot->writable)
        return heft_error_set(copy->error, HEFT_ERR_DENIED, "region %llu of %s is shared read-only",
                              (unsigned long long)move->remote->id, endpoint->name);
    *remote_out = slot->mode == LOCAL_MAPPED ? slot->address : NULL;
    return 0;
}

/* Peers' permissions; regions of this agent are the caller's own. */
static int check_move(struct copy *copy, const struct heft_move *move, char **remote_out)
{
    uint32_t need = copy->op->kind == HEFT_OP_READ ? HEFT_REGION_REMOTE_READ : HEFT_REGION_REMOTE_WRITE;

    if (move->local->space != HEFT_SPACE_HOST || move->remote->space != HEFT_SPACE_HOST)
        return heft_error_set(copy->error, HEFT_ERR_UNSUPPORTED,
                              "the local transport moves host memory only, not %s to %s",
                              heft_space_name(move->remote->space), heft_space_name(move->local->space));
    if (copy->endpoint->has_peer && !(move->remote->flags & need))
        return heft_error_set(copy->error, HEFT_ERR_DENIED, "region %llu of %s may not be %s by peers",
                              (unsigned long long)move->remote->id, copy->endpoint->name,
                              need == HEFT_REGION_REMOTE_READ ? "read" : "written");
    return resolve(copy, move, remote_out);
}

/* ---- small pieces ---- */

/* Read whole before it is written, as memmove does. */
typedef uint8_t line __attribute__((vector_size(64), aligned(1), may_alias));
typedef uint64_t word __attribute__((aligned(1), may_alias));

static inline void copy_small(char *to, const char *from, uint64_t length)
{
    if (length == sizeof(line))
        *(line *)(void *)to = *(const line *)(const void *)from;
    else if (length == sizeof(word))
        *(word *)(void *)to = *(const word *)(const void *)from;
    else
        memmove(to, from, length);
}

/*
 * Single pieces of equal length between the same two regions, as lists of scattered items make them; ends at
 * the first that is none. Each misses the cache on both sides, so the misses of those ahead are begun before.
 * Compiled for each of the usual lengths, and each way, apart.
 */
static inline __attribute__((always_inline)) const struct heft_move *copy_equal(const struct heft_move *move,
                                                                                const struct heft_move *end,
                                                                                char *here, char *there,
                                                                                uint64_t length, int is_read)
{
    const struct heft_move first = *move, *ahead = end - move > LOOK_AHEAD ? end - LOOK_AHEAD : move;

    for (; move < end; move++) {
        char *local = here + move->local_offset_bytes, *remote = there + move->remote_offset_bytes;

        if ((move->count ^ 1) | (move->length_bytes ^ length) |
            (uint64_t)((uintptr_t)move->local ^ (uintptr_t)first.local) |
            (uint64_t)((uintptr_t)move->remote ^ (uintptr_t)first.remote))
            break;
        if (move < ahead) {
            __builtin_prefetch(here + move[LOOK_AHEAD].local_offset_bytes);
            __builtin_prefetch(there + move[LOOK_AHEAD].remote_offset_bytes);
        }
        if (is_read)
            copy_small(local, remote, length);
        else
            copy_small(remote, local, length);
    }
    return move;
}

/* From the cursor's move on, at most `most` bytes. Returns the bytes; 0: it does not begin with such a piece.
 */
static uint64_t copy_singles(const struct heft_transport_op *op, struct heft_cursor *cursor, uint64_t most,
                             char *there)
{
    const struct heft_move *move = op->moves + cursor->move, *after = move;
    uint64_t length = move->length_bytes, count = op->move_count - cursor->move;
    char *here = move->local->address;
    int is_read = op->kind == HEFT_OP_READ;

    if (move->count != 1 || length == 0 || length > LOCAL_SMALL_BYTES)
        return 0;
    if (count > most / length)
        count = most / length;
    if (length == sizeof(line) && is_read)
        after = copy_equal(move, move + count, here, there, sizeof(line), 1);
    else if (length == sizeof(line))
        after = copy_equal(move, move + count, here, there, sizeof(line), 0);
    else
        after = copy_equal(move, move + count, here, there, length, is_read);
    cursor->move += (size_t)(after - move);
    return (uint64_t)(after - move) * length;
}

static void copy_mapped(struct copy *copy, const struct heft_cut *cut, char *remote)
{
    const struct heft_move *move = cut->move;
    char *here = (char *)move->local->address + cut->local_offset_bytes;
    char *there = remote + cut->remote_offset_bytes;

    if (copy->op->kind == HEFT_OP_READ)
        copy_plain(copy, here, move->local_stride_bytes, there, move->remote_stride_bytes, cut);
    else
        copy_plain(copy, there, move->remote_stride_bytes, here, move->local_stride_bytes, cut);
    count_bytes(copy, cut->length_bytes * cut->count, 0);
}

/* What a claim is copied with. */
struct claim_copy {
    struct copy copy;
    struct heft_cursor cursor;
    uint64_t left;
    const struct heft_transport_region *local, *other; /* that were checked last */
    char *remote;                                      /* the other one here, or NULL: attached */
    struct batch batch;                                /* filled only when attaching */
    int attached;
};

static int check_regions(struct claim_copy *at, const struct heft_move *move)
{
    int rc;

    if (move->local == at->local && move->remote == at->other)
        return 0;
    rc = check_move(&at->copy, move, &at->remote);
    at->local = move->local;
    at->other = move->remote;
    return rc;
}

static int is_attached(const struct claim_copy *at)
{
    return at->remote == NULL && at->copy.endpoint->has_peer && at->other->length_bytes > 0;
}

/* A step: many small pieces, or one cut. `end`: nothing is left. */
static int copy_step(struct claim_copy *at, int *end, int64_t *failed_move_out)
{
    const struct heft_transport_op *op = at->copy.op;
    uint64_t most = at->left < LOCAL_STEP_BYTES ? at->left : LOCAL_STEP_BYTES, bytes;
    struct heft_cut cut;
    int rc = 0;

    if (at->cursor.move < op->move_count && at->cursor.index == 0 && at->cursor.offset == 0) {
        rc = check_regions(at, &op->moves[at->cursor.move]);
        if (rc != 0) {
            *failed_move_out = (int64_t)at->cursor.move;
            return rc;
        }
        if (!is_attached(at)) {
            bytes = copy_singles(op, &at->cursor, most, at->remote);
            count_bytes(&at->copy, bytes, 0);
            at->left -= bytes;
            if (bytes > 0)
                return 0;
        }
    }
    bytes = heft_cursor_cut(&at->cursor, op->moves, op->move_count, most, 1, &cut);
    *end = bytes == 0;
    if (bytes == 0)
        return 0;
    at->left -= bytes;
    rc = check_regions(at, cut.move);
    if (rc == 0 && is_attached(at)) {
        at->attached = 1;
        rc = copy_attached(&at->copy, &at->batch, &cut);
    } else if (rc == 0) {
        copy_mapped(&at->copy, &cut, at->remote);
    }
    if (rc != 0)
        *failed_move_out = (int64_t)cut.move_index;
    return rc;
}

int local_copy(struct local_endpoint *endpoint, const struct heft_claim *claim, int64_t *failed_move_out,
               struct heft_error *error)
{
    struct claim_copy at;
    int rc = 0, end = 0;

    at.copy = (struct copy){endpoint, claim->op, 0, error};
    at.cursor = claim->start;
    at.left = claim->bytes;
    at.local = at.other = NULL;
    at.remote = NULL;
    at.attached = 0;
    at.batch.count = 0;
    at.batch.bytes = 0;
    while (rc == 0 && at.left > 0 && !end) {
        rc = stop_wanted(&at.copy);
        if (rc == 0)
            rc = copy_step(&at, &end, failed_move_out);
    }
    if (rc == 0)
        rc = flush_batch(&at.copy, &at.batch);
    if (rc == 0 && at.attached && !local_peer_alive(endpoint))
        rc = attach_failed(&at.copy, ESRCH);
    count_bytes(&at.copy, 0, 1);
    return rc;
}

/* ---- one piece ---- */

/* Through the file of the peer's memory, which costs less than an attach, and which ends with the process: it
 * can't be that of the pid's next owner. Reads only: writes to it pass over the protection of pages. */
static int read_by_file(const struct copy *copy, int memory, char *here, uint64_t there, uint64_t left)
{
    while (left > 0) {
        ssize_t moved = pread(memory, here, left, (off_t)there);

        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return attach_failed(copy, moved == 0 ? ESRCH : errno == EIO ? EFAULT : errno);
        here += moved;
        there += (uint64_t)moved;
        left -= (uint64_t)moved;
    }
    return 0;
}

int local_copy_piece(struct local_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error)
{
    const struct heft_move *move = op->moves;
    struct copy copy = {endpoint, op, 0, error};
    int rc, memory = __atomic_load_n(&endpoint->memory, __ATOMIC_ACQUIRE);
    uint64_t length = move->length_bytes;
    char *here, *there;

    if (length == 0)
        return HEFT_ERR_AGAIN;
    rc = check_move(&copy, move, &there);
    if (rc == 0 && there == NULL && (memory < 0 || op->kind == HEFT_OP_WRITE))
        return HEFT_ERR_AGAIN;
    here = (char *)move->local->address + move->local_offset_bytes;
    if (rc == 0 && there == NULL)
        rc = read_by_file(&copy, memory, here, (uintptr_t)move->remote->address + move->remote_offset_bytes,
                          length);
    else if (rc == 0 && op->kind == HEFT_OP_READ)
        copy_small(here, there + move->remote_offset_bytes, length);
    else if (rc == 0)
        copy_small(there + move->remote_offset_bytes, here, length);
    if (rc == 0)
        __atomic_store_n(&op->done_bytes, length, __ATOMIC_RELEASE);
    else
        op->failed_move = 0;
    return rc;
}
