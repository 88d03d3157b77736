/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread; reads are transfers of the agent's. Each load begins at another place, so that they read
 * different units from the start. A unit that somebody claimed and does not bring within the stall limit (a
 * frozen process, whose lock does not end) is read past the share, and so is one that finds no memory.
 */
#include "load/feeder.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_FETCHES 8u
#define OBJECT_FETCHES 32u
#define LOOK_NS (20 * HEFT_NS_PER_MS)

enum fetch_state { FETCH_FREE, FETCH_FLYING, FETCH_DONE };

struct fetch {
    struct heft_feeder *feeder;
    struct heft_xfer *xfer;
    uint64_t unit;
    uint32_t state; /* atomic */
    struct heft_error error;
};

/* Lists of numbers by number: those of `index` are items[first[index]] to items[first[index + 1]]. */
struct lists {
    uint64_t *first, *items;
};

struct heft_feeder {
    struct heft_feeder_options options;
    struct heft_executor *executor;
    uint64_t units;
    struct lists units_of, chunks_of; /* of chunks, and of units */
    uint32_t *missing;                /* by chunk: units that are not there yet */
    uint32_t *left;                   /* by unit, atomic: chunks that still want it */
    uint64_t *pending;                /* units that are wanted and not there, in the order of reading */
    uint64_t pending_count;
    uint64_t *busy_ns; /* by unit: since when somebody else reads it */
    struct fetch *fetches;
    uint32_t fetch_count;
    uint64_t bytes; /* atomic */
    uint32_t stop;  /* atomic */
    int thread_started, no_room_told;
    pthread_t thread;
};

/* ---- what is wanted ---- */

static int grow(uint64_t **items, uint64_t *capacity, uint64_t count)
{
    uint64_t *grown;

    if (count < *capacity)
        return HEFT_OK;
    *capacity = *capacity * 2 + 1024;
    grown = realloc(*items, *capacity * sizeof(**items));
    if (!grown)
        return HEFT_ERR_NO_MEMORY;
    *items = grown;
    return HEFT_OK;
}

/* What one byte range, or several at a stride, touches; each unit once a chunk. */
static int note_run(struct heft_feeder *feeder, const struct heft_plan_run *run, uint64_t chunk,
                    uint64_t *stamps, uint64_t *capacity, uint64_t *count)
{
    uint64_t part, unit;

    for (part = 0; part < run->count && run->length_bytes > 0; part++) {
        uint64_t from = run->source_offset_bytes + part * run->source_stride_bytes;
        uint64_t last =
            heft_share_unit(feeder->options.share, run->source_file, from + run->length_bytes - 1);

        for (unit = heft_share_unit(feeder->options.share, run->source_file, from); unit <= last; unit++) {
            if (stamps[unit] == chunk + 1)
                continue;
            stamps[unit] = chunk + 1;
            if (grow(&feeder->units_of.items, capacity, *count))
                return HEFT_ERR_NO_MEMORY;
            feeder->units_of.items[(*count)++] = unit;
            feeder->left[unit]++;
        }
    }
    return HEFT_OK;
}

static int list_units(struct heft_feeder *feeder)
{
    const struct heft_plan *plan = feeder->options.plan;
    uint64_t *stamps = calloc(feeder->units + 1, sizeof(*stamps)), capacity = 0, count = 0, chunk;
    struct heft_plan_run *runs = NULL;
    size_t room = 0, used, index;
    int rc = stamps ? HEFT_OK : HEFT_ERR_NO_MEMORY;

    for (chunk = 0; !rc && chunk < plan->chunk_count; chunk++) {
        feeder->units_of.first[chunk] = count;
        if (!(plan->chunks[chunk].sources >> feeder->options.share_index & 1))
            continue;
        while ((used = heft_plan_runs(plan, chunk, feeder->options.share_index, runs, room)) > room) {
            free(runs);
            runs = calloc(used, sizeof(*runs));
            room = runs ? used : 0;
            if (!runs) {
                rc = HEFT_ERR_NO_MEMORY;
                break;
            }
        }
        for (index = 0; !rc && index < used; index++)
            rc = note_run(feeder, &runs[index], chunk, stamps, &capacity, &count);
        feeder->missing[chunk] = (uint32_t)(count - feeder->units_of.first[chunk]);
    }
    feeder->units_of.first[plan->chunk_count] = count;
    free(runs);
    free(stamps);
    return rc;
}

/* The same the other way round. */
static int list_chunks(struct heft_feeder *feeder)
{
    const struct lists *units_of = &feeder->units_of;
    uint64_t chunks = feeder->options.plan->chunk_count, count = units_of->first[chunks], unit, chunk, at;
    uint64_t *next = calloc(feeder->units + 1, sizeof(*next));

    feeder->chunks_of.items = calloc(count + 1, sizeof(uint64_t));
    if (!next || !feeder->chunks_of.items) {
        free(next);
        return HEFT_ERR_NO_MEMORY;
    }
    for (unit = 0; unit < feeder->units; unit++) {
        next[unit] = feeder->chunks_of.first[unit];
        feeder->chunks_of.first[unit + 1] = next[unit] + feeder->left[unit];
    }
    for (chunk = 0; chunk < chunks; chunk++)
        for (at = units_of->first[chunk]; at < units_of->first[chunk + 1]; at++)
            feeder->chunks_of.items[next[units_of->items[at]]++] = chunk;
    free(next);
    return HEFT_OK;
}

/* Units in order, begun at this load's own place. */
static void list_pending(struct heft_feeder *feeder, uint32_t loads)
{
    uint64_t start = feeder->units / loads * heft_share_column(feeder->options.share), index, unit;

    for (index = 0; index < feeder->units; index++) {
        unit = (start + index) % feeder->units;
        if (feeder->left[unit] == 0)
            heft_share_use(feeder->options.share, unit);
        else
            feeder->pending[feeder->pending_count++] = unit;
    }
}

int heft_feeder_create(const struct heft_feeder_options *options, struct heft_feeder **feeder_out,
                       struct heft_error *error)
{
    struct heft_feeder *feeder = calloc(1, sizeof(*feeder));
    uint64_t chunks = options->plan->chunk_count;
    uint32_t index;

    if (!feeder)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making the feeder of a share");
    feeder->options = *options;
    feeder->units = heft_share_units(options->share);
    feeder->fetch_count = options->storage->kind == HEFT_SOURCE_OBJECTS ? OBJECT_FETCHES : FILE_FETCHES;
    feeder->units_of.first = calloc(chunks + 1, sizeof(uint64_t));
    feeder->chunks_of.first = calloc(feeder->units + 1, sizeof(uint64_t));
    feeder->missing = calloc(chunks + 1, sizeof(*feeder->missing));
    feeder->left = calloc(feeder->units + 1, sizeof(*feeder->left));
    feeder->pending = calloc(feeder->units + 1, sizeof(*feeder->pending));
    feeder->busy_ns = calloc(feeder->units + 1, sizeof(*feeder->busy_ns));
    feeder->fetches = calloc(feeder->fetch_count, sizeof(*feeder->fetches));
    if (!feeder->units_of.first || !feeder->chunks_of.first || !feeder->missing || !feeder->left ||
        !feeder->pending || !feeder->busy_ns || !feeder->fetches || list_units(feeder) ||
        list_chunks(feeder)) {
        heft_feeder_free(feeder);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making the feeder of a share");
    }
    for (index = 0; index < feeder->fetch_count; index++)
        feeder->fetches[index].feeder = feeder;
    list_pending(feeder, heft_share_loads(options->share));
    *feeder_out = feeder;
    return HEFT_OK;
}

void heft_feeder_free(struct heft_feeder *feeder)
{
    if (!feeder)
        return;
    free(feeder->units_of.first);
    free(feeder->units_of.items);
    free(feeder->chunks_of.first);
    free(feeder->chunks_of.items);
    free(feeder->missing);
    free(feeder->left);
    free(feeder->pending);
    free(feeder->busy_ns);
    free(feeder->fetches);
    free(feeder);
}

void heft_feeder_on_chunk(void *context, uint64_t chunk)
{
    struct heft_feeder *feeder = context;
    uint64_t at;

    for (at = feeder->units_of.first[chunk]; at < feeder->units_of.first[chunk + 1]; at++)
        if (__atomic_sub_fetch(&feeder->left[feeder->units_of.items[at]], 1, __ATOMIC_ACQ_REL) == 0)
            heft_share_use(feeder->options.share, feeder->units_of.items[at]);
}

/* ---- reading ---- */

static void on_fetched(struct heft_xfer *xfer, const struct heft_xfer_result *result, void *context)
{
    struct fetch *fetch = context;
    struct heft_feeder *feeder = fetch->feeder;
    struct heft_share *share = feeder->options.share;

    (void)xfer;
    fetch->error = result->error;
    fetch->error.code = result->status;
    if (result->status == HEFT_OK)
        (void)__atomic_add_fetch(&feeder->bytes, result->bytes, __ATOMIC_RELAXED);
    /* The share first: it may be closed as soon as the fetch is done. */
    heft_share_settle(share, fetch->unit, result->status == HEFT_OK);
    __atomic_store_n(&fetch->state, FETCH_DONE, __ATOMIC_RELEASE);
}

static int post(struct heft_feeder *feeder, struct fetch *fetch, uint64_t unit, struct heft_error *error)
{
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    struct heft_run run = {.count = 1};
    uint32_t file;
    int rc;

    heft_share_place(feeder->options.share, unit, &file, &run.local_offset_bytes, &run.length_bytes);
    run.remote_offset_bytes = run.local_offset_bytes;
    run.local_region = feeder->options.regions[file];
    run.remote_region = feeder->options.storage->regions[file];
    fetch->unit = unit;
    if (fetch->xfer) {
        rc = heft_xfer_set_runs(fetch->xfer, &run, 1, error);
    } else {
        options.deadline_ms = UINT32_MAX;
        options.stall_ms =
            feeder->options.stall_ms *
            (feeder->options.storage->kind == HEFT_SOURCE_OBJECTS ? HEFT_OBJECT_STALL_FACTOR : 1);
        options.on_done = on_fetched;
        options.context = fetch;
        rc = heft_xfer_create(feeder->options.agent, HEFT_OP_READ, NULL, &run, 1, &options, &fetch->xfer,
                              error);
    }
    if (rc)
        return rc;
    __atomic_store_n(&fetch->state, FETCH_FLYING, __ATOMIC_RELEASE);
    rc = heft_xfer_post(fetch->xfer, error);
    if (rc)
        __atomic_store_n(&fetch->state, FETCH_FREE, __ATOMIC_RELEASE);
    return rc;
}

/* The unit is there: chunks that waited for it alone can be had. Returns 1: the executor has something new.
 */
static int offer_unit(struct heft_feeder *feeder, uint64_t unit)
{
    const struct lists *chunks_of = &feeder->chunks_of;
    uint64_t at;
    int offered = 0;

    for (at = chunks_of->first[unit]; at < chunks_of->first[unit + 1]; at++)
        if (--feeder->missing[chunks_of->items[at]] == 0) {
            heft_executor_offer(feeder->executor, feeder->options.share_index, chunks_of->items[at]);
            offered = 1;
        }
    return offered;
}

/* Whoever waits for it reads it from storage, each for itself. */
static void bypass_unit(struct heft_feeder *feeder, uint64_t unit)
{
    const struct lists *chunks_of = &feeder->chunks_of;
    uint64_t at;

    for (at = chunks_of->first[unit]; at < chunks_of->first[unit + 1]; at++)
        heft_executor_offer(feeder->executor, feeder->options.storage_index, chunks_of->items[at]);
}

/* The next transfer that has nothing to do; one that failed ends the share, whose storage then stands in. */
static struct fetch *find_free(struct heft_feeder *feeder, struct heft_error *error)
{
    struct fetch *found = NULL;
    uint32_t index;

    for (index = 0; index < feeder->fetch_count; index++) {
        struct fetch *fetch = &feeder->fetches[index];
        uint32_t state = __atomic_load_n(&fetch->state, __ATOMIC_ACQUIRE);

        if (state == FETCH_DONE) {
            if (fetch->error.code && !error->code)
                *error = fetch->error;
            __atomic_store_n(&fetch->state, FETCH_FREE, __ATOMIC_RELEASE);
            state = FETCH_FREE;
        }
        if (state == FETCH_FREE && !found)
            found = fetch;
    }
    return found;
}

/* Claims a unit that is not there. 1: it needs no more attention. */
static int try_unit(struct heft_feeder *feeder, uint64_t unit, struct fetch **fetch, int *news,
                    struct heft_error *error)
{
    struct heft_error refusal = HEFT_ERROR_INIT;
    uint64_t now = heft_now_ns();
    int rc = heft_share_claim(feeder->options.share, unit, &refusal);

    if (rc == HEFT_OK) {
        rc = post(feeder, *fetch, unit, error);
        if (rc) {
            error->code = rc;
            heft_share_settle(feeder->options.share, unit, 0);
        } else {
            *fetch = NULL;
        }
        feeder->busy_ns[unit] = 0;
        return 0; /* looked at again when it is there */
    }
    if (rc == HEFT_ERR_EXISTS)
        return 0;
    if (rc == HEFT_ERR_BUSY) {
        if (feeder->busy_ns[unit] == 0)
            feeder->busy_ns[unit] = now;
        if (now - feeder->busy_ns[unit] < feeder->options.stall_ms * HEFT_NS_PER_MS)
            return 0;
    } else if (!feeder->no_room_told) {
        heft_log(HEFT_LOG_WARN, "%s; what does not fit each load reads for itself", refusal.text);
        feeder->no_room_told = 1;
    }
    bypass_unit(feeder, unit);
    *news = 1;
    return 1;
}

static int is_flying(const struct heft_feeder *feeder, uint64_t unit)
{
    uint32_t index;

    for (index = 0; index < feeder->fetch_count; index++)
        if (feeder->fetches[index].unit == unit &&
            __atomic_load_n(&feeder->fetches[index].state, __ATOMIC_ACQUIRE) == FETCH_FLYING)
            return 1;
    return 0;
}

/* One look at everything that is wanted and not there. Units that need no more of it leave the list. */
static void look(struct heft_feeder *feeder, struct heft_error *error)
{
    struct fetch *fetch = find_free(feeder, error);
    uint64_t from, to = 0;
    int news = 0;

    for (from = 0; from < feeder->pending_count; from++) {
        uint64_t unit = feeder->pending[from];
        int gone = 0;

        if (__atomic_load_n(&feeder->left[unit], __ATOMIC_ACQUIRE) == 0) {
            gone = !is_flying(feeder, unit);
        } else if (heft_share_is_present(feeder->options.share, unit)) {
            news |= offer_unit(feeder, unit);
            gone = 1;
        } else if (fetch && !error->code && !is_flying(feeder, unit)) {
            gone = try_unit(feeder, unit, &fetch, &news, error);
            if (!fetch)
                fetch = find_free(feeder, error);
        }
        if (!gone)
            feeder->pending[to++] = unit;
    }
    feeder->pending_count = to;
    if (news)
        heft_executor_kick(feeder->executor);
}

static void *feeder_main(void *argument)
{
    struct heft_feeder *feeder = argument;
    struct heft_share *share = feeder->options.share;

    while (!__atomic_load_n(&feeder->stop, __ATOMIC_ACQUIRE)) {
        struct heft_error error = HEFT_ERROR_INIT;
        uint32_t seen = heft_share_progress(share);

        look(feeder, &error);
        if (error.code) {
            heft_executor_lose(feeder->executor, feeder->options.share_index, error.code, error.text);
            break;
        }
        if (feeder->pending_count == 0)
            break;
        if (!__atomic_load_n(&feeder->stop, __ATOMIC_ACQUIRE))
            heft_share_wait(share, seen, LOOK_NS);
    }
    return NULL;
}

int heft_feeder_start(struct heft_feeder *feeder, struct heft_executor *executor, struct heft_error *error)
{
    int rc;

    feeder->executor = executor;
    rc = pthread_create(&feeder->thread, NULL, feeder_main, feeder);
    if (rc)
        return heft_error_set_errno(error, rc, "starting the feeder of a share");
    feeder->thread_started = 1;
    return HEFT_OK;
}

uint64_t heft_feeder_stop(struct heft_feeder *feeder)
{
    uint32_t index;

    __atomic_store_n(&feeder->stop, 1, __ATOMIC_RELEASE);
    heft_share_wake(feeder->options.share);
    if (feeder->thread_started)
        (void)pthread_join(feeder->thread, NULL);
    feeder->thread_started = 0;
    for (index = 0; index < feeder->fetch_count; index++) {
        struct heft_xfer *xfer = feeder->fetches[index].xfer;

        if (!xfer)
            continue;
        (void)heft_xfer_cancel(xfer);
        while (__atomic_load_n(&feeder->fetches[index].state, __ATOMIC_ACQUIRE) == FETCH_FLYING)
            (void)usleep(200);
        while (heft_xfer_release(xfer) == HEFT_ERR_BUSY) /* it drains, its callback returns */
            (void)usleep(200);
        feeder->fetches[index].xfer = NULL;
    }
    return __atomic_load_n(&feeder->bytes, __ATOMIC_RELAXED);
}
