/* SPDX-License-Identifier: Apache-2.0 */
/* Histograms hold what they were given, blocks are told from what only looks like one. */
#include "base/stats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void every_value_lies_in_its_bucket(void **state)
{
    uint64_t value = 0, step;
    uint32_t bucket;

    (void)state;
    for (bucket = 1; bucket < HEFT_STATS_BUCKETS; bucket++)
        assert_true(heft_stats_bucket_most_ns(bucket) > heft_stats_bucket_most_ns(bucket - 1));
    for (step = 1; value < UINT64_C(1) << 43; value += step) {
        bucket = heft_stats_bucket(value);
        assert_true(value <= heft_stats_bucket_most_ns(bucket));
        assert_true(bucket == 0 || value > heft_stats_bucket_most_ns(bucket - 1));
        /* never more than a sixteenth above */
        assert_true(heft_stats_bucket_most_ns(bucket) - value <= value / 16);
        if (value > 4096)
            step = value / 61;
    }
    assert_int_equal(heft_stats_bucket(UINT64_MAX), HEFT_STATS_BUCKETS - 1);
}

static void shares_and_sums_come_out_as_they_went_in(void **state)
{
    struct heft_stats_histogram all = {{0}}, earlier, since, sum = {{0}};
    uint64_t value;

    (void)state;
    assert_int_equal(heft_stats_histogram_at(&all, 0.5), 0);
    for (value = 1; value <= 1000; value++)
        heft_stats_record(&all, value * 1000);
    earlier = all;
    assert_int_equal(heft_stats_histogram_count(&all), 1000);
    assert_in_range(heft_stats_histogram_at(&all, 0.5), 500000, 500000 * 17 / 16 + 1000);
    assert_in_range(heft_stats_histogram_at(&all, 0.99), 990000, 991000 * 17 / 16);
    assert_in_range(heft_stats_histogram_at(&all, 1), 1000000, 1000000 * 17 / 16);
    assert_in_range((uint64_t)heft_stats_histogram_sum_ns(&all), 500500000ul * 31 / 32,
                    500500000ul * 33 / 32);
    assert_in_range(heft_stats_histogram_below(&all, 524287), 490, 525);
    heft_stats_record_locked(&all, 7);
    heft_stats_histogram_since(&all, &earlier, &since);
    assert_int_equal(heft_stats_histogram_count(&since), 1);
    assert_int_equal(heft_stats_histogram_at(&since, 0.5), 7);
    heft_stats_histogram_since(&earlier, &all, &since);
    assert_int_equal(heft_stats_histogram_count(&since), 0);
    heft_stats_histogram_add(&sum, &all);
    heft_stats_histogram_add(&sum, &all);
    assert_int_equal(heft_stats_histogram_count(&sum), 2002);
}

static void every_error_has_a_place_of_its_own(void **state)
{
    static const int some[] = {HEFT_ERR_AGAIN, HEFT_ERR_PEER_LOST, HEFT_ERR_CANCELED, HEFT_ERR_LIBRARY};
    struct heft_stats_head *head = calloc(1, heft_stats_total_bytes(1));
    uint32_t index;

    (void)state;
    assert_non_null(head);
    heft_stats_init(head, NULL, 0);
    for (index = 0; index < sizeof(some) / sizeof(some[0]); index++)
        assert_int_equal(head->error_codes[heft_stats_error_index(some[index])], some[index]);
    for (index = 0; index + 1 < head->error_count; index++)
        assert_int_equal(heft_stats_error_index(head->error_codes[index]), index);
    assert_int_equal(heft_stats_error_index(-12345), head->error_count - 1);
    free(head);
}

static struct heft_stats_head *block(uint64_t *size_out)
{
    static const char *const names[] = {"local", "tcp"};
    struct heft_stats_head *head;

    *size_out = heft_stats_total_bytes(3);
    head = calloc(1, *size_out);
    assert_non_null(head);
    heft_stats_init(head, names, 2);
    memcpy(head->magic, HEFT_STATS_MAGIC, 8);
    return head;
}

static void a_block_cut_anywhere_is_refused(void **state)
{
    uint64_t size, cut;
    struct heft_stats_head *head = block(&size);

    (void)state;
    assert_int_equal(heft_stats_check(head, size, NULL), 0);
    assert_string_equal(heft_stats_routes(head)[1].name, "tcp");
    assert_string_equal(heft_stats_routes(head)[2].name, "none");
    for (cut = 0; cut < size; cut += cut < 64 ? 1 : 61) {
        void *copy = malloc(cut ? cut : 1); /* its end is watched by the sanitizer */

        assert_non_null(copy);
        memcpy(copy, head, cut);
        assert_int_not_equal(heft_stats_check(copy, cut, NULL), 0);
        free(copy);
    }
    free(head);
}

static void another_version_is_named_and_wrong_heads_are_refused(void **state)
{
    uint64_t size;
    struct heft_stats_head *head = block(&size);
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    head->version = 7;
    assert_int_equal(heft_stats_check(head, size, &error), HEFT_ERR_INCOMPATIBLE);
    assert_non_null(strstr(error.text, "version 7"));
    assert_non_null(strstr(error.text, "version 1"));
    head->version = HEFT_STATS_VERSION;
    head->magic[0] = 'h';
    assert_int_equal(heft_stats_check(head, size, NULL), HEFT_ERR_PROTOCOL);
    head->magic[0] = 'H';
    head->route_count = 0x40000000;
    assert_int_equal(heft_stats_check(head, size, NULL), HEFT_ERR_PROTOCOL);
    head->route_count = 3;
    head->error_count = HEFT_STATS_ERRORS_MAX + 1;
    assert_int_equal(heft_stats_check(head, size, NULL), HEFT_ERR_PROTOCOL);
    head->error_count = 1;
    memset(head->name, 'x', sizeof(head->name));
    assert_int_equal(heft_stats_check(head, size, NULL), HEFT_ERR_PROTOCOL);
    head->name[5] = 0;
    memset(heft_stats_routes(head)[2].name, 'x', sizeof(heft_stats_routes(head)[2].name));
    assert_int_equal(heft_stats_check(head, size, NULL), HEFT_ERR_PROTOCOL);
    free(head);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_lies_in_its_bucket),
        cmocka_unit_test(shares_and_sums_come_out_as_they_went_in),
        cmocka_unit_test(every_error_has_a_place_of_its_own),
        cmocka_unit_test(a_block_cut_anywhere_is_refused),
        cmocka_unit_test(another_version_is_named_and_wrong_heads_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
