/* SPDX-License-Identifier: Apache-2.0 */
/* Names of files that a model or a peer gives: relative, beneath the root, printable in one line. */
#include "format/modeldir.h"
#include "base/error.h"
#include "format/manifest_text.h"

#include <string.h>

#define PATH_LIMIT_BYTES 4095u
#define PART_LIMIT_BYTES 255u

static const char *part_fault(const char *part, size_t size)
{
    if (size == 0)
        return "has an empty part";
    if (size == 1 && part[0] == '.')
        return "has a part \".\"";
    if (size == 2 && part[0] == '.' && part[1] == '.')
        return "leaves the folder by \"..\"";
    if (size > PART_LIMIT_BYTES)
        return "has a part of more than 255 bytes";
    return NULL;
}

static const char *path_fault(const char *path, size_t path_bytes)
{
    const char *fault = NULL;
    size_t index, start = 0;

    if (path_bytes == 0)
        return "is empty";
    if (path_bytes > PATH_LIMIT_BYTES)
        return "has more than 4,095 bytes";
    if (path[0] == '/')
        return "is absolute";
    for (index = 0; index < path_bytes; index++) {
        unsigned char byte = (unsigned char)path[index];

        if (byte == 0)
            return "holds a NUL";
        if (byte < 0x20 || byte == 0x7F)
            return "holds a control character";
        if (byte == '\\')
            return "holds a backslash";
        if (byte == '/') {
            fault = part_fault(path + start, index - start);
            if (fault)
                return fault;
            start = index + 1;
        }
    }
    return part_fault(path + start, path_bytes - start);
}

int heft_path_check(const char *path, size_t path_bytes, struct heft_error *error)
{
    const char *fault = path_fault(path, path_bytes);
    struct heft_quote quote;

    if (!fault)
        return HEFT_OK;
    return heft_error_set(error, HEFT_ERR_PATH_UNSAFE,
                          "file name %s %s; names must be relative and stay beneath the model's folder",
                          heft_quote_name(&quote, path, path_bytes), fault);
}
