/* SPDX-License-Identifier: Apache-2.0 */
/* An agent's metadata, held: what others of this library need beyond include/heft/metadata.h. */
#ifndef HEFT_AGENT_METADATA_H
#define HEFT_AGENT_METADATA_H

#include "agent/agent_internal.h"

#include <heft/metadata.h>

/* Withdrawn ids that an agent remembers for exports since an epoch. */
#define HEFT_AGENT_DEPARTED_MAX 65536u

/* A region that peers could use went, at this epoch. region_lock held. */
void heft_departed_add(struct heft_agent *agent, uint64_t epoch, uint64_t id);
/*
 * Calls hook(context) under region_lock whenever the agent's regions changed; it must only signal. One hook a
 * context; hook NULL takes it away. NO_MEMORY, TOO_MANY (16).
 */
int heft_agent_set_regions_hook(struct heft_agent *agent, void (*hook)(void *context), void *context);
/*
 * heft_agent_export_metadata with the regions chosen by id: those that have gone are left out. ids NULL: all.
 */
int heft_metadata_export(struct heft_agent *agent, const struct heft_metadata_options *options,
                         const uint64_t *ids, size_t id_count, void **data_out, uint64_t *size_bytes_out,
                         struct heft_error *error);
/* The ids of chosen regions, freed by the caller; *ids_out is NULL when options choose none. INVALID. */
int heft_metadata_choose(struct heft_agent *agent, const struct heft_metadata_options *options,
                         uint64_t **ids_out, struct heft_error *error);
/* A copy that owns its bytes. */
int heft_metadata_copy(const struct heft_metadata *metadata, struct heft_metadata **copy_out);

#endif
