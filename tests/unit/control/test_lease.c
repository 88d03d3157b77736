/* SPDX-License-Identifier: Apache-2.0 */
/* The lease machine under a clock that the test moves: hours pass in no time. */
#include "control/lease.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static uint64_t now_ns, wall_ns;

static uint64_t read_ns(void *context)
{
    return *(uint64_t *)context;
}

static void pass_ms(uint64_t ms)
{
    now_ns += ms * HEFT_NS_PER_MS;
    wall_ns += ms * HEFT_NS_PER_MS;
}

static struct heft_lease_table *new_table(const struct heft_lease_limits *limits)
{
    static const struct heft_lease_limits defaults = HEFT_LEASE_LIMITS_INIT;
    struct heft_lease_table *table;

    now_ns = 77 * HEFT_NS_PER_S;
    wall_ns = UINT64_C(1700000000) * HEFT_NS_PER_S;
    table = heft_lease_table_new(limits ? limits : &defaults, (struct heft_clock){read_ns, &now_ns},
                                 (struct heft_clock){read_ns, &wall_ns});
    assert_non_null(table);
    return table;
}

static struct heft_generation generation_of(uint32_t number)
{
    struct heft_generation generation = {{0}};

    memcpy(generation.bytes, &number, sizeof(number));
    return generation;
}

static struct heft_lease_publication publication_of(const char *name, uint32_t generation)
{
    return (struct heft_lease_publication){name, generation_of(generation), "org/m", "r1", "raw", "body", 4,
                                           10000};
}

static int publish(struct heft_lease_table *table, const char *name, uint32_t generation)
{
    struct heft_lease_publication publication = publication_of(name, generation);

    return heft_lease_publish(table, &publication, NULL, NULL);
}

static int renew(struct heft_lease_table *table, const char *name, uint32_t generation,
                 struct heft_error *error)
{
    struct heft_generation bytes = generation_of(generation);

    return heft_lease_renew(table, name, &bytes, 0, NULL, error);
}

static size_t listed(struct heft_lease_table *table, int all)
{
    struct heft_lease_query query = {.all = all};
    const struct heft_lease *lease = heft_lease_next(table, &query, NULL);
    size_t count = 0;

    for (; lease; count++)
        lease = heft_lease_next(table, &query, lease->name);
    return count;
}

static void a_lease_ends_at_its_time_and_not_before(void **state)
{
    struct heft_lease_table *table = new_table(NULL);
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    assert_int_equal(publish(table, "a", 1), 0);
    assert_int_equal(heft_lease_left_ms(table, heft_lease_find(table, "a")), 10000);
    pass_ms(9999);
    assert_int_equal(heft_lease_left_ms(table, heft_lease_find(table, "a")), 1);
    assert_int_equal(listed(table, 0), 1);
    pass_ms(1);
    assert_null(heft_lease_find(table, "a"));
    assert_int_equal(listed(table, 0), 0);
    assert_int_equal(listed(table, 1), 1); /* not reaped yet, and shown as expired only when asked for all */
    assert_int_equal(renew(table, "a", 1, &error), HEFT_ERR_NOT_FOUND);
    assert_non_null(strstr(error.text, "publish it again"));
    assert_int_equal(heft_lease_reap(table, NULL, NULL), 1);
    assert_int_equal(listed(table, 1), 0);
    assert_int_equal(heft_lease_total_bytes(table), 0);
    heft_lease_table_free(table);
}

static void renewals_keep_a_record_for_hours(void **state)
{
    struct heft_lease_table *table = new_table(NULL);
    struct heft_lease_counts counts;
    int index;

    (void)state;
    assert_int_equal(publish(table, "a", 1), 0);
    for (index = 0; index < 3000; index++) {
        pass_ms(3333);
        assert_int_equal(renew(table, "a", 1, NULL), 0);
        assert_int_equal(heft_lease_reap(table, NULL, NULL), 0);
        assert_int_equal(listed(table, 0), 1);
    }
    heft_lease_get_counts(table, &counts);
    assert_int_equal(counts.renewals, 3000);
    heft_lease_table_free(table);
}

static void fifty_crashing_restarts_leave_one_record_then_none(void **state)
{
    struct heft_lease_table *table = new_table(NULL);
    char name[32];
    uint32_t index;

    (void)state;
    for (index = 0; index < 50; index++) { /* one name: each restart takes it over at once */
        assert_int_equal(publish(table, "replica", index + 1), 0);
        pass_ms(100);
        assert_int_equal(listed(table, 1), 1);
    }
    for (index = 0; index < 50; index++) { /* fifty names, as default names are */
        (void)snprintf(name, sizeof(name), "host-%u", index);
        assert_int_equal(publish(table, name, 100 + index), 0);
        pass_ms(300);
        (void)heft_lease_reap(table, NULL, NULL);
    }
    assert_true(listed(table, 0) < 50); /* 15 s passed, a lease is 10 s */
    pass_ms(10000);
    assert_int_equal(listed(table, 0), 0);
    (void)heft_lease_reap(table, NULL, NULL);
    assert_int_equal(listed(table, 1), 0);
    assert_int_equal(heft_lease_live(table), 0);
    heft_lease_table_free(table);
}

static void a_newer_publication_takes_the_name_and_the_older_one_is_stale(void **state)
{
    struct heft_lease_table *table = new_table(NULL);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_generation one = generation_of(1);
    struct heft_lease_counts counts;

    (void)state;
    assert_int_equal(publish(table, "a", 1), 0);
    assert_int_equal(publish(table, "a", 2), 0);
    assert_int_equal(renew(table, "a", 1, &error), HEFT_ERR_STALE);
    assert_non_null(strstr(error.text, "01000000000000000000000000000000"));
    assert_non_null(strstr(error.text, "02000000000000000000000000000000"));
    assert_int_equal(heft_lease_withdraw(table, "a", &one, NULL), HEFT_ERR_STALE);
    assert_int_equal(publish(table, "a", 1), HEFT_ERR_STALE); /* a frozen process that wakes up */
    assert_int_equal(renew(table, "a", 2, NULL), 0);
    heft_lease_get_counts(table, &counts);
    assert_int_equal(counts.takeovers, 1);
    assert_int_equal(counts.refusals, 3);
    pass_ms(10000); /* the new one is gone: the old one may have the name again */
    assert_int_equal(publish(table, "a", 1), 0);
    heft_lease_table_free(table);
}

static void publishing_again_renews_and_keeps_the_first_time(void **state)
{
    struct heft_lease_table *table = new_table(NULL);
    uint64_t first_ms;

    (void)state;
    assert_int_equal(publish(table, "a", 1), 0);
    first_ms = heft_lease_find(table, "a")->published_wall_ms;
    assert_int_equal(first_ms, UINT64_C(1700000000000));
    pass_ms(6000);
    assert_int_equal(publish(table, "a", 1), 0);
    assert_int_equal(heft_lease_left_ms(table, heft_lease_find(table, "a")), 10000);
    assert_int_equal(heft_lease_find(table, "a")->published_wall_ms, first_ms);
    assert_int_equal(publish(table, "a", 2), 0);
    assert_int_equal(heft_lease_find(table, "a")->published_wall_ms, first_ms + 6000);
    heft_lease_table_free(table);
}

static void lists_are_sorted_filtered_and_resume_after_a_name(void **state)
{
    struct heft_lease_table *table = new_table(NULL);
    struct heft_lease_query query = {.model = "org/m"};
    struct heft_lease_publication other = publication_of("b", 9);
    const struct heft_lease *lease;

    (void)state;
    other.model = "org/other";
    assert_int_equal(publish(table, "c", 1), 0);
    assert_int_equal(publish(table, "a", 2), 0);
    assert_int_equal(heft_lease_publish(table, &other, NULL, NULL), 0);
    lease = heft_lease_next(table, &query, NULL);
    assert_string_equal(lease->name, "a");
    assert_string_equal(heft_lease_next(table, &query, "a")->name, "c");
    assert_string_equal(heft_lease_next(table, &query, "aa")->name, "c");
    assert_null(heft_lease_next(table, &query, "c"));
    query = (struct heft_lease_query){.name = "b"};
    assert_string_equal(heft_lease_next(table, &query, NULL)->model, "org/other");
    query = (struct heft_lease_query){.revision = "r2"};
    assert_null(heft_lease_next(table, &query, NULL));
    query = (struct heft_lease_query){.stage = "raw", .model = ""};
    assert_string_equal(heft_lease_next(table, &query, "b")->name, "c");
    heft_lease_table_free(table);
}

static void each_limit_is_named_and_leaves_the_old_record(void **state)
{
    struct heft_lease_limits limits = {2, 100, 150, 20000};
    struct heft_lease_table *table = new_table(&limits);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_lease_publication publication = publication_of("a", 1);
    char body[200] = {0}, name[300];

    (void)state;
    assert_int_equal(heft_lease_publish(table, &publication, NULL, NULL), 0);
    publication.body = body;
    publication.body_bytes = 101;
    assert_int_equal(heft_lease_publish(table, &publication, NULL, &error), HEFT_ERR_TOO_LARGE);
    assert_non_null(strstr(error.text, "max-record-bytes"));
    publication.body_bytes = 100;
    publication.lease_ms = 20001;
    assert_int_equal(heft_lease_publish(table, &publication, NULL, &error), HEFT_ERR_TOO_LARGE);
    assert_non_null(strstr(error.text, "lease-max"));
    publication.lease_ms = 0;
    assert_int_equal(heft_lease_publish(table, &publication, NULL, &error), HEFT_ERR_INVALID);
    publication.lease_ms = 10000;
    publication.name = "b";
    assert_int_equal(heft_lease_publish(table, &publication, NULL, NULL), 0);
    publication.name = "c";
    assert_int_equal(heft_lease_publish(table, &publication, NULL, &error), HEFT_ERR_TOO_MANY);
    assert_non_null(strstr(error.text, "max-records"));
    publication.name = "a"; /* 100 of b and 100 of a are over 150 */
    assert_int_equal(heft_lease_publish(table, &publication, NULL, &error), HEFT_ERR_TOO_MANY);
    assert_non_null(strstr(error.text, "max-total-bytes"));
    assert_memory_equal(heft_lease_find(table, "a")->body, "body", 4);
    memset(name, 'x', sizeof(name));
    name[256] = 0;
    publication.name = name;
    assert_int_equal(heft_lease_publish(table, &publication, NULL, &error), HEFT_ERR_INVALID);
    publication.name = "";
    assert_int_equal(heft_lease_publish(table, &publication, NULL, &error), HEFT_ERR_INVALID);
    assert_int_equal(heft_lease_total_bytes(table), 104);
    heft_lease_table_free(table);
}

static void restored_records_live_until_their_old_end(void **state)
{
    struct heft_lease_table *table = new_table(NULL);
    struct heft_lease_publication publication = publication_of("a", 1);
    uint64_t now_ms = wall_ns / HEFT_NS_PER_MS;

    (void)state;
    assert_int_equal(heft_lease_restore(table, &publication, 5, now_ms + 4000, NULL), 0);
    assert_int_equal(heft_lease_left_ms(table, heft_lease_find(table, "a")), 4000);
    assert_int_equal(heft_lease_find(table, "a")->published_wall_ms, 5);
    publication.name = "ended";
    assert_int_equal(heft_lease_restore(table, &publication, 5, now_ms, NULL), HEFT_ERR_NOT_FOUND);
    publication.name = "clock-set-back"; /* the stored end is a year away: one lease at most */
    assert_int_equal(heft_lease_restore(table, &publication, 5, now_ms + UINT64_C(31536000000), NULL), 0);
    assert_int_equal(heft_lease_left_ms(table, heft_lease_find(table, "clock-set-back")), 10000);
    pass_ms(4000);
    assert_null(heft_lease_find(table, "a"));
    assert_int_equal(renew(table, "clock-set-back", 1, NULL), 0);
    heft_lease_table_free(table);
}

static void a_wall_clock_that_jumps_ends_no_lease(void **state)
{
    struct heft_lease_table *table = new_table(NULL);

    (void)state;
    assert_int_equal(publish(table, "a", 1), 0);
    wall_ns += 86400 * HEFT_NS_PER_S;
    assert_int_equal(listed(table, 0), 1);
    wall_ns = 0;
    assert_int_equal(renew(table, "a", 1, NULL), 0);
    assert_int_equal(heft_lease_end_wall_ms(table, heft_lease_find(table, "a")), 10000);
    heft_lease_table_free(table);
}

static void a_thousand_names_stay_sorted_through_removals(void **state)
{
    struct heft_lease_table *table = new_table(NULL);
    struct heft_lease_query query = {0};
    const struct heft_lease *lease;
    char name[32], last[32] = "";
    struct heft_generation one = generation_of(1);
    uint32_t index;
    size_t count = 0;

    (void)state;
    for (index = 0; index < 1000; index++) {
        (void)snprintf(name, sizeof(name), "n%u", index * 7919 % 1000);
        assert_int_equal(publish(table, name, 1), 0);
    }
    for (index = 0; index < 1000; index += 2) {
        (void)snprintf(name, sizeof(name), "n%u", index);
        assert_int_equal(heft_lease_withdraw(table, name, &one, NULL), 0);
        assert_int_equal(heft_lease_withdraw(table, name, &one, NULL), HEFT_ERR_NOT_FOUND);
    }
    for (lease = heft_lease_next(table, &query, NULL); lease; lease = heft_lease_next(table, &query, last)) {
        assert_true(strcmp(last, lease->name) < 0);
        (void)snprintf(last, sizeof(last), "%s", lease->name);
        count++;
    }
    assert_int_equal(count, 500);
    assert_int_equal(heft_lease_total_bytes(table), 2000);
    heft_lease_table_free(table);
}

struct ended {
    char names[8][32];
    size_t count;
};

static void note_end(void *context, const char *name, uint64_t revision)
{
    struct ended *ended = context;

    assert_true(revision > 0);
    if (ended->count < 8)
        (void)snprintf(ended->names[ended->count], sizeof(ended->names[0]), "%s", name);
    ended->count++;
}

static size_t changed_after(struct heft_lease_table *table, uint64_t revision, const char *prefix)
{
    struct heft_lease_query query = {.after_revision = revision, .prefix = prefix};
    const struct heft_lease *lease = heft_lease_next(table, &query, NULL);
    size_t count = 0;

    for (; lease; count++)
        lease = heft_lease_next(table, &query, lease->name);
    return count;
}

static void revisions_tell_what_came_changed_and_went(void **state)
{
    struct heft_lease_table *table = new_table(NULL);
    struct heft_generation one = generation_of(1);
    struct ended ended = {0};
    uint64_t revision;
    char name[32];
    int index;

    (void)state;
    assert_int_equal(publish(table, "agents/a", 1), 0);
    assert_int_equal(publish(table, "agents/b", 1), 0);
    assert_int_equal(publish(table, "replica", 1), 0);
    revision = heft_lease_revision(table);
    assert_int_equal(changed_after(table, 0, "agents/"), 2);
    assert_int_equal(changed_after(table, revision, NULL), 0);
    assert_int_equal(renew(table, "agents/a", 1, NULL), 0); /* no news */
    assert_true(heft_lease_revision(table) == revision);
    assert_int_equal(publish(table, "agents/a", 1), 0);
    assert_int_equal(changed_after(table, revision, "agents/"), 1);
    assert_int_equal(heft_lease_withdraw(table, "replica", &one, NULL), 0);
    pass_ms(9999);
    assert_int_equal(renew(table, "agents/a", 1, NULL), 0);
    pass_ms(2);
    assert_int_equal(heft_lease_reap(table, NULL, NULL), 1);
    assert_int_equal(heft_lease_ended(table, revision, note_end, &ended), 0);
    assert_int_equal(ended.count, 2);
    assert_string_equal(ended.names[0], "replica");
    assert_string_equal(ended.names[1], "agents/b");
    /* More ends than are remembered: who stands before them must list anew. */
    for (index = 0; index < (int)HEFT_LEASE_ENDED_MAX + 1; index++) {
        (void)snprintf(name, sizeof(name), "n%d", index);
        assert_int_equal(publish(table, name, 1), 0);
        assert_int_equal(heft_lease_withdraw(table, name, &one, NULL), 0);
    }
    ended.count = 0;
    assert_int_equal(heft_lease_ended(table, revision, note_end, &ended), HEFT_ERR_NOT_FOUND);
    assert_int_equal(ended.count, 0);
    assert_int_equal(heft_lease_ended(table, heft_lease_revision(table) - 1, note_end, &ended), 0);
    assert_int_equal(ended.count, 1);
    heft_lease_table_free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lease_ends_at_its_time_and_not_before),
        cmocka_unit_test(renewals_keep_a_record_for_hours),
        cmocka_unit_test(fifty_crashing_restarts_leave_one_record_then_none),
        cmocka_unit_test(a_newer_publication_takes_the_name_and_the_older_one_is_stale),
        cmocka_unit_test(publishing_again_renews_and_keeps_the_first_time),
        cmocka_unit_test(lists_are_sorted_filtered_and_resume_after_a_name),
        cmocka_unit_test(each_limit_is_named_and_leaves_the_old_record),
        cmocka_unit_test(restored_records_live_until_their_old_end),
        cmocka_unit_test(a_wall_clock_that_jumps_ends_no_lease),
        cmocka_unit_test(a_thousand_names_stay_sorted_through_removals),
        cmocka_unit_test(revisions_tell_what_came_changed_and_went),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
