/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.safetensors.index.json: which shard holds which tensor. It comes with the model, so it is hostile
 * input: bounded, no key twice (readers differ in which one counts), no path that leaves the folder.
 */
#include "format/modeldir.h"
#include "base/error.h"
#include "format/manifest_arena.h"
#include "format/manifest_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct state {
    struct heft_format_arena arena;
    struct heft_map shard_numbers;
};

struct entry {
    const char *name;
    uint32_t name_bytes;
    uint32_t shard;
};

static int no_memory(struct heft_error *error)
{
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while reading the shard index");
}

void heft_index_free(struct heft_shard_index *index)
{
    struct state *state;

    if (!index)
        return;
    state = index->arena;
    heft_map_free(&state->shard_numbers);
    heft_format_arena_free(&state->arena);
    free(state);
    free(index);
}

static int compare_texts(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static int compare_entries(const void *left, const void *right)
{
    const struct entry *l = left, *r = right;

    if (l->shard != r->shard)
        return l->shard < r->shard ? -1 : 1;
    return strcmp(l->name, r->name);
}

/* Collects the shards' names, each once, checks them, and sorts them. */
static int read_shards(struct heft_shard_index *index, json_t *weight_map, struct heft_error *error)
{
    struct state *state = index->arena;
    struct heft_quote quote;
    const char *tensor, *shard;
    uint64_t known;
    json_t *value;
    uint32_t number;
    int rc;

    index->shards =
        heft_format_arena_array(&state->arena, json_object_size(weight_map) + 1, sizeof(*index->shards));
    if (!index->shards)
        return no_memory(error);
    json_object_foreach(weight_map, tensor, value)
    {
        shard = json_string_value(value);
        if (!shard)
            return heft_error_set(error, HEFT_ERR_INDEX_JSON, "the shard index gives tensor %s no file name",
                                  heft_quote_text(&quote, tensor));
        if (heft_map_get(&state->shard_numbers, shard, json_string_length(value), &known))
            continue;
        rc = heft_path_check(shard, json_string_length(value), error);
        if (rc)
            return heft_error_prefix(error, rc, "shard index, tensor %s", heft_quote_text(&quote, tensor));
        index->shards[index->shard_count] =
            heft_format_arena_text(&state->arena, shard, json_string_length(value));
        if (!index->shards[index->shard_count] ||
            heft_map_put(&state->shard_numbers, index->shards[index->shard_count], json_string_length(value),
                         0, NULL, NULL))
            return no_memory(error);
        index->shard_count++;
    }
    qsort(index->shards, index->shard_count, sizeof(*index->shards), compare_texts);
    for (number = 0; number < index->shard_count; number++)
        if (heft_map_put(&state->shard_numbers, index->shards[number], strlen(index->shards[number]), number,
                         NULL, NULL))
            return no_memory(error);
    return HEFT_OK;
}

static int read_tensors(struct heft_shard_index *index, json_t *weight_map, struct heft_error *error)
{
    struct state *state = index->arena;
    size_t count = json_object_size(weight_map), at = 0;
    struct entry *entries = malloc((count + 1) * sizeof(*entries));
    const char *tensor;
    uint64_t shard = 0;
    json_t *value;
    int rc = HEFT_ERR_NO_MEMORY;

    index->tensor_names = heft_format_arena_array(&state->arena, count + 1, sizeof(*index->tensor_names));
    index->tensor_name_bytes =
        heft_format_arena_array(&state->arena, count + 1, sizeof(*index->tensor_name_bytes));
    index->tensor_shards = heft_format_arena_array(&state->arena, count + 1, sizeof(*index->tensor_shards));
    if (!entries || !index->tensor_names || !index->tensor_name_bytes || !index->tensor_shards)
        goto done;
    json_object_foreach(weight_map, tensor, value)
    {
        if (at == count ||
            !heft_map_get(&state->shard_numbers, json_string_value(value), json_string_length(value), &shard))
            break;
        entries[at++] = (struct entry){tensor, (uint32_t)strlen(tensor), (uint32_t)shard};
    }
    qsort(entries, at, sizeof(*entries), compare_entries);
    for (index->tensor_count = 0; index->tensor_count < at; index->tensor_count++) {
        const struct entry *entry = &entries[index->tensor_count];
        char *copy = heft_format_arena_text(&state->arena, entry->name, entry->name_bytes);

        if (!copy)
            goto done;
        index->tensor_names[index->tensor_count] = copy;
        index->tensor_name_bytes[index->tensor_count] = entry->name_bytes;
        index->tensor_shards[index->tensor_count] = entry->shard;
    }
    rc = HEFT_OK;
done:
    free(entries);
    return rc ? no_memory(error) : HEFT_OK;
}

static int read_index(struct heft_shard_index *index, json_t *root, struct heft_error *error)
{
    json_t *weight_map = json_object_get(root, "weight_map");
    double total = json_number_value(json_object_get(json_object_get(root, "metadata"), "total_size"));
    int rc;

    if (!json_is_object(weight_map))
        return heft_error_set(error, HEFT_ERR_INDEX_JSON,
                              "the shard index has no \"weight_map\" object; fetch the file again");
    if (json_object_size(weight_map) > HEFT_MANIFEST_MAX_TENSORS)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "the shard index names %zu tensors; the limit is %u",
                              json_object_size(weight_map), HEFT_MANIFEST_MAX_TENSORS);
    if (isfinite(total) && total > 0 && total < 0x1p63)
        index->total_size = (uint64_t)total;
    rc = read_shards(index, weight_map, error);
    return rc ? rc : read_tensors(index, weight_map, error);
}

int heft_index_parse(const void *json, size_t size, struct heft_shard_index **index_out,
                     struct heft_error *error)
{
    static const char pointer[] = "version https://git-lfs";
    struct heft_shard_index *index;
    struct state *state;
    json_error_t where;
    json_t *root;
    int rc;

    if (size > HEFT_INDEX_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE,
                              "the shard index has %zu bytes; the limit is %" PRIu64, size,
                              HEFT_INDEX_MAX_BYTES);
    if (size >= sizeof(pointer) - 1 && memcmp(json, pointer, sizeof(pointer) - 1) == 0)
        return heft_error_set(
            error, HEFT_ERR_LFS_POINTER,
            "a Git LFS pointer stands where the shard index should be; run \"git lfs pull\"");
    /* Numbers are hints only and some are larger than 63 bits: as reals they can't refuse an index. */
    root = json_loadb(json, size, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &where);
    if (!root && json_error_code(&where) == json_error_out_of_memory)
        return no_memory(error);
    if (!root)
        return heft_error_set(error, HEFT_ERR_INDEX_JSON, "the shard index is not valid JSON: line %d: %s",
                              where.line, where.text);
    index = calloc(1, sizeof(*index));
    state = calloc(1, sizeof(*state));
    if (!index || !state) {
        free(index);
        free(state);
        json_decref(root);
        return no_memory(error);
    }
    heft_map_init(&state->shard_numbers);
    index->arena = state;
    rc = read_index(index, root, error);
    json_decref(root);
    if (rc) {
        heft_index_free(index);
        return rc;
    }
    *index_out = index;
    return HEFT_OK;
}
