/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

static heft_log_fn log_sink;
static void *log_context;
static enum heft_log_level log_max_level;

const char *heft_version(void)
{
    return HEFT_VERSION;
}

void heft_set_log_sink(heft_log_fn sink, void *context, enum heft_log_level max_level)
{
    log_context = context;
    log_max_level = max_level;
    __atomic_store_n(&log_sink, sink, __ATOMIC_RELEASE);
}

int heft_log_enabled(enum heft_log_level level)
{
    return __atomic_load_n(&log_sink, __ATOMIC_ACQUIRE) && level <= log_max_level;
}

void heft_log(enum heft_log_level level, const char *format, ...)
{
    heft_log_fn sink = __atomic_load_n(&log_sink, __ATOMIC_ACQUIRE);
    char line[1024];
    va_list args;

    if (!sink || level > log_max_level)
        return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    heft_text_clean(line); /* names and words of others are in it, and it is one line */
    sink(level, line, log_context);
}
