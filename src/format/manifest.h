/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format/: what bytes of files and messages mean. Pure functions over memory: no I/O, no clocks, no threads.
 *
 * A manifest says which tensors a holder has and where each lies. A safetensors file, a sharded model
 * directory and a live replica are all manifests; only `files` differ: for a directory they are its shards,
 * for a replica its regions.
 */
#ifndef HEFT_FORMAT_MANIFEST_H
#define HEFT_FORMAT_MANIFEST_H

#include "base/buf.h"
#include "base/map.h"
#include <heft/error.h>

#define HEFT_MANIFEST_VERSION 1u
#define HEFT_MANIFEST_MAX_TENSORS 4000000u
#define HEFT_MANIFEST_MAX_BYTES ((uint64_t)1 << 30)
#define HEFT_MANIFEST_MAX_FILES 1000000u
#define HEFT_MANIFEST_MAX_DTYPES 65536u
#define HEFT_TENSOR_MAX_RANK (65536u * 2u)
#define HEFT_DTYPE_MAX_BYTES 4096u
#define HEFT_IDENTITY_MAX_PAIRS 64u
#define HEFT_IDENTITY_MAX_BYTES 4096u /* of one string */

/* A free key and value of an identity; two manifests are the same bytes only if all pairs are equal. */
struct heft_identity_pair {
    const char *key;
    const char *value;
};

/* What may be mixed: only manifests whose identities agree in every field and whose tensor tables agree
 * exactly. */
struct heft_identity {
    const char *model;    /* "org/name", or a directory's name */
    const char *revision; /* immutable: a commit, or "fs-…" for a plain folder */
    const char *stage;    /* "raw" as published, or an engine's word ("processed") */
    const char *engine;   /* fingerprint of the engine that processed it; "" for raw */
    const char *rank;     /* coordinates of a shard, "tp=0/2,pp=0/1"; "" for the whole model */
    const struct heft_identity_pair *pairs; /* sorted by key */
    uint32_t pair_count;
};

struct heft_manifest_file {
    const char *name;    /* relative path; "" for a replica's region */
    uint64_t size_bytes; /* of the file or region */
    uint64_t region;     /* region id at the replica; 0 in a directory's manifest */
};

struct heft_manifest_tensor {
    const char *name; /* NUL-terminated for printing; may hold NULs itself: name_bytes counts */
    uint32_t name_bytes;
    uint32_t rank;
    const char *dtype;     /* "BF16"; unknown ones are kept as they are */
    uint32_t dtype_bits;   /* 0: unknown dtype, only whole-tensor copies are possible */
    uint32_t file;         /* index in files */
    const uint64_t *shape; /* of the global tensor, rank numbers */
    /* Which box of the global tensor is held: rank numbers each, or NULL for the whole tensor. */
    const uint64_t *box_start;
    const uint64_t *box_size;
    uint64_t offset_bytes; /* in the file or region; the held box lies there row-major, without gaps */
    uint64_t size_bytes;   /* of the held box */
    uint64_t first_block;  /* index of its first digest in `digests`; blocks are counted over the held box */
};

struct heft_manifest {
    struct heft_identity identity;
    struct heft_manifest_tensor *tensors; /* sorted by (file, offset, size, name) */
    uint64_t tensor_count;
    struct heft_manifest_file *files;
    uint32_t file_count;
    uint64_t total_bytes; /* sum of size_bytes */
    uint64_t block_count; /* sum of the tensors' blocks */
    uint64_t *digests;    /* block_count block digests, or NULL: not known */
    uint8_t *held;        /* one bit a block, lowest bit first: which blocks are there; NULL: all */
    struct heft_map by_name;
    void *arena; /* owns every string and array that the above point to */
};

/*
 * Building: begin, add files and tensors (strings and arrays are copied), finish. finish sorts, numbers the
 * blocks, refuses repeated names (EXISTS), sums without overflow, makes by_name. On any failure the manifest
 * must still be freed.
 */
struct heft_manifest *heft_manifest_new(void); /* NULL: out of memory */
void heft_manifest_free(struct heft_manifest *manifest);
int heft_manifest_set_identity(struct heft_manifest *manifest, const struct heft_identity *identity,
                               struct heft_error *error);
int heft_manifest_add_file(struct heft_manifest *manifest, const char *name, uint64_t size_bytes,
                           uint64_t region, uint32_t *index_out, struct heft_error *error);
/* Room for `count` tensors in all, for who knows how many will come. */
int heft_manifest_reserve(struct heft_manifest *manifest, uint64_t count, struct heft_error *error);
int heft_manifest_add_tensor(struct heft_manifest *manifest, const struct heft_manifest_tensor *tensor,
                             struct heft_error *error);
int heft_manifest_finish(struct heft_manifest *manifest, struct heft_error *error);
/* Allocates `digests` (zeroed) or `held` (all clear) in the arena. */
int heft_manifest_want_digests(struct heft_manifest *manifest, struct heft_error *error);
int heft_manifest_want_held(struct heft_manifest *manifest, struct heft_error *error);

/* The tensor's index, or UINT64_MAX. */
uint64_t heft_manifest_find(const struct heft_manifest *manifest, const char *name, size_t name_bytes);
/* The same, for who goes through tables of mostly the same order: it looks at index `guess` first. */
uint64_t heft_manifest_find_near(const struct heft_manifest *manifest, uint64_t guess, const char *name,
                                 size_t name_bytes);
/* True when every block of [first, first+count) is held. */
int heft_manifest_holds(const struct heft_manifest *manifest, uint64_t first_block, uint64_t count);
/* The tensor that owns the block: the last one whose first_block is not above it. */
uint64_t heft_manifest_tensor_of_block(const struct heft_manifest *manifest, uint64_t block);
/*
 * Two digests that put the names in order each time they are asked for, of a finished manifest: over names,
 * dtypes, shapes and boxes, wherever bytes lie; and over all tensor digests, 0 when those are not known.
 * XXH3-64; 0 out of memory too.
 */
uint64_t heft_manifest_table_digest(const struct heft_manifest *manifest);
uint64_t heft_manifest_content_digest(const struct heft_manifest *manifest);

/* Version 1 bytes: little-endian, length-capped, closed by an XXH3-64 of all before. */
int heft_manifest_encode(const struct heft_manifest *manifest, struct heft_buf *buf);
int heft_manifest_decode(const void *data, size_t size, struct heft_manifest **manifest_out,
                         struct heft_error *error);

/*
 * 0 when `right` may supply bytes for `left`: identities equal, and every tensor of either is in the other
 * with equal dtype and global shape (boxes may differ: a shard holds less). INCOMPATIBLE with the first
 * differences named.
 */
int heft_manifest_compare(const struct heft_manifest *left, const struct heft_manifest *right,
                          struct heft_error *error);
/* Identities alone; the error names the field and both values. */
int heft_identity_compare(const struct heft_identity *left, const struct heft_identity *right,
                          struct heft_error *error);

#endif
