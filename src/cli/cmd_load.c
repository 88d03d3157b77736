/* SPDX-License-Identifier: Apache-2.0 */
/* heft load, serve and plan: the same load, shown in three ways. */
#include "cli/cli.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "load/directory.h"
#include "load/loaded.h"
#include "load/machine_limits.h"
#include "space/cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t stop_wanted;

static void on_stop(int number)
{
    (void)number;
    stop_wanted = 1;
}

/* The first one ends the command in order; a second one, from somebody who does not want to wait, ends it at
 * once. */
static void catch_stop(void)
{
    struct sigaction action = {.sa_handler = on_stop, .sa_flags = (int)SA_RESETHAND};

    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

/* What one command holds, freed together. */
struct session {
    struct cli *cli;
    struct heft_directory *directory;
    struct heft_agent *agent;
    struct heft_load *load;
    struct heft_model *model;
    struct heft_replica *replica;
    json_t *report;
};

static void session_end(struct session *session)
{
    heft_replica_close(session->replica);
    heft_load_free(session->load);
    (void)heft_model_free(session->model, NULL);
    if (session->agent)
        (void)heft_agent_close(session->agent, NULL);
    heft_directory_close(session->directory);
    json_decref(session->report);
}

static int check_device(const struct cli *cli, struct heft_error *error)
{
    const char *device = heft_config_text(&cli->config, "device");
    int number, rc;

    if (strcmp(device, "host") == 0)
        return HEFT_OK;
    rc = heft_cuda_parse_device(device, &number, error);
    return rc == HEFT_ERR_UNSUPPORTED ? heft_error_prefix(error, rc, "device %s", device) : rc;
}

static int open_agent(struct session *session, int serves, struct heft_error *error)
{
    const struct heft_config *config = &session->cli->config;
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    char name[HEFT_NAME_MAX_BYTES + 1];

    options.max_host_bytes = heft_config_number(config, "max-host-memory");
    options.workers = (uint32_t)heft_config_number(config, "workers");
    options.transports = heft_config_text(config, "transports");
    cli_agent_tls(session->cli, &options);
    if (serves) {
        heft_replica_default_name(name, sizeof(name));
        options.name = heft_config_text(config, "name") ? heft_config_text(config, "name") : name;
        options.listen = heft_config_text(config, "listen");
    }
    return heft_agent_open(&options, &session->agent, error);
}

/* "A:B", "A:" or ":B" of counted things; B is the first that is not meant. */
static int parse_range(const char *option, const char *text, uint64_t *from_out, uint64_t *to_out,
                       struct heft_error *error)
{
    const char *at = text;
    char *end;

    *from_out = 0;
    *to_out = UINT64_MAX;
    errno = 0;
    if (*at >= '0' && *at <= '9') {
        *from_out = strtoull(at, &end, 10);
        at = end;
    }
    if (*at != ':')
        goto bad;
    at++;
    if (*at >= '0' && *at <= '9') {
        *to_out = strtoull(at, &end, 10);
        at = end;
    }
    if (!*at && !errno && *from_out < *to_out)
        return HEFT_OK;
bad:
    return heft_error_set(error, HEFT_ERR_INVALID, "--%s: '%s' is not a range like 0:16, 16: or :8", option,
                          text);
}

/* Which part of the model is wanted. */
static int part_options(const struct heft_config *config, struct heft_load_options *options,
                        struct heft_error *error)
{
    static const char *const splits[] = {"auto", "row", "column", "rules"};
    const char *experts = heft_config_text(config, "experts"), *layers = heft_config_text(config, "layers");
    const char *split = heft_config_text(config, "split");
    unsigned index;
    int rc = HEFT_OK;

    options->rank = (uint32_t)heft_config_number(config, "rank");
    options->ranks = (uint32_t)heft_config_number(config, "ranks");
    options->pipeline_rank = (uint32_t)heft_config_number(config, "pipeline-rank");
    options->pipeline_ranks = (uint32_t)heft_config_number(config, "pipeline-ranks");
    options->rules = heft_config_text(config, "rules");
    options->mirrors = heft_config_text(config, "mirror");
    options->host_loads = (uint32_t)heft_config_number(config, "host-loads");
    options->share_folder = heft_config_text(config, "share-folder");
    options->fleet_loads = (uint32_t)heft_config_number(config, "fleet-loads");
    options->fleet_wait_ms = (uint32_t)heft_config_number(config, "fleet-wait");
    for (index = 0; index < 4; index++)
        if (strcmp(split, splits[index]) == 0)
            options->split = (enum heft_load_split)index;
    if (strcmp(experts, "spread") == 0)
        options->experts = HEFT_LOAD_EXPERTS_SPREAD;
    else if (strcmp(experts, "cut") != 0)
        rc = parse_range("experts", experts, &options->experts_from, &options->experts_to, error);
    if (!rc && layers)
        rc = parse_range("layers", layers, &options->layers_from, &options->layers_to, error);
    return rc;
}

static int start_load(struct session *session, int serves, uint32_t flags, struct heft_error *error)
{
    const struct heft_config *config = &session->cli->config;
    struct heft_load_options options = HEFT_LOAD_OPTIONS_INIT;
    int rc = check_device(session->cli, error);

    if (!rc)
        rc = cli_open_directory(session->cli, 0, &session->directory, error);
    if (!rc)
        rc = open_agent(
            session,
            serves || (!(flags & HEFT_LOAD_EXPLAIN) && heft_config_number(config, "fleet-loads") > 1), error);
    if (rc)
        return rc;
    options.model = session->cli->arguments[0];
    cli_model_options(session->cli, &options.model_options);
    options.source = heft_config_text(config, "source");
    options.require = heft_config_text(config, "require");
    options.to = heft_config_text(config, "to");
    rc = part_options(config, &options, error);
    if (rc)
        return rc;
    options.agent = session->agent;
    options.directory = session->directory;
    options.self = serves ? heft_config_text(config, "name") : NULL;
    options.max_host_bytes = heft_config_number(config, "max-host-memory");
    options.deadline_ms = heft_config_number(config, "deadline");
    options.stall_ms = heft_config_number(config, "stall");
    if (heft_config_origin(config, "chunk") != HEFT_ORIGIN_DEFAULT) /* else the sources decide */
        options.chunk_bytes = heft_config_number(config, "chunk");
    options.device = heft_config_text(config, "device");
    options.flags = flags | (heft_config_number(config, "no-verify") ? HEFT_LOAD_NO_VERIFY : 0u) |
                    (strcmp(heft_config_text(config, "checksum"), "off") == 0 ? HEFT_LOAD_NO_CHECKSUM : 0u);
    return heft_load_start(&options, &session->load, error);
}

static int wait_load(struct session *session, struct heft_error *error)
{
    struct heft_load_progress now = {.size = sizeof(now)};
    struct cli_progress progress;
    int rc;

    cli_progress_start(&progress, (int)heft_config_number(&session->cli->config, "quiet"));
    while ((rc = heft_load_wait(session->load, 100, error)) == HEFT_ERR_AGAIN) {
        if (stop_wanted)
            heft_load_cancel(session->load);
        heft_load_get_progress(session->load, &now);
        cli_progress_show(&progress, &now);
    }
    cli_progress_end(&progress);
    return rc;
}

/* Between the stages that the library can be told to give up. */
static int check_stop(struct heft_error *error)
{
    return stop_wanted ? heft_error_set(error, HEFT_ERR_CANCELED, "stopped by a signal") : HEFT_OK;
}

/* ---- the report ---- */

static double real(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static uint64_t whole(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static const char *word(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

/* Adds "limit": the measured limits of what the used sources took, side by side, and the share reached. */
static void add_limit(json_t *report)
{
    struct heft_limits limits;
    const json_t *source, *route;
    json_t *limit;
    char what[128] = "";
    double most = 0;
    size_t index, at;
    int on_gpu = 0;

    if (heft_limits_read(&limits))
        return;
    json_array_foreach(json_object_get(report, "sources"), index, source)
    {
        json_array_foreach(json_object_get(source, "routes"), at, route)
        {
            const char *name = word(route, "transport"), *label = "";
            double add = 0;

            if (whole(route, "bytes") == 0)
                continue;
            if (strcmp(name, "file") == 0) {
                int cached = real(source, "rate") > limits.disk * 1.1;

                add = cached ? limits.page_cache : limits.disk;
                label = cached ? "page cache" : "disk";
            } else if (strcmp(name, "local") == 0) {
                add = limits.memcpy_all;
                label = "memory copy";
            } else if (strcmp(name, "tcp") == 0) {
                add = limits.tcp;
                label = "tcp loopback";
            } else if (strcmp(name, "cuda") == 0) {
                int between = real(source, "rate") > limits.gpu_in * 1.1;

                add = between ? limits.gpu_gpu : limits.gpu_in;
                label = between ? "GPU to GPU" : "host to GPU";
                on_gpu = 1;
            }
            if (strstr(what, label))
                continue;
            (void)snprintf(what + strlen(what), sizeof(what) - strlen(what), "%s%s", what[0] ? " + " : "",
                           label);
            most += add;
        }
    }
    if (most > limits.memcpy_all && !on_gpu)
        most = limits.memcpy_all; /* nothing enters memory faster than it can be copied there */
    if (most <= 0)
        return;
    limit = json_object();
    (void)json_object_set_new(limit, "what", json_string(what));
    (void)json_object_set_new(limit, "rate", json_real(most));
    (void)json_object_set_new(limit, "ratio", json_real(real(report, "rate") / most));
    (void)json_object_set_new(limit, "measured", json_string(limits.when));
    (void)json_object_set_new(report, "limit", limit);
}

static int take_report(struct session *session)
{
    char *text = heft_load_report(session->load);

    json_decref(session->report);
    session->report = text ? json_loads(text, 0, NULL) : NULL;
    heft_free(text);
    if (session->report)
        add_limit(session->report);
    return session->report ? HEFT_OK : HEFT_ERR_NO_MEMORY;
}

/* On stdout the report takes the summary's place: see report_on_stdout. */
static int write_report(const struct session *session, struct heft_error *error)
{
    const char *path = heft_config_text(&session->cli->config, "report");

    if (!path || !session->report || strcmp(path, "-") == 0)
        return HEFT_OK;
    errno = 0;
    if (json_dump_file(session->report, path, JSON_INDENT(2) | JSON_REAL_PRECISION(6)))
        return heft_error_set_errno(error, errno ? errno : EIO, "writing the report %s", path);
    return HEFT_OK;
}

/* A trace with the report in it, so that one file tells both. */
static int write_trace(const struct session *session, struct heft_error *error)
{
    const char *path = heft_config_text(&session->cli->config, "trace");
    char *events = path ? heft_load_trace(session->load) : NULL;
    int failed = 0, saved;
    FILE *file;

    if (!events) /* not asked for, or it failed before bytes moved */
        return HEFT_OK;
    file = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");
    errno = 0;
    if (file) {
        failed = fputs("{\"heft\":", file) < 0 || json_dumpf(session->report, file, JSON_REAL_PRECISION(6)) ||
                 fprintf(file, ",%s", events + 1) < 0 || fflush(file);
        saved = errno;
        if (file != stdout && fclose(file) && !failed) {
            failed = 1;
            saved = errno;
        }
    } else {
        failed = 1;
        saved = errno;
    }
    heft_free(events);
    return failed ? heft_error_set_errno(error, saved ? saved : EIO, "writing the trace %s", path) : HEFT_OK;
}

static int report_on_stdout(const struct cli *cli)
{
    const char *path = heft_config_text(&cli->config, "report");

    return cli->json || (path && strcmp(path, "-") == 0);
}

/* As sha256sum writes names: a line that begins with a backslash has escapes, so that a name is never two
 * lines. */
static void write_digest_line(FILE *file, const char *hex, const struct heft_tensor *tensor)
{
    int escaped = memchr(tensor->name, '\n', tensor->name_bytes) ||
                  memchr(tensor->name, '\r', tensor->name_bytes) ||
                  memchr(tensor->name, '\\', tensor->name_bytes);
    size_t index;

    (void)fprintf(file, "%s%s  ", escaped ? "\\" : "", hex);
    for (index = 0; index < tensor->name_bytes; index++) {
        char c = tensor->name[index];

        if (escaped && (c == '\n' || c == '\r' || c == '\\'))
            (void)fprintf(file, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : '\\');
        else
            (void)putc(c, file);
    }
    (void)putc('\n', file);
}

/* What lies on a GPU is read back first. */
static int tensor_sha256(const struct session *session, const struct heft_tensor *tensor, uint8_t *digest_out,
                         struct heft_error *error)
{
    void *bytes;
    int rc = HEFT_OK;

    if (session->model->device < 0 || tensor->size_bytes == 0) {
        heft_sha256(tensor->address, tensor->size_bytes, digest_out);
        return HEFT_OK;
    }
    bytes = malloc(tensor->size_bytes);
    if (!bytes)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "reading a tensor back from the GPU");
    rc = heft_cuda_read(session->model->device, (uintptr_t)tensor->address, bytes, tensor->size_bytes, error);
    if (!rc)
        heft_sha256(bytes, tensor->size_bytes, digest_out);
    free(bytes);
    return rc;
}

static int write_sha256(const struct session *session, struct heft_error *error)
{
    const char *path = heft_config_text(&session->cli->config, "sha256");
    const struct heft_manifest *manifest = heft_model_manifest(session->model);
    FILE *file;
    uint64_t index;
    int rc = HEFT_OK;

    if (!path)
        return HEFT_OK;
    file = fopen(path, "we");
    if (!file)
        return heft_error_set_errno(error, errno, "writing %s", path);
    for (index = 0; index < heft_manifest_tensors(manifest) && !rc; index++) {
        struct heft_tensor tensor = {.size = sizeof(tensor)};
        uint8_t digest[HEFT_SHA256_BYTES];
        char hex[2 * HEFT_SHA256_BYTES + 1];

        heft_model_tensor(session->model, index, &tensor);
        rc = tensor_sha256(session, &tensor, digest, error);
        if (rc)
            break;
        cli_hex(digest, sizeof(digest), hex);
        write_digest_line(file, hex, &tensor);
        rc = check_stop(error);
    }
    if (rc) {
        (void)fclose(file);
        return rc;
    }
    if (fflush(file) || ferror(file)) {
        int saved = errno;

        (void)fclose(file);
        return heft_error_set_errno(error, saved, "writing %s", path);
    }
    return fclose(file) ? heft_error_set_errno(error, errno, "writing %s", path) : HEFT_OK;
}

static void print_sources(const json_t *report)
{
    const json_t *source, *route;
    size_t index, at;

    json_array_foreach(json_object_get(report, "sources"), index, source)
    {
        const json_t *reason = json_object_get(source, "reason");

        printf("  %-20s %-8s %8s", cli_safe(word(source, "name")), word(source, "state"),
               cli_bytes(whole(source, "bytes")));
        json_array_foreach(json_object_get(source, "routes"), at, route)
            printf(" via %s", word(route, "transport"));
        if (real(source, "rate") > 0)
            printf(" at %s", cli_rate(real(source, "rate")));
        if (reason)
            printf("  (%s)", cli_was_said(word(reason, "text")) ? "see the warning above"
                                                                : cli_safe(word(reason, "text")));
        printf("\n");
    }
}

/* How many objects are what their store says, by which checksum; of the others the first one's reason. */
static void print_checksums(const json_t *report)
{
    const json_t *object, *objects = json_object_get(report, "checksums");
    const char *kind = "", *why = "";
    size_t index, checked = 0;

    json_array_foreach(objects, index, object)
    {
        if (!json_is_true(json_object_get(object, "checked"))) {
            why = why[0] ? why : word(object, "why");
            continue;
        }
        checked++;
        if (kind[0] && strcmp(kind, word(object, "checksum")) != 0)
            kind = "checksum";
        else
            kind = word(object, "checksum");
    }
    if (json_array_size(objects) == 0)
        return;
    printf("  objects: %zu of %zu compared with their store's %s", checked, json_array_size(objects),
           kind[0] ? kind : "checksum");
    printf(why[0] ? "; not the others: %s\n" : "%s\n", cli_safe(why));
}

void cli_print_report(const json_t *report)
{
    const json_t *verified = json_object_get(report, "verified"), *limit = json_object_get(report, "limit");
    const json_t *stages = json_object_get(report, "stages"), *layout = json_object_get(report, "layout");

    printf("loaded %s@%.16s", cli_safe(word(report, "model")), cli_safe(word(report, "revision")));
    if (whole(layout, "ranks") > 1)
        printf(" rank %llu of %llu (%s split%s%s)", (unsigned long long)whole(layout, "rank"),
               (unsigned long long)whole(layout, "ranks"), word(layout, "split"),
               word(layout, "rules")[0] ? ": " : "", word(layout, "rules"));
    printf(": %s in %s, moved at %s", cli_bytes(whole(report, "bytes")), cli_seconds(real(report, "seconds")),
           cli_rate(real(report, "rate")));
    if (limit)
        printf(" = %.0f %% of this machine's limit (%s, %s)", 100 * real(limit, "ratio"), word(limit, "what"),
               cli_rate(real(limit, "rate")));
    printf("\n");
    if (word(report, "to")[0])
        printf("  its files lie in %s\n", cli_safe(word(report, "to")));
    print_sources(report);
    if (word(verified, "against")[0])
        printf("  verified: %llu digest blocks, %.0f %% of the bytes, against %s\n",
               (unsigned long long)whole(verified, "blocks"),
               whole(report, "bytes") ? 100 * real(verified, "bytes") / real(report, "bytes") : 100.0,
               cli_safe(word(verified, "against")));
    else if (whole(verified, "blocks_total"))
        printf("  verified: sizes and structure; %llu digest blocks made for those who load from here\n",
               (unsigned long long)whole(verified, "blocks_total"));
    print_checksums(report);
    printf("  stages: init %s, plan %s, move %s, verify %s\n", cli_seconds(real(stages, "init_s")),
           cli_seconds(real(stages, "plan_s")), cli_seconds(real(stages, "move_s")),
           cli_seconds(real(stages, "verify_s")));
}

/* ---- serving ---- */

/* A newer process takes a name over. That is how a restart works, and how two settings that agree by mistake
 * fail: so it is told. */
static void warn_of_taken_name(const struct session *session)
{
    const char *name = heft_agent_name(session->agent);
    struct heft_record_query query = {0};
    struct heft_record_list list = {0};
    size_t index;

    if (!session->directory || session->directory->ops->list(session->directory, &query, &list, NULL))
        return;
    for (index = 0; index < list.count; index++)
        if (strcmp(list.records[index].name, name) == 0)
            fprintf(
                stderr,
                "heft: serve: %s takes its name over from the replica at %s; if that one is to live on, stop "
                "this one and give it another --name\n",
                cli_safe(name), cli_safe(list.records[index].addresses));
    heft_record_list_free(&list);
}

static int publish(struct session *session, struct heft_error *error)
{
    const struct heft_config *config = &session->cli->config;
    struct heft_replica_options options = HEFT_REPLICA_OPTIONS_INIT;
    uint64_t start = heft_now_ns();
    int rc;

    warn_of_taken_name(session);
    options.agent = session->agent;
    options.model = session->model;
    options.directory = session->directory;
    options.lease_ms = (uint32_t)heft_config_number(config, "lease");
    rc = heft_replica_publish(&options, &session->replica, error);
    if (!rc)
        heft_load_note_publish(session->load, heft_now_ns() - start);
    return rc;
}

static void say_serving(const struct session *session)
{
    struct heft_replica_status status = {.size = sizeof(status)};
    char addresses[4096] = "";
    json_t *event;

    (void)heft_agent_addresses(session->agent, addresses, sizeof(addresses));
    heft_replica_get_status(session->replica, &status);
    if (session->cli->json) {
        event =
            json_pack("{s:s, s:s, s:s, s:b}", "event", "serving", "name", heft_replica_name(session->replica),
                      "addresses", addresses, "published", status.published);
        (void)json_object_set_new(event, "report", json_incref(session->report));
        cli_print_json(event, 1);
        json_decref(event);
        return;
    }
    printf("serving as %s at %s%s\n", heft_replica_name(session->replica), addresses,
           !session->directory ? " (in no directory: only who is told these addresses can find it)"
           : status.published  ? ""
                               : " (not in the directory yet: trying again)");
    (void)fflush(stdout);
}

/* Bytes that readers of this host map or copy themselves are not seen here: they are not told as none. */
static void say_stopped(const struct session *session, uint64_t since_ns)
{
    struct heft_replica_status status = {.size = sizeof(status)};
    json_t *event;

    heft_replica_get_status(session->replica, &status);
    if (!session->cli->json) {
        printf("stopped after serving for %s",
               cli_seconds((double)(heft_now_ns() - since_ns) / HEFT_NS_PER_S));
        if (status.bytes_served)
            printf("; %s went out over tcp", cli_bytes(status.bytes_served));
        putchar('\n');
        return;
    }
    event =
        json_pack("{s:s, s:s, s:I, s:I}", "event", "stopped", "name", heft_replica_name(session->replica),
                  "bytes_served", (json_int_t)status.bytes_served, "renewals", (json_int_t)status.renewals);
    cli_print_json(event, 1);
    json_decref(event);
}

static int serve_until_stopped(struct session *session)
{
    uint64_t since_ns = heft_now_ns();

    say_serving(session);
    while (!stop_wanted) {
        struct timespec pause = {0, 50000000};

        (void)nanosleep(&pause, NULL);
    }
    say_stopped(session, since_ns);
    return EXIT_DONE;
}

/* The other loads of the fleet may still take from this one. */
static void linger(const struct session *session)
{
    uint64_t end = heft_after_ms(heft_now_ns(), heft_config_number(&session->cli->config, "fleet-linger"));

    (void)fflush(stdout);
    while (!stop_wanted && heft_now_ns() < end && heft_load_leave(session->load, 100) == HEFT_ERR_AGAIN)
        continue;
}

/* A file that can't be written is said before minutes of moving, not after. *made_out: it was not there. */
static int check_output(const struct cli *cli, const char *option, int *made_out, struct heft_error *error)
{
    const char *path = heft_config_text(&cli->config, option);
    int fd;

    *made_out = 0;
    if (!path || strcmp(path, "-") == 0)
        return HEFT_OK;
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0666);
    *made_out = fd >= 0;
    if (fd < 0 && errno == EEXIST)
        fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        int saved = errno, rc = heft_error_set_errno(error, saved, "--%s %s can't be written", option, path);

        /* "not found" and "not a file" would be about the model */
        return rc == HEFT_ERR_NOT_FOUND || heft_error_is_model(rc) ? HEFT_ERR_IO : rc;
    }
    (void)close(fd);
    return HEFT_OK;
}

/* An empty file that only check_output made says nothing. */
static void drop_if_empty(const struct cli *cli, const char *option, int made)
{
    const char *path = heft_config_text(&cli->config, option);
    struct stat st;

    if (made && path && lstat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0)
        (void)unlink(path);
}

static int run_load(struct session *session, int serves, struct heft_error *error)
{
    struct heft_error second = HEFT_ERROR_INIT;
    uint32_t flags = heft_config_text(&session->cli->config, "trace") ? HEFT_LOAD_TRACE : 0;
    int rc = start_load(session, serves, flags, error), written;

    if (!rc)
        rc = wait_load(session, error);
    if (!rc) {
        session->model = heft_load_take_model(session->load);
        rc = write_sha256(session, error);
    }
    if (!rc)
        rc = check_stop(error);
    if (!rc && serves)
        rc = publish(session, error);
    if (!session->load || take_report(session))
        return rc;
    written = write_report(session, rc ? &second : error);
    if (!written)
        written = write_trace(session, rc ? &second : error);
    return rc ? rc : written;
}

static int load_and_maybe_serve(struct cli *cli, int serves)
{
    struct session session = {.cli = cli};
    struct heft_error error = HEFT_ERROR_INIT;
    int rc, code = EXIT_DONE, made_report, made_sha256 = 0, made_trace = 0;

    catch_stop();
    rc = check_output(cli, "report", &made_report, &error);
    if (!rc)
        rc = check_output(cli, "sha256", &made_sha256, &error);
    if (!rc)
        rc = check_output(cli, "trace", &made_trace, &error);
    if (!rc)
        rc = run_load(&session, serves, &error);
    if (rc) {
        code = cli_fail(cli, rc, &error);
        if (!cli->json && session.report && report_on_stdout(cli))
            cli_print_json(session.report, 0);
        else if (!cli->json && session.report &&
                 json_array_size(json_object_get(session.report, "sources")) > 1)
            print_sources(session.report);
    } else {
        if (!report_on_stdout(cli))
            cli_print_report(session.report);
        else if (!serves || !cli->json)
            cli_print_json(session.report, 0);
        if (serves)
            code = serve_until_stopped(&session);
        else
            linger(&session);
    }
    session_end(&session);
    drop_if_empty(cli, "report", made_report);
    drop_if_empty(cli, "sha256", made_sha256);
    drop_if_empty(cli, "trace", made_trace);
    return code;
}

int cli_load(struct cli *cli)
{
    return load_and_maybe_serve(cli, (int)heft_config_number(&cli->config, "stay"));
}

int cli_serve(struct cli *cli)
{
    return load_and_maybe_serve(cli, 1);
}

/* One transport that could, or could not, bring a source's bytes. */
static void print_candidate(const json_t *candidate, int is_first)
{
    int score = (int)json_integer_value(json_object_get(candidate, "score"));

    if (score > 0)
        printf("    %s %s (score %d): %s\n", is_first ? "by" : "or by", word(candidate, "transport"), score,
               cli_safe(word(candidate, "reason")));
    else
        printf("    not by %s: %s\n", word(candidate, "transport"), cli_safe(word(candidate, "reason")));
}

/* What ranks hold in common, or not at all, and why. */
static void print_unsplit(const json_t *layout)
{
    const json_t *entry;
    size_t index;

    if (whole(layout, "left_out_tensors"))
        printf("  left out: %llu tensors of other layers or experts, %s\n",
               (unsigned long long)whole(layout, "left_out_tensors"),
               cli_bytes(whole(layout, "left_out_bytes")));
    json_array_foreach(json_object_get(layout, "not_split"), index, entry)
        printf("  not split: %llu tensor%s, %s: %s (%s%s)\n", (unsigned long long)whole(entry, "tensors"),
               whole(entry, "tensors") == 1 ? "" : "s", cli_bytes(whole(entry, "bytes")), word(entry, "why"),
               cli_safe(word(entry, "first")), whole(entry, "tensors") == 1 ? "" : ", ...");
}

static void print_plan(const json_t *report)
{
    const json_t *source, *candidate, *layout = json_object_get(report, "layout");
    uint64_t split = whole(layout, "split_tensors");
    size_t index, at;

    printf("%s@%s: %llu tensors, %s", cli_safe(word(report, "model")), cli_safe(word(report, "revision")),
           (unsigned long long)whole(report, "model_tensors"), cli_bytes(whole(report, "model_bytes")));
    if (whole(layout, "ranks") > 1)
        printf("; rank %llu of %llu wants %s (%llu tensors split by %s%s%s)",
               (unsigned long long)whole(layout, "rank"), (unsigned long long)whole(layout, "ranks"),
               cli_bytes(whole(layout, "wanted_bytes")), (unsigned long long)split, word(layout, "split"),
               word(layout, "rules")[0] ? ": " : "", word(layout, "rules"));
    else if (whole(layout, "wanted_bytes") != whole(report, "model_bytes"))
        printf("; wanted %s", cli_bytes(whole(layout, "wanted_bytes")));
    printf(", in %llu chunks\n", (unsigned long long)whole(layout, "chunks"));
    print_unsplit(layout);
    json_array_foreach(json_object_get(report, "sources"), index, source)
    {
        const json_t *reason = json_object_get(source, "reason");

        printf("  %s (%s)%s%s\n", cli_safe(word(source, "name")), word(source, "kind"),
               word(source, "why")[0] ? ": " : "", cli_safe(word(source, "why")));
        if (reason)
            printf("    not used: %s: %s\n", word(reason, "code"),
                   cli_was_said(word(reason, "text")) ? "see the warning above"
                                                      : cli_safe(word(reason, "text")));
        json_array_foreach(json_object_get(source, "candidates"), at, candidate)
            print_candidate(candidate, at == 0);
    }
}

int cli_plan(struct cli *cli)
{
    struct session session = {.cli = cli};
    struct heft_error error = HEFT_ERROR_INIT;
    int made, rc, code = EXIT_DONE;

    catch_stop();
    rc = check_output(cli, "report", &made, &error);
    if (!rc)
        rc = start_load(&session, 0, HEFT_LOAD_EXPLAIN, &error);
    if (!rc)
        rc = wait_load(&session, &error);
    if (!rc)
        rc = take_report(&session);
    if (!rc)
        rc = write_report(&session, &error);
    if (rc)
        code = cli_fail(cli, rc, &error);
    else if (report_on_stdout(cli))
        cli_print_json(session.report, 0);
    else
        print_plan(session.report);
    session_end(&session);
    drop_if_empty(cli, "report", made);
    return code;
}
