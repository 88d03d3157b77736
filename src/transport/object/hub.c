/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hugging Face's hub, or a mirror of it (HF_ENDPOINT): hf://org/name@commit/file. The hub says once where a
 * large file's bytes are, often at another host and for a limited time; ranges go straight there until it
 * refuses, and then the hub is asked again. The token goes to the hub's own host and to no other.
 */
#include "base/error.h"
#include "transport/object/object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define TOKEN_BYTES ((size_t)4096)

static const char default_endpoint[] = "https://huggingface.co";

/* ---- who asks ---- */

/* The token that the hub's own tools keep in a file; NULL: none. */
static char *read_token_file(void)
{
    const char *path = heft_object_variable("HF_TOKEN_PATH"), *home = heft_object_variable("HF_HOME");
    const char *cache = heft_object_variable("XDG_CACHE_HOME"), *user = heft_object_variable("HOME");
    char *made = NULL, *text = NULL;
    int size = 0;

    if (path)
        size = asprintf(&made, "%s", path);
    else if (home)
        size = asprintf(&made, "%s/token", home);
    else if (cache)
        size = asprintf(&made, "%s/huggingface/token", cache);
    else if (user)
        size = asprintf(&made, "%s/.cache/huggingface/token", user);
    if (size <= 0 || heft_object_read_text(made, TOKEN_BYTES, &text, NULL))
        text = NULL;
    free(size > 0 ? made : NULL);
    return text;
}

int heft_object_hub_setup(struct heft_object_store *store, struct heft_error *error)
{
    const char *endpoint = heft_object_variable("HF_ENDPOINT"), *given = heft_object_variable("HF_TOKEN");
    const char *implicit = heft_object_variable("HF_HUB_DISABLE_IMPLICIT_TOKEN");
    struct heft_object_secrets secrets = {.auth = HEFT_OBJECT_BEARER};
    char *token;
    int rc = heft_object_copy(store->endpoint, sizeof(store->endpoint),
                              endpoint ? endpoint : default_endpoint, "HF_ENDPOINT", error);

    if (!rc)
        rc = heft_object_check_endpoint(store->endpoint, 1, "HF_ENDPOINT", error);
    if (rc || heft_object_anonymous())
        return rc;
    if (!given)
        given = heft_object_variable("HUGGING_FACE_HUB_TOKEN");
    token = given ? strdup(given) : implicit && strcmp(implicit, "0") != 0 ? NULL : read_token_file();
    if (token)
        token[strcspn(token, " \t\r\n")] = 0;
    if (!token || !token[0]) {
        free(token);
        return HEFT_OK;
    }
    secrets.token = calloc(1, strlen(token) + 1);
    rc = secrets.token ? heft_object_copy(secrets.token, strlen(token) + 1, token, "HF_TOKEN", error)
                       : heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for the hub");
    heft_object_free_secret(token);
    if (rc) {
        heft_object_secrets_free(&secrets);
        return rc;
    }
    return heft_object_login_keep(&secrets, &store->login, error);
}

/* ---- objects ---- */

int heft_object_hub_split(struct heft_object *object, struct heft_error *error)
{
    const char *name = object->url + 5, *at = strchr(name, '@'), *path = at ? strchr(at, '/') : NULL;

    if (!at || at == name ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") <
            (size_t)(at - name))
        return heft_error_set(error, HEFT_ERR_INVALID, "%s: hf://org/name@commit/file is needed",
                              object->shown);
    object->bucket = strndup(name, (size_t)(at - name));
    object->origin = path ? strndup(at + 1, (size_t)(path - at - 1)) : strdup(at + 1);
    object->key = strdup(path ? path + 1 : "");
    if (!object->bucket || !object->origin || !object->key)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for the object %s", object->shown);
    return HEFT_OK;
}

static int add_token(struct heft_object_exchange *exchange, const char *url)
{
    struct heft_object_store *store = exchange->object->store;
    struct heft_object_secrets secrets = {0};
    int rc;

    if (!store->login || !heft_object_same_host(url, store->endpoint))
        return HEFT_OK;
    rc = heft_object_login_get(store->login, &secrets);
    exchange->secrets_number = secrets.number;
    if (!rc)
        rc = heft_object_add_header(exchange, "Authorization: Bearer %s", secrets.token);
    heft_object_secrets_free(&secrets);
    return rc;
}

int heft_object_hub_request(struct heft_object_exchange *exchange)
{
    struct heft_object *object = (struct heft_object *)(uintptr_t)exchange->object;
    struct heft_buf url;
    int rc;

    heft_buf_init(&url, SIZE_MAX);
    exchange->moved = 0;
    if (exchange->kind == HEFT_OBJECT_LIST) {
        heft_buf_printf(&url, "%s/api/models/%s/revision/", object->store->endpoint, object->bucket);
        heft_object_encode(&url, object->origin, strlen(object->origin), 0);
        heft_buf_printf(&url, "?blobs=true");
    } else {
        (void)pthread_mutex_lock(&object->lock);
        exchange->moved = object->moved != NULL;
        if (object->moved)
            heft_buf_printf(&url, "%s", object->moved);
        (void)pthread_mutex_unlock(&object->lock);
        if (!exchange->moved) {
            heft_buf_printf(&url, "%s/%s/resolve/", object->store->endpoint, object->bucket);
            heft_object_encode(&url, object->origin, strlen(object->origin), 0);
            heft_buf_u8(&url, '/');
            heft_object_encode(&url, object->key, strlen(object->key), 1);
        }
    }
    heft_buf_u8(&url, 0);
    rc = url.failed;
    if (!rc)
        rc = add_token(exchange, (const char *)url.data);
    if (!rc && curl_easy_setopt(exchange->easy, CURLOPT_URL, (const char *)url.data))
        rc = HEFT_ERR_NO_MEMORY;
    heft_buf_free(&url);
    return rc;
}

/* ---- redirects ---- */

/* An absolute URL, or a path at the host that answered; malloc'ed. */
static char *absolute(const char *location, const char *asked)
{
    const char *host = strstr(asked, "://") + 3;
    char *url = NULL;

    if (heft_object_is_web(location))
        return strdup(location);
    if (location[0] != '/' || location[1] == '/' ||
        asprintf(&url, "%.*s%s", (int)((size_t)(host - asked) + strcspn(host, "/?#")), asked, location) < 0)
        return NULL;
    return url;
}

/* The SHA-256 of a large file that the hub tells with the redirect is the one that its listing told. */
static int check_linked(const struct heft_object_exchange *exchange, struct heft_error *error)
{
    const struct heft_object *object = exchange->object;
    const struct heft_object_reply *reply = &exchange->reply;
    const char *linked = reply->linked_etag;
    size_t size;

    if (reply->commit[0] && strlen(object->origin) == 40 && strcmp(reply->commit, object->origin) != 0)
        return heft_error_set(error, HEFT_ERR_CHANGED, "%s: the hub answered for commit %s", object->shown,
                              reply->commit);
    if (strncmp(linked, "W/", 2) == 0)
        linked += 2;
    linked += linked[0] == '"';
    size = strcspn(linked, "\"");
    if (exchange->moved || size != 64 || strlen(object->version) != 64 ||
        strncmp(linked, object->version, 64) == 0)
        return HEFT_OK;
    return heft_error_set(error, HEFT_ERR_CHANGED,
                          "%s: the hub's file is SHA-256 %.16s..., its listing said %.16s...", object->shown,
                          linked, object->version);
}

int heft_object_hub_moved(struct heft_object_exchange *exchange, struct heft_error *error)
{
    struct heft_object *object = (struct heft_object *)(uintptr_t)exchange->object;
    char *asked = NULL, *url;

    (void)curl_easy_getinfo(exchange->easy, CURLINFO_EFFECTIVE_URL, &asked);
    if (!asked || !heft_object_is_web(asked) || !exchange->reply.location[0]) {
        (void)heft_error_set(error, HEFT_ERR_PROTOCOL, "%s: the hub redirects without saying where",
                             object->shown);
        return 0;
    }
    if (check_linked(exchange, error))
        return 0;
    url = absolute(exchange->reply.location, asked);
    if (!url || (strncasecmp(asked, "https://", 8) == 0 && strncasecmp(url, "https://", 8) != 0)) {
        (void)heft_error_set(error, HEFT_ERR_DENIED, "%s: the hub redirects to no URL that may be followed",
                             object->shown);
        free(url);
        return 0;
    }
    (void)pthread_mutex_lock(&object->lock);
    free(object->moved);
    object->moved = url;
    (void)pthread_mutex_unlock(&object->lock);
    return 1;
}

int heft_object_hub_forget(struct heft_object_exchange *exchange)
{
    struct heft_object *object = (struct heft_object *)(uintptr_t)exchange->object;
    char *asked = NULL;

    if (!exchange->moved)
        return 0;
    (void)curl_easy_getinfo(exchange->easy, CURLINFO_EFFECTIVE_URL, &asked);
    (void)pthread_mutex_lock(&object->lock);
    /* another range may have learned a new place already */
    if (object->moved && asked && strcmp(object->moved, asked) == 0) {
        free(object->moved);
        object->moved = NULL;
    }
    (void)pthread_mutex_unlock(&object->lock);
    return 1;
}

const char *heft_object_hub_advice(const struct heft_object_exchange *exchange)
{
    const char *fault = exchange->reply.fault;
    long status = exchange->reply.status;

    if (strcmp(fault, "GatedRepo") == 0)
        return "; its owner grants access by hand: ask for it on the model's page, then set HF_TOKEN to a "
               "token of "
               "that account";
    if (strcmp(fault, "RepoNotFound") == 0 || (status == 401 && !fault[0]))
        return "; there is no such model, or it is private: check its name, or set HF_TOKEN to a token that "
               "may read "
               "it";
    if (strcmp(fault, "RevisionNotFound") == 0)
        return "; it has no such branch, tag or commit";
    if (strcmp(fault, "EntryNotFound") == 0)
        return "; the revision has no such file";
    return status == 403 ? "; the token (HF_TOKEN) may not read it" : "";
}
