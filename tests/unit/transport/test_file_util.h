/* SPDX-License-Identifier: Apache-2.0 */
/* Drives the file transport's table directly: a stand-in for the agent, files with known bytes, operations.
 */
#ifndef HEFT_TESTS_TRANSPORT_FILE_UTIL_H
#define HEFT_TESTS_TRANSPORT_FILE_UTIL_H

#include "transport/file/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>

#define MIB ((uint64_t)1 << 20)
#define HOST_INDEX 3u

struct rig {
    struct heft_transport_host host;
    struct heft_transport *transport;
    struct heft_endpoint *endpoint;
};

void rig_open(struct rig *rig, uint32_t mode, uint64_t max_host_bytes);
void rig_close(struct rig *rig);

/* A region over fd; the descriptor stays the test's. */
int rig_add_file(struct rig *rig, int fd, uint64_t length_bytes, struct heft_transport_region *region,
                 struct heft_error *error);
void rig_host_region(void *address, uint64_t length_bytes, struct heft_transport_region *region);
void rig_remove(struct rig *rig, struct heft_transport_region *region);

/* A nameless file of pattern bytes on a disk's file system (in $TMPDIR, else /var/tmp), or in `folder`. */
int file_make(const char *folder, uint64_t length_bytes);
uint8_t file_byte(uint64_t offset);
void file_fill(uint8_t *data, uint64_t offset, uint64_t bytes);
/* Written out and out of the page cache. */
void file_make_cold(int fd);

uint64_t random_below(uint64_t *state, uint64_t limit);

/* An operation of up to 64 moves and its end. */
struct trial {
    struct heft_transport_op op;
    struct heft_move moves[64];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int ends; /* times done was called */
    int status;
    struct heft_error error;
};

void trial_init(struct trial *trial, enum heft_op kind);
void trial_add(struct trial *trial, struct heft_transport_region *host, struct heft_transport_region *file,
               struct heft_move shape);
int trial_post(struct rig *rig, struct trial *trial);
/* Its status; fails the test after 60 s. */
int trial_wait(struct trial *trial);
/* Adds, posts, waits and expects every byte to be counted. */
void trial_must(struct rig *rig, struct trial *trial);

#endif
