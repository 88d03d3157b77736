/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One place to scrape for all agents of a host. It reads what they left in memory: no agent opens a port, and
 * none depends on this process.
 */
#include "base/error.h"
#include "cli/agents.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define BODY_MAX_BYTES ((size_t)64 << 20)
#define IDLE_S 10u
#define CONNECTIONS_MAX 64u

static enum MHD_Result send_text(struct MHD_Connection *connection, unsigned int status, const void *text,
                                 size_t size)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer_with_free_callback(size, (void *)(uintptr_t)text, free);
    enum MHD_Result result;

    if (!response) {
        free((void *)(uintptr_t)text);
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
                                  "text/plain; version=0.0.4; charset=utf-8");
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer(void *context, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_bytes, void **state)
{
    static int seen; /* its address marks a request whose headers were shown already */
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_telemetry_list list;
    unsigned int status = MHD_HTTP_OK;
    struct heft_buf body;
    int rc;

    (void)version;
    (void)upload;
    if (!*state || *upload_bytes) {
        *state = &seen;
        *upload_bytes = 0;
        return MHD_YES;
    }
    heft_buf_init(&body, BODY_MAX_BYTES);
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
        status = MHD_HTTP_METHOD_NOT_ALLOWED;
        heft_buf_printf(&body, "only GET and HEAD\n");
    } else if (strcmp(url, "/metrics") != 0) {
        status = MHD_HTTP_NOT_FOUND;
        heft_buf_printf(&body, "there is /metrics\n");
    } else {
        rc = cli_agents_read(context, NULL, &list, &error);
        if (rc) {
            status = MHD_HTTP_INTERNAL_SERVER_ERROR;
            heft_buf_printf(&body, "%s\n", error.text);
        } else {
            heft_telemetry_prometheus(&list, &body);
            heft_telemetry_list_free(&list);
        }
    }
    if (body.failed) {
        heft_buf_free(&body);
        return MHD_NO;
    }
    return send_text(connection, status, body.data, body.size); /* takes the bytes over */
}

/* "HOST:PORT", "[::1]:PORT", ":PORT" (loopback). */
static int look_up(const char *address, struct addrinfo **found_out, struct heft_error *error)
{
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    const char *colon = strrchr(address, ':');
    char host[256] = "127.0.0.1", *begin = host;
    size_t size = colon ? (size_t)(colon - address) : 0;
    int rc;

    if (!colon || !colon[1] || colon[1 + strspn(colon + 1, "0123456789")] || strlen(colon) > 6 ||
        strtoul(colon + 1, NULL, 10) > UINT16_MAX || size >= sizeof(host))
        return heft_error_set(error, HEFT_ERR_INVALID, "--serve %s: write HOST:PORT", address);
    if (size) {
        memcpy(host, address, size);
        host[size] = 0;
    }
    if (host[0] == '[' && size > 2 && host[size - 1] == ']') {
        host[size - 1] = 0;
        begin++;
    }
    rc = getaddrinfo(begin, colon + 1, &hints, found_out);
    if (rc)
        return heft_error_set(error, HEFT_ERR_INVALID, "--serve %s: %s", address, gai_strerror(rc));
    return 0;
}

int cli_scrape_serve(const struct cli *cli, const char *address, struct heft_error *error)
{
    unsigned int flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO;
    struct heft_telemetry_list list;
    struct addrinfo *found = NULL;
    const union MHD_DaemonInfo *info;
    struct MHD_Daemon *daemon;
    sigset_t signals;
    int number, rc = look_up(address, &found, error);

    if (!rc)
        rc = cli_agents_read(cli, NULL, &list, error); /* a folder that is wrong is told now */
    if (rc) {
        if (found)
            freeaddrinfo(found);
        return rc;
    }
    heft_telemetry_list_free(&list);
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if (found->ai_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    daemon = MHD_start_daemon(flags, 0, NULL, NULL, answer, (void *)(uintptr_t)cli, MHD_OPTION_SOCK_ADDR,
                              found->ai_addr, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX,
                              MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, MHD_OPTION_END);
    freeaddrinfo(found);
    if (!daemon)
        return heft_error_set(error, HEFT_ERR_UNAVAILABLE,
                              "--serve %s: can't listen there: is it this host's, and is the port free?",
                              address);
    info = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT);
    fprintf(stderr, "heft: stats: serving /metrics at port %u; Ctrl-C ends it\n",
            info ? (unsigned)info->port : 0);
    (void)sigwait(&signals, &number);
    MHD_stop_daemon(daemon);
    return 0;
}
