/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of metadata of version 1: they never change, and later versions go on reading them. Also what
 * version 1 does with the bytes of a later one.
 */
#include "base/digest.h"
#include "wire/metadata.h"

#include <heft/agent.h>
#include <heft/space.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char golden[] =
    "484546544d4554410100010000000000060100000000000001000000080000006465636f64652d300200000010000000"
    "101112131415161718191a1b1c1d1e1f0300000020000000404142434445464748494a4b4c4d4e4f5051525354555657"
    "58595a5b5c5d5e5f040000001e000000756e69783a40686566742d312c7463703a31302e302e302e373a343030300500"
    "000010000000090000000000000004000000000000000600000038000000180000000200000004000000000000000010"
    "000000000000030000000100000009000000000000000000000002000000010000000200000007000000100000000300"
    "000000000000050000000000000063a3bab0af993e19";

static struct heft_buf sample(void)
{
    static uint8_t generation[16], token[32];
    static const uint64_t gone[] = {3, 5};
    struct heft_wire_metadata metadata = {.name = {"decode-0", 8},
                                          .addresses = {"unix:@heft-1,tcp:10.0.0.7:4000", 30},
                                          .generation = generation,
                                          .token = token,
                                          .epoch = 9,
                                          .base = 4,
                                          .region_count = 2};
    struct heft_wire_region one = {.id = 4, .space = HEFT_SPACE_HOST, .flags = 3, .length_bytes = 4096};
    struct heft_wire_region two = {.id = 9, .space = HEFT_SPACE_CUDA, .flags = 1, .length_bytes = 1ull << 33};
    struct heft_buf buf;
    size_t index;

    for (index = 0; index < 16; index++)
        generation[index] = (uint8_t)(0x10 + index);
    for (index = 0; index < 32; index++)
        token[index] = (uint8_t)(0x40 + index);
    heft_buf_init(&buf, 1 << 20);
    heft_wire_put_metadata(&buf, &metadata);
    heft_wire_put_metadata_region(&buf, &one);
    heft_wire_put_metadata_region(&buf, &two);
    assert_int_equal(heft_wire_finish_metadata(&buf, gone, 2), 0);
    return buf;
}

static void the_bytes_of_version_1_stay(void **state)
{
    struct heft_buf buf = sample();
    char text[2048];
    size_t index;

    (void)state;
    assert_true(2 * buf.size < sizeof(text));
    for (index = 0; index < buf.size; index++)
        (void)snprintf(text + 2 * index, 3, "%02x", buf.data[index]);
    assert_string_equal(text, golden);
    heft_buf_free(&buf);
}

static void they_are_read_as_they_were_meant(void **state)
{
    struct heft_wire_metadata metadata;
    struct heft_wire_region region;
    uint8_t bytes[sizeof(golden) / 2];
    unsigned int value;
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(bytes); index++) {
        assert_int_equal(sscanf(golden + 2 * index, "%2x", &value), 1);
        bytes[index] = (uint8_t)value;
    }
    assert_int_equal(heft_wire_get_metadata(bytes, sizeof(bytes), &metadata, NULL), 0);
    assert_int_equal(metadata.version, 1);
    assert_memory_equal(metadata.name.data, "decode-0", 8);
    assert_int_equal(metadata.epoch, 9);
    assert_int_equal(metadata.base, 4);
    assert_int_equal(metadata.region_count, 2);
    assert_int_equal(heft_wire_get_metadata_region(&metadata, 1, &region), 0);
    assert_int_equal(region.id, 9);
    assert_int_equal(region.space, HEFT_SPACE_CUDA);
    assert_true(region.length_bytes == 1ull << 33);
    assert_int_equal(metadata.gone_count, 2);
    assert_int_equal(heft_wire_get_metadata_gone(&metadata, 1), 5);
    assert_int_equal(metadata.token[31], 0x5f);
}

/* Adds a field before the check. */
static void add_field(struct heft_buf *buf, uint16_t tag, uint16_t flags)
{
    buf->size -= 8;
    heft_buf_u16(buf, tag);
    heft_buf_u16(buf, flags);
    heft_buf_u32(buf, 5);
    heft_buf_bytes(buf, "later", 5);
    heft_put_u64(buf->data + 16, buf->size + 8);
    heft_buf_u64(buf, heft_hash64(buf->data, buf->size, 0));
}

static void unknown_fields_are_skipped_unless_they_are_needed(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_wire_metadata metadata;
    struct heft_buf buf = sample();

    (void)state;
    heft_put_u16(buf.data + 8, 3); /* a later writer, which version 1 may read */
    add_field(&buf, 99, 0);
    assert_int_equal(heft_wire_get_metadata(buf.data, buf.size, &metadata, &error), 0);
    assert_int_equal(metadata.version, 3);
    assert_int_equal(metadata.region_count, 2);
    add_field(&buf, 100, HEFT_METADATA_NEEDED);
    assert_int_equal(heft_wire_get_metadata(buf.data, buf.size, &metadata, &error), HEFT_ERR_INCOMPATIBLE);
    assert_non_null(strstr(error.text, "version 3"));
    assert_non_null(strstr(error.text, "version 1"));
    assert_non_null(strstr(error.text, "100"));
    heft_buf_free(&buf);
}

static void a_later_version_that_may_not_be_read_is_refused_with_both(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_wire_metadata metadata;
    struct heft_buf buf = sample();

    (void)state;
    heft_put_u16(buf.data + 8, 7);
    heft_put_u16(buf.data + 10, 5);
    assert_int_equal(heft_wire_get_metadata(buf.data, buf.size, &metadata, &error), HEFT_ERR_INCOMPATIBLE);
    assert_non_null(strstr(error.text, "version 7"));
    assert_non_null(strstr(error.text, "version 5"));
    assert_non_null(strstr(error.text, "version 1"));
    heft_buf_free(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_of_version_1_stay),
        cmocka_unit_test(they_are_read_as_they_were_meant),
        cmocka_unit_test(unknown_fields_are_skipped_unless_they_are_needed),
        cmocka_unit_test(a_later_version_that_may_not_be_read_is_refused_with_both),
    };

    return cmocka_run_group_tests_name("metadata golden", tests, NULL, NULL);
}
