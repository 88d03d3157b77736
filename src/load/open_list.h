/* SPDX-License-Identifier: Apache-2.0 */
/* A folder's listing with its shard index, and the choice of files that follows from both. */
#ifndef HEFT_LOAD_OPEN_LIST_H
#define HEFT_LOAD_OPEN_LIST_H

#include "format/modeldir.h"
#include "load/open_place.h"

struct heft_listing {
    struct heft_dir_entry *entries;
    size_t count, capacity;
    struct heft_shard_index *index; /* NULL: none there */
    struct heft_dir_choice *choice; /* points into the two above */
    int index_ignored;              /* the choice was made whatever the index says */
};

/* On failure the listing is empty. */
int heft_listing_make(const struct heft_place *place, const struct heft_model_options *options,
                      struct heft_listing *listing_out, struct heft_error *error);
void heft_listing_free(struct heft_listing *listing);
/* Every file beneath the place, by name; no choice is made. NOT_FOUND when there is none. */
int heft_listing_files(const struct heft_place *place, struct heft_listing *listing_out,
                       struct heft_error *error);
void heft_listing_sort(struct heft_listing *listing);
/* The names of all its entries (free the array, not the names). */
int heft_listing_names(const struct heft_listing *listing, const char ***names_out, uint32_t *count_out,
                       struct heft_error *error);
/* Parts of it, for listings that do not come from a folder of this machine. The name is copied. */
int heft_listing_add(struct heft_listing *listing, const char *name, enum heft_entry_kind kind,
                     uint64_t size_bytes, struct heft_error *error);
/* The index that counts: model.safetensors.index.json, else the only one of another name; NULL: none. */
int heft_listing_find_index(const struct heft_listing *listing, const char **name_out,
                            struct heft_error *error);
/* Reads all of [offset, offset + size) unless the file ends before; returns the bytes read or a negative
 * errno. */
int64_t heft_read_at(int fd, void *data, uint64_t size, uint64_t offset_bytes);

#endif
