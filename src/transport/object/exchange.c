/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request and its answer. What is sent is built here; what comes back is believed only as far as its
 * headers say exactly what was asked for: the status, the range, the length, the version, no encoding.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "transport/object/object.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define BUFFER_BYTES (512L << 10) /* of one socket read; stays in the processor's cache */
#define BAD_BODY_LIMIT_BYTES ((uint64_t)64 << 10)
#define MAX_REDIRECTS 5L

/* ---- objects ---- */

static int check_password(const struct heft_object *object, struct heft_error *error)
{
    const char *url = object->url;
    size_t begin = (size_t)(strstr(url, "://") + 3 - url);

    if (!memchr(url + begin, '@', strcspn(url + begin, "/?#")) || heft_object_is_private(url) ||
        getenv("HEFT_OBJECT_PLAIN_CREDENTIALS"))
        return HEFT_OK;
    return heft_error_set(error, HEFT_ERR_DENIED,
                          "%s: a password would go over a plain connection; use https, or set "
                          "HEFT_OBJECT_PLAIN_CREDENTIALS=1 if the network is yours",
                          object->shown);
}

static int split(struct heft_object *object, struct heft_error *error)
{
    switch (object->service) {
    case HEFT_OBJECT_S3:
    case HEFT_OBJECT_GOOGLE:
        return heft_object_s3_split(object, error);
    case HEFT_OBJECT_AZURE:
        return heft_object_azure_split(object, error);
    case HEFT_OBJECT_HUB:
        return heft_object_hub_split(object, error);
    default:
        return check_password(object, error);
    }
}

int heft_object_make(const char *url, const struct heft_object_stores *stores,
                     struct heft_object **object_out, struct heft_error *error)
{
    enum heft_object_service service = heft_object_service_of(url);
    struct heft_object *object;
    int rc = HEFT_OK;

    if (!service)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                              "the object's place is no URL of http, https, s3, gs, az or hf");
    object = calloc(1, sizeof(*object));
    if (!object)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an object");
    (void)pthread_mutex_init(&object->lock, NULL);
    object->service = service;
    object->store = stores->of[service];
    object->url = strdup(url);
    object->shown = heft_object_shown(url);
    HEFT_ASSERT(service == HEFT_OBJECT_WEB || object->store);
    if (!object->url || !object->shown)
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an object");
    if (!rc)
        rc = split(object, error);
    if (!rc && object->key && strlen(object->key) > HEFT_S3_KEY_MAX_BYTES)
        rc = heft_error_set(error, HEFT_ERR_INVALID, "the key of %.200s... is longer than 1024 bytes",
                            object->shown);
    if (rc) {
        heft_object_free(object);
        return rc;
    }
    *object_out = object;
    return HEFT_OK;
}

void heft_object_free(struct heft_object *object)
{
    if (!object)
        return;
    heft_object_free_secret(object->url);
    free(object->shown);
    free(object->bucket);
    free(object->key);
    free(object->origin);
    heft_object_free_secret(object->sas);
    heft_object_free_secret(object->moved);
    (void)pthread_mutex_destroy(&object->lock);
    free(object);
}

/* ---- the process ---- */

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static CURLcode curl_made;

static void init_curl(void)
{
    curl_made = curl_global_init(CURL_GLOBAL_DEFAULT);
}

int heft_object_curl_init(struct heft_error *error)
{
    (void)pthread_once(&curl_once, init_curl);
    if (curl_made)
        return heft_error_set(error, HEFT_ERR_LIBRARY, "libcurl can't be used: %s",
                              curl_easy_strerror(curl_made));
    return HEFT_OK;
}

int heft_object_exchange_init(struct heft_object_exchange *exchange, struct heft_error *error)
{
    exchange->easy = curl_easy_init();
    exchange->headers = NULL;
    if (!exchange->easy)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an HTTP request");
    return HEFT_OK;
}

void heft_object_exchange_free(struct heft_object_exchange *exchange)
{
    curl_easy_cleanup(exchange->easy);
    curl_slist_free_all(exchange->headers);
    exchange->easy = NULL;
    exchange->headers = NULL;
}

/* ---- the request ---- */

int heft_object_add_header(struct heft_object_exchange *exchange, const char *format, ...)
{
    struct curl_slist *grown;
    va_list args;
    char *line;
    int size;

    va_start(args, format);
    size = vasprintf(&line, format, args);
    va_end(args);
    if (size < 0)
        return HEFT_ERR_NO_MEMORY;
    grown = curl_slist_append(exchange->headers, line);
    free(line);
    if (!grown)
        return HEFT_ERR_NO_MEMORY;
    exchange->headers = grown;
    return HEFT_OK;
}

static size_t on_header(char *line, size_t one, size_t size, void *context);
static size_t on_body(char *data, size_t one, size_t size, void *context);

static const char *ca_bundle(void)
{
    static const char *const names[] = {"HEFT_CA_BUNDLE", "AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"};
    size_t index;

    for (index = 0; index < sizeof(names) / sizeof(names[0]); index++) {
        const char *value = getenv(names[index]);

        if (value && value[0])
            return value;
    }
    return NULL;
}

static void set_transfer(struct heft_object_exchange *exchange, const struct heft_object_limits *limits)
{
    CURL *easy = exchange->easy;
    int http = exchange->object->store == NULL;
    const char *bundle = ca_bundle();

    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    /* A signed request goes to the host it was signed for and nowhere else. */
    (void)curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, http ? 1L : 0L);
    (void)curl_easy_setopt(easy, CURLOPT_MAXREDIRS, MAX_REDIRECTS);
    (void)curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR,
                           http && strncasecmp(exchange->object->url, "https", 5) == 0 ? "https"
                                                                                       : "http,https");
    (void)curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    /* One connection a range: HTTP/2 would put all of them on one. */
    (void)curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    (void)curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)limits->connect_ms);
    (void)curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, (long)limits->slow_bytes);
    (void)curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)limits->slow_s);
    (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, exchange->curl_text);
    (void)curl_easy_setopt(easy, CURLOPT_NOBODY, exchange->kind == HEFT_OBJECT_HEAD ? 1L : 0L);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERDATA, exchange);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, exchange);
    if (bundle)
        (void)curl_easy_setopt(easy, CURLOPT_CAINFO, bundle);
}

static int set_url(struct heft_object_exchange *exchange)
{
    switch (exchange->object->service) {
    case HEFT_OBJECT_S3:
    case HEFT_OBJECT_GOOGLE:
        return heft_object_s3_request(exchange);
    case HEFT_OBJECT_AZURE:
        return heft_object_azure_request(exchange);
    case HEFT_OBJECT_HUB:
        return heft_object_hub_request(exchange);
    default:
        return curl_easy_setopt(exchange->easy, CURLOPT_URL, exchange->object->url) ? HEFT_ERR_NO_MEMORY
                                                                                    : HEFT_OK;
    }
}

int heft_object_exchange_begin(struct heft_object_exchange *exchange, const struct heft_object_limits *limits,
                               struct heft_error *error)
{
    const struct heft_object *object = exchange->object;
    int rc = HEFT_OK;

    curl_easy_reset(exchange->easy); /* connections stay */
    curl_slist_free_all(exchange->headers);
    exchange->headers = NULL;
    exchange->reply = (struct heft_object_reply){0};
    exchange->begun = 0;
    exchange->body_kept = 0;
    exchange->error = (struct heft_error)HEFT_ERROR_INIT;
    exchange->curl_text[0] = 0;
    set_transfer(exchange, limits);
    exchange->range[0] = 0;
    if (exchange->kind == HEFT_OBJECT_RANGE)
        (void)snprintf(exchange->range, sizeof(exchange->range), "bytes=%" PRIu64 "-%" PRIu64,
                       exchange->begin, exchange->begin + exchange->length - 1);
    rc = set_url(exchange);
    if (!rc)
        rc = heft_object_add_header(exchange, "Accept-Encoding: identity");
    if (!rc)
        rc = heft_object_add_header(exchange, "User-Agent: heft");
    if (!rc && exchange->kind == HEFT_OBJECT_RANGE)
        rc = heft_object_add_header(exchange, "Range: %s", exchange->range);
    /* A weak one never matches: it is compared with the answer's instead. */
    if (!rc && object->version[0] == '"' && exchange->kind != HEFT_OBJECT_LIST)
        rc = heft_object_add_header(exchange, "If-Match: %s", object->version);
    if (!rc && curl_easy_setopt(exchange->easy, CURLOPT_HTTPHEADER, exchange->headers))
        rc = HEFT_ERR_NO_MEMORY;
    if (rc)
        return heft_error_set(error, rc, "%s: the request could not be made: %s", object->shown,
                              heft_error_text(rc));
    return HEFT_OK;
}

/* ---- the answer's headers ---- */

static int number_at(const char **at, uint64_t *value_out)
{
    uint64_t value = 0;
    const char *from = *at;

    for (; **at >= '0' && **at <= '9'; (*at)++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(**at - '0'), &value))
            return 0;
    *value_out = value;
    return *at != from;
}

/* "bytes 0-99/1234", "bytes 0-99/" and a star, or "bytes " and a star "/1234" */
static void read_content_range(struct heft_object_reply *reply, const char *value)
{
    uint64_t first = 0, last = 0, total = 0;
    int unsatisfied = 0;

    if (strncasecmp(value, "bytes", 5) != 0)
        return;
    value += 5 + strspn(value + 5, " =");
    if (*value == '*') {
        unsatisfied = 1;
        value++;
    } else if (!number_at(&value, &first) || *value++ != '-' || !number_at(&value, &last) || last < first) {
        return;
    }
    if (*value++ != '/')
        return;
    if (*value != '*') {
        if (!number_at(&value, &total) || *value)
            return;
        reply->has_total = 1;
        reply->total = total;
    }
    reply->has_range = !unsatisfied;
    reply->first = first;
    reply->last = last;
}

static void read_retry_after(struct heft_object_reply *reply, const char *value)
{
    uint64_t seconds;
    time_t when;

    if (number_at(&value, &seconds)) {
        reply->retry_after_s = seconds > 86400 ? 86400 : (uint32_t)seconds;
        return;
    }
    when = curl_getdate(value, NULL);
    seconds = heft_wall_ms() / 1000;
    if (when > 0 && (uint64_t)when > seconds)
        reply->retry_after_s =
            (uint64_t)when - seconds > 86400 ? 86400 : (uint32_t)((uint64_t)when - seconds);
}

static void keep_text(char *to, size_t size, const char *value)
{
    size_t at;

    if (strlen(value) >= size)
        return; /* cut, it would be another one */
    for (at = 0; value[at]; at++)
        if ((unsigned char)value[at] < 0x20 || (unsigned char)value[at] >= 0x7f)
            return;
    memcpy(to, value, strlen(value) + 1);
}

/* A checksum in base64, kept when it is better than the one that is there. */
static void keep_checksum(struct heft_object_reply *reply, enum heft_checksum_kind kind, const char *value)
{
    struct heft_checksum checksum = {.kind = kind};

    /* "...-3" is made of the checksums of three parts, and says nothing of the whole */
    if (kind > reply->checksum.kind &&
        heft_object_from_base64(value, checksum.bytes, sizeof(checksum.bytes)) ==
            (int64_t)heft_checksum_size(kind))
        reply->checksum = checksum;
}

/* "crc32c=...,md5=..." */
static void read_google_hash(struct heft_object_reply *reply, const char *value)
{
    while (*value) {
        size_t size = strcspn(value, ",");
        char text[80];

        (void)snprintf(text, sizeof(text), "%.*s", (int)(size < 79 ? size : 79), value + strspn(value, " "));
        if (strncasecmp(text, "crc32c=", 7) == 0)
            keep_checksum(reply, HEFT_CHECKSUM_CRC32C, text + 7);
        else if (strncasecmp(text, "md5=", 4) == 0)
            keep_checksum(reply, HEFT_CHECKSUM_MD5, text + 4);
        value += size + (value[size] == ',');
    }
}

/* 1: it was a header of a checksum. With a range some of them tell of the range, or of a part. */
static int read_checksum(struct heft_object_reply *reply, const char *name, const char *value, int of_range)
{
    static const struct {
        const char *name;
        enum heft_checksum_kind kind;
        int of_answer;
    } names[] = {{"x-amz-checksum-crc32", HEFT_CHECKSUM_CRC32, 1},
                 {"x-amz-checksum-crc32c", HEFT_CHECKSUM_CRC32C, 1},
                 {"x-amz-checksum-crc64nvme", HEFT_CHECKSUM_CRC64NVME, 1},
                 {"x-amz-checksum-sha1", HEFT_CHECKSUM_SHA1, 1},
                 {"x-amz-checksum-sha256", HEFT_CHECKSUM_SHA256, 1},
                 {"x-ms-blob-content-md5", HEFT_CHECKSUM_MD5, 0},
                 {"content-md5", HEFT_CHECKSUM_MD5, 1}};
    size_t index;

    if (strcasecmp(name, "x-goog-hash") == 0) {
        read_google_hash(reply, value);
        return 1;
    }
    for (index = 0; index < sizeof(names) / sizeof(names[0]); index++)
        if (strcasecmp(name, names[index].name) == 0) {
            if (!of_range || !names[index].of_answer)
                keep_checksum(reply, names[index].kind, value);
            return 1;
        }
    return 0;
}

static void read_header(struct heft_object_reply *reply, const char *name, const char *value)
{
    const char *at = value;

    if (read_checksum(reply, name, value, reply->status == 206))
        return;
    if (strcasecmp(name, "content-length") == 0)
        reply->has_length = number_at(&at, &reply->length) && *at == 0;
    else if (strcasecmp(name, "content-range") == 0)
        read_content_range(reply, value);
    else if (strcasecmp(name, "etag") == 0)
        keep_text(reply->etag, sizeof(reply->etag), value);
    else if (strcasecmp(name, "last-modified") == 0)
        keep_text(reply->modified, sizeof(reply->modified), value);
    else if (strcasecmp(name, "content-encoding") == 0)
        (void)snprintf(reply->encoding, sizeof(reply->encoding), "%s", value);
    else if (strcasecmp(name, "retry-after") == 0)
        read_retry_after(reply, value);
    else if (strcasecmp(name, "x-amz-request-id") == 0 || strcasecmp(name, "x-ms-request-id") == 0 ||
             strcasecmp(name, "x-guploader-uploadid") == 0 ||
             (strcasecmp(name, "x-request-id") == 0 && !reply->request_id[0]))
        keep_text(reply->request_id, sizeof(reply->request_id), value);
    else if (strcasecmp(name, "x-amz-bucket-region") == 0)
        keep_text(reply->region, sizeof(reply->region), value);
    else if (strcasecmp(name, "x-ms-error-code") == 0 || strcasecmp(name, "x-error-code") == 0)
        keep_text(reply->fault, sizeof(reply->fault), value);
    else if (strcasecmp(name, "x-error-message") == 0)
        keep_text(reply->message, sizeof(reply->message), value);
    else if (strcasecmp(name, "x-linked-etag") == 0)
        keep_text(reply->linked_etag, sizeof(reply->linked_etag), value);
    else if (strcasecmp(name, "x-repo-commit") == 0)
        keep_text(reply->commit, sizeof(reply->commit), value);
    else if (strcasecmp(name, "location") == 0)
        keep_text(reply->location, sizeof(reply->location), value);
    else if (strncasecmp(name, "x-amz-server-side-encryption", 28) == 0)
        reply->is_encrypted |= strcasecmp(value, "AES256") != 0 || name[28] != 0;
    else if (strcasecmp(name, "accept-ranges") == 0)
        reply->ranges_refused = strcasecmp(value, "none") == 0;
}

static size_t on_header(char *data, size_t one, size_t size, void *context)
{
    struct heft_object_exchange *exchange = context;
    char line[2560], *colon, *value;
    size_t end = size * one;

    (void)one;
    if (end >= 9 && strncmp(data, "HTTP/", 5) == 0) { /* after a redirect there is another one */
        char number[4] = "";
        const char *space = memchr(data, ' ', end);

        exchange->reply = (struct heft_object_reply){0};
        if (space && end - (size_t)(space - data) > 3)
            memcpy(number, space + 1, 3);
        exchange->reply.status = strtol(number, NULL, 10);
        exchange->body_kept = 0;
        return size;
    }
    while (end > 0 && strchr("\r\n \t", data[end - 1]))
        end--;
    if (end == 0 || end >= sizeof(line))
        return size; /* none of those that count are so long */
    memcpy(line, data, end);
    line[end] = 0;
    colon = strchr(line, ':');
    if (!colon || strlen(line) != end)
        return size;
    *colon = 0;
    value = colon + 1 + strspn(colon + 1, " \t");
    read_header(&exchange->reply, line, value);
    return size;
}

static const char *without_weak(const char *etag)
{
    return strncmp(etag, "W/", 2) == 0 ? etag + 2 : etag;
}

static int check_version(struct heft_object_exchange *exchange)
{
    const struct heft_object *object = exchange->object;
    const struct heft_object_reply *reply = &exchange->reply;
    const char *was = object->version;
    int same = 1;

    /* the hub's commit is in the URL, and each host of its bytes has ETags of its own */
    if (was[0] && object->service != HEFT_OBJECT_HUB)
        same = was[0] == '@' ? strcmp(was + 1, reply->modified) == 0
                             : strcmp(without_weak(was), without_weak(reply->etag)) == 0;
    if (same && (!object->size_bytes || !reply->has_total || reply->total == object->size_bytes))
        return HEFT_OK;
    return heft_error_set(&exchange->error, HEFT_ERR_CHANGED,
                          "%s: changed while it was read: it was version %s with %" PRIu64
                          " bytes and is now %s with %" PRIu64 "; load it again",
                          object->shown, was[0] ? was : "(none)", object->size_bytes,
                          was[0] == '@'    ? reply->modified
                          : reply->etag[0] ? reply->etag
                                           : "without an ETag",
                          reply->total);
}

static int refuse(struct heft_object_exchange *exchange, int code, const char *why)
{
    return heft_error_set(
        &exchange->error, code, "%s: asked for bytes %" PRIu64 " to %" PRIu64 ", and the server %s",
        exchange->object->shown, exchange->begin, exchange->begin + exchange->length - 1, why);
}

static int check_range(struct heft_object_exchange *exchange)
{
    const struct heft_object_reply *reply = &exchange->reply;
    uint64_t last = exchange->begin + exchange->length - 1;
    char why[160];

    if (reply->status == 200)
        return refuse(
            exchange, HEFT_ERR_UNSUPPORTED,
            "answered 200 with the whole object: it ignores Range; use a server that serves ranges");
    if (!reply->has_range)
        return refuse(exchange, HEFT_ERR_PROTOCOL, "answered 206 without a readable Content-Range");
    if (exchange->open_end && reply->has_total && last >= reply->total)
        last = reply->total ? reply->total - 1 : 0;
    if (reply->first != exchange->begin || reply->last != last) {
        (void)snprintf(why, sizeof(why), "sent bytes %" PRIu64 " to %" PRIu64 " (Content-Range)",
                       reply->first, reply->last);
        return refuse(exchange, HEFT_ERR_PROTOCOL, why);
    }
    exchange->expected = last - exchange->begin + 1;
    if (reply->has_length && reply->length != exchange->expected) {
        (void)snprintf(why, sizeof(why), "announces %" PRIu64 " of the %" PRIu64 " bytes (Content-Length)",
                       reply->length, exchange->expected);
        return refuse(exchange, HEFT_ERR_TRUNCATED, why);
    }
    return HEFT_OK;
}

/* Once an answer of the 2xx kind has all its headers: is it what was asked for? */
static int check_head(struct heft_object_exchange *exchange)
{
    const struct heft_object_reply *reply = &exchange->reply;
    char why[96];
    int rc;

    if (exchange->begun)
        return HEFT_OK;
    rc = check_version(exchange);
    if (!rc && exchange->kind != HEFT_OBJECT_HEAD && reply->encoding[0] &&
        strcasecmp(reply->encoding, "identity") != 0) {
        (void)snprintf(why, sizeof(why), "sent them with Content-Encoding %.24s, which counts other bytes",
                       reply->encoding);
        rc = exchange->kind == HEFT_OBJECT_RANGE
                 ? refuse(exchange, HEFT_ERR_INCOMPATIBLE, why)
                 : heft_error_set(&exchange->error, HEFT_ERR_INCOMPATIBLE, "%s: the server %s",
                                  exchange->object->shown, why);
    }
    if (!rc && exchange->kind == HEFT_OBJECT_RANGE)
        rc = check_range(exchange);
    else if (!rc && reply->status != 200)
        rc = heft_error_set(&exchange->error, HEFT_ERR_PROTOCOL, "%s: the server answered %ld",
                            exchange->object->shown, reply->status);
    else if (!rc)
        exchange->expected = exchange->kind == HEFT_OBJECT_HEAD ? 0
                             : reply->has_length                ? reply->length
                                                                : UINT64_MAX;
    exchange->begun = rc == HEFT_OK;
    return rc;
}

static int is_good_status(const struct heft_object_exchange *exchange)
{
    return exchange->reply.status >= 200 && exchange->reply.status < 300;
}

static size_t on_body(char *data, size_t one, size_t size, void *context)
{
    struct heft_object_exchange *exchange = context;
    struct heft_object_reply *reply = &exchange->reply;
    int rc;

    (void)one;
    if (!is_good_status(exchange)) {
        size_t room = sizeof(exchange->body) - exchange->body_kept;

        memcpy(exchange->body + exchange->body_kept, data, size < room ? size : room);
        exchange->body_kept += size < room ? size : room;
        reply->body_bytes += size;
        return reply->body_bytes > BAD_BODY_LIMIT_BYTES ? 0 : size;
    }
    if (check_head(exchange))
        return 0;
    if (size > exchange->expected - reply->body_bytes) {
        (void)heft_error_set(&exchange->error, HEFT_ERR_PROTOCOL,
                             "%s: the server sent more than the %" PRIu64 " bytes it announced",
                             exchange->object->shown, exchange->expected);
        return 0;
    }
    reply->body_bytes += size;
    rc = exchange->take ? exchange->take(exchange->context, (const uint8_t *)data, size) : HEFT_OK;
    if (rc && !exchange->error.code)
        (void)heft_error_set(&exchange->error, rc, "%s: %s", exchange->object->shown, heft_error_text(rc));
    return rc ? 0 : size;
}

/* ---- the verdict ---- */

static int code_of_status(long status)
{
    switch (status) {
    case 401:
    case 403:
    case 407:
        return HEFT_ERR_DENIED;
    case 404:
    case 410:
        return HEFT_ERR_NOT_FOUND;
    case 412:
    case 416:
        return HEFT_ERR_CHANGED;
    case 408:
    case 425:
    case 429:
        return HEFT_ERR_UNAVAILABLE;
    default:
        return status >= 500 ? HEFT_ERR_UNAVAILABLE : HEFT_ERR_DENIED;
    }
}

static const char *advice(const struct heft_object_exchange *exchange, const struct heft_s3_fault *fault)
{
    long status = exchange->reply.status;

    if (status == 412)
        return "; it changed while it was read: load it again";
    if (status == 416)
        return "; it is shorter than it was: load it again";
    if (strcmp(fault->code, "RequestTimeTooSkewed") == 0)
        return "; set this machine's clock";
    if (exchange->object->service == HEFT_OBJECT_HUB)
        return heft_object_hub_advice(exchange);
    if (exchange->object->service == HEFT_OBJECT_S3 && status >= 300 && status < 400)
        return "; set AWS_REGION to the bucket's region, or AWS_ENDPOINT_URL to its service";
    if (!exchange->object->store || exchange->object->store->login || exchange->object->sas ||
        exchange->object->store->sas)
        return "";
    /* Azure answers 404 where an unsigned request may see nothing, and 409 where it is not allowed at all. */
    if (exchange->object->service == HEFT_OBJECT_AZURE &&
        (status == 401 || status == 403 || status == 404 || status == 409))
        return "; the request was not signed: set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN";
    if (status != 401 && status != 403)
        return "";
    return exchange->object->service == HEFT_OBJECT_GOOGLE
               ? "; the request was not signed: set GOOGLE_APPLICATION_CREDENTIALS, or GS_ACCESS_KEY_ID and "
                 "GS_SECRET_ACCESS_KEY"
               : "; the request was not signed: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                 "AWS_PROFILE";
}

static int set_status_error(const struct heft_object_exchange *exchange, const struct heft_s3_fault *fault,
                            struct heft_error *error)
{
    const struct heft_object_reply *reply = &exchange->reply;
    const char *id = reply->request_id[0] ? reply->request_id : fault->request_id;

    const char *code = fault->code[0] ? fault->code : reply->fault;
    const char *message = fault->message[0] ? fault->message : reply->message;

    return heft_error_set(error, code_of_status(reply->status), "%s: the server answered %ld%s%s%s%s%s%s%s%s",
                          exchange->object->shown, reply->status, code[0] ? " " : "", code,
                          message[0] ? " (" : "", message, message[0] ? ")" : "",
                          id[0] ? ", request id " : "", id, advice(exchange, fault));
}

/* Credentials that were good: new ones are on their way. */
static int says_expired(const struct heft_object_exchange *exchange, const struct heft_s3_fault *fault)
{
    static const char *const codes[] = {"ExpiredToken", "TokenRefreshRequired", "InvalidToken",
                                        "RequestExpired", "InvalidAuthenticationInfo"};
    size_t index;

    for (index = 0; index < sizeof(codes) / sizeof(codes[0]); index++)
        if (strcmp(fault->code, codes[index]) == 0 || strcmp(exchange->reply.fault, codes[index]) == 0)
            return 1;
    return exchange->reply.status == 401;
}

static enum heft_object_verdict judge_status(struct heft_object_exchange *exchange, int *moved_out,
                                             struct heft_error *error)
{
    const struct heft_object_reply *reply = &exchange->reply;
    const struct heft_object *object = exchange->object;
    struct heft_s3_fault fault;
    long status = reply->status;
    int code;

    (void)heft_s3_fault_parse(exchange->body, exchange->body_kept, &fault);
    code = set_status_error(exchange, &fault, error);
    if (object->service == HEFT_OBJECT_S3 &&
        (status == 301 || status == 307 || status == 400 || status == 403)) {
        const char *region = reply->region[0] ? reply->region : fault.region;

        /* The answer says where the bucket is; the next request goes there, signed for it. */
        if (strcmp(region, exchange->signed_region) != 0 && heft_object_region_set(object->bucket, region)) {
            *moved_out = 1;
            return HEFT_OBJECT_RETRY;
        }
    }
    if (object->service == HEFT_OBJECT_HUB && status >= 300 && status < 400 && status != 304) {
        *moved_out = heft_object_hub_moved(exchange, error);
        return *moved_out ? HEFT_OBJECT_RETRY : HEFT_OBJECT_BAD;
    }
    /* A place that was given for a while, and is over. */
    if (object->service == HEFT_OBJECT_HUB && status >= 400 && status < 429 && status != 408 &&
        status != 416 && heft_object_hub_forget(exchange)) {
        *moved_out = 1;
        return HEFT_OBJECT_RETRY;
    }
    if (object->store && object->store->login && says_expired(exchange, &fault) &&
        heft_object_login_refused(object->store->login, exchange->secrets_number))
        return HEFT_OBJECT_RETRY;
    if (code != HEFT_ERR_UNAVAILABLE || status == 501 || status == 505)
        return HEFT_OBJECT_BAD;
    return status == 429 || status == 503 ? HEFT_OBJECT_BUSY : HEFT_OBJECT_RETRY;
}

static enum heft_object_verdict judge_failure(const struct heft_object_exchange *exchange, CURLcode code,
                                              struct heft_error *error)
{
    const char *shown = exchange->object->shown;
    const char *text = exchange->curl_text[0] ? exchange->curl_text : curl_easy_strerror(code);

    switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        (void)heft_error_set(error, HEFT_ERR_DENIED,
                             "%s: the server's certificate is not trusted: %.160s; name its authority's file "
                             "in HEFT_CA_BUNDLE",
                             shown, text);
        return HEFT_OBJECT_BAD;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_TOO_MANY_REDIRECTS:
    case CURLE_OUT_OF_MEMORY:
        (void)heft_error_set(error,
                             code == CURLE_TOO_MANY_REDIRECTS ? HEFT_ERR_PROTOCOL
                             : code == CURLE_OUT_OF_MEMORY    ? HEFT_ERR_NO_MEMORY
                                                              : HEFT_ERR_INVALID,
                             "%s: %.160s", shown, text);
        return HEFT_OBJECT_BAD;
    case CURLE_OPERATION_TIMEDOUT:
        (void)heft_error_set(error, HEFT_ERR_STALLED, "%s: %.160s", shown, text);
        return HEFT_OBJECT_RETRY;
    case CURLE_PARTIAL_FILE:
        (void)heft_error_set(error, HEFT_ERR_TRUNCATED,
                             "%s: the answer ended after %" PRIu64 " of %" PRIu64 " bytes", shown,
                             exchange->reply.body_bytes, exchange->expected);
        return HEFT_OBJECT_RETRY;
    default:
        (void)heft_error_set(error, HEFT_ERR_UNAVAILABLE, "%s: %.160s", shown, text);
        return HEFT_OBJECT_RETRY;
    }
}

enum heft_object_verdict heft_object_exchange_end(struct heft_object_exchange *exchange, CURLcode code,
                                                  int *moved_out, struct heft_error *error)
{
    *moved_out = 0;
    if (exchange->error.code) {
        *error = exchange->error;
        return HEFT_OBJECT_BAD;
    }
    /* An answer that is no good counts, however its body ended. */
    if (exchange->reply.status >= 300)
        return judge_status(exchange, moved_out, error);
    if (code != CURLE_OK)
        return judge_failure(exchange, code, error);
    if (check_head(exchange)) {
        *error = exchange->error;
        return HEFT_OBJECT_BAD;
    }
    if (exchange->expected != UINT64_MAX && exchange->reply.body_bytes != exchange->expected)
        return judge_failure(exchange, CURLE_PARTIAL_FILE, error);
    return HEFT_OBJECT_GOOD;
}

uint64_t heft_object_pause_ns(const struct heft_object_limits *limits, uint32_t attempt,
                              uint32_t retry_after_s)
{
    uint64_t pause_ms = limits->backoff_ms, after_ms;
    uint32_t random;

    while (attempt-- > 1 && pause_ms < limits->max_backoff_ms)
        pause_ms *= 2;
    if (pause_ms > limits->max_backoff_ms)
        pause_ms = limits->max_backoff_ms;
    heft_random_bytes(&random, sizeof(random));
    pause_ms = pause_ms / 2 + random % (pause_ms / 2 + 1);
    after_ms = (uint64_t)(retry_after_s < limits->max_after_s ? retry_after_s : limits->max_after_s) * 1000;
    /* All that were sent away together must not come back together. */
    if (after_ms > 0)
        pause_ms = after_ms + random % (after_ms / 8 + 1);
    return pause_ms * HEFT_NS_PER_MS;
}
