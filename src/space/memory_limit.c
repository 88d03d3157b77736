/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is left of the machine's memory and of each control group's, both versions of the interface. A group's
 * page cache counts as free: the kernel drops it before it kills anyone. Memory beyond these limits would be
 * granted, and would end the process later, at some touch: so the limits are asked before.
 */
#include "space/memory_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES 16384

static int read_text(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t used = 0;

    if (fd < 0)
        return -1;
    while (used + 1 < size) {
        ssize_t got = read(fd, text + used, size - 1 - used);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    (void)close(fd);
    text[used] = 0;
    return 0;
}

static int parse_number(const char *text, uint64_t *value_out)
{
    char *end;
    unsigned long long value;

    while (*text == ' ' || *text == '\t')
        text++;
    if (*text < '0' || *text > '9')
        return -1; /* "max" */
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno)
        return -1;
    *value_out = value;
    return 0;
}

/* The number after `key` at the beginning of a line. */
static int find_number(const char *text, const char *key, uint64_t *value_out)
{
    size_t key_bytes = strlen(key);

    while (text && *text) {
        if (strncmp(text, key, key_bytes) == 0)
            return parse_number(text + key_bytes, value_out);
        text = strchr(text, '\n');
        if (text)
            text++;
    }
    return -1;
}

static int read_number(const char *folder, const char *file, uint64_t *value_out)
{
    char path[PATH_MAX], text[64];

    if (snprintf(path, sizeof(path), "%s/%s", folder, file) >= (int)sizeof(path))
        return -1;
    if (read_text(path, text, sizeof(text)))
        return -1;
    return parse_number(text, value_out);
}

struct group_files {
    const char *controller; /* of the line in /proc/self/cgroup; "" for the unified tree */
    const char *below;      /* the tree's place under the root */
    const char *limit, *usage;
    const char *caches[2];
};

static const struct group_files versions[] = {
    {"", "", "memory.max", "memory.current", {"inactive_file ", "active_file "}},
    {"", "/unified", "memory.max", "memory.current", {"inactive_file ", "active_file "}},
    {"memory",
     "/memory",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file ", "total_active_file "}},
};

static void look_at_group(const struct group_files *files, const char *folder,
                          struct heft_memory_limit *limit)
{
    static const uint64_t none = UINT64_C(1) << 62; /* version 1 says "no limit" by a huge number */
    char path[PATH_MAX], *text;
    uint64_t most, used, cache, left;
    size_t index;

    if (read_number(folder, files->limit, &most) || most >= none || read_number(folder, files->usage, &used))
        return;
    if (snprintf(path, sizeof(path), "%s/memory.stat", folder) >= (int)sizeof(path))
        return;
    text = malloc(FILE_BYTES);
    if (text && read_text(path, text, FILE_BYTES) == 0) {
        for (index = 0; index < 2; index++)
            if (find_number(text, files->caches[index], &cache) == 0)
                used = used > cache ? used - cache : 0;
    }
    free(text);
    left = most > used ? most - used : 0;
    if (left < limit->available_bytes) {
        limit->available_bytes = left;
        (void)snprintf(limit->name, sizeof(limit->name), "%.120s/%s", folder, files->limit);
    }
}

/* The path of this process' group in the line of `controller`, or NULL. */
static char *find_group(char *groups, const char *controller)
{
    char *line, *rest = groups;

    while ((line = strsep(&rest, "\n")) != NULL) {
        char *list = strchr(line, ':'), *path, *name;

        path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        list++;
        if (*controller == 0 && *list == 0)
            return path;
        while (*controller && (name = strsep(&list, ",")) != NULL)
            if (strcmp(name, controller) == 0)
                return path;
    }
    return NULL;
}

static void look_at_groups(const struct group_files *files, const char *proc_root, const char *cgroup_root,
                           struct heft_memory_limit *limit)
{
    char folder[PATH_MAX], groups[4096], *path, *slash;
    size_t root_bytes;

    if (snprintf(folder, sizeof(folder), "%s/self/cgroup", proc_root) >= (int)sizeof(folder) ||
        read_text(folder, groups, sizeof(groups)))
        return;
    path = find_group(groups, files->controller);
    if (!path ||
        snprintf(folder, sizeof(folder), "%s%s%s", cgroup_root, files->below, path) >= (int)sizeof(folder))
        return;
    root_bytes = strlen(cgroup_root) + strlen(files->below);
    /* In a container the path may name a place outside of what is mounted: its parents' files are then
     * missing, and the mounted root is the container's own group. */
    while (strlen(folder) > root_bytes) {
        look_at_group(files, folder, limit);
        slash = strrchr(folder, '/');
        if (!slash)
            break;
        *slash = 0;
    }
    look_at_group(files, folder, limit);
}

void heft_memory_limit_read(const char *proc_root, const char *cgroup_root,
                            struct heft_memory_limit *limit_out)
{
    struct heft_memory_limit limit = {UINT64_MAX, "no limit known"};
    char path[PATH_MAX], text[4096];
    uint64_t kib;
    size_t index;

    if (snprintf(path, sizeof(path), "%s/meminfo", proc_root) < (int)sizeof(path) &&
        read_text(path, text, sizeof(text)) == 0 && find_number(text, "MemAvailable:", &kib) == 0) {
        limit.available_bytes = kib << 10;
        (void)snprintf(limit.name, sizeof(limit.name), "MemAvailable of /proc/meminfo");
    }
    for (index = 0; index < sizeof(versions) / sizeof(versions[0]); index++)
        look_at_groups(&versions[index], proc_root, cgroup_root, &limit);
    *limit_out = limit;
}
