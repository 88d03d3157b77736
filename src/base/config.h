/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configuration: one typed table {name, type, default, limits, help}. Values come from flags, the environment
 * (HEFT_MAX_HOST_MEMORY for max-host-memory), a file and the default, in this order of weight. The table
 * parses, prints the help and the effective values with their origin; an unknown name is an error that names
 * the nearest one.
 */
#ifndef HEFT_BASE_CONFIG_H
#define HEFT_BASE_CONFIG_H

#include "base/buf.h"
#include <heft/error.h>

enum heft_config_type {
    HEFT_CONFIG_FLAG, /* no argument: 0 or 1; in files and environment yes/no, true/false, on/off, 1/0 */
    HEFT_CONFIG_NUMBER,
    HEFT_CONFIG_SIZE,     /* bytes: 512, 64K, 16M, 1.5G, 2T, also KiB, MiB, ... */
    HEFT_CONFIG_DURATION, /* ms: 250ms, 10s, 5m, 2h; a bare number is seconds */
    HEFT_CONFIG_TEXT,
    HEFT_CONFIG_CHOICE /* one of `choices`, separated by '|' */
};

enum heft_config_origin { HEFT_ORIGIN_DEFAULT, HEFT_ORIGIN_FILE, HEFT_ORIGIN_ENVIRONMENT, HEFT_ORIGIN_FLAG };

struct heft_config_entry {
    const char *name; /* lower case, dashes */
    enum heft_config_type type;
    const char *fallback; /* default, as text; NULL: unset (number 0, text NULL) */
    uint64_t min, max;    /* of numbers; max 0: no limit */
    const char *choices;
    const char *value_name; /* in the help: "SIZE" */
    const char *help;
    uint32_t groups; /* bits: in whose help and flags it appears */
};

struct heft_config_value {
    char *text;
    uint64_t number;
    enum heft_config_origin origin;
};

struct heft_config {
    const struct heft_config_entry *entries;
    size_t count;
    struct heft_config_value *values;
};

/* entries stay the caller's. Fails with INVALID when a default breaks its own limits (a bug), or NO_MEMORY.
 */
int heft_config_init(struct heft_config *config, const struct heft_config_entry *entries, size_t count,
                     struct heft_error *error);
void heft_config_free(struct heft_config *config);
/* Sets one value unless a weightier origin has set it. UNKNOWN_OPTION names the nearest; INVALID the limit.
 */
int heft_config_set(struct heft_config *config, const char *name, const char *text,
                    enum heft_config_origin origin, struct heft_error *error);
/* Every variable of `environment` (like environ) that is an entry's name behind the prefix: "HEFT_" makes
 * HEFT_MAX_HOST_MEMORY set max-host-memory. Other variables are left alone. */
int heft_config_environment(struct heft_config *config, const char *prefix, char *const *environment,
                            struct heft_error *error);
/* "name = value" lines, '#' comments; file_name is for messages. */
int heft_config_file(struct heft_config *config, const char *text, size_t size, const char *file_name,
                     struct heft_error *error);
/*
 * Flags of the groups in `groups` (getopt_long: "--name value", "--name=value", positionals anywhere, "--"
 * ends). Positionals are moved to the front of argv from argv[1]; *positionals_out counts them.
 */
int heft_config_arguments(struct heft_config *config, uint32_t groups, int argc, char **argv,
                          int *positionals_out, struct heft_error *error);

uint64_t heft_config_number(const struct heft_config *config,
                            const char *name); /* flags, numbers, sizes, ms */
const char *heft_config_text(const struct heft_config *config, const char *name);
enum heft_config_origin heft_config_origin(const struct heft_config *config, const char *name);
/* "  --max-host-memory SIZE  staging memory (default 256M)" for each entry of the groups. */
void heft_config_help(const struct heft_config *config, uint32_t groups, struct heft_buf *buf);
/* "max-host-memory = 64M  # environment" for each entry of the groups. */
void heft_config_effective(const struct heft_config *config, uint32_t groups, struct heft_buf *buf);

/* The candidate nearest to `word` by edit distance, NULL when none is near. */
const char *heft_nearest(const char *word, const char *const *candidates, size_t count);
int heft_parse_size(const char *text, uint64_t *bytes_out);
int heft_parse_duration(const char *text, uint64_t *ms_out);

#endif
