/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for one agent: regions with pins, patterns, operations. */
#include "conformance/harness.h"
#include "effort.h"
#include "base/error.h"
#include "transport/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define WAIT_S 60

uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t random_range(uint64_t *state, uint64_t lo, uint64_t hi)
{
    return lo + random_next(state) % (hi - lo + 1);
}

PLAIN_LOOP void pattern_fill(void *data, uint64_t seed, uint64_t from_bytes, uint64_t length_bytes)
{
    uint8_t *out = data;

    for (uint64_t i = 0; i < length_bytes;) {
        uint64_t at = from_bytes + i, state = seed * 1000003 + at / 8, word = random_next(&state);
        uint64_t skip = at % 8, take = 8 - skip;

        if (take > length_bytes - i)
            take = length_bytes - i;
        memcpy(out + i, (const uint8_t *)&word + skip, take);
        i += take;
    }
}

static int pin_region(void *agent, uint64_t region_id, uint64_t offset_bytes, uint64_t length_bytes,
                      uint32_t need, struct heft_transport_region **region_out)
{
    struct side *side = agent;
    int rc = HEFT_ERR_STALE;

    pthread_mutex_lock(&side->lock);
    for (int i = 0; i < SIDE_MAX_REGIONS; i++) {
        struct side_region *entry = &side->regions[i];

        if (!entry->used || entry->region.id != region_id)
            continue;
        if ((entry->region.flags & need) != need)
            rc = HEFT_ERR_DENIED;
        else if (offset_bytes > entry->region.length_bytes ||
                 length_bytes > entry->region.length_bytes - offset_bytes)
            rc = HEFT_ERR_RANGE;
        else {
            entry->pins++;
            *region_out = &entry->region;
            rc = 0;
        }
    }
    pthread_mutex_unlock(&side->lock);
    return rc;
}

static void unpin_region(void *agent, struct heft_transport_region *region)
{
    struct side *side = agent;
    struct side_region *entry = (struct side_region *)(void *)region;

    pthread_mutex_lock(&side->lock);
    assert_true(entry->pins > 0);
    entry->pins--;
    pthread_mutex_unlock(&side->lock);
}

static void count_served(void *agent, uint64_t bytes)
{
    struct side *side = agent;

    (void)__atomic_add_fetch(&side->served_bytes, bytes, __ATOMIC_RELAXED);
}

int harness_dial(void *agent_peer, uint32_t timeout_ms, int *fd_out, struct heft_error *error);
int harness_redial(void *agent_peer, uint32_t timeout_ms, int *fd_out, struct heft_error *error);

void side_open(struct side *side, const struct heft_transport_ops *ops, uint32_t workers)
{
    struct heft_error error = HEFT_ERROR_INIT;

    memset(side, 0, sizeof(*side));
    side->ops = ops;
    side->next_id = 100;
    pthread_mutex_init(&side->lock, NULL);
    assert_int_equal(heft_pool_create(workers, &side->pool, &error), 0);
    side->host.abi = HEFT_TRANSPORT_ABI;
    side->host.size = sizeof(side->host);
    side->host.agent = side;
    side->host.pool = side->pool;
    side->host.max_host_bytes = (uint64_t)64 << 20;
    side->host.index = HARNESS_INDEX;
    side->host.dial = harness_dial;
    side->host.redial = harness_redial;
    side->host.pin_region = pin_region;
    side->host.unpin_region = unpin_region;
    side->host.count_served = count_served;
    side->host.take_tls = tls_link_take;
    side->host.flags = HEFT_HOST_NAMED;
    assert_int_equal(ops->open(&side->host, &side->transport, &error), 0);
}

void side_close(struct side *side)
{
    side->ops->close(side->transport);
    heft_pool_destroy(side->pool);
    for (int i = 0; i < SIDE_MAX_REGIONS; i++)
        assert_false(side->regions[i].used);
    pthread_mutex_destroy(&side->lock);
}

static int kind_is_device(enum memory_kind kind)
{
    return kind == MEMORY_DEVICE || kind == MEMORY_DEVICE_PLAIN;
}

static void make_device_memory(struct side_region *entry, const struct region_spec *spec, uint64_t bytes)
{
    void *filled = malloc(spec->filled_bytes ? spec->filled_bytes : 1);

    assert_non_null(filled);
    device_memory_make(entry, spec->kind, bytes);
    pattern_fill(filled, spec->seed, spec->filled_from, spec->filled_bytes);
    device_memory_put(entry, spec->filled_from, filled, spec->filled_bytes);
    free(filled);
}

static void make_memory(struct side_region *entry, const struct region_spec *spec)
{
    uint64_t bytes = spec->length_bytes > 0 ? spec->length_bytes : 1;

    entry->fd = -1;
    entry->kind = spec->kind;
    entry->mapping_bytes = bytes;
    if (kind_is_device(spec->kind)) {
        make_device_memory(entry, spec, bytes);
        return;
    }
    if (spec->kind == MEMORY_PRIVATE || spec->kind == MEMORY_PINNED) {
        entry->mapping =
            mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    } else {
        entry->fd = memfd_create("conformance", MFD_CLOEXEC);
        assert_true(entry->fd >= 0);
        assert_int_equal(ftruncate(entry->fd, (off_t)bytes), 0);
        entry->mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, entry->fd, 0);
    }
    assert_true(entry->mapping != MAP_FAILED);
    pattern_fill((char *)entry->mapping + spec->filled_from, spec->seed, spec->filled_from,
                 spec->filled_bytes);
    if (spec->kind == MEMORY_PINNED)
        device_pin(entry);
}

static void drop_memory(struct side_region *entry)
{
    if (kind_is_device(entry->kind)) {
        device_memory_drop(entry, entry->kind);
        return;
    }
    if (entry->kind == MEMORY_PINNED)
        device_unpin(entry);
    assert_int_equal(munmap(entry->mapping, entry->mapping_bytes), 0);
    if (entry->fd >= 0)
        (void)close(entry->fd);
}

struct heft_transport_region *side_region_add(struct side *side, const struct region_spec *spec)
{
    struct side_region *entry = NULL;
    struct heft_error error = HEFT_ERROR_INIT;

    pthread_mutex_lock(&side->lock);
    for (int i = 0; i < SIDE_MAX_REGIONS && entry == NULL; i++)
        if (!side->regions[i].used)
            entry = &side->regions[i];
    assert_non_null(entry);
    memset(entry, 0, sizeof(*entry));
    make_memory(entry, spec);
    entry->region.id = side->next_id++;
    entry->region.space = spec->kind == MEMORY_FILE    ? HEFT_SPACE_FILE
                          : kind_is_device(spec->kind) ? HEFT_SPACE_CUDA
                                                       : HEFT_SPACE_HOST;
    entry->region.flags = spec->flags;
    entry->region.length_bytes = spec->length_bytes;
    entry->region.address = spec->kind == MEMORY_FILE ? NULL : entry->mapping;
    entry->region.fd = entry->fd;
    entry->region.label = "";
    entry->used = 1;
    pthread_mutex_unlock(&side->lock);
    if (side->ops->region_add != NULL)
        assert_int_equal(side->ops->region_add(side->transport, &entry->region, &error), 0);
    return &entry->region;
}

int side_pins(struct side *side)
{
    int pins = 0;

    pthread_mutex_lock(&side->lock);
    for (int i = 0; i < SIDE_MAX_REGIONS; i++)
        pins += side->regions[i].used ? side->regions[i].pins : 0;
    pthread_mutex_unlock(&side->lock);
    return pins;
}

void side_region_remove(struct side *side, struct heft_transport_region *region)
{
    struct side_region *entry = (struct side_region *)(void *)region;
    struct timespec pause = {0, 1000000};
    int pins = 1;

    for (int i = 0; i < WAIT_S * 1000 && pins > 0; i++) {
        pthread_mutex_lock(&side->lock);
        pins = entry->pins;
        if (pins == 0)
            entry->used = 0;
        pthread_mutex_unlock(&side->lock);
        if (pins > 0)
            (void)nanosleep(&pause, NULL);
    }
    assert_int_equal(pins, 0);
    if (side->ops->region_remove != NULL)
        side->ops->region_remove(side->transport, region);
    drop_memory(entry);
}

static void op_done(struct heft_transport_op *op, int status, const struct heft_error *error)
{
    struct test_op *test = (struct test_op *)(void *)op;

    pthread_mutex_lock(&test->lock);
    test->status = status;
    if (error != NULL)
        test->error = *error;
    pthread_mutex_unlock(&test->lock);
    if (test->on_done != NULL)
        test->on_done(test);
    pthread_mutex_lock(&test->lock);
    test->done_count++;
    pthread_cond_broadcast(&test->changed);
    pthread_mutex_unlock(&test->lock);
}

void test_op_init(struct test_op *op, enum heft_op kind, const struct heft_move *moves, size_t move_count)
{
    static uint64_t ids;

    memset(op, 0, sizeof(*op));
    pthread_mutex_init(&op->lock, NULL);
    pthread_cond_init(&op->changed, NULL);
    op->op.kind = kind;
    op->op.moves = moves;
    op->op.move_count = move_count;
    for (size_t i = 0; i < move_count; i++)
        op->op.total_bytes += moves[i].length_bytes * moves[i].count;
    op->op.id = __atomic_add_fetch(&ids, 1, __ATOMIC_RELAXED);
    op->op.done = op_done;
    op->op.failed_move = -1;
}

int test_op_finished(struct test_op *op)
{
    int count;

    pthread_mutex_lock(&op->lock);
    count = op->done_count;
    pthread_mutex_unlock(&op->lock);
    return count;
}

int test_op_wait(struct test_op *op)
{
    struct timespec until;
    int rc = 0, count;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    pthread_mutex_lock(&op->lock);
    while (op->done_count == 0 && rc == 0)
        rc = pthread_cond_timedwait(&op->changed, &op->lock, &until);
    count = op->done_count;
    pthread_mutex_unlock(&op->lock);
    if (count == 0)
        fail_msg("operation %llu: no done within %d s, %llu of %llu bytes", (unsigned long long)op->op.id,
                 WAIT_S, (unsigned long long)__atomic_load_n(&op->op.done_bytes, __ATOMIC_RELAXED),
                 (unsigned long long)op->op.total_bytes);
    assert_int_equal(count, 1);
    return op->status;
}

void test_op_free(struct test_op *op)
{
    assert_true(op->done_count <= 1);
    pthread_cond_destroy(&op->changed);
    pthread_mutex_destroy(&op->lock);
}
