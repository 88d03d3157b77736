/* SPDX-License-Identifier: Apache-2.0 */
/* The directory's state under its lock: what has no part in the wire. The methods are in directory_calls.c.
 */
#include "control/directory_state.h"
#include "base/error.h"
#include "base/log.h"
#include "control/record_proto.h"
#include "directory.pb-c.h"
#include "load/directory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int heft_directory_service_new(const struct heft_directory_service_options *options,
                               struct heft_directory_service **service_out, struct heft_error *error)
{
    struct heft_directory_service *service = calloc(1, sizeof(*service));

    if (!service)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "directory: out of memory");
    service->table = heft_lease_table_new(&options->limits, options->clock, options->wall);
    if (!service->table) {
        free(service);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "directory: out of memory");
    }
    (void)pthread_mutex_init(&service->lock, NULL);
    service->clock = options->clock;
    service->begin_ns = heft_clock_now(&service->clock);
    service->epoch = options->epoch;
    service->persistence = options->persistence;
    *service_out = service;
    return 0;
}

void heft_directory_service_free(struct heft_directory_service *service)
{
    if (!service)
        return;
    heft_lease_table_free(service->table);
    (void)pthread_mutex_destroy(&service->lock);
    free(service);
}

/* Remembers how the last write to the store went; one log line when that changes. */
void heft_directory_note_store(struct heft_directory_service *service, int result,
                               const struct heft_error *error)
{
    if (result) {
        service->store_errors++;
        if (!service->store_error[0])
            heft_log(HEFT_LOG_WARN, "store failed, records live in memory only: %s", error->text);
        (void)snprintf(service->store_error, sizeof(service->store_error), "%.255s",
                       error->text[0] ? error->text : heft_error_text(result));
    } else if (service->store_error[0]) {
        service->store_error[0] = 0;
        heft_log(HEFT_LOG_INFO, "store works again");
    }
}

void heft_directory_store_put(struct heft_directory_service *service, const struct heft_lease *lease)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_stored_record record = {.publication = {lease->name, lease->generation, lease->model,
                                                        lease->revision, lease->stage, lease->body,
                                                        lease->body_bytes, lease->lease_ms},
                                        .published_wall_ms = lease->published_wall_ms,
                                        .end_wall_ms = heft_lease_end_wall_ms(service->table, lease)};

    if (service->persistence.put)
        heft_directory_note_store(
            service, service->persistence.put(service->persistence.context, &record, &error), &error);
}

void heft_directory_store_remove(struct heft_directory_service *service, const char *name)
{
    struct heft_error error = HEFT_ERROR_INIT;

    if (service->persistence.remove)
        heft_directory_note_store(
            service, service->persistence.remove(service->persistence.context, name, &error), &error);
}

void heft_directory_reaped(void *context, const struct heft_lease *lease)
{
    heft_log(HEFT_LOG_INFO, "expired: '%s' of %s", lease->name, lease->model);
    heft_directory_store_remove(context, lease->name);
}

void heft_directory_service_get_status(struct heft_directory_service *service,
                                       struct heft_directory_service_status *status_out)
{
    static const struct heft_lease_query agents = {.prefix = HEFT_RECORD_AGENTS};
    const struct heft_lease *lease = NULL;

    memset(status_out, 0, sizeof(*status_out));
    (void)pthread_mutex_lock(&service->lock);
    while ((lease = heft_lease_next(service->table, &agents, lease ? lease->name : NULL)) != NULL)
        status_out->agents++;
    status_out->epoch = service->epoch;
    status_out->uptime_ms = (heft_clock_now(&service->clock) - service->begin_ns) / HEFT_NS_PER_MS;
    status_out->records = heft_lease_live(service->table);
    status_out->bytes = heft_lease_total_bytes(service->table);
    status_out->limits = *heft_lease_get_limits(service->table);
    heft_lease_get_counts(service->table, &status_out->counts);
    status_out->lists = service->lists;
    status_out->store_errors = service->store_errors;
    (void)snprintf(status_out->store, sizeof(status_out->store), "%s",
                   service->persistence.name ? service->persistence.name : "memory:");
    memcpy(status_out->store_error, service->store_error, sizeof(status_out->store_error));
    (void)pthread_mutex_unlock(&service->lock);
}

int heft_directory_service_restore(struct heft_directory_service *service,
                                   const struct heft_stored_record *record, struct heft_error *error)
{
    Heft__V1__Record *message;
    struct heft_proto_arena arena;
    int result;

    heft_proto_arena_init(&arena, record->publication.body_bytes);
    message = heft_proto_decode(&arena, &heft__v1__record__descriptor, record->publication.body,
                                record->publication.body_bytes);
    if (!message)
        result = heft_error_set(error, HEFT_ERR_INVALID, "stored record '%.255s' is malformed",
                                record->publication.name ? record->publication.name : "");
    else if ((result = heft_record_proto_check(message, error)) == 0) {
        (void)pthread_mutex_lock(&service->lock);
        result = heft_lease_restore(service->table, &record->publication, record->published_wall_ms,
                                    record->end_wall_ms, error);
        (void)pthread_mutex_unlock(&service->lock);
    }
    heft_proto_arena_free(&arena);
    return result;
}

uint64_t heft_directory_service_reap(struct heft_directory_service *service)
{
    uint64_t removed;

    (void)pthread_mutex_lock(&service->lock);
    removed = heft_lease_reap(service->table, heft_directory_reaped, service);
    (void)pthread_mutex_unlock(&service->lock);
    if (removed)
        heft_grpc_server_poke(service->server);
    return removed;
}

static void view_record(struct heft_directory_service *service, const struct heft_lease *lease,
                        heft_replica_visit_fn visit, void *context)
{
    struct heft_proto_arena arena;
    const Heft__V1__Record *message;

    heft_proto_arena_init(&arena, lease->body_bytes);
    message = heft_proto_decode(&arena, &heft__v1__record__descriptor, lease->body, lease->body_bytes);
    if (message) {
        struct heft_replica_view view = {
            .name = lease->name,
            .generation = lease->generation,
            .model = lease->model,
            .revision = lease->revision,
            .stage = lease->stage,
            .rank = message->identity ? message->identity->rank : "",
            .addresses = message->addresses,
            .part = message->part,
            .total_bytes = message->total_bytes,
            .whole_bytes = message->whole_bytes,
            .tensor_count = message->tensor_count,
            .block_count = message->block_count,
            .held_blocks = message->held_blocks,
            .lease_ms = lease->lease_ms,
            .lease_left_ms = heft_lease_left_ms(service->table, lease),
            .published_wall_ms = lease->published_wall_ms,
        };

        visit(context, &view);
    }
    heft_proto_arena_free(&arena);
}

uint64_t heft_directory_service_visit(struct heft_directory_service *service, const char *after,
                                      uint64_t limit, heft_replica_visit_fn visit, void *context)
{
    static const struct heft_lease_query replicas = {.except = HEFT_RECORD_AGENTS};
    const struct heft_lease *lease;
    uint64_t seen = 0;

    (void)pthread_mutex_lock(&service->lock);
    lease = heft_lease_next(service->table, &replicas, after);
    while (lease && seen < limit) {
        view_record(service, lease, visit, context);
        seen++;
        lease = heft_lease_next(service->table, &replicas, lease->name);
    }
    (void)pthread_mutex_unlock(&service->lock);
    return seen;
}
