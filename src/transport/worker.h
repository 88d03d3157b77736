/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/: how bytes move. This folder's root holds what all in-tree transports share; each sub-folder is
 * one transport with the table of heft/transport.h. Nothing here knows models.
 *
 * The worker pool: a few threads, each an epoll loop with a queue of jobs. Copies run as jobs (any idle
 * worker takes the next), sockets and rings are watched by one worker each, so that their state needs no
 * lock. A pool may also have no threads at all and be driven by its callers.
 */
#ifndef HEFT_TRANSPORT_WORKER_H
#define HEFT_TRANSPORT_WORKER_H

#include <heft/error.h>
#include <pthread.h>

struct heft_worker_pool;
struct heft_worker;

int heft_pool_create(uint32_t workers, struct heft_worker_pool **pool_out, struct heft_error *error);
/*
 * The same without threads: its workers run inside heft_pool_progress and heft_pool_wait, on whatever thread
 * calls these, one thread a worker at a time. Everything else is as with threads.
 */
int heft_pool_create_driven(uint32_t workers, struct heft_worker_pool **pool_out, struct heft_error *error);
int heft_pool_is_driven(const struct heft_worker_pool *pool);
/* Runs what there is to do for workers that no thread is running, this one included; how much it was. */
unsigned heft_pool_progress(struct heft_worker_pool *pool);
/* The epoll descriptor polls readable while a worker of the pool has something to do, or a timer is due. */
int heft_pool_add_to_epoll(struct heft_worker_pool *pool, int epoll_fd, struct heft_error *error);
/* Makes that descriptor readable once: whoever sleeps on it looks up. */
void heft_pool_nudge(struct heft_worker_pool *pool);
/* pthread_cond_wait, for who waits for what workers of this pool do; runs them meanwhile if nobody else does.
 * It may return early. */
void heft_pool_wait(struct heft_worker_pool *pool, pthread_cond_t *cond, pthread_mutex_t *lock);
/* Every watch must be removed and every queue drained before; joins the threads. */
void heft_pool_destroy(struct heft_worker_pool *pool);
uint32_t heft_pool_workers(const struct heft_worker_pool *pool);
struct heft_worker_pool *heft_worker_pool(struct heft_worker *worker);
struct heft_worker *heft_pool_worker(struct heft_worker_pool *pool, uint32_t index);

/* A job lives in its owner's memory; run is called once on a worker; the job may be queued again from inside
 * run. */
struct heft_job {
    void (*run)(struct heft_job *job, struct heft_worker *worker);
    struct heft_job *next;
};
/* Any worker takes it, in order of submission. Never fails, never blocks. */
void heft_pool_submit(struct heft_worker_pool *pool, struct heft_job *job);
/* Whether jobs wait that any worker may take; a hint. */
int heft_pool_has_jobs(const struct heft_worker_pool *pool);
/* That worker runs it: for state that the worker alone touches. */
void heft_worker_submit(struct heft_worker *worker, struct heft_job *job);
/* The worker whose thread this is, or NULL. */
struct heft_worker *heft_worker_self(void);

/* A watched descriptor; lives in its owner's memory; all calls on the owning worker's thread. */
struct heft_watch {
    int fd;
    void (*ready)(struct heft_watch *watch, uint32_t epoll_events);
    struct heft_worker *worker;
};
int heft_watch_add(struct heft_worker *worker, struct heft_watch *watch, uint32_t epoll_events,
                   struct heft_error *error);
int heft_watch_modify(struct heft_watch *watch, uint32_t epoll_events);
/* No ready call comes after it returns, not even one already collected. Does not close the descriptor. */
void heft_watch_remove(struct heft_watch *watch);

/* A one-shot timer of a worker; calls on its thread. Setting again moves it; at_ns 0 stops it. */
struct heft_timer {
    uint64_t at_ns; /* heft_now_ns clock; 0: off */
    void (*fire)(struct heft_timer *timer);
    struct heft_worker *worker;
    struct heft_timer *prev, *next; /* the worker's list */
};
void heft_timer_set(struct heft_worker *worker, struct heft_timer *timer, uint64_t at_ns);

#endif
