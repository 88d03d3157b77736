/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in the model cache (models--org--name/{blobs,refs,snapshots}). */
#ifndef HEFT_LOAD_CACHE_H
#define HEFT_LOAD_CACHE_H

#include <heft/error.h>

struct heft_cache_entry { /* one snapshot */
    char *model;          /* "org/name" */
    char *revision;       /* commit */
    char *refs;           /* "main, v1": names that point to it */
    uint64_t files, bytes;
};

struct heft_cache_list {
    char folder[4096];
    struct heft_cache_entry *entries; /* sorted by model, revision */
    size_t count;
};

/* cache NULL: the default place (heft_cache_folder). A cache that is not there is an empty list. */
int heft_cache_scan(const char *cache, struct heft_cache_list *list_out, struct heft_error *error);
void heft_cache_list_free(struct heft_cache_list *list);

/*
 * The folder of what heft keeps for itself: $XDG_CACHE_HOME/heft, ~/.cache/heft; with `below`, a folder in
 * it. make: it is made when it is not there, for its owner alone. NOT_FOUND: the environment names none;
 * TOO_LARGE; else why it can't be made.
 */
int heft_own_folder(const char *below, int make, char *text_out, size_t size_bytes);

#endif
