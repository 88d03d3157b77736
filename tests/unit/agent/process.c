/* SPDX-License-Identifier: Apache-2.0 */
#include "process.h"
#include "pair.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

void other_start(struct other *other, const char *mode, const char *argument)
{
    char program[] = "/proc/self/exe";
    char mode_copy[32], argument_copy[64];
    char *arguments[] = {program, mode_copy, argument_copy, NULL};
    posix_spawn_file_actions_t actions;
    int in[2], out[2];

    (void)snprintf(mode_copy, sizeof(mode_copy), "%s", mode);
    (void)snprintf(argument_copy, sizeof(argument_copy), "%s", argument);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    (void)posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    assert_int_equal(posix_spawn(&other->pid, program, &actions, NULL, arguments, environ), 0);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(in[0]);
    (void)close(out[1]);
    other->in = in[1];
    other->out = out[0];
}

void other_end(struct other *other, int signal_number)
{
    int status = 0;

    if (signal_number) {
        (void)kill(other->pid, signal_number);
        (void)kill(other->pid, SIGCONT);
    }
    (void)close(other->in);
    assert_int_equal(waitpid(other->pid, &status, 0), other->pid);
    if (!signal_number)
        assert_int_equal(status, 0);
    (void)close(other->out);
}

void other_read(int fd, void *data, size_t size)
{
    char *at = data;

    while (size) {
        ssize_t got = read(fd, at, size);

        if (got <= 0)
            fail_msg("the other process ended");
        at += got;
        size -= (size_t)got;
    }
}

void other_write(int fd, const void *data, size_t size)
{
    const char *at = data;

    while (size) {
        ssize_t wrote = write(fd, at, size);

        if (wrote <= 0)
            _exit(3);
        at += wrote;
        size -= (size_t)wrote;
    }
}

void other_say(const struct other *other, char command)
{
    assert_int_equal(write(other->in, &command, 1), 1);
}

void served_fill(struct served *served, struct heft_agent *agent)
{
    (void)snprintf(served->name, sizeof(served->name), "%s", heft_agent_name(agent));
    (void)heft_agent_addresses(agent, served->addresses, sizeof(served->addresses));
    served->generation = heft_agent_generation(agent);
    served->token = heft_agent_token(agent);
}

struct heft_peer_options served_options(const struct served *served)
{
    struct heft_peer_options options = HEFT_PEER_OPTIONS_INIT;

    options.addresses = served->addresses;
    options.name = served->name;
    options.generation = served->generation;
    options.token = served->token;
    options.connect_timeout_ms = 20000;
    return options;
}

struct heft_peer *served_connect(struct heft_agent *agent, const struct served *served)
{
    struct heft_peer_options options = served_options(served);
    struct heft_error error = HEFT_ERROR_INIT;
    struct heft_peer *peer = NULL;

    if (heft_peer_connect(agent, &options, &peer, &error))
        fail_msg("connecting: %s", error.text);
    return peer;
}
