/* SPDX-License-Identifier: Apache-2.0 */
/* Records as JSON objects: the static directory's file, and what the command line prints. */
#ifndef HEFT_LOAD_RECORD_JSON_H
#define HEFT_LOAD_RECORD_JSON_H

#include "load/directory.h"
#include <jansson.h>

/* A new object without the lease's end; NULL: out of memory. with_token 0 leaves the token out. */
json_t *heft_record_to_json(const struct heft_record *record, int with_token);
/* Members that are not known are ignored; missing ones are 0 or "". lease_left_ms and epoch are not read. */
int heft_record_from_json(json_t *object, struct heft_record *record_out, struct heft_error *error);

/* Lower-case hexadecimal digits and a NUL: 2 * size_bytes + 1 bytes at text_out. */
void heft_hex_print(const void *data, size_t size_bytes, char *text_out);
/* Exactly size_bytes from 2 * size_bytes digits: 1, else 0. */
int heft_hex_parse(const char *text, void *data_out, size_t size_bytes);

#endif
