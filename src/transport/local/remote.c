/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer's regions, made reachable: mapped when they come with a descriptor, else through cross-memory
 * attach.
 *
 * Trust: whoever holds the memory's descriptor can shorten it, and touching a page past its end raises
 * SIGBUS. Its size is checked when it is mapped; after that a same-host peer, which proved the token, is
 * trusted not to shorten its own shared memory (heft_memory never does). A peer's death does no harm: the
 * mapping keeps the pages.
 */
#include "transport/local/local.h"
#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((uint64_t)2 << 20)

static struct local_remote **slot_of(struct local_endpoint *endpoint, struct heft_transport_region *region)
{
    return (struct local_remote **)&region->slot[endpoint->transport->host.index];
}

int local_peer_alive(const struct local_endpoint *endpoint)
{
    struct pollfd watched = {endpoint->pidfd, POLLIN, 0};

    return endpoint->pidfd < 0 || poll(&watched, 1, 0) == 0;
}

/* A mapping whose huge pages can be used as such must begin at a multiple of their size. */
static void *map_aligned(int fd, uint64_t length_bytes, int protection)
{
    uint64_t reserve = length_bytes + HUGE_PAGE_BYTES;
    uintptr_t base, aligned;
    char *address;
    void *mapped;

    if (length_bytes < HUGE_PAGE_BYTES)
        return mmap(NULL, length_bytes, protection, MAP_SHARED, fd, 0);
    address = mmap(NULL, reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED)
        return MAP_FAILED;
    base = (uintptr_t)address;
    aligned = (base + HUGE_PAGE_BYTES - 1) & ~(uintptr_t)(HUGE_PAGE_BYTES - 1);
    mapped = mmap(address + (aligned - base), length_bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
    if (mapped == MAP_FAILED) {
        int saved = errno;

        (void)munmap(address, reserve);
        errno = saved;
        return MAP_FAILED;
    }
    if (aligned > base)
        (void)munmap(address, aligned - base);
    base = (aligned + length_bytes + 4095) & ~(uintptr_t)4095;
    if ((uintptr_t)address + reserve > base)
        (void)munmap(address + (base - (uintptr_t)address), (uintptr_t)address + reserve - base);
    (void)madvise(mapped, length_bytes, MADV_HUGEPAGE);
    return mapped;
}

static int map_region(struct local_remote *remote, const struct heft_transport_region *region)
{
    struct stat info;
    void *address;

    if (fstat(region->fd, &info) != 0) {
        (void)snprintf(remote->reason, sizeof(remote->reason), "its descriptor can't be examined: %s",
                       strerror(errno));
        return -1;
    }
    if (!S_ISREG(info.st_mode) || info.st_size < 0 || (uint64_t)info.st_size < region->length_bytes) {
        (void)snprintf(remote->reason, sizeof(remote->reason),
                       "its shared memory holds %lld bytes, the region claims %llu", (long long)info.st_size,
                       (unsigned long long)region->length_bytes);
        return -1;
    }
    address = MAP_FAILED;
    if (region->flags & HEFT_REGION_REMOTE_WRITE)
        address = map_aligned(region->fd, region->length_bytes, PROT_READ | PROT_WRITE);
    remote->writable = address != MAP_FAILED;
    if (address == MAP_FAILED)
        address = map_aligned(region->fd, region->length_bytes, PROT_READ);
    if (address == MAP_FAILED) {
        (void)snprintf(remote->reason, sizeof(remote->reason), "its memory can't be mapped: %s",
                       strerror(errno));
        return -1;
    }
    remote->mode = LOCAL_MAPPED;
    remote->address = address;
    remote->mapped_bytes = region->length_bytes;
    (void)snprintf(remote->reason, sizeof(remote->reason), "same host, the peer's memory is mapped");
    return 0;
}

static void explain_refusal(struct local_remote *remote, int errno_value)
{
    char scope = '?';
    FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");

    if (file != NULL) {
        int got = fgetc(file);

        scope = got == EOF ? '?' : (char)got;
        (void)fclose(file);
    }
    if (errno_value == ESRCH)
        (void)snprintf(remote->reason, sizeof(remote->reason),
                       "the peer's process is not in this pid namespace, and its memory is not shareable");
    else if (errno_value == EPERM && scope != '?' && scope != '0')
        (void)snprintf(remote->reason, sizeof(remote->reason),
                       "cross-memory attach is refused: kernel.yama.ptrace_scope is %c", scope);
    else
        (void)snprintf(remote->reason, sizeof(remote->reason), "cross-memory attach is refused: %s",
                       strerror(errno_value));
}

/* The number of the pidfd's process where this /proc was mounted, which may be another pid namespace. 0: it
 * is not told. */
static int number_in_proc(int pidfd)
{
    char path[64], line[64];
    int number = 0;
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
    file = fopen(path, "re");
    while (file != NULL && number == 0 && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, "Pid:", 4) == 0)
            number = (int)strtol(line + 4, NULL, 10);
    if (file != NULL)
        (void)fclose(file);
    return number > 0 ? number : 0;
}

/* Alive afterwards, the process had its number all the time: the file is its own. */
static void open_memory(struct local_endpoint *endpoint)
{
    int number = endpoint->memory < 0 && endpoint->pidfd >= 0 ? number_in_proc(endpoint->pidfd) : 0, memory;
    char path[64];

    if (number == 0)
        return;
    (void)snprintf(path, sizeof(path), "/proc/%d/mem", number);
    memory = open(path, O_RDONLY | O_CLOEXEC);
    if (memory >= 0 && !local_peer_alive(endpoint)) {
        (void)close(memory);
        memory = -1;
    }
    __atomic_store_n(&endpoint->memory, memory, __ATOMIC_RELEASE);
}

/* Reads the region's first and last byte the way its bytes would be read. */
static int probe_attach(struct local_endpoint *endpoint, struct local_remote *remote,
                        const struct heft_transport_region *region)
{
    char bytes[2];
    struct iovec local = {bytes, sizeof(bytes)};
    struct iovec sides[2] = {{region->address, 1}, {(char *)region->address + region->length_bytes - 1, 1}};
    ssize_t got;

    if (endpoint->pid <= 0) {
        (void)snprintf(remote->reason, sizeof(remote->reason),
                       "the peer's process id is not known here (other pid namespace?), and its memory is "
                       "not shareable");
        return -1;
    }
    if (region->address == NULL) {
        (void)snprintf(remote->reason, sizeof(remote->reason), "the peer gave no address for it");
        return -1;
    }
    got = process_vm_readv(endpoint->pid, &local, 1, sides, 2, 0);
    if (got != (ssize_t)sizeof(bytes)) {
        explain_refusal(remote, got < 0 ? errno : EFAULT);
        return -1;
    }
    open_memory(endpoint);
    remote->mode = LOCAL_ATTACHED;
    remote->writable = 1;
    (void)snprintf(remote->reason, sizeof(remote->reason),
                   "same host, cross-memory attach (the peer's memory is not shareable)");
    return 0;
}

int local_remote_add(struct local_endpoint *endpoint, struct heft_transport_region *region,
                     struct heft_error *error)
{
    struct local_remote *remote = calloc(1, sizeof(*remote));

    if (remote == NULL)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "no memory to note region %llu of %s",
                              (unsigned long long)region->id, endpoint->name);
    if (region->space != HEFT_SPACE_HOST)
        (void)snprintf(remote->reason, sizeof(remote->reason), "only host memory; the region is %s",
                       heft_space_name(region->space));
    else if (!endpoint->same_host)
        (void)snprintf(remote->reason, sizeof(remote->reason), "the peer is on another host");
    else if (region->length_bytes == 0) {
        remote->mode = LOCAL_MAPPED;
        remote->writable = 1;
        (void)snprintf(remote->reason, sizeof(remote->reason), "same host, an empty region");
    } else if (region->fd < 0 || map_region(remote, region) != 0) {
        char why[sizeof(remote->reason)];

        memcpy(why, remote->reason, sizeof(why));
        if (probe_attach(endpoint, remote, region) != 0 && why[0] != '\0')
            memcpy(remote->reason, why, sizeof(why));
    }
    pthread_mutex_lock(&endpoint->remotes_lock);
    remote->next = endpoint->remotes;
    if (remote->next != NULL)
        remote->next->prev = remote;
    endpoint->remotes = remote;
    pthread_mutex_unlock(&endpoint->remotes_lock);
    *slot_of(endpoint, region) = remote;
    return 0;
}

static void free_remote(struct local_remote *remote)
{
    if (remote->mode == LOCAL_MAPPED && remote->mapped_bytes > 0)
        (void)munmap(remote->address, remote->mapped_bytes);
    free(remote);
}

void local_remote_remove(struct local_endpoint *endpoint, struct heft_transport_region *region)
{
    struct local_remote *remote = *slot_of(endpoint, region);

    if (remote == NULL)
        return;
    *slot_of(endpoint, region) = NULL;
    pthread_mutex_lock(&endpoint->remotes_lock);
    if (remote->prev != NULL)
        remote->prev->next = remote->next;
    else
        endpoint->remotes = remote->next;
    if (remote->next != NULL)
        remote->next->prev = remote->prev;
    pthread_mutex_unlock(&endpoint->remotes_lock);
    free_remote(remote);
}

void local_remotes_free(struct local_endpoint *endpoint)
{
    struct local_remote *remote;

    while ((remote = endpoint->remotes) != NULL) {
        endpoint->remotes = remote->next;
        free_remote(remote);
    }
}
