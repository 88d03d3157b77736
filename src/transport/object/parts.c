/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/object/parts.h"
#include "base/error.h"
#include "transport/object/object.h"

#include <stdlib.h>
#include <string.h>

/* A cursor's element as one run. */
struct run {
    const struct heft_move *move;
    uint64_t object_offset, host_offset;
    uint64_t bytes; /* of the element, from the cursor on */
};

static const struct heft_move *move_at(const struct heft_object_parts *parts, size_t at)
{
    return &parts->moves[parts->order ? parts->order[at] : at];
}

/* Elements that touch on both sides are one. */
static int is_dense(const struct heft_move *move)
{
    return move->count == 1 || (move->remote_stride_bytes == move->length_bytes &&
                                move->local_stride_bytes == move->length_bytes);
}

static uint64_t elements_of(const struct heft_move *move)
{
    return move->length_bytes == 0 || move->count == 0 ? 0 : is_dense(move) ? 1 : move->count;
}

/* The run at a cursor, which is moved over what holds no bytes. 0: the end. */
static int run_at(const struct heft_object_parts *parts, size_t *at, uint64_t *index, uint64_t *byte,
                  struct run *run_out)
{
    const struct heft_move *move;
    uint64_t length;

    while (*at < parts->move_count && *index >= elements_of(move_at(parts, *at))) {
        (*at)++;
        *index = *byte = 0;
    }
    if (*at == parts->move_count)
        return 0;
    move = move_at(parts, *at);
    length = is_dense(move) ? move->length_bytes * move->count : move->length_bytes;
    *run_out = (struct run){
        .move = move,
        .object_offset = move->remote_offset_bytes + *index * move->remote_stride_bytes + *byte,
        .host_offset = move->local_offset_bytes + *index * move->local_stride_bytes + *byte,
        .bytes = length - *byte,
    };
    return 1;
}

static void step(uint64_t bytes, const struct run *run, uint64_t *index, uint64_t *byte)
{
    *byte += bytes;
    if (bytes == run->bytes) {
        (*index)++;
        *byte = 0;
    }
}

static int compare(const void *left, const void *right, void *context)
{
    const struct heft_move *moves = context;
    size_t l = *(const size_t *)left, r = *(const size_t *)right;
    const struct heft_move *a = &moves[l], *b = &moves[r];

    if (a->remote->id != b->remote->id)
        return a->remote->id < b->remote->id ? -1 : 1;
    if (a->remote_offset_bytes != b->remote_offset_bytes)
        return a->remote_offset_bytes < b->remote_offset_bytes ? -1 : 1;
    return l < r ? -1 : l > r;
}

static int is_sorted(const struct heft_move *moves, size_t count)
{
    size_t index;

    for (index = 1; index < count; index++)
        if (moves[index].remote->id < moves[index - 1].remote->id ||
            (moves[index].remote == moves[index - 1].remote &&
             moves[index].remote_offset_bytes < moves[index - 1].remote_offset_bytes))
            return 0;
    return 1;
}

int heft_object_parts_prepare(struct heft_object_parts *parts, const struct heft_move *moves,
                              size_t move_count)
{
    size_t index, *order = parts->order, capacity = parts->order_capacity;

    *parts = (struct heft_object_parts){.moves = moves, .move_count = move_count};
    if (is_sorted(moves, move_count)) {
        free(order);
        return HEFT_OK;
    }
    if (capacity < move_count) {
        free(order);
        order = malloc(move_count * sizeof(*order));
        if (!order)
            return HEFT_ERR_NO_MEMORY;
        capacity = move_count;
    }
    for (index = 0; index < move_count; index++)
        order[index] = index;
    qsort_r(order, move_count, sizeof(*order), compare, (void *)(uintptr_t)moves);
    parts->order = order;
    parts->order_capacity = capacity;
    return HEFT_OK;
}

void heft_object_parts_free(struct heft_object_parts *parts)
{
    free(parts->order);
    *parts = (struct heft_object_parts){0};
}

int heft_object_parts_left(const struct heft_object_parts *parts)
{
    struct heft_object_parts look = *parts;
    struct run run;

    return run_at(&look, &look.at, &look.index, &look.byte, &run);
}

int heft_object_parts_cut(struct heft_object_parts *parts, uint64_t part_bytes,
                          struct heft_object_part *part_out)
{
    struct heft_object_part part = {.parts = parts};
    struct run run;

    if (!run_at(parts, &parts->at, &parts->index, &parts->byte, &run))
        return 0;
    part.region = run.move->remote;
    part.begin = part.end = part.position = run.object_offset;
    part.first_at = part.at = parts->at;
    part.index = parts->index;
    part.byte = parts->byte;
    do {
        uint64_t room, bytes;

        if (run.move->remote != part.region || run.object_offset < part.end ||
            run.object_offset - part.end > HEFT_OBJECT_GAP_BYTES ||
            run.object_offset - part.begin >= part_bytes)
            break;
        room = part_bytes - (run.object_offset - part.begin);
        /* An end of less than half a part is no request of its own. */
        bytes = run.bytes < room + part_bytes / 2 ? run.bytes : room;
        part.end = run.object_offset + bytes;
        part.payload_bytes += bytes;
        step(bytes, &run, &parts->index, &parts->byte);
    } while (part.end - part.begin < part_bytes &&
             run_at(parts, &parts->at, &parts->index, &parts->byte, &run));
    *part_out = part;
    return 1;
}

size_t heft_object_part_move(const struct heft_object_part *part)
{
    return part->parts->order ? part->parts->order[part->first_at] : part->first_at;
}

uint64_t heft_object_part_take(struct heft_object_part *part, const uint8_t *data, uint64_t size)
{
    uint64_t wanted = 0;
    struct run run;

    HEFT_ASSERT(size <= part->end - part->position);
    while (size > 0) {
        uint64_t bytes;

        HEFT_ASSERT(run_at(part->parts, &part->at, &part->index, &part->byte, &run));
        if (run.object_offset > part->position) {
            bytes = run.object_offset - part->position;
            if (bytes > size)
                bytes = size;
        } else {
            bytes = run.bytes < size ? run.bytes : size;
            memcpy((uint8_t *)run.move->local->address + run.host_offset, data, (size_t)bytes);
            step(bytes, &run, &part->index, &part->byte);
            wanted += bytes;
        }
        part->position += bytes;
        data += bytes;
        size -= bytes;
    }
    part->landed_bytes += wanted;
    return wanted;
}
