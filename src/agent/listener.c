/* SPDX-License-Identifier: Apache-2.0 */
/* Listening sockets, watched by the control worker, and the text of addresses under which they are reached.
 */
#include "agent/address.h"
#include "agent/agent_internal.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#define ACCEPTS_PER_TURN 32
#define BACKLOG 1024
#define PAUSE_MS 100 /* after the system refused to accept: descriptors or memory ran out */
#define LOOKUP_MS 5000

struct heft_listener {
    struct heft_agent *agent;
    struct heft_watch watch;
    struct heft_timer resume;
    int is_unix;
    int paused;
};

static void listener_ready(struct heft_watch *watch, uint32_t events)
{
    struct heft_listener *listener = HEFT_CONTAINER_OF(watch, struct heft_listener, watch);
    int turn;

    (void)events;
    for (turn = 0; turn < ACCEPTS_PER_TURN; turn++) {
        int fd = accept4(watch->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            heft_session_accept(listener->agent, fd, listener->is_unix);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            char reason[64];

            /* The socket stays readable: without a pause this would spin. */
            heft_log(HEFT_LOG_WARN, "agent %s: can't accept a connection: %s; trying again in %d ms",
                     listener->agent->name, strerror_r(errno, reason, sizeof(reason)), PAUSE_MS);
            heft_watch_remove(watch);
            listener->paused = 1;
            heft_timer_set(listener->agent->control, &listener->resume, heft_deadline_after_ms(PAUSE_MS));
        }
        return;
    }
}

static void listener_resume(struct heft_timer *timer)
{
    struct heft_listener *listener = HEFT_CONTAINER_OF(timer, struct heft_listener, resume);

    if (heft_watch_add(listener->agent->control, &listener->watch, EPOLLIN, NULL))
        heft_timer_set(listener->agent->control, timer, heft_deadline_after_ms(PAUSE_MS));
    else
        listener->paused = 0;
}

struct add_call {
    struct heft_listener *listener;
    struct heft_error *error;
    int rc;
};

static void add_on_control(void *context)
{
    struct add_call *call = context;
    struct heft_agent *agent = call->listener->agent;

    call->rc = heft_watch_add(agent->control, &call->listener->watch, EPOLLIN, call->error);
    if (!call->rc)
        agent->listeners[agent->listener_count++] = call->listener;
}

/* Listens on one socket address; the address that the system gave is written to bound_out. */
static int listen_on(struct heft_agent *agent, const struct heft_socket_address *address, const char *text,
                     struct sockaddr_storage *bound_out, struct heft_error *error)
{
    struct add_call call = {.error = error};
    socklen_t length = sizeof(*bound_out);
    int family = address->address.ss_family;
    int one = 1, fd, rc;

    if (agent->listener_count == HEFT_AGENT_LISTENERS_MAX)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "an agent listens on %d addresses at most",
                              HEFT_AGENT_LISTENERS_MAX);
    fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return heft_error_set_errno(error, errno, "making a socket for %s", text);
    if (family != AF_UNIX)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (bind(fd, (const struct sockaddr *)&address->address, address->length) || listen(fd, BACKLOG)) {
        rc = errno == EADDRINUSE
                 ? heft_error_set(error, HEFT_ERR_SYSTEM,
                                  "%s is taken by another process: choose another port, or 0 for any", text)
                 : heft_error_set_errno(error, errno, "listening on %s", text);
        goto fail_socket;
    }
    memset(bound_out, 0, sizeof(*bound_out));
    if (getsockname(fd, (struct sockaddr *)bound_out, &length)) {
        rc = heft_error_set_errno(error, errno, "asking for the address of %s", text);
        goto fail_socket;
    }
    call.listener = calloc(1, sizeof(*call.listener));
    if (!call.listener) {
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory");
        goto fail_socket;
    }
    call.listener->agent = agent;
    call.listener->is_unix = family == AF_UNIX;
    call.listener->watch.fd = fd;
    call.listener->watch.ready = listener_ready;
    call.listener->resume.fire = listener_resume;
    heft_agent_run_on(agent->control, add_on_control, &call);
    if (!call.rc)
        return 0;
    rc = call.rc;
    free(call.listener);
fail_socket:
    (void)close(fd);
    return rc;
}

/* ---- the text of addresses ---- */

static void add_text(struct heft_agent *agent, const char *host, unsigned port, int v6)
{
    size_t used = strlen(agent->addresses);

    if (used + strlen(host) + 20 >= sizeof(agent->addresses))
        return;
    (void)snprintf(agent->addresses + used, sizeof(agent->addresses) - used,
                   v6 ? "%stcp:[%s]:%u" : "%stcp:%s:%u", used ? "," : "", host, port);
}

/* A wildcard address is reached under every address of this machine; loopback only when there is no other. */
static void add_interfaces(struct heft_agent *agent, int family, unsigned port)
{
    struct ifaddrs *all = NULL, *each;
    char host[INET6_ADDRSTRLEN];
    int added = 0;

    if (getifaddrs(&all) == 0) {
        for (each = all; each; each = each->ifa_next) {
            if (!each->ifa_addr || each->ifa_addr->sa_family != family || !(each->ifa_flags & IFF_UP) ||
                (each->ifa_flags & IFF_LOOPBACK))
                continue;
            if (family == AF_INET) {
                const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)each->ifa_addr;

                if (!inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host)))
                    continue;
            } else {
                const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)each->ifa_addr;

                if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) ||
                    !inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host)))
                    continue;
            }
            add_text(agent, host, port, family == AF_INET6);
            added = 1;
        }
        freeifaddrs(all);
    }
    if (!added)
        add_text(agent, family == AF_INET ? "127.0.0.1" : "::1", port, family == AF_INET6);
}

static void add_bound(struct heft_agent *agent, const struct sockaddr_storage *bound)
{
    char host[INET6_ADDRSTRLEN] = "";

    if (bound->ss_family == AF_INET) {
        struct sockaddr_in v4;

        memcpy(&v4, bound, sizeof(v4));
        if (v4.sin_addr.s_addr == htonl(INADDR_ANY))
            add_interfaces(agent, AF_INET, ntohs(v4.sin_port));
        else if (inet_ntop(AF_INET, &v4.sin_addr, host, sizeof(host)))
            add_text(agent, host, ntohs(v4.sin_port), 0);
    } else {
        struct sockaddr_in6 v6;

        memcpy(&v6, bound, sizeof(v6));
        if (IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr))
            add_interfaces(agent, AF_INET6, ntohs(v6.sin6_port));
        else if (inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof(host)))
            add_text(agent, host, ntohs(v6.sin6_port), 1);
    }
}

static int open_unix(struct heft_agent *agent, struct heft_error *error)
{
    char digits[HEFT_GENERATION_TEXT_BYTES], text[HEFT_ADDRESS_TEXT_BYTES];
    struct heft_socket_address address;
    struct sockaddr_storage bound;
    struct heft_address name = {.is_unix = 1};
    size_t count, used = strlen(agent->addresses);
    int rc;

    (void)snprintf(name.host, sizeof(name.host), "heft-%s",
                   heft_generation_text(agent->generation.bytes, digits));
    heft_address_text(&name, text, sizeof(text));
    (void)heft_address_resolve(&name, 1, 0, &address, &count, NULL);
    rc = listen_on(agent, &address, text, &bound, error);
    if (rc)
        return rc;
    /* Best first: it leads the list wherever it stood in `listen`. */
    memmove(agent->addresses + strlen(text) + (used ? 1 : 0), agent->addresses, used + 1);
    memcpy(agent->addresses, text, strlen(text));
    if (used)
        agent->addresses[strlen(text)] = ',';
    return 0;
}

static int open_tcp(struct heft_agent *agent, const struct heft_address *wanted, struct heft_error *error)
{
    struct heft_socket_address addresses[HEFT_ADDRESS_RESOLVED_MAX];
    char text[HEFT_ADDRESS_TEXT_BYTES];
    struct sockaddr_storage bound;
    size_t count, index;
    int rc;

    heft_address_text(wanted, text, sizeof(text));
    rc = heft_address_resolve(wanted, 1, heft_deadline_after_ms(LOOKUP_MS), addresses, &count, error);
    for (index = 0; !rc && index < count; index++) {
        rc = listen_on(agent, &addresses[index], text, &bound, error);
        if (!rc)
            add_bound(agent, &bound);
    }
    return rc;
}

int heft_listeners_open(struct heft_agent *agent, const char *list, struct heft_error *error)
{
    struct heft_address wanted;
    int rc;

    if (strlen(list) > HEFT_AGENT_ADDRESS_BYTES / 2)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE, "the list of addresses to listen on is too long");
    for (;;) {
        size_t size;

        list += strspn(list, ", ");
        size = strcspn(list, ", ");
        if (size == 4 && memcmp(list, "unix", 4) == 0) {
            list += size;
            rc = open_unix(agent, error);
        } else {
            rc = heft_address_next(&list, &wanted, error);
            if (rc == 0)
                return 0;
            if (rc > 0)
                rc = wanted.is_unix ? heft_error_set(error, HEFT_ERR_INVALID,
                                                     "to listen on a unix socket write 'unix': its name is "
                                                     "made from the generation")
                                    : open_tcp(agent, &wanted, error);
        }
        if (rc < 0)
            return rc;
    }
}

static void close_on_control(void *context)
{
    struct heft_agent *agent = context;

    while (agent->listener_count) {
        struct heft_listener *listener = agent->listeners[--agent->listener_count];

        heft_timer_set(agent->control, &listener->resume, 0);
        if (!listener->paused)
            heft_watch_remove(&listener->watch);
        (void)close(listener->watch.fd);
        free(listener);
    }
}

void heft_listeners_close(struct heft_agent *agent)
{
    heft_agent_run_on(agent->control, close_on_control, agent);
}
