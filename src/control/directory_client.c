/* SPDX-License-Identifier: Apache-2.0 */
/* A directory that is a heftd: each call of the table is one unary call, asked twice at most. */
#include "base/error.h"
#include "control/etcd_directory.h"
#include "control/grpc_client.h"
#include "control/record_proto.h"
#include "directory.pb-c.h"
#include "load/directory.h"

#include <heft/control.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIRECTORY_MAX_RECORDS 1000000u /* of one list */

struct grpc_directory {
    struct heft_directory base;
    struct heft_grpc_client *client;
    uint32_t timeout_ms;
    int allow_plain;
};

static struct grpc_directory *self_of(struct heft_directory *directory)
{
    return (struct grpc_directory *)directory;
}

/* Calls with the bytes in `request`, decodes into the arena. */
static int call_bytes(struct grpc_directory *self, struct heft_grpc_unary *unary,
                      const struct heft_buf *request, const ProtobufCMessageDescriptor *answer,
                      struct heft_proto_arena *arena, void **answer_out, struct heft_error *error)
{
    struct heft_buf reply;
    int result;

    heft_buf_init(&reply, HEFT_GRPC_MAX_MESSAGE_BYTES);
    unary->is_idempotent = 1;
    unary->data = request->data;
    unary->size_bytes = request->size;
    result = heft_grpc_client_call(self->client, unary, &reply, error);
    if (!result) {
        heft_proto_arena_init(arena, reply.size);
        *answer_out = heft_proto_decode(arena, answer, reply.data, reply.size);
        if (!*answer_out) {
            heft_proto_arena_free(arena);
            result = heft_error_set(error, HEFT_ERR_PROTOCOL,
                                    "heftd at %s answered %s with a malformed message of %zu bytes",
                                    self->base.address, unary->method, reply.size);
        }
    }
    heft_buf_free(&reply);
    return result;
}

/* Encodes, calls, decodes into the arena. */
static int call(struct grpc_directory *self, struct heft_grpc_unary *unary, const void *message,
                const ProtobufCMessageDescriptor *answer, struct heft_proto_arena *arena, void **answer_out,
                struct heft_error *error)
{
    struct heft_buf request;
    int result;

    heft_buf_init(&request, HEFT_GRPC_MAX_MESSAGE_BYTES);
    result = heft_proto_encode(message, &request);
    if (result)
        (void)heft_error_set(error, result, "%s: the message can't be made: %s (limit %zu bytes)",
                             unary->method, heft_error_text(result), HEFT_GRPC_MAX_MESSAGE_BYTES);
    else
        result = call_bytes(self, unary, &request, answer, arena, answer_out, error);
    heft_buf_free(&request);
    return result;
}

static int has_token(const struct heft_record *record)
{
    static const struct heft_token none;

    return memcmp(&record->token, &none, sizeof(none)) != 0;
}

static int publish(struct heft_directory *directory, const struct heft_record *record, uint64_t *epoch_out,
                   struct heft_error *error)
{
    struct grpc_directory *self = self_of(directory);
    struct heft_grpc_unary unary = {.method = "/heft.v1.Directory/Publish"};
    struct heft_buf body, request;
    struct heft_proto_arena arena;
    void *answer;
    uint8_t head[11];
    int result;

    if (has_token(record) && !self->allow_plain && !heft_grpc_client_address(self->client)->is_loopback)
        return heft_error_set(
            error, HEFT_ERR_DENIED,
            "publishing '%s' would send its token to %s over a plain connection that is not "
            "loopback: use a heftd on this host, or allow it (--allow-plain-token)",
            record->name, directory->address);
    heft_buf_init(&body, HEFT_GRPC_MAX_MESSAGE_BYTES);
    heft_buf_init(&request, HEFT_GRPC_MAX_MESSAGE_BYTES);
    result = heft_record_proto_encode(record, &body, error);
    if (!result) { /* PublishRequest is one field: tag, length, record */
        head[0] = 1 << 3 | 2;
        heft_buf_bytes(&request, head, 1 + heft_proto_varint(head + 1, body.size));
        heft_buf_bytes(&request, body.data, body.size);
        if (request.failed)
            result =
                heft_error_set(error, request.failed, "record '%s': %s (a message's limit is %zu bytes)",
                               record->name, heft_error_text(request.failed), HEFT_GRPC_MAX_MESSAGE_BYTES);
    }
    if (!result)
        result = call_bytes(self, &unary, &request, &heft__v1__publish_response__descriptor, &arena, &answer,
                            error);
    if (!result) {
        if (epoch_out)
            *epoch_out = ((Heft__V1__PublishResponse *)answer)->epoch;
        heft_proto_arena_free(&arena);
    }
    heft_buf_free(&body);
    heft_buf_free(&request);
    return result;
}

static int renew(struct heft_directory *directory, const char *name, const struct heft_generation *generation,
                 uint64_t lease_ms, uint64_t *epoch_out, struct heft_error *error)
{
    struct heft_generation copy = *generation;
    struct heft_grpc_unary unary = {.method = "/heft.v1.Directory/Renew"};
    Heft__V1__RenewRequest request = HEFT__V1__RENEW_REQUEST__INIT;
    struct heft_proto_arena arena;
    void *answer;
    int result;

    request.name = heft_proto_text(name);
    request.generation.data = copy.bytes;
    request.generation.len = sizeof(copy.bytes);
    request.lease_ms = lease_ms;
    result = call(self_of(directory), &unary, &request, &heft__v1__renew_response__descriptor, &arena,
                  &answer, error);
    if (result)
        return result;
    if (epoch_out)
        *epoch_out = ((Heft__V1__RenewResponse *)answer)->epoch;
    heft_proto_arena_free(&arena);
    return 0;
}

static int withdraw(struct heft_directory *directory, const char *name,
                    const struct heft_generation *generation, struct heft_error *error)
{
    struct heft_generation copy = *generation;
    struct heft_grpc_unary unary = {.method = "/heft.v1.Directory/Withdraw"};
    Heft__V1__WithdrawRequest request = HEFT__V1__WITHDRAW_REQUEST__INIT;
    struct heft_error failure = HEFT_ERROR_INIT;
    struct heft_proto_arena arena;
    void *answer;
    int result;

    request.name = heft_proto_text(name);
    request.generation.data = copy.bytes;
    request.generation.len = sizeof(copy.bytes);
    result = call(self_of(directory), &unary, &request, &heft__v1__withdraw_response__descriptor, &arena,
                  &answer, &failure);
    if (result == HEFT_ERR_NOT_FOUND && unary.was_repeated)
        return 0; /* the first attempt had done it before the connection broke */
    if (result)
        return heft_error_set(error, result, "%s", failure.text);
    heft_proto_arena_free(&arena);
    return 0;
}

/* Adds the records of one page. The page's names must come after `after`, or a broken server could make us
 * ask for ever. */
static int add_page(struct heft_record_list *list, const Heft__V1__ListResponse *page, const char *after,
                    struct heft_error *error)
{
    struct heft_record *records;
    size_t index;
    int result;

    if (page->n_records == 0)
        return 0;
    if (list->count + page->n_records > DIRECTORY_MAX_RECORDS)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "the directory lists more than %u records",
                              DIRECTORY_MAX_RECORDS);
    records = realloc(list->records, (list->count + page->n_records) * sizeof(*records));
    if (!records)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "listing records: out of memory");
    list->records = records;
    for (index = 0; index < page->n_records; index++) {
        if (after && strcmp(page->records[index]->name, after) <= 0)
            return heft_error_set(error, HEFT_ERR_PROTOCOL,
                                  "the directory's pages are not in order ('%.64s')", after);
        result = heft_record_proto_read(page->records[index], &records[list->count], error);
        if (result)
            return result;
        records[list->count].epoch = page->epoch;
        after = records[list->count].name;
        list->count++;
    }
    return 0;
}

static int list_records(struct heft_directory *directory, const struct heft_record_query *query,
                        struct heft_record_list *list_out, struct heft_error *error)
{
    struct heft_grpc_unary unary = {.method = "/heft.v1.Directory/List"};
    Heft__V1__ListRequest request = HEFT__V1__LIST_REQUEST__INIT;
    struct heft_record_list list = {0};
    struct heft_proto_arena arena;
    const char *after = NULL;
    void *answer;
    int result, more;

    if (query) {
        request.model = heft_proto_text(query->model);
        request.revision = heft_proto_text(query->revision);
        request.stage = heft_proto_text(query->stage);
        request.name = heft_proto_text(query->name);
        request.all = query->all;
        request.agents = query->agents;
    }
    do {
        const Heft__V1__ListResponse *page;

        request.after = heft_proto_text(after);
        result = call(self_of(directory), &unary, &request, &heft__v1__list_response__descriptor, &arena,
                      &answer, error);
        if (result)
            break;
        page = answer;
        result = add_page(&list, page, after, error);
        list.epoch = page->epoch;
        if (!after) /* what changes while the pages come is told again by Changes */
            list.revision = page->revision;
        more = page->more && page->n_records > 0;
        heft_proto_arena_free(&arena);
        after = list.count ? list.records[list.count - 1].name : NULL;
    } while (!result && more);
    if (result) {
        heft_record_list_free(&list);
        return result;
    }
    *list_out = list;
    return 0;
}

static int take_changes(const Heft__V1__ChangesResponse *answer, struct heft_directory_changes *changes,
                        struct heft_error *error)
{
    struct heft_record_list *list = &changes->records;
    size_t index;
    int result = 0;

    changes->must_list = answer->must_list;
    list->records = calloc(answer->n_records + 1, sizeof(*list->records));
    if (!list->records)
        result = heft_error_set(error, HEFT_ERR_NO_MEMORY, "reading changes: out of memory");
    for (index = 0; !result && index < answer->n_records; index++) {
        result = heft_record_proto_read(answer->records[index], &list->records[list->count], error);
        list->count += !result;
    }
    for (index = 0; !result && index < answer->n_gone; index++)
        result = heft_directory_changes_gone(changes, answer->gone[index]);
    return result;
}

static int changed(struct heft_directory *directory, struct heft_directory_cursor *cursor, uint32_t wait_ms,
                   struct heft_directory_changes *changes_out, struct heft_error *error)
{
    struct grpc_directory *self = self_of(directory);
    struct heft_grpc_unary unary = {.method = "/heft.v1.Directory/Changes"};
    Heft__V1__ChangesRequest request = HEFT__V1__CHANGES_REQUEST__INIT;
    struct heft_directory_changes changes = {0};
    const Heft__V1__ChangesResponse *answer;
    struct heft_proto_arena arena;
    void *message;
    int result;

    request.epoch = cursor->epoch;
    request.revision = cursor->revision;
    request.wait_ms = wait_ms;
    unary.timeout_ms = wait_ms + self->timeout_ms;
    result = call(self, &unary, &request, &heft__v1__changes_response__descriptor, &arena, &message, error);
    if (result)
        return result;
    answer = message;
    result = take_changes(answer, &changes, error);
    if (result) {
        heft_directory_changes_free(&changes);
    } else {
        cursor->epoch = answer->epoch;
        cursor->revision = answer->revision;
        *changes_out = changes;
    }
    heft_proto_arena_free(&arena);
    return result;
}

static void end_changes(struct heft_directory *directory, struct heft_directory_cursor *cursor)
{
    (void)directory; /* each call stands for itself */
    (void)cursor;
}

static void interrupt(struct heft_directory *directory, pthread_t thread)
{
    heft_grpc_client_interrupt(self_of(directory)->client, thread);
}

static void close_directory(struct heft_directory *directory)
{
    struct grpc_directory *self = self_of(directory);

    heft_grpc_client_close(self->client);
    free(self);
}

static const struct heft_directory_ops grpc_directory_ops = {
    publish, renew, withdraw, list_records, close_directory, changed, end_changes, interrupt};

int heft_control_open_directory(const struct heft_directory_options *options,
                                struct heft_directory **directory_out, struct heft_error *error)
{
    struct heft_grpc_client_options client_options = {
        .address = options->address, .service = "heftd", .timeout_ms = options->timeout_ms};
    struct grpc_directory *self;
    int result;

    if (strncmp(options->address, "etcd://", 7) == 0 || strncmp(options->address, "etcds://", 8) == 0)
        return heft_etcd_directory_open(options, directory_out, error);
    self = calloc(1, sizeof(*self));
    if (!self)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "directory %s: out of memory", options->address);
    result = heft_grpc_client_open(&client_options, &self->client, error);
    if (result) {
        free(self);
        return heft_error_prefix(error, result, "directory");
    }
    self->base.ops = &grpc_directory_ops;
    self->timeout_ms = options->timeout_ms ? options->timeout_ms : 5000;
    self->allow_plain = options->allow_plain;
    (void)snprintf(self->base.address, sizeof(self->base.address), "%s", options->address);
    *directory_out = &self->base;
    return 0;
}

void heft_control_init(void)
{
    heft_directory_set_grpc_opener(heft_control_open_directory);
}

int heft_directory_get_status(struct heft_directory *directory, struct heft_directory_status *status_out,
                              struct heft_error *error)
{
    struct heft_grpc_unary unary = {.method = "/heft.v1.Directory/Status"};
    Heft__V1__StatusRequest request = HEFT__V1__STATUS_REQUEST__INIT;
    struct heft_directory_status status = HEFT_DIRECTORY_STATUS_INIT;
    const Heft__V1__StatusResponse *answer;
    struct heft_proto_arena arena;
    void *message;
    int result;

    if (directory->ops != &grpc_directory_ops)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                              "%s has no daemon that could be asked for its status", directory->address);
    result = call(self_of(directory), &unary, &request, &heft__v1__status_response__descriptor, &arena,
                  &message, error);
    if (result)
        return result;
    answer = message;
    (void)snprintf(status.version, sizeof(status.version), "%s", answer->version);
    (void)snprintf(status.store, sizeof(status.store), "%s", answer->store);
    (void)snprintf(status.store_error, sizeof(status.store_error), "%s", answer->store_error);
    status.epoch = answer->epoch;
    status.uptime_ms = answer->uptime_ms;
    status.records = answer->records;
    status.max_records = answer->max_records;
    status.bytes = answer->bytes;
    status.max_bytes = answer->max_bytes;
    status.publishes = answer->publishes;
    status.renewals = answer->renewals;
    status.withdrawals = answer->withdrawals;
    status.expirations = answer->expirations;
    status.takeovers = answer->takeovers;
    status.refusals = answer->refusals;
    heft_proto_arena_free(&arena);
    status.size = status_out->size;
    memcpy(status_out, &status, status_out->size < sizeof(status) ? status_out->size : sizeof(status));
    return 0;
}
