/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer's memory, mapped here. Device memory comes through a carrier (region.c): physical handles, mapped
 * one behind the other into one range, or a legacy IPC handle. Shareable host memory comes as a file and is
 * mapped as the local transport does; it feeds the GPU through the staging slots.
 *
 * What a peer says is checked before it is believed: a carrier's sizes must agree with each other and with
 * the region; a handle that is smaller than it claims is refused by the driver when it is mapped.
 */
#include "transport/cuda/cuda.h"

#include "base/error.h"
#include "space/cuda_memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct received {
    struct cuda_carrier carrier;
    int fds[CUDA_CARRIER_PIECES_MAX];
    uint32_t fd_count;
};

static void close_fds(struct received *got)
{
    while (got->fd_count > 0)
        (void)close(got->fds[--got->fd_count]);
}

/* Looks at the carrier's message without taking it. */
static int receive(int fd, struct received *got, struct heft_error *error)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(CUDA_CARRIER_PIECES_MAX * sizeof(int))];
    } control;
    struct iovec iov = {&got->carrier, sizeof(got->carrier)};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    struct cmsghdr *part;
    ssize_t size;

    do
        size = recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    if (size < 0)
        return heft_error_set_errno(error, errno, "looking into the carrier of its device memory");
    for (part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        memcpy(got->fds + got->fd_count, CMSG_DATA(part), count * sizeof(int));
        got->fd_count += (uint32_t)count;
    }
    if (size != (ssize_t)sizeof(got->carrier) || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        return heft_error_set(
            error, HEFT_ERR_PROTOCOL,
            "the carrier of its device memory is not complete (descriptors left? see ulimit -n)");
    return HEFT_OK;
}

static int check_carrier(const struct received *got, const struct heft_transport_region *region,
                         struct heft_error *error)
{
    const struct cuda_carrier *carrier = &got->carrier;
    uint64_t total = 0;
    uint32_t index;

    if (carrier->magic != CUDA_CARRIER_MAGIC || carrier->piece_count > CUDA_CARRIER_PIECES_MAX ||
        carrier->piece_count != got->fd_count || carrier->length_bytes != region->length_bytes)
        return heft_error_set(error, HEFT_ERR_PROTOCOL, "the carrier of its device memory is malformed");
    for (index = 0; index < carrier->piece_count; index++)
        if (carrier->piece_bytes[index] == 0 ||
            __builtin_add_overflow(total, carrier->piece_bytes[index], &total))
            return heft_error_set(error, HEFT_ERR_PROTOCOL,
                                  "the carrier of its device memory has impossible sizes");
    if (carrier->piece_count == 0)
        total = carrier->total_bytes;
    if (carrier->total_bytes != total || carrier->offset_bytes > total ||
        carrier->length_bytes > total - carrier->offset_bytes)
        return heft_error_set(error, HEFT_ERR_PROTOCOL,
                              "the carrier of its device memory claims more than it holds");
    return HEFT_OK;
}

static int map_piece(const struct heft_cu *cu, struct cuda_remote *remote, int fd, uint64_t bytes,
                     struct heft_error *error)
{
    heft_cu_handle handle;
    heft_cu_result result;
    union {
        intptr_t number;
        void *pointer;
    } shareable = {.number = fd};

    result = cu->mem_import(&handle, shareable.pointer, HEFT_CU_HANDLE_POSIX_FD);
    if (result)
        return heft_cuda_error(error, result, "importing its device memory");
    result = cu->mem_map(remote->reserved_at + remote->mapped_bytes, bytes, 0, handle, 0);
    (void)cu->mem_release(handle);
    if (result)
        return heft_cuda_error(error, result, "mapping %llu bytes of its device memory",
                               (unsigned long long)bytes);
    remote->piece_bytes[remote->piece_count++] = bytes;
    remote->mapped_bytes += bytes;
    return HEFT_OK;
}

static int map_pieces(const struct heft_cu *cu, struct cuda_remote *remote, const struct received *got,
                      struct heft_error *error)
{
    heft_cu_pointer address = 0;
    heft_cu_result result = cu->address_reserve(&address, got->carrier.total_bytes, 0, 0, 0);
    uint32_t index;
    int rc;

    if (result)
        return heft_cuda_error(error, result, "taking %llu bytes of device addresses",
                               (unsigned long long)got->carrier.total_bytes);
    remote->reserved_at = address;
    remote->piece_bytes = calloc(got->carrier.piece_count, sizeof(*remote->piece_bytes));
    if (!remote->piece_bytes) {
        (void)cu->address_free(address, got->carrier.total_bytes);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a region");
    }
    remote->reserved_bytes = got->carrier.total_bytes;
    for (index = 0; index < got->carrier.piece_count; index++) {
        rc = map_piece(cu, remote, got->fds[index], got->carrier.piece_bytes[index], error);
        if (rc)
            return rc;
    }
    result = heft_cuda_grant(cu, remote->enter_device, address, got->carrier.total_bytes);
    if (result)
        return heft_cuda_error(error, result, "opening its device memory to GPU %d of this process",
                               remote->enter_device);
    remote->side.mapped_at = address;
    remote->side.mapped_bytes = got->carrier.total_bytes;
    remote->side.address = address + got->carrier.offset_bytes;
    return HEFT_OK;
}

static void unmap(struct cuda_remote *remote)
{
    const struct heft_cu *cu = heft_cuda_loaded();
    uint64_t at = remote->reserved_at;
    uint32_t index;

    if (remote->host_map)
        (void)munmap(remote->host_map, remote->host_bytes);
    if (!cu || (!remote->reserved_bytes && !remote->ipc_at) || heft_cuda_enter(remote->enter_device, NULL))
        return;
    for (index = 0; index < remote->piece_count; index++) {
        (void)cu->mem_unmap(at, remote->piece_bytes[index]);
        at += remote->piece_bytes[index];
    }
    free(remote->piece_bytes);
    if (remote->reserved_bytes)
        (void)cu->address_free(remote->reserved_at, remote->reserved_bytes);
    if (remote->ipc_at)
        (void)cu->ipc_close(remote->ipc_at);
    heft_cuda_leave();
}

static int map_device(struct cuda_transport *transport, struct cuda_remote *remote,
                      const struct heft_transport_region *region, const struct received *got,
                      struct heft_error *error)
{
    int rc;
    struct heft_cuda_pointer pointer;
    heft_cu_pointer address = 0;
    heft_cu_result result;

    remote->side.kind = CUDA_SIDE_DEVICE;
    remote->side.access = &remote->access;
    /* Not the owner's GPU, which this process may never have used: a context there costs hundreds of ms. */
    remote->side.device = remote->enter_device = heft_cuda_used_device();
    if (memcmp(got->carrier.process, cuda_process_nonce(), sizeof(got->carrier.process)) == 0) {
        remote->side.address = (uintptr_t)region->address;
        heft_cuda_query(remote->side.address, &pointer);
        if (pointer.device >= 0)
            remote->side.device = pointer.device;
        (void)snprintf(remote->reason, sizeof(remote->reason), "device memory of this very process");
        return (uintptr_t)region->address == got->carrier.address
                   ? HEFT_OK
                   : heft_error_set(error, HEFT_ERR_PROTOCOL, "its device memory has two addresses");
    }
    rc = heft_cuda_enter(remote->enter_device, error);
    if (rc)
        return rc;
    if (got->carrier.piece_count > 0) {
        rc = map_pieces(transport->cu, remote, got, error);
        (void)snprintf(remote->reason, sizeof(remote->reason),
                       "same host, the peer's GPU memory is mapped (%u pieces)", got->carrier.piece_count);
    } else {
        result = transport->cu->ipc_open(&address, got->carrier.ipc, HEFT_CU_IPC_LAZY_PEER_ACCESS);
        if (result)
            rc = heft_cuda_error(error, result, "opening the IPC handle of its device memory");
        remote->ipc_at = address;
        remote->side.opened = 1;
        remote->side.address = address + got->carrier.offset_bytes;
        (void)snprintf(remote->reason, sizeof(remote->reason),
                       "same host, the peer's GPU memory by legacy IPC");
    }
    heft_cuda_leave();
    return rc;
}

static int add_device(struct cuda_endpoint *endpoint, struct cuda_remote *remote,
                      const struct heft_transport_region *region, struct heft_error *error)
{
    struct received *got;
    int rc;

    if (region->fd < 0)
        return heft_error_set(
            error, HEFT_ERR_UNSUPPORTED,
            "its device memory came without a handle: not reached by a unix socket, or of a kind "
            "that can't be exported (the owner's log says)");
    rc = cuda_start(endpoint->transport, error);
    if (rc)
        return rc;
    got = calloc(1, sizeof(*got));
    if (!got)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a carrier");
    rc = receive(region->fd, got, error);
    if (!rc)
        rc = check_carrier(got, region, error);
    if (!rc)
        rc = map_device(endpoint->transport, remote, region, got, error);
    close_fds(got);
    free(got);
    if (rc)
        unmap(remote);
    return rc;
}

static int add_host(struct cuda_remote *remote, const struct heft_transport_region *region,
                    struct heft_error *error)
{
    struct stat info;
    int writes = region->flags & HEFT_REGION_REMOTE_WRITE;

    if (region->fd < 0)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                              "its host memory is not shareable (heft_memory_alloc)");
    if (fstat(region->fd, &info))
        return heft_error_set_errno(error, errno, "its descriptor can't be examined");
    if (!S_ISREG(info.st_mode) || info.st_size < 0 || (uint64_t)info.st_size < region->length_bytes)
        return heft_error_set(error, HEFT_ERR_PROTOCOL,
                              "its shared memory is smaller than the region claims");
    remote->host_map = mmap(NULL, region->length_bytes, writes ? PROT_READ | PROT_WRITE : PROT_READ,
                            MAP_SHARED, region->fd, 0);
    if (remote->host_map == MAP_FAILED) {
        remote->host_map = NULL;
        return heft_error_set_errno(error, errno, "its memory can't be mapped");
    }
    remote->host_bytes = region->length_bytes;
    remote->side.kind = CUDA_SIDE_HOST;
    remote->side.address = (uintptr_t)remote->host_map;
    (void)snprintf(remote->reason, sizeof(remote->reason),
                   "same host, the peer's host memory is mapped, staged through pinned memory");
    return HEFT_OK;
}

int cuda_remote_add(struct cuda_endpoint *endpoint, struct heft_transport_region *region,
                    struct heft_error *error)
{
    struct cuda_remote *remote = calloc(1, sizeof(*remote));
    struct heft_error why = HEFT_ERROR_INIT;
    int rc = HEFT_OK;

    if (!remote)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory to note a region of %s", endpoint->name);
    remote->side.fd = remote->side.device = -1;
    if (region->length_bytes > 0 && !endpoint->same_host)
        rc = heft_error_set(&why, HEFT_ERR_UNSUPPORTED, "the peer is on another host");
    else if (region->length_bytes > 0 && region->space == HEFT_SPACE_CUDA)
        rc = add_device(endpoint, remote, region, &why);
    else if (region->length_bytes > 0 && region->space == HEFT_SPACE_HOST)
        rc = add_host(remote, region, &why);
    else if (region->space != HEFT_SPACE_FILE)
        remote->side.kind = CUDA_SIDE_HOST;
    if (rc) {
        memset(remote, 0, sizeof(*remote));
        (void)snprintf(remote->reason, sizeof(remote->reason), "%.159s", why.text);
    }
    remote->writable = (region->flags & HEFT_REGION_REMOTE_WRITE) != 0;
    (void)pthread_mutex_lock(&endpoint->remotes_lock);
    remote->next = endpoint->remotes;
    if (remote->next)
        remote->next->prev = remote;
    endpoint->remotes = remote;
    (void)pthread_mutex_unlock(&endpoint->remotes_lock);
    region->slot[endpoint->transport->host.index] = remote;
    return HEFT_OK;
}

void cuda_remote_remove(struct cuda_endpoint *endpoint, struct heft_transport_region *region)
{
    struct cuda_remote *remote = region->slot[endpoint->transport->host.index];

    if (!remote)
        return;
    region->slot[endpoint->transport->host.index] = NULL;
    (void)pthread_mutex_lock(&endpoint->remotes_lock);
    if (remote->prev)
        remote->prev->next = remote->next;
    else
        endpoint->remotes = remote->next;
    if (remote->next)
        remote->next->prev = remote->prev;
    (void)pthread_mutex_unlock(&endpoint->remotes_lock);
    unmap(remote);
    free(remote);
}

void cuda_remotes_free(struct cuda_endpoint *endpoint)
{
    struct cuda_remote *remote;

    while ((remote = endpoint->remotes) != NULL) {
        endpoint->remotes = remote->next;
        unmap(remote);
        free(remote);
    }
}
