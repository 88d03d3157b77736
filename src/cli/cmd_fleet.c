/* SPDX-License-Identifier: Apache-2.0 */
/* heft replicas and health: what the directory says, and whether it is so. Tokens are never shown. */
#include "cli/cli.h"
#include "base/clock.h"
#include "load/directory.h"

#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEALTH_MS 3000u /* for all replicas together, who are asked at the same time */
#define HEALTH_THREADS 64u

static int list_records(struct cli *cli, const struct heft_record_query *query,
                        struct heft_directory **directory_out, struct heft_record_list *list_out,
                        struct heft_error *error)
{
    int rc = cli_open_directory(cli, 1, directory_out, error);

    if (rc)
        return rc;
    rc = (*directory_out)->ops->list(*directory_out, query, list_out, error);
    if (rc) {
        heft_directory_close(*directory_out);
        *directory_out = NULL;
    }
    return rc;
}

static json_t *text(const char *value)
{
    json_t *made = json_string(value ? value : "");

    return made ? made : json_string("(not UTF-8)");
}

static json_t *record_json(const struct heft_record *record)
{
    json_t *object = json_object(), *pairs = json_object();
    char generation[2 * HEFT_GENERATION_BYTES + 1], digest[32];
    uint32_t index;

    cli_hex(record->generation.bytes, HEFT_GENERATION_BYTES, generation);
    (void)snprintf(digest, sizeof(digest), "%016" PRIx64, record->content_digest);
    (void)json_object_set_new(object, "name", text(record->name));
    (void)json_object_set_new(object, "generation", json_string(generation));
    (void)json_object_set_new(object, "addresses", text(record->addresses));
    (void)json_object_set_new(object, "model", text(record->identity.model));
    (void)json_object_set_new(object, "revision", text(record->identity.revision));
    (void)json_object_set_new(object, "stage", text(record->identity.stage));
    (void)json_object_set_new(object, "engine", text(record->identity.engine));
    (void)json_object_set_new(object, "rank", text(record->identity.rank));
    for (index = 0; index < record->identity.pair_count; index++)
        (void)json_object_set_new(pairs, record->identity.pairs[index].key,
                                  text(record->identity.pairs[index].value));
    (void)json_object_set_new(object, "pairs", pairs);
    (void)json_object_set_new(object, "content_digest", json_string(digest));
    (void)json_object_set_new(object, "tensors", json_integer((json_int_t)record->tensor_count));
    (void)json_object_set_new(object, "bytes", json_integer((json_int_t)record->total_bytes));
    (void)json_object_set_new(object, "part", text(record->part));
    (void)json_object_set_new(object, "whole_bytes", json_integer((json_int_t)record->whole_bytes));
    (void)json_object_set_new(object, "blocks", json_integer((json_int_t)record->block_count));
    (void)json_object_set_new(object, "held_blocks", json_integer((json_int_t)record->held_blocks));
    (void)json_object_set_new(object, "lease_ms", json_integer((json_int_t)record->lease_ms));
    (void)json_object_set_new(object, "lease_left_ms", json_integer((json_int_t)record->lease_left_ms));
    return object;
}

static void print_record(const struct heft_record *record)
{
    printf("%-24s %s@%.16s", cli_safe(record->name), cli_safe(record->identity.model),
           cli_safe(record->identity.revision));
    if (record->identity.rank && record->identity.rank[0])
        printf(" %s", cli_safe(record->identity.rank));
    if (record->part && record->part[0])
        printf(" %s", cli_safe(record->part));
    printf("  %s", cli_bytes(record->total_bytes));
    if (record->whole_bytes > record->total_bytes)
        printf(" of %s (%.1f %%)", cli_bytes(record->whole_bytes),
               100.0 * (double)record->total_bytes / (double)record->whole_bytes);
    printf(", %" PRIu64 " tensors%s  lease %s left\n    %s\n", record->tensor_count,
           record->held_blocks < record->block_count ? " (partly held)" : "",
           record->lease_left_ms ? cli_seconds((double)record->lease_left_ms / 1000) : "none",
           cli_safe(record->addresses));
}

int cli_replicas(struct cli *cli)
{
    struct heft_record_query query = {.all = (int)heft_config_number(&cli->config, "all")};
    struct heft_record_list list = {0};
    struct heft_directory *directory;
    struct heft_error error = HEFT_ERROR_INIT;
    json_t *array = json_array();
    size_t index;
    int rc;

    if (cli->argument_count == 1)
        query.model = cli->arguments[0];
    rc = list_records(cli, &query, &directory, &list, &error);
    if (rc) {
        json_decref(array);
        return cli_fail(cli, rc, &error);
    }
    for (index = 0; index < list.count; index++) {
        if (cli->json)
            (void)json_array_append_new(array, record_json(&list.records[index]));
        else
            print_record(&list.records[index]);
    }
    if (cli->json) {
        cli_print_json(array, 0);
    } else if (list.count == 0) {
        const char *address = heft_config_text(&cli->config, "directory");

        printf("no replicas%s%s%s\n", query.model ? " of " : "", query.model ? cli_safe(query.model) : "",
               strncmp(address, "file:", 5) == 0 && access(address + 5, F_OK)
                   ? " (there is no such file yet; heft serve makes it)"
                   : "");
    }
    json_decref(array);
    heft_record_list_free(&list);
    heft_directory_close(directory);
    return EXIT_DONE;
}

/* One replica and what came of asking it. */
struct asked {
    int code;
    struct heft_error reason;
};

struct asking {
    struct heft_agent *agent;
    const struct heft_record_list *list;
    struct asked *answers;
    size_t next; /* atomic */
    uint64_t end_ns;
};

/* Connects, which proves generation and token both ways, and goes. */
static int ask_replica(struct heft_agent *agent, const struct heft_record *record, uint64_t end_ns,
                       struct heft_error *error)
{
    uint64_t now_ns = heft_now_ns();
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    struct heft_peer *peer;
    int rc;

    options.addresses = record->addresses;
    options.name = record->name;
    options.generation = record->generation;
    options.token = record->token;
    options.connect_timeout_ms = end_ns > now_ns ? (uint32_t)((end_ns - now_ns) / HEFT_NS_PER_MS) + 1 : 1;
    rc = heft_peer_connect(agent, &options, &peer, error);
    if (!rc)
        (void)heft_peer_close(peer, NULL);
    return rc;
}

static void *ask_some(void *context)
{
    struct asking *asking = context;
    size_t index;

    while ((index = __atomic_fetch_add(&asking->next, 1, __ATOMIC_RELAXED)) < asking->list->count)
        asking->answers[index].code = ask_replica(asking->agent, &asking->list->records[index],
                                                  asking->end_ns, &asking->answers[index].reason);
    return NULL;
}

/* All at the same time: a fleet of dead ones takes no longer than one. */
static void ask_all(struct heft_agent *agent, const struct heft_record_list *list, struct asked *answers)
{
    struct asking asking = {agent, list, answers, 0, heft_after_ms(heft_now_ns(), HEALTH_MS)};
    pthread_t threads[HEALTH_THREADS];
    size_t count = 0;

    while (count + 1 < list->count && count < HEALTH_THREADS &&
           pthread_create(&threads[count], NULL, ask_some, &asking) == 0)
        count++;
    (void)ask_some(&asking);
    while (count > 0)
        (void)pthread_join(threads[--count], NULL);
}

int cli_health(struct cli *cli)
{
    struct heft_agent_options agent_options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_record_query query = {0};
    struct heft_record_list list = {0};
    struct heft_directory *directory;
    struct heft_agent *agent;
    struct asked *answers;
    struct heft_error error = HEFT_ERROR_INIT;
    json_t *replicas = json_array();
    size_t index;
    int bad = 0, rc = list_records(cli, &query, &directory, &list, &error);

    if (!rc) {
        agent_options.workers = 1;
        cli_agent_tls(cli, &agent_options);
        rc = heft_agent_open(&agent_options, &agent, &error);
        if (rc) {
            heft_record_list_free(&list);
            heft_directory_close(directory);
        }
    }
    if (rc) {
        json_decref(replicas);
        return cli_fail(cli, rc, &error);
    }
    if (!cli->json)
        printf("directory %s: answers, epoch %" PRIx64 ", %zu replica%s\n", cli_safe(directory->address),
               list.epoch, list.count, list.count == 1 ? "" : "s");
    answers = calloc(list.count + 1, sizeof(*answers));
    bad = !answers;
    if (answers)
        ask_all(agent, &list, answers);
    for (index = 0; answers && index < list.count; index++) {
        const struct heft_error reason = answers[index].reason;
        int answer = answers[index].code;

        bad += answer != HEFT_OK;
        if (cli->json)
            (void)json_array_append_new(
                replicas, json_pack("{s:o, s:s, s:o}", "name", text(list.records[index].name), "status",
                                    heft_error_name(answer), "text", text(reason.text)));
        else
            printf("  %-24s %s%s%s\n", cli_safe(list.records[index].name),
                   answer ? heft_error_name(answer) : "answers", answer ? ": " : "", cli_safe(reason.text));
    }
    if (cli->json) {
        json_t *object = json_pack("{s:s, s:b, s:o}", "directory", directory->address, "healthy", !bad,
                                   "replicas", json_incref(replicas));

        cli_print_json(object, 0);
        json_decref(object);
    }
    json_decref(replicas);
    free(answers);
    (void)heft_agent_close(agent, NULL);
    heft_record_list_free(&list);
    heft_directory_close(directory);
    return bad ? EXIT_FAILED : EXIT_DONE;
}
