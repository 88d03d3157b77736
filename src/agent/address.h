/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of agents: "tcp:HOST:PORT", "tcp:[V6]:PORT", "unix:@NAME"; "HOST:PORT" means tcp. */
#ifndef HEFT_AGENT_ADDRESS_H
#define HEFT_AGENT_ADDRESS_H

#include <heft/error.h>
#include <sys/socket.h>

#define HEFT_ADDRESS_TEXT_BYTES 300
#define HEFT_ADDRESS_RESOLVED_MAX 8

struct heft_address {
    int is_unix;
    char host[256]; /* unix: the abstract name */
    char port[8];
};

/* The next address of a comma-separated list: 1 and *list moves on; 0 at its end; INVALID (with the text). */
int heft_address_next(const char **list, struct heft_address *address_out, struct heft_error *error);
/* "tcp:HOST:PORT" as it is written. */
void heft_address_text(const struct heft_address *address, char *text_out, size_t size_bytes);

struct heft_socket_address {
    struct sockaddr_storage address;
    socklen_t length;
};
/*
 * Socket addresses of one address, at most HEFT_ADDRESS_RESOLVED_MAX. Numeric hosts need no resolver; a name
 * is looked up in a thread of its own, which is left behind when until_ns passes. passive: to listen on.
 * Errors: NOT_FOUND, DEADLINE.
 */
int heft_address_resolve(const struct heft_address *address, int passive, uint64_t until_ns,
                         struct heft_socket_address *addresses_out, size_t *count_out,
                         struct heft_error *error);

#endif
