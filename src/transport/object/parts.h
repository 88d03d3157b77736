/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations cut into parts: a range of one object and the places its bytes go to. Arithmetic without I/O.
 *
 * Moves are taken in the order of (object, offset). A part grows while the next piece follows within
 * HEFT_OBJECT_GAP_BYTES; a piece that begins before the end of the last one begins a new part, so that within
 * a part bytes only go forward.
 */
#ifndef HEFT_TRANSPORT_OBJECT_PARTS_H
#define HEFT_TRANSPORT_OBJECT_PARTS_H

#include <heft/transport.h>

struct heft_object_parts {
    const struct heft_move *moves;
    size_t move_count;
    size_t *order; /* moves by object and offset; NULL: as given */
    size_t order_capacity;
    /* The next byte to cut: of element `index` of move order[at]. */
    size_t at;
    uint64_t index, byte;
};

/* A range of one object with a cursor that follows the arriving bytes. */
struct heft_object_part {
    const struct heft_object_parts *parts;
    struct heft_transport_region *region;
    uint64_t begin, end; /* of the object */
    uint64_t payload_bytes;
    size_t first_at;
    /* Arrival: */
    uint64_t position; /* the object's byte that comes next */
    size_t at;
    uint64_t index, byte;
    uint64_t landed_bytes;
};

/* NO_MEMORY. The order's memory is kept from one operation to the next. */
int heft_object_parts_prepare(struct heft_object_parts *parts, const struct heft_move *moves,
                              size_t move_count);
void heft_object_parts_free(struct heft_object_parts *parts);
/* Cuts the next part of about part_bytes; 0: none is left. */
int heft_object_parts_cut(struct heft_object_parts *parts, uint64_t part_bytes,
                          struct heft_object_part *part_out);
int heft_object_parts_left(const struct heft_object_parts *parts);
/* The caller's index of the part's first move. */
size_t heft_object_part_move(const struct heft_object_part *part);
/* Puts the next `size` bytes of the range where they belong, gaps aside; returns how many were wanted. */
uint64_t heft_object_part_take(struct heft_object_part *part, const uint8_t *data, uint64_t size);

#endif
