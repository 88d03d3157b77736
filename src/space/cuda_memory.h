/* SPDX-License-Identifier: Apache-2.0 */
/* What the cuda transport and tests need of device memory beyond its public face. */
#ifndef HEFT_SPACE_CUDA_MEMORY_H
#define HEFT_SPACE_CUDA_MEMORY_H

#include "space/cuda_driver.h"
#include <heft/space.h>

/* Physical pieces of one memory: their descriptors travel in one message of a unix socket (253 at most). */
#define HEFT_DEVICE_MEMORY_MAX_PIECES 240u

/* As heft_device_memory_alloc; piece_bytes 0: 1 GiB or more each. */
int heft_device_memory_alloc_pieces(int device, uint64_t length_bytes, uint64_t piece_bytes,
                                    struct heft_device_memory **memory_out, struct heft_error *error);
/* Lets `device` use mapped memory, all of it one mapping behind the other; the driver's code. Others keep
 * what they may. */
int heft_cuda_grant(const struct heft_cu *cu, int device, uint64_t address, uint64_t bytes);

#endif
