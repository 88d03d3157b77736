/* SPDX-License-Identifier: Apache-2.0 */
/* The writer: what it writes comes back, and what the reader would refuse it refuses. */
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

static const uint64_t square[] = {2, 3};

static struct heft_st_tensor tensor_of(const char *name, const char *dtype, const uint64_t *shape,
                                       uint32_t rank)
{
    return (struct heft_st_tensor){
        .name = name, .name_bytes = (uint32_t)strlen(name), .dtype = dtype, .shape = shape, .rank = rank};
}

static struct heft_st_pair pair_of(const char *key, const char *value)
{
    return (struct heft_st_pair){.key = key,
                                 .value = value,
                                 .key_bytes = (uint32_t)strlen(key),
                                 .value_bytes = (uint32_t)strlen(value)};
}

/* Writes behind some bytes that are there already, checks the frame, and parses the result. */
static struct heft_st_header *round_trip(const struct heft_st_tensor *tensors, uint64_t tensor_count,
                                         const struct heft_st_pair *metadata, uint64_t metadata_count,
                                         uint64_t data_bytes)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_st_header *header = NULL;
    uint64_t header_bytes = 0;
    struct heft_buf buf;

    heft_buf_init(&buf, 1 << 20);
    heft_buf_bytes(&buf, "before", 6);
    assert_int_equal(heft_st_write_header(tensors, tensor_count, metadata, metadata_count, &buf, &error),
                     HEFT_OK);
    assert_memory_equal(buf.data, "before", 6);
    assert_int_equal((buf.size - 6) % 8, 0);
    assert_int_equal(heft_st_header_length(buf.data + 6, buf.size - 6, buf.size - 6 + data_bytes, NULL,
                                           &header_bytes, &error),
                     HEFT_OK);
    assert_int_equal(header_bytes, buf.size - 14);
    assert_int_equal(
        heft_st_parse(buf.data + 14, header_bytes, buf.size - 6 + data_bytes, NULL, &header, &error),
        HEFT_OK);
    heft_buf_free(&buf);
    return header;
}

static void refuses(const struct heft_st_tensor *tensors, uint64_t tensor_count,
                    const struct heft_st_pair *metadata, uint64_t metadata_count, int code)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_buf buf;

    heft_buf_init(&buf, 1 << 20);
    heft_buf_bytes(&buf, "before", 6);
    assert_int_equal(heft_st_write_header(tensors, tensor_count, metadata, metadata_count, &buf, &error),
                     code);
    assert_int_equal(error.code, code);
    assert_true(error.text[0]);
    assert_int_equal(buf.size, 6);
    heft_buf_free(&buf);
}

static void what_is_written_comes_back(void **state)
{
    const struct heft_st_tensor tensors[] = {
        tensor_of("w\"\\\n\x1f/\x7f\xc3\xa9", "F32", square, 2),
        tensor_of("", "U8", NULL, 0),
        tensor_of("none", "BF16", (const uint64_t[]){0, UINT64_MAX}, 2),
        {.name = "a\0b", .name_bytes = 3, .dtype = "F4", .rank = 1, .shape = (const uint64_t[]){4}},
    };
    const struct heft_st_pair metadata[] = {pair_of("format", "pt"), pair_of("", "\t\"quoted\"")};
    struct heft_st_header *header = round_trip(tensors, 4, metadata, 2, 27);
    size_t index;

    (void)state;
    assert_int_equal(header->tensor_count, 4);
    for (index = 0; index < 4; index++) {
        /* "none" has no bytes and comes before or after nothing: the order stays. */
        assert_int_equal(header->tensors[index].name_bytes, tensors[index].name_bytes);
        assert_memory_equal(header->tensors[index].name, tensors[index].name, tensors[index].name_bytes);
        assert_string_equal(header->tensors[index].dtype, tensors[index].dtype);
        assert_int_equal(header->tensors[index].rank, tensors[index].rank);
        assert_memory_equal(header->tensors[index].shape,
                            tensors[index].shape ? tensors[index].shape : square, 8 * tensors[index].rank);
    }
    assert_int_equal(header->tensors[0].end, 24);
    assert_int_equal(header->tensors[1].end, 25);
    assert_int_equal(header->tensors[3].begin, 25);
    assert_int_equal(header->tensors[3].end, 27);
    assert_int_equal(header->metadata_count, 2);
    assert_string_equal(header->metadata[1].value, "\t\"quoted\"");
    heft_st_free(header);
}

static void empty_and_metadata_only_models_come_back(void **state)
{
    const struct heft_st_pair metadata[] = {pair_of("format", "pt")};
    struct heft_st_header *header = round_trip(NULL, 0, NULL, 0, 0);

    (void)state;
    assert_int_equal(header->tensor_count, 0);
    assert_int_equal(header->header_bytes, 8);
    heft_st_free(header);
    header = round_trip(NULL, 0, metadata, 1, 0);
    assert_int_equal(header->tensor_count, 0);
    assert_int_equal(header->metadata_count, 1);
    assert_string_equal(header->metadata[0].value, "pt");
    heft_st_free(header);
}

static void what_the_reader_refuses_is_not_written(void **state)
{
    const uint64_t huge[] = {UINT64_MAX, 2}, odd[] = {3}, bits[] = {UINT64_C(1) << 61};
    const uint64_t most[] = {UINT64_C(1) << 60};
    struct heft_st_tensor tensors[17];
    struct heft_st_pair pairs[] = {pair_of("k", "1"), pair_of("k", "2")};
    char names[17][16];
    int index;

    (void)state;
    tensors[0] = tensor_of("a\xff", "U8", square, 2);
    refuses(tensors, 1, NULL, 0, HEFT_ERR_HEADER_UTF8);
    tensors[0] = tensor_of("\xed\xa0\x80", "U8", square, 2);
    refuses(tensors, 1, NULL, 0, HEFT_ERR_HEADER_UTF8);
    tensors[0] = tensor_of("__metadata__", "U8", square, 2);
    refuses(tensors, 1, NULL, 0, HEFT_ERR_HEADER_FIELD);
    tensors[0] = tensor_of("a", "Q8_0", square, 2);
    refuses(tensors, 1, NULL, 0, HEFT_ERR_DTYPE);
    tensors[0] = tensor_of("a", NULL, square, 2);
    refuses(tensors, 1, NULL, 0, HEFT_ERR_DTYPE);
    tensors[0] = tensor_of("a", "U8", huge, 2);
    refuses(tensors, 1, NULL, 0, HEFT_ERR_SHAPE_OVERFLOW);
    tensors[0] = tensor_of("a", "U8", bits, 1);
    refuses(tensors, 1, NULL, 0, HEFT_ERR_SHAPE_OVERFLOW);
    tensors[0] = tensor_of("a", "F6_E2M3", odd, 1);
    refuses(tensors, 1, NULL, 0, HEFT_ERR_MISALIGNED);
    tensors[0] = tensor_of("a", "U8", NULL, 1);
    refuses(tensors, 1, NULL, 0, HEFT_ERR_INVALID);
    tensors[0] = (struct heft_st_tensor){.dtype = "U8"};
    refuses(tensors, 1, NULL, 0, HEFT_ERR_INVALID);
    tensors[0] = tensors[1] = tensor_of("a", "U8", square, 2);
    refuses(tensors, 2, NULL, 0, HEFT_ERR_HEADER_FIELD);
    refuses(NULL, 0, pairs, 2, HEFT_ERR_HEADER_FIELD);
    pairs[1] = pair_of("\xc0\x80", "");
    refuses(NULL, 0, pairs, 2, HEFT_ERR_HEADER_UTF8);
    pairs[1] = pair_of("l", "\x80");
    refuses(NULL, 0, pairs, 2, HEFT_ERR_HEADER_UTF8);
    for (index = 0; index < 17; index++) { /* each is legal, together they pass 2^64 */
        (void)snprintf(names[index], sizeof(names[index]), "t%d", index);
        tensors[index] = tensor_of(names[index], "U8", most, 1);
    }
    refuses(tensors, 17, NULL, 0, HEFT_ERR_SHAPE_OVERFLOW);
}

static void a_header_over_the_limit_is_not_written(void **state)
{
    const uint32_t value_bytes = 100000000;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_st_pair pair = pair_of("k", "");
    struct heft_buf buf;
    char *value = malloc(value_bytes);

    (void)state;
    assert_non_null(value);
    memset(value, 'v', value_bytes);
    pair.value = value;
    pair.value_bytes = value_bytes;
    heft_buf_init(&buf, SIZE_MAX / 2);
    assert_int_equal(heft_st_write_header(NULL, 0, &pair, 1, &buf, &error), HEFT_ERR_HEADER_TOO_LARGE);
    assert_int_equal(buf.size, 0);
    pair.value_bytes -= 32; /* {"__metadata__":{"k":"..."}} takes 26 more, and stays a multiple of 8 */
    assert_int_equal(heft_st_write_header(NULL, 0, &pair, 1, &buf, &error), HEFT_OK);
    assert_in_range(buf.size - 8, HEFT_ST_HEADER_LIMIT_BYTES - 16, HEFT_ST_HEADER_LIMIT_BYTES);
    heft_buf_free(&buf);
    free(value);
}

static void a_buffer_without_room_fails_the_writer(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_st_tensor tensor = tensor_of("a", "U8", square, 2);
    struct heft_buf buf;

    (void)state;
    heft_buf_init(&buf, 40);
    assert_int_equal(heft_st_write_header(&tensor, 1, NULL, 0, &buf, &error), HEFT_ERR_TOO_LARGE);
    assert_non_null(strstr(error.text, "40 bytes"));
    assert_int_equal(buf.size, 0);
    heft_buf_free(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(empty_and_metadata_only_models_come_back),
        cmocka_unit_test(what_the_reader_refuses_is_not_written),
        cmocka_unit_test(a_header_over_the_limit_is_not_written),
        cmocka_unit_test(a_buffer_without_room_fails_the_writer),
    };
    return cmocka_run_group_tests_name("safetensors_write", tests, NULL, NULL);
}
