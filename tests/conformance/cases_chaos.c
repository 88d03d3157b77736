/* SPDX-License-Identifier: Apache-2.0 */
/* What the chaos transport promises to tests that build on it. */
#include "conformance/cases.h"
#include "transport/chaos/chaos.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#define BYTES ((uint64_t)100000)
#define OPS 6

struct rig {
    struct pair pair;
    struct heft_transport_region *near, *far;
    struct heft_move moves[OPS];
    struct test_op ops[OPS];
};

static void rig_open(struct rig *rig, uint32_t drop_every, uint32_t fail_at)
{
    struct heft_chaos_options options = {.base = transport_named(current_setup->base),
                                         .seed = 1,
                                         .pieces_max = 5,
                                         .drop_every = drop_every,
                                         .fail_at = fail_at,
                                         .fail_code = HEFT_ERR_DIGEST};
    struct region_spec spec = {.kind = current_setup->memory,
                               .flags = HEFT_REGION_REMOTE_READ,
                               .length_bytes = BYTES,
                               .filled_bytes = BYTES,
                               .seed = 4};
    struct region_spec near = {.kind = current_setup->near, .length_bytes = BYTES * OPS};

    heft_chaos_configure(&options);
    pair_open(&rig->pair, current_setup);
    rig->near = side_region_add(&rig->pair.near, &near);
    rig->far = pair_far_region(&rig->pair, &spec);
    for (int i = 0; i < OPS; i++) {
        rig->moves[i] = (struct heft_move){.local = rig->near,
                                           .remote = rig->far,
                                           .local_offset_bytes = BYTES * (uint64_t)i,
                                           .length_bytes = BYTES,
                                           .count = 1};
        test_op_init(&rig->ops[i], HEFT_OP_READ, &rig->moves[i], 1);
        assert_int_equal(pair_post(&rig->pair, &rig->ops[i]), 0);
    }
}

static void rig_close(struct rig *rig)
{
    for (int i = 0; i < OPS; i++)
        test_op_free(&rig->ops[i]);
    pair_far_remove(&rig->pair, rig->far);
    side_region_remove(&rig->pair.near, rig->near);
    pair_close(&rig->pair);
}

static void dropped_operations_end_by_cancel_only(void **state)
{
    struct rig rig;

    (void)state;
    if (current_setup->base == NULL)
        skip_case("it is not the chaos transport");
    rig_open(&rig, 3, 0);
    for (int i = 0; i < OPS; i++)
        if (i % 3 != 2)
            assert_int_equal(test_op_wait(&rig.ops[i]), 0);
    for (int i = 2; i < OPS; i += 3) {
        assert_int_equal(test_op_finished(&rig.ops[i]), 0);
        __atomic_store_n(&rig.ops[i].op.cancel_wanted, 1, __ATOMIC_RELEASE);
        rig.pair.near.ops->cancel(rig.pair.endpoint, &rig.ops[i].op);
        assert_int_equal(test_op_wait(&rig.ops[i]), HEFT_ERR_CANCELED);
    }
    rig_close(&rig);
}

static void the_chosen_operation_fails_and_no_other(void **state)
{
    struct rig rig;

    (void)state;
    if (current_setup->base == NULL)
        skip_case("it is not the chaos transport");
    rig_open(&rig, 0, 4);
    for (int i = 0; i < OPS; i++)
        assert_int_equal(test_op_wait(&rig.ops[i]), i == 3 ? HEFT_ERR_DIGEST : 0);
    rig_close(&rig);
}

int run_chaos_cases(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropped_operations_end_by_cancel_only),
        cmocka_unit_test(the_chosen_operation_fails_and_no_other),
    };

    return cmocka_run_group_tests_name("chaos", tests, NULL, NULL);
}
