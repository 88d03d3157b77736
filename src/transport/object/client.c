/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many small requests at once, on the calling thread: what a model's opening needs before there is an agent
 * with regions. The same exchanges, limits and retries as the transport's.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/object/object.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MOVES 3u
#define POLL_MS 100 /* a cancel is heard so soon */
#define MAX_PAGES 2000u

/* One request from its first attempt to its outcome. */
struct asking {
    struct heft_object_exchange exchange;
    struct heft_buf *into; /* NULL: nothing is kept */
    uint32_t attempt, moves;
    uint64_t again_ns; /* when a pause ends; 0: none */
    int started, flying, over;
    int status;
    struct heft_error *error;
};

static int take(void *context, const uint8_t *data, size_t size)
{
    struct asking *asking = context;

    heft_buf_bytes(asking->into, data, size);
    return asking->into->failed;
}

static int begin(CURLM *multi, const struct heft_object_limits *limits, struct asking *asking)
{
    int rc;

    asking->again_ns = 0;
    if (asking->into)
        heft_buf_free(asking->into), heft_buf_init(asking->into, asking->into->limit);
    asking->exchange.take = asking->into ? take : NULL;
    asking->exchange.context = asking;
    rc = heft_object_exchange_begin(&asking->exchange, limits, asking->error);
    if (!rc) {
        (void)curl_easy_setopt(asking->exchange.easy, CURLOPT_PRIVATE, asking);
        if (curl_multi_add_handle(multi, asking->exchange.easy))
            rc = heft_error_set(asking->error, HEFT_ERR_NO_MEMORY, "%s: the request could not be started",
                                asking->exchange.object->shown);
    }
    asking->flying = rc == HEFT_OK;
    return rc;
}

/* "bytes 0-..." of an empty object is nothing: 416 says so, and some servers' 200 with no bytes. */
static int is_empty(const struct asking *asking)
{
    const struct heft_object_exchange *exchange = &asking->exchange;
    const struct heft_object_reply *reply = &exchange->reply;

    if (!exchange->open_end || exchange->begin != 0)
        return 0;
    return (reply->status == 416 && (!reply->has_total || reply->total == 0)) ||
           (reply->status == 200 && reply->has_length && reply->length == 0);
}

static void finish(const struct heft_object_limits *limits, struct asking *asking, CURLcode code)
{
    struct heft_object_exchange *exchange = &asking->exchange;
    struct heft_error error = HEFT_ERROR_INIT;
    enum heft_object_verdict verdict;
    uint64_t pause_ns;
    int moved = 0;

    asking->flying = 0;
    verdict = heft_object_exchange_end(exchange, code, &moved, &error);
    if (verdict == HEFT_OBJECT_GOOD || is_empty(asking)) {
        asking->over = 1;
        return;
    }
    if (moved && asking->moves++ < MAX_MOVES) {
        asking->again_ns = 1;
        return;
    }
    if (verdict == HEFT_OBJECT_BAD || moved || asking->attempt++ == limits->retries) {
        if (verdict != HEFT_OBJECT_BAD && !moved)
            (void)heft_error_prefix(&error, error.code, "tried %u times (HEFT_OBJECT_RETRIES)",
                                    asking->attempt);
        asking->over = 1;
        asking->status = error.code;
        *asking->error = error;
        return;
    }
    pause_ns = heft_object_pause_ns(limits, asking->attempt, exchange->reply.retry_after_s);
    if (asking->attempt > 1) /* once is no news */
        heft_log(HEFT_LOG_WARN, "%s; asked again in %.1f s (%u of %u)", error.text,
                 (double)pause_ns / HEFT_NS_PER_S, asking->attempt, limits->retries);
    asking->again_ns = heft_now_ns() + pause_ns;
}

static void fail(struct asking *asking, int rc)
{
    asking->over = 1;
    asking->status = rc;
}

/* Starts what may start; returns how many are not over, and when the next pause ends. */
static size_t start_due(CURLM *multi, const struct heft_object_limits *limits, struct asking *askings,
                        size_t count, uint64_t *next_ns_out)
{
    size_t index, flying = 0, left = 0;
    uint64_t now = heft_now_ns(), next = 0;

    for (index = 0; index < count; index++)
        flying += (size_t)askings[index].flying;
    for (index = 0; index < count; index++) {
        struct asking *asking = &askings[index];

        if (!asking->over && !asking->flying && flying < limits->connections &&
            (!asking->started || (asking->again_ns && asking->again_ns <= now))) {
            int rc = asking->started ? HEFT_OK : heft_object_exchange_init(&asking->exchange, asking->error);

            asking->started = 1;
            if (!rc)
                rc = begin(multi, limits, asking);
            if (rc)
                fail(asking, rc);
            flying += (size_t)asking->flying;
        }
        left += !asking->over;
        if (!asking->over && asking->again_ns && (!next || asking->again_ns < next))
            next = asking->again_ns;
    }
    *next_ns_out = next;
    return left;
}

/* 0, or why nothing more may be asked. */
static int is_over(const struct heft_object_client *client, struct heft_error *error)
{
    if (client->cancel && __atomic_load_n(client->cancel, __ATOMIC_RELAXED))
        return heft_error_set(error, HEFT_ERR_CANCELED, "canceled while the object store was asked");
    if (client->end_ns && heft_now_ns() >= client->end_ns)
        return heft_error_set(error, HEFT_ERR_DEADLINE,
                              "the deadline passed while the object store was asked");
    return HEFT_OK;
}

static int run_all(const struct heft_object_client *client, struct asking *askings, size_t count,
                   struct heft_error *error)
{
    const struct heft_object_limits *limits = &client->limits;
    CURLM *multi = curl_multi_init();
    uint64_t next_ns;
    size_t index;
    int rc;

    if (!multi)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for HTTP requests");
    while ((rc = is_over(client, error)) == HEFT_OK &&
           start_due(multi, limits, askings, count, &next_ns) > 0) {
        uint64_t now = heft_now_ns();
        int wait_ms = POLL_MS, running, left;
        CURLMsg *message;

        (void)curl_multi_perform(multi, &running);
        if (next_ns && next_ns < now + (uint64_t)POLL_MS * HEFT_NS_PER_MS)
            wait_ms = next_ns <= now ? 0 : (int)((next_ns - now) / HEFT_NS_PER_MS) + 1;
        while ((message = curl_multi_info_read(multi, &left)) != NULL) {
            char *private = NULL;
            CURLcode code = message->data.result;
            CURL *easy = message->easy_handle;

            if (message->msg != CURLMSG_DONE)
                continue;
            (void)curl_easy_getinfo(easy, CURLINFO_PRIVATE, &private);
            (void)curl_multi_remove_handle(multi, easy);
            finish(limits, (struct asking *)(void *)private, code);
            wait_ms = 0;
        }
        if (wait_ms > 0)
            (void)curl_multi_poll(multi, NULL, 0, wait_ms, NULL);
    }
    for (index = 0; index < count; index++) {
        if (askings[index].flying)
            (void)curl_multi_remove_handle(multi, askings[index].exchange.easy);
        if (askings[index].started)
            heft_object_exchange_free(&askings[index].exchange);
    }
    (void)curl_multi_cleanup(multi);
    return rc;
}

/* ---- fetches ---- */

int heft_object_client_init(struct heft_object_client *client, struct heft_error *error)
{
    int rc;

    *client = (struct heft_object_client){0};
    rc = heft_object_limits_read(&client->limits, error);
    return rc ? rc : heft_object_curl_init(error);
}

void heft_object_client_free(struct heft_object_client *client)
{
    heft_object_stores_free(&client->stores);
}

static int make_object(struct heft_object_client *client, const char *url, struct heft_object **object_out,
                       struct heft_error *error)
{
    int rc = heft_object_stores_use(&client->stores, heft_object_service_of(url), error);

    return rc ? rc : heft_object_make(url, &client->stores, object_out, error);
}

static void note_version(const struct heft_object *object, const struct heft_object_reply *reply,
                         char version_out[HEFT_OBJECT_VERSION_BYTES])
{
    version_out[0] = 0;
    if (object->service == HEFT_OBJECT_HUB) { /* what its listing told */
        memmove(version_out, object->version, strlen(object->version) + 1);
    } else if (reply->etag[0]) {
        memcpy(version_out, reply->etag, strlen(reply->etag) + 1);
    } else if (reply->modified[0]) {
        version_out[0] = '@';
        memcpy(version_out + 1, reply->modified, strlen(reply->modified) + 1);
    }
}

static int from_hex(const char *text, size_t digits, uint8_t *bytes_out)
{
    size_t at;

    if (strspn(text, "0123456789abcdef") < digits)
        return 0;
    for (at = 0; at < digits; at += 2) {
        const char pair[3] = {text[at], text[at + 1], 0};

        bytes_out[at / 2] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return 1;
}

/* An ETag of S3 is the MD5 of what was put in one piece; not so in directory buckets, "name--zone--x-s3". */
static void take_etag(const struct heft_object *object, const struct heft_object_reply *reply,
                      struct heft_checksum *checksum)
{
    static const char directory[] = "--x-s3";
    size_t size = object->bucket ? strlen(object->bucket) : 0;

    if (size >= sizeof(directory) - 1 &&
        strcmp(object->bucket + size - sizeof(directory) + 1, directory) == 0)
        return;
    if (checksum->kind < HEFT_CHECKSUM_MD5 && object->service == HEFT_OBJECT_S3 && !reply->is_encrypted &&
        strlen(reply->etag) == 34 && from_hex(reply->etag + 1, 32, checksum->bytes))
        checksum->kind = HEFT_CHECKSUM_MD5;
}

/* The hub's listing tells the SHA-256 of a large file in place of an ETag. */
static void take_listed(const struct heft_object *object, struct heft_checksum *checksum)
{
    if (object->service == HEFT_OBJECT_HUB && strlen(object->version) == 64 &&
        from_hex(object->version, 64, checksum->bytes))
        checksum->kind = HEFT_CHECKSUM_SHA256;
}

int heft_object_may_tell_checksum(enum heft_object_service service)
{
    return service == HEFT_OBJECT_S3 || service == HEFT_OBJECT_GOOGLE;
}

static void fill_fetch(struct heft_object_fetch *fetch, const struct asking *asking)
{
    const struct heft_object_reply *reply = &asking->exchange.reply;

    fetch->status = asking->status;
    if (fetch->status)
        return;
    note_version(asking->exchange.object, reply, fetch->found_version);
    fetch->checksum = reply->checksum;
    take_etag(asking->exchange.object, reply, &fetch->checksum);
    take_listed(asking->exchange.object, &fetch->checksum);
    if (fetch->whole)
        fetch->object_bytes = fetch->data.size;
    else if (reply->has_total)
        fetch->object_bytes = reply->total;
    else if (reply->status != 416 && reply->status != 200) {
        fetch->status = heft_error_set(&fetch->error, HEFT_ERR_PROTOCOL,
                                       "%s: the server does not tell the object's size (Content-Range)",
                                       asking->exchange.object->shown);
    }
}

static int prepare(struct heft_object_client *client, struct heft_object_fetch *fetch, struct asking *asking,
                   struct heft_object **object_out)
{
    struct heft_object *object;
    int rc = make_object(client, fetch->url, &object, &fetch->error);

    if (rc)
        return rc;
    if (fetch->version && strlen(fetch->version) < sizeof(object->version))
        memcpy(object->version, fetch->version, strlen(fetch->version) + 1);
    object->size_bytes = fetch->object_bytes;
    *object_out = object;
    asking->exchange.object = object;
    asking->exchange.kind = fetch->whole ? HEFT_OBJECT_WHOLE : HEFT_OBJECT_RANGE;
    asking->exchange.begin = fetch->offset;
    asking->exchange.length = fetch->bytes;
    asking->exchange.open_end = 1;
    heft_buf_init(&fetch->data, fetch->whole ? (size_t)fetch->limit_bytes : (size_t)fetch->bytes);
    asking->into = &fetch->data;
    return HEFT_OK;
}

int heft_object_fetch_all(struct heft_object_client *client, struct heft_object_fetch *fetches, size_t count,
                          struct heft_error *error)
{
    struct asking *askings = calloc(count ? count : 1, sizeof(*askings));
    struct heft_object **objects = calloc(count ? count : 1, sizeof(*objects));
    size_t index;
    int rc = HEFT_OK;

    if (!askings || !objects)
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for %zu requests", count);
    for (index = 0; !rc && index < count; index++) {
        askings[index].error = &fetches[index].error;
        fetches[index].status = prepare(client, &fetches[index], &askings[index], &objects[index]);
        if (fetches[index].status)
            fail(&askings[index], fetches[index].status);
    }
    if (!rc)
        rc = run_all(client, askings, count, error);
    for (index = 0; !rc && index < count; index++)
        if (objects[index])
            fill_fetch(&fetches[index], &askings[index]);
    for (index = 0; objects && index < count; index++)
        heft_object_free(objects[index]);
    free(objects);
    free(askings);
    return rc;
}

int heft_object_head(const struct heft_object_limits *limits, struct heft_object *object,
                     struct heft_error *error)
{
    struct heft_error local = HEFT_ERROR_INIT;
    const struct heft_object_client client = {.limits = *limits};
    struct asking asking = {.error = error ? error : &local};
    const struct heft_object_reply *reply = &asking.exchange.reply;
    int rc;

    asking.exchange.object = object;
    asking.exchange.kind = HEFT_OBJECT_HEAD;
    rc = run_all(&client, &asking, 1, error);
    if (!rc)
        rc = asking.status;
    if (!rc && !reply->has_length)
        rc = heft_error_set(error, HEFT_ERR_PROTOCOL,
                            "%s: the server does not tell the object's size (Content-Length)", object->shown);
    if (!rc && reply->ranges_refused)
        rc = heft_error_set(error, HEFT_ERR_UNSUPPORTED, "%s: the server serves no ranges of it",
                            object->shown);
    if (rc)
        return rc;
    object->size_bytes = reply->length;
    object->modified_s = reply->modified[0] ? (int64_t)curl_getdate(reply->modified, NULL) : 0;
    if (object->modified_s < 0) /* not a date */
        object->modified_s = 0;
    note_version(object, reply, object->version);
    return HEFT_OK;
}

/* ---- whole objects ---- */

int heft_object_checksum(struct heft_object_client *client, const char *url, const char *version,
                         struct heft_checksum *checksum_out, struct heft_error *error)
{
    struct heft_error local = HEFT_ERROR_INIT;
    struct asking asking = {.error = error ? error : &local};
    struct heft_checksum checksum = {0};
    struct heft_object *object;
    int rc = make_object(client, url, &object, asking.error);

    if (rc)
        return rc;
    if (version && strlen(version) < sizeof(object->version))
        memcpy(object->version, version, strlen(version) + 1);
    take_listed(object, &checksum);
    if (object->service != HEFT_OBJECT_HUB && object->service != HEFT_OBJECT_WEB) {
        asking.exchange.object = object;
        asking.exchange.kind = HEFT_OBJECT_HEAD;
        rc = run_all(client, &asking, 1, asking.error);
        if (!rc)
            rc = asking.status;
        checksum = asking.exchange.reply.checksum;
        take_etag(object, &asking.exchange.reply, &checksum);
    }
    heft_object_free(object);
    if (!rc)
        *checksum_out = checksum;
    return rc;
}

#define STREAM_PARTS 8u

int heft_object_stream(struct heft_object_client *client, const struct heft_object_stream *stream,
                       struct heft_error *error)
{
    struct heft_object_fetch fetches[STREAM_PARTS];
    uint64_t at = 0, end;
    size_t count, index;
    int rc = HEFT_OK;

    while (!rc && at < stream->size_bytes) {
        for (count = 0, end = at; count < STREAM_PARTS && end < stream->size_bytes; count++) {
            uint64_t left = stream->size_bytes - end;

            fetches[count] = (struct heft_object_fetch){
                .url = stream->url,
                .version = stream->version,
                .offset = end,
                .bytes = left < HEFT_OBJECT_PART_BYTES ? left : HEFT_OBJECT_PART_BYTES,
                .object_bytes = stream->size_bytes};
            end += fetches[count].bytes;
        }
        rc = heft_object_fetch_all(client, fetches, count, error);
        for (index = 0; index < count; index++) {
            if (!rc && fetches[index].status) {
                rc = fetches[index].status;
                if (error)
                    *error = fetches[index].error;
            }
            if (!rc && fetches[index].data.size != fetches[index].bytes)
                rc = heft_error_set(error, HEFT_ERR_CHANGED, "the object became shorter while it was read");
            if (!rc)
                rc = stream->take(stream->context, fetches[index].data.data, fetches[index].data.size, error);
            heft_buf_free(&fetches[index].data);
        }
        at = end;
    }
    return rc;
}

/* ---- listings ---- */

static int add_page(struct heft_s3_page *all, struct heft_s3_page *page, size_t limit,
                    struct heft_error *error)
{
    size_t want = all->entry_count + page->entry_count;
    struct heft_s3_entry *grown;

    if (want > limit)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "more than %zu objects under one prefix", limit);
    if (want > all->entry_capacity) {
        size_t capacity = want * 2;

        grown = realloc(all->entries, capacity * sizeof(*grown));
        if (!grown)
            return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a listing");
        all->entries = grown;
        all->entry_capacity = capacity;
    }
    if (page->entry_count)
        memcpy(all->entries + all->entry_count, page->entries, page->entry_count * sizeof(*grown));
    all->entry_count = want;
    page->entry_count = 0;
    return HEFT_OK;
}

/* Keys become names in the folder; what does not begin with its key was not asked for. */
static void keep_names(struct heft_s3_page *page, const char *folder, int deep)
{
    size_t size = strlen(folder), index, kept = 0;

    for (index = 0; index < page->entry_count; index++) {
        struct heft_s3_entry entry = page->entries[index];

        const char *name = strncmp(entry.key, folder, size) == 0 ? entry.key + size : "";

        /* what ends with a slash is a store's mark of a folder, not a file */
        if (!name[0] || name[strlen(name) - 1] == '/' || (!deep && strchr(name, '/'))) {
            free(entry.key);
            free(entry.etag);
            continue;
        }
        memmove(entry.key, entry.key + size, strlen(entry.key + size) + 1);
        page->entries[kept++] = entry;
    }
    page->entry_count = kept;
}

static int fetch_page(struct heft_object_client *client, const struct heft_object *object, int deep,
                      const char *token, struct heft_s3_page *page_out, struct heft_error *error)
{
    struct heft_buf query, xml;
    struct asking asking = {.error = error, .into = &xml};
    int (*parse)(const void *, size_t, struct heft_s3_page *, struct heft_error *) =
        object->service == HEFT_OBJECT_AZURE    ? heft_azure_page_parse
        : object->service == HEFT_OBJECT_GOOGLE ? heft_google_page_parse
                                                : heft_s3_page_parse;
    int rc;

    heft_buf_init(&xml, HEFT_S3_PAGE_MAX_BYTES);
    rc = object->service == HEFT_OBJECT_AZURE ? heft_object_azure_query(&query, object->key, deep, token)
                                              : heft_object_s3_query(&query, object->key, deep, token);
    if (rc)
        rc = heft_error_set(error, rc, "out of memory for a listing");
    asking.exchange.object = object;
    asking.exchange.kind = HEFT_OBJECT_LIST;
    asking.exchange.query = (const char *)query.data;
    if (!rc)
        rc = run_all(client, &asking, 1, error);
    if (!rc)
        rc = asking.status;
    if (!rc)
        rc = parse(xml.data, xml.size, page_out, error);
    heft_buf_free(&query);
    heft_buf_free(&xml);
    return rc;
}

int heft_object_list(struct heft_object_client *client, const char *url, int deep, size_t limit,
                     struct heft_s3_page *all_out, struct heft_error *error)
{
    struct heft_error local = HEFT_ERROR_INIT;
    struct heft_s3_page all = {0};
    struct heft_object *object;
    char *token = NULL;
    uint32_t pages = 0;
    int more = 1, rc;

    if (!error)
        error = &local;
    rc = make_object(client, url, &object, error);
    if (rc)
        return rc;
    while (!rc && more) {
        struct heft_s3_page page = {0};

        if (pages++ == MAX_PAGES)
            rc = heft_error_set(error, HEFT_ERR_TOO_MANY, "%s: its listing has more than %u pages",
                                object->shown, MAX_PAGES);
        if (!rc)
            rc = fetch_page(client, object, deep, token, &page, error);
        if (rc)
            break;
        if (page.truncated && token && strcmp(token, page.next_token) == 0)
            rc = heft_error_set(error, HEFT_ERR_PROTOCOL,
                                "%s: the listing's next page is the same page again", object->shown);
        keep_names(&page, object->key, deep);
        if (!rc)
            rc = add_page(&all, &page, limit, error);
        free(token);
        token = page.next_token;
        page.next_token = NULL;
        more = page.truncated;
        heft_s3_page_free(&page);
    }
    free(token);
    heft_object_free(object);
    if (rc) {
        heft_s3_page_free(&all);
        return rc;
    }
    *all_out = all;
    return HEFT_OK;
}

int heft_object_hub_list(struct heft_object_client *client, const char *name, const char *revision,
                         char commit_out[64], struct heft_s3_page *all_out, struct heft_error *error)
{
    struct heft_error local = HEFT_ERROR_INIT;
    struct heft_buf json;
    struct asking asking = {.error = error ? error : &local, .into = &json};
    struct heft_object *object = NULL;
    char *url;
    int rc;

    if (asprintf(&url, "hf://%s@", name) < 0)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a listing");
    rc = make_object(client, url, &object, asking.error);
    free(url);
    heft_buf_init(&json, HEFT_S3_PAGE_MAX_BYTES);
    if (!rc) {
        free(object->origin); /* a branch may have slashes, which a URL's commit has not */
        free(object->shown);
        object->origin = strdup(revision);
        rc = asprintf(&object->shown, "hf://%s@%s", name, revision) < 0 ? HEFT_ERR_NO_MEMORY : HEFT_OK;
        if (rc || !object->origin) {
            object->shown = rc ? NULL : object->shown;
            rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a listing");
        }
    }
    asking.exchange.object = object;
    asking.exchange.kind = HEFT_OBJECT_LIST;
    if (!rc)
        rc = run_all(client, &asking, 1, asking.error);
    if (!rc)
        rc = asking.status;
    if (!rc)
        rc = heft_hub_files_parse(json.data, json.size, commit_out, all_out, asking.error);
    heft_buf_free(&json);
    heft_object_free(object);
    return rc;
}
