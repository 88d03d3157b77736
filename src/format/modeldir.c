/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One manifest from the headers of a model's files. Where there is an index it is an allow-list: a shard may
 * hold more than the index assigns to it (stale copies of tensors that now live elsewhere), and those must
 * not count.
 */
#include "format/modeldir.h"
#include "base/error.h"
#include "format/manifest_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What the index assigns. */
struct assignment {
    const struct heft_shard_index *index;
    uint8_t *found;        /* one byte a tensor of the index */
    uint64_t first, end;   /* the tensors of the shard that is read now */
    uint64_t next;         /* which of them is probably the next one */
    struct heft_map names; /* theirs, once one was another */
};

static int no_memory(struct heft_error *error)
{
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while building a model's manifest");
}

static int open_assignment(struct assignment *assignment, const struct heft_shard_index *index,
                           struct heft_error *error)
{
    *assignment = (struct assignment){.index = index};
    heft_map_init(&assignment->names);
    if (!index)
        return HEFT_OK;
    assignment->found = calloc((size_t)index->tensor_count + 1, 1);
    return assignment->found ? HEFT_OK : no_memory(error);
}

static int is_at(const struct heft_shard_index *index, uint64_t at, const struct heft_st_tensor *tensor)
{
    return index->tensor_name_bytes[at] == tensor->name_bytes &&
           memcmp(index->tensor_names[at], tensor->name, tensor->name_bytes) == 0;
}

static const char *name_of(const void *context, size_t number, size_t *bytes_out)
{
    const struct assignment *assignment = context;

    *bytes_out = assignment->index->tensor_name_bytes[assignment->first + number];
    return assignment->index->tensor_names[assignment->first + number];
}

static int map_names(struct assignment *assignment, struct heft_error *error)
{
    uint64_t old;
    size_t number;

    if (assignment->names.count > 0 || assignment->first == assignment->end)
        return HEFT_OK;
    return heft_map_put_all(&assignment->names, (size_t)(assignment->end - assignment->first), name_of,
                            assignment, &number, &old)
               ? no_memory(error)
               : HEFT_OK;
}

static void enter_shard(struct assignment *assignment, const char *name)
{
    heft_map_free(&assignment->names);
    if (assignment->index)
        heft_index_shard(assignment->index, name, &assignment->first, &assignment->end);
    assignment->next = assignment->first;
}

/* Whether the index gives this tensor to this shard. Writers mostly put both in the same order. */
static int belongs(struct assignment *assignment, const struct heft_st_tensor *tensor, int *belongs_out,
                   struct heft_error *error)
{
    const struct heft_shard_index *index = assignment->index;
    uint64_t at = assignment->next;
    int rc;

    *belongs_out = 1;
    if (!index)
        return HEFT_OK;
    if (at == assignment->end || !is_at(index, at, tensor)) {
        rc = map_names(assignment, error);
        if (rc)
            return rc;
        *belongs_out = heft_map_get(&assignment->names, tensor->name, tensor->name_bytes, &at);
        at += assignment->first;
    }
    if (*belongs_out) {
        assignment->next = at + 1;
        assignment->found[at] = 1;
    }
    return HEFT_OK;
}

static int add_shard(struct heft_manifest *manifest, const struct heft_dir_shard *shard,
                     struct assignment *assignment, uint64_t *ignored, struct heft_error *error)
{
    uint64_t start = 8 + shard->header->header_bytes;
    struct heft_quote quote;
    uint32_t file;
    uint64_t at;
    int rc, is_wanted;

    enter_shard(assignment, shard->name);
    rc = heft_manifest_add_file(manifest, shard->name, shard->size_bytes, 0, &file, error);
    for (at = 0; !rc && at < shard->header->tensor_count; at++) {
        const struct heft_st_tensor *from = &shard->header->tensors[at];
        const struct heft_manifest_tensor tensor = {.name = from->name,
                                                    .name_bytes = from->name_bytes,
                                                    .rank = from->rank,
                                                    .dtype = from->dtype,
                                                    .dtype_bits = from->dtype_bits,
                                                    .file = file,
                                                    .shape = from->shape,
                                                    .offset_bytes = start + from->begin,
                                                    .size_bytes = from->end - from->begin};

        rc = belongs(assignment, from, &is_wanted, error);
        if (!rc && is_wanted)
            rc = heft_manifest_add_tensor(manifest, &tensor, error);
        *ignored += !rc && !is_wanted;
    }
    return rc ? heft_error_prefix(error, rc, "%s", heft_quote_text(&quote, shard->name)) : HEFT_OK;
}

/* As many as there can be at most. */
static int reserve(struct heft_manifest *manifest, const struct heft_dir_shard *shards, uint32_t shard_count,
                   const struct heft_shard_index *index, struct heft_error *error)
{
    uint64_t count = index ? index->tensor_count : 0;
    uint32_t number;

    for (number = 0; !index && number < shard_count; number++)
        count += shards[number].header->tensor_count;
    return heft_manifest_reserve(manifest, count, error);
}

/* Every tensor of the index must have been seen in its shard. */
static int check_found(const struct assignment *assignment, const struct heft_dir_shard *shards,
                       uint32_t shard_count, struct heft_error *error)
{
    const struct heft_shard_index *index = assignment->index;
    uint64_t at, missing = 0, first = 0;
    struct heft_quote name, shard, other;
    const char *elsewhere = NULL;
    uint32_t number;

    for (at = index ? index->tensor_count : 0; at-- > 0;) {
        if (!assignment->found[at]) {
            first = at;
            missing++;
        }
    }
    if (missing == 0)
        return HEFT_OK;
    for (number = 0; number < shard_count && !elsewhere; number++)
        for (at = 0; at < shards[number].header->tensor_count && !elsewhere; at++)
            if (shards[number].header->tensors[at].name_bytes == index->tensor_name_bytes[first] &&
                memcmp(shards[number].header->tensors[at].name, index->tensor_names[first],
                       index->tensor_name_bytes[first]) == 0)
                elsewhere = shards[number].name;
    return heft_error_set(
        error, HEFT_ERR_TENSOR_MISSING,
        "%" PRIu64 " tensors are not where the index says, first %s, which %s should hold%s%s; "
        "fetch the index and that shard again from one revision",
        missing, heft_quote_text(&name, index->tensor_names[first]),
        heft_quote_text(&shard, index->shards[index->tensor_shards[first]]), elsewhere ? " but lies in " : "",
        elsewhere ? heft_quote_text(&other, elsewhere) : "");
}

static int finish(struct heft_manifest *manifest, struct heft_error *error)
{
    struct heft_error why = HEFT_ERROR_INIT;
    int rc = heft_manifest_finish(manifest, &why);

    if (rc == HEFT_ERR_EXISTS)
        return heft_error_set(error, HEFT_ERR_DUPLICATE_TENSOR, "%s, and no index says which of them counts",
                              why.text);
    return rc ? heft_error_set(error, rc, "%s", why.text) : HEFT_OK;
}

int heft_dir_manifest(const struct heft_dir_shard *shards, uint32_t shard_count,
                      const struct heft_shard_index *index, const struct heft_identity *identity,
                      struct heft_manifest **manifest_out, uint64_t *ignored_out, struct heft_error *error)
{
    struct heft_manifest *manifest;
    struct assignment assignment;
    uint64_t ignored = 0;
    uint32_t number;
    int rc;

    rc = open_assignment(&assignment, index, error);
    if (rc)
        return rc;
    manifest = heft_manifest_new();
    if (!manifest) {
        rc = no_memory(error);
        goto done;
    }
    rc = heft_manifest_set_identity(manifest, identity, error);
    if (!rc)
        rc = reserve(manifest, shards, shard_count, index, error);
    for (number = 0; !rc && number < shard_count; number++)
        rc = add_shard(manifest, &shards[number], &assignment, &ignored, error);
    if (!rc)
        rc = check_found(&assignment, shards, shard_count, error);
    if (!rc)
        rc = finish(manifest, error);
    if (rc) {
        heft_manifest_free(manifest);
        goto done;
    }
    *manifest_out = manifest;
    if (ignored_out)
        *ignored_out = ignored;
done:
    heft_map_free(&assignment.names);
    free(assignment.found);
    return rc;
}

int heft_index_covered(const struct heft_shard_index *index, const struct heft_manifest *manifest,
                       struct heft_error *error)
{
    uint64_t at, missing = 0, first = 0;
    struct heft_quote name;

    for (at = index->tensor_count; at-- > 0;) {
        if (heft_manifest_find(manifest, index->tensor_names[at], index->tensor_name_bytes[at]) ==
            UINT64_MAX) {
            first = at;
            missing++;
        }
    }
    if (missing == 0)
        return HEFT_OK;
    return heft_error_set(error, HEFT_ERR_TENSOR_MISSING,
                          "the files that are there lack %" PRIu64 " of the %" PRIu64
                          " tensors that the index names, first %s",
                          missing, index->tensor_count, heft_quote_text(&name, index->tensor_names[first]));
}
