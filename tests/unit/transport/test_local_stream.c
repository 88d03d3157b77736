/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/local/local.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#define BYTES 4096u

static void copies_of_every_alignment_and_length_change_their_bytes_only(void **state)
{
    static char from[BYTES], to[BYTES], model[BYTES];

    (void)state;
    for (uint32_t i = 0; i < BYTES; i++)
        from[i] = (char)(i * 7 + i / 251);
    for (uint32_t shift = 0; shift < 130; shift += 3)
        for (uint32_t length = 0; length < 1400; length += length < 700 ? 1 : 37) {
            uint32_t source = (shift * 5 + length) % 67;

            memset(to, 0x55, sizeof(to));
            memcpy(model, to, sizeof(to));
            memcpy(model + shift, from + source, length);
            local_stream_copy(to + shift, from + source, length);
            assert_memory_equal(to, model, sizeof(to));
        }
}

static void overlapping_copies_are_as_memmove(void **state)
{
    static char bytes[BYTES], model[BYTES];

    (void)state;
    for (uint32_t distance = 0; distance < 300; distance += 7)
        for (int back = 0; back < 2; back++) {
            for (uint32_t i = 0; i < BYTES; i++)
                bytes[i] = model[i] = (char)(i * 3 + i / 256);
            memmove(model + (back ? 0 : distance), model + (back ? distance : 0), 3000);
            local_stream_copy(bytes + (back ? 0 : distance), bytes + (back ? distance : 0), 3000);
            assert_memory_equal(bytes, model, sizeof(bytes));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_of_every_alignment_and_length_change_their_bytes_only),
        cmocka_unit_test(overlapping_copies_are_as_memmove),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
