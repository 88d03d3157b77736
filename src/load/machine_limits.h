/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This machine's limits, bytes a second: what a load's rate is held against. Measured by `heft probe
 * --measure` and kept in $XDG_CACHE_HOME/heft/limits.json.
 */
#ifndef HEFT_LOAD_MACHINE_LIMITS_H
#define HEFT_LOAD_MACHINE_LIMITS_H

#include <heft/error.h>

struct heft_limits {
    double memcpy_one;  /* one thread, between touched buffers larger than the caches */
    double memcpy_all;  /* as many threads as `threads` */
    double first_touch; /* zeroing fresh pages of heft's own memory, one thread */
    double page_cache;  /* preads of a cached file by `threads` threads */
    double disk;        /* O_DIRECT reads of a cold file, 1 MiB, several at a time */
    double tcp;         /* one stream over loopback */
    double hash;        /* block digests, one thread, cold memory */
    double gpu_in;      /* pinned host memory to the first GPU; this and the next two: 0 without GPUs */
    double gpu_out;     /* and back */
    double gpu_gpu;     /* between the first two GPUs, or within the only one */
    unsigned threads;
    char when[32];  /* "2026-11-30" */
    char path[256]; /* whose disk */
};

/* Takes about three seconds; writes and removes a file of at most 512 MiB in `path`. A part that can't be
 * measured is 0, and the error (filled, return value still 0) tells why. */
int heft_limits_measure(const char *path, struct heft_limits *limits_out, struct heft_error *error);
/* gpu_limits.c: its part of it. Nothing without GPUs. */
void heft_limits_measure_gpus(struct heft_limits *limits, struct heft_error *error);
/* One stream over loopback, bytes a second; 0: it can't be measured, and the error tells why. */
double heft_limits_measure_tcp(struct heft_error *error);
int heft_limits_write(const struct heft_limits *limits, struct heft_error *error);
/* NOT_FOUND when nothing was measured yet. */
int heft_limits_read(struct heft_limits *limits_out);

#endif
