/* SPDX-License-Identifier: Apache-2.0 */
#include "heftd_process.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define START_LIMIT_S 60u

const char *heftd_program;

static void pause_ms(long ms)
{
    struct timespec pause = {0, ms * 1000000};

    (void)nanosleep(&pause, NULL);
}

void heftd_prepare(struct heftd_process *process)
{
    memset(process, 0, sizeof(*process));
    (void)snprintf(process->folder, sizeof(process->folder), "/tmp/heftd-test-XXXXXX");
    assert_non_null(mkdtemp(process->folder));
}

static void path_in(const struct heftd_process *process, const char *name, char *path_out, size_t size)
{
    (void)snprintf(path_out, size, "%s/%s", process->folder, name);
}

static size_t read_text(const char *path, char *text_out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, text_out, size - 1);

    if (fd >= 0)
        (void)close(fd);
    text_out[got > 0 ? got : 0] = 0;
    return got > 0 ? (size_t)got : 0;
}

pid_t process_spawn(const char *program, const char *const *arguments, const char *log)
{
    char *argv[40] = {NULL};
    size_t count = 0;
    pid_t pid;
    int fd;

    memcpy(&argv[count++], &program, sizeof(char *)); /* execvp takes them without const */
    for (; *arguments && count < 39; arguments++)
        memcpy(&argv[count++], arguments, sizeof(char *));
    pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    (void)dup2(fd, 2);
    (void)dup2(fd, 1);
    (void)execvp(program, argv);
    _exit(127);
}

static void spawn(struct heftd_process *process, const char *const *arguments)
{
    char log[128];

    path_in(process, "log", log, sizeof(log));
    process->pid = process_spawn(heftd_program, arguments, log);
}

/* The exit code, or 128 + signal; -1 while it runs. */
static int ended(struct heftd_process *process, int flags)
{
    int status;
    pid_t pid = waitpid(process->pid, &status, flags);

    if (pid == 0)
        return -1;
    process->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void heftd_start(struct heftd_process *process, const char *const *extra)
{
    char ports[128], listen[32], http[32], store[128], text[256];
    const char *arguments[32] = {"--listen", listen, "--http", http, "--port-file", ports, "--store", store};
    uint64_t until_ns = heft_now_ns() + START_LIMIT_S * HEFT_NS_PER_S;
    unsigned int grpc_port = 0, http_port = 0;
    size_t count = 8;
    int code;

    path_in(process, "ports", ports, sizeof(ports));
    (void)unlink(ports);
    (void)snprintf(listen, sizeof(listen), "127.0.0.1:%u", process->grpc_port);
    (void)snprintf(http, sizeof(http), "127.0.0.1:%u", process->http_port);
    (void)snprintf(store, sizeof(store), "sqlite:%s/state/d.db", process->folder);
    while (extra && *extra)
        arguments[count++] = *extra++;
    spawn(process, arguments);
    while (read_text(ports, text, sizeof(text)) == 0) {
        if ((code = ended(process, WNOHANG)) >= 0) {
            heftd_log(process, text, sizeof(text));
            fail_msg("heftd ended with %d: %s", code, text);
        }
        if (heft_now_ns() > until_ns)
            fail_msg("heftd did not serve within %u s", START_LIMIT_S);
        pause_ms(2);
    }
    assert_int_equal(sscanf(text, "grpc=%u\nhttp=%u", &grpc_port, &http_port), 2);
    process->grpc_port = (uint16_t)grpc_port;
    process->http_port = (uint16_t)http_port;
    (void)snprintf(process->address, sizeof(process->address), "127.0.0.1:%u", grpc_port);
}

int heftd_run(struct heftd_process *process, const char *const *arguments, char *text_out, size_t size)
{
    int code;

    spawn(process, arguments);
    code = ended(process, 0);
    heftd_log(process, text_out, size);
    return code;
}

int process_signal(pid_t pid, int signal_number)
{
    int status;

    assert_true(pid > 0);
    assert_int_equal(kill(pid, signal_number), 0);
    if (signal_number == SIGSTOP) /* all its threads have stopped when waitpid says so */
        assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
    if (signal_number == SIGSTOP || signal_number == SIGCONT)
        return -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int heftd_signal(struct heftd_process *process, int signal_number)
{
    int code = process_signal(process->pid, signal_number);

    if (code >= 0)
        process->pid = 0;
    return code >= 0 ? code : 0;
}

uint16_t process_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    (void)close(fd);
    return ntohs(address.sin_port);
}

void process_wait_port(pid_t pid, uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint64_t until_ns = heft_now_ns() + START_LIMIT_S * HEFT_NS_PER_S;

    address.sin_port = htons(port);
    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), failed;

        failed = connect(fd, (struct sockaddr *)&address, sizeof(address));
        (void)close(fd);
        if (!failed)
            return;
        if (waitpid(pid, NULL, WNOHANG) != 0 || heft_now_ns() > until_ns)
            fail_msg("nothing listens on port %u", port);
        pause_ms(5);
    }
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *place)
{
    (void)info;
    (void)type;
    (void)place;
    return remove(path);
}

void process_remove_folder(const char *folder)
{
    (void)nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

void heftd_remove(struct heftd_process *process)
{
    if (process->pid > 0)
        (void)heftd_signal(process, SIGKILL);
    process_remove_folder(process->folder);
}

int heftd_set_up(void **state)
{
    struct heftd_process *process = calloc(1, sizeof(*process));

    assert_non_null(process);
    heftd_prepare(process);
    *state = process;
    return 0;
}

int heftd_tear_down(void **state)
{
    heftd_remove(*state);
    free(*state);
    return 0;
}

void heftd_log(const struct heftd_process *process, char *text_out, size_t size)
{
    char path[128];

    path_in(process, "log", path, sizeof(path));
    (void)read_text(path, text_out, size);
}

int heftd_connect(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {15, 0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    address.sin_port = htons(port);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)))
        fail_msg("connecting to port %u: %s", port, strerror(errno));
    return fd;
}

size_t heftd_http(const struct heftd_process *process, const void *request, size_t request_bytes,
                  char *text_out, size_t size)
{
    int fd = heftd_connect(process->http_port);
    size_t used = 0;
    ssize_t got;

    (void)send(fd, request, request_bytes, MSG_NOSIGNAL);
    while (used + 1 < size && (got = recv(fd, text_out + used, size - 1 - used, 0)) > 0)
        used += (size_t)got;
    text_out[used] = 0;
    (void)close(fd);
    return used;
}
