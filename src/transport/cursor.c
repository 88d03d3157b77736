/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/cursor.h"

static void advance_piece(struct heft_cursor *cursor, uint64_t pieces, uint64_t count)
{
    cursor->offset = 0;
    cursor->index += pieces;
    if (cursor->index == count) {
        cursor->index = 0;
        cursor->move++;
    }
}

uint64_t heft_cursor_cut(struct heft_cursor *cursor, const struct heft_move *moves, size_t move_count,
                         uint64_t max_bytes, int many, struct heft_cut *cut_out)
{
    for (; cursor->move < move_count; cursor->move++) {
        const struct heft_move *move = &moves[cursor->move];
        uint64_t length = move->length_bytes, count = move->count;

        if (length == 0 || count == 0)
            continue;
        if (count > 1 && move->local_stride_bytes == length && move->remote_stride_bytes == length) {
            length *= count; /* inside both regions, so it can't wrap */
            count = 1;
        }
        cut_out->move = move;
        cut_out->move_index = cursor->move;
        cut_out->local_offset_bytes =
            move->local_offset_bytes + cursor->index * move->local_stride_bytes + cursor->offset;
        cut_out->remote_offset_bytes =
            move->remote_offset_bytes + cursor->index * move->remote_stride_bytes + cursor->offset;
        if (many && cursor->offset == 0 && length <= max_bytes) {
            uint64_t pieces = max_bytes / length;

            if (pieces > count - cursor->index)
                pieces = count - cursor->index;
            cut_out->length_bytes = length;
            cut_out->count = pieces;
            advance_piece(cursor, pieces, count);
            return length * pieces;
        }
        cut_out->count = 1;
        cut_out->length_bytes = length - cursor->offset;
        if (cut_out->length_bytes > max_bytes)
            cut_out->length_bytes = max_bytes;
        cursor->offset += cut_out->length_bytes;
        if (cursor->offset == length)
            advance_piece(cursor, 1, count);
        return cut_out->length_bytes;
    }
    return 0;
}
