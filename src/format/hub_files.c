/* SPDX-License-Identifier: Apache-2.0 */
#include "format/hub_files.h"
#include "base/error.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILES 1000000u

static int is_hex(const char *text, size_t digits)
{
    return text && strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

static int take_file(const json_t *file, struct heft_s3_entry *entry)
{
    const char *name = json_string_value(json_object_get(file, "rfilename"));
    const json_t *lfs = json_object_get(file, "lfs"), *size = json_object_get(lfs, "size");
    const char *sha256 = json_string_value(json_object_get(lfs, "sha256"));
    const char *blob = json_string_value(json_object_get(file, "blobId"));

    if (!name || !name[0] || strlen(name) > HEFT_S3_KEY_MAX_BYTES)
        return HEFT_ERR_PROTOCOL;
    if (!size)
        size = json_object_get(file, "size");
    if (size && !json_is_null(size) && (!json_is_integer(size) || json_integer_value(size) < 0))
        return HEFT_ERR_PROTOCOL;
    entry->size_bytes = (uint64_t)json_integer_value(size);
    entry->key = strdup(name);
    entry->etag = strdup(is_hex(sha256, 64) ? sha256 : is_hex(blob, 40) ? blob : "");
    return entry->key && entry->etag ? HEFT_OK : HEFT_ERR_NO_MEMORY;
}

static int take_files(const json_t *files, struct heft_s3_page *page)
{
    size_t index, count = json_array_size(files);

    page->entries = calloc(count ? count : 1, sizeof(*page->entries));
    if (!page->entries)
        return HEFT_ERR_NO_MEMORY;
    page->entry_capacity = count;
    for (index = 0; index < count; index++) {
        struct heft_s3_entry *entry = &page->entries[page->entry_count++];
        int rc = take_file(json_array_get(files, index), entry);

        if (rc)
            return rc;
    }
    return HEFT_OK;
}

int heft_hub_files_parse(const void *json, size_t size, char commit_out[64], struct heft_s3_page *page_out,
                         struct heft_error *error)
{
    struct heft_s3_page page = {0};
    json_error_t why = {0};
    json_t *root = json_loadb(json, size, 0, &why);
    const char *commit = json_string_value(json_object_get(root, "sha"));
    const json_t *files = json_object_get(root, "siblings");
    int rc = HEFT_OK;

    if (!root)
        rc = heft_error_set(error, HEFT_ERR_PROTOCOL, "the hub's answer is no JSON: %.120s (line %d)",
                            why.text, why.line);
    else if (!is_hex(commit, 40) || !json_is_array(files))
        rc = heft_error_set(error, HEFT_ERR_PROTOCOL, "the hub's answer names no commit or no files");
    else if (json_array_size(files) > MAX_FILES)
        rc = heft_error_set(error, HEFT_ERR_TOO_MANY, "the hub's answer names more than %u files", MAX_FILES);
    if (!rc && (rc = take_files(files, &page)) != 0)
        rc = heft_error_set(error, rc, "the hub's answer: %s",
                            rc == HEFT_ERR_PROTOCOL ? "a file has no name, or a size that is none"
                                                    : "out of memory");
    if (rc) {
        heft_s3_page_free(&page);
    } else {
        memcpy(commit_out, commit, 41);
        *page_out = page;
    }
    json_decref(root);
    return rc;
}
