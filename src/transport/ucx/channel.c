/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx/channel.h"
#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define MAGIC 0x31584355u /* "UCX1" as it lies on the wire */

int ucx_channel_open(struct ucx_channel *channel, const struct heft_transport_host *host, int fd,
                     struct heft_error *error)
{
    int flags = fcntl(fd, F_GETFL);

    memset(channel, 0, sizeof(*channel));
    channel->fd = fd;
    channel->tls = host->take_tls != NULL ? host->take_tls(host->agent, fd) : NULL;
    heft_buf_init(&channel->out, UCX_OUT_MAX_BYTES);
    channel->in = malloc(UCX_HEAD_BYTES + UCX_PAYLOAD_MAX_BYTES);
    if (flags >= 0)
        (void)fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    if (channel->in != NULL)
        return 0;
    ucx_channel_close(channel);
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory for a ucx connection");
}

void ucx_channel_close(struct ucx_channel *channel)
{
    if (channel->fd < 0)
        return;
    if (channel->watched)
        heft_watch_remove(&channel->watch);
    channel->watched = 0;
    heft_tls_free(channel->tls);
    (void)close(channel->fd);
    channel->fd = -1;
    heft_buf_free(&channel->out);
    free(channel->in);
    channel->in = NULL;
}

int ucx_channel_watch(struct ucx_channel *channel, struct heft_worker *worker,
                      void (*ready)(struct heft_watch *watch, uint32_t events))
{
    int rc;

    channel->watch.fd = channel->fd;
    channel->watch.ready = ready;
    channel->events = EPOLLIN;
    rc = heft_watch_add(worker, &channel->watch, channel->events, NULL);
    channel->watched = rc == 0;
    return rc;
}

int ucx_channel_flush(struct ucx_channel *channel)
{
    uint32_t events = EPOLLIN;

    while (channel->out_sent < channel->out.size) {
        struct iovec iov = {channel->out.data + channel->out_sent, channel->out.size - channel->out_sent};
        ssize_t sent = heft_tls_or_fd_writev(channel->tls, channel->fd, &iov, 1);

        if (sent > 0) {
            channel->out_sent += (size_t)sent;
            continue;
        }
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            events |= EPOLLOUT;
            break;
        }
        return HEFT_ERR_PEER_LOST;
    }
    if (channel->out_sent == channel->out.size && channel->out.size > 0) {
        heft_buf_free(&channel->out);
        heft_buf_init(&channel->out, UCX_OUT_MAX_BYTES);
        channel->out_sent = 0;
    }
    if (channel->watched && events != channel->events) {
        channel->events = events;
        (void)heft_watch_modify(&channel->watch, events);
    }
    return 0;
}

int ucx_channel_send(struct ucx_channel *channel, const struct ucx_message *message)
{
    struct heft_buf *out = &channel->out;

    heft_buf_u32(out, MAGIC);
    heft_buf_u16(out, message->type);
    heft_buf_u16(out, 0);
    heft_buf_u32(out, message->value);
    heft_buf_u32(out, message->payload_bytes);
    heft_buf_u64(out, message->id);
    heft_buf_u64(out, message->address);
    heft_buf_u64(out, message->length);
    heft_buf_bytes(out, message->payload, message->payload_bytes);
    if (out->failed) /* nobody reads there */
        return HEFT_ERR_STALLED;
    return ucx_channel_flush(channel);
}

/* 1 when `want` bytes are there. */
static int fill(struct ucx_channel *channel, size_t want)
{
    while (channel->in_have < want) {
        struct iovec iov = {channel->in + channel->in_have, want - channel->in_have};
        ssize_t got = heft_tls_or_fd_readv(channel->tls, channel->fd, &iov, 1);

        if (got > 0)
            channel->in_have += (size_t)got;
        else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        else if (got == 0 || errno != EINTR)
            return HEFT_ERR_PEER_LOST;
    }
    return 1;
}

int ucx_channel_receive(struct ucx_channel *channel, struct ucx_message *message_out)
{
    const uint8_t *head = channel->in;
    struct ucx_message message;
    int rc = fill(channel, UCX_HEAD_BYTES);

    if (rc <= 0)
        return rc;
    message.type = (uint16_t)(head[4] | head[5] << 8);
    message.value = heft_get_u32(head + 8);
    message.payload_bytes = heft_get_u32(head + 12);
    message.id = heft_get_u64(head + 16);
    message.address = heft_get_u64(head + 24);
    message.length = heft_get_u64(head + 32);
    if (heft_get_u32(head) != MAGIC || message.payload_bytes > UCX_PAYLOAD_MAX_BYTES)
        return HEFT_ERR_PROTOCOL;
    rc = fill(channel, UCX_HEAD_BYTES + message.payload_bytes);
    if (rc <= 0)
        return rc;
    message.payload = channel->in + UCX_HEAD_BYTES;
    channel->in_have = 0;
    *message_out = message;
    return 1;
}
