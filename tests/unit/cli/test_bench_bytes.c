/* SPDX-License-Identifier: Apache-2.0 */
/* What heft bench compares with: a byte that is wrong, anywhere, is found where it is. */
#include "cli/bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define SIZE 10000

static void the_pattern_is_the_same_from_every_beginning(void **state)
{
    static uint8_t whole[SIZE], part[SIZE];
    uint64_t offset;

    (void)state;
    bench_fill(whole, 0, SIZE, BENCH_SOURCE_SALT);
    for (offset = 0; offset < 40; offset++) {
        bench_fill(part, offset, SIZE - offset, BENCH_SOURCE_SALT);
        assert_memory_equal(part, whole + offset, SIZE - offset);
        assert_int_equal(bench_differs(whole + offset, offset, SIZE - offset, BENCH_SOURCE_SALT),
                         SIZE - offset);
    }
    assert_true(bench_differs(whole, 0, SIZE, BENCH_CLIENT_SALT) < 8);
    assert_true(bench_differs(whole, 8, SIZE, BENCH_SOURCE_SALT) < 8);
}

static void one_wrong_byte_is_found_where_it_is(void **state)
{
    static uint8_t bytes[SIZE];
    uint64_t at;

    (void)state;
    bench_fill(bytes, 5, SIZE, BENCH_CLIENT_SALT);
    for (at = 0; at < SIZE; at += at < 32 ? 1 : 37) {
        bytes[at] ^= 1;
        assert_int_equal(bench_differs(bytes, 5, SIZE, BENCH_CLIENT_SALT), at);
        bytes[at] ^= 1;
    }
    bytes[SIZE - 1] ^= 0x80;
    assert_int_equal(bench_differs(bytes, 5, SIZE, BENCH_CLIENT_SALT), SIZE - 1);
}

static void spans_of_rows_never_wrap(void **state)
{
    struct bench_case row = {HEFT_OP_READ, BENCH_SHARED, BENCH_SCATTERED, UINT64_C(1) << 30,
                             UINT64_C(1) << 20};

    (void)state;
    assert_int_equal(bench_span(&row), UINT64_C(1) << 51);
    row.batch = UINT64_C(1) << 40;
    assert_true(bench_span(&row) == UINT64_MAX);
    row = (struct bench_case){HEFT_OP_READ, BENCH_SHARED, BENCH_CONTIGUOUS, 7, 3};
    assert_int_equal(bench_span(&row), 4096);
    assert_int_equal(bench_stride(&row), 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pattern_is_the_same_from_every_beginning),
        cmocka_unit_test(one_wrong_byte_is_found_where_it_is),
        cmocka_unit_test(spans_of_rows_never_wrap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
