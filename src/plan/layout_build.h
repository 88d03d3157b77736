/* SPDX-License-Identifier: Apache-2.0 */
/* What the makers of layouts share: room for one, and places handed out in its memory. */
#ifndef HEFT_PLAN_LAYOUT_BUILD_H
#define HEFT_PLAN_LAYOUT_BUILD_H

#include "plan/plan.h"

/* A rank count beyond any machine: bounds the check of every part's boundary for sub-byte dtypes. */
#define HEFT_LAYOUT_MAX_RANKS 65536u

/* A layout of `count` entries with room for `number_count` numbers behind them. */
int heft_layout_new(const struct heft_manifest *reference, uint64_t count, uint64_t number_count,
                    struct heft_layout **layout_out, struct heft_error *error);
uint64_t *heft_layout_numbers(struct heft_layout *layout);
/* The next place in the arena for `entry`, whose size is known; counted into the layout's sums. */
int heft_layout_place(struct heft_layout *layout, struct heft_layout_tensor *entry, uint64_t align_bytes,
                      struct heft_error *error);
int heft_layout_check_align(uint64_t align_bytes, struct heft_error *error);
int heft_layout_check_rank(uint32_t rank, uint32_t ranks, struct heft_error *error);

/* Where part `rank` of `ranks` begins: the parts of a length differ by one at most. */
static inline uint64_t heft_part_start(uint64_t length, uint32_t rank, uint32_t ranks)
{
    return length / ranks * rank + length % ranks * rank / ranks;
}

#endif
