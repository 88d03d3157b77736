/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manifest's life: built up file by file and tensor by tensor, finished once, constant from then on.
 * Everything it points to is copied into its arena, so that a header or a message can be freed as soon as it
 * was read.
 */
#include "format/manifest_internal.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/pages.h"
#include "format/manifest_text.h"
#include "format/modeldir.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int no_memory(struct heft_error *error)
{
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while building a manifest");
}

struct heft_manifest *heft_manifest_new(void)
{
    struct heft_manifest *manifest = calloc(1, sizeof(*manifest));
    struct heft_manifest_state *state = calloc(1, sizeof(*state));

    if (!manifest || !state) {
        free(manifest);
        free(state);
        return NULL;
    }
    state->blame = HEFT_ERR_INVALID;
    heft_map_init(&state->dtype_index);
    heft_map_init(&manifest->by_name);
    manifest->arena = state;
    manifest->identity =
        (struct heft_identity){.model = "", .revision = "", .stage = "raw", .engine = "", .rank = ""};
    return manifest;
}

void heft_manifest_free(struct heft_manifest *manifest)
{
    struct heft_manifest_state *state;

    if (!manifest)
        return;
    state = heft_manifest_state(manifest);
    heft_map_free(&manifest->by_name);
    heft_map_free(&state->dtype_index);
    heft_format_arena_free(&state->arena);
    free(state->dtypes);
    free(manifest->tensors);
    free(manifest->files);
    free(state);
    free(manifest);
}

/* ---- identity ---- */

static int copy_text(struct heft_manifest_state *state, const char *what, const char *text,
                     const char **text_out, struct heft_error *error)
{
    size_t size = text ? strlen(text) : 0;

    if (size > HEFT_IDENTITY_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE, "the identity's %s has %zu bytes; the limit is %u",
                              what, size, HEFT_IDENTITY_MAX_BYTES);
    *text_out = heft_format_arena_text(&state->arena, text, size);
    return *text_out ? HEFT_OK : no_memory(error);
}

static int compare_pairs(const void *left, const void *right)
{
    return strcmp(((const struct heft_identity_pair *)left)->key,
                  ((const struct heft_identity_pair *)right)->key);
}

static int copy_pairs(struct heft_manifest_state *state, const struct heft_identity *identity,
                      struct heft_identity *copy, struct heft_error *error)
{
    struct heft_identity_pair *pairs;
    struct heft_quote quote;
    uint32_t index;
    int rc;

    if (identity->pair_count == 0)
        return HEFT_OK;
    if (identity->pair_count > HEFT_IDENTITY_MAX_PAIRS)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "an identity has %" PRIu32 " pairs; the limit is %u",
                              identity->pair_count, HEFT_IDENTITY_MAX_PAIRS);
    pairs = heft_format_arena_array(&state->arena, identity->pair_count, sizeof(*pairs));
    if (!pairs)
        return no_memory(error);
    for (index = 0; index < identity->pair_count; index++) {
        rc = copy_text(state, "key", identity->pairs[index].key, &pairs[index].key, error);
        if (!rc)
            rc = copy_text(state, "value", identity->pairs[index].value, &pairs[index].value, error);
        if (rc)
            return rc;
    }
    qsort(pairs, identity->pair_count, sizeof(*pairs), compare_pairs);
    for (index = 1; index < identity->pair_count; index++)
        if (strcmp(pairs[index - 1].key, pairs[index].key) == 0)
            return heft_error_set(error, state->blame, "the identity has the key %s twice",
                                  heft_quote_text(&quote, pairs[index].key));
    copy->pairs = pairs;
    copy->pair_count = identity->pair_count;
    return HEFT_OK;
}

int heft_manifest_set_identity(struct heft_manifest *manifest, const struct heft_identity *identity,
                               struct heft_error *error)
{
    struct heft_manifest_state *state = heft_manifest_state(manifest);
    const char *stage = identity->stage && identity->stage[0] ? identity->stage : "raw";
    struct heft_identity copy = {0};
    int rc;

    rc = copy_text(state, "model", identity->model, &copy.model, error);
    if (!rc)
        rc = copy_text(state, "revision", identity->revision, &copy.revision, error);
    if (!rc)
        rc = copy_text(state, "stage", stage, &copy.stage, error);
    if (!rc)
        rc = copy_text(state, "engine", identity->engine, &copy.engine, error);
    if (!rc)
        rc = copy_text(state, "rank", identity->rank, &copy.rank, error);
    if (!rc)
        rc = copy_pairs(state, identity, &copy, error);
    if (!rc)
        manifest->identity = copy;
    return rc;
}

/* ---- files and tensors ---- */

int heft_manifest_add_file(struct heft_manifest *manifest, const char *name, uint64_t size_bytes,
                           uint64_t region, uint32_t *index_out, struct heft_error *error)
{
    struct heft_manifest_state *state = heft_manifest_state(manifest);
    struct heft_manifest_file *file;
    const char *copy;
    int rc;

    if (state->finished)
        return heft_error_set(error, HEFT_ERR_STATE, "the manifest is finished; no file can be added");
    if (!name)
        name = "";
    if (name[0]) {
        rc = heft_path_check(name, strlen(name), error);
        if (rc)
            return rc;
    }
    if (manifest->file_count == HEFT_MANIFEST_MAX_FILES)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "more than %u files or regions in one manifest",
                              HEFT_MANIFEST_MAX_FILES);
    if (manifest->file_count == state->file_capacity) {
        uint32_t capacity = state->file_capacity ? state->file_capacity * 2 : 4;
        struct heft_manifest_file *files = realloc(manifest->files, capacity * sizeof(*files));

        if (!files)
            return no_memory(error);
        manifest->files = files;
        state->file_capacity = capacity;
    }
    copy = heft_format_arena_text(&state->arena, name, strlen(name));
    if (!copy)
        return no_memory(error);
    file = &manifest->files[manifest->file_count];
    *file = (struct heft_manifest_file){.name = copy, .size_bytes = size_bytes, .region = region};
    if (index_out)
        *index_out = manifest->file_count;
    manifest->file_count++;
    return HEFT_OK;
}

int heft_manifest_reserve(struct heft_manifest *manifest, uint64_t count, struct heft_error *error)
{
    struct heft_manifest_state *state = heft_manifest_state(manifest);
    struct heft_manifest_tensor *tensors;

    if (count > HEFT_MANIFEST_MAX_TENSORS)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "more than %u tensors in one manifest",
                              HEFT_MANIFEST_MAX_TENSORS);
    if (count <= state->tensor_capacity)
        return HEFT_OK;
    tensors = realloc(manifest->tensors, (size_t)count * sizeof(*tensors));
    if (!tensors)
        return no_memory(error);
    heft_pages_expect_filled(tensors, (size_t)count * sizeof(*tensors));
    manifest->tensors = tensors;
    state->tensor_capacity = count;
    return HEFT_OK;
}

int heft_manifest_intern_dtype(struct heft_manifest_state *state, const char *dtype, uint32_t bits,
                               uint32_t *index_out, struct heft_error *error)
{
    size_t size = strlen(dtype);
    uint32_t known = heft_dtype_bits(dtype, size);
    struct heft_quote quote;
    const char *copy;
    uint64_t index;
    int rc;

    if (known && known != bits)
        return heft_error_set(error, state->blame,
                              "dtype %s is said to have %" PRIu32 " bits an element; it has %" PRIu32,
                              heft_quote_text(&quote, dtype), bits, known);
    if (size > HEFT_DTYPE_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE, "a dtype of %zu bytes; the limit is %u", size,
                              HEFT_DTYPE_MAX_BYTES);
    if (heft_map_get(&state->dtype_index, dtype, size, &index)) {
        if (state->dtypes[index].bits != bits)
            return heft_error_set(error, state->blame,
                                  "dtype %s has %" PRIu32 " bits in one tensor and %" PRIu32 " in another",
                                  heft_quote_text(&quote, dtype), state->dtypes[index].bits, bits);
        *index_out = (uint32_t)index;
        return HEFT_OK;
    }
    if (state->dtype_count == HEFT_MANIFEST_MAX_DTYPES)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "more than %u dtypes in one manifest",
                              HEFT_MANIFEST_MAX_DTYPES);
    if (state->dtype_count == state->dtype_capacity) {
        uint32_t capacity = state->dtype_capacity ? state->dtype_capacity * 2 : 8;
        struct heft_manifest_dtype *dtypes = realloc(state->dtypes, capacity * sizeof(*dtypes));

        if (!dtypes)
            return no_memory(error);
        state->dtypes = dtypes;
        state->dtype_capacity = capacity;
    }
    copy = heft_format_arena_text(&state->arena, dtype, size);
    if (!copy)
        return no_memory(error);
    rc = heft_map_put(&state->dtype_index, copy, size, state->dtype_count, NULL, NULL);
    if (rc)
        return no_memory(error);
    state->dtypes[state->dtype_count] = (struct heft_manifest_dtype){.name = copy, .bits = bits};
    *index_out = state->dtype_count++;
    return HEFT_OK;
}

/* A copy of `rank` numbers; an equal array made before is given again. */
static const uint64_t *copy_numbers(struct heft_manifest_state *state, const uint64_t *numbers, uint32_t rank)
{
    size_t size = (size_t)rank * sizeof(*numbers);
    uint64_t *copy;
    uint32_t slot;

    if (rank == 0)
        return heft_format_arena_zeros(&state->arena, 1, sizeof(*numbers)); /* never NULL, never read */
    slot = (uint32_t)heft_hash64(numbers, size, 0) & (HEFT_SHAPE_CACHE - 1);
    if (state->shapes[slot] && state->shape_ranks[slot] == rank &&
        memcmp(state->shapes[slot], numbers, size) == 0)
        return state->shapes[slot];
    copy = heft_format_arena_array(&state->arena, rank, sizeof(*numbers));
    if (!copy)
        return NULL;
    memcpy(copy, numbers, size);
    state->shapes[slot] = copy;
    state->shape_ranks[slot] = rank;
    return copy;
}

static int covers_all(const struct heft_manifest_tensor *tensor)
{
    uint32_t dim;

    for (dim = 0; dim < tensor->rank; dim++)
        if (tensor->box_start[dim] != 0 || tensor->box_size[dim] != tensor->shape[dim])
            return 0;
    return 1;
}

static int copy_tensor(struct heft_manifest_state *state, const struct heft_manifest_tensor *tensor,
                       struct heft_manifest_tensor *copy)
{
    *copy = *tensor;
    copy->first_block = 0;
    copy->dtype = state->dtypes[state->last_dtype].name;
    copy->name = heft_format_arena_text(&state->arena, tensor->name, tensor->name_bytes);
    copy->shape = copy_numbers(state, tensor->shape, tensor->rank);
    copy->box_start = copy->box_size = NULL;
    if (tensor->box_start && !covers_all(tensor)) {
        copy->box_start = copy_numbers(state, tensor->box_start, tensor->rank);
        copy->box_size = copy_numbers(state, tensor->box_size, tensor->rank);
        if (!copy->box_start || !copy->box_size)
            return HEFT_ERR_NO_MEMORY;
    }
    return copy->name && copy->shape ? HEFT_OK : HEFT_ERR_NO_MEMORY;
}

int heft_manifest_add_tensor(struct heft_manifest *manifest, const struct heft_manifest_tensor *tensor,
                             struct heft_error *error)
{
    struct heft_manifest_state *state = heft_manifest_state(manifest);
    const char *dtype = tensor->dtype ? tensor->dtype : "";
    struct heft_quote quote;
    uint64_t capacity;
    int rc;

    if (state->finished)
        return heft_error_set(error, HEFT_ERR_STATE, "the manifest is finished; no tensor can be added");
    rc = heft_manifest_check_tensor(manifest, tensor, error);
    if (rc)
        return rc;
    if (manifest->tensor_count == state->tensor_capacity) {
        capacity = state->tensor_capacity ? state->tensor_capacity * 2 : 64;
        if (capacity > HEFT_MANIFEST_MAX_TENSORS && manifest->tensor_count < HEFT_MANIFEST_MAX_TENSORS)
            capacity = HEFT_MANIFEST_MAX_TENSORS;
        rc = heft_manifest_reserve(manifest, capacity, error);
        if (rc)
            return rc;
    }
    if (state->dtype_count == 0 || state->dtypes[state->last_dtype].bits != tensor->dtype_bits ||
        strcmp(state->dtypes[state->last_dtype].name, dtype) != 0) {
        rc = heft_manifest_intern_dtype(state, dtype, tensor->dtype_bits, &state->last_dtype, error);
        if (rc)
            return heft_error_prefix(error, rc, "tensor %s",
                                     heft_quote_name(&quote, tensor->name, tensor->name_bytes));
    }
    if (copy_tensor(state, tensor, &manifest->tensors[manifest->tensor_count]))
        return no_memory(error);
    manifest->tensor_count++;
    return HEFT_OK;
}

/* ---- finishing ---- */

static int compare_places(const void *left, const void *right)
{
    const struct heft_manifest_tensor *l = left, *r = right;
    uint32_t shorter;
    int order;

    if (l->file != r->file)
        return l->file < r->file ? -1 : 1;
    if (l->offset_bytes != r->offset_bytes)
        return l->offset_bytes < r->offset_bytes ? -1 : 1;
    if (l->size_bytes != r->size_bytes)
        return l->size_bytes < r->size_bytes ? -1 : 1;
    shorter = l->name_bytes < r->name_bytes ? l->name_bytes : r->name_bytes;
    order = memcmp(l->name, r->name, shorter);
    if (order != 0)
        return order;
    return (l->name_bytes > r->name_bytes) - (l->name_bytes < r->name_bytes);
}

/*
 * Tables that come from a reader or an encoder are sorted: one pass sees it. Bytes that came in must be: the
 * order numbers the blocks, so with another one the sender's digests would belong to other blocks.
 */
static int sort_places(struct heft_manifest *manifest, struct heft_error *error)
{
    uint64_t index;

    for (index = 1; index < manifest->tensor_count; index++)
        if (compare_places(&manifest->tensors[index - 1], &manifest->tensors[index]) > 0)
            break;
    if (index >= manifest->tensor_count)
        return HEFT_OK;
    if (heft_manifest_state(manifest)->blame == HEFT_ERR_MANIFEST)
        return heft_error_set(error, HEFT_ERR_MANIFEST,
                              "the manifest's tensor %" PRIu64 " is not in the order of places", index);
    qsort(manifest->tensors, (size_t)manifest->tensor_count, sizeof(*manifest->tensors), compare_places);
    return HEFT_OK;
}

static int there_twice(const struct heft_manifest *manifest, uint64_t old, uint64_t index,
                       struct heft_error *error)
{
    const struct heft_manifest_tensor *tensor = &manifest->tensors[index];
    struct heft_quote quote, old_file, new_file;
    int blame = heft_manifest_state(manifest)->blame;

    return heft_error_set(error, blame == HEFT_ERR_MANIFEST ? HEFT_ERR_MANIFEST : HEFT_ERR_EXISTS,
                          "tensor %s is there twice, in %s and in %s",
                          heft_quote_name(&quote, tensor->name, tensor->name_bytes),
                          heft_quote_text(&old_file, manifest->files[manifest->tensors[old].file].name),
                          heft_quote_text(&new_file, manifest->files[tensor->file].name));
}

static const char *name_of(const void *tensors, size_t number, size_t *bytes_out)
{
    const struct heft_manifest_tensor *tensor = (const struct heft_manifest_tensor *)tensors + number;

    *bytes_out = tensor->name_bytes;
    return tensor->name;
}

static int index_names(struct heft_manifest *manifest, struct heft_error *error)
{
    uint64_t old = 0;
    size_t index = 0;
    int rc = heft_map_put_all(&manifest->by_name, (size_t)manifest->tensor_count, name_of, manifest->tensors,
                              &index, &old);

    return rc == HEFT_ERR_EXISTS ? there_twice(manifest, old, index, error) : rc ? no_memory(error) : HEFT_OK;
}

static int sum_sizes(struct heft_manifest *manifest, struct heft_error *error)
{
    struct heft_manifest_state *state = heft_manifest_state(manifest);
    uint64_t index, bytes = 0, blocks = 0;

    for (index = 0; index < manifest->tensor_count; index++) {
        struct heft_manifest_tensor *tensor = &manifest->tensors[index];

        if (__builtin_add_overflow(bytes, tensor->size_bytes, &bytes))
            return heft_error_set(error, state->blame, "the tensors' sizes add up to more than 64 bits");
        tensor->first_block = blocks;
        blocks +=
            heft_block_count(tensor->size_bytes); /* at most bytes + 1 a tensor: can't wrap if bytes don't */
    }
    manifest->total_bytes = bytes;
    manifest->block_count = blocks;
    return HEFT_OK;
}

int heft_manifest_finish(struct heft_manifest *manifest, struct heft_error *error)
{
    struct heft_manifest_state *state = heft_manifest_state(manifest);
    int rc;

    if (state->finished)
        return heft_error_set(error, HEFT_ERR_STATE, "the manifest is finished already");
    rc = sort_places(manifest, error);
    if (!rc)
        rc = index_names(manifest, error);
    if (!rc)
        rc = sum_sizes(manifest, error);
    if (!rc)
        state->finished = 1;
    return rc;
}

int heft_manifest_want_digests(struct heft_manifest *manifest, struct heft_error *error)
{
    if (!manifest->digests)
        manifest->digests = heft_format_arena_zeros(&heft_manifest_state(manifest)->arena,
                                                    manifest->block_count ? manifest->block_count : 1,
                                                    sizeof(*manifest->digests));
    return manifest->digests ? HEFT_OK : no_memory(error);
}

int heft_manifest_want_held(struct heft_manifest *manifest, struct heft_error *error)
{
    if (!manifest->held)
        manifest->held =
            heft_format_arena_zeros(&heft_manifest_state(manifest)->arena, manifest->block_count / 8 + 1, 1);
    return manifest->held ? HEFT_OK : no_memory(error);
}

/* ---- asking ---- */

uint64_t heft_manifest_tensor_of_block(const struct heft_manifest *manifest, uint64_t block)
{
    uint64_t low = 0, high = manifest->tensor_count;

    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;

        if (manifest->tensors[middle].first_block <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

uint64_t heft_manifest_find(const struct heft_manifest *manifest, const char *name, size_t name_bytes)
{
    uint64_t index;

    if (!name)
        name = "";
    return heft_map_get(&manifest->by_name, name, name_bytes, &index) ? index : UINT64_MAX;
}

uint64_t heft_manifest_find_near(const struct heft_manifest *manifest, uint64_t guess, const char *name,
                                 size_t name_bytes)
{
    const struct heft_manifest_tensor *tensor;

    if (guess < manifest->tensor_count) {
        tensor = &manifest->tensors[guess];
        if (tensor->name_bytes == name_bytes && memcmp(tensor->name, name, name_bytes) == 0)
            return guess;
    }
    return heft_manifest_find(manifest, name, name_bytes);
}

int heft_manifest_holds(const struct heft_manifest *manifest, uint64_t first_block, uint64_t count)
{
    uint64_t end, block = first_block;

    if (first_block > manifest->block_count || count > manifest->block_count - first_block)
        return 0;
    if (!manifest->held)
        return 1;
    end = first_block + count;
    while (block < end) {
        if (block % 8 == 0 && end - block >= 8) {
            if (manifest->held[block / 8] != 0xFF)
                return 0;
            block += 8;
        } else {
            if (!(manifest->held[block / 8] >> (block % 8) & 1))
                return 0;
            block++;
        }
    }
    return 1;
}
