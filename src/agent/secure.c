/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/secure.h"

#include "base/error.h"

#include <stdlib.h>

struct heft_kept_tls {
    struct heft_kept_tls *next;
    struct heft_tls *tls;
    int fd;
};

int heft_secure_open(struct heft_agent *agent, const struct heft_agent_options *options,
                     struct heft_error *error)
{
    struct heft_secure *secure;
    int rc;

    if (!options->tls_ca && !options->tls_cert && !options->tls_key)
        return 0;
    if (!options->tls_ca || !options->tls_cert || !options->tls_key)
        return heft_error_set(error, HEFT_ERR_INVALID,
                              "TLS needs tls_ca, tls_cert and tls_key together; %s is missing",
                              !options->tls_ca     ? "tls_ca"
                              : !options->tls_cert ? "tls_cert"
                                                   : "tls_key");
    secure = calloc(1, sizeof(*secure));
    if (!secure)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for TLS");
    rc = heft_tls_open(options->tls_ca, options->tls_cert, options->tls_key, &secure->context, error);
    if (rc) {
        free(secure);
        return rc;
    }
    (void)pthread_mutex_init(&secure->lock, NULL);
    agent->secure = secure;
    return 0;
}

void heft_secure_close(struct heft_agent *agent)
{
    struct heft_secure *secure = agent->secure;

    if (!secure)
        return;
    while (secure->kept) {
        struct heft_kept_tls *first = secure->kept;

        secure->kept = first->next;
        heft_tls_free(first->tls);
        free(first);
    }
    heft_tls_close(secure->context);
    (void)pthread_mutex_destroy(&secure->lock);
    free(secure);
    agent->secure = NULL;
}

int heft_secure_check_transport(const struct heft_agent *agent, uint32_t index, struct heft_error *error)
{
    const struct heft_transport_ops *ops = &agent->transports[index].ops;

    if (!agent->secure || (ops->flags & HEFT_TRANSPORT_TLS))
        return 0;
    return heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                          "transport %s has no TLS and this agent was given tls_ca: use a unix socket or tcp",
                          ops->name);
}

int heft_secure_keep(struct heft_agent *agent, int fd, struct heft_tls *tls, struct heft_error *error)
{
    struct heft_kept_tls *kept;

    if (!tls)
        return 0;
    kept = malloc(sizeof(*kept));
    if (!kept)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a TLS session");
    kept->tls = tls;
    kept->fd = fd;
    (void)pthread_mutex_lock(&agent->secure->lock);
    kept->next = agent->secure->kept;
    agent->secure->kept = kept;
    (void)pthread_mutex_unlock(&agent->secure->lock);
    return 0;
}

struct heft_tls *heft_secure_take(void *context, int fd)
{
    struct heft_agent *agent = context;
    struct heft_kept_tls **at, *found = NULL;
    struct heft_tls *tls = NULL;

    if (!agent->secure)
        return NULL;
    (void)pthread_mutex_lock(&agent->secure->lock);
    for (at = &agent->secure->kept; *at; at = &(*at)->next)
        if ((*at)->fd == fd) {
            found = *at;
            *at = found->next;
            break;
        }
    (void)pthread_mutex_unlock(&agent->secure->lock);
    if (found)
        tls = found->tls;
    free(found);
    return tls;
}
