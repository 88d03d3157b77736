/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of the receiving side. What arrives is counted at its connection (struct heft_count), whether or
 * not anybody has opened the counter; an opened one takes over what is there, and from then on is what is
 * counted. Nothing resets it: waiting for n takes n away, the rest stays. All under agent->event_lock.
 */
#include "agent/inbox.h"

#include "base/clock.h"
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* A function's call, on the stack of its worker. */
struct firing {
    struct heft_counter *counter;
    int closed; /* the function closed its counter */
};
static __thread struct firing *in_function;

struct heft_counter {
    struct heft_agent *agent;
    struct heft_counter *prev, *next; /* agent->counters */
    char name[HEFT_NAME_MAX_BYTES + 1];
    struct heft_generation generation; /* none: any */
    uint64_t after_epoch;
    uint32_t id;
    uint64_t threshold;       /* of the descriptor */
    struct heft_inbox *inbox; /* NULL: its peer has not connected yet */
    struct heft_count *entry; /* in the inbox */
    uint64_t count;
    int status;
    struct heft_error error;
    pthread_cond_t cond;
    uint32_t waiters;
    uint32_t bells; /* reasons to be rung: sleepers, a function, the descriptor */
    int fd, fd_is_set;
    /* A descriptor that the peer rings by itself when the next transfer is the one that makes it readable: a
     * pipe, `fd` the caller's end. */
    int fd_in; /* the other end; -1: `fd` is no such thing */
    uint32_t serial;
    int wants;      /* the peer was told to ring */
    int rings_bell; /* more than one is missing: every record of the peer is a reason to be rung */
    int taking;     /* what is in the ring is for the caller that looks now */
    /* The callback that waits for `expected`, or runs. */
    heft_counter_fn on_count;
    void *context;
    uint64_t expected;
    int firing; /* submitted */
    int fire_status;
    uint32_t running; /* functions: one may expect the next, which is called when it has returned */
    struct heft_job job;
};

/* ---- what wakes ---- */

static void wake(struct heft_counter *counter);
static void update_pipe(struct heft_counter *counter);

static void want_bell(struct heft_counter *counter)
{
    counter->bells++;
    if (!counter->inbox)
        return; /* bind_to counts it */
    counter->inbox->bells++;
    heft_inbox_arm(counter->inbox);
}

static void want_bell_no_more(struct heft_counter *counter)
{
    counter->bells--;
    if (counter->inbox)
        counter->inbox->bells--;
}

static void drain(struct heft_counter *counter)
{
    if (counter->inbox)
        heft_inbox_drain(counter->inbox);
}

/* The peer's byte may come a moment after what it tells of was taken: then the next look takes it away. */
static void clear_pipe(struct heft_counter *counter)
{
    char waste[64];

    while (read(counter->fd, waste, sizeof(waste)) == (ssize_t)sizeof(waste))
        ;
    counter->fd_is_set = 0;
}

/* Has the peer ring, or itself rung, as is needed next. Whoever calls looks into the ring once more. */
static void want_next(struct heft_counter *counter)
{
    struct heft_inbox *inbox = counter->inbox;
    uint64_t missing = counter->count < counter->threshold ? counter->threshold - counter->count : 0;

    if (!inbox || inbox->wanted != counter || !inbox->ring.shared)
        return;
    if (missing == 1)
        heft_ring_want(&inbox->ring, counter->serial, counter->id);
    else if (counter->wants)
        heft_ring_want(&inbox->ring, 0, 0);
    counter->wants = missing == 1;
    if (missing > 1 && !counter->rings_bell) {
        counter->rings_bell = 1;
        counter->bells++;
        inbox->bells++;
        heft_ring_arm(&inbox->ring);
    } else if (missing <= 1 && counter->rings_bell) {
        counter->rings_bell = 0;
        want_bell_no_more(counter);
    }
}

static void update_pipe(struct heft_counter *counter)
{
    int ready = counter->count >= counter->threshold || counter->status;
    ssize_t done;

    if (counter->taking)
        return;
    if (ready && !counter->fd_is_set) {
        done = write(counter->fd_in, "", 1);
        (void)done; /* full: it is readable */
        counter->fd_is_set = 1;
    }
    if (!ready && (counter->fd_is_set || counter->wants))
        clear_pipe(counter);
    want_next(counter);
}

static void fire(struct heft_job *job, struct heft_worker *worker)
{
    struct heft_counter *counter = HEFT_CONTAINER_OF(job, struct heft_counter, job);
    struct heft_agent *agent = counter->agent;
    struct firing firing = {counter, 0};
    heft_counter_fn call;
    void *context;
    int status;

    (void)worker;
    (void)pthread_mutex_lock(&agent->event_lock);
    call = counter->on_count;
    context = counter->context;
    status = counter->fire_status;
    want_bell_no_more(counter);
    counter->on_count = NULL; /* the function may expect the next ones, or close the counter */
    counter->firing = 0;
    counter->running++;
    (void)pthread_mutex_unlock(&agent->event_lock);
    in_function = &firing;
    call(counter, status, context);
    in_function = NULL;
    (void)pthread_mutex_lock(&agent->event_lock);
    if (!firing.closed) {
        counter->running--;
        wake(counter); /* what it expected may be there */
    }
    agent->event_callbacks--;
    (void)pthread_cond_broadcast(&agent->note_cond);
    (void)pthread_mutex_unlock(&agent->event_lock);
}

/* The counter changed. */
static void wake(struct heft_counter *counter)
{
    struct heft_agent *agent = counter->agent;

    (void)pthread_cond_broadcast(&counter->cond);
    if (counter->on_count && !counter->firing && !counter->running &&
        (counter->count >= counter->expected || counter->status)) {
        if (counter->count >= counter->expected) {
            counter->count -= counter->expected;
            counter->fire_status = 0;
        } else {
            counter->fire_status = counter->status;
        }
        counter->firing = 1;
        agent->event_callbacks++;
        counter->job.run = fire;
        heft_pool_submit(agent->pool, &counter->job);
    }
    if (counter->fd_in >= 0)
        update_pipe(counter);
    else
        heft_event_fd_set(counter->fd, &counter->fd_is_set,
                          counter->count >= counter->threshold || counter->status != 0);
}

static void poison(struct heft_counter *counter, const struct heft_error *why)
{
    if (counter->status)
        return;
    counter->status = why->code;
    counter->error = *why;
    wake(counter);
}

/* ---- counting ---- */

static struct heft_count *find_entry(const struct heft_inbox *inbox, uint32_t id)
{
    struct heft_table_node *node = heft_table_find(&inbox->counts, id);

    return node ? HEFT_CONTAINER_OF(node, struct heft_count, node) : NULL;
}

static struct heft_count *add_entry(struct heft_inbox *inbox, uint32_t id)
{
    struct heft_count *entry;

    if (heft_table_reserve(&inbox->counts))
        return NULL;
    entry = calloc(1, sizeof(*entry));
    if (!entry)
        return NULL;
    entry->node.id = id;
    heft_table_insert(&inbox->counts, &entry->node);
    return entry;
}

int heft_counters_add(struct heft_inbox *inbox, uint32_t id, uint64_t transfers)
{
    struct heft_count *entry = find_entry(inbox, id);
    uint64_t *count;

    if (!entry) {
        if (inbox->early >= HEFT_INBOX_EARLY_MAX)
            return HEFT_ERR_TOO_MANY;
        entry = add_entry(inbox, id);
        if (!entry)
            return HEFT_ERR_NO_MEMORY;
        inbox->early++;
    }
    count = entry->counter ? &entry->counter->count : &entry->early;
    if (__builtin_add_overflow(*count, transfers, count)) {
        *count = UINT64_MAX;
        return HEFT_ERR_RANGE;
    }
    if (entry->counter)
        wake(entry->counter);
    return 0;
}

/* ---- binding a counter to a connection ---- */

static int matches(const struct heft_counter *counter, const struct heft_inbox *inbox)
{
    return inbox->epoch > counter->after_epoch && strcmp(inbox->name, counter->name) == 0 &&
           (heft_generation_is_none(counter->generation.bytes) ||
            memcmp(inbox->generation.bytes, counter->generation.bytes, HEFT_GENERATION_BYTES) == 0);
}

/* 0, EXISTS or NO_MEMORY. */
static int bind_to(struct heft_counter *counter, struct heft_inbox *inbox)
{
    struct heft_count *entry = find_entry(inbox, counter->id);

    if (entry && entry->counter)
        return HEFT_ERR_EXISTS;
    if (entry)
        inbox->early--;
    else
        entry = add_entry(inbox, counter->id);
    if (!entry)
        return HEFT_ERR_NO_MEMORY;
    inbox->refs++;
    inbox->bells += counter->bells;
    counter->inbox = inbox;
    counter->entry = entry;
    counter->count = entry->early;
    entry->early = 0;
    entry->counter = counter;
    heft_inbox_arm(inbox);
    if (!inbox->live)
        poison(counter, &inbox->end);
    wake(counter);
    return 0;
}

static void unbind(struct heft_counter *counter)
{
    struct heft_inbox *inbox = counter->inbox;
    struct heft_count *entry = counter->entry;

    if (!inbox)
        return;
    entry->counter = NULL;
    entry->early = counter->count;
    inbox->bells -= counter->bells;
    if (inbox->wanted == counter) {
        inbox->wanted = NULL;
        if (inbox->ring.shared)
            heft_ring_want(&inbox->ring, 0, 0);
    }
    counter->inbox = NULL;
    if (entry->early && inbox->early < HEFT_INBOX_EARLY_MAX) {
        inbox->early++;
    } else {
        heft_table_remove(&inbox->counts, &entry->node);
        free(entry);
    }
    if (!inbox->live && !inbox->early)
        heft_inbox_unlist(inbox);
    heft_inbox_unref(inbox);
}

void heft_counters_begin(struct heft_inbox *inbox)
{
    struct heft_counter *counter;

    for (counter = inbox->agent->counters; counter; counter = counter->next) {
        struct heft_error error = HEFT_ERROR_INIT;

        if (counter->inbox || counter->status || !matches(counter, inbox))
            continue;
        if (bind_to(counter, inbox) == HEFT_ERR_NO_MEMORY) {
            (void)heft_error_set(&error, HEFT_ERR_NO_MEMORY, "out of memory for counter %u", counter->id);
            poison(counter, &error);
        }
    }
}

void heft_counters_end(struct heft_inbox *inbox)
{
    size_t index;

    for (index = 0; index < inbox->counts.capacity; index++) {
        struct heft_table_node *node;

        for (node = inbox->counts.buckets[index]; node; node = node->next) {
            struct heft_count *entry = HEFT_CONTAINER_OF(node, struct heft_count, node);

            if (entry->counter)
                poison(entry->counter, &inbox->end);
        }
    }
}

void heft_counters_shut(struct heft_agent *agent)
{
    struct heft_error closed = HEFT_ERROR_INIT;
    struct heft_counter *counter;

    (void)heft_error_set(&closed, HEFT_ERR_CANCELED, "agent '%s' was closed", agent->name);
    for (counter = agent->counters; counter; counter = counter->next) {
        unbind(counter);
        poison(counter, &closed);
    }
    while (agent->event_callbacks)
        (void)heft_agent_wait(agent, &agent->note_cond, &agent->event_lock, UINT64_MAX);
}

/* ---- the caller's side ---- */

static int check_options(const struct heft_counter_options *options, struct heft_error *error)
{
    size_t size = options->peer ? strnlen(options->peer, HEFT_NAME_MAX_BYTES + 1) : 0;

    if (size == 0 || size > HEFT_NAME_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "a counter belongs to a peer: its name has 1 to %d bytes", HEFT_NAME_MAX_BYTES);
    return 0;
}

/* The newest connection that is alive, else the newest that is gone and left counts of it. */
static struct heft_inbox *find_inbox(const struct heft_counter *counter)
{
    struct heft_inbox *inbox, *gone = NULL;

    for (inbox = counter->agent->inbox_first; inbox; inbox = inbox->next) {
        if (!matches(counter, inbox))
            continue;
        if (inbox->live)
            return inbox;
        if (!gone && find_entry(inbox, counter->id))
            gone = inbox;
    }
    return gone;
}

/* Another one that waits for the same connection to come. */
static int is_awaited(const struct heft_counter *counter)
{
    const struct heft_counter *other;

    for (other = counter->agent->counters; other; other = other->next)
        if (!other->inbox && !other->status && other->id == counter->id &&
            strcmp(other->name, counter->name) == 0 &&
            memcmp(&other->generation, &counter->generation, sizeof(other->generation)) == 0)
            return 1;
    return 0;
}

static int enlist(struct heft_counter *counter)
{
    struct heft_agent *agent = counter->agent;
    struct heft_inbox *inbox;
    int rc = 0;

    if (agent->events_closed)
        return HEFT_ERR_STATE;
    inbox = find_inbox(counter);
    if (inbox)
        rc = bind_to(counter, inbox);
    else if (is_awaited(counter))
        rc = HEFT_ERR_EXISTS;
    if (rc)
        return rc;
    counter->next = agent->counters;
    if (counter->next)
        counter->next->prev = counter;
    agent->counters = counter;
    return 0;
}

static void counter_free(struct heft_counter *counter)
{
    struct heft_agent *agent = counter->agent;

    (void)pthread_cond_destroy(&counter->cond);
    if (counter->fd >= 0)
        (void)close(counter->fd);
    if (counter->fd_in >= 0)
        (void)close(counter->fd_in);
    free(counter);
    heft_agent_unref(agent);
}

int heft_counter_open(struct heft_agent *agent, const struct heft_counter_options *given,
                      struct heft_counter **counter_out, struct heft_error *error)
{
    struct heft_counter_options options = HEFT_COUNTER_OPTIONS_INIT;
    struct heft_counter *counter;
    int rc = heft_options_copy(&options, sizeof(options), given, error);

    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    if (!rc)
        rc = check_options(&options, error);
    if (rc)
        return rc;
    counter = calloc(1, sizeof(*counter));
    if (!counter)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a counter");
    counter->agent = agent;
    counter->id = options.id;
    counter->after_epoch = options.after_epoch;
    counter->generation = options.generation;
    counter->threshold = options.threshold ? options.threshold : 1;
    counter->fd = counter->fd_in = -1;
    (void)snprintf(counter->name, sizeof(counter->name), "%s", options.peer);
    heft_cond_init(&counter->cond);
    heft_agent_ref(agent);
    (void)pthread_mutex_lock(&agent->event_lock);
    rc = enlist(counter);
    (void)pthread_mutex_unlock(&agent->event_lock);
    if (rc) {
        counter_free(counter);
        return heft_error_set(error, rc, "counter %u of peer '%s': %s", options.id, options.peer,
                              rc == HEFT_ERR_EXISTS  ? "it is open already"
                              : rc == HEFT_ERR_STATE ? "the agent was closed"
                                                     : "out of memory");
    }
    *counter_out = counter;
    return 0;
}

int heft_counter_close(struct heft_counter *counter, struct heft_error *error)
{
    struct heft_agent *agent;
    uint32_t own;
    int rc = 0;

    if (!counter)
        return 0;
    agent = counter->agent;
    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    (void)pthread_mutex_lock(&agent->event_lock);
    own = in_function && in_function->counter == counter;
    if (counter->waiters || counter->on_count ||
        counter->running > own) { /* its function may close it soon */
        rc = heft_error_set(error, HEFT_ERR_BUSY, "counter %u of peer '%s' is waited for", counter->id,
                            counter->name);
    } else {
        if (own)
            in_function->closed = 1;
        unbind(counter);
        if (counter->prev)
            counter->prev->next = counter->next;
        else
            agent->counters = counter->next;
        if (counter->next)
            counter->next->prev = counter->prev;
    }
    (void)pthread_mutex_unlock(&agent->event_lock);
    if (!rc)
        counter_free(counter);
    return rc;
}

uint64_t heft_counter_count(struct heft_counter *counter)
{
    uint64_t count;

    (void)pthread_mutex_lock(&counter->agent->event_lock);
    drain(counter);
    count = counter->count;
    (void)pthread_mutex_unlock(&counter->agent->event_lock);
    return count;
}

uint64_t heft_counter_epoch(struct heft_counter *counter)
{
    uint64_t epoch;

    (void)pthread_mutex_lock(&counter->agent->event_lock);
    epoch = counter->inbox ? counter->inbox->epoch : 0;
    (void)pthread_mutex_unlock(&counter->agent->event_lock);
    return epoch;
}

int heft_counter_status(struct heft_counter *counter, struct heft_error *error)
{
    int status;

    (void)pthread_mutex_lock(&counter->agent->event_lock);
    status = counter->status;
    if (status && error)
        *error = counter->error;
    (void)pthread_mutex_unlock(&counter->agent->event_lock);
    return status;
}

static int is_awaited_still(const struct heft_counter *counter, uint64_t transfers)
{
    return counter->count < transfers && !counter->status;
}

/* Rung for what comes. event_lock held, as for the next. */
static void sleep_for(struct heft_counter *counter, uint64_t transfers, uint64_t timeout_ms)
{
    struct heft_agent *agent = counter->agent;
    uint64_t until_ns = heft_deadline_after_ms(timeout_ms);
    int rc = 0;

    want_bell(counter);
    while (is_awaited_still(counter, transfers) && !rc)
        rc = heft_agent_wait(agent, &counter->cond, &agent->event_lock, until_ns);
    want_bell_no_more(counter);
}

static void await(struct heft_counter *counter, uint64_t transfers, uint64_t timeout_ms)
{
    uint64_t spin_until_ns = 0;

    counter->waiters++;
    while (is_awaited_still(counter, transfers) && counter->inbox && counter->inbox->ring.shared &&
           heft_inbox_spin(counter->inbox, &spin_until_ns))
        drain(counter);
    if (is_awaited_still(counter, transfers))
        sleep_for(counter, transfers, timeout_ms);
    counter->waiters--;
}

int heft_counter_wait(struct heft_counter *counter, uint64_t transfers, uint64_t timeout_ms,
                      struct heft_error *error)
{
    struct heft_agent *agent = counter->agent;
    int rc;

    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    if (timeout_ms && heft_agent_on_worker(agent))
        return heft_error_set(error, HEFT_ERR_STATE, "a counter can't be waited for in a callback");
    (void)pthread_mutex_lock(&agent->event_lock);
    counter->taking = 1; /* what is taken at once needs no descriptor to tell of it */
    drain(counter);
    counter->taking = 0;
    if (is_awaited_still(counter, transfers) && timeout_ms)
        await(counter, transfers, timeout_ms);
    if (counter->count >= transfers) {
        counter->count -= transfers;
        rc = 0;
        if (counter->fd_in < 0)
            wake(counter);
    } else if (counter->status) {
        rc = counter->status;
        if (error)
            *error = counter->error;
    } else {
        rc = heft_error_set(error, HEFT_ERR_AGAIN, "counter %u of peer '%s': %llu of %llu transfers arrived",
                            counter->id, counter->name, (unsigned long long)counter->count,
                            (unsigned long long)transfers);
    }
    if (counter->fd_in >= 0) {
        wake(counter);
        drain(counter);
    }
    (void)pthread_mutex_unlock(&agent->event_lock);
    return rc;
}

int heft_counter_expect(struct heft_counter *counter, uint64_t transfers, heft_counter_fn on_count,
                        void *context, struct heft_error *error)
{
    struct heft_agent *agent = counter->agent;
    int rc = 0;

    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    if (!on_count)
        return heft_error_set(error, HEFT_ERR_INVALID, "no function to call");
    (void)pthread_mutex_lock(&agent->event_lock);
    if (agent->events_closed) {
        rc = heft_error_set(error, HEFT_ERR_STATE, "the agent was closed");
    } else if (counter->on_count) {
        rc = heft_error_set(error, HEFT_ERR_STATE, "counter %u calls another function first", counter->id);
    } else {
        counter->on_count = on_count;
        counter->context = context;
        counter->expected = transfers;
        want_bell(counter);
        wake(counter);
    }
    (void)pthread_mutex_unlock(&agent->event_lock);
    return rc;
}

/* A pipe that the peer can ring; nothing, when it has no ring or rings for another counter. */
static void open_pipe(struct heft_counter *counter)
{
    struct heft_inbox *inbox = counter->inbox;
    int ends[2], own;

    if (!inbox || !inbox->ring.shared || inbox->wanted || pipe2(ends, O_CLOEXEC | O_NONBLOCK))
        return;
    own = heft_ring_own_pipe(ends[1]); /* the one that is sent is the peer's to play with */
    if (own < 0) {
        (void)close(ends[0]);
        (void)close(ends[1]);
        return;
    }
    counter->fd = ends[0];
    counter->fd_in = own;
    counter->serial = ++inbox->wake_serial;
    inbox->wanted = counter;
    if (inbox->wake_unsent >= 0)
        (void)close(inbox->wake_unsent);
    inbox->wake_unsent = ends[1];
    heft_inbox_ask_control(counter->agent);
}

int heft_counter_event_fd(struct heft_counter *counter, int *fd_out, struct heft_error *error)
{
    int rc, is_new;

    (void)pthread_mutex_lock(&counter->agent->event_lock);
    if (counter->fd < 0)
        open_pipe(counter);
    is_new = counter->fd < 0;
    rc = heft_event_fd_open(&counter->fd, error);
    if (!rc && is_new)
        want_bell(counter);
    if (!rc) {
        wake(counter);
        drain(counter);
        *fd_out = counter->fd;
    }
    (void)pthread_mutex_unlock(&counter->agent->event_lock);
    return rc;
}
