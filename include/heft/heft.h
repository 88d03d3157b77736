/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heft moves AI model weights to the processors that need them. This header includes the whole library:
 * agent.h moves bytes, model.h describes models, load.h loads them, replica.h makes a loaded model a source.
 */
#ifndef HEFT_HEFT_H
#define HEFT_HEFT_H

#include <heft/error.h>
#include <heft/space.h>
#include <heft/agent.h>
#include <heft/transport.h>
#include <heft/model.h>
#include <heft/load.h>
#include <heft/replica.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define HEFT_VERSION_MAJOR 0
#define HEFT_VERSION_MINOR 1
#define HEFT_VERSION_PATCH 0
#define HEFT_VERSION "0.1.0"

/* The version of the library that runs, "0.1.0". */
const char *heft_version(void);

enum heft_log_level { HEFT_LOG_ERROR = 1, HEFT_LOG_WARN = 2, HEFT_LOG_INFO = 3, HEFT_LOG_DEBUG = 4 };

/*
 * Where the library's log lines go: one call a line, no newline in it, from any thread, never under a lock
 * that a call of heft could need. The default is nowhere. Set it before the first agent is opened.
 */
typedef void (*heft_log_fn)(enum heft_log_level level, const char *line, void *context);
void heft_set_log_sink(heft_log_fn sink, void *context, enum heft_log_level max_level);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
