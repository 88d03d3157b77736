/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a fuzz target defines: it is called with inputs from anywhere, must return 0, keep nothing, and abort
 * when a promise of the code under test is broken (FUZZ_CHECK; sanitizers do the rest).
 */
#ifndef HEFT_FUZZ_H
#define HEFT_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(condition)                                                             \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            (void)fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                      \
        }                                                                                 \
    } while (0)

#endif
