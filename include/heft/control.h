/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libheft-control: directories that are reached over gRPC. A program that links it calls heft_control_init
 * once; from then on heft_directory_open takes "HOST:PORT".
 */
#ifndef HEFT_CONTROL_H
#define HEFT_CONTROL_H

#include <heft/replica.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Makes heft_directory_open know heftd. Any number of times, from any thread. */
void heft_control_init(void);

/* What heft_directory_open then calls: for a program that loads this library by dlopen and passes the call
 * on. */
int heft_control_open_directory(const struct heft_directory_options *options,
                                struct heft_directory **directory_out, struct heft_error *error);

/* What a heftd says about itself. */
struct heft_directory_status {
    size_t size;
    char version[32];
    uint64_t epoch; /* another one: the daemon was restarted */
    uint64_t uptime_ms;
    uint64_t records, max_records;
    uint64_t bytes, max_bytes; /* of all records */
    uint64_t publishes, renewals, withdrawals, expirations, takeovers, refusals;
    char store[256];
    char store_error[256]; /* why records can't be stored now; "" when they can */
};
#define HEFT_DIRECTORY_STATUS_INIT                                                          \
    {                                                                                       \
        sizeof(struct heft_directory_status), {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, \
        {                                                                                   \
            0                                                                               \
        }                                                                                   \
    }

/* Asks the heftd behind an open directory. UNSUPPORTED for a static file. */
int heft_directory_get_status(struct heft_directory *directory, struct heft_directory_status *status_out,
                              struct heft_error *error);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
