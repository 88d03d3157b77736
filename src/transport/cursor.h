/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A position in a list of moves, and cutting bytes off behind it. All transports cut operations into pieces
 * by this one walk, so that the pieces always tile the operation: zero lengths and zero counts vanish, a
 * strided move whose pieces touch on both sides is one long piece.
 */
#ifndef HEFT_TRANSPORT_CURSOR_H
#define HEFT_TRANSPORT_CURSOR_H

#include <heft/transport.h>

/* All zero: the first byte. */
struct heft_cursor {
    size_t move;
    uint64_t index;  /* piece of that move */
    uint64_t offset; /* bytes of that piece that are behind the cursor */
};

/* `count` pieces of `length_bytes`, the first one at the offsets, the rest at the move's strides. */
struct heft_cut {
    const struct heft_move *move;
    size_t move_index;
    uint64_t local_offset_bytes, remote_offset_bytes;
    uint64_t length_bytes, count;
};

/*
 * Cuts at most max_bytes (not 0) off at the cursor and advances it. With `many`, whole pieces of one move
 * come together (count >= 1); without, one contiguous piece (count 1). Returns the bytes cut; 0: the end.
 */
uint64_t heft_cursor_cut(struct heft_cursor *cursor, const struct heft_move *moves, size_t move_count,
                         uint64_t max_bytes, int many, struct heft_cut *cut_out);

#endif
