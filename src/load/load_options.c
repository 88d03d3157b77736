/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller asks of a load: copied, completed with defaults, refused where it contradicts itself. */
#include "base/error.h"
#include "load/load.h"
#include "space/cuda.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_DEADLINE_MS (10u * 60 * 1000)
#define DEFAULT_STALL_MS 10000u
#define DEFAULT_FLEET_WAIT_MS 5000u
#define DEVICE_CHUNK_BYTES ((uint64_t)16 << 20)

static char *copy_string(char **at, const char *text)
{
    char *made = *at;

    if (!text)
        return NULL;
    memcpy(made, text, strlen(text) + 1);
    *at += strlen(text) + 1;
    return made;
}

static size_t string_bytes(const char *text)
{
    return text ? strlen(text) + 1 : 0;
}

static int check_fleet(struct heft_load_options *o, struct heft_error *error)
{
    if (o->fleet_loads > HEFT_FLEET_MAX_LOADS)
        return heft_error_set(error, HEFT_ERR_INVALID, "%u loads of a fleet: %u at most share what they read",
                              o->fleet_loads, HEFT_FLEET_MAX_LOADS);
    if (!o->directory)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "the loads of a fleet find each other in a directory: name one");
    if (o->host_loads > 1 || o->flags & (HEFT_LOAD_STREAM | HEFT_LOAD_NO_VERIFY))
        return heft_error_set(
            error, HEFT_ERR_INVALID,
            "the loads of a fleet exchange verified blocks of whole models: leave host_loads, "
            "streaming and no-verify out");
    if (o->fleet_wait_ms == 0)
        o->fleet_wait_ms = DEFAULT_FLEET_WAIT_MS;
    return HEFT_OK;
}

static int check_files(const struct heft_load *load, struct heft_load_options *o, struct heft_error *error)
{
    if (o->to && !o->to[0])
        o->to = NULL;
    if (o->to)
        o->model_options.as_files = 1;
    if (o->model_options.as_files && (o->ranks > 1 || heft_load_wants_rules(o)))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "files are taken whole: leave ranks, layers and experts out");
    if (o->to && (o->targets || (o->flags & HEFT_LOAD_STREAM) || load->device >= 0))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "files land in a folder: leave targets, streams and devices out");
    return HEFT_OK;
}

int heft_load_copy_options(struct heft_load *load, const struct heft_load_options *given,
                           struct heft_error *error)
{
    struct heft_load_options *o = &load->options;
    struct heft_load_peer *peers;
    size_t bytes, size = given->size < sizeof(*o) ? given->size : sizeof(*o);
    uint32_t index;
    char *at;
    int rc;

    memcpy(o, given, size);
    if ((!o->model || !o->model[0]) && !o->identity)
        return heft_error_set(error, HEFT_ERR_INVALID, "no model is named");
    bytes = string_bytes(o->model) + string_bytes(o->source) + string_bytes(o->require) +
            string_bytes(o->self) + string_bytes(o->mirrors) + string_bytes(o->rules) +
            string_bytes(o->share_folder) + string_bytes(o->to) + string_bytes(o->model_options.revision) +
            string_bytes(o->model_options.cache) + o->peer_count * sizeof(*peers);
    for (index = 0; index < o->peer_count; index++)
        bytes += string_bytes(o->peers[index].addresses) + string_bytes(o->peers[index].name);
    load->copies = calloc(1, bytes);
    if (!load->copies)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "starting a load");
    peers = load->copies;
    at = (char *)load->copies + o->peer_count * sizeof(*peers);
    for (index = 0; index < o->peer_count; index++) {
        peers[index] = o->peers[index];
        peers[index].addresses = copy_string(&at, o->peers[index].addresses);
        peers[index].name = copy_string(&at, o->peers[index].name);
    }
    o->peers = peers;
    o->model = copy_string(&at, o->model);
    o->source = copy_string(&at, o->source);
    o->require = copy_string(&at, o->require);
    o->self = copy_string(&at, o->self);
    o->rules = copy_string(&at, o->rules);
    o->share_folder = copy_string(&at, o->share_folder);
    o->mirrors = copy_string(&at, o->mirrors);
    o->to = copy_string(&at, o->to);
    o->model_options.revision = copy_string(&at, o->model_options.revision);
    o->model_options.cache = copy_string(&at, o->model_options.cache);
    if (o->require && !o->require[0])
        o->require = NULL;
    load->device = -1;
    if (o->device && o->device[0] && strcmp(o->device, "host") != 0) {
        rc = heft_cuda_parse_device(o->device, &load->device, error);
        if (rc)
            return heft_error_prefix(error, rc, "device %s", o->device);
        if (o->targets)
            return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                                  "targets are host memory: leave them out with device %s", o->device);
        if (o->chunk_bytes == 0)
            o->chunk_bytes = DEVICE_CHUNK_BYTES;
    }
    o->device = NULL; /* not copied */
    if (o->deadline_ms == 0)
        o->deadline_ms = DEFAULT_DEADLINE_MS;
    if (o->stall_ms == 0)
        o->stall_ms = DEFAULT_STALL_MS;
    if (o->max_host_bytes && o->max_host_bytes < HEFT_LOAD_MIN_HOST_BYTES)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "max_host_bytes is %" PRIu64 ": at least %" PRIu64 " (16M) is needed",
                              o->max_host_bytes, HEFT_LOAD_MIN_HOST_BYTES);
    if (o->rank >= (o->ranks ? o->ranks : 1))
        return heft_error_set(error, HEFT_ERR_INVALID, "rank %u of %u does not exist: ranks count from 0",
                              o->rank, o->ranks ? o->ranks : 1);
    if (o->targets && (o->ranks > 1 || heft_load_wants_rules(o)))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "targets name their boxes themselves: leave ranks, layers and experts out");
    if ((o->flags & HEFT_LOAD_STREAM) && !o->targets && o->host_loads > 1)
        return heft_error_set(
            error, HEFT_ERR_INVALID,
            "tensors as they come through a window wait for this load's own consumer, and the "
            "other loads of the host with it: name targets, or leave host_loads out");
    rc = check_files(load, o, error);
    if (!rc && o->fleet_loads > 1)
        rc = check_fleet(o, error);
    if (rc)
        return rc;
    if (o->order && !(o->flags & HEFT_LOAD_STREAM))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "an order is for tensors as they come (HEFT_LOAD_STREAM)");
    if (o->host_loads > HEFT_SHARE_MAX_LOADS)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "%u loads of one host: %u at most share what they read", o->host_loads,
                              HEFT_SHARE_MAX_LOADS);
    if (o->rules && !o->rules[0])
        o->rules = NULL;
    if (o->pipeline_rank >= (o->pipeline_ranks ? o->pipeline_ranks : 1))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "pipeline stage %u of %u does not exist: they count from 0", o->pipeline_rank,
                              o->pipeline_ranks ? o->pipeline_ranks : 1);
    if (o->pipeline_ranks > 1 && o->layers_to)
        return heft_error_set(error, HEFT_ERR_INVALID, "name a pipeline stage, or layers, not both");
    return HEFT_OK;
}
