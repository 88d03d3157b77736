/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks as arithmetic: which pieces a list of moves is cut into, and where the bytes of a piece go.
 *
 * Elements are never expanded: a piece remembers where it begins (move, element, byte) and how many bytes it
 * carries, and is walked again when they land. Inside one move elements lie in file order by themselves
 * (strides are not negative); the moves are sorted only when the caller did not give them so.
 *
 * The pieces tile the task: each begins where the last one ended, and every element byte belongs to one.
 */
#include "transport/file/file.h"
#include "base/error.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>

/* One move, seen from the file. */
struct view {
    struct heft_file_source *source;
    uint8_t *address;
    uint64_t offset_bytes; /* of the file */
    uint64_t length_bytes, count;
    uint64_t file_stride_bytes, host_stride_bytes;
};

size_t heft_file_move_index(const struct heft_file_task *task, size_t order)
{
    return task->sorted ? task->order[order] : order;
}

static void view_move(const struct heft_file_task *task, size_t order, struct view *view)
{
    const struct heft_move *move = &task->common.op->moves[heft_file_move_index(task, order)];

    view->length_bytes = move->length_bytes;
    view->count = move->length_bytes ? move->count : 0;
    if (task->file_local) {
        view->source = move->local->slot[task->host_index];
        view->address = (uint8_t *)move->remote->address + move->remote_offset_bytes;
        view->offset_bytes = move->local_offset_bytes;
        view->file_stride_bytes = move->local_stride_bytes;
        view->host_stride_bytes = move->remote_stride_bytes;
    } else {
        view->source = move->remote->slot[task->host_index];
        view->address = (uint8_t *)move->local->address + move->local_offset_bytes;
        view->offset_bytes = move->remote_offset_bytes;
        view->file_stride_bytes = move->remote_stride_bytes;
        view->host_stride_bytes = move->local_stride_bytes;
    }
    /* Elements that touch on both sides are one. */
    if (view->count > 1 && view->file_stride_bytes == view->length_bytes &&
        view->host_stride_bytes == view->length_bytes) {
        view->length_bytes *= view->count;
        view->count = 1;
    }
}

/* ---- preparing ---- */

/* Moves the cursor over what is empty or used up; at the end of the moves nothing is left. */
static void skip_empty(struct heft_file_task *task)
{
    struct heft_file_cursor *at = &task->cursor;
    struct view view;

    for (; at->order < task->common.op->move_count; *at = (struct heft_file_cursor){at->order + 1, 0, 0}) {
        view_move(task, at->order, &view);
        if (at->index < view.count)
            return;
    }
    task->common.cut = 1;
}

static int check_move(struct heft_file_task *task, size_t index, struct heft_error *error)
{
    const struct heft_move *move = &task->common.op->moves[index];
    const struct heft_transport_region *from, *to, *file;
    const struct heft_file_source *source;
    int write;

    from = task->common.op->kind == HEFT_OP_READ ? move->remote : move->local;
    to = task->common.op->kind == HEFT_OP_READ ? move->local : move->remote;
    write = to->space == HEFT_SPACE_FILE;
    file = write ? to : from;
    if ((write ? from : to)->space != HEFT_SPACE_HOST || file->space != HEFT_SPACE_FILE)
        return heft_error_set(
            error, HEFT_ERR_UNSUPPORTED,
            "the file transport moves between a file and host memory, move %zu is neither way", index);
    if (index > 0 && write != task->write)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                              "one operation either reads files or writes them; move %zu goes the other way",
                              index);
    task->write = write;
    task->file_local = file == move->local;
    source = file->slot[task->host_index];
    if (!source)
        return heft_error_set(error, HEFT_ERR_STATE, "%s: the file transport could not take this file",
                              file->label ? file->label : "");
    if ((source->access & O_ACCMODE) == (write ? O_RDONLY : O_WRONLY))
        return heft_error_set(error, HEFT_ERR_PERMISSION, "%s is not open for %s", source->label,
                              write ? "writing" : "reading");
    if (write && (source->access & O_APPEND))
        return heft_error_set(
            error, HEFT_ERR_INVALID,
            "%s is open for appending, where offsets do not count: open it without O_APPEND", source->label);
    task->common.wanted_bytes += move->length_bytes * move->count;
    return HEFT_OK;
}

/* Whether move `right` begins before move `left` in the file. */
static int out_of_order(const struct heft_file_task *task, size_t left, size_t right)
{
    struct view before, after;

    view_move(task, left, &before);
    view_move(task, right, &after);
    return before.source == after.source && after.offset_bytes < before.offset_bytes;
}

static int compare_moves(const void *left_index, const void *right_index, void *context)
{
    const struct heft_file_task *task = context;
    size_t left = *(const size_t *)left_index, right = *(const size_t *)right_index;
    struct view before, after;

    view_move(task, left, &before);
    view_move(task, right, &after);
    if (before.source != after.source)
        return (uintptr_t)before.source < (uintptr_t)after.source ? -1 : 1;
    if (before.offset_bytes != after.offset_bytes)
        return before.offset_bytes < after.offset_bytes ? -1 : 1;
    return left < right ? -1 : left > right;
}

/* Without memory for the order the task runs as given: slower, as right. */
static void sort_moves(struct heft_file_task *task)
{
    size_t count = task->common.op->move_count, index;

    for (index = 1; index < count; index++)
        if (out_of_order(task, index - 1, index))
            break;
    if (index >= count)
        return;
    if (count > task->order_capacity) {
        size_t *order = realloc(task->order, count * sizeof(*order));

        if (!order)
            return;
        task->order = order;
        task->order_capacity = count;
    }
    for (index = 0; index < count; index++)
        task->order[index] = index;
    qsort_r(task->order, count, sizeof(*task->order), compare_moves, task);
    task->sorted = 1;
}

int heft_file_task_prepare(struct heft_file_task *task, struct heft_transport_op *op, uint32_t host_index,
                           struct heft_error *error)
{
    size_t index;
    int rc;

    task->common.op = op;
    task->host_index = host_index;
    task->sorted = 0;
    task->common.wanted_bytes = 0;
    task->cursor = (struct heft_file_cursor){0, 0, 0};
    for (index = 0; index < op->move_count; index++) {
        rc = check_move(task, index, error);
        if (rc) {
            op->failed_move = (int64_t)index;
            return rc;
        }
    }
    sort_moves(task);
    skip_empty(task);
    return HEFT_OK;
}

/* ---- cutting ---- */

struct cutting {
    struct heft_file_piece *piece;
    uint64_t end_bytes, limit_bytes, slack_bytes;
    uint64_t gap_bytes, max_elements;
    uint8_t *flat_end; /* where the next byte would go for the piece to stay flat; NULL: it is not */
};

/* Whether an element that begins at `start` may join the piece. */
static int fits(const struct cutting *cutting, const struct view *view, uint64_t start)
{
    const struct heft_file_piece *piece = cutting->piece;

    if (piece->elements == 0)
        return 1;
    if (view->source != piece->source || start < piece->begin_bytes || start >= cutting->limit_bytes)
        return 0;
    if (start > cutting->end_bytes && start - cutting->end_bytes > cutting->gap_bytes)
        return 0;
    if (start < cutting->end_bytes && cutting->gap_bytes == 0)
        return 0; /* a written piece is gapless and does not overlap itself */
    return piece->elements < cutting->max_elements && piece->payload_bytes < 4 * HEFT_FILE_PIECE_BYTES;
}

/* How much of an element of `length` bytes at `start` the piece takes: cuts fall on blocks of the file. */
static uint64_t share(const struct cutting *cutting, uint64_t start, uint64_t length)
{
    uint64_t room = cutting->limit_bytes - start;
    uint64_t cut;

    if (length <= room || length - room <= cutting->slack_bytes)
        return length;
    cut = cutting->limit_bytes & ~(HEFT_FILE_BLOCK_BYTES - 1);
    if (cut <= start)
        return cutting->piece->elements ? 0 : room;
    return cut - start;
}

/* How many whole elements of a strided move, the first at `start`, the piece takes. */
static uint64_t whole_elements(const struct cutting *cutting, const struct view *view, uint64_t index,
                               uint64_t start)
{
    uint64_t stride = view->file_stride_bytes, length = view->length_bytes;
    uint64_t most = view->count - index, count;

    if (start + length > cutting->limit_bytes || (stride > length && stride - length > cutting->gap_bytes) ||
        (stride < length && cutting->gap_bytes == 0))
        return 1;
    if (most > cutting->max_elements - cutting->piece->elements)
        most = cutting->max_elements - cutting->piece->elements;
    count = stride ? (cutting->limit_bytes - start - length) / stride + 1 : most;
    if (count > 4 * HEFT_FILE_PIECE_BYTES / length + 1)
        count = 4 * HEFT_FILE_PIECE_BYTES / length + 1;
    return count < most ? count : most;
}

/* `gap` is the one between these elements. */
static void take(struct cutting *cutting, uint64_t start, uint64_t span, uint64_t payload, uint64_t count,
                 int64_t gap, uint8_t *address)
{
    struct heft_file_piece *piece = cutting->piece;

    if (piece->elements > 0) {
        if (count == 1 || (int64_t)(start - cutting->end_bytes) > gap)
            gap = (int64_t)(start - cutting->end_bytes);
        piece->backwards |= start < cutting->end_bytes;
    }
    piece->backwards |= gap < 0;
    if (gap > 0 && (uint64_t)gap > piece->widest_gap_bytes)
        piece->widest_gap_bytes = (uint64_t)gap;
    if (piece->elements == 0) {
        piece->begin_bytes = start;
        piece->flat = count == 1 ? address : NULL;
    } else if (count != 1 || start != cutting->end_bytes || address != cutting->flat_end) {
        piece->flat = NULL;
    }
    cutting->flat_end = piece->flat ? address + payload : NULL;
    piece->elements += count;
    piece->payload_bytes += payload;
    if (start + span > cutting->end_bytes || piece->elements == count)
        cutting->end_bytes = start + span;
}

int heft_file_task_cut(struct heft_file_task *task, uint64_t piece_bytes, struct heft_file_piece *piece)
{
    struct heft_file_cursor *at = &task->cursor;
    struct cutting cutting = {0};

    piece->task = task;
    piece->elements = piece->payload_bytes = 0;
    piece->widest_gap_bytes = 0;
    piece->backwards = 0;
    piece->path = HEFT_FILE_UNDECIDED;
    piece->canceling = 0;
    cutting.piece = piece;
    cutting.gap_bytes = task->write ? 0 : HEFT_FILE_GAP_BYTES;
    cutting.max_elements = task->write ? HEFT_FILE_MAX_IOV : HEFT_FILE_MAX_ELEMENTS;
    while (at->order < task->common.op->move_count) {
        struct view view;
        uint64_t start, count, bytes;
        uint8_t *address;

        view_move(task, at->order, &view);
        if (at->index >= view.count) {
            *at = (struct heft_file_cursor){at->order + 1, 0, 0};
            continue;
        }
        start = view.offset_bytes + at->index * view.file_stride_bytes + at->byte;
        address = view.address + at->index * view.host_stride_bytes + at->byte;
        if (!fits(&cutting, &view, start))
            break;
        if (piece->elements == 0) {
            piece->source = view.source;
            piece->first = *at;
            cutting.limit_bytes = start + piece_bytes;
            cutting.slack_bytes = piece_bytes / 16;
        }
        count = at->byte == 0 ? whole_elements(&cutting, &view, at->index, start) : 1;
        if (count > 1) {
            take(&cutting, start, (count - 1) * view.file_stride_bytes + view.length_bytes,
                 count * view.length_bytes, count, (int64_t)(view.file_stride_bytes - view.length_bytes),
                 address);
            at->index += count;
            continue;
        }
        bytes = share(&cutting, start, view.length_bytes - at->byte);
        if (bytes == 0)
            break;
        take(&cutting, start, bytes, bytes, 1, 0, address);
        at->byte += bytes;
        if (at->byte < view.length_bytes)
            break;
        at->index++;
        at->byte = 0;
    }
    skip_empty(task);
    piece->span_bytes = piece->elements ? cutting.end_bytes - piece->begin_bytes : 0;
    return piece->elements > 0;
}

/* ---- walking ---- */

void heft_file_walk_start(const struct heft_file_piece *piece, struct heft_file_walk *walk)
{
    walk->task = piece->task;
    walk->at = piece->first;
    walk->left_bytes = piece->payload_bytes;
}

int heft_file_walk_next(struct heft_file_walk *walk, uint64_t *file_offset_out, uint8_t **address_out,
                        uint64_t *bytes_out)
{
    struct heft_file_cursor *at = &walk->at;
    struct view view;
    uint64_t bytes;

    if (walk->left_bytes == 0)
        return 0;
    view_move(walk->task, at->order, &view);
    while (at->index >= view.count) {
        *at = (struct heft_file_cursor){at->order + 1, 0, 0};
        view_move(walk->task, at->order, &view);
    }
    bytes = view.length_bytes - at->byte;
    if (bytes > walk->left_bytes)
        bytes = walk->left_bytes;
    *file_offset_out = view.offset_bytes + at->index * view.file_stride_bytes + at->byte;
    *address_out = view.address + at->index * view.host_stride_bytes + at->byte;
    *bytes_out = bytes;
    walk->left_bytes -= bytes;
    at->byte += bytes;
    if (at->byte == view.length_bytes) {
        at->index++;
        at->byte = 0;
    }
    return 1;
}
