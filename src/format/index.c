/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.safetensors.index.json: which shard holds which tensor. It comes with the model, so it is hostile
 * input: bounded, no key twice (readers differ in which one counts), no path that leaves the folder. Read in
 * one pass, since large indexes have as many bytes as all headers together.
 */
#include "format/modeldir.h"
#include "base/error.h"
#include "format/json_scan.h"
#include "format/manifest_arena.h"
#include "format/manifest_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    char *name;
    uint32_t name_bytes;
    uint32_t shard;
};

struct state {
    struct heft_format_arena arena;
    struct heft_map shard_numbers; /* shard -> its number */
};

struct reader {
    struct heft_json_scan scan;
    struct heft_shard_index *index;
    struct state *state;
    struct entry *entries; /* in the order of the file */
    uint64_t capacity;
    uint32_t shard_capacity;
    char **shards; /* in the order of their first tensors */
    uint64_t last_shard;
    int has_map;
    int unordered; /* names that don't rise: only among them one can stand twice */
    struct heft_error *error;
};

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

/* The first tensor of that shard or a later one. */
static uint64_t first_of(const struct heft_shard_index *index, uint32_t shard)
{
    uint64_t low = 0, high = index->tensor_count;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (index->tensor_shards[middle] < shard)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int compare_shard(const void *name, const void *shard)
{
    return strcmp(name, *(char *const *)shard);
}

void heft_index_shard(const struct heft_shard_index *index, const char *shard, uint64_t *first_out,
                      uint64_t *end_out)
{
    char *const *found = NULL;

    *first_out = *end_out = 0;
    if (index->shard_count > 0)
        found = bsearch(shard, index->shards, index->shard_count, sizeof(*index->shards), compare_shard);
    if (!found)
        return;
    *first_out = first_of(index, (uint32_t)(found - index->shards));
    *end_out = first_of(index, (uint32_t)(found - index->shards) + 1);
}

/* ---- refusals ---- */

static int no_memory(struct reader *reader)
{
    return heft_error_set(reader->error, HEFT_ERR_NO_MEMORY, "out of memory while reading the shard index");
}

static int refuse(struct reader *reader, const char *what)
{
    const uint8_t *at;
    unsigned long long line = 1;

    for (at = reader->scan.start; at < reader->scan.at; at++)
        line += *at == '\n';
    return heft_error_set(reader->error, HEFT_ERR_INDEX_JSON,
                          "the shard index, line %llu: %s; fetch the file again", line, what);
}

static int refuse_json(struct reader *reader)
{
    return refuse(reader, reader->scan.at == reader->scan.end ? "it ends too early" : reader->scan.reason);
}

/* ---- the map ---- */

static char *copy_text(struct state *state, const struct heft_json_text *text)
{
    char *copy = heft_format_arena_text(&state->arena, (const char *)text->raw, text->bytes);

    if (copy && text->raw_bytes != text->bytes)
        heft_json_decode(text, copy);
    return copy;
}

/* The number of a shard; a new one is checked. Neighbours mostly lie in the same shard. */
static int shard_number(struct reader *reader, const struct heft_json_text *text, const char *tensor,
                        uint32_t tensor_bytes, uint32_t *number_out)
{
    struct heft_shard_index *index = reader->index;
    struct heft_quote quote;
    char *name;
    int rc;

    if (index->shard_count > 0 && heft_json_equals(text, reader->shards[reader->last_shard],
                                                   strlen(reader->shards[reader->last_shard]))) {
        *number_out = (uint32_t)reader->last_shard;
        return HEFT_OK;
    }
    name = copy_text(reader->state, text);
    if (!name)
        return no_memory(reader);
    if (!heft_map_get(&reader->state->shard_numbers, name, text->bytes, &reader->last_shard)) {
        rc = heft_path_check(name, text->bytes, reader->error);
        if (rc)
            return heft_error_prefix(reader->error, rc, "shard index, tensor %s",
                                     heft_quote_name(&quote, tensor, tensor_bytes));
        if (index->shard_count == reader->shard_capacity) {
            uint32_t capacity = reader->shard_capacity ? reader->shard_capacity * 2 : 16;
            char **shards = realloc(reader->shards, capacity * sizeof(*shards));

            if (!shards)
                return no_memory(reader);
            reader->shards = shards;
            reader->shard_capacity = capacity;
        }
        reader->last_shard = index->shard_count;
        if (heft_map_put(&reader->state->shard_numbers, name, text->bytes, reader->last_shard, NULL, NULL))
            return no_memory(reader);
        reader->shards[index->shard_count++] = name;
    }
    *number_out = (uint32_t)reader->last_shard;
    return HEFT_OK;
}

static int rises(const struct entry *left, const struct entry *right)
{
    uint32_t shorter = left->name_bytes < right->name_bytes ? left->name_bytes : right->name_bytes;
    int order = memcmp(left->name, right->name, shorter);

    return order < 0 || (order == 0 && left->name_bytes < right->name_bytes);
}

static int add_entry(struct reader *reader, const struct heft_json_text *key,
                     const struct heft_json_text *value)
{
    struct heft_shard_index *index = reader->index;
    struct entry *entry;
    int rc;

    if (index->tensor_count == HEFT_MANIFEST_MAX_TENSORS)
        return heft_error_set(reader->error, HEFT_ERR_TOO_MANY, "the shard index names more than %u tensors",
                              HEFT_MANIFEST_MAX_TENSORS);
    if (index->tensor_count == reader->capacity) {
        uint64_t capacity = reader->capacity ? reader->capacity * 2 : 256;
        struct entry *entries = realloc(reader->entries, (size_t)capacity * sizeof(*entries));

        if (!entries)
            return no_memory(reader);
        reader->entries = entries;
        reader->capacity = capacity;
    }
    entry = &reader->entries[index->tensor_count];
    entry->name = copy_text(reader->state, key);
    entry->name_bytes = key->bytes;
    if (!entry->name)
        return no_memory(reader);
    reader->unordered = reader->unordered || (index->tensor_count > 0 && !rises(entry - 1, entry));
    rc = shard_number(reader, value, entry->name, entry->name_bytes, &entry->shard);
    if (!rc)
        index->tensor_count++;
    return rc;
}

/* `at` stands behind the opening brace. */
static int read_map(struct reader *reader)
{
    struct heft_json_scan *scan = &reader->scan;
    struct heft_json_text key, value;
    int more = 1, rc;

    if (heft_json_peek(scan) == '}') {
        scan->at++;
        return HEFT_OK;
    }
    while (more) {
        if (heft_json_key(scan, &key))
            return refuse_json(reader);
        if (heft_json_peek(scan) != '"')
            return refuse(reader, "a tensor whose file is not a string");
        if (heft_json_string(scan, &value))
            return refuse_json(reader);
        rc = add_entry(reader, &key, &value);
        if (rc)
            return rc;
        more = heft_json_next(scan, '}');
        if (more < 0)
            return refuse_json(reader);
    }
    return HEFT_OK;
}

/* ---- the rest of the document ---- */

/* Only a hint, and wrong in the wild: what is not a plain number is passed over. */
static int read_metadata(struct reader *reader)
{
    struct heft_json_scan *scan = &reader->scan;
    struct heft_json_text key;
    uint64_t value;
    int more = 1, byte, rc;

    if (heft_json_peek(scan) == '}') {
        scan->at++;
        return HEFT_OK;
    }
    while (more) {
        if (heft_json_key(scan, &key))
            return refuse_json(reader);
        byte = heft_json_peek(scan);
        if (heft_json_equals(&key, "total_size", 10) && (byte == '-' || (byte >= '0' && byte <= '9'))) {
            rc = heft_json_integer(scan, &value);
            if (rc == 0)
                reader->index->total_size = value;
        } else {
            rc = heft_json_skip(scan, 2);
        }
        if (rc < 0)
            return refuse_json(reader);
        more = heft_json_next(scan, '}');
        if (more < 0)
            return refuse_json(reader);
    }
    return HEFT_OK;
}

static int read_member(struct reader *reader, const struct heft_json_text *key)
{
    struct heft_json_scan *scan = &reader->scan;
    int byte = heft_json_peek(scan);

    if (heft_json_equals(key, "weight_map", 10)) {
        if (reader->has_map)
            return refuse(reader, "a duplicate key: \"weight_map\" stands twice");
        if (byte != '{')
            return refuse(reader, "\"weight_map\" is not an object");
        reader->has_map = 1;
        scan->at++;
        return read_map(reader);
    }
    if (heft_json_equals(key, "metadata", 8) && byte == '{') {
        scan->at++;
        return read_metadata(reader);
    }
    return heft_json_skip(scan, 1) ? refuse_json(reader) : HEFT_OK;
}

static int read_document(struct reader *reader)
{
    struct heft_json_scan *scan = &reader->scan;
    struct heft_json_text key;
    int more = 1, rc;

    if (heft_json_peek(scan) != '{')
        return refuse(reader, "it is not a JSON object");
    scan->at++;
    if (heft_json_peek(scan) == '}') {
        scan->at++;
        more = 0;
    }
    while (more) {
        if (heft_json_key(scan, &key))
            return refuse_json(reader);
        rc = read_member(reader, &key);
        if (rc)
            return rc;
        more = heft_json_next(scan, '}');
        if (more < 0)
            return refuse_json(reader);
    }
    if (heft_json_peek(scan) >= 0)
        return refuse(reader, "something stands behind its end");
    return reader->has_map ? HEFT_OK : refuse(reader, "it has no \"weight_map\"");
}

/* ---- sorting ---- */

static const char *name_of(const void *entries, size_t number, size_t *bytes_out)
{
    const struct entry *entry = (const struct entry *)entries + number;

    *bytes_out = entry->name_bytes;
    return entry->name;
}

static int refuse_repeated(struct reader *reader)
{
    struct heft_quote quote;
    struct heft_map names;
    size_t number = 0;
    uint64_t old = 0;
    int rc;

    if (!reader->unordered)
        return HEFT_OK;
    heft_map_init(&names);
    rc = heft_map_put_all(&names, (size_t)reader->index->tensor_count, name_of, reader->entries, &number,
                          &old);
    heft_map_free(&names);
    if (rc == HEFT_ERR_EXISTS)
        return heft_error_set(
            reader->error, HEFT_ERR_INDEX_JSON, "the shard index has a duplicate key: tensor %s stands twice",
            heft_quote_name(&quote, reader->entries[number].name, reader->entries[number].name_bytes));
    return rc ? no_memory(reader) : HEFT_OK;
}

static int compare_texts(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* Shards by name; the entries' numbers follow. */
static int sort_shards(struct reader *reader)
{
    struct heft_shard_index *index = reader->index;
    struct state *state = reader->state;
    uint32_t number, *new_numbers = malloc(((size_t)index->shard_count + 1) * sizeof(*new_numbers));
    uint64_t old = 0, at;

    index->shards =
        heft_format_arena_array(&state->arena, (uint64_t)index->shard_count + 1, sizeof(*index->shards));
    if (!new_numbers || !index->shards) {
        free(new_numbers);
        return no_memory(reader);
    }
    if (index->shard_count) {
        memcpy(index->shards, reader->shards, index->shard_count * sizeof(*index->shards));
        qsort(index->shards, index->shard_count, sizeof(*index->shards), compare_texts);
    }
    for (number = 0; number < index->shard_count; number++)
        if (heft_map_get(&state->shard_numbers, index->shards[number], strlen(index->shards[number]), &old))
            new_numbers[old] = number;
    for (at = 0; at < index->tensor_count; at++)
        reader->entries[at].shard = new_numbers[reader->entries[at].shard];
    free(new_numbers);
    return HEFT_OK;
}

/* Tensors by shard, within each in the file's order: counted, then dealt out. */
static int deal_tensors(struct reader *reader)
{
    struct heft_shard_index *index = reader->index;
    uint64_t *ends = calloc((size_t)index->shard_count + 2, sizeof(*ends)), at;
    uint32_t shard;

    if (!ends)
        return no_memory(reader);
    for (at = 0; at < index->tensor_count; at++)
        ends[reader->entries[at].shard + 1]++;
    for (shard = 0; shard < index->shard_count; shard++)
        ends[shard + 1] += ends[shard];
    for (at = 0; at < index->tensor_count; at++) {
        const struct entry *entry = &reader->entries[at];
        uint64_t place = ends[entry->shard]++;

        index->tensor_names[place] = entry->name;
        index->tensor_name_bytes[place] = entry->name_bytes;
        index->tensor_shards[place] = entry->shard;
    }
    free(ends);
    return HEFT_OK;
}

static int finish(struct reader *reader)
{
    struct heft_shard_index *index = reader->index;
    struct heft_format_arena *arena = &reader->state->arena;
    uint64_t count = index->tensor_count;
    int rc = refuse_repeated(reader);

    if (!rc)
        rc = sort_shards(reader);
    if (rc)
        return rc;
    index->tensor_names = heft_format_arena_array(arena, count + 1, sizeof(*index->tensor_names));
    index->tensor_name_bytes = heft_format_arena_array(arena, count + 1, sizeof(*index->tensor_name_bytes));
    index->tensor_shards = heft_format_arena_array(arena, count + 1, sizeof(*index->tensor_shards));
    if (!index->tensor_names || !index->tensor_name_bytes || !index->tensor_shards)
        return no_memory(reader);
    return deal_tensors(reader);
}

/* ---- */

static int check_text(const void *json, size_t size, struct heft_error *error)
{
    static const char pointer[] = "version https://git-lfs";
    size_t valid;

    if (size > HEFT_INDEX_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE,
                              "the shard index has %zu bytes; the limit is %" PRIu64, size,
                              HEFT_INDEX_MAX_BYTES);
    if (size >= sizeof(pointer) - 1 && memcmp(json, pointer, sizeof(pointer) - 1) == 0)
        return heft_error_set(
            error, HEFT_ERR_LFS_POINTER,
            "a Git LFS pointer stands where the shard index should be; run \"git lfs pull\"");
    valid = heft_utf8_span(json, size);
    if (valid != size)
        return heft_error_set(error, HEFT_ERR_INDEX_JSON,
                              "the shard index is not UTF-8 at byte %zu; fetch the file again", valid);
    return HEFT_OK;
}

int heft_index_parse(const void *json, size_t size, struct heft_shard_index **index_out,
                     struct heft_error *error)
{
    struct reader reader = {.error = error};
    int rc = check_text(json, size, error);

    if (rc)
        return rc;
    reader.index = calloc(1, sizeof(*reader.index));
    reader.state = calloc(1, sizeof(*reader.state));
    if (!reader.index || !reader.state) {
        free(reader.index);
        free(reader.state);
        return no_memory(&reader);
    }
    reader.index->arena = reader.state;
    heft_map_init(&reader.state->shard_numbers);
    heft_json_init(&reader.scan, json, size);
    rc = read_document(&reader);
    if (!rc)
        rc = finish(&reader);
    free(reader.entries);
    free(reader.shards);
    if (rc) {
        heft_index_free(reader.index);
        return rc;
    }
    *index_out = reader.index;
    return HEFT_OK;
}
