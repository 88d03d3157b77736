/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One claim, from cut to started: its moves become runs of addresses that the GPU reaches (a slot of pinned
 * memory stands in for files and plain host memory), neighbours grow together, and the runs go to the copy
 * engines or, all in one launch, to our kernel.
 */
#include "transport/cuda/cuda.h"

#include "base/error.h"
#include "space/cuda_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sides {
    struct cuda_side to, from;
};

/* What was read into, or will be written from, a slot. */
struct place {
    const struct cuda_side *side;
    uint64_t offset_bytes, stride_bytes;
    const struct heft_transport_region *region;
};

static int is_reached(const struct cuda_side *side)
{
    return side->kind == CUDA_SIDE_DEVICE || side->kind == CUDA_SIDE_PINNED;
}

static int remote_side(const struct cuda_endpoint *endpoint, const struct heft_transport_op *op,
                       const struct heft_move *move, struct cuda_side *side_out, struct heft_error *error)
{
    uint32_t need = op->kind == HEFT_OP_READ ? HEFT_REGION_REMOTE_READ : HEFT_REGION_REMOTE_WRITE;
    const struct cuda_remote *remote;

    if (!endpoint->has_peer) {
        cuda_region_side(endpoint->transport, move->remote, side_out);
        return HEFT_OK;
    }
    remote = move->remote->slot[endpoint->transport->host.index];
    if (!(move->remote->flags & need))
        return heft_error_set(error, HEFT_ERR_DENIED, "region %llu of %s may not be %s by peers",
                              (unsigned long long)move->remote->id, endpoint->name,
                              op->kind == HEFT_OP_READ ? "read" : "written");
    if (!remote || remote->side.kind == CUDA_SIDE_NONE)
        return heft_error_set(error, HEFT_ERR_UNAVAILABLE, "region %llu of %s can't be reached: %s",
                              (unsigned long long)move->remote->id, endpoint->name,
                              remote ? remote->reason : "it was never announced");
    *side_out = remote->side;
    return HEFT_OK;
}

static int sides_of(const struct cuda_endpoint *endpoint, const struct heft_transport_op *op,
                    const struct heft_move *move, struct sides *sides_out, struct heft_error *error)
{
    struct cuda_side local, remote;
    int rc;

    cuda_region_side(endpoint->transport, move->local, &local);
    rc = remote_side(endpoint, op, move, &remote, error);
    if (rc)
        return rc;
    if (local.kind == CUDA_SIDE_NONE || remote.kind == CUDA_SIDE_NONE ||
        (local.kind != CUDA_SIDE_DEVICE && remote.kind != CUDA_SIDE_DEVICE))
        return heft_error_set(
            error, HEFT_ERR_UNSUPPORTED,
            "the cuda transport can't move between %s here (%s) and %s there: one side must be "
            "device memory, and both must have been taken at registration",
            heft_space_name(move->local->space), move->local->label ? move->local->label : "",
            heft_space_name(move->remote->space));
    sides_out->to = op->kind == HEFT_OP_READ ? local : remote;
    sides_out->from = op->kind == HEFT_OP_READ ? remote : local;
    return HEFT_OK;
}

int cuda_op_way(struct cuda_endpoint *endpoint, const struct heft_transport_op *op, struct cuda_way **way_out,
                struct heft_error *error)
{
    const struct heft_transport_region *local = NULL, *remote = NULL;
    struct sides sides;
    size_t index;
    int staged = 0;

    for (index = 0; index < op->move_count; index++) {
        const struct heft_move *move = &op->moves[index];
        int rc;

        if (move->length_bytes == 0 || move->count == 0 || (move->local == local && move->remote == remote))
            continue;
        local = move->local;
        remote = move->remote;
        rc = sides_of(endpoint, op, move, &sides, error);
        if (rc)
            return rc;
        staged |= !is_reached(&sides.to) || !is_reached(&sides.from);
    }
    *way_out = staged ? &endpoint->staged : &endpoint->direct;
    return HEFT_OK;
}

/* ---- files and plain memory ---- */

static int file_failed(const struct place *place, const char *verb, ssize_t got, uint64_t at,
                       struct heft_error *error)
{
    const char *label = place->region->label && place->region->label[0] ? place->region->label : "a file";

    if (got < 0)
        return heft_error_set_errno(error, errno, "%s %s at byte %llu", verb, label, (unsigned long long)at);
    return heft_error_set(error, HEFT_ERR_TRUNCATED, "%s ended at byte %llu: the file is shorter than it was",
                          label, (unsigned long long)at);
}

static int file_bytes(const struct place *place, uint64_t at, uint8_t *slot, uint64_t length, int writes,
                      struct heft_error *error)
{
    while (length > 0) {
        ssize_t got = writes ? pwrite(place->side->fd, slot, length, (off_t)at)
                             : pread(place->side->fd, slot, length, (off_t)at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return file_failed(place, writes ? "writing" : "reading", got, at, error);
        slot += got;
        at += (uint64_t)got;
        length -= (uint64_t)got;
    }
    return HEFT_OK;
}

/* `count` pieces between their places and the slot, where they lie one behind the other. */
static int slot_bytes(const struct place *place, uint8_t *slot, uint64_t length, uint64_t count,
                      int from_slot, struct heft_error *error)
{
    uint64_t index;
    int rc = HEFT_OK;

    if (count > 1 && place->stride_bytes == length) {
        length *= count;
        count = 1;
    }
    for (index = 0; index < count && !rc; index++) {
        uint64_t at = place->offset_bytes + index * place->stride_bytes;
        union {
            uint64_t number;
            uint8_t *pointer;
        } memory = {.number = place->side->address + at};

        if (place->side->kind == CUDA_SIDE_FILE)
            rc = file_bytes(place, at, slot, length, from_slot, error);
        else if (from_slot)
            memcpy(memory.pointer, slot, length);
        else
            memcpy(slot, memory.pointer, length);
        slot += length;
    }
    return rc;
}

static int stop_wanted(const struct cuda_flight *flight)
{
    const struct cuda_way *way = flight->staged ? &flight->endpoint->staged : &flight->endpoint->direct;
    int failed = __atomic_load_n(&way->queue.failed, __ATOMIC_ACQUIRE);

    if (failed)
        return failed;
    return __atomic_load_n(&flight->claim.op->cancel_wanted, __ATOMIC_ACQUIRE) ? HEFT_ERR_CANCELED : HEFT_OK;
}

/* ---- runs ---- */

static void add_run(struct cuda_flight *flight, struct cuda_run run)
{
    struct cuda_run *last = flight->run_count ? &flight->runs[flight->run_count - 1] : NULL;

    if (run.count > 1 && run.to_stride_bytes == run.length_bytes &&
        run.from_stride_bytes == run.length_bytes) {
        run.length_bytes *= run.count;
        run.count = 1;
    }
    if (last && run.count == 1 && last->count == 1 && run.to == last->to + last->length_bytes &&
        run.from == last->from + last->length_bytes && run.kernels == last->kernels) {
        last->length_bytes += run.length_bytes;
        return;
    }
    flight->runs[flight->run_count++] = run;
}

/*
 * Makes this side usable by the flight's GPU: mappings are opened to it (an addition that takes nothing from
 * others), plain memory of another GPU by peer access. 1: kernels may touch it too; 0: the engines alone.
 */
static int open_to_device(const struct cuda_flight *flight, const struct cuda_side *side)
{
    struct heft_cu_location location = {HEFT_CU_LOCATION_DEVICE, flight->device};
    const struct heft_cu *cu = flight->transport->cu;
    unsigned long long access = 0;

    if (side->kind != CUDA_SIDE_DEVICE || side->device == flight->device)
        return 1; /* pinned, our slot, or its own */
    if (!side->mapped_bytes)
        return heft_cuda_enable_peer(flight->device, side->device) == HEFT_OK && !side->opened;
    if (cu->mem_get_access(&access, &location, side->mapped_at) == HEFT_CU_SUCCESS &&
        access == HEFT_CU_ACCESS_READ_WRITE)
        return 1;
    return heft_cuda_grant(cu, flight->device, side->mapped_at, side->mapped_bytes) == HEFT_CU_SUCCESS;
}

static int overlaps(const struct cuda_run *run)
{
    uint64_t to_end = run->to + (run->count - 1) * run->to_stride_bytes + run->length_bytes;
    uint64_t from_end = run->from + (run->count - 1) * run->from_stride_bytes + run->length_bytes;

    return run->to < from_end && run->from < to_end;
}

/* One cut to a run; *used counts the slot's bytes. Loads the slot when the bytes come from outside. */
static int add_cut(struct cuda_flight *flight, const struct heft_cut *cut, const struct sides *sides,
                   int kernels, uint64_t *used, struct heft_error *error)
{
    int read = flight->claim.op->kind == HEFT_OP_READ, rc;
    const struct heft_move *move = cut->move;
    uint64_t to_offset = read ? cut->local_offset_bytes : cut->remote_offset_bytes;
    uint64_t from_offset = read ? cut->remote_offset_bytes : cut->local_offset_bytes;
    struct cuda_run run = {.to = sides->to.address + to_offset,
                           .from = sides->from.address + from_offset,
                           .length_bytes = cut->length_bytes,
                           .count = cut->count,
                           .to_stride_bytes = read ? move->local_stride_bytes : move->remote_stride_bytes,
                           .from_stride_bytes = read ? move->remote_stride_bytes : move->local_stride_bytes,
                           .kernels = kernels};

    if (!is_reached(&sides->from)) {
        struct place place = {&sides->from, from_offset, run.from_stride_bytes,
                              read ? move->remote : move->local};

        rc = slot_bytes(&place, flight->slot + *used, cut->length_bytes, cut->count, 0, error);
        if (rc)
            return rc;
        run.from = (uintptr_t)flight->slot + *used;
        run.from_stride_bytes = cut->length_bytes;
        *used += cut->length_bytes * cut->count;
    } else if (!is_reached(&sides->to)) {
        run.to = (uintptr_t)flight->slot + *used;
        run.to_stride_bytes = cut->length_bytes;
        *used += cut->length_bytes * cut->count;
        flight->stores = 1;
    } else if (overlaps(&run)) {
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                              "source and destination overlap in device memory: copy through another place");
    }
    add_run(flight, run);
    return HEFT_OK;
}

/* Every cut of the claim to a run. What both sides are is looked up once for moves in a row of the same two
 * regions: lists have thousands of moves and two regions. */
static int make_runs(struct cuda_flight *flight, struct heft_error *error)
{
    const struct heft_transport_op *op = flight->claim.op;
    struct heft_cursor cursor = flight->claim.start;
    const struct heft_transport_region *local = NULL, *remote = NULL;
    uint64_t left = flight->claim.bytes, used = 0, bytes;
    struct sides sides = {0};
    struct heft_cut cut;
    int kernels = 0, rc = HEFT_OK;

    flight->run_count = 0;
    flight->stores = 0;
    while (left > 0 && !rc) {
        bytes = heft_cursor_cut(&cursor, op->moves, op->move_count, left, 1, &cut);
        if (bytes == 0)
            break;
        left -= bytes;
        rc = stop_wanted(flight);
        if (!rc && (cut.move->local != local || cut.move->remote != remote)) {
            rc = sides_of(flight->endpoint, op, cut.move, &sides, error);
            if (!rc) {
                kernels = open_to_device(flight, &sides.to);
                kernels &= open_to_device(flight, &sides.from);
                local = cut.move->local;
                remote = cut.move->remote;
            }
        }
        if (!rc)
            rc = add_cut(flight, &cut, &sides, kernels, &used, error);
        if (rc)
            flight->failed_move = (int64_t)cut.move_index;
    }
    flight->outward = sides.to.kind == CUDA_SIDE_PINNED || flight->stores;
    flight->inward = sides.from.kind == CUDA_SIDE_PINNED || (flight->staged && !flight->stores);
    return rc;
}

/* ---- to the GPU ---- */

static heft_cu_result engine_copies(struct cuda_flight *flight, heft_cu_stream stream, int all,
                                    uint64_t *started)
{
    const struct heft_cu *cu = flight->transport->cu;
    heft_cu_result result = HEFT_CU_SUCCESS;
    uint64_t piece;
    size_t index;

    for (index = 0; index < flight->run_count && !result; index++) {
        const struct cuda_run *run = &flight->runs[index];

        if (!all && run->kernels)
            continue;
        for (piece = 0; piece < run->count && !result; piece++) {
            result = cu->memcpy_async(run->to + piece * run->to_stride_bytes,
                                      run->from + piece * run->from_stride_bytes, run->length_bytes, stream);
            *started += !result;
        }
    }
    return result;
}

/* A run as items: pieces longer than a warp should copy are cut. */
static void add_items(struct heft_cuda_item *items, size_t *count, uint64_t *pieces,
                      const struct cuda_run *run)
{
    uint64_t index;

    if (run->length_bytes <= CUDA_WARP_BYTES) {
        items[(*count)++] = (struct heft_cuda_item){.to = run->to,
                                                    .from = run->from,
                                                    .to_stride_bytes = run->to_stride_bytes,
                                                    .from_stride_bytes = run->from_stride_bytes,
                                                    .length_bytes = (uint32_t)run->length_bytes,
                                                    .last_bytes = (uint32_t)run->length_bytes,
                                                    .first = *pieces};
        *pieces += run->count;
        return;
    }
    for (index = 0; index < run->count; index++) {
        uint64_t cuts = (run->length_bytes + CUDA_WARP_BYTES - 1) / CUDA_WARP_BYTES;

        items[(*count)++] = (struct heft_cuda_item){
            .to = run->to + index * run->to_stride_bytes,
            .from = run->from + index * run->from_stride_bytes,
            .to_stride_bytes = CUDA_WARP_BYTES,
            .from_stride_bytes = CUDA_WARP_BYTES,
            .length_bytes = (uint32_t)CUDA_WARP_BYTES,
            .last_bytes = (uint32_t)(run->length_bytes - (cuts - 1) * CUDA_WARP_BYTES),
            .first = *pieces};
        *pieces += cuts;
    }
}

static heft_cu_result kernel_copies(struct cuda_flight *flight, const struct cuda_lane *lane,
                                    heft_cu_stream stream, uint64_t *started)
{
    const struct heft_cu *cu = flight->transport->cu;
    heft_cu_pointer *device_items = &flight->device_items[flight->device];
    heft_cu_result result = HEFT_CU_SUCCESS;
    uint64_t item_count, pieces = 0, blocks;
    size_t count = 0, index;
    void *pinned = flight->items;
    void *parameters[3] = {device_items, &item_count, &pieces};

    if (!flight->items)
        result = cu->host_alloc(&pinned, CUDA_ITEMS * sizeof(*flight->items), HEFT_CU_HOST_ALLOC_PORTABLE);
    flight->items = pinned;
    if (!result && !*device_items)
        result = cu->mem_alloc(device_items, CUDA_ITEMS * sizeof(*flight->items));
    if (result)
        return result;
    for (index = 0; index < flight->run_count; index++)
        if (flight->runs[index].kernels)
            add_items(flight->items, &count, &pieces, &flight->runs[index]);
    HEFT_ASSERT(count <= CUDA_ITEMS);
    item_count = count;
    blocks = (pieces + HEFT_CUDA_COPY_THREADS / 32 - 1) / (HEFT_CUDA_COPY_THREADS / 32);
    if (blocks > HEFT_CUDA_COPY_BLOCKS)
        blocks = HEFT_CUDA_COPY_BLOCKS;
    result =
        cu->memcpy_async(*device_items, (uintptr_t)flight->items, count * sizeof(*flight->items), stream);
    *started += !result;
    if (!result)
        result = cu->launch(lane->kernels.copy, (unsigned)blocks, 1, 1, HEFT_CUDA_COPY_THREADS, 1, 1, 0,
                            stream, parameters, NULL);
    return result;
}

/* Many small pieces: the kernel; few or large ones: the engines. */
static int wants_kernel(const struct cuda_flight *flight, const struct cuda_lane *lane)
{
    uint64_t pieces = 0, bytes = 0;
    size_t index;

    for (index = 0; index < flight->run_count; index++)
        if (flight->runs[index].kernels) {
            pieces += flight->runs[index].count;
            bytes += flight->runs[index].count * flight->runs[index].length_bytes;
        }
    return lane->has_kernels && pieces >= CUDA_KERNEL_FROM_PIECES && bytes / pieces < CUDA_KERNEL_BELOW_BYTES;
}

static heft_cu_stream stream_for(const struct cuda_flight *flight, const struct cuda_lane *lane)
{
    return flight->outward ? lane->out : flight->inward ? lane->in : lane->across;
}

/* Streams of the device, at its first flight. Inside enter. */
static int make_lane(struct cuda_transport *transport, int device, struct heft_error *error)
{
    struct cuda_lane *lane = &transport->lanes[device];
    const struct heft_cu *cu = transport->cu;
    heft_cu_result result = HEFT_CU_SUCCESS;

    (void)pthread_mutex_lock(&transport->lock);
    if (!lane->ready) {
        result = cu->stream_create(&lane->in, HEFT_CU_STREAM_NON_BLOCKING);
        if (!result)
            result = cu->stream_create(&lane->out, HEFT_CU_STREAM_NON_BLOCKING);
        if (!result)
            result = cu->stream_create(&lane->across, HEFT_CU_STREAM_NON_BLOCKING);
        lane->has_kernels = heft_cuda_kernels(device, &lane->kernels, NULL) == HEFT_OK;
        lane->ready = result ? 0 : 1;
    }
    (void)pthread_mutex_unlock(&transport->lock);
    return result ? heft_cuda_error(error, result, "making streams on GPU %d", device) : HEFT_OK;
}

/* What the flight keeps from one claim to the next. Inside enter. */
static int make_flight(struct cuda_flight *flight, struct heft_error *error)
{
    const struct heft_cu *cu = flight->transport->cu;
    heft_cu_event *event = &flight->events[flight->device];
    heft_cu_result result = HEFT_CU_SUCCESS;
    void *pinned = flight->slot;

    if (!flight->runs)
        flight->runs = calloc(CUDA_DIRECT_CUTS, sizeof(*flight->runs));
    if (!flight->runs)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for copies");
    if (!*event)
        result = cu->event_create(event, HEFT_CU_EVENT_DISABLE_TIMING);
    if (!result && flight->staged && !flight->slot)
        result =
            cu->host_alloc(&pinned, CUDA_SLOT_BYTES, HEFT_CU_HOST_ALLOC_PORTABLE | HEFT_CU_HOST_ALLOC_MAPPED);
    flight->slot = pinned;
    return result ? heft_cuda_error(error, result, "taking %llu bytes of pinned memory (see ulimit -l)",
                                    (unsigned long long)CUDA_SLOT_BYTES)
                  : HEFT_OK;
}

/* The GPU that does the work: this process' own side before the peer's. */
static int flight_device(const struct cuda_flight *flight, int *device_out, struct heft_error *error)
{
    const struct heft_transport_op *op = flight->claim.op;
    struct heft_cursor cursor = flight->claim.start;
    struct sides sides;
    struct heft_cut cut;
    const struct cuda_side *local, *remote;
    int rc;

    (void)heft_cursor_cut(&cursor, op->moves, op->move_count, 1, 0, &cut);
    rc = sides_of(flight->endpoint, op, cut.move, &sides, error);
    if (rc)
        return rc;
    local = op->kind == HEFT_OP_READ ? &sides.to : &sides.from;
    remote = op->kind == HEFT_OP_READ ? &sides.from : &sides.to;
    *device_out = local->kind == CUDA_SIDE_DEVICE ? local->device : remote->device;
    return HEFT_OK;
}

static int launch(struct cuda_flight *flight, struct heft_error *error)
{
    const struct cuda_lane *lane = &flight->transport->lanes[flight->device];
    heft_cu_stream stream = stream_for(flight, lane);
    int kernel = wants_kernel(flight, lane);
    heft_cu_result result = HEFT_CU_SUCCESS;
    uint64_t started = 0;

    if (kernel)
        result = kernel_copies(flight, lane, stream, &started);
    if (!result)
        result = engine_copies(flight, stream, !kernel, &started);
    if (result) {
        flight->status = heft_cuda_error(&flight->error, result, "copying %llu bytes on GPU %d",
                                         (unsigned long long)flight->claim.bytes, flight->device);
        if (started == 0) {
            *error = flight->error;
            return flight->status;
        }
    }
    /* What was started still writes: the event behind it ends the flight, also a failed one. */
    result = flight->transport->cu->event_record(flight->events[flight->device], stream);
    return result ? heft_cuda_error(error, result, "watching copies on GPU %d", flight->device) : HEFT_OK;
}

int cuda_flight_start(struct cuda_flight *flight)
{
    struct heft_error *error = &flight->error;
    int rc;

    flight->status = 0;
    flight->failed_move = -1;
    *error = (struct heft_error)HEFT_ERROR_INIT;
    rc = flight_device(flight, &flight->device, error);
    if (!rc)
        rc = heft_cuda_enter(flight->device, error);
    if (rc) {
        flight->status = rc;
        return rc;
    }
    rc = make_lane(flight->transport, flight->device, error);
    if (!rc)
        rc = make_flight(flight, error);
    if (!rc)
        rc = make_runs(flight, error);
    if (!rc)
        rc = launch(flight, error);
    heft_cuda_leave();
    if (rc)
        flight->status = rc;
    return rc;
}

int cuda_flight_store(struct cuda_flight *flight)
{
    const struct heft_transport_op *op = flight->claim.op;
    struct heft_cursor cursor = flight->claim.start;
    uint64_t left = flight->claim.bytes, used = 0, bytes;
    int read = op->kind == HEFT_OP_READ, rc = HEFT_OK;
    struct heft_cut cut;

    while (left > 0 && !rc) {
        struct sides sides;

        bytes = heft_cursor_cut(&cursor, op->moves, op->move_count, left, 1, &cut);
        if (bytes == 0)
            break;
        left -= bytes;
        rc = stop_wanted(flight);
        if (!rc)
            rc = sides_of(flight->endpoint, op, cut.move, &sides, &flight->error);
        if (!rc && !is_reached(&sides.to)) {
            struct place place = {&sides.to, read ? cut.local_offset_bytes : cut.remote_offset_bytes,
                                  read ? cut.move->local_stride_bytes : cut.move->remote_stride_bytes,
                                  read ? cut.move->local : cut.move->remote};

            rc = slot_bytes(&place, flight->slot + used, cut.length_bytes, cut.count, 1, &flight->error);
            used += bytes;
        } else if (!rc && !is_reached(&sides.from)) {
            used += bytes;
        }
        if (rc)
            flight->failed_move = (int64_t)cut.move_index;
    }
    return rc;
}
