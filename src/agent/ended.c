/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/ended.h"

#include <string.h>

static int is_of(const struct heft_ended *ended, const uint8_t *generation)
{
    return memcmp(ended->generation.bytes, generation, sizeof(ended->generation.bytes)) == 0;
}

static void remove_at(struct heft_agent *agent, uint32_t index)
{
    agent->ended_session_count--;
    memmove(&agent->ended_sessions[index], &agent->ended_sessions[index + 1],
            (agent->ended_session_count - index) * sizeof(agent->ended_sessions[0]));
}

void heft_ended_add(struct heft_peer *peer)
{
    struct heft_agent *agent = peer->agent;

    if (!peer->dialed) /* nothing was on its way anywhere */
        return;
    peer->dialed = 0;
    (void)pthread_mutex_lock(&agent->peers_lock);
    if (agent->ended_session_count == HEFT_WIRE_ENDED_MAX)
        remove_at(agent, 0); /* the oldest: its process has ended, or has long heard */
    agent->ended_sessions[agent->ended_session_count++] =
        (struct heft_ended){.generation = peer->generation, .session = peer->session};
    (void)pthread_mutex_unlock(&agent->peers_lock);
}

void heft_ended_name(struct heft_agent *agent, const uint8_t *generation, struct heft_wire_auth *auth)
{
    uint32_t index;

    auth->ended_count = 0;
    (void)pthread_mutex_lock(&agent->peers_lock);
    for (index = 0; index < agent->ended_session_count; index++)
        if (is_of(&agent->ended_sessions[index], generation))
            auth->ended[auth->ended_count++] = agent->ended_sessions[index].session;
    (void)pthread_mutex_unlock(&agent->peers_lock);
}

void heft_ended_forget(struct heft_agent *agent, const uint8_t *generation, const struct heft_wire_auth *auth)
{
    uint32_t index, named;

    (void)pthread_mutex_lock(&agent->peers_lock);
    for (named = 0; named < auth->ended_count; named++)
        for (index = 0; index < agent->ended_session_count; index++)
            if (agent->ended_sessions[index].session == auth->ended[named] &&
                is_of(&agent->ended_sessions[index], generation)) {
                remove_at(agent, index);
                break;
            }
    (void)pthread_mutex_unlock(&agent->peers_lock);
}
