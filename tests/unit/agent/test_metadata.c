/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata as bytes and over the connection: all of it, part of it, only what changed; and bytes that lie. */
#include "agent/metadata.h"
#include "base/digest.h"
#include "pair.h"
#include "wire/metadata.h"

#include <unistd.h>

#define OFFERED (HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE)

struct blob {
    void *data;
    uint64_t size;
};

static struct blob export_with(struct heft_agent *agent, const struct heft_metadata_options *options)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct blob blob;

    if (heft_agent_export_metadata(agent, options, &blob.data, &blob.size, &error))
        fail_msg("exporting: %s", error.text);
    return blob;
}

static struct blob export_since(struct heft_agent *agent, uint64_t epoch)
{
    struct heft_metadata_options options = HEFT_METADATA_OPTIONS_INIT;

    options.since_epoch = epoch;
    return export_with(agent, &options);
}

static struct heft_metadata *read_blob(struct blob blob)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_metadata *metadata = NULL;

    if (heft_metadata_read(blob.data, blob.size, &metadata, &error))
        fail_msg("reading: %s", error.text);
    heft_free(blob.data);
    return metadata;
}

static int update(struct heft_metadata *metadata, struct blob blob)
{
    struct heft_error error = HEFT_ERROR_INIT;
    int rc = heft_metadata_update(metadata, blob.data, blob.size, &error);

    assert_true(!rc || error.text[0]);
    heft_free(blob.data);
    return rc;
}

static int has(const struct heft_metadata *metadata, uint64_t id)
{
    struct heft_metadata_region region = {.size = sizeof(region)};
    int rc = heft_metadata_find_region(metadata, id, &region);

    assert_true(rc == 0 || rc == HEFT_ERR_NOT_FOUND);
    assert_true(rc || region.id == id);
    return rc == 0;
}

/* The check of changed bytes. */
static void seal(struct blob blob)
{
    heft_put_u64((uint8_t *)blob.data + blob.size - 8, heft_hash64(blob.data, (size_t)blob.size - 8, 0));
}

static void what_an_agent_exports_is_what_another_connects_by(void **state)
{
    struct heft_metadata_region region = {.size = sizeof(region)};
    struct heft_metadata *metadata, *told;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_peer *peer;
    struct pair pair;

    (void)state;
    pair_open(&pair, "unix,127.0.0.1:0", NULL);
    metadata = read_blob(export_with(pair.server, NULL));
    assert_string_equal(heft_metadata_name(metadata), "server");
    assert_string_equal(heft_metadata_addresses(metadata), pair.addresses);
    assert_int_equal(heft_metadata_epoch(metadata), heft_agent_metadata_epoch(pair.server));
    assert_int_equal(heft_metadata_region_count(metadata), 1);
    assert_int_equal(heft_metadata_get_region(metadata, 0, &region), 0);
    assert_int_equal(region.id, heft_region_id(pair.source_region));
    assert_int_equal(region.length_bytes, REGION_BYTES);
    assert_int_equal(region.flags, OFFERED);
    assert_int_equal(region.space, HEFT_SPACE_HOST);
    assert_int_equal(heft_metadata_get_region(metadata, 1, &region), HEFT_ERR_RANGE);
    if (heft_metadata_connect(pair.client, metadata, NULL, &peer, &error))
        fail_msg("%s", error.text);
    assert_int_equal(heft_peer_get_metadata(peer, &told, &error), 0);
    assert_string_equal(heft_metadata_name(told), "server");
    assert_int_equal(heft_metadata_region_count(told), 1);
    assert_true(has(told, region.id));
    heft_metadata_free(told);
    heft_metadata_free(metadata);
    assert_int_equal(heft_peer_close(peer, &error), 0);
    pair_close(&pair);
}

static void only_what_changed_travels_and_gives_the_same(void **state)
{
    struct heft_agent *agent = open_agent("a", "unix", NULL);
    static uint8_t bytes[64][64];
    struct heft_region *regions[64] = {NULL};
    struct heft_metadata *followed = read_blob(export_with(agent, NULL)), *whole;
    unsigned seed = 7, round;
    uint64_t index;

    (void)state;
    for (round = 0; round < 400; round++) {
        unsigned at, changes = (seed = seed * 1103515245u + 12345u) >> 16 & 3;
        struct blob blob;

        for (at = 0; at < changes; at++) {
            unsigned slot = (seed = seed * 1103515245u + 12345u) >> 16 & 63;

            if (regions[slot]) {
                assert_int_equal(heft_region_deregister(regions[slot], NULL), 0);
                regions[slot] = NULL;
            } else {
                regions[slot] = register_bytes(agent, bytes[slot], 64, slot & 1 ? OFFERED : 0);
            }
        }
        blob = export_since(agent, heft_metadata_epoch(followed));
        if (round > 100) /* not the whole table */
            assert_true(blob.size < 400);
        assert_int_equal(update(followed, blob), 0);
        whole = read_blob(export_with(agent, NULL));
        assert_int_equal(heft_metadata_epoch(whole), heft_metadata_epoch(followed));
        assert_int_equal(heft_metadata_region_count(whole), heft_metadata_region_count(followed));
        for (index = 0; index < heft_metadata_region_count(whole); index++) {
            struct heft_metadata_region left = {.size = sizeof(left)}, right = {.size = sizeof(right)};

            assert_int_equal(heft_metadata_get_region(whole, index, &left), 0);
            assert_int_equal(heft_metadata_get_region(followed, index, &right), 0);
            assert_int_equal(left.id, right.id);
            assert_true(left.flags == OFFERED && right.flags == OFFERED);
        }
        heft_metadata_free(whole);
    }
    heft_metadata_free(followed);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

static void a_gap_is_named_and_a_replay_is_refused(void **state)
{
    struct heft_agent *agent = open_agent("a", "unix", NULL);
    static uint8_t bytes[3][8];
    struct heft_metadata *metadata = read_blob(export_with(agent, NULL));
    struct heft_error error = HEFT_ERROR_INIT;
    struct blob first, second;
    uint64_t epoch;

    (void)state;
    (void)register_bytes(agent, bytes[0], 8, OFFERED);
    epoch = heft_agent_metadata_epoch(agent);
    first = export_with(agent, NULL);
    (void)register_bytes(agent, bytes[1], 8, OFFERED);
    second = export_since(agent, epoch);
    assert_int_equal(heft_metadata_update(metadata, second.data, second.size, &error), HEFT_ERR_NOT_READY);
    assert_non_null(strstr(error.text, "export since"));
    assert_int_equal(heft_metadata_region_count(metadata), 0);
    {
        struct heft_metadata *none;

        assert_int_equal(heft_metadata_read(second.data, second.size, &none, &error), HEFT_ERR_STATE);
    }
    assert_int_equal(heft_metadata_update(metadata, first.data, first.size, &error), 0);
    assert_int_equal(heft_metadata_update(metadata, second.data, second.size, &error), 0);
    assert_int_equal(heft_metadata_update(metadata, second.data, second.size, &error),
                     0); /* twice: the same */
    assert_int_equal(heft_metadata_region_count(metadata), 2);
    assert_int_equal(heft_metadata_update(metadata, first.data, first.size, &error), HEFT_ERR_STALE);
    assert_int_equal(heft_metadata_region_count(metadata), 2);
    heft_free(first.data);
    heft_free(second.data);
    heft_metadata_free(metadata);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

static void an_old_generation_and_a_swapped_identity_are_refused(void **state)
{
    struct heft_agent *old = open_agent("a", "unix", NULL), *other = open_agent("b", "unix", NULL), *fresh;
    struct heft_metadata *metadata = read_blob(export_with(old, NULL)), *swapped;
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_peer *peer;
    struct blob blob;

    (void)state;
    assert_int_equal(update(metadata, export_with(other, NULL)), HEFT_ERR_STALE);
    assert_int_equal(heft_agent_close(old, NULL), 0);
    fresh = open_agent("a", "unix", NULL); /* the same name, another life */
    assert_int_equal(update(metadata, export_with(fresh, NULL)), HEFT_ERR_STALE);
    assert_int_equal(heft_metadata_connect(other, metadata, &options, &peer, &error), HEFT_ERR_UNAVAILABLE);
    heft_metadata_free(metadata);
    /* The old life's identity with the new one's addresses: whoever answers there says who it is. */
    blob = export_with(fresh, NULL);
    memset((uint8_t *)blob.data + 24 + 8 + 1 + 8, 0x5A, HEFT_GENERATION_BYTES);
    seal(blob);
    swapped = read_blob(blob);
    options.connect_timeout_ms = 20000;
    assert_int_equal(heft_metadata_connect(other, swapped, &options, &peer, &error), HEFT_ERR_STALE);
    assert_non_null(strstr(error.text, "5a5a5a5a"));
    heft_metadata_free(swapped);
    blob = export_with(fresh, NULL);
    ((uint8_t *)blob.data)[24 + 8] = 'z'; /* another's name */
    seal(blob);
    swapped = read_blob(blob);
    assert_string_equal(heft_metadata_name(swapped), "z");
    assert_int_equal(heft_metadata_connect(other, swapped, &options, &peer, &error), HEFT_ERR_STALE);
    heft_metadata_free(swapped);
    assert_int_equal(heft_agent_close(fresh, NULL), 0);
    assert_int_equal(heft_agent_close(other, NULL), 0);
}

static void parts_of_it_can_be_chosen(void **state)
{
    struct heft_agent *agent = open_agent("a", "unix,127.0.0.1:0", NULL),
                      *reader = open_agent("r", NULL, NULL);
    static uint8_t bytes[3][8];
    struct heft_region *chosen[2] = {register_bytes(agent, bytes[0], 8, OFFERED), NULL};
    struct heft_region *hidden = register_bytes(agent, bytes[1], 8, 0);
    struct heft_metadata_options options = HEFT_METADATA_OPTIONS_INIT;
    struct heft_peer_options with_token = HEFT_PEER_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_metadata *metadata;
    struct heft_peer *peer;
    struct blob blob;

    (void)state;
    (void)register_bytes(agent, bytes[2], 8, OFFERED);
    chosen[1] = chosen[0];
    options.regions = chosen;
    options.region_count = 2; /* named twice, told once */
    options.addresses = "tcp";
    options.flags = HEFT_METADATA_NO_TOKEN;
    metadata = read_blob(export_with(agent, &options));
    assert_int_equal(heft_metadata_region_count(metadata), 1);
    assert_true(has(metadata, heft_region_id(chosen[0])));
    assert_null(strstr(heft_metadata_addresses(metadata), "unix"));
    assert_non_null(strstr(heft_metadata_addresses(metadata), "tcp:127.0.0.1"));
    assert_int_equal(heft_metadata_connect(reader, metadata, NULL, &peer, &error), HEFT_ERR_DENIED);
    with_token.token = heft_agent_token(agent);
    assert_int_equal(heft_metadata_connect(reader, metadata, &with_token, &peer, &error), 0);
    heft_metadata_free(metadata);
    options.addresses = "none";
    metadata = read_blob(export_with(agent, &options));
    assert_string_equal(heft_metadata_addresses(metadata), "");
    assert_int_equal(heft_metadata_connect(reader, metadata, &with_token, &peer, &error), HEFT_ERR_INVALID);
    heft_metadata_free(metadata);
    options.addresses = "ucx";
    assert_int_equal(heft_agent_export_metadata(agent, &options, &blob.data, &blob.size, &error),
                     HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "'ucx'"));
    options.addresses = NULL;
    options.flags = 4;
    assert_int_equal(heft_agent_export_metadata(agent, &options, &blob.data, &blob.size, &error),
                     HEFT_ERR_INVALID);
    options.flags = 0;
    options.regions = &hidden;
    options.region_count = 1;
    assert_int_equal(heft_agent_export_metadata(agent, &options, &blob.data, &blob.size, &error),
                     HEFT_ERR_INVALID);
    assert_int_equal(heft_agent_close(reader, NULL), 0);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

static int peer_has_no_region(void *context)
{
    struct heft_metadata *metadata;
    uint64_t count;

    assert_int_equal(heft_peer_get_metadata(context, &metadata, NULL), 0);
    count = heft_metadata_region_count(metadata);
    heft_metadata_free(metadata);
    return count == 0;
}

static void a_withdrawn_region_is_gone_at_the_importer(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_metadata *metadata;
    struct heft_xfer *xfer;
    struct pair pair;
    uint64_t id;

    (void)state;
    pair_open(&pair, "unix", NULL);
    id = heft_region_id(pair.source_region);
    metadata = read_blob(export_with(pair.server, NULL));
    xfer = create_read(&pair, NULL);
    assert_int_equal(heft_region_deregister(pair.source_region, &error), 0);
    eventually(peer_has_no_region, pair.peer);
    assert_int_equal(heft_xfer_post(xfer, &error), HEFT_ERR_STALE);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(update(metadata, export_since(pair.server, heft_metadata_epoch(metadata))), 0);
    assert_false(has(metadata, id));
    heft_metadata_free(metadata);
    pair_close(&pair);
}

static void too_long_ago_gives_everything(void **state)
{
    struct heft_agent *agent = open_agent("a", "unix", NULL);
    static uint8_t bytes[8];
    struct heft_metadata *metadata;
    uint32_t index;

    (void)state;
    (void)register_bytes(agent, bytes, 8, OFFERED);
    metadata = read_blob(export_with(agent, NULL));
    (void)pthread_mutex_lock(&agent->region_lock);
    for (index = 0; index < HEFT_AGENT_DEPARTED_MAX + 1; index++)
        heft_departed_add(agent, ++agent->region_epoch, 1000 + index);
    (void)pthread_mutex_unlock(&agent->region_lock);
    assert_int_equal(update(metadata, export_since(agent, heft_metadata_epoch(metadata))), 0);
    assert_int_equal(heft_metadata_region_count(metadata), 1);
    assert_int_equal(heft_metadata_epoch(metadata), heft_agent_metadata_epoch(agent));
    heft_metadata_free(metadata);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

static void cut_at_each_length_and_damaged_at_each_byte_it_is_refused(void **state)
{
    struct heft_agent *agent = open_agent("a", "unix,127.0.0.1:0", NULL);
    static uint8_t bytes[2][8];
    struct heft_metadata *metadata = NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    struct blob blob;
    uint64_t at;

    (void)state;
    (void)register_bytes(agent, bytes[0], 8, OFFERED);
    (void)register_bytes(agent, bytes[1], 8, OFFERED);
    blob = export_with(agent, NULL);
    for (at = 0; at < blob.size; at++) { /* bytes of their own, so that a read past the end is seen */
        uint8_t *cut = malloc(at ? at : 1);
        int rc;

        assert_non_null(cut);
        memcpy(cut, blob.data, at);
        rc = heft_metadata_read(cut, at, &metadata, &error);
        assert_int_equal(rc, HEFT_ERR_TRUNCATED);
        free(cut);
        ((uint8_t *)blob.data)[at] ^= 0x10;
        assert_true(heft_metadata_read(blob.data, blob.size, &metadata, &error) < 0);
        assert_null(metadata);
        ((uint8_t *)blob.data)[at] ^= 0x10;
    }
    heft_free(blob.data);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

/* With a right check: every change is either read or refused with a sentence, and nothing else happens. */
static void wrong_fields_with_a_right_check_do_no_harm(void **state)
{
    struct heft_agent *agent = open_agent("a", "unix,127.0.0.1:0", NULL);
    static uint8_t bytes[8];
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_metadata *metadata;
    unsigned seed = 3, round;
    struct blob blob;

    (void)state;
    (void)register_bytes(agent, bytes, 8, OFFERED);
    for (round = 0; round < 20000; round++) {
        unsigned at, changes = 1 + (round & 3);

        if (round % 100 == 0) {
            if (round)
                heft_free(blob.data);
            blob = export_with(agent, NULL);
        }
        for (at = 0; at < changes; at++) {
            seed = seed * 1103515245u + 12345u;
            ((uint8_t *)blob.data)[16 + (seed >> 8) % (blob.size - 24)] = (uint8_t)(seed >> 24);
        }
        seal(blob);
        error.text[0] = 0;
        if (heft_metadata_read(blob.data, blob.size, &metadata, &error))
            assert_true(error.text[0] != 0);
        else
            heft_metadata_free(metadata);
    }
    heft_free(blob.data);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_an_agent_exports_is_what_another_connects_by),
        cmocka_unit_test(only_what_changed_travels_and_gives_the_same),
        cmocka_unit_test(a_gap_is_named_and_a_replay_is_refused),
        cmocka_unit_test(an_old_generation_and_a_swapped_identity_are_refused),
        cmocka_unit_test(parts_of_it_can_be_chosen),
        cmocka_unit_test(a_withdrawn_region_is_gone_at_the_importer),
        cmocka_unit_test(too_long_ago_gives_everything),
        cmocka_unit_test(cut_at_each_length_and_damaged_at_each_byte_it_is_refused),
        cmocka_unit_test(wrong_fields_with_a_right_check_do_no_harm),
    };

    return cmocka_run_group_tests_name("metadata", tests, NULL, NULL);
}
