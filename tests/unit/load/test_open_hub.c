/* SPDX-License-Identifier: Apache-2.0 */
/* The Hugging Face cache: models--org--name/{blobs,refs,snapshots}. */
#include "open_helper.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define OTHER "89abcdef0123456789abcdef0123456789abcdef"
#define REPO "models--org--name"

/* A snapshot with one weight file, as a link to its blob. */
static void make_cache(const char *cache)
{
    write_tensors(at(cache, REPO "/blobs/b1"), TENSORS("a", "b"));
    write_text(at(cache, REPO "/refs/main"), COMMIT);
    write_text(at(cache, REPO "/snapshots/" COMMIT "/config.json"), "{}");
    assert_int_equal(symlink("../../blobs/b1", at(cache, REPO "/snapshots/" COMMIT "/model.safetensors")), 0);
}

static int open_hub(const char *cache, const char *model, const char *revision,
                    struct heft_manifest **manifest_out, struct heft_error *error)
{
    struct heft_model_options options = HEFT_MODEL_OPTIONS_INIT;

    options.cache = cache;
    options.revision = revision;
    return heft_manifest_open(model, &options, manifest_out, error);
}

static int refuse_hub(const char *cache, const char *model, struct heft_error *error)
{
    struct heft_manifest *manifest = NULL;
    int rc = open_hub(cache, model, NULL, &manifest, error);

    heft_manifest_close(manifest);
    return rc;
}

static void expect(const char *cache, const char *model, const char *revision)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *manifest = NULL;

    assert_ok(open_hub(cache, model, revision, &manifest, &error), error);
    assert_string_equal(manifest->identity.model, "org/name");
    assert_string_equal(manifest->identity.revision, COMMIT);
    assert_int_equal(heft_manifest_tensors(manifest), 2);
    assert_string_equal(heft_manifest_file_name(manifest, 0), "model.safetensors");
    heft_manifest_close(manifest);
}

static void a_model_is_found_by_branch_and_by_commit(void **state)
{
    const char *cache = *state;

    make_cache(cache);
    write_text(at(cache, REPO "/refs/refs/pr/7"), COMMIT "\n");
    expect(cache, "org/name", NULL);
    expect(cache, "org/name", "");
    expect(cache, "hf:org/name", NULL);
    expect(cache, "org/name@main", NULL);
    expect(cache, "org/name@refs/pr/7", NULL);
    expect(cache, "org/name@" COMMIT, NULL);
    expect(cache, "org/name@nonsense", "main");
    /* The snapshot's own folder is the same model, with the same identity. */
    expect(NULL, at(cache, REPO "/snapshots/" COMMIT), NULL);
}

static void the_cache_is_where_the_environment_says(void **state)
{
    static const char *const names[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME",
                                        "HOME"};
    const char *folder = *state;
    char text[1024], *saved[5];
    struct heft_error error = HEFT_ERROR_INIT;
    size_t index;

    for (index = 0; index < 5; index++) {
        const char *value = getenv(names[index]);

        saved[index] = value ? strdup(value) : NULL;
        (void)unsetenv(names[index]);
    }
    assert_code(heft_cache_folder(NULL, text, sizeof(text), &error), HEFT_ERR_NOT_FOUND, error);
    (void)setenv("HOME", folder, 1);
    make_cache(at(folder, ".cache/huggingface/hub"));
    expect(NULL, "org/name", NULL);
    (void)setenv("XDG_CACHE_HOME", at(folder, "xdg"), 1);
    assert_ok(heft_cache_folder(NULL, text, sizeof(text), &error), error);
    assert_string_equal(text, at(folder, "xdg/huggingface/hub"));
    (void)setenv("HF_HOME", at(folder, "hf"), 1);
    make_cache(at(folder, "hf/hub"));
    expect(NULL, "org/name", NULL);
    (void)setenv("HF_HUB_CACHE", at(folder, "none"), 1);
    assert_code(refuse_hub(NULL, "org/name", &error), HEFT_ERR_NOT_FOUND, error);
    assert_says(error, "none/" REPO);
    assert_ok(heft_cache_folder("/given", text, sizeof(text), &error), error);
    assert_string_equal(text, "/given");
    assert_code(heft_cache_folder("/given", text, 6, &error), HEFT_ERR_TOO_LARGE, error);
    for (index = 0; index < 5; index++) {
        if (saved[index])
            (void)setenv(names[index], saved[index], 1);
        else
            (void)unsetenv(names[index]);
        free(saved[index]);
    }
}

static void what_is_not_in_the_cache_is_told(void **state)
{
    const char *cache = *state;
    struct heft_error error = HEFT_ERROR_INIT;

    make_cache(cache);
    assert_code(refuse_hub(cache, "org/other", &error), HEFT_ERR_NOT_FOUND, error);
    assert_says(error, "org/other is not in the cache");
    assert_says(error, "models--org--other");
    assert_code(refuse_hub(cache, "org/name@dev", &error), HEFT_ERR_NOT_FOUND, error);
    assert_says(error, "revision dev is not in the cache");
    assert_code(refuse_hub(cache, "org/name@" OTHER, &error), HEFT_ERR_NOT_FOUND, error);
    write_text(at(cache, REPO "/refs/dev"), OTHER);
    assert_code(refuse_hub(cache, "org/name@dev", &error), HEFT_ERR_NOT_FOUND, error);
    assert_says(error, "of which the cache holds no file");
    write_text(at(cache, REPO "/refs/dev"), "");
    assert_code(refuse_hub(cache, "org/name@dev", &error), HEFT_ERR_CHANGED, error);
    write_text(at(cache, REPO "/refs/dev"), "../../../etc");
    assert_code(refuse_hub(cache, "org/name@dev", &error), HEFT_ERR_CHANGED, error);
    assert_says(error, "not a commit");
    assert_int_equal(mkdir(at(cache, REPO "/refs/folder"), 0755), 0);
    assert_code(refuse_hub(cache, "org/name@folder", &error), HEFT_ERR_NOT_A_FILE, error);
}

static void an_unfinished_download_is_a_missing_shard(void **state)
{
    const char *cache = *state;
    struct heft_error error = HEFT_ERROR_INIT;

    make_cache(cache);
    assert_int_equal(unlink(at(cache, REPO "/blobs/b1")), 0);
    assert_code(refuse_hub(cache, "org/name", &error), HEFT_ERR_SHARD_MISSING, error);
    assert_says(error, "model.safetensors");
    assert_says(error, "incomplete download?");
}

static void links_lead_into_the_blobs_and_nowhere_else(void **state)
{
    static const char *const bad[] = {"../../secret",
                                      "/etc/hostname",
                                      "../../../outside.safetensors",
                                      "../../blobs/../secret",
                                      "../../blobs/sub/x",
                                      "../../refs/main",
                                      "../../../" REPO "/blobs/b1",
                                      "../../snapshots/" OTHER "/model.safetensors",
                                      "../../../models--org--else/blobs/b1"};
    const char *cache = *state, *link;
    struct heft_error error = HEFT_ERROR_INIT;
    size_t index;

    make_cache(cache);
    write_tensors(at(cache, REPO "/secret"), TENSORS("s"));
    write_tensors(at(cache, REPO "/blobs/sub/x"), TENSORS("s"));
    write_tensors(at(cache, "outside.safetensors"), TENSORS("s"));
    write_tensors(at(cache, "models--org--else/blobs/b1"), TENSORS("s"));
    write_tensors(at(cache, REPO "/snapshots/" OTHER "/model.safetensors"), TENSORS("s"));
    for (index = 0; index < sizeof(bad) / sizeof(bad[0]); index++) {
        link = at(cache, REPO "/snapshots/" COMMIT "/model.safetensors");
        assert_int_equal(unlink(link), 0);
        assert_int_equal(symlink(bad[index], link), 0);
        if (refuse_hub(cache, "org/name", &error) != HEFT_ERR_PATH_UNSAFE)
            fail_msg("a link to %s: %s", bad[index], error.text);
        assert_says(error, "model.safetensors");
    }
    /* A blob that is itself a link out of the blobs. */
    link = at(cache, REPO "/snapshots/" COMMIT "/model.safetensors");
    assert_int_equal(unlink(link), 0);
    assert_int_equal(symlink("../../blobs/b2", link), 0);
    assert_int_equal(symlink("../secret", at(cache, REPO "/blobs/b2")), 0);
    assert_code(refuse_hub(cache, "org/name", &error), HEFT_ERR_PATH_UNSAFE, error);
    /* A plain file in the snapshot, as on systems without links. */
    assert_int_equal(unlink(link), 0);
    write_tensors(link, TENSORS("a", "b"));
    expect(cache, "org/name", NULL);
}

static void shards_in_subfolders_follow_their_longer_links(void **state)
{
    const char *cache = *state;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *manifest = NULL;

    make_cache(cache);
    write_text(at(cache, REPO "/snapshots/" COMMIT "/model.safetensors.index.json"),
               "{\"weight_map\":{\"a\":\"deep/er/x.safetensors\"}}");
    make_parents(at(cache, REPO "/snapshots/" COMMIT "/deep/er/x"));
    assert_int_equal(
        symlink("../../../../blobs/b1", at(cache, REPO "/snapshots/" COMMIT "/deep/er/x.safetensors")), 0);
    assert_ok(open_hub(cache, "org/name", NULL, &manifest, &error), error);
    assert_int_equal(heft_manifest_tensors(manifest), 1);
    assert_string_equal(heft_manifest_file_name(manifest, 0), "deep/er/x.safetensors");
    heft_manifest_close(manifest);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_model_is_found_by_branch_and_by_commit),
        IN_FOLDER(the_cache_is_where_the_environment_says),
        IN_FOLDER(what_is_not_in_the_cache_is_told),
        IN_FOLDER(an_unfinished_download_is_a_missing_shard),
        IN_FOLDER(links_lead_into_the_blobs_and_nowhere_else),
        IN_FOLDER(shards_in_subfolders_follow_their_longer_links),
    };
    return cmocka_run_group_tests_name("open_hub", tests, NULL, NULL);
}
