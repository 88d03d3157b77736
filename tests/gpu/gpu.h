/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of GPU memory share: one line a case, device memory by plain driver calls, patterns. */
#ifndef HEFT_TESTS_GPU_GPU_H
#define HEFT_TESTS_GPU_GPU_H

#include "space/cuda.h"
#include <heft/agent.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the case with the place and the library's sentence. */
#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            (void)printf("    %s:%d: %s: %s\n", __FILE__, __LINE__, #condition, gpu_error.text); \
            (void)fflush(stdout);                                                                \
            gpu_failed = 1;                                                                      \
            return;                                                                              \
        }                                                                                        \
    } while (0)
#define MUST(condition)                                                                          \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            (void)printf("    %s:%d: %s: %s\n", __FILE__, __LINE__, #condition, gpu_error.text); \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

extern struct heft_error gpu_error;
extern int gpu_failed, gpu_is_fake;
extern const struct heft_cu *gpu_cu;

struct gpu_case {
    const char *name;
    void (*run)(void);
    int devices; /* needed; fewer: skipped */
};
/* Runs those whose name begins with `filter` (NULL: all); how many failed. */
int gpu_run(const struct gpu_case *cases, size_t count, const char *filter);

uint64_t gpu_random(uint64_t *state);
void gpu_pattern(void *to, uint64_t seed, uint64_t from_bytes, uint64_t length_bytes);
uint8_t gpu_pattern_byte(uint64_t seed, uint64_t at);
uint64_t gpu_alloc(int device, uint64_t bytes); /* cuMemAlloc */
void gpu_free(int device, uint64_t address);
void gpu_put(int device, uint64_t to, const void *from, uint64_t bytes);
void gpu_get(int device, void *to, uint64_t from, uint64_t bytes);
double gpu_seconds(void);

extern const struct gpu_case gpu_space_cases[], gpu_kernel_cases[], gpu_move_cases[], gpu_peer_cases[],
    gpu_list_cases[], gpu_order_cases[], gpu_raise_cases[];
extern const size_t gpu_space_count, gpu_kernel_count, gpu_move_count, gpu_peer_count, gpu_list_count,
    gpu_order_count, gpu_raise_count;
/* The other process of the peer cases: `--serve DEVICE`. */
int gpu_serve(int argc, char **argv);
extern const char *gpu_program;

#endif
