/* SPDX-License-Identifier: Apache-2.0 */
#include "load/trace.h"
#include <heft/error.h>

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#define SPARE_CHUNKS 1024u
#define MAX_CHUNKS ((uint64_t)1 << 21)

struct heft_trace_chunk {
    uint32_t source, slot;
    int status;            /* 0, or why the transfer failed */
    const char *transport; /* static text; NULL: none was chosen */
    uint64_t chunk, bytes;
    uint64_t posted_ns, arrived_ns, verified_ns;
};

struct heft_trace {
    uint64_t capacity;
    uint64_t count; /* atomic; may pass capacity */
    struct heft_buf names;
    struct heft_trace_chunk chunks[];
};

struct heft_trace *heft_trace_create(uint64_t expected)
{
    uint64_t capacity = expected < MAX_CHUNKS / 2 ? expected * 2 + SPARE_CHUNKS : MAX_CHUNKS;
    struct heft_trace *trace = malloc(sizeof(*trace) + (size_t)capacity * sizeof(trace->chunks[0]));

    if (trace) {
        trace->capacity = capacity;
        trace->count = 0;
        heft_buf_init(&trace->names, (size_t)1 << 26);
    }
    return trace;
}

void heft_trace_free(struct heft_trace *trace)
{
    if (!trace)
        return;
    heft_buf_free(&trace->names);
    free(trace);
}

void heft_trace_name(struct heft_trace *trace, uint32_t index, const char *kind, const char *name)
{
    char joined[512];
    json_t *text;
    char *quoted;

    (void)snprintf(joined, sizeof(joined), "%s %s", kind, name);
    text = json_string(joined);
    if (!text) /* names come from files and peers: any bytes */
        text = json_string(kind);
    quoted = text ? json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    if (quoted)
        heft_buf_printf(&trace->names,
                        "{\"ph\":\"M\",\"pid\":%u,\"name\":\"process_name\",\"args\":{\"name\":%s}},\n",
                        index + 1, quoted);
    free(quoted);
    json_decref(text);
}

void heft_trace_transfer(struct heft_trace *trace, uint32_t source, uint32_t slot, uint64_t chunk,
                         uint64_t posted_ns, const struct heft_xfer_result *result, int status,
                         uint64_t now_ns)
{
    uint64_t at = trace ? __atomic_fetch_add(&trace->count, 1, __ATOMIC_RELAXED) : 0;

    if (!trace || at >= trace->capacity)
        return;
    trace->chunks[at] = (struct heft_trace_chunk){
        .source = source,
        .slot = slot,
        .status = status,
        .transport = result->transport,
        .chunk = chunk,
        .bytes = result->bytes,
        .posted_ns = posted_ns,
        .arrived_ns = result->end_ns > posted_ns && result->end_ns < now_ns ? result->end_ns : now_ns,
        .verified_ns = now_ns,
    };
}

uint64_t heft_trace_lost(const struct heft_trace *trace)
{
    uint64_t count = __atomic_load_n(&trace->count, __ATOMIC_RELAXED);

    return count > trace->capacity ? count - trace->capacity : 0;
}

static double microseconds(uint64_t ns, uint64_t origin_ns)
{
    return ns > origin_ns ? (double)(ns - origin_ns) / 1e3 : 0;
}

void heft_trace_write_stage(struct heft_buf *buf, const char *name, uint64_t start_ns, uint64_t took_ns,
                            uint64_t origin_ns)
{
    heft_buf_printf(
        buf,
        "{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"cat\":\"stage\",\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f},\n",
        name, microseconds(start_ns, origin_ns), (double)took_ns / 1e3);
}

void heft_trace_write(const struct heft_trace *trace, uint64_t origin_ns, struct heft_buf *buf)
{
    uint64_t count = __atomic_load_n(&trace->count, __ATOMIC_ACQUIRE);

    count = count < trace->capacity ? count : trace->capacity;
    heft_buf_bytes(buf, trace->names.data, trace->names.size);
    for (uint64_t index = 0; index < count; index++) {
        const struct heft_trace_chunk *chunk = &trace->chunks[index];
        const char *name = chunk->status      ? heft_error_name(chunk->status)
                           : chunk->transport ? chunk->transport
                                              : "move";
        const char *category = chunk->status == HEFT_OK             ? "move"
                               : chunk->status == HEFT_ERR_CANCELED ? "given"
                                                                    : "failed";
        double posted = microseconds(chunk->posted_ns, origin_ns);
        double arrived = microseconds(chunk->arrived_ns, origin_ns);
        double verified = microseconds(chunk->verified_ns, origin_ns);

        heft_buf_printf(buf,
                        "{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"cat\":\"%s\",\"name\":\"%s\",\"ts\":%.3f,"
                        "\"dur\":%.3f,\"args\":{\"chunk\":%" PRIu64 ",\"bytes\":%" PRIu64 "}},\n",
                        chunk->source + 1, chunk->slot, category, name, posted,
                        arrived > posted ? arrived - posted : 0, chunk->chunk, chunk->bytes);
        if (verified > arrived)
            heft_buf_printf(
                buf,
                "{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"cat\":\"verify\",\"name\":\"verify\",\"ts\":%.3f,"
                "\"dur\":%.3f,\"args\":{\"chunk\":%" PRIu64 "}},\n",
                chunk->source + 1, chunk->slot, arrived, verified - arrived, chunk->chunk);
    }
}
