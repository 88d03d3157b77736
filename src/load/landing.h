/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where files land: a folder that is made under a name of its own beside the wanted one, its files mapped
 * into one range of addresses that a load writes to like to any memory, and renamed once everything in it is
 * right. The room of every file is taken beforehand, so that a full disk is told before bytes move and never
 * while they are written through the map.
 */
#ifndef HEFT_LOAD_LANDING_H
#define HEFT_LOAD_LANDING_H

#include "plan/plan.h"

struct heft_landing;

/* As a layout has to align the files. */
uint64_t heft_landing_align_bytes(void);
/*
 * Makes the files of a layout of whole files (heft_dir_files_manifest; INVALID for any other). EXISTS when
 * there is more than an empty folder at `folder`; PATH_UNSAFE for a name that would leave it; NO_SPACE.
 */
int heft_landing_create(const char *folder, const struct heft_layout *layout,
                        struct heft_landing **landing_out, struct heft_error *error);
/* The range: arena_bytes of the layout. NULL when that is 0. */
uint8_t *heft_landing_address(const struct heft_landing *landing);
/* Everything on disk, then the folder has its name. */
int heft_landing_commit(struct heft_landing *landing, struct heft_error *error);
/* The map ends; what was not committed is removed. NULL is allowed. */
void heft_landing_free(struct heft_landing *landing);

#endif
