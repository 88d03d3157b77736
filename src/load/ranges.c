/* SPDX-License-Identifier: Apache-2.0 */
#include "load/ranges.h"
#include "base/error.h"

#include <stdlib.h>

static int by_address(const void *left, const void *right)
{
    const struct heft_range_piece *const *a = left;
    const struct heft_range_piece *const *b = right;

    if ((*a)->address != (*b)->address)
        return (*a)->address < (*b)->address ? -1 : 1;
    return 0;
}

int heft_ranges_make(struct heft_range_piece *pieces, uint64_t piece_count, struct heft_range **ranges_out,
                     uint64_t *count_out, struct heft_error *error)
{
    struct heft_range_piece **order =
        calloc(piece_count ? piece_count : 1, sizeof(struct heft_range_piece *));
    struct heft_range *ranges = calloc(piece_count ? piece_count : 1, sizeof(*ranges));
    uint64_t index, used = 0, count = 0;

    if (!order || !ranges) {
        free(order);
        free(ranges);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "sorting %llu memory ranges",
                              (unsigned long long)piece_count);
    }
    for (index = 0; index < piece_count; index++) {
        pieces[index].range = UINT64_MAX;
        pieces[index].offset_bytes = 0;
        if (pieces[index].size_bytes == 0)
            continue;
        if (pieces[index].size_bytes > UINTPTR_MAX - (uintptr_t)pieces[index].address) {
            free(order);
            free(ranges);
            return heft_error_set(error, HEFT_ERR_INVALID, "memory range %llu wraps around the address space",
                                  (unsigned long long)index);
        }
        order[used++] = &pieces[index];
    }
    qsort(order, used, sizeof(*order), by_address);
    for (index = 0; index < used; index++) {
        struct heft_range_piece *piece = order[index];
        struct heft_range *last = count ? &ranges[count - 1] : NULL;
        uintptr_t begin = (uintptr_t)piece->address, end = begin + piece->size_bytes;

        if (!last || begin > (uintptr_t)last->address + last->size_bytes + HEFT_RANGE_GAP_BYTES) {
            last = &ranges[count++];
            last->address = piece->address;
        }
        if (end > (uintptr_t)last->address + last->size_bytes)
            last->size_bytes = end - (uintptr_t)last->address;
        piece->range = count - 1;
        piece->offset_bytes = begin - (uintptr_t)last->address;
    }
    free(order);
    *ranges_out = ranges;
    *count_out = count;
    return HEFT_OK;
}
