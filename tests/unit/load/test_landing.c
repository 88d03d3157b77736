/* SPDX-License-Identifier: Apache-2.0 */
/* Where files land: names from a peer that would leave the folder, and that nothing is there before all is.
 */
#include "base/error.h"
#include "format/modeldir.h"
#include "load/landing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[64], target[96];

static int make_place(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/heft-landing-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    (void)snprintf(target, sizeof(target), "%s/made", folder);
    return 0;
}

/* Entries of the place, the wanted folder among them. */
static int entries(void)
{
    DIR *opened = opendir(folder);
    const struct dirent *entry;
    int count = -2; /* "." and ".." */

    assert_non_null(opened);
    while ((entry = readdir(opened)) != NULL)
        count++;
    (void)closedir(opened);
    return count;
}

static int remove_place(void **state)
{
    static const char *const left[] = {"/made/sub/b", "/made/sub", "/made/a", "/made", ""};
    char path[128];
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(left) / sizeof(left[0]); index++) {
        (void)snprintf(path, sizeof(path), "%s%s", folder, left[index]);
        (void)remove(path);
    }
    return 0;
}

/* As a peer tells it: files without names, tensors with any. */
static struct heft_manifest *manifest_of(const char *stage, const char *const *names, const uint32_t *bytes,
                                         uint32_t count, const uint64_t *sizes)
{
    const struct heft_identity identity = {.model = "m", .revision = "1", .stage = stage};
    struct heft_manifest *manifest = heft_manifest_new();
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t at = 0;
    uint32_t index;

    assert_int_equal(heft_manifest_set_identity(manifest, &identity, &error), 0);
    assert_int_equal(heft_manifest_add_file(manifest, "", 1 << 20, 7, NULL, &error), 0);
    for (index = 0; index < count; index++) {
        const struct heft_manifest_tensor tensor = {.name = names[index],
                                                    .name_bytes = bytes[index],
                                                    .rank = 1,
                                                    .dtype = "U8",
                                                    .dtype_bits = 8,
                                                    .shape = &sizes[index],
                                                    .offset_bytes = at,
                                                    .size_bytes = sizes[index]};

        assert_int_equal(heft_manifest_add_tensor(manifest, &tensor, &error), 0);
        at += sizes[index];
    }
    assert_int_equal(heft_manifest_finish(manifest, &error), 0);
    return manifest;
}

static int land(const struct heft_manifest *manifest, struct heft_landing **landing_out,
                struct heft_layout **layout_out, struct heft_error *error)
{
    assert_int_equal(heft_layout_whole(manifest, heft_landing_align_bytes(), layout_out, error), 0);
    return heft_landing_create(target, *layout_out, landing_out, error);
}

static void a_peers_names_stay_in_the_folder(void **state)
{
    static const struct {
        const char *name;
        uint32_t bytes;
    } bad[] = {{"../evil", 7}, {"/tmp/evil", 9}, {"a/../../evil", 12}, {"", 0}, {"a\0b", 3},
               {"a//b", 4},    {"x/", 2}};
    const uint64_t sizes[] = {10, 20};
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(bad) / sizeof(bad[0]); index++) {
        const char *const names[] = {"good/one", bad[index].name};
        const uint32_t bytes[] = {8, bad[index].bytes};
        struct heft_manifest *manifest = manifest_of("files", names, bytes, 2, sizes);
        struct heft_error error = HEFT_ERROR_INIT;
        struct heft_landing *landing = NULL;
        struct heft_layout *layout;

        assert_int_equal(land(manifest, &landing, &layout, &error), HEFT_ERR_PATH_UNSAFE);
        assert_null(landing);
        assert_int_equal(entries(), 0);
        heft_layout_free(layout);
        heft_manifest_free(manifest);
    }
}

static void tensors_are_no_files(void **state)
{
    const char *const names[] = {"weight"};
    const uint32_t bytes[] = {6};
    const uint64_t sizes[] = {10};
    struct heft_manifest *manifest = manifest_of("raw", names, bytes, 1, sizes);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_landing *landing = NULL;
    struct heft_layout *layout;

    (void)state;
    assert_int_equal(land(manifest, &landing, &layout, &error), HEFT_ERR_INVALID);
    assert_int_equal(entries(), 0);
    heft_layout_free(layout);
    heft_manifest_free(manifest);
}

static void the_folder_is_there_once_it_is_committed(void **state)
{
    const char *const names[] = {"a", "sub/b"};
    const uint32_t bytes[] = {1, 5};
    const uint64_t sizes[] = {5000, 0};
    struct heft_manifest *manifest = manifest_of("files", names, bytes, 2, sizes);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_landing *landing = NULL;
    struct heft_layout *layout;
    char path[128], got[5000];
    FILE *file;

    (void)state;
    assert_int_equal(land(manifest, &landing, &layout, &error), 0);
    memset(heft_landing_address(landing), 0x5A, 5000);
    assert_int_not_equal(access(target, F_OK), 0);
    heft_landing_free(landing); /* given up: nothing is left */
    assert_int_equal(entries(), 0);
    heft_layout_free(layout);

    assert_int_equal(land(manifest, &landing, &layout, &error), 0);
    memset(heft_landing_address(landing), 0x5B, 5000);
    assert_int_equal(heft_landing_commit(landing, &error), 0);
    assert_int_equal(entries(), 1);
    assert_int_equal(heft_landing_address(landing)[4999], 0x5B); /* the map lives on */
    heft_landing_free(landing);
    (void)snprintf(path, sizeof(path), "%s/a", target);
    file = fopen(path, "re");
    assert_non_null(file);
    assert_int_equal(fread(got, 1, sizeof(got), file), 5000);
    assert_int_equal(got[0], 0x5B);
    assert_int_equal(fgetc(file), EOF);
    (void)fclose(file);
    (void)snprintf(path, sizeof(path), "%s/sub/b", target);
    assert_int_equal(access(path, F_OK), 0);
    heft_layout_free(layout);

    assert_int_equal(land(manifest, &landing, &layout, &error), HEFT_ERR_EXISTS);
    assert_int_equal(entries(), 1);
    heft_layout_free(layout);
    heft_manifest_free(manifest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_peers_names_stay_in_the_folder, make_place, remove_place),
        cmocka_unit_test_setup_teardown(tensors_are_no_files, make_place, remove_place),
        cmocka_unit_test_setup_teardown(the_folder_is_there_once_it_is_committed, make_place, remove_place),
    };
    return cmocka_run_group_tests_name("landing", tests, NULL, NULL);
}
