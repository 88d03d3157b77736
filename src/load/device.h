/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of blocks that lie in GPU memory: what executor.c and loaded.c do on the CPU, in one launch. */
#ifndef HEFT_LOAD_DEVICE_H
#define HEFT_LOAD_DEVICE_H

#include "load/executor.h"

#include <pthread.h>

/* The blocks that a chunk completes, on options->device. *verified_out counts compared ones. 0, DIGEST with
 * the place, or why they could not be made. Any thread. */
int heft_device_verify_chunk(const struct heft_executor_options *options, uint64_t chunk,
                             uint64_t *verified_out, struct heft_error *error);
/* Digests of all blocks of the manifest's tensors, which lie at `addresses` on the device. */
int heft_device_digest_tensors(struct heft_manifest *manifest, const uint8_t *const *addresses, int device,
                               struct heft_error *error);

/* Starts making the GPU ready while sources are still looked for; ended by _warmed. */
struct heft_device_warmer {
    pthread_t thread;
    int device, started;
};
void heft_device_warm(struct heft_device_warmer *warmer, int device);
void heft_device_warmed(struct heft_device_warmer *warmer);

#endif
