/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of the tcp transport's streams. A client asks for parts of operations with READ, or sends them with
 * WRITE; the server answers in the order of the requests: DATA frames that tile the part, one ACK, or one
 * ERROR. After an ERROR the stream goes on.
 *
 * On the frame header of wire/frame.h follows a sub-header of 16 bytes:
 *
 *    0  u32 value      4  u32 extra      8  u64 digest
 *
 *   type   value                 extra        then
 *   READ   runs                  0            the runs, 40 bytes each
 *   WRITE  runs                  0            the runs, then their bytes in order
 *   DATA   offset in the part    0            bytes of the part, from that offset on
 *   ACK    bytes written         0
 *   ERROR  code, positive        run or ~0    a sentence
 *
 * A run is u64 region, u64 offset, u64 length, u64 count, u64 stride. The frame's payload_check covers the
 * sub-header and the runs or the sentence, not the bytes behind them (the flag CHECKED stays unset): blocks
 * of weights have their own digests. Bytes that those can't cover (strided pieces) are asked for with the
 * flag DIGEST; then `digest` of DATA and WRITE covers the frame's bytes: a chain of XXH3-64 over the pieces
 * as the runs and the frame cut them, each seeded with the one before, the first with 0.
 */
#ifndef HEFT_WIRE_DATA_H
#define HEFT_WIRE_DATA_H

#include "wire/frame.h"

enum heft_data_type {
    HEFT_DATA_READ = HEFT_FRAME_TCP_FIRST,
    HEFT_DATA_WRITE,
    HEFT_DATA_DATA,
    HEFT_DATA_ACK,
    HEFT_DATA_ERROR
};

#define HEFT_DATA_DIGEST (1u << 16) /* flag: digests are wanted (READ), or there (DATA, WRITE) */

#define HEFT_DATA_HEAD_BYTES (HEFT_FRAME_HEADER_BYTES + 16u)
#define HEFT_DATA_RUN_BYTES 40u
#define HEFT_DATA_MAX_RUNS 256u              /* of one request */
#define HEFT_DATA_MAX_PART_BYTES (4u << 20)  /* that one request may ask for */
#define HEFT_DATA_MAX_FRAME_BYTES (1u << 20) /* of data in one DATA or WRITE frame */
#define HEFT_DATA_MAX_TEXT_BYTES 480u

struct heft_data_head {
    uint16_t type;
    uint32_t flags; /* HEFT_DATA_DIGEST */
    uint64_t id;    /* of the request, chosen by the client */
    uint32_t value, extra;
    uint64_t digest;
    uint32_t table_bytes; /* runs, or the sentence */
    uint32_t bulk_bytes;  /* data */
    uint32_t check;       /* set by decode */
};

struct heft_data_run {
    uint64_t region, offset_bytes, length_bytes, count, stride_bytes;
};

/* The table already lies at out + HEFT_DATA_HEAD_BYTES; the head is written before it. */
void heft_data_encode(const struct heft_data_head *head, uint8_t *out);
/*
 * From the first HEFT_DATA_HEAD_BYTES of a frame. 0, or PROTOCOL, INCOMPATIBLE, TOO_LARGE; then the stream
 * can't be followed any further.
 */
int heft_data_decode(const uint8_t *in, struct heft_data_head *head_out);
/* Once the table is there too (right behind the head at `in`): 0 or PROTOCOL. */
int heft_data_check(const struct heft_data_head *head, const uint8_t *in);

void heft_data_run_encode(const struct heft_data_run *run, uint8_t out[HEFT_DATA_RUN_BYTES]);
void heft_data_run_decode(const uint8_t in[HEFT_DATA_RUN_BYTES], struct heft_data_run *run_out);

#endif
