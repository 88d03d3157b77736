/* SPDX-License-Identifier: Apache-2.0 */
/* What may be shown to people, and that log lines hold nothing else. */
#include "base/log.h"
#include "base/text.h"
#include <heft/heft.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void characters_of_every_length_are_shown(void **state)
{
    (void)state;
    assert_int_equal(heft_text_plain("a"), 1);
    assert_int_equal(heft_text_plain("\xc3\xa4"), 2);         /* a umlaut */
    assert_int_equal(heft_text_plain("\xe6\xa8\xa1"), 3);     /* a Chinese one */
    assert_int_equal(heft_text_plain("\xf0\x9f\x9a\x80"), 4); /* a rocket */
}

static void what_a_terminal_would_obey_is_not_shown(void **state)
{
    static const char *const bad[] = {"\x1b[2J",
                                      "\n",
                                      "\r",
                                      "\x7f",
                                      ("\xc2\x9b" /* two texts: "b3" would be hexadecimal */
                                       "31m"),
                                      "\x9b",
                                      "\xe2\x80\xae",
                                      "\xe2\x81\xa6",
                                      "\xe2\x80\xa8",
                                      "\xef\xbb\xbf",
                                      "\xe2\x80\x8f"};
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(bad) / sizeof(bad[0]); index++)
        assert_int_equal(heft_text_plain(bad[index]), 0);
}

static void what_is_no_utf8_is_not_shown(void **state)
{
    static const char *const bad[] = {
        "\x80", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80",
        "\xc3", "\xe6\xa8", "\xc3(",        "\xff"};
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(bad) / sizeof(bad[0]); index++)
        assert_int_equal(heft_text_plain(bad[index]), 0);
}

static char seen[64];

static void keep(enum heft_log_level level, const char *line, void *context)
{
    (void)level;
    (void)context;
    strncpy(seen, line, sizeof(seen) - 1);
}

static void a_log_line_is_one_line_whatever_is_named_in_it(void **state)
{
    (void)state;
    heft_set_log_sink(keep, NULL, HEFT_LOG_INFO);
    heft_log(HEFT_LOG_INFO, "peer '%s' came", "a\x1b]0;x\a\nb\xc2\x9b\xc3\xa4");
    heft_set_log_sink(NULL, NULL, HEFT_LOG_INFO);
    assert_string_equal(seen, "peer 'a.]0;x..b..\xc3\xa4' came");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_of_every_length_are_shown),
        cmocka_unit_test(what_a_terminal_would_obey_is_not_shown),
        cmocka_unit_test(what_is_no_utf8_is_not_shown),
        cmocka_unit_test(a_log_line_is_one_line_whatever_is_named_in_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
