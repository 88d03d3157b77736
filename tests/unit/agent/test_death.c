/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Death and frost: the other side is another process (this program again, see main), which is killed or
 * stopped.
 */
#include "pair.h"
#include "process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIMEOUT_MS 600 /* peer_timeout_ms of the agents in this process */

/* ---- processes ---- */

static void wait_for_end(void)
{
    char byte;

    while (read(0, &byte, 1) > 0)
        ;
}

/* Serves one region until its standard input ends. */
static int serve_main(const char *listen)
{
    static uint8_t bytes[REGION_BYTES];
    struct served record = {.name = ""};
    struct heft_region *region;
    struct heft_agent *agent;

    fake_register();
    agent = open_agent("server", listen, "fake");
    region = register_bytes(agent, bytes, sizeof(bytes), HEFT_REGION_REMOTE_READ);
    served_fill(&record, agent);
    record.regions[0] = heft_region_id(region);
    other_write(1, &record, sizeof(record));
    wait_for_end();
    return 0;
}

static struct heft_peer *connect_record(struct heft_agent *agent, const struct served *record,
                                        struct heft_error *error, int *rc_out)
{
    struct heft_peer_options options = served_options(record);
    struct heft_peer *peer = NULL;

    *rc_out = heft_peer_connect(agent, &options, &peer, error);
    return peer;
}

/* Connects to the record on its standard input, begins a read that does not end, tells, waits. */
static int read_main(void)
{
    static uint8_t bytes[REGION_BYTES];
    struct heft_run run = {.length_bytes = REGION_BYTES, .count = 1};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *agent;
    struct served record;
    struct heft_peer *peer;
    struct heft_xfer *xfer;
    int rc;

    fake_register();
    fake_set_mode(FAKE_HOLD);
    agent = open_agent("reader", NULL, "fake");
    other_read(0, &record, sizeof(record));
    peer = connect_record(agent, &record, &error, &rc);
    if (!peer)
        return 4;
    run.local_region = register_bytes(agent, bytes, sizeof(bytes), 0);
    run.remote_region = record.regions[0];
    if (heft_xfer_create(agent, HEFT_OP_READ, peer, &run, 1, NULL, &xfer, &error) ||
        heft_xfer_post(xfer, &error))
        return 5;
    other_write(1, "r", 1);
    wait_for_end();
    return 0;
}

/* ---- the reading side ---- */

static struct heft_agent *open_impatient(const char *name, const char *listen)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *agent = NULL;

    options.name = name;
    options.listen = listen;
    options.transports = "fake";
    options.workers = 1;
    options.heartbeat_ms = 50;
    options.peer_timeout_ms = TIMEOUT_MS;
    if (heft_agent_open(&options, &agent, &error))
        fail_msg("opening %s: %s", name, error.text);
    return agent;
}

struct reading {
    struct other server;
    struct served record;
    struct heft_agent *agent;
    struct heft_peer *peer;
    struct heft_xfer *xfer;
    uint8_t bytes[REGION_BYTES];
};

static void begin_reading(struct reading *reading, const char *listen)
{
    struct heft_run run = {.length_bytes = REGION_BYTES, .count = 1};
    struct heft_error error = HEFT_ERROR_INIT;
    int rc;

    memset(reading, 0, sizeof(*reading));
    other_start(&reading->server, "serve", listen);
    other_read(reading->server.out, &reading->record, sizeof(reading->record));
    reading->agent = open_impatient("reader", NULL);
    reading->peer = connect_record(reading->agent, &reading->record, &error, &rc);
    if (!reading->peer)
        fail_msg("connecting: %s", error.text);
    run.local_region = register_bytes(reading->agent, reading->bytes, REGION_BYTES, 0);
    run.remote_region = reading->record.regions[0];
    assert_int_equal(
        heft_xfer_create(reading->agent, HEFT_OP_READ, reading->peer, &run, 1, NULL, &reading->xfer, NULL),
        0);
    fake_set_mode(FAKE_HOLD);
    assert_int_equal(heft_xfer_post(reading->xfer, NULL), 0);
}

/* The transfer ends with that code within limit_ms and names the peer and its generation. */
static void expect_end(struct reading *reading, int code, uint64_t limit_ms)
{
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_error error = HEFT_ERROR_INIT;
    char generation[HEFT_GENERATION_TEXT_BYTES];
    uint64_t before = heft_now_ns(), took_ms;

    assert_int_equal(heft_xfer_wait(reading->xfer, 20000), code);
    took_ms = (heft_now_ns() - before) / HEFT_NS_PER_MS;
    if (took_ms > limit_ms)
        fail_msg("it took %llu ms", (unsigned long long)took_ms);
    heft_xfer_get_result(reading->xfer, &result);
    assert_non_null(strstr(result.error.text, "'server'"));
    assert_non_null(
        strstr(result.error.text, heft_generation_text(reading->record.generation.bytes, generation)));
    assert_int_equal(heft_peer_status(reading->peer, &error), code);
    assert_int_equal(error.code, code);
    assert_int_equal(heft_xfer_post(reading->xfer, &error), code);
    assert_int_equal(fake_held(), 0);
}

static void end_reading(struct reading *reading)
{
    assert_int_equal(heft_xfer_release(reading->xfer), 0);
    assert_int_equal(heft_agent_close(reading->agent, NULL), 0);
}

static void a_killed_peer_ends_the_transfer_within_a_second(void **state)
{
    static const char *const ways[] = {"unix", "127.0.0.1:0", "[::1]:0"};
    struct reading reading;
    size_t index;

    (void)state;
    for (index = 0; index < 3; index++) {
        begin_reading(&reading, ways[index]);
        other_end(&reading.server, SIGKILL);
        expect_end(&reading, HEFT_ERR_PEER_LOST, 1000);
        end_reading(&reading);
    }
}

static void a_frozen_peer_is_told_stalled_after_the_time_out(void **state)
{
    struct reading reading;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_peer *again;
    int rc;

    (void)state;
    begin_reading(&reading, "unix");
    (void)kill(reading.server.pid, SIGSTOP);
    assert_int_equal(heft_xfer_wait(reading.xfer, TIMEOUT_MS / 2), HEFT_ERR_AGAIN);
    expect_end(&reading, HEFT_ERR_STALLED, TIMEOUT_MS + 1000);
    (void)kill(reading.server.pid, SIGCONT);
    again = connect_record(reading.agent, &reading.record, &error, &rc); /* it lives: no restart is needed */
    assert_non_null(again);
    assert_int_equal(heft_peer_status(again, NULL), 0);
    assert_int_equal(heft_peer_status(reading.peer, NULL), HEFT_ERR_STALLED);
    other_end(&reading.server, SIGKILL);
    end_reading(&reading);
}

static void a_quiet_peer_that_lives_is_not_taken_for_dead(void **state)
{
    struct reading reading;

    (void)state;
    begin_reading(&reading, "unix");
    assert_int_equal(heft_xfer_wait(reading.xfer, 3 * TIMEOUT_MS), HEFT_ERR_AGAIN);
    assert_int_equal(heft_peer_status(reading.peer, NULL), 0);
    fake_set_mode(FAKE_STUBBORN);
    assert_int_equal(heft_xfer_cancel(reading.xfer), 0);
    other_end(&reading.server, SIGKILL);
    expect_end(&reading, HEFT_ERR_PEER_LOST, 1000); /* also one that no cancel could end */
    end_reading(&reading);
}

static void connecting_to_a_frozen_process_ends_at_its_deadline(void **state)
{
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *agent = open_impatient("reader", NULL);
    struct heft_peer *peer = NULL;
    struct other server;
    struct served record;
    uint64_t before, took_ms;
    int status;

    (void)state;
    other_start(&server, "serve", "127.0.0.1:0");
    other_read(server.out, &record, sizeof(record));
    (void)kill(server.pid, SIGSTOP);
    assert_int_equal(waitpid(server.pid, &status, WUNTRACED), server.pid); /* all its threads are */
    options.addresses = record.addresses;
    options.token = record.token;
    options.connect_timeout_ms = 400;
    before = heft_now_ns();
    assert_int_equal(heft_peer_connect(agent, &options, &peer, &error), HEFT_ERR_DEADLINE);
    took_ms = (heft_now_ns() - before) / HEFT_NS_PER_MS;
    assert_true(took_ms >= 390 && took_ms < 1400);
    assert_null(peer);
    other_end(&server, SIGKILL);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

static void another_process_on_a_dead_peers_port_moves_no_byte(void **state)
{
    struct heft_agent *reader = open_impatient("reader", NULL), *other;
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    uint8_t bytes[REGION_BYTES] = {0};
    char listen[1024];
    struct other server;
    struct served record;
    int rc;

    (void)state;
    other_start(&server, "serve", "127.0.0.1:0");
    other_read(server.out, &record, sizeof(record));
    other_end(&server, SIGKILL);
    (void)snprintf(listen, sizeof(listen), "%s", strchr(record.addresses, ':') + 1);
    options.name = "server"; /* the same name, the same token, the same region id: another life */
    options.token = record.token;
    options.listen = listen;
    options.transports = "fake";
    if (heft_agent_open(&options, &other, &error))
        fail_msg("taking the port: %s", error.text);
    assert_int_equal(heft_region_id(register_bytes(other, bytes, sizeof(bytes), HEFT_REGION_REMOTE_READ)),
                     record.regions[0]);
    assert_null(connect_record(reader, &record, &error, &rc));
    assert_int_equal(rc, HEFT_ERR_STALE);
    assert_int_equal(STAT(other, peers_accepted), 0);
    assert_int_equal(STAT(other, bytes_served), 0);
    assert_int_equal(STAT(other, handshakes_refused), 1);
    assert_int_equal(heft_agent_close(other, NULL), 0);
    assert_int_equal(heft_agent_close(reader, NULL), 0);
}

/* ---- the serving side ---- */

struct serving {
    struct heft_agent *agent;
    struct heft_region *region;
    uint8_t bytes[REGION_BYTES];
    struct served record;
};

static void begin_serving(struct serving *serving, const char *listen)
{
    memset(serving, 0, sizeof(*serving));
    serving->agent = open_impatient("server", listen);
    serving->region = register_bytes(serving->agent, serving->bytes, REGION_BYTES, HEFT_REGION_REMOTE_READ);
    served_fill(&serving->record, serving->agent);
    serving->record.regions[0] = heft_region_id(serving->region);
}

static void start_reader(struct serving *serving, struct other *reader)
{
    char byte;

    other_start(reader, "read", "");
    other_write(reader->in, &serving->record, sizeof(serving->record));
    other_read(reader->out, &byte, 1);
}

static int nobody_connected(void *context)
{
    return STAT((struct heft_agent *)context, peers_accepted) == 0;
}

static void killed_readers_leave_the_source_as_it_was(void **state)
{
    struct serving serving;
    int round, fds = 0, threads = 0;

    (void)state;
    begin_serving(&serving, "unix,127.0.0.1:0");
    for (round = 0; round < 20; round++) {
        struct other reader;

        if (round % 2) /* over tcp as well */
            memmove(serving.record.addresses, strchr(serving.record.addresses, ',') + 1,
                    strlen(strchr(serving.record.addresses, ',')));
        start_reader(&serving, &reader);
        other_end(&reader, SIGKILL);
        eventually(nobody_connected, serving.agent);
        (void)heft_agent_addresses(serving.agent, serving.record.addresses, sizeof(serving.record.addresses));
        if (round == 1) {
            fds = count_fds();
            threads = count_threads();
        }
    }
    assert_int_equal(count_fds(), fds);
    assert_int_equal(count_threads(), threads);
    assert_int_equal(STAT(serving.agent, peers_lost), 20);
    assert_int_equal(heft_region_deregister(serving.region, NULL), 0);
    assert_int_equal(heft_agent_close(serving.agent, NULL), 0);
}

static void a_frozen_reader_is_dropped_and_its_region_comes_free(void **state)
{
    struct serving serving;
    struct other reader;

    (void)state;
    begin_serving(&serving, "unix");
    start_reader(&serving, &reader);
    (void)kill(reader.pid, SIGSTOP);
    eventually(nobody_connected, serving.agent);
    assert_int_equal(STAT(serving.agent, peers_lost), 1);
    assert_int_equal(heft_region_deregister(serving.region, NULL), 0);
    other_end(&reader, SIGKILL);
    assert_int_equal(heft_agent_close(serving.agent, NULL), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_peer_ends_the_transfer_within_a_second),
        cmocka_unit_test(a_frozen_peer_is_told_stalled_after_the_time_out),
        cmocka_unit_test(a_quiet_peer_that_lives_is_not_taken_for_dead),
        cmocka_unit_test(connecting_to_a_frozen_process_ends_at_its_deadline),
        cmocka_unit_test(another_process_on_a_dead_peers_port_moves_no_byte),
        cmocka_unit_test(killed_readers_leave_the_source_as_it_was),
        cmocka_unit_test(a_frozen_reader_is_dropped_and_its_region_comes_free),
    };

    (void)signal(SIGPIPE, SIG_IGN);
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        return serve_main(argv[2]);
    if (argc == 3 && strcmp(argv[1], "read") == 0)
        return read_main();
    fake_register();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
