/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns many pieces of the caller's memory (tensors, targets) into few ranges to register: pieces that touch,
 * overlap or lie within an alignment gap of each other share one.
 */
#ifndef HEFT_LOAD_RANGES_H
#define HEFT_LOAD_RANGES_H

#include <heft/error.h>

/* Padding between neighbours that is taken along; more would register memory that nobody named. */
#define HEFT_RANGE_GAP_BYTES 512u

struct heft_range {
    uint8_t *address;
    uint64_t size_bytes;
};

struct heft_range_piece {
    uint8_t *address;
    uint64_t size_bytes;
    uint64_t range;        /* out: index of its range; UINT64_MAX for an empty piece */
    uint64_t offset_bytes; /* out: in that range */
};

/* Fills the pieces' outputs; ranges_out (free) holds count_out ranges in address order. Errors: NO_MEMORY,
 * INVALID for a piece that wraps. */
int heft_ranges_make(struct heft_range_piece *pieces, uint64_t piece_count, struct heft_range **ranges_out,
                     uint64_t *count_out, struct heft_error *error);

#endif
