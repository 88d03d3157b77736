/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEFT_TESTS_CONFORMANCE_CASES_H
#define HEFT_TESTS_CONFORMANCE_CASES_H

#include "conformance/setup.h"

extern const struct setup *current_setup;
/* Prints why and skips the running case. */
int skip_case(const char *why);

/* How many cases failed. */
int run_lists_cases(void);
int run_ends_cases(void);
int run_served_cases(void);
int run_chaos_cases(void);

#endif
