/* SPDX-License-Identifier: Apache-2.0 */
#include "format/s3_xml.h"
#include "base/error.h"

#include <errno.h>
#include <expat.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 8u
#define MAX_NAME_BYTES 32u
#define MAX_TEXT_BYTES 4096u
#define MAX_ENTRIES 10000u /* of one page; services send 1,000 */

struct reading {
    XML_Parser parser;
    struct heft_s3_page *page;   /* or */
    struct heft_s3_fault *fault; /* or */
    struct heft_sts_answer *sts; /* which of the documents is read */
    int azure;                   /* the page is Azure's */
    char names[MAX_DEPTH][MAX_NAME_BYTES];
    unsigned depth;
    char text[MAX_TEXT_BYTES + 1];
    size_t text_bytes;
    struct heft_s3_entry entry;
    int has_size, has_truncated;
    int code;
    const char *why;
};

static void stop(struct reading *reading, int code, const char *why)
{
    if (reading->code == 0) {
        reading->code = code;
        reading->why = why;
    }
    (void)XML_StopParser(reading->parser, XML_FALSE);
}

static void on_doctype(void *context, const XML_Char *name, const XML_Char *system_id,
                       const XML_Char *public_id, int has_subset)
{
    (void)name;
    (void)system_id;
    (void)public_id;
    (void)has_subset;
    stop(context, HEFT_ERR_PROTOCOL, "it has a DOCTYPE, which no such answer has");
}

static void on_start(void *context, const XML_Char *name, const XML_Char **attributes)
{
    struct reading *reading = context;
    const char *colon = strrchr(name, ':');
    const char *local = colon ? colon + 1 : name;

    (void)attributes;
    if (reading->code) /* an entity's end may still be reported after the stop */
        return;
    if (reading->depth == MAX_DEPTH) {
        stop(reading, HEFT_ERR_PROTOCOL, "its elements are nested too deeply");
        return;
    }
    /* A longer name is none that we know: cut, it is still none. */
    (void)strncpy(reading->names[reading->depth], local, MAX_NAME_BYTES - 1);
    reading->names[reading->depth][MAX_NAME_BYTES - 1] = 0;
    reading->depth++;
    reading->text_bytes = 0;
    if (reading->page && reading->depth == (reading->azure ? 3u : 2u) &&
        strcmp(local, reading->azure ? "Blob" : "Contents") == 0) {
        free(reading->entry.key);
        free(reading->entry.etag);
        reading->entry = (struct heft_s3_entry){0};
        reading->has_size = 0;
    }
}

static void on_text(void *context, const XML_Char *text, int size)
{
    struct reading *reading = context;

    if (reading->code || size <= 0)
        return;
    if (reading->text_bytes + (size_t)size > MAX_TEXT_BYTES) {
        stop(reading, HEFT_ERR_PROTOCOL, "one of its texts is longer than 4096 bytes");
        return;
    }
    memcpy(reading->text + reading->text_bytes, text, (size_t)size);
    reading->text_bytes += (size_t)size;
}

static int number_of(const char *text, uint64_t *value_out)
{
    char *end;
    unsigned long long value;

    if (text[0] < '0' || text[0] > '9')
        return 0;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno || *end)
        return 0;
    *value_out = value;
    return 1;
}

static void keep(struct reading *reading, char **place)
{
    if (*place) {
        stop(reading, HEFT_ERR_PROTOCOL, "an element that must stand once stands twice");
        return;
    }
    *place = strdup(reading->text);
    if (!*place)
        stop(reading, HEFT_ERR_NO_MEMORY, "out of memory");
}

static void add_entry(struct reading *reading)
{
    struct heft_s3_page *page = reading->page;
    struct heft_s3_entry *entry = &reading->entry;

    if (!entry->key || !reading->has_size) {
        stop(reading, HEFT_ERR_PROTOCOL, "an entry lacks its key or its size");
        return;
    }
    if (page->entry_count == MAX_ENTRIES) {
        stop(reading, HEFT_ERR_PROTOCOL, "it has more than 10000 entries");
        return;
    }
    if (page->entry_count == page->entry_capacity) {
        size_t capacity = page->entry_capacity ? page->entry_capacity * 2 : 64;
        struct heft_s3_entry *grown = realloc(page->entries, capacity * sizeof(*grown));

        if (!grown) {
            stop(reading, HEFT_ERR_NO_MEMORY, "out of memory");
            return;
        }
        page->entries = grown;
        page->entry_capacity = capacity;
    }
    if (!entry->etag)
        entry->etag = strdup("");
    if (!entry->etag) {
        stop(reading, HEFT_ERR_NO_MEMORY, "out of memory");
        return;
    }
    page->entries[page->entry_count++] = *entry;
    reading->entry = (struct heft_s3_entry){0};
}

static void end_in_contents(struct reading *reading, const char *name)
{
    if (strcmp(name, "Key") == 0) {
        if (reading->text_bytes == 0 || reading->text_bytes > HEFT_S3_KEY_MAX_BYTES)
            stop(reading, HEFT_ERR_PROTOCOL, "a key is empty or longer than 1024 bytes");
        else
            keep(reading, &reading->entry.key);
    } else if (strcmp(name, "ETag") == 0) {
        keep(reading, &reading->entry.etag);
    } else if (strcmp(name, "Size") == 0) {
        if (!number_of(reading->text, &reading->entry.size_bytes))
            stop(reading, HEFT_ERR_PROTOCOL, "a size is no number");
        reading->has_size = 1;
    }
}

static void end_in_page(struct reading *reading, const char *name)
{
    if (strcmp(name, "Contents") == 0) {
        add_entry(reading);
    } else if (strcmp(name, "IsTruncated") == 0) {
        reading->has_truncated = 1;
        if (strcmp(reading->text, "true") == 0)
            reading->page->truncated = 1;
        else if (strcmp(reading->text, "false") != 0)
            stop(reading, HEFT_ERR_PROTOCOL, "IsTruncated is neither true nor false");
    } else if (strcmp(name, "NextContinuationToken") == 0) {
        keep(reading, &reading->page->next_token);
    }
}

static void end_in_azure_page(struct reading *reading, const char *name)
{
    char(*names)[MAX_NAME_BYTES] = reading->names;
    int in_blob = reading->depth >= 3 && strcmp(names[1], "Blobs") == 0 && strcmp(names[2], "Blob") == 0;

    if (reading->depth == 2 && strcmp(names[1], "Blobs") == 0 && strcmp(name, "Blob") == 0) {
        add_entry(reading);
    } else if (in_blob && reading->depth == 3 && strcmp(name, "Name") == 0) {
        end_in_contents(reading, "Key");
    } else if (in_blob && reading->depth == 4 && strcmp(names[3], "Properties") == 0) {
        if (strcmp(name, "Content-Length") == 0)
            end_in_contents(reading, "Size");
        else if (strcmp(name, "Etag") == 0)
            end_in_contents(reading, "ETag");
    } else if (reading->depth == 1 && strcmp(name, "NextMarker") == 0 && reading->text_bytes > 0) {
        reading->page->truncated = 1;
        keep(reading, &reading->page->next_token);
    } else if (reading->depth == 0) {
        reading->has_truncated = 1; /* the whole document was there */
    }
}

static void copy_cut(char *to, size_t size, const char *from)
{
    size_t at;

    for (at = 0; at + 1 < size && from[at]; at++)
        to[at] = (unsigned char)from[at] < 0x20 || from[at] == 0x7f ? ' ' : from[at];
    while (at > 0 && from[at] && ((unsigned char)from[at] & 0xc0) == 0x80)
        at--; /* not inside of a character */
    to[at] = 0;
}

static void end_in_fault(struct heft_s3_fault *fault, const char *name, const char *text)
{
    if (strcmp(name, "Code") == 0)
        copy_cut(fault->code, sizeof(fault->code), text);
    else if (strcmp(name, "Message") == 0)
        copy_cut(fault->message, sizeof(fault->message), text);
    else if (strcmp(name, "RequestId") == 0)
        copy_cut(fault->request_id, sizeof(fault->request_id), text);
    else if (strcmp(name, "Region") == 0)
        copy_cut(fault->region, sizeof(fault->region), text);
}

static void end_in_credentials(struct heft_sts_answer *answer, const char *name, const char *text)
{
    if (strcmp(name, "AccessKeyId") == 0)
        copy_cut(answer->access_key, sizeof(answer->access_key), text);
    else if (strcmp(name, "SecretAccessKey") == 0)
        copy_cut(answer->secret_key, sizeof(answer->secret_key), text);
    else if (strcmp(name, "SessionToken") == 0)
        copy_cut(answer->session_token, sizeof(answer->session_token), text);
    else if (strcmp(name, "Expiration") == 0)
        copy_cut(answer->expiration, sizeof(answer->expiration), text);
}

static void on_end(void *context, const XML_Char *element)
{
    struct reading *reading = context;
    const char *name;

    (void)element;
    if (reading->code)
        return;
    HEFT_ASSERT(reading->depth > 0);
    name = reading->names[--reading->depth];
    reading->text[reading->text_bytes] = 0;
    if (reading->azure && strcmp(reading->names[0], "EnumerationResults") == 0) {
        end_in_azure_page(reading, name);
    } else if (reading->sts) {
        if (reading->depth > 0 && strcmp(reading->names[reading->depth - 1], "Credentials") == 0)
            end_in_credentials(reading->sts, name, reading->text);
    } else if (reading->page && !reading->azure && strcmp(reading->names[0], "ListBucketResult") == 0) {
        if (reading->depth == 2 && strcmp(reading->names[1], "Contents") == 0)
            end_in_contents(reading, name);
        else if (reading->depth == 1)
            end_in_page(reading, name);
    } else if (reading->page) {
        stop(reading, HEFT_ERR_PROTOCOL,
             reading->azure ? "it is no EnumerationResults" : "it is no ListBucketResult");
    } else if (reading->depth > 0 && strcmp(reading->names[reading->depth - 1], "Error") == 0 &&
               (reading->depth == 1 ||
                (reading->depth == 2 && strcmp(reading->names[0], "ErrorResponse") == 0))) {
        end_in_fault(reading->fault, name, reading->text);
    }
    reading->text_bytes = 0;
}

/* 0, or the code, with `why` in the reading. */
static int parse(struct reading *reading, const void *xml, size_t size, unsigned long *line_out)
{
    *line_out = 0;
    if (size > HEFT_S3_PAGE_MAX_BYTES) {
        reading->why = "it is longer than 16 MiB";
        return HEFT_ERR_PROTOCOL;
    }
    reading->parser = XML_ParserCreate(NULL);
    if (!reading->parser) {
        reading->why = "out of memory";
        return HEFT_ERR_NO_MEMORY;
    }
    XML_SetUserData(reading->parser, reading);
    XML_SetElementHandler(reading->parser, on_start, on_end);
    XML_SetCharacterDataHandler(reading->parser, on_text);
    XML_SetStartDoctypeDeclHandler(reading->parser, on_doctype);
    if (XML_Parse(reading->parser, xml, (int)size, XML_TRUE) != XML_STATUS_OK && reading->code == 0) {
        enum XML_Error code = XML_GetErrorCode(reading->parser);

        reading->code = code == XML_ERROR_NO_MEMORY ? HEFT_ERR_NO_MEMORY : HEFT_ERR_PROTOCOL;
        reading->why = XML_ErrorString(code);
    }
    *line_out = XML_GetCurrentLineNumber(reading->parser);
    XML_ParserFree(reading->parser);
    free(reading->entry.key);
    free(reading->entry.etag);
    return reading->code;
}

static int parse_page(const void *xml, size_t size, int azure, int may_be_silent,
                      struct heft_s3_page *page_out, struct heft_error *error)
{
    struct heft_s3_page page = {0};
    struct reading reading = {.page = &page, .azure = azure};
    unsigned long line;
    int rc = parse(&reading, xml, size, &line);

    if (!rc && !reading.has_truncated && (!may_be_silent || page.next_token)) {
        reading.why = "it does not say whether more follows (IsTruncated)";
        rc = HEFT_ERR_PROTOCOL;
    }
    if (!rc && page.truncated && (!page.next_token || !page.next_token[0])) {
        reading.why = "it says that more follows but not where (NextContinuationToken)";
        rc = HEFT_ERR_PROTOCOL;
    }
    if (rc) {
        heft_s3_page_free(&page);
        return heft_error_set(error, rc, "the answer is no list of objects: %s (line %lu)", reading.why,
                              line);
    }
    *page_out = page;
    return HEFT_OK;
}

int heft_s3_page_parse(const void *xml, size_t size, struct heft_s3_page *page_out, struct heft_error *error)
{
    return parse_page(xml, size, 0, 0, page_out, error);
}

int heft_google_page_parse(const void *xml, size_t size, struct heft_s3_page *page_out,
                           struct heft_error *error)
{
    return parse_page(xml, size, 0, 1, page_out, error);
}

int heft_azure_page_parse(const void *xml, size_t size, struct heft_s3_page *page_out,
                          struct heft_error *error)
{
    return parse_page(xml, size, 1, 0, page_out, error);
}

int heft_sts_parse(const void *xml, size_t size, struct heft_sts_answer *answer_out, struct heft_error *error)
{
    struct heft_sts_answer answer = {0};
    struct reading reading = {.sts = &answer};
    unsigned long line;
    int rc = parse(&reading, xml, size, &line);

    explicit_bzero(reading.text, sizeof(reading.text));
    if (!rc && (!answer.access_key[0] || !answer.secret_key[0] || !answer.session_token[0])) {
        reading.why = "a key, its secret or the session token is missing";
        rc = HEFT_ERR_PROTOCOL;
    }
    if (rc)
        return heft_error_set(error, rc, "the answer holds no credentials: %s (line %lu)", reading.why, line);
    *answer_out = answer;
    explicit_bzero(&answer, sizeof(answer));
    return HEFT_OK;
}

void heft_s3_page_free(struct heft_s3_page *page)
{
    size_t index;

    for (index = 0; index < page->entry_count; index++) {
        free(page->entries[index].key);
        free(page->entries[index].etag);
    }
    free(page->entries);
    free(page->next_token);
    *page = (struct heft_s3_page){0};
}

int heft_s3_fault_parse(const void *xml, size_t size, struct heft_s3_fault *fault_out)
{
    struct heft_s3_fault fault = {0};
    struct reading reading = {.fault = &fault};
    unsigned long line;

    *fault_out = fault;
    if (parse(&reading, xml, size, &line) || !fault.code[0])
        return 0;
    *fault_out = fault;
    return 1;
}
