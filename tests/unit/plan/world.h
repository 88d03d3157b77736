/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small world to try plans in. Every byte of every tensor has a number of its own; the memory of a holder
 * is an array of such numbers, laid out element by element from the definition of a box, without any of the
 * arithmetic that plans use. Running a plan copies numbers; whatever goes wrong shows as a wrong number.
 */
#ifndef HEFT_TEST_PLAN_WORLD_H
#define HEFT_TEST_PLAN_WORLD_H

#include "plan/plan.h"

#define WORLD_MAX_RANK 6
#define WORLD_MAX_TENSORS 64
#define WORLD_MAX_MEMORIES 4
#define WORLD_POISON UINT32_MAX /* bytes of a holder that nobody may read */

struct world_random {
    uint64_t state;
};
uint64_t world_next(struct world_random *random);
/* A number below `limit`, which is not 0. */
uint64_t world_below(struct world_random *random, uint64_t limit);

struct world_tensor {
    char name[16];
    char dtype[8];
    uint32_t bits, rank;
    uint64_t shape[WORLD_MAX_RANK];
    uint64_t bytes;
    uint32_t first_number; /* of its byte 0; numbers start at 1 */
};

struct world {
    struct world_tensor tensors[WORLD_MAX_TENSORS];
    uint32_t tensor_count;
    uint32_t number_count; /* numbers given out */
};

/* Fills bytes and first_number of a tensor whose name, bits, rank and shape are set (bits 0: bytes is set).
 */
void world_add(struct world *world, struct world_tensor *tensor);

struct world_box {
    int whole;
    uint64_t start[WORLD_MAX_RANK], size[WORLD_MAX_RANK];
};
uint64_t world_box_bytes(const struct world_tensor *tensor, const struct world_box *box);
/* 1 when every byte of the box is one byte of the tensor, and rows that are cut are whole bytes. */
int world_box_clean(const struct world_tensor *tensor, const struct world_box *box);
/* The byte of the tensor that is byte `at` of the box. */
uint64_t world_box_byte(const struct world_tensor *tensor, const struct world_box *box, uint64_t at);

struct world_holder {
    struct heft_manifest *manifest;
    uint32_t *files[WORLD_MAX_MEMORIES];
    uint64_t file_bytes[WORLD_MAX_MEMORIES];
    uint8_t *has; /* by number: holds that byte */
    int partial;  /* lacks some blocks */
};
/* Places the boxes (one a tensor) in `files` files in random order, with gaps; holes: drops random blocks. */
void world_hold(struct world *world, struct world_random *random, const struct world_box *boxes,
                uint32_t files, int holes, struct world_holder *holder_out);
void world_let_go(struct world_holder *holder);

/*
 * Runs every chunk from every source that the plan offers and checks everything that plan.h promises; ends
 * the test with a sentence that names `seed` when something is wrong.
 */
void world_check(const struct world *world, struct world_random *random, uint64_t seed,
                 const struct heft_plan *plan, const struct world_holder *holders, uint32_t holder_count,
                 uint64_t chunk_bytes);
/* True when some wanted byte is held by nobody; the tensor's name goes to name_out. */
int world_lacks(const struct world *world, const struct heft_layout *layout,
                const struct world_holder *holders, uint32_t holder_count, const char **name_out);
/* The world's tensor of a layout entry, and its box. */
const struct world_tensor *world_wanted(const struct world *world, const struct heft_layout *layout,
                                        uint64_t entry, struct world_box *box_out);

#endif
