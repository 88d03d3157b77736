/* SPDX-License-Identifier: Apache-2.0 */
#define HEFT_BASE_ERROR_IMPLEMENTATION
#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *heft_error_name(int code)
{
    switch (code) {
    case HEFT_OK:
        return "OK";
#define HEFT_ERROR_NAME(name, value, text) \
    case -(value):                         \
        return #name;
        HEFT_ERROR_LIST(HEFT_ERROR_NAME)
#undef HEFT_ERROR_NAME
    default:
        return "UNKNOWN";
    }
}

const char *heft_error_text(int code)
{
    switch (code) {
    case HEFT_OK:
        return "done";
#define HEFT_ERROR_TEXT(name, value, text) \
    case -(value):                         \
        return text;
        HEFT_ERROR_LIST(HEFT_ERROR_TEXT)
#undef HEFT_ERROR_TEXT
    default:
        return "unknown error";
    }
}

enum heft_error_class heft_error_class(int code)
{
    int hundreds = -code / 100;

    if (code >= 0 || hundreds > HEFT_CLASS_SYSTEM)
        return HEFT_CLASS_NONE;
    return (enum heft_error_class)hundreds;
}

int heft_error_is_model(int code)
{
    return code <= -350 && code >= -399;
}

/* Cuts a UTF-8 text that snprintf filled to the last byte so that it does not end inside a character. */
static void trim_utf8(char *text, size_t capacity)
{
    size_t end = strnlen(text, capacity);

    if (end + 1 < capacity)
        return;
    while (end > 0 && ((unsigned char)text[end - 1] & 0xC0) == 0x80)
        end--;
    if (end > 0 && ((unsigned char)text[end - 1] & 0x80))
        end--;
    text[end] = 0;
}

int heft_error_setv(struct heft_error *error, int code, const char *format, va_list args)
{
    if (!error)
        return code;
    error->code = code;
    (void)vsnprintf(error->text, sizeof(error->text), format, args);
    trim_utf8(error->text, sizeof(error->text));
    return code;
}

int heft_error_set(struct heft_error *error, int code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)heft_error_setv(error, code, format, args);
    va_end(args);
    return code;
}

int heft_error_prefix(struct heft_error *error, int code, const char *format, ...)
{
    char text[HEFT_ERROR_TEXT_BYTES * 2];
    size_t used;
    va_list args;

    if (!error)
        return code;
    va_start(args, format);
    (void)vsnprintf(text, HEFT_ERROR_TEXT_BYTES, format, args);
    va_end(args);
    used = strlen(text);
    (void)snprintf(text + used, sizeof(text) - used, ": %s",
                   error->text[0] ? error->text : heft_error_text(error->code));
    memcpy(error->text, text, sizeof(error->text) - 1);
    error->text[sizeof(error->text) - 1] = 0;
    trim_utf8(error->text, sizeof(error->text));
    if (error->code == 0)
        error->code = code;
    return error->code;
}

int heft_error_from_errno(int errno_value)
{
    switch (errno_value) {
    case 0:
        return HEFT_OK;
    case ENOSPC:
    case EDQUOT:
        return HEFT_ERR_NO_SPACE;
    case EMFILE:
    case ENFILE:
        return HEFT_ERR_NO_FDS;
    case ENOMEM:
        return HEFT_ERR_NO_MEMORY;
    case EACCES:
    case EPERM:
        return HEFT_ERR_PERMISSION;
    case EROFS:
        return HEFT_ERR_READ_ONLY;
    case ENOENT:
    case ENOTDIR:
        return HEFT_ERR_NOT_FOUND;
    case EEXIST:
        return HEFT_ERR_EXISTS;
    case ECONNREFUSED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EADDRNOTAVAIL:
        return HEFT_ERR_UNAVAILABLE;
    case ECONNRESET:
    case EPIPE:
    case ENOTCONN:
    case ECONNABORTED:
        return HEFT_ERR_PEER_LOST;
    case ETIMEDOUT:
        return HEFT_ERR_DEADLINE;
    case EINVAL:
        return HEFT_ERR_INVALID;
    case EISDIR:
        return HEFT_ERR_NOT_A_FILE;
    case EIO:
        return HEFT_ERR_IO;
    default:
        return HEFT_ERR_SYSTEM;
    }
}

int heft_error_set_errno(struct heft_error *error, int errno_value, const char *format, ...)
{
    char reason[128];
    char sentence[HEFT_ERROR_TEXT_BYTES];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    return heft_error_set(error, heft_error_from_errno(errno_value), "%s: %s", sentence,
                          strerror_r(errno_value, reason, sizeof(reason)));
}

/* A broken invariant is a bug of ours: stopping is the only answer that can't make wrong bytes. */
_Noreturn void heft_assert_failed(const char *condition, const char *file, int line)
{
    (void)fprintf(stderr, "heft: invariant broken: %s (%s:%d)\n", condition, file, line);
    abort();
}
