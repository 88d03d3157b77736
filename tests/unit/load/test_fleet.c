/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads of a fleet in one process, and one that is none: it publishes what a load publishes, and its bytes or
 * its log are wrong.
 */
#include "base/digest.h"
#include "load/fleet_internal.h"

#include <heft/heft.h>

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define TENSORS 7
#define LOADS 4
#define CHUNK ((uint64_t)512 << 10)

struct world {
    char model[64], path[64];
    uint64_t sizes[TENSORS], total;
    struct heft_directory *directory;
};

static uint8_t byte_at(uint64_t tensor, uint64_t at)
{
    return (uint8_t)(at * 131 + at / 251 + tensor * 17);
}

static void write_model(struct world *world)
{
    static const uint64_t sizes[TENSORS] = {3000000, 262144, 1, 0, 700001, 4194304, 999};
    char header[2048];
    uint64_t tensor, at, used = 0, size;
    FILE *file = fopen(world->model, "wb");

    assert_non_null(file);
    size = (uint64_t)snprintf(header, sizeof(header), "{");
    for (tensor = 0; tensor < TENSORS; tensor++) {
        world->sizes[tensor] = sizes[tensor];
        size += (uint64_t)snprintf(header + size, sizeof(header) - size,
                                   "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%d]}",
                                   tensor ? "," : "", (int)tensor, (int)sizes[tensor], (int)used,
                                   (int)(used + sizes[tensor]));
        used += sizes[tensor];
    }
    size += (uint64_t)snprintf(header + size, sizeof(header) - size, "}");
    assert_int_equal(fwrite(&size, sizeof(size), 1, file), 1);
    assert_int_equal(fwrite(header, 1, size, file), size);
    for (tensor = 0; tensor < TENSORS; tensor++)
        for (at = 0; at < sizes[tensor]; at++)
            (void)putc(byte_at(tensor, at), file);
    assert_int_equal(fclose(file), 0);
    world->total = used;
}

static int setup(void **state)
{
    static struct world world;
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;
    char address[80];

    (void)snprintf(world.model, sizeof(world.model), "/tmp/heft-fleet-%d.safetensors", (int)getpid());
    (void)snprintf(world.path, sizeof(world.path), "/tmp/heft-fleet-%d.json", (int)getpid());
    (void)snprintf(address, sizeof(address), "file:%s", world.path);
    (void)unlink(world.path);
    options.address = address;
    assert_int_equal(heft_directory_open(&options, &world.directory, NULL), 0);
    write_model(&world);
    *state = &world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;

    heft_directory_close(world->directory);
    (void)unlink(world->model);
    (void)unlink(world->path);
    return 0;
}

static struct heft_load *start(const struct world *world, uint32_t loads, uint32_t wait_ms)
{
    struct heft_load_options options = HEFT_LOAD_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_load *load;

    options.model = world->model;
    options.directory = world->directory;
    options.chunk_bytes = CHUNK;
    options.fleet_loads = loads;
    options.fleet_wait_ms = wait_ms;
    if (heft_load_start(&options, &load, &error))
        fail_msg("%s: %s", heft_error_name(error.code), error.text);
    return load;
}

/* Its report, after it ended right with the right bytes. */
static json_t *end(const struct world *world, struct heft_load *load)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_model *model;
    uint64_t tensor, at;
    json_t *report;
    char *text;
    int rc;

    while ((rc = heft_load_wait(load, 60000, &error)) == HEFT_ERR_AGAIN)
        continue;
    if (rc)
        fail_msg("%s: %s", heft_error_name(error.code), error.text);
    model = heft_load_take_model(load);
    for (tensor = 0; tensor < TENSORS; tensor++) {
        struct heft_tensor found = {.size = sizeof(found)};
        char name[8];

        (void)snprintf(name, sizeof(name), "t%d", (int)tensor);
        assert_int_equal(heft_model_lookup(model, name, &found), 0);
        assert_int_equal(found.size_bytes, world->sizes[tensor]);
        for (at = 0; at < found.size_bytes; at++)
            if (((const uint8_t *)found.address)[at] != byte_at(tensor, at))
                fail_msg("tensor %s differs at byte %d", name, (int)at);
    }
    text = heft_load_report(load);
    report = json_loads(text, 0, NULL);
    heft_free(text);
    assert_int_equal(heft_model_free(model, NULL), HEFT_ERR_BUSY); /* it is served to the others */
    (void)heft_load_leave(load, 10000);
    heft_load_free(load);
    assert_int_equal(heft_model_free(model, NULL), 0);
    return report;
}

static uint64_t bytes_of(const json_t *report, const char *kind)
{
    const json_t *source;
    uint64_t bytes = 0;
    size_t index;

    json_array_foreach(json_object_get(report, "sources"), index,
                       source) if (strcmp(json_string_value(json_object_get(source, "kind")), kind) == 0)
        bytes += (uint64_t)json_integer_value(json_object_get(source, "bytes"));
    return bytes;
}

/* Four loads at once; the bytes that they read from storage. */
static uint64_t read_by_four(const struct world *world)
{
    struct heft_load *loads[LOADS];
    uint64_t read = 0;
    int index;

    for (index = 0; index < LOADS; index++)
        loads[index] = start(world, LOADS, 20000);
    for (index = 0; index < LOADS; index++) /* none ends before all have what they want */
        while (heft_load_wait(loads[index], 60000, NULL) == HEFT_ERR_AGAIN)
            continue;
    for (index = 0; index < LOADS; index++) {
        json_t *report = end(world, loads[index]);

        assert_int_equal(bytes_of(report, "file") + bytes_of(report, "peer"), world->total);
        read += bytes_of(report, "file");
        json_decref(report);
    }
    assert_true(read >= world->total);
    return read;
}

/* More than once where a thread had no processor for a second: then it is tried again. */
static void four_loads_read_each_byte_once(void **state)
{
    const struct world *world = *state;
    int tries = 0;

    while (read_by_four(world) > world->total + LOADS * CHUNK)
        assert_true(++tries < 4);
}

/* ---- one that lies ---- */

struct liar {
    struct heft_agent *agent;
    uint8_t *bytes;
    struct fleet_log *log;
    struct fleet_entry *entries;
    uint64_t capacity;
    struct heft_region *regions[2];
    struct heft_manifest *manifest;
    struct heft_record record;
};

static struct heft_region *serve(struct heft_agent *agent, void *address, uint64_t size)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_region *region;

    options.flags = HEFT_REGION_REMOTE_READ;
    options.address = address;
    options.length_bytes = size;
    assert_int_equal(heft_region_register(agent, &options, &region, NULL), 0);
    return region;
}

/* Holds the whole model and tells true digests of it. */
static void make_liar(const struct world *world, struct liar *liar)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_manifest *files;
    struct heft_buf buf;
    char addresses[1024], name[8];
    uint64_t tensor, at, used = 0, log_bytes, block;

    memset(liar, 0, sizeof(*liar));
    options.name = "liar";
    options.listen = "127.0.0.1:0";
    assert_int_equal(heft_agent_open(&options, &liar->agent, NULL), 0);
    liar->bytes = malloc(world->total);
    liar->capacity = 200;
    log_bytes = sizeof(*liar->log) + liar->capacity * sizeof(*liar->entries);
    liar->log = calloc(1, log_bytes);
    liar->entries = (struct fleet_entry *)(void *)(liar->log + 1);
    liar->regions[0] = serve(liar->agent, liar->bytes, world->total);
    liar->regions[1] = serve(liar->agent, liar->log, log_bytes);

    assert_int_equal(heft_manifest_open(world->model, NULL, &files, NULL), 0);
    liar->manifest = heft_manifest_new();
    assert_int_equal(heft_manifest_set_identity(liar->manifest, &files->identity, NULL), 0);
    assert_int_equal(heft_manifest_add_file(liar->manifest, "", world->total,
                                            heft_region_id(liar->regions[0]), NULL, NULL),
                     0);
    assert_int_equal(heft_manifest_add_file(liar->manifest, HEFT_FLEET_LOG_FILE, log_bytes,
                                            heft_region_id(liar->regions[1]), NULL, NULL),
                     0);
    for (tensor = 0; tensor < TENSORS; tensor++) {
        struct heft_manifest_tensor made;

        (void)snprintf(name, sizeof(name), "t%d", (int)tensor);
        made = files->tensors[heft_manifest_find(files, name, 2)];
        made.file = 0;
        made.offset_bytes = used;
        assert_int_equal(heft_manifest_add_tensor(liar->manifest, &made, NULL), 0);
        for (at = 0; at < world->sizes[tensor]; at++)
            liar->bytes[used + at] = byte_at(tensor, at);
        used += world->sizes[tensor];
    }
    assert_int_equal(heft_manifest_finish(liar->manifest, NULL), 0);
    for (tensor = 0; tensor < liar->manifest->tensor_count; tensor++) {
        const struct heft_manifest_tensor *held = &liar->manifest->tensors[tensor];

        for (block = 0; block < heft_block_count(held->size_bytes); block++) {
            at = block * HEFT_BLOCK_BYTES;
            liar->entries[liar->log->count++] = (struct fleet_entry){
                held->first_block + block,
                heft_hash64(liar->bytes + held->offset_bytes + at,
                            (size_t)(held->size_bytes - at < HEFT_BLOCK_BYTES ? held->size_bytes - at
                                                                              : HEFT_BLOCK_BYTES),
                            0)};
        }
    }
    liar->log->magic = HEFT_FLEET_LOG_MAGIC;
    liar->log->state = FLEET_COMPLETE;
    assert_int_equal(heft_manifest_want_held(liar->manifest, NULL), 0);
    heft_buf_init(&buf, HEFT_MANIFEST_MAX_BYTES);
    assert_int_equal(heft_manifest_encode(liar->manifest, &buf), 0);
    assert_int_equal(heft_agent_set_document(liar->agent, HEFT_FLEET_DOCUMENT, buf.data, buf.size, NULL), 0);
    heft_buf_free(&buf);

    assert_int_equal(heft_agent_addresses(liar->agent, addresses, sizeof(addresses)), 0);
    liar->record.name = strdup(HEFT_RECORD_LOADS "liar");
    liar->record.addresses = strdup(addresses);
    assert_int_equal(heft_record_set_identity(&liar->record, &files->identity), 0);
    liar->record.generation = heft_agent_generation(liar->agent);
    liar->record.token = heft_agent_token(liar->agent);
    liar->record.table_digest = heft_manifest_table_digest(liar->manifest);
    liar->record.tensor_count = liar->manifest->tensor_count;
    liar->record.total_bytes = world->total;
    liar->record.block_count = liar->record.held_blocks = liar->manifest->block_count;
    liar->record.lease_ms = 60000;
    assert_int_equal(world->directory->ops->publish(world->directory, &liar->record, &used, NULL), 0);
    heft_manifest_free(files);
}

static void end_liar(const struct world *world, struct liar *liar)
{
    (void)world->directory->ops->withdraw(world->directory, liar->record.name, &liar->record.generation,
                                          NULL);
    assert_int_equal(heft_agent_close(liar->agent, NULL), 0);
    heft_manifest_free(liar->manifest);
    heft_record_free(&liar->record);
    free(liar->bytes);
    free(liar->log);
}

static const json_t *liar_in(const json_t *report)
{
    const json_t *source;
    size_t index;

    json_array_foreach(json_object_get(report, "sources"), index,
                       source) if (strcmp(json_string_value(json_object_get(source, "name")),
                                          HEFT_RECORD_LOADS "liar") == 0) return source;
    fail_msg("the liar was not found");
    return NULL;
}

static void what_is_right_is_taken_from_whoever_has_it(void **state)
{
    const struct world *world = *state;
    struct liar liar;
    json_t *report;

    make_liar(world, &liar);
    report = end(world, start(world, 2, 20000));
    assert_int_equal(bytes_of(report, "peer"), world->total);
    assert_int_equal(bytes_of(report, "file"), 0);
    json_decref(report);
    end_liar(world, &liar);
}

static void wrong_bytes_are_found_by_their_digest_and_taken_elsewhere(void **state)
{
    const struct world *world = *state;
    struct liar liar;
    json_t *report;

    make_liar(world, &liar);
    liar.bytes[world->sizes[0] + 3] ^= 1;
    report = end(world, start(world, 2, 20000));
    assert_int_equal(json_integer_value(json_object_get(liar_in(report), "digest_errors")), 1);
    assert_string_equal(json_string_value(json_object_get(liar_in(report), "state")), "lost");
    assert_true(bytes_of(report, "file") > 0);
    assert_int_equal(bytes_of(report, "file") + bytes_of(report, "peer"), world->total);
    json_decref(report);
    end_liar(world, &liar);
}

/* Claims of everything, and of more than there is; blocks that nobody has; a part of an entry. */
static void a_log_of_nonsense_costs_time_only(void **state)
{
    const struct world *world = *state;
    struct liar liar;
    json_t *report;

    make_liar(world, &liar);
    liar.log->count = 6;
    liar.entries[0] = (struct fleet_entry){HEFT_FLEET_CLAIM, UINT64_MAX};
    liar.entries[1] = (struct fleet_entry){HEFT_FLEET_CLAIM | 1, UINT64_MAX - 1};
    liar.entries[2] = (struct fleet_entry){UINT64_MAX, 1};
    liar.entries[3] = (struct fleet_entry){UINT64_MAX >> 1, 1};
    liar.entries[4] = (struct fleet_entry){HEFT_FLEET_CLAIM | 3, 0};
    liar.entries[5] = (struct fleet_entry){liar.manifest->block_count, 1};
    report = end(world, start(world, 2, 20000));
    assert_int_equal(bytes_of(report, "file"), world->total);
    json_decref(report);
    end_liar(world, &liar);

    make_liar(world, &liar);
    liar.log->count = UINT64_MAX;
    report = end(world, start(world, 2, 20000));
    assert_int_equal(bytes_of(report, "file"), world->total);
    assert_string_equal(json_string_value(json_object_get(liar_in(report), "state")), "lost");
    json_decref(report);
    end_liar(world, &liar);
}

static void loads_without_a_fleet_pass_over_one(void **state)
{
    const struct world *world = *state;
    struct heft_load_options options = HEFT_LOAD_OPTIONS_INIT;
    struct heft_load *load;
    struct liar liar;
    json_t *report;
    char *text;

    make_liar(world, &liar);
    options.model = world->model;
    options.directory = world->directory;
    assert_int_equal(heft_load_start(&options, &load, NULL), 0);
    while (heft_load_wait(load, 60000, NULL) == HEFT_ERR_AGAIN)
        continue;
    assert_int_equal(heft_load_leave(load, 10000), 0); /* nobody to wait for */
    text = heft_load_report(load);
    report = json_loads(text, 0, NULL);
    heft_free(text);
    assert_int_equal(bytes_of(report, "file"), world->total);
    assert_int_equal(json_array_size(json_object_get(report, "sources")), 1);
    json_decref(report);
    heft_load_free(load);
    end_liar(world, &liar);
}

static void names_and_agents_that_do_not_fit_are_refused(void **state)
{
    const struct world *world = *state;
    struct heft_load_options options = HEFT_LOAD_OPTIONS_INIT;
    struct heft_replica_options replica = HEFT_REPLICA_OPTIONS_INIT;
    struct heft_held_tensor tensor = {.name = "t", .dtype = "U8"};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_replica *made;
    struct heft_model *model;

    replica.name = HEFT_RECORD_LOADS "x";
    replica.tensors = &tensor;
    replica.tensor_count = 1;
    assert_int_equal(heft_replica_publish(&replica, &made, &error), HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "loads/"));

    options.model = world->model;
    options.directory = world->directory;
    options.fleet_loads = 2;
    assert_int_equal(heft_agent_open(NULL, &options.agent, NULL), 0);
    assert_int_equal(heft_load_model(&options, &model, &error), HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "does not listen"));
    assert_int_equal(heft_agent_close(options.agent, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(four_loads_read_each_byte_once, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_right_is_taken_from_whoever_has_it, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_bytes_are_found_by_their_digest_and_taken_elsewhere, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_log_of_nonsense_costs_time_only, setup, teardown),
        cmocka_unit_test_setup_teardown(loads_without_a_fleet_pass_over_one, setup, teardown),
        cmocka_unit_test_setup_teardown(names_and_agents_that_do_not_fit_are_refused, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
