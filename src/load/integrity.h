/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a load's bytes are compared with: block digests that a replica published or that were kept of an
 * earlier load, and the checksums that a store keeps of whole objects. And what is kept for later loads.
 */
#ifndef HEFT_LOAD_INTEGRITY_H
#define HEFT_LOAD_INTEGRITY_H

#include "load/checksums.h"
#include "load/kept.h"

struct heft_load;

/* Tables for the executor, by the layout's entries; all NULL when nothing is verified. */
struct heft_digest_tables {
    const uint64_t *expected; /* NULL: none are known */
    uint64_t *expected_first, *computed, *computed_first;
    const struct heft_manifest *published; /* a replica's, whose digests `expected` are; NULL: none's */
    struct heft_kept kept;                 /* digests NULL: none are */
};

/* Where each wanted tensor's digests are expected (by whoever knows them) and kept (tensors wanted whole). */
int heft_digest_tables_make(struct heft_load *load, struct heft_digest_tables *tables,
                            struct heft_error *error);
void heft_digest_tables_free(struct heft_digest_tables *tables);
/* load->checksums, NULL when nothing is compared with a store's; else *on_chunk and *context go through it.
 */
int heft_load_start_checksums(struct heft_load *load, const struct heft_digest_tables *tables,
                              uint8_t *const *addresses, void (**on_chunk)(void *context, uint64_t chunk),
                              void **context, struct heft_error *error);
/* Every chunk arrived: the stores' verdict; then what is now known to be right is kept for later loads. */
int heft_load_finish_checksums(struct heft_load *load, const struct heft_digest_tables *tables,
                               uint64_t end_ns, struct heft_error *error);
/* A digest did not match: says what to do. */
void heft_load_explain_digest(const struct heft_load *load, const struct heft_digest_tables *tables,
                              struct heft_error *error);

#endif
