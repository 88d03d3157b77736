/* SPDX-License-Identifier: Apache-2.0 */
/* The store that keeps nothing: the directory's own memory is all there is, and after a restart clients
 * publish again. */
#include "base/error.h"
#include "daemon/store/store.h"

#include <stdio.h>
#include <stdlib.h>

static int put(struct heft_store *store, const struct heft_stored_record *record, struct heft_error *error)
{
    (void)store;
    (void)record;
    (void)error;
    return 0;
}

static int touch(struct heft_store *store, const char *name, const struct heft_generation *generation,
                 uint64_t lease_ms, uint64_t end_wall_ms, struct heft_error *error)
{
    (void)store;
    (void)name;
    (void)generation;
    (void)lease_ms;
    (void)end_wall_ms;
    (void)error;
    return 0;
}

static int remove_record(struct heft_store *store, const char *name, struct heft_error *error)
{
    (void)store;
    (void)name;
    (void)error;
    return 0;
}

static int each(struct heft_store *store, heft_store_visit_fn visit, void *context, struct heft_error *error)
{
    (void)store;
    (void)visit;
    (void)context;
    (void)error;
    return 0;
}

static void close_store(struct heft_store *store)
{
    free(store);
}

static const struct heft_store_ops memory_store_ops = {put, touch, remove_record, each, close_store};

int heft_store_open_memory(struct heft_store **store_out, struct heft_error *error)
{
    struct heft_store *store = calloc(1, sizeof(*store));

    if (!store)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "store: out of memory");
    store->ops = &memory_store_ops;
    store->epoch = heft_store_epoch(0);
    (void)snprintf(store->name, sizeof(store->name), "memory:");
    *store_out = store;
    return 0;
}
