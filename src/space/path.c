/* SPDX-License-Identifier: Apache-2.0 */
#include "space/path.h"
#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BENEATH_TRIES 16 /* the kernel answers EAGAIN when something was renamed meanwhile */

int heft_path_walk(int root_fd, const char *path, int flags)
{
    int folder = root_fd, fd = -1, failed = 0;
    char part[256];
    struct stat st;

    for (;;) {
        size_t size = strcspn(path, "/");
        int last = path[size] == 0;

        if (size == 0 || size >= sizeof(part) ||
            (path[0] == '.' && (size == 1 || (size == 2 && path[1] == '.')))) {
            failed = EXDEV;
            break;
        }
        memcpy(part, path, size);
        part[size] = 0;
        if (fstatat(folder, part, &st, AT_SYMLINK_NOFOLLOW) != 0) {
            failed = errno;
            break;
        }
        fd = S_ISLNK(st.st_mode)
                 ? -1
                 : openat(folder, part, (last ? flags : O_PATH | O_DIRECTORY) | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) {
            failed = S_ISLNK(st.st_mode) || errno == ELOOP ? EXDEV : errno;
            break;
        }
        if (folder != root_fd)
            (void)close(folder);
        if (last)
            return fd;
        folder = fd;
        path += size + 1;
    }
    if (folder != root_fd)
        (void)close(folder);
    return -failed;
}

int heft_path_beneath(int root_fd, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int tries;

    for (tries = 0; tries < BENEATH_TRIES; tries++) {
        long fd = syscall(SYS_openat2, root_fd, path, &how, sizeof(how));

        if (fd >= 0)
            return (int)fd;
        if (errno == ENOSYS || errno == EPERM) /* an old kernel, or a sandbox that does not know the call */
            return heft_path_walk(root_fd, path, flags);
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
    }
    return -EAGAIN;
}

int heft_path_stat(int root_fd, const char *path, struct stat *stat_out)
{
    int fd = heft_path_beneath(root_fd, path, O_PATH);
    int rc;

    if (fd < 0)
        return fd;
    rc = fstat(fd, stat_out) == 0 ? 0 : -errno;
    (void)close(fd);
    return rc;
}

int heft_path_error(int errno_value, struct heft_error *error)
{
    struct rlimit limit;

    switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
        return heft_error_set(error, HEFT_ERR_NOT_FOUND, "no such file");
    case EXDEV:
        return heft_error_set(error, HEFT_ERR_PATH_UNSAFE,
                              "leaves the model's folder through a link; put the file itself there");
    case ELOOP:
        return heft_error_set(error, HEFT_ERR_PATH_UNSAFE, "a link that leads to itself, or too many links");
    case EACCES:
    case EPERM:
        return heft_error_set(
            error, HEFT_ERR_PERMISSION,
            "permission denied for user %ld; make it readable for that user (and its folders searchable)",
            (long)geteuid());
    case EMFILE:
        if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
            return heft_error_set(error, HEFT_ERR_NO_FDS,
                                  "this process may have %llu files open (ulimit -n) and has no descriptor "
                                  "left; raise it: ulimit -n %llu",
                                  (unsigned long long)limit.rlim_cur,
                                  (unsigned long long)(limit.rlim_cur * 4));
        return heft_error_set(error, HEFT_ERR_NO_FDS, "no descriptor left; raise ulimit -n");
    case ENFILE:
        return heft_error_set(error, HEFT_ERR_NO_FDS,
                              "the whole system has no descriptor left; raise fs.file-max");
    case EAGAIN:
        return heft_error_set(error, HEFT_ERR_CHANGED, "the folder changes while it is read; try again");
    default:
        return heft_error_set_errno(error, errno_value, "could not be opened");
    }
}

static int not_a_file(mode_t mode, struct heft_error *error)
{
    const char *kind = S_ISDIR(mode)    ? "a directory"
                       : S_ISFIFO(mode) ? "a FIFO"
                       : S_ISSOCK(mode) ? "a socket"
                       : S_ISLNK(mode)  ? "a link"
                                        : "a device";

    return heft_error_set(error, HEFT_ERR_NOT_A_FILE, "is %s, not a regular file", kind);
}

/* Beneath the root, or anywhere when root_fd is AT_FDCWD. */
static int open_any(int root_fd, const char *path, int flags)
{
    int fd;

    if (root_fd != AT_FDCWD)
        return heft_path_beneath(root_fd, path, flags);
    fd = open(path, flags | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return fd;
}

/*
 * Looks first and opens then: opening a FIFO, even without waiting, would wake its writer, and opening a
 * device can do anything. What came in between is looked at again.
 */
static int open_regular(int root_fd, const char *path, int *fd_out, struct stat *stat_out,
                        struct heft_error *error)
{
    struct stat st;
    int fd = open_any(root_fd, path, O_PATH);

    if (fd < 0)
        return heft_path_error(-fd, error);
    if (fstat(fd, &st) != 0) {
        (void)close(fd);
        return heft_error_set_errno(error, errno, "its attributes could not be read");
    }
    (void)close(fd);
    if (!S_ISREG(st.st_mode))
        return not_a_file(st.st_mode, error);
    fd = open_any(root_fd, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return heft_path_error(-fd, error);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        (void)close(fd);
        return heft_error_set(error, HEFT_ERR_CHANGED, "was replaced while it was opened");
    }
    (void)fcntl(fd, F_SETFL,
                0); /* O_NONBLOCK was for the opening; on a ring it would turn reads into AGAIN */
    *fd_out = fd;
    *stat_out = st;
    return HEFT_OK;
}

int heft_path_open(int root_fd, const char *path, int *fd_out, struct stat *stat_out,
                   struct heft_error *error)
{
    return open_regular(root_fd, path, fd_out, stat_out, error);
}

int heft_path_open_own(const char *path, int *fd_out, struct stat *stat_out, struct heft_error *error)
{
    return open_regular(AT_FDCWD, path, fd_out, stat_out, error);
}

int heft_path_open_folder(const char *path, int *fd_out, struct heft_error *error)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        return errno == ENOENT ? heft_error_set(error, HEFT_ERR_NOT_FOUND, "no such file or folder")
                               : heft_path_error(errno, error);
    *fd_out = fd;
    return HEFT_OK;
}
