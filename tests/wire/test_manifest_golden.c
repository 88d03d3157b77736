/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of manifest version 1, as released: they may never change, and readers of later versions must go
 * on reading them.
 */
#include "../unit/format/manifest_helper.h"

static const char golden_v1[] =
    "\x48\x4d\x41\x4e\x01\x00\x00\x00\x76\x01\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00"
    "\x01\x00\x00\x00\x32\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x6f\x72\x67\x2f"
    "\x6d\x02\x00\x00\x00\x72\x31\x03\x00\x00\x00\x72\x61\x77\x00\x00\x00\x00\x06\x00"
    "\x00\x00\x74\x70\x3d\x31\x2f\x32\x01\x00\x00\x00\x01\x00\x00\x00\x6b\x01\x00\x00"
    "\x00\x76\x02\x00\x00\x00\x01\x00\x00\x00\x25\x00\x00\x00\x00\x00\x00\x00\x01\x00"
    "\x00\x00\x0d\x00\x00\x00\x78\x2e\x73\x61\x66\x65\x74\x65\x6e\x73\x6f\x72\x73\x00"
    "\x01\x00\x00\x00\x00\x00\x00\x88\x77\x66\x55\x44\x33\x22\x11\x03\x00\x00\x00\x01"
    "\x00\x00\x00\xa6\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x04\x00\x00\x00\x42"
    "\x46\x31\x36\x10\x00\x00\x00\x02\x00\x00\x00\x51\x38\x00\x00\x00\x00\x02\x00\x00"
    "\x00\x00\x00\x00\x00\x03\x00\x00\x00\x61\x2e\x77\x00\x00\x00\x00\x00\x00\x00\x00"
    "\x02\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x08\x00\x00\x00"
    "\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00"
    "\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00"
    "\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x62\x01\x00\x00"
    "\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00"
    "\x00\x05\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00"
    "\x00\x01\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x08\x07\x06\x05\x04\x03\x02"
    "\x01\xf8\xf9\xfa\xfb\xfc\xfd\xfe\xff\x05\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00"
    "\x00\x00\x00\x00\x00\x02\xdb\xf4\xea\x40\x01\x44\xa7\xe4";

static struct heft_manifest *sample(void)
{
    static const uint64_t shape[] = {4, 2}, start[] = {2, 0}, size[] = {2, 2};
    static const struct heft_identity_pair pairs[] = {{"k", "v"}};
    const struct heft_identity identity = {"org/m", "r1", "raw", "", "tp=1/2", pairs, 1};
    struct heft_manifest *manifest = heft_manifest_new();
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest_tensor tensor = tensor_of("a.w", "BF16", 16, 2, shape, 0);

    assert_ok(heft_manifest_set_identity(manifest, &identity, &error), error);
    assert_ok(heft_manifest_add_file(manifest, "x.safetensors", 256, 0x1122334455667788, NULL, &error),
              error);
    tensor.box_start = start;
    tensor.box_size = size;
    tensor.size_bytes = 8;
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    tensor = tensor_of("b", "Q8", 0, 1, shape, 8);
    tensor.size_bytes = 5;
    assert_ok(heft_manifest_add_tensor(manifest, &tensor, &error), error);
    assert_ok(heft_manifest_finish(manifest, &error), error);
    assert_ok(heft_manifest_want_digests(manifest, &error), error);
    assert_ok(heft_manifest_want_held(manifest, &error), error);
    manifest->digests[0] = 0x0102030405060708;
    manifest->digests[1] = 0xFFFEFDFCFBFAF9F8;
    manifest->held[0] = 2;
    return manifest;
}

static void version_1_is_written_as_released(void **state)
{
    struct heft_manifest *manifest = sample();
    struct heft_buf buf;

    (void)state;
    heft_buf_init(&buf, 1 << 20);
    assert_int_equal(heft_manifest_encode(manifest, &buf), HEFT_OK);
    assert_int_equal(buf.size, sizeof(golden_v1) - 1);
    assert_memory_equal(buf.data, golden_v1, buf.size);
    heft_buf_free(&buf);
    heft_manifest_free(manifest);
}

static void version_1_is_read_as_released(void **state)
{
    struct heft_manifest *manifest = sample(), *read = NULL;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    assert_ok(heft_manifest_decode(golden_v1, sizeof(golden_v1) - 1, &read, &error), error);
    assert_ok(heft_manifest_compare(manifest, read, &error), error);
    assert_true(read->digests[1] == UINT64_C(0xFFFEFDFCFBFAF9F8));
    assert_int_equal(heft_manifest_holds(read, 0, 1), 0);
    assert_int_equal(heft_manifest_holds(read, 1, 1), 1);
    assert_true(read->files[0].region == 0x1122334455667788);
    assert_string_equal(read->identity.pairs[0].value, "v");
    assert_true(heft_manifest_table_digest(read) == UINT64_C(0xC8762D35A1582733));
    assert_true(heft_manifest_content_digest(read) == UINT64_C(0xB6568C782A6DAE7D));
    heft_manifest_free(manifest);
    heft_manifest_free(read);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_1_is_written_as_released),
        cmocka_unit_test(version_1_is_read_as_released),
    };
    return cmocka_run_group_tests_name("manifest_golden", tests, NULL, NULL);
}
