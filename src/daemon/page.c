/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of the HTTP side: metrics, and the page of replicas. Names come from clients: all are escaped. */
#include "daemon/http.h"

#include <heft/heft.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PAGE_MAX_REPLICAS 500u
#define SHORT_BYTES 12

static uint64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long total = 0, resident = 0;

    if (!file)
        return 0;
    if (fscanf(file, "%llu %llu", &total, &resident) != 2)
        resident = 0;
    (void)fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void metric(struct heft_buf *buf, const char *name, const char *type, const char *help, uint64_t value)
{
    heft_buf_printf(buf, "# HELP %s %s\n# TYPE %s %s\n%s %" PRIu64 "\n", name, help, name, type, name, value);
}

void heft_http_metrics(const struct heft_http_sources *sources, struct heft_buf *buf)
{
    struct heft_directory_service_status status;
    struct heft_grpc_server_counts calls;

    heft_directory_service_get_status(sources->service, &status);
    heft_grpc_server_get_counts(sources->server, &calls);
    heft_buf_printf(buf,
                    "# HELP heftd_info Version of this heftd.\n# TYPE heftd_info gauge\n"
                    "heftd_info{version=\"%s\"} 1\n",
                    heft_version());
    metric(buf, "heftd_uptime_seconds", "gauge", "Seconds since the start.", status.uptime_ms / 1000);
    metric(buf, "heftd_resident_bytes", "gauge", "Memory of the process that is in RAM.", resident_bytes());
    metric(buf, "heftd_records", "gauge", "Replicas with a live lease.", status.records);
    metric(buf, "heftd_records_limit", "gauge", "Most records held (max-records).",
           status.limits.max_records);
    metric(buf, "heftd_record_bytes", "gauge", "Bytes of all records.", status.bytes);
    metric(buf, "heftd_record_bytes_limit", "gauge", "Most bytes of all records (max-total-bytes).",
           status.limits.max_total_bytes);
    metric(buf, "heftd_publishes_total", "counter", "Publications accepted.", status.counts.publishes);
    metric(buf, "heftd_renewals_total", "counter", "Renewals accepted.", status.counts.renewals);
    metric(buf, "heftd_withdrawals_total", "counter", "Records withdrawn.", status.counts.withdrawals);
    metric(buf, "heftd_expirations_total", "counter", "Records whose lease ended.",
           status.counts.expirations);
    metric(buf, "heftd_takeovers_total", "counter", "Names taken over by a newer generation.",
           status.counts.takeovers);
    metric(buf, "heftd_refusals_total", "counter", "Publications, renewals and withdrawals refused.",
           status.counts.refusals);
    metric(buf, "heftd_lists_total", "counter", "Lists answered.", status.lists);
    metric(buf, "heftd_store_errors_total", "counter", "Writes to the store that failed.",
           status.store_errors);
    metric(buf, "heftd_store_ok", "gauge", "1: the last write to the store succeeded.",
           !status.store_error[0]);
    metric(buf, "heftd_grpc_calls_total", "counter", "gRPC calls received.", calls.calls);
    metric(buf, "heftd_grpc_failures_total", "counter", "gRPC calls that ended in an error.", calls.failures);
    metric(buf, "heftd_grpc_active", "gauge", "gRPC calls in flight.", calls.active);
}

/* Text as HTML. */
static void escaped(struct heft_buf *buf, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&':
            heft_buf_bytes(buf, "&amp;", 5);
            break;
        case '<':
            heft_buf_bytes(buf, "&lt;", 4);
            break;
        case '>':
            heft_buf_bytes(buf, "&gt;", 4);
            break;
        case '"':
            heft_buf_bytes(buf, "&quot;", 6);
            break;
        case '\'':
            heft_buf_bytes(buf, "&#39;", 5);
            break;
        default:
            heft_buf_bytes(buf, text, 1);
        }
    }
}

/* Decimal, as the command line has it. */
static void bytes_text(uint64_t bytes, char *text_out, size_t size)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    double value = (double)bytes;
    size_t unit = 0;

    for (; value >= 1000 && unit < 5; unit++)
        value /= 1000;
    (void)snprintf(text_out, size, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

static void time_text(uint64_t seconds, char *text_out, size_t size)
{
    if (seconds < 120)
        (void)snprintf(text_out, size, "%" PRIu64 " s", seconds);
    else if (seconds < 7200)
        (void)snprintf(text_out, size, "%" PRIu64 " min", seconds / 60);
    else if (seconds < 172800)
        (void)snprintf(text_out, size, "%" PRIu64 " h", seconds / 3600);
    else
        (void)snprintf(text_out, size, "%" PRIu64 " days", seconds / 86400);
}

static void cell(struct heft_buf *buf, const char *text)
{
    heft_buf_printf(buf, "<td>");
    escaped(buf, text);
    heft_buf_printf(buf, "</td>");
}

/* The beginning of what identifies; the whole of it when one points at it. */
static void short_cell(struct heft_buf *buf, const char *text)
{
    char start[SHORT_BYTES + 1];
    size_t size = strnlen(text, SHORT_BYTES);

    while (size && ((unsigned char)text[size] & 0xc0) == 0x80)
        size--; /* not within a character */
    (void)snprintf(start, sizeof(start), "%.*s", (int)size, text);
    heft_buf_printf(buf, "<td class=g title=\"");
    escaped(buf, text);
    heft_buf_printf(buf, "\">");
    escaped(buf, start);
    heft_buf_printf(buf, "</td>");
}

/* "raw", or what an engine made of it for which rank. */
static void form_cell(struct heft_buf *buf, const struct heft_replica_view *view)
{
    heft_buf_printf(buf, "<td>");
    escaped(buf, view->stage);
    if (view->rank[0]) {
        heft_buf_printf(buf, " ");
        escaped(buf, view->rank);
    }
    if (view->part[0]) {
        heft_buf_printf(buf, "<br>");
        escaped(buf, view->part);
    }
    heft_buf_printf(buf, "</td>");
}

static void addresses_cell(struct heft_buf *buf, const char *addresses)
{
    char one[256];

    heft_buf_printf(buf, "<td class=g>");
    while (*addresses) {
        size_t size = strcspn(addresses, ",");

        (void)snprintf(one, sizeof(one), "%.*s", (int)(size < sizeof(one) ? size : sizeof(one) - 1),
                       addresses);
        if (strncmp(one, "unix:", 5) == 0) { /* its long name says nothing but the generation, beside it */
            heft_buf_printf(buf, "<span title=\"");
            escaped(buf, one);
            heft_buf_printf(buf, "\">unix</span>");
        } else {
            escaped(buf, one);
        }
        addresses += size + (addresses[size] == ',');
        if (*addresses)
            heft_buf_printf(buf, "<br>");
    }
    heft_buf_printf(buf, "</td>");
}

/* Percent of the model that it holds: of the tensors' bytes, and of the blocks it should have. */
static double held_share(const struct heft_replica_view *view)
{
    double share = view->whole_bytes > view->total_bytes
                       ? 100.0 * (double)view->total_bytes / (double)view->whole_bytes
                       : 100.0;

    return view->held_blocks < view->block_count
               ? share * (double)view->held_blocks / (double)view->block_count
               : share;
}

static void row(void *context, const struct heft_replica_view *view)
{
    struct heft_buf *buf = context;
    char generation[HEFT_GENERATION_TEXT_BYTES], size[32], age[32];
    uint64_t now_ms = heft_wall_ms();
    double share = held_share(view);

    heft_generation_print(&view->generation, generation);
    bytes_text(view->total_bytes, size, sizeof(size));
    time_text(now_ms > view->published_wall_ms ? (now_ms - view->published_wall_ms) / 1000 : 0, age,
              sizeof(age));
    heft_buf_printf(buf, "<tr>");
    cell(buf, view->name);
    cell(buf, view->model);
    short_cell(buf, view->revision);
    form_cell(buf, view);
    heft_buf_printf(buf, "<td class=n>%s</td><td class=n>%" PRIu64 "</td>", size, view->tensor_count);
    heft_buf_printf(buf, "<td class=n>%.*f %%</td>", share < 100 ? 1 : 0, share);
    heft_buf_printf(buf, "<td class=n>%.1f of %.1f s</td><td class=n>%s ago</td>",
                    (double)view->lease_left_ms / 1000, (double)view->lease_ms / 1000, age);
    short_cell(buf, generation);
    addresses_cell(buf, view->addresses);
    heft_buf_printf(buf, "</tr>\n");
}

static const char page_head[] =
    "<!doctype html>\n<html lang=en><meta charset=utf-8><meta http-equiv=refresh content=5>"
    "<meta name=viewport content=\"width=device-width\"><title>heftd</title>\n<style>\n"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em;color:#1b1f24;background:#fff}\n"
    "h1{font-size:1.4em;margin:0 0 .2em}p{margin:.2em 0 1.2em;color:#57606a}p.w{color:#b42318}\n"
    "div{overflow-x:auto}table{border-collapse:collapse;width:100%}\n"
    "th,td{text-align:left;padding:.45em 1.4em .45em 0;border-bottom:1px solid #d8dee4;vertical-align:top;"
    "white-space:nowrap}\nth{font-weight:600;color:#57606a}\n"
    ".n{text-align:right;font-variant-numeric:tabular-nums}.g{font:13px/1.75 ui-monospace,monospace}\n"
    "@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}th,p{color:#9198a1}"
    "th,td{border-color:#30363d}p.w{color:#ff7b72}}\n</style>\n";

void heft_http_page(const struct heft_http_sources *sources, struct heft_buf *buf)
{
    struct heft_directory_service_status status;
    char uptime[32], used[32];
    uint64_t shown, replicas;

    heft_directory_service_get_status(sources->service, &status);
    replicas = status.records - status.agents;
    time_text(status.uptime_ms / 1000, uptime, sizeof(uptime));
    bytes_text(status.bytes, used, sizeof(used));
    heft_buf_printf(buf, "%s<h1>%" PRIu64 " %s</h1>\n", page_head, replicas,
                    replicas == 1 ? "replica" : "replicas");
    heft_buf_printf(buf,
                    "<p>heftd %s, up %s, epoch %016" PRIx64 ", records take %s. Since the start: %" PRIu64
                    " published, %" PRIu64 " renewals, %" PRIu64 " expired, %" PRIu64 " taken over. Store: ",
                    heft_version(), uptime, status.epoch, used, status.counts.publishes,
                    status.counts.renewals, status.counts.expirations, status.counts.takeovers);
    escaped(buf, status.store);
    heft_buf_printf(buf, "</p>\n");
    if (status.store_error[0]) {
        heft_buf_printf(buf, "<p class=w>Records do not outlive a restart now: ");
        escaped(buf, status.store_error);
        heft_buf_printf(buf, "</p>\n");
    }
    if (status.agents)
        heft_buf_printf(buf, "<p>%" PRIu64 " %s published metadata.</p>\n", status.agents,
                        status.agents == 1 ? "agent has" : "agents have");
    if (replicas == 0) {
        heft_buf_printf(buf, "<p>Nothing is published. Serve a model with: heft serve MODEL --directory "
                             "HOST:PORT</p>\n");
        return;
    }
    heft_buf_printf(
        buf, "<div><table><thead><tr><th>Replica<th>Model<th>Revision<th>Form<th class=n>Size"
             "<th class=n>Tensors<th class=n>Held<th class=n>Lease left<th class=n>Published<th>Generation"
             "<th>Addresses</tr></thead><tbody>\n");
    shown = heft_directory_service_visit(sources->service, NULL, PAGE_MAX_REPLICAS, row, buf);
    heft_buf_printf(buf, "</tbody></table></div>\n");
    if (shown < replicas)
        heft_buf_printf(buf, "<p>The first %" PRIu64 " are shown.</p>\n", shown);
}
