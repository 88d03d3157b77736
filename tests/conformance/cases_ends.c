/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How operations end when they don't end well: done comes exactly once and soon, and after it nothing touches
 * the operation's memory.
 */
#include "conformance/cases.h"
#include "effort.h"
#include "base/clock.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OPS_MAX 24
#define MOST_ROUNDS 20 /* on a busy machine all may be over before they are canceled */

/*
 * What the GPU reaches by itself is begun as soon as it is posted, as long as there are flights for it, and
 * within a real GPU megabytes take microseconds: more and larger operations, so that some are still to come.
 */
static uint64_t big_bytes(void)
{
    if (setup_is_direct(current_setup))
        return (uint64_t)(device_is_real() && current_setup->near != MEMORY_PINNED ? 512 : 4) << 20;
    return (uint64_t)EFFORT(24, 8) << 20;
}

static int op_count(void)
{
    return setup_is_direct(current_setup) ? OPS_MAX : 6;
}

/* Device memory comes in many setups, and a process that starts a real driver takes half a second for it. */
static int rounds(int full, int few)
{
    return strstr(current_setup->name, "cuda") ? few : full;
}

struct flight {
    struct pair pair;
    struct heft_transport_region *near, *far;
    struct heft_move moves[OPS_MAX];
    struct test_op ops[OPS_MAX];
};

/* One line of a fence: what memory holds once its operation is over. */
#define AFTER 0xa5

static void mark_memory(struct test_op *op)
{
    const struct heft_move *move = op->op.moves;

    region_set(move->local, move->local_offset_bytes, AFTER, move->length_bytes);
}

static void flight_open(struct flight *flight, enum heft_op kind)
{
    struct region_spec far = {.kind = current_setup->memory,
                              .flags = HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE,
                              .length_bytes = big_bytes(),
                              .filled_bytes =
                                  setup_is_direct(current_setup) ? (uint64_t)4 << 20 : big_bytes(),
                              .seed = 5};
    struct region_spec near = {.kind = current_setup->near,
                               .length_bytes = big_bytes() * (uint64_t)op_count()};

    if (kind == HEFT_OP_WRITE) { /* each its own bytes, and a place that none of them writes */
        far.length_bytes = big_bytes() * ((uint64_t)op_count() + 1);
        far.filled_bytes = 0;
    }
    pair_open(&flight->pair, current_setup);
    flight->near = side_region_add(&flight->pair.near, &near);
    flight->far = pair_far_region(&flight->pair, &far);
    for (int i = 0; i < op_count(); i++) {
        flight->moves[i] = (struct heft_move){.local = flight->near,
                                              .remote = flight->far,
                                              .local_offset_bytes = big_bytes() * (uint64_t)i,
                                              .length_bytes = big_bytes(),
                                              .count = 1};
        if (kind == HEFT_OP_WRITE)
            flight->moves[i].remote_offset_bytes = big_bytes() * (uint64_t)i;
        test_op_init(&flight->ops[i], kind, &flight->moves[i], 1);
        if (kind == HEFT_OP_READ)
            flight->ops[i].on_done = mark_memory;
    }
}

static void flight_post(struct flight *flight)
{
    for (int i = 0; i < op_count(); i++)
        assert_int_equal(pair_post(&flight->pair, &flight->ops[i]), 0);
}

/* Waits until some bytes have moved (or an operation is over): "in the middle". */
static void flight_wait_bytes(struct flight *flight, uint64_t bytes)
{
    struct timespec pause = {0, 50000};

    for (int i = 0; i < 200000; i++) {
        uint64_t moved = 0;

        for (int k = 0; k < op_count(); k++)
            moved += __atomic_load_n(&flight->ops[k].op.done_bytes, __ATOMIC_RELAXED);
        if (moved >= bytes)
            return;
        (void)nanosleep(&pause, NULL);
    }
    fail_msg("no bytes moved");
}

static PLAIN_LOOP void check_marks(struct flight *flight)
{
    const unsigned char *bytes = flight->near->address;

    if (flight->near->space == HEFT_SPACE_CUDA) {
        device_expect_all(flight->near, AFTER, big_bytes() * (uint64_t)op_count());
        return;
    }
    for (uint64_t i = 0; i < big_bytes() * (uint64_t)op_count(); i += 8)
        if (*(const uint64_t *)(const void *)(bytes + i) != UINT64_C(0xa5a5a5a5a5a5a5a5))
            fail_msg("byte %llu of re-used memory was written after done", (unsigned long long)i);
}

static void flight_close(struct flight *flight, int far_is_gone)
{
    for (int i = 0; i < op_count(); i++)
        test_op_free(&flight->ops[i]);
    if (!far_is_gone)
        pair_far_remove(&flight->pair, flight->far);
    side_region_remove(&flight->pair.near, flight->near);
    pair_close(&flight->pair);
}

static void cancel_op(struct flight *flight, int index)
{
    __atomic_store_n(&flight->ops[index].op.cancel_wanted, 1, __ATOMIC_RELEASE);
    flight->pair.near.ops->cancel(flight->pair.endpoint, &flight->ops[index].op);
}

static void canceled_memory_can_be_used_again_at_once(void **state)
{
    uint64_t seed = 11;
    int canceled = 0;

    (void)state;
    for (int round = 0; round < rounds(EFFORT(8, 3), 2) || (canceled == 0 && round < MOST_ROUNDS); round++) {
        struct flight *flight = calloc(1, sizeof(*flight));

        flight_open(flight, HEFT_OP_READ);
        flight_post(flight);
        if (round > 0) /* a GPU may be through with all of them before this thread wakes */
            flight_wait_bytes(flight, random_range(&seed, 0, big_bytes()));
        for (int i = 0; i < op_count(); i++)
            if (round == 0 || random_range(&seed, 0, 2) > 0)
                cancel_op(flight, i);
        for (int i = 0; i < op_count(); i++) {
            int status = test_op_wait(&flight->ops[i]);

            assert_true(status == 0 || status == HEFT_ERR_CANCELED);
            assert_true(status != 0 || flight->ops[i].op.done_bytes == big_bytes());
            canceled += status != 0;
        }
        check_marks(flight);
        /* the endpoint still works */
        test_op_free(&flight->ops[0]);
        test_op_init(&flight->ops[0], HEFT_OP_READ, &flight->moves[0], 1);
        assert_int_equal(pair_post(&flight->pair, &flight->ops[0]), 0);
        assert_int_equal(test_op_wait(&flight->ops[0]), 0);
        flight_close(flight, 0);
        free(flight);
    }
    assert_true(canceled > 0);
}

static void canceled_writes_end_and_leave_the_endpoint_working(void **state)
{
    uint64_t seed = 12;

    (void)state;
    if (current_setup->no_write)
        skip_case("it does not write");
    for (int round = 0; round < rounds(EFFORT(5, 2), 1); round++) {
        struct flight *flight = calloc(1, sizeof(*flight));

        flight_open(flight, HEFT_OP_WRITE);
        flight_post(flight);
        flight_wait_bytes(flight, random_range(&seed, 0, big_bytes()));
        for (int i = 0; i < op_count(); i++)
            cancel_op(flight, i);
        for (int i = 0; i < op_count(); i++) {
            int status = test_op_wait(&flight->ops[i]);

            assert_true(status == 0 || status == HEFT_ERR_CANCELED);
        }
        /* Elsewhere: what is left of a canceled write may still arrive at the peer, by another stream. */
        flight->moves[0].remote_offset_bytes = big_bytes() * (uint64_t)op_count();
        test_op_free(&flight->ops[0]);
        test_op_init(&flight->ops[0], HEFT_OP_WRITE, &flight->moves[0], 1);
        assert_int_equal(pair_post(&flight->pair, &flight->ops[0]), 0);
        assert_int_equal(test_op_wait(&flight->ops[0]), 0);
        flight_close(flight, 0);
        free(flight);
    }
}

/* Returns how many operations had not ended before. */
static int fail_flight(void)
{
    struct flight *flight = calloc(1, sizeof(*flight));
    struct heft_error why = {HEFT_ERR_STALLED, "the peer is frozen, says the test"};
    int failed = 0;

    flight_open(flight, HEFT_OP_READ);
    flight_post(flight);
    flight_wait_bytes(flight, 1);
    (flight->pair.near.ops->fail)(flight->pair.endpoint, HEFT_ERR_STALLED, &why);
    for (int i = 0; i < op_count(); i++) {
        int status = test_op_wait(&flight->ops[i]);

        assert_true(status == 0 || status == HEFT_ERR_STALLED);
        if (status != 0)
            assert_string_equal(flight->ops[i].error.text, why.text);
        failed += status != 0;
    }
    check_marks(flight);
    test_op_free(&flight->ops[0]);
    test_op_init(&flight->ops[0], HEFT_OP_READ, &flight->moves[0], 1);
    assert_int_equal(pair_post(&flight->pair, &flight->ops[0]), HEFT_ERR_STALLED);
    assert_int_equal(test_op_finished(&flight->ops[0]), 0);
    flight_close(flight, 0);
    free(flight);
    return failed;
}

static void failing_an_endpoint_ends_everything_and_refuses_more(void **state)
{
    int failed = 0;

    (void)state;
    for (int round = 0; failed == 0 && round < MOST_ROUNDS; round++)
        failed = fail_flight();
    assert_true(failed > 0);
}

static void disconnecting_ends_everything_before_it_returns(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < (uint64_t)rounds(EFFORT(4, 2), 2); round++) {
        struct flight *flight = calloc(1, sizeof(*flight));

        flight_open(flight, HEFT_OP_READ);
        flight_post(flight);
        flight_wait_bytes(flight, round * ((uint64_t)3 << 20));
        pair_disconnect(&flight->pair);
        for (int i = 0; i < op_count(); i++)
            assert_int_equal(test_op_finished(&flight->ops[i]), 1);
        check_marks(flight);
        flight_close(flight, 0);
        free(flight);
    }
}

static void a_killed_peer_ends_its_operations(void **state)
{
    struct flight *flight;

    (void)state;
    if (!current_setup->process)
        skip_case("the peer is no process of its own");
    flight = calloc(1, sizeof(*flight));
    flight_open(flight, HEFT_OP_READ);
    flight_post(flight);
    flight_wait_bytes(flight, 1);
    assert_int_equal(kill(flight->pair.remote.pid, SIGKILL), 0);
    for (int i = 0; i < op_count(); i++) {
        int status = test_op_wait(&flight->ops[i]);

        /* mapped memory outlives its owner, and a few operations may have been over before */
        assert_true(status == 0 || status == HEFT_ERR_PEER_LOST);
    }
    check_marks(flight);
    if (flight->pair.near.ops->remote_remove != NULL)
        flight->pair.near.ops->remote_remove(flight->pair.endpoint, flight->far);
    free(flight->far);
    flight_close(flight, 1);
    free(flight);
}

static void a_frozen_peer_delays_neither_cancel_nor_fail(void **state)
{
    struct heft_error why = {HEFT_ERR_STALLED, "frozen"};
    struct flight *flight;
    uint64_t start;

    (void)state;
    if (!current_setup->process)
        skip_case("the peer is no process of its own");
    flight = calloc(1, sizeof(*flight));
    flight_open(flight, HEFT_OP_READ);
    flight_post(flight);
    flight_wait_bytes(flight, 1);
    assert_int_equal(kill(flight->pair.remote.pid, SIGSTOP), 0);
    start = heft_now_ns();
    for (int i = 0; i < op_count() / 2; i++)
        cancel_op(flight, i);
    for (int i = 0; i < op_count() / 2; i++)
        (void)test_op_wait(&flight->ops[i]);
    (flight->pair.near.ops->fail)(flight->pair.endpoint, HEFT_ERR_STALLED, &why);
    for (int i = op_count() / 2; i < op_count(); i++)
        (void)test_op_wait(&flight->ops[i]);
    assert_true(heft_now_ns() - start < 15 * HEFT_NS_PER_S);
    check_marks(flight);
    assert_int_equal(kill(flight->pair.remote.pid, SIGCONT), 0);
    /* an answer of the peer to a command: it runs again, and what it sent meanwhile has had its chance */
    (void)remote_pins(&flight->pair.remote);
    check_marks(flight);
    pair_disconnect(&flight->pair);
    check_marks(flight);
    flight_close(flight, 0);
    free(flight);
}

int run_ends_cases(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(canceled_memory_can_be_used_again_at_once),
        cmocka_unit_test(canceled_writes_end_and_leave_the_endpoint_working),
        cmocka_unit_test(failing_an_endpoint_ends_everything_and_refuses_more),
        cmocka_unit_test(disconnecting_ends_everything_before_it_returns),
        cmocka_unit_test(a_killed_peer_ends_its_operations),
        cmocka_unit_test(a_frozen_peer_delays_neither_cancel_nor_fail),
    };

    return cmocka_run_group_tests_name("ends", tests, NULL, NULL);
}
