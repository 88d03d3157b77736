/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes of agents' records, by a watch of etcd. A stream that ends is opened again after the last revision
 * that was seen; what was compacted meanwhile, or an etcd that has begun anew, is answered with "list".
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "control/etcd_directory.h"
#include "etcd.pb-c.h"

#include <stdlib.h>
#include <string.h>

static struct heft_etcd_directory *self_of(struct heft_directory *directory)
{
    return (struct heft_etcd_directory *)directory;
}

void heft_etcd_end_changes(struct heft_directory *directory, struct heft_directory_cursor *cursor)
{
    (void)directory;
    heft_grpc_stream_close(cursor->stream);
    cursor->stream = NULL;
}

static int open_stream(struct heft_etcd_directory *self, struct heft_directory_cursor *cursor,
                       struct heft_error *error)
{
    Heft__Etcd__WatchRequest request = HEFT__ETCD__WATCH_REQUEST__INIT;
    Heft__Etcd__WatchCreate create = HEFT__ETCD__WATCH_CREATE__INIT;
    struct heft_etcd_call call = {HEFT_ETCD_WATCH, &request, NULL, 1};
    char key[HEFT_ETCD_KEY_BYTES], end[HEFT_ETCD_KEY_BYTES];
    size_t size = heft_etcd_key(self, NULL, 1, key);
    struct heft_grpc_stream *stream;
    int rc;

    memcpy(end, key, size);
    heft_etcd_range_end(end, size);
    create.key = (ProtobufCBinaryData){size, (uint8_t *)key};
    create.range_end = (ProtobufCBinaryData){size, (uint8_t *)end};
    create.start_revision = (int64_t)cursor->revision + 1;
    request.request_case = HEFT__ETCD__WATCH_REQUEST__REQUEST_CREATE;
    request.create = &create;
    rc = heft_etcd_stream(self->etcd, &call, &stream, error);
    if (!rc)
        cursor->stream = stream;
    return rc;
}

/* The name of the record that this key stands for; NULL when it is none. */
static const char *name_of(const struct heft_etcd_directory *self, const ProtobufCBinaryData *key,
                           char name_out[HEFT_ETCD_KEY_BYTES])
{
    size_t skipped = strlen(heft_etcd_prefix(self->etcd)) + 1;

    if (key->len <= skipped || key->len - skipped > HEFT_NAME_MAX_BYTES)
        return NULL;
    memcpy(name_out, key->data + skipped, key->len - skipped);
    name_out[key->len - skipped] = 0;
    return heft_text_is_clean(name_out, HEFT_NAME_MAX_BYTES) ? name_out : NULL;
}

static int take_event(struct heft_etcd_directory *self, const Heft__Etcd__Event *event,
                      struct heft_directory_changes *changes, struct heft_error *error)
{
    struct heft_error failure = HEFT_ERROR_INIT;
    char text[HEFT_ETCD_KEY_BYTES];
    struct heft_record *records, record;
    const char *name;
    size_t index;

    if (!event->kv || !(name = name_of(self, &event->kv->key, text)))
        return 0;
    for (index = 0; index < changes->records.count; index++) /* an older state of the same name */
        if (strcmp(changes->records.records[index].name, name) == 0) {
            heft_record_free(&changes->records.records[index]);
            changes->records.records[index] = changes->records.records[--changes->records.count];
            break;
        }
    if (event->type == 0 && heft_etcd_read_record(self, event->kv, &record, &failure) == 0) {
        records = realloc(changes->records.records, (changes->records.count + 1) * sizeof(*records));
        if (!records) {
            heft_record_free(&record);
            return heft_error_set(error, HEFT_ERR_NO_MEMORY, "etcd: out of memory for changes");
        }
        changes->records.records = records;
        records[changes->records.count++] = record;
        return 0;
    }
    if (failure.code)
        heft_log(HEFT_LOG_WARN, "etcd: the record of '%s' is passed over: %s", name, failure.text);
    return heft_directory_changes_gone(changes, name);
}

/* One message of the stream. */
static int take_message(struct heft_etcd_directory *self, struct heft_directory_cursor *cursor,
                        const Heft__Etcd__WatchResponse *message, struct heft_directory_changes *changes,
                        struct heft_error *error)
{
    size_t index;
    int rc = 0;

    if (message->canceled && message->compact_revision)
        changes->must_list = 1;
    else if (message->canceled)
        return heft_error_set(
            error,
            strstr(message->cancel_reason, "permission") || strstr(message->cancel_reason, "auth")
                ? HEFT_ERR_DENIED
                : HEFT_ERR_UNAVAILABLE,
            "etcd ended the watch of '%s/': %.200s", heft_etcd_prefix(self->etcd), message->cancel_reason);
    if (message->header && (message->header->cluster_id != cursor->epoch ||
                            (message->created && (uint64_t)message->header->revision < cursor->revision)))
        changes->must_list = 1; /* another etcd, or one that lost its data */
    for (index = 0; !rc && !changes->must_list && index < message->n_events; index++) {
        rc = take_event(self, message->events[index], changes, error);
        if (!rc && message->events[index]->kv &&
            (uint64_t)message->events[index]->kv->mod_revision > cursor->revision)
            cursor->revision = (uint64_t)message->events[index]->kv->mod_revision;
    }
    return rc;
}

int heft_etcd_changed(struct heft_directory *directory, struct heft_directory_cursor *cursor,
                      uint32_t wait_ms, struct heft_directory_changes *changes_out, struct heft_error *error)
{
    struct heft_etcd_directory *self = self_of(directory);
    struct heft_directory_changes changes = {0};
    struct heft_error failure = HEFT_ERROR_INIT;
    uint64_t until_ns = heft_after_ms(heft_now_ns(), wait_ms);
    struct heft_proto_arena arena;
    struct heft_buf reply;
    int rc = cursor->stream ? 0 : open_stream(self, cursor, &failure);

    heft_buf_init(&reply, HEFT_GRPC_MAX_MESSAGE_BYTES);
    while (!rc && !changes.must_list && !changes.records.count && !changes.gone_count) {
        uint64_t now_ns = heft_now_ns();
        const Heft__Etcd__WatchResponse *message;

        reply.size = 0;
        rc = heft_grpc_stream_next(
            cursor->stream, now_ns < until_ns ? (uint32_t)((until_ns - now_ns) / HEFT_NS_PER_MS + 1) : 0,
            &reply, &failure);
        if (rc)
            break;
        heft_proto_arena_init(&arena, reply.size);
        message = heft_proto_decode(&arena, &heft__etcd__watch_response__descriptor, reply.data, reply.size);
        rc = message ? take_message(self, cursor, message, &changes, &failure)
                     : heft_error_set(&failure, HEFT_ERR_PROTOCOL, "etcd sent a malformed change");
        heft_proto_arena_free(&arena);
    }
    heft_buf_free(&reply);
    if (rc == HEFT_ERR_AGAIN)
        rc = 0;
    if (rc || changes.must_list)
        heft_etcd_end_changes(directory, cursor);
    if (rc) {
        heft_etcd_note(self->etcd, rc, &failure);
        heft_directory_changes_free(&changes);
        return heft_error_set(error, rc, "%s", failure.text);
    }
    *changes_out = changes;
    return 0;
}
