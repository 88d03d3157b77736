/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The methods of heft.v1.Directory and grpc.health.v1.Health. One dispatcher decodes the request by the
 * method's descriptor and frees it; a method sees a message and appends its answer.
 */
#include "control/directory_state.h"
#include "base/error.h"
#include "base/log.h"
#include "control/record_proto.h"
#include "directory.pb-c.h"
#include "health.pb-c.h"
#include "load/directory.h"

#include <heft/heft.h>
#include <string.h>

#define LIST_PAGE_BYTES ((size_t)1 << 20)   /* a page ends with the record that passes this */
#define CHANGES_MAX_BYTES ((size_t)4 << 20) /* of changes in one answer; more: list anew */
#define CHANGES_MAX_WAIT_MS 20000u          /* below the server's limit for a call */

struct call {
    struct heft_directory_service *service;
    const void *message;
    struct heft_buf *reply;
    const struct heft_grpc_request *request;
};

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
    if (result == HEFT_ERR_TOO_MANY && heft_lease_reap(service->table, heft_directory_reaped, service))
        result = heft_lease_publish(service->table, &publication, &lease, error);
    if (!result) {
        heft_directory_store_put(service, lease);
        if (is_new)
            heft_log(HEFT_LOG_INFO, "published: '%s' of %s@%s, lease %llu ms", lease->name, lease->model,
                     lease->revision, (unsigned long long)lease->lease_ms);
    }
    (void)pthread_mutex_unlock(&service->lock);
    return result;
}

static int on_publish(struct call *call, struct heft_error *error)
{
    Heft__V1__PublishResponse answer = HEFT__V1__PUBLISH_RESPONSE__INIT;
    const Heft__V1__PublishRequest *message = call->message;
    struct heft_buf body;
    int result;

    if (!message->record)
        return heft_error_set(error, HEFT_ERR_INVALID, "Publish without a record");
    result = heft_record_proto_check(message->record, error);
    if (result)
        return result;
    heft_buf_init(&body, protobuf_c_message_get_packed_size(&message->record->base) + 64);
    result = publish_record(call->service, message->record, &body, error);
    heft_buf_free(&body);
    if (result)
        return result;
    heft_grpc_server_poke(call->service->server);
    answer.epoch = call->service->epoch;
    return heft_proto_encode(&answer, call->reply);
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

static int on_renew(struct call *call, struct heft_error *error)
{
    struct heft_directory_service *service = call->service;
    Heft__V1__RenewResponse answer = HEFT__V1__RENEW_RESPONSE__INIT;
    const Heft__V1__RenewRequest *message = call->message;
    struct heft_error store_error = HEFT_ERROR_INIT;
    struct heft_generation generation;
    const struct heft_lease *lease;
    int result = read_generation(&message->generation, &generation, error);

    if (result)
        return result;
    (void)pthread_mutex_lock(&service->lock);
    result = heft_lease_renew(service->table, message->name, &generation, message->lease_ms, &lease, error);
    if (!result && service->persistence.touch)
        heft_directory_note_store(service,
                                  service->persistence.touch(
                                      service->persistence.context, lease->name, &generation, lease->lease_ms,
                                      heft_lease_end_wall_ms(service->table, lease), &store_error),
                                  &store_error);
    (void)pthread_mutex_unlock(&service->lock);
    answer.epoch = service->epoch;
    return result ? result : heft_proto_encode(&answer, call->reply);
}

static int on_withdraw(struct call *call, struct heft_error *error)
{
    struct heft_directory_service *service = call->service;
    Heft__V1__WithdrawResponse answer = HEFT__V1__WITHDRAW_RESPONSE__INIT;
    const Heft__V1__WithdrawRequest *message = call->message;
    struct heft_generation generation;
    int result = read_generation(&message->generation, &generation, error);

    if (result)
        return result;
    (void)pthread_mutex_lock(&service->lock);
    result = heft_lease_withdraw(service->table, message->name, &generation, error);
    if (!result) {
        heft_directory_store_remove(service, message->name);
        heft_log(HEFT_LOG_INFO, "withdrawn: '%s'", message->name);
    }
    (void)pthread_mutex_unlock(&service->lock);
    if (result)
        return result;
    heft_grpc_server_poke(service->server);
    answer.epoch = service->epoch;
    return heft_proto_encode(&answer, call->reply);
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

static int on_list(struct call *call, struct heft_error *error)
{
    struct heft_directory_service *service = call->service;
    Heft__V1__ListResponse answer = HEFT__V1__LIST_RESPONSE__INIT;
    const Heft__V1__ListRequest *message = call->message;
    struct heft_lease_query query = {.model = message->model,
                                     .revision = message->revision,
                                     .stage = message->stage,
                                     .name = message->name,
                                     .all = message->all,
                                     .prefix = message->agents ? HEFT_RECORD_AGENTS : NULL,
                                     .except = message->agents ? NULL : HEFT_RECORD_AGENTS};
    const struct heft_lease *lease;

    (void)error;
    (void)pthread_mutex_lock(&service->lock);
    service->lists++;
    answer.revision = heft_lease_revision(service->table);
    lease = heft_lease_next(service->table, &query, message->after);
    while (lease && call->reply->size < LIST_PAGE_BYTES) {
        append_record(service, call->reply, 1, lease);
        lease = heft_lease_next(service->table, &query, lease->name);
    }
    (void)pthread_mutex_unlock(&service->lock);
    answer.more = lease != NULL;
    answer.epoch = service->epoch;
    return heft_proto_encode(&answer, call->reply); /* the fields after the records; order is free */
}

static int on_get(struct call *call, struct heft_error *error)
{
    struct heft_directory_service *service = call->service;
    Heft__V1__GetResponse answer = HEFT__V1__GET_RESPONSE__INIT;
    const Heft__V1__GetRequest *message = call->message;
    const struct heft_lease *lease;

    (void)pthread_mutex_lock(&service->lock);
    lease = heft_lease_find(service->table, message->name);
    if (lease)
        append_record(service, call->reply, 1, lease);
    (void)pthread_mutex_unlock(&service->lock);
    answer.epoch = service->epoch;
    return lease ? heft_proto_encode(&answer, call->reply)
                 : heft_error_set(error, HEFT_ERR_NOT_FOUND, "the directory has no live record '%.255s'",
                                  message->name);
}

/* ---- changes ---- */

static void append_gone(void *context, const char *name, uint64_t revision)
{
    struct call *call = context;
    uint8_t head[2 * HEFT_VARINT_BYTES];
    size_t used;

    (void)revision;
    if (!heft_record_name_is_agent(name) || heft_lease_find(call->service->table, name))
        return; /* what came back is among the records */
    used = heft_proto_varint(head, (uint64_t)2 << 3 | 2);
    used += heft_proto_varint(head + used, strlen(name));
    heft_buf_bytes(call->reply, head, used);
    heft_buf_bytes(call->reply, name, strlen(name));
}

/* Appends what changed after the revision; 1 when that can't be told in one answer. Lock held. */
static int append_changes(struct call *call, uint64_t after_revision)
{
    struct heft_directory_service *service = call->service;
    struct heft_lease_query query = {.prefix = HEFT_RECORD_AGENTS, .after_revision = after_revision};
    const struct heft_lease *lease = heft_lease_next(service->table, &query, NULL);

    if (heft_lease_ended(service->table, after_revision, append_gone, call))
        return 1;
    for (; lease && call->reply->size < CHANGES_MAX_BYTES;
         lease = heft_lease_next(service->table, &query, lease->name))
        append_record(service, call->reply, 1, lease);
    return lease != NULL;
}

static int on_changes(struct call *call, struct heft_error *error)
{
    struct heft_directory_service *service = call->service;
    Heft__V1__ChangesResponse answer = HEFT__V1__CHANGES_RESPONSE__INIT;
    const Heft__V1__ChangesRequest *message = call->message;
    uint64_t wait_ms = message->wait_ms < CHANGES_MAX_WAIT_MS ? message->wait_ms : CHANGES_MAX_WAIT_MS;

    (void)error;
    (void)pthread_mutex_lock(&service->lock);
    answer.revision = heft_lease_revision(service->table);
    if (message->epoch != service->epoch || message->revision > answer.revision)
        answer.must_list = 1;
    else if (message->revision < answer.revision && append_changes(call, message->revision))
        answer.must_list = 1;
    (void)pthread_mutex_unlock(&service->lock);
    if (answer.must_list)
        call->reply->size = 0;
    else if (call->reply->size == 0 && call->request->age_ms < wait_ms) {
        *call->request->wake_ms = wait_ms;
        return HEFT_GRPC_LATER;
    }
    answer.epoch = service->epoch;
    return heft_proto_encode(&answer, call->reply);
}

static int on_status(struct call *call, struct heft_error *error)
{
    Heft__V1__StatusResponse answer = HEFT__V1__STATUS_RESPONSE__INIT;
    struct heft_directory_service_status status;

    (void)error;
    heft_directory_service_get_status(call->service, &status);
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
    return heft_proto_encode(&answer, call->reply);
}

static int on_health(struct call *call, struct heft_error *error)
{
    Grpc__Health__V1__HealthCheckResponse answer = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    const Grpc__Health__V1__HealthCheckRequest *message = call->message;

    answer.status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    if (message->service[0] && strcmp(message->service, "heft.v1.Directory") != 0)
        return heft_error_set(error, HEFT_ERR_NOT_FOUND, "no such service: '%.200s'", message->service);
    return heft_proto_encode(&answer, call->reply);
}

/* ---- dispatch ---- */

static const struct method {
    const char *name;
    const ProtobufCMessageDescriptor *request;
    int (*answer)(struct call *call, struct heft_error *error);
} methods[] = {
    {"/heft.v1.Directory/Publish", &heft__v1__publish_request__descriptor, on_publish},
    {"/heft.v1.Directory/Renew", &heft__v1__renew_request__descriptor, on_renew},
    {"/heft.v1.Directory/Withdraw", &heft__v1__withdraw_request__descriptor, on_withdraw},
    {"/heft.v1.Directory/List", &heft__v1__list_request__descriptor, on_list},
    {"/heft.v1.Directory/Get", &heft__v1__get_request__descriptor, on_get},
    {"/heft.v1.Directory/Changes", &heft__v1__changes_request__descriptor, on_changes},
    {"/heft.v1.Directory/Status", &heft__v1__status_request__descriptor, on_status},
    {"/grpc.health.v1.Health/Check", &grpc__health__v1__health_check_request__descriptor, on_health},
};
#define METHOD_COUNT (sizeof(methods) / sizeof(methods[0]))

static int dispatch(void *context, const struct heft_grpc_request *request, struct heft_buf *reply,
                    struct heft_error *error)
{
    struct call call = {.service = context, .reply = reply, .request = request};
    const struct method *method = methods;
    struct heft_proto_arena arena;
    int result;

    while (method->name != request->method) /* the server gives back the pointer that it was given */
        method++;
    heft_proto_arena_init(&arena, request->size_bytes);
    call.message = heft_proto_decode(&arena, method->request, request->data, request->size_bytes);
    result = call.message
                 ? method->answer(&call, error)
                 : heft_error_set(error, HEFT_ERR_INVALID, "%s: the message of %zu bytes is malformed",
                                  request->method, request->size_bytes);
    heft_proto_arena_free(&arena);
    return result;
}

int heft_directory_service_register(struct heft_directory_service *service, struct heft_grpc_server *server,
                                    struct heft_error *error)
{
    size_t index;
    int result = 0;

    for (index = 0; !result && index < METHOD_COUNT; index++)
        result = heft_grpc_server_add(server, methods[index].name, dispatch, service, error);
    if (!result)
        service->server = server;
    return result;
}
