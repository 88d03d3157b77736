/* SPDX-License-Identifier: Apache-2.0 */
/* What stands in a transport's table where the transport has nothing: callers never test for NULL. */
#include "agent/agent_internal.h"

#include "base/error.h"
#include "transport/nothing.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int stub_open(const struct heft_transport_host *host, struct heft_transport **transport_out,
                     struct heft_error *error)
{
    (void)host;
    (void)transport_out;
    return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "the transport has no open");
}

static void stub_close(struct heft_transport *transport)
{
    (void)transport;
}

static void stub_score(struct heft_transport *transport, struct heft_endpoint *endpoint,
                       const struct heft_route_query *query, struct heft_route_score *score_out)
{
    (void)transport;
    (void)endpoint;
    (void)query;
    score_out->score = 0;
    (void)snprintf(score_out->reason, sizeof(score_out->reason), "the transport serves no route");
}

static int stub_connect(struct heft_transport *transport, const struct heft_transport_peer *peer,
                        struct heft_endpoint **endpoint_out, struct heft_error *error)
{
    (void)transport;
    (void)peer;
    (void)endpoint_out;
    return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "the transport connects to nothing");
}

static void stub_disconnect(struct heft_endpoint *endpoint)
{
    (void)endpoint;
}

static void stub_fail(struct heft_endpoint *endpoint, int status, const struct heft_error *error)
{
    (void)endpoint;
    (void)status;
    (void)error;
}

static int stub_accept(struct heft_transport *transport, int fd, uint64_t session, struct heft_error *error)
{
    (void)transport;
    (void)session;
    (void)close(fd);
    return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "the transport takes no data streams");
}

static void stub_drop_session(struct heft_transport *transport, uint64_t session)
{
    (void)transport;
    (void)session;
}

static int stub_post(struct heft_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error)
{
    (void)endpoint;
    (void)op;
    return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "the transport moves nothing");
}

static void stub_cancel(struct heft_endpoint *endpoint, struct heft_transport_op *op)
{
    (void)endpoint;
    (void)op;
}

static int stub_query(struct heft_transport *transport, struct heft_query *query, struct heft_error *error)
{
    (void)transport;
    (void)query;
    return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "no transport of this agent can ask about objects");
}

static int stub_move(struct heft_endpoint *endpoint, struct heft_transport_op *op, struct heft_error *error)
{
    (void)endpoint;
    (void)op;
    (void)error;
    return HEFT_ERR_AGAIN;
}

static void stub_forget(struct heft_transport *transport, void *kept)
{
    (void)transport;
    (void)kept;
}

void heft_transport_fill(const struct heft_transport_ops *ops, struct heft_transport_ops *full_out)
{
    struct heft_transport_ops full = {0};
    size_t size = ops->size < sizeof(full) ? ops->size : sizeof(full);

    memcpy(&full, ops, size); /* an older table is shorter: what it lacks stays NULL */
#define FILL_WITH(field, stub) \
    if (!full.field)           \
    full.field = stub
#define FILL(field) FILL_WITH(field, stub_##field)
    FILL(open);
    FILL(close);
    FILL_WITH(region_add, heft_nothing_region_add);
    FILL_WITH(region_remove, heft_nothing_region_remove);
    FILL_WITH(remote_add, heft_nothing_remote_add);
    FILL_WITH(remote_remove, heft_nothing_remote_remove);
    FILL(score);
    FILL(connect);
    FILL(disconnect);
    FILL(fail);
    FILL(accept);
    FILL(drop_session);
    FILL(post);
    FILL(cancel);
    FILL(query);
    FILL(move);
    FILL(forget);
#undef FILL
#undef FILL_WITH
    full.size = sizeof(full);
    *full_out = full;
}
