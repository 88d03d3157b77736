/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Own regions: what the address is, and the carrier through which a peer gets the memory's handles.
 *
 * A region of virtual memory management may span many mappings, each a physical handle of its own (a
 * heft_device_memory, PyTorch's expandable segments). Each is exported as a descriptor, and all travel in one
 * message of a socket pair whose reading end is the region's descriptor: peers look at the message without
 * taking it, so any number of them finds it.
 */
#include "transport/cuda/cuda.h"

#include "base/error.h"
#include "base/random.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static uint8_t nonce[16];

static void make_nonce(void)
{
    heft_random_bytes(nonce, sizeof(nonce));
}

const uint8_t *cuda_process_nonce(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, make_nonce);
    return nonce;
}

static int send_carrier(const struct cuda_carrier *carrier, const int *fds, size_t fd_count, int *fd_out,
                        struct heft_error *error)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(CUDA_CARRIER_PIECES_MAX * sizeof(int))];
    } control;
    union {
        const struct cuda_carrier *carrier;
        void *base;
    } bytes = {.carrier = carrier};
    struct iovec iov = {bytes.base, sizeof(*carrier)};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    int pair[2];
    ssize_t sent;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
        return heft_error_set_errno(error, errno, "making a carrier for device memory");
    if (fd_count > 0) {
        memset(&control, 0, sizeof(control));
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, fd_count * sizeof(int));
    }
    do
        sent = sendmsg(pair[0], &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent != (ssize_t)sizeof(*carrier)) {
        int rc = heft_error_set_errno(error, sent < 0 ? errno : EMSGSIZE,
                                      "putting %zu handles of device memory into a carrier (see ulimit -n)",
                                      fd_count);

        (void)close(pair[0]);
        (void)close(pair[1]);
        return rc;
    }
    (void)close(pair[0]);
    *fd_out = pair[1];
    return HEFT_OK;
}

/* The mappings that hold the region, each exported. */
static int export_pieces(const struct heft_cu *cu, struct cuda_carrier *carrier, int *fds,
                         struct heft_error *error)
{
    uint64_t at = carrier->address, end = carrier->address + carrier->length_bytes;

    while (at < end) {
        struct heft_cuda_pointer pointer;
        heft_cu_handle handle;
        heft_cu_result result;
        union {
            uint64_t number;
            void *pointer;
        } address = {.number = at};

        heft_cuda_query(at, &pointer);
        if (pointer.kind != HEFT_CUDA_VMM || pointer.size_bytes == 0 || pointer.start > at ||
            pointer.start + pointer.size_bytes <= at)
            return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                                  "the region is not mapped without gaps: nothing lies at its byte %llu",
                                  (unsigned long long)(at - carrier->address));
        if (!pointer.exports_fd)
            return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                                  "its memory was made without exportable handles; PyTorch: set "
                                  "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, or allocate it with "
                                  "heft_device_memory_alloc");
        if (carrier->piece_count == CUDA_CARRIER_PIECES_MAX)
            return heft_error_set(error, HEFT_ERR_TOO_MANY,
                                  "the region spans more than %u physical pieces; register it in parts",
                                  CUDA_CARRIER_PIECES_MAX);
        result = cu->mem_retain(&handle, address.pointer);
        if (result)
            return heft_cuda_error(error, result, "finding the physical memory of a region");
        result = cu->mem_export(&fds[carrier->piece_count], handle, HEFT_CU_HANDLE_POSIX_FD, 0);
        (void)cu->mem_release(handle);
        if (result)
            return heft_cuda_error(error, result, "exporting the physical memory of a region");
        if (carrier->piece_count == 0)
            carrier->offset_bytes = at - pointer.start;
        carrier->piece_bytes[carrier->piece_count++] = pointer.size_bytes;
        carrier->total_bytes += pointer.size_bytes;
        at = pointer.start + pointer.size_bytes;
    }
    return HEFT_OK;
}

static int make_carrier(const struct heft_cu *cu, const struct heft_transport_region *region,
                        const struct heft_cuda_pointer *pointer, struct cuda_region *own,
                        struct heft_error *error)
{
    struct cuda_carrier *carrier = calloc(1, sizeof(*carrier));
    int fds[CUDA_CARRIER_PIECES_MAX];
    struct heft_cuda_device info;
    uint32_t index;
    int rc;

    if (!carrier)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a carrier");
    carrier->magic = CUDA_CARRIER_MAGIC;
    carrier->address = (uintptr_t)region->address;
    carrier->length_bytes = region->length_bytes;
    memcpy(carrier->process, cuda_process_nonce(), sizeof(carrier->process));
    rc = heft_cuda_device_info(pointer->device, &info, error);
    if (!rc)
        memcpy(carrier->uuid, info.uuid, sizeof(carrier->uuid));
    if (!rc && pointer->kind == HEFT_CUDA_VMM)
        rc = export_pieces(cu, carrier, fds, error);
    if (!rc && pointer->kind == HEFT_CUDA_PLAIN) {
        heft_cu_result result = cu->ipc_get(&carrier->ipc, pointer->start);

        carrier->offset_bytes = carrier->address - pointer->start;
        carrier->total_bytes = pointer->size_bytes;
        if (result)
            rc = heft_cuda_error(error, result, "making an IPC handle");
    }
    if (!rc)
        rc = send_carrier(carrier, fds, carrier->piece_count, &own->carrier_fd, error);
    for (index = 0; index < carrier->piece_count; index++)
        (void)close(fds[index]);
    free(carrier);
    return rc;
}

/* Every byte of the region must be what its first byte is. */
static int check_span(const struct heft_transport_region *region, const struct heft_cuda_pointer *first,
                      uint64_t *end_out, struct heft_error *error)
{
    uint64_t at = (uintptr_t)region->address, end = at + region->length_bytes;
    struct heft_cuda_pointer pointer = *first;

    while (pointer.kind == first->kind && pointer.device == first->device && pointer.size_bytes) {
        at = pointer.start + pointer.size_bytes;
        *end_out = at;
        if (at >= end)
            return HEFT_OK;
        if (first->kind != HEFT_CUDA_VMM)
            break;
        heft_cuda_query(at, &pointer);
    }
    return heft_error_set(
        error, HEFT_ERR_RANGE,
        "%llu bytes of device memory were to be registered, the allocation there ends after %llu",
        (unsigned long long)region->length_bytes, (unsigned long long)(at - (uintptr_t)region->address));
}

static int add_device(struct cuda_transport *transport, struct heft_transport_region *region,
                      struct cuda_region *own, struct heft_error *error)
{
    struct heft_error why = HEFT_ERROR_INIT;
    struct heft_cuda_pointer pointer;
    uint64_t end = 0;
    int rc = cuda_start(transport, error);

    if (rc)
        return rc;
    own->side.kind = CUDA_SIDE_DEVICE;
    own->side.access = &own->access;
    own->side.address = (uintptr_t)region->address;
    if (region->length_bytes == 0)
        return HEFT_OK;
    heft_cuda_query(own->side.address, &pointer);
    if (pointer.kind != HEFT_CUDA_PLAIN && pointer.kind != HEFT_CUDA_VMM && pointer.kind != HEFT_CUDA_POOL)
        return heft_error_set(error, HEFT_ERR_INVALID, "%p is %s, not device memory", region->address,
                              pointer.kind == HEFT_CUDA_PINNED    ? "pinned host memory"
                              : pointer.kind == HEFT_CUDA_MANAGED ? "managed memory"
                                                                  : "no address that the driver knows");
    rc = check_span(region, &pointer, &end, error);
    if (rc)
        return rc;
    own->side.device = pointer.device;
    if (pointer.kind == HEFT_CUDA_VMM) {
        own->side.mapped_at = pointer.start;
        own->side.mapped_bytes = end - pointer.start;
    }
    if (!(region->flags & (HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE)))
        return HEFT_OK;
    if (pointer.kind == HEFT_CUDA_POOL) {
        (void)snprintf(
            own->reason, sizeof(own->reason),
            "memory of a stream-ordered pool can't be shared; use cudaMalloc or heft_device_memory_alloc");
        return HEFT_OK;
    }
    rc = heft_cuda_enter(pointer.device, error);
    if (rc)
        return rc;
    if (make_carrier(transport->cu, region, &pointer, own, &why))
        (void)snprintf(own->reason, sizeof(own->reason), "%.159s", why.text);
    heft_cuda_leave();
    if (own->carrier_fd >= 0)
        region->fd = own->carrier_fd; /* the agent passes it on */
    return HEFT_OK;
}

int cuda_region_add(struct cuda_transport *transport, struct heft_transport_region *region,
                    struct heft_error *error)
{
    struct cuda_region *own = calloc(1, sizeof(*own));
    int rc = HEFT_OK;

    if (!own)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a region");
    own->carrier_fd = -1;
    own->side.fd = -1;
    own->side.device = -1;
    if (region->space == HEFT_SPACE_CUDA) {
        rc = add_device(transport, region, own, error);
    } else if (region->space == HEFT_SPACE_HOST) {
        own->side.kind = CUDA_SIDE_HOST;
        own->side.address = (uintptr_t)region->address;
    } else if (region->space == HEFT_SPACE_FILE) {
        own->side.kind = CUDA_SIDE_FILE;
        own->side.fd = region->fd;
    }
    if (rc) {
        free(own);
        own = NULL;
    }
    region->slot[transport->host.index] = own;
    return rc;
}

void cuda_region_remove(struct cuda_transport *transport, struct heft_transport_region *region)
{
    struct cuda_region *own = region->slot[transport->host.index];

    region->slot[transport->host.index] = NULL;
    if (own && own->carrier_fd >= 0) {
        (void)close(own->carrier_fd);
        region->fd = -1;
    }
    free(own);
}

/* Asked at the first use: at registration the driver may not be started, and shouldn't be for host memory. */
static int is_pinned(struct cuda_region *own, const struct heft_transport_region *region)
{
    int pinned = __atomic_load_n(&own->pinned, __ATOMIC_RELAXED);
    struct heft_cuda_pointer pointer;

    if (pinned == 0) {
        heft_cuda_query(own->side.address, &pointer);
        pinned = pointer.kind == HEFT_CUDA_PINNED &&
                         pointer.start + pointer.size_bytes >= own->side.address + region->length_bytes
                     ? 1
                     : -1;
        __atomic_store_n(&own->pinned, pinned, __ATOMIC_RELAXED);
    }
    return pinned > 0;
}

void cuda_region_side(const struct cuda_transport *transport, const struct heft_transport_region *region,
                      struct cuda_side *side_out)
{
    struct cuda_region *own = region->slot[transport->host.index];

    memset(side_out, 0, sizeof(*side_out));
    side_out->fd = side_out->device = -1;
    if (!own)
        return;
    *side_out = own->side;
    if (own->side.kind == CUDA_SIDE_HOST && region->length_bytes > 0 && is_pinned(own, region))
        side_out->kind = CUDA_SIDE_PINNED;
}
