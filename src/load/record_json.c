/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers that are identities (digests, generations, tokens, bitmaps) are hexadecimal strings: JSON's numbers
 * would lose bits in many readers. Sizes and counts are plain numbers.
 */
#include "load/record_json.h"
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void heft_hex_print(const void *data, size_t size_bytes, char *text_out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *bytes = data;
    size_t index;

    for (index = 0; index < size_bytes; index++) {
        text_out[2 * index] = digits[bytes[index] >> 4];
        text_out[2 * index + 1] = digits[bytes[index] & 15];
    }
    text_out[2 * size_bytes] = 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int heft_hex_parse(const char *text, void *data_out, size_t size_bytes)
{
    uint8_t *bytes = data_out;
    size_t index;

    if (strlen(text) != 2 * size_bytes)
        return 0;
    for (index = 0; index < size_bytes; index++) {
        int high = hex_digit(text[2 * index]), low = hex_digit(text[2 * index + 1]);

        if (high < 0 || low < 0)
            return 0;
        bytes[index] = (uint8_t)(high << 4 | low);
    }
    return 1;
}

static json_t *hex_bytes(const void *data, size_t size_bytes)
{
    char *text = malloc(2 * size_bytes + 1);
    json_t *string;

    if (!text)
        return NULL;
    heft_hex_print(data, size_bytes, text);
    string = json_stringn(text, 2 * size_bytes);
    free(text);
    return string;
}

static json_t *hex_number(uint64_t value)
{
    char text[17];

    (void)snprintf(text, sizeof(text), "%016llx", (unsigned long long)value);
    return json_string(text);
}

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)(value > INT64_MAX ? INT64_MAX : value));
}

static json_t *string(const char *text)
{
    return json_string(text ? text : "");
}

static json_t *identity_to_json(const struct heft_identity *identity)
{
    json_t *object = json_object(), *pairs = json_object();
    uint32_t index;
    int failed = 0;

    for (index = 0; index < identity->pair_count; index++)
        failed |=
            json_object_set_new(pairs, identity->pairs[index].key, string(identity->pairs[index].value));
    failed |= json_object_set_new(object, "model", string(identity->model));
    failed |= json_object_set_new(object, "revision", string(identity->revision));
    failed |= json_object_set_new(object, "stage", string(identity->stage));
    failed |= json_object_set_new(object, "engine", string(identity->engine));
    failed |= json_object_set_new(object, "rank", string(identity->rank));
    failed |= json_object_set_new(object, "pairs", pairs);
    if (!failed)
        return object;
    json_decref(object);
    return NULL;
}

json_t *heft_record_to_json(const struct heft_record *record, int with_token)
{
    json_t *object = json_object();
    int failed = 0;

    failed |= json_object_set_new(object, "name", string(record->name));
    failed |=
        json_object_set_new(object, "generation", hex_bytes(&record->generation, HEFT_GENERATION_BYTES));
    if (with_token)
        failed |= json_object_set_new(object, "token", hex_bytes(&record->token, HEFT_TOKEN_BYTES));
    failed |= json_object_set_new(object, "addresses", string(record->addresses));
    failed |= json_object_set_new(object, "identity", identity_to_json(&record->identity));
    failed |= json_object_set_new(object, "table_digest", hex_number(record->table_digest));
    failed |= json_object_set_new(object, "content_digest", hex_number(record->content_digest));
    failed |= json_object_set_new(object, "tensor_count", number(record->tensor_count));
    failed |= json_object_set_new(object, "total_bytes", number(record->total_bytes));
    failed |= json_object_set_new(object, "whole_bytes", number(record->whole_bytes));
    failed |= json_object_set_new(object, "part", string(record->part));
    failed |= json_object_set_new(object, "block_count", number(record->block_count));
    failed |= json_object_set_new(object, "held_blocks",
                                  number(record->held ? record->held_blocks : record->block_count));
    if (record->held && record->held_blocks != record->block_count)
        failed |= json_object_set_new(object, "held",
                                      hex_bytes(record->held, (size_t)((record->block_count + 7) / 8)));
    if (record->metadata)
        failed |=
            json_object_set_new(object, "metadata", hex_bytes(record->metadata, record->metadata_bytes));
    failed |= json_object_set_new(object, "lease_ms", number(record->lease_ms));
    failed |= json_object_set_new(object, "published_wall_ms", number(record->published_wall_ms));
    if (!failed)
        return object;
    json_decref(object);
    return NULL;
}

/* The reader: sticky, the first wrong member is named. */
struct json_reader {
    json_t *object;
    const char *wrong;
};

static const char *read_text(struct json_reader *reader, const char *key, size_t max_bytes)
{
    json_t *value = json_object_get(reader->object, key);

    if (!value)
        return "";
    if (json_is_string(value) && json_string_length(value) == strlen(json_string_value(value)) &&
        heft_text_is_clean(json_string_value(value), max_bytes))
        return json_string_value(value);
    reader->wrong = key;
    return "";
}

static uint64_t read_number(struct json_reader *reader, const char *key, uint64_t absent)
{
    json_t *value = json_object_get(reader->object, key);

    if (!value)
        return absent;
    if (json_is_integer(value) && json_integer_value(value) >= 0)
        return (uint64_t)json_integer_value(value);
    reader->wrong = key;
    return 0;
}

/* All zero when absent. */
static void read_hex(struct json_reader *reader, const char *key, void *data_out, size_t size_bytes)
{
    json_t *value = json_object_get(reader->object, key);

    memset(data_out, 0, size_bytes);
    if (value && (!json_is_string(value) || !heft_hex_parse(json_string_value(value), data_out, size_bytes)))
        reader->wrong = key;
}

static uint64_t read_hex_number(struct json_reader *reader, const char *key)
{
    uint8_t bytes[8];
    uint64_t value = 0;
    size_t index;

    read_hex(reader, key, bytes, sizeof(bytes));
    for (index = 0; index < sizeof(bytes); index++)
        value = value << 8 | bytes[index];
    return value;
}

static int compare_pairs(const void *left, const void *right)
{
    return strcmp(((const struct heft_identity_pair *)left)->key,
                  ((const struct heft_identity_pair *)right)->key);
}

static int read_identity(struct json_reader *reader, struct heft_record *record)
{
    struct heft_identity_pair pairs[HEFT_IDENTITY_MAX_PAIRS];
    struct heft_identity identity = {.pairs = pairs};
    struct json_reader inner = {json_object_get(reader->object, "identity"), NULL};
    json_t *members = inner.object ? json_object_get(inner.object, "pairs") : NULL, *value;
    const char *key;

    if ((inner.object && !json_is_object(inner.object)) || (members && !json_is_object(members)) ||
        json_object_size(members) > HEFT_IDENTITY_MAX_PAIRS) {
        reader->wrong = "identity";
        return 0;
    }
    identity.model = read_text(&inner, "model", HEFT_RECORD_MAX_TEXT_BYTES);
    identity.revision = read_text(&inner, "revision", HEFT_RECORD_MAX_TEXT_BYTES);
    identity.stage = read_text(&inner, "stage", HEFT_RECORD_MAX_TEXT_BYTES);
    identity.engine = read_text(&inner, "engine", HEFT_RECORD_MAX_TEXT_BYTES);
    identity.rank = read_text(&inner, "rank", HEFT_RECORD_MAX_TEXT_BYTES);
    json_object_foreach(members, key, value)
    {
        if (!json_is_string(value) || !heft_text_is_clean(key, HEFT_RECORD_MAX_TEXT_BYTES) ||
            !heft_text_is_clean(json_string_value(value), HEFT_RECORD_MAX_TEXT_BYTES))
            inner.wrong = "pairs";
        pairs[identity.pair_count].key = key;
        pairs[identity.pair_count++].value = json_is_string(value) ? json_string_value(value) : "";
    }
    qsort(pairs, identity.pair_count, sizeof(pairs[0]), compare_pairs);
    if (inner.wrong)
        reader->wrong = inner.wrong;
    return heft_record_set_identity(record, &identity);
}

static int read_held(struct json_reader *reader, struct heft_record *record, struct heft_error *error)
{
    json_t *value = json_object_get(reader->object, "held");
    size_t bytes = value && json_is_string(value) ? json_string_length(value) / 2 : 0;

    if (bytes) {
        record->held = malloc(bytes);
        if (!record->held)
            return HEFT_ERR_NO_MEMORY;
        read_hex(reader, "held", record->held, bytes);
    } else if (value) {
        reader->wrong = "held";
    }
    return reader->wrong ? 0
                         : heft_record_check_held(record->name, record->block_count, record->held_blocks,
                                                  record->held, bytes, error);
}

static int read_metadata(struct json_reader *reader, struct heft_record *record)
{
    json_t *value = json_object_get(reader->object, "metadata");
    size_t bytes = value && json_is_string(value) ? json_string_length(value) / 2 : 0;

    if ((bytes != 0) != heft_record_name_is_agent(record->name) || bytes > HEFT_RECORD_MAX_METADATA_BYTES)
        reader->wrong = "metadata";
    if (!bytes || reader->wrong)
        return 0;
    record->metadata = malloc(bytes);
    if (!record->metadata)
        return HEFT_ERR_NO_MEMORY;
    record->metadata_bytes = bytes;
    read_hex(reader, "metadata", record->metadata, bytes);
    return 0;
}

int heft_record_from_json(json_t *object, struct heft_record *record_out, struct heft_error *error)
{
    struct json_reader reader = {object, NULL};
    struct heft_record record;
    int result;

    if (!json_is_object(object))
        return heft_error_set(error, HEFT_ERR_MANIFEST, "a record is not a JSON object");
    memset(&record, 0, sizeof(record));
    record.name = strdup(read_text(&reader, "name", HEFT_NAME_MAX_BYTES));
    record.addresses = strdup(read_text(&reader, "addresses", HEFT_RECORD_MAX_ADDRESSES_BYTES - 1));
    record.part = strdup(read_text(&reader, "part", HEFT_RECORD_MAX_TEXT_BYTES));
    result =
        record.name && record.addresses && record.part ? read_identity(&reader, &record) : HEFT_ERR_NO_MEMORY;
    if (result) {
        heft_record_free(&record);
        return heft_error_set(error, result, "reading a record: %s", heft_error_text(result));
    }
    if (!record.name[0])
        reader.wrong = "name";
    read_hex(&reader, "generation", &record.generation, HEFT_GENERATION_BYTES);
    read_hex(&reader, "token", &record.token, HEFT_TOKEN_BYTES);
    record.table_digest = read_hex_number(&reader, "table_digest");
    record.content_digest = read_hex_number(&reader, "content_digest");
    record.tensor_count = read_number(&reader, "tensor_count", 0);
    record.total_bytes = read_number(&reader, "total_bytes", 0);
    record.whole_bytes = read_number(&reader, "whole_bytes", 0);
    record.block_count = read_number(&reader, "block_count", 0);
    record.held_blocks = read_number(&reader, "held_blocks", record.block_count);
    record.lease_ms = read_number(&reader, "lease_ms", 0);
    record.published_wall_ms = read_number(&reader, "published_wall_ms", 0);
    result = read_held(&reader, &record, error);
    if (!result)
        result = read_metadata(&reader, &record);
    if (!result && reader.wrong)
        result = heft_error_set(error, HEFT_ERR_MANIFEST, "record '%s': member \"%s\" is missing or wrong",
                                record.name, reader.wrong);
    if (result) {
        heft_record_free(&record);
        return result;
    }
    *record_out = record;
    return 0;
}
