/* SPDX-License-Identifier: Apache-2.0 */
/* `heft`: finds the command, reads its options (flag > environment HEFT_* > --config FILE > default), runs
 * it. */
#include "cli/cli.h"
#include "base/error.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static void print_overview(FILE *out)
{
    size_t index;

    fprintf(out,
            "heft moves AI model weights to where they are needed.\n\nusage: heft COMMAND [OPTION]...\n\n");
    for (index = 0; index < cli_command_count; index++) {
        char left[64];

        (void)snprintf(left, sizeof(left), "%s %s", cli_commands[index].name, cli_commands[index].arguments);
        fprintf(out, "  %-18s %s\n", left, cli_commands[index].summary);
    }
    fprintf(out, "\nheft COMMAND --help (or heft help COMMAND) tells more; heft --version.\n"
                 "Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 the model is broken, 4 not "
                 "found, 5 refused,\n"
                 "6 deadline. Start with: heft inspect ./model, then heft load ./model\n");
}

static void print_help(const struct cli_command *command, const struct heft_config *config)
{
    struct heft_buf buf;

    heft_buf_init(&buf, 1 << 20);
    heft_config_help(config, command->groups, &buf);
    printf("heft %s %s\n%s\n\n%s\noptions (also HEFT_NAME in the environment, and 'name = value' in --config "
           "FILE):\n%.*s",
           command->name, command->arguments, command->summary, command->help, (int)buf.size,
           (const char *)buf.data);
    heft_buf_free(&buf);
}

static const struct cli_command *find_command(const char *name)
{
    size_t index;

    for (index = 0; index < cli_command_count; index++)
        if (strcmp(cli_commands[index].name, name) == 0)
            return &cli_commands[index];
    return NULL;
}

static int unknown_command(const char *name)
{
    const char *names[32];
    const char *nearest;
    size_t index;

    for (index = 0; index < cli_command_count; index++)
        names[index] = cli_commands[index].name;
    nearest = heft_nearest(name, names, cli_command_count);
    if (name[0] == '-')
        fprintf(stderr,
                "heft: unknown option '%s' before the command: heft COMMAND [OPTION]...; see heft --help\n",
                cli_safe(name));
    else if (nearest)
        fprintf(stderr, "heft: unknown command '%s': did you mean %s? See heft --help\n", cli_safe(name),
                nearest);
    else
        fprintf(stderr, "heft: unknown command '%s': see heft --help\n", cli_safe(name));
    return EXIT_USAGE;
}

static int read_file(const char *path, struct heft_buf *buf, struct heft_error *error)
{
    FILE *file = fopen(path, "re");
    char piece[4096];
    size_t got;

    if (!file)
        return heft_error_set_errno(error, errno, "reading the configuration %s", path);
    while ((got = fread(piece, 1, sizeof(piece), file)) > 0)
        heft_buf_bytes(buf, piece, got);
    if (ferror(file)) {
        (void)fclose(file);
        return heft_error_set(error, HEFT_ERR_IO, "reading the configuration %s failed", path);
    }
    (void)fclose(file);
    return buf->failed ? heft_error_set(error, buf->failed, "the configuration %s is too large", path)
                       : HEFT_OK;
}

/* Everything but the flags: they are read first, since one of them names the file. */
static int read_configuration(struct cli *cli, struct heft_error *error)
{
    const char *path;
    struct heft_buf buf;
    int rc = heft_config_environment(&cli->config, "HEFT_", environ, error);

    path = heft_config_text(&cli->config, "config");
    if (rc || !path)
        return rc;
    heft_buf_init(&buf, 1 << 20);
    rc = read_file(path, &buf, error);
    if (!rc)
        rc = heft_config_file(&cli->config, (const char *)buf.data, buf.size, path, error);
    heft_buf_free(&buf);
    return rc;
}

static void set_log(const struct cli *cli)
{
    static const char *const levels[] = {"none", "error", "warn", "info", "debug"};
    const char *wanted = heft_config_text(&cli->config, "log-level");
    int level;

    for (level = 1; level <= 4; level++)
        if (strcmp(wanted, levels[level]) == 0)
            heft_set_log_sink(cli_log_line, NULL, (enum heft_log_level)level);
}

/* A pipe whose reader went away (| head): it has seen what it wanted, and no sentence helps it. */
static int reader_left(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};

    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

/* Also when the options can't be read: who asked for JSON gets the error as JSON. */
static int wants_json(const struct heft_config *config, int argc, char **argv)
{
    int index;

    for (index = 1; index < argc && strcmp(argv[index], "--") != 0; index++)
        if (strcmp(argv[index], "--json") == 0)
            return 1;
    return (int)heft_config_number(config, "json");
}

static int run_command(const struct cli_command *command, int argc, char **argv)
{
    struct cli cli = {.command = command->name};
    struct heft_error error = HEFT_ERROR_INIT;
    int rc = heft_config_init(&cli.config, cli_options, cli_option_count, &error), index, code, asked_json;

    if (rc)
        return cli_fail(&cli, rc, &error);
    for (index = 1; index < argc && strcmp(argv[index], "--") != 0; index++)
        if (strcmp(argv[index], "--help") == 0 || strcmp(argv[index], "-h") == 0) {
            print_help(command, &cli.config);
            heft_config_free(&cli.config);
            return EXIT_DONE;
        }
    asked_json = wants_json(&cli.config, argc, argv); /* now: reading the options moves argv's words */
    rc = heft_config_arguments(&cli.config, command->groups, argc, argv, &cli.argument_count, &error);
    if (!rc)
        rc = read_configuration(&cli, &error);
    cli.json = rc ? asked_json : (int)heft_config_number(&cli.config, "json");
    cli.arguments = argv + 1;
    if (!rc && cli.argument_count < command->min_arguments)
        rc = heft_error_set(&error, HEFT_ERR_INVALID, "%s is missing: heft %s %s", command->arguments,
                            command->name, command->arguments);
    if (!rc && cli.argument_count > command->max_arguments)
        rc = heft_error_set(&error, HEFT_ERR_INVALID, "unexpected argument '%s'",
                            argv[1 + command->max_arguments]);
    if (rc) {
        (void)cli_fail(&cli, rc, &error);
        heft_config_free(&cli.config);
        return EXIT_USAGE;
    }
    if (heft_config_number(&cli.config, "show-config")) {
        struct heft_buf buf;

        heft_buf_init(&buf, 1 << 20);
        heft_config_effective(&cli.config, command->groups, &buf);
        printf("%.*s", (int)buf.size, (const char *)buf.data);
        heft_buf_free(&buf);
        code = EXIT_DONE;
    } else {
        set_log(&cli);
        if (heft_config_text(&cli.config, "telemetry")) /* agents are opened in many places */
            (void)setenv("HEFT_TELEMETRY", heft_config_text(&cli.config, "telemetry"), 1);
        code = command->run(&cli);
    }
    errno = 0;
    if (fflush(stdout) || ferror(stdout)) {
        if (!reader_left())
            fprintf(stderr, "heft: %s: writing the answer failed: %s\n", command->name,
                    errno ? strerror(errno) : "an earlier part could not be written");
        code = code == EXIT_DONE ? EXIT_FAILED : code;
    }
    heft_config_free(&cli.config);
    return code;
}

int main(int argc, char **argv)
{
    const struct cli_command *command;

    (void)signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of the write, not the end of a replica */
    if (argc < 2) {
        print_overview(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0 || strcmp(argv[1], "version") == 0) {
        printf("heft %s\n", heft_version());
        return EXIT_DONE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        (strcmp(argv[1], "help") == 0 && argc == 2)) {
        print_overview(stdout);
        return EXIT_DONE;
    }
    if (strcmp(argv[1], "help") == 0) {
        char *help[] = {argv[2], (char[]){"--help"}, NULL};

        command = find_command(argv[2]);
        return command ? run_command(command, 2, help) : unknown_command(argv[2]);
    }
    command = find_command(argv[1]);
    if (!command)
        return unknown_command(argv[1]);
    return run_command(command, argc - 1, argv + 1);
}
