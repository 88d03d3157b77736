/* SPDX-License-Identifier: Apache-2.0 */
/* Names of spaces. */
#include <heft/space.h>

const char *heft_space_name(enum heft_space space)
{
    switch (space) {
    case HEFT_SPACE_HOST:
        return "host";
    case HEFT_SPACE_CUDA:
        return "cuda";
    case HEFT_SPACE_FILE:
        return "file";
    case HEFT_SPACE_OBJECT:
        return "object";
    case HEFT_SPACE_NONE:
    case HEFT_SPACE_COUNT:
        break;
    }
    return "none";
}
