/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the driver without a GPU share. */
#ifndef HEFT_TESTS_GPU_FAKE_H
#define HEFT_TESTS_GPU_FAKE_H

#include "space/cuda.h"

#define DEVICES 2
#define BAD_CONTEXT 201
#define API(name) heft_cu_result name
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

struct heft_cu_context_st {
    int device;
};
extern struct heft_cu_context_st contexts[DEVICES];
/* The contexts that are current on this thread. */
#define STACK 16
extern __thread heft_cu_context stack[STACK];
extern __thread int depth;

/* Of each device. */
size_t fake_total_bytes(void);

#pragma GCC visibility push(default)

/* For tests: how deep this thread's stack of contexts is. */
int fake_cuda_depth(void);

#endif
