/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that engines own, on both ends: a table of tensors that some engine holds is published as it is, and
 * another engine loads into addresses of its own, by a directory or without one.
 */
#include "base/digest.h"
#include <heft/heft.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define COUNT 5

static const uint64_t shapes[COUNT][2] = {{300, 700}, {64, 4096}, {1, 1}, {1000, 333}, {0, 8}};
static const char *const names[COUNT] = {"wide", "tall", "one", "odd", "empty"};

struct engine {
    uint8_t *memory[COUNT];
    struct heft_held_tensor tensors[COUNT];
    struct heft_directory *directory;
    char path[64];
    struct heft_model_identity identity;
    const char *keys[1], *values[1];
    struct heft_replica_options options;
};

static uint64_t bytes_of(int index)
{
    return shapes[index][0] * shapes[index][1] * 2;
}

static int setup(void **state)
{
    static struct engine engine;
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;
    char address[80];
    uint64_t at;
    int index;

    memset(&engine, 0, sizeof(engine));
    (void)snprintf(engine.path, sizeof(engine.path), "/tmp/heft-engine-%d.json", (int)getpid());
    (void)unlink(engine.path);
    (void)snprintf(address, sizeof(address), "file:%s", engine.path);
    options.address = address;
    assert_int_equal(heft_directory_open(&options, &engine.directory, NULL), 0);
    for (index = 0; index < COUNT; index++) {
        engine.memory[index] = malloc(bytes_of(index) + 1);
        for (at = 0; at < bytes_of(index); at++)
            engine.memory[index][at] = (uint8_t)(at * 31 + at / 251 + (uint64_t)index * 7);
        engine.tensors[index] = (struct heft_held_tensor){.name = names[index],
                                                          .dtype = "BF16",
                                                          .rank = 2,
                                                          .shape = shapes[index],
                                                          .address = engine.memory[index]};
    }
    engine.keys[0] = "quant";
    engine.values[0] = "fp8-block-128";
    engine.identity = (struct heft_model_identity)HEFT_MODEL_IDENTITY_INIT;
    engine.identity.model = "org/model";
    engine.identity.revision = "abc123";
    engine.identity.stage = "processed";
    engine.identity.engine = "vllm-0.32-sm90";
    engine.identity.rank = "tp=0/2,pp=0/1";
    engine.identity.keys = engine.keys;
    engine.identity.values = engine.values;
    engine.identity.pair_count = 1;
    engine.options = (struct heft_replica_options)HEFT_REPLICA_OPTIONS_INIT;
    engine.options.name = "engine-a";
    engine.options.tensors = engine.tensors;
    engine.options.tensor_count = COUNT;
    engine.options.identity = engine.identity;
    engine.options.directory = engine.directory;
    *state = &engine;
    return 0;
}

static int teardown(void **state)
{
    struct engine *engine = *state;
    int index;

    heft_directory_close(engine->directory);
    (void)unlink(engine->path);
    for (index = 0; index < COUNT; index++)
        free(engine->memory[index]);
    return 0;
}

static void engine_memory_is_served_and_loaded_into_named_addresses(void **state)
{
    struct engine *engine = *state;
    struct heft_load_options load = HEFT_LOAD_OPTIONS_INIT;
    struct heft_load_target targets[COUNT];
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_replica *replica;
    struct heft_model *model = NULL;
    struct heft_tensor tensor = {.size = sizeof(tensor)};
    uint8_t *mine[COUNT];
    int index;

    assert_int_equal(heft_replica_publish(&engine->options, &replica, &error), 0);
    for (index = 0; index < COUNT; index++) {
        mine[index] = malloc(bytes_of(index) + 2);
        mine[index][bytes_of(index)] = 0xee; /* a guard right behind */
        targets[index] = (struct heft_load_target){
            .tensor = names[index], .address = mine[index], .size_bytes = bytes_of(index)};
    }
    load.identity = &engine->identity;
    load.directory = engine->directory;
    load.targets = targets;
    load.target_count = COUNT;
    if (heft_load_model(&load, &model, &error))
        fail_msg("%s: %s", heft_error_name(error.code), error.text);
    for (index = 0; index < COUNT; index++) {
        assert_memory_equal(mine[index], engine->memory[index], bytes_of(index));
        assert_int_equal(mine[index][bytes_of(index)], 0xee);
    }
    assert_int_equal(heft_model_lookup(model, "odd", &tensor), 0);
    assert_ptr_equal(tensor.address, mine[3]);
    assert_true(tensor.has_digest);
    assert_int_equal(heft_model_free(model, &error), 0);
    heft_replica_close(replica);
    for (index = 0; index < COUNT; index++)
        free(mine[index]);
}

/* What was loaded into the caller's addresses can be served on from there. */
static void a_receiver_of_engine_memory_serves_it_on(void **state)
{
    struct engine *engine = *state;
    struct heft_load_options load = HEFT_LOAD_OPTIONS_INIT;
    struct heft_replica_options on = HEFT_REPLICA_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_replica *first, *second;
    struct heft_model *model = NULL, *copy = NULL;
    struct heft_tensor tensor = {.size = sizeof(tensor)};

    assert_int_equal(heft_replica_publish(&engine->options, &first, &error), 0);
    load.identity = &engine->identity;
    load.directory = engine->directory;
    assert_int_equal(heft_load_model(&load, &model, &error), 0);
    on.name = "engine-b";
    on.model = model;
    on.directory = engine->directory;
    assert_int_equal(heft_replica_publish(&on, &second, &error), 0);
    assert_int_equal(heft_model_free(model, &error), HEFT_ERR_BUSY);
    heft_replica_close(first);
    if (heft_load_model(&load, &copy, &error))
        fail_msg("%s", error.text);
    assert_int_equal(heft_model_lookup(copy, "tall", &tensor), 0);
    assert_memory_equal(tensor.address, engine->memory[1], bytes_of(1));
    heft_replica_close(second);
    assert_int_equal(heft_model_free(model, &error), 0);
    assert_int_equal(heft_model_free(copy, &error), 0);
}

static void named_peers_need_no_directory_and_boxes_are_cut(void **state)
{
    struct engine *engine = *state;
    struct heft_load_options load = HEFT_LOAD_OPTIONS_INIT;
    uint64_t start[2] = {10, 100}, size[2] = {50, 33};
    uint16_t cut[50 * 33];
    struct heft_load_target target = {"wide", start, size, cut, sizeof(cut)};
    struct heft_load_peer peer = {0};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_replica *replica;
    struct heft_model *model = NULL;
    char addresses[1024];
    uint64_t row, column;

    engine->options.directory = NULL;
    assert_int_equal(heft_replica_publish(&engine->options, &replica, &error), 0);
    assert_int_equal(heft_agent_addresses(heft_replica_agent(replica), addresses, sizeof(addresses)), 0);
    peer.addresses = addresses;
    peer.name = "engine-a";
    peer.generation = heft_agent_generation(heft_replica_agent(replica));
    peer.token = heft_agent_token(heft_replica_agent(replica));
    load.identity = &engine->identity;
    load.peers = &peer;
    load.peer_count = 1;
    load.targets = &target;
    load.target_count = 1;
    if (heft_load_model(&load, &model, &error))
        fail_msg("%s", error.text);
    for (row = 0; row < size[0]; row++)
        for (column = 0; column < size[1]; column++) {
            uint16_t expected;

            memcpy(&expected, engine->memory[0] + ((start[0] + row) * shapes[0][1] + start[1] + column) * 2,
                   2);
            assert_int_equal(cut[row * size[1] + column], expected);
        }
    assert_int_equal(heft_model_free(model, &error), 0);
    peer.token.bytes[0] ^= 1;
    assert_int_equal(heft_load_model(&load, &model, &error), HEFT_ERR_DENIED);
    heft_replica_close(replica);
}

static int load_with(struct engine *engine, const struct heft_model_identity *identity,
                     struct heft_error *error)
{
    struct heft_load_options load = HEFT_LOAD_OPTIONS_INIT;
    struct heft_model *model = NULL;
    int rc;

    load.identity = identity;
    load.directory = engine->directory;
    rc = heft_load_model(&load, &model, error);
    (void)heft_model_free(model, NULL);
    return rc;
}

static void another_identity_is_refused_by_name(void **state)
{
    struct engine *engine = *state;
    struct heft_model_identity other;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_replica *replica;
    const char *values[1] = {"int4"};

    assert_int_equal(heft_replica_publish(&engine->options, &replica, &error), 0);
    other = engine->identity;
    other.engine = "vllm-0.33-sm90";
    assert_int_equal(load_with(engine, &other, &error), HEFT_ERR_INCOMPATIBLE);
    assert_non_null(strstr(error.text, "vllm-0.33-sm90"));
    assert_non_null(strstr(error.text, "vllm-0.32-sm90"));
    other = engine->identity;
    other.rank = "tp=1/2,pp=0/1";
    assert_int_equal(load_with(engine, &other, &error), HEFT_ERR_INCOMPATIBLE);
    other = engine->identity;
    other.values = values;
    assert_int_equal(load_with(engine, &other, &error), HEFT_ERR_INCOMPATIBLE);
    assert_non_null(strstr(error.text, "quant"));
    other = engine->identity;
    other.stage = "raw"; /* nobody has that */
    assert_int_equal(load_with(engine, &other, &error), HEFT_ERR_NOT_FOUND);
    other = engine->identity;
    other.revision = "";
    assert_int_equal(load_with(engine, &other, &error), HEFT_ERR_INVALID);
    heft_replica_close(replica);
}

static void what_can_not_move_as_one_range_is_refused(void **state)
{
    struct engine *engine = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_replica *replica;
    int64_t transposed[2] = {1, 300}, row_major[2] = {700, 1};

    engine->tensors[0].strides = transposed;
    assert_int_equal(heft_replica_publish(&engine->options, &replica, &error), HEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "wide"));
    engine->tensors[0].strides = row_major;
    assert_int_equal(heft_replica_publish(&engine->options, &replica, &error), 0);
    heft_replica_close(replica);
    engine->tensors[0].dtype = "Q8_0";
    assert_int_equal(heft_replica_publish(&engine->options, &replica, &error), HEFT_ERR_DTYPE);
    engine->tensors[0].dtype = "BF16";
    engine->options.identity.revision = NULL;
    assert_int_equal(heft_replica_publish(&engine->options, &replica, &error), HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "revision"));
}

static void two_targets_for_one_tensor_are_refused(void **state)
{
    struct engine *engine = *state;
    struct heft_load_options load = HEFT_LOAD_OPTIONS_INIT;
    uint8_t one[2], two[2];
    struct heft_load_target targets[2] = {{"one", NULL, NULL, one, 2}, {"one", NULL, NULL, two, 2}};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_replica *replica;
    struct heft_model *model = NULL;

    assert_int_equal(heft_replica_publish(&engine->options, &replica, &error), 0);
    load.identity = &engine->identity;
    load.directory = engine->directory;
    load.targets = targets;
    load.target_count = 2;
    assert_int_equal(heft_load_model(&load, &model, &error), HEFT_ERR_INVALID);
    load.target_count = 1;
    targets[0].tensor = "none";
    assert_int_equal(heft_load_model(&load, &model, &error), HEFT_ERR_NOT_FOUND);
    targets[0].tensor = "one";
    targets[0].size_bytes = 1;
    assert_int_not_equal(heft_load_model(&load, &model, &error), 0);
    heft_replica_close(replica);
}

/* Frameworks give empty tensors strides of one. */
static void strides_of_an_empty_tensor_mean_nothing(void **state)
{
    struct engine *engine = *state;
    static const int64_t strides[2] = {1, 1};
    static const uint64_t shape[2] = {4, 0};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_replica *replica;

    engine->tensors[4].shape = shape;
    engine->tensors[4].strides = strides;
    if (heft_replica_publish(&engine->options, &replica, &error))
        fail_msg("%s", error.text);
    heft_replica_close(replica);
}

static void a_second_replica_on_one_agent_is_refused_and_the_first_goes_on(void **state)
{
    struct engine *engine = *state;
    struct heft_agent_options agent_options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_load_options load = HEFT_LOAD_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_replica *first, *second = NULL;
    struct heft_model *model = NULL;
    struct heft_agent *agent;

    agent_options.name = "engine-a";
    agent_options.listen = "127.0.0.1:0";
    assert_int_equal(heft_agent_open(&agent_options, &agent, &error), 0);
    engine->options.agent = agent;
    assert_int_equal(heft_replica_publish(&engine->options, &first, &error), 0);
    assert_int_equal(heft_replica_publish(&engine->options, &second, &error), HEFT_ERR_EXISTS);
    assert_null(second);
    load.identity = &engine->identity;
    load.directory = engine->directory;
    if (heft_load_model(&load, &model, &error))
        fail_msg("%s", error.text);
    assert_int_equal(heft_model_free(model, &error), 0);
    heft_replica_close(first);
    assert_int_equal(heft_agent_close(agent, &error), 0);
}

/* A caller says "for ever" with the largest number. */
static void limits_of_any_size_neither_wrap_nor_end_at_once(void **state)
{
    struct engine *engine = *state;
    struct heft_load_options load = HEFT_LOAD_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_replica *replica;
    struct heft_load *running;
    struct heft_model *model;

    assert_int_equal(heft_replica_publish(&engine->options, &replica, &error), 0);
    load.identity = &engine->identity;
    load.directory = engine->directory;
    load.deadline_ms = load.stall_ms = UINT64_MAX;
    assert_int_equal(heft_load_start(&load, &running, &error), 0);
    if (heft_load_wait(running, UINT64_MAX, &error))
        fail_msg("%s", error.text);
    model = heft_load_take_model(running);
    assert_non_null(model);
    heft_load_free(running);
    assert_int_equal(heft_model_free(model, &error), 0);
    heft_replica_close(replica);
}

/* Each target is handed out where it was wanted, whole and right, and nobody waits for whoever takes it. */
static void targets_are_handed_out_as_they_come(void **state)
{
    struct engine *engine = *state;
    struct heft_load_options options = HEFT_LOAD_OPTIONS_INIT;
    const uint64_t start[2] = {10, 100}, size[2] = {50, 200};
    struct heft_load_target targets[COUNT];
    struct heft_error error = HEFT_ERROR_INIT;
    const char *const order[] = {"odd", "empty", "wide"};
    struct heft_replica *replica;
    struct heft_load *load;
    uint8_t *mine[COUNT];
    int index, round, rc;

    assert_int_equal(heft_replica_publish(&engine->options, &replica, &error), 0);
    for (index = 0; index < COUNT; index++) {
        mine[index] = malloc(bytes_of(index) + 2);
        targets[index] = (struct heft_load_target){
            .tensor = names[index], .address = mine[index], .size_bytes = bytes_of(index)};
    }
    targets[0].box_start = start;
    targets[0].box_size = size;
    targets[0].size_bytes = size[0] * size[1] * 2;
    options.identity = &engine->identity;
    options.directory = engine->directory;
    options.targets = targets;
    options.target_count = COUNT;
    options.flags = HEFT_LOAD_STREAM;
    for (round = 0; round < 3; round++) {
        int seen[COUNT] = {0}, count = 0;

        options.order = round == 2 ? order : NULL;
        options.order_count = round == 2 ? 3 : 0;
        assert_int_equal(heft_load_start(&options, &load, &error), 0);
        if (round == 1) /* the load ends though nothing was taken, and everything is there to be taken then */
            assert_int_equal(heft_load_wait(load, 60000, &error), 0);
        for (;;) {
            struct heft_tensor tensor = {.size = sizeof(tensor)};
            uint64_t row;

            rc = heft_load_next(load, 60000, &tensor, &error);
            if (rc)
                break;
            for (index = 0; strcmp(names[index], tensor.name) != 0; index++)
                ;
            assert_int_equal(seen[index]++, 0);
            if (round == 2)
                assert_string_equal(tensor.name, order[count]);
            count++;
            assert_ptr_equal(tensor.address, tensor.size_bytes ? mine[index] : NULL);
            assert_int_equal(tensor.size_bytes, targets[index].size_bytes);
            if (index > 0) {
                assert_memory_equal(mine[index], engine->memory[index], bytes_of(index));
                continue;
            }
            assert_int_equal(tensor.box_start[1], start[1]);
            for (row = 0; row < size[0]; row++)
                assert_memory_equal(mine[0] + row * size[1] * 2,
                                    engine->memory[0] + ((start[0] + row) * shapes[0][1] + start[1]) * 2,
                                    size[1] * 2);
        }
        assert_int_equal(rc, HEFT_ERR_NOT_FOUND);
        assert_int_equal(count, round == 2 ? 3 : COUNT);
        assert_int_equal(heft_load_wait(load, 60000, &error), 0);
        heft_load_free(load);
    }
    heft_replica_close(replica);
    for (index = 0; index < COUNT; index++)
        free(mine[index]);
}

static void write_file(const char *path, uint64_t bytes)
{
    char header[128], block[4096];
    uint64_t length, at;
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    length = (uint64_t)snprintf(header, sizeof(header),
                                "{\"a\":{\"dtype\":\"U8\",\"shape\":[%llu],\"data_offsets\":[0,%llu]}}",
                                (unsigned long long)bytes, (unsigned long long)bytes);
    assert_int_equal(fwrite(&length, 8, 1, file), 1);
    assert_int_equal(fwrite(header, length, 1, file), 1);
    for (at = 0; at < bytes; at += sizeof(block)) {
        memset(block, (int)(at / sizeof(block) % 251), sizeof(block));
        assert_int_equal(fwrite(block, sizeof(block), 1, file), 1);
    }
    assert_int_equal(fclose(file), 0);
}

static void loads_of_a_host_share_what_they_hand_out_to_targets(void **state)
{
    static const uint64_t bytes = 12 << 20;
    struct heft_load_options options = HEFT_LOAD_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    char folder[64], path[96];
    struct heft_load *loads[2];
    struct heft_load_target targets[2];
    uint64_t at;
    int index;

    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/heft-engine-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/m.safetensors", folder);
    write_file(path, bytes);
    options.model = path;
    options.target_count = 1;
    options.host_loads = 2;
    options.share_folder = folder;
    options.flags = HEFT_LOAD_STREAM;
    assert_int_equal(heft_load_start(&options, &loads[0], &error), HEFT_ERR_INVALID); /* through a window */
    assert_non_null(strstr(error.text, "host_loads"));
    for (index = 0; index < 2; index++) {
        targets[index] =
            (struct heft_load_target){.tensor = "a", .address = malloc(bytes), .size_bytes = bytes};
        options.targets = &targets[index];
        assert_int_equal(heft_load_start(&options, &loads[index], &error), 0);
    }
    for (index = 0; index < 2; index++) {
        struct heft_tensor tensor = {.size = sizeof(tensor)};
        char *report;

        assert_int_equal(heft_load_next(loads[index], 60000, &tensor, &error), 0);
        assert_ptr_equal(tensor.address, targets[index].address);
        for (at = 0; at < bytes; at++)
            if (((uint8_t *)tensor.address)[at] != at / 4096 % 251)
                fail_msg("byte %llu is wrong", (unsigned long long)at);
        assert_int_equal(heft_load_next(loads[index], 60000, &tensor, &error), HEFT_ERR_NOT_FOUND);
        assert_int_equal(heft_load_wait(loads[index], 60000, &error), 0);
        report = heft_load_report(loads[index]);
        assert_non_null(strstr(report, "\"share\""));
        heft_free(report);
    }
    for (index = 0; index < 2; index++) {
        heft_load_free(loads[index]);
        free(targets[index].address);
    }
    (void)unlink(path);
    (void)snprintf(path, sizeof(path), "rm -rf %s", folder);
    assert_int_equal(system(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(engine_memory_is_served_and_loaded_into_named_addresses, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_receiver_of_engine_memory_serves_it_on, setup, teardown),
        cmocka_unit_test_setup_teardown(named_peers_need_no_directory_and_boxes_are_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(another_identity_is_refused_by_name, setup, teardown),
        cmocka_unit_test_setup_teardown(what_can_not_move_as_one_range_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(two_targets_for_one_tensor_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(strides_of_an_empty_tensor_mean_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_second_replica_on_one_agent_is_refused_and_the_first_goes_on, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(targets_are_handed_out_as_they_come, setup, teardown),
        cmocka_unit_test(loads_of_a_host_share_what_they_hand_out_to_targets),
        cmocka_unit_test_setup_teardown(limits_of_any_size_neither_wrap_nor_end_at_once, setup, teardown),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
