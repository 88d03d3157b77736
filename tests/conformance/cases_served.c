/* SPDX-License-Identifier: Apache-2.0 */
/* The serving side: what it refuses, what it lets go of, and what a stranger's bytes can't do to it. */
#include "conformance/cases.h"
#include "base/buf.h"
#include "base/clock.h"
#include "wire/data.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FAR_BYTES ((uint64_t)8 << 20)
#define READS 8
#define RW (HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE)

struct served {
    struct pair pair;
    struct heft_transport_region *near, *far;
};

static void served_open(struct served *served, uint32_t flags)
{
    struct region_spec far = {.kind = current_setup->memory,
                              .flags = flags,
                              .length_bytes = FAR_BYTES,
                              .filled_bytes = FAR_BYTES,
                              .seed = 5};
    struct region_spec near = {.kind = current_setup->near, .length_bytes = FAR_BYTES * READS};

    pair_open(&served->pair, current_setup);
    served->near = side_region_add(&served->pair.near, &near);
    served->far = pair_far_region(&served->pair, &far);
}

static void served_close(struct served *served)
{
    pair_far_remove(&served->pair, served->far);
    side_region_remove(&served->pair.near, served->near);
    pair_close(&served->pair);
}

static int skip_unserved(void)
{
    if (current_setup->served)
        return 0;
    return skip_case("nothing is served: it reaches the peer's memory by itself");
}

static int try_move(struct served *served, enum heft_op kind, struct heft_transport_region *far,
                    uint64_t offset, uint64_t length, uint64_t count, uint64_t stride, int64_t *failed_out)
{
    struct heft_move moves[2] = {
        {.local = served->near, .remote = served->far, .length_bytes = 8, .count = 1},
        {.local = served->near,
         .remote = far,
         .remote_offset_bytes = offset,
         .length_bytes = length,
         .count = count,
         .remote_stride_bytes = stride,
         .local_stride_bytes = length}};
    struct test_op op;
    int status;

    test_op_init(&op, kind, moves, 2);
    assert_int_equal(pair_post(&served->pair, &op), 0);
    status = test_op_wait(&op);
    if (failed_out != NULL)
        *failed_out = op.op.failed_move;
    if (status != 0)
        assert_true(strlen(op.error.text) > 0);
    test_op_free(&op);
    return status;
}

/* The far end lets go of its memory once it has sent, which may be after the bytes are here. */
static void let_go(struct served *served)
{
    for (int i = 0; i < 5000 && remote_pins(&served->pair.remote) != 0; i++)
        (void)poll(NULL, 0, 1);
    assert_int_equal(remote_pins(&served->pair.remote), 0);
}

static void refusals_name_their_reason_and_the_stream_goes_on(void **state)
{
    struct served served;
    struct heft_transport_region gone;
    int64_t failed = -1;

    (void)state;
    if (skip_unserved())
        return;
    served_open(&served, HEFT_REGION_REMOTE_READ);
    gone = *served.far;
    gone.id = 99999;
    assert_int_equal(try_move(&served, HEFT_OP_READ, &gone, 0, 100, 1, 0, &failed), HEFT_ERR_STALE);
    assert_int_equal(failed, 1);
    assert_int_equal(try_move(&served, HEFT_OP_READ, served.far, FAR_BYTES - 99, 100, 1, 0, &failed),
                     HEFT_ERR_RANGE);
    assert_int_equal(failed, 1);
    assert_int_equal(try_move(&served, HEFT_OP_READ, served.far, UINT64_MAX - 50, 100, 1, 0, NULL),
                     HEFT_ERR_RANGE);
    assert_int_equal(try_move(&served, HEFT_OP_READ, served.far, 100, 100, 3, UINT64_MAX / 2, NULL),
                     HEFT_ERR_RANGE);
    if (!current_setup->no_write)
        assert_int_equal(try_move(&served, HEFT_OP_WRITE, served.far, 0, 100, 1, 0, NULL), HEFT_ERR_DENIED);
    assert_int_equal(try_move(&served, HEFT_OP_READ, served.far, 0, 100, 1, 0, NULL), 0);
    let_go(&served);
    served_close(&served);
}

static void big_writes_to_a_read_only_region_are_refused_whole(void **state)
{
    struct served served;
    uint64_t before;

    (void)state;
    if (skip_unserved())
        return;
    if (current_setup->no_write)
        skip_case("it does not write");
    served_open(&served, HEFT_REGION_REMOTE_READ);
    before = remote_region_hash(&served.pair.remote, served.far, 0, FAR_BYTES);
    assert_int_equal(try_move(&served, HEFT_OP_WRITE, served.far, 0, FAR_BYTES, 1, 0, NULL), HEFT_ERR_DENIED);
    assert_int_equal(try_move(&served, HEFT_OP_READ, served.far, 0, FAR_BYTES, 1, 0, NULL), 0);
    assert_int_equal(remote_region_hash(&served.pair.remote, served.far, 0, FAR_BYTES), before);
    served_close(&served);
}

static void dropping_a_session_frees_its_pins_and_ends_its_reads(void **state)
{
    struct served served;
    struct heft_move moves[READS];
    struct test_op ops[READS];
    int lost = 0;

    (void)state;
    if (skip_unserved())
        return;
    served_open(&served, RW);
    for (int i = 0; i < READS; i++) {
        moves[i] = (struct heft_move){.local = served.near,
                                      .remote = served.far,
                                      .local_offset_bytes = FAR_BYTES * (uint64_t)i,
                                      .length_bytes = FAR_BYTES,
                                      .count = 1};
        test_op_init(&ops[i], HEFT_OP_READ, &moves[i], 1);
        assert_int_equal(pair_post(&served.pair, &ops[i]), 0);
    }
    while (__atomic_load_n(&ops[0].op.done_bytes, __ATOMIC_RELAXED) == 0)
        (void)poll(NULL, 0, 1);
    remote_drop_session(&served.pair.remote);
    assert_int_equal(remote_pins(&served.pair.remote), 0);
    for (int i = 0; i < READS; i++) {
        int status = test_op_wait(&ops[i]);

        assert_true(status == 0 || status == HEFT_ERR_PEER_LOST);
        lost += status != 0;
        test_op_free(&ops[i]);
    }
    /* all may have been on their way already; the next one needs new streams in any case */
    (void)lost;
    assert_int_equal(try_move(&served, HEFT_OP_READ, served.far, 0, FAR_BYTES, 1, 0, NULL), 0);
    served_close(&served);
}

static void a_peer_that_answers_no_dial_fails_the_operations_and_is_tried_again(void **state)
{
    struct served served;
    struct heft_move move;
    struct test_op op;
    int rc, ok = 0;

    (void)state;
    if (skip_unserved())
        return;
    served_open(&served, RW);
    move = (struct heft_move){.local = served.near, .remote = served.far, .length_bytes = 100, .count = 1};
    __atomic_store_n(&served.pair.remote.refuse_dials, HEFT_ERR_UNAVAILABLE, __ATOMIC_RELEASE);
    remote_drop_session(&served.pair.remote);
    for (int i = 0; i < 3; i++) {
        test_op_init(&op, HEFT_OP_READ, &move, 1);
        rc = pair_post(&served.pair, &op);
        if (rc == 0)
            rc = test_op_wait(&op);
        /* the first may still have met the dying stream */
        assert_true(rc == HEFT_ERR_UNAVAILABLE || (i == 0 && rc == HEFT_ERR_PEER_LOST));
        test_op_free(&op);
    }
    __atomic_store_n(&served.pair.remote.refuse_dials, 0, __ATOMIC_RELEASE);
    for (int i = 0; i < 500 && !ok; i++) {
        test_op_init(&op, HEFT_OP_READ, &move, 1);
        rc = pair_post(&served.pair, &op);
        ok = rc == 0 && test_op_wait(&op) == 0;
        test_op_free(&op);
        if (!ok)
            (void)poll(NULL, 0, 10);
    }
    assert_true(ok);
    served_close(&served);
}

/* ---- raw sockets ---- */

static int raw_stream(struct served *served)
{
    int fd = -1;
    struct heft_error error = HEFT_ERROR_INIT;

    assert_int_equal(served->pair.near.host.dial(&served->pair.remote, 1000, &fd, &error), 0);
    return fd;
}

/* Sends, ignoring that the other side may have hung up; 1 once it has. */
static int raw_send(int fd, const void *data, size_t size, size_t step)
{
    for (size_t at = 0; at < size;) {
        size_t part = size - at < step ? size - at : step;
        ssize_t sent = link_send(fd, (const char *)data + at, part);

        if (sent <= 0)
            return 1;
        at += (size_t)sent;
    }
    return 0;
}

static int raw_read(int fd, void *data, size_t size)
{
    for (size_t at = 0; at < size;) {
        ssize_t got = link_receive(fd, (char *)data + at, size - at);

        if (got <= 0)
            return 1;
        at += (size_t)got;
    }
    return 0;
}

static size_t make_request(uint8_t *out, uint16_t type, uint32_t runs, const struct heft_data_run *run,
                           uint32_t bulk)
{
    struct heft_data_head head = {.type = type, .id = 7, .value = runs, .bulk_bytes = bulk};

    for (uint32_t i = 0; i < runs; i++)
        heft_data_run_encode(run, out + HEFT_DATA_HEAD_BYTES + i * HEFT_DATA_RUN_BYTES);
    head.table_bytes = runs * HEFT_DATA_RUN_BYTES;
    heft_data_encode(&head, out);
    return HEFT_DATA_HEAD_BYTES + head.table_bytes;
}

/* The error code that a well-formed request is answered with; the stream must stay. */
static int raw_error_of(int fd, const struct heft_data_run *run)
{
    uint8_t bytes[HEFT_DATA_HEAD_BYTES + HEFT_DATA_RUN_BYTES], answer[HEFT_DATA_HEAD_BYTES];
    char text[HEFT_DATA_MAX_TEXT_BYTES];
    struct heft_data_head head;
    size_t size = make_request(bytes, HEFT_DATA_READ, 1, run, 0);

    assert_int_equal(raw_send(fd, bytes, size, 1), 0); /* a byte at a time */
    assert_int_equal(raw_read(fd, answer, sizeof(answer)), 0);
    assert_int_equal(heft_data_decode(answer, &head), 0);
    assert_int_equal(head.type, HEFT_DATA_ERROR);
    assert_int_equal(head.id, 7);
    assert_int_equal(raw_read(fd, text, head.table_bytes), 0);
    return -(int)head.value;
}

static void hostile_runs_get_an_error_and_the_stream_stays(void **state)
{
    struct served served;
    int fd;

    (void)state;
    if (skip_unserved())
        return;
    served_open(&served, HEFT_REGION_REMOTE_READ);
    const uint64_t id = served.far->id, max = UINT64_MAX;
    const struct {
        struct heft_data_run run;
        int code;
    } table[] = {
        {{id, 0, FAR_BYTES + 1, 1, 0}, HEFT_ERR_RANGE},
        {{id, FAR_BYTES, 1, 1, 0}, HEFT_ERR_RANGE},
        {{id, max, 2, 1, 0}, HEFT_ERR_RANGE},
        {{id, 2, max, 1, 0}, HEFT_ERR_RANGE},
        {{id, max - 7, 16, 1, 0}, HEFT_ERR_RANGE},
        {{id, 0, 1, max, 1}, HEFT_ERR_RANGE},
        {{id, 0, 1, 3, max / 2 + 1}, HEFT_ERR_RANGE},
        {{id, 0, 16, max / 16 + 2, 16}, HEFT_ERR_RANGE},
        {{id, 0, max / 2, 3, 0}, HEFT_ERR_RANGE},
        {{id, 0, 1, max, 0}, HEFT_ERR_TOO_LARGE},
        {{id, 0, FAR_BYTES, 1, 0}, HEFT_ERR_TOO_LARGE},
        {{id, 0, 0, 1, 0}, HEFT_ERR_INVALID},
        {{id, 0, 1, 0, 0}, HEFT_ERR_INVALID},
        {{id, max, 0, max, max}, HEFT_ERR_RANGE},
        {{0, 0, 1, 1, 0}, HEFT_ERR_STALE},
        {{max, 0, 1, 1, 0}, HEFT_ERR_STALE},
    };
    fd = raw_stream(&served);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        assert_int_equal(raw_error_of(fd, &table[i].run), table[i].code);
    assert_int_equal(remote_pins(&served.pair.remote), 0);
    link_close(fd);
    assert_int_equal(try_move(&served, HEFT_OP_READ, served.far, 0, 100, 1, 0, NULL), 0);
    served_close(&served);
}

static void malformed_frames_close_the_stream_and_nothing_else(void **state)
{
    struct served served;
    struct heft_data_run run = {0};
    uint8_t frame[HEFT_DATA_HEAD_BYTES + HEFT_DATA_RUN_BYTES], byte;
    uint64_t seed = 5;
    size_t size;

    (void)state;
    if (skip_unserved())
        return;
    served_open(&served, HEFT_REGION_REMOTE_READ);
    run.region = served.far->id;
    run.length_bytes = 100;
    run.count = 1;
    /* each bit of a request flipped once in a while, and garbage of any length */
    for (int round = 0; round < 60; round++) {
        int fd = raw_stream(&served);

        size = make_request(frame, HEFT_DATA_READ, 1, &run, 0);
        if (round < 40) {
            size_t bit = (size_t)random_range(&seed, 0, size * 8 - 1);

            frame[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        } else {
            size = (size_t)random_range(&seed, HEFT_DATA_HEAD_BYTES, sizeof(frame));
            for (size_t i = 0; i < size; i++)
                frame[i] = (uint8_t)random_next(&seed);
        }
        (void)raw_send(fd, frame, size, round % 2 ? 1 : size);
        /* the far end must hang up without an answer: nothing in a damaged frame can be trusted */
        (void)shutdown(fd, SHUT_WR);
        assert_int_equal(raw_read(fd, &byte, 1), 1);
        link_close(fd);
    }
    /* answers are no requests, and a WRITE's length must be its runs' */
    for (uint16_t type = HEFT_DATA_WRITE; type <= HEFT_DATA_ERROR; type++) {
        struct heft_data_head head = {.type = type, .id = 1, .value = 1, .bulk_bytes = 1};
        int fd = raw_stream(&served);

        memset(frame, 0, sizeof(frame));
        if (type == HEFT_DATA_WRITE) {
            heft_data_run_encode(&run, frame + HEFT_DATA_HEAD_BYTES);
            head.table_bytes = HEFT_DATA_RUN_BYTES;
        } else if (type != HEFT_DATA_DATA) {
            head.bulk_bytes = 0;
        }
        heft_data_encode(&head, frame);
        (void)raw_send(fd, frame, sizeof(frame), sizeof(frame));
        if (type != HEFT_DATA_WRITE) /* read-only here: that one is refused with an error */
            assert_int_equal(raw_read(fd, &byte, 1), 1);
        link_close(fd);
    }
    assert_int_equal(try_move(&served, HEFT_OP_READ, served.far, 0, 100, 1, 0, NULL), 0);
    served_close(&served);
}

static void readers_that_do_not_read_block_nobody(void **state)
{
    enum { LAZY = 12 };
    struct served served;
    struct heft_data_run run = {0};
    uint8_t frame[HEFT_DATA_HEAD_BYTES + HEFT_DATA_RUN_BYTES];
    int fds[LAZY];
    uint64_t start;

    (void)state;
    if (skip_unserved())
        return;
    served_open(&served, HEFT_REGION_REMOTE_READ);
    run.region = served.far->id;
    run.length_bytes = 1 << 20;
    run.count = 1;
    for (int i = 0; i < LAZY; i++) {
        size_t size = make_request(frame, HEFT_DATA_READ, 1, &run, 0);

        fds[i] = raw_stream(&served);
        for (int k = 0; k < 100; k++) /* more than its ring holds */
            assert_int_equal(raw_send(fds[i], frame, size, size), 0);
    }
    start = heft_now_ns();
    assert_int_equal(try_move(&served, HEFT_OP_READ, served.far, 0, FAR_BYTES, 1, 0, NULL), 0);
    assert_true(heft_now_ns() - start < 15 * HEFT_NS_PER_S);
    while (remote_pins(&served.pair.remote) == 0) { /* their requests may still be on their way */
        assert_true(heft_now_ns() - start < 60 * HEFT_NS_PER_S);
        (void)usleep(1000);
    }
    remote_drop_session(&served.pair.remote);
    assert_int_equal(remote_pins(&served.pair.remote), 0);
    for (int i = 0; i < LAZY; i++)
        link_close(fds[i]);
    served_close(&served);
}

/* ---- a server that lies to the client ---- */

static void answers_that_nobody_asked_for_end_the_stream_not_the_process(void **state)
{
    struct served served;
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t seed = 9;

    (void)state;
    if (skip_unserved() || current_setup->process)
        return;
    for (int round = 0; round < 12; round++) {
        struct heft_data_head head = {.type = HEFT_DATA_DATA, .id = 1, .bulk_bytes = 64};
        uint8_t request[HEFT_DATA_HEAD_BYTES + HEFT_DATA_RUN_BYTES], answer[HEFT_DATA_HEAD_BYTES + 256];
        struct heft_move move;
        struct test_op op;
        int status;

        served_open(&served, RW);
        pair_disconnect(&served.pair);
        served.pair.remote.hold_fds = 1;
        assert_int_equal(served.pair.near.ops->connect(served.pair.near.transport, &served.pair.remote.peer,
                                                       &served.pair.endpoint, &error),
                         0);
        memset(served.near->address, 0x11, 256);
        move = (struct heft_move){.local = served.near,
                                  .remote = served.far,
                                  .local_offset_bytes = 64,
                                  .length_bytes = 64,
                                  .count = 1};
        test_op_init(&op, HEFT_OP_READ, &move, 1);
        assert_int_equal(pair_post(&served.pair, &op), 0);
        assert_int_equal(raw_read(served.pair.remote.held_fds[0], request, sizeof(request)), 0);
        memset(answer, 0x77, sizeof(answer));
        switch (round % 6) {
        case 0:
            head.id = 2;
            break;
        case 1:
            head.value = 1;
            break;
        case 2:
            head.bulk_bytes = 65;
            break;
        case 3:
            head.type = HEFT_DATA_ACK;
            head.bulk_bytes = 0;
            head.value = 64;
            break;
        case 4:
            head.type = HEFT_DATA_READ;
            head.bulk_bytes = 0;
            head.value = 1;
            head.table_bytes = 40;
            break;
        default:
            break;
        }
        heft_data_encode(&head, answer);
        if (round % 6 == 5)
            answer[random_range(&seed, 0, HEFT_DATA_HEAD_BYTES - 1)] ^= 0x10;
        (void)raw_send(served.pair.remote.held_fds[0], answer, sizeof(answer), 3);
        status = test_op_wait(&op);
        assert_true(status != 0);
        assert_int_equal(((uint8_t *)served.near->address)[63], 0x11);
        assert_int_equal(((uint8_t *)served.near->address)[128], 0x11);
        test_op_free(&op);
        pair_disconnect(&served.pair);
        served_close(&served);
    }
}

/* ---- transports that hand out keys ---- */

static void keys_are_refused_with_their_reason_and_garbage_closes_a_connection_only(void **state)
{
    struct served served;
    struct heft_transport_region *gone;
    uint64_t seed = 17;
    uint8_t bytes[256];

    (void)state;
    if (strcmp(current_setup->transport, "ucx") != 0) {
        skip_case("it hands out no keys");
        return;
    }
    served_open(&served, HEFT_REGION_REMOTE_READ);
    gone = calloc(1, sizeof(*gone));
    assert_non_null(gone);
    *gone = *served.far;
    gone->id = 99999;
    memset(gone->slot, 0, sizeof(gone->slot));
    assert_int_equal(served.pair.near.ops->remote_add(served.pair.endpoint, gone, NULL), 0);
    assert_int_equal(try_move(&served, HEFT_OP_READ, gone, 0, 100, 1, 0, NULL), HEFT_ERR_STALE);
    served.pair.near.ops->remote_remove(served.pair.endpoint, gone);
    /* one that claims more than the region allows */
    gone->id = served.far->id;
    gone->flags = RW;
    assert_int_equal(served.pair.near.ops->remote_add(served.pair.endpoint, gone, NULL), 0);
    assert_int_equal(try_move(&served, HEFT_OP_WRITE, gone, 0, 100, 1, 0, NULL), HEFT_ERR_DENIED);
    served.pair.near.ops->remote_remove(served.pair.endpoint, gone);
    free(gone);
    for (int round = 0; round < 30; round++) {
        int fd = raw_stream(&served);

        for (size_t i = 0; i < sizeof(bytes); i++)
            bytes[i] = (uint8_t)random_next(&seed);
        if (round % 3 == 0) /* a right beginning, and a length far over the limit or of nothing known */
            memcpy(bytes, "UCX1\2\0\0\0", 8);
        (void)raw_send(fd, bytes, sizeof(bytes), round % 2 ? 1 : sizeof(bytes));
        (void)shutdown(fd, SHUT_WR);
        while (raw_read(fd, bytes, 1) == 0) /* the server's address, then the end */
            ;
        link_close(fd);
    }
    assert_int_equal(try_move(&served, HEFT_OP_READ, served.far, 0, FAR_BYTES, 1, 0, NULL), 0);
    let_go(&served);
    served_close(&served);
}

int run_served_cases(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals_name_their_reason_and_the_stream_goes_on),
        cmocka_unit_test(big_writes_to_a_read_only_region_are_refused_whole),
        cmocka_unit_test(dropping_a_session_frees_its_pins_and_ends_its_reads),
        cmocka_unit_test(a_peer_that_answers_no_dial_fails_the_operations_and_is_tried_again),
        cmocka_unit_test(hostile_runs_get_an_error_and_the_stream_stays),
        cmocka_unit_test(malformed_frames_close_the_stream_and_nothing_else),
        cmocka_unit_test(readers_that_do_not_read_block_nobody),
        cmocka_unit_test(answers_that_nobody_asked_for_end_the_stream_not_the_process),
        cmocka_unit_test(keys_are_refused_with_their_reason_and_garbage_closes_a_connection_only),
    };

    return cmocka_run_group_tests_name("served", tests, NULL, NULL);
}
