/* SPDX-License-Identifier: Apache-2.0 */
/* TLS on the harness' connections: what an agent does before it hands one to a transport. */
#include "conformance/harness.h"
#include "base/error.h"
#include "transport/tls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define FOLDER_VARIABLE "HEFT_CONFORMANCE_TLS"
#define KEPT_MAX 256
#define WAIT_MS 20000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct heft_tls_context *context;
static struct {
    int fd;
    struct heft_tls *tls;
} kept[KEPT_MAX];

void tls_link_use(const char *folder)
{
    assert_int_equal(setenv(FOLDER_VARIABLE, folder, 1), 0);
}

/* NULL: connections stay plain. */
static struct heft_tls_context *find_context(void)
{
    const char *folder = getenv(FOLDER_VARIABLE);
    struct heft_error error = HEFT_ERROR_INIT;
    char ca[128], cert[128], key[128];

    if (folder == NULL)
        return NULL;
    (void)pthread_mutex_lock(&lock);
    if (context == NULL) {
        (void)snprintf(ca, sizeof(ca), "%s/ca.pem", folder);
        (void)snprintf(cert, sizeof(cert), "%s/cert.pem", folder);
        (void)snprintf(key, sizeof(key), "%s/key.pem", folder);
        assert_int_equal(heft_tls_open(ca, cert, key, &context, &error), 0);
    }
    (void)pthread_mutex_unlock(&lock);
    return context;
}

static struct heft_tls *find(int fd, int take)
{
    struct heft_tls *tls = NULL;

    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < KEPT_MAX && tls == NULL; i++)
        if (kept[i].tls != NULL && kept[i].fd == fd) {
            tls = kept[i].tls;
            if (take)
                kept[i].tls = NULL;
        }
    (void)pthread_mutex_unlock(&lock);
    return tls;
}

struct heft_tls *tls_link_take(void *agent, int fd)
{
    (void)agent;
    return find(fd, 1);
}

static int await(int fd, short events)
{
    struct pollfd watched = {fd, events, 0};

    return poll(&watched, 1, WAIT_MS) == 1 ? 0 : -1;
}

int tls_link_shake(int fd, int is_server)
{
    struct heft_tls_context *with = find_context();
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_tls *tls;
    int rc, index = 0;

    if (with == NULL)
        return 0;
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    assert_int_equal(heft_tls_start(with, fd, is_server, &tls, &error), 0);
    while ((rc = heft_tls_handshake(tls, &error)) > 0)
        if (await(fd, rc == HEFT_TLS_READ ? POLLIN : POLLOUT) != 0)
            break;
    if (rc != 0) {
        heft_tls_free(tls);
        return -1;
    }
    (void)pthread_mutex_lock(&lock);
    while (kept[index].tls != NULL)
        assert_true(++index < KEPT_MAX);
    kept[index].fd = fd;
    kept[index].tls = tls;
    (void)pthread_mutex_unlock(&lock);
    return 0;
}

ssize_t link_send(int fd, const void *data, size_t size)
{
    struct iovec iov = {(void *)(uintptr_t)data, size};
    struct heft_tls *tls = find(fd, 0);
    ssize_t sent;

    if (tls == NULL)
        return send(fd, data, size, MSG_NOSIGNAL);
    while ((sent = heft_tls_writev(tls, &iov, 1)) < 0 && errno == EAGAIN)
        if (await(fd, POLLOUT) != 0)
            return -1;
    return sent;
}

ssize_t link_receive(int fd, void *data, size_t size)
{
    struct iovec iov = {data, size};
    struct heft_tls *tls = find(fd, 0);
    ssize_t got;

    while ((got = heft_tls_or_fd_readv(tls, fd, &iov, 1)) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        if (await(fd, POLLIN) != 0)
            fail_msg("neither an answer nor a hang-up within 20 s");
    return got;
}

void link_close(int fd)
{
    heft_tls_free(find(fd, 1));
    (void)close(fd);
}
