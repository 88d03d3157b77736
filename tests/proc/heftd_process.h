/* SPDX-License-Identifier: Apache-2.0 */
/* A real heftd as a child of the test: start, ports, signals, what it printed. Dies with the test. */
#ifndef HEFT_TESTS_PROC_HEFTD_PROCESS_H
#define HEFT_TESTS_PROC_HEFTD_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

struct heftd_process {
    pid_t pid;
    uint16_t grpc_port, http_port;
    char folder[80]; /* removed by heftd_remove: port file, log, store */
    char address[32];
};

/* Any program as a child that dies with the test; its output goes to the file `log`. */
pid_t process_spawn(const char *program, const char *const *arguments, const char *log);
/* Sends the signal; waits for the end when it is a deadly one, and returns the exit code or 128 + signal;
 * else -1. */
int process_signal(pid_t pid, int signal_number);
/* A port of loopback that was free a moment ago. */
uint16_t process_free_port(void);
/* Until something listens there; fails the test when the process ends, or after a minute. */
void process_wait_port(pid_t pid, uint16_t port);
void process_remove_folder(const char *folder);

/* The program to run; set once by main. */
extern const char *heftd_program;

/* A new temporary folder, no process yet. */
void heftd_prepare(struct heftd_process *process);
/* Starts heftd with ports the system picks (or those it had, when it ran before) and `extra`, up to a NULL.
 * The store is FOLDER/state/d.db unless extra names one. Waits until it serves; fails the test otherwise. */
void heftd_start(struct heftd_process *process, const char *const *extra);
/* Runs heftd that is expected to end by itself: its exit code, and its stderr in text_out. */
int heftd_run(struct heftd_process *process, const char *const *arguments, char *text_out, size_t size);
/* Sends the signal; waits for the end when it is a deadly one. Returns the exit code, or 128 + signal. */
int heftd_signal(struct heftd_process *process, int signal_number);
/* Kills what runs, removes the folder. */
void heftd_remove(struct heftd_process *process);
/* For cmocka: *state is a struct heftd_process, prepared. */
int heftd_set_up(void **state);
int heftd_tear_down(void **state);
/* The log so far. */
void heftd_log(const struct heftd_process *process, char *text_out, size_t size);
/* A TCP connection to a port of loopback. */
int heftd_connect(uint16_t port);
/* Sends bytes to the HTTP port, reads until the other side closes (or 15 s): bytes read. */
size_t heftd_http(const struct heftd_process *process, const void *request, size_t request_bytes,
                  char *text_out, size_t size);

#endif
