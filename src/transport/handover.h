/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mutex that its busiest user hands over when someone else wants it: mutexes are not fair, and a worker
 * that unlocks and locks in a loop would starve whoever wants to cancel.
 */
#ifndef HEFT_TRANSPORT_HANDOVER_H
#define HEFT_TRANSPORT_HANDOVER_H

#include <pthread.h>
#include <stdint.h>

struct heft_handover {
    pthread_mutex_t mutex;
    uint32_t wanted; /* atomic */
};
void heft_handover_init(struct heft_handover *lock);
void heft_handover_free(struct heft_handover *lock);
/* By the worker that holds it most of the time. */
void heft_handover_worker(struct heft_handover *lock);
void heft_handover_other(struct heft_handover *lock);
void heft_handover_unlock(struct heft_handover *lock);

#endif
