/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much of a long test runs. ThreadSanitizer looks at how threads meet, which a few rounds show as well as
 * many, and makes each of them ten times as long.
 */
#ifndef HEFT_TESTS_EFFORT_H
#define HEFT_TESTS_EFFORT_H

#ifdef __SANITIZE_THREAD__
#define EFFORT(full, threads) (threads)
/* For loops over every byte of a test's own memory, in one thread: there is nothing to find in them. */
#define PLAIN_LOOP __attribute__((no_sanitize("thread")))
#else
#define EFFORT(full, threads) (full)
#define PLAIN_LOOP
#endif

#endif
