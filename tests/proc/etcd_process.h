/* SPDX-License-Identifier: Apache-2.0 */
/* A real etcd as a child of the test. Dies with the test. */
#ifndef HEFT_TESTS_PROC_ETCD_PROCESS_H
#define HEFT_TESTS_PROC_ETCD_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

struct etcd_process {
    pid_t pid;
    uint16_t port, peer_port;
    char folder[80]; /* removed by etcd_remove */
    char address[64], tls_address[64];
};

/* 0 when there is no etcd on this machine. */
int etcd_is_there(void);
void etcd_prepare(struct etcd_process *process);
/* Starts it on the data and port it had before, if any; `extra` up to a NULL. Returns when it listens. */
void etcd_start(struct etcd_process *process, const char *const *extra);
/* Sends the signal; waits for the end when it is a deadly one. */
void etcd_signal(struct etcd_process *process, int signal_number);
/* Forgets what it has stored; it must not run. */
void etcd_empty(struct etcd_process *process);
void etcd_remove(struct etcd_process *process);
/* Runs a shell command with $E = "etcdctl --endpoints=..." and $F = the folder; fails the test unless it ends
 * with 0. */
void etcd_shell(struct etcd_process *process, const char *command);

#endif
