/* SPDX-License-Identifier: Apache-2.0 */
#include "load/ranges.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

static uint8_t memory[16384];

static void neighbours_share_a_range_and_strangers_do_not(void **state)
{
    struct heft_range_piece pieces[] = {
        {memory + 8000, 100, 0, 0}, /* alone */
        {memory + 100, 100, 0, 0},  /* touches the next */
        {memory + 200, 50, 0, 0},
        {memory + 220, 10, 0, 0},  /* inside it */
        {memory + 300, 100, 0, 0}, /* an alignment gap away */
        {NULL, 0, 0, 0},
    };
    struct heft_range *ranges = NULL;
    uint64_t count = 0, index;

    (void)state;
    assert_int_equal(heft_ranges_make(pieces, 6, &ranges, &count, NULL), 0);
    assert_int_equal(count, 2);
    assert_ptr_equal(ranges[0].address, memory + 100);
    assert_int_equal(ranges[0].size_bytes, 300);
    assert_ptr_equal(ranges[1].address, memory + 8000);
    assert_int_equal(ranges[1].size_bytes, 100);
    assert_true(pieces[5].range == UINT64_MAX);
    for (index = 0; index < 5; index++)
        assert_ptr_equal(ranges[pieces[index].range].address + pieces[index].offset_bytes,
                         pieces[index].address);
    free(ranges);
}

static void random_pieces_lie_in_their_ranges_and_ranges_stay_apart(void **state)
{
    unsigned seed = 7, round;

    (void)state;
    for (round = 0; round < 200; round++) {
        struct heft_range_piece pieces[40];
        struct heft_range *ranges = NULL;
        uint64_t count = 0, index;

        for (index = 0; index < 40; index++) {
            seed = seed * 1103515245u + 12345u;
            pieces[index].address = memory + (seed >> 8) % 15000;
            pieces[index].size_bytes = (seed >> 24) % 9 * 100;
        }
        assert_int_equal(heft_ranges_make(pieces, 40, &ranges, &count, NULL), 0);
        for (index = 0; index < 40; index++) {
            if (pieces[index].size_bytes == 0)
                continue;
            assert_true(pieces[index].range < count);
            assert_ptr_equal(ranges[pieces[index].range].address + pieces[index].offset_bytes,
                             pieces[index].address);
            assert_true(pieces[index].offset_bytes + pieces[index].size_bytes <=
                        ranges[pieces[index].range].size_bytes);
        }
        for (index = 1; index < count; index++)
            assert_true(ranges[index - 1].address + ranges[index - 1].size_bytes + HEFT_RANGE_GAP_BYTES <
                        ranges[index].address);
        free(ranges);
    }
}

static void a_piece_that_wraps_is_refused(void **state)
{
    struct heft_range_piece piece = {memory, UINT64_MAX, 0, 0};
    struct heft_range *ranges = NULL;
    uint64_t count = 0;

    (void)state;
    assert_int_equal(heft_ranges_make(&piece, 1, &ranges, &count, NULL), HEFT_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_share_a_range_and_strangers_do_not),
        cmocka_unit_test(random_pieces_lie_in_their_ranges_and_ranges_stay_apart),
        cmocka_unit_test(a_piece_that_wraps_is_refused),
    };
    return cmocka_run_group_tests_name("ranges", tests, NULL, NULL);
}
