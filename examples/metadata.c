/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metadata: agents find each other by name in a directory, and learn of each other's changes.
 *
 *     metadata publish DIRECTORY NAME     offers a region, and one more for each line of standard input
 *     metadata watch DIRECTORY NAME       connects to NAME and reads its regions, whenever they changed,
 *                                         until it is gone
 *
 * Linked with heft-control, which speaks to heftd and etcd. DIRECTORY: heftd's address (HOST:PORT),
 * etcd://HOST:PORT/PREFIX, or file:PATH. A record is kept under a lease: one whose process was killed is gone
 * when that ends.
 */
#include <heft/control.h>
#include <heft/heft.h>
#include <heft/metadata.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LINE_BYTES 256u
#define LINES 64u

static struct heft_error error = HEFT_ERROR_INIT;

static int failed(const char *what)
{
    fprintf(stderr, "metadata: %s: %s: %s\n", what, heft_error_name(error.code), error.text);
    return 1;
}

static struct heft_directory *open_directory(const char *address)
{
    struct heft_directory_options options = HEFT_DIRECTORY_OPTIONS_INIT;
    struct heft_directory *directory = NULL;

    options.address = address;
    return heft_directory_open(&options, &directory, &error) ? NULL : directory;
}

static int offer(struct heft_agent *agent, char *line)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_region *region;

    options.address = line;
    options.length_bytes = LINE_BYTES;
    options.flags = HEFT_REGION_REMOTE_READ;
    return heft_region_register(agent, &options, &region, &error) ? failed("registering") : 0;
}

static int publish(struct heft_directory *directory, const char *name)
{
    static char lines[LINES][LINE_BYTES] = {"hello"};
    struct heft_publication_options how = HEFT_PUBLICATION_OPTIONS_INIT;
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_publication *publication;
    struct heft_agent *agent;
    uint32_t count;

    options.name = name;
    options.listen = "127.0.0.1:0";
    if (heft_agent_open(&options, &agent, &error))
        return failed("opening the agent");
    how.directory = directory;
    how.lease_ms = 3000;
    if (offer(agent, lines[0]))
        return 1;
    if (heft_agent_publish(agent, &how, &publication, &error))
        return failed("publishing");
    printf("published %s\n", name);
    fflush(stdout);
    /* What is registered from now on is published by itself within a moment. */
    for (count = 1; count < LINES && fgets(lines[count], LINE_BYTES, stdin); count++)
        if (offer(agent, lines[count]))
            return 1;
    heft_publication_close(publication);
    return heft_agent_close(agent, &error) ? failed("closing") : 0;
}

/* Reads the first bytes of each region that the peer offers. */
static int read_regions(struct heft_agent *agent, struct heft_peer *peer, struct heft_region *local,
                        char *buffer, const struct heft_metadata *metadata)
{
    uint64_t index;

    printf("epoch %" PRIu64 ":", heft_metadata_epoch(metadata));
    for (index = 0; index < heft_metadata_region_count(metadata); index++) {
        struct heft_metadata_region region = {.size = sizeof(region)};
        struct heft_run run = {.local_region = local, .length_bytes = LINE_BYTES, .count = 1};
        struct heft_xfer *xfer;
        int rc = heft_metadata_get_region(metadata, index, &region);

        run.remote_region = region.id;
        if (rc || heft_xfer_create(agent, HEFT_OP_READ, peer, &run, 1, NULL, &xfer, &error) ||
            heft_xfer_post(xfer, &error))
            return failed("reading");
        rc = heft_xfer_wait(xfer, UINT64_MAX);
        (void)heft_xfer_release(xfer);
        if (rc)
            return failed("reading");
        buffer[LINE_BYTES - 1] = 0;
        printf(" %.*s", (int)strcspn(buffer, "\n"), buffer);
    }
    printf("\n");
    fflush(stdout);
    return 0;
}

static int watch(struct heft_directory *directory, const char *name)
{
    static char buffer[LINE_BYTES];
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_watch_event event = {.size = sizeof(event)};
    struct heft_region *local;
    struct heft_peer *peer = NULL;
    struct heft_agent *agent;
    struct heft_watch *watched;
    int rc = 0, lost = 0;

    options.address = buffer;
    options.length_bytes = sizeof(buffer);
    if (heft_agent_open(NULL, &agent, &error) || heft_region_register(agent, &options, &local, &error))
        return failed("opening the agent");
    if (heft_watch_open(directory, name, &watched, &error))
        return failed("watching");
    while (!rc && !lost) {
        rc = heft_watch_next(watched, &event, 60000, &error);
        if (rc == HEFT_ERR_UNAVAILABLE) { /* the directory is down: what was known stays known */
            fprintf(stderr, "metadata: %s\n", error.text);
            rc = 0;
            continue;
        }
        if (rc || strcmp(event.name, name) != 0) /* a prefix may bring others */
            continue;
        lost = event.kind == HEFT_WATCH_LOST;
        if (event.metadata && !peer)
            rc = heft_metadata_connect(agent, event.metadata, NULL, &peer, &error);
        if (event.metadata && !rc)
            rc = read_regions(agent, peer, local, buffer, event.metadata);
        heft_metadata_free(event.metadata);
    }
    if (rc)
        return failed("watching");
    printf("%s is gone\n", name);
    if (peer)
        (void)heft_peer_close(peer, NULL);
    heft_watch_close(watched);
    return heft_agent_close(agent, &error) ? failed("closing") : 0;
}

int main(int argc, char **argv)
{
    struct heft_directory *directory;
    int is_publish = argc == 4 && strcmp(argv[1], "publish") == 0, rc;

    if (!is_publish && !(argc == 4 && strcmp(argv[1], "watch") == 0)) {
        fprintf(stderr, "usage: metadata publish DIRECTORY NAME\n       metadata watch DIRECTORY NAME\n");
        return 2;
    }
    heft_control_init();
    directory = open_directory(argv[2]);
    if (!directory)
        return failed(argv[2]);
    rc = is_publish ? publish(directory, argv[3]) : watch(directory, argv[3]);
    heft_directory_close(directory);
    return rc;
}
