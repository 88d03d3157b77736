/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores: where heftd keeps records over a restart. One file a kind, one table of functions each. A store
 * knows names, ends and bytes; what a record means is the directory's matter.
 *
 * The epoch of a run: the store's own count of starts in the upper half, chance in the lower. A store that is
 * empty after a loss gives another epoch than the one clients know, and so does every restart.
 */
#ifndef HEFT_DAEMON_STORE_STORE_H
#define HEFT_DAEMON_STORE_STORE_H

#include "control/directory_service.h"

struct heft_store;

/* Called for each stored record; a non-zero answer ends the walk and is returned. */
typedef int (*heft_store_visit_fn)(void *context, const struct heft_stored_record *record,
                                   struct heft_error *error);

struct heft_store_ops {
    int (*put)(struct heft_store *store, const struct heft_stored_record *record, struct heft_error *error);
    int (*touch)(struct heft_store *store, const char *name, const struct heft_generation *generation,
                 uint64_t lease_ms, uint64_t end_wall_ms, struct heft_error *error);
    int (*remove)(struct heft_store *store, const char *name, struct heft_error *error);
    int (*each)(struct heft_store *store, heft_store_visit_fn visit, void *context, struct heft_error *error);
    void (*close)(struct heft_store *store);
};

/* Implementations embed this first. Calls come one at a time. */
struct heft_store {
    const struct heft_store_ops *ops;
    uint64_t epoch;
    char name[300]; /* "sqlite:/var/lib/heft/directory.db" */
};

/* "memory:" or "sqlite:PATH" (folders are made). INVALID: another scheme. */
int heft_store_open(const char *spec, struct heft_store **store_out, struct heft_error *error);
void heft_store_close(struct heft_store *store);
/* The hooks that let a directory service write to the store. */
struct heft_directory_persistence heft_store_persistence(struct heft_store *store);
/* $XDG_STATE_HOME/heft, /var/lib/heft for root, ~/.local/state/heft: "sqlite:FOLDER/directory.db". */
int heft_store_default(char *spec_out, size_t size_bytes, struct heft_error *error);

uint64_t heft_store_epoch(uint64_t starts);
int heft_store_open_memory(struct heft_store **store_out, struct heft_error *error);
int heft_store_open_sqlite(const char *path, struct heft_store **store_out, struct heft_error *error);

#endif
