/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding sources: the files of this machine, replicas that a directory lists, replicas that the caller
 * names. Each candidate becomes a source, ready or refused with its reason; nothing is dropped in silence.
 */
#ifndef HEFT_LOAD_SOURCES_H
#define HEFT_LOAD_SOURCES_H

#include "load/directory.h"
#include "load/executor.h"
#include "load/loaded.h"
#include "load/open.h"
#include "load/share.h"
#include <heft/load.h>

struct heft_found {
    struct heft_source **sources; /* owned; ready ones first */
    uint32_t count, ready;
    const struct heft_manifest *reference; /* of the first ready source (files before peers) */
    struct heft_text_blob config;          /* config.json of the model, as far as a source has one */
    struct heft_opened *opened;            /* the model's files or objects, NULL: none */
    struct heft_opened **mirrors;          /* other places' */
    uint32_t mirror_count;
    struct heft_region **file_regions; /* of all of them */
    uint32_t file_region_count;
    struct heft_share *share; /* what loads of this host read once, NULL: nothing */
    struct heft_source *share_source, *share_storage;
    struct heft_region **share_regions; /* by file */
    uint32_t share_region_count;
    int share_finished; /* the load has all that it wanted of it */
};

/*
 * Which kinds a --source text allows. INVALID names the part that is unknown and what there is.
 */
struct heft_source_kinds {
    int files, peers, objects;
};
int heft_sources_parse(const char *text, struct heft_source_kinds *kinds_out, struct heft_error *error);
/*
 * Opens, connects and compares. Fails only when no source is ready: then the error lists all of them
 * (NOT_FOUND when there was no candidate at all; a broken model's own code when its files are the only
 * candidate). Ends soon after end_ns, and soon after *cancel (atomic) is not 0: then with CANCELED.
 */
int heft_sources_find(const struct heft_load_options *options, struct heft_agent *agent, uint64_t end_ns,
                      const uint32_t *cancel, struct heft_found **found_out, struct heft_error *error);
/*
 * One more, after find: a replica that was compared, or its refusal. Takes over peer (NULL: not connected)
 * and manifest. NULL out of memory: then they are freed.
 */
struct heft_source *heft_sources_add_peer(struct heft_found *found, const char *name, const char *addresses,
                                          const char *why, struct heft_peer *peer,
                                          struct heft_manifest *manifest, const struct heft_error *refusal);
/* INCOMPATIBLE when bytes all over the model differ; else why they could not be read. */
int heft_sources_sample(struct heft_agent *agent, const struct heft_source *left,
                        const struct heft_source *right, uint64_t end_ns, struct heft_error *error);
void heft_sources_free(struct heft_found *found);

#endif
