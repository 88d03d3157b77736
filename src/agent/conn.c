/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/agent_internal.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define FRAMES_PER_TURN 64 /* then other connections have theirs */
#define DISCARD_PER_TURN_BYTES 65536
#define TICK_MIN_MS 5u
#define TICK_MAX_MS 500u

struct heft_conn_out {
    struct heft_conn_out *next;
    size_t size, written;
    size_t fd_count;
    int fds[HEFT_WIRE_FDS_PER_FRAME];
    uint8_t bytes[];
};

static void conn_ready(struct heft_watch *watch, uint32_t events);

/* ---- life ---- */

int heft_conn_start(struct heft_conn *conn, struct heft_agent *agent, const struct heft_conn_ops *ops, int fd,
                    int is_unix, enum heft_conn_state state, struct heft_error *error)
{
    int rc;

    *conn = (struct heft_conn){.agent = agent, .ops = ops, .is_unix = is_unix, .state = state};
    conn->watch.fd = fd;
    conn->watch.ready = conn_ready;
    conn->events = EPOLLIN;
    conn->payload_cap = HEFT_FRAME_CONTROL_MAX_BYTES;
    conn->last_heard_ns = heft_now_ns();
    rc = heft_watch_add(agent->control, &conn->watch, conn->events, error);
    if (rc)
        return rc;
    conn->next = agent->conns;
    if (conn->next)
        conn->next->prev = conn;
    agent->conns = conn;
    heft_conn_arm_tick(agent);
    return 0;
}

static void free_out(struct heft_conn_out *out)
{
    size_t index;

    for (index = 0; index < out->fd_count; index++)
        (void)close(out->fds[index]);
    free(out);
}

void heft_conn_fds_free(struct heft_conn_fds *batch)
{
    size_t index;

    if (!batch)
        return;
    for (index = 0; index < batch->count; index++)
        if (batch->fds[index] >= 0)
            (void)close(batch->fds[index]);
    free(batch);
}

void heft_conn_secure(struct heft_conn *conn, struct heft_tls *tls, int done)
{
    conn->tls = tls;
    conn->tls_done = done;
}

/* Leaves the agent's list and frees what it holds, except the descriptor. */
static void unlink_conn(struct heft_conn *conn)
{
    struct heft_conn_out *out;
    size_t index;

    heft_watch_remove(&conn->watch);
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        conn->agent->conns = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    while ((out = conn->out_first) != NULL) {
        conn->out_first = out->next;
        free_out(out);
    }
    conn->out_last = NULL;
    conn->out_bytes = 0;
    for (index = 0; index < conn->batch_count; index++)
        heft_conn_fds_free(conn->batches[index]);
    conn->batch_count = 0;
    free(conn->payload);
    conn->payload = NULL;
    heft_tls_free(conn->tls);
    conn->tls = NULL;
}

/* Unread bytes would turn the close into a reset, and that may overtake what was said last. */
void heft_conn_close_fd(int fd)
{
    char waste[4096];
    int turn;

    for (turn = 0; turn < 16 && recv(fd, waste, sizeof(waste), MSG_DONTWAIT) > 0; turn++)
        ;
    (void)close(fd);
}

static void bury(struct heft_conn *conn)
{
    int code = conn->dead_code;
    char text[sizeof(conn->dead_text)];

    memcpy(text, conn->dead_text, sizeof(text));
    unlink_conn(conn);
    if (!conn->keeps_fd) {
        if (conn->watch.fd >= 0)
            heft_conn_close_fd(conn->watch.fd);
        conn->watch.fd = -1;
    }
    conn->ops->closed(conn, code, text);
}

void heft_conn_fail(struct heft_conn *conn, int code, const char *text)
{
    if (conn->dead)
        return;
    conn->dead = 1;
    conn->dead_code = code;
    (void)snprintf(conn->dead_text, sizeof(conn->dead_text), "%s", text);
    if (!conn->inside)
        bury(conn);
}

void heft_conn_enter(struct heft_conn *conn)
{
    conn->inside++;
}

void heft_conn_leave(struct heft_conn *conn)
{
    if (--conn->inside == 0 && conn->dead)
        bury(conn);
}

int heft_conn_detach(struct heft_conn *conn)
{
    int fd = conn->watch.fd;

    if (conn->out_first || conn->dead)
        return -1;
    HEFT_ASSERT(conn->inside);
    heft_watch_remove(&conn->watch);
    conn->watch.fd = -1;
    heft_conn_fail(conn, HEFT_OK, "handed on");
    return fd;
}

/* ---- out ---- */

static void set_events(struct heft_conn *conn, uint32_t events)
{
    if (conn->events == events || conn->dead)
        return;
    conn->events = events;
    (void)heft_watch_modify(&conn->watch, events);
}

static void fail_errno(struct heft_conn *conn)
{
    char reason[64];
    const char *problem = conn->tls ? heft_tls_problem(conn->tls) : "";

    if (!*problem)
        problem = strerror_r(errno, reason, sizeof(reason));
    heft_conn_fail(conn, HEFT_ERR_PEER_LOST, problem);
}

/* Bytes written, or -1 with errno. Descriptors go with the frame's first byte. */
static ssize_t write_out(struct heft_conn *conn, struct heft_conn_out *out)
{
    char control[CMSG_SPACE(sizeof(int) * HEFT_WIRE_FDS_PER_FRAME)] __attribute__((aligned(16)));
    struct iovec iov = {.iov_base = out->bytes + out->written, .iov_len = out->size - out->written};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

    if (conn->tls)
        return heft_tls_writev(conn->tls, &iov, 1);
    if (out->fd_count && out->written == 0) {
        struct cmsghdr *head = (struct cmsghdr *)(void *)control;

        memset(control, 0, sizeof(control));
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * out->fd_count);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int) * out->fd_count);
        memcpy(CMSG_DATA(head), out->fds, sizeof(int) * out->fd_count);
    }
    return sendmsg(conn->watch.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void heft_conn_wake(struct heft_conn *conn)
{
    set_events(conn, EPOLLIN | EPOLLOUT);
}

static void flush(struct heft_conn *conn)
{
    while (conn->out_first && !conn->dead) {
        struct heft_conn_out *out = conn->out_first;
        ssize_t wrote = write_out(conn, out);

        if (wrote < 0 && errno == EINTR)
            continue;
        /* ETOOMANYREFS: too many descriptors are under way; they get fewer when the peer reads. */
        if (wrote < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ETOOMANYREFS)) {
            set_events(conn, EPOLLIN | (errno == ETOOMANYREFS ? 0 : (uint32_t)EPOLLOUT));
            return;
        }
        if (wrote < 0) {
            conn->heard_end = 1;
            fail_errno(conn);
            return;
        }
        out->written += (size_t)wrote;
        conn->out_bytes -= (size_t)wrote;
        if (out->written == out->size) {
            conn->out_first = out->next;
            if (!conn->out_first)
                conn->out_last = NULL;
            free_out(out);
        }
    }
    if (!conn->dead)
        set_events(conn, EPOLLIN);
}

static void send_frame(struct heft_conn *conn, uint16_t type, uint32_t flags, uint64_t id,
                       const struct heft_buf *payload, const int *fds, size_t fd_count)
{
    size_t payload_bytes = payload ? payload->size : 0;
    struct heft_conn_out *out = NULL;
    size_t index;

    if (!conn->dead && !(payload && payload->failed))
        out = malloc(sizeof(*out) + HEFT_FRAME_HEADER_BYTES + payload_bytes);
    if (!out) {
        for (index = 0; index < fd_count; index++)
            (void)close(fds[index]);
        heft_conn_fail(conn, HEFT_ERR_NO_MEMORY, "out of memory for a message");
        return;
    }
    *out = (struct heft_conn_out){.size = HEFT_FRAME_HEADER_BYTES + payload_bytes, .fd_count = fd_count};
    for (index = 0; index < fd_count; index++)
        out->fds[index] = fds[index];
    heft_frame_seal(type, flags, id, payload ? payload->data : NULL, (uint32_t)payload_bytes, out->bytes);
    if (payload_bytes)
        memcpy(out->bytes + HEFT_FRAME_HEADER_BYTES, payload->data, payload_bytes);
    if (conn->out_last)
        conn->out_last->next = out;
    else
        conn->out_first = out;
    conn->out_last = out;
    conn->out_bytes += out->size;
    if (conn->out_bytes > HEFT_CONN_OUT_MAX_BYTES) {
        heft_conn_fail(conn, HEFT_ERR_STALLED, "the other side does not read");
        return;
    }
    if (conn->out_first == out) {
        heft_conn_enter(conn);
        flush(conn);
        heft_conn_leave(conn);
    }
}

void heft_conn_send_fds(struct heft_conn *conn, uint16_t type, uint64_t id, const struct heft_buf *payload,
                        const int *fds, size_t fd_count)
{
    send_frame(conn, type, fd_count ? HEFT_FRAME_FDS : 0, id, payload, fds, fd_count);
}

void heft_conn_send(struct heft_conn *conn, uint16_t type, uint64_t id, const struct heft_buf *payload)
{
    send_frame(conn, type, 0, id, payload, NULL, 0);
}

void heft_conn_send_optional(struct heft_conn *conn, uint16_t type, uint64_t id,
                             const struct heft_buf *payload)
{
    send_frame(conn, type, HEFT_FRAME_OPTIONAL, id, payload, NULL, 0);
}

void heft_conn_send_optional_fds(struct heft_conn *conn, uint16_t type, const struct heft_buf *payload,
                                 const int *fds, size_t fd_count)
{
    send_frame(conn, type, HEFT_FRAME_OPTIONAL | HEFT_FRAME_FDS, 0, payload, fds, fd_count);
}

static void send_refusal(struct heft_conn *conn, uint16_t type, uint64_t id, int code, const char *text)
{
    struct heft_buf buf;

    heft_buf_init(&buf, HEFT_FRAME_HANDSHAKE_MAX_BYTES);
    heft_wire_put_refuse(&buf, code, text);
    heft_conn_send(conn, type, id, &buf);
    heft_buf_free(&buf);
}

void heft_conn_refuse(struct heft_conn *conn, uint64_t id, int code, const char *text)
{
    send_refusal(conn, HEFT_FRAME_REFUSE, id, code, text);
}

/* Closing a TCP socket with unread bytes resets it, and the reset may overtake the last word: so the sending
 * side is shut down and what still comes is thrown away for a while. */
void heft_conn_last_word(struct heft_conn *conn, uint16_t type, int code, const char *text)
{
    if (conn->dead)
        return;
    heft_conn_enter(conn);
    send_refusal(conn, type, 0, code, text);
    conn->state = HEFT_CONN_LINGER;
    conn->deadline_ns = heft_deadline_after_ms(HEFT_CONN_LINGER_MS);
    if (!conn->dead && !conn->out_first)
        (void)shutdown(conn->watch.fd, SHUT_WR);
    heft_conn_leave(conn);
}

/* ---- in ---- */

static void keep_fds(struct heft_conn *conn, struct msghdr *message)
{
    struct cmsghdr *head;

    for (head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
        struct heft_conn_fds *batch = NULL;
        size_t count, index;

        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
            continue;
        count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        if (conn->batch_count < HEFT_CONN_FD_BATCHES && count <= HEFT_WIRE_FDS_PER_FRAME)
            batch = calloc(1, sizeof(*batch));
        for (index = 0; index < count; index++) {
            int fd;

            memcpy(&fd, CMSG_DATA(head) + index * sizeof(int), sizeof(fd));
            if (batch)
                batch->fds[batch->count++] = fd;
            else
                (void)close(fd);
        }
        if (!batch) {
            heft_conn_fail(conn, HEFT_ERR_PROTOCOL, "more descriptors than a frame may carry");
            return;
        }
        if (message->msg_flags & MSG_CTRUNC) { /* some were lost (ulimit -n): none can be told apart */
            for (index = 0; index < batch->count; index++)
                (void)close(batch->fds[index]);
            batch->count = 0;
        }
        conn->batches[conn->batch_count++] = batch;
    }
}

/* As recv; keeps descriptors that come along where they are expected, else the kernel discards them. */
static ssize_t read_some(struct heft_conn *conn, void *data, size_t size)
{
    char control[CMSG_SPACE(sizeof(int) * HEFT_WIRE_FDS_PER_FRAME)] __attribute__((aligned(16)));
    struct iovec iov = {.iov_base = data, .iov_len = size};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t got;

    /* after the last word nothing is understood any more */
    if (conn->tls && conn->state != HEFT_CONN_LINGER)
        return heft_tls_readv(conn->tls, &iov, 1);
    if (!conn->takes_fds)
        return recv(conn->watch.fd, data, size, MSG_DONTWAIT);
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    got = recvmsg(conn->watch.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got >= 0 && message.msg_controllen)
        keep_fds(conn, &message);
    return got;
}

struct heft_conn_fds *heft_conn_take_fds(struct heft_conn *conn, size_t count)
{
    struct heft_conn_fds *batch;

    if (!(conn->frame.flags & HEFT_FRAME_FDS) || !conn->batch_count)
        return NULL;
    conn->frame.flags &= ~(uint32_t)HEFT_FRAME_FDS;
    batch = conn->batches[0];
    conn->batch_count--;
    memmove(conn->batches, conn->batches + 1, conn->batch_count * sizeof(conn->batches[0]));
    if (batch->count != count) {
        heft_conn_fds_free(batch);
        return NULL;
    }
    return batch;
}

/* 1: got some; 0: nothing more now, or dead. */
static int fill(struct heft_conn *conn, uint8_t *data, size_t *have, size_t want)
{
    ssize_t got;

    do
        got = read_some(conn, data + *have, want - *have);
    while (got < 0 && errno == EINTR);
    if (got > 0) {
        *have += (size_t)got;
        return !conn->dead;
    }
    if (got == 0) {
        conn->heard_end = 1;
        heft_conn_fail(conn, HEFT_ERR_PEER_LOST, "the other side closed the connection");
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
        conn->heard_end = 1;
        fail_errno(conn);
    }
    return 0;
}

static void header_done(struct heft_conn *conn)
{
    char text[160];
    int rc = heft_frame_decode(conn->header, &conn->frame);

    if (rc == 0 && conn->frame.payload_bytes > conn->payload_cap)
        rc = HEFT_ERR_TOO_LARGE;
    if (rc == HEFT_ERR_PROTOCOL && heft_tls_is_hello(conn->header, sizeof(conn->header))) {
        static const char said[] =
            "the client speaks TLS and this agent does not: give this agent tls_ca, tls_cert "
            "and tls_key, or take them from the client";

        heft_log(HEFT_LOG_WARN, "agent %s: refused a connection: %s", conn->agent->name, said);
        heft_conn_last_word(conn, HEFT_FRAME_REFUSE, HEFT_ERR_DENIED, said);
    } else if (rc == HEFT_ERR_PROTOCOL) {
        heft_conn_last_word(conn, HEFT_FRAME_REFUSE, rc, "these bytes are not a heft frame");
    } else if (rc == HEFT_ERR_INCOMPATIBLE) {
        (void)snprintf(text, sizeof(text), "a frame of protocol version %u; this side speaks %u to %u",
                       conn->frame.version, HEFT_WIRE_VERSION_LOWEST, HEFT_WIRE_VERSION_HIGHEST);
        heft_conn_last_word(conn, HEFT_FRAME_REFUSE, rc, text);
    } else if (rc) {
        (void)snprintf(text, sizeof(text), "a payload of %u bytes is over the limit for this frame",
                       conn->frame.payload_bytes);
        heft_conn_last_word(conn, HEFT_FRAME_REFUSE, rc, text);
    } else if (conn->frame.payload_bytes > conn->payload_capacity) {
        uint8_t *grown = realloc(conn->payload, conn->frame.payload_bytes);

        if (!grown) {
            heft_conn_fail(conn, HEFT_ERR_NO_MEMORY, "out of memory for a message");
            return;
        }
        conn->payload = grown;
        conn->payload_capacity = conn->frame.payload_bytes;
    }
    if (rc)
        conn->header_have = 0;
}

static void frame_done(struct heft_conn *conn)
{
    const struct heft_frame *frame = &conn->frame;
    struct heft_buf echo = {0};

    conn->header_have = conn->payload_have = 0;
    conn->heard_frames++;
    if (heft_frame_check_payload(frame, conn->payload ? conn->payload : (const uint8_t *)"")) {
        heft_conn_last_word(conn, HEFT_FRAME_REFUSE, HEFT_ERR_PROTOCOL, "a damaged frame");
        return;
    }
    if (frame->type == HEFT_FRAME_PING && conn->state == HEFT_CONN_LIVE) {
        heft_conn_send(conn, HEFT_FRAME_PONG, frame->id, &echo);
    } else if (frame->type >= HEFT_FRAME_HELLO && frame->type <= HEFT_FRAME_AGENT_LAST) {
        if (frame->type != HEFT_FRAME_PONG)
            conn->ops->frame(conn, frame, conn->payload ? conn->payload : (const uint8_t *)"");
    } else if (!(frame->flags & HEFT_FRAME_OPTIONAL)) {
        char text[80];

        (void)snprintf(text, sizeof(text), "frame type %u is not known here", frame->type);
        heft_conn_refuse(conn, frame->id, HEFT_ERR_UNSUPPORTED, text);
    }
    /* Descriptors that no handler took must not stay for a later frame. */
    if ((frame->flags & HEFT_FRAME_FDS) && conn->takes_fds)
        heft_conn_fds_free(heft_conn_take_fds(conn, SIZE_MAX));
}

static void read_frames(struct heft_conn *conn)
{
    int frames = 0;

    while (!conn->dead && conn->state != HEFT_CONN_LINGER && frames < FRAMES_PER_TURN) {
        if (conn->header_have < sizeof(conn->header)) {
            if (!fill(conn, conn->header, &conn->header_have, sizeof(conn->header)))
                return;
            conn->last_heard_ns = heft_now_ns();
            if (conn->header_have < sizeof(conn->header))
                continue;
            conn->payload_have = 0;
            header_done(conn);
            if (conn->dead || conn->state == HEFT_CONN_LINGER)
                return;
        }
        if (conn->payload_have < conn->frame.payload_bytes) {
            if (!fill(conn, conn->payload, &conn->payload_have, conn->frame.payload_bytes))
                return;
            conn->last_heard_ns = heft_now_ns();
        }
        if (conn->payload_have == conn->frame.payload_bytes) {
            frame_done(conn);
            frames++;
        }
    }
}

static void discard(struct heft_conn *conn)
{
    char waste[4096];
    size_t total = 0;

    while (total < DISCARD_PER_TURN_BYTES && !conn->dead) {
        size_t have = 0;

        if (!fill(conn, (uint8_t *)waste, &have, sizeof(waste)))
            return;
        total += have;
    }
}

/* A client without TLS is told what it lacks in its own words. */
static int refuse_plain(struct heft_conn *conn)
{
    static const char said[] = "this agent speaks TLS only: give the client tls_ca, tls_cert and tls_key too";
    char first[4];
    ssize_t got = recv(conn->watch.fd, first, sizeof(first), MSG_PEEK | MSG_DONTWAIT);

    if (got <= 0 || memcmp(first, "HEFT", (size_t)got) != 0)
        return 0;
    heft_tls_free(conn->tls);
    conn->tls = NULL;
    HEFT_COUNT(conn->agent, handshakes_refused, 1);
    heft_log(HEFT_LOG_WARN, "agent %s: refused a connection without TLS", conn->agent->name);
    heft_conn_last_word(conn, HEFT_FRAME_REFUSE, HEFT_ERR_DENIED, said);
    return 1;
}

/* The server's part of the TLS handshake. 1: done, frames may come. */
static int shake(struct heft_conn *conn)
{
    struct heft_error error = HEFT_ERROR_INIT;
    int rc;

    if (refuse_plain(conn))
        return 0;
    rc = heft_tls_handshake(conn->tls, &error);
    if (rc == HEFT_TLS_READ || rc == HEFT_TLS_WRITE) {
        set_events(conn, EPOLLIN | (rc == HEFT_TLS_WRITE ? (uint32_t)EPOLLOUT : 0));
        return 0;
    }
    if (rc == HEFT_TLS_DONE) {
        conn->tls_done = 1;
        set_events(conn, EPOLLIN);
        return 1;
    }
    HEFT_COUNT(conn->agent, handshakes_refused, 1);
    heft_log(HEFT_LOG_WARN, "agent %s: refused a connection: %s", conn->agent->name, error.text);
    /* the alert that tells the client why must not be overtaken by a reset */
    conn->state = HEFT_CONN_LINGER;
    conn->deadline_ns = heft_deadline_after_ms(HEFT_CONN_LINGER_MS);
    (void)shutdown(conn->watch.fd, SHUT_WR);
    return 0;
}

static void conn_ready(struct heft_watch *watch, uint32_t events)
{
    struct heft_conn *conn = HEFT_CONTAINER_OF(watch, struct heft_conn, watch);

    heft_conn_enter(conn);
    if (conn->tls && !conn->tls_done && conn->state != HEFT_CONN_LINGER && !shake(conn)) {
        heft_conn_leave(conn);
        return;
    }
    if ((events & EPOLLOUT) && !conn->dead) {
        flush(conn);
        if (!conn->dead && !conn->out_first) {
            if (conn->state == HEFT_CONN_LINGER)
                (void)shutdown(conn->watch.fd, SHUT_WR);
            else if (conn->ops->drained)
                conn->ops->drained(conn);
        }
    }
    if (!conn->dead && ((events & ~(uint32_t)EPOLLOUT) || heft_tls_pending(conn->tls))) {
        if (conn->state != HEFT_CONN_LINGER)
            read_frames(conn);
        if (!conn->dead && conn->state == HEFT_CONN_LINGER)
            discard(conn);
    }
    /* what lies decrypted in the session raises no event of its own */
    if (!conn->dead && conn->state != HEFT_CONN_LINGER && heft_tls_pending(conn->tls))
        heft_conn_wake(conn);
    heft_conn_leave(conn);
}

/* ---- time ---- */

static uint32_t tick_ms(const struct heft_agent *agent)
{
    uint32_t ms = agent->heartbeat_ms / 2;

    if (ms > agent->handshake_timeout_ms / 4)
        ms = agent->handshake_timeout_ms / 4;
    if (ms > agent->peer_timeout_ms / 8)
        ms = agent->peer_timeout_ms / 8;
    return ms < TICK_MIN_MS ? TICK_MIN_MS : ms > TICK_MAX_MS ? TICK_MAX_MS : ms;
}

void heft_conn_arm_tick(struct heft_agent *agent)
{
    if (agent->conn_timer.at_ns || !agent->conns)
        return;
    agent->last_tick_ns = heft_now_ns();
    heft_timer_set(agent->control, &agent->conn_timer, heft_deadline_after_ms(tick_ms(agent)));
}

static void tick_live(struct heft_conn *conn, uint64_t now_ns)
{
    const struct heft_agent *agent = conn->agent;
    uint64_t silent_ns = now_ns > conn->last_heard_ns ? now_ns - conn->last_heard_ns : 0;
    struct heft_buf empty = {0};
    char text[120];

    if (silent_ns > (uint64_t)agent->peer_timeout_ms * HEFT_NS_PER_MS) {
        (void)snprintf(text, sizeof(text), "no sign of life for %llu ms (limit: peer_timeout_ms %u)",
                       (unsigned long long)(silent_ns / HEFT_NS_PER_MS), agent->peer_timeout_ms);
        heft_conn_fail(conn, HEFT_ERR_STALLED, text);
        return;
    }
    if (conn->out_first) {
        flush(conn);
        /* what waits for room must hear of it here too: no event comes for an empty queue */
        if (!conn->dead && !conn->out_first && conn->ops->drained)
            conn->ops->drained(conn);
    }
    if (!conn->dead && silent_ns >= (uint64_t)agent->heartbeat_ms * HEFT_NS_PER_MS &&
        now_ns - conn->last_ping_ns >= (uint64_t)agent->heartbeat_ms * HEFT_NS_PER_MS) {
        conn->last_ping_ns = now_ns;
        heft_conn_send(conn, HEFT_FRAME_PING, now_ns, &empty);
    }
}

void heft_conn_tick(struct heft_agent *agent, uint64_t now_ns)
{
    /* When this process itself was stopped, or starved, the silence was its own: what came meanwhile still
     * lies in the sockets, so every connection gets a fresh start. */
    int late = now_ns - agent->last_tick_ns > 8 * (uint64_t)tick_ms(agent) * HEFT_NS_PER_MS;
    struct heft_conn *conn, *next;

    agent->last_tick_ns = now_ns;
    for (conn = agent->conns; conn; conn = next) {
        next = conn->next;
        if (late && conn->state == HEFT_CONN_LIVE)
            conn->last_heard_ns = now_ns;
        if (conn->state == HEFT_CONN_LIVE) {
            heft_conn_enter(conn);
            tick_live(conn, now_ns);
            heft_conn_leave(conn);
        } else if (conn->deadline_ns && now_ns > conn->deadline_ns) {
            heft_conn_fail(conn, HEFT_ERR_DEADLINE,
                           conn->state == HEFT_CONN_LINGER ? "closed after a refusal"
                                                           : "the handshake took too long");
        }
    }
}

void heft_conn_timer_fire(struct heft_timer *timer)
{
    struct heft_agent *agent = HEFT_CONTAINER_OF(timer, struct heft_agent, conn_timer);

    heft_conn_tick(agent, heft_now_ns());
    if (agent->conns)
        heft_timer_set(agent->control, &agent->conn_timer, heft_deadline_after_ms(tick_ms(agent)));
}
