/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heftd: the directory of replicas as a daemon. The main thread waits for signals and reaps; gRPC and HTTP
 * have threads of their own. Order of a start: options, store, directory (what the store kept), HTTP, gRPC,
 * port file; a stop goes the other way.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "control/directory_service.h"
#include "control/grpc_base.h"
#include "daemon/http.h"
#include "daemon/options.h"
#include "daemon/store/store.h"

#include <errno.h>
#include <heft/heft.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define EXIT_FAILED 1
#define EXIT_USAGE 2
#define REAP_MS 500
#define STOP_GRACE_MS 2000

struct daemon_state {
    struct heft_config config;
    struct heft_store *store;
    struct heft_directory_service *service;
    struct heft_grpc_server *server;
    struct heft_http *http;
};

extern char **environ;

static void log_line(enum heft_log_level level, const char *line, void *context)
{
    static const char *const names[] = {"", "error", "warning", "info", "debug"};
    struct timespec now;
    struct tm parts;
    char stamp[32];

    (void)context;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &parts);
    (void)strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &parts);
    (void)fprintf(stderr, "%s.%03ldZ %s: %s\n", stamp, now.tv_nsec / 1000000, names[level], line);
}

static void set_log(const struct heft_config *config)
{
    static const char *const levels[] = {"error", "warn", "info", "debug"};
    const char *wanted = heft_config_text(config, "log-level");
    int index;

    for (index = 0; index < 4; index++)
        if (strcmp(levels[index], wanted) == 0)
            heft_set_log_sink(log_line, NULL, (enum heft_log_level)(HEFT_LOG_ERROR + index));
}

static uint64_t wall_ns(void *context)
{
    (void)context;
    return heft_wall_ms() * HEFT_NS_PER_MS;
}

/* A thousand idle connections must not use up the files. */
static void raise_file_limit(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

struct restore_counts {
    struct heft_directory_service *service;
    uint64_t live, ended;
};

/* A record that can't be put back is dropped: its replica publishes again. */
static int restore(void *context, const struct heft_stored_record *record, struct heft_error *error)
{
    struct restore_counts *counts = context;
    struct heft_error why = HEFT_ERROR_INIT;

    (void)error;
    if (heft_directory_service_restore(counts->service, record, &why) == 0)
        counts->live++;
    else
        counts->ended++;
    return 0;
}

static int restore_records(struct daemon_state *state, struct heft_error *error)
{
    struct restore_counts counts = {.service = state->service};
    int result = state->store->ops->each(state->store, restore, &counts, error);

    if (!result && counts.live + counts.ended)
        heft_log(HEFT_LOG_INFO, "store: %llu records put back, %llu had ended",
                 (unsigned long long)counts.live, (unsigned long long)counts.ended);
    return result;
}

static int open_store(struct daemon_state *state, struct heft_error *error)
{
    const char *spec = heft_config_text(&state->config, "store");
    char fallback[300];
    int result = spec ? 0 : heft_store_default(fallback, sizeof(fallback), error);

    if (!result)
        result = heft_store_open(spec ? spec : fallback, &state->store, error);
    return result;
}

static int open_directory(struct daemon_state *state, struct heft_error *error)
{
    struct heft_directory_service_options options = {.clock = heft_clock_monotonic, .wall = {wall_ns, NULL}};
    int result;

    options.limits.max_records = heft_config_number(&state->config, "max-records");
    options.limits.max_record_bytes = heft_config_number(&state->config, "max-record-bytes");
    options.limits.max_total_bytes = heft_config_number(&state->config, "max-total-bytes");
    options.limits.max_lease_ms = heft_config_number(&state->config, "lease-max");
    options.epoch = state->store->epoch;
    options.persistence = heft_store_persistence(state->store);
    result = heft_directory_service_new(&options, &state->service, error);
    return result ? result : restore_records(state, error);
}

static int open_server(struct daemon_state *state, struct heft_error *error)
{
    struct heft_grpc_server_options options = {
        .listen = heft_config_text(&state->config, "listen"),
        .threads = (uint32_t)heft_config_number(&state->config, "threads"),
    };
    const char *http = heft_config_text(&state->config, "http");
    struct heft_http_sources sources;
    int result = heft_grpc_server_new(&options, &state->server, error);

    if (result)
        return heft_error_prefix(error, result, "--listen");
    sources = (struct heft_http_sources){state->service, state->server,
                                         (int)heft_config_number(&state->config, "host-agents")};
    if (strcmp(http, "off") != 0 && (result = heft_http_start(http, &sources, &state->http, error)) != 0)
        return heft_error_prefix(error, result, "--http");
    if ((result = heft_directory_service_register(state->service, state->server, error)) != 0)
        return result;
    result = heft_grpc_server_start(state->server, error);
    return result ? heft_error_prefix(error, result, "--listen") : 0;
}

/* Appears whole or not at all: who waits for it must not read half. */
static int write_port_file(struct daemon_state *state, struct heft_error *error)
{
    const char *path = heft_config_text(&state->config, "port-file");
    char *temp;
    FILE *file;
    int failure = 0;

    if (!path)
        return 0;
    if (asprintf(&temp, "%s.tmp.%d", path, (int)getpid()) < 0)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "--port-file %s: out of memory", path);
    file = fopen(temp, "we");
    if (!file) {
        failure = errno;
    } else {
        (void)fprintf(file, "grpc=%u\n", heft_grpc_server_port(state->server));
        if (state->http)
            (void)fprintf(file, "http=%u\n", heft_http_port(state->http));
        if (fclose(file) || rename(temp, path)) {
            failure = errno;
            (void)unlink(temp);
        }
    }
    free(temp);
    return failure ? heft_error_set_errno(error, failure, "--port-file %s", path) : 0;
}

static void announce(const struct daemon_state *state)
{
    struct heft_grpc_address address;
    const char *listen = heft_config_text(&state->config, "listen");

    if (heft_grpc_address_parse(listen, &address, NULL) == 0 && !address.is_loopback)
        heft_log(HEFT_LOG_WARN,
                 "%s is not loopback and the connection is plain: whoever reaches it can read replicas' "
                 "tokens and "
                 "publish",
                 listen);
    heft_log(HEFT_LOG_INFO, "heftd %s serves: grpc port %u, http port %u, store %s, epoch %016llx",
             heft_version(), heft_grpc_server_port(state->server),
             state->http ? heft_http_port(state->http) : 0, state->store->name,
             (unsigned long long)state->store->epoch);
}

/* Reaps until a signal asks for the end. */
static void run(struct daemon_state *state, const sigset_t *signals)
{
    const struct timespec pause = {0, REAP_MS * 1000000L};
    int signal_number;

    for (;;) {
        signal_number = sigtimedwait(signals, NULL, &pause);
        if (signal_number == SIGTERM || signal_number == SIGINT)
            break;
        (void)heft_directory_service_reap(state->service);
    }
    heft_log(HEFT_LOG_INFO, "stopping: %s", signal_number == SIGTERM ? "SIGTERM" : "SIGINT");
}

static void close_all(struct daemon_state *state)
{
    heft_grpc_server_free(state->server, STOP_GRACE_MS);
    heft_http_stop(state->http);
    heft_directory_service_free(state->service);
    heft_store_close(state->store);
}

/* Before anything is made: a mistyped address must not leave a store behind. */
static int check_addresses(const struct daemon_state *state, struct heft_error *error)
{
    const char *listen = heft_config_text(&state->config, "listen");
    const char *http = heft_config_text(&state->config, "http");
    struct heft_grpc_address address;
    int result = heft_grpc_address_parse(listen, &address, error);

    if (result)
        return heft_error_prefix(error, result, "--listen");
    if (strcmp(http, "off") != 0)
        result = heft_grpc_address_parse(http, &address, error);
    return result ? heft_error_prefix(error, result, "--http") : 0;
}

static int serve(struct daemon_state *state, const sigset_t *signals, struct heft_error *error)
{
    int result;

    if ((result = check_addresses(state, error)) || (result = open_store(state, error)) ||
        (result = open_directory(state, error)) || (result = open_server(state, error)) ||
        (result = write_port_file(state, error)))
        return result;
    announce(state);
    run(state, signals);
    return 0;
}

static int print_and_leave(struct daemon_state *state)
{
    struct heft_buf text;

    if (heft_config_number(&state->config, "version")) {
        (void)printf("heftd %s\n", heft_version());
        return 1;
    }
    if (!heft_config_number(&state->config, "help"))
        return 0;
    heft_buf_init(&text, 1 << 20);
    heft_daemon_options_help(&state->config, &text);
    (void)fwrite(text.data, 1, text.size, stdout);
    heft_buf_free(&text);
    return 1;
}

int main(int argc, char **argv)
{
    struct daemon_state state;
    struct heft_error error = HEFT_ERROR_INIT;
    sigset_t signals;
    int result;

    memset(&state, 0, sizeof(state));
    (void)mallopt(M_ARENA_MAX, 2); /* a dozen threads that mostly sleep need no heap each */
    if (heft_daemon_options_read(argc, argv, environ, &state.config, &error)) {
        (void)fprintf(stderr, "heftd: %s\n", error.text);
        heft_config_free(&state.config);
        return EXIT_USAGE;
    }
    if (print_and_leave(&state)) {
        heft_config_free(&state.config);
        return 0;
    }
    set_log(&state.config);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
    raise_file_limit();
    result = serve(&state, &signals, &error);
    close_all(&state);
    heft_config_free(&state.config);
    if (!result)
        return 0;
    (void)fprintf(stderr, "heftd: %s\n", error.text);
    return heft_error_class(result) == HEFT_CLASS_BUG ? EXIT_USAGE : EXIT_FAILED;
}
