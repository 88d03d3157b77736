/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory as loading sees it: records of replicas, and a table of calls. Implementations live in
 * src/control/ (heftd over gRPC) and here (static file).
 */
#ifndef HEFT_LOAD_DIRECTORY_H
#define HEFT_LOAD_DIRECTORY_H

#include "format/manifest.h"
#include <heft/agent.h>
#include <heft/replica.h>

#define HEFT_RECORD_MAX_ADDRESSES_BYTES 4096u
#define HEFT_RECORD_MAX_TEXT_BYTES 1024u /* of one identity field */
#define HEFT_RECORD_MAX_BLOCKS (UINT64_C(1) << 32)

/* What a replica publishes. Strings are owned by the record. */
struct heft_record {
    char *name;
    struct heft_generation generation;
    struct heft_token token; /* all zero in lists given to callers who may not read it */
    char *addresses;
    struct heft_identity identity; /* owned copy, arrays and strings in identity_arena */
    void *identity_arena;
    uint64_t table_digest;   /* heft_manifest.table_digest */
    uint64_t content_digest; /* 0: not known */
    uint64_t tensor_count;
    uint64_t total_bytes;
    uint64_t block_count;
    uint64_t held_blocks; /* block_count: complete */
    uint8_t *held;        /* bitmap of held blocks, lowest bit first; NULL when complete */
    uint64_t lease_ms;
    uint64_t lease_left_ms;     /* filled by the directory in answers */
    uint64_t published_wall_ms; /* likewise */
    uint64_t epoch;             /* of the directory that answered */
};

struct heft_record_list {
    struct heft_record *records;
    size_t count;
    uint64_t epoch;
};

/* NULL fields match everything. Expired leases are never listed unless all is set. */
struct heft_record_query {
    const char *model;
    const char *revision;
    const char *stage;
    const char *name;
    int all;
};

struct heft_directory_ops {
    /* Publishes or replaces the record of this name, with a lease. A new generation takes the name over at
     * once (a restarted process must not wait for its own old lease); the old generation's renewals are then
     * STALE. */
    int (*publish)(struct heft_directory *directory, const struct heft_record *record, uint64_t *epoch_out,
                   struct heft_error *error);
    /* NOT_FOUND: the directory forgot it (expired, or restarted empty): publish again. STALE: a newer
     * generation took the name. */
    int (*renew)(struct heft_directory *directory, const char *name, const struct heft_generation *generation,
                 uint64_t lease_ms, uint64_t *epoch_out, struct heft_error *error);
    int (*withdraw)(struct heft_directory *directory, const char *name,
                    const struct heft_generation *generation, struct heft_error *error);
    int (*list)(struct heft_directory *directory, const struct heft_record_query *query,
                struct heft_record_list *list_out, struct heft_error *error);
    void (*close)(struct heft_directory *directory);
};

/* Implementations embed this first. */
struct heft_directory {
    const struct heft_directory_ops *ops;
    char address[512];
};

/* The name of a replica that was given none: "host-pid-random". */
void heft_replica_default_name(char *name_out, size_t size_bytes);

void heft_record_free(struct heft_record *record);
void heft_record_list_free(struct heft_record_list *list);
int heft_record_set_identity(struct heft_record *record, const struct heft_identity *identity);

/* Text that may go into logs, pages and file names: UTF-8 without control characters, at most max_bytes. */
int heft_text_is_clean(const char *text, size_t max_bytes);
/* The bitmap's length, its set bits and the counts must agree; no bitmap means that all blocks are held. */
int heft_record_check_held(const char *name, uint64_t block_count, uint64_t held_blocks, const uint8_t *held,
                           size_t held_bytes, struct heft_error *error);

/* src/load/static_directory.c: one JSON file, replaced atomically at each change under a lock file that only
 * saves work. */
int heft_static_directory_open(const char *path, struct heft_directory **directory_out,
                               struct heft_error *error);

/* libheft-control registers itself as the opener of "HOST:PORT"; without it that address is UNSUPPORTED. */
typedef int (*heft_directory_opener)(const struct heft_directory_options *options,
                                     struct heft_directory **directory_out, struct heft_error *error);
void heft_directory_set_grpc_opener(heft_directory_opener opener) __attribute__((visibility("default")));

#endif
