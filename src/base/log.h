/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines go to the sink the program set (heft_set_log_sink), or nowhere: the library never prints. */
#ifndef HEFT_BASE_LOG_H
#define HEFT_BASE_LOG_H

#include <heft/heft.h>

/* Visible, for libheft-control alone: a process has one sink. */
void heft_log(enum heft_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3), visibility("default")));
int heft_log_enabled(enum heft_log_level level);

#endif
