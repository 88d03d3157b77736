/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/: what every layer may use: errors, log, clock, bounded buffers, maps, digests, configuration.
 * Nothing here opens a socket or a file.
 */
#ifndef HEFT_BASE_ERROR_H
#define HEFT_BASE_ERROR_H

#include <heft/error.h>
#include <stdarg.h>

/* Fills `error` (NULL allowed) with the code and a sentence; returns the code. */
int heft_error_set(struct heft_error *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int heft_error_setv(struct heft_error *error, int code, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));
/* Puts "what: " before the sentence that is there; returns error->code (or `code` when error is NULL). */
int heft_error_prefix(struct heft_error *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The code that fits an errno: NO_SPACE, NO_FDS, NO_MEMORY, PERMISSION, READ_ONLY, NOT_FOUND, UNAVAILABLE,
 * ... */
int heft_error_from_errno(int errno_value);
/* Sets "<sentence>: <strerror>" with the code of the errno; returns the code. */
int heft_error_set_errno(struct heft_error *error, int errno_value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * Static analysis sees one file at a time and would follow "an error was set, and 0 came back" into every
 * caller. This tells it what these functions return.
 */
#if defined(__clang_analyzer__) && !defined(HEFT_BASE_ERROR_IMPLEMENTATION)
#define heft_error_set(error, code, ...) (heft_error_set(error, code, __VA_ARGS__), (code))
#define heft_error_prefix(error, code, ...) (heft_error_prefix(error, code, __VA_ARGS__), (code))
#define heft_error_set_errno(error, ...) (heft_error_set_errno(error, __VA_ARGS__), HEFT_ERR_SYSTEM)
#endif

/* Stays on in release builds: a programmer's error, cheap to check. */
#define HEFT_ASSERT(condition)                                  \
    do {                                                        \
        if (__builtin_expect(!(condition), 0))                  \
            heft_assert_failed(#condition, __FILE__, __LINE__); \
    } while (0)
_Noreturn void heft_assert_failed(const char *condition, const char *file, int line);

#endif
