/* SPDX-License-Identifier: Apache-2.0 */
/* Records own what they point to: strings one by one, the identity in one block. */
#include "base/error.h"
#include "load/directory.h"

#include <stdlib.h>
#include <string.h>

void heft_record_free(struct heft_record *record)
{
    if (!record)
        return;
    free(record->name);
    free(record->addresses);
    free(record->part);
    free(record->identity_arena);
    free(record->held);
    free(record->metadata);
    memset(record, 0, sizeof(*record));
}

int heft_record_name_is_agent(const char *name)
{
    return strncmp(name, HEFT_RECORD_AGENTS, sizeof(HEFT_RECORD_AGENTS) - 1) == 0;
}

int heft_record_name_is_load(const char *name)
{
    return strncmp(name, HEFT_RECORD_LOADS, sizeof(HEFT_RECORD_LOADS) - 1) == 0;
}

void heft_directory_changes_free(struct heft_directory_changes *changes)
{
    size_t index;

    heft_record_list_free(&changes->records);
    for (index = 0; index < changes->gone_count; index++)
        free(changes->gone[index]);
    free(changes->gone);
    memset(changes, 0, sizeof(*changes));
}

int heft_directory_changes_gone(struct heft_directory_changes *changes, const char *name)
{
    char **gone = realloc(changes->gone, (changes->gone_count + 1) * sizeof(*gone));

    if (!gone)
        return HEFT_ERR_NO_MEMORY;
    changes->gone = gone;
    gone[changes->gone_count] = strdup(name);
    if (!gone[changes->gone_count])
        return HEFT_ERR_NO_MEMORY;
    changes->gone_count++;
    return 0;
}

void heft_record_list_free(struct heft_record_list *list)
{
    size_t index;

    if (!list)
        return;
    for (index = 0; index < list->count; index++)
        heft_record_free(&list->records[index]);
    free(list->records);
    memset(list, 0, sizeof(*list));
}

static size_t text_bytes(const char *text)
{
    return (text ? strlen(text) : 0) + 1;
}

static const char *copy_text(char **at, const char *text)
{
    char *copy = *at;
    size_t bytes = text_bytes(text);

    memcpy(copy, text ? text : "", bytes);
    *at += bytes;
    return copy;
}

int heft_record_set_identity(struct heft_record *record, const struct heft_identity *identity)
{
    size_t bytes = identity->pair_count * sizeof(struct heft_identity_pair) + text_bytes(identity->model) +
                   text_bytes(identity->revision) + text_bytes(identity->stage) +
                   text_bytes(identity->engine) + text_bytes(identity->rank);
    struct heft_identity_pair *pairs;
    struct heft_identity copy;
    uint32_t index;
    char *at;

    for (index = 0; index < identity->pair_count; index++)
        bytes += text_bytes(identity->pairs[index].key) + text_bytes(identity->pairs[index].value);
    pairs = malloc(bytes);
    if (!pairs)
        return HEFT_ERR_NO_MEMORY;
    at = (char *)(pairs + identity->pair_count);
    copy.model = copy_text(&at, identity->model);
    copy.revision = copy_text(&at, identity->revision);
    copy.stage = copy_text(&at, identity->stage);
    copy.engine = copy_text(&at, identity->engine);
    copy.rank = copy_text(&at, identity->rank);
    for (index = 0; index < identity->pair_count; index++) {
        pairs[index].key = copy_text(&at, identity->pairs[index].key);
        pairs[index].value = copy_text(&at, identity->pairs[index].value);
    }
    copy.pairs = identity->pair_count ? pairs : NULL;
    copy.pair_count = identity->pair_count;
    free(record->identity_arena);
    record->identity_arena = pairs;
    record->identity = copy;
    return 0;
}

/* Bytes of the UTF-8 character at `at`, 0 when it is not one. NUL-terminated text can't be overrun: a NUL is
 * no continuation byte. */
static size_t utf8_length(const uint8_t *at)
{
    uint32_t value;
    size_t length, index;

    if (at[0] < 0x80)
        return 1;
    if (at[0] >= 0xC2 && at[0] <= 0xDF)
        length = 2;
    else if ((at[0] & 0xF0) == 0xE0)
        length = 3;
    else if (at[0] >= 0xF0 && at[0] <= 0xF4)
        length = 4;
    else
        return 0;
    value = at[0] & (0x7Fu >> length);
    for (index = 1; index < length; index++) {
        if ((at[index] & 0xC0) != 0x80)
            return 0;
        value = value << 6 | (at[index] & 0x3Fu);
    }
    if ((length == 3 && value < 0x800) || (length == 4 && (value < 0x10000 || value > 0x10FFFF)) ||
        (value >= 0xD800 && value <= 0xDFFF) || value < 0xA0)
        return 0;
    return length;
}

int heft_text_is_clean(const char *text, size_t max_bytes)
{
    const uint8_t *at = (const uint8_t *)text;
    size_t size = strnlen(text, max_bytes + 1), used = 0;

    if (size > max_bytes)
        return 0;
    while (used < size) {
        size_t length = utf8_length(at + used);

        if (length == 0 || (length == 1 && (at[used] < 0x20 || at[used] == 0x7F)))
            return 0;
        used += length;
    }
    return 1;
}

int heft_record_check_held(const char *name, uint64_t block_count, uint64_t held_blocks, const uint8_t *held,
                           size_t held_bytes, struct heft_error *error)
{
    uint64_t bytes = (block_count + 7) / 8, set = 0;
    size_t index;

    if (block_count > HEFT_RECORD_MAX_BLOCKS)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE,
                              "record '%s': %llu blocks are over the limit of %llu", name,
                              (unsigned long long)block_count, (unsigned long long)HEFT_RECORD_MAX_BLOCKS);
    if (held_bytes == 0 && held_blocks == block_count)
        return 0;
    if (held_bytes == 0)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "record '%s': holds %llu of %llu blocks but does not say which", name,
                              (unsigned long long)held_blocks, (unsigned long long)block_count);
    for (index = 0; index < held_bytes; index++)
        set += (uint64_t)__builtin_popcount(held[index]);
    if (held_bytes != bytes || set != held_blocks ||
        (block_count % 8 && held[bytes - 1] >> (block_count % 8)))
        return heft_error_set(
            error, HEFT_ERR_INVALID,
            "record '%s': the bitmap of held blocks (%zu bytes, %llu set) does not fit %llu of "
            "%llu blocks",
            name, held_bytes, (unsigned long long)set, (unsigned long long)held_blocks,
            (unsigned long long)block_count);
    return 0;
}
