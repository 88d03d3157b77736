/* SPDX-License-Identifier: Apache-2.0 */
/* What heft_region_acquire keeps. */
#ifndef HEFT_AGENT_REGION_CACHE_H
#define HEFT_AGENT_REGION_CACHE_H

#include "agent/agent_internal.h"

#define HEFT_REGION_CACHE_UNUSED 256 /* regions without a user that are kept; then the oldest goes */

struct heft_region_cache *heft_region_cache_new(void);
/* The agent's regions are gone, each with what was kept of it. */
void heft_region_cache_free(struct heft_region_cache *cache);

#endif
