/* SPDX-License-Identifier: Apache-2.0 */
/* Route choice: the best-scored transport that connects, and the reasons for those who ask. */
#include "agent/agent_internal.h"

#include "base/buf.h"
#include "base/error.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    uint32_t index;
    int score;
    int tried;
    char reason[320];
};

static void score_one(struct heft_peer *peer, struct candidate *candidate, enum heft_op op,
                      const struct heft_route_pair *pairs, size_t pair_count)
{
    struct heft_agent_transport *entry = &peer->agent->transports[candidate->index];
    struct heft_slot *slot = &peer->slots[candidate->index];
    struct heft_endpoint *endpoint;
    size_t index;

    candidate->score = 0;
    if (!entry->transport) {
        (void)snprintf(candidate->reason, sizeof(candidate->reason), "not available: %s",
                       entry->failure.text);
        return;
    }
    endpoint = heft_slot_hold(slot);
    for (index = 0; index < pair_count; index++) {
        struct heft_route_query query = {.local = pairs[index].local,
                                         .remote = pairs[index].remote,
                                         .op = op,
                                         .peer = peer->is_self ? NULL : &slot->view,
                                         /* Before it is connected a transport knows no regions. */
                                         .remote_region = endpoint ? pairs[index].region : NULL};
        struct heft_route_score score = {0};

        entry->ops.score(entry->transport, endpoint, &query, &score);
        score.reason[sizeof(score.reason) - 1] = 0;
        if (index == 0 || score.score < candidate->score) {
            candidate->score = score.score > 0 ? score.score : 0;
            (void)snprintf(candidate->reason, sizeof(candidate->reason), "%s", score.reason);
        }
        if (!candidate->score)
            break;
    }
    if (endpoint)
        heft_slot_release(slot);
}

static size_t collect(struct heft_peer *peer, enum heft_op op, const struct heft_route_pair *pairs,
                      size_t pair_count, struct candidate candidates[HEFT_TRANSPORT_MAX])
{
    size_t count = peer->agent->transport_count, index, place;

    for (index = 0; index < count; index++) {
        struct candidate candidate = {.index = (uint32_t)index};

        score_one(peer, &candidate, op, pairs, pair_count);
        for (place = index; place > 0 && candidates[place - 1].score < candidate.score; place--)
            candidates[place] = candidates[place - 1];
        candidates[place] = candidate;
    }
    return count;
}

/* Connected, and still willing once it is. */
static int try_candidate(struct heft_peer *peer, struct candidate *candidate, enum heft_op op,
                         const struct heft_route_pair *pairs, size_t pair_count, int may_connect)
{
    struct heft_slot *slot = &peer->slots[candidate->index];
    struct heft_error failure = HEFT_ERROR_INIT;
    char why[160];
    int usable;

    candidate->tried = 1;
    if (may_connect) {
        if (heft_slot_connect(slot, &failure)) {
            (void)snprintf(why, sizeof(why), "%s", candidate->reason);
            (void)snprintf(candidate->reason, sizeof(candidate->reason),
                           "%.100s; but connecting failed: %.180s", why, failure.text);
            candidate->score = 0;
            return 0;
        }
        score_one(peer, candidate, op, pairs, pair_count);
        return candidate->score > 0;
    }
    (void)pthread_mutex_lock(&peer->lock);
    usable = slot->endpoint != NULL;
    (void)pthread_mutex_unlock(&peer->lock);
    if (!usable) {
        (void)snprintf(candidate->reason, sizeof(candidate->reason),
                       "not connected, and a callback can't connect: create a transfer elsewhere first");
        candidate->score = 0;
    }
    return usable;
}

static int no_route(struct heft_peer *peer, const struct heft_route_pair *pair, const char *require,
                    const struct candidate *candidates, size_t count, struct heft_error *error)
{
    char who[HEFT_PEER_TEXT_BYTES];
    char text[HEFT_ERROR_TEXT_BYTES];
    size_t used, index, given = 0;
    int code = require ? HEFT_ERR_REQUIRED : HEFT_ERR_UNSUPPORTED;

    used = (size_t)snprintf(text, sizeof(text), "no %s%s%sroute between %s here and %s at %s",
                            require ? "'" : "", require ? require : "", require ? "' " : "",
                            heft_space_name(pair->local), heft_space_name(pair->remote),
                            heft_peer_text(peer, who, sizeof(who)));
    for (index = 0; index < count && used < sizeof(text); index++) {
        const char *name = peer->agent->transports[candidates[index].index].ops.name;

        if (!require || strcmp(require, name) == 0)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s %s: %s", given++ ? ";" : ":", name,
                                     candidates[index].reason);
    }
    if (count == 0)
        (void)snprintf(text + used, sizeof(text) - used, ": no transport is open");
    return heft_error_set(error, code, "%s", text);
}

static void log_route(struct heft_slot *slot, const struct candidate *candidate,
                      const struct heft_route_pair *pair)
{
    struct heft_peer *peer = slot->peer;
    char who[HEFT_PEER_TEXT_BYTES];
    int first;

    (void)pthread_mutex_lock(&peer->lock);
    first = !slot->logged;
    slot->logged = 1;
    (void)pthread_mutex_unlock(&peer->lock);
    if (first)
        heft_log(HEFT_LOG_INFO, "agent %s: route transport=%s local=%s remote=%s peer=%s score=%d reason=%s",
                 peer->agent->name, peer->agent->transports[candidate->index].ops.name,
                 heft_space_name(pair->local), heft_space_name(pair->remote),
                 heft_peer_text(peer, who, sizeof(who)), candidate->score, candidate->reason);
}

int heft_route_choose(struct heft_peer *peer, enum heft_op op, const struct heft_route_pair *pairs,
                      size_t pair_count, const char *require, int may_connect, struct heft_slot **slot_out,
                      char reason_out[HEFT_ROUTE_REASON_BYTES], struct heft_error *error)
{
    struct candidate candidates[HEFT_TRANSPORT_MAX];
    size_t count, index;
    int status = heft_peer_status(peer, error);

    if (status)
        return status;
    count = collect(peer, op, pairs, pair_count, candidates);
    for (index = 0; index < count; index++) {
        struct candidate *candidate = &candidates[index];

        if (require && strcmp(require, peer->agent->transports[candidate->index].ops.name) != 0)
            continue;
        if (candidate->score <= 0 || !try_candidate(peer, candidate, op, pairs, pair_count, may_connect))
            continue;
        log_route(&peer->slots[candidate->index], candidate, &pairs[0]);
        *slot_out = &peer->slots[candidate->index];
        (void)snprintf(reason_out, HEFT_ROUTE_REASON_BYTES, "%.159s", candidate->reason);
        return 0;
    }
    status = heft_peer_status(peer, error); /* it may have died while its transports were tried */
    return status ? status : no_route(peer, &pairs[0], require, candidates, count, error);
}

int heft_agent_explain(struct heft_agent *agent, struct heft_peer *peer, enum heft_space local,
                       enum heft_space remote, char *text_out, size_t size_bytes)
{
    struct heft_route_pair pair = {.local = local, .remote = remote};
    struct candidate candidates[HEFT_TRANSPORT_MAX];
    size_t count, index, used = 0;

    if (heft_agent_forked(agent))
        return HEFT_ERR_STATE;
    if (!size_bytes)
        return HEFT_ERR_INVALID;
    if (!peer)
        peer = agent->self;
    text_out[0] = 0;
    count = collect(peer, HEFT_OP_READ, &pair, 1, candidates);
    for (index = 0; index < count && used < size_bytes; index++) {
        struct heft_slot *slot = &peer->slots[candidates[index].index];
        struct heft_error failure;

        (void)pthread_mutex_lock(&peer->lock);
        failure = slot->failure;
        (void)pthread_mutex_unlock(&peer->lock);
        used += (size_t)snprintf(text_out + used, size_bytes - used, "%s %d: %s%s%s\n",
                                 agent->transports[candidates[index].index].ops.name, candidates[index].score,
                                 candidates[index].reason, failure.code ? "; connecting failed: " : "",
                                 failure.code ? failure.text : "");
    }
    return 0;
}
