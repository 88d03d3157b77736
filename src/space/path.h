/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening files by names that come from outside: beneath a root, links included, and never anything but a
 * regular file, so that a FIFO can't stop us and a device can't be touched.
 */
#ifndef HEFT_SPACE_PATH_H
#define HEFT_SPACE_PATH_H

#include <heft/error.h>
#include <sys/stat.h>

/*
 * Opens `path` (checked by heft_path_check before) beneath the folder root_fd. A link may lead on beneath the
 * root, never out of it. O_CLOEXEC is added to `flags`. Returns the descriptor or a negative errno; -EXDEV:
 * it leaves the root. Any thread.
 */
int heft_path_beneath(int root_fd, const char *path, int flags);
/* The same without openat2, for systems that lack or forbid it: there no link at all is followed. */
int heft_path_walk(int root_fd, const char *path, int flags);

/* What `path` is, without opening it: 0 or a negative errno. */
int heft_path_stat(int root_fd, const char *path, struct stat *stat_out);
/*
 * A regular file for reading. Errors: NOT_FOUND, PATH_UNSAFE, NOT_A_FILE, PERMISSION, NO_FDS; the sentence
 * does not name the file: the caller knows the name that its user knows.
 */
int heft_path_open(int root_fd, const char *path, int *fd_out, struct stat *stat_out,
                   struct heft_error *error);
/* The same for a path that the user himself wrote: it may lead anywhere. */
int heft_path_open_own(const char *path, int *fd_out, struct stat *stat_out, struct heft_error *error);
/* A folder that the user himself wrote, for listing and as a root. */
int heft_path_open_folder(const char *path, int *fd_out, struct heft_error *error);
/* The error for an errno of opening; returns its code. */
int heft_path_error(int errno_value, struct heft_error *error);

#endif
