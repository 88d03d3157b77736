/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory in etcd. A record is the value of PREFIX/replicas/NAME or PREFIX/agents/NAME, as a
 * heft.v1.Record, and lives as long as the etcd lease that the key is tied to: etcd forgets it by itself.
 */
#ifndef HEFT_CONTROL_ETCD_DIRECTORY_H
#define HEFT_CONTROL_ETCD_DIRECTORY_H

#include "control/etcd_client.h"
#include "load/directory.h"

struct heft_etcd_directory {
    struct heft_directory base;
    struct heft_etcd *etcd;
    int allow_plain;
};

#define HEFT_ETCD_KEY_BYTES (HEFT_ETCD_PREFIX_MAX_BYTES + 16u + HEFT_NAME_MAX_BYTES + 1u)

int heft_etcd_directory_open(const struct heft_directory_options *options,
                             struct heft_directory **directory_out, struct heft_error *error);

/* The key of a record, or of all whose names begin with "agents/" or do not (name NULL). Its length. */
size_t heft_etcd_key(const struct heft_etcd_directory *self, const char *name, int agents,
                     char key_out[HEFT_ETCD_KEY_BYTES]);
/* The first key after all that begin with this one: its last byte is raised in place. */
void heft_etcd_range_end(char *key, size_t size);

/*
 * The record in a value; its name must be the one that the key says. INVALID otherwise: anybody who may write
 * there may write anything.
 */
struct Heft__Etcd__KeyValue;
int heft_etcd_read_record(const struct heft_etcd_directory *self, const struct Heft__Etcd__KeyValue *kv,
                          struct heft_record *record_out, struct heft_error *error);

/* etcd_watch.c */
int heft_etcd_changed(struct heft_directory *directory, struct heft_directory_cursor *cursor,
                      uint32_t wait_ms, struct heft_directory_changes *changes_out, struct heft_error *error);
void heft_etcd_end_changes(struct heft_directory *directory, struct heft_directory_cursor *cursor);

#endif
