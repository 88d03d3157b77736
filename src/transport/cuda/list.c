/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of small pieces as one launch, from the posting thread. Its items are made in one walk over the
 * moves; those of a transfer that can keep something stay in device memory as a table, so that the next post
 * of the same moves is a launch and a mark, however long the list is.
 *
 * A table is right as long as its transfer's moves, the endpoint and every region are what they were: the
 * first two have numbers, and the transport's epoch grows whenever any region goes. What a transfer uses
 * can't go while it is active.
 */
#include "transport/cuda/cuda.h"

#include "base/error.h"

#include <stdlib.h>

#define TABLE_ITEMS_MIN UINT64_C(256)

/* ---- tables ---- */

void cuda_tables_free(struct cuda_transport *transport)
{
    struct cuda_table *table;

    while ((table = transport->tables) != NULL) {
        transport->tables = table->next;
        if (!heft_cuda_enter(table->device, NULL)) {
            (void)transport->cu->mem_free(table->items);
            heft_cuda_leave();
        }
        free(table);
    }
}

void cuda_forget(struct heft_transport *opened, void *kept)
{
    struct cuda_transport *transport = (struct cuda_transport *)(void *)opened;
    struct cuda_table *table = kept;

    (void)pthread_mutex_lock(&transport->lock);
    table->next_free = transport->free_tables[table->device];
    transport->free_tables[table->device] = table;
    (void)pthread_mutex_unlock(&transport->lock);
}

/* One of `count` items and more that nobody uses. */
static struct cuda_table *find_table(struct cuda_transport *transport, int device, uint64_t count)
{
    struct cuda_table **at, **best = NULL, *table = NULL;

    (void)pthread_mutex_lock(&transport->lock);
    for (at = &transport->free_tables[device]; *at; at = &(*at)->next_free)
        if ((*at)->capacity >= count && (!best || (*at)->capacity < (*best)->capacity))
            best = at;
    if (best) {
        table = *best;
        *best = table->next_free;
    }
    (void)pthread_mutex_unlock(&transport->lock);
    return table;
}

/* NULL: none could be had, and nothing is kept. Inside enter(device). */
static struct cuda_table *take_table(struct cuda_transport *transport, int device, uint64_t count)
{
    struct cuda_table *table = find_table(transport, device, count);
    uint64_t capacity = TABLE_ITEMS_MIN;
    int too_many;

    if (table)
        return table;
    (void)pthread_mutex_lock(&transport->lock);
    too_many = transport->table_count >= CUDA_TABLES_MAX;
    transport->table_count += !too_many;
    (void)pthread_mutex_unlock(&transport->lock);
    while (capacity < count)
        capacity *= 2;
    table = too_many ? NULL : calloc(1, sizeof(*table));
    if (table && transport->cu->mem_alloc(&table->items, capacity * sizeof(struct heft_cuda_item))) {
        free(table);
        table = NULL;
    }
    (void)pthread_mutex_lock(&transport->lock);
    if (table) {
        table->device = device;
        table->capacity = capacity;
        table->next = transport->tables;
        transport->tables = table;
    } else {
        transport->table_count -= !too_many;
    }
    (void)pthread_mutex_unlock(&transport->lock);
    return table;
}

static int describes(const struct cuda_table *table, const struct cuda_endpoint *endpoint,
                     const struct heft_transport_op *op)
{
    return table->moves_id == op->moves_id && table->endpoint == endpoint->number &&
           table->epoch == __atomic_load_n(&endpoint->transport->epoch, __ATOMIC_ACQUIRE);
}

/* ---- items ---- */

struct list {
    struct cuda_flight *flight;
    const struct heft_transport_op *op;
    size_t count;
    uint64_t pieces;
    struct cuda_run last; /* not among the items yet: the next may go on where it ends */
};

static int put_last(struct list *list)
{
    const struct cuda_run *run = &list->last;
    uint64_t more = run->length_bytes <= CUDA_WARP_BYTES ? 1 : run->count;

    if (run->count == 0)
        return 1;
    if (more > CUDA_ITEMS - list->count)
        return 0;
    cuda_items_add(list->flight->items, &list->count, &list->pieces, run);
    return 1;
}

static int add_move(struct list *list, const struct heft_move *move, const struct cuda_sides *sides)
{
    int read = list->op->kind == HEFT_OP_READ;
    struct cuda_run *last = &list->last;
    struct cuda_run run = {
        .to = sides->to.address + (read ? move->local_offset_bytes : move->remote_offset_bytes),
        .from = sides->from.address + (read ? move->remote_offset_bytes : move->local_offset_bytes),
        .length_bytes = move->length_bytes,
        .count = move->count,
        .to_stride_bytes = read ? move->local_stride_bytes : move->remote_stride_bytes,
        .from_stride_bytes = read ? move->remote_stride_bytes : move->local_stride_bytes};

    if (run.count > 1 && run.to_stride_bytes == run.length_bytes &&
        run.from_stride_bytes == run.length_bytes) {
        run.length_bytes *= run.count;
        run.count = 1;
    }
    if (cuda_run_overlaps(&run))
        return 0;
    if (run.count == 1 && last->count == 1 && run.to == last->to + last->length_bytes &&
        run.from == last->from + last->length_bytes) {
        last->length_bytes += run.length_bytes;
        return 1;
    }
    if (!put_last(list))
        return 0;
    *last = run;
    return 1;
}

/* What the flight's GPU, and its kernel, can touch. */
static int opens(const struct cuda_flight *flight, const struct cuda_sides *sides)
{
    return cuda_side_is_reached(&sides->to) && cuda_side_is_reached(&sides->from) &&
           cuda_open_to_device(flight->transport, flight->device, &sides->to) &&
           cuda_open_to_device(flight->transport, flight->device, &sides->from);
}

/* All moves to items. 0: some can't go this way. Inside enter(flight->device). */
static int make_items(struct list *list)
{
    const struct heft_transport_op *op = list->op;
    struct cuda_flight *flight = list->flight;
    const struct heft_transport_region *local = NULL, *remote = NULL;
    struct cuda_sides sides = {0};
    size_t index;

    if (cuda_items_make(flight))
        return 0;
    for (index = 0; index < op->move_count; index++) {
        const struct heft_move *move = &op->moves[index];

        if (move->length_bytes == 0 || move->count == 0)
            continue;
        if (move->local != local || move->remote != remote) {
            if (cuda_sides_of(flight->endpoint, op, move, &sides, NULL) || !opens(flight, &sides))
                return 0;
            flight->outward |= sides.to.kind == CUDA_SIDE_PINNED;
            flight->inward |= sides.from.kind == CUDA_SIDE_PINNED;
            local = move->local;
            remote = move->remote;
        }
        if (!add_move(list, move, &sides))
            return 0;
    }
    return put_last(list) && list->pieces >= CUDA_KERNEL_FROM_PIECES;
}

/* ---- posting ---- */

/* What can be said without looking at every move. */
static int may_be_list(const struct heft_transport_op *op)
{
    const struct heft_move *first = op->moves;

    if (op->total_bytes == 0 || op->total_bytes > CUDA_LIST_BYTES || op->move_count > CUDA_ITEMS)
        return 0;
    if (op->move_count < CUDA_KERNEL_FROM_PIECES)
        return op->move_count == 1 && first->count >= CUDA_KERNEL_FROM_PIECES &&
               first->length_bytes < CUDA_KERNEL_BELOW_BYTES;
    return op->total_bytes / op->move_count < CUDA_KERNEL_BELOW_BYTES;
}

int cuda_op_device(const struct cuda_endpoint *endpoint, const struct heft_transport_op *op, int *device_out)
{
    struct cuda_sides sides;
    size_t index = 0;

    while (index < op->move_count && (op->moves[index].length_bytes == 0 || op->moves[index].count == 0))
        index++;
    if (index == op->move_count || cuda_sides_of(endpoint, op, &op->moves[index], &sides, NULL))
        return 0;
    *device_out = cuda_sides_device(op, &sides);
    return 1;
}

/* Launches; the flight may hold a failure, which is then reported as its end. */
static void launch(struct cuda_flight *flight, const struct cuda_table *table, int is_new)
{
    heft_cu_stream stream;
    heft_cu_result result = HEFT_CU_SUCCESS;
    int uploaded = 0, launched;

    flight->outward = table->outward;
    flight->inward = table->inward;
    stream = cuda_flight_stream(flight);
    result = cuda_order_wait(flight, stream);
    if (!result && is_new) {
        result = cuda_items_upload(flight, table->items, table->count, stream);
        uploaded = !result;
    }
    if (!result)
        result = cuda_items_launch(flight, table->items, table->count, table->pieces, stream);
    launched = !result;
    if (!result)
        result = cuda_raise(flight, stream);
    if (result)
        flight->status = heft_cuda_error(&flight->error, result, "copying %llu bytes on GPU %d",
                                         (unsigned long long)flight->claim.bytes, flight->device);
    if ((result && !uploaded && !launched) || cuda_flight_mark(flight, stream, &flight->error)) {
        if (!flight->status)
            flight->status = flight->error.code;
        cuda_flight_end(flight);
        return;
    }
    cuda_flight_watch(flight);
}

/* The items of new moves, in the table that is kept or the flight's own. 0: not a list. */
static int describe(struct cuda_flight *flight, struct heft_transport_op *op, struct cuda_table *own,
                    struct cuda_table **table_out)
{
    struct cuda_transport *transport = flight->transport;
    struct list list = {.flight = flight, .op = op};
    heft_cu_pointer *items = &flight->device_items[flight->device];
    struct cuda_table *table = op->kept ? *op->kept : NULL;
    uint64_t epoch = __atomic_load_n(&transport->epoch, __ATOMIC_ACQUIRE);

    if (!make_items(&list))
        return 0;
    if (table && (table->capacity < list.count || table->device != flight->device)) {
        *op->kept = NULL;
        cuda_forget((struct heft_transport *)(void *)transport, table);
        table = NULL;
    }
    if (!table && op->kept)
        *op->kept = table = take_table(transport, flight->device, list.count);
    if (!table) {
        if (!*items && transport->cu->mem_alloc(items, CUDA_ITEMS * sizeof(*flight->items)))
            return 0;
        table = own;
        table->items = *items;
    }
    table->moves_id = op->moves_id;
    table->endpoint = flight->endpoint->number;
    table->epoch = epoch;
    table->count = list.count;
    table->pieces = list.pieces;
    table->outward = flight->outward;
    table->inward = flight->inward;
    *table_out = table;
    return 1;
}

/* On a table that is ready, or made now. 0: not a list, the flight is unused. */
static int post_on(struct cuda_flight *flight, struct heft_transport_op *op, struct cuda_table *table,
                   int *rc_out, struct heft_error *error)
{
    struct cuda_endpoint *endpoint = flight->endpoint;
    struct cuda_table own = {.device = flight->device};
    int is_new = table == NULL;

    if (cuda_lane_make(flight->transport, flight->device, NULL) ||
        !flight->transport->lanes[flight->device].has_kernels)
        return 0;
    if (is_new && !describe(flight, op, &own, &table))
        return 0;
    *rc_out = heft_opqueue_post_claimed(&endpoint->direct.queue, op, &flight->claim, error);
    if (*rc_out) {
        if (is_new)
            table->moves_id = 0; /* it was never uploaded */
        cuda_flight_drop(flight);
        return 1;
    }
    (void)__atomic_add_fetch(&endpoint->refs, 1, __ATOMIC_RELAXED);
    launch(flight, table, is_new);
    return 1;
}

int cuda_list_post_on(struct cuda_flight *flight, struct cuda_endpoint *endpoint,
                      struct heft_transport_op *op, int *rc_out, struct heft_error *error)
{
    struct cuda_table *table = op->kept ? *op->kept : NULL;
    int device = 0, taken;

    if (table && !describes(table, endpoint, op))
        table = NULL;
    if (table)
        device = table->device;
    else if (!may_be_list(op) || !cuda_op_device(endpoint, op, &device))
        return 0;
    if (heft_cuda_enter(device, NULL))
        return 0;
    flight->endpoint = endpoint;
    flight->device = device;
    cuda_flight_reset(flight);
    taken = post_on(flight, op, table, rc_out, error);
    heft_cuda_leave();
    return taken;
}

int cuda_list_post(struct cuda_endpoint *endpoint, struct heft_transport_op *op, int *rc_out,
                   struct heft_error *error)
{
    struct cuda_flight *flight;

    if (!(op->kept && *op->kept) && !may_be_list(op))
        return 0;
    flight = cuda_flight_take(endpoint->transport, CUDA_DIRECT);
    if (flight && !cuda_list_post_on(flight, endpoint, op, rc_out, error)) {
        cuda_flight_drop(flight);
        flight = NULL;
    }
    return flight != NULL;
}
