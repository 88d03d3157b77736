/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What several loads of one host read from storage, kept once between them. A share is a sparse file in
 * memory
 * (/dev/shm) that stands for all files of a model, in units of 4 MiB. Whoever wants a unit that is not there
 * claims it, reads it and marks it present; a unit that everybody has used is given back to the system.
 *
 * Nobody is in charge. A claim is a lock of the kernel's on one byte, which ends with its holder; so does the
 * column that tells which of the loads used what. Loads may come and go in any order.
 */
#ifndef HEFT_LOAD_SHARE_H
#define HEFT_LOAD_SHARE_H

#include "format/manifest.h"

#define HEFT_SHARE_UNIT_BYTES ((uint64_t)4 << 20)
#define HEFT_SHARE_MAX_LOADS 64u

struct heft_share;

/*
 * For `loads` loads of the model whose files the manifest lists. folder NULL: /dev/shm/heft-UID. EXISTS when
 * as many loads share it already; DENIED for a folder that others may write to.
 */
int heft_share_open(const char *folder, const struct heft_manifest *manifest, uint32_t loads,
                    struct heft_share **share_out, struct heft_error *error);
/* is_finished: this load will not come again for what it did not use. */
void heft_share_close(struct heft_share *share, int is_finished);

uint64_t heft_share_units(const struct heft_share *share);
uint32_t heft_share_loads(const struct heft_share *share);
uint32_t heft_share_column(const struct heft_share *share);
/* Where file `file` stands in memory: as long as the file, and to be read only where units are present. */
uint8_t *heft_share_file(const struct heft_share *share, uint32_t file);
uint64_t heft_share_unit(const struct heft_share *share, uint32_t file, uint64_t offset_bytes);
void heft_share_place(const struct heft_share *share, uint64_t unit, uint32_t *file_out, uint64_t *offset_out,
                      uint64_t *size_out);

int heft_share_is_present(const struct heft_share *share, uint64_t unit);
/* OK: it is to be read by the caller, there is memory for it. EXISTS: present by now. BUSY: somebody reads
 * it. NO_SPACE: no memory. One thread. */
int heft_share_claim(struct heft_share *share, uint64_t unit, struct heft_error *error);
/* Ends a claim; is_read: its bytes are there. Any thread. */
void heft_share_settle(struct heft_share *share, uint64_t unit, int is_read);
/* This load wants nothing more of the unit. Once a unit; any thread. */
void heft_share_use(struct heft_share *share, uint64_t unit);

/* Changes whenever any load read a unit; wait ends when it is not `seen` any more, or after the time. */
uint32_t heft_share_progress(const struct heft_share *share);
void heft_share_wait(struct heft_share *share, uint32_t seen, uint64_t timeout_ns);
/* Ends waits of this process and others. */
void heft_share_wake(struct heft_share *share);

#endif
