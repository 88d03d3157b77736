/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From parsed headers to a plan: a sharded model's manifest, layout and plan cost about as much as parsing
 * its headers does. Times are of this thread, the best of a few, and compared with each other only.
 */
#include "format/modeldir.h"
#include "plan/plan.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define SHARDS 40u
#define TENSOR_BYTES 512u
#define PASSES 3

struct model {
    struct heft_buf headers[SHARDS];
    char names[SHARDS][48];
    struct heft_shard_index *index;
    uint64_t tensors;
};

struct times {
    double parse_s, plan_s;
};

static double cpu_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void name_tensor(char text_out[96], uint64_t number)
{
    (void)snprintf(text_out, 96, "model.layers.%03" PRIu64 ".mlp.experts.%03" PRIu64 ".down_proj.weight",
                   number / 256, number % 256);
}

/* In the order of the index, or with each pair of neighbours turned around. */
static void make_shard(struct model *model, uint32_t shard, struct heft_buf *json, int turned)
{
    uint64_t count = model->tensors / SHARDS, at;
    struct heft_st_tensor *tensors = calloc(count, sizeof(*tensors));
    char(*names)[96] = calloc(count, sizeof(*names));
    const uint64_t shape[2] = {16, TENSOR_BYTES / 32};
    struct heft_error error = HEFT_ERROR_INIT;

    assert_true(tensors && names);
    (void)snprintf(model->names[shard], sizeof(model->names[shard]), "model-%05u.safetensors", shard);
    for (at = 0; at < count; at++) {
        name_tensor(names[at], shard * count + at);
        heft_buf_printf(json, "%s\n\"%s\": \"%s\"", shard || at ? "," : "", names[at], model->names[shard]);
    }
    for (at = 0; at < count; at++) {
        const char *name = names[turned ? at ^ 1 : at];

        tensors[at] = (struct heft_st_tensor){.name = name,
                                              .name_bytes = (uint32_t)strlen(name),
                                              .rank = 2,
                                              .dtype = "BF16",
                                              .dtype_bits = 16,
                                              .shape = shape};
    }
    heft_buf_init(&model->headers[shard], HEFT_ST_HEADER_LIMIT_BYTES);
    assert_int_equal(heft_st_write_header(tensors, count, NULL, 0, &model->headers[shard], &error), 0);
    free(tensors);
    free(names);
}

static void make_model(struct model *model, uint64_t tensors, int turned)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_buf json;
    uint32_t shard;

    *model = (struct model){.tensors = tensors};
    heft_buf_init(&json, HEFT_INDEX_MAX_BYTES);
    heft_buf_printf(&json, "{\"weight_map\":{");
    for (shard = 0; shard < SHARDS; shard++)
        make_shard(model, shard, &json, turned);
    heft_buf_printf(&json, "}}");
    assert_int_equal(heft_index_parse(json.data, json.size, &model->index, &error), 0);
    heft_buf_free(&json);
}

static void free_model(struct model *model)
{
    uint32_t shard;

    for (shard = 0; shard < SHARDS; shard++)
        heft_buf_free(&model->headers[shard]);
    heft_index_free(model->index);
}

static void run_once(const struct model *model, struct times *best)
{
    const struct heft_identity identity = {.model = "m", .revision = "1"};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_dir_shard shards[SHARDS];
    const struct heft_manifest *source;
    struct heft_manifest *manifest;
    struct heft_layout *layout;
    struct heft_plan *plan;
    double begin = cpu_s(), parsed, planned;
    uint64_t ignored = 0;
    uint32_t shard;

    for (shard = 0; shard < SHARDS; shard++) {
        const struct heft_buf *header = &model->headers[shard];
        struct heft_st_header *made = NULL;

        shards[shard].name = model->names[shard];
        shards[shard].size_bytes = header->size + model->tensors / SHARDS * TENSOR_BYTES;
        assert_int_equal(
            heft_st_parse(header->data + 8, header->size - 8, shards[shard].size_bytes, NULL, &made, &error),
            0);
        shards[shard].header = made;
    }
    parsed = cpu_s();
    assert_int_equal(heft_dir_manifest(shards, SHARDS, model->index, &identity, &manifest, &ignored, &error),
                     0);
    source = manifest;
    assert_int_equal(heft_layout_whole(manifest, 256, &layout, &error), 0);
    assert_int_equal(heft_plan_make(layout, &source, 1, 0, &plan, &error), 0);
    planned = cpu_s();
    assert_int_equal(ignored, 0);
    assert_int_equal(plan->total_bytes, model->tensors * TENSOR_BYTES);
    best->parse_s = parsed - begin < best->parse_s ? parsed - begin : best->parse_s;
    best->plan_s = planned - parsed < best->plan_s ? planned - parsed : best->plan_s;
    heft_plan_free(plan);
    heft_layout_free(layout);
    heft_manifest_free(manifest);
    for (shard = 0; shard < SHARDS; shard++)
        heft_st_free((struct heft_st_header *)(uintptr_t)shards[shard].header);
}

static struct times measure(uint64_t tensors, int turned)
{
    struct times best = {1e9, 1e9};
    struct model model;
    int pass;

    make_model(&model, tensors, turned);
    for (pass = 0; pass < PASSES; pass++)
        run_once(&model, &best);
    free_model(&model);
    print_message("%" PRIu64 " tensors%s: headers %.2f ms, manifest and plan %.2f ms\n", tensors,
                  turned ? ", in another order than the index" : "", best.parse_s * 1e3, best.plan_s * 1e3);
    return best;
}

/* Measured: 1.3 times as much; before names were looked up with care, 4.5 times. */
static void planning_costs_about_what_parsing_the_headers_does(void **state)
{
    struct times times = measure(200000, 0);

    (void)state;
    assert_true(times.plan_s < 2.5 * times.parse_s);
}

/* Measured: 1.7 times as much. */
static void an_index_in_another_order_costs_little_more(void **state)
{
    struct times times = measure(200000, 1);

    (void)state;
    assert_true(times.plan_s < 3.2 * times.parse_s);
}

static void ten_times_the_tensors_take_about_ten_times_as_long(void **state)
{
    struct times few = measure(20000, 0), many = measure(200000, 0);

    (void)state;
    assert_true(many.plan_s < 30 * few.plan_s + 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planning_costs_about_what_parsing_the_headers_does),
        cmocka_unit_test(an_index_in_another_order_costs_little_more),
        cmocka_unit_test(ten_times_the_tensors_take_about_ten_times_as_long),
    };
    return cmocka_run_group_tests_name("open_scale", tests, NULL, NULL);
}
