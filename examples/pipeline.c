/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pipeline: a file goes into the memory of another process, reading and sending at the same time.
 *
 *     pipeline receive CARD MEGABYTES    makes room, waits for one file, prints its bytes and Adler-32
 *     pipeline send CARD FILE
 *
 * CARD is a file by which the receiver tells how to reach it, and holds its token. The sender has a few
 * buffers: each is filled from the file, written to the peer, filled again. A write counts at the receiver
 * when its bytes are there; when all have counted, in whatever order, the file has arrived.
 */
#include <heft/heft.h>
#include <heft/metadata.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define BUFFERS 4u
#define PIECE_BYTES ((uint64_t)4 << 20)
#define ARRIVED 1u /* the counter's number, known to both */
#define WAIT_MS 60000u

static struct heft_error error = HEFT_ERROR_INIT;

static int failed(const char *what)
{
    fprintf(stderr, "pipeline: %s: %s: %s\n", what, heft_error_name(error.code), error.text);
    return 1;
}

static uint32_t adler32(const uint8_t *bytes, uint64_t size)
{
    uint32_t low = 1, high = 0;
    uint64_t done = 0;

    while (done < size) {
        uint64_t end = size - done < 5552 ? size : done + 5552; /* so long nothing overflows */

        for (; done < end; done++) {
            low += bytes[done];
            high += low;
        }
        low %= 65521;
        high %= 65521;
    }
    return high << 16 | low;
}

static int make_memory(struct heft_agent *agent, uint64_t size, uint32_t flags, uint8_t **bytes_out,
                       struct heft_region **region_out)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;
    struct heft_memory_info info;
    struct heft_memory *memory;

    if (heft_memory_alloc(size, 0, &memory, &error))
        return failed("memory");
    heft_memory_get_info(memory, &info);
    options.memory = memory;
    options.flags = flags;
    *bytes_out = info.address;
    return heft_region_register(agent, &options, region_out, &error) ? failed("registering memory") : 0;
}

/* ---- receiving ---- */

static int write_card(struct heft_agent *agent, const char *path)
{
    char draft[4096];
    uint64_t size;
    void *data;
    FILE *file;
    int ok;

    if (heft_agent_export_metadata(agent, NULL, &data, &size, &error))
        return failed("telling how to be reached");
    (void)snprintf(draft, sizeof(draft), "%s.new", path);
    (void)umask(0077);
    file = fopen(draft, "wb");
    ok = file && fwrite(data, 1, size, file) == size;
    ok = file && fclose(file) == 0 && ok && rename(draft, path) == 0;
    heft_free(data);
    if (!ok)
        perror(path);
    return !ok;
}

static int receive(const char *card, uint64_t room)
{
    struct heft_notification told = {.size = sizeof(told)};
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct heft_counter_options which = HEFT_COUNTER_OPTIONS_INIT;
    struct heft_counter *counter;
    struct heft_region *region;
    struct heft_agent *agent;
    uint64_t size = 0;
    uint8_t *bytes;
    int rc;

    options.name = "receiver";
    options.listen = "unix,127.0.0.1:0"; /* who is on this host maps the memory */
    if (heft_agent_open(&options, &agent, &error))
        return failed("opening the agent");
    if (make_memory(agent, room, HEFT_REGION_REMOTE_WRITE, &bytes, &region) || write_card(agent, card))
        return 1;
    which.peer = "sender";
    which.id = ARRIVED;
    if (heft_counter_open(agent, &which, &counter, &error))
        return failed("opening the counter");
    printf("ready for %" PRIu64 " bytes\n", room);
    fflush(stdout);
    if (heft_agent_next_notification(agent, &told, WAIT_MS)) { /* how large the file is */
        fprintf(stderr, "pipeline: nobody sent anything\n");
        return 1;
    }
    if (told.size_bytes == sizeof(size))
        memcpy(&size, told.data, sizeof(size));
    heft_free(told.data);
    if (size > room) {
        fprintf(stderr, "pipeline: the file has %" PRIu64 " bytes, there is room for %" PRIu64 "\n", size,
                room);
        return 1;
    }
    rc = heft_counter_wait(counter, (size + PIECE_BYTES - 1) / PIECE_BYTES, WAIT_MS, &error);
    if (rc)
        return failed("waiting for the pieces"); /* PEER_LOST at once when the sender dies */
    printf("%" PRIu64 " bytes, %08" PRIx32 "\n", size, adler32(bytes, size));
    if (heft_counter_close(counter, &error))
        return failed("closing the counter");
    return heft_agent_close(agent, &error) ? failed("closing") : 0;
}

/* ---- sending ---- */

/* A buffer's two transfers; what it holds, and what it does. */
struct buffer {
    struct heft_xfer *fill, *send;
    uint64_t at, size;
    uint64_t offset; /* of the buffer in the region of all */
};

struct sender {
    struct heft_agent *agent;
    struct heft_peer *peer;
    struct heft_region *file, *memory;
    uint64_t room; /* the peer's region */
    uint64_t size, next;
    struct buffer buffers[BUFFERS];
};

/* Makes the transfer at its first use, else gives it its next range; and starts it. */
static int start(struct sender *sender, struct heft_xfer **xfer, enum heft_op op, struct heft_peer *peer,
                 const struct heft_run *run)
{
    struct heft_xfer_options how = HEFT_XFER_OPTIONS_INIT;
    int rc;

    how.flags = HEFT_XFER_EVENT | (peer ? HEFT_XFER_COUNT : 0u);
    how.counter = ARRIVED;
    rc = *xfer ? heft_xfer_set_runs(*xfer, run, 1, &error)
               : heft_xfer_create(sender->agent, op, peer, run, 1, &how, xfer, &error);
    return rc || heft_xfer_post(*xfer, &error) ? failed(peer ? "sending" : "reading") : 0;
}

static int fill(struct sender *sender, struct buffer *buffer)
{
    struct heft_run run = {.count = 1};

    buffer->at = sender->next;
    buffer->size = sender->size - buffer->at < PIECE_BYTES ? sender->size - buffer->at : PIECE_BYTES;
    sender->next += buffer->size;
    run.local_region = sender->memory;
    run.local_offset_bytes = buffer->offset;
    run.remote_region = heft_region_id(sender->file); /* this agent's own: no peer */
    run.remote_offset_bytes = buffer->at;
    run.length_bytes = buffer->size;
    return start(sender, &buffer->fill, HEFT_OP_READ, NULL, &run);
}

static int pass_on(struct sender *sender, struct buffer *buffer)
{
    struct heft_run run = {.count = 1};

    run.local_region = sender->memory;
    run.local_offset_bytes = buffer->offset;
    run.remote_region = sender->room;
    run.remote_offset_bytes = buffer->at;
    run.length_bytes = buffer->size;
    return start(sender, &buffer->send, HEFT_OP_WRITE, sender->peer, &run);
}

/* Whatever ends next decides what starts next. */
static int run_pipeline(struct sender *sender)
{
    uint64_t left = (sender->size + PIECE_BYTES - 1) / PIECE_BYTES;
    uint32_t index;

    for (index = 0; index < BUFFERS && sender->next < sender->size; index++) {
        sender->buffers[index].offset = index * PIECE_BYTES;
        if (fill(sender, &sender->buffers[index]))
            return 1;
    }
    while (left > 0) {
        struct heft_xfer_result result = {.size = sizeof(result)};
        struct heft_xfer *ended;
        int rc = heft_agent_next_finished(sender->agent, &ended, WAIT_MS);

        if (rc) {
            fprintf(stderr, "pipeline: nothing ended in %u s\n", WAIT_MS / 1000);
            return 1;
        }
        heft_xfer_get_result(ended, &result);
        if (result.status) {
            error = result.error;
            return failed("moving");
        }
        for (index = 0; sender->buffers[index].fill != ended && sender->buffers[index].send != ended; index++)
            continue;
        if (ended == sender->buffers[index].fill) {
            rc = pass_on(sender, &sender->buffers[index]);
        } else {
            left--;
            rc = sender->next < sender->size ? fill(sender, &sender->buffers[index]) : 0;
        }
        if (rc)
            return 1;
    }
    return 0;
}

static int open_file(struct sender *sender, const char *path)
{
    struct heft_region_options options = HEFT_REGION_OPTIONS_INIT;

    options.space = HEFT_SPACE_FILE;
    options.path = path;
    if (heft_region_register(sender->agent, &options, &sender->file, &error))
        return failed(path);
    sender->size = heft_region_length_bytes(sender->file);
    return 0;
}

static int connect_to(struct sender *sender, const char *card)
{
    static char data[65536];
    struct heft_metadata_region room = {.size = sizeof(room)};
    struct heft_metadata *metadata;
    FILE *file = fopen(card, "rb");
    size_t size = file ? fread(data, 1, sizeof(data), file) : 0;

    if (!file) {
        perror(card);
        return 1;
    }
    (void)fclose(file);
    if (heft_metadata_read(data, size, &metadata, &error))
        return failed(card);
    if (heft_metadata_connect(sender->agent, metadata, NULL, &sender->peer, &error))
        return failed("connecting");
    if (heft_metadata_get_region(metadata, 0, &room))
        return failed("looking for room");
    sender->room = room.id;
    heft_metadata_free(metadata);
    return 0;
}

static int send_file(const char *card, const char *path)
{
    struct heft_agent_options options = HEFT_AGENT_OPTIONS_INIT;
    struct sender sender = {0};
    uint8_t *bytes;
    uint32_t index;

    options.name = "sender";
    if (heft_agent_open(&options, &sender.agent, &error))
        return failed("opening the agent");
    if (open_file(&sender, path) ||
        make_memory(sender.agent, BUFFERS * PIECE_BYTES, 0, &bytes, &sender.memory) ||
        connect_to(&sender, card))
        return 1;
    if (heft_peer_notify(sender.peer, &sender.size, sizeof(sender.size), &error))
        return failed("telling the size");
    if (run_pipeline(&sender))
        return 1;
    printf("sent %" PRIu64 " bytes\n", sender.size);
    for (index = 0; index < BUFFERS; index++) {
        if (sender.buffers[index].fill)
            (void)heft_xfer_release(sender.buffers[index].fill);
        if (sender.buffers[index].send)
            (void)heft_xfer_release(sender.buffers[index].send);
    }
    (void)heft_peer_close(sender.peer, NULL);
    return heft_agent_close(sender.agent, &error) ? failed("closing") : 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "receive") == 0)
        return receive(argv[2], strtoull(argv[3], NULL, 10) << 20);
    if (argc == 4 && strcmp(argv[1], "send") == 0)
        return send_file(argv[2], argv[3]);
    fprintf(stderr, "usage: pipeline receive CARD MEGABYTES\n       pipeline send CARD FILE\n");
    return 2;
}
