/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process may still take: the machine's, and that of every control group above it. */
#ifndef HEFT_SPACE_MEMORY_LIMIT_H
#define HEFT_SPACE_MEMORY_LIMIT_H

#include <stdint.h>

struct heft_memory_limit {
    uint64_t available_bytes; /* UINT64_MAX: nothing could be read */
    char name[160]; /* which limit is the nearest: "MemAvailable of /proc/meminfo", or a group's file */
};

/* The roots are "/proc" and "/sys/fs/cgroup"; a test gives its own trees. */
void heft_memory_limit_read(const char *proc_root, const char *cgroup_root,
                            struct heft_memory_limit *limit_out);

#endif
