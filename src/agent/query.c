/* SPDX-License-Identifier: Apache-2.0 */
/* Asking about a file or an object without registering it. */
#include "agent/agent_internal.h"

#include "base/error.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static int query_file(struct heft_query *query, struct heft_error *error)
{
    struct stat status;

    if (stat(query->path, &status)) {
        if (errno == ENOENT || errno == ENOTDIR)
            return 0;
        return heft_error_set_errno(error, errno, "asking about %s", query->path);
    }
    if (!S_ISREG(status.st_mode))
        return heft_error_set(error, HEFT_ERR_NOT_A_FILE, "%s is not a regular file", query->path);
    query->exists = 1;
    query->length_bytes = (uint64_t)status.st_size;
    query->modified_ns = (int64_t)status.st_mtim.tv_sec * 1000000000 + status.st_mtim.tv_nsec;
    return 0;
}

/* By the transport that reaches objects; several could, the first that is open answers. */
static int query_object(struct heft_agent *agent, struct heft_query *query, struct heft_error *error)
{
    int rc = heft_error_set(error, HEFT_ERR_UNSUPPORTED,
                            "objects need the object transport, which this agent was told not to use");
    uint32_t index;

    for (index = 0; rc == HEFT_ERR_UNSUPPORTED && index < agent->transport_count; index++)
        if (agent->transports[index].transport)
            rc = agent->transports[index].ops.query(agent->transports[index].transport, query, error);
    if (rc == HEFT_ERR_NOT_FOUND)
        rc = 0; /* that is an answer */
    return rc;
}

int heft_agent_query(struct heft_agent *agent, struct heft_query *given, struct heft_error *error)
{
    struct heft_query query = {0};
    size_t size = given->size;
    int rc;

    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    if (size < offsetof(struct heft_query, exists) || size > 1 << 16)
        return heft_error_set(error, HEFT_ERR_INVALID, "the query's size is not set");
    if (heft_agent_on_worker(agent))
        return heft_error_set(error, HEFT_ERR_STATE, "a query blocks: it can't be made in a callback");
    query.space = given->space;
    query.path = given->path;
    if (!query.path || !query.path[0])
        return heft_error_set(error, HEFT_ERR_INVALID, "a query needs a path or a URL");
    if (query.space == HEFT_SPACE_FILE)
        rc = query_file(&query, error);
    else if (query.space == HEFT_SPACE_OBJECT)
        rc = query_object(agent, &query, error);
    else
        rc = heft_error_set(error, HEFT_ERR_UNSUPPORTED, "files and objects can be asked about, not '%s'",
                            heft_space_name(query.space));
    if (rc)
        return rc;
    if (size > sizeof(query))
        size = sizeof(query);
    query.size = size;
    memcpy(given, &query, size);
    return 0;
}
