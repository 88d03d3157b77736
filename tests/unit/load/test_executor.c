/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor against a transfer layer of our own (the heft_xfer_* calls below), in which every source can
 * be told to be slow, to die, to freeze, to send wrong bytes, or to finish inside post.
 */
#include "../../effort.h"
#include "agent/peer.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "load/bounce.h"
#include "load/executor.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define SOURCES 3
#define TENSORS 24
#define STALL_MS 300u
#define TENSOR_BYTES ((uint64_t)900001) /* several blocks and a tail */

struct fake_source {
    uint32_t delay_us;     /* before each transfer */
    uint64_t rate;         /* bytes a second of all its transfers together, piece by piece; 0: any */
    uint64_t free_ns;      /* when that lets the next piece pass */
    int64_t dies_after;    /* transfers; -1: never */
    int64_t wrong_after;   /* from then on a byte is wrong; -1: never */
    int64_t freezes_after; /* from then on nothing ends but by cancel; -1: never */
    int inside_post;       /* ends before post returns */
    uint64_t stalls_every; /* each so-manieth transfer ends STALLED; 0: none */
    int stalls_late;       /* after the stall limit, not at once */
    int broken_streams;    /* so many transfers end PEER_LOST although the peer lives */
    int create_fails;
    int is_far;       /* reaches bounces only, not the destination */
    int create_hangs; /* until the dials of its peer are ended */
    uint32_t dials_ended;
    uint64_t count;
};

/* Opaque to the executor: index of the source in all of them. */
struct heft_peer {
    int index;
};
struct heft_region {
    uint8_t *address;
    int is_bounce;
};

static struct fake_source fakes[SOURCES + 1]; /* the last: this agent itself, from bounces */
static uint64_t bounces_live;                 /* atomic */
static struct heft_peer peers[SOURCES];
static uint8_t *model_bytes;
static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

struct heft_xfer {
    int source, active, cancel;
    uint64_t moved_bytes; /* atomic */
    struct heft_run *runs;
    size_t run_count;
    struct heft_xfer_options options;
};

int heft_xfer_create(struct heft_agent *agent, enum heft_op op, struct heft_peer *peer,
                     const struct heft_run *runs, size_t run_count, const struct heft_xfer_options *options,
                     struct heft_xfer **xfer_out, struct heft_error *error)
{
    static struct heft_peer self = {SOURCES};
    struct heft_xfer *xfer;

    (void)agent;
    assert_int_equal(op, HEFT_OP_READ);
    if (!peer)
        peer = &self;
    if (fakes[peer->index].is_far && !runs[0].local_region->is_bounce)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "too far for a GPU");
    if (fakes[peer->index].create_fails)
        return heft_error_set(error, HEFT_ERR_REQUIRED, "no such route");
    if (fakes[peer->index].create_hangs) {
        while (!__atomic_load_n(&fakes[peer->index].dials_ended, __ATOMIC_ACQUIRE))
            (void)usleep(500);
        return heft_error_set(error, HEFT_ERR_CANCELED, "the dial was given up");
    }
    xfer = calloc(1, sizeof(*xfer));
    assert_non_null(xfer);
    xfer->source = peer->index;
    xfer->options = *options;
    *xfer_out = xfer;
    return heft_xfer_set_runs(xfer, runs, run_count, error);
}

int heft_xfer_set_runs(struct heft_xfer *xfer, const struct heft_run *runs, size_t run_count,
                       struct heft_error *error)
{
    (void)error;
    free(xfer->runs);
    xfer->runs = calloc(run_count, sizeof(*runs));
    memcpy(xfer->runs, runs, run_count * sizeof(*runs));
    xfer->run_count = run_count;
    return HEFT_OK;
}

static uint64_t copy_runs(struct heft_xfer *xfer, int wrong)
{
    uint64_t total = 0, piece;
    size_t index;

    for (index = 0; index < xfer->run_count; index++) {
        const struct heft_run *run = &xfer->runs[index];

        const uint8_t *from = model_bytes;

        if (xfer->source == SOURCES)
            from = ((const struct heft_region *)(uintptr_t)run->remote_region)->address;
        for (piece = 0; piece < run->count; piece++) {
            memcpy(run->local_region->address + run->local_offset_bytes + piece * run->local_stride_bytes,
                   from + run->remote_offset_bytes + piece * run->remote_stride_bytes, run->length_bytes);
            total += run->length_bytes;
        }
    }
    if (wrong && xfer->run_count && xfer->runs[0].length_bytes)
        xfer->runs[0].local_region->address[xfer->runs[0].local_offset_bytes] ^= 1;
    return total;
}

static int stall(const struct fake_source *fake, struct heft_error *error)
{
    if (fake->stalls_late)
        (void)usleep(STALL_MS * 1000 + 10000);
    return heft_error_set(error, HEFT_ERR_STALLED, "a fake stalled");
}

/* Passes the transfer's bytes at its source's rate, until it is canceled. */
static void keep_to_rate(struct heft_xfer *xfer, struct fake_source *fake)
{
    const uint64_t piece = 65536;
    uint64_t total = 0, moved;
    size_t index;

    for (index = 0; index < xfer->run_count; index++)
        total += xfer->runs[index].length_bytes * xfer->runs[index].count;
    for (moved = 0; moved < total && !__atomic_load_n(&xfer->cancel, __ATOMIC_ACQUIRE); moved += piece) {
        uint64_t now = heft_now_ns(), until;

        (void)pthread_mutex_lock(&fake_lock);
        if (fake->free_ns + 50 * HEFT_NS_PER_MS < now)
            fake->free_ns = now;
        fake->free_ns += piece * HEFT_NS_PER_S / fake->rate;
        until = fake->free_ns;
        (void)pthread_mutex_unlock(&fake_lock);
        for (; now < until && !__atomic_load_n(&xfer->cancel, __ATOMIC_ACQUIRE); now = heft_now_ns())
            (void)usleep((useconds_t)(until - now < 5000000 ? (until - now) / 1000 : 5000));
        __atomic_store_n(&xfer->moved_bytes, moved, __ATOMIC_RELEASE);
    }
}

static void perform(struct heft_xfer *xfer)
{
    struct fake_source *fake = &fakes[xfer->source];
    struct heft_xfer_result result = {.size = sizeof(result), .transport = "fake", .failed_run = -1};
    int64_t number;
    int is_rated;

    (void)pthread_mutex_lock(&fake_lock);
    number = (int64_t)fake->count++;
    is_rated = fake->rate > 0;
    (void)pthread_mutex_unlock(&fake_lock);
    result.start_ns = heft_now_ns();
    if (fake->delay_us)
        (void)usleep(fake->delay_us);
    if (is_rated)
        keep_to_rate(xfer, fake);
    if (fake->freezes_after >= 0 && number >= fake->freezes_after)
        while (!__atomic_load_n(&xfer->cancel, __ATOMIC_ACQUIRE))
            (void)usleep(500);
    if (__atomic_load_n(&xfer->cancel, __ATOMIC_ACQUIRE))
        result.status = HEFT_ERR_CANCELED;
    else if (fake->dies_after >= 0 && number >= fake->dies_after)
        result.status = heft_error_set(&result.error, HEFT_ERR_PEER_LOST, "fake %d died", xfer->source);
    else if (fake->stalls_every && (uint64_t)number % fake->stalls_every == fake->stalls_every - 1)
        result.status = stall(fake, &result.error);
    else if (number < fake->broken_streams)
        result.status =
            heft_error_set(&result.error, HEFT_ERR_PEER_LOST, "a stream of fake %d broke", xfer->source);
    else
        result.bytes = copy_runs(xfer, fake->wrong_after >= 0 && number >= fake->wrong_after);
    result.end_ns = heft_now_ns();
    __atomic_store_n(&xfer->active, 0, __ATOMIC_RELEASE);
    xfer->options.on_done(xfer, &result, xfer->options.context);
}

static void *perform_thread(void *argument)
{
    perform(argument);
    return NULL;
}

int heft_xfer_post(struct heft_xfer *xfer, struct heft_error *error)
{
    pthread_attr_t detached;
    pthread_t thread;

    (void)error;
    assert_int_equal(__atomic_load_n(&xfer->active, __ATOMIC_ACQUIRE), 0);
    __atomic_store_n(&xfer->active, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&xfer->cancel, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&xfer->moved_bytes, 0, __ATOMIC_RELEASE);
    if (fakes[xfer->source].inside_post) {
        perform(xfer);
        return HEFT_OK;
    }
    /* A detached thread a transfer: slow, but each ends where it likes. */
    assert_int_equal(pthread_attr_init(&detached), 0);
    assert_int_equal(pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED), 0);
    assert_int_equal(pthread_create(&thread, &detached, perform_thread, xfer), 0);
    (void)pthread_attr_destroy(&detached);
    return HEFT_OK;
}

int heft_xfer_cancel(struct heft_xfer *xfer)
{
    __atomic_store_n(&xfer->cancel, 1, __ATOMIC_RELEASE);
    return HEFT_OK;
}

void heft_xfer_get_result(const struct heft_xfer *xfer, struct heft_xfer_result *result_out)
{
    *result_out = (struct heft_xfer_result){.size = sizeof(*result_out)};
    result_out->status = __atomic_load_n(&xfer->active, __ATOMIC_ACQUIRE) ? HEFT_ERR_AGAIN : HEFT_OK;
    result_out->bytes = __atomic_load_n(&xfer->moved_bytes, __ATOMIC_ACQUIRE);
}

int heft_xfer_release(struct heft_xfer *xfer)
{
    if (!xfer)
        return HEFT_OK;
    if (__atomic_load_n(&xfer->active, __ATOMIC_ACQUIRE))
        return HEFT_ERR_BUSY;
    free(xfer->runs);
    free(xfer);
    return HEFT_OK;
}

int heft_peer_status(const struct heft_peer *peer, struct heft_error *error)
{
    const struct fake_source *fake = &fakes[peer->index];
    int dead;

    (void)error;
    (void)pthread_mutex_lock(&fake_lock);
    dead = fake->dies_after >= 0 && (int64_t)fake->count > fake->dies_after;
    (void)pthread_mutex_unlock(&fake_lock);
    return dead ? HEFT_ERR_PEER_LOST : HEFT_OK;
}

void heft_peer_end_dials(struct heft_peer *peer)
{
    __atomic_store_n(&fakes[peer->index].dials_ended, 1, __ATOMIC_RELEASE);
}

uint64_t heft_region_id(const struct heft_region *region)
{
    return (uintptr_t)region;
}

int heft_bounce_make(struct heft_agent *agent, uint64_t size_bytes, struct heft_bounce **bounce_out,
                     struct heft_error *error)
{
    struct heft_bounce *bounce = calloc(1, sizeof(*bounce));

    (void)agent;
    (void)error;
    assert_non_null(bounce);
    bounce->region = calloc(1, sizeof(*bounce->region));
    assert_non_null(bounce->region);
    bounce->region->address = malloc(size_bytes);
    bounce->region->is_bounce = 1;
    bounce->size_bytes = size_bytes;
    (void)__atomic_add_fetch(&bounces_live, 1, __ATOMIC_RELAXED);
    *bounce_out = bounce;
    return HEFT_OK;
}

void heft_bounce_free(struct heft_bounce *bounce)
{
    if (!bounce)
        return;
    free(bounce->region->address);
    free(bounce->region);
    free(bounce);
    (void)__atomic_sub_fetch(&bounces_live, 1, __ATOMIC_RELAXED);
}

/* ---- one load ---- */

static uint32_t credits = 4; /* of the next world's sources */
static int on_device;        /* the next world's destination is a GPU's memory, so to say */

struct world {
    struct heft_manifest *manifest;
    struct heft_layout *layout;
    struct heft_plan *plan;
    struct heft_source sources[SOURCES], *source_list[SOURCES];
    struct heft_region destination, *destinations[1];
    uint8_t *addresses[1];
    uint64_t regions[1], expected_first[TENSORS], computed_first[TENSORS], *computed;
    struct heft_executor *executor;
};

static struct heft_manifest *make_manifest(void)
{
    struct heft_manifest *manifest = heft_manifest_new();
    struct heft_identity identity = {.model = "m", .revision = "r", .stage = "raw", .engine = "", .rank = ""};
    uint64_t shape[1] = {TENSOR_BYTES}, tensor;

    assert_non_null(manifest);
    assert_int_equal(heft_manifest_set_identity(manifest, &identity, NULL), 0);
    assert_int_equal(heft_manifest_add_file(manifest, "f", TENSORS * TENSOR_BYTES, 7, NULL, NULL), 0);
    for (tensor = 0; tensor < TENSORS; tensor++) {
        char name[16];
        struct heft_manifest_tensor t = {.name = name,
                                         .rank = 1,
                                         .dtype = "U8",
                                         .dtype_bits = 8,
                                         .shape = shape,
                                         .offset_bytes = tensor * TENSOR_BYTES,
                                         .size_bytes = TENSOR_BYTES};

        (void)snprintf(name, sizeof(name), "t%02u", (unsigned)tensor);
        t.name_bytes = (uint32_t)strlen(name);
        assert_int_equal(heft_manifest_add_tensor(manifest, &t, NULL), 0);
    }
    assert_int_equal(heft_manifest_finish(manifest, NULL), 0);
    assert_int_equal(heft_manifest_want_digests(manifest, NULL), 0);
    for (tensor = 0; tensor < TENSORS; tensor++)
        heft_block_digests(model_bytes + manifest->tensors[tensor].offset_bytes, TENSOR_BYTES,
                           manifest->digests + manifest->tensors[tensor].first_block);
    return manifest;
}

static void setup(struct world *world, uint32_t sources, int with_expected)
{
    const struct heft_manifest *manifests[SOURCES];
    struct heft_executor_options options = {.stall_ms = fakes[0].stalls_late ? STALL_MS : 60000, .verify = 1};
    uint64_t index;

    *world = (struct world){0};
    for (index = 0; index < SOURCES; index++)
        peers[index].index = (int)index;
    if (!model_bytes) {
        model_bytes = malloc(TENSORS * TENSOR_BYTES);
        assert_non_null(model_bytes);
        for (index = 0; index < TENSORS * TENSOR_BYTES; index++)
            model_bytes[index] = (uint8_t)(index * 2654435761u >> 11);
    }
    world->manifest = make_manifest();
    assert_int_equal(heft_layout_whole(world->manifest, 256, &world->layout, NULL), 0);
    for (index = 0; index < sources; index++) {
        manifests[index] = world->manifest;
        world->sources[index] = (struct heft_source){.kind = HEFT_SOURCE_PEER,
                                                     .state = HEFT_SOURCE_READY,
                                                     .credits = credits,
                                                     .manifest = world->manifest,
                                                     .peer = &peers[index],
                                                     .regions = world->regions};
        (void)snprintf(world->sources[index].name, sizeof(world->sources[index].name), "source-%u",
                       (unsigned)index);
        world->source_list[index] = &world->sources[index];
    }
    assert_int_equal(heft_plan_make(world->layout, manifests, sources, 0, &world->plan, NULL), 0);
    world->addresses[0] = world->destination.address = calloc(1, world->layout->arena_bytes);
    world->destinations[0] = &world->destination;
    world->computed = calloc(world->manifest->block_count, sizeof(uint64_t));
    for (index = 0; index < TENSORS; index++)
        world->expected_first[index] = world->computed_first[index] =
            world->manifest->tensors[world->layout->tensors[index].tensor].first_block;
    options.on_device = on_device;
    options.plan = world->plan;
    options.sources = world->source_list;
    options.destinations = world->destinations;
    options.addresses = world->addresses;
    options.expected = with_expected ? world->manifest->digests : NULL;
    options.expected_first = world->expected_first;
    options.computed = world->computed;
    options.computed_first = world->computed_first;
    assert_int_equal(heft_executor_create(&options, &world->executor, NULL), 0);
}

static void calm(void)
{
    size_t index;

    for (index = 0; index <= SOURCES; index++)
        fakes[index] = (struct fake_source){.dies_after = -1, .wrong_after = -1, .freezes_after = -1};
}

static int run(struct world *world, struct heft_error *error)
{
    heft_executor_start(world->executor);
    return heft_executor_wait(world->executor, 30000, error);
}

static void check_bytes(const struct world *world)
{
    uint64_t index;

    for (index = 0; index < TENSORS; index++) {
        const struct heft_layout_tensor *wanted = &world->layout->tensors[index];
        const struct heft_manifest_tensor *tensor = &world->manifest->tensors[wanted->tensor];

        assert_memory_equal(world->addresses[0] + wanted->dst_offset_bytes,
                            model_bytes + tensor->offset_bytes, tensor->size_bytes);
    }
    assert_memory_equal(world->computed, world->manifest->digests,
                        world->manifest->block_count * sizeof(uint64_t));
}

static void teardown(struct world *world)
{
    heft_executor_free(world->executor);
    heft_plan_free(world->plan);
    heft_layout_free(world->layout);
    heft_manifest_free(world->manifest);
    free(world->addresses[0]);
    free(world->computed);
}

static void all_sources_share_the_work_and_a_fast_one_takes_more(void **state)
{
    struct world world;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    calm();
    fakes[0].delay_us = 200000;
    fakes[1].delay_us = 1000;
    setup(&world, 2, 1);
    assert_int_equal(run(&world, &error), 0);
    check_bytes(&world);
    assert_true(world.sources[0].bytes > 0);
    assert_true(world.sources[1].bytes > world.sources[0].bytes);
    assert_int_equal(world.sources[0].bytes + world.sources[1].bytes, TENSORS * TENSOR_BYTES);
    assert_int_equal(heft_executor_bytes_done(world.executor), TENSORS * TENSOR_BYTES);
    assert_int_equal(heft_executor_blocks_verified(world.executor), world.manifest->block_count);
    teardown(&world);
}

/* In the order of asking, each would hold half of the chunks, and the slow one take 2.7 s for its half. */
static void sources_of_unlike_rates_are_done_at_about_the_same_time(void **state)
{
    const double bound_s = (double)(TENSORS * TENSOR_BYTES) / 16e6 / 0.7; /* 1.9 s */
    int tries, within = 0, order;

    (void)state;
    credits = 16;
    for (order = 0; order < 2; order++) {
        for (tries = within = 0; tries < 5 && !within; tries++) { /* the machine may be busy */
            struct world world;
            struct heft_error error = HEFT_ERROR_INIT;
            uint64_t begin;

            calm();
            fakes[order].rate = 4000000;
            fakes[1 - order].rate = 12000000;
            setup(&world, 2, 1);
            begin = heft_now_ns();
            assert_int_equal(run(&world, &error), 0);
            within = (double)(heft_now_ns() - begin) / 1e9 < bound_s;
            check_bytes(&world);
            assert_int_equal(world.sources[0].bytes + world.sources[1].bytes, TENSORS * TENSOR_BYTES);
            teardown(&world);
        }
        assert_true(within);
    }
    credits = 4;
}

/* Its rate fell to a tenth in the middle: what it holds is moved to the other one. */
static void a_source_that_becomes_slow_holds_up_nothing(void **state)
{
    const double bound_s = (double)(TENSORS * TENSOR_BYTES) / 12e6 / 0.6;
    int tries, within = 0;

    (void)state;
    credits = 16;
    for (tries = 0; tries < 5 && !within; tries++) {
        struct world world;
        struct heft_error error = HEFT_ERROR_INIT;
        uint64_t begin;

        calm();
        fakes[0].rate = 12000000;
        fakes[1].rate = 12000000;
        setup(&world, 2, 1);
        begin = heft_now_ns();
        heft_executor_start(world.executor);
        assert_int_equal(heft_executor_wait(world.executor, 400, &error), HEFT_ERR_AGAIN);
        (void)pthread_mutex_lock(&fake_lock);
        fakes[0].rate = 200000;
        (void)pthread_mutex_unlock(&fake_lock);
        assert_int_equal(heft_executor_wait(world.executor, 60000, &error), 0);
        within = (double)(heft_now_ns() - begin) / 1e9 < bound_s;
        check_bytes(&world);
        teardown(&world);
    }
    assert_true(within);
    credits = 4;
}

static void a_dying_source_gives_its_chunks_to_the_others(void **state)
{
    struct world world;
    struct heft_error error = HEFT_ERROR_INIT;
    int64_t after;

    (void)state;
    for (after = 0; after < 8; after++) {
        calm();
        fakes[0].dies_after = after;
        fakes[0].delay_us = fakes[1].delay_us = 300;
        setup(&world, 2, 1);
        assert_int_equal(run(&world, &error), 0);
        check_bytes(&world);
        /* Lost for good, although transfers that began before may still have ended well. */
        assert_int_equal(world.sources[0].state, HEFT_SOURCE_LOST);
        assert_int_equal(world.sources[0].reason.code, HEFT_ERR_PEER_LOST);
        assert_int_equal(heft_executor_sources_left(world.executor), 1);
        teardown(&world);
    }
}

static void without_a_source_left_the_error_lists_all_of_them(void **state)
{
    struct world world;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    calm();
    fakes[0].dies_after = 2;
    fakes[1].dies_after = 3;
    setup(&world, 2, 1);
    assert_int_equal(run(&world, &error), HEFT_ERR_SOURCE_LOST);
    assert_non_null(strstr(error.text, "source-0: fake 0 died"));
    assert_non_null(strstr(error.text, "source-1: fake 1 died"));
    teardown(&world);
}

static void wrong_bytes_lose_the_source_not_the_load(void **state)
{
    struct world world;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    calm();
    fakes[1].wrong_after = 1;
    fakes[0].delay_us = 1000;
    setup(&world, 2, 1);
    assert_int_equal(run(&world, &error), 0);
    check_bytes(&world);
    assert_int_equal(world.sources[1].state, HEFT_SOURCE_LOST);
    assert_int_equal(world.sources[1].reason.code, HEFT_ERR_DIGEST);
    assert_true(world.sources[1].digest_errors > 0);
    assert_non_null(strstr(world.sources[1].reason.text, "tensor t"));
    teardown(&world);

    calm();
    fakes[0].wrong_after = 0;
    setup(&world, 1, 1);
    assert_int_equal(run(&world, &error), HEFT_ERR_DIGEST);
    teardown(&world);
}

static void a_frozen_sources_last_chunks_are_stolen(void **state)
{
    struct world world;
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t begin = heft_now_ns();

    (void)state;
    calm();
    fakes[0].freezes_after = 2;
    setup(&world, 2, 1);
    assert_int_equal(run(&world, &error), 0);
    check_bytes(&world);
    assert_true(heft_now_ns() - begin < 20 * HEFT_NS_PER_S);
    assert_int_equal(world.sources[1].state, HEFT_SOURCE_USED);
    teardown(&world);
}

/* Each would take the other's last chunk before it is done with it, if a source without a finished chunk
 * counted as quick. */
static void two_slow_sources_do_not_take_chunks_from_each_other_for_ever(void **state)
{
    struct world world;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    calm();
    fakes[0].delay_us = 600000;
    fakes[1].freezes_after = 0;
    setup(&world, 2, 1);
    assert_int_equal(run(&world, &error), 0);
    check_bytes(&world);
    teardown(&world);
}

/* Such as the replica of another rank: alive, but of no use when the only useful one dies. */
static void a_source_that_holds_nothing_wanted_does_not_keep_a_hopeless_load(void **state)
{
    struct world world;
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t chunk, begin = heft_now_ns();

    (void)state;
    calm();
    fakes[0].dies_after = 2;
    setup(&world, 2, 1);
    for (chunk = 0; chunk < world.plan->chunk_count; chunk++)
        world.plan->chunks[chunk].sources = 1;
    assert_int_equal(run(&world, &error), HEFT_ERR_SOURCE_LOST);
    assert_true(heft_now_ns() - begin < 10 * HEFT_NS_PER_S);
    teardown(&world);
}

static void a_peer_that_freezes_while_it_is_connected_delays_neither_the_others_nor_the_end(void **state)
{
    struct world world;
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t begin = heft_now_ns();

    (void)state;
    calm();
    fakes[1].create_hangs = 1;
    setup(&world, 2, 1);
    assert_int_equal(run(&world, &error), 0);
    check_bytes(&world);
    teardown(&world);
    assert_true(heft_now_ns() - begin < 20 * HEFT_NS_PER_S);
}

static void transfers_that_end_inside_post_do_not_recurse(void **state)
{
    struct world world;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    calm();
    fakes[0].inside_post = fakes[1].inside_post = 1;
    fakes[1].dies_after = 3;
    setup(&world, 2, 1);
    assert_int_equal(run(&world, &error), 0);
    check_bytes(&world);
    teardown(&world);
}

static void a_broken_stream_of_a_living_peer_is_repaired(void **state)
{
    struct world world;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    calm();
    fakes[0].broken_streams = 3;
    setup(&world, 1, 1);
    assert_int_equal(run(&world, &error), 0);
    check_bytes(&world);
    assert_int_equal(world.sources[0].state, HEFT_SOURCE_USED);
    assert_int_equal(world.sources[0].retries, 3);
    teardown(&world);
}

static void a_route_that_is_required_and_missing_loses_the_source_or_ends_the_load(void **state)
{
    struct world world;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    calm();
    fakes[0].create_fails = 1;
    setup(&world, 2, 1);
    assert_int_equal(run(&world, &error), 0);
    check_bytes(&world);
    assert_int_equal(world.sources[0].reason.code, HEFT_ERR_REQUIRED);
    teardown(&world);
    calm();
    fakes[0].create_fails = 1;
    setup(&world, 1, 1);
    assert_int_equal(run(&world, &error), HEFT_ERR_REQUIRED);
    teardown(&world);
}

static void a_source_too_far_for_a_gpu_goes_by_way_of_host_memory(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct world world;
    int inside;

    (void)state;
    for (inside = 0; inside < 2; inside++) {
        calm();
        fakes[0].is_far = 1;
        fakes[0].inside_post = fakes[SOURCES].inside_post = inside;
        on_device = 1;
        setup(&world, 2, 1);
        assert_int_equal(run(&world, &error), 0);
        check_bytes(&world);
        assert_true(world.sources[0].chunks > 0);
        assert_true(bounces_live > 0);
        teardown(&world);
        assert_int_equal(bounces_live, 0);
    }
    on_device = 0;
    calm();
    fakes[0].is_far = 1; /* into host memory there is no such way: the source is lost */
    setup(&world, 1, 1);
    assert_int_equal(run(&world, &error), HEFT_ERR_SOURCE_LOST);
    teardown(&world);
}

static void either_leg_of_a_bounced_chunk_may_fail(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct world world;

    (void)state;
    on_device = 1;
    calm();
    fakes[0].is_far = 1;
    fakes[0].dies_after = 5;
    setup(&world, 2, 1);
    assert_int_equal(run(&world, &error), 0);
    check_bytes(&world);
    teardown(&world);
    calm();
    fakes[0].is_far = 1;
    fakes[SOURCES].dies_after = 3; /* the second leg */
    setup(&world, 2, 1);
    assert_int_equal(run(&world, &error), 0);
    check_bytes(&world);
    teardown(&world);
    calm();
    fakes[0].is_far = 1;
    fakes[0].freezes_after = 4; /* cancelled while its chunk is on the first leg */
    setup(&world, 2, 1);
    assert_int_equal(run(&world, &error), 0);
    check_bytes(&world);
    teardown(&world);
    on_device = 0;
    assert_int_equal(bounces_live, 0);
}

static void stopping_drains_before_it_reports(void **state)
{
    struct world world;
    struct heft_error error = HEFT_ERROR_INIT;
    int rc;

    (void)state;
    calm();
    fakes[0].freezes_after = 0;
    setup(&world, 1, 1);
    heft_executor_start(world.executor);
    assert_int_equal(heft_executor_wait(world.executor, 50, &error), HEFT_ERR_AGAIN);
    heft_executor_stop(world.executor, HEFT_ERR_CANCELED, "no longer wanted");
    while ((rc = heft_executor_wait(world.executor, 100, &error)) == HEFT_ERR_AGAIN)
        continue;
    assert_int_equal(rc, HEFT_ERR_CANCELED);
    assert_string_equal(error.text, "no longer wanted");
    teardown(&world);
}

static void digests_are_made_where_none_are_known(void **state)
{
    struct world world;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    calm();
    setup(&world, 1, 0);
    assert_int_equal(run(&world, &error), 0);
    check_bytes(&world);
    assert_int_equal(heft_executor_blocks_verified(world.executor), 0);
    teardown(&world);
}

static void a_chunk_that_waits_behind_others_that_arrive_does_not_lose_the_source(void **state)
{
    struct world world;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    calm();
    fakes[0].delay_us = 80000;
    fakes[0].stalls_every = 13; /* once, while others go on arriving */
    fakes[0].stalls_late = 1;
    setup(&world, 1, 1);
    assert_int_equal(run(&world, &error), 0);
    check_bytes(&world);
    assert_true(world.sources[0].retries > 0);
    assert_int_equal(world.sources[0].state, HEFT_SOURCE_USED);
    teardown(&world);

    calm(); /* one that never delivers is stalled, not slow */
    fakes[0].stalls_every = 1;
    fakes[0].stalls_late = 1;
    setup(&world, 1, 1);
    assert_int_equal(run(&world, &error), HEFT_ERR_SOURCE_LOST);
    assert_int_equal(world.sources[0].reason.code, HEFT_ERR_STALLED);
    teardown(&world);

    calm(); /* and so is one whose transport says so by itself */
    fakes[0].stalls_every = 5;
    setup(&world, 1, 1);
    assert_int_equal(run(&world, &error), HEFT_ERR_SOURCE_LOST);
    assert_int_equal(world.sources[0].reason.code, HEFT_ERR_STALLED);
    teardown(&world);
}

static void random_misfortunes_end_right_or_with_an_error(void **state)
{
    unsigned round, seed = 12345, source;

    (void)state;
    for (round = 0; round < EFFORT(40, 12); round++) {
        struct world world;
        struct heft_error error = HEFT_ERROR_INIT;
        int rc;

        calm();
        for (source = 0; source < SOURCES; source++) {
            seed = seed * 1103515245u + 12345u;
            fakes[source].delay_us = seed >> 16 & 511;
            switch (seed >> 26 & 7) {
            case 0:
                fakes[source].dies_after = seed >> 8 & 15;
                break;
            case 1:
                fakes[source].wrong_after = seed >> 8 & 15;
                break;
            case 2:
                fakes[source].broken_streams = (int)(seed >> 8 & 7);
                break;
            case 3:
                fakes[source].inside_post = 1;
                break;
            default:
                break;
            }
        }
        setup(&world, SOURCES, 1);
        rc = run(&world, &error);
        assert_true(rc == HEFT_OK || rc == HEFT_ERR_SOURCE_LOST);
        if (rc == HEFT_OK)
            check_bytes(&world);
        teardown(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_sources_share_the_work_and_a_fast_one_takes_more),
        cmocka_unit_test(sources_of_unlike_rates_are_done_at_about_the_same_time),
        cmocka_unit_test(a_source_that_becomes_slow_holds_up_nothing),
        cmocka_unit_test(a_dying_source_gives_its_chunks_to_the_others),
        cmocka_unit_test(without_a_source_left_the_error_lists_all_of_them),
        cmocka_unit_test(wrong_bytes_lose_the_source_not_the_load),
        cmocka_unit_test(a_frozen_sources_last_chunks_are_stolen),
        cmocka_unit_test(two_slow_sources_do_not_take_chunks_from_each_other_for_ever),
        cmocka_unit_test(a_source_that_holds_nothing_wanted_does_not_keep_a_hopeless_load),
        cmocka_unit_test(a_peer_that_freezes_while_it_is_connected_delays_neither_the_others_nor_the_end),
        cmocka_unit_test(transfers_that_end_inside_post_do_not_recurse),
        cmocka_unit_test(a_broken_stream_of_a_living_peer_is_repaired),
        cmocka_unit_test(a_route_that_is_required_and_missing_loses_the_source_or_ends_the_load),
        cmocka_unit_test(a_source_too_far_for_a_gpu_goes_by_way_of_host_memory),
        cmocka_unit_test(either_leg_of_a_bounced_chunk_may_fail),
        cmocka_unit_test(stopping_drains_before_it_reports),
        cmocka_unit_test(digests_are_made_where_none_are_known),
        cmocka_unit_test(a_chunk_that_waits_behind_others_that_arrive_does_not_lose_the_source),
        cmocka_unit_test(random_misfortunes_end_right_or_with_an_error),
    };
    return cmocka_run_group_tests_name("executor", tests, NULL, NULL);
}
