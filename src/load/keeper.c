/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread makes all calls but the first publication, the withdrawal as well: so whoever stops it can wait
 * for a moment and then have its call ended, instead of waiting for a directory that is frozen.
 */
#include "load/keeper.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <string.h>
#include <time.h>

#define RETRY_MS 1000u
#define CALL_GRACE_MS 200u      /* for a call that is under way when the end is asked for */
#define WITHDRAW_GRACE_MS 1000u /* and for the last one */
#define INTERRUPT_MS 20u        /* between two tries to end a call */
#define SETTLE_MS 10u           /* changes that come together are published together */

enum keeper_phase { IDLE, CALLING, WITHDRAWING, ENDED };

static void wait_until(struct heft_keeper *keeper, uint64_t at_ns)
{
    struct timespec when = {(time_t)(at_ns / HEFT_NS_PER_S), (long)(at_ns % HEFT_NS_PER_S)};

    (void)pthread_cond_clockwait(&keeper->changed, &keeper->lock, CLOCK_MONOTONIC, &when);
}

static void set_phase(struct heft_keeper *keeper, enum keeper_phase phase)
{
    (void)pthread_mutex_lock(&keeper->lock);
    keeper->phase = (int)phase;
    (void)pthread_cond_broadcast(&keeper->changed);
    (void)pthread_mutex_unlock(&keeper->lock);
}

static void note(struct heft_keeper *keeper, int rc, const struct heft_error *error, uint64_t asked_ns,
                 uint64_t epoch)
{
    (void)pthread_mutex_lock(&keeper->lock);
    keeper->status.published = rc == HEFT_OK;
    if (rc == HEFT_OK) {
        keeper->epoch = epoch;
        /* From before the call: the directory's own count can only be later. */
        keeper->lease_end_ns = heft_after_ms(asked_ns, keeper->options.record->lease_ms);
        keeper->status.last_error = (struct heft_error)HEFT_ERROR_INIT;
    } else {
        keeper->status.last_error = *error;
        keeper->status.last_error.code = rc;
    }
    (void)pthread_mutex_unlock(&keeper->lock);
}

static int publish_record(struct heft_keeper *keeper, struct heft_error *error)
{
    struct heft_directory *directory = keeper->options.directory;
    uint64_t asked_ns = heft_now_ns(), epoch = 0;
    int rc = HEFT_OK;

    (void)pthread_mutex_lock(&keeper->lock);
    keeper->is_dirty = 0;
    (void)pthread_mutex_unlock(&keeper->lock);
    if (keeper->options.refresh)
        rc = keeper->options.refresh(keeper->options.context, keeper->options.record, error);
    if (!rc)
        rc = directory->ops->publish(directory, keeper->options.record, &epoch, error);
    note(keeper, rc, error, asked_ns, epoch);
    (void)pthread_mutex_lock(&keeper->lock);
    keeper->status.publications += rc == HEFT_OK;
    keeper->is_dirty |= rc != HEFT_OK;
    (void)pthread_mutex_unlock(&keeper->lock);
    return rc;
}

/* One renewal; publishes again when the directory forgot the record or started anew. */
static int renew_record(struct heft_keeper *keeper, struct heft_error *error)
{
    const struct heft_record *record = keeper->options.record;
    struct heft_directory *directory = keeper->options.directory;
    uint64_t asked_ns = heft_now_ns(), epoch = 0;
    int rc =
        directory->ops->renew(directory, record->name, &record->generation, record->lease_ms, &epoch, error);

    if (rc == HEFT_ERR_NOT_FOUND || (rc == HEFT_OK && epoch != keeper->epoch)) {
        heft_log(HEFT_LOG_INFO, "the directory %s forgot %s %s: publishing it again", directory->address,
                 keeper->options.what, record->name);
        rc = publish_record(keeper, error);
        (void)pthread_mutex_lock(&keeper->lock);
        keeper->status.republished += rc == HEFT_OK;
        (void)pthread_mutex_unlock(&keeper->lock);
        return rc;
    }
    note(keeper, rc, error, asked_ns, epoch);
    (void)pthread_mutex_lock(&keeper->lock);
    keeper->status.renewals += rc == HEFT_OK;
    (void)pthread_mutex_unlock(&keeper->lock);
    return rc;
}

/* Waits for the next thing to do. Lock held. */
static void wait_turn(struct heft_keeper *keeper)
{
    uint64_t lease_ms = keeper->options.record->lease_ms;
    uint64_t pause_ms = keeper->status.published ? lease_ms / 3 : lease_ms / 6;
    uint64_t at_ns;

    if (!keeper->status.published && pause_ms > RETRY_MS)
        pause_ms = RETRY_MS;
    at_ns = heft_after_ms(heft_now_ns(), pause_ms);
    while (!keeper->stop && heft_now_ns() < at_ns && !(keeper->is_dirty && keeper->status.published))
        wait_until(keeper, at_ns);
    if (keeper->is_dirty && keeper->status.published) {
        at_ns = heft_after_ms(heft_now_ns(), SETTLE_MS);
        while (!keeper->stop && heft_now_ns() < at_ns)
            wait_until(keeper, at_ns);
    }
}

/* A directory that did not answer a moment ago would only be waited for once more, and a name that is another
 * process's is not ours to withdraw. */
static int should_withdraw(const struct heft_keeper *keeper)
{
    return keeper->epoch != 0 && !keeper->was_interrupted &&
           keeper->status.last_error.code != HEFT_ERR_STALE &&
           (keeper->status.published || heft_error_class(keeper->status.last_error.code) != HEFT_CLASS_RETRY);
}

static void *keep(void *argument)
{
    struct heft_keeper *keeper = argument;
    const struct heft_record *record = keeper->options.record;
    struct heft_directory *directory = keeper->options.directory;
    struct heft_error error = HEFT_ERROR_INIT;
    int warned = 0, withdraws, publishes;

    (void)pthread_mutex_lock(&keeper->lock);
    while (!keeper->stop) {
        int rc;

        wait_turn(keeper);
        if (keeper->stop)
            break;
        publishes = keeper->epoch == 0 || keeper->is_dirty;
        keeper->phase = CALLING;
        (void)pthread_mutex_unlock(&keeper->lock);
        rc = publishes ? publish_record(keeper, &error) : renew_record(keeper, &error);
        if (rc && rc != HEFT_ERR_CANCELED && (!warned || rc == HEFT_ERR_STALE))
            heft_log(HEFT_LOG_WARN, "%s %s is not in the directory %s: %s; it serves%s", keeper->options.what,
                     record->name, directory->address, error.text,
                     rc == HEFT_ERR_STALE ? ", but a newer process has its name" : ", and tries again");
        warned = rc != HEFT_OK;
        (void)pthread_mutex_lock(&keeper->lock);
        keeper->phase = IDLE;
        (void)pthread_cond_broadcast(&keeper->changed);
        if (rc == HEFT_ERR_STALE)
            break; /* a newer process has this name: renewing against it would be a fight */
    }
    withdraws = keeper->stop && should_withdraw(keeper);
    publishes = withdraws && keeper->leaves_record;
    keeper->phase = withdraws ? WITHDRAWING : ENDED;
    (void)pthread_cond_broadcast(&keeper->changed);
    (void)pthread_mutex_unlock(&keeper->lock);
    if (publishes)
        (void)publish_record(keeper, &error);
    else if (withdraws)
        (void)directory->ops->withdraw(directory, record->name, &record->generation, NULL);
    set_phase(keeper, ENDED);
    return NULL;
}

int heft_keeper_start(struct heft_keeper *keeper, const struct heft_keeper_options *options,
                      struct heft_error *error)
{
    struct heft_error failure = HEFT_ERROR_INIT;
    int rc;

    memset(keeper, 0, sizeof(*keeper));
    keeper->options = *options;
    (void)pthread_mutex_init(&keeper->lock, NULL);
    (void)pthread_cond_init(&keeper->changed, NULL);
    rc = publish_record(keeper, &failure);
    if (rc && heft_error_class(rc) != HEFT_CLASS_RETRY) {
        rc = heft_error_set(error, rc, "publishing %s %s: %s", options->what, options->record->name,
                            failure.text);
        goto fail_locks;
    }
    if (rc)
        heft_log(HEFT_LOG_WARN, "the directory %s can't be reached now: %s; %s %s serves and tries again",
                 options->directory->address, failure.text, options->what, options->record->name);
    rc = pthread_create(&keeper->thread, NULL, keep, keeper);
    if (rc) {
        rc = heft_error_set_errno(error, rc, "starting the lease thread of %s", options->record->name);
        (void)options->directory->ops->withdraw(options->directory, options->record->name,
                                                &options->record->generation, NULL);
        goto fail_locks;
    }
    keeper->thread_started = 1;
    return HEFT_OK;

fail_locks:
    (void)pthread_cond_destroy(&keeper->changed);
    (void)pthread_mutex_destroy(&keeper->lock);
    return rc;
}

void heft_keeper_touch(struct heft_keeper *keeper)
{
    (void)pthread_mutex_lock(&keeper->lock);
    keeper->is_dirty = 1;
    (void)pthread_cond_broadcast(&keeper->changed);
    (void)pthread_mutex_unlock(&keeper->lock);
}

void heft_keeper_leave(struct heft_keeper *keeper)
{
    (void)pthread_mutex_lock(&keeper->lock);
    keeper->leaves_record = 1;
    (void)pthread_mutex_unlock(&keeper->lock);
    heft_keeper_stop(keeper);
}

void heft_keeper_stop(struct heft_keeper *keeper)
{
    struct heft_directory *directory = keeper->options.directory;
    uint64_t begin_ns = heft_now_ns();

    if (!keeper->thread_started)
        return;
    (void)pthread_mutex_lock(&keeper->lock);
    keeper->stop = 1;
    (void)pthread_cond_broadcast(&keeper->changed);
    while (keeper->phase != ENDED) {
        uint64_t grace_ms = keeper->phase == WITHDRAWING ? WITHDRAW_GRACE_MS : CALL_GRACE_MS;
        uint64_t until_ns = heft_after_ms(begin_ns, grace_ms);

        if (heft_now_ns() < until_ns || keeper->phase == IDLE || !directory->ops->interrupt) {
            wait_until(keeper, heft_after_ms(heft_now_ns(), INTERRUPT_MS));
            continue;
        }
        keeper->was_interrupted = 1;
        (void)pthread_mutex_unlock(&keeper->lock);
        directory->ops->interrupt(directory, keeper->thread);
        (void)pthread_mutex_lock(&keeper->lock);
        if (keeper->phase != ENDED)
            wait_until(keeper, heft_after_ms(heft_now_ns(), INTERRUPT_MS));
    }
    (void)pthread_mutex_unlock(&keeper->lock);
    (void)pthread_join(keeper->thread, NULL);
    keeper->thread_started = 0;
    (void)pthread_cond_destroy(&keeper->changed);
    (void)pthread_mutex_destroy(&keeper->lock);
}

void heft_keeper_get_status(struct heft_keeper *keeper, struct heft_keeper_status *status_out)
{
    uint64_t now_ns = heft_now_ns();

    (void)pthread_mutex_lock(&keeper->lock);
    *status_out = keeper->status;
    status_out->lease_left_ms =
        keeper->lease_end_ns > now_ns ? (keeper->lease_end_ns - now_ns) / HEFT_NS_PER_MS : 0;
    (void)pthread_mutex_unlock(&keeper->lock);
}
