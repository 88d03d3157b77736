/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the gRPC server and client share: the library's start and end, its log, statuses, bytes.
 *
 * Errors cross the wire as a gRPC status, which any client understands, and as trailing metadata "heft-code"
 * with the name of heft's code ("STALE"), so that nothing is lost between two ends that both are heft.
 */
#ifndef HEFT_CONTROL_GRPC_BASE_H
#define HEFT_CONTROL_GRPC_BASE_H

#include "base/buf.h"
#include <grpc/grpc.h>
#include <grpc/status.h>
#include <heft/error.h>

#define HEFT_GRPC_CODE_KEY "heft-code"
#define HEFT_GRPC_MAX_MESSAGE_BYTES ((size_t)8 << 20) /* of one message, both directions */

/* Counted: each server and client holds one. Log lines of gRPC go to heft's sink. */
void heft_grpc_acquire(void);
void heft_grpc_release(void);

grpc_status_code heft_grpc_status_of(int code);
int heft_grpc_code_of(grpc_status_code status);
/* The code whose name this is; 0: none. */
int heft_grpc_code_named(const char *name, size_t name_bytes);

/* A new byte buffer with a copy of the bytes. */
grpc_byte_buffer *heft_grpc_buffer(const void *data, size_t size_bytes);
/* Appends the message's bytes. 0, NO_MEMORY or TOO_LARGE. */
int heft_grpc_buffer_read(grpc_byte_buffer *buffer, struct heft_buf *buf);

/*
 * "HOST:PORT" taken apart: "127.0.0.1:80", "[::1]:80", "name:80". Writes gRPC's spelling of the address,
 * which for numeric ones avoids the resolver. INVALID names what is missing.
 */
struct heft_grpc_address {
    char host[256];
    uint16_t port;
    char target[300];
    int is_loopback; /* 127.0.0.0/8, ::1 or "localhost" */
    int is_numeric;
};
int heft_grpc_address_parse(const char *text, struct heft_grpc_address *address_out,
                            struct heft_error *error);

#endif
