/* SPDX-License-Identifier: Apache-2.0 */
#include "load/loaded.h"
#include "base/digest.h"
#include "base/error.h"
#include "load/landing.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void heft_model_part_free(struct heft_model_part *part)
{
    heft_memory_free(part->memory);
    heft_device_memory_free(part->device_memory);
    heft_landing_free(part->landing);
}

int heft_model_make(struct heft_manifest *manifest, struct heft_model_part *parts, uint32_t part_count,
                    int device, struct heft_model **model_out, struct heft_error *error)
{
    struct heft_model *model = calloc(1, sizeof(*model));
    uint32_t index;

    if (!model) {
        for (index = 0; index < part_count; index++)
            heft_model_part_free(&parts[index]);
        free(parts);
        heft_manifest_free(manifest);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making the model");
    }
    model->manifest = manifest;
    model->parts = parts;
    model->part_count = part_count;
    model->device = device;
    *model_out = model;
    return HEFT_OK;
}

void *heft_model_address(const struct heft_model *model, const struct heft_manifest_tensor *tensor)
{
    if (tensor->size_bytes == 0 || tensor->file >= model->part_count)
        return NULL;
    return model->parts[tensor->file].address + tensor->offset_bytes;
}

int heft_model_free(struct heft_model *model, struct heft_error *error)
{
    uint32_t index;

    if (!model)
        return HEFT_OK;
    if (__atomic_load_n(&model->users, __ATOMIC_ACQUIRE) > 0)
        return heft_error_set(error, HEFT_ERR_BUSY, "the model is served by a replica: close that first");
    for (index = 0; index < model->part_count; index++)
        heft_model_part_free(&model->parts[index]);
    free(model->parts);
    heft_manifest_free(model->manifest);
    free(model->config.data);
    free(model);
    return HEFT_OK;
}

const struct heft_manifest *heft_model_manifest(const struct heft_model *model)
{
    return model->manifest;
}

void heft_model_tensor(const struct heft_model *model, uint64_t index, struct heft_tensor *tensor_out)
{
    struct heft_tensor tensor = {.size = sizeof(tensor)};

    heft_manifest_tensor(model->manifest, index, &tensor);
    tensor.address = heft_model_address(model, &model->manifest->tensors[index]);
    tensor.size = tensor_out->size < sizeof(tensor) ? tensor_out->size : sizeof(tensor);
    memcpy(tensor_out, &tensor, tensor.size);
}

int heft_model_lookup(const struct heft_model *model, const char *name, struct heft_tensor *tensor_out)
{
    uint64_t index = heft_manifest_find(model->manifest, name, strlen(name));

    if (index == UINT64_MAX)
        return HEFT_ERR_NOT_FOUND;
    heft_model_tensor(model, index, tensor_out);
    return HEFT_OK;
}

/* ---- digests of what lies in memory ---- */

struct digest_work {
    struct heft_manifest *manifest;
    const uint8_t *const *addresses;
    uint64_t next_block; /* atomic: the next batch of blocks to do */
};

#define BLOCKS_PER_BATCH 64u

static void *digest_thread(void *argument)
{
    struct digest_work *work = argument;
    struct heft_manifest *manifest = work->manifest;

    for (;;) {
        uint64_t first = __atomic_fetch_add(&work->next_block, BLOCKS_PER_BATCH, __ATOMIC_RELAXED);
        uint64_t block, tensor;

        if (first >= manifest->block_count)
            return NULL;
        tensor = heft_manifest_tensor_of_block(manifest, first);
        for (block = first; block < first + BLOCKS_PER_BATCH && block < manifest->block_count; block++) {
            const struct heft_manifest_tensor *t = &manifest->tensors[tensor];
            uint64_t at, size;

            while (block - t->first_block >= heft_block_count(t->size_bytes))
                t = &manifest->tensors[++tensor];
            at = (block - t->first_block) * HEFT_BLOCK_BYTES;
            size = t->size_bytes - at < HEFT_BLOCK_BYTES ? t->size_bytes - at : HEFT_BLOCK_BYTES;
            manifest->digests[block] = heft_hash64(work->addresses[tensor] + at, (size_t)size, 0);
        }
    }
}

int heft_digest_tensors(struct heft_manifest *manifest, const uint8_t *const *addresses, uint32_t threads,
                        struct heft_error *error)
{
    struct digest_work work = {.manifest = manifest, .addresses = addresses};
    pthread_t others[16];
    uint32_t started = 0, index;
    int rc = heft_manifest_want_digests(manifest, error);

    if (rc)
        return rc;
    /* The calling thread works too; helpers only save time, so that failing to start one is no error. */
    while (started + 1 < threads && started < 16 &&
           manifest->block_count > (uint64_t)BLOCKS_PER_BATCH * (started + 1)) {
        if (pthread_create(&others[started], NULL, digest_thread, &work))
            break;
        started++;
    }
    (void)digest_thread(&work);
    for (index = 0; index < started; index++)
        (void)pthread_join(others[index], NULL);
    return HEFT_OK;
}
