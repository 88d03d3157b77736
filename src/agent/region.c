/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of this agent, and the pins that keep regions (own and peers') in place. */
#include "agent/agent_internal.h"
#include "agent/metadata.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REGION_FLAGS_ALL (HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE)

void heft_region_ref(struct heft_region *region)
{
    (void)__atomic_add_fetch(&region->refs, 1, __ATOMIC_RELAXED);
}

void heft_region_unref(struct heft_region *region)
{
    if (__atomic_sub_fetch(&region->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    if (region->owned_fd >= 0)
        (void)close(region->owned_fd);
    free(region->url);
    free(region->version);
    free(region->cached);
    free(region);
}

int heft_range_check(uint64_t region_bytes, uint64_t offset, uint64_t length, uint64_t count, uint64_t stride)
{
    uint64_t end;

    if (count == 0)
        return 0;
    if (count > 1 && __builtin_mul_overflow(count - 1, stride, &end))
        return HEFT_ERR_RANGE;
    if (count == 1)
        end = 0;
    if (__builtin_add_overflow(end, offset, &end) || __builtin_add_overflow(end, length, &end) ||
        end > region_bytes)
        return HEFT_ERR_RANGE;
    return 0;
}

struct heft_region *heft_region_find(const struct heft_table *table, uint64_t id)
{
    struct heft_table_node *node = heft_table_find(table, id);

    return node ? HEFT_CONTAINER_OF(node, struct heft_region, node) : NULL;
}

void heft_region_unpin_locked(struct heft_region *region)
{
    HEFT_ASSERT(region->pins > 0);
    region->pins--;
    if (region->pins || !region->peer || region->state == HEFT_REGION_LIVE || region->peer->free_queued)
        return;
    /* A peer waits for this: it withdrew the region, and now nothing reads it any more. */
    region->peer->free_queued = 1;
    heft_peer_ref(region->peer);
    heft_worker_submit(region->agent->control, &region->peer->free_job);
}

/* ---- for transports ---- */

int heft_host_pin_region(void *agent_pointer, uint64_t region_id, uint64_t offset_bytes,
                         uint64_t length_bytes, uint32_t need, struct heft_transport_region **region_out)
{
    struct heft_agent *agent = agent_pointer;
    struct heft_region *region;
    int rc = 0;

    (void)pthread_mutex_lock(&agent->region_lock);
    region = heft_region_find(&agent->regions, region_id);
    if (!region)
        rc = HEFT_ERR_STALE;
    else if ((region->t.flags & need) != need)
        rc = HEFT_ERR_DENIED;
    else
        rc = heft_range_check(region->t.length_bytes, offset_bytes, length_bytes, 1, 0);
    if (!rc) {
        region->pins++;
        *region_out = &region->t;
    }
    (void)pthread_mutex_unlock(&agent->region_lock);
    return rc;
}

void heft_host_unpin_region(void *agent_pointer, struct heft_transport_region *transport_region)
{
    struct heft_agent *agent = agent_pointer;

    (void)pthread_mutex_lock(&agent->region_lock);
    heft_region_unpin_locked(HEFT_CONTAINER_OF(transport_region, struct heft_region, t));
    (void)pthread_mutex_unlock(&agent->region_lock);
}

void heft_host_count_served(void *agent_pointer, uint64_t bytes)
{
    struct heft_agent *agent = agent_pointer;

    HEFT_COUNT(agent, bytes_served, bytes);
}

void heft_host_count_retries(void *agent_pointer, uint32_t index, uint64_t count)
{
    struct heft_agent *agent = agent_pointer;

    if (agent->telemetry.routes && index < agent->telemetry.route_count)
        heft_stats_add(&agent->telemetry.routes[index].retries, count);
}

/* ---- registering ---- */

static int open_file(const struct heft_region_options *options, struct heft_region *region,
                     struct heft_error *error)
{
    struct stat status;
    int access;

    if (options->fd >= 0) {
        region->owned_fd = fcntl(options->fd, F_DUPFD_CLOEXEC, 0);
        if (options->path) /* the descriptor decides; the path is its name in messages */
            (void)snprintf(region->label, sizeof(region->label), "%s", options->path);
        else
            (void)snprintf(region->label, sizeof(region->label), "descriptor %d", options->fd);
    } else {
        /* Without O_NONBLOCK a FIFO would wait here for a writer. */
        access = options->flags & HEFT_REGION_REMOTE_WRITE ? O_RDWR : O_RDONLY;
        region->owned_fd = open(options->path, access | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        (void)snprintf(region->label, sizeof(region->label), "%s", options->path);
    }
    if (region->owned_fd < 0)
        return heft_error_set_errno(error, errno, "registering the file %s", region->label);
    if (fstat(region->owned_fd, &status))
        return heft_error_set_errno(error, errno, "asking for the size of %s", region->label);
    if (!S_ISREG(status.st_mode))
        return heft_error_set(error, HEFT_ERR_NOT_A_FILE, "%s is not a regular file", region->label);
    region->t.fd = region->owned_fd;
    region->t.length_bytes = options->length_bytes ? options->length_bytes : (uint64_t)status.st_size;
    access = fcntl(region->owned_fd, F_GETFL) & O_ACCMODE;
    if (access == O_RDONLY && region->t.length_bytes > (uint64_t)status.st_size)
        return heft_error_set(error, HEFT_ERR_TRUNCATED, "%s has %llu bytes, %llu were to be registered",
                              region->label, (unsigned long long)status.st_size,
                              (unsigned long long)region->t.length_bytes);
    return 0;
}

static int take_memory(const struct heft_region_options *options, struct heft_region *region,
                       struct heft_error *error)
{
    struct heft_memory_info info;

    region->t.fd = -1;
    region->t.address = options->address;
    region->t.length_bytes = options->length_bytes;
    if (options->memory) {
        heft_memory_get_info(options->memory, &info);
        if (options->address && options->address != info.address)
            return heft_error_set(error, HEFT_ERR_INVALID,
                                  "a region on a heft_memory begins where that memory begins");
        if (options->length_bytes > info.length_bytes)
            return heft_error_set(
                error, HEFT_ERR_RANGE, "the memory has %llu bytes, %llu were to be registered",
                (unsigned long long)info.length_bytes, (unsigned long long)options->length_bytes);
        region->memory = options->memory;
        region->t.address = info.address;
        region->t.fd = info.fd;
        if (!options->length_bytes)
            region->t.length_bytes = info.length_bytes;
    }
    if (!region->t.address && region->t.length_bytes)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "a region of memory needs an address or a heft_memory");
    if ((uintptr_t)region->t.address + region->t.length_bytes < (uintptr_t)region->t.address)
        return heft_error_set(error, HEFT_ERR_RANGE, "the region wraps around the address space");
    return 0;
}

/* "https://user:secret@host/path?token=..." without what is in it to be kept secret; cut when it is long. */
static void label_url(const char *url, char *label, size_t size)
{
    const char *slashes = strstr(url, "://"), *host = slashes ? slashes + 3 : url;
    int web = strncmp(url, "s3:", 3) != 0;
    size_t authority = strcspn(host, web ? "/?#" : "/"), at;

    for (at = authority; web && at > 0; at--)
        if (host[at - 1] == '@') {
            host += at;
            break;
        }
    (void)snprintf(label, size, "%.*s%.*s", slashes ? (int)(slashes + 3 - url) : 0, url,
                   (int)strcspn(host, web ? "?#" : ""), host);
}

static int take_object(const struct heft_region_options *options, struct heft_region *region,
                       struct heft_error *error)
{
    region->t.fd = -1;
    region->t.length_bytes = options->length_bytes;
    region->url = strdup(options->path);
    region->version = options->version ? strdup(options->version) : NULL;
    if (!region->url || (options->version && !region->version))
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a region");
    label_url(region->url, region->label, sizeof(region->label));
    region->t.url = region->url;
    region->t.version = region->version;
    return 0;
}

static void remove_from_transports(struct heft_region *region)
{
    struct heft_agent *agent = region->agent;
    uint32_t index;

    for (index = 0; index < agent->transport_count; index++)
        if (agent->transports[index].transport)
            agent->transports[index].ops.region_remove(agent->transports[index].transport, &region->t);
}

/*
 * A transport that can't use the region does no harm, but for GPU memory and objects, which one transport
 * alone can use: its failure is the caller's.
 */
static int add_to_transports(struct heft_region *region, struct heft_error *error)
{
    struct heft_agent *agent = region->agent;
    const char *only = region->t.space == HEFT_SPACE_CUDA     ? "cuda"
                       : region->t.space == HEFT_SPACE_OBJECT ? "object"
                                                              : NULL;
    int rc = only ? HEFT_ERR_UNSUPPORTED : HEFT_OK, decided = 0;
    uint32_t index;

    for (index = 0; index < agent->transport_count; index++) {
        struct heft_agent_transport *entry = &agent->transports[index];
        int decides = only && strcmp(entry->ops.name, only) == 0;
        struct heft_error why = entry->failure;
        int failed = entry->transport ? entry->ops.region_add(entry->transport, &region->t, &why) : why.code;

        if (decides) {
            rc = failed;
            decided = 1;
            if (failed && error)
                *error = why;
        } else if (failed && entry->transport) {
            heft_log(HEFT_LOG_INFO, "agent %s: transport %s can't use region %llu: %s", agent->name,
                     entry->ops.name, (unsigned long long)region->t.id, why.text);
        }
    }
    if (rc && !decided)
        (void)heft_error_set(error, rc, "%s the %s transport, which this agent was told not to use",
                             region->t.space == HEFT_SPACE_CUDA ? "GPU memory needs" : "objects need", only);
    return rc;
}

static int check_options(const struct heft_region_options *options, struct heft_error *error)
{
    if (options->flags & ~(uint32_t)REGION_FLAGS_ALL)
        return heft_error_set(error, HEFT_ERR_INVALID, "unknown region flags 0x%x", options->flags);
    if (options->space == HEFT_SPACE_HOST)
        return 0;
    if (options->space == HEFT_SPACE_CUDA && options->memory)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "a region of GPU memory is named by its address alone");
    if (options->space == HEFT_SPACE_CUDA)
        return 0;
    if (options->space == HEFT_SPACE_OBJECT) {
        if (!options->path || !options->path[0])
            return heft_error_set(error, HEFT_ERR_INVALID, "an object region needs a URL");
        if (options->flags)
            return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                                  "an object can't be offered to peers: they reach it themselves");
        return 0;
    }
    if (options->space != HEFT_SPACE_FILE)
        return heft_error_set(error, HEFT_ERR_UNSUPPORTED, "regions of space '%s' can't be registered yet",
                              heft_space_name(options->space));
    if (options->fd < 0 && !options->path)
        return heft_error_set(error, HEFT_ERR_INVALID, "a file region needs a descriptor or a path");
    return 0;
}

int heft_region_register(struct heft_agent *agent, const struct heft_region_options *given,
                         struct heft_region **region_out, struct heft_error *error)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    uint64_t start_ns = heft_now_ns();
    struct heft_region *region;
    int rc, announced;

    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    rc = heft_options_copy(&options, sizeof(options), given, error);
    if (!rc)
        rc = check_options(&options, error);
    if (rc)
        return rc;
    region = calloc(1, sizeof(*region));
    if (!region)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a region");
    region->agent = agent;
    region->refs = 1;
    region->owned_fd = -1;
    region->state = HEFT_REGION_LIVE;
    region->t.space = options.space;
    region->t.flags = options.flags;
    region->t.label = region->label;
    rc = options.space == HEFT_SPACE_FILE     ? open_file(&options, region, error)
         : options.space == HEFT_SPACE_OBJECT ? take_object(&options, region, error)
                                              : take_memory(&options, region, error);
    if (rc)
        goto fail_region;
    (void)pthread_mutex_lock(&agent->region_lock);
    region->t.id = ++agent->next_region_id;
    (void)pthread_mutex_unlock(&agent->region_lock);
    rc = add_to_transports(region, error);
    if (rc)
        goto fail_added;

    (void)pthread_mutex_lock(&agent->region_lock);
    if (heft_table_reserve(&agent->regions)) {
        (void)pthread_mutex_unlock(&agent->region_lock);
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a region");
        goto fail_added;
    }
    region->node.id = region->t.id;
    heft_table_insert(&agent->regions, &region->node);
    region->sequence = ++agent->region_epoch;
    region->prev = agent->region_last;
    if (region->prev)
        region->prev->next = region;
    else
        agent->region_first = region;
    agent->region_last = region;
    announced = (options.flags & REGION_FLAGS_ALL) && !agent->announce_queued;
    agent->announce_queued |= announced;
    HEFT_GAUGE(agent, regions, agent->regions.count);
    if (options.flags & REGION_FLAGS_ALL)
        heft_regions_changed(agent);
    (void)pthread_mutex_unlock(&agent->region_lock);
    HEFT_COUNT(agent, registrations, 1);
    HEFT_COUNT(agent, region_bytes, region->t.length_bytes);
    heft_stats_record(&agent->telemetry.head->register_ns, heft_now_ns() - start_ns);
    if (announced)
        heft_worker_submit(agent->control, &agent->announce_job);
    *region_out = region;
    return 0;

fail_added:
    remove_from_transports(region);
fail_region:
    heft_region_unref(region);
    HEFT_COUNT(agent, registrations_failed, 1);
    return rc;
}

/* ---- deregistering ---- */

struct withdraw_call {
    struct heft_agent *agent;
    struct heft_region *region;
};

static void withdraw_on_control(void *context)
{
    struct withdraw_call *call = context;

    heft_sessions_withdraw(call->agent, call->region);
}

static void unlink_region(struct heft_region *region)
{
    struct heft_agent *agent = region->agent;

    if (region->prev)
        region->prev->next = region->next;
    else
        agent->region_first = region->next;
    if (region->next)
        region->next->prev = region->prev;
    else
        agent->region_last = region->prev;
}

int heft_region_deregister(struct heft_region *region, struct heft_error *error)
{
    struct heft_agent *agent = region->agent;
    struct withdraw_call call = {agent, region};
    uint64_t until_ns = heft_deadline_after_ms(HEFT_AGENT_LET_GO_MS);
    uint64_t id = region->t.id;
    uint32_t pins, holders;

    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    if (region->cached)
        return heft_error_set(error, HEFT_ERR_STATE,
                              "region %llu was acquired: heft_region_release gives it back",
                              (unsigned long long)id);
    (void)pthread_mutex_lock(&agent->region_lock);
    pins = region->pins;
    if (pins) {
        (void)pthread_mutex_unlock(&agent->region_lock);
        return heft_error_set(error, HEFT_ERR_BUSY, "region %llu is in use by %u transfers or served reads",
                              (unsigned long long)id, pins);
    }
    if (region->state == HEFT_REGION_LIVE) {
        region->state = HEFT_REGION_WITHDRAWN;
        heft_table_remove(&agent->regions, &region->node);
        HEFT_GAUGE(agent, regions, agent->regions.count);
        agent->region_epoch++;
        if (region->t.flags & REGION_FLAGS_ALL) {
            heft_departed_add(agent, agent->region_epoch, id);
            heft_regions_changed(agent);
            (void)pthread_mutex_unlock(&agent->region_lock);
            heft_agent_run_on(agent->control, withdraw_on_control, &call);
            (void)pthread_mutex_lock(&agent->region_lock);
        }
    }
    while (region->holders && heft_agent_wait(agent, &agent->region_cond, &agent->region_lock, until_ns) == 0)
        ;
    holders = region->holders;
    if (!holders) {
        region->state = HEFT_REGION_GONE;
        unlink_region(region);
        HEFT_COUNT(agent, deregistrations, 1);
        HEFT_COUNT(agent, region_bytes, 0 - region->t.length_bytes);
    }
    (void)pthread_mutex_unlock(&agent->region_lock);
    if (holders)
        return heft_error_set(error, HEFT_ERR_BUSY,
                              "region %llu is still in use by %u peers of this host; it takes no new "
                              "ones, deregister it again",
                              (unsigned long long)id, holders);
    remove_from_transports(region);
    heft_region_unref(region);
    return 0;
}

/* ---- many at once ---- */

int heft_region_register_array(struct heft_agent *agent, const struct heft_region_options *options,
                               size_t count, struct heft_region **regions_out, struct heft_error *error)
{
    struct heft_region **regions = calloc(count ? count : 1, sizeof(*regions));
    size_t done = 0;
    int rc = 0;

    if (!regions)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for %zu regions", count);
    /* Sessions are told by one job of the control worker, which takes all that have come until it runs. */
    while (done < count && !rc) {
        rc = heft_region_register(agent, &options[done], &regions[done], error);
        done += rc == 0;
    }
    if (rc) {
        (void)heft_error_prefix(error, rc, "%zu of %zu", done, count);
        while (done-- > 0)
            (void)heft_region_deregister(regions[done], NULL); /* no peer can have begun to use it */
    } else if (count) {
        memcpy(regions_out, regions, count * sizeof(*regions));
    }
    free(regions);
    return rc;
}

int heft_region_deregister_array(struct heft_region **regions, size_t count, struct heft_error *error)
{
    struct heft_error one = HEFT_ERROR_INIT;
    int first = 0, rc;
    size_t index;

    for (index = 0; index < count; index++) {
        if (!regions[index])
            continue;
        rc = heft_region_deregister(regions[index], &one);
        if (!rc)
            regions[index] = NULL;
        if (rc && !first && error)
            *error = one;
        first = first ? first : rc;
    }
    return first;
}

void heft_regions_clear(struct heft_agent *agent)
{
    struct heft_region *region;

    while ((region = agent->region_first) != NULL) {
        HEFT_ASSERT(region->pins == 0);
        unlink_region(region);
        if (region->state == HEFT_REGION_LIVE)
            heft_table_remove(&agent->regions, &region->node);
        region->state = HEFT_REGION_GONE;
        remove_from_transports(region);
        heft_region_unref(region);
    }
    heft_table_free(&agent->regions);
}

uint64_t heft_region_id(const struct heft_region *region)
{
    return region->t.id;
}

uint64_t heft_region_length_bytes(const struct heft_region *region)
{
    return region->t.length_bytes;
}
