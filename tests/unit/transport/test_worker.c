/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "transport/worker.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <cmocka.h>

#define JOBS 20000

struct counted_job {
    struct heft_job job;
    uint32_t runs, again;
    struct heft_worker_pool *pool;
};

static uint32_t ran;
static sem_t all_ran;

static void count_run(struct heft_job *job, struct heft_worker *worker)
{
    struct counted_job *counted = (struct counted_job *)(void *)job;

    assert_ptr_equal(worker, heft_worker_self());
    counted->runs++;
    if (counted->again) {
        counted->again--;
        heft_pool_submit(counted->pool, job);
        return;
    }
    if (__atomic_add_fetch(&ran, 1, __ATOMIC_SEQ_CST) == JOBS)
        sem_post(&all_ran);
}

static void every_job_runs_exactly_once_a_submission(void **state)
{
    static struct counted_job jobs[JOBS];
    struct heft_worker_pool *pool;
    uint32_t index;

    (void)state;
    sem_init(&all_ran, 0, 0);
    assert_int_equal(heft_pool_create(3, &pool, NULL), 0);
    assert_null(heft_worker_self());
    for (index = 0; index < JOBS; index++) {
        jobs[index].job.run = count_run;
        jobs[index].again = index % 3;
        jobs[index].pool = pool;
        if (index % 5 == 0)
            heft_worker_submit(heft_pool_worker(pool, index % 3), &jobs[index].job);
        else
            heft_pool_submit(pool, &jobs[index].job);
        if (index % 1000 == 0)
            usleep(1000); /* let the workers fall asleep, so that wake-ups are tested too */
    }
    while (sem_wait(&all_ran))
        continue;
    heft_pool_destroy(pool);
    for (index = 0; index < JOBS; index++)
        assert_int_equal(jobs[index].runs, index % 3 + 1);
}

struct eventful {
    struct heft_watch watch, victim;
    struct heft_timer timer;
    struct heft_job job;
    uint32_t victim_calls, fired, step;
    uint64_t fired_ns, wanted_ns;
    sem_t done;
};

static void victim_ready(struct heft_watch *watch, uint32_t events)
{
    struct eventful *e = (struct eventful *)(void *)((char *)watch - offsetof(struct eventful, victim));

    (void)events;
    e->victim_calls++;
    heft_watch_remove(&e->victim);
    heft_watch_remove(&e->watch);
    heft_timer_set(watch->worker, &e->timer, e->wanted_ns = heft_now_ns() + 20 * HEFT_NS_PER_MS);
}

/* Both descriptors are ready in one batch: whoever is called first removes the other, which must stay silent.
 */
static void watch_ready(struct heft_watch *watch, uint32_t events)
{
    struct eventful *e = (struct eventful *)(void *)((char *)watch - offsetof(struct eventful, watch));

    (void)events;
    e->victim_calls++;
    heft_watch_remove(&e->victim);
    heft_watch_remove(&e->watch);
    heft_timer_set(watch->worker, &e->timer, e->wanted_ns = heft_now_ns() + 20 * HEFT_NS_PER_MS);
}

static void timer_fire(struct heft_timer *timer)
{
    struct eventful *e = (struct eventful *)(void *)((char *)timer - offsetof(struct eventful, timer));

    e->fired++;
    e->fired_ns = heft_now_ns();
    sem_post(&e->done);
}

static void arm(struct heft_job *job, struct heft_worker *worker)
{
    struct eventful *e = (struct eventful *)(void *)((char *)job - offsetof(struct eventful, job));
    struct heft_error error;

    assert_int_equal(heft_watch_add(worker, &e->watch, EPOLLIN, &error), 0);
    assert_int_equal(heft_watch_add(worker, &e->victim, EPOLLIN, &error), 0);
}

static void a_removed_watch_is_silent_and_timers_fire_in_time(void **state)
{
    struct eventful e = {.watch = {.ready = watch_ready},
                         .victim = {.ready = victim_ready},
                         .timer = {.fire = timer_fire},
                         .job = {.run = arm}};
    struct heft_worker_pool *pool;

    (void)state;
    sem_init(&e.done, 0, 0);
    e.watch.fd = eventfd(1, EFD_CLOEXEC);
    e.victim.fd = eventfd(1, EFD_CLOEXEC);
    assert_int_equal(heft_pool_create(1, &pool, NULL), 0);
    heft_worker_submit(heft_pool_worker(pool, 0), &e.job);
    while (sem_wait(&e.done))
        continue;
    heft_pool_destroy(pool);
    assert_int_equal(e.victim_calls, 1);
    assert_int_equal(e.fired, 1);
    assert_true(e.fired_ns >= e.wanted_ns);
    assert_true(e.fired_ns - e.wanted_ns < HEFT_NS_PER_S);
    close(e.watch.fd);
    close(e.victim.fd);
}

static void a_pool_of_no_workers_is_refused(void **state)
{
    struct heft_worker_pool *pool;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    assert_int_equal(heft_pool_create(0, &pool, &error), HEFT_ERR_INVALID);
    assert_int_equal(error.code, HEFT_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_job_runs_exactly_once_a_submission),
        cmocka_unit_test(a_removed_watch_is_silent_and_timers_fire_in_time),
        cmocka_unit_test(a_pool_of_no_workers_is_refused),
    };
    return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
