/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels, as one image; src/space/cuda_kernels.c loads it. */
#include "copy.cuh"
#include "digest.cuh"

#define DIGEST_WARPS 4

/* Launched with THREADS_OF(DIGEST_WARPS) threads; src/space/cuda_kernels.c knows the number. */
extern "C" __global__ void __launch_bounds__(THREADS_OF(DIGEST_WARPS))
    heft_digest(const struct place *places, uint64_t count, uint64_t *digests)
{
    struct work work = {places, nullptr, 0, 0, count};

    digest_all<DIGEST_WARPS>(work, digests);
}
