/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

uint64_t heft_xxh3_base(const void *data, size_t size, uint64_t seed);

/* Published test vectors of XXH3-64 with seed 0: the empty input; and the three builds against each other. */
static void every_build_gives_the_published_hash(void **state)
{
    uint8_t bytes[4096];
    size_t size;

    (void)state;
    assert_true(heft_hash64("", 0, 0) == UINT64_C(0x2d06800538d394c2));
    for (size = 0; size < sizeof(bytes); size++)
        bytes[size] = (uint8_t)(size * 131 + size / 7);
    for (size = 0; size < sizeof(bytes); size++)
        assert_true(heft_hash64(bytes, size, 5) == heft_xxh3_base(bytes, size, 5));
}

static void tensors_are_cut_into_blocks(void **state)
{
    size_t size = (size_t)HEFT_BLOCK_BYTES * 33 + 1, index;
    uint8_t *bytes = calloc(1, size);
    uint64_t digests[34], other[34], whole;

    (void)state;
    assert_non_null(bytes);
    for (index = 0; index < size; index++)
        bytes[index] = (uint8_t)(index >> 3);
    assert_int_equal(heft_block_count(0), 0);
    assert_int_equal(heft_block_count(1), 1);
    assert_int_equal(heft_block_count(HEFT_BLOCK_BYTES), 1);
    assert_int_equal(heft_block_count(size), 34);
    heft_block_digests(bytes, size, digests);
    assert_true(digests[33] == heft_hash64(bytes + HEFT_BLOCK_BYTES * 33, 1, 0));
    whole = heft_tensor_digest(digests, size);
    bytes[size / 2] ^= 1;
    heft_block_digests(bytes, size, other);
    assert_true(whole != heft_tensor_digest(other, size));
    assert_true(heft_tensor_digest(digests, 5) != heft_tensor_digest(digests, 6));
    free(bytes);
}

static void sha256_and_hmac_give_the_published_values(void **state)
{
    static const uint8_t abc[4] = {0xba, 0x78, 0x16, 0xbf};
    static const uint8_t jefe[4] = {0x5b, 0xdc, 0xc1, 0x46}; /* RFC 4231, case 2 */
    struct heft_part parts[2] = {{"what do ya want ", 16}, {"for nothing?", 12}};
    uint8_t digest[HEFT_SHA256_BYTES];

    (void)state;
    heft_sha256("abc", 3, digest);
    assert_memory_equal(digest, abc, sizeof(abc));
    heft_hmac_sha256("Jefe", 4, parts, 2, digest);
    assert_memory_equal(digest, jefe, sizeof(jefe));
    assert_true(heft_equal_secret("ab", "ab", 2));
    assert_false(heft_equal_secret("ab", "aB", 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_build_gives_the_published_hash),
        cmocka_unit_test(tensors_are_cut_into_blocks),
        cmocka_unit_test(sha256_and_hmac_give_the_published_values),
    };
    return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}
