/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which files of a folder are the model. Real folders hold interrupted downloads, a second copy in another
 * format, adapters, leftovers of another sharding: a file is taken only when a rule says so, and what is left
 * aside is told.
 */
#include "format/modeldir.h"
#include "base/error.h"
#include "format/manifest_arena.h"
#include "format/manifest_text.h"
#include "format/modeldir_shards.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A weight file that may be the model, or a part of it. */
struct candidate {
    struct heft_shard_name shard;
    const struct heft_dir_entry *entry;
};

/* A single file, or a numbered set: candidates [first, first + count). */
struct group {
    size_t first, count;
};

struct listing {
    const struct heft_dir_entry *entries;
    size_t entry_count;
    struct heft_map by_name;
    struct candidate *candidates; /* sorted */
    size_t candidate_count;
    struct group *groups;
    size_t group_count;
    const char *aside, *pickle; /* examples for the error: consolidated or adapter, pickle */
    size_t aside_count;
};

static int no_memory(struct heft_error *error)
{
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory while choosing a folder's weight files");
}

static int ends_with(const char *name, const char *end)
{
    size_t size = strlen(name), end_bytes = strlen(end);

    return size >= end_bytes && strcmp(name + size - end_bytes, end) == 0;
}

static int begins_with(const char *name, const char *beginning)
{
    return strncmp(name, beginning, strlen(beginning)) == 0;
}

int heft_pickle_name(const char *name)
{
    static const char *const endings[] = {".pt", ".pth", ".ckpt", ".pkl", ".pickle"};
    size_t index;

    for (index = 0; index < sizeof(endings) / sizeof(endings[0]); index++)
        if (ends_with(name, endings[index]))
            return 1;
    return ends_with(name, ".bin") && (begins_with(name, "pytorch_model") || begins_with(name, "model") ||
                                       begins_with(name, "diffusion_pytorch_model"));
}

static const char *kind_text(enum heft_entry_kind kind)
{
    switch (kind) {
    case HEFT_ENTRY_DIRECTORY:
        return "a directory";
    case HEFT_ENTRY_FIFO:
        return "a FIFO";
    case HEFT_ENTRY_BROKEN_LINK:
        return "a link to nothing";
    default:
        return "a socket or device";
    }
}

static int not_a_file(const struct heft_dir_entry *entry, struct heft_error *error)
{
    struct heft_quote quote;

    return heft_error_set(error, HEFT_ERR_NOT_A_FILE, "%s is %s, not a regular file",
                          heft_quote_text(&quote, entry->name), kind_text(entry->kind));
}

static int compare_candidates(const void *left, const void *right)
{
    return heft_shard_name_compare(&((const struct candidate *)left)->shard,
                                   &((const struct candidate *)right)->shard);
}

/* ---- sorting the listing out ---- */

static void sort_out(struct listing *listing, const struct heft_dir_entry *entry)
{
    struct candidate *candidate = &listing->candidates[listing->candidate_count];

    if (strchr(entry->name, '/') || entry->name[0] == '.')
        return;
    if (heft_shard_ending(entry->name)) {
        if (begins_with(entry->name, "consolidated") || begins_with(entry->name, "adapter") ||
            begins_with(entry->name, "mmproj")) {
            listing->aside = listing->aside ? listing->aside : entry->name;
            listing->aside_count++;
            return;
        }
        (void)heft_shard_name_parse(entry->name, &candidate->shard);
        candidate->entry = entry;
        listing->candidate_count++;
    } else if (heft_pickle_name(entry->name)) {
        listing->pickle = entry->name;
    }
}

/* Beside safetensors, GGUF is a second copy of the same model. */
static void prefer_safetensors(struct listing *listing)
{
    size_t index, kept = 0, safetensors = 0;

    for (index = 0; index < listing->candidate_count; index++)
        if (ends_with(listing->candidates[index].entry->name, ".safetensors"))
            safetensors++;
    if (safetensors == 0)
        return;
    for (index = 0; index < listing->candidate_count; index++) {
        const char *name = listing->candidates[index].entry->name;

        if (ends_with(name, ".safetensors")) {
            listing->candidates[kept++] = listing->candidates[index];
            continue;
        }
        listing->aside = listing->aside ? listing->aside : name;
        listing->aside_count++;
    }
    listing->candidate_count = kept;
}

static void make_groups(struct listing *listing)
{
    size_t index, count = listing->candidate_count;

    qsort(listing->candidates, count, sizeof(*listing->candidates), compare_candidates);
    for (index = 0; index < count; index++) {
        struct group *last = listing->group_count ? &listing->groups[listing->group_count - 1] : NULL;

        if (last &&
            heft_shard_same_set(&listing->candidates[last->first].shard, &listing->candidates[index].shard))
            last->count++;
        else
            listing->groups[listing->group_count++] = (struct group){.first = index, .count = 1};
    }
}

static void close_listing(struct listing *listing)
{
    heft_map_free(&listing->by_name);
    free(listing->candidates);
    free(listing->groups);
}

static int open_listing(struct listing *listing, const struct heft_dir_entry *entries, size_t count,
                        struct heft_error *error)
{
    size_t index;

    *listing = (struct listing){.entries = entries, .entry_count = count};
    heft_map_init(&listing->by_name);
    listing->candidates = malloc((count + 1) * sizeof(*listing->candidates));
    listing->groups = malloc((count + 1) * sizeof(*listing->groups));
    if (!listing->candidates || !listing->groups || heft_map_reserve(&listing->by_name, count)) {
        close_listing(listing);
        return no_memory(error);
    }
    for (index = 0; index < count; index++) {
        if (heft_map_put(&listing->by_name, entries[index].name, strlen(entries[index].name), index, NULL,
                         NULL)) {
            close_listing(listing);
            return no_memory(error);
        }
        sort_out(listing, &entries[index]);
    }
    prefer_safetensors(listing);
    make_groups(listing);
    return HEFT_OK;
}

static const struct heft_dir_entry *find_entry(const struct listing *listing, const char *name)
{
    uint64_t index;

    return heft_map_get(&listing->by_name, name, strlen(name), &index) ? &listing->entries[index] : NULL;
}

/* ---- the choice ---- */

void heft_dir_choice_free(struct heft_dir_choice *choice)
{
    if (!choice)
        return;
    free((void *)choice->files);
    free(choice);
}

static struct heft_dir_choice *new_choice(size_t files)
{
    struct heft_dir_choice *choice = calloc(1, sizeof(*choice));

    if (!choice)
        return NULL;
    choice->files = calloc(files + 1, sizeof(*choice->files));
    if (!choice->files) {
        free(choice);
        return NULL;
    }
    return choice;
}

static void note_ignored(struct heft_dir_choice *choice, const char *example, size_t count, const char *why)
{
    struct heft_quote quote;

    if (count == 1)
        (void)snprintf(choice->note, sizeof(choice->note), "%s ignored: %s", heft_quote_text(&quote, example),
                       why);
    else if (count > 1)
        (void)snprintf(choice->note, sizeof(choice->note), "%s and %zu more weight files ignored: %s",
                       heft_quote_text(&quote, example), count - 1, why);
}

/* ---- by index ---- */

static int compare_texts(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static int index_names(const struct heft_shard_index *index, const char *name)
{
    return bsearch(&name, index->shards, index->shard_count, sizeof(*index->shards), compare_texts) != NULL;
}

static int check_indexed(const struct listing *listing, const struct heft_shard_index *index,
                         struct heft_error *error)
{
    struct heft_missing missing = {0};
    struct heft_shard_name shard;
    struct heft_quote quote;
    char text[400];
    uint32_t number;

    if (index->shard_count == 0)
        return heft_error_set(error, HEFT_ERR_NO_WEIGHTS, "the shard index names no shard");
    for (number = 0; number < index->shard_count; number++) {
        const char *name = index->shards[number];
        const struct heft_dir_entry *entry = find_entry(listing, name);

        if (heft_pickle_name(name))
            return heft_error_set(error, HEFT_ERR_PICKLE,
                                  "the shard index names the pickle checkpoint %s; convert it to safetensors",
                                  heft_quote_text(&quote, name));
        (void)heft_shard_name_parse(name, &shard);
        if (!entry || entry->kind == HEFT_ENTRY_BROKEN_LINK)
            heft_missing_add(&missing, &shard);
        else if (entry->kind != HEFT_ENTRY_FILE)
            return not_a_file(entry, error);
    }
    if (missing.count == 0)
        return HEFT_OK;
    heft_missing_text(&missing, text, sizeof(text));
    return heft_error_set(error, HEFT_ERR_SHARD_MISSING,
                          "incomplete download? %" PRIu64 " of the %" PRIu32
                          " shards that the index names are missing: %s",
                          missing.count, index->shard_count, text);
}

/*
 * Files that the index does not name. One that belongs to the same numbering as the index's shards means that
 * the index is not the one of this folder, or is cut: then nothing here can be trusted to be whole.
 */
static int check_unindexed(const struct listing *listing, const struct heft_shard_index *index,
                           struct heft_dir_choice *choice, struct heft_error *error)
{
    const char *example = listing->aside;
    size_t group, at, ignored = listing->aside_count;
    struct heft_quote quote, named;

    for (group = 0; group < listing->group_count; group++) {
        const struct candidate *first = &listing->candidates[listing->groups[group].first];
        const char *indexed = NULL, *unindexed = NULL;

        for (at = 0; at < listing->groups[group].count; at++) {
            if (index_names(index, first[at].entry->name)) {
                indexed = first[at].entry->name;
            } else {
                unindexed = first[at].entry->name;
                example = example ? example : unindexed;
                ignored++;
            }
        }
        if (indexed && unindexed)
            return heft_error_set(
                error, HEFT_ERR_SHARD_UNINDEXED,
                "%s lies in the folder but the index does not name it, though it names %s of the same set; "
                "fetch the index again, move the file away, or ignore the index",
                heft_quote_text(&quote, unindexed), heft_quote_text(&named, indexed));
    }
    note_ignored(choice, example, ignored, "the index lists other shards");
    return HEFT_OK;
}

static int choose_by_index(const struct listing *listing, const struct heft_shard_index *index,
                           struct heft_dir_choice **choice_out, struct heft_error *error)
{
    struct heft_dir_choice *choice;
    int rc = check_indexed(listing, index, error);

    if (rc)
        return rc;
    choice = new_choice(index->shard_count);
    if (!choice)
        return no_memory(error);
    rc = check_unindexed(listing, index, choice, error);
    if (rc) {
        heft_dir_choice_free(choice);
        return rc;
    }
    for (choice->file_count = 0; choice->file_count < index->shard_count; choice->file_count++)
        choice->files[choice->file_count] = index->shards[choice->file_count];
    choice->by_index = 1;
    *choice_out = choice;
    return HEFT_OK;
}

/* ---- without an index ---- */

static int nothing_found(const struct listing *listing, struct heft_error *error)
{
    struct heft_quote quote;

    if (listing->pickle)
        return heft_error_set(
            error, HEFT_ERR_PICKLE,
            "no safetensors files, only the pickle checkpoint %s, which executes code when loaded; "
            "convert it to safetensors, or take a revision that has them",
            heft_quote_text(&quote, listing->pickle));
    if (listing->aside)
        return heft_error_set(
            error, HEFT_ERR_NO_WEIGHTS,
            "no model files, only %s, which is taken when it is named itself: give the path of that file",
            heft_quote_text(&quote, listing->aside));
    return heft_error_set(error, HEFT_ERR_NO_WEIGHTS,
                          "no *.safetensors or *.gguf files in the folder; incomplete download, or a folder "
                          "above the model's?");
}

static int several_found(const struct listing *listing, struct heft_error *error)
{
    struct heft_quote first, second;

    return heft_error_set(error, HEFT_ERR_AMBIGUOUS,
                          "%zu models in one folder and no index that decides: %s and %s%s; name one file, "
                          "or move the others away",
                          listing->group_count,
                          heft_quote_text(&first, listing->candidates[listing->groups[0].first].entry->name),
                          heft_quote_text(&second, listing->candidates[listing->groups[1].first].entry->name),
                          listing->group_count > 2 ? " and others" : "");
}

/* What is missing of a numbered set; number 0 present means that counting starts there. */
static int check_set(const struct candidate *set, size_t count, int gaps_allowed, struct heft_error *error)
{
    uint64_t next = set[0].shard.number == 0 ? 0 : 1;
    uint64_t end = set[0].shard.total + next; /* one past the last number */
    struct heft_shard_name gap = set[0].shard;
    struct heft_missing missing = {0};
    struct heft_quote first, second;
    char text[400];
    size_t index;

    for (index = 0; index < count; index++) {
        uint64_t number = set[index].shard.number;

        if (number >= end)
            return heft_error_set(error, HEFT_ERR_SHARD_UNINDEXED, "%s has a number past its own total",
                                  heft_quote_text(&first, set[index].entry->name));
        if (index > 0 && number == set[index - 1].shard.number)
            return heft_error_set(error, HEFT_ERR_AMBIGUOUS, "%s and %s have the same number",
                                  heft_quote_text(&first, set[index - 1].entry->name),
                                  heft_quote_text(&second, set[index].entry->name));
        gap.number = next;
        heft_missing_add_run(&missing, &gap, number - next);
        if (set[index].entry->kind == HEFT_ENTRY_BROKEN_LINK)
            heft_missing_add(&missing, &set[index].shard);
        next = number + 1;
    }
    gap.number = next;
    heft_missing_add_run(&missing, &gap, end - next);
    if (missing.count == 0 || gaps_allowed)
        return HEFT_OK;
    heft_missing_text(&missing, text, sizeof(text));
    return heft_error_set(error, HEFT_ERR_SHARD_MISSING,
                          "incomplete download? %" PRIu64 " of %" PRIu64 " shards are missing: %s",
                          missing.count, set[0].shard.total, text);
}

static int check_single(const struct candidate *single, struct heft_error *error)
{
    struct heft_quote quote;

    if (single->entry->kind == HEFT_ENTRY_BROKEN_LINK)
        return heft_error_set(error, HEFT_ERR_SHARD_MISSING, "incomplete download? %s is a link to nothing",
                              heft_quote_text(&quote, single->entry->name));
    return HEFT_OK;
}

static int choose_group(const struct listing *listing, int gaps_allowed, struct heft_dir_choice **choice_out,
                        struct heft_error *error)
{
    const struct group *group = &listing->groups[0];
    const struct candidate *set = &listing->candidates[group->first];
    struct heft_dir_choice *choice;
    size_t index, files = 0;
    int rc;

    for (index = 0; index < group->count; index++) {
        files += set[index].entry->kind == HEFT_ENTRY_FILE;
        if (set[index].entry->kind != HEFT_ENTRY_FILE && set[index].entry->kind != HEFT_ENTRY_BROKEN_LINK)
            return not_a_file(set[index].entry, error);
    }
    rc = set[0].shard.total ? check_set(set, group->count, gaps_allowed && files > 0, error)
                            : check_single(set, error);
    if (rc)
        return rc;
    choice = new_choice(group->count);
    if (!choice)
        return no_memory(error);
    for (index = 0; index < group->count; index++)
        if (set[index].entry->kind == HEFT_ENTRY_FILE)
            choice->files[choice->file_count++] = set[index].entry->name;
    note_ignored(choice, listing->aside, listing->aside_count, "it is taken only when it is named itself");
    *choice_out = choice;
    return HEFT_OK;
}

/* Several models, of which the index names files that are there: those. */
static int choose_named(const struct listing *listing, const struct heft_shard_index *index,
                        struct heft_dir_choice **choice_out, struct heft_error *error)
{
    struct heft_dir_choice *choice = new_choice(index->shard_count);
    uint32_t number;

    if (!choice)
        return no_memory(error);
    for (number = 0; number < index->shard_count; number++) {
        const struct heft_dir_entry *entry = find_entry(listing, index->shards[number]);

        if (entry && entry->kind == HEFT_ENTRY_FILE)
            choice->files[choice->file_count++] = entry->name;
    }
    if (choice->file_count == 0) {
        heft_dir_choice_free(choice);
        return several_found(listing, error);
    }
    *choice_out = choice;
    return HEFT_OK;
}

int heft_dir_choose(const struct heft_dir_entry *entries, size_t entry_count,
                    const struct heft_shard_index *index, struct heft_dir_choice **choice_out,
                    struct heft_error *error)
{
    struct listing listing;
    int rc = open_listing(&listing, entries, entry_count, error);

    if (rc)
        return rc;
    if (index)
        rc = choose_by_index(&listing, index, choice_out, error);
    else if (listing.group_count == 0)
        rc = nothing_found(&listing, error);
    else if (listing.group_count > 1)
        rc = several_found(&listing, error);
    else
        rc = choose_group(&listing, 0, choice_out, error);
    close_listing(&listing);
    return rc;
}

int heft_dir_choose_present(const struct heft_dir_entry *entries, size_t entry_count,
                            const struct heft_shard_index *index, struct heft_dir_choice **choice_out,
                            struct heft_error *error)
{
    struct listing listing;
    int rc = open_listing(&listing, entries, entry_count, error);

    if (rc)
        return rc;
    if (listing.group_count == 0)
        rc = nothing_found(&listing, error);
    else if (listing.group_count == 1)
        rc = choose_group(&listing, index != NULL, choice_out, error);
    else
        rc = index ? choose_named(&listing, index, choice_out, error) : several_found(&listing, error);
    close_listing(&listing);
    return rc;
}
