/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What strangers may do to a listening agent: whatever they write, they get an error or a closed connection,
 * and the next honest peer is served at once.
 */
#include "pair.h"

#include "agent/handshake.h"
#include "base/random.h"
#include "wire/message.h"

#include <heft/heft.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HANDSHAKE_MS 700

struct target {
    struct heft_agent *server, *client;
    uint16_t port;
    uint8_t bytes[REGION_BYTES];
    struct heft_region *region;
};

static int setup(void **state)
{
    static struct target target;
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    char addresses[2048];

    fake_register();
    memset(&target, 0, sizeof(target));
    options.name = "server";
    options.listen = "127.0.0.1:0";
    options.transports = "fake";
    options.workers = 1;
    options.handshake_timeout_ms = HANDSHAKE_MS;
    options.max_pending = 64;
    assert_int_equal(heft_agent_open(&options, &target.server, NULL), 0);
    target.region = register_bytes(target.server, target.bytes, REGION_BYTES, HEFT_REGION_REMOTE_READ);
    assert_int_equal(heft_agent_set_document(target.server, "greeting", "hello", 5, NULL), 0);
    target.client = open_agent("client", NULL, "fake");
    assert_int_equal(heft_agent_addresses(target.server, addresses, sizeof(addresses)), 0);
    target.port = (uint16_t)strtoul(strrchr(addresses, ':') + 1, NULL, 10);
    *state = &target;
    return 0;
}

static int teardown(void **state)
{
    struct target *target = *state;

    assert_int_equal(heft_agent_close(target->client, NULL), 0);
    assert_int_equal(heft_agent_close(target->server, NULL), 0);
    fake_unregister();
    return 0;
}

static int dial(struct target *target)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(target->port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* The agent still serves: connect, read, close; within a time that no queue of strangers may stretch. */
static void expect_service(struct target *target)
{
    uint64_t before = heft_now_ns(), size;
    struct heft_peer *peer = connect_to(target->client, target->server);
    void *data;

    assert_int_equal(heft_peer_read_document(peer, "greeting", 100, 20000, &data, &size, NULL), 0);
    assert_int_equal(size, 5);
    assert_memory_equal(data, "hello", 5);
    heft_free(data);
    assert_int_equal(heft_peer_close(peer, NULL), 0);
    assert_true(heft_now_ns() - before < 3 * HEFT_NS_PER_S);
}

/* What the agent answers until it closes; at most size bytes. Fails when it neither ends nor speaks. */
static size_t read_to_end(int fd, uint8_t *data, size_t size)
{
    size_t have = 0;

    for (;;) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        ssize_t got;

        assert_int_equal(poll(&poll_fd, 1, 20000), 1);
        got = recv(fd, data + have, size - have, 0);
        if (got <= 0)
            return have;
        have += (size_t)got;
        assert_true(have < size);
    }
}

/* The connection ends with a refusal of that code. */
static void expect_refusal(int fd, int code)
{
    uint8_t data[8192];
    size_t size = read_to_end(fd, data, sizeof(data));
    struct heft_wire_refuse refuse;
    struct heft_frame frame;

    assert_true(size >= HEFT_FRAME_HEADER_BYTES);
    assert_int_equal(heft_frame_decode(data, &frame), 0);
    assert_int_equal(frame.type, HEFT_FRAME_REFUSE);
    assert_int_equal(heft_wire_get_refuse(data + HEFT_FRAME_HEADER_BYTES, frame.payload_bytes, &refuse), 0);
    assert_int_equal(refuse.code, code);
    (void)close(fd);
}

static void send_bytes(int fd, const void *data, size_t size)
{
    const uint8_t *at = data;

    while (size) {
        ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);

        if (sent <= 0)
            return; /* it has hung up on us: fine */
        at += sent;
        size -= (size_t)sent;
    }
}

static void send_frame(int fd, uint16_t type, const struct heft_buf *buf)
{
    uint8_t message[HEFT_FRAME_HEADER_BYTES + 8192];

    heft_frame_seal(type, 0, 1, buf->data, (uint32_t)buf->size, message);
    if (buf->size)
        memcpy(message + HEFT_FRAME_HEADER_BYTES, buf->data, buf->size);
    send_bytes(fd, message, HEFT_FRAME_HEADER_BYTES + buf->size);
}

static struct heft_wire_hello good_hello(void)
{
    struct heft_wire_hello hello = {.version_lowest = 1,
                                    .version_highest = 1,
                                    .purpose = HEFT_WIRE_CONTROL,
                                    .name = {"stranger", 8},
                                    .expected_name = {"", 0},
                                    .transport = {"", 0}};

    heft_random_bytes(hello.generation, sizeof(hello.generation));
    heft_random_bytes(hello.nonce, sizeof(hello.nonce));
    return hello;
}

static void send_hello(int fd, const struct heft_wire_hello *hello)
{
    struct heft_buf buf;

    heft_buf_init(&buf, 4096);
    heft_wire_put_hello(&buf, hello);
    send_frame(fd, HEFT_FRAME_HELLO, &buf);
    heft_buf_free(&buf);
}

/* ---- before the handshake ---- */

static void garbage_is_refused_at_once(void **state)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    struct target *target = *state;
    uint8_t noise[4096];
    int round, fd;

    for (round = 0; round < 20; round++) {
        heft_random_bytes(noise, sizeof(noise));
        fd = dial(target);
        send_bytes(fd, noise, sizeof(noise));
        expect_refusal(fd, HEFT_ERR_PROTOCOL);
    }
    fd = dial(target);
    send_bytes(fd, http, sizeof(http) - 1);
    expect_refusal(fd, HEFT_ERR_PROTOCOL);
    expect_service(target);
}

static void oversize_and_damaged_frames_are_refused(void **state)
{
    struct target *target = *state;
    uint8_t header[HEFT_FRAME_HEADER_BYTES + 64] = {0};
    struct heft_frame frame = {.version = 1, .type = HEFT_FRAME_HELLO, .payload_bytes = UINT32_MAX};
    int fd = dial(target);

    heft_frame_encode(&frame, header);
    send_bytes(fd, header, HEFT_FRAME_HEADER_BYTES);
    expect_refusal(fd, HEFT_ERR_TOO_LARGE);

    frame.type = HEFT_FRAME_REGIONS; /* under its type's cap, over a stranger's */
    frame.payload_bytes = HEFT_FRAME_HANDSHAKE_MAX_BYTES + 1;
    heft_frame_encode(&frame, header);
    fd = dial(target);
    send_bytes(fd, header, HEFT_FRAME_HEADER_BYTES);
    expect_refusal(fd, HEFT_ERR_TOO_LARGE);

    frame = (struct heft_frame){.version = 1,
                                .type = HEFT_FRAME_HELLO,
                                .flags = HEFT_FRAME_CHECKED,
                                .payload_bytes = 64,
                                .payload_check = 12345};
    heft_frame_encode(&frame, header);
    fd = dial(target);
    send_bytes(fd, header, sizeof(header));
    expect_refusal(fd, HEFT_ERR_PROTOCOL);

    frame.flags = 0; /* sound, but no HELLO inside */
    heft_frame_encode(&frame, header);
    fd = dial(target);
    send_bytes(fd, header, sizeof(header));
    expect_refusal(fd, HEFT_ERR_PROTOCOL);
    expect_service(target);
}

static void frames_out_of_turn_are_refused(void **state)
{
    static const uint16_t types[] = {HEFT_FRAME_AUTH, HEFT_FRAME_READY, HEFT_FRAME_DOC_GET,
                                     HEFT_FRAME_REGIONS, HEFT_FRAME_BYE};
    struct target *target = *state;
    struct heft_buf empty = {0};
    size_t index;

    for (index = 0; index < sizeof(types) / sizeof(types[0]); index++) {
        int fd = dial(target);

        send_frame(fd, types[index], &empty);
        expect_refusal(fd, HEFT_ERR_PROTOCOL);
    }
    assert_int_equal(STAT(target->server, handshakes_refused), index);
    expect_service(target);
}

static void a_client_of_other_versions_is_told_both_ranges(void **state)
{
    struct target *target = *state;
    struct heft_wire_hello hello = good_hello();
    uint8_t data[8192];
    size_t size;
    int fd = dial(target);

    hello.version_lowest = 7;
    hello.version_highest = 9;
    send_hello(fd, &hello);
    size = read_to_end(fd, data, sizeof(data) - 1);
    data[size] = 0;
    assert_non_null(memmem(data, size, "versions 7 to 9", 15));
    assert_non_null(memmem(data, size, "speaks 1 to 1", 13));
    (void)close(fd);
    fd = dial(target); /* one that shares a version is answered in it */
    hello.version_lowest = 1;
    send_hello(fd, &hello);
    assert_int_equal(recv(fd, data, HEFT_FRAME_HEADER_BYTES, MSG_WAITALL), HEFT_FRAME_HEADER_BYTES);
    assert_int_equal(data[6], HEFT_FRAME_CHALLENGE);
    (void)close(fd);
    expect_service(target);
}

static void a_proof_without_the_token_is_denied(void **state)
{
    struct target *target = *state;
    struct heft_wire_hello hello = good_hello();
    struct heft_wire_auth auth = {0};
    struct heft_buf buf;
    uint8_t data[512];
    int fd = dial(target);

    send_hello(fd, &hello);
    assert_int_equal(recv(fd, data, HEFT_FRAME_HEADER_BYTES, MSG_WAITALL), HEFT_FRAME_HEADER_BYTES);
    assert_int_equal(recv(fd, data, heft_get_u32(data + 12), MSG_WAITALL), 92);
    memcpy(auth.proof, data + 2 + 16 + 32, sizeof(auth.proof)); /* the server's own proof, sent back */
    heft_buf_init(&buf, 4096);
    heft_wire_put_auth(&buf, &auth);
    send_frame(fd, HEFT_FRAME_AUTH, &buf);
    heft_buf_free(&buf);
    expect_refusal(fd, HEFT_ERR_DENIED);
    expect_service(target);
}

static void a_data_stream_of_no_session_is_refused(void **state)
{
    struct target *target = *state;
    struct heft_wire_hello hello = good_hello();
    struct heft_peer *peer = connect_to(target->client, target->server);
    int fd;

    hello.purpose = HEFT_WIRE_DATA;
    hello.transport = (struct heft_wire_text){"fake", 4};
    hello.session = 12345;
    fd = dial(target);
    send_hello(fd, &hello);
    expect_refusal(fd, HEFT_ERR_STALE);
    hello.session = peer->session; /* there, but another agent's */
    fd = dial(target);
    send_hello(fd, &hello);
    expect_refusal(fd, HEFT_ERR_STALE);
    hello.purpose = 99;
    fd = dial(target);
    send_hello(fd, &hello);
    expect_refusal(fd, HEFT_ERR_UNSUPPORTED);
    assert_int_equal(heft_peer_close(peer, NULL), 0);
}

/* ---- slow and many ---- */

static uint64_t control_cpu_ns(struct target *target);

static void one_byte_at_a_time_ends_at_the_time_out(void **state)
{
    struct target *target = *state;
    uint8_t header[HEFT_FRAME_HEADER_BYTES], byte;
    struct heft_frame frame = {.version = 1, .type = HEFT_FRAME_HELLO, .payload_bytes = 4000};
    uint64_t begin = heft_now_ns(), took_ms;
    int fd = dial(target);
    size_t sent = 0;

    heft_frame_encode(&frame, header);
    for (;;) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

        byte = sent < sizeof(header) ? header[sent] : 0;
        if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1)
            break;
        sent++;
        if (poll(&poll_fd, 1, 20) == 1 && recv(fd, &byte, 1, MSG_DONTWAIT) <= 0)
            break;
        assert_true(heft_now_ns() - begin < 20 * HEFT_NS_PER_S);
    }
    took_ms = (heft_now_ns() - begin) / HEFT_NS_PER_MS;
    assert_true(took_ms >= HANDSHAKE_MS - 50 && took_ms < HANDSHAKE_MS + 2000);
    (void)close(fd);
    expect_service(target);
}

static void a_thousand_idle_connections_do_not_keep_an_honest_peer_out(void **state)
{
    struct target *target = *state;
    int fds[1000];
    int index, before = count_fds();

    for (index = 0; index < 1000; index++)
        fds[index] = dial(target);
    expect_service(target);
    for (index = 0; index < 1000; index++)
        (void)send(fds[index], "H", 1, MSG_NOSIGNAL);
    expect_service(target);
    for (index = 0; index < 1000; index++)
        (void)close(fds[index]);
    for (index = 0; index < 20000 && count_fds() > before; index++)
        (void)usleep(1000);
    assert_int_equal(count_fds(), before);
    expect_service(target);
}

static void count_pauses(enum heft_log_level level, const char *line, void *context)
{
    (void)level;
    if (strstr(line, "can't accept"))
        (void)__atomic_add_fetch((int *)context, 1, __ATOMIC_RELAXED);
}

static void when_descriptors_run_out_accepting_pauses_and_goes_on(void **state)
{
    struct target *target = *state;
    struct rlimit limit, low;
    int fds[8], held[64];
    static int pauses;
    int index, held_count = 0, before;
    uint64_t cpu_ns;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    for (index = 0; index < 8; index++) {
        fds[index] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fds[index] >= 0);
    }
    heft_set_log_sink(count_pauses, &pauses, HEFT_LOG_WARN);
    before = count_fds();
    low = limit;
    low.rlim_cur = (rlim_t)before + 16;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    while (held_count < 64 && (held[held_count] = dup(0)) >= 0)
        held_count++;
    for (index = 0; index < 8; index++) { /* they wait in the kernel's queue */
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(target->port)};

        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        assert_int_equal(connect(fds[index], (struct sockaddr *)&address, sizeof(address)), 0);
    }
    cpu_ns = control_cpu_ns(target);
    (void)usleep(400 * 1000);
    cpu_ns = control_cpu_ns(target) - cpu_ns;
    while (held_count)
        (void)close(held[--held_count]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(__atomic_load_n(&pauses, __ATOMIC_RELAXED) >= 1);
    assert_true(__atomic_load_n(&pauses, __ATOMIC_RELAXED) < 20);
    assert_true(cpu_ns < 200 * HEFT_NS_PER_MS); /* it does not spin */
    expect_service(target);
    for (index = 0; index < 8; index++)
        (void)close(fds[index]);
    heft_set_log_sink(NULL, NULL, HEFT_LOG_ERROR);
}

static void read_cpu(void *context)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    *(uint64_t *)context = (uint64_t)now.tv_sec * HEFT_NS_PER_S + (uint64_t)now.tv_nsec;
}

static uint64_t control_cpu_ns(struct target *target)
{
    uint64_t cpu_ns = 0;

    heft_agent_run_on(target->server->control, read_cpu, &cpu_ns);
    return cpu_ns;
}

/* ---- with the token, but wrong ---- */

/* A session of a peer that holds the token and then misbehaves. */
static int join_naming(struct target *target, uint16_t ended_count, uint64_t ended)
{
    struct heft_wire_hello hello = good_hello();
    struct heft_wire_challenge challenge;
    struct heft_handshake handshake = {0};
    struct heft_token token = heft_agent_token(target->server);
    struct heft_wire_auth auth = {.ended_count = ended_count, .ended = {ended}};
    struct heft_buf buf;
    uint8_t data[4096];
    uint32_t size;
    int fd = dial(target);

    send_hello(fd, &hello);
    assert_int_equal(recv(fd, data, HEFT_FRAME_HEADER_BYTES, MSG_WAITALL), HEFT_FRAME_HEADER_BYTES);
    size = heft_get_u32(data + 12);
    assert_int_equal(recv(fd, data, size, MSG_WAITALL), size);
    assert_int_equal(heft_wire_get_challenge(data, size, &challenge), 0);
    heft_handshake_set_hello(&handshake, &hello);
    heft_handshake_set_challenge(&handshake, &challenge);
    heft_handshake_proof(&handshake, token.bytes, HEFT_PROOF_CLIENT, 0, auth.proof);
    heft_buf_init(&buf, 4096);
    heft_wire_put_auth(&buf, &auth);
    send_frame(fd, HEFT_FRAME_AUTH, &buf);
    heft_buf_free(&buf);
    return fd;
}

static int join(struct target *target)
{
    return join_naming(target, 0, 0);
}

/* Reads frames until one of that type; false when the connection ends first. */
static int await_frame(int fd, uint16_t type, struct heft_frame *frame, uint8_t payload[1 << 16])
{
    uint8_t header[HEFT_FRAME_HEADER_BYTES];

    while (recv(fd, header, sizeof(header), MSG_WAITALL) == (ssize_t)sizeof(header)) {
        assert_int_equal(heft_frame_decode(header, frame), 0);
        assert_true(frame->payload_bytes <= 1 << 16);
        if (frame->payload_bytes &&
            recv(fd, payload, frame->payload_bytes, MSG_WAITALL) != (ssize_t)frame->payload_bytes)
            return 0;
        if (frame->type == type)
            return 1;
    }
    return 0;
}

static void a_session_of_another_agent_can_not_be_named_as_ended(void **state)
{
    static uint8_t payload[1 << 16];
    struct target *target = *state;
    struct heft_peer *peer = connect_to(target->client, target->server);
    struct heft_frame frame;
    int fd = join_naming(target, 1, peer->session), all;

    assert_true(await_frame(fd, HEFT_FRAME_REGIONS, &frame, payload));
    assert_int_equal(heft_peer_status(peer, NULL), 0);
    all = join_naming(target, HEFT_WIRE_ENDED_MAX, 12345); /* none of them is there */
    assert_true(await_frame(all, HEFT_FRAME_REGIONS, &frame, payload));
    (void)close(fd);
    (void)close(all);
    assert_int_equal(heft_peer_status(peer, NULL), 0);
    assert_int_equal(heft_peer_close(peer, NULL), 0);
    expect_service(target);
}

static void an_unknown_frame_is_answered_or_skipped_and_the_session_lives(void **state)
{
    static uint8_t payload[1 << 16];
    struct target *target = *state;
    struct heft_wire_refuse refuse;
    struct heft_frame frame = {.version = 1, .type = 200, .id = 42, .flags = HEFT_FRAME_OPTIONAL};
    uint8_t header[HEFT_FRAME_HEADER_BYTES];
    int fd = join(target);

    assert_true(await_frame(fd, HEFT_FRAME_REGIONS, &frame, payload));
    frame = (struct heft_frame){.version = 1, .type = 200, .id = 41, .flags = HEFT_FRAME_OPTIONAL};
    heft_frame_encode(&frame, header);
    send_bytes(fd, header, sizeof(header));
    frame = (struct heft_frame){.version = 1, .type = 200, .id = 42};
    heft_frame_encode(&frame, header);
    send_bytes(fd, header, sizeof(header));
    assert_true(await_frame(fd, HEFT_FRAME_REFUSE, &frame, payload));
    assert_int_equal(frame.id, 42);
    assert_int_equal(heft_wire_get_refuse(payload, frame.payload_bytes, &refuse), 0);
    assert_int_equal(refuse.code, HEFT_ERR_UNSUPPORTED);
    frame = (struct heft_frame){.version = 1, .type = HEFT_FRAME_PING, .id = 43};
    heft_frame_encode(&frame, header);
    send_bytes(fd, header, sizeof(header));
    assert_true(await_frame(fd, HEFT_FRAME_PONG, &frame, payload));
    assert_int_equal(frame.id, 43);
    (void)close(fd);
    expect_service(target);
}

static void malformed_requests_of_a_peer_are_refused_one_by_one(void **state)
{
    static uint8_t payload[1 << 16];
    struct target *target = *state;
    struct heft_frame frame;
    struct heft_buf buf;
    int fd = join(target), index;

    assert_true(await_frame(fd, HEFT_FRAME_REGIONS, &frame, payload));
    heft_buf_init(&buf, 4096);
    heft_buf_u64(&buf, UINT64_MAX);
    heft_buf_u32(&buf, UINT32_MAX); /* the length of a name that is not there */
    send_frame(fd, HEFT_FRAME_DOC_GET, &buf);
    assert_true(await_frame(fd, HEFT_FRAME_REFUSE, &frame, payload));
    send_frame(fd, HEFT_FRAME_READY, &buf); /* not for this side */
    assert_true(await_frame(fd, HEFT_FRAME_REFUSE, &frame, payload));
    buf.size = 0;
    heft_wire_put_doc_get(&buf, 1000, "none");
    for (index = 0; index < 100; index++) {
        send_frame(fd, HEFT_FRAME_DOC_GET, &buf);
        assert_true(await_frame(fd, HEFT_FRAME_REFUSE, &frame, payload));
    }
    buf.size = 0;
    heft_buf_u64(&buf, 1);
    heft_buf_u32(&buf, 5); /* five ids, none there: that one ends the session */
    send_frame(fd, HEFT_FRAME_REGION_FREE, &buf);
    assert_true(await_frame(fd, HEFT_FRAME_BYE, &frame, payload));
    heft_buf_free(&buf);
    (void)close(fd);
    expect_service(target);
}

static int nobody_connected(void *context)
{
    return STAT((struct heft_agent *)context, peers_accepted) == 0;
}

static uint64_t await_credit(int fd)
{
    static uint8_t payload[1 << 16];
    struct heft_wire_credit credit;
    struct heft_frame frame;

    assert_true(await_frame(fd, HEFT_FRAME_CREDIT, &frame, payload));
    assert_true(frame.flags & HEFT_FRAME_OPTIONAL);
    assert_int_equal(heft_wire_get_credit(payload, frame.payload_bytes, &credit), 0);
    assert_int_equal(credit.largest_bytes, HEFT_NOTIFICATION_MAX_BYTES);
    return credit.bytes;
}

static void notifications_beyond_the_credit_end_the_session(void **state)
{
    static uint8_t payload[1 << 16];
    struct target *target = *state;
    struct heft_notification note = {.size = sizeof(note)};
    struct heft_wire_refuse refuse;
    struct heft_frame frame;
    struct heft_buf buf;
    int fd = join(target);
    uint64_t credit = await_credit(fd), sent = 0;

    assert_true(credit >= 8256 && credit <= 1 << 20);
    heft_buf_init(&buf, 1 << 16);
    heft_wire_put_notify(&buf, payload, 1000);
    for (; credit >= 1064; credit -= 1064, sent++)
        send_frame(fd, HEFT_FRAME_NOTIFY, &buf);
    send_frame(fd, HEFT_FRAME_NOTIFY, &buf);
    assert_true(await_frame(fd, HEFT_FRAME_BYE, &frame, payload));
    assert_int_equal(heft_wire_get_refuse(payload, frame.payload_bytes, &refuse), 0);
    assert_int_equal(refuse.code, HEFT_ERR_PROTOCOL);
    while (heft_agent_next_notification(target->server, &note, 0) == 0) {
        assert_string_equal(note.peer, "stranger");
        heft_free(note.data);
        sent--;
    }
    assert_int_equal(sent, 0);
    (void)close(fd);
    fd = join(target); /* a length that is not there */
    buf.size = 0;
    heft_buf_u32(&buf, 5);
    send_frame(fd, HEFT_FRAME_NOTIFY, &buf);
    assert_true(await_frame(fd, HEFT_FRAME_BYE, &frame, payload));
    (void)close(fd);
    heft_buf_free(&buf);
    expect_service(target);
}

/* `count` entries from id `first` on, of `transfers` each. */
static void send_counts(int fd, uint32_t first, uint32_t count, uint64_t transfers)
{
    struct heft_buf buf;
    uint32_t index;

    heft_buf_init(&buf, 1 << 16);
    heft_wire_put_counts(&buf, count);
    for (index = 0; index < count; index++) {
        struct heft_wire_count entry = {.counter = first + index, .transfers = transfers};

        heft_wire_put_count(&buf, &entry);
    }
    send_frame(fd, HEFT_FRAME_COUNT, &buf);
    heft_buf_free(&buf);
}

static void counting_without_bound_ends_the_session(void **state)
{
    static uint8_t payload[1 << 16];
    struct target *target = *state;
    struct heft_counter_options options = HEFT_COUNTER_OPTIONS_INIT;
    struct heft_counter *counter = NULL;
    struct heft_frame frame;
    int fd = join(target);
    uint32_t first;

    for (first = 0; first < 1024; first += 256)
        send_counts(fd, first, 256, 3);
    send_counts(fd, 5, 1, 1);    /* one that is there already */
    send_counts(fd, 5000, 1, 1); /* one too many */
    assert_true(await_frame(fd, HEFT_FRAME_BYE, &frame, payload));
    (void)close(fd);
    options.peer = "stranger";
    options.id = 5;
    assert_int_equal(heft_counter_open(target->server, &options, &counter, NULL), 0);
    assert_int_equal(heft_counter_count(counter), 4); /* what came before it counts */
    assert_int_equal(heft_counter_close(counter, NULL), 0);
    fd = join(target);
    send_counts(fd, 1, 1, UINT64_MAX);
    send_counts(fd, 1, 1, 1); /* more than can be counted */
    assert_true(await_frame(fd, HEFT_FRAME_BYE, &frame, payload));
    (void)close(fd);
    fd = join(target);
    send_counts(fd, 1, 1, 0); /* counts nothing */
    assert_true(await_frame(fd, HEFT_FRAME_BYE, &frame, payload));
    (void)close(fd);
    expect_service(target);
}

static void ended_connections_are_not_kept_without_bound(void **state)
{
    static uint8_t payload[1 << 16];
    struct target *target = *state;
    struct heft_frame frame;
    int life;

    for (life = 0; life < 100; life++) {
        int fd = join(target);

        assert_true(await_frame(fd, HEFT_FRAME_REGIONS, &frame, payload));
        send_counts(fd, 1, 10, 1);
        frame = (struct heft_frame){.version = 1, .type = HEFT_FRAME_PING, .id = 1};
        heft_frame_encode(&frame, payload);
        send_bytes(fd, payload, HEFT_FRAME_HEADER_BYTES);
        assert_true(await_frame(fd, HEFT_FRAME_PONG, &frame, payload));
        (void)close(fd);
    }
    expect_service(target);
    eventually(nobody_connected, target->server);
    assert_int_equal(target->server->inbox_gone, 64);
}

struct queues {
    struct heft_agent *agent;
    size_t bytes;
};

static void find_longest_queue(void *context)
{
    struct queues *queues = context;
    const struct heft_conn *conn;

    for (conn = queues->agent->conns; conn; conn = conn->next)
        if (conn->out_bytes > queues->bytes)
            queues->bytes = conn->out_bytes;
}

static void a_peer_that_asks_and_never_reads_is_dropped_at_a_bound(void **state)
{
    struct target *target = *state;
    const size_t size = 8 << 20;
    uint8_t *bytes = calloc(1, size);
    struct queues longest = {target->server, 0};
    struct heft_buf buf;
    int fd = join(target), index;

    assert_non_null(bytes);
    assert_int_equal(heft_agent_set_document(target->server, "big", bytes, size, NULL), 0);
    heft_buf_init(&buf, 4096);
    heft_wire_put_doc_get(&buf, size, "big");
    /* Each is a document under way or a refusal that is queued: memory must stay bounded. */
    for (index = 0; index < 2000; index++)
        send_frame(fd, HEFT_FRAME_DOC_GET, &buf);
    heft_buf_free(&buf);
    expect_service(target);
    heft_agent_run_on(target->server->control, find_longest_queue, &longest);
    assert_true(longest.bytes > 0 && longest.bytes < 2 << 20);
    (void)close(fd);
    eventually(nobody_connected, target->server);
    free(bytes);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(garbage_is_refused_at_once),
        TEST(oversize_and_damaged_frames_are_refused),
        TEST(frames_out_of_turn_are_refused),
        TEST(a_client_of_other_versions_is_told_both_ranges),
        TEST(a_proof_without_the_token_is_denied),
        TEST(a_data_stream_of_no_session_is_refused),
        TEST(one_byte_at_a_time_ends_at_the_time_out),
        TEST(a_thousand_idle_connections_do_not_keep_an_honest_peer_out),
        TEST(when_descriptors_run_out_accepting_pauses_and_goes_on),
        TEST(a_session_of_another_agent_can_not_be_named_as_ended),
        TEST(an_unknown_frame_is_answered_or_skipped_and_the_session_lives),
        TEST(malformed_requests_of_a_peer_are_refused_one_by_one),
        TEST(a_peer_that_asks_and_never_reads_is_dropped_at_a_bound),
        TEST(notifications_beyond_the_credit_end_the_session),
        TEST(counting_without_bound_ends_the_session),
        TEST(ended_connections_are_not_kept_without_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
