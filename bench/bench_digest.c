/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block digest on a CPU: bytes per second of one thread for block sizes from 16 KiB to 4 MiB, and what
 * the digests cost in a manifest.
 *
 *   bench_digest [COLD_MIB [ROUNDS]]     by default 1,024 MiB and 9 rounds
 *
 * Hot: 1 MiB that stays in the second-level cache, passed over again and again (a 4 MiB block: 4 MiB).
 * Cold: COLD_MIB from one end to the other. `read` only adds the words up: what the memory allows one thread.
 * `heft` is heft_block_digests, with the block size that is compiled in; it must agree with its row. All
 * sizes are measured in turn in each round, in the thread's own processor time, so that other programs count
 * only through the caches and the memory that they take.
 */
#include "base/buf.h"
#include "base/digest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define FIRST_BYTES ((uint64_t)16 << 10)
#define SIZE_COUNT 9u
#define ROW_COUNT (SIZE_COUNT + 2u) /* the sizes, heft, read */
#define HOT_BYTES ((uint64_t)1 << 20)
#define HOT_PASSES 64u
#define MAX_ROUNDS 64u

struct bench {
    uint8_t *bytes;
    uint64_t *digests;
    uint64_t sink;
    double rates[2][ROW_COUNT][MAX_ROUNDS]; /* hot, cold; GB/s */
};

static double thread_seconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static uint64_t block_bytes(uint32_t row)
{
    return FIRST_BYTES << row;
}

static uint64_t add_words(const uint8_t *bytes, uint64_t size)
{
    uint64_t sums[8] = {0}, at, index;

    for (at = 0; at + sizeof(sums) <= size; at += sizeof(sums))
        for (index = 0; index < 8; index++) {
            uint64_t word;

            memcpy(&word, bytes + at + index * 8, sizeof(word));
            sums[index] += word;
        }
    return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

static void pass(struct bench *bench, uint32_t row, uint64_t size)
{
    uint64_t block, at;

    if (row == SIZE_COUNT + 1) {
        bench->sink += add_words(bench->bytes, size);
        return;
    }
    if (row == SIZE_COUNT) {
        heft_block_digests(bench->bytes, size, bench->digests);
        bench->sink += bench->digests[0];
        return;
    }
    block = block_bytes(row);
    for (at = 0; at < size; at += block)
        bench->sink += bench->digests[at / block] = heft_hash64(bench->bytes + at, block, 0);
}

static void measure(struct bench *bench, uint32_t round, uint64_t cold_bytes)
{
    uint32_t row, index;

    for (row = 0; row < ROW_COUNT; row++) {
        uint64_t hot = row < SIZE_COUNT && block_bytes(row) > HOT_BYTES ? block_bytes(row) : HOT_BYTES;
        double began;

        pass(bench, row, hot);
        began = thread_seconds();
        for (index = 0; index < HOT_PASSES; index++)
            pass(bench, row, hot);
        bench->rates[0][row][round] = (double)(hot * HOT_PASSES) / (thread_seconds() - began) / 1e9;
        began = thread_seconds();
        pass(bench, row, cold_bytes);
        bench->rates[1][row][round] = (double)cold_bytes / (thread_seconds() - began) / 1e9;
    }
}

static int compare_rates(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

static void print_row(struct bench *bench, uint32_t row, uint32_t rounds)
{
    double *hot = bench->rates[0][row], *cold = bench->rates[1][row];

    if (row == SIZE_COUNT + 1)
        (void)printf("read");
    else if (row == SIZE_COUNT)
        (void)printf("heft, %" PRIu64 " KiB", HEFT_BLOCK_BYTES >> 10);
    else
        (void)printf("%" PRIu64 " KiB", block_bytes(row) >> 10);
    qsort(hot, rounds, sizeof(*hot), compare_rates);
    qsort(cold, rounds, sizeof(*cold), compare_rates);
    (void)printf("\t%.1f (%.1f-%.1f)\t%.2f (%.2f-%.2f)", hot[rounds / 2], hot[0], hot[rounds - 1],
                 cold[rounds / 2], cold[0], cold[rounds - 1]);
    if (row < SIZE_COUNT) /* 8 bytes a block and one bit of `held`; 10^12 bytes in tensors far larger than a
                             block */
        (void)printf("\t%.2f", (8.0 + 1.0 / 8) * 1e12 / (double)block_bytes(row) / 1e6);
    (void)printf("\n");
}

/* The rows must be the same function: a block's digest as heft_block_digests makes it. */
static int check(struct bench *bench, uint64_t size)
{
    uint64_t index;

    heft_block_digests(bench->bytes, size, bench->digests);
    for (index = 0; index < heft_block_count(size); index++) {
        uint64_t at = index * HEFT_BLOCK_BYTES;
        uint64_t length = size - at < HEFT_BLOCK_BYTES ? size - at : HEFT_BLOCK_BYTES;

        if (bench->digests[index] != heft_hash64(bench->bytes + at, length, 0))
            return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct bench bench;
    uint64_t cold_mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 1024, cold_bytes, at, state = 1;
    uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 9;
    uint32_t round, row;

    if (argc > 3 || cold_mib < 4 || cold_mib > 65536 || cold_mib % 4 != 0 || rounds < 1 ||
        rounds > MAX_ROUNDS) {
        (void)fprintf(stderr, "usage: bench_digest [COLD_MIB, a multiple of 4 [ROUNDS]]\n");
        return 2;
    }
    cold_bytes = cold_mib << 20;
    bench.bytes = mmap(NULL, cold_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bench.digests = malloc(cold_bytes / FIRST_BYTES * sizeof(uint64_t));
    if (bench.bytes == MAP_FAILED || !bench.digests) {
        (void)fprintf(stderr, "bench_digest: no memory for %" PRIu64 " MiB\n", cold_mib);
        return 1;
    }
    for (at = 0; at < cold_bytes; at += 8) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        heft_put_u64(bench.bytes + at, state ^ state >> 29);
    }
    if (check(&bench, cold_bytes)) {
        (void)fprintf(stderr, "bench_digest: heft_block_digests and heft_hash64 disagree\n");
        return 1;
    }
    for (round = 0; round < rounds; round++)
        measure(&bench, round, cold_bytes);
    (void)printf("block\thot GB/s, median (lowest-highest)\tcold\tmanifest MB per TB\n");
    for (row = 0; row < ROW_COUNT; row++)
        print_row(&bench, row, (uint32_t)rounds);
    (void)printf("# sink %" PRIu64 "\n", bench.sink);
    free(bench.digests);
    (void)munmap(bench.bytes, cold_bytes);
    return 0;
}
