/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One claim, from cut to started: its moves become runs of addresses that the GPU reaches (a slot of pinned
 * memory stands in for files and plain host memory), and neighbours grow together.
 */
#include "transport/cuda/cuda.h"

#include "base/error.h"
#include "space/cuda_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What was read into, or will be written from, a slot. */
struct place {
    const struct cuda_side *side;
    uint64_t offset_bytes, stride_bytes;
    const struct heft_transport_region *region;
};

int cuda_side_is_reached(const struct cuda_side *side)
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

int cuda_sides_of(const struct cuda_endpoint *endpoint, const struct heft_transport_op *op,
                  const struct heft_move *move, struct cuda_sides *sides_out, struct heft_error *error)
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
    struct cuda_sides sides;
    size_t index;
    int staged = 0;

    for (index = 0; index < op->move_count; index++) {
        const struct heft_move *move = &op->moves[index];
        int rc;

        if (move->length_bytes == 0 || move->count == 0 || (move->local == local && move->remote == remote))
            continue;
        local = move->local;
        remote = move->remote;
        rc = cuda_sides_of(endpoint, op, move, &sides, error);
        if (rc)
            return rc;
        staged |= !cuda_side_is_reached(&sides.to) || !cuda_side_is_reached(&sides.from);
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
    const struct cuda_way *way =
        flight->sort == CUDA_STAGED ? &flight->endpoint->staged : &flight->endpoint->direct;
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

/* What open_to_device found, asked of the driver: the answer stays what it is while the memory is. */
static int ask_access(const struct cuda_transport *transport, int device, const struct cuda_side *side)
{
    struct heft_cu_location location = {HEFT_CU_LOCATION_DEVICE, device};
    const struct heft_cu *cu = transport->cu;
    unsigned long long access = 0;

    if (!side->mapped_bytes)
        return heft_cuda_enable_peer(device, side->device) == HEFT_OK && !side->opened;
    if (cu->mem_get_access(&access, &location, side->mapped_at) == HEFT_CU_SUCCESS &&
        access == HEFT_CU_ACCESS_READ_WRITE)
        return 1;
    return heft_cuda_grant(cu, device, side->mapped_at, side->mapped_bytes) == HEFT_CU_SUCCESS;
}

int cuda_open_to_device(const struct cuda_transport *transport, int device, const struct cuda_side *side)
{
    uint64_t bit = UINT64_C(1) << device;
    int kernels;

    if (side->kind != CUDA_SIDE_DEVICE || side->device == device)
        return 1; /* pinned, our slot, or its own */
    if (side->access && __atomic_load_n(&side->access->asked, __ATOMIC_ACQUIRE) & bit)
        return (__atomic_load_n(&side->access->kernels, __ATOMIC_RELAXED) & bit) != 0;
    kernels = ask_access(transport, device, side);
    if (side->access) {
        if (kernels)
            (void)__atomic_or_fetch(&side->access->kernels, bit, __ATOMIC_RELAXED);
        (void)__atomic_or_fetch(&side->access->asked, bit, __ATOMIC_RELEASE);
    }
    return kernels;
}

int cuda_run_overlaps(const struct cuda_run *run)
{
    uint64_t to_end = run->to + (run->count - 1) * run->to_stride_bytes + run->length_bytes;
    uint64_t from_end = run->from + (run->count - 1) * run->from_stride_bytes + run->length_bytes;

    return run->to < from_end && run->from < to_end;
}

/* One cut to a run; *used counts the slot's bytes. Loads the slot when the bytes come from outside. */
static int add_cut(struct cuda_flight *flight, const struct heft_cut *cut, const struct cuda_sides *sides,
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

    if (!cuda_side_is_reached(&sides->from)) {
        struct place place = {&sides->from, from_offset, run.from_stride_bytes,
                              read ? move->remote : move->local};

        rc = slot_bytes(&place, flight->slot + *used, cut->length_bytes, cut->count, 0, error);
        if (rc)
            return rc;
        run.from = (uintptr_t)flight->slot + *used;
        run.from_stride_bytes = cut->length_bytes;
        *used += cut->length_bytes * cut->count;
    } else if (!cuda_side_is_reached(&sides->to)) {
        run.to = (uintptr_t)flight->slot + *used;
        run.to_stride_bytes = cut->length_bytes;
        *used += cut->length_bytes * cut->count;
        flight->stores = 1;
    } else if (cuda_run_overlaps(&run)) {
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
    struct cuda_sides sides = {0};
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
            rc = cuda_sides_of(flight->endpoint, op, cut.move, &sides, error);
            if (!rc) {
                kernels = cuda_open_to_device(flight->transport, flight->device, &sides.to);
                kernels &= cuda_open_to_device(flight->transport, flight->device, &sides.from);
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
    flight->inward = sides.from.kind == CUDA_SIDE_PINNED || (flight->sort == CUDA_STAGED && !flight->stores);
    return rc;
}

int cuda_sides_device(const struct heft_transport_op *op, const struct cuda_sides *sides)
{
    const struct cuda_side *local = op->kind == HEFT_OP_READ ? &sides->to : &sides->from;
    const struct cuda_side *remote = op->kind == HEFT_OP_READ ? &sides->from : &sides->to;

    return local->kind == CUDA_SIDE_DEVICE ? local->device : remote->device;
}

static int flight_device(const struct cuda_flight *flight, int *device_out, struct heft_error *error)
{
    const struct heft_transport_op *op = flight->claim.op;
    struct heft_cursor cursor = flight->claim.start;
    struct cuda_sides sides;
    struct heft_cut cut;
    int rc;

    (void)heft_cursor_cut(&cursor, op->moves, op->move_count, 1, 0, &cut);
    rc = cuda_sides_of(flight->endpoint, op, cut.move, &sides, error);
    if (!rc)
        *device_out = cuda_sides_device(op, &sides);
    return rc;
}

void cuda_flight_reset(struct cuda_flight *flight)
{
    flight->status = 0;
    flight->failed_move = -1;
    flight->error = (struct heft_error)HEFT_ERROR_INIT;
    flight->stores = flight->inward = flight->outward = 0;
    flight->run_count = 0;
}

int cuda_flight_start(struct cuda_flight *flight)
{
    struct heft_error *error = &flight->error;
    int rc;

    cuda_flight_reset(flight);
    rc = flight_device(flight, &flight->device, error);
    if (!rc)
        rc = heft_cuda_enter(flight->device, error);
    if (rc) {
        flight->status = rc;
        return rc;
    }
    rc = cuda_lane_make(flight->transport, flight->device, error);
    if (!rc)
        rc = cuda_flight_make(flight, error);
    if (!rc)
        rc = make_runs(flight, error);
    if (!rc)
        rc = cuda_flight_launch(flight, error);
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
        struct cuda_sides sides;

        bytes = heft_cursor_cut(&cursor, op->moves, op->move_count, left, 1, &cut);
        if (bytes == 0)
            break;
        left -= bytes;
        rc = stop_wanted(flight);
        if (!rc)
            rc = cuda_sides_of(flight->endpoint, op, cut.move, &sides, &flight->error);
        if (!rc && !cuda_side_is_reached(&sides.to)) {
            struct place place = {&sides.to, read ? cut.local_offset_bytes : cut.remote_offset_bytes,
                                  read ? cut.move->local_stride_bytes : cut.move->remote_stride_bytes,
                                  read ? cut.move->local : cut.move->remote};

            rc = slot_bytes(&place, flight->slot + used, cut.length_bytes, cut.count, 1, &flight->error);
            used += bytes;
        } else if (!rc && !cuda_side_is_reached(&sides.from)) {
            used += bytes;
        }
        if (rc)
            flight->failed_move = (int64_t)cut.move_index;
    }
    return rc;
}
