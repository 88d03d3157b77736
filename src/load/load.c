/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A load runs on a thread of its own: init (sources), plan (layout, plan, memory), move (executor), verify.
 * Nothing of it is visible before the end: the model is made last, and a failure frees everything after the
 * executor has drained.
 */
#include "load/load.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "load/device.h"
#include "load/feeder.h"
#include "load/fleet.h"
#include "load/integrity.h"
#include "load/landing.h"
#include "space/cuda.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_HOST_BYTES ((uint64_t)256 << 20)
/* A copy engine and a launch of digests want more at a time than a CPU. */
/* A chunk takes 40 us between two GPUs, its digests and the way to the next one twice that: so many keep the
 * engines busy. */
#define DEVICE_PEER_CREDITS 24u
#define OBJECT_CHUNK_BYTES ((uint64_t)8 << 20) /* at least, of a single source, and */
#define OBJECT_CHUNK_MOST_BYTES \
    ((uint64_t)16 << 20)  /* at most: a far store answers after as long as this takes */
#define OBJECT_CHUNKS 64u /* so many for all connections to have some */
#define WAIT_SLICE_MS 50u
#define FLEET_LINGER_MS 30000u

/* What one run of the load's thread holds besides the load itself. */
struct run {
    struct heft_load *load;
    struct heft_source *sources[HEFT_PLAN_MAX_SOURCES];
    struct heft_model_part *parts;
    struct heft_region **regions;
    uint8_t **addresses;
    uint32_t part_count, region_count;
    struct heft_digest_tables digests;
    struct heft_range *ranges;
    int memory_busy; /* somebody still reads it: better lost memory than a read of somebody else's */
};

const char *heft_stage_name(enum heft_load_stage stage)
{
    static const char *const names[HEFT_STAGE_COUNT] = {"init", "plan", "move", "verify", "publish", "done"};

    return stage < HEFT_STAGE_COUNT ? names[stage] : "done";
}

static void enter_stage(struct heft_load *load, enum heft_load_stage stage)
{
    uint64_t now = heft_now_ns();

    (void)pthread_mutex_lock(&load->lock);
    load->stage_ns[load->stage] += now - load->stage_began_ns;
    load->stage = stage;
    load->stage_began_ns = load->stage_start_ns[stage] = now;
    (void)pthread_mutex_unlock(&load->lock);
}

/* ---- plan: memory, digests ---- */

static int make_device_memory(struct heft_load *load, struct heft_model_part *part, struct heft_error *error)
{
    struct heft_device_memory_info info;
    int rc =
        heft_device_memory_alloc(load->device, load->layout->arena_bytes, 0, &part->device_memory, error);

    if (rc)
        return heft_error_prefix(error, rc, "allocating %" PRIu64 " bytes for the model",
                                 load->layout->arena_bytes);
    heft_device_memory_get_info(part->device_memory, &info);
    part->address = (uint8_t *)(uintptr_t)info.address;
    part->size_bytes = info.length_bytes;
    load->memory_kind = info.kind;
    load->memory_page_bytes = info.page_bytes;
    return HEFT_OK;
}

static int make_memory(struct heft_load *load, struct run *run, struct heft_error *error)
{
    struct heft_memory_info info;
    uint32_t index;
    int rc;

    run->parts = calloc(run->part_count, sizeof(*run->parts));
    run->regions = calloc(run->part_count, sizeof(*run->regions));
    run->addresses = calloc(run->part_count, sizeof(*run->addresses));
    if (!run->parts || !run->regions || !run->addresses)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "describing the destination");
    if (load->device >= 0) {
        rc = make_device_memory(load, &run->parts[0], error);
        if (rc)
            return rc;
    } else if (load->options.to) {
        rc = heft_landing_create(load->options.to, load->layout, &run->parts[0].landing, error);
        if (rc)
            return rc;
        run->parts[0].address = heft_landing_address(run->parts[0].landing);
        run->parts[0].size_bytes = load->layout->arena_bytes;
        load->memory_kind = "files";
        load->memory_page_bytes = heft_landing_align_bytes();
    } else if (!load->options.targets) {
        rc = heft_memory_alloc(load->layout->arena_bytes, 0, &run->parts[0].memory, error);
        if (rc)
            return heft_error_prefix(error, rc, "allocating %" PRIu64 " bytes for the model",
                                     load->layout->arena_bytes);
        heft_memory_get_info(run->parts[0].memory, &info);
        run->parts[0].address = info.address;
        run->parts[0].size_bytes = info.length_bytes;
        load->memory_kind = info.kind;
        load->memory_page_bytes = info.page_bytes;
    }
    for (index = 0; index < run->part_count; index++) {
        struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;

        if (load->options.targets && run->ranges) {
            run->parts[index].address = run->ranges[index].address;
            run->parts[index].size_bytes = run->ranges[index].size_bytes;
            load->memory_kind = "the caller's";
        }
        run->addresses[index] = run->parts[index].address;
        options.flags = load->options.fleet_loads > 1 ? HEFT_REGION_REMOTE_READ : 0;
        options.space = load->device >= 0 ? HEFT_SPACE_CUDA : HEFT_SPACE_HOST;
        options.memory = run->parts[index].memory;
        options.address = run->parts[index].address;
        options.length_bytes = run->parts[index].size_bytes;
        rc = heft_region_register(load->agent, &options, &run->regions[index], error);
        if (rc)
            return heft_error_prefix(error, rc, "registering the destination");
        run->region_count = index + 1;
    }
    return HEFT_OK;
}

/* Half of the memory is the window, the other half the transports' (see make_agent). */
static uint64_t window_bytes(const struct heft_load_options *o)
{
    uint64_t all = o->max_host_bytes ? o->max_host_bytes : DEFAULT_HOST_BYTES;

    return all / 2 >= HEFT_LOAD_MIN_HOST_BYTES ? all / 2 : HEFT_LOAD_MIN_HOST_BYTES;
}

/* A chunk is one request of an object store: larger ones pay there, as far as a stream's window lets them.
 * Where sources share the work, it must also be possible to divide a small model by their rates. */
static uint64_t object_chunk_bytes(const struct heft_load *load)
{
    uint64_t bytes = (load->layout->wanted_bytes / OBJECT_CHUNKS + (1u << 20) - 1) >> 20 << 20;
    uint64_t window = window_bytes(&load->options) / 8;

    if (load->found->ready == 1 && bytes < OBJECT_CHUNK_BYTES)
        bytes = OBJECT_CHUNK_BYTES;
    if (bytes > OBJECT_CHUNK_MOST_BYTES)
        bytes = OBJECT_CHUNK_MOST_BYTES;
    return load->stream && !load->options.targets && window < bytes ? window : bytes;
}

static uint64_t chunk_bytes(const struct heft_load *load)
{
    uint32_t index;

    for (index = 0; load->options.chunk_bytes == 0 && index < load->found->ready; index++)
        if (load->found->sources[index]->kind == HEFT_SOURCE_OBJECTS)
            return object_chunk_bytes(load);
    return load->options.chunk_bytes;
}

static int make_stream(struct heft_load *load, struct heft_error *error)
{
    const struct heft_load_options *o = &load->options;
    struct heft_stream *stream;
    int rc = heft_stream_create(load->layout, o->order, o->order_count, o->targets ? 0 : window_bytes(o),
                                &stream, error);

    if (rc)
        return rc;
    (void)pthread_mutex_lock(&load->lock);
    load->stream = stream;
    if (load->freed)
        heft_stream_close(stream);
    (void)pthread_cond_broadcast(&load->changed);
    (void)pthread_mutex_unlock(&load->lock);
    return HEFT_OK;
}

static int make_layout(struct heft_load *load, struct run *run, struct heft_error *error)
{
    int rc = heft_load_make_layout(load, &run->ranges, &run->part_count, error);

    return !rc && (load->options.flags & HEFT_LOAD_STREAM) ? make_stream(load, error) : rc;
}

static void note_fleet(struct heft_load *load)
{
    (void)pthread_mutex_lock(&load->lock);
    heft_fleet_get_summary(load->fleet, &load->fleet_summary);
    (void)pthread_mutex_unlock(&load->lock);
}

/* A replica's digests are of blocks of whole tensors: where there are some, they count. */
static int knows_digests(const struct heft_found *found)
{
    uint32_t index;

    for (index = 0; index < found->ready; index++)
        if (found->sources[index]->manifest->digests)
            return 1;
    return 0;
}

/* The others read what arrives from where it is to lie: that is made before they are looked for. */
static int join_fleet(struct heft_load *load, struct run *run, struct heft_error *error)
{
    struct heft_fleet_options options = {
        .agent = load->agent,
        .directory = load->options.directory,
        .loads = load->options.fleet_loads,
        .stall_ms = load->options.stall_ms,
        .on_device = load->device >= 0,
        .cancel = &load->cancel_wanted,
    };
    struct heft_fleet *fleet;
    int rc = make_memory(load, run, error);

    if (rc)
        return rc;
    options.regions = run->regions;
    options.addresses = run->addresses;
    options.region_count = run->region_count;
    run->region_count = 0; /* the fleet's from now on, with both arrays */
    rc = heft_fleet_join(&options, load->layout, &fleet, &run->memory_busy, error);
    if (rc) {
        run->regions = NULL;
        run->addresses = NULL;
        return rc;
    }
    (void)pthread_mutex_lock(&load->lock);
    load->fleet = fleet;
    (void)pthread_mutex_unlock(&load->lock);
    heft_fleet_gather(fleet, load->found, &load->lock, load->options.fleet_wait_ms);
    load->layout->box_cuts = !knows_digests(load->found);
    note_fleet(load);
    return HEFT_OK;
}

static int make_plan(struct heft_load *load, struct run *run, struct heft_error *error)
{
    const struct heft_manifest *manifests[HEFT_PLAN_MAX_SOURCES];
    struct heft_plan *plan;
    uint32_t index;
    int rc;

    for (index = 0; index < load->found->ready; index++) {
        run->sources[index] = load->found->sources[index];
        if (load->device >= 0 && run->sources[index]->kind == HEFT_SOURCE_PEER)
            run->sources[index]->credits = DEVICE_PEER_CREDITS;
        manifests[index] = load->found->sources[index]->manifest;
    }
    rc = heft_plan_make(load->layout, manifests, load->found->ready, chunk_bytes(load), &plan, error);
    if (rc)
        return rc;
    (void)pthread_mutex_lock(&load->lock);
    load->plan = plan;
    load->bytes_total = plan->total_bytes;
    (void)pthread_mutex_unlock(&load->lock);
    return HEFT_OK;
}

/* ---- move ---- */

static int start_trace(struct heft_load *load, const struct run *run, struct heft_error *error)
{
    static const char *const kinds[] = {"", "file", "peer", "object", "share"};
    uint32_t index;

    if (!(load->options.flags & HEFT_LOAD_TRACE))
        return HEFT_OK;
    load->trace = heft_trace_create(load->plan->chunk_count);
    if (!load->trace)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "keeping a trace of the load");
    for (index = 0; index < load->plan->source_count; index++)
        heft_trace_name(load->trace, index, kinds[run->sources[index]->kind], run->sources[index]->name);
    return HEFT_OK;
}

static uint32_t index_of(const struct heft_load *load, const struct run *run,
                         const struct heft_source *source)
{
    uint32_t index = 0;

    while (index + 1 < load->found->ready && run->sources[index] != source)
        index++;
    return index;
}

static uint32_t share_index(const struct heft_load *load, const struct run *run)
{
    return index_of(load, run, load->found->share_source);
}

/* With a share: the files or objects behind it are read by the feeder, and by the load itself only where the
 * share fails. */
static int make_feeder(struct heft_load *load, struct run *run, struct heft_executor_options *options,
                       struct heft_feeder **feeder_out, struct heft_error *error)
{
    const struct heft_found *found = load->found;
    struct heft_feeder_options feeder = {
        .agent = load->agent,
        .plan = load->plan,
        .share = found->share,
        .storage = found->share_storage,
        .regions = found->share_regions,
        .stall_ms = load->options.stall_ms,
    };
    int rc;

    if (!found->share_source)
        return HEFT_OK;
    feeder.share_index = share_index(load, run);
    feeder.storage_index = index_of(load, run, found->share_storage);
    rc = heft_feeder_create(&feeder, feeder_out, error);
    if (rc)
        return rc;
    options->gated = UINT64_C(1) << feeder.share_index | UINT64_C(1) << feeder.storage_index;
    options->on_chunk = heft_feeder_on_chunk;
    options->on_chunk_context = *feeder_out;
    return HEFT_OK;
}

static int move_bytes(struct heft_load *load, struct run *run, uint64_t end_ns, struct heft_error *error)
{
    struct heft_executor_options options = {
        .agent = load->agent,
        .plan = load->plan,
        .sources = run->sources,
        .destinations = run->regions,
        .addresses = run->addresses,
        .require = load->options.require,
        .stall_ms = load->options.stall_ms,
        .verify_chunk = load->device >= 0 ? heft_device_verify_chunk : NULL,
        .on_device = load->device >= 0,
        .device = load->device,
        .verify = !(load->options.flags & HEFT_LOAD_NO_VERIFY),
        .expected = run->digests.expected,
        .expected_first = run->digests.expected_first,
        .computed = run->digests.computed,
        .computed_first = run->digests.computed_first,
    };
    struct heft_executor *executor;
    struct heft_feeder *feeder = NULL;
    int rc = start_trace(load, run, error);

    options.trace = load->trace;
    if (!rc)
        rc = make_feeder(load, run, &options, &feeder, error);
    if (!rc && load->fleet)
        rc = heft_fleet_prepare(load->fleet, &options, error);
    if (!rc && load->stream) {
        if (!load->options.targets) { /* as far as the window has room */
            options.gated = UINT64_MAX;
            options.keeps_gates = 1;
        }
        rc = heft_stream_prepare(load->stream, load->plan, run->addresses, &options.on_chunk,
                                 &options.on_chunk_context, error);
    }
    if (!rc)
        rc = heft_load_start_checksums(load, &run->digests, run->addresses, &options.on_chunk,
                                       &options.on_chunk_context, error);
    if (!rc)
        rc = heft_executor_create(&options, &executor, error);
    if (rc) {
        heft_feeder_free(feeder);
        if (load->fleet)
            heft_fleet_stop(load->fleet);
        return rc;
    }
    (void)pthread_mutex_lock(&load->lock);
    load->executor = executor;
    (void)pthread_mutex_unlock(&load->lock);
    heft_executor_start(executor);
    if (load->stream)
        heft_stream_run(load->stream, executor);
    if (feeder && heft_feeder_start(feeder, executor, error))
        heft_executor_lose(executor, share_index(load, run), error->code, error->text);
    if (load->fleet && heft_fleet_start(load->fleet, executor, error))
        heft_executor_stop(executor, error->code, error->text);
    while ((rc = heft_executor_wait(executor, WAIT_SLICE_MS, error)) == HEFT_ERR_AGAIN) {
        if (__atomic_load_n(&load->cancel_wanted, __ATOMIC_ACQUIRE))
            heft_executor_stop(executor, HEFT_ERR_CANCELED, "the load was canceled");
        else if (heft_now_ns() >= end_ns)
            heft_executor_stop(executor, HEFT_ERR_DEADLINE, "the deadline passed while bytes were moving");
        else if (heft_checksums_verdict(load->checksums, error))
            heft_executor_stop(executor, HEFT_ERR_DIGEST, error->text);
    }
    if (load->stream)
        heft_stream_run(load->stream, NULL);
    if (rc == HEFT_ERR_DEADLINE)
        heft_error_set(error, rc,
                       "the load's deadline of %" PRIu64 " ms passed with %" PRIu64 " of %" PRIu64
                       " bytes there; raise --deadline, or see the report for the slow source",
                       load->options.deadline_ms, heft_executor_bytes_done(executor), load->bytes_total);
    if (load->fleet) {
        heft_fleet_stop(load->fleet);
        note_fleet(load);
    }
    if (feeder) {
        uint64_t read_bytes = heft_feeder_stop(feeder);

        (void)pthread_mutex_lock(&load->lock);
        load->found->share_source->read_bytes = read_bytes;
        load->found->share_finished = rc == HEFT_OK;
        (void)pthread_mutex_unlock(&load->lock);
    }
    (void)pthread_mutex_lock(&load->lock);
    load->bytes_done = heft_executor_bytes_done(executor);
    load->blocks_verified = heft_executor_blocks_verified(executor);
    load->executor = NULL;
    (void)pthread_mutex_unlock(&load->lock);
    heft_executor_free(executor);
    heft_feeder_free(feeder);
    return rc;
}

/* ---- the end ---- */

/*
 * Files that changed while they were read may have given bytes of two versions. Those that were lost on the
 * way gave bytes before; they need no look where every block was compared with a replica's digest.
 */
static int check_files_unchanged(struct heft_load *load, struct heft_error *error)
{
    int compared = load->blocks_total > 0 && load->blocks_verified == load->blocks_total;
    uint32_t index;
    int rc = HEFT_OK;

    for (index = 0; index < load->found->ready && !rc; index++) {
        const struct heft_source *source = load->found->sources[index];

        if ((source->kind == HEFT_SOURCE_FILES || source->kind == HEFT_SOURCE_SHARE) && source->bytes > 0 &&
            (source->state == HEFT_SOURCE_USED || !compared))
            rc = heft_opened_check_unchanged(source->opened, error);
    }
    return rc;
}

static int make_model(struct heft_load *load, struct run *run, struct heft_model **model_out,
                      struct heft_error *error)
{
    const struct heft_layout *layout = load->layout;
    struct heft_manifest *manifest = heft_manifest_new();
    uint64_t index;
    uint32_t part;
    int rc;

    if (!manifest)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making the model");
    rc = heft_manifest_set_identity(manifest, &layout->reference->identity, error);
    if (!rc)
        rc = heft_manifest_reserve(manifest, layout->split_count ? 0 : layout->tensor_count,
                                   error); /* parts may become one */
    for (part = 0; !rc && part < run->part_count; part++)
        rc = heft_manifest_add_file(manifest, "", run->parts[part].size_bytes, 0, NULL, error);
    for (index = 0; !rc && index < layout->tensor_count; index++) {
        if (!layout->tensors[index].joined)
            rc = heft_load_add_tensor(manifest, layout, index, error);
    }
    if (!rc)
        rc = heft_manifest_finish(manifest, error);
    /* Digests are kept only when every tensor has them: a whole model's, never a slice's. */
    if (!rc && run->digests.computed && layout->split_count == 0)
        rc = heft_manifest_want_digests(manifest, error);
    for (index = 0; !rc && manifest->digests && index < layout->tensor_count; index++) {
        const struct heft_layout_tensor *wanted = &layout->tensors[index];
        const struct heft_manifest_tensor *source = &layout->reference->tensors[wanted->tensor];
        uint64_t made = heft_manifest_find_near(manifest, index, source->name, source->name_bytes);

        HEFT_ASSERT(made != UINT64_MAX && run->digests.computed_first[index] != UINT64_MAX);
        memcpy(manifest->digests + manifest->tensors[made].first_block,
               run->digests.computed + run->digests.computed_first[index],
               heft_block_count(wanted->size_bytes) * sizeof(uint64_t));
    }
    if (rc) {
        heft_manifest_free(manifest);
        return rc;
    }
    rc = heft_model_make(manifest, run->parts, run->part_count, load->device, model_out, error);
    run->parts = NULL;
    if (!rc && load->options.ranks > 1)
        (void)snprintf((*model_out)->part, sizeof((*model_out)->part), "rank %u/%u", load->options.rank,
                       load->options.ranks);
    if (!rc)
        heft_blob_move(&(*model_out)->config, &load->found->config);
    return rc;
}

/* A fleet goes on serving a model that is there: regions and their memory are its until it is closed. */
static void release_fleet(struct run *run, struct heft_model *model)
{
    struct heft_load *load = run->load;
    struct heft_fleet *fleet = load->fleet;

    if (!fleet)
        return;
    run->regions = NULL;
    run->addresses = NULL;
    if (model) {
        (void)__atomic_add_fetch(&model->users, 1, __ATOMIC_ACQ_REL);
        load->fleet_model = model;
        heft_fleet_complete(fleet);
        return;
    }
    (void)pthread_mutex_lock(&load->lock);
    load->fleet = NULL;
    (void)pthread_mutex_unlock(&load->lock);
    run->memory_busy = heft_fleet_close(fleet);
}

static void release_run(struct run *run, struct heft_model *model)
{
    uint32_t index;

    release_fleet(run, model);
    if (run->memory_busy) {
        free(run->parts);
        run->parts = NULL;
    }
    for (index = 0; index < run->region_count; index++)
        if (heft_region_deregister(run->regions[index], NULL)) {
            /* Something still touches the destination: better lost memory than a late write into someone
             * else's. */
            heft_log(HEFT_LOG_ERROR,
                     "the destination is still in use at the end of a load; its memory is not freed");
            free(run->parts);
            run->parts = NULL;
        }
    for (index = 0; run->parts && index < run->part_count; index++)
        heft_model_part_free(&run->parts[index]);
    free(run->parts);
    free(run->regions);
    free(run->addresses);
    heft_digest_tables_free(&run->digests);
    free(run->ranges);
}

static int in_fleet(const struct heft_load *load)
{
    return load->options.fleet_loads > 1 && !(load->options.flags & HEFT_LOAD_EXPLAIN);
}

static int load_run(struct heft_load *load, struct heft_error *error)
{
    struct run run = {.load = load};
    struct heft_model *model = NULL;
    struct heft_found *found;
    uint64_t end_ns = heft_after_ms(load->started_ns, load->options.deadline_ms);
    struct heft_device_warmer warmer;
    int rc;

    heft_device_warm(&warmer, load->options.flags & HEFT_LOAD_EXPLAIN ? -1 : load->device);
    rc = heft_sources_find(&load->options, load->agent, end_ns, &load->cancel_wanted, &found, error);
    if (rc) {
        heft_device_warmed(&warmer);
        return rc;
    }
    (void)pthread_mutex_lock(&load->lock);
    load->found = found;
    (void)pthread_mutex_unlock(&load->lock);
    enter_stage(load, HEFT_STAGE_PLAN);
    rc = make_layout(load, &run, error);
    if (!rc && in_fleet(load))
        rc = join_fleet(load, &run, error);
    if (!rc)
        rc = make_plan(load, &run, error);
    if (rc || (load->options.flags & HEFT_LOAD_EXPLAIN))
        goto out;
    if (!load->fleet)
        rc = make_memory(load, &run, error);
    if (!rc)
        rc = heft_digest_tables_make(load, &run.digests, error);
    if (rc)
        goto out;
    heft_device_warmed(&warmer);
    enter_stage(load, HEFT_STAGE_MOVE);
    rc = move_bytes(load, &run, end_ns, error);
    if (rc)
        goto out;
    enter_stage(load, HEFT_STAGE_VERIFY);
    rc = check_files_unchanged(load, error);
    if (!rc)
        rc = heft_load_finish_checksums(load, &run.digests, end_ns, error);
    if (!rc && !load->stream)
        rc = make_model(load, &run, &model, error);
    if (!rc && load->options.to)
        rc = heft_landing_commit(model->parts[0].landing, error);
out:
    heft_checksums_stop(load->checksums); /* before the memory that it looks at is freed */
    if (rc == HEFT_ERR_DIGEST)
        heft_load_explain_digest(load, &run.digests, error);
    heft_device_warmed(&warmer);
    if (load->stream) {
        heft_stream_end(load->stream, rc, error);
        heft_stream_wait_released(load->stream); /* the window is the consumer's until then */
    }
    release_run(&run, rc ? NULL : model);
    if (rc) {
        if (!run.memory_busy) /* else lost, see release_run */
            (void)heft_model_free(model, NULL);
        model = NULL;
    }
    (void)pthread_mutex_lock(&load->lock);
    load->model = model;
    (void)pthread_mutex_unlock(&load->lock);
    return rc;
}

/* Frees what only the running load needed; the report that tells of it is made first. */
static void finish(struct heft_load *load, int rc, const struct heft_error *error)
{
    struct heft_found *found;
    struct heft_checksums *checksums;
    struct heft_agent *agent = NULL;

    enter_stage(load, HEFT_STAGE_DONE);
    (void)pthread_mutex_lock(&load->lock);
    load->ended_ns = heft_now_ns();
    load->status = rc;
    load->error = *error;
    load->error.code = rc;
    load->final_report = heft_report_make(load);
    found = load->found;
    load->found = NULL;
    checksums = load->checksums;
    load->checksums = NULL;
    (void)pthread_mutex_unlock(&load->lock);
    heft_checksums_free(checksums);
    heft_plan_free(load->plan);
    load->plan = NULL;
    heft_layout_free(load->layout);
    load->layout = NULL;
    heft_sources_free(found);
    if (load->own_agent && !load->fleet) {
        agent = load->agent;
        load->agent = NULL;
        if (heft_agent_close(agent, NULL))
            heft_log(HEFT_LOG_ERROR, "the load's agent is still in use at its end");
    }
    (void)pthread_mutex_lock(&load->lock);
    load->finished = 1;
    (void)pthread_cond_broadcast(&load->changed);
    (void)pthread_mutex_unlock(&load->lock);
}

static void *load_thread(void *argument)
{
    struct heft_load *load = argument;
    struct heft_error error = HEFT_ERROR_INIT;
    int rc = load_run(load, &error);

    finish(load, rc, &error);
    return NULL;
}

/* ---- the API ---- */

static int make_agent(struct heft_load *load, struct heft_error *error)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    char name[HEFT_NAME_MAX_BYTES + 1];
    int rc;

    load->agent = load->options.agent;
    if (load->agent)
        return HEFT_OK;
    options.max_host_bytes = load->options.max_host_bytes;
    if (in_fleet(load)) {
        heft_replica_default_name(name, sizeof(name));
        options.name = name;
        options.listen = "unix,127.0.0.1:0";
    }
    if (load->options.flags & HEFT_LOAD_STREAM && options.max_host_bytes)
        options.max_host_bytes =
            options.max_host_bytes - window_bytes(&load->options) > HEFT_LOAD_MIN_HOST_BYTES &&
                    options.max_host_bytes > window_bytes(&load->options)
                ? options.max_host_bytes - window_bytes(&load->options)
                : HEFT_LOAD_MIN_HOST_BYTES;
    rc = heft_agent_open(&options, &load->agent, error);
    load->own_agent = rc == HEFT_OK;
    return rc;
}

int heft_load_start(const struct heft_load_options *options, struct heft_load **load_out,
                    struct heft_error *error)
{
    struct heft_load *load = calloc(1, sizeof(*load));
    int rc;

    if (!load)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "starting a load");
    (void)pthread_mutex_init(&load->lock, NULL);
    (void)pthread_cond_init(&load->changed, NULL);
    load->started_ns = load->stage_began_ns = load->stage_start_ns[HEFT_STAGE_INIT] = heft_now_ns();
    rc = heft_load_copy_options(load, options, error);
    if (!rc)
        rc = make_agent(load, error);
    if (!rc) {
        rc = pthread_create(&load->thread, NULL, load_thread, load);
        if (rc)
            rc = heft_error_set_errno(error, rc, "starting the load's thread");
        else
            load->thread_started = 1;
    }
    if (rc) {
        load->finished = 1;
        heft_load_free(load);
        return rc;
    }
    *load_out = load;
    return HEFT_OK;
}

void heft_load_get_progress(struct heft_load *load, struct heft_load_progress *progress_out)
{
    struct heft_load_progress progress = {.size = progress_out->size};
    size_t size = progress_out->size < sizeof(progress) ? progress_out->size : sizeof(progress);
    uint32_t index;

    (void)pthread_mutex_lock(&load->lock);
    progress.stage = heft_stage_name(load->stage);
    progress.bytes_total = load->bytes_total;
    progress.bytes_done = load->executor ? heft_executor_bytes_done(load->executor) : load->bytes_done;
    progress.elapsed_ns = (load->ended_ns ? load->ended_ns : heft_now_ns()) - load->started_ns;
    if (load->executor && load->found) {
        progress.sources_active = heft_executor_sources_left(load->executor);
        progress.sources_lost = load->found->ready - progress.sources_active;
    } else if (load->found) {
        for (index = 0; index < load->found->count; index++)
            progress.sources_active += load->found->sources[index]->state == HEFT_SOURCE_READY;
    }
    (void)pthread_mutex_unlock(&load->lock);
    memcpy(progress_out, &progress, size);
}

int heft_load_wait(struct heft_load *load, uint64_t timeout_ms, struct heft_error *error)
{
    uint64_t until = heft_after_ms(heft_now_ns(), timeout_ms);
    struct timespec when = {(time_t)(until / HEFT_NS_PER_S), (long)(until % HEFT_NS_PER_S)};
    int rc = HEFT_ERR_AGAIN;

    (void)pthread_mutex_lock(&load->lock);
    while (!load->finished && heft_now_ns() < until)
        (void)pthread_cond_clockwait(&load->changed, &load->lock, CLOCK_MONOTONIC, &when);
    if (load->finished) {
        rc = load->status;
        if (rc && error)
            *error = load->error;
    }
    (void)pthread_mutex_unlock(&load->lock);
    return rc;
}

/* The stream, once the layout is known. AGAIN at until_ns; the load's error when there will be none. */
static int wait_stream(struct heft_load *load, uint64_t until, struct heft_stream **stream_out,
                       struct heft_error *error)
{
    struct timespec when = {(time_t)(until / HEFT_NS_PER_S), (long)(until % HEFT_NS_PER_S)};
    int rc = HEFT_OK;

    if (!(load->options.flags & HEFT_LOAD_STREAM))
        return heft_error_set(error, HEFT_ERR_STATE,
                              "the load makes a model: start it with HEFT_LOAD_STREAM");
    (void)pthread_mutex_lock(&load->lock);
    while (!load->stream && !load->finished && heft_now_ns() < until)
        (void)pthread_cond_clockwait(&load->changed, &load->lock, CLOCK_MONOTONIC, &when);
    *stream_out = load->stream;
    if (!load->stream) {
        rc = load->finished ? load->status : HEFT_ERR_AGAIN;
        if (load->finished && error)
            *error = load->error;
    }
    (void)pthread_mutex_unlock(&load->lock);
    return rc;
}

int heft_load_next(struct heft_load *load, uint64_t timeout_ms, struct heft_tensor *tensor_out,
                   struct heft_error *error)
{
    uint64_t until = heft_after_ms(heft_now_ns(), timeout_ms);
    struct heft_stream *stream = NULL;
    int rc = wait_stream(load, until, &stream, error);

    return rc ? rc : heft_stream_next(stream, until, tensor_out, error);
}

void heft_load_release(struct heft_load *load, const struct heft_tensor *tensor)
{
    struct heft_stream *stream = NULL;

    if (!wait_stream(load, 0, &stream, NULL))
        heft_stream_release(stream, tensor);
}

int heft_load_each(struct heft_load *load, int (*each)(void *context, const struct heft_tensor *tensor),
                   void *context, struct heft_error *error)
{
    struct heft_tensor tensor = {.size = sizeof(tensor)};
    int rc;

    for (;;) {
        rc = heft_load_next(load, 60000, &tensor, error);
        if (rc == HEFT_ERR_AGAIN)
            continue;
        if (rc)
            return rc == HEFT_ERR_NOT_FOUND && heft_load_wait(load, UINT64_MAX, error) == HEFT_OK ? HEFT_OK
                                                                                                  : rc;
        rc = each(context, &tensor);
        heft_load_release(load, &tensor);
        if (rc) {
            heft_load_cancel(load);
            return rc;
        }
    }
}

int heft_load_leave(struct heft_load *load, uint64_t timeout_ms)
{
    struct heft_fleet *fleet;

    (void)pthread_mutex_lock(&load->lock);
    fleet = load->finished ? load->fleet : NULL;
    (void)pthread_mutex_unlock(&load->lock);
    return fleet ? heft_fleet_leave(fleet, timeout_ms) : HEFT_OK;
}

void heft_load_cancel(struct heft_load *load)
{
    __atomic_store_n(&load->cancel_wanted, 1, __ATOMIC_RELEASE);
}

struct heft_model *heft_load_take_model(struct heft_load *load)
{
    struct heft_model *model;

    (void)pthread_mutex_lock(&load->lock);
    model = load->finished ? load->model : NULL;
    if (model)
        load->model = NULL;
    (void)pthread_mutex_unlock(&load->lock);
    return model;
}

char *heft_load_report(struct heft_load *load)
{
    struct json_t *report;
    char *text;

    (void)pthread_mutex_lock(&load->lock);
    report = load->final_report ? json_incref(load->final_report) : heft_report_make(load);
    text = heft_report_text(report);
    json_decref(report);
    (void)pthread_mutex_unlock(&load->lock);
    return text;
}

char *heft_load_trace(struct heft_load *load)
{
    char *text;

    (void)pthread_mutex_lock(&load->lock);
    text = load->trace && load->finished ? heft_trace_text(load) : NULL;
    (void)pthread_mutex_unlock(&load->lock);
    return text;
}

void heft_load_note_publish(struct heft_load *load, uint64_t took_ns)
{
    (void)pthread_mutex_lock(&load->lock);
    load->stage_ns[HEFT_STAGE_PUBLISH] = took_ns;
    load->stage_start_ns[HEFT_STAGE_PUBLISH] = heft_now_ns() - took_ns;
    if (load->final_report)
        (void)json_object_set_new(json_object_get(load->final_report, "stages"), "publish_s",
                                  json_real((double)took_ns / HEFT_NS_PER_S));
    (void)pthread_mutex_unlock(&load->lock);
}

void heft_load_free(struct heft_load *load)
{
    if (!load)
        return;
    heft_load_cancel(load);
    (void)pthread_mutex_lock(&load->lock);
    load->freed = 1;
    if (load->stream)
        heft_stream_close(load->stream);
    (void)pthread_mutex_unlock(&load->lock);
    if (load->thread_started)
        (void)pthread_join(load->thread, NULL);
    heft_stream_free(load->stream);
    if (heft_fleet_close(load->fleet) == HEFT_OK && load->fleet_model)
        (void)__atomic_sub_fetch(&load->fleet_model->users, 1, __ATOMIC_ACQ_REL);
    (void)heft_model_free(load->model, NULL);
    if (load->own_agent && load->agent)
        (void)heft_agent_close(load->agent, NULL);
    json_decref(load->final_report);
    heft_trace_free(load->trace);
    free(load->copies);
    (void)pthread_mutex_destroy(&load->lock);
    (void)pthread_cond_destroy(&load->changed);
    free(load);
}

int heft_load_model(const struct heft_load_options *options, struct heft_model **model_out,
                    struct heft_error *error)
{
    struct heft_load *load;
    int rc = heft_load_start(options, &load, error);

    if (rc)
        return rc;
    while ((rc = heft_load_wait(load, 60000, error)) == HEFT_ERR_AGAIN)
        continue;
    if (!rc) {
        *model_out = heft_load_take_model(load);
        (void)heft_load_leave(load, FLEET_LINGER_MS);
    }
    heft_load_free(load);
    return rc;
}
