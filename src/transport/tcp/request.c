/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client asks of this agent's regions. Runs come from outside: each is pinned, or refused, as a whole
 * before a byte of the request moves, by arithmetic that can't wrap.
 */
#include "transport/tcp/tcp.h"
#include "base/digest.h"
#include "base/error.h"
#include "space/cuda.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bytes from the first piece's first to the last piece's last; -1 when that isn't a 64-bit number. */
static int run_extent(const struct heft_data_run *run, uint64_t *extent_out)
{
    uint64_t last;

    *extent_out = 0;
    if (run->length_bytes == 0 || run->count == 0)
        return 0;
    if (__builtin_mul_overflow(run->count - 1, run->stride_bytes, &last) ||
        __builtin_add_overflow(last, run->length_bytes, extent_out))
        return -1;
    return 0;
}

/* Pins are shared by neighbouring runs of one region: the first of them holds it. */
static int pin_run(struct tcp_transport *transport, const struct heft_data_run *run, uint32_t need,
                   struct heft_transport_region *before, struct heft_transport_region **region_out)
{
    const struct heft_transport_host *host = &transport->host;
    uint64_t extent;

    if (run_extent(run, &extent) != 0)
        return HEFT_ERR_RANGE;
    if (before == NULL || before->id != run->region)
        return host->pin_region(host->agent, run->region, run->offset_bytes, extent, need, region_out);
    if (run->offset_bytes > before->length_bytes || extent > before->length_bytes - run->offset_bytes)
        return HEFT_ERR_RANGE;
    *region_out = before;
    return 0;
}

void tcp_request_release(struct tcp_transport *transport, struct tcp_request *request)
{
    for (uint32_t i = 0; i < request->move_count; i++)
        if (i == 0 || request->moves[i].local != request->moves[i - 1].local)
            transport->host.unpin_region(transport->host.agent, request->moves[i].local);
    request->move_count = 0;
    request->place.moves = NULL;
    if (request->moves != request->few)
        free(request->moves);
    request->moves = request->few;
}

void tcp_request_refuse(struct tcp_transport *transport, struct tcp_request *request, int status,
                        uint32_t run, uint64_t region_id)
{
    tcp_request_release(transport, request);
    request->answer = TCP_ANSWER_ERROR;
    request->status = status;
    request->failed_run = run;
    request->region_id = region_id;
}

static int served_space(const struct heft_transport_region *region, int write)
{
    return region->space == HEFT_SPACE_HOST ||
           (!write && (region->space == HEFT_SPACE_FILE || region->space == HEFT_SPACE_CUDA));
}

static int add_run(struct tcp_transport *transport, const struct heft_data_run *run, int write,
                   struct tcp_request *request)
{
    uint32_t need = write ? HEFT_REGION_REMOTE_WRITE : HEFT_REGION_REMOTE_READ, at = request->move_count;
    struct heft_transport_region *before = at > 0 ? request->moves[at - 1].local : NULL, *region = NULL;
    struct heft_move *move = &request->moves[at];
    uint64_t bytes;
    int rc = pin_run(transport, run, need, before, &region);

    if (rc != 0)
        return rc;
    /* in the table from here on, so that release unpins it */
    memset(move, 0, sizeof(*move));
    move->local = region;
    move->local_offset_bytes = run->offset_bytes;
    move->length_bytes = run->length_bytes;
    move->count = run->count;
    move->local_stride_bytes = run->stride_bytes;
    /* remote_stride stays 0: pieces that touch here are still cut as the client cuts them */
    request->move_count++;
    if (!served_space(region, write))
        return HEFT_ERR_UNSUPPORTED;
    request->staged |= region->space != HEFT_SPACE_HOST;
    if (__builtin_mul_overflow(run->length_bytes, run->count, &bytes) || bytes > HEFT_DATA_MAX_PART_BYTES ||
        request->total_bytes + bytes > HEFT_DATA_MAX_PART_BYTES)
        return HEFT_ERR_TOO_LARGE;
    request->total_bytes += bytes;
    return 0;
}

int tcp_request_parse(struct tcp_transport *transport, const struct heft_data_head *head,
                      const uint8_t *table, struct tcp_request *request)
{
    int write = head->type == HEFT_DATA_WRITE, rc = 0;
    struct heft_data_run run = {0};
    uint32_t i;

    memset(request, 0, sizeof(*request));
    request->id = head->id;
    request->digest = (head->flags & HEFT_DATA_DIGEST) != 0;
    request->answer = write ? TCP_ANSWER_RECEIVING : TCP_ANSWER_DATA;
    request->moves = request->few;
    if (head->value > sizeof(request->few) / sizeof(request->few[0]))
        request->moves = malloc(head->value * sizeof(request->moves[0]));
    if (request->moves == NULL) {
        request->moves = request->few;
        tcp_request_refuse(transport, request, HEFT_ERR_NO_MEMORY, UINT32_MAX, 0);
        return 0;
    }
    for (i = 0; i < head->value && rc == 0; i++) {
        heft_data_run_decode(table + i * HEFT_DATA_RUN_BYTES, &run);
        rc = add_run(transport, &run, write, request);
    }
    if (rc == 0 && request->total_bytes == 0)
        rc = HEFT_ERR_INVALID; /* nothing could answer it */
    if (rc != 0) {
        tcp_request_refuse(transport, request, rc, i - 1, run.region);
        return 0;
    }
    request->place.moves = request->moves;
    request->place.move_count = request->move_count;
    if (write && request->total_bytes != head->bulk_bytes) {
        tcp_request_release(transport, request);
        return HEFT_ERR_PROTOCOL;
    }
    return 0;
}

static int read_file(const struct heft_transport_region *region, uint64_t offset, uint8_t *to, uint64_t bytes)
{
    while (bytes > 0) {
        ssize_t got = pread(region->fd, to, bytes, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return heft_error_from_errno(errno);
        if (got == 0)
            return HEFT_ERR_CHANGED; /* shorter than when it was registered */
        to += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return 0;
}

int64_t tcp_request_gather(struct tcp_request *request, uint8_t *to, uint64_t max, uint64_t *digest_out)
{
    struct heft_cut cut;
    uint64_t done = 0, got, digest = 0;

    while (done < max && (got = heft_cursor_cut(&request->place.cursor, request->place.moves,
                                                request->place.move_count, max - done, 0, &cut)) > 0) {
        const struct heft_transport_region *region = cut.move->local;
        int rc = 0;

        if (region->space == HEFT_SPACE_FILE)
            rc = read_file(region, cut.local_offset_bytes, to + done, got);
        else if (region->space == HEFT_SPACE_CUDA)
            rc = heft_cuda_get((uintptr_t)region->address + cut.local_offset_bytes, to + done, got, NULL);
        else
            memcpy(to + done, (const char *)region->address + cut.local_offset_bytes, got);
        if (rc != 0)
            return rc;
        if (request->digest)
            digest = heft_hash64(to + done, got, digest);
        done += got;
    }
    *digest_out = digest;
    return (int64_t)done;
}
