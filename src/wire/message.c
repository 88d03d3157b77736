/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/message.h"

#include <heft/space.h>
#include <string.h>

#define REGION_ENTRY_BYTES 32
#define REGION_ENTRY_MAX_BYTES 256 /* of a later version's entries */
#define COUNT_ENTRY_BYTES 12
#define COUNT_ENTRY_MAX_BYTES 64

static void put_text(struct heft_buf *buf, struct heft_wire_text text)
{
    heft_buf_string(buf, text.data, text.size);
}

static struct heft_wire_text get_text(struct heft_reader *reader, size_t max_bytes)
{
    struct heft_wire_text text = {"", 0};
    size_t size = 0;
    const char *data = heft_reader_string(reader, max_bytes, &size);

    if (data) {
        text.data = data;
        text.size = size;
    }
    return text;
}

static void get_bytes(struct heft_reader *reader, uint8_t *out, size_t size)
{
    const uint8_t *at = heft_reader_bytes(reader, size);

    if (at)
        memcpy(out, at, size);
}

/* A name is text that may stand in a message: no control bytes, no NUL. */
static int name_ok(struct heft_wire_text text)
{
    size_t index;

    for (index = 0; index < text.size; index++)
        if ((unsigned char)text.data[index] < 0x20 || text.data[index] == 0x7f)
            return 0;
    return 1;
}

void heft_wire_put_hello(struct heft_buf *buf, const struct heft_wire_hello *hello)
{
    heft_buf_u16(buf, hello->version_lowest);
    heft_buf_u16(buf, hello->version_highest);
    heft_buf_u8(buf, hello->purpose);
    heft_buf_bytes(buf, hello->generation, sizeof(hello->generation));
    heft_buf_bytes(buf, hello->expected, sizeof(hello->expected));
    heft_buf_bytes(buf, hello->nonce, sizeof(hello->nonce));
    heft_buf_u64(buf, hello->session);
    put_text(buf, hello->name);
    put_text(buf, hello->expected_name);
    put_text(buf, hello->transport);
}

int heft_wire_get_hello(const void *payload, size_t size, struct heft_wire_hello *hello_out)
{
    struct heft_wire_hello hello = {0};
    struct heft_reader reader;

    heft_reader_init(&reader, payload, size);
    hello.version_lowest = heft_reader_u16(&reader);
    hello.version_highest = heft_reader_u16(&reader);
    hello.purpose = heft_reader_u8(&reader);
    get_bytes(&reader, hello.generation, sizeof(hello.generation));
    get_bytes(&reader, hello.expected, sizeof(hello.expected));
    get_bytes(&reader, hello.nonce, sizeof(hello.nonce));
    hello.session = heft_reader_u64(&reader);
    hello.name = get_text(&reader, HEFT_WIRE_NAME_MAX_BYTES);
    hello.expected_name = get_text(&reader, HEFT_WIRE_NAME_MAX_BYTES);
    hello.transport = get_text(&reader, HEFT_WIRE_NAME_MAX_BYTES);
    if (reader.failed || hello.version_lowest > hello.version_highest || !hello.name.size ||
        !name_ok(hello.name) || !name_ok(hello.expected_name) || !name_ok(hello.transport))
        return HEFT_ERR_PROTOCOL;
    *hello_out = hello;
    return 0;
}

void heft_wire_put_challenge(struct heft_buf *buf, const struct heft_wire_challenge *challenge)
{
    heft_buf_u16(buf, challenge->version);
    heft_buf_bytes(buf, challenge->generation, sizeof(challenge->generation));
    heft_buf_bytes(buf, challenge->nonce, sizeof(challenge->nonce));
    heft_buf_bytes(buf, challenge->proof, sizeof(challenge->proof));
    put_text(buf, challenge->name);
}

int heft_wire_get_challenge(const void *payload, size_t size, struct heft_wire_challenge *challenge_out)
{
    struct heft_wire_challenge challenge = {0};
    struct heft_reader reader;

    heft_reader_init(&reader, payload, size);
    challenge.version = heft_reader_u16(&reader);
    get_bytes(&reader, challenge.generation, sizeof(challenge.generation));
    get_bytes(&reader, challenge.nonce, sizeof(challenge.nonce));
    get_bytes(&reader, challenge.proof, sizeof(challenge.proof));
    challenge.name = get_text(&reader, HEFT_WIRE_NAME_MAX_BYTES);
    if (reader.failed || !challenge.name.size || !name_ok(challenge.name))
        return HEFT_ERR_PROTOCOL;
    *challenge_out = challenge;
    return 0;
}

void heft_wire_put_auth(struct heft_buf *buf, const struct heft_wire_auth *auth)
{
    uint32_t index;

    heft_buf_bytes(buf, auth->proof, sizeof(auth->proof));
    if (auth->ended_count)
        heft_buf_u16(buf, auth->ended_count);
    for (index = 0; index < auth->ended_count; index++)
        heft_buf_u64(buf, auth->ended[index]);
}

int heft_wire_get_auth(const void *payload, size_t size, struct heft_wire_auth *auth_out)
{
    struct heft_wire_auth auth;
    struct heft_reader reader;
    uint32_t index;

    memset(&auth, 0, sizeof(auth));
    heft_reader_init(&reader, payload, size);
    get_bytes(&reader, auth.proof, sizeof(auth.proof));
    if (!reader.failed && size - sizeof(auth.proof) >= sizeof(auth.ended_count))
        auth.ended_count = heft_reader_u16(&reader);
    if (reader.failed || auth.ended_count > HEFT_WIRE_ENDED_MAX)
        return HEFT_ERR_PROTOCOL;
    for (index = 0; index < auth.ended_count; index++)
        auth.ended[index] = heft_reader_u64(&reader);
    if (reader.failed)
        return HEFT_ERR_PROTOCOL;
    *auth_out = auth;
    return 0;
}

void heft_wire_put_ready(struct heft_buf *buf, const struct heft_wire_ready *ready)
{
    heft_buf_u64(buf, ready->session);
    heft_buf_bytes(buf, ready->host, sizeof(ready->host));
    heft_buf_u64(buf, ready->monotonic_ns);
}

int heft_wire_get_ready(const void *payload, size_t size, struct heft_wire_ready *ready_out)
{
    struct heft_wire_ready ready = {0};
    struct heft_reader reader;

    heft_reader_init(&reader, payload, size);
    ready.session = heft_reader_u64(&reader);
    get_bytes(&reader, ready.host, sizeof(ready.host));
    ready.monotonic_ns = heft_reader_u64(&reader);
    if (reader.failed)
        return HEFT_ERR_PROTOCOL;
    *ready_out = ready;
    return 0;
}

void heft_wire_put_refuse(struct heft_buf *buf, int code, const char *text)
{
    size_t size = strnlen(text, HEFT_WIRE_TEXT_MAX_BYTES);

    heft_buf_u32(buf, (uint32_t)-code);
    heft_buf_string(buf, text, size);
}

int heft_wire_get_refuse(const void *payload, size_t size, struct heft_wire_refuse *refuse_out)
{
    struct heft_wire_refuse refuse = {0};
    struct heft_reader reader;
    uint32_t value;

    heft_reader_init(&reader, payload, size);
    value = heft_reader_u32(&reader);
    refuse.text = get_text(&reader, HEFT_WIRE_TEXT_MAX_BYTES);
    if (reader.failed)
        return HEFT_ERR_PROTOCOL;
    refuse.code = value > 0 && value < 1000 ? -(int)value : HEFT_ERR_PROTOCOL;
    if (strcmp(heft_error_name(refuse.code), "UNKNOWN") == 0)
        refuse.code = HEFT_ERR_PROTOCOL;
    *refuse_out = refuse;
    return 0;
}

void heft_wire_put_regions(struct heft_buf *buf, uint64_t epoch, int more, uint32_t count)
{
    heft_buf_u64(buf, epoch);
    heft_buf_u8(buf, more ? 1 : 0);
    heft_buf_u32(buf, count);
    heft_buf_u16(buf, REGION_ENTRY_BYTES);
}

void heft_wire_put_region(struct heft_buf *buf, const struct heft_wire_region *region)
{
    heft_buf_u64(buf, region->id);
    heft_buf_u8(buf, region->space);
    heft_buf_u8(buf, region->has_fd);
    heft_buf_u16(buf, 0);
    heft_buf_u32(buf, region->flags);
    heft_buf_u64(buf, region->length_bytes);
    heft_buf_u64(buf, region->address);
}

int heft_wire_get_regions(const void *payload, size_t size, struct heft_wire_regions *regions_out)
{
    struct heft_wire_regions regions = {0};
    struct heft_reader reader;

    heft_reader_init(&reader, payload, size);
    regions.epoch = heft_reader_u64(&reader);
    regions.more = heft_reader_u8(&reader);
    regions.count = heft_reader_u32(&reader);
    regions.entry_bytes = heft_reader_u16(&reader);
    if (reader.failed || regions.count > HEFT_WIRE_REGIONS_PER_FRAME ||
        regions.entry_bytes < REGION_ENTRY_BYTES || regions.entry_bytes > REGION_ENTRY_MAX_BYTES)
        return HEFT_ERR_PROTOCOL;
    regions.entries = heft_reader_bytes(&reader, (size_t)regions.count * regions.entry_bytes);
    if (reader.failed)
        return HEFT_ERR_PROTOCOL;
    *regions_out = regions;
    return 0;
}

int heft_wire_get_region(const struct heft_wire_regions *regions, uint32_t index,
                         struct heft_wire_region *region_out)
{
    const uint8_t *at = regions->entries + (size_t)index * regions->entry_bytes;
    struct heft_wire_region region = {.id = heft_get_u64(at),
                                      .space = at[8],
                                      .has_fd = at[9],
                                      .flags = heft_get_u32(at + 12),
                                      .length_bytes = heft_get_u64(at + 16),
                                      .address = heft_get_u64(at + 24)};

    if (!region.id || region.has_fd > 1)
        return HEFT_ERR_PROTOCOL;
    if (region.space == HEFT_SPACE_NONE || region.space >= HEFT_SPACE_COUNT)
        return HEFT_ERR_UNSUPPORTED;
    *region_out = region;
    return 0;
}

void heft_wire_put_ids(struct heft_buf *buf, uint64_t epoch, const uint64_t *ids, uint32_t count)
{
    uint32_t index;

    heft_buf_u64(buf, epoch);
    heft_buf_u32(buf, count);
    for (index = 0; index < count; index++)
        heft_buf_u64(buf, ids[index]);
}

int heft_wire_get_ids(const void *payload, size_t size, struct heft_wire_ids *ids_out)
{
    struct heft_wire_ids ids = {0};
    struct heft_reader reader;

    heft_reader_init(&reader, payload, size);
    ids.epoch = heft_reader_u64(&reader);
    ids.count = heft_reader_u32(&reader);
    if (reader.failed || ids.count > HEFT_WIRE_REGIONS_PER_FRAME)
        return HEFT_ERR_PROTOCOL;
    ids.ids = heft_reader_bytes(&reader, (size_t)ids.count * 8);
    if (reader.failed)
        return HEFT_ERR_PROTOCOL;
    *ids_out = ids;
    return 0;
}

uint64_t heft_wire_get_id(const struct heft_wire_ids *ids, uint32_t index)
{
    return heft_get_u64(ids->ids + (size_t)index * 8);
}

void heft_wire_put_doc_get(struct heft_buf *buf, uint64_t limit_bytes, const char *name)
{
    heft_buf_u64(buf, limit_bytes);
    heft_buf_string(buf, name, strlen(name));
}

int heft_wire_get_doc_get(const void *payload, size_t size, struct heft_wire_doc_get *get_out)
{
    struct heft_wire_doc_get get = {0};
    struct heft_reader reader;

    heft_reader_init(&reader, payload, size);
    get.limit_bytes = heft_reader_u64(&reader);
    get.name = get_text(&reader, HEFT_WIRE_NAME_MAX_BYTES);
    if (reader.failed || !get.name.size || !name_ok(get.name))
        return HEFT_ERR_PROTOCOL;
    *get_out = get;
    return 0;
}

void heft_wire_put_doc(struct heft_buf *buf, const struct heft_wire_doc *doc)
{
    heft_buf_u64(buf, doc->epoch);
    heft_buf_u64(buf, doc->total_bytes);
    heft_buf_u64(buf, doc->offset_bytes);
    put_text(buf, doc->chunk);
}

int heft_wire_get_doc(const void *payload, size_t size, struct heft_wire_doc *doc_out)
{
    struct heft_wire_doc doc = {0};
    struct heft_reader reader;

    heft_reader_init(&reader, payload, size);
    doc.epoch = heft_reader_u64(&reader);
    doc.total_bytes = heft_reader_u64(&reader);
    doc.offset_bytes = heft_reader_u64(&reader);
    doc.chunk = get_text(&reader, HEFT_FRAME_CONTROL_MAX_BYTES);
    if (reader.failed || doc.offset_bytes > doc.total_bytes ||
        doc.chunk.size > doc.total_bytes - doc.offset_bytes)
        return HEFT_ERR_PROTOCOL;
    *doc_out = doc;
    return 0;
}

void heft_wire_put_notify(struct heft_buf *buf, const void *data, size_t size)
{
    heft_buf_string(buf, data, size);
}

int heft_wire_get_notify(const void *payload, size_t size, struct heft_wire_text *notification_out)
{
    struct heft_wire_text notification;
    struct heft_reader reader;

    heft_reader_init(&reader, payload, size);
    notification = get_text(&reader, HEFT_WIRE_NOTIFICATION_MAX_BYTES);
    if (reader.failed)
        return HEFT_ERR_PROTOCOL;
    *notification_out = notification;
    return 0;
}

void heft_wire_put_counts(struct heft_buf *buf, uint32_t count)
{
    heft_buf_u32(buf, count);
    heft_buf_u16(buf, COUNT_ENTRY_BYTES);
}

void heft_wire_put_count(struct heft_buf *buf, const struct heft_wire_count *count)
{
    heft_buf_u32(buf, count->counter);
    heft_buf_u64(buf, count->transfers);
}

int heft_wire_get_counts(const void *payload, size_t size, struct heft_wire_counts *counts_out)
{
    struct heft_wire_counts counts = {0};
    struct heft_reader reader;
    uint32_t index;

    heft_reader_init(&reader, payload, size);
    counts.count = heft_reader_u32(&reader);
    counts.entry_bytes = heft_reader_u16(&reader);
    if (reader.failed || counts.count > HEFT_WIRE_COUNTS_PER_FRAME ||
        counts.entry_bytes < COUNT_ENTRY_BYTES || counts.entry_bytes > COUNT_ENTRY_MAX_BYTES)
        return HEFT_ERR_PROTOCOL;
    counts.entries = heft_reader_bytes(&reader, (size_t)counts.count * counts.entry_bytes);
    if (reader.failed)
        return HEFT_ERR_PROTOCOL;
    for (index = 0; index < counts.count; index++)
        if (!heft_wire_get_count(&counts, index).transfers)
            return HEFT_ERR_PROTOCOL;
    *counts_out = counts;
    return 0;
}

struct heft_wire_count heft_wire_get_count(const struct heft_wire_counts *counts, uint32_t index)
{
    const uint8_t *at = counts->entries + (size_t)index * counts->entry_bytes;

    return (struct heft_wire_count){.counter = heft_get_u32(at), .transfers = heft_get_u64(at + 4)};
}

void heft_wire_put_credit(struct heft_buf *buf, const struct heft_wire_credit *credit)
{
    heft_buf_u64(buf, credit->bytes);
    heft_buf_u32(buf, credit->largest_bytes);
}

int heft_wire_get_credit(const void *payload, size_t size, struct heft_wire_credit *credit_out)
{
    struct heft_wire_credit credit = {0};
    struct heft_reader reader;

    heft_reader_init(&reader, payload, size);
    credit.bytes = heft_reader_u64(&reader);
    credit.largest_bytes = heft_reader_u32(&reader);
    if (reader.failed)
        return HEFT_ERR_PROTOCOL;
    *credit_out = credit;
    return 0;
}

void heft_wire_put_ring(struct heft_buf *buf, const struct heft_wire_ring *ring)
{
    heft_buf_u32(buf, ring->layout);
    heft_buf_u32(buf, ring->cells);
}

int heft_wire_get_ring(const void *payload, size_t size, struct heft_wire_ring *ring_out)
{
    struct heft_wire_ring ring = {0};
    struct heft_reader reader;

    heft_reader_init(&reader, payload, size);
    ring.layout = heft_reader_u32(&reader);
    ring.cells = heft_reader_u32(&reader);
    if (reader.failed)
        return HEFT_ERR_PROTOCOL;
    *ring_out = ring;
    return 0;
}

void heft_wire_put_wake(struct heft_buf *buf, uint32_t serial)
{
    heft_buf_u32(buf, serial);
}

int heft_wire_get_wake(const void *payload, size_t size, uint32_t *serial_out)
{
    struct heft_reader reader;
    uint32_t serial;

    heft_reader_init(&reader, payload, size);
    serial = heft_reader_u32(&reader);
    if (reader.failed || !serial)
        return HEFT_ERR_PROTOCOL;
    *serial_out = serial;
    return 0;
}
