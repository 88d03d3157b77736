/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tasks.h"
#include "base/error.h"

#include <inttypes.h>
#include <stdlib.h>

void heft_tasks_init(struct heft_tasks *tasks, void (*trim)(struct heft_task *task))
{
    tasks->queue = tasks->free = NULL;
    tasks->queue_last = &tasks->queue;
    tasks->trim = trim;
    (void)pthread_mutex_init(&tasks->lock, NULL);
    (void)pthread_cond_init(&tasks->quiet, NULL);
}

void heft_tasks_destroy(struct heft_tasks *tasks)
{
    (void)pthread_cond_destroy(&tasks->quiet);
    (void)pthread_mutex_destroy(&tasks->lock);
}

struct heft_task *heft_tasks_reuse(struct heft_tasks *tasks)
{
    struct heft_task *task;

    (void)pthread_mutex_lock(&tasks->lock);
    task = tasks->free;
    if (task)
        tasks->free = task->next;
    (void)pthread_mutex_unlock(&tasks->lock);
    return task;
}

static void recycle(struct heft_tasks *tasks, struct heft_task *task)
{
    tasks->trim(task);
    task->next = tasks->free;
    tasks->free = task;
}

void heft_task_reset(struct heft_task *task, struct heft_transport_op *op, struct heft_task_owner *owner)
{
    *task = (struct heft_task){.op = op, .owner = owner, .wanted_bytes = op->total_bytes, .failed_move = -1};
    __atomic_store_n(&op->done_bytes, 0, __ATOMIC_RELAXED);
    op->failed_move = -1;
}

int heft_task_begin(struct heft_task *task, int rc, struct heft_error *error)
{
    struct heft_task_owner *owner = task->owner;
    struct heft_tasks *tasks = owner->tasks;

    (void)pthread_mutex_lock(&tasks->lock);
    if (!rc && owner->failed)
        rc = heft_error_set(error, owner->failed, "the endpoint was ended");
    if (rc) {
        recycle(tasks, task);
        (void)pthread_mutex_unlock(&tasks->lock);
        return rc;
    }
    task->next = owner->first;
    if (task->next)
        task->next->prev = task;
    owner->first = task;
    owner->active++;
    if (!task->cut) {
        *tasks->queue_last = task;
        tasks->queue_last = &task->queue_next;
    }
    heft_task_unlock_and_report(task);
    return HEFT_OK;
}

void heft_task_leave_queue(struct heft_task *task)
{
    struct heft_tasks *tasks = task->owner->tasks;
    struct heft_task **at = &tasks->queue;

    while (*at && *at != task)
        at = &(*at)->queue_next;
    if (!*at)
        return;
    *at = task->queue_next;
    if (!*at)
        tasks->queue_last = at;
}

void heft_task_give_up(struct heft_task *task, int status, const struct heft_error *error)
{
    if (task->status == 0) {
        if (error && error->code)
            task->error = *error;
        else
            (void)heft_error_set(&task->error, status, "%s", heft_error_text(status));
        __atomic_store_n(&task->status, status, __ATOMIC_RELAXED);
    }
    if (!task->cut) {
        task->cut = 1;
        heft_task_leave_queue(task);
    }
}

void heft_task_unlock_and_report(struct heft_task *task)
{
    struct heft_task_owner *owner = task->owner;
    struct heft_tasks *tasks = owner->tasks;
    struct heft_transport_op *op = task->op;
    struct heft_error error = HEFT_ERROR_INIT;
    int status;

    if (!task->cut || task->outstanding > 0) {
        (void)pthread_mutex_unlock(&tasks->lock);
        return;
    }
    if (task->prev)
        task->prev->next = task->next;
    else
        owner->first = task->next;
    if (task->next)
        task->next->prev = task->prev;
    status = task->status;
    if (status == 0 && task->landed_bytes != task->wanted_bytes)
        status = heft_error_set(&task->error, HEFT_ERR_INTERNAL,
                                "%" PRIu64 " of %" PRIu64 " bytes arrived, and nothing failed",
                                task->landed_bytes, task->wanted_bytes);
    if (status) {
        error = task->error;
        op->failed_move = task->failed_move;
    }
    recycle(tasks, task);
    (void)pthread_mutex_unlock(&tasks->lock);
    op->done(op, status, status ? &error : NULL);
    (void)pthread_mutex_lock(&tasks->lock);
    owner->active--;
    (void)pthread_cond_broadcast(&tasks->quiet);
    (void)pthread_mutex_unlock(&tasks->lock);
}

int heft_task_cancel(struct heft_task_owner *owner, const struct heft_transport_op *op)
{
    struct heft_task *task;

    (void)pthread_mutex_lock(&owner->tasks->lock);
    for (task = owner->first; task && task->op != op; task = task->next)
        ;
    if (!task) {
        (void)pthread_mutex_unlock(&owner->tasks->lock);
        return 0;
    }
    heft_task_give_up(task, HEFT_ERR_CANCELED, NULL);
    heft_task_unlock_and_report(task);
    return 1;
}

void heft_task_owner_fail(struct heft_task_owner *owner, int status, const struct heft_error *error)
{
    struct heft_task *task;

    (void)pthread_mutex_lock(&owner->tasks->lock);
    owner->failed = status;
    for (task = owner->first; task; task = task->next)
        heft_task_give_up(task, status, error);
    /* Those without a part are over now; reporting gives the lock up, so look again from the start. */
    for (task = owner->first; task;) {
        if (task->outstanding > 0) {
            task = task->next;
            continue;
        }
        heft_task_unlock_and_report(task);
        (void)pthread_mutex_lock(&owner->tasks->lock);
        task = owner->first;
    }
    (void)pthread_mutex_unlock(&owner->tasks->lock);
}

void heft_task_owner_wait(struct heft_task_owner *owner, struct heft_worker_pool *pool)
{
    (void)pthread_mutex_lock(&owner->tasks->lock);
    while (owner->active > 0)
        heft_pool_wait(pool, &owner->tasks->quiet, &owner->tasks->lock);
    (void)pthread_mutex_unlock(&owner->tasks->lock);
}
