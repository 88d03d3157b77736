/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers over prepared lists: items picked by their numbers become moves. Neighbours on both sides become
 * one piece, equal pieces at equal distances one move. The ranges were checked when the lists were made; here
 * remain numbers, lengths, and what the regions allow now.
 */
#include "agent/list.h"
#include "agent/xfer.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

#define PAIRS_MAX 64
#define PREFETCH_AHEAD 16

struct side {
    const struct heft_list *list;
    const uint32_t *indexes; /* NULL: 0, 1, 2, ... */
    size_t near;
};

struct picking {
    struct heft_xfer *xfer;
    struct side local, remote;
    uint32_t local_slot, remote_slot; /* of the last move */
    uint64_t total_bytes;
    int is_read;
    uint8_t *local_used;  /* a slot each */
    uint8_t *remote_used; /* a slot each: bits of the spaces that it is paired with */
    struct heft_error *error;
};

static uint64_t index_at(const struct side *side, size_t at)
{
    return side->indexes ? side->indexes[at] : at;
}

static int bad_index(struct picking *picking, size_t at)
{
    const struct side *side = &picking->local;
    const char *which = "local";

    if (index_at(side, at) < side->list->count) {
        side = &picking->remote;
        which = "remote";
    }
    return heft_error_set(picking->error, HEFT_ERR_RANGE,
                          "pair %zu: the %s list has %llu items, no item %llu", at, which,
                          (unsigned long long)side->list->count, (unsigned long long)index_at(side, at));
}

/* ---- moves ---- */

static int new_move(struct picking *picking, size_t at, const struct heft_item *local,
                    const struct heft_item *remote)
{
    struct heft_xfer *xfer = picking->xfer;

    if (heft_xfer_reserve_moves(xfer, xfer->move_count + 1))
        return heft_error_set(picking->error, HEFT_ERR_NO_MEMORY, "out of memory for a transfer");
    if (local->slot != picking->local_slot || remote->slot != picking->remote_slot || !xfer->move_count) {
        picking->local_slot = local->slot;
        picking->remote_slot = remote->slot;
        picking->local_used[local->slot] = 1;
        picking->remote_used[remote->slot] |=
            (uint8_t)(1u << picking->local.list->regions[local->slot]->t.space);
    }
    xfer->run_of_move[xfer->move_count] = at;
    xfer->moves[xfer->move_count++] =
        (struct heft_move){.local = &picking->local.list->regions[local->slot]->t,
                           .remote = &picking->remote.list->regions[remote->slot]->t,
                           .local_offset_bytes = local->offset_bytes,
                           .remote_offset_bytes = remote->offset_bytes,
                           .length_bytes = local->length_bytes,
                           .count = 1};
    return 0;
}

/* The item goes on where a single piece ends, on both sides. */
static int is_next(const struct heft_move *last, const struct heft_item *local,
                   const struct heft_item *remote)
{
    return last->count == 1 && local->offset_bytes == last->local_offset_bytes + last->length_bytes &&
           remote->offset_bytes == last->remote_offset_bytes + last->length_bytes;
}

/* 1: the item is one more piece of the last move. */
static int is_more(struct heft_move *last, const struct heft_item *local, const struct heft_item *remote)
{
    if (last->count == 1 || local->length_bytes != last->length_bytes ||
        local->offset_bytes != last->local_offset_bytes + last->count * last->local_stride_bytes ||
        remote->offset_bytes != last->remote_offset_bytes + last->count * last->remote_stride_bytes)
        return 0;
    last->count++;
    return 1;
}

/*
 * 1: the last two moves and the item were the first three pieces of one. Two alone are always at some
 * distance: that tells nothing, and single pieces are the ones that transports are quickest with.
 */
static int is_third(struct picking *picking, struct heft_move *last, const struct heft_item *local,
                    const struct heft_item *remote)
{
    struct heft_move *first = last - 1;
    uint64_t local_stride = last->local_offset_bytes - first->local_offset_bytes;
    uint64_t remote_stride = last->remote_offset_bytes - first->remote_offset_bytes;

    if (local->offset_bytes - last->local_offset_bytes != local_stride ||
        remote->offset_bytes - last->remote_offset_bytes != remote_stride || last->count != 1 ||
        first->count != 1 || first->length_bytes != last->length_bytes ||
        local->length_bytes != last->length_bytes || first->local != last->local ||
        first->remote != last->remote)
        return 0;
    /* Downwards is not for moves; and pieces of one never overlap where they are written. */
    if (last->local_offset_bytes < first->local_offset_bytes ||
        last->remote_offset_bytes < first->remote_offset_bytes ||
        (picking->is_read ? local_stride : remote_stride) < last->length_bytes)
        return 0;
    first->count = 3;
    first->local_stride_bytes = local_stride;
    first->remote_stride_bytes = remote_stride;
    picking->xfer->move_count--;
    return 1;
}

static int add_pair(struct picking *picking, size_t at, const struct heft_item *local,
                    const struct heft_item *remote)
{
    struct heft_xfer *xfer = picking->xfer;
    struct heft_move *last = xfer->move_count ? &xfer->moves[xfer->move_count - 1] : NULL;

    if (last && local->slot == picking->local_slot && remote->slot == picking->remote_slot) {
        if (is_next(last, local, remote)) {
            last->length_bytes += local->length_bytes;
            return 0;
        }
        if (is_more(last, local, remote))
            return 0;
        if (xfer->move_count > 1 && is_third(picking, last, local, remote))
            return 0;
    }
    return new_move(picking, at, local, remote);
}

static int pick(struct picking *picking, size_t count)
{
    size_t at;
    int rc;

    for (at = 0; at < count; at++) {
        struct heft_item local, remote;

        if (at + PREFETCH_AHEAD < count) {
            heft_list_prefetch(picking->local.list, index_at(&picking->local, at + PREFETCH_AHEAD));
            heft_list_prefetch(picking->remote.list, index_at(&picking->remote, at + PREFETCH_AHEAD));
        }
        if (index_at(&picking->local, at) >= picking->local.list->count ||
            index_at(&picking->remote, at) >= picking->remote.list->count)
            return bad_index(picking, at);
        local = heft_list_item(picking->local.list, index_at(&picking->local, at), &picking->local.near);
        remote = heft_list_item(picking->remote.list, index_at(&picking->remote, at), &picking->remote.near);
        if (local.length_bytes != remote.length_bytes)
            return heft_error_set(
                picking->error, HEFT_ERR_INVALID, "pair %zu: %llu bytes here, %llu bytes there", at,
                (unsigned long long)local.length_bytes, (unsigned long long)remote.length_bytes);
        if (!local.length_bytes)
            continue;
        if (__builtin_add_overflow(picking->total_bytes, local.length_bytes, &picking->total_bytes))
            return heft_error_set(picking->error, HEFT_ERR_RANGE, "more bytes than can be counted");
        rc = add_pair(picking, at, &local, &remote);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- regions and routes ---- */

static int check_region(const struct picking *picking, const struct heft_region *region, int is_remote)
{
    uint32_t need = picking->is_read ? HEFT_REGION_REMOTE_READ : HEFT_REGION_REMOTE_WRITE;
    char who[HEFT_PEER_TEXT_BYTES];

    if (region->state != HEFT_REGION_LIVE)
        return heft_error_set(picking->error, HEFT_ERR_STALE, "%s region %llu of the list was withdrawn",
                              region->peer ? "the peer's" : "the local", (unsigned long long)region->t.id);
    if (is_remote && region->peer && !(region->t.flags & need))
        return heft_error_set(picking->error, HEFT_ERR_DENIED, "region %llu of %s may not be %s",
                              (unsigned long long)region->t.id,
                              heft_peer_text(region->peer, who, sizeof(who)),
                              picking->is_read ? "read" : "written");
    return 0;
}

/* The used regions become the transfer's. */
static int take_regions(struct picking *picking, const struct heft_list *list, const uint8_t *used,
                        int is_remote)
{
    struct heft_xfer *xfer = picking->xfer;
    uint32_t slot;
    int rc = 0;

    (void)pthread_mutex_lock(&xfer->agent->region_lock);
    for (slot = 0; !rc && slot < list->region_count; slot++) {
        if (!used[slot])
            continue;
        rc = check_region(picking, list->regions[slot], is_remote);
        if (rc)
            break;
        heft_region_ref(list->regions[slot]);
        xfer->regions[xfer->region_count++] = list->regions[slot];
    }
    (void)pthread_mutex_unlock(&xfer->agent->region_lock);
    return rc;
}

static size_t list_pairs(const struct picking *picking, struct heft_route_pair pairs[PAIRS_MAX])
{
    const struct heft_list *list = picking->remote.list;
    size_t count = 0;
    uint32_t slot;
    int space;

    for (slot = 0; slot < list->region_count; slot++)
        for (space = 0; picking->remote_used[slot] && space < HEFT_SPACE_COUNT; space++)
            if ((picking->remote_used[slot] & (1u << space)) && count < PAIRS_MAX)
                pairs[count++] = (struct heft_route_pair){.local = (enum heft_space)space,
                                                          .remote = list->regions[slot]->t.space,
                                                          .region = &list->regions[slot]->t};
    return count;
}

static int set_pairs(struct picking *picking, size_t count)
{
    struct heft_xfer *xfer = picking->xfer;
    uint32_t local_count = picking->local.list->region_count;
    uint32_t remote_count = picking->remote.list->region_count;
    size_t want = (size_t)local_count + remote_count + 1;
    struct heft_route_pair pairs[PAIRS_MAX];
    int rc;

    if (xfer->region_capacity < want) {
        free(xfer->regions); /* it holds none */
        xfer->regions = calloc(want, sizeof(*xfer->regions));
        xfer->region_capacity = xfer->regions ? want : 0;
    }
    picking->local_used = calloc((size_t)local_count + 1, 1);
    picking->remote_used = calloc((size_t)remote_count + 1, 1);
    if (!xfer->regions || !picking->local_used || !picking->remote_used)
        return heft_error_set(picking->error, HEFT_ERR_NO_MEMORY, "out of memory for a transfer");
    /* Room for the worst at once: growing would copy, and what is not touched costs nothing. It may fail
     * where it would not be needed. */
    (void)heft_xfer_reserve_moves(xfer, count);
    xfer->descriptor_count = count;
    rc = pick(picking, count);
    if (!rc)
        rc = take_regions(picking, picking->local.list, picking->local_used, 0);
    if (!rc)
        rc = take_regions(picking, picking->remote.list, picking->remote_used, 1);
    if (rc)
        return rc;
    xfer->total_bytes = picking->total_bytes;
    xfer->moves_id = __atomic_add_fetch(&xfer->agent->next_xfer_id, 1, __ATOMIC_RELAXED);
    return heft_xfer_choose_route(xfer, pairs, list_pairs(picking, pairs), picking->error);
}

/* A transfer that moves nothing becomes one of these pairs. */
static int fill(struct heft_xfer *xfer, const struct heft_list *local, const uint32_t *local_indexes,
                const struct heft_list *remote, const uint32_t *remote_indexes, size_t count,
                struct heft_error *error)
{
    struct picking picking = {.xfer = xfer,
                              .local = {local, local_indexes, 0},
                              .remote = {remote, remote_indexes, 0},
                              .is_read = xfer->kind == HEFT_OP_READ,
                              .error = error};
    int rc = set_pairs(&picking, count);

    free(picking.local_used);
    free(picking.remote_used);
    return rc;
}

static int check_lists(const struct heft_agent *agent, const struct heft_list *local,
                       const struct heft_list *remote, struct heft_error *error)
{
    if (!local || !remote || local->agent != agent || remote->agent != agent || local->peer != agent->self)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "the lists are not this agent's, or the local one is of a peer's regions");
    return 0;
}

int heft_xfer_create_indexed(struct heft_agent *agent, enum heft_op op, const struct heft_list *local,
                             const uint32_t *local_indexes, const struct heft_list *remote,
                             const uint32_t *remote_indexes, size_t count,
                             const struct heft_xfer_options *options, struct heft_xfer **xfer_out,
                             struct heft_error *error)
{
    struct heft_xfer *xfer = NULL;
    int rc = check_lists(agent, local, remote, error);

    if (!rc)
        rc = heft_xfer_new(agent, op, remote->peer == agent->self ? NULL : remote->peer, options, &xfer,
                           error);
    if (rc)
        return rc;
    rc = fill(xfer, local, local_indexes, remote, remote_indexes, count, error);
    if (rc) {
        heft_xfer_unref(xfer);
        return rc;
    }
    *xfer_out = xfer;
    return 0;
}

/* ---- other pairs for the same transfer ---- */

/* Its regions are let go, its arrays stay. */
static void empty(struct heft_xfer *xfer)
{
    while (xfer->region_count)
        heft_region_unref(xfer->regions[--xfer->region_count]);
    xfer->move_count = 0;
    xfer->total_bytes = 0;
    xfer->slot = NULL;
}

#define SWAP(field)                           \
    do {                                      \
        __typeof__(a->field) kept = a->field; \
                                              \
        a->field = b->field;                  \
        b->field = kept;                      \
    } while (0)

static void swap_moves(struct heft_xfer *a, struct heft_xfer *b)
{
    SWAP(slot);
    SWAP(moves);
    SWAP(run_of_move);
    SWAP(move_count);
    SWAP(move_capacity);
    SWAP(regions);
    SWAP(region_count);
    SWAP(region_capacity);
    SWAP(total_bytes);
    SWAP(moves_id);
    SWAP(descriptor_count);
    memcpy(a->route_reason, b->route_reason, sizeof(a->route_reason));
}

int heft_xfer_set_indexed(struct heft_xfer *xfer, const struct heft_list *local,
                          const uint32_t *local_indexes, const struct heft_list *remote,
                          const uint32_t *remote_indexes, size_t count, struct heft_error *error)
{
    struct heft_agent *agent = xfer->agent;
    struct heft_xfer_options options = HEFT_XFER_OPTIONS_INIT;
    int rc, active;

    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    (void)pthread_mutex_lock(&xfer->lock);
    active = xfer->state == HEFT_XFER_ACTIVE;
    (void)pthread_mutex_unlock(&xfer->lock);
    if (active)
        return heft_error_set(error, HEFT_ERR_STATE, "the pairs of an active transfer can't be replaced");
    rc = check_lists(agent, local, remote, error);
    if (!rc && remote->peer != xfer->peer)
        rc = heft_error_set(error, HEFT_ERR_INVALID, "the remote list is another peer's than the transfer");
    options.require = xfer->require;
    if (!rc && !xfer->draft)
        rc = heft_xfer_new(agent, xfer->kind, xfer->peer->is_self ? NULL : xfer->peer, &options, &xfer->draft,
                           error);
    if (rc)
        return rc;
    rc = fill(xfer->draft, local, local_indexes, remote, remote_indexes, count, error);
    if (!rc)
        swap_moves(xfer, xfer->draft);
    empty(xfer->draft);
    return rc;
}
