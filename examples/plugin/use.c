/* SPDX-License-Identifier: Apache-2.0 */
/* Moves bytes by a plug-in's transport: use PLUGIN-PATH [BYTES]. */
#include <heft/agent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what, const struct heft_error *error)
{
    fprintf(stderr, "%s: %s\n", what, error->text);
    return 1;
}

static struct heft_region *take(struct heft_agent *agent, uint8_t *bytes, uint64_t size)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_region *region = NULL;

    options.address = bytes;
    options.length_bytes = size;
    return heft_region_register(agent, &options, &region, NULL) ? NULL : region;
}

int main(int argc, char **argv)
{
    uint64_t size = argc > 2 ? strtoull(argv[2], NULL, 10) : 3000001, index;
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_xfer_options how = HEFT_XFER_OPTIONS_INIT;
    struct heft_xfer_result result = {.size = sizeof(result)};
    struct heft_error error = HEFT_ERROR_INIT;
    uint8_t *from = malloc(size), *to = calloc(1, size);
    struct heft_run run = {.length_bytes = size, .count = 1};
    struct heft_region *source, *target;
    struct heft_agent *agent;
    struct heft_xfer *xfer;

    if (argc < 2 || !from || !to)
        return 2;
    for (index = 0; index < size; index++)
        from[index] = (uint8_t)(index * 31 >> 3);
    options.plugin_path = argv[1];
    if (heft_agent_open(&options, &agent, &error))
        return fail("opening", &error);
    source = take(agent, from, size);
    target = take(agent, to, size);
    if (!source || !target)
        return 1;
    run.local_region = target;
    run.remote_region = heft_region_id(source);
    how.require = "wire";
    if (heft_xfer_create(agent, HEFT_OP_READ, NULL, &run, 1, &how, &xfer, &error) ||
        heft_xfer_post(xfer, &error))
        return fail("posting", &error);
    (void)heft_xfer_wait(xfer, 60000);
    heft_xfer_get_result(xfer, &result);
    if (result.status)
        return fail("moving", &result.error);
    if (memcmp(from, to, size) != 0)
        return 3;
    printf("%llu bytes by %s: %s\n", (unsigned long long)result.bytes, result.transport, result.reason);
    (void)heft_xfer_release(xfer);
    if (heft_agent_close(agent, &error))
        return fail("closing", &error);
    free(from);
    free(to);
    return 0;
}
