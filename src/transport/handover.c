/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/handover.h"

#include <sched.h>

#define YIELDS_MAX 1000

void heft_handover_init(struct heft_handover *lock)
{
    pthread_mutex_init(&lock->mutex, NULL);
    lock->wanted = 0;
}

void heft_handover_free(struct heft_handover *lock)
{
    pthread_mutex_destroy(&lock->mutex);
}

void heft_handover_other(struct heft_handover *lock)
{
    (void)__atomic_add_fetch(&lock->wanted, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&lock->mutex);
    (void)__atomic_sub_fetch(&lock->wanted, 1, __ATOMIC_SEQ_CST);
}

void heft_handover_worker(struct heft_handover *lock)
{
    for (int i = 0; i < YIELDS_MAX && __atomic_load_n(&lock->wanted, __ATOMIC_SEQ_CST) > 0; i++)
        (void)sched_yield();
    pthread_mutex_lock(&lock->mutex);
}

void heft_handover_unlock(struct heft_handover *lock)
{
    pthread_mutex_unlock(&lock->mutex);
}
