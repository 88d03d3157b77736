/* SPDX-License-Identifier: Apache-2.0 */
#include "load/record_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct heft_record make_record(void)
{
    static const struct heft_identity_pair pairs[] = {{"dtype", "bf16"}, {"quant", "none"}};
    static const struct heft_identity identity = {"org/m", "abc", "processed", "fp1", "tp=0/2", pairs, 2};
    struct heft_record record;

    memset(&record, 0, sizeof(record));
    record.name = strdup("r\xc3\xa9plica");
    record.addresses = strdup("unix:@x");
    memset(&record.generation, 0xab, sizeof(record.generation));
    memset(&record.token, 0xcd, sizeof(record.token));
    record.table_digest = UINT64_C(0xfedcba9876543210);
    record.content_digest = 1;
    record.tensor_count = 3;
    record.total_bytes = (uint64_t)1 << 41;
    record.block_count = 12;
    record.held_blocks = 2;
    record.held = calloc(1, 2);
    record.held[0] = 0x81;
    record.lease_ms = 10000;
    assert_int_equal(heft_record_set_identity(&record, &identity), 0);
    return record;
}

static void a_record_survives_json(void **state)
{
    struct heft_record record = make_record(), got;
    json_t *object = heft_record_to_json(&record, 1);
    char *text = json_dumps(object, 0);

    (void)state;
    json_decref(object);
    object = json_loads(text, 0, NULL);
    assert_int_equal(heft_record_from_json(object, &got, NULL), 0);
    assert_string_equal(got.name, record.name);
    assert_memory_equal(&got.generation, &record.generation, sizeof(got.generation));
    assert_memory_equal(&got.token, &record.token, sizeof(got.token));
    assert_int_equal(heft_identity_compare(&got.identity, &record.identity, NULL), 0);
    assert_true(got.table_digest == record.table_digest && got.content_digest == 1);
    assert_true(got.total_bytes == record.total_bytes && got.held_blocks == 2 && got.block_count == 12);
    assert_memory_equal(got.held, record.held, 2);
    json_decref(object);
    free(text);
    heft_record_free(&got);
    heft_record_free(&record);
}

static void a_token_is_left_out_when_not_asked_for(void **state)
{
    struct heft_record record = make_record();
    json_t *object = heft_record_to_json(&record, 0);
    char *text = json_dumps(object, 0);

    (void)state;
    assert_null(strstr(text, "cdcd"));
    assert_null(strstr(text, "token"));
    json_decref(object);
    free(text);
    heft_record_free(&record);
}

static void an_identity_is_copied_whole_and_may_be_set_again_from_itself(void **state)
{
    struct heft_record record = make_record();
    struct heft_identity empty = {0};

    (void)state;
    assert_int_equal(heft_record_set_identity(&record, &record.identity), 0);
    assert_string_equal(record.identity.pairs[1].key, "quant");
    assert_string_equal(record.identity.rank, "tp=0/2");
    assert_int_equal(heft_record_set_identity(&record, &empty), 0);
    assert_string_equal(record.identity.model, "");
    assert_int_equal(record.identity.pair_count, 0);
    heft_record_free(&record);
    heft_record_free(&record); /* freed records are empty, freeing them again is nothing */
    heft_record_free(NULL);
}

static void what_a_person_writes_by_hand_is_enough(void **state)
{
    json_t *object = json_loads("{\"name\":\"a\",\"addresses\":\"tcp:h:1\",\"comment\":\"rack 7\"}", 0, NULL);
    struct heft_record record;

    (void)state;
    assert_int_equal(heft_record_from_json(object, &record, NULL), 0);
    assert_string_equal(record.addresses, "tcp:h:1");
    assert_string_equal(record.identity.model, "");
    json_decref(object);
    heft_record_free(&record);
}

static void wrong_members_are_named(void **state)
{
    static const struct {
        const char *json, *word;
    } cases[] = {
        {"{}", "name"},
        {"{\"name\":7}", "name"},
        {"{\"name\":\"a\\nb\"}", "name"},
        {"{\"name\":\"a\\u0000b\"}", "name"},
        {"{\"name\":\"a\",\"generation\":\"abc\"}", "generation"},
        {"{\"name\":\"a\",\"token\":\"zz\"}", "token"},
        {"{\"name\":\"a\",\"total_bytes\":-1}", "total_bytes"},
        {"{\"name\":\"a\",\"total_bytes\":1.5}", "total_bytes"},
        {"{\"name\":\"a\",\"table_digest\":\"123\"}", "table_digest"},
        {"{\"name\":\"a\",\"identity\":[]}", "identity"},
        {"{\"name\":\"a\",\"identity\":{\"model\":1}}", "model"},
        {"{\"name\":\"a\",\"identity\":{\"pairs\":{\"k\":1}}}", "pairs"},
        {"{\"name\":\"a\",\"block_count\":8,\"held_blocks\":1,\"held\":\"03\"}", "bitmap"},
        {"{\"name\":\"a\",\"block_count\":4,\"held_blocks\":1,\"held\":\"10\"}", "bitmap"},
        {"{\"name\":\"a\",\"block_count\":4,\"held_blocks\":1}", "which"},
        {"{\"name\":\"a\",\"block_count\":8,\"held_blocks\":1,\"held\":\"1\"}", "held"},
        {"{\"name\":\"a\",\"block_count\":9223372036854775807,\"held_blocks\":1,\"held\":\"01\"}", "limit"},
        {"[]", "object"},
    };
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(cases) / sizeof(cases[0]); index++) {
        json_t *object = json_loads(cases[index].json, JSON_ALLOW_NUL, NULL);
        struct heft_error error = HEFT_ERROR_INIT;
        struct heft_record record;

        assert_non_null(object);
        if (!heft_record_from_json(object, &record, &error) || !strstr(error.text, cases[index].word))
            fail_msg("%s gave '%s'", cases[index].json, error.text);
        json_decref(object);
    }
}

static void text_is_clean_only_as_utf8_without_control_characters(void **state)
{
    (void)state;
    assert_true(heft_text_is_clean("", 10));
    assert_true(heft_text_is_clean("plain ~ text", 12));
    assert_false(heft_text_is_clean("plain ~ text", 11));
    assert_true(heft_text_is_clean("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9));
    assert_false(heft_text_is_clean("a\x01", 10));
    assert_false(heft_text_is_clean("a\x7f", 10));
    assert_false(heft_text_is_clean("\xc2\x85", 10));         /* a control character in two bytes */
    assert_false(heft_text_is_clean("\xc0\xaf", 10));         /* overlong */
    assert_false(heft_text_is_clean("\xe0\x80\xaf", 10));     /* overlong */
    assert_false(heft_text_is_clean("\xed\xa0\x80", 10));     /* a surrogate */
    assert_false(heft_text_is_clean("\xf4\x90\x80\x80", 10)); /* beyond Unicode */
    assert_false(heft_text_is_clean("\xe2\x82", 10));         /* cut */
    assert_false(heft_text_is_clean("\xff", 10));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_survives_json),
        cmocka_unit_test(a_token_is_left_out_when_not_asked_for),
        cmocka_unit_test(an_identity_is_copied_whole_and_may_be_set_again_from_itself),
        cmocka_unit_test(what_a_person_writes_by_hand_is_enough),
        cmocka_unit_test(wrong_members_are_named),
        cmocka_unit_test(text_is_clean_only_as_utf8_without_control_characters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
