/* SPDX-License-Identifier: Apache-2.0 */
/*
 * May the holder of one manifest supply bytes for another? Names, dtypes and shapes must be the same on both
 * sides, all of them: a partial match is how wrong weights get served. The answer names what differs, so that
 * nobody has to diff two models by hand.
 */
#include "format/manifest.h"
#include "base/error.h"
#include "format/manifest_text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SHOWN_DIFFERENCES 4u

struct diff {
    char text[HEFT_ERROR_TEXT_BYTES - 64]; /* room for the closing "and N more" */
    size_t used;
    uint64_t count, shown;
};

static void differ(struct diff *diff, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void differ(struct diff *diff, const char *format, ...)
{
    char one[HEFT_ERROR_TEXT_BYTES];
    const char *comma = diff->used ? "; " : "";
    size_t size;
    va_list args;

    va_start(args, format);
    (void)vsnprintf(one, sizeof(one), format, args);
    va_end(args);
    diff->count++;
    if (diff->shown == SHOWN_DIFFERENCES)
        return;
    size = strlen(one) + strlen(comma);
    if (diff->shown > 0 && diff->used + size >= sizeof(diff->text))
        return;
    (void)snprintf(diff->text + diff->used, sizeof(diff->text) - diff->used, "%s%s", comma, one);
    diff->used = strlen(diff->text);
    diff->shown++;
}

/* Counts a difference that has no room: millions of them must not cost a sentence each. */
static int is_full(struct diff *diff)
{
    diff->count += diff->shown == SHOWN_DIFFERENCES;
    return diff->shown == SHOWN_DIFFERENCES;
}

static int report(const struct diff *diff, const char *what, struct heft_error *error)
{
    if (diff->count == 0)
        return HEFT_OK;
    if (diff->count == diff->shown)
        return heft_error_set(error, HEFT_ERR_INCOMPATIBLE, "%s: %s", what, diff->text);
    return heft_error_set(error, HEFT_ERR_INCOMPATIBLE, "%s: %s; and %" PRIu64 " more", what, diff->text,
                          diff->count - diff->shown);
}

/* ---- identities ---- */

static void compare_field(struct diff *diff, const char *field, const char *left, const char *right)
{
    struct heft_quote l, r;

    left = left ? left : "";
    right = right ? right : "";
    if (strcmp(left, right) != 0)
        differ(diff, "%s %s wanted, %s offered", field, heft_quote_text(&l, left),
               heft_quote_text(&r, right));
}

static void compare_pairs(struct diff *diff, const struct heft_identity *left,
                          const struct heft_identity *right)
{
    uint32_t l = 0, r = 0;
    struct heft_quote key, value, other;

    while (l < left->pair_count || r < right->pair_count) {
        int order;

        if (l == left->pair_count)
            order = 1;
        else if (r == right->pair_count)
            order = -1;
        else
            order = strcmp(left->pairs[l].key, right->pairs[r].key);
        if (order < 0) {
            differ(diff, "key %s is %s wanted, absent offered", heft_quote_text(&key, left->pairs[l].key),
                   heft_quote_text(&value, left->pairs[l].value));
            l++;
        } else if (order > 0) {
            differ(diff, "key %s is absent wanted, %s offered", heft_quote_text(&key, right->pairs[r].key),
                   heft_quote_text(&value, right->pairs[r].value));
            r++;
        } else {
            if (strcmp(left->pairs[l].value, right->pairs[r].value) != 0)
                differ(diff, "key %s is %s wanted, %s offered", heft_quote_text(&key, left->pairs[l].key),
                       heft_quote_text(&value, left->pairs[l].value),
                       heft_quote_text(&other, right->pairs[r].value));
            l++;
            r++;
        }
    }
}

int heft_identity_compare(const struct heft_identity *left, const struct heft_identity *right,
                          struct heft_error *error)
{
    struct diff diff = {0};

    compare_field(&diff, "model", left->model, right->model);
    compare_field(&diff, "revision", left->revision, right->revision);
    compare_field(&diff, "stage", left->stage, right->stage);
    compare_field(&diff, "engine", left->engine, right->engine);
    compare_field(&diff, "rank", left->rank, right->rank);
    compare_pairs(&diff, left, right);
    return report(&diff, "the identities differ", error);
}

/* ---- tables ---- */

static int same_numbers(const uint64_t *left, const uint64_t *right, uint32_t count)
{
    return left == right || (left && right && memcmp(left, right, count * sizeof(*left)) == 0);
}

/* Sizes must agree where both hold the same box; where the boxes differ, each was checked against its dtype.
 */
static int same_tensor(const struct heft_manifest_tensor *left, const struct heft_manifest_tensor *right)
{
    int same_box;

    if (left->rank != right->rank || left->dtype_bits != right->dtype_bits ||
        strcmp(left->dtype, right->dtype) != 0 || !same_numbers(left->shape, right->shape, left->rank))
        return 0;
    same_box = same_numbers(left->box_start, right->box_start, left->rank) &&
               same_numbers(left->box_size, right->box_size, left->rank);
    return same_box ? left->size_bytes == right->size_bytes : left->dtype_bits != 0;
}

static void box_text(struct heft_quote *start, struct heft_quote *size,
                     const struct heft_manifest_tensor *tensor)
{
    if (!tensor->box_start) {
        memcpy(start->text, "all", 4);
        size->text[0] = 0;
        return;
    }
    (void)heft_quote_shape(start, tensor->box_start, tensor->rank);
    (void)heft_quote_shape(size, tensor->box_size, tensor->rank);
}

static void describe(struct diff *diff, const struct heft_manifest_tensor *left,
                     const struct heft_manifest_tensor *right)
{
    struct heft_quote name, l, r, l_size, r_size;

    (void)heft_quote_name(&name, left->name, left->name_bytes);
    if (strcmp(left->dtype, right->dtype) != 0)
        differ(diff, "tensor %s: dtype %s wanted, %s offered", name.text, heft_quote_text(&l, left->dtype),
               heft_quote_text(&r, right->dtype));
    else if (left->dtype_bits != right->dtype_bits)
        differ(diff, "tensor %s: %" PRIu32 " bits an element wanted, %" PRIu32 " offered", name.text,
               left->dtype_bits, right->dtype_bits);
    else if (left->rank != right->rank || !same_numbers(left->shape, right->shape, left->rank))
        differ(diff, "tensor %s: shape %s wanted, %s offered", name.text,
               heft_quote_shape(&l, left->shape, left->rank),
               heft_quote_shape(&r, right->shape, right->rank));
    else if (left->dtype_bits == 0 && (left->box_start || right->box_start)) {
        box_text(&l, &l_size, left);
        box_text(&r, &r_size, right);
        differ(diff, "tensor %s: box %s %s wanted, %s %s offered, and its dtype %s can't be cut", name.text,
               l.text, l_size.text, r.text, r_size.text, left->dtype);
    } else
        differ(diff, "tensor %s: size %" PRIu64 " bytes wanted, %" PRIu64 " offered", name.text,
               left->size_bytes, right->size_bytes);
}

int heft_manifest_compare(const struct heft_manifest *left, const struct heft_manifest *right,
                          struct heft_error *error)
{
    struct diff diff = {0};
    struct heft_quote name;
    uint64_t index, other, found = 0;
    int rc;

    rc = heft_identity_compare(&left->identity, &right->identity, error);
    if (rc)
        return rc;
    for (index = 0; index < left->tensor_count; index++) {
        const struct heft_manifest_tensor *tensor = &left->tensors[index];

        other = heft_manifest_find_near(right, index, tensor->name, tensor->name_bytes);
        if (other == UINT64_MAX) {
            if (!is_full(&diff))
                differ(&diff, "tensor %s is not offered",
                       heft_quote_name(&name, tensor->name, tensor->name_bytes));
            continue;
        }
        found++;
        if (!same_tensor(tensor, &right->tensors[other]) && !is_full(&diff))
            describe(&diff, tensor, &right->tensors[other]);
    }
    for (index = 0; found < right->tensor_count && index < right->tensor_count; index++) {
        const struct heft_manifest_tensor *tensor = &right->tensors[index];

        if (heft_manifest_find_near(left, index, tensor->name, tensor->name_bytes) == UINT64_MAX &&
            !is_full(&diff))
            differ(&diff, "tensor %s is offered but not wanted",
                   heft_quote_name(&name, tensor->name, tensor->name_bytes));
    }
    return report(&diff, "the tensor tables differ", error);
}
