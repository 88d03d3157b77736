/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space/: places for bytes. Shareable host memory, and what the page cache holds of a file. Nothing here
 * moves bytes.
 *
 * This header: what tests need of heft_memory beyond its public face.
 */
#ifndef HEFT_SPACE_MEMORY_H
#define HEFT_SPACE_MEMORY_H

#include <heft/space.h>

/*
 * Makes later allocations of 2 MiB and more use this tmpfs mount (a descriptor, kept by the caller), or, with
 * -1, only memfds; HEFT_MEMORY_MOUNT_OWN goes back to the process' own mount. For tests; not while another
 * thread allocates.
 */
#define HEFT_MEMORY_MOUNT_OWN (-2)
void heft_memory_use_mount(int mount_fd);

#endif
