/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --directory. The gRPC client is a library of its own that is loaded only when an address needs it: a
 * command that names no daemon starts without its fifty shared objects.
 */
#include "cli/cli.h"
#include "base/error.h"
#include "load/directory.h"

#include <dlfcn.h>
#include <string.h>

static int load_control(struct heft_error *error)
{
    void *library = dlopen("libheft-control.so.0", RTLD_NOW | RTLD_LOCAL);
    union { /* a data pointer from dlsym, a function pointer to call: ISO C has no cast between them */
        void *pointer;
        heft_directory_opener opener;
    } found;

    if (!library)
        return heft_error_set(error, HEFT_ERR_LIBRARY,
                              "the client of heftd and etcd can't be loaded: %s; install libheft-control "
                              "beside libheft, or use "
                              "--directory file:PATH",
                              dlerror());
    found.pointer = dlsym(library, "heft_control_open_directory");
    if (!found.pointer)
        return heft_error_set(error, HEFT_ERR_LIBRARY, "libheft-control.so.0 is of another version: %s",
                              dlerror());
    heft_directory_set_grpc_opener(found.opener);
    return HEFT_OK;
}

int cli_open_directory(const struct cli *cli, int required, struct heft_directory **directory_out,
                       struct heft_error *error)
{
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;
    uint64_t timeout_ms;
    int rc = HEFT_OK;

    options.address = heft_config_text(&cli->config, "directory");
    /* One frozen directory must not outlast the whole command's deadline. */
    timeout_ms = heft_config_number(&cli->config, "timeout");
    if (timeout_ms > heft_config_number(&cli->config, "deadline"))
        timeout_ms = heft_config_number(&cli->config, "deadline");
    options.timeout_ms = (uint32_t)timeout_ms;
    options.allow_plain = (int)heft_config_number(&cli->config, "allow-plain-token");
    options.user = heft_config_text(&cli->config, "directory-user");
    options.password_file = heft_config_text(&cli->config, "directory-password-file");
    options.ca_file = heft_config_text(&cli->config, "directory-ca");
    options.certificate_file = heft_config_text(&cli->config, "directory-cert");
    options.key_file = heft_config_text(&cli->config, "directory-key");
    *directory_out = NULL;
    if (!options.address || !options.address[0]) {
        if (required)
            return heft_error_set(error, HEFT_ERR_INVALID,
                                  "no directory is named: give --directory HOST:PORT (a heftd), "
                                  "etcd://HOST:PORT or file:PATH, or set "
                                  "HEFT_DIRECTORY");
        return HEFT_OK;
    }
    if (strncmp(options.address, "file:", 5) != 0)
        rc = load_control(error);
    return rc ? rc : heft_directory_open(&options, directory_out, error);
}

void cli_model_options(const struct cli *cli, struct heft_model_options *options_out)
{
    *options_out = (struct heft_model_options)HEFT_MODEL_OPTIONS_INIT;
    options_out->revision = heft_config_text(&cli->config, "revision");
    options_out->cache = heft_config_text(&cli->config, "cache");
    options_out->header_limit_bytes = heft_config_number(&cli->config, "header-limit");
    options_out->lenient = (int)heft_config_number(&cli->config, "lenient");
    options_out->as_files = heft_config_number(&cli->config, "files") || heft_config_text(&cli->config, "to");
    options_out->ignore_index = (int)heft_config_number(&cli->config, "ignore-index");
}
