/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the environment and the profile of ~/.aws/credentials and ~/.aws/config say of S3. The environment
 * goes first, value by value; a pair of keys is taken whole from one place.
 */
#include "base/error.h"
#include "transport/object/object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_LIMIT_BYTES ((long)1 << 20)

/* The home folder's file, or the one that the variable names; NULL: it can't be named. */
static char *profile_path(const char *name, const char *override)
{
    const char *given = heft_object_variable(override), *home = heft_object_variable("HOME");
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
        explicit_bzero(line, capacity);
    free(line);
    (void)fclose(file);
    return found;
}

static int keep_text(char **place, const char *value, struct heft_error *error)
{
    if (*place || !value || !value[0])
        return HEFT_OK;
    *place = strdup(value);
    return *place ? HEFT_OK : heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for the S3 settings");
}

static const char *first_variable(const char *one, const char *two)
{
    const char *value = heft_object_variable(one);

    return value ? value : heft_object_variable(two);
}

/* A pair from one place; nothing when a pair is there already. */
static int keep_keys(struct heft_aws_profile *profile, const char *access, const char *secret,
                     const char *token, const char *where, struct heft_error *error)
{
    int rc;

    if (profile->access_key || (!access && !secret))
        return HEFT_OK;
    if (!access || !secret)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "%s has half of a key pair: the access key and the secret belong together",
                              where);
    rc = keep_text(&profile->access_key, access, error);
    if (!rc)
        rc = keep_text(&profile->secret_key, secret, error);
    return rc ? rc : keep_text(&profile->session_token, token, error);
}

static int read_environment(struct heft_aws_profile *profile, struct heft_error *error)
{
    int rc = keep_keys(profile, heft_object_variable("AWS_ACCESS_KEY_ID"),
                       heft_object_variable("AWS_SECRET_ACCESS_KEY"),
                       heft_object_variable("AWS_SESSION_TOKEN"), "the environment", error);

    if (!rc)
        rc = keep_text(&profile->region, first_variable("AWS_REGION", "AWS_DEFAULT_REGION"), error);
    if (!rc)
        rc = keep_text(&profile->endpoint, first_variable("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), error);
    if (!rc && heft_object_variable("AWS_ROLE_ARN") && heft_object_variable("AWS_WEB_IDENTITY_TOKEN_FILE")) {
        rc = keep_text(&profile->role, heft_object_variable("AWS_ROLE_ARN"), error);
        if (!rc)
            rc = keep_text(&profile->token_file, heft_object_variable("AWS_WEB_IDENTITY_TOKEN_FILE"), error);
    }
    return rc ? rc : keep_text(&profile->session_name, heft_object_variable("AWS_ROLE_SESSION_NAME"), error);
}

static int read_files(struct heft_aws_profile *profile, struct heft_error *error)
{
    const char *asked = heft_object_variable("AWS_PROFILE"), *name = asked ? asked : "default";
    char *credentials = profile_path("credentials", "AWS_SHARED_CREDENTIALS_FILE");
    char *config = profile_path("config", "AWS_CONFIG_FILE");
    struct wish keys[] = {
        {"aws_access_key_id", NULL}, {"aws_secret_access_key", NULL}, {"aws_session_token", NULL}};
    struct wish rest[] = {{"region", NULL},
                          {"endpoint_url", NULL},
                          {"role_arn", NULL},
                          {"web_identity_token_file", NULL},
                          {"role_session_name", NULL},
                          {"aws_access_key_id", NULL},
                          {"aws_secret_access_key", NULL},
                          {"aws_session_token", NULL}};
    int found = read_section(credentials, name, keys, 3), rc = HEFT_OK;
    size_t index;

    found |= read_section(config, name, rest, sizeof(rest) / sizeof(rest[0]));
    profile->asked = asked != NULL;
    if (asked && !found)
        rc = heft_error_set(
            error, HEFT_ERR_NOT_FOUND, "AWS_PROFILE is '%.64s': neither %s nor %s has such a profile", asked,
            credentials ? credentials : "~/.aws/credentials", config ? config : "~/.aws/config");
    if (!rc)
        rc = keep_keys(profile, keys[0].value, keys[1].value, keys[2].value, "the profile", error);
    if (!rc)
        rc = keep_keys(profile, rest[5].value, rest[6].value, rest[7].value, "the profile", error);
    if (!rc)
        rc = keep_text(&profile->region, rest[0].value, error);
    if (!rc)
        rc = keep_text(&profile->endpoint, rest[1].value, error);
    if (!rc && !profile->role && rest[2].value && rest[3].value) {
        rc = keep_text(&profile->role, rest[2].value, error);
        if (!rc)
            rc = keep_text(&profile->token_file, rest[3].value, error);
    }
    if (!rc)
        rc = keep_text(&profile->session_name, rest[4].value, error);
    for (index = 0; index < 3; index++)
        heft_object_free_secret(keys[index].value);
    for (index = 0; index < sizeof(rest) / sizeof(rest[0]); index++)
        heft_object_free_secret(rest[index].value);
    free(credentials);
    free(config);
    return rc;
}

int heft_aws_profile_read(struct heft_aws_profile *profile_out, struct heft_error *error)
{
    struct heft_aws_profile profile = {0};
    int rc = read_environment(&profile, error);

    if (!rc)
        rc = read_files(&profile, error);
    if (rc) {
        heft_aws_profile_free(&profile);
        return rc;
    }
    *profile_out = profile;
    return HEFT_OK;
}

void heft_aws_profile_free(struct heft_aws_profile *profile)
{
    heft_object_free_secret(profile->access_key);
    heft_object_free_secret(profile->secret_key);
    heft_object_free_secret(profile->session_token);
    free(profile->region);
    free(profile->endpoint);
    free(profile->role);
    free(profile->token_file);
    free(profile->session_name);
    *profile = (struct heft_aws_profile){0};
}
