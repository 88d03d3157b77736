/* SPDX-License-Identifier: Apache-2.0 */
/* Models that lie behind a URL: a prefix of an S3 bucket, a folder of a web server, one file of either. */
#ifndef HEFT_LOAD_REMOTE_MODEL_H
#define HEFT_LOAD_REMOTE_MODEL_H

#include "format/modeldir.h"
#include "load/open.h"

/* 1 for references that heft_open_remote opens. */
int heft_ref_is_remote(const struct heft_ref *ref);
/* The model's name in its identity: the URL without credentials, query and closing slashes; malloc'ed. */
char *heft_remote_name(const struct heft_ref *ref);
/* As heft_open_model. Ends soon after end_ns (0: never), and soon after *cancel is not 0 (NULL: never). */
int heft_open_remote(const struct heft_ref *ref, const struct heft_model_options *options, uint64_t end_ns,
                     const uint32_t *cancel, struct heft_opened **opened_out, struct heft_error *error);
/* config.json beside it, as heft_open_config: NULL when there is none. commit: of a model of the hub. */
int heft_remote_config(const struct heft_ref *ref, const char *commit, uint64_t end_ns,
                       const uint32_t *cancel, char **text_out, size_t *size_out, struct heft_error *error);

#endif
