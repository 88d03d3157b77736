/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/data.h"
#include "base/buf.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static const struct heft_data_run run = {UINT64_C(0x1122334455667788), 5, UINT64_C(1) << 40, 7, UINT64_MAX};

static struct heft_data_head make(uint16_t type, uint8_t *out)
{
    struct heft_data_head head = {.type = type, .flags = HEFT_DATA_DIGEST, .id = 9, .digest = 77};

    memset(out, 0, 256);
    if (type == HEFT_DATA_READ || type == HEFT_DATA_WRITE) {
        head.value = 2;
        head.table_bytes = 2 * HEFT_DATA_RUN_BYTES;
        heft_data_run_encode(&run, out + HEFT_DATA_HEAD_BYTES);
        heft_data_run_encode(&run, out + HEFT_DATA_HEAD_BYTES + HEFT_DATA_RUN_BYTES);
    }
    if (type == HEFT_DATA_ERROR) {
        head.value = 203;
        head.extra = 4;
        head.table_bytes = 5;
        memcpy(out + HEFT_DATA_HEAD_BYTES, "no!!!", 5);
    }
    if (type == HEFT_DATA_WRITE || type == HEFT_DATA_DATA)
        head.bulk_bytes = 4096;
    heft_data_encode(&head, out);
    return head;
}

static void every_type_comes_back_as_it_went(void **state)
{
    uint8_t bytes[256];
    struct heft_data_run back;

    (void)state;
    for (uint16_t type = HEFT_DATA_READ; type <= HEFT_DATA_ERROR; type++) {
        struct heft_data_head sent = make(type, bytes), got;

        assert_int_equal(heft_data_decode(bytes, &got), 0);
        assert_int_equal(heft_data_check(&got, bytes), 0);
        assert_int_equal(got.type, sent.type);
        assert_int_equal(got.flags, sent.flags);
        assert_int_equal(got.id, sent.id);
        assert_int_equal(got.value, sent.value);
        assert_int_equal(got.extra, sent.extra);
        assert_int_equal(got.digest, sent.digest);
        assert_int_equal(got.table_bytes, sent.table_bytes);
        assert_int_equal(got.bulk_bytes, sent.bulk_bytes);
    }
    (void)make(HEFT_DATA_READ, bytes);
    heft_data_run_decode(bytes + HEFT_DATA_HEAD_BYTES + HEFT_DATA_RUN_BYTES, &back);
    assert_memory_equal(&back, &run, sizeof(run));
}

static void any_flipped_bit_of_head_or_runs_is_found(void **state)
{
    uint8_t bytes[256];
    struct heft_data_head head;
    size_t size = HEFT_DATA_HEAD_BYTES + 2 * HEFT_DATA_RUN_BYTES;

    (void)state;
    for (size_t bit = 0; bit < size * 8; bit++) {
        (void)make(HEFT_DATA_READ, bytes);
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        assert_true(heft_data_decode(bytes, &head) != 0 || heft_data_check(&head, bytes) != 0);
    }
}

static void limits_and_impossible_lengths_are_refused(void **state)
{
    static const struct {
        struct heft_data_head head;
        int code;
    } table[] = {
        {{.type = HEFT_DATA_READ,
          .value = HEFT_DATA_MAX_RUNS + 1,
          .table_bytes = (HEFT_DATA_MAX_RUNS + 1) * HEFT_DATA_RUN_BYTES},
         HEFT_ERR_TOO_LARGE},
        {{.type = HEFT_DATA_READ, .value = 0}, HEFT_ERR_PROTOCOL},
        {{.type = HEFT_DATA_READ, .value = 3, .table_bytes = 40}, HEFT_ERR_PROTOCOL},
        {{.type = HEFT_DATA_READ, .value = 1, .table_bytes = 40, .bulk_bytes = 1}, HEFT_ERR_PROTOCOL},
        {{.type = HEFT_DATA_WRITE, .value = 1, .table_bytes = 40}, HEFT_ERR_PROTOCOL},
        {{.type = HEFT_DATA_DATA, .bulk_bytes = HEFT_DATA_MAX_FRAME_BYTES + 1}, HEFT_ERR_TOO_LARGE},
        {{.type = HEFT_DATA_DATA}, HEFT_ERR_PROTOCOL},
        {{.type = HEFT_DATA_ACK, .bulk_bytes = 1}, HEFT_ERR_PROTOCOL},
        {{.type = HEFT_DATA_ERROR, .table_bytes = HEFT_DATA_MAX_TEXT_BYTES + 1}, HEFT_ERR_TOO_LARGE},
        {{.type = HEFT_DATA_ERROR + 1}, HEFT_ERR_PROTOCOL},
        {{.type = HEFT_DATA_READ, .value = 1, .table_bytes = 40, .flags = 1u << 20}, HEFT_ERR_PROTOCOL},
    };
    static uint8_t bytes[HEFT_DATA_HEAD_BYTES + (HEFT_DATA_MAX_RUNS + 1) * HEFT_DATA_RUN_BYTES];
    struct heft_data_head head;

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        heft_data_encode(&table[i].head, bytes);
        assert_int_equal(heft_data_decode(bytes, &head), table[i].code);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_comes_back_as_it_went),
        cmocka_unit_test(any_flipped_bit_of_head_or_runs_is_found),
        cmocka_unit_test(limits_and_impossible_lengths_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
