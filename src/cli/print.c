/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"

#include <ctype.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#define BAR_WIDTH 24
#define PLAIN_EVERY_NS HEFT_NS_PER_S
#define TERMINAL_EVERY_NS (100 * HEFT_NS_PER_MS)

int cli_exit_code(int rc)
{
    if (rc == HEFT_OK)
        return EXIT_DONE;
    if (heft_error_is_model(rc))
        return EXIT_MODEL;
    switch (rc) {
    case HEFT_ERR_NOT_FOUND:
        return EXIT_NOT_FOUND;
    case HEFT_ERR_DEADLINE:
        return EXIT_DEADLINE;
    case HEFT_ERR_INVALID:
    case HEFT_ERR_UNKNOWN_OPTION:
    case HEFT_ERR_UNSUPPORTED:
        return EXIT_USAGE;
    default:
        return heft_error_class(rc) == HEFT_CLASS_REFUSED ? EXIT_REFUSED : EXIT_FAILED;
    }
}

int cli_fail(const struct cli *cli, int rc, const struct heft_error *error)
{
    const char *text = error && error->text[0] ? error->text : heft_error_text(rc);

    (void)fflush(stdout);
    fprintf(stderr, "heft: %s%s%s: %s\n", cli && cli->command ? cli->command : "",
            cli && cli->command ? ": " : "", heft_error_name(rc), cli_safe(text));
    if (cli && cli->json) {
        json_t *said = json_string(text);
        json_t *object = json_pack("{s:s, s:{s:s, s:o}}", "status", heft_error_name(rc), "error", "code",
                                   heft_error_name(rc), "text", said ? said : json_string("(not UTF-8)"));

        (void)json_dumpf(object, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(object);
    }
    return cli_exit_code(rc);
}

/* Enough buffers for one printf of several values. */
static char *rotating(size_t *size_out)
{
    static char buffers[16][64];
    static unsigned next;

    *size_out = sizeof(buffers[0]);
    return buffers[next++ % 16];
}

static const char *decimal(double value, const char *suffix)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    size_t unit = 0, size;
    char *text = rotating(&size);
    int digits;

    while (value >= 1000 && unit < 5) {
        value /= 1000;
        unit++;
    }
    digits = unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
    (void)snprintf(text, size, "%.*f %s%s", digits, value, units[unit], suffix);
    return text;
}

const char *cli_bytes(uint64_t bytes)
{
    return decimal((double)bytes, "");
}

const char *cli_rate(double bytes_per_second)
{
    return decimal(bytes_per_second > 0 ? bytes_per_second : 0, "/s");
}

const char *cli_seconds(double seconds)
{
    size_t size;
    char *text = rotating(&size);

    if (seconds < 0.001)
        (void)snprintf(text, size, "%.0f us", seconds * 1e6);
    else if (seconds < 1)
        (void)snprintf(text, size, "%.1f ms", seconds * 1e3);
    else
        (void)snprintf(text, size, "%.2f s", seconds);
    return text;
}

const char *cli_safe(const char *text)
{
    static char buffers[4][2048];
    static unsigned next;
    char *out = buffers[next++ % 4];
    size_t used = 0;

    while (*text && used + 4 * HEFT_TEXT_PLAIN_MAX_BYTES < sizeof(buffers[0])) {
        size_t size = heft_text_plain(text), index;

        if (size ==
            0) { /* a byte, or a character, that a terminal or a reader could take for something else */
            used +=
                (size_t)snprintf(out + used, sizeof(buffers[0]) - used, "\\x%02x", (unsigned char)*text++);
            continue;
        }
        for (index = 0; index < size; index++)
            out[used++] = *text++;
    }
    out[used] = 0;
    return out;
}

void cli_hex(const uint8_t *bytes, size_t size, char *text_out)
{
    static const char digits[] = "0123456789abcdef";
    size_t index;

    for (index = 0; index < size; index++) {
        *text_out++ = digits[bytes[index] >> 4];
        *text_out++ = digits[bytes[index] & 15];
    }
    *text_out = 0;
}

/* ---- progress ---- */

void cli_progress_start(struct cli_progress *progress, int quiet)
{
    *progress =
        (struct cli_progress){.terminal = isatty(STDERR_FILENO), .quiet = quiet, .last_ns = heft_now_ns()};
}

static void draw_bar(const struct heft_load_progress *now, double bytes_per_second)
{
    char bar[BAR_WIDTH + 1];
    double done = now->bytes_total ? (double)now->bytes_done / (double)now->bytes_total : 0;
    size_t index;

    for (index = 0; index < BAR_WIDTH; index++)
        bar[index] = (double)index < done * BAR_WIDTH ? '#' : '-';
    bar[BAR_WIDTH] = 0;
    fprintf(stderr, "\r\033[K%-7s [%s] %3.0f %%  %s of %s  %s  %u source%s%s", now->stage, bar, done * 100,
            cli_bytes(now->bytes_done), cli_bytes(now->bytes_total), cli_rate(bytes_per_second),
            now->sources_active, now->sources_active == 1 ? "" : "s",
            now->sources_lost ? "  (one or more lost)" : "");
    if (bytes_per_second > 0 && now->bytes_total > now->bytes_done)
        fprintf(stderr, "  %s left",
                cli_seconds((double)(now->bytes_total - now->bytes_done) / bytes_per_second));
    (void)fflush(stderr);
}

void cli_progress_show(struct cli_progress *progress, const struct heft_load_progress *now)
{
    uint64_t time = heft_now_ns(), passed = time - progress->last_ns;
    double bytes_per_second;

    if (progress->quiet || passed < (progress->terminal ? TERMINAL_EVERY_NS : PLAIN_EVERY_NS))
        return;
    bytes_per_second =
        (double)(now->bytes_done - progress->last_bytes) * (double)HEFT_NS_PER_S / (double)passed;
    progress->last_ns = time;
    progress->last_bytes = now->bytes_done;
    progress->shown = 1;
    if (progress->terminal)
        draw_bar(now, bytes_per_second);
    else
        fprintf(stderr, "heft: %s: %s of %s, %s, %u source%s\n", now->stage, cli_bytes(now->bytes_done),
                cli_bytes(now->bytes_total), cli_rate(bytes_per_second), now->sources_active,
                now->sources_active == 1 ? "" : "s");
}

void cli_progress_end(struct cli_progress *progress)
{
    if (progress->terminal && progress->shown)
        fprintf(stderr, "\r\033[K");
}
