/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nothing.h"

int heft_nothing_region_add(struct heft_transport *transport, struct heft_transport_region *region,
                            struct heft_error *error)
{
    (void)transport;
    (void)region;
    (void)error;
    return 0;
}

void heft_nothing_region_remove(struct heft_transport *transport, struct heft_transport_region *region)
{
    (void)transport;
    (void)region;
}

int heft_nothing_remote_add(struct heft_endpoint *endpoint, struct heft_transport_region *region,
                            struct heft_error *error)
{
    (void)endpoint;
    (void)region;
    (void)error;
    return 0;
}

void heft_nothing_remote_remove(struct heft_endpoint *endpoint, struct heft_transport_region *region)
{
    (void)endpoint;
    (void)region;
}
