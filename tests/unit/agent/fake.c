/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include "base/error.h"

#define HELD_MAX 256

struct fake_op {
    struct heft_job job;
    struct heft_transport_op *op;
    struct fake_endpoint *endpoint;
    int status;
};

struct fake_endpoint {
    const struct heft_transport_host *host;
    int is_peer;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum fake_mode mode;
static int connect_error;
static struct heft_transport_op *held[HELD_MAX];
static struct heft_endpoint *held_by[HELD_MAX];
static unsigned held_count, connects, cancels, remotes;

static void copy_moves(struct heft_transport_op *op)
{
    size_t index;
    uint64_t piece;

    for (index = 0; index < op->move_count; index++)
        for (piece = 0; piece < op->moves[index].count; piece++) {
            const struct heft_move *move = &op->moves[index];
            uint8_t *local =
                (uint8_t *)move->local->address + move->local_offset_bytes + piece * move->local_stride_bytes;
            uint8_t *remote = (uint8_t *)move->remote->address + move->remote_offset_bytes +
                              piece * move->remote_stride_bytes;

            memcpy(op->kind == HEFT_OP_READ ? local : remote, op->kind == HEFT_OP_READ ? remote : local,
                   move->length_bytes);
            (void)__atomic_add_fetch(&op->done_bytes, move->length_bytes, __ATOMIC_RELAXED);
        }
}

static int fake_open(const struct heft_transport_host *host, struct heft_transport **transport_out,
                     struct heft_error *error)
{
    (void)error;
    *transport_out = (struct heft_transport *)(uintptr_t)host;
    return 0;
}

static int fake_remote_add(struct heft_endpoint *endpoint, struct heft_transport_region *region,
                           struct heft_error *error)
{
    const struct fake_endpoint *fake = (const struct fake_endpoint *)(void *)endpoint;

    (void)error;
    region->slot[fake->host->index] = region;
    (void)__atomic_add_fetch(&remotes, 1, __ATOMIC_RELAXED);
    return 0;
}

static void fake_remote_remove(struct heft_endpoint *endpoint, struct heft_transport_region *region)
{
    const struct fake_endpoint *fake = (const struct fake_endpoint *)(void *)endpoint;

    assert_ptr_equal(region->slot[fake->host->index], region);
    region->slot[fake->host->index] = NULL;
    (void)__atomic_sub_fetch(&remotes, 1, __ATOMIC_RELAXED);
}

static void fake_score(struct heft_transport *transport, struct heft_endpoint *endpoint,
                       const struct heft_route_query *query, struct heft_route_score *score_out)
{
    (void)transport;
    (void)endpoint;
    score_out->score = query->local == HEFT_SPACE_HOST && query->remote == HEFT_SPACE_HOST ? 950 : 0;
    (void)snprintf(score_out->reason, sizeof(score_out->reason), "made for a test");
}

static int fake_connect(struct heft_transport *transport, const struct heft_transport_peer *peer,
                        struct heft_endpoint **endpoint_out, struct heft_error *error)
{
    struct fake_endpoint *endpoint;
    int code = __atomic_load_n(&connect_error, __ATOMIC_RELAXED);

    if (code)
        return heft_error_set(error, code, "the test forbids it");
    endpoint = calloc(1, sizeof(*endpoint));
    if (!endpoint)
        return HEFT_ERR_NO_MEMORY;
    endpoint->host = (const struct heft_transport_host *)(void *)transport;
    endpoint->is_peer = peer != NULL;
    (void)__atomic_add_fetch(&connects, 1, __ATOMIC_RELAXED);
    *endpoint_out = (struct heft_endpoint *)(void *)endpoint;
    return 0;
}

static int take(struct heft_transport_op *op, unsigned *index_out)
{
    unsigned index;

    for (index = 0; index < held_count; index++)
        if (held[index] == op) {
            *index_out = index;
            return 1;
        }
    return 0;
}

static void forget(unsigned index)
{
    held_count--;
    held[index] = held[held_count];
    held_by[index] = held_by[held_count];
}

static void end_held(struct heft_endpoint *endpoint, int status, const struct heft_error *error)
{
    for (;;) {
        struct heft_transport_op *op = NULL;
        unsigned index;

        (void)pthread_mutex_lock(&lock);
        for (index = 0; index < held_count; index++)
            if (!endpoint || held_by[index] == endpoint) {
                op = held[index];
                forget(index);
                break;
            }
        (void)pthread_mutex_unlock(&lock);
        if (!op)
            return;
        if (!status)
            copy_moves(op);
        op->done(op, status, error);
    }
}

static void fake_disconnect(struct heft_endpoint *endpoint)
{
    end_held(endpoint, HEFT_ERR_CANCELED, NULL);
    free(endpoint);
}

static void fake_fail(struct heft_endpoint *endpoint, int status, const struct heft_error *error)
{
    end_held(endpoint, status, error);
}

static void run_job(struct heft_job *job, struct heft_worker *worker)
{
    struct fake_op *fake = HEFT_CONTAINER_OF(job, struct fake_op, job);
    struct heft_transport_op *op = fake->op;
    int status = fake->status;

    (void)worker;
    free(fake);
    if (status != HEFT_ERR_PEER_LOST)
        copy_moves(op);
    if (status == 1) {
        (void)__atomic_sub_fetch(&op->done_bytes, 1, __ATOMIC_RELAXED);
        status = 0;
    }
    op->failed_move = status ? 0 : -1;
    op->done(op, status, NULL);
}

static int fake_post(struct heft_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error)
{
    enum fake_mode now = __atomic_load_n(&mode, __ATOMIC_RELAXED);
    struct fake_endpoint *fake = (struct fake_endpoint *)(void *)endpoint;
    struct fake_op *job;

    if (now == FAKE_REFUSE)
        return heft_error_set(error, HEFT_ERR_UNAVAILABLE, "the test refuses");
    if (now == FAKE_NOW) {
        copy_moves(op);
        op->done(op, 0, NULL);
        return 0;
    }
    if (now == FAKE_HOLD || now == FAKE_STUBBORN) {
        (void)pthread_mutex_lock(&lock);
        assert_true(held_count < HELD_MAX);
        held[held_count] = op;
        held_by[held_count++] = endpoint;
        (void)pthread_mutex_unlock(&lock);
        return 0;
    }
    job = calloc(1, sizeof(*job));
    if (!job)
        return HEFT_ERR_NO_MEMORY;
    job->job.run = run_job;
    job->op = op;
    job->endpoint = fake;
    job->status = now == FAKE_SHORT ? 1 : now == FAKE_BREAK ? HEFT_ERR_PEER_LOST : 0;
    heft_pool_submit(fake->host->pool, &job->job);
    return 0;
}

static void fake_cancel(struct heft_endpoint *endpoint, struct heft_transport_op *op)
{
    unsigned index;
    int found;

    (void)endpoint;
    assert_true(__atomic_load_n(&op->cancel_wanted, __ATOMIC_ACQUIRE));
    (void)__atomic_add_fetch(&cancels, 1, __ATOMIC_RELAXED);
    if (__atomic_load_n(&mode, __ATOMIC_RELAXED) == FAKE_STUBBORN)
        return;
    (void)pthread_mutex_lock(&lock);
    found = take(op, &index);
    if (found)
        forget(index);
    (void)pthread_mutex_unlock(&lock);
    if (found)
        op->done(op, HEFT_ERR_CANCELED, NULL);
}

const struct heft_transport_ops fake_ops = {.abi = HEFT_TRANSPORT_ABI,
                                            .size = sizeof(struct heft_transport_ops),
                                            .name = "fake",
                                            .open = fake_open,
                                            .remote_add = fake_remote_add,
                                            .remote_remove = fake_remote_remove,
                                            .score = fake_score,
                                            .connect = fake_connect,
                                            .disconnect = fake_disconnect,
                                            .fail = fake_fail,
                                            .post = fake_post,
                                            .cancel = fake_cancel};

void fake_register(void)
{
    assert_int_equal(heft_agent_register_transport(&fake_ops, NULL), 0);
    fake_set_mode(FAKE_COPY);
    fake_set_connect_error(0);
}

void fake_unregister(void)
{
    heft_agent_unregister_transport(&fake_ops);
}

void fake_set_mode(enum fake_mode wanted)
{
    __atomic_store_n(&mode, wanted, __ATOMIC_RELAXED);
}

void fake_set_connect_error(int code)
{
    __atomic_store_n(&connect_error, code, __ATOMIC_RELAXED);
}

void fake_finish(void)
{
    end_held(NULL, 0, NULL);
}

unsigned fake_held(void)
{
    unsigned count;

    (void)pthread_mutex_lock(&lock);
    count = held_count;
    (void)pthread_mutex_unlock(&lock);
    return count;
}

unsigned fake_connects(void)
{
    return __atomic_load_n(&connects, __ATOMIC_RELAXED);
}

unsigned fake_cancels(void)
{
    return __atomic_load_n(&cancels, __ATOMIC_RELAXED);
}

unsigned fake_remote_regions(void)
{
    return __atomic_load_n(&remotes, __ATOMIC_RELAXED);
}
