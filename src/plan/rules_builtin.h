/* SPDX-License-Identifier: Apache-2.0 */
/* The files of src/plan/rules, as text. Made when heft is built. */
#ifndef HEFT_PLAN_RULES_BUILTIN_H
#define HEFT_PLAN_RULES_BUILTIN_H

#include <stddef.h>

extern const char *const heft_rules_builtin[];
extern const size_t heft_rules_builtin_count;

#endif
