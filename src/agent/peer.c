/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that this agent connected: their life, their death, their documents. */
#include "agent/agent_internal.h"
#include "agent/connect.h"
#include "agent/ended.h"
#include "agent/event.h"
#include "agent/outbox.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECT_TIMEOUT_MS 5000
#define DIAL_TIMEOUT_MS 5000

struct heft_doc_read {
    struct heft_doc_read *next;
    uint64_t request_id;
    uint64_t limit_bytes;
    uint8_t *data;
    uint64_t total_bytes, have_bytes;
    int begun, done;
    struct heft_error error;
};

const char *heft_peer_text(const struct heft_peer *peer, char *text_out, size_t size_bytes)
{
    char generation[HEFT_GENERATION_TEXT_BYTES];

    if (peer->is_self)
        (void)snprintf(text_out, size_bytes, "this agent");
    else
        (void)snprintf(text_out, size_bytes, "peer '%s' (generation %s)", peer->name,
                       heft_generation_text(peer->generation.bytes, generation));
    return text_out;
}

/* ---- life ---- */

int heft_peer_new(struct heft_agent *agent, const char *name, struct heft_peer **peer_out,
                  struct heft_error *error)
{
    struct heft_peer *peer = calloc(1, sizeof(*peer));
    uint32_t index;

    if (!peer)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a peer");
    peer->agent = agent;
    peer->refs = 1;
    peer->held_fd = -1;
    (void)snprintf(peer->name, sizeof(peer->name), "%s", name);
    (void)pthread_mutex_init(&peer->connect_lock, NULL);
    (void)pthread_mutex_init(&peer->map_lock, NULL);
    (void)pthread_mutex_init(&peer->lock, NULL);
    heft_cond_init(&peer->cond);
    heft_table_init(&peer->regions);
    peer->outbox_job.run = heft_outbox_job;
    for (index = 0; index < HEFT_TRANSPORT_MAX; index++) {
        peer->slots[index].peer = peer;
        peer->slots[index].index = index;
    }
    *peer_out = peer;
    return 0;
}

void heft_peer_ref(struct heft_peer *peer)
{
    (void)__atomic_add_fetch(&peer->refs, 1, __ATOMIC_RELAXED);
}

void heft_peer_unref(struct heft_peer *peer)
{
    if (__atomic_sub_fetch(&peer->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    (void)pthread_mutex_destroy(&peer->connect_lock);
    (void)pthread_mutex_destroy(&peer->map_lock);
    (void)pthread_mutex_destroy(&peer->lock);
    (void)pthread_cond_destroy(&peer->cond);
    heft_table_free(&peer->regions);
    if (peer->held_fd >= 0)
        heft_conn_close_fd(peer->held_fd);
    heft_ring_close(&peer->ring);
    memset(peer->secret, 0, sizeof(peer->secret));
    free(peer->addresses);
    free(peer);
}

/* On the reaper: every transport ends what it does with the dead peer. */
static void lost_job(struct heft_job *job, struct heft_worker *worker)
{
    struct heft_peer *peer = HEFT_CONTAINER_OF(job, struct heft_peer, lost_job);
    struct heft_agent *agent = peer->agent;
    uint32_t index;
    int queue_free;

    (void)worker;
    for (index = 0; index < agent->transport_count; index++) {
        struct heft_slot *slot = &peer->slots[index];
        struct heft_endpoint *endpoint = heft_slot_hold(slot);

        if (!endpoint)
            continue;
        agent->transports[index].ops.fail(endpoint, peer->status, &peer->error);
        heft_slot_release(slot);
    }
    (void)pthread_mutex_lock(&agent->region_lock);
    queue_free = !peer->free_queued;
    peer->free_queued = 1;
    (void)pthread_mutex_unlock(&agent->region_lock);
    if (queue_free)
        heft_worker_submit(agent->control, &peer->free_job); /* keeps this job's reference */
    else
        heft_peer_unref(peer);
}

/* Once; on the control worker. */
static void peer_lost(struct heft_peer *peer, int code, const char *why)
{
    char who[HEFT_PEER_TEXT_BYTES];
    int first;

    (void)pthread_mutex_lock(&peer->lock);
    first = peer->status == 0 && !peer->closing;
    if (first) {
        (void)heft_error_set(&peer->error, code, "%s: %s", heft_peer_text(peer, who, sizeof(who)), why);
        heft_ended_add(peer);
        __atomic_store_n(&peer->status, code, __ATOMIC_RELEASE);
        __atomic_store_n(&peer->over, 1, __ATOMIC_RELEASE);
        heft_doc_fail_all(peer);
        (void)pthread_cond_broadcast(&peer->cond);
    }
    (void)pthread_mutex_unlock(&peer->lock);
    if (!first)
        return;
    heft_outbox_fail(peer);
    heft_events_peer_ended(peer->agent, peer->name, peer->generation.bytes, 0, code, &peer->error);
    HEFT_COUNT(peer->agent, peers_lost, 1);
    heft_log(HEFT_LOG_WARN, "agent %s: lost %s", peer->agent->name, peer->error.text);
    heft_peer_ref(peer);
    peer->lost_job.run = lost_job;
    heft_worker_submit(peer->agent->reaper, &peer->lost_job);
}

static void peer_closed(struct heft_conn *conn, int code, const char *text)
{
    struct heft_peer *peer = HEFT_CONTAINER_OF(conn, struct heft_peer, conn);

    peer->conn_live = 0;
    /* The peer takes the end of the connection for the end of all uses of its memory. */
    (void)pthread_mutex_lock(&peer->lock);
    if (peer->active)
        peer->held_fd = conn->watch.fd;
    (void)pthread_mutex_unlock(&peer->lock);
    if (peer->held_fd < 0 && conn->watch.fd >= 0)
        heft_conn_close_fd(conn->watch.fd);
    /* Whatever broke it, a peer that can't be heard is lost; only silence has a code of its own. */
    peer_lost(peer, code == HEFT_ERR_STALLED || code == HEFT_ERR_PROTOCOL ? code : HEFT_ERR_PEER_LOST, text);
}

static void on_bye(struct heft_peer *peer, const struct heft_frame *frame, const uint8_t *payload)
{
    struct heft_wire_refuse bye;
    char text[HEFT_WIRE_TEXT_MAX_BYTES + 64];

    if (heft_wire_get_refuse(payload, frame->payload_bytes, &bye))
        (void)snprintf(text, sizeof(text), "it said goodbye");
    else
        (void)snprintf(text, sizeof(text), "it said goodbye: %.*s", (int)bye.text.size, bye.text.data);
    peer_lost(peer, HEFT_ERR_PEER_LOST, text);
    /* The peer waits for the end of this connection before it takes its memory back: the connection stays
     * until nothing here reads that memory any more (heft_remote_free_job). */
    peer->conn_ending = 1;
    peer->conn.state = HEFT_CONN_LINGER;
    peer->conn.deadline_ns = heft_deadline_after_ms(2 * HEFT_AGENT_LET_GO_MS);
}

static void peer_frame(struct heft_conn *conn, const struct heft_frame *frame, const uint8_t *payload)
{
    struct heft_peer *peer = HEFT_CONTAINER_OF(conn, struct heft_peer, conn);
    struct heft_wire_refuse refuse;
    char text[80];

    switch (frame->type) {
    case HEFT_FRAME_REGIONS:
        heft_remote_regions(peer, frame, payload);
        break;
    case HEFT_FRAME_REGION_GONE:
        heft_remote_gone(peer, frame, payload);
        break;
    case HEFT_FRAME_DOC:
        heft_doc_frame(peer, frame, payload);
        break;
    case HEFT_FRAME_CREDIT:
        heft_outbox_credit(peer, frame, payload);
        break;
    case HEFT_FRAME_RING:
        heft_outbox_ring(peer, frame, payload);
        break;
    case HEFT_FRAME_WAKE:
        heft_outbox_wake(peer, frame, payload);
        break;
    case HEFT_FRAME_REFUSE:
        if (frame->id) {
            heft_doc_frame(peer, frame, payload);
        } else if (!heft_wire_get_refuse(payload, frame->payload_bytes, &refuse)) {
            (void)snprintf(text, sizeof(text), "it refused: %.*s",
                           (int)(refuse.text.size < 60 ? refuse.text.size : 60), refuse.text.data);
            heft_conn_fail(conn, HEFT_ERR_PROTOCOL, text);
        }
        break;
    case HEFT_FRAME_BYE:
        on_bye(peer, frame, payload);
        break;
    default:
        (void)snprintf(text, sizeof(text), "a %s frame is not for this side",
                       heft_frame_type_name(frame->type));
        heft_conn_refuse(conn, frame->id, HEFT_ERR_UNSUPPORTED, text);
    }
}

static void peer_drained(struct heft_conn *conn)
{
    heft_outbox_pump(HEFT_CONTAINER_OF(conn, struct heft_peer, conn));
}

static const struct heft_conn_ops peer_ops = {peer_frame, peer_closed, peer_drained};

/* ---- connecting ---- */

struct start_call {
    struct heft_peer *peer;
    int fd, is_unix, rc;
    struct heft_tls *tls;
    struct heft_error *error;
};

static void start_on_control(void *context)
{
    struct start_call *call = context;
    struct heft_peer *peer = call->peer;

    call->rc = heft_conn_start(&peer->conn, peer->agent, &peer_ops, call->fd, call->is_unix, HEFT_CONN_LIVE,
                               call->error);
    peer->conn_live = call->rc == 0;
    if (call->rc)
        return;
    if (call->tls)
        heft_conn_secure(&peer->conn, call->tls, 1);
    /* the session may hold bytes that came with the end of the handshake */
    if (heft_tls_pending(call->tls))
        heft_conn_wake(&peer->conn);
    peer->conn.takes_fds = call->is_unix;
    peer->conn.keeps_fd = 1;
}

static void end_on_control(void *context)
{
    struct heft_peer *peer = context;

    if (!peer->conn_live)
        return;
    heft_conn_enter(&peer->conn);
    if (peer->conn.state == HEFT_CONN_LIVE)
        heft_conn_last_word(&peer->conn, HEFT_FRAME_BYE, HEFT_ERR_CANCELED, "closed by the peer");
    heft_conn_fail(&peer->conn, HEFT_OK, "closed here");
    heft_conn_leave(&peer->conn);
}

static int check_options(const struct heft_agent *agent, const struct heft_peer_options *options,
                         struct heft_error *error)
{
    if (heft_agent_on_worker(agent))
        return heft_error_set(error, HEFT_ERR_STATE, "a peer can't be connected from a callback: it blocks");
    if (!options->addresses)
        return heft_error_set(error, HEFT_ERR_INVALID, "no address to connect to");
    if (options->name && strnlen(options->name, HEFT_NAME_MAX_BYTES + 1) > HEFT_NAME_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_INVALID, "an agent's name has at most %d bytes",
                              HEFT_NAME_MAX_BYTES);
    if (!heft_generation_is_none(options->generation.bytes) &&
        memcmp(options->generation.bytes, agent->generation.bytes, HEFT_GENERATION_BYTES) == 0)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "that is this agent itself: both ends have the same "
                              "generation");
    return 0;
}

static void fill_peer(struct heft_peer *peer, const struct heft_peer_options *options,
                      const struct heft_connect_result *result)
{
    uint32_t index;

    memcpy(peer->generation.bytes, result->handshake.challenge.generation, HEFT_GENERATION_BYTES);
    peer->session = result->session;
    heft_handshake_proof(&result->handshake, options->token.bytes, HEFT_PROOF_SESSION, result->session,
                         peer->secret);
    for (index = 0; index < HEFT_TRANSPORT_MAX; index++)
        peer->slots[index].view = (struct heft_transport_peer){.name = peer->name,
                                                               .same_host = result->same_host,
                                                               .control_is_unix = result->is_unix,
                                                               .pid = result->pid,
                                                               .streams = options->streams,
                                                               .agent_peer = &peer->slots[index]};
    peer->free_job.run = heft_remote_free_job;
}

static void list_peer(struct heft_peer *peer)
{
    struct heft_agent *agent = peer->agent;

    (void)pthread_mutex_lock(&agent->peers_lock);
    peer->next = agent->peers;
    if (peer->next)
        peer->next->prev = peer;
    agent->peers = peer;
    agent->peer_count++;
    HEFT_GAUGE(agent, peers_connected, agent->peer_count);
    (void)pthread_mutex_unlock(&agent->peers_lock);
}

static void unlist_peer(struct heft_peer *peer)
{
    struct heft_agent *agent = peer->agent;

    (void)pthread_mutex_lock(&agent->peers_lock);
    if (peer->prev)
        peer->prev->next = peer->next;
    else
        agent->peers = peer->next;
    if (peer->next)
        peer->next->prev = peer->prev;
    agent->peer_count--;
    HEFT_GAUGE(agent, peers_connected, agent->peer_count);
    (void)pthread_mutex_unlock(&agent->peers_lock);
}

/* Waits on the peer's condition, in slices where somebody may cancel: 0 (look again), AGAIN once until_ns
 * passed, CANCELED. */
static int wait_peer(struct heft_peer *peer, uint64_t until_ns, const uint32_t *cancel)
{
    uint64_t slice_ns = cancel ? heft_deadline_after_ms(HEFT_CANCEL_LOOK_MS) : until_ns;
    int rc;

    if (cancel && __atomic_load_n(cancel, __ATOMIC_ACQUIRE))
        return HEFT_ERR_CANCELED;
    rc = heft_agent_wait(peer->agent, &peer->cond, &peer->lock, slice_ns < until_ns ? slice_ns : until_ns);
    return rc && slice_ns < until_ns ? 0 : rc;
}

/* The connection is up: its regions are waited for, so that the first transfer finds them. */
static int await_regions(struct heft_peer *peer, uint64_t until_ns, const uint32_t *cancel,
                         struct heft_error *error)
{
    char who[HEFT_PEER_TEXT_BYTES];
    int rc = 0;

    (void)pthread_mutex_lock(&peer->lock);
    while (!peer->regions_known && !peer->status && !rc)
        rc = wait_peer(peer, until_ns, cancel);
    if (rc == HEFT_ERR_CANCELED) {
        (void)heft_error_set(error, rc, "connecting to %s was given up",
                             heft_peer_text(peer, who, sizeof(who)));
    } else if (peer->status) {
        rc = peer->status;
        if (error)
            *error = peer->error;
    } else if (!peer->regions_known) {
        rc = heft_error_set(error, HEFT_ERR_DEADLINE, "%s did not tell its regions in time",
                            heft_peer_text(peer, who, sizeof(who)));
    } else {
        rc = 0;
    }
    (void)pthread_mutex_unlock(&peer->lock);
    return rc;
}

int heft_peer_connect(struct heft_agent *agent, const struct heft_peer_options *given,
                      struct heft_peer **peer_out, struct heft_error *error)
{
    return heft_peer_connect_or_cancel(agent, given, NULL, peer_out, error);
}

static int connect_peer(struct heft_agent *agent, const struct heft_peer_options *given,
                        const uint32_t *cancel, struct heft_peer **peer_out, struct heft_error *error)
{
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;
    struct heft_connect_request request = {.agent = agent, .purpose = HEFT_WIRE_CONTROL, .transport = ""};
    struct heft_connect_result result;
    struct start_call start = {.error = error};
    struct heft_peer *peer;
    int rc = heft_options_copy(&options, sizeof(options), given, error);

    if (!rc)
        rc = check_options(agent, &options, error);
    if (rc)
        return rc;
    request.addresses = options.addresses;
    request.key = options.token.bytes;
    request.name = options.name ? options.name : "";
    request.generation = options.generation;
    request.cancel = cancel;
    request.until_ns =
        heft_deadline_after_ms(options.connect_timeout_ms ? options.connect_timeout_ms : CONNECT_TIMEOUT_MS);
    rc = heft_connect(&request, &result, error);
    if (rc)
        return rc;
    rc = heft_peer_new(agent, result.handshake.server_name, &peer, error);
    if (rc)
        goto fail_fd;
    fill_peer(peer, &options, &result);
    peer->addresses = strdup(options.addresses);
    if (!peer->addresses) {
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a peer");
        goto fail_peer;
    }
    start.peer = peer;
    start.fd = result.fd;
    start.is_unix = result.is_unix;
    start.tls = result.tls;
    heft_agent_run_on(agent->control, start_on_control, &start);
    rc = start.rc;
    if (rc)
        goto fail_peer;
    result.tls = NULL; /* the connection's now */
    list_peer(peer);
    rc = await_regions(peer, request.until_ns, cancel, error);
    if (rc) {
        heft_peer_shut(peer);
        heft_peer_unref(peer);
        return rc;
    }
    *peer_out = peer;
    return 0;

fail_peer:
    heft_peer_unref(peer);
fail_fd:
    heft_tls_free(result.tls);
    (void)close(result.fd);
    return rc;
}

int heft_peer_connect_or_cancel(struct heft_agent *agent, const struct heft_peer_options *given,
                                const uint32_t *cancel, struct heft_peer **peer_out, struct heft_error *error)
{
    uint64_t start_ns = heft_now_ns();
    int rc;

    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    /* The agent must outlive the call: until then it answers BUSY to who closes it. */
    (void)__atomic_add_fetch(&agent->busy, 1, __ATOMIC_ACQ_REL);
    rc = connect_peer(agent, given, cancel, peer_out, error);
    if (rc) {
        HEFT_COUNT(agent, connects_failed, 1);
    } else {
        HEFT_COUNT(agent, connects, 1);
        heft_stats_record(&agent->telemetry.head->connect_ns, heft_now_ns() - start_ns);
    }
    (void)__atomic_sub_fetch(&agent->busy, 1, __ATOMIC_ACQ_REL);
    return rc;
}

/* From here on its end leaves bytes that must not arrive later (ended.h), unless it has ended already. */
static int keep_dialed(struct heft_peer *peer, struct heft_error *error)
{
    int rc = 0;

    (void)pthread_mutex_lock(&peer->lock);
    if (peer->status) {
        rc = peer->status;
        if (error)
            *error = peer->error;
    } else if (peer->closing) {
        rc = heft_error_set(error, HEFT_ERR_CANCELED, "the peer was closed");
    } else {
        peer->dialed = 1;
    }
    (void)pthread_mutex_unlock(&peer->lock);
    return rc;
}

static int dial(struct heft_slot *slot, uint8_t purpose, uint32_t timeout_ms, int *fd_out,
                struct heft_error *error)
{
    struct heft_peer *peer = slot->peer;
    struct heft_connect_request request = {
        .agent = peer->agent,
        .addresses = peer->addresses,
        .key = peer->secret,
        .purpose = purpose,
        .name = peer->name,
        .generation = peer->generation,
        .session = peer->session,
        .transport = peer->agent->transports[slot->index].ops.name,
        .tcp_first = 1,
        .until_ns = heft_deadline_after_ms(timeout_ms ? timeout_ms : DIAL_TIMEOUT_MS),
        .cancel = &peer->over};
    struct heft_connect_result result;
    int rc;

    if (heft_peer_status(peer, error))
        return peer->status;
    rc = heft_connect(&request, &result, error);
    if (rc)
        return rc;
    rc = keep_dialed(peer, error);
    if (!rc && result.tls)
        rc = heft_secure_check_transport(peer->agent, slot->index, error);
    if (!rc)
        rc = heft_secure_keep(peer->agent, result.fd, result.tls, error);
    if (rc) {
        heft_tls_free(result.tls);
        (void)close(result.fd);
        return rc;
    }
    *fd_out = result.fd;
    return 0;
}

int heft_host_dial(void *slot, uint32_t timeout_ms, int *fd_out, struct heft_error *error)
{
    return dial(slot, HEFT_WIRE_DATA, timeout_ms, fd_out, error);
}

int heft_host_redial(void *slot, uint32_t timeout_ms, int *fd_out, struct heft_error *error)
{
    int rc = dial(slot, HEFT_WIRE_REPLACE, timeout_ms, fd_out, error);

    /* a peer of before: it ends what broke when it sees that */
    return rc == HEFT_ERR_UNSUPPORTED ? dial(slot, HEFT_WIRE_DATA, timeout_ms, fd_out, error) : rc;
}

void heft_peer_end_dials(struct heft_peer *peer)
{
    __atomic_store_n(&peer->over, 1, __ATOMIC_RELEASE);
}

/* ---- closing ---- */

static void nothing(void *context)
{
    (void)context;
}

void heft_peer_shut(struct heft_peer *peer)
{
    struct heft_agent *agent = peer->agent;
    uint32_t index;

    (void)pthread_mutex_lock(&peer->lock);
    peer->closing = 1;
    heft_ended_add(peer);
    __atomic_store_n(&peer->over, 1, __ATOMIC_RELEASE);
    heft_doc_fail_all(peer);
    (void)pthread_mutex_unlock(&peer->lock);
    if (!peer->is_self) {
        heft_agent_run_on(agent->control, end_on_control, peer);
        heft_agent_run_on(agent->reaper, nothing, NULL); /* a lost_job that was queued has run */
        unlist_peer(peer);
        heft_outbox_clear(peer);
        (void)pthread_mutex_lock(&peer->lock);
        heft_ring_close(&peer->ring);
        (void)pthread_mutex_unlock(&peer->lock);
    }
    (void)pthread_mutex_lock(&peer->connect_lock);
    for (index = 0; index < agent->transport_count; index++)
        heft_slot_shut(&peer->slots[index]);
    (void)pthread_mutex_unlock(&peer->connect_lock);
    heft_remote_clear(peer);
}

int heft_peer_close(struct heft_peer *peer, struct heft_error *error)
{
    uint32_t active;

    if (!peer)
        return 0;
    if (heft_agent_forked(peer->agent))
        return heft_process_refuse(peer->agent, error);
    if (heft_agent_on_worker(peer->agent))
        return heft_error_set(error, HEFT_ERR_STATE, "a peer can't be closed from a callback");
    (void)pthread_mutex_lock(&peer->lock);
    active = peer->active;
    if (!active)
        peer->closing = 1; /* no post gets in between */
    (void)pthread_mutex_unlock(&peer->lock);
    if (active)
        return heft_error_set(error, HEFT_ERR_BUSY, "peer '%s' has %u active transfers", peer->name, active);
    heft_peer_shut(peer);
    heft_peer_unref(peer);
    return 0;
}

/* ---- asking ---- */

const char *heft_peer_name(const struct heft_peer *peer)
{
    return peer->name;
}

struct heft_generation heft_peer_generation(const struct heft_peer *peer)
{
    return peer->generation;
}

int heft_peer_status(const struct heft_peer *const_peer, struct heft_error *error)
{
    struct heft_peer *peer = (struct heft_peer *)(uintptr_t)const_peer; /* its lock is taken */
    int status = __atomic_load_n(&peer->status, __ATOMIC_ACQUIRE);

    if (heft_agent_forked(peer->agent))
        return heft_process_refuse(peer->agent, error);
    if (status && error) {
        (void)pthread_mutex_lock(&peer->lock);
        *error = peer->error;
        (void)pthread_mutex_unlock(&peer->lock);
    }
    return status;
}

/* ---- documents ---- */

static struct heft_doc_read *find_read(struct heft_peer *peer, uint64_t request_id)
{
    struct heft_doc_read *read = peer->doc_reads;

    while (read && read->request_id != request_id)
        read = read->next;
    return read;
}

static void doc_chunk(struct heft_doc_read *read, const struct heft_wire_doc *doc)
{
    if (!read->begun) {
        if (doc->total_bytes > read->limit_bytes) {
            (void)heft_error_set(&read->error, HEFT_ERR_TOO_LARGE,
                                 "the document has %llu bytes, over the limit of %llu",
                                 (unsigned long long)doc->total_bytes, (unsigned long long)read->limit_bytes);
            return;
        }
        read->begun = 1;
        read->total_bytes = doc->total_bytes;
        read->data = malloc(doc->total_bytes ? (size_t)doc->total_bytes : 1);
        if (!read->data) {
            (void)heft_error_set(&read->error, HEFT_ERR_NO_MEMORY,
                                 "out of memory for a document of %llu bytes",
                                 (unsigned long long)doc->total_bytes);
            return;
        }
    }
    if (doc->total_bytes != read->total_bytes || doc->offset_bytes != read->have_bytes ||
        (doc->chunk.size == 0 && read->total_bytes)) {
        (void)heft_error_set(&read->error, HEFT_ERR_PROTOCOL, "the document's pieces do not fit together");
        return;
    }
    if (doc->chunk.size)
        memcpy(read->data + read->have_bytes, doc->chunk.data, doc->chunk.size);
    read->have_bytes += doc->chunk.size;
    read->done = read->have_bytes == read->total_bytes;
}

void heft_doc_frame(struct heft_peer *peer, const struct heft_frame *frame, const uint8_t *payload)
{
    struct heft_wire_refuse refuse;
    struct heft_wire_doc doc;
    struct heft_doc_read *read;

    (void)pthread_mutex_lock(&peer->lock);
    read = find_read(peer, frame->id);
    if (!read || read->done || read->error.code) {
        (void)pthread_mutex_unlock(&peer->lock); /* a late answer: its reader has gone */
        return;
    }
    if (frame->type == HEFT_FRAME_REFUSE) {
        if (heft_wire_get_refuse(payload, frame->payload_bytes, &refuse))
            (void)heft_error_set(&read->error, HEFT_ERR_PROTOCOL, "a malformed refusal");
        else
            (void)heft_error_set(&read->error, refuse.code, "%.*s", (int)refuse.text.size, refuse.text.data);
    } else if (heft_wire_get_doc(payload, frame->payload_bytes, &doc)) {
        (void)heft_error_set(&read->error, HEFT_ERR_PROTOCOL, "a malformed piece of a document");
    } else {
        doc_chunk(read, &doc);
    }
    if (read->done || read->error.code)
        (void)pthread_cond_broadcast(&peer->cond);
    (void)pthread_mutex_unlock(&peer->lock);
}

void heft_doc_fail_all(struct heft_peer *peer)
{
    struct heft_doc_read *read;

    for (read = peer->doc_reads; read; read = read->next)
        if (!read->done && !read->error.code) {
            if (peer->status)
                read->error = peer->error;
            else
                (void)heft_error_set(&read->error, HEFT_ERR_CANCELED, "the peer was closed");
        }
    (void)pthread_cond_broadcast(&peer->cond);
}

struct get_call {
    struct heft_peer *peer;
    const char *name;
    uint64_t request_id, limit_bytes;
};

static void get_on_control(void *context)
{
    struct get_call *call = context;
    struct heft_buf buf;

    if (!call->peer->conn_live || call->peer->conn.state != HEFT_CONN_LIVE)
        return; /* peer_lost has answered, or will */
    heft_buf_init(&buf, HEFT_FRAME_HANDSHAKE_MAX_BYTES);
    heft_wire_put_doc_get(&buf, call->limit_bytes, call->name);
    heft_conn_send(&call->peer->conn, HEFT_FRAME_DOC_GET, call->request_id, &buf);
    heft_buf_free(&buf);
}

int heft_peer_read_document(struct heft_peer *peer, const char *name, uint64_t limit_bytes,
                            uint32_t timeout_ms, void **data_out, uint64_t *size_bytes_out,
                            struct heft_error *error)
{
    if (heft_agent_forked(peer->agent))
        return heft_process_refuse(peer->agent, error);
    return heft_peer_read_document_or_cancel(peer, name, limit_bytes, timeout_ms, NULL, data_out,
                                             size_bytes_out, error);
}

int heft_peer_read_document_or_cancel(struct heft_peer *peer, const char *name, uint64_t limit_bytes,
                                      uint32_t timeout_ms, const uint32_t *cancel, void **data_out,
                                      uint64_t *size_bytes_out, struct heft_error *error)
{
    struct heft_doc_read read = {.limit_bytes = limit_bytes}, **at;
    struct get_call call = {peer, name, 0, limit_bytes};
    uint64_t until_ns = heft_deadline_after_ms(timeout_ms ? timeout_ms : CONNECT_TIMEOUT_MS);
    char who[HEFT_PEER_TEXT_BYTES];
    int rc = 0;

    if (!name || !*name || strnlen(name, HEFT_NAME_MAX_BYTES + 1) > HEFT_NAME_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_INVALID, "a document's name has 1 to %d bytes",
                              HEFT_NAME_MAX_BYTES);
    if (heft_agent_on_worker(peer->agent))
        return heft_error_set(error, HEFT_ERR_STATE, "a document can't be read from a callback: it blocks");
    (void)pthread_mutex_lock(&peer->lock);
    if (peer->status || peer->closing) {
        if (peer->status)
            read.error = peer->error;
        else
            (void)heft_error_set(&read.error, HEFT_ERR_CANCELED, "the peer was closed");
    } else {
        call.request_id = read.request_id = ++peer->next_request_id;
        read.next = peer->doc_reads;
        peer->doc_reads = &read;
        (void)pthread_mutex_unlock(&peer->lock);
        heft_agent_run_on(peer->agent->control, get_on_control, &call);
        (void)pthread_mutex_lock(&peer->lock);
        while (!read.done && !read.error.code && !rc)
            rc = wait_peer(peer, until_ns, cancel);
        for (at = &peer->doc_reads; *at != &read; at = &(*at)->next)
            ;
        *at = read.next;
    }
    (void)pthread_mutex_unlock(&peer->lock);
    if (read.done && !read.error.code) {
        *data_out = read.data;
        *size_bytes_out = read.total_bytes;
        return 0;
    }
    free(read.data);
    if (!read.error.code && rc == HEFT_ERR_CANCELED)
        return heft_error_set(error, rc, "reading document '%s' of %s was given up", name,
                              heft_peer_text(peer, who, sizeof(who)));
    if (!read.error.code)
        return heft_error_set(error, HEFT_ERR_DEADLINE, "document '%s' of %s did not come within %u ms", name,
                              heft_peer_text(peer, who, sizeof(who)),
                              timeout_ms ? timeout_ms : CONNECT_TIMEOUT_MS);
    if (error)
        *error = read.error;
    return read.error.code;
}
