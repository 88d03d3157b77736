/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire/: what two agents say to each other, as bytes. Encoding and decoding only: nothing here opens a socket
 * or keeps state. docs/wire-protocol.md is the description for readers; tests/wire keeps the bytes of every
 * released version.
 *
 * Every message is one frame: a header of 32 bytes, then `payload_bytes` bytes. All integers are
 * little-endian.
 *
 *    0  u32 magic "HEFT"        4  u16 version           6  u16 type
 *    8  u32 flags              12  u32 payload_bytes    16  u64 id
 *   24  u32 payload_check      28  u32 header_check (low half of XXH3-64 over bytes 0..27)
 *
 * The header's layout is the same in every version of the protocol, so that two sides that share no version
 * can still tell each other so.
 */
#ifndef HEFT_WIRE_FRAME_H
#define HEFT_WIRE_FRAME_H

#include <heft/error.h>

#define HEFT_FRAME_MAGIC 0x54464548u /* "HEFT" as it lies on the wire */
#define HEFT_FRAME_HEADER_BYTES 32

/* The protocol versions that this library speaks. */
#define HEFT_WIRE_VERSION_LOWEST 1u
#define HEFT_WIRE_VERSION_HIGHEST 1u

/* Numbers are never reused. 1..255 belong to the agent, 256..511 to the tcp transport, 512.. to later ones.
 */
enum heft_frame_type {
    HEFT_FRAME_HELLO = 1,
    HEFT_FRAME_CHALLENGE = 2,
    HEFT_FRAME_AUTH = 3,
    HEFT_FRAME_READY = 4,
    HEFT_FRAME_REFUSE = 5,
    HEFT_FRAME_PING = 6,
    HEFT_FRAME_PONG = 7,
    HEFT_FRAME_REGIONS = 8,
    HEFT_FRAME_REGION_GONE = 9,
    HEFT_FRAME_REGION_FREE = 10,
    HEFT_FRAME_DOC_GET = 11,
    HEFT_FRAME_DOC = 12,
    HEFT_FRAME_BYE = 13,
    HEFT_FRAME_NOTIFY = 14,
    HEFT_FRAME_COUNT = 15,
    HEFT_FRAME_CREDIT = 16,
    HEFT_FRAME_RING = 17,
    HEFT_FRAME_WAKE = 18,
    HEFT_FRAME_AGENT_LAST = HEFT_FRAME_WAKE, /* the newest known here */
    HEFT_FRAME_TCP_FIRST = 256,
    HEFT_FRAME_TCP_LAST = 511
};

enum heft_frame_flags {
    HEFT_FRAME_OPTIONAL = 1, /* a receiver that does not know the type skips the frame */
    HEFT_FRAME_CHECKED = 2,  /* payload_check holds the low half of XXH3-64 over the payload */
    HEFT_FRAME_FDS = 4       /* descriptors travel with the frame's first byte (unix sockets) */
};

/* Caps on payload_bytes. A frame over its cap is refused before a byte of the payload is read. */
#define HEFT_FRAME_HANDSHAKE_MAX_BYTES 4096u
#define HEFT_FRAME_PING_MAX_BYTES 64u
#define HEFT_FRAME_NOTIFY_MAX_BYTES (16u << 10)    /* NOTIFY, COUNT */
#define HEFT_FRAME_CONTROL_MAX_BYTES (1u << 20)    /* REGIONS, REGION_GONE, DOC, and unknown types */
#define HEFT_FRAME_TRANSPORT_MAX_BYTES (64u << 20) /* 256 and up; a transport may ask for less */

struct heft_frame {
    uint16_t version;
    uint16_t type;
    uint32_t flags;
    uint32_t payload_bytes;
    uint64_t id;
    uint32_t payload_check;
};

/* The cap for a type. */
uint32_t heft_frame_cap(uint16_t type);
void heft_frame_encode(const struct heft_frame *frame, uint8_t header_out[HEFT_FRAME_HEADER_BYTES]);
/*
 * 0; PROTOCOL: not a heft frame, or damaged; INCOMPATIBLE: a sound header of a version that this library does
 * not speak (frame_out is filled; HELLO and REFUSE pass in any version); TOO_LARGE: over the type's cap
 * (frame_out is filled).
 */
int heft_frame_decode(const uint8_t header[HEFT_FRAME_HEADER_BYTES], struct heft_frame *frame_out);
/* 0, or PROTOCOL when the frame is CHECKED and its payload does not match. */
int heft_frame_check_payload(const struct heft_frame *frame, const void *payload);
/* A whole CHECKED frame around a payload: writes the header for it. */
void heft_frame_seal(uint16_t type, uint32_t flags, uint64_t id, const void *payload, uint32_t payload_bytes,
                     uint8_t header_out[HEFT_FRAME_HEADER_BYTES]);
/* "HELLO"; "UNKNOWN" for anything else. */
const char *heft_frame_type_name(uint16_t type);

#endif
