/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be asked before and after a transfer (estimate, result, a file's or an object's state), pairs that
 * are replaced, and children made by fork.
 */
#include "pair.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int setup(void **state)
{
    static struct pair pair;

    pair_open(&pair, "unix,127.0.0.1:0", "local,tcp,file");
    *state = &pair;
    return 0;
}

static int teardown(void **state)
{
    pair_close(*state);
    return 0;
}

static void run_to_its_end(struct heft_xfer *xfer)
{
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
}

static void an_estimate_is_assumed_first_and_measured_later(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer *xfer = create_read(pair, NULL), *other;
    struct heft_xfer_cost estimate = {.size = sizeof(estimate)};
    struct heft_xfer_result result = {.size = sizeof(result)};
    int round;

    assert_int_equal(heft_xfer_estimate(xfer, &estimate), 0);
    assert_int_equal(estimate.basis, HEFT_ESTIMATE_ASSUMED);
    assert_int_equal(estimate.bytes, REGION_BYTES);
    assert_int_equal(estimate.pieces, 1);
    assert_true(estimate.expected_ns > 0);
    for (round = 0; round < 40; round++)
        run_to_its_end(xfer);
    heft_xfer_get_result(xfer, &result);
    other = create_read(pair, NULL); /* what was learned is the route's, not the transfer's */
    assert_int_equal(heft_xfer_estimate(other, &estimate), 0);
    assert_int_equal(estimate.basis, HEFT_ESTIMATE_MEASURED);
    assert_string_equal(estimate.transport, result.transport);
    assert_true(estimate.expected_ns > 0 && estimate.expected_ns < 20 * HEFT_NS_PER_S);
    assert_int_equal(heft_xfer_release(other), 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_xfer_create(pair->client, HEFT_OP_READ, pair->peer, NULL, 0, NULL, &xfer, NULL), 0);
    assert_int_equal(heft_xfer_estimate(xfer, &estimate), 0);
    assert_int_equal(estimate.basis, HEFT_ESTIMATE_NOTHING);
    assert_int_equal(estimate.expected_ns, 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

static void a_result_says_why_its_route_was_taken(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_xfer *xfer;

    options.require = "tcp";
    xfer = create_read(pair, &options);
    run_to_its_end(xfer);
    heft_xfer_get_result(xfer, &result);
    assert_string_equal(result.transport, "tcp");
    assert_non_null(strstr(result.reason, "sockets"));
    assert_true(result.end_ns > result.start_ns && result.bytes == REGION_BYTES);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

/* ---- pairs that are replaced ---- */

#define ITEM 64
#define ITEMS (REGION_BYTES / ITEM)

static struct heft_list *list_of(struct pair *pair, struct heft_peer *peer, struct heft_region *region)
{
    struct heft_list_run run = {heft_region_id(region), 0, ITEM, ITEMS, ITEM};
    struct heft_list *list = NULL;
    struct heft_error error = HEFT_ERROR_INIT;

    if (heft_list_create(pair->client, peer, &run, 1, &list, &error))
        fail_msg("%s", error.text);
    return list;
}

static void expect_items(struct pair *pair, const uint32_t *local, const uint32_t *remote, size_t count)
{
    size_t index;

    for (index = 0; index < count; index++)
        assert_memory_equal(pair->target + local[index] * ITEM, pair->source + remote[index] * ITEM, ITEM);
    for (index = 0; index < REGION_BYTES; index++) { /* nothing else was touched */
        size_t at;

        for (at = 0; at < count; at++)
            if (index / ITEM == local[at])
                break;
        if (at == count)
            assert_int_equal(pair->target[index], 0xee);
    }
}

static void pages_are_picked_anew_from_lists_that_stay(void **state)
{
    struct pair *pair = *state;
    struct heft_list *local = list_of(pair, NULL, pair->target_region);
    struct heft_list *remote = list_of(pair, pair->peer, pair->source_region);
    const uint32_t first_local[] = {5, 9, 1}, first_remote[] = {0, 7, 30};
    struct heft_xfer *xfer = NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    uint32_t many_local[40], many_remote[40], index, turn;
    uint32_t beyond[] = {ITEMS};

    assert_int_equal(heft_xfer_create_indexed(pair->client, HEFT_OP_READ, local, first_local, remote,
                                              first_remote, 3, NULL, &xfer, NULL),
                     0);
    memset(pair->target, 0xee, REGION_BYTES);
    run_to_its_end(xfer);
    expect_items(pair, first_local, first_remote, 3);
    for (turn = 0; turn < 10; turn++) {
        for (index = 0; index < 40; index++) {
            many_local[index] = (index * 3 + turn) % ITEMS;
            many_remote[index] = (index * 5 + 2 * turn) % ITEMS;
        }
        assert_int_equal(heft_xfer_set_indexed(xfer, local, many_local, remote, many_remote, 40, NULL), 0);
        memset(pair->target, 0xee, REGION_BYTES);
        run_to_its_end(xfer);
        expect_items(pair, many_local, many_remote, 40);
    }
    /* What is wrong leaves the pairs of before in place. */
    assert_int_equal(heft_xfer_set_indexed(xfer, local, beyond, remote, beyond, 1, &error), HEFT_ERR_RANGE);
    assert_non_null(strstr(error.text, "no item 64"));
    assert_int_equal(heft_xfer_set_indexed(xfer, local, NULL, local, NULL, 1, &error), HEFT_ERR_INVALID);
    memset(pair->target, 0xee, REGION_BYTES);
    run_to_its_end(xfer);
    expect_items(pair, many_local, many_remote, 40);
    assert_int_equal(heft_xfer_set_indexed(xfer, local, NULL, remote, NULL, 0, NULL), 0);
    run_to_its_end(xfer); /* nothing is legal too */
    assert_int_equal(heft_xfer_release(xfer), 0);
    heft_list_destroy(local);
    heft_list_destroy(remote);
}

static void runs_and_pairs_take_turns_in_one_transfer(void **state)
{
    struct pair *pair = *state;
    struct heft_list *local = list_of(pair, NULL, pair->target_region);
    struct heft_list *remote = list_of(pair, pair->peer, pair->source_region);
    const uint32_t item[] = {3}, other[] = {11};
    struct heft_run run = whole_run(pair);
    struct heft_xfer *xfer = create_read(pair, NULL);
    int turn;

    for (turn = 0; turn < 4; turn++) {
        assert_int_equal(heft_xfer_set_indexed(xfer, local, item, remote, other, 1, NULL), 0);
        memset(pair->target, 0xee, REGION_BYTES);
        run_to_its_end(xfer);
        expect_items(pair, item, other, 1);
        assert_int_equal(heft_xfer_set_runs(xfer, &run, 1, NULL), 0);
        run_to_its_end(xfer);
        assert_memory_equal(pair->target, pair->source, REGION_BYTES);
    }
    assert_int_equal(heft_xfer_release(xfer), 0);
    heft_list_destroy(local);
    heft_list_destroy(remote);
}

/* ---- files ---- */

static void a_file_is_asked_about_without_a_region(void **state)
{
    struct pair *pair = *state;
    char path[] = "/tmp/heft-ask-XXXXXX";
    struct heft_query query = {.size = sizeof(query), .space = HEFT_SPACE_FILE, .path = path};
    struct heft_error error = HEFT_ERROR_INIT;
    struct timespec times[2] = {{1000000000, 0}, {1234567890, 500}};
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)5 << 30), 0); /* sparse, over 4 GiB */
    assert_int_equal(futimens(fd, times), 0);
    assert_int_equal(heft_agent_query(pair->client, &query, NULL), 0);
    assert_true(query.exists);
    assert_int_equal(query.length_bytes, (uint64_t)5 << 30);
    assert_int_equal(query.modified_ns, 1234567890LL * 1000000000 + 500);
    (void)close(fd);
    (void)unlink(path);
    assert_int_equal(heft_agent_query(pair->client, &query, NULL), 0);
    assert_false(query.exists);
    query.path = "/tmp";
    assert_int_equal(heft_agent_query(pair->client, &query, &error), HEFT_ERR_NOT_A_FILE);
    query.path = "http://127.0.0.1:1/none";
    query.space = HEFT_SPACE_OBJECT; /* this agent was opened without that transport */
    assert_int_equal(heft_agent_query(pair->client, &query, &error), HEFT_ERR_UNSUPPORTED);
    query.space = HEFT_SPACE_HOST;
    assert_int_equal(heft_agent_query(pair->client, &query, &error), HEFT_ERR_UNSUPPORTED);
}

/* ---- objects ---- */

struct web {
    int listener;
    int requests;
};

/* Answers HEAD /there and nothing else, one connection at a time, until the listener is shut. */
static void *serve_web(void *context)
{
    struct web *web = context;
    int fd;

    while ((fd = accept(web->listener, NULL, NULL)) >= 0) {
        static const char there[] = "HTTP/1.1 200 OK\r\nContent-Length: 12345678901\r\n"
                                    "Accept-Ranges: bytes\r\nETag: \"v1\"\r\nConnection: close\r\n"
                                    "Last-Modified: Fri, 13 Feb 2009 23:31:30 GMT\r\n\r\n";
        static const char gone[] = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        char request[4096] = "";
        size_t used = 0;
        ssize_t got;

        while (!strstr(request, "\r\n\r\n") && used + 1 < sizeof(request) &&
               (got = read(fd, request + used, sizeof(request) - 1 - used)) > 0)
            request[used += (size_t)got] = 0;
        web->requests++;
        if (strncmp(request, "HEAD /there ", 12) == 0)
            got = write(fd, there, sizeof(there) - 1);
        else
            got = write(fd, gone, sizeof(gone) - 1);
        (void)got;
        (void)close(fd);
    }
    return NULL;
}

static void an_object_is_asked_about_without_a_region(void **state)
{
    struct web web = {socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), 0};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    struct heft_agent *agent = open_agent("asker", NULL, "object");
    struct heft_query query = {.size = sizeof(query), .space = HEFT_SPACE_OBJECT};
    struct heft_error error = HEFT_ERROR_INIT;
    char url[64];
    pthread_t thread;

    (void)state;
    assert_int_equal(bind(web.listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(web.listener, 8), 0);
    assert_int_equal(getsockname(web.listener, (struct sockaddr *)&address, &size), 0);
    assert_int_equal(pthread_create(&thread, NULL, serve_web, &web), 0);
    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%u/there", ntohs(address.sin_port));
    query.path = url;
    if (heft_agent_query(agent, &query, &error))
        fail_msg("%s", error.text);
    assert_true(query.exists);
    assert_int_equal(query.length_bytes, 12345678901ULL);
    assert_int_equal(query.modified_ns, 1234567890LL * 1000000000);
    assert_string_equal(query.version, "\"v1\"");
    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%u/gone", ntohs(address.sin_port));
    assert_int_equal(heft_agent_query(agent, &query, &error), 0);
    assert_false(query.exists);
    assert_int_equal(query.length_bytes, 0);
    (void)shutdown(web.listener, SHUT_RDWR);
    (void)pthread_join(thread, NULL);
    (void)close(web.listener);
    assert_int_equal(web.requests, 2);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

/* ---- fork ---- */

/* The number of the first expectation that failed, 0: none. */
static int ask_in_child(struct pair *pair, struct heft_xfer *xfer)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_notification note = {.size = sizeof(note)};
    struct heft_agent *own;
    struct heft_region *region;
    struct heft_run run = whole_run(pair);

    options.address = pair->target;
    options.length_bytes = 16;
    if (heft_xfer_post(xfer, &error) != HEFT_ERR_STATE || !strstr(error.text, "fork"))
        return 1;
    if (heft_xfer_poll(xfer) != HEFT_ERR_STATE || heft_xfer_wait(xfer, 20000) != HEFT_ERR_STATE)
        return 2;
    if (heft_xfer_cancel(xfer) != HEFT_ERR_STATE || heft_xfer_release(xfer) != HEFT_ERR_STATE)
        return 3;
    if (heft_region_register(pair->client, &options, &region, NULL) != HEFT_ERR_STATE)
        return 4;
    if (heft_region_deregister(pair->target_region, NULL) != HEFT_ERR_STATE)
        return 5;
    if (heft_xfer_create(pair->client, HEFT_OP_READ, pair->peer, &run, 1, NULL, &xfer, NULL) !=
        HEFT_ERR_STATE)
        return 6;
    if (heft_peer_notify(pair->peer, "x", 1, NULL) != HEFT_ERR_STATE ||
        heft_agent_next_notification(pair->client, &note, 20000) != HEFT_ERR_STATE)
        return 7;
    if (heft_peer_close(pair->peer, NULL) != HEFT_ERR_STATE ||
        heft_agent_close(pair->client, NULL) != HEFT_ERR_STATE)
        return 8;
    if (heft_agent_open(NULL, &own, NULL)) /* but one of its own it may have */
        return 9;
    return heft_agent_close(own, NULL) ? 10 : 0;
}

static void a_forked_child_is_refused_and_the_parent_goes_on(void **state)
{
    struct pair *pair = *state;
    struct heft_xfer *xfer = create_read(pair, NULL);
    int status = 0;
    pid_t child;

#ifdef __SANITIZE_THREAD__
    assert_int_equal(heft_xfer_release(xfer), 0);
    skip(); /* it does not follow threads of a forked process */
#endif
    run_to_its_end(xfer);
    child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(ask_in_child(pair, xfer));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    memset(pair->target, 0, REGION_BYTES);
    run_to_its_end(xfer);
    assert_memory_equal(pair->target, pair->source, REGION_BYTES);
    assert_int_equal(heft_xfer_release(xfer), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_estimate_is_assumed_first_and_measured_later),
        TEST(a_result_says_why_its_route_was_taken),
        TEST(pages_are_picked_anew_from_lists_that_stay),
        TEST(runs_and_pairs_take_turns_in_one_transfer),
        TEST(a_file_is_asked_about_without_a_region),
        cmocka_unit_test(an_object_is_asked_about_without_a_region),
        TEST(a_forked_child_is_refused_and_the_parent_goes_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
