/* SPDX-License-Identifier: Apache-2.0 */
#include "load/integrity.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "load/load.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables ---- */

/* What was found right here before, then what a whole replica says. */
static void choose_expected(struct heft_load *load, struct heft_digest_tables *tables)
{
    const struct heft_found *found = load->found;
    uint32_t source;

    if (found->opened && found->opened->manifest == load->layout->reference &&
        !heft_kept_read(found->opened, &tables->kept)) {
        tables->expected = tables->kept.digests;
        (void)snprintf(load->verified_against, sizeof(load->verified_against),
                       "the digests of an earlier load");
        return;
    }
    for (source = 0; source < found->ready && !tables->published; source++)
        if (found->sources[source]->manifest->digests && !found->sources[source]->manifest->held) {
            tables->published = found->sources[source]->manifest;
            tables->expected = tables->published->digests;
            (void)snprintf(load->verified_against, sizeof(load->verified_against), "%s",
                           found->sources[source]->name);
        }
}

/* Where the digests of a tensor of the reference begin in `expected`; UINT64_MAX: they are not there. */
static uint64_t expected_first(const struct heft_digest_tables *tables, const struct heft_manifest *reference,
                               uint64_t tensor)
{
    const struct heft_manifest_tensor *of = &reference->tensors[tensor];
    const struct heft_manifest *published = tables->published;

    if (tables->kept.digests)
        return of->first_block;
    if (!published)
        return UINT64_MAX;
    if (published != reference)
        tensor = heft_manifest_find_near(published, tensor, of->name, of->name_bytes);
    return tensor == UINT64_MAX || published->tensors[tensor].box_start
               ? UINT64_MAX
               : published->tensors[tensor].first_block;
}

int heft_digest_tables_make(struct heft_load *load, struct heft_digest_tables *tables,
                            struct heft_error *error)
{
    const struct heft_layout *layout = load->layout;
    uint64_t count = layout->tensor_count ? layout->tensor_count : 1, index, blocks = 0;

    if (load->options.flags & HEFT_LOAD_NO_VERIFY)
        return HEFT_OK;
    choose_expected(load, tables);
    tables->expected_first = calloc(count, sizeof(*tables->expected_first));
    tables->computed_first = calloc(count, sizeof(*tables->computed_first));
    if (!tables->expected_first || !tables->computed_first)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "preparing the digests");
    for (index = 0; index < layout->tensor_count; index++) {
        const struct heft_layout_tensor *wanted = &layout->tensors[index];
        int whole = wanted->start == NULL;

        tables->expected_first[index] = expected_first(tables, layout->reference, wanted->tensor);
        tables->computed_first[index] = whole ? blocks : UINT64_MAX;
        if (whole)
            blocks += heft_block_count(wanted->size_bytes);
    }
    load->blocks_total = blocks;
    tables->computed = calloc(blocks ? blocks : 1, sizeof(*tables->computed));
    if (!tables->computed)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "preparing %" PRIu64 " digests", blocks);
    return HEFT_OK;
}

void heft_digest_tables_free(struct heft_digest_tables *tables)
{
    heft_kept_free(&tables->kept);
    free(tables->expected_first);
    free(tables->computed);
    free(tables->computed_first);
}

/* ---- checksums of stores ---- */

int heft_load_start_checksums(struct heft_load *load, const struct heft_digest_tables *tables,
                              uint8_t *const *addresses, void (**on_chunk)(void *context, uint64_t chunk),
                              void **context, struct heft_error *error)
{
    struct heft_checksums_options options = {
        .opened = load->found->opened,
        .plan = load->plan,
        .addresses = addresses,
        .device = load->device,
        .is_window = load->stream != NULL,
        .expected_first = tables->expected ? tables->expected_first : NULL,
        .next = *on_chunk,
        .next_context = *context,
    };
    struct heft_checksums *checksums;
    int rc;

    if (load->options.flags & (HEFT_LOAD_NO_VERIFY | HEFT_LOAD_NO_CHECKSUM) || !options.opened ||
        !options.opened->seen || options.opened->manifest != load->layout->reference)
        return HEFT_OK;
    rc = heft_checksums_start(&options, &checksums, error);
    if (rc)
        return rc;
    (void)pthread_mutex_lock(&load->lock);
    load->checksums = checksums;
    (void)pthread_mutex_unlock(&load->lock);
    *on_chunk = heft_checksums_on_chunk;
    *context = checksums;
    return HEFT_OK;
}

/* ---- what is kept ---- */

/* 1: every object is what its store says. */
static int all_checked(struct heft_load *load)
{
    uint32_t count = heft_checksums_count(load->checksums), index;
    struct heft_checked_object object = {0};
    int all = count > 0;

    for (index = 0; index < count && all; index++) {
        heft_checksums_read(load->checksums, index, &object);
        all = object.checked;
    }
    return all;
}

/* The digests of all of the model, as they were made from what arrived or as a replica has them; 0: they are
 * not all there. */
static int gather_digests(const struct heft_load *load, const struct heft_digest_tables *tables,
                          int from_replica, uint64_t *digests)
{
    const struct heft_layout *layout = load->layout;
    const struct heft_manifest *reference = layout->reference;
    uint64_t index, found = 0;

    for (index = 0; index < (from_replica ? reference->tensor_count : layout->tensor_count); index++) {
        uint64_t tensor = from_replica ? index : layout->tensors[index].tensor;
        uint64_t first =
            from_replica ? expected_first(tables, reference, tensor) : tables->computed_first[index];
        const struct heft_manifest_tensor *of = &reference->tensors[tensor];
        uint64_t count = heft_block_count(of->size_bytes);

        if (first == UINT64_MAX)
            return 0;
        memcpy(digests + of->first_block, (from_replica ? tables->expected : tables->computed) + first,
               count * sizeof(*digests));
        found += count;
    }
    return found == reference->block_count;
}

/* Of no consequence for this load when it fails. */
static void keep_digests(struct heft_load *load, const struct heft_digest_tables *tables)
{
    const struct heft_opened *opened = load->found->opened;
    int from_replica = tables->published != NULL;
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t *digests;

    if (!tables->computed || tables->kept.digests || !opened || !opened->urls ||
        opened->manifest != load->layout->reference || !(from_replica || all_checked(load)))
        return;
    digests = calloc(opened->manifest->block_count + 1, sizeof(*digests));
    if (digests && gather_digests(load, tables, from_replica, digests) &&
        heft_kept_write(opened, digests, &error))
        heft_log(HEFT_LOG_INFO, "later loads are not compared with this one: %s", error.text);
    free(digests);
}

/* Bytes of blocks that were compared: a rank brings no more than a part of some. */
static uint64_t compared_bytes(const struct heft_load *load, const struct heft_digest_tables *tables)
{
    uint64_t piece, bytes = 0;

    for (piece = 0; tables->expected && piece < load->plan->piece_count; piece++) {
        struct heft_piece_blocks blocks;

        heft_plan_piece_blocks(load->plan, piece, &blocks);
        if (blocks.count > 0 && tables->expected_first[blocks.layout_tensor] != UINT64_MAX)
            bytes += blocks.size_bytes;
    }
    return bytes;
}

int heft_load_finish_checksums(struct heft_load *load, const struct heft_digest_tables *tables,
                               uint64_t end_ns, struct heft_error *error)
{
    int rc = heft_checksums_finish(load->checksums, end_ns, &load->cancel_wanted, error);

    (void)pthread_mutex_lock(&load->lock);
    load->bytes_verified = compared_bytes(load, tables);
    (void)pthread_mutex_unlock(&load->lock);
    if (!rc)
        keep_digests(load, tables);
    return rc;
}

void heft_load_explain_digest(const struct heft_load *load, const struct heft_digest_tables *tables,
                              struct heft_error *error)
{
    const struct heft_manifest *reference = load->layout ? load->layout->reference : NULL;

    if (reference)
        (void)heft_error_prefix(error, HEFT_ERR_DIGEST, "%s", reference->identity.model);
    if (tables->kept.digests)
        heft_log(HEFT_LOG_WARN,
                 "the digests are those of an earlier load, in %s: if heft verify finds the objects right, "
                 "remove it",
                 tables->kept.path);
}
