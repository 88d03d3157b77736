/* SPDX-License-Identifier: Apache-2.0 */
#include "base/random.h"
#include "base/error.h"

#include <errno.h>
#include <sys/random.h>

void heft_random_bytes(void *data, size_t size)
{
    char *at = data;

    while (size > 0) {
        ssize_t got = getrandom(at, size, 0);

        if (got < 0) {
            HEFT_ASSERT(errno == EINTR);
            continue;
        }
        at += got;
        size -= (size_t)got;
    }
}
