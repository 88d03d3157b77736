/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of protocol version 1, kept in frames_v1.golden: they may never change, and later versions go on
 * writing and reading them. With --print it writes them, for the file of a new version.
 */
#include "agent/handshake.h"
#include "wire/message.h"

#include <heft/space.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TEXT(literal) ((struct heft_wire_text){literal, sizeof(literal) - 1})
#define GOLDEN_MAX 32

struct golden {
    char name[32];
    uint8_t bytes[1024];
    size_t size;
};

static struct golden golden[GOLDEN_MAX];
static size_t golden_count;

static void fill(uint8_t *bytes, size_t size, uint8_t first)
{
    size_t index;

    for (index = 0; index < size; index++)
        bytes[index] = (uint8_t)(first + index);
}

static struct heft_wire_hello sample_hello(void)
{
    struct heft_wire_hello hello = {.version_lowest = 1,
                                    .version_highest = 1,
                                    .purpose = HEFT_WIRE_DATA,
                                    .session = 0x1112131415161718,
                                    .name = TEXT("reader"),
                                    .expected_name = TEXT("source"),
                                    .transport = TEXT("tcp")};

    fill(hello.generation, sizeof(hello.generation), 0x10);
    fill(hello.expected, sizeof(hello.expected), 0x30);
    fill(hello.nonce, sizeof(hello.nonce), 0x50);
    return hello;
}

static struct heft_wire_challenge sample_challenge(void)
{
    struct heft_wire_challenge challenge = {.version = 1, .name = TEXT("source")};

    fill(challenge.generation, sizeof(challenge.generation), 0x30);
    fill(challenge.nonce, sizeof(challenge.nonce), 0x70);
    fill(challenge.proof, sizeof(challenge.proof), 0x90);
    return challenge;
}

static void add_flagged(const char *name, uint16_t type, uint32_t flags, uint64_t id, struct heft_buf *buf)
{
    struct golden *entry = &golden[golden_count++];

    assert_int_equal(buf->failed, 0);
    assert_true(golden_count <= GOLDEN_MAX && HEFT_FRAME_HEADER_BYTES + buf->size <= sizeof(entry->bytes));
    (void)snprintf(entry->name, sizeof(entry->name), "%s", name);
    heft_frame_seal(type, flags, id, buf->data, (uint32_t)buf->size, entry->bytes);
    if (buf->size)
        memcpy(entry->bytes + HEFT_FRAME_HEADER_BYTES, buf->data, buf->size);
    entry->size = HEFT_FRAME_HEADER_BYTES + buf->size;
    buf->size = 0;
}

static void add(const char *name, uint16_t type, uint64_t id, struct heft_buf *buf)
{
    add_flagged(name, type, 0, id, buf);
}

static void add_handshake(struct heft_buf *buf)
{
    struct heft_wire_hello hello = sample_hello();
    struct heft_wire_challenge challenge = sample_challenge();
    struct heft_wire_ready ready = {.session = 7, .monotonic_ns = 0x0102030405060708};
    struct heft_wire_auth auth = {0};

    fill(auth.proof, sizeof(auth.proof), 0xa0);
    fill(ready.host, sizeof(ready.host), 0xc0);
    heft_wire_put_hello(buf, &hello);
    add("HELLO", HEFT_FRAME_HELLO, 0, buf);
    heft_wire_put_challenge(buf, &challenge);
    add("CHALLENGE", HEFT_FRAME_CHALLENGE, 0, buf);
    heft_wire_put_auth(buf, &auth);
    add("AUTH", HEFT_FRAME_AUTH, 0, buf);
    heft_wire_put_ready(buf, &ready);
    add("READY", HEFT_FRAME_READY, 0, buf);
}

static void add_rest(struct heft_buf *buf)
{
    static const uint64_t ids[] = {1, 0xfffefdfcfbfaf9f8};
    struct heft_wire_region region = {.id = 1,
                                      .space = HEFT_SPACE_HOST,
                                      .has_fd = 1,
                                      .flags = 1,
                                      .length_bytes = 0x1122334455,
                                      .address = 0x7f0000001000};
    struct heft_wire_doc doc = {.epoch = 2, .total_bytes = 11, .offset_bytes = 6, .chunk = TEXT("bytes")};

    heft_wire_put_refuse(buf, HEFT_ERR_STALE, "another generation");
    add("REFUSE", HEFT_FRAME_REFUSE, 3, buf);
    add("PING", HEFT_FRAME_PING, 0x0a0b0c0d, buf);
    add("PONG", HEFT_FRAME_PONG, 0x0a0b0c0d, buf);
    heft_wire_put_regions(buf, 9, 1, 2);
    heft_wire_put_region(buf, &region);
    region = (struct heft_wire_region){.id = 2, .space = HEFT_SPACE_FILE, .flags = 3, .length_bytes = 0};
    heft_wire_put_region(buf, &region);
    add("REGIONS", HEFT_FRAME_REGIONS, 0, buf);
    heft_wire_put_ids(buf, 10, ids, 2);
    add("REGION_GONE", HEFT_FRAME_REGION_GONE, 0, buf);
    heft_wire_put_ids(buf, 10, ids, 1);
    add("REGION_FREE", HEFT_FRAME_REGION_FREE, 0, buf);
    heft_wire_put_doc_get(buf, 1 << 20, "manifest");
    add("DOC_GET", HEFT_FRAME_DOC_GET, 4, buf);
    heft_wire_put_doc(buf, &doc);
    add("DOC", HEFT_FRAME_DOC, 4, buf);
    heft_wire_put_refuse(buf, HEFT_ERR_PEER_LOST, "closing");
    add("BYE", HEFT_FRAME_BYE, 0, buf);
}

/* What is proven is as much part of the protocol as what is sent. */
static void add_proofs(void)
{
    static const char *const names[] = {"PROOF_SERVER", "PROOF_CLIENT", "PROOF_SESSION"};
    struct heft_wire_hello hello = sample_hello();
    struct heft_wire_challenge challenge = sample_challenge();
    struct heft_handshake handshake = {0};
    uint8_t key[HEFT_TOKEN_BYTES];
    int role;

    fill(key, sizeof(key), 0xe0);
    heft_handshake_set_hello(&handshake, &hello);
    heft_handshake_set_challenge(&handshake, &challenge);
    for (role = HEFT_PROOF_SERVER; role <= HEFT_PROOF_SESSION; role++) {
        struct golden *entry = &golden[golden_count++];

        (void)snprintf(entry->name, sizeof(entry->name), "%s", names[role - 1]);
        heft_handshake_proof(&handshake, key, (enum heft_handshake_role)role,
                             role == HEFT_PROOF_SESSION ? 7 : 0, entry->bytes);
        entry->size = HEFT_WIRE_PROOF_BYTES;
    }
}

/* Frames that joined version 1 later. */
static void add_newer(struct heft_buf *buf)
{
    struct heft_wire_count count = {.counter = 0x01020304, .transfers = 0x1112131415161718};
    struct heft_wire_credit credit = {.bytes = 16384, .largest_bytes = 8192};
    struct heft_wire_ring ring = {.layout = 1, .cells = 1024};
    struct heft_wire_auth auth = {.ended_count = 2, .ended = {0x0807060504030201, 9}};

    heft_wire_put_notify(buf, "page 7 is there", 15);
    add("NOTIFY", HEFT_FRAME_NOTIFY, 5, buf);
    heft_wire_put_counts(buf, 2);
    heft_wire_put_count(buf, &count);
    count = (struct heft_wire_count){.counter = 0xfffefdfc, .transfers = 1};
    heft_wire_put_count(buf, &count);
    add("COUNT", HEFT_FRAME_COUNT, 0, buf);
    heft_wire_put_credit(buf, &credit);
    add_flagged("CREDIT", HEFT_FRAME_CREDIT, HEFT_FRAME_OPTIONAL, 0, buf);
    heft_wire_put_ring(buf, &ring);
    add_flagged("RING", HEFT_FRAME_RING, HEFT_FRAME_OPTIONAL | HEFT_FRAME_FDS, 0, buf);
    heft_wire_put_wake(buf, 0x01020304);
    add_flagged("WAKE", HEFT_FRAME_WAKE, HEFT_FRAME_OPTIONAL | HEFT_FRAME_FDS, 0, buf);
    fill(auth.proof, sizeof(auth.proof), 0xa0);
    heft_wire_put_auth(buf, &auth);
    add("AUTH", HEFT_FRAME_AUTH, 0, buf); /* that names ended sessions */
}

static void make_all(void)
{
    struct heft_buf buf;

    heft_buf_init(&buf, HEFT_FRAME_CONTROL_MAX_BYTES);
    add_handshake(&buf);
    add_rest(&buf);
    add_proofs();
    add_newer(&buf);
    heft_buf_free(&buf);
}

static const char *golden_path;

static int read_line(FILE *file, char name[32], uint8_t *bytes, size_t *size_out)
{
    char line[4096], hex[4000];
    size_t index;

    if (!fgets(line, sizeof(line), file))
        return 0;
    assert_int_equal(sscanf(line, "%31s %3999s", name, hex), 2);
    *size_out = strlen(hex) / 2;
    for (index = 0; index < *size_out; index++) {
        unsigned byte;

        assert_int_equal(sscanf(hex + 2 * index, "%2x", &byte), 1);
        bytes[index] = (uint8_t)byte;
    }
    return 1;
}

static void version_1_is_written_as_released(void **state)
{
    FILE *file = fopen(golden_path, "r");
    uint8_t bytes[2048];
    char name[32];
    size_t size, index = 0;

    (void)state;
    assert_non_null(file);
    while (read_line(file, name, bytes, &size)) {
        assert_true(index < golden_count);
        assert_string_equal(golden[index].name, name);
        assert_int_equal(golden[index].size, size);
        assert_memory_equal(golden[index].bytes, bytes, size);
        index++;
    }
    assert_int_equal(index, golden_count);
    (void)fclose(file);
}

static void version_1_is_read_as_released(void **state)
{
    FILE *file = fopen(golden_path, "r");
    uint8_t bytes[2048];
    char name[32];
    size_t size;
    int frames = 0, ended = 0;

    (void)state;
    assert_non_null(file);
    while (read_line(file, name, bytes, &size)) {
        const uint8_t *payload = bytes + HEFT_FRAME_HEADER_BYTES;
        struct heft_wire_regions regions;
        struct heft_wire_region region;
        struct heft_wire_text notification;
        struct heft_wire_counts counts;
        struct heft_wire_credit credit;
        struct heft_wire_ring ring;
        uint32_t serial;
        struct heft_wire_hello hello;
        struct heft_wire_auth auth;
        struct heft_wire_doc doc;
        struct heft_frame frame;

        if (strncmp(name, "PROOF", 5) == 0)
            continue;
        assert_int_equal(heft_frame_decode(bytes, &frame), 0);
        assert_string_equal(heft_frame_type_name(frame.type), name);
        assert_int_equal(frame.version, 1);
        assert_int_equal(frame.payload_bytes, size - HEFT_FRAME_HEADER_BYTES);
        assert_int_equal(heft_frame_check_payload(&frame, payload), 0);
        if (frame.type == HEFT_FRAME_HELLO) {
            assert_int_equal(heft_wire_get_hello(payload, frame.payload_bytes, &hello), 0);
            assert_true(hello.session == 0x1112131415161718);
            assert_memory_equal(hello.transport.data, "tcp", 3);
        } else if (frame.type == HEFT_FRAME_REGIONS) {
            assert_int_equal(heft_wire_get_regions(payload, frame.payload_bytes, &regions), 0);
            assert_int_equal(heft_wire_get_region(&regions, 0, &region), 0);
            assert_true(region.length_bytes == 0x1122334455 && region.address == 0x7f0000001000);
        } else if (frame.type == HEFT_FRAME_DOC) {
            assert_int_equal(heft_wire_get_doc(payload, frame.payload_bytes, &doc), 0);
            assert_int_equal(doc.offset_bytes, 6);
            assert_memory_equal(doc.chunk.data, "bytes", 5);
        } else if (frame.type == HEFT_FRAME_NOTIFY) {
            assert_int_equal(heft_wire_get_notify(payload, frame.payload_bytes, &notification), 0);
            assert_int_equal(notification.size, 15);
            assert_memory_equal(notification.data, "page 7 is there", 15);
        } else if (frame.type == HEFT_FRAME_COUNT) {
            assert_int_equal(heft_wire_get_counts(payload, frame.payload_bytes, &counts), 0);
            assert_int_equal(counts.count, 2);
            assert_true(heft_wire_get_count(&counts, 0).transfers == 0x1112131415161718);
            assert_true(heft_wire_get_count(&counts, 1).counter == 0xfffefdfc);
        } else if (frame.type == HEFT_FRAME_CREDIT) {
            assert_true(frame.flags & HEFT_FRAME_OPTIONAL);
            assert_int_equal(heft_wire_get_credit(payload, frame.payload_bytes, &credit), 0);
            assert_true(credit.bytes == 16384 && credit.largest_bytes == 8192);
        } else if (frame.type == HEFT_FRAME_RING) {
            assert_true(frame.flags & HEFT_FRAME_OPTIONAL && frame.flags & HEFT_FRAME_FDS);
            assert_int_equal(heft_wire_get_ring(payload, frame.payload_bytes, &ring), 0);
            assert_true(ring.layout == 1 && ring.cells == 1024);
        } else if (frame.type == HEFT_FRAME_AUTH) {
            assert_int_equal(heft_wire_get_auth(payload, frame.payload_bytes, &auth), 0);
            assert_int_equal(auth.proof[0], 0xa0);
            ended += auth.ended_count;
        } else if (frame.type == HEFT_FRAME_WAKE) {
            assert_int_equal(heft_wire_get_wake(payload, frame.payload_bytes, &serial), 0);
            assert_int_equal(serial, 0x01020304);
        }
        frames++;
    }
    assert_int_equal(frames, HEFT_FRAME_AGENT_LAST + 1); /* AUTH twice */
    assert_int_equal(ended, 2);
    (void)fclose(file);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_1_is_written_as_released),
        cmocka_unit_test(version_1_is_read_as_released),
    };
    size_t index, byte;

    make_all();
    if (argc != 2)
        return 2;
    golden_path = argv[1];
    if (strcmp(argv[1], "--print") != 0)
        return cmocka_run_group_tests(tests, NULL, NULL);
    for (index = 0; index < golden_count; index++) {
        (void)printf("%s ", golden[index].name);
        for (byte = 0; byte < golden[index].size; byte++)
            (void)printf("%02x", golden[index].bytes[byte]);
        (void)printf("\n");
    }
    return 0;
}
