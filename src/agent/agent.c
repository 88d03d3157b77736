/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/secure.h"
#include "agent/agent_internal.h"
#include "agent/region_cache.h"
#include "agent/inbox.h"
#include "agent/peer.h"
#include "agent/tether.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WORKERS_MAX 64u
#define WORKERS_DEFAULT_MAX 16u /* twelve and more threads fill a GPU's link from the page cache */
#define WORKERS_ALL_CORES 8     /* of larger machines some are left alone */
#define HOST_BYTES_DEFAULT ((uint64_t)256 << 20)
#define HOST_BYTES_MIN ((uint64_t)16 << 20)
#define NOTIFICATION_BYTES_DEFAULT ((uint64_t)64 << 20)

/* ---- small tools ---- */

int heft_options_copy(void *options, size_t size_bytes, const void *given, struct heft_error *error)
{
    size_t size;

    if (!given)
        return 0;
    memcpy(&size, given, sizeof(size));
    if (size < sizeof(size) || size > 1 << 16)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "the options' size is not set: begin with the _OPTIONS_INIT macro");
    memcpy(options, given, size < size_bytes ? size : size_bytes);
    memcpy(options, &size_bytes, sizeof(size_bytes));
    return 0;
}

void heft_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;

    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(cond, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

int heft_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns)
{
    struct timespec until = {.tv_sec = (time_t)(until_ns / HEFT_NS_PER_S),
                             .tv_nsec = (long)(until_ns % HEFT_NS_PER_S)};

    return pthread_cond_timedwait(cond, lock, &until) == ETIMEDOUT ? HEFT_ERR_AGAIN : 0;
}

/* Capped at some decades, so that "for ever" neither wraps nor overflows a timespec. */
uint64_t heft_deadline_after_ms(uint64_t timeout_ms)
{
    const uint64_t most_ms = UINT64_C(1) << 40;

    return heft_now_ns() + (timeout_ms < most_ms ? timeout_ms : most_ms) * HEFT_NS_PER_MS;
}

const char *heft_generation_text(const uint8_t *generation, char text_out[HEFT_GENERATION_TEXT_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    size_t index;

    for (index = 0; index < HEFT_GENERATION_BYTES; index++) {
        text_out[2 * index] = digits[generation[index] >> 4];
        text_out[2 * index + 1] = digits[generation[index] & 15];
    }
    text_out[2 * HEFT_GENERATION_BYTES] = 0;
    return text_out;
}

int heft_generation_is_none(const uint8_t *generation)
{
    static const uint8_t none[HEFT_GENERATION_BYTES];

    return memcmp(generation, none, sizeof(none)) == 0;
}

struct run_on {
    struct heft_job job;
    void (*call)(void *context);
    void *context;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int done;
};

static void run_on_job(struct heft_job *job, struct heft_worker *worker)
{
    struct run_on *run = HEFT_CONTAINER_OF(job, struct run_on, job);

    (void)worker;
    run->call(run->context);
    (void)pthread_mutex_lock(&run->lock);
    run->done = 1;
    (void)pthread_cond_signal(&run->cond);
    (void)pthread_mutex_unlock(&run->lock);
}

void heft_agent_run_on(struct heft_worker *worker, void (*call)(void *context), void *context)
{
    struct run_on run = {.job = {.run = run_on_job}, .call = call, .context = context};

    if (heft_worker_self() == worker) {
        call(context);
        return;
    }
    (void)pthread_mutex_init(&run.lock, NULL);
    (void)pthread_cond_init(&run.cond, NULL);
    heft_worker_submit(worker, &run.job);
    (void)pthread_mutex_lock(&run.lock);
    while (!run.done)
        heft_pool_wait(heft_worker_pool(worker), &run.cond, &run.lock);
    (void)pthread_mutex_unlock(&run.lock);
    (void)pthread_mutex_destroy(&run.lock);
    (void)pthread_cond_destroy(&run.cond);
}

int heft_agent_on_worker(const struct heft_agent *agent)
{
    struct heft_worker *self = heft_worker_self();
    uint32_t index;

    if (!self)
        return 0;
    for (index = 0; index < heft_pool_workers(agent->pool); index++)
        if (heft_pool_worker(agent->pool, index) == self)
            return 1;
    return self == agent->control || self == agent->reaper;
}

/* ---- life ---- */

void heft_agent_ref(struct heft_agent *agent)
{
    (void)__atomic_add_fetch(&agent->refs, 1, __ATOMIC_RELAXED);
}

void heft_agent_unref(struct heft_agent *agent)
{
    if (__atomic_sub_fetch(&agent->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    heft_region_cache_free(agent->region_cache);
    (void)pthread_mutex_destroy(&agent->region_lock);
    (void)pthread_cond_destroy(&agent->region_cond);
    (void)pthread_mutex_destroy(&agent->active_lock);
    (void)pthread_mutex_destroy(&agent->proxy_lock);
    (void)pthread_mutex_destroy(&agent->peers_lock);
    (void)pthread_mutex_destroy(&agent->document_lock);
    (void)pthread_mutex_destroy(&agent->event_lock);
    (void)pthread_cond_destroy(&agent->note_cond);
    (void)pthread_cond_destroy(&agent->event_cond);
    (void)pthread_cond_destroy(&agent->any_cond);
    memset(&agent->token, 0, sizeof(agent->token));
    heft_telemetry_free(&agent->telemetry);
    free(agent);
}

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
    return value ? value : otherwise;
}

static int set_name(struct heft_agent *agent, const char *name, struct heft_error *error)
{
    size_t size = name ? strnlen(name, HEFT_NAME_MAX_BYTES + 1) : 0;
    size_t index;

    if (!name) { /* containers of many hosts have the same process ids */
        char host[128] = "";
        uint32_t salt = 0;

        (void)gethostname(host, sizeof(host) - 1);
        heft_random_bytes(&salt, sizeof(salt));
        (void)snprintf(agent->name, sizeof(agent->name), "%s-%d-%04x", host[0] ? host : "host", (int)getpid(),
                       salt & 0xffff);
        return 0;
    }
    if (size == 0 || size > HEFT_NAME_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_INVALID, "an agent's name has 1 to %d bytes",
                              HEFT_NAME_MAX_BYTES);
    for (index = 0; index < size; index++)
        if ((unsigned char)name[index] < 0x20 || name[index] == 0x7f)
            return heft_error_set(error, HEFT_ERR_INVALID, "an agent's name has no control characters");
    memcpy(agent->name, name, size);
    return 0;
}

/* Every peer that may connect finds room for the largest notification at least. */
static int take_notification_limit(struct heft_agent *agent, uint64_t limit_bytes, struct heft_error *error)
{
    uint64_t least_bytes = agent->max_peers * HEFT_INBOX_WINDOW_MIN_BYTES;
    uint64_t window_bytes;

    if (limit_bytes && limit_bytes < least_bytes)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "max_notification_bytes is at least %llu for max_peers %u: %u a peer",
                              (unsigned long long)least_bytes, agent->max_peers, HEFT_INBOX_WINDOW_MIN_BYTES);
    if (!limit_bytes)
        limit_bytes = least_bytes > NOTIFICATION_BYTES_DEFAULT ? least_bytes : NOTIFICATION_BYTES_DEFAULT;
    window_bytes = limit_bytes / agent->max_peers;
    agent->max_notification_bytes = limit_bytes;
    agent->notification_window_bytes =
        window_bytes < HEFT_INBOX_WINDOW_MAX_BYTES ? window_bytes : HEFT_INBOX_WINDOW_MAX_BYTES;
    return 0;
}

static int take_options(struct heft_agent *agent, const struct heft_agent_options *options,
                        struct heft_error *error)
{
    static const struct heft_token no_token;
    int rc = set_name(agent, options->name, error);

    if (rc)
        return rc;
    agent->generation = options->generation;
    if (heft_generation_is_none(agent->generation.bytes))
        heft_random_bytes(agent->generation.bytes, sizeof(agent->generation.bytes));
    agent->token = options->token;
    if (memcmp(&agent->token, &no_token, sizeof(no_token)) == 0)
        heft_random_bytes(agent->token.bytes, sizeof(agent->token.bytes));
    if (options->flags & ~(uint32_t)(HEFT_AGENT_PEER_EVENTS | HEFT_AGENT_CALLER_PROGRESS))
        return heft_error_set(error, HEFT_ERR_INVALID, "unknown agent flags 0x%x", options->flags);
    agent->flags = options->flags;
    agent->heartbeat_ms = or_default(options->heartbeat_ms, 250);
    agent->peer_timeout_ms = or_default(options->peer_timeout_ms, 10000);
    agent->max_peers = or_default(options->max_peers, 4096);
    agent->max_pending = or_default(options->max_pending, 256);
    agent->handshake_timeout_ms = or_default(options->handshake_timeout_ms, 5000);
    agent->device_processors = options->device_processors;
    agent->max_host_bytes = options->max_host_bytes ? options->max_host_bytes : HOST_BYTES_DEFAULT;
    if (agent->max_host_bytes < HOST_BYTES_MIN)
        return heft_error_set(error, HEFT_ERR_INVALID, "max_host_bytes is at least %llu",
                              (unsigned long long)HOST_BYTES_MIN);
    if (agent->peer_timeout_ms < 2 * agent->heartbeat_ms)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "peer_timeout_ms (%u) must be at least twice heartbeat_ms (%u)",
                              agent->peer_timeout_ms, agent->heartbeat_ms);
    return take_notification_limit(agent, options->max_notification_bytes, error);
}

static int start_threads(struct heft_agent *agent, uint32_t workers, struct heft_error *error)
{
    int driven = (agent->flags & HEFT_AGENT_CALLER_PROGRESS) != 0;
    int (*create)(uint32_t, struct heft_worker_pool **, struct heft_error *) =
        driven ? heft_pool_create_driven : heft_pool_create;
    int rc;

    if (!workers && driven)
        workers = 1;
    if (!workers) {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);

        workers = cores < 1 ? 1 : cores <= WORKERS_ALL_CORES ? (uint32_t)cores : WORKERS_ALL_CORES;
        if (cores * 3 / 4 > WORKERS_ALL_CORES)
            workers = (uint32_t)(cores * 3 / 4);
        if (workers > WORKERS_DEFAULT_MAX)
            workers = WORKERS_DEFAULT_MAX;
    }
    if (workers > WORKERS_MAX)
        return heft_error_set(error, HEFT_ERR_INVALID, "an agent has at most %u workers", WORKERS_MAX);
    rc = create(workers, &agent->pool, error);
    if (rc)
        return rc;
    rc = create(2, &agent->control_pool, error);
    if (rc)
        goto fail_pool;
    if (driven)
        rc = heft_progress_open(agent, error);
    if (rc)
        goto fail_control;
    agent->control = heft_pool_worker(agent->control_pool, 0);
    agent->reaper = heft_pool_worker(agent->control_pool, 1);
    agent->conn_timer.fire = heft_conn_timer_fire;
    agent->monitor_timer.fire = heft_monitor_fire;
    agent->monitor_job.run = heft_monitor_job_run;
    agent->announce_job.run = heft_sessions_announce_job;
    agent->credit_job.run = heft_sessions_credit_job;
    return 0;

fail_control:
    heft_pool_destroy(agent->control_pool);
fail_pool:
    heft_pool_destroy(agent->pool);
    return rc;
}

static struct heft_agent *agent_new(void)
{
    struct heft_agent *agent = calloc(1, sizeof(*agent));

    if (!agent)
        return NULL;
    agent->region_cache = heft_region_cache_new();
    if (!agent->region_cache) {
        free(agent);
        return NULL;
    }
    agent->process = heft_process_life;
    agent->refs = 1;
    (void)pthread_mutex_init(&agent->region_lock, NULL);
    heft_cond_init(&agent->region_cond);
    (void)pthread_mutex_init(&agent->active_lock, NULL);
    (void)pthread_mutex_init(&agent->proxy_lock, NULL);
    (void)pthread_mutex_init(&agent->peers_lock, NULL);
    (void)pthread_mutex_init(&agent->document_lock, NULL);
    (void)pthread_mutex_init(&agent->event_lock, NULL);
    heft_cond_init(&agent->note_cond);
    heft_cond_init(&agent->event_cond);
    heft_cond_init(&agent->any_cond);
    agent->event_fd = agent->progress_fd = -1;
    agent->telemetry.fd = -1;
    heft_table_init(&agent->regions);
    heft_table_init(&agent->sessions);
    return agent;
}

static void nothing(void *context)
{
    (void)context;
}

/* Every job that was queued for these two before has run when it returns. */
static void barrier(struct heft_agent *agent)
{
    heft_agent_run_on(agent->control, nothing, NULL);
    heft_agent_run_on(agent->reaper, nothing, NULL);
    heft_agent_run_on(agent->control, nothing, NULL);
}

static void stop_timers(void *context)
{
    struct heft_agent *agent = context;

    heft_timer_set(agent->control, &agent->conn_timer, 0);
    heft_timer_set(agent->control, &agent->monitor_timer, 0);
}

static void stop_threads(struct heft_agent *agent)
{
    barrier(agent);
    heft_agent_run_on(agent->control, stop_timers, agent);
    heft_progress_close(agent);
    heft_pool_destroy(agent->control_pool);
    heft_pool_destroy(agent->pool);
}

static int open_telemetry(struct heft_agent *agent, const char *folder, struct heft_error *error)
{
    const char *names[HEFT_TRANSPORT_MAX];
    uint32_t index;

    for (index = 0; index < agent->transport_count; index++)
        names[index] = agent->transports[index].ops.name;
    return heft_telemetry_open(&agent->telemetry, folder, agent->name, agent->generation.bytes, names,
                               agent->transport_count, error);
}

int heft_agent_open(const struct heft_agent_options *given, struct heft_agent **agent_out,
                    struct heft_error *error)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_agent *agent;
    int rc = heft_options_copy(&options, sizeof(options), given, error);

    if (rc)
        return rc;
    heft_process_watch();
    agent = agent_new();
    if (!agent)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an agent");
    rc = take_options(agent, &options, error);
    if (rc)
        goto fail_agent;
    rc = heft_secure_open(agent, &options, error);
    if (rc)
        goto fail_agent;
    rc = start_threads(agent, options.workers, error);
    if (rc)
        goto fail_secure;
    rc = heft_agent_open_transports(agent, options.transports, options.plugin_path, error);
    if (rc)
        goto fail_threads;
    rc = open_telemetry(agent, options.telemetry, error);
    if (rc)
        goto fail_transports;
    rc = heft_peer_new(agent, agent->name, &agent->self, error);
    if (rc)
        goto fail_transports;
    agent->self->is_self = 1;
    if (options.listen) {
        rc = heft_listeners_open(agent, options.listen, error);
        if (rc) {
            heft_error_prefix(error, rc, "agent '%s' can't listen", agent->name);
            goto fail_self;
        }
    }
    *agent_out = agent;
    return 0;

fail_self:
    heft_listeners_close(agent);
    barrier(agent);
    heft_peer_shut(agent->self);
    heft_peer_unref(agent->self);
fail_transports:
    heft_agent_close_transports(agent);
fail_threads:
    stop_threads(agent);
fail_secure:
    heft_secure_close(agent);
fail_agent:
    heft_agent_unref(agent);
    return rc;
}

static void bye_on_control(void *context)
{
    heft_sessions_bye(context);
}

static void drop_on_control(void *context)
{
    heft_sessions_drop_all(context);
}

void heft_agent_drop_readers(struct heft_agent *agent)
{
    uint64_t until_ns = heft_deadline_after_ms(HEFT_AGENT_REAP_MS);

    heft_agent_run_on(agent->control, drop_on_control, agent);
    (void)pthread_mutex_lock(&agent->region_lock);
    while (agent->reaps)
        if (heft_agent_wait(agent, &agent->region_cond, &agent->region_lock, until_ns))
            break;
    (void)pthread_mutex_unlock(&agent->region_lock);
}

/* Says goodbye to connected peers, gives those that read this process's memory by themselves a moment to
 * stop, then ends what is left. */
static void end_sessions(struct heft_agent *agent)
{
    uint64_t until_ns = heft_deadline_after_ms(HEFT_AGENT_LET_GO_MS);

    heft_agent_run_on(agent->control, bye_on_control, agent);
    (void)pthread_mutex_lock(&agent->region_lock);
    while (__atomic_load_n(&agent->sessions_now, __ATOMIC_RELAXED) || agent->reaps)
        if (heft_agent_wait(agent, &agent->region_cond, &agent->region_lock, until_ns))
            break;
    (void)pthread_mutex_unlock(&agent->region_lock);
    heft_agent_run_on(agent->control, drop_on_control, agent);
    heft_agent_run_on(agent->control, heft_tethers_drop, agent);
    barrier(agent);
}

int heft_agent_close(struct heft_agent *agent, struct heft_error *error)
{
    uint64_t busy;

    if (!agent)
        return 0;
    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    if (heft_agent_on_worker(agent))
        return heft_error_set(error, HEFT_ERR_STATE, "an agent can't be closed from one of its callbacks");
    busy = __atomic_load_n(&agent->busy, __ATOMIC_ACQUIRE);
    if (busy)
        return heft_error_set(
            error, HEFT_ERR_BUSY,
            "agent '%s' has %llu active transfers, open triggers, or peers being connected: cancel or close "
            "them and wait for their end",
            agent->name, (unsigned long long)busy);
    heft_listeners_close(agent);
    end_sessions(agent);
    while (agent->peers) {
        struct heft_peer *peer = agent->peers;

        heft_peer_shut(peer);
        heft_peer_unref(peer);
    }
    heft_peer_shut(agent->self);
    heft_peer_unref(agent->self);
    barrier(agent);
    heft_inbox_shut(agent);
    heft_regions_clear(agent);
    heft_agent_close_transports(agent);
    stop_threads(agent);
    heft_table_free(&agent->sessions);
    heft_documents_clear(agent);
    heft_telemetry_unlink(&agent->telemetry);
    heft_secure_close(agent);
    heft_regions_hooks_clear(agent);
    heft_agent_unref(agent);
    return 0;
}

/* ---- asking ---- */

const char *heft_agent_name(const struct heft_agent *agent)
{
    return agent->name;
}

struct heft_generation heft_agent_generation(const struct heft_agent *agent)
{
    return agent->generation;
}

struct heft_token heft_agent_token(const struct heft_agent *agent)
{
    return agent->token;
}

int heft_agent_addresses(const struct heft_agent *agent, char *text_out, size_t size_bytes)
{
    size_t size = strlen(agent->addresses) + 1;

    if (size > size_bytes)
        return HEFT_ERR_TOO_LARGE;
    memcpy(text_out, agent->addresses, size);
    return 0;
}
