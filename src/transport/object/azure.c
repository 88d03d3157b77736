/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Azure Blob storage: az://container/key of the account that the environment names, and
 * https://ACCOUNT.blob.core.windows.net/container/key of any. Requests are signed with the account's key,
 * carry a shared access signature, or a bearer's token of a service principal, a workload or a managed
 * identity. Sources: Microsoft's references "Authorize with Shared Key", "List Blobs" and "Get Blob", version
 * 2021-08-06.
 */
#include "base/clock.h"
#include "base/error.h"
#include "transport/object/object.h"

#include <openssl/crypto.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define VERSION "2021-08-06"
#define KEY_BYTES 128u
#define TOKEN_FILE_BYTES ((size_t)64 << 10)

static const char resource[] = "https://storage.azure.com/";

/* ---- who asks ---- */

/* All that a renewal needs; texts of the environment, copied. */
struct identity {
    char url[512], client[96], header[256], token_file[512];
    char secret[256];
    int metadata; /* GET of a metadata service, not POST of a form */
};

static int fetch_identity(void *context, const uint32_t *cancel, struct heft_object_secrets *secrets_out,
                          struct heft_error *error)
{
    const struct identity *identity = context;
    struct heft_object_ask ask = {.url = identity->url, .timeout_ms = 2000, .attempts = 2, .cancel = cancel};
    struct heft_buf form;
    char *token = NULL;
    int rc = HEFT_OK;

    if (identity->metadata) {
        ask.headers[0] = identity->header[0] ? identity->header : "Metadata: true";
        rc = heft_object_ask(&ask, error);
        if (!rc)
            rc = heft_object_take_bearer(&ask, secrets_out, error);
        heft_object_ask_free(&ask);
        return rc ? heft_error_prefix(error, rc, "the managed identity") : HEFT_OK;
    }
    if (identity->token_file[0])
        rc = heft_object_read_text(identity->token_file, TOKEN_FILE_BYTES, &token, error);
    if (rc)
        return heft_error_prefix(error, rc, "AZURE_FEDERATED_TOKEN_FILE");
    heft_buf_init(&form, SIZE_MAX);
    heft_object_form_add(&form, "grant_type", "client_credentials");
    heft_object_form_add(&form, "client_id", identity->client);
    heft_object_form_add(&form, "scope", "https://storage.azure.com/.default");
    if (token) {
        token[strcspn(token, "\r\n")] = 0;
        heft_object_form_add(&form, "client_assertion_type",
                             "urn:ietf:params:oauth:client-assertion-type:jwt-bearer");
        heft_object_form_add(&form, "client_assertion", token);
    } else {
        heft_object_form_add(&form, "client_secret", identity->secret);
    }
    rc = heft_object_form_post(identity->url, &form, cancel, secrets_out, error);
    if (form.data)
        OPENSSL_cleanse(form.data, form.size);
    heft_buf_free(&form);
    heft_object_free_secret(token);
    return rc ? heft_error_prefix(error, rc, "the service principal %s", identity->client) : HEFT_OK;
}

/* A principal's or workload's token endpoint; 0 when the environment names none. */
static int is_principal(struct identity *identity)
{
    const char *tenant = heft_object_variable("AZURE_TENANT_ID"),
               *client = heft_object_variable("AZURE_CLIENT_ID");
    const char *secret = heft_object_variable("AZURE_CLIENT_SECRET");
    const char *file = heft_object_variable("AZURE_FEDERATED_TOKEN_FILE");
    const char *host = heft_object_variable("AZURE_AUTHORITY_HOST");
    size_t size;

    if (!tenant || !client || (!secret && !file))
        return 0;
    if (!host)
        host = "https://login.microsoftonline.com";
    size = strlen(host);
    (void)snprintf(identity->url, sizeof(identity->url), "%.300s%s%.96s/oauth2/v2.0/token", host,
                   host[size - 1] == '/' ? "" : "/", tenant);
    (void)snprintf(identity->client, sizeof(identity->client), "%s", client);
    (void)snprintf(identity->secret, sizeof(identity->secret), "%s", secret ? secret : "");
    (void)snprintf(identity->token_file, sizeof(identity->token_file), "%s", secret || !file ? "" : file);
    return 1;
}

/* 1: the environment says that there is one. */
static int describe_managed(struct identity *identity)
{
    const char *endpoint = heft_object_variable("IDENTITY_ENDPOINT"),
               *header = heft_object_variable("IDENTITY_HEADER");
    const char *host = heft_object_variable("AZURE_POD_IDENTITY_AUTHORITY_HOST");
    const char *client = heft_object_variable("AZURE_CLIENT_ID");

    identity->metadata = 1;
    if (endpoint && header) {
        (void)snprintf(identity->url, sizeof(identity->url),
                       "%.300s?api-version=2019-08-01&resource=%s%s%.96s", endpoint, resource,
                       client ? "&client_id=" : "", client ? client : "");
        (void)snprintf(identity->header, sizeof(identity->header), "X-IDENTITY-HEADER: %s", header);
        return 1;
    }
    (void)snprintf(identity->url, sizeof(identity->url),
                   "%.200s/metadata/identity/oauth2/token?api-version=2018-02-01&resource=%s%s%.96s",
                   host ? host : "http://169.254.169.254", resource, client ? "&client_id=" : "",
                   client ? client : "");
    return host != NULL || client != NULL;
}

static int find_identity(struct heft_object_store *store, struct heft_error *error)
{
    struct identity *identity = calloc(1, sizeof(*identity));
    struct heft_error local = HEFT_ERROR_INIT;
    int must, rc;

    if (!identity)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for credentials");
    must = is_principal(identity) || describe_managed(identity);
    rc = heft_object_login_create(fetch_identity, identity, &store->login, &local);
    /* Most machines have no identity: unsigned, then. */
    if (rc == HEFT_ERR_NO_MEMORY || (rc && must)) {
        if (error)
            *error = local;
        return rc;
    }
    return HEFT_OK;
}

/* ---- the account ---- */

/* The value of "name=value;..." up to the next ';'; malloc'ed; NULL: it isn't there. */
static char *part_of(const char *text, const char *name)
{
    size_t size = strlen(name);

    while (text && *text) {
        if (strncasecmp(text, name, size) == 0 && text[size] == '=')
            return strndup(text + size + 1, strcspn(text + size + 1, ";"));
        text = strchr(text, ';');
        text = text ? text + 1 : NULL;
    }
    return NULL;
}

struct settings {
    char *account, *key, *sas, *endpoint;
};

static void free_settings(struct settings *settings)
{
    free(settings->account);
    heft_object_free_secret(settings->key);
    heft_object_free_secret(settings->sas);
    free(settings->endpoint);
}

static char *copy_variable(const char *name)
{
    const char *value = heft_object_variable(name);

    return value ? strdup(value) : NULL;
}

/* The connection string goes first: it is one thing, and whole. */
static void read_settings(struct settings *settings)
{
    const char *connection = heft_object_variable("AZURE_STORAGE_CONNECTION_STRING");
    char *suffix;

    if (!connection) {
        settings->account = copy_variable("AZURE_STORAGE_ACCOUNT");
        settings->key = copy_variable("AZURE_STORAGE_KEY");
        settings->sas = copy_variable("AZURE_STORAGE_SAS_TOKEN");
        settings->endpoint = copy_variable("AZURE_STORAGE_SERVICE_ENDPOINT");
        return;
    }
    settings->account = part_of(connection, "AccountName");
    settings->key = part_of(connection, "AccountKey");
    settings->sas = part_of(connection, "SharedAccessSignature");
    settings->endpoint = part_of(connection, "BlobEndpoint");
    suffix = part_of(connection, "EndpointSuffix");
    if (!settings->endpoint && suffix && settings->account &&
        asprintf(&settings->endpoint, "https://%s.blob.%s", settings->account, suffix) < 0)
        settings->endpoint = NULL;
    free(suffix);
}

static int take_key(struct heft_object_store *store, const char *key, struct heft_error *error)
{
    struct heft_object_secrets secrets = {.auth = HEFT_OBJECT_KEYS};
    uint8_t bytes[KEY_BYTES];
    int rc =
        heft_object_copy(secrets.secret_key, sizeof(secrets.secret_key), key, "the account's key", error);

    if (!rc && heft_object_from_base64(key, bytes, sizeof(bytes)) < 16)
        rc = heft_error_set(error, HEFT_ERR_INVALID,
                            "the account's key (AZURE_STORAGE_KEY) is no base64 of one");
    OPENSSL_cleanse(bytes, sizeof(bytes));
    if (rc) {
        heft_object_secrets_free(&secrets);
        return rc;
    }
    return heft_object_login_keep(&secrets, &store->login, error);
}

int heft_object_azure_setup(struct heft_object_store *store, struct heft_error *error)
{
    struct settings settings = {0};
    int rc;

    read_settings(&settings);
    rc = heft_object_copy(store->account, sizeof(store->account), settings.account, "AZURE_STORAGE_ACCOUNT",
                          error);
    if (!rc)
        rc = heft_object_copy(store->endpoint, sizeof(store->endpoint), settings.endpoint,
                              "AZURE_STORAGE_SERVICE_ENDPOINT", error);
    if (!rc && store->account[0] &&
        strspn(store->account, "abcdefghijklmnopqrstuvwxyz0123456789") < strlen(store->account))
        rc = heft_error_set(error, HEFT_ERR_INVALID, "AZURE_STORAGE_ACCOUNT is no name of an account");
    if (!rc && !store->endpoint[0] && store->account[0])
        (void)snprintf(store->endpoint, sizeof(store->endpoint), "https://%s.blob.core.windows.net",
                       store->account);
    if (!rc && store->endpoint[0])
        rc = heft_object_check_endpoint(store->endpoint, 1, "AZURE_STORAGE_SERVICE_ENDPOINT", error);
    if (!rc && !heft_object_anonymous()) {
        if (settings.key && settings.account) {
            rc = take_key(store, settings.key, error);
        } else if (settings.key) {
            rc = heft_error_set(
                error, HEFT_ERR_INVALID,
                "there is a key of an Azure account and no account: set AZURE_STORAGE_ACCOUNT");
        } else if (settings.sas) {
            store->sas = strdup(settings.sas + (settings.sas[0] == '?'));
            rc =
                store->sas ? HEFT_OK : heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a store");
        } else {
            rc = find_identity(store, error);
        }
    }
    free_settings(&settings);
    return rc;
}

/* ---- objects ---- */

/* https://ACCOUNT.host/container/key?sas */
static int split_web(struct heft_object *object)
{
    const char *url = object->url, *path = strstr(url, "://") + 3;
    size_t begin = strcspn(path, "/?#"), size, end;

    object->origin = strndup(url, (size_t)(path - url) + begin);
    path += begin;
    path += *path == '/';
    end = strcspn(path, "?#");
    size = strcspn(path, "/?#");
    object->bucket = heft_object_decode(path, size);
    object->key = size < end ? heft_object_decode(path + size + 1, end - size - 1) : strdup("");
    if (path[end] == '?' && strstr(path + end, "sig="))
        object->sas = strndup(path + end + 1, strcspn(path + end + 1, "#"));
    return object->origin && object->bucket && object->key ? HEFT_OK : HEFT_ERR_NO_MEMORY;
}

int heft_object_azure_split(struct heft_object *object, struct heft_error *error)
{
    const char *container = object->url + 5;
    size_t size = strcspn(container, "/");
    int rc = HEFT_OK;

    if (heft_object_is_web(object->url)) {
        rc = split_web(object);
    } else if (!object->store->endpoint[0]) {
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "%s: of which account? set AZURE_STORAGE_ACCOUNT, or write "
                              "https://ACCOUNT.blob.core.windows.net/container/...",
                              object->shown);
    } else {
        object->bucket = strndup(container, size);
        object->key = strdup(container[size] ? container + size + 1 : "");
        rc = object->bucket && object->key ? HEFT_OK : HEFT_ERR_NO_MEMORY;
    }
    if (rc)
        return heft_error_set(error, rc, "out of memory for the object %s", object->shown);
    size = strlen(object->bucket);
    if (size < 1 || size > 63 || strspn(object->bucket, "abcdefghijklmnopqrstuvwxyz0123456789-$") < size)
        return heft_error_set(error, HEFT_ERR_INVALID, "%s: no container has such a name", object->shown);
    return HEFT_OK;
}

/* ---- requests ---- */

/* The parameters of a sorted query as lines "name:value", decoded. */
static int add_parameters(struct heft_buf *text, const char *query)
{
    while (query && *query) {
        size_t size = strcspn(query, "&"), name = strcspn(query, "=");
        char *value = name < size ? heft_object_decode(query + name + 1, size - name - 1) : strdup("");

        if (!value)
            return HEFT_ERR_NO_MEMORY;
        heft_buf_printf(text, "\n%.*s:%s", (int)(name < size ? name : size), query, value);
        free(value);
        query += size + (query[size] == '&');
    }
    return text->failed;
}

/* HMAC-SHA256 of the request's canonical text, by the account's key. */
static int add_shared_key(struct heft_object_exchange *exchange, const char *path, const char *when,
                          const char *secret)
{
    const struct heft_object *object = exchange->object;
    const char *match =
        object->version[0] == '"' && exchange->kind != HEFT_OBJECT_LIST ? object->version : "";
    uint8_t key[KEY_BYTES], digest[HEFT_SHA256_BYTES];
    int64_t key_bytes = heft_object_from_base64(secret, key, sizeof(key));
    struct heft_buf text;
    char *signature = NULL;
    int rc;

    heft_buf_init(&text, SIZE_MAX);
    /* verb; encoding, language, length, MD5, type, date, If-Modified-Since; If-Match; ...; Range */
    heft_buf_printf(&text, "%s\n\n\n\n\n\n\n\n%s\n\n\n%s\nx-ms-date:%s\nx-ms-version:" VERSION "\n/%s%s",
                    exchange->kind == HEFT_OBJECT_HEAD ? "HEAD" : "GET", match, exchange->range, when,
                    object->store->account, path);
    rc = add_parameters(&text, exchange->query);
    if (!rc && key_bytes > 0) {
        struct heft_part part = {text.data, text.size};

        heft_hmac_sha256(key, (size_t)key_bytes, &part, 1, digest);
        signature = heft_object_base64(digest, sizeof(digest), 0);
    }
    OPENSSL_cleanse(key, sizeof(key));
    heft_buf_free(&text);
    if (!rc)
        rc = signature ? heft_object_add_header(exchange, "Authorization: SharedKey %s:%s",
                                                object->store->account, signature)
                       : HEFT_ERR_NO_MEMORY;
    free(signature);
    return rc;
}

/* 1: the store's secrets belong to the account that is asked. A token is its holder's, at any account. */
static int is_own(const struct heft_object *object)
{
    return !object->origin ||
           heft_object_same_host(object->origin,
                                 object->store->endpoint[0] ? object->store->endpoint : "https://");
}

static int add_secrets(struct heft_object_exchange *exchange, const char *path)
{
    const struct heft_object *object = exchange->object;
    struct heft_object_secrets secrets = {0};
    time_t now = (time_t)(heft_wall_ms() / 1000);
    char when[40];
    struct tm parts;
    int rc;

    if (!gmtime_r(&now, &parts) || strftime(when, sizeof(when), "%a, %d %b %Y %H:%M:%S GMT", &parts) == 0)
        return HEFT_ERR_SYSTEM;
    rc = heft_object_add_header(exchange, "x-ms-version: " VERSION);
    if (!rc)
        rc = heft_object_add_header(exchange, "x-ms-date: %s", when);
    if (rc || object->sas || !object->store->login)
        return rc;
    rc = heft_object_login_get(object->store->login, &secrets);
    exchange->secrets_number = secrets.number;
    if (!rc && secrets.auth == HEFT_OBJECT_BEARER &&
        heft_object_is_private(object->origin ? object->origin : object->store->endpoint))
        rc = heft_object_add_header(exchange, "Authorization: Bearer %s", secrets.token);
    else if (!rc && secrets.auth == HEFT_OBJECT_KEYS && is_own(object))
        rc = add_shared_key(exchange, path, when, secrets.secret_key);
    heft_object_secrets_free(&secrets);
    return rc;
}

int heft_object_azure_request(struct heft_object_exchange *exchange)
{
    const struct heft_object *object = exchange->object;
    const char *origin = object->origin ? object->origin : object->store->endpoint;
    const char *sas = object->sas ? object->sas : is_own(object) ? object->store->sas : NULL;
    const char *query = exchange->query, *path;
    struct heft_buf url;
    int rc;

    heft_buf_init(&url, SIZE_MAX);
    heft_buf_printf(&url, "%s/", origin);
    heft_object_encode(&url, object->bucket, strlen(object->bucket), 0);
    if (exchange->kind != HEFT_OBJECT_LIST) {
        heft_buf_u8(&url, '/');
        heft_object_encode(&url, object->key, strlen(object->key), 1);
    }
    heft_buf_u8(&url, 0);
    rc = url.failed;
    if (!rc) {
        path = strchr(strstr((const char *)url.data, "://") + 3, '/');
        rc = add_secrets(exchange, path);
    }
    if (!rc && (query || sas)) {
        url.size--; /* the NUL */
        heft_buf_printf(&url, "?%s%s%s", query ? query : "", query && sas ? "&" : "", sas ? sas : "");
        heft_buf_u8(&url, 0);
        rc = url.failed;
    }
    if (!rc && curl_easy_setopt(exchange->easy, CURLOPT_URL, (const char *)url.data))
        rc = HEFT_ERR_NO_MEMORY;
    heft_buf_free(&url);
    return rc;
}

/* Names sorted, as the signature wants them. */
int heft_object_azure_query(struct heft_buf *query, const char *prefix, int deep, const char *token)
{
    heft_buf_init(query, SIZE_MAX);
    heft_buf_printf(query, "comp=list%s", deep ? "" : "&delimiter=%2F");
    if (token) {
        heft_buf_printf(query, "&marker=");
        heft_object_encode(query, token, strlen(token), 0);
    }
    heft_buf_printf(query, "&prefix=");
    heft_object_encode(query, prefix, strlen(prefix), 0);
    heft_buf_printf(query, "&restype=container");
    heft_buf_u8(query, 0);
    return query->failed;
}
