/* SPDX-License-Identifier: Apache-2.0 */
/* Where a model's files lie: a reference resolved to a folder, or to one file, of this machine. */
#ifndef HEFT_LOAD_OPEN_PLACE_H
#define HEFT_LOAD_OPEN_PLACE_H

#include <heft/model.h>
#include <sys/stat.h>

struct heft_place {
    int root_fd;    /* the folder that is listed; -1 for a single file */
    int blobs_fd;   /* the cache's blobs, where a snapshot's links may lead; -1: none */
    char *shown;    /* the folder's or file's path, for messages */
    char *model;    /* for the identity: hub name, or base name */
    char *revision; /* for the identity: commit, or NULL: made from the files */
    char *single;   /* base name of a single file, or NULL */
};

struct heft_ref;

/* heft_ref_parse; a refusal asks whether the file or folder of that name here is meant, and guesses nothing.
 */
int heft_place_parse(const char *model, struct heft_ref *ref_out, struct heft_error *error);
/* Follows a reference as far as a folder or file. Errors name what was looked for, and where. */
int heft_place_find(const char *model, const struct heft_model_options *options, struct heft_place *place_out,
                    struct heft_error *error);
void heft_place_close(struct heft_place *place);
/* A regular file of the place: `name` was checked by heft_path_check. No name in the sentence. */
int heft_place_open(const struct heft_place *place, const char *name, int *fd_out, struct stat *stat_out,
                    struct heft_error *error);
/* 0, or a negative errno. Links are followed as heft_place_open would. */
int heft_place_stat(const struct heft_place *place, const char *name, struct stat *stat_out);

/* open_hub.c: "org/name" in the cache layout models--org--name/{blobs,refs,snapshots}. */
int heft_place_find_hub(const char *name, const char *revision, const char *cache, struct heft_place *place,
                        struct heft_error *error);
/* When the folder is a snapshot of such a cache: takes its blobs, name and commit into the place. */
int heft_place_adopt_snapshot(const char *real_path, struct heft_place *place, struct heft_error *error);
/* "/a/b": a new string; NULL: out of memory. */
char *heft_place_join(const char *folder, const char *name);

#endif
