/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the header's JSON to entries, in one pass. The rules are those of the reference, which reads the
 * header through serde: an entry is an object or an array of its three values, a dtype a string or
 * {"U8":null}, unknown fields are passed over but must be JSON, a repeated field is refused.
 */
#include "format/json_scan.h"
#include "format/manifest_text.h"
#include "format/safetensors_private.h"

#include <stdlib.h>
#include <string.h>

#define METADATA_KEY "__metadata__"
#define FIELD_DEPTH 2         /* a field's value stands inside the header and its entry */
#define ENTRY_MIN_BYTES 19    /* "":["U8",[],[0,0]], */
#define PAIR_MIN_BYTES 6      /* "":"", */
#define SHAPE_CACHE_SLOTS 64u /* a power of two */

enum field { FIELD_DTYPE = 1, FIELD_SHAPE = 2, FIELD_OFFSETS = 4, FIELD_ALL = 7 };

struct shape {
    const uint64_t *dimensions;
    uint32_t rank;
};

struct reader {
    struct heft_json_scan scan;
    struct heft_st_header *header;
    struct heft_st_arena *arena;
    struct heft_error *error;
    uint64_t tensor_capacity;
    uint64_t metadata_capacity;
    const struct heft_st_dtype *dtype;      /* of the tensor before: mostly the next one's too */
    const struct heft_st_tensor *tensor;    /* being read; NULL outside of entries */
    struct shape shapes[SHAPE_CACHE_SLOTS]; /* models repeat a few shapes thousands of times */
    uint32_t flags;
    int has_metadata;
};

/* ---- refusals ---- */

static int refuse(struct reader *reader, int code, const uint8_t *at, const char *what)
{
    unsigned long long place = (unsigned long long)(at - reader->scan.start);
    struct heft_quote name;

    if (reader->tensor)
        return heft_error_set(reader->error, code, "tensor %s, byte %llu of the header: %s",
                              heft_quote_name(&name, reader->tensor->name, reader->tensor->name_bytes), place,
                              what);
    return heft_error_set(reader->error, code, "byte %llu of the header: %s", place, what);
}

/* Where the scanner failed. */
static int refuse_json(struct reader *reader)
{
    return refuse(reader, HEFT_ERR_HEADER_JSON, reader->scan.at,
                  reader->scan.at == reader->scan.end ? "the header's JSON ends too early"
                                                      : reader->scan.reason);
}

/* What stands here is of the wrong kind, or no JSON at all. */
static int refuse_field(struct reader *reader, const char *what)
{
    if (reader->scan.at == reader->scan.end)
        return refuse_json(reader);
    return refuse(reader, HEFT_ERR_HEADER_FIELD, reader->scan.at, what);
}

static int refuse_memory(struct reader *reader)
{
    return heft_error_set(reader->error, HEFT_ERR_NO_MEMORY,
                          "no memory for the entries of a header of %llu bytes",
                          (unsigned long long)reader->header->header_bytes);
}

static int refuse_dtype(struct reader *reader, const struct heft_json_text *text, const char *what)
{
    struct heft_quote tensor, dtype;

    return heft_error_set(reader->error, HEFT_ERR_DTYPE, "tensor %s, byte %llu of the header: %s %s",
                          heft_quote_name(&tensor, reader->tensor->name, reader->tensor->name_bytes),
                          (unsigned long long)(text->raw - reader->scan.start), what,
                          heft_quote_name(&dtype, (const char *)text->raw, text->raw_bytes));
}

/* ---- growth ---- */

/*
 * More room. Growing in small steps would leave a heap full of holes, so the size is guessed from what was
 * read so far: 1/16 more than the same density would need for the rest. A guess takes no more bytes than the
 * header has; beyond that, room grows by a quarter. NULL: no memory.
 */
static void *grow(struct reader *reader, void *items, uint64_t *capacity, size_t item_bytes,
                  size_t text_bytes)
{
    uint64_t total = (uint64_t)(reader->scan.end - reader->scan.start);
    uint64_t done = (uint64_t)(reader->scan.at - reader->scan.start);
    uint64_t left = (total - done) / text_bytes + 1; /* more can't follow */
    uint64_t guess = *capacity * (total - done) / (done + 1);
    uint64_t more = *capacity / 4 + 16;
    void *moved;

    guess += guess / 16;
    if (guess > more && *capacity + guess <= total / item_bytes)
        more = guess;
    if (more > left)
        more = left;
    if (*capacity + more > SIZE_MAX / item_bytes)
        return NULL;
    moved = realloc(items, (size_t)(*capacity + more) * item_bytes);
    if (!moved)
        return NULL;
    *capacity += more;
    heft_st_expect_filled(moved, (size_t)*capacity * item_bytes);
    return moved;
}

/* Gives back what growth took too much. A failure to shrink is none. */
static void *trim(void *items, uint64_t count, size_t item_bytes)
{
    void *moved;

    if (count == 0) {
        free(items);
        return NULL;
    }
    moved = realloc(items, (size_t)count * item_bytes);
    return moved ? moved : items;
}

static int keep_text(struct reader *reader, const struct heft_json_text *text, const char **kept_out)
{
    char *kept = heft_st_arena_text(reader->arena, (size_t)text->bytes + 1);

    if (!kept)
        return refuse_memory(reader);
    heft_json_decode(text, kept);
    kept[text->bytes] = 0;
    *kept_out = kept;
    return HEFT_OK;
}

/* ---- dtype ---- */

static int set_dtype(struct reader *reader, const struct heft_json_text *text, struct heft_st_tensor *tensor)
{
    const struct heft_st_dtype *dtype = reader->dtype;
    char decoded[16];

    if (!dtype || !heft_json_equals(text, dtype->name, dtype->name_bytes)) {
        dtype = NULL;
        if (text->bytes <= sizeof(decoded)) {
            heft_json_decode(text, decoded);
            dtype = heft_st_dtype_find(decoded, text->bytes);
        }
    }
    if (dtype) {
        reader->dtype = dtype;
        tensor->dtype = dtype->name;
        tensor->dtype_bits = dtype->bits;
        return HEFT_OK;
    }
    if (!(reader->flags & HEFT_ST_UNKNOWN_DTYPES))
        return refuse_dtype(reader, text, "unknown dtype");
    tensor->dtype_bits = 0;
    if (keep_text(reader, text, &tensor->dtype))
        return HEFT_ERR_NO_MEMORY;
    if (strlen(tensor->dtype) != text->bytes)
        return refuse_dtype(reader, text, "a NUL in the dtype");
    return HEFT_OK;
}

/* {"U8":null}: how serde writes a variant that carries nothing. */
static int read_dtype_object(struct reader *reader, struct heft_json_text *text)
{
    struct heft_json_scan *scan = &reader->scan;
    int more;

    scan->at++;
    if (heft_json_peek(scan) == '}')
        return refuse_field(reader, "dtype must be a string");
    if (heft_json_key(scan, text))
        return refuse_json(reader);
    if (heft_json_peek(scan) != 'n')
        return refuse_field(reader, "dtype must be a string");
    if (heft_json_word(scan, "null"))
        return refuse_json(reader);
    more = heft_json_next(scan, '}');
    if (more < 0)
        return refuse_json(reader);
    return more ? refuse_field(reader, "dtype must be a string") : HEFT_OK;
}

static int read_dtype(struct reader *reader, struct heft_st_tensor *tensor)
{
    struct heft_json_text text;
    int byte = heft_json_peek(&reader->scan);
    int rc;

    if (byte == '"') {
        if (heft_json_string(&reader->scan, &text))
            return refuse_json(reader);
    } else if (byte == '{') {
        rc = read_dtype_object(reader, &text);
        if (rc)
            return rc;
    } else {
        return refuse_field(reader, "dtype must be a string");
    }
    return set_dtype(reader, &text, tensor);
}

/* ---- shape and data_offsets ---- */

static int read_number(struct reader *reader, uint64_t *value_out)
{
    const uint8_t *from;
    int byte = heft_json_peek(&reader->scan);
    int kind;

    from = reader->scan.at;
    if (byte != '-' && (byte < '0' || byte > '9'))
        return refuse_field(reader, "expected an integer from 0 to 2^64-1");
    kind = heft_json_integer(&reader->scan, value_out);
    if (kind < 0)
        return refuse_json(reader);
    if (kind > 0)
        return refuse(reader, HEFT_ERR_HEADER_FIELD, from, "expected an integer from 0 to 2^64-1");
    return HEFT_OK;
}

/* The shape's numbers, from the arena: another tensor's when it has the same. */
static int keep_shape(struct reader *reader, const uint64_t *dimensions, uint32_t rank,
                      const uint64_t **kept_out)
{
    uint64_t mix = rank;
    struct shape *slot;
    uint64_t *kept;
    uint32_t index;

    for (index = 0; index < rank; index++)
        mix = (mix ^ dimensions[index]) * UINT64_C(0x9E3779B97F4A7C15);
    slot = &reader->shapes[mix >> 32 & (SHAPE_CACHE_SLOTS - 1)];
    if (!slot->dimensions || slot->rank != rank ||
        memcmp(slot->dimensions, dimensions, rank * sizeof(*dimensions)) != 0) {
        kept = heft_st_arena_numbers(reader->arena, rank);
        if (!kept)
            return refuse_memory(reader);
        memcpy(kept, dimensions, rank * sizeof(*dimensions));
        slot->dimensions = kept;
        slot->rank = rank;
    }
    *kept_out = slot->dimensions;
    return HEFT_OK;
}

/* Leaves out the dimensions of size one: neither the bytes nor their order change. */
static uint32_t drop_ones(uint64_t *dimensions, uint32_t rank)
{
    uint32_t from, kept = 0;

    for (from = 0; from < rank; from++)
        if (dimensions[from] != 1)
            dimensions[kept++] = dimensions[from];
    return kept;
}

/* Of more than HEFT_ST_MAX_RANK dimensions those of size one are left out. If that many are left, their
 * product is past 64 bits or, from a zero on, zero: what follows changes neither. */
static int read_shape(struct reader *reader, struct heft_st_tensor *tensor)
{
    uint64_t dimensions[HEFT_ST_MAX_RANK], dimension;
    struct heft_json_scan *scan = &reader->scan;
    uint32_t rank = 0;
    int more, is_long = 0, rc;

    if (heft_json_peek(scan) != '[')
        return refuse_field(reader, "shape must be an array");
    scan->at++;
    more = heft_json_peek(scan) != ']';
    if (!more)
        scan->at++;
    while (more > 0) {
        rc = read_number(reader, &dimension);
        if (rc)
            return rc;
        if (rank == HEFT_ST_MAX_RANK && !is_long) {
            rank = drop_ones(dimensions, rank);
            is_long = 1;
        }
        if (rank < HEFT_ST_MAX_RANK && (dimension != 1 || !is_long))
            dimensions[rank++] = dimension;
        more = heft_json_next(scan, ']');
    }
    if (more < 0)
        return refuse_json(reader);
    tensor->rank = rank;
    return keep_shape(reader, dimensions, rank, &tensor->shape);
}

static int read_offsets(struct reader *reader, struct heft_st_tensor *tensor)
{
    struct heft_json_scan *scan = &reader->scan;
    int rc, more;

    if (heft_json_peek(scan) != '[')
        return refuse_field(reader, "data_offsets must be an array of two integers");
    scan->at++;
    rc = read_number(reader, &tensor->begin);
    if (rc)
        return rc;
    more = heft_json_next(scan, ']');
    if (more < 0)
        return refuse_json(reader);
    if (!more)
        return refuse_field(reader, "data_offsets must be an array of two integers");
    rc = read_number(reader, &tensor->end);
    if (rc)
        return rc;
    more = heft_json_next(scan, ']');
    if (more < 0)
        return refuse_json(reader);
    return more ? refuse_field(reader, "data_offsets must be an array of two integers") : HEFT_OK;
}

/* ---- entries ---- */

static int read_field(struct reader *reader, enum field field, struct heft_st_tensor *tensor)
{
    return field == FIELD_DTYPE   ? read_dtype(reader, tensor)
           : field == FIELD_SHAPE ? read_shape(reader, tensor)
                                  : read_offsets(reader, tensor);
}

static int refuse_missing(struct reader *reader, int seen)
{
    return refuse(reader, HEFT_ERR_HEADER_FIELD, reader->scan.at - 1,
                  !(seen & FIELD_DTYPE)   ? "the entry ends without a dtype"
                  : !(seen & FIELD_SHAPE) ? "the entry ends without a shape"
                                          : "the entry ends without data_offsets");
}

static int field_of(const struct heft_json_text *key)
{
    switch (key->bytes) {
    case 5:
        return heft_json_equals(key, "dtype", 5)   ? FIELD_DTYPE
               : heft_json_equals(key, "shape", 5) ? FIELD_SHAPE
                                                   : 0;
    case 12:
        return heft_json_equals(key, "data_offsets", 12) ? FIELD_OFFSETS : 0;
    default:
        return 0;
    }
}

/* `at` stands behind the brace. */
static int read_object_entry(struct reader *reader, struct heft_st_tensor *tensor)
{
    struct heft_json_scan *scan = &reader->scan;
    struct heft_json_text key;
    int seen = 0;
    int more = heft_json_peek(scan) != '}';

    if (!more)
        scan->at++;
    while (more > 0) {
        int field, rc = 0;

        if (heft_json_key(scan, &key))
            return refuse_json(reader);
        field = field_of(&key);
        if (field & seen)
            return refuse(reader, HEFT_ERR_HEADER_FIELD, key.raw,
                          field == FIELD_DTYPE   ? "dtype stands twice"
                          : field == FIELD_SHAPE ? "shape stands twice"
                                                 : "data_offsets stand twice");
        seen |= field;
        if (field)
            rc = read_field(reader, (enum field)field, tensor);
        else if (heft_json_skip(scan, FIELD_DEPTH))
            rc = refuse_json(reader);
        if (rc)
            return rc;
        more = heft_json_next(scan, '}');
    }
    if (more < 0)
        return refuse_json(reader);
    return seen == FIELD_ALL ? HEFT_OK : refuse_missing(reader, seen);
}

/* ["U8",[1],[0,1]]; `at` stands behind the bracket. */
static int read_array_entry(struct reader *reader, struct heft_st_tensor *tensor)
{
    static const enum field fields[] = {FIELD_DTYPE, FIELD_SHAPE, FIELD_OFFSETS};
    struct heft_json_scan *scan = &reader->scan;
    int more = heft_json_peek(scan) != ']';
    size_t index;

    if (!more)
        scan->at++;
    for (index = 0; index < 3; index++) {
        int rc;

        if (!more)
            return refuse_missing(reader, (1 << index) - 1);
        rc = read_field(reader, fields[index], tensor);
        if (rc)
            return rc;
        more = heft_json_next(scan, ']');
        if (more < 0)
            return refuse_json(reader);
    }
    return more ? refuse_field(reader, "an entry holds dtype, shape and data_offsets, nothing else")
                : HEFT_OK;
}

static int read_tensor(struct reader *reader, const struct heft_json_text *key)
{
    struct heft_st_header *header = reader->header;
    struct heft_st_tensor tensor = {0};
    int byte, rc;

    if (header->tensor_count == reader->tensor_capacity) {
        struct heft_st_tensor *moved =
            grow(reader, header->tensors, &reader->tensor_capacity, sizeof(*moved), ENTRY_MIN_BYTES);

        if (!moved)
            return refuse_memory(reader);
        header->tensors = moved;
    }
    rc = keep_text(reader, key, &tensor.name);
    if (rc)
        return rc;
    tensor.name_bytes = key->bytes;
    tensor.header_at = (uint32_t)(key->raw - reader->scan.start) - 1;
    reader->tensor = &tensor;
    byte = heft_json_peek(&reader->scan);
    if (byte == '{' || byte == '[') {
        reader->scan.at++;
        rc = byte == '{' ? read_object_entry(reader, &tensor) : read_array_entry(reader, &tensor);
    } else {
        rc = refuse_field(reader, "a tensor's entry must be an object");
    }
    reader->tensor = NULL;
    if (rc == 0)
        header->tensors[header->tensor_count++] = tensor;
    return rc;
}

/* ---- metadata ---- */

static int read_pair(struct reader *reader)
{
    struct heft_st_header *header = reader->header;
    struct heft_json_text key, value;
    struct heft_st_pair *pair;
    int rc;

    if (header->metadata_count == reader->metadata_capacity) {
        struct heft_st_pair *moved =
            grow(reader, header->metadata, &reader->metadata_capacity, sizeof(*moved), PAIR_MIN_BYTES);

        if (!moved)
            return refuse_memory(reader);
        header->metadata = moved;
    }
    if (heft_json_key(&reader->scan, &key))
        return refuse_json(reader);
    if (heft_json_peek(&reader->scan) != '"')
        return refuse_field(reader, "a value of __metadata__ must be a string");
    if (heft_json_string(&reader->scan, &value))
        return refuse_json(reader);
    pair = &header->metadata[header->metadata_count];
    rc = keep_text(reader, &key, &pair->key);
    if (rc == 0)
        rc = keep_text(reader, &value, &pair->value);
    if (rc)
        return rc;
    pair->key_bytes = key.bytes;
    pair->value_bytes = value.bytes;
    header->metadata_count++;
    return HEFT_OK;
}

static int read_metadata(struct reader *reader, const struct heft_json_text *key)
{
    struct heft_json_scan *scan = &reader->scan;
    int byte = heft_json_peek(scan);
    int more, rc;

    if (reader->has_metadata)
        return refuse(reader, HEFT_ERR_HEADER_FIELD, key->raw - 1, "__metadata__ stands twice");
    reader->has_metadata = 1;
    if (byte == 'n')
        return heft_json_word(scan, "null") ? refuse_json(reader) : HEFT_OK;
    if (byte != '{')
        return refuse_field(reader, "__metadata__ must be an object of strings");
    scan->at++;
    more = heft_json_peek(scan) != '}';
    if (!more)
        scan->at++;
    while (more > 0) {
        rc = read_pair(reader);
        if (rc)
            return rc;
        more = heft_json_next(scan, '}');
    }
    return more < 0 ? refuse_json(reader) : HEFT_OK;
}

/* ---- the header ---- */

static int read_header(struct reader *reader)
{
    struct heft_json_scan *scan = &reader->scan;
    struct heft_json_text key;
    int more, rc;

    if (heft_json_peek(scan) != '{') {
        (void)heft_json_fail(scan, "the header must be a JSON object");
        return refuse_json(reader);
    }
    scan->at++;
    more = heft_json_peek(scan) != '}';
    if (!more)
        scan->at++;
    while (more > 0) {
        if (heft_json_key(scan, &key))
            return refuse_json(reader);
        rc = heft_json_equals(&key, METADATA_KEY, sizeof(METADATA_KEY) - 1) ? read_metadata(reader, &key)
                                                                            : read_tensor(reader, &key);
        if (rc)
            return rc;
        more = heft_json_next(scan, '}');
    }
    if (more < 0)
        return refuse_json(reader);
    if (heft_json_peek(scan) >= 0)
        return refuse(reader, HEFT_ERR_HEADER_JSON, scan->at, "something follows the header's closing brace");
    return HEFT_OK;
}

int heft_st_read_entries(const void *json, uint64_t json_bytes, uint32_t flags, struct heft_st_header *header,
                         struct heft_error *error)
{
    size_t valid = heft_utf8_span(json, json_bytes);
    struct reader reader = {
        .header = header,
        .arena = header->arena,
        .error = error,
        .flags = flags,
    };
    int rc;

    if (valid != json_bytes)
        return heft_error_set(error, HEFT_ERR_HEADER_UTF8, "byte %llu of the header is not UTF-8",
                              (unsigned long long)valid);
    heft_json_init(&reader.scan, json, json_bytes);
    rc = read_header(&reader);
    if (rc)
        return rc;
    header->tensors = trim(header->tensors, header->tensor_count, sizeof(*header->tensors));
    header->metadata = trim(header->metadata, header->metadata_count, sizeof(*header->metadata));
    return HEFT_OK;
}
