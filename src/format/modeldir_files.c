/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of any files as a manifest: each file is one tensor of bytes that has the file's name. */
#include "base/error.h"
#include "format/modeldir.h"

#include <string.h>

int heft_dir_files_manifest(const struct heft_dir_shard *files, uint32_t file_count,
                            const struct heft_identity *identity, struct heft_manifest **manifest_out,
                            struct heft_error *error)
{
    struct heft_manifest *manifest = heft_manifest_new();
    uint32_t index, file;
    int rc;

    if (!manifest)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while listing files");
    rc = heft_manifest_set_identity(manifest, identity, error);
    if (!rc)
        rc = heft_manifest_reserve(manifest, file_count, error);
    for (index = 0; !rc && index < file_count; index++) {
        struct heft_manifest_tensor tensor = {.name = files[index].name,
                                              .name_bytes = (uint32_t)strlen(files[index].name),
                                              .rank = 1,
                                              .dtype = "U8",
                                              .dtype_bits = 8,
                                              .shape = &files[index].size_bytes,
                                              .size_bytes = files[index].size_bytes};

        rc = heft_path_check(files[index].name, tensor.name_bytes, error);
        if (!rc)
            rc =
                heft_manifest_add_file(manifest, files[index].name, files[index].size_bytes, 0, &file, error);
        tensor.file = file;
        if (!rc)
            rc = heft_manifest_add_tensor(manifest, &tensor, error);
    }
    if (!rc)
        rc = heft_manifest_finish(manifest, error);
    if (rc) {
        heft_manifest_free(manifest);
        return rc;
    }
    *manifest_out = manifest;
    return HEFT_OK;
}
