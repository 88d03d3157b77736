/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other side is a script: an agent of another version, as this one connects to it; and the listener under
 * a rain of frames that are nearly right, before the handshake and after it.
 */
#include "agent/handshake.h"
#include "base/random.h"
#include "pair.h"
#include "wire/frame.h"
#include "wire/message.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- a scripted server ---- */

struct script {
    int listener;
    char address[64];
    void (*answer)(int fd, const uint8_t *hello, uint32_t size);
    pthread_t thread;
};

static void *serve(void *context)
{
    struct script *script = context;
    int fd = accept(script->listener, NULL, NULL);
    uint8_t header[HEFT_FRAME_HEADER_BYTES], payload[4096];
    uint32_t size;

    if (recv(fd, header, sizeof(header), MSG_WAITALL) == (ssize_t)sizeof(header)) {
        size = heft_get_u32(header + 12);
        if (size <= sizeof(payload) && recv(fd, payload, size, MSG_WAITALL) == (ssize_t)size)
            script->answer(fd, payload, size);
    }
    (void)shutdown(fd, SHUT_WR);
    while (recv(fd, payload, sizeof(payload), 0) > 0)
        continue;
    (void)close(fd);
    return NULL;
}

static void script_start(struct script *script, void (*answer)(int fd, const uint8_t *hello, uint32_t size))
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);

    script->answer = answer;
    script->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(script->listener, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(script->listener, 1), 0);
    assert_int_equal(getsockname(script->listener, (struct sockaddr *)&address, &size), 0);
    (void)snprintf(script->address, sizeof(script->address), "tcp:127.0.0.1:%u", ntohs(address.sin_port));
    assert_int_equal(pthread_create(&script->thread, NULL, serve, script), 0);
}

static void send_sealed(int fd, uint16_t version, uint16_t type, struct heft_buf *buf)
{
    uint8_t message[HEFT_FRAME_HEADER_BYTES + 4096];
    struct heft_frame frame = {.version = version, .type = type, .payload_bytes = (uint32_t)buf->size};

    heft_frame_seal(type, 0, 0, buf->data, (uint32_t)buf->size, message);
    if (version != 1) /* another version's frame: the header's layout is the same in all */
        heft_frame_encode(&frame, message);
    memcpy(message + HEFT_FRAME_HEADER_BYTES, buf->data, buf->size);
    (void)send(fd, message, HEFT_FRAME_HEADER_BYTES + buf->size, MSG_NOSIGNAL);
    heft_buf_free(buf);
}

static void answer_in_version_9(int fd, const uint8_t *hello, uint32_t size)
{
    struct heft_buf buf;

    (void)hello;
    (void)size;
    heft_buf_init(&buf, 4096);
    heft_buf_u32(&buf, 7);
    send_sealed(fd, 9, HEFT_FRAME_CHALLENGE, &buf);
}

static void refuse_both_ranges(int fd, const uint8_t *hello, uint32_t size)
{
    struct heft_wire_hello told;
    struct heft_buf buf;
    char text[200];

    if (heft_wire_get_hello(hello, size, &told))
        return;
    (void)snprintf(text, sizeof(text), "you speak versions %u to %u, this agent versions 7 to 9",
                   told.version_lowest, told.version_highest);
    heft_buf_init(&buf, 4096);
    heft_wire_put_refuse(&buf, HEFT_ERR_INCOMPATIBLE, text);
    send_sealed(fd, 1, HEFT_FRAME_REFUSE, &buf);
}

static void choose(int fd, uint16_t version)
{
    struct heft_wire_challenge challenge = {.version = version, .name = {"old", 3}};
    struct heft_buf buf;

    heft_random_bytes(challenge.generation, sizeof(challenge.generation));
    heft_buf_init(&buf, 4096);
    heft_wire_put_challenge(&buf, &challenge);
    send_sealed(fd, 1, HEFT_FRAME_CHALLENGE, &buf);
}

static void choose_what_was_not_offered(int fd, const uint8_t *hello, uint32_t size)
{
    (void)hello;
    (void)size;
    choose(fd, 2);
}

static void choose_version_0(int fd, const uint8_t *hello, uint32_t size)
{
    (void)hello;
    (void)size;
    choose(fd, 0);
}

static void connecting_says(void (*answer)(int fd, const uint8_t *hello, uint32_t size), const char *theirs,
                            const char *ours)
{
    struct heft_agent *agent = open_agent("client", NULL, NULL);
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct script script;
    struct heft_peer *peer;

    script_start(&script, answer);
    options.addresses = script.address;
    options.connect_timeout_ms = 20000;
    assert_int_equal(heft_peer_connect(agent, &options, &peer, &error), HEFT_ERR_INCOMPATIBLE);
    if (!strstr(error.text, theirs) || !strstr(error.text, ours))
        fail_msg("'%s' or '%s' is missing in: %s", theirs, ours, error.text);
    assert_int_equal(pthread_join(script.thread, NULL), 0);
    (void)close(script.listener);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

static void a_server_of_another_version_is_refused_with_both_printed(void **state)
{
    (void)state;
    connecting_says(answer_in_version_9, "version 9", "1 to 1");
    connecting_says(refuse_both_ranges, "versions 7 to 9", "versions 1 to 1");
    connecting_says(choose_what_was_not_offered, "version 2", "1 to 1");
    connecting_says(choose_version_0, "version 0", "1 to 1");
}

/* ---- the rain ---- */

static int dial(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {0, 200000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_port = htons(port);
    assert_true(fd >= 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static uint32_t chance(uint64_t *seed, uint32_t below)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % below;
}

/* A frame of a random known or unknown type with a random payload, or a sound HELLO, then a few bytes
 * changed; the header's check is often put right again, so that the payload is looked at. */
static size_t nearly_right(uint64_t *seed, uint8_t message[1024])
{
    static const uint16_t types[] = {1,  2,  3,  4,  5,  6,  7,   8,   9,   10, 11,
                                     12, 13, 14, 15, 16, 17, 256, 257, 258, 300};
    struct heft_wire_hello hello = {.version_lowest = 1,
                                    .version_highest = (uint16_t)(1 + chance(seed, 3)),
                                    .purpose = (uint8_t)(1 + chance(seed, 2)),
                                    .session = chance(seed, 4),
                                    .name = {"rain", 4},
                                    .expected_name = {"", 0},
                                    .transport = {"tcp", 3}};
    uint16_t type = types[chance(seed, sizeof(types) / sizeof(types[0]))];
    uint32_t changes = chance(seed, 4), index;
    uint8_t payload[512];
    struct heft_buf buf;
    size_t size;

    heft_buf_init(&buf, 512);
    if (chance(seed, 2)) {
        type = HEFT_FRAME_HELLO;
        heft_wire_put_hello(&buf, &hello);
        size = buf.size;
        memcpy(payload, buf.data, size);
    } else {
        size = chance(seed, 200);
        for (index = 0; index < size; index++)
            payload[index] = (uint8_t)(chance(seed, 4) ? chance(seed, 8) : chance(seed, 256));
    }
    heft_buf_free(&buf);
    for (index = 0; size && index < changes; index++)
        payload[chance(seed, (uint32_t)size)] = (uint8_t)chance(seed, 256);
    heft_frame_seal(type, (uint32_t)(chance(seed, 4) == 0), chance(seed, 3), payload, (uint32_t)size,
                    message);
    memcpy(message + HEFT_FRAME_HEADER_BYTES, payload, size);
    if (chance(seed, 8) == 0)
        message[chance(seed, HEFT_FRAME_HEADER_BYTES)] ^= (uint8_t)(1 + chance(seed, 255));
    return HEFT_FRAME_HEADER_BYTES + size;
}

/* The handshake of one that holds the token; then it is a peer. -1: turned away, with so many strangers at
 * the door. */
static int try_join(struct heft_agent *server, uint16_t port)
{
    struct heft_wire_hello hello = {.version_lowest = 1,
                                    .version_highest = 1,
                                    .purpose = HEFT_WIRE_CONTROL,
                                    .name = {"rain", 4},
                                    .expected_name = {"", 0},
                                    .transport = {"", 0}};
    struct heft_token token = heft_agent_token(server);
    struct heft_wire_challenge challenge;
    struct heft_handshake handshake = {0};
    struct heft_wire_auth auth = {0};
    struct timeval limit = {20, 0};
    struct heft_buf buf;
    uint8_t data[4096];
    uint32_t size;
    int fd = dial(port);

    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    heft_random_bytes(hello.generation, sizeof(hello.generation));
    heft_buf_init(&buf, 4096);
    heft_wire_put_hello(&buf, &hello);
    send_sealed(fd, 1, HEFT_FRAME_HELLO, &buf);
    if (recv(fd, data, HEFT_FRAME_HEADER_BYTES, MSG_WAITALL) != HEFT_FRAME_HEADER_BYTES) {
        (void)close(fd);
        return -1;
    }
    size = heft_get_u32(data + 12);
    assert_int_equal(recv(fd, data, size, MSG_WAITALL), size);
    assert_int_equal(heft_wire_get_challenge(data, size, &challenge), 0);
    heft_handshake_set_hello(&handshake, &hello);
    heft_handshake_set_challenge(&handshake, &challenge);
    heft_handshake_proof(&handshake, token.bytes, HEFT_PROOF_CLIENT, 0, auth.proof);
    heft_buf_init(&buf, 4096);
    heft_wire_put_auth(&buf, &auth);
    send_sealed(fd, 1, HEFT_FRAME_AUTH, &buf);
    return fd;
}

static int join(struct heft_agent *server, uint16_t port)
{
    int fd = -1;

    for (int attempt = 0; fd < 0 && attempt < 500; attempt++) {
        fd = try_join(server, port);
        if (fd < 0)
            (void)poll(NULL, 0, 10); /* the strangers of before are gone by then */
    }
    assert_true(fd >= 0);
    return fd;
}

/* Strangers and a peer with the token throw frames; an honest peer's memory and reads stay right throughout.
 */
static void a_rain_of_frames_harms_no_honest_peer(void **state)
{
    struct heft_xfer *xfer;
    struct pair pair;
    const char *colon;
    uint64_t seed = 11;
    uint8_t message[1024];
    unsigned round, frame;
    uint16_t port;

    (void)state;
    pair_open(&pair, "127.0.0.1:0", "tcp,local");
    colon = strrchr(pair.addresses, ':');
    assert_non_null(colon);
    port = (uint16_t)strtoul(colon + 1, NULL, 10);
    xfer = create_read(&pair, NULL);
    for (round = 0; round < 1000; round++) {
        int fd = round % 4 == 3 ? join(pair.server, port) : dial(port);

        for (frame = 0; frame < 8; frame++) {
            size_t size = nearly_right(&seed, message);

            if (chance(&seed, 10) == 0)
                size = chance(&seed, (uint32_t)size); /* and silence in the middle */
            if (send(fd, message, size, MSG_NOSIGNAL) < 0)
                break;
        }
        (void)close(fd);
        if (round % 10 == 0) {
            memset(pair.target, 0, sizeof(pair.target));
            assert_int_equal(heft_xfer_post(xfer, NULL), 0);
            assert_int_equal(heft_xfer_wait(xfer, 20000), 0);
            assert_memory_equal(pair.target, pair.source, REGION_BYTES);
        }
    }
    for (round = 0; round < REGION_BYTES; round++) /* nobody wrote into it */
        assert_int_equal(pair.source[round], (uint8_t)(round * 31 + 7));
    assert_int_equal(heft_xfer_release(xfer), 0);
    pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_of_another_version_is_refused_with_both_printed),
        cmocka_unit_test(a_rain_of_frames_harms_no_honest_peer),
    };

    return cmocka_run_group_tests_name("version", tests, NULL, NULL);
}
