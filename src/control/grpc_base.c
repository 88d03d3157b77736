/* SPDX-License-Identifier: Apache-2.0 */
#include "control/grpc_base.h"
#include "base/error.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <grpc/support/log.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void log_line(gpr_log_func_args *args)
{
    /* gRPC calls "error" what its callers report in their own words (a refused connection, say). */
    heft_log(HEFT_LOG_DEBUG, "grpc: %s (%s:%d)", args->message, args->file, args->line);
}

static void set_log(void)
{
    gpr_set_log_function(log_line);
}

void heft_grpc_acquire(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, set_log);
    grpc_init();
}

void heft_grpc_release(void)
{
    grpc_shutdown();
}

grpc_status_code heft_grpc_status_of(int code)
{
    switch (code) {
    case HEFT_OK:
        return GRPC_STATUS_OK;
    case HEFT_ERR_CANCELED:
        return GRPC_STATUS_CANCELLED;
    case HEFT_ERR_DEADLINE:
        return GRPC_STATUS_DEADLINE_EXCEEDED;
    case HEFT_ERR_NOT_FOUND:
        return GRPC_STATUS_NOT_FOUND;
    case HEFT_ERR_EXISTS:
        return GRPC_STATUS_ALREADY_EXISTS;
    case HEFT_ERR_DENIED:
    case HEFT_ERR_PERMISSION:
        return GRPC_STATUS_PERMISSION_DENIED;
    case HEFT_ERR_STALE:
    case HEFT_ERR_INCOMPATIBLE:
    case HEFT_ERR_REQUIRED:
    case HEFT_ERR_STATE:
        return GRPC_STATUS_FAILED_PRECONDITION;
    case HEFT_ERR_CHANGED:
        return GRPC_STATUS_ABORTED;
    case HEFT_ERR_INVALID:
    case HEFT_ERR_UNKNOWN_OPTION:
    case HEFT_ERR_PROTOCOL:
        return GRPC_STATUS_INVALID_ARGUMENT;
    case HEFT_ERR_RANGE:
        return GRPC_STATUS_OUT_OF_RANGE;
    case HEFT_ERR_UNSUPPORTED:
        return GRPC_STATUS_UNIMPLEMENTED;
    case HEFT_ERR_DIGEST:
    case HEFT_ERR_TRUNCATED:
    case HEFT_ERR_MANIFEST:
        return GRPC_STATUS_DATA_LOSS;
    default:
        break;
    }
    switch (heft_error_class(code)) {
    case HEFT_CLASS_RETRY:
        return GRPC_STATUS_UNAVAILABLE;
    case HEFT_CLASS_LIMIT:
        return GRPC_STATUS_RESOURCE_EXHAUSTED;
    case HEFT_CLASS_NONE:
        return GRPC_STATUS_UNKNOWN;
    default:
        return GRPC_STATUS_INTERNAL;
    }
}

int heft_grpc_code_of(grpc_status_code status)
{
    switch (status) {
    case GRPC_STATUS_OK:
        return HEFT_OK;
    case GRPC_STATUS_CANCELLED:
        return HEFT_ERR_CANCELED;
    case GRPC_STATUS_INVALID_ARGUMENT:
        return HEFT_ERR_INVALID;
    case GRPC_STATUS_DEADLINE_EXCEEDED:
        return HEFT_ERR_DEADLINE;
    case GRPC_STATUS_NOT_FOUND:
        return HEFT_ERR_NOT_FOUND;
    case GRPC_STATUS_ALREADY_EXISTS:
        return HEFT_ERR_EXISTS;
    case GRPC_STATUS_PERMISSION_DENIED:
    case GRPC_STATUS_UNAUTHENTICATED:
        return HEFT_ERR_DENIED;
    case GRPC_STATUS_RESOURCE_EXHAUSTED:
        return HEFT_ERR_TOO_LARGE;
    case GRPC_STATUS_FAILED_PRECONDITION:
        return HEFT_ERR_STATE;
    case GRPC_STATUS_ABORTED:
        return HEFT_ERR_CHANGED;
    case GRPC_STATUS_OUT_OF_RANGE:
        return HEFT_ERR_RANGE;
    case GRPC_STATUS_UNIMPLEMENTED:
        return HEFT_ERR_UNSUPPORTED;
    case GRPC_STATUS_UNAVAILABLE:
        return HEFT_ERR_UNAVAILABLE;
    case GRPC_STATUS_DATA_LOSS:
        return HEFT_ERR_TRUNCATED;
    case GRPC_STATUS_UNKNOWN:
    case GRPC_STATUS_INTERNAL:
    default:
        return HEFT_ERR_INTERNAL;
    }
}

int heft_grpc_code_named(const char *name, size_t name_bytes)
{
    static const struct {
        const char *name;
        int code;
    } codes[] = {
#define CODE_ROW(row_name, value, text) {#row_name, -(value)},
        HEFT_ERROR_LIST(CODE_ROW)
#undef CODE_ROW
    };
    size_t index;

    for (index = 0; index < sizeof(codes) / sizeof(codes[0]); index++)
        if (strlen(codes[index].name) == name_bytes && memcmp(codes[index].name, name, name_bytes) == 0)
            return codes[index].code;
    return 0;
}

grpc_byte_buffer *heft_grpc_buffer(const void *data, size_t size_bytes)
{
    grpc_slice slice = grpc_slice_from_copied_buffer(size_bytes ? data : "", size_bytes);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);

    grpc_slice_unref(slice);
    return buffer;
}

int heft_grpc_buffer_read(grpc_byte_buffer *buffer, struct heft_buf *buf)
{
    grpc_byte_buffer_reader reader;
    grpc_slice slice;

    if (!grpc_byte_buffer_reader_init(&reader, buffer))
        return HEFT_ERR_INVALID;
    while (grpc_byte_buffer_reader_next(&reader, &slice)) {
        heft_buf_bytes(buf, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
        grpc_slice_unref(slice);
    }
    grpc_byte_buffer_reader_destroy(&reader);
    return buf->failed;
}

static int parse_port(const char *text, uint16_t *port_out)
{
    uint32_t port = 0;
    size_t index;

    if (!text[0] || strlen(text) > 5)
        return 0;
    for (index = 0; text[index]; index++) {
        if (text[index] < '0' || text[index] > '9')
            return 0;
        port = port * 10 + (uint32_t)(text[index] - '0');
    }
    if (port > UINT16_MAX)
        return 0;
    *port_out = (uint16_t)port;
    return 1;
}

static int is_host_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
}

static int invalid_address(const char *text, struct heft_error *error)
{
    return heft_error_set(
        error, HEFT_ERR_INVALID,
        "'%.200s' is not an address: expected HOST:PORT, such as 127.0.0.1:8001, [::1]:8001 or "
        "name:8001",
        text);
}

int heft_grpc_address_parse(const char *text, struct heft_grpc_address *address_out, struct heft_error *error)
{
    struct heft_grpc_address address;
    const char *colon = strrchr(text, ':'), *host = text;
    struct in6_addr six;
    struct in_addr four;
    size_t host_bytes, index;

    memset(&address, 0, sizeof(address));
    if (!colon || !parse_port(colon + 1, &address.port))
        return invalid_address(text, error);
    host_bytes = (size_t)(colon - text);
    if (host_bytes >= 2 && host[0] == '[' && host[host_bytes - 1] == ']') {
        host++;
        host_bytes -= 2;
        if (host_bytes >= sizeof(address.host))
            return invalid_address(text, error);
        memcpy(address.host, host, host_bytes);
        if (inet_pton(AF_INET6, address.host, &six) != 1)
            return invalid_address(text, error);
        address.is_numeric = 1;
        address.is_loopback = IN6_IS_ADDR_LOOPBACK(&six);
        (void)snprintf(address.target, sizeof(address.target), "ipv6:[%s]:%u", address.host, address.port);
        *address_out = address;
        return 0;
    }
    if (host_bytes == 0 || host_bytes >= sizeof(address.host))
        return invalid_address(text, error);
    memcpy(address.host, host, host_bytes);
    for (index = 0; index < host_bytes; index++)
        if (!is_host_character(host[index]))
            return invalid_address(text, error);
    if (inet_pton(AF_INET, address.host, &four) == 1) {
        address.is_numeric = 1;
        address.is_loopback = (ntohl(four.s_addr) >> 24) == 127;
        (void)snprintf(address.target, sizeof(address.target), "ipv4:%s:%u", address.host, address.port);
    } else {
        address.is_loopback = strcasecmp(address.host, "localhost") == 0;
        (void)snprintf(address.target, sizeof(address.target), "dns:///%s:%u", address.host, address.port);
    }
    *address_out = address;
    return 0;
}

/*
 * What ThreadSanitizer is told about gRPC, which is not built with it: its threads hand over through futexes
 * of its own, which the sanitizer does not see. It stands here so that every program with gRPC in it has it.
 */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define IS_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(IS_TSAN)
const char *__tsan_default_suppressions(void);

__attribute__((visibility("default"), used)) const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libgrpc.so\ncalled_from_lib:libgpr.so\ncalled_from_lib:libabsl_synchronization."
           "so\n"
           "called_from_lib:libstdc++.so\nrace:libgrpc.so\nrace:libgpr.so\nrace:libabsl_\nrace:libssl.so\n"
           "race:libcrypto.so\n"; /* gRPC's TLS */
}
#endif
