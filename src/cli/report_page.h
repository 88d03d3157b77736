/* SPDX-License-Identifier: Apache-2.0 */
/* A load on one page: a lane a source over time, its rate against the machine's limit. */
#ifndef HEFT_CLI_REPORT_PAGE_H
#define HEFT_CLI_REPORT_PAGE_H

#include "base/buf.h"
#include <heft/error.h>

struct json_t;

/* `trace`: what heft load --trace writes. Self-contained XHTML, no scripts. INVALID when it is no such trace.
 */
int cli_report_page(const struct json_t *trace, struct heft_buf *page, struct heft_error *error);

#endif
