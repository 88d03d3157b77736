/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WRITE from one process into another, over each way that host memory can take: the serving process shows its
 * memory, guard bytes included, and it must be what a model of the writes says, byte for byte.
 */
#include "process.h"
#include "pair.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARD_BYTES 4096u
#define INNER_BYTES 65536u
#define ALL_BYTES (INNER_BYTES + 2 * GUARD_BYTES)
#define FAR_BYTES ((uint64_t)5 << 30)
#define FAR_UNMAPPED_AT ((uint64_t)1 << 20)
#define FAR_LOCKED_AT ((uint64_t)2 << 20)
#define FAR_AT (((uint64_t)4 << 30) - INNER_BYTES / 2) /* a window across 4 GiB */

enum { SHARED = 0, PLAIN = 1, READ_ONLY = 2, FAR = 3 };

static uint8_t first_byte(size_t index)
{
    return (uint8_t)(index * 13 + 5);
}

/* ---- the other side ---- */

struct serving {
    struct heft_agent *agent;
    struct heft_memory *memory;
    uint8_t *shared, *plain, *far_bytes;
    struct heft_region *regions[4];
    struct served served;
};

static struct heft_region *register_memory(struct heft_agent *agent, struct heft_memory *memory)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_region *region = NULL;

    options.memory = memory;
    options.flags = HEFT_REGION_REMOTE_WRITE;
    if (heft_region_register(agent, &options, &region, NULL))
        _exit(4);
    return region;
}

static void serving_open(struct serving *serving, const char *listen)
{
    struct heft_memory_info info;
    size_t index;

    serving->agent = open_agent("taker", listen, NULL);
    if (heft_memory_alloc(ALL_BYTES, 0, &serving->memory, NULL))
        _exit(5);
    heft_memory_get_info(serving->memory, &info);
    serving->shared = info.address;
    serving->plain = malloc(ALL_BYTES);
    serving->far_bytes =
        mmap(NULL, FAR_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!serving->plain || serving->far_bytes == MAP_FAILED)
        _exit(6);
    for (index = 0; index < ALL_BYTES; index++)
        serving->shared[index] = serving->plain[index] = serving->far_bytes[FAR_AT + index] =
            first_byte(index);
    serving->regions[SHARED] = register_memory(serving->agent, serving->memory);
    serving->regions[PLAIN] =
        register_bytes(serving->agent, serving->plain + GUARD_BYTES, INNER_BYTES, HEFT_REGION_REMOTE_WRITE);
    serving->regions[READ_ONLY] =
        register_bytes(serving->agent, serving->plain, ALL_BYTES, HEFT_REGION_REMOTE_READ);
    serving->regions[FAR] =
        register_bytes(serving->agent, serving->far_bytes, FAR_BYTES, HEFT_REGION_REMOTE_WRITE);
    served_fill(&serving->served, serving->agent);
    for (index = 0; index < 4; index++)
        serving->served.regions[index] = heft_region_id(serving->regions[index]);
}

/* What the other process saw done was done under locks of this agent, and what it does next will be: they
 * order the copy for those who look at this process alone. */
static void pass_lock(struct heft_agent *agent)
{
    (void)pthread_mutex_lock(&agent->region_lock);
    (void)pthread_mutex_unlock(&agent->region_lock);
}

static void show(struct serving *serving, char command)
{
    static uint8_t copy[ALL_BYTES];

    pass_lock(serving->agent);
    memcpy(copy,
           command == 's'   ? serving->shared
           : command == 'p' ? serving->plain
                            : serving->far_bytes + FAR_AT,
           ALL_BYTES);
    pass_lock(serving->agent);
    other_write(1, copy, sizeof(copy));
}

/* Shows its memory when asked, gives up the plain region when asked, until its input ends. */
static int serve_main(const char *listen)
{
    struct serving serving = {0};
    char command;

    serving_open(&serving, listen);
    other_write(1, &serving.served, sizeof(serving.served));
    while (read(0, &command, 1) == 1) {
        if (command == 'x') {
            int rc = heft_region_deregister(serving.regions[PLAIN], NULL);

            other_write(1, &rc, sizeof(rc));
            continue;
        }
        if (command == 'u') { /* a page goes, another may not be written any more */
            int rc = munmap(serving.far_bytes + FAR_UNMAPPED_AT, GUARD_BYTES);

            rc |= mprotect(serving.far_bytes + FAR_LOCKED_AT, GUARD_BYTES, PROT_READ);
            other_write(1, &rc, sizeof(rc));
            continue;
        }
        show(&serving, command);
    }
    if (heft_agent_close(serving.agent, NULL))
        return 7;
    heft_memory_free(serving.memory);
    free(serving.plain);
    (void)munmap(serving.far_bytes, FAR_BYTES);
    return 0;
}

/* ---- this side ---- */

struct writer {
    struct other other;
    struct served served;
    struct heft_agent *agent;
    struct heft_peer *peer;
    uint8_t source[INNER_BYTES];
    struct heft_region *region;
    uint64_t random;
    uint8_t model[ALL_BYTES], seen[ALL_BYTES];
};

static uint64_t draw(struct writer *writer, uint64_t below)
{
    writer->random = writer->random * 6364136223846793005u + 1442695040888963407u;
    return (writer->random >> 33) % below;
}

static void writer_open(struct writer *writer, const char *listen)
{
    size_t index;

    memset(writer, 0, sizeof(*writer));
    writer->random = 4711;
    other_start(&writer->other, "serve", listen);
    other_read(writer->other.out, &writer->served, sizeof(writer->served));
    writer->agent = open_agent("writer", NULL, NULL);
    writer->peer = served_connect(writer->agent, &writer->served);
    writer->region = register_bytes(writer->agent, writer->source, INNER_BYTES, 0);
    for (index = 0; index < ALL_BYTES; index++)
        writer->model[index] = first_byte(index);
}

static void writer_close(struct writer *writer)
{
    assert_int_equal(heft_agent_close(writer->agent, NULL), 0);
    other_end(&writer->other, 0);
}

static uint64_t draw_length(struct writer *writer)
{
    static const uint64_t special[] = {0, 1, 2, 7, 8, 63, 64, 65, 4095, 4096, 4097};

    return draw(writer, 3) ? draw(writer, 3000) : special[draw(writer, sizeof(special) / sizeof(special[0]))];
}

/* Runs whose targets do not meet, in random order of nothing but growing offsets; the model gets them too. */
static size_t draw_runs(struct writer *writer, uint64_t base, uint64_t room, uint64_t remote_region,
                        size_t model_at, struct heft_run *runs, size_t limit)
{
    uint64_t at = draw(writer, 200);
    size_t count = 0;

    while (count < limit) {
        struct heft_run run = {.local_region = writer->region, .remote_region = remote_region};
        uint64_t piece, span;

        run.length_bytes = draw_length(writer);
        run.count = draw(writer, 4) ? draw(writer, 6) : 1;
        run.remote_stride_bytes = run.length_bytes + (draw(writer, 2) ? draw(writer, 100) : 0);
        run.local_stride_bytes = draw(writer, 2) ? run.length_bytes : draw(writer, 500);
        span = run.count ? (run.count - 1) * run.remote_stride_bytes + run.length_bytes : 0;
        if (at + span > room)
            break;
        run.remote_offset_bytes = base + at;
        span = run.count ? (run.count - 1) * run.local_stride_bytes + run.length_bytes : 0;
        run.local_offset_bytes = draw(writer, INNER_BYTES - span);
        for (piece = 0; piece < run.count; piece++)
            memcpy(writer->model + model_at + at + piece * run.remote_stride_bytes,
                   writer->source + run.local_offset_bytes + piece * run.local_stride_bytes,
                   run.length_bytes);
        runs[count++] = run;
        at += run.count ? (run.count - 1) * run.remote_stride_bytes + run.length_bytes : 0;
        at += draw(writer, 2) ? draw(writer, 700) : 0;
    }
    return count;
}

struct target {
    const char *transport;
    int region;
    uint64_t base, room; /* where it may be written */
    size_t model_at;     /* of the base */
    char command;        /* shows it */
};

static void write_at_random(struct writer *writer, const struct target *target)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_run runs[40];
    uint64_t before = STAT(writer->agent, bytes_written), bytes = 0;
    int round;

    options.require = target->transport;
    for (round = 0; round < 25; round++) {
        struct heft_xfer *xfer = NULL;
        size_t count, index;

        for (index = 0; index < INNER_BYTES; index++)
            writer->source[index] = (uint8_t)draw(writer, 256);
        count = draw_runs(writer, target->base, target->room, writer->served.regions[target->region],
                          target->model_at, runs, 1 + draw(writer, 40));
        options.flags = round & 1 ? HEFT_XFER_INLINE : 0;
        if (heft_xfer_create(writer->agent, HEFT_OP_WRITE, writer->peer, runs, count, &options, &xfer,
                             &error))
            fail_msg("%s: %s", target->transport, error.text);
        assert_int_equal(heft_xfer_post(xfer, NULL), 0);
        assert_int_equal(heft_xfer_wait(xfer, 30000), 0);
        heft_xfer_get_result(xfer, &result);
        bytes += result.bytes;
        assert_int_equal(heft_xfer_release(xfer), 0);
        other_say(&writer->other, target->command);
        other_read(writer->other.out, writer->seen, ALL_BYTES);
        assert_memory_equal(writer->seen, writer->model, ALL_BYTES);
    }
    assert_int_equal(STAT(writer->agent, bytes_written) - before, bytes);
    assert_true(bytes > 0);
}

static void writes_land_where_they_belong_and_nowhere_else(const char *listen, const struct target *target)
{
    struct writer *writer = malloc(sizeof(*writer));

    assert_non_null(writer);
    writer_open(writer, listen);
    write_at_random(writer, target);
    writer_close(writer);
    free(writer);
}

static const struct target mapped = {"local", SHARED, GUARD_BYTES, INNER_BYTES, GUARD_BYTES, 's'};
static const struct target attached = {"local", PLAIN, 0, INNER_BYTES, GUARD_BYTES, 'p'};
static const struct target attached_far = {"local", FAR, FAR_AT + GUARD_BYTES, INNER_BYTES, GUARD_BYTES, 'f'};
static const struct target streamed = {"tcp", PLAIN, 0, INNER_BYTES, GUARD_BYTES, 'p'};
static const struct target streamed_far = {"tcp", FAR, FAR_AT + GUARD_BYTES, INNER_BYTES, GUARD_BYTES, 'f'};

static void into_a_shared_mapping(void **state)
{
    (void)state;
    writes_land_where_they_belong_and_nowhere_else("unix", &mapped);
}

static void by_cross_memory_attach(void **state)
{
    (void)state;
    writes_land_where_they_belong_and_nowhere_else("unix", &attached);
}

static void by_cross_memory_attach_across_4_gib(void **state)
{
    (void)state;
    writes_land_where_they_belong_and_nowhere_else("unix", &attached_far);
}

static void over_unix_sockets(void **state)
{
    (void)state;
    writes_land_where_they_belong_and_nowhere_else("unix", &streamed);
}

static void over_tcp(void **state)
{
    (void)state;
    writes_land_where_they_belong_and_nowhere_else("127.0.0.1:0", &streamed);
}

static void over_tcp_across_4_gib(void **state)
{
    (void)state;
    writes_land_where_they_belong_and_nowhere_else("127.0.0.1:0", &streamed_far);
}

static int try_write(struct writer *writer, const char *transport, int region, uint64_t offset,
                     uint64_t length, struct heft_error *error)
{
    struct heft_run run = {.local_region = writer->region,
                           .remote_region = writer->served.regions[region],
                           .remote_offset_bytes = offset,
                           .length_bytes = length,
                           .count = 1};
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer *xfer = NULL;
    int rc;

    options.require = transport;
    rc = heft_xfer_create(writer->agent, HEFT_OP_WRITE, writer->peer, &run, 1, &options, &xfer, error);
    if (rc)
        return rc;
    rc = heft_xfer_post(xfer, error);
    if (!rc)
        rc = heft_xfer_wait(xfer, 30000);
    assert_int_equal(heft_xfer_release(xfer), 0);
    return rc;
}

static void check_refusals(const char *listen, const char *transport)
{
    struct writer *writer = malloc(sizeof(*writer));
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_xfer *posted = NULL;
    struct heft_run run;
    int rc;

    assert_non_null(writer);
    writer_open(writer, listen);
    assert_int_equal(try_write(writer, transport, READ_ONLY, 0, 1, &error), HEFT_ERR_DENIED);
    assert_non_null(strstr(error.text, "may not be written"));
    assert_int_equal(try_write(writer, transport, PLAIN, INNER_BYTES, 1, &error), HEFT_ERR_RANGE);
    assert_int_equal(try_write(writer, transport, PLAIN, UINT64_MAX, 2, &error), HEFT_ERR_RANGE);
    assert_int_equal(try_write(writer, transport, PLAIN, 0, 0, &error), 0);
    assert_int_equal(try_write(writer, transport, PLAIN, 0, 1, &error), 0);
    run = (struct heft_run){.local_region = writer->region,
                            .remote_region = writer->served.regions[PLAIN],
                            .length_bytes = 8,
                            .count = 1};
    assert_int_equal(
        heft_xfer_create(writer->agent, HEFT_OP_WRITE, writer->peer, &run, 1, NULL, &posted, NULL), 0);
    other_say(&writer->other, 'x');
    other_read(writer->other.out, &rc, sizeof(rc));
    assert_int_equal(rc, 0);
    /* Over tcp the withdrawal may still be on its way: then it is the server that refuses. */
    rc = heft_xfer_post(posted, NULL);
    if (!rc)
        rc = heft_xfer_wait(posted, 30000);
    assert_int_equal(rc, HEFT_ERR_STALE);
    assert_int_equal(heft_xfer_release(posted), 0);
    writer->model[GUARD_BYTES] = writer->source[0];
    other_say(&writer->other, 'p');
    other_read(writer->other.out, writer->seen, ALL_BYTES);
    assert_memory_equal(writer->seen, writer->model, ALL_BYTES);
    writer_close(writer);
    free(writer);
}

static void what_may_not_be_written_is_refused_and_stays_as_it_was(void **state)
{
    (void)state;
    check_refusals("unix", "local");
    check_refusals("127.0.0.1:0", "tcp");
}

/* ---- a writer that is frozen ---- */

#define LARGE_BYTES ((uint64_t)64 << 20)

/* Connects to the agent on its standard input and writes all of its first region again and again. */
static int write_main(void)
{
    struct heft_run run = {.length_bytes = LARGE_BYTES, .count = 1};
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_agent *agent;
    struct heft_peer *peer;
    struct heft_xfer *xfer;
    struct served served;
    void *bytes = calloc(1, LARGE_BYTES);
    int told = 0;

    other_read(0, &served, sizeof(served));
    agent = open_agent("writer", NULL, NULL);
    peer = served_connect(agent, &served);
    run.local_region = register_bytes(agent, bytes, LARGE_BYTES, 0);
    run.remote_region = served.regions[0];
    options.require = "local";
    if (heft_xfer_create(agent, HEFT_OP_WRITE, peer, &run, 1, &options, &xfer, NULL))
        return 4;
    while (heft_xfer_post(xfer, NULL) == 0 && heft_xfer_wait(xfer, 60000) == 0)
        if (!told++)
            other_write(1, "w", 1);
    if (heft_xfer_release(xfer) || heft_agent_close(agent, NULL))
        return 5;
    free(bytes);
    return 0;
}

struct frozen {
    struct heft_agent *agent;
    struct heft_memory *memory;
    struct heft_region *region;
    struct other other;
};

static int is_lost(void *context)
{
    const struct frozen *frozen = context;

    return STAT(frozen->agent, peers_lost) == 1;
}

static int comes_free(void *context)
{
    const struct frozen *frozen = context;

    return heft_region_deregister(frozen->region, NULL) == 0;
}

static void freeze_a_writer(struct frozen *frozen)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct served served = {.name = ""};
    struct heft_error error = HEFT_ERROR_INIT;
    char said;

    options.name = "taker";
    options.listen = "unix";
    options.heartbeat_ms = 50;
    options.peer_timeout_ms = 500;
    assert_int_equal(heft_agent_open(&options, &frozen->agent, NULL), 0);
    assert_int_equal(heft_memory_alloc(LARGE_BYTES, 0, &frozen->memory, NULL), 0);
    frozen->region = register_memory(frozen->agent, frozen->memory);
    served_fill(&served, frozen->agent);
    served.regions[0] = heft_region_id(frozen->region);
    other_start(&frozen->other, "write", "");
    other_write(frozen->other.in, &served, sizeof(served));
    other_read(frozen->other.out, &said, 1);
    assert_int_equal(kill(frozen->other.pid, SIGSTOP), 0);
    eventually(is_lost, frozen);
    /* Its session is over, but a write of it may be half done: the memory is not given back. */
    assert_int_equal(heft_region_deregister(frozen->region, &error), HEFT_ERR_BUSY);
    assert_int_equal(heft_region_deregister(frozen->region, &error), HEFT_ERR_BUSY);
}

static void frozen_close(struct frozen *frozen)
{
    assert_int_equal(heft_agent_close(frozen->agent, NULL), 0);
    heft_memory_free(frozen->memory);
}

static void memory_comes_free_when_a_frozen_writer_has_heard_the_end(void **state)
{
    struct frozen frozen;

    (void)state;
    freeze_a_writer(&frozen);
    assert_int_equal(kill(frozen.other.pid, SIGCONT), 0);
    eventually(comes_free, &frozen);
    other_end(&frozen.other, 0); /* it left by itself */
    frozen_close(&frozen);
}

static void memory_comes_free_when_a_frozen_writer_is_killed(void **state)
{
    struct frozen frozen;

    (void)state;
    freeze_a_writer(&frozen);
    other_end(&frozen.other, SIGKILL);
    eventually(comes_free, &frozen);
    frozen_close(&frozen);
}

static void an_agent_closes_though_a_writer_is_frozen(void **state)
{
    struct frozen frozen;

    (void)state;
    freeze_a_writer(&frozen);
    frozen_close(&frozen);
    other_end(&frozen.other, SIGKILL);
}

/* The short way of one piece to memory that can't be mapped. */
static int write_piece(struct writer *writer, int region, uint64_t at, uint64_t length)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_run run = {.local_region = writer->region,
                           .local_offset_bytes = 3,
                           .remote_region = writer->served.regions[region],
                           .remote_offset_bytes = at,
                           .length_bytes = length,
                           .count = 1};
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_xfer *xfer = NULL;
    int rc;

    options.flags = HEFT_XFER_INLINE;
    options.require = "local";
    rc = heft_xfer_create(writer->agent, HEFT_OP_WRITE, writer->peer, &run, 1, &options, &xfer, NULL);
    if (rc)
        return rc;
    rc = heft_xfer_post(xfer, NULL);
    if (!rc)
        rc = heft_xfer_wait(xfer, 20000);
    heft_xfer_get_result(xfer, &result);
    assert_int_equal(result.bytes, rc ? 0 : length);
    assert_int_equal(heft_xfer_release(xfer), 0);
    return rc;
}

static void single_pieces_by_cross_memory_attach(void **state)
{
    static const uint64_t lengths[] = {1, 7, 8, 63, 64, 65, 4095, 4096, 4097};
    static struct writer writer;
    uint64_t at = 1;
    size_t index;
    int rc;

    (void)state;
    writer_open(&writer, "unix");
    for (index = 0; index < INNER_BYTES; index++)
        writer.source[index] = (uint8_t)(index * 29 + 1);
    for (index = 0; index < sizeof(lengths) / sizeof(lengths[0]); index++) {
        assert_int_equal(write_piece(&writer, PLAIN, at, lengths[index]), 0);
        memcpy(writer.model + GUARD_BYTES + at, writer.source + 3, lengths[index]);
        at += lengths[index] + 4000;
    }
    other_say(&writer.other, 'p');
    other_read(writer.other.out, writer.seen, ALL_BYTES);
    assert_memory_equal(writer.seen, writer.model, ALL_BYTES);
    other_say(&writer.other, 'u');
    other_read(writer.other.out, &rc, sizeof(rc));
    assert_int_equal(rc, 0);
    assert_int_equal(write_piece(&writer, FAR, FAR_UNMAPPED_AT + 8, 8), HEFT_ERR_STALE);
    assert_int_equal(write_piece(&writer, FAR, FAR_UNMAPPED_AT - 8, 8), 0);
    assert_int_equal(write_piece(&writer, FAR, FAR_LOCKED_AT + 8, 8), HEFT_ERR_STALE);
    assert_int_equal(write_piece(&writer, FAR, FAR_LOCKED_AT - 8, 8), 0);
    other_end(&writer.other, SIGKILL);
    assert_int_equal(write_piece(&writer, FAR, FAR_UNMAPPED_AT - 8, 8), HEFT_ERR_PEER_LOST);
    assert_int_equal(heft_agent_close(writer.agent, NULL), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(into_a_shared_mapping),
        cmocka_unit_test(by_cross_memory_attach),
        cmocka_unit_test(by_cross_memory_attach_across_4_gib),
        cmocka_unit_test(single_pieces_by_cross_memory_attach),
        cmocka_unit_test(over_unix_sockets),
        cmocka_unit_test(over_tcp),
        cmocka_unit_test(over_tcp_across_4_gib),
        cmocka_unit_test(what_may_not_be_written_is_refused_and_stays_as_it_was),
        cmocka_unit_test(memory_comes_free_when_a_frozen_writer_has_heard_the_end),
        cmocka_unit_test(memory_comes_free_when_a_frozen_writer_is_killed),
        cmocka_unit_test(an_agent_closes_though_a_writer_is_frozen),
    };

    (void)signal(SIGPIPE, SIG_IGN);
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        return serve_main(argv[2]);
    if (argc == 3 && strcmp(argv[1], "write") == 0)
        return write_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
