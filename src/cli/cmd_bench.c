/* SPDX-License-Identifier: Apache-2.0 */
/* heft bench: which rows, who runs them, and the table. The processes are in bench.h. */
#include "base/clock.h"
#include "base/error.h"
#include "cli/agents.h"
#include "cli/bench.h"
#include "load/machine_limits.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIST_MAX 32
#define ROWS_MAX 4096
#define SIZE_MOST (UINT64_C(1) << 30)
#define BATCH_MOST (UINT64_C(1) << 20)
#define LOOK_MS 100

struct bench {
    const struct cli *cli;
    struct bench_setup setup;
    struct bench_case rows[ROWS_MAX];
    size_t row_count, skipped;
    uint64_t memory_bytes;
    struct bench_board *board;
    pid_t children[BENCH_CLIENTS_MAX + BENCH_SERVERS_MAX];
    size_t child_count;
    double loopback; /* measured with the first row over tcp */
    json_t *json;
};

static const char *const space_names[] = {"shared", "private", "file"};
static const char *const pattern_names[] = {"contiguous", "strided", "scattered"};
static const char *const tell_names[] = {"nothing", "notification", "counter"};

/* ---- which rows ---- */

static int parse_list(const char *name, const char *text, uint64_t most, uint64_t *values, size_t *count_out,
                      struct heft_error *error)
{
    char word[32];
    size_t count = 0;

    while (*text) {
        size_t size = strcspn(text, ",");

        if (size == 0 || size >= sizeof(word) || count == LIST_MAX)
            return heft_error_set(error, HEFT_ERR_INVALID, "--%s: write up to %d sizes, joined by ','", name,
                                  LIST_MAX);
        memcpy(word, text, size);
        word[size] = 0;
        if (heft_parse_size(word, &values[count]) || values[count] == 0 || values[count] > most)
            return heft_error_set(error, HEFT_ERR_INVALID, "--%s: '%s' is not a number from 1 to %s", name,
                                  word, most == SIZE_MOST ? "1G" : "1M");
        count++;
        text += size + (text[size] == ',');
    }
    if (!count)
        return heft_error_set(error, HEFT_ERR_INVALID, "--%s: the list is empty", name);
    *count_out = count;
    return 0;
}

/* Index of the chosen word, or -1 for the last one, which means every one. */
static int choice(const struct cli *cli, const char *name, const char *const *names, size_t count)
{
    const char *text = heft_config_text(&cli->config, name);
    size_t index;

    for (index = 0; index < count; index++)
        if (strcmp(text, names[index]) == 0)
            return (int)index;
    return -1;
}

static void add_row(struct bench *bench, const struct bench_case *row)
{
    uint64_t parts = (uint64_t)bench->setup.clients * bench->setup.threads, need;

    if (bench->setup.tell == BENCH_COUNTER && row->op == HEFT_OP_READ)
        return;
    if (__builtin_mul_overflow(bench_span(row), parts, &need) || need > bench->memory_bytes ||
        bench->row_count == ROWS_MAX) {
        bench->skipped++;
        return;
    }
    if (row->space != BENCH_FILE && need > bench->setup.need_bytes)
        bench->setup.need_bytes = need;
    bench->rows[bench->row_count++] = *row;
}

static int choose_rows(struct bench *bench, struct heft_error *error)
{
    static const char *const op_names[] = {"read", "write"};
    const struct cli *cli = bench->cli;
    int op = choice(cli, "op", op_names, 2), space = choice(cli, "space", space_names, 3);
    int pattern = choice(cli, "pattern", pattern_names, 3), s, o, p;
    uint64_t sizes[LIST_MAX], batches[LIST_MAX];
    size_t size_count = 0, batch_count = 0, size, batch;
    int rc =
        parse_list("sizes", heft_config_text(&cli->config, "sizes"), SIZE_MOST, sizes, &size_count, error);

    if (!rc)
        rc = parse_list("batches", heft_config_text(&cli->config, "batches"), BATCH_MOST, batches,
                        &batch_count, error);
    if (rc)
        return rc;
    for (s = 0; s < 3; s++)
        for (p = 0; p < 3; p++)
            for (o = 0; o < 2; o++)
                for (size = 0; size < size_count; size++)
                    for (batch = 0; batch < batch_count; batch++) {
                        struct bench_case row = {o ? HEFT_OP_WRITE : HEFT_OP_READ, (enum bench_space)s,
                                                 (enum bench_pattern)p, sizes[size], batches[batch]};

                        if ((space < 0 || s == space) && (pattern < 0 || p == pattern) && (op < 0 || o == op))
                            add_row(bench, &row);
                    }
    if (!bench->row_count)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              bench->skipped ? "every row needs more than --memory %s"
                                             : "no row is left: a counter counts WRITE only (--memory is %s)",
                              heft_config_text(&cli->config, "memory"));
    return 0;
}

static void read_setup(struct bench *bench)
{
    const struct heft_config *config = &bench->cli->config;

    bench->memory_bytes = heft_config_number(config, "memory");
    bench->setup = (struct bench_setup){.clients = (uint32_t)heft_config_number(config, "clients"),
                                        .servers = (uint32_t)heft_config_number(config, "servers"),
                                        .threads = (uint32_t)heft_config_number(config, "threads"),
                                        .repeats = (uint32_t)heft_config_number(config, "repeats"),
                                        .workers = (uint32_t)heft_config_number(config, "workers"),
                                        .time_ns = heft_config_number(config, "time") * HEFT_NS_PER_MS,
                                        .warm_ns = heft_config_number(config, "warm-up") * HEFT_NS_PER_MS,
                                        .tell = (enum bench_tell)choice(bench->cli, "tell", tell_names, 3),
                                        .unprepared = (int)heft_config_number(config, "unprepared"),
                                        .unchecked = (int)heft_config_number(config, "unchecked"),
                                        .require = heft_config_text(config, "require"),
                                        .path = heft_config_text(config, "path"),
                                        .listen = heft_config_text(config, "listen"),
                                        .need_bytes = 4096,
                                        .cli = bench->cli};
}

/* ---- processes ---- */

static void reset_semaphores(struct bench_board *board)
{
    uint32_t index;

    (void)sem_init(&board->served, 1, 0);
    (void)sem_init(&board->done, 1, 0);
    for (index = 0; index < BENCH_CLIENTS_MAX; index++)
        (void)sem_init(&board->go[index], 1, 0);
}

static int open_board(struct bench *bench, struct heft_error *error)
{
    pthread_barrierattr_t shared;
    void *map = mmap(NULL, sizeof(*bench->board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (map == MAP_FAILED)
        return heft_error_set_errno(error, errno, "memory for the board");
    bench->board = map;
    reset_semaphores(bench->board);
    (void)pthread_barrierattr_init(&shared);
    (void)pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    (void)pthread_barrier_init(&bench->board->start, &shared, bench->setup.clients);
    return 0;
}

/* 1 in the child, which ends with its parent. */
static int start_child(struct bench *bench, struct heft_error *error)
{
    pid_t parent = getpid(), child;

    (void)fflush(stdout);
    (void)fflush(stderr);
    child = fork();
    if (child < 0)
        return heft_error_set_errno(error, errno, "starting a process");
    if (child) {
        bench->children[bench->child_count++] = child;
        return 0;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILED);
    return 1;
}

/* Waits for `count` posts; a child that ends before is an error. */
static int wait_for(struct bench *bench, sem_t *sem, uint32_t count, uint64_t limit_ns, const char *what,
                    struct heft_error *error)
{
    uint64_t until_ns = heft_now_ns() + limit_ns;

    while (count) {
        struct timespec until;
        size_t index;

        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        if (sem_timedwait(sem, &until) == 0) {
            count--;
            continue;
        }
        for (index = 0; index < bench->child_count; index++) {
            int status;

            if (bench->children[index] && waitpid(bench->children[index], &status, WNOHANG) > 0) {
                bench->children[index] = 0;
                return heft_error_set(error, HEFT_ERR_PEER_LOST,
                                      "a process of the benchmark ended early (%s %d)",
                                      WIFSIGNALED(status) ? "signal" : "exit code",
                                      WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            }
        }
        if (heft_now_ns() > until_ns)
            return heft_error_set(error, HEFT_ERR_DEADLINE, "%s: not within %s", what,
                                  cli_seconds((double)limit_ns / 1e9));
    }
    return 0;
}

static int start_servers(struct bench *bench, enum bench_space space, struct heft_error *error)
{
    uint32_t index;
    int rc = 0;

    for (index = 0; !rc && index < bench->setup.servers; index++) {
        rc = start_child(bench, error);
        if (rc == 1) {
            struct heft_error failure = HEFT_ERROR_INIT;

            _exit(bench_serve(&bench->setup, bench->board, index, space, bench->cli, &failure) ? EXIT_FAILED
                                                                                               : EXIT_DONE);
        }
    }
    if (!rc)
        rc = wait_for(bench, &bench->board->served, bench->setup.servers, BENCH_WAIT_S * HEFT_NS_PER_S,
                      "starting the servers", error);
    for (index = 0; index < bench->setup.servers; index++)
        if (bench->board->server_errors[index].code) {
            *error = bench->board->server_errors[index];
            return error->code;
        }
    return rc;
}

/* ADDRESSES#TOKEN; the rest the peer tells. */
static int ask_peer(struct bench *bench, const char *text, struct heft_error *error)
{
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    struct heft_agent_options agent_options;
    const char *hash = strrchr(text, '#');
    struct bench_card *card = &bench->board->cards[0], *told = NULL;
    struct heft_agent *agent = NULL;
    struct heft_peer *peer = NULL;
    uint64_t size = 0;
    size_t index;
    int rc = 0;

    if (!hash || strlen(hash + 1) != 2 * sizeof(options.token.bytes) ||
        (size_t)(hash - text) >= sizeof(card->addresses) ||
        strspn(hash + 1, "0123456789abcdef") != 2 * sizeof(options.token.bytes))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "'%s' is no peer: take what heft bench --listen prints there, in quotes", text);
    memcpy(card->addresses, text, (size_t)(hash - text));
    for (index = 0; index < sizeof(options.token.bytes); index++) {
        char two[3] = {hash[1 + 2 * index], hash[2 + 2 * index], 0};

        card->token.bytes[index] = (uint8_t)strtoul(two, NULL, 16);
    }
    options.addresses = card->addresses;
    options.token = card->token;
    bench_agent_options(&bench->setup, &agent_options);
    rc = heft_agent_open(&agent_options, &agent, error);
    if (!rc)
        rc = heft_peer_connect(agent, &options, &peer, error);
    if (!rc)
        rc = heft_peer_read_document(peer, BENCH_DOCUMENT, sizeof(*told), BENCH_WAIT_S * 1000u,
                                     (void **)&told, &size, error);
    if (!rc && size != sizeof(*told))
        rc = heft_error_set(error, HEFT_ERR_INCOMPATIBLE, "the peer runs another release of heft bench");
    if (!rc) {
        card->source_region = told->source_region;
        card->target_region = told->target_region;
        card->bytes = told->bytes;
    }
    heft_free(told);
    (void)heft_agent_close(agent, NULL);
    return rc;
}

static int start_clients(struct bench *bench, struct heft_error *error)
{
    uint32_t index;
    int rc = 0;

    for (index = 0; !rc && index < bench->setup.clients; index++) {
        rc = start_child(bench, error);
        if (rc == 1) {
            bench_client(&bench->setup, bench->board, index);
            _exit(EXIT_DONE);
        }
    }
    if (!rc)
        rc = wait_for(bench, &bench->board->done, bench->setup.clients, BENCH_WAIT_S * HEFT_NS_PER_S,
                      "connecting the clients", error);
    for (index = 0; !rc && index < bench->setup.clients; index++)
        if (bench->board->results[index].status) {
            *error = bench->board->results[index].error;
            rc = bench->board->results[index].status;
        }
    return rc;
}

/* All leave by themselves, or are ended after two seconds. */
static void end_children(struct bench *bench, int at_once)
{
    uint64_t until_ns = heft_now_ns() + (at_once ? 0 : 2 * HEFT_NS_PER_S);
    uint32_t client;
    size_t index;

    __atomic_store_n(&bench->board->stop, 1, __ATOMIC_RELEASE);
    for (client = 0; client < bench->setup.clients; client++)
        (void)sem_post(&bench->board->go[client]);
    for (index = bench->child_count; index > 0; index--) { /* clients before the servers they use */
        pid_t child = bench->children[index - 1];

        while (child && waitpid(child, NULL, WNOHANG) == 0) {
            if (heft_now_ns() > until_ns) {
                (void)kill(child, SIGKILL);
                (void)waitpid(child, NULL, 0);
                break;
            }
            (void)usleep(2000);
        }
    }
    reset_semaphores(bench->board); /* what nobody took must not start the next ones */
    bench->child_count = 0;
    __atomic_store_n(&bench->board->stop, 0, __ATOMIC_RELEASE);
}

/* ---- results ---- */

struct sum {
    double rate, transfers, least, most; /* a second: bytes, transfers; of the slowest and fastest repeat */
    double bare;
    const char *transport;
    uint64_t checked_bytes;
    struct heft_stats_histogram times;
};

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return a < b ? -1 : a > b;
}

static void sum_up(struct bench *bench, const struct bench_case *row, struct sum *sum)
{
    double rates[BENCH_REPEATS_MAX] = {0};
    uint32_t repeat, client;

    memset(sum, 0, sizeof(*sum));
    for (repeat = 0; repeat < bench->setup.repeats; repeat++) {
        uint64_t bytes = 0, ns = 1;

        for (client = 0; client < bench->setup.clients; client++) {
            const struct bench_result *result = &bench->board->results[client];

            bytes += result->bytes[repeat];
            ns = result->ns[repeat] > ns ? result->ns[repeat] : ns;
        }
        rates[repeat] = (double)bytes * 1e9 / (double)ns;
    }
    for (client = 0; client < bench->setup.clients; client++) {
        heft_stats_histogram_add(&sum->times, &bench->board->results[client].times);
        sum->checked_bytes += bench->board->results[client].checked_bytes;
    }
    qsort(rates, bench->setup.repeats, sizeof(rates[0]), by_value);
    sum->rate = rates[bench->setup.repeats / 2];
    sum->least = rates[0];
    sum->most = rates[bench->setup.repeats - 1];
    sum->transfers = sum->rate / (double)(row->size_bytes * row->batch);
    sum->transport = bench->board->results[0].transport;
    sum->bare = bench->board->results[0].bare;
    if (strcmp(sum->transport, "tcp") == 0) {
        if (bench->loopback == 0 && !bench->setup.is_remote)
            bench->loopback = heft_limits_measure_tcp(NULL);
        sum->bare = bench->loopback;
    }
}

static const char *size_text(uint64_t bytes)
{
    static const char *const units[] = {"", "K", "M", "G"};
    static char buffers[4][24];
    static unsigned next;
    char *text = buffers[next++ % 4];
    size_t unit = 0;

    while (bytes && bytes % 1024 == 0 && unit < 3) {
        bytes /= 1024;
        unit++;
    }
    (void)snprintf(text, sizeof(buffers[0]), "%llu%s", (unsigned long long)bytes, units[unit]);
    return text;
}

static void print_head(const struct bench *bench)
{
    const struct bench_setup *setup = &bench->setup;
    struct heft_limits limits;

    if (bench->cli->json)
        return;
    printf("%u clients x %u servers x %u threads, %s, telling %s, median of %u x %s\n", setup->clients,
           setup->servers, setup->threads, setup->unprepared ? "made anew each time" : "prepared",
           tell_names[setup->tell], setup->repeats, cli_seconds((double)setup->time_ns / 1e9));
    if (heft_limits_read(&limits) == 0)
        printf("this machine, measured %s: memory copy %s (1 thread), %s (%u threads), loopback %s\n",
               limits.when, cli_rate(limits.memcpy_one), cli_rate(limits.memcpy_all), limits.threads,
               cli_rate(limits.tcp));
    if (bench->skipped)
        printf("%zu rows need more than --memory %s and are passed over\n", bench->skipped,
               heft_config_text(&bench->cli->config, "memory"));
    printf("%-5s %-7s %-10s %5s %5s %-6s %10s %9s %8s %8s %10s %6s\n", "op", "space", "pattern", "size",
           "batch", "route", "rate", "ns/piece", "p50", "p99", "bare", "share");
    (void)fflush(stdout);
}

static json_t *row_json(const struct bench *bench, const struct bench_case *row, const struct sum *sum)
{
    json_t *object = json_object();

    (void)json_object_set_new(object, "op", json_string(row->op == HEFT_OP_READ ? "read" : "write"));
    (void)json_object_set_new(object, "space", json_string(space_names[row->space]));
    (void)json_object_set_new(object, "pattern", json_string(pattern_names[row->pattern]));
    (void)json_object_set_new(object, "size", json_integer((json_int_t)row->size_bytes));
    (void)json_object_set_new(object, "batch", json_integer((json_int_t)row->batch));
    (void)json_object_set_new(object, "transport", json_string(sum->transport));
    (void)json_object_set_new(object, "rate", json_real(sum->rate));
    (void)json_object_set_new(object, "rate_least", json_real(sum->least));
    (void)json_object_set_new(object, "rate_most", json_real(sum->most));
    (void)json_object_set_new(object, "transfer_rate", json_real(sum->transfers));
    (void)json_object_set_new(object, "ns_per_piece", json_real((double)row->size_bytes * 1e9 / sum->rate));
    (void)json_object_set_new(object, "p50_ns",
                              json_integer((json_int_t)heft_stats_histogram_at(&sum->times, 0.5)));
    (void)json_object_set_new(object, "p99_ns",
                              json_integer((json_int_t)heft_stats_histogram_at(&sum->times, 0.99)));
    (void)json_object_set_new(object, "bare", sum->bare > 0 ? json_real(sum->bare) : json_null());
    (void)json_object_set_new(object, "share",
                              sum->bare > 0 ? json_real(sum->rate / sum->bare) : json_null());
    (void)json_object_set_new(object, "checked", json_boolean(!bench->setup.unchecked));
    (void)json_object_set_new(object, "checked_bytes", json_integer((json_int_t)sum->checked_bytes));
    return object;
}

static void print_row(struct bench *bench, const struct bench_case *row)
{
    struct sum sum;
    char share[16] = "-";

    sum_up(bench, row, &sum);
    if (bench->json) {
        (void)json_array_append_new(bench->json, row_json(bench, row, &sum));
        return;
    }
    if (sum.bare > 0)
        (void)snprintf(share, sizeof(share), "%.2f", sum.rate / sum.bare);
    printf("%-5s %-7s %-10s %5s %5s %-6s %10s %9.1f %8s %8s %10s %6s\n",
           row->op == HEFT_OP_READ ? "READ" : "WRITE", space_names[row->space], pattern_names[row->pattern],
           size_text(row->size_bytes), size_text(row->batch), sum.transport, cli_rate(sum.rate),
           (double)row->size_bytes * 1e9 / sum.rate, cli_ns(heft_stats_histogram_at(&sum.times, 0.5)),
           cli_ns(heft_stats_histogram_at(&sum.times, 0.99)), sum.bare > 0 ? cli_rate(sum.bare) : "-", share);
    (void)fflush(stdout);
}

/* ---- running ---- */

static void show_progress(const struct bench *bench, size_t index)
{
    const struct bench_case *row = &bench->rows[index];

    if (heft_config_number(&bench->cli->config, "quiet") || !isatty(STDERR_FILENO))
        return;
    fprintf(stderr, "\r\033[Krow %zu of %zu: %s %s x %s", index + 1, bench->row_count,
            row->op == HEFT_OP_READ ? "READ" : "WRITE", size_text(row->size_bytes), size_text(row->batch));
}

static void clear_progress(const struct bench *bench)
{
    if (!heft_config_number(&bench->cli->config, "quiet") && isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
}

static int run_row(struct bench *bench, size_t index, struct heft_error *error)
{
    struct bench_board *board = bench->board;
    uint64_t limit_ns = BENCH_WAIT_S * HEFT_NS_PER_S +
                        2 * (bench->setup.warm_ns + bench->setup.repeats * bench->setup.time_ns);
    uint32_t client;
    int rc;

    show_progress(bench, index);
    board->row = bench->rows[index];
    for (client = 0; client < bench->setup.clients; client++)
        (void)sem_post(&board->go[client]);
    rc = wait_for(bench, &board->done, bench->setup.clients, limit_ns, "a row", error);
    for (client = 0; !rc && client < bench->setup.clients; client++)
        if (board->results[client].status) {
            *error = board->results[client].error;
            rc = board->results[client].status;
            if (!error->text[0])
                (void)heft_error_set(error, rc, "%s", heft_error_text(rc));
        }
    clear_progress(bench);
    if (!rc)
        print_row(bench, &board->row);
    return rc;
}

/* Rows of one space have the same servers; the next space gets others. */
static int run_space(struct bench *bench, size_t first, size_t end, const char *peer,
                     struct heft_error *error)
{
    int rc = 0;
    size_t index;

    if (!peer && bench->rows[first].space != BENCH_FILE) {
        bench->setup.need_bytes = 4096;
        for (index = first; index < end; index++) {
            uint64_t need = bench_span(&bench->rows[index]) * bench->setup.clients * bench->setup.threads;

            bench->setup.need_bytes = need > bench->setup.need_bytes ? need : bench->setup.need_bytes;
        }
    }
    if (!peer)
        rc = start_servers(bench, bench->rows[first].space, error);
    if (!rc)
        rc = start_clients(bench, error);
    for (index = first; !rc && index < end; index++)
        rc = run_row(bench, index, error);
    end_children(bench, rc != 0);
    return rc;
}

static int run_all(struct bench *bench, const char *peer, struct heft_error *error)
{
    size_t first = 0, end;
    int rc = open_board(bench, error);

    if (rc)
        return rc;
    if (peer) { /* asked in a process of its own: an agent's threads do not live on in children */
        rc = start_child(bench, error);
        if (rc == 1) {
            rc = ask_peer(bench, peer, &bench->board->server_errors[0]);
            (void)sem_post(&bench->board->served);
            _exit(rc ? EXIT_FAILED : EXIT_DONE);
        }
        if (!rc)
            rc = wait_for(bench, &bench->board->served, 1, BENCH_WAIT_S * HEFT_NS_PER_S, "asking the peer",
                          error);
        if (bench->board->server_errors[0].code) {
            *error = bench->board->server_errors[0];
            rc = error->code;
        }
        end_children(bench, 0);
        if (!rc && bench->setup.need_bytes > bench->board->cards[0].bytes)
            rc = heft_error_set(
                error, HEFT_ERR_INVALID,
                "these rows need regions of %s and the peer has %s: give it a larger --memory, or "
                "smaller --sizes here",
                cli_bytes(bench->setup.need_bytes), cli_bytes(bench->board->cards[0].bytes));
    }
    if (!rc)
        print_head(bench);
    while (!rc && first < bench->row_count) {
        for (end = first; end < bench->row_count && bench->rows[end].space == bench->rows[first].space; end++)
            ;
        rc = run_space(bench, first, end, peer, error);
        first = end;
    }
    (void)munmap(bench->board, sizeof(*bench->board));
    return rc;
}

static int listen_only(struct bench *bench, struct heft_error *error)
{
    static const enum bench_space spaces[] = {BENCH_SHARED, BENCH_PRIVATE};
    int space = choice(bench->cli, "space", space_names, 3);

    if (space == BENCH_FILE)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "--space file is measured inside one process: it needs no peer");
    bench->setup.need_bytes = bench->memory_bytes;
    return bench_serve(&bench->setup, NULL, 0, spaces[space == BENCH_PRIVATE], bench->cli, error);
}

int cli_bench(struct cli *cli)
{
    const char *peer = cli->argument_count ? cli->arguments[0] : NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    struct bench *bench = calloc(1, sizeof(*bench));
    json_t *object;
    int rc;

    if (!bench)
        return cli_fail(cli, HEFT_ERR_NO_MEMORY, NULL);
    bench->cli = cli;
    read_setup(bench);
    bench->setup.is_remote = peer != NULL;
    if (!peer && heft_config_origin(&cli->config, "listen") == HEFT_ORIGIN_FLAG) {
        rc = listen_only(bench, &error);
        free(bench);
        return rc ? cli_fail(cli, rc, &error) : EXIT_DONE;
    }
    if (peer && bench->setup.servers != 1)
        rc = heft_error_set(&error, HEFT_ERR_INVALID, "--servers: with a PEER there is one");
    else
        rc = choose_rows(bench, &error);
    bench->json = cli->json ? json_array() : NULL;
    if (!rc)
        rc = run_all(bench, peer, &error);
    if (!rc && cli->json) {
        object = json_pack("{s:i, s:i, s:i, s:s, s:b, s:I, s:O}", "clients", (int)bench->setup.clients,
                           "servers", (int)bench->setup.servers, "threads", (int)bench->setup.threads, "tell",
                           tell_names[bench->setup.tell], "prepared", !bench->setup.unprepared, "skipped",
                           (json_int_t)bench->skipped, "rows", bench->json);
        cli_print_json(object, 0);
        json_decref(object);
    }
    json_decref(bench->json);
    free(bench);
    return rc ? cli_fail(cli, rc, &error) : EXIT_DONE;
}
