/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Telemetry: an agent's statistics (base/stats.h) lie in a file of their own that the system keeps in memory,
 * so that other processes can read them while the agent runs, and after its process died. A folder a user,
 * mode 0700; a file an agent, mode 0600, under a lock that ends with the process. A closed agent takes its
 * file away; what a dead process leaves behind is kept for a while.
 */
#ifndef HEFT_AGENT_TELEMETRY_H
#define HEFT_AGENT_TELEMETRY_H

#include "base/buf.h"
#include "base/stats.h"

#define HEFT_TELEMETRY_KEEP_MS (UINT64_C(10) * 60 * 1000) /* statistics of a process that is gone */
#define HEFT_TELEMETRY_FILES_MAX 4096                     /* that a reader looks at */
#define HEFT_TELEMETRY_PATH_BYTES 512

struct heft_agent;

/* What an agent writes to. Never NULL parts: without a file it is memory of this process. */
struct heft_telemetry {
    struct heft_stats_head *head;
    struct heft_stats_route *routes;
    uint32_t route_count;
    uint64_t size_bytes;
    int fd;                               /* -1: private */
    char path[HEFT_TELEMETRY_PATH_BYTES]; /* "": no file */
};

/*
 * `folder`: where the file is made; "off": no file; NULL: $HEFT_TELEMETRY, else the folder of this user. Only
 * memory can lack: whatever keeps the file from being made is logged, once a process.
 */
int heft_telemetry_open(struct heft_telemetry *telemetry, const char *folder, const char *name,
                        const uint8_t *generation, const char *const *transports, uint32_t transport_count,
                        struct heft_error *error);
/* Removes the file. What is counted later counts in memory. */
void heft_telemetry_unlink(struct heft_telemetry *telemetry);
void heft_telemetry_free(struct heft_telemetry *telemetry);

/* The folder of this user: /dev/shm/heft-UID; $XDG_RUNTIME_DIR/heft when `second`. 0 or NOT_FOUND. */
int heft_telemetry_folder(int second, char path_out[HEFT_TELEMETRY_PATH_BYTES]);

/* ---- reading ---- */

enum heft_telemetry_state {
    HEFT_TELEMETRY_LIVE = 1,
    HEFT_TELEMETRY_ENDED = 2 /* its process is gone and has not closed the agent: it crashed, or left */
};

struct heft_telemetry_entry {
    char path[HEFT_TELEMETRY_PATH_BYTES];
    enum heft_telemetry_state state;
    struct heft_stats_head *head; /* a copy, checked; its routes follow it */
    uint32_t uid;
};

struct heft_telemetry_list {
    struct heft_telemetry_entry *entries; /* those that run first, then by name and pid */
    size_t count, capacity;
    size_t refused;         /* files that are not what they should be */
    struct heft_error last; /* why, of the last one; with its name */
};

/*
 * All agents of the folder (NULL: $HEFT_TELEMETRY), or of this host (none is named, or "off") that this user
 * may read: its own folders, and those of all users for root. Removes what processes left behind that are
 * gone for longer than HEFT_TELEMETRY_KEEP_MS, where it is this user's. A folder that does not exist holds
 * none, unless it was named: NOT_FOUND.
 */
int heft_telemetry_read(const char *folder, struct heft_telemetry_list *list_out, struct heft_error *error);
void heft_telemetry_list_free(struct heft_telemetry_list *list);

/* The agents as Prometheus text (version 0.0.4). Names are escaped. */
void heft_telemetry_prometheus(const struct heft_telemetry_list *list, struct heft_buf *buf);

#endif
