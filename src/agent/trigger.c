/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers that a GPU starts: words of pinned memory, and one thread of the agent that looks at them and
 * posts. It spins for a moment after each start, since the next often follows soon, and sleeps a little
 * between looks otherwise.
 */
#include "agent/xfer.h"

#include "base/clock.h"
#include "base/error.h"
#include "space/cuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define WORD_BYTES 64
#define SPIN_NS UINT64_C(200000)
#define SOON_NS (2 * HEFT_NS_PER_MS)
#define NAP_NS 10000
#define LONG_NAP_NS 50000

struct heft_trigger {
    struct heft_trigger *next;
    struct heft_xfer *xfer;
    uint64_t *word; /* atomic */
    int rung;       /* the word was put back, the post is still to be taken */
    uint64_t started, refused;
    struct heft_error error;
};

/* agent->proxy: there while a trigger is open. */
struct heft_proxy {
    pthread_t thread;
    pthread_mutex_t lock; /* the rest */
    struct heft_trigger *triggers;
    int stop;
};

/* 1: something happened. lock held. */
static int look(struct heft_trigger *trigger)
{
    struct heft_error error = HEFT_ERROR_INIT;
    int rc;

    if (!trigger->rung) {
        if (!__atomic_load_n(trigger->word, __ATOMIC_ACQUIRE))
            return 0;
        __atomic_store_n(trigger->word, 0, __ATOMIC_SEQ_CST);
        trigger->rung = 1;
    }
    if (heft_xfer_poll(trigger->xfer) == HEFT_ERR_AGAIN)
        return 0; /* it follows when that one is over */
    rc = heft_xfer_post(trigger->xfer, &error);
    if (rc == HEFT_ERR_STATE && heft_xfer_poll(trigger->xfer) == HEFT_ERR_AGAIN)
        return 0; /* somebody else was first */
    trigger->rung = 0;
    trigger->started += !rc;
    trigger->refused += rc != 0;
    if (rc)
        trigger->error = error;
    return 1;
}

static void *proxy_main(void *argument)
{
    struct heft_proxy *proxy = argument;
    uint64_t news_ns = heft_now_ns(), quiet_ns;
    struct heft_trigger *trigger;
    int stop = 0, news;

    (void)prctl(PR_SET_TIMERSLACK, 1000); /* naps of 10 us would take 60 */
    while (!stop) {
        news = 0;
        (void)pthread_mutex_lock(&proxy->lock);
        for (trigger = proxy->triggers; trigger; trigger = trigger->next)
            news |= look(trigger);
        stop = proxy->stop;
        (void)pthread_mutex_unlock(&proxy->lock);
        quiet_ns = heft_now_ns() - news_ns;
        if (news)
            news_ns = heft_now_ns();
        else if (quiet_ns > SPIN_NS) {
            struct timespec nap = {0, quiet_ns > SOON_NS ? LONG_NAP_NS : NAP_NS};

            (void)nanosleep(&nap, NULL);
        }
    }
    return NULL;
}

/* The agent's, made now if it has none. agent->proxy_lock held. */
static int take_proxy(struct heft_agent *agent, struct heft_error *error)
{
    struct heft_proxy *proxy;
    int rc;

    if (agent->proxy)
        return 0;
    proxy = calloc(1, sizeof(*proxy));
    if (!proxy)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a trigger");
    (void)pthread_mutex_init(&proxy->lock, NULL);
    rc = pthread_create(&proxy->thread, NULL, proxy_main, proxy);
    if (rc) {
        (void)pthread_mutex_destroy(&proxy->lock);
        free(proxy);
        return heft_error_set_errno(error, rc, "starting the thread that looks at triggers");
    }
    agent->proxy = proxy;
    return 0;
}

static int make_word(const struct heft_cu *cu, uint64_t **word_out, struct heft_error *error)
{
    heft_cu_result result;
    void *word = NULL;
    int rc = heft_cuda_enter(heft_cuda_used_device(), error);

    if (rc)
        return rc;
    result = cu->host_alloc(&word, WORD_BYTES, HEFT_CU_HOST_ALLOC_PORTABLE | HEFT_CU_HOST_ALLOC_MAPPED);
    heft_cuda_leave();
    if (result)
        return heft_cuda_error(error, result, "taking pinned memory for the word of a trigger");
    memset(word, 0, WORD_BYTES);
    *word_out = word;
    return 0;
}

static void free_word(uint64_t *word)
{
    if (!heft_cuda_enter(heft_cuda_used_device(), NULL)) {
        (void)heft_cuda_loaded()->host_free(word);
        heft_cuda_leave();
    }
}

int heft_trigger_open(struct heft_xfer *xfer, struct heft_trigger **trigger_out, struct heft_error *error)
{
    struct heft_agent *agent = xfer->agent;
    struct heft_trigger *trigger;
    const struct heft_cu *cu;
    int rc;

    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    rc = heft_cuda_load(&cu, error);
    if (rc)
        return rc;
    trigger = calloc(1, sizeof(*trigger));
    if (!trigger)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for a trigger");
    rc = make_word(cu, &trigger->word, error);
    if (rc)
        goto fail_trigger;
    (void)pthread_mutex_lock(&agent->proxy_lock);
    rc = take_proxy(agent, error);
    if (!rc) {
        trigger->xfer = xfer;
        (void)__atomic_add_fetch(&xfer->refs, 1, __ATOMIC_RELAXED);
        (void)__atomic_add_fetch(&agent->busy, 1, __ATOMIC_ACQ_REL);
        (void)pthread_mutex_lock(&agent->proxy->lock);
        trigger->next = agent->proxy->triggers;
        agent->proxy->triggers = trigger;
        (void)pthread_mutex_unlock(&agent->proxy->lock);
    }
    (void)pthread_mutex_unlock(&agent->proxy_lock);
    if (rc)
        goto fail_word;
    *trigger_out = trigger;
    return 0;
fail_word:
    free_word(trigger->word);
fail_trigger:
    free(trigger);
    return rc;
}

void heft_trigger_get_info(struct heft_trigger *trigger, struct heft_trigger_info *info_out)
{
    struct heft_proxy *proxy = trigger->xfer->agent->proxy;
    size_t size = info_out->size < sizeof(*info_out) ? info_out->size : sizeof(*info_out);
    struct heft_trigger_info info = {.size = size, .word = trigger->word};

    (void)pthread_mutex_lock(&proxy->lock);
    info.started = trigger->started;
    info.refused = trigger->refused;
    info.error = trigger->error;
    (void)pthread_mutex_unlock(&proxy->lock);
    memcpy(info_out, &info, size);
}

void heft_trigger_close(struct heft_trigger *trigger)
{
    struct heft_trigger **at;
    struct heft_agent *agent;
    struct heft_proxy *proxy;
    int last;

    if (!trigger || heft_agent_forked(trigger->xfer->agent))
        return;
    agent = trigger->xfer->agent;
    (void)pthread_mutex_lock(&agent->proxy_lock);
    proxy = agent->proxy;
    (void)pthread_mutex_lock(&proxy->lock);
    for (at = &proxy->triggers; *at != trigger; at = &(*at)->next)
        ;
    *at = trigger->next;
    last = proxy->stop = proxy->triggers == NULL;
    (void)pthread_mutex_unlock(&proxy->lock);
    if (last) {
        (void)pthread_join(proxy->thread, NULL);
        (void)pthread_mutex_destroy(&proxy->lock);
        free(proxy);
        agent->proxy = NULL;
    }
    (void)pthread_mutex_unlock(&agent->proxy_lock);
    free_word(trigger->word);
    (void)__atomic_sub_fetch(&agent->busy, 1, __ATOMIC_ACQ_REL);
    heft_xfer_unref(trigger->xfer);
    free(trigger);
}
