/* SPDX-License-Identifier: Apache-2.0 */
#include "../../effort.h"
#include "test_file_util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void rig_open(struct rig *rig, uint32_t mode, uint64_t max_host_bytes)
{
    struct heft_error error = HEFT_ERROR_INIT;

    memset(rig, 0, sizeof(*rig));
    heft_file_force_mode(mode);
    rig->host.abi = HEFT_TRANSPORT_ABI;
    rig->host.size = sizeof(rig->host);
    rig->host.max_host_bytes = max_host_bytes;
    rig->host.index = HOST_INDEX;
    if (heft_pool_create(2, &rig->host.pool, &error) ||
        heft_transport_file.open(&rig->host, &rig->transport, &error) ||
        heft_transport_file.connect(rig->transport, NULL, &rig->endpoint, &error))
        fail_msg("%s", error.text);
}

void rig_close(struct rig *rig)
{
    if (rig->endpoint)
        heft_transport_file.disconnect(rig->endpoint);
    heft_transport_file.close(rig->transport);
    heft_pool_destroy(rig->host.pool);
    heft_file_force_mode(HEFT_FILE_AUTO);
}

int rig_add_file(struct rig *rig, int fd, uint64_t length_bytes, struct heft_transport_region *region,
                 struct heft_error *error)
{
    memset(region, 0, sizeof(*region));
    region->space = HEFT_SPACE_FILE;
    region->length_bytes = length_bytes;
    region->fd = fd;
    region->label = "part-1.bin";
    return heft_transport_file.region_add(rig->transport, region, error);
}

void rig_host_region(void *address, uint64_t length_bytes, struct heft_transport_region *region)
{
    memset(region, 0, sizeof(*region));
    region->space = HEFT_SPACE_HOST;
    region->length_bytes = length_bytes;
    region->address = address;
    region->fd = -1;
    region->label = "";
}

void rig_remove(struct rig *rig, struct heft_transport_region *region)
{
    heft_transport_file.region_remove(rig->transport, region);
}

uint8_t file_byte(uint64_t offset)
{
    uint64_t mixed = (offset / 8 + 1) * UINT64_C(0x9E3779B97F4A7C15);

    return (uint8_t)(mixed >> (offset % 8 * 8));
}

PLAIN_LOOP void file_fill(uint8_t *data, uint64_t offset, uint64_t bytes)
{
    uint64_t at;

    for (at = 0; at < bytes; at++)
        data[at] = file_byte(offset + at);
}

int file_make(const char *folder, uint64_t length_bytes)
{
    const char *temporary = getenv("TMPDIR");
    uint8_t *block = malloc(MIB);
    char path[512];
    uint64_t at;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/heft-file-XXXXXX",
                   folder                    ? folder
                   : temporary && *temporary ? temporary
                                             : "/var/tmp");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)unlink(path);
    assert_non_null(block);
    for (at = 0; at < length_bytes; at += MIB) {
        uint64_t bytes = length_bytes - at < MIB ? length_bytes - at : MIB;

        file_fill(block, at, bytes);
        assert_int_equal(pwrite(fd, block, bytes, (off_t)at), bytes);
    }
    free(block);
    return fd;
}

void file_make_cold(int fd)
{
    assert_int_equal(fdatasync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
}

uint64_t random_below(uint64_t *state, uint64_t limit)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return limit ? *state % limit : 0;
}

static void trial_done(struct heft_transport_op *op, int status, const struct heft_error *error)
{
    struct trial *trial = (struct trial *)(void *)op; /* its first member */

    (void)pthread_mutex_lock(&trial->lock);
    trial->ends++;
    trial->status = status;
    if (error)
        trial->error = *error;
    (void)pthread_cond_broadcast(&trial->changed);
    (void)pthread_mutex_unlock(&trial->lock);
}

void trial_init(struct trial *trial, enum heft_op kind)
{
    memset(trial, 0, sizeof(*trial));
    (void)pthread_mutex_init(&trial->lock, NULL);
    (void)pthread_cond_init(&trial->changed, NULL);
    trial->op.kind = kind;
    trial->op.moves = trial->moves;
    trial->op.failed_move = -1;
    trial->op.done = trial_done;
}

/* `shape` has lengths, strides and, as local, the host side of a READ or WRITE. */
void trial_add(struct trial *trial, struct heft_transport_region *host, struct heft_transport_region *file,
               struct heft_move shape)
{
    assert_true(trial->op.move_count < sizeof(trial->moves) / sizeof(trial->moves[0]));
    shape.local = host;
    shape.remote = file;
    trial->moves[trial->op.move_count++] = shape;
    trial->op.total_bytes += shape.length_bytes * shape.count;
}

int trial_post(struct rig *rig, struct trial *trial)
{
    return heft_transport_file.post(rig->endpoint, &trial->op, &trial->error);
}

int trial_wait(struct trial *trial)
{
    struct timespec until;
    int rc = 0;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    (void)pthread_mutex_lock(&trial->lock);
    while (trial->ends == 0 && rc == 0)
        rc = pthread_cond_timedwait(&trial->changed, &trial->lock, &until);
    (void)pthread_mutex_unlock(&trial->lock);
    if (rc)
        fail_msg("an operation did not end within 60 s");
    assert_int_equal(trial->ends, 1);
    return trial->status;
}

void trial_must(struct rig *rig, struct trial *trial)
{
    if (trial_post(rig, trial) || trial_wait(trial))
        fail_msg("%s", trial->error.text);
    assert_int_equal(__atomic_load_n(&trial->op.done_bytes, __ATOMIC_RELAXED), trial->op.total_bytes);
}
