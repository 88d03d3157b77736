/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker pool: threads that each run one epoll loop.
 *
 * Two queues feed a worker: its own (jobs that touch state only this worker may touch) and the pool's (jobs
 * that any worker may take). A worker that finds nothing announces itself idle, looks once more, and sleeps
 * in epoll_wait; who submits to the pool wakes one idle worker through its eventfd. Sockets are looked at
 * between jobs, so a long queue of copies delays a socket by one job at most.
 *
 * A driven pool is the same without the threads: whoever calls heft_pool_progress is each worker in turn,
 * under that worker's drive_lock, until nothing is left to do. Its epoll descriptor is readable when there
 * is something again: a job (through the eventfd, as above), a socket, or a timer (through a timerfd).
 *
 * The library must not steal its host's signals: workers block them all.
 */
#include "transport/worker.h"
#include "base/clock.h"
#include "base/error.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define EVENTS_PER_WAIT 64
#define MAX_WORKERS 256

struct job_queue {
    pthread_mutex_t lock;
    struct heft_job *first, **last;
    size_t count; /* read without the lock as a hint */
};

struct heft_worker {
    struct heft_worker_pool *pool;
    uint32_t index;
    pthread_t thread;
    int epoll_fd, wake_fd;
    int timer_fd; /* of a driven worker: readable when a timer is due; else -1 */
    uint64_t timer_armed_ns;
    pthread_mutex_t drive_lock; /* of a driven worker: held by the thread that runs it */
    unsigned done;              /* jobs, events and timers of this run */
    int idle;                   /* atomic: 1 from before the last look at the queues until woken */
    struct job_queue own;
    struct heft_timer timers; /* head of a ring */
    /* The batch being dispatched, so that heft_watch_remove can take its watch out. */
    struct epoll_event events[EVENTS_PER_WAIT];
    int event_count, event_next;
};

struct heft_worker_pool {
    uint32_t count;
    int driven;
    int stop; /* atomic */
    struct job_queue shared;
    uint32_t next_wake; /* atomic hint: where the search for an idle worker begins */
    struct heft_worker workers[];
};

static __thread struct heft_worker *self_worker;

struct heft_worker *heft_worker_self(void)
{
    return self_worker;
}

uint32_t heft_pool_workers(const struct heft_worker_pool *pool)
{
    return pool->count;
}

struct heft_worker_pool *heft_worker_pool(struct heft_worker *worker)
{
    return worker->pool;
}

struct heft_worker *heft_pool_worker(struct heft_worker_pool *pool, uint32_t index)
{
    HEFT_ASSERT(index < pool->count);
    return &pool->workers[index];
}

static void queue_init(struct job_queue *queue)
{
    (void)pthread_mutex_init(&queue->lock, NULL);
    queue->first = NULL;
    queue->last = &queue->first;
    queue->count = 0;
}

static void queue_push(struct job_queue *queue, struct heft_job *job)
{
    job->next = NULL;
    (void)pthread_mutex_lock(&queue->lock);
    *queue->last = job;
    queue->last = &job->next;
    __atomic_store_n(&queue->count, queue->count + 1, __ATOMIC_SEQ_CST);
    (void)pthread_mutex_unlock(&queue->lock);
}

static struct heft_job *queue_pop(struct job_queue *queue)
{
    struct heft_job *job;

    if (__atomic_load_n(&queue->count, __ATOMIC_SEQ_CST) == 0)
        return NULL;
    (void)pthread_mutex_lock(&queue->lock);
    job = queue->first;
    if (job) {
        queue->first = job->next;
        if (!queue->first)
            queue->last = &queue->first;
        __atomic_store_n(&queue->count, queue->count - 1, __ATOMIC_SEQ_CST);
    }
    (void)pthread_mutex_unlock(&queue->lock);
    return job;
}

static void wake(struct heft_worker *worker)
{
    uint64_t one = 1;
    ssize_t written = write(worker->wake_fd, &one, sizeof(one));

    (void)written; /* a full counter wakes as well */
}

static int take_idle(struct heft_worker *worker)
{
    return __atomic_load_n(&worker->idle, __ATOMIC_SEQ_CST) &&
           __atomic_exchange_n(&worker->idle, 0, __ATOMIC_SEQ_CST);
}

void heft_pool_submit(struct heft_worker_pool *pool, struct heft_job *job)
{
    uint32_t start, index;

    queue_push(&pool->shared, job);
    start = __atomic_load_n(&pool->next_wake, __ATOMIC_RELAXED);
    for (index = 0; index < pool->count; index++) {
        struct heft_worker *worker = &pool->workers[(start + index) % pool->count];

        if (take_idle(worker)) {
            __atomic_store_n(&pool->next_wake, start + index + 1, __ATOMIC_RELAXED);
            wake(worker);
            return;
        }
    }
}

int heft_pool_has_jobs(const struct heft_worker_pool *pool)
{
    return __atomic_load_n(&pool->shared.count, __ATOMIC_RELAXED) > 0;
}

void heft_worker_submit(struct heft_worker *worker, struct heft_job *job)
{
    queue_push(&worker->own, job);
    if (worker != self_worker && take_idle(worker))
        wake(worker);
}

int heft_watch_add(struct heft_worker *worker, struct heft_watch *watch, uint32_t epoll_events,
                   struct heft_error *error)
{
    struct epoll_event event = {.events = epoll_events, .data.ptr = watch};

    watch->worker = worker;
    if (epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, watch->fd, &event))
        return heft_error_set_errno(error, errno, "watching a descriptor");
    return HEFT_OK;
}

int heft_watch_modify(struct heft_watch *watch, uint32_t epoll_events)
{
    struct epoll_event event = {.events = epoll_events, .data.ptr = watch};

    if (epoll_ctl(watch->worker->epoll_fd, EPOLL_CTL_MOD, watch->fd, &event))
        return heft_error_from_errno(errno);
    return HEFT_OK;
}

void heft_watch_remove(struct heft_watch *watch)
{
    struct heft_worker *worker = watch->worker;
    int index;

    (void)epoll_ctl(worker->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
    for (index = worker->event_next; index < worker->event_count; index++)
        if (worker->events[index].data.ptr == watch)
            worker->events[index].data.ptr = NULL;
}

void heft_timer_set(struct heft_worker *worker, struct heft_timer *timer, uint64_t at_ns)
{
    if (timer->at_ns) {
        timer->prev->next = timer->next;
        timer->next->prev = timer->prev;
    }
    timer->at_ns = at_ns;
    timer->worker = worker;
    if (at_ns) {
        timer->prev = worker->timers.prev;
        timer->next = &worker->timers;
        timer->prev->next = timer;
        timer->next->prev = timer;
    }
}

/* Fires what is due; ms until the next one, -1 without timers. */
static int run_timers(struct heft_worker *worker)
{
    uint64_t now, nearest = 0;
    struct heft_timer *timer;

    if (worker->timers.next == &worker->timers)
        return -1;
    now = heft_now_ns();
    timer = worker->timers.next;
    while (timer != &worker->timers) {
        if (timer->at_ns <= now) {
            heft_timer_set(worker, timer, 0);
            worker->done++;
            timer->fire(timer);
            timer = worker->timers.next; /* fire may have changed the list */
            continue;
        }
        timer = timer->next;
    }
    for (timer = worker->timers.next; timer != &worker->timers; timer = timer->next)
        if (nearest == 0 || timer->at_ns < nearest)
            nearest = timer->at_ns;
    if (nearest == 0)
        return -1;
    now = heft_now_ns();
    if (nearest <= now)
        return 0;
    nearest = (nearest - now + HEFT_NS_PER_MS - 1) / HEFT_NS_PER_MS;
    return nearest > 60000 ? 60000 : (int)nearest;
}

static void dispatch(struct heft_worker *worker)
{
    while (worker->event_next < worker->event_count) {
        struct epoll_event *event = &worker->events[worker->event_next++];
        struct heft_watch *watch = event->data.ptr;
        uint64_t drained;

        if (!watch)
            continue;
        if ((void *)watch == (void *)worker || (void *)watch == (void *)&worker->timer_fd) {
            int fd = (void *)watch == (void *)worker ? worker->wake_fd : worker->timer_fd;
            ssize_t got = read(fd, &drained, sizeof(drained));

            (void)got;
            continue;
        }
        worker->done++;
        watch->ready(watch, event->events);
    }
    worker->event_count = worker->event_next = 0;
}

/* Runs own jobs, then one of the pool's. True when more may be waiting. */
static int run_jobs(struct heft_worker *worker)
{
    size_t own = __atomic_load_n(&worker->own.count, __ATOMIC_SEQ_CST);
    struct heft_job *job;

    while (own-- > 0 && (job = queue_pop(&worker->own)) != NULL) {
        worker->done++;
        job->run(job, worker);
    }
    job = queue_pop(&worker->pool->shared);
    if (job) {
        worker->done++;
        job->run(job, worker);
    }
    return __atomic_load_n(&worker->own.count, __ATOMIC_SEQ_CST) > 0 ||
           __atomic_load_n(&worker->pool->shared.count, __ATOMIC_SEQ_CST) > 0;
}

static void *worker_main(void *argument)
{
    struct heft_worker *worker = argument;

    self_worker = worker;
    while (!__atomic_load_n(&worker->pool->stop, __ATOMIC_ACQUIRE)) {
        int more = run_jobs(worker);
        int timeout_ms = run_timers(worker);

        if (more || __atomic_load_n(&worker->own.count, __ATOMIC_SEQ_CST) > 0) {
            timeout_ms = 0;
        } else {
            /* Announce first, look second: a job pushed in between finds the announcement. */
            __atomic_store_n(&worker->idle, 1, __ATOMIC_SEQ_CST);
            if (__atomic_load_n(&worker->own.count, __ATOMIC_SEQ_CST) > 0 ||
                __atomic_load_n(&worker->pool->shared.count, __ATOMIC_SEQ_CST) > 0 ||
                __atomic_load_n(&worker->pool->stop, __ATOMIC_ACQUIRE))
                timeout_ms = 0;
        }
        worker->event_next = 0;
        worker->event_count = epoll_wait(worker->epoll_fd, worker->events, EVENTS_PER_WAIT, timeout_ms);
        __atomic_store_n(&worker->idle, 0, __ATOMIC_SEQ_CST);
        if (worker->event_count < 0)
            worker->event_count = 0;
        dispatch(worker);
    }
    self_worker = NULL;
    return NULL;
}

/* ---- driven by callers ---- */

#define DRIVE_NS (HEFT_NS_PER_MS / 2) /* of one worker, then others get their turn: heartbeats, say */
#define WAIT_SLICE_MS 1               /* of a wait for what another thread is running */

/* The timer descriptor follows the nearest timer. */
static void arm_timer(struct heft_worker *worker)
{
    struct itimerspec when = {{0, 0}, {0, 0}};
    struct heft_timer *timer;
    uint64_t nearest = 0;

    for (timer = worker->timers.next; timer != &worker->timers; timer = timer->next)
        if (nearest == 0 || timer->at_ns < nearest)
            nearest = timer->at_ns;
    if (nearest == worker->timer_armed_ns)
        return;
    worker->timer_armed_ns = nearest;
    when.it_value.tv_sec = (time_t)(nearest / HEFT_NS_PER_S);
    when.it_value.tv_nsec = (long)(nearest % HEFT_NS_PER_S);
    (void)timerfd_settime(worker->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static int has_jobs(const struct heft_worker *worker)
{
    return __atomic_load_n(&worker->own.count, __ATOMIC_SEQ_CST) > 0 ||
           __atomic_load_n(&worker->pool->shared.count, __ATOMIC_SEQ_CST) > 0;
}

/* As worker_main, until nothing is left. The caller holds drive_lock. */
static void drive(struct heft_worker *worker)
{
    uint64_t until_ns = heft_now_ns() + DRIVE_NS;
    int quiet = 0;

    __atomic_store_n(&worker->idle, 0, __ATOMIC_SEQ_CST);
    while (!quiet) {
        unsigned before = worker->done;

        /* First what makes the descriptor readable: others may sleep on it while a job runs here. */
        worker->event_next = 0;
        worker->event_count = epoll_wait(worker->epoll_fd, worker->events, EVENTS_PER_WAIT, 0);
        if (worker->event_count < 0)
            worker->event_count = 0;
        dispatch(worker);
        (void)run_timers(worker);
        (void)run_jobs(worker);
        if (worker->done != before && heft_now_ns() < until_ns)
            continue;
        if (worker->done != before)
            break;
        /* Announce first, look second: a job pushed in between finds the announcement. */
        __atomic_store_n(&worker->idle, 1, __ATOMIC_SEQ_CST);
        quiet = !has_jobs(worker);
        if (!quiet)
            __atomic_store_n(&worker->idle, 0, __ATOMIC_SEQ_CST);
    }
    if (!quiet) /* there may be more: the descriptor must say so */
        wake(worker);
    arm_timer(worker);
}

unsigned heft_pool_progress(struct heft_worker_pool *pool)
{
    struct heft_worker *outer = self_worker;
    unsigned done = 0;
    uint32_t index;

    for (index = 0; index < pool->count; index++) {
        struct heft_worker *worker = &pool->workers[index];

        /* Held by another thread, or by a call of this one further out. */
        if (pthread_mutex_trylock(&worker->drive_lock))
            continue;
        self_worker = worker;
        worker->done = 0;
        drive(worker);
        done += worker->done;
        self_worker = outer;
        (void)pthread_mutex_unlock(&worker->drive_lock);
    }
    return done;
}

int heft_pool_is_driven(const struct heft_worker_pool *pool)
{
    return pool->driven;
}

int heft_pool_add_to_epoll(struct heft_worker_pool *pool, int epoll_fd, struct heft_error *error)
{
    struct epoll_event event = {.events = EPOLLIN};
    uint32_t index;

    for (index = 0; index < pool->count; index++)
        if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, pool->workers[index].epoll_fd, &event))
            return heft_error_set_errno(error, errno, "watching a worker's descriptors");
    return HEFT_OK;
}

void heft_pool_nudge(struct heft_worker_pool *pool)
{
    wake(&pool->workers[0]);
}

void heft_pool_wait(struct heft_worker_pool *pool, pthread_cond_t *cond, pthread_mutex_t *lock)
{
    struct timespec until;
    uint64_t until_ns;
    unsigned done;

    if (!pool->driven) {
        (void)pthread_cond_wait(cond, lock);
        return;
    }
    (void)pthread_mutex_unlock(lock);
    done = heft_pool_progress(pool);
    (void)pthread_mutex_lock(lock);
    if (done) /* what was waited for may have come */
        return;
    until_ns = heft_now_ns() + WAIT_SLICE_MS * HEFT_NS_PER_MS;
    until.tv_sec = (time_t)(until_ns / HEFT_NS_PER_S);
    until.tv_nsec = (long)(until_ns % HEFT_NS_PER_S);
    (void)pthread_cond_clockwait(cond, lock, CLOCK_MONOTONIC, &until);
}

/* ---- life ---- */

static int start_thread(struct heft_worker *worker, struct heft_error *error)
{
    sigset_t all, before;
    char name[16];
    int rc;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&worker->thread, NULL, worker_main, worker);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc)
        return heft_error_set_errno(error, rc, "starting worker %u", worker->index);
    (void)snprintf(name, sizeof(name), "heft-w%u", worker->index);
    (void)pthread_setname_np(worker->thread, name);
    return HEFT_OK;
}

static int make_timer(struct heft_worker *worker, struct heft_error *error)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &worker->timer_fd};

    worker->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (worker->timer_fd < 0 || epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, worker->timer_fd, &event))
        return heft_error_set_errno(error, errno, "making a worker's timer (see ulimit -n)");
    return HEFT_OK;
}

static int worker_start(struct heft_worker_pool *pool, uint32_t index, struct heft_error *error)
{
    struct heft_worker *worker = &pool->workers[index];
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = worker};
    int rc;

    worker->pool = pool;
    worker->index = index;
    worker->timer_fd = -1;
    worker->idle = pool->driven;
    (void)pthread_mutex_init(&worker->drive_lock, NULL);
    worker->timers.prev = worker->timers.next = &worker->timers;
    queue_init(&worker->own);
    worker->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (worker->epoll_fd < 0)
        return heft_error_set_errno(error, errno, "making a worker's epoll descriptor (see ulimit -n)");
    worker->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (worker->wake_fd < 0) {
        rc = heft_error_set_errno(error, errno, "making a worker's eventfd (see ulimit -n)");
        goto fail_epoll;
    }
    if (epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, worker->wake_fd, &event)) {
        rc = heft_error_set_errno(error, errno, "watching a worker's eventfd");
        goto fail_wake;
    }
    rc = pool->driven ? make_timer(worker, error) : start_thread(worker, error);
    if (!rc)
        return HEFT_OK;
    if (worker->timer_fd >= 0)
        (void)close(worker->timer_fd);
fail_wake:
    (void)close(worker->wake_fd);
fail_epoll:
    (void)close(worker->epoll_fd);
    return rc;
}

static void stop_workers(struct heft_worker_pool *pool, uint32_t count)
{
    uint32_t index;

    __atomic_store_n(&pool->stop, 1, __ATOMIC_RELEASE);
    for (index = 0; index < count; index++)
        wake(&pool->workers[index]);
    for (index = 0; index < count; index++) {
        struct heft_worker *worker = &pool->workers[index];

        if (pool->driven)
            (void)close(worker->timer_fd);
        else
            (void)pthread_join(worker->thread, NULL);
        HEFT_ASSERT(worker->own.count == 0);
        (void)pthread_mutex_destroy(&worker->drive_lock);
        (void)close(worker->wake_fd);
        (void)close(worker->epoll_fd);
        (void)pthread_mutex_destroy(&worker->own.lock);
    }
}

static int create(uint32_t workers, int driven, struct heft_worker_pool **pool_out, struct heft_error *error)
{
    struct heft_worker_pool *pool;
    uint32_t index;
    int rc;

    if (workers == 0 || workers > MAX_WORKERS)
        return heft_error_set(error, HEFT_ERR_INVALID, "a pool has 1 to %d workers, not %u", MAX_WORKERS,
                              workers);
    pool = calloc(1, sizeof(*pool) + workers * sizeof(pool->workers[0]));
    if (!pool)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making a pool of %u workers", workers);
    queue_init(&pool->shared);
    pool->count = workers;
    pool->driven = driven;
    for (index = 0; index < workers; index++) {
        rc = worker_start(pool, index, error);
        if (rc) {
            stop_workers(pool, index);
            (void)pthread_mutex_destroy(&pool->shared.lock);
            free(pool);
            return rc;
        }
    }
    *pool_out = pool;
    return HEFT_OK;
}

int heft_pool_create(uint32_t workers, struct heft_worker_pool **pool_out, struct heft_error *error)
{
    return create(workers, 0, pool_out, error);
}

int heft_pool_create_driven(uint32_t workers, struct heft_worker_pool **pool_out, struct heft_error *error)
{
    return create(workers, 1, pool_out, error);
}

void heft_pool_destroy(struct heft_worker_pool *pool)
{
    if (!pool)
        return;
    HEFT_ASSERT(!self_worker || self_worker->pool != pool);
    stop_workers(pool, pool->count);
    HEFT_ASSERT(pool->shared.count == 0);
    (void)pthread_mutex_destroy(&pool->shared.lock);
    free(pool);
}
