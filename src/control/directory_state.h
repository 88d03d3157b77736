/* SPDX-License-Identifier: Apache-2.0 */
/* The directory service from inside: its state (directory_service.c) and its methods (directory_calls.c). */
#ifndef HEFT_CONTROL_DIRECTORY_STATE_H
#define HEFT_CONTROL_DIRECTORY_STATE_H

#include "control/directory_service.h"

#include <pthread.h>

struct heft_directory_service {
    struct heft_grpc_server *server; /* the methods are on it; NULL: none yet */
    pthread_mutex_t lock;            /* guards all below */
    struct heft_lease_table *table;
    struct heft_clock clock;
    uint64_t begin_ns;
    uint64_t epoch;
    uint64_t lists;
    struct heft_directory_persistence persistence;
    uint64_t store_errors;
    char store_error[256];
};

/* All with the lock held. */
void heft_directory_note_store(struct heft_directory_service *service, int result,
                               const struct heft_error *error);
void heft_directory_store_put(struct heft_directory_service *service, const struct heft_lease *lease);
void heft_directory_store_remove(struct heft_directory_service *service, const char *name);
/* A heft_lease_reaped_fn; context is the service. */
void heft_directory_reaped(void *context, const struct heft_lease *lease);

#endif
