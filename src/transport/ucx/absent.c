/* SPDX-License-Identifier: Apache-2.0 */
/* The ucx transport of a build without UCX's headers. */
#include "base/error.h"

#include <heft/transport.h>

static int ucx_open(const struct heft_transport_host *host, struct heft_transport **transport_out,
                    struct heft_error *error)
{
    (void)host;
    (void)transport_out;
    return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                          "this heft was built without UCX: install libucx-dev and build it again");
}

const struct heft_transport_ops heft_transport_ucx = {
    .abi = HEFT_TRANSPORT_ABI, .size = sizeof(struct heft_transport_ops), .name = "ucx", .open = ucx_open};
