/* SPDX-License-Identifier: Apache-2.0 */
/* Shard names, "model-00003-of-00030.safetensors", and sentences about those that are missing. */
#ifndef HEFT_FORMAT_MODELDIR_SHARDS_H
#define HEFT_FORMAT_MODELDIR_SHARDS_H

#include <stddef.h>
#include <stdint.h>

struct heft_shard_name {
    const char *name;
    size_t prefix_bytes; /* "model-" */
    uint64_t number, total;
    int number_digits, total_digits;
    const char *ending; /* ".safetensors" or ".gguf"; "" when not numbered */
};

/* 1 when the name is numbered; else 0, and the whole name is the prefix. */
int heft_shard_name_parse(const char *name, struct heft_shard_name *shard_out);
/* ".safetensors" or ".gguf" when the name ends so, else NULL. */
const char *heft_shard_ending(const char *name);
/* Of one set: the same prefix, total and ending. */
int heft_shard_same_set(const struct heft_shard_name *left, const struct heft_shard_name *right);
/* Orders by prefix, total, number. */
int heft_shard_name_compare(const struct heft_shard_name *left, const struct heft_shard_name *right);

/* A list of missing shards, told by name and by number; both are cut when they get long. */
struct heft_missing {
    char names[240];
    char numbers[100];
    uint64_t count, first, last; /* the run of numbers that is still open */
    uint64_t total;              /* of the set; 0: not numbered */
    int open, mixed, shown, ranges;
};
void heft_missing_add(struct heft_missing *missing, const struct heft_shard_name *shard);
/* `count` numbers from shard->number on. */
void heft_missing_add_run(struct heft_missing *missing, const struct heft_shard_name *shard, uint64_t count);
/* "a, b and 3 more (numbers 4-5, 9 of 30)". */
void heft_missing_text(struct heft_missing *missing, char *text_out, size_t size_bytes);

#endif
