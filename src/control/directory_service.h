/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory as a service: the lease machine under one lock, its methods on a gRPC server
 * (heft.v1.Directory and grpc.health.v1.Health), and hooks through which a daemon keeps records over a
 * restart.
 *
 * What is kept in memory decides; the store only spares clients a publication after a restart. So a store
 * that fails does not fail calls: the service remembers the failure, and status and health tell it.
 */
#ifndef HEFT_CONTROL_DIRECTORY_SERVICE_H
#define HEFT_CONTROL_DIRECTORY_SERVICE_H

#include "control/grpc_server.h"
#include "control/lease.h"

struct heft_directory_service;

/* A record as a store keeps it. */
struct heft_stored_record {
    struct heft_lease_publication publication;
    uint64_t published_wall_ms;
    uint64_t end_wall_ms;
};

/* Called under the service's lock, one at a time; any may be NULL. */
struct heft_directory_persistence {
    int (*put)(void *context, const struct heft_stored_record *record, struct heft_error *error);
    int (*touch)(void *context, const char *name, const struct heft_generation *generation, uint64_t lease_ms,
                 uint64_t end_wall_ms, struct heft_error *error);
    int (*remove)(void *context, const char *name, struct heft_error *error);
    void *context;
    const char *name; /* "sqlite:/var/lib/heft/directory.db", for status */
};

struct heft_directory_service_options {
    struct heft_lease_limits limits;
    struct heft_clock clock; /* monotonic */
    struct heft_clock wall;
    uint64_t epoch; /* never 0 */
    struct heft_directory_persistence persistence;
};

/* One replica as a person sees it; never its token. Text lives as long as the visit. */
struct heft_replica_view {
    const char *name;
    struct heft_generation generation;
    const char *model;
    const char *revision;
    const char *stage;
    const char *rank;
    const char *addresses;
    const char *part; /* "rank 1/4"; "": all of the model */
    uint64_t total_bytes, whole_bytes, tensor_count, block_count, held_blocks;
    uint64_t lease_ms, lease_left_ms, published_wall_ms;
};
typedef void (*heft_replica_visit_fn)(void *context, const struct heft_replica_view *view);

struct heft_directory_service_status {
    uint64_t epoch, uptime_ms;
    uint64_t records, bytes; /* all */
    uint64_t agents;         /* of the records */
    struct heft_lease_limits limits;
    struct heft_lease_counts counts;
    uint64_t lists;
    uint64_t store_errors;
    char store[256];
    char store_error[256]; /* of the last write; "" when it went well */
};

int heft_directory_service_new(const struct heft_directory_service_options *options,
                               struct heft_directory_service **service_out, struct heft_error *error);
void heft_directory_service_free(struct heft_directory_service *service);
/* The methods of both services; `service` must outlive the server. */
int heft_directory_service_register(struct heft_directory_service *service, struct heft_grpc_server *server,
                                    struct heft_error *error);
/* Puts back what a store kept; call before serving. NOT_FOUND: its lease has ended. */
int heft_directory_service_restore(struct heft_directory_service *service,
                                   const struct heft_stored_record *record, struct heft_error *error);
/* Removes what has expired. Returns how many. */
uint64_t heft_directory_service_reap(struct heft_directory_service *service);
/* Up to `limit` live replicas in name order, after the name `after` (NULL: from the start). Returns how many.
 * The service is locked meanwhile. */
uint64_t heft_directory_service_visit(struct heft_directory_service *service, const char *after,
                                      uint64_t limit, heft_replica_visit_fn visit, void *context);
void heft_directory_service_get_status(struct heft_directory_service *service,
                                       struct heft_directory_service_status *status_out);

#endif
