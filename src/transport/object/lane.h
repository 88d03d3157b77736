/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport's insides: tasks (operations), ranges in flight, lanes (one a worker). Locks: the transport's
 * one lock guards queues and counts and is never held during I/O or a callback; what a lane has in flight is
 * its worker's alone.
 */
#ifndef HEFT_TRANSPORT_OBJECT_LANE_H
#define HEFT_TRANSPORT_OBJECT_LANE_H

#include "transport/object/object.h"
#include "transport/object/parts.h"
#include "transport/tasks.h"
#include "transport/worker.h"

#include <pthread.h>

#define HEFT_OBJECT_MAX_LANES 8u
#define HEFT_OBJECT_FIRST_CONNECTIONS 16u
#define HEFT_OBJECT_SERVERS 16u

struct heft_object_lane;

struct heft_object_task {
    struct heft_task common;
    struct heft_object_parts parts;
    uint64_t part_bytes;
    uint32_t server; /* of its first move */
};

/* One range on its way, with its connection; made once and used again. */
struct heft_object_flight {
    struct heft_object_lane *lane;
    struct heft_object_task *task;
    struct heft_object_part part;
    struct heft_object_exchange exchange;
    int has_handle, in_multi;
    uint32_t attempt, moves; /* retries without progress; regions learned */
    uint32_t hedges;         /* asked again because it lagged */
    uint64_t begun_at;       /* part.position when the attempt began */
    uint64_t begun_ns;
    struct heft_timer pause; /* before a retry; in flight: until a look at its rate */
    struct heft_object_flight *prev, *next;
};

/* What ranges are asked of: all of one authority ("bucket" of s3://bucket/key). */
struct heft_object_server {
    uint64_t digest; /* of the address up to there */
    uint32_t active; /* flights */
};

struct heft_object_lane {
    struct heft_transport *transport;
    struct heft_worker *worker;
    struct heft_job job;
    int job_queued;                      /* under the lock, as the next two */
    struct heft_object_flight *incoming; /* given to this lane, not begun */
    uint32_t load;                       /* flights that are its */
    CURLM *multi;                        /* the worker's, as all that follows; made at the first flight */
    struct heft_timer timer;
    struct heft_object_flight *flying;
    struct heft_object_socket *sockets;
};

struct heft_transport {
    struct heft_transport_host host;
    struct heft_object_limits limits;
    struct heft_tasks tasks;     /* its lock guards flights and jobs too; quiet: also when a job went idle */
    pthread_mutex_t stores_lock; /* held while identity services are asked; guards the next */
    struct heft_object_stores stores;
    struct heft_object_flight *free_flights;
    /* Entries stay; those beyond the last share it. */
    struct heft_object_server servers[HEFT_OBJECT_SERVERS];
    uint32_t server_count;
    uint32_t active;    /* flights */
    uint32_t limit;     /* flights that each server may have now */
    uint32_t busy_jobs; /* lane jobs queued or running */
    int closing;
    /* Growth: the rate of the window before, and what this one has so far. */
    uint64_t window_start_ns, window_bytes, last_rate;
    uint32_t window_parts;
    uint64_t typical_rate;  /* bytes a second of the ranges that arrived; atomic */
    uint64_t calm_until_ns; /* the service asked for less: no growth before */
    uint32_t lane_count;
    struct heft_object_lane *lanes;
};

struct heft_endpoint {
    struct heft_transport *transport;
    struct heft_task_owner tasks;
};

/* lane.c: without the lock. */
void heft_object_lane_init(struct heft_transport *transport, uint32_t index);
/* Looks at `incoming`, ended tasks and closing soon, on the lane's worker. */
void heft_object_lane_kick(struct heft_object_lane *lane);

/* object.c */
/* The flight is over: its task counts it, and what waits may begin. It is the free list's afterwards. */
void heft_object_flight_end(struct heft_object_flight *flight, int status, const struct heft_error *error);
/* The service asks for less. */
void heft_object_slow_down(struct heft_transport *transport);

#endif
