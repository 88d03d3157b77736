/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every transport must keep, run over one configuration a program run: `conformance NAME [CASE]`. Each
 * case makes its own pair. A case that does not fit a configuration prints why and is counted as skipped.
 */
#include "conformance/cases.h"
#include "base/error.h"
#include "certs.h"
#include "space/cuda.h"
#include "transport/chaos/chaos.h"
#include "transport/worker.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct setup setups[] = {
    {.name = "local-in-agent", .transport = "local", .in_agent = 1},
    {.name = "local-mapped", .transport = "local", .process = 1, .memory = MEMORY_SHARED},
    {.name = "local-attached", .transport = "local", .process = 1, .memory = MEMORY_PRIVATE},
    {.name = "tcp-v4", .transport = "tcp", .link = LINK_TCP4, .served = 1},
    {.name = "tcp-v6", .transport = "tcp", .link = LINK_TCP6, .served = 1},
    {.name = "tcp-unix", .transport = "tcp", .link = LINK_UNIX, .served = 1},
    {.name = "tcp-process", .transport = "tcp", .link = LINK_TCP4, .process = 1, .served = 1},
    {.name = "tcp-tls", .transport = "tcp", .link = LINK_TCP4, .served = 1, .tls = 1},
    {.name = "tcp-tls-process", .transport = "tcp", .link = LINK_TCP4, .process = 1, .served = 1, .tls = 1},
    {.name = "tcp-file",
     .transport = "tcp",
     .link = LINK_TCP4,
     .memory = MEMORY_FILE,
     .served = 1,
     .no_write = 1},
    {.name = "ucx-cma",
     .transport = "ucx",
     .link = LINK_UNIX,
     .process = 1,
     .memory = MEMORY_PRIVATE,
     .ucx_tls = "posix,cma,tcp"},
    {.name = "ucx-tcp", .transport = "ucx", .link = LINK_TCP4, .process = 1, .ucx_tls = "tcp"},
    {.name = "ucx-tls", .transport = "ucx", .link = LINK_TCP4, .process = 1, .tls = 1},
    {.name = "file", .transport = "file", .in_agent = 1, .memory = MEMORY_FILE},
    {.name = "chaos-local", .transport = "chaos", .base = "local", .process = 1, .memory = MEMORY_SHARED},
    {.name = "chaos-tcp", .transport = "chaos", .base = "tcp", .link = LINK_TCP4, .process = 1, .served = 1},
    {.name = "cuda-in-agent",
     .transport = "cuda",
     .in_agent = 1,
     .memory = MEMORY_DEVICE,
     .near = MEMORY_DEVICE},
    {.name = "cuda-host-in-agent", .transport = "cuda", .in_agent = 1, .memory = MEMORY_DEVICE},
    {.name = "cuda-pinned",
     .transport = "cuda",
     .in_agent = 1,
     .memory = MEMORY_DEVICE_PLAIN,
     .near = MEMORY_PINNED},
    {.name = "cuda-file", .transport = "cuda", .in_agent = 1, .memory = MEMORY_FILE, .near = MEMORY_DEVICE},
    {.name = "cuda-two-agents", .transport = "cuda", .memory = MEMORY_DEVICE, .near = MEMORY_DEVICE_PLAIN},
    {.name = "cuda-mapped",
     .transport = "cuda",
     .process = 1,
     .memory = MEMORY_DEVICE,
     .near = MEMORY_DEVICE},
    {.name = "cuda-opened",
     .transport = "cuda",
     .process = 1,
     .memory = MEMORY_DEVICE_PLAIN,
     .near = MEMORY_DEVICE_PLAIN},
    {.name = "cuda-to-host", .transport = "cuda", .process = 1, .memory = MEMORY_DEVICE},
    {.name = "cuda-of-host",
     .transport = "cuda",
     .process = 1,
     .memory = MEMORY_SHARED,
     .near = MEMORY_DEVICE},
    {.name = "chaos-cuda",
     .transport = "chaos",
     .base = "cuda",
     .process = 1,
     .memory = MEMORY_DEVICE,
     .near = MEMORY_DEVICE},
};

const struct setup *current_setup;

int skip_case(const char *why)
{
    (void)printf("[  SKIPPED ] %s: %s\n", current_setup->name, why);
    skip();
    return 0;
}

static void make_certificates(char folder[64])
{
    struct test_authority authority;

    certs_authority_make(&authority, "the tests' authority");
    certs_folder_make(folder);
    certs_write(folder, &authority, &authority, "any agent", -60, 86400);
    certs_authority_free(&authority);
}

/* Where UCX is not installed, or no GPU is there, its rows have nothing to run: 1, and why. */
static int lacks(const struct heft_transport_ops *ops)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_transport *opened = NULL;
    const struct heft_cu *driver;
    struct heft_transport_host host = {
        .abi = HEFT_TRANSPORT_ABI, .size = sizeof(host), .flags = HEFT_HOST_NAMED};

    if (heft_pool_create(1, &host.pool, &error) == 0 && ops->open(&host, &opened, &error) == 0)
        ops->close(opened);
    heft_pool_destroy(host.pool);
    /* Opening only finds the driver. */
    if (opened != NULL && ops == &heft_transport_cuda && heft_cuda_load(&driver, &error) != 0)
        opened = NULL;
    if (opened == NULL)
        (void)printf("[  SKIPPED ] %s: %s\n", current_setup->name, error.text);
    return opened == NULL;
}

int main(int argc, char **argv)
{
    char folder[64];
    int failed;

    if (argc > 1 && strcmp(argv[1], "--peer") == 0)
        return peer_main(argc, argv);
    for (size_t i = 0; argc > 1 && i < sizeof(setups) / sizeof(setups[0]); i++)
        if (strcmp(argv[1], setups[i].name) == 0)
            current_setup = &setups[i];
    if (current_setup == NULL) {
        (void)fprintf(stderr, "usage: conformance NAME [CASE]; names:");
        for (size_t i = 0; i < sizeof(setups) / sizeof(setups[0]); i++)
            (void)fprintf(stderr, " %s", setups[i].name);
        (void)fprintf(stderr, "\n");
        return 2;
    }
    if (current_setup->base != NULL) {
        struct heft_chaos_options options = {.base = transport_named(current_setup->base),
                                             .seed = 4711,
                                             .delay_max_us = 300,
                                             .pieces_max = 12};

        heft_chaos_configure(&options);
    }
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    if (current_setup->ucx_tls != NULL)
        (void)setenv("UCX_TLS", current_setup->ucx_tls, 1);
    if (strcmp(current_setup->transport, "ucx") == 0 && lacks(&heft_transport_ucx))
        return 77;
    if (strncmp(current_setup->name, "cuda", 4) == 0 || strcmp(current_setup->name, "chaos-cuda") == 0)
        if (lacks(&heft_transport_cuda))
            return 77;
    if (current_setup->tls) {
        make_certificates(folder);
        tls_link_use(folder);
    }
    failed = run_lists_cases() + run_ends_cases() + run_served_cases() + run_chaos_cases();
    if (current_setup->tls)
        certs_folder_remove(folder);
    return failed > 0 ? 1 : 0;
}
