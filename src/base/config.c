/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"
#include "base/error.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WORD 64
#define HELP_COLUMN 30

static const char *const origin_names[] = {"default", "file", "environment", "flag"};

/* ---- words ---- */

static size_t edit_distance(const char *left, const char *right)
{
    size_t row[MAX_WORD + 1], width = strlen(right), i, j;

    if (strlen(left) > MAX_WORD || width > MAX_WORD)
        return SIZE_MAX;
    for (j = 0; j <= width; j++)
        row[j] = j;
    for (i = 1; left[i - 1]; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (j = 1; j <= width; j++) {
            size_t change = diagonal + (left[i - 1] != right[j - 1]);
            size_t best = row[j] + 1 < row[j - 1] + 1 ? row[j] + 1 : row[j - 1] + 1;

            diagonal = row[j];
            row[j] = best < change ? best : change;
        }
    }
    return row[width];
}

const char *heft_nearest(const char *word, const char *const *candidates, size_t count)
{
    const char *best = NULL;
    size_t best_distance = strlen(word) / 2 + 1, index;

    for (index = 0; index < count; index++) {
        size_t distance = edit_distance(word, candidates[index]);

        if (strncmp(word, candidates[index], strlen(word)) == 0 && strlen(word) >= 3)
            distance = 1; /* the beginning of a name is a near miss however long the rest */
        if (distance < best_distance) {
            best = candidates[index];
            best_distance = distance;
        }
    }
    return best;
}

/* A non-negative decimal with an optional fraction; *end_out after it. */
static int parse_decimal(const char *text, double *value_out, const char **end_out)
{
    char *end;

    if (!isdigit((unsigned char)text[0]))
        return HEFT_ERR_INVALID;
    errno = 0;
    *value_out = strtod(text, &end);
    if (errno || strspn(text, "0123456789.") != (size_t)(end - text))
        return HEFT_ERR_INVALID;
    while (*end == ' ')
        end++;
    *end_out = end;
    return HEFT_OK;
}

static int parse_whole(const char *text, uint64_t *value_out)
{
    char *end;

    if (!isdigit((unsigned char)text[0]))
        return HEFT_ERR_INVALID;
    errno = 0;
    *value_out = strtoull(text, &end, 10);
    return errno || *end ? HEFT_ERR_INVALID : HEFT_OK;
}

int heft_parse_size(const char *text, uint64_t *bytes_out)
{
    static const char units[] = "KMGT";
    const char *end, *unit;
    double value;

    if (parse_whole(text, bytes_out) == HEFT_OK)
        return HEFT_OK;
    if (parse_decimal(text, &value, &end))
        return HEFT_ERR_INVALID;
    if (*end == 0)
        return HEFT_ERR_INVALID; /* half a byte */
    if (strcasecmp(end, "B") == 0) {
        *bytes_out = (uint64_t)value;
        return (double)*bytes_out < value ? HEFT_ERR_INVALID : HEFT_OK;
    }
    unit = strchr(units, toupper((unsigned char)*end));
    if (!unit || (end[1] && strcasecmp(end + 1, "B") != 0 && strcasecmp(end + 1, "iB") != 0))
        return HEFT_ERR_INVALID;
    value *= (double)(UINT64_C(1) << 10 * (unit - units + 1));
    if (value >= 18446744073709549568.0)
        return HEFT_ERR_INVALID;
    *bytes_out = (uint64_t)value;
    return HEFT_OK;
}

int heft_parse_duration(const char *text, uint64_t *ms_out)
{
    static const struct {
        const char *name;
        double ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"", 1000}, {"m", 60000}, {"min", 60000}, {"h", 3600000}};
    const char *end;
    double value;
    size_t index;

    if (parse_decimal(text, &value, &end))
        return HEFT_ERR_INVALID;
    for (index = 0; index < sizeof(units) / sizeof(units[0]); index++)
        if (strcmp(end, units[index].name) == 0) {
            if (value * units[index].ms > 1e15)
                return HEFT_ERR_INVALID;
            *ms_out = (uint64_t)(value * units[index].ms + 0.5);
            return HEFT_OK;
        }
    return HEFT_ERR_INVALID;
}

static int parse_flag(const char *text, uint64_t *value_out)
{
    static const char *const yes[] = {"1", "yes", "true", "on"}, *const no[] = {"0", "no", "false", "off",
                                                                                ""};
    size_t index;

    for (index = 0; index < sizeof(yes) / sizeof(yes[0]); index++)
        if (strcasecmp(text, yes[index]) == 0) {
            *value_out = 1;
            return HEFT_OK;
        }
    for (index = 0; index < sizeof(no) / sizeof(no[0]); index++)
        if (strcasecmp(text, no[index]) == 0) {
            *value_out = 0;
            return HEFT_OK;
        }
    return HEFT_ERR_INVALID;
}

static int is_choice(const char *choices, const char *text)
{
    size_t size = strlen(text);
    const char *at = choices;

    while (at && *at) {
        size_t word = strcspn(at, "|");

        if (word == size && strncmp(at, text, size) == 0)
            return 1;
        at += word + (at[word] == '|');
    }
    return 0;
}

/* ---- values ---- */

static const struct heft_config_entry *find(const struct heft_config *config, const char *name,
                                            size_t *index_out)
{
    size_t index;

    for (index = 0; index < config->count; index++)
        if (strcmp(config->entries[index].name, name) == 0) {
            *index_out = index;
            return &config->entries[index];
        }
    return NULL;
}

/* A limit in the words that the option takes. */
static void limit_text(const struct heft_config_entry *entry, uint64_t value, char *text_out, size_t size)
{
    static const char *const sizes[] = {"", "K", "M", "G", "T"};
    unsigned unit = 0;

    if (entry->type == HEFT_CONFIG_SIZE)
        for (; unit < 4 && value && value % 1024 == 0; unit++)
            value /= 1024;
    if (entry->type == HEFT_CONFIG_DURATION && value >= 1000 && value % 1000 == 0)
        (void)snprintf(text_out, size, "%" PRIu64 "s", value / 1000);
    else
        (void)snprintf(text_out, size, "%" PRIu64 "%s", value,
                       entry->type == HEFT_CONFIG_DURATION ? "ms" : sizes[unit]);
}

/* shown: the option as the message calls it. */
static int parse_value(const struct heft_config_entry *entry, const char *shown, const char *text,
                       uint64_t *number_out, struct heft_error *error)
{
    char limit[32];
    int rc = HEFT_OK;
    const char *what = "";

    *number_out = 0;
    switch (entry->type) {
    case HEFT_CONFIG_FLAG:
        rc = parse_flag(text, number_out);
        what = "yes or no";
        break;
    case HEFT_CONFIG_NUMBER:
        rc = parse_whole(text, number_out);
        what = "a whole number";
        break;
    case HEFT_CONFIG_SIZE:
        rc = heft_parse_size(text, number_out);
        what = "a size such as 512K, 64M or 1.5G";
        break;
    case HEFT_CONFIG_DURATION:
        rc = heft_parse_duration(text, number_out);
        what = "a time such as 250ms, 30s or 5m";
        break;
    case HEFT_CONFIG_CHOICE:
        rc = is_choice(entry->choices, text) ? HEFT_OK : HEFT_ERR_INVALID;
        what = entry->choices;
        break;
    case HEFT_CONFIG_TEXT:
        break;
    }
    if (rc)
        return heft_error_set(error, rc, "%s: '%s' is not %s%s", shown, text,
                              entry->type == HEFT_CONFIG_CHOICE ? "one of " : "", what);
    if (entry->type == HEFT_CONFIG_TEXT || entry->type == HEFT_CONFIG_CHOICE)
        return HEFT_OK;
    if (*number_out < entry->min) {
        limit_text(entry, entry->min, limit, sizeof(limit));
        return heft_error_set(error, HEFT_ERR_INVALID, "%s: %s is below the least, %s", shown, text, limit);
    }
    if (entry->max && *number_out > entry->max) {
        limit_text(entry, entry->max, limit, sizeof(limit));
        return heft_error_set(error, HEFT_ERR_INVALID, "%s: %s is above the most, %s", shown, text, limit);
    }
    return HEFT_OK;
}

static int unknown(const struct heft_config *config, uint32_t groups, const char *prefix, const char *name,
                   struct heft_error *error)
{
    const char *names[256];
    const char *nearest;
    size_t index, count = 0;

    for (index = 0; index < config->count && count < 256; index++)
        if (config->entries[index].groups & groups)
            names[count++] = config->entries[index].name;
    nearest = heft_nearest(name, names, count);
    if (nearest)
        return heft_error_set(error, HEFT_ERR_UNKNOWN_OPTION, "unknown option %s%s: did you mean %s%s?",
                              prefix, name, prefix, nearest);
    return heft_error_set(error, HEFT_ERR_UNKNOWN_OPTION, "unknown option %s%s: see --help", prefix, name);
}

int heft_config_set(struct heft_config *config, const char *name, const char *text,
                    enum heft_config_origin origin, struct heft_error *error)
{
    size_t index = 0;
    const struct heft_config_entry *entry = find(config, name, &index);
    uint64_t number;
    char *copy, shown[MAX_WORD + 4];
    int rc;

    if (!entry)
        return unknown(config, UINT32_MAX, "", name, error);
    (void)snprintf(shown, sizeof(shown), "%s%s", origin == HEFT_ORIGIN_FLAG ? "--" : "", name);
    rc = parse_value(entry, shown, text, &number, error);
    if (rc || config->values[index].origin > origin)
        return rc;
    copy = strdup(text);
    if (!copy)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "setting %s", name);
    free(config->values[index].text);
    config->values[index].text = copy;
    config->values[index].number = number;
    config->values[index].origin = origin;
    return HEFT_OK;
}

int heft_config_init(struct heft_config *config, const struct heft_config_entry *entries, size_t count,
                     struct heft_error *error)
{
    size_t index;

    *config = (struct heft_config){.entries = entries, .count = count};
    config->values = calloc(count ? count : 1, sizeof(*config->values));
    if (!config->values)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "making the configuration");
    for (index = 0; index < count; index++)
        if (entries[index].fallback) {
            int rc = heft_config_set(config, entries[index].name, entries[index].fallback,
                                     HEFT_ORIGIN_DEFAULT, error);

            if (rc) {
                heft_config_free(config);
                return rc;
            }
        }
    return HEFT_OK;
}

void heft_config_free(struct heft_config *config)
{
    size_t index;

    for (index = 0; config->values && index < config->count; index++)
        free(config->values[index].text);
    free(config->values);
    config->values = NULL;
}

/* ---- sources of values ---- */

/*
 * A variable whose name is no option's: another program's, whose names may begin alike, unless it is so close
 * to an option that it must be a slip of the hand.
 */
static int unknown_variable(const struct heft_config *config, const char *prefix, const char *variable,
                            const char *name, struct heft_error *error)
{
    size_t slips = strlen(name) >= 8 ? 2 : 1, index, at;
    char meant[MAX_WORD];

    for (index = 0; index < config->count; index++) {
        if (strlen(name) < 4 || edit_distance(name, config->entries[index].name) > slips)
            continue;
        (void)snprintf(meant, sizeof(meant), "%s", config->entries[index].name);
        for (at = 0; meant[at]; at++)
            meant[at] = meant[at] == '-' ? '_' : (char)toupper((unsigned char)meant[at]);
        return heft_error_set(error, HEFT_ERR_UNKNOWN_OPTION,
                              "unknown environment variable %.*s: did you mean %s%s?",
                              (int)strcspn(variable, "="), variable, prefix, meant);
    }
    return HEFT_OK;
}

int heft_config_environment(struct heft_config *config, const char *prefix, char *const *environment,
                            struct heft_error *error)
{
    size_t prefix_bytes = strlen(prefix);

    for (; *environment; environment++) {
        char name[MAX_WORD];
        const char *equals = strchr(*environment, '=');
        size_t size, index;
        int rc;

        if (!equals || strncmp(*environment, prefix, prefix_bytes) != 0)
            continue;
        size = (size_t)(equals - *environment);
        if (size <= prefix_bytes)
            continue;
        size -= prefix_bytes;
        if (size >= sizeof(name))
            continue;
        for (index = 0; index < size; index++) {
            char c = (*environment)[prefix_bytes + index];

            name[index] = c == '_' ? '-' : (char)tolower((unsigned char)c);
        }
        name[size] = 0;
        if (!find(config, name, &index)) {
            rc = unknown_variable(config, prefix, *environment, name, error);
            if (rc)
                return rc;
            continue;
        }
        rc = heft_config_set(config, name, equals + 1, HEFT_ORIGIN_ENVIRONMENT, error);
        if (rc)
            return heft_error_prefix(error, rc, "environment variable %.*s", (int)(equals - *environment),
                                     *environment);
    }
    return HEFT_OK;
}

static char *trimmed(char *text)
{
    size_t size;

    while (isspace((unsigned char)*text))
        text++;
    size = strlen(text);
    while (size > 0 && isspace((unsigned char)text[size - 1]))
        text[--size] = 0;
    return text;
}

int heft_config_file(struct heft_config *config, const char *text, size_t size, const char *file_name,
                     struct heft_error *error)
{
    const char *at = text, *end = text + size;
    char line[4096];
    uint32_t number = 0;

    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((stop ? stop : end) - at);
        char *name, *value;
        int rc;

        number++;
        if (length >= sizeof(line))
            return heft_error_set(error, HEFT_ERR_INVALID, "%s:%u: the line is longer than %zu bytes",
                                  file_name, number, sizeof(line) - 1);
        memcpy(line, at, length);
        line[length] = 0;
        at += length + 1;
        line[strcspn(line, "#")] = 0;
        name = trimmed(line);
        if (!*name)
            continue;
        value = strchr(name, '=');
        if (!value)
            return heft_error_set(error, HEFT_ERR_INVALID, "%s:%u: expected 'name = value'", file_name,
                                  number);
        *value++ = 0;
        name = trimmed(name);
        value = trimmed(value);
        rc = heft_config_set(config, name, value, HEFT_ORIGIN_FILE, error);
        if (rc)
            return heft_error_prefix(error, rc, "%s:%u", file_name, number);
    }
    return HEFT_OK;
}

int heft_config_arguments(struct heft_config *config, uint32_t groups, int argc, char **argv,
                          int *positionals_out, struct heft_error *error)
{
    struct option *options = calloc(config->count + 1, sizeof(*options));
    size_t index, count = 0;
    int which, chosen = -1, rc = HEFT_OK, first;

    if (!options)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "reading the command line");
    for (index = 0; index < config->count; index++)
        if (config->entries[index].groups & groups)
            options[count++] = (struct option){
                config->entries[index].name,
                config->entries[index].type == HEFT_CONFIG_FLAG ? no_argument : required_argument, NULL, 0};
    opterr = 0;
    optind = 0; /* glibc: start anew, also its permutation */
    while (!rc && (which = getopt_long(argc, argv, ":", options, &chosen)) != -1) {
        if (which == ':')
            rc = heft_error_set(error, HEFT_ERR_INVALID, "option %s needs a value", argv[optind - 1]);
        else if (which == '?' && optopt && optopt < 128 && argv[optind - 1][0] == '-' &&
                 argv[optind - 1][1] != '-')
            rc = heft_error_set(error, HEFT_ERR_UNKNOWN_OPTION,
                                "unknown option -%c: options are words, --like-this; see --help", optopt);
        else if (which == '?') {
            char word[MAX_WORD + 1] = "";

            (void)snprintf(word, sizeof(word), "%.*s", (int)strcspn(argv[optind - 1] + 2, "="),
                           argv[optind - 1] + 2);
            rc = unknown(config, groups, "--", word, error);
        } else {
            rc =
                heft_config_set(config, options[chosen].name, optarg ? optarg : "1", HEFT_ORIGIN_FLAG, error);
        }
    }
    free(options);
    if (rc)
        return rc;
    first = optind;
    *positionals_out = argc - first;
    for (which = 0; which < argc - first; which++)
        argv[1 + which] = argv[first + which];
    return HEFT_OK;
}

/* ---- answers ---- */

uint64_t heft_config_number(const struct heft_config *config, const char *name)
{
    size_t index = 0;

    HEFT_ASSERT(find(config, name, &index));
    return config->values[index].number;
}

const char *heft_config_text(const struct heft_config *config, const char *name)
{
    size_t index = 0;

    HEFT_ASSERT(find(config, name, &index));
    return config->values[index].text;
}

enum heft_config_origin heft_config_origin(const struct heft_config *config, const char *name)
{
    size_t index = 0;

    HEFT_ASSERT(find(config, name, &index));
    return config->values[index].origin;
}

/* Wraps the help at 100 columns behind the names. */
static void help_text(struct heft_buf *buf, const char *text, size_t column)
{
    int first = 1;

    while (*text) {
        size_t word = strcspn(text, " ");

        if (!first && column + 1 + word > 100) {
            heft_buf_printf(buf, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (!first) {
            heft_buf_u8(buf, ' ');
            column++;
        }
        heft_buf_bytes(buf, text, word);
        column += word;
        text += word + (text[word] == ' ');
        first = 0;
    }
    heft_buf_u8(buf, '\n');
}

void heft_config_help(const struct heft_config *config, uint32_t groups, struct heft_buf *buf)
{
    size_t index;

    for (index = 0; index < config->count; index++) {
        const struct heft_config_entry *entry = &config->entries[index];
        const char *value = entry->type == HEFT_CONFIG_CHOICE ? entry->choices : entry->value_name;
        char left[128], text[1024];

        if (!(entry->groups & groups))
            continue;
        (void)snprintf(left, sizeof(left), "  --%s%s%s", entry->name, value ? " " : "", value ? value : "");
        (void)snprintf(text, sizeof(text), "%s%s%s%s", entry->help, entry->fallback ? " (default " : "",
                       entry->fallback ? entry->fallback : "", entry->fallback ? ")" : "");
        heft_buf_printf(buf, "%-*s", HELP_COLUMN - 1, left);
        if (strlen(left) >= HELP_COLUMN - 1)
            heft_buf_printf(buf, "\n%*s", HELP_COLUMN, "");
        else
            heft_buf_u8(buf, ' ');
        help_text(buf, text, HELP_COLUMN);
    }
}

void heft_config_effective(const struct heft_config *config, uint32_t groups, struct heft_buf *buf)
{
    size_t index;

    for (index = 0; index < config->count; index++)
        if (config->entries[index].groups & groups)
            heft_buf_printf(buf, "%-24s = %-24s # %s\n", config->entries[index].name,
                            config->values[index].text ? config->values[index].text : "",
                            origin_names[config->values[index].origin]);
}
