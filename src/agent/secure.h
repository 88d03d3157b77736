/* SPDX-License-Identifier: Apache-2.0 */
/* TLS of one agent: its certificates, and the sessions on their way from a handshake to a transport. */
#ifndef HEFT_AGENT_SECURE_H
#define HEFT_AGENT_SECURE_H

#include "agent/agent_internal.h"
#include "transport/tls.h"

struct heft_secure {
    struct heft_tls_context *context; /* NULL: this agent speaks no TLS */
    pthread_mutex_t lock;
    struct heft_kept_tls *kept;
};

/* All three files or none. */
int heft_secure_open(struct heft_agent *agent, const struct heft_agent_options *options,
                     struct heft_error *error);
void heft_secure_close(struct heft_agent *agent);
/* Whether a transport may have TLS descriptors, else UNSUPPORTED and the remedy. */
int heft_secure_check_transport(const struct heft_agent *agent, uint32_t index, struct heft_error *error);
/* The session of a descriptor that is handed on (tls NULL: nothing to keep), and taking it out again. */
int heft_secure_keep(struct heft_agent *agent, int fd, struct heft_tls *tls, struct heft_error *error);
struct heft_tls *heft_secure_take(void *agent, int fd);

#endif
