/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heftd over HTTP, for people and machines that watch: /healthz, /readyz, /metrics (Prometheus text), and a
 * page that lists the replicas. Read-only, and never a token in it.
 */
#ifndef HEFT_DAEMON_HTTP_H
#define HEFT_DAEMON_HTTP_H

#include "control/directory_service.h"
#include "control/grpc_server.h"

struct heft_http;

struct heft_http_sources {
    struct heft_directory_service *service;
    struct heft_grpc_server *server;
    int host_agents; /* /metrics has the agents of this host, too */
};

/* The errors are those of heft_listen_check. `sources` is copied; what it names must outlive the HTTP side.
 */
int heft_http_start(const char *listen, const struct heft_http_sources *sources, struct heft_http **http_out,
                    struct heft_error *error);
uint16_t heft_http_port(const struct heft_http *http);
void heft_http_stop(struct heft_http *http);

/* The bodies, for http.c and tests. */
void heft_http_metrics(const struct heft_http_sources *sources, struct heft_buf *buf);
void heft_http_page(const struct heft_http_sources *sources, struct heft_buf *buf);

#endif
