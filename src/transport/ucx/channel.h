/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What two sides of the ucx transport say to each other beside UCX: over one dialed connection the server
 * gives its worker's address, then answers for each region that the client asks for with the key that UCX
 * needs to reach it. The end of the connection is the end of the peer. Only the transport's worker touches a
 * channel once it has begun.
 */
#ifndef HEFT_TRANSPORT_UCX_CHANNEL_H
#define HEFT_TRANSPORT_UCX_CHANNEL_H

#include "base/buf.h"
#include "transport/tls.h"
#include "transport/worker.h"

#include <heft/transport.h>

#define UCX_HEAD_BYTES 40u
#define UCX_PAYLOAD_MAX_BYTES (64u << 10)
#define UCX_OUT_MAX_BYTES ((size_t)4 << 20)

enum ucx_message_type {
    UCX_ADDRESS = 1, /* server: its worker's address */
    UCX_WANT = 2,    /* client: the key of region `id` for the uses in `value` (enum heft_region_flags) */
    UCX_KEY = 3,     /* server: key; `address` and `length` are the region's */
    UCX_REFUSED = 4  /* server: `value` is why there is none */
};

struct ucx_message {
    uint16_t type;
    uint32_t value, payload_bytes;
    uint64_t id, address, length;
    const uint8_t *payload;
};

struct ucx_channel {
    int fd;
    struct heft_tls *tls;
    struct heft_watch watch; /* `ready` is the owner's */
    int watched;
    uint32_t events;
    uint8_t *in; /* one message */
    size_t in_have;
    struct heft_buf out;
    size_t out_sent;
};

/* Takes over the descriptor; on failure it is closed. */
int ucx_channel_open(struct ucx_channel *channel, const struct heft_transport_host *host, int fd,
                     struct heft_error *error);
void ucx_channel_close(struct ucx_channel *channel);
/* Begins to watch it: on the worker. */
int ucx_channel_watch(struct ucx_channel *channel, struct heft_worker *worker,
                      void (*ready)(struct heft_watch *watch, uint32_t events));
/* Queues it and sends what the socket takes: 0 or why the channel is over. */
int ucx_channel_send(struct ucx_channel *channel, const struct ucx_message *message);
int ucx_channel_flush(struct ucx_channel *channel);
/* The next message: 1, 0 when none is whole yet, or PEER_LOST or PROTOCOL. Its payload lies in the channel
 * until the next call. */
int ucx_channel_receive(struct ucx_channel *channel, struct ucx_message *message_out);

#endif
