/* SPDX-License-Identifier: Apache-2.0 */
/* What Hugging Face's hub answers of a model's revision: its commit and its files (JSON). */
#ifndef HEFT_FORMAT_HUB_FILES_H
#define HEFT_FORMAT_HUB_FILES_H

#include "format/s3_xml.h"

/*
 * Entries: the file's name, its size (0 when the answer tells none), and as ETag its SHA-256 when it is a
 * large one, else what git calls it; "" when neither is told. Errors: PROTOCOL, NO_MEMORY, TOO_MANY.
 */
int heft_hub_files_parse(const void *json, size_t size, char commit_out[64], struct heft_s3_page *page_out,
                         struct heft_error *error);

#endif
