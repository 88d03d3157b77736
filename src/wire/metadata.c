/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/metadata.h"

#include "base/digest.h"
#include "base/error.h"

#include <heft/space.h>
#include <string.h>

#define HEAD_BYTES 24u
#define CHECK_BYTES 8u
#define FIELD_HEAD_BYTES 8u
#define ENTRY_BYTES 24u
#define ENTRY_MAX_BYTES 256u /* of a later version's entries */

static const uint8_t magic[8] = {'H', 'E', 'F', 'T', 'M', 'E', 'T', 'A'};

static void put_field(struct heft_buf *buf, uint16_t tag, uint64_t size)
{
    heft_buf_u16(buf, tag);
    heft_buf_u16(buf, 0);
    heft_buf_u32(buf, (uint32_t)size);
}

static void put_bytes(struct heft_buf *buf, uint16_t tag, const void *data, size_t size)
{
    put_field(buf, tag, size);
    heft_buf_bytes(buf, data, size);
}

void heft_wire_put_metadata(struct heft_buf *buf, const struct heft_wire_metadata *metadata)
{
    heft_buf_bytes(buf, magic, sizeof(magic));
    heft_buf_u16(buf, HEFT_METADATA_VERSION);
    heft_buf_u16(buf, HEFT_METADATA_VERSION);
    heft_buf_u32(buf, 0);
    heft_buf_u64(buf, 0); /* the size: finish sets it */
    put_bytes(buf, HEFT_METADATA_NAME, metadata->name.data, metadata->name.size);
    put_bytes(buf, HEFT_METADATA_GENERATION, metadata->generation, HEFT_WIRE_GENERATION_BYTES);
    if (metadata->token)
        put_bytes(buf, HEFT_METADATA_TOKEN, metadata->token, HEFT_METADATA_TOKEN_BYTES);
    put_bytes(buf, HEFT_METADATA_ADDRESSES, metadata->addresses.data, metadata->addresses.size);
    put_field(buf, HEFT_METADATA_EPOCHS, 16);
    heft_buf_u64(buf, metadata->epoch);
    heft_buf_u64(buf, metadata->base);
    put_field(buf, HEFT_METADATA_REGIONS, 8 + (uint64_t)metadata->region_count * ENTRY_BYTES);
    heft_buf_u16(buf, ENTRY_BYTES);
    heft_buf_u16(buf, 0);
    heft_buf_u32(buf, metadata->region_count);
}

void heft_wire_put_metadata_region(struct heft_buf *buf, const struct heft_wire_region *region)
{
    heft_buf_u64(buf, region->id);
    heft_buf_u64(buf, region->length_bytes);
    heft_buf_u32(buf, region->flags);
    heft_buf_u32(buf, region->space);
}

int heft_wire_finish_metadata(struct heft_buf *buf, const uint64_t *gone, uint32_t gone_count)
{
    uint32_t index;

    if (gone_count)
        put_field(buf, HEFT_METADATA_GONE, (uint64_t)gone_count * 8);
    for (index = 0; index < gone_count; index++)
        heft_buf_u64(buf, gone[index]);
    if (!buf->failed)
        heft_put_u64(buf->data + 16, buf->size + CHECK_BYTES);
    if (!buf->failed)
        heft_buf_u64(buf, heft_hash64(buf->data, buf->size, 0));
    return buf->failed;
}

/* What the field must look like; metadata_out is filled in. */
static int take_field(struct heft_wire_metadata *metadata, uint16_t tag, const uint8_t *at, uint32_t size)
{
    struct heft_reader reader;

    heft_reader_init(&reader, at, size);
    switch (tag) {
    case HEFT_METADATA_NAME:
        metadata->name = (struct heft_wire_text){(const char *)at, size};
        return size >= 1 && size <= HEFT_WIRE_NAME_MAX_BYTES;
    case HEFT_METADATA_GENERATION:
        metadata->generation = at;
        return size == HEFT_WIRE_GENERATION_BYTES;
    case HEFT_METADATA_TOKEN:
        metadata->token = at;
        return size == HEFT_METADATA_TOKEN_BYTES;
    case HEFT_METADATA_ADDRESSES:
        metadata->addresses = (struct heft_wire_text){(const char *)at, size};
        return size <= HEFT_METADATA_MAX_ADDRESSES_BYTES;
    case HEFT_METADATA_EPOCHS:
        metadata->epoch = heft_reader_u64(&reader);
        metadata->base = heft_reader_u64(&reader);
        return !reader.failed && metadata->base <= metadata->epoch;
    case HEFT_METADATA_REGIONS:
        metadata->entry_bytes = heft_reader_u16(&reader);
        (void)heft_reader_u16(&reader);
        metadata->region_count = heft_reader_u32(&reader);
        metadata->regions = reader.at;
        return !reader.failed && metadata->entry_bytes >= ENTRY_BYTES &&
               metadata->entry_bytes <= ENTRY_MAX_BYTES &&
               metadata->region_count <= HEFT_METADATA_MAX_REGIONS &&
               heft_reader_left(&reader) == (uint64_t)metadata->region_count * metadata->entry_bytes;
    default: /* GONE */
        metadata->gone = at;
        metadata->gone_count = size / 8;
        return size % 8 == 0;
    }
}

/* Text that may stand in a sentence. */
static int text_ok(struct heft_wire_text text)
{
    size_t index;

    for (index = 0; index < text.size; index++)
        if ((unsigned char)text.data[index] < 0x20 || text.data[index] == 0x7f)
            return 0;
    return 1;
}

/* Ids ascend, none is 0. */
static int ids_ok(const struct heft_wire_metadata *metadata)
{
    uint64_t last = 0, id;
    uint32_t index;

    for (index = 0; index < metadata->region_count; index++, last = id) {
        id = heft_get_u64(metadata->regions + (size_t)index * metadata->entry_bytes);
        if (id <= last)
            return 0;
    }
    for (last = 0, index = 0; index < metadata->gone_count; index++, last = id) {
        id = heft_get_u64(metadata->gone + (size_t)index * 8);
        if (id <= last)
            return 0;
    }
    return 1;
}

static int get_fields(struct heft_reader *reader, struct heft_wire_metadata *metadata,
                      struct heft_error *error)
{
    uint32_t seen = 0;

    while (heft_reader_left(reader)) {
        uint16_t tag = heft_reader_u16(reader), flags = heft_reader_u16(reader);
        uint32_t size = heft_reader_u32(reader);
        const uint8_t *at = heft_reader_bytes(reader, size);

        if (reader->failed || !at)
            return heft_error_set(error, HEFT_ERR_PROTOCOL, "metadata: field %u reaches past the end", tag);
        if (tag < HEFT_METADATA_NAME || tag > HEFT_METADATA_GONE) {
            if (flags & HEFT_METADATA_NEEDED)
                return heft_error_set(error, HEFT_ERR_INCOMPATIBLE,
                                      "metadata of version %u needs its field %u, which version %u, this "
                                      "library's, does not know: use the same release on both sides",
                                      metadata->version, tag, HEFT_METADATA_VERSION);
            continue;
        }
        if (seen & 1u << tag || !take_field(metadata, tag, at, size))
            return heft_error_set(error, HEFT_ERR_PROTOCOL, "metadata: field %u is malformed", tag);
        seen |= 1u << tag;
    }
    if (!metadata->generation || !metadata->name.size || !(seen & 1u << HEFT_METADATA_EPOCHS))
        return heft_error_set(error, HEFT_ERR_PROTOCOL, "metadata without name, generation or epoch");
    if (!text_ok(metadata->name) || !text_ok(metadata->addresses) || !ids_ok(metadata))
        return heft_error_set(error, HEFT_ERR_PROTOCOL,
                              "metadata: control characters in a text, or ids out of order");
    return 0;
}

int heft_wire_get_metadata(const void *data, uint64_t size, struct heft_wire_metadata *metadata_out,
                           struct heft_error *error)
{
    const uint8_t *bytes = data;
    struct heft_wire_metadata metadata = {0};
    struct heft_reader reader;
    uint16_t lowest;
    int rc;

    if (size < sizeof(magic) || memcmp(bytes, magic, sizeof(magic)) != 0)
        return heft_error_set(error, size < sizeof(magic) ? HEFT_ERR_TRUNCATED : HEFT_ERR_PROTOCOL,
                              "%llu bytes that are no metadata of a heft agent", (unsigned long long)size);
    if (size < HEAD_BYTES + CHECK_BYTES)
        return heft_error_set(error, HEFT_ERR_TRUNCATED, "metadata cut off after %llu bytes",
                              (unsigned long long)size);
    metadata.version = heft_get_u16(bytes + 8);
    lowest = heft_get_u16(bytes + 10);
    if (lowest > HEFT_METADATA_VERSION)
        return heft_error_set(error, HEFT_ERR_INCOMPATIBLE,
                              "metadata of version %u, readable from version %u on; this library reads up to "
                              "version %u: use the same release on both sides",
                              metadata.version, lowest, HEFT_METADATA_VERSION);
    if (size > HEFT_METADATA_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE, "metadata of %llu bytes, the limit is %llu",
                              (unsigned long long)size, (unsigned long long)HEFT_METADATA_MAX_BYTES);
    if (heft_get_u64(bytes + 16) != size)
        return heft_error_set(error, HEFT_ERR_TRUNCATED, "metadata of %llu bytes, but it says %llu",
                              (unsigned long long)size, (unsigned long long)heft_get_u64(bytes + 16));
    if (heft_get_u64(bytes + size - CHECK_BYTES) != heft_hash64(bytes, (size_t)size - CHECK_BYTES, 0))
        return heft_error_set(error, HEFT_ERR_DIGEST, "metadata of %llu bytes is damaged: its check differs",
                              (unsigned long long)size);
    heft_reader_init(&reader, bytes + HEAD_BYTES, (size_t)size - HEAD_BYTES - CHECK_BYTES);
    rc = get_fields(&reader, &metadata, error);
    if (!rc)
        *metadata_out = metadata;
    return rc;
}

int heft_wire_get_metadata_region(const struct heft_wire_metadata *metadata, uint32_t index,
                                  struct heft_wire_region *region_out)
{
    const uint8_t *at = metadata->regions + (size_t)index * metadata->entry_bytes;
    uint32_t space = heft_get_u32(at + 20);

    *region_out = (struct heft_wire_region){.id = heft_get_u64(at),
                                            .space = (uint8_t)space,
                                            .flags = heft_get_u32(at + 16),
                                            .length_bytes = heft_get_u64(at + 8)};
    return space >= HEFT_SPACE_HOST && space <= HEFT_SPACE_OBJECT ? HEFT_OK : HEFT_ERR_UNSUPPORTED;
}

uint64_t heft_wire_get_metadata_gone(const struct heft_wire_metadata *metadata, uint32_t index)
{
    return heft_get_u64(metadata->gone + (size_t)index * 8);
}
