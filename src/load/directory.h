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
#include <pthread.h>

#define HEFT_RECORD_MAX_ADDRESSES_BYTES 4096u
#define HEFT_RECORD_MAX_TEXT_BYTES 1024u /* of one identity field */
#define HEFT_RECORD_MAX_BLOCKS (UINT64_C(1) << 32)
#define HEFT_RECORD_MAX_METADATA_BYTES ((size_t)2 << 20)

/*
 * A record is a replica's, or an agent's: its metadata, for programs that move bytes without models. The
 * names of agents have this prefix in a directory, so the two never meet; a record has metadata if and only
 * if its name begins so.
 */
#define HEFT_RECORD_AGENTS "agents/"
int heft_record_name_is_agent(const char *name);
/*
 * The record of a load of a fleet is a replica's whose blocks come one by one (load/fleet.h): its name has
 * this prefix, and the agent's name behind it. Only loads of its fleet take from it.
 */
#define HEFT_RECORD_LOADS "loads/"
int heft_record_name_is_load(const char *name);

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
    uint64_t whole_bytes; /* of the same tensors, held whole: more when only boxes are held; 0: not known */
    char *part;           /* which part that is, for people: "rank 1/4"; NULL or "": all of it */
    uint64_t block_count;
    uint64_t held_blocks; /* block_count: complete */
    uint8_t *held;        /* bitmap of held blocks, lowest bit first; NULL when complete */
    uint8_t *metadata;    /* of an agent (wire/metadata.h); NULL: of a replica */
    size_t metadata_bytes;
    uint64_t lease_ms;
    uint64_t lease_left_ms;     /* filled by the directory in answers */
    uint64_t published_wall_ms; /* likewise */
    uint64_t epoch;             /* of the directory that answered */
};

struct heft_record_list {
    struct heft_record *records;
    size_t count;
    uint64_t epoch;
    uint64_t revision; /* of the directory when the list was begun: what changed() goes on from */
};

/* NULL fields match everything. Expired leases are never listed unless all is set. */
struct heft_record_query {
    const char *model;
    const char *revision;
    const char *stage;
    const char *name;
    int all;
    int agents; /* records of agents; else of replicas */
};

/* Where a reader of changes stands, and what the directory keeps for it between calls. */
struct heft_directory_cursor {
    uint64_t epoch, revision; /* those of the list that it began with, then of the last answer */
    void *stream;             /* the directory's own; NULL at first */
};

struct heft_directory_changes {
    struct heft_record_list records; /* new, or changed; each as it is now */
    char **gone;                     /* names that are no longer there, as in records */
    size_t gone_count;
    int must_list; /* the directory does not know what changed since then: list anew */
};
void heft_directory_changes_free(struct heft_directory_changes *changes);
/* Appends a name to `gone`. NO_MEMORY. */
int heft_directory_changes_gone(struct heft_directory_changes *changes, const char *name);

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
    /* Waits up to wait_ms for records of agents that changed after the cursor; returns what there is, perhaps
     * nothing. NULL: this directory must be listed again and again. Errors leave the cursor usable. */
    int (*changed)(struct heft_directory *directory, struct heft_directory_cursor *cursor, uint32_t wait_ms,
                   struct heft_directory_changes *changes_out, struct heft_error *error);
    void (*end_changes)(struct heft_directory *directory, struct heft_directory_cursor *cursor);
    /* Ends the calls that this thread has under way: they return CANCELED. NULL: none lasts. */
    void (*interrupt)(struct heft_directory *directory, pthread_t thread);
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
/* The metadata in an agent's record; PROTOCOL when it is not of the record's name and generation. */
struct heft_metadata;
int heft_metadata_of_record(const struct heft_record *record, struct heft_metadata **metadata_out,
                            struct heft_error *error);
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
