/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watching the agents of a directory. A thread lists them once, then asks for changes; whatever goes wrong
 * ends in a new list, which is compared with what is known. So the events are those of the difference,
 * however the directory was lost and found.
 */
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "load/directory.h"

#include <errno.h>
#include <heft/metadata.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define WAIT_MS 10000u    /* of one question for changes */
#define RETRY_MS 500u     /* after an error */
#define POLL_MS 250u      /* of a directory that knows no changes */
#define BREATH_MS 50u     /* between answers that came at once and said nothing */
#define INTERRUPT_MS 20u  /* between two tries to end a call */
#define EVENTS_MAX 65536u /* untaken; then the thread waits */

/* An agent as it was last told. */
struct known {
    char *name;
    struct heft_generation generation;
    uint64_t digest; /* of its metadata */
    uint64_t epoch;  /* of the agent */
    uint64_t lease_ms;
    uint64_t lost_ns; /* missing: when that becomes LOST; 0: it is there */
    int was_refused;  /* its metadata could not be used: it never joined */
    int was_seen;     /* in the list that is being read */
};

struct pending {
    struct pending *next;
    struct heft_watch_event event;
};

struct heft_watch {
    struct heft_directory *directory;
    char prefix[HEFT_NAME_MAX_BYTES + 1];
    pthread_t thread;
    int fd;
    /* The thread's own. */
    struct heft_directory_cursor cursor;
    struct known *known; /* sorted by name */
    size_t known_count, known_capacity;
    int is_out; /* the directory's error was told */
    /* Under lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct pending *first, *last;
    size_t count;
    int failure_code;
    struct heft_error failure;
    int is_readable, stop, has_ended;
};

/* ---- events ---- */

/* Lock held. */
static void set_readable(struct heft_watch *watch)
{
    int readable = watch->first || watch->failure_code;
    uint64_t one = 1;

    if (readable == watch->is_readable)
        return;
    watch->is_readable = readable;
    if (readable ? write(watch->fd, &one, sizeof(one)) < 0 : read(watch->fd, &one, sizeof(one)) < 0)
        HEFT_ASSERT(errno == EAGAIN || errno == EINTR);
}

static void free_pending(struct pending *pending)
{
    heft_metadata_free(pending->event.metadata);
    free(pending);
}

/* Puts the newest metadata into an event of the same name that still waits; 1 when that is all to be told. */
static int join_pending(struct heft_watch *watch, const struct heft_watch_event *event)
{
    struct pending *at, *last = NULL;

    if (event->kind != HEFT_WATCH_CHANGED)
        return 0;
    for (at = watch->first; at; at = at->next)
        if (strcmp(at->event.name, event->name) == 0)
            last = at;
    if (!last || !last->event.metadata)
        return 0;
    heft_metadata_free(last->event.metadata);
    last->event.metadata = event->metadata;
    last->event.epoch = event->epoch;
    return 1;
}

/* Takes the metadata over. Without memory the event is lost, and the next list tells it. */
static int tell(struct heft_watch *watch, const struct heft_watch_event *event)
{
    struct pending *pending = calloc(1, sizeof(*pending));
    int joined;

    if (!pending) {
        heft_metadata_free(event->metadata);
        return HEFT_ERR_NO_MEMORY;
    }
    pending->event = *event;
    (void)pthread_mutex_lock(&watch->lock);
    joined = join_pending(watch, event);
    if (!joined) {
        if (watch->last)
            watch->last->next = pending;
        else
            watch->first = pending;
        watch->last = pending;
        watch->count++;
        set_readable(watch);
        (void)pthread_cond_broadcast(&watch->changed);
    }
    (void)pthread_mutex_unlock(&watch->lock);
    if (joined)
        free(pending);
    return HEFT_OK;
}

static void tell_failure(struct heft_watch *watch, int rc, const struct heft_error *error)
{
    (void)pthread_mutex_lock(&watch->lock);
    watch->failure_code = rc;
    watch->failure = *error;
    set_readable(watch);
    (void)pthread_cond_broadcast(&watch->changed);
    (void)pthread_mutex_unlock(&watch->lock);
}

static int pause_for(struct heft_watch *watch, uint64_t ms)
{
    uint64_t at_ns = heft_after_ms(heft_now_ns(), ms);
    struct timespec when = {(time_t)(at_ns / HEFT_NS_PER_S), (long)(at_ns % HEFT_NS_PER_S)};
    int stops;

    (void)pthread_mutex_lock(&watch->lock);
    while (!watch->stop && heft_now_ns() < at_ns)
        (void)pthread_cond_clockwait(&watch->changed, &watch->lock, CLOCK_MONOTONIC, &when);
    stops = watch->stop;
    (void)pthread_mutex_unlock(&watch->lock);
    return stops;
}

/* Waits until the events are not too many; 1 to stop. */
static int wait_for_room(struct heft_watch *watch)
{
    int stops;

    (void)pthread_mutex_lock(&watch->lock);
    while (!watch->stop && watch->count >= EVENTS_MAX)
        (void)pthread_cond_wait(&watch->changed, &watch->lock);
    stops = watch->stop;
    (void)pthread_mutex_unlock(&watch->lock);
    return stops;
}

/* ---- what is known ---- */

static size_t place_of(const struct heft_watch *watch, const char *name, int *found_out)
{
    size_t low = 0, high = watch->known_count;

    *found_out = 0;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(watch->known[middle].name, name);

        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
            *found_out |= order == 0;
        }
    }
    return low;
}

/* A place for this name; NULL: out of memory. */
static struct known *add_known(struct heft_watch *watch, size_t place, const char *name)
{
    struct known *known = watch->known;

    if (watch->known_count == watch->known_capacity) {
        size_t capacity = watch->known_capacity ? watch->known_capacity * 2 : 16;

        known = realloc(known, capacity * sizeof(*known));
        if (!known)
            return NULL;
        watch->known = known;
        watch->known_capacity = capacity;
    }
    memmove(known + place + 1, known + place, (watch->known_count - place) * sizeof(*known));
    memset(&known[place], 0, sizeof(*known));
    watch->known_count++;
    known[place].name = strdup(name);
    if (known[place].name)
        return &known[place];
    watch->known_count--;
    memmove(known + place, known + place + 1, (watch->known_count - place) * sizeof(*known));
    return NULL;
}

static void lose(struct heft_watch *watch, size_t place)
{
    struct known *known = &watch->known[place];
    struct heft_watch_event event = {.kind = HEFT_WATCH_LOST};

    if (!known->was_refused) {
        memcpy(event.name, known->name, strlen(known->name));
        event.generation = known->generation;
        event.epoch = known->epoch;
        if (tell(watch, &event))
            return; /* out of memory: it stays, and is lost later */
    }
    free(known->name);
    watch->known_count--;
    memmove(known, known + 1, (watch->known_count - place) * sizeof(*known));
}

/* The agent's name in a record's name; NULL when it is not watched. */
static const char *watched_name(const struct heft_watch *watch, const char *record_name)
{
    const char *name = record_name + sizeof(HEFT_RECORD_AGENTS) - 1;

    if (!heft_record_name_is_agent(record_name) || strncmp(name, watch->prefix, strlen(watch->prefix)) != 0)
        return NULL;
    return name;
}

static int apply_record(struct heft_watch *watch, const struct heft_record *record)
{
    struct heft_watch_event event = {0};
    const char *name = watched_name(watch, record->name);
    uint64_t digest = heft_hash64(record->metadata, record->metadata_bytes, 0);
    struct known *known;
    int found, is_same, rc;
    size_t place;

    if (!name)
        return HEFT_OK;
    place = place_of(watch, name, &found);
    known = found ? &watch->known[place] : add_known(watch, place, name);
    if (!known)
        return HEFT_ERR_NO_MEMORY;
    is_same = found && memcmp(known->generation.bytes, record->generation.bytes, HEFT_GENERATION_BYTES) == 0;
    known->was_seen = 1;
    known->lost_ns = 0;
    known->lease_ms = record->lease_ms;
    if (is_same && known->digest == digest)
        return HEFT_OK;
    rc = heft_metadata_of_record(record, &event.metadata, &event.error);
    event.kind = rc                               ? HEFT_WATCH_REFUSED
                 : is_same && !known->was_refused ? HEFT_WATCH_CHANGED
                                                  : HEFT_WATCH_JOINED;
    memcpy(event.name, name, strlen(name));
    event.generation = record->generation;
    event.epoch = rc ? 0 : heft_metadata_epoch(event.metadata);
    known->generation = record->generation;
    known->epoch = event.epoch;
    known->was_refused = rc != HEFT_OK;
    known->digest = digest;
    rc = tell(watch, &event);
    if (rc)
        known->digest = ~digest;
    return rc;
}

static void apply_gone(struct heft_watch *watch, const char *record_name)
{
    const char *name = watched_name(watch, record_name);
    int found = 0;
    size_t place = name ? place_of(watch, name, &found) : 0;

    if (found)
        lose(watch, place);
}

/* Those that have been missing for as long as their lease. Returns the time until the next one. */
static uint64_t lose_missing(struct heft_watch *watch)
{
    uint64_t now_ns = heft_now_ns(), next_ns = UINT64_MAX;
    size_t place = watch->known_count;

    while (place-- > 0) {
        uint64_t lost_ns = watch->known[place].lost_ns;

        if (lost_ns && lost_ns <= now_ns)
            lose(watch, place);
        else if (lost_ns && lost_ns < next_ns)
            next_ns = lost_ns;
    }
    return next_ns == UINT64_MAX ? WAIT_MS : (next_ns - now_ns) / HEFT_NS_PER_MS + 1;
}

/* ---- the thread ---- */

/*
 * Compares with a whole list. A directory that has begun anew since, or went back, may only not yet know
 * those who are missing: they get the time of their lease to come again.
 */
static int apply_list(struct heft_watch *watch)
{
    struct heft_record_query query = {.agents = 1};
    struct heft_record_list list = {0};
    struct heft_error error = HEFT_ERROR_INIT;
    int rc = watch->directory->ops->list(watch->directory, &query, &list, &error), began_anew;
    size_t index, place;

    if (rc) {
        if (!watch->is_out)
            tell_failure(watch, rc, &error);
        watch->is_out = 1;
        return rc;
    }
    began_anew = list.epoch != watch->cursor.epoch || list.revision < watch->cursor.revision;
    for (place = 0; place < watch->known_count; place++)
        watch->known[place].was_seen = 0;
    for (index = 0; !rc && index < list.count; index++)
        rc = apply_record(watch, &list.records[index]);
    for (place = watch->known_count; !rc && place-- > 0;) {
        struct known *known = &watch->known[place];

        if (known->was_seen)
            continue;
        if (!began_anew && !known->lost_ns)
            lose(watch, place);
        else if (!known->lost_ns)
            known->lost_ns = heft_after_ms(heft_now_ns(), known->lease_ms);
    }
    watch->cursor.epoch = list.epoch;
    watch->cursor.revision = list.revision;
    heft_record_list_free(&list);
    watch->is_out = 0;
    return rc;
}

/* 0, AGAIN: list anew, or the directory's error. */
static int apply_changes(struct heft_watch *watch, uint32_t wait_ms)
{
    struct heft_directory *directory = watch->directory;
    struct heft_directory_changes changes = {0};
    struct heft_error error = HEFT_ERROR_INIT;
    uint64_t asked_ns = heft_now_ns();
    int rc = directory->ops->changed(directory, &watch->cursor, wait_ms, &changes, &error), said_nothing;
    size_t index;

    if (rc) {
        if (!watch->is_out && rc != HEFT_ERR_CANCELED)
            tell_failure(watch, rc, &error);
        watch->is_out |= rc != HEFT_ERR_CANCELED;
        return rc;
    }
    said_nothing = !changes.gone_count && !changes.records.count;
    for (index = 0; index < changes.gone_count; index++)
        apply_gone(watch, changes.gone[index]);
    for (index = 0; !rc && index < changes.records.count; index++)
        rc = apply_record(watch, &changes.records.records[index]);
    if (changes.must_list)
        rc = HEFT_ERR_AGAIN;
    heft_directory_changes_free(&changes);
    if (said_nothing && wait_ms > BREATH_MS && heft_now_ns() - asked_ns < BREATH_MS * HEFT_NS_PER_MS)
        (void)pause_for(watch, BREATH_MS);
    return rc;
}

static void *run(void *context)
{
    struct heft_watch *watch = context;
    struct heft_directory *directory = watch->directory;
    int must_list = 1;

    while (!wait_for_room(watch)) {
        uint64_t wait_ms = lose_missing(watch);
        int rc;

        if (must_list) {
            rc = apply_list(watch);
            must_list = rc != HEFT_OK;
        } else if (directory->ops->changed) {
            rc = apply_changes(watch, wait_ms < WAIT_MS ? (uint32_t)wait_ms : WAIT_MS);
            must_list = rc != HEFT_OK;
            if (rc == HEFT_ERR_AGAIN)
                rc = HEFT_OK;
        } else {
            rc = pause_for(watch, POLL_MS) ? HEFT_ERR_CANCELED : HEFT_OK;
            must_list = 1;
        }
        if (rc && pause_for(watch, RETRY_MS))
            break;
    }
    if (directory->ops->end_changes)
        directory->ops->end_changes(directory, &watch->cursor);
    (void)pthread_mutex_lock(&watch->lock);
    watch->has_ended = 1;
    (void)pthread_cond_broadcast(&watch->changed);
    (void)pthread_mutex_unlock(&watch->lock);
    return NULL;
}

/* ---- the caller's side ---- */

static void free_watch(struct heft_watch *watch)
{
    size_t index;

    while (watch->first) {
        struct pending *pending = watch->first;

        watch->first = pending->next;
        free_pending(pending);
    }
    for (index = 0; index < watch->known_count; index++)
        free(watch->known[index].name);
    free(watch->known);
    if (watch->fd >= 0)
        (void)close(watch->fd);
    (void)pthread_cond_destroy(&watch->changed);
    (void)pthread_mutex_destroy(&watch->lock);
    free(watch);
}

int heft_watch_open(struct heft_directory *directory, const char *prefix, struct heft_watch **watch_out,
                    struct heft_error *error)
{
    struct heft_watch *watch;
    int rc;

    if (!directory)
        return heft_error_set(error, HEFT_ERR_INVALID, "a watch needs a directory");
    if (prefix && strlen(prefix) > HEFT_NAME_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_INVALID, "a prefix of names has at most %d bytes",
                              HEFT_NAME_MAX_BYTES);
    watch = calloc(1, sizeof(*watch));
    if (!watch)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "watching a directory");
    watch->directory = directory;
    if (prefix)
        memcpy(watch->prefix, prefix, strlen(prefix));
    (void)pthread_mutex_init(&watch->lock, NULL);
    (void)pthread_cond_init(&watch->changed, NULL);
    watch->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = watch->fd < 0 ? heft_error_set_errno(error, errno, "watching a directory") : HEFT_OK;
    if (!rc && (rc = pthread_create(&watch->thread, NULL, run, watch)) != 0)
        rc = heft_error_set_errno(error, rc, "starting the thread of a watch");
    if (rc) {
        free_watch(watch);
        return rc;
    }
    *watch_out = watch;
    return HEFT_OK;
}

int heft_watch_next(struct heft_watch *watch, struct heft_watch_event *event_out, uint64_t timeout_ms,
                    struct heft_error *error)
{
    uint64_t at_ns = heft_after_ms(heft_now_ns(), timeout_ms);
    struct timespec when = {(time_t)(at_ns / HEFT_NS_PER_S), (long)(at_ns % HEFT_NS_PER_S)};
    size_t size = event_out->size;
    struct pending *pending;
    int rc = HEFT_ERR_AGAIN;

    if (size < offsetof(struct heft_watch_event, error) || size > sizeof(*event_out))
        return heft_error_set(error, HEFT_ERR_INVALID, "an event's size field is %zu, not %zu", size,
                              sizeof(*event_out));
    (void)pthread_mutex_lock(&watch->lock);
    while (!watch->first && !watch->failure_code && heft_now_ns() < at_ns)
        (void)pthread_cond_clockwait(&watch->changed, &watch->lock, CLOCK_MONOTONIC, &when);
    pending = watch->first;
    if (pending) {
        watch->first = pending->next;
        if (!watch->first)
            watch->last = NULL;
        watch->count--;
        rc = HEFT_OK;
    } else if (watch->failure_code) {
        rc = heft_error_set(error, watch->failure_code, "%s", watch->failure.text);
        watch->failure_code = 0;
    }
    set_readable(watch);
    (void)pthread_cond_broadcast(&watch->changed);
    (void)pthread_mutex_unlock(&watch->lock);
    if (pending) {
        pending->event.size = size;
        memcpy(event_out, &pending->event, size);
        free(pending);
    }
    return rc;
}

int heft_watch_fd(const struct heft_watch *watch)
{
    return watch->fd;
}

void heft_watch_close(struct heft_watch *watch)
{
    struct heft_directory *directory;

    if (!watch)
        return;
    directory = watch->directory;
    (void)pthread_mutex_lock(&watch->lock);
    watch->stop = 1;
    (void)pthread_cond_broadcast(&watch->changed);
    while (!watch->has_ended) {
        uint64_t at_ns = heft_after_ms(heft_now_ns(), INTERRUPT_MS);
        struct timespec when = {(time_t)(at_ns / HEFT_NS_PER_S), (long)(at_ns % HEFT_NS_PER_S)};

        (void)pthread_mutex_unlock(&watch->lock);
        if (directory->ops->interrupt)
            directory->ops->interrupt(directory, watch->thread);
        (void)pthread_mutex_lock(&watch->lock);
        if (!watch->has_ended)
            (void)pthread_cond_clockwait(&watch->changed, &watch->lock, CLOCK_MONOTONIC, &when);
    }
    (void)pthread_mutex_unlock(&watch->lock);
    (void)pthread_join(watch->thread, NULL);
    free_watch(watch);
}
