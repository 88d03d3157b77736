/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each object is one thread's from its head to its end, block by block; it waits where a block is not there.
 * A store that told no checksum with the headers' bytes, but may keep one, is asked by that thread.
 */
#include "load/checksums.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "space/cuda.h"
#include "transport/object/object.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_THREADS 8u
#define PADDING_BYTES 64u /* between tensors: what a format's alignment leaves, zeros */
#define LOOK_MS 50u
#define ASK_MS 10000u /* for a store's word about one object: without it the load is as good as before */

enum block_state { BLOCK_AWAY, BLOCK_THERE, BLOCK_HAS_CRC };

struct object {
    struct heft_checked_object shown; /* under the lock, once threads run */
    int wanted;
    uint32_t kind; /* atomic: enum heft_checksum_kind; NONE until it is known */
    uint64_t first_tensor, end_tensor;
};

struct heft_checksums {
    struct heft_checksums_options options;
    const struct heft_manifest *manifest;
    struct object *objects;
    const uint8_t **where;  /* by tensor: its first byte; NULL: not wanted whole */
    uint8_t *states;        /* by block: enum block_state, atomic */
    uint64_t *crcs;         /* by block */
    pthread_mutex_t asking; /* one asks a store at a time, as its client wants it */
    struct heft_object_client client;
    int has_client, is_silent; /* is_silent: it did not answer once, and is not asked again */
    pthread_t threads[MAX_THREADS];
    uint32_t thread_count;
    uint32_t stopped; /* atomic; also ends the client's requests */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t next, left; /* objects to begin, threads that run */
    int complete;        /* every chunk arrived */
    struct heft_error failure;
};

/* ---- which objects ---- */

static int leave_out(struct heft_checked_object *shown, const char *why)
{
    (void)snprintf(shown->why, sizeof(shown->why), "%s", why);
    return 0;
}

/* 1: all its bytes come by. */
static int can_check(struct heft_checksums *c, struct object *object, const struct heft_object_seen *seen,
                     uint64_t size_bytes)
{
    const struct heft_checksums_options *o = &c->options;
    struct heft_checked_object *shown = &object->shown;
    uint64_t tensor, at = seen->head_bytes, gap;

    shown->kind = seen->checksum.kind;
    if (seen->checksum.kind == HEFT_CHECKSUM_NONE && !seen->may_tell)
        return leave_out(shown, "its store tells no checksum of it");
    if (!seen->head)
        return leave_out(shown, "its header is too long to be kept");
    if (o->is_window && (o->device >= 0 || !heft_checksum_composes(seen->checksum.kind)))
        return leave_out(shown, "its tensors are handed out as they come");
    for (tensor = object->first_tensor; tensor <= object->end_tensor; tensor++) {
        const struct heft_manifest_tensor *each =
            tensor < object->end_tensor ? &c->manifest->tensors[tensor] : NULL;
        uint64_t begin = each ? each->offset_bytes : size_bytes;

        gap = begin - at;
        if (begin < at || gap > PADDING_BYTES)
            return leave_out(shown, "bytes of it that belong to no tensor are not read");
        if (each && each->size_bytes > 0 && !c->where[tensor])
            return leave_out(shown, "only a part of it is read");
        at = each ? begin + each->size_bytes : at;
    }
    return 1;
}

/* Where each tensor that is wanted whole lies, and which of them have digests already. */
static void find_tensors(struct heft_checksums *c, uint8_t *compared)
{
    const struct heft_layout *layout = c->options.plan->layout;
    uint64_t index;

    for (index = 0; index < layout->tensor_count; index++) {
        const struct heft_layout_tensor *entry = &layout->tensors[index];

        if (entry->start)
            continue;
        c->where[entry->tensor] = c->options.addresses[entry->dst_index] + entry->dst_offset_bytes;
        compared[entry->tensor] = c->options.expected_first && c->options.expected_first[index] != UINT64_MAX;
    }
}

static void choose_objects(struct heft_checksums *c, const uint8_t *compared)
{
    uint64_t tensor = 0;
    uint32_t index;

    for (index = 0; index < c->manifest->file_count; index++) {
        struct object *object = &c->objects[index];
        const struct heft_object_seen *seen = &c->options.opened->seen[index];
        int known = 1;

        object->shown.name = c->manifest->files[index].name;
        object->kind = seen->checksum.kind;
        while (tensor < c->manifest->tensor_count && c->manifest->tensors[tensor].file < index)
            tensor++;
        object->first_tensor = tensor;
        for (; tensor < c->manifest->tensor_count && c->manifest->tensors[tensor].file == index; tensor++)
            known &= compared[tensor] || c->manifest->tensors[tensor].size_bytes == 0;
        object->end_tensor = tensor;
        object->wanted = can_check(c, object, seen, c->manifest->files[index].size_bytes);
        if (object->wanted && known)
            object->wanted = leave_out(&object->shown, "its blocks are compared with digests that are known");
    }
}

/* ---- arrival ---- */

static void take_blocks(struct heft_checksums *c, const struct heft_piece_blocks *blocks)
{
    uint64_t tensor = c->options.plan->layout->tensors[blocks->layout_tensor].tensor, index;
    const struct heft_manifest_tensor *of = &c->manifest->tensors[tensor];
    const struct object *object = &c->objects[of->file];
    enum heft_checksum_kind kind = (enum heft_checksum_kind)__atomic_load_n(&object->kind, __ATOMIC_ACQUIRE);
    const uint8_t *at = c->where[tensor] ? c->where[tensor] + blocks->first * HEFT_BLOCK_BYTES : NULL;
    uint64_t left = blocks->size_bytes;

    /* A caller's targets may want the same tensor at two places: one of them counts. */
    if (!object->wanted || at != c->options.addresses[blocks->dst_index] + blocks->dst_offset_bytes)
        return;
    for (index = of->first_block + blocks->first; left > 0; index++) {
        uint64_t size = left < HEFT_BLOCK_BYTES ? left : HEFT_BLOCK_BYTES;
        enum block_state state = BLOCK_THERE;

        if (heft_checksum_composes(kind) && c->options.device < 0) {
            c->crcs[index] = heft_crc(kind, at, size);
            state = BLOCK_HAS_CRC;
        }
        __atomic_store_n(&c->states[index], (uint8_t)state, __ATOMIC_RELEASE);
        at += size;
        left -= size;
    }
}

void heft_checksums_on_chunk(void *checksums, uint64_t chunk_index)
{
    struct heft_checksums *c = checksums;
    const struct heft_chunk *chunk = &c->options.plan->chunks[chunk_index];
    uint64_t piece, end = chunk->first_piece + (c->thread_count > 0 ? chunk->piece_count : 0);

    for (piece = chunk->first_piece; piece < end; piece++) {
        struct heft_piece_blocks blocks;

        heft_plan_piece_blocks(c->options.plan, piece, &blocks);
        if (blocks.count > 0)
            take_blocks(c, &blocks);
    }
    (void)pthread_mutex_lock(&c->lock);
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    if (c->options.next)
        c->options.next(c->options.next_context, chunk_index);
}

/* ---- one object ---- */

/* What has been taken of an object so far. */
struct sum {
    enum heft_checksum_kind kind;
    struct heft_checksum_state *state; /* NULL: a CRC */
    uint64_t crc;
    uint8_t *block; /* what was read back from a GPU; NULL: it is none */
    struct heft_error error;
};

static void sum_add(struct sum *sum, const void *data, uint64_t size)
{
    if (sum->state)
        heft_checksum_add(sum->state, data, size);
    else
        sum->crc = heft_crc_join(sum->kind, sum->crc, heft_crc(sum->kind, data, size), size);
}

/* What the block's state is once it is there; AWAY: the load was stopped before. */
static enum block_state wait_block(struct heft_checksums *c, uint64_t block)
{
    enum block_state state = (enum block_state)__atomic_load_n(&c->states[block], __ATOMIC_ACQUIRE);

    if (state != BLOCK_AWAY)
        return __atomic_load_n(&c->stopped, __ATOMIC_ACQUIRE) ? BLOCK_AWAY : state;
    (void)pthread_mutex_lock(&c->lock);
    for (;;) {
        state = (enum block_state)__atomic_load_n(&c->states[block], __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&c->stopped, __ATOMIC_ACQUIRE))
            state = BLOCK_AWAY;
        else if (state == BLOCK_AWAY && c->complete)
            state = BLOCK_THERE; /* it came in pieces that are no blocks */
        else if (state == BLOCK_AWAY) {
            (void)pthread_cond_wait(&c->changed, &c->lock);
            continue;
        }
        break;
    }
    (void)pthread_mutex_unlock(&c->lock);
    return state;
}

/* A block that is there; it may lie on a GPU. */
static int sum_block(const struct heft_checksums *c, struct sum *sum, const uint8_t *at, uint64_t size)
{
    int rc = HEFT_OK;

    if (sum->block)
        rc = heft_cuda_read(c->options.device, (uintptr_t)at, sum->block, size, &sum->error);
    if (!rc)
        sum_add(sum, sum->block ? sum->block : at, size);
    return rc;
}

static const char stopped_text[] = "the load ended before";

/* The words why it can't be taken; NULL: it was. */
static const char *sum_tensor(struct heft_checksums *c, struct sum *sum, uint64_t tensor)
{
    const struct heft_manifest_tensor *of = &c->manifest->tensors[tensor];
    const uint8_t *at = c->where[tensor];
    uint64_t left = of->size_bytes, block;

    for (block = of->first_block; left > 0; block++) {
        uint64_t size = left < HEFT_BLOCK_BYTES ? left : HEFT_BLOCK_BYTES;
        enum block_state state = wait_block(c, block);

        if (state == BLOCK_AWAY)
            return stopped_text;
        if (state == BLOCK_HAS_CRC)
            sum->crc = heft_crc_join(sum->kind, sum->crc, c->crcs[block], size);
        else if (c->options.is_window)
            return "its blocks came in pieces, and its tensors are handed out as they come";
        else if (sum_block(c, sum, at, size))
            return sum->error.text;
        at += size;
        left -= size;
    }
    return NULL;
}

static const char *sum_object(struct heft_checksums *c, const struct object *object, uint32_t index,
                              struct sum *sum)
{
    static const uint8_t zeros[PADDING_BYTES];
    const struct heft_object_seen *seen = &c->options.opened->seen[index];
    uint64_t at = seen->head_bytes, tensor;
    const char *why = NULL;

    sum_add(sum, seen->head, seen->head_bytes);
    for (tensor = object->first_tensor; tensor < object->end_tensor && !why; tensor++) {
        const struct heft_manifest_tensor *of = &c->manifest->tensors[tensor];

        sum_add(sum, zeros, of->offset_bytes - at);
        at = of->offset_bytes + of->size_bytes;
        why = sum_tensor(c, sum, tensor);
    }
    if (!why)
        sum_add(sum, zeros, c->manifest->files[index].size_bytes - at);
    return why;
}

/* What the store says; it may have to be asked. The words why there is nothing to compare with, or NULL. */
static const char *expected_checksum(struct heft_checksums *c, uint32_t index,
                                     struct heft_checksum *expected_out, char why[160])
{
    const struct heft_opened *opened = c->options.opened;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_checksum told = opened->seen[index].checksum;
    int rc = HEFT_OK;

    if (told.kind == HEFT_CHECKSUM_NONE) {
        (void)pthread_mutex_lock(&c->asking);
        c->client.end_ns = heft_after_ms(heft_now_ns(), ASK_MS);
        rc = c->is_silent
                 ? heft_error_set(&error, HEFT_ERR_UNAVAILABLE, "the store did not answer for another object")
                 : heft_object_checksum(&c->client, opened->urls[index], opened->versions[index], &told,
                                        &error);
        c->is_silent |= heft_error_class(rc) == HEFT_CLASS_RETRY;
        (void)pthread_mutex_unlock(&c->asking);
    }
    if (rc) {
        (void)snprintf(why, 160, "its checksum was asked for: %.120s", error.text);
        return __atomic_load_n(&c->stopped, __ATOMIC_ACQUIRE) ? stopped_text : why;
    }
    if (told.kind == HEFT_CHECKSUM_NONE)
        return "its store tells no checksum of it";
    *expected_out = told;
    return NULL;
}

static void set_outcome(struct heft_checksums *c, struct object *object, enum heft_checksum_kind kind,
                        const char *why)
{
    (void)pthread_mutex_lock(&c->lock);
    object->shown.kind = kind;
    object->shown.checked = why == NULL;
    (void)snprintf(object->shown.why, sizeof(object->shown.why), "%.159s", why ? why : "");
    (void)pthread_mutex_unlock(&c->lock);
}

static void hex(const struct heft_checksum *checksum, char text_out[2 * HEFT_CHECKSUM_MAX_BYTES + 1])
{
    size_t index;

    for (index = 0; index < heft_checksum_size(checksum->kind); index++)
        (void)snprintf(text_out + 2 * index, 3, "%02x", checksum->bytes[index]);
}

/* An earlier object's failure is not written over. */
static void set_failure(struct heft_checksums *c, uint32_t index, const struct heft_checksum *found,
                        const struct heft_checksum *expected)
{
    char left[2 * HEFT_CHECKSUM_MAX_BYTES + 1], right[sizeof(left)];

    hex(found, left);
    hex(expected, right);
    (void)pthread_mutex_lock(&c->lock);
    if (!c->failure.code)
        heft_error_set(&c->failure, HEFT_ERR_DIGEST,
                       "%s: the %s of what arrived is %s, that of the store is %s: what lies between is "
                       "broken, then load it again; or what is stored there (heft verify tells), then upload "
                       "it again",
                       c->options.opened->paths[index], heft_checksum_name(found->kind), left, right);
    (void)pthread_mutex_unlock(&c->lock);
}

static void check_object(struct heft_checksums *c, uint32_t index)
{
    struct object *object = &c->objects[index];
    struct heft_checksum expected = {0}, found = {0};
    struct sum sum = {.error = HEFT_ERROR_INIT};
    char text[160];
    const char *why = expected_checksum(c, index, &expected, text);

    sum.kind = expected.kind;
    if (!why && heft_checksum_composes(sum.kind))
        __atomic_store_n(&object->kind, (uint32_t)sum.kind, __ATOMIC_RELEASE);
    else if (!why && !(sum.state = heft_checksum_begin(sum.kind)))
        why = "this system refuses to make its checksum";
    if (!why && c->options.device >= 0 && !(sum.block = malloc(HEFT_BLOCK_BYTES)))
        why = "out of memory";
    if (!why)
        why = sum_object(c, object, index, &sum);
    free(sum.block);
    if (sum.state)
        heft_checksum_end(sum.state, why ? NULL : &found);
    else if (!why)
        heft_crc_checksum(sum.kind, sum.crc, &found);
    if (!why && memcmp(found.bytes, expected.bytes, heft_checksum_size(sum.kind)) != 0) {
        set_failure(c, index, &found, &expected);
        why = "its checksum is not its store's";
    }
    set_outcome(c, object, expected.kind, why);
}

static void *check_objects(void *argument)
{
    struct heft_checksums *c = argument;

    (void)pthread_mutex_lock(&c->lock);
    while (c->next < c->manifest->file_count) {
        uint32_t index = c->next++;

        if (!c->objects[index].wanted)
            continue;
        (void)pthread_mutex_unlock(&c->lock);
        check_object(c, index);
        (void)pthread_mutex_lock(&c->lock);
    }
    c->left--;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- the load's side ---- */

static int start_threads(struct heft_checksums *c, struct heft_error *error)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t index, wanted = 0, asked = 0;
    int rc = HEFT_OK;

    for (index = 0; index < c->manifest->file_count; index++) {
        wanted += (uint32_t)c->objects[index].wanted;
        asked += c->objects[index].wanted && c->objects[index].kind == HEFT_CHECKSUM_NONE;
    }
    if (asked) {
        rc = heft_object_client_init(&c->client, error);
        c->has_client = 1;
        c->client.cancel = &c->stopped;
    }
    wanted = wanted < MAX_THREADS ? wanted : MAX_THREADS;
    if (cores > 0 && wanted > (uint32_t)cores)
        wanted = (uint32_t)cores;
    while (!rc && c->thread_count < wanted) {
        (void)pthread_mutex_lock(&c->lock);
        rc = pthread_create(&c->threads[c->thread_count], NULL, check_objects, c);
        c->thread_count += rc == 0;
        c->left += rc == 0;
        (void)pthread_mutex_unlock(&c->lock);
        if (rc)
            rc = heft_error_set_errno(error, rc, "starting a thread that checks objects");
    }
    return rc;
}

int heft_checksums_start(const struct heft_checksums_options *options, struct heft_checksums **checksums_out,
                         struct heft_error *error)
{
    struct heft_checksums *c = calloc(1, sizeof(*c));
    const struct heft_manifest *manifest = options->opened->manifest;
    uint8_t *compared = calloc(manifest->tensor_count + 1, 1);
    int rc = HEFT_OK;

    if (c) {
        c->options = *options;
        c->manifest = manifest;
        (void)pthread_mutex_init(&c->lock, NULL);
        (void)pthread_mutex_init(&c->asking, NULL);
        (void)pthread_cond_init(&c->changed, NULL);
        c->objects = calloc((size_t)manifest->file_count + 1, sizeof(*c->objects));
        c->where = calloc(manifest->tensor_count + 1, sizeof(*c->where));
        c->states = calloc(manifest->block_count + 1, 1);
        c->crcs = calloc(manifest->block_count + 1, sizeof(*c->crcs));
    }
    if (!c || !compared || !c->objects || !c->where || !c->states || !c->crcs) {
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "preparing to check %u objects", manifest->file_count);
    } else {
        find_tensors(c, compared);
        choose_objects(c, compared);
        rc = start_threads(c, error);
    }
    free(compared);
    if (rc) {
        heft_checksums_free(c);
        return rc;
    }
    *checksums_out = c;
    return HEFT_OK;
}

int heft_checksums_verdict(struct heft_checksums *c, struct heft_error *error)
{
    int rc;

    if (!c)
        return HEFT_OK;
    (void)pthread_mutex_lock(&c->lock);
    rc = c->failure.code;
    if (rc && error)
        *error = c->failure;
    (void)pthread_mutex_unlock(&c->lock);
    return rc;
}

int heft_checksums_finish(struct heft_checksums *c, uint64_t end_ns, const uint32_t *cancel,
                          struct heft_error *error)
{
    int rc = HEFT_OK;

    if (!c)
        return HEFT_OK;
    (void)pthread_mutex_lock(&c->lock);
    c->complete = 1;
    (void)pthread_cond_broadcast(&c->changed);
    while (c->left > 0 && !rc && !c->failure.code) {
        uint64_t at = heft_after_ms(heft_now_ns(), LOOK_MS);
        struct timespec until = {(time_t)(at / HEFT_NS_PER_S), (long)(at % HEFT_NS_PER_S)};

        (void)pthread_cond_clockwait(&c->changed, &c->lock, CLOCK_MONOTONIC, &until);
        if (__atomic_load_n(cancel, __ATOMIC_ACQUIRE))
            rc = heft_error_set(error, HEFT_ERR_CANCELED, "the load was canceled");
        else if (heft_now_ns() >= end_ns)
            rc = heft_error_set(error, HEFT_ERR_DEADLINE,
                                "the load's deadline passed while objects were compared with their store's "
                                "checksums; raise --deadline, or leave that out by --checksum off");
    }
    (void)pthread_mutex_unlock(&c->lock);
    heft_checksums_stop(c);
    return rc ? rc : heft_checksums_verdict(c, error);
}

void heft_checksums_stop(struct heft_checksums *c)
{
    uint32_t index;

    if (!c)
        return;
    (void)pthread_mutex_lock(&c->lock);
    __atomic_store_n(&c->stopped, 1, __ATOMIC_RELEASE);
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    for (index = 0; index < c->thread_count; index++)
        (void)pthread_join(c->threads[index], NULL);
    c->thread_count = 0;
}

uint32_t heft_checksums_count(const struct heft_checksums *c)
{
    return c ? c->manifest->file_count : 0;
}

void heft_checksums_read(struct heft_checksums *c, uint32_t index, struct heft_checked_object *object_out)
{
    (void)pthread_mutex_lock(&c->lock);
    *object_out = c->objects[index].shown;
    if (!object_out->checked && !object_out->why[0])
        (void)snprintf(object_out->why, sizeof(object_out->why), "it is not read to its end yet");
    (void)pthread_mutex_unlock(&c->lock);
}

void heft_checksums_free(struct heft_checksums *c)
{
    if (!c)
        return;
    heft_checksums_stop(c);
    if (c->has_client)
        heft_object_client_free(&c->client);
    free(c->objects);
    free(c->where);
    free(c->states);
    free(c->crcs);
    (void)pthread_mutex_destroy(&c->asking);
    (void)pthread_mutex_destroy(&c->lock);
    (void)pthread_cond_destroy(&c->changed);
    free(c);
}
