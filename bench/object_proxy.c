/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A far server on this machine: passes TCP connections on, what the client says later by a delay, what the
 * server answers at most at a rate, for each connection on its own, and all of them at most at another (0:
 * without one). Two threads a connection.
 *
 *   object_proxy PORT UPSTREAM_PORT DELAY_MS BYTES_PER_SECOND [ALL_BYTES_PER_SECOND]
 *
 * Requests are delayed and answers are not, so that the time from a request to its answer grows by the delay
 * and the rate stays what it is.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PIECE_BYTES 65536
#define LATE_NS 20000000u   /* who comes later than that was idle; sooner: this program was, and catches up */
#define BUFFER_BYTES 262144 /* of a socket: more would be ahead of the rate */

static uint64_t delay_ns, rate, all_rate;
static uint64_t all_free_ns; /* when the connections' common rate lets the next byte pass */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static uint16_t upstream_port;

struct pipe_ends {
    int from, to;
    uint64_t delay_ns;       /* of requests */
    int answers;             /* these go by the rates */
    struct pipe_ends *other; /* freed by the thread that ends last */
    int *left;
};

static uint64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t when_ns)
{
    const struct timespec when = {.tv_sec = (time_t)(when_ns / 1000000000u),
                                  .tv_nsec = (long)(when_ns % 1000000000u)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
        ;
}

static int send_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);

        if (sent <= 0)
            return -1;
        data += sent;
        size -= (size_t)sent;
    }
    return 0;
}

/* When so many bytes may pass at a rate, whose next free moment this moves on. */
static uint64_t take_turn(uint64_t *free_ns, uint64_t size, uint64_t bytes_per_second)
{
    uint64_t now = now_ns();

    if (*free_ns + LATE_NS < now)
        *free_ns = now;
    *free_ns += size * 1000000000u / bytes_per_second;
    return *free_ns;
}

static void keep_to_rates(uint64_t *free_ns, uint64_t own_rate, uint64_t size)
{
    uint64_t when_ns;

    if (own_rate)
        sleep_until(take_turn(free_ns, size, own_rate));
    if (all_rate) {
        (void)pthread_mutex_lock(&all_lock);
        when_ns = take_turn(&all_free_ns, size, all_rate);
        (void)pthread_mutex_unlock(&all_lock);
        sleep_until(when_ns);
    }
}

static void *pass(void *context)
{
    struct pipe_ends *ends = context;
    char *piece = malloc(PIECE_BYTES);
    uint64_t free_ns = 0;
    ssize_t got;

    while (piece && (got = recv(ends->from, piece, PIECE_BYTES, 0)) > 0) {
        if (ends->delay_ns)
            sleep_until(now_ns() + ends->delay_ns);
        if (ends->answers)
            keep_to_rates(&free_ns, rate, (uint64_t)got);
        if (send_all(ends->to, piece, (size_t)got))
            break;
    }
    free(piece);
    (void)shutdown(ends->to, SHUT_RDWR);
    (void)shutdown(ends->from, SHUT_RDWR);
    if (__atomic_sub_fetch(ends->left, 1, __ATOMIC_ACQ_REL) == 0) {
        (void)close(ends->from);
        (void)close(ends->to);
        free(ends->left);
        free(ends->other);
        free(ends);
    }
    return NULL;
}

static void accept_one(int client)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(upstream_port)};
    struct pipe_ends *there = calloc(1, sizeof(*there)), *back = calloc(1, sizeof(*back));
    int *left = malloc(sizeof(*left)), server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    int buffer = BUFFER_BYTES;
    pthread_t thread;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!there || !back || !left || server < 0 ||
        connect(server, (const struct sockaddr *)&address, sizeof(address)) != 0) {
        perror("object_proxy: no connection to the server");
        exit(1);
    }
    if (rate || all_rate) {
        (void)setsockopt(client, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
        (void)setsockopt(server, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer));
    }
    (void)setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    (void)setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    *left = 2;
    *there =
        (struct pipe_ends){.from = client, .to = server, .delay_ns = delay_ns, .other = back, .left = left};
    *back = (struct pipe_ends){.from = server, .to = client, .answers = 1, .other = there, .left = left};
    if (pthread_create(&thread, NULL, pass, there) || pthread_detach(thread) ||
        pthread_create(&thread, NULL, pass, back) || pthread_detach(thread)) {
        perror("object_proxy: no thread");
        exit(1);
    }
}

int main(int count, char **arguments)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

    if (count != 5 && count != 6) {
        fputs("usage: object_proxy PORT UPSTREAM_PORT DELAY_MS BYTES_PER_SECOND [ALL_BYTES_PER_SECOND]\n",
              stderr);
        return 2;
    }
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((uint16_t)strtoul(arguments[1], NULL, 10));
    upstream_port = (uint16_t)strtoul(arguments[2], NULL, 10);
    delay_ns = strtoull(arguments[3], NULL, 10) * 1000000u;
    rate = strtoull(arguments[4], NULL, 10);
    all_rate = count == 6 ? strtoull(arguments[5], NULL, 10) : 0;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (listener < 0 || bind(listener, (const struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(listener, 512) != 0) {
        perror("object_proxy: can't listen");
        return 1;
    }
    for (;;) {
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

        if (client >= 0)
            accept_one(client);
    }
}
