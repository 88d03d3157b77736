/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: what one worker does for the transport. A lane and its ring are touched by their worker alone.
 *
 * A ticket is a job that any worker may take; the worker that runs it works for its own lane. It takes pieces
 * until there are none, its ring is full, or it has worked for a slice of time, so that other jobs and
 * sockets of the worker get their turn. Every completion takes pieces again. So nobody needs to be woken for
 * a slot or a ring's place that becomes free: who frees it looks for work next.
 */
#include "transport/file/file.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define RING_ENTRIES 128u
#define SLICE_NS (2 * HEFT_NS_PER_MS)
#define ANSWER_ENTRIES 1024u /* a lane's last piece may be picked, of many reads */
#define SUBMIT_BATCH 8u
#define SUBMIT_PICKED 64u
/* Registering pins all of the staging memory: only who reads a lot gets it back. */
#define REGISTER_AFTER_READS 64u
#define WAKE_MAX 64u

/* ---- the probe ---- */

/* A read that waits for its bytes, and an eventfd that tells when they came: all that a lane relies on. */
static int try_ring(void)
{
    static _Thread_local char byte; /* a read that outlives a failed probe must not find the stack */
    struct io_uring_cqe *cqe = NULL;
    struct io_uring ring;
    struct pollfd waiting = {.events = POLLIN};
    int fds[2], rc;

    byte = 0;
    if (pipe2(fds, O_CLOEXEC))
        return -errno;
    waiting.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = waiting.fd < 0 ? -errno : io_uring_queue_init(4, &ring, 0);
    if (rc < 0)
        goto done_files;
    rc = io_uring_register_eventfd(&ring, waiting.fd);
    if (rc < 0)
        goto done_ring;
    io_uring_prep_read(io_uring_get_sqe(&ring), fds[0], &byte, 1, 0);
    rc = io_uring_submit(&ring);
    if (rc < 0)
        goto done_ring;
    rc = -EIO;
    if (write(fds[1], "x", 1) != 1)
        goto done_ring;
    while (poll(&waiting, 1, 1000) < 0)
        if (errno != EINTR)
            goto done_ring;
    (void)io_uring_get_events(&ring);
    if ((waiting.revents & POLLIN) && io_uring_peek_cqe(&ring, &cqe) == 0 && cqe)
        rc = cqe->res == 1 && byte == 'x' ? 0 : cqe->res < 0 ? cqe->res : -EIO;

done_ring:
    io_uring_queue_exit(&ring);
done_files:
    if (waiting.fd >= 0)
        (void)close(waiting.fd);
    (void)close(fds[0]);
    (void)close(fds[1]);
    return rc;
}

/*
 * A plain ring. One whose completions are deferred to its own thread (DEFER_TASKRUN) loses wake-ups: the
 * kernel runs at most some twenty completions a call and signals the eventfd only for the first of a list, so
 * that what is left of a longer list waits for a completion that may never come: the last chunk of a load
 * stood still.
 */
void heft_file_probe_uring(struct heft_transport *transport)
{
    char reason[64];
    int rc = transport->mode & HEFT_FILE_NO_URING ? -ENOSYS : try_ring();

    transport->uring = rc == 0;
    if (rc == 0)
        (void)snprintf(transport->uring_reason, sizeof(transport->uring_reason), "io_uring");
    else
        (void)snprintf(transport->uring_reason, sizeof(transport->uring_reason),
                       "preadv, io_uring is refused (%s)", strerror_r(-rc, reason, sizeof(reason)));
}

/* ---- the ring ---- */

static struct heft_file_lane *lane_of_watch(struct heft_watch *watch)
{
    return (struct heft_file_lane *)(void *)((char *)watch - offsetof(struct heft_file_lane, watch));
}

static void ring_ready(struct heft_watch *watch, uint32_t epoll_events);

/* Made by the worker at its first cold read; its eventfd is watched. */
static int open_ring(struct heft_file_lane *lane)
{
    struct io_uring_params params = {.flags = IORING_SETUP_CQSIZE, .cq_entries = ANSWER_ENTRIES};
    struct heft_error error = HEFT_ERROR_INIT;
    int rc;

    if (lane->ring_state)
        return lane->ring_state > 0;
    lane->ring_state = -1;
    if (!lane->transport->uring)
        return 0;
    rc = io_uring_queue_init_params(RING_ENTRIES, &lane->ring, &params);
    if (rc < 0)
        goto fail;
    lane->watch.ready = ring_ready;
    lane->watch.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = lane->watch.fd < 0 ? -errno : io_uring_register_eventfd(&lane->ring, lane->watch.fd);
    if (rc < 0)
        goto fail_ring;
    if (heft_watch_add(lane->worker, &lane->watch, EPOLLIN, &error)) {
        rc = -ENOSPC;
        goto fail_ring;
    }
    lane->ring_state = 1;
    return 1;

fail_ring:
    if (lane->watch.fd >= 0)
        (void)close(lane->watch.fd);
    io_uring_queue_exit(&lane->ring);
fail:
    heft_log(HEFT_LOG_WARN, "file: no io_uring for this worker (errno %d), reading by preadv", -rc);
    return 0;
}

static void register_staging(struct heft_file_lane *lane)
{
    struct iovec whole = {lane->transport->staging, lane->transport->staging_bytes};

    lane->registered = -1;
    if (!(lane->transport->mode & HEFT_FILE_NO_REGISTER) &&
        io_uring_register_buffers(&lane->ring, &whole, 1) == 0)
        lane->registered = 1;
}

/* One read more of the piece's. */
static void fly(struct heft_file_lane *lane, struct heft_file_piece *piece)
{
    __atomic_store_n(&lane->in_flight, lane->in_flight + 1, __ATOMIC_RELAXED);
    if (piece->in_ring++ > 0)
        return;
    piece->prev = NULL;
    piece->next = lane->flying;
    if (lane->flying)
        lane->flying->prev = piece;
    lane->flying = piece;
}

static void unfly(struct heft_file_lane *lane, struct heft_file_piece *piece)
{
    __atomic_store_n(&lane->in_flight, lane->in_flight - 1, __ATOMIC_RELAXED);
    if (--piece->in_ring > 0)
        return;
    if (piece->prev)
        piece->prev->next = piece->next;
    else
        lane->flying = piece->next;
    if (piece->next)
        piece->next->prev = piece->prev;
}

/*
 * The kernel would not take the queued entries: they become no-ops, and their pieces go to preadv, whose
 * answer decides. (A no-op that is taken later ends without a piece.)
 */
static void withdraw_queued(struct heft_file_lane *lane)
{
    struct io_uring_sq *sq = &lane->ring.sq;
    unsigned at = io_uring_smp_load_acquire(sq->khead), mask = sq->ring_mask;

    for (; at != sq->sqe_tail; at++) {
        struct io_uring_sqe *sqe = &sq->sqes[at & mask];
        struct heft_file_piece *piece = (struct heft_file_piece *)(uintptr_t)sqe->user_data;

        io_uring_prep_nop(sqe);
        sqe->user_data = 0;
        if (piece) {
            unfly(lane, piece);
            heft_file_piece_complete(lane, piece, -EAGAIN);
        }
    }
}

static void submit(struct heft_file_lane *lane)
{
    int rc;

    if (lane->ring_state <= 0 || io_uring_sq_ready(&lane->ring) == 0)
        return;
    do
        rc = io_uring_submit(&lane->ring);
    while (rc == -EINTR);
    if (rc < 0)
        withdraw_queued(lane);
}

static struct io_uring_sqe *next_entry(struct heft_file_lane *lane)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&lane->ring);

    if (!sqe) {
        submit(lane);
        sqe = io_uring_get_sqe(&lane->ring);
    }
    return sqe;
}

int heft_file_lane_read(struct heft_file_lane *lane, struct heft_file_piece *piece, int fd,
                        const struct iovec *parts, int part_count, uint64_t offset_bytes)
{
    struct io_uring_sqe *sqe;

    if (!open_ring(lane))
        return 0;
    sqe = next_entry(lane);
    if (!sqe)
        return 0;
    if (piece->slot && lane->registered == 0 && ++lane->staged_reads > REGISTER_AFTER_READS)
        register_staging(lane);
    if (part_count > 1)
        io_uring_prep_readv(sqe, fd, parts, (unsigned)part_count, offset_bytes);
    else if (piece->slot && lane->registered > 0)
        io_uring_prep_read_fixed(sqe, fd, parts->iov_base, (unsigned)parts->iov_len, offset_bytes, 0);
    else
        io_uring_prep_read(sqe, fd, parts->iov_base, (unsigned)parts->iov_len, offset_bytes);
    io_uring_sqe_set_data(sqe, piece);
    fly(lane, piece);
    if (io_uring_sq_ready(&lane->ring) >= (piece->path == HEFT_FILE_PICKED ? SUBMIT_PICKED : SUBMIT_BATCH))
        submit(lane);
    return 1;
}

/* ---- working ---- */

/* 1: the slice is over and there may be more. */
static int work(struct heft_file_lane *lane)
{
    uint64_t until = heft_now_ns() + SLICE_NS;
    struct heft_file_piece *piece;
    int more = 0;

    while (lane->in_flight < lane->transport->lane_limit) {
        piece = heft_file_take_piece(lane->transport);
        if (!piece || !heft_file_piece_start(lane, piece))
            break;
        if (heft_now_ns() >= until) {
            more = 1;
            break;
        }
    }
    submit(lane);
    return more;
}

static void ring_ready(struct heft_watch *watch, uint32_t epoll_events)
{
    struct heft_file_lane *lane = lane_of_watch(watch);
    uint64_t signals, reads = 0, picked = 0, bytes = 0;
    struct io_uring_cqe *cqe;
    int more = 0;

    (void)epoll_events;
    if (read(watch->fd, &signals, sizeof(signals)) < 0)
        return;
    (void)io_uring_get_events(&lane->ring);
    while (io_uring_peek_cqe(&lane->ring, &cqe) == 0) {
        struct heft_file_piece *piece = io_uring_cqe_get_data(cqe);
        int result = cqe->res;

        io_uring_cqe_seen(&lane->ring, cqe);
        if (!piece)
            continue;
        reads++;
        picked += piece->path == HEFT_FILE_PICKED;
        bytes += result > 0 ? (uint64_t)result : 0;
        unfly(lane, piece);
        heft_file_piece_complete(lane, piece, result);
        more |= work(lane);
    }
    heft_file_gauge_note(&lane->gauge, heft_now_ns(), reads, picked, bytes);
    if (more)
        heft_file_wake(lane->transport, 1);
}

static void job_idle(struct heft_transport *transport)
{
    transport->busy_jobs--;
    (void)pthread_cond_broadcast(&transport->tasks.quiet);
}

/* Whether a lane would find something to do; under the lock. */
static int has_work(const struct heft_transport *transport)
{
    return (transport->stalled && transport->free_slot_count > 0) ||
           (transport->tasks.queue && transport->free_pieces);
}

static int has_room(const struct heft_file_lane *lane)
{
    return __atomic_load_n(&lane->in_flight, __ATOMIC_RELAXED) < lane->transport->lane_limit;
}

static void run_ticket(struct heft_job *job, struct heft_worker *worker)
{
    struct heft_file_ticket *ticket =
        (struct heft_file_ticket *)(void *)((char *)job - offsetof(struct heft_file_ticket, job));
    struct heft_transport *transport = ticket->transport;
    struct heft_file_lane *other = NULL;
    uint32_t self = 0, index;
    int more;

    while (transport->lanes[self].worker != worker)
        self++;
    if (transport->lanes[self].in_flight == 0)
        heft_file_gauge_begin(&transport->lanes[self].gauge, heft_now_ns());
    more = work(&transport->lanes[self]);
    (void)pthread_mutex_lock(&transport->tasks.lock);
    /* What was queued since the last look found this ticket taken. A full lane gives it to one with room. */
    if (!more && has_work(transport)) {
        more = has_room(&transport->lanes[self]);
        for (index = 0; !more && !other && index < transport->lane_count; index++)
            if (has_room(&transport->lanes[index]))
                other = &transport->lanes[index];
    }
    if (!more && !other) {
        ticket->queued = 0;
        job_idle(transport);
    }
    (void)pthread_mutex_unlock(&transport->tasks.lock);
    if (more)
        heft_pool_submit(transport->host.pool, &ticket->job);
    else if (other)
        heft_worker_submit(other->worker, &ticket->job);
}

void heft_file_wake(struct heft_transport *transport, uint64_t count)
{
    struct heft_file_ticket *woken[WAKE_MAX];
    uint32_t index, taken = 0;

    if (count > WAKE_MAX)
        count = WAKE_MAX;
    (void)pthread_mutex_lock(&transport->tasks.lock);
    for (index = 0; index < transport->lane_count && taken < count; index++) {
        if (transport->tickets[index].queued)
            continue;
        transport->tickets[index].queued = 1;
        transport->busy_jobs++;
        woken[taken++] = &transport->tickets[index];
    }
    (void)pthread_mutex_unlock(&transport->tasks.lock);
    for (index = 0; index < taken; index++)
        heft_pool_submit(transport->host.pool, &woken[index]->job);
}

/* ---- cancel and close ---- */

static void run_cancel(struct heft_job *job, struct heft_worker *worker)
{
    struct heft_file_lane *lane =
        (struct heft_file_lane *)(void *)((char *)job - offsetof(struct heft_file_lane, cancel_job));
    struct heft_file_piece *piece;

    (void)worker;
    (void)pthread_mutex_lock(&lane->transport->tasks.lock);
    lane->cancel_queued = 0;
    (void)pthread_mutex_unlock(&lane->transport->tasks.lock);
    submit(lane);
    for (piece = lane->flying; piece; piece = piece->next) {
        struct io_uring_sqe *sqe;

        if (piece->canceling || __atomic_load_n(&piece->task->common.status, __ATOMIC_RELAXED) == 0)
            continue;
        sqe = io_uring_sq_space_left(&lane->ring) ? io_uring_get_sqe(&lane->ring) : NULL;
        if (!sqe)
            break; /* a full queue: what is left ends by itself */
        io_uring_prep_cancel64(sqe, (uint64_t)(uintptr_t)piece,
                               piece->in_ring > 1 ? IORING_ASYNC_CANCEL_ALL : 0);
        sqe->user_data = 0;
        piece->canceling = 1;
    }
    submit(lane);
    (void)pthread_mutex_lock(&lane->transport->tasks.lock);
    job_idle(lane->transport);
    (void)pthread_mutex_unlock(&lane->transport->tasks.lock);
}

void heft_file_cancel_flying(struct heft_transport *transport)
{
    uint32_t index;
    int queue;

    for (index = 0; index < transport->lane_count; index++) {
        struct heft_file_lane *lane = &transport->lanes[index];

        if (__atomic_load_n(&lane->in_flight, __ATOMIC_RELAXED) == 0)
            continue;
        (void)pthread_mutex_lock(&transport->tasks.lock);
        queue = !lane->cancel_queued;
        lane->cancel_queued = 1;
        transport->busy_jobs += (uint32_t)queue;
        (void)pthread_mutex_unlock(&transport->tasks.lock);
        if (queue)
            heft_worker_submit(lane->worker, &lane->cancel_job);
    }
}

static void run_close(struct heft_job *job, struct heft_worker *worker)
{
    struct heft_file_lane *lane =
        (struct heft_file_lane *)(void *)((char *)job - offsetof(struct heft_file_lane, close_job));
    struct heft_transport *transport = lane->transport;

    (void)worker;
    if (lane->ring_state > 0) {
        heft_watch_remove(&lane->watch);
        io_uring_queue_exit(&lane->ring);
        (void)close(lane->watch.fd);
        lane->ring_state = -1;
    }
    (void)pthread_mutex_lock(&transport->tasks.lock);
    job_idle(transport);
    (void)pthread_mutex_unlock(&transport->tasks.lock);
}

void heft_file_lane_init(struct heft_transport *transport, uint32_t index)
{
    struct heft_file_lane *lane = &transport->lanes[index];

    lane->transport = transport;
    lane->worker = heft_pool_worker(transport->host.pool, index);
    lane->cancel_job.run = run_cancel;
    lane->close_job.run = run_close;
    transport->tickets[index].transport = transport;
    transport->tickets[index].job.run = run_ticket;
}

void heft_file_lane_close(struct heft_file_lane *lane)
{
    struct heft_transport *transport = lane->transport;

    (void)pthread_mutex_lock(&transport->tasks.lock);
    transport->busy_jobs++;
    (void)pthread_mutex_unlock(&transport->tasks.lock);
    heft_worker_submit(lane->worker, &lane->close_job);
}
