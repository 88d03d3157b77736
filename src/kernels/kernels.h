/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/: CUDA C, compiled by nvcc when it is there at build time and built into the library as bytes. No
 * code of this folder runs on the host, and nothing here is linked against CUDA.
 */
#ifndef HEFT_KERNELS_KERNELS_H
#define HEFT_KERNELS_KERNELS_H

extern const unsigned char heft_kernels_image[];
extern const unsigned long heft_kernels_image_bytes; /* 0: built without nvcc */

#endif
