/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void what_is_written_is_read_back(void **state)
{
    struct heft_buf buf;
    struct heft_reader reader;
    size_t size = 0;
    const char *text;

    (void)state;
    heft_buf_init(&buf, 1 << 20);
    heft_buf_u8(&buf, 1);
    heft_buf_u16(&buf, 0x0203);
    heft_buf_u32(&buf, 0x04050607);
    heft_buf_u64(&buf, 0x08090a0b0c0d0e0f);
    heft_buf_string(&buf, "abc", 3);
    heft_buf_printf(&buf, "%d-%s", 7, "x");
    assert_int_equal(buf.failed, 0);
    assert_memory_equal(buf.data + 1, "\x03\x02", 2);
    heft_reader_init(&reader, buf.data, buf.size);
    assert_int_equal(heft_reader_u8(&reader), 1);
    assert_int_equal(heft_reader_u16(&reader), 0x0203);
    assert_int_equal(heft_reader_u32(&reader), 0x04050607);
    assert_true(heft_reader_u64(&reader) == UINT64_C(0x08090a0b0c0d0e0f));
    text = heft_reader_string(&reader, 3, &size);
    assert_int_equal(size, 3);
    assert_memory_equal(text, "abc", 3);
    assert_int_equal(heft_reader_left(&reader), 3);
    assert_memory_equal(heft_reader_bytes(&reader, 3), "7-x", 3);
    heft_buf_free(&buf);
}

static void reading_past_the_end_fails_for_good(void **state)
{
    uint8_t bytes[5] = {255, 255, 255, 255, 'a'};
    struct heft_reader reader;
    size_t size = 0;

    (void)state;
    heft_reader_init(&reader, bytes, sizeof(bytes));
    assert_null(heft_reader_string(&reader, 1 << 20, &size));
    assert_true(reader.failed);
    assert_int_equal(heft_reader_u8(&reader), 0);
    assert_int_equal(heft_reader_left(&reader), 0);
    heft_reader_init(&reader, NULL, 0);
    assert_int_equal(heft_reader_u64(&reader), 0);
    assert_true(reader.failed);
}

static void a_writer_never_passes_its_limit(void **state)
{
    struct heft_buf buf;

    (void)state;
    heft_buf_init(&buf, 10);
    heft_buf_u64(&buf, 1);
    heft_buf_u32(&buf, 1);
    assert_int_equal(buf.failed, HEFT_ERR_TOO_LARGE);
    assert_int_equal(buf.size, 8);
    heft_buf_u8(&buf, 1);
    assert_int_equal(buf.size, 8);
    heft_buf_free(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(reading_past_the_end_fails_for_good),
        cmocka_unit_test(a_writer_never_passes_its_limit),
    };
    return cmocka_run_group_tests_name("buf", tests, NULL, NULL);
}
