/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify: how one process learns what another has done, in each of the ways there are.
 *
 *     notify listen CARD           waits for 3 x 100 writes and some words, then ends
 *     notify tell CARD [WORD ...]
 *
 * CARD is a file by which the first tells the second how to reach it, and holds its token. The writes count
 * on three counters: one is waited for, one is polled by its descriptor beside everything else a program
 * polls, one calls a function. Words are notifications: bytes that arrive in order, each once.
 */
#define _POSIX_C_SOURCE 200809L
#include <heft/heft.h>
#include <heft/metadata.h>
#include <inttypes.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define WRITES 100u
#define SLOTS (3 * WRITES)
#define WAIT_MS 60000

enum { WAITED = 1, POLLED = 2, CALLED = 3 }; /* the counters' numbers */

static struct heft_error error = HEFT_ERROR_INIT;

static int failed(const char *what)
{
    fprintf(stderr, "notify: %s: %s: %s\n", what, heft_error_name(error.code), error.text);
    return 1;
}

/* ---- listening ---- */

static int write_card(struct heft_agent *agent, const char *path)
{
    char draft[4096];
    uint64_t size;
    void *data;
    FILE *file;
    int ok;

    if (heft_agent_export_metadata(agent, NULL, &data, &size, &error))
        return failed("telling how to be reached");
    (void)snprintf(draft, sizeof(draft), "%s.new", path);
    (void)umask(0077);
    file = fopen(draft, "wb");
    ok = file && fwrite(data, 1, size, file) == size;
    ok = file && fclose(file) == 0 && ok && rename(draft, path) == 0;
    heft_free(data);
    if (!ok)
        perror(path);
    return !ok;
}

static struct heft_counter *open_counter(struct heft_agent *agent, uint32_t id)
{
    struct heft_counter_options which = HEFT_COUNTER_OPTIONS_INIT;
    struct heft_counter *counter = NULL;

    which.peer = "teller"; /* it may connect later: the counter waits for it */
    which.id = id;
    which.threshold = WRITES; /* for the descriptor */
    return heft_counter_open(agent, &which, &counter, &error) ? NULL : counter;
}

struct call {
    sem_t over;
    int status;
    struct heft_error error;
};

/* On a thread of the library, once. Only here may a counter be closed while its function runs. */
static void on_count(struct heft_counter *counter, int status, void *context)
{
    struct call *call = context;

    call->status =
        status ? heft_counter_status(counter, &call->error) : heft_counter_close(counter, &call->error);
    (void)sem_post(&call->over);
}

static int poll_counter(struct heft_counter *counter)
{
    struct pollfd watched = {.events = POLLIN};
    int rc = heft_counter_event_fd(counter, &watched.fd, &error);

    if (rc)
        return rc;
    while ((rc = heft_counter_wait(counter, WRITES, 0, &error)) == HEFT_ERR_AGAIN)
        if (poll(&watched, 1, WAIT_MS) == 0)
            break;
    return rc;
}

static int listen_words(struct heft_agent *agent)
{
    struct heft_notification told = {.size = sizeof(told)};
    struct pollfd watched = {.events = POLLIN};
    int rc = heft_agent_event_fd(agent, &watched.fd, &error), over = 0;

    while (!rc && !over) {
        rc = heft_agent_next_notification(agent, &told, 0);
        if (rc == HEFT_ERR_AGAIN) {
            rc = poll(&watched, 1, WAIT_MS) > 0 ? 0 : HEFT_ERR_DEADLINE;
            continue;
        }
        if (rc)
            break;
        over = told.size_bytes == 0; /* an empty one is the last */
        if (!over)
            printf("%s says %.*s\n", told.peer, (int)told.size_bytes, (const char *)told.data);
        heft_free(told.data);
    }
    return rc;
}

static int listen_to(const char *card)
{
    struct heft_region_options what = HEFT_REGION_OPTIONS_INIT;
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_counter *waited, *polled, *called;
    struct heft_region *region;
    struct heft_memory_info info;
    struct heft_memory *memory;
    struct heft_agent *agent;
    static struct call call = {.error = HEFT_ERROR_INIT}; /* a late call must still find it */
    struct timespec until;
    uint64_t sum = 0;
    uint32_t index;

    options.name = "listener";
    options.listen = "unix,127.0.0.1:0";
    if (heft_agent_open(&options, &agent, &error) || heft_memory_alloc(SLOTS * 8, 0, &memory, &error))
        return failed("opening the agent");
    heft_memory_get_info(memory, &info);
    what.memory = memory;
    what.flags = HEFT_REGION_REMOTE_WRITE;
    if (heft_region_register(agent, &what, &region, &error))
        return failed("registering memory");
    waited = open_counter(agent, WAITED);
    polled = open_counter(agent, POLLED);
    called = open_counter(agent, CALLED);
    (void)sem_init(&call.over, 0, 0);
    if (!waited || !polled || !called || heft_counter_expect(called, WRITES, on_count, &call, &error))
        return failed("opening the counters");
    if (write_card(agent, card))
        return 1;
    printf("listening\n");
    fflush(stdout);
    if (heft_counter_wait(waited, WRITES, WAIT_MS, &error))
        return failed("waiting");
    if (poll_counter(polled))
        return failed("polling");
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_MS / 1000;
    if (sem_timedwait(&call.over, &until)) {
        fprintf(stderr, "notify: nobody called in %d s\n", WAIT_MS / 1000);
        return 1;
    }
    if (call.status) {
        error = call.error;
        return failed("being called");
    }
    for (index = 0; index < SLOTS; index++) /* the bytes of what counted are there */
        sum += ((const uint64_t *)info.address)[index];
    printf("%u writes counted, their values make %" PRIu64 "\n", SLOTS, sum);
    if (listen_words(agent)) {
        fprintf(stderr, "notify: no last word came\n");
        return 1;
    }
    if (heft_counter_close(waited, &error) || heft_counter_close(polled, &error))
        return failed("closing a counter");
    (void)sem_destroy(&call.over);
    return heft_agent_close(agent, &error) ? failed("closing") : 0;
}

/* ---- telling ---- */

static int connect_to(struct heft_agent *agent, const char *card, struct heft_peer **peer_out,
                      uint64_t *region_out)
{
    static char data[65536];
    struct heft_metadata_region region = {.size = sizeof(region)};
    struct heft_metadata *metadata;
    FILE *file = fopen(card, "rb");
    size_t size = file ? fread(data, 1, sizeof(data), file) : 0;

    if (!file) {
        perror(card);
        return 1;
    }
    (void)fclose(file);
    if (heft_metadata_read(data, size, &metadata, &error))
        return failed(card);
    if (heft_metadata_connect(agent, metadata, NULL, peer_out, &error) ||
        heft_metadata_get_region(metadata, 0, &region))
        return failed("connecting");
    *region_out = region.id;
    heft_metadata_free(metadata);
    return 0;
}

/* Every write of a counter by one transfer that is posted again and again, at other places. */
static int write_all(struct heft_agent *agent, struct heft_peer *peer, struct heft_region *local,
                     uint64_t remote, uint32_t counter)
{
    struct heft_xfer_options how = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer *xfer = NULL;
    uint32_t index;
    int rc = 0;

    how.flags = HEFT_XFER_COUNT;
    how.counter = counter;
    for (index = 0; !rc && index < WRITES; index++) {
        uint64_t at = ((uint64_t)(counter - 1) * WRITES + index) * 8;
        struct heft_run run = {.local_region = local,
                               .local_offset_bytes = at,
                               .remote_region = remote,
                               .remote_offset_bytes = at,
                               .length_bytes = 8,
                               .count = 1};

        rc = xfer ? heft_xfer_set_runs(xfer, &run, 1, &error)
                  : heft_xfer_create(agent, HEFT_OP_WRITE, peer, &run, 1, &how, &xfer, &error);
        if (!rc)
            rc = heft_xfer_post(xfer, &error);
        if (!rc) /* AGAIN can't come: it ends by its deadline */
            rc = heft_xfer_wait(xfer, UINT64_MAX);
    }
    if (xfer)
        (void)heft_xfer_release(xfer);
    return rc ? failed("writing") : 0;
}

static int tell(const char *card, char *const *words, int count)
{
    static uint64_t values[SLOTS];
    struct heft_region_options what = HEFT_REGION_OPTIONS_INIT;
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_agent *agent;
    struct heft_region *region;
    struct heft_peer *peer;
    uint64_t remote;
    uint32_t index;
    int at;

    options.name = "teller";
    if (heft_agent_open(&options, &agent, &error))
        return failed("opening the agent");
    for (index = 0; index < SLOTS; index++)
        values[index] = index;
    what.address = values;
    what.length_bytes = sizeof(values);
    if (heft_region_register(agent, &what, &region, &error))
        return failed("registering memory");
    if (connect_to(agent, card, &peer, &remote))
        return 1;
    for (index = WAITED; index <= CALLED; index++)
        if (write_all(agent, peer, region, remote, index))
            return 1;
    for (at = 0; at < count; at++)
        if (heft_peer_notify(peer, words[at], strlen(words[at]), &error))
            return failed("telling");
    if (heft_peer_notify(peer, NULL, 0, &error))
        return failed("telling");
    (void)heft_peer_close(peer, NULL);
    return heft_agent_close(agent, &error) ? failed("closing") : 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "listen") == 0)
        return listen_to(argv[2]);
    if (argc >= 3 && strcmp(argv[1], "tell") == 0)
        return tell(argv[2], argv + 3, argc - 3);
    fprintf(stderr, "usage: notify listen CARD\n       notify tell CARD [WORD ...]\n");
    return 2;
}
