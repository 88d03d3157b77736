/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models: what tensors there are and where they lie. A manifest describes a folder of weight files
 * (safetensors, GGUF), or memory that some engine already holds; a model is a loaded manifest with its
 * memory.
 *
 * Threads: a manifest or model is constant once made; any number of threads may read it.
 */
#ifndef HEFT_MODEL_H
#define HEFT_MODEL_H

#include <heft/error.h>
#include <heft/space.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct heft_manifest; /* tensor names -> dtype, shape, box, place, digests */
struct heft_model;    /* a loaded model: its manifest and the memory that holds it */

/* What may be mixed: two holders have the same bytes only if all of these are equal. Strings; NULL counts as
 * "". */
struct heft_model_identity {
    size_t size;
    const char *model;       /* "org/name" */
    const char *revision;    /* immutable */
    const char *stage;       /* "raw" (the default), or an engine's word for its processed form */
    const char *engine;      /* fingerprint of the engine that processed it */
    const char *rank;        /* "tp=0/2,pp=0/1"; "" for a whole model */
    const char *const *keys; /* free pairs: `pair_count` keys and values */
    const char *const *values;
    uint32_t pair_count;
};
#define HEFT_MODEL_IDENTITY_INIT                                   \
    {                                                              \
        sizeof(struct heft_model_identity), 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/* One tensor of a manifest or model; pointers live as long as it does. */
struct heft_tensor {
    size_t size;
    const char *name; /* NUL-terminated; name_bytes counts when it holds NULs itself */
    uint64_t name_bytes;
    const char *dtype;
    uint32_t dtype_bits; /* 0: unknown to heft, moved all the same */
    uint32_t rank;
    const uint64_t *shape;     /* of the global tensor */
    const uint64_t *box_start; /* NULL: held whole */
    const uint64_t *box_size;
    uint64_t size_bytes;   /* of what is held */
    const char *file;      /* shard's name, "" in memory */
    uint64_t offset_bytes; /* in the shard, or in the model's memory */
    void *address;         /* in memory: its first byte (a device pointer on a GPU); else NULL */
    uint64_t digest;       /* over its blocks (docs/manifest.md); valid if has_digest */
    int has_digest;
};

struct heft_model_options {
    size_t size;
    const char *revision; /* overrides the one in the reference */
    const char
        *cache; /* Hugging Face cache folder; NULL: $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub */
    uint64_t header_limit_bytes; /* 0: the reference's 100,000,000 */
    int lenient;                 /* accept trailing bytes and unknown dtypes, with a warning in the log */
    int ignore_index;            /* take the shards that are there, whatever the index says */
    /*
     * The model is the files themselves, weights or not, those of subfolders too: each is a tensor of U8 that
     * has the file's relative path as its name; the identity's stage is "files". Nothing in them is looked
     * at.
     */
    int as_files;
};
#define HEFT_MODEL_OPTIONS_INIT                             \
    {                                                       \
        sizeof(struct heft_model_options), 0, 0, 0, 0, 0, 0 \
    }

/*
 * Opens "org/name[@revision]" in the cache, "/path" or "./path" (a folder, or one .safetensors or .gguf
 * file), or a model behind a URL (docs/object.md): reads the headers and checks everything that can be
 * checked without reading the data. Errors: the model codes 350..399 with file and tensor, NOT_FOUND,
 * PERMISSION, and of URLs DENIED, UNAVAILABLE, PROTOCOL.
 */
int heft_manifest_open(const char *model, const struct heft_model_options *options,
                       struct heft_manifest **manifest_out, struct heft_error *error);
void heft_manifest_close(struct heft_manifest *manifest);
uint64_t heft_manifest_tensors(const struct heft_manifest *manifest);
uint64_t heft_manifest_bytes(const struct heft_manifest *manifest);
uint32_t heft_manifest_files(const struct heft_manifest *manifest);
const char *heft_manifest_file_name(const struct heft_manifest *manifest, uint32_t index);
/* index below heft_manifest_tensors; the order is that of the data. */
void heft_manifest_tensor(const struct heft_manifest *manifest, uint64_t index,
                          struct heft_tensor *tensor_out);
int heft_manifest_lookup(const struct heft_manifest *manifest, const char *name,
                         struct heft_tensor *tensor_out);
/* Pointers live as long as the manifest. keys and values stay NULL; pair_count counts them. */
void heft_manifest_identity(const struct heft_manifest *manifest, struct heft_model_identity *identity_out);

/* The manifest of a loaded model; lives as long as the model. */
const struct heft_manifest *heft_model_manifest(const struct heft_model *model);
/* A tensor with its address. NOT_FOUND when there is none of that name. */
int heft_model_lookup(const struct heft_model *model, const char *name, struct heft_tensor *tensor_out);
void heft_model_tensor(const struct heft_model *model, uint64_t index, struct heft_tensor *tensor_out);
/* BUSY while a replica serves it. */
int heft_model_free(struct heft_model *model, struct heft_error *error);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
