/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of a transport's table for what needs no preparation there: they succeed and keep nothing. */
#ifndef HEFT_TRANSPORT_NOTHING_H
#define HEFT_TRANSPORT_NOTHING_H

#include <heft/transport.h>

int heft_nothing_region_add(struct heft_transport *transport, struct heft_transport_region *region,
                            struct heft_error *error);
void heft_nothing_region_remove(struct heft_transport *transport, struct heft_transport_region *region);
int heft_nothing_remote_add(struct heft_endpoint *endpoint, struct heft_transport_region *region,
                            struct heft_error *error);
void heft_nothing_remote_remove(struct heft_endpoint *endpoint, struct heft_transport_region *region);

#endif
