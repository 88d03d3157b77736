/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli/: the `heft` command. Each command is one function; what it does is in the library, what stands here is
 * asking and showing. Results go to stdout, progress and errors to stderr.
 */
#ifndef HEFT_CLI_CLI_H
#define HEFT_CLI_CLI_H

#include "base/config.h"
#include <heft/heft.h>

#include <stdio.h>

/* Option groups: which commands take an option. */
enum {
    CLI_COMMON = 1, /* every command */
    CLI_MODEL = 2,  /* opening a model */
    CLI_LOAD = 4,   /* load, serve, plan */
    CLI_SERVE = 8,  /* load, serve: what plan lacks */
    CLI_DIRECTORY = 16,
    CLI_INSPECT = 32,
    CLI_VERIFY = 64,
    CLI_PROBE = 128,
    CLI_REPLICAS = 256,
    CLI_LS = 512,
    CLI_LOAD_ONLY = 1024,
    CLI_TELEMETRY = 2048, /* those whose agents count, and those who look */
    CLI_STATS = 4096,
    CLI_TOP = 8192,
    CLI_BENCH = 16384,
    CLI_PEERS = 32768, /* connecting to agents: load, serve, plan, health */
    CLI_REPORT = 65536
};

/* Exit codes (heft(1)). */
enum {
    EXIT_DONE = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_MODEL = 3,
    EXIT_NOT_FOUND = 4,
    EXIT_REFUSED = 5,
    EXIT_DEADLINE = 6
};

struct cli {
    struct heft_config config;
    const char *command;
    char **arguments; /* positionals */
    int argument_count;
    int json;
};

struct cli_command {
    const char *name;
    const char *arguments; /* "MODEL" */
    const char *summary;
    const char *help; /* paragraphs and examples */
    uint32_t groups;
    int min_arguments, max_arguments;
    int (*run)(struct cli *cli);
};

extern const struct heft_config_entry cli_options[];
extern const size_t cli_option_count;
extern const struct cli_command cli_commands[];
extern const size_t cli_command_count;

/* options.c */
int cli_complete(void);

/* print.c */
int cli_exit_code(int rc);
/* Says the error on stderr, as JSON on stdout with --json; returns the exit code. */
int cli_fail(const struct cli *cli, int rc, const struct heft_error *error);
/* "1.2 GB" (decimal, as rates are), into one of a few rotating buffers. */
const char *cli_bytes(uint64_t bytes);
const char *cli_rate(double bytes_per_second);
const char *cli_seconds(double seconds);
/* Text that is safe on a terminal: control characters escaped. */
const char *cli_safe(const char *text);
/* The three TLS options into an agent's. */
void cli_agent_tls(const struct cli *cli, struct heft_agent_options *options);
void cli_hex(const uint8_t *bytes, size_t size, char *text_out);
/* The library's log lines go to stderr through this sink, above the progress bar. */
void cli_log_line(enum heft_log_level level, const char *line, void *context);
/* Whether one of the last log lines had this text: nothing is told twice. */
int cli_was_said(const char *text);
/* An answer on stdout: indented, or (one event of several) on one line. */
struct json_t;
void cli_print_json(const struct json_t *json, int on_one_line);
/* A progress line on stderr: a bar on a terminal, else a plain line a second. quiet: nothing. */
struct cli_progress {
    int terminal, quiet, shown;
    uint64_t last_ns, last_bytes;
    double rate;
};
#define CLI_BAR_LINE_BYTES 256
/* The bar's line, shorter than width columns: what does not fit is left out. */
void cli_bar(const struct heft_load_progress *now, double bytes_per_second, size_t width,
             char line_out[CLI_BAR_LINE_BYTES]);
void cli_progress_start(struct cli_progress *progress, int quiet);
void cli_progress_show(struct cli_progress *progress, const struct heft_load_progress *now);
void cli_progress_end(struct cli_progress *progress);

/* cmd_load.c: what a load did, for people. */
void cli_print_report(const struct json_t *report);

/* directory.c: opens --directory; *directory_out NULL when none is configured. */
int cli_open_directory(const struct cli *cli, int required, struct heft_directory **directory_out,
                       struct heft_error *error);
void cli_model_options(const struct cli *cli, struct heft_model_options *options_out);

int cli_load(struct cli *cli);
int cli_serve(struct cli *cli);
int cli_plan(struct cli *cli);
int cli_inspect(struct cli *cli);
int cli_verify(struct cli *cli);
int cli_ls(struct cli *cli);
int cli_replicas(struct cli *cli);
int cli_health(struct cli *cli);
int cli_probe(struct cli *cli);
int cli_top(struct cli *cli);
int cli_stats(struct cli *cli);
int cli_bench(struct cli *cli);
int cli_report(struct cli *cli);
int cli_completion(struct cli *cli);

#endif
