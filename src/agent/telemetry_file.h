/* SPDX-License-Identifier: Apache-2.0 */
/* What the two sides of telemetry know of its files. */
#ifndef HEFT_AGENT_TELEMETRY_FILE_H
#define HEFT_AGENT_TELEMETRY_FILE_H

#include <stdint.h>
#include <sys/types.h>

#define HEFT_TELEMETRY_SUFFIX ".stats"
#define HEFT_TELEMETRY_NAME_BYTES 64

/* When that process began, in ticks after boot; 0: there is none, or it can't be known. */
uint64_t heft_telemetry_start_ticks(pid_t pid);
/* Removes what processes left in the folder that are gone for long, of this user. */
void heft_telemetry_clean(int folder);

#endif
