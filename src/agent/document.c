/* SPDX-License-Identifier: Apache-2.0 */
/* Documents that this agent publishes. A reader holds the bytes it began with, whatever replaces them. */
#include "agent/agent_internal.h"
#include "agent/peer.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

#define DOCUMENT_MAX_BYTES ((uint64_t)1 << 30)
#define DOCUMENTS_MAX 1024

struct heft_document {
    struct heft_document *next;
    char name[HEFT_NAME_MAX_BYTES + 1];
    struct heft_blob *blob;
};

void heft_free(void *data)
{
    free(data);
}

void heft_blob_unref(struct heft_blob *blob)
{
    if (blob && __atomic_sub_fetch(&blob->refs, 1, __ATOMIC_ACQ_REL) == 0)
        free(blob);
}

/* Where the document is linked, or where the list ends. document_lock held. */
static struct heft_document **find(struct heft_agent *agent, const char *name, size_t name_bytes,
                                   size_t *count_out)
{
    struct heft_document **at = &agent->documents;
    size_t count = 0;

    for (; *at; at = &(*at)->next, count++)
        if (strlen((*at)->name) == name_bytes && memcmp((*at)->name, name, name_bytes) == 0)
            break;
    if (count_out)
        *count_out = count;
    return at;
}

struct heft_blob *heft_document_hold(struct heft_agent *agent, const char *name, size_t name_bytes)
{
    struct heft_document *document;
    struct heft_blob *blob = NULL;

    (void)pthread_mutex_lock(&agent->document_lock);
    document = *find(agent, name, name_bytes, NULL);
    if (document) {
        blob = document->blob;
        (void)__atomic_add_fetch(&blob->refs, 1, __ATOMIC_RELAXED);
    }
    (void)pthread_mutex_unlock(&agent->document_lock);
    return blob;
}

int heft_document_exists(struct heft_agent *agent, const char *name)
{
    struct heft_blob *blob = heft_document_hold(agent, name, strlen(name));

    heft_blob_unref(blob);
    return blob != NULL;
}

static int check_name(const char *name, struct heft_error *error)
{
    size_t size = name ? strnlen(name, HEFT_NAME_MAX_BYTES + 1) : 0;
    size_t index;

    if (size == 0 || size > HEFT_NAME_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_INVALID, "a document's name has 1 to %d bytes",
                              HEFT_NAME_MAX_BYTES);
    for (index = 0; index < size; index++)
        if ((unsigned char)name[index] < 0x20 || name[index] == 0x7f)
            return heft_error_set(error, HEFT_ERR_INVALID, "a document's name has no control characters");
    return 0;
}

static void remove_document(struct heft_agent *agent, const char *name)
{
    struct heft_document **at, *document;

    (void)pthread_mutex_lock(&agent->document_lock);
    at = find(agent, name, strlen(name), NULL);
    document = *at;
    if (document)
        *at = document->next;
    (void)pthread_mutex_unlock(&agent->document_lock);
    if (document) {
        heft_blob_unref(document->blob);
        free(document);
    }
}

int heft_agent_set_document(struct heft_agent *agent, const char *name, const void *data, uint64_t size_bytes,
                            struct heft_error *error)
{
    struct heft_document *fresh, **at;
    struct heft_blob *blob, *old = NULL;
    size_t count;
    int rc = check_name(name, error);

    if (heft_agent_forked(agent))
        return heft_process_refuse(agent, error);
    if (rc)
        return rc;
    if (!data) {
        if (size_bytes)
            return heft_error_set(error, HEFT_ERR_INVALID, "document '%s': no data, but %llu bytes of it",
                                  name, (unsigned long long)size_bytes);
        remove_document(agent, name);
        return 0;
    }
    if (size_bytes > DOCUMENT_MAX_BYTES)
        return heft_error_set(error, HEFT_ERR_TOO_LARGE, "document '%s' has %llu bytes, the limit is %llu",
                              name, (unsigned long long)size_bytes, (unsigned long long)DOCUMENT_MAX_BYTES);
    blob = malloc(sizeof(*blob) + (size_t)size_bytes);
    fresh = calloc(1, sizeof(*fresh));
    if (!blob || !fresh) {
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for document '%s'", name);
        goto fail_memory;
    }
    *blob = (struct heft_blob){.refs = 1, .size_bytes = size_bytes};
    if (size_bytes)
        memcpy(blob->data, data, (size_t)size_bytes);
    memcpy(fresh->name, name, strlen(name));
    (void)pthread_mutex_lock(&agent->document_lock);
    at = find(agent, name, strlen(name), &count);
    if (!*at && count >= DOCUMENTS_MAX) {
        (void)pthread_mutex_unlock(&agent->document_lock);
        rc = heft_error_set(error, HEFT_ERR_TOO_MANY, "an agent holds at most %d documents", DOCUMENTS_MAX);
        goto fail_memory;
    }
    blob->epoch = ++agent->document_epoch;
    if (*at) {
        old = (*at)->blob;
    } else {
        *at = fresh;
        fresh = NULL;
    }
    (*at)->blob = blob;
    (void)pthread_mutex_unlock(&agent->document_lock);
    heft_blob_unref(old);
    free(fresh);
    return 0;

fail_memory:
    free(blob);
    free(fresh);
    return rc;
}

void heft_documents_clear(struct heft_agent *agent)
{
    while (agent->documents) {
        struct heft_document *document = agent->documents;

        agent->documents = document->next;
        heft_blob_unref(document->blob);
        free(document);
    }
}
