/* SPDX-License-Identifier: Apache-2.0 */
/* Transports from shared libraries: found by path, loaded once a process, never unloaded. */
#ifndef HEFT_TRANSPORT_PLUGIN_H
#define HEFT_TRANSPORT_PLUGIN_H

#include <heft/transport.h>

#define HEFT_PLUGINS_MAX 8 /* in one process */

/*
 * Loads one file, or finds it loaded already. Errors, each with the file: NOT_FOUND, LIBRARY (the loader's
 * words; or it lacks the symbol), INCOMPATIBLE (both ABI numbers), INVALID (its table), TOO_MANY, or what
 * its own init said.
 */
int heft_plugin_load(const char *file, const struct heft_transport_ops **ops_out, struct heft_error *error);

/* Told of each file of a path: a table, or why there is none. */
typedef void (*heft_plugin_fn)(const char *file, const struct heft_transport_ops *ops,
                               const struct heft_error *error, void *context);
/* Each file that the path names, and each *.so in each folder that it names, in the order of names. */
void heft_plugins_each(const char *path, heft_plugin_fn told, void *context);
/* $HEFT_PLUGIN_PATH, or NULL; not looked at in programs that run with another user's rights. */
const char *heft_plugin_path(void);

#endif
