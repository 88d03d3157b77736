/* SPDX-License-Identifier: Apache-2.0 */
/* UCX, found at run time: any libucp.so.0, so that one build runs with it and without. */
#ifndef HEFT_TRANSPORT_UCX_LIBRARY_H
#define HEFT_TRANSPORT_UCX_LIBRARY_H

#include <heft/error.h>

#include <ucp/api/ucp.h>

#define UCX_CALLS(X)              \
    X(ucp_get_version)            \
    X(ucp_get_version_string)     \
    X(ucp_config_read)            \
    X(ucp_config_release)         \
    X(ucp_init_version)           \
    X(ucp_cleanup)                \
    X(ucp_worker_create)          \
    X(ucp_worker_destroy)         \
    X(ucp_worker_progress)        \
    X(ucp_worker_get_efd)         \
    X(ucp_worker_arm)             \
    X(ucp_worker_get_address)     \
    X(ucp_worker_release_address) \
    X(ucp_ep_create)              \
    X(ucp_ep_close_nbx)           \
    X(ucp_ep_flush_nbx)           \
    X(ucp_mem_map)                \
    X(ucp_mem_unmap)              \
    X(ucp_rkey_pack)              \
    X(ucp_rkey_buffer_release)    \
    X(ucp_ep_rkey_unpack)         \
    X(ucp_rkey_destroy)           \
    X(ucp_get_nbx)                \
    X(ucp_put_nbx)                \
    X(ucp_request_check_status)   \
    X(ucp_request_free)           \
    X(ucs_status_string)

struct ucx_calls {
#define UCX_FIELD(name) __typeof__(&name) name;
    UCX_CALLS(UCX_FIELD)
#undef UCX_FIELD
};

/* Loads the library once a process. UNSUPPORTED says what is missing. It is never unloaded. */
int ucx_library_load(const struct ucx_calls **calls_out, struct heft_error *error);

#endif
