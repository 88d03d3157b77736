/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent's metadata as bytes: who it is, where it listens, what it offers. Callers carry them, and
 * directories keep them (docs/metadata.md).
 *
 *   0  magic "HEFTMETA"
 *   8  u16 version of the writer, u16 lowest version that may read it, u32 zero
 *  16  u64 size of all bytes, the check included
 *  24  fields: u16 tag, u16 flags, u32 size, bytes
 *  -8  u64 XXH3-64 over all bytes before it
 *
 * Integers are little-endian. A field that a reader does not know is skipped, unless it has the flag NEEDED.
 */
#ifndef HEFT_WIRE_METADATA_H
#define HEFT_WIRE_METADATA_H

#include "base/buf.h"
#include "wire/message.h"

#include <heft/error.h>

#define HEFT_METADATA_VERSION 1u
#define HEFT_METADATA_MAX_BYTES ((uint64_t)64 << 20)
#define HEFT_METADATA_MAX_REGIONS ((uint32_t)1 << 20)
#define HEFT_METADATA_MAX_ADDRESSES_BYTES 4095u
#define HEFT_METADATA_TOKEN_BYTES 32

enum heft_metadata_field {
    HEFT_METADATA_NAME = 1,
    HEFT_METADATA_GENERATION = 2,
    HEFT_METADATA_TOKEN = 3,
    HEFT_METADATA_ADDRESSES = 4,
    HEFT_METADATA_EPOCHS = 5,  /* u64 epoch, u64 base */
    HEFT_METADATA_REGIONS = 6, /* u16 bytes of an entry, u16 zero, u32 count, entries */
    HEFT_METADATA_GONE = 7     /* u64 ids, ascending */
};

enum heft_metadata_field_flags { HEFT_METADATA_NEEDED = 1 };

/* What was decoded: it points into the bytes. For encoding the caller sets all but the two entry fields. */
struct heft_wire_metadata {
    uint16_t version;
    struct heft_wire_text name, addresses;
    const uint8_t *generation; /* HEFT_WIRE_GENERATION_BYTES */
    const uint8_t *token;      /* HEFT_METADATA_TOKEN_BYTES, or NULL */
    uint64_t epoch;            /* of the agent's regions when this was written */
    uint64_t base;             /* 0: all of them; else only what changed after this epoch */
    uint32_t region_count, gone_count;
    uint16_t entry_bytes;
    const uint8_t *regions, *gone;
};

/* The head; then put_region for each of region_count, in ascending order of ids; then finish. */
void heft_wire_put_metadata(struct heft_buf *buf, const struct heft_wire_metadata *metadata);
void heft_wire_put_metadata_region(struct heft_buf *buf, const struct heft_wire_region *region);
/* Appends the withdrawn ids and the check, and sets the size. 0, NO_MEMORY or TOO_LARGE. */
int heft_wire_finish_metadata(struct heft_buf *buf, const uint64_t *gone, uint32_t gone_count);

/*
 * Errors say what is wrong: TRUNCATED, DIGEST (damaged), PROTOCOL (no metadata, or malformed), TOO_LARGE,
 * INCOMPATIBLE (both versions, or the needed field).
 */
int heft_wire_get_metadata(const void *data, uint64_t size, struct heft_wire_metadata *metadata_out,
                           struct heft_error *error);
/* Entry `index`: 0, or UNSUPPORTED for a space of a later version, to be skipped. */
int heft_wire_get_metadata_region(const struct heft_wire_metadata *metadata, uint32_t index,
                                  struct heft_wire_region *region_out);
uint64_t heft_wire_get_metadata_gone(const struct heft_wire_metadata *metadata, uint32_t index);

#endif
