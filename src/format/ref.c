/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model references. What a text means is decided by its form alone, never by what happens to exist: the same
 * word must not be a folder today and a download tomorrow.
 */
#include "format/modeldir.h"
#include "base/error.h"
#include "format/manifest_text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define HUB_PART_LIMIT_BYTES 96u

static const char forms[] =
    "write org/name[@revision], hf://org/name[@revision], s3://bucket/prefix, gs://bucket/prefix, "
    "az://container/prefix, http(s)://host/path, /path or ./path";

static int refuse(struct heft_error *error, const char *text, const char *why)
{
    struct heft_quote quote;

    return heft_error_set(error, HEFT_ERR_INVALID, "model reference %s %s; %s", heft_quote_text(&quote, text),
                          why, forms);
}

/* NULL, or what is wrong with one part of "org/name". */
static const char *hub_part_fault(const char *part, size_t size)
{
    size_t index;

    if (size == 0)
        return "has an empty organisation or name";
    if (size > HUB_PART_LIMIT_BYTES)
        return "has an organisation or name of more than 96 characters";
    for (index = 0; index < size; index++) {
        unsigned char byte = (unsigned char)part[index];

        if (byte >= 0x80 || (!isalnum(byte) && byte != '-' && byte != '_' && byte != '.'))
            return "has a character that no hub name has";
        if (index > 0 && byte == (unsigned char)part[index - 1] && (byte == '-' || byte == '.'))
            return "has \"--\" or \"..\" in it";
    }
    if (strchr("-.", part[0]) || strchr("-.", part[size - 1]))
        return "has a part that begins or ends with '-' or '.'";
    return NULL;
}

static const char *hub_name_fault(const char *name, size_t size, int may_be_bare)
{
    const char *slash = memchr(name, '/', size);
    size_t first = slash ? (size_t)(slash - name) : size;
    const char *fault = hub_part_fault(name, first);

    if (fault)
        return fault;
    if (!slash)
        return may_be_bare ? NULL : "is neither org/name nor a path";
    return hub_part_fault(slash + 1, size - first - 1);
}

static int parse_hub(const char *text, const char *name, int may_be_bare, struct heft_ref *ref,
                     struct heft_error *error)
{
    const char *at = strchr(name, '@');
    size_t size = at ? (size_t)(at - name) : strlen(name);
    const char *fault = hub_name_fault(name, size, may_be_bare);

    if (fault)
        return refuse(error, text, fault);
    if (at && (!at[1] || strlen(at + 1) >= sizeof(ref->revision) || strpbrk(at + 1, "@ :~^?*[") ||
               heft_path_check(at + 1, strlen(at + 1), NULL)))
        return refuse(error, text, "has a revision that no repository has");
    if (size >= sizeof(ref->name))
        return refuse(error, text, "is too long");
    ref->kind = HEFT_REF_HUB;
    memcpy(ref->name, name, size);
    ref->name[size] = 0;
    if (at)
        (void)snprintf(ref->revision, sizeof(ref->revision), "%s", at + 1);
    return HEFT_OK;
}

static int parse_path(const char *text, struct heft_ref *ref, struct heft_error *error)
{
    if (strlen(text) >= sizeof(ref->name))
        return refuse(error, text, "is a path of more than 511 bytes; change the directory and use ./path");
    ref->kind = HEFT_REF_PATH;
    (void)snprintf(ref->name, sizeof(ref->name), "%s", text);
    return HEFT_OK;
}

/* "scheme://rest" of the stores that are addressed by bucket and prefix, and of the web. */
static int parse_url(const char *text, enum heft_ref_kind kind, const char *rest, struct heft_ref *ref,
                     struct heft_error *error)
{
    const char *name = kind == HEFT_REF_HTTP ? text : rest;
    size_t size;

    if (rest[0] == 0 || rest[0] == '/')
        return refuse(error, text, kind == HEFT_REF_HTTP ? "names no host" : "names no bucket");
    if (strchr(text, ' '))
        return refuse(error, text, "has a space in it");
    size = strlen(name);
    while (kind != HEFT_REF_HTTP && size > 0 && name[size - 1] == '/')
        size--;
    if (size >= sizeof(ref->name))
        return refuse(error, text, "is too long");
    ref->kind = kind;
    memcpy(ref->name, name, size);
    ref->name[size] = 0;
    return HEFT_OK;
}

static int parse_scheme(const char *text, size_t scheme_bytes, struct heft_ref *ref, struct heft_error *error)
{
    static const struct {
        const char *scheme;
        enum heft_ref_kind kind;
    } schemes[] = {{"s3", HEFT_REF_S3},     {"gs", HEFT_REF_GCS},     {"az", HEFT_REF_AZURE},
                   {"http", HEFT_REF_HTTP}, {"https", HEFT_REF_HTTP}, {"hf", HEFT_REF_HUB}};
    const char *rest = text + scheme_bytes + 1;
    struct heft_quote quote;
    char scheme[16];
    size_t index;

    (void)snprintf(scheme, sizeof(scheme), "%.*s", (int)(scheme_bytes < 15 ? scheme_bytes : 15), text);
    for (index = 0; index < sizeof(schemes) / sizeof(schemes[0]); index++) {
        if (strlen(schemes[index].scheme) != scheme_bytes ||
            strncasecmp(schemes[index].scheme, text, scheme_bytes) != 0)
            continue;
        if (schemes[index].kind == HEFT_REF_HUB) {
            ref->from_hub = strncmp(rest, "//", 2) == 0;
            return parse_hub(text, ref->from_hub ? rest + 2 : rest, 1, ref, error);
        }
        if (strncmp(rest, "//", 2) != 0)
            return refuse(error, text, "lacks the \"//\" after its scheme");
        return parse_url(text, schemes[index].kind, rest + 2, ref, error);
    }
    return heft_error_set(error, HEFT_ERR_INVALID, "model reference %s has the unknown scheme \"%s:\"; %s",
                          heft_quote_text(&quote, text), scheme, forms);
}

/* The length of a leading "letters:", or 0. */
static size_t scheme_length(const char *text)
{
    size_t size = 0;

    if (!isalpha((unsigned char)text[0]))
        return 0;
    while (isalnum((unsigned char)text[size]) || (text[size] && strchr("+.-", text[size])))
        size++;
    return text[size] == ':' ? size : 0;
}

static int is_path(const char *text)
{
    return text[0] == '/' || strcmp(text, ".") == 0 || strcmp(text, "..") == 0 ||
           strncmp(text, "./", 2) == 0 || strncmp(text, "../", 3) == 0;
}

int heft_ref_parse(const char *text, struct heft_ref *ref_out, struct heft_error *error)
{
    struct heft_ref ref = {0};
    size_t index, size = text ? strlen(text) : 0;
    int rc;

    if (size == 0)
        return heft_error_set(error, HEFT_ERR_INVALID, "the model reference is empty; %s", forms);
    for (index = 0; index < size; index++)
        if ((unsigned char)text[index] < 0x20 || text[index] == 0x7F)
            return refuse(error, text, "holds a control character");
    if (text[0] == ' ' || text[size - 1] == ' ')
        return refuse(error, text, "begins or ends with a space");
    if (is_path(text))
        rc = parse_path(text, &ref, error);
    else if (scheme_length(text) > 0)
        rc = parse_scheme(text, scheme_length(text), &ref, error);
    else if (text[0] == '~')
        rc = refuse(error, text, "begins with '~', which only a shell expands");
    else
        rc = parse_hub(text, text, 0, &ref, error);
    if (!rc)
        *ref_out = ref;
    return rc;
}

int heft_hub_folder(const char *name, char *text_out, size_t size_bytes)
{
    const char *slash = strchr(name, '/');
    char text[HUB_PART_LIMIT_BYTES * 2 + 16];

    if (hub_name_fault(name, strlen(name), 1))
        return HEFT_ERR_INVALID;
    if (slash)
        (void)snprintf(text, sizeof(text), "models--%.*s--%s", (int)(slash - name), name, slash + 1);
    else
        (void)snprintf(text, sizeof(text), "models--%s", name);
    if (strlen(text) >= size_bytes)
        return HEFT_ERR_TOO_LARGE;
    memcpy(text_out, text, strlen(text) + 1);
    return HEFT_OK;
}
