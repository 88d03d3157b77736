/* SPDX-License-Identifier: Apache-2.0 */
/* heftd's options: one table, read from flags, HEFT_* variables, a file and defaults, in this order of
 * weight. */
#ifndef HEFT_DAEMON_OPTIONS_H
#define HEFT_DAEMON_OPTIONS_H

#include "base/config.h"

/* Fills `config` (free it in any case). INVALID, UNKNOWN_OPTION, NOT_FOUND: what is wrong, and the nearest.
 */
int heft_daemon_options_read(int argc, char **argv, char *const *environment, struct heft_config *config,
                             struct heft_error *error);
/* The text of --help. */
void heft_daemon_options_help(const struct heft_config *config, struct heft_buf *buf);

#endif
