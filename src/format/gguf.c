/* SPDX-License-Identifier: Apache-2.0 */
#include "format/gguf.h"
#include "base/error.h"
#include "format/manifest_text.h"
#include "format/safetensors_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANK 4u
#define MAX_NAME_BYTES 65535u
#define MAX_TENSORS 4000000u
#define LEAST_READ ((uint64_t)64 << 10)

/* Tensor types by number: elements and bytes of a block. A block of one element is a plain dtype. */
struct type {
    const char *name;
    uint16_t elements, bytes;
};

static const struct type types[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},      [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},
    [8] = {"Q8_0", 32, 34},      [10] = {"Q2_K", 256, 84},    [11] = {"Q3_K", 256, 110},
    [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},   [14] = {"Q6_K", 256, 210},
    [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66}, [17] = {"IQ2_XS", 256, 74},
    [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},   [20] = {"IQ4_NL", 32, 18},
    [21] = {"IQ3_S", 256, 110},  [22] = {"IQ2_S", 256, 82},   [23] = {"IQ4_XS", 256, 136},
    [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},        [26] = {"I32", 1, 4},
    [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},        [29] = {"IQ1_M", 256, 56},
    [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},   [35] = {"TQ2_0", 256, 66},
    [39] = {"MXFP4", 32, 17},    [40] = {"NVFP4", 64, 36},    [41] = {"Q1_0", 128, 18},
};

/* Types of metadata values. */
enum value_type { VALUE_BOOL = 7, VALUE_STRING = 8, VALUE_ARRAY = 9, VALUE_TYPES = 13 };
static const uint8_t value_bytes[VALUE_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct reader {
    const uint8_t *data;
    uint64_t have, at, end; /* `end`: the header can't reach past it */
    uint64_t file_bytes, need;
    uint64_t alignment;
    struct heft_st_header *header;
    uint64_t tensor_capacity, pair_capacity;
    struct heft_error *error;
};

int heft_gguf_is(const void *prefix, size_t prefix_bytes)
{
    return prefix_bytes >= 4 && memcmp(prefix, "GGUF", 4) == 0;
}

static int no_memory(struct reader *reader)
{
    return heft_error_set(reader->error, HEFT_ERR_NO_MEMORY, "out of memory while reading a GGUF header");
}

/* `size` bytes of the header, or NULL with *rc_out: AGAIN when they have not been brought yet. */
static const uint8_t *take(struct reader *reader, uint64_t size, int *rc_out)
{
    const uint8_t *found = reader->data + reader->at;

    if (size > reader->end - reader->at) {
        *rc_out =
            reader->end < reader->file_bytes
                ? heft_error_set(reader->error, HEFT_ERR_HEADER_TOO_LARGE,
                                 "the header needs more than the %" PRIu64 " bytes that the limit allows",
                                 reader->end)
                : heft_error_set(reader->error, HEFT_ERR_HEADER_LENGTH,
                                 "byte %" PRIu64 " of the header asks for %" PRIu64
                                 " bytes, past the end of the file; incomplete download?",
                                 reader->at, size);
        return NULL;
    }
    if (size > reader->have - reader->at) {
        reader->need = reader->at + size;
        *rc_out = HEFT_ERR_AGAIN;
        return NULL;
    }
    reader->at += size;
    *rc_out = HEFT_OK;
    return found;
}

static int read_number(struct reader *reader, uint32_t bytes, uint64_t *number_out)
{
    int rc;
    const uint8_t *from = take(reader, bytes, &rc);

    *number_out = 0;
    for (uint32_t index = 0; from && index < bytes; index++)
        *number_out |= (uint64_t)from[index] << (8 * index);
    return rc;
}

static int read_text(struct reader *reader, const char **text_out, uint64_t *bytes_out)
{
    int rc = read_number(reader, 8, bytes_out);

    if (!rc)
        *text_out = (const char *)take(reader, *bytes_out, &rc);
    return rc;
}

static void *grow(void *array, uint64_t count, uint64_t *capacity, size_t each)
{
    uint64_t wanted = *capacity ? *capacity * 2 : 64;
    void *bigger;

    if (count < *capacity)
        return array;
    bigger = realloc(array, (size_t)wanted * each);
    if (bigger)
        *capacity = wanted;
    return bigger;
}

/* A copy of a name or value, NUL-terminated; never longer than the header that it stands in. */
static char *keep(struct reader *reader, const char *text, uint64_t bytes)
{
    char *copy = heft_st_arena_text(reader->header->arena, (size_t)bytes + 1);

    if (copy) {
        memcpy(copy, text, (size_t)bytes);
        copy[bytes] = 0;
    }
    return copy;
}

/* ---- metadata ---- */

static int skip_array(struct reader *reader, char *text_out, size_t text_size)
{
    uint64_t type, count, bytes;
    const char *text;
    int rc = read_number(reader, 4, &type);

    if (!rc)
        rc = read_number(reader, 8, &count);
    if (rc)
        return rc;
    if (type >= VALUE_TYPES || type == VALUE_ARRAY)
        return heft_error_set(reader->error, HEFT_ERR_HEADER_FIELD,
                              "an array of the metadata has elements of type %" PRIu64, type);
    (void)snprintf(text_out, text_size, "[%" PRIu64 " %s]", count,
                   type == VALUE_STRING ? "strings" : "numbers");
    if (type != VALUE_STRING) {
        if (count > (reader->end - reader->at) / value_bytes[type])
            count = (reader->end - reader->at) / value_bytes[type] + 1; /* take() refuses it */
        (void)take(reader, count * value_bytes[type], &rc);
        return rc;
    }
    for (; !rc && count > 0; count--)
        rc = read_text(reader, &text, &bytes);
    return rc;
}

static int read_scalar(struct reader *reader, uint64_t type, char *text_out, size_t text_size)
{
    uint64_t number;
    int rc = read_number(reader, value_bytes[type], &number);
    uint32_t low = (uint32_t)number;
    float single;
    double real;

    switch (type) {
    case 6:
        memcpy(&single, &low, sizeof(single));
        (void)snprintf(text_out, text_size, "%.9g", (double)single);
        break;
    case 12:
        memcpy(&real, &number, sizeof(real));
        (void)snprintf(text_out, text_size, "%.17g", real);
        break;
    case 1:
        (void)snprintf(text_out, text_size, "%d", (int8_t)number);
        break;
    case 3:
        (void)snprintf(text_out, text_size, "%d", (int16_t)number);
        break;
    case 5:
        (void)snprintf(text_out, text_size, "%" PRId32, (int32_t)number);
        break;
    case 11:
        (void)snprintf(text_out, text_size, "%" PRId64, (int64_t)number);
        break;
    case VALUE_BOOL:
        (void)snprintf(text_out, text_size, "%s", number ? "true" : "false");
        break;
    default:
        (void)snprintf(text_out, text_size, "%" PRIu64, number);
    }
    if (!rc && type == VALUE_BOOL && number > 1)
        return heft_error_set(reader->error, HEFT_ERR_HEADER_FIELD,
                              "a truth value of the metadata is %" PRIu64 ", not 0 or 1", number);
    return rc;
}

static int set_alignment(struct reader *reader, uint64_t type, const char *value)
{
    uint64_t alignment = strtoull(value, NULL, 10);

    if (type != 4 || alignment == 0 || alignment > ((uint64_t)1 << 30) || (alignment & (alignment - 1)) != 0)
        return heft_error_set(reader->error, HEFT_ERR_HEADER_FIELD,
                              "general.alignment is no power of two in 32 unsigned bits");
    reader->alignment = alignment;
    return HEFT_OK;
}

static int read_pair(struct reader *reader)
{
    struct heft_st_header *header = reader->header;
    struct heft_st_pair *pairs;
    const char *key = NULL, *value = NULL;
    uint64_t key_bytes = 0, bytes = 0, type = 0;
    char text[64];
    int rc = read_text(reader, &key, &key_bytes);

    if (!rc && key_bytes > MAX_NAME_BYTES)
        return heft_error_set(reader->error, HEFT_ERR_HEADER_FIELD, "a metadata key has %" PRIu64 " bytes",
                              key_bytes);
    if (!rc)
        rc = read_number(reader, 4, &type);
    if (rc)
        return rc;
    if (type >= VALUE_TYPES)
        return heft_error_set(reader->error, HEFT_ERR_HEADER_FIELD,
                              "a metadata value has the unknown type %" PRIu64, type);
    if (type == VALUE_STRING)
        rc = read_text(reader, &value, &bytes);
    else
        rc = type == VALUE_ARRAY ? skip_array(reader, text, sizeof(text))
                                 : read_scalar(reader, type, text, sizeof(text));
    if (rc)
        return rc;
    if (type != VALUE_STRING) {
        value = text;
        bytes = strlen(text);
    }
    if (key_bytes == 17 && memcmp(key, "general.alignment", 17) == 0) {
        rc = set_alignment(reader, type, type == VALUE_STRING ? "" : text);
        if (rc)
            return rc;
    }
    pairs = grow(header->metadata, header->metadata_count, &reader->pair_capacity, sizeof(*pairs));
    if (!pairs)
        return no_memory(reader);
    header->metadata = pairs;
    pairs += header->metadata_count;
    *pairs = (struct heft_st_pair){keep(reader, key, key_bytes), keep(reader, value, bytes),
                                   (uint32_t)key_bytes, (uint32_t)bytes};
    if (!pairs->key || !pairs->value)
        return no_memory(reader);
    header->metadata_count++;
    return HEFT_OK;
}

/* ---- the tensor table ---- */

/* The dimensions stand fastest first; ours are row-major. */
static int read_shape(struct reader *reader, struct heft_st_tensor *tensor)
{
    uint64_t rank, dims[MAX_RANK], *shape;
    int rc = read_number(reader, 4, &rank);

    if (rc)
        return rc;
    if (rank > MAX_RANK)
        return heft_error_set(reader->error, HEFT_ERR_HEADER_FIELD,
                              "a tensor has %" PRIu64 " dimensions, more than %u", rank, MAX_RANK);
    for (uint64_t index = 0; !rc && index < rank; index++)
        rc = read_number(reader, 8, &dims[index]);
    if (rc)
        return rc;
    shape = heft_st_arena_numbers(reader->header->arena, (size_t)rank + 1);
    if (!shape)
        return no_memory(reader);
    for (uint64_t index = 0; index < rank; index++)
        shape[index] = dims[rank - 1 - index];
    tensor->rank = (uint32_t)rank;
    tensor->shape = shape;
    return HEFT_OK;
}

static int tensor_size(struct reader *reader, const struct heft_st_tensor *tensor, const struct type *type,
                       uint64_t *bytes_out)
{
    uint64_t count = 1;
    struct heft_quote quote;

    for (uint32_t index = 0; index < tensor->rank; index++)
        if (__builtin_mul_overflow(count, tensor->shape[index], &count))
            goto overflow;
    if (tensor->rank > 0 && tensor->shape[tensor->rank - 1] % type->elements != 0)
        return heft_error_set(reader->error, HEFT_ERR_MISALIGNED,
                              "tensor %s: rows of %" PRIu64
                              " elements are no whole blocks of %s, which has %u each",
                              heft_quote_name(&quote, tensor->name, tensor->name_bytes),
                              tensor->shape[tensor->rank - 1], type->name, type->elements);
    if (!__builtin_mul_overflow(count / type->elements, (uint64_t)type->bytes, bytes_out))
        return HEFT_OK;
overflow:
    return heft_error_set(reader->error, HEFT_ERR_SHAPE_OVERFLOW, "tensor %s: its size overflows 64 bits",
                          heft_quote_name(&quote, tensor->name, tensor->name_bytes));
}

static int read_tensor(struct reader *reader)
{
    struct heft_st_header *header = reader->header;
    struct heft_st_tensor *tensors, tensor = {0};
    uint64_t name_bytes = 0, type = 0, bytes = 0, at = reader->at;
    struct heft_quote quote;
    const char *name = NULL;
    int rc = read_text(reader, &name, &name_bytes);

    if (rc)
        return rc;
    if (name_bytes == 0 || name_bytes > MAX_NAME_BYTES)
        return heft_error_set(reader->error, HEFT_ERR_HEADER_FIELD,
                              "the tensor name at byte %" PRIu64 " has %" PRIu64 " bytes", at, name_bytes);
    tensor.name = keep(reader, name, name_bytes);
    tensor.name_bytes = (uint32_t)name_bytes;
    tensor.header_at = (uint32_t)(at + 8);
    if (!tensor.name)
        return no_memory(reader);
    rc = read_shape(reader, &tensor);
    if (!rc)
        rc = read_number(reader, 4, &type);
    if (!rc)
        rc = read_number(reader, 8, &tensor.begin);
    if (rc)
        return rc;
    if (type >= sizeof(types) / sizeof(types[0]) || !types[type].name)
        return heft_error_set(reader->error, HEFT_ERR_DTYPE, "tensor %s has the unknown type %" PRIu64,
                              heft_quote_name(&quote, name, name_bytes), type);
    tensor.dtype = types[type].name;
    tensor.dtype_bits = types[type].elements == 1 ? types[type].bytes * 8u : 0;
    rc = tensor_size(reader, &tensor, &types[type], &bytes);
    if (!rc && __builtin_add_overflow(tensor.begin, bytes, &tensor.end))
        rc = heft_error_set(reader->error, HEFT_ERR_SHAPE_OVERFLOW, "tensor %s ends past 64 bits",
                            heft_quote_name(&quote, name, name_bytes));
    if (rc)
        return rc;
    tensors = grow(header->tensors, header->tensor_count, &reader->tensor_capacity, sizeof(*tensors));
    if (!tensors)
        return no_memory(reader);
    header->tensors = tensors;
    tensors[header->tensor_count++] = tensor;
    return HEFT_OK;
}

/* ---- the whole ---- */

static int check_version(struct reader *reader)
{
    uint64_t magic, version;
    int rc = read_number(reader, 4, &magic);

    if (!rc)
        rc = read_number(reader, 4, &version);
    if (rc)
        return rc;
    if (magic != 0x46554747u)
        return heft_error_set(reader->error, HEFT_ERR_HEADER_FIELD, "the file does not begin as GGUF");
    if (version == 2 || version == 3)
        return HEFT_OK;
    if ((version & 0xffff) == 0)
        return heft_error_set(reader->error, HEFT_ERR_UNSUPPORTED,
                              "a GGUF file of the other byte order; convert it to little-endian");
    return heft_error_set(reader->error, HEFT_ERR_UNSUPPORTED,
                          "GGUF version %" PRIu64 "; versions 2 and 3 are read: convert the file again",
                          version);
}

static int check_places(struct reader *reader)
{
    struct heft_st_header *header = reader->header;
    struct heft_quote quote, other;
    uint64_t repeated = 0;
    int rc;

    rc = heft_st_repeated_tensor(header->tensors, header->tensor_count, &repeated);
    if (rc == 1)
        return heft_error_set(
            reader->error, HEFT_ERR_DUPLICATE_TENSOR, "tensor %s stands twice in one file",
            heft_quote_name(&quote, header->tensors[repeated].name, header->tensors[repeated].name_bytes));
    if (rc || heft_st_sort(header->tensors, header->tensor_count))
        return no_memory(reader);
    for (uint64_t index = 0; index < header->tensor_count; index++) {
        const struct heft_st_tensor *tensor = &header->tensors[index];

        (void)heft_quote_name(&quote, tensor->name, tensor->name_bytes);
        if (tensor->begin % reader->alignment != 0)
            return heft_error_set(reader->error, HEFT_ERR_MISALIGNED,
                                  "tensor %s begins at %" PRIu64 ", no multiple of the alignment %" PRIu64,
                                  quote.text, tensor->begin, reader->alignment);
        if (index > 0 && tensor[-1].end > tensor->begin)
            return heft_error_set(reader->error, HEFT_ERR_OFFSET_OVERLAP, "tensors %s and %s overlap",
                                  heft_quote_name(&other, tensor[-1].name, tensor[-1].name_bytes),
                                  quote.text);
        if (tensor->end > header->data_bytes)
            return heft_error_set(reader->error, HEFT_ERR_DATA_TRUNCATED,
                                  "tensor %s ends at byte %" PRIu64 " of the data, which has %" PRIu64
                                  "; incomplete download?",
                                  quote.text, tensor->end, header->data_bytes);
    }
    return HEFT_OK;
}

static int read_header(struct reader *reader)
{
    struct heft_st_header *header = reader->header;
    uint64_t tensors = 0, pairs = 0, start;
    int rc = check_version(reader);

    if (!rc)
        rc = read_number(reader, 8, &tensors);
    if (!rc)
        rc = read_number(reader, 8, &pairs);
    if (!rc && tensors > MAX_TENSORS)
        rc = heft_error_set(reader->error, HEFT_ERR_HEADER_FIELD, "the header counts %" PRIu64 " tensors",
                            tensors);
    for (; !rc && pairs > 0; pairs--)
        rc = read_pair(reader);
    for (; !rc && tensors > 0; tensors--)
        rc = read_tensor(reader);
    if (rc)
        return rc;
    start = (reader->at + reader->alignment - 1) & ~(reader->alignment - 1);
    if (start > reader->file_bytes && header->tensor_count > 0)
        return heft_error_set(reader->error, HEFT_ERR_DATA_TRUNCATED,
                              "the data would begin at byte %" PRIu64 ", past the end of the file", start);
    header->header_bytes = start - 8;
    header->sizes_known = 1;
    header->data_bytes = reader->file_bytes > start ? reader->file_bytes - start : 0;
    return check_places(reader);
}

int heft_gguf_parse(const void *data, uint64_t have_bytes, uint64_t file_bytes,
                    const struct heft_st_limits *limits, struct heft_st_header **header_out,
                    uint64_t *need_bytes_out, struct heft_error *error)
{
    uint64_t limit =
        limits && limits->header_limit_bytes ? limits->header_limit_bytes : HEFT_ST_HEADER_LIMIT_BYTES;
    struct reader reader = {
        .data = data, .have = have_bytes, .file_bytes = file_bytes, .alignment = 32, .error = error};
    int rc;

    limit = limit < UINT32_MAX ? limit : UINT32_MAX; /* places in the header have 32 bits */
    reader.end = file_bytes < limit ? file_bytes : limit;
    if (reader.have > reader.end)
        reader.have = reader.end;
    reader.header = calloc(1, sizeof(*reader.header));
    if (reader.header)
        reader.header->arena = heft_st_arena_create(reader.have);
    rc = !reader.header || !reader.header->arena ? no_memory(&reader) : read_header(&reader);
    if (!rc) {
        *header_out = reader.header;
        return HEFT_OK;
    }
    heft_st_free(reader.header);
    if (rc == HEFT_ERR_AGAIN) { /* reading doubles, so that many small steps stay linear */
        uint64_t wanted = reader.have * 2 > LEAST_READ ? reader.have * 2 : LEAST_READ;

        wanted = wanted > reader.need ? wanted : reader.need;
        *need_bytes_out = wanted < reader.end ? wanted : reader.end;
    }
    return rc;
}
