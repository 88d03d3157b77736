/* SPDX-License-Identifier: Apache-2.0 */
/* What commands show: errors and exit codes, sizes and rates, JSON, and the progress of a load. */
#include "cli/cli.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"

#include <jansson.h>
#include <pthread.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define BAR_WIDTH 24
#define PLAIN_EVERY_NS HEFT_NS_PER_S
#define TERMINAL_EVERY_NS (100 * HEFT_NS_PER_MS)
#define SMOOTH_S 1.5

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
        json_t *words = json_string(text);
        json_t *object = json_pack("{s:s, s:{s:s, s:o}}", "status", heft_error_name(rc), "error", "code",
                                   heft_error_name(rc), "text", words ? words : json_string("(not UTF-8)"));

        cli_print_json(object, 0);
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

static void escape(const char *text, char *out, size_t out_size)
{
    size_t used = 0;

    while (*text && used + 4 * HEFT_TEXT_PLAIN_MAX_BYTES < out_size) {
        size_t size = heft_text_plain(text), index;

        if (size == 0) /* what a terminal or a reader could take for something else */
            used += (size_t)snprintf(out + used, out_size - used, "\\x%02x", (unsigned char)*text++);
        for (index = 0; index < size; index++)
            out[used++] = *text++;
    }
    out[used] = 0;
}

const char *cli_safe(const char *text)
{
    static char buffers[4][2048];
    static unsigned next;
    char *out = buffers[next++ % 4];

    escape(text, out, sizeof(buffers[0]));
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

/* ---- what was said ---- */

#define SAID_MAX 8

static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;
static char said[SAID_MAX][HEFT_ERROR_TEXT_BYTES + 128];
static unsigned said_count;
static int bar_drawn; /* a bar stands on the terminal's last line */

/* Called from the library's threads as well: nothing shared but what the lock guards. */
void cli_log_line(enum heft_log_level level, const char *line, void *context)
{
    static const char *const names[] = {"", "error", "warning", "info", "debug"};
    char safe[2048];

    (void)context;
    escape(line, safe, sizeof(safe));
    (void)pthread_mutex_lock(&said_lock);
    fprintf(stderr, "%sheft: %s: %s\n", bar_drawn ? "\r\033[K" : "", names[level], safe);
    bar_drawn = 0;
    (void)snprintf(said[said_count++ % SAID_MAX], sizeof(said[0]), "%s", line);
    (void)pthread_mutex_unlock(&said_lock);
}

int cli_was_said(const char *text)
{
    unsigned index;
    int found = 0;

    (void)pthread_mutex_lock(&said_lock);
    for (index = 0; index < SAID_MAX && !found; index++)
        found = text[0] && strstr(said[index], text) != NULL;
    (void)pthread_mutex_unlock(&said_lock);
    return found;
}

/* ---- JSON ---- */

void cli_print_json(const struct json_t *json, int on_one_line)
{
    /* Six digits are more than any measurement here has. */
    (void)json_dumpf(json, stdout, (on_one_line ? JSON_COMPACT : JSON_INDENT(2)) | JSON_REAL_PRECISION(6));
    putchar('\n');
    (void)fflush(stdout);
}

/* ---- progress ---- */

void cli_progress_start(struct cli_progress *progress, int quiet)
{
    *progress =
        (struct cli_progress){.terminal = isatty(STDERR_FILENO), .quiet = quiet, .last_ns = heft_now_ns()};
}

static size_t terminal_width(void)
{
    struct winsize size;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || size.ws_col == 0)
        return 80;
    return size.ws_col;
}

/* Adds a piece unless the line would reach the last column, where a terminal wraps. */
static void add_piece(char *line, size_t width, const char *piece)
{
    size_t used = strlen(line), size = strlen(piece);

    if (used + size < width && used + size < CLI_BAR_LINE_BYTES)
        memcpy(line + used, piece, size + 1);
}

static const char *time_left(double seconds)
{
    size_t size;
    char *text = rotating(&size);
    unsigned long long whole = (unsigned long long)(seconds + 0.5);

    if (whole < 60)
        (void)snprintf(text, size, "  %llu s left", whole);
    else if (whole < 3600)
        (void)snprintf(text, size, "  %llu min %02llu s left", whole / 60, whole % 60);
    else
        (void)snprintf(text, size, "  %llu h %02llu min left", whole / 3600, whole / 60 % 60);
    return text;
}

void cli_bar(const struct heft_load_progress *now, double bytes_per_second, size_t width,
             char line_out[CLI_BAR_LINE_BYTES])
{
    char piece[128], bar[BAR_WIDTH + 1];
    double done = now->bytes_total ? (double)now->bytes_done / (double)now->bytes_total : 0;
    size_t index;

    line_out[0] = 0;
    (void)snprintf(piece, sizeof(piece), "%s", now->stage);
    add_piece(line_out, width, piece);
    if (now->bytes_total == 0)
        return;
    for (index = 0; index < BAR_WIDTH; index++)
        bar[index] = (double)index < done * BAR_WIDTH ? '#' : '-';
    bar[BAR_WIDTH] = 0;
    (void)snprintf(piece, sizeof(piece), " [%s]", bar);
    if (width >= BAR_WIDTH + 36)
        add_piece(line_out, width, piece);
    (void)snprintf(piece, sizeof(piece), " %3.0f %%  %s of %s", done * 100, cli_bytes(now->bytes_done),
                   cli_bytes(now->bytes_total));
    add_piece(line_out, width, piece);
    (void)snprintf(piece, sizeof(piece), "  %s", cli_rate(bytes_per_second));
    add_piece(line_out, width, piece);
    if (bytes_per_second > 0 && now->bytes_total > now->bytes_done)
        add_piece(line_out, width,
                  time_left((double)(now->bytes_total - now->bytes_done) / bytes_per_second));
    (void)snprintf(piece, sizeof(piece), "  %u source%s", now->sources_active,
                   now->sources_active == 1 ? "" : "s");
    add_piece(line_out, width, piece);
    if (now->sources_lost) {
        (void)snprintf(piece, sizeof(piece), ", %u lost", now->sources_lost);
        add_piece(line_out, width, piece);
    }
}

static void draw_bar(const struct heft_load_progress *now, double bytes_per_second)
{
    char line[CLI_BAR_LINE_BYTES];

    cli_bar(now, bytes_per_second, terminal_width(), line);
    (void)pthread_mutex_lock(&said_lock);
    fprintf(stderr, "\r\033[K%s", line);
    (void)fflush(stderr);
    bar_drawn = 1;
    (void)pthread_mutex_unlock(&said_lock);
}

/* The rate is that of about the last second and a half: one that jumps ten times a second can't be read. */
static double smooth(struct cli_progress *progress, uint64_t bytes, uint64_t passed_ns)
{
    double passed = (double)passed_ns / (double)HEFT_NS_PER_S;
    double rate = (double)bytes / passed, weight = passed / (passed + SMOOTH_S);

    progress->rate = progress->shown ? progress->rate + weight * (rate - progress->rate) : rate;
    return progress->rate;
}

void cli_progress_show(struct cli_progress *progress, const struct heft_load_progress *now)
{
    uint64_t time = heft_now_ns(), passed = time - progress->last_ns, done = now->bytes_done;
    double bytes_per_second;

    if (progress->quiet || passed < (progress->terminal ? TERMINAL_EVERY_NS : PLAIN_EVERY_NS))
        return;
    bytes_per_second =
        smooth(progress, done > progress->last_bytes ? done - progress->last_bytes : 0, passed);
    progress->last_ns = time;
    progress->last_bytes = done;
    progress->shown = 1;
    if (progress->terminal)
        draw_bar(now, bytes_per_second);
    else if (now->bytes_total == 0)
        fprintf(stderr, "heft: %s\n", now->stage);
    else
        fprintf(stderr, "heft: %s: %.0f %%, %s of %s, %s, %u source%s\n", now->stage,
                100 * (double)done / (double)now->bytes_total, cli_bytes(done), cli_bytes(now->bytes_total),
                cli_rate(bytes_per_second), now->sources_active, now->sources_active == 1 ? "" : "s");
}

void cli_progress_end(struct cli_progress *progress)
{
    (void)pthread_mutex_lock(&said_lock);
    if (progress->terminal && bar_drawn)
        fprintf(stderr, "\r\033[K");
    bar_drawn = 0;
    (void)pthread_mutex_unlock(&said_lock);
}
