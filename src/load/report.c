/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load report (docs/report.md): what was loaded, from where, by which route and why, how fast, what it
 * cost, and for each source that was not used, the reason. Times are seconds, rates bytes a second.
 */
#include "base/clock.h"
#include "load/load.h"
#include "transport/object/object.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static double seconds(uint64_t ns)
{
    return (double)ns / (double)HEFT_NS_PER_S;
}

/* A JSON string even of bytes that are not UTF-8 (names come from files and peers). */
static json_t *text(const char *value)
{
    json_t *made = json_string(value ? value : "");

    return made ? made : json_string("(not UTF-8)");
}

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static double rate(uint64_t bytes, uint64_t ns)
{
    return ns ? (double)bytes / seconds(ns) : 0;
}

static json_t *error_object(const struct heft_error *error)
{
    json_t *object = json_object();

    (void)json_object_set_new(object, "code", json_string(heft_error_name(error->code)));
    (void)json_object_set_new(object, "text", text(error->text));
    return object;
}

static json_t *source_object(const struct heft_source *source, uint64_t total_bytes)
{
    static const char *const states[] = {"", "unused", "used", "lost", "refused"};
    json_t *object = json_object(), *routes = json_array();
    uint64_t took = source->last_ns > source->first_ns ? source->last_ns - source->first_ns : 0;
    int index;

    (void)json_object_set_new(object, "name", text(source->name));
    (void)json_object_set_new(object, "kind",
                              json_string(source->kind == HEFT_SOURCE_FILES     ? "file"
                                          : source->kind == HEFT_SOURCE_OBJECTS ? "object"
                                          : source->kind == HEFT_SOURCE_SHARE   ? "share"
                                                                                : "peer"));
    if (source->addresses[0])
        (void)json_object_set_new(object, "addresses", text(source->addresses));
    (void)json_object_set_new(object, "state",
                              json_string(source->excluded ? "unused" : states[source->state]));
    (void)json_object_set_new(object, "why", text(source->why));
    if (source->reason.code)
        (void)json_object_set_new(object, "reason", error_object(&source->reason));
    (void)json_object_set_new(object, "bytes", number(source->bytes));
    if (source->kind == HEFT_SOURCE_SHARE)
        (void)json_object_set_new(object, "read_bytes", number(source->read_bytes));
    (void)json_object_set_new(object, "share",
                              json_real(total_bytes ? (double)source->bytes / (double)total_bytes : 0));
    (void)json_object_set_new(object, "chunks", number(source->chunks));
    (void)json_object_set_new(object, "seconds", json_real(seconds(took)));
    (void)json_object_set_new(object, "rate", json_real(rate(source->bytes, took)));
    (void)json_object_set_new(object, "retries", number(source->retries));
    (void)json_object_set_new(object, "digest_errors", number(source->digest_errors));
    for (index = 0; index < HEFT_SOURCE_MAX_ROUTES && source->routes[index].transport; index++) {
        json_t *route = json_object();

        (void)json_object_set_new(route, "transport", json_string(source->routes[index].transport));
        (void)json_object_set_new(route, "bytes", number(source->routes[index].bytes));
        (void)json_array_append_new(routes, route);
    }
    (void)json_object_set_new(object, "routes", routes);
    return object;
}

/* "file 600: its reason" as an object. */
static json_t *candidate_object(const char *line, size_t size)
{
    char copy[512], *score, *reason;
    json_t *object;

    (void)snprintf(copy, sizeof(copy), "%.*s", (int)(size < sizeof(copy) ? size : sizeof(copy) - 1), line);
    score = strchr(copy, ' ');
    reason = score ? strstr(score, ": ") : NULL;
    if (!reason)
        return NULL;
    *score++ = 0;
    *reason = 0;
    object = json_object();
    (void)json_object_set_new(object, "transport", text(copy));
    (void)json_object_set_new(object, "score", json_integer(strtol(score, NULL, 10)));
    (void)json_object_set_new(object, "reason", text(reason + 2));
    return object;
}

/* What a planned source would use: the transports' own words, the best first. */
static void add_explanation(const struct heft_load *load, const struct heft_source *source, json_t *object)
{
    char words[2048] = "";
    const char *line = words;
    json_t *candidates;

    if (source->state != HEFT_SOURCE_READY || !load->agent)
        return;
    if (heft_agent_explain(load->agent, source->peer, load->device >= 0 ? HEFT_SPACE_CUDA : HEFT_SPACE_HOST,
                           source->kind == HEFT_SOURCE_FILES     ? HEFT_SPACE_FILE
                           : source->kind == HEFT_SOURCE_OBJECTS ? HEFT_SPACE_OBJECT
                                                                 : HEFT_SPACE_HOST,
                           words, sizeof(words)))
        return;
    candidates = json_array();
    while (*line) {
        size_t size = strcspn(line, "\n");

        (void)json_array_append_new(candidates, candidate_object(line, size));
        line += size + (line[size] == '\n');
    }
    (void)json_object_set_new(object, "candidates", candidates);
}

/* What every rank holds whole, by the reason; the first tensor of each stands for the others. */
static json_t *not_split(const struct heft_layout *layout)
{
    uint64_t count[HEFT_LAYOUT_WHYS] = {0}, bytes[HEFT_LAYOUT_WHYS] = {0}, first[HEFT_LAYOUT_WHYS], index;
    json_t *list = json_array();
    int why;

    for (index = 0; index < layout->tensor_count; index++) {
        const struct heft_layout_tensor *entry = &layout->tensors[index];

        if (count[entry->why]++ == 0)
            first[entry->why] = entry->tensor;
        bytes[entry->why] += entry->size_bytes;
    }
    for (why = HEFT_LAYOUT_COPIED; why < HEFT_LAYOUT_WHYS; why++) {
        json_t *object;

        if (count[why] == 0)
            continue;
        object = json_object();
        (void)json_object_set_new(object, "why", text(heft_layout_why_text((enum heft_layout_why)why)));
        (void)json_object_set_new(object, "by_rule", json_boolean(why == HEFT_LAYOUT_COPIED));
        (void)json_object_set_new(object, "tensors", number(count[why]));
        (void)json_object_set_new(object, "bytes", number(bytes[why]));
        (void)json_object_set_new(object, "first", text(layout->reference->tensors[first[why]].name));
        (void)json_array_append_new(list, object);
    }
    return list;
}

static const char *split_word(const struct heft_load *load)
{
    const struct heft_load_options *o = &load->options;

    if (load->rules_name[0])
        return "rules";
    if (o->ranks <= 1 || load->no_rules.code)
        return "none";
    return o->split == HEFT_LOAD_SPLIT_COLUMN ? "column" : "row";
}

static void add_layout(const struct heft_load *load, json_t *layout)
{
    if (load->rules_name[0])
        (void)json_object_set_new(layout, "rules", text(load->rules_name));
    if (load->no_rules.code)
        (void)json_object_set_new(layout, "no_rules", text(load->no_rules.text));
    (void)json_object_set_new(layout, "tensors", number(load->layout->tensor_count));
    (void)json_object_set_new(layout, "split_tensors", number(load->layout->split_count));
    (void)json_object_set_new(layout, "wanted_bytes", number(load->layout->wanted_bytes));
    if (load->layout->left_out_count) {
        (void)json_object_set_new(layout, "left_out_tensors", number(load->layout->left_out_count));
        (void)json_object_set_new(layout, "left_out_bytes", number(load->layout->left_out_bytes));
    }
    if (load->rules_name[0])
        (void)json_object_set_new(layout, "not_split", not_split(load->layout));
}

static void add_model(const struct heft_load *load, json_t *report)
{
    const struct heft_load_options *o = &load->options;
    const struct heft_manifest *reference = load->found ? load->found->reference : NULL;
    json_t *layout = json_object();
    char *asked_for = o->model ? heft_object_shown(o->model) : NULL; /* a URL may hold a password */

    (void)json_object_set_new(report, "model", text(reference ? reference->identity.model : asked_for));
    (void)json_object_set_new(report, "asked_for", text(asked_for));
    if (load->options.to)
        (void)json_object_set_new(report, "to", text(load->options.to));
    free(asked_for);
    if (reference) {
        (void)json_object_set_new(report, "revision", text(reference->identity.revision));
        (void)json_object_set_new(report, "model_bytes", number(reference->total_bytes));
        (void)json_object_set_new(report, "model_tensors", number(reference->tensor_count));
    }
    (void)json_object_set_new(layout, "rank", number(o->rank));
    (void)json_object_set_new(layout, "ranks", number(o->ranks ? o->ranks : 1));
    (void)json_object_set_new(layout, "split", json_string(split_word(load)));
    if (load->layout)
        add_layout(load, layout);
    if (load->plan)
        (void)json_object_set_new(layout, "chunks", number(load->plan->chunk_count));
    (void)json_object_set_new(report, "layout", layout);
}

static void add_times(const struct heft_load *load, json_t *report)
{
    json_t *stages = json_object();
    uint64_t move = load->stage_ns[HEFT_STAGE_MOVE];
    uint64_t bytes = load->executor ? heft_executor_bytes_done(load->executor) : load->bytes_done;
    uint64_t now = heft_now_ns(), total = (load->ended_ns ? load->ended_ns : now) - load->started_ns;

    if (load->stage == HEFT_STAGE_MOVE)
        move += now - load->stage_began_ns;
    (void)json_object_set_new(stages, "init_s", json_real(seconds(load->stage_ns[HEFT_STAGE_INIT])));
    (void)json_object_set_new(stages, "plan_s", json_real(seconds(load->stage_ns[HEFT_STAGE_PLAN])));
    (void)json_object_set_new(stages, "move_s", json_real(seconds(move)));
    (void)json_object_set_new(stages, "verify_s", json_real(seconds(load->stage_ns[HEFT_STAGE_VERIFY])));
    (void)json_object_set_new(stages, "publish_s", json_real(seconds(load->stage_ns[HEFT_STAGE_PUBLISH])));
    (void)json_object_set_new(report, "stages", stages);
    (void)json_object_set_new(report, "seconds", json_real(seconds(total)));
    (void)json_object_set_new(report, "bytes", number(bytes));
    (void)json_object_set_new(report, "bytes_total", number(load->bytes_total));
    (void)json_object_set_new(report, "rate", json_real(rate(bytes, move)));
}

/* What the load was to the others of its fleet. */
static void add_fleet(const struct heft_load *load, json_t *report)
{
    const struct heft_fleet_summary *summary = &load->fleet_summary;
    json_t *fleet;

    if (summary->loads == 0)
        return;
    fleet = json_object();
    (void)json_object_set_new(fleet, "loads", number(summary->loads));
    (void)json_object_set_new(fleet, "found", number(summary->found));
    (void)json_object_set_new(fleet, "late", json_boolean(summary->is_late));
    (void)json_object_set_new(fleet, "waited_s", json_real(seconds(summary->waited_ns)));
    (void)json_object_set_new(report, "fleet", fleet);
}

static void add_costs(const struct heft_load *load, json_t *report)
{
    json_t *verified = json_object(), *memory = json_object();
    struct rusage usage;

    (void)json_object_set_new(verified, "blocks", number(load->blocks_verified));
    (void)json_object_set_new(verified, "blocks_total", number(load->blocks_total));
    (void)json_object_set_new(verified, "bytes", number(load->bytes_verified));
    (void)json_object_set_new(verified, "against", text(load->verified_against));
    (void)json_object_set_new(report, "verified", verified);
    if (!getrusage(RUSAGE_SELF, &usage)) {
        (void)json_object_set_new(memory, "peak_resident_bytes", number((uint64_t)usage.ru_maxrss * 1024));
        (void)json_object_set_new(
            report, "cpu_s",
            json_real((double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6 +
                      (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6));
    }
    (void)json_object_set_new(memory, "kind", text(load->memory_kind));
    (void)json_object_set_new(memory, "page_bytes", number(load->memory_page_bytes));
    (void)json_object_set_new(report, "memory", memory);
}

/* Objects and what their stores say of them. */
static void add_checksums(const struct heft_load *load, json_t *report)
{
    json_t *list = json_array();
    uint32_t index;

    for (index = 0; index < heft_checksums_count(load->checksums); index++) {
        struct heft_checked_object object;
        json_t *entry = json_object();

        heft_checksums_read(load->checksums, index, &object);
        (void)json_object_set_new(entry, "file", text(object.name));
        (void)json_object_set_new(entry, "checksum", json_string(heft_checksum_name(object.kind)));
        (void)json_object_set_new(entry, "checked", json_boolean(object.checked));
        if (!object.checked)
            (void)json_object_set_new(entry, "why", text(object.why));
        (void)json_array_append_new(list, entry);
    }
    (void)json_object_set_new(report, "checksums", list);
}

struct json_t *heft_report_make(const struct heft_load *load)
{
    json_t *report = json_object(), *sources = json_array();
    uint32_t index;

    if (!report || !sources) {
        json_decref(report);
        json_decref(sources);
        return NULL;
    }
    (void)json_object_set_new(report, "report_version", json_integer(1));
    add_model(load, report);
    (void)json_object_set_new(report, "stage", json_string(heft_stage_name(load->stage)));
    (void)json_object_set_new(report, "status",
                              json_string(load->ended_ns ? heft_error_name(load->status) : "AGAIN"));
    if (load->ended_ns && load->status)
        (void)json_object_set_new(report, "error", error_object(&load->error));
    add_times(load, report);
    for (index = 0; load->found && index < load->found->count; index++) {
        struct heft_source source;
        json_t *object;

        if (load->executor)
            heft_executor_read_source(load->executor, load->found->sources[index], &source);
        else
            source = *load->found->sources[index];
        object = source_object(&source, load->bytes_total);

        if (load->options.flags & HEFT_LOAD_EXPLAIN)
            add_explanation(load, load->found->sources[index], object);
        (void)json_array_append_new(sources, object);
    }
    (void)json_object_set_new(report, "sources", sources);
    add_fleet(load, report);
    if (load->checksums)
        add_checksums(load, report);
    add_costs(load, report);
    return report;
}

char *heft_report_text(struct json_t *report)
{
    return report ? json_dumps(report, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) : NULL;
}

char *heft_trace_text(const struct heft_load *load)
{
    struct heft_buf buf;
    int stage;

    heft_buf_init(&buf, SIZE_MAX);
    heft_buf_printf(&buf, "{\"traceEvents\":[\n");
    for (stage = HEFT_STAGE_INIT; stage < HEFT_STAGE_DONE; stage++)
        if (load->stage_start_ns[stage])
            heft_trace_write_stage(&buf, heft_stage_name((enum heft_load_stage)stage),
                                   load->stage_start_ns[stage], load->stage_ns[stage], load->started_ns);
    heft_trace_write(load->trace, load->started_ns, &buf);
    heft_buf_printf(&buf,
                    "{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"load\"}}\n"
                    "],\"displayTimeUnit\":\"ms\",\"lostEvents\":%" PRIu64 "}\n",
                    heft_trace_lost(load->trace));
    heft_buf_u8(&buf, 0);
    if (!buf.failed)
        return (char *)buf.data;
    heft_buf_free(&buf);
    return NULL;
}
