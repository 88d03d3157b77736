/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model folders: which files of a listing are the model. Pure: the caller lists and reads, this decides.
 */
#ifndef HEFT_FORMAT_MODELDIR_H
#define HEFT_FORMAT_MODELDIR_H

#include "format/manifest.h"
#include "format/safetensors.h"

enum heft_entry_kind {
    HEFT_ENTRY_FILE,
    HEFT_ENTRY_DIRECTORY,
    HEFT_ENTRY_FIFO,
    HEFT_ENTRY_OTHER,
    HEFT_ENTRY_BROKEN_LINK
};

struct heft_dir_entry {
    const char *name;          /* relative to the folder; of subfolders only what the index names */
    enum heft_entry_kind kind; /* after following links */
    uint64_t size_bytes;
};

#define HEFT_INDEX_MAX_BYTES ((uint64_t)256 << 20)

/* "weight_map" of model.safetensors.index.json. */
struct heft_shard_index {
    char **tensor_names; /* sorted by shard, within one as in the file */
    uint32_t *tensor_name_bytes;
    uint32_t *tensor_shards; /* index in shards */
    uint64_t tensor_count;
    char **shards; /* sorted, safe relative paths */
    uint32_t shard_count;
    uint64_t total_size; /* metadata.total_size: a hint, wrong in the wild; 0: absent */
    void *arena;
};
/* Errors: INDEX_JSON (a name that stands twice included), PATH_UNSAFE (names the path), LFS_POINTER,
 * TOO_LARGE. */
int heft_index_parse(const void *json, size_t size, struct heft_shard_index **index_out,
                     struct heft_error *error);
void heft_index_free(struct heft_shard_index *index);
/* The tensors of one shard are those from *first_out to before *end_out: none when the index doesn't know it.
 */
void heft_index_shard(const struct heft_shard_index *index, const char *shard, uint64_t *first_out,
                      uint64_t *end_out);

/* 0 when `path` is relative, stays inside, and has no empty, ".", ".." parts, NUL, backslash or control
 * characters. */
int heft_path_check(const char *path, size_t path_bytes, struct heft_error *error);

/* The weight files of a folder, in order, chosen from its listing and index (NULL: none there). */
struct heft_dir_choice {
    const char **files; /* point into entries or index */
    uint32_t file_count;
    int by_index;
    char
        note[256]; /* what was left aside: "consolidated.safetensors ignored: the index lists other shards" */
    void *arena;
};
/*
 * Rules: an index decides alone (of the shards that its own numbering counts, none may lie there unnamed:
 * SHARD_UNINDEXED); without one a single *.safetensors (not consolidated*, not adapter*) is the model, or a
 * complete model-XXXXX-of-YYYYY set; else AMBIGUOUS / SHARD_MISSING (with the names and the gap in the
 * numbering) / NO_WEIGHTS / PICKLE / NOT_A_FILE.
 */
int heft_dir_choose(const struct heft_dir_entry *entries, size_t entry_count,
                    const struct heft_shard_index *index, struct heft_dir_choice **choice_out,
                    struct heft_error *error);
/*
 * What is there, whatever the index says: as without an index, but a set may have gaps. Only for a caller who
 * then proves with heft_index_covered that no tensor is missing. `index` may be NULL: then gaps are refused.
 */
int heft_dir_choose_present(const struct heft_dir_entry *entries, size_t entry_count,
                            const struct heft_shard_index *index, struct heft_dir_choice **choice_out,
                            struct heft_error *error);
void heft_dir_choice_free(struct heft_dir_choice *choice);
/* 1 for names that pickle checkpoints have: "pytorch_model.bin", "x.pt". */
int heft_pickle_name(const char *name);
/* 0 when the manifest has every tensor that the index names, in whatever file; else TENSOR_MISSING. */
int heft_index_covered(const struct heft_shard_index *index, const struct heft_manifest *manifest,
                       struct heft_error *error);

/*
 * One manifest from the parsed headers of the chosen files. With an index: a tensor counts only in the shard
 * that the index assigns (others are ignored and counted in ignored_out); assigned but absent is
 * TENSOR_MISSING; a tensor of a shard that the index does not know at all is ignored too. Without: a name in
 * two files is DUPLICATE_TENSOR.
 */
struct heft_dir_shard {
    const char *name;
    uint64_t size_bytes;
    const struct heft_st_header *header;
};
int heft_dir_manifest(const struct heft_dir_shard *shards, uint32_t shard_count,
                      const struct heft_shard_index *index, const struct heft_identity *identity,
                      struct heft_manifest **manifest_out, uint64_t *ignored_out, struct heft_error *error);

/*
 * The files themselves, whatever they are: each is a tensor of bytes named as the file, of the stage
 * HEFT_FILES_STAGE, which the caller gives in `identity`. No headers are looked at. PATH_UNSAFE, EXISTS.
 */
#define HEFT_FILES_STAGE "files"
int heft_dir_files_manifest(const struct heft_dir_shard *files, uint32_t file_count,
                            const struct heft_identity *identity, struct heft_manifest **manifest_out,
                            struct heft_error *error);

/* ---- model references (the command line's MODEL) ---- */

enum heft_ref_kind { HEFT_REF_PATH, HEFT_REF_HUB, HEFT_REF_S3, HEFT_REF_GCS, HEFT_REF_AZURE, HEFT_REF_HTTP };

struct heft_ref {
    enum heft_ref_kind kind;
    char name[512];     /* "org/name", a path, "bucket/prefix", or the whole URL */
    char revision[256]; /* "" when not given */
    int from_hub;       /* HUB: of the hub itself, not of this machine's cache */
};
/*
 * "org/name[@rev]", "hf:org/name[@rev]", "hf://org/name[@rev]", "s3://…", "gs://…", "az://…", "http(s)://…",
 * "/path", "./path",
 * "../path", ".". An unknown scheme, an empty text, or spaces anywhere but inside a path are errors
 * (INVALID), never a guess. A path's "@" is part of the path.
 */
int heft_ref_parse(const char *text, struct heft_ref *ref_out, struct heft_error *error);
/* "models--org--name" of a hub name, for the cache layout models--org--name/{blobs,refs,snapshots}. */
int heft_hub_folder(const char *name, char *text_out, size_t size_bytes);

#endif
