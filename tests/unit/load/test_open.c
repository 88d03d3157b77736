/* SPDX-License-Identifier: Apache-2.0 */
#include "open_helper.h"

#include <sys/resource.h>
#include <sys/wait.h>

static void a_folder_opens_with_its_files_in_the_manifests_order(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_opened *opened = NULL;
    const struct heft_manifest_tensor *tensor;
    uint8_t byte = 0;
    uint32_t file;
    struct stat st;

    write_tensors(at(folder, "model-00002-of-00002.safetensors"), TENSORS("c"));
    write_tensors(at(folder, "model-00001-of-00002.safetensors"), TENSORS("a", "b"));
    write_text(at(folder, "config.json"), "{}");
    assert_ok(heft_open_model(folder, NULL, &opened, &error), error);
    assert_int_equal(opened->file_count, 2);
    assert_int_equal(opened->manifest->file_count, 2);
    for (file = 0; file < 2; file++) {
        assert_int_equal(fstat(opened->fds[file], &st), 0);
        assert_int_equal(st.st_size, opened->manifest->files[file].size_bytes);
        assert_string_equal(opened->paths[file], at(folder, opened->manifest->files[file].name));
        assert_int_equal(fcntl(opened->fds[file], F_GETFL) & (O_ACCMODE | O_NONBLOCK), O_RDONLY);
        assert_int_equal(fcntl(opened->fds[file], F_GETFD), FD_CLOEXEC);
    }
    tensor = &opened->manifest->tensors[heft_manifest_find(opened->manifest, "b", 1)];
    assert_int_equal(pread(opened->fds[tensor->file], &byte, 1, (off_t)tensor->offset_bytes), 1);
    assert_int_equal(byte, 4);
    assert_string_equal(opened->manifest->identity.model, strrchr(folder, '/') + 1);
    assert_string_equal(opened->manifest->identity.stage, "raw");
    heft_opened_free(opened);
    heft_opened_free(NULL);
}

static void one_file_opens_by_its_path(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *manifest = NULL;

    write_tensors(at(folder, "x.safetensors"), TENSORS("a"));
    write_tensors(at(folder, "y.safetensors"), TENSORS("b", "c"));
    assert_int_equal(symlink(at(folder, "y.safetensors"), at(folder, "link")), 0);
    assert_ok(heft_manifest_open(at(folder, "y.safetensors"), NULL, &manifest, &error), error);
    assert_int_equal(heft_manifest_tensors(manifest), 2);
    assert_string_equal(heft_manifest_file_name(manifest, 0), "y.safetensors");
    heft_manifest_close(manifest);
    assert_ok(heft_manifest_open(at(folder, "link"), NULL, &manifest, &error),
              error); /* the user's own link */
    assert_int_equal(heft_manifest_tensors(manifest), 2);
    heft_manifest_close(manifest);
    assert_code(open_strict(at(folder, "z.safetensors"), &error), HEFT_ERR_NOT_FOUND, error);
    assert_says(error, "z.safetensors");
    assert_code(open_strict(at(folder, "x.safetensors/y"), &error), HEFT_ERR_NOT_FOUND, error);
}

static void relative_paths_are_those_of_the_process(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *manifest = NULL;
    int back = open(".", O_PATH | O_CLOEXEC);

    write_tensors(at(folder, "m/model.safetensors"), TENSORS("a"));
    assert_int_equal(chdir(at(folder, "m")), 0);
    assert_ok(heft_manifest_open(".", NULL, &manifest, &error), error);
    assert_string_equal(manifest->identity.model, "m");
    heft_manifest_close(manifest);
    assert_ok(open_strict("./model.safetensors", &error), error);
    assert_ok(open_strict("../m", &error), error);
    assert_code(open_strict("m", &error), HEFT_ERR_INVALID, error);
    assert_int_equal(fchdir(back), 0);
    (void)close(back);
}

static void a_store_that_needs_settings_says_which(void **state)
{
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    assert_int_equal(setenv("HEFT_OBJECT_ANONYMOUS", "1", 1), 0); /* nobody is asked who we are */
    assert_int_equal(unsetenv("AZURE_STORAGE_ACCOUNT"), 0);
    assert_code(open_strict("az://c/p", &error), HEFT_ERR_INVALID, error);
    assert_says(error, "AZURE_STORAGE_ACCOUNT");
    assert_code(open_strict("ftp://x", &error), HEFT_ERR_INVALID, error);
    assert_code(open_strict(NULL, &error), HEFT_ERR_INVALID, error);
}

static void revision_of(const char *model, const char *revision, char text_out[100])
{
    struct heft_model_options options = HEFT_MODEL_OPTIONS_INIT;
    struct heft_model_identity identity = HEFT_MODEL_IDENTITY_INIT;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *manifest = NULL;

    options.revision = revision;
    assert_ok(heft_manifest_open(model, &options, &manifest, &error), error);
    heft_manifest_identity(manifest, &identity);
    (void)snprintf(text_out, 100, "%s", identity.revision);
    heft_manifest_close(manifest);
}

static void a_plain_folders_revision_follows_its_files(void **state)
{
    const char *folder = *state, *path = at(folder, "model.safetensors");
    const struct timespec times[2] = {{.tv_sec = 1000000000, .tv_nsec = 1},
                                      {.tv_sec = 1000000000, .tv_nsec = 1}};
    char first[100], second[100];

    write_tensors(path, TENSORS("a"));
    revision_of(folder, NULL, first);
    assert_int_equal(strlen(first), 3 + 32);
    assert_int_equal(strncmp(first, "fs-", 3), 0);
    write_text(at(folder, "README.md"), "words");
    revision_of(folder, NULL, second);
    assert_string_equal(first, second);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    revision_of(folder, NULL, second);
    assert_string_not_equal(first, second);
    write_tensors(path, TENSORS("b"));
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    revision_of(folder, NULL, first);
    assert_string_not_equal(first, second);
    revision_of(folder, "my-own", first);
    assert_string_equal(first, "my-own");
}

static void files_that_change_after_the_opening_are_named(void **state)
{
    const char *folder = *state, *path = at(folder, "model.safetensors");
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_opened *opened = NULL;

    write_tensors(path, TENSORS("a"));
    assert_ok(heft_open_model(folder, NULL, &opened, &error), error);
    assert_ok(heft_opened_check_unchanged(opened, &error), error);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_code(heft_opened_check_unchanged(opened, &error), HEFT_ERR_CHANGED, error);
    assert_says(error, "model.safetensors");
    assert_int_equal(truncate(path, 20), 0);
    assert_code(heft_opened_check_unchanged(opened, &error), HEFT_ERR_CHANGED, error);
    assert_says(error, "20 now");
    heft_opened_free(opened);
}

static void fds_free_after(int rc, int before)
{
    (void)rc;
    assert_int_equal(count_descriptors(), before);
}

static void every_failure_closes_what_it_opened(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    int before;

    write_tensors(at(folder, "m-1-of-3.safetensors"), TENSORS("a"));
    write_tensors(at(folder, "m-2-of-3.safetensors"), TENSORS("b"));
    write_text(at(folder, "m-3-of-3.safetensors"), "12345678{");
    before = count_descriptors();
    fds_free_after(open_strict(folder, &error), before);
    assert_int_equal(error.code, HEFT_ERR_HEADER_TOO_LARGE);
    assert_says(error, at(folder, "m-3-of-3.safetensors"));
    write_tensors(at(folder, "m-3-of-3.safetensors"), TENSORS("a"));
    fds_free_after(open_strict(folder, &error), before);
    assert_int_equal(error.code, HEFT_ERR_DUPLICATE_TENSOR);
    write_text(at(folder, "model.safetensors.index.json"), "{");
    fds_free_after(open_strict(folder, &error), before);
    assert_int_equal(error.code, HEFT_ERR_INDEX_JSON);
    assert_says(error, "model.safetensors.index.json");
}

/* Runs in a child, so that limits and users of this process stay. Exit codes: 0 as expected. */
static int in_child(int (*work)(const char *folder), const char *folder)
{
    pid_t child = fork();
    int status = -1;

    if (child == 0)
        _exit(work(folder));
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}

static int with_few_descriptors(const char *folder)
{
    const struct rlimit limit = {.rlim_cur = 20, .rlim_max = 20};
    struct heft_error error = HEFT_ERROR_INIT;
    int before;

    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 1;
    before = count_descriptors();
    if (open_strict(folder, &error) != HEFT_ERR_NO_FDS || !strstr(error.text, "20 files open (ulimit -n)") ||
        !strstr(error.text, " of 30") || !strstr(error.text, folder)) {
        (void)fprintf(stderr, "%s\n", error.text);
        return 2;
    }
    return count_descriptors() == before ? 0 : 3;
}

static void too_few_descriptors_are_told_with_the_limit(void **state)
{
    const char *folder = *state;
    char name[64], tensor[16];
    unsigned index;

    for (index = 1; index <= 30; index++) {
        (void)snprintf(name, sizeof(name), "m-%u-of-30.safetensors", index);
        (void)snprintf(tensor, sizeof(tensor), "t%u", index);
        write_tensors(at(folder, name), TENSORS(tensor));
    }
    assert_int_equal(in_child(with_few_descriptors, folder), 0);
}

static int as_another_user(const char *folder)
{
    struct heft_error error = HEFT_ERROR_INIT;

    if (setresuid(65534, 65534, 65534) != 0)
        return 77;
    if (open_strict(folder, &error) != HEFT_ERR_PERMISSION || !strstr(error.text, "model.safetensors") ||
        !strstr(error.text, "65534")) {
        (void)fprintf(stderr, "%s\n", error.text);
        return 2;
    }
    if (open_strict(at(folder, "closed"), &error) != HEFT_ERR_PERMISSION || !strstr(error.text, "closed")) {
        (void)fprintf(stderr, "%s\n", error.text);
        return 3;
    }
    return open_strict(at(folder, "open"), &error);
}

static void missing_permissions_name_the_file(void **state)
{
    const char *folder = *state;
    int rc;

    if (geteuid() != 0) {
        print_message("only root can become somebody without rights\n");
        skip();
    }
    write_tensors(at(folder, "model.safetensors"), TENSORS("a"));
    write_tensors(at(folder, "closed/model.safetensors"), TENSORS("a"));
    write_tensors(at(folder, "open/model.safetensors"), TENSORS("a"));
    assert_int_equal(chmod(at(folder, "model.safetensors"), 0600), 0);
    assert_int_equal(chmod(at(folder, "closed"), 0700), 0);
    assert_int_equal(chmod(at(folder, "open/model.safetensors"), 0444), 0);
    rc = in_child(as_another_user, folder);
    if (rc == 77) {
        print_message("the system does not let this process change its user\n");
        skip();
    }
    assert_int_equal(rc, 0);
}

static void a_large_header_is_read_whole(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *manifest = NULL;
    struct heft_model_options options = HEFT_MODEL_OPTIONS_INIT;
    struct heft_buf header;
    unsigned index;

    heft_buf_init(&header, SIZE_MAX);
    heft_buf_printf(&header, "{");
    for (index = 0; index < 20000; index++)
        heft_buf_printf(&header,
                        "%s\"layer.%u\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[%u,%u]}",
                        index ? "," : "", index, index * 4, index * 4 + 4);
    heft_buf_printf(&header, "}");
    heft_buf_u8(&header, 0);
    write_shard(at(folder, "model.safetensors"), (const char *)header.data, 80000);
    assert_ok(heft_manifest_open(folder, NULL, &manifest, &error), error);
    assert_int_equal(heft_manifest_tensors(manifest), 20000);
    assert_int_equal(heft_manifest_bytes(manifest), 80000);
    heft_manifest_close(manifest);
    options.header_limit_bytes = 1000000;
    assert_code(heft_manifest_open(folder, &options, &manifest, &error), HEFT_ERR_HEADER_TOO_LARGE, error);
    heft_buf_free(&header);
}

static void accessors_fill_what_the_callers_header_knows(void **state)
{
    const char *folder = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *manifest = NULL;
    struct heft_tensor tensor = {.size = sizeof(tensor)};
    union {
        struct heft_tensor tensor;
        uint8_t bytes[sizeof(struct heft_tensor)];
    } small;

    write_tensors(at(folder, "model.safetensors"), TENSORS("a", "b"));
    assert_ok(heft_manifest_open(folder, NULL, &manifest, &error), error);
    assert_int_equal(heft_manifest_files(manifest), 1);
    assert_int_equal(heft_manifest_bytes(manifest), 8);
    assert_int_equal(heft_manifest_lookup(manifest, "b", &tensor), HEFT_OK);
    assert_string_equal(tensor.name, "b");
    assert_int_equal(tensor.name_bytes, 1);
    assert_string_equal(tensor.dtype, "U8");
    assert_int_equal(tensor.dtype_bits, 8);
    assert_int_equal(tensor.rank, 1);
    assert_int_equal(tensor.shape[0], 4);
    assert_null(tensor.box_start);
    assert_int_equal(tensor.size_bytes, 4);
    assert_string_equal(tensor.file, "model.safetensors");
    assert_null(tensor.address);
    assert_int_equal(tensor.has_digest, 0);
    assert_int_equal(heft_manifest_lookup(manifest, "c", &tensor), HEFT_ERR_NOT_FOUND);
    memset(small.bytes, 0xAA, sizeof(small.bytes));
    small.tensor.size = offsetof(struct heft_tensor, dtype);
    heft_manifest_tensor(manifest, 0, &small.tensor);
    assert_string_equal(small.tensor.name, "a");
    assert_int_equal(small.tensor.size, offsetof(struct heft_tensor, dtype));
    assert_int_equal(small.bytes[offsetof(struct heft_tensor, dtype)], 0xAA);
    assert_ok(heft_manifest_want_digests(manifest, &error), error);
    tensor.size = sizeof(tensor);
    heft_manifest_tensor(manifest, 1, &tensor);
    assert_int_equal(tensor.has_digest, 1);
    assert_true(tensor.digest != 0);
    assert_ok(heft_manifest_want_held(manifest, &error), error);
    heft_manifest_tensor(manifest, 1, &tensor);
    assert_int_equal(tensor.has_digest, 0);
    heft_manifest_close(manifest);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_folder_opens_with_its_files_in_the_manifests_order),
        IN_FOLDER(one_file_opens_by_its_path),
        IN_FOLDER(relative_paths_are_those_of_the_process),
        cmocka_unit_test(a_store_that_needs_settings_says_which),
        IN_FOLDER(a_plain_folders_revision_follows_its_files),
        IN_FOLDER(files_that_change_after_the_opening_are_named),
        IN_FOLDER(every_failure_closes_what_it_opened),
        IN_FOLDER(too_few_descriptors_are_told_with_the_limit),
        IN_FOLDER(missing_permissions_name_the_file),
        IN_FOLDER(a_large_header_is_read_whole),
        IN_FOLDER(accessors_fill_what_the_callers_header_knows),
    };
    return cmocka_run_group_tests_name("open", tests, NULL, NULL);
}
