/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a model's files: heft_manifest_open with the descriptors kept, for the loader. */
#ifndef HEFT_LOAD_OPEN_H
#define HEFT_LOAD_OPEN_H

#include "format/manifest.h"
#include <heft/model.h>

struct heft_opened {
    struct heft_manifest *manifest; /* owned */
    int *fds;                       /* O_RDONLY, one for each file of the manifest, in its order */
    char **paths;                   /* likewise, for messages */
    uint32_t file_count;
    void *priv; /* what check_unchanged compares with */
};

/*
 * As heft_manifest_open, with the same errors; every sentence names the file. One descriptor a file stays
 * open: too few is NO_FDS with the limit that is in the way.
 */
int heft_open_model(const char *model, const struct heft_model_options *options,
                    struct heft_opened **opened_out, struct heft_error *error);
/* CHANGED, naming the file, when a file's size, modification time or identity is not what it was when opened.
 */
int heft_opened_check_unchanged(const struct heft_opened *opened, struct heft_error *error);
/* NULL is allowed; so is one whose manifest was taken out. */
void heft_opened_free(struct heft_opened *opened);

/* The cache folder: `cache`, or $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub. */
int heft_cache_folder(const char *cache, char *text_out, size_t size_bytes, struct heft_error *error);

#endif
