/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/report_page.h"
#include "base/error.h"
#include "cli/cli.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 400
#define MAX_LANES 1000u
#define WIDTH 960.0
#define LEFT 210.0
#define LANE 64.0
#define GAP 14.0

/* One source, or all of them together. */
struct lane {
    char name[300];
    double bytes[COLUMNS]; /* that arrived in each column of time */
    double busy_us;        /* with at least one chunk under way: by columns */
    unsigned char failed[COLUMNS], active[COLUMNS];
    uint64_t chunks, failures, given;
};

struct picture {
    const json_t *report;
    double total_us;
    struct lane *lanes; /* 0: all sources */
    uint32_t lane_count;
    double top, limit; /* bytes a second: of the scale; 0: not known */
};

static const char *word(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

static double real(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* Names come from files and peers. */
static void put_text(struct heft_buf *page, const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '<' || c == '>' || c == '&' || c == '"' || (c < 32 && c != '\t'))
            heft_buf_printf(page, c < 32 ? "\xef\xbf\xbd" : "&#%u;", c);
        else
            heft_buf_u8(page, c);
    }
}

/* ---- from events to columns ---- */

static int column_of(const struct picture *picture, double us)
{
    double column = us / picture->total_us * COLUMNS;

    return column < 0 ? 0 : column >= COLUMNS ? COLUMNS - 1 : (int)column;
}

/* A chunk's bytes are spread evenly over its time under way. */
static void spread(const struct picture *picture, struct lane *lane, double from_us, double took_us,
                   double bytes)
{
    int first = column_of(picture, from_us), last = column_of(picture, from_us + took_us), column;
    double width = picture->total_us / COLUMNS;

    for (column = first; column <= last; column++) {
        double start = column * width > from_us ? column * width : from_us;
        double end = (column + 1) * width < from_us + took_us ? (column + 1) * width : from_us + took_us;

        lane->active[column] = 1;
        if (first == last || took_us <= 0)
            lane->bytes[column] += bytes / (last - first + 1);
        else if (end > start)
            lane->bytes[column] += bytes * (end - start) / took_us;
    }
}

static void add_event(struct picture *picture, const json_t *event)
{
    double pid = real(event, "pid"), from = real(event, "ts"), took = real(event, "dur");
    const char *phase = word(event, "ph"), *category = word(event, "cat");
    const json_t *arguments = json_object_get(event, "args");
    struct lane *lane;
    int at;

    if (pid < 0 || pid >= picture->lane_count || from < 0 || took < 0)
        return;
    lane = &picture->lanes[(uint32_t)pid];
    if (strcmp(phase, "M") == 0 && pid > 0) {
        (void)snprintf(lane->name, sizeof(lane->name), "%s", word(arguments, "name"));
    } else if (strcmp(category, "move") == 0 && pid > 0) {
        lane->chunks++;
        spread(picture, lane, from, took, real(arguments, "bytes"));
        spread(picture, &picture->lanes[0], from, took, real(arguments, "bytes"));
    } else if (strcmp(category, "given") == 0) {
        lane->given++;
    } else if (strcmp(category, "failed") == 0 && pid > 0) {
        at = column_of(picture, from + took);
        lane->failures++;
        lane->failed[at] = picture->lanes[0].failed[at] = 1;
    }
}

static int read_events(struct picture *picture, const json_t *events, struct heft_error *error)
{
    const json_t *event;
    double most = 0, end;
    uint32_t lane;
    size_t index;
    int column;

    json_array_foreach(events, index, event)
    {
        if (real(event, "pid") > most && real(event, "pid") < MAX_LANES)
            most = real(event, "pid");
        end = real(event, "ts") + real(event, "dur");
        if (end > picture->total_us)
            picture->total_us = end;
    }
    if (picture->total_us <= 0)
        return heft_error_set(error, HEFT_ERR_INVALID, "the trace has no events");
    picture->lane_count = (uint32_t)most + 1;
    picture->lanes = calloc(picture->lane_count, sizeof(*picture->lanes));
    if (!picture->lanes)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "drawing %u sources", picture->lane_count);
    (void)snprintf(picture->lanes[0].name, sizeof(picture->lanes[0].name), "all sources");
    json_array_foreach(events, index, event) add_event(picture, event);
    for (lane = 0; lane < picture->lane_count; lane++)
        for (column = 0; column < COLUMNS; column++) {
            double rate = picture->lanes[lane].bytes[column] / picture->total_us * COLUMNS * 1e6;

            picture->top = rate > picture->top ? rate : picture->top;
        }
    picture->limit = real(json_object_get(picture->report, "limit"), "rate");
    if (picture->limit > picture->top)
        picture->top = picture->limit;
    return HEFT_OK;
}

/* ---- drawing ---- */

static double x_of(double share)
{
    return LEFT + share * (WIDTH - LEFT - 10);
}

static void draw_lane(const struct picture *picture, struct heft_buf *page, const struct lane *lane, double y,
                      const char *colour)
{
    double scale = picture->top > 0 ? LANE / picture->top : 0, step = 1.0 / COLUMNS, moved = 0;
    int column;

    for (column = 0; column < COLUMNS; column++)
        moved += lane->bytes[column];
    heft_buf_printf(page, "<g><text x=\"0\" y=\"%.1f\" class=\"name\">", y + 16);
    put_text(page, strlen(lane->name) > 34 ? lane->name + strlen(lane->name) - 34 : lane->name);
    heft_buf_printf(page, "</text><text x=\"0\" y=\"%.1f\" class=\"small\">%s", y + 33,
                    cli_bytes((uint64_t)moved));
    if (lane != picture->lanes)
        heft_buf_printf(page, " in %llu chunks", (unsigned long long)lane->chunks);
    if (lane->given)
        heft_buf_printf(page, ", %llu left to others", (unsigned long long)lane->given);
    if (lane->failures)
        heft_buf_printf(page, ", <tspan class=\"bad\">%llu failed</tspan>",
                        (unsigned long long)lane->failures);
    heft_buf_printf(page,
                    "</text><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"ground\"/>",
                    LEFT, y, WIDTH - LEFT - 10, LANE);
    heft_buf_printf(page, "<path fill=\"%s\" d=\"M%.1f %.1f", colour, LEFT, y + LANE);
    for (column = 0; column < COLUMNS; column++) {
        double rate = lane->bytes[column] / picture->total_us * COLUMNS * 1e6;

        heft_buf_printf(page, "V%.1fH%.2f", y + LANE - rate * scale, x_of((column + 1) * step));
    }
    heft_buf_printf(page, "V%.1fZ\"/>", y + LANE);
    for (column = 0; column < COLUMNS; column++)
        if (lane->failed[column])
            heft_buf_printf(
                page,
                "<path class=\"mark\" d=\"M%.1f %.1fl-4 -7h8z\"><title>a transfer failed</title></path>",
                x_of((column + 0.5) * step), y + LANE);
    if (picture->limit > 0)
        heft_buf_printf(page, "<path class=\"limit\" d=\"M%.1f %.1fH%.1f\"/>", LEFT,
                        y + LANE - picture->limit * scale, WIDTH - 10);
    heft_buf_printf(page, "</g>\n");
}

static void draw_stages(const struct picture *picture, struct heft_buf *page, const json_t *events)
{
    static const struct {
        const char *name, *colour;
    } stages[] = {{"init", "#b9c4d0"},
                  {"plan", "#8fb3d9"},
                  {"move", "#3f7fbf"},
                  {"verify", "#5aa469"},
                  {"publish", "#c9a227"}};
    const json_t *event;
    size_t index, stage;
    double x = LEFT;

    for (stage = 0; stage < sizeof(stages) / sizeof(stages[0]); stage++) {
        json_array_foreach(events, index, event)
        {
            double from = real(event, "ts"), took = real(event, "dur");

            if (strcmp(word(event, "cat"), "stage") != 0 ||
                strcmp(word(event, "name"), stages[stage].name) != 0)
                continue;
            heft_buf_printf(
                page,
                "<rect x=\"%.2f\" y=\"24\" width=\"%.2f\" height=\"14\" fill=\"%s\"><title>%s: %s</title>"
                "</rect>\n",
                x_of(from / picture->total_us), (WIDTH - LEFT - 10) * took / picture->total_us,
                stages[stage].colour, stages[stage].name, cli_seconds(took / 1e6));
            heft_buf_printf(
                page,
                "<rect x=\"%.1f\" y=\"4\" width=\"10\" height=\"10\" fill=\"%s\"/><text x=\"%.1f\" y=\"13\" "
                "class=\"small\">%s %s</text>\n",
                x, stages[stage].colour, x + 14, stages[stage].name, cli_seconds(took / 1e6));
            x += 130;
        }
    }
}

static void draw_axis(const struct picture *picture, struct heft_buf *page, double y)
{
    int mark;

    for (mark = 0; mark <= 5; mark++)
        heft_buf_printf(page, "<text x=\"%.1f\" y=\"%.1f\" class=\"small\" text-anchor=\"%s\">%s</text>\n",
                        x_of(mark / 5.0), y + 14,
                        mark == 0   ? "start"
                        : mark == 5 ? "end"
                                    : "middle",
                        cli_seconds(picture->total_us / 1e6 * mark / 5));
}

static void draw(const struct picture *picture, struct heft_buf *page, const json_t *events)
{
    double height = 46 + picture->lane_count * (LANE + GAP) + 24, y = 46;
    uint32_t lane;

    heft_buf_printf(page,
                    "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n",
                    WIDTH, height);
    draw_stages(picture, page, events);
    for (lane = 0; lane < picture->lane_count; lane++, y += LANE + GAP)
        draw_lane(picture, page, &picture->lanes[lane], y, lane == 0 ? "#3f7fbf" : "#7aa6d6");
    draw_axis(picture, page, y - GAP);
    heft_buf_printf(page, "</svg>\n<p class=\"small\">Height of a lane: %s.", cli_rate(picture->top));
    if (picture->limit > 0)
        heft_buf_printf(page, " Dashed: %s, this machine's limit.", cli_rate(picture->limit));
    heft_buf_printf(page, " Triangles: transfers that failed.</p>\n");
}

static void put_sources(const struct picture *picture, struct heft_buf *page)
{
    const json_t *source, *route;
    size_t index, at;

    heft_buf_printf(page, "<table><tr><th>source</th><th>state</th><th>bytes</th><th>rate</th><th>by</th>"
                          "<th>retries</th><th>why</th></tr>\n");
    json_array_foreach(json_object_get(picture->report, "sources"), index, source)
    {
        const json_t *reason = json_object_get(source, "reason");

        heft_buf_printf(page, "<tr><td>");
        put_text(page, word(source, "name"));
        heft_buf_printf(page, "</td><td>");
        put_text(page, word(source, "state"));
        heft_buf_printf(page, "</td><td>%s</td><td>%s</td><td>", cli_bytes((uint64_t)real(source, "bytes")),
                        cli_rate(real(source, "rate")));
        json_array_foreach(json_object_get(source, "routes"), at, route)
        {
            heft_buf_printf(page, at ? ", " : "");
            put_text(page, word(route, "transport"));
        }
        heft_buf_printf(page, "</td><td>%.0f</td><td>", real(source, "retries"));
        put_text(page, reason ? word(reason, "text") : word(source, "why"));
        heft_buf_printf(page, "</td></tr>\n");
    }
    heft_buf_printf(page, "</table>\n");
}

int cli_report_page(const struct json_t *trace, struct heft_buf *page, struct heft_error *error)
{
    const json_t *events = json_object_get(trace, "traceEvents"), *limit;
    struct picture picture = {.report = json_object_get(trace, "heft")};
    int rc;

    if (!json_is_array(events) || !json_is_object(picture.report))
        return heft_error_set(
            error, HEFT_ERR_INVALID,
            "it has no times of single transfers; make it with heft load MODEL --trace FILE");
    rc = read_events(&picture, events, error);
    if (rc)
        return rc;
    limit = json_object_get(picture.report, "limit");
    heft_buf_printf(
        page, "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"><head>"
              "<meta charset=\"utf-8\"/><title>heft load</title>\n<style>"
              "body{font:15px system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}"
              "svg{width:100%%;height:auto}.name{font:600 12px system-ui,sans-serif}"
              ".small{font:12px system-ui,sans-serif;fill:#555;color:#555}.ground{fill:#f2f4f7}"
              ".limit{stroke:#c0392b;stroke-dasharray:5 4;fill:none}.mark,.bad{fill:#c0392b}"
              "table{border-collapse:collapse;font-size:13px}td,th{padding:3px 9px;text-align:left;"
              "border-bottom:1px solid #ddd;vertical-align:top}</style></head><body>\n<h1>");
    put_text(page, word(picture.report, "model"));
    heft_buf_printf(page, "</h1>\n<p>%s: %s of %s in %s, moved at %s", word(picture.report, "status"),
                    cli_bytes((uint64_t)real(picture.report, "bytes")),
                    cli_bytes((uint64_t)real(picture.report, "bytes_total")),
                    cli_seconds(real(picture.report, "seconds")), cli_rate(real(picture.report, "rate")));
    if (limit) {
        heft_buf_printf(page, ", %.0f %% of this machine's limit (", 100 * real(limit, "ratio"));
        put_text(page, word(limit, "what"));
        heft_buf_printf(page, ")");
    }
    heft_buf_printf(page, ".</p>\n");
    if (json_object_get(picture.report, "error")) {
        heft_buf_printf(page, "<p><b>");
        put_text(page, word(json_object_get(picture.report, "error"), "text"));
        heft_buf_printf(page, "</b></p>\n");
    }
    draw(&picture, page, events);
    put_sources(&picture, page);
    heft_buf_printf(page, "</body></html>\n");
    free(picture.lanes);
    return page->failed ? heft_error_set(error, HEFT_ERR_NO_MEMORY, "writing the page") : HEFT_OK;
}
