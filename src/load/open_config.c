/* SPDX-License-Identifier: Apache-2.0 */
/* The config.json beside a model's files. */
#include "base/error.h"
#include "load/open.h"
#include "load/open_list.h"
#include "load/remote_model.h"
#include "plan/rules.h"

#include <stdlib.h>
#include <unistd.h>

static int read_config(const struct heft_place *place, char **text_out, size_t *size_out,
                       struct heft_error *error)
{
    struct stat st;
    int64_t got;
    char *text;
    int fd, rc = heft_place_open(place, "config.json", &fd, &st, error);

    if (rc)
        return rc == HEFT_ERR_NOT_FOUND ? HEFT_OK : rc;
    if ((uint64_t)st.st_size > HEFT_RULES_MAX_BYTES) {
        (void)close(fd);
        return heft_error_set(error, HEFT_ERR_TOO_LARGE, "larger than 1 MiB");
    }
    text = malloc((size_t)st.st_size + 1);
    got = text ? heft_read_at(fd, text, (uint64_t)st.st_size, 0) : 0;
    (void)close(fd);
    if (!text || got < 0) {
        free(text);
        return text ? heft_error_set_errno(error, (int)-got, "it could not be read")
                    : heft_error_set(error, HEFT_ERR_NO_MEMORY, "reading it");
    }
    text[got] = 0;
    *text_out = text;
    *size_out = (size_t)got;
    return HEFT_OK;
}

int heft_open_config(const char *model, const struct heft_model_options *options, uint64_t end_ns,
                     const uint32_t *cancel, char **text_out, size_t *size_out, struct heft_error *error)
{
    struct heft_place place;
    struct heft_ref ref;
    int rc;

    *text_out = NULL;
    *size_out = 0;
    rc = heft_place_parse(model, &ref, error);
    if (rc)
        return rc;
    if (heft_ref_is_remote(&ref))
        return heft_remote_config(&ref, options ? options->revision : NULL, end_ns, cancel, text_out,
                                  size_out, error);
    rc = heft_place_find(model, options, &place, error);
    if (rc)
        return rc;
    if (!place.single)
        rc = read_config(&place, text_out, size_out, error);
    if (rc)
        rc = heft_error_prefix(error, rc, "%s/config.json", place.shown);
    heft_place_close(&place);
    return rc;
}
