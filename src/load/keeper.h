/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps one record in a directory: published, its lease renewed every third of it by a thread of our own,
 * published again when the directory forgot it or the record changed, withdrawn at the end. For replicas and
 * for agents' metadata.
 */
#ifndef HEFT_LOAD_KEEPER_H
#define HEFT_LOAD_KEEPER_H

#include "load/directory.h"

#define HEFT_KEEPER_LEASE_MS 10000u /* default */
#define HEFT_KEEPER_LEASE_MIN_MS 100u

struct heft_keeper_options {
    struct heft_directory *directory;
    struct heft_record *record; /* the owner's, until stop; its lease_ms and generation count */
    const char *what;           /* "replica", for sentences */
    /* Called before each publication, by one thread at a time: makes the record anew. NULL: it stays. */
    int (*refresh)(void *context, struct heft_record *record, struct heft_error *error);
    void *context;
};

struct heft_keeper_status {
    int published;
    uint64_t publications, renewals, republished, lease_left_ms;
    struct heft_error last_error;
};

struct heft_keeper {
    struct heft_keeper_options options;
    pthread_t thread;
    int thread_started;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* both ways */
    int phase, stop, is_dirty, was_interrupted, leaves_record;
    uint64_t epoch, lease_end_ns;
    struct heft_keeper_status status;
};

/*
 * Publishes and starts the thread. A directory that can't be reached now is no error: it is tried again.
 * After an error there is nothing to stop.
 */
int heft_keeper_start(struct heft_keeper *keeper, const struct heft_keeper_options *options,
                      struct heft_error *error);
/* The record is no longer what was published. Only signals: any lock may be held. */
void heft_keeper_touch(struct heft_keeper *keeper);
/* Withdraws, and waits for a directory that does not answer a second at most; then the lease ends by itself.
 */
void heft_keeper_stop(struct heft_keeper *keeper);
/* The same, but the record is published once more and left to its lease: for those who are to read in it. */
void heft_keeper_leave(struct heft_keeper *keeper);
void heft_keeper_get_status(struct heft_keeper *keeper, struct heft_keeper_status *status_out);

#endif
