/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agents that find each other through a directory: the same stories over heftd, etcd and a file. Then what is
 * etcd's own: outages, compaction, users, TLS, members, and values that somebody else wrote.
 */
#include "base/clock.h"
#include "etcd_process.h"
#include "heftd_process.h"
#include "load/directory.h"

#include <heft/control.h>
#include <heft/metadata.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define OFFERED (HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE)
#define LONG_MS 60000u /* for what must come */

enum kind { HEFTD, ETCD, FILE_ };

struct place {
    enum kind kind;
    struct heftd_process heftd;
    struct etcd_process etcd;
    char file[128];
};

static const char *const in_memory[] = {"--store", "memory:", NULL};

static void place_open(struct place *place, enum kind kind)
{
    memset(place, 0, sizeof(*place));
    place->kind = kind;
    heftd_prepare(&place->heftd); /* its folder serves all */
    if (kind == HEFTD)
        heftd_start(&place->heftd, in_memory);
    if (kind == ETCD) {
        etcd_prepare(&place->etcd);
        etcd_start(&place->etcd, NULL);
    }
    (void)snprintf(place->file, sizeof(place->file), "file:%s/agents.json", place->heftd.folder);
}

static void place_close(struct place *place)
{
    heftd_remove(&place->heftd);
    if (place->kind == ETCD)
        etcd_remove(&place->etcd);
}

static void place_signal(struct place *place, int signal_number)
{
    if (place->kind == HEFTD)
        (void)heftd_signal(&place->heftd, signal_number);
    else
        etcd_signal(&place->etcd, signal_number);
}

/* Empty: without the records it had. */
static void place_restart(struct place *place)
{
    if (place->kind == HEFTD) {
        heftd_start(&place->heftd, in_memory);
    } else {
        etcd_empty(&place->etcd);
        etcd_start(&place->etcd, NULL);
    }
}

static int try_directory(const char *address, const struct heft_directory_options *given,
                         struct heft_directory **directory_out, struct heft_error *error)
{
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;

    if (given)
        options = *given;
    options.address = address;
    if (!options.timeout_ms)
        options.timeout_ms = 20000;
    return heft_directory_open(&options, directory_out, error);
}

static struct heft_directory *open_address(const char *address)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_directory *directory;

    if (try_directory(address, NULL, &directory, &error))
        fail_msg("%s", error.text);
    return directory;
}

static struct heft_directory *open_directory(struct place *place)
{
    return open_address(place->kind == HEFTD  ? place->heftd.address
                        : place->kind == ETCD ? place->etcd.address
                                              : place->file);
}

static struct heft_agent *open_agent(const char *name)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *agent;

    options.name = name;
    options.listen = "unix";
    options.workers = 1;
    if (heft_agent_open(&options, &agent, &error))
        fail_msg("%s", error.text);
    return agent;
}

static struct heft_region *offer(struct heft_agent *agent, void *bytes, uint64_t size)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_region *region;

    options.address = bytes;
    options.length_bytes = size;
    options.flags = OFFERED;
    if (heft_region_register(agent, &options, &region, &error))
        fail_msg("%s", error.text);
    return region;
}

static struct heft_publication *publish(struct heft_agent *agent, struct heft_directory *directory,
                                        uint32_t lease_ms)
{
    struct heft_publication_options options = HEFT_PUBLICATION_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_publication *publication;

    options.directory = directory;
    options.lease_ms = lease_ms;
    if (heft_agent_publish(agent, &options, &publication, &error))
        fail_msg("%s", error.text);
    return publication;
}

static struct heft_watch *watch_all(struct heft_directory *directory)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_watch *watch;

    if (heft_watch_open(directory, NULL, &watch, &error))
        fail_msg("%s", error.text);
    return watch;
}

/* The next event, which must be this one; errors of the directory are passed over. Its metadata, or NULL. */
static struct heft_metadata *expect(struct heft_watch *watch, enum heft_watch_kind kind, const char *name)
{
    struct heft_watch_event event = {.size = sizeof(event)};
    struct heft_error error = HEFT_ERROR_INIT;
    int rc;

    do
        rc = heft_watch_next(watch, &event, LONG_MS, &error);
    while (rc && rc != HEFT_ERR_AGAIN);
    if (rc)
        fail_msg("no event, but %d of %s was to come", (int)kind, name);
    if (event.kind != kind || strcmp(event.name, name) != 0)
        fail_msg("event %d of %s instead of %d of %s: %s", (int)event.kind, event.name, (int)kind, name,
                 event.error.text);
    assert_true((event.metadata != NULL) == (kind == HEFT_WATCH_JOINED || kind == HEFT_WATCH_CHANGED));
    return event.metadata;
}

static void no_event(struct heft_watch *watch, uint64_t ms)
{
    struct heft_watch_event event = {.size = sizeof(event)};
    uint64_t until_ns = heft_after_ms(heft_now_ns(), ms), now_ns;

    while ((now_ns = heft_now_ns()) < until_ns)
        if (heft_watch_next(watch, &event, (until_ns - now_ns) / HEFT_NS_PER_MS + 1, NULL) == 0)
            fail_msg("an event, %d of %s", (int)event.kind, event.name);
}

static uint64_t regions_of(struct heft_metadata *metadata)
{
    uint64_t count = heft_metadata_region_count(metadata);

    heft_metadata_free(metadata);
    return count;
}

/* A read of all of the agent's one region by what the metadata says. */
static void read_by(struct heft_agent *reader, const struct heft_metadata *metadata, const uint8_t *expected,
                    uint64_t size)
{
    static uint8_t target[4096];
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_metadata_region told = {.size = sizeof(told)};
    struct heft_run run = {.length_bytes = size, .count = 1};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_peer *peer;
    struct heft_xfer *xfer;

    memset(target, 0, sizeof(target));
    options.address = target;
    options.length_bytes = size;
    assert_int_equal(heft_region_register(reader, &options, &run.local_region, &error), 0);
    assert_int_equal(heft_metadata_get_region(metadata, 0, &told), 0);
    run.remote_region = told.id;
    if (heft_metadata_connect(reader, metadata, NULL, &peer, &error))
        fail_msg("%s", error.text);
    if (heft_xfer_create(reader, HEFT_OP_READ, peer, &run, 1, NULL, &xfer, &error) ||
        heft_xfer_post(xfer, &error))
        fail_msg("%s", error.text);
    assert_int_equal(heft_xfer_wait(xfer, LONG_MS), 0);
    assert_memory_equal(target, expected, size);
    assert_int_equal(heft_xfer_release(xfer), 0);
    assert_int_equal(heft_peer_close(peer, &error), 0);
    assert_int_equal(heft_region_deregister(run.local_region, &error), 0);
}

static void agents_meet(enum kind kind)
{
    struct place place;
    static uint8_t bytes[4096], more[64];
    struct heft_agent *agent = open_agent("decode/0"), *reader = open_agent("reader");
    struct heft_metadata *metadata;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_record_list list;
    struct heft_directory *directory;
    struct heft_publication *publication;
    struct heft_region *extra;
    struct heft_watch *watch;
    struct pollfd ready = {.events = POLLIN};
    size_t index;

    place_open(&place, kind);
    directory = open_directory(&place);
    for (index = 0; index < sizeof(bytes); index++)
        bytes[index] = (uint8_t)(index * 7 + 3);
    assert_int_equal(heft_metadata_find(directory, "decode/0", &metadata, &error), HEFT_ERR_NOT_FOUND);
    watch = watch_all(directory);
    (void)offer(agent, bytes, sizeof(bytes));
    publication = publish(agent, directory, 3000);
    ready.fd = heft_watch_fd(watch);
    assert_int_equal(poll(&ready, 1, LONG_MS), 1);
    metadata = expect(watch, HEFT_WATCH_JOINED, "decode/0");
    ready.revents = 0;
    assert_int_equal(poll(&ready, 1, 0), 0);
    read_by(reader, metadata, bytes, sizeof(bytes));
    heft_metadata_free(metadata);
    extra = offer(agent, more, sizeof(more));
    assert_int_equal(regions_of(expect(watch, HEFT_WATCH_CHANGED, "decode/0")), 2);
    assert_int_equal(heft_region_deregister(extra, &error), 0);
    assert_int_equal(regions_of(expect(watch, HEFT_WATCH_CHANGED, "decode/0")), 1);
    assert_int_equal(heft_metadata_find(directory, "decode/0", &metadata, &error), 0);
    read_by(reader, metadata, bytes, sizeof(bytes));
    heft_metadata_free(metadata);
    assert_int_equal(directory->ops->list(directory, NULL, &list, &error), 0);
    assert_int_equal(list.count, 0); /* an agent is no replica */
    heft_record_list_free(&list);
    no_event(watch, 1200); /* renewals are no news */
    heft_publication_close(publication);
    assert_null(expect(watch, HEFT_WATCH_LOST, "decode/0"));
    heft_watch_close(watch);
    heft_directory_close(directory);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    assert_int_equal(heft_agent_close(reader, NULL), 0);
    place_close(&place);
}

static void agents_meet_through_heftd(void **state)
{
    (void)state;
    agents_meet(HEFTD);
}

static void agents_meet_through_etcd(void **state)
{
    (void)state;
    agents_meet(ETCD);
}

static void agents_meet_through_a_file(void **state)
{
    (void)state;
    agents_meet(FILE_);
}

/* ---- leases and names ---- */

/* A record as some process would publish it, which then dies. */
static struct heft_record make_record(struct heft_agent *agent, uint8_t generation, uint64_t lease_ms)
{
    static const struct heft_identity nobody = {"", "", "", "", "", NULL, 0};
    struct heft_record record;
    uint64_t size;
    void *data;

    memset(&record, 0, sizeof(record));
    record.name = malloc(300);
    (void)snprintf(record.name, 300, HEFT_RECORD_AGENTS "%s", heft_agent_name(agent));
    record.addresses = strdup("unix:@x");
    assert_int_equal(heft_record_set_identity(&record, &nobody), 0);
    record.generation = heft_agent_generation(agent);
    if (generation)
        memset(&record.generation, generation, sizeof(record.generation));
    record.token = heft_agent_token(agent);
    record.lease_ms = lease_ms;
    assert_int_equal(heft_agent_export_metadata(agent, NULL, &data, &size, NULL), 0);
    record.metadata = data;
    record.metadata_bytes = (size_t)size;
    return record;
}

static void the_rules_of_leases(enum kind kind)
{
    struct place place;
    struct heft_directory *directory;
    struct heft_agent *agent = open_agent("a");
    struct heft_record old = make_record(agent, 1, 20000), fresh = make_record(agent, 2, 20000);
    uint64_t epoch = 0, again = 0;
    struct heft_record_query query = {.agents = 1};
    struct heft_record_list list;
    struct heft_error error = HEFT_ERROR_INIT;
    const struct heft_directory_ops *ops;

    place_open(&place, kind);
    directory = open_directory(&place);
    ops = directory->ops;
    assert_int_equal(ops->renew(directory, old.name, &old.generation, 20000, NULL, &error),
                     HEFT_ERR_NOT_FOUND);
    assert_int_equal(ops->withdraw(directory, old.name, &old.generation, &error), HEFT_ERR_NOT_FOUND);
    assert_int_equal(ops->publish(directory, &old, &epoch, &error), 0);
    assert_true(epoch != 0);
    assert_int_equal(ops->publish(directory, &old, &again, &error), 0);
    assert_true(epoch == again);
    assert_int_equal(ops->renew(directory, old.name, &old.generation, 20000, &again, &error), 0);
    assert_true(epoch == again);
    assert_int_equal(ops->publish(directory, &fresh, NULL, &error), 0); /* taken over at once */
    assert_int_equal(ops->renew(directory, old.name, &old.generation, 20000, NULL, &error), HEFT_ERR_STALE);
    assert_int_equal(ops->publish(directory, &old, NULL, &error), HEFT_ERR_STALE);
    assert_non_null(strstr(error.text, "02020202"));
    assert_int_equal(ops->withdraw(directory, old.name, &old.generation, &error), HEFT_ERR_STALE);
    assert_int_equal(ops->list(directory, &query, &list, &error), 0);
    assert_int_equal(list.count, 1);
    assert_memory_equal(&list.records[0].generation, &fresh.generation, 16);
    assert_in_range(list.records[0].lease_left_ms, 1, 20000);
    heft_record_list_free(&list);
    assert_int_equal(ops->withdraw(directory, fresh.name, &fresh.generation, &error), 0);
    assert_int_equal(ops->withdraw(directory, fresh.name, &fresh.generation, &error), HEFT_ERR_NOT_FOUND);
    assert_int_equal(ops->list(directory, &query, &list, &error), 0);
    assert_int_equal(list.count, 0);
    heft_record_list_free(&list);
    heft_record_free(&old);
    heft_record_free(&fresh);
    heft_directory_close(directory);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    place_close(&place);
}

static void the_rules_of_leases_hold_in_heftd(void **state)
{
    (void)state;
    the_rules_of_leases(HEFTD);
}

static void the_rules_of_leases_hold_in_etcd(void **state)
{
    (void)state;
    the_rules_of_leases(ETCD);
}

static void one_that_dies_is_lost_and_a_swapped_record_is_refused(enum kind kind)
{
    struct place place;
    struct heft_directory *directory;
    struct heft_agent *agent = open_agent("a"), *other = open_agent("b");
    struct heft_record dying = make_record(agent, 0, 1000), swapped = make_record(other, 0, 30000);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_metadata *metadata;
    struct heft_watch *watch;
    uint64_t begin_ns;

    place_open(&place, kind);
    directory = open_directory(&place);
    watch = watch_all(directory);
    begin_ns = heft_now_ns();
    assert_int_equal(directory->ops->publish(directory, &dying, NULL, &error), 0);
    heft_metadata_free(expect(watch, HEFT_WATCH_JOINED, "a"));
    assert_null(expect(watch, HEFT_WATCH_LOST, "a"));
    assert_true(heft_now_ns() - begin_ns > 900 * HEFT_NS_PER_MS);
    memcpy(swapped.name, HEFT_RECORD_AGENTS "c", sizeof(HEFT_RECORD_AGENTS "c"));
    assert_int_equal(directory->ops->publish(directory, &swapped, NULL, &error), 0);
    assert_null(expect(watch, HEFT_WATCH_REFUSED, "c"));
    assert_int_equal(heft_metadata_find(directory, "c", &metadata, &error), HEFT_ERR_PROTOCOL);
    assert_non_null(strstr(error.text, "'b'"));
    /* The right name, but metadata of an older life. */
    memcpy(swapped.name, HEFT_RECORD_AGENTS "b", sizeof(HEFT_RECORD_AGENTS "b"));
    memset(&swapped.generation, 9, sizeof(swapped.generation));
    assert_int_equal(directory->ops->publish(directory, &swapped, NULL, &error), 0);
    assert_null(expect(watch, HEFT_WATCH_REFUSED, "b"));
    assert_int_equal(heft_metadata_find(directory, "b", &metadata, &error), HEFT_ERR_PROTOCOL);
    heft_watch_close(watch);
    heft_record_free(&dying);
    heft_record_free(&swapped);
    heft_directory_close(directory);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    assert_int_equal(heft_agent_close(other, NULL), 0);
    place_close(&place);
}

static void one_that_dies_is_lost_in_heftd(void **state)
{
    (void)state;
    one_that_dies_is_lost_and_a_swapped_record_is_refused(HEFTD);
}

static void one_that_dies_is_lost_in_etcd(void **state)
{
    (void)state;
    one_that_dies_is_lost_and_a_swapped_record_is_refused(ETCD);
}

/* ---- outages ---- */

static struct heft_publication_status status_of(struct heft_publication *publication)
{
    struct heft_publication_status status = {.size = sizeof(status)};

    heft_publication_get_status(publication, &status);
    return status;
}

static void wait_published(struct heft_publication *publication, uint64_t republished)
{
    uint64_t until_ns = heft_after_ms(heft_now_ns(), LONG_MS);

    while (!status_of(publication).published || status_of(publication).republished < republished) {
        if (heft_now_ns() > until_ns)
            fail_msg("not published again: %s", status_of(publication).last_error.text);
        (void)usleep(5000);
    }
}

/* It comes back empty: published again by itself, and the watch does not even notice. */
static void an_outage(enum kind kind)
{
    struct place place;
    static uint8_t bytes[4096] = {1, 2, 3}, more[8];
    struct heft_agent *agent = open_agent("a"), *reader = open_agent("reader");
    struct heft_directory *directory;
    struct heft_publication *publication;
    struct heft_metadata *metadata;
    struct heft_watch *watch;

    place_open(&place, kind);
    directory = open_directory(&place);
    (void)offer(agent, bytes, sizeof(bytes));
    publication = publish(agent, directory, 3000);
    watch = watch_all(directory);
    metadata = expect(watch, HEFT_WATCH_JOINED, "a");
    place_signal(&place, SIGKILL);
    read_by(reader, metadata, bytes, sizeof(bytes)); /* bytes never pass through the directory */
    heft_metadata_free(metadata);
    place_restart(&place);
    wait_published(publication, 1);
    no_event(watch, 3500); /* longer than the lease: it is there again */
    (void)offer(agent, more, sizeof(more));
    assert_int_equal(regions_of(expect(watch, HEFT_WATCH_CHANGED, "a")), 2);
    heft_watch_close(watch);
    heft_publication_close(publication);
    heft_directory_close(directory);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    assert_int_equal(heft_agent_close(reader, NULL), 0);
    place_close(&place);
}

static void an_outage_of_heftd_passes_unnoticed(void **state)
{
    (void)state;
    an_outage(HEFTD);
}

static void an_outage_of_etcd_passes_unnoticed(void **state)
{
    (void)state;
    an_outage(ETCD);
}

static void a_frozen_one_holds_nobody_up(enum kind kind)
{
    struct place place;
    static uint8_t bytes[8];
    struct heft_agent *agent = open_agent("a");
    struct heft_directory *directory;
    struct heft_publication *publication;
    struct heft_watch *watch;
    uint64_t begin_ns;

    place_open(&place, kind);
    directory = open_directory(&place);
    (void)offer(agent, bytes, sizeof(bytes));
    publication = publish(agent, directory, 10000);
    watch = watch_all(directory);
    heft_metadata_free(expect(watch, HEFT_WATCH_JOINED, "a"));
    place_signal(&place, SIGSTOP);
    begin_ns = heft_now_ns();
    heft_publication_close(publication); /* gives the withdrawal a second */
    heft_watch_close(watch);
    assert_in_range(heft_now_ns() - begin_ns, 0, 4 * HEFT_NS_PER_S); /* a call would take 20 */
    place_signal(&place, SIGCONT);
    heft_directory_close(directory);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    place_close(&place);
}

static void a_frozen_heftd_holds_nobody_up(void **state)
{
    (void)state;
    a_frozen_one_holds_nobody_up(HEFTD);
}

static void a_frozen_etcd_holds_nobody_up(void **state)
{
    (void)state;
    a_frozen_one_holds_nobody_up(ETCD);
}

/* ---- etcd's own ---- */

/* While the watch is away, keys change and their history is thrown away. */
static void a_compacted_history_is_read_anew(void **state)
{
    struct place place;
    struct heft_agent *left = open_agent("left"), *stays = open_agent("stays"), *comes = open_agent("comes");
    struct heft_record one = make_record(left, 0, 60000), two = make_record(stays, 0, 60000);
    struct heft_record three = make_record(comes, 0, 60000);
    struct heft_directory *directory;
    struct heft_directory_changes changes;
    struct heft_directory_cursor cursor = {0};
    struct heft_record_query query = {.agents = 1};
    struct heft_record_list list;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    place_open(&place, ETCD);
    directory = open_directory(&place);
    assert_int_equal(directory->ops->publish(directory, &one, NULL, &error), 0);
    assert_int_equal(directory->ops->publish(directory, &two, NULL, &error), 0);
    assert_int_equal(directory->ops->list(directory, &query, &list, &error), 0);
    cursor.epoch = list.epoch;
    cursor.revision = list.revision;
    heft_record_list_free(&list);
    assert_int_equal(directory->ops->withdraw(directory, one.name, &one.generation, &error), 0);
    assert_int_equal(directory->ops->publish(directory, &three, NULL, &error), 0);
    /* Still there: the changes are told. */
    assert_int_equal(directory->ops->changed(directory, &cursor, 20000, &changes, &error), 0);
    assert_true(changes.gone_count + changes.records.count > 0);
    assert_false(changes.must_list);
    heft_directory_changes_free(&changes);
    directory->ops->end_changes(directory, &cursor);
    /* Compacted: the caller is told to list. */
    cursor.revision = 1;
    etcd_shell(&place.etcd, "R=$($E get t --write-out=json | sed 's/.*\"revision\":\\([0-9]*\\).*/\\1/'); $E "
                            "compact $R");
    assert_int_equal(directory->ops->changed(directory, &cursor, 20000, &changes, &error), 0);
    assert_true(changes.must_list);
    heft_directory_changes_free(&changes);
    directory->ops->end_changes(directory, &cursor);
    heft_record_free(&one);
    heft_record_free(&two);
    heft_record_free(&three);
    heft_directory_close(directory);
    assert_int_equal(heft_agent_close(left, NULL), 0);
    assert_int_equal(heft_agent_close(stays, NULL), 0);
    assert_int_equal(heft_agent_close(comes, NULL), 0);
    place_close(&place);
}

static int list_with(const char *address, const struct heft_directory_options *options,
                     struct heft_error *error)
{
    struct heft_record_list list;
    struct heft_directory *directory;
    int rc = try_directory(address, options, &directory, error);

    if (rc)
        return rc;
    rc = directory->ops->list(directory, NULL, &list, error);
    if (!rc)
        heft_record_list_free(&list);
    heft_directory_close(directory);
    return rc;
}

static void says(int rc, int code, const struct heft_error *error, const char *words)
{
    if (rc != code || !strstr(error->text, words))
        fail_msg("code %d instead of %d, or '%s' is missing in: %s", rc, code, words, error->text);
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    (void)fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void users_and_passwords(void **state)
{
    struct place place;
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_agent *agent = open_agent("a");
    struct heft_directory *directory;
    struct heft_watch *watch;
    struct heft_publication *publication;
    char password[128];

    (void)state;
    place_open(&place, ETCD);
    (void)snprintf(password, sizeof(password), "%s/password", place.etcd.folder);
    write_text(password, "right\n");
    options.user = "fleet";
    options.password_file = password;
    says(list_with(place.etcd.address, &options, &error), HEFT_ERR_DENIED, &error, "switched off");
    etcd_shell(
        &place.etcd,
        "$E user add root:r && $E user grant-role root root && $E user add fleet:right && $E role add fleet "
        "&& "
        "$E role grant-permission fleet --prefix=true readwrite t/ && $E user grant-role fleet fleet && $E "
        "auth enable");
    says(list_with(place.etcd.address, NULL, &error), HEFT_ERR_DENIED, &error, "--directory-user");
    assert_int_equal(list_with(place.etcd.address, &options, &error), 0);
    if (try_directory(place.etcd.address, &options, &directory, &error))
        fail_msg("%s", error.text);
    publication = publish(agent, directory, 3000);
    watch = watch_all(directory);
    heft_metadata_free(expect(watch, HEFT_WATCH_JOINED, "a"));
    heft_watch_close(watch);
    heft_publication_close(publication);
    /* The token of a session is gone with the restart: another one is asked for, unseen. */
    etcd_signal(&place.etcd, SIGKILL);
    etcd_start(&place.etcd, NULL);
    publication = publish(agent, directory, 3000);
    wait_published(publication, 0);
    heft_publication_close(publication);
    heft_directory_close(directory);
    write_text(password, "wrong\n");
    says(list_with(place.etcd.address, &options, &error), HEFT_ERR_DENIED, &error, "'fleet'");
    write_text(password, "right");
    place.etcd.address[strlen(place.etcd.address) - 1] = 'u'; /* another prefix */
    says(list_with(place.etcd.address, &options, &error), HEFT_ERR_DENIED, &error, "grant-permission");
    options.password_file = "/nonexistent";
    says(list_with(place.etcd.address, &options, &error), HEFT_ERR_NOT_FOUND, &error, "/nonexistent");
    options.password_file = NULL;
    says(list_with(place.etcd.address, &options, &error), HEFT_ERR_INVALID, &error, "password file");
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    place_close(&place);
}

static void tls_with_a_certificate_of_this_side(void **state)
{
    struct place place;
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT, none = options;
    struct heft_error error = HEFT_ERROR_INIT;
    char ca[128], certificate[128], key[128], other[128], client_ca[128], server[128], server_key[128];
    const char *const extra[] = {
        "tls",     "--cert-file", server, "--key-file", server_key, "--client-cert-auth", "--trusted-ca-file",
        client_ca, NULL};

    (void)state;
    memset(&place, 0, sizeof(place));
    place.kind = ETCD;
    heftd_prepare(&place.heftd);
    etcd_prepare(&place.etcd);
    etcd_shell(
        &place.etcd,
        "cd $F && for n in ca other; do openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
        "-days 2 -keyout $n.key -out $n.pem -subj /CN=$n; done && printf "
        "'subjectAltName=IP:127.0.0.1\\nextendedKeyUsage=serverAuth,clientAuth\\n' >x && for n in server "
        "client; do openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $n.key -out "
        "$n.csr "
        "-subj /CN=$n && openssl x509 -req -days 2 -in $n.csr -CA ca.pem -CAkey ca.key -CAcreateserial "
        "-extfile "
        "x -out $n.pem; done");
#define IN_FOLDER(out, name) (void)snprintf(out, sizeof(out), "%s/" name, place.etcd.folder)
    IN_FOLDER(ca, "ca.pem");
    IN_FOLDER(client_ca, "ca.pem");
    IN_FOLDER(other, "other.pem");
    IN_FOLDER(certificate, "client.pem");
    IN_FOLDER(key, "client.key");
    IN_FOLDER(server, "server.pem");
    IN_FOLDER(server_key, "server.key");
    etcd_start(&place.etcd, extra);
    options.ca_file = ca;
    options.certificate_file = certificate;
    options.key_file = key;
    if (list_with(place.etcd.tls_address, &options, &error))
        fail_msg("%s", error.text);
    says(list_with(place.etcd.address, &options, &error), HEFT_ERR_INVALID, &error, "etcds://");
    none.timeout_ms = 3000;
    assert_int_equal(list_with(place.etcd.address, &none, &error), HEFT_ERR_UNAVAILABLE); /* plain */
    options.timeout_ms = 3000;
    options.ca_file = other;
    says(list_with(place.etcd.tls_address, &options, &error), HEFT_ERR_UNAVAILABLE, &error, "CA file");
    options.ca_file = ca;
    options.certificate_file = options.key_file = NULL; /* etcd wants one */
    assert_int_equal(list_with(place.etcd.tls_address, &options, &error), HEFT_ERR_UNAVAILABLE);
    options.certificate_file = certificate;
    says(list_with(place.etcd.tls_address, &options, &error), HEFT_ERR_INVALID, &error, "needs its key");
    place_close(&place);
}

static void members_that_are_down_are_passed_over(void **state)
{
    struct place place;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;
    uint16_t dead = process_free_port();
    char address[128];

    (void)state;
    place_open(&place, ETCD);
    (void)snprintf(address, sizeof(address), "etcd://127.0.0.1:%u,127.0.0.1:%u/t", dead, place.etcd.port);
    assert_int_equal(list_with(address, NULL, &error), 0);
    (void)snprintf(address, sizeof(address), "etcd://127.0.0.1:%u", dead);
    says(list_with(address, NULL, &error), HEFT_ERR_UNAVAILABLE, &error,
         "etcd --listen-client-urls http://127.0.0.1");
    options.user = "u";
    options.password_file = "/etc/hostname";
    says(list_with("etcd://192.0.2.1:1", &options, &error), HEFT_ERR_DENIED, &error, "password");
    says(list_with("file:/tmp/x", &options, &error), HEFT_ERR_INVALID, &error, "etcd://");
    place_close(&place);
}

static void values_of_others_are_passed_over(void **state)
{
    struct place place;
    struct heft_agent *agent = open_agent("a");
    struct heft_directory *directory;
    struct heft_publication *publication;
    struct heft_watch *watch;

    (void)state;
    place_open(&place, ETCD);
    etcd_shell(&place.etcd, "$E put t/agents/x garbage; $E put t/agents/ x; $E put t/replicas/y '' ; $E put "
                            "t/agents/a \"$(head -c 3000 /dev/zero | tr '\\0' '\\377')\"");
    directory = open_directory(&place);
    watch = watch_all(directory);
    publication = publish(agent, directory, 3000); /* in the place of the garbage */
    heft_metadata_free(expect(watch, HEFT_WATCH_JOINED, "a"));
    etcd_shell(&place.etcd, "$E put t/agents/z garbage; $E put t/agents/a garbage");
    assert_null(expect(watch, HEFT_WATCH_LOST, "a"));
    heft_metadata_free(expect(watch, HEFT_WATCH_JOINED, "a")); /* put right by the next renewal */
    heft_watch_close(watch);
    heft_publication_close(publication);
    heft_directory_close(directory);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    place_close(&place);
}

/* Many watchers of one heftd wait without a thread each, and each is told. */
static void many_watchers_are_all_told(void **state)
{
    enum { WATCHERS = 40 };
    struct place place;
    struct heft_directory *directory;
    struct heft_agent *agent = open_agent("a");
    struct heft_publication *publication;
    struct heft_watch *watches[WATCHERS];
    size_t index;

    (void)state;
    place_open(&place, HEFTD);
    directory = open_directory(&place);
    for (index = 0; index < WATCHERS; index++)
        watches[index] = watch_all(directory);
    publication = publish(agent, directory, 10000);
    for (index = 0; index < WATCHERS; index++)
        heft_metadata_free(expect(watches[index], HEFT_WATCH_JOINED, "a"));
    heft_publication_close(publication);
    for (index = 0; index < WATCHERS; index++) {
        assert_null(expect(watches[index], HEFT_WATCH_LOST, "a"));
        heft_watch_close(watches[index]);
    }
    heft_directory_close(directory);
    assert_int_equal(heft_agent_close(agent, NULL), 0);
    place_close(&place);
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agents_meet_through_heftd),
        cmocka_unit_test(agents_meet_through_a_file),
        cmocka_unit_test(the_rules_of_leases_hold_in_heftd),
        cmocka_unit_test(one_that_dies_is_lost_in_heftd),
        cmocka_unit_test(an_outage_of_heftd_passes_unnoticed),
        cmocka_unit_test(a_frozen_heftd_holds_nobody_up),
        cmocka_unit_test(many_watchers_are_all_told),
    };
    const struct CMUnitTest etcd_tests[] = {
        cmocka_unit_test(agents_meet_through_etcd),
        cmocka_unit_test(the_rules_of_leases_hold_in_etcd),
        cmocka_unit_test(one_that_dies_is_lost_in_etcd),
        cmocka_unit_test(an_outage_of_etcd_passes_unnoticed),
        cmocka_unit_test(a_frozen_etcd_holds_nobody_up),
        cmocka_unit_test(a_compacted_history_is_read_anew),
        cmocka_unit_test(users_and_passwords),
        cmocka_unit_test(tls_with_a_certificate_of_this_side),
        cmocka_unit_test(members_that_are_down_are_passed_over),
        cmocka_unit_test(values_of_others_are_passed_over),
    };
    int failed;

    heftd_program = count > 1 ? arguments[1] : "heftd";
    heft_control_init();
    failed = cmocka_run_group_tests_name("metadata", tests, NULL, NULL);
    if (etcd_is_there())
        failed += cmocka_run_group_tests_name("metadata in etcd", etcd_tests, NULL, NULL);
    else
        print_message("SKIPPED: metadata in etcd: there is no etcd (Debian: etcd-server etcd-client)\n");
    return failed;
}
