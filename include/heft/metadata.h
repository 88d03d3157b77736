/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata: what one agent must know of another to connect to it and to name its regions. It travels in three
 * ways, all with the same content:
 *
 *  - as bytes that the caller carries (heft_agent_export_metadata, heft_metadata_read);
 *  - over the agents' own connection (heft_peer_connect, which proves the token, then
 * heft_peer_get_metadata);
 *  - through a directory, heftd, etcd or a file, under a lease (heft_agent_publish, heft_metadata_find, and
 *    heft_watch_*, which tells who joins, changes and is lost).
 *
 * Only what changed need travel: every change of an agent's regions raises its epoch, and an export since an
 * epoch holds the regions that came and the ids that went after it.
 */
#ifndef HEFT_METADATA_H
#define HEFT_METADATA_H

#include <heft/agent.h>
#include <heft/replica.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct heft_metadata;
struct heft_publication;
struct heft_watch;

/* ---- as bytes ---- */

enum heft_metadata_flags {
    HEFT_METADATA_NO_TOKEN = 1 /* the reader gets the token in another way */
};

struct heft_metadata_options {
    size_t size;
    uint64_t since_epoch; /* only what changed after it; 0: all. An epoch too long ago gives all as well */
    struct heft_region *const *regions; /* only these; NULL: all that peers may use */
    size_t region_count;
    const char *addresses; /* kinds of addresses to tell: "unix", "tcp", "none"; NULL: all */
    uint32_t flags;        /* enum heft_metadata_flags */
};
#define HEFT_METADATA_OPTIONS_INIT                          \
    {                                                       \
        sizeof(struct heft_metadata_options), 0, 0, 0, 0, 0 \
    }

/*
 * The agent's metadata as bytes, freed with heft_free: versioned, little-endian, checksummed, at most 64 MiB.
 * They hold the agent's token unless HEFT_METADATA_NO_TOKEN is set: keep them as secret as that. options
 * NULL: everything. Any thread. Errors: INVALID (a region that peers may not use, an unknown kind of
 * address).
 */
int heft_agent_export_metadata(struct heft_agent *agent, const struct heft_metadata_options *options,
                               void **data_out, uint64_t *size_bytes_out, struct heft_error *error);
/* Raised by each region that comes or goes. Any thread. */
uint64_t heft_agent_metadata_epoch(const struct heft_agent *agent);

/*
 * Reads metadata that holds everything (or everything of a chosen part). Errors: TRUNCATED, DIGEST, PROTOCOL,
 * TOO_LARGE; INCOMPATIBLE, with both versions; STATE (these bytes only say what changed: they are for
 * heft_metadata_update). One thread at a time may use an object of this type.
 */
int heft_metadata_read(const void *data, uint64_t size_bytes, struct heft_metadata **metadata_out,
                       struct heft_error *error);
/*
 * Brings it up to date with newer bytes of the same agent: all, or what changed. After an error it is as
 * before. Errors: as heft_metadata_read; STALE (of another agent or generation, both named; or older than
 * what is held: a replay); NOT_READY (a gap: export again since heft_metadata_epoch).
 */
int heft_metadata_update(struct heft_metadata *metadata, const void *data, uint64_t size_bytes,
                         struct heft_error *error);
/* NULL is allowed. */
void heft_metadata_free(struct heft_metadata *metadata);

const char *heft_metadata_name(const struct heft_metadata *metadata);
struct heft_generation heft_metadata_generation(const struct heft_metadata *metadata);
const char *heft_metadata_addresses(const struct heft_metadata *metadata);
uint64_t heft_metadata_epoch(const struct heft_metadata *metadata);

struct heft_metadata_region {
    size_t size; /* sizeof(struct heft_metadata_region), set before the call */
    uint64_t id;
    enum heft_space space;
    uint32_t flags; /* enum heft_region_flags */
    uint64_t length_bytes;
};
uint64_t heft_metadata_region_count(const struct heft_metadata *metadata);
/* In ascending order of ids; index < count (RANGE else). */
int heft_metadata_get_region(const struct heft_metadata *metadata, uint64_t index,
                             struct heft_metadata_region *region_out);
/* NOT_FOUND: it went, or never was among these. */
int heft_metadata_find_region(const struct heft_metadata *metadata, uint64_t id,
                              struct heft_metadata_region *region_out);

/* ---- over the connection ---- */

/*
 * Connects to the agent that the metadata describes: addresses, name, generation and token are its own; the
 * rest of the options (NULL: defaults) is the caller's, also the token when the metadata has none. Errors: as
 * heft_peer_connect, so STALE when another generation lives there by now.
 */
int heft_metadata_connect(struct heft_agent *agent, const struct heft_metadata *metadata,
                          const struct heft_peer_options *options, struct heft_peer **peer_out,
                          struct heft_error *error);
/* What a connected peer offers at this moment, as it has told this agent. Without addresses and token. */
int heft_peer_get_metadata(struct heft_peer *peer, struct heft_metadata **metadata_out,
                           struct heft_error *error);

/* ---- through a directory ---- */

struct heft_publication_options {
    size_t size;
    struct heft_directory *directory;      /* must outlive the publication */
    uint32_t lease_ms;                     /* 0: 10000; renewed by the library every third */
    struct heft_metadata_options metadata; /* since_epoch must be 0; the regions are kept as they are now */
};
#define HEFT_PUBLICATION_OPTIONS_INIT                                             \
    {                                                                             \
        sizeof(struct heft_publication_options), 0, 0, HEFT_METADATA_OPTIONS_INIT \
    }

/*
 * Publishes the agent's metadata under its name with a lease, and keeps it so: renewed, published again
 * within 0.1 s after its regions changed (all of them, unless some were chosen) and when the directory forgot
 * it. A directory that can't be reached is tried again in the background. The agent must listen, and must
 * outlive the publication. Errors: INVALID, DENIED (the token over a plain connection, as
 * heft_directory_open says), STALE (a newer process has the name), TOO_LARGE.
 */
int heft_agent_publish(struct heft_agent *agent, const struct heft_publication_options *options,
                       struct heft_publication **publication_out, struct heft_error *error);
/* Withdraws it, waiting a second at most for the directory: then the lease ends by itself. NULL is allowed.
 */
void heft_publication_close(struct heft_publication *publication);

struct heft_publication_status {
    size_t size;
    int published;          /* 1: the last publish or renewal succeeded */
    uint64_t epoch;         /* of the agent, as last published */
    uint64_t publications;  /* successful ones */
    uint64_t renewals;      /* likewise */
    uint64_t republished;   /* times the directory had forgotten it */
    uint64_t lease_left_ms; /* 0: expired */
    struct heft_error last_error;
};
void heft_publication_get_status(struct heft_publication *publication,
                                 struct heft_publication_status *status_out);

/*
 * The metadata that an agent of this name has published. Errors: NOT_FOUND (no live one); PROTOCOL (the
 * record's name or generation is not the one in the metadata: refused); UNAVAILABLE, DEADLINE.
 */
int heft_metadata_find(struct heft_directory *directory, const char *name,
                       struct heft_metadata **metadata_out, struct heft_error *error);

enum heft_watch_kind {
    HEFT_WATCH_JOINED = 1,  /* a name that was not there, or a new generation of one that was */
    HEFT_WATCH_CHANGED = 2, /* the same generation has other regions or addresses */
    HEFT_WATCH_LOST = 3,    /* withdrawn, or its lease ended */
    HEFT_WATCH_REFUSED = 4  /* its record is malformed or not its own; `error` says how */
};

struct heft_watch_event {
    size_t size; /* sizeof(struct heft_watch_event), set before the call */
    enum heft_watch_kind kind;
    char name[HEFT_NAME_MAX_BYTES + 1];
    struct heft_generation generation;
    uint64_t epoch;                 /* of the agent */
    struct heft_metadata *metadata; /* JOINED and CHANGED: the caller's, heft_metadata_free; else NULL */
    struct heft_error error;
};

/*
 * Watches the agents of a directory, or those whose names begin with `prefix` (NULL: all), on a thread of its
 * own. Those that are there already come first, as JOINED. A directory that is down is no event: what was
 * known stays known. When it comes back with an agent missing, that one is LOST once its lease would have
 * ended, not at once. Events that follow each other for one name may come as one. Any thread may take them.
 */
int heft_watch_open(struct heft_directory *directory, const char *prefix, struct heft_watch **watch_out,
                    struct heft_error *error);
/*
 * The oldest event. timeout_ms 0 only looks. Errors: AGAIN (none came in time); INVALID (size); and the
 * directory's error (UNAVAILABLE, DENIED, ...) once for each outage, after which waiting may go on.
 */
int heft_watch_next(struct heft_watch *watch, struct heft_watch_event *event_out, uint64_t timeout_ms,
                    struct heft_error *error);
/* Readable (POLLIN) while something waits to be taken. It stays the watch's: never read, write or close it.
 */
int heft_watch_fd(const struct heft_watch *watch);
/* Ends within a second. Nobody may be waiting. NULL is allowed. */
void heft_watch_close(struct heft_watch *watch);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
