/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static const struct heft_config_entry table[] = {
    {"max-host-memory", HEFT_CONFIG_SIZE, "256M", 16 << 20, 0, 0, "SIZE", "staging memory", 1},
    {"deadline", HEFT_CONFIG_DURATION, "10m", 1, 0, 0, "TIME", "when to give up", 1},
    {"source", HEFT_CONFIG_TEXT, "auto", 0, 0, 0, "LIST", "where from", 1},
    {"split", HEFT_CONFIG_CHOICE, "row", 0, 0, "row|column", 0, "how to split", 1},
    {"stay", HEFT_CONFIG_FLAG, 0, 0, 0, 0, 0, "serve afterwards", 1},
    {"http", HEFT_CONFIG_TEXT, 0, 0, 0, 0, "ADDR", "of another program", 2},
    {"ranks", HEFT_CONFIG_NUMBER, "1", 1, 65536, 0, "N", "ranks", 1},
};
#define COUNT (sizeof(table) / sizeof(table[0]))

static void flag_beats_environment_beats_file_beats_default(void **state)
{
    struct heft_config config;
    char *environment[] = {(char[]){"HEFT_MAX_HOST_MEMORY=32M"}, (char[]){"HEFT_SOURCE=file"},
                           (char[]){"HEFT_SOMETHING_ELSE=1"}, (char[]){"PATH=/bin"}, NULL};
    char *argv[] = {(char[]){"heft"},
                    (char[]){"m"},
                    (char[]){"--source=peer"},
                    (char[]){"--stay"},
                    (char[]){"--ranks"},
                    (char[]){"4"},
                    (char[]){"n"},
                    NULL};
    const char *file = "# comment\nmax-host-memory = 64M\n deadline= 5s # why\n\nsource = x\n";
    int positionals = 0;

    (void)state;
    assert_int_equal(heft_config_init(&config, table, COUNT, NULL), 0);
    assert_int_equal(heft_config_number(&config, "max-host-memory"), 256 << 20);
    assert_int_equal(heft_config_arguments(&config, 1, 7, argv, &positionals, NULL), 0);
    assert_int_equal(heft_config_environment(&config, "HEFT_", environment, NULL), 0);
    assert_int_equal(heft_config_file(&config, file, strlen(file), "f", NULL), 0);
    assert_int_equal(heft_config_number(&config, "max-host-memory"), 32 << 20);
    assert_int_equal(heft_config_number(&config, "deadline"), 5000);
    assert_string_equal(heft_config_text(&config, "source"), "peer");
    assert_int_equal(heft_config_origin(&config, "source"), HEFT_ORIGIN_FLAG);
    assert_int_equal(heft_config_origin(&config, "max-host-memory"), HEFT_ORIGIN_ENVIRONMENT);
    assert_int_equal(heft_config_origin(&config, "deadline"), HEFT_ORIGIN_FILE);
    assert_int_equal(heft_config_number(&config, "stay"), 1);
    assert_int_equal(positionals, 2);
    assert_string_equal(argv[1], "m");
    assert_string_equal(argv[2], "n");
    heft_config_free(&config);
}

static void one_bad_flag(const char *flag, const char *value, int code, const char *word)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_config config;
    char first[64], second[64];
    char *argv[] = {(char[]){"heft"}, first, second, NULL};
    int positionals = 0;

    strncpy(first, flag, sizeof(first) - 1);
    first[sizeof(first) - 1] = 0;
    strncpy(second, value ? value : "", sizeof(second) - 1);
    second[sizeof(second) - 1] = 0;
    assert_int_equal(heft_config_init(&config, table, COUNT, NULL), 0);
    assert_int_equal(heft_config_arguments(&config, 1, value ? 3 : 2, argv, &positionals, &error), code);
    if (!strstr(error.text, word))
        fail_msg("'%s' does not mention '%s'", error.text, word);
    heft_config_free(&config);
}

static void wrong_flags_are_errors_that_help(void **state)
{
    (void)state;
    one_bad_flag("--max-host-memroy=1G", NULL, HEFT_ERR_UNKNOWN_OPTION, "did you mean --max-host-memory?");
    one_bad_flag("--sourc3", "x", HEFT_ERR_UNKNOWN_OPTION, "did you mean --source?");
    one_bad_flag("--http", "x", HEFT_ERR_UNKNOWN_OPTION, "unknown option --http");
    one_bad_flag("--zzzzzzzzz", NULL, HEFT_ERR_UNKNOWN_OPTION, "see --help");
    one_bad_flag("-x", NULL, HEFT_ERR_UNKNOWN_OPTION, "-x");
    one_bad_flag("--deadline", NULL, HEFT_ERR_INVALID, "needs a value");
    one_bad_flag("--max-host-memory", "1M", HEFT_ERR_INVALID, "below the least");
    one_bad_flag("--max-host-memory", "-1", HEFT_ERR_INVALID, "size such as");
    one_bad_flag("--ranks", "70000", HEFT_ERR_INVALID, "above the most");
    one_bad_flag("--ranks", "1.5", HEFT_ERR_INVALID, "whole number");
    one_bad_flag("--split", "diagonal", HEFT_ERR_INVALID, "row|column");
    one_bad_flag("--deadline", "10x", HEFT_ERR_INVALID, "30s");
}

static void wrong_lines_name_file_and_line(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_config config;
    const char *unknown = "source = a\nsorce = b\n", *broken = "\n\nsource\n";

    (void)state;
    assert_int_equal(heft_config_init(&config, table, COUNT, NULL), 0);
    assert_int_equal(heft_config_file(&config, unknown, strlen(unknown), "heft.conf", &error),
                     HEFT_ERR_UNKNOWN_OPTION);
    assert_string_equal(error.text, "heft.conf:2: unknown option sorce: did you mean source?");
    assert_int_equal(heft_config_file(&config, broken, strlen(broken), "heft.conf", &error),
                     HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "heft.conf:3"));
    heft_config_free(&config);
}

static void sizes_and_durations(void **state)
{
    static const struct {
        const char *text;
        int rc;
        uint64_t value;
    } sizes[] = {{"0", 0, 0},
                 {"512", 0, 512},
                 {"1K", 0, 1024},
                 {"1.5G", 0, 3ull << 29},
                 {"16MiB", 0, 1 << 24},
                 {"2TB", 0, 2ull << 40},
                 {"64 M", 0, 64 << 20},
                 {"512B", 0, 512},
                 {"", HEFT_ERR_INVALID, 0},
                 {"K", HEFT_ERR_INVALID, 0},
                 {"1X", HEFT_ERR_INVALID, 0},
                 {"1.5", HEFT_ERR_INVALID, 0},
                 {"1e3", HEFT_ERR_INVALID, 0},
                 {"99999999T", HEFT_ERR_INVALID, 0},
                 {"18446744073709551616", HEFT_ERR_INVALID, 0},
                 {"0x10", HEFT_ERR_INVALID, 0}},
      times[] = {{"250ms", 0, 250},
                 {"10s", 0, 10000},
                 {"10", 0, 10000},
                 {"1.5m", 0, 90000},
                 {"2h", 0, 7200000},
                 {"0", 0, 0},
                 {"-1s", HEFT_ERR_INVALID, 0},
                 {"s", HEFT_ERR_INVALID, 0},
                 {"1d", HEFT_ERR_INVALID, 0}};
    size_t index;
    uint64_t value;

    (void)state;
    for (index = 0; index < sizeof(sizes) / sizeof(sizes[0]); index++) {
        value = 0;
        if (heft_parse_size(sizes[index].text, &value) != sizes[index].rc ||
            (sizes[index].rc == 0 && value != sizes[index].value))
            fail_msg("size '%s'", sizes[index].text);
    }
    for (index = 0; index < sizeof(times) / sizeof(times[0]); index++) {
        value = 0;
        if (heft_parse_duration(times[index].text, &value) != times[index].rc ||
            (times[index].rc == 0 && value != times[index].value))
            fail_msg("time '%s'", times[index].text);
    }
}

static void help_and_effective_values_come_from_the_table(void **state)
{
    struct heft_config config;
    struct heft_buf buf;

    (void)state;
    heft_buf_init(&buf, 1 << 16);
    assert_int_equal(heft_config_init(&config, table, COUNT, NULL), 0);
    assert_int_equal(heft_config_set(&config, "source", "peer", HEFT_ORIGIN_FLAG, NULL), 0);
    heft_config_help(&config, 1, &buf);
    heft_config_effective(&config, 1, &buf);
    heft_buf_u8(&buf, 0);
    assert_non_null(strstr((char *)buf.data, "--max-host-memory SIZE"));
    assert_non_null(strstr((char *)buf.data, "(default 256M)"));
    assert_non_null(strstr((char *)buf.data, "# flag"));
    assert_null(strstr((char *)buf.data, "http"));
    heft_buf_free(&buf);
    heft_config_free(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flag_beats_environment_beats_file_beats_default),
        cmocka_unit_test(wrong_flags_are_errors_that_help),
        cmocka_unit_test(wrong_lines_name_file_and_line),
        cmocka_unit_test(sizes_and_durations),
        cmocka_unit_test(help_and_effective_values_come_from_the_table),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
