/* SPDX-License-Identifier: Apache-2.0 */
/* Agents without threads: everything happens inside the caller's own calls, on one thread or several. */
#include "pair.h"
#include "process.h"

#include <poll.h>
#include <unistd.h>

static struct heft_agent *open_driven(const char *name, const char *listen)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *agent = NULL;

    options.name = name;
    options.listen = listen;
    options.transports = "local,file";
    options.heartbeat_ms = 50;
    options.peer_timeout_ms = 20000;
    options.flags = HEFT_AGENT_CALLER_PROGRESS;
    if (heft_agent_open(&options, &agent, &error))
        fail_msg("%s", error.text);
    return agent;
}

static int serve_main(void)
{
    static uint8_t source[REGION_BYTES];
    struct heft_agent *agent = open_driven("server", "unix");
    struct served served = {.name = ""};
    struct pollfd fds[2] = {{0, POLLIN, 0}, {-1, POLLIN, 0}};
    size_t index;

    for (index = 0; index < REGION_BYTES; index++)
        source[index] = (uint8_t)(index * 31 + 7);
    served_fill(&served, agent);
    served.regions[0] = heft_region_id(
        register_bytes(agent, source, REGION_BYTES, HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE));
    assert_int_equal(heft_agent_progress_fd(agent, &fds[1].fd, NULL), 0);
    other_write(1, &served, sizeof(served));
    assert_int_equal(count_threads(), 1);
    /* The loop of a program that has other things to wait for, too. */
    while (poll(fds, 2, 20000) > 0 && !fds[0].revents)
        while (heft_agent_progress(agent, 0) == 0)
            ;
    return heft_agent_close(agent, NULL) ? 1 : 0;
}

static void one_thread_on_each_side_is_enough(void **state)
{
    static uint8_t target[REGION_BYTES];
    struct heft_agent *agent;
    struct heft_region *region;
    struct heft_peer *peer;
    struct heft_xfer *xfer;
    struct other other;
    struct served served;
    struct heft_run run = {.length_bytes = REGION_BYTES, .count = 1};
    int threads = count_threads(), round;
    size_t index;

    (void)state;
    other_start(&other, "serve", "");
    other_read(other.out, &served, sizeof(served));
    agent = open_driven("client", NULL);
    assert_int_equal(count_threads(), threads);
    region = register_bytes(agent, target, REGION_BYTES, 0);
    peer = served_connect(agent, &served);
    run.local_region = region;
    run.remote_region = served.regions[0];
    assert_int_equal(heft_xfer_create(agent, HEFT_OP_READ, peer, &run, 1, NULL, &xfer, NULL), 0);
    for (round = 0; round < 50; round++) {
        memset(target, 0, sizeof(target));
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        while (heft_xfer_poll(xfer) == HEFT_ERR_AGAIN)
            (void)heft_agent_progress(agent, 20);
        assert_int_equal(heft_xfer_poll(xfer), 0);
        for (index = 0; index < REGION_BYTES; index++)
            assert_int_equal(target[index], (uint8_t)(index * 31 + 7));
    }
    assert_int_equal(count_threads(), threads);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_peer_close(peer, NULL), 0);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    other_end(&other, 0);
}

static void the_descriptor_is_quiet_until_there_is_work(void **state)
{
    struct heft_agent *agent = open_driven("idle", NULL);
    struct heft_error error = HEFT_ERROR_INIT;
    struct pollfd poller = {-1, POLLIN, 0};
    static uint8_t bytes[2][64];
    struct heft_region *from = register_bytes(agent, bytes[0], 64, 0);
    struct heft_region *to = register_bytes(agent, bytes[1], 64, 0);
    struct heft_run run = {
        .local_region = to, .remote_region = heft_region_id(from), .length_bytes = 64, .count = 1};
    struct heft_xfer *xfer;

    (void)state;
    assert_int_equal(heft_agent_progress_fd(agent, &poller.fd, &error), 0);
    while (heft_agent_progress(agent, 0) == 0)
        ;
    assert_int_equal(poll(&poller, 1, 0), 0);
    assert_int_equal(heft_agent_progress(agent, 10), HEFT_ERR_AGAIN);
    assert_int_equal(heft_xfer_create(agent, HEFT_OP_READ, NULL, &run, 1, NULL, &xfer, NULL), 0);
    bytes[0][63] = 7;
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    if (heft_xfer_poll(xfer) == HEFT_ERR_AGAIN)
        assert_int_equal(poll(&poller, 1, 20000), 1);
    while (heft_xfer_poll(xfer) == HEFT_ERR_AGAIN)
        (void)heft_agent_progress(agent, 0);
    assert_int_equal(bytes[1][63], 7);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

static void an_agent_with_threads_has_nothing_to_drive(void **state)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *agent;
    int fd;

    (void)state;
    options.transports = "local";
    assert_int_equal(heft_agent_open(&options, &agent, NULL), 0);
    assert_int_equal(heft_agent_progress(agent, 0), HEFT_ERR_STATE);
    assert_int_equal(heft_agent_progress_fd(agent, &fd, &error), HEFT_ERR_STATE);
    assert_non_null(strstr(error.text, "CALLER_PROGRESS"));
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

static void *drive(void *agent)
{
    int rc;

    do
        rc = heft_agent_progress(agent, 60000);
    while (rc == 0 || rc == HEFT_ERR_AGAIN);
    return (void *)(intptr_t)rc;
}

static void closing_sends_home_who_drives(void **state)
{
    struct heft_agent *agent = open_driven("driven", NULL);
    pthread_t threads[4];
    void *ended;
    int index;

    (void)state;
    for (index = 0; index < 4; index++) {
        heft_agent_ref(agent); /* the agent's memory must not go before each has looked at it */
        assert_int_equal(pthread_create(&threads[index], NULL, drive, agent), 0);
    }
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    for (index = 0; index < 4; index++) {
        assert_int_equal(pthread_join(threads[index], &ended), 0);
        assert_int_equal((int)(intptr_t)ended, HEFT_ERR_CANCELED);
        heft_agent_unref(agent);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_thread_on_each_side_is_enough),
        cmocka_unit_test(the_descriptor_is_quiet_until_there_is_work),
        cmocka_unit_test(an_agent_with_threads_has_nothing_to_drive),
        cmocka_unit_test(closing_sends_home_who_drives),
    };

    if (argc > 1 && strcmp(argv[1], "serve") == 0)
        return serve_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
