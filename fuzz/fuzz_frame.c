/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input is what a stranger writes to an agent's socket: frames, one after the other. What the decoders
 * accept stays inside the payload, and a header that is accepted comes out of the encoder as it was.
 */
#include "wire/message.h"
#include "fuzz.h"

#include <string.h>

static void inside(struct heft_wire_text text, const uint8_t *payload, size_t size)
{
    const uint8_t *at = (const uint8_t *)text.data;

    FUZZ_CHECK(text.size == 0 || (at >= payload && text.size <= size && at + text.size <= payload + size));
}

static void read_regions(const uint8_t *payload, size_t size)
{
    struct heft_wire_regions regions;
    struct heft_wire_region region;
    struct heft_wire_ids ids;
    uint32_t index;

    if (heft_wire_get_regions(payload, size, &regions) == 0)
        for (index = 0; index < regions.count; index++)
            if (heft_wire_get_region(&regions, index, &region) == 0)
                FUZZ_CHECK(region.id && region.has_fd <= 1);
    if (heft_wire_get_ids(payload, size, &ids) == 0)
        for (index = 0; index < ids.count; index++)
            (void)heft_wire_get_id(&ids, index);
}

/* Every decoder sees every payload: the type of a frame is the stranger's choice. */
static void read_payload(const uint8_t *payload, size_t size)
{
    struct heft_wire_challenge challenge;
    struct heft_wire_doc_get doc_get;
    struct heft_wire_text notification;
    struct heft_wire_counts counts;
    struct heft_wire_credit credit;
    struct heft_wire_refuse refuse;
    struct heft_wire_hello hello;
    struct heft_wire_ready ready;
    struct heft_wire_auth auth;
    struct heft_wire_doc doc;
    uint32_t index;

    if (heft_wire_get_hello(payload, size, &hello) == 0) {
        FUZZ_CHECK(hello.name.size && hello.version_lowest <= hello.version_highest);
        inside(hello.name, payload, size);
        inside(hello.expected_name, payload, size);
        inside(hello.transport, payload, size);
    }
    if (heft_wire_get_challenge(payload, size, &challenge) == 0)
        inside(challenge.name, payload, size);
    (void)heft_wire_get_auth(payload, size, &auth);
    (void)heft_wire_get_ready(payload, size, &ready);
    if (heft_wire_get_refuse(payload, size, &refuse) == 0) {
        FUZZ_CHECK(refuse.code < 0 && strcmp(heft_error_name(refuse.code), "UNKNOWN") != 0);
        inside(refuse.text, payload, size);
    }
    if (heft_wire_get_doc_get(payload, size, &doc_get) == 0)
        inside(doc_get.name, payload, size);
    if (heft_wire_get_doc(payload, size, &doc) == 0) {
        FUZZ_CHECK(doc.chunk.size <= doc.total_bytes && doc.offset_bytes <= doc.total_bytes - doc.chunk.size);
        inside(doc.chunk, payload, size);
    }
    if (heft_wire_get_notify(payload, size, &notification) == 0)
        inside(notification, payload, size);
    if (heft_wire_get_counts(payload, size, &counts) == 0)
        for (index = 0; index < counts.count; index++)
            FUZZ_CHECK(heft_wire_get_count(&counts, index).transfers > 0);
    (void)heft_wire_get_credit(payload, size, &credit);
    read_regions(payload, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_payload(data, size);
    while (size >= HEFT_FRAME_HEADER_BYTES) {
        uint8_t again[HEFT_FRAME_HEADER_BYTES];
        struct heft_frame frame;
        size_t left = size - HEFT_FRAME_HEADER_BYTES;

        if (heft_frame_decode(data, &frame))
            break;
        FUZZ_CHECK(frame.payload_bytes <= heft_frame_cap(frame.type));
        heft_frame_encode(&frame, again);
        FUZZ_CHECK(memcmp(again, data, sizeof(again)) == 0);
        data += HEFT_FRAME_HEADER_BYTES;
        if (frame.payload_bytes > left)
            break;
        if (heft_frame_check_payload(&frame, data) == 0)
            read_payload(data, frame.payload_bytes);
        data += frame.payload_bytes;
        size = left - frame.payload_bytes;
    }
    return 0;
}
