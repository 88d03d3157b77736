/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/store.h"
#include "base/error.h"
#include "base/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t heft_store_epoch(uint64_t starts)
{
    uint32_t chance;

    heft_random_bytes(&chance, sizeof(chance));
    return (starts & UINT32_MAX) << 32 | (chance | 1); /* never 0 */
}

int heft_store_open(const char *spec, struct heft_store **store_out, struct heft_error *error)
{
    if (strcmp(spec, "memory:") == 0)
        return heft_store_open_memory(store_out, error);
    if (strncmp(spec, "sqlite:", 7) == 0 && spec[7])
        return heft_store_open_sqlite(spec + 7, store_out, error);
    return heft_error_set(error, HEFT_ERR_INVALID, "store '%.200s': expected sqlite:PATH or memory:", spec);
}

void heft_store_close(struct heft_store *store)
{
    if (store)
        store->ops->close(store);
}

static int put(void *context, const struct heft_stored_record *record, struct heft_error *error)
{
    struct heft_store *store = context;

    return store->ops->put(store, record, error);
}

static int touch(void *context, const char *name, const struct heft_generation *generation, uint64_t lease_ms,
                 uint64_t end_wall_ms, struct heft_error *error)
{
    struct heft_store *store = context;

    return store->ops->touch(store, name, generation, lease_ms, end_wall_ms, error);
}

static int remove_record(void *context, const char *name, struct heft_error *error)
{
    struct heft_store *store = context;

    return store->ops->remove(store, name, error);
}

struct heft_directory_persistence heft_store_persistence(struct heft_store *store)
{
    return (struct heft_directory_persistence){put, touch, remove_record, store, store->name};
}

int heft_store_default(char *spec_out, size_t size_bytes, struct heft_error *error)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int used;

    if (state && state[0] == '/')
        used = snprintf(spec_out, size_bytes, "sqlite:%s/heft/directory.db", state);
    else if (geteuid() == 0)
        used = snprintf(spec_out, size_bytes, "sqlite:/var/lib/heft/directory.db");
    else if (home && home[0] == '/')
        used = snprintf(spec_out, size_bytes, "sqlite:%s/.local/state/heft/directory.db", home);
    else
        return heft_error_set(
            error, HEFT_ERR_INVALID,
            "neither XDG_STATE_HOME nor HOME says where to keep records: give --store sqlite:PATH");
    if (used < 0 || (size_t)used >= size_bytes)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE,
                              "the default store's path is too long: give --store");
    return 0;
}
