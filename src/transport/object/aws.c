/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who we are to AWS, in the order of its own tools: keys of environment and profile; a role by web identity
 * (AssumeRoleWithWebIdentity); a container's credentials; an instance's metadata, version 2. Sources: the
 * references of AWS STS, of ECS task roles and of EC2 instance metadata.
 */
#include "base/error.h"
#include "transport/object/object.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define TOKEN_FILE_BYTES ((size_t)64 << 10)

/* Where roles come from; all that a later renewal needs. */
struct role {
    char url[512];
    char arn[256], session[96], token_file[512];
    char authorization[2048], authorization_file[512];
};

/* {"AccessKeyId":..., "SecretAccessKey":..., "Token":..., "Expiration":...} of containers and instances. */
static int take_json(const struct heft_object_ask *ask, const char *who,
                     struct heft_object_secrets *secrets_out, struct heft_error *error)
{
    json_t *root = json_loads((const char *)ask->answer.data, JSON_REJECT_DUPLICATES, NULL);
    const char *code = json_string_value(json_object_get(root, "Code"));
    const char *access = json_string_value(json_object_get(root, "AccessKeyId"));
    const char *secret = json_string_value(json_object_get(root, "SecretAccessKey"));
    const char *token = json_string_value(json_object_get(root, "Token"));
    const char *expires = json_string_value(json_object_get(root, "Expiration"));
    struct heft_object_secrets secrets = {.auth = HEFT_OBJECT_KEYS};
    int rc = HEFT_OK;

    if ((code && strcmp(code, "Success") != 0) || !access || !secret)
        rc = heft_error_set(error, HEFT_ERR_DENIED, "%s gave no credentials%s%.64s", who, code ? ": " : "",
                            code ? code : "");
    if (!rc)
        rc = heft_object_copy(secrets.access_key, sizeof(secrets.access_key), access, "the role's access key",
                              error);
    if (!rc)
        rc = heft_object_copy(secrets.secret_key, sizeof(secrets.secret_key), secret, "the role's secret",
                              error);
    if (!rc && token && token[0]) {
        secrets.token = strdup(token);
        rc = secrets.token ? HEFT_OK
                           : heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for credentials");
    }
    secrets.expires_ms = expires ? heft_object_time_ms(expires) : 0;
    json_decref(root);
    if (rc) {
        heft_object_secrets_free(&secrets);
        return rc;
    }
    *secrets_out = secrets;
    return HEFT_OK;
}

/* ---- web identity ---- */

static char *make_web_identity_body(const struct role *role, char *token)
{
    struct heft_buf body;
    size_t size = strlen(token);

    while (size > 0 && strchr(" \t\r\n", token[size - 1]))
        size--;
    heft_buf_init(&body, SIZE_MAX);
    heft_buf_printf(&body, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=");
    heft_object_encode(&body, role->arn, strlen(role->arn), 0);
    heft_buf_printf(&body, "&RoleSessionName=");
    heft_object_encode(&body, role->session, strlen(role->session), 0);
    heft_buf_printf(&body, "&WebIdentityToken=");
    heft_object_encode(&body, token, size, 0);
    heft_buf_u8(&body, 0);
    if (!body.failed)
        return (char *)body.data;
    heft_buf_free(&body);
    return NULL;
}

static int take_xml(const struct heft_object_ask *ask, struct heft_object_secrets *secrets_out,
                    struct heft_error *error)
{
    struct heft_object_secrets secrets = {.auth = HEFT_OBJECT_KEYS};
    struct heft_sts_answer answer;
    int rc = heft_sts_parse(ask->answer.data, ask->answer.size - 1, &answer, error);

    if (rc)
        return rc;
    rc = heft_object_copy(secrets.access_key, sizeof(secrets.access_key), answer.access_key,
                          "the role's access key", error);
    if (!rc)
        rc = heft_object_copy(secrets.secret_key, sizeof(secrets.secret_key), answer.secret_key,
                              "the role's secret", error);
    if (!rc && !(secrets.token = strdup(answer.session_token)))
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for credentials");
    secrets.expires_ms = heft_object_time_ms(answer.expiration);
    explicit_bzero(&answer, sizeof(answer));
    if (rc) {
        heft_object_secrets_free(&secrets);
        return rc;
    }
    *secrets_out = secrets;
    return HEFT_OK;
}

static int fetch_web_identity(void *context, const uint32_t *cancel, struct heft_object_secrets *secrets_out,
                              struct heft_error *error)
{
    const struct role *role = context;
    struct heft_object_ask ask = {.method = "POST", .url = role->url, .cancel = cancel};
    struct heft_s3_fault fault;
    char *token = NULL, *body;
    int rc = heft_object_read_text(role->token_file, TOKEN_FILE_BYTES, &token, error);

    if (rc)
        return heft_error_prefix(error, rc, "AWS_WEB_IDENTITY_TOKEN_FILE");
    body = make_web_identity_body(role, token);
    heft_object_free_secret(token);
    if (!body)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for credentials");
    ask.body = body;
    ask.headers[0] = "Content-Type: application/x-www-form-urlencoded";
    rc = heft_object_ask(&ask, error);
    if (rc && ask.answer.size > 1 && heft_s3_fault_parse(ask.answer.data, ask.answer.size - 1, &fault))
        rc = heft_error_prefix(error, rc, "%s (%s)", fault.code, fault.message);
    if (rc)
        (void)heft_error_prefix(error, rc, "the role %s could not be taken by web identity", role->arn);
    else
        rc = take_xml(&ask, secrets_out, error);
    heft_object_free_secret(body);
    heft_object_ask_free(&ask);
    return rc;
}

static int use_web_identity(const struct heft_aws_profile *profile, const struct heft_object_store *store,
                            struct heft_object_login **login_out, struct heft_error *error)
{
    const char *endpoint = heft_object_variable("AWS_ENDPOINT_URL_STS");
    struct role *role = calloc(1, sizeof(*role));
    int rc = HEFT_OK;

    if (!role)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for credentials");
    if (!endpoint)
        endpoint = heft_object_variable("AWS_ENDPOINT_URL");
    if (!endpoint)
        (void)snprintf(role->url, sizeof(role->url), "https://sts.%s.amazonaws.com/", store->region);
    else
        rc = heft_object_copy(role->url, sizeof(role->url) - 1, endpoint, "AWS_ENDPOINT_URL_STS", error);
    if (!rc)
        rc = heft_object_check_endpoint(role->url, 1, "AWS_ENDPOINT_URL_STS", error);
    if (!rc && !heft_object_is_private(role->url) && !heft_object_variable("HEFT_OBJECT_PLAIN_CREDENTIALS"))
        rc = heft_error_set(error, HEFT_ERR_DENIED,
                            "a token would go over a plain connection to %s; use https, or set "
                            "HEFT_OBJECT_PLAIN_CREDENTIALS=1 if the network is yours",
                            role->url);
    if (!rc)
        rc = heft_object_copy(role->arn, sizeof(role->arn), profile->role, "the role", error);
    if (!rc)
        rc = heft_object_copy(role->session, sizeof(role->session),
                              profile->session_name ? profile->session_name : "heft",
                              "the role's session name", error);
    if (!rc && strlen(profile->token_file) >= sizeof(role->token_file))
        rc = heft_error_set(error, HEFT_ERR_TOO_LARGE, "the path of the web identity's token is too long");
    if (rc) {
        free(role);
        return rc;
    }
    memcpy(role->token_file, profile->token_file, strlen(profile->token_file) + 1);
    return heft_object_login_create(fetch_web_identity, role, login_out, error);
}

/* ---- containers ---- */

static int fetch_container(void *context, const uint32_t *cancel, struct heft_object_secrets *secrets_out,
                           struct heft_error *error)
{
    const struct role *role = context;
    struct heft_object_ask ask = {.url = role->url, .cancel = cancel, .timeout_ms = 3000};
    char *token = NULL, *header = NULL;
    int rc = HEFT_OK;

    if (role->authorization_file[0])
        rc = heft_object_read_text(role->authorization_file, sizeof(role->authorization) - 1, &token, error);
    if (rc)
        return heft_error_prefix(error, rc, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    if (token)
        token[strcspn(token, "\r\n")] = 0;
    if ((token || role->authorization[0]) &&
        asprintf(&header, "Authorization: %s", token ? token : role->authorization) < 0) {
        header = NULL;
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for credentials");
    }
    ask.headers[0] = header;
    if (!rc)
        rc = heft_object_ask(&ask, error);
    if (!rc)
        rc = take_json(&ask, "the container's credentials service", secrets_out, error);
    else
        (void)heft_error_prefix(error, rc, "the container's credentials service");
    heft_object_ask_free(&ask);
    heft_object_free_secret(header);
    heft_object_free_secret(token);
    return rc;
}

static int use_container(const char *relative, const char *full, struct heft_object_login **login_out,
                         struct heft_error *error)
{
    const char *authorization = heft_object_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    const char *file = heft_object_variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    struct role *role = calloc(1, sizeof(*role));
    int rc = HEFT_OK;

    if (!role)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for credentials");
    if (relative)
        rc = snprintf(role->url, sizeof(role->url), "http://169.254.170.2%s", relative) <
                     (int)sizeof(role->url)
                 ? HEFT_OK
                 : heft_error_set(error, HEFT_ERR_TOO_LARGE,
                                  "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI is too long");
    else
        rc =
            heft_object_copy(role->url, sizeof(role->url), full, "AWS_CONTAINER_CREDENTIALS_FULL_URI", error);
    if (!rc && (!heft_object_is_web(role->url) ||
                (!heft_object_is_private(role->url) && strncmp(role->url, "http://169.254.170.2", 20) != 0 &&
                 strncmp(role->url, "http://169.254.170.23", 21) != 0)))
        rc = heft_error_set(
            error, HEFT_ERR_DENIED,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https nor a service of this machine");
    if (!rc)
        rc = heft_object_copy(role->authorization, sizeof(role->authorization), authorization,
                              "AWS_CONTAINER_AUTHORIZATION_TOKEN", error);
    if (!rc && file && strlen(file) < sizeof(role->authorization_file))
        memcpy(role->authorization_file, file, strlen(file) + 1);
    if (rc) {
        free(role);
        return rc;
    }
    return heft_object_login_create(fetch_container, role, login_out, error);
}

/* ---- instances ---- */

/* One question to the metadata service with its session token. */
static int ask_instance(struct heft_object_ask *ask, char *url_out, size_t size, const struct role *role,
                        const char *path, const char *name, const char *token_header, const uint32_t *cancel,
                        struct heft_error *error)
{
    (void)snprintf(url_out, size, "%s/latest/%s%s", role->url, path, name);
    *ask = (struct heft_object_ask){.url = url_out, .timeout_ms = 1000, .cancel = cancel};
    ask->headers[0] = token_header;
    return heft_object_ask(ask, error);
}

static int fetch_instance(void *context, const uint32_t *cancel, struct heft_object_secrets *secrets_out,
                          struct heft_error *error)
{
    static const char roles[] = "meta-data/iam/security-credentials/";
    const struct role *role = context;
    char url[1024], name[256] = "", header[1024];
    struct heft_object_ask ask = {
        .method = "PUT", .url = url, .timeout_ms = 1000, .attempts = 1, .cancel = cancel};
    int rc;

    ask.headers[0] = "X-aws-ec2-metadata-token-ttl-seconds: 21600";
    (void)snprintf(url, sizeof(url), "%s/latest/api/token", role->url);
    rc = heft_object_ask(&ask, error);
    if (!rc)
        (void)snprintf(header, sizeof(header), "X-aws-ec2-metadata-token: %.900s",
                       (const char *)ask.answer.data);
    heft_object_ask_free(&ask);
    if (!rc) {
        rc = ask_instance(&ask, url, sizeof(url), role, roles, "", header, cancel, error);
        if (!rc) {
            (void)snprintf(name, sizeof(name), "%.255s", (const char *)ask.answer.data);
            name[strcspn(name, "\r\n")] = 0;
        }
        heft_object_ask_free(&ask);
    }
    if (!rc) {
        rc = ask_instance(&ask, url, sizeof(url), role, roles, name, header, cancel, error);
        if (!rc)
            rc = take_json(&ask, "the instance's metadata", secrets_out, error);
        heft_object_ask_free(&ask);
    }
    explicit_bzero(header, sizeof(header));
    return rc ? heft_error_prefix(error, rc, "the instance's metadata") : HEFT_OK;
}

static int use_instance(struct heft_object_login **login_out, struct heft_error *error)
{
    const char *disabled = heft_object_variable("AWS_EC2_METADATA_DISABLED");
    const char *endpoint = heft_object_variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    struct heft_error local = HEFT_ERROR_INIT;
    struct role *role;
    int rc;

    if (disabled && strcasecmp(disabled, "true") == 0)
        return HEFT_OK;
    role = calloc(1, sizeof(*role));
    if (!role)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for credentials");
    rc = heft_object_copy(role->url, sizeof(role->url), endpoint ? endpoint : "http://169.254.169.254",
                          "AWS_EC2_METADATA_SERVICE_ENDPOINT", error);
    if (!rc)
        rc = heft_object_check_endpoint(role->url, 0, "AWS_EC2_METADATA_SERVICE_ENDPOINT", error);
    if (rc) {
        free(role);
        return rc;
    }
    rc = heft_object_login_create(fetch_instance, role, login_out, &local);
    /* Most machines are no instances, and most instances that answer 404 have no role: unsigned, then. */
    if (rc == HEFT_ERR_NO_MEMORY || (rc && endpoint)) {
        if (error)
            *error = local;
        return rc;
    }
    return HEFT_OK;
}

int heft_aws_login(const struct heft_aws_profile *profile, const struct heft_object_store *store,
                   struct heft_object_login **login_out, struct heft_error *error)
{
    const char *relative = heft_object_variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    const char *full = heft_object_variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    struct heft_object_secrets secrets = {.auth = HEFT_OBJECT_KEYS};
    int rc;

    if (heft_object_anonymous())
        return HEFT_OK;
    if (!profile->access_key && profile->role)
        return use_web_identity(profile, store, login_out, error);
    if (!profile->access_key && (relative || full))
        return use_container(relative, full, login_out, error);
    if (!profile->access_key)
        return use_instance(login_out, error);
    rc = heft_object_copy(secrets.access_key, sizeof(secrets.access_key), profile->access_key,
                          "the S3 access key", error);
    if (!rc)
        rc = heft_object_copy(secrets.secret_key, sizeof(secrets.secret_key), profile->secret_key,
                              "the S3 secret key", error);
    if (!rc && profile->session_token) {
        size_t size = strlen(profile->session_token) + 1;

        secrets.token = calloc(1, size);
        rc =
            secrets.token
                ? heft_object_copy(secrets.token, size, profile->session_token, "the S3 session token", error)
                : heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for the S3 credentials");
    }
    if (rc) {
        heft_object_secrets_free(&secrets);
        return rc;
    }
    return heft_object_login_keep(&secrets, login_out, error);
}
