/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void every_code_has_a_name_a_text_and_a_class(void **state)
{
    (void)state;
#define CHECK(name, value, text)                           \
    assert_string_equal(heft_error_name(-(value)), #name); \
    assert_true(strlen(heft_error_text(-(value))) > 3);    \
    assert_int_equal(heft_error_class(-(value)), (value) / 100);
    HEFT_ERROR_LIST(CHECK)
#undef CHECK
    assert_string_equal(heft_error_name(-999), "UNKNOWN");
    assert_string_equal(heft_error_name(7), "UNKNOWN");
    assert_int_equal(heft_error_class(0), HEFT_CLASS_NONE);
    assert_int_equal(heft_error_class(-99999), HEFT_CLASS_NONE);
}

static void long_sentences_are_cut_between_characters(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    char text[2 * HEFT_ERROR_TEXT_BYTES];
    size_t index;

    (void)state;
    for (index = 0; index + 2 < sizeof(text); index += 2)
        memcpy(text + index, "\xc3\xa9", 2);
    text[index] = 0;
    heft_error_set(&error, HEFT_ERR_IO, "%s", text);
    assert_true(strlen(error.text) < HEFT_ERROR_TEXT_BYTES);
    assert_int_equal(strlen(error.text) % 2, 0);
    heft_error_set(&error, HEFT_ERR_IO, "x%s", text);
    assert_int_equal(strlen(error.text) % 2, 1);
}

static void prefixes_keep_code_and_sentence(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    assert_int_equal(heft_error_set_errno(&error, ENOSPC, "writing %s", "a"), HEFT_ERR_NO_SPACE);
    assert_int_equal(heft_error_prefix(&error, HEFT_ERR_IO, "saving %d", 7), HEFT_ERR_NO_SPACE);
    assert_string_equal(error.text, "saving 7: writing a: No space left on device");
    assert_int_equal(heft_error_set(NULL, HEFT_ERR_IO, "x"), HEFT_ERR_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_a_name_a_text_and_a_class),
        cmocka_unit_test(long_sentences_are_cut_between_characters),
        cmocka_unit_test(prefixes_keep_code_and_sentence),
    };
    return cmocka_run_group_tests_name("error", tests, NULL, NULL);
}
