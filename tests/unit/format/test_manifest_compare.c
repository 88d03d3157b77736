/* SPDX-License-Identifier: Apache-2.0 */
#include "manifest_helper.h"

static const uint64_t square[] = {4, 4};

static struct heft_manifest *table(struct heft_manifest_tensor *tensors, size_t count)
{
    struct heft_manifest *manifest = heft_manifest_new();
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_identity identity = {.model = "org/m", .revision = "r"};
    size_t index;

    assert_ok(heft_manifest_set_identity(manifest, &identity, &error), error);
    assert_ok(heft_manifest_add_file(manifest, "", 4096, 1, NULL, &error), error);
    for (index = 0; index < count; index++)
        assert_ok(heft_manifest_add_tensor(manifest, &tensors[index], &error), error);
    assert_ok(heft_manifest_finish(manifest, &error), error);
    return manifest;
}

static int compare_one(struct heft_manifest_tensor left, struct heft_manifest_tensor right,
                       struct heft_error *error)
{
    struct heft_manifest *l = table(&left, 1), *r = table(&right, 1);
    int rc = heft_manifest_compare(l, r, error);

    heft_manifest_free(l);
    heft_manifest_free(r);
    return rc;
}

static void equal_tables_agree_wherever_their_bytes_lie(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    assert_ok(compare_one(tensor_of("w", "BF16", 16, 2, square, 0),
                          tensor_of("w", "BF16", 16, 2, square, 512), &error),
              error);
}

static void one_difference_in_anything_is_named(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    const struct heft_manifest_tensor base = tensor_of("w", "BF16", 16, 2, square, 0);
    const uint64_t flat[] = {16}, wide[] = {2, 8};
    struct heft_manifest_tensor left, right;

    (void)state;
    assert_code(compare_one(base, tensor_of("w2", "BF16", 16, 2, square, 0), &error), HEFT_ERR_INCOMPATIBLE,
                error);
    assert_says(error, "\"w\" is not offered");
    assert_says(error, "\"w2\" is offered but not wanted");
    assert_code(compare_one(base, tensor_of("w", "F16", 16, 2, square, 0), &error), HEFT_ERR_INCOMPATIBLE,
                error);
    assert_says(error, "\"w\": dtype \"BF16\" wanted, \"F16\" offered");
    assert_code(compare_one(base, tensor_of("w", "BF16", 16, 2, wide, 0), &error), HEFT_ERR_INCOMPATIBLE,
                error);
    assert_says(error, "shape [4, 4] wanted, [2, 8] offered");
    assert_code(compare_one(base, tensor_of("w", "BF16", 16, 1, flat, 0), &error), HEFT_ERR_INCOMPATIBLE,
                error);
    assert_says(error, "[16] offered");
    left = tensor_of("q", "Q8_0", 0, 2, square, 0);
    right = left;
    left.size_bytes = 34;
    right.size_bytes = 36;
    assert_code(compare_one(left, right, &error), HEFT_ERR_INCOMPATIBLE, error);
    assert_says(error, "size 34 bytes wanted, 36 offered");
}

static void a_shard_may_hold_less_unless_its_dtype_can_not_be_cut(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    const uint64_t start[] = {2, 0}, size[] = {2, 4};
    struct heft_manifest_tensor whole = tensor_of("w", "BF16", 16, 2, square, 0), part = whole;

    (void)state;
    part.box_start = start;
    part.box_size = size;
    part.size_bytes = 16;
    assert_ok(compare_one(whole, part, &error), error);
    whole.dtype_bits = part.dtype_bits = 0;
    whole.dtype = part.dtype = "Q4_K";
    assert_code(compare_one(whole, part, &error), HEFT_ERR_INCOMPATIBLE, error);
    assert_says(error, "box all");
    assert_says(error, "[2, 0] [2, 4] offered");
}

static void many_differences_are_counted_and_cut(void **state)
{
    struct heft_manifest_tensor tensors[40];
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *left, *right;
    char names[40][160];
    const char *at;
    uint64_t shown;
    size_t index;

    (void)state;
    for (index = 0; index < 40; index++) {
        memset(names[index], 'x', sizeof(names[index]));
        (void)snprintf(names[index] + 140, 20, "%zu", index);
        tensors[index] = tensor_of(names[index], "BF16", 16, 2, square, index * 32);
    }
    left = table(tensors, 40);
    for (index = 0; index < 40; index++)
        tensors[index].dtype = "F16";
    right = table(tensors, 39);
    assert_code(heft_manifest_compare(left, right, &error), HEFT_ERR_INCOMPATIBLE, error);
    assert_says(error, "; and ");
    assert_says(error, " more");
    shown = strtoull(strstr(error.text, "; and ") + 6, NULL, 10);
    for (at = error.text; (at = strstr(at, "tensor \"")) != NULL; at++)
        shown++;
    assert_int_equal(shown, 40); /* shown and counted are all there are */
    assert_true(strlen(error.text) < HEFT_ERROR_TEXT_BYTES - 1);
    assert_code(heft_manifest_compare(right, left, NULL), HEFT_ERR_INCOMPATIBLE, error);
    heft_manifest_free(left);
    heft_manifest_free(right);
}

static void identities_must_agree_in_every_field(void **state)
{
    const struct heft_identity_pair pairs[] = {{"a", "1"}, {"c", "3"}}, others[] = {{"a", "2"}, {"b", "9"}};
    const struct heft_identity base = {"m", "r", "raw", "", "", pairs, 2};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_identity other;

    (void)state;
    assert_ok(heft_identity_compare(&base, &base, &error), error);
    other = base;
    other.engine = NULL;
    assert_ok(heft_identity_compare(&base, &other, &error), error);
    other.model = "n";
    assert_code(heft_identity_compare(&base, &other, &error), HEFT_ERR_INCOMPATIBLE, error);
    assert_says(error, "model \"m\" wanted, \"n\" offered");
    other = base;
    other.revision = "s";
    assert_code(heft_identity_compare(&base, &other, &error), HEFT_ERR_INCOMPATIBLE, error);
    assert_says(error, "revision");
    other = base;
    other.stage = "processed";
    assert_code(heft_identity_compare(&base, &other, &error), HEFT_ERR_INCOMPATIBLE, error);
    assert_says(error, "stage");
    other = base;
    other.rank = "tp=0/2";
    assert_code(heft_identity_compare(&base, &other, &error), HEFT_ERR_INCOMPATIBLE, error);
    assert_says(error, "rank");
    other = base;
    other.pairs = others;
    assert_code(heft_identity_compare(&base, &other, &error), HEFT_ERR_INCOMPATIBLE, error);
    assert_says(error, "key \"a\" is \"1\" wanted, \"2\" offered");
    assert_says(error, "key \"b\" is absent wanted");
    assert_says(error, "key \"c\" is \"3\" wanted, absent offered");
    other.pair_count = 0;
    assert_code(heft_identity_compare(&base, &other, &error), HEFT_ERR_INCOMPATIBLE, error);
}

static void pairs_are_sorted_and_a_repeated_key_is_refused(void **state)
{
    const struct heft_identity_pair pairs[] = {{"z", "1"}, {"a", "2"}}, twice[] = {{"z", "1"}, {"z", "2"}};
    struct heft_identity identity = {.model = "m", .pairs = pairs, .pair_count = 2};
    struct heft_manifest *manifest = heft_manifest_new();
    struct heft_error error = HEFT_ERROR_INIT;
    char *large = calloc(1, HEFT_IDENTITY_MAX_BYTES + 2);

    (void)state;
    assert_ok(heft_manifest_set_identity(manifest, &identity, &error), error);
    assert_string_equal(manifest->identity.pairs[0].key, "a");
    identity.pairs = twice;
    assert_code(heft_manifest_set_identity(manifest, &identity, &error), HEFT_ERR_INVALID, error);
    identity.pair_count = HEFT_IDENTITY_MAX_PAIRS + 1;
    assert_code(heft_manifest_set_identity(manifest, &identity, &error), HEFT_ERR_TOO_MANY, error);
    identity.pair_count = 0;
    memset(large, 'x', HEFT_IDENTITY_MAX_BYTES + 1);
    identity.rank = large;
    assert_code(heft_manifest_set_identity(manifest, &identity, &error), HEFT_ERR_TOO_LARGE, error);
    assert_string_equal(manifest->identity.model, "m");
    assert_int_equal(manifest->identity.pair_count, 2);
    free(large);
    heft_manifest_free(manifest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_tables_agree_wherever_their_bytes_lie),
        cmocka_unit_test(one_difference_in_anything_is_named),
        cmocka_unit_test(a_shard_may_hold_less_unless_its_dtype_can_not_be_cut),
        cmocka_unit_test(many_differences_are_counted_and_cut),
        cmocka_unit_test(identities_must_agree_in_every_field),
        cmocka_unit_test(pairs_are_sorted_and_a_repeated_key_is_refused),
    };
    return cmocka_run_group_tests_name("manifest_compare", tests, NULL, NULL);
}
