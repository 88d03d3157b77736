/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations of a transport that cuts each into parts and has many parts of many operations under way at
 * once (reads of files, ranges of objects), from post to done.
 *
 * One lock guards the queue, the free list and every task's counts; it is held for arithmetic only, never
 * while done is called. A task is over when it is cut to its end (or given up) and none of its parts is left:
 * at that moment nobody touches its memory, whether it succeeded, failed or was canceled.
 *
 * Differs from heft_opqueue, whose movers are few and take one operation after the other.
 */
#ifndef HEFT_TRANSPORT_TASKS_H
#define HEFT_TRANSPORT_TASKS_H

#include "transport/worker.h"
#include <heft/transport.h>

#include <pthread.h>

struct heft_task_owner;

/* The first member of the transport's own task. */
struct heft_task {
    struct heft_transport_op *op;
    struct heft_task_owner *owner;
    struct heft_task *prev, *next; /* of the owner; next also links the free list */
    struct heft_task *queue_next;  /* tasks with something left to cut */
    int cut;                       /* nothing is left to cut: all taken, or given up */
    uint32_t outstanding;          /* parts that exist */
    uint64_t wanted_bytes, landed_bytes;
    int status; /* first failure; atomic, written under the lock */
    int64_t failed_move;
    struct heft_error error;
};

/* A transport's. */
struct heft_tasks {
    pthread_mutex_t lock;
    pthread_cond_t quiet; /* a task ended, or what else the transport tells by it */
    struct heft_task *queue, **queue_last;
    struct heft_task *free;
    void (*trim)(struct heft_task *task); /* before it goes to the free list: lets go of much memory */
};

/* An endpoint's. */
struct heft_task_owner {
    struct heft_tasks *tasks;
    struct heft_task *first;
    uint32_t active; /* tasks whose done has not returned */
    int failed;      /* status for new operations; 0 */
};

void heft_tasks_init(struct heft_tasks *tasks, void (*trim)(struct heft_task *task));
void heft_tasks_destroy(struct heft_tasks *tasks);
/* A task that was used before, or NULL. Takes the lock. */
struct heft_task *heft_tasks_reuse(struct heft_tasks *tasks);
/* Everything but op's work as at its beginning: call it before the transport's own part is prepared. */
void heft_task_reset(struct heft_task *task, struct heft_transport_op *op, struct heft_task_owner *owner);
/*
 * Puts the task among the owner's and into the queue; with nothing to cut its done is called at once. When
 * `rc` is not 0, or the owner has ended, the task is kept for later, and that status returned. Takes the
 * lock.
 */
int heft_task_begin(struct heft_task *task, int rc, struct heft_error *error);

/* Under the lock: */
void heft_task_leave_queue(struct heft_task *task);
/* The first failure stays, and nothing more is cut. */
void heft_task_give_up(struct heft_task *task, int status, const struct heft_error *error);
/* Gives the lock up: calls done when nothing of the task is left. */
void heft_task_unlock_and_report(struct heft_task *task);

/* Taking the lock: */
/* 0: the operation is over already. Parts under way are the transport's to end. */
int heft_task_cancel(struct heft_task_owner *owner, const struct heft_transport_op *op);
/* Gives up all tasks of the owner, and ends those without a part. */
void heft_task_owner_fail(struct heft_task_owner *owner, int status, const struct heft_error *error);
/* Until done has returned for everything. Not on a worker. */
void heft_task_owner_wait(struct heft_task_owner *owner, struct heft_worker_pool *pool);

#endif
