/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accept4 for the libraries of this process. gRPC closes its listener for good at the first failed accept, so
 * one moment without free file descriptors (a flood of connections, a low limit) would leave a heftd that
 * runs and serves nobody. This definition stands before the C library's: a failure that concerns one
 * connection, or passes by itself, is reported as "nothing to accept". The connections wait in the kernel's
 * queue and are taken when the next one arrives.
 */
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WARN_EVERY_NS (10 * HEFT_NS_PER_S)

static void warn_full(void)
{
    static uint64_t warned_ns;
    uint64_t now_ns = heft_now_ns(), last_ns = __atomic_load_n(&warned_ns, __ATOMIC_RELAXED);

    if (last_ns && now_ns - last_ns < WARN_EVERY_NS)
        return;
    __atomic_store_n(&warned_ns, now_ns, __ATOMIC_RELAXED);
    heft_log(HEFT_LOG_WARN,
             "no file descriptor is left for new connections, they wait: raise the limit (ulimit -n)");
}

__attribute__((visibility("default"))) int accept4(int fd, struct sockaddr *address, socklen_t *size,
                                                   int flags)
{
    long got = syscall(SYS_accept4, fd, address, size, flags);

    if (got >= 0)
        return (int)got;
    switch (errno) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
        warn_full();
        errno = EAGAIN;
        break;
    case ECONNABORTED:
    case EPROTO:
    case EPERM:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENONET:
        errno = EAGAIN;
        break;
    default:
        break;
    }
    return -1;
}
