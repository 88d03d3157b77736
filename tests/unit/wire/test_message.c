/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/message.h"

#include <heft/space.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TEXT(literal) ((struct heft_wire_text){literal, sizeof(literal) - 1})

/* One decoder behind one shape, so that every message goes through the same checks. */
union message {
    struct heft_wire_hello hello;
    struct heft_wire_challenge challenge;
    struct heft_wire_auth auth;
    struct heft_wire_ready ready;
    struct heft_wire_refuse refuse;
    struct heft_wire_regions regions;
    struct heft_wire_ids ids;
    struct heft_wire_doc_get doc_get;
    struct heft_wire_doc doc;
    struct heft_wire_text notify;
    struct heft_wire_counts counts;
    struct heft_wire_credit credit;
};

#define DECODER(name)                                                           \
    static int decode_##name(const void *data, size_t size, union message *out) \
    {                                                                           \
        return heft_wire_get_##name(data, size, &out->name);                    \
    }
DECODER(hello)
DECODER(challenge)
DECODER(auth)
DECODER(ready)
DECODER(refuse)
DECODER(regions)
DECODER(ids)
DECODER(doc_get)
DECODER(doc)
DECODER(notify)
DECODER(counts)
DECODER(credit)

typedef int (*decode_fn)(const void *data, size_t size, union message *out);

/* Cut anywhere it is refused; longer than known it is read as before. Every copy lies in a block of its exact
 * size, so that a step outside is seen by the sanitizer. */
static void check_lengths(struct heft_buf *buf, decode_fn decode, union message *out)
{
    size_t size;

    assert_int_equal(buf->failed, 0);
    for (size = 0; size <= buf->size + 9; size++) {
        size_t real = size < buf->size ? size : buf->size;
        uint8_t *copy = calloc(1, size ? size : 1);

        assert_non_null(copy);
        memcpy(copy, buf->data, real);
        assert_int_equal(decode(copy, size, out), size < buf->size ? HEFT_ERR_PROTOCOL : 0);
        free(copy);
    }
    assert_int_equal(decode(buf->data, buf->size, out), 0);
}

static struct heft_buf fresh(void)
{
    struct heft_buf buf;

    heft_buf_init(&buf, HEFT_FRAME_CONTROL_MAX_BYTES);
    return buf;
}

static struct heft_wire_hello sample_hello(void)
{
    struct heft_wire_hello hello = {.version_lowest = 1,
                                    .version_highest = 3,
                                    .purpose = HEFT_WIRE_DATA,
                                    .generation = {1, 2, 3},
                                    .expected = {4, 5, 6},
                                    .nonce = {7, 8, 9},
                                    .session = 77,
                                    .name = TEXT("reader"),
                                    .expected_name = TEXT(""),
                                    .transport = TEXT("tcp")};

    return hello;
}

static void a_hello_round_trips_at_every_length(void **state)
{
    struct heft_wire_hello hello = sample_hello();
    struct heft_buf buf = fresh();
    union message out;

    (void)state;
    heft_wire_put_hello(&buf, &hello);
    check_lengths(&buf, decode_hello, &out);
    assert_int_equal(out.hello.version_highest, 3);
    assert_int_equal(out.hello.purpose, HEFT_WIRE_DATA);
    assert_memory_equal(out.hello.generation, hello.generation, sizeof(hello.generation));
    assert_memory_equal(out.hello.expected, hello.expected, sizeof(hello.expected));
    assert_memory_equal(out.hello.nonce, hello.nonce, sizeof(hello.nonce));
    assert_int_equal(out.hello.session, 77);
    assert_int_equal(out.hello.name.size, 6);
    assert_memory_equal(out.hello.transport.data, "tcp", 3);
    heft_buf_free(&buf);
}

static void a_hello_without_a_name_or_with_control_bytes_is_refused(void **state)
{
    struct heft_wire_hello hello = sample_hello();
    struct heft_buf buf = fresh();
    char long_name[HEFT_WIRE_NAME_MAX_BYTES + 1];

    (void)state;
    hello.name = TEXT("");
    heft_wire_put_hello(&buf, &hello);
    assert_int_equal(heft_wire_get_hello(buf.data, buf.size, &hello), HEFT_ERR_PROTOCOL);
    buf.size = 0;
    hello = sample_hello();
    hello.name = TEXT("two\nlines");
    heft_wire_put_hello(&buf, &hello);
    assert_int_equal(heft_wire_get_hello(buf.data, buf.size, &hello), HEFT_ERR_PROTOCOL);
    buf.size = 0;
    hello = sample_hello();
    memset(long_name, 'x', sizeof(long_name));
    hello.name = (struct heft_wire_text){long_name, sizeof(long_name)};
    heft_wire_put_hello(&buf, &hello);
    assert_int_equal(heft_wire_get_hello(buf.data, buf.size, &hello), HEFT_ERR_PROTOCOL);
    buf.size = 0;
    hello = sample_hello();
    hello.version_lowest = 4;
    heft_wire_put_hello(&buf, &hello);
    assert_int_equal(heft_wire_get_hello(buf.data, buf.size, &hello), HEFT_ERR_PROTOCOL);
    heft_buf_free(&buf);
}

static void the_rest_of_the_handshake_round_trips_at_every_length(void **state)
{
    struct heft_wire_challenge challenge = {
        .version = 1, .generation = {9}, .nonce = {8}, .name = TEXT("source")};
    struct heft_wire_auth auth = {.proof = {1, 2, 3}};
    struct heft_wire_ready ready = {.session = 12, .host = {5}, .monotonic_ns = 99};
    struct heft_buf buf = fresh();
    union message out;

    (void)state;
    challenge.proof[31] = 42;
    heft_wire_put_challenge(&buf, &challenge);
    check_lengths(&buf, decode_challenge, &out);
    assert_int_equal(out.challenge.proof[31], 42);
    assert_memory_equal(out.challenge.name.data, "source", 6);
    buf.size = 0;
    heft_wire_put_auth(&buf, &auth);
    check_lengths(&buf, decode_auth, &out);
    assert_memory_equal(out.auth.proof, auth.proof, sizeof(auth.proof));
    buf.size = 0;
    heft_wire_put_ready(&buf, &ready);
    check_lengths(&buf, decode_ready, &out);
    assert_int_equal(out.ready.session, 12);
    assert_int_equal(out.ready.monotonic_ns, 99);
    heft_buf_free(&buf);
}

static void the_sessions_that_ended_are_named_or_refused_as_a_whole(void **state)
{
    struct heft_wire_auth auth = {.proof = {1}, .ended_count = HEFT_WIRE_ENDED_MAX}, out;
    struct heft_buf buf = fresh();
    uint32_t index;
    size_t size, whole;

    (void)state;
    for (index = 0; index < HEFT_WIRE_ENDED_MAX; index++)
        auth.ended[index] = 0x0102030405060708u * (index + 1);
    heft_wire_put_auth(&buf, &auth);
    whole = sizeof(auth.proof) + 2 + 8 * HEFT_WIRE_ENDED_MAX;
    assert_int_equal(buf.size, whole);
    assert_true(whole <= HEFT_FRAME_HANDSHAKE_MAX_BYTES);
    for (size = sizeof(auth.proof) + 2; size < whole; size++)
        assert_int_equal(heft_wire_get_auth(buf.data, size, &out), HEFT_ERR_PROTOCOL);
    assert_int_equal(heft_wire_get_auth(buf.data, whole, &out), 0);
    assert_int_equal(out.ended_count, HEFT_WIRE_ENDED_MAX);
    assert_memory_equal(out.ended, auth.ended, sizeof(auth.ended));
    buf.data[sizeof(auth.proof)] = 1; /* 257 of them */
    buf.data[sizeof(auth.proof) + 1] = 1;
    assert_int_equal(heft_wire_get_auth(buf.data, whole, &out), HEFT_ERR_PROTOCOL);
    assert_int_equal(heft_wire_get_auth(buf.data, sizeof(auth.proof), &out), 0); /* as before */
    assert_int_equal(out.ended_count, 0);
    heft_buf_free(&buf);
}

static void a_refusal_round_trips_and_an_unknown_code_is_no_success(void **state)
{
    char long_text[2000];
    struct heft_buf buf = fresh();
    union message out;

    (void)state;
    heft_wire_put_refuse(&buf, HEFT_ERR_STALE, "another lives here");
    check_lengths(&buf, decode_refuse, &out);
    assert_int_equal(out.refuse.code, HEFT_ERR_STALE);
    assert_memory_equal(out.refuse.text.data, "another lives here", out.refuse.text.size);
    heft_put_u32(buf.data, 0);
    assert_int_equal(decode_refuse(buf.data, buf.size, &out), 0);
    assert_int_equal(out.refuse.code, HEFT_ERR_PROTOCOL);
    heft_put_u32(buf.data, 999);
    assert_int_equal(decode_refuse(buf.data, buf.size, &out), 0);
    assert_int_equal(out.refuse.code, HEFT_ERR_PROTOCOL);
    heft_put_u32(buf.data, 0xffffff37); /* -201 as it stands in an int */
    assert_int_equal(decode_refuse(buf.data, buf.size, &out), 0);
    assert_int_equal(out.refuse.code, HEFT_ERR_PROTOCOL);
    buf.size = 0;
    memset(long_text, 'y', sizeof(long_text));
    long_text[sizeof(long_text) - 1] = 0;
    heft_wire_put_refuse(&buf, HEFT_ERR_BUSY, long_text);
    assert_int_equal(decode_refuse(buf.data, buf.size, &out), 0);
    assert_int_equal(out.refuse.text.size, HEFT_WIRE_TEXT_MAX_BYTES);
    heft_buf_free(&buf);
}

static void a_list_of_regions_round_trips_at_every_length(void **state)
{
    struct heft_wire_region regions[2] = {{.id = 1,
                                           .space = HEFT_SPACE_HOST,
                                           .has_fd = 1,
                                           .flags = 3,
                                           .length_bytes = UINT64_MAX,
                                           .address = 4096},
                                          {.id = UINT64_MAX, .space = HEFT_SPACE_FILE, .length_bytes = 0}};
    struct heft_wire_region out_region;
    struct heft_buf buf = fresh();
    union message out;
    uint32_t index;

    (void)state;
    heft_wire_put_regions(&buf, 5, 1, 2);
    for (index = 0; index < 2; index++)
        heft_wire_put_region(&buf, &regions[index]);
    check_lengths(&buf, decode_regions, &out);
    assert_int_equal(out.regions.epoch, 5);
    assert_int_equal(out.regions.more, 1);
    assert_int_equal(out.regions.count, 2);
    for (index = 0; index < 2; index++) {
        assert_int_equal(heft_wire_get_region(&out.regions, index, &out_region), 0);
        assert_memory_equal(&out_region.id, &regions[index].id, 8);
        assert_int_equal(out_region.space, regions[index].space);
        assert_int_equal(out_region.has_fd, regions[index].has_fd);
        assert_int_equal(out_region.flags, regions[index].flags);
        assert_true(out_region.length_bytes == regions[index].length_bytes);
        assert_true(out_region.address == regions[index].address);
    }
    heft_buf_free(&buf);
}

static void longer_region_entries_of_a_later_version_are_read(void **state)
{
    struct heft_wire_region region = {.id = 3, .space = HEFT_SPACE_HOST, .length_bytes = 10};
    struct heft_wire_region out_region;
    struct heft_buf buf = fresh();
    union message out;
    int index;

    (void)state;
    heft_wire_put_regions(&buf, 1, 0, 2);
    heft_put_u16(buf.data + 13, 40); /* entries grew by 8 bytes */
    for (index = 0; index < 2; index++) {
        heft_wire_put_region(&buf, &region);
        heft_buf_u64(&buf, 0xffffffff);
        region.id++;
        region.space = 77; /* a space that is not known here */
    }
    assert_int_equal(decode_regions(buf.data, buf.size, &out), 0);
    assert_int_equal(heft_wire_get_region(&out.regions, 0, &out_region), 0);
    assert_int_equal(out_region.length_bytes, 10);
    assert_int_equal(heft_wire_get_region(&out.regions, 1, &out_region), HEFT_ERR_UNSUPPORTED);
    heft_put_u16(buf.data + 13, 31); /* shorter than version 1 can't be */
    assert_int_equal(decode_regions(buf.data, buf.size, &out), HEFT_ERR_PROTOCOL);
    heft_put_u16(buf.data + 13, 40);
    heft_put_u32(buf.data + 9, HEFT_WIRE_REGIONS_PER_FRAME + 1);
    assert_int_equal(decode_regions(buf.data, buf.size, &out), HEFT_ERR_PROTOCOL);
    heft_put_u32(buf.data + 9, UINT32_MAX);
    assert_int_equal(decode_regions(buf.data, buf.size, &out), HEFT_ERR_PROTOCOL);
    heft_buf_free(&buf);
}

static void a_region_without_an_id_is_refused(void **state)
{
    struct heft_wire_region region = {.id = 0, .space = HEFT_SPACE_HOST};
    struct heft_buf buf = fresh();
    union message out;

    (void)state;
    heft_wire_put_regions(&buf, 1, 0, 1);
    heft_wire_put_region(&buf, &region);
    assert_int_equal(decode_regions(buf.data, buf.size, &out), 0);
    assert_int_equal(heft_wire_get_region(&out.regions, 0, &region), HEFT_ERR_PROTOCOL);
    heft_buf_free(&buf);
}

static void ids_and_documents_round_trip_at_every_length(void **state)
{
    const uint64_t ids[] = {1, 300, UINT64_MAX};
    struct heft_wire_doc doc = {.epoch = 3, .total_bytes = 10, .offset_bytes = 4, .chunk = TEXT("sixsix")};
    struct heft_buf buf = fresh();
    union message out;

    (void)state;
    heft_wire_put_ids(&buf, 9, ids, 3);
    check_lengths(&buf, decode_ids, &out);
    assert_int_equal(out.ids.count, 3);
    assert_true(heft_wire_get_id(&out.ids, 2) == UINT64_MAX);
    heft_put_u32(buf.data + 8, UINT32_MAX);
    assert_int_equal(decode_ids(buf.data, buf.size, &out), HEFT_ERR_PROTOCOL);
    buf.size = 0;
    heft_wire_put_doc_get(&buf, 1000, "manifest");
    check_lengths(&buf, decode_doc_get, &out);
    assert_int_equal(out.doc_get.limit_bytes, 1000);
    assert_memory_equal(out.doc_get.name.data, "manifest", 8);
    buf.size = 0;
    heft_wire_put_doc(&buf, &doc);
    check_lengths(&buf, decode_doc, &out);
    assert_int_equal(out.doc.chunk.size, 6);
    heft_put_u64(buf.data + 16, 5); /* 5 + 6 is more than 10 */
    assert_int_equal(decode_doc(buf.data, buf.size, &out), HEFT_ERR_PROTOCOL);
    heft_put_u64(buf.data + 16, UINT64_MAX - 2);
    assert_int_equal(decode_doc(buf.data, buf.size, &out), HEFT_ERR_PROTOCOL);
    heft_buf_free(&buf);
}

static void what_is_told_round_trips_at_every_length(void **state)
{
    static const uint8_t large[HEFT_WIRE_NOTIFICATION_MAX_BYTES + 1];
    struct heft_wire_count first = {.counter = 7, .transfers = 1};
    struct heft_wire_count second = {.counter = UINT32_MAX, .transfers = UINT64_MAX};
    struct heft_wire_credit credit = {.bytes = UINT64_MAX, .largest_bytes = 8192};
    struct heft_buf buf;
    union message out;

    (void)state;
    heft_buf_init(&buf, 1 << 16);
    heft_wire_put_notify(&buf, "ready", 5);
    check_lengths(&buf, decode_notify, &out);
    assert_int_equal(out.notify.size, 5);
    buf.size = 0;
    heft_wire_put_notify(&buf, "", 0);
    check_lengths(&buf, decode_notify, &out);
    assert_int_equal(out.notify.size, 0);
    buf.size = 0;
    heft_wire_put_notify(&buf, large, sizeof(large));
    assert_int_equal(decode_notify(buf.data, buf.size, &out), HEFT_ERR_PROTOCOL);
    buf.size = 0;
    heft_wire_put_counts(&buf, 2);
    heft_wire_put_count(&buf, &first);
    heft_wire_put_count(&buf, &second);
    check_lengths(&buf, decode_counts, &out);
    heft_put_u16(buf.data + 4, 11); /* entries shorter than version 1's */
    assert_int_equal(decode_counts(buf.data, buf.size, &out), HEFT_ERR_PROTOCOL);
    heft_put_u16(buf.data + 4, 12);
    heft_put_u32(buf.data, HEFT_WIRE_COUNTS_PER_FRAME + 1);
    assert_int_equal(decode_counts(buf.data, buf.size, &out), HEFT_ERR_PROTOCOL);
    heft_put_u32(buf.data, 2);
    assert_int_equal(decode_counts(buf.data, buf.size, &out), 0);
    assert_true(heft_wire_get_count(&out.counts, 0).counter == 7);
    assert_true(heft_wire_get_count(&out.counts, 1).transfers == UINT64_MAX);
    buf.size = 0;
    heft_wire_put_credit(&buf, &credit);
    check_lengths(&buf, decode_credit, &out);
    assert_true(out.credit.bytes == UINT64_MAX && out.credit.largest_bytes == 8192);
    heft_buf_free(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hello_round_trips_at_every_length),
        cmocka_unit_test(a_hello_without_a_name_or_with_control_bytes_is_refused),
        cmocka_unit_test(the_rest_of_the_handshake_round_trips_at_every_length),
        cmocka_unit_test(the_sessions_that_ended_are_named_or_refused_as_a_whole),
        cmocka_unit_test(a_refusal_round_trips_and_an_unknown_code_is_no_success),
        cmocka_unit_test(a_list_of_regions_round_trips_at_every_length),
        cmocka_unit_test(longer_region_entries_of_a_later_version_are_read),
        cmocka_unit_test(a_region_without_an_id_is_refused),
        cmocka_unit_test(ids_and_documents_round_trip_at_every_length),
        cmocka_unit_test(what_is_told_round_trips_at_every_length),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
