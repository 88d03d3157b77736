/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/connect.h"

#include "agent/address.h"
#include "agent/ended.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/random.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ADDRESSES_MAX 32

/* ---- I/O with a deadline ---- */

static int is_cancelled(const struct heft_connect_request *request)
{
    return request->cancel && __atomic_load_n(request->cancel, __ATOMIC_ACQUIRE);
}

static int wait_ready(const struct heft_connect_request *request, int fd, short events)
{
    uint64_t until_ns = request->until_ns;

    for (;;) {
        struct pollfd poll_fd = {.fd = fd, .events = events};
        uint64_t now_ns = heft_now_ns();
        int timeout_ms, rc;

        if (is_cancelled(request))
            return HEFT_ERR_CANCELED;
        if (now_ns >= until_ns)
            return HEFT_ERR_DEADLINE;
        timeout_ms = (int)((until_ns - now_ns) / HEFT_NS_PER_MS < 60000
                               ? (until_ns - now_ns + HEFT_NS_PER_MS - 1) / HEFT_NS_PER_MS
                               : 60000);
        if (request->cancel && timeout_ms > HEFT_CANCEL_LOOK_MS)
            timeout_ms = HEFT_CANCEL_LOOK_MS;
        rc = poll(&poll_fd, 1, timeout_ms);
        if (rc > 0)
            return 0;
        if (rc < 0 && errno != EINTR)
            return heft_error_from_errno(errno);
    }
}

static int send_all(const struct heft_connect_request *request, int fd, const void *data, size_t size)
{
    const uint8_t *at = data;

    while (size) {
        struct iovec iov = {(void *)(uintptr_t)at, size};
        ssize_t sent = heft_tls_or_fd_writev(request->tls, fd, &iov, 1);
        int rc;

        if (sent >= 0) {
            at += sent;
            size -= (size_t)sent;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            rc = wait_ready(request, fd, POLLOUT);
            if (rc)
                return rc;
        } else if (errno != EINTR) {
            return HEFT_ERR_PEER_LOST;
        }
    }
    return 0;
}

static int receive_all(const struct heft_connect_request *request, int fd, void *data, size_t size)
{
    uint8_t *at = data;

    while (size) {
        struct iovec iov = {at, size};
        ssize_t got = heft_tls_or_fd_readv(request->tls, fd, &iov, 1);
        int rc;

        if (got > 0) {
            at += got;
            size -= (size_t)got;
        } else if (got == 0) {
            return HEFT_ERR_PEER_LOST;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            rc = wait_ready(request, fd, POLLIN);
            if (rc)
                return rc;
        } else if (errno != EINTR) {
            return HEFT_ERR_PEER_LOST;
        }
    }
    return 0;
}

static int send_frame(const struct heft_connect_request *request, int fd, uint16_t type,
                      struct heft_buf *payload)
{
    uint8_t message[HEFT_FRAME_HEADER_BYTES + HEFT_FRAME_HANDSHAKE_MAX_BYTES];
    int rc = payload->failed;

    if (!rc) {
        heft_frame_seal(type, 0, 0, payload->data, (uint32_t)payload->size, message);
        memcpy(message + HEFT_FRAME_HEADER_BYTES, payload->data, payload->size);
        rc = send_all(request, fd, message, HEFT_FRAME_HEADER_BYTES + payload->size);
    }
    heft_buf_free(payload);
    return rc;
}

/* A server that does not like this side's certificate says so only after TLS was up here: its alert waits to
 * be read, also when what broke was a send. */
static int closed_early(const struct heft_connect_request *request, const char *where,
                        struct heft_error *error)
{
    if (request->tls) {
        char byte;
        struct iovec iov = {&byte, 1};

        if (!*heft_tls_problem(request->tls))
            (void)heft_tls_readv(request->tls, &iov, 1);
        if (*heft_tls_problem(request->tls))
            return heft_error_set(error, HEFT_ERR_DENIED, "%s: %s", where, heft_tls_problem(request->tls));
    }
    return heft_error_set(error, HEFT_ERR_UNAVAILABLE, "%s closed the connection during the handshake",
                          where);
}

/* The next frame of the handshake; a refusal, or anything but `type`, becomes the error. */
static int receive_frame(const struct heft_connect_request *request, int fd, uint16_t type, const char *where,
                         struct heft_frame *frame, uint8_t payload[HEFT_FRAME_HANDSHAKE_MAX_BYTES],
                         struct heft_error *error)
{
    uint8_t header[HEFT_FRAME_HEADER_BYTES];
    struct heft_wire_refuse refuse;
    int rc = receive_all(request, fd, header, sizeof(header));

    if (rc)
        goto broken;
    rc = heft_frame_decode(header, frame);
    if (rc == HEFT_ERR_INCOMPATIBLE)
        return heft_error_set(error, rc, "%s speaks protocol version %u, this agent speaks %u to %u", where,
                              frame->version, HEFT_WIRE_VERSION_LOWEST, HEFT_WIRE_VERSION_HIGHEST);
    if (rc || frame->payload_bytes > HEFT_FRAME_HANDSHAKE_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_PROTOCOL, "what answers at %s is not a heft agent", where);
    rc = receive_all(request, fd, payload, frame->payload_bytes);
    if (rc)
        goto broken;
    if (heft_frame_check_payload(frame, payload))
        return heft_error_set(error, HEFT_ERR_PROTOCOL, "%s sent a damaged frame", where);
    if (frame->type == HEFT_FRAME_REFUSE && !heft_wire_get_refuse(payload, frame->payload_bytes, &refuse))
        return heft_error_set(error, refuse.code, "%s refused: %.*s", where, (int)refuse.text.size,
                              refuse.text.data);
    if (frame->type != type)
        return heft_error_set(error, HEFT_ERR_PROTOCOL, "%s answered the handshake with a %s frame", where,
                              heft_frame_type_name(frame->type));
    return 0;

broken:
    if (rc == HEFT_ERR_CANCELED)
        return heft_error_set(error, rc, "connecting to %s was given up", where);
    if (rc == HEFT_ERR_DEADLINE)
        return heft_error_set(error, rc, "%s did not answer the handshake in time", where);
    return closed_early(request, where, error);
}

/* ---- the handshake ---- */

static int say_hello(const struct heft_connect_request *request, int fd, struct heft_handshake *handshake)
{
    struct heft_wire_hello hello = {.version_lowest = HEFT_WIRE_VERSION_LOWEST,
                                    .version_highest = HEFT_WIRE_VERSION_HIGHEST,
                                    .purpose = request->purpose,
                                    .session = request->session};
    struct heft_buf buf;

    memcpy(hello.generation, request->agent->generation.bytes, sizeof(hello.generation));
    memcpy(hello.expected, request->generation.bytes, sizeof(hello.expected));
    heft_random_bytes(hello.nonce, sizeof(hello.nonce));
    hello.name = (struct heft_wire_text){request->agent->name, strlen(request->agent->name)};
    hello.expected_name = (struct heft_wire_text){request->name, strlen(request->name)};
    hello.transport = (struct heft_wire_text){request->transport, strlen(request->transport)};
    heft_handshake_set_hello(handshake, &hello);
    heft_buf_init(&buf, HEFT_FRAME_HANDSHAKE_MAX_BYTES);
    heft_wire_put_hello(&buf, &hello);
    return send_frame(request, fd, HEFT_FRAME_HELLO, &buf);
}

/* The server answers for itself first: this side proves nothing to a stranger. */
static int check_server(const struct heft_connect_request *request, int fd, const char *where,
                        const struct heft_wire_challenge *challenge, struct heft_handshake *handshake,
                        struct heft_error *error)
{
    char wanted[HEFT_GENERATION_TEXT_BYTES], found[HEFT_GENERATION_TEXT_BYTES];
    uint8_t proof[HEFT_WIRE_PROOF_BYTES];
    struct heft_buf buf;

    if (challenge->version < HEFT_WIRE_VERSION_LOWEST || challenge->version > HEFT_WIRE_VERSION_HIGHEST)
        return heft_error_set(error, HEFT_ERR_INCOMPATIBLE,
                              "%s chose protocol version %u, this agent speaks %u to %u", where,
                              challenge->version, HEFT_WIRE_VERSION_LOWEST, HEFT_WIRE_VERSION_HIGHEST);
    if (!heft_generation_is_none(request->generation.bytes) &&
        memcmp(request->generation.bytes, challenge->generation, sizeof(challenge->generation)) != 0)
        return heft_error_set(error, HEFT_ERR_STALE, "%s: generation %s was asked for, %s lives there", where,
                              heft_generation_text(request->generation.bytes, wanted),
                              heft_generation_text(challenge->generation, found));
    if (*request->name && (strlen(request->name) != challenge->name.size ||
                           memcmp(request->name, challenge->name.data, challenge->name.size) != 0))
        return heft_error_set(error, HEFT_ERR_STALE, "%s: agent '%s' was asked for, '%.*s' lives there",
                              where, request->name, (int)challenge->name.size, challenge->name.data);
    heft_handshake_set_challenge(handshake, challenge);
    heft_handshake_proof(handshake, request->key, HEFT_PROOF_SERVER, 0, proof);
    if (heft_equal_secret(proof, challenge->proof, sizeof(proof)))
        return 0;
    heft_buf_init(&buf, HEFT_FRAME_HANDSHAKE_MAX_BYTES);
    heft_wire_put_refuse(&buf, HEFT_ERR_DENIED, "the server's proof is wrong");
    (void)send_frame(request, fd, HEFT_FRAME_REFUSE, &buf);
    return heft_error_set(error, HEFT_ERR_DENIED,
                          "%s: agent '%.*s' does not hold the token that was given for it", where,
                          (int)challenge->name.size, challenge->name.data);
}

static int shake_hands(const struct heft_connect_request *request, int fd, const char *where,
                       struct heft_connect_result *result, struct heft_error *error)
{
    uint8_t payload[HEFT_FRAME_HANDSHAKE_MAX_BYTES];
    struct heft_wire_challenge challenge;
    struct heft_wire_auth auth;
    struct heft_wire_ready ready;
    struct heft_frame frame;
    struct heft_buf buf;
    uint64_t sent_ns;
    int rc = say_hello(request, fd, &result->handshake);

    if (rc == HEFT_ERR_PEER_LOST)
        return closed_early(request, where, error);
    if (rc)
        return heft_error_set(error, rc, "%s closed the connection", where);
    rc = receive_frame(request, fd, HEFT_FRAME_CHALLENGE, where, &frame, payload, error);
    if (rc)
        return rc;
    if (heft_wire_get_challenge(payload, frame.payload_bytes, &challenge))
        return heft_error_set(error, HEFT_ERR_PROTOCOL, "%s sent a malformed CHALLENGE", where);
    rc = check_server(request, fd, where, &challenge, &result->handshake, error);
    if (rc)
        return rc;
    heft_handshake_proof(&result->handshake, request->key, HEFT_PROOF_CLIENT, 0, auth.proof);
    auth.ended_count = 0;
    if (request->purpose == HEFT_WIRE_CONTROL)
        heft_ended_name(request->agent, challenge.generation, &auth);
    heft_buf_init(&buf, HEFT_FRAME_HANDSHAKE_MAX_BYTES);
    heft_wire_put_auth(&buf, &auth);
    sent_ns = heft_now_ns();
    rc = send_frame(request, fd, HEFT_FRAME_AUTH, &buf);
    if (rc)
        return closed_early(request, where, error);
    rc = receive_frame(request, fd, HEFT_FRAME_READY, where, &frame, payload, error);
    if (rc)
        return rc;
    if (heft_wire_get_ready(payload, frame.payload_bytes, &ready))
        return heft_error_set(error, HEFT_ERR_PROTOCOL, "%s sent a malformed READY", where);
    heft_ended_forget(request->agent, challenge.generation, &auth);
    result->session = ready.session;
    result->same_host = result->is_unix || heft_handshake_same_host(&ready, heft_now_ns() - sent_ns);
    return 0;
}

/* ---- addresses ---- */

static int connect_socket(const struct heft_connect_request *request,
                          const struct heft_socket_address *address, const char *where, int *fd_out,
                          struct heft_error *error)
{
    int family = address->address.ss_family;
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int one = 1, failure = 0, rc;
    socklen_t length = sizeof(failure);

    if (fd < 0)
        return heft_error_set_errno(error, errno, "making a socket for %s", where);
    if (family != AF_UNIX)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (connect(fd, (const struct sockaddr *)&address->address, address->length)) {
        /* A unix socket whose queue is full says EAGAIN: there is nothing to wait on. */
        if (errno != EINPROGRESS && errno != EINTR) {
            failure = errno;
        } else {
            rc = wait_ready(request, fd, POLLOUT);
            if (rc) {
                (void)close(fd);
                return heft_error_set(error, rc, "%s did not answer in time", where);
            }
            if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &length))
                failure = errno;
        }
    }
    if (failure) {
        char reason[64];

        (void)close(fd);
        return heft_error_set(error, failure == ETIMEDOUT ? HEFT_ERR_DEADLINE : HEFT_ERR_UNAVAILABLE,
                              "nobody answers at %s: %s", where, strerror_r(failure, reason, sizeof(reason)));
    }
    *fd_out = fd;
    return 0;
}

/* TLS on a connection that was just made, when this agent speaks it. */
static int secure(struct heft_connect_request *request, int fd, const char *where, struct heft_error *error)
{
    int rc = heft_tls_start(request->agent->secure->context, fd, 0, &request->tls, error);

    while (!rc) {
        rc = heft_tls_handshake(request->tls, error);
        if (rc == HEFT_TLS_DONE)
            return 0;
        if (rc < 0)
            return heft_error_prefix(error, rc, "%s", where);
        rc = wait_ready(request, fd, rc == HEFT_TLS_READ ? POLLIN : POLLOUT);
        if (rc)
            return heft_error_set(error, rc,
                                  rc == HEFT_ERR_CANCELED ? "connecting to %s was given up"
                                                          : "%s did not answer the TLS handshake in time",
                                  where);
    }
    return rc;
}

static int try_address(struct heft_connect_request *request, const struct heft_address *address,
                       struct heft_connect_result *result, struct heft_error *error)
{
    struct heft_socket_address resolved[HEFT_ADDRESS_RESOLVED_MAX];
    char where[HEFT_ADDRESS_TEXT_BYTES];
    size_t count = 0, index;
    int fd = -1;
    int rc = heft_address_resolve(address, 0, request->until_ns, resolved, &count, error);

    if (rc)
        return rc;
    heft_address_text(address, where, sizeof(where));
    for (index = 0; index < count; index++) {
        rc = connect_socket(request, &resolved[index], where, &fd, error);
        if (!rc)
            break;
    }
    if (rc)
        return rc;
    result->is_unix = address->is_unix;
    request->tls = NULL;
    if (!address->is_unix && request->agent->secure)
        rc = secure(request, fd, where, error);
    if (!rc)
        rc = shake_hands(request, fd, where, result, error);
    if (rc) {
        heft_tls_free(request->tls);
        (void)close(fd);
        return rc;
    }
    result->tls = request->tls;
    if (address->is_unix) {
        struct ucred credentials = {0};
        socklen_t length = sizeof(credentials);

        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0)
            result->pid = credentials.pid;
    }
    result->fd = fd;
    return 0;
}

/* Which of two failures tells more: a refusal by whoever answered beats silence. */
static int telling(int code)
{
    switch (code) {
    case HEFT_ERR_DENIED:
    case HEFT_ERR_INCOMPATIBLE:
        return 4;
    case HEFT_ERR_STALE:
    case HEFT_ERR_INVALID:
        return 3;
    case HEFT_ERR_UNAVAILABLE:
    case HEFT_ERR_NOT_FOUND:
        return 1;
    default:
        return 2;
    }
}

static int list_addresses(const struct heft_connect_request *request,
                          struct heft_address addresses[ADDRESSES_MAX], size_t *count_out,
                          struct heft_error *error)
{
    const char *list = request->addresses;
    size_t count = 0, index, unix_first = 0;
    int rc;

    while (count < ADDRESSES_MAX && (rc = heft_address_next(&list, &addresses[count], error)) != 0) {
        if (rc < 0)
            return rc;
        count++;
    }
    if (!count)
        return heft_error_set(error, HEFT_ERR_INVALID, "no address to connect to");
    /* A transport of IP sockets asks for those; few addresses, so moving them one by one is fine. */
    for (index = 0; request->tcp_first && index < count; index++)
        if (!addresses[index].is_unix) {
            struct heft_address moved = addresses[index];

            memmove(&addresses[unix_first + 1], &addresses[unix_first], (index - unix_first) * sizeof(moved));
            addresses[unix_first++] = moved;
        }
    *count_out = count;
    return 0;
}

int heft_connect(const struct heft_connect_request *given, struct heft_connect_result *result_out,
                 struct heft_error *error)
{
    struct heft_connect_request request = *given;
    struct heft_address addresses[ADDRESSES_MAX];
    struct heft_error best = HEFT_ERROR_INIT;
    size_t count = 0, index;
    int rc = list_addresses(&request, addresses, &count, error);

    if (rc)
        return rc;
    for (index = 0; index < count; index++) {
        struct heft_error failure = HEFT_ERROR_INIT;
        uint64_t now_ns = heft_now_ns();

        if (is_cancelled(&request))
            return heft_error_set(error, HEFT_ERR_CANCELED, "connecting was given up");
        *result_out = (struct heft_connect_result){.fd = -1};
        /* Each address gets its share of what time is left: a silent one must not eat it all. */
        request.until_ns =
            now_ns >= given->until_ns ? now_ns : now_ns + (given->until_ns - now_ns) / (count - index);
        rc = try_address(&request, &addresses[index], result_out, &failure);
        if (!rc)
            return 0;
        if (best.code == 0 || telling(rc) > telling(best.code))
            best = failure;
        /* The one that was looked for has answered: its other addresses would say the same. */
        if (rc == HEFT_ERR_DENIED && !heft_generation_is_none(request.generation.bytes))
            break;
    }
    if (error)
        *error = best;
    return best.code;
}
