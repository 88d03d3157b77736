/* SPDX-License-Identifier: Apache-2.0 */
/*
 * etcd speaks gRPC, so its members are reached by the client that speaks to heftd, with the same deadlines
 * and the same repetition over a new connection. What is etcd's own: several members, a token that is had for
 * user and password and that ends, and errors as sentences.
 */
#include "control/etcd_client.h"
#include "base/error.h"
#include "base/log.h"
#include "etcd.pb-c.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX_BYTES ((long)1 << 20)
#define KEEPALIVE_MS 15000u /* etcd takes probes every 5 s and more */
#define MEMBER_MIN_MS 500u  /* of one call's time, for a member that is not the last */

struct heft_etcd {
    struct heft_grpc_client *members[HEFT_ETCD_MEMBERS_MAX];
    uint32_t member_count;
    uint32_t current; /* atomic: asked first */
    uint32_t timeout_ms;
    int has_tls;
    char prefix[HEFT_ETCD_PREFIX_MAX_BYTES + 1];
    char *user, *password;
    pthread_mutex_t lock; /* guards token */
    char *token;          /* NULL: to be asked for */
};

/* ---- opening ---- */

/* A whole small file as text; *text_out is freed by the caller. */
static int read_file(const char *what, const char *path, char **text_out, struct heft_error *error)
{
    FILE *file = fopen(path, "rbe");
    char *text = NULL;
    size_t used = 0;
    long size;

    if (!file)
        return heft_error_set_errno(error, errno, "%s %s", what, path);
    if (fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0 && size <= FILE_MAX_BYTES &&
        fseek(file, 0, SEEK_SET) == 0 && (text = malloc((size_t)size + 1)) != NULL)
        used = fread(text, 1, (size_t)size, file);
    (void)fclose(file);
    if (!text)
        return heft_error_set(error, HEFT_ERR_INVALID, "%s %s is no small file", what, path);
    text[used] = 0;
    if (used == 0 || strlen(text) != used) {
        free(text);
        return heft_error_set(error, HEFT_ERR_INVALID, "%s %s is empty, or no text", what, path);
    }
    *text_out = text;
    return 0;
}

static int add_member(struct heft_etcd *etcd, const char *address, size_t size,
                      const struct heft_grpc_tls *tls, struct heft_error *error)
{
    char text[300], hint[256];
    struct heft_grpc_client_options options = {.address = text,
                                               .service = "etcd",
                                               .timeout_ms = etcd->timeout_ms,
                                               .start_hint = hint,
                                               .tls = tls,
                                               .keepalive_ms = KEEPALIVE_MS};

    if (etcd->member_count == HEFT_ETCD_MEMBERS_MAX)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "more than %u members of etcd are named",
                              HEFT_ETCD_MEMBERS_MAX);
    (void)snprintf(text, sizeof(text), "%.*s", (int)(size < sizeof(text) ? size : sizeof(text) - 1), address);
    (void)snprintf(hint, sizeof(hint), "etcd --listen-client-urls %s://%.160s", tls ? "https" : "http", text);
    return heft_grpc_client_open(&options, &etcd->members[etcd->member_count++], error);
}

static int take_prefix(struct heft_etcd *etcd, const char *text, struct heft_error *error)
{
    size_t size;

    text += strspn(text, "/");
    size = strlen(text);
    while (size && text[size - 1] == '/')
        size--;
    if (size > HEFT_ETCD_PREFIX_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE, "a prefix in etcd has at most %u bytes",
                              HEFT_ETCD_PREFIX_MAX_BYTES);
    memcpy(etcd->prefix, size ? text : "heft", size ? size : sizeof("heft"));
    if (!heft_text_is_clean(etcd->prefix, HEFT_ETCD_PREFIX_MAX_BYTES))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "a prefix in etcd must be UTF-8 text without control characters");
    return 0;
}

static int open_members(struct heft_etcd *etcd, const char *at, const struct heft_grpc_tls *tls,
                        struct heft_error *error)
{
    const char *end = at + strcspn(at, "/");
    int rc = take_prefix(etcd, end, error);

    while (!rc) {
        size_t size = strcspn(at, ",/");

        rc = add_member(etcd, at, size, tls, error);
        at += size;
        if (at >= end)
            break;
        at++;
    }
    return rc;
}

static int check_options(const struct heft_directory_options *options, int has_tls, struct heft_error *error)
{
    if (!has_tls && (options->ca_file || options->certificate_file || options->key_file))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "directory '%.200s': TLS files are given, but the address is not etcds://",
                              options->address);
    if (!options->certificate_file != !options->key_file)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "directory '%.200s': a certificate needs its key, and a key its certificate",
                              options->address);
    if (!options->user != !options->password_file)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "directory '%.200s': a user needs a password file, and a password file a user",
                              options->address);
    return 0;
}

static int open_with_files(struct heft_etcd *etcd, const struct heft_directory_options *options,
                           struct heft_error *error)
{
    char *ca = NULL, *certificate = NULL, *key = NULL;
    struct heft_grpc_tls tls;
    int rc = 0;

    if (options->ca_file)
        rc = read_file("the CA file", options->ca_file, &ca, error);
    if (!rc && options->certificate_file)
        rc = read_file("the certificate file", options->certificate_file, &certificate, error);
    if (!rc && options->key_file)
        rc = read_file("the key file", options->key_file, &key, error);
    if (!rc && options->password_file) {
        rc = read_file("the password file", options->password_file, &etcd->password, error);
        if (!rc)
            etcd->password[strcspn(etcd->password, "\r\n")] = 0;
        etcd->user = strdup(options->user);
        if (!rc && !etcd->user)
            rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "opening etcd: out of memory");
    }
    tls = (struct heft_grpc_tls){ca, certificate, key};
    if (!rc)
        rc = open_members(etcd, strstr(options->address, "://") + 3, etcd->has_tls ? &tls : NULL, error);
    free(ca);
    free(certificate);
    free(key);
    if (!rc && etcd->user && !heft_etcd_is_private(etcd) && !options->allow_plain)
        rc = heft_error_set(error, HEFT_ERR_DENIED,
                            "directory '%.200s': the password would go over a plain connection that is not "
                            "loopback: use etcds://, or allow it (--allow-plain-token)",
                            options->address);
    return rc;
}

int heft_etcd_open(const struct heft_directory_options *options, struct heft_etcd **etcd_out,
                   struct heft_error *error)
{
    int has_tls = strncmp(options->address, "etcds://", 8) == 0;
    struct heft_etcd *etcd;
    int rc = check_options(options, has_tls, error);

    if (rc)
        return rc;
    etcd = calloc(1, sizeof(*etcd));
    if (!etcd)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "opening etcd: out of memory");
    (void)pthread_mutex_init(&etcd->lock, NULL);
    etcd->timeout_ms = options->timeout_ms ? options->timeout_ms : 5000;
    etcd->has_tls = has_tls;
    rc = open_with_files(etcd, options, error);
    if (rc) {
        heft_etcd_close(etcd);
        return rc;
    }
    *etcd_out = etcd;
    return 0;
}

void heft_etcd_close(struct heft_etcd *etcd)
{
    uint32_t index;

    for (index = 0; index < etcd->member_count; index++)
        heft_grpc_client_close(etcd->members[index]);
    if (etcd->password)
        explicit_bzero(etcd->password, strlen(etcd->password));
    free(etcd->user);
    free(etcd->password);
    free(etcd->token);
    (void)pthread_mutex_destroy(&etcd->lock);
    free(etcd);
}

const char *heft_etcd_prefix(const struct heft_etcd *etcd)
{
    return etcd->prefix;
}

int heft_etcd_is_private(const struct heft_etcd *etcd)
{
    uint32_t index;

    for (index = 0; index < etcd->member_count; index++)
        if (!etcd->has_tls && !heft_grpc_client_address(etcd->members[index])->is_loopback)
            return 0;
    return 1;
}

/* ---- asking ---- */

static struct heft_grpc_client *member(struct heft_etcd *etcd, uint32_t turn)
{
    return etcd->members[(__atomic_load_n(&etcd->current, __ATOMIC_RELAXED) + turn) % etcd->member_count];
}

/* Each member in turn, until one answers or the time is over. */
static int ask_members(struct heft_etcd *etcd, struct heft_grpc_unary *unary, struct heft_buf *reply,
                       struct heft_error *error)
{
    uint32_t turn, share = etcd->timeout_ms / etcd->member_count;
    int rc = HEFT_ERR_UNAVAILABLE;

    unary->timeout_ms = share > MEMBER_MIN_MS ? share : MEMBER_MIN_MS;
    for (turn = 0; turn < etcd->member_count; turn++) {
        reply->size = 0;
        rc = heft_grpc_client_call(member(etcd, turn), unary, reply, error);
        if (rc != HEFT_ERR_UNAVAILABLE && rc != HEFT_ERR_DEADLINE)
            break;
        if (!unary->is_idempotent && rc == HEFT_ERR_DEADLINE)
            break;
    }
    if (turn > 0)
        __atomic_fetch_add(&etcd->current, turn < etcd->member_count ? turn : 1, __ATOMIC_RELAXED);
    return rc;
}

static int says(const struct heft_error *error, const char *what)
{
    return strstr(error->text, what) != NULL;
}

/* etcd's sentences that need a remedy, or another code than their status gives. */
static int explain(const struct heft_etcd *etcd, int rc, struct heft_error *error)
{
    char text[HEFT_ERROR_TEXT_BYTES];

    memcpy(text, error->text, sizeof(text));
    text[300] = 0;
    if (says(error, "authentication failed"))
        return heft_error_set(error, HEFT_ERR_DENIED,
                              "etcd does not take user '%.64s' with the password given",
                              etcd->user ? etcd->user : "");
    if (says(error, "user name is empty"))
        return heft_error_set(
            error, HEFT_ERR_DENIED,
            "etcd wants user and password: name the user (--directory-user) and the file with "
            "the password (--directory-password-file)");
    if (says(error, "permission denied"))
        return heft_error_set(
            error, HEFT_ERR_DENIED,
            "etcd does not let user '%.64s' read and write keys under '%s/': grant its role "
            "`etcdctl role grant-permission ROLE --prefix=true readwrite %s/`",
            etcd->user ? etcd->user : "", etcd->prefix, etcd->prefix);
    if (says(error, "authentication is not enabled"))
        return heft_error_set(
            error, HEFT_ERR_DENIED,
            "a user is named, but etcd has authentication switched off: leave the user out, or "
            "`etcdctl auth enable`");
    if (says(error, "request is too large"))
        return heft_error_set(error, HEFT_ERR_TOO_LARGE,
                              "the record is larger than etcd takes (1.5 MiB, unless it runs with a larger "
                              "--max-request-bytes)");
    if (says(error, "database space exceeded"))
        return heft_error_set(
            error, HEFT_ERR_NO_SPACE,
            "etcd's database is full (mvcc: database space exceeded): compact and defragment it, "
            "then `etcdctl alarm disarm`, or raise --quota-backend-bytes");
    return heft_error_set(error, rc, "%s", text);
}

static int authenticate(struct heft_etcd *etcd, char **token_out, struct heft_error *error)
{
    Heft__Etcd__AuthenticateRequest request = HEFT__ETCD__AUTHENTICATE_REQUEST__INIT;
    Heft__Etcd__AuthenticateResponse *answer;
    struct heft_grpc_unary unary = {.method = HEFT_ETCD_AUTHENTICATE, .is_idempotent = 1};
    struct heft_proto_arena arena;
    struct heft_buf bytes, reply;
    int rc;

    request.name = etcd->user;
    request.password = etcd->password;
    heft_buf_init(&bytes, HEFT_GRPC_MAX_MESSAGE_BYTES);
    heft_buf_init(&reply, HEFT_GRPC_MAX_MESSAGE_BYTES);
    rc = heft_proto_encode(&request, &bytes);
    unary.data = bytes.data;
    unary.size_bytes = bytes.size;
    if (!rc)
        rc = ask_members(etcd, &unary, &reply, error);
    if (!rc) {
        heft_proto_arena_init(&arena, reply.size);
        answer =
            heft_proto_decode(&arena, &heft__etcd__authenticate_response__descriptor, reply.data, reply.size);
        *token_out = answer && answer->token[0] ? strdup(answer->token) : NULL;
        if (!*token_out)
            rc = heft_error_set(error, HEFT_ERR_PROTOCOL, "etcd answered Authenticate without a token");
        heft_proto_arena_free(&arena);
    }
    if (bytes.data)
        explicit_bzero(bytes.data, bytes.size);
    heft_buf_free(&bytes);
    heft_buf_free(&reply);
    return rc;
}

/* A copy of the token, asked for when there is none; NULL without a user. */
static int hold_token(struct heft_etcd *etcd, char **token_out, struct heft_error *error)
{
    char *fresh = NULL;
    int rc = 0;

    *token_out = NULL;
    if (!etcd->user)
        return 0;
    (void)pthread_mutex_lock(&etcd->lock);
    if (etcd->token)
        *token_out = strdup(etcd->token);
    (void)pthread_mutex_unlock(&etcd->lock);
    if (*token_out)
        return 0;
    rc = authenticate(etcd, &fresh, error);
    if (rc)
        return explain(etcd, rc, error);
    *token_out = strdup(fresh);
    (void)pthread_mutex_lock(&etcd->lock);
    free(etcd->token);
    etcd->token = fresh;
    (void)pthread_mutex_unlock(&etcd->lock);
    return 0;
}

static void forget_token(struct heft_etcd *etcd)
{
    (void)pthread_mutex_lock(&etcd->lock);
    free(etcd->token);
    etcd->token = NULL;
    (void)pthread_mutex_unlock(&etcd->lock);
}

static int ask(struct heft_etcd *etcd, const struct heft_etcd_call *call, const struct heft_buf *bytes,
               struct heft_buf *reply, struct heft_error *error)
{
    struct heft_grpc_unary unary = {.method = call->method,
                                    .data = bytes->data,
                                    .size_bytes = bytes->size,
                                    .is_idempotent = call->is_idempotent};
    int tries = 0, rc;
    char *token;

    do {
        rc = hold_token(etcd, &token, error);
        if (rc)
            return rc;
        unary.token = token;
        rc = ask_members(etcd, &unary, reply, error);
        free(token);
        if (rc && etcd->user && says(error, "auth token"))
            forget_token(etcd); /* they end after a while */
        else
            break;
    } while (++tries < 2);
    return rc ? explain(etcd, rc, error) : 0;
}

int heft_etcd_call(struct heft_etcd *etcd, const struct heft_etcd_call *call, struct heft_proto_arena *arena,
                   void **answer_out, struct heft_error *error)
{
    struct heft_error failure = HEFT_ERROR_INIT;
    struct heft_buf bytes, reply;
    int rc;

    heft_buf_init(&bytes, HEFT_GRPC_MAX_MESSAGE_BYTES);
    heft_buf_init(&reply, HEFT_GRPC_MAX_MESSAGE_BYTES);
    rc = heft_proto_encode(call->request, &bytes);
    if (rc)
        (void)heft_error_set(&failure, rc, "%s: the message can't be made: %s", call->method,
                             heft_error_text(rc));
    else
        rc = ask(etcd, call, &bytes, &reply, &failure);
    if (!rc) {
        heft_proto_arena_init(arena, reply.size);
        *answer_out = heft_proto_decode(arena, call->answer, reply.data, reply.size);
        if (!*answer_out) {
            heft_proto_arena_free(arena);
            rc = heft_error_set(&failure, HEFT_ERR_PROTOCOL, "etcd answered %s with a malformed message",
                                call->method);
        }
    }
    heft_buf_free(&bytes);
    heft_buf_free(&reply);
    return rc ? heft_error_set(error, failure.code ? failure.code : rc, "%s", failure.text) : 0;
}

int heft_etcd_stream(struct heft_etcd *etcd, const struct heft_etcd_call *call,
                     struct heft_grpc_stream **stream_out, struct heft_error *error)
{
    struct heft_grpc_unary unary = {.method = call->method};
    struct heft_buf bytes;
    char *token;
    int rc = hold_token(etcd, &token, error);

    if (rc)
        return rc;
    heft_buf_init(&bytes, HEFT_GRPC_MAX_MESSAGE_BYTES);
    rc = heft_proto_encode(call->request, &bytes);
    unary.data = bytes.data;
    unary.size_bytes = bytes.size;
    unary.token = token;
    if (!rc)
        rc = heft_grpc_stream_open(member(etcd, 0), &unary, stream_out, error);
    free(token);
    heft_buf_free(&bytes);
    return rc;
}

void heft_etcd_note(struct heft_etcd *etcd, int rc, const struct heft_error *error)
{
    if (says(error, "auth token") || says(error, "permission denied"))
        forget_token(etcd);
    else if (rc == HEFT_ERR_UNAVAILABLE || rc == HEFT_ERR_DEADLINE)
        __atomic_fetch_add(&etcd->current, 1, __ATOMIC_RELAXED);
}

void heft_etcd_interrupt(struct heft_etcd *etcd, pthread_t thread)
{
    uint32_t index;

    for (index = 0; index < etcd->member_count; index++)
        heft_grpc_client_interrupt(etcd->members[index], thread);
}
