/* SPDX-License-Identifier: Apache-2.0 */
/* Which transports there are, and opening them for one agent. */
#include "agent/agent_internal.h"
#include "agent/secure.h"

#include "base/error.h"
#include "base/log.h"
#include "space/cuda.h"
#include "transport/plugin.h"

#include <stdio.h>
#include <string.h>

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static const struct heft_transport_ops *registry[HEFT_TRANSPORT_MAX];
static size_t registry_count;

/* All that are known, in-tree ones first. registry_lock held. */
static size_t list_all(const struct heft_transport_ops *all_out[HEFT_TRANSPORT_MAX])
{
    const struct heft_transport_ops *const in_tree[] = {&heft_transport_local,  &heft_transport_tcp,
                                                        &heft_transport_file,   &heft_transport_cuda,
                                                        &heft_transport_object, &heft_transport_ucx};
    size_t count = 0, index;

    for (index = 0; index < sizeof(in_tree) / sizeof(in_tree[0]); index++)
        all_out[count++] = in_tree[index];
    for (index = 0; index < registry_count && count < HEFT_TRANSPORT_MAX; index++)
        all_out[count++] = registry[index];
    return count;
}

int heft_agent_register_transport(const struct heft_transport_ops *ops, struct heft_error *error)
{
    const struct heft_transport_ops *all[HEFT_TRANSPORT_MAX];
    size_t count, index;
    int rc = 0;

    if (ops->abi != HEFT_TRANSPORT_ABI || ops->size < offsetof(struct heft_transport_ops, open))
        return heft_error_set(error, HEFT_ERR_INCOMPATIBLE, "the transport has ABI %u, this library takes %u",
                              ops->abi, HEFT_TRANSPORT_ABI);
    (void)pthread_mutex_lock(&registry_lock);
    count = list_all(all);
    if (count == HEFT_TRANSPORT_MAX)
        rc = heft_error_set(error, HEFT_ERR_TOO_MANY, "at most %d transports", HEFT_TRANSPORT_MAX);
    for (index = 0; !rc && index < count; index++)
        if (strcmp(all[index]->name, ops->name) == 0)
            rc = heft_error_set(error, HEFT_ERR_EXISTS, "a transport '%s' is registered already", ops->name);
    if (!rc)
        registry[registry_count++] = ops;
    (void)pthread_mutex_unlock(&registry_lock);
    return rc;
}

void heft_agent_unregister_transport(const struct heft_transport_ops *ops)
{
    size_t index;

    (void)pthread_mutex_lock(&registry_lock);
    for (index = 0; index < registry_count; index++)
        if (registry[index] == ops) {
            registry_count--;
            memmove(registry + index, registry + index + 1, (registry_count - index) * sizeof(registry[0]));
            break;
        }
    (void)pthread_mutex_unlock(&registry_lock);
}

static int in_list(const char *list, const char *name)
{
    size_t size = strlen(name);

    while (*list) {
        size_t word = strcspn(list, ", ");

        if (word == size && memcmp(list, name, size) == 0)
            return 1;
        list += word;
        list += strspn(list, ", ");
    }
    return 0;
}

/* Every word of the list must be a transport: a typing error must not become "no transport". */
static int check_list(const char *list, const struct heft_transport_ops *const *all, size_t count,
                      struct heft_error *error)
{
    char known[200] = "";
    size_t index, used = 0;

    for (index = 0; index < count && used < sizeof(known); index++)
        used +=
            (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", index ? ", " : "", all[index]->name);
    list += strspn(list, ", ");
    while (*list) {
        size_t word = strcspn(list, ", ");
        int found = 0;

        for (index = 0; index < count; index++)
            found |= strlen(all[index]->name) == word && memcmp(all[index]->name, list, word) == 0;
        if (!found)
            return heft_error_set(error, HEFT_ERR_INVALID, "no transport is named '%.*s'; there are: %s",
                                  (int)(word < 64 ? word : 64), list, known);
        list += word;
        list += strspn(list, ", ");
    }
    return 0;
}

static void open_one(struct heft_agent *agent, const struct heft_transport_ops *ops, uint64_t host_bytes,
                     int named)
{
    struct heft_agent_transport *entry = &agent->transports[agent->transport_count];

    heft_transport_fill(ops, &entry->ops);
    entry->host = (struct heft_transport_host){.abi = HEFT_TRANSPORT_ABI,
                                               .size = sizeof(entry->host),
                                               .agent = agent,
                                               .pool = agent->pool,
                                               .max_host_bytes = host_bytes,
                                               .index = agent->transport_count,
                                               .dial = heft_host_dial,
                                               .redial = heft_host_redial,
                                               .pin_region = heft_host_pin_region,
                                               .unpin_region = heft_host_unpin_region,
                                               .count_served = heft_host_count_served,
                                               .count_retries = heft_host_count_retries,
                                               .device_processors = agent->device_processors,
                                               .flags = (agent->secure ? (uint32_t)HEFT_HOST_TLS : 0) |
                                                        (named ? (uint32_t)HEFT_HOST_NAMED : 0),
                                               .take_tls = heft_secure_take};
    agent->transport_count++;
    if (entry->ops.open(&entry->host, &entry->transport, &entry->failure)) {
        entry->transport = NULL;
        heft_log(HEFT_LOG_INFO, "agent %s: transport %s is not available: %s", agent->name, ops->name,
                 entry->failure.text);
    }
}

/* local copies in place, and cuda without a driver does nothing: they take no share of the staging memory. */
static int stages(const struct heft_transport_ops *ops)
{
    return strcmp(ops->name, "local") != 0 && strcmp(ops->name, "object") != 0 &&
           strcmp(ops->name, "ucx") != 0 &&
           (strcmp(ops->name, "cuda") != 0 || heft_cuda_find(NULL) == HEFT_OK);
}

/* ---- plug-ins ---- */

struct gathering {
    struct heft_agent *agent;
    const struct heft_transport_ops **all;
    size_t count;
    int strict, rc;
    struct heft_error *error;
};

static void refuse(struct gathering *gathering, const struct heft_error *why)
{
    if (!gathering->strict) {
        heft_log(HEFT_LOG_WARN, "agent %s: left out: %s", gathering->agent->name, why->text);
        return;
    }
    if (gathering->rc)
        return;
    gathering->rc = why->code;
    if (gathering->error)
        *gathering->error = *why;
}

static void gather(const char *file, const struct heft_transport_ops *ops, const struct heft_error *why,
                   void *context)
{
    struct gathering *gathering = context;
    struct heft_error error = *why;
    size_t index;

    for (index = 0; ops && index < gathering->count; index++) {
        if (gathering->all[index] == ops)
            return; /* named twice */
        if (strcmp(gathering->all[index]->name, ops->name) == 0) {
            (void)heft_error_set(&error, HEFT_ERR_EXISTS, "plug-in %s: there is a transport '%s' already",
                                 file, ops->name);
            ops = NULL;
        }
    }
    if (ops && gathering->count == HEFT_TRANSPORT_MAX) {
        (void)heft_error_set(&error, HEFT_ERR_TOO_MANY, "plug-in %s: an agent has at most %d transports",
                             file, HEFT_TRANSPORT_MAX);
        ops = NULL;
    }
    if (ops)
        gathering->all[gathering->count++] = ops;
    else
        refuse(gathering, &error);
}

int heft_agent_open_transports(struct heft_agent *agent, const char *list, const char *plugin_path,
                               struct heft_error *error)
{
    const struct heft_transport_ops *all[HEFT_TRANSPORT_MAX];
    struct gathering gathering = {.agent = agent, .all = all, .strict = plugin_path != NULL, .error = error};
    size_t count, index, staging = 0;
    int rc = 0;

    (void)pthread_mutex_lock(&registry_lock);
    gathering.count = list_all(all);
    (void)pthread_mutex_unlock(&registry_lock);
    heft_plugins_each(plugin_path ? plugin_path : heft_plugin_path(), gather, &gathering);
    if (gathering.rc)
        return gathering.rc;
    count = gathering.count;
    if (list)
        rc = check_list(list, all, count, error);
    if (rc)
        return rc;
    for (index = 0; index < count; index++) {
        if (list && !in_list(list + strspn(list, ", "), all[index]->name))
            all[index] = NULL;
        else if (stages(all[index]))
            staging++;
    }
    for (index = 0; index < count; index++)
        if (all[index])
            open_one(agent, all[index], agent->max_host_bytes / (staging ? staging : 1), list != NULL);
    return 0;
}

void heft_agent_close_transports(struct heft_agent *agent)
{
    while (agent->transport_count) {
        struct heft_agent_transport *entry = &agent->transports[agent->transport_count - 1];

        /* Transfers that are released later have nothing to give back to it. */
        (void)pthread_mutex_lock(&agent->active_lock);
        agent->transport_count--;
        (void)pthread_mutex_unlock(&agent->active_lock);
        if (entry->transport)
            entry->ops.close(entry->transport);
    }
}
