/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory in one JSON file, for fleets without a daemon (a shared folder, a list written by hand).
 *
 * A change reads the file, edits, writes a new file beside it and swaps the two. The lock file only saves
 * work: a change is right without it. The swap hands back the file that was replaced; if that is not the one
 * that was read, another writer's change was about to be lost, so it is folded in and the swap is done again.
 * Records say when they were changed and withdrawals leave a mark until the lease's end, so folding knows
 * which of two is newer.
 *
 * A record without "lease_ms" is for ever: that is what a person writes by hand. A broken file is reported
 * and never overwritten.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "load/directory.h"
#include "load/record_json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STATIC_VERSION 1
#define STATIC_MAX_BYTES ((size_t)64 << 20)
#define STATIC_MAX_RECORDS 10000u
#define STATIC_LOCK_MS 5000u /* then the change goes on without the lock */
#define STATIC_MAX_TRIES 400u
#define STATIC_MAX_MISSING 100u

struct static_directory {
    struct heft_directory base;
    char *path;
};

static struct static_directory *self_of(struct heft_directory *directory)
{
    return (struct static_directory *)directory;
}

static void pause_ms(uint32_t ms)
{
    struct timespec pause = {0, (long)ms * 1000000};

    (void)nanosleep(&pause, NULL);
}

static int broken(const char *path, struct heft_error *error, const char *reason)
{
    return heft_error_set(error, HEFT_ERR_MANIFEST,
                          "%s is not a heft directory (%s); it is left as it is: repair or remove it", path,
                          reason);
}

static json_t *new_root(void)
{
    uint64_t epoch;
    char text[17];
    json_t *root;

    heft_random_bytes(&epoch, sizeof(epoch));
    (void)snprintf(text, sizeof(text), "%016llx", (unsigned long long)(epoch | 1));
    root = json_pack("{s:s, s:i, s:s, s:s, s:[]}", "format", "heft-directory", "version", STATIC_VERSION,
                     "epoch", text, "stamp", "", "records");
    return root;
}

static int check_root(const char *path, json_t *root, struct heft_error *error)
{
    json_t *version = json_object_get(root, "version");
    const char *format = json_string_value(json_object_get(root, "format"));

    if (!format || strcmp(format, "heft-directory") != 0 || !json_is_integer(version) ||
        !json_is_array(json_object_get(root, "records")))
        return broken(path, error, "\"format\", \"version\" or \"records\" is missing");
    if (json_integer_value(version) != STATIC_VERSION)
        return heft_error_set(error, HEFT_ERR_INCOMPATIBLE, "%s has format version %lld, this heft reads %d",
                              path, (long long)json_integer_value(version), STATIC_VERSION);
    return 0;
}

static int read_file(const char *path, int fd, struct heft_buf *bytes, struct heft_error *error)
{
    struct stat info;

    if (fstat(fd, &info))
        return heft_error_set_errno(error, errno, "reading %s", path);
    if (!S_ISREG(info.st_mode))
        return heft_error_set(
            error, HEFT_ERR_INVALID,
            "directory file %s: %s, not a regular file; name a file, it is made when a replica "
            "is published",
            path, S_ISDIR(info.st_mode) ? "a folder" : "a device or pipe");
    for (;;) {
        uint8_t block[65536];
        ssize_t got = read(fd, block, sizeof(block));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return heft_error_set_errno(error, errno, "reading %s", path);
        if (got == 0)
            return 0;
        heft_buf_bytes(bytes, block, (size_t)got);
        if (bytes->failed)
            return heft_error_set(error, bytes->failed, "%s: %s (a directory file's limit is %zu bytes)",
                                  path, heft_error_text(bytes->failed), STATIC_MAX_BYTES);
    }
}

/* The file's root. No file, or an empty one: a new root and *existed_out 0. */
static int load(const char *path, json_t **root_out, int *existed_out, struct heft_error *error)
{
    struct heft_buf bytes;
    json_error_t reason;
    json_t *root;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), result = 0;

    if (fd < 0 && errno != ENOENT)
        return heft_error_set_errno(error, errno, "reading directory file %s", path);
    heft_buf_init(&bytes, STATIC_MAX_BYTES);
    if (fd >= 0) {
        result = read_file(path, fd, &bytes, error);
        (void)close(fd);
    }
    if (result) {
        heft_buf_free(&bytes);
        return result;
    }
    if (bytes.size == 0) {
        root = new_root();
        if (!root)
            result = heft_error_set(error, HEFT_ERR_NO_MEMORY, "%s: out of memory", path);
    } else {
        root = json_loadb((const char *)bytes.data, bytes.size, JSON_REJECT_DUPLICATES, &reason);
        if (!root) {
            char place[JSON_ERROR_TEXT_LENGTH + 40];

            (void)snprintf(place, sizeof(place), "line %d: %s", reason.line, reason.text);
            result = broken(path, error, place);
        } else {
            result = check_root(path, root, error);
        }
    }
    heft_buf_free(&bytes);
    if (result) {
        json_decref(root);
        return result;
    }
    *existed_out = fd >= 0;
    *root_out = root;
    return 0;
}

static uint64_t root_epoch(json_t *root)
{
    const char *text = json_string_value(json_object_get(root, "epoch"));

    return text ? strtoull(text, NULL, 16) : 1;
}

static const char *stamp_of(json_t *root)
{
    const char *stamp = json_string_value(json_object_get(root, "stamp"));

    return stamp ? stamp : "";
}

static uint64_t member_number(json_t *record, const char *key, uint64_t absent)
{
    json_t *value = json_object_get(record, key);

    return json_is_integer(value) && json_integer_value(value) >= 0 ? (uint64_t)json_integer_value(value)
                                                                    : absent;
}

static const char *member_text(json_t *record, const char *key)
{
    const char *text = json_string_value(json_object_get(record, key));

    return text ? text : "";
}

/* 0: the lease has ended; UINT64_MAX: it never ends. */
static uint64_t left_ms(json_t *record, uint64_t now_ms)
{
    uint64_t end_ms = member_number(record, "lease_end_wall_ms", UINT64_MAX);
    uint64_t lease_ms = member_number(record, "lease_ms", 0), left;

    if (end_ms == UINT64_MAX || lease_ms == 0)
        return UINT64_MAX;
    if (end_ms <= now_ms)
        return 0;
    left = end_ms - now_ms; /* more than a whole lease: the wall clock was set back */
    return left < lease_ms ? left : lease_ms;
}

static int is_withdrawn(json_t *record)
{
    return json_is_true(json_object_get(record, "withdrawn"));
}

static json_t *find(json_t *root, const char *name, size_t *index_out)
{
    json_t *record;
    size_t index;

    json_array_foreach(json_object_get(root, "records"), index, record)
    {
        if (strcmp(member_text(record, "name"), name) == 0) {
            if (index_out)
                *index_out = index;
            return record;
        }
    }
    return NULL;
}

/* Drops ended leases, so that a crash-looping fleet does not grow the file. */
static void prune(json_t *root, uint64_t now_ms)
{
    json_t *records = json_object_get(root, "records");
    size_t index = json_array_size(records);

    while (index-- > 0)
        if (left_ms(json_array_get(records, index), now_ms) == 0)
            (void)json_array_remove(records, index);
}

/* When a record is changed now, by the wall clock, and later than the change that it had before. */
static json_t *next_change(json_t *old)
{
    uint64_t last_us = old ? member_number(old, "changed_us", 0) : 0;
    struct timespec now;
    uint64_t now_us;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    now_us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    return json_integer((json_int_t)(now_us > last_us ? now_us : last_us + 1));
}

/* Takes over from `lost` what is newer there: the change of a writer whose file was replaced unseen. */
static int fold(json_t *root, json_t *lost)
{
    json_t *records = json_object_get(root, "records"), *record, *mine;
    size_t index, place;
    int failed = 0;

    json_array_foreach(json_object_get(lost, "records"), index, record)
    {
        mine = find(root, member_text(record, "name"), &place);
        if (!mine)
            failed |= json_array_append(records, record);
        else if (member_number(mine, "changed_us", 0) < member_number(record, "changed_us", 0))
            failed |= json_array_set(records, place, record);
    }
    return failed ? HEFT_ERR_NO_MEMORY : 0;
}

/* ---- changes ---- */

struct change {
    int (*apply)(json_t *root, const struct change *change, uint64_t now_ms, struct heft_error *error);
    const struct heft_record *record; /* publish */
    const char *name;
    const struct heft_generation *generation;
    uint64_t lease_ms;
};

static int no_memory(const char *name, struct heft_error *error)
{
    return heft_error_set(error, HEFT_ERR_NO_MEMORY, "record '%s': out of memory", name);
}

static int apply_publish(json_t *root, const struct change *change, uint64_t now_ms, struct heft_error *error)
{
    const struct heft_record *record = change->record;
    json_t *object = heft_record_to_json(record, 1), *old, *records = json_object_get(root, "records");
    uint64_t published_ms = now_ms;
    size_t place = 0;
    int failed = object ? 0 : 1;

    old = find(root, record->name, &place);
    if (!old && json_array_size(records) >= STATIC_MAX_RECORDS) {
        json_decref(object);
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "record '%s': a directory file's limit is %u records",
                              record->name, STATIC_MAX_RECORDS);
    }
    if (old && !is_withdrawn(old) && !failed &&
        strcmp(member_text(old, "generation"), member_text(object, "generation")) == 0)
        published_ms = member_number(old, "published_wall_ms", now_ms);
    if (!failed) {
        failed |= json_object_set_new(object, "published_wall_ms", json_integer((json_int_t)published_ms));
        failed |= json_object_set_new(object, "lease_end_wall_ms",
                                      json_integer((json_int_t)(now_ms + record->lease_ms)));
        failed |= json_object_set_new(object, "changed_us", next_change(old));
    }
    if (failed) {
        json_decref(object);
        return no_memory(record->name, error);
    }
    if (old ? json_array_set_new(records, place, object) : json_array_append_new(records, object))
        return no_memory(record->name, error);
    return 0;
}

/* The live record of the change's name, held by its generation. */
static int find_held(json_t *root, const struct change *change, uint64_t now_ms, json_t **record_out,
                     struct heft_error *error)
{
    char generation[2 * HEFT_GENERATION_BYTES + 1];
    json_t *record = find(root, change->name, NULL);

    heft_hex_print(change->generation, HEFT_GENERATION_BYTES, generation);
    if (!record || is_withdrawn(record) || left_ms(record, now_ms) == 0)
        return heft_error_set(error, HEFT_ERR_NOT_FOUND,
                              "the directory file has no live record '%s' (its lease ended, or the file was "
                              "replaced): publish it again",
                              change->name);
    if (strcmp(member_text(record, "generation"), generation) != 0)
        return heft_error_set(
            error, HEFT_ERR_STALE,
            "'%s' now belongs to generation %s; generation %s has lost it: give each process a "
            "name of its own, or stop the older one",
            change->name, member_text(record, "generation"), generation);
    *record_out = record;
    return 0;
}

static int apply_renew(json_t *root, const struct change *change, uint64_t now_ms, struct heft_error *error)
{
    json_t *record;
    int failed = 0, result = find_held(root, change, now_ms, &record, error);
    uint64_t lease_ms;

    if (result)
        return result;
    lease_ms = change->lease_ms ? change->lease_ms : member_number(record, "lease_ms", 0);
    failed |= json_object_set_new(record, "lease_ms", json_integer((json_int_t)lease_ms));
    failed |= json_object_set_new(record, "lease_end_wall_ms", json_integer((json_int_t)(now_ms + lease_ms)));
    failed |= json_object_set_new(record, "changed_us", next_change(record));
    return failed ? no_memory(change->name, error) : 0;
}

static int apply_withdraw(json_t *root, const struct change *change, uint64_t now_ms,
                          struct heft_error *error)
{
    json_t *record;
    int failed = 0, result = find_held(root, change, now_ms, &record, error);

    if (result)
        return result;
    (void)json_object_del(record, "token");
    failed |= json_object_set_new(record, "withdrawn", json_true());
    failed |= json_object_set_new(record, "changed_us", next_change(record));
    return failed ? no_memory(change->name, error) : 0;
}

/* ---- writing ---- */

static int take_lock(const char *path)
{
    char *name;
    uint64_t until_ns = heft_now_ns() + STATIC_LOCK_MS * HEFT_NS_PER_MS;
    struct stat info;
    int fd;

    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) /* the change will refuse it */
        return -1;
    if (asprintf(&name, "%s.lock", path) < 0)
        return -1;
    fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    free(name);
    while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB)) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || heft_now_ns() > until_ns) {
            (void)close(fd);
            return -1;
        }
        pause_ms(1);
    }
    return fd;
}

static int write_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t put = write(fd, data, size);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return errno;
        if (put == 0)
            return ENOSPC;
        data += put;
        size -= (size_t)put;
    }
    return fsync(fd) ? errno : 0;
}

/* Writes the root, with a new stamp, to a new file of this name, readable by its owner only: it holds tokens.
 */
static int write_root(json_t *root, const char *path, const char *temp, struct heft_error *error)
{
    uint8_t random[8];
    char stamp[17];
    char *text;
    int fd, failure;

    heft_random_bytes(random, sizeof(random));
    heft_hex_print(random, sizeof(random), stamp);
    if (json_object_set_new(root, "stamp", json_string(stamp)) ||
        !(text = json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER)))
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "writing %s: out of memory", path);
    fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        failure = errno;
        free(text);
        return heft_error_set_errno(error, failure, "directory file %s can't be changed (making %s)", path,
                                    temp);
    }
    failure = write_all(fd, text, strlen(text));
    if (close(fd) && !failure)
        failure = errno;
    free(text);
    if (!failure)
        return 0;
    (void)unlink(temp);
    return heft_error_set_errno(error, failure, "writing directory file %s", path);
}

/* The stamp of the file at temp, which has just come out of a swap, is the expected one. */
static int came_out(const char *temp, const char *stamp, json_t **root_out, struct heft_error *error)
{
    int was_there, result = load(temp, root_out, &was_there, error);

    return result ? result : strcmp(stamp_of(*root_out), stamp) == 0;
}

/*
 * Swaps temp (whose stamp is own_stamp) with path. 0: done. AGAIN: path was not what was read, and is again
 * what it was; *lost_out is what must be folded into the next try, if anything.
 */
static int exchange(const char *path, const char *temp, const char *read_stamp, const char *own_stamp,
                    json_t **lost_out, struct heft_error *error)
{
    json_t *root = NULL;
    int as_read = came_out(temp, read_stamp, &root, error), result;

    json_decref(root);
    root = NULL;
    if (as_read == 1)
        return 0;
    /* Another writer's file, or, when it can't be read, someone's garbage: neither is ours to remove. */
    if (renameat2(AT_FDCWD, temp, AT_FDCWD, path, RENAME_EXCHANGE))
        return heft_error_set_errno(error, errno, "directory file %s: putting back what was replaced", path);
    result = came_out(temp, own_stamp, &root, error);
    if (result == 0) {
        *lost_out = root;
        root = NULL;
    }
    json_decref(root);
    return as_read < 0 ? as_read : result < 0 ? result : HEFT_ERR_AGAIN;
}

/* No swap on this file system: replaces, having looked once more that nothing has changed since. */
static int replace(const char *path, const char *temp, const char *read_stamp, struct heft_error *error)
{
    json_t *root = NULL;
    int was_there, result = load(path, &root, &was_there, error);

    if (!result && strcmp(stamp_of(root), read_stamp) != 0)
        result = HEFT_ERR_AGAIN;
    json_decref(root);
    if (!result && rename(temp, path))
        result = heft_error_set_errno(error, errno, "replacing directory file %s", path);
    return result;
}

/* Puts temp in the place of path; temp is gone afterwards. Returns as exchange does. */
static int commit(const char *path, const char *temp, int existed, const char *read_stamp,
                  const char *own_stamp, json_t **lost_out, struct heft_error *error)
{
    int result;

    if (renameat2(AT_FDCWD, temp, AT_FDCWD, path, existed ? RENAME_EXCHANGE : RENAME_NOREPLACE) == 0)
        result = existed ? exchange(path, temp, read_stamp, own_stamp, lost_out, error) : 0;
    else if ((existed && errno == ENOENT) || (!existed && errno == EEXIST))
        result = HEFT_ERR_AGAIN;
    else if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP)
        result = replace(path, temp, read_stamp, error);
    else
        result = heft_error_set_errno(error, errno, "replacing directory file %s", path);
    (void)unlink(temp);
    return result;
}

/* What is carried from one try of a change to the next. */
struct progress {
    json_t *lost; /* what a swap took out of the file; must get back into it */
    uint32_t tries;
    uint32_t missing; /* tries that did not find the record that an earlier one had found */
    uint64_t epoch;
};

/*
 * Applies the change to the root that was read. A try that was undone may have been seen meanwhile, and
 * another writer may have carried it on; or another writer has the record in hand and is about to put it
 * back. So a record that is missing after the first try is looked for again, and one that is withdrawn
 * already is done. Whatever becomes of the change, what was lost must be written: then the answer is in
 * *refused_out.
 */
static int apply_to(json_t *root, const struct change *change, struct progress *progress, int *refused_out,
                    struct heft_error *error)
{
    uint64_t now_ms = heft_wall_ms();
    json_t *record;
    int result = 0;

    *refused_out = 0;
    if (progress->lost && (result = fold(root, progress->lost)) != 0)
        return heft_error_set(error, result, "record '%s': out of memory", change->name);
    prune(root, now_ms);
    result = change->apply(root, change, now_ms, error);
    if (result == HEFT_ERR_NOT_FOUND && progress->tries > 0) {
        record = find(root, change->name, NULL);
        if (change->apply == apply_withdraw && record && is_withdrawn(record))
            result = 0;
        else if (progress->missing++ < STATIC_MAX_MISSING)
            result = HEFT_ERR_AGAIN;
    }
    if (result && progress->lost) {
        *refused_out = result;
        return 0;
    }
    return result;
}

static int try_change(const char *path, const struct change *change, struct progress *progress,
                      struct heft_error *error)
{
    char *read_stamp = NULL, *temp = NULL;
    json_t *root, *lost = NULL;
    uint64_t nonce;
    int existed, refused = 0, result = load(path, &root, &existed, error);

    if (result)
        return result;
    heft_random_bytes(&nonce, sizeof(nonce));
    read_stamp = strdup(stamp_of(root));
    if (!read_stamp ||
        asprintf(&temp, "%s.tmp.%d.%016llx", path, (int)getpid(), (unsigned long long)nonce) < 0) {
        temp = NULL;
        result = heft_error_set(error, HEFT_ERR_NO_MEMORY, "%s: out of memory", path);
    }
    if (!result)
        result = apply_to(root, change, progress, &refused, error);
    if (!result)
        result = write_root(root, path, temp, error);
    if (!result)
        result = commit(path, temp, existed, read_stamp, stamp_of(root), &lost, error);
    if (!result || lost) {
        json_decref(progress->lost);
        progress->lost = lost;
        progress->epoch = root_epoch(root);
    }
    if (!result)
        result = refused;
    free(read_stamp);
    free(temp);
    json_decref(root);
    return result;
}

static int make_change(struct static_directory *self, const struct change *change, uint64_t *epoch_out,
                       struct heft_error *error)
{
    struct progress progress = {0};
    int lock = take_lock(self->path), result = HEFT_ERR_AGAIN;
    uint8_t random;

    for (; progress.tries < STATIC_MAX_TRIES && result == HEFT_ERR_AGAIN; progress.tries++) {
        result = try_change(self->path, change, &progress, error);
        if (result == HEFT_ERR_AGAIN && !progress.lost) { /* who has something to put back goes first */
            heft_random_bytes(&random, 1);
            pause_ms(random % 8u);
        }
    }
    if (result == HEFT_ERR_AGAIN)
        result =
            heft_error_set(error, HEFT_ERR_BUSY,
                           "directory file %s: other writers changed it %u times in a row: use a heftd for "
                           "this many replicas",
                           self->path, STATIC_MAX_TRIES);
    if (!result && epoch_out)
        *epoch_out = progress.epoch;
    json_decref(progress.lost);
    if (lock >= 0)
        (void)close(lock);
    return result;
}

static int publish(struct heft_directory *directory, const struct heft_record *record, uint64_t *epoch_out,
                   struct heft_error *error)
{
    struct change change = {.apply = apply_publish, .record = record, .name = record->name};

    if (!record->name || !record->name[0] || !heft_text_is_clean(record->name, HEFT_NAME_MAX_BYTES))
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "a record's name must be 1 to %d bytes of text without control characters",
                              HEFT_NAME_MAX_BYTES);
    if (record->lease_ms == 0 || record->lease_ms > (uint64_t)INT64_MAX / 2)
        return heft_error_set(error, HEFT_ERR_INVALID, "record '%s': a lease of %llu ms", record->name,
                              (unsigned long long)record->lease_ms);
    return make_change(self_of(directory), &change, epoch_out, error);
}

static int renew(struct heft_directory *directory, const char *name, const struct heft_generation *generation,
                 uint64_t lease_ms, uint64_t *epoch_out, struct heft_error *error)
{
    struct change change = {
        .apply = apply_renew, .name = name, .generation = generation, .lease_ms = lease_ms};

    return make_change(self_of(directory), &change, epoch_out, error);
}

static int withdraw(struct heft_directory *directory, const char *name,
                    const struct heft_generation *generation, struct heft_error *error)
{
    struct change change = {.apply = apply_withdraw, .name = name, .generation = generation};

    return make_change(self_of(directory), &change, NULL, error);
}

static int matches(const char *wanted, const char *value)
{
    return !wanted || !wanted[0] || strcmp(wanted, value) == 0;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(((const struct heft_record *)left)->name, ((const struct heft_record *)right)->name);
}

static int list_records(struct heft_directory *directory, const struct heft_record_query *query,
                        struct heft_record_list *list_out, struct heft_error *error)
{
    static const struct heft_record_query everything;
    const char *path = self_of(directory)->path;
    struct heft_record_list list = {0};
    uint64_t now_ms = heft_wall_ms();
    json_t *root, *object, *objects;
    size_t index;
    int existed, result = load(path, &root, &existed, error);

    if (result)
        return result;
    if (!query)
        query = &everything;
    objects = json_object_get(root, "records");
    list.epoch = root_epoch(root);
    list.records = calloc(json_array_size(objects) + 1, sizeof(struct heft_record));
    if (!list.records)
        result = heft_error_set(error, HEFT_ERR_NO_MEMORY, "%s: out of memory", path);
    for (index = 0; !result && index < json_array_size(objects); index++) {
        struct heft_record *record = &list.records[list.count];

        object = json_array_get(objects, index);
        result = heft_record_from_json(object, record, error);
        if (result) {
            result = heft_error_prefix(error, result, "directory file %s", path);
            break;
        }
        record->lease_left_ms = left_ms(object, now_ms);
        record->epoch = list.epoch;
        if (!is_withdrawn(object) && (record->lease_left_ms || query->all) &&
            !query->agents == !heft_record_name_is_agent(record->name) &&
            matches(query->name, record->name) && matches(query->model, record->identity.model) &&
            matches(query->revision, record->identity.revision) &&
            matches(query->stage, record->identity.stage))
            list.count++;
        else
            heft_record_free(record);
    }
    json_decref(root);
    if (result) {
        heft_record_list_free(&list);
        return result;
    }
    qsort(list.records, list.count, sizeof(struct heft_record), compare_names);
    *list_out = list;
    return 0;
}

static void close_directory(struct heft_directory *directory)
{
    struct static_directory *self = self_of(directory);

    free(self->path);
    free(self);
}

static const struct heft_directory_ops static_directory_ops = {
    .publish = publish, .renew = renew, .withdraw = withdraw, .list = list_records, .close = close_directory};

/* A file that is not there yet is an empty directory; a folder that is not there is a mistake. */
static int check_folder(const char *path, struct heft_error *error)
{
    const char *slash = strrchr(path, '/');
    struct stat info;
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    int result = 0;

    if (!folder)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "directory file %s: out of memory", path);
    if (stat(folder, &info))
        result = heft_error_set_errno(error, errno, "directory file %s: folder %s", path, folder);
    else if (!S_ISDIR(info.st_mode))
        result =
            heft_error_set(error, HEFT_ERR_INVALID, "directory file %s: %s is not a folder", path, folder);
    free(folder);
    return result;
}

int heft_static_directory_open(const char *path, struct heft_directory **directory_out,
                               struct heft_error *error)
{
    struct static_directory *self;
    int result;

    if (!path[0])
        return heft_error_set(error, HEFT_ERR_INVALID, "a directory file needs a path: file:PATH");
    result = check_folder(path, error);
    if (result)
        return result;
    self = calloc(1, sizeof(*self));
    if (!self || !(self->path = strdup(path))) {
        free(self);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "directory file %s: out of memory", path);
    }
    self->base.ops = &static_directory_ops;
    (void)snprintf(self->base.address, sizeof(self->base.address), "file:%s", path);
    *directory_out = &self->base;
    return 0;
}
