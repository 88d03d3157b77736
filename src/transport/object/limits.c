/* SPDX-License-Identifier: Apache-2.0 */
/* The transport's numbers, from the environment (docs/object.md). */
#include "base/error.h"
#include "transport/object/object.h"

#include <errno.h>
#include <stdlib.h>

static int read_number(const char *name, uint32_t least, uint32_t most, uint32_t *value,
                       struct heft_error *error)
{
    const char *text = heft_object_variable(name);
    unsigned long number;
    char *end;

    if (!text)
        return HEFT_OK;
    errno = 0;
    number = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || number < least || number > most)
        return heft_error_set(error, HEFT_ERR_INVALID, "%s is '%.32s': a number from %u to %u is needed",
                              name, text, least, most);
    *value = (uint32_t)number;
    return HEFT_OK;
}

int heft_object_limits_read(struct heft_object_limits *limits_out, struct heft_error *error)
{
    struct heft_object_limits limits = {.connections = 64,
                                        .retries = 5,
                                        .slow_bytes = 16u << 10,
                                        .slow_s = 10,
                                        .hedge_ms = 2000,
                                        .backoff_ms = 200,
                                        .connect_ms = 10000,
                                        .max_backoff_ms = 10000,
                                        .max_after_s = 60};
    int rc = read_number("HEFT_OBJECT_CONNECTIONS", 1, 256, &limits.connections, error);

    if (!rc)
        rc = read_number("HEFT_OBJECT_RETRIES", 0, 100, &limits.retries, error);
    if (!rc)
        rc = read_number("HEFT_OBJECT_SLOW_BYTES", 0, 1u << 30, &limits.slow_bytes, error);
    if (!rc)
        rc = read_number("HEFT_OBJECT_SLOW_S", 1, 3600, &limits.slow_s, error);
    if (!rc)
        rc = read_number("HEFT_OBJECT_HEDGE_MS", 0, 60000, &limits.hedge_ms, error);
    if (!rc)
        rc = read_number("HEFT_OBJECT_BACKOFF_MS", 1, 10000, &limits.backoff_ms, error);
    if (!rc)
        *limits_out = limits;
    return rc;
}
