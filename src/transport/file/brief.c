/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small reads of what the page cache holds, in the posting thread: a copy of some microseconds, where waking
 * a worker takes longer. Nothing here waits for a disk: what is not in the cache is left to a task.
 */
#include "transport/file/file.h"

#include <fcntl.h>

/* Runs that lie one behind the other in a file, each to its own place. */
struct batch {
    const struct heft_file_source *source;
    uint64_t begin_bytes, bytes;
    struct iovec iov[HEFT_FILE_MAX_IOV];
    int count;
};

/* 0, or AGAIN when the cache does not hold all of it. */
static int read_batch(struct batch *batch)
{
    const struct heft_file_source *source = batch->source;
    ssize_t got;

    if (batch->count == 0)
        return 0;
    got = preadv2(source->fd, batch->iov, batch->count, (off_t)batch->begin_bytes,
                  source->in_memory ? 0 : RWF_NOWAIT);
    batch->count = 0;
    return got >= 0 && (uint64_t)got == batch->bytes ? 0 : HEFT_ERR_AGAIN;
}

static int add_run(struct batch *batch, const struct heft_file_source *source, uint64_t offset_bytes,
                   void *place, uint64_t length_bytes)
{
    struct iovec *last = batch->count > 0 ? &batch->iov[batch->count - 1] : NULL;
    int follows = last && batch->source == source && offset_bytes == batch->begin_bytes + batch->bytes;

    if (length_bytes == 0)
        return 0;
    if (follows && (uint8_t *)last->iov_base + last->iov_len == place) {
        last->iov_len += length_bytes;
        batch->bytes += length_bytes;
        return 0;
    }
    if ((!follows || batch->count == (int)HEFT_FILE_MAX_IOV) && read_batch(batch))
        return HEFT_ERR_AGAIN;
    if (batch->count == 0) {
        batch->source = source;
        batch->begin_bytes = offset_bytes;
        batch->bytes = 0;
    }
    batch->iov[batch->count++] = (struct iovec){place, length_bytes};
    batch->bytes += length_bytes;
    return 0;
}

static int read_move(struct batch *batch, const struct heft_transport_op *op, const struct heft_move *move,
                     uint32_t host_index)
{
    int remote = op->kind == HEFT_OP_READ;
    const struct heft_transport_region *file = remote ? move->remote : move->local;
    const struct heft_transport_region *host = remote ? move->local : move->remote;
    uint64_t from = remote ? move->remote_offset_bytes : move->local_offset_bytes;
    uint64_t to = remote ? move->local_offset_bytes : move->remote_offset_bytes;
    const struct heft_file_source *source;

    if (file->space != HEFT_SPACE_FILE || host->space != HEFT_SPACE_HOST)
        return HEFT_ERR_AGAIN;
    source = file->slot[host_index];
    if (!source || (source->access & O_ACCMODE) == O_WRONLY || (source->mode & HEFT_FILE_ALL_COLD))
        return HEFT_ERR_AGAIN;
    for (uint64_t index = 0; index < move->count; index++) {
        if (add_run(batch, source, from, (uint8_t *)host->address + to, move->length_bytes))
            return HEFT_ERR_AGAIN;
        from += remote ? move->remote_stride_bytes : move->local_stride_bytes;
        to += remote ? move->local_stride_bytes : move->remote_stride_bytes;
    }
    return 0;
}

int heft_file_move(struct heft_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error)
{
    struct batch batch;
    int rc = 0;

    (void)error;
    if (op->total_bytes > HEFT_FILE_BRIEF_BYTES || __atomic_load_n(&endpoint->tasks.failed, __ATOMIC_ACQUIRE))
        return HEFT_ERR_AGAIN;
    batch.source = NULL;
    batch.count = 0;
    for (size_t index = 0; index < op->move_count && rc == 0; index++)
        rc = read_move(&batch, op, &op->moves[index], endpoint->transport->host.index);
    if (rc == 0)
        rc = read_batch(&batch);
    if (rc == 0)
        __atomic_store_n(&op->done_bytes, op->total_bytes, __ATOMIC_RELEASE);
    return rc;
}
