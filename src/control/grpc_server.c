/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One completion queue, a few threads on it. A call goes through three events, in this order:
 *
 *   WAITING    a slot was offered to gRPC; the event brings a call
 *   RECEIVING  the request's message arrives
 *   ANSWERING  the reply and status are on their way, and the call's end is seen
 *
 * Only one event of a call is outstanding at any time, so a call needs no lock of its own: its state is
 * stored with release order before a batch begins and loaded with acquire order when its event comes. The
 * list of active calls exists for the sweep, which cancels those that last too long.
 *
 * A call whose handler says LATER is parked between RECEIVING and ANSWERING: no event is outstanding, and a
 * thread of its own asks the handler again, after a poke or when its time is over.
 */
#include "control/grpc_server.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "control/grpc_base.h"

#include <errno.h>
#include <grpc/byte_buffer.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SERVER_MAX_METHODS 64u
#define SERVER_MAX_THREADS 64u
#define SERVER_SLOTS 16u /* calls offered to gRPC ahead of their arrival */
#define SERVER_MEMORY_BYTES ((size_t)128 << 20)
#define SERVER_SWEEP_MS 500
#define SERVER_PARK_TICK_MS 100u
#define SERVER_KEEPALIVE_MS 10000
#define SERVER_KEEPALIVE_WAIT_MS 8000

enum call_state { CALL_WAITING, CALL_RECEIVING, CALL_ANSWERING };

struct server_method {
    const char *name;
    heft_grpc_handler handler;
    void *context;
};

struct server_call {
    struct heft_grpc_server *server;
    enum call_state state;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    const struct server_method *method;
    grpc_byte_buffer *request;
    grpc_byte_buffer *reply;
    int canceled;
    int is_active; /* in the list, counted */
    uint64_t begin_ns;
    struct server_call *next, *previous;
    struct server_call *next_parked;
    uint64_t wake_ms; /* age */
};

struct heft_grpc_server {
    struct heft_grpc_server_options options;
    char listen[300];
    struct server_method methods[SERVER_MAX_METHODS];
    size_t method_count;
    grpc_server *server;
    grpc_completion_queue *queue;
    grpc_resource_quota *quota;
    pthread_t threads[SERVER_MAX_THREADS];
    uint32_t thread_count;
    uint16_t port;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    struct server_call *active;
    struct heft_grpc_server_counts counts;
    uint64_t swept_ns;
    struct server_call *parked;
    uint32_t parked_count;
    pthread_t waiter;
    pthread_cond_t poked;
    int has_waiter, is_poked;
    int is_started;
    int is_stopping;
    int is_stopped; /* the shutdown event was seen */
};

int heft_grpc_server_new(const struct heft_grpc_server_options *options, struct heft_grpc_server **server_out,
                         struct heft_error *error)
{
    struct heft_grpc_address address;
    struct heft_grpc_server *server;
    int result = heft_grpc_address_parse(options->listen, &address, error);

    if (result)
        return result;
    server = calloc(1, sizeof(*server));
    if (!server)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "gRPC server: out of memory");
    server->options = *options;
    (void)snprintf(server->listen, sizeof(server->listen), "%s", options->listen);
    server->options.listen = server->listen;
    if (!server->options.threads)
        server->options.threads = 2;
    if (server->options.threads > SERVER_MAX_THREADS)
        server->options.threads = SERVER_MAX_THREADS;
    if (!server->options.max_calls)
        server->options.max_calls = 1024;
    if (!server->options.max_request_bytes)
        server->options.max_request_bytes = HEFT_GRPC_MAX_MESSAGE_BYTES;
    if (!server->options.max_call_ms)
        server->options.max_call_ms = 30000;
    if (!server->options.handshake_ms)
        server->options.handshake_ms = 5000;
    if (!server->options.idle_connection_ms)
        server->options.idle_connection_ms = 300000;
    (void)pthread_mutex_init(&server->lock, NULL);
    (void)pthread_cond_init(&server->changed, NULL);
    (void)pthread_cond_init(&server->poked, NULL);
    heft_grpc_acquire();
    *server_out = server;
    return 0;
}

int heft_grpc_server_add(struct heft_grpc_server *server, const char *method, heft_grpc_handler handler,
                         void *context, struct heft_error *error)
{
    HEFT_ASSERT(!server->is_started);
    if (server->method_count == SERVER_MAX_METHODS)
        return heft_error_set(error, HEFT_ERR_TOO_MANY, "gRPC server: more than %u methods (adding %s)",
                              SERVER_MAX_METHODS, method);
    server->methods[server->method_count++] = (struct server_method){method, handler, context};
    return 0;
}

static int listen_on(int fd)
{
    return listen(fd, 1);
}

int heft_listen_check(const char *listen, const char *what, struct heft_error *error)
{
    struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *found = NULL;
    struct heft_grpc_address address;
    char port[8];
    int one = 1, fd, failure = 0, result = heft_grpc_address_parse(listen, &address, error);

    if (result)
        return result;
    (void)snprintf(port, sizeof(port), "%u", address.port);
    hints.ai_flags |= address.is_numeric ? AI_NUMERICHOST : 0;
    result = getaddrinfo(address.host, port, &hints, &found);
    if (result)
        return heft_error_set(error, HEFT_ERR_UNAVAILABLE, "%s: can't resolve '%s': %s", what, address.host,
                              gai_strerror(result));
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
        bind(fd, found->ai_addr, found->ai_addrlen) || listen_on(fd))
        failure = errno;
    if (fd >= 0)
        (void)close(fd);
    freeaddrinfo(found);
    if (failure == EADDRINUSE)
        return heft_error_set(error, HEFT_ERR_UNAVAILABLE,
                              "%s: %s is in use by another process: stop it (`ss -ltnp` names it), or choose "
                              "another address",
                              what, listen);
    if (failure)
        return heft_error_set_errno(error, failure, "%s: can't listen at %s", what, listen);
    return 0;
}

static void link_call(struct heft_grpc_server *server, struct server_call *call)
{
    call->previous = NULL;
    call->next = server->active;
    if (server->active)
        server->active->previous = call;
    server->active = call;
    call->is_active = 1;
    server->counts.active++;
}

static void unlink_call(struct heft_grpc_server *server, struct server_call *call)
{
    if (!call->is_active)
        return;
    if (call->previous)
        call->previous->next = call->next;
    else
        server->active = call->next;
    if (call->next)
        call->next->previous = call->previous;
    call->is_active = 0;
    server->counts.active--;
}

/* The last thing before a batch begins: from then on another thread may have the call. */
static void set_state(struct server_call *call, enum call_state state)
{
    __atomic_store_n(&call->state, state, __ATOMIC_RELEASE);
}

static void free_call(struct server_call *call)
{
    struct heft_grpc_server *server = call->server;

    (void)pthread_mutex_lock(&server->lock);
    unlink_call(server, call);
    (void)pthread_mutex_unlock(&server->lock);
    if (call->call)
        grpc_call_unref(call->call);
    grpc_call_details_destroy(&call->details);
    grpc_metadata_array_destroy(&call->metadata);
    if (call->request)
        grpc_byte_buffer_destroy(call->request);
    if (call->reply)
        grpc_byte_buffer_destroy(call->reply);
    free(call);
}

/* Offers one more slot for a call. */
static int offer(struct heft_grpc_server *server)
{
    struct server_call *call = calloc(1, sizeof(*call));

    if (!call)
        return HEFT_ERR_NO_MEMORY;
    call->server = server;
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    set_state(call, CALL_WAITING);
    if (grpc_server_request_call(server->server, &call->call, &call->details, &call->metadata, server->queue,
                                 server->queue, call) != GRPC_CALL_OK) {
        free_call(call);
        return HEFT_ERR_STATE;
    }
    return 0;
}

/* Sends the reply (when result is 0) or the error, and the status. */
static void answer(struct server_call *call, int result, const struct heft_buf *reply,
                   const struct heft_error *error)
{
    const char *name = heft_error_name(result);
    grpc_call *handle = call->call;
    grpc_slice sentence = grpc_slice_from_copied_string(result ? error->text : "");
    grpc_metadata code;
    grpc_op ops[4];
    size_t count = 0;

    memset(ops, 0, sizeof(ops));
    memset(&code, 0, sizeof(code));
    code.key = grpc_slice_from_static_string(HEFT_GRPC_CODE_KEY);
    code.value = grpc_slice_from_static_string(name);
    ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    if (!result) {
        call->reply = heft_grpc_buffer(reply->data, reply->size);
        ops[count].op = GRPC_OP_SEND_MESSAGE;
        ops[count++].data.send_message.send_message = call->reply;
    }
    ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[count].data.send_status_from_server.status = heft_grpc_status_of(result);
    ops[count].data.send_status_from_server.status_details = &sentence;
    ops[count].data.send_status_from_server.trailing_metadata_count = result ? 1 : 0;
    ops[count++].data.send_status_from_server.trailing_metadata = &code;
    ops[count].op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    ops[count++].data.recv_close_on_server.cancelled = &call->canceled;
    if (result) {
        (void)pthread_mutex_lock(&call->server->lock);
        call->server->counts.failures++;
        (void)pthread_mutex_unlock(&call->server->lock);
    }
    set_state(call, CALL_ANSWERING);
    if (grpc_call_start_batch(handle, ops, count, call, NULL) != GRPC_CALL_OK)
        free_call(call);
    grpc_slice_unref(sentence);
}

static const struct server_method *find_method(const struct heft_grpc_server *server, grpc_slice name)
{
    size_t index;

    for (index = 0; index < server->method_count; index++)
        if (grpc_slice_str_cmp(name, server->methods[index].name) == 0)
            return &server->methods[index];
    return NULL;
}

/* A call has arrived: take its place in the list, then ask for its message or refuse it. */
static void on_arrival(struct server_call *call)
{
    struct heft_grpc_server *server = call->server;
    struct heft_error error = HEFT_ERROR_INIT;
    grpc_call *handle = call->call;
    int is_full;
    grpc_op op;

    (void)offer(server);
    (void)pthread_mutex_lock(&server->lock);
    server->counts.calls++;
    is_full = server->counts.active >= server->options.max_calls;
    if (is_full)
        server->counts.refused++;
    call->begin_ns = heft_now_ns();
    link_call(server, call);
    (void)pthread_mutex_unlock(&server->lock);
    call->method = find_method(server, call->details.method);
    if (is_full) {
        (void)heft_error_set(&error, HEFT_ERR_TOO_MANY,
                             "over the limit of %u calls in flight: try again later",
                             server->options.max_calls);
        answer(call, error.code, NULL, &error);
        return;
    }
    if (!call->method) {
        (void)heft_error_set(&error, HEFT_ERR_UNSUPPORTED, "no such method: '%.*s'",
                             (int)(GRPC_SLICE_LENGTH(call->details.method) < 200
                                       ? GRPC_SLICE_LENGTH(call->details.method)
                                       : 200),
                             (const char *)GRPC_SLICE_START_PTR(call->details.method));
        answer(call, error.code, NULL, &error);
        return;
    }
    memset(&op, 0, sizeof(op));
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &call->request;
    set_state(call, CALL_RECEIVING);
    if (grpc_call_start_batch(handle, &op, 1, call, NULL) != GRPC_CALL_OK)
        free_call(call);
}

/* Puts a call aside; 0 when there is no room, or the server stops. */
static int park(struct server_call *call, uint64_t wake_ms)
{
    struct heft_grpc_server *server = call->server;
    int parks;

    (void)pthread_mutex_lock(&server->lock);
    parks =
        server->has_waiter && !server->is_stopping && server->parked_count < server->options.max_calls / 2;
    if (parks) {
        call->wake_ms = wake_ms;
        call->next_parked = server->parked;
        server->parked = call;
        server->parked_count++;
    }
    (void)pthread_mutex_unlock(&server->lock);
    return parks;
}

static int ask_handler(struct server_call *call, struct heft_grpc_request *request, struct heft_buf *reply,
                       struct heft_error *error)
{
    int result = call->method->handler(call->method->context, request, reply, error);

    if (result && result != HEFT_GRPC_LATER && !error->text[0])
        (void)heft_error_set(error, result, "%s: %s", call->method->name, heft_error_text(result));
    if (!result && reply->failed)
        result =
            heft_error_set(error, reply->failed, "%s: the reply can't be made: %s (limit %zu bytes)",
                           call->method->name, heft_error_text(reply->failed), HEFT_GRPC_MAX_MESSAGE_BYTES);
    return result;
}

static void on_request(struct server_call *call, int success)
{
    struct heft_grpc_request request = {0};
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_buf bytes, reply;
    uint64_t wake_ms = 0;
    int result, is_parked = 0;

    heft_buf_init(&bytes, call->server->options.max_request_bytes);
    heft_buf_init(&reply, HEFT_GRPC_MAX_MESSAGE_BYTES);
    if (!success || !call->request) {
        result = heft_error_set(&error, HEFT_ERR_PROTOCOL, "%s: the call ended before its message",
                                call->method->name);
    } else if ((result = heft_grpc_buffer_read(call->request, &bytes)) != 0) {
        (void)heft_error_set(&error, result, "%s: the request could not be read: %s (limit %u bytes)",
                             call->method->name, heft_error_text(result),
                             call->server->options.max_request_bytes);
    } else {
        request.method = call->method->name;
        request.data = bytes.data;
        request.size_bytes = bytes.size;
        request.age_ms = (heft_now_ns() - call->begin_ns) / HEFT_NS_PER_MS;
        request.wake_ms = &wake_ms;
        result = ask_handler(call, &request, &reply, &error);
        is_parked = result == HEFT_GRPC_LATER && park(call, wake_ms);
        if (result == HEFT_GRPC_LATER && !is_parked) {
            request.age_ms = UINT64_MAX;
            result = ask_handler(call, &request, &reply, &error);
        }
    }
    if (!is_parked)
        answer(call, result, &reply, &error);
    heft_buf_free(&bytes);
    heft_buf_free(&reply);
}

void heft_grpc_server_poke(struct heft_grpc_server *server)
{
    if (!server)
        return;
    (void)pthread_mutex_lock(&server->lock);
    server->is_poked = 1;
    (void)pthread_cond_signal(&server->poked);
    (void)pthread_mutex_unlock(&server->lock);
}

/* Takes the parked calls that are to be asked now: all, or those whose time is over. Lock held. */
static struct server_call *take_parked(struct heft_grpc_server *server, int all)
{
    struct server_call **at = &server->parked, *taken = NULL;
    uint64_t now_ns = heft_now_ns();

    while (*at) {
        struct server_call *call = *at;

        if (!all && (now_ns - call->begin_ns) / HEFT_NS_PER_MS < call->wake_ms) {
            at = &call->next_parked;
            continue;
        }
        *at = call->next_parked;
        call->next_parked = taken;
        taken = call;
        server->parked_count--;
    }
    return taken;
}

static void *ask_parked(void *context)
{
    struct heft_grpc_server *server = context;
    int stops;

    do {
        uint64_t at = heft_now_ns() + SERVER_PARK_TICK_MS * HEFT_NS_PER_MS;
        struct timespec when = {(time_t)(at / HEFT_NS_PER_S), (long)(at % HEFT_NS_PER_S)};
        struct server_call *call;

        (void)pthread_mutex_lock(&server->lock);
        while (!server->is_poked && !server->is_stopping &&
               pthread_cond_clockwait(&server->poked, &server->lock, CLOCK_MONOTONIC, &when) == 0)
            continue;
        stops = server->is_stopping;
        call = take_parked(server, server->is_poked || stops);
        server->is_poked = 0;
        (void)pthread_mutex_unlock(&server->lock);
        while (call) {
            struct server_call *next = call->next_parked;

            on_request(call, 1);
            call = next;
        }
    } while (!stops);
    return NULL;
}

/* Cancels calls that have lasted too long; each is told once, its events then come soon. */
static void sweep(struct heft_grpc_server *server)
{
    struct server_call *call;
    uint64_t now_ns;

    (void)pthread_mutex_lock(&server->lock);
    /* Read under the lock: a call that another thread began, or its sweep, would else lie after "now". */
    now_ns = heft_now_ns();
    if (now_ns - server->swept_ns >= SERVER_SWEEP_MS * HEFT_NS_PER_MS) {
        server->swept_ns = now_ns;
        for (call = server->active; call; call = call->next)
            if (now_ns > call->begin_ns &&
                now_ns - call->begin_ns > server->options.max_call_ms * HEFT_NS_PER_MS)
                (void)grpc_call_cancel(call->call, NULL);
    }
    (void)pthread_mutex_unlock(&server->lock);
}

static void on_event(struct heft_grpc_server *server, grpc_event event)
{
    struct server_call *call = event.tag;

    if (event.tag == server) { /* the answer to grpc_server_shutdown_and_notify */
        (void)pthread_mutex_lock(&server->lock);
        server->is_stopped = 1;
        (void)pthread_cond_broadcast(&server->changed);
        (void)pthread_mutex_unlock(&server->lock);
        return;
    }
    switch (__atomic_load_n(&call->state, __ATOMIC_ACQUIRE)) {
    case CALL_WAITING:
        if (event.success)
            on_arrival(call);
        else
            free_call(call); /* the server stops */
        break;
    case CALL_RECEIVING:
        on_request(call, event.success);
        break;
    case CALL_ANSWERING:
        free_call(call);
        break;
    }
}

static void *serve(void *context)
{
    struct heft_grpc_server *server = context;

    for (;;) {
        gpr_timespec deadline =
            gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(SERVER_SWEEP_MS, GPR_TIMESPAN));
        grpc_event event = grpc_completion_queue_next(server->queue, deadline, NULL);

        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        if (event.type == GRPC_OP_COMPLETE)
            on_event(server, event);
        sweep(server);
    }
}

static grpc_arg int_arg(const char *key, int value)
{
    grpc_arg arg;

    memset(&arg, 0, sizeof(arg));
    arg.type = GRPC_ARG_INTEGER;
    memcpy(&arg.key, &key, sizeof(key)); /* gRPC only reads it, but its type is not const */
    arg.value.integer = value;
    return arg;
}

static void make_server(struct heft_grpc_server *server)
{
    grpc_arg args[16];
    grpc_channel_args list = {0, args};

    server->quota = grpc_resource_quota_create("heft");
    grpc_resource_quota_resize(server->quota, SERVER_MEMORY_BYTES);
    args[list.num_args++] = int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0);
    args[list.num_args++] =
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)server->options.max_request_bytes);
    args[list.num_args++] = int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, 256);
    args[list.num_args++] = int_arg(GRPC_ARG_MAX_METADATA_SIZE, 8192);
    args[list.num_args++] = int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, (int)server->options.handshake_ms);
    args[list.num_args++] = int_arg(GRPC_ARG_MAX_CONNECTION_IDLE_MS, (int)server->options.idle_connection_ms);
    /* Who is silent is asked, with or without a call: one that does not speak HTTP/2 after all, or is dead,
     * is hung up on. */
    args[list.num_args++] = int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, SERVER_KEEPALIVE_MS);
    args[list.num_args++] = int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, SERVER_KEEPALIVE_WAIT_MS);
    args[list.num_args++] = int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    args[list.num_args++] = int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    args[list.num_args++] = int_arg(GRPC_ARG_ENABLE_CHANNELZ, 0);
    /* Compressed messages could unfold to any size: refused (UNIMPLEMENTED tells the client to send plain).
     */
    args[list.num_args++] = int_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1);
    memset(&args[list.num_args], 0, sizeof(args[0]));
    args[list.num_args] = int_arg(GRPC_ARG_RESOURCE_QUOTA, 0);
    args[list.num_args].type = GRPC_ARG_POINTER;
    args[list.num_args].value.pointer.p = server->quota;
    args[list.num_args++].value.pointer.vtable = grpc_resource_quota_arg_vtable();
    server->server = grpc_server_create(&list, NULL);
    server->queue = grpc_completion_queue_create_for_next(NULL);
    grpc_server_register_completion_queue(server->server, server->queue, NULL);
}

int heft_grpc_server_start(struct heft_grpc_server *server, struct heft_error *error)
{
    grpc_server_credentials *credentials;
    uint32_t index;
    int port, result = heft_listen_check(server->listen, "gRPC", error);

    HEFT_ASSERT(!server->is_started);
    if (result)
        return result;
    make_server(server);
    server->is_started = 1;
    credentials = grpc_insecure_server_credentials_create();
    port = grpc_server_add_http2_port(server->server, server->listen, credentials);
    grpc_server_credentials_release(credentials);
    if (port <= 0)
        return heft_error_set(error, HEFT_ERR_UNAVAILABLE, "gRPC: can't listen at %s: choose another address",
                              server->listen);
    server->port = (uint16_t)port;
    grpc_server_start(server->server);
    for (index = 0; index < SERVER_SLOTS; index++)
        if ((result = offer(server)) != 0)
            return heft_error_set(error, result, "gRPC: can't serve at %s: %s", server->listen,
                                  heft_error_text(result));
    for (index = 0; index < server->options.threads; index++) {
        result = pthread_create(&server->threads[index], NULL, serve, server);
        if (result)
            return heft_error_set_errno(error, result, "gRPC: starting a thread");
        server->thread_count++;
    }
    result = pthread_create(&server->waiter, NULL, ask_parked, server);
    if (result)
        return heft_error_set_errno(error, result, "gRPC: starting a thread");
    (void)pthread_mutex_lock(&server->lock);
    server->has_waiter = 1;
    (void)pthread_mutex_unlock(&server->lock);
    return 0;
}

uint16_t heft_grpc_server_port(const struct heft_grpc_server *server)
{
    return server->port;
}

void heft_grpc_server_get_counts(struct heft_grpc_server *server, struct heft_grpc_server_counts *counts_out)
{
    (void)pthread_mutex_lock(&server->lock);
    *counts_out = server->counts;
    (void)pthread_mutex_unlock(&server->lock);
}

/* Waits until the server's calls have ended, or grace_ms passed. */
static void wait_stopped(struct heft_grpc_server *server, uint32_t grace_ms)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += grace_ms / 1000;
    until.tv_nsec += (long)(grace_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    (void)pthread_mutex_lock(&server->lock);
    while (!server->is_stopped && pthread_cond_timedwait(&server->changed, &server->lock, &until) == 0)
        continue;
    (void)pthread_mutex_unlock(&server->lock);
}

static void stop(struct heft_grpc_server *server, uint32_t grace_ms)
{
    uint32_t index;
    grpc_event event;

    if (server->has_waiter) { /* what waits is answered now, so that it does not hold the shutdown up */
        (void)pthread_mutex_lock(&server->lock);
        server->is_stopping = 1;
        (void)pthread_cond_signal(&server->poked);
        (void)pthread_mutex_unlock(&server->lock);
        (void)pthread_join(server->waiter, NULL);
    }
    grpc_server_shutdown_and_notify(server->server, server->queue, server);
    if (server->thread_count) {
        wait_stopped(server, grace_ms);
        grpc_server_cancel_all_calls(server->server);
    } else { /* never served: drain the queue here */
        grpc_server_cancel_all_calls(server->server);
        while (!server->is_stopped) {
            event = grpc_completion_queue_next(server->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
            if (event.type == GRPC_OP_COMPLETE)
                on_event(server, event);
        }
    }
    (void)pthread_mutex_lock(&server->lock);
    while (!server->is_stopped)
        (void)pthread_cond_wait(&server->changed, &server->lock);
    (void)pthread_mutex_unlock(&server->lock);
    grpc_completion_queue_shutdown(server->queue);
    for (index = 0; index < server->thread_count; index++)
        (void)pthread_join(server->threads[index], NULL);
    if (!server->thread_count)
        while ((event = grpc_completion_queue_next(server->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL))
                   .type != GRPC_QUEUE_SHUTDOWN)
            on_event(server, event);
    grpc_server_destroy(server->server);
    grpc_completion_queue_destroy(server->queue);
    grpc_resource_quota_unref(server->quota);
}

void heft_grpc_server_free(struct heft_grpc_server *server, uint32_t grace_ms)
{
    if (!server)
        return;
    if (server->is_started)
        stop(server, grace_ms);
    heft_grpc_release();
    (void)pthread_cond_destroy(&server->changed);
    (void)pthread_cond_destroy(&server->poked);
    (void)pthread_mutex_destroy(&server->lock);
    free(server);
}
