/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tls.h"
#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

#define FILES 3
/* Received in one system call: many records. */
#define READ_AHEAD_BYTES ((size_t)256 << 10)
/* Sent in one system call, likewise; and what a record, or a message between two, may take of it. */
#define OUT_BYTES ((size_t)136 << 10)
#define OUT_RECORD_BYTES (SSL3_RT_MAX_PLAIN_LENGTH + 1024)

struct heft_tls_context {
    char *paths[FILES]; /* ca, cert, key */
    pthread_mutex_t lock;
    SSL_CTX *ctx;
    struct timespec changed[FILES];
    ino_t inodes[FILES];
    BIO_METHOD *method;
};

struct heft_tls {
    SSL *ssl;
    int is_server;
    int drained; /* the last read found nothing more */
    /* Records that were made and not sent yet: NULL until a write is larger than one. `owed`: bytes of the
     * last one that writev has not answered for; whoever writes comes again with them, and so it is sent. */
    char *out;
    size_t out_begin, out_end, owed;
    int gathers;       /* records go there */
    char subject[120]; /* of the certificate that is not trusted */
    char problem[400];
};

/* ---- sockets without SIGPIPE ---- */

/* 0, or -1 with errno: something is left. */
static int flush(struct heft_tls *tls, int fd)
{
    while (tls->out_begin < tls->out_end) {
        ssize_t sent = send(fd, tls->out + tls->out_begin, tls->out_end - tls->out_begin, MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return -1;
        tls->out_begin += (size_t)sent;
    }
    tls->out_begin = tls->out_end = 0;
    return 0;
}

/* As write(2), for a BIO that isn't the kernel's. */
static int send_or_keep(BIO *bio, int fd, const char *data, int size)
{
    struct heft_tls *tls = BIO_get_app_data(bio);
    int sent = -1;

    if (tls->gathers && (size_t)size <= OUT_BYTES - tls->out_end) {
        memcpy(tls->out + tls->out_end, data, (size_t)size);
        tls->out_end += (size_t)size;
        sent = size;
    } else if (tls->gathers) {
        errno = EAGAIN;
    } else if (flush(tls, fd) == 0) {
        sent = (int)send(fd, data, (size_t)size, MSG_NOSIGNAL);
    }
    return sent;
}

/* OpenSSL writes with write(2), which may raise SIGPIPE; a library must not let it. */
static int quiet_write(BIO *bio, const char *data, int size)
{
    int (*plain)(BIO *, const char *, int) = BIO_meth_get_write(BIO_s_socket());
    int fd = -1, sent;
    sigset_t pipe_set, before, pending;
    const struct timespec now = {0, 0};

    (void)BIO_get_fd(bio, &fd);
    if (!BIO_get_ktls_send(bio)) {
        BIO_clear_retry_flags(bio);
        sent = send_or_keep(bio, fd, data, size);
        if (sent < 0 && BIO_sock_should_retry(sent))
            BIO_set_retry_write(bio);
        return sent;
    }
    /* records of the kernel's need OpenSSL's own way, with the signal held back */
    (void)sigemptyset(&pipe_set);
    (void)sigaddset(&pipe_set, SIGPIPE);
    (void)sigpending(&pending);
    (void)pthread_sigmask(SIG_BLOCK, &pipe_set, &before);
    sent = plain(bio, data, size);
    if (sent < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE)) {
        (void)sigtimedwait(&pipe_set, NULL, &now);
        errno = EPIPE;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return sent;
}

static BIO_METHOD *make_method(void)
{
    const BIO_METHOD *from = BIO_s_socket();
    BIO_METHOD *method = BIO_meth_new(BIO_TYPE_SOCKET, "heft socket");

    if (method == NULL)
        return NULL;
    (void)BIO_meth_set_write(method, quiet_write);
    (void)BIO_meth_set_read(method, BIO_meth_get_read(from));
    (void)BIO_meth_set_puts(method, BIO_meth_get_puts(from));
    (void)BIO_meth_set_ctrl(method, BIO_meth_get_ctrl(from));
    (void)BIO_meth_set_create(method, BIO_meth_get_create(from));
    (void)BIO_meth_set_destroy(method, BIO_meth_get_destroy(from));
    return method;
}

/* ---- certificates ---- */

/* The first reason in OpenSSL's queue, which is emptied. */
static const char *take_reason(char *text, size_t size)
{
    unsigned long code = ERR_get_error();
    const char *reason = code != 0 ? ERR_reason_error_string(code) : NULL;

    (void)snprintf(text, size, "%s", reason != NULL ? reason : "no reason given");
    ERR_clear_error();
    return text;
}

/* Keeps whose certificate it is: once refused it can't be asked for. Changes no verdict. */
static int on_verify(int good, X509_STORE_CTX *store)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct heft_tls *tls = ssl != NULL ? SSL_get_app_data(ssl) : NULL;
    X509 *shown = X509_STORE_CTX_get0_cert(store);

    if (!good && tls != NULL && shown != NULL)
        (void)X509_NAME_oneline(X509_get_subject_name(shown), tls->subject, sizeof(tls->subject));
    return good;
}

static int load(const struct heft_tls_context *context, SSL_CTX **ctx_out, struct heft_error *error)
{
    const char *ca = context->paths[0], *cert = context->paths[1], *key = context->paths[2];
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    char reason[120];
    int rc = HEFT_ERR_INVALID;

    if (ctx == NULL)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making a TLS context: %s",
                              take_reason(reason, sizeof(reason)));
    (void)SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
    (void)SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    (void)SSL_CTX_set_options(ctx, SSL_OP_ENABLE_KTLS | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    (void)SSL_CTX_set_num_tickets(ctx, 0); /* a session is never resumed: its certificates may have changed */
    (void)SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, on_verify);
    SSL_CTX_set_read_ahead(ctx, 1);
    SSL_CTX_set_default_read_buffer_len(ctx, READ_AHEAD_BYTES);
    ERR_clear_error();
    if (SSL_CTX_load_verify_locations(ctx, ca, NULL) != 1) {
        (void)heft_error_set(error, rc, "tls_ca %s: %s; it is a PEM file of the certificates that sign peers",
                             ca, take_reason(reason, sizeof(reason)));
    } else if (SSL_CTX_use_certificate_chain_file(ctx, cert) != 1) {
        (void)heft_error_set(error, rc, "tls_cert %s: %s; it is a PEM file of this agent's certificate", cert,
                             take_reason(reason, sizeof(reason)));
    } else if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1) {
        (void)heft_error_set(error, rc,
                             "tls_key %s: %s; it is the PEM file of the private key of tls_cert %s", key,
                             take_reason(reason, sizeof(reason)), cert);
    } else if (SSL_CTX_check_private_key(ctx) != 1) {
        (void)heft_error_set(error, rc, "tls_key %s is not the key of tls_cert %s", key, cert);
    } else {
        *ctx_out = ctx;
        return 0;
    }
    SSL_CTX_free(ctx);
    return rc;
}

/* Where the files stand now; 1 when that differs from what was read. */
static int look(const struct heft_tls_context *context, struct timespec changed[FILES], ino_t inodes[FILES])
{
    int differs = 0;

    for (int i = 0; i < FILES; i++) {
        struct stat st;

        changed[i] = context->changed[i];
        inodes[i] = context->inodes[i];
        if (stat(context->paths[i], &st) != 0)
            continue; /* the last good ones stay in use */
        changed[i] = st.st_mtim;
        inodes[i] = st.st_ino;
        differs |= st.st_ino != context->inodes[i] || st.st_mtim.tv_sec != context->changed[i].tv_sec ||
                   st.st_mtim.tv_nsec != context->changed[i].tv_nsec;
    }
    return differs;
}

static void reload_locked(struct heft_tls_context *context)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct timespec changed[FILES];
    ino_t inodes[FILES];
    SSL_CTX *ctx;

    if (!look(context, changed, inodes))
        return;
    if (load(context, &ctx, &error) != 0) {
        heft_log(HEFT_LOG_WARN, "tls: the files changed, and the old ones stay in use: %s", error.text);
        return;
    }
    SSL_CTX_free(context->ctx); /* sessions that use it keep it */
    context->ctx = ctx;
    memcpy(context->changed, changed, sizeof(changed));
    memcpy(context->inodes, inodes, sizeof(inodes));
    heft_log(HEFT_LOG_INFO, "tls: read %s again", context->paths[1]);
}

int heft_tls_open(const char *ca, const char *cert, const char *key, struct heft_tls_context **context_out,
                  struct heft_error *error)
{
    const char *const given[FILES] = {ca, cert, key};
    struct heft_tls_context *context = calloc(1, sizeof(*context));
    struct timespec changed[FILES];
    ino_t inodes[FILES];
    int rc;

    if (context == NULL)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for TLS");
    (void)pthread_mutex_init(&context->lock, NULL);
    rc = HEFT_ERR_NO_MEMORY;
    context->method = make_method();
    for (int i = 0; i < FILES; i++)
        context->paths[i] = strdup(given[i]);
    if (context->method == NULL || context->paths[0] == NULL || context->paths[1] == NULL ||
        context->paths[2] == NULL) {
        (void)heft_error_set(error, rc, "no memory for TLS");
        goto fail;
    }
    (void)look(context, changed, inodes);
    rc = load(context, &context->ctx, error);
    if (rc != 0)
        goto fail;
    memcpy(context->changed, changed, sizeof(changed));
    memcpy(context->inodes, inodes, sizeof(inodes));
    *context_out = context;
    return 0;

fail:
    heft_tls_close(context);
    return rc;
}

void heft_tls_close(struct heft_tls_context *context)
{
    if (context == NULL)
        return;
    SSL_CTX_free(context->ctx);
    BIO_meth_free(context->method);
    for (int i = 0; i < FILES; i++)
        free(context->paths[i]);
    (void)pthread_mutex_destroy(&context->lock);
    free(context);
}

/* ---- sessions ---- */

int heft_tls_start(struct heft_tls_context *context, int fd, int is_server, struct heft_tls **tls_out,
                   struct heft_error *error)
{
    struct heft_tls *tls = calloc(1, sizeof(*tls));
    BIO *bio = NULL;

    if (tls == NULL)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for a TLS session");
    (void)pthread_mutex_lock(&context->lock);
    reload_locked(context);
    tls->ssl = SSL_new(context->ctx);
    (void)pthread_mutex_unlock(&context->lock);
    if (tls->ssl != NULL)
        bio = BIO_new(context->method);
    if (bio == NULL) {
        heft_tls_free(tls);
        ERR_clear_error();
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for a TLS session");
    }
    (void)BIO_set_fd(bio, fd, BIO_NOCLOSE);
    (void)BIO_set_app_data(bio, tls);
    SSL_set_bio(tls->ssl, bio, bio);
    (void)SSL_set_app_data(tls->ssl, tls);
    tls->is_server = is_server;
    if (is_server)
        SSL_set_accept_state(tls->ssl);
    else
        SSL_set_connect_state(tls->ssl);
    *tls_out = tls;
    return 0;
}

void heft_tls_free(struct heft_tls *tls)
{
    if (tls == NULL)
        return;
    SSL_free(tls->ssl);
    free(tls->out);
    free(tls);
}

static const char *remedy(long verified)
{
    switch (verified) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return "give that agent a new one";
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return "see the clocks of both hosts";
    case X509_V_ERR_INVALID_PURPOSE:
        return "it must be good for clients and servers both (extendedKeyUsage)";
    default:
        return "it must be signed by an authority in this agent's tls_ca";
    }
}

/* What a failed call says, in words that name the side and what to do. 0 when the system failed (errno). */
static void explain(struct heft_tls *tls)
{
    const char *other = tls->is_server ? "the client" : "the server";
    unsigned long code = ERR_peek_error();
    long verified = SSL_get_verify_result(tls->ssl);
    char reason[120];
    int why = ERR_GET_REASON(code);

    if (code == 0) {
        tls->problem[0] = 0;
        return;
    }
    if (why == SSL_R_CERTIFICATE_VERIFY_FAILED) {
        (void)snprintf(tls->problem, sizeof(tls->problem),
                       "the certificate %s of %s is not trusted here: %s; %s", tls->subject, other,
                       X509_verify_cert_error_string(verified), remedy(verified));
    } else if (why == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
        (void)snprintf(tls->problem, sizeof(tls->problem),
                       "%s shows no certificate; give it tls_cert and tls_key", other);
    } else if (why == SSL_R_WRONG_VERSION_NUMBER || why == SSL_R_HTTP_REQUEST ||
               why == SSL_R_RECORD_LENGTH_MISMATCH || why == SSL_R_PACKET_LENGTH_TOO_LONG) {
        (void)snprintf(
            tls->problem, sizeof(tls->problem),
            "%s does not speak TLS, this side does; give both sides tls_ca, tls_cert and tls_key, or "
            "neither",
            other);
    } else if (why == SSL_R_UNSUPPORTED_PROTOCOL || why == SSL_R_TLSV1_ALERT_PROTOCOL_VERSION) {
        (void)snprintf(tls->problem, sizeof(tls->problem), "%s does not speak TLS 1.3", other);
    } else if (why > SSL_AD_REASON_OFFSET) {
        (void)snprintf(
            tls->problem, sizeof(tls->problem),
            "%s does not trust this side's certificate or can't use it (%s); see its log, and its tls_ca",
            other, take_reason(reason, sizeof(reason)));
    } else {
        (void)snprintf(tls->problem, sizeof(tls->problem), "TLS with %s: %s", other,
                       take_reason(reason, sizeof(reason)));
    }
    ERR_clear_error();
}

int heft_tls_handshake(struct heft_tls *tls, struct heft_error *error)
{
    char reason[64];
    int rc, saved;

    ERR_clear_error();
    errno = 0;
    rc = SSL_do_handshake(tls->ssl);
    saved = errno;
    if (rc == 1)
        return HEFT_TLS_DONE;
    switch (SSL_get_error(tls->ssl, rc)) {
    case SSL_ERROR_WANT_READ:
        return HEFT_TLS_READ;
    case SSL_ERROR_WANT_WRITE:
        return HEFT_TLS_WRITE;
    default:
        break;
    }
    explain(tls);
    if (tls->problem[0] != 0)
        return heft_error_set(error, HEFT_ERR_DENIED, "%s", tls->problem);
    return heft_error_set(error, HEFT_ERR_UNAVAILABLE,
                          "%s closed the connection during the TLS handshake%s%s",
                          tls->is_server ? "the client" : "the server", saved != 0 ? ": " : "",
                          saved != 0 ? strerror_r(saved, reason, sizeof(reason)) : "");
}

/* After a call that moved nothing: 0 at the end of the stream, else -1 and errno. */
static ssize_t nothing_moved(struct heft_tls *tls, int rc)
{
    int saved = errno;

    switch (SSL_get_error(tls->ssl, rc)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        errno = EAGAIN;
        return -1;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    default:
        break;
    }
    if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
        ERR_clear_error();
        return 0; /* frames above are complete or not by themselves: a cut is seen there */
    }
    explain(tls);
    errno = tls->problem[0] != 0 || saved == 0 ? EPROTO : saved;
    return -1;
}

ssize_t heft_tls_readv(struct heft_tls *tls, const struct iovec *iov, int count)
{
    size_t total = 0;

    for (int i = 0; i < count; i++) {
        size_t have = 0;

        while (have < iov[i].iov_len) {
            size_t got = 0;
            int rc;

            ERR_clear_error();
            errno = 0;
            rc = SSL_read_ex(tls->ssl, (char *)iov[i].iov_base + have, iov[i].iov_len - have, &got);
            if (rc != 1) {
                ssize_t end;

                tls->drained = 1;
                if (total > 0)
                    return (ssize_t)total; /* an end or a failure is met again by the next call */
                end = nothing_moved(tls, rc);
                return end;
            }
            tls->drained = 0;
            have += got;
            total += got;
        }
    }
    return (ssize_t)total;
}

/* Where a list of iovecs is read from. */
struct place {
    const struct iovec *iov;
    int count, index;
    size_t offset;
};

static void skip(struct place *place, size_t bytes)
{
    while (place->index < place->count && bytes >= place->iov[place->index].iov_len - place->offset) {
        bytes -= place->iov[place->index].iov_len - place->offset;
        place->index++;
        place->offset = 0;
    }
    place->offset += bytes;
}

/* Small pieces become one record: each record costs a system call and 22 bytes. */
static size_t gather(struct place place, char *to)
{
    size_t have = 0;

    while (place.index < place.count && have < SSL3_RT_MAX_PLAIN_LENGTH) {
        size_t take = place.iov[place.index].iov_len - place.offset;

        if (take > SSL3_RT_MAX_PLAIN_LENGTH - have)
            take = SSL3_RT_MAX_PLAIN_LENGTH - have;
        memcpy(to + have, (const char *)place.iov[place.index].iov_base + place.offset, take);
        have += take;
        skip(&place, take);
    }
    return have;
}

/* One record, or more: as SSL_write_ex, which has the bytes; the place goes on. */
static int write_next(struct heft_tls *tls, struct place *place, size_t most, size_t *sent_out)
{
    const char *from = (const char *)place->iov[place->index].iov_base + place->offset;
    size_t bytes = place->iov[place->index].iov_len - place->offset;
    char together[SSL3_RT_MAX_PLAIN_LENGTH];
    int rc;

    if (bytes < SSL3_RT_MAX_PLAIN_LENGTH && place->index + 1 < place->count) {
        bytes = gather(*place, together);
        from = together;
    }
    ERR_clear_error();
    errno = 0;
    *sent_out = 0;
    rc = SSL_write_ex(tls->ssl, from, bytes < most ? bytes : most, sent_out);
    skip(place, *sent_out);
    return rc;
}

static ssize_t write_each(struct heft_tls *tls, struct place place)
{
    size_t total = 0, sent;

    while (place.index < place.count) {
        int rc = write_next(tls, &place, SIZE_MAX, &sent);

        if (rc != 1)
            return total > 0 ? (ssize_t)total : nothing_moved(tls, rc);
        total += sent;
    }
    return (ssize_t)total;
}

/* Fills tls->out: bytes of the records that were made. 0: OpenSSL's answer is in rc_out. */
static size_t make_records(struct heft_tls *tls, struct place *place, int *rc_out)
{
    size_t made = 0, sent;

    *rc_out = 1;
    tls->gathers = 1;
    while (*rc_out == 1 && place->index < place->count && OUT_BYTES - tls->out_end >= OUT_RECORD_BYTES) {
        *rc_out = write_next(tls, place, SSL3_RT_MAX_PLAIN_LENGTH, &sent);
        made += sent;
        if (sent > 0)
            tls->owed = sent;
    }
    tls->gathers = 0;
    return made;
}

/* Many records a system call. What can't be sent now waits in tls->out, and of it the last record's bytes are
 * not answered for. */
static ssize_t write_together(struct heft_tls *tls, struct place place)
{
    int fd = SSL_get_fd(tls->ssl), rc = 1;
    size_t total = tls->owed;

    skip(&place, tls->owed);
    while (flush(tls, fd) == 0) {
        tls->owed = 0;
        if (place.index == place.count || rc != 1)
            return (ssize_t)total;
        total += make_records(tls, &place, &rc);
        if (rc != 1 && total == 0)
            return nothing_moved(tls, rc);
    }
    total -= tls->owed;
    return total > 0 && errno == EAGAIN ? (ssize_t)total : -1;
}

ssize_t heft_tls_writev(struct heft_tls *tls, const struct iovec *iov, int count)
{
    struct place place = {.iov = iov, .count = count};
    size_t bytes = 0;
    int index;

    for (index = 0; index < count && bytes <= SSL3_RT_MAX_PLAIN_LENGTH; index++)
        bytes += iov[index].iov_len;
    if (tls->out == NULL && bytes > SSL3_RT_MAX_PLAIN_LENGTH && !heft_tls_is_in_kernel(tls))
        tls->out = malloc(OUT_BYTES); /* without it they go one by one */
    skip(&place, 0);
    if (tls->out != NULL && (bytes > SSL3_RT_MAX_PLAIN_LENGTH || tls->owed > 0))
        return write_together(tls, place);
    return write_each(tls, place);
}

int heft_tls_pending(const struct heft_tls *tls)
{
    return tls != NULL && !tls->drained && SSL_has_pending(tls->ssl);
}

const char *heft_tls_problem(const struct heft_tls *tls)
{
    return tls->problem;
}

int heft_tls_is_in_kernel(const struct heft_tls *tls)
{
    return tls != NULL && BIO_get_ktls_send(SSL_get_wbio(tls->ssl)) != 0;
}

int heft_tls_is_hello(const void *bytes, size_t size_bytes)
{
    const unsigned char *at = bytes;

    return size_bytes >= 3 && at[0] == 22 && at[1] == 3 && at[2] <= 4;
}

ssize_t heft_tls_or_fd_readv(struct heft_tls *tls, int fd, const struct iovec *iov, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)count};

    return tls != NULL ? heft_tls_readv(tls, iov, count) : recvmsg(fd, &message, MSG_DONTWAIT);
}

ssize_t heft_tls_or_fd_writev(struct heft_tls *tls, int fd, const struct iovec *iov, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)count};

    return tls != NULL ? heft_tls_writev(tls, iov, count)
                       : sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}
