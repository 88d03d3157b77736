/* SPDX-License-Identifier: Apache-2.0 */
/* The writing side of telemetry: one file an agent, made whole before its magic is written. */
#include "agent/telemetry.h"
#include "agent/telemetry_file.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLEAN_EVERY_NS (60 * HEFT_NS_PER_S)

int heft_telemetry_folder(int second, char path_out[HEFT_TELEMETRY_PATH_BYTES])
{
    const char *runtime = second ? secure_getenv("XDG_RUNTIME_DIR") : NULL;
    int size;

    if (second && (!runtime || runtime[0] != '/'))
        return HEFT_ERR_NOT_FOUND;
    size = second ? snprintf(path_out, HEFT_TELEMETRY_PATH_BYTES, "%s/heft", runtime)
                  : snprintf(path_out, HEFT_TELEMETRY_PATH_BYTES, "/dev/shm/heft-%u", (unsigned)geteuid());
    return size < HEFT_TELEMETRY_PATH_BYTES - HEFT_TELEMETRY_NAME_BYTES ? 0 : HEFT_ERR_NOT_FOUND;
}

/* The folder, made if it is not there; one of this user's own that others could write to is none. */
static int open_folder(const char *path, int is_own, struct heft_error *error)
{
    struct stat st;
    int fd;

    if (mkdir(path, 0700) && errno != EEXIST)
        return heft_error_set_errno(error, errno, "making the folder %s", path);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (is_own ? O_NOFOLLOW : 0));
    if (fd < 0)
        return heft_error_set_errno(error, errno, "opening the folder %s", path);
    if (fstat(fd, &st) || (is_own && (st.st_uid != geteuid() || (st.st_mode & 022)))) {
        (void)close(fd);
        return heft_error_set(error, HEFT_ERR_PERMISSION,
                              "the folder %s belongs to, or may be written by, somebody else", path);
    }
    return fd;
}

/* Every page is there when it returns: later writes can't fail. */
static int map_file(struct heft_telemetry *telemetry, int fd, struct heft_error *error)
{
    int failure;
    void *map;

    if (flock(fd, LOCK_EX | LOCK_NB))
        return heft_error_set_errno(error, errno, "locking %s", telemetry->path);
    failure = posix_fallocate(fd, 0, (off_t)telemetry->size_bytes);
    if (failure)
        return heft_error_set_errno(error, failure, "making room for %s", telemetry->path);
    map = mmap(NULL, telemetry->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return heft_error_set_errno(error, errno, "mapping %s", telemetry->path);
    telemetry->head = map;
    telemetry->fd = fd;
    return 0;
}

static int make_file(struct heft_telemetry *telemetry, int folder, const char *folder_path,
                     struct heft_error *error)
{
    char hidden[HEFT_TELEMETRY_NAME_BYTES];
    const char *name = hidden + 1; /* once it is whole and locked */
    uint64_t salt = 0;
    int fd, rc;

    heft_random_bytes(&salt, sizeof(salt));
    (void)snprintf(hidden, sizeof(hidden), ".%d-%016llx" HEFT_TELEMETRY_SUFFIX, (int)getpid(),
                   (unsigned long long)salt);
    rc = snprintf(telemetry->path, sizeof(telemetry->path), "%s/%s", folder_path, name);
    if (rc < 0 || rc >= (int)sizeof(telemetry->path))
        return heft_error_set(error, HEFT_ERR_TOO_LARGE, "the path of the folder %s is too long",
                              folder_path);
    fd = openat(folder, hidden, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return heft_error_set_errno(error, errno, "making %s", telemetry->path);
    rc = map_file(telemetry, fd, error);
    if (!rc && renameat(folder, hidden, folder, name)) {
        rc = heft_error_set_errno(error, errno, "naming %s", telemetry->path);
        (void)munmap(telemetry->head, telemetry->size_bytes);
        telemetry->head = NULL;
        telemetry->fd = -1;
    }
    if (rc) {
        (void)unlinkat(folder, hidden, 0);
        (void)close(fd);
    }
    return rc;
}

static int try_folder(struct heft_telemetry *telemetry, const char *path, int is_own,
                      struct heft_error *error)
{
    static uint64_t next_clean_ns;
    uint64_t now_ns = heft_now_ns(), due_ns = __atomic_load_n(&next_clean_ns, __ATOMIC_RELAXED);
    int folder = open_folder(path, is_own, error), rc;

    if (folder < 0)
        return folder;
    if (now_ns >= due_ns && __atomic_compare_exchange_n(&next_clean_ns, &due_ns, now_ns + CLEAN_EVERY_NS, 0,
                                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        heft_telemetry_clean(folder);
    rc = make_file(telemetry, folder, path, error);
    (void)close(folder);
    return rc;
}

/* 0, or why there is no file. */
static int share(struct heft_telemetry *telemetry, const char *folder, struct heft_error *error)
{
    char path[HEFT_TELEMETRY_PATH_BYTES];
    int rc = HEFT_ERR_NOT_FOUND, second;

    if (folder)
        return try_folder(telemetry, folder, 0, error);
    for (second = 0; rc && second < 2; second++)
        if (heft_telemetry_folder(second, path) == 0)
            rc = try_folder(telemetry, path, 1, second ? NULL : error);
    return rc;
}

static void fill_head(struct heft_stats_head *head, const char *name, const uint8_t *generation)
{
    struct stat st;

    head->pid = (uint64_t)getpid();
    head->pid_namespace = stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
    head->start_ticks = heft_telemetry_start_ticks(getpid());
    head->opened_wall_ms = heft_wall_ms();
    memcpy(head->generation, generation, sizeof(head->generation));
    (void)snprintf(head->name, sizeof(head->name), "%s", name);
    (void)snprintf(head->program, sizeof(head->program), "%s",
                   program_invocation_short_name ? program_invocation_short_name : "");
}

int heft_telemetry_open(struct heft_telemetry *telemetry, const char *folder, const char *name,
                        const uint8_t *generation, const char *const *transports, uint32_t transport_count,
                        struct heft_error *error)
{
    static int told;
    struct heft_error why = HEFT_ERROR_INIT;
    uint64_t magic;

    *telemetry = (struct heft_telemetry){.fd = -1, .route_count = transport_count + 1};
    telemetry->size_bytes = heft_stats_total_bytes(telemetry->route_count);
    if (!folder)
        folder = secure_getenv("HEFT_TELEMETRY");
    if (folder && !folder[0])
        folder = NULL;
    if ((!folder || strcmp(folder, "off") != 0) && share(telemetry, folder, &why) &&
        !__atomic_exchange_n(&told, 1, __ATOMIC_RELAXED))
        heft_log(HEFT_LOG_WARN, "agent %s: no statistics for heft top (the agent works without): %s", name,
                 why.text);
    if (telemetry->fd < 0) {
        telemetry->path[0] = 0;
        telemetry->head = calloc(1, telemetry->size_bytes);
        if (!telemetry->head)
            return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an agent's statistics");
    }
    telemetry->routes = heft_stats_routes(telemetry->head);
    heft_stats_init(telemetry->head, transports, transport_count);
    fill_head(telemetry->head, name, generation);
    memcpy(&magic, HEFT_STATS_MAGIC, sizeof(magic));
    __atomic_store_n((uint64_t *)(void *)telemetry->head->magic, magic, __ATOMIC_RELEASE);
    return 0;
}

void heft_telemetry_unlink(struct heft_telemetry *telemetry)
{
    /* Of a forked child, it is the parent's file. */
    if (telemetry->path[0] && telemetry->head->pid == (uint64_t)getpid())
        (void)unlink(telemetry->path);
    telemetry->path[0] = 0;
}

void heft_telemetry_free(struct heft_telemetry *telemetry)
{
    if (!telemetry->head)
        return;
    heft_telemetry_unlink(telemetry);
    if (telemetry->fd >= 0) {
        (void)munmap(telemetry->head, telemetry->size_bytes);
        (void)close(telemetry->fd);
    } else {
        free(telemetry->head);
    }
    *telemetry = (struct heft_telemetry){.fd = -1};
}
