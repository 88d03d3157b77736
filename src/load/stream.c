/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places in the window are given out once, before anything moves: a virtual offset that only grows, and the
 * window's bytes at it modulo the window. A tensor never crosses the window's end. So one plan and one
 * executor do the whole load; what changes is how far they may go.
 */
#include "load/stream.h"
#include "base/clock.h"
#include "base/error.h"
#include "load/load.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN_BYTES 256u

enum item_state { ITEM_COMING, ITEM_READY, ITEM_OUT, ITEM_RELEASED };

struct item { /* a tensor: one entry of the layout, or several that are joined */
    uint64_t entry, entry_count;
    uint64_t start, end; /* virtual */
    uint64_t left_bytes; /* to arrive */
    uint64_t made;       /* index in `made` */
    enum item_state state;
};

struct heft_stream {
    struct heft_layout *layout;
    const struct heft_plan *plan;
    uint8_t **addresses; /* of the destinations */
    uint32_t destination_count;
    uint64_t window_bytes; /* 0: no window, everything has a place of its own */
    void (*on_chunk)(void *context, uint64_t chunk);
    void *on_chunk_context;
    int is_ordered;
    struct item *items;
    uint64_t item_count;
    uint64_t *item_of_entry, *item_of_made;
    struct heft_manifest *made; /* the tensors as the consumer sees them */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct heft_executor *executor;
    uint64_t next_chunk;  /* the first that was not offered */
    uint64_t first_held;  /* the first item that was not released */
    uint64_t handed_out;  /* how many */
    uint64_t outstanding; /* handed out and not released */
    uint64_t *ready;      /* items, in the order in which they came */
    uint64_t ready_head, ready_tail;
    int has_ended, status, is_closed;
    struct heft_error error;
};

/* ---- the layout ---- */

static int no_memory(struct heft_error *error)
{
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making a window for tensors");
}

static int list_items(struct heft_stream *stream, struct heft_error *error)
{
    struct heft_layout *layout = stream->layout;
    uint64_t entry, count = layout->tensor_count + 1;

    stream->items = calloc(count, sizeof(*stream->items));
    stream->item_of_entry = calloc(count, sizeof(uint64_t));
    stream->item_of_made = calloc(count, sizeof(uint64_t));
    stream->ready = calloc(count, sizeof(uint64_t));
    if (!stream->items || !stream->item_of_entry || !stream->item_of_made || !stream->ready)
        return no_memory(error);
    for (entry = 0; entry < layout->tensor_count; entry++) {
        if (!layout->tensors[entry].joined)
            stream->items[stream->item_count++].entry = entry;
        stream->items[stream->item_count - 1].entry_count++;
    }
    return HEFT_OK;
}

/* The items of the named tensors, in the order of the names; what is not named is not wanted. */
static int reorder(struct heft_stream *stream, const char *const *order, uint64_t order_count,
                   struct heft_error *error)
{
    struct heft_layout *layout = stream->layout;
    const struct heft_manifest *reference = layout->reference;
    struct heft_layout_tensor *entries = calloc(layout->tensor_count + 1, sizeof(*entries));
    struct item *items = calloc(order_count + 1, sizeof(*items));
    uint64_t *by_tensor = malloc((reference->tensor_count + 1) * sizeof(*by_tensor));
    uint64_t index, entry, count = 0;
    int rc = entries && items && by_tensor ? HEFT_OK : no_memory(error);

    if (!rc) {
        memset(by_tensor, 0xff, (reference->tensor_count + 1) * sizeof(*by_tensor));
        for (index = 0; index < stream->item_count; index++)
            by_tensor[layout->tensors[stream->items[index].entry].tensor] = index;
    }
    for (index = 0; !rc && index < order_count; index++) {
        uint64_t tensor = heft_manifest_find(reference, order[index], strlen(order[index]));
        const struct item *item;

        if (tensor == UINT64_MAX || by_tensor[tensor] == UINT64_MAX) {
            rc = heft_error_set(error, HEFT_ERR_NOT_FOUND,
                                "order: %s is no tensor of what is loaded, or is named twice", order[index]);
            break;
        }
        item = &stream->items[by_tensor[tensor]];
        by_tensor[tensor] = UINT64_MAX;
        items[index] = (struct item){.entry = count, .entry_count = item->entry_count};
        for (entry = 0; entry < item->entry_count; entry++)
            entries[count++] = layout->tensors[item->entry + entry];
    }
    if (!rc) {
        memcpy(layout->tensors, entries, count * sizeof(*entries));
        layout->tensor_count = count;
        memcpy(stream->items, items, order_count * sizeof(*items));
        stream->item_count = order_count;
    }
    free(entries);
    free(items);
    free(by_tensor);
    return rc;
}

/* Where the caller wants them. */
static void count_items(struct heft_stream *stream)
{
    struct heft_layout *layout = stream->layout;
    uint64_t index, entry;

    layout->wanted_bytes = 0;
    for (index = 0; index < stream->item_count; index++) {
        struct item *item = &stream->items[index];

        for (entry = item->entry; entry < item->entry + item->entry_count; entry++) {
            item->left_bytes += layout->tensors[entry].size_bytes;
            stream->item_of_entry[entry] = index;
        }
        layout->wanted_bytes += item->left_bytes;
    }
}

static int place_items(struct heft_stream *stream, struct heft_error *error)
{
    struct heft_layout *layout = stream->layout;
    uint64_t index, entry, at = 0, window = stream->window_bytes, largest = 0;

    layout->wanted_bytes = 0;
    for (index = 0; index < stream->item_count; index++) {
        struct item *item = &stream->items[index];
        uint64_t offset;

        for (entry = item->entry; entry < item->entry + item->entry_count; entry++)
            item->left_bytes += layout->tensors[entry].size_bytes;
        largest = item->left_bytes > largest ? item->left_bytes : largest;
        if (item->left_bytes > window)
            return heft_error_set(error, HEFT_ERR_TOO_LARGE,
                                  "tensor %s has %" PRIu64 " bytes, the window for tensors %" PRIu64
                                  ": raise max_host_bytes to twice the largest tensor",
                                  layout->reference->tensors[layout->tensors[item->entry].tensor].name,
                                  item->left_bytes, window);
        at = (at + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
        if (at % window + item->left_bytes > window)
            at = (at / window + 1) * window;
        item->start = at;
        item->end = at + item->left_bytes;
        offset = at % window;
        for (entry = item->entry; entry < item->entry + item->entry_count; entry++) {
            layout->tensors[entry].dst_offset_bytes = offset;
            offset += layout->tensors[entry].size_bytes;
            stream->item_of_entry[entry] = index;
        }
        layout->wanted_bytes += item->left_bytes;
        at = item->end;
    }
    layout->arena_bytes = at < window ? at : window;
    layout->keep_order = 1;
    return HEFT_OK;
}

/* Destinations are files of the manifest: each reaches as far as the entries in it. */
static int add_destinations(struct heft_stream *stream, struct heft_error *error)
{
    const struct heft_layout *layout = stream->layout;
    uint64_t *sizes, entry;
    uint32_t index;
    int rc = HEFT_OK;

    stream->destination_count = 1;
    for (entry = 0; entry < layout->tensor_count; entry++)
        if (layout->tensors[entry].dst_index >= stream->destination_count)
            stream->destination_count = layout->tensors[entry].dst_index + 1;
    sizes = calloc(stream->destination_count, sizeof(*sizes));
    stream->addresses = calloc(stream->destination_count, sizeof(*stream->addresses));
    if (!sizes || !stream->addresses) {
        free(sizes);
        return no_memory(error);
    }
    for (entry = 0; entry < layout->tensor_count; entry++) {
        const struct heft_layout_tensor *wanted = &layout->tensors[entry];
        uint64_t end = wanted->dst_offset_bytes + wanted->size_bytes;

        sizes[wanted->dst_index] = end > sizes[wanted->dst_index] ? end : sizes[wanted->dst_index];
    }
    for (index = 0; !rc && index < stream->destination_count; index++)
        rc = heft_manifest_add_file(stream->made, "", sizes[index], 0, NULL, error);
    free(sizes);
    return rc;
}

/* The tensors as the consumer sees them: with the rank's boxes, or its own shapes. */
static int make_tensors(struct heft_stream *stream, struct heft_error *error)
{
    uint64_t index;
    int rc;

    stream->made = heft_manifest_new();
    if (!stream->made)
        return no_memory(error);
    rc = heft_manifest_set_identity(stream->made, &stream->layout->reference->identity, error);
    if (!rc)
        rc = add_destinations(stream, error);
    for (index = 0; !rc && index < stream->item_count; index++)
        rc = heft_load_add_tensor(stream->made, stream->layout, stream->items[index].entry, error);
    if (!rc)
        rc = heft_manifest_finish(stream->made, error);
    for (index = 0; !rc && index < stream->item_count; index++) {
        struct item *item = &stream->items[index];
        const struct heft_manifest_tensor *tensor =
            &stream->layout->reference->tensors[stream->layout->tensors[item->entry].tensor];

        item->made = heft_manifest_find(stream->made, tensor->name, tensor->name_bytes);
        stream->item_of_made[item->made] = index;
    }
    return rc;
}

int heft_stream_create(struct heft_layout *layout, const char *const *order, uint64_t order_count,
                       uint64_t window_bytes, struct heft_stream **stream_out, struct heft_error *error)
{
    struct heft_stream *stream = calloc(1, sizeof(*stream));
    int rc;

    if (!stream)
        return no_memory(error);
    stream->layout = layout;
    stream->window_bytes = window_bytes / ALIGN_BYTES * ALIGN_BYTES;
    stream->is_ordered = order != NULL;
    (void)pthread_mutex_init(&stream->lock, NULL);
    (void)pthread_cond_init(&stream->changed, NULL);
    rc = list_items(stream, error);
    if (!rc && order)
        rc = reorder(stream, order, order_count, error);
    if (!rc && window_bytes > 0)
        rc = place_items(stream, error);
    else if (!rc)
        count_items(stream);
    if (!rc)
        rc = make_tensors(stream, error);
    if (rc) {
        heft_stream_free(stream);
        return rc;
    }
    *stream_out = stream;
    return HEFT_OK;
}

void heft_stream_free(struct heft_stream *stream)
{
    if (!stream)
        return;
    heft_manifest_free(stream->made);
    free(stream->items);
    free(stream->item_of_entry);
    free(stream->item_of_made);
    free(stream->ready);
    free(stream->addresses);
    (void)pthread_mutex_destroy(&stream->lock);
    (void)pthread_cond_destroy(&stream->changed);
    free(stream);
}

/* ---- arrival: under the lock ---- */

static void make_ready(struct heft_stream *stream, uint64_t index)
{
    stream->items[index].state = ITEM_READY;
    if (!stream->is_ordered)
        stream->ready[stream->ready_tail++] = index;
}

/* The virtual offset that the chunk reaches to. */
static uint64_t chunk_end(const struct heft_stream *stream, uint64_t index)
{
    const struct heft_chunk *chunk = &stream->plan->chunks[index];
    uint64_t piece, end = 0;

    for (piece = chunk->first_piece; piece < chunk->first_piece + chunk->piece_count; piece++) {
        uint64_t entry = heft_plan_piece_entry(stream->plan, piece);
        uint64_t item_end = stream->items[stream->item_of_entry[entry]].end;

        end = item_end > end ? item_end : end;
    }
    return end;
}

/* Offers every source what there is room for. Returns 1: something. */
static int offer(struct heft_stream *stream)
{
    uint64_t room;
    uint32_t source;
    int offered = 0;

    if (!stream->executor || stream->window_bytes == 0)
        return 0;
    room = stream->window_bytes + (stream->first_held < stream->item_count
                                       ? stream->items[stream->first_held].start
                                       : stream->items[stream->item_count - 1].end);
    while (stream->next_chunk < stream->plan->chunk_count && chunk_end(stream, stream->next_chunk) <= room) {
        for (source = 0; source < stream->plan->source_count; source++)
            heft_executor_offer(stream->executor, source, stream->next_chunk);
        stream->next_chunk++;
        offered = 1;
    }
    return offered;
}

static void note_chunk(void *context, uint64_t index)
{
    struct heft_stream *stream = context;
    const struct heft_chunk *chunk = &stream->plan->chunks[index];
    uint64_t piece;

    if (stream->on_chunk)
        stream->on_chunk(stream->on_chunk_context, index);
    (void)pthread_mutex_lock(&stream->lock);
    for (piece = chunk->first_piece; piece < chunk->first_piece + chunk->piece_count; piece++) {
        uint64_t item = stream->item_of_entry[heft_plan_piece_entry(stream->plan, piece)];

        stream->items[item].left_bytes -= stream->plan->pieces[piece].size_bytes;
        if (stream->items[item].left_bytes == 0)
            make_ready(stream, item);
    }
    (void)pthread_cond_broadcast(&stream->changed);
    (void)pthread_mutex_unlock(&stream->lock);
}

int heft_stream_prepare(struct heft_stream *stream, const struct heft_plan *plan, uint8_t *const *addresses,
                        void (**on_chunk)(void *context, uint64_t chunk), void **on_chunk_context,
                        struct heft_error *error)
{
    uint64_t index;

    (void)error;
    (void)pthread_mutex_lock(&stream->lock);
    stream->plan = plan;
    memcpy(stream->addresses, addresses, stream->destination_count * sizeof(*addresses));
    stream->on_chunk = *on_chunk;
    stream->on_chunk_context = *on_chunk_context;
    *on_chunk = note_chunk;
    *on_chunk_context = stream;
    for (index = 0; index < stream->item_count; index++)
        if (stream->items[index].left_bytes == 0)
            make_ready(stream, index);
    (void)pthread_cond_broadcast(&stream->changed);
    (void)pthread_mutex_unlock(&stream->lock);
    return HEFT_OK;
}

void heft_stream_run(struct heft_stream *stream, struct heft_executor *executor)
{
    int offered;

    (void)pthread_mutex_lock(&stream->lock);
    stream->executor = executor;
    offered = stream->item_count > 0 && offer(stream);
    (void)pthread_mutex_unlock(&stream->lock);
    if (offered)
        heft_executor_kick(executor);
}

void heft_stream_end(struct heft_stream *stream, int code, const struct heft_error *error)
{
    (void)pthread_mutex_lock(&stream->lock);
    stream->has_ended = 1;
    stream->status = code;
    if (code)
        stream->error = *error;
    (void)pthread_cond_broadcast(&stream->changed);
    (void)pthread_mutex_unlock(&stream->lock);
}

void heft_stream_wait_released(struct heft_stream *stream)
{
    (void)pthread_mutex_lock(&stream->lock);
    while (!stream->is_closed && stream->window_bytes > 0 &&
           (stream->outstanding > 0 || (stream->status == 0 && stream->handed_out < stream->item_count)))
        (void)pthread_cond_wait(&stream->changed, &stream->lock);
    stream->is_closed = stream->is_closed || stream->window_bytes > 0;
    (void)pthread_cond_broadcast(&stream->changed);
    (void)pthread_mutex_unlock(&stream->lock);
}

void heft_stream_close(struct heft_stream *stream)
{
    (void)pthread_mutex_lock(&stream->lock);
    stream->is_closed = 1;
    (void)pthread_cond_broadcast(&stream->changed);
    (void)pthread_mutex_unlock(&stream->lock);
}

/* ---- the consumer ---- */

static uint64_t take_ready(struct heft_stream *stream)
{
    if (!stream->is_ordered)
        return stream->ready_head < stream->ready_tail ? stream->ready[stream->ready_head++] : UINT64_MAX;
    return stream->handed_out < stream->item_count && stream->items[stream->handed_out].state == ITEM_READY
               ? stream->handed_out
               : UINT64_MAX;
}

int heft_stream_next(struct heft_stream *stream, uint64_t until_ns, struct heft_tensor *tensor_out,
                     struct heft_error *error)
{
    struct timespec when = {(time_t)(until_ns / HEFT_NS_PER_S), (long)(until_ns % HEFT_NS_PER_S)};
    struct heft_tensor tensor = {.size = sizeof(tensor)};
    uint64_t index = UINT64_MAX;
    int rc = HEFT_OK;

    (void)pthread_mutex_lock(&stream->lock);
    for (;;) {
        if (stream->has_ended && stream->status) {
            rc = stream->status;
            if (error)
                *error = stream->error;
            break;
        }
        if (stream->plan && !stream->is_closed && (index = take_ready(stream)) != UINT64_MAX)
            break;
        if (stream->has_ended && (stream->is_closed || stream->handed_out == stream->item_count)) {
            rc = heft_error_set(error, HEFT_ERR_NOT_FOUND, "no tensor is left: all were handed out");
            break;
        }
        if (heft_now_ns() >= until_ns) {
            rc = HEFT_ERR_AGAIN;
            break;
        }
        (void)pthread_cond_clockwait(&stream->changed, &stream->lock, CLOCK_MONOTONIC, &when);
    }
    if (!rc) {
        struct item *item = &stream->items[index];

        item->state = ITEM_OUT;
        stream->handed_out++;
        stream->outstanding++;
        heft_manifest_tensor(stream->made, item->made, &tensor);
        tensor.address = tensor.size_bytes
                             ? stream->addresses[stream->made->tensors[item->made].file] + tensor.offset_bytes
                             : NULL;
        tensor.size = tensor_out->size < sizeof(tensor) ? tensor_out->size : sizeof(tensor);
        memcpy(tensor_out, &tensor, tensor.size);
    }
    (void)pthread_mutex_unlock(&stream->lock);
    return rc;
}

void heft_stream_release(struct heft_stream *stream, const struct heft_tensor *tensor)
{
    struct heft_executor *executor = NULL;
    struct item *item;
    uint64_t made;

    (void)pthread_mutex_lock(&stream->lock);
    made = heft_manifest_find(stream->made, tensor->name, tensor->name_bytes);
    item = made == UINT64_MAX ? NULL : &stream->items[stream->item_of_made[made]];
    if (item && item->state == ITEM_OUT) {
        item->state = ITEM_RELEASED;
        stream->outstanding--;
        while (stream->first_held < stream->item_count &&
               stream->items[stream->first_held].state == ITEM_RELEASED)
            stream->first_held++;
        if (offer(stream))
            executor = stream->executor;
        (void)pthread_cond_broadcast(&stream->changed);
    }
    /* Under the lock: the executor may end as soon as it is not held. */
    if (executor)
        heft_executor_look(executor);
    (void)pthread_mutex_unlock(&stream->lock);
}
