/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rule files: read, bound to a config.json, matched with names. Both texts may come from strangers (a model's
 * folder, a peer): lengths are bounded, every value is checked, and what is odd is refused with its place.
 */
#include "plan/rules.h"
#include "base/error.h"
#include "base/text.h"
#include "plan/rules_builtin.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RULES 256u
#define MAX_PATTERNS 1024u
#define MAX_UNITS ((uint64_t)1 << 32)

struct pattern {
    const char *text;
    size_t size;
    const char *tail; /* the literal end: most names fail there */
    size_t tail_bytes;
    uint32_t rule;
};

struct heft_rules {
    json_t *root, *config; /* own every string */
    const char *name;
    struct heft_rule rules[MAX_RULES];
    uint32_t rule_count;
    struct pattern patterns[MAX_PATTERNS];
    uint32_t pattern_count;
    uint64_t layers, experts, block[2];
};

/* ---- config.json ---- */

/* "a.b" in the configuration, or in its part for text of a model that also sees. */
static json_t *config_value(json_t *config, const char *path)
{
    json_t *at = config;
    const char *key = path;

    while (at && *key) {
        size_t size = strcspn(key, ".");

        at = json_object_getn(at, key, size);
        key += size + (key[size] == '.');
    }
    if (!at && config && json_is_object(json_object_get(config, "text_config")))
        return config_value(json_object_get(config, "text_config"), path);
    return at;
}

static uint64_t positive(const json_t *value)
{
    json_int_t number = json_is_integer(value) ? json_integer_value(value) : 0;

    return number > 0 && (uint64_t)number <= MAX_UNITS ? (uint64_t)number : 0;
}

/* One key or several, of which the first that config.json has counts; 0: none is there. */
static uint64_t config_number(json_t *config, json_t *keys, const char **key_out)
{
    uint64_t found = 0;
    size_t index;
    json_t *key;

    if (json_is_string(keys)) {
        *key_out = json_string_value(keys);
        return positive(config_value(config, *key_out));
    }
    json_array_foreach(keys, index, key)
    {
        if (!json_is_string(key))
            continue;
        if (index == 0)
            *key_out = json_string_value(key);
        found = positive(config_value(config, json_string_value(key)));
        if (found)
            break;
    }
    return found;
}

/* ---- reading rules ---- */

static int bad(struct heft_error *error, const char *shown, size_t number, const char *what)
{
    return heft_error_set(error, HEFT_ERR_INVALID, "%s: rule %zu: %s", shown, number + 1, what);
}

static int read_part(struct heft_rules *rules, json_t *object, struct heft_rule_part *part)
{
    json_t *units = json_object_get(object, "units");

    part->replicate = json_is_true(json_object_get(object, "replicate"));
    if (!units)
        return 1;
    if (json_is_integer(units)) {
        part->units = positive(units);
        return part->units > 0;
    }
    part->units = config_number(rules->config, units, &part->key);
    part->missing = part->units == 0;
    return part->key != NULL;
}

static int read_parts(struct heft_rules *rules, json_t *object, struct heft_rule *rule)
{
    json_t *parts = json_object_get(object, "parts");
    size_t index;

    rule->part_count = 1;
    if (!parts)
        return read_part(rules, object, &rule->parts[0]);
    if (json_is_integer(parts)) {
        uint64_t count = positive(parts);

        rule->part_count = (uint32_t)count;
        return count >= 1 && count <= HEFT_RULE_MAX_PARTS;
    }
    if (json_array_size(parts) < 1 || json_array_size(parts) > HEFT_RULE_MAX_PARTS)
        return 0;
    rule->part_count = (uint32_t)json_array_size(parts);
    for (index = 0; index < rule->part_count; index++)
        if (!read_part(rules, json_array_get(parts, index), &rule->parts[index]) ||
            (rule->parts[index].units == 0 && !rule->parts[index].missing))
            return 0;
    return 1;
}

static int read_like(json_t *like, struct heft_rule *rule)
{
    if (!like)
        return 1;
    rule->like_ending = json_string_value(json_array_get(like, 0));
    rule->like_base = json_string_value(json_array_get(like, 1));
    return rule->like_ending && rule->like_base && rule->like_ending[0];
}

static int read_rule(struct heft_rules *rules, json_t *object, const char *shown, size_t number,
                     struct heft_error *error)
{
    struct heft_rule *rule = &rules->rules[rules->rule_count];
    json_t *dim = json_object_get(object, "dim"), *stage = json_object_get(object, "stage");
    json_t *unit = json_object_get(object, "unit"), *experts = json_object_get(object, "expert_dim");
    json_t *names = json_object_get(object, "tensors"), *name;
    const char *word = json_string_value(stage);
    size_t index;

    rule->whole = json_is_true(json_object_get(object, "whole"));
    if (!read_like(json_object_get(object, "like"), rule))
        return bad(error, shown, number, "'like' is two words: an ending and what stands in its place");
    if (!rule->whole && !rule->like_ending && !dim && !experts)
        return bad(error, shown, number, "it needs 'dim', 'expert_dim', 'like', or 'whole': true");
    if (dim && (!json_is_integer(dim) || llabs(json_integer_value(dim)) > 64))
        return bad(error, shown, number, "'dim' is a dimension's number; -1 is the last");
    rule->dim = json_integer_value(dim);
    rule->whole = rule->whole || (!dim && !rule->like_ending);
    rule->unit = positive(unit);
    if (unit && !rule->unit)
        return bad(error, shown, number, "'unit' is a positive number of elements");
    rule->has_experts = experts != NULL;
    if (experts &&
        (!json_is_integer(experts) || json_integer_value(experts) < 0 || json_integer_value(experts) > 64))
        return bad(error, shown, number, "'expert_dim' is a dimension's number");
    rule->expert_dim = (uint32_t)json_integer_value(experts);
    if (stage && (!word || (strcmp(word, "first") != 0 && strcmp(word, "last") != 0)))
        return bad(error, shown, number, "'stage' is \"first\" or \"last\"");
    rule->first_stage = word && word[0] == 'f';
    rule->last_stage = word && word[0] == 'l';
    if (!rule->whole && !rule->like_ending && !read_parts(rules, object, rule))
        return bad(error, shown, number, "'units' and 'parts' are numbers, or keys of config.json");
    if (json_array_size(names) == 0)
        return bad(error, shown, number, "'tensors' lists the names it is for");
    json_array_foreach(names, index, name)
    {
        struct pattern *pattern = &rules->patterns[rules->pattern_count];
        const char *end;

        if (!json_is_string(name) || rules->pattern_count == MAX_PATTERNS)
            return bad(error, shown, number, "'tensors' lists names, 1,024 in all rules together");
        pattern->text = json_string_value(name);
        pattern->size = strlen(pattern->text);
        for (end = pattern->text + pattern->size; end > pattern->text; end--)
            if (end[-1] == '*' || end[-1] == '}')
                break;
        pattern->tail = end;
        pattern->tail_bytes = (size_t)(pattern->text + pattern->size - end);
        pattern->rule = rules->rule_count;
        rules->pattern_count++;
    }
    rules->rule_count++;
    return HEFT_OK;
}

/* Of letters, digits and "._-": it is printed. */
static int is_word(const char *text)
{
    size_t size = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");

    return size > 0 && size <= 64 && text[size] == 0;
}

static int read_rules(struct heft_rules *rules, const char *shown, struct heft_error *error)
{
    json_t *list = json_object_get(rules->root, "rules"), *object, *block;
    const char *key = NULL, *path = json_string_value(json_object_get(rules->root, "block"));
    size_t index;
    int rc;

    rules->name = json_string_value(json_object_get(rules->root, "name"));
    if (!rules->name || !is_word(rules->name) || json_array_size(list) == 0)
        return heft_error_set(error, HEFT_ERR_INVALID, "%s: it needs a 'name' and a list of 'rules'", shown);
    if (json_array_size(list) > MAX_RULES)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "%s: %zu rules, at most %u are read", shown,
                              json_array_size(list), MAX_RULES);
    rules->layers = config_number(rules->config, json_object_get(rules->root, "layers"), &key);
    rules->experts = config_number(rules->config, json_object_get(rules->root, "experts"), &key);
    block = path ? config_value(rules->config, path) : NULL;
    rules->block[0] = positive(json_array_get(block, 0));
    rules->block[1] = positive(json_array_get(block, 1));
    json_array_foreach(list, index, object)
    {
        rc = read_rule(rules, object, shown, index, error);
        if (rc)
            return rc;
    }
    return HEFT_OK;
}

/* ---- choosing ---- */

static const char *shown_word(const char *word, char *text_out, size_t size_bytes)
{
    (void)snprintf(text_out, size_bytes, "%s", word ? word : "unknown");
    heft_text_clean(text_out);
    return text_out;
}

static int lists(json_t *array, const char *word)
{
    size_t index;
    json_t *each;

    json_array_foreach(array, index, each) if (word && json_is_string(each) &&
                                               strcmp(json_string_value(each), word) == 0) return 1;
    return 0;
}

/* The built-in file that is for this model; an architecture says more than a model type. */
static json_t *choose(json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    json_t *architectures = json_object_get(config, "architectures"), *architecture, *of_type = NULL;
    size_t file, index;

    for (file = 0; file < heft_rules_builtin_count; file++) {
        json_t *root = json_loads(heft_rules_builtin[file], JSON_REJECT_DUPLICATES, NULL);
        int found = 0;

        json_array_foreach(architectures, index, architecture) found |=
            lists(json_object_get(root, "architectures"), json_string_value(architecture));
        if (found) {
            json_decref(of_type);
            return root;
        }
        if (!of_type && lists(json_object_get(root, "model_types"), type))
            of_type = root;
        else
            json_decref(root);
    }
    return of_type;
}

static int none_built_in(json_t *config, struct heft_error *error)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const char *first = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    char words[2][65];

    return heft_error_set(
        error, HEFT_ERR_NOT_FOUND, "no split rules are built in for architecture %s (model type %s)",
        shown_word(first, words[0], sizeof(words[0])), shown_word(type, words[1], sizeof(words[1])));
}

int heft_rules_open(const char *text, size_t text_bytes, const char *shown, const char *config,
                    size_t config_bytes, struct heft_rules **rules_out, struct heft_error *error)
{
    struct heft_rules *rules = calloc(1, sizeof(*rules));
    json_error_t place;
    int rc = HEFT_OK;

    if (!rules)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "reading split rules");
    if (config_bytes > HEFT_RULES_MAX_BYTES || text_bytes > HEFT_RULES_MAX_BYTES) {
        rc = heft_error_set(error, HEFT_ERR_TOO_LARGE, "%s: larger than 1 MiB",
                            text_bytes > HEFT_RULES_MAX_BYTES ? shown : "config.json");
        goto fail_rules;
    }
    rules->config = config ? json_loadb(config, config_bytes, 0, &place) : NULL;
    if (config && !json_is_object(rules->config)) {
        rc =
            heft_error_set(error, HEFT_ERR_INVALID, "config.json is not a JSON object (line %d)", place.line);
        goto fail_rules;
    }
    if (text) {
        rules->root = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES, &place);
        if (!json_is_object(rules->root))
            rc = heft_error_set(error, HEFT_ERR_INVALID, "%s: not a JSON object (line %d: %s)", shown,
                                place.line, place.text);
    } else {
        shown = "built-in rules";
        rules->root = choose(rules->config);
        if (!rules->root)
            rc = none_built_in(rules->config, error);
    }
    if (!rc)
        rc = read_rules(rules, shown, error);
    if (rc)
        goto fail_rules;
    *rules_out = rules;
    return HEFT_OK;

fail_rules:
    heft_rules_free(rules);
    return rc;
}

void heft_rules_free(struct heft_rules *rules)
{
    if (!rules)
        return;
    json_decref(rules->root);
    json_decref(rules->config);
    free(rules);
}

const char *heft_rules_name(const struct heft_rules *rules)
{
    return rules->name;
}

uint64_t heft_rules_layers(const struct heft_rules *rules)
{
    return rules->layers;
}

uint64_t heft_rules_experts(const struct heft_rules *rules)
{
    return rules->experts;
}

int heft_rules_tied(const struct heft_rules *rules)
{
    return json_is_true(config_value(rules->config, "tie_word_embeddings"));
}

uint64_t heft_rules_block(const struct heft_rules *rules, uint32_t dim)
{
    return dim < 2 && rules->block[dim] ? rules->block[dim] : 1;
}

/* ---- matching ---- */

/* Decimal digits without a leading zero; returns how many, 0: no number. */
static size_t read_number(const char *text, size_t size, uint64_t *value_out)
{
    uint64_t value = 0;
    size_t used = 0;

    while (used < size && used < 9 && text[used] >= '0' && text[used] <= '9')
        value = value * 10 + (uint64_t)(text[used++] - '0');
    if (used == 0 || (used > 1 && text[0] == '0'))
        return 0;
    *value_out = value;
    return used;
}

/* '*' stands for anything without a dot, '**' for anything, {layer} and {expert} for a number. */
static int matches(const char *pattern, size_t pattern_bytes, const char *name, size_t name_bytes,
                   struct heft_rule_match *match)
{
    while (pattern_bytes > 0) {
        if (pattern[0] == '{') {
            int is_layer = pattern_bytes >= 7 && memcmp(pattern, "{layer}", 7) == 0;
            size_t word = is_layer ? 7 : 8, used;

            if (!is_layer && (pattern_bytes < 8 || memcmp(pattern, "{expert}", 8) != 0))
                return 0;
            used = read_number(name, name_bytes, is_layer ? &match->layer : &match->expert);
            if (used == 0)
                return 0;
            pattern += word;
            pattern_bytes -= word;
            name += used;
            name_bytes -= used;
        } else if (pattern[0] == '*') {
            int deep = pattern_bytes > 1 && pattern[1] == '*';
            size_t used, word = deep ? 2 : 1;

            for (used = 0; used <= name_bytes; used++) {
                if (matches(pattern + word, pattern_bytes - word, name + used, name_bytes - used, match))
                    return 1;
                if (used < name_bytes && name[used] == '.' && !deep)
                    break;
            }
            return 0;
        } else {
            if (name_bytes == 0 || *name != *pattern)
                return 0;
            pattern++;
            pattern_bytes--;
            name++;
            name_bytes--;
        }
    }
    return name_bytes == 0;
}

/* Without the longest prefix of the list that it begins with. */
static size_t strip(const struct heft_rules *rules, const char *name, size_t name_bytes)
{
    json_t *prefix;
    size_t index, most = 0;

    json_array_foreach(json_object_get(rules->root, "prefixes"), index, prefix)
    {
        size_t size = json_string_length(prefix);

        if (json_is_string(prefix) && size > most && size < name_bytes &&
            memcmp(name, json_string_value(prefix), size) == 0)
            most = size;
    }
    return most;
}

/* A name without a layer's or expert's number may still have one: "layers.7.extra". */
static void find_layer(const char *name, size_t name_bytes, struct heft_rule_match *match)
{
    size_t at;

    for (at = 0; at + 7 < name_bytes; at++) {
        size_t used;

        if (memcmp(name + at, "layers.", 7) != 0 || (at > 0 && name[at - 1] != '.'))
            continue;
        used = read_number(name + at + 7, name_bytes - at - 7, &match->layer);
        if (used == 0 || (at + 7 + used < name_bytes && name[at + 7 + used] != '.'))
            match->layer = HEFT_RULE_NONE;
        return;
    }
}

void heft_rules_match(const struct heft_rules *rules, const char *name, size_t name_bytes,
                      struct heft_rule_match *match_out)
{
    size_t skipped = strip(rules, name, name_bytes);
    uint32_t index;

    name += skipped;
    name_bytes -= skipped;
    for (index = 0; index < rules->pattern_count; index++) {
        const struct pattern *pattern = &rules->patterns[index];

        *match_out = (struct heft_rule_match){NULL, HEFT_RULE_NONE, HEFT_RULE_NONE};
        if (name_bytes < pattern->tail_bytes ||
            memcmp(name + name_bytes - pattern->tail_bytes, pattern->tail, pattern->tail_bytes) != 0 ||
            !matches(pattern->text, pattern->size, name, name_bytes, match_out))
            continue;
        match_out->rule = &rules->rules[pattern->rule];
        if (match_out->layer == HEFT_RULE_NONE)
            find_layer(name, name_bytes, match_out);
        return;
    }
    *match_out = (struct heft_rule_match){NULL, HEFT_RULE_NONE, HEFT_RULE_NONE};
    find_layer(name, name_bytes, match_out);
}
