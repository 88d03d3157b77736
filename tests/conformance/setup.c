/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/setup.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS 2

void pair_open(struct pair *pair, const struct setup *setup)
{
    const struct heft_transport_ops *ops = transport_named(setup->transport);
    const char *base = setup->base != NULL ? setup->base : setup->transport;
    struct heft_error error = HEFT_ERROR_INIT;

    memset(pair, 0, sizeof(*pair));
    pair->setup = setup;
    assert_non_null(ops);
    side_open(&pair->near, ops, WORKERS);
    if (!setup->in_agent) {
        if (setup->process) {
            remote_open_process(&pair->remote, base, setup->link);
        } else {
            side_open(&pair->far, transport_named(base), WORKERS);
            remote_open_inside(&pair->remote, &pair->far, setup->link);
        }
    }
    if (ops->connect(pair->near.transport, setup->in_agent ? NULL : &pair->remote.peer, &pair->endpoint,
                     &error) != 0)
        fail_msg("connect: %s", error.text);
}

void pair_disconnect(struct pair *pair)
{
    if (pair->endpoint != NULL)
        pair->near.ops->disconnect(pair->endpoint);
    pair->endpoint = NULL;
}

void pair_close(struct pair *pair)
{
    pair_disconnect(pair);
    side_close(&pair->near);
    if (pair->setup->in_agent)
        return;
    if (!pair->setup->process) {
        remote_drop_session(&pair->remote);
        side_close(&pair->far);
    }
    remote_close(&pair->remote);
}

struct heft_transport_region *pair_far_region(struct pair *pair, const struct region_spec *spec)
{
    struct heft_transport_region *view;
    struct heft_error error = HEFT_ERROR_INIT;

    if (pair->setup->in_agent)
        return side_region_add(&pair->near, spec);
    view = calloc(1, sizeof(*view));
    assert_non_null(view);
    remote_region_add(&pair->remote, spec, view);
    if (pair->near.ops->remote_add != NULL && pair->near.ops->remote_add(pair->endpoint, view, &error) != 0)
        fail_msg("remote_add: %s", error.text);
    return view;
}

void pair_far_remove(struct pair *pair, struct heft_transport_region *region)
{
    if (pair->setup->in_agent) {
        side_region_remove(&pair->near, region);
        return;
    }
    if (pair->near.ops->remote_remove != NULL && pair->endpoint != NULL)
        pair->near.ops->remote_remove(pair->endpoint, region);
    remote_region_remove(&pair->remote, region);
    free(region);
}

int pair_post(struct pair *pair, struct test_op *op)
{
    struct heft_error error = HEFT_ERROR_INIT;

    return pair->near.ops->post(pair->endpoint, &op->op, &error);
}
