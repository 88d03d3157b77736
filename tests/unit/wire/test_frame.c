/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/frame.h"
#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static const struct heft_frame sample = {.version = 1,
                                         .type = HEFT_FRAME_DOC,
                                         .flags = HEFT_FRAME_CHECKED,
                                         .payload_bytes = 12345,
                                         .id = UINT64_C(0x0123456789abcdef),
                                         .payload_check = 0xdeadbeef};

static void a_header_comes_back_as_it_went(void **state)
{
    uint8_t header[HEFT_FRAME_HEADER_BYTES];
    struct heft_frame frame;

    (void)state;
    heft_frame_encode(&sample, header);
    assert_memory_equal(header, "HEFT", 4);
    assert_int_equal(heft_frame_decode(header, &frame), 0);
    assert_int_equal(frame.version, sample.version);
    assert_int_equal(frame.type, sample.type);
    assert_int_equal(frame.flags, sample.flags);
    assert_int_equal(frame.payload_bytes, sample.payload_bytes);
    assert_int_equal(frame.id, sample.id);
    assert_int_equal(frame.payload_check, sample.payload_check);
}

static void every_flipped_bit_is_noticed(void **state)
{
    uint8_t header[HEFT_FRAME_HEADER_BYTES];
    struct heft_frame frame;
    int bit;

    (void)state;
    heft_frame_encode(&sample, header);
    for (bit = 0; bit < HEFT_FRAME_HEADER_BYTES * 8; bit++) {
        header[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(heft_frame_decode(header, &frame), HEFT_ERR_PROTOCOL);
        header[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_int_equal(heft_frame_decode(header, &frame), 0);
}

static void a_payload_over_its_cap_is_refused_by_the_header(void **state)
{
    static const uint16_t types[] = {
        HEFT_FRAME_HELLO, HEFT_FRAME_PING, HEFT_FRAME_REGIONS, 200, HEFT_FRAME_TCP_FIRST, 65535};
    uint8_t header[HEFT_FRAME_HEADER_BYTES];
    struct heft_frame frame = sample;
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(types) / sizeof(types[0]); index++) {
        frame.type = types[index];
        frame.payload_bytes = heft_frame_cap(types[index]);
        heft_frame_encode(&frame, header);
        assert_int_equal(heft_frame_decode(header, &frame), 0);
        frame.payload_bytes++;
        heft_frame_encode(&frame, header);
        assert_int_equal(heft_frame_decode(header, &frame), HEFT_ERR_TOO_LARGE);
        frame.payload_bytes = UINT32_MAX;
        heft_frame_encode(&frame, header);
        assert_int_equal(heft_frame_decode(header, &frame), HEFT_ERR_TOO_LARGE);
    }
}

static void another_version_is_told_apart_from_garbage(void **state)
{
    uint8_t header[HEFT_FRAME_HEADER_BYTES];
    struct heft_frame frame = sample, out;

    (void)state;
    frame.version = HEFT_WIRE_VERSION_HIGHEST + 1;
    heft_frame_encode(&frame, header);
    assert_int_equal(heft_frame_decode(header, &out), HEFT_ERR_INCOMPATIBLE);
    assert_int_equal(out.version, frame.version);
    frame.payload_bytes = 100;
    frame.type = HEFT_FRAME_HELLO;
    heft_frame_encode(&frame, header);
    assert_int_equal(heft_frame_decode(header, &out), 0);
    frame.type = HEFT_FRAME_REFUSE;
    heft_frame_encode(&frame, header);
    assert_int_equal(heft_frame_decode(header, &out), 0);
}

static void a_damaged_payload_is_noticed_when_it_is_checked(void **state)
{
    uint8_t header[HEFT_FRAME_HEADER_BYTES];
    uint8_t payload[40] = "what a frame carries";
    struct heft_frame frame;

    (void)state;
    heft_frame_seal(HEFT_FRAME_BYE, 0, 7, payload, sizeof(payload), header);
    assert_int_equal(heft_frame_decode(header, &frame), 0);
    assert_int_equal(heft_frame_check_payload(&frame, payload), 0);
    payload[39] ^= 1;
    assert_int_equal(heft_frame_check_payload(&frame, payload), HEFT_ERR_PROTOCOL);
    frame.flags &= ~(uint32_t)HEFT_FRAME_CHECKED;
    assert_int_equal(heft_frame_check_payload(&frame, payload), 0);
    heft_frame_seal(HEFT_FRAME_PING, 0, 7, NULL, 0, header);
    assert_int_equal(heft_frame_decode(header, &frame), 0);
    assert_int_equal(heft_frame_check_payload(&frame, ""), 0);
}

static void types_have_names(void **state)
{
    (void)state;
    assert_string_equal(heft_frame_type_name(HEFT_FRAME_HELLO), "HELLO");
    assert_string_equal(heft_frame_type_name(HEFT_FRAME_REGION_FREE), "REGION_FREE");
    assert_string_equal(heft_frame_type_name(HEFT_FRAME_BYE), "BYE");
    assert_string_equal(heft_frame_type_name(0), "UNKNOWN");
    assert_string_equal(heft_frame_type_name(HEFT_FRAME_CREDIT), "CREDIT");
    assert_string_equal(heft_frame_type_name(HEFT_FRAME_AGENT_LAST + 1), "UNKNOWN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_comes_back_as_it_went),
        cmocka_unit_test(every_flipped_bit_is_noticed),
        cmocka_unit_test(a_payload_over_its_cap_is_refused_by_the_header),
        cmocka_unit_test(another_version_is_told_apart_from_garbage),
        cmocka_unit_test(a_damaged_payload_is_noticed_when_it_is_checked),
        cmocka_unit_test(types_have_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
