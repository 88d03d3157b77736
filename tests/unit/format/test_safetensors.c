/* SPDX-License-Identifier: Apache-2.0 */
/* The reader: one test for each code, and what a parsed header says. */
#include "base/error.h"
#include "format/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define BYTE "\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]"

static struct heft_error last;

/* Parses `size` bytes in a block of their own, so that a sanitizer sees every step outside. */
static struct heft_st_header *parse_bytes(const char *json, size_t size, uint64_t data_bytes, uint32_t flags,
                                          int expected)
{
    const struct heft_st_limits limits = {.flags = flags};
    struct heft_st_header *header = NULL;
    char *copy = malloc(size ? size : 1);
    int rc;

    assert_non_null(copy);
    memcpy(copy, json, size);
    last = (struct heft_error)HEFT_ERROR_INIT;
    rc = heft_st_parse(copy, size, 8 + size + data_bytes, &limits, &header, &last);
    free(copy);
    if (rc != expected)
        print_message("%.100s: %s, \"%s\"\n", json, heft_error_name(rc), last.text);
    assert_int_equal(rc, expected);
    assert_int_equal(last.code, expected);
    assert_int_equal(rc != 0, header == NULL);
    return header;
}

static struct heft_st_header *parse(const char *json, uint64_t data_bytes)
{
    return parse_bytes(json, strlen(json), data_bytes, 0, HEFT_OK);
}

static void refuses(const char *json, uint64_t data_bytes, int code, const char *words)
{
    assert_null(parse_bytes(json, strlen(json), data_bytes, 0, code));
    if (!strstr(last.text, words))
        print_message("\"%s\" lacks \"%s\"\n", last.text, words);
    assert_non_null(strstr(last.text, words));
}

/* ---- the frame ---- */

static int length_of(const char *prefix, size_t prefix_bytes, uint64_t file_bytes, uint64_t limit,
                     uint64_t *bytes_out)
{
    const struct heft_st_limits limits = {.header_limit_bytes = limit};

    last = (struct heft_error)HEFT_ERROR_INIT;
    return heft_st_header_length(prefix, prefix_bytes, file_bytes, &limits, bytes_out, &last);
}

static void the_length_field_is_checked_before_anything_is_read(void **state)
{
    uint64_t bytes = 77;

    (void)state;
    assert_int_equal(length_of("", 0, 0, 0, &bytes), HEFT_ERR_HEADER_TOO_SMALL);
    assert_int_equal(length_of("1234567", 7, 7, 0, &bytes), HEFT_ERR_HEADER_TOO_SMALL);
    assert_int_equal(length_of("\3\0\0\0\0\0\0\0{}", 10, 10, 0, &bytes), HEFT_ERR_HEADER_LENGTH);
    assert_int_equal(length_of("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, 10, 0, &bytes),
                     HEFT_ERR_HEADER_TOO_LARGE);
    assert_int_equal(length_of("\0\0\0\0\0\0\0\x80{}", 10, UINT64_MAX, UINT64_MAX, &bytes),
                     HEFT_ERR_HEADER_TOO_LARGE);
    assert_int_equal(length_of("\1\2\3", 3, 100, 0, &bytes), HEFT_ERR_INVALID);
    assert_int_equal(bytes, 77);
    assert_int_equal(length_of("\2\0\0\0\0\0\0\0{}", 10, 10, 0, &bytes), HEFT_OK);
    assert_int_equal(bytes, 2);
}

static void the_header_limit_is_a_hundred_million_or_what_the_caller_says(void **state)
{
    uint64_t bytes = 0;

    (void)state;
    assert_int_equal(length_of("\x00\xe1\xf5\x05\0\0\0\0", 8, 100000008, 0, &bytes), HEFT_OK);
    assert_int_equal(bytes, 100000000);
    assert_int_equal(length_of("\x01\xe1\xf5\x05\0\0\0\0", 8, 100000009, 0, &bytes),
                     HEFT_ERR_HEADER_TOO_LARGE);
    assert_non_null(strstr(last.text, "header_limit_bytes"));
    assert_int_equal(length_of("\x01\xe1\xf5\x05\0\0\0\0", 8, 100000009, 200000000, &bytes), HEFT_OK);
    assert_int_equal(length_of("\x10\0\0\0\0\0\0\0", 8, 100, 15, &bytes), HEFT_ERR_HEADER_TOO_LARGE);
}

static void a_parse_checks_the_frame_too(void **state)
{
    const struct heft_st_limits small = {.header_limit_bytes = 1};
    struct heft_st_header *header = NULL;

    (void)state;
    assert_int_equal(heft_st_parse("{}", 2, 9, NULL, &header, NULL), HEFT_ERR_HEADER_LENGTH);
    assert_int_equal(heft_st_parse("{}", 2, 0, NULL, &header, NULL), HEFT_ERR_HEADER_LENGTH);
    assert_int_equal(heft_st_parse("{}", 2, 10, &small, &header, NULL), HEFT_ERR_HEADER_TOO_LARGE);
    assert_null(header);
}

static void a_git_lfs_pointer_is_called_by_its_name(void **state)
{
    static const char *const line_ends[] = {"\n", "\r\n"};
    char pointer[256];
    uint64_t bytes = 0;
    size_t index;

    (void)state;
    for (index = 0; index < 2; index++) {
        const char *end = line_ends[index];
        int size = snprintf(pointer, sizeof(pointer), "version https://git-lfs.github.com/spec/v1%s%s%s%s%s",
                            end, "oid sha256:4d7a214614ab2935c943f9e0ff69d22e", end, "size 4976698672", end);

        assert_int_equal(length_of(pointer, (size_t)size, (uint64_t)size, 0, &bytes), HEFT_ERR_LFS_POINTER);
        assert_non_null(strstr(last.text, "oid \"sha256:4d7a214614ab2935c943f9e0ff69d22e\""));
        assert_non_null(strstr(last.text, "\"4976698672\" bytes"));
        assert_null(strchr(last.text, '\r'));
    }
    /* Only the first bytes are at hand, or the pointer is cut: the sentence does without oid and size. */
    assert_int_equal(length_of(pointer, 8, 130, 0, &bytes), HEFT_ERR_LFS_POINTER);
    assert_null(strstr(last.text, "oid"));
    assert_int_equal(length_of(pointer, 60, 130, UINT64_MAX, &bytes), HEFT_ERR_LFS_POINTER);
    /* Its lines come from outside. */
    assert_int_equal(length_of("version x\noid \x1b[2J\nsize 1\n", 25, 25, 0, &bytes), HEFT_ERR_LFS_POINTER);
    assert_null(strchr(last.text, '\x1b'));
}

/* ---- one code after the other ---- */

static void bytes_that_are_not_utf8_are_refused_with_their_place(void **state)
{
    static const char *const broken[] = {"\xff",
                                         "\x80",
                                         "\xc3",
                                         "\xc0\x80",
                                         "\xe0\x9f\xbf",
                                         "\xed\xa0\x80",
                                         "\xf0\x8f\x80\x80",
                                         "\xf4\x90\x80\x80",
                                         "\xe2\x82",
                                         "\xf5\x80\x80\x80"};
    char json[160];
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(broken) / sizeof(broken[0]); index++) {
        (void)snprintf(json, sizeof(json), "{\"0123456789012345678901234567890123456789%s\":{" BYTE "}}",
                       broken[index]);
        refuses(json, 1, HEFT_ERR_HEADER_UTF8, "byte 42");
    }
    heft_st_free(parse("{\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf\":{" BYTE "}}", 1));
}

static void text_that_is_not_json_is_refused_with_its_place(void **state)
{
    (void)state;
    refuses("", 0, HEFT_ERR_HEADER_JSON, "byte 0");
    refuses("   ", 0, HEFT_ERR_HEADER_JSON, "ends too early");
    refuses("[]", 0, HEFT_ERR_HEADER_JSON, "object");
    refuses("{} x", 0, HEFT_ERR_HEADER_JSON, "byte 3");
    refuses("{\"a\":{" BYTE "},}", 1, HEFT_ERR_HEADER_JSON, "byte 53");
    refuses("{\"a\":{" BYTE "}", 1, HEFT_ERR_HEADER_JSON, "ends too early");
    refuses("{\"a\" {" BYTE "}}", 1, HEFT_ERR_HEADER_JSON, "colon");
    refuses("{\"a\":{" BYTE ",\"x\":1e309}}", 1, HEFT_ERR_HEADER_JSON, "out of range");
    refuses("{\"a\":{" BYTE ",\"x\":\"\\ud800\"}}", 1, HEFT_ERR_HEADER_JSON, "surrogate");
    refuses("{\"a\":{" BYTE ",\"x\":\"\t\"}}", 1, HEFT_ERR_HEADER_JSON, "control character");
    refuses("{\"a\":{" BYTE ",\"x\":nul}}", 1, HEFT_ERR_HEADER_JSON, "tensor \"a\", byte 56");
}

static void nesting_ends_at_127(void **state)
{
    char json[1024];
    int depth;

    (void)state;
    for (depth = 125; depth <= 126; depth++) {
        char *at = json + snprintf(json, sizeof(json), "{\"a\":{" BYTE ",\"x\":");

        memset(at, '[', (size_t)depth);
        memset(at + depth, ']', (size_t)depth);
        memcpy(at + 2 * depth, "}}", 3);
        if (depth == 125)
            heft_st_free(parse(json, 1));
        else
            refuses(json, 1, HEFT_ERR_HEADER_JSON, "nested too deeply");
    }
}

static void missing_repeated_and_wrong_fields_are_refused_by_name(void **state)
{
    (void)state;
    refuses("{\"w\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, HEFT_ERR_HEADER_FIELD, "without a dtype");
    refuses("{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, HEFT_ERR_HEADER_FIELD, "without a shape");
    refuses("{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, HEFT_ERR_HEADER_FIELD, "without data_offsets");
    refuses("{\"w\":{\"dtype\":\"U8\"," BYTE "}}", 1, HEFT_ERR_HEADER_FIELD, "dtype stands twice");
    refuses("{\"w\":{\"shape\":[]," BYTE "}}", 1, HEFT_ERR_HEADER_FIELD, "shape stands twice");
    refuses("{\"w\":null}", 0, HEFT_ERR_HEADER_FIELD, "tensor \"w\", byte 5");
    refuses("{\"w\":{\"dtype\":8}}", 0, HEFT_ERR_HEADER_FIELD, "dtype must be a string");
    refuses("{\"w\":{\"shape\":[-1]}}", 0, HEFT_ERR_HEADER_FIELD, "byte 15");
    refuses("{\"w\":{\"shape\":[18446744073709551616]}}", 0, HEFT_ERR_HEADER_FIELD, "2^64-1");
    refuses("{\"w\":{\"data_offsets\":[0,1,2]}}", 0, HEFT_ERR_HEADER_FIELD, "two integers");
    refuses("{\"w\":[\"U8\",[1],[0,1],0]}", 1, HEFT_ERR_HEADER_FIELD, "nothing else");
    refuses("{\"__metadata__\":{\"k\":1}}", 0, HEFT_ERR_HEADER_FIELD, "must be a string");
    refuses("{\"__metadata__\":null,\"__metadata__\":{}}", 0, HEFT_ERR_HEADER_FIELD, "stands twice");
}

static void an_unknown_dtype_is_refused_unless_bytes_are_only_moved(void **state)
{
    const char *json = "{\"w\":{\"dtype\":\"Q8_0\",\"shape\":[9],\"data_offsets\":[0,4]}}";
    const char *hole = "{\"w\":{\"dtype\":\"Q8_0\",\"shape\":[9],\"data_offsets\":[1,4]}}";
    const char *nul = "{\"w\":{\"dtype\":\"Q\\u0000\",\"shape\":[9],\"data_offsets\":[0,4]}}";
    struct heft_st_header *header;

    (void)state;
    refuses(json, 4, HEFT_ERR_DTYPE, "tensor \"w\", byte 15 of the header: unknown dtype \"Q8_0\"");
    header = parse_bytes(json, strlen(json), 4, HEFT_ST_UNKNOWN_DTYPES, HEFT_OK);
    assert_string_equal(header->tensors[0].dtype, "Q8_0");
    assert_int_equal(header->tensors[0].dtype_bits, 0);
    assert_int_equal(header->tensors[0].shape[0], 9);
    heft_st_free(header);
    (void)parse_bytes(hole, strlen(hole), 4, HEFT_ST_UNKNOWN_DTYPES, HEFT_ERR_OFFSET_GAP);
    (void)parse_bytes(nul, strlen(nul), 4, HEFT_ST_UNKNOWN_DTYPES, HEFT_ERR_DTYPE);
}

static void holes_overlaps_and_reversed_ranges_are_told_apart(void **state)
{
    (void)state;
    refuses("{\"w\":[\"U8\",[1],[1,2]]}", 2, HEFT_ERR_OFFSET_GAP, "\"w\" (byte 1 of the header) begins at 1");
    refuses("{\"v\":[\"U8\",[1],[0,1]],\"w\":[\"U8\",[1],[3,4]]}", 4, HEFT_ERR_OFFSET_GAP,
            "a hole of 2 bytes before tensor \"w\"");
    refuses("{\"v\":[\"U8\",[2],[0,2]],\"w\":[\"U8\",[2],[1,3]]}", 3, HEFT_ERR_OFFSET_OVERLAP,
            "tensor \"w\" (byte 22 of the header) begins at 1, inside tensor \"v\"");
    refuses("{\"w\":[\"U8\",[1],[1,0]]}", 1, HEFT_ERR_OFFSET_REVERSED, "tensor \"w\"");
    refuses("{\"v\":[\"U8\",[1],[0,1]],\"w\":[\"U8\",[0],[1,0]]}", 1, HEFT_ERR_OFFSET_REVERSED,
            "tensor \"w\"");
}

static void sizes_are_compared_with_shape_and_dtype(void **state)
{
    (void)state;
    refuses("{\"w\":[\"F32\",[2,2],[0,12]]}", 12, HEFT_ERR_SIZE_MISMATCH,
            "shape [2, 2] of F32 takes 16 bytes");
    refuses("{\"w\":[\"U8\",[4294967296,4294967296],[0,1]]}", 1, HEFT_ERR_SHAPE_OVERFLOW, "tensor \"w\"");
    refuses("{\"w\":[\"U8\",[2305843009213693952],[0,1]]}", 1, HEFT_ERR_SHAPE_OVERFLOW, "tensor \"w\"");
    refuses("{\"w\":[\"F4\",[3],[0,2]]}", 2, HEFT_ERR_MISALIGNED, "does not end on a byte");
    /* The product runs from left to right. */
    refuses("{\"w\":[\"U8\",[4294967296,4294967296,0],[0,0]]}", 0, HEFT_ERR_SHAPE_OVERFLOW, "tensor \"w\"");
    heft_st_free(parse("{\"w\":[\"U8\",[0,4294967296,4294967296],[0,0]]}", 0));
}

static void data_must_end_with_the_file(void **state)
{
    const char *json = "{\"w\":{" BYTE "}}";

    (void)state;
    refuses(json, 0, HEFT_ERR_DATA_TRUNCATED, "\"w\"");
    refuses(json, 3, HEFT_ERR_DATA_TRAILING, "2 bytes more");
    refuses("{}", 1, HEFT_ERR_DATA_TRAILING, "1 bytes more");
    heft_st_free(parse_bytes(json, strlen(json), 3, HEFT_ST_TRAILING_DATA, HEFT_OK));
    (void)parse_bytes(json, strlen(json), 0, HEFT_ST_TRAILING_DATA, HEFT_ERR_DATA_TRUNCATED);
}

static void names_in_sentences_are_harmless_and_short(void **state)
{
    char json[2048];
    char name[1025];

    (void)state;
    refuses("{\"a\\u001b[2J\\u202e\":7}", 0, HEFT_ERR_HEADER_FIELD, "\"a\\x1b[2J\\xe2\\x80\\xae\"");
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    (void)snprintf(json, sizeof(json), "{\"%s\":7}", name);
    refuses(json, 0, HEFT_ERR_HEADER_FIELD, "nnn\"..., byte 1028 of the header: a tensor's entry");
}

/* ---- what an accepted header says ---- */

static void a_header_gives_its_tensors_in_the_order_of_the_data(void **state)
{
    struct heft_st_header *header = parse(
        " {\"second\":{\"data_offsets\":[4,28],\"shape\":[2,3],\"x\":[{\"y\":null},1.5e3],\"dtype\":\"F32\"},"
        "\"__metadata__\":{\"format\":\"pt\",\"\\u00e9\":\"\\n\"},"
        "\"e\\u0000mpty\":[\"F16\",[2,0],[4,4]],\"first\":[{\"I8\":null},[4],[0,4]]} ",
        28);

    (void)state;
    assert_int_equal(header->tensor_count, 3);
    assert_int_equal(header->data_bytes, 28);
    assert_int_equal(header->repeated_names, 0);
    assert_string_equal(header->tensors[0].name, "first");
    assert_string_equal(header->tensors[0].dtype, "I8");
    assert_int_equal(header->tensors[0].dtype_bits, 8);
    assert_int_equal(header->tensors[1].name_bytes, 6);
    assert_memory_equal(header->tensors[1].name, "e\0mpty", 7);
    assert_int_equal(header->tensors[1].rank, 2);
    assert_int_equal(header->tensors[1].shape[1], 0);
    assert_int_equal(header->tensors[1].begin, 4);
    assert_string_equal(header->tensors[2].name, "second");
    assert_int_equal(header->tensors[2].header_at, 2);
    assert_int_equal(header->tensors[2].shape[0], 2);
    assert_int_equal(header->tensors[2].shape[1], 3);
    assert_int_equal(header->tensors[2].end, 28);
    assert_int_equal(header->metadata_count, 2);
    assert_string_equal(header->metadata[0].key, "format");
    assert_string_equal(header->metadata[0].value, "pt");
    assert_int_equal(header->metadata[1].key_bytes, 2);
    assert_string_equal(header->metadata[1].key, "\xc3\xa9");
    assert_string_equal(header->metadata[1].value, "\n");
    heft_st_free(header);
}

static void empty_models_are_models(void **state)
{
    static const char *const empty[] = {"{}", "{\"__metadata__\":{}}", "{\"__metadata__\":null}", "\n{ } "};
    struct heft_st_header *header;
    size_t index;

    (void)state;
    for (index = 0; index < 4; index++) {
        header = parse(empty[index], 0);
        assert_int_equal(header->tensor_count, 0);
        assert_int_equal(header->metadata_count, 0);
        heft_st_free(header);
    }
    heft_st_free(NULL);
}

static void the_last_of_a_repeated_name_counts(void **state)
{
    struct heft_st_header *header =
        parse("{\"a\":[\"U8\",[9],[5,14]],\"b\":[\"U8\",[1],[1,2]],\"a\":[\"U8\",[7],[0,7]],"
              "\"\\u0061\":[\"U8\",[1],[0,1]],\"__metadata__\":{\"k\":\"1\",\"l\":\"2\",\"k\":\"3\"}}",
              2);

    (void)state;
    assert_int_equal(header->tensor_count, 2);
    assert_int_equal(header->repeated_names, 1);
    assert_string_equal(header->tensors[0].name, "a");
    assert_int_equal(header->tensors[0].shape[0], 1);
    assert_int_equal(header->metadata_count, 2);
    assert_string_equal(header->metadata[0].value, "2");
    assert_string_equal(header->metadata[1].key, "k");
    assert_string_equal(header->metadata[1].value, "3");
    heft_st_free(header);
    refuses("{\"a\":[\"U8\",[1],[0,1]],\"a\":[\"U8\",[1],[1,2]]}", 2, HEFT_ERR_OFFSET_GAP, "\"a\"");
    refuses("{\"a\":[\"Q8\",[1],[0,1]],\"a\":[\"U8\",[1],[0,1]]}", 1, HEFT_ERR_DTYPE, "\"a\"");
}

/* A header with one tensor of `rank` dimensions: all 1 but the `count` last ones. */
static char *deep_json(int rank, const char *const *tail, int count, uint64_t bytes)
{
    size_t capacity = 2 * (size_t)rank + 1000, used;
    char *json = malloc(capacity);
    int index;

    assert_non_null(json);
    used = (size_t)snprintf(json, capacity, "{\"a\":[\"U8\",[");
    for (index = 0; index < rank; index++)
        used += (size_t)snprintf(json + used, capacity - used, "%s%s", index ? "," : "",
                                 index < rank - count ? "1" : tail[index - rank + count]);
    (void)snprintf(json + used, capacity - used, "],[0,%llu]]}", (unsigned long long)bytes);
    return json;
}

static void long_shapes_lose_their_ones(void **state)
{
    static const char *const tail[] = {"3", "1", "2"};
    static const char *zeros[200], *twos[100];
    struct heft_st_header *header;
    char *json = deep_json(64, tail, 3, 6);
    int index;

    (void)state;
    header = parse(json, 6);
    assert_int_equal(header->tensors[0].rank, 64);
    assert_int_equal(header->tensors[0].shape[0], 1);
    assert_int_equal(header->tensors[0].shape[63], 2);
    heft_st_free(header);
    free(json);

    json = deep_json(5000, tail, 3, 6);
    header = parse(json, 6);
    assert_int_equal(header->tensors[0].rank, 2);
    assert_int_equal(header->tensors[0].shape[0], 3);
    assert_int_equal(header->tensors[0].shape[1], 2);
    heft_st_free(header);
    free(json);

    for (index = 0; index < 200; index++)
        zeros[index] = index ? "9" : "0";
    json = deep_json(300, zeros, 200, 0); /* a zero, then 199 nines: no bytes */
    header = parse(json, 0);
    assert_int_equal(header->tensors[0].rank, 64);
    heft_st_free(header);
    free(json);

    for (index = 0; index < 100; index++)
        twos[index] = index < 99 ? "2" : "0";
    json = deep_json(300, twos, 100, 0); /* past 64 bits before the zero stands there */
    refuses(json, 0, HEFT_ERR_SHAPE_OVERFLOW, "\"a\"");
    free(json);
}

static void every_dtype_of_the_format_has_its_bits(void **state)
{
    static const struct {
        const char *name;
        uint32_t bits;
    } dtypes[] = {{"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},
                  {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},     {"F8_E4M3FNUZ", 8},
                  {"I16", 16}, {"U16", 16},    {"F16", 16},    {"F8_E5M2FNUZ", 8}, {"BF16", 16},
                  {"I32", 32}, {"U32", 32},    {"F32", 32},    {"C64", 64},        {"F64", 64},
                  {"I64", 64}, {"U64", 64},    {"f32", 0},     {"F3", 0},          {"F322", 0},
                  {"", 0}};
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(dtypes) / sizeof(dtypes[0]); index++)
        assert_int_equal(heft_dtype_bits(dtypes[index].name, strlen(dtypes[index].name)), dtypes[index].bits);
    assert_int_equal(heft_dtype_bits("F32xx", 3), 32);
}

static void without_an_error_struct_only_the_code_comes_back(void **state)
{
    struct heft_st_header *header = NULL;

    (void)state;
    assert_int_equal(heft_st_parse("{]", 2, 10, NULL, &header, NULL), HEFT_ERR_HEADER_JSON);
    assert_int_equal(heft_st_parse(NULL, 0, 8, NULL, &header, NULL), HEFT_ERR_HEADER_JSON);
    assert_int_equal(heft_st_parse("{}", 2, 10, NULL, &header, NULL), HEFT_OK);
    heft_st_free(header);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_length_field_is_checked_before_anything_is_read),
        cmocka_unit_test(the_header_limit_is_a_hundred_million_or_what_the_caller_says),
        cmocka_unit_test(a_parse_checks_the_frame_too),
        cmocka_unit_test(a_git_lfs_pointer_is_called_by_its_name),
        cmocka_unit_test(bytes_that_are_not_utf8_are_refused_with_their_place),
        cmocka_unit_test(text_that_is_not_json_is_refused_with_its_place),
        cmocka_unit_test(nesting_ends_at_127),
        cmocka_unit_test(missing_repeated_and_wrong_fields_are_refused_by_name),
        cmocka_unit_test(an_unknown_dtype_is_refused_unless_bytes_are_only_moved),
        cmocka_unit_test(holes_overlaps_and_reversed_ranges_are_told_apart),
        cmocka_unit_test(sizes_are_compared_with_shape_and_dtype),
        cmocka_unit_test(data_must_end_with_the_file),
        cmocka_unit_test(names_in_sentences_are_harmless_and_short),
        cmocka_unit_test(a_header_gives_its_tensors_in_the_order_of_the_data),
        cmocka_unit_test(empty_models_are_models),
        cmocka_unit_test(the_last_of_a_repeated_name_counts),
        cmocka_unit_test(long_shapes_lose_their_ones),
        cmocka_unit_test(every_dtype_of_the_format_has_its_bits),
        cmocka_unit_test(without_an_error_struct_only_the_code_comes_back),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
