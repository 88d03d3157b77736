/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the safetensors_*.c files alone. A header is parsed in three steps: safetensors_entries.c turns
 * JSON into entries in the order of the file, safetensors_order.c drops repeated names and sorts by place,
 * safetensors.c checks that the entries tile the data.
 */
#ifndef HEFT_FORMAT_SAFETENSORS_PRIVATE_H
#define HEFT_FORMAT_SAFETENSORS_PRIVATE_H

#include "base/error.h"
#include "format/safetensors.h"

struct heft_st_dtype {
    const char *name;
    uint32_t name_bytes;
    uint32_t bits;
};
/* NULL when unknown. */
const struct heft_st_dtype *heft_st_dtype_find(const char *name, size_t name_bytes);

/*
 * The bytes of `rank` dimensions of `bits` each. Codes SHAPE_OVERFLOW and MISALIGNED without a sentence. The
 * product is taken from left to right: [0, 2^63, 2] is 0, [2^63, 2, 0] overflows, as in the reference.
 */
int heft_st_size(const uint64_t *shape, uint64_t rank, uint32_t bits, uint64_t *bytes_out);

/* Asks for huge pages under a large block that is about to be filled: a fault for each 4 KiB would cost a
 * quarter of the time of parsing. */
void heft_st_expect_filled(void *block, size_t bytes);

/*
 * What a header owns beside its two arrays: names and shapes, in chunks that never move. Names grow from a
 * chunk's start, shapes from its end.
 */
struct heft_st_chunk;
struct heft_st_arena {
    struct heft_st_chunk *newest;
    size_t chunk_bytes;
};
struct heft_st_arena *heft_st_arena_create(uint64_t header_bytes);
void heft_st_arena_destroy(struct heft_st_arena *arena);
char *heft_st_arena_text(struct heft_st_arena *arena, size_t size);
uint64_t *heft_st_arena_numbers(struct heft_st_arena *arena, size_t count);

/* Fills tensors and metadata, in the order of the file, repeated names included. On failure the header is
 * still to be freed. */
int heft_st_read_entries(const void *json, uint64_t json_bytes, uint32_t flags, struct heft_st_header *header,
                         struct heft_error *error);
/* Keeps the last of each name (tensors and metadata); counts repeated_names. 0 or NO_MEMORY. */
int heft_st_drop_repeated(struct heft_st_header *header);
/* 1 when a name stands twice (*index_out: the first that a later one repeats), 0 when not, or NO_MEMORY. */
int heft_st_repeated_tensor(const struct heft_st_tensor *tensors, uint64_t count, uint64_t *index_out);
int heft_st_repeated_pair(const struct heft_st_pair *pairs, uint64_t count, uint64_t *index_out);
/* By (begin, end); equal ones keep their order. 0 or NO_MEMORY. */
int heft_st_sort(struct heft_st_tensor *tensors, uint64_t tensor_count);

#endif
