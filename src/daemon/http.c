/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/http.h"
#include "agent/telemetry.h"
#include "base/error.h"
#include "base/log.h"
#include "control/grpc_base.h"

#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define HTTP_MAX_CONNECTIONS 1200u
#define HTTP_CONNECTION_BYTES ((size_t)8192) /* a request's line and headers must fit */
#define HTTP_IDLE_S 10u
#define HTTP_MAX_BODY_BYTES ((size_t)4 << 20)
#define HTTP_MAX_METRICS_BYTES ((size_t)64 << 20) /* of some thousands of agents */

struct heft_http {
    struct heft_http_sources sources;
    struct MHD_Daemon *daemon;
    uint16_t port;
};

static enum MHD_Result send_body(struct MHD_Connection *connection, unsigned int status, const char *type,
                                 struct heft_buf *body)
{
    struct MHD_Response *response;
    enum MHD_Result result;

    if (body->failed) {
        heft_buf_free(body);
        return MHD_NO;
    }
    response = MHD_create_response_from_buffer(body->size, body->data, MHD_RESPMEM_MUST_COPY);
    heft_buf_free(body);
    if (!response)
        return MHD_NO;
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    (void)MHD_add_response_header(response, "Content-Security-Policy",
                                  "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static void ready_text(const struct heft_http_sources *sources, struct heft_buf *body)
{
    struct heft_directory_service_status status;

    heft_directory_service_get_status(sources->service, &status);
    if (status.store_error[0])
        heft_buf_printf(body, "ready, but records do not outlive a restart now: %s\n", status.store_error);
    else
        heft_buf_printf(body, "ready\n");
}

/* What agents of this host counted is read from memory: none of them is asked, and none can delay it. */
static void metrics_text(const struct heft_http_sources *sources, struct heft_buf *body)
{
    struct heft_telemetry_list list;

    body->limit = HTTP_MAX_METRICS_BYTES;
    heft_http_metrics(sources, body);
    if (!sources->host_agents || heft_telemetry_read(NULL, &list, NULL))
        return;
    heft_telemetry_prometheus(&list, body);
    heft_telemetry_list_free(&list);
}

static enum MHD_Result answer(void *context, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_bytes, void **state)
{
    static int seen; /* its address marks a request whose headers were shown already */
    struct heft_http *http = context;
    struct heft_buf body;

    (void)version;
    (void)upload;
    heft_buf_init(&body, HTTP_MAX_BODY_BYTES);
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
        heft_buf_printf(&body, "only GET and HEAD\n");
        return send_body(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", &body);
    }
    if (!*state || *upload_bytes) { /* headers alone, or a body that nobody wants: the answer comes later */
        *state = &seen;
        *upload_bytes = 0;
        return MHD_YES;
    }
    if (strcmp(url, "/healthz") == 0) {
        heft_buf_printf(&body, "ok\n");
    } else if (strcmp(url, "/readyz") == 0) {
        ready_text(&http->sources, &body);
    } else if (strcmp(url, "/metrics") == 0) {
        metrics_text(&http->sources, &body);
        return send_body(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", &body);
    } else if (strcmp(url, "/") == 0) {
        heft_http_page(&http->sources, &body);
        return send_body(connection, MHD_HTTP_OK, "text/html; charset=utf-8", &body);
    } else {
        heft_buf_printf(&body, "there is /, /metrics, /healthz and /readyz\n");
        return send_body(connection, MHD_HTTP_NOT_FOUND, "text/plain; charset=utf-8", &body);
    }
    return send_body(connection, MHD_HTTP_OK, "text/plain; charset=utf-8", &body);
}

__attribute__((format(printf, 2, 0))) static void log_message(void *context, const char *format, va_list args)
{
    char text[256];

    (void)context;
    (void)vsnprintf(text, sizeof(text), format, args);
    text[strcspn(text, "\r\n")] = 0;
    heft_log(HEFT_LOG_DEBUG, "http: %s", text);
}

/* Half of the files that the process may open, so that gRPC never lacks them. */
static unsigned int connection_limit(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur / 2 >= HTTP_MAX_CONNECTIONS)
        return HTTP_MAX_CONNECTIONS;
    return files.rlim_cur / 2 < 4 ? 4 : (unsigned int)(files.rlim_cur / 2);
}

int heft_http_start(const char *listen, const struct heft_http_sources *sources, struct heft_http **http_out,
                    struct heft_error *error)
{
    struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *found = NULL;
    struct heft_grpc_address address;
    const union MHD_DaemonInfo *info;
    struct heft_http *http;
    unsigned int flags = MHD_USE_EPOLL | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ERROR_LOG;
    char port[8];
    int result = heft_listen_check(listen, "HTTP", error);

    if (result)
        return result;
    (void)heft_grpc_address_parse(listen, &address, NULL);
    (void)snprintf(port, sizeof(port), "%u", address.port);
    result = getaddrinfo(address.host, port, &hints, &found);
    if (result)
        return heft_error_set(error, HEFT_ERR_UNAVAILABLE, "HTTP: can't resolve '%s': %s", address.host,
                              gai_strerror(result));
    http = calloc(1, sizeof(*http));
    if (!http) {
        freeaddrinfo(found);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "HTTP: out of memory");
    }
    http->sources = *sources;
    if (found->ai_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    http->daemon = MHD_start_daemon(
        flags, address.port, NULL, NULL, answer, http, MHD_OPTION_EXTERNAL_LOGGER, log_message, NULL,
        MHD_OPTION_SOCK_ADDR, found->ai_addr, MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u,
        MHD_OPTION_CONNECTION_LIMIT, connection_limit(), MHD_OPTION_CONNECTION_TIMEOUT, HTTP_IDLE_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, HTTP_CONNECTION_BYTES, MHD_OPTION_END);
    freeaddrinfo(found);
    if (!http->daemon) {
        free(http);
        return heft_error_set(error, HEFT_ERR_UNAVAILABLE, "HTTP: can't serve at %s: choose another address",
                              listen);
    }
    info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT);
    http->port = info ? info->port : address.port;
    *http_out = http;
    return 0;
}

uint16_t heft_http_port(const struct heft_http *http)
{
    return http->port;
}

void heft_http_stop(struct heft_http *http)
{
    if (!http)
        return;
    MHD_stop_daemon(http->daemon);
    free(http);
}
