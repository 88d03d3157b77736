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
    int stream = length >= LOCAL_STREAM_BYTES && copy->op->total_bytes >= LOCAL_SLICE_BYTES;

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

int local_copy(struct local_endpoint *endpoint, const struct heft_claim *claim, int64_t *failed_move_out,
               struct heft_error *error)
{
    struct copy copy = {endpoint, claim->op, 0, error};
    struct heft_cursor cursor = claim->start;
    const struct heft_move *checked = NULL;
    struct batch batch; /* filled only when attaching */
    uint64_t left = claim->bytes, cut_bytes;
    char *remote = NULL;
    struct heft_cut cut;
    int rc = 0, attached = 0;

    batch.count = 0;
    batch.bytes = 0;
    while (left > 0) {
        rc = stop_wanted(&copy);
        if (rc != 0)
            break;
        cut_bytes = heft_cursor_cut(&cursor, claim->op->moves, claim->op->move_count,
                                    left < LOCAL_STEP_BYTES ? left : LOCAL_STEP_BYTES, 1, &cut);
        if (cut_bytes == 0)
            break;
        left -= cut_bytes;
        if (cut.move != checked) {
            checked = cut.move;
            rc = check_move(&copy, cut.move, &remote);
        }
        if (rc == 0 && remote == NULL && endpoint->has_peer && cut.move->remote->length_bytes > 0) {
            attached = 1;
            rc = copy_attached(&copy, &batch, &cut);
        } else if (rc == 0) {
            copy_mapped(&copy, &cut, remote);
        }
        if (rc != 0) {
            *failed_move_out = (int64_t)cut.move_index;
            break;
        }
    }
    if (rc == 0)
        rc = flush_batch(&copy, &batch);
    if (rc == 0 && attached && !local_peer_alive(endpoint))
        rc = attach_failed(&copy, ESRCH);
    count_bytes(&copy, 0, 1);
    return rc;
}
