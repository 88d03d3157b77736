/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heft bench: one process that says what is measured and prints it (cmd_bench.c), M that serve memory
 * (bench_serve.c), N that read and write it with some threads each (bench_client.c), and what the machine
 * does at least without heft (bench_bare.c). They share a board: a page of what to do and what came of it.
 */
#ifndef HEFT_CLI_BENCH_H
#define HEFT_CLI_BENCH_H

#include "base/stats.h"
#include "cli/cli.h"

#include <pthread.h>
#include <semaphore.h>

#define BENCH_CLIENTS_MAX 64
#define BENCH_SERVERS_MAX 16
#define BENCH_REPEATS_MAX 32
#define BENCH_WAIT_S 120 /* for a process to begin, or to end a row */
#define BENCH_DOCUMENT "heft-bench"

enum bench_space { BENCH_SHARED, BENCH_PRIVATE, BENCH_FILE };
enum bench_pattern { BENCH_CONTIGUOUS, BENCH_STRIDED, BENCH_SCATTERED };
enum bench_tell { BENCH_SILENT, BENCH_NOTIFICATION, BENCH_COUNTER };

/* One row. */
struct bench_case {
    enum heft_op op;
    enum bench_space space;
    enum bench_pattern pattern;
    uint64_t size_bytes, batch;
};

/* What holds for all rows. */
struct bench_setup {
    uint32_t clients, servers, threads, repeats, workers;
    uint64_t time_ns, warm_ns;
    enum bench_tell tell;
    int unprepared, unchecked, is_remote;
    const char *require, *path, *listen;
    const struct cli *cli; /* for what agents take from it */
    uint64_t need_bytes;   /* of one region of a server */
};

/* Where one server is. */
struct bench_card {
    char addresses[2048];
    struct heft_token token;
    uint64_t source_region, target_region; /* to read; to write */
    uint64_t bytes;                        /* of each */
    uint64_t pid, source_address, target_address;
};

struct bench_result {
    int status;
    struct heft_error error;
    char transport[32];
    uint64_t bytes[BENCH_REPEATS_MAX], transfers[BENCH_REPEATS_MAX], ns[BENCH_REPEATS_MAX];
    double bare; /* bytes a second without heft, one thread; 0: not known */
    uint64_t checked_bytes;
    struct heft_stats_histogram times; /* of all repeats */
};

struct bench_board {
    sem_t served;                /* a server stands, or failed */
    sem_t go[BENCH_CLIENTS_MAX]; /* one row to run; with `stop`: leave */
    sem_t done;                  /* a client stands, or ran a row */
    pthread_barrier_t start;     /* all clients, each repeat */
    uint32_t stop;               /* atomic */
    struct bench_case row;
    struct bench_card cards[BENCH_SERVERS_MAX];
    struct heft_error server_errors[BENCH_SERVERS_MAX];
    struct bench_result results[BENCH_CLIENTS_MAX];
};

/* The options of every agent of the benchmark. */
void bench_agent_options(const struct bench_setup *setup, struct heft_agent_options *options_out);

/* Bytes that `batch` pieces of a row take on either side, for one thread. */
uint64_t bench_span(const struct bench_case *row);
uint64_t bench_stride(const struct bench_case *row);

#define BENCH_SOURCE_SALT UINT64_C(0x5bd1e9955bd1e995)
#define BENCH_CLIENT_SALT UINT64_C(0x1b873593cc9e2d51)
/* What lies at [offset, offset + size) of a region with that salt; and the first offset that differs, or
 * size. */
void bench_fill(uint8_t *at, uint64_t offset, uint64_t size, uint64_t salt);
uint64_t bench_differs(const uint8_t *at, uint64_t offset, uint64_t size, uint64_t salt);

/* A server: opens, fills the card, and (forked for the board) serves until the board says stop. NULL board:
 * prints the card and serves until SIGINT. */
int bench_serve(const struct bench_setup *setup, struct bench_board *board, uint32_t index,
                enum bench_space space, const struct cli *cli, struct heft_error *error);
/* A client's process, to its end. */
void bench_client(const struct bench_setup *setup, struct bench_board *board, uint32_t index);

/* Bytes a second of a row's pieces without heft: memcpy, cross-memory calls (far_pid, far_address), pread and
 * pwrite (fd). 0: it can't be done. */
double bench_bare(const struct bench_case *row, uint8_t *near, uint8_t *far, uint64_t far_pid,
                  uint64_t far_address, int fd, const uint32_t *near_order, const uint32_t *far_order,
                  uint64_t time_ns);

#endif
