/* SPDX-License-Identifier: Apache-2.0 */
/* The serving side of heft bench: two regions, one that clients read and one that they write, and somebody
 * who takes what clients tell. */
#include "base/error.h"
#include "cli/bench.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile sig_atomic_t stopped;

static void stop(int number)
{
    (void)number;
    stopped = 1;
}

/* *address_out: where its bytes lie. */
static int add_region(struct heft_agent *agent, enum bench_space space, uint64_t bytes, uint32_t flags,
                      struct heft_region **region_out, uint8_t **address_out, struct heft_error *error)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_memory_info info;
    int rc;

    options.flags = flags;
    if (space == BENCH_PRIVATE) {
        void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (map == MAP_FAILED)
            return heft_error_set_errno(error, errno, "%s of private memory", cli_bytes(bytes));
        (void)madvise(map, bytes, MADV_HUGEPAGE);
        options.address = map;
        options.length_bytes = bytes;
        *address_out = map;
    } else {
        rc = heft_memory_alloc(bytes, HEFT_MEMORY_PREFAULT, &options.memory, error);
        if (rc)
            return rc;
        heft_memory_get_info(options.memory, &info);
        *address_out = info.address;
    }
    return heft_region_register(agent, &options, region_out, error);
}

void bench_agent_options(const struct bench_setup *setup, struct heft_agent_options *options_out)
{
    *options_out = (struct heft_agent_options)HEFT_AGENT_OPTIONS_INIT;
    options_out->workers = setup->workers;
    options_out->transports = heft_config_text(&setup->cli->config, "transports");
    cli_agent_tls(setup->cli, options_out);
}

static int open_card(const struct bench_setup *setup, enum bench_space space, struct heft_agent **agent_out,
                     struct bench_card *card, struct heft_error *error)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_region *source, *target;
    struct heft_agent *agent = NULL;
    uint8_t *from, *to;
    int rc;

    bench_agent_options(setup, &options);
    options.listen = setup->listen;
    rc = heft_agent_open(&options, &agent, error);
    if (!rc)
        rc = add_region(agent, space, setup->need_bytes, HEFT_REGION_REMOTE_READ, &source, &from, error);
    if (!rc)
        rc = add_region(agent, space, setup->need_bytes, HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE,
                        &target, &to, error);
    if (rc)
        return rc;
    bench_fill(from, 0, setup->need_bytes, BENCH_SOURCE_SALT);
    memset(to, 0, setup->need_bytes);
    card->token = heft_agent_token(agent);
    card->source_region = heft_region_id(source);
    card->target_region = heft_region_id(target);
    card->bytes = setup->need_bytes;
    card->pid = (uint64_t)getpid();
    card->source_address = (uintptr_t)from;
    card->target_address = (uintptr_t)to;
    rc = heft_agent_addresses(agent, card->addresses, sizeof(card->addresses));
    if (rc)
        return heft_error_set(error, rc, "the server's addresses are too long");
    rc = heft_agent_set_document(agent, BENCH_DOCUMENT, card, sizeof(*card), error);
    if (!rc)
        *agent_out = agent;
    return rc;
}

/* Notifications are taken, so that who sends them need not wait. */
static void serve(struct heft_agent *agent, const uint32_t *over)
{
    while (!stopped && !(over && __atomic_load_n(over, __ATOMIC_ACQUIRE))) {
        struct heft_notification note = {.size = sizeof(note)};

        if (heft_agent_next_notification(agent, &note, 100) == 0)
            heft_free(note.data);
    }
}

static void tell_card(const struct bench_card *card, const struct cli *cli)
{
    char token[2 * HEFT_TOKEN_BYTES + 1];

    cli_hex(card->token.bytes, sizeof(card->token.bytes), token);
    if (cli->json)
        printf("{\"event\":\"listening\",\"peer\":\"%s#%s\"}\n", card->addresses, token);
    else
        printf("listening; on the other side:\n  heft bench '%s#%s'\n", card->addresses, token);
    (void)fflush(stdout);
}

int bench_serve(const struct bench_setup *setup, struct bench_board *board, uint32_t index,
                enum bench_space space, const struct cli *cli, struct heft_error *error)
{
    struct sigaction action = {.sa_handler = stop};
    struct bench_card *card = board ? &board->cards[index] : calloc(1, sizeof(*card));
    struct heft_agent *agent = NULL;
    int rc = card ? open_card(setup, space, &agent, card, error)
                  : heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory");

    if (board) {
        if (rc)
            board->server_errors[index] = *error;
        (void)sem_post(&board->served);
        if (!rc)
            serve(agent, &board->stop);
    } else if (!rc) {
        (void)sigaction(SIGINT, &action, NULL);
        (void)sigaction(SIGTERM, &action, NULL);
        tell_card(card, cli);
        serve(agent, NULL);
    }
    if (agent)
        (void)heft_agent_close(agent, NULL);
    if (!board)
        free(card);
    return rc;
}
