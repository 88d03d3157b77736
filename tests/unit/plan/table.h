/* SPDX-License-Identifier: Apache-2.0 */
/* Manifests made in one line a tensor, for tests that look at numbers rather than at bytes. */
#ifndef HEFT_TEST_PLAN_TABLE_H
#define HEFT_TEST_PLAN_TABLE_H

#include "format/manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define SHAPE(...) (const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)

/* An unfinished manifest with one file. */
static inline struct heft_manifest *table_new(uint64_t file_bytes)
{
    struct heft_manifest *manifest = heft_manifest_new();

    assert_non_null(manifest);
    assert_int_equal(heft_manifest_add_file(manifest, "model.safetensors", file_bytes, 0, NULL, NULL), 0);
    return manifest;
}

/* A tensor in file 0; box NULL: whole, else start and size of each dimension, starts first. */
static inline void table_add(struct heft_manifest *manifest, const char *name, uint32_t bits,
                             const uint64_t *shape, size_t rank, const uint64_t *box, uint64_t offset)
{
    struct heft_manifest_tensor tensor = {.name = name,
                                          .name_bytes = (uint32_t)strlen(name),
                                          .dtype = bits == 16  ? "BF16"
                                                   : bits == 8 ? "U8"
                                                   : bits == 4 ? "F4"
                                                               : "Q8_0",
                                          .dtype_bits = bits,
                                          .rank = (uint32_t)rank,
                                          .shape = shape,
                                          .box_start = box,
                                          .box_size = box ? box + rank : NULL,
                                          .offset_bytes = offset};
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t bytes = bits;
    size_t dim;

    for (dim = 0; dim < rank; dim++)
        bytes *= box ? box[rank + dim] : shape[dim];
    tensor.size_bytes = bits == 0 ? 100 : bytes / 8;
    if (heft_manifest_add_tensor(manifest, &tensor, &error))
        fail_msg("%s", error.text);
}

static inline struct heft_manifest *table_finish(struct heft_manifest *manifest)
{
    struct heft_error error = HEFT_ERROR_INIT;

    if (heft_manifest_finish(manifest, &error))
        fail_msg("%s", error.text);
    return manifest;
}

/* The call, which fills `error`, fails with this code, and its sentence has `word` in it. */
#define ASSERT_REFUSED(call, expected, word)                                           \
    do {                                                                               \
        struct heft_error error = HEFT_ERROR_INIT;                                     \
        int answer = (call);                                                           \
        if (answer != (expected) || error.code != answer || !strstr(error.text, word)) \
            fail_msg("%s: %s, %s", #call, heft_error_name(answer), error.text);        \
    } while (0)

#endif
