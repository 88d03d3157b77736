/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/data.h"
#include "base/buf.h"
#include "base/digest.h"

#define SUB_BYTES (HEFT_DATA_HEAD_BYTES - HEFT_FRAME_HEADER_BYTES)

void heft_data_encode(const struct heft_data_head *head, uint8_t *out)
{
    struct heft_frame frame = {.version = HEFT_WIRE_VERSION_HIGHEST,
                               .type = head->type,
                               .flags = head->flags,
                               .payload_bytes = SUB_BYTES + head->table_bytes + head->bulk_bytes,
                               .id = head->id};
    uint8_t *sub = out + HEFT_FRAME_HEADER_BYTES;

    heft_put_u32(sub, head->value);
    heft_put_u32(sub + 4, head->extra);
    heft_put_u64(sub + 8, head->digest);
    frame.payload_check = (uint32_t)heft_hash64(sub, SUB_BYTES + head->table_bytes, 0);
    heft_frame_encode(&frame, out);
}

int heft_data_decode(const uint8_t *in, struct heft_data_head *head_out)
{
    struct heft_data_head head = {0};
    struct heft_frame frame;
    const uint8_t *sub = in + HEFT_FRAME_HEADER_BYTES;
    int rc = heft_frame_decode(in, &frame);

    if (rc != 0)
        return rc;
    if (frame.payload_bytes < SUB_BYTES || (frame.flags & ~HEFT_DATA_DIGEST) != 0)
        return HEFT_ERR_PROTOCOL;
    head.type = frame.type;
    head.flags = frame.flags;
    head.id = frame.id;
    head.check = frame.payload_check;
    head.value = heft_get_u32(sub);
    head.extra = heft_get_u32(sub + 4);
    head.digest = heft_get_u64(sub + 8);
    head.bulk_bytes = frame.payload_bytes - SUB_BYTES;
    switch (head.type) {
    case HEFT_DATA_READ:
    case HEFT_DATA_WRITE:
        if (head.value == 0)
            return HEFT_ERR_PROTOCOL;
        if (head.value > HEFT_DATA_MAX_RUNS)
            return HEFT_ERR_TOO_LARGE;
        head.table_bytes = head.value * HEFT_DATA_RUN_BYTES;
        break;
    case HEFT_DATA_ERROR:
        if (head.bulk_bytes > HEFT_DATA_MAX_TEXT_BYTES)
            return HEFT_ERR_TOO_LARGE;
        head.table_bytes = head.bulk_bytes;
        break;
    case HEFT_DATA_DATA:
    case HEFT_DATA_ACK:
        break;
    default:
        return HEFT_ERR_PROTOCOL;
    }
    if (head.table_bytes > head.bulk_bytes)
        return HEFT_ERR_PROTOCOL;
    head.bulk_bytes -= head.table_bytes;
    if (head.bulk_bytes > HEFT_DATA_MAX_FRAME_BYTES)
        return HEFT_ERR_TOO_LARGE;
    if ((head.type == HEFT_DATA_WRITE || head.type == HEFT_DATA_DATA) != (head.bulk_bytes > 0))
        return HEFT_ERR_PROTOCOL;
    *head_out = head;
    return 0;
}

int heft_data_check(const struct heft_data_head *head, const uint8_t *in)
{
    uint64_t hash = heft_hash64(in + HEFT_FRAME_HEADER_BYTES, SUB_BYTES + head->table_bytes, 0);

    return (uint32_t)hash == head->check ? 0 : HEFT_ERR_PROTOCOL;
}

void heft_data_run_encode(const struct heft_data_run *run, uint8_t out[HEFT_DATA_RUN_BYTES])
{
    heft_put_u64(out, run->region);
    heft_put_u64(out + 8, run->offset_bytes);
    heft_put_u64(out + 16, run->length_bytes);
    heft_put_u64(out + 24, run->count);
    heft_put_u64(out + 32, run->stride_bytes);
}

void heft_data_run_decode(const uint8_t in[HEFT_DATA_RUN_BYTES], struct heft_data_run *run_out)
{
    run_out->region = heft_get_u64(in);
    run_out->offset_bytes = heft_get_u64(in + 8);
    run_out->length_bytes = heft_get_u64(in + 16);
    run_out->count = heft_get_u64(in + 24);
    run_out->stride_bytes = heft_get_u64(in + 32);
}
