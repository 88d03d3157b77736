/* SPDX-License-Identifier: Apache-2.0 */
/* A TLS session as a stream: what is written in any pieces, into a socket that is often full, is read as it
 * was. */
#include "certs.h"
#include "transport/tls.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define STREAM_BYTES ((size_t)12 << 20)
#define MESSAGE_MAX_BYTES ((size_t)700 << 10)
#define PIECES_MAX 6

struct side {
    struct heft_tls *tls;
    int fd;
    uint64_t random;
    const uint8_t *bytes;
    size_t writes_that_waited;
};

static size_t draw(uint64_t *random, size_t below)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(*random >> 33) % below;
}

static void await(int fd, short events)
{
    struct pollfd watched = {fd, events, 0};

    assert_int_equal(poll(&watched, 1, 60000), 1);
}

static void shake_hands(struct side *a, struct side *b)
{
    int first = HEFT_TLS_READ, second = HEFT_TLS_READ;

    while (first != HEFT_TLS_DONE || second != HEFT_TLS_DONE) {
        if (first != HEFT_TLS_DONE)
            first = heft_tls_handshake(a->tls, NULL);
        if (second != HEFT_TLS_DONE)
            second = heft_tls_handshake(b->tls, NULL);
        assert_true(first >= 0 && second >= 0);
    }
}

/* The rest of a message, cut another way each time. */
static int cut(struct side *side, size_t at, size_t end, struct iovec *iov)
{
    int count = 0;

    while (at < end && count < PIECES_MAX) {
        size_t size = count == PIECES_MAX - 1 ? end - at : draw(&side->random, end - at + 1);

        if (draw(&side->random, 3) == 0 && size > 300)
            size = draw(&side->random, 300);
        if (count == PIECES_MAX - 1)
            size = end - at;
        iov[count].iov_base = (void *)(uintptr_t)(side->bytes + at);
        iov[count++].iov_len = size;
        at += size;
    }
    return count;
}

static void *write_all(void *context)
{
    struct side *side = context;
    size_t at = 0, end = 0;

    while (at < STREAM_BYTES) {
        struct iovec iov[PIECES_MAX];
        ssize_t sent;

        if (at == end)
            end += 1 + draw(&side->random, draw(&side->random, 4) ? MESSAGE_MAX_BYTES : 100);
        if (end > STREAM_BYTES)
            end = STREAM_BYTES;
        sent = heft_tls_writev(side->tls, iov, cut(side, at, end, iov));
        if (sent < 0 && errno == EAGAIN) {
            side->writes_that_waited++;
            await(side->fd, POLLOUT);
        } else if (sent < 0 || (size_t)sent > end - at) {
            return side;
        } else {
            at += (size_t)sent;
        }
    }
    return NULL;
}

static void read_all(struct side *side, const uint8_t *expected)
{
    uint8_t *seen = malloc(MESSAGE_MAX_BYTES);
    size_t at = 0;

    assert_non_null(seen);
    while (at < STREAM_BYTES) {
        size_t room = 1 + draw(&side->random, MESSAGE_MAX_BYTES);
        struct iovec iov[2] = {{seen, room / 3}, {seen + room / 3, room - room / 3}};
        ssize_t got;

        if (draw(&side->random, 10) == 0)
            (void)usleep(1000);
        got = heft_tls_readv(side->tls, iov, 2);
        if (got < 0 && errno == EAGAIN) {
            await(side->fd, POLLIN);
            continue;
        }
        assert_true(got > 0 && (size_t)got <= STREAM_BYTES - at);
        assert_memory_equal(seen, expected + at, (size_t)got);
        at += (size_t)got;
    }
    free(seen);
}

static void open_sides(const char *folder, struct heft_tls_context **context_out, struct side sides[2])
{
    struct heft_error error = HEFT_ERROR_INIT;
    char ca[96], cert[96], key[96];
    int fds[2], index, room = 30000;

    (void)snprintf(ca, sizeof(ca), "%s/ca.pem", folder);
    (void)snprintf(cert, sizeof(cert), "%s/cert.pem", folder);
    (void)snprintf(key, sizeof(key), "%s/key.pem", folder);
    assert_int_equal(heft_tls_open(ca, cert, key, context_out, &error), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    for (index = 0; index < 2; index++) {
        assert_int_equal(setsockopt(fds[index], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)), 0);
        sides[index] = (struct side){.fd = fds[index], .random = 99 + (uint64_t)index};
        assert_int_equal(heft_tls_start(*context_out, fds[index], index, &sides[index].tls, &error), 0);
    }
    shake_hands(&sides[0], &sides[1]);
}

static void a_full_socket_loses_and_doubles_nothing(void **state)
{
    struct heft_tls_context *context;
    struct test_authority authority;
    uint8_t *bytes = malloc(STREAM_BYTES);
    struct side sides[2];
    char folder[64];
    pthread_t thread;
    void *failed;
    size_t index;

    (void)state;
    assert_non_null(bytes);
    for (index = 0; index < STREAM_BYTES; index++)
        bytes[index] = (uint8_t)(index * 31 + (index >> 11));
    certs_authority_make(&authority, "ours");
    certs_folder_make(folder);
    certs_write(folder, &authority, &authority, "a-side", -60, 3600);
    open_sides(folder, &context, sides);
    sides[0].bytes = bytes;
    assert_int_equal(pthread_create(&thread, NULL, write_all, &sides[0]), 0);
    read_all(&sides[1], bytes);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    assert_true(sides[0].writes_that_waited > 0);
    for (index = 0; index < 2; index++) {
        heft_tls_free(sides[index].tls);
        (void)close(sides[index].fd);
    }
    heft_tls_close(context);
    certs_folder_remove(folder);
    certs_authority_free(&authority);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_full_socket_loses_and_doubles_nothing)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
