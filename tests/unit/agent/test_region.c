/* SPDX-License-Identifier: Apache-2.0 */
/* Regions that overlap, addresses that are used again, and registrations that are kept for the next. */
#include "pair.h"

#include "agent/region_cache.h"

#define PAGE 4096u
#define BYTES ((uint64_t)64 * PAGE)

static struct heft_agent *agent;
static uint8_t *bytes;

static int set_up(void **state)
{
    (void)state;
    agent = open_agent("keeper", NULL, "local,tcp");
    bytes = calloc(1, BYTES);
    return bytes == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    free(bytes);
    return 0;
}

static struct heft_region *acquire(uint64_t at, uint64_t length, uint64_t generation, uint32_t flags,
                                   uint64_t *offset_out)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_region *region = NULL;

    options.address = bytes + at;
    options.length_bytes = length;
    options.flags = flags;
    if (heft_region_acquire(agent, &options, generation, &region, offset_out, &error))
        fail_msg("acquiring: %s", error.text);
    return region;
}

static uint64_t registered(void)
{
    return STAT(agent, regions);
}

static void one_allocation_is_registered_once_whatever_is_asked_of_it(void **state)
{
    uint64_t before = STAT(agent, registrations), offset = 1, index;
    struct heft_region *whole = acquire(0, BYTES, 7, 0, &offset), *inside;

    (void)state;
    assert_int_equal(offset, 0);
    for (index = 0; index < 1000; index++) {
        uint64_t at = index * 251 % (BYTES - 100);

        inside = acquire(at, 100, 7, 0, &offset);
        assert_ptr_equal(inside, whole);
        assert_int_equal(offset, at);
        assert_int_equal(heft_region_release(inside, NULL), 0);
    }
    assert_int_equal(STAT(agent, registrations), before + 1);
    /* other rights are another region, and so is what reaches beyond */
    inside = acquire(PAGE, PAGE, 7, HEFT_REGION_REMOTE_READ, &offset);
    assert_ptr_not_equal(inside, whole);
    assert_int_equal(heft_region_length_bytes(inside), PAGE);
    assert_int_equal(heft_region_release(inside, NULL), 0);
    assert_int_equal(heft_region_release(whole, NULL), 0);
    assert_ptr_equal(acquire(0, BYTES, 7, 0, &offset), whole); /* kept for the next */
    assert_int_equal(heft_region_release(whole, NULL), 0);
}

static void memory_of_another_generation_is_registered_anew(void **state)
{
    uint64_t offset, id;
    struct heft_region *old = acquire(0, 8 * PAGE, 1, 0, &offset), *now, *beside;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    beside = acquire(16 * PAGE, PAGE, 1, 0, &offset);
    id = heft_region_id(old);
    now = acquire(4 * PAGE, PAGE, 2, 0, &offset); /* in the middle of what the old one covers */
    assert_ptr_not_equal(now, old);
    assert_int_equal(offset, 0);
    assert_int_equal(registered(), 3); /* the old one is still acquired */
    assert_int_equal(heft_region_id(old), id);
    assert_ptr_equal(acquire(16 * PAGE, PAGE, 1, 0, &offset), beside); /* not touched by it */
    assert_int_equal(heft_region_release(old, NULL), 0);
    assert_int_equal(registered(), 2); /* nobody finds it, so it went at once */
    assert_int_equal(heft_region_release(now, NULL), 0);
    assert_int_equal(heft_region_release(beside, NULL), 0);
    assert_int_equal(heft_region_release(beside, NULL), 0);
    assert_int_equal(heft_region_release(beside, &error), HEFT_ERR_STATE);
    assert_non_null(strstr(error.text, "not acquired"));
    now = acquire(16 * PAGE, PAGE, 3, 0, &offset); /* unused and of before: it goes with this call */
    assert_int_equal(registered(), 2);
    assert_int_equal(heft_region_release(now, NULL), 0);
}

static void memory_is_forgotten_before_it_is_freed(void **state)
{
    uint64_t offset;
    struct heft_region *first = acquire(0, PAGE, 1, HEFT_REGION_REMOTE_READ, &offset);
    struct heft_region *second = acquire(2 * PAGE, PAGE, 1, 0, &offset);
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    assert_int_equal(heft_region_release(second, NULL), 0);
    assert_int_equal(heft_region_forget(agent, bytes, 4 * PAGE, &error), HEFT_ERR_BUSY);
    assert_int_equal(registered(), 2);
    assert_int_equal(heft_region_release(first, NULL), 0);
    assert_int_equal(heft_region_forget(agent, bytes + PAGE, PAGE, NULL), 0); /* between the two */
    assert_int_equal(registered(), 2);
    assert_int_equal(heft_region_forget(agent, bytes, 4 * PAGE, NULL), 0);
    assert_int_equal(registered(), 0);
    assert_int_equal(heft_region_forget(agent, bytes, 0, NULL), 0);
    assert_int_equal(heft_region_forget(agent, bytes, UINT64_MAX, NULL), HEFT_ERR_RANGE);
}

static void a_peer_that_reads_a_cached_region_is_waited_for(void **state)
{
    uint64_t offset;
    struct heft_region *region;
    struct heft_peer *peer;
    struct heft_run run = {.length_bytes = PAGE, .count = 1};
    struct heft_agent *reader = open_agent("reader", NULL, "local,tcp");
    struct heft_xfer *xfer;
    uint8_t *target = malloc(PAGE);

    (void)state;
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    agent = open_agent("keeper", "unix", "local,tcp");
    memset(bytes, 0x5a, BYTES);
    region = acquire(0, BYTES, 1, HEFT_REGION_REMOTE_READ, &offset);
    assert_int_equal(heft_region_release(region, NULL), 0);
    peer = connect_to(reader, agent);
    run.local_region = register_bytes(reader, target, PAGE, 0);
    run.remote_region = heft_region_id(region);
    run.remote_offset_bytes = 3 * PAGE;
    assert_int_equal(heft_xfer_create(reader, HEFT_OP_READ, peer, &run, 1, NULL, &xfer, NULL), 0);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(target[PAGE - 1], 0x5a);
    assert_int_equal(heft_region_forget(agent, bytes, BYTES, NULL), 0);
    if (heft_xfer_post(xfer, NULL) == 0)
        assert_true(heft_xfer_wait(xfer, 20000) < 0); /* it is gone for the peer too */
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_agent_close(reader, NULL), 0);
    free(target);
}

static void what_nobody_uses_is_kept_up_to_a_bound(void **state)
{
    uint64_t offset, index, kept = HEFT_REGION_CACHE_UNUSED;
    uint64_t ids[HEFT_REGION_CACHE_UNUSED + 8];

    (void)state;
    for (index = 0; index < kept + 8; index++) {
        struct heft_region *region = acquire(index * 64, 64, 1, 0, &offset);

        ids[index] = heft_region_id(region);
        assert_int_equal(heft_region_release(region, NULL), 0);
        if (index == 100) { /* the first one is used again, and so not the oldest */
            region = acquire(0, 64, 1, 0, &offset);
            assert_int_equal(heft_region_id(region), ids[0]);
            assert_int_equal(heft_region_release(region, NULL), 0);
        }
    }
    assert_int_equal(registered(), kept);
    assert_int_equal(heft_region_id(acquire(0, 64, 1, 0, &offset)), ids[0]);
    assert_int_not_equal(heft_region_id(acquire(64, 64, 1, 0, &offset)), ids[1]);
}

static void what_can_not_be_cached_is_refused(void **state)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_region *region;
    uint64_t offset;

    (void)state;
    options.length_bytes = PAGE;
    assert_int_equal(heft_region_acquire(agent, &options, 0, &region, &offset, &error), HEFT_ERR_INVALID);
    options.address = bytes;
    options.length_bytes = 0;
    assert_int_equal(heft_region_acquire(agent, &options, 0, &region, &offset, &error), HEFT_ERR_INVALID);
    options.length_bytes = UINT64_MAX;
    assert_int_equal(heft_region_acquire(agent, &options, 0, &region, &offset, &error), HEFT_ERR_RANGE);
    options.space = HEFT_SPACE_FILE;
    options.length_bytes = PAGE;
    options.path = "/proc/self/exe";
    assert_int_equal(heft_region_acquire(agent, &options, 0, &region, &offset, &error), HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "as a whole"));
    region = acquire(0, PAGE, 0, 0, &offset);
    assert_int_equal(heft_region_deregister(region, &error), HEFT_ERR_STATE);
    assert_non_null(strstr(error.text, "heft_region_release"));
}

/* ---- by themselves ---- */

static void regions_that_overlap_are_each_by_itself(void **state)
{
    struct heft_region *first = register_bytes(agent, bytes, 4 * PAGE, HEFT_REGION_REMOTE_READ);
    struct heft_region *again = register_bytes(agent, bytes, 4 * PAGE, 0);
    struct heft_region *across = register_bytes(agent, bytes + 2 * PAGE, 4 * PAGE, HEFT_REGION_REMOTE_WRITE);
    struct heft_run run = {.local_region = again, .length_bytes = PAGE, .count = 1};
    struct heft_xfer *xfer;

    (void)state;
    assert_int_not_equal(heft_region_id(first), heft_region_id(again));
    assert_int_equal(registered(), 3);
    assert_int_equal(heft_region_deregister(first, NULL), 0);
    memset(bytes + 2 * PAGE, 0x77, PAGE);
    run.remote_region = heft_region_id(across);
    assert_int_equal(heft_xfer_create(agent, HEFT_OP_READ, NULL, &run, 1, NULL, &xfer, NULL), 0);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(bytes[PAGE - 1], 0x77); /* the others work as before */
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_region_deregister(across, NULL), 0);
    assert_int_equal(heft_region_deregister(again, NULL), 0);
    again = register_bytes(agent, bytes, PAGE, 0); /* the address is used again: a new region */
    assert_int_equal(registered(), 1);
    assert_int_equal(heft_region_deregister(again, NULL), 0);
}

static void many_are_registered_together_or_not_at_all(void **state)
{
    struct heft_region_options options[64];
    struct heft_region *regions[64] = {NULL};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_run run = {.length_bytes = PAGE, .count = 1};
    struct heft_xfer *xfer;
    size_t index;

    (void)state;
    for (index = 0; index < 64; index++) {
        options[index] = (struct heft_region_options)HEFT_REGION_OPTIONS_INIT;
        options[index].address = bytes + index * PAGE;
        options[index].length_bytes = PAGE;
    }
    assert_int_equal(heft_region_register_array(agent, options, 64, regions, &error), 0);
    assert_int_equal(registered(), 64);
    for (index = 1; index < 64; index++)
        assert_true(heft_region_id(regions[index]) > heft_region_id(regions[index - 1]));
    run.local_region = regions[0];
    run.remote_region = heft_region_id(regions[63]);
    assert_int_equal(heft_xfer_create(agent, HEFT_OP_READ, NULL, &run, 1, NULL, &xfer, NULL), 0);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_region_deregister_array(regions, 64, &error), 0);
    assert_int_equal(registered(), 0);
    for (index = 0; index < 64; index++)
        assert_null(regions[index]);
    assert_int_equal(heft_region_deregister_array(regions, 64, &error), 0); /* nothing is left of them */
    options[40].flags = 1u << 30;
    regions[0] = (struct heft_region *)bytes;
    assert_int_equal(heft_region_register_array(agent, options, 64, regions, &error), HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "40 of 64"));
    assert_int_equal(registered(), 0);
    assert_ptr_equal(regions[0], bytes); /* nothing is written unless all is done */
    assert_int_equal(heft_region_register_array(agent, options, 0, regions, &error), 0);
    regions[0] = acquire(0, PAGE, 1, 0, &run.length_bytes); /* refused one by one, the others go */
    regions[1] = register_bytes(agent, bytes + PAGE, PAGE, 0);
    assert_int_equal(heft_region_deregister_array(regions, 2, &error), HEFT_ERR_STATE);
    assert_non_null(regions[0]);
    assert_null(regions[1]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(many_are_registered_together_or_not_at_all),
        TEST(regions_that_overlap_are_each_by_itself),
        TEST(one_allocation_is_registered_once_whatever_is_asked_of_it),
        TEST(memory_of_another_generation_is_registered_anew),
        TEST(memory_is_forgotten_before_it_is_freed),
        TEST(a_peer_that_reads_a_cached_region_is_waited_for),
        TEST(what_nobody_uses_is_kept_up_to_a_bound),
        TEST(what_can_not_be_cached_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
