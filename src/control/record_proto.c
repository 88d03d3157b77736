/* SPDX-License-Identifier: Apache-2.0 */
#include "control/record_proto.h"
#include "base/error.h"
#include "directory.pb-c.h"

#include <stdlib.h>
#include <string.h>

#define ARENA_CHUNK_BYTES 4096u

struct arena_chunk {
    struct arena_chunk *next;
    size_t size, used;
    _Alignas(max_align_t) uint8_t bytes[];
};

static void *arena_alloc(void *context, size_t size)
{
    struct heft_proto_arena *arena = context;
    struct arena_chunk *chunk = arena->chunks;
    size_t want = (size + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    size_t room;

    if (want < size || want > arena->limit - arena->used)
        return NULL;
    if (!chunk || chunk->size - chunk->used < want) {
        room = want > ARENA_CHUNK_BYTES ? want : ARENA_CHUNK_BYTES;
        chunk = malloc(sizeof(*chunk) + room);
        if (!chunk)
            return NULL;
        chunk->next = arena->chunks;
        chunk->size = room;
        chunk->used = 0;
        arena->chunks = chunk;
    }
    arena->used += want;
    chunk->used += want;
    return chunk->bytes + chunk->used - want;
}

static void arena_forget(void *context, void *data)
{
    (void)context;
    (void)data;
}

void heft_proto_arena_init(struct heft_proto_arena *arena, size_t message_bytes)
{
    memset(arena, 0, sizeof(*arena));
    arena->allocator.alloc = arena_alloc;
    arena->allocator.free = arena_forget;
    arena->allocator.allocator_data = arena;
    arena->limit = HEFT_DECODE_MEMORY_MIN + message_bytes * HEFT_DECODE_MEMORY_FACTOR;
}

void heft_proto_arena_free(struct heft_proto_arena *arena)
{
    struct arena_chunk *chunk = arena->chunks;

    while (chunk) {
        struct arena_chunk *next = chunk->next;

        free(chunk);
        chunk = next;
    }
    arena->chunks = NULL;
    arena->used = 0;
}

void *heft_proto_decode(struct heft_proto_arena *arena, const ProtobufCMessageDescriptor *descriptor,
                        const void *data, size_t size_bytes)
{
    static const uint8_t empty[1];

    return protobuf_c_message_unpack(descriptor, &arena->allocator, size_bytes, size_bytes ? data : empty);
}

int heft_proto_encode(const void *message, struct heft_buf *buf)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *at = heft_buf_extend(buf, size);

    if (!at && (size || buf->failed))
        return buf->failed ? buf->failed : HEFT_ERR_NO_MEMORY;
    if (size)
        (void)protobuf_c_message_pack(message, at);
    return 0;
}

char *heft_proto_text(const char *text)
{
    union {
        const char *in;
        char *out;
    } view = {text ? text : ""};

    return view.out;
}

size_t heft_proto_varint(uint8_t *at, uint64_t value)
{
    size_t used = 0;

    while (value >= 0x80) {
        at[used++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    at[used++] = (uint8_t)value;
    return used;
}

static int check_text(const char *name, const char *field, const char *text, size_t max_bytes,
                      struct heft_error *error)
{
    if (heft_text_is_clean(text, max_bytes))
        return 0;
    return heft_error_set(
        error, HEFT_ERR_INVALID,
        "record '%.64s': %s must be UTF-8 text without control characters, at most %zu bytes", name, field,
        max_bytes);
}

static int check_identity(const char *name, const Heft__V1__Identity *identity, struct heft_error *error)
{
    size_t index;
    int result;

    if (!identity)
        return 0;
    if ((result = check_text(name, "model", identity->model, HEFT_RECORD_MAX_TEXT_BYTES, error)) ||
        (result = check_text(name, "revision", identity->revision, HEFT_RECORD_MAX_TEXT_BYTES, error)) ||
        (result = check_text(name, "stage", identity->stage, HEFT_RECORD_MAX_TEXT_BYTES, error)) ||
        (result = check_text(name, "engine", identity->engine, HEFT_RECORD_MAX_TEXT_BYTES, error)) ||
        (result = check_text(name, "rank", identity->rank, HEFT_RECORD_MAX_TEXT_BYTES, error)))
        return result;
    if (identity->n_pairs > HEFT_IDENTITY_MAX_PAIRS)
        return heft_error_set(error, HEFT_ERR_TOO_MANY,
                              "record '%s': %zu identity pairs are over the limit of %u", name,
                              identity->n_pairs, HEFT_IDENTITY_MAX_PAIRS);
    for (index = 0; index < identity->n_pairs; index++) {
        const Heft__V1__Pair *pair = identity->pairs[index];

        if ((result = check_text(name, "an identity key", pair->key, HEFT_RECORD_MAX_TEXT_BYTES, error)) ||
            (result = check_text(name, "an identity value", pair->value, HEFT_RECORD_MAX_TEXT_BYTES, error)))
            return result;
        if (index > 0 && strcmp(identity->pairs[index - 1]->key, pair->key) >= 0)
            return heft_error_set(error, HEFT_ERR_INVALID,
                                  "record '%s': identity keys must be sorted and different ('%.64s')", name,
                                  pair->key);
    }
    return 0;
}

int heft_record_proto_check(const Heft__V1__Record *message, struct heft_error *error)
{
    int result;

    if (!message->name[0])
        return heft_error_set(error, HEFT_ERR_INVALID, "a record without a name");
    if ((result = check_text(message->name, "the name", message->name, HEFT_NAME_MAX_BYTES, error)) ||
        (result = check_text(message->name, "the addresses", message->addresses,
                             HEFT_RECORD_MAX_ADDRESSES_BYTES - 1, error)) ||
        (result = check_text(message->name, "the part", message->part, HEFT_RECORD_MAX_TEXT_BYTES, error)) ||
        (result = check_identity(message->name, message->identity, error)))
        return result;
    if (message->generation.len != HEFT_GENERATION_BYTES)
        return heft_error_set(error, HEFT_ERR_INVALID, "record '%s': a generation has %d bytes, not %zu",
                              message->name, HEFT_GENERATION_BYTES, message->generation.len);
    if (message->token.len != 0 && message->token.len != HEFT_TOKEN_BYTES)
        return heft_error_set(error, HEFT_ERR_INVALID, "record '%s': a token has %d bytes, not %zu",
                              message->name, HEFT_TOKEN_BYTES, message->token.len);
    if ((message->metadata.len != 0) != heft_record_name_is_agent(message->name))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "record '%s': an agent's record has metadata and a name that begins with "
                              "'" HEFT_RECORD_AGENTS "', a replica's neither",
                              message->name);
    if (message->metadata.len > HEFT_RECORD_MAX_METADATA_BYTES)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE,
                              "record '%s': %zu bytes of metadata are over the limit of %zu: publish fewer "
                              "regions, larger ones",
                              message->name, message->metadata.len, HEFT_RECORD_MAX_METADATA_BYTES);
    return heft_record_check_held(message->name, message->block_count, message->held_blocks,
                                  message->held.data, message->held.len, error);
}

int heft_record_proto_encode(const struct heft_record *record, struct heft_buf *buf, struct heft_error *error)
{
    static const struct heft_token no_token;
    struct heft_generation generation = record->generation;
    struct heft_token token = record->token;
    Heft__V1__Record message = HEFT__V1__RECORD__INIT;
    Heft__V1__Identity identity = HEFT__V1__IDENTITY__INIT;
    Heft__V1__Pair pairs[HEFT_IDENTITY_MAX_PAIRS], *pointers[HEFT_IDENTITY_MAX_PAIRS];
    uint32_t index;
    int result;

    if (record->identity.pair_count > HEFT_IDENTITY_MAX_PAIRS)
        return heft_error_set(error, HEFT_ERR_TOO_MANY,
                              "record '%s': %u identity pairs are over the limit of %u", record->name,
                              record->identity.pair_count, HEFT_IDENTITY_MAX_PAIRS);
    for (index = 0; index < record->identity.pair_count; index++) {
        heft__v1__pair__init(&pairs[index]);
        pairs[index].key = heft_proto_text(record->identity.pairs[index].key);
        pairs[index].value = heft_proto_text(record->identity.pairs[index].value);
        pointers[index] = &pairs[index];
    }
    identity.model = heft_proto_text(record->identity.model);
    identity.revision = heft_proto_text(record->identity.revision);
    identity.stage = heft_proto_text(record->identity.stage);
    identity.engine = heft_proto_text(record->identity.engine);
    identity.rank = heft_proto_text(record->identity.rank);
    identity.n_pairs = record->identity.pair_count;
    identity.pairs = pointers;
    message.identity = &identity;
    message.name = heft_proto_text(record->name);
    message.addresses = heft_proto_text(record->addresses);
    message.generation.data = generation.bytes;
    message.generation.len = sizeof(generation.bytes);
    if (memcmp(&token, &no_token, sizeof(token)) != 0) {
        message.token.data = token.bytes;
        message.token.len = sizeof(token.bytes);
    }
    message.table_digest = record->table_digest;
    message.content_digest = record->content_digest;
    message.tensor_count = record->tensor_count;
    message.total_bytes = record->total_bytes;
    message.whole_bytes = record->whole_bytes;
    message.part = heft_proto_text(record->part);
    message.block_count = record->block_count;
    message.held_blocks = record->held ? record->held_blocks : record->block_count;
    if (record->held && record->held_blocks != record->block_count) {
        message.held.data = record->held;
        message.held.len = (size_t)((record->block_count + 7) / 8);
    }
    message.metadata.data = record->metadata;
    message.metadata.len = record->metadata ? record->metadata_bytes : 0;
    message.lease_ms = record->lease_ms;
    result = heft_record_proto_check(&message, error);
    if (!result && (result = heft_proto_encode(&message, buf)))
        result = heft_error_set(error, result, "record '%s': %s", record->name, heft_error_text(result));
    return result;
}

static int read_identity(const Heft__V1__Identity *message, struct heft_record *record)
{
    struct heft_identity_pair pairs[HEFT_IDENTITY_MAX_PAIRS];
    struct heft_identity identity = {"", "", "", "", "", pairs, 0};

    if (message) {
        identity.model = message->model;
        identity.revision = message->revision;
        identity.stage = message->stage;
        identity.engine = message->engine;
        identity.rank = message->rank;
        for (; identity.pair_count < message->n_pairs; identity.pair_count++) {
            pairs[identity.pair_count].key = message->pairs[identity.pair_count]->key;
            pairs[identity.pair_count].value = message->pairs[identity.pair_count]->value;
        }
    }
    return heft_record_set_identity(record, &identity);
}

int heft_record_proto_read(const Heft__V1__Record *message, struct heft_record *record_out,
                           struct heft_error *error)
{
    struct heft_record record;
    int result = heft_record_proto_check(message, error);

    if (result)
        return result;
    memset(&record, 0, sizeof(record));
    record.name = strdup(message->name);
    record.addresses = strdup(message->addresses);
    record.part = strdup(message->part);
    if (message->held.len) {
        record.held = malloc(message->held.len);
        if (record.held)
            memcpy(record.held, message->held.data, message->held.len);
    }
    if (message->metadata.len) {
        record.metadata = malloc(message->metadata.len);
        if (record.metadata)
            memcpy(record.metadata, message->metadata.data, message->metadata.len);
        record.metadata_bytes = message->metadata.len;
    }
    if (!record.name || !record.addresses || !record.part || (message->held.len && !record.held) ||
        (message->metadata.len && !record.metadata) || read_identity(message->identity, &record)) {
        heft_record_free(&record);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "record '%s': out of memory", message->name);
    }
    memcpy(record.generation.bytes, message->generation.data, HEFT_GENERATION_BYTES);
    if (message->token.len)
        memcpy(record.token.bytes, message->token.data, HEFT_TOKEN_BYTES);
    record.table_digest = message->table_digest;
    record.content_digest = message->content_digest;
    record.tensor_count = message->tensor_count;
    record.total_bytes = message->total_bytes;
    record.whole_bytes = message->whole_bytes;
    record.block_count = message->block_count;
    record.held_blocks = message->held_blocks;
    record.lease_ms = message->lease_ms;
    record.lease_left_ms = message->lease_left_ms;
    record.published_wall_ms = message->published_wall_ms;
    *record_out = record;
    return 0;
}
