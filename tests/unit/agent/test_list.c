/* SPDX-License-Identifier: Apache-2.0 */
/* Prepared lists: what an item is, and that pairs move what a plain loop over them would. */
#include "agent/list.h"
#include "agent/xfer.h"
#include "pair.h"

#define ROOM 65536u

struct sides {
    struct heft_agent *server, *client;
    struct heft_peer *peer;
    uint8_t here[ROOM], there[2][ROOM], model_here[ROOM], model_there[2][ROOM];
    struct heft_region *local, *remote[2];
    uint64_t random;
};

static int setup(void **state)
{
    struct sides *sides = calloc(1, sizeof(*sides));
    int index;

    assert_non_null(sides);
    sides->random = 12;
    sides->server = open_agent("server", "unix", "local");
    sides->client = open_agent("client", NULL, "local");
    sides->local = register_bytes(sides->client, sides->here, ROOM, 0);
    for (index = 0; index < 2; index++)
        sides->remote[index] = register_bytes(sides->server, sides->there[index], ROOM,
                                              HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE);
    sides->peer = connect_to(sides->client, sides->server);
    *state = sides;
    return 0;
}

static int teardown(void **state)
{
    struct sides *sides = *state;

    assert_int_equal(heft_agent_close(sides->client, NULL), 0);
    assert_int_equal(heft_agent_close(sides->server, NULL), 0);
    free(sides);
    return 0;
}

static uint64_t draw(struct sides *sides, uint64_t below)
{
    sides->random = sides->random * 6364136223846793005u + 1442695040888963407u;
    return (sides->random >> 33) % below;
}

static struct heft_list *create(struct sides *sides, struct heft_peer *peer, const struct heft_list_run *runs,
                                size_t count)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_list *list = NULL;

    if (heft_list_create(sides->client, peer, runs, count, &list, &error))
        fail_msg("creating a list: %s", error.text);
    return list;
}

/* ---- items ---- */

static void expect_items(struct sides *sides, const struct heft_list_run *runs, size_t count)
{
    struct heft_list *list = create(sides, NULL, runs, count);
    uint64_t number = 0, index;
    size_t run, near = 0;

    for (run = 0; run < count; run++)
        for (index = 0; index < runs[run].count; index++, number++) {
            struct heft_item item = heft_list_item(list, number, &near);

            assert_int_equal(item.offset_bytes, runs[run].offset_bytes + index * runs[run].stride_bytes);
            assert_int_equal(item.length_bytes, runs[run].length_bytes);
            assert_int_equal(list->regions[item.slot]->t.id, runs[run].region);
        }
    assert_int_equal(heft_list_count(list), number);
    for (run = 0; number && run < 200; run++) { /* in any order too */
        uint64_t again = draw(sides, number), first = 0;
        struct heft_item item = heft_list_item(list, again, &near);
        size_t at = 0;

        while (again - first >= runs[at].count)
            first += runs[at++].count;
        assert_int_equal(item.offset_bytes, runs[at].offset_bytes + (again - first) * runs[at].stride_bytes);
    }
    heft_list_destroy(list);
}

static void items_are_numbered_through_all_runs_whatever_their_form(void **state)
{
    enum { RUNS = 2000 };
    struct sides *sides = *state;
    struct heft_list_run *runs = calloc(RUNS, sizeof(*runs));
    uint64_t ids[2] = {heft_region_id(sides->local), 0};
    uint8_t other[ROOM];
    struct heft_region *second = register_bytes(sides->client, other, ROOM, 0);
    int form, index;

    ids[1] = heft_region_id(second);
    assert_non_null(runs);
    /* Bits: singles or runs, one length or many, one region or two, regular or not. */
    for (form = 0; form < 16; form++) {
        for (index = 0; index < RUNS; index++) {
            struct heft_list_run run = {.region = ids[form & 4 ? draw(sides, 2) : 0]};

            run.count = form & 1 ? draw(sides, 6) : 1;
            run.length_bytes = form & 2 ? draw(sides, 30) : 16;
            run.stride_bytes = form & 1 ? draw(sides, 100) : 0;
            run.offset_bytes = form & 8 ? (uint64_t)index * 30 : draw(sides, ROOM - 700);
            runs[index] = run;
        }
        expect_items(sides, runs, RUNS);
        expect_items(sides, runs, 1);
        expect_items(sides, runs, 0);
    }
    assert_int_equal(heft_region_deregister(second, NULL), 0);
    free(runs);
}

static void what_is_regular_takes_no_room_and_much_of_it_is_never_spread_out(void **state)
{
    enum { RUNS = 5000 };
    struct sides *sides = *state;
    struct heft_list_run *runs = calloc(RUNS, sizeof(*runs));
    struct heft_list *list;
    size_t near = 0;
    int index;

    assert_non_null(runs);
    for (index = 0; index < RUNS; index++)
        runs[index] = (struct heft_list_run){.region = heft_region_id(sides->local),
                                             .offset_bytes = (uint64_t)index * 12,
                                             .length_bytes = 8,
                                             .count = 1};
    list = create(sides, NULL, runs, RUNS);
    assert_int_equal(list->segment_count, 1);
    assert_null(list->offsets);
    heft_list_destroy(list);
    for (index = 0; index < RUNS; index++)
        runs[index].offset_bytes = draw(sides, ROOM - 8);
    list = create(sides, NULL, runs, RUNS);
    assert_non_null(list->offsets);
    assert_null(list->lengths);
    assert_null(list->slots);
    heft_list_destroy(list);
    /* Irregular at first, and then a run of two thousand million items of nothing. */
    runs[RUNS - 1].count = UINT64_C(2000000000);
    list = create(sides, NULL, runs, RUNS);
    assert_null(list->offsets);
    assert_int_equal(heft_list_count(list), RUNS - 1 + UINT64_C(2000000000));
    assert_int_equal(heft_list_item(list, RUNS - 2, &near).offset_bytes, runs[RUNS - 2].offset_bytes);
    assert_int_equal(heft_list_item(list, UINT64_C(1999999999), &near).offset_bytes,
                     runs[RUNS - 1].offset_bytes);
    heft_list_destroy(list);
    free(runs);
}

static void wrong_runs_make_no_list(void **state)
{
    struct sides *sides = *state;
    struct heft_list_run runs[2] = {
        {.region = heft_region_id(sides->local), .length_bytes = 8, .count = 1},
        {.region = heft_region_id(sides->local), .offset_bytes = ROOM - 7, .length_bytes = 8, .count = 1}};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_list *list = NULL;

    assert_int_equal(heft_list_create(sides->client, NULL, runs, 2, &list, &error), HEFT_ERR_RANGE);
    assert_non_null(strstr(error.text, "run 1"));
    runs[1] = (struct heft_list_run){
        .region = runs[0].region, .length_bytes = 16, .stride_bytes = 16, .count = (UINT64_C(1) << 60) + 1};
    assert_int_equal(heft_list_create(sides->client, NULL, runs, 2, &list, NULL), HEFT_ERR_RANGE);
    runs[1] = (struct heft_list_run){.region = runs[0].region, .count = UINT64_C(1) << 32};
    assert_int_equal(heft_list_create(sides->client, NULL, runs, 2, &list, NULL), HEFT_ERR_TOO_MANY);
    runs[1].region = 999;
    assert_int_equal(heft_list_create(sides->client, NULL, runs, 2, &list, &error), HEFT_ERR_STALE);
    assert_non_null(strstr(error.text, "999"));
    assert_int_equal(heft_list_create(sides->client, sides->peer, runs + 1, 1, &list, &error),
                     HEFT_ERR_STALE);
    assert_int_equal(heft_list_create(sides->server, sides->peer, runs, 1, &list, NULL), HEFT_ERR_INVALID);
    assert_int_equal(heft_list_create(sides->client, NULL, NULL, 1, &list, NULL), HEFT_ERR_INVALID);
    assert_null(list);
}

/* ---- pairs ---- */

/* Equal items at random places: those of the written side do not meet. */
static size_t draw_lists(struct sides *sides, enum heft_op op, struct heft_list_run *local,
                         struct heft_list_run *remote, size_t limit)
{
    uint64_t at = draw(sides, 50);
    size_t count = 0;

    while (count < limit) {
        uint64_t length = draw(sides, 5) ? 64 : draw(sides, 200), free_at = draw(sides, ROOM - 200);
        size_t which = draw(sides, 8) == 0;

        if (count && draw(sides, 2)) /* often a neighbour on the other side too */
            free_at = (op == HEFT_OP_READ ? remote : local)[count - 1].offset_bytes +
                      (op == HEFT_OP_READ ? remote : local)[count - 1].length_bytes;
        if (free_at > ROOM - 200)
            free_at = 0;
        if (at + length > ROOM)
            break;
        local[count] = (struct heft_list_run){.region = heft_region_id(sides->local),
                                              .offset_bytes = op == HEFT_OP_READ ? at : free_at,
                                              .length_bytes = length,
                                              .count = 1};
        remote[count] = (struct heft_list_run){.region = heft_region_id(sides->remote[which]),
                                               .offset_bytes = op == HEFT_OP_READ ? free_at : at,
                                               .length_bytes = length,
                                               .count = 1};
        at += length + (draw(sides, 3) ? 0 : draw(sides, 64));
        count++;
    }
    return count;
}

static void model_pair(struct sides *sides, enum heft_op op, const struct heft_list_run *local,
                       const struct heft_list_run *remote)
{
    uint8_t *there = sides->model_there[remote->region == heft_region_id(sides->remote[1])];

    if (op == HEFT_OP_READ)
        memcpy(sides->model_here + local->offset_bytes, there + remote->offset_bytes, local->length_bytes);
    else
        memcpy(there + remote->offset_bytes, sides->model_here + local->offset_bytes, local->length_bytes);
}

static void pairs_move_what_a_plain_loop_would(void **state)
{
    enum { LIMIT = 1500 };
    struct sides *sides = *state;
    struct heft_list_run *local = calloc(LIMIT, sizeof(*local)), *remote = calloc(LIMIT, sizeof(*remote));
    uint32_t *indexes = calloc(LIMIT, sizeof(*indexes));
    int round;

    assert_true(local && remote && indexes);
    for (round = 0; round < 60; round++) {
        enum heft_op op = round & 1 ? HEFT_OP_READ : HEFT_OP_WRITE;
        struct heft_list *here, *there;
        struct heft_xfer *xfer = NULL;
        struct heft_error error = HEFT_ERROR_INIT;
        size_t count, picked, index;

        for (index = 0; index < ROOM; index++) {
            sides->here[index] = sides->model_here[index] = (uint8_t)draw(sides, 256);
            sides->there[0][index] = sides->model_there[0][index] = (uint8_t)draw(sides, 256);
            sides->there[1][index] = sides->model_there[1][index] = (uint8_t)draw(sides, 256);
        }
        count = draw_lists(sides, op, local, remote, 1 + draw(sides, LIMIT));
        for (index = 0; index < count; index++)
            indexes[index] = (uint32_t)index;
        for (index = count; index > 1 && round % 3; index--) { /* shuffled, and then perhaps not all */
            size_t other = draw(sides, index);
            uint32_t kept = indexes[index - 1];

            indexes[index - 1] = indexes[other];
            indexes[other] = kept;
        }
        picked = round % 3 == 2 ? draw(sides, count + 1) : count;
        for (index = 0; index < picked; index++)
            model_pair(sides, op, &local[indexes[index]], &remote[indexes[index]]);
        here = create(sides, NULL, local, count);
        there = create(sides, sides->peer, remote, count);
        if (heft_xfer_create_indexed(sides->client, op, here, round % 3 ? indexes : NULL, there,
                                     round % 3 ? indexes : NULL, picked, NULL, &xfer, &error))
            fail_msg("creating: %s", error.text);
        heft_list_destroy(here); /* the transfer keeps what it needs */
        heft_list_destroy(there);
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
        assert_memory_equal(sides->here, sides->model_here, ROOM);
        assert_memory_equal(sides->there, sides->model_there, sizeof(sides->there));
        assert_int_equal(heft_xfer_release(xfer), 0);
    }
    free(local);
    free(remote);
    free(indexes);
}

/* The moves that a transfer of these pairs has. */
static size_t moves_of(struct sides *sides, enum heft_op op, const uint64_t *local, const uint64_t *remote,
                       size_t count)
{
    struct heft_list_run here[16] = {{0}}, there[16] = {{0}};
    struct heft_list *lists[2];
    struct heft_xfer *xfer = NULL;
    size_t index, moves;

    for (index = 0; index < count; index++) {
        here[index] = (struct heft_list_run){.region = heft_region_id(sides->local),
                                             .offset_bytes = local[index],
                                             .length_bytes = 10,
                                             .count = 1};
        there[index] = here[index];
        there[index].region = heft_region_id(sides->remote[0]);
        there[index].offset_bytes = remote[index];
    }
    lists[0] = create(sides, NULL, here, count);
    lists[1] = create(sides, sides->peer, there, count);
    assert_int_equal(
        heft_xfer_create_indexed(sides->client, op, lists[0], NULL, lists[1], NULL, count, NULL, &xfer, NULL),
        0);
    assert_int_equal(xfer->total_bytes, 10 * count);
    moves = xfer->move_count;
    assert_int_equal(heft_xfer_release(xfer), 0);
    heft_list_destroy(lists[0]);
    heft_list_destroy(lists[1]);
    return moves;
}

static void neighbours_on_both_sides_become_one_piece(void **state)
{
    static const uint64_t next[] = {0, 10, 20, 30, 40}, apart[] = {0, 20, 40, 60, 80};
    static const uint64_t jump[] = {0, 500, 510, 520, 530}, still[] = {7, 7, 7, 7, 7};
    static const uint64_t down[] = {40, 30, 20, 10, 0};
    struct sides *sides = *state;

    assert_int_equal(moves_of(sides, HEFT_OP_READ, next, next, 5), 1);
    assert_int_equal(moves_of(sides, HEFT_OP_READ, next, apart, 5), 1); /* one strided move */
    assert_int_equal(moves_of(sides, HEFT_OP_WRITE, apart, next, 5), 1);
    assert_int_equal(moves_of(sides, HEFT_OP_READ, jump, jump, 5), 2);
    assert_int_equal(moves_of(sides, HEFT_OP_READ, next, still, 5), 1); /* one source for many */
    assert_int_equal(moves_of(sides, HEFT_OP_READ, still, next, 5), 5); /* overlaps where it is written */
    assert_int_equal(moves_of(sides, HEFT_OP_READ, down, down, 5), 5);
    assert_int_equal(moves_of(sides, HEFT_OP_READ, down, down, 0), 0);
}

static void plain_runs_that_are_neighbours_become_one_piece_too(void **state)
{
    struct sides *sides = *state;
    struct heft_run runs[6];
    struct heft_xfer *xfer = NULL;
    size_t index;

    for (index = 0; index < 6; index++)
        runs[index] = (struct heft_run){.local_region = sides->local,
                                        .local_offset_bytes = index * 10,
                                        .remote_region = heft_region_id(sides->remote[0]),
                                        .remote_offset_bytes = 700 + index * 10,
                                        .length_bytes = 10,
                                        .count = 1};
    runs[3].remote_region = heft_region_id(sides->remote[1]); /* in another region: no neighbour */
    runs[5].remote_offset_bytes++;
    for (index = 0; index < ROOM; index++) {
        sides->there[0][index] = (uint8_t)(index * 7);
        sides->there[1][index] = (uint8_t)(index * 11);
    }
    assert_int_equal(heft_xfer_create(sides->client, HEFT_OP_READ, sides->peer, runs, 6, NULL, &xfer, NULL),
                     0);
    assert_int_equal(xfer->move_count, 4); /* 0 to 2, 3, 4, 5 */
    assert_int_equal(xfer->run_of_move[1], 3);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
    for (index = 0; index < 60; index++)
        assert_int_equal(sides->here[index], (uint8_t)(index / 10 == 3   ? (700 + index) * 11
                                                       : index / 10 == 5 ? (701 + index) * 7
                                                                         : (700 + index) * 7));
    assert_int_equal(sides->here[60], 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void pairs_that_do_not_fit_are_refused(void **state)
{
    struct sides *sides = *state;
    struct heft_list_run run = {
        .region = heft_region_id(sides->local), .length_bytes = 8, .count = 4, .stride_bytes = 8};
    struct heft_list *here = create(sides, NULL, &run, 1), *shorter, *there;
    struct heft_error error = HEFT_ERROR_INIT;
    uint32_t few[2] = {0, 3}, many[2] = {0, 4};
    struct heft_xfer *xfer = NULL;

    run.region = heft_region_id(sides->remote[0]);
    there = create(sides, sides->peer, &run, 1);
    run.length_bytes = 7;
    shorter = create(sides, sides->peer, &run, 1);
    assert_int_equal(
        heft_xfer_create_indexed(sides->client, HEFT_OP_READ, here, few, there, many, 2, NULL, &xfer, &error),
        HEFT_ERR_RANGE);
    assert_non_null(strstr(error.text, "pair 1: the remote list has 4 items, no item 4"));
    assert_int_equal(
        heft_xfer_create_indexed(sides->client, HEFT_OP_READ, here, many, there, few, 2, NULL, &xfer, &error),
        HEFT_ERR_RANGE);
    assert_non_null(strstr(error.text, "local"));
    assert_int_equal(heft_xfer_create_indexed(sides->client, HEFT_OP_READ, here, NULL, there, NULL, 5, NULL,
                                              &xfer, &error),
                     HEFT_ERR_RANGE);
    assert_int_equal(heft_xfer_create_indexed(sides->client, HEFT_OP_READ, here, few, shorter, few, 2, NULL,
                                              &xfer, &error),
                     HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "pair 0"));
    assert_int_equal(
        heft_xfer_create_indexed(sides->client, HEFT_OP_READ, there, few, there, few, 2, NULL, &xfer, NULL),
        HEFT_ERR_INVALID);
    assert_int_equal(
        heft_xfer_create_indexed(sides->server, HEFT_OP_READ, here, few, there, few, 2, NULL, &xfer, NULL),
        HEFT_ERR_INVALID);
    /* Inside one agent; then the region goes. */
    assert_int_equal(
        heft_xfer_create_indexed(sides->client, HEFT_OP_WRITE, here, few, here, few, 2, NULL, &xfer, NULL),
        0);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_region_deregister(sides->local, NULL), 0);
    assert_int_equal(
        heft_xfer_create_indexed(sides->client, HEFT_OP_READ, here, few, there, few, 2, NULL, &xfer, NULL),
        HEFT_ERR_STALE);
    heft_list_destroy(here);
    heft_list_destroy(there);
    heft_list_destroy(shorter);
}

static void what_the_region_forbids_is_refused(void **state)
{
    struct sides *sides = *state;
    static uint8_t bytes[64];
    struct heft_list_run run = {
        .region = heft_region_id(sides->local), .length_bytes = 8, .count = 4, .stride_bytes = 8};
    struct heft_list *here = create(sides, NULL, &run, 1), *there;
    struct heft_region *region = register_bytes(sides->server, bytes, sizeof(bytes), HEFT_REGION_REMOTE_READ);
    struct heft_xfer *xfer = NULL;
    struct heft_peer *peer = connect_to(sides->client, sides->server);

    run.region = heft_region_id(region);
    there = create(sides, peer, &run, 1);
    assert_int_equal(
        heft_xfer_create_indexed(sides->client, HEFT_OP_WRITE, here, NULL, there, NULL, 4, NULL, &xfer, NULL),
        HEFT_ERR_DENIED);
    assert_int_equal(
        heft_xfer_create_indexed(sides->client, HEFT_OP_READ, here, NULL, there, NULL, 4, NULL, &xfer, NULL),
        0);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_peer_close(peer, NULL), 0);
    assert_int_equal(
        heft_xfer_create_indexed(sides->client, HEFT_OP_READ, here, NULL, there, NULL, 4, NULL, &xfer, NULL),
        HEFT_ERR_STALE);
    heft_list_destroy(here);
    heft_list_destroy(there);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(items_are_numbered_through_all_runs_whatever_their_form),
        TEST(what_is_regular_takes_no_room_and_much_of_it_is_never_spread_out),
        TEST(wrong_runs_make_no_list),
        TEST(pairs_move_what_a_plain_loop_would),
        TEST(neighbours_on_both_sides_become_one_piece),
        TEST(plain_runs_that_are_neighbours_become_one_piece_too),
        TEST(pairs_that_do_not_fit_are_refused),
        TEST(what_the_region_forbids_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
