/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listings of model folders. The input is lines: a letter for the kind (f, d, p, o, l) and a name; lines that
 * begin with 'i' are shards that an index names. Whatever a folder holds, the choice is made of files of the
 * listing, each once, or there is an error that says why.
 */
#include "fuzz.h"

#include "format/modeldir.h"

#include <string.h>

#define MAX_LINES 64

static void check_choice(const struct heft_dir_choice *choice, const struct heft_dir_entry *entries,
                         size_t count)
{
    uint32_t file, other;
    size_t entry;

    FUZZ_CHECK(choice->file_count > 0);
    for (file = 0; file < choice->file_count; file++) {
        int found = 0;

        for (entry = 0; entry < count; entry++)
            found |= entries[entry].kind == HEFT_ENTRY_FILE &&
                     strcmp(entries[entry].name, choice->files[file]) == 0;
        FUZZ_CHECK(found);
        for (other = 0; other < file; other++)
            FUZZ_CHECK(strcmp(choice->files[other], choice->files[file]) != 0);
    }
}

static void choose(const struct heft_dir_entry *entries, size_t count, const struct heft_shard_index *index)
{
    int (*const choosers[])(const struct heft_dir_entry *, size_t, const struct heft_shard_index *,
                            struct heft_dir_choice **,
                            struct heft_error *) = {heft_dir_choose, heft_dir_choose_present};
    size_t at;

    for (at = 0; at < 2; at++) {
        struct heft_error error = HEFT_ERROR_INIT;
        struct heft_dir_choice *choice = NULL;
        int rc = choosers[at](entries, count, index, &choice, &error);

        FUZZ_CHECK((rc == HEFT_OK) == (choice != NULL));
        FUZZ_CHECK(rc == HEFT_OK || (error.code == rc && error.text[0]));
        if (choice)
            check_choice(choice, entries, count);
        heft_dir_choice_free(choice);
    }
}

/* Folders have no name twice. */
static int is_new(const struct heft_dir_entry *entries, size_t count, const char *name)
{
    size_t entry;

    for (entry = 0; entry < count; entry++)
        if (strcmp(entries[entry].name, name) == 0)
            return 0;
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char kinds[] = "fdpol";
    struct heft_dir_entry entries[MAX_LINES];
    struct heft_shard_index *index = NULL;
    char *text = malloc(size + 1), *line, *next;
    struct heft_buf json;
    size_t count = 0, named = 0;

    FUZZ_CHECK(text);
    memcpy(text, data, size);
    text[size] = 0;
    heft_buf_init(&json, 1 << 20);
    heft_buf_printf(&json, "{\"weight_map\":{");
    for (line = text; line && count < MAX_LINES; line = next) {
        const char *kind;

        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        kind = line[0] ? strchr(kinds, line[0]) : NULL;
        if (kind && line[1] && is_new(entries, count, line + 1))
            entries[count++] =
                (struct heft_dir_entry){.name = line + 1, .kind = (enum heft_entry_kind)(kind - kinds)};
        else if (line[0] == 'i' && !strchr(line, '"'))
            heft_buf_printf(&json, "%s\"%zu\":\"%s\"", named ? "," : "", named, line + 1), named++;
    }
    heft_buf_printf(&json, "}}");
    choose(entries, count, NULL);
    if (heft_index_parse(json.data, json.size, &index, NULL) == HEFT_OK)
        choose(entries, count, index);
    heft_index_free(index);
    heft_buf_free(&json);
    free(text);
    return 0;
}
