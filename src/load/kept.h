/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block digests that are kept between loads of the same objects: once a model's bytes were found right, later
 * loads, of parts too and from replicas, are compared with them block by block.
 *
 * They lie in the folder `digests` of heft's own cache, one file a model's version. A version is all of: the
 * model's name, where its tensors lie, and of each object its name, size and version at the store. Objects
 * whose store tells no strong ETag have none, and nothing is kept of them.
 */
#ifndef HEFT_LOAD_KEPT_H
#define HEFT_LOAD_KEPT_H

#include "load/open.h"

#define HEFT_KEPT_MAX_FILES 64u

struct heft_kept {
    uint64_t *digests; /* by the manifest's blocks */
    char path[4096];   /* the file's */
};

/*
 * NOT_FOUND: none are kept of this version. A file that is damaged, or is another version's, is as none, with
 * a warning.
 */
int heft_kept_read(const struct heft_opened *opened, struct heft_kept *kept_out);
/* Visible when whole. Of more than HEFT_KEPT_MAX_FILES the ones that were not used for longest are removed.
 */
int heft_kept_write(const struct heft_opened *opened, const uint64_t *digests, struct heft_error *error);
void heft_kept_free(struct heft_kept *kept);

#endif
