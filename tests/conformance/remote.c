/* SPDX-License-Identifier: Apache-2.0 */
/* The second agent: a side in this process, or this program run again and commanded over a socket. */
#include "conformance/harness.h"
#include "base/digest.h"
#include "base/error.h"
#include "effort.h"
#include "transport/chaos/chaos.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum command { CMD_ADD = 1, CMD_REMOVE, CMD_HASH, CMD_DIAL, CMD_DROP, CMD_PINS, CMD_SERVED };

struct request {
    enum command command;
    struct region_spec spec;
    uint64_t id, offset, length, session;
};

struct reply {
    int rc;
    struct heft_transport_region region;
    uint64_t value;
};

const struct heft_transport_ops *transport_named(const char *name)
{
    static const struct heft_transport_ops *const all[] = {&heft_transport_local, &heft_transport_tcp,
                                                           &heft_transport_file,  &heft_transport_ucx,
                                                           &heft_transport_cuda,  &heft_transport_chaos};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

static int tcp_pair(int family, int fds_out[2])
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr *address = family == AF_INET ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
    socklen_t size = family == AF_INET ? sizeof(v4) : sizeof(v6);
    int listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), client = -1, rc = -1;

    if (listener < 0 || bind(listener, address, size) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, address, &size) != 0)
        goto out;
    client = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (client < 0 || connect(client, address, size) != 0)
        goto out;
    fds_out[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fds_out[1] < 0)
        goto out;
    fds_out[0] = client;
    client = -1;
    rc = 0;
out:
    if (client >= 0)
        (void)close(client);
    if (listener >= 0)
        (void)close(listener);
    return rc;
}

int link_pair(enum link_kind link, int fds_out[2])
{
    if (link == LINK_UNIX)
        return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds_out);
    return tcp_pair(link == LINK_TCP6 ? AF_INET6 : AF_INET, fds_out);
}

/* One packet with at most one descriptor. */
static int send_packet(int socket, const void *data, size_t size, int fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {(void *)(uintptr_t)data, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    if (fd >= 0) {
        memset(&control, 0, sizeof(control));
        message.msg_control = &control;
        message.msg_controllen = sizeof(control);
        CMSG_FIRSTHDR(&message)->cmsg_level = SOL_SOCKET;
        CMSG_FIRSTHDR(&message)->cmsg_type = SCM_RIGHTS;
        CMSG_FIRSTHDR(&message)->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof(fd));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)size ? 0 : -1;
}

static int receive_packet(int socket, void *data, size_t size, int *fd_out)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {data, size};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

    *fd_out = -1;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != (ssize_t)size)
        return -1;
    for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at != NULL; at = CMSG_NXTHDR(&message, at))
        if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_RIGHTS)
            memcpy(fd_out, CMSG_DATA(at), sizeof(*fd_out));
    return 0;
}

static struct heft_transport_region *find_region(struct side *side, uint64_t id)
{
    struct heft_transport_region *found = NULL;

    pthread_mutex_lock(&side->lock);
    for (int i = 0; i < SIDE_MAX_REGIONS && !found; i++)
        if (side->regions[i].used && side->regions[i].region.id == id)
            found = &side->regions[i].region;
    pthread_mutex_unlock(&side->lock);
    return found;
}

/*
 * The bytes are at rest: the operation that wrote them is done, says the other process. ThreadSanitizer can't
 * see an order that goes through another process, so a copy is taken without it.
 */
static PLAIN_LOOP uint64_t hash_at_rest(const struct side_region *region, uint64_t offset, uint64_t length)
{
    const volatile uint8_t *from = (const uint8_t *)region->mapping + offset;
    uint8_t *copy = malloc(length ? length : 1);
    uint64_t hash;

    assert_non_null(copy);
    if (region->region.space == HEFT_SPACE_CUDA)
        region_get(&region->region, offset, copy, length);
    else
        for (uint64_t at = 0; at < length; at++)
            copy[at] = from[at];
    hash = heft_hash64(copy, length, 0);
    free(copy);
    return hash;
}

/* Executes a command on a side; the descriptor that goes back is borrowed. */
static int execute(struct side *side, const struct request *request, int fd, struct reply *reply)
{
    struct heft_transport_region *region = find_region(side, request->id);
    struct heft_error error = HEFT_ERROR_INIT;

    memset(reply, 0, sizeof(*reply));
    switch (request->command) {
    case CMD_ADD:
        region = side_region_add(side, &request->spec);
        reply->region = *region;
        return region->fd;
    case CMD_REMOVE:
        side_region_remove(side, region);
        break;
    case CMD_HASH:
        reply->value = hash_at_rest((struct side_region *)(void *)region, request->offset, request->length);
        break;
    case CMD_DIAL:
        if (tls_link_shake(fd, 1) != 0) {
            (void)close(fd);
            break;
        }
        reply->rc = side->ops->accept(side->transport, fd, request->session, &error);
        break;
    case CMD_DROP:
        if (side->ops->drop_session != NULL)
            side->ops->drop_session(side->transport, request->session);
        break;
    case CMD_PINS:
        reply->value = (uint64_t)side_pins(side);
        break;
    case CMD_SERVED:
        reply->value = __atomic_load_n(&side->served_bytes, __ATOMIC_RELAXED);
        break;
    }
    return -1;
}

/* Takes over fd; *fd_out is the caller's. */
static void command(struct remote *remote, const struct request *request, int fd, struct reply *reply,
                    int *fd_out)
{
    int got = -1;

    if (remote->inside != NULL) {
        got = execute(remote->inside, request, fd, reply);
        if (got >= 0)
            got = dup(got);
    } else {
        memset(reply, 0, sizeof(*reply));
        pthread_mutex_lock(&remote->lock);
        if (send_packet(remote->control, request, sizeof(*request), fd) != 0)
            reply->rc = HEFT_ERR_PEER_LOST;
        else if (request->command != CMD_DIAL &&
                 receive_packet(remote->control, reply, sizeof(*reply), &got) != 0)
            reply->rc = HEFT_ERR_PEER_LOST;
        pthread_mutex_unlock(&remote->lock);
        if (fd >= 0)
            (void)close(fd);
        if (request->command != CMD_DIAL)
            assert_int_equal(reply->rc, 0);
    }
    if (fd_out != NULL)
        *fd_out = got;
    else if (got >= 0)
        (void)close(got);
}

int peer_main(int argc, char **argv)
{
    struct side side;
    struct request request;
    struct reply reply;
    int control, fd, back;

    assert_true(argc == 4);
    control = (int)strtol(argv[2], NULL, 10);
    side_open(&side, transport_named(argv[3]), 2);
    while (receive_packet(control, &request, sizeof(request), &fd) == 0) {
        back = execute(&side, &request, fd, &reply);
        if (request.command == CMD_DIAL)
            continue; /* a dial into a frozen process must not wait for its answer */
        if (send_packet(control, &reply, sizeof(reply), back) != 0)
            break;
    }
    _exit(0); /* the parent is gone or done: no orderly end is owed */
}

static void remote_init(struct remote *remote, enum link_kind link)
{
    static uint64_t sessions;

    memset(remote, 0, sizeof(*remote));
    remote->link = link;
    remote->control = -1;
    pthread_mutex_init(&remote->lock, NULL);
    remote->session = ++sessions;
    remote->peer.name = "the-peer";
    remote->peer.same_host = 1;
    remote->peer.control_is_unix = 1;
    remote->peer.agent_peer = remote;
}

void remote_open_inside(struct remote *remote, struct side *side, enum link_kind link)
{
    remote_init(remote, link);
    remote->inside = side;
    remote->peer.pid = getpid();
}

void remote_open_process(struct remote *remote, const char *transport, enum link_kind link)
{
    char number[16], peer_flag[] = "--peer", program[] = "/proc/self/exe", name[32];
    char *arguments[] = {program, peer_flag, number, name, NULL};
    int pair[2];

    remote_init(remote, link);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    (void)snprintf(name, sizeof(name), "%s", transport);
    (void)snprintf(number, sizeof(number), "%d", pair[1]);
    remote->pid = fork();
    assert_true(remote->pid >= 0);
    if (remote->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)fcntl(pair[1], F_SETFD, 0);
        (void)execv(program, arguments);
        _exit(127);
    }
    (void)close(pair[1]);
    remote->control = pair[0];
    remote->peer.pid = remote->pid;
}

void remote_close(struct remote *remote)
{
    for (int i = 0; i < remote->held_count; i++)
        link_close(remote->held_fds[i]);
    pthread_mutex_destroy(&remote->lock);
    if (remote->pid <= 0)
        return;
    (void)close(remote->control);
    (void)kill(remote->pid, SIGCONT);
    assert_int_equal(waitpid(remote->pid, NULL, 0), remote->pid);
}

void remote_region_add(struct remote *remote, const struct region_spec *spec,
                       struct heft_transport_region *view_out)
{
    struct request request = {.command = CMD_ADD, .spec = *spec};
    struct reply reply;
    int fd;

    command(remote, &request, -1, &reply, &fd);
    *view_out = reply.region;
    view_out->fd = spec->kind == MEMORY_FILE ? -1 : fd; /* shared memory, or a carrier of device memory */
    if (spec->kind == MEMORY_FILE && fd >= 0)
        (void)close(fd);
    view_out->label = "";
    memset(view_out->slot, 0, sizeof(view_out->slot));
}

void remote_region_remove(struct remote *remote, struct heft_transport_region *view)
{
    struct request request = {.command = CMD_REMOVE, .id = view->id};
    struct reply reply;

    if (view->fd >= 0)
        (void)close(view->fd);
    command(remote, &request, -1, &reply, NULL);
}

uint64_t remote_region_hash(struct remote *remote, const struct heft_transport_region *view, uint64_t offset,
                            uint64_t length)
{
    struct request request = {.command = CMD_HASH, .id = view->id, .offset = offset, .length = length};
    struct reply reply;

    command(remote, &request, -1, &reply, NULL);
    return reply.value;
}

void remote_drop_session(struct remote *remote)
{
    struct request request = {.command = CMD_DROP, .session = remote->session};
    struct reply reply;

    command(remote, &request, -1, &reply, NULL);
}

int remote_pins(struct remote *remote)
{
    struct request request = {.command = CMD_PINS};
    struct reply reply;

    command(remote, &request, -1, &reply, NULL);
    return (int)reply.value;
}

uint64_t remote_served_bytes(struct remote *remote)
{
    struct request request = {.command = CMD_SERVED};
    struct reply reply;

    command(remote, &request, -1, &reply, NULL);
    return reply.value;
}

/* The far end of a dial inside this process: both ends of a TLS handshake need a thread. */
struct far_end {
    struct remote *remote;
    int fd, hold;
    struct reply reply;
};

static void *far_end_main(void *argument)
{
    struct far_end *end = argument;
    struct request request = {.command = CMD_DIAL, .session = end->remote->session};

    if (end->hold)
        end->reply.rc = tls_link_shake(end->fd, 1) != 0 ? HEFT_ERR_DENIED : 0;
    else
        command(end->remote, &request, end->fd, &end->reply, NULL);
    return NULL;
}

int harness_dial(void *agent_peer, uint32_t timeout_ms, int *fd_out, struct heft_error *error);
int harness_redial(void *agent_peer, uint32_t timeout_ms, int *fd_out, struct heft_error *error);

int harness_dial(void *agent_peer, uint32_t timeout_ms, int *fd_out, struct heft_error *error)
{
    struct remote *remote = agent_peer;
    struct far_end end = {.remote = remote, .hold = remote->hold_fds};
    pthread_t thread;
    int pair[2], shaken, refusal = __atomic_load_n(&remote->refuse_dials, __ATOMIC_ACQUIRE);

    (void)timeout_ms;
    if (refusal != 0)
        return heft_error_set(error, refusal, "nobody answers there");
    if (link_pair(remote->link, pair) != 0)
        return heft_error_set_errno(error, errno, "making a connection");
    end.fd = pair[1];
    if (remote->hold_fds)
        remote->held_fds[remote->held_count++] = pair[1];
    assert_int_equal(pthread_create(&thread, NULL, far_end_main, &end), 0);
    shaken = tls_link_shake(pair[0], 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (end.reply.rc != 0 || shaken != 0) {
        link_close(pair[0]);
        return heft_error_set(error, end.reply.rc != 0 ? end.reply.rc : HEFT_ERR_PEER_LOST,
                              "the peer did not accept");
    }
    *fd_out = pair[0];
    return 0;
}

/* What was served before has ended when the new one is there. */
int harness_redial(void *agent_peer, uint32_t timeout_ms, int *fd_out, struct heft_error *error)
{
    struct remote *remote = agent_peer;

    if (!remote->hold_fds)
        remote_drop_session(remote);
    return harness_dial(agent_peer, timeout_ms, fd_out, error);
}
