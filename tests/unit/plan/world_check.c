/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a plan in the world and checks every promise of plan.h; see world.h. */
#include "world.h"
#include "base/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition))                                                                   \
            fail_msg("seed %llu, chunk %llu, source %u: %s", (unsigned long long)run->seed, \
                     (unsigned long long)run->chunk, run->source, #condition);              \
    } while (0)

struct run {
    const struct world *world;
    const struct heft_plan *plan;
    const struct world_holder *holders;
    uint32_t holder_count;
    uint64_t seed, chunk, chunk_bytes;
    uint32_t source;
    uint32_t *expected[WORLD_MAX_MEMORIES]; /* numbers, 0: nothing may be written there */
    uint8_t *written[WORLD_MAX_MEMORIES];
    uint64_t memory_bytes[WORLD_MAX_MEMORIES];
    uint32_t *numbers; /* the numbers of the chunk at hand */
    uint64_t number_count;
    uint32_t last_source, last_file; /* where the chunk before begins in its first source */
    uint64_t last_offset;
};

static void make_memories(struct run *run)
{
    const struct heft_layout *layout = run->plan->layout;
    uint64_t entry, at;
    uint32_t memory;

    for (entry = 0; entry < layout->tensor_count; entry++) {
        const struct heft_layout_tensor *wanted = &layout->tensors[entry];
        uint64_t end = wanted->dst_offset_bytes + wanted->size_bytes;

        CHECK(wanted->dst_index < WORLD_MAX_MEMORIES);
        if (end > run->memory_bytes[wanted->dst_index])
            run->memory_bytes[wanted->dst_index] = end;
    }
    CHECK(run->memory_bytes[0] == layout->arena_bytes);
    for (memory = 0; memory < WORLD_MAX_MEMORIES; memory++) {
        run->expected[memory] = calloc(run->memory_bytes[memory] + 1, sizeof(uint32_t));
        run->written[memory] = calloc(run->memory_bytes[memory] + 1, 1);
        assert_non_null(run->expected[memory]);
        assert_non_null(run->written[memory]);
    }
    for (entry = 0; entry < layout->tensor_count; entry++) {
        const struct heft_layout_tensor *wanted = &layout->tensors[entry];
        struct world_box box;
        const struct world_tensor *tensor = world_wanted(run->world, layout, entry, &box);

        CHECK(wanted->size_bytes == world_box_bytes(tensor, &box));
        for (at = 0; at < wanted->size_bytes; at++) {
            uint32_t *cell = &run->expected[wanted->dst_index][wanted->dst_offset_bytes + at];

            CHECK(*cell == 0);
            *cell = tensor->first_number + (uint32_t)world_box_byte(tensor, &box, at);
        }
    }
}

/* One byte: the source must have what the destination expects; `write` counts it as written. */
static void move_byte(struct run *run, const struct heft_plan_run *range, uint64_t row, uint64_t at,
                      int write)
{
    const struct world_holder *holder = &run->holders[run->source];
    uint64_t from = range->source_offset_bytes + row * range->source_stride_bytes + at;
    uint64_t to = range->dst_offset_bytes + row * range->dst_stride_bytes + at;
    uint32_t expected;

    CHECK(range->dst_index < WORLD_MAX_MEMORIES);
    CHECK(to < run->memory_bytes[range->dst_index]);
    CHECK(range->source_file < holder->manifest->file_count);
    CHECK(from < holder->file_bytes[range->source_file]);
    expected = run->expected[range->dst_index][to];
    CHECK(expected != 0);
    CHECK(holder->files[range->source_file][from] == expected);
    if (!write)
        return;
    CHECK(run->written[range->dst_index][to] == 0);
    run->written[range->dst_index][to] = 1;
    run->numbers[run->number_count++] = expected;
}

/* Two runs that are one on both sides should have been merged. */
static void check_merged(const struct run *run, const struct heft_plan_run *left,
                         const struct heft_plan_run *right)
{
    CHECK(left->count > 1 || right->count > 1 || left->source_file != right->source_file ||
          left->dst_index != right->dst_index ||
          left->source_offset_bytes + left->length_bytes != right->source_offset_bytes ||
          left->dst_offset_bytes + left->length_bytes != right->dst_offset_bytes);
}

/* A chunk is one extent of its first source: one file, behind the chunk before, and small gaps. */
static void check_extent(struct run *run, const struct heft_plan_run *runs, size_t count)
{
    uint64_t reach = runs[0].source_offset_bytes, end;
    size_t index;

    CHECK(run->source > run->last_source ||
          (run->source == run->last_source &&
           (runs[0].source_file > run->last_file ||
            (runs[0].source_file == run->last_file && runs[0].source_offset_bytes >= run->last_offset))));
    run->last_source = run->source;
    run->last_file = runs[0].source_file;
    run->last_offset = runs[0].source_offset_bytes;
    for (index = 0; index < count; index++) {
        CHECK(runs[index].source_file == runs[0].source_file);
        /* The rows of one large box may lie farther apart. */
        CHECK(run->world->tensors[0].bytes > 65536 || runs[index].source_offset_bytes <= reach + 65536);
        end = runs[index].source_offset_bytes + (runs[index].count - 1) * runs[index].source_stride_bytes +
              runs[index].length_bytes;
        reach = end > reach ? end : reach;
    }
}

static void run_chunk(struct run *run, int write, int first)
{
    const struct heft_chunk *chunk = &run->plan->chunks[run->chunk];
    size_t count = heft_plan_runs(run->plan, run->chunk, run->source, NULL, 0), index;
    struct heft_plan_run *runs = malloc((count + 1) * sizeof(*runs)), guard;
    uint64_t bytes = 0, row, at;

    assert_non_null(runs);
    CHECK(count > 0);
    memset(runs, 0xa5, (count + 1) * sizeof(*runs));
    memset(&guard, 0xa5, sizeof(guard));
    CHECK(heft_plan_runs(run->plan, run->chunk, run->source, runs, count / 2) == count);
    CHECK(memcmp(&runs[count / 2], &guard, sizeof(guard)) == 0);
    CHECK(heft_plan_runs(run->plan, run->chunk, run->source, runs, count) == count);
    CHECK(memcmp(&runs[count], &guard, sizeof(guard)) == 0);
    for (index = 0; index < count; index++) {
        CHECK(runs[index].count > 0 && runs[index].length_bytes > 0);
        if (index > 0)
            check_merged(run, &runs[index - 1], &runs[index]);
        bytes += runs[index].count * runs[index].length_bytes;
        CHECK(bytes <= chunk->size_bytes);
        for (row = 0; row < runs[index].count; row++)
            for (at = 0; at < runs[index].length_bytes; at++)
                move_byte(run, &runs[index], row, at, write);
    }
    CHECK(bytes == chunk->size_bytes);
    if (first)
        check_extent(run, runs, count);
    free(runs);
}

/* The blocks of a piece are there, at the place that is told, once the piece's chunk has arrived. */
static void check_blocks(const struct run *run, uint64_t piece, uint8_t *seen)
{
    const struct heft_layout *layout = run->plan->layout;
    struct heft_piece_blocks blocks;
    const struct world_tensor *tensor;
    struct world_box box;
    uint64_t at, begin;

    heft_plan_piece_blocks(run->plan, piece, &blocks);
    CHECK(blocks.layout_tensor < layout->tensor_count);
    CHECK(blocks.dst_index == layout->tensors[blocks.layout_tensor].dst_index);
    if (blocks.count == 0)
        return;
    tensor = world_wanted(run->world, layout, blocks.layout_tensor, &box);
    begin = blocks.first * HEFT_BLOCK_BYTES;
    CHECK(begin < tensor->bytes);
    CHECK(blocks.size_bytes <= run->plan->pieces[piece].size_bytes);
    CHECK(heft_block_count(begin + blocks.size_bytes) == blocks.first + blocks.count);
    CHECK(begin + blocks.size_bytes == tensor->bytes || blocks.size_bytes % HEFT_BLOCK_BYTES == 0);
    CHECK(blocks.dst_offset_bytes + blocks.size_bytes <= run->memory_bytes[blocks.dst_index]);
    for (at = 0; at < blocks.size_bytes; at++) {
        CHECK(run->expected[blocks.dst_index][blocks.dst_offset_bytes + at] ==
              tensor->first_number + begin + at);
        CHECK(run->written[blocks.dst_index][blocks.dst_offset_bytes + at]);
        CHECK((seen[blocks.dst_offset_bytes + at] >> blocks.dst_index & 1) == 0);
        seen[blocks.dst_offset_bytes + at] |= (uint8_t)(1u << blocks.dst_index);
    }
}

/* A complete source that is not offered lacks at least one byte of the chunk. */
static void check_not_offered(const struct run *run)
{
    const uint8_t *has = run->holders[run->source].has;
    uint64_t index;

    if (run->holders[run->source].partial)
        return;
    for (index = 0; index < run->number_count; index++)
        if (!has[run->numbers[index]])
            break;
    CHECK(index < run->number_count);
}

static void check_chunk(struct run *run, struct world_random *random, uint8_t *seen)
{
    const struct heft_chunk *chunk = &run->plan->chunks[run->chunk];
    uint64_t pieces_bytes = 0, piece;
    uint32_t chosen, offered = (uint32_t)__builtin_popcountll(chunk->sources), count = 0;

    CHECK(offered > 0 && chunk->sources >> (run->holder_count - 1) <= 1);
    CHECK(chunk->piece_count > 0 && chunk->piece_count <= 4096);
    CHECK(chunk->size_bytes > 0 && chunk->size_bytes <= run->chunk_bytes);
    for (piece = chunk->first_piece; piece < chunk->first_piece + chunk->piece_count; piece++)
        pieces_bytes += run->plan->pieces[piece].size_bytes;
    CHECK(pieces_bytes == chunk->size_bytes);
    chosen = (uint32_t)world_below(random, offered);
    run->number_count = 0;
    for (run->source = 0; run->source < run->holder_count; run->source++) {
        if (!(chunk->sources >> run->source & 1))
            continue;
        run_chunk(run, count == chosen, count == 0);
        count++;
    }
    CHECK(run->number_count == chunk->size_bytes);
    for (run->source = 0; run->source < run->holder_count; run->source++)
        if (!(chunk->sources >> run->source & 1))
            check_not_offered(run);
    for (piece = chunk->first_piece; piece < chunk->first_piece + chunk->piece_count; piece++)
        check_blocks(run, piece, seen);
}

void world_check(const struct world *world, struct world_random *random, uint64_t seed,
                 const struct heft_plan *plan, const struct world_holder *holders, uint32_t holder_count,
                 uint64_t chunk_bytes)
{
    struct run state = {.world = world,
                        .plan = plan,
                        .holders = holders,
                        .holder_count = holder_count,
                        .seed = seed,
                        .chunk_bytes = chunk_bytes},
               *run = &state;
    uint64_t next_piece = 0, longest = 0, at;
    uint32_t memory;
    uint8_t *seen;

    make_memories(run);
    for (memory = 0; memory < WORLD_MAX_MEMORIES; memory++)
        longest = run->memory_bytes[memory] > longest ? run->memory_bytes[memory] : longest;
    seen = calloc(longest + 1, 1);
    run->numbers = malloc((chunk_bytes + 1) * sizeof(uint32_t));
    assert_non_null(seen);
    assert_non_null(run->numbers);
    CHECK(plan->total_bytes == plan->layout->wanted_bytes);
    CHECK(plan->source_count == holder_count);
    for (run->chunk = 0; run->chunk < plan->chunk_count; run->chunk++) {
        CHECK(plan->chunks[run->chunk].first_piece == next_piece);
        next_piece += plan->chunks[run->chunk].piece_count;
        CHECK(next_piece <= plan->piece_count);
        check_chunk(run, random, seen);
    }
    CHECK(next_piece == plan->piece_count);
    for (memory = 0; memory < WORLD_MAX_MEMORIES; memory++) {
        for (at = 0; at < run->memory_bytes[memory]; at++)
            CHECK(run->written[memory][at] == (run->expected[memory][at] != 0));
        free(run->expected[memory]);
        free(run->written[memory]);
    }
    free(run->numbers);
    free(seen);
}
