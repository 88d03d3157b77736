/* SPDX-License-Identifier: Apache-2.0 */
#include "control/directory_service.h"
#include "base/error.h"
#include "base/log.h"
#include "control/record_proto.h"
#include "directory.pb-c.h"
#include "health.pb-c.h"

#include <heft/heft.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_PAGE_BYTES ((size_t)1 << 20) /* a page ends with the record that passes this */

struct heft_directory_service {
    pthread_mutex_t lock; /* guards all below */
    struct heft_lease_table *table;
    struct heft_clock clock;
    uint64_t begin_ns;
    uint64_t epoch;
    uint64_t lists;
    struct heft_directory_persistence persistence;
    uint64_t store_errors;
    char store_error[256];
};

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
static void note_store(struct heft_directory_service *service, int result, const struct heft_error *error)
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

static void store_put(struct heft_directory_service *service, const struct heft_lease *lease)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_stored_record record = {.publication = {lease->name, lease->generation, lease->model,
                                                        lease->revision, lease->stage, lease->body,
                                                        lease->body_bytes, lease->lease_ms},
                                        .published_wall_ms = lease->published_wall_ms,
                                        .end_wall_ms = heft_lease_end_wall_ms(service->table, lease)};

    if (service->persistence.put)
        note_store(service, service->persistence.put(service->persistence.context, &record, &error), &error);
}

static void store_remove(struct heft_directory_service *service, const char *name)
{
    struct heft_error error = HEFT_ERROR_INIT;

    if (service->persistence.remove)
        note_store(service, service->persistence.remove(service->persistence.context, name, &error), &error);
}

static int malformed(const struct heft_grpc_request *request, struct heft_error *error)
{
    return heft_error_set(error, HEFT_ERR_INVALID, "%s: the message of %zu bytes is malformed",
                          request->method, request->size_bytes);
}

static void reaped(void *context, const struct heft_lease *lease)
{
    heft_log(HEFT_LOG_INFO, "expired: '%s' of %s", lease->name, lease->model);
    store_remove(context, lease->name);
}

/* What the directory fills in itself is not stored. */
static int encode_body(Heft__V1__Record *record, struct heft_buf *body)
{
    record->lease_left_ms = 0;
    record->published_wall_ms = 0;
    return heft_proto_encode(record, body);
}

static int publish_record(struct heft_directory_service *service, Heft__V1__Record *record,
                          struct heft_buf *body, struct heft_error *error)
{
    const Heft__V1__Identity *identity = record->identity;
    struct heft_lease_publication publication = {.name = record->name, .lease_ms = record->lease_ms};
    const struct heft_lease *lease;
    int result, is_new;

    if (encode_body(record, body))
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "record '%s': out of memory", record->name);
    memcpy(publication.generation.bytes, record->generation.data, HEFT_GENERATION_BYTES);
    if (identity) {
        publication.model = identity->model;
        publication.revision = identity->revision;
        publication.stage = identity->stage;
    }
    publication.body = body->data;
    publication.body_bytes = body->size;
    (void)pthread_mutex_lock(&service->lock);
    is_new = !heft_lease_find(service->table, record->name);
    result = heft_lease_publish(service->table, &publication, &lease, error);
    if (result == HEFT_ERR_TOO_MANY && heft_lease_reap(service->table, reaped, service))
        result = heft_lease_publish(service->table, &publication, &lease, error);
    if (!result) {
        store_put(service, lease);
        if (is_new)
            heft_log(HEFT_LOG_INFO, "published: '%s' of %s@%s, lease %llu ms", lease->name, lease->model,
                     lease->revision, (unsigned long long)lease->lease_ms);
    }
    (void)pthread_mutex_unlock(&service->lock);
    return result;
}

static int on_publish(void *context, const struct heft_grpc_request *request, struct heft_buf *reply,
                      struct heft_error *error)
{
    struct heft_directory_service *service = context;
    Heft__V1__PublishResponse answer = HEFT__V1__PUBLISH_RESPONSE__INIT;
    Heft__V1__PublishRequest *message;
    struct heft_proto_arena arena;
    struct heft_buf body;
    int result;

    heft_buf_init(&body, request->size_bytes + 64);
    heft_proto_arena_init(&arena, request->size_bytes);
    message =
        heft_proto_decode(&arena, &heft__v1__publish_request__descriptor, request->data, request->size_bytes);
    if (!message)
        result = malformed(request, error);
    else if (!message->record)
        result = heft_error_set(error, HEFT_ERR_INVALID, "Publish without a record");
    else if ((result = heft_record_proto_check(message->record, error)) == 0)
        result = publish_record(service, message->record, &body, error);
    if (!result) {
        answer.epoch = service->epoch;
        result = heft_proto_encode(&answer, reply);
    }
    heft_buf_free(&body);
    heft_proto_arena_free(&arena);
    return result;
}

static int read_generation(const ProtobufCBinaryData *bytes, struct heft_generation *generation_out,
                           struct heft_error *error)
{
    if (bytes->len != HEFT_GENERATION_BYTES)
        return heft_error_set(error, HEFT_ERR_INVALID, "a generation has %d bytes, not %zu",
                              HEFT_GENERATION_BYTES, bytes->len);
    memcpy(generation_out->bytes, bytes->data, HEFT_GENERATION_BYTES);
    return 0;
}

static int on_renew(void *context, const struct heft_grpc_request *request, struct heft_buf *reply,
                    struct heft_error *error)
{
    struct heft_directory_service *service = context;
    Heft__V1__RenewResponse answer = HEFT__V1__RENEW_RESPONSE__INIT;
    struct heft_error store_error = HEFT_ERROR_INIT;
    struct heft_generation generation;
    const Heft__V1__RenewRequest *message;
    const struct heft_lease *lease;
    struct heft_proto_arena arena;
    int result;

    heft_proto_arena_init(&arena, request->size_bytes);
    message =
        heft_proto_decode(&arena, &heft__v1__renew_request__descriptor, request->data, request->size_bytes);
    result = message ? read_generation(&message->generation, &generation, error) : malformed(request, error);
    if (!result) {
        (void)pthread_mutex_lock(&service->lock);
        result =
            heft_lease_renew(service->table, message->name, &generation, message->lease_ms, &lease, error);
        if (!result && service->persistence.touch)
            note_store(service,
                       service->persistence.touch(
                           service->persistence.context, lease->name, &generation, lease->lease_ms,
                           heft_lease_end_wall_ms(service->table, lease), &store_error),
                       &store_error);
        (void)pthread_mutex_unlock(&service->lock);
    }
    if (!result) {
        answer.epoch = service->epoch;
        result = heft_proto_encode(&answer, reply);
    }
    heft_proto_arena_free(&arena);
    return result;
}

static int on_withdraw(void *context, const struct heft_grpc_request *request, struct heft_buf *reply,
                       struct heft_error *error)
{
    struct heft_directory_service *service = context;
    Heft__V1__WithdrawResponse answer = HEFT__V1__WITHDRAW_RESPONSE__INIT;
    struct heft_generation generation;
    const Heft__V1__WithdrawRequest *message;
    struct heft_proto_arena arena;
    int result;

    heft_proto_arena_init(&arena, request->size_bytes);
    message = heft_proto_decode(&arena, &heft__v1__withdraw_request__descriptor, request->data,
                                request->size_bytes);
    result = message ? read_generation(&message->generation, &generation, error) : malformed(request, error);
    if (!result) {
        (void)pthread_mutex_lock(&service->lock);
        result = heft_lease_withdraw(service->table, message->name, &generation, error);
        if (!result) {
            store_remove(service, message->name);
            heft_log(HEFT_LOG_INFO, "withdrawn: '%s'", message->name);
        }
        (void)pthread_mutex_unlock(&service->lock);
    }
    if (!result) {
        answer.epoch = service->epoch;
        result = heft_proto_encode(&answer, reply);
    }
    heft_proto_arena_free(&arena);
    return result;
}

static void append_number(struct heft_buf *buf, uint32_t field, uint64_t value)
{
    uint8_t bytes[2 * HEFT_VARINT_BYTES];
    size_t used = heft_proto_varint(bytes, (uint64_t)field << 3);

    used += heft_proto_varint(bytes + used, value);
    heft_buf_bytes(buf, bytes, used);
}

/*
 * Appends a record as field number `field` of an answer: its stored bytes, then what only the directory
 * knows. In protobuf the last value of a field counts, so nothing needs to be decoded, and what this version
 * does not know is passed on.
 */
static void append_record(struct heft_directory_service *service, struct heft_buf *reply, uint32_t field,
                          const struct heft_lease *lease)
{
    uint8_t head[2 * HEFT_VARINT_BYTES];
    struct heft_buf tail;
    size_t used;

    heft_buf_init(&tail, 128);
    append_number(&tail, 13, lease->lease_ms);
    append_number(&tail, 14, heft_lease_left_ms(service->table, lease));
    append_number(&tail, 15, lease->published_wall_ms);
    used = heft_proto_varint(head, (uint64_t)field << 3 | 2);
    used += heft_proto_varint(head + used, lease->body_bytes + tail.size);
    heft_buf_bytes(reply, head, used);
    heft_buf_bytes(reply, lease->body, lease->body_bytes);
    heft_buf_bytes(reply, tail.data, tail.size);
    if (tail.failed)
        reply->failed = tail.failed;
    heft_buf_free(&tail);
}

static int on_list(void *context, const struct heft_grpc_request *request, struct heft_buf *reply,
                   struct heft_error *error)
{
    struct heft_directory_service *service = context;
    Heft__V1__ListResponse answer = HEFT__V1__LIST_RESPONSE__INIT;
    const Heft__V1__ListRequest *message;
    const struct heft_lease *lease;
    struct heft_lease_query query;
    struct heft_proto_arena arena;
    int result = 0;

    heft_proto_arena_init(&arena, request->size_bytes);
    message =
        heft_proto_decode(&arena, &heft__v1__list_request__descriptor, request->data, request->size_bytes);
    if (!message) {
        result = malformed(request, error);
    } else {
        query = (struct heft_lease_query){message->model, message->revision, message->stage, message->name,
                                          message->all};
        (void)pthread_mutex_lock(&service->lock);
        service->lists++;
        lease = heft_lease_next(service->table, &query, message->after);
        while (lease && reply->size < LIST_PAGE_BYTES) {
            append_record(service, reply, 1, lease);
            lease = heft_lease_next(service->table, &query, lease->name);
        }
        (void)pthread_mutex_unlock(&service->lock);
        answer.more = lease != NULL;
        answer.epoch = service->epoch;
        result = heft_proto_encode(&answer, reply); /* the fields after the records; order is free */
    }
    heft_proto_arena_free(&arena);
    return result;
}

static int on_get(void *context, const struct heft_grpc_request *request, struct heft_buf *reply,
                  struct heft_error *error)
{
    struct heft_directory_service *service = context;
    Heft__V1__GetResponse answer = HEFT__V1__GET_RESPONSE__INIT;
    const Heft__V1__GetRequest *message;
    const struct heft_lease *lease;
    struct heft_proto_arena arena;
    int result;

    heft_proto_arena_init(&arena, request->size_bytes);
    message =
        heft_proto_decode(&arena, &heft__v1__get_request__descriptor, request->data, request->size_bytes);
    if (!message) {
        result = malformed(request, error);
    } else {
        (void)pthread_mutex_lock(&service->lock);
        lease = heft_lease_find(service->table, message->name);
        if (lease)
            append_record(service, reply, 1, lease);
        (void)pthread_mutex_unlock(&service->lock);
        answer.epoch = service->epoch;
        result = lease ? heft_proto_encode(&answer, reply)
                       : heft_error_set(error, HEFT_ERR_NOT_FOUND,
                                        "the directory has no live record '%.255s'", message->name);
    }
    heft_proto_arena_free(&arena);
    return result;
}

void heft_directory_service_get_status(struct heft_directory_service *service,
                                       struct heft_directory_service_status *status_out)
{
    memset(status_out, 0, sizeof(*status_out));
    (void)pthread_mutex_lock(&service->lock);
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

static int on_status(void *context, const struct heft_grpc_request *request, struct heft_buf *reply,
                     struct heft_error *error)
{
    Heft__V1__StatusResponse answer = HEFT__V1__STATUS_RESPONSE__INIT;
    struct heft_directory_service_status status;

    (void)request;
    (void)error;
    heft_directory_service_get_status(context, &status);
    answer.version = heft_proto_text(heft_version());
    answer.epoch = status.epoch;
    answer.uptime_ms = status.uptime_ms;
    answer.records = status.records;
    answer.max_records = status.limits.max_records;
    answer.bytes = status.bytes;
    answer.max_bytes = status.limits.max_total_bytes;
    answer.publishes = status.counts.publishes;
    answer.renewals = status.counts.renewals;
    answer.withdrawals = status.counts.withdrawals;
    answer.expirations = status.counts.expirations;
    answer.takeovers = status.counts.takeovers;
    answer.refusals = status.counts.refusals;
    answer.store = status.store;
    answer.store_error = status.store_error;
    return heft_proto_encode(&answer, reply);
}

static int on_health(void *context, const struct heft_grpc_request *request, struct heft_buf *reply,
                     struct heft_error *error)
{
    Grpc__Health__V1__HealthCheckResponse answer = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    const Grpc__Health__V1__HealthCheckRequest *message;
    struct heft_proto_arena arena;
    int result;

    (void)context;
    heft_proto_arena_init(&arena, request->size_bytes);
    message = heft_proto_decode(&arena, &grpc__health__v1__health_check_request__descriptor, request->data,
                                request->size_bytes);
    answer.status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    if (!message)
        result = malformed(request, error);
    else if (message->service[0] && strcmp(message->service, "heft.v1.Directory") != 0)
        result = heft_error_set(error, HEFT_ERR_NOT_FOUND, "no such service: '%.200s'", message->service);
    else
        result = heft_proto_encode(&answer, reply);
    heft_proto_arena_free(&arena);
    return result;
}

int heft_directory_service_register(struct heft_directory_service *service, struct heft_grpc_server *server,
                                    struct heft_error *error)
{
    static const struct {
        const char *method;
        heft_grpc_handler handler;
    } methods[] = {
        {"/heft.v1.Directory/Publish", on_publish},   {"/heft.v1.Directory/Renew", on_renew},
        {"/heft.v1.Directory/Withdraw", on_withdraw}, {"/heft.v1.Directory/List", on_list},
        {"/heft.v1.Directory/Get", on_get},           {"/heft.v1.Directory/Status", on_status},
        {"/grpc.health.v1.Health/Check", on_health},
    };
    size_t index;
    int result = 0;

    for (index = 0; !result && index < sizeof(methods) / sizeof(methods[0]); index++)
        result = heft_grpc_server_add(server, methods[index].method, methods[index].handler, service, error);
    return result;
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
    removed = heft_lease_reap(service->table, reaped, service);
    (void)pthread_mutex_unlock(&service->lock);
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
            .total_bytes = message->total_bytes,
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
    static const struct heft_lease_query everything;
    const struct heft_lease *lease;
    uint64_t seen = 0;

    (void)pthread_mutex_lock(&service->lock);
    lease = heft_lease_next(service->table, &everything, after);
    while (lease && seen < limit) {
        view_record(service, lease, visit, context);
        seen++;
        lease = heft_lease_next(service->table, &everything, lease->name);
    }
    (void)pthread_mutex_unlock(&service->lock);
    return seen;
}
