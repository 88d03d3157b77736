/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a load wants: the caller's targets, one rank's part by rules, rows or columns, or the whole model; and
 * what each entry of the layout becomes in the loaded model.
 */
#include "base/error.h"
#include "base/log.h"
#include "load/landing.h"
#include "load/load.h"
#include "load/open_list.h"
#include "plan/rules.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALIGN_BYTES 256u

/* A model has a tensor once, so that a load has one target for it. */
static int refuse_repeated(const struct heft_layout_tensor *wishes, uint64_t count,
                           const struct heft_manifest *reference, struct heft_error *error)
{
    uint8_t *seen = calloc(1, (size_t)(reference->tensor_count / 8 + 1));
    uint64_t index;
    int rc = HEFT_OK;

    if (!seen)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "laying out %" PRIu64 " targets", count);
    for (index = 0; index < count && !rc; index++) {
        uint64_t tensor = wishes[index].tensor;

        if (seen[tensor / 8] >> (tensor % 8) & 1)
            rc = heft_error_set(error, HEFT_ERR_INVALID,
                                "two targets name tensor %s: load it once and copy it",
                                reference->tensors[tensor].name);
        seen[tensor / 8] = (uint8_t)(seen[tensor / 8] | 1u << (tensor % 8));
    }
    free(seen);
    return rc;
}

static int layout_targets(struct heft_load *load, struct heft_range **ranges_out, uint32_t *part_count_out,
                          struct heft_error *error)
{
    const struct heft_load_options *o = &load->options;
    const struct heft_manifest *reference = load->found->reference;
    struct heft_layout_tensor *wishes = calloc(o->target_count ? o->target_count : 1, sizeof(*wishes));
    struct heft_range_piece *pieces = calloc(o->target_count ? o->target_count : 1, sizeof(*pieces));
    uint64_t index, count = 0;
    int rc = HEFT_OK;

    if (!wishes || !pieces) {
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "laying out %" PRIu64 " targets", o->target_count);
        goto out;
    }
    for (index = 0; index < o->target_count; index++)
        pieces[index] = (struct heft_range_piece){.address = o->targets[index].address,
                                                  .size_bytes = o->targets[index].size_bytes};
    rc = heft_ranges_make(pieces, o->target_count, ranges_out, &count, error);
    if (rc)
        goto out;
    for (index = 0; index < o->target_count; index++) {
        const struct heft_load_target *target = &o->targets[index];
        uint64_t tensor = heft_manifest_find(reference, target->tensor, strlen(target->tensor));

        if (tensor == UINT64_MAX) {
            rc = heft_error_set(error, HEFT_ERR_NOT_FOUND, "target %" PRIu64 ": the model has no tensor %s",
                                index, target->tensor);
            goto out;
        }
        wishes[index] = (struct heft_layout_tensor){
            .tensor = tensor,
            .start = target->box_start,
            .size = target->box_size,
            .size_bytes = target->size_bytes,
            .dst_index = pieces[index].range == UINT64_MAX ? 0 : (uint32_t)pieces[index].range,
            .dst_offset_bytes = pieces[index].offset_bytes,
        };
    }
    *part_count_out = count ? (uint32_t)count : 1;
    rc = refuse_repeated(wishes, o->target_count, reference, error);
    if (!rc)
        rc = heft_layout_custom(reference, wishes, o->target_count, &load->layout, error);
out:
    free(wishes);
    free(pieces);
    return rc;
}

/* ---- rules ---- */

int heft_load_wants_rules(const struct heft_load_options *o)
{
    return o->split == HEFT_LOAD_SPLIT_RULES || o->rules || o->layers_to || o->experts_to ||
           o->experts != HEFT_LOAD_EXPERTS_CUT || o->pipeline_ranks > 1;
}

static int read_rules_file(const char *path, char **text_out, size_t *size_out, struct heft_error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    int64_t got;
    char *text;

    if (fd < 0 || fstat(fd, &st) != 0) {
        int saved = errno;

        if (fd >= 0)
            (void)close(fd);
        return heft_error_set_errno(error, saved, "the rules %s", path);
    }
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > HEFT_RULES_MAX_BYTES) {
        (void)close(fd);
        return heft_error_set(error, HEFT_ERR_INVALID, "the rules %s: not a file of at most 1 MiB", path);
    }
    text = malloc((size_t)st.st_size + 1);
    got = text ? heft_read_at(fd, text, (uint64_t)st.st_size, 0) : -ENOMEM;
    (void)close(fd);
    if (got < 0) {
        free(text);
        return heft_error_set_errno(error, (int)-got, "the rules %s", path);
    }
    *text_out = text;
    *size_out = (size_t)got;
    return HEFT_OK;
}

static int open_rules(struct heft_load *load, struct heft_rules **rules_out, struct heft_error *error)
{
    const struct heft_load_options *o = &load->options;
    const struct heft_text_blob *config = &load->found->config;
    char *text = NULL;
    size_t size = 0;
    int rc = HEFT_OK;

    if (!config->data && !o->rules)
        return heft_error_set(error, HEFT_ERR_NOT_FOUND,
                              "the model has no config.json, which tells its architecture: name rules "
                              "(--rules FILE), or split by row or column");
    if (o->rules)
        rc = read_rules_file(o->rules, &text, &size, error);
    if (!rc)
        rc = heft_rules_open(text, size, o->rules, config->data, config->size, rules_out, error);
    free(text);
    return rc;
}

static int layout_by_rules(struct heft_load *load, const struct heft_rules *rules, struct heft_error *error)
{
    const struct heft_load_options *o = &load->options;
    struct heft_layout_wish wish = {
        .rank = o->rank,
        .ranks = o->ranks ? o->ranks : 1,
        .experts = o->experts == HEFT_LOAD_EXPERTS_SPREAD ? HEFT_EXPERTS_SPREAD : HEFT_EXPERTS_CUT,
        .experts_from = o->experts_from,
        .experts_to = o->experts_to,
        .layers_from = o->layers_from,
        .layers_to = o->layers_to,
    };
    uint64_t layers = heft_rules_layers(rules);

    (void)snprintf(load->rules_name, sizeof(load->rules_name), "%s", heft_rules_name(rules));
    if (o->pipeline_ranks > 1) {
        if (layers < o->pipeline_ranks)
            return heft_error_set(error, HEFT_ERR_INVALID,
                                  "%u pipeline stages: the model's config.json tells of %" PRIu64 " layers",
                                  o->pipeline_ranks, layers);
        wish.layers_from = layers * o->pipeline_rank / o->pipeline_ranks;
        /* What some models have behind their last layer is the last stage's. */
        wish.layers_to = o->pipeline_rank + 1 == o->pipeline_ranks
                             ? UINT64_MAX
                             : layers * (o->pipeline_rank + 1) / o->pipeline_ranks;
    }
    return heft_layout_rules(load->found->reference, rules, &wish, ALIGN_BYTES, &load->layout, error);
}

static int layout_split(struct heft_load *load, struct heft_error *error)
{
    const struct heft_load_options *o = &load->options;
    const struct heft_manifest *reference = load->found->reference;
    int must = heft_load_wants_rules(o);
    struct heft_rules *rules = NULL;
    int rc;

    if (must || (o->split == HEFT_LOAD_SPLIT_AUTO && o->ranks > 1 && load->found->config.data)) {
        rc = open_rules(load, &rules, error);
        if (!rc) {
            rc = layout_by_rules(load, rules, error);
            heft_rules_free(rules);
            return rc;
        }
        if (must || (rc != HEFT_ERR_NOT_FOUND && rc != HEFT_ERR_INVALID))
            return rc;
        heft_log(HEFT_LOG_WARN,
                 "%s; every rank takes whole tensors: name rules (--rules FILE), or split by row or column",
                 error->text);
        load->no_rules = *error;
        return heft_layout_whole(reference, ALIGN_BYTES, &load->layout, error);
    }
    if (o->ranks > 1)
        return heft_layout_rank(reference, o->rank, o->ranks,
                                o->split == HEFT_LOAD_SPLIT_COLUMN ? HEFT_SPLIT_COLUMN : HEFT_SPLIT_ROW,
                                ALIGN_BYTES, &load->layout, error);
    return heft_layout_whole(reference, ALIGN_BYTES, &load->layout, error);
}

int heft_load_make_layout(struct heft_load *load, struct heft_range **ranges_out, uint32_t *part_count_out,
                          struct heft_error *error)
{
    if (load->options.targets)
        return layout_targets(load, ranges_out, part_count_out, error);
    *part_count_out = 1;
    if (load->options.to)
        return heft_layout_whole(load->found->reference, heft_landing_align_bytes(), &load->layout, error);
    return layout_split(load, error);
}

/* ---- the loaded model ---- */

/*
 * The parts of a fused tensor follow each other in memory and are one tensor to those who use it. No box of
 * the global tensor describes them together: it has the rank's own shape.
 */
static int add_joined(struct heft_manifest *manifest, const struct heft_layout *layout, uint64_t index,
                      uint64_t count, struct heft_error *error)
{
    const struct heft_layout_tensor *first = &layout->tensors[index];
    struct heft_manifest_tensor tensor = layout->reference->tensors[first->tensor];
    uint32_t dim = first->joined_along;
    uint64_t *shape = malloc((tensor.rank + 1) * sizeof(*shape));
    uint64_t part, along = 0, outer = 0;
    int rc;

    if (!shape)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making the model");
    tensor.size_bytes = 0;
    memcpy(shape, first->size, tensor.rank * sizeof(*shape));
    for (part = 0; part < count; part++) {
        const struct heft_layout_tensor *entry = &layout->tensors[index + part];

        tensor.size_bytes += entry->size_bytes;
        if (dim == 0 || entry->start[0] == first->start[0])
            along += entry->size[dim];
        outer = dim == 0 ? 0 : entry->start[0] - first->start[0] + 1;
    }
    shape[dim] = along;
    if (dim > 0)
        shape[0] = outer;
    tensor.shape = shape;
    tensor.box_start = tensor.box_size = NULL;
    tensor.file = first->dst_index;
    tensor.offset_bytes = first->dst_offset_bytes;
    rc = heft_manifest_add_tensor(manifest, &tensor, error);
    free(shape);
    return rc;
}

int heft_load_add_tensor(struct heft_manifest *manifest, const struct heft_layout *layout, uint64_t index,
                         struct heft_error *error)
{
    const struct heft_layout_tensor *wanted = &layout->tensors[index];
    struct heft_manifest_tensor tensor = layout->reference->tensors[wanted->tensor];
    uint64_t count = 1;

    while (index + count < layout->tensor_count && layout->tensors[index + count].joined)
        count++;
    if (count > 1)
        return add_joined(manifest, layout, index, count, error);
    tensor.box_start = wanted->start;
    tensor.box_size = wanted->size;
    tensor.file = wanted->dst_index;
    tensor.offset_bytes = wanted->dst_offset_bytes;
    tensor.size_bytes = wanted->size_bytes;
    return heft_manifest_add_tensor(manifest, &tensor, error);
}
