/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts by split rules. Each tensor's cut is computed twice, once to count entries and once to write them:
 * it costs less than remembering it. A cut is one range (or a few, of a fused tensor) along one dimension and
 * at most one range of experts along another; scales of blocks take the range that their weight's covers.
 */
#include "base/error.h"
#include "plan/geometry.h"
#include "plan/layout_build.h"
#include "plan/rules.h"

#include <inttypes.h>
#include <string.h>

#define MAX_NAME 4096u

struct range {
    uint64_t start, end;
};

struct cut {
    enum heft_layout_why why;
    int left_out;
    uint32_t dim, part_count; /* part_count 0: not cut along a dimension */
    struct range parts[HEFT_RULE_MAX_PARTS];
    int has_experts; /* cut along expert_dim, too */
    uint32_t expert_dim;
    struct range experts;
};

struct maker {
    const struct heft_manifest *reference;
    const struct heft_rules *rules;
    struct heft_layout_wish wish;
};

const char *heft_layout_why_text(enum heft_layout_why why)
{
    static const char *const texts[HEFT_LAYOUT_WHYS] = {
        [HEFT_LAYOUT_ASKED] = "as asked for",
        [HEFT_LAYOUT_CUT] = "this rank's part",
        [HEFT_LAYOUT_OWNED] = "an expert of this rank",
        [HEFT_LAYOUT_COPIED] = "its rule gives it to every rank",
        [HEFT_LAYOUT_NO_RULE] = "no rule names it",
        [HEFT_LAYOUT_TOO_FEW] = "it has fewer units than there are ranks",
        [HEFT_LAYOUT_UNEVEN] = "its shape is not what its rule expects",
        [HEFT_LAYOUT_NO_CONFIG] = "config.json lacks a number that its rule needs",
        [HEFT_LAYOUT_NO_BYTES] = "its parts would not be whole bytes",
    };

    return why < HEFT_LAYOUT_WHYS ? texts[why] : "";
}

/* ---- one tensor ---- */

static void keep_whole(struct cut *cut, enum heft_layout_why why)
{
    cut->why = why;
    cut->part_count = 0;
}

static int other_stage(const struct maker *maker, const struct heft_rule_match *match)
{
    const struct heft_layout_wish *wish = &maker->wish;
    uint64_t layers = heft_rules_layers(maker->rules);
    int is_first = wish->layers_from == 0, is_last = layers == 0 || wish->layers_to >= layers;

    if (wish->layers_to == 0)
        return 0;
    if (match->layer != HEFT_RULE_NONE)
        return match->layer < wish->layers_from || match->layer >= wish->layers_to;
    if (!match->rule)
        return 0;
    /* The last stage computes its output with the same matrix when the two are tied. */
    if (match->rule->first_stage)
        return !is_first && !(is_last && heft_rules_tied(maker->rules));
    return match->rule->last_stage && !is_last;
}

/* Which experts are wanted, of `count`. */
static struct range wanted_experts(const struct heft_layout_wish *wish, uint64_t count)
{
    struct range range = {0, count};

    if (wish->experts == HEFT_EXPERTS_SPREAD)
        range = (struct range){heft_part_start(count, wish->rank, wish->ranks),
                               heft_part_start(count, wish->rank + 1, wish->ranks)};
    if (wish->experts_to) {
        if (range.start < wish->experts_from)
            range.start = wish->experts_from;
        if (range.end > wish->experts_to)
            range.end = wish->experts_to;
        if (range.end < range.start)
            range.end = range.start;
    }
    return range;
}

/* 1 when the tensor belongs to experts and is not to be cut any further: they are spread over the ranks. */
static int choose_experts(const struct maker *maker, const struct heft_manifest_tensor *tensor,
                          const struct heft_rule_match *match, struct cut *cut)
{
    const struct heft_rule *rule = match->rule;
    int is_spread = maker->wish.experts == HEFT_EXPERTS_SPREAD && maker->wish.ranks > 1;
    uint64_t count = heft_rules_experts(maker->rules);

    if (match->expert != HEFT_RULE_NONE) {
        struct range wanted = wanted_experts(&maker->wish, count ? count : UINT32_MAX);

        if (is_spread && count == 0) {
            keep_whole(cut, HEFT_LAYOUT_NO_CONFIG);
            return 1;
        }
        cut->left_out = match->expert < wanted.start || match->expert >= wanted.end;
        if (is_spread)
            keep_whole(cut, HEFT_LAYOUT_OWNED);
        return is_spread;
    }
    if (!rule || !rule->has_experts || rule->expert_dim >= tensor->rank)
        return 0;
    count = tensor->shape[rule->expert_dim];
    cut->experts = wanted_experts(&maker->wish, count);
    cut->expert_dim = rule->expert_dim;
    cut->has_experts = cut->experts.start > 0 || cut->experts.end < count;
    cut->left_out = cut->has_experts && cut->experts.start == cut->experts.end;
    if (is_spread)
        keep_whole(cut, HEFT_LAYOUT_OWNED);
    return is_spread;
}

/*
 * Units of one part and their size: as the rule counts them, else whole blocks of the block scales when there
 * are enough of them, else single elements.
 */
static uint64_t unit_of(const struct maker *maker, const struct heft_manifest_tensor *tensor,
                        const struct heft_rule *rule, uint32_t dim, uint64_t length)
{
    uint64_t block = tensor->rank == 2 ? heft_rules_block(maker->rules, dim) : 1;

    if (rule->unit)
        return rule->unit;
    return length % block == 0 && length / block >= maker->wish.ranks ? block : 1;
}

/* The rank's units of `units`; 0: there are too few. */
static int units_of_rank(const struct heft_layout_wish *wish, uint64_t units, int replicate,
                         struct range *range_out)
{
    if (units >= wish->ranks) {
        *range_out = (struct range){heft_part_start(units, wish->rank, wish->ranks),
                                    heft_part_start(units, wish->rank + 1, wish->ranks)};
        return 1;
    }
    range_out->start = units * wish->rank / wish->ranks;
    range_out->end = range_out->start + 1;
    return replicate && units > 0;
}

/* Every boundary of every rank must lie between bytes: all ranks must come to the same answer. */
static int falls_on_bytes(const struct maker *maker, const struct heft_manifest_tensor *tensor, uint32_t dim,
                          uint64_t at, uint64_t units, uint64_t unit)
{
    uint64_t bits = tensor->dtype_bits;
    uint32_t inner, rank;

    for (inner = dim + 1; inner < tensor->rank; inner++)
        bits *= tensor->shape[inner];
    if (bits % 8 == 0)
        return tensor->dtype_bits != 0;
    for (rank = 0; rank <= maker->wish.ranks; rank++)
        if ((at + heft_part_start(units, rank, maker->wish.ranks) * unit) * bits % 8 != 0)
            return 0;
    return units >= maker->wish.ranks;
}

static void cut_by_rule(const struct maker *maker, const struct heft_manifest_tensor *tensor,
                        const struct heft_rule *rule, struct cut *cut)
{
    uint32_t dim = (uint32_t)(rule->dim < 0 ? rule->dim + tensor->rank : rule->dim), part;
    uint64_t length, at = 0, total = 0;

    if (dim >= tensor->rank || (rule->has_experts && dim == rule->expert_dim)) {
        keep_whole(cut, HEFT_LAYOUT_UNEVEN);
        return;
    }
    length = tensor->shape[dim];
    for (part = 0; part < rule->part_count; part++) {
        if (rule->parts[part].missing) {
            keep_whole(cut, HEFT_LAYOUT_NO_CONFIG);
            return;
        }
        total += rule->parts[part].units;
    }
    for (part = 0; part < rule->part_count; part++) {
        uint64_t part_bytes, unit, units = rule->parts[part].units;
        struct range range;

        unit = total ? length / total : unit_of(maker, tensor, rule, dim, length / rule->part_count);
        part_bytes = total ? units * unit : length / rule->part_count;
        if (!total)
            units = part_bytes / unit;
        if (length % (total ? total : rule->part_count) || unit == 0 || part_bytes % unit) {
            keep_whole(cut, HEFT_LAYOUT_UNEVEN);
            return;
        }
        if (!units_of_rank(&maker->wish, units, rule->parts[part].replicate, &range)) {
            keep_whole(cut, HEFT_LAYOUT_TOO_FEW);
            return;
        }
        if (!falls_on_bytes(maker, tensor, dim, at, units, unit)) {
            keep_whole(cut, HEFT_LAYOUT_NO_BYTES);
            return;
        }
        cut->parts[part] = (struct range){at + range.start * unit, at + range.end * unit};
        at += part_bytes;
    }
    cut->why = HEFT_LAYOUT_CUT;
    cut->dim = dim;
    cut->part_count = rule->part_count;
}

static void find_cut(const struct maker *maker, const struct heft_manifest_tensor *tensor, int depth,
                     struct cut *cut_out);

/* How many elements of `whole` one of `count` stands for; 0: no whole number. */
static uint64_t elements_each(const struct heft_rules *rules, uint32_t dim, uint64_t whole, uint64_t count)
{
    uint64_t block = heft_rules_block(rules, dim);

    if (count == 0)
        return 0;
    if (block > 1 && whole / block + (whole % block != 0) == count)
        return block;
    return whole % count == 0 ? whole / count : 0;
}

/* A scale: the blocks that its weight's part touches. */
static void cut_like(const struct maker *maker, const struct heft_manifest_tensor *tensor,
                     const struct heft_rule *rule, int depth, struct cut *cut)
{
    char name[MAX_NAME];
    size_t ending = strlen(rule->like_ending), base = strlen(rule->like_base), kept;
    const struct heft_manifest_tensor *weight;
    uint64_t found, each;
    uint32_t part;

    kept = tensor->name_bytes - ending;
    if (depth > 0 || tensor->name_bytes <= ending || kept + base > MAX_NAME ||
        memcmp(tensor->name + kept, rule->like_ending, ending) != 0) {
        keep_whole(cut, HEFT_LAYOUT_UNEVEN);
        return;
    }
    memcpy(name, tensor->name, kept);
    memcpy(name + kept, rule->like_base, base);
    found = heft_manifest_find(maker->reference, name, kept + base);
    if (found == UINT64_MAX) {
        keep_whole(cut, HEFT_LAYOUT_UNEVEN);
        return;
    }
    weight = &maker->reference->tensors[found];
    find_cut(maker, weight, depth + 1, cut);
    if (cut->part_count == 0)
        return;
    if (cut->dim >= tensor->rank || tensor->rank > weight->rank ||
        (each = elements_each(maker->rules, cut->dim, weight->shape[cut->dim], tensor->shape[cut->dim])) ==
            0 ||
        !falls_on_bytes(maker, tensor, cut->dim, 0, 0, 1)) {
        keep_whole(cut, tensor->rank == 0 || tensor->shape[0] == 1 ? HEFT_LAYOUT_COPIED : HEFT_LAYOUT_UNEVEN);
        return;
    }
    for (part = 0; part < cut->part_count; part++) {
        cut->parts[part].start /= each;
        cut->parts[part].end = cut->parts[part].end / each + (cut->parts[part].end % each != 0);
    }
}

static void find_cut(const struct maker *maker, const struct heft_manifest_tensor *tensor, int depth,
                     struct cut *cut_out)
{
    struct cut cut = {.why = HEFT_LAYOUT_NO_RULE};
    struct heft_rule_match match;

    heft_rules_match(maker->rules, tensor->name, tensor->name_bytes, &match);
    if (other_stage(maker, &match)) {
        cut.left_out = 1;
    } else if (match.rule && match.rule->like_ending) {
        cut_like(maker, tensor, match.rule, depth, &cut);
    } else if (!choose_experts(maker, tensor, &match, &cut) && match.rule && !cut.left_out) {
        if (maker->wish.ranks == 1)
            keep_whole(&cut, HEFT_LAYOUT_ASKED);
        else if (match.rule->whole)
            keep_whole(&cut, HEFT_LAYOUT_COPIED);
        else
            cut_by_rule(maker, tensor, match.rule, &cut);
    }
    *cut_out = cut;
}

/* ---- entries ---- */

/* A fused tensor behind another dimension has its parts anew for each index of that one. */
static uint64_t outer_count(const struct heft_manifest_tensor *tensor, const struct cut *cut)
{
    uint64_t count = 1;
    uint32_t dim;

    for (dim = 0; dim < cut->dim; dim++)
        count *= cut->has_experts && dim == cut->expert_dim ? cut->experts.end - cut->experts.start
                                                            : tensor->shape[dim];
    return count;
}

static uint64_t entry_count(const struct heft_manifest_tensor *tensor, struct cut *cut)
{
    if (cut->part_count <= 1)
        return 1;
    if (cut->dim > 1 || outer_count(tensor, cut) > 65536) {
        keep_whole(cut, HEFT_LAYOUT_UNEVEN);
        return 1;
    }
    return outer_count(tensor, cut) * cut->part_count;
}

/* Writes the box of entry `number` of the cut; returns how many numbers it took, 0: the whole tensor. */
static uint64_t write_box(const struct heft_manifest_tensor *tensor, const struct cut *cut, uint64_t number,
                          struct heft_layout_tensor *entry, uint64_t *numbers)
{
    uint64_t *start = numbers, *size = numbers + tensor->rank;
    int is_whole = 1;
    uint32_t dim;

    for (dim = 0; dim < tensor->rank; dim++) {
        start[dim] = 0;
        size[dim] = tensor->shape[dim];
    }
    if (cut->has_experts) {
        start[cut->expert_dim] = cut->experts.start;
        size[cut->expert_dim] = cut->experts.end - cut->experts.start;
    }
    if (cut->part_count > 0) {
        const struct range *part = &cut->parts[number % cut->part_count];

        start[cut->dim] = part->start;
        size[cut->dim] = part->end - part->start;
    }
    if (cut->part_count > 1 && cut->dim == 1) {
        start[0] += number / cut->part_count;
        size[0] = 1;
    }
    for (dim = 0; dim < tensor->rank; dim++)
        is_whole &= size[dim] == tensor->shape[dim];
    if (is_whole)
        return 0;
    entry->start = start;
    entry->size = size;
    return (uint64_t)tensor->rank * 2;
}

static int check_wish(const struct maker *maker, struct heft_error *error)
{
    const struct heft_layout_wish *wish = &maker->wish;
    uint64_t layers = heft_rules_layers(maker->rules), experts = heft_rules_experts(maker->rules);

    if (wish->layers_to && wish->layers_from >= wish->layers_to)
        return heft_error_set(error, HEFT_ERR_INVALID, "layers %" PRIu64 " to %" PRIu64 " are none",
                              wish->layers_from, wish->layers_to);
    if (wish->layers_to && layers && wish->layers_from >= layers)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "layers from %" PRIu64 " on: the model has %" PRIu64 ", counted from 0",
                              wish->layers_from, layers);
    if (wish->experts_to && wish->experts_from >= wish->experts_to)
        return heft_error_set(error, HEFT_ERR_INVALID, "experts %" PRIu64 " to %" PRIu64 " are none",
                              wish->experts_from, wish->experts_to);
    if (wish->experts_to && experts && wish->experts_to > experts)
        return heft_error_set(error, HEFT_ERR_INVALID, "experts up to %" PRIu64 ": the model has %" PRIu64,
                              wish->experts_to, experts);
    return heft_layout_check_rank(wish->rank, wish->ranks, error);
}

static int add_entries(const struct heft_manifest_tensor *tensor, uint64_t index, const struct cut *cut,
                       uint64_t count, uint64_t align_bytes, struct heft_layout *layout, uint64_t *entry_at,
                       uint64_t **numbers, struct heft_error *error)
{
    uint64_t number;
    int rc;

    for (number = 0; number < count; number++) {
        struct heft_layout_tensor *entry = &layout->tensors[(*entry_at)++];

        entry->tensor = index;
        entry->why = (uint16_t)cut->why;
        entry->joined = number > 0;
        entry->joined_along = cut->dim;
        *numbers += write_box(tensor, cut, number, entry, *numbers);
        rc = entry->start ? heft_shape_bytes(tensor, &entry->size_bytes, error)
                          : heft_global_bytes(tensor, &entry->size_bytes, error);
        if (rc)
            return rc;
        if (entry->start)
            entry->size_bytes = heft_box_size_bytes(tensor, (struct heft_box){entry->start, entry->size});
        rc = heft_layout_place(layout, entry, number > 0 ? 1 : align_bytes, error);
        if (rc)
            return rc;
    }
    return HEFT_OK;
}

int heft_layout_rules(const struct heft_manifest *reference, const struct heft_rules *rules,
                      const struct heft_layout_wish *wish, uint64_t align_bytes,
                      struct heft_layout **layout_out, struct heft_error *error)
{
    struct maker maker = {reference, rules, *wish};
    struct heft_layout *layout = NULL;
    uint64_t index, count = 0, number_count = 0, entry = 0, *numbers;
    struct cut cut;
    int rc = heft_layout_check_align(align_bytes, error);

    if (maker.wish.ranks == 0)
        maker.wish.ranks = 1;
    if (!rc)
        rc = check_wish(&maker, error);
    for (index = 0; !rc && index < reference->tensor_count; index++) {
        const struct heft_manifest_tensor *tensor = &reference->tensors[index];
        uint64_t entries;

        find_cut(&maker, tensor, 0, &cut);
        if (cut.left_out)
            continue;
        entries = entry_count(tensor, &cut);
        count += entries;
        if (cut.part_count > 0 || cut.has_experts)
            number_count += entries * tensor->rank * 2;
    }
    /* write_box looks at a box before it knows that it is needed: room for one more. */
    if (!rc)
        rc = heft_layout_new(reference, count, number_count + (uint64_t)HEFT_TENSOR_MAX_RANK * 2, &layout,
                             error);
    if (rc)
        return rc;
    numbers = heft_layout_numbers(layout);
    for (index = 0; index < reference->tensor_count; index++) {
        const struct heft_manifest_tensor *tensor = &reference->tensors[index];

        find_cut(&maker, tensor, 0, &cut);
        if (cut.left_out) {
            layout->left_out_count++;
            layout->left_out_bytes += tensor->size_bytes;
            continue;
        }
        rc = add_entries(tensor, index, &cut, entry_count(tensor, &cut), align_bytes, layout, &entry,
                         &numbers, error);
        if (rc)
            goto fail_layout;
    }
    if (layout->tensor_count == 0 && reference->tensor_count > 0) {
        rc = heft_error_set(error, HEFT_ERR_INVALID, "this choice of layers and experts leaves no tensor");
        goto fail_layout;
    }
    *layout_out = layout;
    return HEFT_OK;

fail_layout:
    heft_layout_free(layout);
    return rc;
}
