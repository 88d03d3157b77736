/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's memory and time on large headers, and what it does when memory ends. Linked with --wrap for
 * malloc. */
#include "base/error.h"
#include "format/safetensors.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

/* ---- the counted heap ---- */

static size_t held, peak;
static long calls, fail_at; /* the fail_at-th call from now returns NULL; 0: none does */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
void __real_free(void *block);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);
void __wrap_free(void *block);

static void *count(void *block)
{
    if (block)
        held += malloc_usable_size(block);
    if (held > peak)
        peak = held;
    return block;
}

static int fails(void)
{
    return ++calls == fail_at;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : count(__real_malloc(size));
}

void *__wrap_calloc(size_t items, size_t size)
{
    return fails() ? NULL : count(__real_calloc(items, size));
}

void *__wrap_realloc(void *block, size_t size)
{
    size_t before = block ? malloc_usable_size(block) : 0;
    void *moved = fails() ? NULL : __real_realloc(block, size);

    if (moved) {
        held -= before;
        (void)count(moved);
    }
    return moved;
}

void __wrap_free(void *block)
{
    if (block)
        held -= malloc_usable_size(block);
    __real_free(block);
}

/* ---- headers ---- */

enum kind {
    OBJECTS,    /* as every writer writes them */
    SHORTEST,   /* the shortest objects that have names of their own */
    SHUFFLED,   /* in another order than the data */
    ONE_NAME,   /* all under one name, but the data's own */
    ARRAYS,     /* ["U8",[],[0,1]]: few bytes an entry */
    DIMENSIONS, /* one tensor of that many dimensions */
    PAIRS       /* metadata of as many short pairs */
};

static int is_plain(enum kind kind)
{
    return kind == OBJECTS || kind == SHORTEST || kind == SHUFFLED;
}

static void append_entry(struct heft_buf *buf, enum kind kind, unsigned long long n,
                         unsigned long long entries)
{
    unsigned long long at = kind == SHUFFLED ? n * 7368787 % entries : n; /* times a prime */

    if (n && kind != DIMENSIONS)
        heft_buf_u8(buf, ',');
    switch (kind) {
    case OBJECTS:
    case SHUFFLED:
        heft_buf_printf(
            buf, "\"l.%llu.e.%llu.w\":{\"dtype\":\"BF16\",\"shape\":[8,%llu],\"data_offsets\":[%llu,%llu]}",
            at / 64, at % 64, 4ULL, at * 64, at * 64 + 64);
        break;
    case SHORTEST:
        heft_buf_printf(buf, "\"%llx\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", n);
        break;
    case ONE_NAME:
        heft_buf_printf(buf, "\"same\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}");
        break;
    case ARRAYS:
        heft_buf_printf(buf, "\"%llx\":[\"U8\",[0],[0,0]]", n);
        break;
    case DIMENSIONS:
        heft_buf_printf(buf, n ? ",1" : "\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":[1");
        break;
    case PAIRS:
        heft_buf_printf(buf, "\"%llx\":\"\"", n);
        break;
    }
}

/* The header's text, and how much data it speaks of. */
static void build(struct heft_buf *buf, enum kind kind, unsigned long long entries, uint64_t *data_bytes_out)
{
    unsigned long long n;

    heft_buf_init(buf, (size_t)1 << 30);
    heft_buf_printf(buf, kind == PAIRS ? "{\"__metadata__\":{" : "{");
    for (n = 0; n < entries; n++)
        append_entry(buf, kind, n, entries);
    heft_buf_printf(buf, kind == PAIRS ? "}}" : kind == DIMENSIONS ? "]}}" : "}");
    assert_int_equal(buf->failed, 0);
    *data_bytes_out = kind == OBJECTS || kind == SHUFFLED ? entries * 64 : (uint64_t)(kind == DIMENSIONS);
}

static double cpu_seconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Parses; the seconds it took. The most memory it had at a time, the header's text left out, is in `peak`. */
static double parse(const struct heft_buf *buf, uint64_t data_bytes, uint64_t tensors)
{
    struct heft_st_header *header = NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    double started = cpu_seconds();
    size_t before = held;
    int rc;

    peak = held;
    rc = heft_st_parse(buf->data, buf->size, 8 + buf->size + data_bytes, NULL, &header, &error);
    started = cpu_seconds() - started;
    if (rc)
        print_message("%s\n", error.text);
    assert_int_equal(rc, 0);
    assert_int_equal(header->tensor_count, tensors);
    heft_st_free(header);
    assert_int_equal(held, before);
    peak -= before;
    return started;
}

/* ---- tests ---- */

static void memory_stays_within_three_times_the_header(void **state)
{
    static const enum kind kinds[] = {OBJECTS, SHORTEST, SHUFFLED, ONE_NAME, ARRAYS, DIMENSIONS, PAIRS};
    static const char *const names[] = {"objects", "shortest",   "shuffled", "one name",
                                        "arrays",  "dimensions", "pairs"};
    const uint64_t entries = 200000;
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(kinds) / sizeof(kinds[0]); index++) {
        enum kind kind = kinds[index];
        uint64_t data_bytes = 0;
        struct heft_buf buf;
        double times;

        build(&buf, kind, entries, &data_bytes);
        (void)parse(&buf, data_bytes, is_plain(kind) || kind == ARRAYS ? entries : (uint64_t)(kind != PAIRS));
        times = (double)(buf.size + peak) / (double)buf.size;
        print_message("%s: %.2f x the header, itself counted\n", names[index], times);
        /* Forms that nobody writes may take more; the bound is in safetensors.h. */
        assert_true(times < (is_plain(kind) ? 3.0 : 5.5));
        heft_buf_free(&buf);
    }
}

static void a_small_header_takes_little(void **state)
{
    uint64_t data_bytes = 0;
    struct heft_buf buf;

    (void)state;
    build(&buf, OBJECTS, 1, &data_bytes);
    (void)parse(&buf, data_bytes, 1);
    assert_true(peak < 4096);
    heft_buf_free(&buf);
}

/* Only a guard against a quadratic step, which would take a hundred times as long: how fast it really is, a
 * benchmark tells. */
static void ten_times_the_entries_take_about_ten_times_as_long(void **state)
{
    static const enum kind kinds[] = {OBJECTS, SHUFFLED, ONE_NAME, ARRAYS, DIMENSIONS, PAIRS};
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(kinds) / sizeof(kinds[0]); index++) {
        enum kind kind = kinds[index];
        double seconds[2] = {1e9, 1e9};
        int size, round;

        for (size = 0; size < 2; size++) {
            uint64_t entries = size ? 200000 : 20000;
            uint64_t data_bytes = 0;
            struct heft_buf buf;

            build(&buf, kind, entries, &data_bytes);
            for (round = 0; round < 3; round++) {
                double took = parse(&buf, data_bytes,
                                    is_plain(kind) || kind == ARRAYS ? entries : (uint64_t)(kind != PAIRS));

                seconds[size] = took < seconds[size] ? took : seconds[size];
            }
            heft_buf_free(&buf);
        }
        print_message("kind %d: %.2f ms, %.2f ms\n", (int)kind, seconds[0] * 1e3, seconds[1] * 1e3);
        assert_true(seconds[1] < 40 * seconds[0] + 0.01);
    }
}

static void every_allocation_may_fail(void **state)
{
    static const char json[] =
        "{\"b\":[\"U8\",[1],[1,2]],\"a\":[\"Q8\",[1],[0,1]],\"long\":[\"U8\",[0,1,1,1,1,1,1,1,1,1],"
        "[0,0]],\"b\":[\"U8\",[1],[1,2]],\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}";
    const struct heft_st_limits limits = {.flags = HEFT_ST_UNKNOWN_DTYPES};
    size_t before = held;
    long nth;
    int reached = 1;

    (void)state;
    for (nth = 1; reached; nth++) {
        struct heft_error error = HEFT_ERROR_INIT;
        struct heft_st_header *header = NULL;
        int rc;

        calls = 0;
        fail_at = nth;
        rc = heft_st_parse(json, sizeof(json) - 1, 8 + sizeof(json) - 1 + 2, &limits, &header, &error);
        fail_at = 0;
        reached = calls >= nth;
        if (rc) {
            assert_true(reached);
            assert_int_equal(rc, HEFT_ERR_NO_MEMORY);
            assert_true(error.text[0]);
            assert_null(header);
        } else { /* none failed, or only one that gives room back */
            assert_int_equal(header->tensor_count, 3);
            heft_st_free(header);
        }
        assert_int_equal(held, before);
    }
    assert_in_range(nth, 10, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_stays_within_three_times_the_header),
        cmocka_unit_test(a_small_header_takes_little),
        cmocka_unit_test(ten_times_the_entries_take_about_ten_times_as_long),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("safetensors_scale", tests, NULL, NULL);
}
