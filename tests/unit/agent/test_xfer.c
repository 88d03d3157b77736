/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers: checks, life, callbacks, cancel, deadlines; over the transport made for tests. */
#include "agent/xfer.h"
#include "base/clock.h"
#include "pair.h"

#include <unistd.h>

static int setup(void **state)
{
    static struct pair pair;

    fake_register();
    pair_open(&pair, "unix", "fake");
    *state = &pair;
    return 0;
}

static int teardown(void **state)
{
    pair_close(*state);
    fake_unregister();
    return 0;
}

static void a_read_brings_the_bytes_and_can_be_posted_again(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_xfer *xfer = create_read(pair, NULL);
    int round;

    assert_int_equal(heft_xfer_poll(xfer), HEFT_ERR_STATE);
    for (round = 0; round < 100; round++) {
        memset(pair->target, 0, REGION_BYTES);
        fake_set_mode(round % 2 ? FAKE_NOW : FAKE_COPY);
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
        assert_memory_equal(pair->target, pair->source, REGION_BYTES);
    }
    heft_xfer_get_result(xfer, &result);
    assert_int_equal(result.status, 0);
    assert_int_equal(result.bytes, REGION_BYTES);
    assert_string_equal(result.transport, "fake");
    assert_true(result.end_ns >= result.start_ns);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(STAT(pair->client, xfers_done), 100);
    assert_int_equal(STAT(pair->client, bytes_read), 100 * REGION_BYTES);
}

static void a_write_carries_bytes_to_the_peer(void **state)
{
    struct pair *pair = *state;
    struct heft_run run = whole_run(pair);
    struct heft_xfer *xfer;

    memset(pair->target, 0x5a, REGION_BYTES);
    run.length_bytes = 100;
    run.remote_offset_bytes = 50;
    assert_int_equal(heft_xfer_create(pair->client, HEFT_OP_WRITE, pair->peer, &run, 1, NULL, &xfer, NULL),
                     0);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(pair->source[49], (uint8_t)(49 * 31 + 7));
    assert_int_equal(pair->source[50], 0x5a);
    assert_int_equal(pair->source[149], 0x5a);
    assert_int_equal(pair->source[150], (uint8_t)(150 * 31 + 7));
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static int create_with(struct pair *pair, struct heft_run run, struct heft_error *error)
{
    struct heft_xfer *xfer = NULL;
    int rc = heft_xfer_create(pair->client, HEFT_OP_READ, pair->peer, &run, 1, NULL, &xfer, error);

    if (!rc)
        assert_int_equal(heft_xfer_release(xfer), 0);
    return rc;
}

static void runs_outside_their_regions_are_refused_and_nothing_wraps(void **state)
{
    struct pair *pair = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_run run = whole_run(pair);

    run.length_bytes++;
    assert_int_equal(create_with(pair, run, &error), HEFT_ERR_RANGE);
    assert_non_null(strstr(error.text, "run 0"));
    run = whole_run(pair);
    run.remote_offset_bytes = 1;
    assert_int_equal(create_with(pair, run, NULL), HEFT_ERR_RANGE);
    run = whole_run(pair);
    run.local_offset_bytes = UINT64_MAX;
    assert_int_equal(create_with(pair, run, NULL), HEFT_ERR_RANGE);
    run = whole_run(pair);
    run.length_bytes = UINT64_MAX;
    assert_int_equal(create_with(pair, run, NULL), HEFT_ERR_RANGE);
    run = whole_run(pair);
    run.length_bytes = 16;
    run.count = UINT64_MAX;
    run.local_stride_bytes = run.remote_stride_bytes = 16;
    assert_int_equal(create_with(pair, run, NULL), HEFT_ERR_RANGE);
    run.count = (UINT64_C(1) << 60) + 1; /* (count - 1) * 16 wraps to 0 */
    assert_int_equal(create_with(pair, run, NULL), HEFT_ERR_RANGE);
    run.count = 2;
    run.remote_stride_bytes = REGION_BYTES - 15;
    assert_int_equal(create_with(pair, run, NULL), HEFT_ERR_RANGE);
    run.remote_stride_bytes = REGION_BYTES - 16;
    assert_int_equal(create_with(pair, run, NULL), 0);
    run.remote_region = 999;
    assert_int_equal(create_with(pair, run, NULL), HEFT_ERR_STALE);
}

static void pieces_that_overlap_where_they_are_written_are_refused(void **state)
{
    struct pair *pair = *state;
    struct heft_run run = whole_run(pair);

    run.length_bytes = 16;
    run.count = 4;
    run.local_stride_bytes = 15;
    assert_int_equal(create_with(pair, run, NULL), HEFT_ERR_INVALID);
    run.local_stride_bytes = 16; /* reading one piece again and again is no mistake */
    run.remote_stride_bytes = 0;
    assert_int_equal(create_with(pair, run, NULL), 0);
}

static void nothing_to_move_is_done_at_once(void **state)
{
    struct pair *pair = *state;
    struct heft_run runs[2] = {whole_run(pair), whole_run(pair)};
    struct heft_xfer *xfer;

    runs[0].length_bytes = 0;
    runs[0].local_offset_bytes = REGION_BYTES;
    runs[1].count = 0;
    runs[1].remote_offset_bytes = UINT64_MAX;
    fake_set_mode(FAKE_REFUSE);
    assert_int_equal(heft_xfer_create(pair->client, HEFT_OP_READ, pair->peer, runs, 2, NULL, &xfer, NULL), 0);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_xfer_create(pair->client, HEFT_OP_READ, pair->peer, NULL, 0, NULL, &xfer, NULL), 0);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void runs_can_be_replaced_and_a_bad_set_leaves_the_old_ones(void **state)
{
    struct pair *pair = *state;
    struct heft_run runs[3] = {whole_run(pair), whole_run(pair), whole_run(pair)};
    struct heft_xfer *xfer = create_read(pair, NULL);

    memset(pair->target, 0, REGION_BYTES);
    runs[0].length_bytes = runs[1].length_bytes = runs[2].length_bytes = 8;
    runs[1].local_offset_bytes = runs[1].remote_offset_bytes = 100;
    runs[2].local_offset_bytes = REGION_BYTES;
    assert_int_equal(heft_xfer_set_runs(xfer, runs, 2, NULL), 0);
    assert_int_equal(heft_xfer_set_runs(xfer, runs, 3, NULL), HEFT_ERR_RANGE);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_memory_equal(pair->target, pair->source, 8);
    assert_int_equal(pair->target[8], 0);
    assert_memory_equal(pair->target + 100, pair->source + 100, 8);
    fake_set_mode(FAKE_HOLD);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_set_runs(xfer, runs, 1, NULL), HEFT_ERR_STATE);
    fake_finish();
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void what_is_active_is_busy(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer *xfer = create_read(pair, NULL);
    struct heft_error error = HEFT_ERROR_INIT;

    fake_set_mode(FAKE_HOLD);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_post(xfer, NULL), HEFT_ERR_STATE);
    assert_int_equal(heft_xfer_poll(xfer), HEFT_ERR_AGAIN);
    assert_int_equal(heft_xfer_wait(xfer, 10), HEFT_ERR_AGAIN);
    assert_int_equal(heft_xfer_release(xfer), HEFT_ERR_BUSY);
    assert_int_equal(heft_region_deregister(pair->target_region, &error), HEFT_ERR_BUSY);
    assert_int_equal(heft_peer_close(pair->peer, &error), HEFT_ERR_BUSY);
    assert_non_null(strstr(error.text, "server"));
    assert_int_equal(heft_agent_close(pair->client, &error), HEFT_ERR_BUSY);
    fake_finish();
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void cancel_reports_only_after_the_transport_let_go(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_xfer *xfer = create_read(pair, NULL);
    unsigned before = fake_cancels();

    assert_int_equal(heft_xfer_cancel(xfer), 0); /* nothing is active: nothing happens */
    fake_set_mode(FAKE_STUBBORN);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_cancel(xfer), 0);
    assert_int_equal(heft_xfer_cancel(xfer), 0);
    assert_int_equal(fake_cancels(), before + 1);
    assert_int_equal(heft_xfer_wait(xfer, 50), HEFT_ERR_AGAIN);
    assert_int_equal(heft_region_deregister(pair->target_region, NULL), HEFT_ERR_BUSY);
    fake_finish(); /* it came to its real end first */
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);

    fake_set_mode(FAKE_HOLD);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_cancel(xfer), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), HEFT_ERR_CANCELED);
    heft_xfer_get_result(xfer, &result);
    assert_int_equal(result.error.code, HEFT_ERR_CANCELED);
    assert_int_equal(result.bytes, 0);
    fake_set_mode(FAKE_COPY);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void expect_end_after(struct pair *pair, struct heft_xfer_options options, int code, uint64_t limit_ms)
{
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_xfer *xfer = create_read(pair, &options);
    uint64_t took_ms;

    fake_set_mode(FAKE_HOLD);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), code);
    heft_xfer_get_result(xfer, &result);
    took_ms = (result.end_ns - result.start_ns) / HEFT_NS_PER_MS;
    assert_true(took_ms >= limit_ms);
    assert_true(took_ms <= limit_ms + limit_ms / 5 + 100); /* 100: a busy test machine */
    assert_non_null(strstr(result.error.text, "server"));
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void a_deadline_and_a_stall_limit_end_the_transfer_in_time(void **state)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;

    options.deadline_ms = 300;
    expect_end_after(*state, options, HEFT_ERR_DEADLINE, 300);
    options.deadline_ms = 50;
    expect_end_after(*state, options, HEFT_ERR_DEADLINE, 50);
    options.deadline_ms = 5000;
    options.stall_ms = 200;
    expect_end_after(*state, options, HEFT_ERR_STALLED, 200);
}

/* The monitor reads the clock, then waits for its lock; a transfer posted meanwhile begins later than "now".
 */
static void a_transfer_that_begins_while_the_monitor_looks_is_not_taken_for_stalled(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer *xfer = create_read(pair, NULL);

    fake_set_mode(FAKE_HOLD);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    (void)pthread_mutex_lock(&pair->client->active_lock);
    xfer->last_progress_ns = heft_now_ns() + 60 * HEFT_NS_PER_S;
    (void)pthread_mutex_unlock(&pair->client->active_lock);
    assert_int_equal(heft_xfer_wait(xfer, 200), HEFT_ERR_AGAIN);
    fake_finish();
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void a_transport_that_counts_too_few_bytes_is_not_believed(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer *xfer = create_read(pair, NULL);

    fake_set_mode(FAKE_SHORT);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), HEFT_ERR_INTERNAL);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(STAT(pair->client, xfers_failed), 1);
}

static void a_refused_post_leaves_nothing_behind(void **state)
{
    struct pair *pair = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_xfer *xfer = create_read(pair, NULL);

    fake_set_mode(FAKE_REFUSE);
    assert_int_equal(heft_xfer_post(xfer, &error), HEFT_ERR_UNAVAILABLE);
    assert_non_null(strstr(error.text, "server"));
    assert_non_null(strstr(error.text, "the test refuses"));
    assert_int_equal(heft_xfer_poll(xfer), HEFT_ERR_UNAVAILABLE);
    fake_set_mode(FAKE_COPY);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_region_deregister(pair->target_region, NULL), 0);
}

static void a_broken_endpoint_is_replaced_when_the_next_transfer_is_created(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_xfer *xfer = create_read(pair, NULL), *next;
    unsigned before = fake_connects();

    fake_set_mode(FAKE_BREAK);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), HEFT_ERR_PEER_LOST);
    heft_xfer_get_result(xfer, &result);
    assert_int_equal(result.failed_run, 0);
    assert_int_equal(heft_peer_status(pair->peer, NULL), 0);
    fake_set_mode(FAKE_COPY);
    next = create_read(pair, NULL);
    assert_int_equal(fake_connects(), before + 1);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0); /* the old one uses the new endpoint */
    assert_int_equal(heft_xfer_post(next, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(heft_xfer_wait(next, 20000), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_xfer_release(next), 0);
}

/* ---- callbacks ---- */

struct chain {
    unsigned left, calls;
    int release;
    pthread_t poster;
    int on_poster;
};

static void repost(struct heft_xfer *xfer, const struct heft_xfer_result *result, void *context)
{
    struct chain *chain = context;

    assert_int_equal(result->status, 0);
    assert_int_equal(heft_xfer_poll(xfer), 0);
    assert_int_equal(heft_xfer_wait(xfer, 1000), 0);
    chain->on_poster |= pthread_equal(pthread_self(), chain->poster);
    (void)__atomic_add_fetch(&chain->calls, 1, __ATOMIC_RELEASE);
    if (--chain->left)
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    else if (chain->release)
        assert_int_equal(heft_xfer_release(xfer), 0);
}

static int called_1000(void *context)
{
    struct chain *chain = context;

    return __atomic_load_n(&chain->calls, __ATOMIC_ACQUIRE) == 1000;
}

static int is_idle(void *context)
{
    struct heft_agent *agent = context;

    return __atomic_load_n(&agent->busy, __ATOMIC_ACQUIRE) == 0;
}

static void a_callback_may_post_again_and_release(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    int round;

    for (round = 0; round < 4; round++) {
        struct chain chain = {.left = 1000, .release = round & 1, .poster = pthread_self()};
        struct heft_xfer *xfer;

        fake_set_mode(round & 2 ? FAKE_NOW : FAKE_COPY);
        options.on_done = repost;
        options.context = &chain;
        xfer = create_read(pair, &options);
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        if (chain.release) {
            eventually(called_1000, &chain);
            eventually(is_idle, pair->client);
        } else {
            assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
            assert_int_equal(heft_xfer_release(xfer), 0);
        }
        assert_int_equal(chain.calls, 1000);
        if (!test_is_driven()) /* then a wait is where callbacks run */
            assert_false(chain.on_poster);
    }
}

static void refuses_to_block(struct heft_xfer *xfer, const struct heft_xfer_result *result, void *context)
{
    struct pair *pair = context;
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    struct heft_peer *peer;

    (void)xfer;
    (void)result;
    assert_int_equal(heft_agent_close(pair->client, NULL), HEFT_ERR_STATE);
    assert_int_equal(heft_peer_close(pair->peer, NULL), HEFT_ERR_STATE);
    assert_int_equal(heft_peer_connect(pair->client, &options, &peer, NULL), HEFT_ERR_STATE);
}

static void a_callback_can_not_block_the_agent(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer *xfer;

    options.on_done = refuses_to_block;
    options.context = pair;
    xfer = create_read(pair, &options);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void *cancel_and_poll(void *context)
{
    struct heft_xfer **xfers = context;
    int round;

    for (round = 0; round < 3000; round++) {
        (void)heft_xfer_cancel(xfers[round % 4]);
        (void)heft_xfer_poll(xfers[(round + 1) % 4]);
    }
    return NULL;
}

static void posting_and_canceling_from_two_threads_always_ends(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer *xfers[4];
    pthread_t thread;
    int round, index;

    options.deadline_ms = 3; /* the monitor takes part */
    for (index = 0; index < 4; index++)
        xfers[index] = create_read(pair, &options);
    fake_set_mode(FAKE_HOLD);
    assert_int_equal(pthread_create(&thread, NULL, cancel_and_poll, xfers), 0);
    for (round = 0; round < 200; round++)
        for (index = 0; index < 4; index++) {
            int rc;

            assert_int_equal(heft_xfer_post(xfers[index], NULL), 0);
            rc = heft_xfer_wait(xfers[index], 20000);
            assert_true(rc == HEFT_ERR_CANCELED || rc == HEFT_ERR_DEADLINE);
        }
    (void)pthread_join(thread, NULL);
    for (index = 0; index < 4; index++)
        assert_int_equal(heft_xfer_release(xfers[index]), 0);
    assert_int_equal(fake_held(), 0);
}

/* ---- routes ---- */

static void a_required_transport_is_taken_or_named_in_the_error(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_run run = whole_run(pair);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_xfer *xfer;

    options.require = "verbs";
    assert_int_equal(
        heft_xfer_create(pair->client, HEFT_OP_READ, pair->peer, &run, 1, &options, &xfer, &error),
        HEFT_ERR_REQUIRED);
    assert_non_null(strstr(error.text, "verbs"));
    options.require = "fake";
    xfer = create_read(pair, &options);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void a_transport_that_does_not_connect_is_named_with_its_reason(void **state)
{
    struct pair *pair = *state;
    struct heft_run run = whole_run(pair);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_xfer *xfer;
    char text[1024];

    fake_set_connect_error(HEFT_ERR_UNAVAILABLE);
    assert_int_equal(heft_xfer_create(pair->client, HEFT_OP_READ, pair->peer, &run, 1, NULL, &xfer, &error),
                     HEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "the test forbids it"));
    assert_int_equal(
        heft_agent_explain(pair->client, pair->peer, HEFT_SPACE_HOST, HEFT_SPACE_HOST, text, sizeof(text)),
        0);
    assert_non_null(strstr(text, "fake 950: made for a test; connecting failed: the test forbids it"));
    assert_int_equal(heft_agent_explain(pair->client, NULL, HEFT_SPACE_FILE, HEFT_SPACE_HOST, text, 12), 0);
    assert_int_equal(strlen(text), 11);
}

static void a_transfer_inside_one_agent_needs_no_peer(void **state)
{
    struct pair *pair = *state;
    uint8_t other[64];
    struct heft_region *region = register_bytes(pair->client, other, sizeof(other), 0);
    struct heft_run run = {.local_region = pair->target_region,
                           .remote_region = heft_region_id(region),
                           .length_bytes = sizeof(other),
                           .count = 1};
    struct heft_xfer *xfer;

    memset(other, 0x42, sizeof(other));
    assert_int_equal(heft_xfer_create(pair->client, HEFT_OP_READ, NULL, &run, 1, NULL, &xfer, NULL), 0);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_memory_equal(pair->target, other, sizeof(other));
    assert_int_equal(heft_region_deregister(region, NULL), 0);
    assert_int_equal(heft_xfer_post(xfer, NULL), HEFT_ERR_STALE);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void an_idle_transfer_outlives_its_peer_and_its_agent(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer *xfer = create_read(pair, NULL);
    struct heft_error error = HEFT_ERROR_INIT;

    assert_int_equal(heft_peer_close(pair->peer, NULL), 0);
    assert_int_equal(heft_xfer_post(xfer, &error), HEFT_ERR_PEER_LOST);
    assert_non_null(strstr(error.text, "was closed"));
    assert_int_equal(heft_agent_close(pair->client, NULL), 0);
    pair->client = NULL;
    assert_int_equal(heft_xfer_post(xfer, &error), HEFT_ERR_PEER_LOST);
    assert_int_equal(heft_xfer_poll(xfer), HEFT_ERR_STATE);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_read_brings_the_bytes_and_can_be_posted_again),
        TEST(a_write_carries_bytes_to_the_peer),
        TEST(runs_outside_their_regions_are_refused_and_nothing_wraps),
        TEST(pieces_that_overlap_where_they_are_written_are_refused),
        TEST(nothing_to_move_is_done_at_once),
        TEST(runs_can_be_replaced_and_a_bad_set_leaves_the_old_ones),
        TEST(what_is_active_is_busy),
        TEST(cancel_reports_only_after_the_transport_let_go),
        TEST(a_deadline_and_a_stall_limit_end_the_transfer_in_time),
        TEST(a_transfer_that_begins_while_the_monitor_looks_is_not_taken_for_stalled),
        TEST(a_transport_that_counts_too_few_bytes_is_not_believed),
        TEST(a_refused_post_leaves_nothing_behind),
        TEST(a_broken_endpoint_is_replaced_when_the_next_transfer_is_created),
        TEST(a_callback_may_post_again_and_release),
        TEST(a_callback_can_not_block_the_agent),
        TEST(posting_and_canceling_from_two_threads_always_ends),
        TEST(a_required_transport_is_taken_or_named_in_the_error),
        TEST(a_transport_that_does_not_connect_is_named_with_its_reason),
        TEST(a_transfer_inside_one_agent_needs_no_peer),
        TEST(an_idle_transfer_outlives_its_peer_and_its_agent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
