/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Google Cloud Storage: who asks. A pair of HMAC keys, or the application default credentials: the file that
 * GOOGLE_APPLICATION_CREDENTIALS names, the one that gcloud wrote, or the instance's metadata. Requests and
 * listings go through the XML interface (s3.c). Source: Google's AIP-4110 to 4115 and the reference of OAuth
 * 2.0 for server applications.
 */
#include "base/clock.h"
#include "base/error.h"
#include "transport/object/object.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES ((size_t)256 << 10)
#define LIFETIME_S 3600u

static const char scope[] = "https://www.googleapis.com/auth/devstorage.read_only";

/* A file, or else the metadata service's URL. */
struct account {
    char path[1024], url[512];
};

static int ask_as_service(const json_t *file, const uint32_t *cancel, struct heft_object_secrets *secrets_out,
                          struct heft_error *error)
{
    const char *email = json_string_value(json_object_get(file, "client_email"));
    const char *pem = json_string_value(json_object_get(file, "private_key"));
    const char *url = json_string_value(json_object_get(file, "token_uri"));
    uint64_t now = heft_wall_ms() / 1000;
    char *claims = NULL, *jwt = NULL;
    struct heft_buf form;
    json_t *body;
    int rc;

    if (!email || !pem || !url)
        return heft_error_set(error, HEFT_ERR_INVALID, "it lacks client_email, private_key or token_uri");
    body = json_pack("{s:s,s:s,s:s,s:I,s:I}", "iss", email, "scope", scope, "aud", url, "iat",
                     (json_int_t)now, "exp", (json_int_t)(now + LIFETIME_S));
    claims = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    rc = claims ? heft_object_jwt(claims, pem, &jwt, error)
                : heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for credentials");
    heft_buf_init(&form, SIZE_MAX);
    if (!rc) {
        heft_object_form_add(&form, "grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer");
        heft_object_form_add(&form, "assertion", jwt);
        rc = heft_object_form_post(url, &form, cancel, secrets_out, error);
    }
    heft_buf_free(&form);
    free(claims);
    heft_object_free_secret(jwt);
    return rc;
}

static int ask_as_user(const json_t *file, const uint32_t *cancel, struct heft_object_secrets *secrets_out,
                       struct heft_error *error)
{
    const char *id = json_string_value(json_object_get(file, "client_id"));
    const char *secret = json_string_value(json_object_get(file, "client_secret"));
    const char *refresh = json_string_value(json_object_get(file, "refresh_token"));
    const char *url = json_string_value(json_object_get(file, "token_uri"));
    struct heft_buf form;
    int rc;

    if (!id || !secret || !refresh)
        return heft_error_set(error, HEFT_ERR_INVALID, "it lacks client_id, client_secret or refresh_token");
    heft_buf_init(&form, SIZE_MAX);
    heft_object_form_add(&form, "grant_type", "refresh_token");
    heft_object_form_add(&form, "client_id", id);
    heft_object_form_add(&form, "client_secret", secret);
    heft_object_form_add(&form, "refresh_token", refresh);
    rc = heft_object_form_post(url ? url : "https://oauth2.googleapis.com/token", &form, cancel, secrets_out,
                               error);
    if (form.data)
        explicit_bzero(form.data, form.size);
    heft_buf_free(&form);
    return rc;
}

/* Read again at each renewal: the file may have been replaced. */
static int fetch_by_file(void *context, const uint32_t *cancel, struct heft_object_secrets *secrets_out,
                         struct heft_error *error)
{
    const struct account *account = context;
    char *text = NULL;
    const char *type;
    json_t *file;
    int rc = heft_object_read_text(account->path, FILE_BYTES, &text, error);

    if (rc)
        return heft_error_prefix(error, rc, "the Google credentials");
    file = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    type = json_string_value(json_object_get(file, "type"));
    if (!type)
        rc = heft_error_set(error, HEFT_ERR_INVALID, "it is no credentials file: no JSON with a type");
    else if (strcmp(type, "service_account") == 0)
        rc = ask_as_service(file, cancel, secrets_out, error);
    else if (strcmp(type, "authorized_user") == 0)
        rc = ask_as_user(file, cancel, secrets_out, error);
    else
        rc = heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                            "its type is %.64s; service_account and authorized_user are understood", type);
    json_decref(file);
    heft_object_free_secret(text);
    return rc ? heft_error_prefix(error, rc, "the Google credentials in %s", account->path) : HEFT_OK;
}

static int fetch_by_instance(void *context, const uint32_t *cancel, struct heft_object_secrets *secrets_out,
                             struct heft_error *error)
{
    const struct account *account = context;
    struct heft_object_ask ask = {.url = account->url, .timeout_ms = 1000, .attempts = 1, .cancel = cancel};
    int rc;

    ask.headers[0] = "Metadata-Flavor: Google";
    rc = heft_object_ask(&ask, error);
    if (!rc)
        rc = heft_object_take_bearer(&ask, secrets_out, error);
    heft_object_ask_free(&ask);
    return rc ? heft_error_prefix(error, rc, "the instance's metadata") : HEFT_OK;
}

/* 1: a file is named, or lies where gcloud writes it. */
static int find_file(char *path_out, size_t size)
{
    const char *named = heft_object_variable("GOOGLE_APPLICATION_CREDENTIALS");
    const char *config = heft_object_variable("CLOUDSDK_CONFIG"), *home = heft_object_variable("HOME");

    if (named)
        return (size_t)snprintf(path_out, size, "%s", named) < size;
    if (config)
        (void)snprintf(path_out, size, "%.900s/application_default_credentials.json", config);
    else if (home)
        (void)snprintf(path_out, size, "%.900s/.config/gcloud/application_default_credentials.json", home);
    else
        return 0;
    return access(path_out, F_OK) == 0;
}

static int find_login(struct heft_object_store *store, struct heft_error *error)
{
    const char *host = heft_object_variable("GCE_METADATA_HOST"), *off = heft_object_variable("NO_GCE_CHECK");
    struct account *account = calloc(1, sizeof(*account));
    struct heft_error local = HEFT_ERROR_INIT;
    int rc;

    if (!account)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for credentials");
    if (find_file(account->path, sizeof(account->path)))
        return heft_object_login_create(fetch_by_file, account, &store->login, error);
    if (off && !host) {
        free(account);
        return HEFT_OK;
    }
    (void)snprintf(account->url, sizeof(account->url),
                   "http://%.300s/computeMetadata/v1/instance/service-accounts/default/token",
                   host ? host : "169.254.169.254");
    rc = heft_object_login_create(fetch_by_instance, account, &store->login, &local);
    /* Most machines are no instances: unsigned, then. */
    if (rc == HEFT_ERR_NO_MEMORY || (rc && host)) {
        if (error)
            *error = local;
        return rc;
    }
    return HEFT_OK;
}

int heft_object_google_setup(struct heft_object_store *store, struct heft_error *error)
{
    const char *access = heft_object_variable("GS_ACCESS_KEY_ID");
    const char *secret = heft_object_variable("GS_SECRET_ACCESS_KEY");
    const char *endpoint = heft_object_variable("STORAGE_EMULATOR_HOST");
    struct heft_object_secrets secrets = {.auth = HEFT_OBJECT_KEYS};
    int rc;

    store->path_style = 1;
    (void)snprintf(store->region, sizeof(store->region), "auto");
    if (endpoint && !strstr(endpoint, "://"))
        rc = snprintf(store->endpoint, sizeof(store->endpoint), "http://%.400s", endpoint) > 0
                 ? HEFT_OK
                 : HEFT_ERR_INVALID;
    else
        rc = heft_object_copy(store->endpoint, sizeof(store->endpoint),
                              endpoint ? endpoint : "https://storage.googleapis.com", "STORAGE_EMULATOR_HOST",
                              error);
    if (!rc)
        rc = heft_object_check_endpoint(store->endpoint, 0, "STORAGE_EMULATOR_HOST", error);
    if (rc || heft_object_anonymous())
        return rc;
    if (!access && !secret)
        return find_login(store, error);
    if (!access || !secret)
        return heft_error_set(
            error, HEFT_ERR_INVALID,
            "the environment has half of a key pair: GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY "
            "belong together");
    rc = heft_object_copy(secrets.access_key, sizeof(secrets.access_key), access, "GS_ACCESS_KEY_ID", error);
    if (!rc)
        rc = heft_object_copy(secrets.secret_key, sizeof(secrets.secret_key), secret, "GS_SECRET_ACCESS_KEY",
                              error);
    return rc ? rc : heft_object_login_keep(&secrets, &store->login, error);
}
