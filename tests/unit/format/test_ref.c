/* SPDX-License-Identifier: Apache-2.0 */
#include "manifest_helper.h"
#include "format/modeldir.h"

static void every_form_has_one_meaning(void **state)
{
    static const struct {
        const char *text;
        enum heft_ref_kind kind;
        const char *name, *revision;
    } cases[] = {
        {"org/name", HEFT_REF_HUB, "org/name", ""},
        {"org/name@main", HEFT_REF_HUB, "org/name", "main"},
        {"org/name@refs/pr/1", HEFT_REF_HUB, "org/name", "refs/pr/1"},
        {"01-ai/Yi-1.5_x.y", HEFT_REF_HUB, "01-ai/Yi-1.5_x.y", ""},
        {"hf:org/name@0123456789012345678901234567890123456789", HEFT_REF_HUB, "org/name",
         "0123456789012345678901234567890123456789"},
        {"hf://org/name", HEFT_REF_HUB, "org/name", ""},
        {"hf:gpt2", HEFT_REF_HUB, "gpt2", ""},
        {"s3://b/p/", HEFT_REF_S3, "b/p", ""},
        {"s3://bucket", HEFT_REF_S3, "bucket", ""},
        {"S3://b/p@q", HEFT_REF_S3, "b/p@q", ""},
        {"gs://b/p", HEFT_REF_GCS, "b/p", ""},
        {"az://c/p", HEFT_REF_AZURE, "c/p", ""},
        {"https://host/a/b", HEFT_REF_HTTP, "https://host/a/b", ""},
        {"http://host:80/", HEFT_REF_HTTP, "http://host:80/", ""},
        {"/abs", HEFT_REF_PATH, "/abs", ""},
        {"/abs/with space@2/x", HEFT_REF_PATH, "/abs/with space@2/x", ""},
        {"./rel", HEFT_REF_PATH, "./rel", ""},
        {"../rel", HEFT_REF_PATH, "../rel", ""},
        {".", HEFT_REF_PATH, ".", ""},
        {"..", HEFT_REF_PATH, "..", ""},
    };
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_ref ref;
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(cases) / sizeof(cases[0]); index++) {
        assert_ok(heft_ref_parse(cases[index].text, &ref, &error), error);
        assert_int_equal(ref.kind, cases[index].kind);
        assert_string_equal(ref.name, cases[index].name);
        assert_string_equal(ref.revision, cases[index].revision);
    }
}

static void what_has_no_meaning_is_an_error_and_never_a_guess(void **state)
{
    static const char *const texts[] = {
        "",
        "C:\\x",
        "C:/x",
        "hf://",
        "hf:",
        "hf:@main",
        "org",
        "org/",
        "/ ",
        " org/name",
        "org/name ",
        "org/na me",
        "org/name@",
        "org/name@a b",
        "a/b/c",
        "org/../x",
        "org/..",
        "-org/name",
        "org/name@../x",
        "org/name@/x",
        "org/name@a@b",
        "ftp://x/y",
        "file:///x",
        "s3:/b",
        "s3://",
        "s3:///p",
        "s3://b/a b",
        "http://",
        "~/models",
        "org/na\nme",
        "/abs\n",
        "models--a/b",
        "org/n\xc3\xa9",
        "org\\name",
        "oci://r/n",
        ".hidden/x",
        "org/a..b",
        "rel/dir/f",
        "org/name/",
        "https:///x",
        "gs:bucket/p",
        "org/name@-\\x",
    };
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_ref ref = {.kind = HEFT_REF_AZURE};
    char *large = calloc(1, 5000);
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(texts) / sizeof(texts[0]); index++)
        if (heft_ref_parse(texts[index], &ref, &error) != HEFT_ERR_INVALID)
            fail_msg("\"%s\" was accepted", texts[index]);
    assert_code(heft_ref_parse("ftp://x/y", &ref, &error), HEFT_ERR_INVALID, error);
    assert_says(error, "\"ftp:\"");
    assert_says(error, "./path");
    assert_code(heft_ref_parse(NULL, &ref, &error), HEFT_ERR_INVALID, error);
    memset(large, 'x', 4000);
    large[0] = '/';
    assert_code(heft_ref_parse(large, &ref, &error), HEFT_ERR_INVALID, error);
    large[0] = 'x';
    large[90] = '/';
    assert_code(heft_ref_parse(large, &ref, &error), HEFT_ERR_INVALID, error);
    memcpy(large, "s3://", 5);
    assert_code(heft_ref_parse(large, &ref, &error), HEFT_ERR_INVALID, error);
    assert_int_equal(ref.kind, HEFT_REF_AZURE);
    free(large);
}

static void hub_names_become_folders(void **state)
{
    char text[64] = "untouched";

    (void)state;
    assert_int_equal(heft_hub_folder("org/name", text, sizeof(text)), HEFT_OK);
    assert_string_equal(text, "models--org--name");
    assert_int_equal(heft_hub_folder("gpt2", text, sizeof(text)), HEFT_OK);
    assert_string_equal(text, "models--gpt2");
    assert_int_equal(heft_hub_folder("../name", text, sizeof(text)), HEFT_ERR_INVALID);
    assert_int_equal(heft_hub_folder("a--b/c", text, sizeof(text)), HEFT_ERR_INVALID);
    assert_int_equal(heft_hub_folder("org/name", text, 17), HEFT_ERR_TOO_LARGE);
    assert_string_equal(text, "models--gpt2");
}

static void paths_that_leave_or_confuse_are_refused(void **state)
{
    static const char *const good[] = {"a", "a/b.safetensors", "a b", "..a", "a..", "...", "\xc3\xa9/x"};
    static const char *const bad[] = {"",          "/a",   "..",   "../a",  "a/..", "a/../b",
                                      "a/../../b", ".",    "./a",  "a/.",   "a//b", "a/",
                                      "a\nb",      "a\tb", "a\\b", "..\\a", "a\x7f"};
    struct heft_error error = HEFT_ERROR_INIT;
    char large[5000];
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(good) / sizeof(good[0]); index++)
        assert_ok(heft_path_check(good[index], strlen(good[index]), &error), error);
    for (index = 0; index < sizeof(bad) / sizeof(bad[0]); index++)
        if (heft_path_check(bad[index], strlen(bad[index]), &error) != HEFT_ERR_PATH_UNSAFE)
            fail_msg("\"%s\" was accepted", bad[index]);
    assert_code(heft_path_check("a\0b", 3, &error), HEFT_ERR_PATH_UNSAFE, error);
    assert_says(error, "\"a\\x00b\"");
    memset(large, 'x', sizeof(large));
    assert_ok(heft_path_check(large, 255, &error), error);
    assert_code(heft_path_check(large, 256, &error), HEFT_ERR_PATH_UNSAFE, error);
    for (index = 100; index < sizeof(large); index += 100)
        large[index] = '/';
    assert_ok(heft_path_check(large, 4095, &error), error);
    assert_code(heft_path_check(large, 4096, &error), HEFT_ERR_PATH_UNSAFE, error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_has_one_meaning),
        cmocka_unit_test(what_has_no_meaning_is_an_error_and_never_a_guess),
        cmocka_unit_test(hub_names_become_folders),
        cmocka_unit_test(paths_that_leave_or_confuse_are_refused),
    };
    return cmocka_run_group_tests_name("ref", tests, NULL, NULL);
}
