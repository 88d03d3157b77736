/* SPDX-License-Identifier: Apache-2.0 */
#include "etcd_process.h"
#include "heftd_process.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

int etcd_is_there(void)
{
    return system("command -v etcd >/dev/null && command -v etcdctl >/dev/null") == 0;
}

void etcd_prepare(struct etcd_process *process)
{
    memset(process, 0, sizeof(*process));
    (void)snprintf(process->folder, sizeof(process->folder), "/tmp/heft-etcd-XXXXXX");
    assert_non_null(mkdtemp(process->folder));
    process->port = process_free_port();
    process->peer_port = process_free_port();
    (void)snprintf(process->address, sizeof(process->address), "etcd://127.0.0.1:%u/t", process->port);
    (void)snprintf(process->tls_address, sizeof(process->tls_address), "etcds://127.0.0.1:%u/t",
                   process->port);
}

void etcd_start(struct etcd_process *process, const char *const *extra)
{
    char data[128], client[64], peer[64], cluster[80], log[128];
    const char *arguments[32] = {"--data-dir",
                                 data,
                                 "--listen-peer-urls",
                                 peer,
                                 "--initial-advertise-peer-urls",
                                 peer,
                                 "--initial-cluster",
                                 cluster,
                                 "--heartbeat-interval",
                                 "20",
                                 "--election-timeout",
                                 "200"};
    size_t count = 12;

    (void)snprintf(data, sizeof(data), "%s/data", process->folder);
    (void)snprintf(log, sizeof(log), "%s/log", process->folder);
    (void)snprintf(client, sizeof(client), "http://127.0.0.1:%u", process->port);
    (void)snprintf(peer, sizeof(peer), "http://127.0.0.1:%u", process->peer_port);
    (void)snprintf(cluster, sizeof(cluster), "default=%s", peer);
    if (extra && strcmp(*extra, "tls") == 0) {
        client[4] = 's';
        (void)snprintf(client, sizeof(client), "https://127.0.0.1:%u", process->port);
        extra++;
    }
    arguments[count++] = "--listen-client-urls";
    arguments[count++] = client;
    arguments[count++] = "--advertise-client-urls";
    arguments[count++] = client;
    while (extra && *extra)
        arguments[count++] = *extra++;
    process->pid = process_spawn("etcd", arguments, log);
    process_wait_port(process->pid, process->port);
}

void etcd_signal(struct etcd_process *process, int signal_number)
{
    if (process_signal(process->pid, signal_number) >= 0)
        process->pid = 0;
}

void etcd_empty(struct etcd_process *process)
{
    etcd_shell(process, "rm -rf $F/data");
}

void etcd_remove(struct etcd_process *process)
{
    if (process->pid > 0)
        etcd_signal(process, SIGKILL);
    process_remove_folder(process->folder);
}

void etcd_shell(struct etcd_process *process, const char *command)
{
    char text[2048];
    int code;

    (void)snprintf(
        text, sizeof(text),
        "F=%s; export ETCDCTL_API=3 E=\"etcdctl --endpoints=127.0.0.1:%u\"; { %s; } >$F/shell 2>&1",
        process->folder, process->port, command);
    code = system(text);
    if (code)
        fail_msg("'%s' ended with %d", command, code);
}
