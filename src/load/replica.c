/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A replica: regions over the tensors' memory, a manifest that names them, and a record in a directory whose
 * lease a thread of ours renews (an integration that forgets to renew, or blocks, must not make a good source
 * vanish). The replica serves whether or not the directory can be reached.
 */
#include "agent/peer.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "format/safetensors.h"
#include "load/device.h"
#include "load/directory.h"
#include "load/keeper.h"
#include "load/loaded.h"
#include "load/ranges.h"
#include "load/withdraw.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct heft_replica {
    char name[HEFT_NAME_MAX_BYTES + 1];
    struct heft_agent *agent;
    int own_agent;
    struct heft_model *model; /* NULL: the caller's tensors */
    struct heft_manifest *manifest;
    struct heft_region **regions;
    uint32_t region_count;
    struct heft_directory *directory;
    struct heft_record record;
    uint32_t lease_ms;
    int document_set;
    struct heft_keeper keeper;
    int is_kept;
};

/* ---- the table of tensors ---- */

/* Row-major over the held box, the only layout that moves as one range. */
static int check_strides(const struct heft_held_tensor *tensor, struct heft_error *error)
{
    const uint64_t *shape = tensor->box_size ? tensor->box_size : tensor->shape;
    uint64_t expected = 1;
    uint32_t dim;

    for (dim = 0; dim < tensor->rank; dim++)
        if (shape[dim] == 0)
            return HEFT_OK; /* no bytes, whatever the strides of frameworks say about them */
    for (dim = tensor->rank; tensor->strides && dim > 0; dim--) {
        if (shape[dim - 1] != 1 && tensor->strides[dim - 1] != (int64_t)expected)
            return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                                  "tensor %s is not row-major: stride %" PRId64
                                  " at dimension %u where %" PRIu64
                                  " is expected; make it contiguous, or publish it as contiguous parts",
                                  tensor->name, tensor->strides[dim - 1], dim - 1, expected);
        if (__builtin_mul_overflow(expected, shape[dim - 1], &expected))
            return heft_error_set(error, HEFT_ERR_SHAPE_OVERFLOW, "tensor %s: its size overflows",
                                  tensor->name);
    }
    return HEFT_OK;
}

static int held_bytes(const struct heft_held_tensor *tensor, uint32_t bits, uint64_t *bytes_out,
                      struct heft_error *error)
{
    const uint64_t *shape = tensor->box_size ? tensor->box_size : tensor->shape;
    uint64_t total = bits;
    uint32_t dim;

    if (bits == 0)
        return heft_error_set(error, HEFT_ERR_DTYPE,
                              "tensor %s: dtype %s is not known, so its size isn't either", tensor->name,
                              tensor->dtype);
    for (dim = 0; dim < tensor->rank; dim++)
        if (__builtin_mul_overflow(total, shape[dim], &total))
            return heft_error_set(error, HEFT_ERR_SHAPE_OVERFLOW, "tensor %s: its size overflows",
                                  tensor->name);
    if (total % 8)
        return heft_error_set(error, HEFT_ERR_MISALIGNED, "tensor %s does not end on a byte", tensor->name);
    *bytes_out = total / 8;
    return HEFT_OK;
}

static int add_held(struct heft_replica *replica, const struct heft_held_tensor *held,
                    const struct heft_range_piece *piece, struct heft_error *error)
{
    struct heft_manifest_tensor tensor = {
        .name = held->name,
        .name_bytes = (uint32_t)strlen(held->name),
        .rank = held->rank,
        .dtype = held->dtype,
        .dtype_bits = heft_dtype_bits(held->dtype, strlen(held->dtype)),
        .file = piece->range == UINT64_MAX ? 0 : (uint32_t)piece->range,
        .shape = held->shape,
        .box_start = held->box_start,
        .box_size = held->box_size,
        .offset_bytes = piece->offset_bytes,
        .size_bytes = piece->size_bytes,
    };

    return heft_manifest_add_tensor(replica->manifest, &tensor, error);
}

static int register_range(struct heft_replica *replica, enum heft_space space, struct heft_memory *memory,
                          uint8_t *address, uint64_t size_bytes, struct heft_error *error)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_region *region;
    int rc;

    options.flags = HEFT_REGION_REMOTE_READ;
    options.space = space;
    options.memory = memory;
    options.address = address;
    options.length_bytes = size_bytes;
    rc = heft_region_register(replica->agent, &options, &region, error);
    if (rc)
        return heft_error_prefix(error, rc, "registering %" PRIu64 " bytes to serve", size_bytes);
    replica->regions[replica->region_count++] = region;
    return heft_manifest_add_file(replica->manifest, "", size_bytes, heft_region_id(region), NULL, error);
}

static int hold_tensors(struct heft_replica *replica, const struct heft_replica_options *options,
                        struct heft_error *error)
{
    uint64_t count = options->tensor_count, index, range_count = 0;
    struct heft_range_piece *pieces = calloc(count ? count : 1, sizeof(*pieces));
    struct heft_range *ranges = NULL;
    int rc = HEFT_OK;

    if (!pieces)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "describing %" PRIu64 " tensors", count);
    for (index = 0; index < count && !rc; index++) {
        const struct heft_held_tensor *tensor = &options->tensors[index];

        rc = check_strides(tensor, error);
        if (!rc)
            rc = held_bytes(tensor, heft_dtype_bits(tensor->dtype, strlen(tensor->dtype)),
                            &pieces[index].size_bytes, error);
        pieces[index].address = tensor->address;
    }
    if (!rc)
        rc = heft_ranges_make(pieces, count, &ranges, &range_count, error);
    if (!rc) {
        replica->regions = calloc(range_count + 1, sizeof(*replica->regions));
        if (!replica->regions)
            rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "registering %" PRIu64 " ranges", range_count);
    }
    for (index = 0; index < range_count && !rc; index++)
        rc = register_range(replica, HEFT_SPACE_HOST, NULL, ranges[index].address, ranges[index].size_bytes,
                            error);
    if (!rc && range_count == 0)
        rc = heft_manifest_add_file(replica->manifest, "", 0, 0, NULL,
                                    error); /* empty tensors lie somewhere too */
    for (index = 0; index < count && !rc; index++)
        rc = add_held(replica, &options->tensors[index], &pieces[index], error);
    free(ranges);
    free(pieces);
    return rc;
}

static int hold_model(struct heft_replica *replica, struct heft_error *error)
{
    const struct heft_model *model = replica->model;
    uint64_t index;
    uint32_t part;
    int rc = HEFT_OK;

    replica->regions = calloc(model->part_count + 1, sizeof(*replica->regions));
    if (!replica->regions)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "registering the model");
    for (part = 0; part < model->part_count && !rc; part++)
        rc = register_range(replica, model->device >= 0 ? HEFT_SPACE_CUDA : HEFT_SPACE_HOST,
                            model->parts[part].memory, model->parts[part].address,
                            model->parts[part].size_bytes, error);
    for (index = 0; index < model->manifest->tensor_count && !rc; index++)
        rc = heft_manifest_add_tensor(replica->manifest, &model->manifest->tensors[index], error);
    return rc;
}

/* The model's identity with the fields that the caller set in their place. */
static int set_identity(struct heft_replica *replica, const struct heft_model_identity *given,
                        struct heft_error *error)
{
    struct heft_identity_pair pairs[HEFT_IDENTITY_MAX_PAIRS];
    struct heft_identity identity = {.model = "", .revision = "", .stage = "raw", .engine = "", .rank = ""};
    uint32_t index;

    if (replica->model)
        identity = replica->model->manifest->identity;
    if (given->model)
        identity.model = given->model;
    if (given->revision)
        identity.revision = given->revision;
    if (given->stage)
        identity.stage = given->stage;
    if (given->engine)
        identity.engine = given->engine;
    if (given->rank)
        identity.rank = given->rank;
    if (given->pair_count > HEFT_IDENTITY_MAX_PAIRS)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "an identity has at most %u pairs, not %u",
                              HEFT_IDENTITY_MAX_PAIRS, given->pair_count);
    for (index = 0; index < given->pair_count; index++)
        pairs[index] = (struct heft_identity_pair){given->keys[index], given->values[index]};
    if (given->pair_count > 0) {
        identity.pairs = pairs;
        identity.pair_count = given->pair_count;
    }
    if (!identity.model[0] || !identity.revision[0])
        return heft_error_set(
            error, HEFT_ERR_INVALID,
            "a replica needs a model and an immutable revision in its identity: without them nobody could "
            "know which bytes it holds");
    return heft_manifest_set_identity(replica->manifest, &identity, error);
}

static int copy_or_make_digests(struct heft_replica *replica, const struct heft_replica_options *options,
                                struct heft_error *error)
{
    struct heft_manifest *manifest = replica->manifest;
    const struct heft_manifest *known = replica->model ? replica->model->manifest : NULL;
    const uint8_t **addresses;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t index;
    int rc;

    if (known && known->digests) {
        rc = heft_manifest_want_digests(manifest, error);
        for (index = 0; index < manifest->tensor_count && !rc; index++) {
            const struct heft_manifest_tensor *tensor = &manifest->tensors[index];
            uint64_t at = heft_manifest_find_near(known, index, tensor->name, tensor->name_bytes);

            HEFT_ASSERT(at != UINT64_MAX);
            memcpy(manifest->digests + tensor->first_block, known->digests + known->tensors[at].first_block,
                   heft_block_count(tensor->size_bytes) * sizeof(uint64_t));
        }
        return rc;
    }
    if (options->no_digests)
        return HEFT_OK;
    addresses = calloc(manifest->tensor_count ? manifest->tensor_count : 1, sizeof(*addresses));
    if (!addresses)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making digests");
    for (index = 0; index < options->tensor_count && !replica->model; index++) {
        const struct heft_held_tensor *held = &options->tensors[index];

        addresses[heft_manifest_find(manifest, held->name, strlen(held->name))] = held->address;
    }
    for (index = 0; index < manifest->tensor_count && replica->model; index++) {
        const struct heft_manifest_tensor *tensor = &manifest->tensors[index];

        addresses[index] = heft_model_address(replica->model, tensor);
    }
    if (replica->model && replica->model->device >= 0)
        rc = heft_device_digest_tensors(manifest, addresses, replica->model->device, error);
    else
        rc = heft_digest_tensors(manifest, addresses, cores > 8 ? 8 : cores > 0 ? (uint32_t)cores : 1, error);
    free(addresses);
    return rc;
}

static int publish_manifest(struct heft_replica *replica, struct heft_error *error)
{
    struct heft_buf buf;
    int rc;

    /* An agent has one name, one generation, one manifest: a second replica would take the first one's place.
     */
    if (heft_document_exists(replica->agent, "manifest"))
        return heft_error_set(error, HEFT_ERR_EXISTS,
                              "agent %s serves a replica already: give each replica its own agent",
                              replica->name);
    heft_buf_init(&buf, HEFT_MANIFEST_MAX_BYTES);
    rc = heft_manifest_encode(replica->manifest, &buf);
    if (!rc)
        rc = heft_agent_set_document(replica->agent, "manifest", buf.data, buf.size, error);
    else
        (void)heft_error_set(error, rc, "encoding the manifest of %s", replica->name);
    replica->document_set = !rc;
    heft_buf_free(&buf);
    /* Whoever loads a part of the model from here needs the numbers of its config.json. */
    if (!rc && replica->model && replica->model->config.data)
        rc = heft_agent_set_document(replica->agent, "config", replica->model->config.data,
                                     replica->model->config.size, error);
    return rc;
}

/* ---- the record and its lease ---- */

/* What the tensors take when each is held whole; 0 when one's size is not known. */
static uint64_t whole_bytes(const struct heft_manifest *manifest)
{
    uint64_t index, total = 0;

    for (index = 0; index < manifest->tensor_count; index++) {
        const struct heft_manifest_tensor *tensor = &manifest->tensors[index];
        uint64_t bits = tensor->dtype_bits;
        uint32_t dim;

        if (!tensor->box_size) {
            total += tensor->size_bytes;
            continue;
        }
        for (dim = 0; dim < tensor->rank; dim++)
            if (__builtin_mul_overflow(bits, tensor->shape[dim], &bits))
                return 0;
        if (!tensor->dtype_bits)
            return 0;
        total += (bits + 7) / 8;
    }
    return total;
}

static int make_record(struct heft_replica *replica, struct heft_error *error)
{
    struct heft_record *record = &replica->record;
    const struct heft_manifest *manifest = replica->manifest;
    char addresses[HEFT_RECORD_MAX_ADDRESSES_BYTES];
    int rc = heft_agent_addresses(replica->agent, addresses, sizeof(addresses));

    if (rc)
        return heft_error_set(error, rc, "the replica's addresses do not fit a record");
    if (!addresses[0])
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "the replica's agent does not listen: nobody could reach it");
    record->name = strdup(replica->name);
    record->addresses = strdup(addresses);
    if (!record->name || !record->addresses || heft_record_set_identity(record, &manifest->identity))
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making the replica's record");
    record->generation = heft_agent_generation(replica->agent);
    record->token = heft_agent_token(replica->agent);
    record->table_digest = heft_manifest_table_digest(manifest);
    record->content_digest = heft_manifest_content_digest(manifest);
    record->tensor_count = manifest->tensor_count;
    record->total_bytes = manifest->total_bytes;
    record->whole_bytes = whole_bytes(manifest);
    record->part = strdup(replica->model ? replica->model->part : "");
    record->block_count = record->held_blocks = manifest->block_count;
    record->lease_ms = replica->lease_ms;
    return HEFT_OK;
}

static int start_publishing(struct heft_replica *replica, struct heft_error *error)
{
    struct heft_keeper_options options = {
        .directory = replica->directory, .record = &replica->record, .what = "replica"};
    int rc = make_record(replica, error);

    if (rc || !replica->directory)
        return rc;
    rc = heft_keeper_start(&replica->keeper, &options, error);
    replica->is_kept = !rc;
    return rc;
}

/* ---- open and close ---- */

void heft_replica_default_name(char *name_out, size_t size_bytes)
{
    char host[64] = "replica";
    uint16_t salt;

    heft_random_bytes(&salt, sizeof(salt));
    (void)gethostname(host, sizeof(host) - 1);
    (void)snprintf(name_out, size_bytes, "%s-%d-%04x", host, (int)getpid(), salt);
}

static int take_agent(struct heft_replica *replica, const struct heft_replica_options *options,
                      struct heft_error *error)
{
    struct heft_agent_options agent = HEFT_AGENT_OPTIONS_INIT;
    int rc;

    if (options->agent) {
        /* Peers check the agent's name in the handshake: a record under another name could never be used. */
        if (options->name && strcmp(options->name, heft_agent_name(options->agent)) != 0)
            return heft_error_set(error, HEFT_ERR_INVALID, "the replica's name %s is not its agent's name %s",
                                  options->name, heft_agent_name(options->agent));
        replica->agent = options->agent;
        (void)snprintf(replica->name, sizeof(replica->name), "%s", heft_agent_name(options->agent));
        return HEFT_OK;
    }
    if (options->name)
        (void)snprintf(replica->name, sizeof(replica->name), "%s", options->name);
    else
        heft_replica_default_name(replica->name, sizeof(replica->name));
    if (heft_record_name_is_agent(replica->name) || heft_record_name_is_load(replica->name))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "a replica's name can't begin with '" HEFT_RECORD_AGENTS
                              "' or '" HEFT_RECORD_LOADS "': records of agents and loads do");
    agent.name = replica->name;
    agent.listen = options->listen ? options->listen : "unix,127.0.0.1:0";
    rc = heft_agent_open(&agent, &replica->agent, error);
    replica->own_agent = rc == HEFT_OK;
    return rc;
}

int heft_replica_publish(const struct heft_replica_options *options, struct heft_replica **replica_out,
                         struct heft_error *error)
{
    struct heft_replica *replica = calloc(1, sizeof(*replica));
    struct heft_error local = HEFT_ERROR_INIT;
    int rc;

    if (!error)
        error = &local;
    if (!replica)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making a replica");
    replica->lease_ms = options->lease_ms ? options->lease_ms : HEFT_KEEPER_LEASE_MS;
    replica->directory = options->directory;
    rc = HEFT_OK;
    if ((options->model != NULL) == (options->tensors != NULL))
        rc = heft_error_set(error, HEFT_ERR_INVALID, "a replica serves either a model or a table of tensors");
    else if (replica->lease_ms < HEFT_KEEPER_LEASE_MIN_MS)
        rc = heft_error_set(error, HEFT_ERR_INVALID, "a lease of %u ms is too short: at least %u",
                            replica->lease_ms, HEFT_KEEPER_LEASE_MIN_MS);
    if (!rc)
        rc = take_agent(replica, options, error);
    if (!rc) {
        replica->manifest = heft_manifest_new();
        rc = replica->manifest ? HEFT_OK : heft_error_set(error, HEFT_ERR_NO_MEMORY, "making a replica");
    }
    if (!rc && options->model) {
        replica->model = options->model;
        (void)__atomic_add_fetch(&replica->model->users, 1, __ATOMIC_ACQ_REL);
    }
    if (!rc)
        rc = set_identity(replica, &options->identity, error);
    if (!rc)
        rc = replica->model ? hold_model(replica, error) : hold_tensors(replica, options, error);
    if (!rc)
        rc = heft_manifest_finish(replica->manifest, error);
    if (!rc)
        rc = copy_or_make_digests(replica, options, error);
    if (!rc)
        rc = publish_manifest(replica, error);
    if (!rc)
        rc = start_publishing(replica, error);
    if (rc) {
        heft_replica_close(replica);
        return rc;
    }
    *replica_out = replica;
    return HEFT_OK;
}

void heft_replica_close(struct heft_replica *replica)
{
    int rc = HEFT_OK;

    if (!replica)
        return;
    if (replica->is_kept)
        heft_keeper_stop(&replica->keeper);
    if (replica->own_agent) {
        rc = heft_agent_close(replica->agent, NULL);
        if (rc)
            heft_log(HEFT_LOG_ERROR, "replica %s: its agent is still in use", replica->name);
    } else if (replica->agent) {
        if (replica->document_set)
            (void)heft_agent_set_document(replica->agent, "manifest", NULL, 0, NULL);
        if (replica->document_set && heft_document_exists(replica->agent, "config"))
            (void)heft_agent_set_document(replica->agent, "config", NULL, 0, NULL);
        rc = heft_withdraw_regions(replica->agent, replica->name, replica->regions, replica->region_count);
    }
    if (replica->model &&
        !rc) /* else the model stays BUSY: better lost memory than a read of someone else's */
        (void)__atomic_sub_fetch(&replica->model->users, 1, __ATOMIC_ACQ_REL);
    heft_record_free(&replica->record);
    heft_manifest_free(replica->manifest);
    free(replica->regions);
    free(replica);
}

void heft_replica_get_status(struct heft_replica *replica, struct heft_replica_status *status_out)
{
    struct heft_agent_stats stats = {.size = sizeof(stats)};
    struct heft_replica_status status = {0};
    size_t size = status_out->size < sizeof(status) ? status_out->size : sizeof(status);
    struct heft_keeper_status kept = {0};

    heft_agent_get_stats(replica->agent, &stats);
    if (replica->is_kept)
        heft_keeper_get_status(&replica->keeper, &kept);
    status.size = size;
    status.published = kept.published;
    status.renewals = kept.renewals;
    status.republished = kept.republished;
    status.lease_left_ms = kept.lease_left_ms;
    status.last_error = kept.last_error;
    status.bytes_served = stats.bytes_served;
    status.readers = stats.peers_accepted;
    memcpy(status_out, &status, size);
}

struct heft_agent *heft_replica_agent(struct heft_replica *replica)
{
    return replica->agent;
}

const char *heft_replica_name(const struct heft_replica *replica)
{
    return replica->name;
}
