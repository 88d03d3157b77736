/* SPDX-License-Identifier: Apache-2.0 */
#include "manifest_helper.h"
#include "base/digest.h"

static struct heft_manifest *sample(int blocks)
{
    static const uint64_t shape[] = {2 * HEFT_BLOCK_BYTES, 2}, start[] = {1, 0}, size[] = {5, 2},
                          flat[] = {3};
    static const struct heft_identity_pair pairs[] = {{"quant", "none"}, {"tp", "2"}};
    const struct heft_identity identity = {"org/name", "abc", "processed", "vllm-1", "tp=0/2", pairs, 2};
    struct heft_manifest *manifest = heft_manifest_new();
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest_tensor tensor;
    uint64_t index;

    assert_ok(heft_manifest_set_identity(manifest, &identity, &error), error);
    assert_ok(
        heft_manifest_add_file(manifest, "sub/model-1.safetensors", 8 * HEFT_BLOCK_BYTES, 0, NULL, &error),
        error);
    assert_ok(heft_manifest_add_file(manifest, "", UINT64_MAX, 7, NULL, &error), error);
    tensor = tensor_of("a", "BF16", 16, 2, shape, 0);
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    tensor.name = "b\0c";
    tensor.name_bytes = 3;
    tensor.file = 1;
    tensor.offset_bytes = UINT64_MAX - 20;
    tensor.box_start = start;
    tensor.box_size = size;
    tensor.size_bytes = 20;
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    tensor = tensor_of("q", "Q8_0", 0, 1, flat, 0);
    tensor.file = 1;
    tensor.size_bytes = 9;
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    tensor = tensor_of("scalar", "F32", 32, 0, NULL, 0);
    tensor.file = 1;
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    assert_ok(heft_manifest_finish(manifest, &error), error);
    if (blocks) {
        assert_ok(heft_manifest_want_digests(manifest, &error), error);
        assert_ok(heft_manifest_want_held(manifest, &error), error);
        for (index = 0; index < manifest->block_count; index++)
            manifest->digests[index] = index * UINT64_C(0x9E3779B97F4A7C15);
        manifest->held[0] = 0x55;
    }
    return manifest;
}

static void encode(const struct heft_manifest *manifest, struct heft_buf *buf)
{
    heft_buf_init(buf, HEFT_MANIFEST_MAX_BYTES);
    assert_int_equal(heft_manifest_encode(manifest, buf), HEFT_OK);
}

/* Puts the right length and digest on bytes that a test has changed, so that the fields themselves are met.
 */
static void seal(struct heft_buf *buf)
{
    heft_put_u64(buf->data + 8, buf->size);
    heft_put_u64(buf->data + buf->size - 8, heft_hash64(buf->data, buf->size - 8, 0));
}

static void what_is_encoded_is_decoded(void **state)
{
    int blocks;

    (void)state;
    for (blocks = 0; blocks < 2; blocks++) {
        struct heft_manifest *manifest = sample(blocks), *copy = NULL;
        struct heft_error error = HEFT_ERROR_INIT;
        struct heft_buf buf, again;

        encode(manifest, &buf);
        assert_ok(heft_manifest_decode(buf.data, buf.size, &copy, &error), error);
        encode(copy, &again);
        assert_int_equal(buf.size, again.size);
        assert_memory_equal(buf.data, again.data, buf.size);
        assert_ok(heft_manifest_compare(manifest, copy, &error), error);
        assert_true(heft_manifest_table_digest(manifest) == heft_manifest_table_digest(copy));
        assert_true(heft_manifest_content_digest(manifest) == heft_manifest_content_digest(copy));
        assert_int_equal(copy->tensor_count, 4);
        assert_int_equal(copy->total_bytes, manifest->total_bytes);
        assert_string_equal(copy->files[0].name, "sub/model-1.safetensors");
        assert_true(copy->files[1].region == 7 && copy->files[1].size_bytes == UINT64_MAX);
        assert_int_equal(heft_manifest_find(copy, "b\0c", 3), 3);
        assert_int_equal(copy->tensors[3].box_size[0], 5);
        assert_int_equal(heft_manifest_holds(copy, 0, 1), 1);
        assert_int_equal(heft_manifest_holds(copy, 1, 1), !blocks);
        assert_int_equal(copy->digests != NULL, blocks);
        heft_buf_free(&buf);
        heft_buf_free(&again);
        heft_manifest_free(manifest);
        heft_manifest_free(copy);
    }
}

static void an_empty_manifest_is_valid(void **state)
{
    struct heft_manifest *manifest = heft_manifest_new(), *copy = NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_buf buf;

    (void)state;
    assert_ok(heft_manifest_finish(manifest, &error), error);
    assert_ok(heft_manifest_want_digests(manifest, &error), error);
    assert_ok(heft_manifest_want_held(manifest, &error), error);
    encode(manifest, &buf);
    assert_ok(heft_manifest_decode(buf.data, buf.size, &copy, &error), error);
    assert_int_equal(copy->tensor_count, 0);
    heft_buf_free(&buf);
    heft_manifest_free(manifest);
    heft_manifest_free(copy);
}

static void cut_at_every_length_it_is_refused(void **state)
{
    struct heft_manifest *manifest = sample(1), *copy = NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_buf buf, cut;
    size_t size;

    (void)state;
    encode(manifest, &buf);
    for (size = 0; size < buf.size; size++) {
        void *bytes = malloc(size ? size : 1); /* its own block: a read past the end is seen */

        memcpy(bytes, buf.data, size);
        assert_int_not_equal(heft_manifest_decode(bytes, size, &copy, &error), HEFT_OK);
        free(bytes);
        if (size < 24)
            continue;
        heft_buf_init(&cut, SIZE_MAX); /* once more with a length and digest that fit */
        heft_buf_bytes(&cut, buf.data, size);
        seal(&cut);
        if (heft_manifest_decode(cut.data, cut.size, &copy, &error) == HEFT_OK) {
            /* Only whole optional sections may be gone. */
            assert_true(!copy->held);
            heft_manifest_free(copy);
            copy = NULL;
        }
        heft_buf_free(&cut);
    }
    assert_code(heft_manifest_decode(buf.data, 5, &copy, &error), HEFT_ERR_TRUNCATED, error);
    assert_code(heft_manifest_decode(buf.data, buf.size - 1, &copy, &error), HEFT_ERR_TRUNCATED, error);
    assert_null(copy);
    heft_buf_free(&buf);
    heft_manifest_free(manifest);
}

static void a_flipped_bit_anywhere_is_refused(void **state)
{
    struct heft_manifest *manifest = sample(1), *copy = NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_buf buf;
    size_t at;

    (void)state;
    encode(manifest, &buf);
    for (at = 0; at < buf.size; at++) {
        buf.data[at] ^= (uint8_t)(1u << at % 8);
        assert_int_not_equal(heft_manifest_decode(buf.data, buf.size, &copy, &error), HEFT_OK);
        buf.data[at] ^= (uint8_t)(1u << at % 8);
    }
    buf.data[30] ^= 1;
    assert_code(heft_manifest_decode(buf.data, buf.size, &copy, &error), HEFT_ERR_DIGEST, error);
    buf.data[30] ^= 1;
    buf.data[4] = 2;
    assert_code(heft_manifest_decode(buf.data, buf.size, &copy, &error), HEFT_ERR_INCOMPATIBLE, error);
    assert_says(error, "version 2");
    heft_buf_free(&buf);
    heft_manifest_free(manifest);
}

/* Every byte set to hostile values, with a digest that fits: never a crash, and what is accepted is sound. */
static void hostile_fields_behind_a_right_digest_are_refused_or_sound(void **state)
{
    static const uint8_t values[] = {0x00, 0x01, 0x7F, 0x80, 0xFF};
    struct heft_manifest *manifest = sample(1), *copy;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_buf buf, again;
    size_t at, width, value;
    uint64_t index;

    (void)state;
    encode(manifest, &buf);
    for (at = 16; at + 8 < buf.size; at++) {
        for (value = 0; value < sizeof(values); value++) {
            for (width = 1; width <= 8 && at + width + 8 <= buf.size; width += 7) {
                uint8_t saved[8];

                memcpy(saved, buf.data + at, width);
                memset(buf.data + at, values[value], width);
                seal(&buf);
                copy = NULL;
                if (heft_manifest_decode(buf.data, buf.size, &copy, &error) == HEFT_OK) {
                    for (index = 0; index < copy->tensor_count; index++) {
                        const struct heft_manifest_tensor *tensor = &copy->tensors[index];

                        assert_true(tensor->offset_bytes <= UINT64_MAX - tensor->size_bytes);
                        assert_true(tensor->offset_bytes + tensor->size_bytes <=
                                    copy->files[tensor->file].size_bytes);
                    }
                    encode(copy, &again);
                    heft_buf_free(&again);
                    heft_manifest_free(copy);
                }
                memcpy(buf.data + at, saved, width);
            }
        }
    }
    heft_buf_free(&buf);
    heft_manifest_free(manifest);
}

static void append_section(struct heft_buf *buf, uint32_t type, uint32_t flags)
{
    buf->size -= 8;
    heft_buf_u32(buf, type);
    heft_buf_u32(buf, flags);
    heft_buf_u64(buf, 5);
    heft_buf_bytes(buf, "later", 5);
    heft_buf_u64(buf, 0);
    seal(buf);
}

static void later_sections_are_skipped_unless_they_are_needed(void **state)
{
    struct heft_manifest *manifest = sample(1), *copy = NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_buf buf;

    (void)state;
    encode(manifest, &buf);
    append_section(&buf, 6, 0);
    append_section(&buf, 900, 0);
    assert_ok(heft_manifest_decode(buf.data, buf.size, &copy, &error), error);
    assert_ok(heft_manifest_compare(manifest, copy, &error), error);
    heft_manifest_free(copy);
    append_section(&buf, 901, 1);
    assert_code(heft_manifest_decode(buf.data, buf.size, &copy, &error), HEFT_ERR_INCOMPATIBLE, error);
    assert_says(error, "section 901");
    heft_buf_free(&buf);
    encode(manifest, &buf);
    append_section(&buf, 3, 0); /* the tensors again */
    assert_code(heft_manifest_decode(buf.data, buf.size, &copy, &error), HEFT_ERR_MANIFEST, error);
    heft_buf_free(&buf);
    heft_manifest_free(manifest);
}

/* A blob made by hand, with the given file name and tensor count. */
static void by_hand(struct heft_buf *buf, const char *file, uint64_t tensors)
{
    heft_buf_init(buf, SIZE_MAX);
    heft_buf_bytes(buf, "HMAN\1\0\0\0\0\0\0\0\0\0\0\0", 16);
    heft_buf_u32(buf, 1);
    heft_buf_u32(buf, 1);
    heft_buf_u64(buf, 24);
    heft_buf_bytes(buf, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
    heft_buf_u32(buf, 2);
    heft_buf_u32(buf, 1);
    heft_buf_u64(buf, 4 + 4 + strlen(file) + 16);
    heft_buf_u32(buf, 1);
    heft_buf_string(buf, file, strlen(file));
    heft_buf_u64(buf, 1);
    heft_buf_u64(buf, 0);
    heft_buf_u32(buf, 3);
    heft_buf_u32(buf, 1);
    heft_buf_u64(buf, 12);
    heft_buf_u32(buf, 0);
    heft_buf_u64(buf, tensors);
    heft_buf_u64(buf, 0);
    seal(buf);
}

static void counts_are_compared_with_the_bytes_that_are_there(void **state)
{
    struct heft_manifest *copy = NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_buf buf;

    (void)state;
    by_hand(&buf, "a", 0);
    assert_ok(heft_manifest_decode(buf.data, buf.size, &copy, &error), error);
    assert_string_equal(copy->files[0].name, "a");
    heft_manifest_free(copy);
    heft_buf_free(&buf);
    by_hand(&buf, "a", UINT64_MAX);
    assert_code(heft_manifest_decode(buf.data, buf.size, &copy, &error), HEFT_ERR_MANIFEST, error);
    heft_buf_free(&buf);
}

static void file_names_from_a_peer_that_leave_the_root_are_refused(void **state)
{
    static const char *const names[] = {
        "../secret.safetensors", "/etc/passwd", "a/../../b", "a\nb", "a\\b", "a//b", "."};
    struct heft_manifest *copy = NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_buf buf;
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(names) / sizeof(names[0]); index++) {
        by_hand(&buf, names[index], 0);
        assert_code(heft_manifest_decode(buf.data, buf.size, &copy, &error), HEFT_ERR_PATH_UNSAFE, error);
        heft_buf_free(&buf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_encoded_is_decoded),
        cmocka_unit_test(an_empty_manifest_is_valid),
        cmocka_unit_test(cut_at_every_length_it_is_refused),
        cmocka_unit_test(a_flipped_bit_anywhere_is_refused),
        cmocka_unit_test(hostile_fields_behind_a_right_digest_are_refused_or_sound),
        cmocka_unit_test(later_sections_are_skipped_unless_they_are_needed),
        cmocka_unit_test(counts_are_compared_with_the_bytes_that_are_there),
        cmocka_unit_test(file_names_from_a_peer_that_leave_the_root_are_refused),
    };
    return cmocka_run_group_tests_name("manifest_codec", tests, NULL, NULL);
}
