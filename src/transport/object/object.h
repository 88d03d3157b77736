/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/object/: objects of S3 services and web servers, read by HTTP ranges (docs/object.md).
 *
 *   url.c       text: percent-encoding, what may be shown of a URL, joining
 *   sigv4.c     signatures of AWS, version 4
 *   text.c      base64, times, a signed JWT
 *   limits.c    numbers from the environment
 *   ask.c       one small question to an identity service, on the calling thread
 *   login.c     secrets of a store, made anew before they expire
 *   store.c     the services that a process knows, each made at its first URL
 *   s3.c        S3, and Google's XML interface, which speaks the same: addressing, signing, listing
 *   profile.c   AWS's environment variables and profiles
 *   aws.c       AWS's roles: web identity, containers, instance metadata
 *   oauth.c     token endpoints
 *   google.c    Google's application default credentials
 *   azure.c     Azure Blob: shared key, SAS, bearer
 *   hub.c       Hugging Face's hub: revisions, files, where a file's bytes are
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
#include "base/checksum.h"
#include "base/digest.h"
#include "format/hub_files.h"
#include "format/s3_xml.h"

#include <curl/curl.h>
#include <pthread.h>

#define HEFT_OBJECT_PART_BYTES ((uint64_t)8 << 20)   /* of a range; the last of a run may be half more */
#define HEFT_OBJECT_WHOLE_BYTES ((uint64_t)16 << 20) /* an operation of no more is not cut */
#define HEFT_OBJECT_GAP_BYTES ((uint64_t)1 << 20)    /* read and thrown away, not asked around */
#define HEFT_OBJECT_VERSION_BYTES 160u

/* ---- limits, each with an environment variable (docs/object.md) ---- */

struct heft_object_limits {
    uint32_t connections; /* HEFT_OBJECT_CONNECTIONS: at once, 1..256; 64 */
    uint32_t retries;     /* HEFT_OBJECT_RETRIES: of a range without progress, 0..100; 5 */
    uint32_t slow_bytes;  /* HEFT_OBJECT_SLOW_BYTES: a second; slower for slow_s is stalled; 16 KiB */
    uint32_t slow_s;      /* HEFT_OBJECT_SLOW_S; 10 */
    uint32_t hedge_ms; /* HEFT_OBJECT_HEDGE_MS: a range this old that lags is asked again; 0: never; 2,000 */
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
/* What a percent-encoded text of so many bytes means; malloc'ed; NULL: out of memory, or a NUL in it. */
char *heft_object_decode(const char *text, size_t size);
/* Without user, password, query and fragment; malloc'ed. Only web URLs have these. */
char *heft_object_shown(const char *url);
/* "<url>/<name>": the name encoded for the web, before a query; malloc'ed. */
char *heft_object_join(const char *url, const char *name);
/* 1 for http:// and https://. */
int heft_object_is_web(const char *url);
/* 1 when the bytes of this http(s) URL do not leave the machine, or are encrypted. */
int heft_object_is_private(const char *url);
/* 1 when both http(s) URLs lead to one scheme, host and port. */
int heft_object_same_host(const char *one, const char *two);

/* ---- text.c ---- */

/* Base64 of RFC 4648, the URL's alphabet without padding when for_url; with a NUL, malloc'ed. */
char *heft_object_base64(const void *data, size_t size, int for_url);
/* The bytes, at most `most`; -1: it is none. */
int64_t heft_object_from_base64(const char *text, uint8_t *data_out, size_t most);
/* "2026-11-30T12:00:00Z" as milliseconds since 1970; 0: it is none. */
uint64_t heft_object_time_ms(const char *text);
/* header.claims.signature by RS256 and a PEM key; malloc'ed. INVALID: no such key. */
int heft_object_jwt(const char *claims, const char *pem, char **text_out, struct heft_error *error);
/* All of a file as text, at most limit_bytes; malloc'ed. NOT_FOUND, TOO_LARGE, PERMISSION, IO. */
int heft_object_read_text(const char *path, size_t limit_bytes, char **text_out, struct heft_error *error);
/* The environment's value; NULL when it is unset or empty. */
const char *heft_object_variable(const char *name);
/* Copies a value that stands in headers: nothing but printable ASCII. NULL: nothing is copied. */
int heft_object_copy(char *to, size_t size, const char *from, const char *what, struct heft_error *error);
/* Cleanses and frees. */
void heft_object_free_secret(char *text);

/* ---- sigv4.c ---- */

struct heft_sigv4 {
    const char *method, *host;
    const char *path;  /* encoded */
    const char *query; /* encoded and sorted; "" */
    const char *region, *service;
    const char *access_key, *secret_key, *session_token; /* token NULL: none */
    const char *time;                                    /* "20130524T000000Z" */
    const char *payload_hash;                            /* hex; NULL: of no payload */
    int checksum_mode;                                   /* "x-amz-checksum-mode: ENABLED" is sent */
};
/* The value of the Authorization header; signed headers: host, x-amz-content-sha256, x-amz-date and, when
 * they are sent, x-amz-checksum-mode and x-amz-security-token. TOO_LARGE when it does not fit. */
int heft_sigv4_sign(const struct heft_sigv4 *what, char *text_out, size_t size_bytes);
extern const char heft_sigv4_no_payload[];

/* ---- ask.c ---- */

/* A question to an identity service: small, blocking, bounded in time. */
struct heft_object_ask {
    const char *method; /* NULL: GET */
    const char *url;
    const char *headers[6]; /* NULL: no more */
    const char *body;       /* NULL: none */
    uint32_t timeout_ms;    /* of one attempt; 0: 10 s */
    uint32_t attempts;      /* 0: 3 */
    const uint32_t *cancel; /* atomic: ends it when not 0; NULL: never */
    long status;            /* out, as the next: of the last answer */
    struct heft_buf answer; /* with a NUL; the caller's to free */
};
/* UNAVAILABLE, DENIED, ...: no answer of the 2xx kind; the sentence has the URL without its query. */
int heft_object_ask(struct heft_object_ask *ask, struct heft_error *error);
void heft_object_ask_free(struct heft_object_ask *ask);

/* ---- secrets ---- */

enum heft_object_auth { HEFT_OBJECT_KEYS = 1, HEFT_OBJECT_BEARER };

struct heft_object_secrets {
    enum heft_object_auth auth;
    char access_key[256], secret_key[256];
    char *token;         /* session token, or the bearer's; malloc'ed */
    uint64_t expires_ms; /* wall clock; 0: never */
    uint64_t number;     /* of their fetch */
};
void heft_object_secrets_free(struct heft_object_secrets *secrets);

/* ---- oauth.c ---- */

/* One more field of an application/x-www-form-urlencoded text. */
void heft_object_form_add(struct heft_buf *form, const char *name, const char *value);
/* Posts the form to a token endpoint and takes the bearer's token from its answer. */
int heft_object_form_post(const char *url, struct heft_buf *form, const uint32_t *cancel,
                          struct heft_object_secrets *secrets_out, struct heft_error *error);
/* {"access_token": ..., "expires_in": ...} of an answer. */
int heft_object_take_bearer(const struct heft_object_ask *ask, struct heft_object_secrets *secrets_out,
                            struct heft_error *error);

/* ---- login.c ---- */

/* Asks who we are; runs on the caller's thread at first, on the login's own later. */
typedef int heft_object_login_fetch(void *context, const uint32_t *cancel,
                                    struct heft_object_secrets *secrets_out, struct heft_error *error);
struct heft_object_login;
/* Secrets that stay; taken over, whatever the result. */
int heft_object_login_keep(struct heft_object_secrets *secrets, struct heft_object_login **login_out,
                           struct heft_error *error);
/* Fetches once; when the secrets expire, a thread fetches them anew before. context is free'd with free(). */
int heft_object_login_create(heft_object_login_fetch *fetch, void *context,
                             struct heft_object_login **login_out, struct heft_error *error);
void heft_object_login_free(struct heft_object_login *login);
/* A copy; NO_MEMORY. */
int heft_object_login_get(struct heft_object_login *login, struct heft_object_secrets *secrets_out);
/* A service refused those of this number as expired: fetched anew soon, unless newer ones are there. 1: a
 * later attempt may succeed. */
int heft_object_login_refused(struct heft_object_login *login, uint64_t number);

/* ---- store.c ---- */

enum heft_object_service {
    HEFT_OBJECT_WEB = 1,
    HEFT_OBJECT_S3,
    HEFT_OBJECT_GOOGLE,
    HEFT_OBJECT_AZURE,
    HEFT_OBJECT_HUB,
    HEFT_OBJECT_SERVICES
};
/* 0: no URL of any of them. */
enum heft_object_service heft_object_service_of(const char *url);

/* Where a service is and who asks. Constant once made, but for the login's secrets. */
struct heft_object_store {
    enum heft_object_service service;
    char endpoint[512]; /* "http://127.0.0.1:8333"; "": the service's own */
    char region[64];
    char account[64]; /* Azure's */
    char *sas;        /* Azure's shared access signature, without '?' */
    int path_style;
    struct heft_object_login *login; /* NULL: requests go unsigned */
};
/* One store a service, made at its first use; zeroed at first. Not locked. */
struct heft_object_stores {
    struct heft_object_store *of[HEFT_OBJECT_SERVICES];
};
/* Errors: INVALID (half of a pair, a bad endpoint), NOT_FOUND (the profile that was asked for), DENIED and
 * UNAVAILABLE (nobody tells who we are). */
int heft_object_stores_use(struct heft_object_stores *stores, enum heft_object_service service,
                           struct heft_error *error);
void heft_object_stores_free(struct heft_object_stores *stores);
/* By service: fills a store from the environment. */
int heft_object_s3_setup(struct heft_object_store *store, struct heft_error *error);
int heft_object_google_setup(struct heft_object_store *store, struct heft_error *error);
int heft_object_azure_setup(struct heft_object_store *store, struct heft_error *error);
int heft_object_hub_setup(struct heft_object_store *store, struct heft_error *error);
/* http(s)://host[:port] and, where allowed, a path; closing slashes are cut. */
int heft_object_check_endpoint(char *endpoint, int may_have_path, const char *name, struct heft_error *error);
/* HEFT_OBJECT_ANONYMOUS is set: nobody is asked who we are. */
int heft_object_anonymous(void);
/* The region that a bucket was found to be in, for the whole process. 1: known. */
int heft_object_region_of(const char *bucket, char region_out[64]);
/* 0 when no region has such a name. */
int heft_object_region_set(const char *bucket, const char *region);

/* ---- profile.c, aws.c ---- */

/* What environment and profile say. Strings are malloc'ed, NULL where nothing is said. */
struct heft_aws_profile {
    char *access_key, *secret_key, *session_token;
    char *region, *endpoint;
    char *role, *token_file, *session_name; /* of a web identity */
    int asked;                              /* AWS_PROFILE is set */
};
int heft_aws_profile_read(struct heft_aws_profile *profile_out, struct heft_error *error);
void heft_aws_profile_free(struct heft_aws_profile *profile);
/* login stays NULL when nobody tells. */
int heft_aws_login(const struct heft_aws_profile *profile, const struct heft_object_store *store,
                   struct heft_object_login **login_out, struct heft_error *error);

/* ---- exchange.c ---- */

/* An object, or a prefix to list. Constant once made, but for a hub's answer of where its bytes are. */
struct heft_object {
    char *url;   /* as given */
    char *shown; /* for people */
    enum heft_object_service service;
    char *bucket, *key;              /* of a store: bucket, container or "org/name", and what is in it */
    char *origin;                    /* Azure: "https://account.host"; hub: the commit */
    char *sas;                       /* Azure: of the URL */
    struct heft_object_store *store; /* NULL: a web server */
    uint32_t server;                 /* where it is asked for, in its transport's list */
    uint64_t size_bytes;
    int64_t modified_s;                      /* since 1970, as the last HEAD told; 0: not told */
    char version[HEFT_OBJECT_VERSION_BYTES]; /* ETag; "@date" of Last-Modified; "": none */
    pthread_mutex_t lock;                    /* guards: */
    char *moved;                             /* hub: where the bytes are until it says otherwise */
};
/* The URL's service must be in use already. */
int heft_object_make(const char *url, const struct heft_object_stores *stores,
                     struct heft_object **object_out, struct heft_error *error);
void heft_object_free(struct heft_object *object);

struct heft_object_reply {
    long status;
    int has_length, has_range, has_total, ranges_refused;
    uint64_t length;
    uint64_t first, last, total; /* of Content-Range */
    uint32_t retry_after_s;
    char etag[HEFT_OBJECT_VERSION_BYTES], modified[64], encoding[32], request_id[96], region[64];
    char fault[64], message[192]; /* the service's own words in headers: Azure's, the hub's */
    char linked_etag[HEFT_OBJECT_VERSION_BYTES], commit[64]; /* the hub's */
    char location[2048];
    struct heft_checksum checksum; /* of the whole object: the best that was told */
    int is_encrypted;              /* S3: its ETag is no MD5 */
    uint64_t body_bytes;           /* of this answer */
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
    char range[64];    /* "bytes=0-99"; "" for none */
    char signed_region[64];
    uint64_t secrets_number; /* of what it was signed with */
    int moved;               /* hub: goes to where the bytes are, not to the hub */
    char body[2048];         /* of a bad answer */
    size_t body_kept;
    struct heft_error error; /* why the answer was refused; code 0: it wasn't */
    char curl_text[CURL_ERROR_SIZE];
};
/* Makes the handle, which lives on for other exchanges. The other fields stay. */
int heft_object_exchange_init(struct heft_object_exchange *exchange, struct heft_error *error);
void heft_object_exchange_free(struct heft_object_exchange *exchange);
/* "Name: value" for the request being made. */
int heft_object_add_header(struct heft_object_exchange *exchange, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
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

/* ---- s3.c, azure.c, hub.c: by service ---- */

/* bucket, key and the rest of an object from its URL. */
int heft_object_s3_split(struct heft_object *object, struct heft_error *error);
int heft_object_azure_split(struct heft_object *object, struct heft_error *error);
int heft_object_hub_split(struct heft_object *object, struct heft_error *error);
/* The request's URL and what says who asks. */
int heft_object_s3_request(struct heft_object_exchange *exchange);
int heft_object_azure_request(struct heft_object_exchange *exchange);
int heft_object_hub_request(struct heft_object_exchange *exchange);
/* The query of one page of a listing. */
int heft_object_s3_query(struct heft_buf *query, const char *prefix, int deep, const char *token);
int heft_object_azure_query(struct heft_buf *query, const char *prefix, int deep, const char *token);
/* A redirect of the hub was answered: 1 when the bytes are asked for there. error: why it is not followed. */
int heft_object_hub_moved(struct heft_object_exchange *exchange, struct heft_error *error);
/* Where the bytes were is refused now: forgotten. 1: the hub is asked again. */
int heft_object_hub_forget(struct heft_object_exchange *exchange);
/* What to do about a refusal; "" when nothing is known. */
const char *heft_object_hub_advice(const struct heft_object_exchange *exchange);

/* ---- client.c ---- */

struct heft_object_client {
    struct heft_object_limits limits;
    struct heft_object_stores stores;
    uint64_t end_ns;        /* everything ends soon after it; 0: never */
    const uint32_t *cancel; /* atomic: likewise when it is not 0; NULL: never */
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
    uint64_t object_bytes; /* in: what it must be; 0: any. out: what it is */
    char found_version[HEFT_OBJECT_VERSION_BYTES];
    struct heft_checksum checksum; /* of the whole object, when the store told it unasked; else NONE */
    int status;
    struct heft_error error;
};
/* 1 for services that may tell a checksum to heft_object_checksum when they told none with a range. */
int heft_object_may_tell_checksum(enum heft_object_service service);
/* 0 when it could try; each fetch has its own outcome. Frees nothing of the fetches. */
int heft_object_fetch_all(struct heft_object_client *client, struct heft_object_fetch *fetches, size_t count,
                          struct heft_error *error);
/* An object's bytes from the first to the last, in order, read in several parts at once. */
struct heft_object_stream {
    const char *url;
    const char *version; /* what it must be */
    uint64_t size_bytes; /* likewise */
    /* In order; not 0 ends it with that code, and the error that it set. */
    int (*take)(void *context, const uint8_t *data, size_t size, struct heft_error *error);
    void *context;
};
int heft_object_stream(struct heft_object_client *client, const struct heft_object_stream *stream,
                       struct heft_error *error);
/* What the store says that the whole object's checksum is; kind NONE when it tells none. */
int heft_object_checksum(struct heft_object_client *client, const char *url, const char *version,
                         struct heft_checksum *checksum_out, struct heft_error *error);
/* Size and version of what an object is now; the object is filled. */
int heft_object_head(const struct heft_object_limits *limits, struct heft_object *object,
                     struct heft_error *error);
/* The names beneath a folder's URL, without (unless deep) what lies behind a further '/': keys are cut to
 * what follows the folder. TOO_MANY over limit entries. */
int heft_object_list(struct heft_object_client *client, const char *url, int deep, size_t limit,
                     struct heft_s3_page *all_out, struct heft_error *error);
/* The commit that a revision of "org/name" is, and the repository's files: entries with their size and, as
 * ETag, their SHA-256 (64 digits) or the digest that git has of them (40). */
int heft_object_hub_list(struct heft_object_client *client, const char *name, const char *revision,
                         char commit_out[64], struct heft_s3_page *all_out, struct heft_error *error);

#endif
