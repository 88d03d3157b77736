/* SPDX-License-Identifier: Apache-2.0 */
/* Listings and indexes in, choices out: the folders that people really have. */
#include "manifest_helper.h"
#include "format/modeldir.h"

/* A listing from names; the first character tells the kind: '/' directory, '|' FIFO, '?' broken link, '='
 * socket. */
static size_t listing(const char *const *names, struct heft_dir_entry *entries)
{
    size_t count = 0;

    for (; names[count]; count++) {
        static const char marks[] = "/|=?";
        const char *mark = strchr(marks, names[count][0]);

        entries[count].name = names[count] + (mark ? 1 : 0);
        entries[count].kind = mark ? (enum heft_entry_kind)(mark - marks + 1) : HEFT_ENTRY_FILE;
        entries[count].size_bytes = 100;
    }
    return count;
}

static struct heft_shard_index *index_of(const char *weight_map)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_shard_index *index = NULL;
    char json[2000];

    (void)snprintf(json, sizeof(json), "{\"weight_map\":{%s}}", weight_map);
    assert_ok(heft_index_parse(json, strlen(json), &index, &error), error);
    return index;
}

/* The files chosen, joined by ' '; "" and the error when refused. */
static int choose(const char *const *names, const char *weight_map, int present, char chosen[1000],
                  char note[256], struct heft_error *error)
{
    struct heft_dir_entry entries[64];
    struct heft_shard_index *index = weight_map ? index_of(weight_map) : NULL;
    struct heft_dir_choice *choice = NULL;
    size_t count = listing(names, entries);
    uint32_t file;
    int rc;

    chosen[0] = note[0] = 0;
    rc = present ? heft_dir_choose_present(entries, count, index, &choice, error)
                 : heft_dir_choose(entries, count, index, &choice, error);
    for (file = 0; !rc && file < choice->file_count; file++) {
        (void)strncat(chosen, choice->files[file], 200);
        (void)strncat(chosen, file + 1 < choice->file_count ? " " : "", 2);
    }
    if (!rc)
        memcpy(note, choice->note, sizeof(choice->note));
    heft_dir_choice_free(choice);
    heft_index_free(index);
    return rc;
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

static void a_single_file_is_the_model(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    char chosen[1000], note[256];

    (void)state;
    assert_ok(choose(LIST("config.json", "model.safetensors", "README.md", "/1_Pooling"), NULL, 0, chosen,
                     note, &error),
              error);
    assert_string_equal(chosen, "model.safetensors");
    assert_ok(choose(LIST("weights.safetensors", "consolidated.safetensors", "adapter_model.safetensors",
                          "pytorch_model.bin", ".model.safetensors", "._weights.safetensors"),
                     NULL, 0, chosen, note, &error),
              error);
    assert_string_equal(chosen, "weights.safetensors");
    assert_non_null(strstr(note, "consolidated.safetensors"));
}

static void gguf_counts_where_there_are_no_safetensors(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    char chosen[1000], note[256];

    (void)state;
    assert_ok(choose(LIST("config.json", "m-Q4_K_M.gguf", "mmproj-f16.gguf"), NULL, 0, chosen, note, &error),
              error);
    assert_string_equal(chosen, "m-Q4_K_M.gguf");
    assert_ok(choose(LIST("m-00002-of-00002.gguf", "m-00001-of-00002.gguf"), NULL, 0, chosen, note, &error),
              error);
    assert_string_equal(chosen, "m-00001-of-00002.gguf m-00002-of-00002.gguf");
    assert_ok(choose(LIST("model.gguf", "model.safetensors"), NULL, 0, chosen, note, &error), error);
    assert_string_equal(chosen, "model.safetensors");
    assert_non_null(strstr(note, "model.gguf"));
    assert_code(choose(LIST("m-Q4_K_M.gguf", "m-Q8_0.gguf"), NULL, 0, chosen, note, &error),
                HEFT_ERR_AMBIGUOUS, error);
    assert_code(choose(LIST("m-00001-of-00002.gguf"), NULL, 0, chosen, note, &error), HEFT_ERR_SHARD_MISSING,
                error);
    assert_says(error, "m-00002-of-00002.gguf");
}

static void a_complete_set_is_the_model_in_its_order(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    char chosen[1000], note[256];

    (void)state;
    assert_ok(choose(LIST("model-00003-of-00003.safetensors", "model-00001-of-00003.safetensors",
                          "model-00002-of-00003.safetensors"),
                     NULL, 0, chosen, note, &error),
              error);
    assert_string_equal(chosen, "model-00001-of-00003.safetensors model-00002-of-00003.safetensors "
                                "model-00003-of-00003.safetensors");
    assert_ok(choose(LIST("w-0-of-2.safetensors", "w-1-of-2.safetensors"), NULL, 0, chosen, note, &error),
              error);
    assert_ok(choose(LIST("00001-of-00001.safetensors"), NULL, 0, chosen, note, &error), error);
}

static void the_gap_in_a_set_is_told_by_name_and_number(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    char chosen[1000], note[256];

    (void)state;
    assert_code(choose(LIST("model-00001-of-00030.safetensors", "?model-00002-of-00030.safetensors",
                            "model-00007-of-00030.safetensors", "model-00009-of-00030.safetensors"),
                       NULL, 0, chosen, note, &error),
                HEFT_ERR_SHARD_MISSING, error);
    assert_says(error, "incomplete download?");
    assert_says(error, "27 of 30");
    assert_says(error, "model-00002-of-00030.safetensors");
    assert_says(error, "and 24 more");
    assert_says(error, "numbers 2-6, 8, 10-30 of 30");
    assert_code(choose(LIST("model-00031-of-00030.safetensors"), NULL, 0, chosen, note, &error),
                HEFT_ERR_SHARD_UNINDEXED, error);
    assert_code(
        choose(LIST("model-1-of-2.safetensors", "model-00001-of-2.safetensors", "model-2-of-2.safetensors"),
               NULL, 0, chosen, note, &error),
        HEFT_ERR_AMBIGUOUS, error);
    assert_code(choose(LIST("model-000000001-of-999999999.safetensors"), NULL, 0, chosen, note, &error),
                HEFT_ERR_SHARD_MISSING, error);
    assert_says(error, "numbers 2-999999999");
    assert_code(choose(LIST("?model.safetensors"), NULL, 0, chosen, note, &error), HEFT_ERR_SHARD_MISSING,
                error);
    assert_says(error, "link to nothing");
}

static void two_models_without_an_index_are_ambiguous(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    char chosen[1000], note[256];

    (void)state;
    assert_code(choose(LIST("a.safetensors", "b.safetensors"), NULL, 0, chosen, note, &error),
                HEFT_ERR_AMBIGUOUS, error);
    assert_says(error, "a.safetensors");
    assert_says(error, "b.safetensors");
    assert_code(
        choose(LIST("model.safetensors", "model-00001-of-00001.safetensors"), NULL, 0, chosen, note, &error),
        HEFT_ERR_AMBIGUOUS, error);
    assert_code(choose(LIST("m-1-of-1.safetensors", "n-1-of-1.safetensors", "x.safetensors"), NULL, 0, chosen,
                       note, &error),
                HEFT_ERR_AMBIGUOUS, error);
    assert_says(error, "3 models");
}

static void folders_without_weights_tell_what_is_there_instead(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    char chosen[1000], note[256];

    (void)state;
    assert_code(choose(LIST("config.json"), NULL, 0, chosen, note, &error), HEFT_ERR_NO_WEIGHTS, error);
    assert_code(choose(LIST("pytorch_model.bin", "config.json"), NULL, 0, chosen, note, &error),
                HEFT_ERR_PICKLE, error);
    assert_says(error, "pytorch_model.bin");
    assert_says(error, "convert");
    assert_code(choose(LIST("model.ckpt"), NULL, 0, chosen, note, &error), HEFT_ERR_PICKLE, error);
    assert_code(choose(LIST("tokenizer.bin", "training_args.bin"), NULL, 0, chosen, note, &error),
                HEFT_ERR_NO_WEIGHTS, error);
    assert_code(choose(LIST("consolidated.safetensors"), NULL, 0, chosen, note, &error), HEFT_ERR_NO_WEIGHTS,
                error);
    assert_says(error, "consolidated.safetensors");
    assert_code(choose(LIST("mmproj-f16.gguf"), NULL, 0, chosen, note, &error), HEFT_ERR_NO_WEIGHTS, error);
    assert_says(error, "mmproj-f16.gguf");
}

static void things_named_like_shards_are_no_files(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;
    char chosen[1000], note[256];

    (void)state;
    assert_code(choose(LIST("/model.safetensors"), NULL, 0, chosen, note, &error), HEFT_ERR_NOT_A_FILE,
                error);
    assert_says(error, "directory");
    assert_code(choose(LIST("|m-1-of-2.safetensors", "m-2-of-2.safetensors"), NULL, 0, chosen, note, &error),
                HEFT_ERR_NOT_A_FILE, error);
    assert_says(error, "FIFO");
    assert_code(choose(LIST("=m.safetensors"), "\"w\":\"m.safetensors\"", 0, chosen, note, &error),
                HEFT_ERR_NOT_A_FILE, error);
    assert_says(error, "socket");
}

static void an_index_decides_alone(void **state)
{
    static const char map[] =
        "\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00002-of-00002.safetensors\"";
    struct heft_error error = HEFT_ERROR_INIT;
    char chosen[1000], note[256];

    (void)state;
    assert_ok(choose(LIST("model-00002-of-00002.safetensors", "consolidated.safetensors",
                          "model-00001-of-00002.safetensors", "model.safetensors",
                          "model-00001-of-00009.safetensors"),
                     map, 0, chosen, note, &error),
              error);
    assert_string_equal(chosen, "model-00001-of-00002.safetensors model-00002-of-00002.safetensors");
    assert_non_null(strstr(note, "consolidated.safetensors"));
    assert_non_null(strstr(note, "2 more"));
    assert_code(
        choose(LIST("model-00001-of-00002.safetensors", "model.safetensors"), map, 0, chosen, note, &error),
        HEFT_ERR_SHARD_MISSING, error);
    assert_says(error, "model-00002-of-00002.safetensors");
    assert_says(error, "numbers 2 of 2");
    assert_says(error, "incomplete download?");
    assert_code(choose(LIST("model-00001-of-00002.safetensors", "?model-00002-of-00002.safetensors"), map, 0,
                       chosen, note, &error),
                HEFT_ERR_SHARD_MISSING, error);
    assert_code(choose(LIST("model-00001-of-00002.safetensors", "/model-00002-of-00002.safetensors"), map, 0,
                       chosen, note, &error),
                HEFT_ERR_NOT_A_FILE, error);
    assert_ok(choose(LIST("sub/x.safetensors"), "\"a\":\"sub/x.safetensors\"", 0, chosen, note, &error),
              error);
    assert_string_equal(chosen, "sub/x.safetensors");
    assert_code(choose(LIST("x"), "", 0, chosen, note, &error), HEFT_ERR_NO_WEIGHTS, error);
    assert_code(choose(LIST("pytorch_model.bin"), "\"a\":\"pytorch_model.bin\"", 0, chosen, note, &error),
                HEFT_ERR_PICKLE, error);
}

static void a_shard_of_the_same_set_that_the_index_leaves_out_is_refused(void **state)
{
    static const char map[] =
        "\"a\":\"model-00001-of-00003.safetensors\",\"b\":\"model-00002-of-00003.safetensors\"";
    struct heft_error error = HEFT_ERROR_INIT;
    char chosen[1000], note[256];

    (void)state;
    assert_code(choose(LIST("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                            "model-00003-of-00003.safetensors"),
                       map, 0, chosen, note, &error),
                HEFT_ERR_SHARD_UNINDEXED, error);
    assert_says(error, "model-00003-of-00003.safetensors");
    assert_ok(choose(LIST("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"), map, 0,
                     chosen, note, &error),
              error);
}

static void what_is_there_can_be_taken_whatever_the_index_says(void **state)
{
    static const char map[] =
        "\"a\":\"model-00001-of-00030.safetensors\",\"b\":\"model-00002-of-00030.safetensors\"";
    struct heft_error error = HEFT_ERROR_INIT;
    char chosen[1000], note[256];

    (void)state;
    assert_ok(choose(LIST("model-00002-of-00030.safetensors"), map, 1, chosen, note, &error), error);
    assert_string_equal(chosen, "model-00002-of-00030.safetensors");
    assert_ok(choose(LIST("m-1-of-2.safetensors", "m-2-of-2.safetensors"), map, 1, chosen, note, &error),
              error);
    assert_string_equal(chosen, "m-1-of-2.safetensors m-2-of-2.safetensors");
    assert_ok(
        choose(LIST("model-00001-of-00030.safetensors", "other.safetensors"), map, 1, chosen, note, &error),
        error);
    assert_string_equal(chosen, "model-00001-of-00030.safetensors");
    assert_code(choose(LIST("x.safetensors", "other.safetensors"), map, 1, chosen, note, &error),
                HEFT_ERR_AMBIGUOUS, error);
    assert_code(choose(LIST("model-00002-of-00030.safetensors"), NULL, 1, chosen, note, &error),
                HEFT_ERR_SHARD_MISSING, error);
    assert_code(choose(LIST("config.json"), map, 1, chosen, note, &error), HEFT_ERR_NO_WEIGHTS, error);
    assert_code(choose(LIST("?m-1-of-2.safetensors"), map, 1, chosen, note, &error), HEFT_ERR_SHARD_MISSING,
                error);
}

/* ---- manifests from headers ---- */

static const uint64_t two[] = {2};

/* A header of U8 [2] tensors, back to back. */
static struct heft_st_header header_of(struct heft_st_tensor *tensors, const char *const *names)
{
    uint64_t count;

    for (count = 0; names[count]; count++)
        tensors[count] = (struct heft_st_tensor){.name = names[count],
                                                 .name_bytes = (uint32_t)strlen(names[count]),
                                                 .rank = 1,
                                                 .dtype = "U8",
                                                 .dtype_bits = 8,
                                                 .shape = two,
                                                 .begin = count * 2,
                                                 .end = count * 2 + 2};
    return (struct heft_st_header){
        .tensors = tensors, .tensor_count = count, .header_bytes = 72, .data_bytes = count * 2};
}

static const struct heft_identity somebody = {.model = "org/m", .revision = "r"};

static void a_tensor_counts_only_in_the_shard_that_the_index_gives_it(void **state)
{
    struct heft_shard_index *index = index_of("\"w\":\"b\",\"x\":\"a\"");
    struct heft_st_tensor left[4], right[4];
    const struct heft_st_header a = header_of(left, LIST("w", "x", "stale")),
                                b = header_of(right, LIST("other", "w"));
    struct heft_dir_shard shards[2] = {{"a", 86, &a}, {"b", 84, &b}};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *manifest = NULL;
    uint64_t ignored = 0, digest = 0, at;
    int turn;

    (void)state;
    for (turn = 0; turn < 2; turn++) {
        assert_ok(heft_dir_manifest(shards, 2, index, &somebody, &manifest, &ignored, &error), error);
        assert_int_equal(ignored, 3);
        assert_int_equal(manifest->tensor_count, 2);
        at = heft_manifest_find(manifest, "w", 1);
        assert_string_equal(manifest->files[manifest->tensors[at].file].name, "b");
        assert_int_equal(manifest->tensors[at].offset_bytes, 8 + 72 + 2);
        assert_true(turn == 0 || digest == heft_manifest_table_digest(manifest));
        digest = heft_manifest_table_digest(manifest);
        heft_manifest_free(manifest);
        shards[0] = (struct heft_dir_shard){"b", 84, &b};
        shards[1] = (struct heft_dir_shard){"a", 86, &a};
    }
    heft_index_free(index);
}

static void a_tensor_that_is_not_where_the_index_says_is_named(void **state)
{
    struct heft_shard_index *index = index_of("\"w\":\"a\",\"gone\":\"a\",\"x\":\"b\"");
    struct heft_st_tensor left[4], right[4];
    const struct heft_st_header a = header_of(left, LIST("y")), b = header_of(right, LIST("x", "w"));
    const struct heft_dir_shard shards[2] = {{"a", 82, &a}, {"b", 84, &b}};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *manifest = NULL;

    (void)state;
    assert_code(heft_dir_manifest(shards, 2, index, &somebody, &manifest, NULL, &error),
                HEFT_ERR_TENSOR_MISSING, error);
    assert_says(error, "2 tensors");
    assert_says(error, "first \"w\"");
    heft_index_free(index);
    index = index_of("\"w\":\"a\",\"x\":\"b\"");
    assert_code(heft_dir_manifest(shards, 2, index, &somebody, &manifest, NULL, &error),
                HEFT_ERR_TENSOR_MISSING, error);
    assert_says(error, "\"w\", which \"a\" should hold but lies in \"b\"");
    assert_null(manifest);
    heft_index_free(index);
}

static void without_an_index_a_repeated_tensor_is_refused(void **state)
{
    struct heft_shard_index *index = index_of("\"w\":\"a\",\"x\":\"zzz\"");
    struct heft_st_tensor left[4], right[4];
    const struct heft_st_header a = header_of(left, LIST("w")), b = header_of(right, LIST("x", "w")),
                                none = {0};
    const struct heft_dir_shard shards[3] = {{"a", 82, &a}, {"b", 84, &b}, {"empty", 8, &none}};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *manifest = NULL;

    (void)state;
    assert_code(heft_dir_manifest(shards, 2, NULL, &somebody, &manifest, NULL, &error),
                HEFT_ERR_DUPLICATE_TENSOR, error);
    assert_says(error, "\"w\"");
    assert_ok(heft_dir_manifest(shards + 1, 2, NULL, &somebody, &manifest, NULL, &error), error);
    assert_int_equal(manifest->file_count, 2);
    assert_ok(heft_index_covered(index, manifest, &error), error);
    heft_manifest_free(manifest);
    assert_ok(heft_dir_manifest(shards, 1, NULL, &somebody, &manifest, NULL, &error), error);
    assert_code(heft_index_covered(index, manifest, &error), HEFT_ERR_TENSOR_MISSING, error);
    assert_says(error, "1 of the 2");
    assert_says(error, "\"x\"");
    heft_manifest_free(manifest);
    heft_index_free(index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_single_file_is_the_model),
        cmocka_unit_test(gguf_counts_where_there_are_no_safetensors),
        cmocka_unit_test(a_complete_set_is_the_model_in_its_order),
        cmocka_unit_test(the_gap_in_a_set_is_told_by_name_and_number),
        cmocka_unit_test(two_models_without_an_index_are_ambiguous),
        cmocka_unit_test(folders_without_weights_tell_what_is_there_instead),
        cmocka_unit_test(things_named_like_shards_are_no_files),
        cmocka_unit_test(an_index_decides_alone),
        cmocka_unit_test(a_shard_of_the_same_set_that_the_index_leaves_out_is_refused),
        cmocka_unit_test(what_is_there_can_be_taken_whatever_the_index_says),
        cmocka_unit_test(a_tensor_counts_only_in_the_shard_that_the_index_gives_it),
        cmocka_unit_test(a_tensor_that_is_not_where_the_index_says_is_named),
        cmocka_unit_test(without_an_index_a_repeated_tensor_is_refused),
    };
    return cmocka_run_group_tests_name("modeldir", tests, NULL, NULL);
}
