/* SPDX-License-Identifier: Apache-2.0 */
/* heft inspect, verify and ls: models as they lie. */
#include "cli/cli.h"
#include "base/digest.h"
#include "base/error.h"
#include "format/manifest.h"
#include "load/cache.h"
#include "load/verify.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- inspect ---- */

struct dtype_sum {
    const char *dtype;
    uint64_t tensors, bytes;
};

static size_t sum_dtypes(const struct heft_manifest *manifest, struct dtype_sum *sums, size_t max)
{
    uint64_t index;
    size_t count = 0, at;

    for (index = 0; index < heft_manifest_tensors(manifest); index++) {
        struct heft_tensor tensor = {.size = sizeof(tensor)};

        heft_manifest_tensor(manifest, index, &tensor);
        for (at = 0; at < count && strcmp(sums[at].dtype, tensor.dtype) != 0; at++)
            continue;
        if (at == max)
            continue;
        if (at == count)
            sums[count++] = (struct dtype_sum){.dtype = tensor.dtype};
        sums[at].tensors++;
        sums[at].bytes += tensor.size_bytes;
    }
    return count;
}

static json_t *safe_string(const char *text, size_t size)
{
    json_t *made = json_stringn(text, size);

    return made ? made : json_string("(not UTF-8)");
}

static json_t *tensor_json(const struct heft_tensor *tensor)
{
    json_t *object = json_object(), *shape = json_array();
    uint32_t dim;

    for (dim = 0; dim < tensor->rank; dim++)
        (void)json_array_append_new(shape, json_integer((json_int_t)tensor->shape[dim]));
    (void)json_object_set_new(object, "name", safe_string(tensor->name, tensor->name_bytes));
    (void)json_object_set_new(object, "dtype", safe_string(tensor->dtype, strlen(tensor->dtype)));
    (void)json_object_set_new(object, "shape", shape);
    (void)json_object_set_new(object, "bytes", json_integer((json_int_t)tensor->size_bytes));
    (void)json_object_set_new(object, "file", safe_string(tensor->file, strlen(tensor->file)));
    (void)json_object_set_new(object, "offset", json_integer((json_int_t)tensor->offset_bytes));
    return object;
}

static void inspect_json(const struct heft_manifest *manifest, int with_tensors)
{
    struct heft_model_identity identity = HEFT_MODEL_IDENTITY_INIT;
    struct dtype_sum sums[64];
    json_t *object = json_object(), *files = json_array(), *tensors = json_array(), *dtypes = json_object();
    size_t count = sum_dtypes(manifest, sums, 64), at;
    uint64_t index;

    heft_manifest_identity(manifest, &identity);
    (void)json_object_set_new(object, "verdict", json_string("ACCEPT"));
    (void)json_object_set_new(object, "model", safe_string(identity.model, strlen(identity.model)));
    (void)json_object_set_new(object, "revision", safe_string(identity.revision, strlen(identity.revision)));
    (void)json_object_set_new(object, "tensor_count",
                              json_integer((json_int_t)heft_manifest_tensors(manifest)));
    (void)json_object_set_new(object, "bytes", json_integer((json_int_t)heft_manifest_bytes(manifest)));
    for (index = 0; index < heft_manifest_files(manifest); index++) {
        const char *name = heft_manifest_file_name(manifest, (uint32_t)index);

        (void)json_array_append_new(files, safe_string(name, strlen(name)));
    }
    (void)json_object_set_new(object, "files", files);
    for (at = 0; at < count; at++)
        (void)json_object_set_new(dtypes, sums[at].dtype,
                                  json_pack("{s:I, s:I}", "tensors", (json_int_t)sums[at].tensors, "bytes",
                                            (json_int_t)sums[at].bytes));
    (void)json_object_set_new(object, "dtypes", dtypes);
    for (index = 0; with_tensors && index < heft_manifest_tensors(manifest); index++) {
        struct heft_tensor tensor = {.size = sizeof(tensor)};

        heft_manifest_tensor(manifest, index, &tensor);
        (void)json_array_append_new(tensors, tensor_json(&tensor));
    }
    if (with_tensors)
        (void)json_object_set_new(object, "tensors", tensors);
    else
        json_decref(tensors);
    cli_print_json(object, 0);
    json_decref(object);
}

static void print_tensor(const struct heft_tensor *tensor, const char *digest)
{
    uint32_t dim;

    printf("  %-10s %10s  %s%s%s [", cli_safe(tensor->dtype), cli_bytes(tensor->size_bytes), digest,
           digest[0] ? "  " : "", cli_safe(tensor->name));
    for (dim = 0; dim < tensor->rank && dim < 16; dim++)
        printf("%s%" PRIu64, dim ? ", " : "", tensor->shape[dim]);
    printf("%s]  %s+%" PRIu64 "\n", tensor->rank > 16 ? ", ..." : "", cli_safe(tensor->file),
           tensor->offset_bytes);
}

static void inspect_plain(const struct heft_manifest *manifest, int with_tensors)
{
    struct heft_model_identity identity = HEFT_MODEL_IDENTITY_INIT;
    struct dtype_sum sums[64];
    size_t count = sum_dtypes(manifest, sums, 64), at;
    uint64_t index;

    heft_manifest_identity(manifest, &identity);
    printf("%s@%s\n  %" PRIu64 " tensors, %s in %u file%s; no defect found in the headers\n",
           cli_safe(identity.model), cli_safe(identity.revision), heft_manifest_tensors(manifest),
           cli_bytes(heft_manifest_bytes(manifest)), heft_manifest_files(manifest),
           heft_manifest_files(manifest) == 1 ? "" : "s");
    for (at = 0; at < count; at++)
        printf("  %-10s %8" PRIu64 " tensors  %s\n", cli_safe(sums[at].dtype), sums[at].tensors,
               cli_bytes(sums[at].bytes));
    for (index = 0; with_tensors && index < heft_manifest_tensors(manifest); index++) {
        struct heft_tensor tensor = {.size = sizeof(tensor)};

        heft_manifest_tensor(manifest, index, &tensor);
        print_tensor(&tensor, "");
    }
}

/* The verdict of a model that is refused is an answer too: JSON has it beside the error. */
static int refuse_model(struct cli *cli, int rc, const struct heft_error *error)
{
    int json = cli->json, code;

    if (json && heft_error_is_model(rc)) {
        json_t *object =
            json_pack("{s:s, s:s, s:{s:s, s:o}}", "verdict", "REJECT", "status", heft_error_name(rc), "error",
                      "code", heft_error_name(rc), "text", safe_string(error->text, strlen(error->text)));

        cli_print_json(object, 0);
        json_decref(object);
        cli->json = 0;
    }
    code = cli_fail(cli, rc, error);
    cli->json = json;
    return code;
}

int cli_inspect(struct cli *cli)
{
    struct heft_model_options options;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_manifest *manifest;
    int with_tensors = (int)heft_config_number(&cli->config, "tensors"), rc;

    cli_model_options(cli, &options);
    rc = heft_manifest_open(cli->arguments[0], &options, &manifest, &error);
    if (rc)
        return refuse_model(cli, rc, &error);
    if (cli->json)
        inspect_json(manifest, with_tensors);
    else
        inspect_plain(manifest, with_tensors);
    heft_manifest_close(manifest);
    return EXIT_DONE;
}

/* ---- verify ---- */

static void verify_json(const struct heft_verified *verified)
{
    json_t *object = json_object(), *files = json_array();
    char text[32];
    uint32_t index;

    for (index = 0; index < verified->file_count; index++) {
        const struct heft_verified_file *file = &verified->files[index];
        char hex[2 * HEFT_SHA256_BYTES + 1];

        cli_hex(file->sha256, sizeof(file->sha256), hex);
        (void)json_array_append_new(
            files, json_pack("{s:o, s:s, s:b, s:s}", "name", safe_string(file->name, strlen(file->name)),
                             "sha256", hex, "checked", file->checked, "checksum", file->checksum));
    }
    (void)snprintf(text, sizeof(text), "%016" PRIx64, verified->content_digest);
    (void)json_object_set_new(object, "verdict", json_string("ACCEPT"));
    (void)json_object_set_new(object, "bytes", json_integer((json_int_t)verified->bytes));
    (void)json_object_set_new(object, "content_digest", json_string(text));
    (void)json_object_set_new(object, "files", files);
    cli_print_json(object, 0);
    json_decref(object);
}

static void verify_plain(const struct heft_verified *verified, int with_tensors)
{
    uint32_t index;
    uint64_t tensor;

    for (index = 0; index < verified->file_count; index++) {
        const struct heft_verified_file *file = &verified->files[index];
        char hex[2 * HEFT_SHA256_BYTES + 1];

        cli_hex(file->sha256, sizeof(file->sha256), hex);
        printf("  sha256 %s  %s%s%s%s\n", hex, cli_safe(file->name), file->checked ? "  (the " : "",
               file->checked ? file->checksum : "",
               file->checked ? " is the one that the cache or the store tells)" : "");
    }
    for (tensor = 0; with_tensors && tensor < heft_manifest_tensors(verified->manifest); tensor++) {
        struct heft_tensor t = {.size = sizeof(t)};
        char digest[32];

        heft_manifest_tensor(verified->manifest, tensor, &t);
        (void)snprintf(digest, sizeof(digest), "%016" PRIx64, t.digest);
        print_tensor(&t, digest);
    }
    printf("read %s at %s; model digest %016" PRIx64 "\n", cli_bytes(verified->bytes),
           cli_rate(verified->seconds > 0 ? (double)verified->bytes / verified->seconds : 0),
           verified->content_digest);
}

int cli_verify(struct cli *cli)
{
    struct heft_model_options options;
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_verified *verified;
    int rc;

    cli_model_options(cli, &options);
    rc = heft_verify_model(cli->arguments[0], &options, &verified, &error);
    if (rc)
        return refuse_model(cli, rc, &error);
    if (cli->json)
        verify_json(verified);
    else
        verify_plain(verified, (int)heft_config_number(&cli->config, "tensors"));
    heft_verified_free(verified);
    return EXIT_DONE;
}

/* ---- ls ---- */

int cli_ls(struct cli *cli)
{
    struct heft_cache_list list;
    struct heft_error error = HEFT_ERROR_INIT;
    json_t *array = json_array();
    size_t index;
    int rc = heft_cache_scan(heft_config_text(&cli->config, "cache"), &list, &error);

    if (rc) {
        json_decref(array);
        return cli_fail(cli, rc, &error);
    }
    if (!cli->json && list.count == 0)
        printf(access(list.folder, F_OK) ? "no models: there is no folder %s (--cache names another)\n"
                                         : "no models in %s\n",
               cli_safe(list.folder));
    for (index = 0; index < list.count; index++) {
        const struct heft_cache_entry *entry = &list.entries[index];

        if (cli->json)
            (void)json_array_append_new(
                array, json_pack("{s:o, s:o, s:o, s:I, s:I}", "model",
                                 safe_string(entry->model, strlen(entry->model)), "revision",
                                 safe_string(entry->revision, strlen(entry->revision)), "refs",
                                 safe_string(entry->refs, strlen(entry->refs)), "files",
                                 (json_int_t)entry->files, "bytes", (json_int_t)entry->bytes));
        else
            printf("%-40s %.12s  %-12s %4" PRIu64 " files  %s\n", cli_safe(entry->model),
                   cli_safe(entry->revision), cli_safe(entry->refs), entry->files, cli_bytes(entry->bytes));
    }
    if (cli->json) {
        cli_print_json(array, 0);
    }
    json_decref(array);
    heft_cache_list_free(&list);
    return EXIT_DONE;
}
