/* SPDX-License-Identifier: Apache-2.0 */
#include "manifest_helper.h"
#include "base/buf.h"
#include "format/modeldir.h"

static int parse(const char *json, struct heft_shard_index **index_out, struct heft_error *error)
{
    size_t size = strlen(json);
    char *bytes = malloc(size ? size : 1); /* without a NUL behind it */
    int rc;

    memcpy(bytes, json, size);
    rc = heft_index_parse(bytes, size, index_out, error);
    free(bytes);
    return rc;
}

static void shards_and_tensors_are_sorted(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_shard_index *index = NULL;
    uint64_t first, end;

    (void)state;
    assert_ok(
        parse("{\"metadata\":{\"total_size\":1234,\"x\":[1]},\"weight_map\":{\"c\":\"s2.safetensors\","
              "\"b\":\"sub/s1.safetensors\",\"a\":\"s2.safetensors\",\"\":\"s2.safetensors\"},\"more\":null}",
              &index, &error),
        error);
    assert_int_equal(index->shard_count, 2);
    assert_string_equal(index->shards[0], "s2.safetensors");
    assert_string_equal(index->shards[1], "sub/s1.safetensors");
    assert_int_equal(index->tensor_count, 4);
    assert_string_equal(index->tensor_names[0], "c");
    assert_string_equal(index->tensor_names[1], "a");
    assert_string_equal(index->tensor_names[2], "");
    assert_string_equal(index->tensor_names[3], "b");
    assert_int_equal(index->tensor_name_bytes[3], 1);
    assert_int_equal(index->tensor_shards[2], 0);
    assert_int_equal(index->tensor_shards[3], 1);
    assert_int_equal(index->total_size, 1234);
    heft_index_shard(index, "s2.safetensors", &first, &end);
    assert_int_equal(first, 0);
    assert_int_equal(end, 3);
    heft_index_shard(index, "sub/s1.safetensors", &first, &end);
    assert_int_equal(first, 3);
    assert_int_equal(end, 4);
    heft_index_shard(index, "s3.safetensors", &first, &end);
    assert_true(first == end);
    heft_index_free(index);
    heft_index_free(NULL);
}

static void escaped_names_are_decoded(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_shard_index *index = NULL;
    uint64_t first, end;

    (void)state;
    assert_ok(parse("{\"weight_m\\u0061p\":{\"a\\u0000b\":\"s\\u00e9\",\"a\":\"s\xc3\xa9\",\"a\\/\":\"t\"}}",
                    &index, &error),
              error);
    assert_int_equal(index->shard_count, 2);
    assert_string_equal(index->shards[0], "s\xc3\xa9");
    assert_int_equal(index->tensor_name_bytes[0], 3);
    assert_memory_equal(index->tensor_names[0], "a\0b", 4);
    heft_index_shard(index, "t", &first, &end);
    assert_int_equal(end - first, 1);
    assert_memory_equal(index->tensor_names[first], "a/", 3);
    heft_index_free(index);
    assert_code(parse("{\"weight_map\":{\"a\":\"b\",\"\\u0061\":\"b\"}}", &index, &error),
                HEFT_ERR_INDEX_JSON, error);
    assert_code(parse("{\"weight_map\":{\"a\":\"b\\u0000\"}}", &index, &error), HEFT_ERR_PATH_UNSAFE, error);
}

static void wrong_total_sizes_are_no_reason_to_refuse(void **state)
{
    static const char *const totals[] = {"1.5e3", "-4", "\"7\"", "null", "[]", "99999999999999999999999999",
                                         "1e300"};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_shard_index *index = NULL;
    char json[200];
    size_t at;

    (void)state;
    for (at = 0; at < sizeof(totals) / sizeof(totals[0]); at++) {
        (void)snprintf(json, sizeof(json), "{\"metadata\":{\"total_size\":%s},\"weight_map\":{\"a\":\"b\"}}",
                       totals[at]);
        assert_ok(parse(json, &index, &error), error);
        assert_int_equal(index->total_size, 0);
        heft_index_free(index);
    }
}

static void what_is_no_index_is_refused(void **state)
{
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "null",
                                        "{}",
                                        "{\"weight_map\":[]}",
                                        "{\"weight_map\":{\"a\":1}}",
                                        "{\"weight_map\":{\"a\":null}}",
                                        "{\"weight_map\":{\"a\":\"b\"}} x",
                                        "{\"weight_map\":{\"a\":\"b\",}}",
                                        "\xef\xbb\xbf{\"weight_map\":{}}",
                                        "{\"weight_map\":{\"a\":\"b\",\"a\":\"b\"}}",
                                        "{\"weight_map\":{\"a\":\"b\"},\"weight_map\":{}}",

                                        "{\"weight_map\":{\"\xff\":\"b\"}}"};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_shard_index *index = NULL;
    size_t at;

    (void)state;
    for (at = 0; at < sizeof(texts) / sizeof(texts[0]); at++)
        if (parse(texts[at], &index, &error) != HEFT_ERR_INDEX_JSON)
            fail_msg("\"%s\" was accepted", texts[at]);
    assert_code(parse("{\"weight_map\":{\"a\":\"b\",\n\"a\":\"c\"}}", &index, &error), HEFT_ERR_INDEX_JSON,
                error);
    assert_says(error, "duplicate");
    assert_says(error, "\"a\"");
    assert_code(parse("{\n\"weight_map\":{\n\"a\":7}}", &index, &error), HEFT_ERR_INDEX_JSON, error);
    assert_says(error, "line 3");
    assert_code(
        parse("version https://git-lfs.github.com/spec/v1\r\noid sha256:00\r\nsize 5\r\n", &index, &error),
        HEFT_ERR_LFS_POINTER, error);
    assert_null(index);
}

static void shards_that_leave_the_folder_are_refused(void **state)
{
    static const char *const paths[] = {"../secret.safetensors",
                                        "/etc/passwd",
                                        "a/../../b",
                                        "a\\\\b",
                                        "a\\nb",
                                        "",
                                        ".",
                                        "a//b",
                                        "sub/",
                                        "..\\\\x"};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_shard_index *index = NULL;
    char json[200];
    size_t at;

    (void)state;
    for (at = 0; at < sizeof(paths) / sizeof(paths[0]); at++) {
        (void)snprintf(json, sizeof(json), "{\"weight_map\":{\"w\":\"ok\",\"t\":\"%s\"}}", paths[at]);
        assert_code(parse(json, &index, &error), HEFT_ERR_PATH_UNSAFE, error);
        assert_says(error, "tensor \"t\"");
    }
    assert_null(index);
}

static void two_hundred_thousand_tensors_are_read(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_shard_index *index = NULL;
    struct heft_buf json;
    unsigned at;

    (void)state;
    heft_buf_init(&json, SIZE_MAX);
    heft_buf_printf(&json, "{\"weight_map\":{");
    for (at = 0; at < 200000; at++)
        heft_buf_printf(&json, "%s\"model.layers.%u.experts.%u\":\"model-%05u-of-00100.safetensors\"",
                        at ? "," : "", at % 61, at, at % 100 + 1);
    heft_buf_printf(&json, "}}");
    assert_ok(heft_index_parse(json.data, json.size, &index, &error), error);
    assert_int_equal(index->tensor_count, 200000);
    assert_int_equal(index->shard_count, 100);
    heft_index_free(index);
    heft_buf_free(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_and_tensors_are_sorted),
        cmocka_unit_test(escaped_names_are_decoded),
        cmocka_unit_test(wrong_total_sizes_are_no_reason_to_refuse),
        cmocka_unit_test(what_is_no_index_is_refused),
        cmocka_unit_test(shards_that_leave_the_folder_are_refused),
        cmocka_unit_test(two_hundred_thousand_tensors_are_read),
    };
    return cmocka_run_group_tests_name("index", tests, NULL, NULL);
}
