/* SPDX-License-Identifier: Apache-2.0 */
/*
 * S3: endpoint, addressing, signed requests, listings. Google's XML interface speaks the same, with its own
 * endpoint, and with a bearer token in the place of a signature where there is no pair of HMAC keys.
 */
#include "base/clock.h"
#include "base/error.h"
#include "transport/object/object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define AUTHORIZATION_BYTES 768u

int heft_object_s3_setup(struct heft_object_store *store, struct heft_error *error)
{
    const char *style = heft_object_variable("HEFT_S3_ADDRESSING");
    struct heft_aws_profile profile;
    int rc = heft_aws_profile_read(&profile, error);

    if (rc)
        return rc;
    rc = heft_object_copy(store->region, sizeof(store->region), profile.region ? profile.region : "us-east-1",
                          "the S3 region", error);
    if (!rc)
        rc = heft_object_copy(store->endpoint, sizeof(store->endpoint), profile.endpoint, "the S3 endpoint",
                              error);
    if (!rc && store->endpoint[0])
        rc = heft_object_check_endpoint(store->endpoint, 0, "AWS_ENDPOINT_URL", error);
    if (!rc && style && strcmp(style, "path") != 0 && strcmp(style, "virtual") != 0)
        rc = heft_error_set(error, HEFT_ERR_INVALID,
                            "HEFT_S3_ADDRESSING is '%.16s': path or virtual is needed", style);
    store->path_style = style ? strcmp(style, "path") == 0 : store->endpoint[0] != 0;
    if (!rc)
        rc = heft_aws_login(&profile, store, &store->login, error);
    heft_aws_profile_free(&profile);
    return rc;
}

int heft_object_s3_split(struct heft_object *object, struct heft_error *error)
{
    const char *bucket = object->url + 5;
    size_t size = strcspn(bucket, "/");
    size_t most = object->service == HEFT_OBJECT_GOOGLE ? 222 : 63;

    if (size < 1 || size > most ||
        strspn(bucket, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") < size)
        return heft_error_set(error, HEFT_ERR_INVALID, "%s: no bucket has such a name", object->shown);
    object->bucket = strndup(bucket, size);
    object->key = strdup(bucket[size] ? bucket + size + 1 : "");
    if (!object->bucket || !object->key)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for the object %s", object->shown);
    return HEFT_OK;
}

/* ---- requests ---- */

/* Where a request goes. */
struct place {
    const char *scheme;
    char host[768];
    struct heft_buf path; /* encoded, with a NUL */
};

static void find_place(const struct heft_object_exchange *exchange, struct place *place)
{
    const struct heft_object *object = exchange->object;
    const struct heft_object_store *store = object->store;
    const char *endpoint = store->endpoint;
    int path_style = store->path_style;

    if (endpoint[0]) {
        place->scheme = strncasecmp(endpoint, "https", 5) == 0 ? "https" : "http";
        endpoint = strstr(endpoint, "://") + 3;
        (void)snprintf(place->host, sizeof(place->host), "%s%s%s", path_style ? "" : object->bucket,
                       path_style ? "" : ".", endpoint);
    } else {
        place->scheme = "https";
        /* a dot in the bucket's name would not match the server's certificate */
        path_style |=
            strspn(object->bucket, "abcdefghijklmnopqrstuvwxyz0123456789-") < strlen(object->bucket);
        (void)snprintf(place->host, sizeof(place->host), "%s%ss3.%s.amazonaws.com",
                       path_style ? "" : object->bucket, path_style ? "" : ".", exchange->signed_region);
    }
    heft_buf_init(&place->path, SIZE_MAX);
    heft_buf_u8(&place->path, '/');
    if (path_style)
        heft_object_encode(&place->path, object->bucket, strlen(object->bucket), 0);
    if (path_style && exchange->kind != HEFT_OBJECT_LIST)
        heft_buf_u8(&place->path, '/');
    if (exchange->kind != HEFT_OBJECT_LIST)
        heft_object_encode(&place->path, object->key, strlen(object->key), 1);
    heft_buf_u8(&place->path, 0);
}

/* S3 tells an object's checksum only when it is asked to. */
static int wants_checksum(const struct heft_object_exchange *exchange)
{
    return exchange->kind == HEFT_OBJECT_HEAD && exchange->object->service == HEFT_OBJECT_S3;
}

static int add_signature(struct heft_object_exchange *exchange, const struct place *place,
                         const struct heft_object_secrets *secrets)
{
    char authorization[AUTHORIZATION_BYTES], when[24];
    time_t now = (time_t)(heft_wall_ms() / 1000);
    struct tm parts;
    struct heft_sigv4 what = {.method = exchange->kind == HEFT_OBJECT_HEAD ? "HEAD" : "GET",
                              .host = place->host,
                              .path = (const char *)place->path.data,
                              .query = exchange->query ? exchange->query : "",
                              .region = exchange->signed_region,
                              .service = "s3",
                              .access_key = secrets->access_key,
                              .secret_key = secrets->secret_key,
                              .session_token = secrets->token,
                              .checksum_mode = wants_checksum(exchange),
                              .time = when};
    int rc;

    if (!gmtime_r(&now, &parts) || strftime(when, sizeof(when), "%Y%m%dT%H%M%SZ", &parts) == 0)
        return HEFT_ERR_SYSTEM;
    rc = heft_sigv4_sign(&what, authorization, sizeof(authorization));
    if (!rc)
        rc = heft_object_add_header(exchange, "Authorization: %s", authorization);
    if (!rc)
        rc = heft_object_add_header(exchange, "x-amz-date: %s", when);
    if (!rc)
        rc = heft_object_add_header(exchange, "x-amz-content-sha256: %s", heft_sigv4_no_payload);
    if (!rc && secrets->token)
        rc = heft_object_add_header(exchange, "x-amz-security-token: %s", secrets->token);
    return rc;
}

static int add_secrets(struct heft_object_exchange *exchange, const struct place *place)
{
    struct heft_object_login *login = exchange->object->store->login;
    struct heft_object_secrets secrets = {0};
    int rc;

    if (!login)
        return HEFT_OK;
    rc = heft_object_login_get(login, &secrets);
    exchange->secrets_number = secrets.number;
    if (!rc && secrets.auth == HEFT_OBJECT_BEARER)
        rc = heft_object_add_header(exchange, "Authorization: Bearer %s", secrets.token);
    else if (!rc)
        rc = add_signature(exchange, place, &secrets);
    heft_object_secrets_free(&secrets);
    return rc;
}

int heft_object_s3_request(struct heft_object_exchange *exchange)
{
    const struct heft_object *object = exchange->object;
    struct place place;
    char *url = NULL;
    int rc;

    if (!heft_object_region_of(object->bucket, exchange->signed_region))
        (void)snprintf(exchange->signed_region, sizeof(exchange->signed_region), "%s", object->store->region);
    find_place(exchange, &place);
    rc = place.path.failed;
    if (!rc)
        rc = add_secrets(exchange, &place);
    if (!rc && wants_checksum(exchange))
        rc = heft_object_add_header(exchange, "x-amz-checksum-mode: ENABLED");
    if (!rc && asprintf(&url, "%s://%s%s%s%s", place.scheme, place.host, (const char *)place.path.data,
                        exchange->query ? "?" : "", exchange->query ? exchange->query : "") < 0)
        rc = HEFT_ERR_NO_MEMORY;
    if (!rc && curl_easy_setopt(exchange->easy, CURLOPT_URL, url))
        rc = HEFT_ERR_NO_MEMORY;
    free(url);
    heft_buf_free(&place.path);
    return rc;
}

/* Names sorted, as the signature wants them. */
int heft_object_s3_query(struct heft_buf *query, const char *prefix, int deep, const char *token)
{
    heft_buf_init(query, SIZE_MAX);
    if (token) {
        heft_buf_printf(query, "continuation-token=");
        heft_object_encode(query, token, strlen(token), 0);
        heft_buf_u8(query, '&');
    }
    heft_buf_printf(query, "%slist-type=2&prefix=", deep ? "" : "delimiter=%2F&");
    heft_object_encode(query, prefix, strlen(prefix), 0);
    heft_buf_u8(query, 0);
    return query->failed;
}
