/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEFT_BASE_RANDOM_H
#define HEFT_BASE_RANDOM_H

#include <stddef.h>

/* Bytes from the system's generator, fit for secrets. Can't fail on a kernel that heft runs on. */
void heft_random_bytes(void *data, size_t size);

#endif
