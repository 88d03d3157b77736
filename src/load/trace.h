/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each slot of each source did and when: recorded while a load moves, written as a Chrome trace
 * (docs/trace.md), which chrome://tracing and ui.perfetto.dev show.
 */
#ifndef HEFT_LOAD_TRACE_H
#define HEFT_LOAD_TRACE_H

#include "base/buf.h"
#include <heft/agent.h>

struct heft_trace;

/* Room for `expected` chunks and as many again that fail; what comes after that is counted, not kept. NULL:
 * out of memory. */
struct heft_trace *heft_trace_create(uint64_t expected);
void heft_trace_free(struct heft_trace *trace);
/* What a source is called; its events have the number index + 1. One thread. */
void heft_trace_name(struct heft_trace *trace, uint32_t index, const char *kind, const char *name);
/* Any thread; never waits. A transfer that was posted at posted_ns is over, and its chunk is checked, now:
 * `status` is what came of both. `trace` may be NULL. */
void heft_trace_transfer(struct heft_trace *trace, uint32_t source, uint32_t slot, uint64_t chunk,
                         uint64_t posted_ns, const struct heft_xfer_result *result, int status,
                         uint64_t now_ns);
uint64_t heft_trace_lost(const struct heft_trace *trace);
/* A span of the load itself, under number 0. */
void heft_trace_write_stage(struct heft_buf *buf, const char *name, uint64_t start_ns, uint64_t took_ns,
                            uint64_t origin_ns);
/* Names and chunks as events, each followed by a comma; times relative to origin_ns. Once nothing is added
 * any more. */
void heft_trace_write(const struct heft_trace *trace, uint64_t origin_ns, struct heft_buf *buf);

#endif
