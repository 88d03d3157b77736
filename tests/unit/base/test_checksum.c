/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of stores, against the published check values of "123456789", and in any pieces. */
#include "base/checksum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    enum heft_checksum_kind kind;
    const uint8_t bytes[20];
} checks[] = {
    {HEFT_CHECKSUM_CRC32, {0xcb, 0xf4, 0x39, 0x26}},
    {HEFT_CHECKSUM_CRC32C, {0xe3, 0x06, 0x92, 0x83}},
    {HEFT_CHECKSUM_CRC64NVME, {0xae, 0x8b, 0x14, 0x86, 0x0a, 0x79, 0x98, 0x88}},
    {HEFT_CHECKSUM_MD5,
     {0x25, 0xf9, 0xe7, 0x94, 0x32, 0x3b, 0x45, 0x38, 0x85, 0xf5, 0x18, 0x1f, 0x1b, 0x62, 0x4d, 0x0b}},
    {HEFT_CHECKSUM_SHA1, {0xf7, 0xc3, 0xbc, 0x1d, 0x80, 0x8e, 0x04, 0x73, 0x2a, 0xdf,
                          0x67, 0x99, 0x65, 0xcc, 0xc3, 0x4c, 0xa7, 0xae, 0x34, 0x41}},
};

static void the_published_check_values_come_out(void **state)
{
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(checks) / sizeof(checks[0]); index++) {
        struct heft_checksum_state *making = heft_checksum_begin(checks[index].kind);
        struct heft_checksum made;

        assert_non_null(making);
        heft_checksum_add(making, "123456789", 9);
        heft_checksum_end(making, &made);
        assert_int_equal(made.kind, checks[index].kind);
        assert_memory_equal(made.bytes, checks[index].bytes, heft_checksum_size(made.kind));
    }
}

static void pieces_do_not_matter(void **state)
{
    uint8_t data[4099];
    enum heft_checksum_kind kind;
    size_t at, step;

    (void)state;
    for (at = 0; at < sizeof(data); at++)
        data[at] = (uint8_t)(at * 131 + (at >> 5));
    for (kind = HEFT_CHECKSUM_CRC32; kind < HEFT_CHECKSUM_KINDS; kind++) {
        struct heft_checksum whole, parts;
        struct heft_checksum_state *making = heft_checksum_begin(kind);

        heft_checksum_add(making, data, sizeof(data));
        heft_checksum_end(making, &whole);
        making = heft_checksum_begin(kind);
        for (at = 0, step = 1; at < sizeof(data); at += step, step = step % 37 + 1) {
            if (step > sizeof(data) - at)
                step = sizeof(data) - at;
            heft_checksum_add(making, data + at, step);
        }
        heft_checksum_end(making, &parts);
        assert_memory_equal(&whole, &parts, sizeof(whole));
        data[17] ^= 1;
        making = heft_checksum_begin(kind);
        heft_checksum_add(making, data, sizeof(data));
        heft_checksum_end(making, &parts);
        assert_memory_not_equal(whole.bytes, parts.bytes, heft_checksum_size(kind));
        data[17] ^= 1;
    }
}

/* Made of parts in any order, of no bytes and of one byte too, a CRC is that of the whole. */
static void crcs_of_parts_make_the_wholes(void **state)
{
    enum heft_checksum_kind kind;
    uint8_t data[70001];
    size_t at, step;

    (void)state;
    for (at = 0; at < sizeof(data); at++)
        data[at] = (uint8_t)(at * 151 + (at >> 7));
    for (kind = HEFT_CHECKSUM_CRC32; kind < HEFT_CHECKSUM_KINDS; kind++) {
        struct heft_checksum_state *making = heft_checksum_begin(kind);
        struct heft_checksum whole, joined;
        uint64_t crc = 0, right;

        heft_checksum_add(making, data, sizeof(data));
        heft_checksum_end(making, &whole);
        if (!heft_checksum_composes(kind))
            continue;
        assert_true(heft_crc_join(kind, 0, 0, 12345) == 0);
        for (at = 0, step = 0; at < sizeof(data); at += step, step = (step * 7 + 1) % 30011) {
            if (step > sizeof(data) - at)
                step = sizeof(data) - at;
            crc = heft_crc_join(kind, crc, heft_crc(kind, data + at, step), step);
        }
        heft_crc_checksum(kind, crc, &joined);
        assert_memory_equal(&whole, &joined, sizeof(whole));
        right = heft_crc(kind, data + 1000, sizeof(data) - 1000);
        data[3] ^= 1;
        heft_crc_checksum(kind, heft_crc_join(kind, heft_crc(kind, data, 1000), right, sizeof(data) - 1000),
                          &joined);
        data[3] ^= 1;
        assert_memory_not_equal(whole.bytes, joined.bytes, heft_checksum_size(kind));
        for (step = 0; step < 300; step++) { /* long parts are made in another way than short ones */
            for (at = 0, crc = 0; at < step; at++)
                crc = heft_crc_join(kind, crc, heft_crc(kind, data + 1 + at, 1), 1);
            assert_true(heft_crc(kind, data + 1, step) == crc);
        }
    }
    assert_false(heft_checksum_composes(HEFT_CHECKSUM_NONE) || heft_checksum_composes(HEFT_CHECKSUM_MD5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_check_values_come_out),
        cmocka_unit_test(pieces_do_not_matter),
        cmocka_unit_test(crcs_of_parts_make_the_wholes),
    };

    return cmocka_run_group_tests_name("checksum", tests, NULL, NULL);
}
