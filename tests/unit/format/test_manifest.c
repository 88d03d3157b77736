/* SPDX-License-Identifier: Apache-2.0 */
#include "manifest_helper.h"
#include "base/clock.h"
#include "base/digest.h"

static const uint64_t four_by_two[] = {4, 2};

static struct heft_manifest *with_file(uint64_t size_bytes)
{
    struct heft_manifest *manifest = heft_manifest_new();
    struct heft_error error = HEFT_ERROR_INIT;

    assert_non_null(manifest);
    assert_ok(heft_manifest_add_file(manifest, "model.safetensors", size_bytes, 0, NULL, &error), error);
    return manifest;
}

static void tensors_are_sorted_numbered_and_found(void **state)
{
    struct heft_manifest *manifest = with_file(3 * HEFT_BLOCK_BYTES);
    struct heft_error error = HEFT_ERROR_INIT;
    const uint64_t big[] = {HEFT_BLOCK_BYTES + 1}, none[] = {7, 0}, small[] = {3};
    struct heft_manifest_tensor tensor;

    (void)state;
    tensor = tensor_of("c", "U8", 8, 1, small, HEFT_BLOCK_BYTES + 1);
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    tensor = tensor_of("b", "F32", 32, 2, none, HEFT_BLOCK_BYTES + 1);
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    tensor = tensor_of("a", "U8", 8, 1, big, 0);
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    assert_ok(heft_manifest_finish(manifest, &error), error);
    assert_string_equal(manifest->tensors[0].name, "a");
    assert_string_equal(manifest->tensors[1].name, "b");
    assert_string_equal(manifest->tensors[2].name, "c");
    assert_int_equal(manifest->tensors[1].first_block, 2);
    assert_int_equal(manifest->tensors[2].first_block, 2);
    assert_int_equal(manifest->block_count, 3);
    assert_int_equal(manifest->total_bytes, HEFT_BLOCK_BYTES + 4);
    assert_int_equal(heft_manifest_find(manifest, "c", 1), 2);
    assert_true(heft_manifest_find(manifest, "d", 1) == UINT64_MAX);
    assert_true(heft_manifest_find(manifest, NULL, 0) == UINT64_MAX);
    assert_string_equal(manifest->identity.stage, "raw");
    assert_code(heft_manifest_finish(manifest, &error), HEFT_ERR_STATE, error);
    assert_code(heft_manifest_add_tensor(manifest, &tensor, &error), HEFT_ERR_STATE, error);
    heft_manifest_free(manifest);
    heft_manifest_free(NULL);
}

static void a_name_that_stands_twice_is_refused_with_both_files(void **state)
{
    struct heft_manifest *manifest = with_file(64);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest_tensor tensor = tensor_of("w\n", "F32", 32, 2, four_by_two, 0);

    (void)state;
    assert_ok(heft_manifest_add_file(manifest, "other.safetensors", 64, 0, &tensor.file, &error), error);
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    tensor.file = 0;
    tensor.offset_bytes = 32;
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    assert_code(heft_manifest_finish(manifest, &error), HEFT_ERR_EXISTS, error);
    assert_says(error, "\"w\\x0a\"");
    assert_says(error, "model.safetensors");
    assert_says(error, "other.safetensors");
    heft_manifest_free(manifest);
}

static void names_with_nuls_and_empty_names_are_names(void **state)
{
    struct heft_manifest *manifest = with_file(64);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest_tensor tensor = tensor_of("", "U8", 8, 0, NULL, 0);
    static const char *const names[] = {"a", "a\0", "a\0\0", "", "a\0b"};
    static const uint32_t sizes[] = {1, 2, 3, 0, 3};
    size_t index;

    (void)state;
    tensor.size_bytes = 1;
    for (index = 0; index < 5; index++) {
        tensor.name = names[index];
        tensor.name_bytes = sizes[index];
        tensor.offset_bytes = index;
        assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    }
    assert_ok(heft_manifest_finish(manifest, &error), error);
    for (index = 0; index < 5; index++)
        assert_int_equal(heft_manifest_find(manifest, names[index], sizes[index]), index);
    heft_manifest_free(manifest);
}

static int try_tensor(struct heft_manifest *manifest, struct heft_manifest_tensor tensor,
                      struct heft_error *error)
{
    return heft_manifest_add_tensor(manifest, &tensor, error);
}

static void numbers_that_disagree_are_refused(void **state)
{
    struct heft_manifest *manifest = with_file(32);
    struct heft_error error = HEFT_ERROR_INIT;
    const struct heft_manifest_tensor good = tensor_of("w", "F32", 32, 2, four_by_two, 0);
    const uint64_t start[] = {1, 0}, size[] = {3, 2}, past[] = {4, 2}, wrap[] = {UINT64_MAX, 2};
    const uint64_t huge[] = {(uint64_t)1 << 33, (uint64_t)1 << 33}, none[] = {0, UINT64_MAX, UINT64_MAX},
                   three[] = {3};
    struct heft_manifest_tensor bad = good;

    (void)state;
    bad.size_bytes = 31;
    assert_code(try_tensor(manifest, bad, &error), HEFT_ERR_INVALID, error);
    assert_says(error, "\"w\"");
    assert_says(error, "needs 32");
    bad = good;
    bad.offset_bytes = 1;
    assert_code(try_tensor(manifest, bad, &error), HEFT_ERR_INVALID, error);
    bad.offset_bytes = UINT64_MAX;
    assert_code(try_tensor(manifest, bad, &error), HEFT_ERR_INVALID, error);
    bad = good;
    bad.file = 1;
    assert_code(try_tensor(manifest, bad, &error), HEFT_ERR_INVALID, error);
    bad = good;
    bad.box_start = start;
    assert_code(try_tensor(manifest, bad, &error), HEFT_ERR_INVALID, error);
    bad.box_size = past;
    assert_code(try_tensor(manifest, bad, &error), HEFT_ERR_INVALID, error);
    assert_says(error, "dimension 0");
    bad.box_size = wrap;
    assert_code(try_tensor(manifest, bad, &error), HEFT_ERR_INVALID, error);
    bad.box_start = wrap;
    bad.box_size = size;
    assert_code(try_tensor(manifest, bad, &error), HEFT_ERR_INVALID, error);
    bad = good;
    bad.shape = huge;
    assert_code(try_tensor(manifest, bad, &error), HEFT_ERR_INVALID, error);
    assert_says(error, "overflows");
    bad = tensor_of("w", "F4", 4, 1, three, 0);
    assert_code(try_tensor(manifest, bad, &error), HEFT_ERR_INVALID, error);
    assert_says(error, "byte");
    bad = good;
    bad.rank = HEFT_TENSOR_MAX_RANK + 1;
    assert_code(try_tensor(manifest, bad, &error), HEFT_ERR_TOO_LARGE, error);
    bad = good;
    bad.shape = NULL;
    assert_code(try_tensor(manifest, bad, &error), HEFT_ERR_INVALID, error);
    assert_int_equal(manifest->tensor_count, 0);
    bad = tensor_of("empty", "F32", 32, 3, none, 32);
    bad.size_bytes = 0;
    assert_ok(try_tensor(manifest, bad, &error), error);
    bad = good;
    bad.box_start = start;
    bad.box_size = size;
    bad.size_bytes = 24;
    assert_ok(try_tensor(manifest, bad, &error), error);
    bad = good;
    bad.name = "v";
    bad.dtype_bits = 16; /* a known dtype with another width */
    bad.size_bytes = 16;
    assert_code(try_tensor(manifest, bad, &error), HEFT_ERR_INVALID, error);
    assert_says(error, "it has 32");
    bad.dtype = "MINE";
    assert_ok(try_tensor(manifest, bad, &error), error);
    bad.dtype_bits = 32; /* a dtype of its own, with two widths */
    bad.size_bytes = 32;
    assert_code(try_tensor(manifest, bad, &error), HEFT_ERR_INVALID, error);
    assert_says(error, "in another");
    heft_manifest_free(manifest);
}

static void a_box_that_is_the_whole_tensor_is_no_box(void **state)
{
    struct heft_manifest *manifest = with_file(32);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest_tensor tensor = tensor_of("w", "F32", 32, 2, four_by_two, 0);
    const uint64_t zero[] = {0, 0};

    (void)state;
    tensor.box_start = zero;
    tensor.box_size = four_by_two;
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    assert_null(manifest->tensors[0].box_start);
    assert_null(manifest->tensors[0].box_size);
    heft_manifest_free(manifest);
}

static void unknown_dtypes_are_kept_and_their_size_is_not_checked(void **state)
{
    struct heft_manifest *manifest = with_file(100);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest_tensor tensor = tensor_of("q", "Q8_0", 0, 2, four_by_two, 0);

    (void)state;
    tensor.size_bytes = 34;
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    assert_ok(heft_manifest_finish(manifest, &error), error);
    assert_string_equal(manifest->tensors[0].dtype, "Q8_0");
    heft_manifest_free(manifest);
}

static void sums_past_64_bits_are_refused(void **state)
{
    struct heft_manifest *manifest = with_file(UINT64_MAX);
    struct heft_error error = HEFT_ERROR_INIT;
    const uint64_t half[] = {(uint64_t)1 << 63};
    struct heft_manifest_tensor tensor = tensor_of("a", "Q8", 0, 1, half, 0);

    (void)state;
    tensor.size_bytes = half[0];
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    tensor.name = "b";
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    assert_code(heft_manifest_finish(manifest, &error), HEFT_ERR_INVALID, error);
    heft_manifest_free(manifest);
}

static void file_names_must_stay_beneath_the_root(void **state)
{
    struct heft_manifest *manifest = heft_manifest_new();
    struct heft_error error = HEFT_ERROR_INIT;
    uint32_t index = 9;

    (void)state;
    assert_code(heft_manifest_add_file(manifest, "../x", 1, 0, &index, &error), HEFT_ERR_PATH_UNSAFE, error);
    assert_int_equal(index, 9);
    assert_ok(heft_manifest_add_file(manifest, "", 1, 77, &index, &error), error);
    assert_int_equal(index, 0);
    heft_manifest_free(manifest);
}

static void held_blocks_are_asked_by_range(void **state)
{
    struct heft_manifest *manifest = with_file(20 * HEFT_BLOCK_BYTES);
    struct heft_error error = HEFT_ERROR_INIT;
    const uint64_t shape[] = {20 * HEFT_BLOCK_BYTES};
    struct heft_manifest_tensor tensor = tensor_of("a", "U8", 8, 1, shape, 0);
    uint64_t block;

    (void)state;
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    assert_ok(heft_manifest_finish(manifest, &error), error);
    assert_true(heft_manifest_holds(manifest, 0, 20));
    assert_true(heft_manifest_holds(manifest, 20, 0));
    assert_false(heft_manifest_holds(manifest, 0, 21));
    assert_false(heft_manifest_holds(manifest, 21, 0));
    assert_false(heft_manifest_holds(manifest, 1, UINT64_MAX));
    assert_ok(heft_manifest_want_held(manifest, &error), error);
    assert_false(heft_manifest_holds(manifest, 3, 1));
    for (block = 2; block < 19; block++)
        manifest->held[block / 8] = (uint8_t)(manifest->held[block / 8] | 1u << block % 8);
    assert_true(heft_manifest_holds(manifest, 2, 17));
    assert_true(heft_manifest_holds(manifest, 8, 8));
    assert_false(heft_manifest_holds(manifest, 1, 2));
    assert_false(heft_manifest_holds(manifest, 2, 18));
    heft_manifest_free(manifest);
}

/* A table whose order of adding, file and offsets follow `seed`. */
static struct heft_manifest *shuffled(uint64_t count, uint64_t step, int change)
{
    struct heft_manifest *manifest = heft_manifest_new();
    struct heft_error error = HEFT_ERROR_INIT;
    const uint64_t shape[] = {2, 2};
    uint64_t index;

    assert_ok(heft_manifest_add_file(manifest, "a", count * 16, 0, NULL, &error), error);
    assert_ok(heft_manifest_add_file(manifest, "b", count * 16, 0, NULL, &error), error);
    for (index = 0; index < count; index++) {
        uint64_t number = index * step % count;
        struct heft_manifest_tensor tensor;
        char name[96];

        /* Long common beginnings, and names that are beginnings of others. */
        (void)snprintf(name, sizeof(name), "model.layers.%llu.mlp.experts.%.*s",
                       (unsigned long long)(number % 7), (int)(number / 7 % 40),
                       "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGH");
        if (number >= 280)
            (void)snprintf(name + strlen(name), sizeof(name) - strlen(name), "_%llu",
                           (unsigned long long)(number / 280));
        tensor = tensor_of(name, change && number == count / 2 ? "I32" : "F32", 32, 2, shape, index * 16);
        tensor.file = (uint32_t)(number * step % 2);
        assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    }
    assert_ok(heft_manifest_finish(manifest, &error), error);
    return manifest;
}

static void the_table_digest_does_not_depend_on_places(void **state)
{
    struct heft_manifest *left = shuffled(6007, 1, 0), *right = shuffled(6007, 1999, 0),
                         *other = shuffled(6007, 7, 1);
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t index;

    (void)state;
    assert_true(heft_manifest_table_digest(left) != 0);
    assert_true(heft_manifest_table_digest(left) == heft_manifest_table_digest(right));
    assert_true(heft_manifest_table_digest(left) != heft_manifest_table_digest(other));
    assert_true(heft_manifest_content_digest(left) == 0);
    assert_ok(heft_manifest_want_digests(left, &error), error);
    assert_ok(heft_manifest_want_digests(right, &error), error);
    for (index = 0; index < left->tensor_count; index++) {
        const struct heft_manifest_tensor *tensor = &left->tensors[index];
        uint64_t there = heft_manifest_find(right, tensor->name, tensor->name_bytes);

        left->digests[tensor->first_block] = index * 77;
        right->digests[right->tensors[there].first_block] = index * 77;
    }
    assert_true(heft_manifest_content_digest(left) != 0);
    assert_true(heft_manifest_content_digest(left) == heft_manifest_content_digest(right));
    left->digests[5]++;
    assert_true(heft_manifest_content_digest(left) != heft_manifest_content_digest(right));
    heft_manifest_free(left);
    heft_manifest_free(right);
    heft_manifest_free(other);
}

static int compare_texts(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* The digest in name order, computed here the plain way. */
static void the_table_digest_is_taken_in_name_order(void **state)
{
    struct heft_manifest *manifest = shuffled(6007, 1999, 0);
    char **names = calloc(manifest->tensor_count, sizeof(*names));
    struct heft_buf lines, line;
    uint64_t index;

    (void)state;
    heft_buf_init(&lines, SIZE_MAX);
    heft_buf_init(&line, SIZE_MAX);
    for (index = 0; index < manifest->tensor_count; index++)
        names[index] = strdup(manifest->tensors[index].name);
    qsort(names, manifest->tensor_count, sizeof(*names), compare_texts);
    for (index = 0; index < manifest->tensor_count; index++) {
        line.size = 0;
        heft_buf_u64(&line, strlen(names[index]));
        heft_buf_bytes(&line, names[index], strlen(names[index]));
        heft_buf_u64(&line, 3);
        heft_buf_bytes(&line, "F32", 3);
        heft_buf_u64(&line, 2);
        heft_buf_u64(&line, 2);
        heft_buf_u64(&line, 2);
        heft_buf_u8(&line, 0);
        heft_buf_u64(&line, 16);
        heft_buf_u64(&lines, heft_hash64(line.data, line.size, 0));
        free(names[index]);
    }
    assert_true(heft_manifest_table_digest(manifest) == heft_hash64(lines.data, lines.size, 0));
    free(names);
    heft_buf_free(&line);
    heft_buf_free(&lines);
    heft_manifest_free(manifest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_sorted_numbered_and_found),
        cmocka_unit_test(a_name_that_stands_twice_is_refused_with_both_files),
        cmocka_unit_test(names_with_nuls_and_empty_names_are_names),
        cmocka_unit_test(numbers_that_disagree_are_refused),
        cmocka_unit_test(a_box_that_is_the_whole_tensor_is_no_box),
        cmocka_unit_test(unknown_dtypes_are_kept_and_their_size_is_not_checked),
        cmocka_unit_test(sums_past_64_bits_are_refused),
        cmocka_unit_test(file_names_must_stay_beneath_the_root),
        cmocka_unit_test(held_blocks_are_asked_by_range),
        cmocka_unit_test(the_table_digest_does_not_depend_on_places),
        cmocka_unit_test(the_table_digest_is_taken_in_name_order),
    };
    return cmocka_run_group_tests_name("manifest", tests, NULL, NULL);
}
