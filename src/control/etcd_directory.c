/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of docs/lease-protocol.md on etcd's terms. Each change reads the key, decides, and writes under
 * the condition that the key has not changed since; when it has, it begins anew. What heftd remembers
 * (generations that lost a name) stands in the record. All is found by name, so no call needs to know of an
 * earlier one.
 */
#include "control/etcd_directory.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "control/lease.h"
#include "directory.pb-c.h"
#include "etcd.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TRIES 16u
#define PAGE_RECORDS 256
#define MAX_RECORDS 1000000u
#define LEASES_ASKED 256u /* of one list; more are shown with their whole lease */

static struct heft_etcd_directory *self_of(struct heft_directory *directory)
{
    return (struct heft_etcd_directory *)directory;
}

size_t heft_etcd_key(const struct heft_etcd_directory *self, const char *name, int agents,
                     char key_out[HEFT_ETCD_KEY_BYTES])
{
    const char *kind = name && heft_record_name_is_agent(name) ? ""
                       : agents                                ? HEFT_RECORD_AGENTS
                                                               : "replicas/";

    return (size_t)snprintf(key_out, HEFT_ETCD_KEY_BYTES, "%s/%s%s", heft_etcd_prefix(self->etcd), kind,
                            name ? name : "");
}

void heft_etcd_range_end(char *key, size_t size)
{
    key[size - 1]++; /* a slash: never the last character there is */
}

static ProtobufCBinaryData bytes_of(void *data, size_t size)
{
    return (ProtobufCBinaryData){size, data};
}

/* ---- one key ---- */

/* What a key holds now. `kv` is NULL when it is not there; both arenas are freed by drop. */
struct found {
    struct heft_proto_arena arena, record_arena;
    const Heft__Etcd__KeyValue *kv;
    const Heft__V1__Record *record;
    uint64_t cluster;
};

static void drop(struct found *found)
{
    heft_proto_arena_free(&found->arena);
    heft_proto_arena_free(&found->record_arena);
}

static int look_up(struct heft_etcd_directory *self, char *key, struct found *found, struct heft_error *error)
{
    Heft__Etcd__RangeRequest request = HEFT__ETCD__RANGE_REQUEST__INIT;
    struct heft_etcd_call call = {HEFT_ETCD_RANGE, &request, &heft__etcd__range_response__descriptor, 1};
    const Heft__Etcd__RangeResponse *answer;
    void *message;
    int rc;

    memset(found, 0, sizeof(*found));
    request.key = bytes_of(key, strlen(key));
    rc = heft_etcd_call(self->etcd, &call, &found->arena, &message, error);
    if (rc)
        return rc;
    answer = message;
    found->cluster = answer->header ? answer->header->cluster_id : 0;
    if (answer->n_kvs == 0)
        return 0;
    found->kv = answer->kvs[0];
    heft_proto_arena_init(&found->record_arena, found->kv->value.len);
    found->record = heft_proto_decode(&found->record_arena, &heft__v1__record__descriptor,
                                      found->kv->value.data, found->kv->value.len);
    if (found->record && found->record->generation.len != HEFT_GENERATION_BYTES)
        found->record = NULL; /* no record of heft: whoever publishes replaces it */
    return 0;
}

static int is_generation(const ProtobufCBinaryData *bytes, const struct heft_generation *generation)
{
    return bytes->len == HEFT_GENERATION_BYTES &&
           memcmp(bytes->data, generation->bytes, HEFT_GENERATION_BYTES) == 0;
}

static int not_found(const char *name, struct heft_error *error)
{
    return heft_error_set(
        error, HEFT_ERR_NOT_FOUND,
        "etcd has no live record '%s' (its lease ended, or etcd was emptied): publish it again", name);
}

static int stale(const char *name, const Heft__V1__Record *record, const struct heft_generation *generation,
                 struct heft_error *error)
{
    char theirs[HEFT_GENERATION_TEXT_BYTES], holders[HEFT_GENERATION_TEXT_BYTES];
    struct heft_generation holder;

    memcpy(holder.bytes, record->generation.data, HEFT_GENERATION_BYTES);
    heft_generation_print(&holder, holders);
    heft_generation_print(generation, theirs);
    return heft_error_set(error, HEFT_ERR_STALE,
                          "'%s' now belongs to generation %s; generation %s has lost it: give each process a "
                          "name of its own, or stop the older one",
                          name, holders, theirs);
}

/* What the key holds, if this generation holds it. drop after success. */
static int find_held(struct heft_etcd_directory *self, const char *name, char *key,
                     const struct heft_generation *generation, struct found *found, struct heft_error *error)
{
    int rc = look_up(self, key, found, error);

    if (rc)
        return rc;
    if (!found->kv || !found->record)
        rc = not_found(name, error);
    else if (!is_generation(&found->record->generation, generation))
        rc = stale(name, found->record, generation, error);
    if (rc)
        drop(found);
    return rc;
}

/* ---- leases ---- */

static int64_t ttl_of(uint64_t lease_ms)
{
    return (int64_t)((lease_ms + 999) / 1000);
}

static int grant(struct heft_etcd_directory *self, uint64_t lease_ms, int64_t *lease_out,
                 struct heft_error *error)
{
    Heft__Etcd__LeaseGrantRequest request = HEFT__ETCD__LEASE_GRANT_REQUEST__INIT;
    struct heft_etcd_call call = {HEFT_ETCD_LEASE_GRANT, &request,
                                  &heft__etcd__lease_grant_response__descriptor, 0};
    const Heft__Etcd__LeaseGrantResponse *answer;
    struct heft_proto_arena arena;
    void *message;
    int rc;

    request.ttl_s = ttl_of(lease_ms);
    rc = heft_etcd_call(self->etcd, &call, &arena, &message, error);
    if (rc)
        return rc;
    answer = message;
    if (answer->error[0])
        rc = heft_error_set(error, HEFT_ERR_UNAVAILABLE, "etcd grants no lease: %.200s", answer->error);
    else
        *lease_out = answer->id;
    heft_proto_arena_free(&arena);
    return rc;
}

/* Begins the lease anew, or asks what is left of it: seconds, 0 or less when it has ended. */
static int ask_lease(struct heft_etcd_directory *self, const char *method, int64_t lease, int64_t *ttl_s_out,
                     struct heft_error *error)
{
    Heft__Etcd__LeaseRequest request = HEFT__ETCD__LEASE_REQUEST__INIT;
    struct heft_etcd_call call = {method, &request, &heft__etcd__lease_response__descriptor, 1};
    struct heft_proto_arena arena;
    void *message;
    int rc;

    request.id = lease;
    rc = heft_etcd_call(self->etcd, &call, &arena, &message, error);
    if (rc)
        return rc;
    *ttl_s_out = ((const Heft__Etcd__LeaseResponse *)message)->ttl_s;
    heft_proto_arena_free(&arena);
    return 0;
}

/* Also ends it at once for keys that are tied to it. A lease that can't be revoked ends by itself. */
static void revoke(struct heft_etcd_directory *self, int64_t lease)
{
    Heft__Etcd__LeaseRequest request = HEFT__ETCD__LEASE_REQUEST__INIT;
    struct heft_etcd_call call = {HEFT_ETCD_LEASE_REVOKE, &request,
                                  &heft__etcd__lease_revoke_response__descriptor, 1};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_proto_arena arena;
    void *message;

    if (!lease)
        return;
    request.id = lease;
    if (!heft_etcd_call(self->etcd, &call, &arena, &message, &error))
        heft_proto_arena_free(&arena);
}

/* ---- changing a key ---- */

/* Carries the operation out if the key is as it was found. AGAIN: it was not. */
static int change(struct heft_etcd_directory *self, char *key, const struct found *found,
                  Heft__Etcd__Operation *operation, struct heft_error *error)
{
    Heft__Etcd__TxnRequest request = HEFT__ETCD__TXN_REQUEST__INIT;
    Heft__Etcd__Compare compare = HEFT__ETCD__COMPARE__INIT, *compares = &compare;
    struct heft_etcd_call call = {HEFT_ETCD_TXN, &request, &heft__etcd__txn_response__descriptor, 0};
    struct heft_proto_arena arena;
    void *message;
    int rc;

    compare.target = 2;
    compare.key = bytes_of(key, strlen(key));
    compare.value_case = HEFT__ETCD__COMPARE__VALUE_MOD_REVISION;
    compare.mod_revision = found->kv ? found->kv->mod_revision : 0;
    request.n_compare = 1;
    request.compare = &compares;
    request.n_success = 1;
    request.success = &operation;
    rc = heft_etcd_call(self->etcd, &call, &arena, &message, error);
    if (rc)
        return rc;
    rc = ((const Heft__Etcd__TxnResponse *)message)->succeeded ? 0 : HEFT_ERR_AGAIN;
    heft_proto_arena_free(&arena);
    return rc;
}

static int give_up(const char *name, struct heft_error *error)
{
    return heft_error_set(
        error, HEFT_ERR_BUSY,
        "record '%s': others changed it %u times in a row: give each process a name of its own", name,
        MAX_TRIES);
}

static void append_field(struct heft_buf *buf, uint32_t field, const void *data, size_t size)
{
    uint8_t head[2 * HEFT_VARINT_BYTES];
    size_t used = heft_proto_varint(head, (uint64_t)field << 3 | 2);

    used += heft_proto_varint(head + used, size);
    heft_buf_bytes(buf, head, used);
    heft_buf_bytes(buf, data, size);
}

static void append_number(struct heft_buf *buf, uint32_t field, uint64_t value)
{
    uint8_t bytes[2 * HEFT_VARINT_BYTES];
    size_t used = heft_proto_varint(bytes, (uint64_t)field << 3);

    used += heft_proto_varint(bytes + used, value);
    heft_buf_bytes(buf, bytes, used);
}

/* The record, and what the directory adds to it: who lost the name, and when this generation first came. */
static int make_value(const struct heft_record *record, const struct found *found, struct heft_buf *value,
                      struct heft_error *error)
{
    const Heft__V1__Record *old = found->record;
    int is_same = old && is_generation(&old->generation, &record->generation);
    uint64_t since_ms = is_same && old->published_wall_ms ? old->published_wall_ms : heft_wall_ms();
    size_t index, kept = old ? old->n_superseded : 0;
    int rc = heft_record_proto_encode(record, value, error);

    if (rc)
        return rc;
    index = kept >= HEFT_LEASE_SUPERSEDED ? kept - HEFT_LEASE_SUPERSEDED + !is_same : 0;
    for (; index < kept; index++)
        append_field(value, 17, old->superseded[index].data, old->superseded[index].len);
    if (old && !is_same)
        append_field(value, 17, old->generation.data, old->generation.len);
    append_number(value, 15, since_ms);
    return value->failed ? heft_error_set(error, value->failed, "record '%s': %s", record->name,
                                          heft_error_text(value->failed))
                         : 0;
}

static int was_superseded(const Heft__V1__Record *record, const struct heft_generation *generation)
{
    size_t index;

    for (index = 0; index < record->n_superseded; index++)
        if (is_generation(&record->superseded[index], generation))
            return 1;
    return 0;
}

/* A lease to put the record under, begun anew: the one that this generation has, or another. */
static int take_lease(struct heft_etcd_directory *self, const struct heft_record *record,
                      const struct found *found, int64_t *lease, struct heft_error *error)
{
    int64_t ttl_s = 0;
    int rc = 0;

    if (*lease)
        return 0; /* of an earlier try */
    if (found->record && is_generation(&found->record->generation, &record->generation) && found->kv->lease &&
        found->record->lease_ms == record->lease_ms)
        rc = ask_lease(self, HEFT_ETCD_LEASE_KEEP, found->kv->lease, &ttl_s, error);
    if (rc)
        return rc;
    if (ttl_s > 0)
        *lease = found->kv->lease;
    return *lease ? 0 : grant(self, record->lease_ms, lease, error);
}

static int try_publish(struct heft_etcd_directory *self, const struct heft_record *record, char *key,
                       int64_t *lease, uint64_t *epoch, struct heft_error *error)
{
    Heft__Etcd__PutRequest put = HEFT__ETCD__PUT_REQUEST__INIT;
    Heft__Etcd__Operation operation = HEFT__ETCD__OPERATION__INIT;
    struct found found;
    struct heft_buf value;
    int rc = look_up(self, key, &found, error);

    if (rc)
        return rc;
    heft_buf_init(&value, HEFT_GRPC_MAX_MESSAGE_BYTES);
    if (found.record && was_superseded(found.record, &record->generation))
        rc = stale(record->name, found.record, &record->generation, error);
    if (!rc)
        rc = take_lease(self, record, &found, lease, error);
    if (!rc)
        rc = make_value(record, &found, &value, error);
    if (!rc) {
        put.key = bytes_of(key, strlen(key));
        put.value = bytes_of(value.data, value.size);
        put.lease = *lease;
        operation.request_case = HEFT__ETCD__OPERATION__REQUEST_PUT;
        operation.put = &put;
        rc = change(self, key, &found, &operation, error);
        if (rc == HEFT_ERR_NOT_FOUND) { /* the lease ended just now */
            *lease = 0;
            rc = HEFT_ERR_AGAIN;
        }
    }
    *epoch = found.cluster;
    heft_buf_free(&value);
    drop(&found);
    return rc;
}

static int check_plain(const struct heft_etcd_directory *self, const struct heft_record *record,
                       struct heft_error *error)
{
    static const struct heft_token none;

    if (memcmp(&record->token, &none, sizeof(none)) == 0 || self->allow_plain ||
        heft_etcd_is_private(self->etcd))
        return 0;
    return heft_error_set(
        error, HEFT_ERR_DENIED,
        "publishing '%s' would send its token to %s over a plain connection that is not loopback: "
        "use etcds://, or allow it (--allow-plain-token)",
        record->name, self->base.address);
}

static int publish(struct heft_directory *directory, const struct heft_record *record, uint64_t *epoch_out,
                   struct heft_error *error)
{
    struct heft_etcd_directory *self = self_of(directory);
    char key[HEFT_ETCD_KEY_BYTES];
    uint64_t epoch = 0;
    int64_t lease = 0;
    uint32_t tries;
    int rc = check_plain(self, record, error);

    if (rc)
        return rc;
    if (!record->name || !record->name[0] || strlen(record->name) > HEFT_NAME_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_INVALID, "a record's name must have 1 to %d bytes",
                              HEFT_NAME_MAX_BYTES);
    (void)heft_etcd_key(self, record->name, 0, key);
    for (rc = HEFT_ERR_AGAIN, tries = 0; rc == HEFT_ERR_AGAIN && tries < MAX_TRIES; tries++)
        rc = try_publish(self, record, key, &lease, &epoch, error);
    if (rc == HEFT_ERR_AGAIN)
        rc = give_up(record->name, error);
    if (!rc && epoch_out)
        *epoch_out = epoch;
    return rc;
}

static int renew(struct heft_directory *directory, const char *name, const struct heft_generation *generation,
                 uint64_t lease_ms, uint64_t *epoch_out, struct heft_error *error)
{
    struct heft_etcd_directory *self = self_of(directory);
    char key[HEFT_ETCD_KEY_BYTES];
    struct found found;
    int64_t ttl_s = 1;
    int rc;

    (void)heft_etcd_key(self, name, 0, key);
    rc = find_held(self, name, key, generation, &found, error);
    if (rc)
        return rc;
    if (lease_ms && lease_ms != found.record->lease_ms)
        rc = heft_error_set(error, HEFT_ERR_NOT_FOUND,
                            "record '%s': etcd can't change the length of a lease: publish it again", name);
    else if (found.kv->lease)
        rc = ask_lease(self, HEFT_ETCD_LEASE_KEEP, found.kv->lease, &ttl_s, error);
    if (!rc && ttl_s <= 0)
        rc = not_found(name, error);
    if (!rc && epoch_out)
        *epoch_out = found.cluster;
    drop(&found);
    return rc;
}

static int withdraw(struct heft_directory *directory, const char *name,
                    const struct heft_generation *generation, struct heft_error *error)
{
    struct heft_etcd_directory *self = self_of(directory);
    Heft__Etcd__DeleteRequest remove = HEFT__ETCD__DELETE_REQUEST__INIT;
    Heft__Etcd__Operation operation = HEFT__ETCD__OPERATION__INIT;
    char key[HEFT_ETCD_KEY_BYTES];
    uint32_t tries;
    int rc = HEFT_ERR_AGAIN;

    (void)heft_etcd_key(self, name, 0, key);
    remove.key = bytes_of(key, strlen(key));
    operation.request_case = HEFT__ETCD__OPERATION__REQUEST_REMOVE;
    operation.remove = &remove;
    for (tries = 0; rc == HEFT_ERR_AGAIN && tries < MAX_TRIES; tries++) {
        struct found found;

        rc = find_held(self, name, key, generation, &found, error);
        if (rc)
            return rc;
        rc = change(self, key, &found, &operation, error);
        if (!rc)
            revoke(self, found.kv->lease);
        drop(&found);
    }
    return rc == HEFT_ERR_AGAIN ? give_up(name, error) : rc;
}

/* ---- lists ---- */

int heft_etcd_read_record(const struct heft_etcd_directory *self, const struct Heft__Etcd__KeyValue *kv,
                          struct heft_record *record_out, struct heft_error *error)
{
    char key[HEFT_ETCD_KEY_BYTES];
    struct heft_proto_arena arena;
    const Heft__V1__Record *message;
    int rc;

    heft_proto_arena_init(&arena, kv->value.len);
    message = heft_proto_decode(&arena, &heft__v1__record__descriptor, kv->value.data, kv->value.len);
    rc = message ? heft_record_proto_check(message, error)
                 : heft_error_set(error, HEFT_ERR_INVALID, "a value of %zu bytes that is no record",
                                  kv->value.len);
    if (!rc && (heft_etcd_key(self, message->name, 0, key) != kv->key.len ||
                memcmp(key, kv->key.data, kv->key.len) != 0))
        rc = heft_error_set(error, HEFT_ERR_INVALID, "it holds the record of another name, '%s'",
                            message->name);
    if (!rc)
        rc = heft_record_proto_read(message, record_out, error);
    heft_proto_arena_free(&arena);
    return rc;
}

static int matches(const char *wanted, const char *value)
{
    return !wanted || !wanted[0] || strcmp(wanted, value ? value : "") == 0;
}

static int is_wanted(const struct heft_record_query *query, const struct heft_record *record)
{
    return matches(query->name, record->name) && matches(query->model, record->identity.model) &&
           matches(query->revision, record->identity.revision) &&
           matches(query->stage, record->identity.stage);
}

/* What is left of a record's lease; 0: it has ended, though the key is still there. */
static uint64_t left_ms(struct heft_etcd_directory *self, const struct heft_record *record, int64_t lease,
                        size_t place)
{
    struct heft_error error = HEFT_ERROR_INIT;
    int64_t ttl_s;

    if (place >= LEASES_ASKED || !lease || ask_lease(self, HEFT_ETCD_LEASE_LEFT, lease, &ttl_s, &error))
        return record->lease_ms ? record->lease_ms : 1;
    if (ttl_s < 0)
        return 0;
    return (uint64_t)(ttl_s + 1) * 1000 < record->lease_ms ? (uint64_t)(ttl_s + 1) * 1000 : record->lease_ms;
}

static int add_page(struct heft_etcd_directory *self, const struct heft_record_query *query,
                    const Heft__Etcd__RangeResponse *page, struct heft_record_list *list,
                    struct heft_error *error)
{
    struct heft_record *records = realloc(list->records, (list->count + page->n_kvs + 1) * sizeof(*records));
    size_t index;

    if (!records)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "listing records: out of memory");
    list->records = records;
    if (list->count + page->n_kvs > MAX_RECORDS)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "etcd lists more than %u records", MAX_RECORDS);
    for (index = 0; index < page->n_kvs; index++) {
        const Heft__Etcd__KeyValue *kv = page->kvs[index];
        struct heft_record *record = &records[list->count];
        struct heft_error failure = HEFT_ERROR_INIT;

        if (heft_etcd_read_record(self, kv, record, &failure)) {
            heft_log(HEFT_LOG_WARN, "etcd: key '%.*s' is passed over: %s",
                     (int)(kv->key.len < 200 ? kv->key.len : 200), (const char *)kv->key.data, failure.text);
            continue;
        }
        record->epoch = list->epoch;
        record->lease_left_ms = is_wanted(query, record) ? left_ms(self, record, kv->lease, list->count) : 0;
        if (record->lease_left_ms)
            list->count++;
        else
            heft_record_free(record);
    }
    return 0;
}

/* One page from `key` on; a page that is too large for a message is asked for again with fewer records. */
static int ask_page(struct heft_etcd_directory *self, Heft__Etcd__RangeRequest *request,
                    struct heft_proto_arena *arena, void **message_out, struct heft_error *error)
{
    struct heft_etcd_call call = {HEFT_ETCD_RANGE, request, &heft__etcd__range_response__descriptor, 1};
    int rc;

    while ((rc = heft_etcd_call(self->etcd, &call, arena, message_out, error)) == HEFT_ERR_TOO_LARGE &&
           request->limit > 1)
        request->limit /= 2;
    return rc;
}

static int list_pages(struct heft_etcd_directory *self, const struct heft_record_query *query,
                      struct heft_record_list *list, struct heft_error *error)
{
    Heft__Etcd__RangeRequest request = HEFT__ETCD__RANGE_REQUEST__INIT;
    char key[HEFT_ETCD_KEY_BYTES + 1], end[HEFT_ETCD_KEY_BYTES];
    size_t size = heft_etcd_key(self, query->name, query->agents, key);
    int rc, more;

    request.key = bytes_of(key, size);
    request.limit = PAGE_RECORDS;
    if (!query->name || !query->name[0]) {
        memcpy(end, key, size);
        heft_etcd_range_end(end, size);
        request.range_end = bytes_of(end, size);
    }
    do {
        const Heft__Etcd__RangeResponse *page;
        struct heft_proto_arena arena;
        void *message;

        rc = ask_page(self, &request, &arena, &message, error);
        if (rc)
            return rc;
        page = message;
        if (!list->revision && page->header) {
            list->revision = (uint64_t)page->header->revision;
            list->epoch = page->header->cluster_id;
        }
        rc = add_page(self, query, page, list, error);
        more = page->more && page->n_kvs > 0 && page->kvs[page->n_kvs - 1]->key.len < HEFT_ETCD_KEY_BYTES;
        if (more) { /* on from the key after the last one: that one and a zero byte */
            const ProtobufCBinaryData *last = &page->kvs[page->n_kvs - 1]->key;

            memcpy(key, last->data, last->len);
            key[last->len] = 0;
            request.key.len = last->len + 1;
        }
        heft_proto_arena_free(&arena);
    } while (!rc && more);
    return rc;
}

static int list_records(struct heft_directory *directory, const struct heft_record_query *query,
                        struct heft_record_list *list_out, struct heft_error *error)
{
    static const struct heft_record_query everything;
    struct heft_record_list list = {0};
    int rc = list_pages(self_of(directory), query ? query : &everything, &list, error);

    if (rc) {
        heft_record_list_free(&list);
        return rc;
    }
    *list_out = list;
    return 0;
}

static void close_directory(struct heft_directory *directory)
{
    heft_etcd_close(self_of(directory)->etcd);
    free(directory);
}

static void interrupt(struct heft_directory *directory, pthread_t thread)
{
    heft_etcd_interrupt(self_of(directory)->etcd, thread);
}

static const struct heft_directory_ops etcd_directory_ops = {
    publish,  renew, withdraw, list_records, close_directory, heft_etcd_changed, heft_etcd_end_changes,
    interrupt};

int heft_etcd_directory_open(const struct heft_directory_options *options,
                             struct heft_directory **directory_out, struct heft_error *error)
{
    struct heft_etcd_directory *self = calloc(1, sizeof(*self));
    int rc;

    if (!self)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "directory %s: out of memory", options->address);
    rc = heft_etcd_open(options, &self->etcd, error);
    if (rc) {
        free(self);
        return heft_error_prefix(error, rc, "directory");
    }
    self->base.ops = &etcd_directory_ops;
    self->allow_plain = options->allow_plain;
    (void)snprintf(self->base.address, sizeof(self->base.address), "%s", options->address);
    *directory_out = &self->base;
    return 0;
}
