/* SPDX-License-Identifier: Apache-2.0 */
#include "format/modeldir_shards.h"
#include "format/manifest_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_DIGITS 9 /* a number of more digits is a name, not a number */
#define SHOWN_NAMES 3
#define SHOWN_RANGES 6

const char *heft_shard_ending(const char *name)
{
    static const char *const endings[] = {".safetensors", ".gguf"};
    size_t size = strlen(name);

    for (size_t index = 0; index < sizeof(endings) / sizeof(endings[0]); index++)
        if (size > strlen(endings[index]) &&
            strcmp(name + size - strlen(endings[index]), endings[index]) == 0)
            return endings[index];
    return NULL;
}

/* Reads the digits that end at `end` (exclusive); returns how many, 0 when there are none or too many. */
static int digits_before(const char *text, size_t end, uint64_t *number_out)
{
    uint64_t number = 0, scale = 1;
    int digits = 0;

    while (end > 0 && text[end - 1] >= '0' && text[end - 1] <= '9') {
        if (digits == MAX_DIGITS)
            return 0;
        number += scale * (uint64_t)(text[end - 1] - '0');
        scale *= 10;
        digits++;
        end--;
    }
    *number_out = number;
    return digits;
}

int heft_shard_name_parse(const char *name, struct heft_shard_name *shard_out)
{
    size_t size = strlen(name), at;
    struct heft_shard_name shard = {.name = name, .prefix_bytes = size, .ending = ""};
    const char *ending = heft_shard_ending(name);

    *shard_out = shard;
    if (!ending)
        return 0;
    at = size - strlen(ending);
    shard.total_digits = digits_before(name, at, &shard.total);
    at -= (size_t)shard.total_digits;
    if (shard.total_digits == 0 || shard.total == 0 || at < 5 || memcmp(name + at - 4, "-of-", 4) != 0)
        return 0;
    at -= 4;
    shard.number_digits = digits_before(name, at, &shard.number);
    at -= (size_t)shard.number_digits;
    if (shard.number_digits == 0 || (at > 0 && name[at - 1] != '-'))
        return 0;
    shard.prefix_bytes = at;
    shard.ending = ending;
    *shard_out = shard;
    return 1;
}

int heft_shard_name_compare(const struct heft_shard_name *left, const struct heft_shard_name *right)
{
    size_t shorter = left->prefix_bytes < right->prefix_bytes ? left->prefix_bytes : right->prefix_bytes;
    int order = memcmp(left->name, right->name, shorter);

    if (order == 0)
        order = (left->prefix_bytes > right->prefix_bytes) - (left->prefix_bytes < right->prefix_bytes);
    if (order == 0)
        order = (left->total > right->total) - (left->total < right->total);
    if (order == 0)
        order = (left->number > right->number) - (left->number < right->number);
    return order ? order : strcmp(left->name, right->name);
}

int heft_shard_same_set(const struct heft_shard_name *left, const struct heft_shard_name *right)
{
    return left->total != 0 && left->total == right->total && left->prefix_bytes == right->prefix_bytes &&
           left->ending == right->ending && memcmp(left->name, right->name, left->prefix_bytes) == 0;
}

static void close_range(struct heft_missing *missing)
{
    size_t used = strlen(missing->numbers);
    const char *comma = used ? ", " : "";

    if (!missing->open)
        return;
    missing->open = 0;
    if (missing->ranges++ >= SHOWN_RANGES)
        return;
    if (missing->ranges == SHOWN_RANGES)
        (void)snprintf(missing->numbers + used, sizeof(missing->numbers) - used, ", ...");
    else if (missing->first == missing->last)
        (void)snprintf(missing->numbers + used, sizeof(missing->numbers) - used, "%s%" PRIu64, comma,
                       missing->first);
    else
        (void)snprintf(missing->numbers + used, sizeof(missing->numbers) - used, "%s%" PRIu64 "-%" PRIu64,
                       comma, missing->first, missing->last);
}

static void show_name(struct heft_missing *missing, const struct heft_shard_name *shard)
{
    size_t used = strlen(missing->names);
    struct heft_quote quote;
    char name[HEFT_QUOTE_BYTES];

    if (missing->shown == SHOWN_NAMES)
        return;
    if (shard->total) /* by its parts: a run has no entry with a name of its own */
        (void)snprintf(name, sizeof(name), "%.*s%0*" PRIu64 "-of-%0*" PRIu64 "%s",
                       (int)(shard->prefix_bytes < 80 ? shard->prefix_bytes : 80), shard->name,
                       shard->number_digits, shard->number, shard->total_digits, shard->total, shard->ending);
    else
        (void)snprintf(name, sizeof(name), "%s", shard->name);
    (void)heft_quote_text(&quote, name);
    if (used + strlen(quote.text) + 3 > sizeof(missing->names))
        return;
    (void)snprintf(missing->names + used, sizeof(missing->names) - used, "%s%s", used ? ", " : "",
                   quote.text);
    missing->shown++;
}

void heft_missing_add_run(struct heft_missing *missing, const struct heft_shard_name *shard, uint64_t count)
{
    struct heft_shard_name one = *shard;
    uint64_t index;

    if (count == 0)
        return;
    if (missing->count == 0)
        missing->total = shard->total;
    else if (missing->total != shard->total)
        missing->mixed = 1;
    if (shard->total == 0)
        missing->mixed = 1;
    missing->count += count;
    for (index = 0; index < count && missing->shown < SHOWN_NAMES; index++, one.number++)
        show_name(missing, &one);
    if (missing->open && missing->last + 1 == shard->number) {
        missing->last += count;
        return;
    }
    close_range(missing);
    missing->open = 1;
    missing->first = shard->number;
    missing->last = shard->number + count - 1;
}

void heft_missing_add(struct heft_missing *missing, const struct heft_shard_name *shard)
{
    heft_missing_add_run(missing, shard, 1);
}

void heft_missing_text(struct heft_missing *missing, char *text_out, size_t size_bytes)
{
    char more[40] = "", numbers[140] = "";

    close_range(missing);
    if (missing->count > (uint64_t)missing->shown)
        (void)snprintf(more, sizeof(more), " and %" PRIu64 " more",
                       missing->count - (uint64_t)missing->shown);
    if (!missing->mixed)
        (void)snprintf(numbers, sizeof(numbers), " (numbers %s of %" PRIu64 ")", missing->numbers,
                       missing->total);
    (void)snprintf(text_out, size_bytes, "%s%s%s", missing->names, more, numbers);
}
