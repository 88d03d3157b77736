/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load/: from every place that holds the bytes into memory. The executor (credits, stealing, verification),
 * loaded models, replicas, and the directory as an interface. No RPC here: control/ implements the directory.
 *
 * This header: a loaded model, its manifest and the memory behind it.
 */
#ifndef HEFT_LOAD_LOADED_H
#define HEFT_LOAD_LOADED_H

#include "format/manifest.h"
#include <heft/model.h>

/* One destination of a load: the model's own memory, or a range of the caller's. A model's manifest has one
 * file for each, in order. */
struct heft_model_part {
    struct heft_memory *memory;               /* owned; NULL for the caller's, and on a GPU */
    struct heft_device_memory *device_memory; /* owned; NULL but on a GPU */
    struct heft_landing *landing;             /* owned; NULL but for files that land in a folder */
    uint8_t *address;
    uint64_t size_bytes;
};

/* A few bytes that somebody owns. */
struct heft_text_blob {
    char *data; /* NULL: none */
    size_t size;
};

static inline void heft_blob_move(struct heft_text_blob *to, struct heft_text_blob *from)
{
    *to = *from;
    *from = (struct heft_text_blob){0};
}

#define HEFT_MODEL_PART_BYTES 64

struct heft_model {
    struct heft_manifest *manifest; /* tensor.file is a part; offset_bytes lies in it */
    struct heft_model_part *parts;
    uint32_t part_count;
    int device;                       /* of every part: a GPU; -1: host memory */
    struct heft_text_blob config;     /* the model's config.json, when it was seen: replicas pass it on */
    uint32_t users;                   /* atomic: replicas that serve it */
    char part[HEFT_MODEL_PART_BYTES]; /* which part of the model was loaded, "rank 1/4"; "": all of it */
};

/* Frees what a part owns. */
void heft_model_part_free(struct heft_model_part *part);
/* Takes over manifest and parts, also on failure. */
int heft_model_make(struct heft_manifest *manifest, struct heft_model_part *parts, uint32_t part_count,
                    int device, struct heft_model **model_out, struct heft_error *error);
/* The address of a tensor of the model's manifest. */
void *heft_model_address(const struct heft_model *model, const struct heft_manifest_tensor *tensor);
/* Block digests of the manifest's tensors, which lie at `addresses`, into manifest->digests, with `threads`
 * threads. */
int heft_digest_tensors(struct heft_manifest *manifest, const uint8_t *const *addresses, uint32_t threads,
                        struct heft_error *error);

#endif
