/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/object/: objects of S3 services and web servers, read by HTTP ranges (docs/object.md).
 *
 *   url.c       text: percent-encoding, what may be shown of a URL, joining
 *   sigv4.c     signatures of AWS, version 4
 *   store.c     endpoint, region, addressing and credentials of S3, from environment and profile
 *   exchange.c  one request and its answer: headers sent, answer checked, failures judged
 *   client.c    many small requests at once on the calling thread: headers of files, listings
 *   parts.c     operations cut into ranges: arithmetic without I/O
 *   lane.c      ranges in flight: one libcurl multi handle a worker
 *   object.c    the transport's table, tasks from post to done
 *
 * Nothing here logs or reports a credential, a signature or the query of a URL.
 */
#ifndef HEFT_TRANSPORT_OBJECT_OBJECT_H
#define HEFT_TRANSPORT_OBJECT_OBJECT_H

#include <heft/error.h>

#include "base/buf.h"
#include "base/digest.h"
#include "format/s3_xml.h"

#include <curl/curl.h>

#define HEFT_OBJECT_PART_BYTES ((uint64_t)8 << 20) /* of a range; the last of a run may be twice that */
#define HEFT_OBJECT_GAP_BYTES ((uint64_t)1 << 20)  /* read and thrown away, not asked around */
#define HEFT_OBJECT_VERSION_BYTES 160u

/* ---- limits, each with an environment variable (docs/object.md) ---- */

struct heft_object_limits {
    uint32_t connections;    /* HEFT_OBJECT_CONNECTIONS: at once, 1..256; 64 */
    uint32_t retries;        /* HEFT_OBJECT_RETRIES: of a range without progress, 0..100; 5 */
    uint32_t slow_bytes;     /* HEFT_OBJECT_SLOW_BYTES: a second; slower for slow_s is stalled; 16 KiB */
    uint32_t slow_s;         /* HEFT_OBJECT_SLOW_S; 10 */
    uint32_t backoff_ms;     /* HEFT_OBJECT_BACKOFF_MS: first pause before a retry, doubled each time; 200 */
    uint32_t connect_ms;     /* 10,000 */
    uint32_t max_backoff_ms; /* 10,000 */
    uint32_t max_after_s;    /* the longest Retry-After that is obeyed; 60 */
};
/* INVALID names a variable whose value is no number in its range. */
int heft_object_limits_read(struct heft_object_limits *limits_out, struct heft_error *error);

/* ---- url.c ---- */

/* Percent-encodes all but unreserved characters (and '/' when keep_slash). */
void heft_object_encode(struct heft_buf *buf, const char *text, size_t size, int keep_slash);
/* Without user, password, query and fragment; malloc'ed. s3:// URLs have none of these. */
char *heft_object_shown(const char *url);
/* "<url>/<name>": the name encoded for http, before a query; malloc'ed. */
char *heft_object_join(const char *url, const char *name);
/* 1 for http:// and https://; 2 for s3://; 0 else. */
int heft_object_scheme(const char *url);
/* 1 when the bytes of this http(s) URL do not leave the machine, or are encrypted. */
int heft_object_is_private(const char *url);

/* ---- sigv4.c ---- */

struct heft_sigv4 {
    const char *method, *host;
    const char *path;  /* encoded */
    const char *query; /* encoded and sorted; "" */
    const char *region, *service;
    const char *access_key, *secret_key, *session_token; /* token NULL: none */
    const char *time;                                    /* "20130524T000000Z" */
    const char *payload_hash;                            /* hex; NULL: of no payload */
};
/* The value of the Authorization header; signed headers: host, x-amz-content-sha256, x-amz-date and, with a
 * token, x-amz-security-token. TOO_LARGE when it does not fit. */
int heft_sigv4_sign(const struct heft_sigv4 *what, char *text_out, size_t size_bytes);
extern const char heft_sigv4_no_payload[];

/* ---- store.c ---- */

struct heft_object_store {
    char endpoint[512]; /* "http://127.0.0.1:8333"; "": Amazon's own */
    char region[64];
    int path_style, has_keys;
    char access_key[256], secret_key[256];
    char *session_token;
};
/* From the environment and the profile. Errors: INVALID (half of a pair, a bad endpoint), NOT_FOUND (the
 * profile that was asked for). */
int heft_object_store_create(struct heft_object_store **store_out, struct heft_error *error);
void heft_object_store_free(struct heft_object_store *store);
/* The region that a bucket was found to be in, for the whole process. 1: known. */
int heft_object_region_of(const char *bucket, char region_out[64]);
/* 0 when no region has such a name. */
int heft_object_region_set(const char *bucket, const char *region);

/* ---- exchange.c ---- */

/* An object, or a prefix to list. Constant once made. */
struct heft_object {
    char *url;   /* http(s), or s3://bucket/key */
    char *shown; /* for people */
    char *bucket, *key;
    const struct heft_object_store *store; /* s3 only */
    uint64_t size_bytes;
    int64_t modified_s;                      /* since 1970, as the last HEAD told; 0: not told */
    char version[HEFT_OBJECT_VERSION_BYTES]; /* ETag; "@date" of Last-Modified; "": none */
};
/* store NULL: for http only. */
int heft_object_make(const char *url, const struct heft_object_store *store, struct heft_object **object_out,
                     struct heft_error *error);
void heft_object_free(struct heft_object *object);

struct heft_object_reply {
    long status;
    int has_length, has_range, has_total, ranges_refused;
    uint64_t length;
    uint64_t first, last, total; /* of Content-Range */
    uint32_t retry_after_s;
    char etag[HEFT_OBJECT_VERSION_BYTES], modified[64], encoding[32], request_id[96], region[64];
    uint64_t body_bytes; /* of this answer */
};

enum heft_object_kind { HEFT_OBJECT_RANGE, HEFT_OBJECT_WHOLE, HEFT_OBJECT_HEAD, HEFT_OBJECT_LIST };

struct heft_object_exchange {
    CURL *easy;
    struct curl_slist *headers;
    const struct heft_object *object;
    enum heft_object_kind kind;
    uint64_t begin, length; /* RANGE: what is asked for */
    int open_end;           /* RANGE: the object may be shorter */
    const char *query;      /* LIST: encoded and sorted */
    /* Takes a good answer's bytes; 0: done, else the code that ends the exchange. */
    int (*take)(void *context, const uint8_t *data, size_t size);
    void *context;
    struct heft_object_reply reply;
    uint64_t expected; /* bytes of a good body */
    int begun;         /* the answer's headers were found good */
    char signed_region[64];
    char body[2048]; /* of a bad answer */
    size_t body_kept;
    struct heft_error error; /* why the answer was refused; code 0: it wasn't */
    char curl_text[CURL_ERROR_SIZE];
};
/* Makes the handle, which lives on for other exchanges. The other fields stay. */
int heft_object_exchange_init(struct heft_object_exchange *exchange, struct heft_error *error);
void heft_object_exchange_free(struct heft_object_exchange *exchange);
/* Sets the handle up for one request: object, kind, begin, length, query, take are filled. */
int heft_object_exchange_begin(struct heft_object_exchange *exchange, const struct heft_object_limits *limits,
                               struct heft_error *error);

enum heft_object_verdict { HEFT_OBJECT_GOOD, HEFT_OBJECT_RETRY, HEFT_OBJECT_BUSY, HEFT_OBJECT_BAD };
/*
 * What became of it. RETRY and BUSY (the service asks for less) fill the error too, for the case that it was
 * the last attempt; reply.retry_after_s says when. A region that was learned makes a RETRY at once,
 * told by *moved_out.
 */
enum heft_object_verdict heft_object_exchange_end(struct heft_object_exchange *exchange, CURLcode code,
                                                  int *moved_out, struct heft_error *error);
/* Pause before attempt number `attempt` (1: the first retry), with jitter. */
uint64_t heft_object_pause_ns(const struct heft_object_limits *limits, uint32_t attempt,
                              uint32_t retry_after_s);
/* Once for the process. */
int heft_object_curl_init(struct heft_error *error);

/* ---- client.c ---- */

struct heft_object_client {
    struct heft_object_limits limits;
    struct heft_object_store *store; /* made at the first s3 URL */
    uint64_t end_ns;                 /* everything ends soon after it; 0: never */
    const uint32_t *cancel;          /* atomic: likewise when it is not 0; NULL: never */
};
int heft_object_client_init(struct heft_object_client *client, struct heft_error *error);
void heft_object_client_free(struct heft_object_client *client);

/* One small read; all of them are in flight at once, `limits.connections` at most. */
struct heft_object_fetch {
    const char *url;
    const char *version;    /* what it must be; NULL: whatever is there */
    uint64_t offset, bytes; /* at most so many; the object may be shorter */
    int whole;              /* all of it, offset and bytes aside: refused over limit_bytes */
    uint64_t limit_bytes;
    struct heft_buf data;
    uint64_t object_bytes;
    char found_version[HEFT_OBJECT_VERSION_BYTES];
    int status;
    struct heft_error error;
};
/* 0 when it could try; each fetch has its own outcome. Frees nothing of the fetches. */
int heft_object_fetch_all(struct heft_object_client *client, struct heft_object_fetch *fetches, size_t count,
                          struct heft_error *error);
/* Size and version of what an object is now; the object is filled. */
int heft_object_head(const struct heft_object_limits *limits, struct heft_object *object,
                     struct heft_error *error);
/* All keys beneath "s3://bucket/prefix", the prefix taken as it is, without what lies behind a further '/'.
 * TOO_MANY over limit entries. */
int heft_object_list(struct heft_object_client *client, const char *url, size_t limit,
                     struct heft_s3_page *all_out, struct heft_error *error);

#endif
