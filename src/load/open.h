/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a model's files: heft_manifest_open with the descriptors kept, for the loader. */
#ifndef HEFT_LOAD_OPEN_H
#define HEFT_LOAD_OPEN_H

#include "base/checksum.h"
#include "format/manifest.h"
#include <heft/model.h>

#define HEFT_HEADS_MAX_BYTES ((uint64_t)64 << 20) /* kept of all objects together */

/* What opening an object told beside its header. */
struct heft_object_seen {
    struct heft_checksum checksum; /* of the whole object, when its store told it; else NONE */
    int may_tell;                  /* none was told, but the store may tell one when it is asked */
    uint8_t *head;                 /* what stands before its tensors; NULL: not kept */
    uint64_t head_bytes;
};

struct heft_opened {
    struct heft_manifest *manifest; /* owned */
    int *fds;        /* O_RDONLY, one for each file of the manifest, in its order; NULL for objects */
    char **paths;    /* likewise, for messages */
    char **urls;     /* of objects, likewise, with the credentials that they hold; NULL for files */
    char **versions; /* of objects: what each was when opened */
    struct heft_object_seen *seen; /* of objects, likewise; NULL for files */
    uint32_t file_count, capacity;
    void *priv; /* what check_unchanged compares with */
};

/*
 * As heft_manifest_open, with the same errors; every sentence names the file. One descriptor a file stays
 * open: too few is NO_FDS with the limit that is in the way.
 */
int heft_open_model(const char *model, const struct heft_model_options *options,
                    struct heft_opened **opened_out, struct heft_error *error);
/* The same that ends soon after end_ns (0: never), and soon after *cancel (atomic) is not 0 (NULL: never). */
int heft_open_model_within(const char *model, const struct heft_model_options *options, uint64_t end_ns,
                           const uint32_t *cancel, struct heft_opened **opened_out, struct heft_error *error);
/* Objects need no look: every answer was checked against the version. CHANGED, naming the file, when a file's
 * size, modification time or identity is not what it was when opened.
 */
int heft_opened_check_unchanged(const struct heft_opened *opened, struct heft_error *error);
/*
 * config.json beside the model's files: malloc'ed, at most 1 MiB; NULL and 0 when there is none. Fails only
 * when it is there and can't be read.
 */
int heft_open_config(const char *model, const struct heft_model_options *options, uint64_t end_ns,
                     const uint32_t *cancel, char **text_out, size_t *size_out, struct heft_error *error);
/* NULL is allowed; so is one whose manifest was taken out. */
void heft_opened_free(struct heft_opened *opened);

/* Logs what is odd in a header that was accepted. */
struct heft_st_header;
void heft_open_warn(const char *path, const struct heft_st_header *header);

/* The cache folder: `cache`, or $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub. */
int heft_cache_folder(const char *cache, char *text_out, size_t size_bytes, struct heft_error *error);

#endif
