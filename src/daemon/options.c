/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/options.h"
#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_FILE_MAX_BYTES ((size_t)1 << 20)
#define GROUP 1u

static const struct heft_config_entry entries[] = {
    {"listen", HEFT_CONFIG_TEXT, "127.0.0.1:8001", 0, 0, NULL, "ADDR",
     "address of the gRPC services; port 0: the system picks", GROUP},
    {"http", HEFT_CONFIG_TEXT, "127.0.0.1:9401", 0, 0, NULL, "ADDR",
     "address of metrics, health and the page of replicas; 'off': none", GROUP},
    {"host-agents", HEFT_CONFIG_FLAG, NULL, 0, 0, NULL, NULL,
     "/metrics tells the agents of this host too, of this user's processes (root: of all)", GROUP},
    {"store", HEFT_CONFIG_TEXT, NULL, 0, 0, NULL, "STORE",
     "where records outlive a restart: sqlite:PATH or memory: (default a file in $XDG_STATE_HOME/heft, "
     "/var/lib/heft for root, or ~/.local/state/heft)",
     GROUP},
    {"config", HEFT_CONFIG_TEXT, NULL, 0, 0, NULL, "FILE",
     "lines of \"option = value\", '#' begins a comment", GROUP},
    {"lease-max", HEFT_CONFIG_DURATION, "1h", 1000, UINT64_C(30) * 86400000, NULL, "TIME",
     "longest lease that a replica may ask for", GROUP},
    {"max-records", HEFT_CONFIG_NUMBER, "100000", 1, 10000000, NULL, "N", "most records held", GROUP},
    {"max-record-bytes", HEFT_CONFIG_SIZE, "4M", 1024, 4 << 20, NULL, "SIZE", "largest record", GROUP},
    {"max-total-bytes", HEFT_CONFIG_SIZE, "256M", 1 << 20, 0, NULL, "SIZE",
     "most bytes of all records together", GROUP},
    {"threads", HEFT_CONFIG_NUMBER, "2", 1, 64, NULL, "N", "threads that answer calls", GROUP},
    {"log-level", HEFT_CONFIG_CHOICE, "info", 0, 0, "error|warn|info|debug", "LEVEL",
     "what to log, on stderr", GROUP},
    {"port-file", HEFT_CONFIG_TEXT, NULL, 0, 0, NULL, "FILE",
     "write the ports in use there (\"grpc=N\", \"http=N\") once both serve", GROUP},
    {"help", HEFT_CONFIG_FLAG, NULL, 0, 0, NULL, NULL, "print this and exit", GROUP},
    {"version", HEFT_CONFIG_FLAG, NULL, 0, 0, NULL, NULL, "print the version and exit", GROUP},
};

static int read_file(struct heft_config *config, const char *path, struct heft_error *error)
{
    FILE *file = fopen(path, "re");
    char *text;
    size_t size;
    int result;

    if (!file)
        return heft_error_set_errno(error, errno, "--config %s", path);
    text = malloc(CONFIG_FILE_MAX_BYTES);
    size = text ? fread(text, 1, CONFIG_FILE_MAX_BYTES, file) : 0;
    if (!text)
        result = heft_error_set(error, HEFT_ERR_NO_MEMORY, "--config %s: out of memory", path);
    else if (ferror(file))
        result = heft_error_set_errno(error, errno, "--config %s", path);
    else if (size == CONFIG_FILE_MAX_BYTES)
        result = heft_error_set(error, HEFT_ERR_TOO_LARGE, "--config %s: over the limit of %zu bytes", path,
                                CONFIG_FILE_MAX_BYTES);
    else
        result = heft_config_file(config, text, size, path, error);
    free(text);
    (void)fclose(file);
    return result;
}

int heft_daemon_options_read(int argc, char **argv, char *const *environment, struct heft_config *config,
                             struct heft_error *error)
{
    int positionals = 0;
    int result = heft_config_init(config, entries, sizeof(entries) / sizeof(entries[0]), error);

    if (!result)
        result = heft_config_arguments(config, GROUP, argc, argv, &positionals, error);
    if (!result && positionals)
        result = heft_error_set(error, HEFT_ERR_INVALID,
                                "heftd takes options only, not '%.100s' (heftd --help lists them)", argv[1]);
    if (!result)
        result = heft_config_environment(config, "HEFTD_", environment, error);
    if (!result && heft_config_text(config, "config"))
        result = read_file(config, heft_config_text(config, "config"), error);
    return result;
}

void heft_daemon_options_help(const struct heft_config *config, struct heft_buf *buf)
{
    heft_buf_printf(
        buf, "Usage: heftd [OPTION]...\n"
             "The directory of replicas: who holds which model, under leases (docs/lease-protocol.md).\n\n");
    heft_config_help(config, GROUP, buf);
    heft_buf_printf(buf,
                    "\nEach option may also be set by a variable (HEFTD_LISTEN for --listen) or in a file "
                    "(--config).\nExit codes: 0 stopped by a signal, 1 failed, 2 usage or configuration.\n");
}
