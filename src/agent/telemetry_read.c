/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reading side of telemetry. Files may be hostile (root reads those of all users): they are opened
 * beneath their folder without following links or waiting, copied, and checked; never mapped, since their
 * owner may cut them at any time.
 */
#include "agent/telemetry.h"
#include "agent/telemetry_file.h"
#include "base/clock.h"
#include "base/error.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

uint64_t heft_telemetry_start_ticks(pid_t pid)
{
    char path[64], text[1024], *at;
    uint64_t ticks = 0;
    ssize_t size;
    int fd, field;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    size = read(fd, text, sizeof(text) - 1);
    (void)close(fd);
    text[size > 0 ? size : 0] = 0;
    at = strrchr(text, ')'); /* behind the name, which may hold anything; field 3 follows */
    for (field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (at)
        ticks = strtoull(at + 1, NULL, 10);
    return ticks;
}

static uint64_t own_pid_namespace(void)
{
    struct stat st;

    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* The lock ends with the process, wherever it runs. A child that it forked keeps it, so that a process whose
 * number means something here is looked for, too. */
static int is_alive(int fd, const struct heft_stats_head *head)
{
    uint64_t ticks;

    if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
        (void)flock(fd, LOCK_UN);
        return 0;
    }
    if (!head->pid_namespace || head->pid_namespace != own_pid_namespace() || !head->start_ticks)
        return 1;
    if (head->pid == 0 || head->pid > INT32_MAX)
        return 0;
    ticks = heft_telemetry_start_ticks((pid_t)head->pid);
    return ticks == head->start_ticks;
}

/* A dot stands before the names of those that are being made. */
static int is_stats_name(const char *name, int with_dot)
{
    size_t size = strlen(name), suffix = strlen(HEFT_TELEMETRY_SUFFIX);

    return (name[0] == '.') == with_dot && size > suffix && size < HEFT_TELEMETRY_NAME_BYTES &&
           strcmp(name + size - suffix, HEFT_TELEMETRY_SUFFIX) == 0;
}

/* *head_out: a checked copy. AGAIN: it is being made just now. */
static int read_block(int fd, const struct stat *st, struct heft_stats_head **head_out,
                      struct heft_error *error)
{
    uint64_t most = heft_stats_total_bytes(HEFT_STATS_ROUTES_MAX), have = 0;
    struct heft_stats_head *head;
    int rc;

    if (!S_ISREG(st->st_mode))
        return heft_error_set(error, HEFT_ERR_NOT_A_FILE, "not a regular file");
    if ((uint64_t)st->st_size < most)
        most = (uint64_t)st->st_size;
    if (most < sizeof(head->magic))
        return HEFT_ERR_AGAIN;
    head = calloc(1, (size_t)most);
    if (!head)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory");
    while (have < most) {
        ssize_t size = pread(fd, (char *)head + have, (size_t)(most - have), (off_t)have);

        if (size < 0 && errno == EINTR)
            continue;
        if (size <= 0)
            break;
        have += (uint64_t)size;
    }
    rc = have >= sizeof(head->magic) && !memcmp(head->magic, "\0\0\0\0\0\0\0\0", sizeof(head->magic))
             ? HEFT_ERR_AGAIN
             : heft_stats_check(head, have, error);
    if (rc) {
        free(head);
        return rc;
    }
    *head_out = head;
    return 0;
}

/* Notes when its process was first missed, and removes it in the end. 1: it is removed. */
static int age(int folder, const char *name, int fd, const struct stat *st, struct heft_stats_head *head)
{
    uint64_t now_ms = heft_wall_ms(), since_ms = head ? head->ended_wall_ms : 0;

    if (st->st_uid != geteuid() || st->st_nlink != 1)
        return 0;
    if (!head)
        since_ms = (uint64_t)st->st_mtim.tv_sec * 1000;
    if (head && (since_ms == 0 || since_ms > now_ms)) {
        head->ended_wall_ms = now_ms;
        (void)!pwrite(fd, &now_ms, sizeof(now_ms), offsetof(struct heft_stats_head, ended_wall_ms));
        return 0;
    }
    return now_ms > since_ms && now_ms - since_ms > HEFT_TELEMETRY_KEEP_MS && unlinkat(folder, name, 0) == 0;
}

/* 0 with *head_out (the caller's) and whether it lives; AGAIN: nothing to tell; else why it is refused. */
static int read_entry(int folder, const char *name, struct heft_stats_head **head_out, int *alive_out,
                      uint32_t *uid_out, struct heft_error *error)
{
    struct heft_stats_head *head = NULL;
    const int flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    struct stat st;
    int fd = -1, rc;

    /* Looked at before it is opened: to open a device may do something. */
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW))
        return HEFT_ERR_AGAIN; /* closed meanwhile */
    if (!S_ISREG(st.st_mode))
        return heft_error_set(error, HEFT_ERR_NOT_A_FILE, "not a regular file");
    if (st.st_uid == geteuid())
        fd = openat(folder, name, O_RDWR | flags);
    if (fd < 0)
        fd = openat(folder, name, O_RDONLY | flags);
    if (fd < 0)
        return errno == ENOENT ? HEFT_ERR_AGAIN : heft_error_set_errno(error, errno, "opening it");
    rc = fstat(fd, &st) ? heft_error_set_errno(error, errno, "looking at it")
                        : read_block(fd, &st, &head, error);
    if (rc == 0) {
        *alive_out = is_alive(fd, head);
        *uid_out = st.st_uid;
        if (!*alive_out && age(folder, name, fd, &st, head)) {
            free(head);
            rc = HEFT_ERR_AGAIN;
        }
    } else if (S_ISREG(st.st_mode) && flock(fd, LOCK_SH | LOCK_NB) == 0) {
        (void)age(folder, name, fd, &st, NULL); /* by its own time: it can't tell another */
    }
    (void)close(fd);
    if (!rc)
        *head_out = head;
    return rc;
}

/* Whoever made it died between two calls. */
static void remove_half_made(int folder, const char *name)
{
    uint64_t now_ms = heft_wall_ms();
    struct stat st;

    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
        st.st_uid == geteuid() && (uint64_t)st.st_mtim.tv_sec * 1000 + HEFT_TELEMETRY_KEEP_MS < now_ms)
        (void)unlinkat(folder, name, 0);
}

void heft_telemetry_clean(int folder)
{
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = again < 0 ? NULL : fdopendir(again);
    struct dirent *entry;
    size_t seen = 0;

    if (!dir) {
        if (again >= 0)
            (void)close(again);
        return;
    }
    while ((entry = readdir(dir)) != NULL && seen++ < HEFT_TELEMETRY_FILES_MAX) {
        struct heft_stats_head *head = NULL;
        uint32_t uid;
        int alive;

        if (is_stats_name(entry->d_name, 1))
            remove_half_made(folder, entry->d_name);
        else if (is_stats_name(entry->d_name, 0) &&
                 read_entry(folder, entry->d_name, &head, &alive, &uid, NULL) == 0)
            free(head);
    }
    (void)closedir(dir);
}

/* ---- lists ---- */

static int add_entry(struct heft_telemetry_list *list, const char *folder, const char *name,
                     struct heft_stats_head *head, int alive, uint32_t uid)
{
    struct heft_telemetry_entry *entry;

    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 16;
        void *grown = realloc(list->entries, capacity * sizeof(*list->entries));

        if (!grown)
            return HEFT_ERR_NO_MEMORY;
        list->entries = grown;
        list->capacity = capacity;
    }
    entry = &list->entries[list->count++];
    *entry = (struct heft_telemetry_entry){
        .state = alive ? HEFT_TELEMETRY_LIVE : HEFT_TELEMETRY_ENDED, .head = head, .uid = uid};
    (void)snprintf(entry->path, sizeof(entry->path), "%s/%s", folder, name);
    return 0;
}

static int read_folder(const char *path, int named, struct heft_telemetry_list *list,
                       struct heft_error *error)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (named ? 0 : O_NOFOLLOW)), rc = 0;
    DIR *dir = folder < 0 ? NULL : fdopendir(folder);
    struct dirent *item;
    size_t seen = 0;

    if (!dir) {
        rc = named ? heft_error_set_errno(error, errno, "the folder of statistics %s", path) : 0;
        if (folder >= 0)
            (void)close(folder);
        return rc;
    }
    while (!rc && (item = readdir(dir)) != NULL && seen < HEFT_TELEMETRY_FILES_MAX) {
        struct heft_error why = HEFT_ERROR_INIT;
        struct heft_stats_head *head = NULL;
        uint32_t uid = 0;
        int alive = 0, found;

        if (!is_stats_name(item->d_name, 0))
            continue;
        seen++;
        found = read_entry(folder, item->d_name, &head, &alive, &uid, &why);
        if (found == 0) {
            if (add_entry(list, path, item->d_name, head, alive, uid)) {
                free(head);
                rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for statistics");
            }
        } else if (found != HEFT_ERR_AGAIN) {
            list->refused++;
            (void)heft_error_set(&list->last, why.code ? why.code : found, "%s/%s: %.300s", path,
                                 item->d_name, why.text[0] ? why.text : heft_error_text(found));
        }
    }
    (void)closedir(dir);
    return rc;
}

/* Those of all users: for root. */
static int read_all_users(struct heft_telemetry_list *list, struct heft_error *error)
{
    static const char prefix[] = "heft-";
    char path[HEFT_TELEMETRY_PATH_BYTES];
    DIR *dir = opendir("/dev/shm");
    struct dirent *item;
    int rc = 0;

    while (dir && !rc && (item = readdir(dir)) != NULL) {
        const char *uid = item->d_name + sizeof(prefix) - 1;

        if (strncmp(item->d_name, prefix, sizeof(prefix) - 1) != 0 || !*uid || uid[strspn(uid, "0123456789")])
            continue;
        (void)snprintf(path, sizeof(path), "/dev/shm/%.200s", item->d_name);
        rc = read_folder(path, 0, list, error);
    }
    if (dir)
        (void)closedir(dir);
    return rc;
}

static int by_state_and_name(const void *left, const void *right)
{
    const struct heft_telemetry_entry *a = left, *b = right;
    int order = a->state != b->state ? (a->state == HEFT_TELEMETRY_LIVE ? -1 : 1)
                                     : strcmp(a->head->name, b->head->name);

    if (order == 0)
        order = a->head->pid < b->head->pid ? -1 : a->head->pid > b->head->pid;
    return order ? order : strcmp(a->path, b->path);
}

int heft_telemetry_read(const char *folder, struct heft_telemetry_list *list_out, struct heft_error *error)
{
    struct heft_telemetry_list list = {.last = HEFT_ERROR_INIT};
    char path[HEFT_TELEMETRY_PATH_BYTES];
    int rc = 0;

    if (!folder)
        folder = secure_getenv("HEFT_TELEMETRY");
    if (folder &&
        (!folder[0] || strcmp(folder, "off") == 0)) /* for those who count, not for those who look */
        folder = NULL;
    if (folder)
        rc = read_folder(folder, 1, &list, error);
    else if (geteuid() == 0)
        rc = read_all_users(&list, error);
    else if (heft_telemetry_folder(0, path) == 0)
        rc = read_folder(path, 0, &list, error);
    if (!rc && !folder && heft_telemetry_folder(1, path) == 0)
        rc = read_folder(path, 0, &list, error);
    if (rc) {
        heft_telemetry_list_free(&list);
        return rc;
    }
    if (list.count)
        qsort(list.entries, list.count, sizeof(*list.entries), by_state_and_name);
    *list_out = list;
    return 0;
}

void heft_telemetry_list_free(struct heft_telemetry_list *list)
{
    size_t index;

    for (index = 0; index < list->count; index++)
        free(list->entries[index].head);
    free(list->entries);
    *list = (struct heft_telemetry_list){.last = HEFT_ERROR_INIT};
}
