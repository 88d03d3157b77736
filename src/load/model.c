/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public view of a manifest. Structs are filled up to the size that the caller's header gave them, so
 * that programs built against an older header go on working.
 */
#include "base/digest.h"
#include "base/error.h"
#include "format/manifest.h"
#include "load/open.h"

#include <string.h>

int heft_manifest_open(const char *model, const struct heft_model_options *options,
                       struct heft_manifest **manifest_out, struct heft_error *error)
{
    struct heft_opened *opened;
    int rc = heft_open_model(model, options, &opened, error);

    if (rc)
        return rc;
    *manifest_out = opened->manifest;
    opened->manifest = NULL;
    heft_opened_free(opened);
    return HEFT_OK;
}

void heft_manifest_close(struct heft_manifest *manifest)
{
    heft_manifest_free(manifest);
}

uint64_t heft_manifest_tensors(const struct heft_manifest *manifest)
{
    return manifest->tensor_count;
}

uint64_t heft_manifest_bytes(const struct heft_manifest *manifest)
{
    return manifest->total_bytes;
}

uint32_t heft_manifest_files(const struct heft_manifest *manifest)
{
    return manifest->file_count;
}

const char *heft_manifest_file_name(const struct heft_manifest *manifest, uint32_t index)
{
    HEFT_ASSERT(index < manifest->file_count);
    return manifest->files[index].name;
}

void heft_manifest_tensor(const struct heft_manifest *manifest, uint64_t index,
                          struct heft_tensor *tensor_out)
{
    struct heft_tensor tensor = {.size = sizeof(tensor)};
    const struct heft_manifest_tensor *from;

    HEFT_ASSERT(index < manifest->tensor_count);
    from = &manifest->tensors[index];
    tensor.name = from->name;
    tensor.name_bytes = from->name_bytes;
    tensor.dtype = from->dtype;
    tensor.dtype_bits = from->dtype_bits;
    tensor.rank = from->rank;
    tensor.shape = from->shape;
    tensor.box_start = from->box_start;
    tensor.box_size = from->box_size;
    tensor.size_bytes = from->size_bytes;
    tensor.file = manifest->files[from->file].name;
    tensor.offset_bytes = from->offset_bytes;
    if (manifest->digests &&
        heft_manifest_holds(manifest, from->first_block, heft_block_count(from->size_bytes))) {
        tensor.digest = heft_tensor_digest(manifest->digests + from->first_block, from->size_bytes);
        tensor.has_digest = 1;
    }
    tensor.size = tensor_out->size < sizeof(tensor) ? tensor_out->size : sizeof(tensor);
    memcpy(tensor_out, &tensor, tensor.size);
}

int heft_manifest_lookup(const struct heft_manifest *manifest, const char *name,
                         struct heft_tensor *tensor_out)
{
    uint64_t index = heft_manifest_find(manifest, name, strlen(name));

    if (index == UINT64_MAX)
        return HEFT_ERR_NOT_FOUND;
    heft_manifest_tensor(manifest, index, tensor_out);
    return HEFT_OK;
}

void heft_manifest_identity(const struct heft_manifest *manifest, struct heft_model_identity *identity_out)
{
    struct heft_model_identity identity = {.size = sizeof(identity)};

    identity.model = manifest->identity.model;
    identity.revision = manifest->identity.revision;
    identity.stage = manifest->identity.stage;
    identity.engine = manifest->identity.engine;
    identity.rank = manifest->identity.rank;
    identity.pair_count = manifest->identity.pair_count;
    identity.size = identity_out->size < sizeof(identity) ? identity_out->size : sizeof(identity);
    memcpy(identity_out, &identity, identity.size);
}
