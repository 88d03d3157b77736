/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words that tell GPUs of arrivals: 8 bytes that the stream of an operation's copies writes behind them. An
 * operation with such a word goes as one flight, so that there is one stream and the end of all bytes is the
 * end of its work; what would need more is refused when it is posted.
 */
#include "transport/cuda/cuda.h"

#include "base/error.h"

#include <string.h>

static int word_side(const struct cuda_endpoint *endpoint, const struct heft_transport_op *op,
                     struct cuda_side *side_out)
{
    const struct heft_transport_region *region = op->raise_region;
    const struct cuda_remote *remote;

    if ((op->flags & HEFT_XFER_RAISE_LOCAL) || !endpoint->has_peer) {
        cuda_region_side(endpoint->transport, region, side_out);
    } else {
        remote = region->slot[endpoint->transport->host.index];
        memset(side_out, 0, sizeof(*side_out));
        if (remote)
            *side_out = remote->side;
    }
    return cuda_side_is_reached(side_out);
}

int cuda_raise_check(const struct cuda_endpoint *endpoint, const struct heft_transport_op *op,
                     const struct cuda_way *way, struct heft_error *error)
{
    struct cuda_side side;

    if (!op->raise_region)
        return HEFT_OK;
    if (!word_side(endpoint, op, &side))
        return heft_error_set(
            error, HEFT_ERR_UNSUPPORTED,
            "the word in region %llu is not reached by a GPU: put it into device memory, or "
            "pinned host memory of this agent",
            (unsigned long long)op->raise_region->id);
    if (way->staged)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                              "a word is raised for bytes that the GPU moves by itself; these are staged "
                              "through host memory: pin it, or let the CPU wait for the transfer");
    if (op->total_bytes > CUDA_DIRECT_BYTES || op->move_count > CUDA_DIRECT_CUTS)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                              "a word is raised for transfers of at most %llu MiB and %u runs: split it",
                              (unsigned long long)(CUDA_DIRECT_BYTES >> 20), CUDA_DIRECT_CUTS);
    return HEFT_OK;
}

heft_cu_result cuda_raise(const struct cuda_flight *flight, heft_cu_stream stream)
{
    const struct heft_transport_op *op = flight->claim.op;
    struct cuda_transport *transport = flight->transport;
    size_t index = (size_t)(flight - transport->flights);
    heft_cu_result result = HEFT_CU_INVALID_VALUE;
    struct cuda_side side;
    uint64_t address;

    if (!op->raise_region)
        return HEFT_CU_SUCCESS;
    if (!word_side(flight->endpoint, op, &side) || flight->claim.bytes != op->total_bytes)
        return HEFT_CU_INVALID_VALUE;
    (void)cuda_open_to_device(transport, flight->device, &side);
    address = side.address + op->raise_offset_bytes;
    if (transport->cu->stream_write64)
        result = transport->cu->stream_write64(stream, address, op->raise_value, 0);
    if (result && transport->words) { /* the copy engines do it as well: 8 bytes behind the others */
        uint8_t *value = transport->words + index * CUDA_WORD_BYTES + 8;

        memcpy(value, &op->raise_value, sizeof(op->raise_value));
        result = transport->cu->memcpy_async(address, (uintptr_t)value, sizeof(op->raise_value), stream);
    }
    return result;
}
