/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics: each moves by what it counts, other processes see it, also after a crash, and what only looks
 * like statistics is refused. */
#include "agent/telemetry.h"
#include "pair.h"
#include "process.h"

#include <fcntl.h>
#include <heft/heft.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/heft-telemetry-XXXXXX");
    return mkdtemp(folder) ? setenv("HEFT_TELEMETRY", folder, 1) : -1;
}

static int remove_folder(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

static struct heft_telemetry_list read_all(void)
{
    struct heft_telemetry_list list;
    struct heft_error error = HEFT_ERROR_INIT;

    if (heft_telemetry_read(folder, &list, &error))
        fail_msg("reading: %s", error.text);
    return list;
}

static struct heft_telemetry_entry *find(struct heft_telemetry_list *list, const char *name)
{
    size_t index;

    for (index = 0; index < list->count; index++)
        if (strcmp(list->entries[index].head->name, name) == 0)
            return &list->entries[index];
    fail_msg("no statistics of '%s'", name);
    return NULL;
}

static struct heft_stats_route *route_of(struct heft_telemetry_entry *entry, const char *transport)
{
    struct heft_stats_route *routes = heft_stats_routes(entry->head);
    uint32_t index;

    for (index = 0; index < entry->head->route_count; index++)
        if (strcmp(routes[index].name, transport) == 0)
            return &routes[index];
    fail_msg("no transport '%s'", transport);
    return NULL;
}

static void run_to(struct heft_xfer *xfer, int status)
{
    struct heft_error error = HEFT_ERROR_INIT;

    if (heft_xfer_post(xfer, &error))
        fail_msg("posting: %s", error.text);
    assert_int_equal(heft_xfer_wait(xfer, 20000), status);
}

static void transfers_move_every_number_that_is_about_them(void **state)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_transport_stats stats = {.size = sizeof(stats)};
    struct heft_notification note = {.size = sizeof(note)};
    struct heft_telemetry_entry *client, *server;
    struct heft_telemetry_list list;
    struct heft_stats_route *local;
    struct heft_run run;
    struct heft_xfer *xfer = NULL;
    struct pair pair;
    uint32_t index;

    (void)state;
    pair_open(&pair, "unix", "local,tcp");
    xfer = create_read(&pair, NULL);
    run_to(xfer, 0);
    run_to(xfer, 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
    run = whole_run(&pair);
    run.length_bytes = 16;
    run.count = 100;
    run.local_stride_bytes = run.remote_stride_bytes = 32;
    options.notification = "x";
    options.notification_bytes = 1;
    options.require = "tcp";
    assert_int_equal(heft_xfer_create(pair.client, HEFT_OP_WRITE, pair.peer, &run, 1, &options, &xfer, NULL),
                     0);
    run_to(xfer, 0);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_agent_next_notification(pair.server, &note, 20000), 0);
    heft_free(note.data);

    list = read_all();
    client = find(&list, "client");
    server = find(&list, "server");
    assert_int_equal(list.count, 2);
    assert_int_equal(list.refused, 0);
    assert_int_equal(client->state, HEFT_TELEMETRY_LIVE);
    assert_int_equal(client->head->pid, getpid());
    assert_memory_equal(client->head->generation, heft_agent_generation(pair.client).bytes, 16);
    local = route_of(client, "local");
    assert_int_equal(local->begun, 2);
    assert_int_equal(heft_stats_done(local), 2);
    assert_int_equal(heft_stats_histogram_count(&local->read_ns), 2);
    assert_true(heft_stats_histogram_at(&local->read_ns, 0) > 50);
    assert_int_equal(local->bytes_read, 2 * REGION_BYTES);
    assert_int_equal(local->descriptors, 2);
    assert_int_equal(route_of(client, "tcp")->bytes_written, 1600);
    assert_int_equal(route_of(client, "tcp")->descriptors, 100);
    assert_int_equal(heft_stats_histogram_count(&route_of(client, "tcp")->write_ns), 1);
    assert_int_equal(heft_stats_in_flight(route_of(client, "tcp")), 0);
    assert_int_equal(client->head->connects, 1);
    assert_int_equal(heft_stats_histogram_count(&client->head->connect_ns), 1);
    assert_int_equal(client->head->peers_connected, 1);
    assert_int_equal(client->head->notifications_sent, 1);
    assert_int_equal(client->head->regions, 1);
    assert_int_equal(client->head->region_bytes, REGION_BYTES);
    assert_int_equal(client->head->registrations, 1);
    assert_int_equal(heft_stats_histogram_count(&client->head->register_ns), 1);
    assert_int_equal(server->head->peers_accepted, 1);
    assert_int_equal(server->head->notifications_received, 1);
    heft_telemetry_list_free(&list);

    /* The agent itself says the same. */
    assert_int_equal(STAT(pair.client, bytes_read), 2 * REGION_BYTES);
    assert_int_equal(STAT(pair.client, xfers_done), 3);
    assert_int_equal(STAT(pair.client, descriptors), 102);
    for (index = 0; heft_agent_get_transport_stats(pair.client, index, &stats) == 0; index++)
        if (strcmp(stats.name, "tcp") == 0)
            assert_int_equal(stats.bytes_written, 1600);
    assert_int_equal(index, 3);
    assert_int_equal(heft_region_deregister(pair.target_region, NULL), 0);
    assert_int_equal(STAT(pair.client, deregistrations), 1);
    assert_int_equal(STAT(pair.client, region_bytes), 0);
    pair_close(&pair);
    list = read_all();
    assert_int_equal(list.count, 0);
    heft_telemetry_list_free(&list);
}

static void failures_are_counted_by_their_code(void **state)
{
    struct heft_region_options bad = HEFT_REGION_OPTIONS_INIT;
    struct heft_peer_options nobody = HEFT_PEER_OPTIONS_INIT;
    struct heft_transport_stats stats = {.size = sizeof(stats), .code = HEFT_ERR_CANCELED};
    struct heft_region *region = NULL;
    struct heft_peer *peer = NULL;
    struct heft_telemetry_list list;
    struct heft_stats_route *fake;
    struct heft_xfer *xfer;
    struct pair pair;

    (void)state;
    pair_open(&pair, "unix", "fake");
    xfer = create_read(&pair, NULL);
    fake_set_mode(FAKE_HOLD);
    assert_int_equal(heft_xfer_post(xfer, NULL), 0);
    list = read_all();
    assert_int_equal(heft_stats_in_flight(route_of(find(&list, "client"), "fake")), 1);
    heft_telemetry_list_free(&list);
    assert_int_equal(STAT(pair.client, xfers_active), 1);
    assert_int_equal(heft_xfer_cancel(xfer), 0);
    assert_int_equal(heft_xfer_wait(xfer, 20000), HEFT_ERR_CANCELED);
    fake_set_mode(FAKE_SHORT);
    run_to(xfer, HEFT_ERR_INTERNAL);
    fake_set_mode(FAKE_REFUSE);
    assert_int_not_equal(heft_xfer_post(xfer, NULL), 0);
    fake_set_mode(FAKE_BREAK);
    run_to(xfer, HEFT_ERR_PEER_LOST);
    assert_int_equal(heft_xfer_release(xfer), 0);
    fake_set_mode(FAKE_COPY);
    xfer = create_read(&pair, NULL); /* connects again */
    assert_int_equal(heft_xfer_release(xfer), 0);
    bad.fd = 1000000;
    bad.space = HEFT_SPACE_FILE;
    assert_int_not_equal(heft_region_register(pair.client, &bad, &region, NULL), 0);
    nobody.addresses = "unix:@heft-nobody-listens-there";
    assert_int_not_equal(heft_peer_connect(pair.client, &nobody, &peer, NULL), 0);

    list = read_all();
    fake = route_of(find(&list, "client"), "fake");
    assert_int_equal(fake->begun, 4);
    assert_int_equal(fake->failed, 3);
    assert_int_equal(fake->refused, 1);
    assert_int_equal(fake->retries, 1);
    assert_int_equal(heft_stats_in_flight(fake), 0);
    assert_int_equal(fake->errors[heft_stats_error_index(HEFT_ERR_CANCELED)], 1);
    assert_int_equal(fake->errors[heft_stats_error_index(HEFT_ERR_INTERNAL)], 1);
    assert_int_equal(fake->errors[heft_stats_error_index(HEFT_ERR_PEER_LOST)], 1);
    assert_int_equal(find(&list, "client")->head->registrations_failed, 1);
    assert_int_equal(find(&list, "client")->head->connects_failed, 1);
    heft_telemetry_list_free(&list);
    assert_int_equal(heft_agent_get_transport_stats(pair.client, 0, &stats), 0);
    assert_int_equal(stats.errors_of_code, 1);
    assert_int_equal(STAT(pair.client, xfers_failed), 3);
    assert_int_equal(STAT(pair.client, xfers_refused), 1);
    pair_close(&pair);
}

static int serve_main(void)
{
    static uint8_t bytes[REGION_BYTES];
    struct heft_agent *agent = open_agent("server of its own", "unix", NULL);
    struct served served;
    char command;

    served_fill(&served, agent);
    served.regions[0] = heft_region_id(register_bytes(agent, bytes, sizeof(bytes), HEFT_REGION_REMOTE_READ));
    other_write(1, &served, sizeof(served));
    while (read(0, &command, 1) == 1)
        ;
    return 0; /* without closing the agent */
}

static void set_back(const char *path, uint64_t ended_wall_ms)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(
        pwrite(fd, &ended_wall_ms, sizeof(ended_wall_ms), offsetof(struct heft_stats_head, ended_wall_ms)),
        sizeof(ended_wall_ms));
    (void)close(fd);
}

static void a_killed_process_leaves_its_numbers_behind_for_a_while(void **state)
{
    struct heft_telemetry_entry *entry;
    struct heft_telemetry_list list;
    struct heft_agent *agent;
    struct other other;
    struct served served;
    uint64_t ended_ms;

    (void)state;
    other_start(&other, "serve", "");
    other_read(other.out, &served, sizeof(served));
    list = read_all();
    assert_int_equal(find(&list, "server of its own")->state, HEFT_TELEMETRY_LIVE);
    assert_int_equal(find(&list, "server of its own")->head->pid, other.pid);
    heft_telemetry_list_free(&list);
    other_end(&other, SIGKILL);
    list = read_all();
    entry = find(&list, "server of its own");
    assert_int_equal(entry->state, HEFT_TELEMETRY_ENDED);
    assert_int_equal(entry->head->registrations, 1);
    ended_ms = entry->head->ended_wall_ms;
    assert_true(ended_ms > 0);
    heft_telemetry_list_free(&list);
    list = read_all(); /* the first who missed it noted when */
    entry = find(&list, "server of its own");
    assert_int_equal(entry->head->ended_wall_ms, ended_ms);
    set_back(entry->path, heft_wall_ms() - HEFT_TELEMETRY_KEEP_MS - 5000);
    heft_telemetry_list_free(&list);
    list = read_all();
    assert_int_equal(list.count, 0);
    heft_telemetry_list_free(&list);

    /* A process that left without closing its agent; the next agent's folder is clean in the end, too. */
    other_start(&other, "serve", "");
    other_read(other.out, &served, sizeof(served));
    other_end(&other, 0);
    list = read_all();
    assert_int_equal(find(&list, "server of its own")->state, HEFT_TELEMETRY_ENDED);
    set_back(list.entries[0].path, 1);
    heft_telemetry_list_free(&list);
    agent = open_agent("client", NULL, "local");
    list = read_all();
    assert_int_equal(list.count, 1);
    heft_telemetry_list_free(&list);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

static void a_forked_child_keeps_no_dead_agent_alive(void **state)
{
    struct heft_telemetry_list list;
    struct other other;
    struct served served;
    pid_t child = -1;

    (void)state;
    other_start(&other, "fork", "");
    other_read(other.out, &served, sizeof(served));
    other_read(other.out, &child, sizeof(child));
    (void)kill(other.pid, SIGKILL);
    assert_int_equal(waitpid(other.pid, NULL, 0), other.pid);
    list = read_all();
    assert_int_equal(find(&list, "server of its own")->state, HEFT_TELEMETRY_ENDED);
    set_back(list.entries[0].path, 1);
    heft_telemetry_list_free(&list);
    (void)kill(child, SIGKILL);
    (void)close(other.in);
    (void)close(other.out);
    list = read_all();
    heft_telemetry_list_free(&list);
}

/* The lock is the child's, too, and it lives on when its parent is killed. */
static _Noreturn void fork_main(void)
{
    struct heft_agent *agent = open_agent("server of its own", NULL, "local");
    struct served served;
    pid_t child;

    memset(&served, 0, sizeof(served));
    (void)agent;
    other_write(1, &served, sizeof(served));
    child = fork();
    if (child == 0) {
        alarm(60);
        for (;;)
            (void)pause();
    }
    other_write(1, &child, sizeof(child));
    for (;;)
        (void)pause();
}

static void a_hundred_agents_are_seen_at_once(void **state)
{
    static struct heft_agent *agents[100];
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_telemetry_list list;
    struct heft_error error = HEFT_ERROR_INIT;
    char name[32];
    size_t index;

    (void)state;
    options.workers = 1;
    options.transports = "local";
    options.name = name;
    for (index = 0; index < 100; index++) {
        (void)snprintf(name, sizeof(name), "agent %03zu", index);
        if (heft_agent_open(&options, &agents[index], &error))
            fail_msg("opening: %s", error.text);
    }
    list = read_all();
    assert_int_equal(list.count, 100);
    for (index = 0; index < 100; index++) {
        (void)snprintf(name, sizeof(name), "agent %03zu", index);
        assert_string_equal(list.entries[index].head->name, name);
        assert_int_equal(list.entries[index].state, HEFT_TELEMETRY_LIVE);
    }
    heft_telemetry_list_free(&list);
    for (index = 0; index < 100; index++)
        assert_int_equal(heft_agent_close(agents[index], NULL), 0);
    list = read_all();
    assert_int_equal(list.count, 0);
    heft_telemetry_list_free(&list);
}

static void put_file(const char *name, const void *data, size_t size)
{
    char path[256];
    int fd;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, size), size);
    (void)close(fd);
}

static void hostile_files_are_refused_and_do_not_hide_the_others(void **state)
{
    uint8_t garbage[4096];
    struct heft_telemetry_list list;
    struct heft_agent *agent = open_agent("honest", NULL, "local");
    char path[256], other[HEFT_TELEMETRY_PATH_BYTES];
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(garbage); index++)
        garbage[index] = (uint8_t)(index * 37 + 1);
    put_file("1-0000000000000001.stats", garbage, sizeof(garbage));
    memcpy(garbage, HEFT_STATS_MAGIC, 8);
    put_file("1-0000000000000002.stats", garbage, sizeof(garbage));
    memcpy(garbage + 8, "\1\0\0\0", 4);
    put_file("1-0000000000000003.stats", garbage, sizeof(garbage));
    put_file("1-0000000000000004.stats", garbage, 9);
    (void)snprintf(path, sizeof(path), "%s/1-0000000000000005.stats", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    (void)snprintf(path, sizeof(path), "%s/1-0000000000000006.stats", folder);
    assert_int_equal(symlink("/dev/zero", path), 0);
    (void)snprintf(path, sizeof(path), "%s/1-0000000000000007.stats", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    put_file("1-0000000000000008.stats", "", 0); /* being made: told by nobody */
    put_file("no statistics", garbage, sizeof(garbage));

    list = read_all();
    assert_int_equal(list.count, 1);
    assert_int_equal(list.refused, 7);
    assert_true(list.last.code != 0 && strstr(list.last.text, ".stats"));
    (void)snprintf(other, sizeof(other), "%s", list.entries[0].path);
    heft_telemetry_list_free(&list);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    assert_int_equal(access(other, F_OK), -1);
    for (index = 1; index <= 8; index++) {
        (void)snprintf(path, sizeof(path), "%s/1-000000000000000%zu.stats", folder, index);
        (void)(index == 7 ? rmdir(path) : unlink(path));
    }
}

static unsigned told;

static void count_lines(enum heft_log_level level, const char *line, void *context)
{
    (void)context;
    if (level == HEFT_LOG_WARN && strstr(line, "heft top"))
        (void)__atomic_add_fetch(&told, 1, __ATOMIC_RELAXED);
}

static void what_keeps_the_file_away_is_told_once_and_agents_work_without(void **state)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_telemetry_list list;
    struct heft_agent *agents[3];
    struct heft_region *region;
    uint8_t bytes[64];
    int index;

    (void)state;
    heft_set_log_sink(count_lines, NULL, HEFT_LOG_WARN);
    options.telemetry = "/proc/no/such/folder";
    for (index = 0; index < 2; index++)
        assert_int_equal(heft_agent_open(&options, &agents[index], NULL), 0);
    options.telemetry = "off";
    assert_int_equal(heft_agent_open(&options, &agents[2], NULL), 0);
    heft_set_log_sink(NULL, NULL, HEFT_LOG_WARN);
    assert_int_equal(__atomic_load_n(&told, __ATOMIC_RELAXED), 1);
    list = read_all();
    assert_int_equal(list.count, 0);
    heft_telemetry_list_free(&list);
    for (index = 0; index < 3; index++) {
        region = register_bytes(agents[index], bytes, sizeof(bytes), 0);
        assert_int_equal(STAT(agents[index], registrations), 1);
        assert_int_equal(heft_region_deregister(region, NULL), 0);
        assert_int_equal(heft_agent_close(agents[index], NULL), 0);
    }
    assert_int_equal(heft_telemetry_read("/proc/no/such/folder", &list, NULL), HEFT_ERR_NOT_FOUND);
}

static void files_are_private_and_the_text_for_scraping_escapes_names(void **state)
{
    struct heft_agent *agent = open_agent("a \"quoted\\name", NULL, "local");
    struct heft_telemetry_list list = read_all();
    struct heft_buf buf;
    struct stat st;

    (void)state;
    assert_int_equal(stat(list.entries[0].path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    heft_buf_init(&buf, 1 << 20);
    heft_telemetry_prometheus(&list, &buf);
    heft_buf_u8(&buf, 0);
    assert_int_equal(buf.failed, 0);
    assert_non_null(strstr((char *)buf.data, "heft_agent_up{agent=\"a \\\"quoted\\\\name\",pid=\""));
    heft_buf_free(&buf);
    heft_telemetry_list_free(&list);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_move_every_number_that_is_about_them),
        cmocka_unit_test(failures_are_counted_by_their_code),
        cmocka_unit_test(a_killed_process_leaves_its_numbers_behind_for_a_while),
        cmocka_unit_test(a_forked_child_keeps_no_dead_agent_alive),
        cmocka_unit_test(a_hundred_agents_are_seen_at_once),
        cmocka_unit_test(hostile_files_are_refused_and_do_not_hide_the_others),
        cmocka_unit_test(what_keeps_the_file_away_is_told_once_and_agents_work_without),
        cmocka_unit_test(files_are_private_and_the_text_for_scraping_escapes_names),
    };

    (void)signal(SIGPIPE, SIG_IGN);
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        return serve_main();
    if (argc == 3 && strcmp(argv[1], "fork") == 0)
        fork_main();
    fake_register();
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
