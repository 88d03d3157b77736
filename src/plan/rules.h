/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Split rules: how the tensors of an architecture are divided among tensor-parallel ranks, pipeline stages
 * and owners of experts. Rules are data: one JSON file an architecture (src/plan/rules, built in;
 * docs/layouts.md tells the format), bound to the numbers of the model's config.json. A tensor that no rule
 * names stays whole.
 */
#ifndef HEFT_PLAN_RULES_H
#define HEFT_PLAN_RULES_H

#include <heft/error.h>
#include <stddef.h>

#define HEFT_RULES_MAX_BYTES ((size_t)1 << 20) /* of a rules file, and of a config.json */
#define HEFT_RULE_MAX_PARTS 8u
#define HEFT_RULE_NONE UINT64_MAX

/* A part of a fused tensor: so many of the dimension's units. */
struct heft_rule_part {
    uint64_t units;  /* 0: equal parts */
    int replicate;   /* more ranks than units: several ranks keep the same unit */
    const char *key; /* of config.json, when `units` came from there, for messages */
    int missing;     /* the key is not in config.json */
};

struct heft_rule {
    int whole;       /* every rank keeps it */
    int64_t dim;     /* negative: counted from the last */
    uint64_t unit;   /* elements that stay together; 0: as the parts say */
    int has_experts; /* dimension expert_dim counts experts */
    uint32_t expert_dim;
    int first_stage, last_stage; /* a tensor outside the layers that one pipeline stage keeps */
    uint32_t part_count;
    struct heft_rule_part parts[HEFT_RULE_MAX_PARTS];
    const char *like_ending, *like_base; /* it follows the tensor of that name; NULL: none */
};

struct heft_rules;

/* What a tensor's name says: the rule, and the numbers in the places of {layer} and {expert}. */
struct heft_rule_match {
    const struct heft_rule *rule; /* NULL: none */
    uint64_t layer, expert;       /* HEFT_RULE_NONE: no such place */
};

/*
 * The rules of `text` (a file's content; `shown` names it in errors), or with text NULL the built-in ones for
 * the model type or architecture that config.json names: NOT_FOUND, with both, when there are none.
 */
int heft_rules_open(const char *text, size_t text_bytes, const char *shown, const char *config,
                    size_t config_bytes, struct heft_rules **rules_out, struct heft_error *error);
void heft_rules_free(struct heft_rules *rules);
const char *heft_rules_name(const struct heft_rules *rules);
/* Of the whole model, from config.json; 0: not known. */
uint64_t heft_rules_layers(const struct heft_rules *rules);
uint64_t heft_rules_experts(const struct heft_rules *rules);
/* The output matrix is the embedding: config.json says tie_word_embeddings. */
int heft_rules_tied(const struct heft_rules *rules);
/* Rows or columns that share one block scale; 1: none. */
uint64_t heft_rules_block(const struct heft_rules *rules, uint32_t dim);
void heft_rules_match(const struct heft_rules *rules, const char *name, size_t name_bytes,
                      struct heft_rule_match *match_out);

#endif
