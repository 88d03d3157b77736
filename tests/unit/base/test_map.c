/* SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"
#include "base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static void many_keys_are_found_again_and_replaced(void **state)
{
    static char keys[20000][12];
    struct heft_map map;
    uint64_t value, old;
    int existed, index;

    (void)state;
    heft_map_init(&map);
    assert_false(heft_map_get(&map, "a", 1, &value));
    for (index = 0; index < 20000; index++) {
        (void)snprintf(keys[index], sizeof(keys[index]), "k%d", index);
        assert_int_equal(
            heft_map_put(&map, keys[index], strlen(keys[index]), (uint64_t)index, &existed, NULL), 0);
        assert_false(existed);
    }
    for (index = 0; index < 20000; index++) {
        assert_true(heft_map_get(&map, keys[index], strlen(keys[index]), &value));
        assert_int_equal(value, index);
    }
    assert_int_equal(heft_map_put(&map, "k7", 2, 99, &existed, &old), 0);
    assert_true(existed);
    assert_int_equal(old, 7);
    assert_int_equal(map.count, 20000);
    assert_false(heft_map_get(&map, "k7x", 3, &value));
    heft_map_free(&map);
}

static void empty_keys_and_keys_with_nul_are_keys(void **state)
{
    struct heft_map map;
    uint64_t value = 0;

    (void)state;
    heft_map_init(&map);
    assert_int_equal(heft_map_put(&map, "", 0, 1, NULL, NULL), 0);
    assert_int_equal(heft_map_put(&map, "a\0b", 3, 2, NULL, NULL), 0);
    assert_true(heft_map_get(&map, "", 0, &value));
    assert_int_equal(value, 1);
    assert_true(heft_map_get(&map, "a\0b", 3, &value));
    assert_int_equal(value, 2);
    assert_false(heft_map_get(&map, "a", 1, &value));
    heft_map_free(&map);
}

static const char *key_of(const void *keys, size_t number, size_t *bytes_out)
{
    const char *key = ((const char *const *)keys)[number];

    *bytes_out = strlen(key);
    return key;
}

static void many_keys_are_put_at_once_up_to_the_first_that_stands_twice(void **state)
{
    static char texts[5000][12];
    static const char *keys[5000];
    uint64_t value = 0, old = 0;
    struct heft_map map;
    size_t number = 0, count;
    int index;

    (void)state;
    for (index = 0; index < 5000; index++) {
        (void)snprintf(texts[index], sizeof(texts[index]), "k%d", index);
        keys[index] = texts[index];
    }
    for (count = 0; count < 40; count++) { /* shorter than what is hashed ahead, and longer */
        heft_map_init(&map);
        assert_int_equal(heft_map_put_all(&map, count, key_of, keys, &number, &old), 0);
        assert_int_equal(map.count, count);
        heft_map_free(&map);
    }
    heft_map_init(&map);
    assert_int_equal(heft_map_put_all(&map, 5000, key_of, keys, &number, &old), 0);
    for (index = 0; index < 5000; index++) {
        assert_true(heft_map_get(&map, keys[index], strlen(keys[index]), &value));
        assert_int_equal(value, index);
    }
    heft_map_free(&map);
    heft_map_init(&map);
    keys[4998] = texts[17];
    assert_int_equal(heft_map_put_all(&map, 5000, key_of, keys, &number, &old), HEFT_ERR_EXISTS);
    assert_int_equal(number, 4998);
    assert_int_equal(old, 17);
    heft_map_free(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_keys_are_found_again_and_replaced),
        cmocka_unit_test(empty_keys_and_keys_with_nul_are_keys),
        cmocka_unit_test(many_keys_are_put_at_once_up_to_the_first_that_stands_twice),
    };
    return cmocka_run_group_tests_name("map", tests, NULL, NULL);
}
