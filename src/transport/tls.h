/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS over the TCP connections between agents: both sides show a certificate that the same authority signed,
 * TLS 1.3 and nothing older. It keeps strangers from reading, changing or opening connections; which agent it
 * is that answers, the token of the handshake above it proves. Unix sockets never leave the host and stay
 * plain. Where the kernel offers it (the `tls` module), the kernel encrypts what is sent.
 *
 * A session belongs to one descriptor. One thread at a time uses it.
 */
#ifndef HEFT_TRANSPORT_TLS_H
#define HEFT_TRANSPORT_TLS_H

#include <heft/error.h>

#include <sys/types.h>
#include <sys/uio.h>

struct heft_tls_context;
struct heft_tls;

/* Reads the three PEM files. INVALID names the file, what is wrong with it and what to do. */
int heft_tls_open(const char *ca, const char *cert, const char *key, struct heft_tls_context **context_out,
                  struct heft_error *error);
void heft_tls_close(struct heft_tls_context *context);

/* A session on a connected, non-blocking descriptor, which stays the caller's. Files that changed are read
 * again first; when they are not whole (being replaced, say) the last good ones are used. */
int heft_tls_start(struct heft_tls_context *context, int fd, int is_server, struct heft_tls **tls_out,
                   struct heft_error *error);
void heft_tls_free(struct heft_tls *tls);

enum heft_tls_want { HEFT_TLS_DONE = 0, HEFT_TLS_READ = 1, HEFT_TLS_WRITE = 2 };
/* The next step of the handshake: DONE, what to wait for, or an error that names the side and the remedy. */
int heft_tls_handshake(struct heft_tls *tls, struct heft_error *error);

/* As recvmsg and sendmsg without control data: bytes, 0 at the end, or -1 with errno (EAGAIN: nothing now).
 * A write that said EAGAIN is tried again with the same bytes first. */
ssize_t heft_tls_readv(struct heft_tls *tls, const struct iovec *iov, int count);
ssize_t heft_tls_writev(struct heft_tls *tls, const struct iovec *iov, int count);
/* 1 when bytes may lie in the session: the descriptor alone would not tell. */
int heft_tls_pending(const struct heft_tls *tls);
/* Why the last call failed, in words; "" when the system's errno says it. */
const char *heft_tls_problem(const struct heft_tls *tls);
/* 1 when the kernel encrypts what this session sends. */
int heft_tls_is_in_kernel(const struct heft_tls *tls);
/* 1 when these first bytes of a connection open a TLS handshake. */
int heft_tls_is_hello(const void *bytes, size_t size_bytes);

/* Over either: tls NULL is the plain descriptor. Never raises SIGPIPE. */
ssize_t heft_tls_or_fd_readv(struct heft_tls *tls, int fd, const struct iovec *iov, int count);
ssize_t heft_tls_or_fd_writev(struct heft_tls *tls, int fd, const struct iovec *iov, int count);

#endif
