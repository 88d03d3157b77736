/* SPDX-License-Identifier: Apache-2.0 */
/* heft top: the agents of this host, as they work. A table that is drawn again and again on a terminal, or
 * once, plain. */
#include "cli/agents.h"
#include "base/clock.h"
#include "base/error.h"

#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define CELL_BYTES 96
#define SCREEN_BYTES ((size_t)1 << 20)

enum column {
    NAME,
    PID,
    READ,
    WRITTEN,
    DONE,
    FLIGHT,
    P50,
    P99,
    FAILED,
    PEERS,
    REGIONS,
    MEMORY,
    PIECES,
    COLUMNS
};

/* In the order of the screen; a narrow one leaves out those of the highest rank first. */
static const struct {
    const char *title;
    int width; /* negative: to the left */
    int rank;
} columns[COLUMNS] = {
    [NAME] = {"AGENT", -20, 0},    [PID] = {"PID", 8, 3},      [READ] = {"READ", 10, 1},
    [WRITTEN] = {"WRITE", 10, 2},  [DONE] = {"XFER/S", 8, 4},  [FLIGHT] = {"FLY", 5, 5},
    [P50] = {"P50", 7, 7},         [P99] = {"P99", 7, 6},      [FAILED] = {"ERR", 6, 8},
    [PEERS] = {"PEERS", 6, 9},     [REGIONS] = {"REG", 5, 11}, [MEMORY] = {"MEMORY", 8, 10},
    [PIECES] = {"PIECE/S", 8, 12},
};

struct row {
    struct heft_telemetry_entry *entry;
    struct cli_agent_sum sum, since;
    double seconds;
};

struct view {
    struct heft_telemetry_list list; /* rows point into it */
    struct row *rows;
    uint64_t at_ns;
};

static void free_view(struct view *view)
{
    heft_telemetry_list_free(&view->list);
    free(view->rows);
    view->rows = NULL;
}

static const struct row *find_row(const struct view *view, const char *path)
{
    size_t index;

    for (index = 0; index < view->list.count; index++)
        if (strcmp(view->rows[index].entry->path, path) == 0)
            return &view->rows[index];
    return NULL;
}

/* The busiest first. */
static int by_rate(const void *left, const void *right)
{
    const struct row *a = left, *b = right;
    uint64_t x = a->since.bytes_read + a->since.bytes_written,
             y = b->since.bytes_read + b->since.bytes_written;

    if (a->entry->state != b->entry->state)
        return a->entry->state == HEFT_TELEMETRY_LIVE ? -1 : 1;
    if (x != y)
        return x > y ? -1 : 1;
    return strcmp(a->entry->head->name, b->entry->head->name);
}

static int take_view(const struct cli *cli, const struct view *before, struct view *view_out,
                     struct heft_error *error)
{
    struct view view = {.at_ns = heft_now_ns()};
    size_t index;
    int rc = cli_agents_read(cli, NULL, &view.list, error);

    if (rc)
        return rc;
    view.rows = calloc(view.list.count + 1, sizeof(*view.rows));
    if (!view.rows) {
        free_view(&view);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for %zu agents", view.list.count);
    }
    for (index = 0; index < view.list.count; index++) {
        struct row *row = &view.rows[index];
        const struct row *old;

        row->entry = &view.list.entries[index];
        cli_agent_sum(row->entry, &row->sum);
        old = before->rows ? find_row(before, row->entry->path) : NULL;
        if (old) {
            cli_agent_since(&row->sum, &old->sum, &row->since);
            row->seconds = (double)(view.at_ns - before->at_ns) / 1e9;
        }
    }
    qsort(view.rows, view.list.count, sizeof(*view.rows), by_rate);
    *view_out = view;
    return 0;
}

static double rate(const struct row *row, uint64_t amount)
{
    return row->seconds > 0 ? (double)amount / row->seconds : 0;
}

static void cell(const struct row *row, enum column column, char text[CELL_BYTES])
{
    const struct heft_stats_head *head = row->entry->head;
    /* Of the last interval if anything ended in it, else of all that ever did. */
    const struct heft_stats_histogram *times = row->since.done ? &row->since.all_ns : &row->sum.all_ns;
    const char *value = "";

    switch (column) {
    case NAME:
        value = cli_safe(head->name);
        break;
    case PID:
        (void)snprintf(text, CELL_BYTES, "%" PRIu64, head->pid);
        return;
    case READ:
        value =
            row->entry->state == HEFT_TELEMETRY_LIVE ? cli_rate(rate(row, row->since.bytes_read)) : "ended";
        break;
    case WRITTEN:
        value =
            row->entry->state == HEFT_TELEMETRY_LIVE ? cli_rate(rate(row, row->since.bytes_written)) : "-";
        break;
    case DONE:
        value = cli_count(rate(row, row->since.done));
        break;
    case FLIGHT:
        value = cli_count((double)row->sum.in_flight);
        break;
    case P50:
        value = cli_ns(heft_stats_histogram_at(times, 0.5));
        break;
    case P99:
        value = cli_ns(heft_stats_histogram_at(times, 0.99));
        break;
    case FAILED:
        value = cli_count((double)(row->sum.failed + row->sum.refused));
        break;
    case PEERS:
        value = cli_count((double)(head->peers_connected + head->peers_accepted));
        break;
    case REGIONS:
        value = cli_count((double)head->regions);
        break;
    case MEMORY:
        value = cli_bytes(head->region_bytes);
        break;
    default:
        value = cli_count(rate(row, row->since.descriptors));
        break;
    }
    (void)snprintf(text, CELL_BYTES, "%.90s", value);
}

static int column_width(enum column column)
{
    return abs(columns[column].width);
}

/* Which columns fit, by rank; what is left goes to the name. */
static unsigned choose(int width, int *name_width_out)
{
    int used = column_width(NAME), rank, column;
    unsigned chosen = 1u << NAME;

    for (rank = 1; rank < COLUMNS; rank++)
        for (column = 1; column < COLUMNS; column++)
            if (columns[column].rank == rank && used + 1 + columns[column].width < width) {
                chosen |= 1u << column;
                used += 1 + columns[column].width;
            }
    *name_width_out = column_width(NAME) + (width - used - 1);
    if (*name_width_out > 48)
        *name_width_out = 48;
    if (*name_width_out < 1)
        *name_width_out = 1;
    return chosen;
}

/* Bytes of at most `width` columns of text, never half a character; *used_out columns. */
static int cut(const char *text, int width, int *used_out)
{
    int bytes = 0, used = 0;

    while (text[bytes] && used < width) {
        bytes++;
        while (((unsigned char)text[bytes] & 0xc0) == 0x80)
            bytes++;
        used++;
    }
    *used_out = used;
    return bytes;
}

static void put_line(struct heft_buf *buf, const struct row *row, unsigned chosen, int name_width,
                     const char *end)
{
    char text[CELL_BYTES];
    int column;

    for (column = 0; column < COLUMNS; column++) {
        int width = column == NAME ? name_width : columns[column].width, bytes, used;

        if (!(chosen & (1u << column)))
            continue;
        if (row)
            cell(row, (enum column)column, text);
        else
            (void)snprintf(text, sizeof(text), "%s", columns[column].title);
        bytes = cut(text, width, &used);
        if (column == NAME)
            heft_buf_printf(buf, "%.*s%*s", bytes, text, width - used, "");
        else
            heft_buf_printf(buf, " %*s%.*s", width - used, "", bytes, text);
    }
    heft_buf_printf(buf, "%s", end);
}

static void put_table(struct heft_buf *buf, const struct view *view, int width, size_t lines, const char *end)
{
    int name_width;
    unsigned chosen = choose(width, &name_width);
    size_t index, shown = view->list.count < lines ? view->list.count : lines;

    put_line(buf, NULL, chosen, name_width, end);
    for (index = 0; index < shown; index++)
        put_line(buf, &view->rows[index], chosen, name_width, end);
}

/* ---- once ---- */

static json_t *row_json(const struct row *row)
{
    json_t *object = cli_agent_json(row->entry);

    (void)json_object_set_new(object, "interval", json_real(row->seconds));
    (void)json_object_set_new(object, "read_rate", json_real(rate(row, row->since.bytes_read)));
    (void)json_object_set_new(object, "write_rate", json_real(rate(row, row->since.bytes_written)));
    (void)json_object_set_new(object, "transfer_rate", json_real(rate(row, row->since.done)));
    (void)json_object_set_new(object, "descriptor_rate", json_real(rate(row, row->since.descriptors)));
    return object;
}

static int print_once(const struct cli *cli, const struct view *view)
{
    struct heft_buf buf;
    json_t *array;
    size_t index;

    if (cli->json) {
        array = json_array();
        for (index = 0; index < view->list.count; index++)
            (void)json_array_append_new(array, row_json(&view->rows[index]));
        cli_print_json(array, 0);
        json_decref(array);
        return EXIT_DONE;
    }
    heft_buf_init(&buf, SCREEN_BYTES);
    put_table(&buf, view, 200, SIZE_MAX, "\n");
    (void)fwrite(buf.data, 1, buf.size, stdout);
    heft_buf_free(&buf);
    return EXIT_DONE;
}

static int once(const struct cli *cli, uint64_t interval_ms, struct heft_error *error)
{
    struct view first = {.rows = NULL}, second = {.rows = NULL};
    int rc = take_view(cli, &first, &first, error);

    if (rc)
        return rc;
    (void)poll(NULL, 0, (int)interval_ms);
    rc = take_view(cli, &first, &second, error);
    if (!rc)
        rc = print_once(cli, &second);
    free_view(&first);
    if (second.rows)
        free_view(&second);
    return rc;
}

/* ---- live ---- */

static volatile sig_atomic_t stopped;

static void stop(int number)
{
    (void)number;
    stopped = 1;
}

static void look_again(int number)
{
    (void)number; /* the window changed: poll ends, the next picture has its size */
}

static void write_all(const void *data, size_t size)
{
    const char *at = data;

    while (size) {
        ssize_t wrote = write(STDOUT_FILENO, at, size);

        if (wrote <= 0)
            break;
        at += wrote;
        size -= (size_t)wrote;
    }
}

static void draw(const struct view *view)
{
    struct winsize size = {.ws_col = 80, .ws_row = 24};
    uint64_t ended = 0, rows, index;
    double read_rate = 0, write_rate = 0;
    struct heft_buf buf;
    char title[256];
    int used;

    (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    if (size.ws_col < 8)
        size.ws_col = size.ws_col ? 8 : 80;
    if (size.ws_row < 1)
        size.ws_row = 24;
    for (index = 0; index < view->list.count; index++) {
        ended += view->rows[index].entry->state == HEFT_TELEMETRY_ENDED;
        read_rate += rate(&view->rows[index], view->rows[index].since.bytes_read);
        write_rate += rate(&view->rows[index], view->rows[index].since.bytes_written);
    }
    heft_buf_init(&buf, SCREEN_BYTES);
    heft_buf_printf(&buf, "\033[H");
    rows = size.ws_row > 3 ? size.ws_row - 3u : 0;
    (void)snprintf(title, sizeof(title), "%zu agents, %" PRIu64 " ended  read %s  write %s  (q quits)%s",
                   view->list.count, ended, cli_rate(read_rate), cli_rate(write_rate),
                   view->list.count > rows ? "  more than fit" : "");
    heft_buf_printf(&buf, "%.*s\033[K", cut(title, size.ws_col - 1, &used), title);
    if (size.ws_row > 2) {
        heft_buf_printf(&buf, "\r\n");
        put_table(&buf, view, size.ws_col, (size_t)rows, "\033[K\r\n");
    }
    heft_buf_printf(&buf, "\033[J");
    write_all(buf.data, buf.size);
    heft_buf_free(&buf);
}

/* 1: it is to end. */
static int wait_key(uint64_t until_ns)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char keys[64];

    while (!stopped) {
        uint64_t now_ns = heft_now_ns();
        ssize_t size, index;

        if (now_ns >= until_ns)
            return 0;
        if (poll(&input, 1, (int)((until_ns - now_ns) / HEFT_NS_PER_MS) + 1) <= 0)
            return 0;
        size = read(STDIN_FILENO, keys, sizeof(keys));
        if (size <= 0)
            return 1;
        for (index = 0; index < size; index++)
            if (keys[index] == 'q' || keys[index] == 'Q' || keys[index] == 3)
                return 1;
    }
    return 1;
}

static int live(const struct cli *cli, uint64_t interval_ms, struct heft_error *error)
{
    struct view views[2] = {{.rows = NULL}, {.rows = NULL}};
    struct sigaction on_stop = {.sa_handler = stop}, on_size = {.sa_handler = look_again};
    struct termios before, raw;
    int rc, now = 0, is_raw = tcgetattr(STDIN_FILENO, &before) == 0;

    rc = take_view(cli, &views[1], &views[0], error); /* before the screen changes: an error is to be read */
    if (rc)
        return rc;
    (void)sigaction(SIGINT, &on_stop, NULL);
    (void)sigaction(SIGTERM, &on_stop, NULL);
    (void)sigaction(SIGHUP, &on_stop, NULL);
    (void)sigaction(SIGWINCH, &on_size, NULL);
    if (is_raw) {
        raw = before;
        raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    write_all("\033[?1049h\033[?25l", 14);
    do {
        draw(&views[now]);
        if (wait_key(views[now].at_ns + interval_ms * HEFT_NS_PER_MS))
            break;
        if (views[!now].rows)
            free_view(&views[!now]);
        rc = take_view(cli, &views[now], &views[!now], error);
        if (!rc)
            now = !now;
    } while (!rc);
    write_all("\033[?25h\033[?1049l", 14);
    if (is_raw)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
    for (now = 0; now < 2; now++)
        if (views[now].rows)
            free_view(&views[now]);
    return rc;
}

int cli_top(struct cli *cli)
{
    uint64_t interval_ms = heft_config_number(&cli->config, "interval");
    struct heft_error error = HEFT_ERROR_INIT;
    int rc;

    if (cli->json || heft_config_number(&cli->config, "once") || !isatty(STDOUT_FILENO))
        rc = once(cli, interval_ms, &error);
    else
        rc = live(cli, interval_ms, &error);
    return rc ? cli_fail(cli, rc, &error) : EXIT_DONE;
}
