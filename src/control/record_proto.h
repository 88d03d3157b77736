/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records as heft.v1 messages: encoding, and decoding of hostile bytes. Both ends check the same rules here.
 */
#ifndef HEFT_CONTROL_RECORD_PROTO_H
#define HEFT_CONTROL_RECORD_PROTO_H

#include "load/directory.h"
#include <protobuf-c/protobuf-c.h>

#define HEFT_DECODE_MEMORY_FACTOR 16u /* a message of n bytes may not take more than this times n ... */
#define HEFT_DECODE_MEMORY_MIN 65536u /* ... plus this, in memory */

/*
 * Memory for one decoded message, freed as a whole. protobuf-c makes an object of every two bytes of a
 * repeated field: the limit keeps a small message from taking a large machine's memory.
 */
struct heft_proto_arena {
    ProtobufCAllocator allocator;
    void *chunks;
    size_t used, limit;
};
void heft_proto_arena_init(struct heft_proto_arena *arena, size_t message_bytes);
void heft_proto_arena_free(struct heft_proto_arena *arena);
/* NULL: malformed, or over the arena's limit. Lives until the arena is freed. */
void *heft_proto_decode(struct heft_proto_arena *arena, const ProtobufCMessageDescriptor *descriptor,
                        const void *data, size_t size_bytes);
/* Appends the message. 0, NO_MEMORY or TOO_LARGE. */
int heft_proto_encode(const void *message, struct heft_buf *buf);

/* Text for a message's field: the packer only reads it, but the field's type is not const. NULL gives "". */
char *heft_proto_text(const char *text);
/* Writes a varint (at most HEFT_VARINT_BYTES); returns its length. */
#define HEFT_VARINT_BYTES 10u
size_t heft_proto_varint(uint8_t *at, uint64_t value);

struct Heft__V1__Record; /* directory.pb-c.h */

/* The rules that every record keeps, whoever sent it; the error names the field. */
int heft_record_proto_check(const struct Heft__V1__Record *message, struct heft_error *error);
/* Appends the record as a heft.v1.Record message. */
int heft_record_proto_encode(const struct heft_record *record, struct heft_buf *buf,
                             struct heft_error *error);
/* A checked copy of a decoded message. */
int heft_record_proto_read(const struct Heft__V1__Record *message, struct heft_record *record_out,
                           struct heft_error *error);

#endif
