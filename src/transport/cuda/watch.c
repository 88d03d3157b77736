/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watcher: looks at the events of what flies, spins for a moment after each arrival and sleeps a little
 * between looks, so that neither a worker nor a device ever waits. It sleeps for good when nothing flies.
 */
#include "transport/cuda/cuda.h"

#include "base/clock.h"

#include <sys/prctl.h>
#include <time.h>

#define SPIN_NS UINT64_C(100000)
#define LINGER_NS UINT64_C(30000)
#define ASK_LOOKS 512u /* of a thread that spins: some 10 us */
#define SOON_NS (2 * HEFT_NS_PER_MS)
#define NAP_NS 10000
#define LONG_NAP_NS 50000

/* The next flight often comes right after the last one ended: a thread that sleeps would be late for it. */
static void linger(struct cuda_transport *transport)
{
    uint64_t end_ns = heft_now_ns() + LINGER_NS;

    while (!__atomic_load_n(&transport->started, __ATOMIC_ACQUIRE) && heft_now_ns() < end_ns)
        ;
}

/* New flights behind the older ones. 0: closing, and nothing flies. */
static int collect(struct cuda_transport *transport, struct cuda_flight **flying)
{
    struct cuda_flight *started, **end = flying;
    int goes_on;

    /* Who posts takes the lock too: while something flies it is left alone. */
    if (*flying && !__atomic_load_n(&transport->started, __ATOMIC_ACQUIRE))
        return 1;
    (void)pthread_mutex_lock(&transport->lock);
    while (!*flying && !transport->started && !transport->held && !transport->closing)
        (void)pthread_cond_wait(&transport->changed, &transport->lock);
    started = transport->started;
    __atomic_store_n(&transport->started, NULL, __ATOMIC_RELAXED);
    goes_on = *flying || started || transport->held || !transport->closing;
    (void)pthread_mutex_unlock(&transport->lock);
    while (*end)
        end = &(*end)->next;
    while (started) { /* they were pushed in front: turned round */
        struct cuda_flight *flight = started;

        started = flight->next;
        flight->next = *end;
        *end = flight;
    }
    return goes_on;
}

static void arrived(struct cuda_flight *flight, heft_cu_result result)
{
    if (result && !flight->status)
        flight->status =
            heft_cuda_error(&flight->error, result, "GPU %d failed while it copied", flight->device);
    if (!flight->status && flight->stores)
        heft_pool_submit(flight->transport->host.pool, &flight->job);
    else
        cuda_flight_end(flight);
}

/* The driver's word: NOT_READY, SUCCESS, or how the device failed. */
static heft_cu_result ask_driver(struct cuda_flight *flight)
{
    const struct cuda_transport *transport = flight->transport;
    heft_cu_result result;

    if (heft_cuda_enter(flight->device, &flight->error)) {
        flight->status = flight->error.code;
        return HEFT_CU_SUCCESS;
    }
    result = flight->word ? transport->cu->stream_query(flight->stream)
                          : transport->cu->event_query(flight->events[flight->device]);
    heft_cuda_leave();
    return result;
}

/* A device that fails writes no words: from time to time the driver is asked. */
heft_cu_result cuda_flight_look(struct cuda_flight *flight, int rarely)
{
    if (flight->word) {
        if (__atomic_load_n(flight->word, __ATOMIC_ACQUIRE) == flight->ticket)
            return HEFT_CU_SUCCESS;
        if (++flight->looks % (rarely ? 8 : ASK_LOOKS))
            return HEFT_CU_NOT_READY;
    }
    return ask_driver(flight);
}

/* One look at everything that flies; how many arrived. */
static uint32_t look(struct cuda_flight **flying, int rarely)
{
    struct cuda_flight **at = flying;
    uint32_t count = 0;

    while (*at) {
        struct cuda_flight *flight = *at;
        heft_cu_result result = cuda_flight_look(flight, rarely);

        if (result == HEFT_CU_NOT_READY) {
            at = &flight->next;
            continue;
        }
        *at = flight->next;
        flight->next = NULL;
        arrived(flight, result);
        count++;
    }
    return count;
}

void *cuda_watch_main(void *argument)
{
    struct cuda_transport *transport = argument;
    struct cuda_flight *flying = NULL, *known = NULL;
    uint64_t news_ns = heft_now_ns();
    int rarely = 0, holds; /* rarely: it naps between looks */

    (void)prctl(PR_SET_TIMERSLACK, 1000); /* naps of 10 us would take 60 */
    while (collect(transport, &flying)) {
        uint64_t now_ns;

        if (flying != known)
            news_ns = heft_now_ns();
        if (look(&flying, rarely) > 0)
            news_ns = heft_now_ns();
        known = flying;
        holds = __atomic_load_n(&transport->held, __ATOMIC_ACQUIRE) != NULL;
        if (holds)
            cuda_held_look(transport);
        else if (!flying)
            linger(transport);
        now_ns = heft_now_ns();
        rarely = (flying || holds) && now_ns - news_ns > SPIN_NS;
        if (rarely) {
            struct timespec nap = {0, now_ns - news_ns > SOON_NS ? LONG_NAP_NS : NAP_NS};

            (void)nanosleep(&nap, NULL);
        }
    }
    return NULL;
}
