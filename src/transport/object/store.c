/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where S3 is and who asks. Environment first, then the profile in ~/.aws/credentials and ~/.aws/config, else
 * requests go unsigned.
 */
#include "base/error.h"
#include "transport/object/object.h"

#include <openssl/crypto.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_LIMIT_BYTES ((long)1 << 20)

static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value && value[0] ? value : NULL;
}

static const char *first_variable(const char *one, const char *two)
{
    const char *value = variable(one);

    return value ? value : variable(two);
}

/* ---- limits ---- */

static int read_number(const char *name, uint32_t least, uint32_t most, uint32_t *value,
                       struct heft_error *error)
{
    const char *text = variable(name);
    unsigned long number;
    char *end;

    if (!text)
        return HEFT_OK;
    errno = 0;
    number = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || number < least || number > most)
        return heft_error_set(error, HEFT_ERR_INVALID, "%s is '%.32s': a number from %u to %u is needed",
                              name, text, least, most);
    *value = (uint32_t)number;
    return HEFT_OK;
}

int heft_object_limits_read(struct heft_object_limits *limits_out, struct heft_error *error)
{
    struct heft_object_limits limits = {.connections = 64,
                                        .retries = 5,
                                        .slow_bytes = 16u << 10,
                                        .slow_s = 10,
                                        .backoff_ms = 200,
                                        .connect_ms = 10000,
                                        .max_backoff_ms = 10000,
                                        .max_after_s = 60};
    int rc = read_number("HEFT_OBJECT_CONNECTIONS", 1, 256, &limits.connections, error);

    if (!rc)
        rc = read_number("HEFT_OBJECT_RETRIES", 0, 100, &limits.retries, error);
    if (!rc)
        rc = read_number("HEFT_OBJECT_SLOW_BYTES", 0, 1u << 30, &limits.slow_bytes, error);
    if (!rc)
        rc = read_number("HEFT_OBJECT_SLOW_S", 1, 3600, &limits.slow_s, error);
    if (!rc)
        rc = read_number("HEFT_OBJECT_BACKOFF_MS", 1, 10000, &limits.backoff_ms, error);
    if (!rc)
        *limits_out = limits;
    return rc;
}

/* ---- profiles ---- */

/* The home folder's file, or the one that the variable names; NULL: it can't be named. */
static char *profile_path(const char *name, const char *override)
{
    const char *given = variable(override), *home = variable("HOME");
    char *path;

    if (given)
        return strdup(given);
    if (!home || asprintf(&path, "%s/.aws/%s", home, name) < 0)
        return NULL;
    return path;
}

static char *trim(char *text)
{
    size_t size;

    text += strspn(text, " \t\r\n");
    size = strlen(text);
    while (size > 0 && strchr(" \t\r\n", text[size - 1]))
        text[--size] = 0;
    return text;
}

/* "[name]" or "[profile name]" of a trimmed line. */
static int is_section(const char *line, const char *profile)
{
    size_t size = strlen(profile);

    line++;
    line += strspn(line, " \t");
    if (strncmp(line, "profile", 7) == 0 && strchr(" \t", line[7]) && strcmp(profile, "profile") != 0)
        line += 7 + strspn(line + 7, " \t");
    return strncmp(line, profile, size) == 0 && line[size + strspn(line + size, " \t")] == ']';
}

struct wish {
    const char *key;
    char *value; /* malloc'ed; NULL: not found */
};

/* Fills the wishes from one section of an ini file. 1: the section is there. */
static int read_section(const char *path, const char *profile, struct wish *wishes, size_t count)
{
    FILE *file = path ? fopen(path, "re") : NULL;
    char *line = NULL;
    size_t capacity = 0, index;
    int inside = 0, found = 0;

    if (!file)
        return 0;
    while (ftell(file) < FILE_LIMIT_BYTES && getline(&line, &capacity, file) >= 0) {
        char *at = trim(line), *equals;

        if (at[0] == '[') {
            inside = is_section(at, profile);
            found |= inside;
            continue;
        }
        equals = strchr(at, '=');
        if (!inside || at[0] == '#' || at[0] == ';' || !equals)
            continue;
        *equals = 0;
        at = trim(at);
        for (index = 0; index < count; index++)
            if (strcmp(at, wishes[index].key) == 0 && !wishes[index].value)
                wishes[index].value = strdup(trim(equals + 1));
    }
    if (line)
        OPENSSL_cleanse(line, capacity);
    free(line);
    (void)fclose(file);
    return found;
}

static int copy(char *to, size_t size, const char *from, const char *what, struct heft_error *error)
{
    size_t at;

    if (!from)
        return HEFT_OK;
    if (strlen(from) >= size)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE, "%s is longer than %zu bytes", what, size - 1);
    for (at = 0; from[at]; at++)
        if ((unsigned char)from[at] <= 0x20 || (unsigned char)from[at] >= 0x7f)
            return heft_error_set(error, HEFT_ERR_INVALID,
                                  "%s holds a space or a character that no such value has", what);
    memcpy(to, from, strlen(from) + 1);
    return HEFT_OK;
}

static int take_keys(struct heft_object_store *store, const char *access, const char *secret,
                     const char *token, const char *where, struct heft_error *error)
{
    int rc;

    if (!access && !secret)
        return HEFT_OK;
    if (!access || !secret)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "%s has half of a key pair: the access key and the secret belong together",
                              where);
    rc = copy(store->access_key, sizeof(store->access_key), access, "the S3 access key", error);
    if (!rc)
        rc = copy(store->secret_key, sizeof(store->secret_key), secret, "the S3 secret key", error);
    if (!rc && token && token[0]) {
        size_t size = strlen(token) + 1;

        store->session_token = malloc(size);
        rc = store->session_token
                 ? copy(store->session_token, size, token, "the S3 session token", error)
                 : heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for the S3 credentials");
    }
    store->has_keys = rc == HEFT_OK;
    return rc;
}

static int read_profile(struct heft_object_store *store, char region_out[64], struct heft_error *error)
{
    const char *asked = variable("AWS_PROFILE"), *profile = asked ? asked : "default";
    char *credentials = profile_path("credentials", "AWS_SHARED_CREDENTIALS_FILE");
    char *config = profile_path("config", "AWS_CONFIG_FILE");
    struct wish keys[] = {
        {"aws_access_key_id", NULL}, {"aws_secret_access_key", NULL}, {"aws_session_token", NULL}};
    struct wish rest[] = {{"region", NULL}, {"endpoint_url", NULL}};
    int found, rc = HEFT_OK;
    size_t index;

    found = read_section(credentials, profile, keys, 3);
    found |= read_section(config, profile, rest, 2);
    if (asked && !found)
        rc = heft_error_set(
            error, HEFT_ERR_NOT_FOUND, "AWS_PROFILE is '%.64s': neither %s nor %s has such a profile", asked,
            credentials ? credentials : "~/.aws/credentials", config ? config : "~/.aws/config");
    if (!rc && !store->has_keys)
        rc = take_keys(store, keys[0].value, keys[1].value, keys[2].value, "the profile", error);
    if (!rc)
        rc = copy(region_out, 64, rest[0].value, "the profile's region", error);
    if (!rc)
        rc = copy(store->endpoint, sizeof(store->endpoint), rest[1].value, "the profile's endpoint_url",
                  error);
    for (index = 0; index < 3; index++) {
        if (keys[index].value)
            OPENSSL_cleanse(keys[index].value, strlen(keys[index].value));
        free(keys[index].value);
    }
    free(rest[0].value);
    free(rest[1].value);
    free(credentials);
    free(config);
    return rc;
}

/* ---- the store ---- */

static int check_endpoint(struct heft_object_store *store, struct heft_error *error)
{
    char *endpoint = store->endpoint;
    size_t size = strlen(endpoint);
    char *shown;

    if (size == 0)
        return HEFT_OK;
    while (size > 0 && endpoint[size - 1] == '/')
        endpoint[--size] = 0;
    shown = heft_object_scheme(endpoint) == 1 ? heft_object_shown(endpoint) : NULL;
    if (!shown || strcmp(shown, endpoint) != 0 || strchr(strstr(endpoint, "://") + 3, '/')) {
        free(shown);
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "the S3 endpoint is not http(s)://host[:port]; see AWS_ENDPOINT_URL");
    }
    free(shown);
    if (store->session_token && !heft_object_is_private(endpoint) &&
        !variable("HEFT_OBJECT_PLAIN_CREDENTIALS"))
        return heft_error_set(error, HEFT_ERR_DENIED,
                              "a session token would go over a plain connection to %s; use https, or set "
                              "HEFT_OBJECT_PLAIN_CREDENTIALS=1 if the network is yours",
                              endpoint);
    return HEFT_OK;
}

static int fill(struct heft_object_store *store, struct heft_error *error)
{
    const char *region = first_variable("AWS_REGION", "AWS_DEFAULT_REGION");
    const char *endpoint = first_variable("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    const char *style = variable("HEFT_S3_ADDRESSING");
    char profile_region[64] = "";
    int rc;

    rc = take_keys(store, variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"),
                   variable("AWS_SESSION_TOKEN"), "the environment", error);
    if (!rc)
        rc = read_profile(store, profile_region, error);
    if (!rc)
        rc = copy(store->region, sizeof(store->region),
                  region              ? region
                  : profile_region[0] ? profile_region
                                      : "us-east-1",
                  "the S3 region", error);
    if (!rc)
        rc = copy(store->endpoint, sizeof(store->endpoint), endpoint, "AWS_ENDPOINT_URL", error);
    if (!rc)
        rc = check_endpoint(store, error);
    if (rc)
        return rc;
    if (style && strcmp(style, "path") != 0 && strcmp(style, "virtual") != 0)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "HEFT_S3_ADDRESSING is '%.16s': path or virtual is needed", style);
    store->path_style = style ? strcmp(style, "path") == 0 : store->endpoint[0] != 0;
    return HEFT_OK;
}

int heft_object_store_create(struct heft_object_store **store_out, struct heft_error *error)
{
    struct heft_object_store *store = calloc(1, sizeof(*store));
    int rc;

    if (!store)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an S3 client");
    rc = fill(store, error);
    if (rc) {
        heft_object_store_free(store);
        return rc;
    }
    *store_out = store;
    return HEFT_OK;
}

void heft_object_store_free(struct heft_object_store *store)
{
    if (!store)
        return;
    if (store->session_token)
        OPENSSL_cleanse(store->session_token, strlen(store->session_token));
    free(store->session_token);
    OPENSSL_cleanse(store->secret_key, sizeof(store->secret_key));
    free(store);
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
