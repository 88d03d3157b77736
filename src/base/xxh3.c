/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3-64 compiled for one instruction set; base/digest.c chooses. Built with the flags that base/meson.build
 * gives. */
#define XXH_INLINE_ALL
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wcast-qual"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#include <xxhash.h>
#pragma GCC diagnostic pop

#include <stddef.h>
#include <stdint.h>

uint64_t HEFT_XXH3_NAME(const void *data, size_t size, uint64_t seed);

uint64_t HEFT_XXH3_NAME(const void *data, size_t size, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, size, seed);
}
