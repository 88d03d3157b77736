/* SPDX-License-Identifier: Apache-2.0 */
/* The services that a process knows, and what it learned of them. Each is made at its first URL. */
#include "base/error.h"
#include "transport/object/object.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A storage account's blobs: Microsoft's clouds. */
static int is_azure_host(const char *url)
{
    static const char *const endings[] = {".blob.core.windows.net", ".blob.core.chinacloudapi.cn",
                                          ".blob.core.usgovcloudapi.net", ".blob.storage.azure.net"};
    const char *host = strstr(url, "://") + 3;
    size_t size = strcspn(host, "/?#:"), index;

    for (index = 0; index < sizeof(endings) / sizeof(endings[0]); index++) {
        size_t bytes = strlen(endings[index]);

        if (size > bytes && strncasecmp(host + size - bytes, endings[index], bytes) == 0)
            return 1;
    }
    return 0;
}

enum heft_object_service heft_object_service_of(const char *url)
{
    if (heft_object_is_web(url))
        return is_azure_host(url) ? HEFT_OBJECT_AZURE : HEFT_OBJECT_WEB;
    if (strncasecmp(url, "s3://", 5) == 0)
        return HEFT_OBJECT_S3;
    if (strncasecmp(url, "gs://", 5) == 0)
        return HEFT_OBJECT_GOOGLE;
    if (strncasecmp(url, "az://", 5) == 0)
        return HEFT_OBJECT_AZURE;
    return strncasecmp(url, "hf://", 5) == 0 ? HEFT_OBJECT_HUB : 0;
}

int heft_object_anonymous(void)
{
    const char *value = heft_object_variable("HEFT_OBJECT_ANONYMOUS");

    return value && strcmp(value, "0") != 0;
}

int heft_object_check_endpoint(char *endpoint, int may_have_path, const char *name, struct heft_error *error)
{
    size_t size = strlen(endpoint);
    char *shown;
    int good;

    while (size > 0 && endpoint[size - 1] == '/')
        endpoint[--size] = 0;
    shown = heft_object_is_web(endpoint) ? heft_object_shown(endpoint) : NULL;
    good = shown && strcmp(shown, endpoint) == 0 && strstr(endpoint, "://")[3] &&
           (may_have_path || !strchr(strstr(endpoint, "://") + 3, '/'));
    free(shown);
    return good ? HEFT_OK
                : heft_error_set(error, HEFT_ERR_INVALID,
                                 "the endpoint is not http(s)://host[:port]%s; see %s",
                                 may_have_path ? "[/path]" : "", name);
}

/* Tokens are worth as much as passwords. */
static int check_privacy(const struct heft_object_store *store, struct heft_error *error)
{
    struct heft_object_secrets secrets = {0};
    int rc, has_token;

    if (!store->login || !store->endpoint[0] || heft_object_is_private(store->endpoint) ||
        heft_object_variable("HEFT_OBJECT_PLAIN_CREDENTIALS"))
        return HEFT_OK;
    rc = heft_object_login_get(store->login, &secrets);
    if (rc)
        return heft_error_set(error, rc, "out of memory for an object store");
    has_token = secrets.token != NULL;
    heft_object_secrets_free(&secrets);
    if (!has_token)
        return HEFT_OK;
    return heft_error_set(error, HEFT_ERR_DENIED,
                          "a token would go over a plain connection to %s; use https, or set "
                          "HEFT_OBJECT_PLAIN_CREDENTIALS=1 if the network is yours",
                          store->endpoint);
}

static void free_store(struct heft_object_store *store)
{
    if (!store)
        return;
    heft_object_login_free(store->login);
    heft_object_free_secret(store->sas);
    free(store);
}

int heft_object_stores_use(struct heft_object_stores *stores, enum heft_object_service service,
                           struct heft_error *error)
{
    static int (*const setups[HEFT_OBJECT_SERVICES])(struct heft_object_store *, struct heft_error *) = {
        [HEFT_OBJECT_S3] = heft_object_s3_setup,
        [HEFT_OBJECT_GOOGLE] = heft_object_google_setup,
        [HEFT_OBJECT_AZURE] = heft_object_azure_setup,
        [HEFT_OBJECT_HUB] = heft_object_hub_setup,
    };
    struct heft_object_store *store;
    int rc;

    if (!setups[service] || stores->of[service])
        return HEFT_OK;
    store = calloc(1, sizeof(*store));
    if (!store)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an object store");
    store->service = service;
    rc = heft_object_curl_init(error);
    if (!rc)
        rc = setups[service](store, error);
    if (!rc)
        rc = check_privacy(store, error);
    if (rc) {
        free_store(store);
        return rc;
    }
    stores->of[service] = store;
    return HEFT_OK;
}

void heft_object_stores_free(struct heft_object_stores *stores)
{
    size_t index;

    for (index = 0; index < HEFT_OBJECT_SERVICES; index++)
        free_store(stores->of[index]);
    *stores = (struct heft_object_stores){0};
}

/* ---- regions that were learned ---- */

/* A process reads from few buckets; when the table is full the oldest entry goes. */
#define REGIONS 32
static pthread_mutex_t regions_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char bucket[64];
    char region[64];
} regions[REGIONS];
static size_t regions_next;

int heft_object_region_of(const char *bucket, char region_out[64])
{
    size_t index;
    int found = 0;

    (void)pthread_mutex_lock(&regions_lock);
    for (index = 0; index < REGIONS && !found; index++)
        if (regions[index].bucket[0] && strcmp(regions[index].bucket, bucket) == 0) {
            memcpy(region_out, regions[index].region, sizeof(regions[index].region));
            found = 1;
        }
    (void)pthread_mutex_unlock(&regions_lock);
    return found;
}

int heft_object_region_set(const char *bucket, const char *region)
{
    size_t index;

    if (!region[0] || strlen(region) >= sizeof(regions[0].region) ||
        strlen(bucket) >= sizeof(regions[0].bucket) ||
        strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(region))
        return 0; /* it becomes part of a host name */
    (void)pthread_mutex_lock(&regions_lock);
    for (index = 0; index < REGIONS; index++)
        if (strcmp(regions[index].bucket, bucket) == 0)
            break;
    if (index == REGIONS) {
        index = regions_next++ % REGIONS;
        (void)snprintf(regions[index].bucket, sizeof(regions[index].bucket), "%s", bucket);
    }
    (void)snprintf(regions[index].region, sizeof(regions[index].region), "%s", region);
    (void)pthread_mutex_unlock(&regions_lock);
    return 1;
}
