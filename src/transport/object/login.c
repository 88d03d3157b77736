/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Secrets of a store. Those that expire are fetched anew by a thread of their own, well before: requests are
 * signed on threads that must never wait for an identity service. A failed renewal is tried again until the
 * old ones are no longer taken; then the store's refusal says what happened.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/object/object.h"

#include <openssl/crypto.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MARGIN_MS ((uint64_t)300000) /* before they expire */
#define LEAST_PAUSE_MS ((uint64_t)1000)
#define MOST_PAUSE_MS ((uint64_t)30000)

struct heft_object_login {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    int has_thread;
    int refused;      /* fetch anew soon */
    uint32_t closing; /* atomic */
    heft_object_login_fetch *fetch;
    void *context;
    struct heft_object_secrets secrets;
};

void heft_object_secrets_free(struct heft_object_secrets *secrets)
{
    heft_object_free_secret(secrets->token);
    OPENSSL_cleanse(secrets->secret_key, sizeof(secrets->secret_key));
    *secrets = (struct heft_object_secrets){0};
}

/* From now until the next fetch. */
static uint64_t pause_of(const struct heft_object_secrets *secrets)
{
    uint64_t now = heft_wall_ms();
    uint64_t left = secrets->expires_ms > now ? secrets->expires_ms - now : 0;
    uint64_t margin = left / 2 < MARGIN_MS ? left / 2 : MARGIN_MS;

    return left - margin > LEAST_PAUSE_MS ? left - margin : LEAST_PAUSE_MS;
}

/* Under the lock. */
static void wait_until(struct heft_object_login *login, uint64_t end_ns)
{
    struct timespec when = {.tv_sec = (time_t)(end_ns / HEFT_NS_PER_S),
                            .tv_nsec = (long)(end_ns % HEFT_NS_PER_S)};

    (void)pthread_cond_timedwait(&login->wake, &login->lock, &when);
}

static void *keep_fresh(void *context)
{
    struct heft_object_login *login = context;
    uint64_t pause_ms, began, failed_ms = 0;

    (void)pthread_mutex_lock(&login->lock);
    pause_ms = pause_of(&login->secrets);
    began = heft_now_ns();
    while (!__atomic_load_n(&login->closing, __ATOMIC_RELAXED)) {
        struct heft_object_secrets fresh = {0};
        struct heft_error error = HEFT_ERROR_INIT;
        uint64_t due = began + (login->refused && pause_ms > LEAST_PAUSE_MS ? LEAST_PAUSE_MS : pause_ms) *
                                   HEFT_NS_PER_MS;
        int rc;

        if (heft_now_ns() < due) {
            wait_until(login, due);
            continue;
        }
        (void)pthread_mutex_unlock(&login->lock);
        rc = login->fetch(login->context, &login->closing, &fresh, &error);
        (void)pthread_mutex_lock(&login->lock);
        began = heft_now_ns();
        if (rc) {
            failed_ms = failed_ms ? failed_ms * 2 : LEAST_PAUSE_MS;
            pause_ms = failed_ms = failed_ms < MOST_PAUSE_MS ? failed_ms : MOST_PAUSE_MS;
            if (rc != HEFT_ERR_CANCELED)
                heft_log(HEFT_LOG_WARN, "credentials of an object store could not be renewed: %s",
                         error.text);
            continue;
        }
        fresh.number = login->secrets.number + 1;
        heft_object_secrets_free(&login->secrets);
        login->secrets = fresh;
        login->refused = 0;
        failed_ms = 0;
        pause_ms = pause_of(&fresh);
    }
    (void)pthread_mutex_unlock(&login->lock);
    return NULL;
}

static struct heft_object_login *make(void)
{
    struct heft_object_login *login = calloc(1, sizeof(*login));
    pthread_condattr_t attributes;

    if (!login)
        return NULL;
    (void)pthread_mutex_init(&login->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&login->wake, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    return login;
}

int heft_object_login_keep(struct heft_object_secrets *secrets, struct heft_object_login **login_out,
                           struct heft_error *error)
{
    struct heft_object_login *login = make();

    if (!login) {
        heft_object_secrets_free(secrets);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an object store");
    }
    login->secrets = *secrets;
    *secrets = (struct heft_object_secrets){0};
    *login_out = login;
    return HEFT_OK;
}

int heft_object_login_create(heft_object_login_fetch *fetch, void *context,
                             struct heft_object_login **login_out, struct heft_error *error)
{
    struct heft_object_login *login = make();
    int rc;

    if (!login) {
        free(context);
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an object store");
    }
    login->fetch = fetch;
    login->context = context;
    rc = fetch(context, &login->closing, &login->secrets, error);
    if (!rc && login->secrets.expires_ms) {
        if (pthread_create(&login->thread, NULL, keep_fresh, login))
            rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "no thread to renew credentials");
        login->has_thread = rc == HEFT_OK;
    }
    if (rc) {
        heft_object_login_free(login);
        return rc;
    }
    *login_out = login;
    return HEFT_OK;
}

void heft_object_login_free(struct heft_object_login *login)
{
    if (!login)
        return;
    if (login->has_thread) {
        __atomic_store_n(&login->closing, 1, __ATOMIC_RELAXED);
        (void)pthread_mutex_lock(&login->lock);
        (void)pthread_cond_broadcast(&login->wake);
        (void)pthread_mutex_unlock(&login->lock);
        (void)pthread_join(login->thread, NULL);
    }
    heft_object_secrets_free(&login->secrets);
    free(login->context);
    (void)pthread_cond_destroy(&login->wake);
    (void)pthread_mutex_destroy(&login->lock);
    free(login);
}

int heft_object_login_get(struct heft_object_login *login, struct heft_object_secrets *secrets_out)
{
    int rc = HEFT_OK;

    (void)pthread_mutex_lock(&login->lock);
    *secrets_out = login->secrets;
    if (login->secrets.token) {
        secrets_out->token = strdup(login->secrets.token);
        rc = secrets_out->token ? HEFT_OK : HEFT_ERR_NO_MEMORY;
    }
    (void)pthread_mutex_unlock(&login->lock);
    return rc;
}

int heft_object_login_refused(struct heft_object_login *login, uint64_t number)
{
    if (!login->has_thread)
        return 0;
    (void)pthread_mutex_lock(&login->lock);
    login->refused |= number == login->secrets.number;
    (void)pthread_cond_broadcast(&login->wake);
    (void)pthread_mutex_unlock(&login->lock);
    return 1;
}
