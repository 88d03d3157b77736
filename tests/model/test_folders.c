/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with the model folders that people really have: each its own error, with the place. */
#include "../unit/load/open_helper.h"

#include "base/log.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#define S1 "model-00001-of-00003.safetensors"
#define S2 "model-00002-of-00003.safetensors"
#define S3 "model-00003-of-00003.safetensors"
#define INDEX "model.safetensors.index.json"

static char last_warning[1024];

static void keep_warning(enum heft_log_level level, const char *line, void *context)
{
    (void)context;
    if (level <= HEFT_LOG_WARN)
        (void)snprintf(last_warning, sizeof(last_warning), "%s", line);
}

static void make_three_shards(const char *folder)
{
    write_tensors(at(folder, S1), TENSORS("a", "b"));
    write_tensors(at(folder, S2), TENSORS("c"));
    write_tensors(at(folder, S3), TENSORS("d"));
    write_text(at(folder, INDEX), "{\"metadata\":{\"total_size\":1},\"weight_map\":{\"a\":\"" S1
                                  "\",\"b\":\"" S1 "\",\"c\":\"" S2 "\",\"d\":\"" S3 "\"}}");
}

/* ---- an index and its shards ---- */

static void a_missing_shard_is_named_with_and_without_an_index(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;

    make_three_shards(folder);
    assert_ok(open_strict(folder, &error), error);
    assert_int_equal(unlink(at(folder, S2)), 0);
    assert_code(open_strict(folder, &error), HEFT_ERR_SHARD_MISSING, error);
    assert_says(error, S2);
    assert_says(error, "incomplete download?");
    assert_says(error, folder);
    /* Checks don't depend on what the model's configuration says. */
    write_text(at(folder, "config.json"), "{\"quantization_config\":{\"quant_method\":\"fp8\"}}");
    assert_code(open_strict(folder, &error), HEFT_ERR_SHARD_MISSING, error);
    assert_int_equal(unlink(at(folder, INDEX)), 0);
    assert_code(open_strict(folder, &error), HEFT_ERR_SHARD_MISSING, error);
    assert_says(error, "numbers 2 of 3");
}

static void a_tensor_that_its_shard_lacks_is_named(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;

    make_three_shards(folder);
    write_text(at(folder, "config.json"), "{\"quantization_config\":{\"quant_method\":\"awq\"}}");
    write_tensors(at(folder, S2), TENSORS("x"));
    assert_code(open_strict(folder, &error), HEFT_ERR_TENSOR_MISSING, error);
    assert_says(error, "\"c\"");
    assert_says(error, S2);
}

static void a_shard_that_the_index_leaves_out_is_named(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;

    make_three_shards(folder);
    write_text(at(folder, INDEX), "{\"weight_map\":{\"a\":\"" S1 "\",\"b\":\"" S1 "\",\"c\":\"" S2 "\"}}");
    assert_code(open_strict(folder, &error), HEFT_ERR_SHARD_UNINDEXED, error);
    assert_says(error, S3);
    assert_ok(open_with(folder, 0, 1, &error), error);
}

/* The byte at which tensor "w" begins, as the manifest says it. */
static uint8_t first_byte_of_w(const char *folder, const char **file_out)
{
    static char file[256];
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_opened *opened = NULL;
    const struct heft_manifest_tensor *tensor;
    uint8_t byte = 0;

    assert_ok(heft_open_model(folder, NULL, &opened, &error), error);
    tensor = &opened->manifest->tensors[heft_manifest_find(opened->manifest, "w", 1)];
    assert_int_equal(pread(opened->fds[tensor->file], &byte, 1, (off_t)tensor->offset_bytes), 1);
    (void)snprintf(file, sizeof(file), "%s", opened->manifest->files[tensor->file].name);
    heft_opened_free(opened);
    *file_out = file;
    return byte;
}

static void the_index_says_which_copy_of_a_tensor_counts(void **state)
{
    const char *folder = *state, *file;

    write_tensors(at(folder, "one.safetensors"), TENSORS("w", "x"));
    write_tensors(at(folder, "two.safetensors"), TENSORS("y", "z", "w"));
    write_text(at(folder, INDEX), "{\"weight_map\":{\"w\":\"two.safetensors\",\"x\":\"one.safetensors\"}}");
    assert_int_equal(first_byte_of_w(folder, &file), 8);
    assert_string_equal(file, "two.safetensors");
    write_text(
        at(folder, INDEX),
        "{\"weight_map\":{\"x\":\"one.safetensors\",\"w\":\"one.safetensors\",\"y\":\"two.safetensors\"}}");
    assert_int_equal(first_byte_of_w(folder, &file), 0);
    assert_string_equal(file, "one.safetensors");
}

static void consolidated_files_beside_shards_are_left_aside(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *manifest = NULL;

    make_three_shards(folder);
    write_tensors(at(folder, "consolidated.safetensors"), TENSORS("a", "b", "c", "d"));
    write_tensors(at(folder, "model.safetensors"), TENSORS("a"));
    write_tensors(at(folder, "original/consolidated.00.safetensors"), TENSORS("a"));
    assert_ok(heft_manifest_open(folder, NULL, &manifest, &error), error);
    assert_int_equal(heft_manifest_files(manifest), 3);
    assert_int_equal(heft_manifest_tensors(manifest), 4);
    heft_manifest_close(manifest);
    assert_ok(open_strict(at(folder, "consolidated.safetensors"), &error), error);
    assert_int_equal(unlink(at(folder, INDEX)), 0);
    assert_code(open_strict(folder, &error), HEFT_ERR_AMBIGUOUS, error);
}

static void an_index_of_another_sharding_can_be_ignored_when_all_tensors_are_there(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_buf index;
    char name[64], tensor[16];
    unsigned number;

    heft_buf_init(&index, SIZE_MAX);
    heft_buf_printf(&index, "{\"weight_map\":{");
    for (number = 1; number <= 30; number++)
        heft_buf_printf(&index, "%s\"t%u\":\"model-%05u-of-00030.safetensors\"", number > 1 ? "," : "",
                        number > 15 ? number - 15 + 100 : number, number);
    heft_buf_printf(&index, "}}");
    for (number = 1; number <= 15; number++) {
        char second[16];

        (void)snprintf(name, sizeof(name), "model-%05u-of-00030.safetensors", number);
        (void)snprintf(tensor, sizeof(tensor), "t%u", number);
        (void)snprintf(second, sizeof(second), "t%u", number + 100);
        write_tensors(at(folder, name), TENSORS(tensor, second));
    }
    write_bytes(at(folder, INDEX), index.data, index.size);
    heft_buf_free(&index);
    assert_code(open_strict(folder, &error), HEFT_ERR_SHARD_MISSING, error);
    assert_says(error, "15 of the 30");
    assert_says(error, "model-00016-of-00030.safetensors");
    assert_says(error, "numbers 16-30 of 30");
    assert_ok(open_with(folder, 0, 1, &error), error);
    assert_int_equal(unlink(at(folder, "model-00007-of-00030.safetensors")), 0);
    assert_code(open_with(folder, 0, 1, &error), HEFT_ERR_TENSOR_MISSING, error);
    assert_says(error, "2 of the 30");
    assert_says(error, "\"t7\"");
}

static void a_broken_index_is_refused_or_ignored_with_a_warning(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;

    make_three_shards(folder);
    write_text(at(folder, INDEX), "{\"weight_map\":{");
    assert_code(open_strict(folder, &error), HEFT_ERR_INDEX_JSON, error);
    assert_says(error, INDEX);
    heft_set_log_sink(keep_warning, NULL, HEFT_LOG_WARN);
    assert_ok(open_with(folder, 0, 1, &error), error);
    heft_set_log_sink(NULL, NULL, HEFT_LOG_ERROR);
    assert_non_null(strstr(last_warning, INDEX));
    assert_int_equal(unlink(at(folder, INDEX)), 0);
    assert_int_equal(mkdir(at(folder, INDEX), 0755), 0);
    assert_code(open_strict(folder, &error), HEFT_ERR_NOT_A_FILE, error);
}

/* ---- wrong lengths ---- */

static void every_kind_of_truncation_is_seen(void **state)
{
    static const char header[] = "{\"w\":{\"dtype\":\"U8\",\"shape\":[8192],\"data_offsets\":[0,8192]}}";
    const char *folder = *state, *path = at(folder, "model.safetensors");
    const off_t header_end = 8 + (off_t)sizeof(header) - 1;
    const struct {
        off_t size;
        int code;
    } cases[] = {{header_end + 8192 - 1, HEFT_ERR_DATA_TRUNCATED},
                 {header_end + 4096, HEFT_ERR_DATA_TRUNCATED},
                 {header_end, HEFT_ERR_DATA_TRUNCATED},
                 {header_end - 1, HEFT_ERR_HEADER_LENGTH},
                 {8, HEFT_ERR_HEADER_LENGTH},
                 {7, HEFT_ERR_HEADER_TOO_SMALL},
                 {0, HEFT_ERR_HEADER_TOO_SMALL}};
    struct heft_error error = HEFT_ERROR_INIT;
    size_t index;

    for (index = 0; index < sizeof(cases) / sizeof(cases[0]); index++) {
        write_shard(path, header, 8192);
        assert_ok(open_strict(folder, &error), error);
        assert_int_equal(truncate(path, cases[index].size), 0);
        assert_code(open_strict(folder, &error), cases[index].code, error);
        assert_says(error, path);
        assert_code(open_with(folder, 1, 1, &error), cases[index].code, error); /* leniency does not help */
    }
}

static void trailing_bytes_are_for_the_lenient(void **state)
{
    static const char header[] = "{\"w\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}}";
    const char *folder = *state, *path = at(folder, "model.safetensors");
    struct heft_error error = HEFT_ERROR_INIT;
    const size_t extra[] = {1, 4096};
    size_t index;

    for (index = 0; index < 2; index++) {
        write_shard(path, header, 16 + extra[index]);
        assert_code(open_strict(folder, &error), HEFT_ERR_DATA_TRAILING, error);
        heft_set_log_sink(keep_warning, NULL, HEFT_LOG_WARN);
        assert_ok(open_with(folder, 1, 0, &error), error);
        heft_set_log_sink(NULL, NULL, HEFT_LOG_ERROR);
        assert_non_null(strstr(last_warning, "after the last tensor"));
        assert_non_null(strstr(last_warning, path));
    }
}

static void a_huge_header_length_is_refused_before_memory_is_taken(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    uint8_t bytes[20] = {[7] = 0x80};

    write_bytes(at(folder, "model.safetensors"), bytes, sizeof(bytes));
    assert_code(open_strict(folder, &error), HEFT_ERR_HEADER_TOO_LARGE, error);
}

static void offsets_that_lie_are_refused_with_the_tensor(void **state)
{
    static const struct {
        const char *header;
        size_t data;
        int code;
    } cases[] = {
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1000,1000],\"data_offsets\":[0,4]}}", 4,
         HEFT_ERR_SIZE_MISMATCH},
        {"{\"v\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"w\":{\"dtype\":\"U8\",\"shape\":["
         "4],\"data_offsets\":[2,6]}}",
         6, HEFT_ERR_OFFSET_OVERLAP},
        {"{\"v\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"w\":{\"dtype\":\"U8\",\"shape\":["
         "4],\"data_offsets\":[6,10]}}",
         10, HEFT_ERR_OFFSET_GAP},
        {"{\"w\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, HEFT_ERR_MISALIGNED},
    };
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    size_t index;

    for (index = 0; index < sizeof(cases) / sizeof(cases[0]); index++) {
        write_shard(at(folder, "model.safetensors"), cases[index].header, cases[index].data);
        assert_code(open_strict(folder, &error), cases[index].code, error);
        assert_says(error, "\"w\"");
        assert_says(error, "model.safetensors");
    }
}

/* ---- names that leave ---- */

static void shards_outside_the_folder_are_refused(void **state)
{
    static const char *const names[] = {"../secret.safetensors", "a/../../secret.safetensors",
                                        "x\\nmodel.safetensors", "a\\\\b"};
    const char *root = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    char folder[512], json[700];
    size_t index;

    (void)snprintf(folder, sizeof(folder), "%s", at(root, "m"));
    write_tensors(at(root, "secret.safetensors"), TENSORS("w"));
    write_tensors(at(folder, "a/good.safetensors"), TENSORS("w"));
    for (index = 0; index < sizeof(names) / sizeof(names[0]); index++) {
        (void)snprintf(json, sizeof(json), "{\"weight_map\":{\"w\":\"%s\"}}", names[index]);
        write_text(at(folder, INDEX), json);
        assert_code(open_strict(folder, &error), HEFT_ERR_PATH_UNSAFE, error);
        assert_null(strchr(error.text, '\n'));
    }
    (void)snprintf(json, sizeof(json), "{\"weight_map\":{\"w\":\"%s/secret.safetensors\"}}", root);
    write_text(at(folder, INDEX), json);
    assert_code(open_strict(folder, &error), HEFT_ERR_PATH_UNSAFE, error);
    write_text(at(folder, INDEX), "{\"weight_map\":{\"w\":\"a/good.safetensors\"}}");
    assert_ok(open_strict(folder, &error), error);
}

static void links_that_leave_the_folder_are_refused(void **state)
{
    const char *root = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    char folder[512];

    (void)snprintf(folder, sizeof(folder), "%s", at(root, "m"));
    write_tensors(at(root, "secret.safetensors"), TENSORS("w"));
    write_tensors(at(folder, "sub/inside"), TENSORS("w"));
    assert_int_equal(symlink("../secret.safetensors", at(folder, "model.safetensors")), 0);
    assert_code(open_strict(folder, &error), HEFT_ERR_PATH_UNSAFE, error);
    assert_says(error, "model.safetensors");
    assert_int_equal(unlink(at(folder, "model.safetensors")), 0);
    assert_int_equal(symlink(at(root, "secret.safetensors"), at(folder, "model.safetensors")), 0);
    assert_code(open_strict(folder, &error), HEFT_ERR_PATH_UNSAFE, error);
    assert_int_equal(unlink(at(folder, "model.safetensors")), 0);
    assert_int_equal(symlink("model.safetensors", at(folder, "model.safetensors")), 0);
    assert_code(open_strict(folder, &error), HEFT_ERR_PATH_UNSAFE, error);
    assert_int_equal(unlink(at(folder, "model.safetensors")), 0);
    assert_int_equal(symlink("sub/inside", at(folder, "model.safetensors")), 0);
    assert_ok(open_strict(folder, &error), error);
    /* A folder on the way that leads out. */
    assert_int_equal(symlink("..", at(folder, "up")), 0);
    write_text(at(folder, INDEX), "{\"weight_map\":{\"w\":\"up/secret.safetensors\"}}");
    assert_code(open_strict(folder, &error), HEFT_ERR_PATH_UNSAFE, error);
    write_tensors(at(folder, "odd\nname.safetensors"), TENSORS("w"));
    assert_int_equal(unlink(at(folder, INDEX)), 0);
    assert_int_equal(unlink(at(folder, "model.safetensors")), 0);
    assert_code(open_strict(folder, &error), HEFT_ERR_PATH_UNSAFE, error);
    assert_null(strchr(error.text, '\n'));
}

/* ---- what stands in a shard's place ---- */

static void things_named_like_shards_never_block(void **state)
{
    const char *folder = *state, *path = at(folder, "model.safetensors");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct heft_error error = HEFT_ERROR_INIT;
    int fd;

    assert_int_equal(mkfifo(path, 0644), 0);
    assert_code(open_strict(folder, &error), HEFT_ERR_NOT_A_FILE, error);
    assert_says(error, "FIFO");
    assert_code(open_strict(path, &error), HEFT_ERR_NOT_A_FILE, error);
    write_text(at(folder, INDEX), "{\"weight_map\":{\"w\":\"model.safetensors\"}}");
    assert_code(open_strict(folder, &error), HEFT_ERR_NOT_A_FILE, error);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_code(open_strict(folder, &error), HEFT_ERR_NOT_A_FILE, error);
    assert_says(error, "directory");
    assert_int_equal(rmdir(path), 0);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_code(open_strict(folder, &error), HEFT_ERR_NOT_A_FILE, error);
    assert_code(open_strict(path, &error), HEFT_ERR_NOT_A_FILE, error);
    (void)close(fd);
    assert_code(open_strict("/dev/null", &error), HEFT_ERR_NOT_A_FILE, error);
    assert_int_equal(unlink(at(folder, INDEX)), 0);
    assert_int_equal(mkfifo(at(folder, INDEX), 0644), 0);
    assert_code(open_strict(folder, &error), HEFT_ERR_NOT_A_FILE, error);
}

static void an_lfs_pointer_is_told_as_what_it_is(void **state)
{
    static const char *const pointers[] = {
        "version https://git-lfs.github.com/spec/v1\noid "
        "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n",
        "version https://git-lfs.github.com/spec/v1\r\noid "
        "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\r\nsize 12345\r\n"};
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    size_t index;

    for (index = 0; index < 2; index++) {
        write_text(at(folder, "model.safetensors"), pointers[index]);
        assert_code(open_strict(folder, &error), HEFT_ERR_LFS_POINTER, error);
        assert_says(error, "12345");
        assert_says(error, "4d7a2146");
        assert_says(error, "model.safetensors");
    }
    write_text(at(folder, INDEX), pointers[1]);
    assert_code(open_strict(folder, &error), HEFT_ERR_LFS_POINTER, error);
    assert_says(error, INDEX);
}

static void pickle_checkpoints_are_refused_with_advice(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;

    write_text(at(folder, "pytorch_model.bin"), "x");
    write_text(at(folder, "pytorch_model.bin.index.json"), "{}");
    write_text(at(folder, "config.json"), "{}");
    assert_code(open_strict(folder, &error), HEFT_ERR_PICKLE, error);
    assert_says(error, "pytorch_model.bin");
    assert_says(error, "convert it to safetensors");
    assert_code(open_strict(at(folder, "pytorch_model.bin"), &error), HEFT_ERR_PICKLE, error);
    assert_int_equal(unlink(at(folder, "pytorch_model.bin")), 0);
    assert_code(open_strict(folder, &error), HEFT_ERR_NO_WEIGHTS, error);
}

/* ---- odd but right ---- */

static void models_without_tensors_are_models(void **state)
{
    static const char *const headers[] = {"{}", "{\"__metadata__\":{\"format\":\"pt\"}}"};
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *manifest = NULL;
    size_t index;

    for (index = 0; index < 2; index++) {
        write_shard(at(folder, "model.safetensors"), headers[index], 0);
        assert_ok(heft_manifest_open(folder, NULL, &manifest, &error), error);
        assert_int_equal(heft_manifest_tensors(manifest), 0);
        assert_int_equal(heft_manifest_files(manifest), 1);
        heft_manifest_close(manifest);
    }
}

static void unknown_dtypes_are_kept_for_the_lenient(void **state)
{
    const char *folder = *state;
    struct heft_model_options options = HEFT_MODEL_OPTIONS_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *manifest = NULL;
    struct heft_tensor tensor = {.size = sizeof(tensor)};

    write_shard(at(folder, "model.safetensors"),
                "{\"q\":{\"dtype\":\"Q8_0\",\"shape\":[32],\"data_offsets\":[0,34]},"
                "\"f\":{\"dtype\":\"F4\",\"shape\":[2,8],\"data_offsets\":[34,42]}}",
                42);
    assert_code(open_strict(folder, &error), HEFT_ERR_DTYPE, error);
    assert_says(error, "Q8_0");
    options.lenient = 1;
    heft_set_log_sink(keep_warning, NULL, HEFT_LOG_WARN);
    assert_ok(heft_manifest_open(folder, &options, &manifest, &error), error);
    heft_set_log_sink(NULL, NULL, HEFT_LOG_ERROR);
    assert_non_null(strstr(last_warning, "dtype"));
    assert_int_equal(heft_manifest_lookup(manifest, "q", &tensor), HEFT_OK);
    assert_string_equal(tensor.dtype, "Q8_0");
    assert_int_equal(tensor.dtype_bits, 0);
    assert_int_equal(tensor.size_bytes, 34);
    assert_int_equal(heft_manifest_lookup(manifest, "f", &tensor), HEFT_OK);
    assert_int_equal(tensor.dtype_bits, 4);
    assert_int_equal(tensor.size_bytes, 8);
    heft_manifest_close(manifest);
}

static void other_files_and_folders_do_not_disturb(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;

    make_three_shards(folder);
    write_text(at(folder, "tokenizer/tokenizer.json"), "{}");
    write_text(at(folder, "1_Pooling/config.json"), "{}");
    write_text(at(folder, ".hidden"), "x");
    write_text(at(folder, "._" S1), "x");
    write_text(at(folder, "logo.png"), "x");
    write_text(at(folder, "chat_template.jinja"), "x");
    write_text(at(folder, "odd\nname"), "x");
    assert_int_equal(mkfifo(at(folder, "fifo"), 0644), 0);
    assert_int_equal(symlink("/nonexistent", at(folder, "broken")), 0);
    assert_ok(open_strict(folder, &error), error);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_missing_shard_is_named_with_and_without_an_index),
        IN_FOLDER(a_tensor_that_its_shard_lacks_is_named),
        IN_FOLDER(a_shard_that_the_index_leaves_out_is_named),
        IN_FOLDER(the_index_says_which_copy_of_a_tensor_counts),
        IN_FOLDER(consolidated_files_beside_shards_are_left_aside),
        IN_FOLDER(an_index_of_another_sharding_can_be_ignored_when_all_tensors_are_there),
        IN_FOLDER(a_broken_index_is_refused_or_ignored_with_a_warning),
        IN_FOLDER(every_kind_of_truncation_is_seen),
        IN_FOLDER(trailing_bytes_are_for_the_lenient),
        IN_FOLDER(a_huge_header_length_is_refused_before_memory_is_taken),
        IN_FOLDER(offsets_that_lie_are_refused_with_the_tensor),
        IN_FOLDER(shards_outside_the_folder_are_refused),
        IN_FOLDER(links_that_leave_the_folder_are_refused),
        IN_FOLDER(things_named_like_shards_never_block),
        IN_FOLDER(an_lfs_pointer_is_told_as_what_it_is),
        IN_FOLDER(pickle_checkpoints_are_refused_with_advice),
        IN_FOLDER(models_without_tensors_are_models),
        IN_FOLDER(unknown_dtypes_are_kept_for_the_lenient),
        IN_FOLDER(other_files_and_folders_do_not_disturb),
    };
    return cmocka_run_group_tests_name("folders", tests, NULL, NULL);
}
