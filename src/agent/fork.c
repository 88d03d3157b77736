/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agents and fork. A child has none of the agent's threads, and may have copied its locks while they were
 * held: it must not touch the agent at all. A number that grows in each child, before anything else runs
 * there, tells whose an agent is without a system call.
 */
#include "agent/agent_internal.h"

#include "base/error.h"

uint64_t heft_process_life;

static void in_child(void)
{
    heft_process_life++;
}

static void watch_once(void)
{
    (void)pthread_atfork(NULL, NULL, in_child);
}

void heft_process_watch(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, watch_once);
}

int heft_process_refuse(const struct heft_agent *agent, struct heft_error *error)
{
    return heft_error_set(error, HEFT_ERR_STATE,
                          "agent '%s' was opened before a fork, by the parent: a child opens its own",
                          agent->name);
}
