/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One piece, from the moment a lane takes it until its bytes are where they belong.
 *
 * A read's byte count decides, never its status alone: what a read left out is read again, buffered, from
 * where it stopped, and an end of file before the piece's end is TRUNCATED. Reads by O_DIRECT are rounded out
 * to blocks; they may stop short of the rounded end, where the file ends, but not of the wanted one. A picked
 * piece is read again as a whole when any of its reads was short.
 */
#include "transport/file/file.h"
#include "base/error.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* In place, the two edges cost two blocks more: not worth it for a short middle. */
#define IN_PLACE_MIN_BYTES ((uint64_t)32 << 10)
/* Shorter elements are copied out of a slot rather than given to preadv one by one. */
#define SCATTER_MIN_BYTES 512u

static int ended(const struct heft_file_piece *piece)
{
    return __atomic_load_n(&piece->task->common.status, __ATOMIC_RELAXED) != 0;
}

static void fail(struct heft_file_lane *lane, struct heft_file_piece *piece, int status,
                 const struct heft_error *error)
{
    heft_file_piece_end(lane->transport, piece, 0, status, error);
}

static void land(struct heft_file_lane *lane, struct heft_file_piece *piece)
{
    heft_file_piece_end(lane->transport, piece, piece->payload_bytes, HEFT_OK, NULL);
}

/* ---- whole reads and writes of vectors ---- */

/* Drops `bytes` from the front. */
static void advance(struct iovec **iov, int *count, uint64_t bytes)
{
    while (*count > 0 && bytes >= (*iov)->iov_len) {
        bytes -= (*iov)->iov_len;
        (*iov)++;
        (*count)--;
    }
    if (bytes) {
        (*iov)->iov_base = (uint8_t *)(*iov)->iov_base + bytes;
        (*iov)->iov_len -= bytes;
    }
}

static int ends_early(const struct heft_file_source *source, uint64_t offset, uint64_t bytes,
                      struct heft_error *error)
{
    struct stat status;
    uint64_t size = fstat(source->fd, &status) == 0 ? (uint64_t)status.st_size : offset;

    return heft_error_set(error, HEFT_ERR_TRUNCATED,
                          "%s: the file ends at byte %" PRIu64 ", and bytes %" PRIu64 " to %" PRIu64
                          " are wanted: it shrank while it was read",
                          source->label, size, offset, offset + bytes);
}

static int refused(const struct heft_file_source *source, int number, const char *what, uint64_t offset,
                   uint64_t bytes, struct heft_error *error)
{
    int code = heft_error_set_errno(error, number, "%s: %s %" PRIu64 " bytes at offset %" PRIu64,
                                    source->label, what, bytes, offset);

    return code;
}

/* Reads all of it, buffered. */
static int read_all(const struct heft_file_source *source, struct iovec *iov, int count, uint64_t offset,
                    uint64_t bytes, struct heft_error *error)
{
    while (bytes > 0) {
        ssize_t got = preadv(source->fd, iov, count, (off_t)offset);

        if (got < 0) {
            if (errno == EINTR || errno == EAGAIN)
                continue;
            return refused(source, errno, "reading", offset, bytes, error);
        }
        if (got == 0)
            return ends_early(source, offset, bytes, error);
        advance(&iov, &count, (uint64_t)got);
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return HEFT_OK;
}

static int write_all(const struct heft_file_source *source, struct iovec *iov, int count, uint64_t offset,
                     uint64_t bytes, struct heft_error *error)
{
    while (bytes > 0) {
        ssize_t put = pwritev(source->fd, iov, count, (off_t)offset);

        if (put < 0) {
            if (errno == EINTR || errno == EAGAIN)
                continue;
            return refused(source, errno, "writing", offset, bytes, error);
        }
        if (put == 0)
            return heft_error_set(error, HEFT_ERR_IO, "%s: writing at offset %" PRIu64 " makes no progress",
                                  source->label, offset);
        advance(&iov, &count, (uint64_t)put);
        offset += (uint64_t)put;
        bytes -= (uint64_t)put;
    }
    return HEFT_OK;
}

/* ---- pieces without a ring ---- */

/*
 * Walks the piece and reads, or writes, as many elements at a time as a vector holds. Small gaps are read
 * into the piece's edges; larger ones, and overlaps, begin a new call.
 */
static int move_vectors(struct heft_file_piece *piece, struct heft_error *error)
{
    struct iovec iov[HEFT_FILE_MAX_IOV];
    uint64_t offset, bytes, begin = 0, end = 0;
    struct heft_file_walk walk;
    uint8_t *address;
    int count = 0, rc, more;

    heft_file_walk_start(piece, &walk);
    do {
        more = heft_file_walk_next(&walk, &offset, &address, &bytes);
        if (count > 0 && (!more || offset < end || offset - end > 2 * HEFT_FILE_BLOCK_BYTES ||
                          count + 2 > (int)HEFT_FILE_MAX_IOV)) {
            rc = piece->task->write ? write_all(piece->source, iov, count, begin, end - begin, error)
                                    : read_all(piece->source, iov, count, begin, end - begin, error);
            if (rc)
                return rc;
            count = 0;
        }
        if (!more)
            break;
        if (count == 0)
            begin = end = offset;
        if (offset > end)
            iov[count++] = (struct iovec){piece->edges, offset - end};
        iov[count++] = (struct iovec){address, bytes};
        end = offset + bytes;
    } while (more);
    return HEFT_OK;
}

/* From the slot, where the piece's reads lie one after the other, to the places. */
static void scatter_picked(const struct heft_file_piece *piece)
{
    struct heft_file_extents extents;
    struct heft_file_extent extent = {0};
    struct heft_file_walk walk;
    uint64_t offset, bytes;
    uint8_t *address;

    heft_file_walk_start(piece, &walk);
    heft_file_extents_start(piece, &extents);
    while (heft_file_walk_next(&walk, &offset, &address, &bytes)) {
        while (offset >= extent.end_bytes && heft_file_extents_next(&extents, &extent))
            ;
        memcpy(address, piece->slot + extent.slot_bytes + (offset - extent.begin_bytes), bytes);
    }
}

/* From the slot, whose first byte is the file's at read_begin, to the places. */
static void scatter(const struct heft_file_piece *piece)
{
    struct heft_file_walk walk;
    uint64_t offset, bytes;
    uint8_t *address;

    heft_file_walk_start(piece, &walk);
    while (heft_file_walk_next(&walk, &offset, &address, &bytes))
        memcpy(address, piece->slot + (offset - piece->read_begin_bytes), bytes);
}

static int is_scattered(const struct heft_file_piece *piece)
{
    return !piece->flat && piece->payload_bytes / piece->elements < SCATTER_MIN_BYTES;
}

static void read_hot(struct heft_file_lane *lane, struct heft_file_piece *piece)
{
    struct heft_error error = HEFT_ERROR_INIT;
    int rc;

    if (piece->slot) {
        struct iovec whole = {piece->slot, piece->span_bytes};

        piece->read_begin_bytes = piece->begin_bytes;
        rc = read_all(piece->source, &whole, 1, piece->begin_bytes, piece->span_bytes, &error);
        if (rc == 0)
            scatter(piece);
    } else {
        rc = move_vectors(piece, &error);
    }
    if (rc)
        fail(lane, piece, rc, &error);
    else
        land(lane, piece);
}

/* ---- how to read ---- */

/* A page in the middle decides where the cache can't be asked. */
static int is_hot(struct heft_file_piece *piece)
{
    struct heft_file_source *source = piece->source;
    struct iovec one = {piece->edges, 1};

    switch (heft_file_source_heat(source, piece->begin_bytes, piece->span_bytes)) {
    case HEFT_FILE_HOT:
        return 1;
    case HEFT_FILE_COLD:
        return 0;
    case HEFT_FILE_UNSURE:
        break;
    }
    if (preadv2(source->fd, &one, 1, (off_t)(piece->begin_bytes + piece->span_bytes / 2), RWF_NOWAIT) == 1)
        return 1;
    heft_file_source_was_cold(source);
    return 0;
}

static int fits_in_place(const struct heft_file_piece *piece)
{
    const struct heft_file_source *source = piece->source;
    uint64_t block = source->offset_align;
    uint64_t middle = (piece->begin_bytes + block - 1) & ~(block - 1);
    uint64_t end = (piece->begin_bytes + piece->span_bytes) & ~(block - 1);

    return piece->flat && middle < end && end - middle >= IN_PLACE_MIN_BYTES &&
           ((uintptr_t)(piece->flat + (middle - piece->begin_bytes)) & (source->memory_align - 1)) == 0;
}

static int is_picked(const struct heft_file_lane *lane, struct heft_file_piece *piece)
{
    uint64_t gap = lane->gauge.gap_bytes;

    if (gap == 0)
        gap = HEFT_FILE_GAUGE_GAP_BYTES;
    if (piece->source->mode & HEFT_FILE_NO_GAPS)
        gap = 0;
    piece->gap_bytes = gap;
    return !piece->backwards && piece->widest_gap_bytes > gap;
}

static void decide(const struct heft_file_lane *lane, struct heft_file_piece *piece)
{
    piece->direct = 0;
    if (is_hot(piece)) {
        piece->path = HEFT_FILE_READ_HOT;
        return;
    }
    piece->direct = heft_file_source_direct(piece->source);
    if (is_picked(lane, piece))
        piece->path = HEFT_FILE_PICKED;
    else if (!piece->direct)
        piece->path = HEFT_FILE_PLAIN;
    else
        piece->path = fits_in_place(piece) ? HEFT_FILE_IN_PLACE : HEFT_FILE_STAGED;
}

static int needs_slot(const struct heft_file_piece *piece)
{
    switch (piece->path) {
    case HEFT_FILE_STAGED:
    case HEFT_FILE_PICKED:
        return 1;
    case HEFT_FILE_PLAIN:
        return !piece->flat;
    case HEFT_FILE_READ_HOT:
        return is_scattered(piece);
    case HEFT_FILE_UNDECIDED:
    case HEFT_FILE_IN_PLACE:
        break;
    }
    return 0;
}

/* Fills the vector and its range of the file. */
static void aim(struct heft_file_piece *piece)
{
    uint64_t block = piece->source->offset_align, begin = piece->begin_bytes, end = begin + piece->span_bytes;
    uint64_t middle, middle_end;

    if (piece->path != HEFT_FILE_IN_PLACE) {
        if (piece->path == HEFT_FILE_PLAIN)
            block = 1;
        piece->read_begin_bytes = begin & ~(block - 1);
        piece->read_bytes = ((end + block - 1) & ~(block - 1)) - piece->read_begin_bytes;
        piece->iov[0].iov_base = piece->slot ? piece->slot : piece->flat;
        piece->iov[0].iov_len = piece->read_bytes;
        piece->iov_count = 1;
        return;
    }
    middle = (begin + block - 1) & ~(block - 1);
    middle_end = end & ~(block - 1);
    piece->iov_count = 0;
    piece->read_begin_bytes = begin & ~(block - 1);
    if (middle > begin)
        piece->iov[piece->iov_count++] = (struct iovec){piece->edges, block};
    piece->iov[piece->iov_count++] = (struct iovec){piece->flat + (middle - begin), middle_end - middle};
    if (end > middle_end)
        piece->iov[piece->iov_count++] = (struct iovec){piece->edges + HEFT_FILE_BLOCK_BYTES, block};
    piece->read_bytes = ((end + block - 1) & ~(block - 1)) - piece->read_begin_bytes;
}

/* The wanted parts of the two edge blocks go to both ends of the place. */
static void copy_edges(const struct heft_file_piece *piece)
{
    uint64_t block = piece->source->offset_align, begin = piece->begin_bytes, end = begin + piece->span_bytes;
    uint64_t head = begin & (block - 1), tail = end & (block - 1);

    if (head)
        memcpy(piece->flat, piece->edges + head, block - head);
    if (tail)
        memcpy(piece->flat + (piece->span_bytes - tail), piece->edges + HEFT_FILE_BLOCK_BYTES, tail);
}

/* By the ring, or where there is none now. */
static void read_parts(struct heft_file_lane *lane, struct heft_file_piece *piece, const struct iovec *parts,
                       int count, uint64_t offset)
{
    int fd = piece->direct ? piece->source->direct_fd : piece->source->fd;
    ssize_t got;

    if (heft_file_lane_read(lane, piece, fd, parts, count, offset))
        return;
    do
        got = preadv(fd, parts, count, (off_t)offset);
    while (got < 0 && errno == EINTR);
    heft_file_piece_complete(lane, piece, got < 0 ? -(int64_t)errno : (int64_t)got);
}

static void read_picked(struct heft_file_lane *lane, struct heft_file_piece *piece)
{
    struct heft_file_extents extents;
    struct heft_file_extent extent;

    piece->unanswered = 1;
    piece->read_bytes = piece->got_bytes = 0;
    piece->status = 0;
    heft_file_extents_start(piece, &extents);
    while (heft_file_extents_next(&extents, &extent)) {
        struct iovec part = {piece->slot + extent.slot_bytes, extent.end_bytes - extent.begin_bytes};

        piece->unanswered++;
        piece->read_bytes += part.iov_len;
        read_parts(lane, piece, &part, 1, extent.begin_bytes);
    }
    heft_file_piece_complete(lane, piece, 0);
}

int heft_file_piece_start(struct heft_file_lane *lane, struct heft_file_piece *piece)
{
    struct heft_error error = HEFT_ERROR_INIT;
    int rc;

    if (ended(piece)) {
        fail(lane, piece, HEFT_ERR_CANCELED, NULL);
        return 1;
    }
    if (piece->task->write) {
        rc = move_vectors(piece, &error);
        if (rc)
            fail(lane, piece, rc, &error);
        else
            land(lane, piece);
        return 1;
    }
    if (piece->path == HEFT_FILE_UNDECIDED)
        decide(lane, piece);
    if (needs_slot(piece) && !piece->slot && !heft_file_take_slot(lane->transport, piece))
        return 0;
    if (piece->path == HEFT_FILE_READ_HOT) {
        read_hot(lane, piece);
        return 1;
    }
    if (piece->path == HEFT_FILE_PICKED) {
        read_picked(lane, piece);
        return 1;
    }
    aim(piece);
    read_parts(lane, piece, piece->iov, piece->iov_count, piece->read_begin_bytes);
    return 1;
}

/* What the first read left out, buffered, into the same places. */
static int read_rest(struct heft_file_piece *piece, uint64_t got, struct heft_error *error)
{
    uint64_t wanted = piece->begin_bytes + piece->span_bytes - piece->read_begin_bytes;
    struct iovec parts[3], *iov = parts;
    int count = piece->iov_count;

    memcpy(parts, piece->iov, sizeof(parts));
    parts[count - 1].iov_len -= piece->read_bytes - wanted;
    advance(&iov, &count, got);
    return read_all(piece->source, iov, count, piece->read_begin_bytes + got, wanted - got, error);
}

/* Of a picked piece all reads are answered. */
static int place(struct heft_file_piece *piece, uint64_t got, struct heft_error *error)
{
    uint64_t wanted = piece->begin_bytes + piece->span_bytes - piece->read_begin_bytes;
    int rc;

    if (piece->path == HEFT_FILE_PICKED) {
        if (got < piece->read_bytes)
            return move_vectors(piece, error);
        scatter_picked(piece);
        return HEFT_OK;
    }
    if (got < wanted) {
        rc = read_rest(piece, got, error);
        if (rc)
            return rc;
    }
    if (piece->slot)
        scatter(piece);
    else if (piece->path == HEFT_FILE_IN_PLACE)
        copy_edges(piece);
    return HEFT_OK;
}

void heft_file_piece_complete(struct heft_file_lane *lane, struct heft_file_piece *piece, int64_t result)
{
    struct heft_error error = HEFT_ERROR_INIT;
    int rc;

    if ((piece->source->mode & HEFT_FILE_REFUSE_DIRECT) && piece->direct)
        result = -EINVAL;
    if (piece->path == HEFT_FILE_PICKED) {
        if (result > 0)
            piece->got_bytes += (uint64_t)result;
        else if (result < 0 && piece->status == 0)
            piece->status = (int)result;
        if (--piece->unanswered > 0)
            return;
        result = piece->status ? piece->status : (int64_t)piece->got_bytes;
    }
    if (ended(piece)) {
        fail(lane, piece, HEFT_ERR_CANCELED, NULL);
        return;
    }
    if (result == -EIO) {
        fail(lane, piece,
             refused(piece->source, EIO, "reading", piece->begin_bytes, piece->span_bytes, &error), &error);
        return;
    }
    if ((result == -EINVAL || result == -EOPNOTSUPP) && piece->direct)
        heft_file_source_refuse_direct(piece->source);
    rc = place(piece, result > 0 ? (uint64_t)result : 0, &error);
    if (rc)
        fail(lane, piece, rc, &error);
    else
        land(lane, piece);
}
