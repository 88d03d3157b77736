/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/frame.h"

#include "base/buf.h"
#include "base/digest.h"

#define CHECKED_BYTES 28 /* the header without its own check */

static uint32_t check32(const void *data, size_t size)
{
    return (uint32_t)heft_hash64(data, size, 0);
}

uint32_t heft_frame_cap(uint16_t type)
{
    switch (type) {
    case HEFT_FRAME_HELLO:
    case HEFT_FRAME_CHALLENGE:
    case HEFT_FRAME_AUTH:
    case HEFT_FRAME_READY:
    case HEFT_FRAME_REFUSE:
    case HEFT_FRAME_DOC_GET:
    case HEFT_FRAME_BYE:
        return HEFT_FRAME_HANDSHAKE_MAX_BYTES;
    case HEFT_FRAME_PING:
    case HEFT_FRAME_PONG:
    case HEFT_FRAME_CREDIT:
    case HEFT_FRAME_RING:
    case HEFT_FRAME_WAKE:
        return HEFT_FRAME_PING_MAX_BYTES;
    case HEFT_FRAME_NOTIFY:
    case HEFT_FRAME_COUNT:
        return HEFT_FRAME_NOTIFY_MAX_BYTES;
    default:
        return type >= HEFT_FRAME_TCP_FIRST ? HEFT_FRAME_TRANSPORT_MAX_BYTES : HEFT_FRAME_CONTROL_MAX_BYTES;
    }
}

void heft_frame_encode(const struct heft_frame *frame, uint8_t header_out[HEFT_FRAME_HEADER_BYTES])
{
    heft_put_u32(header_out, HEFT_FRAME_MAGIC);
    heft_put_u16(header_out + 4, frame->version);
    heft_put_u16(header_out + 6, frame->type);
    heft_put_u32(header_out + 8, frame->flags);
    heft_put_u32(header_out + 12, frame->payload_bytes);
    heft_put_u64(header_out + 16, frame->id);
    heft_put_u32(header_out + 24, frame->payload_check);
    heft_put_u32(header_out + CHECKED_BYTES, check32(header_out, CHECKED_BYTES));
}

int heft_frame_decode(const uint8_t header[HEFT_FRAME_HEADER_BYTES], struct heft_frame *frame_out)
{
    struct heft_frame frame;

    if (heft_get_u32(header) != HEFT_FRAME_MAGIC ||
        heft_get_u32(header + CHECKED_BYTES) != check32(header, CHECKED_BYTES))
        return HEFT_ERR_PROTOCOL;
    frame.version = heft_get_u16(header + 4);
    frame.type = heft_get_u16(header + 6);
    frame.flags = heft_get_u32(header + 8);
    frame.payload_bytes = heft_get_u32(header + 12);
    frame.id = heft_get_u64(header + 16);
    frame.payload_check = heft_get_u32(header + 24);
    *frame_out = frame;
    if (frame.payload_bytes > heft_frame_cap(frame.type))
        return HEFT_ERR_TOO_LARGE;
    if (frame.type != HEFT_FRAME_HELLO && frame.type != HEFT_FRAME_REFUSE &&
        (frame.version < HEFT_WIRE_VERSION_LOWEST || frame.version > HEFT_WIRE_VERSION_HIGHEST))
        return HEFT_ERR_INCOMPATIBLE;
    return 0;
}

int heft_frame_check_payload(const struct heft_frame *frame, const void *payload)
{
    if (!(frame->flags & HEFT_FRAME_CHECKED))
        return 0;
    return check32(payload, frame->payload_bytes) == frame->payload_check ? 0 : HEFT_ERR_PROTOCOL;
}

void heft_frame_seal(uint16_t type, uint32_t flags, uint64_t id, const void *payload, uint32_t payload_bytes,
                     uint8_t header_out[HEFT_FRAME_HEADER_BYTES])
{
    struct heft_frame frame = {.version = HEFT_WIRE_VERSION_HIGHEST,
                               .type = type,
                               .flags = flags | HEFT_FRAME_CHECKED,
                               .payload_bytes = payload_bytes,
                               .id = id,
                               .payload_check = check32(payload_bytes ? payload : "", payload_bytes)};

    heft_frame_encode(&frame, header_out);
}

const char *heft_frame_type_name(uint16_t type)
{
    static const char *const names[] = {
        "UNKNOWN", "HELLO",   "CHALLENGE",   "AUTH",        "READY",   "REFUSE", "PING",
        "PONG",    "REGIONS", "REGION_GONE", "REGION_FREE", "DOC_GET", "DOC",    "BYE",
        "NOTIFY",  "COUNT",   "CREDIT",      "RING",        "WAKE",
    };

    return type < sizeof(names) / sizeof(names[0]) ? names[type] : "UNKNOWN";
}
