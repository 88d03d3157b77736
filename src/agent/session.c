/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The serving side of connections: the handshake, then a session that is told regions and asked for
 * documents. All of it runs on the control worker.
 */
#include "agent/agent_internal.h"
#include "agent/handshake.h"
#include "agent/inbox.h"
#include "agent/secure.h"
#include "agent/tether.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define DOC_QUEUE_BYTES ((size_t)1 << 20)

enum stage {
    STAGE_HELLO,
    STAGE_AUTH,
    STAGE_FENCE, /* waits until nothing of earlier connections arrives any more */
    STAGE_GONE,  /* ended while it waited */
    STAGE_LIVE
};

struct doc_get {
    uint64_t request_id;
    struct heft_blob *blob;
    uint64_t offset;
};

struct heft_session {
    struct heft_conn conn;
    struct heft_agent *agent;
    struct heft_table_node node;      /* live: agent->sessions */
    struct heft_session *prev, *next; /* before that: the agent's pending ones, oldest first */
    enum stage stage;
    int refused, bye;
    struct heft_handshake handshake;
    uint8_t key[HEFT_KEY_BYTES];
    uint8_t secret[HEFT_KEY_BYTES];
    uint32_t transport_index; /* of a data stream, from check_purpose on */
    uint64_t last_sequence;   /* the newest region that it was told */
    struct heft_gone *gone;
    struct doc_get gets[HEFT_AGENT_DOC_GETS_MAX];
    size_t get_count;
    struct heft_inbox *inbox; /* live: what it tells */
    struct heft_watch bell;   /* of the inbox's ring; fd -1: none */
    struct heft_job reap_job; /* its fence, later its end */
};

static struct heft_session *session_of(struct heft_conn *conn)
{
    return HEFT_CONTAINER_OF(conn, struct heft_session, conn);
}

static void session_frame(struct heft_conn *conn, const struct heft_frame *frame, const uint8_t *payload);
static void session_closed(struct heft_conn *conn, int code, const char *text);
static void session_drained(struct heft_conn *conn);

static const struct heft_conn_ops session_ops = {session_frame, session_closed, session_drained};

static struct heft_session *live_session(struct heft_conn *conn)
{
    struct heft_session *session;

    if (conn->ops != &session_ops)
        return NULL;
    session = session_of(conn);
    return session->stage == STAGE_LIVE && conn->state == HEFT_CONN_LIVE && !conn->dead ? session : NULL;
}

/* ---- pending ---- */

static void pending_remove(struct heft_session *session)
{
    struct heft_agent *agent = session->agent;

    if (session->prev)
        session->prev->next = session->next;
    else
        agent->pending_first = session->next;
    if (session->next)
        session->next->prev = session->prev;
    else
        agent->pending_last = session->prev;
    session->prev = session->next = NULL;
    agent->pending_count--;
}

static void secure_session(struct heft_session *session)
{
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_tls *tls;

    if (heft_tls_start(session->agent->secure->context, session->conn.watch.fd, 1, &tls, &error)) {
        heft_log(HEFT_LOG_WARN, "agent %s: refused a connection: %s", session->agent->name, error.text);
        heft_conn_fail(&session->conn, error.code, error.text);
        return;
    }
    heft_conn_secure(&session->conn, tls, 0);
}

void heft_session_accept(struct heft_agent *agent, int fd, int is_unix)
{
    struct heft_session *session;
    int one = 1;

    if (agent->pending_count >= agent->max_pending)
        heft_conn_fail(&agent->pending_first->conn, HEFT_ERR_TOO_MANY, "newer connections took its place");
    session = calloc(1, sizeof(*session));
    if (!session ||
        heft_conn_start(&session->conn, agent, &session_ops, fd, is_unix, HEFT_CONN_HANDSHAKE, NULL)) {
        free(session);
        (void)close(fd);
        return;
    }
    if (!is_unix)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    session->agent = agent;
    session->bell.fd = -1;
    session->stage = STAGE_HELLO;
    session->conn.payload_cap = HEFT_FRAME_HANDSHAKE_MAX_BYTES;
    session->conn.deadline_ns = heft_deadline_after_ms(agent->handshake_timeout_ms);
    session->prev = agent->pending_last;
    if (session->prev)
        session->prev->next = session;
    else
        agent->pending_first = session;
    agent->pending_last = session;
    agent->pending_count++;
    if (!is_unix && agent->secure)
        secure_session(session);
}

static void refuse(struct heft_session *session, int code, const char *text)
{
    if (!session->refused)
        HEFT_COUNT(session->agent, handshakes_refused, 1);
    session->refused = 1;
    heft_log(HEFT_LOG_INFO, "agent %s: refused a connection: %s: %s", session->agent->name,
             heft_error_name(code), text);
    heft_conn_last_word(&session->conn, HEFT_FRAME_REFUSE, code, text);
}

/* ---- handshake ---- */

/* Whether this agent is the one that the client looks for. */
static int check_identity(struct heft_session *session, const struct heft_wire_hello *hello)
{
    const struct heft_agent *agent = session->agent;
    char own[HEFT_GENERATION_TEXT_BYTES], wanted[HEFT_GENERATION_TEXT_BYTES];
    char text[HEFT_WIRE_TEXT_MAX_BYTES];

    (void)heft_generation_text(agent->generation.bytes, own);
    (void)heft_generation_text(hello->expected, wanted);
    if (memcmp(hello->generation, agent->generation.bytes, sizeof(hello->generation)) == 0) {
        refuse(session, HEFT_ERR_INVALID, "that is this agent itself: both ends have the same generation");
        return -1;
    }
    if (!heft_generation_is_none(hello->expected) &&
        memcmp(hello->expected, agent->generation.bytes, sizeof(hello->expected)) != 0) {
        (void)snprintf(text, sizeof(text), "generation %s was asked for, generation %s ('%.100s') lives here",
                       wanted, own, agent->name);
        refuse(session, HEFT_ERR_STALE, text);
        return -1;
    }
    if (hello->expected_name.size && (hello->expected_name.size != strlen(agent->name) ||
                                      memcmp(hello->expected_name.data, agent->name, strlen(agent->name)))) {
        (void)snprintf(text, sizeof(text), "'%.*s' was asked for, '%.150s' (generation %s) lives here",
                       (int)(hello->expected_name.size < 150 ? hello->expected_name.size : 150),
                       hello->expected_name.data, agent->name, own);
        refuse(session, HEFT_ERR_STALE, text);
        return -1;
    }
    return 0;
}

static int find_transport(const struct heft_agent *agent, struct heft_wire_text name, uint32_t *index_out)
{
    uint32_t index;

    for (index = 0; index < agent->transport_count; index++) {
        const char *own = agent->transports[index].ops.name;

        if (agent->transports[index].transport && strlen(own) == name.size &&
            memcmp(own, name.data, name.size) == 0) {
            *index_out = index;
            return 0;
        }
    }
    return -1;
}

/* What the connection is for, and with it the key that both sides must hold. */
static int check_purpose(struct heft_session *session, const struct heft_wire_hello *hello)
{
    struct heft_agent *agent = session->agent;
    struct heft_table_node *node;
    struct heft_session *joined;

    if (hello->purpose == HEFT_WIRE_CONTROL) {
        memcpy(session->key, agent->token.bytes, sizeof(session->key));
        if (__atomic_load_n(&agent->sessions_now, __ATOMIC_RELAXED) < agent->max_peers)
            return 0;
        refuse(session, HEFT_ERR_TOO_MANY, "max_peers peers are connected already");
        return -1;
    }
    if (hello->purpose != HEFT_WIRE_DATA && hello->purpose != HEFT_WIRE_REPLACE) {
        refuse(session, HEFT_ERR_UNSUPPORTED, "a connection of unknown purpose");
        return -1;
    }
    node = heft_table_find(&agent->sessions, hello->session);
    joined = node ? HEFT_CONTAINER_OF(node, struct heft_session, node) : NULL;
    if (!joined || memcmp(joined->handshake.hello.generation, hello->generation, sizeof(hello->generation))) {
        refuse(session, HEFT_ERR_STALE, "the session of this data stream is not open");
        return -1;
    }
    if (find_transport(agent, hello->transport, &session->transport_index)) {
        refuse(session, HEFT_ERR_UNSUPPORTED, "this agent does not run the transport of this data stream");
        return -1;
    }
    memcpy(session->key, joined->secret, sizeof(session->key));
    return 0;
}

static void on_hello(struct heft_session *session, const struct heft_frame *frame, const uint8_t *payload)
{
    struct heft_agent *agent = session->agent;
    struct heft_wire_challenge challenge = {0};
    struct heft_wire_hello hello;
    struct heft_buf buf;
    char text[200];

    if (frame->type != HEFT_FRAME_HELLO || heft_wire_get_hello(payload, frame->payload_bytes, &hello)) {
        refuse(session, HEFT_ERR_PROTOCOL, "a connection begins with a HELLO");
        return;
    }
    challenge.version = heft_handshake_version(hello.version_lowest, hello.version_highest);
    if (!challenge.version) {
        (void)snprintf(
            text, sizeof(text), "the client speaks protocol versions %u to %u, this agent speaks %u to %u",
            hello.version_lowest, hello.version_highest, HEFT_WIRE_VERSION_LOWEST, HEFT_WIRE_VERSION_HIGHEST);
        refuse(session, HEFT_ERR_INCOMPATIBLE, text);
        return;
    }
    if (check_identity(session, &hello) || check_purpose(session, &hello))
        return;
    memcpy(challenge.generation, agent->generation.bytes, sizeof(challenge.generation));
    heft_random_bytes(challenge.nonce, sizeof(challenge.nonce));
    challenge.name = (struct heft_wire_text){agent->name, strlen(agent->name)};
    heft_handshake_set_hello(&session->handshake, &hello);
    heft_handshake_set_challenge(&session->handshake, &challenge);
    heft_handshake_proof(&session->handshake, session->key, HEFT_PROOF_SERVER, 0, challenge.proof);
    heft_buf_init(&buf, HEFT_FRAME_HANDSHAKE_MAX_BYTES);
    heft_wire_put_challenge(&buf, &challenge);
    session->stage = STAGE_AUTH;
    heft_conn_send(&session->conn, HEFT_FRAME_CHALLENGE, 0, &buf);
    heft_buf_free(&buf);
}

static void send_ready(struct heft_session *session)
{
    struct heft_wire_ready ready = {.session = session->node.id};
    struct heft_buf buf;

    heft_handshake_host(ready.host);
    ready.monotonic_ns = heft_now_ns();
    heft_buf_init(&buf, HEFT_FRAME_HANDSHAKE_MAX_BYTES);
    heft_wire_put_ready(&buf, &ready);
    heft_conn_send(&session->conn, HEFT_FRAME_READY, 0, &buf);
    heft_buf_free(&buf);
}

/* The descriptor goes to the transport; this object ends with the callback. */
static void hand_over(struct heft_session *session)
{
    struct heft_agent *agent = session->agent;
    struct heft_agent_transport *entry = &agent->transports[session->transport_index];
    uint64_t joined = session->handshake.hello.session;
    struct heft_table_node *node = heft_table_find(&agent->sessions, joined);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_tls *tls;
    int fd;

    if (!node) {
        refuse(session, HEFT_ERR_STALE, "the session of this data stream was closed");
        return;
    }
    if (session->conn.tls && heft_secure_check_transport(agent, session->transport_index, &error)) {
        refuse(session, error.code, error.text);
        return;
    }
    if (entry->ops.flags & HEFT_TRANSPORT_REACHES) {
        struct heft_conn *control = &HEFT_CONTAINER_OF(node, struct heft_session, node)->conn;

        control->reaches = control->keeps_fd = 1; /* see tether.h */
    }
    session->node.id = joined;
    send_ready(session);
    tls = session->conn.tls;
    session->conn.tls = NULL;
    fd = heft_conn_detach(&session->conn);
    if (fd >= 0 && !heft_secure_keep(agent, fd, tls, &error)) {
        tls = NULL;
    } else if (fd >= 0) {
        (void)close(fd);
        heft_log(HEFT_LOG_WARN, "agent %s: %s", agent->name, error.text);
    }
    heft_tls_free(tls);
    if (fd < 0)
        heft_conn_fail(&session->conn, HEFT_ERR_STALLED, "the other side does not read");
    if (fd < 0 || error.code)
        return;
    if (entry->ops.accept(entry->transport, fd, joined, &error))
        heft_log(HEFT_LOG_WARN, "agent %s: transport %s refused a data stream: %s", agent->name,
                 entry->ops.name, error.text);
}

static void announce(struct heft_session *session, int even_if_none);
static void give_credit(struct heft_session *session, int even_if_none);
static void give_ring(struct heft_session *session);

static void open_session(struct heft_session *session)
{
    struct heft_agent *agent = session->agent;

    if (!heft_table_reserve(&agent->sessions))
        session->inbox = heft_inbox_new(agent, agent->next_session_id + 1, session->handshake.hello.name.data,
                                        session->handshake.hello.generation);
    if (!session->inbox) {
        refuse(session, HEFT_ERR_NO_MEMORY, "out of memory");
        return;
    }
    pending_remove(session);
    session->node.id = ++agent->next_session_id;
    heft_handshake_proof(&session->handshake, session->key, HEFT_PROOF_SESSION, session->node.id,
                         session->secret);
    heft_table_insert(&agent->sessions, &session->node);
    HEFT_GAUGE(agent, peers_accepted, __atomic_add_fetch(&agent->sessions_now, 1, __ATOMIC_RELAXED));
    session->stage = STAGE_LIVE;
    session->conn.state = HEFT_CONN_LIVE;
    session->conn.deadline_ns = 0;
    session->conn.payload_cap = HEFT_FRAME_CONTROL_MAX_BYTES;
    heft_conn_enter(&session->conn);
    send_ready(session);
    give_credit(session, 1); /* before the regions: whoever knows those knows that it may notify */
    give_ring(session);
    announce(session, 1);
    heft_events_peer_joined(agent, session->handshake.hello.name.data, session->handshake.hello.generation,
                            session->node.id);
    heft_conn_leave(&session->conn);
}

/* ---- fences: nothing of earlier connections arrives any more once the client hears READY ---- */

/* The agent's close waits for what is between the two. */
static void reap_begins(struct heft_agent *agent)
{
    (void)pthread_mutex_lock(&agent->region_lock);
    agent->reaps++;
    (void)pthread_mutex_unlock(&agent->region_lock);
}

static void reap_ended(struct heft_agent *agent)
{
    (void)pthread_mutex_lock(&agent->region_lock);
    agent->reaps--;
    (void)pthread_cond_broadcast(&agent->region_cond);
    (void)pthread_mutex_unlock(&agent->region_lock);
}

/* On the control worker again. */
static void fence_passed(struct heft_job *job, struct heft_worker *worker)
{
    struct heft_session *session = HEFT_CONTAINER_OF(job, struct heft_session, reap_job);
    struct heft_agent *agent = session->agent;

    (void)worker;
    if (session->stage == STAGE_GONE) {
        free(session);
    } else {
        heft_conn_enter(&session->conn);
        session->stage = STAGE_AUTH;
        if (session->conn.dead || session->refused)
            ; /* it has heard the last word */
        else if (session->handshake.hello.purpose == HEFT_WIRE_CONTROL)
            open_session(session);
        else
            hand_over(session);
        heft_conn_leave(&session->conn);
    }
    reap_ended(agent);
}

/* On the reaper, behind the ends of the sessions that were named. */
static void fence(struct heft_job *job, struct heft_worker *worker)
{
    struct heft_session *session = HEFT_CONTAINER_OF(job, struct heft_session, reap_job);
    struct heft_agent_transport *entry = &session->agent->transports[session->transport_index];

    (void)worker;
    if (session->handshake.hello.purpose == HEFT_WIRE_REPLACE)
        entry->ops.drop_session(entry->transport, session->handshake.hello.session);
    session->reap_job.run = fence_passed;
    heft_worker_submit(session->agent->control, &session->reap_job);
}

static void start_fence(struct heft_session *session)
{
    session->stage = STAGE_FENCE;
    session->reap_job.run = fence;
    reap_begins(session->agent);
    heft_worker_submit(session->agent->reaper, &session->reap_job);
}

/* What has ended for the client ends here as well, whether this side has heard of it or not. */
static void end_named(struct heft_session *session, const struct heft_wire_auth *auth)
{
    struct heft_agent *agent = session->agent;
    const uint8_t *client = session->handshake.hello.generation;
    uint32_t index;

    for (index = 0; index < auth->ended_count; index++) {
        struct heft_table_node *node = heft_table_find(&agent->sessions, auth->ended[index]);
        struct heft_session *ended = node ? HEFT_CONTAINER_OF(node, struct heft_session, node) : NULL;

        if (ended &&
            memcmp(ended->handshake.hello.generation, client, sizeof(ended->handshake.hello.generation)) == 0)
            heft_conn_fail(&ended->conn, HEFT_ERR_PEER_LOST, "the peer connected again");
    }
}

static void on_auth(struct heft_session *session, const struct heft_frame *frame, const uint8_t *payload)
{
    struct heft_agent *agent = session->agent;
    uint8_t proof[HEFT_WIRE_PROOF_BYTES];
    struct heft_wire_auth auth;

    if (frame->type == HEFT_FRAME_REFUSE) { /* the client found the server's proof wrong */
        if (!session->refused)
            HEFT_COUNT(agent, handshakes_refused, 1);
        session->refused = 1;
        heft_conn_fail(&session->conn, HEFT_ERR_DENIED, "the client refused");
        return;
    }
    if (frame->type != HEFT_FRAME_AUTH || heft_wire_get_auth(payload, frame->payload_bytes, &auth)) {
        refuse(session, HEFT_ERR_PROTOCOL, "an AUTH answers a CHALLENGE");
        return;
    }
    heft_handshake_proof(&session->handshake, session->key, HEFT_PROOF_CLIENT, 0, proof);
    if (!heft_equal_secret(proof, auth.proof, sizeof(proof))) {
        refuse(session, HEFT_ERR_DENIED, "the token is not this agent's");
        return;
    }
    if (session->handshake.hello.purpose == HEFT_WIRE_DATA) {
        hand_over(session);
    } else if (session->handshake.hello.purpose == HEFT_WIRE_REPLACE) {
        start_fence(session);
    } else if (auth.ended_count) {
        end_named(session, &auth);
        start_fence(session);
    } else {
        open_session(session);
    }
}

/* ---- regions ---- */

/* A descriptor for the peer that allows no more than the region does; -1 when there is none to give. */
static int region_fd(const struct heft_region *region)
{
    char path[64];

    if (region->t.space == HEFT_SPACE_CUDA && region->t.fd >= 0) /* the carrier of its handles */
        return fcntl(region->t.fd, F_DUPFD_CLOEXEC, 0);
    if (region->t.space != HEFT_SPACE_HOST || region->t.fd < 0)
        return -1;
    if (region->t.flags & HEFT_REGION_REMOTE_WRITE)
        return fcntl(region->t.fd, F_DUPFD_CLOEXEC, 0);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", region->t.fd);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static int is_announced(const struct heft_region *region)
{
    return region->state == HEFT_REGION_LIVE &&
           (region->t.flags & (HEFT_REGION_REMOTE_READ | HEFT_REGION_REMOTE_WRITE));
}

/* One frame of regions newer than last_sequence. region_lock held. */
struct region_batch {
    struct heft_wire_region entries[HEFT_WIRE_REGIONS_PER_FRAME];
    uint32_t count;
    int fds[HEFT_WIRE_FDS_PER_FRAME];
    size_t fd_count;
    int more;
    uint64_t epoch;
};

static void collect(struct heft_session *session, struct region_batch *batch)
{
    struct heft_agent *agent = session->agent;
    struct heft_region *region = agent->region_last, *first = NULL;

    while (region && region->sequence > session->last_sequence) {
        first = region;
        region = region->prev;
    }
    for (region = first; region; region = region->next) {
        struct heft_wire_region *entry;
        int fd = -1;

        if (!is_announced(region))
            continue;
        if (batch->count == HEFT_WIRE_REGIONS_PER_FRAME || batch->fd_count == HEFT_WIRE_FDS_PER_FRAME) {
            batch->more = 1;
            return;
        }
        if (session->conn.is_unix)
            fd = region_fd(region);
        entry = &batch->entries[batch->count++];
        *entry = (struct heft_wire_region){.id = region->t.id,
                                           .space = (uint8_t)region->t.space,
                                           .has_fd = fd >= 0,
                                           .flags = region->t.flags,
                                           .length_bytes = region->t.length_bytes};
        /* Addresses are of use, and shown, to processes of this host alone. */
        if (session->conn.is_unix)
            entry->address = (uint64_t)(uintptr_t)region->t.address;
        if (session->conn.is_unix && (region->t.flags & HEFT_REGION_REMOTE_WRITE))
            session->conn.keeps_fd = 1; /* see tether.h */
        if (fd >= 0)
            batch->fds[batch->fd_count++] = fd;
        session->last_sequence = region->sequence;
    }
}

static void announce(struct heft_session *session, int even_if_none)
{
    struct region_batch *batch = malloc(sizeof(*batch));
    struct heft_buf buf;
    uint32_t index;

    if (!batch) {
        heft_conn_fail(&session->conn, HEFT_ERR_NO_MEMORY, "out of memory for the list of regions");
        return;
    }
    heft_conn_enter(&session->conn);
    do {
        batch->count = 0;
        batch->fd_count = 0;
        batch->more = 0;
        (void)pthread_mutex_lock(&session->agent->region_lock);
        batch->epoch = session->agent->region_epoch;
        collect(session, batch);
        (void)pthread_mutex_unlock(&session->agent->region_lock);
        if (!batch->count && !even_if_none)
            break;
        heft_buf_init(&buf, HEFT_FRAME_CONTROL_MAX_BYTES);
        heft_wire_put_regions(&buf, batch->epoch, batch->more, batch->count);
        for (index = 0; index < batch->count; index++)
            heft_wire_put_region(&buf, &batch->entries[index]);
        heft_conn_send_fds(&session->conn, HEFT_FRAME_REGIONS, 0, &buf, batch->fds, batch->fd_count);
        heft_buf_free(&buf);
        even_if_none = 0;
    } while (batch->more && !session->conn.dead);
    free(batch);
    heft_conn_leave(&session->conn);
}

void heft_sessions_announce(struct heft_agent *agent)
{
    struct heft_conn *conn, *next;

    for (conn = agent->conns; conn; conn = next) {
        struct heft_session *session = live_session(conn);

        next = conn->next;
        if (session)
            announce(session, 0);
    }
}

void heft_sessions_announce_job(struct heft_job *job, struct heft_worker *worker)
{
    struct heft_agent *agent = HEFT_CONTAINER_OF(job, struct heft_agent, announce_job);

    (void)worker;
    (void)pthread_mutex_lock(&agent->region_lock);
    agent->announce_queued = 0;
    (void)pthread_mutex_unlock(&agent->region_lock);
    heft_sessions_announce(agent);
}

void heft_sessions_withdraw(struct heft_agent *agent, struct heft_region *region)
{
    struct heft_conn *conn, *next;

    heft_tethers_withdraw(agent, region);
    for (conn = agent->conns; conn; conn = next) {
        struct heft_session *session = conn->ops == &session_ops ? session_of(conn) : NULL;
        struct heft_buf buf;

        next = conn->next;
        if (!session || session->stage != STAGE_LIVE || conn->dead ||
            session->last_sequence < region->sequence)
            continue;
        /* Who can use it without this agent's help must answer, or end: processes of this host, and clients
         * of transports that reach into memory. */
        if ((conn->is_unix || conn->reaches) && heft_gone_add(agent, &session->gone, region)) {
            heft_conn_fail(conn, HEFT_ERR_NO_MEMORY, "out of memory to withdraw a region");
            continue;
        }
        if (conn->state != HEFT_CONN_LIVE) /* it has heard the last word */
            continue;
        heft_buf_init(&buf, HEFT_FRAME_CONTROL_MAX_BYTES);
        heft_wire_put_ids(&buf, agent->region_epoch, &region->t.id, 1);
        heft_conn_send(conn, HEFT_FRAME_REGION_GONE, 0, &buf);
        heft_buf_free(&buf);
    }
}

static void on_region_free(struct heft_session *session, const struct heft_frame *frame,
                           const uint8_t *payload)
{
    struct heft_wire_ids ids;
    uint32_t index;

    if (heft_wire_get_ids(payload, frame->payload_bytes, &ids)) {
        heft_conn_last_word(&session->conn, HEFT_FRAME_BYE, HEFT_ERR_PROTOCOL, "a malformed REGION_FREE");
        return;
    }
    for (index = 0; index < ids.count; index++) {
        struct heft_gone **at = &session->gone;

        while (*at && (*at)->region->t.id != heft_wire_get_id(&ids, index))
            at = &(*at)->next;
        if (*at)
            heft_gone_drop(session->agent, at);
    }
}

/* ---- documents ---- */

static void doc_pump(struct heft_session *session)
{
    struct heft_conn *conn = &session->conn;

    heft_conn_enter(conn);
    while (session->get_count && !conn->dead && conn->out_bytes < DOC_QUEUE_BYTES) {
        struct doc_get *get = &session->gets[0];
        uint64_t left = get->blob->size_bytes - get->offset;
        struct heft_wire_doc doc = {
            .epoch = get->blob->epoch, .total_bytes = get->blob->size_bytes, .offset_bytes = get->offset};
        struct heft_buf buf;

        doc.chunk.data = (const char *)get->blob->data + get->offset;
        doc.chunk.size = left < HEFT_WIRE_DOC_CHUNK_BYTES ? (size_t)left : HEFT_WIRE_DOC_CHUNK_BYTES;
        heft_buf_init(&buf, HEFT_FRAME_CONTROL_MAX_BYTES);
        heft_wire_put_doc(&buf, &doc);
        get->offset += doc.chunk.size;
        heft_conn_send(conn, HEFT_FRAME_DOC, get->request_id, &buf);
        heft_buf_free(&buf);
        if (get->offset == get->blob->size_bytes) {
            heft_blob_unref(get->blob);
            session->get_count--;
            memmove(session->gets, session->gets + 1, session->get_count * sizeof(*get));
        }
    }
    heft_conn_leave(conn);
}

static void session_drained(struct heft_conn *conn)
{
    doc_pump(session_of(conn));
}

static void on_doc_get(struct heft_session *session, const struct heft_frame *frame, const uint8_t *payload)
{
    struct heft_wire_doc_get get;
    struct heft_blob *blob;
    char text[HEFT_WIRE_TEXT_MAX_BYTES];

    if (heft_wire_get_doc_get(payload, frame->payload_bytes, &get)) {
        heft_conn_refuse(&session->conn, frame->id, HEFT_ERR_INVALID, "a malformed DOC_GET");
        return;
    }
    /* A document may name regions that were registered just before it: they are told first. */
    announce(session, 0);
    if (session->conn.dead)
        return;
    if (session->get_count == HEFT_AGENT_DOC_GETS_MAX) {
        heft_conn_refuse(&session->conn, frame->id, HEFT_ERR_TOO_MANY,
                         "too many documents asked for at once");
        return;
    }
    blob = heft_document_hold(session->agent, get.name.data, get.name.size);
    if (!blob) {
        (void)snprintf(text, sizeof(text), "no document '%.*s' is published", (int)get.name.size,
                       get.name.data);
        heft_conn_refuse(&session->conn, frame->id, HEFT_ERR_NOT_READY, text);
        return;
    }
    if (blob->size_bytes > get.limit_bytes) {
        (void)snprintf(text, sizeof(text), "document '%.*s' has %llu bytes, over the reader's limit of %llu",
                       (int)get.name.size, get.name.data, (unsigned long long)blob->size_bytes,
                       (unsigned long long)get.limit_bytes);
        heft_conn_refuse(&session->conn, frame->id, HEFT_ERR_TOO_LARGE, text);
        heft_blob_unref(blob);
        return;
    }
    session->gets[session->get_count++] = (struct doc_get){frame->id, blob, 0};
    doc_pump(session);
}

/* ---- what peers tell ---- */

static void give_credit(struct heft_session *session, int even_if_none)
{
    struct heft_wire_credit credit;
    struct heft_buf buf;

    if (!heft_inbox_take_credit(session->inbox, &credit) && !even_if_none)
        return;
    heft_buf_init(&buf, HEFT_FRAME_PING_MAX_BYTES);
    heft_wire_put_credit(&buf, &credit);
    heft_conn_send_optional(&session->conn, HEFT_FRAME_CREDIT, 0, &buf);
    heft_buf_free(&buf);
}

static void end_session(struct heft_session *session, int code, const char *why)
{
    heft_conn_enter(&session->conn);
    heft_conn_last_word(&session->conn, HEFT_FRAME_BYE, code, why);
    heft_conn_leave(&session->conn);
}

/* By edges: a bell that a peer never stops ringing is no more than other news. */
static void bell_ready(struct heft_watch *watch, uint32_t events)
{
    struct heft_session *session = HEFT_CONTAINER_OF(watch, struct heft_session, bell);

    (void)events;
    heft_inbox_rung(session->inbox);
}

/* A peer of this host tells through shared memory from now on, if there is enough of everything. */
static void give_ring(struct heft_session *session)
{
    struct heft_wire_ring told = {.layout = HEFT_RING_LAYOUT, .cells = HEFT_RING_CELLS};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_ring ring;
    struct heft_buf buf;
    int fds[HEFT_RING_FDS], rc;

    if (!session->conn.is_unix)
        return;
    rc = heft_ring_create(&ring, fds, &error);
    if (!rc) {
        session->bell.fd = ring.bell;
        session->bell.ready = bell_ready;
        rc = heft_watch_add(session->agent->control, &session->bell, EPOLLIN | EPOLLET, &error);
        if (rc) {
            session->bell.fd = -1;
            heft_ring_close(&ring);
            (void)close(fds[0]);
            (void)close(fds[1]);
        }
    }
    if (rc) {
        heft_log(HEFT_LOG_INFO, "agent %s: peer '%s' tells by messages only: %s", session->agent->name,
                 session->handshake.hello.name.data, error.text);
        return;
    }
    heft_inbox_set_ring(session->inbox, &ring);
    heft_buf_init(&buf, HEFT_FRAME_PING_MAX_BYTES);
    heft_wire_put_ring(&buf, &told);
    heft_conn_send_optional_fds(&session->conn, HEFT_FRAME_RING, &buf, fds, HEFT_RING_FDS);
    heft_buf_free(&buf);
}

/* One counter's descriptor is rung by the peer itself. */
static void give_wake(struct heft_session *session)
{
    struct heft_buf buf;
    uint32_t serial;
    int fd;

    if (!heft_inbox_take_wake(session->inbox, &fd, &serial))
        return;
    heft_buf_init(&buf, HEFT_FRAME_PING_MAX_BYTES);
    heft_wire_put_wake(&buf, serial);
    heft_conn_send_optional_fds(&session->conn, HEFT_FRAME_WAKE, &buf, &fd, 1);
    heft_buf_free(&buf);
}

void heft_sessions_credit_job(struct heft_job *job, struct heft_worker *worker)
{
    struct heft_agent *agent = HEFT_CONTAINER_OF(job, struct heft_agent, credit_job);
    struct heft_conn *conn, *next;

    (void)worker;
    (void)pthread_mutex_lock(&agent->event_lock);
    agent->credit_queued = 0;
    (void)pthread_mutex_unlock(&agent->event_lock);
    for (conn = agent->conns; conn; conn = next) {
        struct heft_session *session = live_session(conn);

        int broken;
        const char *why;

        next = conn->next;
        if (!session)
            continue;
        heft_conn_enter(conn); /* it may break over any of these */
        broken = heft_inbox_broken(session->inbox, &why);
        if (broken)
            end_session(session, broken, why);
        else
            give_credit(session, 0);
        give_wake(session);
        heft_conn_leave(conn);
    }
}

static void on_told(struct heft_session *session, const struct heft_frame *frame, const uint8_t *payload)
{
    const char *why;
    int rc = frame->type == HEFT_FRAME_NOTIFY ? heft_inbox_notify(session->inbox, frame, payload, &why)
                                              : heft_inbox_count(session->inbox, frame, payload, &why);

    if (rc)
        end_session(session, rc, why);
}

/* ---- frames, end ---- */

static void session_frame(struct heft_conn *conn, const struct heft_frame *frame, const uint8_t *payload)
{
    struct heft_session *session = session_of(conn);
    char text[80];

    if (session->stage == STAGE_HELLO) {
        on_hello(session, frame, payload);
        return;
    }
    if (session->stage == STAGE_AUTH) {
        on_auth(session, frame, payload);
        return;
    }
    if (session->stage == STAGE_FENCE) {
        refuse(session, HEFT_ERR_PROTOCOL, "a client waits for READY");
        return;
    }
    switch (frame->type) {
    case HEFT_FRAME_REGION_FREE:
        on_region_free(session, frame, payload);
        break;
    case HEFT_FRAME_DOC_GET:
        on_doc_get(session, frame, payload);
        break;
    case HEFT_FRAME_NOTIFY:
    case HEFT_FRAME_COUNT:
        on_told(session, frame, payload);
        break;
    case HEFT_FRAME_BYE:
        session->bye = 1;
        heft_conn_fail(conn, HEFT_OK, "the peer said goodbye");
        break;
    case HEFT_FRAME_REFUSE:
        break;
    default:
        (void)snprintf(text, sizeof(text), "a %s frame is not for this side",
                       heft_frame_type_name(frame->type));
        heft_conn_refuse(conn, frame->id, HEFT_ERR_UNSUPPORTED, text);
    }
}

/* On the reaper: what is served to the dead session ends here. */
static void reap(struct heft_job *job, struct heft_worker *worker)
{
    struct heft_session *session = HEFT_CONTAINER_OF(job, struct heft_session, reap_job);
    struct heft_agent *agent = session->agent;
    uint32_t index;

    (void)worker;
    for (index = 0; index < agent->transport_count; index++)
        if (agent->transports[index].transport)
            agent->transports[index].ops.drop_session(agent->transports[index].transport, session->node.id);
    memset(session->secret, 0, sizeof(session->secret));
    free(session);
    reap_ended(agent);
}

static void session_closed(struct heft_conn *conn, int code, const char *text)
{
    struct heft_session *session = session_of(conn);
    struct heft_agent *agent = session->agent;
    struct heft_error ended = HEFT_ERROR_INIT;

    if (session->stage != STAGE_LIVE) {
        pending_remove(session);
        memset(session->key, 0, sizeof(session->key));
        if (session->stage == STAGE_FENCE)
            session->stage = STAGE_GONE; /* the fence is under way, and frees it */
        else
            free(session);
        return;
    }
    if (conn->keeps_fd && !session->bye && !conn->heard_end && !agent->closing)
        heft_tether_start(agent, conn->watch.fd, session->last_sequence, &session->gone);
    else if (conn->keeps_fd)
        heft_conn_close_fd(conn->watch.fd);
    while (session->gone)
        heft_gone_drop(agent, &session->gone);
    while (session->get_count)
        heft_blob_unref(session->gets[--session->get_count].blob);
    (void)heft_error_set(&ended, code ? code : HEFT_ERR_PEER_LOST, "%s", text);
    heft_events_peer_ended(agent, session->handshake.hello.name.data, session->handshake.hello.generation,
                           session->node.id, session->bye ? 0 : ended.code, &ended);
    if (session->bell.fd >= 0)
        heft_watch_remove(&session->bell);
    heft_inbox_end(session->inbox, HEFT_ERR_PEER_LOST, text);
    heft_table_remove(&agent->sessions, &session->node);
    if (!session->bye && !agent->closing) {
        HEFT_COUNT(agent, peers_lost, 1);
        heft_log(HEFT_LOG_INFO, "agent %s: lost the connected peer '%s': %s: %s", agent->name,
                 session->handshake.hello.name.data, heft_error_name(code), text);
    }
    session->reap_job.run = reap;
    reap_begins(agent);
    HEFT_GAUGE(agent, peers_accepted, __atomic_sub_fetch(&agent->sessions_now, 1, __ATOMIC_RELAXED));
    heft_worker_submit(agent->reaper, &session->reap_job);
}

/* Peers that are told goodbye stop reading, then close: that is what the agent waits for. */
void heft_sessions_bye(struct heft_agent *agent)
{
    struct heft_conn *conn, *next;

    agent->closing = 1;
    for (conn = agent->conns; conn; conn = next) {
        next = conn->next;
        if (conn->ops != &session_ops)
            continue;
        if (!live_session(conn)) {
            heft_conn_fail(conn, HEFT_OK, "the agent closes");
            continue;
        }
        heft_conn_enter(conn);
        heft_conn_last_word(conn, HEFT_FRAME_BYE, HEFT_ERR_PEER_LOST, "the agent closes");
        conn->deadline_ns = heft_deadline_after_ms(HEFT_AGENT_LET_GO_MS);
        heft_conn_leave(conn);
    }
}

void heft_sessions_drop_all(struct heft_agent *agent)
{
    struct heft_conn *conn, *next;

    for (conn = agent->conns; conn; conn = next) {
        next = conn->next;
        if (conn->ops == &session_ops)
            heft_conn_fail(conn, HEFT_OK, "the agent closes");
    }
}
