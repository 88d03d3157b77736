/* SPDX-License-Identifier: Apache-2.0 */
/* Small manifests for tests. */
#ifndef MANIFEST_HELPER_H
#define MANIFEST_HELPER_H

#include "base/error.h"
#include "format/manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define assert_ok(call, error)                                                 \
    do {                                                                       \
        int rc_ = (call);                                                      \
        if (rc_)                                                               \
            fail_msg("%s: %s: %s", #call, heft_error_name(rc_), (error).text); \
    } while (0)

#define assert_code(call, expected, error)                                                       \
    do {                                                                                         \
        int rc_ = (call);                                                                        \
        if (rc_ != (expected))                                                                   \
            fail_msg("%s: %s (\"%s\") instead of %s", #call, heft_error_name(rc_), (error).text, \
                     heft_error_name(expected));                                                 \
    } while (0)

#define assert_says(error, part)                                        \
    do {                                                                \
        if (!strstr((error).text, part))                                \
            fail_msg("\"%s\" does not say \"%s\"", (error).text, part); \
    } while (0)

static inline struct heft_manifest_tensor tensor_of(const char *name, const char *dtype, uint32_t bits,
                                                    uint32_t rank, const uint64_t *shape, uint64_t offset)
{
    struct heft_manifest_tensor tensor = {.name = name,
                                          .name_bytes = (uint32_t)strlen(name),
                                          .dtype = dtype,
                                          .dtype_bits = bits,
                                          .rank = rank,
                                          .shape = shape,
                                          .offset_bytes = offset};
    uint64_t elements = 1;
    uint32_t dim;

    for (dim = 0; dim < rank; dim++)
        elements *= shape[dim];
    tensor.size_bytes = elements * bits / 8;
    return tensor;
}

#endif
