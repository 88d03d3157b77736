/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A manifest as bytes, version 1. All integers little-endian; a string is a u32 length and its bytes.
 *
 *   u32 magic "HMAN"   u32 version   u64 size of the whole, closing digest included
 *   sections: u32 type, u32 flags, u64 length, then that many bytes
 *   u64 XXH3-64 of everything before
 *
 * Sections 1 to 3 stand first and in order; 4 and 5 follow when there is something to say. Then come sections
 * that a later version may add, in rising order of type: a reader skips those it does not know, unless flag
 * bit 0 says that the rest can't be understood without them.
 *
 *   1 identity  string model, revision, stage, engine, rank; u32 pairs, each string key, string value
 *   2 files     u32 count; each string name, u64 size, u64 region
 *   3 tensors   u32 dtypes, each string name, u32 bits; u64 count; each
 *               string name, u32 dtype, u32 file, u32 rank, u32 flags (bit 0: has a box), u64 offset, u64
 * size, u64 shape[rank], with a box also u64 start[rank], u64 size[rank] in the order of (file, offset, size,
 * name) 4 digests   u64 for each block, in the tensors' order 5 held      one bit for each block, lowest bit
 * first; unused bits are clear
 *
 * The reader takes nothing on trust: a count is compared with the bytes that are left before memory is taken
 * for it.
 */
#include "format/manifest_internal.h"
#include "base/digest.h"
#include "base/error.h"
#include "format/manifest_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC UINT32_C(0x4E414D48) /* "HMAN" */
#define HEAD_BYTES ((size_t)16)
#define TAIL_BYTES ((size_t)8)
#define SECTION_HEAD_BYTES ((size_t)16)
#define SECTION_NEEDED 1u /* flag: not understood means not readable */
#define TENSOR_HAS_BOX 1u
#define TENSOR_MIN_BYTES ((size_t)36)
#define FILE_MIN_BYTES ((size_t)20)
#define DTYPE_MIN_BYTES ((size_t)8)
#define PATH_MAX_BYTES ((size_t)4096)

enum section {
    SECTION_IDENTITY = 1,
    SECTION_FILES = 2,
    SECTION_TENSORS = 3,
    SECTION_DIGESTS = 4,
    SECTION_HELD = 5
};

/* ---- encode ---- */

static size_t begin_section(struct heft_buf *buf, enum section type)
{
    size_t at;

    heft_buf_u32(buf, type);
    heft_buf_u32(buf, SECTION_NEEDED);
    at = buf->size;
    heft_buf_u64(buf, 0);
    return at;
}

static void end_section(struct heft_buf *buf, size_t at)
{
    if (!buf->failed)
        heft_put_u64(buf->data + at, buf->size - at - 8);
}

static void put_text(struct heft_buf *buf, const char *text)
{
    heft_buf_string(buf, text, strlen(text));
}

static void put_identity(struct heft_buf *buf, const struct heft_identity *identity)
{
    size_t section = begin_section(buf, SECTION_IDENTITY);
    uint32_t index;

    put_text(buf, identity->model);
    put_text(buf, identity->revision);
    put_text(buf, identity->stage);
    put_text(buf, identity->engine);
    put_text(buf, identity->rank);
    heft_buf_u32(buf, identity->pair_count);
    for (index = 0; index < identity->pair_count; index++) {
        put_text(buf, identity->pairs[index].key);
        put_text(buf, identity->pairs[index].value);
    }
    end_section(buf, section);
}

static void put_files(struct heft_buf *buf, const struct heft_manifest *manifest)
{
    size_t section = begin_section(buf, SECTION_FILES);
    uint32_t index;

    heft_buf_u32(buf, manifest->file_count);
    for (index = 0; index < manifest->file_count; index++) {
        put_text(buf, manifest->files[index].name);
        heft_buf_u64(buf, manifest->files[index].size_bytes);
        heft_buf_u64(buf, manifest->files[index].region);
    }
    end_section(buf, section);
}

static uint8_t *put_numbers(uint8_t *at, const uint64_t *numbers, uint32_t count)
{
    uint32_t index;

    for (index = 0; index < count; index++, at += 8)
        heft_put_u64(at, numbers[index]);
    return at;
}

static void put_tensor(struct heft_buf *buf, const struct heft_manifest_tensor *tensor, uint32_t dtype)
{
    uint32_t arrays = tensor->box_start ? 3 : 1;
    uint8_t *at =
        heft_buf_extend(buf, TENSOR_MIN_BYTES + tensor->name_bytes + (size_t)arrays * tensor->rank * 8);

    if (!at)
        return;
    heft_put_u32(at, tensor->name_bytes);
    memcpy(at + 4, tensor->name, tensor->name_bytes);
    at += 4 + tensor->name_bytes;
    heft_put_u32(at, dtype);
    heft_put_u32(at + 4, tensor->file);
    heft_put_u32(at + 8, tensor->rank);
    heft_put_u32(at + 12, tensor->box_start ? TENSOR_HAS_BOX : 0);
    heft_put_u64(at + 16, tensor->offset_bytes);
    heft_put_u64(at + 24, tensor->size_bytes);
    at = put_numbers(at + 32, tensor->shape, tensor->rank);
    if (tensor->box_start) {
        at = put_numbers(at, tensor->box_start, tensor->rank);
        (void)put_numbers(at, tensor->box_size, tensor->rank);
    }
}

/* Dtypes are numbered as the tensors' order meets them, so that equal manifests have equal bytes. */
static int put_tensors(struct heft_buf *buf, const struct heft_manifest *manifest)
{
    const struct heft_manifest_state *state = heft_manifest_state(manifest);
    const struct heft_manifest_tensor *tensor;
    uint32_t *numbers = malloc(((size_t)state->dtype_count + 1) * sizeof(*numbers));
    uint32_t used = 0, number = 0;
    size_t section, count_at;
    uint64_t index, dtype;

    if (!numbers)
        return HEFT_ERR_NO_MEMORY;
    memset(numbers, 0xFF, ((size_t)state->dtype_count + 1) * sizeof(*numbers));
    section = begin_section(buf, SECTION_TENSORS);
    count_at = buf->size;
    heft_buf_u32(buf, 0);
    for (index = 0; index < manifest->tensor_count; index++) {
        tensor = &manifest->tensors[index];
        if (index > 0 && tensor->dtype == tensor[-1].dtype)
            continue;
        if (heft_map_get(&state->dtype_index, tensor->dtype, strlen(tensor->dtype), &dtype) &&
            numbers[dtype] == UINT32_MAX) {
            numbers[dtype] = used++;
            put_text(buf, tensor->dtype);
            heft_buf_u32(buf, tensor->dtype_bits);
        }
    }
    if (!buf->failed)
        heft_put_u32(buf->data + count_at, used);
    heft_buf_u64(buf, manifest->tensor_count);
    for (index = 0; index < manifest->tensor_count && !buf->failed; index++) {
        tensor = &manifest->tensors[index];
        if ((index == 0 || tensor->dtype != tensor[-1].dtype) &&
            heft_map_get(&state->dtype_index, tensor->dtype, strlen(tensor->dtype), &dtype))
            number = numbers[dtype];
        put_tensor(buf, tensor, number);
    }
    end_section(buf, section);
    free(numbers);
    return HEFT_OK;
}

static void put_blocks(struct heft_buf *buf, const struct heft_manifest *manifest)
{
    size_t section;
    uint8_t *at;

    if (manifest->digests) {
        section = begin_section(buf, SECTION_DIGESTS);
        at = manifest->block_count > SIZE_MAX / 8 ? NULL
                                                  : heft_buf_extend(buf, (size_t)manifest->block_count * 8);
        for (uint64_t block = 0; at && block < manifest->block_count; block++)
            heft_put_u64(at + block * 8, manifest->digests[block]);
        end_section(buf, section);
    }
    if (manifest->held) {
        section = begin_section(buf, SECTION_HELD);
        heft_buf_bytes(buf, manifest->held, (size_t)((manifest->block_count + 7) / 8));
        if (!buf->failed && manifest->block_count % 8 != 0)
            buf->data[buf->size - 1] &= (uint8_t)((1u << manifest->block_count % 8) - 1);
        end_section(buf, section);
    }
}

int heft_manifest_encode(const struct heft_manifest *manifest, struct heft_buf *buf)
{
    size_t start = buf->size;
    int rc;

    HEFT_ASSERT(heft_manifest_state(manifest)->finished);
    heft_buf_u32(buf, MAGIC);
    heft_buf_u32(buf, HEFT_MANIFEST_VERSION);
    heft_buf_u64(buf, 0);
    put_identity(buf, &manifest->identity);
    put_files(buf, manifest);
    rc = put_tensors(buf, manifest);
    if (rc)
        return rc;
    put_blocks(buf, manifest);
    if (!buf->failed && buf->size - start > HEFT_MANIFEST_MAX_BYTES - TAIL_BYTES)
        buf->failed = HEFT_ERR_TOO_LARGE;
    if (!buf->failed)
        heft_put_u64(buf->data + start + 8, buf->size - start + TAIL_BYTES);
    if (!buf->failed)
        heft_buf_u64(buf, heft_hash64(buf->data + start, buf->size - start, 0));
    return buf->failed;
}

/* ---- decode ---- */

static int cut_short(struct heft_error *error, const char *what)
{
    return heft_error_set(error, HEFT_ERR_MANIFEST, "the manifest's %s end too early or count too much",
                          what);
}

/* A string without NULs, NUL-terminated in `text_out` of max_bytes + 1. */
static int get_text(struct heft_reader *reader, char *text_out, size_t max_bytes, const char *what,
                    struct heft_error *error)
{
    size_t size = 0;
    const char *at = heft_reader_string(reader, max_bytes, &size);

    if (!at || memchr(at, 0, size))
        return heft_error_set(error, HEFT_ERR_MANIFEST,
                              "the manifest's %s hold a string that is cut, too long or has a NUL", what);
    memcpy(text_out, at, size);
    text_out[size] = 0;
    return HEFT_OK;
}

struct identity_texts {
    char fields[5][HEFT_IDENTITY_MAX_BYTES + 1];
    char keys[HEFT_IDENTITY_MAX_PAIRS][HEFT_IDENTITY_MAX_BYTES + 1];
    char values[HEFT_IDENTITY_MAX_PAIRS][HEFT_IDENTITY_MAX_BYTES + 1];
    struct heft_identity_pair pairs[HEFT_IDENTITY_MAX_PAIRS];
};

static int read_identity(struct heft_reader *reader, struct identity_texts *texts,
                         struct heft_identity *identity, struct heft_error *error)
{
    uint32_t index, count;
    int rc = HEFT_OK;

    for (index = 0; !rc && index < 5; index++)
        rc = get_text(reader, texts->fields[index], HEFT_IDENTITY_MAX_BYTES, "identity", error);
    if (rc)
        return rc;
    count = heft_reader_u32(reader);
    if (reader->failed || count > HEFT_IDENTITY_MAX_PAIRS)
        return cut_short(error, "identity pairs");
    for (index = 0; index < count; index++) {
        rc = get_text(reader, texts->keys[index], HEFT_IDENTITY_MAX_BYTES, "identity pairs", error);
        if (!rc)
            rc = get_text(reader, texts->values[index], HEFT_IDENTITY_MAX_BYTES, "identity pairs", error);
        if (rc)
            return rc;
        texts->pairs[index] =
            (struct heft_identity_pair){.key = texts->keys[index], .value = texts->values[index]};
        if (index > 0 && strcmp(texts->keys[index - 1], texts->keys[index]) >= 0)
            return heft_error_set(error, HEFT_ERR_MANIFEST, "the manifest's identity pairs are not in order");
    }
    *identity = (struct heft_identity){.model = texts->fields[0],
                                       .revision = texts->fields[1],
                                       .stage = texts->fields[2],
                                       .engine = texts->fields[3],
                                       .rank = texts->fields[4],
                                       .pairs = texts->pairs,
                                       .pair_count = count};
    return HEFT_OK;
}

static int decode_identity(struct heft_reader *reader, struct heft_manifest *manifest,
                           struct heft_error *error)
{
    struct identity_texts *texts = malloc(sizeof(*texts));
    struct heft_identity identity;
    int rc;

    if (!texts)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while reading a manifest");
    rc = read_identity(reader, texts, &identity, error);
    if (!rc)
        rc = heft_manifest_set_identity(manifest, &identity, error);
    free(texts);
    return rc;
}

static int decode_files(struct heft_reader *reader, struct heft_manifest *manifest, struct heft_error *error)
{
    char name[PATH_MAX_BYTES + 1];
    uint32_t index, count = heft_reader_u32(reader);
    int rc;

    if (reader->failed || count > heft_reader_left(reader) / FILE_MIN_BYTES)
        return cut_short(error, "files");
    for (index = 0; index < count; index++) {
        uint64_t size_bytes, region;

        rc = get_text(reader, name, PATH_MAX_BYTES, "files", error);
        if (rc)
            return rc;
        size_bytes = heft_reader_u64(reader);
        region = heft_reader_u64(reader);
        if (reader->failed)
            return cut_short(error, "files");
        rc = heft_manifest_add_file(manifest, name, size_bytes, region, NULL, error);
        if (rc)
            return rc;
    }
    return HEFT_OK;
}

static int decode_dtypes(struct heft_reader *reader, struct heft_manifest *manifest, struct heft_error *error)
{
    char name[HEFT_DTYPE_MAX_BYTES + 1];
    uint32_t index, bits, number, count = heft_reader_u32(reader);
    int rc;

    if (reader->failed || count > heft_reader_left(reader) / DTYPE_MIN_BYTES)
        return cut_short(error, "dtypes");
    for (index = 0; index < count; index++) {
        rc = get_text(reader, name, HEFT_DTYPE_MAX_BYTES, "dtypes", error);
        if (rc)
            return rc;
        bits = heft_reader_u32(reader);
        if (reader->failed)
            return cut_short(error, "dtypes");
        rc = heft_manifest_intern_dtype(heft_manifest_state(manifest), name, bits, &number, error);
        if (rc)
            return rc;
        if (number != index)
            return heft_error_set(error, HEFT_ERR_MANIFEST, "the manifest lists a dtype twice");
    }
    return HEFT_OK;
}

/* The arrays of one tensor; numbers has room for 3 * rank. */
struct numbers {
    uint64_t *at;
    size_t capacity;
};

static int read_numbers(struct heft_reader *reader, struct numbers *numbers, size_t count,
                        struct heft_error *error)
{
    const uint8_t *bytes;
    size_t index;

    if (count > heft_reader_left(reader) / 8)
        return cut_short(error, "shapes");
    if (count > numbers->capacity) {
        uint64_t *larger = realloc(numbers->at, count * sizeof(*larger));

        if (!larger)
            return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while reading a manifest");
        numbers->at = larger;
        numbers->capacity = count;
    }
    bytes = heft_reader_bytes(reader, count * 8);
    for (index = 0; bytes && index < count; index++)
        numbers->at[index] = heft_get_u64(bytes + index * 8);
    return HEFT_OK;
}

static int decode_tensor(struct heft_reader *reader, struct heft_manifest *manifest, struct numbers *numbers,
                         struct heft_error *error)
{
    const struct heft_manifest_state *state = heft_manifest_state(manifest);
    struct heft_manifest_tensor tensor = {0};
    uint32_t dtype, flags;
    size_t name_bytes = 0;
    int rc;

    tensor.name = heft_reader_string(reader, UINT32_MAX, &name_bytes);
    dtype = heft_reader_u32(reader);
    tensor.file = heft_reader_u32(reader);
    tensor.rank = heft_reader_u32(reader);
    flags = heft_reader_u32(reader);
    tensor.offset_bytes = heft_reader_u64(reader);
    tensor.size_bytes = heft_reader_u64(reader);
    if (reader->failed)
        return cut_short(error, "tensors");
    if (dtype >= state->dtype_count || (flags & ~TENSOR_HAS_BOX) || tensor.rank > HEFT_TENSOR_MAX_RANK)
        return heft_error_set(error, HEFT_ERR_MANIFEST,
                              "the manifest's tensor %" PRIu64
                              " has an unknown dtype number, unknown flags or a rank above %u",
                              manifest->tensor_count, HEFT_TENSOR_MAX_RANK);
    rc = read_numbers(reader, numbers, (size_t)tensor.rank * (flags & TENSOR_HAS_BOX ? 3 : 1), error);
    if (rc)
        return rc;
    tensor.name_bytes = (uint32_t)name_bytes;
    tensor.dtype = state->dtypes[dtype].name;
    tensor.dtype_bits = state->dtypes[dtype].bits;
    tensor.shape = numbers->at;
    if (flags & TENSOR_HAS_BOX) {
        tensor.box_start = numbers->at + tensor.rank;
        tensor.box_size = numbers->at + (size_t)tensor.rank * 2;
    }
    return heft_manifest_add_tensor(manifest, &tensor, error);
}

static int decode_tensors(struct heft_reader *reader, struct heft_manifest *manifest,
                          struct heft_error *error)
{
    struct numbers numbers = {0};
    uint64_t index, count;
    int rc = decode_dtypes(reader, manifest, error);

    if (rc)
        return rc;
    count = heft_reader_u64(reader);
    if (reader->failed || count > heft_reader_left(reader) / TENSOR_MIN_BYTES)
        return cut_short(error, "tensors");
    rc = heft_manifest_reserve(manifest, count, error);
    if (!rc) /* never NULL below: a box without dimensions has a start all the same */
        rc = (numbers.at = malloc(16 * sizeof(*numbers.at)))
                 ? HEFT_OK
                 : heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while reading a manifest");
    numbers.capacity = 16;
    for (index = 0; !rc && index < count; index++)
        rc = decode_tensor(reader, manifest, &numbers, error);
    free(numbers.at);
    return rc;
}

static int decode_digests(struct heft_reader *reader, struct heft_manifest *manifest,
                          struct heft_error *error)
{
    const uint8_t *bytes;
    uint64_t block;
    int rc;

    if (heft_reader_left(reader) / 8 != manifest->block_count)
        return cut_short(error, "digests");
    rc = heft_manifest_want_digests(manifest, error);
    if (rc)
        return rc;
    bytes = heft_reader_bytes(reader, (size_t)manifest->block_count * 8);
    for (block = 0; bytes && block < manifest->block_count; block++)
        manifest->digests[block] = heft_get_u64(bytes + block * 8);
    return HEFT_OK;
}

static int decode_held(struct heft_reader *reader, struct heft_manifest *manifest, struct heft_error *error)
{
    size_t size = heft_reader_left(reader);
    const uint8_t *bytes;
    int rc;

    if (size != manifest->block_count / 8 + (manifest->block_count % 8 != 0))
        return cut_short(error, "held blocks");
    bytes = heft_reader_bytes(reader, size);
    if (manifest->block_count % 8 != 0 && bytes[size - 1] >> manifest->block_count % 8)
        return heft_error_set(error, HEFT_ERR_MANIFEST, "the manifest holds blocks past its last one");
    rc = heft_manifest_want_held(manifest, error);
    if (!rc && size)
        memcpy(manifest->held, bytes, size);
    return rc;
}

static int decode_section(uint32_t type, struct heft_reader *section, struct heft_manifest *manifest,
                          struct heft_error *error)
{
    int rc;

    switch (type) {
    case SECTION_IDENTITY:
        rc = decode_identity(section, manifest, error);
        break;
    case SECTION_FILES:
        rc = decode_files(section, manifest, error);
        break;
    case SECTION_TENSORS:
        rc = decode_tensors(section, manifest, error);
        if (!rc)
            rc = heft_manifest_finish(manifest, error);
        break;
    case SECTION_DIGESTS:
        rc = decode_digests(section, manifest, error);
        break;
    default:
        rc = decode_held(section, manifest, error);
        break;
    }
    if (!rc && heft_reader_left(section) != 0)
        rc = heft_error_set(error, HEFT_ERR_MANIFEST,
                            "the manifest's section %" PRIu32 " has %zu bytes too many", type,
                            heft_reader_left(section));
    return rc;
}

static int decode_sections(struct heft_reader *reader, struct heft_manifest *manifest,
                           struct heft_error *error)
{
    uint32_t type, flags, last = 0;
    struct heft_reader section;
    const uint8_t *bytes;
    uint64_t length;
    int rc;

    while (heft_reader_left(reader) > 0) {
        type = heft_reader_u32(reader);
        flags = heft_reader_u32(reader);
        length = heft_reader_u64(reader);
        if (reader->failed || length > heft_reader_left(reader))
            return cut_short(error, "sections");
        bytes = heft_reader_bytes(reader, (size_t)length);
        if (type <= last || (last < SECTION_TENSORS && type != last + 1))
            return heft_error_set(error, HEFT_ERR_MANIFEST,
                                  "the manifest's section %" PRIu32 " stands after section %" PRIu32, type,
                                  last);
        last = type;
        if (type > SECTION_HELD) {
            if (flags & SECTION_NEEDED)
                return heft_error_set(error, HEFT_ERR_INCOMPATIBLE,
                                      "the manifest needs section %" PRIu32
                                      ", which this version (%u) does not know; upgrade the reader",
                                      type, HEFT_MANIFEST_VERSION);
            continue;
        }
        heft_reader_init(&section, bytes, (size_t)length);
        rc = decode_section(type, &section, manifest, error);
        if (rc)
            return rc;
    }
    return last >= SECTION_TENSORS ? HEFT_OK : cut_short(error, "sections");
}

/* Magic, version, length and digest: what can be checked before a single field is believed. */
static int check_frame(const uint8_t *data, size_t size, struct heft_error *error)
{
    if (size < HEAD_BYTES + TAIL_BYTES)
        return heft_error_set(error, HEFT_ERR_TRUNCATED, "a manifest of %zu bytes is cut short", size);
    if (size > HEFT_MANIFEST_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE, "a manifest of %zu bytes; the limit is %" PRIu64,
                              size, HEFT_MANIFEST_MAX_BYTES);
    if (heft_get_u32(data) != MAGIC)
        return heft_error_set(error, HEFT_ERR_MANIFEST, "these bytes are no manifest");
    if (heft_get_u32(data + 4) != HEFT_MANIFEST_VERSION)
        return heft_error_set(error, HEFT_ERR_INCOMPATIBLE,
                              "the manifest has version %" PRIu32 "; this reader knows %u",
                              heft_get_u32(data + 4), HEFT_MANIFEST_VERSION);
    if (heft_get_u64(data + 8) != size)
        return heft_error_set(error, heft_get_u64(data + 8) > size ? HEFT_ERR_TRUNCATED : HEFT_ERR_MANIFEST,
                              "the manifest says it has %" PRIu64 " bytes, but %zu came",
                              heft_get_u64(data + 8), size);
    if (heft_get_u64(data + size - TAIL_BYTES) != heft_hash64(data, size - TAIL_BYTES, 0))
        return heft_error_set(error, HEFT_ERR_DIGEST, "the manifest does not match its closing digest");
    return HEFT_OK;
}

int heft_manifest_decode(const void *data, size_t size, struct heft_manifest **manifest_out,
                         struct heft_error *error)
{
    struct heft_manifest *manifest;
    struct heft_reader reader;
    int rc;

    rc = check_frame(data, size, error);
    if (rc)
        return rc;
    manifest = heft_manifest_new();
    if (!manifest)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while reading a manifest");
    heft_manifest_state(manifest)->blame = HEFT_ERR_MANIFEST;
    heft_reader_init(&reader, (const uint8_t *)data + HEAD_BYTES, size - HEAD_BYTES - TAIL_BYTES);
    rc = decode_sections(&reader, manifest, error);
    if (rc) {
        heft_manifest_free(manifest);
        return rc;
    }
    *manifest_out = manifest;
    return HEFT_OK;
}
